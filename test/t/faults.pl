# idem_test.crash_rate cuts the client off before or after the commit, and retries find one effect.
# The other faults are in test/sql/faults.sql.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('faults', conf => '');
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION charge(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
  INSERT INTO payment(key, amount) VALUES (request->>'key', 1) RETURNING jsonb_build_object('payment', id) $$;
SQL

# The statements of one delivery, by the calls that make it.
my %delivery = (
	'execute' => sub { "SELECT replayed FROM idem.execute('payments', '$_[0]', 'charge(jsonb)',
		'{\"key\": \"$_[0]\"}')" },
	'claim and complete' => sub { "SELECT pay('$_[0]', '{\"amount\": 1}')" },
	'try_claim, then complete' => sub { <<"SQL" },
BEGIN;
SELECT claimed, token FROM idem.try_claim('payments', '$_[0]', '{"amount": 1}', wait => '10 minutes') \\gset
\\if :claimed
INSERT INTO payment(key, amount) VALUES ('$_[0]', 1);
SELECT idem.complete(:'token', '{"payment": 1}');
\\endif
COMMIT;
SQL
	'once' => sub { "BEGIN; INSERT INTO payment(key, amount) SELECT '$_[0]', 1 WHERE idem.once('payments', '$_[0]');
		COMMIT" });

# The client loses its connection before or after the commit, and cannot tell which. It asks again
# until it has an answer. The lost session may still be about to end, and a retry waits for it.
my $crash = "LOAD 'idem_test';\nSET idem_test.crash_rate = 0.6;\n";
for my $calls (sort keys %delivery)
{
	my %lost = (before => 0, after => 0);
	my ($operations, $spoilt) = (0, 0);
	while ($operations < 60 && !($lost{before} && $lost{after}))
	{
		my $key = "$calls " . ++$operations;
		my ($status) = $node->psql('postgres', $crash . $delivery{$calls}->($key));
		$lost{ effects($node, $key) ? 'after' : 'before' }++ if $status == 2;
		my ($failed) = $node->psql('postgres', $delivery{$calls}->($key), on_error_stop => 1);
		$spoilt++ if $failed || effects($node, $key) != 1;
	}
	is($spoilt, 0, "$calls: one effect after the retry");
	ok($lost{before} && $lost{after}, "$calls: lost before the commit, and after it ($lost{before}, $lost{after})");
}

# Nothing happens to a replay, to a transaction that rolls back, or to one that is prepared.
$crash =~ s/0\.6/1/;
my @calm = $node->psql('postgres', $crash . $delivery{execute}->('execute 1'));
is($calm[1], 't', 'a replay is not disturbed');
my $rolled_back = 0;
for (1 .. 60)
{
	my @session = $node->psql('postgres', "BEGIN;\n$crash"
		. "SELECT idem.execute('payments', 'calm', 'charge(jsonb)', '{}');\nRESET idem_test.crash_rate;\nROLLBACK;\n"
		. "SELECT 'alive'");
	$rolled_back = $session[1] =~ /alive$/;
	last if $rolled_back;
}
ok($rolled_back, 'a crash after the commit needs a commit');

# Duplicates by the extended protocol, for a role that loads the library by itself.
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE app LOGIN SUPERUSER;
ALTER ROLE app SET session_preload_libraries = 'idem_test';
ALTER ROLE app SET idem_test.duplicate_rate = 1;
CREATE SEQUENCE delivery;
SQL
for my $protocol (qw(simple extended prepared))
{
	my $script = PostgreSQL::Test::Utils::tempdir . "/$protocol.sql";
	append_to_file($script, "SELECT nextval('delivery'), pay('$protocol', '{\"amount\": 1}')\n");
	my $before = $node->safe_psql('postgres', q{SELECT nextval('delivery')});
	command_ok([ 'pgbench', '-n', '-t', 1, '-M', $protocol, '-f', $script, '-U', 'app', $node->connstr('postgres') ],
		"$protocol protocol");
	is($node->safe_psql('postgres', q{SELECT nextval('delivery')}) - $before, 3, "$protocol protocol: two deliveries");
	is(effects($node, $protocol), 1, "$protocol protocol: one effect");
}

log_is_clean($node);
$node->stop;
done_testing();
