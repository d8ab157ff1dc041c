-- idem 0.2.0 -> 0.3.0
--
-- OR REPLACE keeps what depends on a function. Only what belongs to the extension already is
-- replaced: PostgreSQL refuses the rest.
\echo Use "ALTER EXTENSION idem UPDATE" to load this file. \quit

-- ---------------------------------------------------------------------------------------------
-- What is transient, how paths are written, what an error may be
-- ---------------------------------------------------------------------------------------------

ALTER TABLE idem.scope ADD COLUMN transient_sqlstates text[] NOT NULL DEFAULT '{}';

-- From here on a double quote encloses a name. A path that has one means the same when it is quoted
-- as a whole.
UPDATE idem.scope AS s
   SET request_exclude = quoted.request_exclude, response_exclude = quoted.response_exclude
  FROM (SELECT o.id, ARRAY(SELECT CASE WHEN pg_catalog.strpos(p.path, '"') = 0 THEN p.path
                                       ELSE '"' || pg_catalog.replace(pg_catalog.replace(p.path, E'\\', E'\\\\'), '"', E'\\"') || '"' END
                             FROM pg_catalog.unnest(o.request_exclude) WITH ORDINALITY AS p (path, n) ORDER BY p.n) AS request_exclude,
               ARRAY(SELECT CASE WHEN pg_catalog.strpos(p.path, '"') = 0 THEN p.path
                                 ELSE '"' || pg_catalog.replace(pg_catalog.replace(p.path, E'\\', E'\\\\'), '"', E'\\"') || '"' END
                       FROM pg_catalog.unnest(o.response_exclude) WITH ORDINALITY AS p (path, n) ORDER BY p.n) AS response_exclude
          FROM idem.scope AS o
         WHERE pg_catalog.strpos(o.request_exclude::text, '"') > 0 OR pg_catalog.strpos(o.response_exclude::text, '"') > 0) AS quoted
 WHERE s.id = quoted.id;

CREATE OR REPLACE VIEW idem.scopes WITH (security_barrier) AS
    SELECT name, owner, ttl, lease, wait, request_required, request_exclude, tenant_required,
           reject_stale_keys, max_attempts, claims_per_minute, weak_keys, store_response, response_exclude,
           transient_sqlstates
      FROM idem.scope
     WHERE pg_catalog.pg_has_role(owner::pg_catalog.oid, 'USAGE')
    OFFSET 0;

-- Their new argument makes create_scope() and alter_scope() other functions. Grants on the old ones are not
-- carried over: those that an update makes are taken for the extension's own, and left out of dumps.
DO $$
DECLARE
    lost record;
    dependents text;
BEGIN
    FOR lost IN SELECT CASE a.grantee WHEN 0::pg_catalog.oid THEN 'PUBLIC' ELSE a.grantee::pg_catalog.regrole::text END AS role,
                       pg_catalog.string_agg('idem.' || p.proname, ', ' ORDER BY p.proname) AS functions, a.is_grantable
                  FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a
                 WHERE p.oid = ANY (ARRAY['idem.create_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, integer, integer, text, boolean, text[], regrole)', 'idem.alter_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, integer, integer, text, boolean, text[], regrole)']::pg_catalog.regprocedure[])
                   AND a.grantee <> p.proowner
                 GROUP BY a.grantee, a.is_grantable ORDER BY 1, 3
    LOOP
        RAISE WARNING '% can call % no longer', lost.role, lost.functions
            USING DETAIL = 'These functions have a new argument, and grants on the old ones are not carried over.',
                  HINT = pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s', lost.functions, lost.role,
                                           CASE WHEN lost.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
    DROP FUNCTION idem.create_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, integer, integer, text, boolean, text[], regrole);
    DROP FUNCTION idem.alter_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, integer, integer, text, boolean, text[], regrole);
EXCEPTION WHEN dependent_objects_still_exist THEN
    GET STACKED DIAGNOSTICS dependents = PG_EXCEPTION_DETAIL;
    RAISE dependent_objects_still_exist USING
        MESSAGE = 'cannot replace idem.create_scope() and idem.alter_scope(): other objects depend on them',
        DETAIL = dependents,
        HINT = 'Drop these objects, run ALTER EXTENSION idem UPDATE, and create them again.';
END $$;

CREATE FUNCTION idem.create_scope(name text, ttl interval DEFAULT '24 hours', lease interval DEFAULT '1 minute',
                                  wait interval DEFAULT '10 seconds', request_required boolean DEFAULT false,
                                  request_exclude text[] DEFAULT '{}', tenant_required boolean DEFAULT false,
                                  reject_stale_keys boolean DEFAULT false, max_attempts integer DEFAULT NULL,
                                  claims_per_minute integer DEFAULT NULL, weak_keys text DEFAULT 'allow',
                                  store_response boolean DEFAULT true, response_exclude text[] DEFAULT '{}',
                                  owner regrole DEFAULT NULL, transient_sqlstates text[] DEFAULT '{}')
RETURNS void
AS 'MODULE_PATHNAME', 'idem_create_scope_0_3' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem.create_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, integer, integer, text, boolean, text[], regrole, text[]) FROM PUBLIC;
COMMENT ON FUNCTION idem.create_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, integer, integer, text, boolean, text[], regrole, text[]) IS
'Creates a scope, the named family of operations that claims refer to. max_attempts and claims_per_minute NULL mean no limit; weak_keys is allow, warn or reject; owner NULL means the current user; transient_sqlstates are the SQLSTATEs and classes that idem.execute() raises beside those that are always transient. For superusers and whoever is granted EXECUTE; needs membership of the owner. Raises 42710, 42501, 55000 (a limit without preload), 22023, 22004.';

CREATE FUNCTION idem.alter_scope(name text, ttl interval DEFAULT NULL, lease interval DEFAULT NULL,
                                 wait interval DEFAULT NULL, request_required boolean DEFAULT NULL,
                                 request_exclude text[] DEFAULT NULL, tenant_required boolean DEFAULT NULL,
                                 reject_stale_keys boolean DEFAULT NULL, max_attempts integer DEFAULT NULL,
                                 claims_per_minute integer DEFAULT NULL, weak_keys text DEFAULT NULL,
                                 store_response boolean DEFAULT NULL, response_exclude text[] DEFAULT NULL,
                                 owner regrole DEFAULT NULL, transient_sqlstates text[] DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_alter_scope_0_3' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem.alter_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, integer, integer, text, boolean, text[], regrole, text[]) FROM PUBLIC;
COMMENT ON FUNCTION idem.alter_scope(text, interval, interval, interval, boolean, text[], boolean, boolean, integer, integer, text, boolean, text[], regrole, text[]) IS
'Changes the rules of a scope: arguments as of idem.create_scope(), NULL keeps, and -1 means no limit for max_attempts and claims_per_minute. What is stored stays as it is. For superusers and whoever is granted EXECUTE; needs the privileges of the scope''s owner, and membership of a new one. Raises ID008 unknown_scope, 42501, 55000 (a limit without preload), 22023.';

CREATE OR REPLACE FUNCTION idem.fail(token text, error jsonb, status integer DEFAULT NULL,
                          headers jsonb DEFAULT NULL, body bytea DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_fail_0_3' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.fail(text, jsonb, integer, jsonb, bytea) IS
'Stores a final failure, to be raised again by every retry until the TTL is over. error is an object with sqlstate, message, detail and hint, at least one of the first two; a sqlstate that tells clients to retry is refused. Raises ID005 not_claimed, 40001, 22004, 22023, 54000; for a leased claim also ID004 lease_lost, ID001 in_progress, ID009 limit_exceeded.';

CREATE FUNCTION idem.redacted(scope text, response jsonb)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_redacted' LANGUAGE C STABLE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.redacted(text, jsonb) IS
'What idem.complete() would store of a response under the rules of the scope: without the members that response_exclude names; NULL where store_response is off. Stores nothing; works on a standby. Raises ID008 unknown_scope, 42501.';

COMMENT ON FUNCTION idem.execute(text, text, regprocedure, jsonb, text, interval, interval) IS
'Claims the key, runs operation(request) with the caller''s rights and completes it with its result; or, when it fails for good, rolls its effect back and stores the failure. A retry gets what is stored. Transient errors (those of the moment or of a deployment in progress, and the scope''s transient_sqlstates) are raised and leave nothing. Raises ID001, ID002, ID003 (attempts exhausted), ID007, ID008, ID009, ID010, 40001, 42501, 22021, 22023, 22004, 54000.';

-- Paths that earlier releases took, although they leave nothing out: judged by changing nothing.
DO $$
DECLARE
    s record;
    fault text;
    advice text;
BEGIN
    FOR s IN SELECT name, request_exclude, response_exclude FROM idem.scope ORDER BY name LOOP
        BEGIN
            PERFORM idem.alter_scope(s.name, request_exclude => s.request_exclude, response_exclude => s.response_exclude);
        EXCEPTION WHEN invalid_parameter_value THEN
            GET STACKED DIAGNOSTICS fault = PG_EXCEPTION_DETAIL, advice = PG_EXCEPTION_HINT;
            RAISE WARNING 'paths of scope "%" are written in another notation, and leave nothing out', s.name
                USING DETAIL = fault, HINT = advice || ' Change them with idem.alter_scope().';
        END;
    END LOOP;
END $$;
