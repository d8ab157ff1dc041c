# The example in each language, under network and server faults: one effect, one answer. Then the
# same example, changed to send a new key with each retry: two effects, which shows that the test
# can fail. Then the statements of test/drivers, with parameters as the driver sends them.
use strict;
use warnings;

use CutProxy;
use IdemTest;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# Name; file; a command that tells whether toolchain and driver are installed; how to build SOURCE
# into BUILT and run it; the change that makes a retry use a new key; the program of test/drivers,
# and the ways in which it can send parameters; how the driver writes a placeholder, if not as "?";
# whether it hides the fields of an error.
my @languages = (
	{
		name    => 'Python (psycopg)',
		file    => 'pay.py',
		probe   => 'PYTHON -c "import psycopg"',
		run     => 'PYTHON SOURCE',
		new_key => [
			'return pay_once(connection, key, amount)' => 'return pay_once(connection, f"{key} {attempt}", amount)' ],
		untyped     => [ 'untyped.py', qw(parameters prepared literals) ],
		placeholder => sub { '%s' },
	},
	{
		name    => 'Node (pg)',
		file    => 'pay.js',
		probe   => q(cd examples && node -e "require('pg')"),
		run     => 'node SOURCE',
		new_key => [ 'payOnce(client, key, amount))' => 'payOnce(client, key + attempt, amount))' ],
		untyped     => [ 'untyped.js', qw(parameters prepared) ],
		placeholder => sub { "\$$_[0]" },
	},
	{
		name    => 'Perl (DBD::Pg)',
		file    => 'pay.pl',
		probe   => 'perl -MDBD::Pg -e 1',
		run     => 'perl SOURCE',
		new_key => [ 'pay_once($dbh, $key, $amount)' => 'pay_once($dbh, "$key $attempt", $amount)' ],
		untyped => [ 'untyped.pl', qw(parameters prepared) ],
	},
	{
		name    => 'PHP (PDO)',
		file    => 'pay.php',
		probe   => q(php -r 'exit(extension_loaded("pdo_pgsql") ? 0 : 1);'),
		run     => 'php SOURCE',
		new_key => [ q|new PDO('pgsql:'), $key, $amount| => q|new PDO('pgsql:'), $key . $attempt, $amount| ],
		untyped      => [ 'untyped.php', qw(parameters prepared literals) ],
		hides_fields => 1,
	},
	{
		name    => 'Ruby (pg)',
		file    => 'pay.rb',
		probe   => 'ruby -rpg -e 1',
		run     => 'ruby SOURCE',
		new_key => [ '|connection| pay_once(connection, key, amount)' =>
			  '|connection| pay_once(connection, "#{key} #{attempt}", amount)' ],
		untyped     => [ 'untyped.rb', qw(parameters prepared) ],
		placeholder => sub { "\$$_[0]" },
	},
	{
		name    => 'C++ (libpqxx)',
		file    => 'pay.cpp',
		probe   => q(echo '#include <pqxx/pqxx>' | g++ -std=c++17 -fsyntax-only -x c++ -),
		build   => 'g++ -std=c++17 SOURCE -lpqxx -lpq -o BUILT',
		run     => 'BUILT',
		new_key => [ 'return pay_once(connection, key, amount)' =>
			  'return pay_once(connection, key + std::to_string(attempt), amount)' ],
		untyped      => [ 'untyped.cpp', qw(parameters prepared) ],
		placeholder  => sub { "\$$_[0]" },
		hides_fields => 1,
	},
	{
		name    => 'Java (JDBC)',
		file    => 'Pay.java',
		probe   => 'javac -version && test -f JDBC',
		build   => 'mkdir -p BUILT && javac -cp JDBC -d BUILT SOURCE',
		run     => 'java -cp BUILT:JDBC CLASS',
		new_key => [ 'return payOnce(connection, key, amount)' => 'return payOnce(connection, key + attempt, amount)' ],
		untyped => [ 'Untyped.java', qw(untyped varchar prepared literals) ],
	},
	{
		name    => 'Go (lib/pq)',
		file    => 'pay.go',
		probe   => 'go list github.com/lib/pq',
		build   => 'go build -o BUILT SOURCE',
		run     => 'BUILT',
		new_key => [ 'payOnce(db, key, amount)' => 'payOnce(db, key+strconv.Itoa(attempt), amount)' ],
		untyped     => [ 'untyped.go', qw(parameters described prepared) ],
		placeholder => sub { "\$$_[0]" },
	},
);

# Finds Debian's packages of Go modules, whatever the module of the current directory.
$ENV{GO111MODULE} = 'off';
$ENV{GOPATH}      = '/usr/share/gocode';
$ENV{GOCACHE}   //= PostgreSQL::Test::Utils::tempdir . '/gocache';
$ENV{PGSSLMODE}   = 'disable';
$ENV{LC_MESSAGES} = 'C';

# A python3 that has the driver: the first in the path may be another installation.
my ($python) = grep { system("$_ -c 'import psycopg' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);

sub command
{
	my ($template, %paths) = @_;
	my %words = (PYTHON => $python // 'python3', JDBC => '/usr/share/java/postgresql.jar', %paths);
	return $template =~ s/\b(PYTHON|JDBC|SOURCE|BUILT|CLASS)\b/$words{$1}/gr;
}

my $node = idem_node('examples', bare => 1, conf => <<"CONF");
max_connections = 40
listen_addresses = '127.0.0.1'
shared_preload_libraries = 'idem'
CONF
$node->safe_psql('postgres', slurp_file('examples/setup.sql'));
# A claim gives up soon, so that the client has something to retry. A trigger makes it lose races on
# demand.
$node->safe_psql('postgres', <<'SQL');
SELECT idem.alter_scope('payments', wait => '50 ms');
CREATE SEQUENCE tries;
CREATE FUNCTION lose_race() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  CASE nextval('tries')
    WHEN 1 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001';
    WHEN 2 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40P01';
    ELSE RETURN new;
  END CASE;
END $$;
CREATE TRIGGER race BEFORE INSERT ON payment FOR EACH ROW EXECUTE FUNCTION lose_race();
ALTER TABLE payment DISABLE TRIGGER race;
SQL

my $user = $node->safe_psql('postgres', 'SELECT current_user');

# Every operation has an amount of its own, so that effects can be counted whatever their keys.
my $operations = 0;
sub operation
{
	my $amount = ++$operations;
	return ("order-$amount", $amount);
}

sub effects_of
{
	my ($amount) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM payment WHERE amount = $amount");
}

# The address at which an example finds the server, or the proxy in front of it.
sub at_server
{
	my ($proxy) = @_;
	my $place = $proxy // $node;
	return (PGHOST => '127.0.0.1', PGPORT => $place->port, PGDATABASE => 'postgres', PGUSER => $user);
}

sub run_example
{
	my ($language, $proxy, $key, $amount) = @_;
	local %ENV = (%ENV, at_server($proxy));
	my ($stdout, $stderr) = ('', '');
	IPC::Run::run([ split(' ', $language->{command}), $key, $amount ], '>', \$stdout, '2>', \$stderr);
	return { status => $? >> 8, stdout => $stdout, stderr => $stderr };
}

# undef if it is not JSON.
sub decoded
{
	my ($json) = @_;
	my $value = eval { decode_json($json) };
	return $value;
}

sub is_answer
{
	my ($result, $key, $name) = @_;
	is($result->{status}, 0, "$name: answered") or diag $result->{stderr};
	my $stored = $node->safe_psql('postgres', "SELECT response FROM idem.lookup('payments', '$key')");
	is_deeply([ decoded($result->{stdout}) ], [ decoded($stored) ], "$name: with what is stored");
	return;
}

sub is_problem
{
	my ($result, $http_status, $sqlstate, $detail, $name) = @_;
	is($result->{status}, 1, "$name: refused");
	my $problem = decoded($result->{stderr}) // {};
	is_deeply([ @$problem{qw(status sqlstate detail)} ], [ $http_status, $sqlstate, $detail ],
		"$name: a problem document")
	  or diag $result->{stderr};
	return;
}

# What happens to a client ---------------------------------------------------------------------------

sub answers_and_replays
{
	my ($language) = @_;
	my ($key, $amount) = operation();
	my $first = run_example($language, undef, $key, $amount);
	is_answer($first, $key, 'first try');
	is(run_example($language, undef, $key, $amount)->{stdout}, $first->{stdout}, 'retry: the same, byte for byte');
	is(effects_of($amount), 1, 'retry: one effect');

	# More digits than a binary number has.
	my ($exact, $text) = ("$key exact", '12345678901234567.10');
	my @answers = map { run_example($language, undef, $exact, $text)->{stdout} } 1, 2;
	is($node->safe_psql('postgres', "SELECT response->>'amount' FROM idem.lookup('payments', '$exact')"), $text,
		'an amount is stored with all of its digits');
	is_deeply([ map { /"amount": ?([\d.]+)/ } @answers ], [ $text, $text ], 'and is returned with them');

	is_problem(run_example($language, undef, $key, $amount + 0.5), 422, 'ID002',
		"key \"$key\" was used for a different request", 'same key, another request');
	is(effects_of($amount + 0.5), 0, 'same key, another request: no effect');
	is_problem(run_example($language, undef, "$key is bad", 'ten'), 400, '22P02',
		'invalid input syntax for type numeric: "ten"', 'an amount that is not a number');
	return;
}

sub loses_connections
{
	my ($language) = @_;
	for my $at (qw(connecting effect terminated answer))
	{
		my ($key, $amount) = operation();
		my $proxy = CutProxy->new($node, at => $at, times => 2);
		my $result = run_example($language, $proxy, $key, $amount);
		is($proxy->cuts, 2, "cut at '$at': twice");
		$proxy->stop;
		is_answer($result, $key, "cut at '$at'");
		is(effects_of($amount), 1, "cut at '$at': one effect");
	}
	return;
}

sub loses_races
{
	my ($language) = @_;
	my ($key, $amount) = operation();
	$node->safe_psql('postgres', 'ALTER TABLE payment ENABLE TRIGGER race; ALTER SEQUENCE tries RESTART');
	my $result = run_example($language, undef, $key, $amount);
	is($node->safe_psql('postgres', 'SELECT last_value FROM tries'), 3, '40001, 40P01: two retries');
	$node->safe_psql('postgres', 'ALTER TABLE payment DISABLE TRIGGER race');
	is_answer($result, $key, '40001, 40P01');
	is(effects_of($amount), 1, '40001, 40P01: one effect');
	return;
}

# Another session holds the key for so long that the client should come back later, not sooner.
sub waits_its_turn
{
	my ($language) = @_;
	my ($key, $amount) = operation();
	my $holder = $node->background_psql('postgres');
	$holder->query_safe(<<"SQL");
BEGIN;
SELECT token FROM idem.claim('payments', '$key', '{"amount": $amount}') \\gset
INSERT INTO payment (amount) VALUES ($amount) RETURNING to_jsonb(payment) AS answer \\gset
SELECT pg_sleep(0.5);
SELECT idem.complete(:'token', :'answer');
SQL
	my %before = (%ENV);
	%ENV = (%ENV, at_server());
	my ($stdout, $stderr) = ('', '');
	my $logged = -s $node->logfile;
	my $client = IPC::Run::start([ split(' ', $language->{command}), $key, $amount ], '>', \$stdout, '2>', \$stderr);
	%ENV = %before;
	# when the client was refused, and for how long
	my $refusal = qr/^(\S+\ \S+)\ [^\n]* ERROR:\ \ operation\ "\Q$key\E" .*? HINT: .*? after\ ([\d.]+)\ seconds/msx;
	my @refusals;
	while (@refusals < 4 && $client->pumpable)    # twice refused, or it has given up
	{
		@refusals = slurp_file($node->logfile, $logged) =~ /$refusal/g;
		$client->pump_nb;
		usleep(100_000);
	}
	my ($first, $after, $second) = @refusals;
	cmp_ok(scalar @refusals, '>=', 4, 'in flight: the client came back');
	# The hint is rounded up to tenths of a second; the field that most clients read is not.
	is($node->safe_psql('postgres', "SELECT timestamp '$second' > timestamp '$first' + interval '$after s' - interval
		'0.1 s'"), 't',
		"in flight: not before the $after seconds that it was told") if @refusals >= 4;
	$holder->query_safe('COMMIT');
	$holder->quit;
	$client->finish;
	is_answer({ status => $? >> 8, stdout => $stdout, stderr => $stderr }, $key, 'in flight, then completed');
	is(effects_of($amount), 1, 'in flight, then completed: one effect');
	return;
}

# A schema in the place of idem's, which refuses the first call of a key, tells the client when to
# come back, and answers the second call with the time that has passed. A hint without the time shows
# that the client reads the field of the error.
$node->safe_psql('postgres', 'CREATE DATABASE told');
$node->safe_psql('told', <<'SQL');
CREATE SCHEMA idem;
CREATE SEQUENCE idem.calls;
CREATE SEQUENCE idem.refused;
CREATE FUNCTION idem.claim(scope text, key text, request jsonb, OUT claimed boolean, OUT token text, OUT response jsonb)
LANGUAGE plpgsql AS $$
DECLARE microseconds bigint := 1e6 * extract(epoch FROM clock_timestamp());
BEGIN
  IF nextval('idem.calls') % 2 = 0 THEN
    claimed := false;
    response := to_jsonb(microseconds - (SELECT last_value FROM idem.refused));
    RETURN;
  END IF;
  PERFORM setval('idem.refused', microseconds);
  IF key LIKE '%hint' THEN
    RAISE 'not now' USING ERRCODE = left(key, 5), HINT = 'Retry with the same key after 0.7 seconds.';
  ELSE
    RAISE 'not now' USING ERRCODE = left(key, 5), DATATYPE = '700', HINT = 'Retry later.';
  END IF;
END $$;
SQL

sub waits_as_told
{
	my ($language) = @_;
	my $where = $language->{hides_fields} ? 'hint' : 'field';
	for my $sqlstate (qw(ID001 ID009 ID014))
	{
		local %ENV = (%ENV, at_server(), PGDATABASE => 'told');
		my ($stdout, $stderr) = ('', '');
		IPC::Run::run([ split(' ', $language->{command}), "$sqlstate in the $where", 1 ], '>', \$stdout, '2>',
			\$stderr);
		cmp_ok($stdout || 0, '>=', 700_000, "$sqlstate: waits as long as the $where says") or diag $stderr;
	}
	return;
}

# The mistake that idempotency keys prevent.
sub pays_twice_with_new_keys
{
	my ($language) = @_;
	my ($key, $amount) = operation();
	my $proxy = CutProxy->new($node, at => 'answer');
	run_example($language, $proxy, $key, $amount);
	is($proxy->cuts, 1, 'a new key for the retry: the answer to COMMIT is lost');
	$proxy->stop;
	is(effects_of($amount), 2, 'a new key for the retry: two effects');
	return;
}

# What drivers send ------------------------------------------------------------------------------------

# A database for each run, so that each begins with the same keys. The transcript has functions and
# limits that the SQL edition lacks.
$node->safe_psql('postgres', 'CREATE DATABASE drivers');
$node->safe_psql('drivers', <<'SQL') unless managed_edition();
CREATE EXTENSION idem;
SELECT idem.create_scope('payments', store_request => 'unfinished');
SELECT idem.create_scope('limited', claims_per_minute => 1);
CREATE FUNCTION echo(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
SQL

# Name of the result, if it has one; statement; parameters.
my @statements = map { [ /^(?:(\w+)=)?(SELECT [^\t]*)\t(.*)$/ ] }
  grep { !/^(?:#|$)/ } split /\n/, slurp_file('test/drivers/statements.tsv');

my %called = map { map { $_ => 1 } $_->[1] =~ /idem\.(\w+)\(\?/g } @statements;
is($node->safe_psql('drivers', <<'SQL'), join("\n", sort keys %called),
SELECT DISTINCT proname FROM pg_proc JOIN pg_depend ON objid = pg_proc.oid AND classid = 'pg_proc'::regclass
  AND deptype = 'e'
 WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem') AND pronamespace = 'idem'::regnamespace
   AND (proargnames[1:pronargs] && '{key,keys,token,source}' OR proname IN ('take', 'derive_key'))
   AND proname <> 'reset_stream' ORDER BY 1
SQL
	'test/drivers calls every function that takes a key or a token') unless managed_edition();

# As the driver wants the placeholders. Each statement has one result, and that is a text.
sub input_of
{
	my ($language) = @_;
	my $input = '';
	for my $statement (@statements)
	{
		my ($name, $sql, $parameters) = @$statement;
		my $n = 0;
		my $placeholder = $language->{placeholder} // sub { '?' };
		$sql =~ s/\?/$placeholder->(++$n)/ge;
		$sql = "SELECT r::text FROM ($sql) AS r" unless defined $name;
		$input .= join("\t", $name // '', $sql, $parameters) . "\n";
	}
	return $input;
}

# Each statement with its result, without what differs from run to run.
sub transcript
{
	my (@results) = @_;
	my $transcript = '';
	for my $statement (@statements)
	{
		my ($name, $sql) = @$statement;
		my $result = shift @results // 'nothing';
		$result =~ s/^[\w-]{30,}$/a token/ if defined $name;
		$result =~ s/^(ERROR \w+ \S+ \S+) 0*[1-9]\d* /$1 MILLISECONDS /;
		$result =~ s/ \d{4}-\d\d-\d\dT[\d:.]+\+00:00$/ SINCE/;
		$transcript .= "$sql\n--> $result\n";
	}
	return $transcript;
}

sub sends_untyped_parameters
{
	my ($language) = @_;
	return if managed_edition();
	my ($file, @modes) = @{ $language->{untyped} };
	my $program = prepared($language, "test/drivers/$file");
	my $expected = slurp_file('test/drivers/expected.out');
	$expected =~ s/^(--> ERROR \w{5}) .*/$1/mg if $language->{hides_fields};
	for my $mode (@modes)
	{
		my $database = "drivers_${mode}_$file";
		$node->safe_psql('postgres', qq(CREATE DATABASE "$database" TEMPLATE drivers));
		local %ENV = (%ENV, at_server(), PGDATABASE => $database);
		my $input = input_of($language);
		my ($stdout, $stderr) = ('', '');
		IPC::Run::run([ split(' ', $program->{command}), $mode ], '<', \$input, '>', \$stdout, '2>', \$stderr);
		is($stderr, '', "$file, $mode: runs");
		is(transcript(split /\n/, $stdout), $expected, "$file, $mode: every statement has its result");
	}
	return;
}

# Running them -----------------------------------------------------------------------------------------

# Builds the example, or a changed one, and returns the command that runs it.
sub prepared
{
	my ($language, $source) = @_;
	my ($class) = $source =~ m{(\w+)\.\w+$};
	my %paths = (SOURCE => $source, BUILT => PostgreSQL::Test::Utils::tempdir . '/built', CLASS => $class);
	if ($language->{build})
	{
		my $build = command($language->{build}, %paths);
		is(system($build), 0, $build);
	}
	return { %$language, command => command($language->{run}, %paths) };
}

sub with_new_keys
{
	my ($language) = @_;
	my ($same, $new) = @{ $language->{new_key} };
	my $source = slurp_file("examples/$language->{file}");
	is(scalar(() = $source =~ /\Q$same\E/g), 1, 'the retry takes its key from one place in the source');
	$source =~ s/\Q$same\E/$new/;
	# Beside the example, so that it finds the same libraries; Java requires the same name.
	my $folder = 'examples/new_key';
	mkdir $folder;
	append_to_file("$folder/$language->{file}", $source);
	return "$folder/$language->{file}";
}

# IDEM_EXAMPLES: the files to test; all if it is not set.
my %wanted = map { $_ => 1 } split ' ', $ENV{IDEM_EXAMPLES} // join ' ', map { $_->{file} } @languages;
for my $language (@languages)
{
  SKIP:
	{
		skip "$language->{name}: not asked for", 1 unless $wanted{ $language->{file} };
		my $probe = command($language->{probe});
		skip "$language->{name}: no toolchain or driver here; tools/setup examples installs them", 1
		  if system("($probe) >/dev/null 2>&1");
		subtest $language->{name} => sub {
			my $example = prepared($language, "examples/$language->{file}");
			answers_and_replays($example);
			loses_connections($example);
			loses_races($example);
			waits_its_turn($example);
			waits_as_told($example);
			pays_twice_with_new_keys(prepared($language, with_new_keys($language)));
			sends_untyped_parameters($language);
		};
	}
}

is(locks($node), 0, 'no key lock is left');
log_is_clean($node);
$node->stop;
done_testing();
