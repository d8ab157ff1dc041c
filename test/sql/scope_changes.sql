-- The settings of a scope change; a key that has a record keeps its answer.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('s', wait => '0');
CREATE FUNCTION attempt(k text, request jsonb DEFAULT NULL, tenant text DEFAULT NULL, ttl interval DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.try_claim('s', k, request, tenant => tenant, ttl => ttl);
  IF c.claimed THEN PERFORM idem.complete(c.token, to_jsonb(k)); RETURN 'ran'; END IF;
  RETURN c.outcome;
EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE || ' ' || SQLERRM;
END $$;

-- Rules for new keys: they refuse no call with a key that has a record.
SELECT attempt('plain'), attempt('with request', '1');
SELECT idem.advance('s', 'stream', 1);
SELECT claimed FROM idem.claim('s', 'lapsed', lease => '1 us', ttl => '1 min');
SELECT claimed FROM idem.claim('s', 'lapsed too', lease => '1 us', ttl => '1 min');
SELECT claimed FROM idem.claim('s', 'leased', lease => '1 hour');
SELECT idem.alter_scope('s', request_required => true, tenant_required => true, min_ttl => '1 hour', weak_keys => 'reject', reject_stale_keys => true);
SELECT attempt('plain'), attempt('with request', '1'), attempt('with request', '1', ttl => '1 s');
SELECT attempt('with request'), attempt('plain', '1');
SELECT attempt('new', '1'), attempt('new', tenant => 'acme'), attempt('new', '1', tenant => 'acme', ttl => '1 min');
SELECT attempt('new key that is long enough', '1', tenant => 'acme');
-- A takeover needs none of what a new key needs; its record lives for min_ttl at least.
SELECT attempt('lapsed', ttl => '1 min');
SELECT expires_at - completed_at AS ttl FROM idem.lookup('s', 'lapsed');
SELECT attempt('leased');
SELECT idem.once('s', 'plain'), idem.once('s', 'lapsed too');
SELECT idem.once('s', 'none');
SELECT idem.once('s', 'none', '1');
-- once_each judges each key.
SELECT * FROM idem.once_each('s', '{plain, with request, lapsed}');
SELECT * FROM idem.once_each('s', '{plain, none}');
SELECT idem.alter_scope('s', request_required => false);
SELECT * FROM idem.once_each('s', '{plain, none}');
-- No call says that a key is absent, or does nothing, where only the tenant is missing.
SELECT state FROM idem.lookup('s', 'plain');
SELECT state FROM idem.lookup('s', 'none');
SELECT state FROM idem.lookup('s', 'none', tenant => 'acme');
SELECT idem.revoke('s', 'plain');
SELECT idem.revoke('s', 'none');
SELECT idem.revoke('s', 'leased');
SELECT idem.forget('s', 'none');
SELECT idem.forget('s', 'lapsed');
SELECT idem.erase('s', 'none');
SELECT idem.erase('s', 'plain');
SELECT state FROM idem.forbid('s', 'plain');
SELECT state FROM idem.forbid('s', 'none');
SELECT idem.advance('s', 'stream', 2), idem.advance('s', 'stream', 2);
SELECT idem.advance('s', 'none', 1);
SELECT idem.reset_stream('s', 'stream');
SELECT idem.reset_stream('s', 'stream', 1);

-- A change that gives live keys another identity is refused: how many, and until when.
\set VERBOSITY terse
SELECT idem.create_scope('t', ttl => '1 hour');
SELECT idem.once('t', 'k1', tenant => 'acme'), idem.once('t', 'k2'), idem.advance('t', 'stream', 1);
CREATE FUNCTION refusal(statement text) RETURNS TABLE (message text, detail text) LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RETURN QUERY SELECT 'done', NULL;
EXCEPTION WHEN SQLSTATE '55000' THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
  detail := replace(detail, (SELECT max(expires)::text FROM idem.record r JOIN idem.scope s ON s.id = r.scope WHERE s.name = 't'), 'THEN');
  RETURN NEXT;
END $$;
SET timezone = 'UTC';
SET datestyle = 'ISO';
SELECT * FROM refusal($$SELECT idem.alter_scope('t', tenant_from => 'role')$$) \gx
SELECT idem.alter_scope('t', tenant_from => 'argument', ttl => '2 hours');
-- also for what this transaction has finished, and in every record table
SELECT idem.forget('t', 'k1', tenant => 'acme'), idem.forget('t', 'k2'), idem.reset_stream('t', 'stream');
BEGIN;
SELECT idem.once('t', 'k3');
SELECT message FROM refusal($$SELECT idem.alter_scope('t', tenant_from => 'role')$$);
ROLLBACK;
BEGIN;
SELECT idem.advance('t', 'stream', 1);
SELECT message FROM refusal($$SELECT idem.alter_scope('t', tenant_from => 'role')$$);
ROLLBACK;
BEGIN;
SELECT idem.alter_scope('t', tenant_from => 'role');
SELECT tenant_from FROM idem.scopes WHERE name = 't';
ROLLBACK;
SELECT idem.once('t', 'k2');
SELECT idem.alter_scope('t', tenant_from => 'role', force => true);
SELECT idem.once('t', 'k2');
SELECT idem.alter_scope('t', force => NULL);

-- Nothing of a scope changes while this transaction has an open claim in it.
BEGIN;
SELECT claimed FROM idem.claim('t', 'open');
SELECT message FROM refusal($$SELECT idem.alter_scope('t', ttl => '1 day')$$);
SELECT message FROM refusal($$SELECT idem.alter_scope('t', tenant_from => 'argument', force => true)$$);
SELECT message FROM refusal($$SELECT idem.drop_scope('t')$$);
SELECT idem.alter_scope('s', ttl => '1 day');
SELECT idem.release(token) FROM idem.claim('s', 'another key that is long', tenant => 'acme');
SELECT idem.alter_scope('s', ttl => '2 days');
ROLLBACK;
BEGIN;
SELECT claimed FROM idem.claim('t', 'leased', lease => '1 hour');
SELECT message FROM refusal($$SELECT idem.alter_scope('t', ttl => '1 day')$$);
COMMIT;
SELECT idem.alter_scope('t', ttl => '1 day');
DROP FUNCTION attempt, refusal;
