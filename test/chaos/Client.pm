# One client of the storm: it calls idem as applications do, retries as they do, and writes down every
# call with its answer. Which calls it makes derives from the seed, and from the answers it gets.
package Client;

use strict;
use warnings;

use DBI;
use Digest::MD5 qw(md5_hex);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC sleep);

my @atomic = (('claim') x 6, ('wait') x 3, ('try') x 4, ('try_wait') x 2, ('execute') x 3,
	qw(fail release undo other lookup await await));
my @leased = qw(lease lease_wait);
my @token = (('complete') x 5, qw(give_up renew renew checkpoint drop pause pause));
# Of the scope whose operations have few attempts.
my @few = (('lease') x 9, ('lease_wait') x 2, qw(claim try execute execute lookup await cancel revoke));
my @take = qw(take take take_end);
my @rare = qw(forget forget forget_all purge);
my @administration = qw(revoke revoke revoke erase erase erase_all cancel rehearse);
my @isolation = (('READ COMMITTED') x 3, 'REPEATABLE READ', 'SERIALIZABLE');

# How long a key stays hot: calls per key of one client, and how many keys are hot at a time.
my ($stride, $window) = (1.5, 40);

# Options: id, parent (process), seed, target (file: where the primary is), history (file), stop (file), proxy (port or
# undef).
sub new
{
	my ($class, %options) = @_;
	srand($options{seed});
	open my $history, '>', $options{history} or die "$options{history}: $!";
	return bless { %options, out => $history, calls => 0, events => 0, uid => 0, retry => [], tokens => [], seq => {} },
		$class;
}

sub run
{
	my ($self) = @_;
	until (-e $self->{stop} || getppid != $self->{parent})
	{
		my $connection = $self->connection or next;
		$self->perform($connection, $self->plan);
	}
	close $self->{out} or die "$self->{history}: $!";
	return;
}

# Connections ------------------------------------------------------------------------------------

# The target is "HOST PORT DATABASE", or "wait" while there is none.
sub connection
{
	my ($self) = @_;
	return $self->{dbh} if $self->{dbh};
	open my $file, '<', $self->{target} or do { sleep 0.05; return };
	my ($host, $port, $database) = split ' ', <$file> // '';
	($host, $port) = ('127.0.0.1', $self->{proxy}) if $self->{proxy};
	my $dbh = $database && DBI->connect(
		"dbi:Pg:host=$host;port=$port;dbname=$database;connect_timeout=3;application_name=chaos",
		'', '', { PrintError => 0, PrintWarn => 0, RaiseError => 0, AutoCommit => 1 });
	if (!$dbh) { sleep 0.05; return; }
	$dbh->{RaiseError} = 1;
	$self->{dbh} = $dbh;
	return eval { $self->resolve($dbh); 1 } ? $dbh : $self->lost;
}

sub lost
{
	my ($self) = @_;
	my $dbh = delete $self->{dbh} or return;
	local $SIG{__WARN__} = sub { };
	eval { $dbh->disconnect };
	return;
}

# Ends the transactions that this client has prepared and lost sight of.
sub resolve
{
	my ($self, $dbh) = @_;
	my $gids = $dbh->selectcol_arrayref(
		"SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE '$self->{id}-%'");
	$dbh->do((rand() < 0.5 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$_'") for @$gids;
	return;
}

# What to call -----------------------------------------------------------------------------------

sub pick { return $_[ int rand @_ ] }

sub next_uid { my ($self) = @_; return $self->{id} . '.' . ++$self->{uid}; }

sub key
{
	my ($self, $letter) = @_;
	my $progress = int($self->{calls} / $stride);
	my $n = rand() < 0.1 ? int rand($progress + $window) : $progress + int rand $window;
	$n = int($n / 6) if $letter eq 'f';    # they are to be called often
	return $letter . md5_hex($n);
}

sub call
{
	my ($self) = @_;
	my $tokens = $self->{tokens};
	$self->{calls}++;
	my %call = (uid => $self->next_uid);
	my $luck = rand;
	if ($luck < 0.12 && @$tokens)
	{
		my $token = pick(@$tokens);
		return { %call, kind => pick(@token), key => $token->{key}, token => $token->{token}, of => $token->{uid} };
	}
	if ($luck < 0.22)
	{
		my $stream = 's' . int rand 8;
		my $seq = ($self->{seq}{$stream} // 0) + 1;
		return { %call, kind => 'advance', key => $stream, token => $seq, of => $seq };
	}
	return { %call, kind => 'once', key => $self->key('e') } if $luck < 0.30;
	return { %call, kind => pick(@rare), key => $self->key('b') } if $luck < 0.33;
	return { %call, kind => pick(@take), key => pick('a', 'b', 'f') } if $luck < 0.38;
	if ($luck < 0.42)
	{
		my $kind = pick(@administration);
		my $key = $kind eq 'revoke' && @$tokens ? pick(@$tokens)->{key} : $self->key(pick('a', 'a', 'b'));
		return { %call, kind => $kind, key => $key };
	}
	return { %call, kind => pick(@few), key => $self->key('f') } if $luck < 0.50;
	my $retry = rand() < 0.2 && @{ $self->{retry} } ? shift @{ $self->{retry} } : undef;
	return { %call, kind => $luck < 0.62 ? pick(@leased) : pick(@atomic),
		key => $retry // $self->key($luck < 0.90 ? 'a' : 'b') };
}

sub plan
{
	my ($self) = @_;
	my $luck = rand;
	return { form => 'each', calls => [ $self->arrays ] } if $luck < 0.15;
	my $form = $luck < 0.50 ? 'statement' : $luck < 0.80 ? 'transaction' : $luck < 0.86 ? 'bare' : $luck < 0.94
		? 'prepare' : 'rollback';
	my $calls = $form eq 'bare' ? 1 + int rand 3 : 1 + int rand 40;
	my %seen;    # one step of a stream per transaction, since its answer decides about the next
	return {
		form      => $form,
		isolation => pick(@isolation),
		calls     => [ grep { $_->{kind} ne 'advance' || !$seen{ $_->{key} }++ } map { $self->call } 1 .. $calls ],
	};
}

# Arrays for idem.once_each(): each client comes past each key about once, and past some again.
sub arrays
{
	my ($self) = @_;
	my $size = 1 + int rand(rand() < 0.8 ? 300 : 3000);
	my $from = rand() < 0.05 ? int rand($self->{events} + 1) : $self->{events};
	my %keys = map { 'e' . md5_hex($from + int rand 2 * $size) => 1 } 1 .. $size;
	$self->{events} += $size;
	return { kind => 'each', uid => $self->next_uid, keys => [ keys %keys ] };
}

# The calls --------------------------------------------------------------------------------------

# An outcome is unknown if the connection was lost after the server could have begun to commit.
sub perform
{
	my ($self, $dbh, $plan) = @_;
	my $committing = 0;
	my @answers;
	my $invoked = clock_gettime(CLOCK_MONOTONIC);
	my $done = eval { @answers = $self->send($dbh, $plan, \$committing); 1 };
	my $returned = clock_gettime(CLOCK_MONOTONIC);
	my $fate = $done ? $plan->{form} eq 'rollback' ? 'none' : 'done' : 'none';
	if (!$done)
	{
		my $lost = ($dbh->state // '') =~ /^(?:08|57P)/ || !$dbh->ping;
		$fate = '?' if $committing && ($lost || $plan->{form} eq 'prepare');
		$self->{errors}{ $dbh->state || 'lost' }++;
		if ($lost) { $self->lost; }
		elsif ($plan->{form} ne 'statement') { eval { $dbh->do('ROLLBACK'); 1 } or $self->lost; }
		$self->lost if $plan->{form} eq 'prepare';    # to resolve what it has prepared
	}
	$fate = 'none' if $done && $plan->{undone};
	$self->record($plan, $fate, $invoked, $returned, @answers);
	return;
}

sub send
{
	my ($self, $dbh, $plan, $committing) = @_;
	my $form = $plan->{form};
	my $statement = $form eq 'statement' || $form eq 'each' && rand() < 0.5;
	$dbh->do('BEGIN ISOLATION LEVEL ' . ($plan->{isolation} // 'READ COMMITTED')) unless $statement;
	$$committing = 1 if $statement;
	my @answers = $self->ask($dbh, $plan);
	return @answers if $statement;
	if ($form eq 'rollback') { $dbh->do('ROLLBACK'); return; }
	$$committing = 1;
	if ($form eq 'prepare')
	{
		my $gid = "$self->{id}-" . $self->next_uid;
		$plan->{undone} = rand() < 0.2;
		$dbh->do("PREPARE TRANSACTION '$gid'");
		$dbh->do(($plan->{undone} ? 'ROLLBACK' : 'COMMIT') . " PREPARED '$gid'");
		return @answers;
	}
	$dbh->do('COMMIT');
	return @answers;
}

sub ask
{
	my ($self, $dbh, $plan) = @_;
	my $calls = $plan->{calls};
	if ($plan->{form} eq 'each')
	{
		my $query = $dbh->prepare_cached('SELECT chaos.each($1, $2)');
		return ($dbh->selectrow_array($query, undef, $calls->[0]{keys}, $calls->[0]{uid}))[0];
	}
	my $function = $plan->{form} eq 'bare' ? 'calls_bare' : 'calls';
	my $query = $dbh->prepare_cached("SELECT chaos.$function(\$1, \$2, \$3, \$4)");
	my ($answers) = $dbh->selectrow_array($query, undef,
		map { my $field = $_; [ map { $_->{$field} } @$calls ] } qw(kind key uid token));
	return @$answers;
}

# The history ------------------------------------------------------------------------------------

# A line per call: invoked, returned, client, kind, key, uid, answer, and the claim or number that a
# call is about. The answer is "none" if the client knows that the call has no effect, "?" if it does
# not know. The key is "*" if a call that took an operation was not told which.
sub record
{
	my ($self, $plan, $fate, $invoked, $returned, @answers) = @_;
	my $when = join "\t", sprintf('%.6f', $invoked), $fate eq '?' ? 'inf' : sprintf('%.6f', $returned), $self->{id};
	for my $call (@{ $plan->{calls} })
	{
		my $answer = $fate eq 'done' ? shift @answers : $fate;
		if ($call->{kind} eq 'each')
		{
			$answer = 'new ' . join ',', @$answer if ref $answer;
			print { $self->{out} } join("\t", $when, 'each', join(',', @{ $call->{keys} }), $call->{uid}, $answer, ''),
				"\n";
			next;
		}
		my $token;
		$call->{key} = '*' if $call->{kind} =~ /^take/;
		($call->{key}, $answer) = ($1, $2) if $answer =~ /^took (\S+) (.*)/;
		($answer, $token) = ($1, $2) if $answer =~ /^(hold \d+ \S+) (.*)/;
		print { $self->{out} } join("\t", $when, $call->{kind}, $call->{key}, $call->{uid}, $answer, $call->{of} // ''),
			"\n";
		$self->learn($call, $answer, $token);
	}
	return;
}

sub learn
{
	my ($self, $call, $answer, $token) = @_;
	if ($call->{kind} eq 'advance')
	{
		$self->{seq}{ $call->{key} } = $call->{of} if $answer =~ /^(?:did|had)/;
	}
	elsif ($token)
	{
		push @{ $self->{tokens} }, { token => $token, key => $call->{key}, uid => $call->{uid} };
		shift @{ $self->{tokens} } if @{ $self->{tokens} } > 30;
	}
	elsif ($call->{of})
	{
		my $over = $answer =~ /^(?:did|free|ID)/;
		@{ $self->{tokens} } = grep { $_->{uid} ne $call->{of} } @{ $self->{tokens} } if $over && rand() < 0.8;
	}
	elsif ($answer !~ /^(?:did|had|absent|forgot|erased)/)
	{
		push @{ $self->{retry} }, $call->{key} unless $call->{key} =~ /^[e*]/ || @{ $self->{retry} } > 100;
	}
	return;
}

1;
