# The bound of a wait, when the clock is set back, when another session waits for this one at the same
# time, and when a timeout fires just as the lock is granted.
use strict;
use warnings;

use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# While a claim waits for a lease, the clock is set back by two hours. That does not prolong the wait.
# The SQL edition measures its waits by the clock, as the server's timeouts do.
SKIP:
{
	skip 'the SQL edition knows no other clock', 1 if managed_edition();
	my $moved = PostgreSQL::Test::Cluster->new('moved');
	$moved->init;
	my $set_clock = start_with_clock($moved) or skip 'there is no C compiler', 1;
	$moved->safe_psql('postgres', q{CREATE EXTENSION idem; SELECT idem.create_scope('jobs')});
	$moved->safe_psql('postgres', q{SELECT token FROM idem.claim('jobs', 'k', lease => '1 day')});
	my $waiter = waiter($moved, 'Extension', q{SELECT outcome FROM idem.try_claim('jobs', 'k', wait => '5 s')});
	$set_clock->(-7200);
	ok($moved->poll_query_until('postgres', "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $waiter->{pid}"),
		'a clock that is set back does not prolong a wait');
	$moved->stop('immediate');
	eval { $waiter->quit };
}

my $node = idem_node('waiting');
$node->safe_psql('postgres', "SELECT idem.create_scope('jobs', wait => '0')");

# A purge that is cancelled before it has read a row ends as well.
SKIP:
{
	skip 'the SQL edition waits like any other statement', 1 if managed_edition();
	my $holder = $node->background_psql('postgres');
	$holder->query_safe('BEGIN; LOCK TABLE pg_subscription_rel IN ACCESS EXCLUSIVE MODE');
	my ($out, $err);
	$node->psql('postgres', q{SET statement_timeout = '1s'; SELECT idem.purge()}, stdout => \$out, stderr => \$err,
		timeout => 30, timed_out => \my $timed_out);
	like($err, qr/ERROR:  canceling statement due to statement timeout/, 'a timeout ends idem.purge()');
	$holder->quit;
}

# DROP DATABASE waits until each backend has closed its files. The waiter is stopped, so that this
# request and the end of its own wait reach it together. It must see to both.
{
	$node->safe_psql('postgres', 'CREATE DATABASE scratch');
	my $holder = $node->background_psql('postgres');
	$holder->query_safe("BEGIN; SELECT FROM idem.claim('jobs', 'held')");
	my $waiter = waiter($node, 'Lock', q{SELECT outcome FROM idem.try_claim('jobs', 'held', wait => '5 s')});
	my $pid = $waiter->{pid};
	kill 'STOP', $pid;
	my $dropper = $node->background_psql('postgres', on_error_stop => 0);
	my $dropping = $dropper->query_safe('SELECT pg_backend_pid()');
	$dropper->query_until(qr/dropping/, "\\echo dropping\nDROP DATABASE scratch;\n");
	$node->poll_query_until('postgres', "SELECT wait_event = 'ProcSignalBarrier' FROM pg_stat_activity
		WHERE pid = $dropping")
	  or die 'DROP DATABASE does not wait';
	sleep 6;
	kill 'CONT', $pid;
	ok($node->poll_query_until('postgres', "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid"),
		'the wait ends');
	SKIP:
	{
		skip 'after a lock_timeout, the server itself sees to the request at its next interrupt', 1
		  if managed_edition();
		ok($node->poll_query_until('postgres',
				q{SELECT NOT EXISTS (SELECT FROM pg_database WHERE datname = 'scratch')}),
			'no session waits for a backend whose wait has ended');
	}
	$holder->query_safe('ROLLBACK');
	$_->quit for $waiter, $dropper, $holder;
}

# lookup() waits for a tenth of a second at a time. The statement's own time ends while it is stopped,
# together with such a wait.
{
	my $holder = $node->background_psql('postgres');
	$holder->query_safe("BEGIN; SELECT FROM idem.claim('jobs', 'held')");
	my $waiter = waiter($node, managed_edition() ? 'Extension' : 'Lock',
		"SET statement_timeout = '10s';\nSELECT state FROM idem.lookup('jobs', 'held', wait => '1 hour')");
	my $pid = $waiter->{pid};
	kill 'STOP', $pid;
	sleep 11;
	kill 'CONT', $pid;
	ok($node->poll_query_until('postgres', "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid"),
		'statement_timeout is not lost in a wait');
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$holder->query_safe('ROLLBACK');
	$_->quit for $waiter, $holder;
}

# A call that waits ends before its statement_timeout would end it, with the answer of a wait that has
# come to its end: ID001 with the time to retry after, or a row. A shorter lock_timeout raises 55P03.
# The scope's wait is an hour, and one transaction holds everything that the calls wait for.
{
	$node->safe_psql('postgres', <<'SQL');
SELECT idem.create_scope('patient', wait => '1 hour', lease => '1 hour');
CREATE TABLE kept AS SELECT k, (idem.claim('patient', k, lease => '1 hour')).token
  FROM unnest('{leased,locked,renewed}'::text[]) k;
SELECT FROM idem.claim('patient', 'theirs', tenant => 'other', lease => '1 hour');
SELECT FROM idem.claim('patient', 'lapsed', lease => '1 hour');
UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE key = 'lapsed';
CREATE FUNCTION kept(key text) RETURNS text LANGUAGE sql AS 'SELECT token FROM kept WHERE k = key';
CREATE FUNCTION pays(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE TABLE noted (key text, has_time boolean);
CREATE FUNCTION catches(key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE pause int;
BEGIN
  PERFORM idem.complete(token) FROM idem.claim('patient', key);
  RETURN 'claimed';
EXCEPTION WHEN SQLSTATE 'ID001' THEN
  GET STACKED DIAGNOSTICS pause = PG_DATATYPE_NAME;
  INSERT INTO noted VALUES (key, pause > 0);
  RETURN 'told';
END $$;
SQL
	my $late = $node->background_psql('postgres', on_error_stop => 0);
	$late->query_safe(q{BEGIN; SELECT token AS t FROM idem.claim('patient', 'late') \gset}) unless managed_edition();
	my $holder = $node->background_psql('postgres');
	$holder->query_safe(<<'SQL');
BEGIN;
SELECT FROM idem.claim('patient', 'busy');
SELECT idem.advance('patient', 'source', 1);
SELECT idem.renew(kept('renewed'));
SELECT count(*) FROM idem.once_each('patient', '{written,late}');
SELECT FROM idem.record WHERE key IN ('lapsed', 'locked') FOR UPDATE;
SQL
	# What each waits for, and the calls.
	my %refused = (
		'a key lock' => [
			q{claim('patient', 'busy')}, q{claim('patient', 'busy', lease => '1 hour')}, q{once('patient', 'busy')},
			q{execute('patient', 'busy', 'pays(jsonb)', '{}')}, q{cancel('patient', 'busy')},
			q{revoke('patient', 'busy')},
			q{forget('patient', 'busy')}, q{erase('patient', 'busy')},
			q{advance('patient', 'source', 2)}, q{reset_stream('patient', 'source')},
			q{complete(kept('renewed'))}, q{fail(kept('renewed'), '{"message": "no"}')}, q{release(kept('renewed'))},
			q{renew(kept('renewed'))},
			q{checkpoint(kept('renewed'), 'here')} ],
		'a lease' => [
			q{claim('patient', 'leased')}, q{once('patient', 'leased')}, q{forget('patient', 'leased')},
			q{erase('patient', 'leased')},
			q{forget_tenant('patient', 'other')}, q{erase_tenant('patient', 'other', true)} ],
		'a locked row' => [
			q{claim('patient', 'lapsed', lease => '1 hour')}, q{once('patient', 'lapsed')}, q{complete(kept('locked'))},
			q{renew(kept('locked'))}, q{revoke('patient', 'locked')} ],
		'a row without a key lock' => [
			q{once_each('patient', '{written}')},
			# The SQL edition waits for a new row as an INSERT does.
			managed_edition() ? () : (q{claim('patient', 'written')}, q{cancel('patient', 'written')}) ]);
	my %answered = (
		q{outcome, retry_after > '0' FROM idem.try_claim('patient', 'busy', wait => '1 hour')} => 'in_progress|t',
		q{outcome, retry_after > '0' FROM idem.try_claim('patient', 'leased', wait => '1 hour')} => 'in_progress|t',
		q{state FROM idem.lookup('patient', 'busy', wait => '1 hour')} => 'in_progress',
		q{state FROM idem.lookup('patient', 'leased', wait => '1 hour')} => 'in_progress',
		managed_edition() ? () : (q{state FROM idem.lookup('patient', 'written', wait => '1 hour')} => 'in_progress'),
		q{token IS NULL FROM idem.take('jobs', wait => '1 hour')} => 't');
	my @runs;
	my $run = sub {
		my ($settings, $sql, $expected, $title) = @_;
		my %run = (expected => $expected, title => $title, out => '');
		$run{harness} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-c', $settings, '-c', $sql,
				$node->connstr('postgres') ],
			'<', \undef, '>&', \$run{out});
		push @runs, \%run;
	};
	my $end_runs = sub {
		for my $run (splice @runs)
		{
			$run->{harness}->finish;
			like($run->{out}, $run->{expected}, $run->{title});
		}
	};
	my $told =
		qr/ERROR:  ID001: .*HINT:  .*\bafter \d+\.\d seconds, or raise "statement_timeout".*DATATYPE NAME:  [1-9]/s;
	for my $what (sort keys %refused)
	{
		for my $call (@{ $refused{$what} })
		{
			my $expected = $call =~ /^(forget|erase).*(leased|other)/ ? qr/ERROR:  ID001: .*DATATYPE NAME:  [1-9]/s
				: $told;
			$run->("SET statement_timeout = '5 s'", "SELECT * FROM idem.$call", $expected,
				"ID001 instead of 57014, at $what: $call");
		}
	}
	$run->("SET statement_timeout = '5 s'", "SELECT $_", qr/^\Q$answered{$_}\E$/, "a row instead of 57014: $_")
	  for sort keys %answered;
	$run->("SET statement_timeout = '5 s'; SET lock_timeout = '4.9 s'", q{SELECT idem.claim('patient', 'busy')}, $told,
		'a lock_timeout that would leave no time to answer');
	$run->("SET statement_timeout = '5 s'", "SELECT catches('busy')", qr/^told$/,
		'a statement that catches ID001 ends well');
	$end_runs->();
	is($node->safe_psql('postgres', 'SELECT * FROM noted'), 'busy|t', 'what it does then is committed');

	$run->("SET statement_timeout = '1 min'; SET lock_timeout = '200 ms'", "SELECT * FROM idem.$_", qr/ERROR:  55P03/,
		"a shorter lock_timeout raises 55P03: $_")
	  for map { @$_ } values %refused;
	$run->("SET statement_timeout = '1 min'; SET lock_timeout = '200 ms'", "SELECT $_", qr/ERROR:  55P03/,
		"a shorter lock_timeout raises 55P03: $_")
	  for sort keys %answered;
	$end_runs->();

	SKIP:
	{
		skip 'in the SQL edition, a claim has its row at once', 1 if managed_edition();
		$late->query_safe("SET statement_timeout = '5 s'");
		$late->query(q{SELECT idem.complete(:'t')});
		like($late->{stderr}, qr/ERROR:  operation "late" is in progress/, 'the completion of an atomic claim');
	}
	# Too short a time for any wait. On a slow machine, the statement may end before its answer.
	my $state = '57014';
	for (my $tries = 0; $state eq '57014' && $tries < 100; ++$tries)
	{
		$state = sqlstate($node, "SELECT FROM idem.lookup('patient', 'busy');\nSET statement_timeout = '45 ms';\n"
			. "SELECT idem.claim('patient', 'busy');");
	}
	is($state, 'ID001', 'with less than 50 ms left, the answer comes at once');

	# The time that is left is that of the timer, which runs since the statement of the client began.
	SKIP:
	{
		skip 'the SQL edition knows only the setting', 2 if managed_edition();
		$node->safe_psql('postgres', "ALTER FUNCTION catches SET statement_timeout = 0");
		is($node->safe_psql('postgres', "SET statement_timeout = '2 s'; SELECT catches('busy')"), 'told',
			'a function without the timeout runs under that of its caller');
		$node->safe_psql('postgres', "ALTER FUNCTION catches SET statement_timeout = '1 ms'");
		my $waiter = waiter($node, 'Lock', q{SELECT catches('busy')});
		$holder->query_safe('ROLLBACK');
		is($waiter->query(''), 'claimed', 'a timeout that is set within the statement limits no wait');
		$waiter->quit;
	}
	$_->quit for $late, $holder;
}

# Each look at a key reads its whole record, here two megabytes. A call that looks many times keeps
# no copy of what it has seen.
SKIP:
{
	skip 'this system does not show how much memory a process takes', 5 unless -r '/proc/self/status';
	my $size = 2 << 20;
	$node->safe_psql('postgres', <<"SQL");
SELECT idem.create_scope('large', wait => '1 hour', max_answer_size => 8388608);
CREATE PROCEDURE fill(k text, free boolean) LANGUAGE plpgsql AS \$\$
DECLARE t text := (idem.claim('large', k, lease => '1 hour')).token;
BEGIN
  PERFORM idem.checkpoint(t, 'here', jsonb_build_object('state', repeat('x', $size)));
  IF free THEN PERFORM idem.release(t); END IF;
END \$\$;
CALL fill('leased', false);
SQL
	my $peak = sub { slurp_file("/proc/$_[0]/status") =~ /VmHWM:\s+(\d+) kB/ ? $1 * 1024 : die };
	my $waits_lightly = sub {
		my ($call, $setup, $after) = @_;
		my $session = $node->background_psql('postgres', on_error_stop => 0);
		my $pid = $session->query_safe('SELECT pg_backend_pid()');
		$session->query_safe($setup) if $setup;
		$node->safe_psql('postgres', $after) if $after;
		my $before = $peak->($pid);
		$session->query_until(qr/waiting/, "\\echo waiting\nSELECT FROM idem.$call;\n");
		waits_for($node, $pid, 'Extension');
		sleep 2;    # twenty looks
		cmp_ok($peak->($pid) - $before, '<', 8 * $size, "a call that looks many times keeps no copies: $call");
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
		eval { $session->quit };
	};
	$waits_lightly->($_) for q{forget('large', 'leased')}, q{erase('large', 'leased')},
	  q{lookup('large', 'leased', wait => '1 hour')}, q{try_claim('large', 'leased', wait => '1 hour')};
	# Other workers take what this session has seen as due.
	$node->safe_psql('postgres', join ' ', map { "CALL fill('due $_', true);" } 1 .. 30);
	$waits_lightly->(q{take('large', wait => '1 hour')}, q{SELECT FROM idem.take('large')},
		"UPDATE idem.record SET lease_end = now() + interval '1 hour', nonce = 1 WHERE state = 'p'");
}

# A debugger stops the waiter at the instant when the lock is granted, until the time is up. The timeout
# ends that wait, and is not an error of what comes next.
my $gdb = grep({ -x "$_/gdb" } split(/:/, $ENV{PATH}));
if (!$gdb) { done_testing(); exit; }

my $holder = $node->background_psql('postgres');
$holder->query_safe("BEGIN; SELECT token AS t FROM idem.claim('jobs', 'k') \\gset");
$holder->query_safe(q{SELECT idem.release(:'t')});

my $waiter = waiter($node, 'Lock', q{SELECT outcome FROM idem.try_claim('jobs', 'k', wait => '8 s')});

# The lock is granted; the next thing that the waiter does is to disable the timeout.
my ($in, $out) = ('', '');
my $debugger = IPC::Run::start(
	[ 'gdb', '-q', '-batch', '-p', $waiter->{pid},
		(map { ('-ex', "handle $_ nostop noprint pass") } qw(SIGALRM SIGINT SIGUSR1)),
		'-ex', 'break disable_timeouts', '-ex', 'echo armed\n', '-ex', 'continue',
		'-ex', 'shell sleep 9', '-ex', 'delete', '-ex', 'continue' ],
	'<', \$in, '>&', \$out, IPC::Run::timeout(180));
$debugger->pump until $out =~ /armed/ or !$debugger->pumpable;
SKIP:
{
	skip 'gdb may not attach', 1 unless $out =~ /Breakpoint 1 at/;
	$holder->query_safe('COMMIT');
	is($waiter->query(''), 'in_progress', 'a timeout that fires as the lock is granted ends the wait');
}
$waiter->quit;
$debugger->finish;
$holder->quit;
$node->stop;
done_testing();
