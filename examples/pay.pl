#!/usr/bin/env perl
# A payment that is made once, however often it is asked for (DBD::Pg).
#
#   pay.pl KEY AMOUNT
#
# Prints the answer as JSON; an error goes to standard error as a problem document (RFC 9457). Connects
# as PGHOST, PGPORT, PGDATABASE and PGUSER say, to a database with the scope and table of setup.sql.
use strict;
use warnings;

use DBI;
use List::Util qw(max min);
use Time::HiRes qw(sleep);

my $ATTEMPTS = 10;

# Nothing is wrong with the request: the connection is lost, a race is lost, the server is short of
# something or restarting, another try is at it, too many came at once.
my $TRANSIENT = qr/^(08|40|53|57P|ID001|ID009)/;

sub connection
{
	return DBI->connect('dbi:Pg:', undef, undef, { AutoCommit => 1, RaiseError => 1, PrintError => 0 });
}

# Claim, effect and complete, in one transaction.
sub pay_once
{
	my ($dbh, $key, $amount) = @_;
	$dbh->begin_work;
	my ($claimed, $token, $answer) = $dbh->selectrow_array(
		q{SELECT claimed, token, response FROM idem.claim('payments', ?, jsonb_build_object('amount', ?::numeric))},
		undef, $key, $amount);
	if ($claimed)    # else it is a retry, and this the first answer
	{
		my ($payment) = $dbh->selectrow_array(
			'INSERT INTO payment (amount) VALUES (?) RETURNING to_jsonb(payment)', undef, $amount);
		($answer) = $dbh->selectrow_array('SELECT idem.complete(?, ?)', undef, $token, $payment);
	}
	$dbh->commit;
	return $answer;
}

# Tries with the same key until there is an answer, or an error that will not pass.
sub pay
{
	my ($key, $amount) = @_;
	for my $attempt (1 .. $ATTEMPTS)
	{
		my $dbh;
		my $answer = eval { $dbh = connection(); pay_once($dbh, $key, $amount) };
		return $answer if defined $answer;
		my $message = $@;
		my $state = $DBI::state;
		die { state => $state, message => $message }
		  if $attempt == $ATTEMPTS || !lost($dbh) && $state !~ $TRANSIENT;
		sleep max(retry_after($message), rand min(5, 0.05 * 2**$attempt));
	}
}

sub lost
{
	my ($dbh) = @_;
	return !$dbh || !$dbh->ping;
}

# Seconds: the hints of ID001 and ID009 say "after 1.5 seconds".
sub retry_after
{
	my ($message) = @_;
	return $message =~ /after ([\d.]+) seconds/ ? $1 : 0;
}

# The message has context and hint in it; the server's own words are the rest of its first line.
sub problem
{
	my ($error) = @_;
	my ($detail) = $error->{message} =~ /:  (.*)/;
	return connection()->selectrow_array('SELECT idem.problem(?, ?)', undef, $error->{state}, $detail);
}

my ($key, $amount) = @ARGV;
my $answer = eval { pay($key, $amount) };
if (my $error = $@)
{
	die $error unless ref $error;
	print STDERR problem($error), "\n";
	exit 1;
}
print "$answer\n";
