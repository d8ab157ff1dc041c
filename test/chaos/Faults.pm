# The faults, and the deck from which they are drawn.
package Faults;

use strict;
use warnings;

use Fcntl ();
use IdemTest;
use List::Util qw(max shuffle sum0);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC sleep);

# Each kind with its number in a deck. Those of clients strike several of them at once.
my @kinds = (
	cancel      => 110,   # pg_cancel_backend
	terminate   => 50,    # pg_terminate_backend
	cut         => 70,    # the proxy loses a message, and its connection
	memory      => 8,     # allocations of one backend fail
	clock       => 5,     # the servers' clock is set forward, and sometimes back
	disk        => 3,     # tables cannot grow
	scope       => 16,    # a rule of a scope is changed and often changed back, or the secret is rotated
	identity    => 2,     # a change of a scope that would give live keys another identity
	backend     => 2,     # kill -9 of a backend: all others end, and the server recovers
	extension   => 2,     # ALTER EXTENSION
	reindex     => 2,     # REINDEX CONCURRENTLY
	vacuum_full => 1,
	cluster     => 1,
	move        => 2,     # the records of a scope are moved to another table
	audit       => 4,     # a trigger that copies idem.record is added, or taken away after a comparison
	repack      => 2,     # pg_repack
	wal         => 1,     # the WAL cannot be written: PANIC
	worker      => 1,     # kill -9 of the purge worker
	postmaster  => 1,     # kill -9 of all processes
	immediate   => 1,     # pg_ctl stop -m immediate, and start
	promote     => 1,     # kill -9 of all processes, promotion, and the old primary rewound as the new standby
	dump        => 1,     # dump and restore into another database, where the clients go on
);
my %needs_shim = map { $_ => 1 } qw(clock disk wal memory);
# The SQL edition has no worker and no record tables, and is no extension.
my %needs_extension = map { $_ => 1 } qw(extension worker move);
my %ends_all = map { $_ => 1 } qw(backend wal worker postmaster immediate promote);
my %weight = @kinds;

# Rules for new keys, with two values each.
my @rules = (
	[qw(request_required true false)],
	[qw(tenant_required true false)],
	[qw(claims_per_minute 60 -1)],
	[qw(weak_keys 'reject' 'allow')],
	[qw(reject_stale_keys true false)],
	[ 'min_ttl', q('1 minute'), q('0') ],);
@rules = grep { $_->[0] ne 'claims_per_minute' } @rules if managed_edition();

sub kinds { return map { $kinds[ 2 * $_ ] } 0 .. $#kinds / 2 }

# Options: servers, cutter, only (kinds, or empty for all), directory.
sub new
{
	my ($class, %options) = @_;
	my %unknown = map { $_ => 1 } @{ $options{only} };
	delete @unknown{ kinds() };
	die 'unknown faults: ' . join(', ', sort keys %unknown) . "\n" if %unknown;
	my @chosen = @{ $options{only} } ? @{ $options{only} } : kinds();
	@chosen = grep { $options{servers}{library} || !$needs_shim{$_} } @chosen;
	@chosen = grep { !managed_edition() || !$needs_extension{$_} } @chosen;
	@chosen = grep { $_ ne 'repack' || $options{servers}->has_pg_repack } @chosen;
	return bless { %options, chosen => \@chosen, count => { map { $_ => 0 } @chosen }, jobs => {}, stuck => 0,
		seen => {} }, $class;
}

# All of a deck's faults in random order. What did not come off for once (a server that was
# recovering, a job that another fault ended) is tried again alone. May it end all processes?
sub deal
{
	my ($self, $crash) = @_;
	my %before = %{ $self->{count} };
	my @chosen = grep { $crash || !$ends_all{$_} } @{ $self->{chosen} };
	my @deck = shuffle map { ($_) x $weight{$_} } @chosen;
	for my $kind (@deck)
	{
		$self->inject($kind);
		$self->reap;
		sleep rand 0.12;
	}
	$self->finish_jobs;
	for my $kind (@chosen)
	{
		for (1 .. 20)
		{
			last if $self->{count}{$kind} > $before{$kind};
			$self->inject($kind);
			$self->finish_jobs;
			sleep 0.2;
		}
	}
	return;
}

sub inject
{
	my ($self, $kind) = @_;
	my $done = eval { $self->can("do_$kind")->($self) };
	if ($@)
	{
		my $error = $@;
		die $error if $kind =~ /^(?:promote|dump|postmaster|immediate)$/;
		$self->{servers}->recover;
	}
	$self->{count}{$kind} += $done || 0;
	return;
}

# Signals ----------------------------------------------------------------------------------------

# One to so many clients at the same moment. Returns how many.
sub signal
{
	my ($self, $signal, $most) = @_;
	my @clients = $self->{servers}->clients;
	return scalar grep { kill $signal, $_ } grep { defined } @clients[ 0 .. int rand $most ];
}

sub do_cancel    { my ($self) = @_; return $self->signal(INT => 4); }
sub do_terminate { my ($self) = @_; return $self->signal(TERM => 2); }
sub do_backend   { my ($self) = @_; return $self->{servers}->crash_backend; }

# Counts the connections that the proxy has cut since the last time.
sub do_cut
{
	my ($self) = @_;
	my $before = $self->{cuts} // 0;
	$self->{cutter}->cut(1 + int rand 3);
	$self->{cuts} = $self->{cutter}->cuts;
	return $self->{cuts} - $before;
}

# The purge worker exists for some milliseconds per run; the launcher is its parent in all but name.
sub do_worker
{
	my ($self) = @_;
	my $servers = $self->{servers};
	my $until = clock_gettime(CLOCK_MONOTONIC) + 3;
	while (clock_gettime(CLOCK_MONOTONIC) < $until)
	{
		my ($pid) = @{ $servers->ask(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idem purger'}) };
		next unless $pid && kill 'KILL', $pid;
		$servers->recover;
		return 1;
	}
	return 0;
}

# Servers ----------------------------------------------------------------------------------------

sub do_postmaster { my ($self) = @_; $self->finish_jobs; $self->{servers}->restart('kill'); return 1; }
sub do_immediate  { my ($self) = @_; $self->finish_jobs; $self->{servers}->restart('immediate'); return 1; }

sub do_promote
{
	my ($self) = @_;
	$self->finish_jobs;
	$self->{servers}->fail_over;
	$self->{servers}->rejoin;
	return 1;
}

sub do_dump
{
	my ($self) = @_;
	$self->finish_jobs;
	$self->{servers}->move_database;
	return 1;
}

# The machine ------------------------------------------------------------------------------------

# Forward by more than a lease, or more than a TTL. It stays there, or goes back.
sub do_clock
{
	my ($self) = @_;
	my $servers = $self->{servers};
	my $before = $servers->{offset};
	$servers->set_clock($before + (rand() < 0.5 ? 5 + int rand 60 : 330 + int rand 1200));
	return 1 if rand() < 0.5;
	sleep rand 0.5;
	$servers->set_clock($before + int rand 5);
	return 2;
}

sub do_disk
{
	my ($self) = @_;
	my $shim = $self->{servers}->shim;
	my $before = $shim->get('failed_write');
	$shim->set(disk => 1);
	for (1 .. 40)
	{
		sleep 0.01 + rand 0.01;
		last if $shim->get('failed_write') > $before + 3;
	}
	$shim->set(disk => 0);
	return $shim->get('failed_write') > $before ? 1 : 0;
}

sub do_wal
{
	my ($self) = @_;
	my $shim = $self->{servers}->shim;
	my $before = $shim->get('failed_write');
	$shim->set(disk => 2);
	for (1 .. 500)
	{
		sleep 0.004;
		last if $shim->get('failed_write') > $before;
	}
	$shim->set(disk => 0);
	my $failed = $shim->get('failed_write') > $before;
	$self->{servers}->recover if $failed;
	return $failed ? 1 : 0;
}

sub do_memory
{
	my ($self) = @_;
	my $shim = $self->{servers}->shim;
	my ($pid) = $self->{servers}->clients or return 0;
	my $before = $shim->get('failed_alloc');
	$shim->set(one_in => (3, 20, 100)[ int rand 3 ]);
	$shim->set(memory => $pid);
	for (1 .. 20)
	{
		sleep 0.01;
		last if $shim->get('failed_alloc') > $before + 5;
	}
	$shim->set(memory => 0);
	return $shim->get('failed_alloc') > $before ? 1 : 0;
}

# Statements of administrators -------------------------------------------------------------------

sub do_reindex
{
	my ($self) = @_;
	return 0 if grep { $_ eq 'repack' } values %{ $self->{jobs} };
	return $self->job(reindex => 'REINDEX TABLE CONCURRENTLY ' . (rand() < 0.8 ? $self->records : 'idem.watermark'));
}
sub do_vacuum_full { my ($self) = @_; return $self->job(vacuum_full => 'VACUUM FULL ' . $self->records); }
sub do_cluster
{
	my ($self) = @_;
	return $self->job(cluster => $self->records =~ s/(.*\.)(\w+)/CLUSTER $1$2 USING $2_pkey/r);
}
sub do_audit       { my ($self) = @_; return $self->job(audit => 'CALL chaos.audit()'); }
sub do_move        { my ($self) = @_; return $self->job(move => 'CALL chaos.move()'); }

# One that was interrupted has left its trigger behind, and would refuse to begin again. And it swaps the
# table, but not the indexes that an interrupted REINDEX CONCURRENTLY has left behind: they would point
# into another file.
sub do_repack
{
	my ($self) = @_;
	return 0 if grep { /^re(index|pack)$/ } values %{ $self->{jobs} };
	my $table = rand() < 0.8 ? $self->records : 'idem.watermark';
	my $primary = $self->{servers}{primary};
	my $to = join ' ', '-h', $primary->host, '-p', $primary->port, '-d', $self->{servers}{database};
	return $self->start_job(repack => 'sh', '-c', <<"SH");
export PGOPTIONS='-c lock_timeout=5s -c client_min_messages=error'
psql -Xq -v ON_ERROR_STOP=1 $to <<'SQL' &&
DROP EXTENSION IF EXISTS pg_repack CASCADE;
CREATE EXTENSION pg_repack;
SELECT format('DROP INDEX %s', indexrelid::regclass) FROM pg_index
WHERE indrelid = '$table'::regclass AND NOT (indisvalid AND indisready) \\gexec
SQL
exec pg_repack --no-kill-backend --wait-timeout 5 $to -t $table
SH
}

# One of the tables with records.
sub records
{
	my ($self) = @_;
	my $elsewhere = eval { $self->{servers}->sql(q{SELECT oid::regclass FROM pg_class WHERE relkind = 'r'
		AND relnamespace = to_regnamespace('elsewhere')}) };
	my @tables = ('idem.record', split /\n/, $elsewhere // '');
	return $tables[ int rand @tables ];
}

sub do_extension
{
	my ($self) = @_;
	return $self->job(extension => 'ALTER EXTENSION idem ADD TABLE chaos.effect;
		ALTER EXTENSION idem DROP TABLE chaos.effect');
}

# Rules of comparison stay until the next change, rules for new keys for a moment. None may matter to a
# key that has a record; the limit and the rest are seldom reached, or never.
sub do_scope
{
	my ($self) = @_;
	return $self->job(scope => 'SELECT idem.rotate_secret()') if rand() < 0.15;
	my $scope = (qw(lasting lasting lasting brief brief few events streams))[ int rand 8 ];
	my $exclude = ('{sent_at}', '{sent_at, amount}', '{key, sent_at}', '{sent_at, note.a}')[ int rand 4 ];
	return $self->job(scope => "SELECT idem.alter_scope('$scope', request_exclude => '$exclude')") if rand() < 0.4;
	my ($rule, $on, $off) = @{ $rules[ int rand @rules ] };
	my $wait = 50 + int rand 100;
	$self->job(scope => "SELECT idem.alter_scope('$scope', $rule => $on, wait => '$wait ms')",
		'SELECT pg_sleep(random() * 0.5)',
		"SELECT idem.alter_scope('$scope', $rule => $off, force => true)");
	return 0;
}

sub do_identity { my ($self) = @_; return $self->job(identity => 'CALL chaos.change_identity()'); }

# The rules for new keys as they were when the epoch began; and the last claims wait longer than the
# purge worker holds an expired record, on any machine.
sub restore_rules
{
	my ($self) = @_;
	for my $scope (qw(lasting brief few events streams))
	{
		$self->{servers}->sql("SELECT idem.alter_scope('$scope', " . join(', ', map { "$_->[0] => $_->[2]" } @rules)
			. ", wait => '30 s')");
	}
	return;
}

# Runs in the background, and counts if it succeeds.
sub job
{
	my ($self, $kind, @sql) = @_;
	return 0 if grep { $_ eq $kind } values %{ $self->{jobs} };
	my @psql = ('psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d',
		$self->{servers}{primary}->connstr($self->{servers}{database}), '-c', "SET lock_timeout = '5s'");
	push @psql, '-c', 'SET statement_timeout = 0';
	return $self->start_job($kind => @psql, map { ('-c', $_) } @sql);
}

sub start_job
{
	my ($self, $kind, @command) = @_;
	my $pid = fork // die "fork: $!";
	if (!$pid)
	{
		open STDOUT, '>', '/dev/null';
		open STDERR, '>>', "$self->{directory}/jobs.log";
		exec @command;
	}
	$self->{jobs}{$pid} = $kind;
	return 0;
}

sub reap
{
	my ($self) = @_;
	$self->end_stuck;
	for my $pid (keys %{ $self->{jobs} })
	{
		next unless waitpid($pid, 1) == $pid;    # WNOHANG
		my $kind = delete $self->{jobs}{$pid};
		$self->{count}{$kind}++ if $? == 0;
	}
	return;
}

sub finish_jobs
{
	my ($self) = @_;
	my $until = clock_gettime(CLOCK_MONOTONIC) + 60;
	while (%{ $self->{jobs} })
	{
		$self->reap;
		sleep 0.02;
		kill 'TERM', keys %{ $self->{jobs} } if clock_gettime(CLOCK_MONOTONIC) > $until;
	}
	return;
}

# PostgreSQL measures its timeouts by the time of day: where the clock was set back, a timeout comes
# that much later, and even a deadlock is found late. As an administrator would, this ends what has
# run for ten seconds. Without clock faults, there must be no such session.
sub end_stuck
{
	my ($self) = @_;
	my $now = clock_gettime(CLOCK_MONOTONIC);
	return if $now < ($self->{looked} // 0) + 1;
	$self->{looked} = $now;
	my $running = eval { $self->{servers}->ask(q{
		SELECT concat_ws(' ', pid, extract(epoch FROM query_start), state, wait_event_type, wait_event,
			pg_blocking_pids(pid))
		FROM pg_stat_activity WHERE application_name = 'chaos' AND state = 'active'}) } // [];
	my %session = map { /^(\S+ \S+) (.*)/ ? ($1 => $2) : () } @$running;
	my %seen = map { $_ => $self->{seen}{$_} // $now } keys %session;
	for my $stuck (grep { $seen{$_} < $now - 10 } keys %seen)
	{
		my ($pid) = split ' ', $stuck;
		next unless kill 'TERM', $pid;
		$self->{stuck}++;
		PostgreSQL::Test::Utils::append_to_file("$self->{directory}/jobs.log", "stuck: $pid $session{$stuck}\n");
	}
	$self->{seen} = \%seen;
	return;
}

sub total { my ($self) = @_; return sum0(values %{ $self->{count} }); }

sub summary
{
	my ($self) = @_;
	return join ', ', map { "$_ $self->{count}{$_}" } @{ $self->{chosen} };
}

1;
