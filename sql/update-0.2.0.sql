-- idem: the update from 0.2.0.
--
-- The Makefile makes idem--0.2.0--VERSION.sql from this file: for the line @OBJECTS@ it inserts
-- functions.sql, views.sql and health.sql with OR REPLACE, and at the end it adds the comments of
-- schema.sql. So the update makes what CREATE EXTENSION makes. OR REPLACE keeps the objects that
-- depend on a function or view, and PostgreSQL refuses to replace an object that does not belong to
-- the extension.
--
-- GRANT and REVOKE are left out there: privileges stay as users have granted them. This file sets
-- those of new objects.
\echo Use "ALTER EXTENSION idem UPDATE" to load this file. \quit

-- ---------------------------------------------------------------------------------------------
-- Records: the compact form, and what is needed to finish an abandoned operation
-- ---------------------------------------------------------------------------------------------

-- This waits for the transactions that hold claims. It comes first, so that they never wait for a
-- lock of this update meanwhile.
LOCK TABLE idem.record IN ACCESS EXCLUSIVE MODE;

ALTER TABLE idem.record
    ALTER COLUMN attempt DROP NOT NULL,
    ALTER COLUMN redacted DROP NOT NULL,
    ALTER COLUMN key DROP NOT NULL,
    ADD COLUMN key_uuid uuid,
    ADD COLUMN request jsonb,
    ADD COLUMN extra_attempts integer;

ALTER TABLE idem.record
    ADD CONSTRAINT record_key CHECK ((key IS NULL) <> (key_uuid IS NULL)) NOT VALID;

-- To build an index, the server reads the whole table, while claims wait for its lock. A large
-- table is left to the administrator: everything works without the index.
DO $$
BEGIN
    IF pg_catalog.pg_relation_size('idem.record') <= 128 * 1024 * 1024 THEN
        CREATE INDEX record_unfinished ON idem.record (scope)
            WHERE state OPERATOR(pg_catalog.=) 'p';
    ELSE
        RAISE WARNING 'index idem.record_unfinished is not created, because idem.record is large'
            USING DETAIL = 'Without the index, a search for unfinished operations reads the whole '
                           'table.',
                  HINT = 'CREATE INDEX CONCURRENTLY record_unfinished ON idem.record (scope) '
                         'WHERE state = ''p''';
    END IF;
END $$;

-- ---------------------------------------------------------------------------------------------
-- Scopes: new settings
-- ---------------------------------------------------------------------------------------------

ALTER TABLE idem.scope
    ADD COLUMN transient_sqlstates text[] NOT NULL DEFAULT '{}',
    ADD COLUMN store_request boolean NOT NULL DEFAULT false,
    ADD COLUMN answer_ttl interval,
    ADD COLUMN min_ttl interval,
    ADD COLUMN header_exclude text[] NOT NULL
        DEFAULT '{set-cookie,cookie,authorization,proxy-authorization,'
                'www-authenticate}',
    ADD COLUMN tenant_from text NOT NULL DEFAULT 'argument',
    ADD COLUMN explain_conflicts boolean NOT NULL DEFAULT false,
    ADD COLUMN max_bytes bigint,
    ADD COLUMN records regclass;

-- ---------------------------------------------------------------------------------------------
-- Record tables beside idem.record
-- ---------------------------------------------------------------------------------------------

CREATE DOMAIN idem.key_digest AS uuid;

REVOKE ALL ON TYPE idem.key_digest FROM PUBLIC;

-- ---------------------------------------------------------------------------------------------
-- Functions with new arguments
-- ---------------------------------------------------------------------------------------------

-- With new arguments, a function is a different one. The update does not carry over the grants on
-- the old one: PostgreSQL would take them for the extension's own, and pg_dump would leave them
-- out. The same holds for what PUBLIC has lost.
DO $$
DECLARE
    -- PUBLIC may execute the functions of the second list, unless that was revoked.
    for_administrators pg_catalog.regprocedure[] := ARRAY[
        'idem.create_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, '
        'integer, integer, text, boolean, text[], regrole)',
        'idem.alter_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, '
        'integer, integer, text, boolean, text[], regrole)',
        'idem.forget(text, text, text)'];
    for_public pg_catalog.regprocedure[] := ARRAY[
        'idem.lookup(text, text, text)',
        'idem.release(text)'];
    old_function pg_catalog.regprocedure;
    name text;
    lost record;
    dependents text;
BEGIN
    FOR lost IN
        SELECT
            CASE a.grantee
                WHEN 0::pg_catalog.oid THEN 'PUBLIC'
                ELSE a.grantee::pg_catalog.regrole::text
            END AS role,
            pg_catalog.string_agg('idem.' || p.proname, ', ' ORDER BY p.proname) AS functions,
            a.is_grantable
        FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a
        WHERE p.oid = ANY (for_administrators) AND a.grantee <> p.proowner
        GROUP BY a.grantee, a.is_grantable
        ORDER BY 1, 3
    LOOP
        RAISE WARNING '% can no longer call %', lost.role, lost.functions
            USING DETAIL = 'These functions have new arguments. The update does not carry over '
                           'the grants on the old functions.',
                  HINT = pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s',
                                           lost.functions, lost.role,
                                           CASE WHEN lost.is_grantable
                                                THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
    FOR lost IN
        SELECT pg_catalog.string_agg('idem.' || p.proname, ', ' ORDER BY p.proname) AS functions
        FROM pg_catalog.pg_proc p
        WHERE p.oid = ANY (for_public)
            AND p.proacl IS NOT NULL
            AND NOT EXISTS (
                SELECT FROM pg_catalog.aclexplode(p.proacl) a
                WHERE a.grantee = 0::pg_catalog.oid AND a.privilege_type = 'EXECUTE'::text)
        HAVING pg_catalog.count(*) > 0
    LOOP
        RAISE WARNING 'every role can call % again', lost.functions
            USING DETAIL = 'These functions have new arguments. The update does not carry over '
                           'the privileges on the old functions.',
                  HINT = pg_catalog.format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC, and grant '
                                           'it to the roles that need it.', lost.functions);
    END LOOP;
    FOREACH old_function IN ARRAY for_administrators || for_public LOOP
        name := (SELECT p.proname FROM pg_catalog.pg_proc p WHERE p.oid = old_function);
        EXECUTE pg_catalog.format('DROP FUNCTION %s', old_function);
    END LOOP;
EXCEPTION WHEN dependent_objects_still_exist THEN
    GET STACKED DIAGNOSTICS dependents = PG_EXCEPTION_DETAIL;
    RAISE dependent_objects_still_exist USING
        MESSAGE = pg_catalog.format('cannot replace idem.%s(): other objects depend on it', name),
        DETAIL = dependents,
        HINT = 'Drop these objects, run ALTER EXTENSION idem UPDATE, and create them again.';
END $$;

-- Functions, views and columns of tables that use the type are not affected by a new attribute at
-- its end.
ALTER TYPE idem.claim_result ADD ATTRIBUTE differs text[];

CREATE TYPE idem.taken AS (
    token               text,
    key                 text,
    tenant              text,
    request             jsonb,
    attempt             integer,
    recovery_point      text,
    recovery_state      jsonb,
    last_error          jsonb,
    created_at          timestamptz,
    expires_at          timestamptz
);

-- ---------------------------------------------------------------------------------------------
-- Results: new attributes
-- ---------------------------------------------------------------------------------------------

ALTER TYPE idem.claim_result ADD ATTRIBUTE completed_at timestamptz;
ALTER TYPE idem.record_info ADD ATTRIBUTE completed_at timestamptz;
ALTER TYPE idem.execution ADD ATTRIBUTE completed_at timestamptz;

-- ---------------------------------------------------------------------------------------------
-- Scopes: paths
-- ---------------------------------------------------------------------------------------------

-- From this release on, double quotes enclose a name. A path that contains a double quote keeps its
-- meaning if it is quoted as a whole.
UPDATE idem.scope AS s
SET request_exclude = quoted.request_exclude,
    response_exclude = quoted.response_exclude
FROM (
    SELECT
        o.id,
        ARRAY(
            SELECT CASE pg_catalog.strpos(p.path, '"')
                       WHEN 0 THEN p.path
                       ELSE '"' || pg_catalog.regexp_replace(p.path, E'(["\\\\])', E'\\\\\\1', 'g')
                            || '"'
                   END
            FROM pg_catalog.unnest(o.request_exclude) WITH ORDINALITY AS p (path, n)
            ORDER BY p.n) AS request_exclude,
        ARRAY(
            SELECT CASE pg_catalog.strpos(p.path, '"')
                       WHEN 0 THEN p.path
                       ELSE '"' || pg_catalog.regexp_replace(p.path, E'(["\\\\])', E'\\\\\\1', 'g')
                            || '"'
                   END
            FROM pg_catalog.unnest(o.response_exclude) WITH ORDINALITY AS p (path, n)
            ORDER BY p.n) AS response_exclude
    FROM idem.scope AS o
    WHERE pg_catalog.strpos(o.request_exclude::text, '"') > 0
        OR pg_catalog.strpos(o.response_exclude::text, '"') > 0
) AS quoted
WHERE s.id = quoted.id;

-- ---------------------------------------------------------------------------------------------
-- Scopes: ids of dropped scopes
-- ---------------------------------------------------------------------------------------------

CREATE TABLE idem.dropped_scope (
    id                  integer     NOT NULL PRIMARY KEY,
    dropped             timestamptz NOT NULL
);

SELECT pg_catalog.pg_extension_config_dump('idem.dropped_scope', '');

REVOKE ALL ON idem.dropped_scope FROM PUBLIC;

-- An id that the sequence has assigned and no scope has belongs to a dropped scope, or to a scope
-- whose creation was rolled back; with the table locked, it cannot belong to a scope that is yet to
-- be committed. If there is no scope at all, a restore may be about to add them. If the sequence
-- was set to a very high value, the newest million ids must suffice: records under an older id stay
-- until they expire.
LOCK TABLE idem.scope IN SHARE ROW EXCLUSIVE MODE;

INSERT INTO idem.dropped_scope
    SELECT i, pg_catalog.transaction_timestamp()
    FROM idem.scope_id s,
        pg_catalog.generate_series(greatest(1, s.last_value - 999999), s.last_value) i
    WHERE s.is_called
        AND EXISTS (SELECT FROM idem.scope)
        AND NOT EXISTS (SELECT FROM idem.scope e WHERE e.id OPERATOR(pg_catalog.=) i);

-- A sequence that was replicated to this server may be behind the ids in use. idem does not trust a
-- sequence that is marked as not called: the next idem.create_scope() reads every record.
SELECT pg_catalog.setval('idem.scope_id', last_value + 1, false)
FROM idem.scope_id
WHERE is_called AND last_value < 2147483647;

-- ---------------------------------------------------------------------------------------------
-- Scopes and secrets: changes past idem's functions
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.announce_change()
RETURNS trigger
AS 'MODULE_PATHNAME', 'idem_announce_change'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

REVOKE ALL ON FUNCTION idem.announce_change FROM PUBLIC;

CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE ON idem.scope
    FOR EACH ROW EXECUTE FUNCTION idem.announce_change();
ALTER TABLE idem.scope ENABLE ALWAYS TRIGGER announce_change;

CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE ON idem.secret
    FOR EACH ROW EXECUTE FUNCTION idem.announce_change();
ALTER TABLE idem.secret ENABLE ALWAYS TRIGGER announce_change;

-- ---------------------------------------------------------------------------------------------
-- Operations in flight: keys of transactions that are about to commit or prepared
-- ---------------------------------------------------------------------------------------------

-- The view lets go of the old function, and the objects that depend on the view remain.
CREATE OR REPLACE VIEW idem.in_flight WITH (security_barrier) AS
    SELECT
        NULL::text AS scope,
        NULL::text AS tenant,
        NULL::text AS key,
        NULL::integer AS attempt,
        NULL::timestamptz AS since,
        NULL::interval AS age,
        NULL::timestamptz AS lease_end,
        NULL::boolean AS lapsed,
        NULL::text AS recovery_point,
        NULL::integer AS pid;

DROP FUNCTION idem.open_claims();

-- ---------------------------------------------------------------------------------------------
-- Statistics: messages of streams, and durations
-- ---------------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW idem.stats WITH (security_barrier) AS
    SELECT
        NULL::text AS scope,
        NULL::bigint AS claims,
        NULL::bigint AS replays,
        NULL::bigint AS in_flight,
        NULL::bigint AS waits,
        NULL::interval AS wait_time,
        NULL::bigint AS conflicts,
        NULL::bigint AS takeovers,
        NULL::bigint AS completions,
        NULL::bigint AS failures,
        NULL::bigint AS releases,
        NULL::bigint AS stale,
        NULL::bigint AS weak,
        NULL::bigint AS limited,
        NULL::bigint AS expired_reused,
        NULL::bigint AS purged,
        NULL::timestamptz AS stats_reset;

DROP FUNCTION idem.scope_stats();

@OBJECTS@

GRANT SELECT ON idem.durations TO PUBLIC;
GRANT SELECT ON idem.hot_keys TO PUBLIC;
REVOKE ALL ON FUNCTION idem.create_scope FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.alter_scope FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.create_record_table FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.revoke FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.forget FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.forget_tenant FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.erase FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.erase_tenant FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.reset_stream FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.export_identity FROM PUBLIC;
REVOKE ALL ON FUNCTION idem.import_identity FROM PUBLIC;

-- ---------------------------------------------------------------------------------------------
-- Purge: the position is unlogged
-- ---------------------------------------------------------------------------------------------

-- The view idem.storage no longer depends on the old table.
DROP TABLE idem.sweep;

CREATE UNLOGGED TABLE idem.sweep (
    hand                bigint      NOT NULL
);

INSERT INTO idem.sweep VALUES (0);

REVOKE ALL ON idem.sweep FROM PUBLIC;

-- ---------------------------------------------------------------------------------------------
-- Paths in other notations, which earlier releases accepted though they exclude nothing
-- ---------------------------------------------------------------------------------------------

-- Setting the paths to their present values makes alter_scope() judge them.
DO $$
DECLARE
    s record;
    fault text;
    advice text;
BEGIN
    FOR s IN SELECT name, request_exclude, response_exclude FROM idem.scope ORDER BY name LOOP
        BEGIN
            PERFORM idem.alter_scope(s.name, request_exclude => s.request_exclude,
                                     response_exclude => s.response_exclude);
        EXCEPTION WHEN invalid_parameter_value THEN
            GET STACKED DIAGNOSTICS fault = PG_EXCEPTION_DETAIL, advice = PG_EXCEPTION_HINT;
            RAISE WARNING 'paths of scope "%" are in another notation and exclude nothing', s.name
                USING DETAIL = fault,
                      HINT = advice || ' Change the paths with idem.alter_scope().';
        END;
    END LOOP;
END $$;
