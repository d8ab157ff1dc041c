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
DELETE FROM idem.purge_progress;
SELECT run('short', 'k', 'x');
SELECT idem.purge(NULL);
INSERT INTO idem.purge_progress VALUES (0);
DROP FUNCTION run;
