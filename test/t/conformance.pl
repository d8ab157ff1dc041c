# clients/conformance: the suite finds the mistakes that it is there for; and the applications of both
# packages keep the contract, over both editions, and in a storm in which connections are cut and
# processes killed.
use strict;
use warnings;

use CutProxy;
use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $folder = 'clients/conformance';
my ($python) = grep { system("$_ -c 'import psycopg_pool' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);
$python //= 'python3';
plan skip_all => 'no Python here' if system("$python --version >/dev/null 2>&1") != 0;

# The test of the suite runs beside the applications: it mostly waits.
my $of_suite = '';
my $suite = IPC::Run::start([ $python, "$folder/test_suite.py" ], '>', \$of_suite, '2>&1');

# The applications: what each needs, and the groups of cases that its framework has not.
my $reads_forms = 'import starlette.requests as requests; assert requests.parse_options_header';
my $express = 'cd clients/node && node -e "require(\'pg\'); require(\'multer\');';
my @applications = (
	{ name => 'flask',     probe => "$python -c 'import psycopg_pool, flask'" },
	{ name => 'django',    probe => "$python -c 'import psycopg2, django, werkzeug'", lacks => ['chunked'] },
	{ name => 'starlette', probe => "$python -c 'import psycopg_pool, uvicorn; $reads_forms'" },
	{ name => 'fastapi',   probe => "$python -c 'import psycopg_pool, uvicorn, fastapi; $reads_forms'" },
	{ name => 'express4',  probe => "$express require('express4')\"", lacks => ['exact-numbers'] },
	{ name => 'express5',  probe => "$express require('express')\"", lacks => ['exact-numbers'] },
	{ name => 'fastify',   probe => "$express require('fastify'); require('\@fastify/multipart')\"",
		lacks => [ 'exact-numbers', 'gzip' ] },
);

my $node = idem_node('conformance', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
max_connections = 200
listen_addresses = '127.0.0.1'
fsync = off
CONF
# The applications find the package in this folder, and npm's in that of the tests.
my $modules = PostgreSQL::Test::Utils::tempdir;
symlink "$ENV{TESTDIR}/clients/node", "$modules/pg-idem" or die "symlink: $!";
my @editions = managed_edition() ? ('sql') : ('extension', 'sql');
for my $edition (@editions)
{
	$node->safe_psql('postgres', "CREATE DATABASE $edition");
	if ($edition eq 'extension') { $node->safe_psql($edition, 'CREATE EXTENSION idem'); }
	else { install_managed($node, $edition); }
	$node->safe_psql($edition, slurp_file("$folder/apps/setup.sql"));
}

# Starts an application on a database, behind this port of the server.
sub serve
{
	my ($application, $database, $port, $own) = @_;
	local %ENV = (%ENV, PGHOST => '127.0.0.1', PGPORT => $port, PGDATABASE => $database,
		PGUSER => $node->safe_psql('postgres', 'SELECT current_user'),
		NODE_PATH => join(':', $modules, $ENV{NODE_PATH} // ()),
		PYTHONPATH => "$ENV{TESTDIR}/clients/python/src", PYTHONDONTWRITEBYTECODE => 1);
	my $is_node = $application->{name} =~ /^(express|fastify)/;
	my ($output, $log) = ('', PostgreSQL::Test::Utils::tempdir . "/$application->{name}.log");
	my $run = IPC::Run::start([ $is_node ? 'node' : $python, "$folder/apps/serve." . ($is_node ? 'js' : 'py'),
			$application->{name}, $own // 0 ],
		'>', \$output, '2>', $log);
	pump $run until $output =~ /^(\d+)\n/ or !$run->pumpable;
	die "$application->{name} does not run:\n" . slurp_file($log) unless $output =~ /^(\d+)\n/;
	return { run => $run, port => $1 };
}

sub end
{
	my ($served) = @_;
	$served->{run}->signal('KILL');
	$served->{run}->finish;
	return;
}

sub judge
{
	my ($served, @options) = @_;
	my $report = '';
	my $run = IPC::Run::start([ $python, $folder, "http://127.0.0.1:$served->{port}", @options ], '>', \$report,
		'2>&1');
	return { run => $run, report => \$report };
}

# The cases over both editions.
sub conforms
{
	my ($application) = @_;
	my @judged;
	for my $edition (@editions)
	{
		my $database = "$application->{name}_$edition";
		$node->safe_psql('postgres', "CREATE DATABASE $database TEMPLATE $edition");
		my $served = serve($application, $database, $node->port);
		push @judged, { title => "$application->{name}, $edition", served => $served,
			%{ judge($served, map { ('--skip', $_) } @{ $application->{lacks} // [] }, $edition eq 'sql' ? 'limits'
					: ()) } };
	}
	return @judged;
}

# Connections to the server are cut, and the application is killed twice.
sub survives
{
	my ($application, $edition) = @_;
	my ($keys, $cuts) = (60, 5);
	my $database = "$application->{name}_$edition";
	my $title = "$application->{name}, $edition, a storm";
	my $proxy = CutProxy->new($node, at => [qw(effect terminated answer)], times => $cuts);
	my $served = serve($application, $database, $proxy->port);
	my $before = $node->safe_psql($database, 'SELECT count(*) FROM effect');
	my $judged = judge($served, '--only', 'a storm:', '--storm', $keys);
	for my $part (1, 2)
	{
		until ($node->safe_psql($database, 'SELECT count(*) FROM effect') - $before >= $part * $keys / 3)
		{
			last unless $judged->{run}->pumpable;
			$judged->{run}->pump_nb;
			usleep(20_000);
		}
		end($served);
		$served = serve($application, $database, $proxy->port, $served->{port});
	}
	ok($judged->{run}->finish, "$title: one effect and one answer for each of $keys keys")
	  or diag ${ $judged->{report} };
	is($proxy->cuts, 3 * $cuts, "$title: connections were cut");
	is($node->safe_psql($database, 'SELECT count(*) FROM effect') - $before, $keys, "$title: and no other effect");
	end($served);
	$proxy->stop;
	return;
}

# Two applications at a time, each over both editions.
my @present;
for my $application (@applications)
{
  SKIP:
	{
		skip "$application->{name} is not installed; tools/setup examples installs it", 1
		  if system("($application->{probe}) >/dev/null 2>&1") != 0;
		push @present, $application;
	}
}
my @left = @present;
while (my @both = splice @left, 0, 2)
{
	for my $judged (map { conforms($_) } @both)
	{
		ok($judged->{run}->finish, "$judged->{title}: keeps the contract") or diag ${ $judged->{report} };
		note "$judged->{title}: ", ${ $judged->{report} } =~ /(.*)\n\z/;
		end($judged->{served});
	}
}
# The editions take turns.
survives($present[$_], $editions[ $_ % @editions ]) for 0 .. $#present;

# What the page says of another package.
SKIP:
{
	my $peer = { name => 'express_idempotency', probe => "$express require('express-idempotency')\"" };
	skip 'express-idempotency is not installed; tools/setup examples installs it', 1
	  if system("($peer->{probe}) >/dev/null 2>&1") != 0;
	my ($said) = slurp_file('docs/conformance.md') =~ /^## How others do\n(.*)/ms;
	my ($skipped) = $said =~ /With `--skip` of (.*?), the\b/s;
	my $served = serve($peer, 'postgres', $node->port);
	my $judged = judge($served, map { ('--skip', $_) } $skipped =~ /`([\w-]+)`/g);
	$judged->{run}->finish;
	end($served);
	my @broken = ${ $judged->{report} } =~ /^BROKEN    (.*) \(/mg;
	my @quoted = map { s/\s+/ /gr } $said =~ /"([A-Za-z][^"]+)"/g;
	is_deeply([ sort map { my $sentence = $_; grep { index($sentence, $_) >= 0 } @quoted } @broken ], [ sort @quoted ],
		'express-idempotency breaks the sentences that the page quotes') or diag join "\n", @broken;
	is(scalar(@broken), scalar(@quoted), 'and no others');
	my ($version) = slurp_file("$ENV{TESTDIR}/node_modules/express-idempotency/package.json") =~ /"version": "([^"]+)"/;
	like($said, qr/express-idempotency \Q$version\E\b/, 'the version is that of the page');
}

ok($suite->finish, 'the suite passes a service that keeps the contract, and finds each mistake') or diag $of_suite;
$node->stop;
done_testing();
