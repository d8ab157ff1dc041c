# The soak: beside the storms, a steady load by sessions that live as long as the server does, in a
# database of their own, and what it takes over time: latency, memory, open files, disk. A slow leak
# shows only in a process that lives for long, so most storms spare the server (chaos.pl).
package Soak;

use strict;
use warnings;

use DBI;
use List::Util qw(max);
use POSIX ();
use PostgreSQL::Test::Utils;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC sleep);

my $sessions = 4;
my $per_second = 25;    # operations of each session, at most

# The storms' clock is some seventy times as fast as the real one: six hours last some five minutes.
my $setup = <<'SQL';
SELECT idem.create_scope('steady', ttl => '6 hours', lease => '1 minute', wait => '100 ms', store_request => 'always');
SELECT idem.create_scope('events', ttl => '6 hours');
CREATE FUNCTION work(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT request || '{"done": true}' $$;
SQL

my $execute = q{SELECT outcome FROM idem.execute('steady', $1, 'work(jsonb)', jsonb_build_object('amount', $2::int))};
my %operation = (
	new    => sub { my ($dbh, $key) = @_; $dbh->do($execute, undef, $key->(1), 1); },
	again  => sub { my ($dbh, $key) = @_; $dbh->do($execute, undef, $key->(0), 1); },
	other  => sub { my ($dbh, $key) = @_; $dbh->do($execute, undef, $key->(0), 2); },
	look   => sub { my ($dbh, $key) = @_; $dbh->do(q{SELECT * FROM idem.lookup('steady', $1)}, undef, $key->(0)); },
	events => sub {
		my ($dbh, $key) = @_;
		$dbh->do(q{SELECT * FROM idem.once_each('events', $1::text[])}, undef, [ map { $key->(1) } 1 .. 20 ]);
	},
	undone => sub {
		my ($dbh, $key) = @_;
		$dbh->do('BEGIN');
		$dbh->do(q{SELECT * FROM idem.claim('steady', $1)}, undef, $key->(1));
		$dbh->do('ROLLBACK');
	},
	lease => sub {
		my ($dbh, $key) = @_;
		my ($token) = $dbh->selectrow_array(q{SELECT token FROM idem.claim('steady', $1, lease => '1 minute')}, undef,
			$key->(1));
		complete($dbh, $token) if rand() < 0.8;
	},
	take => sub { my ($dbh) = @_; complete($dbh, $dbh->selectrow_array(q{SELECT token FROM idem.take('steady')})); },
);
my @operations = (('new') x 5, ('again') x 4, ('lease') x 3, qw(other look events undone take));

sub complete
{
	my ($dbh, $token) = @_;
	$dbh->do('SELECT idem.complete($1)', undef, $token) if defined $token;
	return;
}

# Options: servers, directory (for what the processes write), and every (seconds between two storms that
# end all processes).
sub new
{
	my ($class, %options) = @_;
	my $self = bless { %options, spent => clock_gettime(CLOCK_MONOTONIC) }, $class;
	$self->{begin} = $self->{spent};
	my $primary = $options{servers}{primary};
	$primary->safe_psql('postgres', 'CREATE DATABASE soak');
	$primary->safe_psql('soak', "CREATE EXTENSION idem; $setup");
	$self->{pids} = [ map { $self->in_background(sub { $self->load($_[0]) }, $_) } 1 .. $sessions ];
	push @{ $self->{pids} }, $self->in_background(sub { $self->sample });
	return $self;
}

sub in_background
{
	my ($self, $work, @arguments) = @_;
	my $parent = $$;
	my $pid = fork // die "fork: $!";
	return $pid if $pid;
	$self->{parent} = $parent;
	srand($$);
	eval { $work->(@arguments); 1 } or print STDERR "soak: $@";
	POSIX::_exit(0);
}

sub over { my ($self) = @_; return -e "$self->{directory}/soaked" || getppid != $self->{parent}; }

sub stop
{
	my ($self) = @_;
	append_to_file("$self->{directory}/soaked", '');
	waitpid $_, 0 for @{ $self->{pids} };
	return;
}

# Whether the next storm may end all processes. Their deaths begin new lines in the picture.
sub may_crash
{
	my ($self) = @_;
	my $now = clock_gettime(CLOCK_MONOTONIC);
	return 0 if $now < $self->{spent} + $self->{every};
	$self->{spent} = $now;
	return 1;
}

# The primary of the moment, or undef while there is none.
sub address
{
	my ($self) = @_;
	open my $file, '<', "$self->{directory}/target" or return;
	my ($host, $port, $database) = split ' ', <$file> // '';
	return $database ? ($host, $port) : ();
}

sub connection
{
	my ($self) = @_;
	return $self->{dbh} if $self->{dbh} && $self->{dbh}->ping;
	my ($host, $port) = $self->address or return;
	@$self{qw(host port)} = ($host, $port);
	$self->{dbh} = DBI->connect("dbi:Pg:host=$host;port=$port;dbname=soak;application_name=soak", '', '',
		{ PrintError => 0, PrintWarn => 0, RaiseError => 0, AutoCommit => 1 });
	$self->{dbh}{RaiseError} = 1 if $self->{dbh};
	return $self->{dbh};
}

# Load -------------------------------------------------------------------------------------------

sub load
{
	my ($self, $id) = @_;
	open my $out, '>', "$self->{directory}/latency.$id" or die $!;
	my $keys = 0;
	my $key = sub { return "$id-" . ($_[0] || !$keys ? ++$keys : max(1, $keys - int rand 1000)); };
	until ($self->over)
	{
		my $dbh = $self->connection or do { sleep 0.5; next };
		my $begin = clock_gettime(CLOCK_MONOTONIC);
		my $done = eval { $operation{ $operations[ int rand @operations ] }->($dbh, $key); 1 };
		my $end = clock_gettime(CLOCK_MONOTONIC);
		printf $out "%.3f\t%.3f\n", $end - $self->{begin}, 1000 * ($end - $begin) if $done || $dbh->state =~ /^ID/;
		eval { $dbh->do('ROLLBACK') } if !$done;
		sleep max(0, 1 / $per_second - ($end - $begin));
	}
	close $out or die $!;
	return;
}

# Samples ----------------------------------------------------------------------------------------

my @figures = qw(session_kb session_files worker_kb worker_files server_files table_bytes records claims memory_bytes);

# Private memory and open files of a process.
sub takes
{
	my ($pid) = @_;
	my ($kb) = (eval { slurp_file("/proc/$pid/status") } // '') =~ /^RssAnon:\s+(\d+)/m;
	my @files = glob "/proc/$pid/fd/*";
	return ($kb // 0, scalar @files);
}

# The newest values, of the sessions the largest; this one sorts when it rebuilds indexes.
sub look
{
	my ($self, $dbh) = @_;
	my %seen = (session_kb => 0, session_files => 0, server_files => 0);
	my ($own) = $dbh->selectrow_array('SELECT pg_backend_pid()');
	my ($postmaster) = split /\n/, slurp_file("$self->{host}/.s.PGSQL.$self->{port}.lock");
	for my $status (glob '/proc/[0-9]*/status')
	{
		my ($parent) = (eval { slurp_file($status) } // '') =~ /^PPid:\s+(\d+)/m;
		my ($pid) = $status =~ /(\d+)/;
		next unless $pid == $postmaster || ($parent // 0) == $postmaster;
		my ($kb, $files) = takes($pid);
		$seen{server_files} += $files;
		my $title = eval { slurp_file("/proc/$pid/cmdline") } // '';
		@seen{qw(worker_kb worker_files)} = ($kb, $files) if $title =~ /idem launcher/;
		next unless $title =~ / soak (?!.*(?:startup|authentication))/ && $pid != $own;
		$seen{session_kb} = max($kb, $seen{session_kb});
		$seen{session_files} = max($files, $seen{session_files});
	}
	@seen{qw(table_bytes records claims memory_bytes)} = $dbh->selectrow_array(
		q{SELECT pg_total_relation_size('idem.record'), (SELECT count(*) FROM idem.record),
			(SELECT sum(claims + replays) FROM idem.stats),
			(SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name ILIKE '%idem%')});
	return join "\t", map { $_ // '' } @seen{@figures};
}

# Meanwhile an administrator changes a rule and rebuilds the indexes, which the sessions must notice.
sub sample
{
	my ($self) = @_;
	open my $out, '>', "$self->{directory}/samples" or die $!;
	my $n = 0;
	until ($self->over)
	{
		sleep 1 for 1 .. 10;
		my $dbh = $self->connection or next;
		my $seen = eval { $self->look($dbh) } // next;
		printf $out "%.0f\t%s\n", clock_gettime(CLOCK_MONOTONIC) - $self->{begin}, $seen;
		eval { $dbh->do(q{SELECT idem.alter_scope('steady', min_ttl => make_interval(secs => random() * 60),
			wait => '1 s')}) };
		eval { $dbh->do('REINDEX TABLE CONCURRENTLY idem.record') } if ++$n % 30 == 0;
	}
	close $out or die $!;
	return;
}

# Results ----------------------------------------------------------------------------------------

sub percentile { my ($of, @sorted) = @_; return $sorted[ int($of * $#sorted) ]; }

sub median { return percentile(0.5, sort { $a <=> $b } @_); }

# A line per minute: minute, latencies in ms, and the medians of the samples. Returns the lines.
sub results
{
	my ($self) = @_;
	my (%latency, %sample, @lines);
	for my $file (map { "$self->{directory}/latency.$_" } 1 .. $sessions)
	{
		open my $in, '<', $file or die $!;
		while (<$in>) { push @{ $latency{ int($1 / 60) } }, $2 if /^(\S+)\t(\S+)$/; }
	}
	open my $in, '<', "$self->{directory}/samples" or die $!;
	while (<$in>)
	{
		my ($at, @values) = /([\d.]+)/g;
		push @{ $sample{ int($at / 60) } }, \@values if @values == @figures;
	}
	for my $minute (sort { $a <=> $b } grep { $latency{$_} } keys %sample)
	{
		my @sorted = sort { $a <=> $b } @{ $latency{$minute} };
		my %line = (minute => $minute, operations => scalar @sorted,
			map { ("p$_" => percentile($_ / 100, @sorted)) } 50, 99);
		for my $n (0 .. $#figures) { $line{ $figures[$n] } = median(map { $_->[$n] } @{ $sample{$minute} }); }
		$line{record_bytes} = $line{table_bytes} / ($line{records} || 1);
		push @lines, \%line;
	}
	pop @lines;    # not a whole minute
	return @lines;
}

sub write
{
	my ($file, @lines) = @_;
	my @columns = ('minute', 'operations', 'p50', 'p99', @figures, 'record_bytes');
	open my $out, '>', $file or die "$file: $!";
	print $out join("\t", @columns), "\n", map { my $line = $_; join("\t", @$line{@columns}) . "\n" } @lines;
	close $out or die $!;
	return;
}

# The minutes of the server's longest life, whose statistics begin at zero.
sub longest_life
{
	my @lives = [];
	my $before = 0;
	for my $line (@_)
	{
		push @lives, [] if $line->{claims} < $before;
		$before = $line->{claims};
		push @{ $lives[-1] }, $line;
	}
	return @{ (sort { @$b <=> @$a } @lives)[0] };
}

# How much more of a figure the last quarter of these minutes has than the second.
sub growth
{
	my ($figure, @lines) = @_;
	my $quarter = int(@lines / 4) or return 'inf';
	my ($second, $last) = map { median(map { $_->{$figure} } @lines[ $_ * $quarter .. ($_ + 1) * $quarter - 1 ]) } 1, 3;
	return $last / ($second || 1);
}

1;
