# sqlsmith, which makes valid queries of everything in the catalogs, against a server that has records
# in all states, as the owner of scopes and as a role without privileges. Beside it runs a storm of
# claims, each of which must have one effect and one answer.
#
# The server must live, leak nothing and raise no internal error in idem. PostgreSQL's own internal
# errors, which sqlsmith finds by the dozen, do not count: the log names the source file of each.
#
# QUERIES sets the number of queries; SEED makes sqlsmith choose the same ones again.
use strict;
use warnings;

use IdemTest;
use IPC::Run qw(start finish);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'sqlsmith is not installed' if system('sqlsmith --version >/dev/null 2>&1') != 0;

my $queries = $ENV{QUERIES} // 500;
my $seed = $ENV{SEED} // int(rand(2**31));
note "SEED=$seed";

my $node = idem_node('sqlsmith', conf => <<'CONF');
shared_preload_libraries = 'idem'
idem.purge_naptime = 1s
fsync = off
log_statement = none
log_line_prefix = '%e|%b|%u|'
log_error_verbosity = verbose
log_min_error_statement = warning
log_checkpoints = off
max_prepared_transactions = 20
CONF

# sqlsmith chooses among relations and functions by their types. The views make it call the functions
# that it would rarely choose by themselves. It rolls every query back.
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE smith_owner LOGIN;
CREATE ROLE smith_stranger LOGIN;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA idem, idem_internal TO smith_owner;
SELECT idem.alter_scope('payments', owner => 'smith_owner', wait => '100 ms');
SELECT idem.create_scope('smith', owner => 'smith_owner', wait => '1 ms', max_attempts => 2);
SELECT idem.create_scope('strict', owner => 'smith_owner', wait => '0', weak_keys => 'warn', request_exclude => '{a}',
  response_exclude => '{a.b}', claims_per_minute => 100000);
SELECT idem.create_scope('stranger', owner => 'smith_stranger', wait => '1 ms');

SELECT count(idem.complete(c.token, jsonb_build_object('a', jsonb_build_object('b', i)), 200))
  FROM generate_series(1, 300) i, idem.claim('smith', 'completed ' || i, jsonb_build_object('i', i)) c;
SELECT count(idem.complete(c.token, jsonb_build_object('i', i))) FROM generate_series(1, 300) i,
  idem.claim('stranger', 'completed ' || i) c;
SELECT count(idem.fail(c.token, '{"sqlstate": "P0042", "message": "no"}')::text) FROM generate_series(1, 100) i,
  idem.claim('smith', 'failed ' || i) c;
SELECT count(idem.checkpoint(c.token, 'halfway', '{"done": 1}')::text) FROM generate_series(1, 100) i,
  idem.claim('smith', 'leased ' || i, lease => '1 day') c;
SELECT count(c) FROM generate_series(1, 100) i, idem.claim('smith', 'lapsed ' || i, lease => '1 ms') c;
SELECT count(idem.once('strict', 'expired ' || i)) FROM generate_series(1, 100) i;
SELECT count(idem.advance('smith', 'source ' || i, i)) FROM generate_series(1, 20) i;
UPDATE idem.record SET expires = clock_timestamp() - interval '1 s' WHERE key LIKE 'expired %' AND key > 'expired 5';

CREATE FUNCTION echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE TABLE token AS SELECT token FROM generate_series(1, 5) i, idem.claim('smith', 'held ' || i, lease => '1 day');
CREATE VIEW claimed AS SELECT c.* FROM token, idem.claim('smith', 'new ' || trunc(random() * 1000), lease => '1 min') c;
CREATE VIEW replayed AS SELECT c.* FROM idem.claim('payments', trunc(random() * 10000)::text) c;
CREATE VIEW tried AS SELECT c.* FROM generate_series(1, 10) i, idem.try_claim('stranger', 'completed ' || i) c;
CREATE VIEW known AS SELECT c.* FROM generate_series(1, 10) i, idem.lookup('smith', 'completed ' || i) c;
CREATE VIEW executed AS SELECT c.* FROM generate_series(1, 3) i, idem.execute('stranger', 'run ' || i, 'echo(jsonb)',
  '{}') c;
CREATE VIEW fresh AS SELECT * FROM idem.once_each('stranger', ARRAY['a', 'b', 'c']);
CREATE VIEW health AS SELECT * FROM idem.health();
GRANT SELECT ON ALL TABLES IN SCHEMA public TO smith_owner, smith_stranger;
REVOKE ALL ON payment FROM PUBLIC;
GRANT ALL ON payment TO smith_owner;

-- The storm: each answer is stored as it came.
CREATE TABLE answer (key text, answer jsonb);
CREATE FUNCTION try_pay(key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO answer VALUES (key, pay(key, '{"amount": 1}'));
EXCEPTION WHEN SQLSTATE 'ID001' OR lock_not_available OR deadlock_detected OR serialization_failure THEN
  NULL;
END $$;
SQL

# A hundred calls per second leave the server to sqlsmith.
my $storm = load($node, "\\set key random(1, 2000)\nSELECT try_pay(:key::text);\n", '-c', 4, '-R', 100);

my @runs;
for my $role (qw(smith_owner smith_stranger))
{
	my $run = { role => $role, out => $node->basedir . "/$role.out", err => $node->basedir . "/$role.err" };
	my @command = ('sqlsmith', '--target=' . $node->connstr('postgres') . " user=$role",
		'--seed=' . ($seed + @runs), '--max-queries=' . int($queries / 2), '--verbose',
		@runs ? () : '--exclude-catalog');
	$run->{run} = start(\@command, '>', $run->{out}, '2>', $run->{err});
	push @runs, $run;
}
for my $run (@runs)
{
	finish $run->{run};
	my $errors = slurp_file($run->{err});
	like($errors, qr/\nqueries: \d+/, "sqlsmith made its queries as $run->{role}") or diag substr($errors, -2000);
	note "$run->{role}: ", substr($errors, rindex($errors, 'queries:'));
}

ok(runs($storm), 'the storm ran to the end');
$storm->kill_kill;
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'")
  or die;
is($node->safe_psql('postgres', 'SELECT key FROM payment GROUP BY key HAVING count(*) > 1'), '',
	'every payment of the storm was made once');
is($node->safe_psql('postgres', <<'SQL'), '', 'every answer of the storm is that of its payment');
SELECT a.key, a.answer FROM answer a LEFT JOIN payment p USING (key) WHERE a.answer IS DISTINCT
  FROM jsonb_build_object('payment', p.id)
SQL
is($node->safe_psql('postgres', q{SELECT count(*) FROM payment p
	WHERE (idem.lookup('payments', key)).state <> 'completed'}), 0, 'and can still be looked up');
my $answers = $node->safe_psql('postgres', 'SELECT count(*) FROM answer');
cmp_ok($answers, '>', 0, 'there was a storm');
note "$answers answers, ", $node->safe_psql('postgres', 'SELECT count(*) FROM payment'), ' payments';
is(locks($node), 0, 'no key lock is left');
$node->stop;

# An entry of the log: the error, the source that raised it, and the statement.
my (%internal, %states);
my $log = '';
for my $entry (split /^(?=\w{5}\|[^|]*\|[^|]*\|(?:ERROR|FATAL|PANIC|LOG|WARNING):)/m, slurp_file($node->logfile))
{
	# sqlsmith gives back advisory locks that it does not have, and its texts may look like messages.
	$log .= $entry =~ s/^\w{5}\|[^|]*\|smith_\w+\|STATEMENT:.*//msr
	  unless $entry =~ /WARNING:.*don't own a lock.*\bpg_advisory_unlock/s;
	next unless $entry =~ /^(\w{5})\|[^|]*\|(smith_\w+)\|ERROR:  \1: (.*)/;
	my ($state, $message) = ($1, $3);
	$states{$state}++;
	next unless $state =~ /^XX/;
	my ($file) = $entry =~ /LOCATION:  \w+, ([^:]+):\d+/;
	# A function of PostgreSQL that idem called shows idem in the context, or failed in idem's objects.
	my $ours = ($file // '') =~ /\.cpp$/ || $entry =~ /CONTEXT:.*?\bidem\b.*?(?=LOCATION:)/s || $message =~ /\bidem\b/;
	$internal{ $ours ? 'idem' : 'PostgreSQL' }{$message} //= $entry;
}
note join ', ', map { "$_ $states{$_}" } sort keys %states;
note 'internal errors of PostgreSQL: ', join '; ', sort keys %{ $internal{PostgreSQL} // {} };
is_deeply([ sort keys %{ $internal{idem} // {} } ], [], 'no internal error in idem')
  or diag join "\n", values %{ $internal{idem} };
log_is_clean($node, log => $log);
done_testing();
