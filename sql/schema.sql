-- idem: the schema, its tables and result types.
--
-- The Makefile puts idem--VERSION.sql together from schema.sql, functions.sql,
-- functions_http.sql, views.sql and health.sql, in this order.
--
-- Users have no privileges on the tables. The functions check the caller against the scope's owner
-- and then read and write the tables themselves. There is no OR REPLACE and no IF NOT EXISTS here:
-- an object that exists already belongs to another role, and CREATE EXTENSION must fail on it.
\echo Use "CREATE EXTENSION idem" to load this file. \quit

CREATE SCHEMA idem;

GRANT USAGE ON SCHEMA idem TO PUBLIC;

COMMENT ON SCHEMA idem IS
    'idempotency keys: claim an operation, complete it, and every retry gets the first answer';

-- What the views and functions of schema idem are made of. The server checks USAGE for the body of
-- an SQL function against the caller, and EXECUTE for the function of a view.
CREATE SCHEMA idem_internal;

GRANT USAGE ON SCHEMA idem_internal TO PUBLIC;

COMMENT ON SCHEMA idem_internal IS
    'parts of the extension idem, which change without notice: call the functions of schema idem';

-- ---------------------------------------------------------------------------------------------
-- Tables
-- ---------------------------------------------------------------------------------------------

-- A fingerprint has the number of the list request_exclude that it was made with: its position in
-- request_lists, which keeps all of them. So retries are compared as before when the list changes.
-- A scope's id is part of every key digest, so it is never reused. pg_dump includes the sequence.
CREATE SEQUENCE idem.scope_id AS integer;

CREATE TABLE idem.scope (
    id                  integer     NOT NULL PRIMARY KEY
                                    DEFAULT pg_catalog.nextval('idem.scope_id'),
    name                text        NOT NULL UNIQUE,
    owner               regrole     NOT NULL,
    request_lists       text[]      NOT NULL DEFAULT '{}',
    -- The settings, in the order of src/pg/scope_settings.hpp.
    ttl                 interval    NOT NULL DEFAULT '24 hours',
    lease               interval    NOT NULL DEFAULT '1 minute',
    wait                interval    NOT NULL DEFAULT '10 seconds',
    request_required    boolean     NOT NULL DEFAULT false,
    request_exclude     text[]      NOT NULL DEFAULT '{}',
    tenant_required     boolean     NOT NULL DEFAULT false,
    reject_stale_keys   boolean     NOT NULL DEFAULT false,
    max_attempts        integer,
    claims_per_minute   integer,
    weak_keys           text        NOT NULL DEFAULT 'allow',
    store_response      boolean     NOT NULL DEFAULT true,
    response_exclude    text[]      NOT NULL DEFAULT '{}',
    final_sqlstates     text[]      NOT NULL DEFAULT '{}',
    store_request       text        NOT NULL DEFAULT 'never',
    answer_ttl          interval,
    min_ttl             interval,
    header_exclude      text[]      NOT NULL
        DEFAULT '{set-cookie,cookie,authorization,proxy-authorization,www-authenticate}',
    tenant_from         text        NOT NULL DEFAULT 'argument',
    max_answer_size     integer     NOT NULL DEFAULT 65536,
    records             boolean     NOT NULL DEFAULT false,
    CONSTRAINT scope_request_exclude CHECK (
        request_exclude OPERATOR(pg_catalog.=) '{}'
        OR request_exclude::text OPERATOR(pg_catalog.=) ANY (request_lists))
);

ALTER SEQUENCE idem.scope_id OWNED BY idem.scope.id;

COMMENT ON TABLE idem.scope IS
    'The scopes. Written by idem.create_scope(), read through the view idem.scopes.';

-- The ids of dropped scopes are never assigned again, and the purge deletes the records of these
-- scopes. A table holds them because a sequence is not replicated, and because a scope that is
-- missing from idem.scope may still be on its way from a publisher.
CREATE TABLE idem.dropped_scope (
    id                  integer     NOT NULL PRIMARY KEY,
    dropped             timestamptz NOT NULL
);

COMMENT ON TABLE idem.dropped_scope IS
    'The ids of dropped scopes, which are never assigned again. Written by idem.drop_scope().';

-- The type of the column digest in every record table but idem.record. It marks these tables: the
-- catalog's dependencies on the type lead to all of them. Only superusers and its owner may use it.
CREATE DOMAIN idem.key_digest AS uuid;

REVOKE ALL ON TYPE idem.key_digest FROM PUBLIC;

COMMENT ON DOMAIN idem.key_digest IS
    'The digest of a key, in the tables that idem.create_record_table() creates.';

-- One row per operation, written when an atomic claim finishes or a leased claim begins. The digest
-- finds the row, and the full identity in the row decides. Columns of fixed width come first, so
-- that a row has no padding. New columns come last, so that an update adds the same; up to 72
-- columns, the null bitmap takes no further byte.
--
-- key_uuid stands in place of key if the key is a UUID in canonical form, because its 16 bytes give
-- the text back exactly. attempt is NULL for the first attempt, redacted is NULL if it is false.
--
-- lease_end and error mean one thing while the operation is unfinished (state p), and another when
-- it is finished: the end of the lease and the last error, or when it finished and the failure. A
-- finished record without a lease_end finished when it was created. extra_attempts
-- belongs to unfinished operations.
CREATE TABLE idem.record (
    digest              uuid        NOT NULL PRIMARY KEY,
    created             timestamptz NOT NULL,
    expires             timestamptz NOT NULL,
    lease_end           timestamptz,
    nonce               bigint,
    scope               integer     NOT NULL,
    attempt             integer,
    status              integer,
    state               "char"      NOT NULL,
    redacted            boolean,
    tenant              text        NOT NULL,
    key                 text,
    fingerprint         bytea,
    recovery_point      text,
    recovery_state      jsonb,
    headers             jsonb,
    response            jsonb,
    body                bytea,
    error               jsonb,
    key_uuid            uuid,
    request             jsonb,
    extra_attempts      integer,
    -- For rows that arrive by COPY, by a subscription or by a superuser's statement; idem's
    -- functions write rows without the executor.
    CONSTRAINT record_key CHECK ((key IS NULL) <> (key_uuid IS NULL))
);

-- The unfinished operations of a scope. Atomic claims write finished rows, which need no entry;
-- renewals and recovery points change neither column, so that these updates stay heap-only.
CREATE INDEX record_unfinished ON idem.record (scope) WHERE state = 'p';

COMMENT ON TABLE idem.record IS
    'The records of keys. Written when a claim finishes or a leased claim begins, read through '
    'idem.claim() and idem.lookup(). lease_end is when the lease of an unfinished operation ends, '
    'or when a finished one finished (NULL: when it was created); nonce (the random bits of the '
    'token) belongs to leased claims.';

-- How far each source of an ordered stream has come. The digests never equal those of keys. Every
-- page has free space, so that moving a watermark is a HOT update.
CREATE TABLE idem.watermark (
    digest              uuid        NOT NULL PRIMARY KEY,
    seq                 bigint      NOT NULL,
    updated             timestamptz NOT NULL,
    scope               integer     NOT NULL,
    tenant              text        NOT NULL,
    source              text        NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE idem.watermark IS
    'The highest sequence number of each source. Written by idem.advance(); never expires.';

-- The permanent seed (for lock ids and child keys) and the fingerprint secrets. The first scope
-- creates them. pg_dump includes them: without them, a restored record would conflict with the
-- retries of its own request.
CREATE TABLE idem.secret (
    id                  integer     NOT NULL PRIMARY KEY,
    purpose             text        NOT NULL CHECK (purpose IN ('seed', 'fingerprint')),
    secret              bytea       NOT NULL CHECK (pg_catalog.length(secret) = 32),
    created             timestamptz NOT NULL
);

COMMENT ON TABLE idem.secret IS
    'The secrets of this database. Only idem reads them.';

-- Where the next purge begins: the row without an SQLSTATE. Each other row is a place where the
-- purge passed over rows, with the error that it met there. The table is unlogged, so that it is
-- never published: a table without a key stops a subscription at the first update, and a table with
-- a key would collide with the subscriber's own row. A crash empties it, and the next purge begins
-- at the first block.
CREATE UNLOGGED TABLE idem.sweep (
    hand                bigint      NOT NULL,
    sqlstate            text
);

INSERT INTO idem.sweep VALUES (0);

COMMENT ON TABLE idem.sweep IS
    'The block at which the next purge begins, and those in which it passed over rows.';

-- Every session caches scopes and secrets. idem's functions announce the changes that they make.
-- These triggers announce all others, including those of a subscription's apply workers
-- (session_replication_role = replica).
CREATE FUNCTION idem_internal.announce_change()
RETURNS trigger
AS 'MODULE_PATHNAME', 'idem_announce_change'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

REVOKE ALL ON FUNCTION idem_internal.announce_change FROM PUBLIC;

COMMENT ON FUNCTION idem_internal.announce_change IS
    'Trigger function of idem.scope and idem.secret that makes every session read them again. '
    'Raises 39P01.';

CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE ON idem.scope
    FOR EACH ROW EXECUTE FUNCTION idem_internal.announce_change();
ALTER TABLE idem.scope ENABLE ALWAYS TRIGGER announce_change;

CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE ON idem.secret
    FOR EACH ROW EXECUTE FUNCTION idem_internal.announce_change();
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
    claimed             boolean,
    outcome             text,
    token               text,
    attempt             integer,
    response            jsonb,
    status              integer,
    headers             jsonb,
    body                bytea,
    error               jsonb,
    retry_after         interval,
    recovery_point      text,
    recovery_state      jsonb,
    created_at          timestamptz,
    expires_at          timestamptz,
    redacted            boolean,
    differs             text[],
    completed_at        timestamptz
);

COMMENT ON TYPE idem.claim_result IS
    'The result of idem.claim() and idem.try_claim(): the token of a new claim, or the stored '
    'answer.';

COMMENT ON COLUMN idem.claim_result.claimed IS
    'Whether the caller owns the operation.';
COMMENT ON COLUMN idem.claim_result.outcome IS
    'claimed, completed, failed, in_progress, conflict, stale_key or limited.';
COMMENT ON COLUMN idem.claim_result.token IS
    'The handle of the claim; NULL unless claimed.';
COMMENT ON COLUMN idem.claim_result.attempt IS
    'The attempt that this claim is, or that stored the answer. The first is 1.';
COMMENT ON COLUMN idem.claim_result.response IS
    'The stored response.';
COMMENT ON COLUMN idem.claim_result.status IS
    'The stored status.';
COMMENT ON COLUMN idem.claim_result.headers IS
    'The stored headers.';
COMMENT ON COLUMN idem.claim_result.body IS
    'The stored body.';
COMMENT ON COLUMN idem.claim_result.error IS
    'The stored failure. If the attempts are exhausted, the last error that idem.release() '
    'was given; NULL if it was given none.';
COMMENT ON COLUMN idem.claim_result.retry_after IS
    'When to come back, for in_progress and limited. NULL where waiting does not help, '
    'because this transaction itself holds the key or too many keys.';
COMMENT ON COLUMN idem.claim_result.recovery_point IS
    'When claimed, the recovery point of the attempt that was taken over.';
COMMENT ON COLUMN idem.claim_result.recovery_state IS
    'The state of the recovery point.';
COMMENT ON COLUMN idem.claim_result.created_at IS
    'When the operation was first claimed. For in_progress, since when the key has been held; NULL '
    'if that is not known.';
COMMENT ON COLUMN idem.claim_result.expires_at IS
    'When the answer expires; NULL until completed.';
COMMENT ON COLUMN idem.claim_result.redacted IS
    'Of a stored answer, whether the scope kept a part of it out.';
COMMENT ON COLUMN idem.claim_result.differs IS
    'For conflict with a stored request, the paths of the members that differ: those with another '
    'value, then the new ones, then the missing ones; 10 at most. NULL if that is not known.';
COMMENT ON COLUMN idem.claim_result.completed_at IS
    'When the operation completed or failed. If its claim was atomic and took over no other '
    'attempt, that is when it was claimed: both happened in one transaction.';

CREATE TYPE idem.take_result AS (
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

COMMENT ON TYPE idem.take_result IS
    'The result of idem.take(): an unfinished operation with what is needed to finish it. All '
    'columns are NULL if none was due.';

COMMENT ON COLUMN idem.take_result.token IS
    'The handle of the new attempt.';
COMMENT ON COLUMN idem.take_result.key IS
    'The key of the operation.';
COMMENT ON COLUMN idem.take_result.tenant IS
    'The tenant; empty if there is none.';
COMMENT ON COLUMN idem.take_result.request IS
    'The request, if the scope had store_request when the operation was begun.';
COMMENT ON COLUMN idem.take_result.attempt IS
    'The new attempt.';
COMMENT ON COLUMN idem.take_result.recovery_point IS
    'The last recovery point of the operation.';
COMMENT ON COLUMN idem.take_result.recovery_state IS
    'The state of the recovery point.';
COMMENT ON COLUMN idem.take_result.last_error IS
    'The last error that idem.release() was given.';
COMMENT ON COLUMN idem.take_result.created_at IS
    'When the operation was first claimed.';
COMMENT ON COLUMN idem.take_result.expires_at IS
    'When the record expires, unless the lease is renewed.';

CREATE TYPE idem.lookup_result AS (
    state               text,
    attempt             integer,
    response            jsonb,
    status              integer,
    headers             jsonb,
    body                bytea,
    error               jsonb,
    created_at          timestamptz,
    expires_at          timestamptz,
    lease_end           timestamptz,
    holder_pid          integer,
    since               timestamptz,
    redacted            boolean,
    completed_at        timestamptz
);

COMMENT ON TYPE idem.lookup_result IS
    'The result of idem.lookup(). state is absent, in_progress, completed or failed.';

COMMENT ON COLUMN idem.lookup_result.state IS
    'absent, in_progress, completed or failed.';
COMMENT ON COLUMN idem.lookup_result.attempt IS
    'The current attempt.';
COMMENT ON COLUMN idem.lookup_result.response IS
    'The stored response.';
COMMENT ON COLUMN idem.lookup_result.status IS
    'The stored status.';
COMMENT ON COLUMN idem.lookup_result.headers IS
    'The stored headers.';
COMMENT ON COLUMN idem.lookup_result.body IS
    'The stored body.';
COMMENT ON COLUMN idem.lookup_result.error IS
    'The stored failure, or the last error if the attempts are exhausted.';
COMMENT ON COLUMN idem.lookup_result.created_at IS
    'When the operation was first claimed.';
COMMENT ON COLUMN idem.lookup_result.expires_at IS
    'When the record expires.';
COMMENT ON COLUMN idem.lookup_result.lease_end IS
    'Of a leased claim in progress, when its lease ends, or when it is due after its release.';
COMMENT ON COLUMN idem.lookup_result.holder_pid IS
    'The process whose transaction works on the operation. NULL for a prepared transaction, '
    'and between the transactions of a leased claim.';
COMMENT ON COLUMN idem.lookup_result.since IS
    'When the record was created, or the holder''s transaction began.';
COMMENT ON COLUMN idem.lookup_result.redacted IS
    'Whether the scope kept a part of the answer out.';
COMMENT ON COLUMN idem.lookup_result.completed_at IS
    'When the operation completed or failed, as in idem.claim_result; NULL if it has not, even if '
    'its attempts are exhausted.';

CREATE TYPE idem.execute_result AS (
    outcome             text,
    replayed            boolean,
    response            jsonb,
    error               jsonb,
    redacted            boolean,
    completed_at        timestamptz
);

COMMENT ON TYPE idem.execute_result IS
    'The result of idem.execute(): outcome is completed, with the response, or failed, with the '
    'error. replayed is true if it comes from the record; redacted is true if the scope kept a '
    'part of it out of the record.';

COMMENT ON COLUMN idem.execute_result.outcome IS
    'completed or failed.';
COMMENT ON COLUMN idem.execute_result.replayed IS
    'Whether this is the stored answer and the operation did not run.';
COMMENT ON COLUMN idem.execute_result.response IS
    'The response.';
COMMENT ON COLUMN idem.execute_result.error IS
    'The failure: sqlstate, message, detail and hint.';
COMMENT ON COLUMN idem.execute_result.redacted IS
    'Whether the scope kept a part of the stored answer out.';
COMMENT ON COLUMN idem.execute_result.completed_at IS
    'When the operation completed or failed, as in idem.claim_result.';
