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

-- Every session caches scopes and secrets. Our functions announce what they change in them; these triggers
-- do it for everybody else, apply workers of a subscription included (session_replication_role = replica).
CREATE FUNCTION idem.announce_change()
RETURNS trigger
AS 'MODULE_PATHNAME', 'idem_announce_change' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem.announce_change() FROM PUBLIC;
COMMENT ON FUNCTION idem.announce_change() IS
'The trigger of idem.scope and idem.secret that has every session read them again. Raises 39P01.';

CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE ON idem.scope
    FOR EACH ROW EXECUTE FUNCTION idem.announce_change();
ALTER TABLE idem.scope ENABLE ALWAYS TRIGGER announce_change;
CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE ON idem.secret
    FOR EACH ROW EXECUTE FUNCTION idem.announce_change();
ALTER TABLE idem.secret ENABLE ALWAYS TRIGGER announce_change;

-- Keys that are held by a transaction which has only to commit, or is prepared. The view lets go of the old
-- function and keeps what depends on itself.
CREATE OR REPLACE VIEW idem.in_flight WITH (security_barrier) AS
    SELECT NULL::text AS scope, NULL::text AS tenant, NULL::text AS key, NULL::integer AS attempt, NULL::timestamptz AS since,
           NULL::interval AS age, NULL::timestamptz AS lease_end, NULL::boolean AS lapsed, NULL::text AS recovery_point,
           NULL::integer AS pid;
DROP FUNCTION idem.open_claims();
CREATE FUNCTION idem.open_claims(OUT scope text, OUT tenant text, OUT key text, OUT attempt integer,
                                 OUT since timestamptz, OUT pid integer, OUT state text, OUT keys integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_open_claims_0_3' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.open_claims() IS
'One key of each running transaction that holds keys, of the scopes that the current role may use: its newest open atomic claim (state open), or the newest that is finished or leased but not committed (state uncommitted); keys is how many it holds. The view idem.in_flight shows them. No rows unless idem is preloaded.';

CREATE FUNCTION idem.prepared_claims(OUT scope text, OUT tenant text, OUT key text, OUT attempt integer,
                                     OUT since timestamptz, OUT transaction xid)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_prepared_claims' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.prepared_claims() IS
'The keys that prepared transactions have written, of the scopes that the current role may use; the view idem.in_flight shows them. Reads all records.';

-- A claim that was released is nobody's, though its row waits for the next attempt. A key has one holder:
-- what a transaction holds is joined with the leased claim, if any, that it is about to change.
CREATE OR REPLACE VIEW idem.in_flight WITH (security_barrier) AS
    SELECT scope, tenant, key, coalesce(h.attempt, l.attempt) AS attempt, coalesce(l.since, h.since) AS since,
           pg_catalog.clock_timestamp() - coalesce(l.since, h.since) AS age, l.lease_end,
           coalesce(l.lapsed AND h.state IS NULL, false) AS lapsed, l.recovery_point, h.pid,
           coalesce(h.state, 'leased') AS state, h.gid, h.keys
      FROM (SELECT s.name AS scope, r.tenant, r.key, r.attempt, r.created AS since, r.lease_end,
                   r.lease_end <= pg_catalog.statement_timestamp() AS lapsed, r.recovery_point
              FROM idem.record r JOIN idem.scope s ON s.id = r.scope
             WHERE pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
               AND r.state = 'p' AND r.nonce IS NOT NULL AND r.expires > pg_catalog.statement_timestamp()
               AND NOT coalesce(r.attempt >= s.max_attempts AND r.lease_end <= pg_catalog.statement_timestamp(), false)) AS l
      FULL JOIN (SELECT o.scope, o.tenant, o.key, o.attempt, o.since, o.pid, o.state, NULL::text AS gid, o.keys
                   FROM idem.open_claims() o
                 UNION ALL
                 SELECT c.scope, c.tenant, c.key, c.attempt, c.since, NULL, 'prepared', x.gid, NULL
                   FROM idem.prepared_claims() c LEFT JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = c.transaction
                  WHERE EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts)) AS h USING (scope, tenant, key)
    OFFSET 0;
COMMENT ON VIEW idem.in_flight IS 'the operations in progress, of the scopes whose owner''s privileges the current role has: leased claims (state leased; lapsed: the lease is over, and nobody has taken over), the keys of prepared transactions (prepared, with the gid) and, if idem is preloaded, one key of each running transaction (open, or uncommitted: finished or leased, but not committed), with its process id and how many keys it holds; reads all records';
CREATE OR REPLACE FUNCTION idem.health(long_held interval DEFAULT '5 minutes', OUT check_name text, OUT status text, OUT scope text,
                            OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
AS $$
WITH server AS MATERIALIZED (
    SELECT idem.preloaded() AS preloaded, pg_is_in_recovery() AS standby,
           coalesce(current_setting('idem.purge_naptime', true), '0')::interval AS naptime,
           EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idem launcher') AS launched),
storage AS MATERIALIZED (SELECT * FROM idem.storage),
held AS MATERIALIZED (
    SELECT l.pid, p.gid, coalesce(a.xact_start, p.prepared) AS since
      FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
           LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
                                   AND x.virtualtransaction = l.virtualtransaction
           LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
     WHERE l.locktype = 'advisory' AND l.objsubid = 7651 AND l.granted
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())),
long_held_lock AS (
    SELECT pid, gid, since, CASE count(*) WHEN 1 THEN 'a key' ELSE count(*) || ' keys' END AS keys FROM held
     WHERE since <= statement_timestamp() - coalesce(long_held, '5 minutes') GROUP BY pid, gid, since),
relation AS (
    SELECT r.oid::regclass AS owned_by, c.oid, c.reloptions FROM pg_class r JOIN pg_class c ON c.oid IN (r.oid, r.reltoastrelid)
     WHERE r.oid IN ('idem.record'::regclass, 'idem.watermark'::regclass)),
finding (check_name, status, scope, detail, hint) AS (
    SELECT f.check_name, f.status, f.scope, f.detail, f.hint FROM idem.findings(long_held) f
    UNION ALL
    SELECT 'worker', 'warn', NULL, 'idem is not preloaded: nothing purges expired records by itself, and nothing is counted.',
           'Set shared_preload_libraries = ''idem'' and restart the server; or call idem.purge() from cron.'
      FROM server WHERE NOT preloaded
    UNION ALL
    SELECT 'worker', 'fail', NULL, 'idem is preloaded, but its launcher does not run: nothing purges expired records.',
           'Look for "idem launcher" in the server''s log; if it says that there are too many background workers, raise max_worker_processes and restart the server.'
      FROM server WHERE preloaded AND NOT standby AND NOT launched
    UNION ALL
    SELECT 'worker', 'warn', NULL, 'idem.purge_naptime is 0: the worker does not come.',
           'ALTER SYSTEM SET idem.purge_naptime = ''10s''; SELECT pg_reload_conf();'
      FROM server WHERE preloaded AND NOT standby AND launched AND naptime = '0'
    UNION ALL
    SELECT 'transactions', 'warn', NULL,
           format('Process %s has held %s since its transaction began at %s.', h.pid, h.keys, date_trunc('second', h.since)),
           format('See what it does: SELECT * FROM pg_stat_activity WHERE pid = %s; and which key: SELECT * FROM idem.in_flight WHERE pid = %s. To end it: SELECT pg_terminate_backend(%s)',
                  h.pid, h.pid, h.pid)
      FROM long_held_lock h WHERE h.pid IS NOT NULL
    UNION ALL
    SELECT 'transactions', 'warn', NULL,
           format('The prepared transaction "%s" has held %s since %s.', h.gid, h.keys, date_trunc('second', h.since)),
           format('COMMIT PREPARED %L, or ROLLBACK PREPARED %L', h.gid, h.gid)
      FROM long_held_lock h WHERE h.gid IS NOT NULL
    UNION ALL
    SELECT 'autovacuum', 'fail', NULL, format('The setting %s is off: nothing vacuums the record table.', s.name),
           format('ALTER SYSTEM SET %s = on; SELECT pg_reload_conf();', s.name)
      FROM pg_settings s WHERE s.name IN ('autovacuum', 'track_counts') AND s.setting = 'off'
    UNION ALL
    SELECT 'autovacuum', 'fail', NULL, format('Autovacuum is switched off for %s.', r.oid::regclass),
           format('ALTER TABLE %s RESET (autovacuum_enabled, toast.autovacuum_enabled)', r.owned_by)
      FROM relation r, pg_options_to_table(r.reloptions) o
     WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean
    UNION ALL
    SELECT 'vacuum', 'warn', NULL,
           format('idem.record has %s dead rows beside %s live ones: autovacuum does not keep up.', s.dead_rows, s.live_rows),
           'VACUUM idem.record'
      FROM storage s WHERE s.dead_rows > greatest(10000, s.live_rows)
    UNION ALL
    SELECT 'wraparound', CASE WHEN s.frozen_age > 1600000000 THEN 'fail' ELSE 'warn' END, NULL,
           format('The oldest row of idem.record that is not frozen is %s transactions old.', s.frozen_age), 'VACUUM (FREEZE) idem.record'
      FROM storage s WHERE s.frozen_age > 1.5 * current_setting('autovacuum_freeze_max_age')::bigint
    UNION ALL
    SELECT 'indexes', 'fail', NULL, format('%s has no primary key: no claim can work.', r.oid::regclass),
           format('ALTER TABLE %s ADD PRIMARY KEY (digest)', r.oid::regclass)
      FROM relation r WHERE r.oid = r.owned_by AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = r.oid AND i.indisprimary)
    UNION ALL
    SELECT 'indexes', CASE WHEN i.indisprimary THEN 'fail' ELSE 'warn' END, NULL, format('Index %s is invalid.', i.indexrelid::regclass),
           CASE WHEN i.indisprimary THEN format('REINDEX INDEX %s', i.indexrelid::regclass)
                ELSE format('Unless it is being built just now: DROP INDEX %s', i.indexrelid::regclass) END
      FROM pg_index i, relation r
     WHERE i.indrelid = r.oid AND r.oid = r.owned_by AND NOT (i.indisvalid AND i.indisready)
    UNION ALL
    SELECT 'secrets', 'fail', NULL, 'There are scopes, but not the secrets that keys are locked and requests compared with: no claim can work.',
           'Restore the rows of idem.secret from the dump that the records came from.'
      FROM storage s WHERE s.scopes > 0 AND NOT s.has_secrets
    UNION ALL
    SELECT 'schema', 'warn', NULL,
           format('%s may create functions in schema idem, which others may come to call with their own rights.',
                  CASE a.grantee WHEN 0 THEN 'Everybody' ELSE format('Role %s', a.grantee::regrole) END),
           format('REVOKE CREATE ON SCHEMA idem FROM %s', CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
      FROM pg_namespace n, aclexplode(n.nspacl) a
     WHERE n.nspname = 'idem' AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
       AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = a.grantee AND r.rolsuper)
    UNION ALL
    SELECT 'triggers', 'warn', NULL,
           format('Trigger announce_change of %s is missing, or not always enabled: sessions do not notice what a subscription or a dump changes there.',
                  t.cached),
           format('CREATE OR REPLACE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION idem.announce_change(); ALTER TABLE %s ENABLE ALWAYS TRIGGER announce_change',
                  t.cached, t.cached)
      FROM (VALUES ('idem.scope'::regclass), ('idem.secret')) AS t (cached)
     WHERE NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = t.cached AND g.tgname = 'announce_change' AND g.tgenabled = 'A')
    UNION ALL
    SELECT 'functions', 'warn', NULL,
           format('Function %s is declared %s, but calls a function of idem that writes: the planner may call it, and calls that differ in nothing may become one.',
                  p.oid::regprocedure, CASE p.provolatile WHEN 's' THEN 'STABLE' ELSE 'IMMUTABLE' END),
           format('ALTER FUNCTION %s VOLATILE', p.oid::regprocedure)
      FROM pg_proc p
     WHERE p.provolatile <> 'v' AND p.pronamespace <> 'idem'::regnamespace
       AND (p.prosrc ~ '\m"?idem"?\s*\.\s*"?(claim|try_claim|complete|fail|release|renew|checkpoint|execute|once|once_each|advance|forget)"?\s*\('
            OR EXISTS (SELECT FROM pg_depend d JOIN pg_proc w ON w.oid = d.refobjid
                        WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.refclassid = 'pg_proc'::regclass
                          AND w.pronamespace = 'idem'::regnamespace AND w.provolatile = 'v'
                          AND w.proname IN ('claim', 'try_claim', 'complete', 'fail', 'release', 'renew', 'checkpoint', 'execute',
                                            'once', 'once_each', 'advance', 'forget')))),
fine (n, check_name, detail) AS (
    SELECT 1, 'worker', CASE WHEN standby THEN 'The server is a standby: the primary purges.' ELSE 'The launcher runs.' END FROM server
    UNION ALL
    SELECT 10, 'vacuum', format('%s live and %s dead rows; %s of table, %s of indexes.', live_rows, dead_rows, pg_size_pretty(table_bytes),
                                pg_size_pretty(index_bytes)) FROM storage
    UNION ALL
    SELECT 2, 'purge', format('The next purge begins at block %s of %s.', purge_block, table_blocks) FROM storage
    UNION ALL
    VALUES (3, 'retention', 'Every scope remembers keys for as long as a retry may come.'),
           (4, 'sizing', 'No scope holds more records than its claims account for.'),
           (5, 'leases', 'No lease has been over for long.'),
           (6, 'attempts', 'No operation has used up its attempts.'),
           (7, 'transactions', 'No transaction has held a key for long.'),
           (8, 'weak keys', 'No key is easily used twice.'),
           (9, 'autovacuum', 'Autovacuum is on.'),
           (11, 'wraparound', 'Old rows are frozen in time.'),
           (12, 'indexes', 'The primary keys are in place.'),
           (13, 'secrets', 'The secrets are in place.'),
           (14, 'owners', 'Every scope has an owner.'),
           (15, 'limits', 'Every limit is kept.'),
           (16, 'statistics', 'Every scope is counted.'),
           (17, 'schema', 'Nobody can put functions of his own beside idem''s.'),
           (18, 'triggers', 'Sessions notice every change of scopes and secrets.'),
           (19, 'functions', 'Functions that claim keys are VOLATILE.'))
SELECT f.check_name, coalesce(x.status, 'ok'), x.scope,
       CASE WHEN f.check_name = 'purge' THEN concat_ws(' ', x.detail, f.detail) ELSE coalesce(x.detail, f.detail) END, CASE WHEN x.status <> 'ok' THEN x.hint END
  FROM fine f LEFT JOIN finding x ON x.check_name = f.check_name
 ORDER BY f.n, x.scope, x.detail
$$;
COMMENT ON FUNCTION idem.health(interval) IS
'Is everything well? A row for each check: ok, warn or fail, with a detail, and a hint that repairs it; one for each scope that a check finds fault with. long_held (NULL: 5 minutes) is how long a lease may be over, and a transaction may hold a key. For members of pg_monitor; shows no key.';

CREATE OR REPLACE FUNCTION idem.report(scope text)
RETURNS SETOF text
LANGUAGE sql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
AS $$
WITH survey AS MATERIALIZED (SELECT *, CASE WHEN coverage < 1 THEN 'about ' ELSE '' END AS about FROM idem.survey(coalesce($1, ''))),
rules AS MATERIALIZED (SELECT * FROM idem.scopes WHERE name = $1),
counted AS MATERIALIZED (SELECT *, greatest(extract(epoch FROM statement_timestamp() - stats_reset), 1) AS seconds
                           FROM idem.stats s WHERE s.scope = $1),
flight AS MATERIALIZED (SELECT * FROM idem.in_flight f WHERE f.scope = $1),
remark AS MATERIALIZED (SELECT *, row_number() OVER (ORDER BY check_name) AS n FROM idem.findings() f WHERE f.scope = $1),
line (section, n, title, words) AS (
    SELECT 1, 0, 'Scope', format('"%s", owned by %s', name, owner) FROM rules
    UNION ALL
    SELECT 2, 0, 'Rules', format('remembers keys for %s; a claim waits for at most %s; a lease lasts %s', ttl, wait, lease) FROM rules
    UNION ALL
    SELECT 2, 1, '', concat_ws(', ', CASE WHEN request_required THEN 'a request is required' END,
                               CASE WHEN tenant_required THEN 'a tenant is required' END,
                               CASE WHEN reject_stale_keys THEN 'stale keys are rejected' END,
                               CASE weak_keys WHEN 'warn' THEN 'weak keys are warned of' WHEN 'reject' THEN 'weak keys are rejected' END,
                               'at most ' || max_attempts || ' attempts', 'at most ' || claims_per_minute || ' claims a minute',
                               CASE WHEN NOT store_response THEN 'responses are not stored' END)
      FROM rules
    UNION ALL
    SELECT 3, 0, 'Records', format('%s%s alive: %s in progress, %s completed, %s failed', about, in_progress + completed + failed, in_progress,
                                   completed, failed) FROM survey
    UNION ALL
    SELECT 3, 1, '', format('made between %s and %s; the next expires at %s', date_trunc('second', oldest), date_trunc('second', newest),
                            date_trunc('second', next_expiry)) FROM survey WHERE oldest IS NOT NULL
    UNION ALL
    SELECT 3, 2, '', format('their answers take %s%s', about, pg_size_pretty(answer_bytes)) FROM survey WHERE oldest IS NOT NULL
    UNION ALL
    SELECT 3, 3, '', format('%s%s expired, since %s or later, and wait to be purged', about, expired, date_trunc('second', expired_since))
      FROM survey WHERE expired > 0
    UNION ALL
    SELECT 4, 0, 'Counted', format('since %s: %s claims (%s a second), %s replays', date_trunc('second', stats_reset), claims,
                                   round(claims / seconds, 2), replays) FROM counted
    UNION ALL
    SELECT 4, 1, '', format('%s completed, %s failed, %s released, %s taken over', completions, failures, releases, takeovers) FROM counted
    UNION ALL
    SELECT 4, 2, '', format('%s found their key in flight, %s waited, for %s in all', in_flight, waits, date_trunc('millisecond', wait_time))
      FROM counted WHERE in_flight + waits > 0
    UNION ALL
    SELECT 4, 3, '', 'refused: ' || concat_ws(', ', nullif(conflicts, 0) || ' for another request', nullif(stale, 0) || ' stale keys',
                                              nullif(limited, 0) || ' beyond a limit')
      FROM counted WHERE conflicts + stale + limited > 0
    UNION ALL
    SELECT 4, 4, '', format('%s weak keys', weak) FROM counted WHERE weak > 0
    UNION ALL
    SELECT 4, 0, 'Counted', 'nothing: ' || CASE WHEN idem.preloaded() THEN 'see the check "statistics"' ELSE 'idem is not preloaded' END
     WHERE NOT EXISTS (SELECT FROM counted)
    UNION ALL
    SELECT 5, 0, 'In flight', CASE count(*) WHEN 0 THEN 'nothing' WHEN 1 THEN '1 claim'
                                            ELSE count(*) || ' claims' || CASE WHEN count(*) > 10 THEN ', the oldest 10:' ELSE '' END END
                               || CASE WHEN idem.preloaded() THEN '' ELSE '; atomic claims are not seen unless idem is preloaded' END
      FROM flight
    UNION ALL
    (SELECT 5, row_number() OVER (ORDER BY since, tenant, key), '',
            concat_ws(', ', 'key ' || to_json(key), 'tenant ' || to_json(nullif(tenant, '')), 'attempt ' || attempt,
                      'for ' || date_trunc('second', age), 'at recovery point ' || to_json(recovery_point), 'process ' || pid,
                      CASE state WHEN 'uncommitted' THEN 'not committed' END, 'prepared transaction ' || to_json(gid),
                      CASE WHEN lapsed THEN 'lease over since ' ELSE 'leased until ' END || date_trunc('second', lease_end))
       FROM flight ORDER BY 2 LIMIT 10)
    UNION ALL
    SELECT 6, 0, 'Health', CASE count(*) WHEN 0 THEN 'nothing to remark' ELSE count(*) || ' to look at' END FROM remark
    UNION ALL
    SELECT 6, 2 * n, '', format('%s, %s: %s', check_name, status, detail) FROM remark
    UNION ALL
    SELECT 6, 2 * n + 1, '', '  ' || hint FROM remark)
SELECT rpad(title, 12) || words FROM line WHERE words <> '' ORDER BY section, n
$$;
COMMENT ON FUNCTION idem.report(text) IS
'A scope at a glance, for a person: its rules, what it holds, what was counted, what is in flight, what idem.health() has to say of it. Raises ID008 unknown_scope, 42501.';

-- The ids of dropped scopes: they are never given again, and what the scopes held is purged. In a
-- table, because a sequence is not replicated, and a missing row of idem.scope may be yet to come.
CREATE TABLE idem.dropped_scope (
    id              integer     NOT NULL PRIMARY KEY,
    dropped         timestamptz NOT NULL
);
COMMENT ON TABLE idem.dropped_scope IS 'the ids of dropped scopes, which are never given again; written by idem.drop_scope()';
SELECT pg_catalog.pg_extension_config_dump('idem.dropped_scope', '');
REVOKE ALL ON idem.dropped_scope FROM PUBLIC;

-- The ids that the sequence has given, and no scope has, are those of dropped scopes, or of scopes
-- whose creation was rolled back; with the table locked, none is still to be committed. Where there is
-- no scope at all, a dump may be on its way in. Of a sequence that was set very high, the newest
-- million will do: what is not noted lives until it expires.
LOCK TABLE idem.scope IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO idem.dropped_scope
SELECT i, pg_catalog.transaction_timestamp()
  FROM idem.scope_id s, pg_catalog.generate_series(greatest(1, s.last_value - 999999), s.last_value) i
 WHERE s.is_called AND EXISTS (SELECT FROM idem.scope)
   AND NOT EXISTS (SELECT FROM idem.scope e WHERE e.id OPERATOR(pg_catalog.=) i);

-- A sequence that was replicated to here may be behind the ids in use. Marked as not called, it is
-- not trusted, and the next idem.create_scope() looks at every record.
SELECT pg_catalog.setval('idem.scope_id', last_value + 1, false) FROM idem.scope_id
 WHERE is_called AND last_value < 2147483647;

-- The table cannot be read on a standby, where the view is read all the same.
CREATE FUNCTION idem.purge_block()
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_purge_block' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.purge_block() IS
'The block of idem.record at which the next purge begins; on a standby 0, where a promotion lets it begin.';

CREATE OR REPLACE VIEW idem.storage WITH (security_barrier) AS
    SELECT pg_catalog.pg_table_size(r.oid) AS table_bytes, pg_catalog.pg_indexes_size(r.oid) AS index_bytes,
           pg_catalog.pg_relation_size(r.oid) / pg_catalog.current_setting('block_size')::bigint AS table_blocks,
           idem.purge_block() AS purge_block,
           pg_catalog.pg_stat_get_live_tuples(r.oid) AS live_rows, pg_catalog.pg_stat_get_dead_tuples(r.oid) AS dead_rows,
           greatest(pg_catalog.age(r.relfrozenxid), pg_catalog.age(t.relfrozenxid)) AS frozen_age,
           (SELECT pg_catalog.count(*) FROM idem.scope) AS scopes,
           (SELECT pg_catalog.count(DISTINCT purpose) = 2 FROM idem.secret) AS has_secrets
      FROM pg_catalog.pg_class r LEFT JOIN pg_catalog.pg_class t ON t.oid = r.reltoastrelid
     WHERE r.oid = 'idem.record'::pg_catalog.regclass;
COMMENT ON VIEW idem.storage IS 'one row about the record table as a whole: its size, how far the purge has come, and its vacuum; for members of pg_monitor';

DROP TABLE idem.sweep;
-- Where the next purge goes on: one row. Unlogged, so that it is never published: a table without a
-- key stops a subscription at the first update, and one with a key would collide with the
-- subscriber's own row. A crash empties it, and the next purge begins at the first block.
CREATE UNLOGGED TABLE idem.sweep (
    hand            bigint      NOT NULL
);
INSERT INTO idem.sweep VALUES (0);
COMMENT ON TABLE idem.sweep IS 'the block of idem.record at which the next purge begins';
REVOKE ALL ON idem.sweep FROM PUBLIC;

COMMENT ON FUNCTION idem.purge(integer) IS
'Deletes expired records and those of dropped scopes, at most max_records (default 10000), going on where the last purge stopped, and returns how many. Where the records arrive by subscription it deletes none: the publisher purges. One transaction: call it from cron. For superusers and whoever is granted EXECUTE. Raises 22023.';
