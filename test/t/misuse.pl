# Clients that misuse their keys, each in a scope of its own, under load: idem.health() finds each of
# them, and a healthy client, which also retries, is not accused.
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
  FROM unnest('{forgotten,wandering,healthy}'::text[]) name;
SELECT idem.create_scope('late', ttl => '100 milliseconds', lease => '1 millisecond', wait => '0', owner => 'shop');
SELECT idem.create_scope('stale', ttl => '100 milliseconds', reject_stale_keys => true, owner => 'shop');
CREATE FUNCTION try(scope text, key text, request jsonb DEFAULT NULL, tenant text DEFAULT NULL) RETURNS text
  LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result := idem.try_claim(scope, key, request, tenant);
BEGIN
  IF c.claimed THEN PERFORM idem.complete(c.token); END IF;
  RETURN c.outcome;
END $$;
SQL

# The scope, and what its clients do again and again.
my %client = (
	# The retry comes when the record has expired.
	late => "SELECT gen_random_uuid() AS key \\gset\nSELECT try('late', ':key');\n\\sleep 150 ms\n"
		. "SELECT try('late', ':key');",
	stale => "SELECT idem.new_key() AS key \\gset\nSELECT try('stale', ':key');\n\\sleep 150 ms\n"
		. "SELECT try('stale', ':key');",
	# The retry has lost its tenant, or has that of another connection.
	forgotten => "SELECT gen_random_uuid() AS key \\gset\nSELECT try('forgotten', ':key', tenant => 'north');\n"
		. "SELECT try('forgotten', ':key');",
	wandering => "SELECT gen_random_uuid() AS key \\gset\nSELECT try('wandering', ':key', tenant => 'north');\n"
		. "SELECT try('wandering', ':key', tenant => 'south');",
	# Ten retries of each operation, and orders with the same numbers for every tenant.
	healthy => "\\set order random(1, 50)\n"
	  . "SELECT gen_random_uuid() AS key \\gset\n"
	  . ("SELECT try('healthy', ':key', '{\"amount\": 1}', 'north');\n" x 11)
	  . "SELECT try('healthy', 'order-' || :order, tenant => 'north');\nSELECT try('healthy', 'order-' || :order);",
);

my %finding = (
	late => [ 'retention',
		qr/callers of scope "late" have come too late \d\d+ times: \d\d+ claims had a key whose record had expired/ ],
	stale => [ 'retention', qr/ and \d\d+ were refused with a stale key/ ],
	forgotten => [ 'tenants', qr/at least \d\d+ keys both with and without a tenant/ ],
	wandering => [ 'tenants', qr/at least \d\d+ keys with several tenants/ ],
);

# What health() says about a scope, to a role that may not use it.
sub finding
{
	my ($scope, $column) = @_;
	my $check = $finding{$scope}[0];
	return $node->safe_psql('postgres', "SELECT $column FROM idem.health() WHERE scope = '$scope'
		AND check_name = '$check'"
		  . " AND detail !~ 'a retry can arrive'", connstr => $node->connstr('postgres') . ' user=watcher');
}

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
	like(sql("SET ROLE shop; SELECT string_agg(detail, ' ') FROM idem.health() WHERE scope = '$scope'"),
		$finding{$scope}[1], "$scope: the owner of the scope sees it too");
}
unlike(join('', map { finding($_, 'detail || hint') } keys %finding), qr/order-|north|south/,
	'health() tells no key and no tenant');

my $load = load($node, $client{healthy}, '-c', 2);
$node->poll_query_until('postgres', "SELECT replays > 5000 FROM idem.stats WHERE scope = 'healthy'") or die 'no load';
$load->kill_kill;
is(sql("SELECT string_agg(check_name, ',') FROM idem.health() WHERE scope = 'healthy'"), '',
	'healthy: nothing is found');

# Following the hints -----------------------------------------------------------------------------

sub hint_statements
{
	return finding($_[0], 'hint') =~ /(SELECT idem\.(?:alter_scope|stats_reset)\((?:[^()]|\([^()]*\))*\))/g;
}

for my $scope (sort keys %finding)
{
	my @statements = grep { !/\.\.\./ } hint_statements($scope);
	# The remedy would give live keys another identity, or refuse calls that pass, so that no statement
	# of a hint may apply it.
	if ($scope =~ /^(?:wandering|forgotten)$/) { is("@statements", '', "$scope: the hint has no statement"); next; }
	ok(scalar @statements, "$scope: the hint has a statement");
	sql($_) for @statements;
	is(finding($scope, 'count(*)'), 0, "$scope: which repairs it");
}

log_is_clean($node);
$node->stop;
done_testing();
