-- idem: its schemas, and the tables of scopes and secrets, as both editions have them.
--
-- Users have no privileges on the tables. The functions check the caller against the scope's owner
-- and then read and write the tables themselves. There is no OR REPLACE and no IF NOT EXISTS here:
-- an object that exists already belongs to another role, and the installation must fail on it.

CREATE SCHEMA idem;

GRANT USAGE ON SCHEMA idem TO PUBLIC;

COMMENT ON SCHEMA idem IS
    'idempotency keys: claim an operation, complete it, and every retry gets the first answer';

-- What the views and functions of schema idem are made of. The server checks USAGE for the body of
-- an SQL function against the caller, and EXECUTE for the function of a view.
CREATE SCHEMA idem_internal;

GRANT USAGE ON SCHEMA idem_internal TO PUBLIC;

-- Default privileges may take EXECUTE away from PUBLIC: no role could call idem, and a GRANT on all
-- functions would give callers those of administrators, too. Until the end of privileges.sql.
ALTER DEFAULT PRIVILEGES IN SCHEMA idem, idem_internal GRANT EXECUTE ON FUNCTIONS TO PUBLIC;

ALTER DEFAULT PRIVILEGES IN SCHEMA idem, idem_internal GRANT USAGE ON TYPES TO PUBLIC;

COMMENT ON SCHEMA idem_internal IS
    'parts of the extension idem, which change without notice: call the functions of schema idem';

-- ---------------------------------------------------------------------------------------------
-- Tables
-- ---------------------------------------------------------------------------------------------

-- A fingerprint has the number of the list request_exclude that it was made with: its position in
-- request_lists, which keeps all of them. So retries are compared as before when the list changes.
-- A scope's id is part of every key digest, so it is never reused. pg_dump includes the sequence.
-- The index of names is in the order of bytes: where another library of collations reads it, as
-- after an update of the operating system, a name could be missed, and the scope created again.
CREATE SEQUENCE idem.scope_id AS integer;

CREATE TABLE idem.scope (
    id                  integer     NOT NULL PRIMARY KEY
                                    DEFAULT pg_catalog.nextval('idem.scope_id'),
    name                text COLLATE "C" NOT NULL UNIQUE,
    owner               regrole     NOT NULL,
    request_lists       text[]      NOT NULL DEFAULT '{}',
    -- The settings, in the order of src/pg/store/scope_settings.hpp.
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
