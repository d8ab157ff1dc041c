-- ---------------------------------------------------------------------------------------------
-- Views of the tables
-- ---------------------------------------------------------------------------------------------

-- A view of other roles' rows must not reveal anything about them, not even through the way in
-- which the server executes a query: a security barrier lets comparisons of text and the like
-- through to the tables, and EXPLAIN ANALYZE counts the rows that they find there. OFFSET 0 keeps
-- every condition out of a view, so each of these views ends with it.
CREATE VIEW idem.scopes WITH (security_barrier) AS
    SELECT
        name,
        owner,
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
    'Which lease idem.renew() and idem.take() give by default.';
COMMENT ON COLUMN idem.scopes.wait IS
    'How long a call waits at most for a key in flight.';
COMMENT ON COLUMN idem.scopes.request_required IS
    'Whether a claim of a new key must pass a request.';
COMMENT ON COLUMN idem.scopes.request_exclude IS
    'Which members of a request do not count when requests are compared.';
COMMENT ON COLUMN idem.scopes.tenant_required IS
    'Whether a call must name a tenant, unless its key has a record without one.';
COMMENT ON COLUMN idem.scopes.reject_stale_keys IS
    'Whether a new UUIDv7 or ULID key that is older than the TTL, or more than 10 minutes in '
    'the future, is refused.';
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
    'How long a record keeps the request: never, unfinished or always.';
COMMENT ON COLUMN idem.scopes.answer_ttl IS
    'How long an answer is kept, if not as long as its record.';
COMMENT ON COLUMN idem.scopes.min_ttl IS
    'How short a ttl a claim may pass.';
COMMENT ON COLUMN idem.scopes.header_exclude IS
    'Which headers of an answer are not stored.';
COMMENT ON COLUMN idem.scopes.tenant_from IS
    'Where the tenant of a call comes from: argument or role.';
COMMENT ON COLUMN idem.scopes.max_answer_size IS
    'How many bytes of answer, error, request and recovery state a record may hold.';
COMMENT ON COLUMN idem.scopes.records IS
    'Whether the scope''s records are in the tables that transactions choose, and never in '
    'idem.record.';

CREATE VIEW idem.records WITH (security_barrier) AS
    SELECT
        s.name AS scope,
        r.tenant,
        r.key,
        CASE
            WHEN r.state = 'c' THEN 'completed'
            WHEN r.state = 'f'
                OR (r.state = 'p'
                    AND r.attempt >= s.max_attempts + r.extra_attempts::bigint
                    AND r.lease_end <= pg_catalog.statement_timestamp()) THEN 'failed'
            ELSE 'in_progress'
        END AS state,
        r.attempt,
        r.status,
        r.created AS created_at,
        r.expires AS expires_at,
        CASE WHEN r.state = 'p' THEN r.lease_end END AS lease_end,
        r.recovery_point,
        r.redacted
            OR (r.state <> 'p'
                AND r.has_answer
                AND extract(epoch FROM pg_catalog.statement_timestamp()
                                - coalesce(r.lease_end, r.created))
                    >= extract(epoch FROM s.answer_ttl)) IS TRUE AS redacted,
        r.answer_bytes,
        CASE WHEN r.state <> 'p' THEN coalesce(r.lease_end, r.created) END AS completed_at
    FROM (
        SELECT
            scope,
            tenant,
            coalesce(key, key_uuid::text) AS key,
            state,
            coalesce(attempt, 1) AS attempt,
            coalesce(extra_attempts, 0) AS extra_attempts,
            status,
            created,
            expires,
            lease_end,
            recovery_point,
            coalesce(redacted, false) AS redacted,
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
        FROM idem.record
    ) AS r
        JOIN idem.scope s ON s.id = r.scope
    WHERE pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
        AND r.expires > pg_catalog.statement_timestamp()
    OFFSET 0;

GRANT SELECT ON idem.records TO PUBLIC;

COMMENT ON VIEW idem.records IS
    'The unexpired records in idem.record, without their answers, of the scopes whose owner''s '
    'privileges the current role has. state and completed_at are as in idem.lookup(); '
    'answer_bytes is the compressed size of the stored answer and request.';

CREATE VIEW idem.weak_keys WITH (security_barrier) AS
    SELECT
        scope,
        tenant,
        weakness,
        pg_catalog.count(*) AS keys
    FROM (
        SELECT
            s.name AS scope,
            r.tenant,
            idem_internal.key_weakness(r.key) AS weakness
        FROM (
            SELECT scope, tenant, coalesce(key, key_uuid::text) AS key, expires
            FROM idem.record
        ) AS r
            JOIN idem.scope s ON s.id = r.scope
        WHERE pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
            AND r.expires > pg_catalog.statement_timestamp()
    ) AS k
    WHERE weakness IS NOT NULL
    GROUP BY scope, tenant, weakness
    OFFSET 0;

GRANT SELECT ON idem.weak_keys TO PUBLIC;

COMMENT ON VIEW idem.weak_keys IS
    'How many unexpired records of idem.record have weak keys, in the scopes whose owner''s '
    'privileges the current role has. Reads all records.';

CREATE VIEW idem.streams WITH (security_barrier) AS
    SELECT
        s.name AS scope,
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

CREATE FUNCTION idem_internal.open_claims(
    OUT scope text,
    OUT tenant text,
    OUT key text,
    OUT attempt integer,
    OUT since timestamptz,
    OUT pid integer,
    OUT state text,
    OUT keys integer
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_open_claims'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.open_claims IS
    'Returns one key per running transaction that holds keys, in the scopes that the current role '
    'may use: its newest open atomic claim (state open) or, if it has none, the newest key that '
    'is finished or leased but not committed (state uncommitted). keys is how many keys it holds. '
    'The view idem.in_flight shows these rows. Returns no rows unless idem is preloaded.';

CREATE FUNCTION idem_internal.prepared_claims(
    OUT scope text,
    OUT tenant text,
    OUT key text,
    OUT attempt integer,
    OUT since timestamptz,
    OUT transaction xid
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_prepared_claims'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.prepared_claims IS
    'Returns the keys that prepared transactions have written to idem.record, in the scopes that '
    'the current role may use. The view idem.in_flight shows these rows. Reads all records.';

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
            s.name AS scope,
            r.tenant,
            r.key,
            r.attempt,
            r.created AS since,
            r.lease_end,
            r.lease_end <= pg_catalog.statement_timestamp()
                AND x.state <> 'exhausted' AS lapsed,
            r.recovery_point,
            x.state,
            r.last_error
        FROM (
            SELECT
                scope,
                tenant,
                coalesce(key, key_uuid::text) AS key,
                coalesce(attempt, 1) AS attempt,
                coalesce(extra_attempts, 0) AS extra_attempts,
                created,
                expires,
                lease_end,
                nonce IS NULL AS released,
                recovery_point,
                error AS last_error
            FROM idem.record
            WHERE state = 'p'
        ) AS r
            JOIN idem.scope s ON s.id = r.scope
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN r.attempt >= s.max_attempts + r.extra_attempts::bigint
                        AND r.lease_end <= pg_catalog.statement_timestamp() THEN 'exhausted'
                    WHEN r.released THEN 'released'
                    ELSE 'leased'
                END AS state
            ) AS x
        WHERE pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
            AND r.expires > pg_catalog.statement_timestamp()
    ) AS l
    FULL JOIN (
        SELECT o.scope, o.tenant, o.key, o.attempt, o.since, o.pid, o.state, NULL::text AS gid,
            o.keys
        FROM idem_internal.open_claims() o
        UNION ALL
        SELECT c.scope, c.tenant, c.key, c.attempt, c.since, NULL, 'prepared', x.gid, NULL
        FROM idem_internal.prepared_claims() c
            LEFT JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = c.transaction
        WHERE EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts)
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
    'number of keys that it holds. Reads all records.';

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

CREATE FUNCTION idem_internal.scope_stats(
    OUT scope text,
    OUT claims bigint,
    OUT replays bigint,
    OUT in_flight bigint,
    OUT waits bigint,
    OUT wait_time interval,
    OUT conflicts bigint,
    OUT takeovers bigint,
    OUT completions bigint,
    OUT failures bigint,
    OUT releases bigint,
    OUT stale bigint,
    OUT weak bigint,
    OUT limited bigint,
    OUT expired_reused bigint,
    OUT purged bigint,
    OUT stats_reset timestamptz,
    OUT advances bigint,
    OUT duplicates bigint
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_scope_stats'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.scope_stats IS
    'Returns the statistics of each scope that the current role may use (members of pg_monitor: of '
    'every scope). The view idem.stats shows these rows. Returns no rows unless idem is preloaded.';

CREATE VIEW idem.stats WITH (security_barrier) AS
    SELECT * FROM idem_internal.scope_stats();

GRANT SELECT ON idem.stats TO PUBLIC;

COMMENT ON VIEW idem.stats IS
    'The statistics, since stats_reset, of each scope whose owner''s privileges the current role '
    'has. Members of pg_monitor see every scope.';

CREATE FUNCTION idem_internal.scope_durations(
    OUT scope text,
    OUT kind text,
    OUT count bigint,
    OUT total interval,
    OUT p50 interval,
    OUT p90 interval,
    OUT p99 interval,
    OUT upper_bounds interval[],
    OUT counts bigint[],
    OUT stats_reset timestamptz
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_scope_durations'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.scope_durations IS
    'Returns the histograms of each scope that the current role may use (members of pg_monitor: of '
    'every scope). The view idem.durations shows these rows. Returns no rows unless idem is '
    'preloaded.';

CREATE VIEW idem.durations WITH (security_barrier) AS
    SELECT * FROM idem_internal.scope_durations();

GRANT SELECT ON idem.durations TO PUBLIC;

COMMENT ON VIEW idem.durations IS
    'How long operations took (kind atomic or leased) and claims waited (kind wait), since '
    'stats_reset, in each scope whose owner''s privileges the current role has. Members of '
    'pg_monitor see every scope. p50, p90 and p99 are the lowest upper bounds that 50, 90 and 99 '
    'percent do not exceed. counts has the number within each of upper_bounds and above the one '
    'before, and last the number above all.';
CREATE FUNCTION idem_internal.scope_hot_keys(
    OUT scope text,
    OUT tenant text,
    OUT key text,
    OUT replays bigint,
    OUT conflicts bigint,
    OUT first_seen timestamptz,
    OUT last_seen timestamptz,
    OUT created_at timestamptz
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_scope_hot_keys'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.scope_hot_keys IS
    'Returns the keys with the most replays and conflicts of each scope that the current role may '
    'use (members of pg_monitor: of every scope, but the key and the tenant are NULL). The view '
    'idem.hot_keys shows these rows. Returns no rows unless idem is preloaded.';

CREATE VIEW idem.hot_keys WITH (security_barrier) AS
    SELECT * FROM idem_internal.scope_hot_keys();

GRANT SELECT ON idem.hot_keys TO PUBLIC;

COMMENT ON VIEW idem.hot_keys IS
    'The keys with the most replays and conflicts, since the last reset or restart, of each scope '
    'whose owner''s privileges the current role has. Members of pg_monitor see every scope, '
    'without keys and tenants. From the 1,001st replay of a scope on, replays are a sample of one '
    'in 16, multiplied by 16.';

CREATE FUNCTION idem.stats_reset(scope text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_stats_reset'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

REVOKE ALL ON FUNCTION idem.stats_reset FROM PUBLIC;

COMMENT ON FUNCTION idem.stats_reset IS
    'Sets the statistics of a scope, or of all scopes of this database, to zero, and forgets their '
    'hot keys. A rollback does not undo it. For superusers and roles that are granted EXECUTE. '
    'Raises ID008.';

-- ---------------------------------------------------------------------------------------------
-- What is stored: figures without keys, which members of pg_monitor see for every scope
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.survey(
    of_scope text DEFAULT NULL,
    max_blocks integer DEFAULT NULL,
    OUT scope text,
    OUT in_progress bigint,
    OUT completed bigint,
    OUT failed bigint,
    OUT lapsed bigint,
    OUT exhausted bigint,
    OUT weak bigint,
    OUT answer_bytes bigint,
    OUT oldest timestamptz,
    OUT newest timestamptz,
    OUT next_expiry timestamptz,
    OUT lapsed_since timestamptz,
    OUT expired bigint,
    OUT expired_since timestamptz,
    OUT coverage double precision
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_survey'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem.survey IS
    'Counts the records of a scope, or of each scope that the current role may use (members of '
    'pg_monitor: of every scope). Reads at most max_blocks blocks (NULL: 2048), evenly spread over '
    'the record tables, and extrapolates; coverage is the fraction of them that was read. '
    'Raises ID008 unknown_scope, 42501, 22023.';

CREATE FUNCTION idem.key_survey(
    OUT scope text,
    OUT short_lived bigint,
    OUT long_lived bigint,
    OUT untenanted bigint,
    OUT shared bigint,
    OUT coverage double precision
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_key_survey'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem.key_survey IS
    'Counts, for each scope that the current role may use (members of pg_monitor: for every '
    'scope), the unexpired records that live for less than a tenth of the scope''s TTL, and for '
    'more than two years; and the UUIDs that occur both with and without a tenant, and with '
    'several tenants. Reads at most 2048 blocks, evenly spread over the record tables. The '
    'figures of lifetimes are extrapolated, the others are what was found; coverage is the '
    'fraction of the tables that was read.';

CREATE VIEW idem.overview WITH (security_barrier) AS
    SELECT
        v.scope,
        s.owner,
        s.ttl,
        s.lease,
        s.wait,
        s.max_attempts,
        s.claims_per_minute,
        s.weak_keys,
        v.in_progress + v.completed + v.failed AS live,
        v.in_progress,
        v.completed,
        v.failed,
        v.lapsed,
        v.lapsed_since,
        v.exhausted,
        v.weak,
        v.answer_bytes,
        v.oldest,
        v.newest,
        v.next_expiry,
        v.expired,
        v.expired_since,
        v.coverage,
        s.request_required,
        s.tenant_required,
        s.tenant_from,
        s.min_ttl,
        s.max_answer_size
    FROM idem.survey() v
        LEFT JOIN idem.scope s ON s.name = v.scope
    OFFSET 0;

GRANT SELECT ON idem.overview TO PUBLIC;

COMMENT ON VIEW idem.overview IS
    'The rules and figures of each scope, counted by idem.survey(). Members of pg_monitor see '
    'every scope and, in a row whose scope is NULL, the records of dropped scopes.';

-- A function, because the unlogged table idem.sweep cannot be read on a standby, and idem.storage
-- can.
CREATE FUNCTION idem.purge_block()
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_purge_block'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem.purge_block IS
    'Returns the block of idem.record at which its next purge begins. On a standby this is 0: the '
    'first purge after a promotion begins there.';

-- Also the tables that idem does not use, with what is wrong with them: the view idem.storage shows
-- the others, and idem.health() these.
CREATE FUNCTION idem_internal.record_tables(
    OUT records regclass,
    OUT purge_block bigint,
    OUT fault text,
    OUT remedy text,
    OUT passed_over text
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_record_tables'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_internal.record_tables IS
    'Returns idem.record and the tables with a column of the type idem.key_digest, in the order in '
    'which they are purged. purge_block is the block at which the next purge begins, in the row of '
    'the table where that is. fault says why idem does not use a table (NULL: it does), '
    'passed_over what the purge leaves in a table that idem uses, and remedy what to do about it.';

CREATE FUNCTION idem.free_bytes()
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_free_bytes'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem.free_bytes IS
    'Returns the free space, in bytes, of the file system that holds the record table. NULL for '
    'roles that are not members of pg_monitor, and if the operating system does not tell.';

CREATE VIEW idem.storage WITH (security_barrier) AS
    SELECT
        pg_catalog.pg_table_size(r.oid) AS table_bytes,
        pg_catalog.pg_indexes_size(r.oid) AS index_bytes,
        pg_catalog.pg_relation_size(r.oid)
            / pg_catalog.current_setting('block_size')::bigint AS table_blocks,
        l.purge_block,
        pg_catalog.pg_stat_get_live_tuples(r.oid) AS live_rows,
        pg_catalog.pg_stat_get_dead_tuples(r.oid) AS dead_rows,
        greatest(pg_catalog.age(r.relfrozenxid), pg_catalog.age(t.relfrozenxid)) AS frozen_age,
        (SELECT pg_catalog.count(*) FROM idem.scope) AS scopes,
        (SELECT pg_catalog.count(DISTINCT purpose) = 2 FROM idem.secret) AS has_secrets,
        l.records
    FROM idem_internal.record_tables() l
        JOIN pg_catalog.pg_class r ON r.oid = l.records::pg_catalog.oid
        LEFT JOIN pg_catalog.pg_class t ON t.oid = r.reltoastrelid
    WHERE l.fault IS NULL;

GRANT SELECT ON idem.storage TO pg_monitor;

COMMENT ON VIEW idem.storage IS
    'One row about each record table as a whole: its size, where the next purge begins (NULL: in '
    'another table), and the state of its vacuum. For members of pg_monitor.';
