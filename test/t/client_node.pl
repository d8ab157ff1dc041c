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

sub lacks
{
	my ($module) = @_;
	return system(qq(cd clients/node && node -e "require('$module')" >/dev/null 2>&1)) != 0;
}

plan skip_all => 'no Node with pg here; tools/setup examples installs them'
  if lacks('pg');

my $node = idem_node('client_node', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
max_connections = 100
listen_addresses = '127.0.0.1'
CONF
$node->safe_psql('postgres', slurp_file('clients/node/test/schema.sql'));
@ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ('127.0.0.1', $node->port, 'postgres',
	$node->safe_psql('postgres', 'SELECT current_user'));

my @points = qw(connecting effect terminated answer);
sub proxies { my ($times) = @_; return map { CutProxy->new($node, at => $_, times => $times) } @points; }

# The package's own tests ---------------------------------------------------------------------------

# Each test of Node is a subtest here.
sub passes
{
	my ($file) = @_;
	my ($tap, $log) = ('', '');
	my $passed = IPC::Run::run([ qw(node --test --test-reporter=tap), "clients/node/test/$file" ], '>', \$tap, '2>',
		\$log);
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
@proxies = proxies(4);
{
	local $ENV{IDEM_TEST_PROXIES} = join ' ', map { "$points[$_]=" . $proxies[$_]->port } 0 .. $#points;
	passes('lease.test.js');
}
is_deeply([ map { $_->cuts } @proxies ], [ (4) x @points ], 'leases: each proxy has cut four connections');
$_->stop for @proxies;
passes("$_.test.js") for qw(edge guard waits killed http bound accepted intent readme);
is(locks($node), 0, 'no key lock is left');

# Types ---------------------------------------------------------------------------------------------

# Those of npm, or those of the distribution, which has no Fastify.
my ($tsc) = grep { system("$_ --version >/dev/null 2>&1") == 0 } qw(node_modules/.bin/tsc tsc);
# The types of Express that Debian 12 has do not fit its TypeScript, 4.8.
my ($age) = $tsc ? `$tsc --version` =~ /(\d+\.\d+)/ : 0;
my ($modules) = grep { -d "$_/\@types/pg" } "$ENV{PWD}/node_modules", '/usr/share/nodejs';
my $copy = PostgreSQL::Test::Utils::tempdir;
for my $checked ([ 'tsconfig.json', '@types/express' ], [ 'tsconfig.fastify.json', 'fastify' ])
{
	my ($project, $module) = @$checked;
  SKIP:
	{
		skip 'no TypeScript or no types of pg here; tools/setup check installs them', 1 unless $tsc && $modules;
		skip "TypeScript $age is too old", 1 if $age < 4.9;
		skip "$project: no $module here", 1 unless -d "$modules/$module";
		if (!-d "$copy/node")
		{
			system("cp -r clients/node $copy/") == 0 or die 'cp';
			symlink $modules, "$copy/node/node_modules" or die "symlink: $!";
		}
		my ($errors) = run_command([ $tsc, '--preserveSymlinks', '--project', "$copy/node/test/$project" ]);
		is($errors, '', "$project: the types fit their use");
	}
}

# The built package ---------------------------------------------------------------------------------

# It is installed into an empty directory, without a registry. The driver is that of the system, so
# the peer dependency is not npm's.
SKIP:
{
	skip 'no npm here; tools/setup clients installs it', 1 if system('npm --version >/dev/null 2>&1') != 0;
	my $folder = PostgreSQL::Test::Utils::tempdir;
	mkdir "$folder/application";
	local %ENV = (%ENV, npm_config_cache => "$folder/npm",
		NODE_PATH => join(':', $ENV{NODE_PATH} // (), "$ENV{PWD}/node_modules", '/usr/share/nodejs'));
	my ($package) = split /\n/, `tools/packages $folder/packages node`;
	my $content = `tar -tzf $package`;
	like($content, qr{^package/\Q$_\E$}m, "the package has $_")
	  for qw(LICENSE CHANGELOG.md README.md index.d.ts intent.js examples/accepted.js);
	unlike($content, qr{package/test/}, 'and no tests');
	unlike(`tar -xzOf $package package/README.md`, qr{\]\((?!https:|#)}, 'the links of its README work outside');

	command_ok([ qw(npm install --silent --offline --legacy-peer-deps --prefix), "$folder/application", $package ],
		'the package is installed');
	is((run_command([ 'sh', '-c', "ls -A $folder/application/node_modules" ]))[0], ".package-lock.json\npg-idem",
		'it has no dependencies');
	system("cp -r clients/node/test $folder/application/") == 0 or die 'cp';
	my ($tap, $log) = ('', '');
	ok(IPC::Run::run([ qw(node --test --test-reporter=tap), map { "test/$_.test.js" } qw(core intent waits) ], '>',
			\$tap, '2>', \$log,
			init => sub { chdir "$folder/application" or die "chdir: $!" }), 'its tests pass') or diag $tap, $log;
	my $found = (run_command([ 'sh', '-c', "cd $folder/application/test && node -p 'require.resolve(\"pg-idem\")'" ]))[
		0];
	like($found, qr{application/node_modules/pg-idem/index\.js$}, 'on what was installed');
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
	IPC::Run::run([ 'node', 'clients/node/test/storm.js', "./$file", $operations, $sends, map { $_->port } @through ],
		'>', \$out, '2>', \$err);
	is($err, '', "storm on $file: runs through");
	my $counted = eval { decode_json($out) };
	my %count = %{ $counted // {} };
	$count{cut} += $_->cuts for @through;
	$_->stop for @through;
	$count{duplicates} = $node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT amount) FROM payment');
	is($node->safe_psql('postgres', 'SELECT count(DISTINCT amount) FROM payment'), $operations,
		"storm on $file: every operation is done");
	is($node->safe_psql('postgres', 'SELECT (SELECT count(*) FROM payment) - count(*) FROM ledger'), 0,
		"storm on $file: each with all of its effects");
	diag "$file: $operations operations, $count{requests} requests, $count{cut} connections cut, $count{duplicates} "
		. "duplicates";
	return %count;
}

# The last one ends transactions, answers by itself and so on, now and then.
for my $framework ([ 'Express', 'after.js' ], [ 'Fastify', 'after_fastify.js' ], [ 'Express', 'after_rude.js' ])
{
	my ($name, $file) = @$framework;
  SKIP:
	{
		skip "no $name here", 1 if lacks(lc $name);
		my %with = storm($file);
		cmp_ok($with{requests}, '>=', $operations * $sends, "$file: every request is answered");
		is($with{cut}, $cuts * @points, "$file: all connections are cut that should be");
		is($with{differing}, 0, "$file: one answer for each payment");
		is($with{duplicates}, 0, "$file: no duplicates");
	}
}
SKIP:
{
	skip 'no Express here', 1 if lacks('express');
	my %without = storm('before.js');
	cmp_ok($without{duplicates}, '>=', $operations * ($sends - 1) + $cuts,
		'storm without idem: duplicates of retries, and of lost answers');
}

is(locks($node), 0, 'no key lock is left');
log_is_clean($node);
$node->stop;
done_testing();
