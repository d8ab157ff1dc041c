-- Savepoints and EXCEPTION blocks at any depth: a claim is undone and kept together with its work.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('savepoints');
CREATE FUNCTION state(key text) RETURNS text LANGUAGE sql AS $$ SELECT state FROM idem.lookup('savepoints', key) $$;

-- claimed in a block that fails: as if never claimed; in one that succeeds: the parent has the claim
DO $$
DECLARE c idem.claim_result;
BEGIN
  BEGIN
    c := idem.claim('savepoints', 'block');
    RAISE 'no';
  EXCEPTION WHEN OTHERS THEN RAISE NOTICE 'after the block: %', state('block');
  END;
  BEGIN
    c := idem.claim('savepoints', 'block');
    BEGIN
      PERFORM idem.complete(c.token, '"inner"');
      RAISE NOTICE 'completed: %', state('block');
      RAISE 'no';
    EXCEPTION WHEN OTHERS THEN RAISE NOTICE 'completion undone: %', state('block');
    END;
  EXCEPTION WHEN OTHERS THEN RAISE;
  END;
  PERFORM idem.complete(c.token, '"outer"');
END $$;
SELECT response FROM idem.claim('savepoints', 'block');

-- a committed subtransaction within one that is rolled back
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT token AS t FROM idem.claim('savepoints', 'deep') \gset
SAVEPOINT c;
SELECT idem.complete(:'t', '1');
RELEASE SAVEPOINT c;
RELEASE SAVEPOINT b;
SELECT state('deep');
ROLLBACK TO a;
SELECT state('deep');
SELECT token AS t FROM idem.claim('savepoints', 'deep') \gset
SAVEPOINT d;
SELECT idem.release(:'t');
ROLLBACK TO d;
SELECT idem.complete(:'t', '2');
COMMIT;
SELECT response FROM idem.claim('savepoints', 'deep');

-- completed in a committed subtransaction within one that is rolled back: open again
BEGIN;
SELECT token AS t FROM idem.claim('savepoints', 'reopened') \gset
SAVEPOINT a;
SAVEPOINT b;
SELECT idem.complete(:'t', '1');
RELEASE SAVEPOINT b;
ROLLBACK TO a;
SELECT state('reopened');
COMMIT;
\echo :LAST_ERROR_SQLSTATE
SELECT state('reopened');

-- an open claim that a rollback removed does not prevent the commit
BEGIN;
SAVEPOINT a;
SELECT outcome FROM idem.claim('savepoints', 'gone');
ROLLBACK TO a;
COMMIT;
SELECT state('gone');

-- fetched through a cursor that is older than the savepoint
BEGIN;
DECLARE cur CURSOR FOR SELECT outcome FROM idem.claim('savepoints', 'cursor');
SAVEPOINT a;
FETCH cur;
ROLLBACK TO a;
SELECT state('cursor');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT outcome, token AS t FROM idem.claim('savepoints', 'cursor') \gset
SELECT idem.complete(:'t', '"again"');
COMMIT;
SELECT response FROM idem.claim('savepoints', 'cursor');

-- many levels, many claims
DO $$
DECLARE tokens text[]; c idem.claim_result;
BEGIN
  FOR i IN 1..300 LOOP
    BEGIN
      c := idem.claim('savepoints', 'many' || i);
      tokens := tokens || c.token;
      IF i % 3 = 0 THEN RAISE 'undo'; END IF;
      IF i % 3 = 1 THEN PERFORM idem.complete(c.token, to_jsonb(i)); END IF;
    EXCEPTION WHEN raise_exception THEN NULL;
    END;
  END LOOP;
  FOR i IN 1..300 LOOP
    CONTINUE WHEN i % 3 <> 2;
    PERFORM idem.release(tokens[i]);
  END LOOP;
END $$;
SELECT count(*), count(*) FILTER (WHERE response = to_jsonb(replace(key, 'many', '')::int)) FROM idem.record WHERE key LIKE 'many%';
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- a transaction that rolls back claim after claim keeps no memory of them
CREATE PROCEDURE undo(n int) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..n LOOP
    BEGIN
      PERFORM idem.claim('savepoints', 'undone' || i, '{}', tenant => 't');
      PERFORM idem.once_each('savepoints', ARRAY['undone too']);
      RAISE 'undo';
    EXCEPTION WHEN raise_exception THEN NULL;
    END;
  END LOOP;
END $$;
CREATE FUNCTION kept() RETURNS bigint LANGUAGE sql AS
  $$ SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'TopTransactionContext' $$;
BEGIN;
CALL undo(10);
SELECT kept() AS before \gset
CALL undo(1000);
SELECT kept() - :before < 10000 AS little;
COMMIT;
DROP PROCEDURE undo;
DROP FUNCTION kept;
DROP FUNCTION state;
