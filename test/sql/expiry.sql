-- Expiry: an expired key is free at once, purged or not.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('short', ttl => '1 microsecond');
SELECT idem.create_scope('long');
CREATE FUNCTION run(scope text, key text, answer text, ttl interval DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim(scope, key, ttl => ttl);
  IF c.claimed THEN RETURN 'new ' || idem.complete(c.token, to_jsonb(answer))::text || ' attempt ' || c.attempt; END IF;
  RETURN 'old ' || c.response::text;
END $$;

SELECT run('short', 'k', 'first');
SELECT run('short', 'k', 'second');
SELECT run('short', 'k', 'third', ttl => '1 hour');
SELECT run('short', 'k', 'fourth');
SELECT key, response, count(*) OVER () FROM idem.record;
SELECT state FROM idem.lookup('short', 'k');
SELECT run('long', 'k', 'first', ttl => '1 microsecond');
SELECT state FROM idem.lookup('long', 'k');
SELECT run('long', 'k', 'second');
SELECT run('long', 'k', 'third');

-- an expired record binds neither its request nor its failure
DO $$ BEGIN PERFORM idem.complete((idem.claim('short', 'bound', '{"a": 1}')).token);
            PERFORM idem.fail((idem.claim('short', 'failed')).token, '{"message": "no"}'); END $$;
SELECT outcome FROM idem.try_claim('short', 'bound', '{"a": 2}');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT c.outcome, c.token AS t FROM idem.try_claim('short', 'bound', '{"a": 2}') c \gset
SELECT idem.complete(:'t', '1');
SELECT c.outcome, c.token AS t FROM idem.try_claim('short', 'failed') c \gset
SELECT idem.complete(:'t', '2');
-- a record that this transaction wrote does not expire within the transaction
SELECT pg_sleep(0.001);
SELECT outcome FROM idem.try_claim('short', 'bound', '{"a": 2}') UNION ALL SELECT outcome FROM idem.try_claim('short', 'bound', '{"a": 1}');
SELECT state FROM idem.lookup('short', 'bound');
COMMIT;
SELECT state FROM idem.lookup('short', 'bound');

-- the row was purged between claim and complete
BEGIN;
SELECT c.token AS t FROM idem.claim('short', 'bound') c \gset
SELECT idem.purge() > 0 AS purged;
SELECT idem.complete(:'t', '"after the purge"');
COMMIT;
SELECT key, response FROM idem.record ORDER BY key, response;

-- and a purge does not delete it
BEGIN;
SELECT run('short', 'kept', 'first');
SELECT pg_sleep(0.001);
SELECT idem.purge() > 0 AS others;
SELECT run('short', 'kept', 'second');
COMMIT;
SELECT idem.purge();

-- purging: expired records only, in batches, each batch starting where the last one stopped
TRUNCATE idem.record;
SELECT count(run('short', 'k' || i, 'x')) + count(run('long', 'k' || i, 'x')) AS made FROM generate_series(1, 1000) i;
SELECT idem.purge(300), idem.purge(300), idem.purge(300), idem.purge(300), idem.purge(300);
SELECT count(*), min(expires) > now() AS live FROM idem.record;
SELECT run('long', 'k500', 'again');
SELECT idem.purge(0);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.purge(-1);
\echo :LAST_ERROR_SQLSTATE
TRUNCATE idem.record;
SELECT idem.purge();
DELETE FROM idem.sweep;
SELECT run('short', 'k', 'x');
SELECT idem.purge(NULL);
INSERT INTO idem.sweep VALUES (0);
-- The other record tables are purged within the same limit, after idem.record and in the order of
-- their OIDs. One has a column for the tenant.
SELECT idem.create_record_table('first_records'), idem.create_record_table('second_records', 'tenant_id', 'bigint');
SELECT idem.create_scope('first', ttl => '1 microsecond', records => 'first_records');
SELECT idem.create_scope('second', ttl => '1 microsecond', records => 'second_records');
SELECT count(run('short', 'k' || i, 'x')) + count(run('long', 'k' || i, 'x')) AS here FROM generate_series(1, 300) i;
SELECT count(run('first', 'k' || i, 'x')) AS first FROM generate_series(1, 300) i;
SELECT count(idem.once('second', 'k' || i, tenant => '1')) AS second FROM generate_series(1, 300) i;
UPDATE idem.sweep SET hand = 0;
SELECT idem.purge(350);
SELECT (SELECT count(*) FROM idem.record), (SELECT count(*) FROM first_records), (SELECT count(*) FROM second_records);
-- The hand stays within the second table; what a table has gained before it waits for the next round.
SELECT hand >> 32 = 'first_records'::regclass::oid::bigint AS first FROM idem.sweep;
SELECT records, purge_block > 0 AS here FROM idem.storage ORDER BY records::text;
SELECT count(run('short', 'again' || i, 'x')) AS again FROM generate_series(1, 100) i;
SELECT idem.purge(400);
SELECT (SELECT count(*) FROM idem.record), (SELECT count(*) FROM first_records), (SELECT count(*) FROM second_records);
SELECT hand >> 32 = 'second_records'::regclass::oid::bigint AS second, idem.purge_block() FROM idem.sweep;
SELECT idem.purge();
SELECT (SELECT count(*) FROM idem.record), (SELECT count(*) FROM first_records), (SELECT count(*) FROM second_records);
-- The table of the hand has been dropped: the purge goes on with the next one.
SELECT count(run('first', 'k' || i, 'x')) + count(run('short', 'k' || i, 'x')) AS more FROM generate_series(1, 5) i;
SELECT count(idem.once('second', 'k' || i, tenant => '1')) AS more FROM generate_series(1, 5) i;
UPDATE idem.sweep SET hand = (('first_records'::regclass::oid::bigint) << 32) + 7;
SELECT idem.alter_scope('first', records => 'idem.record');
DROP TABLE first_records;
SELECT records, purge_block FROM idem.storage ORDER BY records::text;
SELECT idem.purge(5), (SELECT count(*) FROM idem.record) AS here, (SELECT count(*) FROM second_records) AS second;
SELECT (SELECT count(*) FROM idem.record) AS here, (SELECT count(*) FROM second_records) AS second;
-- A hand may be any number.
SELECT count(idem.once('second', 'k' || i, tenant => '1')) AS more FROM generate_series(1, 5) i;
UPDATE idem.sweep SET hand = -1;
SELECT idem.purge(1);
SELECT hand >= 0 AS positive FROM idem.sweep;
SELECT idem.purge();
-- A table that is not as it must be is left alone, and idem.health() says so.
GRANT DELETE ON second_records TO pg_monitor;
SELECT count(*) FROM idem.storage;
SELECT records, fault, remedy FROM idem.record_tables();
SELECT check_name, status, detail, hint FROM idem.health() WHERE check_name = 'record tables';
REVOKE DELETE ON second_records FROM pg_monitor;
SELECT records, fault, remedy FROM idem.record_tables();
SELECT check_name, status, detail, hint FROM idem.health() WHERE check_name = 'record tables';
SELECT idem.drop_scope('second'), idem.drop_scope('first');
DROP TABLE second_records;
DROP FUNCTION run;
