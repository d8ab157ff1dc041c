-- Scopes and tenants: separate names, and which roles may use them. The owner is masked: the
-- superuser that runs the tests is not called "postgres" everywhere.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('plain', owner => 'pg_monitor');
SELECT idem.create_scope('full', ttl => '7 days', wait => '0', request_required => true, request_exclude => '{a,b.c}', tenant_required => true,
  lease => '30 seconds', reject_stale_keys => true, max_attempts => 3, weak_keys => 'warn', store_response => false, response_exclude => '{card.number}', transient_sqlstates => '{P0001,22}',
  owner => 'pg_monitor');
\x on
SELECT * FROM idem.scopes ORDER BY name;
\x off

SELECT idem.create_scope('plain');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope(repeat('s', 64));
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope(repeat('s', 63));
SELECT idem.create_scope('x', ttl => '0');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', ttl => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', wait => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', wait => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', request_required => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', request_exclude => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', request_exclude => ARRAY['a', NULL]);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', request_exclude => ARRAY['']);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', request_exclude => ARRAY[repeat('p', 256)]);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', request_exclude => '{{a},{b}}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', lease => '0');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', lease => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', reject_stale_keys => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', max_attempts => 0);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', claims_per_minute => -1);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', claims_per_minute => 60);  -- needs preload
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', weak_keys => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', weak_keys => 'Warn');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', store_response => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', response_exclude => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', response_exclude => ARRAY['a', NULL]);
\echo :LAST_ERROR_SQLSTATE
-- a path in another notation is refused, with the right spelling: it would exclude nothing
CREATE FUNCTION refused(path text) RETURNS TABLE (detail text, hint text) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.create_scope('paths', response_exclude => ARRAY['good', path]);
  PERFORM idem.drop_scope('paths');
EXCEPTION WHEN invalid_parameter_value THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  RETURN NEXT;
END $$;
\x on
SELECT r.* FROM unnest(ARRAY['$.card.number', '/card/number', 'card->number', 'card->>''number''', 'card[0].x', '$.items[*].token', '{card,number}',
  'items.*.token', 'items.0.token', '.card', 'a, b', 'card."number', 'it''s/"a"', '$', '/']) path, refused(path) r;
\x off
SELECT count(*) AS refused FROM unnest(ARRAY['$schema', '$ref.a', 'a-b', 'a b', 'größe', '@id', 'it''s', '"a/b".c', '"$"', '"\"\\"', '"a.b"', '"2024"."x[1]"', '""']) path,
  refused(path);
SELECT idem.create_scope('x', request_exclude => '{/sent_at}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('plain', request_exclude => '{/sent_at}');
\echo :LAST_ERROR_SQLSTATE
DROP FUNCTION refused;
SELECT idem.create_scope('x', transient_sqlstates => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', transient_sqlstates => '{P0001,p0}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', transient_sqlstates => '{502}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', transient_sqlstates => '{P0001,NULL}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', transient_sqlstates => '{{P0},{P1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', owner => 4294967295);
\echo :LAST_ERROR_SQLSTATE

-- one key in two scopes and three tenants is six operations
CREATE FUNCTION claim_once(scope text, tenant text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim(scope, 'k', tenant => tenant);
  IF c.claimed THEN PERFORM idem.complete(c.token, jsonb_build_array(scope, tenant)); END IF;
  RETURN c.outcome || coalesce(' ' || c.response::text, '');
END $$;
SELECT idem.create_scope('second');
SELECT s, t, claim_once(s, t) AS first, claim_once(s, t) AS again FROM unnest(ARRAY['plain', 'second']) s, unnest(ARRAY['', 'a', 'b']) t;
SET idem.tenant = 'a';
SELECT claim_once('plain', NULL), claim_once('plain', ''), claim_once('plain', 'b');
SELECT response FROM idem.lookup('plain', 'k');
BEGIN;
SELECT outcome FROM idem.try_claim('full', 'k', '{}');
ROLLBACK;
RESET idem.tenant;
SELECT claim_once('plain', NULL);

-- a scope belongs to a role
CREATE ROLE idem_regress_owner;
CREATE ROLE idem_regress_member IN ROLE idem_regress_owner;
CREATE ROLE idem_regress_noinherit NOINHERIT IN ROLE idem_regress_owner;
CREATE ROLE idem_regress_stranger;
SELECT idem.create_scope('owned', owner => 'idem_regress_owner');
SET ROLE idem_regress_member;
SELECT claim_once('owned', ''), claim_once('owned', '');
SELECT name FROM idem.scopes;
SET ROLE idem_regress_noinherit;
SELECT claim_once('owned', '');
\echo :LAST_ERROR_SQLSTATE
SET ROLE idem_regress_stranger;
SELECT claim_once('owned', '');
\echo :LAST_ERROR_SQLSTATE
SELECT state FROM idem.lookup('owned', 'k');
\echo :LAST_ERROR_SQLSTATE
SELECT name FROM idem.scopes;
-- SECURITY DEFINER lends the definer's privileges
RESET ROLE;
ALTER FUNCTION claim_once OWNER TO idem_regress_member;
ALTER FUNCTION claim_once SECURITY DEFINER;
SET ROLE idem_regress_stranger;
SELECT claim_once('owned', '');
RESET ROLE;

-- creating a scope takes EXECUTE, and for another owner the right to become that role
SET ROLE idem_regress_member;
SELECT idem.create_scope('members');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope, idem.forget TO idem_regress_member;
SET ROLE idem_regress_member;
SELECT idem.create_scope('members');
SELECT idem.create_scope('members of owner', owner => 'idem_regress_owner');
-- (the server's own words, which differ between versions)
\set VERBOSITY sqlstate
SELECT idem.create_scope('grabbed', owner => 'idem_regress_stranger');
\set VERBOSITY default
SELECT name, owner FROM idem.scopes ORDER BY name;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope, idem.forget FROM idem_regress_member;

-- only a superuser can use a scope whose owner was dropped
DROP FUNCTION claim_once;
DROP ROLE idem_regress_owner;
SET ROLE idem_regress_member;
SELECT idem.lookup('owned', 'k');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT state FROM idem.lookup('owned', 'k');
SELECT count(*) FROM idem.scopes WHERE name = 'owned';
DROP ROLE idem_regress_member, idem_regress_noinherit, idem_regress_stranger;

-- a session sees a scope that was created after it started, and forgets it with the extension
BEGIN;
SELECT idem.create_scope('undone');
SELECT outcome FROM idem.try_claim('undone', 'k');
ROLLBACK;
SELECT outcome FROM idem.try_claim('undone', 'k');
\echo :LAST_ERROR_SQLSTATE
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.lookup('plain', 'k');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('plain');
BEGIN;
SELECT token AS t FROM idem.claim('plain', 'k') \gset
SELECT idem.complete(:'t', '"after"');
COMMIT;
SELECT state, response FROM idem.lookup('plain', 'k');
BEGIN;
DROP EXTENSION idem;
CREATE SCHEMA idem;
\set VERBOSITY terse
CREATE EXTENSION idem;
\set VERBOSITY default
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
