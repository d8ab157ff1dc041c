# A timeout that fires just as the lock is granted: a debugger stops the waiter at that instant
# until the time is up. It ends that wait, and is not an error of what comes next.
use strict;
use warnings;

use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $gdb = grep({ -x "$_/gdb" } split(/:/, $ENV{PATH}));
plan skip_all => 'needs gdb' unless $gdb;

my $node = idem_node('waiting');
$node->safe_psql('postgres', "SELECT idem.create_scope('jobs', wait => '0')");

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
