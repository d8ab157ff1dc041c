-- A claim belongs into a function that is VOLATILE: others are called when a query is planned, too. EXPLAIN
-- without ANALYZE only plans, so there it can be seen.
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

-- VOLATILE: nothing runs
EXPLAIN (COSTS OFF) SELECT claims('volatile');
EXPLAIN (COSTS OFF) SELECT FROM outcome WHERE name = claims('volatile');
-- IMMUTABLE: the planner would make a constant of it
ALTER FUNCTION claims(text) IMMUTABLE;
EXPLAIN SELECT claims('immutable');
\echo :SQLSTATE
EXPLAIN (VERBOSE, ANALYZE false) SELECT claims('immutable');
PREPARE planned AS SELECT claims('immutable');
EXPLAIN EXECUTE planned;
-- STABLE: it would estimate with it how many rows there are
ALTER FUNCTION claims(text) STABLE;
EXPLAIN SELECT FROM outcome WHERE name = claims('stable');
-- run, it is accepted: a function is not told how it is declared
-- run, it is accepted: a function is not told how its caller is declared
DO $$
BEGIN
  FOR i IN 1..2 LOOP
    PERFORM FROM outcome WHERE name = claims('run');
  END LOOP;
END $$;
SELECT key, state FROM idem.records ORDER BY key;
-- EXPLAIN ANALYZE runs the query, and everything in it
EXPLAIN (ANALYZE) SELECT claims('analyzed') \g /dev/null
EXPLAIN (ANALYZE false, ANALYZE true) SELECT claims('analyzed too') \g /dev/null
SELECT key, state FROM idem.records ORDER BY key;
-- other functions
EXPLAIN (COSTS OFF) SELECT FROM outcome WHERE name = idem.derive_key('a');
EXPLAIN (COSTS OFF) SELECT idem.once('planned', 'k');

DROP TABLE outcome;
DROP FUNCTION claims;
