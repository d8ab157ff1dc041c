# A retry storm: 500 clients with one key; 10,000 keys, each sent several times under random kills.
# One effect and one answer per key; and the same storm on an unprotected procedure, to show that it
# would do damage.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Storm;
use Test::More;

my $node = idem_node('storm', bare => 1, conf => <<'CONF');
max_connections = 600
max_prepared_transactions = 20
fsync = off
log_statement = none
log_connections = off
log_disconnections = off
CONF
$node->command_ok([ 'psql', '-Xq', '-f', 'demo/payments.sql', 'postgres' ], 'the demo is set up');

sub blow { return Storm->new(\@_, [$node])->counts; }
sub one_effect_per_key { return $node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT key) FROM payment'); }

my %one = blow('pay', 500, 1, 500, 0);
is($one{requests}, 500, 'one key: 500 requests answered');
is($one{differing}, 0, 'one key: one distinct answer');
is($node->safe_psql('postgres', 'SELECT count(*) FROM payment'), 1, 'one key: one effect');
is(locks($node), 0, 'one key: no lock is left');
$node->safe_psql('postgres', 'TRUNCATE payment, idem.record');

my %many = blow('pay', 32, 10000, 3, 100);
is($many{requests}, 30000, 'many keys: every request answered');
cmp_ok($many{lost}, '>', 10, 'many keys: connections were lost in mid-flight');
cmp_ok($many{overlapping}, '>', 1000, 'many keys: tries overlapped');
is($many{differing}, 0, 'many keys: one distinct answer per key');
is(one_effect_per_key(), '10000|10000', 'many keys: one effect per key');
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem.record'), 10000, 'many keys: one record per key');
is(locks($node), 0, 'many keys: no lock is left');

my %unprotected = blow('pay_unprotected', 32, 2000, 3, 100);
cmp_ok($unprotected{differing}, '>', 1000, 'unprotected: answers differ');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT key) FROM unprotected_payment'), '>', 1000,
	'unprotected: thousands of duplicates');

# Procedures that do what they should not: each tries to keep its effect without its answer, in some of
# its calls, and a retry must find the key free, or the answer that was kept.
$node->safe_psql('postgres', <<'SQL');
TRUNCATE payment, idem.record;
CREATE FUNCTION pay_in_savepoints(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE answer jsonb;
BEGIN
  -- The effect and the answer are rolled back together, in a subtransaction or in two.
  WHILE answer IS NULL LOOP
    BEGIN
      BEGIN
        answer := pay(key, request);
      END;
      IF random() < 0.5 THEN RAISE EXCEPTION USING ERRCODE = 'P0042'; END IF;
    EXCEPTION WHEN SQLSTATE 'P0042' THEN answer := NULL;
    END;
  END LOOP;
  RETURN answer;
END $$;
CREATE FUNCTION pay_forgetfully(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(key, amount) VALUES (key, 1) RETURNING id INTO payment_id;
  IF random() < 0.3 THEN RETURN '"forgotten"'; END IF;
  BEGIN
    PERFORM idem.complete(c.token, jsonb_build_object('payment', payment_id));
    IF random() < 0.3 THEN RAISE EXCEPTION USING ERRCODE = 'P0042'; END IF;
  EXCEPTION WHEN SQLSTATE 'P0042' THEN RETURN '"undone"';
  END;
  RETURN jsonb_build_object('payment', payment_id);
END $$;
-- Deferred constraints are checked at once, before the claim, in it or after it.
CREATE FUNCTION pay_immediately(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint; at integer := random() * 3;
BEGIN
  IF at = 0 THEN SET CONSTRAINTS ALL IMMEDIATE; END IF;
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(key, amount) VALUES (key, 1) RETURNING id INTO payment_id;
  IF at = 1 THEN
    BEGIN SET CONSTRAINTS ALL IMMEDIATE; EXCEPTION WHEN SQLSTATE 'ID006' THEN NULL; END;
    IF random() < 0.5 THEN RETURN '"forgotten"'; END IF;
  END IF;
  PERFORM idem.complete(c.token, jsonb_build_object('payment', payment_id));
  IF at = 2 THEN SET CONSTRAINTS ALL IMMEDIATE; END IF;
  RETURN jsonb_build_object('payment', payment_id);
END $$;
SQL
for my $storm ([ pay_in_savepoints => 'read committed' ], [ pay_in_savepoints => 'serializable' ],
	[ pay_forgetfully => 'read committed' ],
	[ pay_forgetfully => 'repeatable read' ], [ pay_immediately => 'read committed' ],
	[ pay_immediately => 'serializable' ])
{
	my ($procedure, $level) = @$storm;
	my %careless = Storm->new([ $procedure, 16, 1000, 3, 50 ], [$node], retries => 'ID',
		session => '-c default_transaction_isolation=' . ($level =~ s/ /\\ /r))->counts;
	is($careless{requests}, 3000, "$procedure, $level: every request answered");
	cmp_ok($careless{resent}, '>', 0, "$procedure, $level: some were sent again");
	is($careless{differing}, 0, "$procedure, $level: one distinct answer per key");
	is(one_effect_per_key(), '1000|1000', "$procedure, $level: one effect per key");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM payment p, idem.lookup('payments', p.key) l
		WHERE (l.response->>'payment')::bigint IS DISTINCT FROM p.id}),
		0, "$procedure, $level: each with its answer");
	is(locks($node), 0, "$procedure, $level: no lock is left");
	$node->safe_psql('postgres', 'TRUNCATE payment, idem.record');
}

# Two in three prepared transactions commit.
$node->pgbench(
	'--client=8 --jobs=1 --transactions=100 --no-vacuum', 0, [qr/processed: 800\/800/], [qr/^$/],
	'prepared transactions',
	{ 'prepared' => <<'SQL' });
\set key random(1, 200)
\set fate random(1, 3)
BEGIN;
SELECT pay('k' || :key::int, '{"amount": 1}');
PREPARE TRANSACTION 'storm :client_id';
\if :fate = 1
ROLLBACK PREPARED 'storm :client_id';
\else
COMMIT PREPARED 'storm :client_id';
\endif
SQL
like(one_effect_per_key(), qr/^(\d+)\|\1$/, 'have one effect per key');
is(locks($node), 0, 'and leave no lock');
$node->safe_psql('postgres', 'TRUNCATE payment, idem.record');

# One statement per operation, in pipelines: each pipeline is a transaction of four retries.
$node->safe_psql('postgres', q{SELECT idem.create_scope('pipelined')});
$node->pgbench(
	'--client=8 --jobs=1 --transactions=200 --no-vacuum --protocol=prepared', 0, [qr/processed: 1600\/1600/], [qr/^$/],
	'one-statement operations in pipelines',
	{ 'pipelined' => join "\n", '\\set key random(1, 300)', '\\startpipeline',
		(<<'SQL' =~ s/\n\s*/ /gr . ';') x 4, '\\endpipeline' });
WITH c AS MATERIALIZED (
  SELECT * FROM idem.claim('pipelined', 'k' || :key::int, to_jsonb(:key::int))
), effect AS (
  INSERT INTO payment (key, amount) SELECT 'k' || :key::int, :key::int FROM c WHERE c.claimed RETURNING id
)
SELECT CASE WHEN c.claimed THEN idem.complete(c.token, to_jsonb((SELECT id FROM effect))) ELSE c.response END FROM c
SQL
is($node->safe_psql('postgres', q{SELECT count(*) = count(DISTINCT key), count(*) > 250, count(*) = (SELECT count(*)
	FROM idem.records WHERE scope = 'pipelined') FROM payment}),
	't|t|t', 'have one effect per key');

# For a key that is claimed and completed only once, lookup() says absent, in progress, completed,
# and never goes back.
$node->safe_psql('postgres', <<'SQL');
SELECT idem.create_scope('watched');
CREATE SEQUENCE watched;
CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
DECLARE t text;
BEGIN
  FOR i IN 1 .. 1000 LOOP
    SELECT token INTO t FROM idem.claim('watched', 'k' || nextval('watched'));
    FOR j IN 1 .. 300 LOOP END LOOP;
    PERFORM idem.complete(t);
    COMMIT;
  END LOOP;
END $$;
CREATE PROCEDURE watch(looks integer, INOUT backwards integer DEFAULT 0) LANGUAGE plpgsql AS $$
DECLARE k text; before text; now text;
BEGIN
  FOR i IN 1 .. looks LOOP
    SELECT 'k' || last_value INTO k FROM watched;
    before := 'absent';
    LOOP
      SELECT state INTO now FROM idem.lookup('watched', k);
      backwards := backwards + (before = 'in_progress' AND now = 'absent')::integer;
      EXIT WHEN now <> 'in_progress';
      before := now;
    END LOOP;
    IF i % 20 = 0 THEN COMMIT; END IF;
  END LOOP;
END $$;
SQL
my $worker = load($node, "SET synchronous_commit = off;\nCALL work();\n");
is($node->safe_psql('postgres', 'CALL watch(200000)'), 0, 'a key in progress is never absent before it is completed');
ok(runs($worker), 'the worker ran all the time');
$worker->kill_kill;

log_is_clean($node);
$node->stop;
done_testing();
