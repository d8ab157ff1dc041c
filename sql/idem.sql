-- idem: the SQL face of the extension. Built into idem--VERSION.sql.
--
-- Nobody gets rights on the tables: the functions check the caller against the scope's owner and
-- then touch the tables themselves. No OR REPLACE and no IF NOT EXISTS: an object that is here
-- before us is somebody else's, and CREATE EXTENSION must fail on it.
\echo Use "CREATE EXTENSION idem" to load this file. \quit

CREATE SCHEMA idem;
GRANT USAGE ON SCHEMA idem TO PUBLIC;
COMMENT ON SCHEMA idem IS 'idempotency keys: claim an operation, complete it, every retry gets the first answer';

-- ---------------------------------------------------------------------------------------------
-- Tables
-- ---------------------------------------------------------------------------------------------

-- A scope's id is part of every key digest, so it is never reused. The sequence is dumped too.
CREATE SEQUENCE idem.scope_id AS integer;

CREATE TABLE idem.scope (
    id              integer     NOT NULL DEFAULT pg_catalog.nextval('idem.scope_id') PRIMARY KEY,
    name            text        NOT NULL UNIQUE,
    owner           regrole     NOT NULL,
    ttl             interval    NOT NULL,
    lease           interval    NOT NULL,
    wait            interval    NOT NULL,
    request_required boolean    NOT NULL,
    request_exclude text[]      NOT NULL,
    tenant_required boolean     NOT NULL,
    reject_stale_keys boolean   NOT NULL,
    max_attempts    integer,
    claims_per_minute integer,
    weak_keys       text        NOT NULL,
    store_response  boolean     NOT NULL,
    response_exclude text[]     NOT NULL,
    transient_sqlstates text[]  NOT NULL DEFAULT '{}'
);
ALTER SEQUENCE idem.scope_id OWNED BY idem.scope.id;
COMMENT ON TABLE idem.scope IS 'the scopes; written by idem.create_scope(), read through idem.scopes';

-- The ids of dropped scopes: they are never given again, and what the scopes held is purged. In a
-- table, because a sequence is not replicated, and a missing row of idem.scope may be yet to come.
CREATE TABLE idem.dropped_scope (
    id              integer     NOT NULL PRIMARY KEY,
    dropped         timestamptz NOT NULL
);
COMMENT ON TABLE idem.dropped_scope IS 'the ids of dropped scopes, which are never given again; written by idem.drop_scope()';

-- One row an operation: written when an atomic claim finishes, or when a leased one begins. The
-- primary key is the only index: the digest finds the row, the full identity in it decides.
-- Fixed-width columns first, so that a row carries no padding.
CREATE TABLE idem.record (
    digest          uuid        NOT NULL PRIMARY KEY,
    created         timestamptz NOT NULL,
    expires         timestamptz NOT NULL,
    lease_end       timestamptz,
    nonce           bigint,
    scope           integer     NOT NULL,
    attempt         integer     NOT NULL,
    status          integer,
    state           "char"      NOT NULL,
    redacted        boolean     NOT NULL,
    tenant          text        NOT NULL,
    key             text        NOT NULL,
    fingerprint     bytea,
    recovery_point  text,
    recovery_state  jsonb,
    headers         jsonb,
    response        jsonb,
    body            bytea,
    error           jsonb
);
COMMENT ON TABLE idem.record IS 'the key records; written by idem.complete() and idem.fail(), read through idem.claim() and idem.lookup(). lease_end and nonce (the token''s random bits) belong to leased claims';

-- How far each source of an ordered stream has come. The digest is that of no key; there is room on
-- every page, so that moving a watermark stays in the heap.
CREATE TABLE idem.watermark (
    digest          uuid        NOT NULL PRIMARY KEY,
    seq             bigint      NOT NULL,
    updated         timestamptz NOT NULL,
    scope           integer     NOT NULL,
    tenant          text        NOT NULL,
    source          text        NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE idem.watermark IS 'the highest sequence number of each source; written by idem.advance(), never expires';

-- The permanent seed (lock ids, child keys) and the fingerprint secrets. Made with the first scope, and dumped
-- with the data: without them a restored record would conflict with its own retries.
CREATE TABLE idem.secret (
    id              integer     NOT NULL PRIMARY KEY,
    purpose         text        NOT NULL CHECK (purpose IN ('seed', 'fingerprint')),
    secret          bytea       NOT NULL CHECK (pg_catalog.length(secret) = 32),
    created         timestamptz NOT NULL
);
COMMENT ON TABLE idem.secret IS 'per-database secrets; nobody but idem reads them';

-- Where the next purge goes on: one row. Unlogged, so that it is never published: a table without a
-- key stops a subscription at the first update, and one with a key would collide with the
-- subscriber's own row. A crash empties it, and the next purge begins at the first block.
CREATE UNLOGGED TABLE idem.sweep (
    hand            bigint      NOT NULL
);
INSERT INTO idem.sweep VALUES (0);
COMMENT ON TABLE idem.sweep IS 'the block of idem.record at which the next purge begins';

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

SELECT pg_catalog.pg_extension_config_dump('idem.scope_id', '');
SELECT pg_catalog.pg_extension_config_dump('idem.scope', '');
SELECT pg_catalog.pg_extension_config_dump('idem.dropped_scope', '');
SELECT pg_catalog.pg_extension_config_dump('idem.record', '');
SELECT pg_catalog.pg_extension_config_dump('idem.watermark', '');
SELECT pg_catalog.pg_extension_config_dump('idem.secret', '');

REVOKE ALL ON ALL TABLES IN SCHEMA idem FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA idem FROM PUBLIC;

-- ---------------------------------------------------------------------------------------------
-- Result types
-- ---------------------------------------------------------------------------------------------

CREATE TYPE idem.claim_result AS (
    claimed         boolean,
    outcome         text,
    token           text,
    attempt         integer,
    response        jsonb,
    status          integer,
    headers         jsonb,
    body            bytea,
    error           jsonb,
    retry_after     interval,
    recovery_point  text,
    recovery_state  jsonb,
    created_at      timestamptz,
    expires_at      timestamptz,
    redacted        boolean
);
COMMENT ON TYPE idem.claim_result IS 'what idem.claim() and idem.try_claim() say: claimed with a token, or the stored answer';

CREATE TYPE idem.record_info AS (
    state           text,
    attempt         integer,
    response        jsonb,
    status          integer,
    headers         jsonb,
    body            bytea,
    error           jsonb,
    created_at      timestamptz,
    expires_at      timestamptz,
    lease_end       timestamptz,
    holder_pid      integer,
    since           timestamptz,
    redacted        boolean
);
COMMENT ON TYPE idem.record_info IS 'what idem.lookup() says of a key: absent, in_progress, completed or failed';

CREATE TYPE idem.execution AS (
    outcome         text,
    replayed        boolean,
    response        jsonb,
    error           jsonb,
    redacted        boolean
);
COMMENT ON TYPE idem.execution IS 'what idem.execute() says: completed with the response, or failed with the error; replayed when it is the stored one, redacted when a part of that was not stored';

-- ---------------------------------------------------------------------------------------------
-- Claims
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.claim(scope text, key text, request jsonb DEFAULT NULL, tenant text DEFAULT NULL,
                           ttl interval DEFAULT NULL, lease interval DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS idem.claim_result
AS 'MODULE_PATHNAME', 'idem_claim' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.claim(text, text, jsonb, text, interval, interval, interval) IS
'Claims (scope, tenant, key) for this transaction, or with lease for that long beyond it, or returns the stored answer of the operation that completed under it. Waits for a claim in flight, at most the scope''s wait. A leased claim whose lease is over is taken over: attempt + 1, with its recovery point. Raises ID001 in_progress, ID002 key_conflict, ID003 or the stored SQLSTATE for a stored failure, ID007 invalid_key, ID008 unknown_scope, ID009 limit_exceeded, ID010 stale_key, 40001, 42501, 22021, 22023, 22004, 54000.';

CREATE FUNCTION idem.try_claim(scope text, key text, request jsonb DEFAULT NULL, tenant text DEFAULT NULL,
                               ttl interval DEFAULT NULL, lease interval DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS idem.claim_result
AS 'MODULE_PATHNAME', 'idem_try_claim' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.try_claim(text, text, jsonb, text, interval, interval, interval) IS
'As idem.claim(), but every outcome (claimed, completed, failed, in_progress, conflict, stale_key, limited) comes back as data, and it does not wait unless wait is given. Raises ID007 invalid_key, ID008 unknown_scope, 40001, 42501, 22021, 22023, 22004, 54000.';

CREATE FUNCTION idem.complete(token text, response jsonb DEFAULT NULL, status integer DEFAULT NULL,
                              headers jsonb DEFAULT NULL, body bytea DEFAULT NULL)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_complete' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.complete(text, jsonb, integer, jsonb, bytea) IS
'Stores the answer of a claimed operation, to be replayed to every retry until the TTL is over, and returns the response as it was given, though the scope may keep parts of it out of the record. It becomes visible when this transaction commits. Raises ID005 not_claimed, 40001, 54000 beyond idem.max_answer_size; for a leased claim also ID004 lease_lost, ID001 in_progress, ID009 limit_exceeded.';

CREATE FUNCTION idem.fail(token text, error jsonb, status integer DEFAULT NULL,
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

CREATE FUNCTION idem.release(token text)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.release(text) IS
'Gives a claim up without an answer: the key is free for others when this transaction ends. A leased claim keeps its attempts and recovery point for the next. Raises ID005 not_claimed; for a leased claim also ID004 lease_lost, ID001 in_progress, ID009 limit_exceeded, 40001.';

CREATE FUNCTION idem.renew(token text, lease interval DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'idem_renew' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.renew(text, interval) IS
'Heartbeat of a leased claim: the lease ends that long from now (NULL: the scope''s lease). Returns the new end. Raises ID004 lease_lost, ID005 not_claimed, ID001 in_progress, ID009 limit_exceeded, 40001, 22023.';

CREATE FUNCTION idem.checkpoint(token text, name text, state jsonb DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_checkpoint' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.checkpoint(text, text, jsonb) IS
'Stores a recovery point of a leased claim: its name (1 to 255 bytes) and state come back as recovery_point and recovery_state of the claim that takes over. Raises ID004 lease_lost, ID005 not_claimed, ID001 in_progress, ID009 limit_exceeded, 40001, 22004, 22023, 54000.';

CREATE FUNCTION idem.execute(scope text, key text, operation regprocedure, request jsonb DEFAULT NULL,
                             tenant text DEFAULT NULL, ttl interval DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS idem.execution
AS 'MODULE_PATHNAME', 'idem_execute' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.execute(text, text, regprocedure, jsonb, text, interval, interval) IS
'Claims the key, runs operation(request) with the caller''s rights and completes it with its result; or, when it fails for good, rolls its effect back and stores the failure. A retry gets what is stored. Transient errors (those of the moment or of a deployment in progress, and the scope''s transient_sqlstates) are raised and leave nothing. Raises ID001, ID002, ID003 (attempts exhausted), ID007, ID008, ID009, ID010, 40001, 42501, 22021, 22023, 22004, 54000.';

CREATE FUNCTION idem.lookup(scope text, key text, tenant text DEFAULT NULL)
RETURNS idem.record_info
AS 'MODULE_PATHNAME', 'idem_lookup' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.lookup(text, text, text) IS
'What is known of a key now: state absent, in_progress (with the holder''s process id and since when), completed or failed, with the stored answer. Never claims, never waits; works on a standby. Raises ID007, ID008, 42501, 22021.';

-- ---------------------------------------------------------------------------------------------
-- Keys
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.new_key()
RETURNS text
AS 'MODULE_PATHNAME', 'idem_new_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.new_key() IS
'A new idempotency key: a UUIDv7 in lower case with hyphens. Those of one session are in ascending order, whatever the clock does.';

CREATE FUNCTION idem.derive_key(VARIADIC parts text[])
RETURNS text
AS 'MODULE_PATHNAME', 'idem_derive_key' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem.derive_key(text[]) IS
'The idempotency key that these parts stand for: the SHA-256, in hexadecimal, of every part''s length and UTF-8, the same in every database. (''a'', ''bc'') differs from (''ab'', ''c''). Raises 22004 for a part that is null, 22023 for no parts, 22021.';

CREATE FUNCTION idem.child_key(token text, step text)
RETURNS text
AS 'MODULE_PATHNAME', 'idem_child_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.child_key(text, text) IS
'The idempotency key to hand to another service in this step of the operation: the same in every attempt, and nobody can tell from it which key it was made from. Takes the token of a claim of this transaction, open or not, or that of a leased claim of a scope that the caller may use. Raises ID004 lease_lost, ID005 not_claimed, 22004, 22023, 22021, 55000 without secrets.';

CREATE FUNCTION idem.current_key()
RETURNS text
AS 'MODULE_PATHNAME', 'idem_current_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.current_key() IS
'The key of the claim that this transaction made last and has not finished; NULL if there is none. Usable as the DEFAULT of a column. Raises 25000 in a parallel worker.';

-- ---------------------------------------------------------------------------------------------
-- Guard
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.require_claim()
RETURNS trigger
AS 'MODULE_PATHNAME', 'idem_require_claim' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.require_claim() IS
'Trigger that refuses to write unless this transaction has claimed a key in one of the scopes that are its arguments, and has not released it: BEFORE INSERT OR UPDATE OR DELETE, FOR EACH STATEMENT or ROW. Raises ID011 claim_required, ID008 unknown_scope, 22023 without arguments, 39P01.';

-- ---------------------------------------------------------------------------------------------
-- HTTP
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.http_status(sqlstate text)
RETURNS integer
AS 'MODULE_PATHNAME', 'idem_http_status' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem.http_status(text) IS
'The HTTP status that fits a SQLSTATE: 4xx for what the client must change, 503 for what a retry may cure, 500 otherwise. Raises 22004, 22023.';

CREATE FUNCTION idem.problem(sqlstate text, detail text DEFAULT NULL)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_problem' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem.problem(text, text) IS
'An error as an application/problem+json document (RFC 9457): type, title, status, sqlstate and, if given, detail. Raises 22004, 22023, 22021.';

-- ---------------------------------------------------------------------------------------------
-- Message consumers
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.once(scope text, key text, request jsonb DEFAULT NULL, tenant text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_once' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.once(text, text, jsonb, text) IS
'Claims and completes the key in one: true the first time, false for every retry. The effect that follows in this transaction commits or vanishes with it. Waits for a claim in flight, at most the scope''s wait. Raises ID001 in_progress, ID002 key_conflict, ID003 or the stored SQLSTATE for a stored failure, ID007 invalid_key, ID008 unknown_scope, ID009 limit_exceeded, ID010 stale_key, 40001, 42501, 22021, 22023, 22004, 54000.';

CREATE FUNCTION idem.once_each(scope text, keys text[], tenant text DEFAULT NULL)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'idem_once_each' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.once_each(text, text[], text) IS
'The keys that are new, each once and in the order of the array; they are finished from now on. For tens of thousands in one call: it takes no key locks, and waits for transactions that write the same keys as a unique index does. A key that is claimed under a running lease, completed or failed is not new. A concurrent atomic claim of such a key gets 40001 when it completes. Raises ID001 in_progress (claimed by this transaction), ID007 invalid_key, ID008 unknown_scope, ID009 limit_exceeded, ID010 stale_key, 40001, 42501, 22021, 22023, 22004, 54000.';

CREATE FUNCTION idem.advance(scope text, source text, seq bigint, tenant text DEFAULT NULL, contiguous boolean DEFAULT false)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_advance' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.advance(text, text, bigint, text, boolean) IS
'For ordered streams: true if seq is beyond all that the source has sent so far, which it is from now on, false for a duplicate. With contiguous, seq must be the next number (the first of a source may be any). Waits for a transaction that is advancing the source, at most the scope''s wait. Watermarks do not expire. Raises ID001 in_progress, ID007 invalid_key, ID008 unknown_scope, ID009 limit_exceeded, ID012 sequence_gap, 40001, 42501, 22021, 22004, 54000.';

-- ---------------------------------------------------------------------------------------------
-- Scopes: administered by whoever is granted EXECUTE on these functions
-- ---------------------------------------------------------------------------------------------

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

CREATE FUNCTION idem.drop_scope(name text)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_drop_scope_0_2' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem.drop_scope(text) FROM PUBLIC;
COMMENT ON FUNCTION idem.drop_scope(text) IS
'Drops a scope. All its records count as expired when this transaction commits, and the purger deletes them; a scope of the same name starts anew. For superusers and whoever is granted EXECUTE; needs the privileges of the scope''s owner. Raises ID008 unknown_scope, 42501.';

-- A view of others' rows must not tell of them even how the server went about a query: a barrier lets
-- comparisons of text and the like through to the tables, and EXPLAIN ANALYZE counts what they found
-- there. OFFSET 0 keeps every condition out of a view; so each of them ends with it.
CREATE VIEW idem.scopes WITH (security_barrier) AS
    SELECT name, owner, ttl, lease, wait, request_required, request_exclude, tenant_required,
           reject_stale_keys, max_attempts, claims_per_minute, weak_keys, store_response, response_exclude,
           transient_sqlstates
      FROM idem.scope
     WHERE pg_catalog.pg_has_role(owner::pg_catalog.oid, 'USAGE')
    OFFSET 0;
COMMENT ON VIEW idem.scopes IS 'the scopes whose owner''s privileges the current role has';
GRANT SELECT ON idem.scopes TO PUBLIC;

-- ---------------------------------------------------------------------------------------------
-- Keys
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.key_weakness(key text)
RETURNS text
AS 'MODULE_PATHNAME', 'idem_key_weakness' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem.key_weakness(text) IS
'Why a key is likely to be used twice for different operations: timestamp, number, short or repetitive; NULL when nothing in its form says so. Raises 22004.';

CREATE VIEW idem.weak_keys WITH (security_barrier) AS
    SELECT s.name AS scope, r.tenant, idem.key_weakness(r.key) AS weakness, pg_catalog.count(*) AS keys
      FROM idem.record r JOIN idem.scope s ON s.id = r.scope
     WHERE pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
       AND r.expires > pg_catalog.statement_timestamp()
       AND idem.key_weakness(r.key) IS NOT NULL
     GROUP BY s.name, r.tenant, idem.key_weakness(r.key)
    OFFSET 0;
COMMENT ON VIEW idem.weak_keys IS 'how many weak keys the unexpired records have, of the scopes whose owner''s privileges the current role has; reads all records';
GRANT SELECT ON idem.weak_keys TO PUBLIC;

-- ---------------------------------------------------------------------------------------------
-- Statistics
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.scope_stats(OUT scope text, OUT claims bigint, OUT replays bigint, OUT in_flight bigint,
                                 OUT waits bigint, OUT wait_time interval, OUT conflicts bigint, OUT takeovers bigint,
                                 OUT completions bigint, OUT failures bigint, OUT releases bigint, OUT stale bigint,
                                 OUT weak bigint, OUT limited bigint, OUT expired_reused bigint, OUT purged bigint,
                                 OUT stats_reset timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_scope_stats' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.scope_stats() IS
'What has happened in each scope that the current role may use (members of pg_monitor: in all); the view idem.stats shows it. No rows unless idem is preloaded.';

CREATE VIEW idem.stats WITH (security_barrier) AS SELECT * FROM idem.scope_stats();
COMMENT ON VIEW idem.stats IS 'what has happened, since stats_reset, in each scope whose owner''s privileges the current role has; members of pg_monitor see all scopes';
GRANT SELECT ON idem.stats TO PUBLIC;

CREATE FUNCTION idem.stats_reset(scope text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_stats_reset' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem.stats_reset(text) FROM PUBLIC;
COMMENT ON FUNCTION idem.stats_reset(text) IS
'Sets the statistics of a scope, or of all scopes of this database, to zero; not undone by a rollback. For superusers and whoever is granted EXECUTE. Raises ID008.';

-- ---------------------------------------------------------------------------------------------
-- Records and claims, as those who use a scope see them
-- ---------------------------------------------------------------------------------------------

CREATE VIEW idem.records WITH (security_barrier) AS
    SELECT s.name AS scope, r.tenant, r.key,
           CASE WHEN r.state = 'c' THEN 'completed'
                WHEN r.state = 'f' OR (r.attempt >= s.max_attempts AND r.lease_end <= pg_catalog.statement_timestamp())
                THEN 'failed' ELSE 'in_progress' END AS state,
           r.attempt, r.status, r.created AS created_at, r.expires AS expires_at, r.lease_end, r.recovery_point, r.redacted,
           coalesce(pg_catalog.pg_column_size(r.response), 0)::bigint + coalesce(pg_catalog.pg_column_size(r.headers), 0)
           + coalesce(pg_catalog.pg_column_size(r.body), 0) + coalesce(pg_catalog.pg_column_size(r.error), 0) AS answer_bytes
      FROM idem.record r JOIN idem.scope s ON s.id = r.scope
     WHERE pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
       AND r.expires > pg_catalog.statement_timestamp()
    OFFSET 0;
COMMENT ON VIEW idem.records IS 'the unexpired records, without their answers, of the scopes whose owner''s privileges the current role has; states as idem.lookup() says them; answer_bytes is what the stored answer takes, compressed';
GRANT SELECT ON idem.records TO PUBLIC;

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
CREATE VIEW idem.in_flight WITH (security_barrier) AS
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
GRANT SELECT ON idem.in_flight TO PUBLIC;

CREATE VIEW idem.streams WITH (security_barrier) AS
    SELECT s.name AS scope, w.tenant, w.source, w.seq, w.updated AS updated_at
      FROM idem.watermark w JOIN idem.scope s ON s.id = w.scope
     WHERE pg_catalog.pg_has_role(s.owner::pg_catalog.oid, 'USAGE')
    OFFSET 0;
COMMENT ON VIEW idem.streams IS 'how far idem.advance() has come with each source, of the scopes whose owner''s privileges the current role has';
GRANT SELECT ON idem.streams TO PUBLIC;

-- ---------------------------------------------------------------------------------------------
-- Maintenance
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.forget(scope text, key text, tenant text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_forget_0_2' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem.forget(text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION idem.forget(text, text, text) IS
'Deletes the record of a key, so that the next claim runs the operation again. True if there was one that had not expired. Waits for a claim in flight, at most the scope''s wait. For superusers and whoever is granted EXECUTE; needs the privileges of the scope''s owner. Raises ID001 in_progress, ID007 invalid_key, ID008 unknown_scope, 40001, 42501.';

CREATE FUNCTION idem.purge(max_records integer DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_purge' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem.purge(integer) FROM PUBLIC;
COMMENT ON FUNCTION idem.purge(integer) IS
'Deletes expired records and those of dropped scopes, at most max_records (default 10000), going on where the last purge stopped, and returns how many. Where the records arrive by subscription it deletes none: the publisher purges. One transaction: call it from cron. For superusers and whoever is granted EXECUTE. Raises 22023.';

CREATE FUNCTION idem.rotate_secret()
RETURNS integer
AS 'MODULE_PATHNAME', 'idem_rotate_secret' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem.rotate_secret() FROM PUBLIC;
COMMENT ON FUNCTION idem.rotate_secret() IS
'Makes a new secret for the fingerprints of requests to come, and returns its id. Old secrets are kept: stored fingerprints are compared under the one that they were made with. For superusers and whoever is granted EXECUTE.';

-- ---------------------------------------------------------------------------------------------
-- Sizing
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.retention_window(caller_deadline interval, retry_horizon interval,
                                      network_delay interval, clock_skew interval)
RETURNS interval
AS 'MODULE_PATHNAME', 'idem_retention_window' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem.retention_window(interval, interval, interval, interval) IS
'How long keys must be remembered for every retry to find its answer: the sum of the caller''s deadline for one try, the time over which it retries, what the network may delay and the clocks may differ. Raises 22004, 22023.';

CREATE FUNCTION idem.records_needed(claims_per_second double precision, ttl interval,
                                    margin double precision DEFAULT 0.2)
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_records_needed' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem.records_needed(double precision, interval, double precision) IS
'How many records are alive at a time: rate times TTL times (1 + margin), rounded up. Raises 22004, 22023, 22003.';

CREATE FUNCTION idem.collision_probability(records bigint, entropy_bits integer)
RETURNS double precision
AS 'MODULE_PATHNAME', 'idem_collision_probability' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem.collision_probability(bigint, integer) IS
'The chance that any two of so many random keys of so many bits are the same, n(n-1)/(2*2^bits), at most 1. Raises 22004, 22023.';

-- ---------------------------------------------------------------------------------------------
-- Health: figures without keys, for those who watch the server too
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.preloaded()
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_preloaded' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.preloaded() IS
'Whether the server has preloaded idem: the purge worker, statistics, limits and the list of open atomic claims need it.';

CREATE FUNCTION idem.survey(of_scope text DEFAULT NULL, max_blocks integer DEFAULT NULL, OUT scope text,
                            OUT in_progress bigint, OUT completed bigint, OUT failed bigint, OUT lapsed bigint,
                            OUT exhausted bigint, OUT weak bigint, OUT answer_bytes bigint, OUT oldest timestamptz,
                            OUT newest timestamptz, OUT next_expiry timestamptz, OUT lapsed_since timestamptz,
                            OUT expired bigint, OUT expired_since timestamptz, OUT coverage double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_survey' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.survey(text, integer) IS
'Counts the records of a scope, or of each scope that the current role may use (members of pg_monitor: of all). Reads at most max_blocks blocks (default 2048), evenly spread, and extrapolates; coverage is how much of the table that was. Raises ID008 unknown_scope, 42501, 22023.';

CREATE VIEW idem.overview WITH (security_barrier) AS
    SELECT v.scope, s.owner, s.ttl, s.lease, s.wait, s.max_attempts, s.claims_per_minute, s.weak_keys,
           v.in_progress + v.completed + v.failed AS live, v.in_progress, v.completed, v.failed, v.lapsed, v.lapsed_since,
           v.exhausted, v.weak, v.answer_bytes, v.oldest, v.newest, v.next_expiry, v.expired, v.expired_since, v.coverage
      FROM idem.survey() v LEFT JOIN idem.scope s ON s.name = v.scope
    OFFSET 0;
COMMENT ON VIEW idem.overview IS 'each scope and what its records come to, counted by idem.survey(); members of pg_monitor see all scopes, and under a NULL the records of dropped ones';
GRANT SELECT ON idem.overview TO PUBLIC;

-- The table cannot be read on a standby, where the view is read all the same.
CREATE FUNCTION idem.purge_block()
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_purge_block' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.purge_block() IS
'The block of idem.record at which the next purge begins; on a standby 0, where a promotion lets it begin.';

CREATE VIEW idem.storage WITH (security_barrier) AS
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
GRANT SELECT ON idem.storage TO pg_monitor;

-- The rules of idem.health() that take a survey: one for all. A retry may come while its caller waits, and
-- as often as an operation whose lease is over is begun again; delay and skew are idem's assumptions.
-- The bounds on what is multiplied keep intervals in range. A scope without an owner is one that the
-- survey, which sees the newest, found, and the statement's snapshot does not.
CREATE FUNCTION idem.findings(long_held interval DEFAULT '5 minutes', OUT check_name text, OUT status text,
                                    OUT scope text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
AS $$
WITH all_scopes AS MATERIALIZED (SELECT * FROM idem.overview),
known AS MATERIALIZED (
    SELECT o.*, CASE WHEN o.coverage < 1 THEN 'about ' ELSE '' END AS about,
           idem.retention_window(least(o.wait, '30 days'), least(o.lease, '30 days') * least(coalesce(o.max_attempts, 1), 100),
                                 '30 seconds', '5 seconds') AS horizon,
           t.claims, statement_timestamp() - t.stats_reset AS counted_for
      FROM all_scopes o LEFT JOIN idem.stats t ON t.scope = o.scope
     WHERE o.owner IS NOT NULL),
sized AS (
    SELECT *, idem.records_needed(claims / greatest(extract(epoch FROM counted_for), 1)::double precision, ttl) AS needed
      FROM known WHERE claims IS NOT NULL)
SELECT 'owners', 'fail', k.scope,
       format('The role that owned scope "%s" was dropped: nobody but superusers may use it.', k.scope),
       format('SELECT idem.alter_scope(%L, owner => ''NAME''), as a superuser, NAME being the new owner.', k.scope)
  FROM known k WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = k.owner)
UNION ALL
SELECT 'retention', 'warn', k.scope,
       format('Scope "%s" remembers keys for %s, but a retry may come after %s (its wait, its leases, 30 seconds on the network, 5 of clock skew): it would be executed again.',
              k.scope, k.ttl, k.horizon),
       format('SELECT idem.alter_scope(%L, ttl => %L)', k.scope, k.horizon)
  FROM known k WHERE k.ttl < k.horizon
UNION ALL
SELECT 'sizing', 'warn', s.scope,
       format('Scope "%s" holds %s%s records, but its %s claims within %s and its TTL of %s account for %s.', s.scope, s.about, s.live,
              s.claims, date_trunc('second', s.counted_for), s.ttl, s.needed),
       format('Either claims are given a longer TTL than the scope''s, and it should have that: SELECT idem.alter_scope(%L, ttl => ...); or they came in a burst, and claims_per_minute bounds it.',
              s.scope)
  FROM sized s WHERE s.counted_for >= s.ttl AND s.live >= 10000 AND s.live > 2 * s.needed
UNION ALL
SELECT 'leases', 'warn', k.scope,
       format('In scope "%s", claims whose lease is over, the first since %s, and that nobody has taken over: %s%s.', k.scope,
              date_trunc('second', k.lapsed_since), k.about, k.lapsed),
       format('Claim them again to finish them, or give them up with idem.forget(): SELECT tenant, key, lease_end FROM idem.in_flight WHERE scope = %L AND lapsed',
              k.scope)
  FROM known k WHERE k.lapsed > 0 AND k.lapsed_since <= statement_timestamp() - coalesce(long_held, '5 minutes')
UNION ALL
SELECT 'attempts', 'warn', k.scope,
       format('In scope "%s", operations that have used up their %s attempts, so that claims of them get ID003: %s%s.', k.scope,
              k.max_attempts, k.about, k.exhausted),
       format('SELECT idem.alter_scope(%L, max_attempts => %s) lets them be tried again; or give them up with idem.forget(): SELECT tenant, key FROM idem.records WHERE scope = %L AND state = ''failed'' AND lease_end IS NOT NULL',
              k.scope, k.max_attempts + 1, k.scope)
  FROM known k WHERE k.exhausted > 0
UNION ALL
SELECT 'weak keys', 'warn', k.scope,
       format('In scope "%s", keys that are easily used twice for different operations: %s%s.', k.scope, k.about, k.weak),
       format('Look at idem.weak_keys, have the clients send UUIDs, and refuse such keys: SELECT idem.alter_scope(%L, weak_keys => ''reject'')',
              k.scope)
  FROM known k WHERE k.weak > 0 AND k.weak_keys <> 'reject'
UNION ALL
SELECT 'limits', 'warn', k.scope,
       format('Scope "%s" admits %s claims a minute, which is not kept: idem is not preloaded.', k.scope, k.claims_per_minute),
       format('Set shared_preload_libraries = ''idem'' and restart the server; or SELECT idem.alter_scope(%L, claims_per_minute => -1)',
              k.scope)
  FROM known k WHERE k.claims_per_minute IS NOT NULL AND NOT idem.preloaded()
UNION ALL
SELECT 'statistics', 'warn', k.scope,
       format('Scope "%s" has no statistics: all idem.counted_scopes = %s places are taken.', k.scope,
              current_setting('idem.counted_scopes')),
       'Set idem.counted_scopes higher (ALTER SYSTEM SET idem.counted_scopes = ...) and restart the server.'
  FROM known k WHERE k.claims IS NULL AND idem.preloaded()
UNION ALL
SELECT 'purge', CASE WHEN w.since < statement_timestamp() - interval '1 day' THEN 'fail'
                     WHEN w.since < statement_timestamp() - greatest('1 hour', 40 * w.naptime) THEN 'warn' ELSE 'ok' END, NULL,
       CASE WHEN w.expired = 0 THEN 'No' WHEN w.sampled THEN 'About ' || w.expired ELSE w.expired::text END
       || ' expired records wait to be purged' || coalesce(', the first since ' || date_trunc('second', w.since), '') || '.',
       'SELECT idem.purge(1000000), again until it returns 0; if it is the worker that does not keep up, raise idem.purge_rate.'
  FROM (SELECT coalesce(sum(o.expired), 0)::bigint AS expired, min(o.expired_since) AS since, bool_or(o.coverage < 1) AS sampled,
               coalesce(current_setting('idem.purge_naptime', true), '0')::interval AS naptime
          FROM all_scopes o) w
$$;
COMMENT ON FUNCTION idem.findings(interval) IS
'The part of idem.health() that is about records: of the scopes that the current role may use (members of pg_monitor: of all).';

CREATE FUNCTION idem.health(long_held interval DEFAULT '5 minutes', OUT check_name text, OUT status text, OUT scope text,
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
REVOKE ALL ON FUNCTION idem.health(interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION idem.health(interval) TO pg_monitor;
COMMENT ON FUNCTION idem.health(interval) IS
'Is everything well? A row for each check: ok, warn or fail, with a detail, and a hint that repairs it; one for each scope that a check finds fault with. long_held (NULL: 5 minutes) is how long a lease may be over, and a transaction may hold a key. For members of pg_monitor; shows no key.';

CREATE FUNCTION idem.report(scope text)
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
