-- A claimed operation, its answer, and every way to get the answer again.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('payments', max_answer_size => 2000000);
CREATE TABLE payment (id serial PRIMARY KEY, amount numeric);
CREATE FUNCTION pay(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(amount) VALUES ((request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;

SELECT pay('one', '{"amount": 10}');
SELECT pay('one', '{"amount": 10}');
SELECT pay('two', '{"amount": 20}');
SELECT pay('one', '{"amount": 99}');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM payment ORDER BY id;

-- what a claim returns
BEGIN;
SELECT c.claimed, c.outcome, length(c.token) AS token, c.attempt, c.created_at <= clock_timestamp() AS created,
       c.expires_at IS NULL AS unexpiring, c.token AS t FROM idem.claim('payments', 'three') c \gset c_
\echo :c_claimed :c_outcome :c_token :c_attempt :c_created :c_unexpiring
SELECT idem.complete(:'c_t', '{"n": 1.50}', 201, '{"Location": "/3"}', decode('00ff0a', 'hex'));
-- what a replay returns, in the same transaction and after it
SELECT c.claimed, c.outcome, c.token, c.attempt, c.response, c.status, c.headers, c.body, c.expires_at - c.created_at >= '24 hours' AS ttl
  FROM idem.claim('payments', 'three') c;
COMMIT;
SELECT c.claimed, c.outcome, c.token, c.attempt, c.response, c.status, c.headers, c.body, c.expires_at - c.created_at >= '24 hours' AS ttl
  FROM idem.try_claim('payments', 'three') c;

-- an empty answer is an answer; a body with every byte and a large response come back unchanged
DO $$
DECLARE c idem.claim_result; bytes bytea := ''; big jsonb;
BEGIN
  c := idem.claim('payments', 'none');
  IF idem.complete(c.token) IS NOT NULL THEN RAISE 'complete() invented an answer'; END IF;
  FOR i IN 0..255 LOOP bytes := bytes || set_byte('\x00', 0, i); END LOOP;
  c := idem.claim('payments', 'bytes');
  PERFORM idem.complete(c.token, body => bytes);
  SELECT jsonb_agg(md5(i::text)) INTO big FROM generate_series(1, 50000) i;
  c := idem.claim('payments', 'big');
  PERFORM idem.complete(c.token, big);
END $$;
SELECT c.outcome, c.response, c.status, c.headers, c.body FROM idem.claim('payments', 'none') c;
SELECT length(c.body), md5(c.body) FROM idem.claim('payments', 'bytes') c;
SELECT jsonb_array_length(c.response), c.response = (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 50000) i) AS same
  FROM idem.claim('payments', 'big') c;

-- called once per column, a claim meets its own key
SELECT (idem.claim('payments', 'star')).*;
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT outcome FROM idem.try_claim('payments', 'star') UNION ALL SELECT outcome FROM idem.try_claim('payments', 'star');
ROLLBACK;

-- released: nothing is stored; the transaction may claim again, and the old token stays invalid
BEGIN;
SELECT token AS first FROM idem.claim('payments', 'released') \gset
SELECT idem.release(:'first');
SELECT state FROM idem.lookup('payments', 'released');
SELECT token AS second FROM idem.claim('payments', 'released') \gset
SAVEPOINT s;
SELECT idem.complete(:'first', '"first"');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SELECT idem.complete(:'second', '"second"');
COMMIT;
SELECT response FROM idem.claim('payments', 'released');
BEGIN;
SELECT token AS t FROM idem.claim('payments', 'given up') \gset
SELECT idem.release(:'t');
COMMIT;
SELECT state FROM idem.lookup('payments', 'given up');

-- A key is compared byte for byte: the same UUID in another form is another key. Each comes back as
-- it was claimed.
CREATE TEMP TABLE form (n int, key text);
INSERT INTO form VALUES
  (1, 'f47ac10b-58cc-4372-a567-0e02b2c3d479'), (2, 'F47AC10B-58CC-4372-A567-0E02B2C3D479'),
  (3, 'f47ac10b-58cc-4372-a567-0e02b2c3d47A'), (4, 'f47ac10b58cc4372a5670e02b2c3d479'),
  (5, '{f47ac10b-58cc-4372-a567-0e02b2c3d479}'), (6, 'f47ac10b-58cc-4372-a567-0e02b2c3d479 '),
  (7, ' f47ac10b-58cc-4372-a567-0e02b2c3d479'), (8, 'f47a-c10b-58cc-4372-a567-0e02-b2c3-d479'),
  (9, 'f47ac10b-58cc-4372-a567-0e02b2c3d47g'), (10, 'f47ac10b-58cc-4372-a567-0e02b2c3d47'),
  (11, '00000000-0000-0000-0000-000000000000'), (12, 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
  (13, '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d'), (14, '0190B8F3-8C5E-7D2A-9B1C-4F5E6A7B8C9D');
SELECT count(idem.complete(token, to_jsonb(n))) FROM form, idem.claim('payments', key) WHERE n % 3 = 0;
SELECT count(*) FILTER (WHERE idem.once('payments', key)) FROM form WHERE n % 3 = 1;
SELECT count(*) FROM idem.once_each('payments', ARRAY(SELECT key FROM form WHERE n % 3 = 2)) JOIN form ON key = once_each;
SELECT token AS leased FROM idem.claim('payments', 'abcdef01-2345-6789-abcd-ef0123456789', lease => '1 hour') \gset
SELECT n, key, coalesce(response = to_jsonb(n), n % 3 <> 0) AS own, claimed FROM form, idem.try_claim('payments', key) ORDER BY n;
SELECT count(*) AS shown FROM form JOIN idem.records USING (key) WHERE attempt = 1 AND NOT redacted;
SELECT key, attempt FROM idem.records WHERE key LIKE 'abcdef%';
SELECT key, attempt FROM idem.in_flight;
SELECT count(*) FROM idem.records WHERE weakness = idem_internal.key_weakness('00000000-0000-0000-0000-000000000000');
SELECT idem.complete(:'leased', '"leased"');
SELECT response FROM idem.claim('payments', 'abcdef01-2345-6789-abcd-ef0123456789');
SELECT count(*) FILTER (WHERE idem.forget('payments', key)) FROM form;

-- another role of the same transaction may complete the claim: the token is enough
CREATE ROLE idem_regress_other;
GRANT ALL ON payment TO idem_regress_other;
BEGIN;
SELECT token AS t FROM idem.claim('payments', 'set role') \gset
SET LOCAL ROLE idem_regress_other;
SELECT idem.complete(:'t', '"by another role"');
COMMIT;
SELECT response FROM idem.claim('payments', 'set role');

-- a record of another key that has the same digest, forged here, answers no caller
CREATE FUNCTION collide(change text, call text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format($q$ UPDATE idem.record SET %s WHERE tenant = 'a' $q$, change);
  EXECUTE 'SELECT idem.' || call;
  RETURN 'answered';
EXCEPTION WHEN program_limit_exceeded THEN RETURN SQLERRM;
END $$;
SELECT idem.complete(token, '"of a"') FROM idem.claim('payments', 'collision', tenant => 'a');
BEGIN;
UPDATE idem.record SET tenant = 'b' WHERE tenant = 'a';
SELECT response FROM idem.claim('payments', 'collision', tenant => 'a');
ROLLBACK;
\echo :LAST_ERROR_SQLSTATE
SELECT call, collide('scope = scope + 1', call) AS scope, collide($$tenant = 'b'$$, call) AS tenant, collide($$key = 'other'$$, call) AS key, collide('key = key', call) AS same
  FROM unnest(ARRAY[$$claim('payments', 'collision', tenant => 'a')$$, $$try_claim('payments', 'collision', tenant => 'a')$$, $$once('payments', 'collision', tenant => 'a')$$,
    $$once_each('payments', '{collision}', 'a')$$, $$lookup('payments', 'collision', 'a')$$, $$forget('payments', 'collision', 'a')$$]) call;
DROP FUNCTION collide;

REVOKE ALL ON payment FROM idem_regress_other;
DROP ROLE idem_regress_other;
DROP FUNCTION pay;
DROP TABLE payment;
