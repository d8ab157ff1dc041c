# The checker of the chaos test (test/chaos/Checker.pm) finds every kind of violation in histories that
# are written by hand, and none in those that are as promised. Needs no server.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../chaos";

use Checker;
use Test::More;

# A case: calls ("invoked returned client kind key uid answer of"), effects ("key uid result seq"),
# settings of the clock ("before after clock seconds"), and more attempts for the keys of a letter
# ("before after allow letter"), as one text. Returns the rules that are violated.
sub verdict
{
	my ($text) = @_;
	my $checker = Checker->new(ttl => { b => 300 }, pause => 0.3);
	for my $line (grep { /\S/ } split /\n/, $text)
	{
		my @field = grep { length } split /\s\s+/, $line;
		if ($field[0] eq 'effect') { $checker->effect(@field[ 1 .. 3 ], $field[4] // ''); next; }
		push @field, '' while $field[2] !~ /^(?:clock|allow)$/ && @field < 8;
		$checker->line(join "\t", @field);
	}
	return join ', ', map { $_->{rule} } $checker->check;
}

sub finds { my ($rule, $text, $name) = @_; return is(verdict($text), $rule, $name // $rule); }
sub accepts { my ($name, $text) = @_; return is(verdict($text), '', $name); }

# Effects and answers ----------------------------------------------------------------------------

accepts('a call, a replay, another effect', <<'END');
1  2  c1  claim  a1  u1  did
3  4  c2  try  a1  u2  had u1 c
3  4  c2  claim  a2  u3  did
effect  a1  u1  c
effect  a2  u3  c
END
accepts('an unknown outcome with an effect, and one without', <<'END');
1  inf  c1  claim  a1  u1  ?
1  inf  c1  claim  a2  u2  ?
3  4  c2  claim  a1  u3  had u1 c
effect  a1  u1  c
END
finds('two effects', <<'END');
1  2  c1  claim  a1  u1  did
3  4  c2  claim  a1  u2  did
effect  a1  u1  c
effect  a1  u2  c
END
finds('two effects', <<'END', 'two effects, one of an unknown outcome');
1  inf  c1  claim  a1  u1  ?
3  4  c2  claim  a1  u2  did
effect  a1  u1  c
effect  a1  u2  c
END
finds('effect twice, two effects', <<'END', 'a call has two effects');
1  2  c1  claim  a1  u1  did
effect  a1  u1  c
effect  a1  u1  c
END
finds('effect lost', <<'END');
1  2  c1  claim  a1  u1  did
END
finds('effect without a call', <<'END', 'an effect of a call that failed');
1  2  c1  claim  a1  u1  none
effect  a1  u1  c
END
finds('effect without a call', <<'END', 'an effect that was rolled back');
1  2  c1  undo  a1  u1  free
effect  a1  u1  c
END
finds('effect without a call', <<'END', 'an effect that no call made');
effect  a1  u1  c
END
finds('answer without an effect', <<'END', 'an answer of a call that had no effect');
1  2  c1  claim  a1  u1  did
1  2  c2  claim  a1  u2  none
3  4  c3  claim  a1  u3  had u2 c
effect  a1  u1  c
END
finds('answer without an effect', <<'END', 'the answer of another key');
1  2  c1  claim  a1  u1  did
1  2  c1  claim  a2  u2  did
3  4  c3  claim  a1  u3  had u2 c
effect  a1  u1  c
effect  a2  u2  c
END
finds('answer without an effect', <<'END', 'a success that was a failure');
1  2  c1  fail  a1  u1  did
3  4  c3  claim  a1  u3  had u1 c
effect  a1  u1  f
END
finds('answer before the call', <<'END');
1  2  c2  claim  a1  u2  had u1 c
3  4  c1  claim  a1  u1  did
effect  a1  u1  c
END
finds('answer to another request', <<'END');
1  2  c1  claim  a1  u1  did
3  4  c2  other  a1  u2  had u1 c
effect  a1  u1  c
END
finds('record lost', <<'END');
1  2  c1  claim  a1  u1  did
3  4  c2  lookup  a1  u2  absent
effect  a1  u1  c
END
accepts('a lookup that overlaps the call', <<'END');
1  3  c1  claim  a1  u1  did
2  4  c2  lookup  a1  u2  absent
effect  a1  u1  c
END
accepts('a key that every call leaves unfinished', <<'END');
1  2  c1  release  a1  u1  free
3  4  c1  lookup  a1  u2  absent
5  6  c1  lease  a1  h1  hold 1
7  8  c2  await  a1  u3  in_progress
7  8  c2  release  a1  u4  ID001
END
finds('claimed after the end', <<'END', 'a finished key is claimed and released');
1  2  c1  claim  a1  u1  did
3  4  c2  release  a1  u2  free
effect  a1  u1  c
END
finds('unfinished after the end', <<'END', 'a lookup waits for an operation that has ended');
1  2  c1  claim  a1  u1  did
3  4  c2  await  a1  u2  in_progress
effect  a1  u1  c
END
finds('answer without an effect', <<'END', 'a lookup returns an answer that is not the final one');
1  3  c1  claim  a1  u1  did
1  inf  c3  claim  a1  u3  ?
2  4  c2  await  a1  u2  had u3 c
effect  a1  u1  c
END
finds('no end', <<'END');
1  inf  c1  claim  a1  u1  ?
3  4  finish  claim  a1  u2  ID001
END

# Generations ------------------------------------------------------------------------------------

accepts('a key that was forgotten', <<'END');
1  2  c1  claim  b1  u1  did
3  4  c2  forget  b1  u2  forgot
5  6  c3  claim  b1  u3  did
7  8  c3  claim  b1  u4  had u3 c
effect  b1  u1  c
effect  b1  u3  c
END
accepts('a key that was forgotten twice, whichever history is read first', <<'END');
3  5  c1  claim  b1  u2  did
3  5  c1  forget  b1  u3  forgot
1  2  c2  claim  b1  u1  did
2.2  2.5  c2  forget  b1  u4  forgot
6  7  c3  claim  b1  u5  did
effect  b1  u1  c
effect  b1  u2  c
effect  b1  u5  c
END
accepts('a key that may have been forgotten', <<'END');
1  2  c1  claim  b1  u1  did
3  inf  c2  forget  b1  u2  ?
5  6  c3  claim  b1  u3  did
effect  b1  u1  c
effect  b1  u3  c
END
finds('two effects', <<'END', 'two effects before the key was forgotten');
1  2  c1  claim  b1  u1  did
3  4  c1  claim  b1  u2  did
5  6  c2  forget  b1  u3  forgot
effect  b1  u1  c
effect  b1  u2  c
END
finds('two effects', <<'END', 'three effects, and forgotten once');
1  2  c1  claim  b1  u1  did
3  4  c2  forget  b1  u2  forgot
5  6  c1  claim  b1  u3  did
7  8  c1  claim  b1  u4  did
effect  b1  u1  c
effect  b1  u3  c
effect  b1  u4  c
END
finds('old answer', <<'END');
1  2  c1  claim  b1  u1  did
3  4  c2  forget  b1  u2  forgot
5  6  c3  claim  b1  u3  did
7  8  c3  claim  b1  u4  had u1 c
effect  b1  u1  c
effect  b1  u3  c
END
accepts('a key that has expired by the clock', <<'END');
1  2  c1  claim  b1  u1  did
3  4  clock  400
5  6  clock  0
7  8  c1  claim  b1  u2  did
effect  b1  u1  c
effect  b1  u2  c
END
finds('two effects', <<'END', 'a clock that was not set far enough');
1  2  c1  claim  b1  u1  did
3  4  clock  200
7  8  c1  claim  b1  u2  did
effect  b1  u1  c
effect  b1  u2  c
END
finds('two effects', <<'END', 'a clock that was set before the first effect');
1  2  clock  400
3  4  c1  claim  b1  u1  did
7  8  c1  claim  b1  u2  did
effect  b1  u1  c
effect  b1  u2  c
END

# Leases -----------------------------------------------------------------------------------------

accepts('a takeover', <<'END');
1  2  c1  lease  a1  h1  hold 1
3  4  c1  renew  a1  u1  ok  h1
5  6  c2  lease  a1  h2  hold 2
7  8  c1  complete  a1  u2  ID004  h1
9  10  c2  complete  a1  u3  did  h2
effect  a1  u3  c
END
accepts('a late call of an attempt that was not taken over', <<'END');
1  2  c1  lease  a1  h1  hold 1
5  8  c2  lease  a1  h2  hold 2
6  7  c1  renew  a1  u2  ok  h1
END
finds('fenced attempt', <<'END', 'a fenced attempt renews');
1  2  c1  lease  a1  h1  hold 1
3  4  c2  lease  a1  h2  hold 2
5  6  c1  renew  a1  u2  ok  h1
END
finds('fenced attempt', <<'END', 'a fenced attempt completes');
1  2  c1  lease  a1  h1  hold 1
3  4  c2  lease  a1  h2  hold 2
5  6  c1  complete  a1  u2  did  h1
effect  a1  u2  c
END
finds('call after the end', <<'END');
1  2  c1  lease  a1  h1  hold 1
3  4  c1  complete  a1  u1  did  h1
5  6  c1  renew  a1  u2  ok  h1
effect  a1  u1  c
END
finds('two effects, completed twice', <<'END', 'an attempt completes twice');
1  2  c1  lease  a1  h1  hold 1
3  4  c1  complete  a1  u1  did  h1
5  6  c1  complete  a1  u2  did  h1
effect  a1  u1  c
effect  a1  u2  c
END
finds('attempt twice', <<'END');
1  4  c1  lease  a1  h1  hold 1
2  3  c2  lease  a1  h2  hold 1
END
finds('attempt backwards', <<'END');
1  2  c1  lease  a1  h1  hold 2
3  4  c2  lease  a1  h2  hold 1
END

accepts('an operation that was taken', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c1  checkpoint  a1  p1  ok  h1
5  6  c2  take  a1  h2  hold 2 p1
7  8  c1  complete  a1  u2  ID004  h1
9  10  c2  complete  a1  u3  did  h2
9  10  c3  take  *  u4  idle
effect  a1  u3  c
END
accepts('an operation that was taken and finished, without an answer', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3  inf  c2  take_end  *  u1  ?
3  inf  c3  take_end  *  u2  ?
5  6  c1  claim  a1  u3  had u1 c
effect  a1  u1  c
END
finds('effect without a call', <<'END', 'one call takes two operations');
1  2  c1  lease  a1  h1  hold 1 -
1  2  c1  lease  a2  h2  hold 1 -
3  inf  c2  take_end  *  u1  ?
effect  a1  u1  c
effect  a2  u1  c
END
finds('fenced attempt', <<'END', 'an attempt that was taken completes');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c2  take  a1  h2  hold 2 -
5  6  c1  complete  a1  u2  did  h1
effect  a1  u2  c
END
finds('attempt twice', <<'END', 'two takers get one attempt');
1  2  c1  lease  a1  h1  hold 1 -
3  6  c2  take  a1  h2  hold 2 -
4  5  c3  take  a1  h3  hold 2 -
END
finds('two effects', <<'END', 'what was taken is finished twice');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c2  take_end  a1  u1  did
5  inf  c3  take_end  *  u2  ?
effect  a1  u1  c
effect  a1  u2  c
END
finds('claimed after the end', <<'END', 'a finished operation is taken');
1  2  c1  claim  a1  u1  did
3  4  c2  take  a1  h2  hold 2 -
effect  a1  u1  c
END
finds('recovery point lost', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c1  checkpoint  a1  p1  ok  h1
5  6  c2  take  a1  h2  hold 2 -
END
finds('recovery point lost', <<'END', 'an old recovery point');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c1  checkpoint  a1  p1  ok  h1
5  6  c1  checkpoint  a1  p2  ok  h1
7  8  c2  take  a1  h2  hold 2 p1
END
accepts('a recovery point whose answer was lost', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c1  checkpoint  a1  p1  ok  h1
5  inf  c1  checkpoint  a1  p2  ?  h1
7  8  c2  take  a1  h2  hold 2 p2
END
finds('unknown recovery point', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c1  checkpoint  a1  p1  none  h1
5  6  c2  take  a1  h2  hold 2 p1
END

# Released and revoked ---------------------------------------------------------------------------

accepts('an operation that was released with a pause', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c1  pause  a1  u1  free  h1
4.1  4.4  c2  take  a1  h2  hold 2 -
END
accepts('a pause that the clock has jumped over', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c1  pause  a1  u1  free  h1
4.01  4.02  clock  10
4.05  4.1  c2  take  a1  h2  hold 2 -
END
accepts('a pause that ended while the clock had jumped over it', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3.98  4  c1  pause  a1  u1  free  h1
4.01  4.02  clock  10
4.03  4.04  c1  lease  a1  h2  hold 2 -
4.05  4.06  clock  0
4.07  4.08  c1  checkpoint  a1  u2  ok  h2
4.09  4.10  c1  drop  a1  u3  free  h2
4.11  4.12  c2  take  a1  h3  hold 3 u2
END
accepts('a pause that a claim of unknown outcome can have ended', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3.98  4  c1  pause  a1  u1  free  h1
4.01  4.02  clock  10
4.03  inf  c1  try  a1  u2  ?
4.05  4.06  clock  0
4.11  4.12  c2  take  a1  h3  hold 2 -
END
accepts('a pause that was revoked', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3.98  4  c1  pause  a1  u1  free  h1
4.01  4.02  c3  revoke  a1  u2  revoked
4.05  4.1  c2  take  a1  h2  hold 2 -
END
finds('claimed too early', <<'END', 'taken too early');
1  2  c1  lease  a1  h1  hold 1 -
3.98  4  c1  pause  a1  u1  free  h1
4.05  4.1  c2  take  a1  h2  hold 2 -
END
finds('claimed too early', <<'END', 'after a claim that was too early itself');
1  2  c1  lease  a1  h1  hold 1 -
3.98  4  c1  pause  a1  u1  free  h1
4.01  4.02  c2  take  a1  h2  hold 2 -
4.03  4.04  c2  drop  a1  u2  free  h2
4.05  4.06  c1  lease  a1  h3  hold 3 -
END
finds('claimed too early', <<'END', 'after the clock was set back, and no claim before that');
1  2  c1  lease  a1  h1  hold 1 -
3.98  4  c1  pause  a1  u1  free  h1
4.01  4.02  clock  10
4.05  4.06  clock  0
4.11  4.12  c2  take  a1  h2  hold 2 -
END
finds('claimed too early', <<'END', 'finished too early by an atomic claim');
1  2  c1  lease  a1  h1  hold 1 -
3.98  4  c1  pause  a1  u1  free  h1
4.05  4.1  c2  claim  a1  u2  did
effect  a1  u2  c
END
finds('released attempt', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c1  drop  a1  u1  free  h1
5  6  c1  renew  a1  u2  ok  h1
END
accepts('an operation that was revoked', <<'END');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c3  revoke  a1  u1  revoked
5  6  c1  complete  a1  u2  ID004  h1
7  8  c2  lease  a1  h2  hold 2 -
9  10  c2  complete  a1  u3  did  h2
effect  a1  u3  c
END
finds('revoked attempt', <<'END', 'a revoked attempt completes');
1  2  c1  lease  a1  h1  hold 1 -
3  4  c3  revoke  a1  u1  revoked
5  6  c1  complete  a1  u2  did  h1
effect  a1  u2  c
END
finds('unfinished after the end', <<'END', 'a finished operation is revoked');
1  2  c1  claim  a1  u1  did
3  4  c3  revoke  a1  u2  revoked
effect  a1  u1  c
END

# Cancelled and erased ---------------------------------------------------------------------------

accepts('a key that was cancelled', <<'END');
1  2  c1  cancel  a1  u1  did
3  4  c2  claim  a1  u2  had u1 x
3  4  c2  other  a1  u3  had u1 x
5  6  c3  cancel  a1  u4  had u1 x
effect  a1  u1  x
END
finds('effect of a cancelled key', <<'END');
1  2  c1  cancel  a1  u1  did
3  4  c2  claim  a1  u2  did
effect  a1  u1  x
effect  a1  u2  c
END
finds('effect of a cancelled key', <<'END', 'an operation that has run is cancelled');
1  2  c2  claim  a1  u2  did
3  4  c1  cancel  a1  u1  did
effect  a1  u1  x
effect  a1  u2  c
END
finds('claimed after the end', <<'END', 'a cancelled key is claimed');
1  2  c1  cancel  a1  u1  did
3  4  c2  lease  a1  h1  hold 1 -
effect  a1  u1  x
END
finds('answer without an effect', <<'END', 'a cancelled operation is said to have completed');
1  2  c1  cancel  a1  u1  did
3  4  c2  claim  a1  u2  had u1 c
effect  a1  u1  x
END
finds('conflict with a cancelled key', <<'END');
1  2  c1  cancel  a1  u1  did
3  4  c2  other  a1  u2  conflict
effect  a1  u1  x
END
accepts('an answer that was erased', <<'END');
1  2  c1  claim  a1  u1  did
3  5  c2  erase  a1  u2  erased
4  6  c3  claim  a1  u3  had u1 c
7  8  c3  claim  a1  u4  had - c
effect  a1  u1  c
END
accepts('an answer that may have been erased', <<'END');
1  2  c1  fail  a1  u1  did
3  inf  c2  erase_all  a1  u2  ?
4  6  c3  claim  a1  u3  had - f
effect  a1  u1  f
END
accepts('an answer that was erased, and a new one', <<'END');
1  2  c1  claim  b1  u1  did
3  4  c2  erase  b1  u2  erased
5  6  c2  forget_all  b1  u3  forgot
7  8  c3  claim  b1  u4  did
9  10  c3  claim  b1  u5  had u4 c
effect  b1  u1  c
effect  b1  u4  c
END
finds('erased answer', <<'END');
1  2  c1  claim  a1  u1  did
3  4  c2  erase  a1  u2  erased
5  6  c3  claim  a1  u3  had u1 c
effect  a1  u1  c
END
finds('answer missing', <<'END');
1  2  c1  claim  a1  u1  did
3  4  c2  erase  a1  u2  none
5  6  c3  claim  a1  u3  had - c
effect  a1  u1  c
END
finds('answer without an effect', <<'END', 'an erased success that was a failure');
1  2  c1  fail  a1  u1  did
3  4  c2  erase  a1  u2  erased
5  6  c3  claim  a1  u3  had - c
effect  a1  u1  f
END
finds('two effects', <<'END', 'the effect runs again after its answer was erased');
1  2  c1  claim  a1  u1  did
3  4  c2  erase  a1  u2  erased
5  6  c3  claim  a1  u3  did
effect  a1  u1  c
effect  a1  u3  c
END

# Attempts that are used up ----------------------------------------------------------------------

accepts('the last attempt completes late', <<'END');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  lease  a1  h2  exhausted
3  4  c2  lease_wait  a1  h3  ID014
5  6  c3  cancel  a1  u1  exhausted
7  8  c1  complete  a1  u2  did  h1
9  10  c2  cancel  a1  u3  had u2 c
effect  a1  u2  c
END
accepts('one more attempt after a revocation', <<'END');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  lookup  a1  u1  exhausted
5  6  c3  revoke  a1  u2  revoked
7  8  c2  lease  a1  h2  hold 3 -
9  10  c2  give_up  a1  u3  did  h2
11  12  c2  cancel  a1  u4  had u3 f
effect  a1  u3  f
END
accepts('one more attempt after a revocation whose answer was lost', <<'END');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  lookup  a1  u1  exhausted
5  inf  c3  revoke  a1  u2  ?
7  8  c2  claim  a1  u3  did
effect  a1  u3  c
END
accepts('one more attempt that a higher limit allows', <<'END');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  take_end  *  u1  idle
3  4  c2  lookup  a1  u2  exhausted
5  6  allow  a
7  8  c2  take_end  a1  u3  did
effect  a1  u3  c
END
finds('claimed without attempts left', <<'END');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  lease  a1  h2  exhausted
5  6  c3  lease_wait  a1  h3  hold 3 -
END
finds('claimed without attempts left', <<'END', 'an operation without attempts left is taken');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  claim  a1  u1  ID014
5  6  c3  take_end  a1  u2  did
effect  a1  u2  c
END
finds('claimed without attempts left', <<'END', 'taken by a call whose answer was lost');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  lookup  a1  u1  exhausted
5  inf  c3  take_end  *  u2  ?
effect  a1  u2  c
END
finds('claimed without attempts left', <<'END', 'claimed and released');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  cancel  a1  u1  exhausted
5  6  c3  release  a1  u2  free
END
finds('claimed without attempts left', <<'END', 'a revocation and a higher limit that came before');
0  0.5  allow  a
1  2  c1  lease  a1  h1  hold 2 -
3  4  c3  revoke  a1  u1  revoked
5  6  c1  lease  a1  h2  hold 3 -
7  8  c2  lookup  a1  u2  exhausted
9  10  c1  lease  a1  h3  hold 4 -
END
finds('claimed without attempts left', <<'END', 'a higher limit for other keys');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  lookup  a1  u1  exhausted
5  6  allow  b
7  8  c1  lease  a1  h2  hold 3 -
END
finds('claimed without attempts left', <<'END', 'cancelled after all');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  cancel  a1  u1  exhausted
5  6  c2  cancel  a1  u2  did
effect  a1  u2  x
END
finds('revoked attempt', <<'END', 'the last attempt completes after it was revoked');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  lookup  a1  u1  exhausted
5  6  c3  revoke  a1  u2  revoked
7  8  c1  complete  a1  u3  did  h1
effect  a1  u3  c
END
finds('unfinished after the end', <<'END', 'a failure is called undecided');
1  2  c1  fail  a1  u1  did
3  4  c2  claim  a1  u2  ID014
effect  a1  u1  f
END
finds('effect of a cancelled key', <<'END', 'an undecided operation is cancelled, and its last attempt completes');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  cancel  a1  u1  did
5  6  c1  complete  a1  u2  did  h1
effect  a1  u1  x
effect  a1  u2  c
END
finds('unfinished after the end', <<'END', 'what was cancelled is revoked');
1  2  c2  cancel  a1  u1  did
3  4  c3  revoke  a1  u2  revoked
effect  a1  u1  x
END
finds('two effects, called failed', <<'END', 'a failure that is revoked silently, and completes');
1  2  c1  fail  a1  u1  did
3  4  c2  cancel  a1  u2  had u1 f
5  6  c3  take_end  a1  u3  did
effect  a1  u1  f
effect  a1  u3  c
END
finds('answer missing, answer without an effect, called failed', <<'END', 'an undecided operation is called failed');
1  2  c1  lease  a1  h1  hold 2 -
3  4  c2  lookup  a1  u1  had - ?
5  6  c1  complete  a1  u2  did  h1
effect  a1  u2  c
END
accepts('a failure, forgotten, and then completed', <<'END');
1  2  c1  fail  b1  u1  did
3  4  c2  claim  b1  u2  had u1 f
5  6  c2  forget  b1  u3  forgot
7  8  c2  claim  b1  u4  did
effect  b1  u1  f
effect  b1  u4  c
END

# Consumers --------------------------------------------------------------------------------------

accepts('arrays', <<'END');
1  2  c1  each  e1,e2  u1  new e1,e2
3  4  c2  each  e2,e3  u2  new e3
5  6  c2  once  e3  u3  had ? c
effect  e1  u1  c
effect  e2  u1  c
effect  e3  u2  c
END
finds('two effects', <<'END', 'an array brings a key twice');
1  2  c1  each  e1,e2  u1  new e1,e2
3  4  c2  each  e2,e3  u2  new e2
effect  e1  u1  c
effect  e2  u1  c
effect  e2  u2  c
effect  e3  u0  c
1  inf  c3  once  e3  u0  ?
END
finds('answer without an effect', <<'END', 'a key is called old that is not');
1  2  c1  each  e1  u1  new
END
finds('a key that was not asked for', <<'END');
1  2  c1  each  e1  u1  new e1,e2
effect  e1  u1  c
END

# Scopes that change -----------------------------------------------------------------------------

accepts('another request meets a conflict, and rules refuse new keys', <<'END');
1  2  c1  claim  a1  u1  22004
2  3  c1  claim  a1  u2  did
4  5  c2  other  a1  u3  conflict
4  5  c2  claim  a2  u4  limited
effect  a1  u2  c
END
finds('conflict of a retry', <<'END');
1  2  c1  claim  a1  u1  did
3  4  c2  try  a1  u2  conflict
effect  a1  u1  c
END
finds('conflict of a retry', <<'END', 'a conflict of a retry of a key that can expire');
1  2  c1  claim  b1  u1  did
3  4  c2  wait  b1  u2  ID002
effect  b1  u1  c
END
finds('refused as a new key', <<'END', 'a rule for new keys refuses a retry');
1  2  c1  claim  a1  u1  did
3  4  c2  try  a1  u2  22004
effect  a1  u1  c
END
finds('refused as a new key', <<'END', 'a limit refuses to take over');
1  2  c1  lease  a1  u1  hold 1 -
3  4  c2  try  a1  u2  limited
END

# Streams ----------------------------------------------------------------------------------------

accepts('a stream', <<'END');
1  2  c1  advance  s1  u1  did  1
3  4  c2  advance  s1  u2  had ? c  1
5  6  c2  advance  s1  u3  did  2
effect  s1  u1  c  1
effect  s1  u3  c  2
END
finds('number twice, backwards', <<'END', 'a number is applied twice');
1  2  c1  advance  s1  u1  did  1
3  4  c2  advance  s1  u2  did  1
effect  s1  u1  c  1
effect  s1  u2  c  1
END
finds('backwards', <<'END', 'a number is applied after a higher one');
1  inf  c1  advance  s1  u1  ?  1
3  4  c2  advance  s1  u2  did  3
5  6  c3  advance  s1  u3  did  2
effect  s1  u1  c  1
effect  s1  u2  c  3
effect  s1  u3  c  2
END
finds('gap', <<'END');
1  2  c1  advance  s1  u1  did  1
3  4  c2  advance  s1  u2  did  3
effect  s1  u1  c  1
effect  s1  u2  c  3
END
finds('answer without an effect', <<'END', 'a number is called a duplicate that is none');
1  2  c1  advance  s1  u1  did  1
3  4  c1  advance  s1  u2  had ? c  2
effect  s1  u1  c  1
END

done_testing();
