# Shared by the tests of Citus: a coordinator and three workers with idem, set up by the files of
# examples/citus.
package CitusTest;

use strict;
use warnings;

use Exporter 'import';
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(citus_node citus_cluster run_example ask place);

# A server with Citus that is not in a cluster yet.
sub citus_node
{
	my ($name) = @_;
	my $settings = slurp_file('examples/citus/settings.conf') . <<'CONF';
citus.recover_2pc_interval = 1s
citus.defer_shard_delete_interval = 1s
citus.shard_count = 12
max_connections = 200
max_prepared_transactions = 200
max_worker_processes = 32
max_wal_senders = 20
max_replication_slots = 20
shared_buffers = 32MB
log_statement = none
CONF
	my $node = idem_node($name, bare => 1, conf => $settings, init => { allows_streaming => 'logical' });
	ask($node, 'CREATE EXTENSION citus');
	ask($node, 'ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding, citus')
	  if ask($node, q{SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'});
	configure($node, 'citus.local_hostname', $node->host);
	return $node;
}

# A coordinator with three workers, in this order.
sub citus_cluster
{
	my @node = map { citus_node($_) } qw(coordinator worker1 worker2 worker3);
	ask($node[0], 'SELECT citus_set_coordinator_host(' . place($node[0]) . ')');
	ask($node[0], 'SELECT citus_add_node(' . place($_) . ')') for @node[ 1 .. 3 ];
	run_example($node[0], 'schema');
	return @node;
}

sub run_example
{
	my ($node, $file, %variables) = @_;
	$node->command_ok([ 'psql', '-Xq', '-o', '/dev/null', (map { ('-v', "$_=$variables{$_}") } sort keys %variables),
		'-f', "examples/citus/$file.sql", 'postgres' ], "examples/citus/$file.sql");
	return;
}

sub ask { my ($node, $query) = @_; return $node->safe_psql('postgres', $query); }

# A node as the arguments of Citus' functions.
sub place { my ($node) = @_; return sprintf "'%s', %d", $node->host, $node->port; }

1;
