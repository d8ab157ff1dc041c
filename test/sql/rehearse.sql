-- idem_test.rehearse(): a right operation, and one for each mistake that it finds. A line "not ok" is
-- what the test wants to see wherever the operation's name tells of a mistake.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE EXTENSION idem_test;
CREATE SCHEMA rehearse;
SET search_path = rehearse;
\pset format unaligned
\pset tuples_only on
\set VERBOSITY terse
SELECT idem.create_scope('shop');
CREATE TABLE payment (id integer GENERATED ALWAYS AS IDENTITY, amount numeric);
CREATE TABLE audit (line text);
CREATE SEQUENCE attempts;

-- A right operation: every line is ok.
CREATE FUNCTION pay(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('shop', key, jsonb_build_object('amount', amount));
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(amount) VALUES (pay.amount);
  RETURN idem.complete(c.token, jsonb_build_object('amount', amount));
END $$;
SELECT idem_test.rehearse($$SELECT pay('test-1', 10)$$, $$SELECT pay('test-1', 11)$$);

-- Nothing stays of it. Without another request, one line is skipped.
SELECT (SELECT count(*) FROM payment), (SELECT count(*) FROM idem.record);
SELECT idem_test.rehearse($$SELECT pay('test-1', 10)$$);

-- What comes before in the transaction stays; within and after an EXCEPTION block, and in the other
-- isolation levels, it is the same.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pay('before', 1);
SELECT count(*) FILTER (WHERE line LIKE 'not ok%') FROM idem_test.rehearse($$SELECT pay('test-1', 10)$$, $$SELECT pay('test-1', 11)$$) line;
DO $$
BEGIN
  PERFORM pay('before', 1);
  RAISE NOTICE '%', (SELECT string_agg(line, ' / ') FROM idem_test.rehearse('SELECT pay(''test-1'', 10)') line WHERE line NOT LIKE 'ok%');
  RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN
  RAISE NOTICE '%', (SELECT string_agg(line, ' / ') FROM idem_test.rehearse('SELECT pay(''test-1'', 10)') line WHERE line NOT LIKE 'ok%');
END $$;
SELECT count(*) FROM payment;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FILTER (WHERE line LIKE 'not ok%') FROM idem_test.rehearse($$SELECT pay('test-1', 10)$$, $$SELECT pay('test-1', 11)$$) line;
COMMIT;
SELECT pay('test-1', 10), pay('test-1', 10);
SELECT count(*) FROM payment;

-- The key is in use.
SELECT idem_test.rehearse($$SELECT pay('test-1', 10)$$);

-- A lease, with a checkpoint.
CREATE FUNCTION pay_leased(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('shop', key, jsonb_build_object('amount', amount), lease => '1 minute');
  IF NOT c.claimed THEN RETURN c.response; END IF;
  PERFORM idem.checkpoint(c.token, 'charging');
  INSERT INTO payment(amount) VALUES (pay_leased.amount);
  RETURN idem.complete(c.token, '{"paid": true}');
END $$;
SELECT idem_test.rehearse($$SELECT pay_leased('test-2', 10)$$, $$SELECT pay_leased('test-2', 11)$$);

-- Other ways to call: one statement, a procedure, idem.execute(), consumers.
SELECT idem_test.rehearse($$
WITH c AS MATERIALIZED (SELECT * FROM idem.claim('shop', 'test-2', '10')), effect AS (
  INSERT INTO payment(amount) SELECT 10 FROM c WHERE claimed RETURNING id)
SELECT CASE WHEN claimed THEN idem.complete(token, (SELECT '"paid"'::jsonb FROM effect)) ELSE response END FROM c
$$);
CREATE PROCEDURE pay_out(key text, amount numeric, INOUT answer jsonb) LANGUAGE plpgsql AS $$
BEGIN answer := pay(key, amount); END $$;
SELECT idem_test.rehearse($$CALL pay_out('test-2', 10, NULL)$$, $$CALL pay_out('test-2', 11, NULL)$$);
CREATE FUNCTION book(request jsonb) RETURNS jsonb LANGUAGE sql AS $$INSERT INTO payment(amount) VALUES (1) RETURNING '{}'::jsonb$$;
SELECT idem_test.rehearse($$SELECT response FROM idem.execute('shop', 'test-2', 'book(jsonb)', '{"a": 1}')$$,
                     $$SELECT response FROM idem.execute('shop', 'test-2', 'book(jsonb)', '{"a": 2}')$$);
-- A rehearsal meets no injected faults.
SET idem_test.duplicate_rate = 1;
SET idem_test.crash_rate = 1;
SELECT line FROM idem_test.rehearse($$SELECT replayed FROM idem.execute('shop', 'test-2', 'book(jsonb)')$$) line WHERE line LIKE '# First%';
RESET idem_test.duplicate_rate;
RESET idem_test.crash_rate;
CREATE FUNCTION consume(ids text[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO audit SELECT * FROM idem.once_each('shop', ids) $$;
BEGIN;
SELECT idem.once_each('shop', '{m0}');
SELECT idem_test.rehearse($$SELECT consume('{m0,m1,m2}')$$);
COMMIT;

-- The mistakes. 1: the claim is not completed on one path.
CREATE FUNCTION forgets_complete(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('shop', key, jsonb_build_object('amount', amount));
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(amount) VALUES (forgets_complete.amount);
  IF amount > 5 THEN RETURN '{"large": true}'; END IF;
  RETURN idem.complete(c.token, '{"large": false}');
END $$;
SELECT idem_test.rehearse($$SELECT forgets_complete('test-3', 10)$$);
SELECT idem_test.rehearse($$SELECT forgets_complete('test-3', 1)$$);

-- 1: no claim, a release, a deferred constraint, an error.
SELECT idem_test.rehearse($$INSERT INTO payment(amount) VALUES (1)$$);
SELECT idem_test.rehearse($$SELECT idem.release((idem.claim('shop', 'test-3')).token)$$);
CREATE TABLE parent (id integer PRIMARY KEY);
CREATE TABLE child (parent integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION orphan(key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF idem.once('shop', key) THEN INSERT INTO child VALUES (1); END IF;
  RETURN true;
END $$;
SELECT idem_test.rehearse($$SELECT orphan('test-3')$$);
SELECT idem_test.rehearse($$SELECT 1/0$$);

-- 2: the answer is not the stored one; the key is not the client's.
CREATE FUNCTION answers_anew(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('shop', key, jsonb_build_object('amount', amount));
  IF NOT c.claimed THEN RETURN '{"error": "already paid"}'; END IF;
  INSERT INTO payment(amount) VALUES (answers_anew.amount);
  RETURN idem.complete(c.token, '{"paid": true}');
END $$;
SELECT idem_test.rehearse($$SELECT answers_anew('test-3', 10)$$, $$SELECT answers_anew('test-3', 11)$$);
SELECT idem_test.rehearse($$SELECT pay(idem.new_key(), 10)$$);
CREATE FUNCTION other_columns(key text) RETURNS SETOF record LANGUAGE plpgsql AS $$
BEGIN
  IF idem.once('shop', key) THEN RETURN QUERY SELECT 1, 'one'::text;
  ELSE RETURN QUERY SELECT 1, NULL::text; END IF;
END $$;
SELECT idem_test.rehearse($$SELECT * FROM other_columns('test-3') AS t(n integer, name text)$$);

-- 3: IF NOT claimed is forgotten, and an effect comes before the claim. Other changes than inserts
-- count as well, and what is rolled back does not.
CREATE FUNCTION forgets_if(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('shop', key, jsonb_build_object('amount', amount));
  INSERT INTO payment(amount) VALUES (forgets_if.amount), (0);
  IF c.claimed THEN PERFORM idem.complete(c.token, '{"paid": true}'); END IF;
  RETURN '{"paid": true}';
END $$;
SELECT idem_test.rehearse($$SELECT forgets_if('test-3', 10)$$, $$SELECT forgets_if('test-3', 11)$$);
CREATE FUNCTION writes_before(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit VALUES (key);
  UPDATE payment p SET amount = p.amount;
  DELETE FROM audit WHERE line = key;
  TRUNCATE parent CASCADE;
  CREATE TEMP TABLE IF NOT EXISTS scratch (n integer) ON COMMIT DROP;
  INSERT INTO scratch VALUES (1);
  BEGIN
    INSERT INTO payment(amount) VALUES (1);
    RAISE division_by_zero;
  EXCEPTION WHEN division_by_zero THEN NULL;
  END;
  RETURN pay(key, amount);
END $$;
SELECT idem_test.rehearse($$SELECT writes_before('test-3', 10)$$);

-- 4: the request is not passed to the claim; the refusal is hidden; it writes; another key.
CREATE FUNCTION forgets_request(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('shop', key);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(amount) VALUES (forgets_request.amount);
  RETURN idem.complete(c.token, jsonb_build_object('amount', amount));
END $$;
SELECT idem_test.rehearse($$SELECT forgets_request('test-3', 10)$$, $$SELECT forgets_request('test-3', 11)$$);
CREATE FUNCTION hides_conflict(key text, amount numeric) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pay(key, amount);
  RETURN 'ok';
EXCEPTION WHEN SQLSTATE 'ID002' THEN
  RETURN 'ok';
END $$;
SELECT idem_test.rehearse($$SELECT hides_conflict('test-3', 10)$$, $$SELECT hides_conflict('test-3', 11)$$);
CREATE FUNCTION logs_conflict(key text, amount numeric) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pay(key, amount);
  RETURN 'ok';
EXCEPTION WHEN SQLSTATE 'ID002' THEN
  INSERT INTO audit VALUES ('conflict');
  RETURN 'another request';
END $$;
SELECT idem_test.rehearse($$SELECT logs_conflict('test-3', 10)$$, $$SELECT logs_conflict('test-3', 11)$$);
SELECT idem_test.rehearse($$SELECT pay('test-3', 10)$$, $$SELECT pay('test-4', 11)$$);
SELECT idem_test.rehearse($$SELECT pay('test-3', 10)$$, $$SELECT 1/0$$);

-- An outcome in place of an error is a refusal too.
CREATE FUNCTION http_pay(key text, amount numeric) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.try_claim('shop', key, jsonb_build_object('amount', amount));
  IF c.outcome = 'conflict' THEN RETURN 422; END IF;
  IF NOT c.claimed THEN RETURN c.status; END IF;
  INSERT INTO payment(amount) VALUES (http_pay.amount);
  PERFORM idem.complete(c.token, status => 201);
  RETURN 201;
END $$;
SELECT idem_test.rehearse($$SELECT http_pay('test-3', 10)$$, $$SELECT http_pay('test-3', 11)$$);

-- 5: something that a rollback does not undo.
CREATE FUNCTION prepares(key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT idem.once('shop', key) THEN RETURN true; END IF;
  EXECUTE 'PREPARE insert_payment AS INSERT INTO payment(amount) VALUES (1)';
  EXECUTE 'EXECUTE insert_payment';
  RETURN true;
END $$;
SELECT idem_test.rehearse($$SELECT prepares('test-3')$$);
DEALLOCATE insert_payment;
CREATE FUNCTION remembers_outside(key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('attempts') > 2 THEN RETURN true; END IF;
  IF idem.once('shop', key) THEN INSERT INTO payment(amount) VALUES (1); END IF;
  RETURN true;
END $$;
SELECT idem_test.rehearse($$SELECT remembers_outside('test-3')$$);

-- 6: an error is swallowed in a block that does not contain the effect.
CREATE FUNCTION swallows_claim(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  INSERT INTO audit SELECT key WHERE (idem.lookup('shop', key)).state = 'absent';
  BEGIN
    c := idem.claim('shop', key, jsonb_build_object('amount', amount));
  EXCEPTION WHEN OTHERS THEN
    RETURN '{"error": "try later"}';
  END;
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(amount) VALUES (swallows_claim.amount);
  RETURN idem.complete(c.token, '{"paid": true}');
END $$;
SELECT idem_test.rehearse($$SELECT swallows_claim('test-3', 10)$$);
CREATE FUNCTION stores_any_error(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('shop', key, jsonb_build_object('amount', amount));
  IF NOT c.claimed THEN RETURN c.response; END IF;
  BEGIN
    INSERT INTO payment(amount) VALUES (stores_any_error.amount);
    RETURN idem.complete(c.token, '{"paid": true}');
  EXCEPTION WHEN OTHERS THEN
    PERFORM idem.fail(c.token, jsonb_build_object('message', sqlerrm));
    RETURN '{"paid": false}';
  END;
END $$;
SELECT idem_test.rehearse($$SELECT stores_any_error('test-3', 10)$$);
CREATE FUNCTION keeps_lease(key text, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('shop', key, jsonb_build_object('amount', amount), lease => '1 minute');
  IF NOT c.claimed THEN RETURN c.response; END IF;
  BEGIN
    PERFORM idem.checkpoint(c.token, 'charging');
  EXCEPTION WHEN OTHERS THEN
    RETURN '{"error": "try later"}';
  END;
  INSERT INTO payment(amount) VALUES (keeps_lease.amount);
  BEGIN
    RETURN idem.complete(c.token, '{"paid": true}');
  EXCEPTION WHEN OTHERS THEN
    RETURN '{"paid": true}';
  END;
END $$;
SELECT idem_test.rehearse($$SELECT keeps_lease('test-3', 10)$$);

-- An error may be caught: where the block contains everything, where COMMIT raises ID006, and where
-- the operation tries again.
CREATE FUNCTION catches(key text, amount numeric, how text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  IF how = 'open' THEN
    c := idem.claim('shop', key, jsonb_build_object('amount', amount));
    IF NOT c.claimed THEN RETURN c.response; END IF;
    BEGIN
      RETURN idem.complete(c.token, '{"paid": true}');
    EXCEPTION WHEN OTHERS THEN
      RETURN '{"paid": true}';
    END;
  END IF;
  FOR i IN 1 .. 2 LOOP
    BEGIN
      RETURN pay(key, amount);
    EXCEPTION WHEN serialization_failure THEN
      IF how = 'whole' THEN RETURN '{"error": "try later"}'; END IF;
    END;
  END LOOP;
END $$;
SELECT how, string_agg(line, ' / ' ORDER BY n)
  FROM unnest('{open,whole,again}'::text[]) how,
       idem_test.rehearse(format('SELECT catches(%L, 10, %L)', 'test-3', how)) WITH ORDINALITY AS t(line, n)
 WHERE line LIKE 'not%' OR line LIKE '#%' OR line LIKE '1..%' GROUP BY how;

-- A long answer and names that need quotes.
CREATE SCHEMA "My Shop";
CREATE TABLE "My Shop"."Audit" (line text);
CREATE FUNCTION long_answer(key text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO "My Shop"."Audit" VALUES ('x');
  IF idem.once('shop', key) THEN RETURN QUERY SELECT repeat('é', 400) FROM generate_series(1, 5);
  ELSE RETURN NEXT E'one\ntwo'; RETURN NEXT NULL; END IF;
END $$;
SELECT idem_test.rehearse($$SELECT long_answer('test-3')$$);

-- What it refuses.
SELECT idem_test.rehearse(NULL);
SELECT idem_test.rehearse('');
SELECT idem_test.rehearse('SELECT 1; SELECT 2');
SELECT idem_test.rehearse($$SELECT pay('test-3', 10)$$, 'SELECT 1; SELECT 2');
SELECT idem_test.rehearse('COMMIT');
SELECT idem_test.rehearse('COPY payment TO STDOUT');
SELECT idem_test.rehearse('SELECT pay(''test-3'', $1)');
SELECT idem_test.rehearse('SELECT no_such_function()');
SELECT idem_test.rehearse('SELEC');
SELECT idem_test.rehearse($$SELECT idem_test.rehearse('SELECT 1')$$);
BEGIN READ ONLY;
SELECT idem_test.rehearse($$SELECT pay('test-3', 10)$$);
ROLLBACK;
SET track_counts = off;
SELECT idem_test.rehearse($$SELECT pay('test-3', 10)$$);
RESET track_counts;

-- A procedure that commits by itself cannot be rehearsed.
CREATE PROCEDURE commits(key text) LANGUAGE plpgsql AS $$
BEGIN PERFORM pay(key, 1); COMMIT; END $$;
SELECT idem_test.rehearse($$CALL commits('test-3')$$);

-- A cancelled rehearsal ends, and so does the next one as always.
CREATE FUNCTION sleeps(key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM idem.once('shop', key); PERFORM pg_sleep(600); END $$;
SET statement_timeout = '200ms';
SELECT idem_test.rehearse($$SELECT sleeps('test-3')$$);
RESET statement_timeout;
SELECT count(*) FROM idem_test.rehearse($$SELECT pay('test-3', 10)$$) line WHERE line LIKE 'ok%';

-- An ordinary role rehearses with its own privileges.
CREATE ROLE regress_idem_rehearsal;
GRANT USAGE ON SCHEMA rehearse TO regress_idem_rehearsal;
SET ROLE regress_idem_rehearsal;
SELECT idem_test.rehearse($$SELECT pay('test-3', 10)$$);
SELECT idem_test.rehearse($$SELECT count(*) FROM payment$$);
RESET ROLE;

-- Nothing has stayed.
SELECT (SELECT count(*) FROM payment), (SELECT count(*) FROM audit), (SELECT count(*) FROM idem.record);

-- It writes, and needs the counters.
BEGIN READ ONLY;
SELECT idem_test.rehearse('SELECT 1');
ROLLBACK;
SET track_counts = off;
SELECT idem_test.rehearse('SELECT 1');
RESET track_counts;

SET client_min_messages = warning;
DROP SCHEMA rehearse, "My Shop" CASCADE;
DROP ROLE regress_idem_rehearsal;
DROP EXTENSION idem_test;
