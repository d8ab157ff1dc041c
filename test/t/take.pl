# Finishing what was begun: clients that die right after the commit of their lease, completers that
# are killed at any moment, and a scope with a million records.
use strict;
use warnings;

use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('take', bare => 1, conf => <<'CONF');
max_connections = 40
fsync = off
log_statement = none
log_connections = off
log_disconnections = off
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Each operation calls another service, which remembers idempotency keys, and then pays. A call is
# logged even if the service has seen its key.
sql(<<'SQL');
CREATE EXTENSION idem;
SELECT idem.create_scope('jobs', lease => '1 second', wait => '0', store_request => 'unfinished');
CREATE TABLE service (operation text, idempotency_key text, by text);
CREATE TABLE payment (operation text, amount numeric);
CREATE TABLE recoverable (operation text);
CREATE TABLE given_up (operation text);

CREATE PROCEDURE client(k text, fate text) LANGUAGE plpgsql AS $$
DECLARE t text;
BEGIN
  t := (idem.claim('jobs', k, jsonb_build_object('amount', length(k)), lease => '1 second')).token;
  COMMIT;
  IF fate = 'dies at once' THEN RETURN; END IF;
  INSERT INTO service VALUES (k, idem.child_key(t, 'charge'), 'client');
  COMMIT;
  IF fate = 'dies after the charge' THEN RETURN; END IF;
  INSERT INTO recoverable VALUES (k);
  PERFORM idem.checkpoint(t, 'charged');
  COMMIT;
  IF fate = 'dies at its recovery point' THEN RETURN; END IF;
  IF fate = 'gives up' THEN
    INSERT INTO given_up VALUES (k);
    PERFORM idem.release(t, retry_after => idem.backoff(1, '100 ms'), error => '{"message": "no answer"}');
    RETURN;
  END IF;
  INSERT INTO payment VALUES (k, length(k));
  PERFORM idem.complete(t, to_jsonb(k));
END $$;
SQL

# ---------------------------------------------------------------------------------------------
# The storm: half of the clients die for good
# ---------------------------------------------------------------------------------------------

my @fates = ('dies at once', 'finishes', 'dies after the charge', 'finishes', 'dies at its recovery point', 'finishes',
	'dies at once', 'gives up');
my ($clients, $operations) = (40, 400);

# Programs run beside this one. Those that have ended are started again if they are to run for ever.
my ($output, @programs);

sub run_psql
{
	return IPC::Run::start([ 'psql', '-Xq', '-d', $node->connstr('postgres') . " application_name=$_[0]", '-f', $_[1] ],
		'<', \undef, '>&', \$output);
}

sub is_running
{
	my ($run) = @_;
	return 1 if runs($run);
	eval { $run->finish };    # of a program that a signal has ended
	return 0;
}

sub script
{
	my ($name, $text) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . "/$name.sql";
	append_to_file($file, $text);
	return $file;
}

# A client begins ten operations. One that dies leaves the last of them, or all, as they are: its
# backend is terminated, or its program is killed and the connection is lost.
my @deaths = ('SELECT pg_terminate_backend(pg_backend_pid());', '\! kill -9 $PPID');

sub client_script
{
	my ($n) = @_;
	my $fate = $fates[ $n % @fates ];
	my $death = $fate =~ /dies/ ? $deaths[ $n / @fates % 2 ] : '';
	return script("client$n", join "\n", map({ "CALL client('op $n$_', '$fate');" } 0 .. 9), $death);
}

# A completer: an endless series of psql processes, each of which may be killed at any step. Its
# lease is so short that it may also lapse while the completer lives, and one in ten waits for that.
# One attempt in six fails, and is to be repeated later.
my $completer = script('completer', <<'SQL' x 20);
SELECT token AS t, key AS k, request->>'amount' AS amount, token IS NULL AS idle, attempt,
       coalesce(recovery_point, '') <> 'charged' AS to_charge, random() < 0.17 AS fails, random() < 0.1 AS late
  FROM idem.take('jobs', lease => '300 ms', wait => '100 ms') \gset
\if :idle
\else
SELECT pg_sleep(0.02);
\if :to_charge
INSERT INTO service VALUES (:'k', idem.child_key(:'t', 'charge'), 'completer');
SELECT pg_sleep(0.02);
SELECT idem.checkpoint(:'t', 'charged');
\endif
\if :fails
BEGIN;
INSERT INTO given_up VALUES (:'k');
SELECT idem.release(:'t', retry_after => idem.backoff(:attempt, '50 ms', '200 ms'),
  error => '{"message": "bank is closed"}');
COMMIT;
\else
BEGIN;
INSERT INTO payment VALUES (:'k', :'amount');
SELECT pg_sleep(CASE WHEN :'late' THEN 0.6 ELSE 0.02 END);
SELECT idem.complete(:'t', to_jsonb(:'k'::text));
COMMIT;
\endif
\endif
SQL

my $unfinished = q{SELECT count(*) FROM idem.records WHERE state = 'in_progress'};
my $kill = q{SELECT count(pg_terminate_backend(pid)) FROM
  (SELECT pid FROM pg_stat_activity WHERE application_name = 'completer' ORDER BY random() LIMIT 1) x};
my $killed = 0;

# Eight clients at a time, and six completers, of which one is killed again and again.
sub keep_running
{
	for my $i (0 .. 5)
	{
		$programs[$i] = run_psql('completer', $completer) unless $programs[$i] && is_running($programs[$i]);
	}
	$killed += sql($kill) if $killed < 100;
	return;
}

my @waiting = map { client_script($_) } 0 .. $clients - 1;
my @alive;
while (@waiting || @alive)
{
	@alive = grep { is_running($_) } @alive;
	push @alive, map { run_psql('client', $_) } splice @waiting, 0, 8 - @alive;
	keep_running();
}
is(sql('SELECT count(*) FROM idem.records'), $operations, 'every operation was begun');
# The completers may have taken all of them by now.
my $left = q{SELECT count(*) FROM idem.records WHERE state = 'in_progress' OR attempt > 1};
cmp_ok(sql($left), '>', 0, 'the clients have left some unfinished');
restart_killed($node);

my $patience = 10 * $PostgreSQL::Test::Utils::timeout_default;
keep_running() while sql($unfinished) > 0 && $patience-- > 0;
$_->kill_kill for @programs;
cmp_ok($killed, '>', 0, 'completers were killed');

is(sql($unfinished), 0, 'no operation is left unfinished');
is(sql('SELECT count(*) FROM idem.in_flight'), 0, 'none is in flight');
is(sql("SELECT count(*) FROM idem.records WHERE state = 'completed'"), $operations, 'every operation is completed');
is(sql('SELECT count(*), count(DISTINCT operation) FROM payment'), "$operations|$operations", 'each has paid once');
is(sql('SELECT count(*) FROM payment WHERE amount <> length(operation)'), 0, 'with the amount of its request');
is( sql('SELECT count(DISTINCT operation), count(DISTINCT idempotency_key) FROM service'),
	"$operations|$operations", 'the service has seen one key for each');

# The operations of the clients with this fate.
sub of_fate
{
	my ($fate) = @_;
	my $numbers = join ', ', grep { $fates[ $_ % @fates ] eq $fate } 0 .. $clients - 1;
	return "operation IN (SELECT format('op %s%s', n, m) FROM unnest(ARRAY[$numbers]) n, generate_series(0, 9) m)";
}
is( sql(q{SELECT count(*) FROM service JOIN recoverable USING (operation) WHERE by = 'completer'}),
	0, 'what was charged before the recovery point is not charged again');
is(sql('SELECT count(*) > 0 FROM recoverable WHERE ' . of_fate('dies at its recovery point')), 't',
	'clients have died at theirs');
is( sql(q{SELECT count(DISTINCT operation) FROM service WHERE by = 'completer' AND }
		. of_fate('dies after the charge')),
	50, 'what was charged without one is charged again, under the same key');
is( sql('SELECT bool_or(x), NOT bool_and(x) FROM (SELECT ' . of_fate('gives up') . ' AS x FROM given_up) y'),
	't|t', 'clients have released operations until later, and so have completers');
is( sql(qq{SELECT outcome, count(*), count(DISTINCT response) FROM generate_series(0, $clients - 1) n,
           generate_series(0, 9) m, LATERAL (SELECT 'op ' || n || m AS k) x,
           idem.try_claim('jobs', k, jsonb_build_object('amount', length(k))) GROUP BY 1}),
	"completed|$operations|$operations", q{every late retry gets its operation's answer});
is(locks($node), 0, 'no key lock is left');

# ---------------------------------------------------------------------------------------------
# Many takers, one backlog: each operation goes to one
# ---------------------------------------------------------------------------------------------

sql(<<'SQL');
TRUNCATE idem.record;
CREATE TABLE taken (key text, attempt integer);
SELECT count(idem.claim('jobs', 'due ' || n, lease => '1 minute')) FROM generate_series(1, 1000) n;
UPDATE idem.record SET lease_end = now() - interval '1 s';
SQL
$node->pgbench(
	'--client=16 --jobs=2 --transactions=100 --no-vacuum',
	0, [qr{processed: 1600/1600}], [qr/^$/], '16 takers, 1,000 operations',
	{ 'take' => "INSERT INTO taken SELECT key, attempt FROM idem.take('jobs', lease => '1 hour');" });
is( sql('SELECT count(key), count(DISTINCT key), count(*), min(attempt), max(attempt) FROM taken'),
	'1000|1000|1600|2|2', 'each operation goes to one taker, and the others get nothing');

# ---------------------------------------------------------------------------------------------
# A million records, ten of them due
# ---------------------------------------------------------------------------------------------

my ($columns, $values, $primary_key, $index) = managed_edition()
  ? ('attempt, key', '1, gen_random_uuid()', 'scope, tenant, key', 'record_due, idem.record_token')
  : ('digest, key_uuid', 'gen_random_uuid(), gen_random_uuid()', 'digest', 'record_unfinished');
sql(<<"SQL");
TRUNCATE idem.record;
ALTER TABLE idem.record DROP CONSTRAINT record_pkey;
INSERT INTO idem.record (created, expires, scope, state, tenant, $columns)
  SELECT now(), now() + interval '1 day', s.id, 'c', '', $values
    FROM generate_series(1, 1000000) n, idem.scope s;
ALTER TABLE idem.record ADD CONSTRAINT record_pkey PRIMARY KEY ($primary_key);
SELECT count(idem.claim('jobs', 'due ' || n, lease => '1 minute')) FROM generate_series(1, 10) n;
UPDATE idem.record SET lease_end = now() - substr(key, 5)::integer * interval '1 s' WHERE state = 'p';
VACUUM ANALYZE idem.record;
SELECT pg_stat_force_next_flush();
SQL
my $blocks_read = q{SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
  FROM pg_statio_user_tables WHERE relid = 'idem.record'::regclass};
my $takes = q{SELECT string_agg(key, ',') FROM (SELECT (idem.take('jobs', lease => '1 hour')).key
	FROM generate_series(1, 11)) x};
my $in_order = join ',', map { "due $_" } reverse 1 .. 10;

sub blocks_read_by
{
	my ($statement, $expected, $name) = @_;
	my $before = sql($blocks_read);
	is(sql("$statement; SELECT pg_stat_force_next_flush()"), "$expected\n", $name);
	return sql($blocks_read) - $before;
}

my $table_blocks = sql(q{SELECT pg_relation_size('idem.record') / current_setting('block_size')::integer});
cmp_ok($table_blocks, '>', 10000, 'the table has many blocks');
my $with_index = blocks_read_by($takes, $in_order, 'the ten are taken, in the order in which they became due');
cmp_ok($with_index, '<', 1000, 'take() does not read the table');
note "11 calls read $with_index blocks of $table_blocks";

# The figure tells a search of the whole table from one of the index.
sql(<<"SQL");
DROP INDEX idem.$index;
UPDATE idem.record SET lease_end = now() - substr(key, 5)::integer * interval '1 s' WHERE state = 'p';
SQL
cmp_ok(blocks_read_by($takes, $in_order, 'without the index, the same are taken'), '>', $table_blocks,
	'by reading the table');

log_is_clean($node, killed => 1);
$node->stop;
done_testing();
