-- What the extension is made of: every object that callers do not name, how the functions are
-- made, tables, indexes, settings. Changing one of these needs an update script.
BEGIN;
SELECT no_plan();

-- A fresh installation, independent of other tests.
DROP EXTENSION idem;
CREATE EXTENSION idem;

-- Everything that the extension owns, in any schema.
CREATE TEMP VIEW owned AS
    SELECT classid, objid FROM pg_depend
     WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
       AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem');

-- Functions -------------------------------------------------------------------------------------

SELECT set_eq(
    $$SELECT p.proname::text, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
        FROM pg_proc p JOIN owned ON classid = 'pg_proc'::regclass AND objid = p.oid
       WHERE pronamespace = 'idem_internal'::regnamespace$$,
    $$VALUES
    ('announce_change', '', 'trigger'),
    ('differences', 'given jsonb, stored jsonb, OUT paths text[], OUT account text', 'record'),
    ('error_of', 'sqlstate text', 'jsonb'),
    ('errors', '', 'jsonb'),
    ('path_fault', 'path text', 'text'),
    ('header_lines', 'argument text, headers jsonb', 'jsonb'),
    ('begin_import', '', 'void'),
    ('begin_update', '', 'void'),
    ('library', 'OUT version text, OUT compared integer', 'SETOF record'),
    ('import_scope', 'scope idem.scope, add boolean', 'void'),
    ('refuse_keys', 'detail text', 'void'),
    ('key_weakness', 'key text', 'text'),
    ('is_unfinished', 'r idem.record', 'boolean'),
    ('key_text', 'r idem.record', 'text'),
    ('key_holders', 'OUT pid integer, OUT gid text, OUT since timestamp with time zone, OUT keys text', 'SETOF record'),
    ('own_checks', 'OUT n integer, OUT check_name text, OUT status text, OUT detail text, OUT hint text', 'SETOF record'),
    ('held_keys', 'with_prepared boolean, OUT scope text, OUT tenant text, OUT key text, OUT attempt integer, OUT since timestamp with time zone, OUT pid integer, OUT transaction xid, OUT state text, OUT keys integer', 'SETOF record'),
    ('scope_counters', 'scope_id integer, OUT since timestamp with time zone, OUT numbers bigint[], OUT tenants integer, OUT room integer', 'SETOF record'),
    ('make_record_table', 'name text, tenant_column name, tenant_type regtype, default_schema name', 'regclass'),
    ('preloaded', '', 'boolean'),
    ('figures', 'ids integer[], ttls interval[], max_attempts integer[]', 'SETOF idem_internal.figures'),
    ('findings', 'long_held interval', 'SETOF idem.health_result'),
    ('totals', 'ids integer[], ttls interval[], max_attempts integer[]', 'SETOF idem_internal.figures'),
    ('quantile', 'counts bigint[], percent integer', 'interval'),
    ('own_tables', 'OUT name regclass, OUT fault text, OUT remedy text', 'SETOF record'),
    ('record_tables', 'OUT records regclass, OUT fault text, OUT remedy text, OUT passed_over text', 'SETOF record'),
    ('refuse', 'argument text, value text, detail text, hint text', 'text'),
    ('role_in', 'name cstring', 'idem_internal.role'),
    ('role_out', 'owner idem_internal.role', 'cstring'),
    ('sqlstate_of', 'outcome text', 'text')
    $$, 'the functions, their arguments, defaults and results');

-- The planner resolves the names in a text by the caller's search_path.
SELECT set_eq(
    $$SELECT p.proname::text
        FROM pg_proc p JOIN owned ON classid = 'pg_proc'::regclass AND objid = p.oid
             JOIN pg_language l ON l.oid = prolang
       WHERE lanname = 'sql' AND prosqlbody IS NULL
             AND NOT EXISTS (SELECT FROM unnest(proconfig) setting WHERE setting LIKE 'search_path=%')$$,
    ARRAY['is_unfinished', 'key_text'],
    'functions that are a text in SQL fix their search_path, except two, which name schemas');

-- STRICT would return NULL for a NULL key without an error; a parallel worker would share its
-- leader's lock.
SELECT is_empty(
    $$SELECT p.oid::regprocedure, proisstrict, prosecdef, proleakproof, proretset, prokind, prolang
        FROM pg_proc p JOIN owned ON classid = 'pg_proc'::regclass AND objid = p.oid
       WHERE proisstrict <> (proname IN ('backoff', 'role_in', 'role_out')) OR prosecdef OR proleakproof OR proretset <> (prorettype = 'record'::regtype AND proname <> 'differences' OR proname IN ('figures', 'findings', 'health', 'once_each', 'totals')) OR prokind <> 'f'
          OR (SELECT lanname FROM pg_language l WHERE l.oid = prolang) <> CASE WHEN proname IN ('derive_key', 'differences', 'header_lines', 'health', 'http_headers', 'http_status', 'import_identity', 'make_record_table', 'parse_key', 'problem', 'refuse') THEN 'plpgsql'
                                                                                WHEN proname IN ('backoff', 'create_record_table', 'edition', 'error_of', 'errors', 'export_identity', 'findings', 'is_unfinished', 'key_holders', 'key_text', 'own_checks', 'path_fault', 'quantile', 'sqlstate_of', 'totals') THEN 'sql' ELSE 'c' END
          OR proconfig IS DISTINCT FROM CASE WHEN proname = 'findings' THEN ARRAY['search_path=pg_catalog, pg_temp', 'DateStyle=ISO', 'IntervalStyle=postgres', 'jit=off']
                                                 WHEN proname = 'health' THEN ARRAY['search_path=pg_catalog, pg_temp', 'lock_timeout=2s']
                                                 WHEN proname = 'totals' THEN ARRAY['jit=off', 'enable_seqscan=off']
                                                 WHEN proname = 'own_checks' THEN ARRAY['search_path=pg_catalog, pg_temp', 'jit=off']
                                                 WHEN proname IN ('key_holders', 'path_fault') THEN ARRAY['search_path=pg_catalog, pg_temp']
                                                 WHEN proname IN ('export_identity', 'import_identity') THEN ARRAY['search_path=pg_catalog, pg_temp', 'IntervalStyle=postgres', 'bytea_output=hex', 'TimeZone=UTC']
                                                 WHEN proname = 'scope_ddl' THEN ARRAY['IntervalStyle=postgres']
                                                 WHEN (SELECT lanname FROM pg_language l WHERE l.oid = prolang) = 'plpgsql' THEN ARRAY['search_path=pg_catalog, pg_temp'] END$$,
    'every function is C, but for arithmetic, derived keys, differences, HTTP, identities, DDL and reports, under a fixed search path unless it is one expression; none is STRICT, but for backoff and the functions of a type, or SECURITY DEFINER');
SELECT set_eq(
    $$SELECT p.proname::text, provolatile::text, proparallel::text
        FROM pg_proc p JOIN owned ON classid = 'pg_proc'::regclass AND objid = p.oid
       WHERE pronamespace = 'idem_internal'::regnamespace AND (provolatile <> 'v' OR proparallel <> 'u')$$,
    $$VALUES
    ('differences', 'i', 's'),
    ('error_of', 'i', 's'),
    ('errors', 'i', 's'),
    ('path_fault', 'i', 's'),
    ('header_lines', 'i', 's'),
    ('is_unfinished', 'i', 's'),
    ('key_text', 'i', 's'),
    ('key_weakness', 'i', 's'),
    ('refuse', 'i', 's'),
    ('role_in', 's', 's'),
    ('role_out', 's', 's'),
    ('sqlstate_of', 'i', 's'),
    ('quantile', 'i', 's')
    $$, 'every function is VOLATILE and PARALLEL UNSAFE, but for those that only compute');

-- Types -----------------------------------------------------------------------------------------

CREATE FUNCTION pg_temp.columns_of(relation regclass) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT format('%s %s%s', attname, format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN ' not null' ELSE '' END)
      FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped ORDER BY attnum
$$;

SELECT results_eq($$SELECT pg_temp.columns_of('idem_internal.figures')$$, ARRAY[
    'scope_id integer', 'in_progress bigint', 'completed bigint', 'failed bigint', 'lapsed bigint',
    'lapsed_since timestamp with time zone', 'exhausted bigint', 'exhausted_until timestamp with time zone', 'weak bigint',
    'answer_bytes numeric', 'oldest timestamp with time zone', 'newest timestamp with time zone',
    'next_expiry timestamp with time zone', 'expired bigint',
    'expired_since timestamp with time zone', 'short_lived bigint', 'long_lived bigint',
    'untenanted bigint', 'shared bigint', 'coverage double precision'], 'columns of figures');

-- Tables ----------------------------------------------------------------------------------------

SELECT set_eq(
    $$SELECT relname::text, relkind::text, relpersistence::text FROM pg_class c
        JOIN owned ON classid = 'pg_class'::regclass AND objid = c.oid$$,
    $$VALUES ('dropped_scope', 'r', 'p'), ('durations', 'v', 'p'), ('in_flight', 'v', 'p'), ('overview', 'v', 'p'), ('purge_progress', 'r', 'u'), ('record', 'r', 'p'), ('records', 'v', 'p'),
             ('records_without_scope', 'v', 'p'), ('scope', 'r', 'p'), ('scope_id', 'S', 'p'),
             ('scopes', 'v', 'p'), ('secret', 'r', 'p'), ('stats', 'v', 'p'), ('storage', 'v', 'p'), ('stored', 'v', 'p'), ('streams', 'v', 'p'),
             ('watermark', 'r', 'p')$$,
    'the relations; only the purger''s progress is unlogged');
SELECT is_empty(
    $$SELECT c.oid::regclass FROM pg_class c JOIN owned ON classid = 'pg_class'::regclass AND objid = c.oid
       WHERE relkind = 'r' AND relpersistence = 'p'
         AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)$$,
    'every table that can be published has a key: an update without one stops a subscription');

-- The primary key is the only unique index of the record table, and its replica identity.
SELECT results_eq(
    $$SELECT pg_get_indexdef(indexrelid), indisprimary FROM pg_index WHERE indrelid = 'idem.record'::regclass$$,
    $$VALUES ('CREATE UNIQUE INDEX record_pkey ON idem.record USING btree (digest)', true),
             ('CREATE INDEX record_unfinished ON idem.record USING btree (scope) WHERE (state = ''p''::"char")', false)$$,
    'the indexes of idem.record are the primary key on the digest and that of unfinished operations');
SELECT results_eq(
    $$SELECT pg_get_indexdef(indexrelid), indisprimary FROM pg_index WHERE indrelid = 'idem.watermark'::regclass$$,
    $$VALUES ('CREATE UNIQUE INDEX watermark_pkey ON idem.watermark USING btree (digest)', true)$$,
    'the same holds for idem.watermark');
SELECT col_type_is('idem', 'record', 'digest', 'uuid', 'a digest has 128 bits');

SELECT set_eq(
    $$SELECT pg_get_triggerdef(oid), tgenabled::text FROM pg_trigger WHERE tgrelid IN (SELECT objid FROM owned)$$,
    $$SELECT format('CREATE TRIGGER announce_change AFTER INSERT OR DELETE OR UPDATE ON idem.%s '
                    'FOR EACH ROW EXECUTE FUNCTION idem_internal.announce_change()', cached), 'A'
        FROM (VALUES ('scope'), ('secret')) AS t (cached)$$,
    'the only triggers announce changes of what is cached, whatever makes them');

-- A dump has what a restore needs to answer replays, with the sequence (scope ids are never
-- reused).
SELECT set_eq(
    $$SELECT r::regclass::text, c FROM pg_extension, unnest(extconfig, extcondition) AS u(r, c)
       WHERE extname = 'idem'$$,
    $$VALUES ('idem.dropped_scope', ''), ('idem.record', ''), ('idem.scope', ''), ('idem.scope_id', ''), ('idem.secret', ''),
             ('idem.watermark', '')$$,
    'scopes, their ids, records, watermarks and secrets are dumped with all their rows');
SELECT is((SELECT count(*) FROM idem.secret), 0::bigint,
          'installing makes no secrets: they would collide with those of a dump');
SELECT results_eq('SELECT position FROM idem.purge_progress', ARRAY[0::bigint], 'the purge begins at the first block');
SELECT is(pg_get_serial_sequence('idem.scope', 'id'), 'idem.scope_id', 'scope ids come from their sequence');

-- Settings --------------------------------------------------------------------------------------

-- Settings fixed at server start are so only where the library is preloaded; here it is not.

LOAD 'idem';
SELECT set_eq(
    $$SELECT name, boot_val, context, vartype, min_val FROM pg_settings WHERE name LIKE 'idem.%'$$,
    $$VALUES ('idem.counted_scopes', '1000', 'sighup', 'integer', '1'),
             ('idem.limited_tenants', '10000', 'sighup', 'integer', '64'),
             ('idem.log_conflicts', 'off', 'superuser', 'enum', NULL),
             ('idem.log_transitions', 'off', 'superuser', 'enum', NULL),
             ('idem.max_open_claims', '2000', 'superuser', 'integer', '1'),
             ('idem.purge_naptime', '10000', 'sighup', 'integer', '0'),
             ('idem.purge_rate', '100000', 'sighup', 'integer', '0'),
             ('idem.tenant', '', 'user', 'string', NULL)$$, 'the settings');
SELECT throws_ok('SET idem.tennant = $$acme$$', '42602', NULL, 'a misspelt setting is refused');

-- What a record takes. A further byte can cost eight, because rows are aligned: the most frequent
-- record ends with a multiple of eight, so that 58 of them fit into a page.
SELECT idem.create_scope('compact');
SELECT idem.complete(token, '{"payment": 12345678}')
  FROM idem.claim('compact', 'f47ac10b-58cc-4372-a567-0e02b2c3d479', '{"amount": 10.50}');
SELECT idem.complete(token) FROM idem.claim('compact', 'F47AC10B-58CC-4372-A567-0E02B2C3D479');
SELECT token AS first FROM idem.claim('compact', '00000000-0000-0000-0000-000000000000', lease => '1 h') \gset
SELECT idem.release(:'first');
SELECT token AS second FROM idem.claim('compact', '00000000-0000-0000-0000-000000000000', lease => '1 h') \gset
SELECT results_eq(
    $$SELECT key, key_uuid::text, attempt, redacted, octet_length(fingerprint), pg_column_size(r)
        FROM idem.record r WHERE scope = (SELECT id FROM idem.scope WHERE name = 'compact') ORDER BY created$$,
    $$VALUES (NULL, 'f47ac10b-58cc-4372-a567-0e02b2c3d479', NULL::int, NULL::bool, 18, 136),
             ('F47AC10B-58CC-4372-A567-0E02B2C3D479', NULL, NULL, NULL, NULL, 107),
             (NULL, '00000000-0000-0000-0000-000000000000', 2, NULL, NULL, 106)$$,
    'a record takes few bytes: a UUID is stored as such, half of the MAC is kept, and the first attempt is not stored');
SELECT throws_ok($$UPDATE idem.record SET key = key_uuid::text WHERE key_uuid IS NOT NULL$$, '23514', NULL,
    'a record has its key once');
SELECT throws_ok($$UPDATE idem.record SET key_uuid = NULL WHERE key_uuid IS NOT NULL$$, '23514', NULL,
    'and never lacks it');
SELECT idem.complete(:'second');
SELECT idem.drop_scope('compact');
SELECT idem.purge();

-- Infinite times, which a superuser may write -----------------------------------------------------

SELECT idem.create_scope('endless');
CREATE TEMP TABLE endless AS SELECT token FROM unnest('{kept,held,lapsed}'::text[]) k, idem.claim('endless', k, lease => '1 hour');
UPDATE idem.record SET expires = 'infinity' WHERE key = 'kept';
UPDATE idem.record SET lease_end = CASE key WHEN 'held' THEN timestamptz 'infinity' ELSE '-infinity' END WHERE key IN ('held', 'lapsed');
SELECT isnt_empty('SELECT FROM idem.health()', 'health() counts records that last for ever');
SELECT idem.once('endless', 'over');
UPDATE idem.record SET expires = '-infinity' WHERE key = 'over';
SELECT isnt_empty($$SELECT now() - expired_since FROM idem.overview WHERE scope = 'endless'$$, 'an age is known, as to monitoring/');
SELECT idem.renew(token, '2 hours') FROM endless;
SELECT set_eq($$SELECT key FROM idem.records WHERE scope = 'endless' AND expires_at >= now() + interval '26 hours'$$,
    ARRAY['kept', 'held', 'lapsed'], 'and their next versions have not expired');

-- A name that a restore into another encoding has made too long -----------------------------------

SELECT idem.create_scope(repeat('n', 63)), idem.create_scope('longer');
UPDATE idem.scope SET name = repeat('n', 64) WHERE name = 'longer';
SELECT ok(idem.once(repeat('n', 63), 'k'), 'a name of full length is used');
SELECT count(*) FROM idem.stats;
SELECT ok(NOT idem.once(repeat('n', 63), 'k'), 'and is not taken for a longer one that was looked up by its id');

-- Functions that the library calls ---------------------------------------------------------------

CREATE ROLE test_caller;
SELECT idem.create_scope('explained', owner => 'test_caller', store_request => 'always');
GRANT EXECUTE ON FUNCTION idem.alter_scope TO test_caller;
REVOKE ALL ON FUNCTION idem_internal.differences, idem_internal.path_fault FROM PUBLIC;
REVOKE USAGE ON SCHEMA idem_internal FROM PUBLIC;
SET LOCAL ROLE test_caller;
SELECT idem.once('explained', 'k', '{"amount": 1}');
SELECT results_eq($$SELECT differs FROM idem.try_claim('explained', 'k', '{"amount": 2}')$$, $$VALUES ('{amount}'::text[])$$,
    'a caller without privileges on its parts is told what differs');
SELECT lives_ok($$SELECT idem.alter_scope('explained', request_exclude => '{sent_at}')$$,
    'and changes the settings of its scope');
RESET ROLE;

SELECT * FROM finish();
ROLLBACK;
