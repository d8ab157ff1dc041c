-- Starts the migration from your own table of keys to idem, without a pause and without losing a
-- live key (docs/migration.md). Adapt the lines marked ADAPT. Run the script in the database of the
-- table, as a superuser, or as the owner of the table with the privileges to create schemas and to
-- execute idem.create_scope(), who has the privileges of the role that it gives the scopes to:
--
--   psql -f migrate.sql
--
-- It is one transaction. From its commit on, idem stores every new key. migrate.claim() still finds
-- old keys.
\set ON_ERROR_STOP on

-- Each statement has to see what was committed before the fence.
BEGIN ISOLATION LEVEL READ COMMITTED;

-- ADAPT: if a long transaction delays the script, it fails after this time, so that other callers
-- need not wait behind it. Run it again in that case.
SET LOCAL lock_timeout = '5s';

-- ADAPT: one call for each of your scopes, with the role of your application as the owner
-- (owner => 'shop'). The TTL applies to new keys. Old keys keep their time.
SELECT idem.create_scope('payments', ttl => '1 day');

CREATE SCHEMA migrate;
GRANT USAGE ON SCHEMA migrate TO PUBLIC;

-- ADAPT: your table, with these column names: text, but for status (integer), response (jsonb) and
-- expires_at (timestamptz). If it has no tenants, use '', and if some keys have none,
-- coalesce(tenant, ''); if it has no hashes, NULL; if a key that never expires has NULL,
-- coalesce(expires_at, 'infinity'). A row with neither status nor response is an operation that has
-- begun: if it means that one is done, use 200 for the status. The docs say what to do about a key of
-- another type.
CREATE VIEW migrate.old AS
  SELECT scope, tenant, key, request_hash, status, response, expires_at FROM idempotency_key;

-- The fence stops new operations in the old table and in its partitions. CREATE TRIGGER waits for
-- every transaction that has written to the table. Late calls of the old code get 40001, and their
-- retries find the new code.
CREATE FUNCTION migrate.moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'idempotency keys have moved'
    USING ERRCODE = '40001', HINT = 'Retry with the same key.';
END $$;
CREATE TRIGGER moved BEFORE INSERT ON idempotency_key FOR EACH ROW      -- ADAPT: your table
  EXECUTE FUNCTION migrate.moved();
-- Code that uses an expired row again begins an operation, too. So does code that tries a failed one
-- again: leave such rows out of the view, and add them to the condition, as in OR OLD.status = 500.
CREATE TRIGGER moved_again BEFORE UPDATE ON idempotency_key FOR EACH ROW      -- ADAPT: your table
  WHEN (OLD.expires_at <= clock_timestamp()) EXECUTE FUNCTION migrate.moved(); -- and its column

-- A transaction that sees this row also sees everything that was written before the fence.
CREATE TABLE migrate.fence AS SELECT now() AS since;

-- Of a row that a retry does not find, the operation would run again. A row is deleted when it moves,
-- and with it all that have its key. Before the fence, such a row could still come.
DO $$
DECLARE lost migrate.old; referring regclass;
BEGIN
  SELECT k.conrelid INTO referring
    FROM pg_rewrite r
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
    JOIN pg_constraint k ON d.refclassid = 'pg_class'::regclass AND d.refobjid = k.confrelid
   WHERE r.ev_class = 'migrate.old'::regclass AND k.contype = 'f' AND k.confdeltype NOT IN ('n', 'd');
  IF FOUND THEN
    RAISE EXCEPTION 'rows of % refer to rows of migrate.old, which are deleted when they move', referring
      USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Drop the foreign key, or let it be ON DELETE SET NULL.';
  END IF;
  IF pg_relation_is_updatable('migrate.old', true) & (1 << 4) = 0 THEN
    RAISE EXCEPTION 'rows of migrate.old cannot be deleted'
      USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Let the view select from one table, or write an INSTEAD OF DELETE trigger.';
  END IF;
  SELECT * INTO lost FROM migrate.old o
   WHERE num_nulls(tenant, key, expires_at) > 0
      OR NOT EXISTS (SELECT FROM idem.scopes s WHERE s.name = o.scope);
  IF FOUND THEN
    RAISE EXCEPTION 'a retry would not find some rows of migrate.old'
      USING ERRCODE = 'null_value_not_allowed',
            DETAIL = format('One has the scope %L, the tenant %L and the key %L, and expires at %L.',
                            lost.scope, lost.tenant, lost.key, lost.expires_at),
            HINT = 'Let the view show scopes that exist and that this role may use, and no NULL.';
  END IF;
  IF EXISTS (SELECT FROM migrate.old WHERE expires_at > now()
             GROUP BY scope, tenant, key HAVING count(*) > 1) THEN
    RAISE EXCEPTION 'several rows of migrate.old have the same scope, tenant and key'
      USING ERRCODE = 'unique_violation',
            HINT = 'Let the view show what distinguishes them, as a part of one of the three.';
  END IF;
END $$;

-- ADAPT: ids of messages, for consumers that call idem.once(). They are copied here, behind the fence
-- and in its transaction; leave them out of the view. If they have a table of their own, as here, it
-- needs a fence, too: otherwise a message that the old code is handling now is handled twice. All
-- callers wait while they are copied (in the SQL edition some 30,000 per second), so leave out what the
-- broker does not send again.
-- SELECT idem.create_scope('messages', ttl => '7 days');
-- CREATE TRIGGER moved BEFORE INSERT ON handled_message FOR EACH ROW EXECUTE FUNCTION migrate.moved();
-- SELECT count(*) FROM idem.once_each('messages', ARRAY(SELECT id FROM handled_message));

-- ADAPT: your application's role.
-- GRANT SELECT, DELETE ON migrate.old TO shop; GRANT SELECT ON migrate.fence TO shop;

-- How long a key still lives that expires then, in the bounds of a TTL.
CREATE FUNCTION migrate.rest(expires_at timestamptz, instant timestamptz) RETURNS interval
LANGUAGE sql AS $$ SELECT least(expires_at, instant + interval '36500 days') - instant $$;

-- Use this function instead of idem.claim() while the old table has live keys. A retry of an old
-- operation brings its request. If the hash of the request is the stored one, or none was stored,
-- the answer moves to idem, bound to the request and for the rest of its time. Compute request_hash
-- as before; pass NULL if the operation binds no request. What idem does not store stays in the old
-- table until it expires: an answer above max_answer_size, a key of other than 1 to 255 bytes.
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
  -- As idem.claim() does; in a scope with tenant_from => 'role', pass the role's name.
  tenant := coalesce(tenant, current_setting('idem.tenant', true), '');
  -- Look here first and then in idem: a key that moves in between is found there.
  SELECT * INTO stored FROM migrate.old o
   WHERE o.scope = scope AND o.tenant = tenant AND o.key = key AND o.expires_at > instant;
  IF NOT FOUND THEN   -- ADAPT: lease => '1 minute' where the operation ends in a later transaction
    RETURN idem.claim(scope, key, request, tenant);
  ELSIF stored.request_hash IS NOT NULL AND stored.request_hash IS DISTINCT FROM request_hash THEN
    RAISE EXCEPTION 'key was used for a different request'
      USING ERRCODE = 'ID002', SCHEMA = 'idem', CONSTRAINT = 'key_conflict',
            HINT = 'Use a new key for a new operation.';
  ELSIF stored.response IS NULL AND stored.status IS NULL THEN
    RAISE EXCEPTION 'operation began before idempotency keys were moved, and is not finished'
      USING ERRCODE = 'ID001', SCHEMA = 'idem', CONSTRAINT = 'in_progress', DATATYPE = '1000',
            HINT = 'Retry after 1.0 seconds with the same key.';
  END IF;
  BEGIN
    c := idem.claim(scope, key, request, tenant, ttl => migrate.rest(stored.expires_at, instant));
    IF NOT c.claimed THEN RETURN c; END IF;
    PERFORM idem.complete(c.token, stored.response, stored.status);
  EXCEPTION WHEN SQLSTATE 'ID007' OR program_limit_exceeded THEN
    SELECT false, 'completed', stored.response, stored.status
      INTO c.claimed, c.outcome, c.response, c.status;
    RETURN c;
  END;
  DELETE FROM migrate.old o WHERE o.scope = scope AND o.tenant = tenant AND o.key = key;
  RETURN idem.claim(scope, key, request, tenant);
END $$;

-- Moves up to max_rows live rows without a hash of a scope whose callers pass no request, and
-- returns how many were moved. Other rows stay until they are retried or expire: a request cannot be
-- computed from its hash, and a key that moves without a request refuses one. Run each call in its
-- own transaction, until it returns 0. It moves at most idem.max_open_claims rows.
CREATE FUNCTION migrate.move(scope text, max_rows integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  stored migrate.old;
  c idem.claim_result;
  moved integer := 0;
  refused integer := 0;
  instant timestamptz;
BEGIN
  FOR stored IN SELECT * FROM migrate.old o
                 WHERE o.scope = scope AND request_hash IS NULL
                   AND (response IS NOT NULL OR status IS NOT NULL)
                   AND expires_at > clock_timestamp()
                   FOR UPDATE SKIP LOCKED LOOP
    EXIT WHEN moved = least(max_rows,
                            nullif(current_setting('idem.max_open_claims', true), '')::integer);
    instant := clock_timestamp();
    CONTINUE WHEN stored.expires_at <= instant;
    BEGIN
      c := idem.try_claim(scope, stored.key, NULL, stored.tenant,
                          ttl => migrate.rest(stored.expires_at, instant));
      IF c.claimed THEN PERFORM idem.complete(c.token, stored.response, stored.status); END IF;
    EXCEPTION WHEN SQLSTATE 'ID007' OR program_limit_exceeded THEN
      refused := refused + 1;
      CONTINUE;
    END;
    -- Keep the row if idem does not store its key now: a retry is moving it, or idem refuses it
    -- because of a limit of the scope or of the key's age.
    CONTINUE WHEN c.outcome IN ('in_progress', 'limited', 'stale_key');
    DELETE FROM migrate.old o
     WHERE o.scope = scope AND o.tenant = stored.tenant AND o.key = stored.key;
    moved := moved + 1;
  END LOOP;
  IF refused > 0 THEN
    RAISE WARNING '% rows stay in the old table until they expire', refused
      USING DETAIL = 'Their keys do not have 1 to 255 bytes, or their answers are too large.',
            HINT = 'The scope''s max_answer_size is the limit of answers.';
  END IF;
  RETURN moved;
END $$;

-- The number of live keys in the old table, and when the last one expires. When there are none,
-- call idem.claim() instead of migrate.claim(), and then run finish.sql.
CREATE VIEW migrate.remaining AS
  SELECT count(*) AS keys, max(expires_at) AS until FROM migrate.old WHERE expires_at > now();

-- ADAPT: your procedures, in the same transaction. One that only finishes operations gets no token of
-- what the old code has begun, and finishes such a row as before.
CREATE OR REPLACE FUNCTION pay(k text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := migrate.claim('payments', k, request, '', md5(request::text));
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(key, amount) VALUES (k, (request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id), 201);
END $$;

COMMIT;
