-- idem_test.duplicate_rate and idem_test.busy_rate; t/faults.pl has idem_test.crash_rate.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE EXTENSION idem_test;
SET client_min_messages = warning;
CREATE SCHEMA faults;
SET search_path = faults;
\set VERBOSITY terse
SELECT idem.create_scope('shop', response_exclude => '{secret}', final_sqlstates => '{P0042}');
CREATE TABLE effect (key text);
CREATE FUNCTION pay(key text, OUT response jsonb, OUT replayed boolean) LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result := idem.claim('shop', key);
BEGIN
  replayed := NOT c.claimed;
  response := c.response;
  IF c.claimed THEN
    INSERT INTO effect VALUES (pay.key);
    response := idem.complete(c.token, '{"paid": true, "secret": 1}');
  END IF;
END $$;
CREATE FUNCTION op(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO effect VALUES (request->>'key');
  IF request ? 'fails' THEN RAISE 'refused' USING ERRCODE = 'P0042'; END IF;
  RETURN '{"paid": true, "secret": 1}';
END $$;

-- Duplicates: the client gets the answer of the second delivery, and there is one effect. It does not
-- matter which calls the statement makes.
SET idem_test.duplicate_rate = 1;
SELECT * FROM pay('procedure');
SELECT * FROM pay('procedure');
SELECT outcome, replayed, response FROM idem.execute('shop', 'execute', 'op(jsonb)', '{"key": "execute"}');
SELECT outcome, replayed, error->>'message' AS message FROM idem.execute('shop', 'fails', 'op(jsonb)', '{"key": "fails", "fails": true}');
SELECT idem.once('shop', 'message'), idem.once('shop', 'message');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT * FROM pay('serializable');
COMMIT;
SELECT key, count(*) FROM effect GROUP BY 1 ORDER BY 1;

-- A statement that claims and does not complete, one that completes what another has claimed, one
-- that fails, and one that has nothing to do with idem: each is delivered once.
TRUNCATE effect;
BEGIN;
SELECT claimed, token FROM idem.try_claim('shop', 'steps') \gset
SELECT :'claimed' AS claimed;
INSERT INTO effect VALUES ('steps');
SELECT idem.complete(:'token', '{"done": true}');
COMMIT;
SELECT attempt FROM idem.claim('shop', 'leased', lease => '1 minute');
SELECT pay(key || '!'), 1/(length(key) - 5) FROM effect;
SELECT key, state FROM idem.records JOIN LATERAL idem.lookup('shop', key) l USING (state) WHERE key IN ('steps', 'leased', 'steps!') ORDER BY 1;
SELECT count(*) FROM effect;
RESET idem_test.duplicate_rate;

-- Busy: a claim that would be granted is refused, and a retry can be granted. Replays are not.
SET idem_test.busy_rate = 1;
SELECT claimed, outcome, retry_after FROM idem.try_claim('shop', 'busy');
SELECT idem.claim('shop', 'busy');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.execute('shop', 'busy', 'op(jsonb)');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.once('shop', 'busy');
\echo :LAST_ERROR_SQLSTATE
SELECT replayed FROM pay('procedure');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
RESET idem_test.busy_rate;
SELECT replayed FROM pay('busy');

-- None meets a rehearsal.
SET idem_test.busy_rate = 1;
SET idem_test.crash_rate = 1;
SET idem_test.duplicate_rate = 1;
SELECT line FROM idem_test.rehearse($$SELECT response - 'secret' FROM pay('rehearsed')$$) line WHERE line ~ '^not ok';
RESET ALL;
SET search_path = faults;

-- Only superusers ask for faults, within limits. idem itself has no such setting.
SET idem_test.duplicate_rate = 1.5;
CREATE ROLE idem_regress_app;
SET ROLE idem_regress_app;
SET idem_test.busy_rate = 1;
SET idem_test.crash_rate = 1;
SET idem_test.duplicate_rate = 1;
SET idem_test.unknown = 1;
RESET ROLE;
DROP ROLE idem_regress_app;
SELECT name FROM pg_settings WHERE name ~ '^idem.*(test|rate)' ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA faults CASCADE;
DROP EXTENSION idem_test;
