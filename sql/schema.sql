-- The records and watermarks of the extension, and the triggers of its caches.

-- The type of the column digest in every record table but idem.record. It marks these tables: the
-- catalog's dependencies on the type lead to all of them. Only superusers and its owner may use it.
CREATE DOMAIN idem.key_digest AS uuid;

REVOKE ALL ON TYPE idem.key_digest FROM PUBLIC;

COMMENT ON DOMAIN idem.key_digest IS
    'The digest of a key, in the tables that idem.create_record_table() creates.';

-- A regrole whose role was dropped is written as a number, and read as whichever role has that
-- number on the server that a dump is restored to: it would own the scope, and read its answers.
-- This type is written as a name or as nobody, and reads no number.
CREATE TYPE idem_internal.role;

CREATE FUNCTION idem_internal.role_in(name cstring)
RETURNS idem_internal.role
AS 'MODULE_PATHNAME', 'idem_role_in'
LANGUAGE C STABLE STRICT PARALLEL SAFE;

CREATE FUNCTION idem_internal.role_out(owner idem_internal.role)
RETURNS cstring
AS 'MODULE_PATHNAME', 'idem_role_out'
LANGUAGE C STABLE STRICT PARALLEL SAFE;

CREATE TYPE idem_internal.role (
    INPUT = idem_internal.role_in,
    OUTPUT = idem_internal.role_out,
    LIKE = pg_catalog.oid
);

CREATE CAST (idem_internal.role AS pg_catalog.oid) WITHOUT FUNCTION AS IMPLICIT;

CREATE CAST (idem_internal.role AS pg_catalog.regrole) WITHOUT FUNCTION AS IMPLICIT;

CREATE CAST (pg_catalog.regrole AS idem_internal.role) WITHOUT FUNCTION AS ASSIGNMENT;

COMMENT ON TYPE idem_internal.role IS
    'The owner of a scope: a role, or nobody (-) if the role was dropped.';

COMMENT ON CAST (idem_internal.role AS pg_catalog.oid) IS
    'The number of a role.';

COMMENT ON CAST (idem_internal.role AS pg_catalog.regrole) IS
    'The role, with what PostgreSQL does with roles.';

COMMENT ON CAST (pg_catalog.regrole AS idem_internal.role) IS
    'The role as the owner of a scope.';

COMMENT ON FUNCTION idem_internal.role_in IS
    'Reads the name of a role; for a number, or -, nobody.';

COMMENT ON FUNCTION idem_internal.role_out IS
    'Writes the name of a role; - if there is none, or if it was dropped.';

ALTER TABLE idem.scope ALTER COLUMN owner TYPE idem_internal.role;

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

-- Where the next purge begins: the row without an SQLSTATE. Each other row is a place where the
-- purge passed over rows, with the error that it met there. The table is unlogged, so that it is
-- never published: a table without a key stops a subscription at the first update, and a table with
-- a key would collide with the subscriber's own row. A crash empties it, and the next purge begins
-- at the first block.
CREATE UNLOGGED TABLE idem.purge_progress (
    position            bigint      NOT NULL,
    sqlstate            text
);

INSERT INTO idem.purge_progress VALUES (0);

COMMENT ON TABLE idem.purge_progress IS
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
