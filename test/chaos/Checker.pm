# Decides whether a history is one that idem promises. It knows the calls, when each was made and
# answered, the answers, the effects that were found in the end, and when the clock was set: nothing
# of idem's tables and code.
package Checker;

use strict;
use warnings;

use List::Util qw(any first max min);

# What a call is told of an operation without attempts left.
my $undecided = qr/^(?:exhausted|ID014)/;

# What a call is told that a rule for new keys refuses.
my $new_key_rules = qr/^(?:22004|22023|ID007|ID009|ID010|ID013|limited)/;

# ttl: of the keys that begin with a letter, in seconds. Those of other letters do not expire, and are
# never forgotten. pause: seconds until an operation that was released with a pause is due again.
sub new
{
	my ($class, %options) = @_;
	return bless {
		ttl   => $options{ttl} // {},
		pause => $options{pause} // 0,
		calls => {},
		taken => {},
		done  => {},
		count => {},
		clock => [ [ 0, 0, 0 ] ],
		allowed => {},
		acknowledged => 0,
		unknown      => 0,
		found        => [],
	}, $class;
}

# What happened ----------------------------------------------------------------------------------

# A line of Client.pm, or "invoked TAB returned TAB clock TAB seconds", or "invoked TAB returned TAB
# allow TAB letter": the keys of a letter are allowed more attempts.
sub line
{
	my ($self, $line) = @_;
	chomp $line;
	my ($invoked, $returned, $client, $kind, $key, $uid, $answer, $of) = split /\t/, $line, -1;
	if ($client eq 'clock')
	{
		push @{ $self->{clock} }, [ $invoked, $returned, $kind ];
		return;
	}
	if ($client eq 'allow')
	{
		push @{ $self->{allowed}{$kind} }, { invoked => $invoked, returned => $returned };
		return;
	}
	if ($kind ne 'each')
	{
		$self->count($answer, 1);
		$self->{count}{ "$kind: " . ($answer =~ /(\w+)/)[0] }++ if $answer =~ /^\w/;
		if ($key eq '*')
		{
			# What a call took whose answer was lost, its effect tells.
			$self->{taken}{$uid} = join "\t", $invoked, $returned, $client, $kind, $uid, $answer, '' if $answer eq '?';
			return;
		}
		push @{ $self->{calls}{$key} }, join "\t", $invoked, $returned, $client, $kind, $uid, $answer, $of;
		return;
	}
	my @keys = split /,/, $key;
	$self->count($answer, scalar @keys);
	my %new = $answer =~ /^new (.*)/ ? map { $_ => 1 } split /,/, $1 : ();
	for my $one (@keys)
	{
		my $result = $answer !~ /^new/ ? $answer : delete $new{$one} ? 'did' : 'had ? c';
		push @{ $self->{calls}{$one} }, join "\t", $invoked, $returned, $client, $kind, $uid, $result, '';
	}
	$self->violation($_, 'a key that was not asked for', "once_each returned it to $client") for sort keys %new;
	return;
}

sub count
{
	my ($self, $answer, $n) = @_;
	if ($answer eq '?') { $self->{unknown} += $n; }
	elsif ($answer =~ /^(?:did|had|hold|ok|free|forgot|erased|revoked|absent|idle|new|conflict)/)
	{
		$self->{acknowledged} += $n;
	}
	return;
}

sub read
{
	my ($self, $file) = @_;
	open my $in, '<', $file or die "$file: $!";
	while (my $line = <$in>) { $self->line($line); }
	return;
}

# An effect: key, uid of the call that made it, result, sequence number.
sub effect
{
	my ($self, $key, @effect) = @_;
	my $taken = delete $self->{taken}{ $effect[0] };
	push @{ $self->{calls}{$key} }, $taken if $taken;
	push @{ $self->{done}{$key} }, \@effect;
	return;
}

sub read_effects
{
	my ($self, $file) = @_;
	open my $in, '<', $file or die "$file: $!";
	while (my $line = <$in>) { chomp $line; $self->effect(split /\t/, $line); }
	return;
}

# The verdict ------------------------------------------------------------------------------------

# Returns the violations, each with key, rule and what was seen.
sub check
{
	my ($self) = @_;
	my %keys = (%{ $self->{calls} }, %{ $self->{done} });
	for my $key (sort keys %keys)
	{
		my @calls = map { parse($_) } @{ $self->{calls}{$key} // [] };
		my %made = map { $_->{uid} => $_ } @calls;
		my @effects = map { { uid => $_->[0], result => $_->[1], seq => $_->[2],
				call => $made{ $_->[0] } } } @{ $self->{done}{$key} // [] };
		$self->check_effects($key, \@calls, \@effects);
		$self->check_answers($key, \@calls, [ grep { $_->{call} } @effects ]);
		if ($key =~ /^s/) { $self->check_stream($key, \@calls, \@effects); next; }
		$self->check_once($key, \@calls, [ grep { $_->{call} } @effects ]);
		$self->check_leases($key, \@calls) if any { $_->{answer} =~ /^hold/ } @calls;
		$self->check_conflicts($key, \@calls);
		next if $self->is_reset($key);
		$self->check_rules($key, \@calls);
		$self->check_end($key, \@calls);
		$self->check_attempts($key, \@calls, [ grep { $_->{call} } @effects ]);
		$self->check_failed($key, \@calls, \@effects);
		$self->check_pauses($key, \@calls);
		$self->check_points($key, \@calls);
	}
	return @{ $self->{found} };
}

sub violation
{
	my ($self, $key, $rule, $seen) = @_;
	push @{ $self->{found} }, { key => $key, rule => $rule, seen => $seen };
	return;
}

sub history
{
	my ($self, $key) = @_;
	no warnings 'numeric';    # a line begins with a time
	my @lines = sort { $a <=> $b } map { s/\t/  /gr } @{ $self->{calls}{$key} // [] };
	return join "\n", @lines, map { "effect  " . join '  ', map { $_ // '' } @$_ } @{ $self->{done}{$key} // [] };
}

sub parse
{
	my ($line) = @_;
	no warnings 'numeric';
	my %call;
	@call{qw(invoked returned client kind uid answer of)} = split /\t/, $line, -1;
	$call{returned} = 9**9**9 if $call{returned} eq 'inf';
	return \%call;
}

sub is_reset { my ($self, $key) = @_; return exists $self->{ttl}{ substr $key, 0, 1 }; }

# Every effect has a call that made it, or may have made it; every call that claims an effect has one.
sub check_effects
{
	my ($self, $key, $calls, $effects) = @_;
	my %seen;
	for my $effect (@$effects)
	{
		$self->violation($key, 'effect twice', "$effect->{uid} has two effects") if $seen{ $effect->{uid} }++;
		my $answer = $effect->{call} ? $effect->{call}{answer} : 'no call';
		next if $answer eq 'did' || $answer eq '?';
		$self->violation($key, 'effect without a call', "the effect of $effect->{uid} ($answer)");
	}
	for my $call (@$calls)
	{
		if ($call->{answer} eq 'did' && !$seen{ $call->{uid} })
		{
			$self->violation($key, 'effect lost', "the effect of $call->{uid}, which was acknowledged");
		}
		if ($call->{client} eq 'finish' && $call->{answer} !~ /^(?:did|had)/)
		{
			$self->violation($key, 'no end', "when all faults had ended, its claim said $call->{answer}");
		}
	}
	return;
}

# Every answer is that of an effect which is there, and not that of an earlier generation.
sub check_answers
{
	my ($self, $key, $calls, $effects) = @_;
	my %effect = map { $_->{uid} => $_ } @$effects;
	for my $call (@$calls)
	{
		my ($uid, $result) = $call->{answer} =~ /^had (\S+) (.)$/;
		if ($call->{kind} eq 'other' && ($uid && $result ne 'x' || $call->{answer} eq 'did'))
		{
			$self->violation($key, 'answer to another request', "$call->{uid} got $call->{answer}");
		}
		$self->check_absent($key, $call, $calls) if $call->{answer} eq 'absent' && $call->{kind} eq 'lookup';
		next unless $uid;
		if ($uid eq '?' || $uid eq '-')
		{
			$self->check_erased($key, $call, $calls) if $uid eq '-';
			next if any { $_->{call}{invoked} <= $call->{returned} && $_->{result} eq $result } @$effects;
			$self->violation($key, 'answer without an effect', "$call->{uid} was told that it was done");
			next;
		}
		my $made = $effect{$uid};
		if (!$made || $made->{result} ne $result)
		{
			$self->violation($key, 'answer without an effect', "$call->{uid} got $call->{answer}");
			next;
		}
		$self->violation($key, 'answer before the call', "$call->{uid} got $uid before that was called")
		  if $made->{call}{invoked} > $call->{returned};
		my $newer = first { $made->{call}{returned} < $_->{call}{invoked}
			&& $_->{call}{returned} < $call->{invoked} } @$effects;
		$self->violation($key, 'old answer', "$call->{uid} got $uid after $newer->{uid}") if $newer;
		my $erasure = first { $_->{answer} eq 'erased' && $made->{call}{returned} < $_->{invoked}
			&& $_->{returned} < $call->{invoked} } @$calls;
		$self->violation($key, 'erased answer', "$call->{uid} got $uid, which $erasure->{uid} had erased") if $erasure;
	}
	return;
}

# An answer is missing only if it was erased.
sub check_erased
{
	my ($self, $key, $call, $calls) = @_;
	return if any { $_->{kind} =~ /^erase/ && $_->{answer} =~ /^(?:erased|\?)$/
		&& $_->{invoked} <= $call->{returned} } @$calls;
	$self->violation($key, 'answer missing', "$call->{uid} got an answer without content");
	return;
}

sub check_absent
{
	my ($self, $key, $call, $calls) = @_;
	return if $self->is_reset($key);
	my $before = first { $_->{answer} eq 'did' && $_->{returned} < $call->{invoked} } @$calls or return;
	$self->violation($key, 'record lost', "$call->{uid} did not find what $before->{uid} had done");
	return;
}

# Between two effects of a key, its record was forgotten or had expired. Of the calls that may have
# forgotten it, the first to end is taken, because later effects can need the others.
sub check_once
{
	my ($self, $key, $calls, $effects) = @_;
	return if @$effects < 2;
	my @order = sort { $a->{call}{invoked} <=> $b->{call}{invoked} } @$effects;
	my @resets = $self->is_reset($key) ? grep { $_->{kind} =~ /^forget/ && $_->{answer} =~ /^(?:forgot|\?)$/ } @$calls
		: ();
	@resets = sort { $a->{returned} <=> $b->{returned} } @resets;
	for my $n (1 .. $#order)
	{
		my ($one, $two) = map { $_->{call} } @order[ $n - 1, $n ];
		next if $self->has_expired($key, $one, $two);
		my $until = max($one->{returned}, $two->{returned});
		my ($reset) = grep { $resets[$_]{returned} >= $one->{invoked} && $resets[$_]{invoked} <= $until } 0 .. $#resets;
		if (defined $reset) { splice @resets, $reset, 1; next; }
		my $rule = (any { $_->{result} eq 'x' } @order[ $n - 1, $n ]) ? 'effect of a cancelled key' : 'two effects';
		$self->violation($key, $rule, "those of $one->{uid} and $two->{uid}");
	}
	return;
}

# Whether the record of the first call can have expired before the second.
sub has_expired
{
	my ($self, $key, $one, $two) = @_;
	return 0 unless $self->is_reset($key);
	my $until = max($one->{returned}, $two->{returned});
	my (undef, $latest) = $self->clock_between($one->{invoked}, $until);
	my ($earliest) = $self->clock_between($one->{invoked}, $one->{returned});
	return $latest - $earliest >= $self->{ttl}{ substr $key, 0, 1 };
}

# The least and the greatest time that the server's clock can have shown between two moments.
sub clock_between
{
	my ($self, $from, $to) = @_;
	my ($clock, $last) = ($self->{clock}, $#{ $self->{clock} });
	$to = $clock->[$last][1] + 3600 if $to == 9**9**9;
	my @shown;
	for my $n (0 .. $last)
	{
		my $begin = $clock->[$n][0];
		my $end = $n < $last ? $clock->[ $n + 1 ][1] : $to;
		next if $begin > $to || $end < $from;
		push @shown, map { $_ + $clock->[$n][2] } max($begin, $from), min($end, $to);
	}
	return (min(@shown), max(@shown));
}

# A claim that was taken over, released or revoked can do nothing any more, and no claim ends twice.
sub check_leases
{
	my ($self, $key, $calls) = @_;
	my @holds = grep { $_->{answer} =~ /^hold/ } @$calls;
	my %hold = map { $_->{uid} => $_ } @holds;
	my @done = $self->is_reset($key) ? () : grep { $_->{answer} eq 'did' } @$calls;
	my @revoked = grep { $_->{answer} eq 'revoked' } @$calls;
	my %released = map { $_->{of} => $_ } grep { $_->{of} && $_->{answer} eq 'free' } @$calls;
	my %ended;
	for my $call (grep { $_->{of} && $_->{answer} =~ /^(?:did|ok|free)$/ } @$calls)
	{
		my $own = $hold{ $call->{of} } or next;
		my $newer = first { $_->{invoked} > $own->{returned} && $_->{returned} < $call->{invoked} } @holds;
		$self->violation($key, 'fenced attempt', "$call->{kind} of $own->{uid}, which $newer->{uid} had taken over")
		  if $newer;
		my $revocation = first { $_->{invoked} > $own->{returned} && $_->{returned} < $call->{invoked} } @revoked;
		$self->violation($key, 'revoked attempt', "$call->{kind} of $own->{uid}, which $revocation->{uid} had revoked")
		  if $revocation;
		my $release = $released{ $call->{of} };
		$self->violation($key, 'released attempt', "$call->{kind} of $own->{uid}, which $release->{uid} had released")
		  if $release && $release->{returned} < $call->{invoked};
		my $over = first { $_->{returned} < $call->{invoked} } @done;
		$self->violation($key, 'call after the end', "$call->{kind} of $own->{uid}, after $over->{uid}")
		  if $over && $call->{answer} ne 'did';
		next unless $call->{answer} eq 'did';
		$self->violation($key, 'completed twice', "$own->{uid}, by $ended{$own->{uid}} and $call->{uid}")
		  if $ended{ $own->{uid} };
		$ended{ $own->{uid} } = $call->{uid};
	}
	return if $self->is_reset($key);
	my ($last, %attempt);
	for my $hold (sort { $a->{invoked} <=> $b->{invoked} } @holds)
	{
		my ($attempt) = $hold->{answer} =~ /(\d+)/;
		$self->violation($key, 'attempt twice', "$hold->{uid} and $attempt{$attempt} are attempt $attempt")
		  if $attempt{$attempt};
		$attempt{$attempt} = $hold->{uid};
		$self->violation($key, 'attempt backwards', "$hold->{uid} is attempt $attempt, after " . $last->[0])
		  if $last && $last->[1] < $hold->{invoked} && $attempt < $last->[0];
		$last = [ $attempt, $hold->{returned} ] if !$last || $attempt > $last->[0];
	}
	return;
}

# Only another request meets a conflict. A scope that changes what it compares changes this for no key.
sub check_conflicts
{
	my ($self, $key, $calls) = @_;
	for my $call (grep { $_->{kind} ne 'other' && $_->{answer} =~ /^(?:conflict|ID002)/ } @$calls)
	{
		$self->violation($key, 'conflict of a retry', "$call->{kind} of $call->{uid}");
	}
	return;
}

# A scope's rules for new keys refuse no key that has a record: those that require a request, a tenant,
# a strong or fresh key or a longer TTL, and limits.
sub check_rules
{
	my ($self, $key, $calls) = @_;
	my ($live) = sort { $a->{returned} <=> $b->{returned} } grep { $_->{answer} =~ /^(?:did|had|hold)/ } @$calls
	  or return;
	for my $call (grep { $_->{invoked} > $live->{returned} && $_->{answer} =~ $new_key_rules } @$calls)
	{
		$self->violation($key, 'refused as a new key',
			"$call->{kind} of $call->{uid} got $call->{answer}, after $live->{uid}");
	}
	return;
}

# What has ended stays so: nothing else of the key begins, and no call finds it unfinished.
sub check_end
{
	my ($self, $key, $calls) = @_;
	my ($end) = sort { $a->{returned} <=> $b->{returned} } grep { $_->{answer} =~ /^(?:did|had)/ } @$calls or return;
	for my $call (grep { $_->{invoked} > $end->{returned} } @$calls)
	{
		$self->violation($key, 'claimed after the end', "$call->{kind} of $call->{uid}, after $end->{uid}")
		  if is_granted($call) && $call->{answer} ne 'did';
		$self->violation($key, 'unfinished after the end', "$call->{uid} did not see the end, after $end->{uid}")
		  if $call->{answer} eq 'in_progress' && $call->{kind} =~ /^(?:lookup|await|cancel)$/
		  || $call->{answer} =~ /^(?:revoked$|$undecided)/;
	}
	# A cancelled key answers every request.
	my ($ban) = grep { $_->{kind} eq 'cancel' && $_->{answer} eq 'did' } @$calls or return;
	my $refused = first { $_->{invoked} > $ban->{returned} && $_->{answer} =~ /^(?:conflict|ID002)/ } @$calls or return;
	$self->violation($key, 'conflict with a cancelled key', "$refused->{uid}, after $ban->{uid}");
	return;
}

# A claim that was told that the key is its own, and did not roll this back: take() and cancel() are
# claims as well.
sub is_granted
{
	my ($call) = @_;
	return !$call->{of} && $call->{answer} =~ /^(?:did|hold)/ || $call->{answer} eq 'free'
		&& $call->{kind} =~ /^(?:release|undo|other)$/;
}

# An operation without attempts left is claimed only after it was revoked, or its scope allowed more.
# Its last attempt may still end it.
sub check_attempts
{
	my ($self, $key, $calls, $effects) = @_;
	my @told = grep { $_->{answer} =~ $undecided } @$calls or return;
	my @more = (@{ $self->{allowed}{ substr $key, 0, 1 } // [] },
		grep { $_->{kind} eq 'revoke' && $_->{answer} =~ /^(?:revoked|\?)$/ } @$calls);
	my @unknown = map { $_->{call} } grep { $_->{call}{answer} eq '?' && !$_->{call}{of} } @$effects;
	for my $claim (grep({ is_granted($_) } @$calls), @unknown)
	{
		my $before = first
		{
			my $told = $_;
			$told->{returned} < $claim->{invoked}
				&& !any { $_->{returned} >= $told->{invoked} && $_->{invoked} <= $claim->{returned} } @more
		} @told or next;
		$self->violation($key, 'claimed without attempts left',
			"$claim->{kind} of $claim->{uid}, after $before->{uid}");
	}
	my %hold = map { $_->{uid} => $_ } grep { $_->{answer} =~ /^hold/ } @$calls;
	for my $end (grep { $_->{answer} eq 'did' && $hold{ $_->{of} } } @$calls)
	{
		my $own = $hold{ $end->{of} };
		$self->{count}{'late: did'}++
		  if any { $_->{invoked} > $own->{returned} && $_->{returned} < $end->{invoked} } @told;
	}
	return;
}

# What was called failed, also by cancel(), never completes.
sub check_failed
{
	my ($self, $key, $calls, $effects) = @_;
	my $failed = first { $_->{answer} =~ /^had \S+ [^c]$/ } @$calls or return;
	my $done = first { $_->{result} eq 'c' } @$effects or return;
	$self->violation($key, 'called failed', "$failed->{uid} was told so, but $done->{uid} has completed it");
	return;
}

# An operation that was released with a pause is not claimed before it is due, unless it is revoked. A
# claim that may have come when it was due ends the pause, also if the clock is set back later.
sub check_pauses
{
	my ($self, $key, $calls) = @_;
	my @revoked = grep { $_->{kind} eq 'revoke' && $_->{answer} =~ /^(?:revoked|\?)$/ } @$calls;
	my @claims = grep { !$_->{of} && $_->{answer} =~ /^(?:did|hold|\?)/ } @$calls;
	for my $pause (grep { $_->{kind} eq 'pause' && $_->{answer} eq 'free' } @$calls)
	{
		my ($released) = $self->clock_between($pause->{invoked}, $pause->{returned});
		my @later = grep { $_->{returned} > $pause->{invoked} } @claims;
		my @due = grep { ($self->clock_between($_->{invoked}, $_->{returned}))[1] >= $released
			+ $self->{pause} } @later;
		my $early = first
		{
			my $claim = $_;
			$claim->{invoked} > $pause->{returned} && $claim->{answer} ne '?'
			  && !any { $_->{invoked} < $claim->{returned} } @due, grep { $_->{returned} > $pause->{invoked} } @revoked
		} @later;
		$self->violation($key, 'claimed too early', "by $early->{uid}, after $pause->{uid} had released it") if $early;
	}
	return;
}

# An attempt goes on from the newest recovery point.
sub check_points
{
	my ($self, $key, $calls) = @_;
	my %point = map { $_->{uid} => $_ } grep { $_->{kind} eq 'checkpoint' && $_->{answer} =~ /^(?:ok|\?)$/ } @$calls;
	for my $hold (grep { $_->{answer} =~ /^hold/ } @$calls)
	{
		my ($got) = $hold->{answer} =~ /^hold \d+ (\S+)/ or next;
		my $from = $point{$got};
		$self->violation($key, 'unknown recovery point', "$hold->{uid} got $got") if !$from && $got ne '-';
		my $newer = first { $_->{answer} eq 'ok' && $_->{returned} < $hold->{invoked}
			&& (!$from || $from->{returned} < $_->{invoked}) } values %point;
		$self->violation($key, 'recovery point lost', "$hold->{uid} got $got instead of that of $newer->{uid}")
		  if $newer;
	}
	return;
}

# Each number of a stream is applied once, in order, without gaps.
sub check_stream
{
	my ($self, $key, $calls, $effects) = @_;
	my %applied;
	for my $effect (@$effects)
	{
		$self->violation($key, 'number twice', "$effect->{seq}, by $effect->{uid} and $applied{$effect->{seq}}")
		  if $applied{ $effect->{seq} };
		$applied{ $effect->{seq} } = $effect->{uid};
	}
	my $highest = max(0, keys %applied);
	my $gap = first { !$applied{$_} } 1 .. $highest;
	$self->violation($key, 'gap', "number $gap was never applied") if $gap;
	my ($reached, @waiting) = (0);    # the highest number that was acknowledged when a call was made
	my @done = sort { $a->{returned} <=> $b->{returned} } grep { $_->{answer} eq 'did' } @$calls;
	for my $call (sort { $a->{invoked} <=> $b->{invoked} } @$calls)
	{
		while (@done && $done[0]{returned} < $call->{invoked}) { $reached = max($reached, (shift @done)->{of}); }
		$self->violation($key, 'backwards', "$call->{uid} applied $call->{of} after $reached")
		  if $call->{answer} eq 'did' && $call->{of} <= $reached;
		$self->violation($key, 'answer without an effect', "$call->{uid}: $call->{of} was called a duplicate")
		  if $call->{answer} =~ /^had/ && $call->{of} > $highest;
	}
	return;
}

1;
