-- Scopes and tenants: separate names, and which roles may use them. The owner is masked: the
-- superuser that runs the tests is not called "postgres" everywhere.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('plain', owner => 'pg_monitor');
SELECT idem.create_scope('full', ttl => '7 days', wait => '0', request_required => true, request_exclude => '{a,b.c}', tenant_required => true,
  lease => '30 seconds', reject_stale_keys => true, max_attempts => 3, weak_keys => 'warn', store_response => false, response_exclude => '{card.number}', final_sqlstates => '{P0001,22}',
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
SELECT idem.create_scope('x', claims_per_minute => -2);
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
SELECT idem.create_scope('x', final_sqlstates => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', final_sqlstates => '{P0001,p0}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', final_sqlstates => '{502}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', final_sqlstates => '{00000}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', final_sqlstates => '{ID}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', final_sqlstates => '{ID003}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', final_sqlstates => '{40}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', final_sqlstates => '{42P01}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', final_sqlstates => '{P0001,NULL}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', final_sqlstates => '{{P0},{P1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', owner => 4294967295);
\echo :LAST_ERROR_SQLSTATE

-- how long: limits, and what they are compared with
SELECT idem.create_scope('x', store_request => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', store_request => 'true');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', answer_ttl => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', answer_ttl => '25 hours');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', min_ttl => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', min_ttl => '25 hours');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', if_not_exists => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', min_ttl => '1 hour', answer_ttl => '24 hours', owner => 'pg_monitor');
SELECT idem.alter_scope('x', ttl => '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('x', ttl => '1 hour', answer_ttl => '1 hour');
SELECT idem.alter_scope('x', min_ttl => '-1 s');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT outcome FROM idem.try_claim('x', 'short', ttl => '59 minutes');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
SELECT outcome FROM idem.try_claim('x', 'long', ttl => '1 hour');
ROLLBACK;
SELECT idem.alter_scope('x', answer_ttl => '0', min_ttl => '0', store_request => 'unfinished');
SELECT ttl, store_request, answer_ttl, min_ttl FROM idem.scopes WHERE name = 'x';
BEGIN;
SELECT outcome FROM idem.try_claim('x', 'short', ttl => '59 minutes');
ROLLBACK;

-- settings as text: checked, compared and shown as the arguments are
SELECT idem.create_scope('listed', settings => '{ttl=7 days,max_attempts=3,"request_exclude={a,b.c}",weak_keys=warn,request_required=yes}', tenant_from => 'role', owner => 'pg_monitor');
SELECT idem.scope_ddl('listed');
SELECT idem.create_scope('listed', ttl => '168 hours', max_attempts => 3, request_exclude => '{a,b.c}', weak_keys => 'warn', request_required => true,
                         settings => '{tenant_from=role}', owner => 'pg_monitor', if_not_exists => true);
SELECT idem.create_scope('listed', settings => '{ttl=168 hours,max_attempts=-1}', owner => 'pg_monitor', if_not_exists => true);
SELECT idem.alter_scope('listed', settings => '{max_attempts=-1,min_ttl=1 hour,answer_ttl=0}', weak_keys => 'allow');
SELECT idem.alter_scope('listed', settings => '{}');
SELECT idem.alter_scope('listed', settings => NULL);
SELECT idem.scope_ddl('listed');
SELECT idem.create_scope('x', settings => '{ttl=1 hour,ttl=1 hour}');
SELECT idem.create_scope('x', ttl => '1 hour', settings => '{ttl=2 hours}');
SELECT idem.alter_scope('listed', store_response => true, settings => '{store_response=false}');
SELECT idem.create_scope('x', settings => '{nonesuch=1}');
CREATE FUNCTION refused(settings text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE d text;
BEGIN
  PERFORM idem.alter_scope('listed', settings => settings);
  RETURN 'altered';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL;
  RETURN SQLSTATE || ' ' || coalesce(nullif(d, ''), SQLERRM);
END $$;
SELECT e, refused(ARRAY[e]) FROM unnest(ARRAY['ttl', '', NULL, '=', '=1', 'TTL=1 day', ' ttl=1 day', 'owner=postgres', 'id=1', 'name=a', 'request_lists={}', 'ttl=', 'ttl=soon', 'ttl=0', 'max_attempts=0', 'max_attempts=x',
  'records=perhaps', 'request_exclude=a', 'request_exclude={/a}', 'weak_keys=', 'weak_keys=ALLOW', 'max_answer_size=1', 'final_sqlstates={40001}', 'min_ttl=8 days', 'header_exclude={a}', 'ttl=8 days']) e;
SELECT refused('{{ttl=9 days},{wait=0}}'), refused('{lease=1 hour,"request_exclude={=}"}');
SELECT idem.scope_ddl('listed');
SELECT idem.create_scope('x', settings => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.drop_scope('listed');
DROP FUNCTION refused;
-- no limit, and said so
SELECT idem.create_scope('unlimited', max_attempts => -1, claims_per_minute => -1, answer_ttl => '0', min_ttl => '0', owner => 'pg_monitor');
SELECT idem.scope_ddl('unlimited');
SELECT idem.drop_scope('unlimited');

-- the settings of other kinds
SELECT idem.create_scope('y', header_exclude => '{set-cookie,"a b"}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('y', header_exclude => '{{a},{b}}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('y', tenant_from => 'user');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('y', max_answer_size => 1023);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('x', header_exclude => '{}', tenant_from => 'role', max_answer_size => 1024);
SELECT header_exclude, tenant_from, max_answer_size FROM idem.scopes WHERE name = 'x';
SELECT idem.alter_scope('x', header_exclude => '{set-cookie,cookie,authorization,proxy-authorization,www-authenticate}',
  tenant_from => 'argument', max_answer_size => 65536);
SELECT header_exclude, tenant_from, max_answer_size FROM idem.scopes WHERE name = 'x';

-- the tenant is the role that calls, also behind a SECURITY DEFINER function
CREATE ROLE idem_regress_shop;
CREATE ROLE idem_regress_acme IN ROLE idem_regress_shop;
CREATE ROLE idem_regress_globex;
SELECT idem.create_scope('bound', tenant_from => 'role', owner => 'idem_regress_shop');
GRANT CREATE ON SCHEMA public TO idem_regress_shop;
SET ROLE idem_regress_shop;
CREATE FUNCTION order_once(key text, tenant text DEFAULT NULL) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.try_claim('bound', key, tenant => tenant);
  IF c.claimed THEN PERFORM idem.complete(c.token, to_jsonb(session_user)); END IF;
  RETURN c.outcome;
END $$;
RESET ROLE;
SET ROLE idem_regress_acme;
SELECT order_once('k'), order_once('k', 'idem_regress_acme'), order_once('k', '');
SELECT order_once('k', 'idem_regress_globex');
\echo :LAST_ERROR_SQLSTATE
SELECT order_once('k', 'no such role');
\echo :LAST_ERROR_SQLSTATE
SET idem.tenant = 'idem_regress_globex';
SELECT order_once('k');
\echo :LAST_ERROR_SQLSTATE
RESET idem.tenant;
SELECT order_once('k', 'idem_regress_shop') AS own_role;
SELECT idem.once_each('bound', ARRAY['k', 'l']), idem.advance('bound', 'topic', 1);
SELECT state FROM idem.lookup('bound', 'k');
SELECT idem.forget_tenant('bound', 'idem_regress_globex');
\echo :LAST_ERROR_SQLSTATE
SELECT attempt FROM idem.claim('bound', 'leased', lease => '1 microsecond');
SET ROLE idem_regress_globex;
SELECT order_once('k'), order_once('k');
SELECT order_once('k', 'idem_regress_acme');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- a superuser may act for every tenant, but not in a function of another role; take() finds the operations of all
\set VERBOSITY terse
SELECT order_once('k', 'idem_regress_acme');
\echo :LAST_ERROR_SQLSTATE
SELECT order_once('k', 'anybody');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default
SELECT idem.once('bound', 'k', tenant => 'idem_regress_acme'), idem.once('bound', 'k', tenant => 'anybody');
SELECT tenant, key FROM idem.take('bound', lease => '1 microsecond');
SELECT tenant FROM idem.take('bound', tenant => 'idem_regress_globex');
SET ROLE idem_regress_shop;
SELECT tenant, key FROM idem.take('bound');
SELECT tenant FROM idem.take('bound', tenant => 'idem_regress_acme');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT tenant, key, response = to_jsonb(current_user) AS completed_by_the_definer FROM idem.records JOIN LATERAL idem.lookup('bound', key, tenant) l USING (state)
  ORDER BY 1, 2;
SELECT tenant, source, seq FROM idem.streams;
SELECT idem.drop_scope('bound');
DROP FUNCTION order_once;
REVOKE CREATE ON SCHEMA public FROM idem_regress_shop;
DROP ROLE idem_regress_acme, idem_regress_globex, idem_regress_shop;

-- a scope that exists already
SELECT idem.create_scope('x', ttl => '60 minutes', store_request => 'unfinished', owner => 'pg_monitor', if_not_exists => true);
SELECT idem.create_scope('x', ttl => '60 minutes', max_attempts => 3, request_exclude => '{a,b.c}', min_ttl => '1 min', owner => 'pg_database_owner',
  if_not_exists => true);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('x', ttl => '0', if_not_exists => true);
\echo :LAST_ERROR_SQLSTATE
-- the name is all that a caller learns of a scope that it may not use
CREATE ROLE idem_regress_stranger;
GRANT EXECUTE ON FUNCTION idem.create_scope TO idem_regress_stranger;
SET ROLE idem_regress_stranger;
SELECT idem.create_scope('x', if_not_exists => true);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.scope_ddl('x');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('new', if_not_exists => true);
SELECT idem.create_scope('new', if_not_exists => true);
SELECT idem.scope_ddl('new');
SELECT idem.drop_scope('new');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION idem.create_scope FROM idem_regress_stranger;
SELECT idem.drop_scope('new');
DROP ROLE idem_regress_stranger;
SELECT idem.drop_scope('x');

-- the statement that creates a scope: every setting, with odd names
CREATE ROLE "idem_regress odd ""role'\";
SELECT idem.create_scope('it''s "odd" \ $1', ttl => '1 mon 2 days 03:04:05.6', lease => '1 s', wait => '0', request_required => true, request_exclude => ARRAY['a', '"b.c"', '"it''s, \\"'],
  tenant_required => true, reject_stale_keys => true, max_attempts => 3, weak_keys => 'reject', store_response => false, response_exclude => '{card}',
  owner => '"idem_regress odd ""role''\"', final_sqlstates => '{P0001,22}', store_request => 'unfinished', answer_ttl => '1 day', min_ttl => '1 hour');
SELECT idem.create_scope(name, ttl => '1 day', owner => 'pg_monitor') FROM (VALUES ('default settings')) v (name);
SELECT idem.drop_scope(repeat('s', 63));
CREATE TEMP TABLE before AS SELECT * FROM idem.scopes;
CREATE TEMP TABLE ddl AS SELECT name, idem.scope_ddl(name) FROM idem.scopes;
SELECT scope_ddl FROM ddl ORDER BY name;
SET intervalstyle = 'sql_standard';
SELECT count(*) AS other_style FROM ddl WHERE scope_ddl <> idem.scope_ddl(name);
RESET intervalstyle;
SELECT count(idem.drop_scope(name)) FROM before;
SELECT count(*) FROM idem.scopes;
SELECT scope_ddl FROM ddl ORDER BY name \gexec
SELECT count(*) AS scopes, count(*) FILTER (WHERE b IS DISTINCT FROM s) AS changed FROM before b FULL JOIN idem.scopes s USING (name);
SELECT idem.drop_scope('it''s "odd" \ $1'), idem.drop_scope('default settings');
DROP ROLE "idem_regress odd ""role'\";
DROP TABLE before, ddl;
SELECT idem.scope_ddl('x');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.scope_ddl(NULL);
\echo :LAST_ERROR_SQLSTATE

-- the request of a leased claim is stored, whole, until the operation is finished
SELECT idem.create_scope('stored', store_request => 'unfinished', request_exclude => '{sent_at}', max_answer_size => 200000);
SELECT token AS t FROM idem.claim('stored', 'k', '{"n": 1, "sent_at": 1}', lease => '1 minute') \gset
SELECT idem.checkpoint(:'t', 'charged');
SELECT idem.release(:'t');
SELECT attempt, outcome FROM idem.claim('stored', 'k', '{"n": 1, "sent_at": 2}', lease => '1 minute');
SELECT key, state, request FROM idem.record WHERE request IS NOT NULL;
BEGIN;
SELECT idem.alter_scope('stored', store_request => 'never');
SELECT token AS none FROM idem.claim('stored', 'none', '{"n": 1}', lease => '1 minute') \gset
SELECT idem.renew(:'none') IS NOT NULL AS renewed;
SELECT key, request FROM idem.record WHERE scope = (SELECT id FROM idem.scope WHERE name = 'stored') ORDER BY key;
ROLLBACK;
UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE key = 'k';
BEGIN;
SELECT idem.complete(token) FROM idem.claim('stored', 'k', '{"n": 1, "sent_at": 3}');  -- an atomic takeover
SELECT token AS t FROM idem.claim('stored', 'l', '{"n": 1, "sent_at": 1}') \gset
SELECT idem.complete(:'t');
COMMIT;
SELECT key, state, request, coalesce(ended, created) BETWEEN created AND clock_timestamp() AS answered, ended > created AS later
  FROM idem.record r, coalesce((to_jsonb(r) ->> 'finished')::timestamptz, lease_end) ended
 WHERE scope = (SELECT id FROM idem.scope WHERE name = 'stored') ORDER BY key;
-- a large request is written once, whatever else of the row is updated
CREATE FUNCTION written() RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE chunks bigint[];
BEGIN
  EXECUTE (SELECT format('SELECT array_agg(DISTINCT chunk_id::bigint) FROM %s', reltoastrelid::regclass) FROM pg_class WHERE oid = 'idem.record'::regclass) INTO chunks;
  RETURN chunks;
END $$;
CREATE TEMP TABLE large AS SELECT jsonb_agg(md5(n::text)) AS request FROM generate_series(1, 3000) n;
SELECT token AS t FROM large, idem.claim('stored', 'huge', request, lease => '1 minute') \gset
SELECT written() AS once \gset
SELECT idem.renew(:'t') IS NOT NULL AS renewed;
SELECT idem.checkpoint(:'t', 'charged');
SELECT idem.release(:'t');
SELECT token AS t, attempt FROM large, idem.claim('stored', 'huge', request, lease => '1 minute') \gset
SELECT :attempt AS attempt, cardinality(written()) AS requests, written() = :'once' AS once, r.request = large.request AS whole FROM large, idem.record r WHERE key = 'huge';
SELECT idem.complete(:'t');
DROP FUNCTION written;
DROP TABLE large;
SELECT idem.alter_scope('stored', max_answer_size => 1024);
SELECT outcome FROM idem.claim('stored', 'large', to_jsonb(repeat('x', 1025)), lease => '1 minute');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT outcome FROM idem.claim('stored', 'large', to_jsonb(repeat('x', 1025)));
ROLLBACK;
SELECT idem.drop_scope('stored');

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
