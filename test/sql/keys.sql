-- Keys that idem makes.
DROP EXTENSION idem;
CREATE EXTENSION idem;

-- new_key: UUIDv7, ascending, with the clock's time
SELECT bool_and(key ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$') AS uuid_v7,
       bool_and(key COLLATE "C" > previous COLLATE "C") AS ascending, count(DISTINCT right(key, 12)) AS random
  FROM (SELECT key, lag(key) OVER (ORDER BY i) AS previous FROM (SELECT i, idem.new_key() AS key FROM generate_series(1, 10000) i) made) pairs;
SELECT ('x0000' || translate(left(idem.new_key(), 13), '-', ''))::bit(64)::bigint
       - floor(extract(epoch FROM clock_timestamp()) * 1000) BETWEEN -3600000 AND 3600000 AS of_now;
BEGIN READ ONLY;
SELECT length(idem.new_key());
COMMIT;

-- derive_key: SHA-256 of length-prefixed parts, unambiguous
SELECT idem.derive_key('order', '42ü') = encode(sha256('\x000000056f7264657200000004' || convert_to('42ü', 'UTF8')), 'hex') AS as_documented;
-- printf '\0\0\0\5order\0\0\0\00442\303\274' | sha256sum
SELECT idem.derive_key('order', '42ü');
SELECT idem.derive_key('') = encode(sha256('\x00000000'), 'hex') AS as_documented;
SELECT count(DISTINCT idem.derive_key(VARIADIC parts)), count(*)
  FROM (VALUES ('{a,bc}'::text[]), ('{ab,c}'), ('{abc}'), ('{abc,""}'), ('{"",abc}'), ('{""}'), ('{"",""}'), ('{"a,bc"}'), ('{bc,a}'), ('{a,b,c}'), ('{a,"",bc}'), ('{A,bc}'), ('{"a,",bc}')) x(parts);
SELECT idem.derive_key('a', 'bc') = idem.derive_key(VARIADIC '[7:8]={a,bc}') AS bounds_do_not_count;
SELECT length(idem.derive_key(repeat('x', 1000000), 'y')), idem.derive_key(repeat('x', 3000000)) <> idem.derive_key(repeat('x', 2999999)) AS whole;
\set VERBOSITY sqlstate
SELECT idem.derive_key();
\set VERBOSITY default
SELECT idem.derive_key(VARIADIC '{}');
SELECT idem.derive_key(VARIADIC '{{a,b},{c,d}}');
SELECT idem.derive_key('a', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.derive_key(VARIADIC NULL);
\echo :LAST_ERROR_SQLSTATE
-- usable where an immutable function is required
CREATE TABLE event (source text NOT NULL, number text NOT NULL, key text GENERATED ALWAYS AS (idem.derive_key(source, number)) STORED UNIQUE);
INSERT INTO event VALUES ('bank', '7') RETURNING key = idem.derive_key('bank', '7') AS same;
DROP TABLE event;

-- the same in every database, whatever its encoding
SELECT idem.derive_key('M' || chr(252) || 'ller', chr(223)) AS utf8_key, current_database() AS here \gset
CREATE DATABASE idem_regress_latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0;
\c idem_regress_latin1
CREATE EXTENSION idem;
SELECT octet_length('M' || chr(252) || 'ller') AS bytes, idem.derive_key('M' || chr(252) || 'ller', chr(223)) = :'utf8_key' AS same;
\c :here
DROP DATABASE idem_regress_latin1;

-- child_key: the same for the same step of the same operation, in every attempt
SELECT idem.create_scope('orders');
SELECT idem.create_scope('other');
BEGIN;
SAVEPOINT first_attempt;
SELECT idem.child_key(token, 'charge') AS charge, token AS first_token FROM idem.claim('orders', 'k', tenant => 't') \gset
ROLLBACK TO first_attempt;
SELECT idem.child_key(token, 'charge') = :'charge' AS same, token <> :'first_token' AS another_attempt, token AS second_token
  FROM idem.claim('orders', 'k', tenant => 't') \gset retry_
SELECT :'retry_same' AS same, :'retry_another_attempt' AS another_attempt;
SELECT :'charge' ~ '^[0-9a-f]{64}$' AS shape;
SELECT count(DISTINCT key), count(*) FROM (
  SELECT idem.child_key(:'retry_second_token', step) FROM unnest(ARRAY['charge', 'charge ', 'Charge', 'refund', repeat('x', 255)]) step
  UNION ALL SELECT idem.child_key(token, 'charge') FROM idem.claim('orders', 'k2', tenant => 't')
  UNION ALL SELECT idem.child_key(token, 'charge') FROM idem.claim('orders', 'k', tenant => 't2')
  UNION ALL SELECT idem.child_key(token, 'charge') FROM idem.claim('other', 'k', tenant => 't')) x(key);
SAVEPOINT refused;
SELECT idem.child_key(:'first_token', 'charge') AS of_a_claim_that_was_rolled_back;
ROLLBACK TO refused;
-- A caller who knows the key can compute all of a token but its random bits. That is no token.
SELECT idem.child_key(left(:'retry_second_token', 28) || CASE substr(:'retry_second_token', 29, 10) WHEN 'AAAAAAAAAA' THEN 'BAAAAAAAAA' ELSE 'AAAAAAAAAA' END || right(:'retry_second_token', 6), 'charge') AS of_a_token_that_was_made_up;
ROLLBACK;
BEGIN;
SELECT token AS third_token FROM idem.claim('orders', 'k', tenant => 't') \gset
SELECT idem.complete(:'third_token');
SELECT idem.child_key(:'third_token', 'charge') = :'charge' AS of_a_finished_claim;
COMMIT;
SELECT idem.child_key(:'third_token', 'charge') AS of_a_claim_that_is_committed;
\echo :LAST_ERROR_SQLSTATE
SELECT idem.child_key(NULL, 'charge');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.child_key('banana', 'charge');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.child_key(token, NULL) FROM idem.claim('orders', 'wrong');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.child_key(token, '') FROM idem.claim('orders', 'wrong');
SELECT idem.child_key(token, repeat('x', 256)) FROM idem.claim('orders', 'wrong');
\echo :LAST_ERROR_SQLSTATE
-- of a leased claim too, in any transaction and every attempt
SELECT token AS leased FROM idem.claim('orders', 'leased', lease => '1 hour') \gset
SELECT idem.child_key(:'leased', 'charge') AS charge \gset
SELECT idem.release(:'leased');
SELECT attempt, idem.child_key(token, 'charge') = :'charge' AS same, token AS second FROM idem.claim('orders', 'leased', lease => '1 hour') \gset leased_
SELECT :'leased_attempt' AS attempt, :'leased_same' AS same;
BEGIN READ ONLY;
SELECT idem.child_key(:'leased', 'charge') = :'charge' AS of_an_old_attempt_and_read_only;
COMMIT;
BEGIN;
SELECT idem.child_key(token, 'charge') = :'charge' AS of_another_key FROM idem.claim('orders', 'leased 2');
ROLLBACK;
-- for roles that may use the scope
CREATE ROLE test_stranger;
SET ROLE test_stranger;
SELECT idem.child_key(:'leased', 'charge');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
DROP ROLE test_stranger;

-- current_key: the key of the newest open claim, through savepoints
CREATE TABLE effect (id int, key text DEFAULT idem.current_key());
INSERT INTO effect VALUES (0) RETURNING key;
BEGIN;
SELECT token AS outer FROM idem.claim('orders', 'outer', tenant => 't') \gset
INSERT INTO effect VALUES (1);
SELECT token AS inner FROM idem.claim('other', 'inner') \gset
INSERT INTO effect VALUES (2);
SAVEPOINT s;
SELECT outcome FROM idem.claim('orders', 'undone');
SELECT idem.current_key();
ROLLBACK TO s;
SELECT idem.current_key();
SAVEPOINT s;
SELECT idem.complete(:'inner');
SELECT idem.current_key();
ROLLBACK TO s;
SELECT idem.current_key();
SELECT idem.release(:'inner');
INSERT INTO effect VALUES (3);
SELECT idem.complete(:'outer');
INSERT INTO effect VALUES (4);
-- a replay is not a claim
SELECT outcome FROM idem.claim('orders', 'outer', tenant => 't');
SELECT idem.current_key();
COMMIT;
SELECT idem.current_key();
SELECT * FROM effect ORDER BY id;
DROP TABLE effect;
-- of a leased claim only in the transaction that claims it or resumes it
SELECT idem.current_key();
BEGIN;
SELECT idem.renew(:'leased_second') > now() AS renewed, idem.current_key();
COMMIT;
SELECT idem.current_key();
-- and not after its end
BEGIN;
SELECT idem.complete(:'leased_second');
SELECT idem.current_key();
ROLLBACK;
-- a parallel worker does not answer for its leader, even if the function is labelled parallel safe
CREATE FUNCTION mislabelled() RETURNS text PARALLEL SAFE LANGUAGE plpgsql AS $$ BEGIN RETURN idem.current_key(); END $$;
SELECT set_config(CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'force_parallel_mode' ELSE 'debug_parallel_query' END, 'on', false) \gset ignored_
SELECT mislabelled();
\echo :LAST_ERROR_SQLSTATE
SELECT set_config(CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'force_parallel_mode' ELSE 'debug_parallel_query' END, 'off', false) \gset ignored_
DROP FUNCTION mislabelled;
-- A key of type uuid means the same key as its text, in every function.
-- What has no type is a text.
SELECT idem.create_scope('uuids');
CREATE FUNCTION answer(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '"never run"'::jsonb $$;
CREATE DOMAIN order_id AS uuid;
SELECT idem.complete(token, '42') FROM idem.claim('uuids', '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d'::uuid);
CREATE FUNCTION resolve(call text, argument text, OUT result text) LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE 'SELECT ' || replace(call, '?', argument) INTO result;
EXCEPTION WHEN OTHERS THEN
  result := SQLSTATE;
END $$;
SELECT given, claim, try_claim, execute, lookup, cancel, once
  FROM unnest(ARRAY['%L', '%L::text', '%L::varchar', '%L::char(36)', '%L::name', '%L::uuid', 'upper(%L)::uuid',
                    '%L::order_id', 'NULL', 'NULL::uuid']) AS given,
       format(given, '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d') AS argument,
       resolve($$response FROM idem.claim('uuids', ?)$$, argument) AS claim,
       resolve($$response FROM idem.try_claim('uuids', ?)$$, argument) AS try_claim,
       resolve($$response FROM idem.execute('uuids', ?, 'answer(jsonb)')$$, argument) AS execute,
       resolve($$response FROM idem.lookup('uuids', key => ?)$$, argument) AS lookup,
       resolve($$response FROM idem.cancel('uuids', ?, NULL)$$, argument) AS cancel,
       resolve($$idem.once('uuids', ?)$$, argument) AS once;
-- a parameter without a type, as drivers send it
PREPARE claim AS SELECT response FROM idem.claim('uuids', $1);
PREPARE try_claim AS SELECT response FROM idem.try_claim($1, $2);
PREPARE execute AS SELECT response FROM idem.execute('uuids', $1, 'answer(jsonb)');
PREPARE lookup AS SELECT response FROM idem.lookup('uuids', $1);
PREPARE cancel AS SELECT response FROM idem.cancel('uuids', $1);
PREPARE once AS SELECT idem.once('uuids', key => $1);
PREPARE of_uuid(uuid) AS SELECT response FROM idem.claim('uuids', $1);
SELECT name, parameter_types FROM pg_prepared_statements ORDER BY name;
EXECUTE claim('0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d');
EXECUTE try_claim('uuids', '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d');
EXECUTE of_uuid('0190B8F3-8C5E-7D2A-9B1C-4F5E6A7B8C9D');
DEALLOCATE ALL;
-- columns, generic plans and a constant that is kept from call to call
CREATE TABLE orders AS SELECT md5(i::text)::uuid AS id FROM generate_series(1, 3) i;
SELECT count(*) FILTER (WHERE idem.once('uuids', id)), count(*) FILTER (WHERE idem.once('uuids', id::text)) FROM orders;
SELECT DISTINCT l.response FROM generate_series(1, 3), idem.lookup('uuids', '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d'::uuid) l;
-- arrays of either type, and what administrators call
SELECT array_agg(k), pg_typeof(min(k)) FROM idem.once_each('uuids', '{a, b, a}') k;
SELECT pg_typeof(k), count(*) FROM idem.once_each('uuids', (SELECT array_agg(gen_random_uuid()) || array_agg(id) FROM orders)) k GROUP BY 1;
PREPARE once_each AS SELECT idem.once_each('uuids', $1);
SELECT parameter_types FROM pg_prepared_statements WHERE name = 'once_each';
DEALLOCATE once_each;
SELECT bool_and(idem.erase('uuids', id)), bool_or(idem.revoke('uuids', id)), bool_and(idem.forget('uuids', id)) FROM orders;
-- another type is most likely another argument
SELECT given, resolve($$idem.lookup('uuids', ?)$$, given), resolve($$idem.once_each('uuids', ARRAY[?])$$, given)
  FROM unnest(ARRAY['4711', '''{"a": 1}''::jsonb', '''1 day''::interval', '''\x00''::bytea']) AS given;
SELECT idem.claim('uuids', 4711);
DROP TABLE orders;
DROP FUNCTION answer, resolve;
DROP DOMAIN order_id;
