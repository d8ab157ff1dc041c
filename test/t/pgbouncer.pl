# Claims through PgBouncer: many clients share few server connections, and two transactions of a
# client may get different ones. What transaction pooling guarantees, and what the other pooling
# modes do.
use strict;
use warnings;

use IdemTest;
use IO::Socket::INET;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $program = (grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin')[0];
plan skip_all => 'no pgbouncer here; tools/setup check installs it' unless $program;
my ($major, $minor) = `$program --version` =~ /PgBouncer (\d+)\.(\d+)/;
my $knows_prepared = $major > 1 || $minor >= 21;

my $node = idem_node('pgbouncer', conf => 'max_connections = 40');
my $user = $node->safe_psql('postgres', 'SELECT current_user');
$node->safe_psql('postgres', 'ALTER TABLE payment ADD claimed_by integer, ADD completed_by integer
	DEFAULT pg_backend_pid()');

my ($clients, $servers) = (32, 4);

# PgBouncer --------------------------------------------------------------------------------------------

# Its databases are pooling modes: transaction, statement, session; single has one connection only.
my ($test, @bouncers) = ($$);
END { my $status = $?; if ($$ == ($test // 0)) { $_->kill_kill for @bouncers; } $? = $status; }

sub bouncer
{
	my ($settings) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $folder = PostgreSQL::Test::Utils::tempdir;
	my $server = 'host=' . $node->host . ' port=' . $node->port . " dbname=postgres user=$user";
	append_to_file("$folder/pgbouncer.ini", <<"INI");
[databases]
transaction = $server pool_mode=transaction pool_size=$servers
single = $server pool_mode=transaction pool_size=1
statement = $server pool_mode=statement pool_size=$servers
session = $server pool_mode=session pool_size=$servers
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
max_client_conn = 200
logfile = $folder/pgbouncer.log
$settings
INI
	my $run = IPC::Run::start([ $program, '-q', "$folder/pgbouncer.ini" ], '>', \my $output, '2>&1');
	push @bouncers, $run;
	until (IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port))
	{
		die "no PgBouncer:\n$output" . slurp_file("$folder/pgbouncer.log") unless $run->pumpable;
		$run->pump_nb;
		usleep(50_000);
	}
	return { run => $run, port => $port };
}

our $bouncer = bouncer($knows_prepared ? 'max_prepared_statements = 0' : '');

# A command whose connections go through PgBouncer: status, stdout, stderr.
sub through
{
	my ($way, $command, $input) = @_;
	local %ENV = (%ENV, PGHOST => '127.0.0.1', PGPORT => $bouncer->{port}, PGDATABASE => $way, PGUSER => $user);
	my ($stdout, $stderr) = ('', '');
	IPC::Run::run($command, '<', \($input // ''), '>', \$stdout, '2>', \$stderr);
	my $status = $? >> 8;
	chomp $stdout;
	return ($status, $stdout, $stderr);
}

# One session, a script: stdout, stderr.
sub sql
{
	my ($way, $script) = @_;
	my (undef, $stdout, $stderr) = through($way, [ qw(psql -XAtq -v VERBOSITY=verbose) ], $script);
	return wantarray ? ($stdout, $stderr) : $stdout;
}

# pgbench prepares statements while it does nothing else: one thread per client, or it waits for
# itself.
sub crowd
{
	my ($way, $script, @options) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir . '/script.sql';
	append_to_file($file, $script);
	return through($way, [ qw(pgbench -n -M extended), '-c', $clients, '-j', $clients, '-t', 60, '-f', $file,
			@options ]);
}

# The effects of operations whose keys have this prefix: none twice, none without its record.
sub each_once
{
	my ($prefix, $name) = @_;
	is($node->safe_psql('postgres', <<"SQL"), 't|t', "$name: one effect and one record a key");
SELECT count(*) = count(DISTINCT p.key),
       count(*) = (SELECT count(*) FROM idem.record WHERE key LIKE '$prefix %' AND state = 'c') AND count(*) > 100
  FROM payment p WHERE p.key LIKE '$prefix %'
SQL
	return;
}

sub records
{
	my ($key) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM idem.record WHERE key = '$key'");
}

# Transaction pooling ----------------------------------------------------------------------------------

# Claim, effect and complete by the client, as the examples do it. Several clients want the same
# key.
sub atomic
{
	my ($prefix) = @_;
	return <<"SQL";
\\set n random(1, 200)
BEGIN;
SELECT claimed::integer AS claimed, token
  FROM idem.claim('payments', '$prefix ' || :n, jsonb_build_object('amount', :n::integer)) \\gset
\\if :claimed
INSERT INTO payment (key, amount) VALUES (idem.current_key(), :n::integer) RETURNING id \\gset
SELECT idem.complete(:token, jsonb_build_object('payment', :id::bigint));
\\endif
COMMIT;
SQL
}

my ($status, $stdout, $stderr) = crowd('transaction', atomic('atomic'));
is($status, 0, 'atomic claims: every client went through') or diag $stderr;
each_once('atomic', 'atomic claims');
is($node->safe_psql('postgres', "SELECT count(DISTINCT completed_by) BETWEEN 2 AND $servers FROM payment"), 't',
	"$clients clients shared the $servers connections");

# The transactions of a leased operation use any connection; in between it holds none.
sub leased
{
	my ($prefix) = @_;
	return <<"SQL";
\\set n random(1, 200)
SELECT claimed::integer AS claimed, token, pg_backend_pid() AS pid
  FROM idem.try_claim('payments', '$prefix ' || :n, jsonb_build_object('amount', :n::integer), lease => '1 hour') \\gset
\\if :claimed
SELECT idem.renew(:token);
SELECT idem.checkpoint(:token, 'half way');
BEGIN;
INSERT INTO payment (key, amount, claimed_by) VALUES ('$prefix ' || :n, :n::integer, :pid::integer) RETURNING id \\gset
SELECT idem.complete(:token, jsonb_build_object('payment', :id::bigint));
COMMIT;
\\endif
SQL
}

($status, $stdout, $stderr) = crowd('transaction', leased('leased'));
is($status, 0, 'leased claims: every client went through') or diag $stderr;
each_once('leased', 'leased claims');
is($node->safe_psql('postgres', 'SELECT count(*) > 0 FROM payment WHERE claimed_by <> completed_by'), 't',
	'claimed on one connection, completed on another');

# A caller that waits for a leased key occupies a server connection, and the holder needs one to
# complete.
my $token = sql('transaction', q{SELECT token FROM idem.claim('payments', 'wanted', lease => '1 hour')});
my @waiters;
for (1 .. 2 * $servers)
{
	local %ENV = (%ENV, PGHOST => '127.0.0.1', PGPORT => $bouncer->{port}, PGDATABASE => 'transaction',
		PGUSER => $user);
	my $outcome = '';
	push @waiters, { outcome => \$outcome, run => IPC::Run::start(
			[ qw(psql -XAtqc), q{SELECT outcome FROM idem.try_claim('payments', 'wanted', wait => '1 s')} ], '>',
			\$outcome) };
}
is(sql('transaction', qq{SELECT idem.complete('$token', '"done"')}), '"done"',
	'waiters on every connection: the holder completes after them');
$_->{run}->finish for @waiters;
is(scalar(grep { ${ $_->{outcome} } =~ /^(in_progress|completed)$/ } @waiters), 2 * $servers,
	'waiters on every connection: each got an outcome');
is(sql('transaction', q{SELECT outcome FROM idem.try_claim('payments', 'wanted')}), 'completed',
	'waiters on every connection: a later claim gets the answer');

# Named prepared statements belong to a connection. PgBouncer before 1.21, or configured so, does
# not replay them. The transactions that fail because of that have no effect.
($status, $stdout, $stderr) = crowd('transaction', atomic('prepared'), '-M', 'prepared');
isnt($status, 0, 'prepared statements without support: clients fail');
like($stderr, qr/prepared statement .* (already exists|does not exist)/,
	'prepared statements without support: the error says why');
is($node->safe_psql('postgres', q{SELECT count(*) FROM (SELECT FROM payment WHERE key LIKE 'prepared %' GROUP BY key
	HAVING count(*) > 1) x}),
	0, 'prepared statements without support: no key has two effects');
SKIP:
{
	skip 'this PgBouncer does not know prepared statements', 2 unless $knows_prepared;
	local $bouncer = bouncer('max_prepared_statements = 100');
	($status, $stdout, $stderr) = crowd('transaction', atomic('carried'), '-M', 'prepared');
	is($status, 0, 'prepared statements that are carried along: every client went through') or diag $stderr;
	each_once('carried', 'prepared statements with support');
}

# SET outlives the transaction and affects the next client; SET LOCAL and the argument do not.
is(sql('single', q{BEGIN; SET LOCAL idem.tenant = 'acme'; SELECT (idem.claim('payments', 't')).claimed; ROLLBACK}), 't',
	'SET LOCAL idem.tenant');
is(sql('single', 'SHOW idem.tenant'), '', 'SET LOCAL does not affect the next client');
sql('single', q{SET idem.tenant = 'acme'});
is(sql('single', 'SHOW idem.tenant'), 'acme', 'SET affects the next client');
sql('single', 'RESET idem.tenant');

# Session pooling ---------------------------------------------------------------------------------

is(sql('session', "SELECT pay('in a session', '{}') ->> 'payment' IS NOT NULL"), 't', 'session pooling');
{
	local $bouncer = bouncer("server_reset_query = DISCARD ALL\nserver_reset_query_always = 1");
	for my $kind ([ atomic => \&atomic ], [ leased => \&leased ])
	{
		my ($name, $script) = @$kind;
		($status, $stdout, $stderr) = crowd('transaction', $script->("discard $name"));
		is($status, 0, "DISCARD ALL after every transaction, $name: every client went through") or diag $stderr;
		each_once("discard $name", "DISCARD ALL after every transaction, $name");
	}
	sql('single', q{SET idem.tenant = 'acme'});
	is(sql('single', 'SHOW idem.tenant'), '', 'DISCARD ALL: SET does not affect the next client');
}

# Statement pooling --------------------------------------------------------------------------------------

# Every statement is a transaction: a claim and its completion cannot be atomic, and no such mistake
# goes unnoticed.
($stdout, $stderr) = sql('statement', 'BEGIN');
like($stderr, qr/transaction blocks not allowed/, 'statement pooling: no BEGIN');
($stdout, $stderr) = sql('statement', q{SELECT claimed FROM idem.claim('payments', 'alone')});
like($stderr, qr/ERROR:  ID006/, 'statement pooling: a claim that is alone in its transaction is refused');
is(records('alone'), 0, 'statement pooling: a refused claim leaves no record');
# A single statement works as ever: a procedure, or once().
($status, $stdout, $stderr) = crowd('statement', <<'SQL');
\set n random(1, 200)
SELECT pay('procedure ' || :n, jsonb_build_object('amount', :n::integer));
SQL
is($status, 0, 'statement pooling, a procedure: every client went through') or diag $stderr;
each_once('procedure', 'statement pooling, a procedure');
($status, $stdout, $stderr) = crowd('statement', <<'SQL');
\set n random(1, 200)
INSERT INTO payment (key, amount) SELECT 'once ' || :n, :n::integer WHERE idem.once('payments', 'once ' || :n);
SQL
is($status, 0, 'statement pooling, once(): every client went through') or diag $stderr;
each_once('once', 'statement pooling, once()');
# A leased claim works, but its effect is not in the transaction that completes it.
$token = sql('statement', q{SELECT token FROM idem.claim('payments', 'leased alone', lease => '1 hour')});
is(sql('statement', qq{SELECT idem.complete('$token', '"done"')}), '"done"', 'statement pooling: a leased claim');
is(sql('statement', q{SELECT response FROM idem.claim('payments', 'leased alone')}), '"done"',
	'statement pooling: a replay');

# PgBouncer dies -----------------------------------------------------------------------------------------

{
	local %ENV = (%ENV, PGHOST => '127.0.0.1', PGPORT => $bouncer->{port}, PGDATABASE => 'transaction',
		PGUSER => $user);
	my ($in, $out) = ('', '');
	my $session = IPC::Run::start([ qw(psql -XAtq) ], '<', \$in, '>', \$out, '2>', \my $err);
	$in = claim_open('bouncer dies') . "SELECT idem.complete(:'token', '\"lost\"');\n";
	$session->pump until $out =~ /"lost"/;
	is(effects($node, 'bouncer dies'), 0, 'PgBouncer dies before COMMIT: no effect yet');
	$bouncer->{run}->kill_kill;
	$in = "COMMIT;\n";
	$session->finish;
}
$bouncer = bouncer('');
my $answer = sql('transaction', q{SELECT pay('bouncer dies', '{"amount": 1}')});
like($answer, qr/payment/, 'PgBouncer was killed before COMMIT: the retry is answered');
is(sql('transaction', q{SELECT pay('bouncer dies', '{"amount": 1}')}), $answer, 'PgBouncer was killed: one answer');
is(effects($node, 'bouncer dies'), 1, 'PgBouncer was killed: one effect');

$bouncer->{run}->kill_kill;
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'}),
	'no key lock is left');
log_is_clean($node);
$node->stop;
done_testing();
