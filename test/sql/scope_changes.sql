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
SELECT state FROM idem.cancel('s', 'plain');
SELECT state FROM idem.cancel('s', 'none');
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

-- A request is compared by the list of excluded members that its key was claimed with.
SELECT idem.create_scope('r', wait => '0');
CREATE FUNCTION attempt(k text, request jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.try_claim('r', k, request);
  IF c.claimed THEN PERFORM idem.complete(c.token); RETURN 'ran'; END IF;
  RETURN c.outcome;
END $$;
-- the number of a record's list, or 0, is part of the stored fingerprint, or in a column of its own
CREATE FUNCTION list_of(r idem.record) RETURNS int LANGUAGE sql AS $$
  SELECT coalesce((to_jsonb(r) ->> 'request_list')::int, get_byte(r.fingerprint, 0) / 128
    * (get_byte(r.fingerprint, 1) % 128 + get_byte(r.fingerprint, 1) / 128 * get_byte(r.fingerprint, 2) * 128))
$$;
CREATE VIEW lists AS
  SELECT request_exclude, request_lists, (SELECT string_agg(format('%s: %s', key, list_of(r)), ', ' ORDER BY created) AS stored
    FROM idem.record r WHERE scope = s.id)
  FROM idem.scope s WHERE name = 'r';
SELECT attempt('none', '{"a": 1, "b": 1}');
SELECT idem.alter_scope('r', request_exclude => '{a}');
SELECT attempt('a', '{"a": 1, "b": 1}');
SELECT idem.alter_scope('r', request_exclude => '{b, "\"c.d\""}');
SELECT attempt('b', '{"a": 1, "b": 1}');
CREATE FUNCTION retries() RETURNS TABLE (key text, unchanged text, a text, b text) LANGUAGE sql AS $$
  SELECT k, attempt(k, '{"a": 1, "b": 1}'), attempt(k, '{"a": 2, "b": 1}'), attempt(k, '{"a": 1, "b": 2}') FROM unnest('{none,a,b}'::text[]) k $$;
SELECT * FROM retries();
-- a list that returns has its number again
SELECT idem.alter_scope('r', request_exclude => '{}'), idem.alter_scope('r', request_exclude => '{a}'), idem.alter_scope('r', request_exclude => '{e}');
SELECT * FROM retries();
SELECT * FROM lists \gx
SELECT idem.alter_scope('r', request_exclude => '{a}');
SELECT attempt('a again', '{"a": 1}'), attempt('a again', '{"a": 2}'), attempt('a again', '{"b": 1}');
SELECT * FROM lists \gx
-- a leased operation, an erased one, and one that conflicts with an explanation
SELECT idem.alter_scope('r', request_exclude => '{x}', store_request => 'always');
SELECT token AS t FROM idem.claim('r', 'leased', '{"x": 1, "n": 1}', lease => '1 us') \gset
SELECT attempt('erased', '{"x": 1, "n": 1}');
SELECT idem.erase('r', 'erased');
SELECT idem.alter_scope('r', request_exclude => '{n}');
SELECT outcome, differs FROM idem.try_claim('r', 'leased', '{"x": 2, "n": 2}');
SELECT outcome, attempt FROM idem.try_claim('r', 'leased', '{"x": 2, "n": 1}', lease => '1 us');
SELECT attempt('leased', '{"x": 3, "n": 1}'), attempt('leased', '{"x": 4, "n": 1}'), attempt('leased', '{"x": 1, "n": 2}');
SELECT attempt('erased', '{"x": 2, "n": 1}'), attempt('erased', '{"x": 1, "n": 2}');
SELECT idem.create_scope('r', wait => '0', request_exclude => '{n}', store_request => 'always', if_not_exists => true);
-- more lists than one byte can number
DO $$ BEGIN FOR i IN 1..300 LOOP PERFORM idem.alter_scope('r', request_exclude => ARRAY['m' || i]); END LOOP; END $$;
SELECT attempt('late', '{"m300": 1}');
SELECT idem.alter_scope('r', request_exclude => '{}');
SELECT attempt('late', '{"m300": 2}'), attempt('late', '{"m299": 1}');
SELECT cardinality(request_lists), (SELECT list_of(r) FROM idem.record r WHERE key = 'late') FROM lists;
-- The lists cannot lose the present one; a record whose list is lost is not compared.
UPDATE idem.scope SET request_exclude = '{unheard}' WHERE name = 'r';
UPDATE idem.scope SET request_lists = '{"{a}"}' WHERE name = 'r';
SELECT attempt('a', '{"a": 2, "b": 1}'), attempt('none', '{"a": 1, "b": 1}');
SELECT attempt('late', '{"m300": 1}');
DROP VIEW lists;
DROP FUNCTION list_of, retries, attempt;
