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
fsync = off
log_statement = none
log_connections = off
log_disconnections = off
CONF
$node->command_ok([ 'psql', '-Xq', '-f', 'demo/payments.sql', 'postgres' ], 'the demo is set up');

sub blow { return Storm->new(\@_, [$node])->counts; }

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
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT key) FROM payment'), '10000|10000', 'many keys: one effect per key');
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem.record'), 10000, 'many keys: one record per key');
is(locks($node), 0, 'many keys: no lock is left');

my %unprotected = blow('pay_unprotected', 32, 2000, 3, 100);
cmp_ok($unprotected{differing}, '>', 1000, 'unprotected: answers differ');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT key) FROM unprotected_payment'), '>', 1000,
	'unprotected: thousands of duplicates');

# One statement per operation, in pipelines: each pipeline is a transaction of four retries.
$node->safe_psql('postgres', q{SELECT idem.create_scope('pipelined'); TRUNCATE payment});
$node->pgbench(
	'--client=8 --jobs=1 --transactions=200 --no-vacuum --protocol=prepared', 0, [qr/processed: 1600\/1600/], [qr/^$/],
	'one-statement operations in pipelines',
	{ 'pipelined' => join "\n", '\\set key random(1, 300)', '\\startpipeline', (<<'SQL' =~ s/\n\s*/ /gr . ';') x 4, '\\endpipeline' });
WITH c AS MATERIALIZED (
  SELECT * FROM idem.claim('pipelined', 'k' || :key::int, to_jsonb(:key::int))
), effect AS (
  INSERT INTO payment (key, amount) SELECT 'k' || :key::int, :key::int FROM c WHERE c.claimed RETURNING id
)
SELECT CASE WHEN c.claimed THEN idem.complete(c.token, to_jsonb((SELECT id FROM effect))) ELSE c.response END FROM c
SQL
is($node->safe_psql('postgres', q{SELECT count(*) = count(DISTINCT key), count(*) > 250, count(*) = (SELECT count(*) FROM idem.records WHERE scope = 'pipelined') FROM payment}),
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
ok($worker->pumpable, 'the worker ran all the time');
$worker->kill_kill;

log_is_clean($node);
$node->stop;
done_testing();
