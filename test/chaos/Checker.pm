# Decides whether a history is one that idem promises. It knows the calls, when each was made and
# answered, the answers, the effects that were found in the end, and when the clock was set: nothing
# of idem's tables and code.
package Checker;

use strict;
use warnings;

use List::Util qw(any first max min);

# ttl: of the keys that begin with a letter, in seconds. Those of other letters do not expire, and are
# never forgotten.
sub new
{
	my ($class, %options) = @_;
	return bless {
		ttl   => $options{ttl} // {},
		calls => {},
		done  => {},
		clock => [ [ 0, 0, 0 ] ],
		acknowledged => 0,
		unknown      => 0,
		found        => [],
	}, $class;
}

# What happened ----------------------------------------------------------------------------------

# A line of Client.pm, or "invoked TAB returned TAB clock TAB seconds".
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
	if ($kind ne 'each')
	{
		$self->count($answer, 1);
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
	elsif ($answer =~ /^(?:did|had|hold|ok|free|forgot|absent|new|conflict)/) { $self->{acknowledged} += $n; }
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
		my @effects = map { { uid => $_->[0], result => $_->[1], seq => $_->[2], call => $made{ $_->[0] } } } @{ $self->{done}{$key} // [] };
		$self->check_effects($key, \@calls, \@effects);
		$self->check_answers($key, \@calls, [ grep { $_->{call} } @effects ]);
		if ($key =~ /^s/) { $self->check_stream($key, \@calls, \@effects); next; }
		$self->check_once($key, \@calls, [ grep { $_->{call} } @effects ]);
		$self->check_leases($key, \@calls) if any { $_->{answer} =~ /^hold/ } @calls;
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
		if ($call->{kind} eq 'other' && ($uid || $call->{answer} eq 'did'))
		{
			$self->violation($key, 'answer to another request', "$call->{uid} got $call->{answer}");
		}
		$self->check_absent($key, $call, $calls) if $call->{answer} eq 'absent' && $call->{kind} eq 'lookup';
		next unless $uid;
		if ($uid eq '?')
		{
			next if any { $_->{call}{invoked} <= $call->{returned} } @$effects;
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
		my $newer = first { $made->{call}{returned} < $_->{call}{invoked} && $_->{call}{returned} < $call->{invoked} } @$effects;
		$self->violation($key, 'old answer', "$call->{uid} got $uid after $newer->{uid}") if $newer;
	}
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
	my @resets = $self->is_reset($key) ? grep { $_->{kind} eq 'forget' && $_->{answer} =~ /^(?:forgot|\?)$/ } @$calls : ();
	@resets = sort { $a->{returned} <=> $b->{returned} } @resets;
	for my $n (1 .. $#order)
	{
		my ($one, $two) = map { $_->{call} } @order[ $n - 1, $n ];
		next if $self->has_expired($key, $one, $two);
		my $until = max($one->{returned}, $two->{returned});
		my ($reset) = grep { $resets[$_]{returned} >= $one->{invoked} && $resets[$_]{invoked} <= $until } 0 .. $#resets;
		if (defined $reset) { splice @resets, $reset, 1; next; }
		$self->violation($key, 'two effects', "those of $one->{uid} and $two->{uid}");
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

# A claim that was taken over can do nothing any more, and no claim ends twice.
sub check_leases
{
	my ($self, $key, $calls) = @_;
	my @holds = grep { $_->{answer} =~ /^hold/ } @$calls;
	my %hold = map { $_->{uid} => $_ } @holds;
	my @done = $self->is_reset($key) ? () : grep { $_->{answer} eq 'did' } @$calls;
	my %ended;
	for my $call (grep { $_->{of} && $_->{answer} =~ /^(?:did|ok|free)$/ } @$calls)
	{
		my $own = $hold{ $call->{of} } or next;
		my $newer = first { $_->{invoked} > $own->{returned} && $_->{returned} < $call->{invoked} } @holds;
		$self->violation($key, 'fenced attempt', "$call->{kind} of $own->{uid}, which $newer->{uid} had taken over") if $newer;
		my $over = first { $_->{returned} < $call->{invoked} } @done;
		$self->violation($key, 'call after the end', "$call->{kind} of $own->{uid}, after $over->{uid}") if $over && $call->{answer} ne 'did';
		next unless $call->{answer} eq 'did';
		$self->violation($key, 'completed twice', "$own->{uid}, by $ended{$own->{uid}} and $call->{uid}") if $ended{ $own->{uid} };
		$ended{ $own->{uid} } = $call->{uid};
	}
	return if $self->is_reset($key);
	my ($last, %attempt);
	for my $hold (sort { $a->{invoked} <=> $b->{invoked} } @holds)
	{
		my ($attempt) = $hold->{answer} =~ /(\d+)/;
		$self->violation($key, 'attempt twice', "$hold->{uid} and $attempt{$attempt} are attempt $attempt") if $attempt{$attempt};
		$attempt{$attempt} = $hold->{uid};
		$self->violation($key, 'attempt backwards', "$hold->{uid} is attempt $attempt, after " . $last->[0])
		  if $last && $last->[1] < $hold->{invoked} && $attempt < $last->[0];
		$last = [ $attempt, $hold->{returned} ] if !$last || $attempt > $last->[0];
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
