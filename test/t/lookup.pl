# Waits for leases: what wakes them, and what becomes of a wait that nothing wakes.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $schema = <<'SQL';
SELECT idem.create_scope('jobs', wait => '10 minutes', lease => '1 hour');
SELECT idem.create_scope('queue');
CREATE TABLE job (n integer PRIMARY KEY, token text);
SQL

# While the file exists, the library endless_wait.c makes waits endless: a wait that is not woken then hangs.
# Nothing wakes the waits of the SQL edition, which look again all the time.
# Without a C compiler, the waits are what they are, and the same tests show less. (After a wait for a
# lock, the server's timer for deadlocks sets the latch once more, hence deadlock_timeout.)
my $directory = PostgreSQL::Test::Utils::tempdir;
my ($shim, $endless) = ("$directory/endless_wait.so", "$directory/endless");
my $built = !managed_edition() && system('cc', '-shared', '-fPIC', '-o', $shim, "$ENV{TESTDIR}/test/t/endless_wait.c",
	'-ldl') == 0;
my $node = PostgreSQL::Test::Cluster->new('woken');
$node->init(allows_streaming => 1);    # commits can wait for a standby
$node->append_conf('postgresql.conf', q{shared_preload_libraries = 'idem'}) unless managed_edition();
$node->append_conf('postgresql.conf', <<'CONF');
max_connections = 60
max_prepared_transactions = 5
restart_after_crash = on
autovacuum = off
fsync = off
deadlock_timeout = 1h
CONF
{
	local $ENV{LD_PRELOAD} = $built ? $shim : '';
	local $ENV{IDEM_TEST_ENDLESS_WAIT} = $endless;
	$node->start;
}
install_payments($node);
install_lapse($node);
$node->safe_psql('postgres', $schema);
$node->safe_psql('postgres', 'CREATE FUNCTION announced() RETURNS integer ' . (managed_edition()
	? q{LANGUAGE sql AS $$ SELECT count(*)::integer FROM pg_stat_activity WHERE wait_event = 'PgSleep'
		AND query ~ 'idem\.' $$}
	: q{AS '$libdir/idem_test', 'idem_test_announced_waits' LANGUAGE C}));

# The token of a new lease.
sub begin
{
	my ($key, $server) = @_;
	return ($server // $node)->safe_psql('postgres', "SELECT token FROM idem.claim('jobs', '$key', lease => '1 hour')");
}

sub answer
{
	my ($session) = @_;
	my $answer = $session->query_safe('');
	$session->quit;
	return $answer;
}

sub lookup
{
	my ($key) = @_;
	return "SELECT state, attempt FROM idem.lookup('jobs', '$key', wait => '10 minutes')";
}

sub nobody_waits
{
	my ($after) = @_;
	ok($node->poll_query_until('postgres', 'SELECT announced() = 0'), "no announcement is left after $after");
	return;
}

# ---------------------------------------------------------------------------------------------
# Each end of a lease wakes, after its commit
# ---------------------------------------------------------------------------------------------

append_to_file($endless, '');

my $try = q{SELECT outcome, attempt FROM idem.try_claim('jobs', '%s', lease => '1 hour', wait => '10 minutes')};
my $take_over = q{SELECT idem.complete(token) FROM idem.claim('jobs', '%1$s')};
for my $case (
	[ 'lookup', 'complete', q{SELECT idem.complete('%2$s')}, 'completed|1' ],
	[ 'lookup', 'fail', q{SELECT idem.fail('%2$s', '{"message": "no"}')}, 'failed|1' ],
	[ 'lookup', 'release, and a takeover by another', "SELECT idem.release('%2\$s'); $take_over", 'completed|2' ],
	[ 'lookup', 'a takeover by an atomic claim', "CALL lapse('%1\$s'); $take_over", 'completed|2' ],
	[ 'lookup', 'a takeover by once_each', q{CALL lapse('%1$s'); SELECT idem.once_each('jobs', '{%1$s}')},
		'completed|2' ],
	[ 'lookup', 'forget', q{CALL lapse('%1$s'); SELECT idem.forget('jobs', '%1$s')}, 'absent|' ],
	[ 'lookup', 'a rolled back complete and another',
		q{BEGIN; SELECT idem.complete('%2$s'); ROLLBACK; SELECT idem.complete('%2$s')}, 'completed|1' ],
	[ 'lookup', 'complete in a savepoint', q{BEGIN; SAVEPOINT s; SELECT idem.complete('%2$s'); RELEASE s; COMMIT},
		'completed|1' ],
	[ 'lookup', 'one of fifty', q{BEGIN; SELECT count(idem.complete(token)) FROM generate_series(1, 50) i,
		idem.claim('jobs', 'x' || i, lease => '1 hour'); SELECT idem.complete('%2$s'); COMMIT}, 'completed|1' ],
	[ 'claim', 'complete', q{SELECT idem.complete('%2$s')}, 'completed|1' ],
	[ 'claim', 'release', q{SELECT idem.release('%2$s')}, 'claimed|2' ],
	[ 'claim', 'revoke', q{SELECT idem.revoke('jobs', '%1$s')}, 'claimed|2' ])
{
	my ($call, $ending, $statement, $expected) = @$case;
	my $key = "$call, $ending" =~ s/\W+/-/gr;
	my $token = begin($key);
	my $session = waiter($node, 'Extension', $call eq 'claim' ? sprintf($try, $key) : lookup($key));
	$node->safe_psql('postgres', sprintf($statement, $key, $token));
	is(answer($session), $expected, "$call is woken by $ending");
}

my $token = begin('forgotten');
my $forgetter = waiter($node, 'Extension', q{SELECT idem.forget('jobs', 'forgotten')});
$node->safe_psql('postgres', "SELECT idem.complete('$token')");
is(answer($forgetter), 't', 'forget is woken by complete');

# A taker waits for any operation of its scope.
for my $case (
	[ 'release', q{SELECT idem.release('%s')} ],
	[ 'revoke', q{SELECT idem.revoke('queue', 'due')} ],
	[ 'revoke of a released operation', q{SELECT idem.release('%s', '1 hour'); SELECT idem.revoke('queue', 'due')} ])
{
	my ($ending, $statement) = @$case;
	$token = $node->safe_psql('postgres', q{SELECT token FROM idem.claim('queue', 'due', lease => '1 hour')});
	my $taker = waiter($node, 'Extension', q{SELECT key, attempt FROM idem.take('queue', wait => '10 minutes')});
	$node->safe_psql('postgres', $statement =~ s{%s}{$token}r);
	is(answer($taker), 'due|2', "take is woken by $ending");
	$node->safe_psql('postgres', q{DELETE FROM idem.record WHERE key = 'due'});
}

# A waiter that runs in a function which catches its error waits again in the same transaction.
$token = begin('again');
my $again = waiter($node, 'Extension', <<'SQL');
DO $$
BEGIN
  BEGIN
    SET LOCAL lock_timeout = '1ms';
    PERFORM idem.claim('jobs', 'again', wait => '10 minutes');
  EXCEPTION WHEN lock_not_available THEN
    SET LOCAL lock_timeout = 0;
  END;
  PERFORM idem.lookup('jobs', 'again', wait => '10 minutes');
END $$
SQL
$node->safe_psql('postgres', "SELECT idem.complete('$token')");
answer($again);
pass('a wait after one that failed in the same transaction is woken');

# Many at once.
$token = begin('popular');
my @crowd = map { waiter($node, 'Extension', lookup('popular')) } 1 .. 25;
my $other_token = begin('unpopular');
my $other = waiter($node, 'Extension', lookup('unpopular'));
ok($node->poll_query_until('postgres', 'SELECT announced() = 26'), '26 backends have announced what they wait for');
$node->safe_psql('postgres', "SELECT idem.complete('$token', '1')");
is(join(' ', map { answer($_) } @crowd), join(' ', ('completed|1') x 25), 'one commit wakes 25 waiters');
$node->safe_psql('postgres', "SELECT idem.complete('$other_token')");
is(answer($other), 'completed|1', 'the waiter for another key is woken by its own');
nobody_waits('waits that were answered');

# The wake-up comes after the commit, however long that takes: here it waits for a standby.
$token = begin('durable');
my $durable = waiter($node, 'Extension', lookup('durable'));
my $committer = $node->background_psql('postgres');
my $committing = $committer->query_safe('SELECT pg_backend_pid()');
wait_for_standbys($node, 'absent');
$committer->query_until(qr/ending/, "\\echo ending\nSELECT idem.complete('$token');\n");
waits_for($node, $committing, 'IPC');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;
is(answer($durable), 'completed|1', 'lookup is woken after a commit that waits for a standby');
$committer->quit;

# A wake-up between a waiter's look and its wait is not lost. Every other lease ends when a waiter has
# announced its wait, and the next one soon after that, when all are about to wait for it. Long after
# the last lease has ended, a session that still waits is terminated, which fails the test.
my $patience = $PostgreSQL::Test::Utils::timeout_default;
$node->safe_psql('postgres', <<'SQL');
CREATE PROCEDURE await_waiter() LANGUAGE plpgsql AS $$
BEGIN
  WHILE announced() = 0 LOOP PERFORM pg_sleep(0.001), pg_stat_clear_snapshot(); END LOOP;
END $$;
INSERT INTO job SELECT n, (idem.claim('jobs', 'race' || n, lease => '1 hour')).token FROM generate_series(1, 600) n;
SQL
my $ender = load($node, <<"SQL", '-D', 'n=0');
\\set n :n + 1
\\set in_step :n % 2
\\if :n > 600
\\sleep $patience s
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Extension' OR wait_event = 'PgSleep';
\\else
\\if :in_step
CALL await_waiter();
\\endif
\\set delay random(0, 1000)
\\sleep :delay us
SELECT idem.complete(token) FROM job WHERE n = :n;
\\endif
SQL
$node->pgbench(
	'--client=5 --jobs=1 --transactions=600 --no-vacuum --define=n=0', 0, [qr/processed: 3000\/3000/], [qr/^$/],
	'five sessions wait for 600 leases while they end',
	{ 'waits' => <<"SQL" });
\\set n :n + 1
SELECT 1 / (state = 'completed')::int, pg_stat_force_next_flush()
  FROM idem.lookup('jobs', 'race' || :n, wait => '10 minutes');
SQL
$ender->kill_kill;
nobody_waits('a race');
unlink $endless;

# ---------------------------------------------------------------------------------------------
# Waits that end in an error
# ---------------------------------------------------------------------------------------------

$token = begin('held');
my $cancelled = waiter($node, 'Extension', lookup('held'));
$node->safe_psql('postgres', "SELECT pg_cancel_backend($cancelled->{pid})");
is($cancelled->query('SELECT 1'), 1, 'a cancelled waiter goes on');
$cancelled->quit;
my $terminated = waiter($node, 'Extension', lookup('held'));
$node->safe_psql('postgres', "SELECT pg_terminate_backend($terminated->{pid})");
eval { $terminated->{run}->kill_kill };
nobody_waits('a cancelled and a terminated waiter');

$node->safe_psql('postgres', <<'SQL');
CREATE PROCEDURE give_up(times integer, committing boolean) LANGUAGE plpgsql AS $$
BEGIN
  SET lock_timeout = '1ms';
  FOR i IN 1 .. times LOOP
    BEGIN
      PERFORM idem.lookup('jobs', 'held', wait => '10 minutes');
      RAISE 'not reached';
    EXCEPTION WHEN lock_not_available THEN
    END;
    IF committing THEN COMMIT; END IF;
  END LOOP;
END $$;
SQL
$node->safe_psql('postgres', 'CALL give_up(1000, true); CALL give_up(1000, false)');
nobody_waits('2,000 waits that ended in errors');
is($node->safe_psql('postgres', "SET statement_timeout = '2 s'; " . lookup('held')), 'in_progress|1',
	'the wait ends before statement_timeout comes');
is($node->safe_psql('postgres', q{SELECT state, lease_end > now() FROM idem.lookup('jobs', 'held', wait => '50 ms')}),
	'in_progress|t', 'at the bound, lookup returns what it knows');

# The transaction's own claims are not waited for.
is($node->safe_psql('postgres', <<'SQL'), "t\nin_progress\nt\nin_progress", 'a transaction does not wait for itself');
BEGIN;
SELECT claimed FROM idem.claim('jobs', 'own');
SELECT state FROM idem.lookup('jobs', 'own', wait => '10 minutes');
SELECT claimed FROM idem.claim('jobs', 'leased', lease => '1 hour');
SELECT state FROM idem.lookup('jobs', 'leased', wait => '10 minutes');
ROLLBACK;
SQL

# ---------------------------------------------------------------------------------------------
# Without a wake-up, the wait ends by itself
# ---------------------------------------------------------------------------------------------

# A superuser's change wakes nothing.
my $unnoticed = waiter($node, 'Extension', lookup('held'));
$node->safe_psql('postgres', q{DELETE FROM idem.record WHERE key = 'held'});
is(answer($unnoticed), 'absent|', 'a change past idem is noticed');

# Nor does the commit of a prepared transaction, whose session may be gone.
$token = begin('prepared');
my $prepared = waiter($node, 'Extension', lookup('prepared'));
$node->safe_psql('postgres', "BEGIN; SELECT idem.complete('$token'); PREPARE TRANSACTION 'p'");
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
is(answer($prepared), 'completed|1', 'the commit of a prepared transaction is noticed');

# An attempt that is the last ends with its lease, without a transaction. Then nothing is waited for.
$node->safe_psql('postgres', q{SELECT idem.create_scope('once', max_attempts => 1)});
$node->safe_psql('postgres', q{SELECT idem.claim('once', 'last', lease => '1 s')});
is($node->safe_psql('postgres', q{SELECT state FROM idem.lookup('once', 'last', wait => '10 minutes')},
		timeout => $PostgreSQL::Test::Utils::timeout_default),
	'exhausted', 'the end of the last lease is noticed');

# A backend that dies takes the slots with it: the server sets them up anew.
begin('crash');
my $dead = waiter($node, 'Extension', lookup('crash'));
my $victim = $node->background_psql('postgres', on_error_stop => 0);
crash($node, 'backend', $victim);
eval { $dead->{run}->kill_kill };
nobody_waits('a crash');
my $late = waiter($node, 'Extension', lookup('crash'));
$node->safe_psql('postgres', q{CALL lapse('crash')});
$node->safe_psql('postgres', sprintf($take_over, 'crash'));
is(answer($late), 'completed|2', 'waiters are woken after a crash');
$node->stop;
log_is_clean($node, killed => 1);

# Without preloading, there is nothing to announce.
my $plain = idem_node('plain', conf => '');
$plain->safe_psql('postgres', $schema);
for my $ending (q{SELECT idem.complete('%s')}, q{SELECT idem.fail('%s', '{"message": "no"}')})
{
	my $key = $ending =~ /complete/ ? 'completed' : 'failed';
	my $lease = begin($key, $plain);
	my $session = waiter($plain, 'Extension', lookup($key));
	$plain->safe_psql('postgres', sprintf($ending, $lease));
	is(answer($session), "$key|1", "without preloading, the wait ends when the operation has $key");
}
$plain->stop;
log_is_clean($plain);

done_testing();
