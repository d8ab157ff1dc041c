-- Ends the migration (docs/migration.md, step 7). Adapt the lines marked ADAPT. When no procedure
-- calls migrate.claim() any more, run this script with the same role as migrate.sql:
--
--   psql -f finish.sql
--
-- The script fails while the old table has live keys. It does not use CASCADE: the fence stays
-- until the table is dropped, and an object that depends on either one causes an error and is not
-- lost.
\set ON_ERROR_STOP on
BEGIN ISOLATION LEVEL READ COMMITTED;

-- Waits for running calls of migrate.claim(), because they read the table.
SET LOCAL lock_timeout = '5s';
LOCK TABLE idempotency_key IN ACCESS EXCLUSIVE MODE;      -- ADAPT: your table

DO $$
DECLARE remaining migrate.remaining;
BEGIN
  SELECT * INTO remaining FROM migrate.remaining;
  IF remaining.keys > 0 THEN
    RAISE EXCEPTION 'old table has live keys'
      USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = format('It has %s; the last one expires at %s.',
                            remaining.keys, remaining.until),
            HINT = 'Run this script again after that time.';
  END IF;
  IF EXISTS (SELECT FROM pg_proc WHERE prosrc ~* '\mmigrate\s*\.\s*claim\M'
                AND pronamespace <> 'migrate'::regnamespace) THEN
    RAISE EXCEPTION 'a procedure still calls migrate.claim()'
      USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Replace it with idem.claim() in every procedure.';
  END IF;
END $$;

DROP VIEW migrate.remaining, migrate.old;
DROP TABLE idempotency_key;      -- ADAPT: your tables; this also drops their triggers
DROP FUNCTION migrate.claim, migrate.move, migrate.rest, migrate.moved;
DROP TABLE migrate.fence;
DROP SCHEMA migrate;
COMMIT;
