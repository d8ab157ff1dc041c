# The page through which faults.c learns what to break in one server.
package Shim;

use strict;
use warnings;

my %field = (clock => 0, disk => 1, memory => 2, one_in => 3, failed_write => 4, failed_alloc => 5);

# Compiles the library. Returns its path, or nothing on a machine without a C compiler.
sub build
{
	my ($source, $directory) = @_;
	my $library = "$directory/faults.so";
	return system('cc', '-O2', '-shared', '-fPIC', '-o', $library, $source, '-ldl') == 0 ? $library : undef;
}

sub new
{
	my ($class, $library, $file) = @_;
	open my $page, '+>', $file or die "$file: $!";
	syswrite $page, "\0" x 4096;
	return bless { library => $library, file => $file, page => $page }, $class;
}

# What a server must have in its environment.
sub environment { my ($self) = @_; return (LD_PRELOAD => $self->{library}, IDEM_TEST_FAULTS => $self->{file}); }

sub set
{
	my ($self, $name, $value) = @_;
	sysseek $self->{page}, 8 * $field{$name}, 0;
	syswrite $self->{page}, pack 'q', $value;
	return;
}

sub get
{
	my ($self, $name) = @_;
	sysseek $self->{page}, 8 * $field{$name}, 0;
	sysread $self->{page}, my $bytes, 8;
	return unpack 'q', $bytes;
}

1;
