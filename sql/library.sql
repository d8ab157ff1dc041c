-- What only the extension has: the keys that transactions hold, statistics, record tables.

-- ---------------------------------------------------------------------------------------------
-- What the views read
-- ---------------------------------------------------------------------------------------------

-- The planner puts the text of this function into views and looks its names up by the caller's
-- search_path, and may evaluate it before rows are hidden.
CREATE FUNCTION idem_internal.key_text(r idem.record)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS 'SELECT coalesce(r.key, r.key_uuid::pg_catalog.text)';

COMMENT ON FUNCTION idem_internal.key_text IS
    'Returns the key of a record.';

-- As the index of unfinished operations says it, and likewise.
CREATE FUNCTION idem_internal.is_unfinished(r idem.record)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$SELECT r.state OPERATOR(pg_catalog.=) 'p'$$;

COMMENT ON FUNCTION idem_internal.is_unfinished IS
    'Returns whether the operation of a record is leased and unfinished.';

-- lease_end belongs to unfinished operations, completed to finished ones.
CREATE VIEW idem_internal.stored AS
    SELECT
        scope,
        tenant,
        idem_internal.key_text(r) AS key,
        state,
        coalesce(attempt, 1) AS attempt,
        coalesce(extra_attempts, 0) AS extra_attempts,
        status,
        created,
        expires,
        CASE WHEN state = 'p' THEN lease_end END AS lease_end,
        CASE WHEN state <> 'p' THEN coalesce(lease_end, created) END AS completed,
        nonce IS NULL AS released,
        recovery_point,
        coalesce(redacted, false) AS redacted,
        headers,
        response,
        body,
        error,
        request
    FROM idem.record r;

COMMENT ON VIEW idem_internal.stored IS
    'The records in idem.record, as the views read them.';

-- ---------------------------------------------------------------------------------------------
-- Operations in flight
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.held_keys(
    with_prepared boolean,
    OUT scope text,
    OUT tenant text,
    OUT key text,
    OUT attempt integer,
    OUT since timestamptz,
    OUT pid integer,
    OUT transaction xid,
    OUT state text,
    OUT keys integer
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_held_keys'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.held_keys IS
    'Returns, for the scopes that the current role may use, one key per running transaction that '
    'holds keys: its newest open atomic claim (state open) or, if it has none, the newest key that '
    'is finished or leased but not committed (state uncommitted); keys is how many keys it holds. '
    'with_prepared: also all keys that prepared transactions have written to idem.record (state '
    'prepared), for which it reads all records.';

-- ---------------------------------------------------------------------------------------------
-- The version of the library
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.library(OUT version text, OUT compared integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_library'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.library IS
    'Returns the version of the library that this session has loaded, and how it compares with '
    'the version of the extension''s objects: -1 (it is older, and refuses to write), 0 (the same) '
    'or 1 (newer).';

CREATE FUNCTION idem_internal.begin_update()
RETURNS void
AS 'MODULE_PATHNAME', 'idem_begin_update'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

REVOKE EXECUTE ON FUNCTION idem_internal.begin_update FROM PUBLIC;

COMMENT ON FUNCTION idem_internal.begin_update IS
    'The first call of a script that updates the extension: refuses the update (55000) if the '
    'library is older than the version to which it leads, and makes all sessions compare theirs.';

-- ---------------------------------------------------------------------------------------------
-- Statistics
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.preloaded()
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_preloaded'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.preloaded IS
    'Returns whether the server has preloaded idem. The purge worker, statistics, limits and the '
    'list of open atomic claims need that.';

CREATE FUNCTION idem_internal.scope_counters(
    scope_id integer,
    OUT since timestamptz,
    OUT numbers bigint[],
    OUT tenants integer,
    OUT room integer
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_scope_counters'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.scope_counters IS
    'Returns what is counted in the scope: 19 counters, then 40 buckets and the sum in '
    'microseconds of each histogram; and how many tenants are counted for claims_per_minute, and '
    'how many more could be. No row if idem is not preloaded, if the scope has no place in '
    'the statistics, or if the current role neither may use the scope nor is a member of '
    'pg_monitor.';

-- The order of the numbers is that of the enum Counter in the library.
CREATE VIEW idem.stats WITH (security_barrier) AS
    SELECT
        s.name COLLATE "default" AS scope,
        c.numbers[1] AS claims,
        c.numbers[2] AS replays,
        c.numbers[3] AS in_flight,
        c.numbers[4] AS waits,
        c.numbers[5] * interval '1 microsecond' AS wait_time,
        c.numbers[6] AS conflicts,
        c.numbers[7] AS takeovers,
        c.numbers[8] AS completions,
        c.numbers[9] AS failures,
        c.numbers[10] AS releases,
        c.numbers[11] AS stale,
        c.numbers[12] AS weak,
        c.numbers[13] AS limited,
        c.numbers[14] AS expired_reused,
        c.numbers[15] AS purged,
        c.since AS stats_reset,
        c.numbers[16] AS advances,
        c.numbers[17] AS duplicates,
        c.numbers[18] AS exhausted,
        c.numbers[19] AS late_replays,
        c.tenants AS limited_tenants,
        c.room AS limited_tenants_room
    FROM idem.scope s
        CROSS JOIN LATERAL idem_internal.scope_counters(s.id) c
    OFFSET 0;

GRANT SELECT ON idem.stats TO PUBLIC;

COMMENT ON VIEW idem.stats IS
    'The statistics, since stats_reset, of each scope whose owner''s privileges the current role '
    'has. Members of pg_monitor see every scope. No rows unless idem is preloaded.';

-- The upper bound of bucket i is 2 ^ (i - 1) microseconds; the last bucket has none.
CREATE FUNCTION idem_internal.quantile(counts bigint[], percent integer)
RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT 2 ^ (nullif(min(b.i), 40) - 1) * interval '1 microsecond'
    FROM (
        SELECT u.i, sum(u.n) OVER (ORDER BY u.i) AS within, sum(u.n) OVER () AS total
        FROM unnest($1) WITH ORDINALITY AS u (n, i)
    ) AS b
    WHERE b.total > 0 AND b.within * 100 >= b.total * $2;
END;

COMMENT ON FUNCTION idem_internal.quantile IS
    'Returns the lowest upper bound that so many percent of the durations in the buckets do not '
    'exceed. NULL if there are no durations, or if no bound is high enough.';

CREATE VIEW idem.durations WITH (security_barrier) AS
    SELECT
        s.name COLLATE "default" AS scope,
        k.kind,
        (SELECT sum(n)::bigint FROM unnest(h.counts) AS u (n)) AS count,
        c.numbers[k.first + 40] * interval '1 microsecond' AS total,
        idem_internal.quantile(h.counts, 50) AS p50,
        idem_internal.quantile(h.counts, 90) AS p90,
        idem_internal.quantile(h.counts, 99) AS p99,
        ARRAY(SELECT 2 ^ (i - 1) * interval '1 microsecond' FROM generate_series(1, 39) i)
            AS upper_bounds,
        h.counts,
        c.since AS stats_reset
    FROM idem.scope s
        CROSS JOIN LATERAL idem_internal.scope_counters(s.id) c
        CROSS JOIN (VALUES ('atomic', 20), ('leased', 61), ('wait', 102)) AS k (kind, first)
        CROSS JOIN LATERAL (SELECT c.numbers[k.first : k.first + 39] AS counts) AS h
    OFFSET 0;

GRANT SELECT ON idem.durations TO PUBLIC;

COMMENT ON VIEW idem.durations IS
    'How long operations took (kind atomic or leased) and claims waited (kind wait), since '
    'stats_reset, in each scope whose owner''s privileges the current role has. Members of '
    'pg_monitor see every scope. p50, p90 and p99 are the lowest upper bounds that 50, 90 and 99 '
    'percent do not exceed. counts has the number within each of upper_bounds and above the one '
    'before, and last the number above all. No rows unless idem is preloaded.';
COMMENT ON COLUMN idem.durations.kind IS
    'atomic, leased or wait.';

CREATE FUNCTION idem.stats_reset(scope text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_stats_reset'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

REVOKE ALL ON FUNCTION idem.stats_reset FROM PUBLIC;

COMMENT ON FUNCTION idem.stats_reset IS
    'Sets the statistics of a scope, or of all scopes of this database, to zero. A rollback does '
    'not undo it. For superusers and roles that are granted EXECUTE. Raises ID008.';

-- ---------------------------------------------------------------------------------------------
-- Figures, and record tables
-- ---------------------------------------------------------------------------------------------

-- The planner calls functions that are in the indexes of a table, so the totals are computed as the
-- owner of idem.record: no role that owns the table acts with the rights of the caller.
CREATE FUNCTION idem_internal.figures(
    ids integer[],
    ttls interval[],
    max_attempts integer[]
)
RETURNS SETOF idem_internal.figures
AS 'MODULE_PATHNAME', 'idem_figures'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.figures IS
    'Returns the rows of idem_internal.totals() for the scopes that the current role may observe; '
    'NULLs beside their ids if an index of idem.record calls a function that is not built in.';

-- Also the tables that idem does not use, with what is wrong with them: the view idem.storage shows
-- the others, and idem.health() these.
CREATE FUNCTION idem_internal.record_tables(
    OUT records regclass,
    OUT fault text,
    OUT remedy text,
    OUT passed_over text
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_record_tables'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.record_tables IS
    'Returns idem.record and the tables with a column of the type idem.key_digest, in the order in '
    'which they are purged. fault says why idem does not use a table (NULL: it does), passed_over '
    'what the purge leaves in a table that idem uses, and remedy what to do about it.';

CREATE FUNCTION idem_internal.own_tables(
    OUT name regclass,
    OUT fault text,
    OUT remedy text
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_own_tables'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.own_tables IS
    'Returns the tables of idem that are dumped; fault says what their dump could not restore and, '
    'of idem.record and idem.watermark, what idem.create_record_table() would not make of a table, '
    'and what idem does not obey or refuses (NULL: nothing), and remedy what to do about it.';

-- ---------------------------------------------------------------------------------------------
-- Health: what only the extension has
-- ---------------------------------------------------------------------------------------------

-- A key lock is a heavyweight lock in the class of advisory locks, with an objsubid of its own:
-- 7651, which is lock_class in the library.
CREATE FUNCTION idem_internal.key_holders(
    OUT pid integer,
    OUT gid text,
    OUT since timestamptz,
    OUT keys text
)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        l.pid,
        p.gid,
        coalesce(a.xact_start, p.prepared) AS since,
        CASE count(*) WHEN 1 THEN 'a key' ELSE count(*) || ' keys' END AS keys
    FROM pg_locks l
        LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN pg_locks x ON l.pid IS NULL
            AND x.pid IS NULL
            AND x.locktype = 'transactionid'
            AND x.virtualtransaction = l.virtualtransaction
        LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
    WHERE l.locktype = 'advisory'
        AND l.objsubid = 7651
        AND l.granted
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    GROUP BY 1, 2, 3
$$;

COMMENT ON FUNCTION idem_internal.key_holders IS
    'Returns the processes and prepared transactions that hold keys.';

-- A row whose status is ok is a check, in the order of n, with its detail if it has no finding; any
-- other row is a finding.
CREATE FUNCTION idem_internal.own_checks(
    OUT n integer,
    OUT check_name text,
    OUT status text,
    OUT detail text,
    OUT hint text
)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
WITH server AS MATERIALIZED (
    SELECT
        idem_internal.preloaded() AS preloaded,
        pg_is_in_recovery() AS standby,
        coalesce(nullif(current_setting('idem.purge_naptime', true), ''), '0')::interval AS naptime,
        EXISTS (SELECT FROM pg_stat_activity
                WHERE backend_type = 'idem launcher') AS launched
),
record_table AS MATERIALIZED (
    SELECT * FROM idem_internal.record_tables()
),
-- What CREATE EXTENSION has made.
member (kind, name, owner, definer) AS (
    SELECT o.*
    FROM pg_extension e
        JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
            AND d.deptype = 'e'
        CROSS JOIN LATERAL (
            SELECT CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass::text,
                relowner, false
            FROM pg_class
            WHERE d.classid = 'pg_class'::regclass AND oid = d.objid AND relkind IN ('r', 'v')
            UNION ALL
            SELECT 'FUNCTION', oid::regprocedure::text, proowner, prosecdef
            FROM pg_proc
            WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid
            UNION ALL
            SELECT 'SCHEMA', oid::regnamespace::text, nspowner, false
            FROM pg_namespace
            WHERE d.classid = 'pg_namespace'::regclass AND oid = d.objid
        ) AS o
    WHERE e.extname = 'idem'
),
-- A dump does not restore the owner of an extension, so that of most functions counts. Others than
-- superusers do not count, because they must not replace what superusers run.
idem (owner, any_owner) AS MATERIALIZED (
    SELECT mode() WITHIN GROUP (ORDER BY m.owner) FILTER (WHERE r.rolsuper),
        mode() WITHIN GROUP (ORDER BY m.owner)
    FROM member m JOIN pg_roles r ON r.oid = m.owner
    WHERE m.kind = 'FUNCTION'
),
-- Those by ALTER ROLE and ALTER DATABASE, and what this session has besides. pg_settings shows them
-- only to sessions that have loaded the library.
stored_test_setting (name, setting, remedy) AS (
    SELECT
        o.option_name,
        o.option_value,
        format('ALTER %s RESET %s',
               concat_ws(' IN ',
                         CASE
                             WHEN d.setrole <> 0 THEN 'ROLE ' || d.setrole::regrole
                             WHEN d.setdatabase = 0 THEN 'ROLE ALL'
                         END,
                         CASE WHEN d.setdatabase <> 0
                             THEN format('DATABASE %I', current_database()) END),
               o.option_name)
    FROM pg_db_role_setting d, pg_options_to_table(d.setconfig) o
    WHERE o.option_name LIKE E'idem\\_test.%'
        AND d.setdatabase IN (
            0, (SELECT oid FROM pg_database WHERE datname = current_database()))
),
test_setting AS (
    SELECT * FROM stored_test_setting

    UNION ALL
    SELECT
        name,
        current_setting(name, true),
        format('Remove it from postgresql.conf and from the connection''s options, or: '
               'ALTER SYSTEM RESET %s. Then: SELECT pg_reload_conf()', name)
    FROM unnest('{idem_test.busy_rate,idem_test.crash_rate,idem_test.duplicate_rate}'::text[]) name
    WHERE (name, current_setting(name, true))
        NOT IN (SELECT s.name, s.setting FROM stored_test_setting s)
),
-- Each row is a test that can find something; found says whether it does.
test (found, check_name, status, detail, hint) AS (
    SELECT f.found, 'worker', f.status, f.detail, f.hint
    FROM server v, LATERAL (VALUES
        (NOT v.preloaded, 'warn',
         'idem is not preloaded: no worker purges expired records, and there are no statistics.',
         'Add idem to shared_preload_libraries and restart the server. Until then, call '
         'idem.purge() from cron, unless a tool copies the records from another server.'),
        (v.preloaded AND NOT v.standby AND NOT v.launched, 'fail',
         'idem is preloaded, but its launcher does not run: no worker purges expired records.',
         'Search the server log for "idem launcher". If the log says that there are too many '
         'background workers, raise max_worker_processes and restart the server.'),
        (v.preloaded AND NOT v.standby AND v.launched AND v.naptime = '0', 'warn',
         'idem.purge_naptime is 0: no worker purges expired records.',
         'If a tool copies the records from another server, wait until clients use this one. If '
         'not: ALTER SYSTEM SET idem.purge_naptime = ''10s''. Then: SELECT pg_reload_conf()')
    ) AS f (found, status, detail, hint)

    UNION ALL
    SELECT f.found, f.check_name, 'warn', f.detail, t.remedy
    FROM record_table t, LATERAL (VALUES
        (t.fault IS NOT NULL, 'record tables',
         format('%s has a column of the type idem.key_digest, but idem does not use it: its '
                'records are neither found nor purged. %s', t.records, t.fault)),
        (t.passed_over IS NOT NULL, 'purge',
         format('The purge does not reach everything in %s. %s', t.records, t.passed_over))
    ) AS f (found, check_name, detail)

    UNION ALL
    SELECT o.fault IS NOT NULL, 'record tables', 'fail', format('%s: %s', o.name, o.fault), o.remedy
    FROM idem_internal.own_tables() o

    UNION ALL
    SELECT
        i.owner IS NULL,
        'schema',
        'fail',
        format('The functions of idem are owned by role "%s", which is not a superuser: it can '
               'replace them, and other roles would run its code with their own privileges.',
               pg_get_userbyid(i.any_owner)),
        format('It can have changed them: compare them with those of a new installation. Then, if '
               'the role owns nothing else: REASSIGN OWNED BY %s TO %s',
               i.any_owner::regrole, (SELECT min(oid) FROM pg_roles WHERE rolsuper)::regrole)
    FROM idem i

    -- What ALTER EXTENSION has dropped and added again is not in this list any more.
    UNION ALL
    SELECT
        NOT coalesce(c.oid = ANY (e.extconfig), false),
        'record tables',
        'fail',
        format('A dump does not contain the rows of %s.', c.oid::regclass),
        format('UPDATE pg_extension SET '
               'extconfig = pg_catalog.array_append(extconfig, %L::regclass::oid), '
               'extcondition = pg_catalog.array_append(extcondition, '''') '
               'WHERE extname = ''idem''',
               c.oid::regclass)
    FROM pg_extension e
        JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
            AND d.classid = 'pg_class'::regclass AND d.deptype = 'e'
        JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'r' AND c.relpersistence = 'p'
    WHERE e.extname = 'idem'

    UNION ALL
    SELECT f.found, f.check_name, 'fail', f.detail, f.hint
    FROM member m, idem, LATERAL (VALUES
        (m.owner <> idem.owner,
         CASE m.kind WHEN 'TABLE' THEN 'record tables' ELSE 'schema' END,
         format('%1$s: %2$s %1$s is owned by role "%3$s", and idem by role "%4$s".', m.name,
                initcap(m.kind), pg_get_userbyid(m.owner), pg_get_userbyid(idem.owner)),
         format(concat(CASE WHEN m.kind <> 'SCHEMA'
                                THEN 'Its owner can have changed it, also by rules and indexes, '
                                     'and would then run as role %3$s: compare it with that of a '
                                     'new installation. Then: '
                       END, 'ALTER %1$s %2$s OWNER TO %3$s'),
                m.kind, m.name, idem.owner::regrole)),
        (m.definer, 'functions',
         format('%s is SECURITY DEFINER: it takes its owner for its caller.', m.name),
         format('ALTER FUNCTION %s SECURITY INVOKER', m.name))
    ) AS f (found, check_name, detail, hint)

    UNION ALL
    SELECT f.found, 'library', f.status, format(f.detail, l.version, e.extversion), f.hint
    FROM server v, idem_internal.library() l, pg_extension e, LATERAL (VALUES
        (l.compared < 0, 'fail',
         'The library is version %s, but the objects of the extension are version %s: no call '
         'writes (55000), and no worker purges.',
         format('Make sure that idem %s is installed, and ', e.extversion)
         || CASE WHEN v.preloaded THEN 'restart the server.' ELSE 'reconnect.' END),
        (l.compared > 0, 'warn',
         'The library is version %s, but the objects of the extension are still version %s.',
         -- One long transaction must not make all calls wait behind the update.
         CASE WHEN v.standby THEN 'On the primary: ' ELSE '' END
         || 'BEGIN; SET LOCAL lock_timeout = ''2s''; ALTER EXTENSION idem UPDATE; COMMIT')
    ) AS f (found, status, detail, hint)
    WHERE e.extname = 'idem'

    UNION ALL
    SELECT
        t.setting !~ '^[0.]*$',
        'tests',
        'warn',
        format('The setting %s is %s: idem_test disturbs calls, for tests of clients.', t.name,
               t.setting),
        t.remedy
    FROM test_setting t

    UNION ALL
    SELECT
        NOT EXISTS (
            SELECT FROM pg_index i
            WHERE i.indrelid = r.oid AND i.indisprimary AND i.indimmediate AND i.indnkeyatts = 1
                AND i.indkey[0] = (
                    SELECT a.attnum FROM pg_attribute a
                    WHERE a.attrelid = r.oid AND a.attname = 'digest')),
        'indexes',
        'fail',
        format('%s has no primary key on digest alone, checked at once: idem cannot find its rows.',
               r.oid::regclass),
        format('ALTER TABLE %s %sADD PRIMARY KEY (digest)', r.oid::regclass,
               (SELECT format('DROP CONSTRAINT %I, ', k.conname)
                FROM pg_constraint k
                WHERE k.conrelid = r.oid AND k.contype = 'p'))
    FROM (VALUES ('idem.record'::regclass), ('idem.watermark')) AS r (oid)

    -- Other record tables are not used without the index. An index that is dropped meanwhile has no
    -- definition any more.
    UNION ALL
    SELECT
        NOT v.standby AND NOT EXISTS (
            SELECT FROM pg_index i
            WHERE i.indrelid = 'idem.record'::regclass AND i.indisvalid AND NOT i.indisunique
                AND (replace(pg_get_indexdef(i.indexrelid), '"', '')
                     LIKE '% USING btree (scope) WHERE (state = ''p''::char)') IS NOT FALSE)
            AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p
                            WHERE p.relid = 'idem.record'::regclass),
        'indexes',
        'warn',
        'idem.record has no index of unfinished operations: a search for them reads the whole '
        'table.',
        'CREATE INDEX CONCURRENTLY record_unfinished ON idem.record (scope) WHERE state = ''p'''
    FROM server v

    UNION ALL
    SELECT
        NOT EXISTS (SELECT FROM pg_trigger g
                    WHERE g.tgrelid = t.cached
                        AND g.tgname = 'announce_change'
                        AND g.tgenabled = 'A'),
        'triggers',
        'warn',
        format('Trigger announce_change on %s is missing or not ENABLE ALWAYS: sessions do not '
               'notice changes that a subscription or a restore makes there.', t.cached),
        format('CREATE OR REPLACE TRIGGER announce_change '
               'AFTER INSERT OR UPDATE OR DELETE ON %1$s '
               'FOR EACH ROW EXECUTE FUNCTION idem_internal.announce_change(); '
               'ALTER TABLE %1$s ENABLE ALWAYS TRIGGER announce_change', t.cached)
    FROM (VALUES ('idem.scope'::regclass), ('idem.secret')) AS t (cached)
)
SELECT NULL::integer, check_name, status, detail, hint
FROM test
WHERE found

UNION ALL
SELECT c.n, c.check_name, 'ok', c.detail, NULL
FROM (VALUES
    (1, 'worker', (SELECT CASE
                       WHEN standby THEN 'The server is a standby: the primary purges.'
                       ELSE 'The launcher runs.'
                   END
                   FROM server)),
    (12, 'indexes', 'The primary keys and the indexes of unfinished operations are in place, and '
        'every index is valid.'),
    (18, 'triggers', 'Sessions notice every change of scopes and secrets.'),
    (20, 'tests', 'No setting disturbs calls for tests.'),
    (23, 'record tables', 'Every table with a column of the type idem.key_digest is used.'),
    (25, 'library', 'The library and the objects of the extension have the same version.')
) AS c (n, check_name, detail)
$$;

COMMENT ON FUNCTION idem_internal.own_checks IS
    'Returns the checks of idem.health() that only the extension has, and what they have found.';

CREATE FUNCTION idem.edition()
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'extension';
