-- The shape of the contract: every object of the extension with its exact signature and properties.
-- Changing one of these can break users' code and needs an update script.
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

SELECT set_eq(
    $$SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class
       WHERE oid IN (SELECT objid FROM owned WHERE classid = 'pg_class'::regclass)
      UNION SELECT pronamespace::regnamespace::text FROM pg_proc
       WHERE oid IN (SELECT objid FROM owned WHERE classid = 'pg_proc'::regclass)$$,
    ARRAY['idem', 'idem_internal'], 'everything is in the schemas idem and idem_internal');

SELECT is_empty(
    $$SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
       WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'c' AND col_description(c.oid, a.attnum) IS NULL$$,
    'every column of a result has a comment');

-- Functions -------------------------------------------------------------------------------------

SELECT set_eq(
    $$SELECT p.proname::text, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
        FROM pg_proc p JOIN owned ON classid = 'pg_proc'::regclass AND objid = p.oid$$,
    $$VALUES
    ('advance', 'scope text, source text, seq bigint, tenant text DEFAULT NULL::text, contiguous boolean DEFAULT false', 'boolean'),
    ('announce_change', '', 'trigger'),
    ('backoff', 'attempt integer, base interval DEFAULT ''00:00:01''::interval, cap interval DEFAULT ''00:05:00''::interval', 'interval'),
    ('checkpoint', 'token text, name text, state jsonb DEFAULT NULL::jsonb', 'void'),
    ('child_key', 'token text, step text', 'text'),
    ('alter_scope', 'name text, ttl interval DEFAULT NULL::interval, lease interval DEFAULT NULL::interval, wait interval DEFAULT NULL::interval, request_required boolean DEFAULT NULL::boolean, request_exclude text[] DEFAULT NULL::text[], tenant_required boolean DEFAULT NULL::boolean, reject_stale_keys boolean DEFAULT NULL::boolean, max_attempts integer DEFAULT NULL::integer, claims_per_minute integer DEFAULT NULL::integer, weak_keys text DEFAULT NULL::text, store_response boolean DEFAULT NULL::boolean, response_exclude text[] DEFAULT NULL::text[], final_sqlstates text[] DEFAULT NULL::text[], store_request text DEFAULT NULL::text, answer_ttl interval DEFAULT NULL::interval, min_ttl interval DEFAULT NULL::interval, header_exclude text[] DEFAULT NULL::text[], tenant_from text DEFAULT NULL::text, max_answer_size integer DEFAULT NULL::integer, records boolean DEFAULT NULL::boolean, settings text[] DEFAULT NULL::text[], owner regrole DEFAULT NULL::regrole, force boolean DEFAULT false', 'void'),
    ('drop_scope', 'name text', 'void'),
    ('revoke', 'scope text, key anycompatible, tenant text DEFAULT NULL::text', 'boolean'),
    ('forget', 'scope text, key anycompatible, tenant text DEFAULT NULL::text, force boolean DEFAULT false', 'boolean'),
    ('forget_tenant', 'scope text, tenant text, force boolean DEFAULT false', 'bigint'),
    ('erase', 'scope text, key anycompatible, tenant text DEFAULT NULL::text, force boolean DEFAULT false', 'boolean'),
    ('erase_tenant', 'scope text, tenant text, force boolean DEFAULT false', 'bigint'),
    ('cancel', 'scope text, key anycompatible, tenant text DEFAULT NULL::text, error jsonb DEFAULT NULL::jsonb', 'idem.lookup_result'),
    ('reset_stream', 'scope text, source text, seq bigint DEFAULT NULL::bigint, tenant text DEFAULT NULL::text', 'bigint'),
    ('claim', 'scope text, key anycompatible, request jsonb DEFAULT NULL::jsonb, tenant text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval, lease interval DEFAULT NULL::interval, wait interval DEFAULT NULL::interval', 'idem.claim_result'),
    ('complete', 'token text, response jsonb DEFAULT NULL::jsonb, status integer DEFAULT NULL::integer, headers jsonb DEFAULT NULL::jsonb, body bytea DEFAULT NULL::bytea', 'jsonb'),
    ('create_scope', 'name text, ttl interval DEFAULT ''24:00:00''::interval, lease interval DEFAULT ''00:01:00''::interval, wait interval DEFAULT ''00:00:10''::interval, request_required boolean DEFAULT false, request_exclude text[] DEFAULT ''{}''::text[], tenant_required boolean DEFAULT false, reject_stale_keys boolean DEFAULT false, max_attempts integer DEFAULT NULL::integer, claims_per_minute integer DEFAULT NULL::integer, weak_keys text DEFAULT ''allow''::text, store_response boolean DEFAULT true, response_exclude text[] DEFAULT ''{}''::text[], final_sqlstates text[] DEFAULT ''{}''::text[], store_request text DEFAULT ''never''::text, answer_ttl interval DEFAULT NULL::interval, min_ttl interval DEFAULT NULL::interval, header_exclude text[] DEFAULT ''{set-cookie,cookie,authorization,proxy-authorization,www-authenticate}''::text[], tenant_from text DEFAULT ''argument''::text, max_answer_size integer DEFAULT 65536, records boolean DEFAULT false, settings text[] DEFAULT ''{}''::text[], owner regrole DEFAULT NULL::regrole, if_not_exists boolean DEFAULT false', 'void'),
    ('create_record_table', 'name text, tenant_column name DEFAULT NULL::name, tenant_type regtype DEFAULT NULL::regtype', 'regclass'),
    ('current_key', '', 'text'),
    ('derive_key', 'VARIADIC parts text[]', 'text'),
    ('error_of', 'sqlstate text', 'jsonb'),
    ('errors', '', 'jsonb'),
    ('execute', 'scope text, key anycompatible, operation regprocedure, request jsonb DEFAULT NULL::jsonb, tenant text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval, wait interval DEFAULT NULL::interval', 'idem.execute_result'),
    ('export_identity', '', 'jsonb'),
    ('fail', 'token text, error jsonb, status integer DEFAULT NULL::integer, headers jsonb DEFAULT NULL::jsonb, body bytea DEFAULT NULL::bytea', 'void'),
    ('health', 'long_held interval DEFAULT ''00:05:00''::interval, OUT check_name text, OUT status text, OUT scope text, OUT detail text, OUT hint text', 'SETOF record'),
    ('header_lines', 'argument text, headers jsonb', 'jsonb'),
    ('http_headers', 'result idem.claim_result', 'jsonb'),
    ('http_status', 'sqlstate text', 'integer'),
    ('http_status', 'result idem.claim_result', 'integer'),
    ('import_identity', 'identity jsonb', 'void'),
    ('import_identity', 'identity idem_internal.identity, is_whole boolean', 'void'),
    ('key_weakness', 'key text', 'text'),
    ('held_keys', 'with_prepared boolean, OUT scope text, OUT tenant text, OUT key text, OUT attempt integer, OUT since timestamp with time zone, OUT pid integer, OUT transaction xid, OUT state text, OUT keys integer', 'SETOF record'),
    ('scope_counters', 'scope_id integer, OUT since timestamp with time zone, OUT numbers bigint[]', 'SETOF record'),
    ('lookup', 'scope text, key anycompatible, tenant text DEFAULT NULL::text, wait interval DEFAULT NULL::interval', 'idem.lookup_result'),
    ('new_key', '', 'text'),
    ('parse_key', 'header text', 'text'),
    ('preloaded', '', 'boolean'),
    ('problem', 'sqlstate text, detail text DEFAULT NULL::text', 'jsonb'),
    ('problem', 'result idem.claim_result', 'jsonb'),
    ('once', 'scope text, key anycompatible, request jsonb DEFAULT NULL::jsonb, tenant text DEFAULT NULL::text', 'boolean'),
    ('once_each', 'scope text, keys anycompatiblearray, tenant text DEFAULT NULL::text', 'SETOF anycompatible'),
    ('purge', 'max_records integer DEFAULT NULL::integer', 'bigint'),
    ('figures', 'ids integer[], ttls interval[], max_attempts integer[], OUT scope_id integer, OUT in_progress bigint, OUT completed bigint, OUT failed bigint, OUT lapsed bigint, OUT lapsed_since timestamp with time zone, OUT exhausted bigint, OUT weak bigint, OUT answer_bytes numeric, OUT oldest timestamp with time zone, OUT newest timestamp with time zone, OUT next_expiry timestamp with time zone, OUT expired bigint, OUT expired_since timestamp with time zone, OUT short_lived bigint, OUT long_lived bigint, OUT untenanted bigint, OUT shared bigint, OUT coverage double precision', 'SETOF record'),
    ('totals', 'ids integer[], ttls interval[], max_attempts integer[], OUT scope_id integer, OUT in_progress bigint, OUT completed bigint, OUT failed bigint, OUT lapsed bigint, OUT lapsed_since timestamp with time zone, OUT exhausted bigint, OUT weak bigint, OUT answer_bytes numeric, OUT oldest timestamp with time zone, OUT newest timestamp with time zone, OUT next_expiry timestamp with time zone, OUT expired bigint, OUT expired_since timestamp with time zone, OUT short_lived bigint, OUT long_lived bigint, OUT untenanted bigint, OUT shared bigint, OUT coverage double precision', 'SETOF record'),
    ('quantile', 'counts bigint[], percent integer', 'interval'),
    ('record_tables', 'OUT records regclass, OUT fault text, OUT remedy text, OUT passed_over text', 'SETOF record'),
    ('release', 'token text, retry_after interval DEFAULT NULL::interval, error jsonb DEFAULT NULL::jsonb', 'void'),
    ('renew', 'token text, lease interval DEFAULT NULL::interval', 'timestamp with time zone'),
    ('require_claim', '', 'trigger'),
    ('rotate_secret', '', 'integer'),
    ('refuse', 'argument text, value text, detail text, hint text', 'text'),
    ('scope_ddl', 'scope text', 'text'),
    ('sqlstate_of', 'outcome text', 'text'),
    ('stats_reset', 'scope text DEFAULT NULL::text', 'void'),
    ('take', 'scope text, lease interval DEFAULT NULL::interval, tenant text DEFAULT NULL::text, wait interval DEFAULT NULL::interval', 'idem.take_result'),
    ('try_claim', 'scope text, key anycompatible, request jsonb DEFAULT NULL::jsonb, tenant text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval, lease interval DEFAULT NULL::interval, wait interval DEFAULT NULL::interval', 'idem.claim_result'),
    ('use_records', 'records regclass', 'void')
    $$, 'the functions, their arguments, defaults and results');

-- STRICT would return NULL for a NULL key without an error; a parallel worker would share its
-- leader's lock.
SELECT is_empty(
    $$SELECT p.oid::regprocedure, proisstrict, prosecdef, proleakproof, proretset, prokind, prolang
        FROM pg_proc p JOIN owned ON classid = 'pg_proc'::regclass AND objid = p.oid
       WHERE proisstrict <> (proname = 'backoff') OR prosecdef OR proleakproof OR proretset <> (prorettype = 'record'::regtype OR proname = 'once_each') OR prokind <> 'f'
          OR (SELECT lanname FROM pg_language l WHERE l.oid = prolang) <> CASE WHEN proname IN ('header_lines', 'http_headers', 'http_status', 'parse_key', 'problem', 'refuse') THEN 'plpgsql'
                                                                                WHEN p.oid = 'idem.import_identity(jsonb)'::regprocedure OR proname IN ('backoff', 'error_of', 'errors', 'export_identity', 'health', 'quantile', 'sqlstate_of', 'totals') THEN 'sql' ELSE 'c' END
          OR proconfig IS DISTINCT FROM CASE WHEN proname = 'health' THEN ARRAY['search_path=pg_catalog, pg_temp', 'DateStyle=ISO', 'IntervalStyle=postgres', 'jit=off']
                                                 WHEN proname = 'totals' THEN ARRAY['jit=off']
                                                 WHEN p.oid IN ('idem.export_identity()'::regprocedure, 'idem.import_identity(jsonb)'::regprocedure) THEN ARRAY['search_path=pg_catalog, pg_temp', 'IntervalStyle=postgres', 'bytea_output=hex', 'TimeZone=UTC']
                                                 WHEN proname = 'scope_ddl' THEN ARRAY['IntervalStyle=postgres']
                                                 WHEN (SELECT lanname FROM pg_language l WHERE l.oid = prolang) = 'plpgsql' THEN ARRAY['search_path=pg_catalog, pg_temp'] END$$,
    'every function is C, but for arithmetic, HTTP, identities and reports, under a fixed search path unless it is one expression; none is STRICT, but for backoff, or SECURITY DEFINER');
SELECT set_eq(
    $$SELECT p.proname::text, provolatile::text, proparallel::text
        FROM pg_proc p JOIN owned ON classid = 'pg_proc'::regclass AND objid = p.oid
       WHERE provolatile <> 'v' OR proparallel <> 'u'$$,
    $$VALUES
    ('backoff', 'v', 'r'),
    ('derive_key', 'i', 's'),
    ('error_of', 'i', 's'),
    ('errors', 'i', 's'),
    ('header_lines', 'i', 's'),
    ('http_headers', 'i', 's'),
    ('http_status', 'i', 's'),
    ('key_weakness', 'i', 's'),
    ('parse_key', 'i', 's'),
    ('problem', 'i', 's'),
    ('refuse', 'i', 's'),
    ('sqlstate_of', 'i', 's'),
    ('quantile', 'i', 's'),
    ('scope_ddl', 's', 'u'), ('export_identity', 's', 'u')
    $$, 'every function is VOLATILE and PARALLEL UNSAFE, but for those that only compute, or only read a scope or what the query sees');

-- Types -----------------------------------------------------------------------------------------

CREATE FUNCTION pg_temp.columns_of(relation regclass) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT format('%s %s%s', attname, format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN ' not null' ELSE '' END)
      FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped ORDER BY attnum
$$;

SELECT results_eq($$SELECT pg_temp.columns_of('idem.claim_result')$$, ARRAY[
    'claimed boolean', 'outcome text', 'token text', 'attempt integer', 'response jsonb',
    'status integer', 'headers jsonb', 'body bytea', 'error jsonb', 'retry_after interval',
    'recovery_point text', 'recovery_state jsonb', 'created_at timestamp with time zone',
    'expires_at timestamp with time zone', 'redacted boolean',
    'differs text[]', 'completed_at timestamp with time zone'], 'columns of claim_result');

SELECT results_eq($$SELECT pg_temp.columns_of('idem.take_result')$$, ARRAY[
    'token text', 'key text', 'tenant text', 'request jsonb', 'attempt integer',
    'recovery_point text', 'recovery_state jsonb', 'last_error jsonb',
    'created_at timestamp with time zone', 'expires_at timestamp with time zone'], 'columns of take_result');

SELECT results_eq($$SELECT pg_temp.columns_of('idem.lookup_result')$$, ARRAY[
    'state text', 'attempt integer', 'response jsonb', 'status integer', 'headers jsonb',
    'body bytea', 'error jsonb', 'created_at timestamp with time zone',
    'expires_at timestamp with time zone', 'lease_end timestamp with time zone',
    'holder_pid integer', 'since timestamp with time zone',
    'redacted boolean', 'completed_at timestamp with time zone'], 'columns of lookup_result');

SELECT results_eq($$SELECT pg_temp.columns_of('idem.execute_result')$$, ARRAY[
    'outcome text', 'replayed boolean', 'response jsonb', 'error jsonb', 'redacted boolean',
    'completed_at timestamp with time zone'], 'columns of execute_result');

SELECT results_eq($$SELECT pg_temp.columns_of('idem.scopes')$$, ARRAY[
    'name text', 'owner regrole', 'ttl interval', 'lease interval', 'wait interval',
    'request_required boolean', 'request_exclude text[]', 'tenant_required boolean',
    'reject_stale_keys boolean', 'max_attempts integer', 'claims_per_minute integer',
    'weak_keys text', 'store_response boolean', 'response_exclude text[]', 'final_sqlstates text[]',
    'store_request text', 'answer_ttl interval', 'min_ttl interval', 'header_exclude text[]',
    'tenant_from text', 'max_answer_size integer', 'records boolean'], 'columns of the view scopes');

SELECT results_eq($$SELECT pg_temp.columns_of('idem.records')$$, ARRAY[
    'scope text', 'tenant text', 'key text', 'state text', 'attempt integer', 'status integer',
    'created_at timestamp with time zone', 'expires_at timestamp with time zone',
    'lease_end timestamp with time zone', 'recovery_point text', 'redacted boolean',
    'answer_bytes bigint', 'completed_at timestamp with time zone', 'weakness text'], 'columns of the view records');

SELECT results_eq($$SELECT pg_temp.columns_of('idem.in_flight')$$, ARRAY[
    'scope text', 'tenant text', 'key text', 'attempt integer', 'since timestamp with time zone',
    'age interval', 'lease_end timestamp with time zone', 'lapsed boolean', 'recovery_point text',
    'pid integer', 'state text', 'gid text', 'keys integer', 'last_error jsonb'], 'columns of the view in_flight');

SELECT results_eq($$SELECT pg_temp.columns_of('idem.streams')$$, ARRAY[
    'scope text', 'tenant text', 'source text', 'seq bigint', 'updated_at timestamp with time zone'],
    'columns of the view streams');

SELECT results_eq($$SELECT pg_temp.columns_of('idem.overview')$$, ARRAY[
    'scope text', 'owner regrole', 'ttl interval', 'lease interval', 'wait interval', 'max_attempts integer',
    'claims_per_minute integer', 'weak_keys text', 'live bigint', 'in_progress bigint', 'completed bigint',
    'failed bigint', 'lapsed bigint', 'lapsed_since timestamp with time zone', 'exhausted bigint', 'weak bigint',
    'answer_bytes bigint', 'oldest timestamp with time zone', 'newest timestamp with time zone',
    'next_expiry timestamp with time zone', 'expired bigint', 'expired_since timestamp with time zone',
    'coverage double precision', 'request_required boolean', 'tenant_required boolean', 'tenant_from text', 'min_ttl interval', 'max_answer_size integer',
    'short_lived bigint', 'long_lived bigint', 'untenanted bigint', 'shared bigint'], 'columns of the view overview');

SELECT results_eq($$SELECT pg_temp.columns_of('idem.storage')$$, ARRAY[
    'records regclass', 'table_bytes bigint', 'index_bytes bigint', 'live_rows bigint', 'dead_rows bigint',
    'frozen_age integer', 'has_secrets boolean'], 'columns of the view storage');

-- Tables ----------------------------------------------------------------------------------------

SELECT set_eq(
    $$SELECT relname::text, relkind::text, relpersistence::text FROM pg_class c
        JOIN owned ON classid = 'pg_class'::regclass AND objid = c.oid$$,
    $$VALUES ('dropped_scope', 'r', 'p'), ('durations', 'v', 'p'), ('in_flight', 'v', 'p'), ('overview', 'v', 'p'), ('record', 'r', 'p'), ('records', 'v', 'p'),
             ('scope', 'r', 'p'), ('scope_id', 'S', 'p'),
             ('scopes', 'v', 'p'), ('secret', 'r', 'p'), ('stats', 'v', 'p'), ('storage', 'v', 'p'), ('streams', 'v', 'p'), ('sweep', 'r', 'u'),
             ('watermark', 'r', 'p')$$,
    'the relations; only the purger''s hand is unlogged');
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

SELECT is((SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'idem.record'::regclass),
          (SELECT pg_get_userbyid(extowner) FROM pg_extension WHERE extname = 'idem'),
          'the tables belong to the owner of the extension');
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
SELECT results_eq('SELECT hand FROM idem.sweep', ARRAY[0::bigint], 'the sweep begins at the first block');
SELECT is(pg_get_serial_sequence('idem.scope', 'id'), 'idem.scope_id', 'scope ids come from their sequence');

-- Documentation and the extension itself --------------------------------------------------------

SELECT is_empty(
    $$SELECT pg_describe_object(classid, objid, 0) FROM owned
       WHERE obj_description(objid, (SELECT relname FROM pg_class WHERE oid = classid)) IS NULL
         AND objid <> 'idem.scope_id'::regclass
         -- row and array types come by themselves; 17 and later list them as the extension's
         AND NOT EXISTS (SELECT FROM pg_depend AS d
                          WHERE d.classid = owned.classid AND d.objid = owned.objid AND d.deptype = 'i')$$,
    'every function, view, type, table and the schema has a comment');

SELECT results_eq(
    $$SELECT extrelocatable, extversion = installed_version FROM pg_extension
        JOIN pg_available_extensions ON name = extname WHERE extname = 'idem'$$,
    $$VALUES (false, true)$$, 'not relocatable');
SELECT results_eq(
    $$SELECT superuser, trusted FROM pg_available_extension_versions WHERE name = 'idem' AND installed$$,
    $$VALUES (true, false)$$, 'for superusers to install, not trusted');

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

SELECT * FROM finish();
ROLLBACK;
