#!/usr/bin/env perl
# Makes a payment exactly once, however often it is requested (DBD::Pg).
#
#   pay.pl KEY AMOUNT
#
# Prints the answer as JSON. Prints an error to standard error as a problem document (RFC 9457).
# Connects to the database that PGHOST, PGPORT, PGDATABASE and PGUSER name. The database needs
# the scope and the table of setup.sql.
use strict;
use warnings;

use DBI;
use List::Util qw(max min);
use Time::HiRes qw(sleep);

my $ATTEMPTS = 10;

# Errors that a retry can cure: a lost connection (08), a lost race (40), a lack of resources
# (53), a restart of the server (57P), a key that another caller holds (ID001), a limit (ID009), an
# operation without attempts left (ID014).
my $TRANSIENT = qr/^(08|40|53|57P|ID001|ID009|ID014)/;

sub connection
{
	return DBI->connect('dbi:Pg:', undef, undef,
		{ AutoCommit => 1, RaiseError => 1, PrintError => 0 });
}

# Claims the key, makes the payment and completes the claim, in one transaction.
sub pay_once
{
	my ($dbh, $key, $amount) = @_;
	$dbh->begin_work;
	my ($claimed, $token, $answer) = $dbh->selectrow_array(
		q{SELECT claimed, token, response
		    FROM idem.claim('payments', ?, jsonb_build_object('amount', ?::numeric))},
		undef, $key, $amount);
	if ($claimed)    # otherwise a retry, and $answer is the first answer
	{
		my ($payment) = $dbh->selectrow_array(
			'INSERT INTO payment (amount) VALUES (?) RETURNING to_jsonb(payment)', undef, $amount);
		($answer) = $dbh->selectrow_array('SELECT idem.complete(?, ?)', undef, $token, $payment);
	}
	$dbh->commit;
	return $answer;
}

# Retries with the same key until there is an answer, or an error that a retry cannot cure.
sub pay
{
	my ($key, $amount) = @_;
	for my $attempt (1 .. $ATTEMPTS)
	{
		my $dbh;
		my $answer = eval { $dbh = connection(); pay_once($dbh, $key, $amount) };
		return $answer if defined $answer;
		my $error = error_of($dbh, $@);
		die $error if $attempt == $ATTEMPTS || !lost($dbh) && $error->{state} !~ $TRANSIENT;
		sleep max(retry_after($error), rand min(5, 0.05 * 2**$attempt));
	}
}

# The next call of the driver forgets the SQLSTATE, and the next statement, even a ping, the fields.
sub error_of
{
	my ($dbh, $message) = @_;
	my $state = $DBI::state;
	my ($primary, $type) = map { $dbh && $dbh->pg_error_field($_) } qw(primary type);
	return { state => $state, message => $primary // $message, type => $type };
}

sub lost
{
	my ($dbh) = @_;
	return !$dbh || !$dbh->ping;
}

# The time to wait, in seconds. ID001, ID009 and ID014 have it in a field, in milliseconds.
sub retry_after
{
	my ($error) = @_;
	return $error->{state} =~ /^ID0(?:01|09|14)$/ ? ($error->{type} // 0) / 1000 : 0;
}

sub problem
{
	my ($error) = @_;
	return connection()->selectrow_array('SELECT idem.problem(?, ?)', undef, @$error{qw(state message)});
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
