# pg_repack rebuilds each table of idem while sessions write it, and carries over by a trigger what
# they write meanwhile: no key is new again, no lease comes back, no watermark goes back.
use strict;
use warnings;

use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $pg_repack = installed('pg_repack') or plan skip_all => 'pg_repack is not installed';
my $node = idem_node('repack', conf => "fsync = off\nlog_statement = none");
plan skip_all => 'pg_repack is not packaged for this server'
  if $node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_repack'}) eq '0';

sub sql { return $node->safe_psql('postgres', $_[0]); }
sql(<<'SQL');
CREATE EXTENSION pg_repack;
SELECT idem.create_scope('jobs', lease => '1 hour', wait => '5 s');
SQL
sql(q{SELECT idem.create_scope('there', records => true), idem.create_record_table('elsewhere')})
  unless managed_edition();

# Begins to rebuild the table. A transaction that is older holds the swap of the files up, as does
# the time that a large index takes, so that all of the SQL falls in between; what locks the table
# against others may wait until pg_repack has ended.
sub repack
{
	my ($table, $sql) = @_;
	my $old = $node->background_psql('postgres', on_error_stop => 1);
	$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()');
	my $output = '';
	my $run = IPC::Run::start([ $pg_repack, '--no-kill-backend', '-h', $node->host, '-p', $node->port, '-d', 'postgres',
			'-t', $table ],
		'>&', \$output, IPC::Run::timeout(10 * $PostgreSQL::Test::Utils::timeout_default));
	$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_trigger WHERE tgrelid = '$table'::regclass
		AND tgname = 'repack_trigger'")
	  or die "pg_repack has not begun: $output";
	my $file = sql("SELECT pg_relation_filepath('$table')");
	my ($out, $err) = ('', '');
	my $writer = IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres')
			. ' application_name=writer', '-c', $sql ], '<', '/dev/null', '>', \$out, '2>', \$err);
	usleep(50_000) while runs($writer) && !sql(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'writer'
		AND wait_event_type = 'Lock'});
	is(sql("SELECT pg_relation_filepath('$table')"), $file, "$table: written before the swap");
	$old->query_safe('COMMIT');
	$old->quit;
	ok($writer->finish && $err eq '', "$table: all was written") or diag $err;
	$run->finish;
	ok($run->result == 0, "$table: repacked") or diag $output;
	isnt(sql("SELECT pg_relation_filepath('$table')"), $file, "$table: and swapped");
	return;
}

# Other sessions pay at the same time, each key twice.
my $load = load($node, <<'SQL', '-c', 4, '-M', 'prepared');
\set n random(1, 1000000000)
SELECT pay('key' || :n, '{"amount": 1}');
SELECT pay('key' || :n, '{"amount": 1}');
SELECT count(*) FROM idem.once_each('jobs', ARRAY['each' || :n, 'two' || :n]);
SQL

my %token =
	map { $_ => sql(
			"SELECT token FROM idem.claim('jobs', '$_', lease => '1 hour')") } qw(completed failed released renewed);
sql(q{SELECT idem.once('jobs', 'forgotten'), idem.once('jobs', 'erased'), idem.advance('jobs', 'stream', 1),
	idem.advance('jobs', 'gone', 1)});
repack('idem.record', <<"SQL");
SELECT pay('during' || i, '{"amount": 2}') FROM generate_series(1, 30) i;
SELECT idem.complete('$token{completed}', '7'), idem.fail('$token{failed}', '{"message": "no"}'),
  idem.release('$token{released}', retry_after => '1 hour'), idem.checkpoint('$token{renewed}', 'charged');
SELECT idem.forget('jobs', 'forgotten'), idem.erase('jobs', 'erased'), idem.cancel('jobs', 'cancelled');
SELECT count(*) FROM idem.once_each('jobs', '{each, every}');
SQL
sql("SELECT pay('during' || i, '{\"amount\": 2}') FROM generate_series(1, 30) i");
is(sql('SELECT count(*) FROM payment WHERE amount = 2'), 30, 'no payment is made again');
is(sql(<<'SQL'),
SELECT string_agg(concat_ws(' ', key, l.state, l.response, (SELECT r.recovery_point FROM idem.records r
  WHERE r.scope = 'jobs' AND r.key = k.key)), ', ' ORDER BY n)
FROM unnest('{completed,failed,released,renewed,forgotten,erased,cancelled,each,every}'::text[]) WITH ORDINALITY
AS k (key, n), idem.lookup('jobs', k.key) l
SQL
	'completed completed 7, failed failed, released in_progress, renewed in_progress charged, forgotten absent, '
	. 'erased completed, cancelled failed, each completed, every completed',
	'each key is as it was left');
is(sqlstate($node, "SELECT idem.complete('$token{released}', '1')"), 'ID004', 'no lease is back');
is(sql("SELECT idem.complete('$token{renewed}', '1')"), 1, 'and none is lost');

repack('idem.watermark', q{SELECT idem.advance('jobs', 'stream', 2), idem.advance('jobs', 'new', 5),
	idem.reset_stream('jobs', 'gone')});
is(sql(q{SELECT idem.advance('jobs', 'stream', 2), idem.advance('jobs', 'new', 5), idem.advance('jobs', 'gone', 1)}),
	'f|f|t', 'no watermark is lower');

if (!managed_edition())
{
	repack('elsewhere', q{BEGIN; SELECT idem.use_records('elsewhere'); SELECT idem.once('there', 'k'); COMMIT});
	is(sql(q{BEGIN; SELECT idem.use_records('elsewhere'); SELECT idem.once('there', 'k'); COMMIT}), "\nf",
		'no key elsewhere is new again');
}

repack('idem.scope', q{SELECT idem.create_scope('during'), idem.alter_scope('jobs', max_attempts => 7)});
is(sql(q{SELECT string_agg(name || ' ' || coalesce(max_attempts, 0), ', ' ORDER BY name) FROM idem.scopes
	WHERE name IN ('during', 'jobs')}), 'during 0, jobs 7', 'no scope is lost');
is(sql(q{SELECT idem.once('during', 'k'), idem.once('during', 'k')}), 't|f', 'and each is used');

repack('idem.secret', q{SELECT idem.rotate_secret()});
is(sql(q{SELECT pay('during1', '{"amount": 2}') IS NOT NULL}), 't', 'what was fingerprinted before is recognized');
is(sqlstate($node, q{SELECT pay('during1', '{"amount": 3}')}), 'ID002', 'and another request is a conflict');

# A snapshot between what a session has written and the transactions in which pg_repack carries it over:
# for it, the new file of the table has an old state. The call is right, or is to be retried. From 1.5.3
# on, pg_repack has a lock for which changes of scopes wait: they come after it.
sub repack_behind
{
	my ($level, $table, $written, $call, $expected) = @_;
	my ($writer, $blocker, $old) = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 3;
	$old->query_safe('BEGIN; SELECT txid_current()');
	my $output = '';
	my $run = IPC::Run::start([ $pg_repack, '--no-kill-backend', '-h', $node->host, '-p', $node->port, '-d', 'postgres',
			'-t', $table ],
		'>&', \$output, IPC::Run::timeout(10 * $PostgreSQL::Test::Utils::timeout_default));
	my $copy = sql("SELECT 'repack.table_' || '$table'::regclass::oid");
	$node->poll_query_until('postgres', "SELECT to_regclass('$copy') IS NOT NULL")
	  or die "pg_repack has not begun: $output";
	$blocker->query_safe("BEGIN; LOCK TABLE $copy IN SHARE MODE");
	$writer->query_safe("SET lock_timeout = '2 s'; \\set VERBOSITY sqlstate");
	$writer->query($written);
	my $waits = $writer->{stderr} =~ /ERROR:\s+55P03/;    # then no snapshot can come between
	die $writer->{stderr} if $writer->{stderr} =~ /ERROR/ and !$waits;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query_safe("BEGIN ISOLATION LEVEL $level; SELECT 1");
	$blocker->query_safe('COMMIT');
	$old->query_safe('COMMIT');
	$run->finish;
	ok($run->result == 0, "$table: repacked behind a snapshot") or diag $output;
	if (!$waits)
	{
		$session->query_safe('\set VERBOSITY sqlstate');
		my $answer = $session->query($call);
		like($answer . $session->{stderr}, qr/$expected|ERROR:\s+40001/, "$level, $table: $call");
	}
	$_->{stderr} = '' for $session, $writer;
	$_->quit for $session, $blocker, $old, $writer;
	return;
}

ok(runs($load), 'the payments went on');
$load->kill_kill;
for my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	my $n = $level =~ /SER/ ? 's' : 'r';
	sql("SELECT pay('erased$n', '{\"amount\": 3}')");
	repack_behind($level, 'idem.record', "SELECT pay('behind$n', '{\"amount\": 3}')",
		"SELECT 'is ' || state FROM idem.lookup('payments', 'behind$n')", 'is completed');
	repack_behind($level, 'idem.record', "SELECT idem.erase('payments', 'erased$n')",
		"SELECT 'redacted ' || redacted FROM idem.claim('payments', 'erased$n', '{\"amount\": 3}')", 'redacted true');
	repack_behind($level, 'idem.watermark', "SELECT idem.advance('jobs', 'behind$n', 5)",
		"SELECT 'new ' || idem.advance('jobs', 'behind$n', 5)", 'new false');
	repack_behind($level, 'idem.scope', "SELECT idem.create_scope('behind$n', weak_keys => 'reject')",
		"SELECT idem.claim('behind$n', 'a')", 'ID007');
}

is(sql('SELECT count(*) - count(DISTINCT key) FROM payment'), 0, 'none was made twice');
is(sql(q{SELECT string_agg(check_name, ', ') FROM idem.health() WHERE status = 'fail' AND check_name <> 'autovacuum'}),
	'', 'health() finds nothing');

$node->stop;
log_is_clean($node);
done_testing();
