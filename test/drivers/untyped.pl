# Runs the statements of standard input with DBD::Pg, and prints the result of each.
use strict;
use warnings;

use DBI;

my ($mode) = @ARGV;
my %saved;

my $dbh = DBI->connect('dbi:Pg:', undef, undef,
	{ AutoCommit => 1, RaiseError => 1, PrintError => 0, pg_server_prepare => $mode eq 'prepared',
		pg_switch_prepared => 1 });

sub parameter
{
	my ($kind, $value) = $_[0] =~ /^(\w+):(.*)$/;
	return if $kind eq 'null';
	return $value =~ /^\$(\w+)$/ ? $saved{$1} : $value;
}

# When a prepared statement goes, the fields of its error go, too.
sub result
{
	my ($statement, @parameters) = @_;
	my $plan = $dbh->prepare($statement);
	my ($result) = eval { $dbh->selectrow_array($plan, undef, @parameters) };
	return $result unless $@;
	return join ' ', 'ERROR', $dbh->state, map { $dbh->pg_error_field($_) // '-' } qw(schema constraint type column);
}

while (my $line = <STDIN>)
{
	chomp $line;
	my ($name, $statement, @fields) = split /\t/, $line, -1;
	$saved{$name} = result($statement, map { scalar parameter($_) } @fields);
	print "$saved{$name}\n";
}
