# The recipes of docs/recipes.md, as a reader would paste them: each is retried, crashed or raced,
# and has one effect and one answer. Then again without idem's call, to show that the call made the
# difference. Recipes of several steps are killed at every step.
#
# IDEM_RECIPES: a pattern of the names of recipes to test; all if it is not set.
use strict;
use warnings;

use HTTP::Tiny;
use IdemTest;
use IO::Socket::INET;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes qw(usleep);

my $node = idem_node('recipes', bare => 1, conf => "fsync = off\n");
$node->safe_psql('postgres', 'CREATE DATABASE kitchen');
$node->safe_psql('kitchen', 'CREATE EXTENSION idem');
install_lapse($node, 'kitchen');
# The roles that PostgREST connects as and switches to.
$node->safe_psql('postgres', 'CREATE ROLE authenticator LOGIN NOINHERIT; CREATE ROLE web_user;
	GRANT web_user TO authenticator');

# The SQL under each heading, in order, and its Python, of which a part is a file of examples/.
my @titles;
my (%recipe, %python);
for my $section (split /^## /m, slurp_file('docs/recipes.md'))
{
	my ($title, $text) = split /\n/, $section, 2;
	my $sql = join "\n", $text =~ /^```sql\n(.*?)^```$/msg;
	next if $sql eq '';
	push @titles, $title;
	$recipe{$title} = $sql;
	$python{$title} = [ $text =~ /^```python\n(.*?)^```$/msg ];
}
unshift @{ $python{'Finishing abandoned operations'} }, slurp_file('examples/payments.py');

# The result of a statement, or the SQLSTATE that it fails with.
my $database;
sub ask
{
	my ($sql) = @_;
	my ($status, $stdout, $stderr) = $node->psql($database, "\\set VERBOSITY sqlstate\n$sql", on_error_stop => 1);
	return $1 if $stderr =~ /ERROR:\s+(\w{5})/;
	die "$sql: $stderr" if $status;
	return $stdout;
}
sub facts { return join ', ', @_; }

# ---------------------------------------------------------------------------------------------
# Death at every step
# ---------------------------------------------------------------------------------------------

# The procedures of a recipe, which may die after each of their statements.
sub mortal
{
	my ($sql) = @_;
	my $mortal = '';
	for my $procedure ($sql =~ /^(CREATE PROCEDURE .*?^END \$\$;\n)/msg)
	{
		my ($head, $body) = $procedure =~ /^(.*?^BEGIN\n)(.*)/ms;
		$body =~ s/;(\s*(?:--.*)?\n)(?!\z)/; PERFORM may_die();$1/g;
		$mortal .= ($head =~ s/^CREATE/CREATE OR REPLACE/r) . ($body =~ s/^END; PERFORM may_die\(\);$/END;/mr);
	}
	return <<"SQL";
CREATE SEQUENCE step;
CREATE FUNCTION may_die() RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
  IF nextval('step') = current_setting('test.dies_at', true)::bigint THEN
    PERFORM pg_terminate_backend(pg_backend_pid());
  END IF;
END \$\$;
$mortal
SQL
}

# Runs a statement that dies after its nth step. Returns false if it ran to its end.
sub dies_at
{
	my ($n, $sql) = @_;
	my ($status, undef, $stderr) =
	  $node->psql($database, "ALTER SEQUENCE step RESTART; SET test.dies_at = $n;\n$sql", on_error_stop => 1);
	return 1 if $stderr =~ /terminating connection/;
	die "$sql: $stderr" if $status;
	return 0;
}

# SQL that ends all leases a second ago, or in an hour.
sub end_leases
{
	my ($when) = @_;
	return "UPDATE idem.record SET lease_end = clock_timestamp() + interval '$when' WHERE state = 'p';\n";
}

# Three days without workers, of which only the purge takes no notice. How much it has deleted.
sub outage
{
	my $past = join ', ', map { "$_ = $_ - interval '3 days'" } qw(created expires lease_end);
	return ask("UPDATE idem.record SET $past; SELECT idem.purge()");
}

# A file to which a service outside of the database writes what it does, of this database's recipe.
my $folder = PostgreSQL::Test::Utils::tempdir;
sub service_log { return "$folder/" . ($database =~ s/\W/_/gr) . '.log'; }
sub logged { return -e service_log() ? split /\n/, slurp_file(service_log()) : (); }

# ---------------------------------------------------------------------------------------------
# An external call
# ---------------------------------------------------------------------------------------------

# The processor charges once per key, and is not part of the transaction.
sub external_call
{
	my $begin = q{SELECT * FROM payment_begin('key', '{"amount": 10}')};
	my (%charges, $charge);
	my $call = sub { return $charges{ $_[0] } //= 'ch_' . (1 + keys %charges); };

	my ($token1, $key1, $maybe1) = split /\|/, ask($begin);
	$call->($key1);
	ask("CALL lapse('key')");    # the worker is dead
	my ($token2, $key2, $maybe2) = split /\|/, ask($begin);
	$charge = $call->($key2);
	my $answer = ask("SELECT payment_end('$token2', 10, '$charge')");
	my $zombie = ask("SELECT payment_end('$token1', 10, '$charge')");
	my ($token3, $key3, $maybe3, $charge3, $replay) = split /\|/, ask($begin);
	if ($token3 =~ /^ID/) { $replay = $token3; }
	elsif ($token3)
	{
		$charge = $call->($key3);
		$replay = ask("SELECT payment_end('$token3', 10, '$charge')");
	}
	return facts("maybe $maybe1 $maybe2", "zombie $zombie", 'replay ' . ($replay eq $answer ? 'same' : 'other'),
		'charges ' . keys(%charges), 'payments ' . ask('SELECT count(*) FROM payment'));
}

# ---------------------------------------------------------------------------------------------
# Finishing abandoned operations
# ---------------------------------------------------------------------------------------------

# Each client begins a payment and dies. A worker takes it and dies at its nth step, which differs for
# each payment. Then a healthy worker comes, and then the clients' late retries. The processor's log
# has a line per call: the key and the amount, which identifies the operation. The processor is called
# again after each death between the call and the commit of the checkpoint.
sub abandoned
{
	my ($doomed, $healthy) = @_;
	my $last = 0;
	my $state = 'absent';
	ask(q{SELECT idem.alter_scope('payments', lease => '1 hour')});
	while ($state ne 'completed' && $last < 100)
	{
		$last++;
		ask(end_leases('1 hour') . qq{SELECT payment_begin('key $last', '{"amount": $last}'); CALL lapse('key $last')});
		last unless $doomed->($last);
		$state = ask("SELECT state FROM idem.lookup('payments', 'key $last')");
	}
	ask(q{SELECT payment_begin('the processor is down', '{"amount": 0.5}'); } . end_leases('-1 s'));
	my $lost = outage();
	my $stopped = $healthy->();
	my $down = ask(q{SELECT last_error->>'message' FROM idem.in_flight WHERE key = 'the processor is down'});
	my $unfinished = ask(q{SELECT count(*) FROM idem.in_flight WHERE key LIKE 'key %'});
	my ($charged_again, $called_again) = (0, 0);
	for my $n (1 .. $last)
	{
		my @calls = grep { / $n$/ } logged();
		my %keys = map { $_ => 1 } @calls;
		$charged_again += keys(%keys) - 1 if @calls;
		$called_again += @calls - 1 if @calls;
	}
	my $answered = ask(<<"SQL");
SELECT count(DISTINCT p.id) FROM generate_series(1, $last) n,
  payment_begin('key ' || n, jsonb_build_object('amount', n)) b
  JOIN payment p ON b.response = jsonb_build_object('payment', p.id, 'charge', p.charge) WHERE p.amount = n
SQL
	note "deaths at $last steps";
	return facts("unfinished $unfinished", "charged again $charged_again", "called again $called_again",
		'paid again ' . (ask('SELECT count(*) FROM payment') - $last), 'unanswered ' . ($last - $answered),
		"down: $down", "stopped $stopped", "lost $lost");
}

# The recipe's procedure. The processor is a program that the server calls, so that no rollback undoes
# a charge.
sub abandoned_sql
{
	my ($recipe) = @_;
	my $log = service_log();
	ask(<<"SQL");
CREATE FUNCTION charge(charge_key text, amount numeric) RETURNS text LANGUAGE plpgsql AS \$\$
BEGIN
  IF amount = 0.5 THEN
    RAISE EXCEPTION 'processor is down';
  END IF;
  EXECUTE format('COPY (SELECT %L) TO PROGRAM %L', charge_key || ' ' || amount, 'cat >> $log');
  RETURN 'ch_' || charge_key;
END \$\$;
SQL
	ask(mortal($recipe->{sql}));
	return abandoned(sub { dies_at($_[0], 'CALL finish_payments()') }, sub {
		ask('CALL finish_payments()');
		return 'at its end';
	});
}

# Programs in the background, which are stopped whatever happens to the test.
my ($test_process, @programs) = $$;
END { my $status = $?; if ($$ == ($test_process // 0)) { $_->kill_kill for @programs; } $? = $status; }

my ($python) = grep { system("$_ -c 'import psycopg' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);

sub program
{
	my ($output, @command) = @_;
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => $database,
		PROCESSOR => $ENV{PROCESSOR});
	my $run = IPC::Run::start([ $python, @command ], '<', \undef, '>', $output, '2>&1');
	push @programs, $run;
	return $run;
}

sub wait_until
{
	my ($what, $condition) = @_;
	for (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if $condition->();
		usleep(50_000);
	}
	die "timed out: $what";
}

# A payment processor over HTTP: charges once per key, and refuses another request with the same key.
# It does not answer a call for 77.5 before it is told to.
sub start_processor
{
	my $file = "$folder/processor.py";
	unlink $file;
	append_to_file($file, <<'PYTHON');
import http.server, json, os, sys, time

requests = {}

class Processor(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        key = self.headers["Idempotency-Key"]
        request = self.rfile.read(int(self.headers["Content-Length"]))
        if requests.setdefault(key, request) != request:
            return self.send_error(422)
        amount = float(json.loads(request)["amount"])
        if amount == 0.5:
            return self.send_error(500)
        with open(sys.argv[1], "a") as log:
            log.write(f"{key} {amount:g}\n")
        while amount == 77.5 and not os.path.exists(sys.argv[1] + ".go"):
            time.sleep(0.05)
        answer = json.dumps({"id": "ch_" + key}).encode()
        self.send_response(201)
        self.send_header("Content-Length", len(answer))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Processor)
print(server.server_port, flush=True)
server.serve_forever()
PYTHON
	my $port = '';
	my $run = program(\$port, $file, service_log());
	wait_until('the processor starts', sub { $run->pump_nb; return $port =~ /\n/; });
	$ENV{PROCESSOR} = "http://127.0.0.1:" . ($port + 0);
	return $run;
}

# The recipe's program. Killed at its nth step, it dies before the nth line that its functions execute.
sub abandoned_python
{
	my ($recipe) = @_;
	my $folder = service_log() =~ s/log$/d/r;
	mkdir $folder;
	append_to_file("$folder/payments.py", $recipe->{python}[0]);
	append_to_file("$folder/killed.py", <<'PYTHON');
import os, signal, sys

steps, worker = int(sys.argv[1]), sys.argv[2]

def at_line(frame, event, _):
    global steps
    if event == "line":
        steps -= 1
        if steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return at_line

sys.settrace(lambda frame, *_: at_line if frame.f_code.co_filename == worker
             and frame.f_code.co_name != "<module>" else None)
exec(compile(open(worker).read(), worker, "exec"), {"__name__": "__main__"})
PYTHON
	my $processor = start_processor();
	my $worker = "$folder/payments.py";
	my $start = sub { my ($output) = @_; my $run = program($output, $worker); return $run; };
	my $stop = sub {
		my ($run) = @_;
		$run->signal('TERM');
		$run->finish;
		return $?;
	};
	my $result = abandoned(
		sub {
			my $output;
			my $run = program(\$output, "$folder/killed.py", $_[0], $worker);
			$run->finish;
			die "killed by no signal: $output" unless $? == 9;
			return 1;
		},
		sub {
			my $output = '';
			my $run = $start->(\$output);
			wait_until('the worker finishes', sub {
					$run->pump_nb;
					return ask(q{SELECT count(*) FILTER (WHERE key LIKE 'key %') = 0 AND count(last_error) = 1
						FROM idem.in_flight}) eq 't'; });
			return $stop->($run) . $output;
		});

	$result =~ s/called again \d+, //;    # depends on the version of Python

	# The service charges the card, is killed before it knows, and a worker finishes.
	return $result unless $recipe->{intact};
	my $service = slurp_file('examples/service.py');
	my $replaced = $service =~ s/^def pay_once.*?(?=^def )/$recipe->{python}[1]\n\n/ms;
	ok($replaced, 'service.py has the function that the recipe replaces');
	append_to_file("$folder/service.py", $service);
	my ($port, $output) = (PostgreSQL::Test::Cluster::get_free_port(), '');
	my $serve = sub {
		my $run = program(\$output, "$folder/service.py", $port);
		wait_until('the service starts', sub { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) });
		return $run;
	};
	my $post = sub {
		my ($key, $amount) = @_;
		return HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default)->post(
			"http://127.0.0.1:$port/payments",
			{ headers => { 'Idempotency-Key' => "\"$key\"" }, content => "{\"amount\": $amount}" });
	};
	my $run = $serve->();
	my ($first, $again) = map { $post->('order-76', 76) } 1 .. 2;
	is("$first->{status} $again->{status} $again->{headers}{'idempotent-replayed'}", '201 201 true',
		'the service answers, and replays');
	is($again->{content}, $first->{content}, 'the service: the same answer');
	my $client = fork // die "fork: $!";
	if (!$client) { $post->('order-77', 77.5); POSIX::_exit(0); }
	wait_until('the processor is called', sub { grep { / 77\.5$/ } logged() });
	$run->kill_kill;
	waitpid $client, 0;
	append_to_file(service_log() . '.go', '');
	my $finisher = $start->(\$output);
	my $taker = q{FROM pg_stat_activity WHERE datname = current_database() AND query ~ 'idem.take'
		AND pid <> pg_backend_pid()};
	wait_until('the worker waits', sub { ask("SELECT count(*) $taker") });
	ask("SELECT pg_terminate_backend(pid) $taker");    # it connects again
	ask(q{CALL lapse('order-77')});
	wait_until('the worker finishes',
		sub { ask(q{SELECT state FROM idem.lookup('payments', 'order-77')}) eq 'completed' });
	is($stop->($finisher), 0, 'the worker stops at SIGTERM');
	$run = $serve->();
	my $late = $post->('order-77', 77.5);
	is("$late->{status} $late->{headers}{'idempotent-replayed'}", '201 true',
		'the service was killed: the late retry is answered');
	is(decode_json($late->{content})->{payment}, ask('SELECT id FROM payment WHERE amount = 77.5'),
		'with the one payment');
	is(scalar(keys %{ { map { $_ => 1 } grep { / 77\.5$/ } logged() } }), 1, 'and one charge');
	$run->kill_kill;
	return $result;
}

# ---------------------------------------------------------------------------------------------
# A saga
# ---------------------------------------------------------------------------------------------

# The services note what they did, by key; a key that was cancelled stays cancelled. The car is refused
# at the first call for a trip, and never again.
sub saga
{
	my ($recipe) = @_;
	my $log = service_log();
	append_to_file($log, '');
	ask(<<"SQL");
CREATE FUNCTION note(what text) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
  EXECUTE format('COPY (SELECT %L) TO PROGRAM %L', what, 'cat >> $log');
END \$\$;
CREATE FUNCTION trip_book(step text, key text, request jsonb) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
  IF request->>'refuse' = step AND strpos(pg_read_file('$log'), format('refuse %s %s', request->>'trip', step)) = 0 THEN
    PERFORM note(format('refuse %s %s', request->>'trip', step));
    RAISE EXCEPTION 'no % left', step;
  END IF;
  IF request->>'broken' = step THEN
    RAISE division_by_zero;
  END IF;
  PERFORM note(format('book %s %s %s', request->>'trip', step, key));
END \$\$;
CREATE FUNCTION trip_cancel(step text, key text) RETURNS void LANGUAGE sql AS \$\$
  SELECT note(format('cancel %s %s', step, key));
\$\$;
SELECT idem.alter_scope('trips', lease => '1 hour');
SQL
	ask(mortal($recipe->{sql}));
	my %trips;
	for my $refuse ('none', 'car', 'flight')
	{
		my $died = 1;
		for (my $n = 1; $died; $n++)
		{
			my $trip = "$refuse-$n";
			$trips{$trip} = "CALL book_trip('$trip', '{\"trip\": \"$trip\", \"refuse\": \"$refuse\"}')";
			$died = dies_at($n, $trips{$trip});
			die 'the trip does not come to its end' if $n > 100;
		}
	}
	# A worker dies, too.
	ask(end_leases('-1 s'));
	my $lost = outage();
	dies_at(10 * $_, 'CALL finish_trips()') for 1 .. 3;
	ask(end_leases('-1 s') . 'CALL finish_trips()');

	my $unfinished = ask('SELECT count(*) FROM idem.in_flight');
	my @trips = sort keys %trips;
	my ($late, $later) = map { ask(join ";\n", @trips{@trips}) } 1 .. 2;    # retries
	my %answer;
	@answer{@trips} = split /\n/, $late;

	# What is left of each trip.
	my (%trip_of, %cancelled, %bookings, %cancels);
	for (logged())
	{
		$trip_of{$3} = $1 if /^book (\S+) (\w+) (\S+)$/;
		next unless /^cancel (\w+) (\S+)$/;
		$cancelled{$2} = 1;
		$cancels{ $trip_of{$2} } .= "$1 " if $trip_of{$2};
	}
	$bookings{ $trip_of{$_} }++ for grep { !$cancelled{$_} } keys %trip_of;
	my ($all, $none, $half, $wrong) = (0, 0, 0, 0);
	for my $trip (@trips)
	{
		my $left = $bookings{$trip} // 0;
		$left == 3 ? $all++ : $left == 0 ? $none++ : $half++;
		$wrong++ unless ($answer{$trip} // '') =~ ($left == 3 ? qr/"booked": true/ : qr/"booked": false/);
	}
	note "$all trips with all bookings, $none with none; cancelled: ", join '; ',
		sort values %{ { map { $_ => $_ } values %cancels } };
	my $backwards = !grep { !/^(?:hotel )*(?:flight )+$/ } values %cancels;

	# A step that fails holds up no other trip.
	ask(<<'SQL');
SELECT idem.claim('trips', 'broken', '{"trip": "broken", "broken": "hotel"}', lease => '1 us');
SELECT idem.claim('trips', 'beside', '{"trip": "beside"}', lease => '1 us');
SQL
	my $worker = ask('CALL finish_trips()');
	my $beside = ask(q{SELECT state FROM idem.lookup('trips', 'beside')});
	my $broken = ask(q{SELECT last_error->>'message' FROM idem.in_flight WHERE key = 'broken' AND state = 'released'});
	return facts("half $half", "wrong answers $wrong", 'later ' . ($later eq $late ? 'the same' : 'others'),
		'some with all ' . ($all > 0 ? 'yes' : 'no'), 'some with none ' . ($none > 0 ? 'yes' : 'no'),
		'cancelled ' . ($backwards ? 'backwards' : 'in another order'), "unfinished $unfinished",
		"worker $worker", "broken $broken", "beside it $beside", "lost $lost");
}

# ---------------------------------------------------------------------------------------------
# The same text again
# ---------------------------------------------------------------------------------------------

sub same_text
{
	my $begin = q{SELECT token, message_id, encode(convert_to(message, 'UTF8'), 'hex')
		FROM reminder_begin('may-ann', 'ann@example.com')};
	my (%ids, %texts, $sent);
	my $send = sub { my ($id, $text) = @_; $sent++; $ids{$id} = $texts{$text} = 1; return; };

	ask(q{INSERT INTO debtor VALUES ('ann@example.com', 30)});
	ask("BEGIN; $begin; ROLLBACK");
	my ($token1, @mail1) = split /\|/, ask($begin);
	$send->(@mail1);
	ask(q{CALL lapse('may-ann')});    # the worker is dead
	ask('UPDATE debtor SET balance = 50');
	my ($token2, @mail2) = split /\|/, ask($begin);
	$send->(@mail2);
	ask(qq{SELECT idem.complete('$token2')});
	my $zombie = ask(qq{SELECT idem.complete('$token1')});
	my $then = ask("SELECT coalesce(token, 'nothing') FROM ($begin) AS b") =~ s/^(?!nothing|ID).*/again/sr;
	return facts("sent $sent", 'ids ' . keys(%ids), 'texts ' . keys(%texts), "zombie $zombie", "then $then",
		'balance ' . join(' ', map { pack('H*', $_) =~ /balance was (\d+)/ } sort keys %texts));
}

# ---------------------------------------------------------------------------------------------
# Giving up a request
# ---------------------------------------------------------------------------------------------

sub give_up
{
	my $order = sub { my ($key, $item) = @_; return "SELECT place_order('$key', '{\"item\": \"$item\"}')"; };
	my $give_up = sub { return "SELECT coalesce(give_up_order('$_[0]')::text, 'never')"; };
	my @said = (ask($give_up->('before')), ask($order->('before', 'pen')), ask($order->('before', 'ink')),
		ask($give_up->('before')));
	push @said, ask($order->('after', 'pen')), ask($give_up->('after')), ask($order->('after', 'pen')),
		ask($order->('after', 'ink'));

	# The order is being placed: giving up waits for its transaction, as it ends.
	for my $end ('COMMIT', 'ROLLBACK')
	{
		my ($original, $canceller) = map { $node->background_psql($database, on_error_stop => 0) } 1 .. 2;
		$original->query_safe('BEGIN; ' . $order->("during $end", 'pen'));
		my $pid = $canceller->query_safe('SELECT pg_backend_pid()');
		$canceller->query_until(qr/asked/, "\\echo asked\n" . $give_up->("during $end") . ";\n");
		$node->poll_query_until('postgres', <<"SQL") or die 'giving up neither waits nor returns';
SELECT wait_event_type = 'Lock' OR state = 'idle' AND query LIKE '%give_up%' FROM pg_stat_activity WHERE pid = $pid
SQL
		$original->query_safe($end);
		push @said, $canceller->query('SELECT 1') =~ s/\n?1$//r;
		$_->quit for $original, $canceller;
		push @said, ask($order->("during $end", 'ink'));
	}
	ask(qq{SELECT idem.claim('orders', 'leased', '{"item": "pen"}', lease => '1 minute')});
	push @said, ask($give_up->('leased'));
	ask(q{SELECT idem.alter_scope('orders', max_attempts => 1); CALL lapse('leased')});
	push @said, ask($give_up->('leased'));
	ask(q{SELECT idem.erase('orders', 'after')});
	push @said, ask($give_up->('after'));
	return facts(@said, 'orders ' . ask('SELECT count(*) FROM orders'));
}

# ---------------------------------------------------------------------------------------------
# A transactional outbox
# ---------------------------------------------------------------------------------------------

sub outbox
{
	my (@sent, %broker);
	my $take = sub { return split /\|/, ask('SELECT * FROM outbox_take()'); };
	my $send = sub { push @sent, $_[0]; $broker{ $_[0] } = $_[1]; return; };

	ask(q{BEGIN; SELECT buy('nothing'); ROLLBACK});
	ask(q{SELECT buy('pen')});
	my ($token1, $key1, $message1) = $take->();
	my $meanwhile = $take->() ? 'taken too' : 'left alone';
	$send->($key1, $message1);
	ask("CALL lapse('$key1')");    # the worker is dead
	my ($token2, $key2, $message2) = $take->();
	$send->($key2, $message2);
	my $sent = ask("SELECT outbox_sent('$token2', '$key2')");
	my $zombie = ask("SELECT outbox_sent('$token1', '$key1')");

	# A message that cannot be sent is left alone after all its attempts.
	ask(q{SELECT buy('lead')});
	my $attempts = 0;
	while (my ($token, $key) = $take->())
	{
		ask("CALL lapse('$key')");
		last if ++$attempts == 30;
	}
	my $dead = ask(q{SELECT string_agg(message->>'item', ' ') FROM dead_letter});
	ask(q{SELECT idem.revoke('outbox', key) FROM dead_letter});
	my $revoked = $take->() ? 'taken' : 'left alone';
	return facts("meanwhile $meanwhile", 'sent ' . @sent, 'messages ' . keys(%broker), "zombie $zombie",
		"attempts $attempts", "dead $dead", "revoked $revoked", 'left ' . ask('SELECT count(*) FROM outbox'));
}

# ---------------------------------------------------------------------------------------------
# A message consumer
# ---------------------------------------------------------------------------------------------

sub consumer
{
	my $pens = q{SELECT quantity FROM stock WHERE item = 'pen'};
	my $message = q{SELECT delivered('deliveries', 0, 17, 'pen', 3)};
	ask("BEGIN; $message; ROLLBACK");
	ask($message) for (1 .. 2);
	ask(q{SELECT delivered('deliveries', 1, 7, 'pen', 3)});
	my $singly = ask($pens);

	ask(q{SELECT delivered('[{"id": "a", "item": "pen", "quantity": 10}, {"id": "b", "item": "ink", "quantity": 1},
		{"id": "a", "item": "pen", "quantity": 10}, {"id": "c", "item": "pen", "quantity": 10}]')}) for (1 .. 2);
	ask(q{SELECT delivered('[{"id": "d", "item": "pen", "quantity": 10},
		{"id": "c", "item": "pen", "quantity": 10}]')});
	my $missing = ask(q{SELECT delivered('[{"id": "e", "item": "ink", "quantity": 1},
		{"id": "f", "item": "ink"}]')});
	return facts("singly $singly", 'in batches ' . (ask($pens) - $singly), "missing $missing",
		'ink ' . ask(q{SELECT quantity FROM stock WHERE item = 'ink'}));
}

# ---------------------------------------------------------------------------------------------
# An ordered stream
# ---------------------------------------------------------------------------------------------

# A source begins with 0, as a partition of Kafka does.
sub stream
{
	my ($recipe) = @_;
	my @said = map { ask("SELECT book('entries/0', $_, 'alice', 10)") } (1, 0, 1, 1, 0, 3, 2, 3);
	ask(q{BEGIN; SELECT book('entries/0', 4, 'alice', 10); ROLLBACK});
	push @said, ask(q{SELECT book('entries/0', 4, 'alice', 10)}), ask(q{SELECT book('entries/1', 5, 'alice', 10)});
	$node->psql($database, $recipe->{sql}, on_error_stop => 0);    # pasted again
	push @said, ask(q{SELECT book('entries/0', 0, 'alice', 10)});
	return facts("@said", 'balance ' . ask(q{SELECT balance FROM account}));
}

# ---------------------------------------------------------------------------------------------
# A one-time token
# ---------------------------------------------------------------------------------------------

sub one_time_token
{
	ask(q{SELECT invite('secret', 'red')});
	my $answer = ask(q{SELECT accept('secret', 'ann@example.com')});
	my $again = ask(q{SELECT accept('secret', 'ann@example.com')});
	my $thief = ask(q{SET idem.tenant = 'bob'; SELECT accept('secret', 'bob@example.com')});
	my $guess = ask(q{SELECT accept('guess', 'bob@example.com')});
	return facts("answer $answer", "again $again", "thief $thief", "guess $guess",
		'members ' . ask('SELECT count(*) FROM member'),
		'secrets ' . ask(q{SELECT count(*) FROM idem.record WHERE record::text LIKE '%secret%'}));
}

# ---------------------------------------------------------------------------------------------
# Provenance
# ---------------------------------------------------------------------------------------------

sub provenance
{
	ask(q{SELECT transfer('t1', '{"from": "a", "to": "b", "amount": 5}')}) for (1 .. 3);
	ask(q{SELECT transfer('t2', '{"from": "b", "to": "a", "amount": 5}')});
	my $outside = ask(q{INSERT INTO entry(account, amount) VALUES ('a', 1000000)});
	return facts(
		't1 ' . ask(q{SELECT string_agg(account || amount, ' ' ORDER BY id) FROM entry WHERE operation = 't1'}),
		'entries ' . ask('SELECT count(*) FROM entry'), "outside $outside");
}

# ---------------------------------------------------------------------------------------------
# An HTTP handler
# ---------------------------------------------------------------------------------------------

sub post
{
	my ($key, $request, %around) = @_;
	$key = defined $key ? "'$key'" : 'NULL';
	my $answer = ask(join "\n", $around{before} // '', 'BEGIN;', $around{inside} // '',
		"SELECT concat_ws(' ', status, headers->>'Location', 'later ' || (headers->>'Retry-After' >= '1'),
			'replayed ' || (headers->>'Idempotent-Replayed'), body->>'type') FROM post_payment($key, '$request');",
		'COMMIT;');
	return (split /\n/, $answer)[-1];
}

sub http
{
	my @said = (
		post('"k1"', '{"amount": 10}'), post('k1', '{"amount": 10.0}'), post('"k1"; v=1', '{"amount": 11}'),
		post('k2', '{"amount": 5000}'), post('k2', '{"amount": 5000}'),
		post(undef, '{"amount": 10}'), post('', '{"amount": 10}'), post('k3', '{"amount": "ten"}'),
		post('k3', '{"amount": 10}'),
		post('018f0000-0000-7000-8000-000000000000', '{"amount": 10}'));
	my $session = $node->background_psql($database);
	$session->query_safe(q{BEGIN; SELECT status FROM post_payment('k5', '{"amount": 10}')});
	push @said, post('k5', '{"amount": 10}');
	$session->query_safe('LOCK TABLE http_payment');
	push @said, post('k6', '{"amount": 10}', before => q{SET lock_timeout = '100 ms';});
	$session->query_safe('COMMIT');
	$session->quit;
	push @said, post('k5', '{"amount": 10}'), post('k6', '{"amount": 10}'),
		post('k7', '{}'), post('k7', '{"amount": null}'), post('k7', '{"amount": 10}'), post('k7', '{"amount": 10}');
	my $types = 'urn:idem:problem:';
	s/$types// for @said;
	return facts(@said, 'refusal ' . ask(q{SELECT state FROM idem.lookup('POST /payments', 'k2')}),
		'payments ' . ask('SELECT count(*) FROM http_payment'));
}

# ---------------------------------------------------------------------------------------------
# Functions of other types
# ---------------------------------------------------------------------------------------------

sub without_result
{
	my $ship = sub { my ($key, $item, $quantity) = @_; return "SELECT ship('$key', '$item', $quantity)"; };
	ask('BEGIN; ' . $ship->('s1', 'pen', 2) . '; ROLLBACK');
	my @said = (ask($ship->('s1', 'pen', 2)), ask($ship->('s1', 'pen', 2)), ask($ship->('s1', 'ink', 2)));
	push @said, ask($ship->('s2', 'pen', 0)), ask($ship->('s2', 'pen', 1));
	return facts(map({ $_ eq '' ? 'void' : $_ } @said),
		'shipped ' . ask(q{SELECT string_agg(item || quantity, ' ' ORDER BY id) FROM shipment}));
}

sub returns_rows
{
	# With statistics of a table that has grown since, a subquery of IN would run once for each seat.
	ask(q{INSERT INTO seat VALUES ('A1', 10.50); ANALYZE seat});
	ask(q{INSERT INTO seat SELECT 'A' || n, 10 + n * 0.50 FROM generate_series(2, 3) n});
	my $reserve = sub {
		my ($key, $guest, $seats) = @_;
		return ask("SELECT * FROM reserve('$key', '$guest', $seats)") =~ s/\n/ /gr;
	};
	my @said = ($reserve->('r1', 'ann', 2), $reserve->('r2', 'bob', 2), $reserve->('r3', 'cyd', 2));
	ask(q{UPDATE seat SET guest = NULL});
	push @said, map { $reserve->("r$_->[0]", $_->[1], 2) } [ 1, 'ann' ], [ 2, 'bob' ], [ 3, 'cyd' ], [ 3, 'dan' ];
	push @said, map { ask("SELECT * FROM reserve('null', $_)") } q{NULL, 2}, q{'eve', NULL};
	return facts(@said, 'free ' . ask('SELECT count(*) FROM seat WHERE guest IS NULL'));
}

# A retry may come in a session with other settings.
sub returns_composite
{
	my $pay = q{SELECT id, amount, extract(epoch FROM paid) FROM pay('p1', 10.50)};
	my ($first, $again) = (ask($pay), ask("SET timezone = 'Asia/Kolkata'; SET datestyle = 'German'; $pay"));
	my ($kept) = $first =~ /^(.*)\|/;
	return facts("first $kept", 'again ' . ($again eq $first ? 'the same' : 'another'), ask(q{SELECT pay('p1', 11)}),
		'receipts ' . ask('SELECT count(*) FROM receipt'));
}

# A PostgREST function
# ---------------------------------------------------------------------------------------------

# Debian has no package of PostgREST, so what it sends is written down here, as its version 12 does for
# POST /rpc/create_payment. The headers are a JSON object with names in lower case.
sub postgrest_script
{
	my ($headers, $body, $user) = @_;
	my $claims = encode_json({ role => 'web_user', defined $user ? (sub => $user) : () });
	my $names = encode_json({ 'content-type' => 'application/json', %$headers });
	s/'/''/g for $names, $body;
	return (<<"SQL", <<"SQL");
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('search_path', '"api", "public"', true), set_config('role', 'web_user', true),
  set_config('request.jwt.claims', '$claims', true),
       set_config('request.method', 'POST', true), set_config('request.path', '/rpc/create_payment', true),
       set_config('request.headers', '$names', true), set_config('request.cookies', '{}', true) \\g /dev/null
SQL
WITH pgrst_source AS (
  SELECT pgrst_call.pgrst_scalar
    FROM (SELECT '$body'::json AS json_data) pgrst_payload,
         LATERAL (SELECT "amount" FROM json_to_record(pgrst_payload.json_data) AS _("amount" numeric)
         LIMIT 1) pgrst_body,
         LATERAL (SELECT "api"."create_payment"("amount" := pgrst_body."amount") pgrst_scalar) pgrst_call)
SELECT coalesce(json_agg(_postgrest_t.pgrst_scalar)->0, 'null') AS body,
       nullif(current_setting('response.headers', true), '') AS response_headers,
       nullif(current_setting('response.status', true), '') AS response_status
  FROM (SELECT "create_payment".pgrst_scalar FROM pgrst_source AS "create_payment") _postgrest_t;
SQL
}

# The status that PostgREST gives to an error: the first line that fits.
my @postgrest_status = (
	[ qr/^PT(\d{3})/ ], [ qr/^08|^53(?!400)/, 503 ], [ qr/^23503|^23505/, 409 ], [ qr/^25006/, 405 ],
	[ qr/^(?:09|25|2D|38|39|3B|40|53|54|55|57|58|F0|HV|XX)/, 500 ], [ qr/^(?:0L|0P|28|42501)/, 403 ],
	[ qr/^(?:42883|42P01)/, 404 ], [ qr/^P0001/, 400 ], [ qr/^P0/, 500 ], [ qr/^/, 400 ]);

# An error as a response: status, headers, body. PGRST needs all that is read here: PostgREST answers
# 500 if a part is missing or of another type.
sub postgrest_error
{
	my ($sqlstate, $message, $detail) = @_;
	if ($sqlstate eq 'PGRST')
	{
		my ($said, $with) = map { eval { decode_json($_) } // {} } $message, $detail;
		my @texts = (@$said{qw(code message)}, values %{ $with->{headers} // { none => undef } });
		return (500, {}, { code => 'PGRST121' }) if $with->{status} !~ /^\d+$/ || grep { !defined || ref } @texts;
		return ($with->{status}, $with->{headers}, $said);
	}
	my ($fits) = grep { $sqlstate =~ $_->[0] } @postgrest_status;
	return ($fits->[1] // $1, {}, { code => $sqlstate });
}

# Sends a request, and returns the response in a few words.
sub rpc
{
	my ($headers, $body, $user) = @_;
	my ($begin, $main) = postgrest_script($headers, $body, @_ > 2 ? $user : 'ann');
	my ($status, $stdout, $stderr) = $node->psql($database, "\\set VERBOSITY verbose\n$begin$main COMMIT;",
		on_error_stop => 1, extra_params => [ '-U', 'authenticator' ]);
	my ($code, $sent, $answer);
	if ($stderr =~ /ERROR:\s+(\w{5}): (.*)\n(?:DETAIL:\s+(.*)\n)?/)
	{
		($code, $sent, $answer) = postgrest_error($1, $2, $3 // '');
	}
	else
	{
		die "$main: $stderr" if $status;
		($answer, my $list, $code) = split /\|/, $stdout;
		$answer = JSON::PP->new->allow_nonref->decode($answer);
		my @headers = @{ decode_json($list || '[]') };
		die "PostgREST refuses these headers: $list"
		  if grep { ref ne 'HASH' || keys %$_ != 1 || ref((values %$_)[0]) } @headers;
		$sent = { map { %$_ } @headers };
	}
	my $later = $sent->{'Retry-After'};
	return join ' ', $code || 200, $answer->{code} // "payment $answer->{payment}", $sent->{Location} // (),
		$sent->{'Idempotent-Replayed'} ? 'replayed' : (), defined $later ? ($later =~ /^[1-9]\d*$/ ? 'later' : 'when?')
		: ();
}

# Sends POST /payment, before which PostgREST calls the function of db-pre-request.
sub inserted
{
	my ($key, $user, $amount) = @_;
	my ($begin) = postgrest_script({ defined $key ? ('idempotency-key' => $key) : () }, '', $user);
	$begin =~ s{/rpc/create_payment}{/payment};
	my (undef, undef, $stderr) = $node->psql($database, "\\set VERBOSITY verbose\n"
		. "$begin SELECT only_once() \\g /dev/null\n"
		. "INSERT INTO api.payment (payer, amount) VALUES ('$user', $amount); COMMIT;", on_error_stop => 1,
		extra_params => [ '-U', 'authenticator' ]);
	my ($code, $sent, $answer) = $stderr =~ /ERROR:\s+(\w{5}): (.*)\n(?:DETAIL:\s+(.*)\n)?/
		? postgrest_error($1, $2, $3 // '') : (201, {}, {});
	return join ' ', 'row', $code, $answer->{code} // (), $sent->{'Idempotent-Replayed'} // ();
}

sub postgrest
{
	my $key = sub { return { 'idempotency-key' => $_[0] }; };
	my @said = (
		rpc($key->('"k1"'), '{"amount": 10}'), rpc($key->('"k1"'), '{"amount": 10.0}'),
		rpc($key->('k1'), '{"amount": 10}'),
		rpc($key->('"k1"'), '{"amount": 11}'), rpc($key->('"k1"'), '{"amount": 10}', 'bob'),
		rpc({}, '{"amount": 10}'), rpc($key->(''), '{"amount": 10}'), rpc($key->('"k2'), '{"amount": 10}'),
		rpc($key->('"k2"'), '{"amount": 10}', undef),
		rpc($key->('"k3"'), '{"amount": null}'), rpc($key->('"k3"'), '{"amount": "ten"}'),
		rpc($key->('"k3"'), '{"amount": 5}'),
		rpc($key->('"018f0000-0000-7000-8000-000000000000"'), '{"amount": 10}'));
	my $first = $node->background_psql($database, extra_params => [ '-U', 'authenticator' ]);
	$first->query_safe(join '', postgrest_script($key->('"k4"'), '{"amount": 10}', 'ann'));
	push @said, rpc($key->('"k4"'), '{"amount": 10}');
	$first->query_safe('COMMIT');
	$first->quit;
	push @said, rpc($key->('"k4"'), '{"amount": 10}');
	push @said, map { inserted(@$_) } [ '"k1"', 'ann', 7 ], [ '"k1"', 'ann', 7 ], [ '"k1"', 'bob', 7 ],
		[ '"k5"', 'ann', 'NULL' ], [ '"k5"', 'ann', 7 ], [ undef, 'ann', 7 ], [ '"k5', 'ann', 7 ];
	my $as_bob = q{SET ROLE web_user; SET request.jwt.claims = '{"sub": "bob"}';};
	push @said, ask("$as_bob SELECT DISTINCT payer FROM api.payment"),
		ask("$as_bob INSERT INTO api.payment (payer, amount) VALUES ('ann', 1)");
	return facts(@said, 'payments ' . ask('SELECT count(*) FROM api.payment'));
}

# ---------------------------------------------------------------------------------------------
# The recipes, their results, and their results without idem's call
# ---------------------------------------------------------------------------------------------

# ---------------------------------------------------------------------------------------------
# An answer later
# ---------------------------------------------------------------------------------------------

# A client that sends its request again and asks meanwhile, a worker that dies over the second report,
# and reports that cannot be made: for good, and again and again.
sub answer_later
{
	ask(<<'SQL');
CREATE TABLE made (request jsonb);
CREATE FUNCTION make_report(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO made VALUES (request);
  RETURN jsonb_build_object('rows', 12 / (request->>'rows')::integer);
END $$;
SQL
	my $answer = sub { my ($columns, $from) = @_; return ask("SELECT concat_ws(' ', $columns) FROM $from"); };
	my (%report, %name);    # the report that was made for a name, and its name
	my $post = sub {
		my ($key, $rows, $name) = (@_, $_[0]);
		my $said = $answer->("status, headers->>'Location'", "post_report('$key', '{\"rows\": $rows}')");
		return $said unless $said =~ m{/reports/(\S+)};
		$report{$name} = $1 unless $name{$1};
		return $said =~ s{(/reports/)(\S+)}{$1 . ($name{$2} //= $name)}er;
	};
	my $get = sub {
		my $report = $report{ $_[0] } // $_[0];
		return $answer->("status, headers->>'Retry-After', body", "get_report('$report')");
	};
	my $age = sub { ask("UPDATE idem.record SET lease_end = lease_end - interval '$_[0]' WHERE state = 'p'"); };
	my @seen = ($get->('r1'), $post->('r1', 3), $post->('r1', 3), $get->('r1'));
	ask('CALL make_reports()');
	push @seen, $get->('r1'), $post->('r1', 3), $post->('r1', 4);

	push @seen, $post->('r2', 4);
	ask(q{SELECT token FROM idem.take('reports', lease => '1 hour')});    # dies
	push @seen, $post->('r2', 4);
	$age->('2 hours');
	my $lost = outage();
	ask('CALL make_reports()');
	push @seen, $get->('r2');

	# The worker goes on after a report that it cannot make, whose attempts end.
	push @seen, $post->('r3', 0), $post->('r4', 1);
	ask('CALL make_reports()');
	push @seen, $get->('r3'), $get->('r4');
	for (2 .. 10) { $age->('1 hour'); ask('CALL make_reports()'); }
	push @seen, $get->('r3');

	# A report keeps its place, and its attempts, when its POST is sent again.
	$post->('first', 1);
	$age->('10 s');
	$post->('second', 1);
	$age->('5 s');
	$post->('first', 1);
	push @seen, ask(q{SELECT key, attempt FROM idem.take('reports')}) =~ s/([^|]+)/$name{$1}/r;

	ask(q{SELECT idem.fail(token, '{"message": "no such year"}', 404) FROM idem.take('reports')});
	push @seen, $get->('second');

	# The record of the POST expires while its report is kept: the key is a new operation.
	ask(q{UPDATE idem.record SET expires = now() - interval '1 s' WHERE key = 'r2'});
	push @seen, $post->('r2', 6, 'another'), $get->('r2');
	ask('CALL make_reports()');
	push @seen, $get->('another');

	# An error that quotes the request, which is as large as it may be, does not stop the worker.
	$post->('long', '"' . 'x' x 65480 . '"');
	$post->('next', 4);
	ask('CALL make_reports()');
	push @seen, $get->('next');
	return facts(@seen, 'made ' . ask('SELECT count(*) FROM made'), "lost $lost");
}

# ---------------------------------------------------------------------------------------------
# A deadline
# ---------------------------------------------------------------------------------------------

# Bids around their deadlines, each asked for as soon as its deadline is over. The request that a bid is
# to be placed with is committed before it is sent, so that the asking side has its deadline.
sub deadline_storm
{
	ask(<<'SQL');
CREATE TABLE plan (n bigint PRIMARY KEY, until timestamptz NOT NULL);
CREATE TABLE verdict (n bigint PRIMARY KEY, outcome text NOT NULL);
CREATE SEQUENCE sent;
CREATE SEQUENCE asked;
CREATE PROCEDURE send_bid() LANGUAGE plpgsql AS $$
DECLARE
  this bigint := nextval('sent');
  until timestamptz;
BEGIN
  INSERT INTO plan VALUES (this, clock_timestamp() + random() * interval '40 ms') RETURNING plan.until INTO until;
  COMMIT;
  PERFORM pg_sleep(random() * 0.04);
  BEGIN
    PERFORM place_bid(this::text, jsonb_build_object('amount', this, 'until', until));
  EXCEPTION WHEN SQLSTATE 'UP408' THEN NULL;
  END;
  PERFORM pg_sleep(random() * 0.03);                   -- COMMIT often comes after the deadline
END $$;
CREATE PROCEDURE ask_for_bid() LANGUAGE plpgsql AS $$
DECLARE
  this bigint := nextval('asked');
  deadline timestamptz;
BEGIN
  LOOP
    SELECT p.until INTO deadline FROM plan p WHERE n = this;
    EXIT WHEN clock_timestamp() > deadline;
    PERFORM pg_sleep(0.001);
    COMMIT;
  END LOOP;
  INSERT INTO verdict VALUES (this, coalesce(bid_outcome(this::text, deadline)::text, 'never'));
END $$;
SQL
	my ($each, $clients) = (50, 10);
	my @storm = map {
		my $file = PostgreSQL::Test::Utils::tempdir . "/$_.sql";
		append_to_file($file, "CALL $_();\n");
		my $output = '';
		my $run = IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-t', $each, '-f', $file,
				$node->connstr($database) ], '<', \undef, '>', \$output, '2>&1');
		push @programs, $run;
		[ $run, \$output ]
	} qw(send_bid ask_for_bid);
	for (@storm)
	{
		my ($run, $output) = @$_;
		$run->finish or die $$output;
	}
	my $verdicts = 'verdict v LEFT JOIN bid b ON b.amount = v.n';
	note 'bids placed: ', ask("SELECT count(b.id) FROM $verdicts");
	return facts(
		'judged ' . ask('SELECT count(*) FROM verdict') / ($each * $clients),
		'never, but placed ' . ask("SELECT count(*) FROM $verdicts WHERE outcome = 'never' AND b.id IS NOT NULL"),
		'placed, but not there ' . ask("SELECT count(*) FROM $verdicts WHERE outcome <> 'never' AND b.id IS NULL"));
}

# "until" is SQL.
sub deadline
{
	my $bid = sub {
		my ($key, $until) = @_;
		return "SELECT place_bid('$key', jsonb_build_object('amount', 0, 'until', $until))";
	};
	my $outcome = sub { my ($key, $until) = @_; return "SELECT coalesce(bid_outcome('$key', $until)::text, 'never')"; };
	my ($past, $future) = map { "'" . ask("SELECT clock_timestamp() $_ interval '1 h'") . "'" } '-', '+';
	my @said = (ask($bid->('late', $past)), ask($outcome->('late', $past)), ask($bid->('in time', $future)),
		ask($bid->('in time', $future)),
		ask($outcome->('in time', $future)), ask(q{SELECT place_bid('none', '{"amount": 0}')}),
		ask(q{SELECT bid_outcome('none', NULL)}),
		ask(q{SET default_transaction_isolation = 'repeatable read'; } . $outcome->('in time', $past)));

	# One bid is placed in time, and commits after its deadline. Another one waits for its key until its
	# deadline is over. A caller asks for each.
	my ($holder, $placing, $asking) = map { $node->background_psql($database, on_error_stop => 0) } 1 .. 3;
	my $soon = q{clock_timestamp() + interval '3 s'};
	$holder->query_safe('BEGIN; ' . $bid->('slow', $soon));
	$holder->query_safe(qq{SELECT token AS held FROM idem.claim('bids', 'waits', '{}') \\gset});
	my $waits = sub {
		my ($session, $sql) = @_;
		my $pid = $session->query_safe('SELECT pg_backend_pid()');
		$session->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\n$sql;\n");
		# A lookup of the SQL edition sleeps.
		$node->poll_query_until($database,
			"SELECT wait_event_type IN ('Lock', 'Timeout') FROM pg_stat_activity WHERE pid = $pid")
		  or die "does not wait: $sql";
	};
	$waits->($placing, $bid->('waits', $soon));
	my $over = ask("SELECT $soon");
	$node->poll_query_until($database, "SELECT clock_timestamp() > '$over'") or die 'the deadline does not come';
	$waits->($asking, $outcome->('slow', "'$over'"));
	$holder->query_safe(q{SELECT idem.release(:'held'); COMMIT});
	for my $session ($asking, $placing)
	{
		$session->{stderr} = '';
		push @said, $session->query('SELECT 1') =~ s/\n?1$//r || ($session->{stderr} =~ /ERROR:\s+(\w{5})/)[0];
	}
	$_->quit for $holder, $placing, $asking;
	push @said, ask($outcome->('waits', "'$over'"));
	ask(q{SELECT idem.erase('bids', 'slow')});
	push @said, ask($outcome->('slow', "'$over'"));
	ask(q{SELECT idem.cancel('bids', 'given up')});
	push @said, ask($outcome->('given up', $past));
	return facts(@said, 'bids ' . ask('SELECT count(*) FROM bid'), deadline_storm());
}

# ---------------------------------------------------------------------------------------------
# A large answer
# ---------------------------------------------------------------------------------------------

sub large_answer
{
	ask(<<'SQL');
CREATE FUNCTION make_export(request jsonb) RETURNS text LANGUAGE sql AS $$
  SELECT repeat(gen_random_uuid()::text, (request->>'size')::integer / 36);
$$;
SQL
	my $export = sub { my ($key, $size) = @_; return ask("SELECT md5(export_account('$key', '{\"size\": $size}'))"); };
	ask(q{BEGIN; SELECT length(export_account('e1', '{"size": 3600000}')); ROLLBACK});
	my @said = map { $export->('e1', 3_600_000) } 1 .. 2;
	my $again = $said[0] =~ /^\w{32}$/ && $said[0] eq $said[1] ? 'the same' : "@said";
	@said = ($again, $export->('e1', 36));
	my $documents = ask('SELECT count(*) FROM export');
	ask(q{UPDATE export SET made = made - interval '9 days'; SELECT delete_old_exports()});
	return facts(@said, "documents $documents", 'records small '
		. ask('SELECT max(answer_bytes) < 100 FROM idem.records'), 'left ' . ask('SELECT count(*) FROM export'),
		$export->('e1', 3_600_000));
}

# ---------------------------------------------------------------------------------------------
# A tool for agents
# ---------------------------------------------------------------------------------------------

sub agent_tool
{
	my $call = sub {
		my ($identity, $arguments) = @_;
		my $result = ask("SELECT place_order_tool($identity, '$arguments')");
		return $result if $result =~ /^\w{5}$/;
		my $json = JSON::PP->new->canonical;
		$result = $json->decode($result);
		my ($content, $text) = ($result->{structuredContent}, $result->{content}[0]{text});
		return join ' ', $json->encode($json->decode($text)) eq $json->encode($content) ? () : "not as text: $text",
			$result->{isError} ? 'error' : 'order', $content->{order} // $content->{sqlstate} // 'erased',
			map { $content->{$_} ? $_ : () } qw(replayed retry_after);
	};
	my $uuid = '"idempotency_key": "8e03978e-40d5-43dd-bc93-6894a57f9324"';
	my @said = map { $call->(@$_) } (
		[ "'ann'", "{$uuid, \"item\": \"pen\", \"count\": 1}" ],
		[ "'ann'", "{\"count\": 1.0, \"item\": \"pen\", $uuid}" ],
		[ "'ann'", "{$uuid, \"item\": \"ink\", \"count\": 1}" ],
		[ "'ann'", "{$uuid, \"item\": \"pen\", \"count\": 1, \"note\": null}" ],
		[ "'bob'", "{$uuid, \"item\": \"pen\", \"count\": 1}" ],
		[ "'ann'", '{"item": "pen"}' ], [ "'ann'", '{"idempotency_key": "test", "item": "pen"}' ],
		[ 'NULL', "{$uuid, \"item\": \"pen\"}" ]);
	my $first = $node->background_psql($database);
	my $other = '{"idempotency_key": "0b5e1a3c-7f42-4a43-9c0f-3f3df6a8f0c1", "item": "cup"}';
	$first->query_safe("BEGIN; SELECT place_order_tool('ann', '$other')");
	push @said, $call->("'ann'", $other);
	$first->query_safe('COMMIT');
	$first->quit;
	push @said, $call->("'ann'", $other);
	ask("SELECT idem.erase('place_order', '0b5e1a3c-7f42-4a43-9c0f-3f3df6a8f0c1', 'ann')");
	push @said, $call->("'ann'", $other);
	return facts(@said, 'orders ' . ask('SELECT count(*) FROM agent_order'));
}

my %test = (
	'An external call' => {
		run => \&external_call,
		shows => 'maybe f t, zombie ID004, replay same, charges 1, payments 1',
		without => {
			claim => [ qr/idem\.claim\('payments', key/, q{idem.claim('payments', idem.new_key()},
				qr/charges 3, payments 3/ ],
			child_key => [ qr/idem\.child_key\(c\.token, 'charge'\)/, 'idem.new_key()', qr/charges 2, payments 1/ ],
			checkpoint => [ qr/PERFORM idem\.checkpoint\(c\.token, 'charging'\);/, '', qr/^maybe f f/ ],
			complete => [ qr/RETURN idem\.complete\(token, (.*)\);/, '"RETURN $1;"', qr/zombie \{.*payments 2/ ],
		},
	},
	'Finishing abandoned operations' => {
		after => 'An external call',
		run => \&abandoned_sql,
		shows => 'unfinished 0, charged again 0, called again 4, paid again 0, unanswered 0, '
		  . 'down: payment: processor is down, stopped at its end, lost 0',
		without => {
			take => [ qr/idem\.take\('payments'\)/, 'NULL::idem.take_result', qr/^unfinished [1-9]/ ],
			child_key => [ qr/'charge', charge\(idem\.child_key\(t\.token, 'charge'\)/,
				q{'charge', charge(idem.new_key()}, qr/charged again [1-9]/ ],
			checkpoint => [ qr/PERFORM idem\.checkpoint\(t\.token, t\.recovery_point, t\.recovery_state\);/, '',
				qr/called again (?:[5-9]|1\d)/ ],
			release => [ qr/PERFORM idem\.release\(.*?\)\);/s, '', qr/down: ,/ ],
		},
	},
	'Finishing abandoned operations, in Python' => {
		recipe => 'Finishing abandoned operations',
		after => 'An external call',
		run => \&abandoned_python,
		shows => 'unfinished 0, charged again 0, paid again 0, unanswered 0, '
		  . q{down: <HTTPError 500: 'Internal Server Error'>, stopped 0, lost 0},
		python => 1,
		without => {
			child_key => [ qr/"SELECT idem\.child_key\(%s, 'charge'\)", \(token,\)/, '"SELECT idem.new_key()"',
				qr/charged again [1-9]/ ],
		},
	},
	'A saga' => {
		run => \&saga,
		shows => 'half 0, wrong answers 0, later the same, some with all yes, some with none yes, cancelled '
		. 'backwards, unfinished 0, worker , broken trip: division_by_zero, beside it completed, lost 0',
		without => {
			ttl => [ qr/ttl => '7 days', /, '', qr/lost [1-9]/ ],
			checkpoint => [ qr/PERFORM idem\.checkpoint\(.*?\);/, '', qr/half [1-9]/ ],
			child_key => [ qr/idem\.child_key\(token, steps\[n\]\)/, 'idem.new_key()', qr/half [1-9]/ ],
			take => [ qr/idem\.take\('trips'\)/, 'NULL::idem.take_result', qr/unfinished [1-9]/ ],
		},
	},
	'The same text again' => {
		run => \&same_text,
		shows => 'sent 2, ids 1, texts 1, zombie ID004, then nothing, balance 30',
		without => {
			checkpoint => [ qr/PERFORM idem\.checkpoint\(.*?\);/, '', qr/sent 2, ids 1, texts 2, .* balance 30 50/ ],
			child_key => [ qr/idem\.child_key\(c\.token, 'mail'\)/, 'idem.new_key()', qr/ids 2/ ],
			claim => [ qr/idem\.claim\('reminders', key/, q{idem.claim('reminders', idem.new_key()},
				qr/texts 2, .* then again/ ],
		},
	},
	'Giving up a request' => {
		run => \&give_up,
		shows => 'never, ID003, ID003, never, {"order": 1}, {"order": 1}, {"order": 1}, ID002, {"order": 2}, ID002, '
		. 'never, ID003, 55006, 55006, {}, orders 2',
		without => {
			cancel => [ qr/idem\.cancel\('orders', key, error => '.*?'\)/, q{idem.lookup('orders', key)},
				qr/^55006, \{"order": 1\}, ID002/ ],
			states => [ qr/o\.state NOT IN \('completed', 'failed'\)/, q{o.state = 'in_progress'},
				qr/55006, never, \{\}, orders 2/ ],
			erased => [ qr/coalesce\(o\.response, '\{\}'\)/, 'o.response', qr/55006, never, orders 2/ ],
		},
	},
	'A transactional outbox' => {
		run => \&outbox,
		shows => 'meanwhile left alone, sent 2, messages 1, zombie ID004, attempts 20, dead lead, '
		. 'revoked taken, left 1',
		without => {
			try_claim => [ qr/idem\.try_claim\('outbox', m\.key/, q{idem.try_claim('outbox', idem.new_key()},
				qr/meanwhile taken too/ ],
			complete => [ qr/PERFORM idem\.complete\(token\);/, '', qr/zombie ,/ ],
		},
	},
	'A message consumer' => {
		run => \&consumer,
		shows => 'singly 6, in batches 30, missing 23502, ink 1',
		without => {
			once => [ qr/NOT idem\.once\(.*\)/, 'false', qr/singly 9, in batches 30, .* ink 1/ ],
			once_each => [ qr/idem\.once_each\('deliveries', /, 'unnest(', qr/singly 6, in batches 60, .* ink 2/ ],
		},
	},
	'An ordered stream' => {
		run => \&stream,
		shows => 'ID012 t t f f ID012 t t t t f, balance 60',
		without => {
			advance => [ qr/NOT idem\.advance\(.*\)/, 'false', qr/balance 110/ ],
			contiguous => [ qr/, contiguous => true/, '', qr/t f f f f t f f t t f/ ],
			again => [ qr/SELECT idem\.advance/, 'SELECT idem.reset_stream', qr/t t t t t, balance 70/ ],
		},
	},
	'A one-time token' => {
		run => \&one_time_token,
		shows => 'answer {"team": "red", "member": 1}, again {"team": "red", "member": 1}, thief ID002, guess '
		. 'P0002, members 1, secrets 0',
		without => {
			claim => [ qr/idem\.claim\('invitations', code_digest/, q{idem.claim('invitations', idem.new_key()},
				qr/members 3/ ],
			request => [ qr/, jsonb_build_object\('email', email\)/, q{, '{}'},
				qr/thief \{"team": "red", "member": 1\}/ ],
			tenant => [ qr/, tenant => ''/, '', qr/members 2/ ],
		},
	},
	'Provenance' => {
		run => \&provenance,
		shows => 't1 a-5 b5, entries 4, outside 23502',
		without => {
			current_key => [ qr/DEFAULT idem\.current_key\(\)/, 'DEFAULT gen_random_uuid()', qr/^t1 , entries 5/ ],
			claim => [ qr/idem\.claim\('transfers', key/, q{idem.claim('transfers', idem.new_key()},
				qr/^t1 , entries 8/ ],
		},
	},
	'An HTTP handler' => {
		run => \&http,
		shows => '201 /payments/1, 201 /payments/1 replayed true, 422 key_conflict, 403, 403 replayed true, 400 '
		. 'invalid_key, 400 invalid_key, '
		  . '400 about:blank, 201 /payments/2, 412 stale_key, 409 later true in_progress, '
		  . '503 about:blank, 201 /payments/3 replayed true, 201 /payments/4, '
		  . '400 about:blank, 400 about:blank, 201 /payments/5, 201 /payments/5 replayed true, refusal failed, '
		  . 'payments 5',
		without => {
			try_claim => [ qr/idem\.parse_key\(idempotency_key\), request/, 'idem.new_key(), request',
				qr/^201 \/payments\/1, 201 \/payments\/2/ ],
			parse_key => [ qr/idem\.parse_key\((idempotency_key)\)/, '"$1"',
				qr/^201 \/payments\/1, 201 \/payments\/2/ ],
			http_status => [ qr/idem\.http_status\(\w+\)/, '500',
				qr/^201 \/payments\/1, 500 \/payments\/1 replayed true/ ],
			fail => [ qr/PERFORM idem\.fail\(.*\);/, 'PERFORM idem.release(c.token);', qr/refusal absent/ ],
		},
	},
	'An answer later' => {
		run => \&answer_later,
		shows => '404, 202 /reports/r1, 202 /reports/r1, 202 5, 200 {"rows": 4}, 202 /reports/r1, ID002, 202 '
		. '/reports/r2, 202 /reports/r2, 200 {"rows": 3}, '
		  . '202 /reports/r3, 202 /reports/r4, 202 5, 200 {"rows": 12}, 202 60, first|2, 404 {"message": "no such '
		  . 'year"}, '
		  . '202 /reports/another, 200 {"rows": 3}, 200 {"rows": 2}, 200 {"rows": 3}, made 5, lost 2',
		without => {
			claim => [ qr/idem\.claim\('POST \/reports', key/, q{idem.claim('POST /reports', idem.new_key()},
				qr/made 10/ ],
			new_key => [ qr/idem\.new_key\(\)/, 'key', qr/202 5, 404, / ],
			ttl => [ qr/ttl => '7 days', /, '', qr/ID002, 202 \/reports\/r2, 202 \/reports\/r2, 404, .* lost 4/ ],
			left => [ qr/left\('report: ' \|\| SQLERRM, 1000\)/, 'SQLERRM', qr/202 5, made 4/ ],
			lease => [ qr/, lease => '1 microsecond'/, '', qr/^404, ID006/ ],
			take => [ qr/idem\.take\('reports'\)/, 'NULL::idem.take_result', qr/made 0/ ],
			release => [ qr/EXCEPTION WHEN OTHERS THEN.*?\)\);/s, '', qr/202 5, 202 5, 202 60/ ],
			status => [ qr/coalesce\(known\.status, (\d+)\)/, '"$1"', qr/ 409 \{"message": "no such year"\}/ ],
			exhausted => [ qr/WHEN 'exhausted' THEN/, q{WHEN 'none' THEN}, qr/202 5, 200 \{"rows": 12\}, 20000/ ],
		},
	},
	'A deadline' => {
		run => \&deadline,
		shows => 'UP408, never, {"bid": 1}, {"bid": 1}, 55006, UP408, 55006, 55000, {"bid": 2}, UP408, never, {}, '
		  . 'never, bids 2, judged 1, never, but placed 0, placed, but not there 0',
		without => {
			order => [
				qr/(  c := idem\.claim\('bids', key, request\);
  IF NOT c\.claimed .*?END IF;\n)(  IF .*?  END IF;\n)/s,
				'"$2$1"', qr/\{"bid": 2\}, \{"bid": 3\}, \{"bid": 3\}, \{\}, never, bids 3/ ],
			erased => [ qr/coalesce\(o\.response, '\{\}'\)/, 'o.response', qr/UP408, never, never, never, bids 2/ ],
		},
	},
	'A large answer' => {
		run => \&large_answer,
		shows => 'the same, ID002, documents 1, records small t, left 0, P0002',
		without => {
			complete => [ qr/jsonb_build_object\('export', export_id\)/, 'to_jsonb(document)', qr/^54000/ ],
			claim => [ qr/idem\.claim\('exports', key/, q{idem.claim('exports', idem.new_key()}, qr/documents 3/ ],
		},
	},
	'A tool for agents' => {
		run => \&agent_tool,
		shows => 'order 1, order 1 replayed, error ID002, error ID002, order 2, error ID007, error ID007, ID013, '
		. 'error ID001 retry_after, order 3 replayed, order erased replayed, orders 3',
		without => {
			try_claim => [ qr/arguments->>'idempotency_key'/, 'idem.new_key()', qr/^order 1, order 2, / ],
			tenant => [ qr/tenant => identity/, q{tenant => 'all'}, qr/ID002, order 1 replayed, error ID007/ ],
			request => [ qr/arguments - 'idempotency_key'/, q{'{}'}, qr/^order 1, order 1 replayed, order 1 replayed/ ],
			weak_keys => [ qr/weak_keys => 'reject'/, q{weak_keys => 'allow'}, qr/error ID007, order 3/ ],
		},
	},
	'A function without a result' => {
		run => \&without_result,
		shows => 'void, void, ID002, 23514, void, shipped pen2 pen1',
		without => {
			once => [ qr/NOT idem\.once\(.*\)\)/, 'false',
				qr/^void, void, void, 23514, void, shipped pen2 pen2 ink2 pen1/ ],
			request => [ qr/, jsonb_build_object\('item', item, 'quantity', quantity\)/, q{, '{}'},
				qr/^void, void, void/ ],
		},
	},
	'A function that returns rows' => {
		run => \&returns_rows,
		shows => 'A1|10.50 A2|11.00, A3|11.50, , A1|10.50 A2|11.00, A3|11.50, , ID002, 22004, 22004, free 3',
		without => {
			claim => [ qr/idem\.claim\('reservations', key/, q{idem.claim('reservations', idem.new_key()}, qr/free 0/ ],
			complete => [ qr/idem\.complete\(c\.token, answer\)/, 'idem.complete(c.token)',
				qr/A3\|11\.50, , , , , ID002/ ],
			nulls => [ qr/num_nulls\(guest, seats\)/, '0', qr/, ID002, A1\|10\.50/ ],
			array => [ qr/= ANY \(ARRAY\((SELECT .*? LOCKED)\)\)/s, '"IN ($1)"', qr/A3\|11\.50, , , / ],
		},
	},
	'A function that returns a row' => {
		run => \&returns_composite,
		shows => 'first 1|10.50, again the same, ID002, receipts 1',
		without => {
			claim => [ qr/idem\.claim\('receipts', key/, q{idem.claim('receipts', idem.new_key()}, qr/receipts 3/ ],
			complete => [ qr/idem\.complete\(c\.token, to_jsonb\(r\)\)/, 'idem.complete(c.token)',
				qr/again another, ID002, receipts 1/ ],
		},
	},
	'A PostgREST function' => {
		run => \&postgrest,
		shows => '201 payment 1 /payment?id=eq.1, 201 payment 1 /payment?id=eq.1 replayed, 201 payment 1 '
		. '/payment?id=eq.1 replayed, '
		  . '422 ID002, 201 payment 2 /payment?id=eq.2, 400 ID007, 400 ID007, 400 ID007, 400 ID013, '
		  . '400 23502, 400 22P02, 201 payment 4 /payment?id=eq.4, 412 ID010, 409 ID001 later, 201 payment 5 '
		  . '/payment?id=eq.5 replayed, '
		  . 'row 201, row 200 replayed true, row 201, row 400 23502, row 201, row 201, row 400 ID007, bob, '
		  . '42501, payments 8',
		without => {
			try_claim => [ qr/idem\.parse_key\(headers->>'idempotency-key'\)/, 'idem.new_key()',
				qr/^201 payment 1 \S+, 201 payment 2/ ],
			parse_key => [ qr/idem\.parse_key\((headers->>'idempotency-key')\)/, q{headers->>'idempotency-key'},
				qr/replayed, 201 payment 2 \S+, / ],
			http_status => [ qr/idem\.http_status\(c\)::text/, q{''}, qr/^200 payment 1/ ],
			http_headers => [ qr/idem\.http_headers\(c\)/, q{'[]'}, qr/^201 payment 1, 201 payment 1, .* 409 ID001, / ],
			problem => [ qr/IF problem IS NOT NULL/, 'IF false', qr/ 422 payment/ ],
			pgrst => [ qr/SQLSTATE 'PGRST'/, q{SQLSTATE 'P0001'}, qr/ 400 P0001/ ],
			once => [ qr/NOT idem\.once\(.*?'sub'\)/s, 'false', qr/row 201, row 201, row 201/ ],
			tenant => [ qr/tenant => payer/, q{tenant => 'all'}, qr/422 ID002, 201 payment 1 \S+ replayed/ ],
			policy => [ qr/ALTER TABLE api\.payment .*?;/, '', qr/payments 9$/ ],
		},
	},
);
is_deeply(\@titles, [ 'An external call', 'Finishing abandoned operations', 'A saga', 'The same text again',
		'Giving up a request',
		'A deadline', 'A transactional outbox', 'A message consumer', 'An ordered stream', 'A one-time token',
		'Provenance',
		'An HTTP handler', 'An answer later', 'A large answer', 'A tool for agents', 'A PostgREST function',
		'A function without a result', 'A function that returns rows',
		'A function that returns a row' ], 'every recipe is tested');

# Runs a recipe's scenario on it, or on what is left of it, in a database of its own.
sub run_recipe
{
	my ($test, $recipe) = @_;
	$database = 'kitchen_' . ++$test->{runs} . '_' . $test->{name};
	$node->safe_psql('postgres', "CREATE DATABASE \"$database\" TEMPLATE kitchen");
	$node->safe_psql($database, $recipe{ $test->{after} }) if $test->{after};
	$node->safe_psql($database, $recipe->{sql});
	return $test->{run}->($recipe);
}

sub test_recipe
{
	my ($name) = @_;
	my $test = $test{$name};
	my $title = $test->{recipe} // $name;
	my %intact = (sql => $recipe{$title}, python => $python{$title});
	$test->{name} = $name;
	is(run_recipe($test, { %intact, intact => 1 }), $test->{shows}, $name);
	for my $call (sort keys %{ $test->{without} })
	{
		my ($what, $instead, $shows) = @{ $test->{without}{$call} };
		my ($text, @more) = $test->{python} ? @{ $intact{python} } : $intact{sql};
		my $taken_out = $instead =~ /^".*\$\d/ ? $text =~ s/$what/$instead/gee : $text =~ s/$what/$instead/g;
		ok($taken_out, "$name: $call is there to be taken out");
		my $seen = run_recipe($test, { %intact, $test->{python} ? (python => [ $text, @more ]) : (sql => $text) });
		isnt($seen, $test->{shows}, "$name, without $call: it shows");
		like($seen, $shows, "$name, without $call: as it must") if $shows;
	}
	return;
}

# All of them together, pasted in the order of the page.
$node->safe_psql('postgres', 'CREATE DATABASE pasted');
my ($status, undef, $stderr) = $node->psql('pasted', join("\n", 'CREATE EXTENSION idem;', @recipe{@titles}),
	on_error_stop => 1);
is($status, 0, 'the recipes can be pasted into one database') || diag($stderr);

# In the order of the page.
my @names = map { my $title = $_; grep { ($test{$_}{recipe} // $_) eq $title } sort keys %test } @titles;
my $wanted = $ENV{IDEM_RECIPES} // '';
for my $name (grep { /$wanted/ } @names)
{
  SKIP:
	{
		skip "$name: no Python with psycopg here; tools/setup examples installs them", 1
		  if $test{$name}{python} && !$python;
		test_recipe($name);
	}
}

log_is_clean($node);
$node->stop;
done_testing();
