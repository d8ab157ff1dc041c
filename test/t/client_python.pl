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

# Runs a program of the Python package's tests. Returns what it wrote, and logs at once which test runs.
sub run_python
{
	my (%run) = @_;
	local %ENV = (%ENV, PGUSER => $user, PGDATABASE => $run{database}, PGHOST => $node->host,
		PGPORT => $node->port, PYTHONPATH => $run{path} // '../src', PYTHONDONTWRITEBYTECODE => 1);
	my ($out, $err) = ('', '');
	my $ends = IPC::Run::run([ $run{python} // $python, @{ $run{command} } ], '>', \$out, '2>',
		sub { print $_[0]; $err .= $_[0]; },
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

# Types ---------------------------------------------------------------------------------------------

SKIP:
{
	my ($mypy) = grep { system("$_ --version >/dev/null 2>&1") == 0 } qw(mypy /usr/bin/mypy);
	skip 'no mypy here; tools/setup check installs it', 1 unless $mypy;
	my $errors = '';
	ok(IPC::Run::run([ $mypy, qw(--strict --cache-dir=/dev/null --no-error-summary) ], '>', \$errors, '2>&1',
			init => sub { chdir 'clients/python' or die "chdir: $!" }), 'the types of the Python package fit')
	or diag $errors;
}

# The built package ---------------------------------------------------------------------------------

# The wheel is installed into an empty environment. Tests run on what is there; the driver, which the
# package does not depend on, is that of the system.
SKIP:
{
	my ($builder) =
		grep { system("$_ -c 'import setuptools, wheel, ensurepip' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);
	skip 'no Python with setuptools, wheel and venv; tools/setup clients installs them', 1 unless $builder;
	my $folder = PostgreSQL::Test::Utils::tempdir;
	my @built = split /\n/, `tools/packages $folder/packages python`;
	my ($source) = grep { /\.tar\.gz$/ } @built;
	my ($wheel) = grep { /\.whl$/ } @built;
	my $content = `tar -tzf $source`;
	like($content, qr{/$_$}m, "the source distribution has $_")
	  for qw(LICENSE CHANGELOG.md README.md tests/test_lease.py py.typed);
	unlike(`tar -xzOf $source --wildcards '*/README.md'`, qr{\]\((?!https:|#)}, 'the links of its README work outside');

	command_ok([ $builder, '-m', 'venv', "$folder/venv" ], 'an empty environment');
	command_ok([ "$folder/venv/bin/python", qw(-m pip install -q --no-index --disable-pip-version-check), $wheel ],
		'the wheel is installed');
	my $drivers = `$python -c 'import os, psycopg; print(os.path.dirname(os.path.dirname(psycopg.__file__)))'`;
	chomp $drivers;
	my %installed = (database => 'tests', python => "$folder/venv/bin/python", path => $drivers);
	my (undef, $found) = run_python(%installed, command => [ '-c', <<'PYTHON' ]);
import importlib.metadata, pathlib, pg_idem
files = [str(file) for file in importlib.metadata.files("pg-idem")]
print(pathlib.Path(pg_idem.__file__).parent.parent.name, "pg_idem/py.typed" in files,
      any(file.endswith("LICENSE") for file in files), len(importlib.metadata.requires("pg-idem")))
PYTHON
	is($found, "site-packages True True 4\n", 'it is typed, has its license, and four extras');
	my ($works, undef, $why) = run_python(%installed,
		command => [qw(-m unittest test_core test_intent test_lease.Psycopg)]);
	ok($works, 'its tests pass') or diag $why;
}

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
	return ($payments, $payments - $paid, $counts{differing},
		"$operations operations, $sends sends each, $cut connections cut");
}

# Each stack, and the modules that it needs.
my %stacks = (
	psycopg           => 'psycopg_pool',
	asyncio           => 'psycopg_pool',
	psycopg2          => 'psycopg2',
	sqlalchemy        => 'sqlalchemy, psycopg2',
	django            => 'django, psycopg2',
	flask             => 'psycopg_pool, flask',
	starlette         => 'psycopg_pool, starlette, httpx',
	'without psycopg' => 'psycopg_pool',
	'without flask'   => 'psycopg_pool, flask',
);
my $readme = slurp_file('clients/python/README.md');

for my $stack (sort keys %stacks)
{
	my $modules = $stacks{$stack};
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
		like($readme, qr/\bmakes? $payments\b/, "$stack: as in the README");
	}
}

is(locks($node), 0, 'no key lock is left');
log_is_clean($node);
$node->stop;
done_testing();
