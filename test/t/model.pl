# Replays traces of the model of the claim protocol (test/model/claim.pml) on a server: sessions make
# the calls of each trace in its order. Each call must return what the model says, wait where the
# model waits, and go on when the model goes on. The model's clock turns by UPDATEs of the row.
#
# SEEDS=100 test/run tap test/t/model.pl replays more traces.
use strict;
use warnings;

use IdemTest;
use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Storable;
use Test::More;

BEGIN
{
	plan skip_all => 'spin is not installed' unless grep { -x "$_/spin" } split /:/, $ENV{PATH};
	plan skip_all => 'DBD::Pg is not installed' unless eval { require DBD::Pg; 1 };
	DBD::Pg->import(':async');
}

# Which clients a trace has, and what may happen to them. A scope that does not wait refuses what
# would have to wait.
my %models = (
	'atomic claims' => '-DATOMIC=2 -DTRIES=3 -DLIVES=2 -DKILL=1',
	'three atomic claims' => '-DATOMIC=3 -DTRIES=1',
	'atomic claims in REPEATABLE READ' => '-DATOMIC=2 -DTRIES=3 -DREPEATABLE -DKILL=1',
	'prepared transactions' => '-DATOMIC=2 -DTRIES=3 -DPREPARE -DKILL=1',
	'an atomic and a leased claim' => '-DATOMIC=1 -DLEASED=1 -DRELEASE -DTRIES=2 -DKILL=1 -DSCOPE_WAITS=true',
	'leased claims' => '-DATOMIC=0 -DLEASED=2 -DRELEASE -DPAUSE -DTRIES=2 -DKILL=1 -DSCOPE_WAITS=true',
	'leased claims that do not wait' => '-DATOMIC=0 -DLEASED=2 -DRELEASE -DPAUSE -DTRIES=2 -DKILL=1',
	'three leased claims' => '-DATOMIC=0 -DLEASED=3 -DTRIES=1 -DSCOPE_WAITS=true',
	'a leased claim and a taker' => '-DATOMIC=0 -DLEASED=1 -DTAKE=1 -DRELEASE -DPAUSE -DTRIES=2 -DLAPSES=5 -DKILL=1 '
	. '-DSCOPE_WAITS=true',
	'an atomic and a leased claim, and a taker' => '-DATOMIC=1 -DLEASED=1 -DTAKE=1 -DTRIES=2 -DLAPSES=5 -DKILL=1',
	'a leased claim and two takers' => '-DATOMIC=0 -DLEASED=1 -DTAKE=2 -DPAUSE -DTRIES=2 -DLEASED_CALLS=1 -DLAPSES=6',
	'a leased claim, a taker and revoke' => '-DATOMIC=0 -DLEASED=1 -DTAKE=1 -DREVOKE=1 -DTRIES=2 -DLAPSES=4 '
	. '-DSCOPE_WAITS=true',
	'an atomic and a leased claim, and revoke' => '-DATOMIC=1 -DLEASED=1 -DREVOKE=1 -DTRIES=2 -DLAPSES=3 -DKILL=1',
	'atomic claims and the purger' => '-DATOMIC=2 -DPURGE=1 -DTRIES=2 -DLIVES=2',
	'a leased claim and the purger' => '-DATOMIC=0 -DLEASED=1 -DPURGE=2 -DTRIES=3 -DLIVES=2 -DLAPSES=4 '
	. '-DSCOPE_WAITS=true',
	'claims and the purger, without waits' => '-DATOMIC=1 -DLEASED=1 -DPURGE=1 -DTRIES=2 -DLAPSES=4',
	'a claim and a writer past the lock' => '-DATOMIC=1 -DBYPASS=1 -DTRIES=2 -DSCOPE_WAITS=true -DKILL=1',
	'claims and a writer past the lock, without waits' => '-DATOMIC=1 -DLEASED=1 -DBYPASS=1 -DTRIES=1 -DKILL=1',
	'claims and a writer past the lock' => '-DATOMIC=1 -DLEASED=1 -DBYPASS=1 -DTRIES=1 -DSCOPE_WAITS=true',
	'once_each' => '-DATOMIC=0 -DONCE_EACH=2 -DTRIES=3 -DLIVES=2 -DKILL=1',
	'once_each and an atomic claim' => '-DATOMIC=1 -DONCE_EACH=1 -DTRIES=2 -DLIVES=2 -DKILL=1 -DSCOPE_WAITS=true',
	'once_each and a leased claim' => '-DATOMIC=0 -DLEASED=1 -DONCE_EACH=1 -DTRIES=2 -DLIVES=2 -DLAPSES=3',
	'once_each in REPEATABLE READ' => '-DATOMIC=0 -DONCE_EACH=2 -DTRIES=3 -DREPEATABLE',
	'once_each, a claim and the purger' => '-DATOMIC=1 -DONCE_EACH=1 -DPURGE=1 -DTRIES=2 -DLIVES=2',
	'once_each and a writer past the lock' => '-DATOMIC=0 -DONCE_EACH=1 -DBYPASS=1 -DTRIES=2',
	'a last attempt and an atomic claim' => '-DATOMIC=1 -DLEASED=1 -DMAX_ATTEMPTS=1 -DFAIL -DTRIES=2 -DLAPSES=3 '
	. '-DKILL=1 -DSCOPE_WAITS=true',
	'a last attempt and a taker' => '-DATOMIC=0 -DLEASED=1 -DTAKE=1 -DMAX_ATTEMPTS=1 -DPAUSE -DTRIES=2 -DLAPSES=4',
	'a last attempt and revoke' => '-DATOMIC=0 -DLEASED=2 -DREVOKE=1 -DMAX_ATTEMPTS=1 -DFAIL -DTRIES=2 -DLAPSES=4',
	'a last attempt and cancel' => '-DATOMIC=0 -DLEASED=1 -DCANCEL=1 -DMAX_ATTEMPTS=1 -DFAIL -DTRIES=2 -DLAPSES=3 '
	. '-DSCOPE_WAITS=true',
	'a last attempt and once_each' => '-DATOMIC=0 -DLEASED=1 -DONCE_EACH=1 -DMAX_ATTEMPTS=1 -DTRIES=2 -DLAPSES=3',
	'cancel, revoke and a leased claim' => '-DATOMIC=0 -DLEASED=1 -DCANCEL=1 -DREVOKE=1 -DFAIL -DTRIES=2 -DLAPSES=3',
	'cancel and atomic claims' => '-DATOMIC=1 -DCANCEL=2 -DTRIES=2 -DKILL=1 -DSCOPE_WAITS=true',
	'cancel and once_each' => '-DATOMIC=0 -DCANCEL=2 -DONCE_EACH=1 -DTRIES=2',
);
my $seeds = $ENV{SEEDS} // 2;
my $traces_per_seed = 100;
my $workers = 2;
my $enough = 5;  # mismatches: a worker then replays no more

# What every run must have seen, lest the test shrinks unnoticed: all that the model can print...
my @must_be_seen = split /\n/, <<'SEEN';
begin
cancel: completed
cancel: completed after a wait
cancel: exhausted
cancel: failed
cancel: failed after a wait
cancel: in_progress
claim: claimed
claim: claimed after a wait
claim: completed
claim: completed after a wait
claim: exhausted
claim: exhausted after a wait
claim: in_progress
claim: serialization_failure
claim: serialization_failure after a wait
commit
commit_prepared
complete: in_progress
complete: lost
complete: lost after a wait
complete: serialization_failure
complete: serialization_failure after a wait
complete: written
expire
fail: lost
fail: written
insert: inserted
insert: unique_violation
insert: unique_violation after a wait
kill
kill of a call that waits
lapse
lease: completed
lease: completed after a wait
lease: exhausted
lease: exhausted after a wait
lease: in_progress
lease: leased
lease: leased after a wait
once_each: known
once_each: known after a wait
once_each: new
once_each: new after a wait
once_each: serialization_failure
once_each: serialization_failure after a wait
pause: lost
pause: written
prepare
purge: purged
release: in_progress
release: lost
release: lost after a wait
release: written
renew: in_progress
renew: lost
renew: lost after a wait
renew: written
revoke: absent
revoke: in_progress
revoke: revoked
revoke: revoked after a wait
rollback
rollback_prepared
step: complete refused
step: complete written
step: decide absent claim
step: decide committed claim
step: decide committed exhausted
step: decide committed leased
step: decide committed replay
step: decide committed serialization_failure
step: decide committed take_over
step: decide deleting claim
step: decide deleting in_flight
step: decide inserting in_flight
step: granted claim
step: granted take_over
step: hold committed current
step: hold committed lost
step: token fenced
step: token refused
step: token used
step: waits for_lease
step: waits for_lock
step: waits for_writer
step: write alone
step: write beside
step: write over a row
take: leased
take: nothing
SEEN
# ...except what is rare.
my @may_be_seen = split /\n/, <<'SEEN';
step: hold absent lost
complete: written after a wait
step: hold deleting lost
insert: inserted after a wait
pause: in_progress
pause: lost after a wait
pause: written after a wait
revoke: absent after a wait
revoke: in_progress after a wait
take: serialization_failure
cancel: exhausted after a wait
cancel: in_progress after a wait
claim: failed
claim: failed after a wait
fail: in_progress
fail: lost after a wait
lease: failed
lease: failed after a wait
renew: written after a wait
SEEN

# ---- A server's sessions ------------------------------------------------------------------------

my %error = ('40001' => 'serialization_failure', 'ID001' => 'in_progress', 'ID004' => 'lost',
	'23505' => 'unique_violation');

package Session
{
	sub new
	{
		my ($class, $dsn) = @_;
		my $self = bless { dbh => DBI->connect($dsn, undef, undef, { PrintError => 0, RaiseError => 0 }) }, $class;
		die "no connection: $DBI::errstr" unless $self->{dbh};
		$self->{pid} = $self->{dbh}{pg_pid};
		return $self;
	}

	# A statement that does not wait.
	sub run
	{
		my ($self, $sql) = @_;
		my $rows = $self->{dbh}->do($sql);
		die "$sql: " . $self->{dbh}->errstr unless defined $rows;
		return $rows;
	}

	sub start
	{
		my ($self, $sql) = @_;
		$self->{statement} = $self->{dbh}->prepare($sql, { pg_async => DBD::Pg::PG_ASYNC(), pg_server_prepare => 0 });
		$self->{statement}->execute;
		return;
	}

	sub is_ready { return $_[0]{dbh}->pg_ready; }

	# Waits a while for an answer of the server.
	sub pause
	{
		my ($self, $seconds) = @_;
		my $bits = '';
		vec($bits, $self->{dbh}{pg_socket}, 1) = 1;
		select $bits, undef, undef, $seconds;
		return;
	}

	# The row of the statement that is ready, or its SQLSTATE and message.
	sub result
	{
		my ($self) = @_;
		my $rows = $self->{dbh}->pg_result;
		my $state = $self->{dbh}->state;
		return (undef, $state || 'none', $self->{dbh}->errstr) unless defined $rows;
		my @row = $self->{statement}->fetchrow_array;
		$self->{statement}->finish;
		return \@row;
	}

	sub drop
	{
		my ($self) = @_;
		$self->{dbh}{PrintError} = 0;
		undef $self->{statement};
		eval { $self->{dbh}->disconnect };
		return;
	}
}

# ---- One trace ----------------------------------------------------------------------------------

package Replay
{
	sub new
	{
		my ($class, $dsn, $database) = @_;
		my $self = bless { dsn => $dsn, database => $database, control => Session->new($dsn) }, $class;
		$self->{control}->run("SET statement_timeout = '2 min'");    # the clock waits for no call
		$self->{sessions}{$_} = Session->new($dsn) for 1 .. 3;
		return $self;
	}

	# Whether the backend waits for a lock or beside a lease, where the SQL edition sleeps.
	sub is_blocked
	{
		my ($self, $session) = @_;
		my ($blocked) = $self->{control}{dbh}->selectrow_array(<<'SQL', undef, $session->{pid}, $session->{pid});
SELECT EXISTS (SELECT FROM pg_locks WHERE pid = ? AND NOT granted)
    OR EXISTS (SELECT FROM pg_stat_get_activity(?) WHERE wait_event_type IN ('Extension', 'Timeout'))
SQL
		return $blocked;
	}

	# Whether the call waits; false if it has returned.
	sub waits
	{
		my ($self, $session) = @_;
		until ($session->is_ready)
		{
			return 1 if $self->is_blocked($session);
			$session->pause(0.002);
		}
		return 0;
	}

	# Whether the call returns; false if it waits for what only this test can end.
	sub returns
	{
		my ($self, $session) = @_;
		my $blocked = 0;
		until ($session->is_ready)
		{
			$session->pause(0.5);
			next if $session->is_ready;
			$blocked = $self->is_blocked($session) ? $blocked + 1 : 0;
			return 0 if $blocked == 10;
		}
		return 1;
	}

	sub kill_session
	{
		my ($self, $t) = @_;
		my $pid = $self->{sessions}{$t}{pid};
		$self->{control}->run("SELECT pg_terminate_backend($pid)");
		while ($self->{control}{dbh}->selectrow_array("SELECT count(*) FROM pg_stat_get_activity($pid)"))
		{
			select undef, undef, undef, 0.001;
		}
		$self->{sessions}{$t}->drop;
		$self->{sessions}{$t} = Session->new($self->{dsn});
		return;
	}

	# The statement of a call, by the words of its event.
	sub statement
	{
		my ($self, $t, $call, @words) = @_;
		my $scope = $self->{scope};
		if ($call eq 'claim' || $call eq 'lease')
		{
			my $wait = $words[0] ? '1 day' : '0';
			my $lease = $call eq 'lease' ? ", lease => '1 hour'" : '';
			return "SELECT outcome, attempt, token, coalesce(response #>> '{}', error ->> 'message')
				FROM idem.try_claim('$scope', 'k', wait => '$wait'$lease)";
		}
		my $token = $self->{tokens}{ $words[0] // '' } // $self->{open}{$t} // '';
		return "SELECT 'written', idem.complete('$token', '$words[0]')" if $call eq 'complete';
		return "SELECT CASE WHEN token IS NULL THEN 'nothing' ELSE 'claimed' END, attempt, token
			FROM idem.take('$scope', lease => '1 hour')" if $call eq 'take';
		return "SELECT state, NULL, NULL, coalesce(response #>> '{}', error ->> 'message')
			FROM idem.cancel('$scope', 'k', error => '{\"message\": \"$words[0]\"}')" if $call eq 'cancel';
		return "SELECT 'written', idem.fail('$token', '{\"message\": \"$words[0]\"}')" if $call eq 'fail';
		return "SELECT CASE WHEN idem.revoke('$scope', 'k') THEN 'revoked' ELSE 'absent' END" if $call eq 'revoke';
		return "SELECT 'written', idem.release('$token', retry_after => '1 hour', error => '{\"message\": \"later\"}')"
		  if $call eq 'pause';
		return "SELECT 'written', idem.$call('$token')" if $call eq 'renew' || $call eq 'release';
		return "SELECT CASE count(*) WHEN 1 THEN 'new' ELSE 'known' END FROM idem.once_each('$scope', ARRAY['k'])"
		  if $call eq 'once_each';
		return "INSERT INTO idem.record SELECT r.* FROM past r WHERE key = 'k' AND response = '\"$scope\"'
			RETURNING 'inserted'" if $call eq 'insert';
		return "SELECT 'purged', idem.purge()" if $call eq 'purge';
		die "unknown call $call";
	}

	# What the server says, in the words of the model. Notes the token.
	sub outcome
	{
		my ($self, $t) = @_;
		my ($row, $state, $message) = $self->{sessions}{$t}->result;
		return $error{$state} // "$state $message" unless $row;
		my ($outcome, $attempt, $token, $response) = @$row;
		if ($outcome eq 'claimed')
		{
			$self->{open}{$t} = $token;
			return ($self->{call}{$t} eq 'claim' ? 'claimed' : 'leased') . " $attempt";
		}
		return "$outcome " . ($response // 'null') if $outcome eq 'completed' || $outcome eq 'failed';
		return "purged $attempt" if $outcome eq 'purged';
		return $outcome;
	}

	# What the model says, without its nonces, which stand for tokens and answers.
	sub expected
	{
		my ($self, $t, $outcome, @words) = @_;
		if ($outcome eq 'leased')
		{
			$self->{tokens}{ $words[1] } = $self->{open}{$t};
			return "leased $words[0]";
		}
		$self->{answers}{ $words[0] } = 'null' if $outcome eq 'new';
		$self->{answers}{ $words[0] } = $self->{scope} if $outcome eq 'inserted';
		return $outcome if $outcome eq 'new' || $outcome eq 'inserted';
		return 'completed ' . ($self->{answers}{ $words[0] } // $words[0]) if $outcome eq 'completed';
		return join ' ', $outcome, @words;
	}

	my %clock = (
		expire => q{UPDATE idem.record SET expires = now() - interval '1 s' WHERE state <> 'p'},
		lapse => q{UPDATE idem.record SET lease_end = now() - interval '1 s',
			expires = CASE WHEN lease_end <= now() THEN now() - interval '1 s' ELSE expires END WHERE state = 'p'});

	# Does one event. Returns what is wrong, or ''.
	sub step
	{
		my ($self, $t, $what, @words) = @_;
		my $session = $self->{sessions}{$t};
		if ($what eq 'begin')
		{
			$session->run($self->{repeatable} ? 'BEGIN ISOLATION LEVEL REPEATABLE READ' : 'BEGIN');
			$session->run('SELECT 1') if $self->{repeatable};
		}
		elsif ($what eq 'calls')
		{
			$self->{call}{$t} = $words[0];
			$session->start($self->statement($t, @words));
		}
		elsif ($what eq 'waits')
		{
			return 'the server does not wait: ' . $self->outcome($t) unless $self->waits($session);
			$self->{waiting}{$t} = $words[0];
		}
		elsif ($what eq 'gets')
		{
			return 'the server waits' unless $self->returns($session);
			delete $self->{waiting}{$t};
			my ($said, $expected) = ($self->outcome($t), $self->expected($t, @words));
			return $said eq $expected ? '' : "the server says: $said";
		}
		elsif ($what eq 'commit' || $what eq 'rollback') { $session->run(uc $what); }
		elsif ($what eq 'prepare') { $session->run("PREPARE TRANSACTION '$self->{database} $t'"); }
		elsif ($what =~ /^(commit|rollback)_prepared$/)
		{
			$self->{control}->run(uc($1) . " PREPARED '$self->{database} $t'");
		}
		elsif ($what eq 'kill')
		{
			$self->kill_session($t);
			delete $self->{waiting}{$t};
		}
		elsif ($clock{$what}) { $self->{control}->run($clock{$what}); }
		else { die "unknown event $what"; }
		return '';
	}

	# Two calls that wait for one client go on in an order that a test cannot know.
	sub is_crowded
	{
		my ($self) = @_;
		my %count;
		$count{$_}++ for values %{ $self->{waiting} };
		return scalar grep { $_ > 1 } values %count;
	}

	# Replays the events. Returns how many were done, and what is wrong with the last of them, or ''.
	sub trace
	{
		my ($self, $model, @events) = @_;
		$self->{scope} = ($model =~ /SCOPE_WAITS/ ? 'patient' : 'hasty') . ($model =~ /MAX_ATTEMPTS/ ? '_once' : '');
		$self->{repeatable} = $model =~ /REPEATABLE/;
		$self->{$_} = {} for qw(tokens open answers call waiting);
		my ($done, $wrong) = (0, '');
		for my $event (@events)
		{
			my ($t, $what, @words) = @$event;
			for my $w (grep { $_ != $t && !$wrong } keys %{ $self->{waiting} })
			{
				$wrong = "the call of $w has returned: " . $self->outcome($w)
				  unless $self->waits($self->{sessions}{$w});
			}
			$wrong ||= $self->step($t, $what, @words);
			$done++;
			last if $wrong || $self->is_crowded;
		}
		$self->clean($wrong || $done < @events);
		return ($done, $wrong);
	}

	sub clean
	{
		my ($self, $unfinished) = @_;
		if ($unfinished)
		{
			my $gids = $self->{control}{dbh}->selectcol_arrayref(
				"SELECT gid FROM pg_prepared_xacts WHERE database = current_database()");
			$self->{control}->run("ROLLBACK PREPARED '$_'") for @$gids;
			$self->kill_session($_) for keys %{ $self->{sessions} };
		}
		$self->{control}->run($self->{traces}++ % 50 ? 'DELETE FROM idem.record' : 'TRUNCATE idem.record');
		return;
	}
}

package main;

# ---- The model's traces -------------------------------------------------------------------------

# Calls back with the events of each trace of one seed, and with the steps within its calls.
sub each_trace
{
	my ($definitions, $seed, $callback) = @_;
	my $model = "$ENV{TESTDIR}/test/model/claim.pml";
	my ($out, $err) = ('', '');
	my @command = ('spin', '-T', "-n$seed", '-DCALLS', "-DRUNS=$traces_per_seed", split(' ', $definitions), $model);
	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err,
		init => sub { chdir PostgreSQL::Test::Utils::tempdir() });
	die "@command: $err" . substr($out, -2000) if $out =~ /assertion violated|^spin: |error/mi;
	my (@events, @steps);
	my $count = 0;
	for (split /\n/, $out)
	{
		push @steps, $1 if /^\s*STEP (.*\S)/;
		next unless /^\s*EVENT (\d) (.*\S)/;
		if ($2 ne 'end') { push @events, [ $1, split ' ', $2 ]; next; }
		$callback->([@events], [@steps]);
		$count++;
		@events = @steps = ();
	}
	die "@command printed $count traces" unless $count == $traces_per_seed;
	return;
}

# What an event is counted as: a call by its name, and what it gets, with or without a wait.
sub features
{
	my ($events) = @_;
	my (%call, %waited, %count);
	for (@$events)
	{
		my ($t, $what, @words) = @$_;
		if ($what eq 'calls') { $call{$t} = $words[0]; delete $waited{$t}; }
		elsif ($what eq 'waits') { $waited{$t} = 1; }
		elsif ($what eq 'gets')
		{
			$count{ "$call{$t}: $words[0]" . ($waited{$t} ? ' after a wait' : '') }++;
			delete $waited{$t};
		}
		elsif ($what eq 'kill') { $count{ $waited{$t} ? 'kill of a call that waits' : 'kill' }++; delete $waited{$t}; }
		else { $count{$what}++; }
	}
	return \%count;
}

sub listing
{
	my ($title, $definitions, $seed, $events, $done, $wrong) = @_;
	return join "\n", "$title (spin -n$seed -DCALLS -DRUNS=$traces_per_seed $definitions):",
	  (map { '  ' . join ' ', @$_ } @$events[ 0 .. $done - 1 ]), "  but $wrong", '';
}

# ---- The replay ---------------------------------------------------------------------------------

my $node = idem_node('model', bare => 1, conf => <<'CONF');
fsync = off
log_statement = none
log_min_messages = panic
log_min_error_statement = panic
CONF

sub create_database
{
	my ($database) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, <<'SQL');
CREATE EXTENSION idem;
SELECT idem.create_scope('patient' || suffix, wait => '1 day', lease => '1 hour', max_attempts => attempts),
       idem.create_scope('hasty' || suffix, wait => '0', lease => '1 hour', max_attempts => attempts)
FROM (VALUES ('', NULL), ('_once', 1)) v (suffix, attempts);
SELECT idem.complete(token, to_jsonb(scope)) FROM (VALUES ('patient'), ('hasty')) s (scope), idem.claim(scope, 'k');
CREATE TABLE past AS SELECT * FROM idem.record;
TRUNCATE idem.record;
SQL
	return;
}

# Replays its share of the seeds, and stores what it has counted in the file.
sub work
{
	my ($worker, $file) = @_;
	my %sum = (traces => 0, steps => 0, waits => 0, cut => 0, wrong => [], seen => {});
	my $replay = Replay->new($node->connstr("w$worker") =~ s/^/dbi:Pg:/r =~ s/ /;/gr, "w$worker");
	my $share = 0;
	for my $seed (1 .. $seeds)
	{
		for my $title (sort keys %models)
		{
			next if $share++ % $workers != $worker;
			each_trace($models{$title}, $seed, sub {
				my ($events, $steps) = @_;
				return if @{ $sum{wrong} } == $enough;
				my ($done, $wrong) = $replay->trace($models{$title}, @$events);
				$sum{traces}++;
				$sum{steps} += $done;
				$sum{waits} += grep { $_->[1] eq 'waits' } @$events[ 0 .. $done - 1 ];
				$sum{cut}++ if !$wrong && $done < @$events;
				my $features = features([ @$events[ 0 .. $done - 1 ] ]);
				$sum{seen}{$_} += $features->{$_} for keys %$features;
				$sum{seen}{$_}++ for map { "step: $_" } @$steps;
				push @{ $sum{wrong} }, listing($title, $models{$title}, $seed, $events, $done, $wrong) if $wrong;
			});
		}
	}
	Storable::store(\%sum, $file);
	return;
}

create_database("w$_") for 0 .. $workers - 1;
my (%pid, %sum);
for my $worker (0 .. $workers - 1)
{
	my $file = PostgreSQL::Test::Utils::tempdir() . "/replayed.$worker";
	my $pid = fork // die 'no process';
	if ($pid == 0)
	{
		eval { work($worker, $file); 1 } or print STDERR "worker $worker: $@";
		POSIX::_exit($@ ? 1 : 0);
	}
	$pid{$pid} = $file;
}
for my $pid (keys %pid)
{
	waitpid $pid, 0;
	is($?, 0, 'a worker has replayed its share') or next;
	my $part = Storable::retrieve($pid{$pid});
	$sum{$_} += $part->{$_} for qw(traces steps waits cut);
	$sum{seen}{$_} += $part->{seen}{$_} for keys %{ $part->{seen} };
	push @{ $sum{wrong} }, @{ $part->{wrong} };
}

note "$sum{traces} traces, $sum{steps} steps, $sum{waits} waits; $sum{cut} traces replayed up to a crowd";
is(scalar @{ $sum{wrong} }, 0, 'the server does what the model says');
diag $_ for @{ $sum{wrong} };
note sprintf '%8d  %s', $sum{seen}{$_}, $_ for sort keys %{ $sum{seen} };
is(join("\n", grep { !$sum{seen}{$_} } @must_be_seen), '', 'all that the model can print was replayed');
my %known = map { $_ => 1 } @must_be_seen, @may_be_seen;
is(join("\n", grep { !$known{$_} } sort keys %{ $sum{seen} }), '', 'what was replayed is on the lists of this test');

log_is_clean($node);
$node->stop;
done_testing();
