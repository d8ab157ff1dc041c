# Runs the demo's clients (demo/storm.cpp) for the TAP tests: built once, started in the background, so
# that the test can break something meanwhile.
package Storm;

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $binary;

sub build
{
	chomp(my ($include, $lib) = (`pg_config --includedir`, `pg_config --libdir`));
	my $path = PostgreSQL::Test::Utils::tempdir() . '/storm';
	command_ok([ qw(g++ -std=c++20 -O2 -pthread), '-I', $include, 'demo/storm.cpp', '-L', $lib, '-lpq', '-o', $path ],
		'the storm compiles');
	return $path;
}

# Arguments: [procedure, clients, operations, sends, kills per second], and the nodes from which the
# clients choose the writable one. Options: database, session (settings for PGOPTIONS), name (of a storm
# beside others), retries (more classes of SQLSTATEs after which the clients retry).
sub new
{
	my ($class, $plan, $nodes, %options) = @_;
	$binary //= build();
	local $ENV{PGHOST} = join ',', map { $_->host } @$nodes;
	local $ENV{PGPORT} = join ',', map { $_->port } @$nodes;
	local $ENV{PGDATABASE} = $options{database} // 'postgres';
	local $ENV{PGOPTIONS} = $options{session} // '';
	local $ENV{PGTARGETSESSIONATTRS} = 'read-write';
	local $ENV{STORM_RETRIES} = $options{retries} // '';
	my $self = bless { plan => "@$plan", answers => "$binary." . ($options{name} // 'answers'), stdout => '',
		stderr => '' }, $class;
	$self->{run} = IPC::Run::start([ $binary, @$plan, $self->{answers} ], '>', \$self->{stdout}, '2>',
		\$self->{stderr});
	return $self;
}

# Waits for its end. Returns what it counted, by name. libpq prints what a server says as it is killed.
sub counts
{
	my ($self) = @_;
	$self->{run}->finish;
	is($self->{stderr} =~ s/^FATAL: .*\n//mgr, '', "storm $self->{plan} runs through");
	return map { split ' ' } split /\n/, $self->{stdout};
}

# Whether it still runs. IPC::Run dies when it pumps a command that has ended.
sub runs
{
	my ($self) = @_;
	return eval { $self->{run}->pump_nb; 1 };
}

# Loads the answers that the clients got into a new table "answer" (key, answer).
sub load_answers
{
	my ($self, $node, $database) = @_;
	$node->safe_psql($database // 'postgres', <<"SQL");
DROP TABLE IF EXISTS answer;
CREATE TABLE answer (key text, answer jsonb);
COPY answer FROM '$self->{answers}';
SQL
	return;
}

1;
