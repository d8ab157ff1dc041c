-- ---------------------------------------------------------------------------------------------
-- Health: figures without keys, which members of pg_monitor see for every scope
-- ---------------------------------------------------------------------------------------------

-- The checks of idem.health() that need a survey; one survey serves them all. The retention check
-- assumes that retries arrive while their caller waits, and after each lease of the operation, with
-- a fixed network delay and clock skew; bounds on the factors keep the intervals in range. A scope
-- without an owner row in idem.overview is newer than the statement's snapshot: the survey sees the
-- newest scopes, the join does not.
--
-- The space check compares the free space, which members of pg_monitor may know, with what the
-- records will still take until as many expire as are claimed. It assumes the present rate of
-- claims, counted over at least an hour, and the present size of a record with its index entries.
CREATE FUNCTION idem.findings(
    long_held interval DEFAULT '5 minutes',
    OUT check_name text,
    OUT status text,
    OUT scope text,
    OUT detail text,
    OUT hint text
)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO'
SET intervalstyle = 'postgres'
AS $$
WITH all_scopes AS MATERIALIZED (
    SELECT * FROM idem.overview
),
known AS MATERIALIZED (
    SELECT
        o.*,
        CASE WHEN o.coverage < 1 THEN 'about ' ELSE '' END AS about,
        idem.retention_window(
            caller_deadline => least(o.wait, '30 days'),
            retry_horizon => least(o.lease, '30 days') * least(coalesce(o.max_attempts, 1), 100),
            network_delay => '30 seconds',
            clock_skew => '5 seconds') AS horizon,
        t.claims,
        t.stale,
        t.expired_reused,
        statement_timestamp() - t.stats_reset AS counted_for
    FROM all_scopes o
        LEFT JOIN idem.stats t ON t.scope = o.scope
    WHERE o.owner IS NOT NULL
),
keys AS MATERIALIZED (
    SELECT k.*, o.ttl, o.min_ttl, o.tenant_required, o.tenant_from
    FROM idem.key_survey() k
        JOIN known o ON o.scope = k.scope
),
-- Keys that are used now: an administrator has a day to look, and a repaired client is not accused
-- for longer.
hot AS MATERIALIZED (
    SELECT
        h.*,
        o.ttl,
        o.request_required,
        h.last_seen - h.first_seen AS span
    FROM idem_internal.scope_hot_keys() h
        JOIN known o ON o.scope = h.scope
    WHERE h.last_seen > statement_timestamp() - interval '1 day'
),
-- Of each scope the worst key, and how many there are.
replayed AS (
    SELECT DISTINCT ON (scope) *, count(*) OVER (PARTITION BY scope) AS keys
    FROM hot
    WHERE replays >= 1000 AND replays >= extract(epoch FROM span) / 10
    ORDER BY scope, replays DESC, first_seen
),
conflicting AS (
    SELECT DISTINCT ON (scope) *, count(*) OVER (PARTITION BY scope) AS keys
    FROM hot
    WHERE conflicts >= 100
    ORDER BY scope, conflicts DESC, first_seen
),
-- A key that was replayed for longer than its record lives: purged meanwhile, or claimed anew.
outlived AS (
    SELECT DISTINCT ON (scope) *
    FROM hot
    WHERE replays >= 10
        AND span > ttl
        AND (created_at IS NULL OR created_at > first_seen)
    ORDER BY scope, span DESC
),
sized AS (
    SELECT
        *,
        idem.records_needed(
            claims / greatest(extract(epoch FROM counted_for), 1)::double precision, ttl) AS needed
    FROM known
    WHERE claims IS NOT NULL
),
growth AS (
    SELECT
        (SELECT sum(pg_total_relation_size(l.records))
         FROM idem_internal.record_tables() l
         WHERE l.fault IS NULL)
            / sum(s.live + s.expired) * sum(greatest(s.expected - s.live, 0)) AS bytes,
        idem.free_bytes() AS free
    FROM (
        SELECT
            *,
            idem.records_needed(
                claims / greatest(extract(epoch FROM counted_for), 3600)::double precision, ttl,
                0) AS expected
        FROM known
        WHERE claims IS NOT NULL) s
    HAVING sum(s.live) >= 1000
),
waiting AS (
    SELECT
        coalesce(sum(o.expired), 0)::bigint AS expired,
        min(o.expired_since) AS since,
        bool_or(o.coverage < 1) AS sampled,
        coalesce(current_setting('idem.purge_naptime', true), '0')::interval AS naptime
    FROM all_scopes o
)
SELECT
    'owners',
    'fail',
    k.scope,
    format('The role that owned scope "%s" was dropped: only superusers can use the scope.',
           k.scope),
    format('Give the scope a new owner, as a superuser: '
           'SELECT idem.alter_scope(%L, owner => ''NAME'')', k.scope)
FROM known k
WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = k.owner)

UNION ALL
SELECT
    'retention',
    'warn',
    k.scope,
    format('Scope "%s" remembers keys for %s, but a retry can arrive %s after the first try (the '
           'scope''s wait, its leases, 30 seconds of network delay, 5 seconds of clock skew): '
           'that retry runs the operation again.', k.scope, k.ttl, k.horizon),
    format('SELECT idem.alter_scope(%L, ttl => %L)', k.scope, k.horizon)
FROM known k
WHERE k.ttl < k.horizon

UNION ALL
SELECT
    'retention',
    'warn',
    k.scope,
    format('Since %s, callers of scope "%s" have come too late %s times: %s claims had a key whose '
           'record had expired, so that the operation ran again, and %s were refused with a stale '
           'key.', date_trunc('second', statement_timestamp() - k.counted_for), k.scope,
           k.expired_reused + k.stale, k.expired_reused, k.stale),
    format('Remember keys for longer than the callers retry, and count anew: '
           'SELECT idem.alter_scope(%L, ttl => %L); SELECT idem.stats_reset(%L)', k.scope,
           2 * k.ttl, k.scope)
FROM known k
WHERE k.expired_reused + k.stale >= greatest(10, k.claims / 1000)

UNION ALL
SELECT
    'retention',
    'warn',
    o.scope,
    format('Scope "%s" remembers keys for %s, but a key was replayed from %s to %s, and its '
           'record expired in between: the operation ran again, or will.', o.scope, o.ttl,
           date_trunc('second', o.first_seen), date_trunc('second', o.last_seen)),
    format('If callers retry for so long, remember keys for longer, and count anew: '
           'SELECT idem.alter_scope(%L, ttl => %L); SELECT idem.stats_reset(%L)', o.scope,
           date_trunc('second', greatest(2 * o.ttl, 2 * o.span)), o.scope)
FROM outlived o

UNION ALL
SELECT
    'lifetimes',
    'warn',
    l.scope,
    format('Scope "%s" has %s%s records that live for less than a tenth of its TTL of %s: callers '
           'pass a far shorter ttl.', l.scope,
           CASE WHEN l.coverage < 1 THEN 'about ' ELSE '' END, l.short_lived, l.ttl),
    format('Refuse such a ttl, or set min_ttl to the shortest one that is right: '
           'SELECT idem.alter_scope(%L, min_ttl => %L)', l.scope, l.ttl / 10)
FROM keys l
WHERE l.short_lived >= 10 AND l.min_ttl IS NULL

UNION ALL
SELECT
    'lifetimes',
    'warn',
    l.scope,
    format('Scope "%s" has %s%s record%s with a lifetime of more than two years: %s.', l.scope,
           CASE WHEN l.coverage < 1 THEN 'about ' ELSE '' END, l.long_lived,
           CASE l.long_lived WHEN 1 THEN '' ELSE 's' END,
           CASE
               WHEN l.ttl > interval '730 days' THEN format('its TTL is %s', l.ttl)
               ELSE 'callers pass a longer ttl than the scope has'
           END),
    CASE
        WHEN l.ttl > interval '730 days'
            THEN format('SELECT idem.alter_scope(%L, ttl => ''1 year''); ', l.scope)
        ELSE ''
    END
    || (SELECT string_agg(
            format('UPDATE %s SET expires = now() + interval ''1 year'' '
                   'WHERE scope = (SELECT id FROM idem.scope WHERE name = %L) '
                   'AND expires > created + interval ''730 days''', r.records, l.scope),
            '; ')
        FROM idem_internal.record_tables() r
        WHERE r.fault IS NULL)
FROM keys l
WHERE l.long_lived > 0

UNION ALL
SELECT
    'hot keys',
    'warn',
    h.scope,
    format('In scope "%s", a key was replayed %s times from %s to %s%s: if clients send one key '
           'for several operations, only the first of them runs.', h.scope, h.replays,
           date_trunc('second', h.first_seen), date_trunc('second', h.last_seen),
           CASE h.keys WHEN 1 THEN '' ELSE format(' (and %s more)', h.keys - 1) END),
    format('To see the keys: SELECT * FROM idem.hot_keys WHERE scope = %L ORDER BY replays DESC. '
           'Make the clients send a new key for each operation, and wait for answers with '
           'idem.lookup(). %sWhen that is done: SELECT idem.stats_reset(%L)', h.scope,
           CASE
               WHEN h.request_required THEN ''
               ELSE format('So that a key cannot answer another request: '
                           'SELECT idem.alter_scope(%L, request_required => true). ', h.scope)
           END, h.scope)
FROM replayed h

UNION ALL
SELECT
    'hot keys',
    'warn',
    h.scope,
    format('In scope "%s", a key was used %s times with a different request from %s to %s%s.',
           h.scope, h.conflicts, date_trunc('second', h.first_seen),
           date_trunc('second', h.last_seen),
           CASE h.keys WHEN 1 THEN '' ELSE format(' (and %s more)', h.keys - 1) END),
    format('To see the keys: SELECT * FROM idem.hot_keys WHERE scope = %L ORDER BY conflicts DESC. '
           'Make the clients send a new key for each operation, and repeat its request unchanged; '
           'or add the members that may differ to the scope''s request_exclude, which counts for '
           'new keys. When that is done: SELECT idem.stats_reset(%L)', h.scope, h.scope)
FROM conflicting h

UNION ALL
SELECT
    'tenants',
    'warn',
    t.scope,
    format('Scope "%s" has at least %s keys both with and without a tenant: a retry that forgets '
           'the tenant runs the operation again.', t.scope, t.untenanted),
    format('SELECT idem.alter_scope(%L, tenant_required => true)', t.scope)
FROM keys t
WHERE t.untenanted >= 10 AND NOT t.tenant_required AND t.tenant_from <> 'role'

UNION ALL
SELECT
    'tenants',
    'warn',
    t.scope,
    format('Scope "%s" has at least %s keys with several tenants: a retry with another tenant '
           'runs the operation again.', t.scope, t.shared),
    'Make the callers repeat the tenant with the key. If each tenant connects as a role of its '
    'own, create a scope for new keys that takes the tenant from the role '
    '(tenant_from => ''role'').'
FROM keys t
WHERE t.shared >= 10 AND t.tenant_from <> 'role'

UNION ALL
SELECT
    'sizing',
    'warn',
    s.scope,
    format('Scope "%s" holds %s%s records, but its %s claims within %s and its TTL of %s account '
           'for only %s.', s.scope, s.about, s.live, s.claims,
           date_trunc('second', s.counted_for), s.ttl, s.needed),
    'If callers pass a ttl longer than the scope''s, make that the scope''s with '
    'idem.alter_scope(). If the claims came in a burst, limit new ones with claims_per_minute.'
FROM sized s
WHERE s.counted_for >= s.ttl AND s.live >= 10000 AND s.live > 2 * s.needed

UNION ALL
SELECT
    'space',
    'warn',
    NULL,
    format('At the present rate of claims, the record tables will grow by %s until as many '
           'records expire as are claimed, and the file system of idem.record has %s free.',
           pg_size_pretty(g.bytes), pg_size_pretty(g.free)),
    'Provide more space; or store less: shorten the ttl or set the answer_ttl of a scope with '
    'idem.alter_scope(), or limit its tenants with claims_per_minute. '
    'SELECT scope, ttl, live, answer_bytes FROM idem.overview shows what takes the space.'
FROM growth g
WHERE g.bytes > g.free

UNION ALL
SELECT
    'leases',
    'warn',
    k.scope,
    format('Scope "%s" has %s%s unfinished operation%s whose lease or retry_after has ended '
           'without a takeover, the first at %s.', k.scope, k.about, k.lapsed,
           CASE k.lapsed WHEN 1 THEN '' ELSE 's' END, date_trunc('second', k.lapsed_since)),
    format('Run workers that take the operations over and finish them from their recovery points: '
           'SELECT * FROM idem.take(%L). To list the keys: '
           'SELECT tenant, key, state, lease_end, last_error FROM idem.in_flight '
           'WHERE scope = %L AND lapsed', k.scope, k.scope)
FROM known k
WHERE k.lapsed > 0
    AND statement_timestamp() - k.lapsed_since >= coalesce(long_held, '5 minutes')

UNION ALL
SELECT
    'attempts',
    'warn',
    k.scope,
    format('Scope "%s" has %s%s operation%s with no attempts left (max_attempts is %s): a claim of '
           'such a key raises ID003.', k.scope, k.about, k.exhausted,
           CASE k.exhausted WHEN 1 THEN '' ELSE 's' END, k.max_attempts),
    format('Find out why the attempts did not finish, then allow one more, which continues from '
           'the recovery point: SELECT idem.revoke(%L, KEY, TENANT). To list the keys: '
           'SELECT tenant, key, attempt, last_error FROM idem.in_flight '
           'WHERE scope = %L AND state = ''exhausted''', k.scope, k.scope)
FROM known k
WHERE k.exhausted > 0

UNION ALL
SELECT
    'weak keys',
    'warn',
    k.scope,
    format('Scope "%s" has %s%s weak key%s: such keys are likely to be used for two different '
           'operations.', k.scope, k.about, k.weak, CASE k.weak WHEN 1 THEN '' ELSE 's' END),
    format('Make the clients send UUIDs (the view idem.weak_keys shows what they send now), then '
           'reject weak keys: SELECT idem.alter_scope(%L, weak_keys => ''reject'')', k.scope)
FROM known k
WHERE k.weak > 0 AND k.weak_keys <> 'reject'

UNION ALL
SELECT
    'limits',
    'warn',
    k.scope,
    format('Scope "%s" allows %s new claims per minute per tenant, but nothing enforces this '
           'limit: idem is not preloaded.', k.scope, k.claims_per_minute),
    format('Add idem to shared_preload_libraries and restart the server; or remove the limit: '
           'SELECT idem.alter_scope(%L, claims_per_minute => -1)', k.scope)
FROM known k
WHERE k.claims_per_minute IS NOT NULL AND NOT idem_internal.preloaded()

UNION ALL
SELECT
    'statistics',
    'warn',
    k.scope,
    format('Scope "%s" has no statistics: other scopes take all %s places of '
           'idem.counted_scopes.', k.scope, current_setting('idem.counted_scopes')),
    'Raise the setting (ALTER SYSTEM SET idem.counted_scopes = ...) and restart the server.'
FROM known k
WHERE k.claims IS NULL AND idem_internal.preloaded()

UNION ALL
SELECT
    'purge',
    CASE
        WHEN w.since < statement_timestamp() - interval '1 day' THEN 'fail'
        WHEN w.since < statement_timestamp() - greatest('1 hour', 40 * w.naptime) THEN 'warn'
        ELSE 'ok'
    END,
    NULL,
    CASE
        WHEN w.expired = 0 THEN 'No expired records wait'
        WHEN w.sampled THEN 'About ' || w.expired || ' expired records wait'
        WHEN w.expired = 1 THEN '1 expired record waits'
        ELSE w.expired || ' expired records wait'
    END
    || ' to be purged'
    || coalesce(', the first since ' || date_trunc('second', w.since), '')
    || '.',
    'Run SELECT idem.purge(1000000) until it returns 0. If the purge worker runs but does not keep '
    'up, raise idem.purge_rate.'
FROM waiting w
$$;

COMMENT ON FUNCTION idem.findings IS
    'Returns the rows of idem.health() that are about records, for the scopes that the current '
    'role may use (members of pg_monitor: for every scope).';

-- A key lock is a heavyweight lock in the class of advisory locks, with an objsubid of its own:
-- 7651, which is lock_class in the library.
CREATE FUNCTION idem.health(
    long_held interval DEFAULT '5 minutes',
    OUT check_name text,
    OUT status text,
    OUT scope text,
    OUT detail text,
    OUT hint text
)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO'
SET intervalstyle = 'postgres'
AS $$
WITH server AS MATERIALIZED (
    SELECT
        idem_internal.preloaded() AS preloaded,
        pg_is_in_recovery() AS standby,
        coalesce(current_setting('idem.purge_naptime', true), '0')::interval AS naptime,
        EXISTS (SELECT FROM pg_stat_activity
                WHERE backend_type = 'idem launcher') AS launched
),
storage AS MATERIALIZED (
    SELECT * FROM idem.storage
),
held AS MATERIALIZED (
    SELECT l.pid, p.gid, coalesce(a.xact_start, p.prepared) AS since
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
),
holder AS (
    SELECT pid, gid, since, CASE count(*) WHEN 1 THEN 'a key' ELSE count(*) || ' keys' END AS keys
    FROM held
    WHERE statement_timestamp() - since >= coalesce(long_held, '5 minutes')
    GROUP BY pid, gid, since
),
record_table AS MATERIALIZED (
    SELECT * FROM idem_internal.record_tables()
),
relation AS (
    SELECT r.oid::regclass AS owned_by, c.oid, c.reloptions
    FROM pg_class r
        JOIN pg_class c ON c.oid IN (r.oid, r.reltoastrelid)
    WHERE r.oid = 'idem.watermark'::regclass
        OR r.oid IN (SELECT t.records FROM record_table t WHERE t.fault IS NULL)
),
writer (name) AS (
    VALUES ('claim'), ('try_claim'), ('complete'), ('fail'), ('release'), ('renew'),
        ('checkpoint'), ('take'), ('execute'), ('once'), ('once_each'), ('advance'), ('cancel'),
        ('revoke'), ('forget'), ('forget_tenant'), ('erase'), ('erase_tenant'), ('reset_stream')
),
-- Of this session, and of others by ALTER ROLE or ALTER DATABASE.
test_setting (name, setting) AS (
    -- pg_settings shows them only to sessions that have loaded the library.
    SELECT name, current_setting(name, true)
    FROM unnest('{idem_test.busy_rate,idem_test.crash_rate,idem_test.duplicate_rate}'::text[]) name
    WHERE current_setting(name, true) !~ '^[0.]*$'

    UNION
    SELECT o.option_name, o.option_value
    FROM pg_db_role_setting d, pg_options_to_table(d.setconfig) o
    WHERE o.option_name LIKE 'idem\_test.%'
        AND o.option_value !~ '^[0.]*$'
        AND d.setdatabase IN (
            0, (SELECT oid FROM pg_database WHERE datname = current_database()))
),
finding (check_name, status, scope, detail, hint) AS (
    SELECT f.check_name, f.status, f.scope, f.detail, f.hint
    FROM idem.findings(long_held) f

    UNION ALL
    SELECT
        'worker',
        'warn',
        NULL,
        'idem is not preloaded: no worker purges expired records, and there are no statistics.',
        'Add idem to shared_preload_libraries and restart the server; or call idem.purge() from '
        'cron.'
    FROM server
    WHERE NOT preloaded

    UNION ALL
    SELECT
        'worker',
        'fail',
        NULL,
        'idem is preloaded, but its launcher does not run: no worker purges expired records.',
        'Search the server log for "idem launcher". If the log says that there are too many '
        'background workers, raise max_worker_processes and restart the server.'
    FROM server
    WHERE preloaded AND NOT standby AND NOT launched

    UNION ALL
    SELECT
        'worker',
        'warn',
        NULL,
        'idem.purge_naptime is 0: no worker purges expired records.',
        'ALTER SYSTEM SET idem.purge_naptime = ''10s''; SELECT pg_reload_conf();'
    FROM server
    WHERE preloaded AND NOT standby AND launched AND naptime = '0'

    UNION ALL
    SELECT
        'tests',
        'warn',
        NULL,
        format('The setting %s is %s: idem_test disturbs calls, for tests of clients.', t.name,
               t.setting),
        format('In production, reset it where it is set: ALTER SYSTEM RESET %1$s, '
               'ALTER DATABASE ... RESET %1$s or ALTER ROLE ... RESET %1$s', t.name)
    FROM test_setting t

    UNION ALL
    SELECT
        'transactions',
        'warn',
        NULL,
        format('Process %s has held %s since its transaction began at %s.', h.pid, h.keys,
               date_trunc('second', h.since)),
        format('To see what it does: SELECT * FROM pg_stat_activity WHERE pid = %s. To see its '
               'newest key: SELECT * FROM idem.in_flight WHERE pid = %s. To end the session, '
               'which rolls the transaction back: SELECT pg_terminate_backend(%s)',
               h.pid, h.pid, h.pid)
    FROM holder h
    WHERE h.pid IS NOT NULL

    UNION ALL
    SELECT
        'transactions',
        'warn',
        NULL,
        format('Prepared transaction "%s" has held %s since %s.', h.gid, h.keys,
               date_trunc('second', h.since)),
        format('Finish it as its transaction manager decides: COMMIT PREPARED %L or '
               'ROLLBACK PREPARED %L', h.gid, h.gid)
    FROM holder h
    WHERE h.gid IS NOT NULL

    UNION ALL
    SELECT
        'autovacuum',
        'fail',
        NULL,
        format('The setting %s is off: autovacuum does not process the record tables.', s.name),
        format('ALTER SYSTEM SET %s = on; SELECT pg_reload_conf();', s.name)
    FROM pg_settings s
    WHERE s.name IN ('autovacuum', 'track_counts') AND s.setting = 'off'

    UNION ALL
    SELECT
        'autovacuum',
        'fail',
        NULL,
        format('Autovacuum is disabled for %s.', r.oid::regclass),
        format('ALTER TABLE %s RESET (autovacuum_enabled, toast.autovacuum_enabled)', r.owned_by)
    FROM relation r, pg_options_to_table(r.reloptions) o
    WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean

    UNION ALL
    SELECT
        'vacuum',
        'warn',
        NULL,
        format('%s has %s dead rows and %s live rows: autovacuum does not keep up.', s.records,
               s.dead_rows, s.live_rows),
        format('VACUUM %s', s.records)
    FROM storage s
    WHERE s.dead_rows > greatest(10000, s.live_rows)

    UNION ALL
    SELECT
        'wraparound',
        CASE WHEN s.frozen_age > 1600000000 THEN 'fail' ELSE 'warn' END,
        NULL,
        format('The oldest row of %s that is not frozen is %s transactions old.', s.records,
               s.frozen_age),
        format('VACUUM (FREEZE) %s', s.records)
    FROM storage s
    WHERE s.frozen_age > 1.5 * current_setting('autovacuum_freeze_max_age')::bigint

    UNION ALL
    SELECT
        'indexes',
        'fail',
        NULL,
        format('%s has no primary key on digest alone, checked at once: idem cannot find its rows.',
               r.oid::regclass),
        format('ALTER TABLE %s %sADD PRIMARY KEY (digest)', r.oid::regclass,
               (SELECT format('DROP CONSTRAINT %I, ', k.conname)
                FROM pg_constraint k
                WHERE k.conrelid = r.oid AND k.contype = 'p'))
    FROM relation r
    WHERE r.oid IN ('idem.record'::regclass, 'idem.watermark'::regclass)
        AND NOT EXISTS (
            SELECT FROM pg_index i
            WHERE i.indrelid = r.oid AND i.indisprimary AND i.indimmediate
                AND i.indkey::text = (
                    SELECT a.attnum::text FROM pg_attribute a
                    WHERE a.attrelid = r.oid AND a.attname = 'digest'))

    UNION ALL
    SELECT
        'indexes',
        CASE WHEN i.indisprimary THEN 'fail' ELSE 'warn' END,
        NULL,
        format('Index %s is invalid.', i.indexrelid::regclass),
        CASE
            WHEN i.indisprimary THEN format('REINDEX INDEX %s', i.indexrelid::regclass)
            ELSE format('Unless CREATE INDEX CONCURRENTLY is building it now: DROP INDEX %s',
                        i.indexrelid::regclass)
        END
    FROM pg_index i
        JOIN relation r ON r.oid = i.indrelid
    WHERE r.oid = r.owned_by AND NOT (i.indisvalid AND i.indisready)

    UNION ALL
    SELECT
        'indexes',
        'warn',
        NULL,
        format('%s has no index of unfinished operations: a search for them reads the whole table.',
               r.oid::regclass),
        format('CREATE INDEX CONCURRENTLY %sON %s (scope) WHERE state = ''p''',
               CASE r.oid WHEN 'idem.record'::regclass THEN 'record_unfinished ' ELSE '' END,
               r.oid::regclass)
    FROM relation r
    WHERE r.oid = r.owned_by
        AND r.oid <> 'idem.watermark'::regclass
        AND NOT EXISTS (
            SELECT FROM pg_index i
            WHERE i.indrelid = r.oid AND i.indisvalid AND NOT i.indisunique
                AND pg_get_indexdef(i.indexrelid)
                    LIKE '% USING btree (scope) WHERE (state = ''p''::"char")')

    UNION ALL
    SELECT
        'secrets',
        'fail',
        NULL,
        'There are scopes, but the secrets for key locks and fingerprints are missing: no claim '
        'works.',
        'Restore the rows of idem.secret from the dump from which the records were restored.'
    FROM storage s
    WHERE s.records = 'idem.record'::regclass AND s.scopes > 0 AND NOT s.has_secrets

    UNION ALL
    SELECT
        'record tables',
        'warn',
        NULL,
        format('%s has a column of the type idem.key_digest, but idem does not use it: its records '
               'are neither found nor purged. %s', t.records, t.fault),
        t.remedy
    FROM record_table t
    WHERE t.fault IS NOT NULL

    UNION ALL
    SELECT
        'purge',
        'warn',
        NULL,
        format('The purge does not reach everything in %s. %s', t.records, t.passed_over),
        t.remedy
    FROM record_table t
    WHERE t.passed_over IS NOT NULL

    UNION ALL
    SELECT
        'schema',
        'warn',
        NULL,
        format('%s can create functions in schema %s, which other roles may then call with '
               'their own privileges.',
               CASE a.grantee
                   WHEN 0 THEN 'Every role'
                   ELSE format('Role %s', a.grantee::regrole)
               END, n.nspname),
        format('REVOKE CREATE ON SCHEMA %s FROM %s', n.nspname,
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
    FROM pg_namespace n, aclexplode(n.nspacl) a
    WHERE n.nspname IN ('idem', 'idem_internal')
        AND a.privilege_type = 'CREATE'
        AND a.grantee <> n.nspowner
        AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = a.grantee AND r.rolsuper)

    UNION ALL
    SELECT
        'triggers',
        'warn',
        NULL,
        format('Trigger announce_change on %s is missing or not ENABLE ALWAYS: sessions do not '
               'notice changes that a subscription or a restore makes there.', t.cached),
        format('CREATE OR REPLACE TRIGGER announce_change '
               'AFTER INSERT OR UPDATE OR DELETE ON %s '
               'FOR EACH ROW EXECUTE FUNCTION idem_internal.announce_change(); '
               'ALTER TABLE %s ENABLE ALWAYS TRIGGER announce_change', t.cached, t.cached)
    FROM (VALUES ('idem.scope'::regclass), ('idem.secret')) AS t (cached)
    WHERE NOT EXISTS (SELECT FROM pg_trigger g
                      WHERE g.tgrelid = t.cached
                          AND g.tgname = 'announce_change'
                          AND g.tgenabled = 'A')

    UNION ALL
    SELECT
        'functions',
        'warn',
        NULL,
        format('Function %s is declared %s, but calls a function of idem that writes: the planner '
               'may call it, and may merge identical calls into one.', p.oid::regprocedure,
               CASE p.provolatile WHEN 's' THEN 'STABLE' ELSE 'IMMUTABLE' END),
        format('ALTER FUNCTION %s VOLATILE', p.oid::regprocedure)
    FROM pg_proc p
    WHERE p.provolatile <> 'v'
        AND p.pronamespace <> 'idem'::regnamespace
        AND (p.prosrc ~ (SELECT '\m"?idem"?\s*\.\s*"?(' || string_agg(w.name, '|') || ')"?\s*\('
                         FROM writer w)
             OR EXISTS (SELECT
                        FROM pg_depend d
                            JOIN pg_proc f ON f.oid = d.refobjid
                            JOIN writer w ON w.name = f.proname
                        WHERE d.classid = 'pg_proc'::regclass
                            AND d.objid = p.oid
                            AND d.refclassid = 'pg_proc'::regclass
                            AND f.pronamespace = 'idem'::regnamespace
                            AND f.provolatile = 'v'))
),
-- Every check, in the order of the result, with its detail if there is no finding. The finding of
-- the check "purge" comes before that detail, also when its status is ok.
checked (n, check_name, detail) AS (
    SELECT
        1,
        'worker',
        CASE
            WHEN standby THEN 'The server is a standby: the primary purges.'
            ELSE 'The launcher runs.'
        END
    FROM server

    UNION ALL
    SELECT
        2,
        'purge',
        format('The next purge begins at block %s of %s%s.', purge_block, table_blocks,
               CASE (SELECT count(*) FROM storage) WHEN 1 THEN '' ELSE ' in ' || records END)
    FROM storage
    WHERE purge_block IS NOT NULL

    UNION ALL
    SELECT
        10,
        'vacuum',
        format(CASE count(*)
                   WHEN 1 THEN '%s live and %s dead rows; the table takes %s, its indexes take %s.'
                   ELSE '%s live and %s dead rows; the tables take %s, their indexes take %s.'
               END,
               sum(live_rows), sum(dead_rows), pg_size_pretty(sum(table_bytes)),
               pg_size_pretty(sum(index_bytes)))
    FROM storage

    UNION ALL
    VALUES
        (3, 'retention', 'Every scope remembers keys for as long as a retry can arrive.'),
        (4, 'sizing', 'No scope holds more records than its claims account for.'),
        (5, 'leases', 'No unfinished operation has waited long for a takeover.'),
        (6, 'attempts', 'No operation has used up its attempts.'),
        (7, 'transactions', 'No transaction has held a key for long.'),
        (8, 'weak keys', 'No scope that accepts weak keys has any.'),
        (9, 'autovacuum', 'Autovacuum is on.'),
        (11, 'wraparound', 'Vacuum freezes old rows in time.'),
        (12, 'indexes', 'The primary keys and the indexes of unfinished operations are in place, '
             'and every index is valid.'),
        (13, 'secrets', 'The secrets are in place.'),
        (14, 'owners', 'Every scope has an owner.'),
        (15, 'limits', 'Every limit is enforced.'),
        (16, 'statistics', 'No scope lacks a place in the statistics.'),
        (17, 'schema',
         'Only superusers and their owner can create functions in the schemas of idem.'),
        (18, 'triggers', 'Sessions notice every change of scopes and secrets.'),
        (19, 'functions', 'Every function that calls idem to write is VOLATILE.'),
        (20, 'tests', 'No setting disturbs calls for tests.'),
        (21, 'lifetimes', 'No record lives for far less than its scope''s TTL, or for years.'),
        (22, 'hot keys', 'No key is replayed, or used with different requests, far too often.'),
        (23, 'tenants', 'No key is used with different tenants.'),
        (24, 'space', 'The free space suffices for the growth of the record tables.'),
        (25, 'record tables', 'Every table with a column of the type idem.key_digest is used.')
)
SELECT
    c.check_name,
    coalesce(f.status, 'ok'),
    f.scope,
    CASE c.check_name
        WHEN 'purge' THEN concat_ws(' ', f.detail, c.detail)
        ELSE coalesce(f.detail, c.detail)
    END,
    CASE WHEN f.status <> 'ok' THEN f.hint END
FROM checked c
    LEFT JOIN finding f ON f.check_name = c.check_name
ORDER BY c.n, f.scope, f.detail
$$;

REVOKE ALL ON FUNCTION idem.health FROM PUBLIC;
GRANT EXECUTE ON FUNCTION idem.health TO pg_monitor;

COMMENT ON FUNCTION idem.health IS
    'Reports whether everything is in order: one row per check with status ok, warn or fail, a '
    'detail and, unless the status is ok, a hint that says what to do; a check that finds problems '
    'in several scopes has one row per scope. A check warns if a lease or retry_after ended longer '
    'ago than long_held (NULL: 5 minutes) without a takeover, or if a transaction has held a key '
    'for that long. For members of pg_monitor; shows no key.';

-- ---------------------------------------------------------------------------------------------
-- Report: a scope in lines for a person to read
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.report(scope text)
RETURNS SETOF text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO'
SET intervalstyle = 'postgres'
AS $$
WITH survey AS MATERIALIZED (
    SELECT *, CASE WHEN coverage < 1 THEN 'about ' ELSE '' END AS about
    FROM idem.survey(coalesce($1, ''))
),
rules AS MATERIALIZED (
    SELECT * FROM idem.scopes WHERE name = $1
),
counted AS MATERIALIZED (
    SELECT *, greatest(extract(epoch FROM statement_timestamp() - stats_reset), 1) AS seconds
    FROM idem.stats s
    WHERE s.scope = $1
),
durations AS MATERIALIZED (
    SELECT *, CASE kind WHEN 'atomic' THEN 1 WHEN 'leased' THEN 2 ELSE 3 END AS n
    FROM idem.durations d
    WHERE d.scope = $1 AND d.count > 0
),
flight AS MATERIALIZED (
    SELECT * FROM idem.in_flight f WHERE f.scope = $1
),
hot AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY replays + conflicts DESC, first_seen) AS n
    FROM idem.hot_keys h
    WHERE h.scope = $1 AND (replays >= 100 OR conflicts >= 10)
),
finding AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY check_name) AS n
    FROM idem.findings() f
    WHERE f.scope = $1
),
line (section, n, title, words) AS (
    SELECT 1, 0, 'Scope', format('"%s", owned by %s', name, owner)
    FROM rules

    UNION ALL
    SELECT
        2,
        0,
        'Rules',
        format('remembers keys for %s; a claim waits up to %s; a lease lasts %s', ttl, wait, lease)
    FROM rules

    UNION ALL
    SELECT
        2,
        1,
        '',
        concat_ws(', ',
                  CASE WHEN request_required THEN 'a request is required' END,
                  CASE WHEN tenant_required THEN 'a tenant is required' END,
                  CASE WHEN reject_stale_keys THEN 'stale keys are rejected' END,
                  CASE weak_keys
                      WHEN 'warn' THEN 'weak keys raise a warning'
                      WHEN 'reject' THEN 'weak keys are rejected'
                  END,
                  'at most ' || max_attempts || ' attempts',
                  'at most ' || claims_per_minute || ' new claims per minute per tenant',
                  CASE WHEN NOT store_response THEN 'responses are not stored' END)
    FROM rules

    UNION ALL
    SELECT
        3,
        0,
        'Records',
        format('%s%s unexpired: %s in progress, %s completed, %s failed', about,
               in_progress + completed + failed, in_progress, completed, failed)
    FROM survey

    UNION ALL
    SELECT
        3,
        1,
        '',
        format('created between %s and %s; the next expires at %s', date_trunc('second', oldest),
               date_trunc('second', newest), date_trunc('second', next_expiry))
    FROM survey
    WHERE oldest IS NOT NULL

    UNION ALL
    SELECT 3, 2, '', format('their answers take %s%s', about, pg_size_pretty(answer_bytes))
    FROM survey
    WHERE oldest IS NOT NULL

    UNION ALL
    SELECT
        3,
        3,
        '',
        format('%s%s expired at %s or later, and not purged yet', about, expired,
               date_trunc('second', expired_since))
    FROM survey
    WHERE expired > 0

    UNION ALL
    SELECT
        4,
        0,
        'Counted',
        format('since %s: %s claims (%s per second), %s replays', date_trunc('second', stats_reset),
               claims, round(claims / seconds, 2), replays)
    FROM counted

    UNION ALL
    SELECT
        4,
        1,
        '',
        format('%s completed, %s failed, %s released, %s taken over', completions, failures,
               releases, takeovers)
    FROM counted

    UNION ALL
    SELECT
        4,
        2,
        '',
        format('%s found their key in flight; %s waited, for %s in total', in_flight, waits,
               date_trunc('millisecond', wait_time))
    FROM counted
    WHERE in_flight + waits > 0

    UNION ALL
    SELECT
        4,
        2 + d.n * 0.1,
        '',
        format('%s: half within %s, 90%% within %s, 99%% within %s',
               CASE kind
                   WHEN 'atomic' THEN 'atomic operations'
                   WHEN 'leased' THEN 'leased operations'
                   ELSE 'waits'
               END,
               coalesce(p50::text, 'days'), coalesce(p90::text, 'days'),
               coalesce(p99::text, 'days'))
    FROM durations d

    UNION ALL
    SELECT
        4,
        2.4,
        '',
        format('of the claims that were decided, %s%% were replays and %s%% conflicts',
               round(100.0 * replays / (claims + takeovers + replays + conflicts), 1),
               round(100.0 * conflicts / (claims + takeovers + replays + conflicts), 1))
    FROM counted
    WHERE replays + conflicts > 0

    UNION ALL
    SELECT 4, 2.5, '', format('messages of streams: %s new, %s again', advances, duplicates)
    FROM counted
    WHERE advances + duplicates > 0

    UNION ALL
    SELECT
        4,
        3,
        '',
        'refused: ' || concat_ws(', ',
                                 nullif(conflicts, 0) || ' with a different request',
                                 nullif(stale, 0) || ' with a stale key',
                                 nullif(limited, 0) || ' beyond a limit')
    FROM counted
    WHERE conflicts + stale + limited > 0

    UNION ALL
    SELECT 4, 4, '', format('%s with a weak key', weak)
    FROM counted
    WHERE weak > 0

    UNION ALL
    (SELECT
        5,
        n,
        CASE n WHEN 1 THEN 'Hot keys' ELSE '' END,
        concat_ws(', ',
                  coalesce('key ' || to_json(key), 'a key whose record is gone'),
                  'tenant ' || to_json(nullif(tenant, '')),
                  nullif(replays, 0) || ' replays',
                  nullif(conflicts, 0) || ' conflicts',
                  format('from %s to %s', date_trunc('second', first_seen),
                         date_trunc('second', last_seen)))
    FROM hot
    WHERE n <= 5)

    UNION ALL
    SELECT
        4,
        0,
        'Counted',
        'nothing: ' || CASE
            WHEN idem_internal.preloaded() THEN 'see the check "statistics"'
            ELSE 'idem is not preloaded'
        END
    WHERE NOT EXISTS (SELECT FROM counted)

    UNION ALL
    SELECT
        6,
        0,
        'In flight',
        CASE count(*)
            WHEN 0 THEN 'nothing'
            WHEN 1 THEN '1 claim'
            ELSE count(*) || ' claims'
        END
        || CASE WHEN count(*) > 10 THEN ', of which the oldest 10 are' ELSE '' END
        || CASE
            WHEN idem_internal.preloaded() THEN ''
            ELSE '; atomic claims are not shown, because idem is not preloaded'
        END
    FROM flight

    UNION ALL
    (SELECT
        6,
        row_number() OVER (ORDER BY since, tenant, key),
        '',
        concat_ws(', ',
                  'key ' || to_json(key),
                  'tenant ' || to_json(nullif(tenant, '')),
                  'attempt ' || attempt,
                  'for ' || date_trunc('second', age),
                  'at recovery point ' || to_json(recovery_point),
                  'process ' || pid,
                  CASE state
                      WHEN 'uncommitted' THEN 'not committed'
                      WHEN 'exhausted' THEN state
                  END,
                  'prepared transaction ' || to_json(gid),
                  CASE
                      WHEN state = 'exhausted' THEN 'ended at '
                      WHEN state = 'released' AND lapsed THEN 'released, due since '
                      WHEN state = 'released' THEN 'released until '
                      WHEN lapsed THEN 'lapsed since '
                      ELSE 'leased until '
                  END
                      || date_trunc('second', lease_end),
                  'last error ' || coalesce(to_json(last_error->>'message'),
                                            to_json(last_error->>'sqlstate')))
    FROM flight
    ORDER BY 2
    LIMIT 10)

    UNION ALL
    SELECT
        7,
        0,
        'Health',
        CASE count(*)
            WHEN 0 THEN 'no problems found'
            WHEN 1 THEN '1 problem found'
            ELSE count(*) || ' problems found'
        END
    FROM finding

    UNION ALL
    SELECT 7, 2 * n, '', format('%s, %s: %s', check_name, status, detail)
    FROM finding

    UNION ALL
    SELECT 7, 2 * n + 1, '', '  ' || hint
    FROM finding
)
SELECT rpad(title, 12) || words
FROM line
WHERE words <> ''
ORDER BY section, n
$$;

COMMENT ON FUNCTION idem.report IS
    'Describes a scope for a person to read: its rules, records, statistics and operations in '
    'flight, and what idem.health() finds in it. '
    'Raises ID008 unknown_scope, 42501.';
