# A prepared transaction keeps its completed key in flight, through restarts, until it ends.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('prepare', conf => '');

sub prepare
{
	my ($key) = @_;
	$node->safe_psql('postgres', "BEGIN; SELECT pay('$key', '{\"amount\": 1}'); PREPARE TRANSACTION '$key'");
	return;
}

sub in_flight
{
	my ($key, $when) = @_;
	is($node->safe_psql('postgres', "SELECT state, holder_pid IS NULL FROM idem.lookup('payments', '$key')"),
		'in_progress|t', "$key $when: in flight, without a process");
	is($node->safe_psql('postgres', "SELECT outcome FROM idem.try_claim('payments', '$key')"),
		'in_progress', "$key $when: not to be claimed");
	my (undef, undef, $stderr) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT idem.claim('payments', '$key', wait => '10 ms')");
	like($stderr, qr/ID001.*Prepared transaction \d+ holds this key/s,
		"$key $when: ID001 names the prepared transaction");
	my ($query) = $stderr =~ /(SELECT gid FROM .*?)\./;
	is($node->safe_psql('postgres', $query), $key, "$key $when: and how to find what ends it");
	return;
}

prepare('committed');
prepare('rolled back');
in_flight($_, 'before the restart') for ('committed', 'rolled back');
$node->restart;
in_flight($_, 'after a restart') for ('committed', 'rolled back');
$node->stop('immediate');
$node->start;
in_flight($_, 'after a crash') for ('committed', 'rolled back');

$node->safe_psql('postgres', "COMMIT PREPARED 'committed'");
$node->safe_psql('postgres', "ROLLBACK PREPARED 'rolled back'");
is($node->safe_psql('postgres', "SELECT outcome, response
	FROM idem.try_claim('payments', 'committed', '{\"amount\": 1}')"),
	'completed|{"payment": 1}', 'committed: the answer is replayed');
is($node->safe_psql('postgres', "SELECT state FROM idem.lookup('payments', 'rolled back')"),
	'absent', 'rolled back: the key is free');
$node->safe_psql('postgres', "SELECT pay('rolled back', '{\"amount\": 1}')");
is(effects($node, 'rolled back'), 1, 'rolled back: one effect');
is(locks($node), 0, 'no key lock is left');

my (undef, undef, $stderr) = $node->psql('postgres',
	"\\set VERBOSITY verbose\n" . claim_open('open') . "PREPARE TRANSACTION 'open'");
like($stderr, qr/ID006/, 'a transaction with an open claim cannot be prepared');
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 0, 'the refused transaction is gone');
is(effects($node, 'open'), 0, 'the refused transaction has no effect');

log_is_clean($node);
$node->stop;
done_testing();
