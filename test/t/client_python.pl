# The client packages: their own tests, and a retry storm in front of a network that cuts connections,
# with each stack of a package and without it.
use strict;
use warnings;

use CutProxy;
use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($python) = grep { system("$_ -c 'import psycopg' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);
plan skip_all => 'no Python with psycopg here; tools/setup check installs it' unless $python;

my $node = idem_node('clients', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
max_connections = 200
fsync = off
CONF
my $user = $node->safe_psql('postgres', 'SELECT current_user');

# Runs a program of the Python package's tests. Returns what it wrote.
sub run_python
{
	my (%run) = @_;
	local %ENV = (%ENV, PGUSER => $user, PGDATABASE => $run{database}, PGHOST => $node->host,
		PGPORT => $node->port, PYTHONPATH => '../src', PYTHONDONTWRITEBYTECODE => 1);
	my ($out, $err) = ('', '');
	my $ends = IPC::Run::run([ $python, @{ $run{command} } ], '>', \$out, '2>', \$err,
		init => sub { chdir 'clients/python/tests' or die "chdir: $!" });
	return ($ends, $out, $err);
}

# The package's own tests ---------------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE tests');
my ($passed, undef, $report) = run_python(database => 'tests', command => [qw(-m unittest -v)]);
ok($passed, 'the tests of the Python package pass') or diag $report;
my ($tests) = $report =~ /^Ran (\d+) tests/m;
cmp_ok($tests // 0, '>', 50, 'the tests of the Python package ran') or diag $report;
note "$tests tests of the Python package";
my %skipped = map { $_ => 1 } $report =~ /skipped '([^']+)'/g;
note "skipped: $_" for sort keys %skipped;

# The retry storm -----------------------------------------------------------------------------------

$node->safe_psql('postgres', slurp_file('examples/setup.sql'));
$node->safe_psql('postgres', 'ALTER TABLE payment ALTER key DROP NOT NULL');    # for what has no key

my ($operations, $sends, $cuts) = (60, 3, 8);
my $first = 0;

# Each of these connections reaches another place at which it may be cut.
sub storm
{
	my ($stack) = @_;
	$first += 1000;
	my @proxies = map { CutProxy->new($node, at => $_, times => $cuts) } qw(effect terminated answer);
	my ($ends, $out, $err) = run_python(database => 'postgres',
		command => [ 'storm.py', $stack, $first, $operations, $sends, map { $_->port } @proxies ]);
	my $cut = 0;
	$cut += $_->cuts for @proxies;
	$_->stop for @proxies;
	ok($ends, "$stack: the storm runs through") or diag $err;
	my %counts = map { split ' ' } split /\n/, $out;
	is($counts{answered}, $operations * $sends, "$stack: every send is answered");
	is($cut, 3 * $cuts, "$stack: $cut connections are cut");
	my ($payments, $paid) = split /\|/, $node->safe_psql('postgres',
		"SELECT count(*), count(DISTINCT amount) FROM payment WHERE amount >= $first AND amount < $first + 1000");
	is($paid, $operations, "$stack: every operation is paid");
	return ($payments, $payments - $paid, $counts{differing}, "$operations operations, $sends sends each, $cut connections cut");
}

# Each stack: the modules that it needs, and its name in the table of the package's README.
my %stacks = (
	psycopg           => [ 'psycopg_pool', 'psycopg' ],
	asyncio           => [ 'psycopg_pool', 'psycopg, asynchronous' ],
	sqlalchemy        => [ 'sqlalchemy, psycopg2', 'SQLAlchemy' ],
	django            => [ 'django, psycopg2', q(Django's ORM) ],
	flask             => [ 'psycopg_pool, flask', 'Flask: the endpoint after' ],
	starlette         => [ 'psycopg_pool, starlette, httpx', 'Starlette' ],
	'without psycopg' => [ 'psycopg_pool', 'psycopg with retries, but without a key' ],
	'without flask'   => [ 'psycopg_pool, flask', 'Flask: the endpoint before' ],
);
my $readme = slurp_file('clients/python/README.md');

for my $stack (sort keys %stacks)
{
	my ($modules, $title) = @{ $stacks{$stack} };
  SKIP:
	{
		skip "Python, $stack: $modules not installed; tools/setup check installs them", 1
		  if system("$python -c 'import $modules' 2>/dev/null") != 0;
		my ($payments, $duplicates, $differing, $numbers) = storm($stack);
		note "Python, $stack: $numbers, $duplicates duplicates";
		if ($stack =~ /^without/)
		{
			# Each send but the first, and each retry after a COMMIT whose answer was cut.
			is($duplicates, $operations * ($sends - 1) + $cuts, "$stack: $duplicates duplicates");
		}
		else
		{
			is($duplicates, 0, "$stack: 0 duplicates");
			is($differing, 0, "$stack: one answer per operation");
		}
		like($readme, qr/^\| \Q$title\E \| $payments \| $duplicates \|$/m, "$stack: as in the README");
	}
}

is(locks($node), 0, 'no key lock is left');
log_is_clean($node);
$node->stop;
done_testing();
