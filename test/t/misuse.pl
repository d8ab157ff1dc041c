# Clients that misuse their keys, each in a scope of its own, under load: idem.health() finds each of
# them, idem.report() names it, and a healthy client, which also retries, is not accused.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The worker does not purge, so that a key that comes too late meets its expired record.
my $conf = "shared_preload_libraries = 'idem'\nidem.purge_naptime = '1h'";
my $node = idem_node('misuse', conf => $conf);

sub sql { return $node->safe_psql('postgres', shift); }

sql(<<'SQL');
CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
CREATE ROLE shop LOGIN;
SELECT idem.create_scope(name, owner => 'shop')
  FROM unnest('{constant,rotated,forgotten,wandering,healthy}'::text[]) name;
SELECT idem.create_scope('late', ttl => '100 milliseconds', lease => '1 millisecond', wait => '0', owner => 'shop');
SELECT idem.create_scope('stale', ttl => '100 milliseconds', reject_stale_keys => true, owner => 'shop');
CREATE FUNCTION try(scope text, key text, request jsonb DEFAULT NULL, tenant text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result := idem.try_claim(scope, key, request, tenant);
BEGIN
  IF c.claimed THEN PERFORM idem.complete(c.token); END IF;
  RETURN c.outcome;
END $$;
SQL

# The scope, and what its clients do again and again.
my %client = (
	# All operations but the first are swallowed.
	constant => "SELECT try('constant', 'create');",
	# The request contains the time at which it was sent.
	rotated => q{SELECT try('rotated', 'order-' || :client_id, jsonb_build_object('amount', 1, 'sent', clock_timestamp()));},
	# The retry comes when the record has expired.
	late => "SELECT gen_random_uuid() AS key \\gset\nSELECT try('late', ':key');\n\\sleep 150 ms\nSELECT try('late', ':key');",
	stale => "SELECT idem.new_key() AS key \\gset\nSELECT try('stale', ':key');\n\\sleep 150 ms\nSELECT try('stale', ':key');",
	# The retry has lost its tenant, or has that of another connection.
	forgotten => "SELECT gen_random_uuid() AS key \\gset\nSELECT try('forgotten', ':key', tenant => 'north');\nSELECT try('forgotten', ':key');",
	wandering => "SELECT gen_random_uuid() AS key \\gset\nSELECT try('wandering', ':key', tenant => 'north');\nSELECT try('wandering', ':key', tenant => 'south');",
	# Ten retries of each operation, and orders with the same numbers for every tenant.
	healthy => "\\set order random(1, 50)\n"
	  . "SELECT gen_random_uuid() AS key \\gset\n"
	  . ("SELECT try('healthy', ':key', '{\"amount\": 1}', 'north');\n" x 11)
	  . "SELECT try('healthy', 'order-' || :order, tenant => 'north');\nSELECT try('healthy', 'order-' || :order);",
);

my %finding = (
	constant => [ 'hot keys', qr/a key was replayed \d{4,} times/ ],
	rotated => [ 'hot keys', qr/a key was used \d{3,} times with a different request/ ],
	late => [ 'retention', qr/callers of scope "late" have come too late \d\d+ times: \d\d+ claims had a key whose record had expired/ ],
	stale => [ 'retention', qr/ and \d\d+ were refused with a stale key/ ],
	forgotten => [ 'tenants', qr/at least \d\d+ keys both with and without a tenant/ ],
	wandering => [ 'tenants', qr/at least \d\d+ keys with several tenants/ ],
);

# What health() says about a scope, to a role that may not use it.
sub finding
{
	my ($scope, $column) = @_;
	my $check = $finding{$scope}[0];
	return $node->safe_psql('postgres', "SELECT $column FROM idem.health() WHERE scope = '$scope' AND check_name = '$check'"
		  . " AND detail !~ 'a retry can arrive'", connstr => $node->connstr('postgres') . ' user=watcher');
}

sub report { return sql("SET ROLE shop; SELECT * FROM idem.report('$_[0]')"); }

# Under load --------------------------------------------------------------------------------------

for my $scope (sort keys %finding)
{
	my $load = load($node, $client{$scope}, '-c', 2);
	my $check = $finding{$scope}[0];
	ok( $node->poll_query_until('postgres', "SELECT count(*) > 0 FROM idem.health()
		  WHERE scope = '$scope' AND check_name = '$check' AND status = 'warn' AND detail !~ 'a retry can arrive'"),
		"$scope: found by the check \"$check\"");
	$load->kill_kill;
	like(finding($scope, 'detail'), $finding{$scope}[1], "$scope: with what happened");
	like(report($scope), $finding{$scope}[1], "$scope: the report says it too");
}
like(report('constant'), qr/^Hot keys    key "create", \d{4,} replays, from /m, 'constant: the report names the key to the owner of the scope');
like(report('rotated'), qr/^Hot keys    key "order-[01]",.* \d{2,} conflicts, from /m, 'rotated: likewise');
unlike(join('', map { finding($_, 'detail || hint') } keys %finding), qr/create\b(?!_| a scope)|order-|north|south/, 'health() tells no key and no tenant');

my $load = load($node, $client{healthy}, '-c', 2);
$node->poll_query_until('postgres', "SELECT replays > 5000 FROM idem.stats WHERE scope = 'healthy'") or die 'no load';
$load->kill_kill;
is(sql("SELECT string_agg(check_name, ',') FROM idem.health() WHERE scope = 'healthy'"), '', 'healthy: nothing is found');
unlike(report('healthy'), qr/Hot keys    key "[0-9a-f]{8}-/, 'healthy: no retried key is hot');

# Following the hints -----------------------------------------------------------------------------

sub hint_statements { return finding($_[0], 'hint') =~ /(SELECT idem\.(?:alter_scope|stats_reset)\((?:[^()]|\([^()]*\))*\))/g; }

for my $scope (sort keys %finding)
{
	my @statements = grep { !/\.\.\./ } hint_statements($scope);
	# Its remedy would give live keys another identity, so no statement of a hint may apply it.
	if ($scope eq 'wandering') { is("@statements", '', "$scope: the hint has no statement"); next; }
	ok(scalar @statements, "$scope: the hint has a statement");
	sql($_) for @statements;
	is(finding($scope, 'count(*)'), 0, "$scope: which repairs it");
}
is(sql("SELECT try('constant', 'create', '{\"amount\": 2}')"), 'conflict', 'constant: the next operation with the key is refused, not swallowed');

# The view ----------------------------------------------------------------------------------------

my $columns = 'scope, tenant, key, replays, conflicts, first_seen <= last_seen, created_at <= first_seen';
sql(<<'SQL');
SELECT idem.stats_reset();
SELECT try('healthy', 'exact', tenant => 'north') FROM generate_series(1, 101);
SELECT try('healthy', 'exact', '{"amount": 1}', 'north') FROM generate_series(1, 3);
SQL
is(sql("SELECT $columns FROM idem.hot_keys"), 'healthy|north|exact|100|3|t|t', 'the first replays, and all conflicts, are counted');
is( $node->safe_psql('postgres', "SELECT $columns FROM idem.hot_keys", connstr => $node->connstr('postgres') . ' user=watcher'),
	'healthy|||100|3|t|t', 'a monitoring role sees no key');
is(sql("CREATE ROLE stranger; SET ROLE stranger; SELECT count(*) FROM idem.hot_keys"), 0, 'another role sees nothing');
is(sql("SET ROLE shop; SELECT key FROM idem.hot_keys"), 'exact', 'the owner of the scope sees the key');
sql("SELECT idem.forget('healthy', 'exact', 'north')");
is(sql("SELECT $columns FROM idem.hot_keys"), 'healthy|||100|3|t|', 'without its record, a key has no name');
sql("SELECT try('healthy', 'exact', tenant => 'north') FROM generate_series(1, 1000)");
is(sql("SELECT replays BETWEEN 1000 AND 2000 AND (replays - 1000) % 16 = 0 FROM idem.hot_keys"), 't', 'later ones are a sample');
sql("BEGIN; SELECT idem.once_each('healthy', ARRAY['a', 'b']); COMMIT; SELECT idem.stats_reset('healthy'); SELECT idem.once_each('healthy', ARRAY['a', 'b', 'a', 'c'])");
is(sql("SELECT key, replays FROM idem.hot_keys ORDER BY key"), "a|1\nb|1", 'messages that come again are replays');
sql("SELECT idem.create_scope('gone'); SELECT try('gone', 'x') FROM generate_series(1, 5); SELECT idem.drop_scope('gone')");
is(sql("SELECT count(*) FROM idem.hot_keys WHERE scope = 'gone'"), 0, 'those of a dropped scope are gone');
$node->restart;
is(sql('SELECT count(*) FROM idem.hot_keys'), 0, 'after a restart, the view is empty');
is(sql("SELECT replays FROM idem.stats WHERE scope = 'healthy'"), 2, 'and the statistics are not');

# Over days, with a clock of the test's own --------------------------------------------------------

$node->stop;
SKIP:
{
	my $set_clock = start_with_clock($node) or skip 'no C compiler', 8;
	my $session = $node->background_psql('postgres');
	$session->query_safe("SELECT idem.stats_reset()");
	my $minute = 0;
	# The outcome of one claim per minute.
	my $poll = sub { $set_clock->(60 * ++$minute); return $session->query_safe("SELECT try('payments', 'order-slow')"); };
	my $findings = sub { return $session->query_safe("SELECT string_agg(check_name, ',' ORDER BY check_name) FROM idem.findings() WHERE scope = 'payments'"); };
	my $counts = sub { return $session->query_safe("SELECT replays FROM idem.hot_keys WHERE key = 'order-slow'"); };

	$poll->() for 1 .. 1201;
	cmp_ok($counts->(), '>=', 1000, 'a slow poller: one claim per minute, for twenty hours');
	is($findings->(), '', 'is not accused');
	# Of the last 200, one at least is in the sample.
	$poll->() for 1202 .. 1650;
	is($findings->(), 'retention', 'but of polling for longer than the record lives');
	like($session->query_safe("SELECT detail FROM idem.findings() WHERE scope = 'payments'"),
		qr/^Scope "payments" remembers keys for \S+, but a key was replayed from/, 'with the TTL');
	$session->query_safe("SELECT try('payments', 'order-often') FROM generate_series(1, 20000)");
	is($findings->(), 'hot keys,retention', 'a key that is replayed far too often');
	$set_clock->(60 * $minute + 86390);
	like($findings->(), qr/hot keys/, 'is a finding for a day');
	$set_clock->(60 * $minute + 86500);
	unlike($findings->() // '', qr/hot keys/, 'and no longer, once the client is repaired');
	$session->quit;
}

log_is_clean($node);
$node->stop;
done_testing();
