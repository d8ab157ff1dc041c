# From a hand-written table to idem (examples/migration) in the middle of a storm: no live key is
# lost.
use strict;
use warnings;

use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Storm;
use Test::More;

my ($clients, $operations) = (12, 6000);
my $node = idem_node('migration', bare => 1, conf => <<'CONF');
max_connections = 60
log_statement = none
max_locks_per_transaction = 256
idem.max_open_claims = 10000
CONF

sub ask { my ($query) = @_; return $node->safe_psql('postgres', $query); }

sub run_file
{
	my ($file) = @_;
	$node->command_ok([ qw(psql -Xq -f), "examples/migration/$file.sql",
			'postgres' ],
		"$file.sql runs");
	return;
}

sub storm_meanwhile
{
	my ($change) = @_;
	my $storm = Storm->new([ 'pay', $clients, $operations, 3, 0 ], [$node]);
	$node->poll_query_until('postgres', "SELECT count(*) >= 300 FROM payment") or die 'no storm';
	$change->();
	my %saw = $storm->counts;
	$storm->load_answers($node);
	return %saw;
}

ask('CREATE EXTENSION idem');
run_file('before');
ask(<<'SQL');
INSERT INTO idempotency_key VALUES
  ('payments', '', 'finished', md5('{"amount": 1}'::jsonb::text), 201, '{"payment": -1}', now() + interval '1 hour'),
  ('payments', '', 'unbound', NULL, 200, '{"payment": -2}', now() + interval '1 hour'),
  ('payments', 'other', 'unbound', NULL, 200, '{"payment": -3}', now() + interval '1 hour'),
  ('payments', '', 'no hash', NULL, 200, '{"payment": -6}', now() + interval '1 hour'),
  ('payments', '', 'no body', md5('{"amount": 1}'::jsonb::text), 204, NULL, now() + interval '1 hour'),
  ('payments', '', 'for you', 'hash', 201, NULL, now() + interval '1 hour'),
  ('payments', '', 'for ever', md5('{"amount": 1}'::jsonb::text), 201, '{"payment": -7}', 'infinity'),
  ('payments', '', repeat('k', 300), md5('{"amount": 1}'::jsonb::text), 201, '{"payment": -8}', 'infinity'),
  ('payments', '', repeat('l', 300), NULL, 201, '{"payment": -9}', now() + interval '1 hour'),
  ('payments', '', 'large', md5('{"amount": 1}'::jsonb::text), 201, to_jsonb(repeat('x', 100000)),
   now() + interval '1 hour'),
  ('payments', '', 'begun', md5('{"amount": 1}'::jsonb::text), NULL, NULL, now() + interval '1 hour'),
  ('payments', '', 'over', md5('{"amount": 1}'::jsonb::text), 201, '{"payment": -4}', now() - interval '1 hour');
CREATE TABLE bulk AS SELECT 'bulk ' || i AS key, i FROM generate_series(1, 2500) i;
INSERT INTO idempotency_key SELECT 'payments', '', key, NULL, 200, to_jsonb(i), now() + interval '1 hour' FROM bulk;
SQL

# A transaction with an older snapshot, an uncommitted operation, and the old code itself.
my $early = $node->background_psql('postgres', on_error_stop => 0);
$early->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM payment');
ask(q{CREATE FUNCTION pay_by_old_code(k text) RETURNS void LANGUAGE sql AS
	$$ INSERT INTO idempotency_key VALUES ('payments', '', k, NULL, NULL, NULL, now() + interval '1 day')
	ON CONFLICT DO NOTHING $$});

my %saw = storm_meanwhile(sub { run_file('migrate') });
is($saw{differing}, 0, 'storm: no key had two answers');
is(ask('SELECT count(*), count(DISTINCT key) FROM payment'), "$operations|$operations", 'storm: one effect a key');
cmp_ok(ask('SELECT count(*) FROM idem.record'), '>=', 1, 'storm: idem took over in the middle');
cmp_ok(ask('SELECT keys FROM migrate.remaining'), '>=', 100, 'storm: the old table has live keys');
# In eight transactions, since one may hold 2,000 key locks.
is(ask(qq{SELECT count(*) FROM answer WHERE hashtext(key) & 7 = $_ AND pay(key, '{"amount": 10}') IS DISTINCT
	FROM answer}), 0,
	'a late retry of any key gets the answer that was acknowledged') for 0 .. 7;
is(ask('SELECT count(*) FROM payment'), $operations, 'a late retry has no effect');

# The older snapshot does not see all old keys.
my ($stdout) = $early->query(q{SELECT pay('early', '{"amount": 1}')});
like($early->{stderr}, qr/began before idempotency keys were moved/, 'a snapshot from before the move is refused');
$early->quit;
is(sqlstate($node, q{SELECT pay_by_old_code('late')}), '40001', 'the old code gets 40001');

# Each kind of row.
is(ask(q{BEGIN; SELECT response FROM migrate.claim('payments', 'unbound', NULL, NULL, NULL); ROLLBACK}),
	'{"payment": -2}',
	'a NULL tenant means the setting, as for idem.claim()');
is(sqlstate($node, q{SELECT pay('finished', '{"amount": 2}')}), 'ID002', 'an old key conflicts with another request');
my $expires = ask(q{SELECT expires_at FROM idempotency_key WHERE key = 'finished'});
is(ask(q{SELECT pay('finished', '{"amount": 1}')}), '{"payment": -1}', 'an old key is answered');
is(ask(q{SELECT count(*) FROM idempotency_key WHERE key = 'finished'}), 0, 'an old key that was asked for has moved');
is(ask(qq{SELECT expires_at BETWEEN '$expires' AND timestamptz '$expires' + interval '10 minutes', status
	FROM idem.lookup('payments', 'finished')}), 't|201', 'a moved key keeps its expiry and status');
is(ask(q{SELECT pay('finished', '{"amount": 1.0}')}), '{"payment": -1}',
	'idem answers a moved key, and compares its request by value');
is(sqlstate($node, q{SELECT pay('finished', '{"amount": 2}')}), 'ID002', 'a moved key conflicts with another request');
is(sqlstate($node, q{SELECT pay('begun', '{"amount": 1}')}), 'ID001', 'an unfinished old operation is in progress');
ask(q{UPDATE idempotency_key SET status = 201, response = '{"payment": -5}' WHERE key = 'begun'});
is(ask(q{SELECT pay('begun', '{"amount": 1}')}), '{"payment": -5}',
	'an unfinished old operation is answered once the old code finishes it');
is(ask(q{SELECT (pay('over', '{"amount": 1}')->>'payment')::bigint > 0}), 't', 'an expired old key is free');

is(ask(q{SELECT pay('no hash', '{"amount": 1}')}), '{"payment": -6}', 'a row without a hash binds no request');
is(ask(q{SELECT pay('no hash', '{"amount": 1}')}), '{"payment": -6}', 'until a retry moves it');
is(sqlstate($node, q{SELECT pay('no hash', '{"amount": 2}')}), 'ID002', 'and binds its own');
is(ask(q{SELECT coalesce(pay('no body', '{"amount": 1}'), '"none"'), status FROM idem.lookup('payments', 'no body')}),
	'"none"|', 'an operation that is finished without a body is answered');
is(ask(q{SELECT state, status FROM idem.lookup('payments', 'no body')}), 'completed|204', 'and moves');
is(ask(q{SELECT pay('for ever', '{"amount": 1}')}), '{"payment": -7}', 'a key that never expires is answered');
is(ask(q{SELECT expires_at - now() > interval '99 years' FROM idem.lookup('payments', 'for ever')}), 't',
	'and lives for a century');
for my $key (q{repeat('k', 300)}, q{'large'})
{
	my $answer = ask("SELECT response FROM idempotency_key WHERE key = $key");
	is(ask(qq{SELECT pay($key, '{"amount": 1}')}), $answer, "what idem refuses is answered: $key") for 1 .. 2;
	is(sqlstate($node, qq{SELECT pay($key, '{"amount": 2}')}), 'ID002', "and conflicts: $key");
}
is(ask('SELECT count(*) FROM payment'), $operations + 1, 'none of them ran again');

# Rows without a request move by batch, while a retry is moving one of them.
my $retry = $node->background_psql('postgres');
my $claim = q{SELECT response FROM migrate.claim('payments', 'bulk 7', NULL, '', NULL)};
$retry->query_safe("BEGIN; $claim");
is(ask(q{SET idem.max_open_claims = 10; SELECT migrate.move('payments')}), 10, 'a batch moves as many as may be open');
is(ask(q{SELECT migrate.move('payments', 10)}), 10, 'or as it is told');
# Without the library, a setting that was SET LOCAL is '' afterwards.
is(ask(q{DO $$ BEGIN IF idem.edition() = 'sql' THEN SET idem.max_open_claims = ''; END IF; END $$;
	SELECT migrate.move('payments')}), 1000, 'a batch moves');
ask(q{SELECT migrate.move('payments')});
ask(q{SELECT migrate.move('payments')});
is(ask(q{SELECT count(*) FROM idempotency_key WHERE request_hash IS NULL}), 2,
	'only the row that a retry is moving is left, and one that idem refuses');
$retry->query_safe('COMMIT');
$retry->quit;
is(ask(q{SELECT migrate.move('payments')}), 0, 'nothing is left to move');
is(ask(q{SELECT count(*) FROM bulk WHERE (migrate.claim('payments', key, NULL, '', NULL)).response = to_jsonb(i)}),
	2500,
	'each moved row has its answer');
is(ask(q{SELECT response FROM migrate.claim('payments', 'unbound', NULL, 'other', NULL)}), '{"payment": -3}',
	'a moved row keeps its tenant');
is(sqlstate($node, q{SELECT migrate.claim('payments', 'unbound', '{"amount": 1}', 'other', 'x')}), 'ID002',
	'a moved row without a request binds none');

# The end: not too early, not without the fence, and as documented.
my $pay = q{CREATE OR REPLACE FUNCTION pay(k text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', k, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(key, amount) VALUES (k, (request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id), 201);
END $$};
my @finish = (qw(psql -Xq -f examples/migration/finish.sql),
	$node->connstr('postgres'));
my $again = q{UPDATE idempotency_key SET expires_at = now() + interval '1 hour' WHERE key = 'over'};
is(sqlstate($node, $again), '40001', 'code that uses an expired row again begins an operation');
is(sqlstate($node, "BEGIN; UPDATE idempotency_key SET expires_at = clock_timestamp() WHERE key = 'for you'; "
		. "UPDATE idempotency_key SET response = NULL WHERE key = 'for you'"),
	'40001', 'also in a transaction that began before the row expired');
ask("SET session_replication_role = replica; $again");
$node->command_fails_like(\@finish, qr/old table has live keys/, 'finish.sql refuses while old keys are live');
is(sqlstate($node, q{SELECT pay_by_old_code('late')}), '40001', 'after the refusal the fence still stands');
ask(q{UPDATE idempotency_key SET expires_at = now()});
is(ask('SELECT keys FROM migrate.remaining'), 0, 'after the TTL no old key remains');
$node->command_fails_like(\@finish, qr/a procedure still calls migrate.claim/,
	'finish.sql refuses while a procedure calls migrate.claim()');
ask($pay);
is(sqlstate($node, q{SELECT pay_by_old_code('late')}), '40001', 'the fence stands when the procedures call idem alone');
run_file('finish');
is(ask(q{SELECT to_regnamespace('migrate') IS NULL AND to_regclass('idempotency_key') IS NULL}), 't',
	'schema and table are gone');
is(ask(q{SELECT pay('finished', '{"amount": 1}')}), '{"payment": -1}', 'a retry is answered without the old table');
is(ask(q{SELECT response FROM idem.claim('payments', 'finished', '{"amount": 1}', '')}), '{"payment": -1}',
	'moved keys are answered without the old table');

# The same migration without looking into the old table.
ask('TRUNCATE idem.record, payment; DROP TABLE payment; DROP FUNCTION pay');
run_file('before');
%saw = storm_meanwhile(sub { ask($pay) });
cmp_ok(ask(q{SELECT count(*) FROM (SELECT * FROM answer LIMIT 1000) a WHERE pay(key, '{"amount": 10}') IS DISTINCT
	FROM answer}), '>=', 100,
	'without the old table, its keys run again');

# What a retry would not find, because of a view that was not adapted.
ask('CREATE DATABASE forgetful');
my @migrate = (qw(psql -Xq -f examples/migration/migrate.sql),
	$node->connstr('forgetful'));
$node->safe_psql('forgetful', 'CREATE EXTENSION idem;' . slurp_file('examples/migration/before.sql') . <<'SQL');
ALTER TABLE idempotency_key DROP CONSTRAINT idempotency_key_pkey;
ALTER TABLE idempotency_key ALTER tenant DROP NOT NULL, ALTER expires_at DROP NOT NULL;
SQL
for (q{'payments', NULL, 'k', NULL, 200, '1', now()}, q{'payments', '', 'k', NULL, 200, '1', NULL},
	q{'payment', '', 'k', NULL, 200, '1', now()})
{
	$node->safe_psql('forgetful', "TRUNCATE idempotency_key; INSERT INTO idempotency_key VALUES ($_)");
	$node->command_fails_like(\@migrate, qr/a retry would not find some rows/,
		"migrate.sql refuses a row that is lost: $_");
}

# The old code writes such a row while the script waits for the fence.
$node->safe_psql('forgetful', 'TRUNCATE idempotency_key');
my $writer = $node->background_psql('forgetful');
$writer->query_safe(q{BEGIN; INSERT INTO idempotency_key VALUES ('payments', NULL, 'k', NULL, 200, '1', now())});
my $refused = '';
my $script = IPC::Run::start(\@migrate, '2>', \$refused);
$node->poll_query_until('forgetful', 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted') or die 'no wait';
$writer->query_safe('COMMIT');
$writer->quit;
$script->finish;
like($refused, qr/a retry would not find some rows/, 'migrate.sql refuses a row that comes before the fence');

# What would be lost with a row that moves: one with the same key, and what refers to it.
my $live = q{('payments', '', 'k', 'h', 200, '1', now() + interval '1 hour')};
$node->safe_psql('forgetful', "TRUNCATE idempotency_key; INSERT INTO idempotency_key VALUES $live, $live");
$node->command_fails_like(\@migrate, qr/several rows of migrate.old have the same scope, tenant and key/,
	'migrate.sql refuses two rows that are one key');
for (qw(CASCADE RESTRICT), 'NO ACTION', 'SET NULL')
{
	$node->safe_psql('forgetful', 'DROP TABLE IF EXISTS receipt; TRUNCATE idempotency_key;
		ALTER TABLE idempotency_key DROP CONSTRAINT IF EXISTS k, ADD CONSTRAINT k UNIQUE (key);' .
			"CREATE TABLE receipt (key text REFERENCES idempotency_key (key) ON DELETE $_)");
	next if $_ eq 'SET NULL';
	$node->command_fails_like(\@migrate, qr/rows of receipt refer to rows of migrate.old/,
		"migrate.sql refuses a row that another refers to: $_");
}

my $joined = PostgreSQL::Test::Utils::tempdir . '/joined.sql';
append_to_file($joined, slurp_file('examples/migration/migrate.sql')
	=~ s/ FROM idempotency_key;\K/ DROP VIEW migrate.old;
CREATE VIEW migrate.old AS SELECT k.* FROM idempotency_key k JOIN payment p USING (key);/r);
$node->command_fails_like([ map { s/.*migrate\.sql/$joined/r } @migrate ], qr/rows of migrate.old cannot be deleted/,
	'migrate.sql refuses a view whose rows cannot move');

# Old code that writes to a partition.
$node->safe_psql('forgetful', 'DROP TABLE receipt, idempotency_key; CREATE TABLE idempotency_key (scope text,
	tenant text, key text, request_hash text, status integer, response jsonb, expires_at timestamptz NOT NULL)
	PARTITION BY LIST (scope); CREATE TABLE part PARTITION OF idempotency_key DEFAULT');
# And that tries a failed row again, as the script says.
my $again = $joined =~ s/joined/again/r;
my $migrate = slurp_file('examples/migration/migrate.sql');
my ($failed) = $migrate =~ /(OR OLD\.status = 500)\./ or fail('migrate.sql: a condition for failed rows');
append_to_file($again, $migrate =~ s/ FROM idempotency_key\K;/ WHERE status IS DISTINCT FROM 500;/r
	=~ s/clock_timestamp\(\)\K\) EXECUTE/ $failed) EXECUTE/r);
$node->safe_psql('forgetful', "INSERT INTO idempotency_key VALUES $live; UPDATE idempotency_key SET status = 500");
$node->command_ok([ map { s/.*migrate\.sql/$again/r } @migrate ], 'migrate.sql runs on a partitioned table');
is(sqlstate($node, "INSERT INTO part VALUES $live", 'forgetful'), '40001', 'the old code gets 40001 at a partition');
is(sqlstate($node, 'UPDATE part SET status = NULL', 'forgetful'), '40001', 'and when it tries a failed row again');
like($node->safe_psql('forgetful', q{SELECT pay('k', '{"amount": 1}')}), qr/payment/, 'which the new code does');

# Ids of messages in a table of their own, while the old code handles one.
my $fence = slurp_file('examples/migration/migrate.sql') =~ s/^-- (?=(?:CREATE|SELECT) .*message)//mgr;
my $adapted = PostgreSQL::Test::Utils::tempdir . '/migrate.sql';
append_to_file($adapted, $fence =~ s/lock_timeout = '\K5s/100ms/r);
ask('CREATE DATABASE consumer');
sub consume { my ($query) = @_; return $node->safe_psql('consumer', $query); }
consume('CREATE EXTENSION idem; CREATE TABLE handled_message (id text PRIMARY KEY)');
consume(slurp_file('examples/migration/before.sql'));
my $handle = q{INSERT INTO handled_message VALUES ('%s') ON CONFLICT DO NOTHING};
my $handling = $node->background_psql('consumer');
$handling->query_safe('BEGIN; ' . sprintf $handle, 'm-1');
my @adapted = (qw(psql -Xq -f), $adapted, $node->connstr('consumer'));
$node->command_fails_like(\@adapted, qr/lock timeout/, 'messages: the script waits for one that is being handled');
$handling->query_safe('COMMIT');
$handling->quit;
$node->command_ok(\@adapted, 'messages: and runs after it');
is(consume(q{SELECT idem.once('messages', 'm-1')}), 'f', 'messages: what was handled is not handled again');
is(sqlstate($node, sprintf($handle, 'm-2'), 'consumer'), '40001', 'messages: the old code gets 40001');

log_is_clean($node);
$node->stop;
done_testing();
