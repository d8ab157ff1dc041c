-- A function that claims must be VOLATILE: the planner may call others. EXPLAIN without ANALYZE only
-- plans, so it shows which functions the planner calls.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('planned');
\set SHOW_CONTEXT never

CREATE FUNCTION claims(key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('planned', key);
  IF c.claimed THEN PERFORM idem.complete(c.token); END IF;
  RETURN c.outcome;
END $$;
CREATE TABLE outcome AS SELECT 'claimed' AS name;
ANALYZE outcome;

-- VOLATILE: the planner does not call it
EXPLAIN (COSTS OFF) SELECT claims('volatile');
EXPLAIN (COSTS OFF) SELECT FROM outcome WHERE name = claims('volatile');
-- IMMUTABLE: the planner would fold it into a constant
ALTER FUNCTION claims(text) IMMUTABLE;
EXPLAIN SELECT claims('immutable');
\echo :SQLSTATE
EXPLAIN (VERBOSE, ANALYZE false) SELECT claims('immutable');
PREPARE planned AS SELECT claims('immutable');
EXPLAIN EXECUTE planned;
-- STABLE: the planner would call it to estimate the number of rows
ALTER FUNCTION claims(text) STABLE;
EXPLAIN SELECT FROM outcome WHERE name = claims('stable');
-- executed, it is accepted: a function does not learn how it is declared
-- executed, it is accepted: a function does not learn how its caller is declared
DO $$
BEGIN
  FOR i IN 1..2 LOOP
    PERFORM FROM outcome WHERE name = claims('run');
  END LOOP;
END $$;
SELECT key, state FROM idem.records ORDER BY key;
-- EXPLAIN ANALYZE runs the query and the functions in it
EXPLAIN (ANALYZE) SELECT claims('analyzed') \g /dev/null
EXPLAIN (ANALYZE false, ANALYZE true) SELECT claims('analyzed too') \g /dev/null
SELECT key, state FROM idem.records ORDER BY key;
-- the other functions
EXPLAIN (COSTS OFF) SELECT FROM outcome WHERE name = idem.derive_key('a');
EXPLAIN (COSTS OFF) SELECT idem.once('planned', 'k');

DROP TABLE outcome;
DROP FUNCTION claims;
