-- ---------------------------------------------------------------------------------------------
-- Health: figures without keys, as both editions have them
-- ---------------------------------------------------------------------------------------------

-- The retention check assumes that retries arrive while their caller waits, and after each lease of
-- the operation, with a fixed network delay and clock skew; bounds on the factors keep the
-- intervals in range. What only one edition can check is in its own_checks().
CREATE FUNCTION idem_internal.findings(long_held interval)
RETURNS SETOF idem.health_result
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO'
SET intervalstyle = 'postgres'
SET jit = off  -- compiling takes seconds, running a tenth of one
AS $$
WITH server AS MATERIALIZED (
    SELECT
        idem_internal.preloaded() AS preloaded,
        pg_is_in_recovery() AS standby,
        -- Without the library, a setting that was SET LOCAL is '' afterwards.
        coalesce(nullif(current_setting('idem.purge_naptime', true), ''), '0')::interval AS naptime
),
own AS MATERIALIZED (
    SELECT * FROM idem_internal.own_checks()
),
overview AS MATERIALIZED (
    SELECT
        *,
        CASE WHEN coverage < 1 THEN 'about ' ELSE '' END AS about
    FROM idem.overview
),
known AS MATERIALIZED (
    SELECT
        o.*,
        -- Half a minute for the network, and five seconds between the clocks.
        least(o.wait, '30 days') + interval '35 seconds'
            + least(o.lease, '30 days') * least(coalesce(o.max_attempts, 1), 100) AS horizon,
        t.claims,
        t.claims + t.completions + t.failures AS made,
        t.conflicts,
        t.late_replays,
        t.stale,
        t.expired_reused,
        t.limited_tenants,
        t.limited_tenants_room,
        t.stats_reset,
        statement_timestamp() - t.stats_reset AS counted_for,
        ceil(t.claims / greatest(extract(epoch FROM statement_timestamp() - t.stats_reset), 1)
             * extract(epoch FROM o.ttl) * 1.2) AS needed
    FROM overview o
        LEFT JOIN idem.stats t ON t.scope = o.scope
    WHERE o.scope IS NOT NULL
),
storage AS MATERIALIZED (
    SELECT * FROM idem.storage
),
relation AS (
    SELECT r.oid::regclass AS owned_by, c.oid, c.reloptions
    FROM pg_class r
        JOIN pg_class c ON c.oid IN (r.oid, r.reltoastrelid)
    WHERE r.oid = 'idem.watermark'::regclass
        OR r.oid IN (SELECT t.records FROM storage t)
),
-- waits: its transaction has committed here. Ending the session would only end the wait.
holder AS (
    SELECT h.*, a.wait_event IS NOT DISTINCT FROM 'SyncRep' AS waits
    FROM idem_internal.key_holders() h
        LEFT JOIN pg_stat_activity a ON a.pid = h.pid
),
-- What keeps VACUUM from removing and freezing rows: the oldest of all transactions, snapshots and
-- slots, and how it ends. Short transactions, and VACUUM itself, keep nothing. lasts: for long_held
-- or longer, or for an unknown time. What there is on a standby does not keep the primary's VACUUM.
horizon AS MATERIALIZED (
    SELECT h.*
    FROM (
        SELECT
            greatest(age(a.backend_xmin), age(a.backend_xid)) AS age,
            coalesce(statement_timestamp() - a.xact_start >= coalesce(long_held, '5 minutes'), true)
                AS lasts,
            CASE a.backend_type
                WHEN 'walsender' THEN format('standby "%s"', a.application_name)
                ELSE format('process %s, whose transaction began at %s,', a.pid,
                            date_trunc('second', a.xact_start))
            END AS keeper,
            CASE
                WHEN a.backend_type = 'walsender'
                    THEN 'If a query on that standby has run for long, end it, or wait for its '
                         'end; if none has, autovacuum does not keep up.'
                WHEN a.wait_event = 'SyncRep'
                    THEN 'It has committed, and waits for a synchronous standby: do not end it.'
                ELSE format('End this transaction, or wait for its end. To see what it does: '
                            'SELECT * FROM pg_stat_activity WHERE pid = %s.', a.pid)
            END AS remedy
        FROM pg_stat_activity a
        WHERE a.pid <> pg_backend_pid()
            AND (a.datname = current_database() OR a.backend_type = 'walsender')
            AND coalesce(a.xact_start < statement_timestamp() - interval '1 second', true)
            AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)

        UNION ALL
        SELECT
            age(p.transaction),
            statement_timestamp() - p.prepared >= coalesce(long_held, '5 minutes'),
            format('prepared transaction "%s"', p.gid),
            'Finish it as its transaction manager decides.'
        FROM pg_prepared_xacts p
        WHERE p.database = current_database()

        UNION ALL
        SELECT
            age(s.xmin),
            true,
            format('replication slot "%s"', s.slot_name),
            'If no server uses the slot any more, drop it. If a standby does, and a query there '
            'has run for long, end it, or wait for its end; if none has, autovacuum does not keep '
            'up.'
        FROM pg_replication_slots s
    ) AS h
    WHERE h.age > 0 AND NOT (SELECT standby FROM server)
    ORDER BY h.age DESC
    LIMIT 1
),
writer (name) AS (
    VALUES ('claim'), ('try_claim'), ('complete'), ('fail'), ('release'), ('renew'),
        ('checkpoint'), ('take'), ('execute'), ('once'), ('once_each'), ('advance'), ('cancel'),
        ('revoke'), ('forget'), ('forget_tenant'), ('erase'), ('erase_tenant'), ('reset_stream')
),
-- Each row is a test that can find something; found says whether it does.
test (found, check_name, status, scope, detail, hint) AS (
    SELECT f.found, f.check_name, f.status, k.scope, f.detail, f.hint
    FROM known k, server v, LATERAL (VALUES
        (NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = k.owner), 'owners', 'fail',
         format('The role that owned scope "%s" was dropped: only superusers can use the scope.',
                k.scope),
         format('As %s, give it to the role of its callers: pass the argument "owner" to '
                'idem.alter_scope().',
                CASE idem.edition() WHEN 'sql' THEN 'the owner of schema idem'
                                    ELSE 'a superuser' END)),
        (k.ttl < k.horizon, 'retention', 'warn',
         format('Scope "%s" remembers keys for %s, but a retry can arrive %s after the first try '
                '(the scope''s wait, its leases, 30 seconds of network delay, 5 seconds of clock '
                'skew): that retry runs the operation again.', k.scope, k.ttl, k.horizon),
         format('SELECT idem.alter_scope(%L, ttl => %L)', k.scope, k.horizon)),
        (k.expired_reused + k.stale >= greatest(10, k.claims / 1000), 'retention', 'warn',
         format('Since %s, callers of scope "%s" have come too late %s times: %s claims had a key '
                'whose record had expired, so that the operation ran again, and %s were refused '
                'with a stale key, or one from the future.', date_trunc('second', k.stats_reset),
                k.scope, k.expired_reused + k.stale, k.expired_reused, k.stale),
         format(CASE
                    WHEN k.stale > 0
                        THEN 'Correct the clients: if a refusal (ID010) names a timestamp in the '
                             'future, their clocks, and otherwise how long they retry. Then reset '
                             'the counters: SELECT idem.stats_reset(%1$L)'
                    ELSE 'Remember keys for longer than the callers retry, and reset the counters: '
                         'SELECT idem.alter_scope(%1$L, ttl => %2$L); SELECT idem.stats_reset(%1$L)'
                END,
                k.scope, least(2 * k.ttl, '365000 days'))),
        (k.short_lived >= 10 AND k.min_ttl IS NULL, 'lifetimes', 'warn',
         format('Scope "%s" has %s%s records that live for less than a tenth of its TTL of %s: '
                'callers pass a far shorter ttl.', k.scope, k.about, k.short_lived, k.ttl),
         format('If that is a mistake, correct the callers: the records then expire soon. If it '
                'is right, set the scope''s min_ttl to the shortest ttl that they pass; a claim '
                'with a shorter one is then refused (22023). To list the keys: '
                'SELECT tenant, key, created_at, expires_at FROM idem.records '
                'WHERE scope = %L AND expires_at < created_at + interval %L', k.scope, k.ttl / 10)),
        (k.long_lived > 0, 'lifetimes', 'warn',
         format('Scope "%s" has %s%s new record%s that will be kept for more than two years: '
                'callers pass a ttl far longer than the scope''s, which is %s.', k.scope, k.about,
                k.long_lived, CASE k.long_lived WHEN 1 THEN '' ELSE 's' END, k.ttl),
         format('If that is a mistake, correct the callers. If it is right, give these operations '
                'a scope of their own, with so long a ttl. Older records do not count: this ends '
                'one day, or the scope''s TTL, later. To list the keys: '
                'SELECT tenant, key, created_at, expires_at FROM idem.records '
                'WHERE scope = %L AND expires_at > created_at + interval %L', k.scope,
                greatest('730 days', 2 * k.ttl))),
        (k.untenanted >= 10 AND NOT k.tenant_required AND k.tenant_from <> 'role', 'tenants',
         'warn',
         format('Scope "%s" has at least %s keys both with and without a tenant: a retry that '
                'forgets the tenant runs the operation again.', k.scope, k.untenanted),
         format('Make the callers repeat the tenant with the key; this ends when these records '
                'have expired. When every caller passes a tenant, the scope''s tenant_required can '
                'refuse calls without one (ID013). To list the keys: '
                'SELECT key, pg_catalog.array_agg(tenant) FROM idem.records WHERE scope = %L '
                'GROUP BY key HAVING count(*) > 1', k.scope)),
        (k.shared >= 10 AND k.tenant_from <> 'role', 'tenants', 'warn',
         format('Scope "%s" has at least %s keys with several tenants: a retry with another '
                'tenant runs the operation again.', k.scope, k.shared),
         format('Make the callers repeat the tenant with the key; this ends when these records '
                'have expired. If each tenant connects as a role of its own, create a scope for '
                'new keys that takes the tenant from the role (tenant_from). To list the keys: '
                'SELECT key, pg_catalog.array_agg(tenant) FROM idem.records WHERE scope = %L '
                'GROUP BY key HAVING count(*) > 1', k.scope)),
        (k.counted_for >= k.ttl AND k.live >= 10000 AND k.live > 2 * k.needed, 'sizing', 'warn',
         format('Scope "%s" holds %s%s records, but its %s claims within %s and its TTL of %s '
                'account for only %s.', k.scope, k.about, k.live, k.claims,
                date_trunc('second', k.counted_for), k.ttl, k.needed),
         'If the callers pass a ttl longer than the scope''s, make that the scope''s with '
         'idem.alter_scope(). If the claims came in a burst, this ends when their records have '
         'expired; claims_per_minute can refuse the claims of a burst (ID009).'),
        (statement_timestamp() - k.lapsed_since >= coalesce(long_held, '5 minutes'), 'leases',
         'warn',
         format('Scope "%s" has %s unfinished operation%s whose lease or retry_after has ended '
                'without a takeover, the first at %s.', k.scope, k.lapsed,
                CASE k.lapsed WHEN 1 THEN '' ELSE 's' END, date_trunc('second', k.lapsed_since)),
         format('Run a worker that takes each operation over with idem.take(), finishes it from '
                'its recovery point and completes it. Each takeover uses up an attempt. '
                'To list the keys: SELECT tenant, key, state, lease_end, last_error '
                'FROM idem.in_flight WHERE scope = %L AND lapsed', k.scope)),
        (k.exhausted > 0, 'attempts', 'warn',
         format('Scope "%s" has %s operation%s with no attempts left (max_attempts is %s). The '
                'outcome is undecided, and a claim of such a key raises ID014 until its record '
                'expires, the first at %s: from then on, a claim runs the operation again.',
                k.scope, k.exhausted, CASE k.exhausted WHEN 1 THEN '' ELSE 's' END,
                k.max_attempts, date_trunc('second', k.exhausted_until)),
         format('Find out what the attempts did, and why they did not finish. idem.revoke() allows '
                'one operation one more attempt, and a higher max_attempts all of them; it '
                'continues from the recovery point. To list the keys: '
                'SELECT tenant, key, attempt, last_error FROM idem.in_flight '
                'WHERE scope = %L AND state = ''exhausted''', k.scope)),
        (k.conflicts >= greatest(10, k.claims), 'constant keys', 'warn',
         format('Since %s, callers of scope "%s" have claimed %s new keys, and sent %s requests '
                'under a key that was used for another request.',
                date_trunc('second', k.stats_reset), k.scope, k.claims, k.conflicts),
         format('Correct the clients that use one key for different operations, and list members '
                'that differ from try to try in request_exclude. To find the keys, set '
                'idem.log_conflicts to log. Then reset the counters: SELECT idem.stats_reset(%L)',
                k.scope)),
        (k.late_replays >= greatest(100, 100 * k.claims) AND NOT k.request_required,
         'constant keys', 'warn',
         format('Since %s, callers of scope "%s" have claimed %s new keys, and got %s answers that '
                'were more than 5 minutes old. Retries do not come so late and so often: a key may '
                'be used for different operations, of which only the first runs.',
                date_trunc('second', k.stats_reset), k.scope, k.claims, k.late_replays),
         format('Let the callers pass the request, then set request_required: another operation '
                'under the key is refused then (ID002). To find the key, look at the oldest: '
                'SELECT tenant, key, weakness, completed_at FROM idem.records WHERE scope = %L '
                'ORDER BY weakness IS NULL, completed_at LIMIT 10. When the clients are correct, '
                'reset the counters: SELECT idem.stats_reset(%L)', k.scope, k.scope)),
        -- What was replayed here until this server was promoted is no tool's. A record of the
        -- future is from before the clock stepped back.
        (k.newest > greatest(k.stats_reset, pg_last_xact_replay_timestamp())
             AND k.newest <= clock_timestamp() AND k.made = 0 AND v.naptime > '0' AND NOT v.standby
             AND NOT EXISTS (SELECT FROM pg_subscription_rel
                             WHERE srrelid = 'idem.record'::regclass),
         'worker', 'warn',
         format('Scope "%s" has a record that was made at %s, but since %s no call on this server '
                'has made one: if a tool copies records from another server, the worker may delete '
                'what can still change there.', k.scope, date_trunc('second', k.newest),
                date_trunc('second', k.stats_reset)),
         format('Until the clients use this server, stop the worker: '
                'ALTER SYSTEM SET idem.purge_naptime = 0. Then: SELECT pg_reload_conf(). '
                'If they use it already, reset the counters: SELECT idem.stats_reset(%L)',
                k.scope)),
        (k.weak > 0 AND k.weak_keys <> 'reject', 'weak keys', 'warn',
         format('Scope "%s" has %s%s weak key%s: such keys are likely to be used for two '
                'different operations.', k.scope, k.about, k.weak,
                CASE k.weak WHEN 1 THEN '' ELSE 's' END),
         format('Make the clients send UUIDs, or names such as "invoice-4711"; this ends when the '
                'records have expired. When no client sends weak keys, the scope''s weak_keys can '
                'reject them (ID007). To list the keys: SELECT tenant, key, weakness '
                'FROM idem.records WHERE scope = %L AND weakness IS NOT NULL', k.scope)),
        (k.claims_per_minute IS NOT NULL AND NOT v.preloaded AND NOT v.standby, 'limits', 'warn',
         format('Scope "%s" allows %s new claims per minute per tenant, but nothing enforces this '
                'limit: idem is not preloaded.', k.scope, k.claims_per_minute),
         format('Add idem to shared_preload_libraries and restart the server; or remove the '
                'limit: SELECT idem.alter_scope(%L, claims_per_minute => -1)', k.scope)),
        (k.claims_per_minute IS NOT NULL AND k.limited_tenants_room <= k.limited_tenants / 10,
         'limits', 'warn',
         format('Scope "%s" counts the claims of %s tenant%s for claims_per_minute, and has room '
                'for %s more. When there is none, it refuses tenants that are not counted (ID009).',
                k.scope, k.limited_tenants, CASE k.limited_tenants WHEN 1 THEN '' ELSE 's' END,
                k.limited_tenants_room),
         format('If clients invent tenants, authenticate them before the claim. Else raise the '
                'setting, and restart the server: ALTER SYSTEM SET idem.limited_tenants = %s',
                least(10000000, 3 * nullif(current_setting('idem.limited_tenants', true),
                                           '')::bigint))),
        (k.claims IS NULL AND v.preloaded, 'statistics', 'warn',
         format('Scope "%s" has no statistics: other scopes take all %s places of '
                'idem.counted_scopes.', k.scope, current_setting('idem.counted_scopes', true)),
         format('Raise the setting, and restart the server: '
                'ALTER SYSTEM SET idem.counted_scopes = %s',
                least(1000000, (SELECT count(*) FROM known)
                               + 2 * nullif(current_setting('idem.counted_scopes', true),
                                            '')::integer)))
    ) AS f (found, check_name, status, detail, hint)

    UNION ALL
    SELECT
        true,
        c.check_name,
        'warn',
        NULL,
        'Nothing could be counted: an index of idem.record calls a function that is not built in, '
        'which would run with the rights of a superuser.',
        t.remedy
    FROM idem_internal.record_tables() t
        CROSS JOIN unnest('{sizing,leases,attempts,weak keys,lifetimes,tenants,record tables}'
                              ::text[]) AS c (check_name)
    WHERE t.records = 'idem.record'::regclass AND EXISTS (SELECT FROM overview
                                                          WHERE coverage IS NULL)

    UNION ALL
    SELECT true, o.check_name, o.status, NULL, o.detail, o.hint
    FROM own o
    WHERE o.status <> 'ok'

    UNION ALL
    SELECT
        w.since < statement_timestamp() - greatest('1 hour', 40 * v.naptime),
        'purge',
        CASE WHEN w.since < statement_timestamp() - interval '1 day' THEN 'fail' ELSE 'warn' END,
        NULL,
        format('%s%s expired record%s to be purged, the first since %s.', w.about, w.expired,
               CASE w.expired WHEN 1 THEN ' waits' ELSE 's wait' END,
               date_trunc('second', w.since)),
        CASE
            WHEN EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = 'idem.record'::regclass)
                THEN 'The records arrive by subscription: purge them on the publisher.'
            WHEN v.standby THEN 'let the worker or idem.purge() purge them.'
            ELSE 'If a tool copies the records from another server, purge them there. If not, '
                 || CASE idem.edition()
                        WHEN 'sql' THEN 'run idem.purge() more often from cron.'
                        ELSE 'raise idem.purge_rate if the purge worker does not keep up.'
                    END
                 || ' To purge them now, in short transactions: '
                    'DO ''BEGIN WHILE idem.purge(10000) = 10000 LOOP COMMIT; END LOOP; END'''
        END
    FROM (SELECT sum(expired) AS expired, min(expired_since) AS since, max(about) AS about
          FROM overview) AS w, server v

    UNION ALL
    SELECT
        statement_timestamp() - h.since >= coalesce(long_held, '5 minutes'),
        'transactions',
        'warn',
        NULL,
        CASE
            WHEN h.gid IS NULL
                THEN format('Process %s has held %s since its transaction began at %s%s.', h.pid,
                            h.keys, date_trunc('second', h.since),
                            CASE WHEN h.waits
                                 THEN ', has committed it, and waits for a synchronous standby'
                            END)
            ELSE format('Prepared transaction "%s" has held %s since %s.', h.gid, h.keys,
                        date_trunc('second', h.since))
        END,
        CASE
            WHEN h.waits
                THEN 'Do not end the session, which rolls nothing back: a retry would get an '
                     'answer that may be lost with this server. Start a synchronous standby, or '
                     'see why it lags: SELECT * FROM pg_stat_replication'
            WHEN h.gid IS NULL
                THEN format(concat(
                    'To see what it does: SELECT * FROM pg_stat_activity WHERE pid = %1$s. ',
                    CASE WHEN v.preloaded THEN 'To see its newest key: SELECT * '
                                               'FROM idem.in_flight WHERE pid = %1$s. ' END,
                    'To end the session, which rolls the transaction back: '
                    'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
                    'WHERE pid = %1$s AND xact_start = %2$L'), h.pid, h.since)
            ELSE format('Finish it as its transaction manager decides: COMMIT PREPARED %1$L or '
                        'ROLLBACK PREPARED %1$L', h.gid)
        END
    FROM holder h, server v

    UNION ALL
    SELECT
        s.setting = 'off',
        'autovacuum',
        'fail',
        NULL,
        format('The setting %s is off: autovacuum does not process the record tables.', s.name),
        CASE
            WHEN s.source IN ('default', 'configuration file')
                THEN format('ALTER SYSTEM SET %s = on. Then: SELECT pg_reload_conf()', s.name)
            ELSE format('Remove the setting from where it is made, which is: %s.', s.source)
        END
    FROM pg_settings s, server v
    WHERE s.name IN ('autovacuum', 'track_counts') AND NOT v.standby

    UNION ALL
    SELECT
        NOT o.option_value::boolean,
        'autovacuum',
        'fail',
        NULL,
        format('Autovacuum is disabled for %s.', r.oid::regclass),
        format('ALTER TABLE %s RESET (autovacuum_enabled, toast.autovacuum_enabled)', r.owned_by)
    FROM relation r, pg_options_to_table(r.reloptions) o
    WHERE o.option_name = 'autovacuum_enabled'

    UNION ALL
    SELECT f.found, f.check_name, f.status, NULL, f.detail, f.hint
    FROM storage s
        CROSS JOIN (SELECT least(1600000000,
                                 1.5 * current_setting('autovacuum_freeze_max_age')::bigint)
                   ) AS m (max_age)
        LEFT JOIN horizon h ON true
        CROSS JOIN LATERAL (SELECT h.age > m.max_age AS keeps) AS old
        CROSS JOIN LATERAL (VALUES
        (s.dead_rows > greatest(10000, s.live_rows), 'vacuum', 'warn',
         format('%s has %s dead rows and %s live rows: autovacuum does not keep up', s.records,
                s.dead_rows, s.live_rows)
         || CASE WHEN h.lasts THEN format(', or VACUUM keeps those that %s may still see.',
                                          h.keeper)
                 ELSE '.' END,
         format(CASE WHEN h.lasts
                     THEN 'VACUUM (VERBOSE) %1$s. If it reports dead rows that are not yet '
                          'removable: %2$s Then: VACUUM %1$s'
                     ELSE 'VACUUM %1$s' END, s.records, h.remedy)),
        (s.frozen_age > m.max_age, 'wraparound',
         CASE WHEN s.frozen_age > 1600000000 THEN 'fail' ELSE 'warn' END,
         format('The oldest row of %s that is not frozen is %s transactions old.', s.records,
                s.frozen_age)
         || CASE WHEN old.keeps
                 THEN format(' VACUUM freezes nothing that %s may not see.', h.keeper)
                 ELSE '' END,
         concat_ws(' Then: ', CASE WHEN old.keeps THEN h.remedy END,
                   format('VACUUM (FREEZE) %s', s.records))),
        (s.records = 'idem.record'::regclass AND NOT s.has_secrets
            AND EXISTS (SELECT FROM known), 'secrets', 'fail',
         'There are scopes, but the secrets for key locks and fingerprints are missing: calls that '
         'need them raise 55000.',
         'Restore the rows of idem.secret from the dump from which the records were restored.')
    ) AS f (found, check_name, status, detail, hint)

    -- The view is read only where there are records of scopes that do not exist.
    UNION ALL
    SELECT
        EXISTS (SELECT FROM overview WHERE scope IS NULL AND expired > 0)
            AND EXISTS (SELECT FROM idem_internal.records_without_scope WHERE records > 0),
        'record tables',
        'fail',
        NULL,
        'There are records whose scope is missing: no call finds them. Under a scope that is '
        'created anew, their operations run again.',
        'Restore the rows of idem.scope from the dump that the records came from. If that is '
        'refused because scopes were created since, let no client in, and restore the dump into a '
        'new database. If a subscription brings the records, let it bring idem.scope first.'

    UNION ALL
    SELECT
        c.relpersistence <> 'p',
        'record tables',
        'fail',
        NULL,
        format('%s is unlogged: a crash would empty it, and operations would run again.',
               c.oid::regclass),
        format('ALTER TABLE %s SET LOGGED', c.oid::regclass)
    FROM pg_class c
    WHERE c.oid IN ('idem.scope'::regclass, 'idem.dropped_scope'::regclass,
                    'idem.secret'::regclass)

    UNION ALL
    SELECT
        EXISTS (SELECT FROM pg_subscription_rel
                WHERE srrelid IN ('idem.scope'::regclass, 'idem.secret'::regclass)
                    AND srsubstate NOT IN ('r', 's')),
        'record tables',
        'warn',
        NULL,
        'A subscription has not brought idem.scope and idem.secret yet: a record that it brings '
        'may not be found, or answer for another operation.',
        'Keep clients away until both have arrived. If their copy fails, the server log says why: '
        'with 23505, this database has scopes of its own.'

    -- A standby does not know which indexes the primary is about to finish.
    UNION ALL
    SELECT
        NOT (v.standby OR i.indisvalid AND i.indisready OR EXISTS (
            SELECT FROM pg_stat_progress_create_index p WHERE p.relid = i.indrelid)),
        'indexes',
        CASE WHEN i.indisprimary THEN 'fail' ELSE 'warn' END,
        NULL,
        format('Index %s is invalid.', i.indexrelid::regclass),
        CASE
            WHEN i.indisprimary THEN format('REINDEX INDEX %s', i.indexrelid::regclass)
            ELSE format('DROP INDEX CONCURRENTLY %s', i.indexrelid::regclass)
        END
    FROM server v, pg_index i
        JOIN relation r ON r.oid = i.indrelid
    WHERE r.oid = r.owned_by

    UNION ALL
    SELECT
        i.indisvalid AND (i.indisunique OR i.indisexclusion) AND NOT i.indisprimary,
        'indexes',
        'warn',
        NULL,
        format('Index %s is not idem''s, and refuses rows that idem writes: a call can fail after '
               'its operation has called another service.', i.indexrelid::regclass),
        coalesce((SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', k.conrelid::regclass,
                                k.conname)
                  FROM pg_constraint k
                  WHERE k.conindid = i.indexrelid AND k.contype IN ('u', 'x')
                      AND k.conrelid = i.indrelid),
                 format('DROP INDEX CONCURRENTLY %s', i.indexrelid::regclass))
    FROM pg_index i
        JOIN relation r ON r.oid = i.indrelid
    WHERE r.oid = r.owned_by

    -- The SQL edition's idem.scope has copies of the secrets. Only a grantor can revoke what it has
    -- granted: from the owner, it loses the grant option, and with it what it has granted.
    UNION ALL
    SELECT
        true,
        'record tables',
        f.status,
        NULL,
        format('%s: %s may %s.', g.object,
               CASE g.grantee WHEN 0 THEN 'Every role' ELSE 'Role ' || g.grantee::regrole END,
               f.what),
        format('%sREVOKE %s%s ON %s %s FROM %s CASCADE', f.unless,
               CASE WHEN g.grantor <> g.relowner THEN 'GRANT OPTION FOR ' END, f.privileges,
               CASE g.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, g.object,
               CASE
                   WHEN g.grantor <> g.relowner THEN g.grantor::regrole::text
                   WHEN g.grantee = 0 THEN 'PUBLIC'
                   ELSE g.grantee::regrole::text
               END)
    FROM (
        SELECT
            c.oid::regclass AS object,
            c.relname,
            c.relkind,
            c.relowner,
            a.grantor,
            a.grantee,
            array_agg(a.privilege_type) AS has
        FROM pg_class c
            CROSS JOIN LATERAL (
                SELECT c.relacl
                UNION ALL
                SELECT t.attacl FROM pg_attribute t WHERE t.attrelid = c.oid AND t.attnum > 0
            ) AS l (acl)
            CROSS JOIN LATERAL aclexplode(l.acl) AS a
        WHERE (c.relnamespace = 'idem'::regnamespace AND c.relkind IN ('r', 'S')
               OR c.oid = 'idem_internal.stored'::regclass)  -- through which records are changed
            AND a.grantee <> c.relowner
            AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = a.grantee AND r.rolsuper)
        GROUP BY 1, 2, 3, 4, 5, 6
    ) AS g
        CROSS JOIN LATERAL (
            SELECT
                'fail',
                'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER',
                CASE g.relname
                    WHEN 'scope' THEN 'change it, and so make itself the owner of a scope'
                    WHEN 'record' THEN 'change it, and so write answers that idem then returns'
                    ELSE 'change it, and so let operations run again'
                END,
                ''
            WHERE g.relkind <> 'S' AND g.has && '{INSERT,UPDATE,DELETE,TRUNCATE}'
            UNION ALL
            SELECT
                'fail',
                'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER',
                'add triggers or foreign keys to it, whose functions run with the rights of the '
                'roles that change it, such as the one that purges',
                ''
            WHERE g.has && '{REFERENCES,TRIGGER}'
                AND NOT g.has && '{INSERT,UPDATE,DELETE,TRUNCATE}'
            UNION ALL
            SELECT
                'fail',
                'USAGE, UPDATE',
                'set it, and so give a new scope the records of an old one',
                ''
            WHERE g.relkind = 'S' AND g.has && '{USAGE,UPDATE}'
            UNION ALL
            SELECT
                'warn',
                'SELECT',
                'read the secrets, with which it can find out keys and requests',
                'If the role makes no backups and no subscription uses it: '
            WHERE g.has && '{SELECT}'
                AND (g.relname = 'secret' OR g.relname = 'scope' AND idem.edition() = 'sql')
        ) AS f (status, privileges, what, unless)

    UNION ALL
    SELECT
        NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = a.grantee AND r.rolsuper),
        'schema',
        'warn',
        NULL,
        format('%s can create functions in schema %s, which other roles may then call with their '
               'own privileges.',
               CASE a.grantee
                   WHEN 0 THEN 'Every role'
                   ELSE format('Role %s', a.grantee::regrole)
               END, n.nspname),
        format('REVOKE %sCREATE ON SCHEMA %s FROM %s CASCADE',
               CASE WHEN a.grantor <> n.nspowner THEN 'GRANT OPTION FOR ' END, n.nspname,
               CASE
                   WHEN a.grantor <> n.nspowner THEN a.grantor::regrole::text
                   WHEN a.grantee = 0 THEN 'PUBLIC'
                   ELSE a.grantee::regrole::text
               END)
    FROM pg_namespace n, aclexplode(n.nspacl) a
    WHERE n.nspname IN ('idem', 'idem_internal')
        AND a.privilege_type = 'CREATE'
        AND a.grantee <> n.nspowner

    UNION ALL
    SELECT
        true,
        'functions',
        'warn',
        NULL,
        format('Function %s is declared %s, but %s: the planner may call it, and may merge '
               'identical calls into one.', p.oid::regprocedure,
               CASE p.provolatile WHEN 's' THEN 'STABLE' ELSE 'IMMUTABLE' END,
               CASE WHEN p.pronamespace = 'idem'::regnamespace THEN 'writes'
                   ELSE 'calls a function of idem that writes' END),
        format('ALTER FUNCTION %s VOLATILE', p.oid::regprocedure)
    FROM pg_proc p
    WHERE p.provolatile <> 'v'
        AND CASE WHEN p.pronamespace = 'idem'::regnamespace
            THEN EXISTS (SELECT FROM writer w WHERE w.name = p.proname)
            ELSE p.prosrc ~* E'\\midem'
             -- A comment calls nothing; -- and /* within a string begin none. A /* without its end
             -- must match, too: many of them would be looked at in the square of their number.
             AND regexp_replace(p.prosrc,
                                E'(''[^'']*''|/\\*(?:[^*]|\\*+[^*/])*\\**$)|--[^\\n]*|'
                                || E'/\\*(?:[^*]|\\*+[^*/])*\\*+/', E'\\1 ', 'g')
                 ~* (SELECT E'\\m"?idem"?\\s*\\.\\s*"?(' || string_agg(w.name, '|') || E')"?\\s*\\('
                     FROM writer w)
             OR EXISTS (SELECT
                        FROM pg_depend d
                            JOIN pg_proc f ON f.oid = d.refobjid
                            JOIN writer w ON w.name = f.proname
                        WHERE d.classid = 'pg_proc'::regclass
                            AND d.objid = p.oid
                            AND d.refclassid = 'pg_proc'::regclass
                            AND f.pronamespace = 'idem'::regnamespace)
            END
),
-- One cause may be found in ten thousand scopes.
finding AS MATERIALIZED (
    SELECT
        check_name,
        status,
        scope,
        detail,
        hint,
        row_number() OVER (PARTITION BY check_name ORDER BY status, scope, detail) AS i
    FROM test
    WHERE found
),
shown AS (
    SELECT check_name, status, scope, detail, hint
    FROM finding
    WHERE i <= 10

    UNION ALL
    SELECT
        check_name,
        min(status),
        NULL,
        format('%s more findings like these.', count(*)),
        'Correct the findings above, then call idem.health() again: it shows what is left.'
    FROM finding
    WHERE i > 10
    GROUP BY check_name
),
-- Every check, in the order of the result, with its detail if there is no finding; those of scopes
-- are for every role that may use one.
checked (n, of_scopes, check_name, detail) AS (
    VALUES
        (2, false, 'purge', (SELECT format('%s expired records wait to be purged.',
                                           coalesce(nullif(sum(expired), 0)::text, 'No'))
                             FROM overview)),
        (3, true, 'retention', 'Every scope remembers keys for as long as a retry can arrive.'),
        (4, true, 'sizing', 'No scope holds more records than its claims account for.'),
        (5, true, 'leases', 'No unfinished operation has waited long for a takeover.'),
        (6, true, 'attempts', 'No operation has used up its attempts.'),
        (7, false, 'transactions', 'No transaction has held a key for long.'),
        (8, true, 'weak keys', 'No scope that accepts weak keys has any.'),
        (9, false, 'autovacuum', 'Autovacuum is on.'),
        (10, false, 'vacuum', (SELECT format('%s live and %s dead rows; %s in tables, %s in '
                                             'indexes.', sum(live_rows), sum(dead_rows),
                                             pg_size_pretty(sum(table_bytes)),
                                             pg_size_pretty(sum(index_bytes)))
                               FROM storage)),
        (11, false, 'wraparound', 'Vacuum freezes old rows in time.'),
        (13, false, 'secrets', 'The secrets are in place.'),
        (14, true, 'owners', 'Every scope has an owner.'),
        (15, true, 'limits', 'Every limit is enforced.'),
        (16, true, 'statistics', 'No scope lacks a place in the statistics.'),
        (17, false, 'schema',
         'Only superusers and their owner can create functions in the schemas of idem.'),
        (19, false, 'functions', 'Every function that calls idem to write is VOLATILE.'),
        (21, true, 'lifetimes',
         'No caller passes a ttl far from that of the scope.'),
        (22, true, 'tenants', 'No key is used with different tenants.'),
        (24, true, 'constant keys', (SELECT CASE
                                         WHEN preloaded THEN 'No scope has far more replays or '
                                             'conflicts than new keys.'
                                         ELSE 'Nothing is counted that could show one.'
                                     END
                                     FROM server))

    UNION ALL
    SELECT n, false, check_name, detail
    FROM own
    WHERE status = 'ok'
)
SELECT
    c.check_name,
    coalesce(f.status, 'ok'),
    f.scope,
    coalesce(f.detail, c.detail),
    CASE WHEN v.standby AND c.check_name NOT IN ('worker', 'statistics', 'tests', 'library')
        THEN 'On the primary: ' ELSE '' END || f.hint
FROM checked c
    CROSS JOIN server v
    LEFT JOIN shown f ON f.check_name = c.check_name
WHERE c.of_scopes OR pg_has_role('pg_monitor', 'USAGE')
ORDER BY c.n, f.scope, f.detail
$$;

COMMENT ON FUNCTION idem_internal.findings IS
    'Returns the rows of idem.health(), unless a table of idem is locked or missing.';

-- A lock on a table of idem stops every call, and must not stop the function that says so.
CREATE FUNCTION idem.health(long_held interval DEFAULT '5 minutes')
RETURNS SETOF idem.health_result
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
    own_hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM idem_internal.findings(long_held);
EXCEPTION
    WHEN lock_not_available THEN
        RETURN QUERY
        SELECT
            'transactions',
            'fail',
            NULL::text,
            'Nothing could be checked: a table of idem is locked, and calls wait as well'
                || coalesce(' (' || string_agg(DISTINCT l.lock, ', ') || ').', '.'),
            CASE
                -- The processes that block another include 0 for a prepared transaction.
                WHEN bool_or(l.pid IS NULL OR b.pid = 0)
                    THEN 'Finish the prepared transaction that has the lock, or that the lock '
                         'waits for, as its transaction manager decides. To see which there are: '
                         'SELECT * FROM pg_prepared_xacts WHERE database = current_database()'
                WHEN count(*) > 0
                    THEN 'Wait for the end of the lock, or end what it waits for. To see both: '
                         'SELECT pid, pg_blocking_pids(pid), state, xact_start, query '
                         'FROM pg_stat_activity WHERE pid IN ('
                             || string_agg(DISTINCT b.pid::text, ', ') || ')'
                ELSE 'Call idem.health() again: the lock has ended meanwhile.'
            END
        FROM (
            SELECT
                k.pid,
                format(CASE WHEN k.granted THEN '%s by %s' ELSE '%s, for which waits %s' END,
                       t.oid::regclass,
                       coalesce('process ' || k.pid, 'a prepared transaction')) AS lock
            FROM pg_locks k
                LEFT JOIN pg_index i ON i.indexrelid = k.relation
                JOIN pg_class t ON t.oid = coalesce(i.indrelid, k.relation)
            WHERE k.locktype = 'relation'
                AND k.mode = 'AccessExclusiveLock'
                AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND (t.relnamespace = 'idem'::regnamespace
                     OR EXISTS (SELECT
                                FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
                                WHERE a.attrelid = t.oid
                                    AND y.typname = 'key_digest'
                                    AND y.typnamespace = 'idem'::regnamespace))
        ) AS l
            LEFT JOIN LATERAL unnest(l.pid || pg_blocking_pids(l.pid)) AS b (pid) ON true;
    -- The library raises the second, with a hint of its own.
    WHEN undefined_table OR object_not_in_prerequisite_state THEN
        GET STACKED DIAGNOSTICS own_hint = PG_EXCEPTION_HINT;
        RETURN QUERY
        SELECT
            'record tables',
            'fail',
            NULL::text,
            format('Nothing could be checked, and calls fail: %s.', SQLERRM),
            coalesce(nullif(own_hint, ''),
                     'If the table was renamed or moved to another schema, give it its name back '
                     'with ALTER TABLE.');
END
$$;

COMMENT ON FUNCTION idem.health IS
    'Reports whether everything is in order: one row per check with status ok, warn or fail, a '
    'detail and, unless the status is ok, a hint that says what to do; a check that finds problems '
    'in several scopes has one row per scope, at most ten and one that counts the rest. A check '
    'warns if a lease or retry_after ended longer ago than long_held (NULL: 5 minutes) without a '
    'takeover, or if a transaction has held a key for that long. Shows the checks of the scopes '
    'that the current role may use; members of pg_monitor see all checks and scopes. If a table of '
    'idem is locked for more than two seconds, one row says so. Shows no key.';
