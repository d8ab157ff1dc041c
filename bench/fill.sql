-- Fills the three tables with :rows rows that no operation asks for, with random (UUIDv4) keys, and
-- then builds the primary keys.
\set ON_ERROR_STOP on
SET client_min_messages = warning;
SET maintenance_work_mem = '1GB';
SET synchronous_commit = off;
TRUNCATE idem.record, bench.finished, bench.recipe, bench.payment;
ALTER TABLE idem.record DROP CONSTRAINT record_pkey;
ALTER TABLE bench.finished DROP CONSTRAINT finished_pkey;
ALTER TABLE bench.recipe DROP CONSTRAINT recipe_pkey;
DROP INDEX bench.recipe_expires_at_idx;
INSERT INTO idem.record (digest, created, expires, scope, state, tenant, key_uuid, fingerprint, response)
  SELECT gen_random_uuid(), now(), now() + interval '1 day', 1, 'c', '', gen_random_uuid(),
         '\x020100000000000000000000000000000000', jsonb_build_object('payment', i)
    FROM generate_series(1, :rows) i;
INSERT INTO bench.finished
  SELECT '', 'payments', gen_random_uuid()::text, md5(i::text), jsonb_build_object('payment', i), now(), now() + interval '1 day'
    FROM generate_series(1, :rows) i;
INSERT INTO bench.recipe
  SELECT '', 'payments', gen_random_uuid()::text, md5(i::text), 'finished', jsonb_build_object('payment', i), now(), now() + interval '1 day'
    FROM generate_series(1, :rows) i;
ALTER TABLE idem.record ADD CONSTRAINT record_pkey PRIMARY KEY (digest);
ALTER TABLE bench.finished ADD CONSTRAINT finished_pkey PRIMARY KEY (tenant, scope, key);
ALTER TABLE bench.recipe ADD CONSTRAINT recipe_pkey PRIMARY KEY (tenant, scope, key);
CREATE INDEX recipe_expires_at_idx ON bench.recipe (expires_at);
VACUUM ANALYZE;
