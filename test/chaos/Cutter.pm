# The proxy of the other tests, which cuts a connection whenever the storm asks for it, and which
# follows the primary.
package Cutter;

use strict;
use warnings;

use parent 'CutProxy';

my @points = qw(effect answer terminated);

# Options: target (file: where the primary is), seed.
sub new
{
	my ($class, $node, %options) = @_;
	my $self = $class->SUPER::new($node, at => 'never', times => 0, %options);
	return $self;
}

# The next messages are lost, and their connections with them. Returns how many.
sub cut
{
	my ($self, $times) = @_;
	kill $_, $self->{pid} for (qw(USR1 USR2 HUP))[ 0 .. $times - 1 ];
	return $times;
}

sub serve
{
	my ($self) = @_;
	my $due = 0;
	$self->{due} = \$due;
	# Signals of one kind that come together are one: so there are three.
	local @SIG{qw(USR1 USR2 HUP)} = (sub { $due++ }) x 3;
	$self->SUPER::serve;
	return;
}

sub welcome
{
	my ($self) = @_;
	if (open my $file, '<', $self->{target})
	{
		my ($directory, $port) = split ' ', <$file> // '';
		$self->{socket} = defined $port ? "$directory/.s.PGSQL.$port" : '';
	}
	return $self->SUPER::welcome;
}

sub is_cut
{
	my ($self, $side, $bytes) = @_;
	if ($side->{from} eq 'server')
	{
		$side->{connection}{backend} //= unpack 'N', $1 if $bytes =~ /K\0\0\0\x0c(.{4})/s;
	}
	return 0 unless ${ $self->{due} } > 0;
	my $point = $points[ int rand @points ];
	# Queries and answers alone: cutting a session before it has begun harms no client.
	return 0 if $point eq 'answer' ? $side->{from} ne 'server' : $side->{from} ne 'client';
	return 0 unless $side->{connection}{backend};
	${ $self->{due} }--;
	PostgreSQL::Test::Utils::append_to_file($self->{log}, '.');
	return 1 unless $point eq 'terminated';
	$side->{deaf} = 1;
	kill 'TERM', $side->{connection}{backend};
	return 0;
}

1;
