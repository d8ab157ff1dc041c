# Leased claims under load, crash and restart: takeover races, waiters, durability, prepared
# transactions, dead workers.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# With WAL senders, so that a synchronous standby can be configured. Only commits write WAL to disk;
# see durability below.
my $node = idem_node('lease', init => { allows_streaming => 1 }, conf => <<'CONF');
max_connections = 40
synchronous_commit = local
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
shared_buffers = 16MB
wal_writer_delay = 10s
CONF
install_lapse($node);
$node->safe_psql('postgres', <<'SQL');
SELECT idem.create_scope('jobs', wait => '0', lease => '1 hour');
CREATE TABLE tried (key text, claimed boolean, attempt integer, outcome text);
CREATE TABLE effect (key text, attempt integer);
SQL

# A session that holds a leased claim, its token in :t.
sub worker
{
	my ($key, $lease) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$lease //= '1 hour';
	$session->query_safe("SELECT token AS t FROM idem.claim('jobs', '$key', lease => '$lease') \\gset");
	return $session;
}

sub outcome
{
	my ($key) = @_;
	return $node->safe_psql('postgres',
		"SELECT outcome, attempt FROM idem.try_claim('jobs', '$key', lease => '1 hour')");
}

sub state_of
{
	my ($key) = @_;
	return $node->safe_psql('postgres', "SELECT state, attempt FROM idem.lookup('jobs', '$key')");
}

# ---------------------------------------------------------------------------------------------
# Takeover races: 40 leases, 16 claimers each
# ---------------------------------------------------------------------------------------------

my $race = q{SELECT 'key' || n FROM generate_series(1, 40) n};
my @pgbench = ('--client=16', '--jobs=2', '--transactions=40', '--no-vacuum', '--define=n=0');

# All have lapsed: one claimer wins each, the others learn of its lease.
$node->safe_psql('postgres', "SELECT idem.claim('jobs', key, lease => '1 minute') FROM ($race) k(key)");
$node->safe_psql('postgres', "UPDATE idem.record SET lease_end = now() - interval '1 s'");
$node->pgbench(
	"@pgbench", 0, [qr/processed: 640\/640/], [qr/^$/], '16 claimers at 40 lapsed leases',
	{ 'race' => <<'SQL' });
\set n :n + 1
INSERT INTO tried SELECT 'key' || :n, claimed, attempt, outcome
  FROM idem.try_claim('jobs', 'key' || :n, lease => '1 hour');
SQL
is($node->safe_psql('postgres', 'SELECT outcome, count(*), count(DISTINCT key), min(attempt), max(attempt) FROM tried
	GROUP BY 1 ORDER BY 1'),
	"claimed|40|40|2|2\nin_progress|600|40||", 'exactly 40 takeovers, all of them attempt 2');
is($node->safe_psql('postgres', 'SELECT count(*), min(attempt), max(attempt) FROM idem.record'), '40|2|2',
	'the records have attempt 2 too');

# They end one after the other while the claimers wait: one wins and finishes, the others get its
# answer.
$node->safe_psql('postgres', <<"SQL");
TRUNCATE tried, idem.record;
SELECT idem.claim('jobs', key, lease => '1 minute') FROM ($race) k(key);
UPDATE idem.record SET lease_end = clock_timestamp() + substr(key, 4)::int * interval '50 ms';
CREATE FUNCTION work(k text) RETURNS void LANGUAGE plpgsql AS \$\$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('jobs', k, lease => '1 hour', wait => '10 minutes');
  INSERT INTO tried VALUES (k, c.claimed, c.attempt, c.outcome);
  IF c.claimed THEN
    INSERT INTO effect VALUES (k, c.attempt);
    PERFORM idem.complete(c.token, to_jsonb(k));
  END IF;
END \$\$;
SQL
$node->pgbench(
	"@pgbench", 0, [qr/processed: 640\/640/], [qr/^$/], '16 claimers wait for 40 leases to end',
	{ 'wait' => "\\set n :n + 1\nSELECT work('key' || :n);\n" });
is($node->safe_psql('postgres', 'SELECT outcome, count(*), count(DISTINCT key), min(attempt), max(attempt) FROM tried
	GROUP BY 1 ORDER BY 1'),
	"claimed|40|40|2|2\ncompleted|600|40|2|2", 'exactly 40 takeovers, 600 replays');
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT key) FROM effect'), '40|40', '40 effects');
is(locks($node), 0, 'no key lock is left');

# ---------------------------------------------------------------------------------------------
# Waiters: woken by whatever ends the lease, not by what prolongs it
# ---------------------------------------------------------------------------------------------

my %endings = (
	complete => [ q{SELECT idem.complete(:'t', '"done"')}, 'completed|1|f' ],
	fail => [ q{SELECT idem.fail(:'t', '{"message": "no"}')}, 'failed|1|f' ],
	release => [ q{SELECT idem.release(:'t')}, 'claimed|2|t' ],
	lapse => [ q{CALL lapse('wait lapse')}, 'claimed|2|t' ],
);
for my $how (sort keys %endings)
{
	my ($ending, $answer) = @{ $endings{$how} };
	my $owner = worker("wait $how");
	my $waiter = waiter($node, 'Extension', 'SELECT outcome, attempt, claimed '
		. "FROM idem.try_claim('jobs', 'wait $how', lease => '1 hour', wait => '10 minutes')");
	for my $step (q{idem.renew(:'t', '2 hours')}, q{idem.checkpoint(:'t', 'half way')})
	{
		# While this is uncommitted the waiter waits for the transaction, then for the lease again. In the SQL
		# edition, it looks again and again at the lease that is committed.
		$owner->query_safe("BEGIN; SELECT $step");
		waits_for($node, $waiter->{pid}, managed_edition() ? 'Extension' : 'Lock');
		$owner->query_safe('COMMIT');
		waits_for($node, $waiter->{pid}, 'Extension');
	}
	$owner->query_safe($ending);
	is($waiter->query_safe(''), $answer, "a waiter outlasts renew and checkpoint, and is woken by $how");
	$_->quit for ($owner, $waiter);
}
worker('real time', '1 s')->quit;
is( $node->safe_psql('postgres',
		"SELECT outcome, attempt FROM idem.try_claim('jobs', 'real time', lease => '1 hour', wait => '10 minutes')"),
	'claimed|2', 'a waiter takes over when the lease ends by the clock');
is( $node->safe_psql('postgres',
		"SELECT outcome, retry_after > '0' FROM idem.try_claim('jobs', 'real time', wait => '100 ms')"),
	'in_progress|t', 'the wait is bounded');

# One bound covers all waits of a call: that for the lease and that for the key lock, which a renewal
# holds that is not committed. A bound that began anew with the second wait would not be over when the
# operation is completed, so that the call would get the answer.
my $renewing = worker('bounded');
my $bounded = waiter($node, 'Extension', q{SELECT outcome FROM idem.try_claim('jobs', 'bounded', wait => '6 s')});
sleep 5;
$renewing->query_safe(q{BEGIN; SELECT idem.renew(:'t')});
sleep 4;
$renewing->query_safe(q{SELECT idem.complete(:'t', '1'); COMMIT});
is($bounded->query(''), 'in_progress', 'one bound covers the wait for a lease and the wait for the lock');
$_->quit for ($renewing, $bounded);

# The session's own bound also ends the wait for a lease; a call without the argument "wait" gets a
# hint about the scope's wait. Without the bound these calls would wait until the statement timeout.
$node->safe_psql('postgres', "SELECT idem.create_scope('patient', wait => '10 minutes')");
my $held = $node->safe_psql('postgres', "SELECT token FROM idem.claim('patient', 'held', lease => '1 hour')");
worker('held')->quit;
for my $call (
	"SELECT outcome FROM idem.try_claim('patient', 'held', wait => '10 minutes')",
	"SELECT idem.claim('patient', 'held')",
	"SELECT idem.once('patient', 'held')",
	"SELECT idem.forget('patient', 'held')")
{
	is(sqlstate($node, "SET statement_timeout = '1 min'; SET lock_timeout = '50 ms'; $call"),
		'55P03', "lock_timeout ends the wait for a lease: $call");
}
my ($code, $out, $err) = $node->psql('postgres', "SELECT idem.forget('jobs', 'held')");
like($err,
	qr/ERROR:  operation "held" is in progress\nDETAIL:  .* under a lease .*
HINT:  Wait for the end of the operation\. If its worker is gone or must not go on, call idem\.revoke\(\) first\./,
	'forget of a running lease: the hint names revoke');

# forget waits for the end of a lease as a claim does, and then forgets the record.
my $forgetter = waiter($node, 'Extension', q{SELECT idem.forget('patient', 'held')});
$node->safe_psql('postgres', "SELECT idem.complete('$held')");
is($forgetter->query_safe(''), 't', 'forget waits for a lease within the scope\'s wait');
$forgetter->quit;
is($node->safe_psql('postgres', "SELECT state FROM idem.lookup('patient', 'held')"), 'absent',
	'forget deletes the record');

# Heartbeats from other sessions. The row is made an hour older, so that an hour passes at once.
worker('alive')->quit;
worker('silent')->quit;
my $token = $node->safe_psql('postgres', "SELECT token FROM idem.claim('jobs', 'beating', lease => '1 hour')");
for my $beat (1 .. 3)
{
	$node->safe_psql('postgres', "UPDATE idem.record SET lease_end = lease_end - interval '50 min'
		WHERE key IN ('beating', 'silent')");
	$node->safe_psql('postgres', "SELECT idem.renew('$token', '1 hour')");
	is(outcome('beating'), 'in_progress|', "beat $beat from another session keeps the lease");
}
is(outcome('silent'), 'claimed|2', 'a worker without heartbeats is taken over');
$node->safe_psql('postgres', "SELECT idem.complete('$token')");

# ---------------------------------------------------------------------------------------------
# Durability: what a worker goes on to do outside rests on the row, whatever synchronous_commit says
# ---------------------------------------------------------------------------------------------

# Stopped, the WAL writer flushes nothing on the side: only a commit that is made to wait does. (Nor
# is a dirty page evicted, with its WAL, from buffers that are large enough.)
sub wal_writer
{
	return $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
}
kill 'STOP', wal_writer();

# Whether the commit of this statement has flushed the WAL.
sub flushes
{
	my ($statement, $level) = @_;
	return $node->safe_psql('postgres', <<"SQL");
SET synchronous_commit = $level;
BEGIN;
$statement \\gset
SELECT pg_current_wal_insert_lsn() AS before \\gset
COMMIT;
SELECT pg_current_wal_flush_lsn() > :'before';
SQL
}
sub leased { my ($key) = @_; return "SELECT token AS t FROM idem.claim('jobs', '$key', lease => '1 hour')"; }

is(flushes(q{SELECT pay('atomic', '{"amount": 1}') AS answer}, 'off'), 'f',
	'an atomic claim and its completion are not flushed');
is(flushes(leased('durable'), 'off'), 't', 'a leased claim is flushed under synchronous_commit = off');
$token = $node->safe_psql('postgres', leased('durable too'));
is(flushes("SELECT idem.renew('$token') AS t", 'off'), 't', 'renew is flushed');
is(flushes("SELECT idem.checkpoint('$token', 'charging') AS t", 'off'), 't', 'checkpoint is flushed');
is(flushes("SAVEPOINT s; SELECT idem.checkpoint('$token', 'charged') AS t \\gset\nRELEASE s; SELECT 1 AS t", 'off'),
	't', 'a checkpoint in a savepoint is flushed');
is(flushes("SELECT idem.complete('$token') AS t", 'off'), 'f', 'complete is as durable as the session\'s setting');
is($node->safe_psql('postgres', "SET synchronous_commit = off; BEGIN; @{[leased('setting')]} \\gset\n"
	. "COMMIT; SHOW synchronous_commit"),
	'off', 'the session keeps its setting');

# The server is killed as soon as claim, renew and checkpoint have returned.
my $session = $node->background_psql('postgres');
$session->query_safe('SET synchronous_commit = off');
$session->query_safe(q{SELECT pay('forgotten', '{"amount": 1}')});
$session->query_safe(leased('remembered') . ' \gset');
$session->query_safe(q{SELECT idem.checkpoint(:'t', 'charging')});
$session->query_safe(q{SELECT pay('forgotten too', '{"amount": 1}')});
crash($node, 'server', $session);
is($node->safe_psql('postgres', q{SELECT state, attempt, (SELECT recovery_point FROM idem.record
	WHERE key = 'remembered') FROM idem.lookup('jobs', 'remembered')}),
	'in_progress|1|charging', 'server killed: claim and checkpoint are there');
is($node->safe_psql('postgres', q{SELECT state FROM idem.lookup('payments', 'forgotten too')}),
	'absent', 'server killed: an atomic operation without durability is gone');
is(effects($node, 'forgotten too'), 0, 'server killed: its effect is gone too');

# A synchronous standby that does not exist.
wait_for_standbys($node, 'absent');
for my $level (qw(off local))
{
	my $worker = $node->background_psql('postgres', on_error_stop => 0);
	$worker->query_safe("SET synchronous_commit = $level");
	my $pid = $worker->query_safe('SELECT pg_backend_pid()');
	$worker->query_safe(q{SELECT pay('alone ' || current_setting('synchronous_commit'), '{"amount": 1}')});
	pass("$level: an atomic claim waits for no standby");
	for my $step (
		"SELECT token AS t FROM idem.claim('jobs', 'standby $level', lease => '1 hour') \\gset",
		q{SELECT idem.renew(:'t');},
		q{SELECT idem.checkpoint(:'t', 'charging');})
	{
		$worker->query_until(qr/waiting/, "\\echo waiting\n$step\n");
		ok( $node->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
			"$level: a standby is waited for: $step");
		$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
		$worker->query('');    # with a warning
	}
	is($worker->query(q{SELECT idem.complete(:'t', '1')}), '1', "$level: complete waits for no standby");
	$worker->quit;
}
$node->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;

# ---------------------------------------------------------------------------------------------
# Prepared transactions
# ---------------------------------------------------------------------------------------------

sub prepare
{
	my ($key, $call) = @_;
	return $node->safe_psql('postgres', "BEGIN; $call \\gset\nPREPARE TRANSACTION '$key';\n\\echo :t");
}
sub prepared_is_in_flight
{
	my ($key, $when) = @_;
	is($node->safe_psql('postgres', "SELECT state, holder_pid IS NULL FROM idem.lookup('jobs', '$key')"),
		'in_progress|t', "$key $when: in flight, without a process");
	is(outcome($key), 'in_progress|', "$key $when: not to be claimed");
	return;
}

my %tokens = map { $_ => prepare($_, leased($_)) } ('prepared', 'given up');
$tokens{finished} = $node->safe_psql('postgres', leased('finished'));
prepare('finished', qq{SELECT idem.complete('$tokens{finished}', '"done"') AS t});
for my $when ('before the restart', 'after a restart', 'after a crash')
{
	$node->restart if $when eq 'after a restart';
	crash($node, 'server') if $when eq 'after a crash';
	prepared_is_in_flight($_, $when) for ('prepared', 'given up', 'finished');
	is(sqlstate($node, "SELECT idem.renew('$tokens{prepared}')"), 'ID004', "$when: its token is worth nothing yet");
	is(sqlstate($node, "SELECT idem.renew('$tokens{finished}')"), 'ID001', "$when: a token in flight is in progress");
}
$node->safe_psql('postgres', "COMMIT PREPARED 'prepared'");
$node->safe_psql('postgres', "ROLLBACK PREPARED 'given up'");
$node->safe_psql('postgres', "COMMIT PREPARED 'finished'");
$node->safe_psql('postgres', "SELECT idem.checkpoint('$tokens{prepared}', 'charging')");
is($node->safe_psql('postgres', qq{SELECT idem.complete('$tokens{prepared}', '"here"')}), '"here"',
	'prepared: the token works in any session');
is(state_of('prepared'), 'completed|1', 'prepared: the token completes its attempt');
is(state_of('given up'), 'absent|', 'given up: the key is free');
is(sqlstate($node, "SELECT idem.renew('$tokens{'given up'}')"), 'ID004', 'given up: the token is worthless');
is($node->safe_psql('postgres', q{SELECT response FROM idem.claim('jobs', 'finished')}), '"done"',
	'finished: the answer is replayed');

# A prepared takeover fences the old worker off when it commits, and not before.
my $old = $node->safe_psql('postgres', leased('taken over'));
$node->safe_psql('postgres', "CALL lapse('taken over')");
prepare('taken over', leased('taken over'));
is(sqlstate($node, "SELECT idem.renew('$old')"), 'ID001', 'a prepared takeover is in progress');
$node->restart;
$node->safe_psql('postgres', "COMMIT PREPARED 'taken over'");
is(sqlstate($node, "SELECT idem.renew('$old')"), 'ID004', 'a committed takeover fences the old worker off');

# ---------------------------------------------------------------------------------------------
# A row that moves
# ---------------------------------------------------------------------------------------------

# An index on the lease puts each new version of the row in another place, with an index entry of
# its own in the primary key; a lookup without the key lock must find one of them. The heartbeats
# last as long as the looks.
$node->safe_psql('postgres', <<'SQL');
CREATE INDEX moving ON idem.record (lease_end);
CREATE TABLE beaten AS SELECT token FROM idem.claim('jobs', 'beaten', lease => '1 hour');
CREATE PROCEDURE beat() LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1 .. 1000 LOOP
    PERFORM idem.renew(token) FROM beaten;
    COMMIT;
  END LOOP;
END $$;
CREATE PROCEDURE look(looks integer, INOUT missed integer DEFAULT 0, INOUT lost integer DEFAULT 0) LANGUAGE plpgsql
  AS $$
BEGIN
  FOR i IN 1 .. looks LOOP
    missed := missed + (SELECT (state = 'absent')::integer FROM idem.lookup('jobs', 'beaten'));
    BEGIN
      PERFORM idem.child_key(token, 'step') FROM beaten;
    EXCEPTION WHEN SQLSTATE 'ID004' THEN
      lost := lost + 1;
    END;
    IF i % 20 = 0 THEN COMMIT; END IF;
  END LOOP;
END $$;
SQL
my $heart = load($node, "CALL beat();\n");
is($node->safe_psql('postgres', 'CALL look(30000)'), '0|0',
	'a record under constant renewal is always found, and its token valid');
ok(runs($heart), 'the heartbeats ran all the time');
$heart->kill_kill;
$node->safe_psql('postgres', "DROP INDEX idem.moving");

# ---------------------------------------------------------------------------------------------
# Dead workers
# ---------------------------------------------------------------------------------------------

my %killers = (
	'pg_terminate_backend' => sub {
		my ($worker) = @_;
		my $pid = $worker->query_safe('SELECT pg_backend_pid()');
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 180000)");
		eval { $worker->quit };
	},
	'kill -9 of the backend' => sub { crash($node, 'backend', @_) },
	'kill -9 of the server' => sub { crash($node, 'server', @_) },
);
for my $how (sort keys %killers)
{
	my $worker = worker("dead by $how");
	$worker->query_safe(q{SELECT idem.checkpoint(:'t', 'charging', '{"amount": 7}')});
	$token = $worker->query_safe(q{\echo :t});
	$killers{$how}->($worker);
	is(outcome("dead by $how"), 'in_progress|', "$how: the lease outlives its worker");
	$node->safe_psql('postgres', "CALL lapse('dead by $how')");
	is( $node->safe_psql('postgres', "SELECT outcome, attempt, recovery_point, recovery_state
		FROM idem.try_claim('jobs', 'dead by $how', lease => '1 hour')"),
		'claimed|2|charging|{"amount": 7}', "$how: the next attempt continues from the recovery point");
	is(sqlstate($node, "SELECT idem.complete('$token')"), 'ID004', "$how: the old token is fenced off");

	# Killed before its transaction committed: nothing is left of it.
	$worker = $node->background_psql('postgres', on_error_stop => 0);
	$worker->query_safe("BEGIN; " . leased("undone by $how") . ' \gset');
	is(state_of("undone by $how"), 'in_progress|1', "$how: an uncommitted claim is in flight");
	$killers{$how}->($worker);
	is(state_of("undone by $how"), 'absent|', "$how: an uncommitted claim is gone at once");
	is(outcome("undone by $how"), 'claimed|1', "$how: and its key is free");
}

is(locks($node), 0, 'no key lock is left');
log_is_clean($node, killed => 1);
$node->stop;
done_testing();
