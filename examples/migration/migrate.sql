-- Starts the migration from your own table of keys to idem, without a pause and without losing a
-- live key (docs/migration.md). Adapt the lines marked ADAPT. Run the script in the database of the
-- table, as a superuser, or as the owner of the table with the privileges to create schemas and to
-- execute idem.create_scope():
--
--   psql --single-transaction -v ON_ERROR_STOP=1 -f migrate.sql
--
-- From the commit of this script on, idem stores every new key. migrate.claim() still finds old
-- keys.

-- ADAPT: if a long transaction delays the script, it fails after this time, so that other callers
-- need not wait behind it. Run it again in that case.
SET LOCAL lock_timeout = '5s';

-- ADAPT: one call for each of your scopes, with the role of your application as the owner
-- (owner => 'shop'). The TTL applies to new keys. Old keys keep their time.
SELECT idem.create_scope('payments', ttl => '1 day');

CREATE SCHEMA migrate;
GRANT USAGE ON SCHEMA migrate TO PUBLIC;

-- ADAPT: your table, with these column names. If it has no tenants, use ''.
CREATE VIEW migrate.old AS
  SELECT scope, tenant, key, request_hash, status, response, expires_at FROM idempotency_key;

-- The fence stops new operations in the old table. CREATE TRIGGER waits for every transaction that
-- has written to the table. Late calls of the old code get 40001, and their retries find the new
-- code.
CREATE FUNCTION migrate.moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'idempotency keys have moved'
    USING ERRCODE = '40001', HINT = 'Retry with the same key.';
END $$;
CREATE TRIGGER moved BEFORE INSERT ON idempotency_key      -- ADAPT: your table
  EXECUTE FUNCTION migrate.moved();

-- A transaction that sees this row also sees everything that was written before the fence.
CREATE TABLE migrate.fence AS SELECT now() AS since;

-- ADAPT: your application's role.
-- GRANT SELECT, DELETE ON migrate.old TO shop; GRANT SELECT ON migrate.fence TO shop;

-- Use this function instead of idem.claim() while the old table has live keys. A retry of an old
-- operation brings its request. If the hash of the request is the stored one, the answer moves to
-- idem, bound to the request and for the rest of its time. Compute request_hash as before; pass
-- NULL if the operation binds no request.
CREATE FUNCTION migrate.claim(scope text, key text, request jsonb, tenant text, request_hash text)
RETURNS idem.claim_result LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  stored migrate.old;
  c idem.claim_result;
  instant timestamptz := clock_timestamp();
BEGIN
  IF NOT EXISTS (SELECT FROM migrate.fence) THEN
    RAISE EXCEPTION 'this transaction began before idempotency keys were moved'
      USING ERRCODE = '40001', HINT = 'Retry the transaction with the same key.';
  END IF;
  tenant := coalesce(tenant, current_setting('idem.tenant', true), '');      -- as idem.claim() does
  -- Look here first and then in idem: a key that moves in between is found there.
  SELECT * INTO stored FROM migrate.old o
   WHERE o.scope = scope AND o.tenant = tenant AND o.key = key AND o.expires_at > instant;
  IF NOT FOUND THEN
    RETURN idem.claim(scope, key, request, tenant);
  ELSIF stored.request_hash IS DISTINCT FROM request_hash THEN
    RAISE EXCEPTION 'key was used for a different request'
      USING ERRCODE = 'ID002', HINT = 'Use a new key for a new operation.';
  ELSIF stored.response IS NULL THEN
    RAISE EXCEPTION 'operation began before idempotency keys were moved, and is not finished'
      USING ERRCODE = 'ID001', HINT = 'Retry later with the same key.';
  END IF;
  c := idem.claim(scope, key, request, tenant, ttl => stored.expires_at - instant);
  IF NOT c.claimed THEN RETURN c; END IF;
  PERFORM idem.complete(c.token, stored.response, stored.status);
  DELETE FROM migrate.old o WHERE o.scope = scope AND o.tenant = tenant AND o.key = key;
  RETURN idem.claim(scope, key, request, tenant);
END $$;

-- Moves up to max_rows live rows that bind no request, and returns how many were moved. Rows that
-- bind a request stay until they are retried or expire, because the request cannot be computed from
-- its hash. Run each call in its own transaction, for at most idem.max_open_claims rows, until it
-- returns 0.
CREATE FUNCTION migrate.move(max_rows integer DEFAULT 1000) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  stored migrate.old;
  c idem.claim_result;
  moved integer := 0;
  instant timestamptz;
BEGIN
  FOR stored IN SELECT * FROM migrate.old
                 WHERE request_hash IS NULL AND response IS NOT NULL
                   AND expires_at > clock_timestamp()
                 LIMIT max_rows FOR UPDATE SKIP LOCKED LOOP
    instant := clock_timestamp();
    CONTINUE WHEN stored.expires_at <= instant;
    c := idem.try_claim(stored.scope, stored.key, NULL, stored.tenant,
                        ttl => stored.expires_at - instant);
    -- Keep the row if idem does not store its key now: a retry is moving it, or idem refuses it
    -- because of a limit of the scope or of the key's age.
    CONTINUE WHEN c.outcome IN ('in_progress', 'limited', 'stale_key');
    IF c.claimed THEN PERFORM idem.complete(c.token, stored.response, stored.status); END IF;
    DELETE FROM migrate.old o
     WHERE o.scope = stored.scope AND o.tenant = stored.tenant AND o.key = stored.key;
    moved := moved + 1;
  END LOOP;
  RETURN moved;
END $$;

-- The number of live keys in the old table, and when the last one expires. When there are none,
-- call idem.claim() instead of migrate.claim(), and then run finish.sql.
CREATE VIEW migrate.remaining AS
  SELECT count(*) AS keys, max(expires_at) AS until FROM migrate.old WHERE expires_at > now();

-- ADAPT: your procedures, in the same transaction.
CREATE OR REPLACE FUNCTION pay(k text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := migrate.claim('payments', k, request, '', md5(request::text));
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(key, amount) VALUES (k, (request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id), 201);
END $$;
