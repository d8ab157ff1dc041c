-- ---------------------------------------------------------------------------------------------
-- Views of the tables, as both editions have them
-- ---------------------------------------------------------------------------------------------

-- A view of other roles' rows must not reveal anything about them, not even through the way in
-- which the server executes a query: a security barrier lets comparisons of text and the like
-- through to the tables, and EXPLAIN ANALYZE counts the rows that they find there. OFFSET 0 keeps
-- every condition out of a view, so each of these views ends with it.
CREATE VIEW idem.scopes WITH (security_barrier) AS
    SELECT
        name COLLATE "default",
        owner::pg_catalog.regrole AS owner,
        ttl,
        lease,
        wait,
        request_required,
        request_exclude,
        tenant_required,
        reject_stale_keys,
        max_attempts,
        claims_per_minute,
        weak_keys,
        store_response,
        response_exclude,
        final_sqlstates,
        store_request,
        answer_ttl,
        min_ttl,
        header_exclude,
        tenant_from,
        max_answer_size,
        records
    FROM idem.scope
    WHERE pg_catalog.pg_has_role(owner::pg_catalog.oid, 'USAGE')
    OFFSET 0;

GRANT SELECT ON idem.scopes TO PUBLIC;

COMMENT ON VIEW idem.scopes IS
    'The scopes whose owner''s privileges the current role has.';

COMMENT ON COLUMN idem.scopes.ttl IS
    'How long a record is kept, counted from completion.';
COMMENT ON COLUMN idem.scopes.lease IS
    'The default of idem.renew() and idem.take().';
COMMENT ON COLUMN idem.scopes.wait IS
    'How long a call waits at most for a key in flight.';
COMMENT ON COLUMN idem.scopes.request_required IS
    'Whether a claim of a new key must pass a request.';
COMMENT ON COLUMN idem.scopes.request_exclude IS
    'Which members of a request do not count when requests are compared.';
COMMENT ON COLUMN idem.scopes.tenant_required IS
    'Whether a call must name a tenant, unless its key has a record without one.';
COMMENT ON COLUMN idem.scopes.reject_stale_keys IS
    'Whether a new UUIDv7 or ULID key that is older than min_ttl, or else the TTL, or more than 10 '
    'minutes in the future, is refused.';
COMMENT ON COLUMN idem.scopes.max_attempts IS
    'How many attempts an operation has.';
COMMENT ON COLUMN idem.scopes.claims_per_minute IS
    'How many new keys each tenant may claim per minute.';
COMMENT ON COLUMN idem.scopes.weak_keys IS
    'What happens to a new key that is likely to be used twice: allow, warn or reject.';
COMMENT ON COLUMN idem.scopes.store_response IS
    'Whether answers are stored.';
COMMENT ON COLUMN idem.scopes.response_exclude IS
    'Which members of a response are not stored.';
COMMENT ON COLUMN idem.scopes.final_sqlstates IS
    'Which SQLSTATEs, or classes of two characters, idem.execute() stores as final failures.';
COMMENT ON COLUMN idem.scopes.store_request IS
    'How long a record keeps the request in clear text: never, unfinished or always.';
COMMENT ON COLUMN idem.scopes.answer_ttl IS
    'How long an answer is kept, if not as long as its record.';
COMMENT ON COLUMN idem.scopes.min_ttl IS
    'How short a ttl a claim may pass.';
COMMENT ON COLUMN idem.scopes.header_exclude IS
    'Which headers of an answer are not stored.';
COMMENT ON COLUMN idem.scopes.tenant_from IS
    'Where the tenant of a call comes from: argument or role.';
COMMENT ON COLUMN idem.scopes.max_answer_size IS
    'How many bytes an answer, a stored request, a recovery state or an error may have.';
COMMENT ON COLUMN idem.scopes.records IS
    'Whether the scope''s records are in the tables that transactions choose, and never in '
    'idem.record.';

CREATE VIEW idem.records WITH (security_barrier) AS
    SELECT
        s.name COLLATE "default" AS scope,
        r.tenant,
        r.key,
        CASE
            WHEN r.state = 'c' THEN 'completed'
            WHEN r.state = 'f' THEN 'failed'
            WHEN r.attempt >= s.max_attempts + r.extra_attempts::bigint
                AND r.lease_end <= pg_catalog.statement_timestamp() THEN 'exhausted'
            ELSE 'in_progress'
        END AS state,
        r.attempt,
        r.status,
        r.created AS created_at,
        r.expires AS expires_at,
        r.lease_end,
        r.recovery_point,
        r.redacted
            OR (r.has_answer
                AND extract(epoch FROM pg_catalog.statement_timestamp() - r.completed)
                    >= extract(epoch FROM s.answer_ttl)) IS TRUE AS redacted,
        r.answer_bytes,
        r.completed AS completed_at,
        idem_internal.key_weakness(r.key) AS weakness
    FROM (
        SELECT
            *,
            headers IS NOT NULL
                OR response IS NOT NULL
                OR body IS NOT NULL
                OR (error IS NOT NULL
                    AND error <> pg_catalog.jsonb_build_object('sqlstate', error -> 'sqlstate'))
                AS has_answer,
            coalesce(pg_catalog.pg_column_size(response), 0)::bigint
                + coalesce(pg_catalog.pg_column_size(headers), 0)
                + coalesce(pg_catalog.pg_column_size(body), 0)
                + coalesce(pg_catalog.pg_column_size(error), 0)
                + coalesce(pg_catalog.pg_column_size(request), 0) AS answer_bytes
        FROM idem_internal.stored
    ) AS r
        JOIN idem.scope s ON s.id = r.scope
    WHERE pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
        AND r.expires > pg_catalog.statement_timestamp()
    OFFSET 0;

GRANT SELECT ON idem.records TO PUBLIC;

COMMENT ON VIEW idem.records IS
    'The unexpired records in idem.record, without their answers, of the scopes whose owner''s '
    'privileges the current role has. state and completed_at are as in idem.lookup(); '
    'answer_bytes is the compressed size of the stored answer and request; weakness is NULL unless '
    'the form of the key suggests that it will be used again.';
COMMENT ON COLUMN idem.records.state IS
    'in_progress, exhausted, completed or failed.';
COMMENT ON COLUMN idem.records.weakness IS
    'generic, timestamp, number, short or repetitive; NULL if the key is not weak.';

CREATE VIEW idem.streams WITH (security_barrier) AS
    SELECT
        s.name COLLATE "default" AS scope,
        w.tenant,
        w.source,
        w.seq,
        w.updated AS updated_at
    FROM idem.watermark w
        JOIN idem.scope s ON s.id = w.scope
    WHERE pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
    OFFSET 0;

GRANT SELECT ON idem.streams TO PUBLIC;

COMMENT ON VIEW idem.streams IS
    'How far idem.advance() has come with each source, in the scopes whose owner''s privileges '
    'the current role has.';

-- ---------------------------------------------------------------------------------------------
-- Operations in flight
-- ---------------------------------------------------------------------------------------------

-- A leased claim that was released, or has used up its attempts, has no holder: its row waits for
-- the next attempt, or for an administrator. A key has one holder: the key that a transaction holds
-- is joined with the leased claim, if any, that the transaction is changing.
CREATE VIEW idem.in_flight WITH (security_barrier) AS
    SELECT
        scope,
        tenant,
        key,
        coalesce(h.attempt, l.attempt) AS attempt,
        coalesce(l.since, h.since) AS since,
        pg_catalog.clock_timestamp() - coalesce(l.since, h.since) AS age,
        l.lease_end,
        coalesce(l.lapsed AND h.state IS NULL, false) AS lapsed,
        l.recovery_point,
        h.pid,
        coalesce(h.state, l.state) AS state,
        h.gid,
        h.keys,
        l.last_error
    FROM (
        SELECT
            s.name COLLATE "default" AS scope,
            r.tenant,
            r.key,
            r.attempt,
            r.created AS since,
            r.lease_end,
            r.lease_end <= pg_catalog.statement_timestamp()
                AND x.state <> 'exhausted' AS lapsed,
            r.recovery_point,
            x.state,
            r.error AS last_error
        FROM idem_internal.stored r
            JOIN idem.scope s ON s.id = r.scope
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN r.attempt >= s.max_attempts + r.extra_attempts::bigint
                        AND r.lease_end <= pg_catalog.statement_timestamp() THEN 'exhausted'
                    WHEN r.released THEN 'released'
                    ELSE 'leased'
                END AS state
            ) AS x
        WHERE r.state = 'p'
            AND pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
            AND r.expires > pg_catalog.statement_timestamp()
    ) AS l
    FULL JOIN (
        SELECT k.*, x.gid
        FROM idem_internal.held_keys(EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts)) k
            LEFT JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = k.transaction
    ) AS h USING (scope, tenant, key)
    OFFSET 0;

GRANT SELECT ON idem.in_flight TO PUBLIC;

COMMENT ON VIEW idem.in_flight IS
    'The unfinished operations in the scopes whose owner''s privileges the current role has: '
    'leased claims (state leased), released ones (state released; lease_end is when they are due) '
    'and those that have used up their attempts (state exhausted), each with its last error, and '
    'lapsed if idem.take() would take it over; the keys of prepared transactions (state prepared, '
    'with the gid) and, if idem is preloaded, one key per running transaction (state open, or '
    'uncommitted if it is finished or leased but not committed), with its process id and the '
    'number of keys that it holds.';
COMMENT ON COLUMN idem.in_flight.state IS
    'leased, released, exhausted, prepared, open or uncommitted.';

-- ---------------------------------------------------------------------------------------------
-- What is stored: figures without keys, which members of pg_monitor see for every scope
-- ---------------------------------------------------------------------------------------------

-- No index counts records, so the view reads idem.record: all of it up to 2,048 blocks (16 MB, some
-- 100,000 records), and otherwise a random sample of about as many, whose counts it extrapolates.
-- The records of dropped scopes, which have expired, are in a row of their own.
--
-- A sample would miss the one operation that needs an administrator. So of a sampled table, the
-- unfinished operations are read by their index and count exactly, unless there are more than
-- 10,000: then they cost too much, and are sampled as well.
--
-- Two tenants never draw the same UUID of the versions 1, 4, 6 and 7 by chance; the other UUIDs are
-- derived from data that tenants may have in common. How many occur with several tenants is known
-- for the sample only, so it is not extrapolated.
--
-- Any role may pass any scopes and ttls to idem_internal.figures(). No ttl makes a record raise an
-- error here, which would show that a scope has records.
CREATE FUNCTION idem_internal.totals(
    ids integer[],
    ttls interval[],
    max_attempts integer[]
)
RETURNS SETOF idem_internal.figures
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET jit = off
SET enable_seqscan = off
BEGIN ATOMIC
    WITH size AS MATERIALIZED (
        SELECT
            z.coverage,
            z.coverage < 1
                AND (SELECT count(*)
                     FROM (SELECT FROM idem.record r
                           WHERE idem_internal.is_unfinished(r)
                           LIMIT 10001) AS u) <= 10000 AS exact
        FROM (SELECT least(1, 2048 * current_setting('block_size')::double precision
                              / greatest(pg_relation_size('idem.record'), 1)) AS coverage) AS z
    ),
    -- weight is how many records of the table a record stands for.
    sample AS NOT MATERIALIZED (
        SELECT
            weight,
            scope,
            coalesce(attempt, 1) AS attempt,
            coalesce(extra_attempts, 0) AS extra_attempts,
            state,
            tenant,
            shown_key AS key,
            created,
            -- A superuser may have written infinity, from which nothing can be subtracted.
            greatest(least(expires, '9999-12-31'), '2000-01-01') AS expires,
            greatest(lease_end, '2000-01-01') AS lease_end,
            response,
            headers,
            body,
            error,
            request,
            expires > statement_timestamp() AS unexpired,
            state = 'p' AND lease_end <= statement_timestamp() AS ended
        FROM (
            SELECT
                scope, attempt, extra_attempts, state, tenant, created, expires, lease_end,
                response, headers, body, error, request,
                idem_internal.key_text(r) AS shown_key,
                (SELECT 1 / coverage FROM size) AS weight
            FROM idem.record r TABLESAMPLE SYSTEM (100 * (SELECT coverage FROM size))
            WHERE r.state <> 'p' OR NOT (SELECT exact FROM size)

            UNION ALL
            SELECT
                scope, attempt, extra_attempts, state, tenant, created, expires, lease_end,
                response, headers, body, error, request,
                idem_internal.key_text(r), 1
            FROM idem.record r
            WHERE idem_internal.is_unfinished(r) AND (SELECT exact FROM size)
        ) AS part
    ),
    total AS (
        SELECT
            s.id,
            sum(r.weight) FILTER (WHERE f.live AND r.state = 'p' AND NOT f.exhausted)
                AS in_progress,
            sum(r.weight) FILTER (WHERE f.live AND r.state = 'c') AS completed,
            sum(r.weight) FILTER (WHERE f.live AND r.state = 'f') AS failed,
            sum(r.weight) FILTER (WHERE f.lapsed) AS lapsed,
            min(r.lease_end) FILTER (WHERE f.lapsed) AS lapsed_since,
            sum(r.weight) FILTER (WHERE f.exhausted) AS exhausted,
            min(r.expires) FILTER (WHERE f.exhausted) AS exhausted_until,
            sum(CASE WHEN idem_internal.key_weakness(r.key) IS NOT NULL THEN r.weight END)
                FILTER (WHERE f.live) AS weak,
            sum(r.weight * (coalesce(pg_column_size(r.response), 0)
                            + coalesce(pg_column_size(r.headers), 0)
                            + coalesce(pg_column_size(r.body), 0)
                            + coalesce(pg_column_size(r.error), 0)
                            + coalesce(pg_column_size(r.request), 0))) FILTER (WHERE f.live)
                AS answer_bytes,
            min(r.created) FILTER (WHERE f.live) AS oldest,
            max(r.created) FILTER (WHERE f.live) AS newest,
            min(r.expires) FILTER (WHERE f.live) AS next_expiry,
            sum(r.weight) FILTER (WHERE NOT f.live) AS expired,
            min(r.expires) FILTER (WHERE NOT r.unexpired) AS expired_since,
            sum(r.weight) FILTER (WHERE f.live AND r.expires - r.created < s.ttl / 10)
                AS short_lived,
            sum(r.weight) FILTER (
                WHERE f.live AND r.expires - r.created > interval '730 days'
                    AND (r.expires - r.created) / 2 > s.ttl
                    AND statement_timestamp() - r.created < greatest(interval '1 day', s.ttl))
                AS long_lived
        FROM sample r
            FULL JOIN unnest($1, $2, $3) AS s (id, ttl, max_attempts) ON s.id = r.scope
            CROSS JOIN LATERAL (
                SELECT (r.attempt >= s.max_attempts + r.extra_attempts::bigint) IS TRUE AS last
            ) AS a
            CROSS JOIN LATERAL (
                SELECT
                    r.unexpired AND s.id IS NOT NULL AS live,
                    r.unexpired AND r.ended AND a.last AS exhausted,
                    r.unexpired AND r.ended AND s.id IS NOT NULL AND NOT a.last AS lapsed
            ) AS f
        GROUP BY s.id
    ),
    spread AS (
        SELECT
            k.scope,
            count(*) FILTER (WHERE k.first = '') AS untenanted,
            count(*) FILTER (WHERE k.first_named <> k.last) AS shared
        FROM (
            SELECT
                scope,
                min(tenant) AS first,
                min(nullif(tenant, '')) AS first_named,
                max(tenant) AS last
            FROM sample
            WHERE unexpired
                AND key ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[1467][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$'
            GROUP BY scope, key
            HAVING min(tenant) <> max(tenant)
        ) AS k
        GROUP BY k.scope
    )
    SELECT
        t.id,
        coalesce(round(t.in_progress), 0)::bigint,
        coalesce(round(t.completed), 0)::bigint,
        coalesce(round(t.failed), 0)::bigint,
        coalesce(round(t.lapsed), 0)::bigint,
        t.lapsed_since,
        coalesce(round(t.exhausted), 0)::bigint,
        t.exhausted_until,
        coalesce(round(t.weak), 0)::bigint,
        coalesce(round(t.answer_bytes), 0)::numeric,
        t.oldest,
        t.newest,
        t.next_expiry,
        coalesce(round(t.expired), 0)::bigint,
        t.expired_since,
        coalesce(round(t.short_lived), 0)::bigint,
        coalesce(round(t.long_lived), 0)::bigint,
        coalesce(p.untenanted, 0),
        coalesce(p.shared, 0),
        z.coverage
    FROM size z
        CROSS JOIN total t
        LEFT JOIN spread p ON p.scope = t.id;
END;

COMMENT ON FUNCTION idem_internal.totals IS
    'Counts the records in idem.record for each of the scopes, and under a NULL those of others. '
    'Needs the privileges of the owner of idem.record.';

CREATE VIEW idem.overview WITH (security_barrier) AS
    SELECT
        s.name COLLATE "default" AS scope,
        s.owner::pg_catalog.regrole AS owner,
        s.ttl,
        s.lease,
        s.wait,
        s.max_attempts,
        s.claims_per_minute,
        s.weak_keys,
        t.in_progress + t.exhausted + t.completed + t.failed AS live,
        t.in_progress,
        t.completed,
        t.failed,
        t.lapsed,
        t.lapsed_since,
        t.exhausted,
        t.weak,
        t.answer_bytes::bigint AS answer_bytes,
        t.oldest,
        t.newest,
        t.next_expiry,
        t.expired,
        t.expired_since,
        t.coverage,
        s.request_required,
        s.tenant_required,
        s.tenant_from,
        s.min_ttl,
        s.max_answer_size,
        t.short_lived,
        t.long_lived,
        t.untenanted,
        t.shared,
        t.exhausted_until
    FROM (
        SELECT
            array_agg(id) AS ids,
            array_agg(ttl) AS ttls,
            array_agg(max_attempts) AS max_attempts
        FROM idem.scope
    ) AS a
        CROSS JOIN LATERAL idem_internal.figures(a.ids, a.ttls, a.max_attempts) t
        LEFT JOIN idem.scope s ON s.id = t.scope_id
    OFFSET 0;

GRANT SELECT ON idem.overview TO PUBLIC;

COMMENT ON VIEW idem.overview IS
    'The settings and figures of each scope whose owner''s privileges the current role has, '
    'counted in idem.record. Reads about 2048 blocks and extrapolates; coverage is the part of the '
    'table that was read. Up to 10,000 unfinished operations count exactly. Members of pg_monitor '
    'see every scope and, in a row whose scope is NULL, the records of dropped scopes. The figures '
    'are NULL where idem.record cannot be counted, which idem.health() explains.';

-- The records whose scope was neither dropped nor restored with them, for idem.health(). Those of
-- scopes that are not given count as expired.
CREATE VIEW idem_internal.records_without_scope WITH (security_barrier) AS
    SELECT
        t.expired AS records
    FROM (
        SELECT
            array_agg(id) AS ids,
            array_agg(ttl) AS ttls,
            array_agg(max_attempts) AS max_attempts
        FROM (
            SELECT id, ttl, max_attempts FROM idem.scope
            UNION ALL
            SELECT id, '1 day', NULL FROM idem.dropped_scope
        ) AS s
    ) AS a
        CROSS JOIN LATERAL idem_internal.figures(a.ids, a.ttls, a.max_attempts) t
    WHERE t.scope_id IS NULL
    OFFSET 0;

GRANT SELECT ON idem_internal.records_without_scope TO PUBLIC;

COMMENT ON VIEW idem_internal.records_without_scope IS
    'How many records belong to no scope, neither one that exists nor one '
    'that was dropped. Members of pg_monitor see them.';

CREATE VIEW idem.storage WITH (security_barrier) AS
    SELECT
        l.records,
        pg_table_size(r.oid) AS table_bytes,
        pg_indexes_size(r.oid) AS index_bytes,
        pg_stat_get_live_tuples(r.oid) AS live_rows,
        pg_stat_get_dead_tuples(r.oid) AS dead_rows,
        greatest(age(r.relfrozenxid), age(t.relfrozenxid)) AS frozen_age,
        (SELECT count(DISTINCT purpose) = 2 FROM idem.secret) AS has_secrets
    FROM idem_internal.record_tables() l
        JOIN pg_class r ON r.oid = l.records::oid
        LEFT JOIN pg_class t ON t.oid = r.reltoastrelid
    WHERE l.fault IS NULL;

GRANT SELECT ON idem.storage TO PUBLIC;

COMMENT ON VIEW idem.storage IS
    'One row about each record table as a whole: its size and the state of its vacuum; and whether '
    'the secrets of the database are in place.';
