-- execute(): claim, run, complete or remember the failure, in one call.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE SCHEMA execute;
SET search_path = execute;
SELECT idem.create_scope('ops', wait => '0', max_attempts => 1, final_sqlstates => '{P0001,P0042,23,22012,42}');
CREATE TABLE effect (key text, note text);
CREATE TABLE strict_table (id int PRIMARY KEY, parent int REFERENCES strict_table DEFERRABLE);
INSERT INTO strict_table VALUES (1, NULL);
CREATE FUNCTION op(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO effect VALUES (request->>'key', 'tried');
  CASE request->>'do'
    WHEN 'raise' THEN RAISE EXCEPTION 'card declined' USING ERRCODE = request->>'sqlstate', DETAIL = 'Stolen.', HINT = 'Call the bank.';
    WHEN 'unique' THEN INSERT INTO strict_table VALUES (1);
    WHEN 'zero' THEN PERFORM 1 / 0;
    WHEN 'null' THEN RETURN NULL;
    WHEN 'open' THEN PERFORM idem.claim('ops', 'inner');
    ELSE NULL;
  END CASE;
  RETURN jsonb_build_object('paid', request->'amount');
END $$;
CREATE FUNCTION run(key text, request jsonb) RETURNS TABLE (outcome text, replayed boolean, response jsonb, error jsonb, redacted boolean) LANGUAGE sql AS
  $$ SELECT outcome, replayed, response, error, redacted FROM idem.execute('ops', key, 'op(jsonb)', request || jsonb_build_object('key', key)) $$;

-- the first time, and a retry
SELECT * FROM run('pay', '{"amount": 7}');
SELECT * FROM run('pay', '{"amount": 7}');
SELECT * FROM run('null', '{"do": "null"}');
SELECT * FROM run('null', '{"do": "null"}');
SELECT * FROM effect ORDER BY key;

-- final failures: the record is stored, the effect is rolled back, each retry gets the same data
SELECT * FROM run('declined', '{"do": "raise", "sqlstate": "P0001"}');
SELECT * FROM run('declined', '{"do": "raise", "sqlstate": "P0001"}');
SELECT * FROM run('taken', '{"do": "unique"}');
SELECT * FROM run('taken', '{"do": "unique"}');
SELECT * FROM run('zero', '{"do": "zero"}');
SELECT * FROM run('zero', '{"do": "zero"}');
SELECT * FROM effect ORDER BY key;
SELECT key, state, coalesce(attempt, 1) AS attempt, error->>'sqlstate' AS sqlstate FROM idem.record ORDER BY key;
-- claim() raises what execute() stored
\set VERBOSITY verbose
\set SHOW_CONTEXT never
SELECT outcome, error->>'message' AS message FROM idem.try_claim('ops', 'declined', '{"do": "raise", "sqlstate": "P0001", "key": "declined"}');
\set VERBOSITY sqlstate
SELECT idem.claim('ops', 'declined', '{"do": "raise", "sqlstate": "P0001", "key": "declined"}');

-- other failures store nothing, and the retry runs
CREATE FUNCTION attempt(code text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM run('t' || code, jsonb_build_object('do', 'raise', 'sqlstate', code));
  RETURN 'no error';
EXCEPTION WHEN OTHERS OR query_canceled THEN
  RETURN SQLSTATE || ' raised, ' || (SELECT count(*) FROM idem.record WHERE key = 't' || code) || ' records, '
    || (SELECT count(*) FROM effect WHERE key = 't' || code) || ' effects, '
    || (idem.lookup('ops', 't' || code)).state;
END $$;
SELECT attempt(state) FROM unnest(ARRAY['P0002', '22023', '38000', '54001', '42P01', '08006', '25001', '40001', '40P01', '53100', '53200', '55P03', '57014', '58030', '72000', 'XX000', 'ID001', 'ID004', 'ID006', 'ID008', 'ID009', 'ID012']) AS state;
SELECT * FROM run('t40001', '{"amount": 1}');
SELECT note, count(*) FROM effect WHERE key = 't40001' GROUP BY 1;
-- errors that a deployment in progress causes are transient, also those of a listed class: the
-- operation runs again afterwards
CREATE FUNCTION deployed(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  CASE request->>'missing'
    WHEN 'table' THEN INSERT INTO new_table VALUES (1);
    WHEN 'column' THEN UPDATE effect SET new_column = 1;
    WHEN 'function' THEN PERFORM new_function(1);
    WHEN 'schema' THEN EXECUTE 'CREATE TABLE new_schema.t ()';
    WHEN 'type' THEN EXECUTE 'SELECT NULL::new_type';
    WHEN 'constraint' THEN INSERT INTO strict_table VALUES (1) ON CONFLICT (parent) DO NOTHING;
    WHEN 'statement' THEN EXECUTE 'EXECUTE new_statement';
    WHEN 'scope' THEN PERFORM idem.once('new_scope', 'k');
    WHEN 'message' THEN PERFORM idem.advance('ops', 'stream', 1), idem.advance('ops', 'stream', 3, contiguous => true);
  END CASE;
  RETURN '"done"';
END $$;
CREATE FUNCTION attempt_without(missing text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN (idem.execute('ops', missing, 'deployed(jsonb)', jsonb_build_object('missing', missing))).outcome;
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE || ' raised, ' || (idem.lookup('ops', missing)).state;
END $$;
SELECT missing, attempt_without(missing)
  FROM unnest(ARRAY['table', 'column', 'function', 'schema', 'type', 'constraint', 'statement', 'scope', 'message']) missing;
CREATE TABLE new_table (id int);
SELECT attempt_without('table');

-- other outcomes are raised as claim() raises them
SELECT run('pay', '{"amount": 8}');
BEGIN;
SELECT claimed FROM idem.claim('ops', 'held');
SELECT run('held', '{}');
ROLLBACK;
SELECT token AS t FROM idem.claim('ops', 'lost', '{"key": "lost"}', lease => '1 min') \gset
SELECT run('lost', '{}');
UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE key = 'lost';
SELECT run('lost', '{}');

-- an operation that leaves a claim open fails at COMMIT, as any other transaction would
SELECT * FROM run('leaves', '{"do": "open"}');
SELECT state FROM idem.lookup('ops', 'leaves');

-- a missing operation, a missing privilege and a wrong signature are not stored as failures
CREATE ROLE regress_idem_op;
SELECT idem.create_scope('theirs', owner => 'regress_idem_op', final_sqlstates => '{42}');
CREATE FUNCTION secret_op(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '1'::jsonb $$;
REVOKE ALL ON FUNCTION secret_op(jsonb) FROM PUBLIC;
CREATE FUNCTION who(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(current_user::text) $$;
CREATE FUNCTION "Odd ""name"""(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT $1 || '{"odd": true}' $$;
CREATE FUNCTION overloaded(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '"jsonb"'::jsonb $$;
CREATE FUNCTION overloaded(anyelement) RETURNS jsonb LANGUAGE sql AS $$ SELECT '"any"'::jsonb $$;
CREATE SCHEMA closed;
CREATE FUNCTION closed.op(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '1'::jsonb $$;
SELECT 'closed.op(jsonb)'::regprocedure::oid AS closed_op \gset
GRANT USAGE ON SCHEMA execute TO regress_idem_op;
SET ROLE regress_idem_op;
SELECT idem.execute('theirs', 'a', 'secret_op(jsonb)');
SELECT idem.execute('theirs', 'a', :closed_op);
SELECT state FROM idem.lookup('theirs', 'a');
SELECT response FROM idem.execute('theirs', 'who', 'who(jsonb)');
RESET ROLE;
SELECT response FROM idem.execute('ops', 'odd', '"Odd ""name"""(jsonb)', '{"a": 1}');
SELECT response FROM idem.execute('ops', 'overloaded', 'overloaded(jsonb)');
SELECT response FROM idem.execute('ops', 'overloaded any', 'overloaded(anyelement)');
CREATE AGGREGATE agg(jsonb) (sfunc = jsonb_concat, stype = jsonb);
SELECT idem.execute('ops', 'agg', 'agg(jsonb)');

-- inside savepoints and EXCEPTION blocks: the record is rolled back with them
BEGIN;
SAVEPOINT s;
SELECT outcome FROM run('undone', '{"do": "zero"}');
ROLLBACK TO s;
SELECT outcome, replayed FROM run('undone', '{"do": "zero"}');
SELECT outcome, replayed FROM run('undone', '{"do": "zero"}');
COMMIT;
-- in SERIALIZABLE, and nested: an operation that executes another
-- not to_jsonb(), which reads the members' names after it has released the row type
CREATE FUNCTION outer_op(jsonb) RETURNS jsonb LANGUAGE sql AS
  $$ SELECT row_to_json(e)::jsonb - 'completed_at' FROM idem.execute('ops', 'inner', 'op(jsonb)', '{"do": "zero"}') e $$;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outcome, response FROM idem.execute('ops', 'outer', 'outer_op(jsonb)');
COMMIT;
SELECT key, state FROM idem.record WHERE key IN ('inner', 'outer') ORDER BY key;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- an operation that changes scopes
CREATE FUNCTION changes(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.alter_scope('other', request_exclude => '{a}');
  PERFORM idem.once('other', request->>'a');
  RETURN request;
END $$;
SELECT idem.create_scope('other');
SELECT outcome, replayed FROM idem.execute('ops', 'changes 1', 'changes(jsonb)', '{"a": 1}');
SELECT outcome, replayed FROM idem.execute('ops', 'changes 2', 'changes(jsonb)', '{"a": 2}');

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA execute, closed CASCADE;
DROP ROLE regress_idem_op;
