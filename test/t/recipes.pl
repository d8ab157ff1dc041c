# The recipes of docs/recipes.md, as a reader would paste them: each is retried, crashed or raced,
# and has one effect and one answer. Then again without idem's call, to show that the call made the
# difference.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('recipes', bare => 1, conf => "fsync = off\n");
$node->safe_psql('postgres', 'CREATE DATABASE kitchen');
$node->safe_psql('kitchen', 'CREATE EXTENSION idem');
install_lapse($node, 'kitchen');

# The SQL under each heading, in order.
my @titles;
my %recipe;
for my $section (split /^## /m, slurp_file('docs/recipes.md'))
{
	my ($title, $text) = split /\n/, $section, 2;
	my $sql = join "\n", $text =~ /^```sql\n(.*?)^```$/msg;
	next if $sql eq '';
	push @titles, $title;
	$recipe{$title} = $sql;
}

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
	my ($token3, $key3, $maybe3, $replay) = split /\|/, ask($begin);
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
	return facts("meanwhile $meanwhile", 'sent ' . @sent, 'messages ' . keys(%broker), "zombie $zombie", "attempts $attempts",
		'dead ' . ask(q{SELECT string_agg(message->>'item', ' ') FROM dead_letter}),
		'left ' . ask('SELECT count(*) FROM outbox'));
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
	ask(q{SELECT delivered('[{"id": "d", "item": "pen", "quantity": 10}, {"id": "c", "item": "pen", "quantity": 10}]')});
	return facts("singly $singly", 'in batches ' . (ask($pens) - $singly), 'ink ' . ask(q{SELECT quantity FROM stock WHERE item = 'ink'}));
}

# ---------------------------------------------------------------------------------------------
# An ordered stream
# ---------------------------------------------------------------------------------------------

sub stream
{
	my @said = map { ask("SELECT book('entries/0', $_, 'alice', 10)") } (100, 101, 101, 100, 103, 102, 103);
	ask(q{BEGIN; SELECT book('entries/0', 104, 'alice', 10); ROLLBACK});
	push @said, ask(q{SELECT book('entries/0', 104, 'alice', 10)}), ask(q{SELECT book('entries/1', 5, 'alice', 10)});
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
	my $thief = ask(q{SELECT accept('secret', 'bob@example.com')});
	my $guess = ask(q{SELECT accept('guess', 'bob@example.com')});
	return facts("answer $answer", "again $again", "thief $thief", "guess $guess", 'members ' . ask('SELECT count(*) FROM member'),
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
	return facts('t1 ' . ask(q{SELECT string_agg(account || amount, ' ' ORDER BY id) FROM entry WHERE operation = 't1'}),
		'entries ' . ask('SELECT count(*) FROM entry'), "outside $outside");
}

# ---------------------------------------------------------------------------------------------
# A guarded table
# ---------------------------------------------------------------------------------------------

sub guarded
{
	my $pay_out = q{SELECT pay_out('p', '{"amount": 5}')};
	my $answer = ask($pay_out);
	my $again = ask($pay_out);
	my $hurry = ask(q{INSERT INTO payout(amount) VALUES (5)});
	my $after_replay = ask("BEGIN; $pay_out; INSERT INTO payout(amount) VALUES (5); COMMIT");
	return facts("answer $answer", "again $again", "hurry $hurry", "after replay $after_replay",
		'payouts ' . ask('SELECT count(*) FROM payout'));
}

# ---------------------------------------------------------------------------------------------
# An HTTP handler
# ---------------------------------------------------------------------------------------------

sub post
{
	my ($key, $request, %around) = @_;
	$key = defined $key ? "'$key'" : 'NULL';
	my $answer = ask(join "\n", $around{before} // '', 'BEGIN;', $around{inside} // '',
		"SELECT concat_ws(' ', status, headers->>'Location', 'later ' || (headers->>'Retry-After' >= '1'), 'replayed ' || (headers->>'Idempotency-Replayed'), body->>'type') FROM post_payment($key, '$request');",
		'COMMIT;');
	return (split /\n/, $answer)[-1];
}

sub http
{
	my @said = (
		post('k1', '{"amount": 10}'), post('k1', '{"amount": 10.0}'), post('k1', '{"amount": 11}'),
		post('k2', '{"amount": 5000}'), post('k2', '{"amount": 5000}'),
		post(undef, '{"amount": 10}'), post('', '{"amount": 10}'), post('k3', '{"amount": "ten"}'), post('k3', '{"amount": 10}'),
		post('018f0000-0000-7000-8000-000000000000', '{"amount": 10}'),
		post('k4', '{"amount": 10}', before => 'SET idem.max_open_claims = 1;',
			inside => q{DO $$ BEGIN PERFORM idem.release((idem.claim('POST /payments', 'other', '1')).token); END $$;}));
	my $session = $node->background_psql($database);
	$session->query_safe(q{BEGIN; SELECT status FROM post_payment('k5', '{"amount": 10}')});
	push @said, post('k5', '{"amount": 10}');
	$session->query_safe('LOCK TABLE payment');
	push @said, post('k6', '{"amount": 10}', before => q{SET lock_timeout = '100 ms';});
	$session->query_safe('COMMIT');
	$session->quit;
	push @said, post('k5', '{"amount": 10}'), post('k6', '{"amount": 10}'),
		post('k7', '{}'), post('k7', '{"amount": null}'), post('k7', '{"amount": 10}'), post('k7', '{"amount": 10}');
	my $types = 'urn:idem:problem:';
	s/$types// for @said;
	return facts(@said, 'refusal ' . ask(q{SELECT state FROM idem.lookup('POST /payments', 'k2')}),
		'payments ' . ask('SELECT count(*) FROM payment'));
}

# ---------------------------------------------------------------------------------------------
# The recipes, their results, and their results without idem's call
# ---------------------------------------------------------------------------------------------

my %test = (
	'An external call' => {
		run => \&external_call,
		shows => 'maybe f t, zombie ID004, replay same, charges 1, payments 1',
		without => {
			claim => [ qr/idem\.claim\('payments', key/, q{idem.claim('payments', idem.new_key()}, qr/charges 3, payments 3/ ],
			child_key => [ qr/idem\.child_key\(c\.token, 'charge'\)/, 'idem.new_key()', qr/charges 2, payments 1/ ],
			checkpoint => [ qr/PERFORM idem\.checkpoint\(c\.token, 'charging'\);/, '', qr/^maybe f f/ ],
			complete => [ qr/RETURN idem\.complete\(token, (.*)\);/, '"RETURN $1;"', qr/zombie \{.*payments 2/ ],
		},
	},
	'A transactional outbox' => {
		run => \&outbox,
		shows => 'meanwhile left alone, sent 2, messages 1, zombie ID004, attempts 20, dead lead, left 1',
		without => {
			try_claim => [ qr/idem\.try_claim\('outbox', m\.key/, q{idem.try_claim('outbox', idem.new_key()}, qr/meanwhile taken too/ ],
			complete => [ qr/PERFORM idem\.complete\(token\);/, '', qr/zombie ,/ ],
		},
	},
	'A message consumer' => {
		run => \&consumer,
		shows => 'singly 6, in batches 30, ink 1',
		without => {
			once => [ qr/NOT idem\.once\(.*\)/, 'false', qr/singly 9, in batches 30, ink 1/ ],
			once_each => [ qr/idem\.once_each\('deliveries', /, 'unnest(', qr/singly 6, in batches 60, ink 2/ ],
		},
	},
	'An ordered stream' => {
		run => \&stream,
		shows => 't t f f ID012 t t t t, balance 60',
		without => {
			advance => [ qr/NOT idem\.advance\(.*\)/, 'false', qr/balance 90/ ],
			contiguous => [ qr/, contiguous => true/, '', qr/t t f f t f f t t/ ],
		},
	},
	'A one-time token' => {
		run => \&one_time_token,
		shows => 'answer {"team": "red", "member": 1}, again {"team": "red", "member": 1}, thief ID002, guess P0002, members 1, secrets 0',
		without => {
			claim => [ qr/idem\.claim\('invitations', code_digest/, q{idem.claim('invitations', idem.new_key()}, qr/members 3/ ],
			request => [ qr/, jsonb_build_object\('email', email\)/, q{, '{}'}, qr/thief \{"team": "red", "member": 1\}/ ],
		},
	},
	'Provenance' => {
		run => \&provenance,
		shows => 't1 a-5 b5, entries 4, outside 23502',
		without => {
			current_key => [ qr/DEFAULT idem\.current_key\(\)/, 'DEFAULT gen_random_uuid()', qr/^t1 , entries 5/ ],
			claim => [ qr/idem\.claim\('transfers', key/, q{idem.claim('transfers', idem.new_key()}, qr/^t1 , entries 8/ ],
		},
	},
	'A guarded table' => {
		run => \&guarded,
		shows => 'answer {"payout": 1}, again {"payout": 1}, hurry ID011, after replay ID011, payouts 1',
		without => {
			require_claim => [ qr/CREATE TRIGGER .*?;/s, '', qr/payouts 3/ ],
			claim => [ qr/idem\.claim\('payouts', key/, q{idem.claim('payouts', idem.new_key()}, qr/again \{"payout": 2\}/ ],
		},
	},
	'An HTTP handler' => {
		run => \&http,
		shows => '201 /payments/1, 201 /payments/1 replayed true, 422 key_conflict, 403, 403 replayed true, 400 invalid_key, 400 invalid_key, '
		  . '400 about:blank, 201 /payments/2, 412 stale_key, 429 later true limit_exceeded, 409 later true in_progress, '
		  . '503 about:blank, 201 /payments/3 replayed true, 201 /payments/4, '
		  . '400 about:blank, 400 about:blank, 201 /payments/5, 201 /payments/5 replayed true, refusal failed, payments 5',
		without => {
			try_claim => [ qr/idempotency_key, request, wait/, 'idem.new_key(), request, wait', qr/^201 \/payments\/1, 201 \/payments\/2/ ],
			http_status => [ qr/idem\.http_status\(\w+\)/, '500', qr/^201 \/payments\/1, 201 \/payments\/1 replayed true, 500/ ],
			fail => [ qr/PERFORM idem\.fail\(.*\);/, 'PERFORM idem.release(c.token);', qr/refusal absent/ ],
		},
	},
);
is_deeply(\@titles, [ 'An external call', 'A transactional outbox', 'A message consumer', 'An ordered stream', 'A one-time token',
		'Provenance', 'A guarded table', 'An HTTP handler' ], 'every recipe is tested');

# Runs a recipe's scenario on its SQL, or on what is left of it, in a database of its own.
sub run_recipe
{
	my ($test, $sql) = @_;
	$database = 'kitchen_' . ++$test->{runs} . '_' . $test->{name};
	$node->safe_psql('postgres', "CREATE DATABASE \"$database\" TEMPLATE kitchen");
	$node->safe_psql($database, $sql);
	return $test->{run}->();
}

for my $title (@titles)
{
	my $test = $test{$title};
	$test->{name} = $title;
	is(run_recipe($test, $recipe{$title}), $test->{shows}, $title);
	for my $call (sort keys %{ $test->{without} })
	{
		my ($what, $instead, $shows) = @{ $test->{without}{$call} };
		my $sql = $recipe{$title};
		my $taken_out = $instead =~ /^"/ ? $sql =~ s/$what/$instead/gee : $sql =~ s/$what/$instead/g;
		ok($taken_out, "$title: $call is there to be taken out");
		my $seen = run_recipe($test, $sql);
		isnt($seen, $test->{shows}, "$title, without $call: it shows");
		like($seen, $shows, "$title, without $call: as it must") if $shows;
	}
}

log_is_clean($node);
$node->stop;
done_testing();
