-- Privileges: a scope belongs to a role, every role with that role's privileges may use it, and
-- only superusers touch the tables.
BEGIN;
SELECT no_plan();
SELECT idem.edition() = 'extension' AS extension \gset

CREATE ROLE test_owner;
CREATE ROLE test_member IN ROLE test_owner;
CREATE ROLE test_indirect IN ROLE test_member;
CREATE ROLE test_dormant NOINHERIT IN ROLE test_owner;  -- a member without the privileges
CREATE ROLE test_stranger;
CREATE ROLE test_super SUPERUSER;
CREATE ROLE test_gone;

SELECT idem.create_scope('owned', owner => 'test_owner');
SELECT idem.create_scope('orphan', owner => 'test_gone');
DROP ROLE test_gone;
SELECT idem.complete(token, '{"answer": "swordfish"}')
  FROM idem.claim('owned', 'finished', '{"card": "hunter2"}');

-- Runs a call as a role and undoes it: 'ok', or the SQLSTATE with what the error says. $1 in the
-- call is the token of an open claim of this transaction.
CREATE FUNCTION pg_temp.attempt(as_role name, call text, OUT state text, OUT words text) LANGUAGE plpgsql AS $$
DECLARE
    token text;
    message text;
    detail text;
    hint text;
BEGIN
    IF call LIKE '%$1%' THEN token := (idem.claim('owned', 'open')).token; END IF;
    EXECUTE format('SET LOCAL ROLE %I', as_role);
    EXECUTE call USING token;
    RAISE EXCEPTION USING ERRCODE = 'ZZ000';
EXCEPTION WHEN OTHERS OR assert_failure THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    IF state = 'ZZ000' THEN state := 'ok'; END IF;
    words := concat_ws(E'\n', message, detail, hint);
END $$;

-- The functions of a scope's users ---------------------------------------------------------------

CREATE TEMP TABLE scoped_call (call text);
INSERT INTO scoped_call VALUES
    ($$SELECT idem.claim('%s', 'new')$$),
    ($$SELECT idem.claim('%s', 'finished', '{"card": "hunter2"}')$$),
    ($$SELECT idem.try_claim('%s', 'new')$$),
    ($$SELECT idem.try_claim('%s', 'finished', '{"card": "hunter2"}')$$),
    ($$SELECT idem.once('%s', 'new')$$),
    ($$SELECT idem.once('%s', 'finished', '{"card": "hunter2"}')$$),
    ($$SELECT idem.once_each('%s', '{new}')$$),
    ($$SELECT idem.once_each('%s', '{finished}')$$),
    ($$SELECT idem.advance('%s', 'finished', 1)$$),
    ($$SELECT idem.scope_ddl('%s')$$),
    ($$SELECT idem.lookup('%s', 'finished')$$),
    ($$SELECT idem.lookup('%s', 'new')$$);

CREATE TEMP TABLE reader (role name, of_owned text, of_orphan text);
INSERT INTO reader VALUES
    ('test_owner',    'ok',    '42501'),
    ('test_member',   'ok',    '42501'),
    ('test_indirect', 'ok',    '42501'),
    ('test_dormant',  '42501', '42501'),
    ('test_stranger', '42501', '42501'),
    ('test_super',    'ok',    'ok');

SELECT is((pg_temp.attempt(role, format(call, 'owned'))).state, of_owned, format('%s: ' || call, role, 'owned'))
  FROM reader, scoped_call ORDER BY role, call;
SELECT is((pg_temp.attempt(role, format(call, 'orphan'))).state, of_orphan,
          format('%s: ' || call || ', whose owner was dropped', role, 'orphan'))
  FROM reader, scoped_call ORDER BY role, call;
SELECT is((pg_temp.attempt(role, $$SELECT idem.claim('unknown', 'new')$$)).state, 'ID008',
          format('%s: an unknown scope is unknown to every role', role))
  FROM reader ORDER BY role;

-- A NOINHERIT member has the owner's privileges only after SET ROLE.
SELECT is((pg_temp.attempt('test_dormant', $$SET LOCAL ROLE test_owner; SELECT idem.claim('owned', 'new')$$)).state,
          'ok', 'test_dormant may claim after SET ROLE test_owner');

-- The token is the right to finish, whatever the current role: a claim belongs to the role that
-- claimed.
SELECT is((pg_temp.attempt(role, call)).state, 'ok', format('%s, with the token: %s', role, call))
  FROM reader, (VALUES ('SELECT idem.complete($1)'), ('SELECT idem.release($1)'),
                       ($$SELECT idem.fail($1, '{"message": "no"}')$$)) AS finish (call)
 ORDER BY role, call;
SELECT is((pg_temp.attempt(role, call)).state, 'ID005', format('%s, without one: %s', role, call))
  FROM reader, (VALUES ('SELECT idem.complete(NULL)'), ('SELECT idem.release($$guess$$)'),
                       ($$SELECT idem.fail('', '{"message": "no"}')$$)) AS finish (call)
 ORDER BY role, call;

-- A stranger must not learn whether a key exists, nor what is stored under it.
SELECT is(pg_temp.attempt('test_stranger', replace(call, 'finished', 'new')),
          pg_temp.attempt('test_stranger', call),
          'a stranger hears the same of a key that exists and of one that does not: ' || call)
  FROM (SELECT format(call, 'owned') FROM scoped_call) AS scoped (call)
 WHERE call LIKE '%finished%' ORDER BY call;
SELECT unalike((pg_temp.attempt(role, format(call, 'owned'))).words, '%' || leak || '%',
               format('%s does not learn of "%s": ' || call, role, leak, 'owned'))
  FROM reader, scoped_call, (VALUES ('swordfish'), ('hunter2'), ('finished')) AS stored (leak)
 WHERE of_owned <> 'ok' ORDER BY role, call, leak;
SELECT ok(state = 'ID002' AND words !~ 'hunter2|swordfish',
          'a conflict shows neither the request nor the answer that is stored')
  FROM pg_temp.attempt('test_member', $$SELECT idem.claim('owned', 'finished', '{"card": "other"}')$$);

-- The view ---------------------------------------------------------------------------------------

SELECT is((pg_temp.attempt(role, format($$DO 'BEGIN ASSERT (SELECT count(*) FROM idem.scopes WHERE name = ''%s'') = %s; END'$$,
                                        name, seen::int))).state,
          'ok', format('%s %s the scope "%s"', role, CASE WHEN seen THEN 'sees' ELSE 'does not see' END, name))
  FROM (SELECT role, 'owned' AS name, of_owned = 'ok' AS seen FROM reader
        UNION ALL SELECT role, 'orphan', false FROM reader WHERE role <> 'test_super') AS expected
 ORDER BY role, name;

SELECT idem.complete(token) FROM idem.claim('owned', '4711', tenant => 'hidden');
CREATE TEMP TABLE held AS
SELECT token FROM idem.claim('owned', 'held', tenant => 'hidden', lease => '1 hour');
SELECT idem.advance('owned', 'stream', 1, tenant => 'hidden');
SELECT is((pg_temp.attempt(role, format($$DO 'BEGIN ASSERT (SELECT count(*) FROM idem.%s WHERE scope = ''owned'' AND tenant = ''hidden'') = %s; END'$$,
                                        view, CASE WHEN of_owned = 'ok' THEN rows ELSE 0 END))).state,
          'ok', format('%s %s %s of the scope "owned"', role, CASE WHEN of_owned = 'ok' THEN 'sees' ELSE 'does not see' END, view))
  FROM reader, (VALUES ('records', 2), ('in_flight', 1), ('streams', 1)) AS v (view, rows) ORDER BY role, view;
CREATE FUNCTION pg_temp.peek_tenant(tenant text) RETURNS boolean LANGUAGE plpgsql COST 0.0000000001 AS $$
BEGIN
    IF tenant = 'hidden' THEN RAISE EXCEPTION 'seen: %', tenant; END IF;
    RETURN true;
END $$;
SELECT is((pg_temp.attempt(role, format('SELECT FROM idem.%s WHERE pg_temp.peek_tenant(tenant)', view))).state, expected,
          format('%s''s predicate on %s', role, view))
  FROM (VALUES ('records'), ('in_flight'), ('streams')) AS v (view),
       (VALUES ('test_stranger', 'ok'), ('test_member', 'P0001')) AS r (role, expected)
 ORDER BY role, view;

SELECT is_empty(
    $$SELECT oid::regclass FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind IN ('v', 'm')
         AND NOT coalesce(reloptions, '{}') @> '{security_barrier=true}'$$,
    'every view is a security barrier');
-- A cheap function of the reader must not be called with what the view hides.
CREATE FUNCTION pg_temp.peek(name text) RETURNS boolean LANGUAGE plpgsql COST 0.0000000001 AS $$
BEGIN
    IF name IN ('owned', 'orphan') THEN RAISE EXCEPTION 'seen: %', name; END IF;
    RETURN true;
END $$;
SELECT is((pg_temp.attempt('test_stranger', 'SELECT FROM idem.scopes WHERE pg_temp.peek(name)')).state, 'ok',
          'a stranger''s predicate is not evaluated on hidden scopes');
SELECT is((pg_temp.attempt('test_member', 'SELECT FROM idem.scopes WHERE pg_temp.peek(name)')).state, 'P0001',
          'a member''s predicate is evaluated, so that test can fail');

-- Members of pg_monitor: the figures of every scope, even of those without an owner, but no key --

CREATE ROLE test_watcher IN ROLE pg_monitor;
SELECT is((pg_temp.attempt(role, format($$DO 'BEGIN ASSERT (SELECT count(*) FROM %s AS v WHERE scope IN (''owned'', ''orphan'')) = %s; END'$$,
                                        source, seen))).state, 'ok', format('%s sees %s scopes in %s', role, seen, source))
  FROM (VALUES ('idem.overview')) AS s (source),
       (VALUES ('test_watcher', 2), ('test_super', 2), ('test_member', 1), ('test_dormant', 0), ('test_stranger', 0)) AS r (role, seen)
 ORDER BY source, role;
-- Checks of the server are for them alone; those of scopes are for every role, about its own.
SELECT is((pg_temp.attempt(role, format($$DO 'BEGIN ASSERT (SELECT count(*) > 0 FROM idem.health() WHERE %s) = %s; END'$$, what, seen::text))).state, 'ok',
          format('%s %s health() say: %s', role, CASE WHEN seen THEN 'sees' ELSE 'does not see' END, what))
  FROM (VALUES ('check_name = ''''secrets''''', 'test_watcher', true), ('check_name = ''''secrets''''', 'test_super', true),
               ('check_name = ''''secrets''''', 'test_owner', false), ('check_name = ''''secrets''''', 'test_stranger', false),
               ('check_name = ''''attempts''''', 'test_stranger', true),
               ('scope = ''''owned''''', 'test_watcher', true), ('scope = ''''owned''''', 'test_owner', true), ('scope = ''''owned''''', 'test_stranger', false),
               ('scope = ''''orphan''''', 'test_watcher', true), ('scope = ''''orphan''''', 'test_owner', false)) AS e (what, role, seen);
SELECT is((pg_temp.attempt('test_watcher', format($$DO 'BEGIN ASSERT (SELECT count(*) FROM %s) = 0; END'$$, source))).state, 'ok',
          'a member of pg_monitor sees nothing in ' || source)
  FROM (VALUES ('idem.records'), ('idem.in_flight'), ('idem_internal.held_keys(true)'), ('idem.streams'), ('idem.scopes')) AS s (source);
SELECT is((pg_temp.attempt('test_watcher', format(call, 'owned'))).state, '42501', format('a member of pg_monitor: ' || call, 'owned'))
  FROM scoped_call ORDER BY call;

-- Creating scopes --------------------------------------------------------------------------------

CREATE ROLE test_creator IN ROLE test_owner;
CREATE ROLE test_dormant_creator NOINHERIT IN ROLE test_owner;
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope,
    idem.revoke, idem.forget, idem.forget_tenant, idem.erase, idem.erase_tenant, idem.reset_stream TO test_creator, test_dormant_creator;
SELECT is((pg_temp.attempt(role, format($$SELECT idem.create_scope('fresh', owner => %L)$$, owner))).state, expected,
          format('%s creates a scope for %s', role, coalesce(owner, 'itself')))
  FROM (VALUES
        ('test_stranger', NULL, '42501'),                -- no EXECUTE
        ('test_owner', 'test_owner', '42501'),
        ('test_creator', NULL, 'ok'),
        ('test_creator', 'test_creator', 'ok'),
        ('test_creator', 'test_owner', 'ok'),            -- may SET ROLE to it
        ('test_dormant_creator', 'test_owner', 'ok'),
        ('test_creator', 'test_stranger', '42501'),
        ('test_creator', 'test_super', '42501'),
        ('test_super', NULL, 'ok'),
        ('test_super', 'test_stranger', 'ok')) AS attempt (role, owner, expected);
SELECT is((pg_temp.attempt('test_creator', $call$DO $do$ BEGIN
              PERFORM idem.create_scope('fresh', owner => 'test_owner');
              ASSERT (SELECT owner = 'test_owner'::regrole FROM idem.scopes WHERE name = 'fresh');
              PERFORM idem.create_scope('mine');
              ASSERT (SELECT owner = 'test_creator'::regrole FROM idem.scopes WHERE name = 'mine');
          END $do$ $call$)).state, 'ok', 'a scope belongs to the named owner, by default to its creator');

-- CREATE on the schema gives nothing.
SELECT is((pg_temp.attempt('test_super', format($call$DO $do$ BEGIN
              GRANT CREATE ON SCHEMA idem TO test_owner;
              SET LOCAL ROLE test_owner;
              %s;
          END $do$ $call$, call))).state, '42501', 'CREATE on the schema is not enough: ' || call)
  FROM (VALUES ($$PERFORM idem.create_scope('fresh')$$), ($$PERFORM idem.alter_scope('owned', ttl => '1 day')$$),
               ($$PERFORM idem.drop_scope('owned')$$), ($$PERFORM idem.forget('owned', 'finished')$$)) AS c (call);

-- Administering scopes takes the owner's privileges and EXECUTE ----------------------------------

CREATE ROLE test_other_creator;
-- A transaction with an open claim in a scope may not change the scope.
SELECT idem.release(token) FROM held;
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope,
    idem.revoke, idem.forget, idem.forget_tenant, idem.erase, idem.erase_tenant, idem.reset_stream TO test_other_creator;
CREATE TEMP TABLE admin_call (call text);
INSERT INTO admin_call VALUES
    ($$SELECT idem.alter_scope('%s', ttl => '1 day')$$),
    ($$SELECT idem.drop_scope('%s')$$),
    ($$SELECT idem.revoke('%s', 'finished')$$),
    ($$SELECT idem.forget('%s', 'finished')$$),
    ($$SELECT idem.forget_tenant('%s', '')$$),
    ($$SELECT idem.erase('%s', 'finished')$$),
    ($$SELECT idem.erase_tenant('%s', '')$$),
    ($$SELECT idem.reset_stream('%s', 'stream')$$);
SELECT is((pg_temp.attempt(role, format(call, 'owned'))).state, expected, format('%s: ' || call, role, 'owned'))
  FROM admin_call, (VALUES ('test_owner', '42501'), ('test_member', '42501'), ('test_stranger', '42501'),
                           ('test_other_creator', '42501'), ('test_dormant_creator', '42501'),
                           ('test_creator', 'ok'), ('test_super', 'ok')) AS attempt (role, expected)
 ORDER BY call, role;
SELECT is((pg_temp.attempt(role, format(call, 'orphan'))).state, expected,
          format('%s: ' || call || ', whose owner was dropped', role, 'orphan'))
  FROM admin_call, (VALUES ('test_creator', '42501'), ('test_super', 'ok')) AS attempt (role, expected)
 ORDER BY call, role;
SELECT is((pg_temp.attempt(role, format($$SELECT idem.alter_scope('owned', owner => %L)$$, owner))).state, expected,
          format('%s gives the scope to %s', role, owner))
  FROM (VALUES ('test_creator', 'test_creator', 'ok'), ('test_creator', 'test_owner', 'ok'),
               ('test_creator', 'test_stranger', '42501'), ('test_creator', 'test_super', '42501'),
               ('test_super', 'test_stranger', 'ok')) AS attempt (role, owner, expected);
SELECT is(pg_temp.attempt('test_member', $$SELECT idem.forget('owned', 'new')$$),
          pg_temp.attempt('test_member', $$SELECT idem.forget('owned', 'finished')$$),
          'a role that may not forget gets the same error for a key that exists and for one that does not');
SELECT is((pg_temp.attempt('test_creator', $call$DO $do$ BEGIN
              PERFORM idem.alter_scope('owned', owner => 'test_creator');
              SET LOCAL ROLE test_owner;
              PERFORM idem.lookup('owned', 'finished');
          END $do$ $call$)).state, '42501', 'the old owner of a scope that was given away cannot administer it');

-- Maintenance ------------------------------------------------------------------------------------

CREATE ROLE test_purger;
GRANT EXECUTE ON FUNCTION idem.purge(integer) TO test_purger;
\if :extension
GRANT EXECUTE ON FUNCTION idem.stats_reset(text) TO test_purger;
\endif
SELECT is((pg_temp.attempt(role, format('SELECT idem.%s()', call))).state, expected, format('%s calls %s', role, call))
  FROM (VALUES ('purge'), ('stats_reset')) AS c (call),
       (VALUES ('test_owner', '42501'), ('test_member', '42501'), ('test_stranger', '42501'),
               ('test_purger', 'ok'), ('test_super', 'ok')) AS attempt (role, expected)
 WHERE :'extension' OR call = 'purge';
CREATE ROLE test_rotator;
GRANT EXECUTE ON FUNCTION idem.rotate_secret() TO test_rotator;
SELECT is((pg_temp.attempt(role, 'SELECT idem.rotate_secret()')).state, expected, format('%s rotates the secret', role))
  FROM (VALUES ('test_owner', '42501'), ('test_creator', '42501'), ('test_stranger', '42501'),
               ('test_rotator', 'ok'), ('test_super', 'ok')) AS attempt (role, expected);
\if :extension
GRANT EXECUTE ON FUNCTION idem.export_identity(), idem.import_identity(jsonb) TO test_rotator;
SELECT is((pg_temp.attempt(role, call)).state, expected, format('%s: %s', role, call))
  FROM (VALUES ('SELECT idem.export_identity()', 'ok'), ($$SELECT idem.import_identity('{}')$$, '22023')) AS c (call, allowed),
       (VALUES ('test_owner'), ('test_creator'), ('test_stranger'), ('test_rotator'), ('test_super')) AS attempt (role),
       LATERAL (SELECT CASE role WHEN 'test_super' THEN allowed ELSE '42501' END) AS e (expected);
SELECT set_eq(
    $$SELECT proname::text FROM pg_proc WHERE pronamespace = 'idem_internal'::regnamespace
         AND has_function_privilege('test_stranger', oid, 'EXECUTE')$$,
    ARRAY['differences', 'error_of', 'errors', 'figures', 'findings', 'held_keys', 'header_lines', 'is_unfinished', 'key_holders', 'key_text',
          'key_weakness', 'library', 'own_checks', 'own_tables', 'path_fault', 'preloaded', 'quantile', 'record_tables', 'refuse', 'role_in', 'role_out', 'scope_counters',
          'sqlstate_of', 'totals'],
    'what the functions and views for every role call, every role may');
\endif
SELECT set_eq(
    $$SELECT proname::text FROM pg_proc WHERE pronamespace = 'idem'::regnamespace
         AND has_function_privilege('test_stranger', oid, 'EXECUTE')$$,
    ARRAY['advance', 'backoff', 'cancel', 'checkpoint', 'child_key', 'claim', 'complete',
          'current_key', 'derive_key', 'edition', 'execute', 'fail', 'health', 'http_headers', 'http_status', 'lookup', 'new_key', 'once', 'once_each',
          'parse_key', 'problem', 'release', 'renew', 'require_claim', 'scope_ddl', 'take', 'try_claim', 'use_records'],
    'every role may call everything else: the scope decides');

-- Tables -----------------------------------------------------------------------------------------

SELECT is_empty(
    $$SELECT c.oid::regclass, grantee::regrole, privilege_type
        FROM pg_class c, aclexplode(coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, relowner)))
       WHERE relnamespace = 'idem'::regnamespace AND relkind IN ('r', 'v', 'm', 'S', 'p')
         AND grantee <> relowner AND NOT (relkind = 'v' AND privilege_type = 'SELECT'
                                          AND grantee = 0)$$,
    'no role has rights on a table or sequence, and on the views only SELECT');
SELECT is_empty($$SELECT attrelid::regclass, attname FROM pg_attribute
                   WHERE attacl IS NOT NULL AND attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'idem'::regnamespace)$$,
                'no role has rights on a single column');
SELECT is((pg_temp.attempt(role, format(call, relation))).state, '42501', format('%s: ' || call, role, relation))
  FROM (VALUES ('test_owner'), ('test_stranger'), ('test_creator'), ('test_purger')) AS r (role),
       (VALUES ('idem.record'), ('idem.scope'), ('idem.dropped_scope'), ('idem.secret'), ('idem.purge_progress'), ('idem.watermark')) AS t (relation),
       (VALUES ('SELECT FROM %s'), ('INSERT INTO %s DEFAULT VALUES'), ('DELETE FROM %s'), ('TRUNCATE %s'),
               ('LOCK %s IN ACCESS SHARE MODE')) AS c (call)
 ORDER BY role, relation, call;
SELECT is((pg_temp.attempt(role, $$SELECT nextval('idem.scope_id')$$)).state, '42501', role || ': the scope ids')
  FROM (VALUES ('test_owner'), ('test_stranger'), ('test_creator')) AS r (role);

-- Record tables elsewhere -----------------------------------------------------------------------

\if :extension
CREATE SCHEMA test_elsewhere;
GRANT ALL ON SCHEMA test_elsewhere TO PUBLIC;
CREATE ROLE test_maker IN ROLE test_owner;
GRANT EXECUTE ON FUNCTION idem.create_record_table, idem.create_scope, idem.alter_scope TO test_maker;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO test_owner, PUBLIC;
SELECT idem.create_record_table('test_elsewhere.record', 'tenant_id', 'text');
SELECT idem.create_record_table('test_elsewhere.given'), idem.create_record_table('test_elsewhere.open'),
       idem.create_record_table('test_elsewhere.column'), idem.create_record_table('test_elsewhere.keyed', 'tenant_id', 'uuid');
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM test_owner, PUBLIC;
ALTER TABLE test_elsewhere.given OWNER TO test_owner;
GRANT SELECT, TRUNCATE ON test_elsewhere.open TO test_stranger;
GRANT UPDATE (response) ON test_elsewhere.column TO PUBLIC;
ALTER TABLE test_elsewhere.keyed DROP CONSTRAINT keyed_pkey, ADD PRIMARY KEY (tenant_id);
CREATE TABLE test_elsewhere.copy (LIKE idem.record INCLUDING ALL);
ALTER TABLE test_elsewhere.copy OWNER TO test_owner;
-- The owner of a schema may drop a table in it, but makes none that idem takes for its own.
CREATE SCHEMA AUTHORIZATION test_owner CREATE TABLE own (key text, response jsonb);
GRANT USAGE ON SCHEMA test_owner TO PUBLIC;

SELECT is_empty($$SELECT grantee::regrole, privilege_type FROM pg_class, aclexplode(relacl)
                   WHERE oid = 'test_elsewhere.record'::regclass AND grantee <> relowner$$,
                'default privileges give nothing of a record table away');
SELECT is(has_type_privilege(role, 'idem.key_digest', 'USAGE'), role = 'test_super', role || ': the type that marks a record table')
  FROM (VALUES ('test_owner'), ('test_maker'), ('test_stranger'), ('test_super')) AS r (role);
SELECT is((pg_temp.attempt(role, call)).state, expected, format('%s: %s', role, call))
  FROM (VALUES ('test_owner'), ('test_maker'), ('test_stranger')) AS r (role),
       (VALUES ('CREATE TABLE test_elsewhere.forged (digest idem.key_digest PRIMARY KEY)', '42501'),
               ('CREATE TABLE test_elsewhere.forged (LIKE test_elsewhere.record)', '42501'),
               ('CREATE TABLE test_elsewhere.forged () INHERITS (test_elsewhere.record)', '42501'),
               ('CREATE TABLE test_elsewhere.forged PARTITION OF test_elsewhere.record DEFAULT', '42501'),
               ($$SELECT idem.create_record_table('test_elsewhere.forged')$$, '42501'),
               ('INSERT INTO test_elsewhere.record DEFAULT VALUES', '42501'),
               ('UPDATE test_elsewhere.record SET response = NULL', '42501'),
               ('DELETE FROM test_elsewhere.record', '42501'),
               ('TRUNCATE test_elsewhere.record', '42501'),
               ('SELECT FROM test_elsewhere.record', '42501'),
               ('GRANT INSERT ON test_elsewhere.record TO PUBLIC', '42501'),
               ('ALTER TABLE test_elsewhere.record OWNER TO test_owner', '42501'),
               ('CREATE TRIGGER t BEFORE INSERT ON test_elsewhere.record EXECUTE FUNCTION idem.require_claim()', '42501'),
               ('CREATE RULE r AS ON INSERT TO test_elsewhere.record DO INSTEAD NOTHING', '42501'),
               ('CREATE INDEX ON test_elsewhere.record (response)', '42501'),
               ($$SELECT idem.use_records('test_elsewhere.record')$$, 'ok'),
               ($$SELECT idem.use_records('test_elsewhere.given')$$, '42501'),
               ($$SELECT idem.use_records('test_elsewhere.open')$$, '42501'),
               ($$SELECT idem.use_records('test_elsewhere.column')$$, '42501'),
               ($$SELECT idem.use_records('test_elsewhere.copy')$$, '42809'),
               ($$SELECT idem.use_records('test_owner.own')$$, '42809'),
               ($$SELECT idem.use_records('idem.scope')$$, '42809'),
               ($$SELECT idem.use_records('pg_class')$$, '42809')) AS c (call, expected)
 ORDER BY role, call;
SELECT idem.create_scope('distant', owner => 'test_owner', records => true);
SELECT is((pg_temp.attempt('test_owner', $$SELECT idem.use_records('test_elsewhere.keyed'), idem.once('distant', 'new', tenant => gen_random_uuid()::text)$$)).state,
          '42809', 'a tenant that is a UUID is not taken for the digest');
-- A table that was right when it was chosen is checked again.
SELECT is((pg_temp.attempt('test_super', format($call$DO $do$ BEGIN
              PERFORM idem.use_records('test_elsewhere.record'), idem.once('distant', 'before', tenant => 't');
              %s;
              PERFORM idem.once('distant', 'after', tenant => 't');
          END $do$ $call$, change))).state, expected, 'chosen, and then: ' || change)
  FROM (VALUES ('NULL', 'ok'),
               ('GRANT INSERT ON test_elsewhere.record TO test_stranger', '42501'),
               ('GRANT INSERT ON test_elsewhere.record TO test_super', '42501'),
               ('GRANT UPDATE (error) ON test_elsewhere.record TO PUBLIC', '42501'),
               ('GRANT SELECT ON test_elsewhere.record TO PUBLIC', 'ok'),
               ('ALTER TABLE test_elsewhere.record OWNER TO test_owner', '42501'),
               ('ALTER TABLE idem.record OWNER TO test_super', '42501'),
               ('ALTER TABLE test_elsewhere.record DROP COLUMN headers', '42809'),
               ('ALTER TABLE test_elsewhere.record RENAME COLUMN body TO soul', '42809'),
               ('ALTER TABLE test_elsewhere.record ALTER digest TYPE uuid', '42809'),
               ('ALTER TABLE test_elsewhere.record SET UNLOGGED', '42809'),
               ('ALTER TABLE test_elsewhere.record DROP CONSTRAINT record_pkey', '42809'),
               ('ALTER TABLE test_elsewhere.record DROP CONSTRAINT record_pkey, ADD PRIMARY KEY (digest)', '42809'),
               ('ALTER TABLE test_elsewhere.record DROP CONSTRAINT record_pkey, ADD PRIMARY KEY (tenant_id, digest)', '42809'),
               ('ALTER TABLE test_elsewhere.record DROP CONSTRAINT record_pkey, ADD PRIMARY KEY (digest, created)', '42809'),
               ('ALTER TABLE test_elsewhere.record DROP CONSTRAINT record_pkey, ADD PRIMARY KEY (digest, tenant_id) DEFERRABLE', '42809'),
               ('DROP TABLE test_elsewhere.record', '42P01')) AS c (change, expected);
\endif

-- idem.max_open_claims protects the whole server; idem.tenant is the caller's own.
SELECT is((pg_temp.attempt(role, 'SET LOCAL ' || setting)).state, expected, format('%s: SET %s', role, setting))
  FROM (VALUES ('test_stranger', 'idem.max_open_claims = 100000', '42501'),
               ('test_stranger', 'idem.tenant = acme', 'ok'),
               ('test_super', 'idem.max_open_claims = 100000', 'ok')) AS attempt (role, setting, expected);

SELECT * FROM finish();
ROLLBACK;
