# Three nodes behind a PL/Proxy router (examples/scale-out). A retry storm through it while clients
# lose their connections and one node is killed and restarted: one effect and one answer per key,
# over all nodes. A fourth node is added during the storm, and a fifth by promoting a standby of the
# first: no live key is lost, none runs on two nodes. Without idem in the procedure the same storm
# pays twice.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Storm;
use Test::More;

chomp(my $share = `pg_config --sharedir`);
plan skip_all => 'PL/Proxy is not installed' unless -e "$share/extension/plproxy.control";

my ($clients, $operations) = (12, 3000);
my $conf = "max_connections = 60\nshared_buffers = 16MB\nlog_statement = none\n";

sub scale_out
{
	my ($node, $file, %variables) = @_;
	$node->command_ok([ 'psql', '-Xq', (map { ('-v', "$_=$variables{$_}") } sort keys %variables), '-f',
			"examples/scale-out/$file.sql", 'postgres' ], $node->name . " is a $file");
	return;
}

# Slot i begins on node i % 3, as router.sql has it.
sub new_node
{
	my ($n, @slots) = @_;
	my $node = idem_node("node$n", bare => 1, conf => $conf, init => { allows_streaming => 1 });
	scale_out($node, 'node', slots => join(',', @slots));
	return $node;
}

my @node = map { my $n = $_; new_node($n, grep { $_ % 3 == $n } 0 .. 255) } 0 .. 2;
my $router = idem_node('router', bare => 1, conf => $conf);
scale_out($router, 'router', map { ("node$_", $node[$_]->connstr('postgres')) } 0 .. 2);
$router->safe_psql('postgres', <<'SQL');
CREATE FUNCTION storm(key text, request jsonb) RETURNS jsonb LANGUAGE sql AS $$
  SELECT pay('tenant ' || right(key, 1), key, request) $$;
SQL

sub ask { my ($query) = @_; return $router->safe_psql('postgres', $query); }
sub slots { return 'ARRAY[' . join(',', @_) . ']'; }
sub payments { return map { $_->safe_psql('postgres', 'SELECT count(*) FROM payment') } @node; }
sub total { my $sum = 0; $sum += $_ for @_; return $sum; }
sub add_node { my ($n, $node) = @_;
	return ask("ALTER SERVER nodes OPTIONS (ADD p$n \$\$" . $node->connstr('postgres') . '$$)'); }

sub blow
{
	my ($kills) = @_;
	$_->safe_psql('postgres', 'TRUNCATE payment, idem.record') for @node;
	return Storm->new([ 'storm', $clients, $operations, 3, $kills ], [$router]);
}

sub in_mid_storm
{
	my ($node) = @_;
	$node->poll_query_until('postgres', 'SELECT count(*) >= 50 FROM payment') or die 'no storm';
	return;
}

# The effects on all nodes, and the number of distinct keys among them.
sub count_effects
{
	my @keys = map { split /\n/, $_->safe_psql('postgres', q{SELECT tenant || ' ' || key FROM payment}) } @node;
	my %distinct = map { $_ => 1 } @keys;
	return (scalar @keys, scalar keys %distinct);
}

sub everything_once
{
	my ($name, $storm) = @_;
	my %saw = $storm->counts;
	is($saw{differing}, 0, "$name: no key had two answers");
	is(join('|', count_effects()), "$operations|$operations", "$name: one effect a key over all nodes");
	$storm->load_answers($router);
	is(ask(q{SELECT count(*) FROM answer WHERE storm(key, '{"amount": 10}') IS DISTINCT FROM answer}), 0,
		"$name: a late retry of any key gets its answer");
	is(total(payments()), $operations, "$name: and has no effect");
	is(total(map { locks($_) } @node), 0, "$name: no lock is left");
	return %saw;
}

# 1. One node is killed and restarted, while clients lose their connections to the router.
my $storm = blow(50);
in_mid_storm($node[1]);
restart_killed($node[1]);
my %saw = everything_once('a node killed', $storm);
cmp_ok($saw{lost}, '>=', 1, 'a node killed: answers were lost');
is(scalar(grep { $_ > $operations / 6 } payments()), 3, 'a node killed: the work is spread over three nodes');

# The errors of a node are the client's errors.
my (undef, undef, $stderr) = $router->psql('postgres', "\\set VERBOSITY verbose\n"
	. "SELECT storm('operation-1', '{\"amount\": 11}')");
like($stderr, qr/ID002/, 'another request under the same key conflicts, through the router');

# 2. A fourth node, empty, takes 64 slots during the storm. Earlier answers are on other nodes,
# which the router asks first.
push @node, new_node(3);
my @moving = grep { $_ % 4 == 3 } 0 .. 255;
$storm = blow(0);
in_mid_storm($node[0]);
add_node(3, $node[3]);
ask('SELECT shard.move(' . slots(@moving) . ', 3)');
$_->safe_psql('postgres', 'SELECT shard.give_up(' . slots(@moving) . ')') for @node[0 .. 2];
$node[3]->safe_psql('postgres', 'SELECT shard.take(' . slots(@moving) . ')');
everything_once('a node added', $storm);
cmp_ok((payments())[3], '>=', 1, 'a node added: it runs new operations');
my $remembered = total(
	map { $_->safe_psql('postgres', 'SELECT shard.remembered(' . slots(@moving) . ')') } @node[0 .. 2]);
cmp_ok($remembered, '>=', 1, 'a node added: other nodes still answer for their keys');
(undef, undef, $stderr) = $router->psql('postgres', 'SELECT shard.move(' . slots(3) . ', 0)');
like($stderr, qr/slots are still being moved/, 'a node added: its slots cannot move before their keys have expired');

# A router that has not seen the move is refused and does no harm.
my $stale = ask(q{SELECT key FROM generate_series(1, 10000) i, format('stale %s', i) key
	WHERE shard.slot_of('t', key) = 3 LIMIT 1});
(undef, undef, $stderr) = $node[0]->psql('postgres', "\\set VERBOSITY verbose\n"
	. "SELECT pay('t', '$stale', '{\"amount\": 1}')");
like($stderr, qr/57S01/, 'a node added: the old node begins nothing in the moved slots');

# After the keys' TTL the router no longer asks the old nodes.
$_->safe_psql('postgres', q{UPDATE idem.record SET expires = now() - interval '1 s'}) for @node;
is(total(map { $_->safe_psql('postgres', 'SELECT shard.remembered(' . slots(@moving) . ')') } @node[0 .. 2]), 0,
	'a node added: after the TTL no old key remains');
ask('SELECT shard.settle(' . slots(@moving) . ')');

# 3. A fifth node, from a standby of the first: half of the first's slots, with their records and
# rows.
$node[0]->safe_psql('postgres', 'VACUUM');
$node[0]->backup('base');
my $clone = PostgreSQL::Test::Cluster->new('node4');
$clone->init_from_backup($node[0], 'base', has_streaming => 1);
$clone->start;
my @half = grep { $_ % 6 == 0 && $_ % 4 != 3 } 0 .. 255;
$storm = blow(0);
in_mid_storm($node[0]);
# A released operation of slot 0 would be on both nodes, and each would run it. That of slot 9, which stays,
# must not be on the new node.
sub release_in
{
	my ($slot) = @_;
	return $node[0]->safe_psql('postgres', qq{SELECT format('released %s', i) AS key FROM generate_series(1, 10000) i
		WHERE shard.slot_of('t', format('released %s', i)) = $slot LIMIT 1 \\gset
		SELECT token FROM idem.claim('payments', :'key', '{}', 't', lease => '1 hour') \\gset
		SELECT idem.release(:'token')});
}
release_in(0);
$node[0]->safe_psql('postgres', 'SELECT shard.give_up(' . slots(@half) . ')');
is($node[0]->safe_psql('postgres', 'SELECT shard.in_flight(' . slots(@half) . ')'), 1,
	'a node split: a released operation has to be finished before');
$node[0]->safe_psql('postgres', q{SELECT idem.complete(token) FROM idem.take('payments')});
is($node[0]->safe_psql('postgres', 'SELECT shard.in_flight(' . slots(@half) . ')'), 0,
	'a node split: no operation is open');
release_in(9);
$node[0]->wait_for_catchup($clone);
$clone->promote;
$clone->safe_psql('postgres', q{DELETE FROM idem.record WHERE state = 'p'});
$clone->safe_psql('postgres', 'TRUNCATE shard.slot; SELECT shard.take(' . slots(@half) . ')');
is($_->safe_psql('postgres', q{SELECT count(token) FROM idem.take('payments', lease => '1 hour')}),
	$_ == $clone ? 0 : 1, 'a node split: ' . $_->name . ' finishes its own operations') for $clone, $node[0];
my $copied = $clone->safe_psql('postgres', 'SELECT shard.remembered(' . slots(@half) . ')');
# From here on it is a node like the others: the rows of slots that are not its own are deleted.
my $slot = 'shard.slot_of(tenant, key)';
$clone->safe_psql('postgres', "DELETE FROM payment WHERE $slot <> ALL (" . slots(@half) . ')');
$node[0]->safe_psql('postgres', "DELETE FROM payment WHERE $slot = ANY (" . slots(@half) . ')');
push @node, $clone;
add_node(4, $clone);
ask('SELECT shard.split(' . slots(@half) . ', 4)');
everything_once('a node split', $storm);
cmp_ok($copied, '>=', 1, 'a node split: live keys came with the copy');
cmp_ok((payments())[4], '>', $copied, 'a node split: new keys run there');

# 4. The same procedure without idem.
$_->safe_psql('postgres', <<'SQL') for @node;
CREATE OR REPLACE FUNCTION pay(tenant text, key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE payment_id bigint;
BEGIN
  PERFORM shard.require_slot(tenant, key);
  INSERT INTO payment(tenant, key, amount) VALUES (tenant, key, (request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  RETURN jsonb_build_object('payment', payment_id);
END $$;
SQL
$storm = blow(50);
in_mid_storm($node[1]);
restart_killed($node[1]);
%saw = $storm->counts;
my ($effects, $distinct) = count_effects();
cmp_ok($saw{differing}, '>', 1000, 'unprotected: answers differ');
cmp_ok($effects - $distinct, '>', 1000, 'unprotected: thousands of duplicates');

# 5. What a router must not do (docs/scale-out.md): claim locally, and make the effect through a
# foreign foreign table. The node commits it before this transaction does, and this one may still
# fail.
ask('CREATE EXTENSION postgres_fdw; SELECT idem.create_scope($$foreign$$)');
ask('CREATE SERVER node0 FOREIGN DATA WRAPPER postgres_fdw OPTIONS (' .
	join(', ', map { my ($name, $value) = split /=/; $value =~ tr/'//d; "$name '$value'" } split / /,
		$node[0]->connstr('postgres')) . ')');
ask('CREATE USER MAPPING FOR public SERVER node0; IMPORT FOREIGN SCHEMA public LIMIT TO (payment)
	FROM SERVER node0 INTO public');
(undef, undef, $stderr) = $router->psql('postgres', q{\set VERBOSITY verbose
	BEGIN;
	SELECT claimed FROM idem.claim('foreign', 'k');
	INSERT INTO payment(id, tenant, key) VALUES (-1, 'foreign', 'k');
	COMMIT;});
like($stderr, qr/ID006/, 'a foreign effect: the claim is not completed, the transaction fails');
# A deferred trigger, with which the SQL edition finds the open claim, fires before the node commits.
is($node[0]->safe_psql('postgres', q{SELECT count(*) FROM payment WHERE tenant = 'foreign'}), managed_edition() ? 0 : 1,
	'a foreign effect: it remains, and a retry would repeat it');

log_is_clean($_) for ($router, @node);
$_->stop for ($router, @node);
done_testing();
