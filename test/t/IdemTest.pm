# Shared by the TAP tests: a node with idem and the payments procedure, load on it, checks afterwards.
package IdemTest;

use strict;
use warnings;

use Carp 'confess';
use Exporter 'import';
use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(installed managed_edition install_managed idem_node start_with_clock install_payments
  install_lapse claim_open sqlstate waits_for waiter runs load crash kill_process kill_postmaster restart_killed
  configure configure_purge wait_for_standbys replicate await_visit await_runs rewind effects locks tables_are_sound
  log_is_clean);

# How a test ends that takes too long: it says where it is, and its servers are stopped.
my $test = $$;
$SIG{TERM} = sub { $$ == $test ? confess 'ended by SIGTERM' : POSIX::_exit(1); };

# The path of the first of these programs that is installed.
sub installed
{
	my ($path) = grep { -x } map { my $name = $_; map { "$_/$name" } split /:/, $ENV{PATH} } @_;
	return $path;
}

# Whether the test runs over the SQL edition: see test/managed/run.
sub managed_edition { return ($ENV{IDEM_EDITION} // '') eq 'managed'; }

# Installs the SQL edition as users do.
sub install_managed
{
	my ($node, $database) = @_;
	$node->command_ok([ 'psql', '-Xq', '-f', "$ENV{TESTDIR}/sql/managed.sql", $node->connstr($database) ],
		"$database: the SQL edition is installed");
	return;
}

# A running node whose settings depend neither on the machine's speed nor on its locale. The SQL edition
# has nothing to preload.
sub idem_node
{
	my ($name, %options) = @_;
	$options{conf} =~ s/^shared_preload_libraries = 'idem'\n//m if defined $options{conf} && managed_edition();
	my $node = PostgreSQL::Test::Cluster->new($name, %{ $options{new} // {} });
	$node->init(extra => [ '-E', 'UTF8', '--locale=C' ], %{ $options{init} // {} });
	$node->append_conf('postgresql.conf', <<"CONF");
max_prepared_transactions = 10
restart_after_crash = on
autovacuum = off
$options{conf}
CONF
	$node->start;
	install_payments($node) unless $options{bare};
	return $node;
}

# Starts a node whose clock the test can set. Returns the function that sets it, to so many seconds from
# the time of day, or nothing on a machine without a C compiler.
sub start_with_clock
{
	my ($node) = @_;
	my $directory = PostgreSQL::Test::Utils::tempdir;
	my ($shim, $clock) = ("$directory/clock.so", "$directory/clock");
	return if system('cc', '-shared', '-fPIC', '-o', $shim, "$ENV{TESTDIR}/test/t/clock.c") != 0;
	my $set_clock = sub {
		open(my $file, '>', "$clock.new") or die $!;
		print $file shift;
		close $file;
		rename "$clock.new", $clock or die $!;
	};
	$set_clock->(0);
	local $ENV{LD_PRELOAD} = $shim;
	local $ENV{IDEM_TEST_CLOCK} = $clock;
	$node->start;
	return $set_clock;
}

# pay() is the README's procedure; the effect carries its key, so that a second effect is found.
sub install_payments
{
	my ($node, $database) = @_;
	$node->safe_psql($database // 'postgres', <<'SQL');
CREATE EXTENSION idem;
SELECT idem.create_scope('payments');
CREATE TABLE payment (id bigserial PRIMARY KEY, key text, amount numeric);
CREATE FUNCTION pay(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(key, amount) VALUES (key, (request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;
SQL
	return;
}

# The tests change the row instead of the clock: lapse() ends the lease of a key a second ago.
sub install_lapse
{
	my ($node, $database) = @_;
	$node->safe_psql($database // 'postgres', <<'SQL');
CREATE PROCEDURE lapse(k text) LANGUAGE sql AS
  $$ UPDATE idem.record r SET lease_end = clock_timestamp() - interval '1 s'
  WHERE k IN (key, to_jsonb(r) ->> 'key_uuid') $$;
SQL
	return;
}

# SQL that claims a key, makes the effect and leaves the transaction open, the token in :token.
sub claim_open
{
	my ($key) = @_;
	return <<"SQL";
BEGIN;
SELECT token FROM idem.claim('payments', '$key', '{"amount": 1}') \\gset
INSERT INTO payment(key, amount) VALUES ('$key', 1);
SQL
}

# The SQLSTATE that a statement fails with, or ''.
sub sqlstate
{
	my ($node, $sql, $database) = @_;
	my (undef, undef, $stderr) = $node->psql($database // 'postgres', "\\set VERBOSITY sqlstate\n$sql");
	return $stderr =~ /ERROR:\s+(\w{5})/ ? $1 : '';
}

# Until the backend waits for this type of event: Lock, Extension (a lease), IPC (a standby).
sub waits_for
{
	my ($node, $pid, $type) = @_;
	$type = 'Timeout' if $type eq 'Extension' && managed_edition();    # pg_sleep()
	$node->poll_query_until('postgres', "SELECT wait_event_type = '$type' FROM pg_stat_activity WHERE pid = $pid")
	  or die "process $pid does not wait for $type";
	return;
}

# A session in which the statement waits so. What the session has counted is written before: ten seconds
# after it went idle, a timer would do so, and end a wait.
sub waiter
{
	my ($node, $type, $statement) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->{pid} = $session->query_safe('SELECT pg_backend_pid() FROM pg_stat_force_next_flush()');
	$session->query_until(qr/waiting/, "\\echo waiting\n$statement;\n");
	waits_for($node, $session->{pid}, $type);
	return $session;
}

# Whether a command in the background still runs. IPC::Run learns of its end when it has read all of its
# output, of which it reads a part at a time.
sub runs
{
	my ($run) = @_;
	for (1 .. 10)
	{
		return 0 unless $run->pumpable;
		$run->pump_nb;
	}
	return 1;
}

# A pgbench that runs the script in the background until the caller kills it (kill_kill).
sub load
{
	my ($node, $script, @options) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir . '/load.sql';
	append_to_file($file, $script);
	my ($out, $err);
	return IPC::Run::start([ 'pgbench', '-n', '-T', 3600, @options, '-f', $file, $node->connstr('postgres') ],
		'>', \$out, '2>', \$err);
}

# Kills, with kill -9, the session's backend or the whole server, and waits until it has recovered.
sub crash
{
	my ($node, $victim, $session) = @_;
	$victim eq 'backend' ? kill_backend($node, $session) : restart_killed($node);
	eval { $session->{run}->kill_kill } if $session;
	return;
}

sub kill_backend
{
	my ($node, $session) = @_;
	kill_process($node, $session->query('SELECT pg_backend_pid()')) or die 'the backend has ended';
	return;
}

# The postmaster notices, ends all other sessions and restarts. A psql that cannot connect does not read
# its query, and the test would fail in writing it, so there is none. False if the process has ended before.
sub kill_process
{
	my ($node, $pid) = @_;
	my $before = -s $node->logfile;
	return 0 unless kill 'KILL', $pid;
	$node->wait_for_log(qr/reinitializing/, $before);
	$node->poll_query_until('postgres', undef, '') or die 'no recovery';
	return 1;
}

# Kills all processes at once with kill -9, so that none has the time to write anything. They hold the
# shared memory until all are gone.
sub kill_postmaster
{
	my ($node) = @_;
	my @children = split /\n/, $node->safe_psql('postgres', 'SELECT pid FROM pg_stat_activity');
	my $postmaster = $node->{_pid};
	$node->kill9;
	kill 'KILL', @children;
	for my $pid (@children, $postmaster)
	{
		while (kill 0, $pid) { select undef, undef, undef, 0.05; }
	}
	return;
}

sub restart_killed
{
	my ($node) = @_;
	kill_postmaster($node);
	# A session that was just beginning was not among the killed ones, and soon notices by itself.
	for (1 .. 100)
	{
		return if $node->start(fail_ok => 1);
		select undef, undef, undef, 0.1;
	}
	die 'the server does not start';
}

sub configure
{
	my ($node, $setting, $value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET $setting = '$value'");
	$node->reload;
	return;
}

# Changes a setting of the purge. Afterwards no run goes on or begins with the old one: the launcher waits
# for its worker, and when it is idle, it has read what it was sent before.
sub configure_purge
{
	my ($node, $setting, $value) = @_;
	$node->append_conf('postgresql.conf', "$setting = '$value'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('$setting') = '$value'") or die 'no reload';
	my $since = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
	$node->reload;    # the launcher looks once more
	$node->poll_query_until('postgres', "SELECT state = 'idle' AND state_change > '$since' FROM pg_stat_activity
		WHERE backend_type = 'idem launcher'")
	  or die 'the launcher is not idle';
	return;
}

# Waits until the worker has been through the whole of the database: it has twice purged a table of its
# own, in which nothing keeps it from that.
sub await_visit
{
	my ($node, $database) = @_;
	$database //= 'postgres';
	$node->safe_psql($database, <<'SQL');
SELECT idem.create_scope('visits', ttl => '1 ms', records => true, if_not_exists => true);
SELECT idem.create_record_table('public.visits') WHERE to_regclass('public.visits') IS NULL;
SQL
	for my $visit (1 .. 2)
	{
		$node->safe_psql($database, q{BEGIN; SELECT idem.use_records('public.visits');
			SELECT idem.once('visits', 'k'); COMMIT});
		$node->poll_query_until($database, 'SELECT count(*) = 0 FROM public.visits') or die "no visit of $database";
	}
	return;
}

# Waits until the worker has been in these databases again, where it need not find anything that it may
# purge. It stays too briefly to be seen, but its transactions are counted.
sub await_runs
{
	my ($node, @databases) = @_;
	my $commits = 'SELECT xact_commit FROM pg_stat_database WHERE datname =';
	my %before = map { $_ => $node->safe_psql('template1', "$commits '$_'") } @databases;
	for my $database (@databases)
	{
		$node->poll_query_until('template1', "SELECT ($commits '$database') > 5 + $before{$database}")
		  or die "no run in $database";
	}
	return;
}

# From here on, commits wait for these standbys. They do so when the checkpointer has read the setting,
# which it does before a checkpoint.
sub wait_for_standbys
{
	my ($node, $names) = @_;
	configure($node, 'synchronous_standby_names', $names);
	$node->poll_query_until('postgres', "SELECT current_setting('synchronous_standby_names') = '$names'")
	  or die 'no reload';
	$node->safe_psql('postgres', 'CHECKPOINT');
	return;
}

# The standby is connected, and the primary waits for it, or does not.
sub replicate
{
	my ($primary, $standby, $mode) = @_;
	wait_for_standbys($primary, $mode eq 'synchronous' ? '*' : '');
	my $state = $mode eq 'synchronous' ? 'sync' : 'async';
	$primary->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = '$state'")
	  or die "no $mode standby";
	$primary->wait_for_catchup($standby);
	return;
}

# Rewinds a killed primary to where its history and that of the new one part, so that it can be started
# as the next standby. Returns whether that went well.
sub rewind
{
	my ($node, $primary) = @_;
	$primary->safe_psql('postgres', 'CHECKPOINT');
	my $conf = $node->data_dir . '/postgresql.conf';
	my $own = slurp_file($conf);
	my $rewound = run_log([ 'pg_rewind', '--target-pgdata', $node->data_dir, '--source-server',
			$primary->connstr('postgres') ]);
	unlink $conf;
	append_to_file($conf, $own);
	unlink $node->data_dir . '/postgresql.auto.conf';
	$node->enable_streaming($primary);
	return $rewound;
}

sub effects
{
	my ($node, $key) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM payment WHERE key = '$key'");
}

# The key locks that are held. A session that was ended keeps its own for a moment after that was seen.
sub locks
{
	my ($node, $expected) = (@_, 0);
	my $locks;
	for (1 .. 50)
	{
		$locks = $node->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'");
		last if $locks == $expected;
		select undef, undef, undef, 0.1;
	}
	return $locks;
}

# amcheck, which must be installed, finds no fault in idem's tables, record tables in other schemas
# too, and their btree indexes: every row
# is in every index and, on versions that can check it, once in each unique index.
sub tables_are_sound
{
	my ($node, $name, $database) = @_;
	$database //= 'postgres';
	is($node->safe_psql($database, <<'SQL'), '', "the tables are sound: $name");
SELECT c.relname, v.* FROM pg_class c, verify_heapam(c.oid) v
WHERE c.relkind = 'r' AND (c.relnamespace = 'idem'::regnamespace OR c.oid IN (SELECT attrelid FROM pg_attribute
WHERE atttypid = to_regtype('idem.key_digest')))
SQL
	my $unique = $node->safe_psql($database, q{SELECT to_regprocedure('bt_index_check(regclass, bool, bool)') IS NOT
		NULL});
	my $options = $unique eq 't' ? 'true, true' : 'true';
	my (undef, undef, $stderr) = $node->psql($database, <<"SQL");
SELECT bt_index_check(i.indexrelid, $options) FROM pg_index i
  JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
WHERE a.amname = 'btree' AND i.indisready AND i.indisvalid
  AND (c.relnamespace = 'idem'::regnamespace OR i.indrelid IN (SELECT attrelid FROM pg_attribute
  WHERE atttypid = to_regtype('idem.key_digest')))
SQL
	is($stderr, '', "their indexes are sound: $name");
	return;
}

# Nothing crashed that the test did not kill, and nothing leaked. The test can pass a part of the log.
sub log_is_clean
{
	my ($node, %options) = @_;
	my $log = $options{log} // slurp_file($node->logfile);
	my $crash = qr/PANIC|TRAP:|terminated by signal (?!9)/;
	$crash = qr/PANIC|TRAP:|terminated by signal/ unless $options{killed};
	unlike($log, $crash, $node->name . ': no crash in the log');
	unlike($log,
		qr/don't own a lock|leak: |leaked|snapshot .* still active|still holds|still referenced|was not closed/,
		$node->name . ': nothing leaked');
	return;
}

1;
