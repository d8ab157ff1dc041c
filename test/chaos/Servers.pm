# The primary and its synchronous standby, which change places; their clocks, disks and memory; and the
# database in which the clients are at work.
package Servers;

use strict;
use warnings;

use DBI;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Shim;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC CLOCK_REALTIME sleep);

my $conf = <<'CONF';
shared_preload_libraries = 'idem'
idem.purge_naptime = 1s
autovacuum = on
max_connections = 60
max_prepared_transactions = 60
shared_buffers = 64MB
fsync = off
wal_keep_size = 512MB
max_wal_size = 256MB
checkpoint_timeout = 30s
wal_retrieve_retry_interval = 50ms
wal_sender_timeout = 0
wal_receiver_timeout = 0
deadlock_timeout = 200ms
log_statement = none
log_connections = off
log_disconnections = off
log_min_messages = warning
log_min_error_statement = panic
CONF

# The directory is for the files that the servers, the clients and the test share. Without a library,
# no clock, disk or memory can be broken.
sub new
{
	my ($class, $directory, $library) = @_;
	my $self = bless { directory => $directory, library => $library, shim => {}, offset => 0, highest => 0 }, $class;
	$self->{monotonic_zero} = int 1_000_000 * (clock_gettime(CLOCK_REALTIME) - clock_gettime(CLOCK_MONOTONIC));
	my @nodes = map { $self->prepare($_) } qw(alpha beta);
	return $self;
}

sub prepare
{
	my ($self, $name) = @_;
	if ($self->{library})
	{
		$self->{shim}{$name} = Shim->new($self->{library}, "$self->{directory}/faults.$name");
		$self->{shim}{$name}->set(clock => $self->{monotonic_zero});
	}
	if (!$self->{primary})
	{
		local %ENV = (%ENV, $self->environment($name));
		$self->{primary} = idem_node($name, bare => 1, init => { allows_streaming => 1 }, conf => $conf);
		$self->{primary}->backup('base');
		return;
	}
	$self->{standby} = PostgreSQL::Test::Cluster->new($name);
	$self->{standby}->init_from_backup($self->{primary}, 'base', has_streaming => 1);
	$self->start($self->{standby});
	return;
}

sub environment { my ($self, $name) = @_; return $self->{library} ? $self->{shim}{$name}->environment : (); }

sub start
{
	my ($self, $node) = @_;
	local %ENV = (%ENV, $self->environment($node->name));
	$node->start;
	return;
}

sub shim { my ($self) = @_; return $self->{shim}{ $self->{primary}->name }; }

# Questions to the primary -----------------------------------------------------------------------

sub connect_to
{
	my ($self, $node, $database) = @_;
	my $dbh = DBI->connect(sprintf('dbi:Pg:host=%s;port=%s;dbname=%s;application_name=admin', $node->host, $node->port,
			$database),
		'', '', { PrintError => 0, PrintWarn => 0, RaiseError => 1, AutoCommit => 1 });
	$dbh->{pg_server_prepare} = 0;
	return $dbh;
}

sub ask
{
	my ($self, $query, @values) = @_;
	$self->{dbh} = undef if $self->{dbh} && !$self->{dbh}->ping;
	$self->{dbh} //= $self->connect_to($self->{primary}, 'postgres');
	return $self->{dbh}->selectcol_arrayref($query, undef, @values);
}

sub forget_connection
{
	my ($self) = @_;
	my $dbh = delete $self->{dbh} or return;
	local $SIG{__WARN__} = sub { };
	eval { $dbh->disconnect };
	return;
}

# The process ids of the clients' backends, those at work first.
sub clients
{
	my ($self) = @_;
	return @{ (eval { $self->ask(q{SELECT pid FROM pg_stat_activity WHERE application_name = 'chaos'
		ORDER BY state = 'active' DESC, random()}) }) // [] };
}

# Crashes ----------------------------------------------------------------------------------------

sub crash_backend
{
	my ($self) = @_;
	my ($pid) = $self->clients or return 0;
	kill('KILL', $pid) or return 0;
	$self->recover;
	return 1;
}

# Until the primary answers again after a crash: a server that has not restarted by itself is started.
sub recover
{
	my ($self) = @_;
	my $node = $self->{primary};
	sleep 0.1;
	for (1 .. 600)
	{
		$self->forget_connection;
		return if eval { $self->ask('SELECT 1') };
		my $pid = eval { (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0] };
		if (!$pid || !kill(0, $pid))
		{
			$node->{_pid} = undef;
			$self->start($node);
		}
		sleep 0.05;
	}
	die 'the primary does not recover';
}

# Kills all processes of the primary. It may be recovering from a fault that came before, and is asked
# for its processes again then.
sub kill_primary
{
	my ($self) = @_;
	for (1 .. 10)
	{
		$self->recover;
		return if eval { kill_postmaster($self->{primary}); 1 };
	}
	die "the primary does not tell its processes: $@";
}

sub restart
{
	my ($self, $how) = @_;
	$how eq 'kill' ? $self->kill_primary : $self->{primary}->stop('immediate');
	$self->forget_connection;
	$self->start($self->{primary});
	return;
}

# Failover ---------------------------------------------------------------------------------------

# PostgreSQL shows a commit that waits for the standby once the wait was cancelled, or the server
# crashed (docs/high-availability.md, rule 3). So all that has become visible in this way is on the standby
# before the primary dies; what is committed from here on waits for the standby as it should.
sub fail_over
{
	my ($self) = @_;
	$self->catch_up;
	sleep rand 0.3;
	$self->target;
	$self->kill_primary;
	$self->{standby}->promote;
	@$self{qw(primary standby)} = @$self{qw(standby primary)};
	$self->target($self->{database});
	return;
}

sub rejoin
{
	my ($self) = @_;
	rewind($self->{standby}, $self->{primary}) or die 'pg_rewind failed';
	$self->start($self->{standby});
	replicate($self->{primary}, $self->{standby}, 'synchronous');
	return;
}

# Until the standby has all that the primary has written so far.
sub catch_up
{
	my ($self) = @_;
	$self->{primary}->wait_for_catchup($self->{standby}, 'replay', $self->{primary}->lsn('insert'));
	return;
}

# The clock --------------------------------------------------------------------------------------

# Sets both servers' clocks, and writes it into the history.
sub set_clock
{
	my ($self, $offset) = @_;
	return unless $self->{library};
	my $before = clock_gettime(CLOCK_MONOTONIC);
	$_->set(clock => $self->{monotonic_zero} + $offset * 1_000_000) for values %{ $self->{shim} };
	append_to_file($self->{history}, join("\t", $before, clock_gettime(CLOCK_MONOTONIC), 'clock', $offset) . "\n");
	$self->{offset} = $offset;
	$self->{highest} = $offset if $offset > $self->{highest};
	return;
}

# The database -----------------------------------------------------------------------------------

# Tells the clients where to work: in this database of the primary, or nowhere.
sub target
{
	my ($self, $database) = @_;
	my $file = "$self->{directory}/target";
	open my $out, '>', "$file.new" or die $!;
	print $out $database ? join(' ', $self->{primary}->host, $self->{primary}->port, $database) : 'wait';
	close $out;
	rename "$file.new", $file or die $!;
	$self->{database} = $database if $database;
	return;
}

sub sql
{
	my ($self, $sql) = @_;
	return $self->{primary}->safe_psql($self->{database}, $sql);
}

sub create_database
{
	my ($self, $name, $script) = @_;
	my $primary = $self->{primary};
	$primary->safe_psql('postgres', "CREATE DATABASE $name");
	if (managed_edition()) { install_managed($primary, $name); }
	else { $primary->safe_psql($name, 'CREATE EXTENSION idem; CREATE EXTENSION idem_test'); }
	$primary->safe_psql($name, "CREATE EXTENSION amcheck; $script");
	return;
}

sub drop_database
{
	my ($self, $name) = @_;
	$self->{primary}->safe_psql('postgres', "DROP DATABASE $name WITH (FORCE)");
	return;
}

# Sends the clients away, and ends all that is still going on in the database. A client that was about
# to connect would go on in it while it is dumped; so it gets another name.
sub clear_database
{
	my ($self) = @_;
	my $old = $self->{database};
	$self->target;
	for (1 .. 100)
	{
		$self->{primary}->psql('postgres', "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
			WHERE datname = '$old'");
		$self->commit_prepared;
		if ($self->{primary}->psql('postgres', "ALTER DATABASE $old RENAME TO ${old}_left") == 0)
		{
			$self->{database} = "${old}_left";
			return;
		}
	}
	die "clients remain in database $old";
}

sub commit_prepared
{
	my ($self) = @_;
	my $gids = $self->ask('SELECT gid FROM pg_prepared_xacts WHERE database = ?', $self->{database});
	$self->sql("COMMIT PREPARED '$_'") for @$gids;
	return scalar @$gids;
}

# Moves the database through a dump into another one, where the clients go on.
sub has_pg_repack
{
	my ($self) = @_;
	return installed('pg_repack') && $self->{primary}->safe_psql('postgres',
		q{SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_repack'});
}

# What an interrupted pg_repack leaves: a trigger on a table of idem, and the table that it fills.
sub clear_pg_repack { my ($self) = @_; $self->sql('DROP EXTENSION IF EXISTS pg_repack CASCADE'); return; }

sub move_database
{
	my ($self) = @_;
	my ($primary, $new, $dump) = ($self->{primary}, "$self->{database}r", "$self->{directory}/dump.sql");
	$self->recover;
	$self->clear_database;
	$self->clear_pg_repack;    # not earlier: beside a claim that fires the trigger, it can deadlock
	my $old = $self->{database};
	$primary->safe_psql('postgres', "CREATE DATABASE $new");
	run_log([ 'pg_dump', '-f', $dump, $primary->connstr($old) ]) or die 'pg_dump failed';
	run_log([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump, $primary->connstr($new) ])
	  or die 'the restore failed';
	unlink $dump;
	$self->target($new);
	$self->drop_database($old);
	return;
}

1;
