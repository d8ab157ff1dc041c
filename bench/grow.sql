-- What bench/grow adds to the operations of instructions.sql: tables that are filled in bulk, and
-- the report.
\set ON_ERROR_STOP on
SET client_min_messages = warning;

CREATE TABLE bench.measure (
  rows bigint, keys text, operation text, usec float8, cpu_usec float8);

-- The digest that a row of this number and kind might have, and its key. UUIDv7s are older than
-- those that the operations use.
CREATE FUNCTION bench.time_of(i bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT lpad(to_hex(x'0192c0000000'::bigint + i), 12, '0') $$;
CREATE FUNCTION bench.some_digest(keys text, i bigint) RETURNS uuid LANGUAGE sql AS $$
  SELECT CASE keys WHEN 'v7' THEN (bench.time_of(i) || right(md5(i::text), 20))::uuid
                   ELSE gen_random_uuid() END $$;
CREATE FUNCTION bench.some_key(keys text, i bigint) RETURNS text LANGUAGE sql AS $$
  SELECT CASE keys
    WHEN 'v7' THEN overlay((bench.time_of(i) || '7' || right(md5(i::text), 19))::uuid::text
                           PLACING '8' FROM 20 FOR 1)
    ELSE gen_random_uuid()::text END $$;

-- Replaces the rows of both tables. The disk need not hold the old ones beside the new ones, so they
-- go first. Tables that are truncated and filled in one transaction write no WAL if wal_level is
-- minimal. The records are copies of one that idem wrote, but for the digest.
CREATE PROCEDURE bench.fill(rows bigint, keys text) LANGUAGE plpgsql AS $$
DECLARE columns text;
BEGIN
  TRUNCATE idem.record, bench.finished, bench.payment RESTART IDENTITY;
  COMMIT;
  TRUNCATE bench.finished;
  PERFORM idem.complete((idem.claim('payments', gen_random_uuid()::text, '{"amount": 1}')).token,
                        '{"payment": 1}');
  CREATE TEMP TABLE template AS SELECT * FROM idem.record;
  SELECT string_agg(CASE attname WHEN 'digest' THEN 'bench.some_digest($2, i)'
                                 ELSE format('t.%I', attname) END, ', ' ORDER BY attnum)
    INTO columns FROM pg_attribute
   WHERE attrelid = 'idem.record'::regclass AND attnum > 0 AND NOT attisdropped;
  TRUNCATE idem.record;
  ALTER TABLE idem.record DROP CONSTRAINT record_pkey;
  EXECUTE format('INSERT INTO idem.record SELECT %s FROM template t, generate_series(1, $1) i',
                 columns) USING rows, keys;
  ALTER TABLE idem.record ADD CONSTRAINT record_pkey PRIMARY KEY (digest);
  DROP TABLE template;

  ALTER TABLE bench.finished DROP CONSTRAINT finished_pkey;
  INSERT INTO bench.finished
    SELECT '', 'payments', bench.some_key(keys, i), 'completed', '{"payment": 1}', now(), now()
      FROM generate_series(1, rows) i;
  ALTER TABLE bench.finished ADD CONSTRAINT finished_pkey PRIMARY KEY (tenant, scope, key);
END $$;

-- Medians of the rounds; what an operation adds to the bare effect, and a read to an empty loop.
CREATE VIEW bench.cost AS
  WITH median AS (
    SELECT rows, keys, operation, percentile_cont(0.5) WITHIN GROUP (ORDER BY usec) AS usec,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY cpu_usec) AS cpu
      FROM bench.measure GROUP BY 1, 2, 3)
  SELECT rows, keys, max(usec) FILTER (WHERE operation = 'bare') AS bare,
         max(usec) FILTER (WHERE operation = 'insert') AS insert,
         max(usec) FILTER (WHERE operation = 'idem') AS idem,
         max(cpu) FILTER (WHERE operation = 'bare') AS bare_cpu,
         max(cpu) FILTER (WHERE operation = 'insert') AS insert_cpu,
         max(cpu) FILTER (WHERE operation = 'idem') AS idem_cpu,
         max(cpu) FILTER (WHERE operation = 'nothing') AS nothing_cpu,
         max(cpu) FILTER (WHERE operation = 'select') AS select_cpu,
         max(cpu) FILTER (WHERE operation = 'replay') AS replay_cpu,
         max(usec) FILTER (WHERE operation = 'select') AS select,
         max(usec) FILTER (WHERE operation = 'replay') AS replay
    FROM median GROUP BY 1, 2;
