# The statistics: exact under concurrency, not undone by rollback, lost with the server.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('stats',
	conf => "shared_preload_libraries = 'idem'\nidem.counted_scopes = 8\nidem.purge_naptime = 0\nmax_connections = 40");

my @counters = qw(claims replays in_flight waits conflicts takeovers completions failures releases
  stale weak limited expired_reused purged advances duplicates exhausted);

# The counters that are not zero.
sub stats
{
	my ($scope, $database) = @_;
	my $columns = join ' || ', map { "CASE WHEN $_ <> 0 THEN ' $_ ' || $_ ELSE '' END" } @counters;
	my $row = $node->safe_psql($database // 'postgres',
		"SELECT $columns FROM idem.stats WHERE scope = '$scope'");
	$row =~ s/^ //;
	return $row;
}

# What the histograms have counted, by kind.
sub durations
{
	my ($scope) = @_;
	return $node->safe_psql('postgres', "SELECT coalesce(string_agg(kind || ' ' || count, ' ' ORDER BY kind), '')
		FROM idem.durations WHERE scope = '$scope' AND count > 0");
}

sub sql { return $node->safe_psql('postgres', shift); }

# Every counter ------------------------------------------------------------------------------------

sql(q{SELECT idem.alter_scope('payments', final_sqlstates => '{P0001}')});
is(sql('SELECT string_agg(scope, \',\') FROM idem.stats'), 'payments', 'one row per scope, from its creation');
is(stats('payments'), '', 'a new scope has counted nothing');

sql(q(SELECT pay('a', '{"amount": 1}')));
is(stats('payments'), 'claims 1 completions 1', 'an operation');
sql(q(SELECT pay('a', '{"amount": 1}')));
is(stats('payments'), 'claims 1 replays 1 completions 1', 'its retry');
sql(q(SELECT outcome FROM idem.try_claim('payments', 'a', '{"amount": 2}')));
is(stats('payments'), 'claims 1 replays 1 conflicts 1 completions 1', 'another request under its key');
my $logged = -s $node->logfile;
sql(q(SET log_statement = 'none'; SET idem.log_conflicts = 'log';
	DO $$ BEGIN PERFORM pay('a', '{"amount": 987654321}'); EXCEPTION WHEN SQLSTATE 'ID002' THEN NULL; END $$));
my $log = slurp_file($node->logfile, $logged);
like($log,
	qr/LOG:  conflicting requests for a key in scope "payments"\n.*DETAIL:  Key "a" was used for a different request\./,
	'a conflict is logged even if the caller catches it');
$logged = -s $node->logfile;
sql(q(SET log_statement = 'none'; SET idem.log_transitions = 'log'; SELECT idem.fail(token, '{"message": "secret"}')
	FROM idem.claim('payments', 'log', tenant => 'acme')));
my $transition = slurp_file($node->logfile, $logged) =~ s/.*SET log_statement.*\n//r;
like($transition,
	qr/LOG:  failure was stored in scope "payments"
.*DETAIL:  This is about attempt 1 of key "log" of tenant "acme"\./,
	'a stored failure is logged');
unlike($transition, qr/secret/, 'the log does not contain it');
unlike($log =~ s/.*SET log_statement.*\n.*\n//r, qr/987654321/, 'the log does not contain the request');

sql('SELECT idem.stats_reset()');
is(stats('payments'), '', 'a reset');
sql(<<'SQL');
BEGIN;
SELECT idem.fail(token, '{"message": "no"}') FROM idem.claim('payments', 'f');
SELECT idem.release(token) FROM idem.claim('payments', 'r');
COMMIT;
SELECT outcome FROM idem.try_claim('payments', 'f');
SQL
is(stats('payments'), 'claims 2 replays 1 failures 1 releases 1', 'failures and releases');
$node->psql('postgres', "SELECT idem.claim('payments', 'f')");
is(stats('payments'), 'claims 2 replays 2 failures 1 releases 1', 'a failure that is raised again');

sql('SELECT idem.stats_reset()');
sql(<<'SQL');
SELECT outcome FROM idem.claim('payments', 'l', lease => '1 millisecond');
SELECT pg_sleep(0.01);
SELECT idem.complete(token) FROM idem.claim('payments', 'l', lease => '1 hour');
SQL
is(stats('payments'), 'claims 1 takeovers 1 completions 1', 'a takeover');

sql('SELECT idem.stats_reset()');
sql(<<'SQL');
SELECT idem.create_scope('last', max_attempts => 1);
SELECT idem.release(token) FROM idem.claim('last', 'x', lease => '1 hour');
SELECT outcome FROM idem.try_claim('last', 'x');
SQL
is(stats('last'), 'claims 1 releases 1 exhausted 1', 'an operation without attempts left is no replay');

sql('SELECT idem.stats_reset()');
sql(<<'SQL');
SELECT idem.complete(token) FROM idem.claim('payments', 'e', ttl => '1 millisecond');
SELECT idem.complete(token) FROM idem.claim('payments', 'cancelled', ttl => '1 millisecond');
SELECT idem.complete(token) FROM idem.claim('payments', 'p', ttl => '1 millisecond');
SELECT pg_sleep(0.01);
SELECT idem.complete(token) FROM idem.claim('payments', 'e');
SELECT idem.cancel('payments', 'cancelled');
SELECT idem.purge();
SQL
is(stats('payments'), 'claims 5 completions 4 failures 1 expired_reused 2 purged 1', 'expired keys');

sql('SELECT idem.stats_reset()');
sql(<<'SQL');
SELECT idem.create_scope('limited', claims_per_minute => 1);
BEGIN;
SELECT idem.release(token) FROM idem.claim('limited', 'one');
SELECT outcome FROM idem.try_claim('limited', 'two');
COMMIT;
SQL
is(stats('limited'), 'claims 1 releases 1 limited 1', 'a limit');

sql('SELECT idem.stats_reset()');
sql(<<'SQL');
SELECT idem.once('payments', 'm1');
SELECT idem.once('payments', 'm1');
SELECT idem.once_each('payments', '{m1,m2,m3,m2}');
SQL
is(stats('payments'), 'claims 3 replays 2 completions 3', 'messages, one by one and as a set');
sql('CREATE FUNCTION refuse(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE \'no\'; END $$');
sql('CREATE FUNCTION accept(request jsonb) RETURNS jsonb LANGUAGE sql RETURN request');
sql("SELECT idem.execute('payments', 'x1', 'refuse(jsonb)'), idem.execute('payments', 'x2', 'accept(jsonb)')");
is(stats('payments'), 'claims 5 replays 2 completions 4 failures 1', 'executed operations');

sql(<<'SQL');
SELECT idem.create_scope('picky', ttl => '1 hour', reject_stale_keys => true, weak_keys => 'reject');
SELECT outcome FROM idem.try_claim('picky', '01890a5d-ac96-774b-bcce-b302099a8057');
SQL
$node->psql('postgres', "SELECT idem.once_each('picky', '{01890a5d-ac96-774b-bcce-b302099a8057}')");
$node->psql('postgres', "SELECT idem.try_claim('picky', '12345')");
is(stats('picky'), 'stale 2 weak 1', 'keys that are too old, or too weak');
sql("SELECT idem.drop_scope('picky')");

# Streams.
sql('SELECT idem.stats_reset()');
sql("SELECT idem.advance('payments', 'source', n) FROM unnest('{1,2,2,5,4}'::int[]) n;
	SELECT idem.reset_stream('payments', 'source')");
is(stats('payments'), 'advances 3 duplicates 2', 'messages of a stream, new ones and old ones');
$node->psql('postgres', "SELECT idem.advance('payments', 'source', 1),
	idem.advance('payments', 'source', 3, contiguous => true)");
is(stats('payments'), 'advances 4 duplicates 2', 'a gap is neither');

# Durations.
sql('SELECT idem.stats_reset()');
is(durations('payments'), '', 'nothing has a duration');
is(sql("SELECT string_agg(kind || cardinality(upper_bounds) || ' ' || cardinality(counts), ',' ORDER BY kind),
	         bool_and(total = '0' AND num_nulls(p50, p90, p99) = 3) FROM idem.durations WHERE scope = 'payments'"),
	'atomic39 40,leased39 40,wait39 40|t', 'each kind has its histogram, which is empty');
is(sql("SELECT bool_and(b = n * interval '1 microsecond') FROM idem.durations,
	          LATERAL (SELECT b, 2 ^ (i - 1) AS n FROM unnest(upper_bounds) WITH ORDINALITY u (b, i)) x"),
	't', 'the bounds are powers of two of a microsecond');
sql("SELECT pay('timed', '1'); SELECT pay('timed', '1'); SELECT idem.execute('payments', 'x3', 'refuse(jsonb)')");
is(durations('payments'), 'atomic 2', 'atomic operations that complete or fail have a duration, and replays have none');
sql("SELECT idem.once('payments', 'm9'); SELECT idem.once_each('payments', '{m10}');
	SELECT idem.cancel('payments', 'never')");
is(durations('payments'), 'atomic 2', 'so have calls between whose claim and answer nothing runs');
sql("BEGIN; SELECT idem.release(token) FROM idem.claim('payments', 'released'); COMMIT");
is(durations('payments'), 'atomic 2', 'and claims that are released');
sql(<<'SQL');
SELECT idem.stats_reset();
SELECT token AS t FROM idem.claim('payments', 'an hour', lease => '1 hour') \gset
UPDATE idem.record SET created = created - interval '1 hour' WHERE key = 'an hour';
SELECT idem.complete(:'t');
SQL
is(durations('payments'), 'leased 1', 'leased operations are counted by themselves');
is(sql("SELECT total BETWEEN '1 hour' AND '70 minutes', p50, p99 = p50, counts[33] FROM idem.durations
	WHERE scope = 'payments' AND kind = 'leased'"),
	't|01:11:34.967296|t|1', 'from the first claim to the answer');
sql(<<'SQL');
SELECT idem.release(token) FROM idem.claim('payments', 'two attempts', lease => '1 hour');
UPDATE idem.record SET created = created - interval '10 seconds' WHERE key = 'two attempts';
SELECT idem.complete(token) FROM idem.claim('payments', 'two attempts');
SELECT idem.release(token) FROM idem.claim('payments', 'from the future', lease => '1 hour');
UPDATE idem.record SET created = created + interval '1 hour' WHERE key = 'from the future';
SELECT idem.complete(token) FROM idem.claim('payments', 'from the future');
SQL
is(durations('payments'), 'atomic 2 leased 1', 'by their last claim');
is(sql("SELECT total BETWEEN '10 seconds' AND '1 minute', counts[1], p50, p99 FROM idem.durations
	WHERE scope = 'payments' AND kind = 'atomic'"),
	't|1|00:00:00.000001|00:00:16.777216', 'a clock that was set back counts as no time');
sql('DROP FUNCTION refuse(jsonb)');

# Waiting, and not waiting.
sql('SELECT idem.stats_reset()');
my $holder = $node->background_psql('postgres');
$holder->query_safe(claim_open('w'));
sql(q(SELECT outcome FROM idem.try_claim('payments', 'w')));
is(stats('payments'), 'claims 1 in_flight 1', 'a claim that does not wait for a key in flight');
sql(q(SELECT outcome FROM idem.try_claim('payments', 'w', wait => '200 milliseconds')));
is(stats('payments'), 'claims 1 in_flight 2 waits 1', 'a claim that waits for a key in flight');
is(sql(q(SELECT wait_time >= '200 milliseconds' FROM idem.stats WHERE scope = 'payments')),
	't', 'the wait time is counted');
is(durations('payments'), 'wait 1', 'a wait has a duration');
is(sql("SELECT total = wait_time, p50 >= wait_time, p50 < 2 * wait_time FROM idem.durations JOIN idem.stats
	USING (scope)
	     WHERE scope = 'payments' AND kind = 'wait'"), 't|t|t', 'which is its wait time, known up to a factor of two');
$holder->query_safe('ROLLBACK');
$holder->quit;

# Rollback -----------------------------------------------------------------------------------------

sql('SELECT idem.stats_reset()');
sql(<<'SQL');
BEGIN;
SELECT pay('undone', '{"amount": 1}');
SAVEPOINT s;
SELECT pay('undone too', '{"amount": 1}');
ROLLBACK TO s;
ROLLBACK;
SQL
$node->psql('postgres', "SELECT idem.claim('payments', 'left open')");
is(stats('payments'), 'claims 3 completions 2', 'what was counted survives a rollback');

sql('SELECT idem.stats_reset()');
sql('BEGIN; SELECT idem.stats_reset(); ROLLBACK; SELECT pay(\'x\', \'{"amount": 1}\')');
sql('BEGIN; SELECT idem.stats_reset(\'payments\'); ROLLBACK');
is(stats('payments'), '', 'a reset survives a rollback');
isnt(sql('SELECT count(DISTINCT stats_reset) FROM idem.stats'), 1, 'a scope is reset alone');

# Concurrency --------------------------------------------------------------------------------------

sql('SELECT idem.stats_reset()');
my $script = PostgreSQL::Test::Utils::tempdir . '/load.sql';
append_to_file($script, <<'SQL');
\set key random(1, 500)
SELECT pay('load ' || :key, '{"amount": 1}');
SQL
$node->command_ok([ 'pgbench', '-n', '-c', 16, '-j', 2, '-t', 500, '-f', $script, 'postgres' ],
	'16 clients on 500 keys');
is( sql(q(SELECT claims = completions AND claims = (SELECT count(*) FROM payment WHERE key LIKE 'load %')
	        AND claims + replays = 16 * 500 FROM idem.stats WHERE scope = 'payments')),
	't', 'every call is counted once');
is( sql(q(SELECT d.count = completions AND d.count = (SELECT sum(n) FROM unnest(d.counts) n) AND d.p50 <= d.p90
	AND d.p90 <= d.p99
	        FROM idem.stats JOIN idem.durations d USING (scope) WHERE scope = 'payments' AND kind = 'atomic')),
	't', 'and every operation has its duration');

# Quantiles ---------------------------------------------------------------------------------------

# Durations as buckets: 90 up to 8, 9 up to 1024 and 1 up to 2 ^ 20 microseconds.
sub quantiles
{
	my ($counts, @percent) = @_;
	return sql("SELECT string_agg(coalesce(extract(epoch FROM idem_internal.quantile($counts, p)) * 1000000 || '',
		'none'), ' ' ORDER BY p) FROM unnest('{@{[join ',', @percent]}}'::int[]) p")
	  =~ s/\.0+\b//gr;
}
my $buckets = q{ARRAY(SELECT CASE i WHEN 4 THEN 90 WHEN 11 THEN 9 WHEN 21 THEN 1 ELSE 0 END::bigint
	FROM generate_series(1, 40) i)};
is(quantiles($buckets, 50, 90, 91, 99, 100), '8 8 1024 1024 1048576', 'a quantile is the lowest bound that suffices');
is(quantiles('array_fill(0::bigint, ARRAY[40])', 50), 'none', 'nothing has no quantile');
is(quantiles('array_fill(9000000000000000000, ARRAY[40])', 97, 100), '274877906944 none',
	'beyond the bounds, none is known');

# Which role sees what ----------------------------------------------------------------------------

sql('CREATE ROLE stranger; CREATE ROLE member; CREATE ROLE shop; GRANT shop TO member');
sql("SELECT idem.create_scope('orders', owner => 'shop')");
is(sql("SET ROLE member; SELECT string_agg(scope, ',') FROM idem.stats"), 'orders', 'a member sees its scope');
is(sql('SET ROLE stranger; SELECT count(*) FROM idem.stats'), 0, 'a stranger sees nothing');
is(sql("SET ROLE member; SELECT string_agg(DISTINCT scope, ',') FROM idem.durations"), 'orders',
	'and how long its operations take');
is(sql('SET ROLE stranger; SELECT count(*) FROM idem.durations'), 0, 'a stranger does not');
is(sql('SET ROLE stranger; SELECT count(*) FROM generate_series(1, 100) id, idem_internal.scope_counters(id)'), 0,
	'nor through the function');
sql('CREATE ROLE watcher IN ROLE pg_monitor');
is(sql("SET ROLE watcher; SELECT count(*) FROM idem.stats WHERE scope = 'orders'"), 1,
	'a member of pg_monitor sees every scope');
my (undef, undef, $stderr) = $node->psql('postgres', 'SET ROLE shop; SELECT idem.stats_reset()');
like($stderr, qr/permission denied for function stats_reset/, 'a reset needs a grant');
(undef, undef, $stderr) = $node->psql('postgres',
	"\\set VERBOSITY verbose\nSELECT idem.stats_reset('nowhere')");
like($stderr, qr/ID008/, 'a reset needs an existing scope');

# Restart ------------------------------------------------------------------------------------------

crash($node, 'server');
is(stats('payments'), '', 'a crash loses the counters');
is(durations('payments'), '', 'and the histograms');
is(sql('SELECT count(*) FROM idem.stats'), 4, 'a crash keeps the scopes');
sql(q(SELECT pay('after', '{"amount": 1}')));
is(stats('payments'), 'claims 1 completions 1', 'counting goes on');

my $session = $node->background_psql('postgres', on_error_stop => 0);
crash($node, 'backend', $session);
is(stats('payments'), '', 'a killed backend loses the counters');

# A table of one slot.
sql(q(SELECT pay('c', '{"amount": 1}')));
$node->append_conf('postgresql.conf', 'idem.counted_scopes = 1');
$node->restart;
sql(q(SELECT pay('one slot', '{"amount": 1}'), pay('still one', '{"amount": 1}')));
is(stats('payments'), 'claims 2 completions 2', 'after a clean restart, the counters begin at zero');
sql(q(BEGIN; SELECT idem.release(token) FROM idem.claim('orders', 'x'); COMMIT));
is(stats('orders'), '', 'a scope that finds no slot is not counted');
$node->append_conf('postgresql.conf', 'idem.counted_scopes = 8');
$node->restart;
sql(q(SELECT pay('all slots', '{"amount": 1}')));

# Scopes that are created and dropped -------------------------------------------------------------

sql('CREATE DATABASE other');
install_payments($node, 'other');
$node->safe_psql('other', q(SELECT pay('a', '{"amount": 1}')));
is(stats('payments', 'other'), 'claims 1 completions 1', 'each database has its own counters');
is(stats('payments'), 'claims 1 completions 1', 'the first database keeps its counters');
sql('SELECT idem.stats_reset()');
is(stats('payments', 'other'), 'claims 1 completions 1', 'a reset leaves the counters of other databases alone');

$node->safe_psql('other', 'DROP EXTENSION idem CASCADE; DROP TABLE payment; DROP FUNCTION pay');
install_payments($node, 'other');
is(stats('payments', 'other'), '', 'a new extension begins at zero, whatever its scopes\' ids');

$node->stop;
log_is_clean($node, killed => 1);

# Without preload ----------------------------------------------------------------------------------

my $plain = idem_node('plain');
$plain->safe_psql('postgres', q(SELECT pay('a', '{"amount": 1}')));
is($plain->safe_psql('postgres', 'SELECT (SELECT count(*) FROM idem.stats) + (SELECT count(*) FROM idem.durations)'), 0,
	'without preload there are no rows');
$plain->safe_psql('postgres', 'SELECT idem.stats_reset()');
$plain->stop;

done_testing();
