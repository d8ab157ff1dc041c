# From the oldest PostgreSQL to the newest, step by step with pg_upgrade, and by dump and restore
# from each to each later one: stored answers are replayed, open operations continue, nothing is
# forgotten. The worker is preloaded throughout, also while pg_upgrade runs the servers. With
# IDEM_PRIVATE, the newest server has idem in that directory alone.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @servers = split ' ', $ENV{IDEM_SERVERS};
die 'two servers at least' if @servers < 2;
sub name_of
{
	my ($i) = @_;
	return 'v' . version($servers[$i]) . ($i && $servers[$i] eq $servers[$i - 1] ? '_again' : '');
}
sub version { my ($server) = @_; return $server =~ /(\d+)$/ ? $1 : die $server; }

# Where the newest server finds idem, if not in its own directories.
sub paths
{
	my ($server) = @_;
	my $private = $ENV{IDEM_PRIVATE};
	return '' if !$private || $server ne $servers[-1];
	chomp(my ($share, $library) = map { scalar `$server/bin/pg_config --$_` } qw(sharedir pkglibdir));
	die "idem is in $library, too" if -e "$library/idem.so" || -e "$share/extension/idem.control";
	return "extension_control_path = '$private$share:\$system'\ndynamic_library_path = '$private$library:\$libdir'\n";
}

# pg_upgrade needs the same checksum setting on both; 18 enables checksums by default.
sub node
{
	my ($server, $name, %options) = @_;
	my @checksums = version($server) >= 18 ? '--no-data-checksums' : ();
	return idem_node(
		$name,
		bare => 1,
		new => { install_path => $server },
		init => { extra => [ '-E', 'UTF8', '--locale=C', @checksums ] },
		conf => paths($server) . "shared_preload_libraries = 'idem'\nmax_worker_processes = 10",
		%options);
}

my $request = q{'{"amount": 1.50, "note": "übergroß"}'};
my $v7 = '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d';

# What the oldest server stores.
sub remember
{
	my ($node) = @_;
	$node->safe_psql('postgres', "SELECT pay('$_', $request)") for ('plain', 'schlüssel', $v7);
	$node->safe_psql('postgres', <<'SQL');
SELECT idem.create_scope('jobs', ttl => '3 days', lease => '10 minutes', request_exclude => '{trace}');
CREATE TABLE guarded (key text DEFAULT idem.current_key());
CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION idem.require_claim('jobs');
BEGIN;
SELECT token FROM idem.claim('jobs', 'failed') \gset
SELECT idem.fail(:'token', '{"sqlstate": "P0001", "message": "no funds"}');
COMMIT;
SELECT idem.advance('jobs', 'source', 41, contiguous => true);
SQL
	my $token = $node->safe_psql('postgres', q{SELECT token FROM idem.claim('jobs', 'leased', lease => '2 days')});
	$node->safe_psql('postgres', "SELECT idem.checkpoint('$token', 'charged', '{\"charge\": 7}')");
	return $token;
}

my $child_key = q{BEGIN; SELECT idem.child_key(token, 'ship') FROM idem.claim('payments', 'parent'); ROLLBACK};

# What each later server must know. The open claim is only looked at, and finished on the newest.
sub check
{
	my ($node, $database, $what, %known) = @_;
	my $ask = sub { return $node->safe_psql($database, $_[0]) };
	for my $key ('plain', 'schlüssel', $v7)
	{
		is($ask->("SELECT outcome, response ? 'payment' FROM idem.try_claim('payments', '$key', $request)"),
			'completed|t', "$what: $key is answered");
	}
	is($ask->(q{SELECT outcome FROM idem.try_claim('payments', 'plain', '{"amount": 2}')}), 'conflict',
		"$what: another request conflicts");
	is($ask->(q{SELECT outcome, error->>'message' FROM idem.try_claim('jobs', 'failed')}), 'failed|no funds',
		"$what: a failure stays one");
	is($ask->(q{SELECT idem.advance('jobs', 'source', 41, contiguous => true)}), 'f',
		"$what: a duplicate of a stream is one");
	is($ask->($child_key), $known{child}, "$what: child keys are the same");
	is($ask->(q{SELECT state, attempt FROM idem.lookup('jobs', 'leased')}), 'in_progress|1',
		"$what: the lease is held");
	isnt($ask->("SELECT idem.renew('$known{token}', '3 days')"), '', "$what: its token is honoured");
	$ask->("SELECT pay('new in $what', $request)");
	is($ask->("SELECT count(*) FROM payment WHERE key = 'new in $what'"), 1, "$what: new operations run");
	$ask->("SELECT idem.create_scope('new in $what')");
	is($ask->(q{SELECT count(*), count(DISTINCT id), max(id) = (SELECT last_value FROM idem.scope_id) FROM idem.scope}),
		"$known{scopes}|$known{scopes}|t", "$what: scope ids go on");
	my ($status, undef, $stderr) = $node->psql($database, q{INSERT INTO guarded DEFAULT VALUES});
	like($stderr, qr/claim/, "$what: the guard stands");
	is($ask->(q{SELECT extversion FROM pg_extension WHERE extname = 'idem'}), $known{extension},
		"$what: the version of idem");
	return;
}

my $node = node($servers[0], name_of(0), bare => 0);
my %known = (token => remember($node), child => $node->safe_psql('postgres', $child_key), scopes => 2,
	extension => $node->safe_psql('postgres', q{SELECT extversion FROM pg_extension WHERE extname = 'idem'}));
check($node, 'postgres', 'before', %known, scopes => ++$known{scopes});

# Dump and restore, with the newer server's pg_dump.
sub restore_into
{
	my ($from, $i) = @_;
	my $to = node($servers[$i], 'restored_from_' . $from->name . '_in_' . name_of($i));
	my $dump = $to->basedir . '/dump.sql';
	$to->command_ok([ 'pg_dump', '-d', $from->connstr('postgres'), '-f', $dump ], 'dump of ' . $from->name);
	$to->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump, 'postgres' ],
		'restore');
	check($to, 'postgres', $to->name, %known, scopes => $known{scopes} + 1);
	log_is_clean($to);
	$to->stop;
	return;
}

for my $i (1 .. $#servers)
{
	restore_into($node, $_) for $i .. $#servers;

	my $next = node($servers[$i], name_of($i));
	$_->stop for ($node, $next);
	chdir $next->basedir or die;
	my @upgrade = (
		"$servers[$i]/bin/pg_upgrade", '--no-sync',
		'-d', $node->data_dir, '-D', $next->data_dir,
		'-b', "$servers[$i - 1]/bin", '-B', "$servers[$i]/bin",
		'-s', $next->host, '-p', $node->port, '-P', $next->port);
	command_ok([ @upgrade, '--check' ], 'pg_upgrade --check ' . $node->name . ' to ' . $next->name);
	command_ok(\@upgrade, 'pg_upgrade ' . $node->name . ' to ' . $next->name);
	log_is_clean($node);
	$next->start;
	$node = $next;
	check($node, 'postgres', $node->name, %known, scopes => ++$known{scopes});
}

# The operation that began on the oldest server ends on the newest.
is($node->safe_psql('postgres', "SELECT idem.complete('$known{token}', '{\"shipped\": true}')"), '{"shipped": true}',
	'the open operation completes');
is($node->safe_psql('postgres', q{SELECT outcome, response FROM idem.try_claim('jobs', 'leased')}),
	'completed|{"shipped": true}', 'a retry of the open operation is answered');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity
	WHERE backend_type = 'idem launcher'}), 'the worker runs');
log_is_clean($node);
$node->stop;
done_testing();
