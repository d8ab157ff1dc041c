# clients/node: the package's own tests on a server and behind proxies that cut connections, its
# types, and a retry storm on the same endpoint with and without it.
use strict;
use warnings;

use CutProxy;
use IdemTest;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no Node with pg here; tools/setup examples installs them'
  if system(q(cd clients/node && node -e "require('pg')" >/dev/null 2>&1)) != 0;

my $node = idem_node('client_node', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
max_connections = 100
listen_addresses = '127.0.0.1'
CONF
$node->safe_psql('postgres', slurp_file('clients/node/test/schema.sql'));
@ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ('127.0.0.1', $node->port, 'postgres', $node->safe_psql('postgres', 'SELECT current_user'));

my @points = qw(connecting effect terminated answer);
sub proxies { my ($times) = @_; return map { CutProxy->new($node, at => $_, times => $times) } @points; }

# The package's own tests ---------------------------------------------------------------------------

# Each test of Node is a subtest here.
sub passes
{
	my ($file) = @_;
	my ($tap, $log) = ('', '');
	my $passed = IPC::Run::run([ qw(node --test --test-reporter=tap), "clients/node/test/$file" ], '>', \$tap, '2>', \$log);
	my @results = $tap =~ /^((?:not )?ok \d+ - .*)$/mg;
	cmp_ok(scalar @results, '>', 0, "$file: runs");
	for my $result (@results)
	{
		my ($failed, $name, $reason) = $result =~ /^(not )?ok \d+ - (.*?)(?: # SKIP(.*))?$/;
	  SKIP: { skip "$file: $name:$reason", 1 if defined $reason; ok(!$failed, "$file: $name"); }
	}
	ok($passed, "$file: passes") or diag $tap, $log;
	return;
}

my @proxies = proxies(2);
{
	local $ENV{IDEM_TEST_PROXIES} = join ' ', map { "$points[$_]=" . $proxies[$_]->port } 0 .. $#points;
	passes('core.test.js');
}
is_deeply([ map { $_->cuts } @proxies ], [ (2) x @points ], 'each proxy has cut two connections');
$_->stop for @proxies;
passes($_) for qw(http.test.js readme.test.js);
is(locks($node), 0, 'no key lock is left');

# Types ---------------------------------------------------------------------------------------------

# That of npm, or that of the distribution.
my ($tsc) = grep { system("$_ --version >/dev/null 2>&1") == 0 } qw(node_modules/.bin/tsc tsc);
my $typed = !grep { !-d "node_modules/$_" } qw(@types/node @types/pg @types/express fastify);
SKIP:
{
	skip 'no TypeScript or no types of pg, Express and Fastify here', 1 unless $tsc && $typed;
	my ($errors) = run_command([ $tsc, '--project', 'clients/node/test' ]);
	is($errors, '', 'the types fit their use');
}

# A retry storm ---------------------------------------------------------------------------------------

my ($operations, $sends, $cuts) = (500, 3, 25);

# Returns what it counted, and the duplicates.
sub storm
{
	my ($file) = @_;
	$node->safe_psql('postgres', 'TRUNCATE payment, ledger');
	my @through = proxies($cuts);
	my ($out, $err) = ('', '');
	local $ENV{NODE_ENV} = 'test';    # Express does not print errors
	IPC::Run::run([ 'node', 'clients/node/test/storm.js', "./$file", $operations, $sends, map { $_->port } @through ], '>', \$out, '2>', \$err);
	is($err, '', "storm on $file: runs through");
	my $counted = eval { decode_json($out) };
	my %count = %{ $counted // {} };
	$count{cut} += $_->cuts for @through;
	$_->stop for @through;
	$count{duplicates} = $node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT amount) FROM payment');
	is($node->safe_psql('postgres', 'SELECT count(DISTINCT amount) FROM payment'), $operations, "storm on $file: every operation is done");
	is($node->safe_psql('postgres', 'SELECT (SELECT count(*) FROM payment) - count(*) FROM ledger'), 0, "storm on $file: each with all of its effects");
	diag "$file: $operations operations, $count{requests} requests, $count{cut} connections cut, $count{duplicates} duplicates";
	return %count;
}

SKIP:
{
	skip 'no Express here', 1 if system(q(cd clients/node && node -e "require('express')" >/dev/null 2>&1)) != 0;
	my %with = storm('after.js');
	cmp_ok($with{requests}, '>=', $operations * $sends, 'storm: every request is answered');
	is($with{cut}, $cuts * @points, 'storm: all connections are cut that should be');
	is($with{differing}, 0, 'storm: one answer for each payment');
	is($with{duplicates}, 0, 'storm: no duplicates');
	my %without = storm('before.js');
	cmp_ok($without{duplicates}, '>=', $operations * ($sends - 1) + $cuts, 'storm without idem: duplicates of retries, and of lost answers');
}

is(locks($node), 0, 'no key lock is left');
log_is_clean($node);
$node->stop;
done_testing();
