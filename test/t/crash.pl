# Crashes between effect, complete and COMMIT: whatever process dies, a retry finds one effect and
# one answer.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('crash', conf => 'synchronous_commit = on');

my $request = q('{"amount": 1}');
my %steps = (
	'after the effect' => '',
	'after complete' => q(SELECT idem.complete(:'token', '{"payment": "lost"}');) . "\n",
);

my $n = 0;
for my $victim (qw(backend postmaster))
{
	for my $step (sort keys %steps)
	{
		my $key = 'key' . ++$n;
		my $session = $node->background_psql('postgres', on_error_stop => 0);
		$session->query_safe(claim_open($key) . $steps{$step});
		is($node->safe_psql('postgres', "SELECT state FROM idem.lookup('payments', '$key')"),
			'in_progress', "$victim killed $step: in flight before");
		crash($node, $victim, $session);

		is(effects($node, $key), 0, "$victim killed $step: no effect");
		is($node->safe_psql('postgres', "SELECT state FROM idem.lookup('payments', '$key')"),
			'absent', "$victim killed $step: the key is free");
		my $answer = $node->safe_psql('postgres', "SELECT pay('$key', $request)");
		is($node->safe_psql('postgres', "SELECT pay('$key', $request)"),
			$answer, "$victim killed $step: the retry's answer is the answer");
		is(effects($node, $key), 1, "$victim killed $step: one effect");
	}

	# In the middle of an erasure: all of it is undone, and the holder of the lease still holds it.
	$node->safe_psql('postgres', <<"SQL");
SELECT idem.complete(token, '{"private": 1}') FROM generate_series(1, 3) i,
  idem.claim('payments', '$victim ' || i, tenant => '$victim');
SELECT idem.advance('payments', '$victim', 7, '$victim');
SQL
	my $token = $node->safe_psql('postgres', "SELECT token
		FROM idem.claim('payments', '$victim held', lease => '1 hour')");
	my $eraser = $node->background_psql('postgres', on_error_stop => 0);
	$eraser->query_safe(<<"SQL");
BEGIN;
SELECT idem.erase_tenant('payments', '$victim'), idem.forget_tenant('payments', '$victim');
SELECT idem.revoke('payments', '$victim held'), idem.cancel('payments', '$victim late');
SQL
	crash($node, $victim, $eraser);
	is( $node->safe_psql('postgres', "SELECT count(r.response) FROM generate_series(1, 3) i,
		idem.lookup('payments', '$victim ' || i, '$victim') r"),
		3, "$victim killed while a tenant is erased and forgotten: the answers are there");
	is($node->safe_psql('postgres', "SELECT seq FROM idem.streams WHERE tenant = '$victim'"), 7,
		"$victim killed: and so is the stream");
	is($node->safe_psql('postgres', "SELECT idem.complete('$token', '1')"), 1,
		"$victim killed while a lease is revoked: it holds");
	is($node->safe_psql('postgres', "SELECT state FROM idem.lookup('payments', '$victim late')"), 'absent',
		"$victim killed while a key is cancelled: it is free");

	# Committed, but the client never saw the answer.
	my $key = 'key' . ++$n;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $answer = $session->query("SELECT pay('$key', $request)");
	crash($node, $victim, $session);
	is($node->safe_psql('postgres', "SELECT pay('$key', $request)"),
		$answer, "$victim killed after COMMIT: the first answer");
	is(effects($node, $key), 1, "$victim killed after COMMIT: one effect");
}

# A waiting claim that is cancelled, timed out or terminated leaves nothing behind.
my $holder = $node->background_psql('postgres');
$holder->query_safe(claim_open('waited for'));
for my $how ('pg_cancel_backend', 'pg_terminate_backend')
{
	my $waiter = waiter($node, 'Lock', "SELECT pay('waited for', $request)");
	$node->safe_psql('postgres', "SELECT $how($waiter->{pid})");
	ok( $node->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory'"),
		"$how: only the holder's lock is left");
	eval { $waiter->quit };
}
my ($status, undef, $stderr) = $node->psql('postgres',
	"SET statement_timeout = '2s'; SELECT pay('waited for', $request)");
like($stderr, qr/is in progress/, 'a wait ends with an answer before statement_timeout');
is(locks($node, 1), 1, 'a timed-out wait leaves no lock beside the holder\'s');
$holder->query_safe('ROLLBACK');
$holder->quit;
$node->safe_psql('postgres', "SELECT pay('waited for', $request)");
is(effects($node, 'waited for'), 1, 'after a cancelled wait the key can be claimed');
is(locks($node), 0, 'no key lock is left');

log_is_clean($node, killed => 1);
$node->stop;
done_testing();
