# idem.test_crash_rate cuts the client off before or after the commit, and retries find one effect.
# idem.test_duplicate_rate is in test/sql/execute.sql.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('faults', conf => '');

# The client loses its connection before or after the commit, and cannot tell which. It asks again
# until it has an answer.
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION charge(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
  INSERT INTO payment(key, amount) VALUES (request->>'key', 1) RETURNING jsonb_build_object('payment', id) $$;
SQL
my $charge = sub {
	my ($key, $prefix) = @_;
	return $node->psql('postgres', ($prefix // '')
		. "SELECT replayed FROM idem.execute('payments', '$key', 'charge(jsonb)', '{\"key\": \"$key\"}')");
};
my %lost = (before => 0, after => 0);
my $spoilt = 0;
my $operations = 0;
while ($operations < 30 && !($lost{before} && $lost{after}))
{
	my $paid = 'unknown ' . ++$operations;
	my ($lost, $nothing) = $charge->($paid, "SET idem.test_crash_rate = 1;\n");
	my $done = effects($node, $paid);
	$lost{ $done ? 'after' : 'before' }++;
	my ($failed, $replayed) = $charge->($paid);
	$spoilt++ if $lost != 2 || $nothing ne '' || $failed || $replayed ne ($done ? 't' : 'f') || effects($node, $paid) != 1;
}
is($spoilt, 0, 'idem.test_crash_rate: no answer, and one effect after the retry');
ok($lost{before} && $lost{after}, "idem.test_crash_rate: some before the commit, some after it ($lost{before}, $lost{after})");

# Nothing happens to a replay, to a transaction that rolls back, or to one that is prepared.
my @calm = $charge->('unknown 1', "SET idem.test_crash_rate = 1;\n");
is($calm[1], 't', 'idem.test_crash_rate: a replay is not disturbed');
my $rolled_back = 0;
for (1 .. 30)
{
	my @session = $node->psql('postgres', "BEGIN;\nSET idem.test_crash_rate = 1;\n"
		. "SELECT idem.execute('payments', 'calm', 'charge(jsonb)', '{}');\nRESET idem.test_crash_rate;\nROLLBACK;\nSELECT 'alive'");
	$rolled_back = $session[1] =~ /alive$/;
	last if $rolled_back;
}
ok($rolled_back, 'idem.test_crash_rate: a crash after the commit needs a commit');

log_is_clean($node);
$node->stop;
done_testing();
