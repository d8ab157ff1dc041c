# Failover: the primary's postmaster is killed in the middle of a storm, its standby is promoted,
# and the clients go there with the same keys. With synchronous replication no acknowledged answer
# is lost and no key is executed twice, whatever the clients were doing; the same storm on an
# unprotected procedure pays twice. With asynchronous replication an effect and its record are lost
# together. The killed primary is rewound and becomes the next standby, so that every failover
# starts from one.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Storm;
use Test::More;

my ($clients, $operations) = (12, 3000);

my $primary = idem_node('alpha', bare => 1, init => { allows_streaming => 1 }, conf => <<'CONF');
max_connections = 60
shared_buffers = 16MB
wal_keep_size = 256MB
log_statement = none
CONF
$primary->command_ok([ 'psql', '-Xq', '-f', 'demo/payments.sql', 'postgres' ], 'the demo is set up');
$primary->safe_psql('postgres', q{SELECT idem.create_scope('jobs', lease => '1 hour')});
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('beta');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

# From here on, the standby does not receive what the primary commits.
sub cut_replication
{
	configure($standby, 'primary_conninfo', '');
	$primary->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_replication') or die 'still connected';
	return;
}

# The primary dies, the standby takes its place.
sub fail_over
{
	kill_postmaster($primary);
	$standby->promote;
	($primary, $standby) = ($standby, $primary);
	return;
}

# The killed primary follows the new one.
sub rejoin
{
	ok(rewind($standby, $primary), $standby->name . ' is rewound');
	$standby->start;
	return;
}

sub clear
{
	$primary->safe_psql('postgres', 'TRUNCATE payment, unprotected_payment, idem.record');
	return;
}

sub session { return $primary->background_psql('postgres', on_error_stop => 0); }

sub waiting_for_standby
{
	return "(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep')";
}

# Starts a statement that hangs in its commit, because the standby does not confirm.
sub commit_unheard
{
	my ($statement) = @_;
	my $session = session();
	my $before = $primary->safe_psql('postgres', 'SELECT ' . waiting_for_standby());
	$session->query_until(qr/sent/, "\\echo sent\n$statement;\n");
	$primary->poll_query_until('postgres', 'SELECT ' . waiting_for_standby() . " = $before + 1") or die 'no wait';
	return $session;
}

sub abandon { my ($session) = @_; eval { $session->{run}->kill_kill }; return; }

# Does something on the standby as soon as so many effects have reached it. The standby itself looks, so
# that the storm does not end before the test is back.
sub when_effects_reach_standby
{
	my ($table, $n, $then) = @_;
	$standby->safe_psql('postgres', <<"SQL");
SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s';
DO \$\$
BEGIN
  WHILE (SELECT count(*) FROM $table) < $n LOOP
    COMMIT;
    PERFORM pg_sleep(0.005);
  END LOOP;
  PERFORM $then;
END \$\$;
SQL
	return;
}

# A storm, with a failover when a quarter of its effects has reached the standby. With "unheard", it
# comes at the worst moment: all clients have committed, on both servers, and none has got its
# answer.
sub storm_and_failover
{
	my ($procedure, $sends, %options) = @_;
	my $table = $procedure eq 'pay' ? 'payment' : 'unprotected_payment';
	clear();
	replicate($primary, $standby, $options{mode} // 'synchronous');
	my $storm = Storm->new([ $procedure, $clients, $operations, $sends, 0 ], [ $primary, $standby ],
		session => $options{unheard} ? '-c synchronous_commit=remote_apply' : '');
	when_effects_reach_standby($table, $operations / 4, $options{unheard} ? 'pg_wal_replay_pause()' : 'true');
	if ($options{unheard})
	{
		$primary->poll_query_until('postgres', 'SELECT ' . waiting_for_standby() . " = $clients") or die 'no wait';
		$primary->wait_for_catchup($standby, 'flush', $primary->lsn('insert'));
	}
	fail_over();
	my %saw = $storm->counts;
	$storm->load_answers($primary);
	return %saw;
}

sub ask { my ($query) = @_; return $primary->safe_psql('postgres', $query); }

sub everything_once
{
	my ($name, %saw) = @_;
	cmp_ok($saw{lost}, '>=', 1, "$name: answers were lost");
	is($saw{differing}, 0, "$name: no key had two answers");
	is(ask('SELECT count(*), count(DISTINCT key) FROM payment'), "$operations|$operations", "$name: one effect a key");
	is(ask(q{SELECT count(*) FROM answer WHERE NOT EXISTS
		(SELECT FROM payment p WHERE p.key = answer.key AND answer = jsonb_build_object('payment', p.id))}),
		0, "$name: no acknowledged effect is lost");
	is(ask(q{SELECT count(*) FROM answer WHERE pay(key, '{"amount": 10}') IS DISTINCT FROM answer}),
		0, "$name: a late retry of any key gets the answer that was acknowledged");
	is(ask('SELECT count(*) FROM payment'), $operations, "$name: and has no effect");
	is(locks($primary), 0, "$name: no lock is left");
	return;
}

# 1. Synchronous replication: a failover at a random moment, then with no answer delivered; then
# without idem.
everything_once('synchronous', storm_and_failover('pay', 3));
rejoin();
everything_once('unheard', storm_and_failover('pay', 1, unheard => 1));
rejoin();
storm_and_failover('pay_unprotected', 1, unheard => 1);
is(ask('SELECT count(*) - count(DISTINCT key) FROM unprotected_payment'), $clients,
	'unprotected: every client that got no answer pays twice');
rejoin();

# 2. Leases: the standby has a claim before the caller continues with an external call, so
# its token, its attempts and its recovery point are there after the failover.
replicate($primary, $standby, 'synchronous');
sub claim_job
{
	my ($key) = @_;
	return ask("SET synchronous_commit = off; SELECT token FROM idem.claim('jobs', '$key', lease => '1 hour')");
}
sub job
{
	my ($key) = @_;
	return ask("SELECT outcome, attempt, recovery_point FROM idem.try_claim('jobs', '$key', lease => '1 hour')");
}
my %token = map { $_ => claim_job($_) } qw(held finished overtaken left);
ask("SELECT idem.checkpoint('$token{overtaken}', 'charged', '{\"charge\": 7}')");
ask("SELECT idem.checkpoint('$token{left}', 'charged');
	SELECT idem.release('$token{left}', '1 ms', '{\"message\": \"later\"}')");
fail_over();
is(ask(q{SELECT key, attempt, recovery_point, last_error->>'message' FROM idem.take('jobs')}), 'left|2|charged|later',
	'lease: what was released is taken on the new primary');
is(job('held'), 'in_progress||', 'lease: in flight on the new primary');
ask("SELECT idem.renew('$token{finished}'); SELECT idem.complete('$token{finished}', '\"done\"')");
is(job('finished'), 'completed|1|', 'lease: the token of the old primary completes on the new one');
ask(q{UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE key = 'overtaken'});
is(job('overtaken'), 'claimed|2|charged', 'lease: when it has ended, it is taken over with its recovery point');
my (undef, undef, $stderr) = $primary->psql('postgres', "\\set VERBOSITY verbose\n"
	. "SELECT idem.complete('$token{overtaken}')");
like($stderr, qr/ID004/, 'lease: the old token is fenced off');
rejoin();

# 3. What the standby does not have is not acknowledged. Even a session that does not wait for the
# standby waits for its leased claims.
clear();
replicate($primary, $standby, 'synchronous');
cut_replication();
my @hanging = (commit_unheard(q{SELECT pay('cut', '{"amount": 1}')}),
	commit_unheard(q{SET synchronous_commit = off; SELECT token FROM idem.claim('jobs', 'cut', lease => '1 hour')}));
is($primary->safe_psql('postgres', q{SELECT state FROM idem.lookup('payments', 'cut')}), 'in_progress',
	'not replicated: no client is told that the operation is done');
fail_over();
abandon($_) for @hanging;
is(effects($primary, 'cut'), 0, 'not replicated, not acknowledged: no effect');
is(job('cut'), 'claimed|1|', 'not replicated, not acknowledged: the job is free');
is(ask(q{SELECT pay('cut', '{"amount": 1}')->'payment' IS NOT NULL}), 't',
	'not replicated, not acknowledged: the retry runs');
is(effects($primary, 'cut'), 1, 'not replicated, not acknowledged: the retry has the only effect');
rejoin();

# 4. An operator cancels the wait for the standby. The primary then shows what the standby does not
# have, and a replay acknowledges it. A replay that writes something waits, as
# docs/high-availability.md says.
clear();
replicate($primary, $standby, 'synchronous');
ask(<<'SQL');
CREATE FUNCTION pay_strictly(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN
    PERFORM pg_logical_emit_message(true, 'idem', '');
    RETURN c.response;
  END IF;
  INSERT INTO payment(key, amount) VALUES (key, (request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;
SQL
$primary->wait_for_catchup($standby);
cut_replication();
my $cancelled = commit_unheard(q{SELECT pay_strictly('cancelled', '{"amount": 1}')});
$primary->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'});
$primary->poll_query_until('postgres', q{SELECT state = 'completed' FROM idem.lookup('payments', 'cancelled')})
  or die 'not cancelled';
is($primary->safe_psql('postgres', q{SELECT pay('cancelled', '{"amount": 1}')->'payment' IS NOT NULL}), 't',
	'cancelled wait: a plain replay acknowledges what the standby does not have');
my $strict = commit_unheard(q{SELECT pay_strictly('cancelled', '{"amount": 1}')});
pass('cancelled wait: a replay that writes waits for the standby');
fail_over();
abandon($_) for ($cancelled, $strict);
is(effects($primary, 'cancelled'), 0, 'cancelled wait: the effect is gone');
is($primary->safe_psql('postgres', q{SELECT state FROM idem.lookup('payments', 'cancelled')}), 'absent',
	'cancelled wait: the record is gone with the effect, so a retry runs');
rejoin();

# 5. Asynchronous replication: the last commits are lost, acknowledged or not, each effect with its
# record.
clear();
replicate($primary, $standby, 'asynchronous');
ask(q{SELECT pay('early', '{"amount": 1}')});
$primary->wait_for_catchup($standby);
cut_replication();
ask(qq{SELECT pay('late $_', '{"amount": 1}')}) for 1 .. 3;
fail_over();
is(ask(q{SELECT string_agg(key, ', ') FROM payment}), 'early', 'asynchronous: acknowledged effects can be lost');
is(ask(q{SELECT string_agg(key, ', ') FROM idem.record}), 'early', 'asynchronous: their records are lost with them');
ask(qq{SELECT pay('$_', '{"amount": 1}')}) for ('early', 'late 1', 'late 2', 'late 3');
is(ask('SELECT count(*), count(DISTINCT key) FROM payment'), '4|4',
	'asynchronous: retries of lost operations run once');
rejoin();

my %saw = storm_and_failover('pay', 3, mode => 'asynchronous');
note('asynchronous: ' . ask(q{SELECT count(*) FROM answer WHERE NOT EXISTS
	(SELECT FROM payment p WHERE p.key = answer.key AND answer = jsonb_build_object('payment', p.id))})
	. ' acknowledged effects lost');
is(ask('SELECT count(*) - count(DISTINCT key) FROM payment'), 0, 'asynchronous storm: no key has two effects');
is(ask(q{SELECT count(*) FROM payment p FULL JOIN idem.record r USING (key)
	WHERE r.response IS DISTINCT FROM jsonb_build_object('payment', p.id)}), 0,
	'asynchronous storm: every effect has its record, every record its effect');

$_->stop for grep { defined $_->{_pid} } ($primary, $standby);
log_is_clean($_) for ($primary, $standby);
done_testing();
