# A proxy in front of a server that cuts connections at the worst moment, as a network does. It
# knows just enough of the protocol to find COMMIT on the way to the server, and the answer to it.
package CutProxy;

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use PostgreSQL::Test::Utils;

# The first `times` connections that reach the point `at` are cut there:
#   connecting    closed before the first byte is answered
#   effect        COMMIT never arrives
#   terminated    COMMIT never arrives, and the server ends the session as pg_terminate_backend does
#   answer        COMMIT was done, the answer to it never arrives
# `at` may be a list of points: so many connections are cut at each of them.
sub new
{
	my ($class, $node, %options) = @_;
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 128, Proto => 'tcp') or die "listen: $!";
	my $self = bless {
		%options,
		listener => $listener,
		socket   => $node->host . '/.s.PGSQL.' . $node->port,
		left     => { map { $_ => $options{times} // 1 } ref $options{at} ? @{ $options{at} } : $options{at} },
		log      => PostgreSQL::Test::Utils::tempdir . '/cuts',
		peer     => {},
		owner    => $$,
	}, $class;
	$self->{pid} = fork // die "fork: $!";
	$self->serve unless $self->{pid};
	return $self;
}

sub port { my ($self) = @_; return $self->{listener}->sockport; }

# The number of connections that were cut.
sub cuts
{
	my ($self) = @_;
	return -e $self->{log} ? -s $self->{log} : 0;
}

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

sub DESTROY { my ($self) = @_; local $?; $self->stop if $$ == $self->{owner}; return; }

# The child process ------------------------------------------------------------------------------

sub serve
{
	my ($self) = @_;
	$SIG{PIPE} = 'IGNORE';
	$self->{select} = IO::Select->new($self->{listener});
	while (1)
	{
		for my $ready ($self->{select}->can_read)
		{
			if ($ready == $self->{listener}) { $self->welcome; next; }
			my $side = $self->{peer}{$ready} or next;    # closed just now, with its peer
			my $read = sysread $ready, my $bytes, 65536;
			if (!$read || $self->is_cut($side, $bytes)) { $self->hang_up($side); }
			elsif (!$side->{deaf}) { syswrite $side->{to}, $bytes; }
		}
	}
	return;
}

sub welcome
{
	my ($self) = @_;
	my $client = $self->{listener}->accept or return;
	return if $self->reached('connecting');
	my $server = IO::Socket::UNIX->new(Peer => $self->{socket}) or return;
	my %connection = (client => $client, server => $server);
	$self->{peer}{$client} = { to => $server, from => 'client', connection => \%connection };
	$self->{peer}{$server} = { to => $client, from => 'server', connection => \%connection };
	$self->{select}->add($client, $server);
	return;
}

sub hang_up
{
	my ($self, $side) = @_;
	for my $socket (@{ $side->{connection} }{qw(client server)})
	{
		$self->{select}->remove($socket);
		delete $self->{peer}{$socket};
		close $socket;
	}
	return;
}

# Whether the connection is to be cut at these bytes.
sub is_cut
{
	my ($self, $side, $bytes) = @_;
	if ($side->{from} eq 'server')
	{
		my $seen = ($side->{tail} // '') . $bytes;
		$side->{tail} = substr $seen, -12;
		# BackendKeyData
		$side->{connection}{backend} //= unpack 'N', $1 if $seen =~ /K\0\0\0\x0c(.{4})/s;
		# CommandComplete
		return $seen =~ /C\0\0\0\x0bCOMMIT\0/ && $self->reached('answer');
	}
	return 0 unless $bytes =~ /\bCOMMIT\b/i;
	return 1 if $self->reached('effect');
	if ($self->reached('terminated'))
	{
		$side->{deaf} = 1;
		kill 'TERM', $side->{connection}{backend};
	}
	return 0;
}

sub reached
{
	my ($self, $point) = @_;
	return 0 unless $self->{left}{$point};
	$self->{left}{$point}--;
	append_to_file($self->{log}, '.');
	return 1;
}

1;
