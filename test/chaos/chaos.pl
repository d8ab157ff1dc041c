# Chaos: many clients with all kinds of calls, faults of all kinds at random, and a checker that knows
# nothing but the history of calls and answers. test/chaos/README.md explains it; test/run chaos runs
# it.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin", "$FindBin::Bin/../t";

use File::Copy qw(copy);
use POSIX ();
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC sleep);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use IdemTest;

plan skip_all => 'DBD::Pg is not installed' unless eval { require DBD::Pg; 1 };
require Checker;
require Client;
require Cutter;
require Faults;
require Servers;
require Soak;

my $seconds = $ENV{TEST_SECONDS} || 60;
my $seed = $ENV{SEED} || 1;
my $clients = $ENV{CLIENTS} || 8;
my $unprotected = $ENV{BREAK};
my $managed = managed_edition();
my %ttl = (b => 300);
my $pause = 0.3;
# Calls of every new kind have had the answer that they are made for.
my @must_happen = ('take: hold', 'take_end: did', 'pause: free', 'revoke: revoked', 'erase: erased',
	'cancel: did', 'await: had', 'lookup: had', 'lease: exhausted', 'lease_wait: ID014', 'cancel: exhausted',
	'late: did', $managed ? () : 'rehearse: free');
my %happened;

my $directory = PostgreSQL::Test::Utils::tempdir;
my $library = Shim::build("$FindBin::Bin/faults.c", $directory);
diag 'no C compiler: clock, disk, wal and memory are NOT TESTED' unless $library;
my $servers = Servers->new($directory, $library);
$servers->{history} = "$directory/clock";
replicate($servers->{primary}, $servers->{standby}, 'synchronous');
my $script = slurp_file("$FindBin::Bin/schema.sql");
$script .= slurp_file("$FindBin::Bin/records.sql") if !$managed;
$script .= slurp_file("$FindBin::Bin/unprotected.sql") if $unprotected;
$servers->target;
my $cutter = Cutter->new($servers->{primary}, target => "$directory/target");
my $faults = Faults->new(servers => $servers, cutter => $cutter, directory => $directory,
	only => [ split /,/, $ENV{FAULTS} // '' ]);
my $soak = $ENV{SOAK} && Soak->new(servers => $servers, directory => $directory, every => $ENV{SOAK});

my ($acknowledged, $unknown, $violations) = (0, 0, 0);
my @reports;    # of the first violations of each epoch

# Clients and faults -----------------------------------------------------------------------------

sub history { my ($epoch, $id) = @_; return "$directory/history.$epoch.$id"; }

sub fork_client
{
	my ($epoch, $n) = @_;
	my $parent = $$;
	my $pid = fork // die "fork: $!";
	return $pid if $pid;
	my $client = Client->new(
		id      => "c$n",
		parent  => $parent,
		seed    => $seed * 1_000_003 + $epoch * 101 + $n,
		target  => "$directory/target",
		history => history($epoch, $n),
		stop    => "$directory/stop",
		proxy   => $n % 2 ? $cutter->port : undef);
	eval { $client->run; 1 } or do { print STDERR "client $n: $@"; POSIX::_exit(1) };
	POSIX::_exit(0);
}

# Waits for processes, and meanwhile for sessions that are stuck. Returns how many failed.
sub finish_clients
{
	my %left = map { $_ => 1 } @_;
	my $failed = 0;
	while (%left)
	{
		for my $pid (keys %left)
		{
			next unless waitpid($pid, POSIX::WNOHANG()) == $pid;
			delete $left{$pid};
			$failed++ if $?;
		}
		$faults->end_stuck;
		sleep 0.02;
	}
	return $failed;
}

# Afterwards -------------------------------------------------------------------------------------

# The keys of an epoch that can be claimed.
sub keys_of
{
	my ($epoch) = @_;
	my %keys;
	for my $n (1 .. $clients)
	{
		open my $in, '<', history($epoch, $n) or die $!;
		while (<$in>) { $keys{$1} = 1 if /^(?:[^\t]*\t){4}([abf][0-9a-f]+)\t/; }
	}
	return sort keys %keys;
}

my $asked = 0;

# Many calls of one kind, each with an answer of its own.
sub ask
{
	my ($dbh, $out, $client, $kind, @keys) = @_;
	while (my @some = splice @keys, 0, 500)
	{
		my @uids = map { 'finish.' . ++$asked } @some;
		my $invoked = clock_gettime(CLOCK_MONOTONIC);
		my ($answers) = $dbh->selectrow_array('SELECT chaos.calls($1, $2, $3, $4)', undef,
			[ map { $kind } @some ], \@some, \@uids, [ map { undef } @some ]);
		my $returned = clock_gettime(CLOCK_MONOTONIC);
		print $out join("\t", $invoked, $returned, $client, $kind, $some[$_], $uids[$_], $answers->[$_], ''), "\n"
		  for 0 .. $#some;
	}
	return;
}

# idem.take() finds every operation that was begun and abandoned.
sub take_all
{
	my ($dbh, $out, @scopes) = @_;
	for my $scope (@scopes)
	{
		my $answer = '';
		while ($answer ne 'idle')
		{
			my ($id, $invoked) = ('finish.' . ++$asked, clock_gettime(CLOCK_MONOTONIC));
			($answer) = $dbh->selectrow_array(q{SELECT chaos.call('take_end', ?, ?, NULL)}, undef, $scope, $id);
			my ($key) = $answer =~ /^took (\S+) did$/ or next;
			print $out join("\t", $invoked, clock_gettime(CLOCK_MONOTONIC), 'finish', 'take_end', $key, $id, 'did', ''),
				"\n";
		}
	}
	return;
}

# No caller can begin or cancel an operation without attempts left. Then all are allowed more.
sub allow_more
{
	my ($epoch, $dbh, $out, @keys) = @_;
	is($dbh->selectrow_array(q{SELECT count(*) FROM idem.in_flight WHERE state <> 'exhausted'}), 0,
		"epoch $epoch: every operation that was left was taken");
	ask($dbh, $out, 'last', 'cancel', @keys);
	my $invoked = clock_gettime(CLOCK_MONOTONIC);
	$dbh->do(q{SELECT idem.alter_scope('few', max_attempts => -1)});
	print $out join("\t", $invoked, clock_gettime(CLOCK_MONOTONIC), 'allow', 'f'), "\n";
	take_all($dbh, $out, 'f');
	is($dbh->selectrow_array('SELECT count(*) FROM idem.in_flight'), 0,
		"epoch $epoch: every operation that got more attempts was taken");
	return;
}

# Every key can be brought to an end, once its lease has ended.
sub finish_keys
{
	my ($epoch) = @_;
	$servers->set_clock($servers->{highest} + 60);
	my $dbh = $servers->connect_to($servers->{primary}, $servers->{database});
	open my $out, '>', history($epoch, 'finish') or die $!;
	my @keys = keys_of($epoch);
	if (!$unprotected)
	{
		take_all($dbh, $out, qw(a b f));
		allow_more($epoch, $dbh, $out, grep { /^f/ } @keys);
	}
	ask($dbh, $out, 'finish', 'claim', @keys);
	close $out or die $!;
	$dbh->disconnect;
	return;
}

sub fetch_effects
{
	my ($epoch) = @_;
	my $file = history($epoch, 'effects');
	append_to_file($file, $servers->{primary}->safe_psql($servers->{database},
		q{COPY (SELECT key, uid, result, coalesce(seq::text, '') FROM chaos.effect) TO STDOUT}) . "\n");
	return;
}

my $fingerprint = q{SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM %s t};
sub same_on_standby
{
	my ($table) = @_;
	my $query = sprintf $fingerprint, $table;
	is($servers->{standby}->safe_psql($servers->{database}, $query), $servers->sql($query),
		"the standby agrees: $table");
	return;
}

# What an administrator looks at once the faults have ended.
sub check_servers
{
	my ($epoch) = @_;
	# REINDEX CONCURRENTLY leaves an index behind if it is interrupted.
	$servers->sql($_) for split /\n/, $servers->sql(
		q{SELECT format('DROP INDEX %s', indexrelid::regclass) FROM pg_index WHERE NOT indisvalid OR NOT indisready});
	$servers->clear_pg_repack;
	$servers->sql('CALL chaos.audit()') if $servers->sql(q{SELECT count(*) FROM pg_trigger WHERE tgname = 'mirror'});
	is($servers->sql('SELECT place, record FROM chaos.unseen LIMIT 9'), '',
		'a trigger has seen every change of idem.record');
	$servers->sql('SELECT idem.purge(1000000)');
	$servers->sql('VACUUM idem.record');    # autovacuum comes once per minute
	$servers->sql('CALL chaos.change_identity()');
	is($servers->sql('SELECT change FROM chaos.accepted'), '', 'no change gave live keys another identity');
	is($servers->ask('SELECT count(*) FROM pg_prepared_xacts')->[0], 0, 'no transaction is prepared');
	is($servers->ask(q{SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE locktype = 'advisory' AND datname = ?}, $servers->{database})->[0], 0, 'no key lock is left');
	# The check of the sizing divides the claims by a time that the clock has jumped over, and that of the
	# retention finds callers that come after the TTL, because the clock has jumped over that. Whether
	# autovacuum keeps up depends on what else the machine does.
	is($servers->sql(q{SELECT check_name, status, detail FROM idem.health() WHERE status <> 'ok'
		AND check_name NOT IN ('sizing', 'retention', 'vacuum')}), '', 'idem.health() has no findings');
	is($servers->sql(q{SELECT source, seq, (SELECT max(seq) FROM chaos.effect WHERE key = source) AS applied
		FROM idem.watermark WHERE seq IS DISTINCT FROM (SELECT max(seq) FROM chaos.effect WHERE key = source)}), '',
		'every watermark is the highest number that was applied');
	tables_are_sound($servers->{primary}, "epoch $epoch", $servers->{database});
	my @elsewhere = split /\n/, $servers->sql(q{SELECT oid::regclass FROM pg_class WHERE relkind = 'r'
		AND relnamespace = to_regnamespace('elsewhere')});
	isnt($servers->sql('SELECT count(*) FROM (' . join(' UNION ALL ', map { "TABLE $_" } @elsewhere) . ') r'), 0,
		"epoch $epoch: there are records elsewhere") if @elsewhere;
	$servers->catch_up;
	same_on_standby($_) for qw(idem.record idem.watermark chaos.effect), @elsewhere;
	return;
}

# The verdict ------------------------------------------------------------------------------------

sub judge
{
	my ($epoch) = @_;
	my $checker = Checker->new(ttl => \%ttl, pause => $pause);
	$checker->read($_) for grep { -e } "$directory/clock", map { history($epoch, $_) } 1 .. $clients, 'finish';
	$checker->read_effects(history($epoch, 'effects'));
	my @found = $checker->check;
	$acknowledged += $checker->{acknowledged};
	$unknown += $checker->{unknown};
	$violations += @found;
	$happened{$_} += $checker->{count}{$_} for keys %{ $checker->{count} };
	my @first = map { "VIOLATION, seed $seed, epoch $epoch, key $_->{key}: $_->{rule}: $_->{seen}\n"
		  . $checker->history($_->{key}) } @found[ 0 .. ($#found < 9 ? $#found : 9) ];
	diag $_ for @first;
	push @reports, @first;
	return scalar @found;
}

# A storm in a database of its own, until the deck is dealt.
sub storm
{
	my ($epoch) = @_;
	$servers->create_database("epoch$epoch", $script);
	srand($seed * 1_000_003 + $epoch * 101);
	unlink "$directory/stop";
	$servers->target("epoch$epoch");
	my @pids = map { fork_client($epoch, $_) } 1 .. $clients;
	$faults->deal(!$soak || $soak->may_crash);
	$servers->set_clock($servers->{highest});
	append_to_file("$directory/stop", '');
	is(finish_clients(@pids), 0, "epoch $epoch: every client ran through");
	$servers->commit_prepared;
	$faults->restore_rules unless $unprotected;
	finish_keys($epoch);
	check_servers($epoch) unless $unprotected;
	fetch_effects($epoch);
	my $found = judge($epoch);
	$unprotected ? isnt($found, 0, "epoch $epoch: without idem, the checker finds violations")
	  : is($found, 0, "epoch $epoch: no violation");
	$servers->drop_database($servers->{database});
	unlink map { history($epoch, $_) } 1 .. $clients, 'finish', 'effects' unless $found || $ENV{KEEP};
	return;
}

# TEST_SECONDS is when the last epoch begins at the latest; at least one runs to its end.
my $begin = clock_gettime(CLOCK_MONOTONIC);
my ($epoch, $longest) = (0, 0);
do
{
	my $start = clock_gettime(CLOCK_MONOTONIC);
	storm(++$epoch);
	my $took = clock_gettime(CLOCK_MONOTONIC) - $start;
	$longest = $took if $took > $longest;
	diag sprintf 'epoch %d: %d s, so far %d operations acknowledged, %d unknown, %d faults, %d violations',
	  $epoch, $took, $acknowledged, $unknown, $faults->total, $violations;
	# What the steady load takes shows in the calm.
	sleep 2 * $took if $soak;
} while (clock_gettime(CLOCK_MONOTONIC) - $begin + $longest < $seconds);

cmp_ok($faults->{count}{$_}, '>', 0, "$_ happened") for @{ $faults->{chosen} };
if (!$unprotected)
{
	cmp_ok($happened{$_} // 0, '>', 0, "$_ happened") for @must_happen;
}
if ($soak)
{
	$soak->stop;
	my @minutes = $soak->results;
	Soak::write("$ENV{KEPT_IN}/soak.tsv", @minutes);
	my @life = Soak::longest_life(@minutes);
	for my $figure (qw(session_kb session_files worker_kb worker_files server_files memory_bytes record_bytes))
	{
		cmp_ok(Soak::growth($figure, @life), '<', 1.3, "$figure does not grow over " . @life . ' minutes');
	}
}
is($faults->{stuck}, 0, 'no session was stuck') unless $library && $faults->{count}{clock};
$cutter->stop;
$_->stop for @$servers{qw(primary standby)};
for my $node (@$servers{qw(primary standby)})
{
	# Faults kill with signal 9, and a PANIC over the WAL aborts with signal 6.
	is(join("\n", grep { /TRAP:|terminated by signal (?![69]\b)/ } split /\n/, slurp_file($node->logfile)), '',
		$node->name . ': no assertion failed, and nothing crashed');
}

diag sprintf "seed %d, %d s, %d epochs: %d operations acknowledged, %d unknown outcomes, %d faults (%s), %d "
	. "sessions stuck, %d violations",
  $seed, clock_gettime(CLOCK_MONOTONIC) - $begin, $epoch, $acknowledged, $unknown, $faults->total, $faults->summary,
  $faults->{stuck}, $violations;
diag 'among them: ' . join ', ', map { "$_ " . ($happened{$_} // 0) } @must_happen;
# Once more at the end, where a log that was cut off still has them.
diag $_ for !$unprotected ? @reports[ 0 .. ($#reports < 2 ? $#reports : 2) ] : ();
done_testing();

# Also of a run that has died, which is not done.
END
{
	if ($servers && $ENV{KEPT_IN} && ($? || $ENV{KEEP} || !Test::More->builder->is_passing))
	{
		local $?;
		copy($_, $ENV{KEPT_IN}) for glob("$directory/history.* $directory/clock $directory/jobs.log"),
		  map { $_->logfile } grep { defined } @$servers{qw(primary standby)};
		diag "histories and server logs are kept in $ENV{KEPT_IN}";
	}
}
