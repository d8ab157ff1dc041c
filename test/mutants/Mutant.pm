# A mutant: a small fault, kept as a patch NAME.patch. Before its diff stand one sentence, which says
# what a user would suffer, and the lines "Caught-by: KIND NAME", one for each test that must fail.
#
# A patch is applied by its lines, not by its line numbers: what it removes must be in the file
# exactly once, with the line of context around it, or else without. So a patch survives edits of
# other lines, and never changes another place than the one that is meant.
package Mutant;

use strict;
use warnings;

use File::Basename;

# Where the test of each kind is.
my %path_of = (
	regress => 'test/sql/%s.sql',
	isolation => 'test/specs/%s.spec',
	pgtap => 'test/pgtap/%s.sql',
	tap => 'test/t/%s.pl',
	unit => 'test/unit/%s_test.cpp',
);

sub slurp
{
	my ($file) = @_;
	open my $in, '<:raw', $file or die "$file: $!\n";
	local $/;
	return <$in>;
}

# All mutants of the directory, by name.
sub all
{
	my ($directory) = @_;
	return map { parse($_) } sort glob "$directory/*.patch";
}

# A hunk is [FILE, what was there, what is there, the same two without context].
sub parse
{
	my ($file) = @_;
	my ($name) = $file =~ m{([^/]+)\.patch$} or die "$file: not a patch\n";
	my ($head, $diff) = slurp($file) =~ /\A(.*?)^(--- .*)/ms;
	my $self = bless { name => $name, sentence => '', tests => [], hunks => [] };
	return $self unless defined $diff;
	push @{ $self->{tests} }, { kind => $1, name => $2 } while $head =~ /^Caught-by: (\w+) (\S+)$/mg;
	($self->{sentence}) = $head =~ /\A(.*?)(?:\n\n|\z)/s;
	$self->{sentence} =~ s/\s+/ /g;
	for my $of_file (split /^(?=--- )/m, $diff)
	{
		my ($path, $hunks) = $of_file =~ /\A--- \S+\n\+\+\+ b\/(\S+)\n(.*)/s or die "$file: not a unified diff\n";
		(undef, my @hunks) = split /^@@.*\n/m, $hunks;
		for my $hunk (@hunks)
		{
			push @{ $self->{hunks} }, [ $path,
				map { my $signs = $_; join '', map { substr $_, 1 } grep { /^[$signs]/ } $hunk =~ /^(.*\n)/mg } ' -',
				' +', '-', '+' ];
		}
	}
	return $self;
}

# Returns the changed files, as path => content. Dies unless each hunk has one place in the tree.
sub changed_files
{
	my ($self, $tree) = @_;
	my %changed;
	for my $hunk (@{ $self->{hunks} })
	{
		my ($path, @lines) = @$hunk;
		my $content = $changed{$path} //= slurp("$tree/$path");
		my ($old, $new) = times_in($content, $lines[0]) == 1 ? @lines[ 0, 1 ] : @lines[ 2, 3 ];
		my $times = times_in($content, $old);
		die "what it changes is in $path $times times\n" unless $times == 1;
		my $at = index "\n$content", "\n$old";
		substr($changed{$path}, $at, length $old) = $new;
	}
	return \%changed;
}

# How many times the lines are in the file. No lines are nowhere.
sub times_in
{
	my ($content, $lines) = @_;
	return 0 if $lines eq '';
	return scalar(() = "\n$content" =~ /\n(?=\Q$lines\E)/g);
}

# What is wrong with the mutant, or ''.
sub fault
{
	my ($self, $tree) = @_;
	return 'no sentence before the diff' unless $self->{sentence} =~ /^[A-Za-z].*\.$/;
	return 'no line "Caught-by: KIND NAME"' unless @{ $self->{tests} };
	for my $test (@{ $self->{tests} })
	{
		my $path = $path_of{ $test->{kind} } or return "unknown kind of test: $test->{kind}";
		return sprintf "no test $path", $test->{name} unless -f sprintf "$tree/$path", $test->{name};
	}
	return 'no diff' unless @{ $self->{hunks} };
	return eval { changed_files($self, $tree); '' } // $@ =~ s/\n\z//r;
}

# As an item of the list that run --list prints.
sub line
{
	my ($self) = @_;
	return sprintf '**%s** (%s): %s', $self->{name}, $self->tests_of, $self->{sentence};
}

sub tests_of
{
	my ($self) = @_;
	return join ', ', map { "$_->{kind} $_->{name}" } @{ $self->{tests} };
}

# The directory of what it changes, such as src/core.
sub layer
{
	my ($self) = @_;
	return @{ $self->{hunks} } ? dirname($self->{hunks}[0][0]) : '';
}

sub test_path
{
	my ($test) = @_;
	return sprintf $path_of{ $test->{kind} }, $test->{name};
}

1;
