-- Privileges of every function and every relation of the extension, for every kind of role. The
-- contents of the extension are read from the catalogs, so that a new object without a row here
-- fails the test.
BEGIN;
SELECT no_plan();
SELECT idem.edition() = 'extension' AS extension \gset

CREATE ROLE matrix_owner;
CREATE ROLE matrix_admin IN ROLE matrix_owner;
CREATE ROLE matrix_member IN ROLE matrix_owner;
CREATE ROLE matrix_dormant NOINHERIT IN ROLE matrix_owner;  -- has the privileges only after SET ROLE
CREATE ROLE matrix_stranger;                                -- has scopes of its own, and may create them
CREATE ROLE matrix_public;                                  -- has nothing but what PUBLIC has
CREATE ROLE matrix_reader IN ROLE pg_read_all_data;
CREATE ROLE matrix_writer IN ROLE pg_write_all_data;
CREATE ROLE matrix_watcher IN ROLE pg_monitor;                -- sees figures, no keys
CREATE ROLE matrix_super SUPERUSER;
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope,
    idem.revoke, idem.forget, idem.forget_tenant, idem.erase, idem.erase_tenant, idem.reset_stream TO matrix_admin, matrix_stranger;

SELECT idem.create_scope('owned', owner => 'matrix_owner'), idem.create_scope('idle', owner => 'matrix_owner');
SELECT idem.create_scope('theirs', owner => 'matrix_stranger');
SELECT idem.complete(token, '{"answer": "swordfish"}')
  FROM idem.claim('owned', 'finished', '{"card": "hunter2"}');
SELECT idem.complete(token) FROM idem.claim('owned', '4711');
SELECT idem.advance('owned', 'stream', 7);
\if :extension
SELECT idem.create_record_table('public.matrix_records');
SELECT idem.use_records('public.matrix_records');
SELECT idem.create_scope('distant', owner => 'matrix_owner', records => true);
SELECT idem.once('distant', 'elsewhere');
SELECT idem.use_records('idem.record');
\endif
CREATE FUNCTION pg_temp.work(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';

-- What each kind of role gets ---------------------------------------------------------------------

CREATE TEMP TABLE rule (rule text PRIMARY KEY, admin text, owner text, member text, dormant text,
                        stranger text, public text, reader text, watcher text, super text);
INSERT INTO rule VALUES
    --                admin    owner    member   dormant  stranger public   reader   watcher  super
    ('every role',     'ok',    'ok',    'ok',    'ok',    'ok',    'ok',    'ok',    'ok',    'ok'),
    ('user',          'ok',    'ok',    'ok',    '42501', '42501', '42501', '42501', '42501', 'ok'),
    ('lease holder',  'ok',    'ok',    'ok',    'ID004', 'ID004', 'ID004', 'ID004', 'ID004', 'ok'),
    ('administrator', 'ok',    '42501', '42501', '42501', '42501', '42501', '42501', '42501', 'ok'),
    ('creator',       'ok',    '42501', '42501', '42501', 'ok',    '42501', '42501', '42501', 'ok'),
    ('superuser',     '42501', '42501', '42501', '42501', '42501', '42501', '42501', '42501', 'ok'),
    ('reader',        '42501', '42501', '42501', '42501', '42501', '42501', 'ok',    '42501', 'ok'),
    ('watcher',       '42501', '42501', '42501', '42501', '42501', '42501', '42501', 'ok',    'ok'),
    ('no token',      'ID005', 'ID005', 'ID005', 'ID005', 'ID005', 'ID005', 'ID005', 'ID005', 'ID005'),
    ('no lease',      'ID004', 'ID004', 'ID004', 'ID004', 'ID004', 'ID004', 'ID004', 'ID004', 'ID004'),
    ('trigger',       '39P01', '39P01', '39P01', '39P01', '39P01', '39P01', '39P01', '39P01', '39P01'),
    ('own trigger',   '42501', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '39P01'),
    ('sees',          'rows',  'rows',  'rows',  'none',  'none',  'none',  'none',  'none',  'rows'),
    ('observes',      'rows',  'rows',  'rows',  'none',  'none',  'none',  'none',  'rows',  'rows'),
    ('monitors',      'none',  'none',  'none',  'none',  'none',  'none',  'none',  'rows',  'rows'),
    ('sees nothing',  'none',  'none',  'none',  'none',  'none',  'none',  'none',  'none',  'none');
-- What is kept in shared memory exists only where the library is preloaded.
SELECT CASE WHEN current_setting('shared_preload_libraries') ~ 'idem' THEN 'sees' ELSE 'sees nothing' END AS sees_counted,
       CASE WHEN current_setting('shared_preload_libraries') ~ 'idem' THEN 'observes' ELSE 'sees nothing' END AS observes_counted \gset
CREATE TEMP VIEW verdict AS
    SELECT rule, 'matrix_' || kind AS role, expected
      FROM rule AS line, jsonb_each_text(to_jsonb(line) - 'rule') AS cell (kind, expected);

-- The functions. In a call, $1 is the token of an atomic claim of this transaction, $2 that of a
-- leased one; both were made by a superuser, in scope "owned".
CREATE TEMP TABLE call (function text, rule text REFERENCES rule, call text);
INSERT INTO call VALUES
    ('idem.claim(text,anycompatible,jsonb,text,interval,interval,interval)', 'user', $$SELECT idem.claim('owned', 'new')$$),
    ('idem.claim(text,anycompatible,jsonb,text,interval,interval,interval)', 'user', $$SELECT idem.claim('owned', 'finished', '{"card": "hunter2"}')$$),
    ('idem.claim(text,anycompatible,jsonb,text,interval,interval,interval)', 'user', $$SELECT idem.claim('owned', 'new', lease => '1 min')$$),
    ('idem.try_claim(text,anycompatible,jsonb,text,interval,interval,interval)', 'user', $$SELECT idem.try_claim('owned', 'new')$$),
    ('idem.try_claim(text,anycompatible,jsonb,text,interval,interval,interval)', 'user', $$SELECT idem.try_claim('owned', 'finished', '{"card": "hunter2"}')$$),
    ('idem.try_claim(text,anycompatible,jsonb,text,interval,interval,interval)', 'user', $$SELECT idem.try_claim('owned', 'open')$$),
    ('idem.execute(text,anycompatible,regprocedure,jsonb,text,interval,interval)', 'user', $$SELECT idem.execute('owned', 'new', 'pg_temp.work(jsonb)')$$),
    ('idem.execute(text,anycompatible,regprocedure,jsonb,text,interval,interval)', 'user', $$SELECT idem.execute('owned', 'finished', 'pg_temp.work(jsonb)', '{"card": "hunter2"}')$$),
    ('idem.lookup(text,anycompatible,text,interval)', 'user', $$SELECT idem.lookup('owned', 'new')$$),
    ('idem.lookup(text,anycompatible,text,interval)', 'user', $$SELECT idem.lookup('owned', 'finished')$$),
    ('idem.lookup(text,anycompatible,text,interval)', 'user', $$SELECT idem.lookup('owned', 'open', wait => '10 ms')$$),
    ('idem.cancel(text,anycompatible,text,jsonb)', 'user', $$SELECT idem.cancel('owned', 'new')$$),
    ('idem.cancel(text,anycompatible,text,jsonb)', 'user', $$SELECT idem.cancel('owned', 'finished')$$),
    ('idem.claim(text,anycompatible,jsonb,text,interval,interval,interval)', 'user', $$SELECT idem.claim('owned', gen_random_uuid())$$),
    ('idem.try_claim(text,anycompatible,jsonb,text,interval,interval,interval)', 'user', $$SELECT idem.try_claim('owned', gen_random_uuid())$$),
    ('idem.execute(text,anycompatible,regprocedure,jsonb,text,interval,interval)', 'user', $$SELECT idem.execute('owned', gen_random_uuid(), 'pg_temp.work(jsonb)')$$),
    ('idem.lookup(text,anycompatible,text,interval)', 'user', $$SELECT idem.lookup('owned', gen_random_uuid())$$),
    ('idem.cancel(text,anycompatible,text,jsonb)', 'user', $$SELECT idem.cancel('owned', gen_random_uuid())$$),
    ('idem.once(text,anycompatible,jsonb,text)', 'user', $$SELECT idem.once('owned', gen_random_uuid())$$),
    ('idem.once(text,anycompatible,jsonb,text)', 'user', $$SELECT idem.once('owned', 'new')$$),
    ('idem.once(text,anycompatible,jsonb,text)', 'user', $$SELECT idem.once('owned', 'finished', '{"card": "hunter2"}')$$),
    ('idem.once_each(text,anycompatiblearray,text)', 'user', $$SELECT idem.once_each('owned', '{new, newer, new}')$$),
    ('idem.once_each(text,anycompatiblearray,text)', 'user', $$SELECT idem.once_each('owned', '{finished}')$$),
    ('idem.advance(text,text,bigint,text,boolean)', 'user', $$SELECT idem.advance('owned', 'stream', 1)$$),
    ('idem.take(text,text,interval,interval)', 'user', $$SELECT idem.take('owned')$$),
    ('idem.backoff(integer,interval,interval)', 'every role', $$SELECT idem.backoff(1)$$),
    -- An atomic token is the right to finish, within the transaction that claimed.
    ('idem.complete(text,jsonb,integer,jsonb,bytea)', 'every role', $$SELECT idem.complete($1)$$),
    ('idem.fail(text,jsonb,integer,jsonb,bytea)', 'every role', $$SELECT idem.fail($1, '{"message": "no"}')$$),
    ('idem.release(text,interval,jsonb)', 'every role', $$SELECT idem.release($1)$$),
    ('idem.child_key(text,text)', 'every role', $$SELECT idem.child_key($1, 'step')$$),
    -- A made-up token is invalid, whatever it is made from: here, everything but the random bits.
    ('idem.complete(text,jsonb,integer,jsonb,bytea)', 'no token', $$SELECT idem.complete(left($1, 28) || repeat('a', 16))$$),
    ('idem.fail(text,jsonb,integer,jsonb,bytea)', 'no token', $$SELECT idem.fail(left($1, 28) || repeat('a', 16), '{"message": "no"}')$$),
    ('idem.release(text,interval,jsonb)', 'no token', $$SELECT idem.release(left($1, 28) || repeat('a', 16))$$),
    ('idem.child_key(text,text)', 'no token', $$SELECT idem.child_key(left($1, 28) || repeat('a', 16), 'step')$$),
    -- A leased token lives on, so it is not sufficient: it also takes the privileges of the scope's
    -- owner.
    ('idem.complete(text,jsonb,integer,jsonb,bytea)', 'lease holder', $$SELECT idem.complete($2)$$),
    ('idem.fail(text,jsonb,integer,jsonb,bytea)', 'lease holder', $$SELECT idem.fail($2, '{"message": "no"}')$$),
    ('idem.release(text,interval,jsonb)', 'lease holder', $$SELECT idem.release($2)$$),
    ('idem.child_key(text,text)', 'lease holder', $$SELECT idem.child_key($2, 'step')$$),
    ('idem.renew(text,interval)', 'lease holder', $$SELECT idem.renew($2)$$),
    ('idem.checkpoint(text,text,jsonb)', 'lease holder', $$SELECT idem.checkpoint($2, 'step')$$),
    ('idem.complete(text,jsonb,integer,jsonb,bytea)', 'no lease', $$SELECT idem.complete(left($2, 28) || repeat('a', 16))$$),
    ('idem.fail(text,jsonb,integer,jsonb,bytea)', 'no lease', $$SELECT idem.fail(left($2, 28) || repeat('a', 16), '{"message": "no"}')$$),
    ('idem.release(text,interval,jsonb)', 'no lease', $$SELECT idem.release(left($2, 28) || repeat('a', 16))$$),
    ('idem.renew(text,interval)', 'no lease', $$SELECT idem.renew(left($2, 28) || repeat('a', 16))$$),
    ('idem.checkpoint(text,text,jsonb)', 'no lease', $$SELECT idem.checkpoint(left($2, 28) || repeat('a', 16), 'step')$$),
    ('idem.current_key()', 'every role', $$SELECT idem.current_key()$$),
    ('idem_internal.announce_change()', 'own trigger', $$SELECT idem_internal.announce_change()$$),
    ('idem.require_claim()', 'trigger', $$SELECT idem.require_claim()$$),
    -- Scopes and their records.
    ('idem.create_scope(text,interval,interval,interval,boolean,text[],boolean,boolean,integer,integer,text,boolean,text[],text[],text,interval,interval,text[],text,integer,boolean,text[],regrole,boolean)',
     'creator', $$SELECT idem.create_scope('new')$$),
    ('idem.create_scope(text,interval,interval,interval,boolean,text[],boolean,boolean,integer,integer,text,boolean,text[],text[],text,interval,interval,text[],text,integer,boolean,text[],regrole,boolean)',
     'administrator', $$SELECT idem.create_scope('new', owner => 'matrix_owner')$$),
    ('idem.create_scope(text,interval,interval,interval,boolean,text[],boolean,boolean,integer,integer,text,boolean,text[],text[],text,interval,interval,text[],text,integer,boolean,text[],regrole,boolean)',
     'superuser', $$SELECT idem.create_scope('new', owner => 'matrix_super')$$),
    ('idem.alter_scope(text,interval,interval,interval,boolean,text[],boolean,boolean,integer,integer,text,boolean,text[],text[],text,interval,interval,text[],text,integer,boolean,text[],regrole,boolean)',
     'administrator', $$SELECT idem.alter_scope('idle', ttl => '1 day')$$),
    ('idem.alter_scope(text,interval,interval,interval,boolean,text[],boolean,boolean,integer,integer,text,boolean,text[],text[],text,interval,interval,text[],text,integer,boolean,text[],regrole,boolean)',
     'superuser', $$SELECT idem.alter_scope('idle', owner => 'matrix_stranger')$$),
    ('idem.scope_ddl(text)', 'user', $$SELECT idem.scope_ddl('owned')$$),
    ('idem.drop_scope(text,boolean)', 'administrator', $$SELECT idem.drop_scope('idle')$$),
    ('idem.forget(text,anycompatible,text,boolean)', 'administrator', $$SELECT idem.forget('owned', 'new')$$),
    ('idem.forget(text,anycompatible,text,boolean)', 'administrator', $$SELECT idem.forget('owned', 'finished')$$),
    ('idem.revoke(text,anycompatible,text)', 'administrator', $$SELECT idem.revoke('owned', 'new')$$),
    ('idem.revoke(text,anycompatible,text)', 'administrator', $$SELECT idem.revoke('owned', 'finished')$$),
    ('idem.forget_tenant(text,text,boolean)', 'administrator', $$SELECT idem.forget_tenant('owned', 'theirs')$$),
    ('idem.erase(text,anycompatible,text,boolean)', 'administrator', $$SELECT idem.erase('owned', 'new')$$),
    ('idem.erase(text,anycompatible,text,boolean)', 'administrator', $$SELECT idem.erase('owned', 'finished')$$),
    ('idem.erase_tenant(text,text,boolean)', 'administrator', $$SELECT idem.erase_tenant('owned', 'theirs')$$),
    ('idem.reset_stream(text,text,bigint,text)', 'administrator', $$SELECT idem.reset_stream('owned', 'stream', 1)$$),
    -- The whole database: roles with EXECUTE, see below.
    ('idem.purge(integer)', 'superuser', $$SELECT idem.purge()$$),
    ('idem_internal.own_tables()', 'every role', $$SELECT idem_internal.own_tables()$$),
    ('idem_internal.record_tables()', 'every role', $$SELECT idem_internal.record_tables()$$),
    ('idem.rotate_secret()', 'superuser', $$SELECT idem.rotate_secret()$$),
    ('idem.export_identity()', 'superuser', $$SELECT idem.export_identity()$$),
    ('idem_internal.begin_import()', 'superuser', $$SELECT idem_internal.begin_import()$$),
    ('idem_internal.begin_update()', 'superuser', $$SELECT idem_internal.begin_update()$$),
    ('idem_internal.import_scope(idem.scope,boolean)', 'superuser', $$SELECT idem_internal.import_scope(s, true) FROM jsonb_populate_recordset(NULL::idem.scope, (SELECT idem.export_identity()) -> 'scopes') s$$),
    ('idem_internal.refuse_keys(text)', 'superuser', $$SELECT idem_internal.refuse_keys(name) FROM idem.scope WHERE false$$),
    ('idem.import_identity(jsonb)', 'superuser', $$SELECT idem.import_identity((SELECT idem.export_identity()))$$),
    ('idem.create_record_table(text,name,regtype)', 'superuser', $$SELECT idem.create_record_table('public.matrix_new')$$),
    ('idem_internal.make_record_table(text,name,regtype,name)', 'superuser', $$SELECT idem_internal.make_record_table('public.matrix_new', NULL, NULL, NULL)$$),
    ('idem.use_records(regclass)', 'every role', $$SELECT idem.use_records('public.matrix_records')$$),
    ('idem.use_records(regclass)', 'user', $$SELECT idem.use_records('public.matrix_records'), idem.once('distant', 'new')$$),
    ('idem.stats_reset(text)', 'superuser', $$SELECT idem.stats_reset('owned')$$),
    ('idem.stats_reset(text)', 'superuser', $$SELECT idem.stats_reset()$$),
    -- The views below use these.
    ('idem_internal.scope_counters(integer)', :'observes_counted', format($$SELECT FROM idem_internal.scope_counters(%s)$$, (SELECT id FROM idem.scope WHERE name = 'owned'))),
    ('idem_internal.figures(integer[],interval[],integer[])', 'observes',
     format($$SELECT FROM idem_internal.figures('{%1$s}', '{1 day}', '{1}') WHERE scope_id = %1$s$$, (SELECT id FROM idem.scope WHERE name = 'owned'))),
    ('idem_internal.totals(integer[],interval[],integer[])', 'reader', $$SELECT FROM idem_internal.totals('{1}', '{1 day}', '{1}')$$),
    ('idem_internal.quantile(bigint[],integer)', 'every role', $$SELECT idem_internal.quantile('{1}', 50)$$),
    ('idem_internal.held_keys(boolean)', :'sees_counted', $$SELECT FROM idem_internal.held_keys(true) WHERE scope = 'owned'$$),
    -- Members of pg_monitor may also see figures.
    ('idem.health(interval)', 'observes', $$SELECT FROM idem.health() WHERE scope = 'owned' AND check_name = 'weak keys'$$),
    ('idem.health(interval)', 'monitors', $$SELECT FROM idem.health() WHERE check_name = 'secrets'$$),
    ('idem_internal.findings(interval)', 'monitors', $$SELECT FROM idem_internal.findings('1 day') WHERE check_name = 'secrets'$$),
    ('idem_internal.preloaded()', 'every role', $$SELECT idem_internal.preloaded()$$),
    ('idem_internal.library()', 'every role', $$SELECT idem_internal.library()$$),
    ('idem_internal.key_holders()', 'every role', $$SELECT idem_internal.key_holders()$$),
    ('idem_internal.own_checks()', 'every role', $$SELECT idem_internal.own_checks()$$),
    -- These only compute.
    ('idem.new_key()', 'every role', $$SELECT idem.new_key()$$),
    ('idem.derive_key(text[])', 'every role', $$SELECT idem.derive_key('a', 'b')$$),
    ('idem.edition()', 'every role', $$SELECT idem.edition()$$),
    ('idem_internal.is_unfinished(idem.record)', 'every role', $$SELECT idem_internal.is_unfinished(NULL)$$),
    ('idem_internal.key_text(idem.record)', 'every role', $$SELECT idem_internal.key_text(NULL)$$),
    ('idem_internal.key_weakness(text)', 'every role', $$SELECT idem_internal.key_weakness('4711')$$),
    ('idem_internal.refuse(text,text,text,text)', 'every role', $$SELECT idem_internal.refuse(rolname::text, '', 'b', 'c') FROM pg_roles WHERE false$$),
    ('idem_internal.differences(jsonb,jsonb)', 'every role', $$SELECT idem_internal.differences('{}', '{}')$$),
    ('idem_internal.path_fault(text)', 'every role', $$SELECT idem_internal.path_fault('a..b')$$),
    ('idem_internal.errors()', 'every role', $$SELECT idem_internal.errors()$$),
    ('idem_internal.error_of(text)', 'every role', $$SELECT idem_internal.error_of('ID001')$$),
    ('idem_internal.sqlstate_of(text)', 'every role', $$SELECT idem_internal.sqlstate_of('claimed')$$),
    ('idem_internal.header_lines(text,jsonb)', 'every role', $$SELECT idem_internal.header_lines('a', '{}')$$),
    ('idem.http_status(text)', 'every role', $$SELECT idem.http_status('ID001')$$),
    ('idem.problem(text,text)', 'every role', $$SELECT idem.problem('ID001')$$),
    ('idem.parse_key(text)', 'every role', $$SELECT idem.parse_key('"a"')$$),
    ('idem.http_status(idem.claim_result)', 'every role', $$SELECT idem.http_status(r) FROM jsonb_populate_record(NULL::idem.claim_result, '{"outcome": "conflict"}') r$$),
    ('idem.http_headers(idem.claim_result)', 'every role', $$SELECT idem.http_headers(r) FROM jsonb_populate_record(NULL::idem.claim_result, '{"outcome": "conflict"}') r$$),
    ('idem.problem(idem.claim_result)', 'every role', $$SELECT idem.problem(r) FROM jsonb_populate_record(NULL::idem.claim_result, '{"outcome": "conflict"}') r$$);

-- The relations. 'rows' or 'none' is what the query finds of scope "owned".
CREATE TEMP TABLE query (relation text, rule text REFERENCES rule, query text);
INSERT INTO query VALUES
    ('idem.scopes', 'sees', $$SELECT FROM idem.scopes WHERE name = 'owned'$$),
    ('idem.records', 'sees', $$SELECT FROM idem.records WHERE scope = 'owned' AND key = 'finished'$$),
    ('idem.streams', 'sees', $$SELECT FROM idem.streams WHERE scope = 'owned' AND source = 'stream'$$),
    ('idem.in_flight', 'sees', $$SELECT FROM idem.in_flight WHERE scope = 'owned' AND key = 'leased'$$),
    ('idem.in_flight', :'sees_counted', $$SELECT FROM idem.in_flight WHERE scope = 'owned' AND key = 'open'$$),
    ('idem.overview', 'observes', $$SELECT FROM idem.overview WHERE scope = 'owned'$$),
    ('idem.storage', 'every role', $$SELECT FROM idem.storage$$),
    ('idem_internal.records_without_scope', 'every role',
     $$SELECT WHERE NOT EXISTS (SELECT FROM idem_internal.records_without_scope)$$),
    ('idem_internal.stored', 'reader', $$SELECT FROM idem_internal.stored$$),
    ('idem.durations', :'observes_counted', $$SELECT FROM idem.durations WHERE scope = 'owned'$$),
    ('idem.stats', :'observes_counted', $$SELECT FROM idem.stats WHERE scope = 'owned'$$);
-- Only idem reads the tables; pg_read_all_data is a superuser's grant, see below.
INSERT INTO query
    SELECT c.oid::regclass, rule, replace(query, '%s', c.oid::regclass::text)
      FROM pg_class c,
           (VALUES ('reader', 'SELECT FROM %s', 'rvS'),
                   ('superuser', 'INSERT INTO %s SELECT * FROM %s WHERE false', 'r'),
                   ('superuser', 'DELETE FROM %s', 'r'),
                   ('superuser', 'TRUNCATE %s', 'r'),
                   ('reader', 'LOCK %s IN ACCESS SHARE MODE', 'r'),
                   ('superuser', $$SELECT nextval('%s')$$, 'S'),
                   ('superuser', $$SELECT setval('%s', 1)$$, 'S')) AS v (rule, query, kinds)
     WHERE relnamespace = 'idem'::regnamespace AND relkind IN ('r', 'S') AND strpos(kinds, relkind::text) > 0;

-- The SQL edition lacks some of these.
\if :extension
INSERT INTO call VALUES
    ('idem_internal.role_in(cstring)', 'every role', $$SELECT idem_internal.role_in('10')$$),
    ('idem_internal.role_out(idem_internal.role)', 'every role', $$SELECT idem_internal.role_out('10')$$);
\endif
DELETE FROM call WHERE NOT :'extension' AND (to_regprocedure(function) IS NULL OR function ~ 'use_records');
DELETE FROM query WHERE NOT :'extension' AND to_regclass(relation) IS NULL;

-- Completeness -----------------------------------------------------------------------------------

CREATE TEMP VIEW owned AS
    SELECT classid, objid FROM pg_depend
     WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
       AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem');
SELECT set_eq('SELECT DISTINCT function::regprocedure FROM call',
              $$SELECT objid::regprocedure FROM owned WHERE classid = 'pg_proc'::regclass$$,
              'every function of the extension is in the matrix');
SELECT set_eq('SELECT DISTINCT relation::regclass FROM query',
              $$SELECT objid::regclass FROM owned JOIN pg_class c ON c.oid = objid
                 WHERE classid = 'pg_class'::regclass AND relkind <> 'c'$$,
              'every relation of the extension is in the matrix');
SELECT is_empty($$SELECT function, call FROM call JOIN pg_proc ON oid = function::regprocedure
                   WHERE strpos(call, pronamespace::regnamespace || '.' || proname || '(') = 0$$,
                'each call calls its function');

-- A call as a role, undone. Returns 'ok', 'rows', 'none' or the SQLSTATE.
CREATE FUNCTION pg_temp.attempt(as_role name, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    atomic text;
    leased text;
    found_rows bigint;
BEGIN
    atomic := (idem.claim('owned', 'open')).token;
    leased := (idem.claim('owned', 'leased', lease => '1 hour')).token;
    EXECUTE format('SET LOCAL ROLE %I', as_role);
    EXECUTE call USING atomic, leased;
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    RAISE EXCEPTION USING ERRCODE = 'ZZ000', MESSAGE = found_rows;
EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE <> 'ZZ000' THEN RETURN SQLSTATE; END IF;
    RETURN SQLERRM;
END $$;
-- A view hides rows without an error; everything else works or fails.
CREATE FUNCTION pg_temp.verdict(as_role name, call text, rule text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN length(got) = 5 THEN got WHEN rule !~ '^(sees|observes|monitors)' THEN 'ok' WHEN got = '0' THEN 'none' ELSE 'rows' END
      FROM pg_temp.attempt(as_role, call) AS got
$$;

CREATE TEMP VIEW task AS
    SELECT call AS task, rule FROM call UNION ALL SELECT query, rule FROM query;

SELECT is(pg_temp.verdict(role, task, rule), expected, format('%s: %s', role, task))
  FROM task JOIN verdict USING (rule) ORDER BY task, role;

-- A NOINHERIT member has the owner's rights only after SET ROLE.
SELECT is(pg_temp.verdict('matrix_dormant', 'SET LOCAL ROLE matrix_owner; ' || task, rule), expected,
          format('matrix_dormant, after SET ROLE matrix_owner: %s', task))
  FROM task JOIN verdict USING (rule) WHERE role = 'matrix_owner' ORDER BY task;

-- A SECURITY DEFINER function acts as its owner, whatever role calls it.
CREATE FUNCTION pg_temp.as_owner(call text, atomic text, leased text) RETURNS bigint SECURITY DEFINER LANGUAGE plpgsql AS $$
DECLARE found_rows bigint;
BEGIN
    EXECUTE call USING atomic, leased;
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    RETURN found_rows;
END $$;
ALTER FUNCTION pg_temp.as_owner(text, text, text) OWNER TO matrix_owner;
SELECT is(pg_temp.verdict(caller.role, format('SELECT FROM pg_temp.as_owner(%L, $1, $2) AS n, generate_series(1, n)', task), rule), expected,
          format('%s, through a function of matrix_owner''s: %s', caller.role, task))
  FROM task JOIN verdict USING (rule), (VALUES ('matrix_public'), ('matrix_super')) AS caller (role)
 WHERE verdict.role = 'matrix_owner' ORDER BY task, caller.role;

-- What a grant of EXECUTE allows.
GRANT EXECUTE ON FUNCTION idem.purge(integer), idem.rotate_secret() TO matrix_public;
\if :extension
GRANT EXECUTE ON FUNCTION idem.stats_reset(text) TO matrix_public;
\endif
SELECT is(pg_temp.verdict('matrix_public', call, rule), 'ok', 'granted to matrix_public: ' || call)
  FROM call WHERE function IN ('idem.purge(integer)', 'idem.rotate_secret()', 'idem.stats_reset(text)');

-- pg_read_all_data and pg_write_all_data are a superuser's grants and ignore scopes. SECURITY.md
-- documents what they allow.
CREATE FUNCTION pg_temp.asked(as_role name, query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text;
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', as_role);
    EXECUTE query INTO answer;
    RESET ROLE;
    RETURN answer;
END $$;
SELECT is(pg_temp.asked('matrix_reader', $$SELECT response->>'answer' FROM idem.record WHERE key = 'finished'$$), 'swordfish',
          'a member of pg_read_all_data reads every stored answer');
SELECT is(pg_temp.asked('matrix_reader', $$SELECT min(length(secret)) FROM idem.secret$$), '32', 'a member of pg_read_all_data reads the secrets');
SELECT is(pg_temp.asked('matrix_reader', $$SELECT count(*) FROM idem.scopes$$), '0', 'the views show a member of pg_read_all_data only its own scopes');
SELECT is(pg_temp.attempt('matrix_writer', $$SELECT FROM idem.record$$), '42501', 'a member of pg_write_all_data reads nothing');
SELECT cmp_ok(length(pg_temp.attempt('matrix_writer', $$UPDATE idem.record SET response = '1'$$)), '<', 5, 'a member of pg_write_all_data may forge every answer');

-- Identity through a transaction -----------------------------------------------------------------

-- SET ROLE between claim and complete: an atomic claim belongs to the transaction, a leased one to
-- the scope.
SELECT is(pg_temp.attempt('matrix_member', $$DO $do$
    DECLARE token text := (idem.claim('owned', 'mine')).token;
    BEGIN
        SET LOCAL ROLE NONE;
        SET LOCAL ROLE matrix_stranger;
        PERFORM idem.complete(token, '"kept"');
        SET LOCAL ROLE NONE;
        SET LOCAL ROLE matrix_owner;
        ASSERT (idem.lookup('owned', 'mine')).response = '"kept"';
    END $do$ $$), '0', 'claimed by a member, completed by a stranger: the record is the scope''s');
SELECT is(pg_temp.attempt('matrix_member', $$DO $do$
    DECLARE token text := (idem.claim('owned', 'mine', lease => '1 min')).token;
    BEGIN
        SET LOCAL ROLE NONE;
        SET LOCAL ROLE matrix_stranger;
        PERFORM idem.complete(token);
    END $do$ $$), 'ID004', 'a stranger with the token cannot complete a leased claim');
SELECT is(pg_temp.attempt('matrix_member', $$DO $do$
    BEGIN
        PERFORM idem.claim('owned', 'mine');
        SET LOCAL ROLE NONE;
        SET LOCAL ROLE matrix_stranger;
        PERFORM idem.claim('owned', 'mine');
    END $do$ $$), '42501', 'a stranger cannot claim a key of this transaction');

-- A revoked membership counts from the next claim on; a running operation may finish.
SELECT is(pg_temp.attempt('matrix_super', $$DO $do$
    DECLARE token text;
    BEGIN
        SET LOCAL ROLE matrix_member;
        token := (idem.claim('owned', 'mine')).token;
        SET LOCAL ROLE NONE;
        REVOKE matrix_owner FROM matrix_member;
        SET LOCAL ROLE matrix_member;
        PERFORM idem.complete(token);
        PERFORM idem.claim('owned', 'another');
    END $do$ $$), '42501', 'revoked: no new claim');
SELECT is(pg_temp.attempt('matrix_super', $$DO $do$
    DECLARE token text;
    BEGIN
        SET LOCAL ROLE matrix_member;
        token := (idem.claim('owned', 'mine')).token;
        SET LOCAL ROLE NONE;
        REVOKE matrix_owner FROM matrix_member;
        SET LOCAL ROLE matrix_member;
        PERFORM idem.complete(token);
    END $do$ $$), '0', 'revoked: an open atomic claim is completed');
SELECT is(pg_temp.attempt('matrix_super', $$DO $do$
    DECLARE token text;
    BEGIN
        SET LOCAL ROLE matrix_member;
        token := (idem.claim('owned', 'mine', lease => '1 min')).token;
        SET LOCAL ROLE NONE;
        REVOKE matrix_owner FROM matrix_member;
        SET LOCAL ROLE matrix_member;
        PERFORM idem.complete(token);
    END $do$ $$), 'ID004', 'revoked: an open leased claim is not completed');

-- A scope belongs to the role, not to its name.
SELECT is(pg_temp.attempt('matrix_super', $$DO $do$
    BEGIN
        ALTER ROLE matrix_owner RENAME TO matrix_renamed;
        ASSERT (SELECT owner::text FROM idem.scopes WHERE name = 'owned') = 'matrix_renamed';
        CREATE ROLE matrix_owner;
        SET LOCAL ROLE matrix_renamed;
        PERFORM idem.claim('owned', 'new');
        SET LOCAL ROLE NONE;
        SET LOCAL ROLE matrix_owner;
        PERFORM idem.claim('owned', 'new 2');
    END $do$ $$), '42501', 'a renamed owner keeps the scope; a new role of the old name has no access');

SELECT * FROM finish();
ROLLBACK;
