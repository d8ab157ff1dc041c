-- From a table of one's own to idem, without losing a live key and without a pause: see docs/migration.md.
-- Adapt what is marked ADAPT. Run it in the database of the table, as a superuser, or as the table's owner
-- who may create schemas and execute idem.create_scope():
--
--   psql --single-transaction -v ON_ERROR_STOP=1 -f migrate.sql
--
-- From its commit on, idem stores every new key, and migrate.claim() still finds the old ones.

-- ADAPT: give up rather than make everybody wait behind a long transaction, and run it again.
SET LOCAL lock_timeout = '5s';

-- ADAPT: one call for every scope of yours, with the role of your application as its owner
-- (owner => 'shop'). Its TTL is for new keys; old ones keep their time.
SELECT idem.create_scope('payments', ttl => '1 day');

CREATE SCHEMA migrate;
GRANT USAGE ON SCHEMA migrate TO PUBLIC;

-- ADAPT: your table, under these names; the tenant is '' where there is none.
CREATE VIEW migrate.old AS
  SELECT scope, tenant, key, request_hash, status, response, expires_at FROM idempotency_key;

-- The fence: nothing is begun in the old table any more. CREATE TRIGGER waits for every transaction that
-- wrote to it. Calls of the old code that come too late are told to try again, and find the new code.
CREATE FUNCTION migrate.moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'idempotency keys have moved' USING ERRCODE = '40001', HINT = 'Retry with the same key.';
END $$;
CREATE TRIGGER moved BEFORE INSERT ON idempotency_key EXECUTE FUNCTION migrate.moved();      -- ADAPT: your table

-- Whoever sees this row sees all that was written before the fence.
CREATE TABLE migrate.fence AS SELECT now() AS since;

-- ADAPT: your application's role.
-- GRANT SELECT, DELETE ON migrate.old TO shop; GRANT SELECT ON migrate.fence TO shop;

-- As idem.claim(), for as long as the old table has live keys. A retry of an old operation brings its
-- request along: when its hash is the old one, the answer moves to idem, bound to the request and for
-- the rest of its time. request_hash is computed as it always was; NULL if no request is bound.
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
  tenant := coalesce(tenant, current_setting('idem.tenant', true), '');      -- as idem.claim() takes it
  -- First here, then in idem: what was moved in between is found there.
  SELECT * INTO stored FROM migrate.old o
   WHERE o.scope = scope AND o.tenant = tenant AND o.key = key AND o.expires_at > instant;
  IF NOT FOUND THEN
    RETURN idem.claim(scope, key, request, tenant);
  ELSIF stored.request_hash IS DISTINCT FROM request_hash THEN
    RAISE EXCEPTION 'key was used for a different request'
      USING ERRCODE = 'ID002', HINT = 'Use a new key for a new operation.';
  ELSIF stored.response IS NULL THEN
    RAISE EXCEPTION 'operation was begun before idempotency keys were moved, and is not finished'
      USING ERRCODE = 'ID001', HINT = 'Retry later with the same key.';
  END IF;
  c := idem.claim(scope, key, request, tenant, ttl => stored.expires_at - instant);
  IF NOT c.claimed THEN RETURN c; END IF;
  PERFORM idem.complete(c.token, stored.response, stored.status);
  DELETE FROM migrate.old o WHERE o.scope = scope AND o.tenant = tenant AND o.key = key;
  RETURN idem.claim(scope, key, request, tenant);
END $$;

-- Moves up to so many live rows that bind no request, and returns how many. Those that bind one wait for
-- their retry or their end: a hash can't be turned into the request that idem would bind. One
-- transaction a call, at most idem.max_open_claims rows; call it until it returns 0.
CREATE FUNCTION migrate.move(max_rows integer DEFAULT 1000) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  stored migrate.old;
  c idem.claim_result;
  moved integer := 0;
  instant timestamptz;
BEGIN
  FOR stored IN SELECT * FROM migrate.old
                 WHERE request_hash IS NULL AND response IS NOT NULL AND expires_at > clock_timestamp()
                 LIMIT max_rows FOR UPDATE SKIP LOCKED LOOP
    instant := clock_timestamp();
    CONTINUE WHEN stored.expires_at <= instant;
    c := idem.try_claim(stored.scope, stored.key, NULL, stored.tenant, ttl => stored.expires_at - instant);
    -- A row stays until idem knows its key: a retry is moving it, or a limit or the key's age keeps it out.
    CONTINUE WHEN c.outcome IN ('in_progress', 'limited', 'stale_key');
    IF c.claimed THEN PERFORM idem.complete(c.token, stored.response, stored.status); END IF;
    DELETE FROM migrate.old o WHERE o.scope = stored.scope AND o.tenant = stored.tenant AND o.key = stored.key;
    moved := moved + 1;
  END LOOP;
  RETURN moved;
END $$;

-- How many live keys are in the old table still, and until when. At 0, call idem.claim() instead of
-- migrate.claim(), then run finish.sql.
CREATE VIEW migrate.remaining AS
  SELECT count(*) AS keys, max(expires_at) AS until FROM migrate.old WHERE expires_at > now();

-- ADAPT: your procedures, in this same transaction.
CREATE OR REPLACE FUNCTION pay(k text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := migrate.claim('payments', k, request, '', md5(request::text));
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(key, amount) VALUES (k, (request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id), 201);
END $$;
