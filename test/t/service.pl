# The HTTP service of the examples, over HTTP: the requirements of the Idempotency-Key draft, many
# concurrent clients, and a database, connection or service that dies in the middle.
use strict;
use warnings;

use CutProxy;
use IdemTest;
use HTTP::Tiny;
use IO::Socket::INET;
use IPC::Run;
use JSON::PP;
use List::Util qw(shuffle uniq);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($python) = grep { system("$_ -c 'import psycopg' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);
plan skip_all => 'no Python with psycopg here; tools/setup examples installs them' unless $python;

my $node = idem_node('service', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
max_connections = 100
listen_addresses = '127.0.0.1'
CONF
$node->safe_psql('postgres', slurp_file('examples/setup.sql'));
my $user = $node->safe_psql('postgres', 'SELECT current_user');

# A running service, in front of the server or of a proxy. It is stopped whatever happens to the
# test.
my ($test, @services) = ($$);
END { my $status = $?; if ($$ == ($test // 0)) { $_->kill_kill for @services; } $? = $status; }
sub service
{
	my ($database_port) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $log = PostgreSQL::Test::Utils::tempdir . '/service.log';
	local %ENV = (%ENV, PGHOST => '127.0.0.1', PGPORT => $database_port, PGUSER => $user, PGDATABASE => 'postgres');
	my $run = IPC::Run::start([ $python, 'examples/service.py', $port ], '>', $log, '2>&1');
	until (IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port))
	{
		die "no service:\n" . slurp_file($log) unless $run->pumpable;
		usleep(50_000);
	}
	push @services, $run;
	return { run => $run, port => $port };
}

sub request
{
	my ($service, $key, $content, $path) = @_;
	my %headers = defined $key ? ('Idempotency-Key' => $key) : ();
	return HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default)->post(
		"http://127.0.0.1:$service->{port}" . ($path // '/payments'),
		{ headers => \%headers, content => $content });
}

# What a client does: sends the same key until it has an answer, as late as Retry-After says.
sub request_until_answered
{
	my ($service, $key, $content) = @_;
	while (1)
	{
		my $response = request($service, $key, $content);
		return $response unless $response->{status} =~ /^(409|429|503|599)$/;
		usleep(1_000_000 * ($response->{headers}{'retry-after'} // 0.2));
	}
}

sub is_created
{
	my ($response, $replayed, $name) = @_;
	is($response->{status}, 201, "$name: 201") or diag $response->{content};
	is($response->{headers}{'content-type'}, 'application/json', "$name: JSON");
	is($response->{headers}{'idempotent-replayed'}, $replayed ? 'true' : undef,
		"$name: " . ($replayed ? 'replayed' : 'first'));
	return;
}

sub is_problem
{
	my ($response, $status, $type, $name) = @_;
	is($response->{status}, $status, "$name: $status") or diag $response->{content};
	is($response->{headers}{'content-type'}, 'application/problem+json', "$name: a problem document");
	my $problem = eval { decode_json($response->{content}) } // {};
	is_deeply([ @$problem{qw(status type)} ], [ $status, $type ], "$name: that says so");
	return $problem;
}

sub effects_of
{
	my ($amount) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM payment WHERE amount = $amount");
}

my $service = service($node->port);

# One client --------------------------------------------------------------------------------------

my $request = '{"amount": 1}';
is_problem(request($service, undef, $request), 400, 'urn:idem:problem:invalid_key', 'no key');
is_problem(request($service, '""', $request), 400, 'urn:idem:problem:invalid_key', 'an empty key');
is_problem(request($service, 'k' x 256, $request), 400, 'urn:idem:problem:invalid_key', 'a key of 256 bytes');
is_problem(request($service, [ 'one', 'two' ], $request), 400, 'urn:idem:problem:invalid_key', 'two keys');
sub answer_to
{
	my ($text) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $service->{port}) or die "connect: $!";
	print $socket $text;
	local $/ = undef;
	return scalar <$socket>;
}
like(answer_to("POST /payments HTTP/1.1\r\nConnection: close\r\nIdempotency-Key: $_\r\n"
			. "Content-Length: @{[ length $request ]}\r\n\r\n$request"),
	qr{^HTTP/1.1 400 .*urn:idem:problem:invalid_key}s, 'a key with a control character')
  for "a\0b", "\"a\001b\"", "a\tb";
unlike(answer_to("POST /payments HTTP/1.1\r\nIdempotency-Key: chunks\r\nTransfer-Encoding: chunked\r\n\r\n"
			. "POST /payments HTTP/1.1\r\nConnection: close\r\nIdempotency-Key: smuggled\r\n"
			. "Content-Length: @{[ length $request ]}\r\n\r\n$request"),
	qr{HTTP/1.1 201}, 'a body that is not read is no request');
is_problem(request($service, 'bad request', '[' x 100_000), 400, 'about:blank', 'a request of 100,000 levels');
is_problem(request($service, 'bad request', $_), 400, 'about:blank', "request '$_'")
  for '', 'amount=1', '[]', '{}', '{"amount": "1"}', '{"amount": -1}', '{"amount": NaN}', '{"amount": true}',
	"{\"amount\": 1, \"\xff\": 1}", '{"amount": 1, "note": "\u0000"}';
is_problem(request($service, 'no such path', $request, '/refunds'), 404, 'about:blank', 'another path');
is($node->safe_psql('postgres', 'SELECT count(*) FROM payment'), 0, 'refused requests have no effect');
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem.record'), 0, 'refused requests leave no record');

my $first = request($service, '"order-1"', $request);
is_created($first, 0, 'first try');
my $retry = request($service, '"order-1"', '{ "amount":1.0 }');
is_created($retry, 1, 'retry');
is($retry->{content}, $first->{content}, 'retry: the first answer, byte for byte');
is_created(request($service, 'order-1', $request), 1, 'the key without quotes');
is(effects_of(1), 1, 'one effect');
my $conflict = is_problem(request($service, '"order-1"', '{"amount": 1.5}'), 422, 'urn:idem:problem:key_conflict',
	'another request');
like($conflict->{detail}, qr/different request/, 'another request: the detail says why');
is_created(request($service, 'exact', '{"amount": 12345678901.123456789}'), 0, 'an amount beyond a double');
$node->safe_psql('postgres', q{SELECT idem.erase('payments', 'exact')});
is_created(request($service, 'exact', '{"amount": 12345678901.123456789}'), 1, 'an answer that was erased');
is(effects_of('12345678901.123456789'), 1, 'an amount beyond a double is paid to the last digit');

# In flight: another session holds the key.
my $holder = $node->background_psql('postgres');
$holder->query_safe(<<'SQL');
BEGIN;
SELECT token FROM idem.claim('payments', 'held', '{"amount": 2}') \gset
INSERT INTO payment (amount) VALUES (2) RETURNING to_jsonb(payment) AS answer \gset
SELECT idem.complete(:'token', :'answer', 201);
SQL
my $in_flight = request($service, 'held', '{"amount": 2}');
is_problem($in_flight, 409, 'urn:idem:problem:in_progress', 'in flight');
like($in_flight->{headers}{'retry-after'}, qr/^[1-9]\d*$/, 'in flight: Retry-After has whole seconds');
$holder->query_safe('COMMIT');
$holder->quit;
is_created(request($service, 'held', '{"amount": 2}'), 1, 'in flight, then completed by the other session');
is(effects_of(2), 1, 'one effect');

# Undecided: its only attempt has ended without an answer.
$node->safe_psql('postgres', q{SELECT idem.alter_scope('payments', max_attempts => 1)});
my $late = $node->safe_psql('postgres', q{SELECT token FROM idem.claim('payments', 'undecided', '{"amount": 10}',
	lease => '1 us')});
my $undecided = request($service, 'undecided', '{"amount": 10}');
is_problem($undecided, 409, 'urn:idem:problem:attempts_exhausted', 'undecided');
is($undecided->{headers}{'retry-after'}, 60, 'undecided: ask again after a minute');
is($undecided->{headers}{'idempotent-replayed'}, undef, 'undecided: not replayed');
is(effects_of(10), 0, 'undecided: no effect of the retry');
$node->safe_psql('postgres', qq(SELECT idem.complete('$late', '{"late": true}', 201)));
is_created(request($service, 'undecided', '{"amount": 10}'), 1, 'undecided, then completed by its last attempt');

# Many clients --------------------------------------------------------------------------------------

# Each of these processes sends every key once, in an order of its own. Their results, line by line:
# key, replayed or not, content.
sub crowd
{
	my ($clients, %requests) = @_;
	my @pids;
	my $folder = PostgreSQL::Test::Utils::tempdir;
	for my $client (1 .. $clients)
	{
		my $pid = fork // die "fork: $!";
		if ($pid) { push @pids, $pid; next; }
		srand $client;
		for my $key (shuffle sort keys %requests)
		{
			my $response = request_until_answered($service, $key, $requests{$key});
			append_to_file("$folder/$client", join("\t", $key, $response->{status},
				$response->{headers}{'idempotent-replayed'} // 'first', $response->{content}) . "\n");
		}
		POSIX::_exit(0);
	}
	waitpid $_, 0 for @pids;
	return map { split /\n/, slurp_file($_) } glob "$folder/*";
}

my @seen = crowd(24, 'one key' => '{"amount": 3}');
is(scalar @seen, 24, '24 clients with one key: all are answered');
is(scalar(grep { /\t201\tfirst\t/ } @seen), 1, '24 clients with one key: one of them is first');
is(scalar(uniq map { (split /\t/)[3] } @seen), 1, '24 clients with one key: all get the same answer');
is(effects_of(3), 1, '24 clients with one key: one effect');

@seen = crowd(8, map { ("key $_" => '{"amount": ' . (1000 + $_) . '}') } 1 .. 20);
is(scalar(grep { /\t201\t/ } @seen), 160, '8 clients with 20 keys: all are answered');
is(scalar(grep { /\tfirst\t/ } @seen), 20, '8 clients with 20 keys: one client is first for each key');
is(scalar(uniq map { join ':', (split /\t/)[ 0, 3 ] } @seen), 20,
	'8 clients with 20 keys: all get the same answer for each key');
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT amount) FROM payment WHERE amount > 1000
	AND amount < 2000'),
	'20|20', '8 clients with 20 keys: one effect for each key');

# Faults ------------------------------------------------------------------------------------------

# The answer to COMMIT is lost so often that the service gives up, and the client has to retry.
sub lose_answers
{
	my ($times, $key, $amount) = @_;
	my $proxy = CutProxy->new($node, at => 'answer', times => $times);
	my $behind = service($proxy->port);
	my $response = request($behind, $key, "{\"amount\": $amount}");
	is($proxy->cuts, $times, "the answer to COMMIT is lost: $times times");
	return ($response, sub { $behind->{run}->kill_kill; $proxy->stop; }, $behind);
}

my ($lost, $stop) = lose_answers(1, 'lost once', 4);
is_created($lost, 1, 'lost once: the service tries again');
is(effects_of(4), 1, 'lost once: one effect');
$stop->();

($lost, $stop, my $behind) = lose_answers(3, 'lost', 5);
is_problem($lost, 503, 'about:blank', 'lost for good');
is($lost->{headers}{'retry-after'}, 1, 'lost for good: retry after a second');
is_created(request($behind, 'lost', '{"amount": 5}'), 1, 'retry with the same key');
is(effects_of(5), 1, 'retry with the same key: one effect');
$stop->();

($lost, $stop, $behind) = lose_answers(3, 'lost again', 6);
is($lost->{status}, 503, 'lost again');
is_created(request($behind, 'another key', '{"amount": 6}'), 0, 'retry with a new key: paid again');
is(effects_of(6), 2, 'retry with a new key: two effects');
$stop->();

# The service dies between claim and effect.
my $barrier = $node->background_psql('postgres');
$barrier->query_safe('BEGIN; LOCK TABLE payment');
my $client = fork // die "fork: $!";
if (!$client) { request($service, 'dies', '{"amount": 7}'); POSIX::_exit(0); }
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'
	AND query LIKE 'INSERT%'")
  or die 'the service does not come to its INSERT';
$service->{run}->kill_kill;
waitpid $client, 0;
$barrier->query_safe('COMMIT');
$barrier->quit;
$service = service($node->port);
is(request_until_answered($service, 'dies', '{"amount": 7}')->{status}, 201, 'the service was killed: answered');
is(effects_of(7), 1, 'the service was killed: one effect');

# The database is down.
$node->stop;
is_problem(request($service, 'away', '{"amount": 8}'), 503, 'about:blank', 'no database');
$node->start;
is(request_until_answered($service, 'away', '{"amount": 8}')->{status}, 201, 'the database is back: answered');
is(effects_of(8), 1, 'the database is back: one effect');

# Too many requests at once.
SKIP:
{
	skip 'the SQL edition has no limits', 1 if managed_edition();
	$node->safe_psql('postgres', q{SELECT idem.alter_scope('payments', claims_per_minute => 1)});
	my @responses = map { request($service, "limited $_", '{"amount": 9}') } 1 .. 3;
	my ($limited) = grep { $_->{status} == 429 } @responses;
	is_problem($limited, 429, 'urn:idem:problem:limit_exceeded', 'limited');
	like($limited->{headers}{'retry-after'}, qr/^([1-9]|[1-5]\d|60)$/, 'limited: retry within a minute');
	is_created(request($service, '"order-1"', $request), 1, 'limited: a retry of a finished operation is answered');
}

is(locks($node), 0, 'no key lock is left');
log_is_clean($node);
$service->{run}->kill_kill;
$node->stop;
done_testing();
