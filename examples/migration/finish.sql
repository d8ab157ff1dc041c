-- The end of the migration: see docs/migration.md, step 7. Adapt what is marked ADAPT, and run it as
-- migrate.sql was run, when no procedure calls migrate.claim() any more:
--
--   psql --single-transaction -v ON_ERROR_STOP=1 -f finish.sql
--
-- It refuses while the old table has live keys. Nothing is dropped with CASCADE: the fence stays until
-- the table itself goes, and what else depends on either is an error, not a loss.

-- Waits for calls of migrate.claim() that are still running, as they read the table.
SET LOCAL lock_timeout = '5s';
LOCK TABLE idempotency_key IN ACCESS EXCLUSIVE MODE;      -- ADAPT: your table

DO $$
DECLARE remaining migrate.remaining;
BEGIN
  SELECT * INTO remaining FROM migrate.remaining;
  IF remaining.keys > 0 THEN
    RAISE EXCEPTION '% keys of the old table are alive', remaining.keys
      USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = format('The last one expires at %s.', remaining.until),
            HINT = 'Run this again after that.';
  END IF;
END $$;

DROP VIEW migrate.remaining, migrate.old;
DROP TABLE idempotency_key;      -- ADAPT: your table; the trigger goes with it
DROP FUNCTION migrate.claim, migrate.move, migrate.moved;
DROP TABLE migrate.fence;
DROP SCHEMA migrate;
