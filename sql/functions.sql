-- ---------------------------------------------------------------------------------------------
-- Claims
-- ---------------------------------------------------------------------------------------------

-- A key is a text or a uuid, in one function and without a cast: what has no type, as a literal or
-- a parameter of a driver, is a text by the rules for anycompatible. The functions check the type.

CREATE FUNCTION idem.claim(
    scope text,
    key anycompatible,
    request jsonb DEFAULT NULL,
    tenant text DEFAULT NULL,
    ttl interval DEFAULT NULL,
    lease interval DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.claim_result
AS 'MODULE_PATHNAME', 'idem_claim'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.try_claim(
    scope text,
    key anycompatible,
    request jsonb DEFAULT NULL,
    tenant text DEFAULT NULL,
    ttl interval DEFAULT NULL,
    lease interval DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.claim_result
AS 'MODULE_PATHNAME', 'idem_try_claim'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.complete(
    token text,
    response jsonb DEFAULT NULL,
    status integer DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    body bytea DEFAULT NULL
)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_complete'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.fail(
    token text,
    error jsonb,
    status integer DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    body bytea DEFAULT NULL
)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_fail'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.release(
    token text,
    retry_after interval DEFAULT NULL,
    error jsonb DEFAULT NULL
)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.renew(token text, lease interval DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'idem_renew'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.checkpoint(token text, name text, state jsonb DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_checkpoint'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.take(
    scope text,
    tenant text DEFAULT NULL,
    lease interval DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.take_result
AS 'MODULE_PATHNAME', 'idem_take'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.execute(
    scope text,
    key anycompatible,
    operation regprocedure,
    request jsonb DEFAULT NULL,
    tenant text DEFAULT NULL,
    ttl interval DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.execute_result
AS 'MODULE_PATHNAME', 'idem_execute'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.cancel(
    scope text,
    key anycompatible,
    tenant text DEFAULT NULL,
    error jsonb DEFAULT NULL
)
RETURNS idem.lookup_result
AS 'MODULE_PATHNAME', 'idem_cancel'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.lookup(
    scope text,
    key anycompatible,
    tenant text DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.lookup_result
AS 'MODULE_PATHNAME', 'idem_lookup'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- ---------------------------------------------------------------------------------------------
-- Keys
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.new_key()
RETURNS text
AS 'MODULE_PATHNAME', 'idem_new_key'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.child_key(token text, step text)
RETURNS text
AS 'MODULE_PATHNAME', 'idem_child_key'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.current_key()
RETURNS text
AS 'MODULE_PATHNAME', 'idem_current_key'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem_internal.key_weakness(key text)
RETURNS text
AS 'MODULE_PATHNAME', 'idem_key_weakness'
LANGUAGE C IMMUTABLE PARALLEL SAFE;

COMMENT ON FUNCTION idem_internal.key_weakness IS
    'Returns why a key is likely to be used for two different operations: generic, timestamp, '
    'number, short or repetitive; NULL if nothing in its form suggests that. '
    'Raises 22004.';

-- ---------------------------------------------------------------------------------------------
-- Guard
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.require_claim()
RETURNS trigger
AS 'MODULE_PATHNAME', 'idem_require_claim'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- ---------------------------------------------------------------------------------------------
-- Message consumers
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.once(
    scope text,
    key anycompatible,
    request jsonb DEFAULT NULL,
    tenant text DEFAULT NULL
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_once'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.once_each(scope text, keys anycompatiblearray, tenant text DEFAULT NULL)
RETURNS SETOF anycompatible
AS 'MODULE_PATHNAME', 'idem_once_each'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.advance(
    scope text,
    source text,
    seq bigint,
    tenant text DEFAULT NULL,
    contiguous boolean DEFAULT false
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_advance'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- ---------------------------------------------------------------------------------------------
-- Record tables beside idem.record
-- ---------------------------------------------------------------------------------------------

-- default_schema is where CREATE TABLE would create a table whose name has no schema.
CREATE FUNCTION idem_internal.make_record_table(
    name text,
    tenant_column name,
    tenant_type regtype,
    default_schema name
)
RETURNS regclass
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts pg_catalog.text[];
    qualified pg_catalog.text;
    created pg_catalog.regclass;
    grantee pg_catalog.text;
BEGIN
    IF name IS NULL THEN
        PERFORM idem_internal.refuse('name', name, NULL, NULL);
    ELSIF (tenant_column IS NULL) <> (tenant_type IS NULL) THEN
        PERFORM idem_internal.refuse(
            'tenant_column', '', 'The arguments "tenant_column" and "tenant_type" belong together.',
            'Pass both, or neither for a table with the columns of idem.record alone.');
    ELSIF tenant_column = '' THEN
        PERFORM idem_internal.refuse(
            'tenant_column', '', 'The name is empty.',
            'Pass the name of the column, such as ''tenant_id''.');
    ELSIF tenant_type NOT IN ('text'::regtype, 'integer', 'bigint', 'uuid') THEN
        PERFORM idem_internal.refuse(
            'tenant_type', '', 'The type must be text, integer, bigint or uuid.',
            'Pass one of these, such as ''bigint''.');
    END IF;
    BEGIN
        parts := parse_ident(name);
    EXCEPTION WHEN invalid_parameter_value THEN
    END;
    IF parts IS NULL OR cardinality(parts) > 2 THEN
        RAISE invalid_name USING
            MESSAGE = 'invalid name syntax',
            DETAIL = 'The argument "name" is not the name of a table, with or without a schema.',
            HINT = 'Pass a name such as ''acme.record'', quoted as in SQL.';
    ELSIF cardinality(parts) = 1 AND default_schema IS NULL THEN
        RAISE invalid_schema_name USING
            MESSAGE = 'no schema has been selected to create in',
            DETAIL = 'None of the schemas in the search_path exists.',
            HINT = 'Pass the name with a schema, such as ''acme.record''.';
    ELSIF cardinality(parts) = 1 THEN
        parts := default_schema || parts;
    END IF;
    qualified := format('%I.%I', parts[1], parts[2]);
    -- The columns as they are in this database, and the constraint; not the indexes, which others
    -- may have added to idem.record.
    EXECUTE format(
        'CREATE TABLE %s (%sLIKE idem.record INCLUDING CONSTRAINTS INCLUDING STORAGE '
        'INCLUDING COMPRESSION) USING heap',
        qualified, quote_ident(tenant_column) || format(' %s NOT NULL, ', tenant_type));
    created := qualified;
    IF (SELECT relpersistence FROM pg_class WHERE oid = created) <> 'p' THEN
        RAISE wrong_object_type USING
            MESSAGE = format('%s is not a record table', created),
            DETAIL = 'It is temporary: when the session ends, its keys would be forgotten.',
            HINT = 'Pass the name with a schema that is not for temporary tables.';
    END IF;
    EXECUTE format(
        'ALTER TABLE %s ALTER COLUMN digest TYPE idem.key_digest, ADD PRIMARY KEY (digest%s)',
        created, ', ' || quote_ident(tenant_column));
    EXECUTE format('CREATE INDEX ON %s (scope) WHERE state = ''p''', created);
    EXECUTE format(
        'COMMENT ON TABLE %s IS ''Records of idem, as in idem.record. Written and read by '
        'idem''''s functions only.''', created);
    EXECUTE format(
        'ALTER TABLE %s OWNER TO %s', created,
        (SELECT relowner::regrole FROM pg_class WHERE oid = 'idem.record'::regclass));
    -- Default privileges may have granted some.
    FOR grantee IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = created AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON TABLE %s FROM %s', created, grantee);
    END LOOP;
    RETURN created;
END
$$;

COMMENT ON FUNCTION idem_internal.make_record_table IS
    'Creates a table for idem.create_record_table(), which passes the current schema: the '
    'search_path of this function is fixed. '
    'Raises 42P07, 42602, 3F000, 42701, 42809, 42501, 25006, 22023, 22004.';

-- Only superusers have EXECUTE on the inner function.
CREATE FUNCTION idem.create_record_table(
    name text,
    tenant_column name DEFAULT NULL,
    tenant_type regtype DEFAULT NULL
)
RETURNS regclass
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN idem_internal.make_record_table(name, tenant_column, tenant_type, current_schema());

COMMENT ON FUNCTION idem.create_record_table IS
    'Creates a table for records beside idem.record, with the same columns and owner and no '
    'privileges for other roles, and returns it. A transaction chooses it with '
    'idem.use_records(), for scopes with records => true. name may have a schema, and is quoted as '
    'in SQL. With tenant_column and tenant_type (both or neither), the table has a first column of '
    'this name and type (text, integer, bigint or uuid), which idem fills with the tenant of each '
    'key: for tools that distribute rows by such a column. The table is dumped and moved as any '
    'other. To drop it forgets its keys. For superusers. '
    'Raises 42P07 (the name is taken), 42602 (malformed name), 3F000 (no such schema), 42701 '
    '(idem.record has a column of the name tenant_column), 42809 (a temporary schema), 42501, '
    '25006, 22023, 22004.';

CREATE FUNCTION idem.use_records(records regclass)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_use_records'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- ---------------------------------------------------------------------------------------------
-- Scopes: administered by roles that are granted EXECUTE on these functions
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.create_scope(
    name text,
    ttl interval DEFAULT '24 hours',
    lease interval DEFAULT '1 minute',
    wait interval DEFAULT '10 seconds',
    request_required boolean DEFAULT false,
    request_exclude text[] DEFAULT '{}',
    tenant_required boolean DEFAULT false,
    reject_stale_keys boolean DEFAULT false,
    max_attempts integer DEFAULT NULL,
    claims_per_minute integer DEFAULT NULL,
    weak_keys text DEFAULT 'allow',
    store_response boolean DEFAULT true,
    response_exclude text[] DEFAULT '{}',
    final_sqlstates text[] DEFAULT '{}',
    store_request text DEFAULT 'never',
    answer_ttl interval DEFAULT NULL,
    min_ttl interval DEFAULT NULL,
    header_exclude text[]
        DEFAULT '{set-cookie,cookie,authorization,proxy-authorization,www-authenticate}',
    tenant_from text DEFAULT 'argument',
    max_answer_size integer DEFAULT 65536,
    records boolean DEFAULT false,
    settings text[] DEFAULT '{}',
    owner regrole DEFAULT NULL,
    if_not_exists boolean DEFAULT false
)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_create_scope'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.alter_scope(
    name text,
    ttl interval DEFAULT NULL,
    lease interval DEFAULT NULL,
    wait interval DEFAULT NULL,
    request_required boolean DEFAULT NULL,
    request_exclude text[] DEFAULT NULL,
    tenant_required boolean DEFAULT NULL,
    reject_stale_keys boolean DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    claims_per_minute integer DEFAULT NULL,
    weak_keys text DEFAULT NULL,
    store_response boolean DEFAULT NULL,
    response_exclude text[] DEFAULT NULL,
    final_sqlstates text[] DEFAULT NULL,
    store_request text DEFAULT NULL,
    answer_ttl interval DEFAULT NULL,
    min_ttl interval DEFAULT NULL,
    header_exclude text[] DEFAULT NULL,
    tenant_from text DEFAULT NULL,
    max_answer_size integer DEFAULT NULL,
    records boolean DEFAULT NULL,
    settings text[] DEFAULT NULL,
    owner regrole DEFAULT NULL,
    force boolean DEFAULT false
)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_alter_scope'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.scope_ddl(scope text)
RETURNS text
AS 'MODULE_PATHNAME', 'idem_scope_ddl'
LANGUAGE C STABLE PARALLEL UNSAFE
SET intervalstyle = 'postgres';

CREATE FUNCTION idem.drop_scope(name text, force boolean DEFAULT false)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_drop_scope'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- ---------------------------------------------------------------------------------------------
-- Maintenance
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.revoke(scope text, key anycompatible, tenant text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_revoke'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.forget(
    scope text,
    key anycompatible,
    tenant text DEFAULT NULL,
    force boolean DEFAULT false
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_forget'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.forget_tenant(scope text, tenant text, force boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_forget_tenant'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.erase(
    scope text,
    key anycompatible,
    tenant text DEFAULT NULL,
    force boolean DEFAULT false
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_erase'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.erase_tenant(scope text, tenant text, force boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_erase_tenant'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.reset_stream(
    scope text,
    source text,
    seq bigint DEFAULT NULL,
    tenant text DEFAULT NULL
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_reset_stream'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.purge(max_records integer DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_purge'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION idem.rotate_secret()
RETURNS integer
AS 'MODULE_PATHNAME', 'idem_rotate_secret'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- What idem.export_identity() exports: rows of the tables, so that a new column travels too.
CREATE TYPE idem_internal.identity AS (
    version             integer,
    scopes              idem.scope[],
    dropped_scopes      integer[],
    last_scope_id       integer,
    secrets             idem.secret[]
);

COMMENT ON TYPE idem_internal.identity IS
    'What servers that are to recognise each other''s keys have in common.';

-- The privileges on the tables are those of the caller. Settings make the texts in the result the
-- same for all sessions. The bodies are texts: a column cannot be added to a table whose row type a
-- parsed body uses.
CREATE FUNCTION idem.export_identity()
RETURNS jsonb
LANGUAGE sql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET intervalstyle = 'postgres'
SET bytea_output = 'hex'
SET timezone = 'UTC'
AS $$
    SELECT
        to_jsonb(ROW(
            1,
            ARRAY(SELECT s FROM idem.scope s ORDER BY s.id),
            ARRAY(SELECT d.id FROM idem.dropped_scope d ORDER BY d.id),
            greatest(
                (SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM idem.scope_id),
                (SELECT max(s.id) FROM idem.scope s),
                (SELECT max(d.id) FROM idem.dropped_scope d)),
            ARRAY(SELECT s FROM idem.secret s ORDER BY s.id))::idem_internal.identity)
    WHERE EXISTS (SELECT FROM idem.secret s WHERE s.id = 0)
$$;

COMMENT ON FUNCTION idem.export_identity IS
    'Returns what idem.import_identity() gives to another server: the scopes with their ids and '
    'settings, the ids of dropped scopes, the last scope id, the seed and all fingerprint secrets. '
    'The secrets are readable in it, so keep it as a dump of the database, and out of logs. NULL '
    'before the first scope. Works on a standby. For superusers: it reads the tables with the '
    'caller''s privileges. '
    'Raises 42501.';

CREATE FUNCTION idem_internal.begin_import()
RETURNS void
AS 'MODULE_PATHNAME', 'idem_begin_import'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.begin_import IS
    'Locks the scopes for idem.import_identity(). Raises 25006, 25000.';

CREATE FUNCTION idem_internal.import_scope(scope idem.scope, add boolean)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_import_scope'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.import_scope IS
    'Checks a scope for idem.import_identity(). With add, adds it, unless there is one of its '
    'name, which must have the same settings. '
    'Raises 42710 (a scope of this name has other settings), 23505 (the id is taken), 42704, '
    '42501, 55000, 22023, 22004.';

CREATE FUNCTION idem_internal.refuse_keys(detail text)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_refuse_keys'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.refuse_keys IS
    'Refuses a change for which idem.import_identity() needs a database without keys; the detail '
    'says which. '
    'Raises 55000, 22004.';

-- An import is for a database without unexpired records and watermarks, or for one that has the
-- same identity already: then it adds new scopes and secrets. Everything else raises 55000, because
-- it would make records unreachable: they are found by their digests, and compared under the
-- secrets of their fingerprints. It takes the locks of create_scope() and rotate_secret(), in their
-- order. Only superusers have EXECUTE on the inner functions.
CREATE FUNCTION idem.import_identity(identity jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET intervalstyle = 'postgres'
SET bytea_output = 'hex'
SET timezone = 'UTC'
AS $$
DECLARE
    given idem_internal.identity;
    member pg_catalog.text;
    fault pg_catalog.text;
    there idem.scope;
    here pg_catalog.record;
    is_same_seed boolean;
BEGIN
    PERFORM idem_internal.begin_import();
    IF identity IS NULL THEN
        PERFORM idem_internal.refuse('identity', NULL, NULL, NULL);
    END IF;
    given := jsonb_populate_record(given, identity);
    IF given.version <> 1 THEN
        PERFORM idem_internal.refuse(
            'identity', '',
            format('The identity has version %s. This release reads version 1.', given.version),
            'Install on this server the release of idem that exported the identity.');
    ELSIF given.version IS NULL THEN
        fault := 'Member "version" is missing.';
    ELSIF to_jsonb(given) <> identity THEN
        fault := 'A member is missing, unknown, or not written as that function writes it.';
    ELSE
        FOREACH member IN ARRAY '{scopes,dropped_scopes,last_scope_id,secrets}'::text[] LOOP
            fault := CASE
                WHEN identity -> member = 'null' THEN format('Member "%s" is missing.', member)
                WHEN identity -> member @> '[null]'
                    THEN format('An element of "%s" is null.', member)
            END;
            EXIT WHEN fault IS NOT NULL;
        END LOOP;
        fault := CASE
            WHEN fault IS NOT NULL THEN fault
            WHEN EXISTS (
                SELECT FROM unnest(given.secrets) s
                WHERE NOT (s IS NOT NULL) OR length(s.secret) <> 32
            ) THEN 'A secret is incomplete, or does not have 32 bytes.'
            WHEN given.secrets[1].id IS DISTINCT FROM 0 OR cardinality(given.secrets) < 2
                THEN 'It lacks the seed, or has no fingerprint secret.'
        END;
    END IF;
    IF fault IS NOT NULL THEN
        PERFORM idem_internal.refuse(
            'identity', '', fault, 'Pass the result of idem.export_identity() unchanged.');
    END IF;

    -- A snapshot that is older than the lock must not hide a change: this raises 40001 then.
    PERFORM FROM idem.scope FOR SHARE;
    PERFORM idem_internal.import_scope(s, false) FROM unnest(given.scopes) s;

    -- An id must be free, or be that of a scope that is going to get another id.
    SELECT h.id, h.name, g.name AS name_there INTO here
    FROM (
        SELECT s.id, s.name FROM unnest(given.scopes) s
        UNION ALL
        SELECT d, NULL FROM unnest(given.dropped_scopes) d
    ) g
        JOIN idem.scope h ON h.id = g.id
    WHERE h.name IS DISTINCT FROM g.name
        AND NOT EXISTS (
            SELECT FROM unnest(given.scopes) s WHERE s.name = h.name AND s.id <> h.id)
    ORDER BY g.name, h.id
    LIMIT 1;
    IF FOUND THEN
        RAISE duplicate_object USING
            MESSAGE = format('scope id %s belongs to scope "%s" in this database', here.id,
                             here.name),
            DETAIL = CASE
                WHEN here.name_there IS NULL
                    THEN 'In the identity, the scope with this id was dropped.'
                ELSE format('In the identity, it belongs to scope "%s".', here.name_there)
            END,
            HINT = format('When the records of scope "%s" here have expired, drop it with '
                          'idem.drop_scope(), and import the identity again.', here.name);
    END IF;

    -- A scope of the same name gives way if its id differs, as does the note that an id was
    -- dropped.
    FOR there IN SELECT s.* FROM unnest(given.scopes) s LOOP
        IF EXISTS (SELECT FROM idem.dropped_scope d WHERE d.id = there.id) THEN
            PERFORM idem_internal.refuse_keys(format(
                'Scope id %s was dropped in this database and would belong to a scope again.',
                there.id));
            DELETE FROM idem.dropped_scope d WHERE d.id = there.id;
        END IF;
        SELECT h.id INTO here FROM idem.scope h WHERE h.name = there.name AND h.id <> there.id;
        IF FOUND THEN
            PERFORM idem_internal.import_scope(there, true);
            PERFORM idem_internal.refuse_keys(format(
                'Scope "%s" would get id %s instead of %s.', there.name, there.id, here.id));
            DELETE FROM idem.scope h WHERE h.id = here.id;
        END IF;
    END LOOP;
    PERFORM idem_internal.import_scope(s, true) FROM unnest(given.scopes) s;
    INSERT INTO idem.dropped_scope
    SELECT d, transaction_timestamp() FROM unnest(given.dropped_scopes) d
    ON CONFLICT DO NOTHING;
    PERFORM setval('idem.scope_id', given.last_scope_id)
    FROM idem.scope_id i
    WHERE given.last_scope_id >= i.last_value + i.is_called::integer;

    -- With another seed, every record would be lost. Without any secret, as on a subscriber, no
    -- record was made here, so there is nothing to lose.
    LOCK TABLE idem.secret IN SHARE ROW EXCLUSIVE MODE;
    is_same_seed := EXISTS (
        SELECT FROM idem.secret h WHERE h.id = 0 AND h.secret = given.secrets[1].secret);
    IF NOT is_same_seed AND EXISTS (SELECT FROM idem.secret) THEN
        PERFORM idem_internal.refuse_keys('The seed of this database would change.');
    END IF;
    FOR here IN
        SELECT h.id, s.secret
        FROM idem.secret h LEFT JOIN unnest(given.secrets) s ON s.id = h.id
        WHERE is_same_seed AND s.secret IS DISTINCT FROM h.secret
        ORDER BY h.id
    LOOP
        IF here.secret IS NULL THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('the identity does not have fingerprint secret %s', here.id),
                DETAIL = 'This database has the same seed, and a fingerprint secret that was added '
                         'after the identity was exported, or on this server only.',
                HINT = 'Run idem.rotate_secret() on one server only, export the identity there, '
                       'and import it on the others.';
        END IF;
        PERFORM idem_internal.refuse_keys(format(
            'Fingerprint secret %s of this database would change.', here.id));
    END LOOP;
    DELETE FROM idem.secret h
    WHERE NOT EXISTS (
        SELECT FROM unnest(given.secrets) s WHERE s.id = h.id AND s.secret = h.secret);
    -- This, too, raises 40001 if the snapshot hides a change.
    INSERT INTO idem.secret SELECT s.* FROM unnest(given.secrets) s ON CONFLICT DO NOTHING;
END
$$;

COMMENT ON FUNCTION idem.import_identity IS
    'Gives this database the identity that idem.export_identity() returned on another server: '
    'digests, lock ids, fingerprints and child keys are then the same on both. Scopes of other '
    'names stay. For a database without unexpired records and watermarks, or for the same identity '
    'again, which adds new scopes and secrets. Make no calls of other functions meanwhile. The '
    'identity contains the secrets, so keep it out of logs. For superusers. '
    'Raises 55000 (records would be orphaned, a secret is missing in the identity, or a limit '
    'without preload), 42710 (a scope has other settings or another id), 42704 (no such owner), '
    '40001, 42501, 22023, 22004. What is no value of its type raises the error of the type.';

-- ---------------------------------------------------------------------------------------------
-- Administration: only for superusers, and for roles that are granted EXECUTE
-- ---------------------------------------------------------------------------------------------

REVOKE ALL ON FUNCTION
    idem.alter_scope, idem.create_record_table, idem.create_scope, idem.drop_scope, idem.erase,
    idem.erase_tenant, idem.export_identity, idem.forget, idem.forget_tenant,
    idem.import_identity, idem.purge, idem.reset_stream, idem.revoke, idem.rotate_secret,
    idem_internal.begin_import, idem_internal.import_scope, idem_internal.make_record_table,
    idem_internal.refuse_keys
FROM PUBLIC;
