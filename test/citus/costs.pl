# What an operation costs on a Citus cluster: the CPU time of all servers and of the client, of the effect
# alone, of pay() and of its replay, sent to the worker that has the shard, and to the coordinator, which
# delegates it. Beside it the same on one server without Citus. All servers share this machine, so compare the
# columns of one run only.
#
# OPERATIONS overrides the number of operations per measurement.
use strict;
use warnings;

use CitusTest;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($operations, $clients, $rounds) = ($ENV{OPERATIONS} || 6000, 4, 3);

my @node = citus_cluster();
my ($coordinator, $worker) = @node;

# The effect alone, distributed like the effect with idem, and both on a server without Citus.
my $effect = <<'SQL';
CREATE TABLE app.bare (tenant_id bigint, id uuid DEFAULT gen_random_uuid(), key text, amount numeric,
  PRIMARY KEY (tenant_id, id));
CREATE FUNCTION app.pay_bare(tenant_id bigint, key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE payment_id uuid;
BEGIN
  INSERT INTO app.bare(tenant_id, key, amount) VALUES (tenant_id, key, (request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  RETURN jsonb_build_object('payment', payment_id);
END $$;
SQL
ask($coordinator, $effect . <<'SQL');
SELECT create_distributed_table('app.bare', 'tenant_id', colocate_with => 'app.payment');
SELECT create_distributed_function('app.pay_bare(bigint, text, jsonb)', 'tenant_id', colocate_with => 'app.payment',
  force_delegation => true);
SQL
my $pay = ask($coordinator, q{SELECT pg_get_functiondef('app.pay'::regproc)}) =~ s/PERFORM app\.use_shard\([^;]*;//r;
my $alone = idem_node('alone', bare => 1, conf => "shared_preload_libraries = 'idem'\nmax_connections = 200\n"
	. "shared_buffers = 32MB\nlog_statement = none\n");
ask($alone, "CREATE EXTENSION idem;
	SELECT idem.create_scope('payments', tenant_required => true, request_required => true); CREATE SCHEMA app;
	CREATE TABLE app.payment (tenant_id bigint, id uuid DEFAULT gen_random_uuid(), key text, amount numeric,
	PRIMARY KEY (tenant_id, id));
	CREATE TRIGGER claim_required BEFORE INSERT OR UPDATE OR DELETE ON app.payment FOR EACH ROW
	EXECUTE FUNCTION idem.require_claim('payments');
	$effect; $pay");

# A tenant whose shard is on the worker.
my $tenant = ask($coordinator, sprintf q{SELECT min(i) FROM generate_series(1, 100) i, citus_shards
	WHERE shardid = get_shard_id_for_distribution_column('app.payment', i) AND nodeport = %d}, $worker->port);

# The CPU time of these servers so far, in seconds: of the running processes, and of those that ended.
sub cpu
{
	my $ticks = 0;
	for my $server (@_)
	{
		my $postmaster = (split /\n/, slurp_file($server->data_dir . '/postmaster.pid'))[0];
		for my $pid ($postmaster, split ' ', `pgrep -P $postmaster`)
		{
			open my $stat, '<', "/proc/$pid/stat" or next;
			my @field = split ' ', <$stat> =~ s/.*\) //r;
			$ticks += $field[11] + $field[12];
			$ticks += $field[13] + $field[14] if $pid == $postmaster;
		}
	}
	return $ticks / 100;
}

my $script = PostgreSQL::Test::Utils::tempdir() . '/call.sql';

# CPU seconds of servers and client for so many operations.
sub run_once
{
	my ($server, $transactions) = @_;
	my ($servers, $client) = (cpu(@node, $alone), (times)[2] + (times)[3]);
	my $each = $transactions / $clients;
	system('pgbench', '-n', '-M', 'prepared', '-c', $clients, '-t', $each, '-f', $script, $server->connstr('postgres'))
		== 0 or die 'pgbench';
	select undef, undef, undef, 0.2;    # the last backends have ended
	return (cpu(@node, $alone) - $servers, (times)[2] + (times)[3] - $client);
}

# A short run is subtracted from the long one, to exclude the cost of connecting and planning.
sub measure
{
	my ($server, $call) = @_;
	unlink $script;
	append_to_file($script, $call);
	my @short = run_once($server, $clients * 50);
	my @long = run_once($server, $clients * 50 + $operations);
	return map { 1e6 * ($long[$_] - $short[$_]) / $operations } 0, 1;
}

my $arguments = qq{$tenant, :key::bigint::text, '{"amount": 10.50, "currency": "EUR", "to": "account 77"}'};
my @operation = (
	[ 'effect', "\\set key random(1, 1000000000000000)\nSELECT app.pay_bare($arguments);\n" ],
	[ 'pay()', "\\set key random(1, 1000000000000000)\nSELECT app.pay($arguments);\n" ],
	[ 'replay', "\\set key random(1, 100)\nSELECT app.pay($arguments);\n" ]);
my @setup = ([ 'one server, no Citus', $alone ], [ 'Citus, to the worker', $worker ],
	[ 'Citus, delegated', $coordinator ]);

my %figures;
for my $round (1 .. $rounds)
{
	for my $operation (@operation)
	{
		push @{ $figures{ $_->[0] }{ $operation->[0] } }, [ measure($_->[1], $operation->[1]) ] for @setup;
	}
}

sub median { my ($column, $list) = @_; return (sort { $a <=> $b } map { $_->[$column] } @$list)[ @$list / 2 ]; }

diag("CPU microseconds per operation, medians of $rounds runs of $operations operations, $clients clients");
diag(sprintf '%-24s %-8s %8s %8s %8s', qw(setup operation servers client), 'ratio');
my $base = median(0, $figures{ $setup[1][0] }{effect});
for my $setup (map { $_->[0] } @setup)
{
	for my $operation (map { $_->[0] } @operation)
	{
		my $list = $figures{$setup}{$operation};
		diag(sprintf '%-24s %-8s %8.0f %8.0f %8.2f', $setup, $operation, median(0, $list), median(1, $list),
			median(0, $list) / $base);
		cmp_ok(median(0, $list), '>', 0, "$setup: $operation is measured");
	}
}
my $home = ask($worker, "SELECT count(*) FROM app.payment_"
	. ask($coordinator, "SELECT get_shard_id_for_distribution_column('app.payment', $tenant)"));
cmp_ok($home, '>=', 2 * $rounds * $operations, 'all effects are on the worker');

log_is_clean($_) for (@node, $alone);
$_->stop for (@node, $alone);
done_testing();
