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
	my $waiter = $moved->background_psql('postgres');
	my $pid = $waiter->query_safe('SELECT pg_backend_pid()');
	$waiter->query_until(qr/waiting/, <<'SQL');
\echo waiting
SELECT outcome FROM idem.try_claim('jobs', 'k', wait => '5 s');
SQL
	waits_for($moved, $pid, 'Extension');
	$set_clock->(-7200);
	ok($moved->poll_query_until('postgres', "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid"),
		'a clock that is set back does not prolong a wait');
	$moved->stop('immediate');
	eval { $waiter->quit };
}

my $node = idem_node('waiting');
$node->safe_psql('postgres', "SELECT idem.create_scope('jobs', wait => '0')");

# DROP DATABASE waits until each backend has closed its files. The waiter is stopped, so that this
# request and the end of its own wait reach it together. It must see to both.
{
	$node->safe_psql('postgres', 'CREATE DATABASE scratch');
	my $holder = $node->background_psql('postgres');
	$holder->query_safe("BEGIN; SELECT FROM idem.claim('jobs', 'held')");
	my $waiter = $node->background_psql('postgres');
	my $pid = $waiter->query_safe('SELECT pg_backend_pid()');
	$waiter->query_until(qr/waiting/, <<'SQL');
\echo waiting
SELECT outcome FROM idem.try_claim('jobs', 'held', wait => '5 s');
SQL
	waits_for($node, $pid, 'Lock');
	kill 'STOP', $pid;
	my $dropper = $node->background_psql('postgres', on_error_stop => 0);
	my $dropping = $dropper->query_safe('SELECT pg_backend_pid()');
	$dropper->query_until(qr/dropping/, "\\echo dropping\nDROP DATABASE scratch;\n");
	$node->poll_query_until('postgres', "SELECT wait_event = 'ProcSignalBarrier' FROM pg_stat_activity WHERE pid = $dropping")
	  or die 'DROP DATABASE does not wait';
	sleep 6;
	kill 'CONT', $pid;
	ok($node->poll_query_until('postgres', "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid"), 'the wait ends');
	SKIP:
	{
		skip 'after a lock_timeout, the server itself sees to the request at its next interrupt', 1 if managed_edition();
		ok($node->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM pg_database WHERE datname = 'scratch')}),
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
	my $waiter = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $waiter->query_safe('SELECT pg_backend_pid()');
	$waiter->query_until(qr/waiting/, <<'SQL');
SET statement_timeout = '10s';
\echo waiting
SELECT state FROM idem.lookup('jobs', 'held', wait => '1 hour');
SQL
	waits_for($node, $pid, 'Lock') unless managed_edition();
	kill 'STOP', $pid;
	sleep 11;
	kill 'CONT', $pid;
	ok($node->poll_query_until('postgres', "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid"), 'statement_timeout is not lost in a wait');
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$holder->query_safe('ROLLBACK');
	$_->quit for $waiter, $holder;
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

my $waiter = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $waiter->query_safe('SELECT pg_backend_pid()');
$waiter->query_until(qr/waiting/, <<'SQL');
\echo waiting
SELECT outcome FROM idem.try_claim('jobs', 'k', wait => '8 s');
SQL
waits_for($node, $pid, 'Lock');

# The lock is granted; the next thing that the waiter does is to disable the timeout.
my ($in, $out) = ('', '');
my $debugger = IPC::Run::start(
	[ 'gdb', '-q', '-batch', '-p', $pid,
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
