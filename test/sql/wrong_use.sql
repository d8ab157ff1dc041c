-- Wrong use is refused with the documented SQLSTATE and stores nothing.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('wrong');
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE state text; message text; detail text; hint text;
BEGIN
  EXECUTE statement;
  RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  RETURN format('%s %s%s', state, message, CASE WHEN state LIKE 'ID%' AND (detail = '' OR hint = '') THEN ' (no detail or hint)' END);
END $$;

-- keys
SELECT attempt(format('SELECT idem.%s(%L, %s)', f, 'wrong', k))
  FROM unnest(ARRAY['claim', 'try_claim', 'lookup']) f,
       unnest(ARRAY['NULL', $$''$$, $$repeat('k', 256)$$, $$repeat('ü', 128)$$]) k;
SELECT attempt($$SELECT idem.lookup('wrong', repeat('k', 255))$$);
SELECT attempt($$SELECT idem.claim('wrong', convert_from('\x6b00', 'UTF8'))$$);
SELECT attempt($$SELECT idem.claim('wrong', convert_from('\xff', 'UTF8'))$$);
SELECT attempt($$SELECT idem.claim('wrong', E'k\xff')$$);

-- scopes
SELECT attempt(format('SELECT idem.%s(%s, %L)', f, s, 'k'))
  FROM unnest(ARRAY['claim', 'try_claim', 'lookup']) f,
       unnest(ARRAY['NULL', $$''$$, $$'wrongly'$$, $$repeat('s', 64)$$]) s;

-- tokens: null, garbage, another key's digits, another session's, finished, older than a savepoint
SELECT attempt(format('SELECT idem.%s', call)) FROM unnest(ARRAY[
  'complete(NULL)', 'fail(NULL, ''{"message": "no"}'')', 'release(NULL)', 'complete('''')', 'complete(''garbage'')',
  'complete(''aaaaaaaaaaaaaaaaaaaaaaaaaa--------(0,999999)'')', 'complete(''aaaaaaaaaaaaaaaaaaaaaaaaaa---(99999999999,1)'')',
  'complete(repeat(''A'', 39))', 'release(repeat(''A'', 39))', 'fail(repeat(''A'', 39), ''{"message": "no"}'')']) call;
BEGIN;
SELECT token AS t FROM idem.claim('wrong', 'twice') \gset
SELECT idem.complete(:'t', '1');
SELECT attempt(format('SELECT idem.complete(%L)', :'t'));
SELECT attempt(format('SELECT idem.fail(%L, ''{"message": "no"}'')', :'t'));
SELECT attempt(format('SELECT idem.release(%L)', :'t'));
COMMIT;
SELECT attempt(format('SELECT idem.complete(%L)', :'t'));
SELECT response FROM idem.claim('wrong', 'twice');
BEGIN;
SAVEPOINT s;
SELECT token AS t FROM idem.claim('wrong', 'stale') \gset
ROLLBACK TO s;
SELECT attempt(format('SELECT idem.complete(%L)', :'t'));
SELECT outcome, token AS t2 FROM idem.try_claim('wrong', 'stale') \gset
\echo :outcome
SELECT attempt(format('SELECT idem.complete(%L)', :'t'));
ROLLBACK;

-- SELECT ... INTO takes one variable per column: expand the result, or assign it whole
SELECT regexp_replace(attempt($$DO $do$ DECLARE c idem.claim_result; BEGIN
  SELECT idem.claim('wrong', 'into') INTO c;
END $do$ $$), '"\(t,claimed,.*', '"(t,claimed,...)"');
SELECT attempt($$DO 'DECLARE c record; BEGIN SELECT idem.claim(''wrong'', ''into'') INTO c; PERFORM c.token; END'$$);
DO $$ DECLARE c idem.claim_result; BEGIN
  c := idem.claim('wrong', 'assigned');
  RAISE NOTICE 'claimed: %, token: %', c.claimed, length(c.token);
  PERFORM idem.release(c.token);
  SELECT * INTO c FROM idem.claim('wrong', 'from');
  RAISE NOTICE 'claimed: %, token: %', c.claimed, length(c.token);
  PERFORM idem.release(c.token);
  SELECT (idem.try_claim('wrong', 'twice')).response INTO c.response;
  RAISE NOTICE 'response: %', c.response;
END $$;

-- types that PostgreSQL does not convert, and what cures it
SELECT attempt($$SELECT idem.claim('wrong', 'types', '{}'::json, tenant => 42, lease => 60)$$);
SELECT claimed FROM idem.claim('wrong', 'types', '{}'::json::jsonb, tenant => 42::text, lease => interval '60 seconds');
SELECT attempt($$SELECT idem.execute('wrong', 'types', 'make_payment')$$);

-- durations
SELECT attempt(format('SELECT idem.claim(%L, %L, %s => %L)', 'wrong', 'k', a, v))
  FROM (VALUES ('ttl', '0'), ('ttl', '-1 s'), ('ttl', '1100 years'), ('ttl', '1 month -30 days'), ('ttl', '178000000 years'),
               ('wait', '-1 us'), ('wait', '2000 years'), ('lease', '0'), ('lease', '-1 us')) x(a, v);

-- the scope's rules
SELECT idem.create_scope('strict', request_required => true, tenant_required => true);
SELECT attempt($$SELECT idem.claim('strict', 'k')$$);
SELECT attempt($$SELECT idem.claim('strict', 'k', '{}')$$);
SELECT attempt($$SELECT idem.claim('strict', 'k', '{}', '')$$);
SELECT attempt($$SELECT idem.claim('strict', 'k', NULL, 't')$$);
SELECT attempt($$SELECT idem.lookup('strict', 'k')$$);
SELECT attempt($$SELECT idem.claim('wrong', 'k', tenant => repeat('t', 256))$$);

-- the order of checks: shape, scope, permission, the scope's rules, conflict, state
CREATE ROLE idem_regress_stranger;
DO $$ DECLARE c idem.claim_result; BEGIN
  c := idem.claim('strict', 'known', '{"a": 1}', 't'); PERFORM idem.complete(c.token, '1');
  c := idem.claim('strict', 'failed', '{"a": 1}', 't'); PERFORM idem.fail(c.token, '{"sqlstate": "P0001", "message": "stored"}');
END $$;
SET ROLE idem_regress_stranger;
SELECT attempt($$SELECT idem.claim('no such scope', '')$$);
SELECT attempt($$SELECT idem.claim('no such scope', 'k', ttl => '0')$$);
SELECT attempt($$SELECT idem.claim('no such scope', 'k')$$);
SELECT attempt($$SELECT idem.claim('strict', 'k')$$);
SELECT attempt($$SELECT idem.claim('strict', 'known', '{"a": 1}', 't')$$);
SELECT attempt($$SELECT idem.try_claim('strict', 'known', '{"a": 1}', 't')$$);
SELECT attempt($$SELECT idem.lookup('strict', 'known', 't')$$);
SELECT attempt($$SELECT idem.purge()$$);
SELECT attempt($$SELECT idem.create_scope('mine')$$);
SELECT attempt('SELECT * FROM idem.' || t) FROM unnest(ARRAY['record', 'scope', 'secret', 'purge_progress', 'scopes']) t;
RESET ROLE;
SELECT attempt($$SELECT idem.claim('strict', 'failed', '{"a": 2}', 't')$$);
SELECT attempt($$SELECT idem.claim('strict', 'failed', '{"a": 1}', 't')$$);
DROP ROLE idem_regress_stranger;

-- transactions that may not write, and places where a claim has no meaning
BEGIN READ ONLY;
SELECT attempt('SELECT idem.' || call) FROM unnest(ARRAY[
  'claim(''wrong'', ''k'')', 'claim(''wrong'', ''twice'')', 'try_claim(''wrong'', ''k'')', 'complete(''t'')', 'fail(''t'', ''{"message": "no"}'')',
  'release(''t'')', 'create_scope(''s'')', 'purge()', 'lookup(''wrong'', ''k'')']) call;
COMMIT;
CREATE TABLE indexed (i int);
CREATE FUNCTION claims(i int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT outcome FROM idem.try_claim('wrong', 'index') $$;
INSERT INTO indexed VALUES (1);
SELECT attempt('CREATE INDEX ON indexed (claims(i))');
DROP TABLE indexed;
DROP FUNCTION claims;

-- parallel workers share their leader's locks: refused, even if the function is labelled safe
CREATE FUNCTION mislabelled() RETURNS text PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN RETURN (SELECT outcome FROM idem.try_claim('wrong', 'parallel')); END $$;
SELECT set_config(CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'force_parallel_mode' ELSE 'debug_parallel_query' END, 'on', false) \gset ignored_
\set VERBOSITY terse
SELECT mislabelled();
\set VERBOSITY default
\echo :LAST_ERROR_SQLSTATE
SELECT set_config(CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'force_parallel_mode' ELSE 'debug_parallel_query' END, 'off', false) \gset ignored_
DROP FUNCTION mislabelled;

-- an open claim does not commit: not alone, not in a procedure, not prepared
SELECT idem.claim('wrong', 'open');
\echo :LAST_ERROR_SQLSTATE
CREATE PROCEDURE forgets() LANGUAGE plpgsql AS $$ BEGIN PERFORM idem.claim('wrong', 'open'); COMMIT; END $$;
CALL forgets();
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT outcome FROM idem.claim('wrong', 'open');
PREPARE TRANSACTION 'idem_regress';
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT outcome FROM idem.claim('wrong', 'open');
COMMIT;
\echo :LAST_ERROR_SQLSTATE
-- a block in one message
BEGIN \; SELECT outcome FROM idem.claim('wrong', 'open') \; COMMIT;
DROP PROCEDURE forgets;

-- a transaction may hold only so many key locks; replays and failures do not count
SET idem.max_open_claims = 3;
BEGIN;
SELECT count(idem.claim('wrong', 'cap' || i)) FROM generate_series(1, 2) i;
SELECT outcome FROM idem.claim('wrong', 'twice');
SELECT outcome FROM idem.try_claim('wrong', 'cap3');
SELECT attempt($$SELECT idem.try_claim('wrong', 'cap4')$$);
SELECT attempt($$SELECT idem.claim('wrong', 'cap4')$$);
SELECT outcome FROM idem.claim('wrong', 'twice');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;
RESET idem.max_open_claims;

-- none of the above was stored
SELECT key, state FROM idem.record ORDER BY key COLLATE "C";
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
DROP FUNCTION attempt;
