-- idem, the SQL edition: the same contract in SQL and PL/pgSQL alone, for servers that load no
-- library. Any role that may create a schema in the database installs it:
--
--     psql -f sql/managed.sql
--
-- or with the one file that "make managed" writes. docs/managed.md says what it lacks.
--
-- Read src/README.md first: the protocol is the same. Three things are different.
--
-- 1. The key lock is pg_try_advisory_xact_lock(). A call cannot give it back before its transaction
--    ends, so every call reads the record before it takes the lock, or waits for it.
-- 2. An open claim is a row in state 'a', which never commits. The constraint trigger
--    claim_incomplete raises ID006 for it when the transaction commits or is prepared.
-- 3. A function with the rights of the owner (SECURITY DEFINER) cannot see which role calls it. The
--    functions of schema idem run with the rights of their callers; what they pass to those of the
--    owner is a proof of the current role, which the view idem_internal.caller makes and which is
--    good for this role, backend and transaction. Replays, and atomic claims of new keys, take a
--    short way through two views, which need no proof.
--
-- SET search_path costs more than an INSERT. Functions on the path of a claim have none; every name
-- and operator in them has its schema, and IN, BETWEEN, IS DISTINCT FROM, NULLIF and CASE x WHEN
-- are not used, because the server looks up their operators in the search_path. Parts that only
-- functions of the owner call have none either, and no other role may execute them.
\set ON_ERROR_STOP on
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;

DO $$
BEGIN
    IF current_setting('server_version_num')::integer < 150000 THEN
        RAISE feature_not_supported USING
            MESSAGE = 'idem needs PostgreSQL 15 or newer',
            DETAIL = format('This server is PostgreSQL %s.', current_setting('server_version')),
            HINT = 'Install idem on a newer server.';
    ELSIF EXISTS (SELECT FROM pg_extension WHERE extname = 'idem')
        AND to_regnamespace('idem') IS NOT NULL
    THEN
        RAISE duplicate_object USING
            MESSAGE = 'the extension idem is installed in this database',
            DETAIL = 'It has the same functions as the SQL edition.',
            HINT = 'Use the extension.';
    ELSIF EXISTS (SELECT FROM pg_namespace WHERE nspname IN ('idem', 'idem_internal')) THEN
        RAISE duplicate_schema USING
            MESSAGE = 'schema "idem" or "idem_internal" exists already',
            DETAIL = 'The SQL edition, or what is left of it, is installed, or the schema is of '
                     'something else.',
            HINT = 'To update idem, run the update script of the release; to move to the '
                   'extension, sql/managed_move.sql. Both keep all keys. To install idem again '
                   'without them, drop both schemas first.';
    END IF;
END
$$;

\ir base.sql
\ir types.sql

-- ---------------------------------------------------------------------------------------------
-- Tables
-- ---------------------------------------------------------------------------------------------

-- A day has 24 hours here, and a month 30 days.
CREATE FUNCTION idem_internal.fixed(value interval)
RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN make_interval(
    secs => (extract(epoch FROM value) - 453600 * extract(year FROM value))::double precision);

-- The secrets, of which scopes have copies. They are created when idem is installed and, after a
-- restore without data, with the first scope.
CREATE FUNCTION idem_internal.create_secrets()
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF row_security_active('idem.secret') OR EXISTS (SELECT FROM idem.secret)
        OR EXISTS (SELECT FROM idem.scope) OR EXISTS (SELECT FROM idem.record)
    THEN
        RETURN;
    END IF;
    INSERT INTO idem.secret
    SELECT id, CASE id WHEN 0 THEN 'seed' ELSE 'fingerprint' END,
           sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
                  || uuid_send(gen_random_uuid())),
           now()
    FROM generate_series(0, 1) AS id
    ON CONFLICT DO NOTHING;  -- which another call has made at the same time
END
$$;

CREATE FUNCTION idem_internal.seed()
RETURNS bytea
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT secret FROM idem.secret WHERE id = 0;
END;

-- What the short ways need, so that they read one row. lock_seed is of the scope's lock ids, which
-- must be secret: every role may take advisory locks. seed and secret are copies of the seed and of
-- the newest secret. has_rules: whether new keys go the long way, because rules judge them, or the
-- secret is missing. whole_answer_size is NULL if the scope leaves anything out of responses.
--
-- owner is computed when a row is written, also by a restore, during which no trigger exists. A
-- regrole whose role was dropped is dumped as a number, and read as whichever role has that number
-- on the other server: it would own the scope, and read its answers. So the row has the name, too,
-- and there is no owner if the role has another one. idem.purge() writes the name of renamed roles.
-- IMMUTABLE, as a generated column must be: what was computed when the row was written stays.
CREATE FUNCTION idem_internal.owner(role regrole, its_name name)
RETURNS regrole
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN its_name = (SELECT r.rolname FROM pg_roles AS r WHERE r.oid = role)
                THEN role ELSE 0::oid::regrole END;
END;

ALTER TABLE idem.scope RENAME COLUMN owner TO owner_role;
ALTER TABLE idem.scope
    ADD COLUMN owner_name name,
    ADD COLUMN owner regrole GENERATED ALWAYS AS (
        idem_internal.owner(owner_role, owner_name)) STORED,
    ADD COLUMN lock_seed bigint NOT NULL
        DEFAULT ('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint,
    ADD COLUMN seed bytea NOT NULL DEFAULT idem_internal.seed(),
    ADD COLUMN secret_id integer,
    ADD COLUMN secret bytea,
    ADD COLUMN fixed_ttl interval GENERATED ALWAYS AS (idem_internal.fixed(ttl)) STORED,
    ADD COLUMN has_rules boolean GENERATED ALWAYS AS (
        request_required OR tenant_required OR reject_stale_keys OR weak_keys <> 'allow'
        OR min_ttl IS NOT NULL OR tenant_from <> 'argument' OR store_request <> 'never'
        OR cardinality(request_exclude) > 0 OR secret_id IS NULL) STORED,
    ADD COLUMN whole_answer_size integer GENERATED ALWAYS AS (
        CASE WHEN store_response AND cardinality(response_exclude) = 0
             THEN max_answer_size END) STORED;

-- A new scope gets the newest secret, and a new secret goes to all scopes, also in a session whose
-- session_replication_role is replica. A row that is restored or replicated has its secret, which
-- may not be in idem.secret yet, but must not be another one there.
CREATE FUNCTION idem_internal.copy_secret()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET debug_print_plan = off
SET client_min_messages = error
AS $$
BEGIN
    IF TG_TABLE_NAME = 'secret' THEN
        UPDATE idem.scope AS s SET secret_id = NEW.id, secret = NEW.secret
        WHERE NEW.id > coalesce(s.secret_id, 0);  -- rows may be restored in any order
        RETURN NULL;
    END IF;
    IF NEW.secret_id IS NULL THEN
        SELECT k.id, k.secret INTO NEW.secret_id, NEW.secret
        FROM idem.secret AS k WHERE k.id > 0 ORDER BY k.id DESC LIMIT 1;
    ELSIF EXISTS (SELECT FROM idem.secret AS k
                  WHERE k.id IN (0, NEW.secret_id)
                      AND k.secret <> CASE k.id WHEN 0 THEN NEW.seed ELSE NEW.secret END)
    THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('scope "%s" comes from a database with other secrets', NEW.name),
            DETAIL = 'Child keys would be others, and retries could conflict with their records.',
            HINT = 'Restore into a database in which idem was just installed, after DELETE FROM '
                   'idem.secret WHERE NOT EXISTS (SELECT FROM idem.scope).';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER copy_secret BEFORE INSERT ON idem.scope
    FOR EACH ROW EXECUTE FUNCTION idem_internal.copy_secret();
CREATE TRIGGER copy_secret AFTER INSERT ON idem.secret
    FOR EACH ROW EXECUTE FUNCTION idem_internal.copy_secret();
ALTER TABLE idem.scope ENABLE ALWAYS TRIGGER copy_secret;
ALTER TABLE idem.secret ENABLE ALWAYS TRIGGER copy_secret;

-- One row per operation, from its claim on. state is 'a' (claimed by the transaction that can see
-- the row), 'p' (leased and unfinished), 'c' (completed) or 'f' (failed).
--
-- leased is NULL for an atomic claim, true for an unfinished leased operation and false for one
-- that is finished. No index names another column that completing an atomic claim changes, so that
-- this is a heap-only update; the free space in every page has room for it.
--
-- request_list and secret say how the fingerprint was made: by which list of the scope's
-- request_lists (0: none), and by which row of idem.secret. A secret of 0 is the fingerprint that
-- every request has. finished is NULL for what was claimed and finished in one transaction.
CREATE TABLE idem.record (
    scope               integer     NOT NULL,
    attempt             integer     NOT NULL,
    created             timestamptz NOT NULL,
    expires             timestamptz NOT NULL,
    lease_end           timestamptz,
    finished            timestamptz,
    ttl                 interval,
    number              bigint,
    nonce               text,
    open                text,
    status              integer,
    extra_attempts      integer     NOT NULL DEFAULT 0,
    request_list        integer     NOT NULL DEFAULT 0,
    secret              integer,
    state               "char"      NOT NULL,
    leased              boolean,
    redacted            boolean     NOT NULL DEFAULT false,
    tenant              text COLLATE "C" NOT NULL,
    key                 text COLLATE "C" NOT NULL,
    fingerprint         bytea,
    recovery_point      text,
    recovery_state      jsonb,
    headers             jsonb,
    response            jsonb,
    body                bytea,
    error               jsonb,
    request             jsonb,
    PRIMARY KEY (scope, tenant, key)
) WITH (fillfactor = 80, vacuum_truncate = off);

-- A SQL_ASCII database has texts of any bytes. The other functions check their arguments.
DO $$
BEGIN
    IF getdatabaseencoding() = 'SQL_ASCII' THEN
        ALTER TABLE idem.record ADD CHECK (convert_to(tenant || key, 'UTF8') IS NOT NULL);
    END IF;
END
$$;

CREATE INDEX record_token ON idem.record (number) WHERE leased IS NOT NULL;
CREATE INDEX record_due ON idem.record (scope, lease_end) WHERE leased;

COMMENT ON TABLE idem.record IS
    'The records of keys. Written when a key is claimed, read through idem.claim() and '
    'idem.lookup(). lease_end is when the lease of an unfinished operation ends; nonce is the '
    'random part of the token.';

CREATE TABLE idem.watermark (
    scope               integer     NOT NULL,
    tenant              text COLLATE "C" NOT NULL,
    source              text COLLATE "C" NOT NULL,
    seq                 bigint      NOT NULL,
    updated             timestamptz NOT NULL,
    PRIMARY KEY (scope, tenant, source)
) WITH (fillfactor = 50);

COMMENT ON TABLE idem.watermark IS
    'The highest sequence number of each source. Written by idem.advance(); never expires.';

-- ---------------------------------------------------------------------------------------------
-- Who calls
-- ---------------------------------------------------------------------------------------------

-- A view has the rights of its owner, and current_user in it is still the caller. proof is a MAC of
-- the caller's name, and NULL where the secret is missing, which check_caller refuses; without a
-- row, a call would return NULL. Its secret is the newest, so that idem.rotate_secret() makes one
-- that has leaked useless. The calls pass one text with the collation "C", which all texts of the
-- function then have: in that of a caller's column, another key may be equal.
CREATE VIEW idem_internal.caller AS
    SELECT quote_ident(current_user)::regrole::oid AS role,
           sha256((SELECT k.secret FROM idem.secret AS k WHERE k.id > 0 ORDER BY k.id DESC LIMIT 1)
                  || int4send(pg_backend_pid())
                  || timestamptz_send(transaction_timestamp())
                  || convert_to(current_user, 'UTF8')) AS proof;

CREATE FUNCTION idem_internal.refuse_without_secrets()
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE object_not_in_prerequisite_state USING
        MESSAGE = 'idem has no secrets in this database',
        DETAIL = 'The secrets are created when idem is installed, and a dump of the database '
                 'contains them.',
        HINT = 'Restore the rows of idem.secret from the dump that the records came from. If there '
               'are neither scopes nor records, create a scope, which creates secrets. If the rows '
               'are there, row security hides them: ALTER TABLE idem.secret NO FORCE ROW LEVEL '
               'SECURITY.';
END
$$;

-- pg_repack, and what else writes a table anew, gives the rows a number that is newer than the
-- snapshots that then miss them: above READ COMMITTED, a transaction whose snapshot is older than a
-- table's file is retried. The tables are locked first, so that they keep their files from then on.
CREATE FUNCTION idem_internal.check_snapshot()
RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rewritten pg_catalog.regclass;
BEGIN
    PERFORM FROM idem.secret, idem.scope, idem.record, idem.watermark WHERE false;
    SELECT c.oid INTO rewritten
    FROM pg_class AS c
    WHERE c.oid IN ('idem.secret'::regclass, 'idem.scope'::regclass, 'idem.record'::regclass,
                    'idem.watermark'::regclass)
        AND c.relfilenode <> pg_relation_filenode(c.oid)
    LIMIT 1;
    IF FOUND THEN
        PERFORM idem_internal.refuse_unseen(format('Table %s was rewritten', rewritten));
    END IF;
    RETURN true;
END
$$;

-- For functions with the rights of their owner that PUBLIC may execute: they act for this role. A
-- caller may have the server print plans, which have the secrets that functions are passed, and the
-- proof of a role whose function it calls. So they assign the result, NULL, to the proof: the plan
-- of such an expression has no values, unlike that of PERFORM. Of the plans that auto_explain logs
-- for an administrator, no caller is sent one.
CREATE FUNCTION idem_internal.check_caller(caller oid, proof bytea)
RETURNS bytea
LANGUAGE plpgsql STABLE AS $$
DECLARE
    message CONSTANT bytea := int4send(pg_backend_pid())
        || timestamptz_send(transaction_timestamp())
        || convert_to((SELECT r.rolname FROM pg_roles AS r WHERE r.oid = caller), 'UTF8');
BEGIN
    IF current_setting('debug_print_plan')::boolean THEN
        PERFORM set_config('debug_print_plan', 'off', true);
    END IF;
    IF current_setting('client_min_messages') <> ALL ('{notice,warning,error}') THEN
        PERFORM set_config('client_min_messages', 'notice', true);
    END IF;
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM idem_internal.check_snapshot();
    END IF;
    IF proof = (SELECT sha256(k.secret || message) FROM idem.secret AS k
                WHERE k.id > 0 ORDER BY k.id DESC LIMIT 1)
        AND EXISTS (SELECT FROM idem.secret WHERE id = 0)
    THEN
        RETURN NULL;
    ELSIF (SELECT min(k.id) = 0 AND max(k.id) > 0 FROM idem.secret AS k) IS NOT TRUE THEN
        PERFORM idem_internal.refuse_without_secrets();
    ELSIF EXISTS (SELECT FROM idem.secret AS k
                  WHERE k.id > 0 AND proof = sha256(k.secret || message))
    THEN
        RAISE serialization_failure USING
            MESSAGE = 'could not prove who calls',
            DETAIL = 'The secret that proves it was renewed meanwhile.',
            HINT = 'Retry the transaction.';
    ELSE
        RAISE insufficient_privilege USING
            MESSAGE = 'permission denied for a function of schema idem_internal',
            DETAIL = 'The proof is not of this role, backend and transaction.',
            HINT = 'Call the functions of schema idem.';
    END IF;
END
$$;

-- The same for what only some roles may do: they have EXECUTE on the function of this name. No such
-- name is overloaded.
CREATE FUNCTION idem_internal.check_administrator(
    caller oid, proof bytea, function text, reading text DEFAULT ''
)
RETURNS bytea
LANGUAGE plpgsql AS $$
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    IF NOT has_function_privilege(caller, ('idem.' || function)::regproc::oid, 'EXECUTE') THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('permission denied for function %s', function);
    END IF;
    PERFORM idem_internal.check_writable(function, reading);
    RETURN proof;
END
$$;

\ir functions_http.sql
\ir functions_sql.sql

-- ---------------------------------------------------------------------------------------------
-- Errors
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.raise(
    sqlstate text, message text, detail text, hint text, retry_after interval DEFAULT NULL,
    since timestamptz DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name CONSTANT pg_catalog.text := idem_internal.errors() -> sqlstate ->> 1;
    milliseconds CONSTANT pg_catalog.text :=
        ceil(1000 * extract(epoch FROM retry_after))::bigint::text;
BEGIN
    -- Without a time, the field of the time is not sent.
    IF retry_after IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = sqlstate, MESSAGE = message, DETAIL = detail, HINT = hint, SCHEMA = 'idem',
            CONSTRAINT = name;
    ELSIF since IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = sqlstate, MESSAGE = message, DETAIL = detail, HINT = hint, SCHEMA = 'idem',
            CONSTRAINT = name, DATATYPE = milliseconds;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = sqlstate, MESSAGE = message, DETAIL = detail, HINT = hint, SCHEMA = 'idem',
        CONSTRAINT = name, DATATYPE = milliseconds,
        COLUMN = trim(to_json(since AT TIME ZONE 'UTC')::text, '"') || '+00:00';
END
$$;

CREATE FUNCTION idem_internal.refuse_token(detail text, hint text)
RETURNS void
LANGUAGE sql
RETURN idem_internal.raise('ID005', 'token names no open claim', detail, hint);

-- A token is fenced off. Without a detail, the error says the same whether the key was taken over,
-- has no record, or is of a scope that the caller may not use.
CREATE FUNCTION idem_internal.refuse_lease(detail text DEFAULT NULL)
RETURNS void
LANGUAGE sql
RETURN idem_internal.raise(
    'ID004', 'lease of this attempt is lost',
    coalesce(detail, 'The token names no attempt that you may continue: its claim was rolled back '
                     'or is not committed yet, or the operation was released, taken over or '
                     'forgotten, or has expired, or you may not use its scope.'),
    'Stop working on the operation and roll back, or claim its key again.');

CREATE FUNCTION idem_internal.refuse_open_here(key text, hint text DEFAULT NULL)
RETURNS void
LANGUAGE sql
RETURN idem_internal.raise(
    'ID001', format('operation "%s" is in progress', key),
    'The key was claimed by this transaction, and the claim is still open.',
    coalesce(hint, 'Complete the first claim before you claim the key again. "SELECT '
                   '(idem.claim(...)).*" calls the function once per column; write "SELECT * FROM '
                   'idem.claim(...)" instead.'));

-- What keeps a key from a caller: a transaction, of a process or prepared, or a lease.
CREATE TYPE idem_internal.holder AS (
    pid integer, since timestamptz, lease_end timestamptz, released boolean, prepared xid
);

-- How long to wait before the next try: as long again as the key has been held, between 0.1 and 10
-- seconds, but not beyond the end of the lease.
CREATE FUNCTION idem_internal.retry_after(holder idem_internal.holder)
RETURNS interval
LANGUAGE sql
RETURN CASE
    WHEN (holder).released THEN greatest((holder).lease_end - clock_timestamp(), '0')
    ELSE least(
        CASE WHEN (holder).lease_end IS NOT NULL
             THEN greatest((holder).lease_end - clock_timestamp(), '0') END,
        greatest(least(coalesce(clock_timestamp() - (holder).since, '0'), '10 seconds'),
                 '0.1 seconds'))
END;

-- One bound serves all waits of a call, from the first wait on. setting names the session's setting
-- that comes before the caller's own bound.
CREATE TYPE idem_internal.bound AS (deadline timestamptz, setting text);

-- Clients whose driver hides the fields look for "after N.N seconds" in the hint.
CREATE FUNCTION idem_internal.refuse_in_progress(
    key text, holder idem_internal.holder, bound idem_internal.bound,
    wait_is_argument boolean DEFAULT false, hint text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
SET datestyle = 'ISO'
AS $$
DECLARE
    retry_after CONSTANT interval := idem_internal.retry_after(holder);
    seconds CONSTANT text :=
        to_char(ceil(10 * extract(epoch FROM retry_after)) / 10, 'FM99999999990.0');
BEGIN
    PERFORM idem_internal.raise(
        'ID001',
        format(CASE WHEN holder.released THEN 'operation "%s" is not due yet'
                    ELSE 'operation "%s" is in progress' END, key),
        CASE
            WHEN holder.released THEN format(
                'Its last attempt was released, and the next one is due at %s.', holder.lease_end)
            WHEN holder.lease_end IS NOT NULL THEN format(
                'The key was claimed at %s, under a lease that ends at %s.', holder.since,
                holder.lease_end)
            WHEN holder.pid IS NOT NULL AND holder.since IS NOT NULL THEN format(
                'Process %s has held this key in a transaction since %s.', holder.pid,
                holder.since)
            WHEN holder.pid IS NOT NULL THEN format(
                'Process %s holds this key in a transaction.', holder.pid)
            WHEN holder.prepared IS NOT NULL THEN format(
                'Prepared transaction %s holds this key until it is committed or rolled back. To '
                'find its name, run SELECT gid FROM pg_prepared_xacts WHERE transaction = ''%s''.',
                holder.prepared, holder.prepared)
            ELSE 'Another transaction, possibly a prepared one, holds this key.'
        END,
        coalesce(hint, CASE
            WHEN holder.released THEN format('Retry with the same key after %s seconds.', seconds)
            WHEN bound.setting IS NOT NULL THEN format(
                'Retry with the same key after %s seconds, or raise "%s".', seconds, bound.setting)
            WHEN wait_is_argument THEN format(
                'Retry with the same key after %s seconds, or pass a longer "wait".', seconds)
            ELSE format('Retry after %s seconds, or raise the scope''s "wait" with '
                        'idem.alter_scope().', seconds)
        END),
        retry_after, holder.since);
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Arguments
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.check_duration(argument text, value interval, may_be_zero boolean)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    seconds CONSTANT numeric := extract(epoch FROM value) - 453600 * extract(year FROM value);
    fault CONSTANT text := CASE
        WHEN abs(seconds) > 365000 * 86400::numeric
            THEN 'The interval must be finite and at most 365000 days.'
        WHEN seconds < 0 AND may_be_zero THEN 'The interval must not be negative.'
        WHEN seconds <= 0 AND NOT may_be_zero THEN 'The interval must be longer than zero.'
    END;
BEGIN
    IF fault IS NOT NULL THEN
        PERFORM idem_internal.refuse(
            argument, '', fault, 'Pass an interval such as ''30 seconds''.');
    END IF;
END
$$;

CREATE FUNCTION idem_internal.check_writable(
    function text, reading text DEFAULT ' To read a key''s state and answer, use idem.lookup().'
)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        RAISE read_only_sql_transaction USING
            MESSAGE = format(CASE WHEN pg_is_in_recovery()
                                  THEN 'cannot execute idem.%s() during recovery'
                                  ELSE 'cannot execute idem.%s() in a read-only transaction' END,
                             function),
            DETAIL = 'The function must be able to write, even where a call finds nothing to '
                     'write.',
            HINT = CASE WHEN pg_is_in_recovery() THEN 'Call it on the primary.'
                        ELSE 'Call it in a read-write transaction.' END || reading;
    END IF;
END
$$;

-- A name of 1 to 255 bytes. place is the position in an array, from 1, or 0.
CREATE FUNCTION idem_internal.check_name(
    value text, what text, argument text, hint text, place integer DEFAULT 0
)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    fault text;
    detail text;
BEGIN
    IF value IS NULL THEN
        fault := 'must not be null';
        detail := 'is null';
    ELSIF value = '' THEN
        fault := 'must not be empty';
        detail := 'is an empty string';
    ELSIF octet_length(value) > 255 THEN
        fault := 'is too long';
        detail := format('has %s bytes; at most 255 are allowed', octet_length(value));
    ELSE
        PERFORM convert_to(value, 'UTF8');  -- which any bytes of a SQL_ASCII database need not be
        RETURN;
    END IF;
    PERFORM idem_internal.raise(
        'ID007', what || ' ' || fault,
        CASE place WHEN 0 THEN 'The' ELSE format('Element %s of the', place) END
            || format(' argument "%s" %s.', argument, detail),
        hint);
END
$$;

CREATE FUNCTION idem_internal.check_key_type(type regtype, argument text DEFAULT 'key')
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_type AS t
                   WHERE t.oid = type AND (t.typcategory = 'S' OR t.oid = 'uuid'::regtype
                                           OR t.typbasetype = 'uuid'::regtype))
    THEN
        PERFORM idem_internal.refuse(
            argument, '',
            format('A key is a text or a uuid, and the argument has the type %s.', type),
            'Pass a text that is the same in every session, such as 4711::text. '
                'That of a timestamp depends on TimeZone, that of a bytea on bytea_output.');
    END IF;
END
$$;

CREATE FUNCTION idem_internal.check_key(
    key text, type regtype DEFAULT 'text', place integer DEFAULT 0
)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF key IS NOT NULL AND type NOT IN ('text'::regtype, 'uuid'::regtype) THEN
        PERFORM idem_internal.check_key_type(type);
    END IF;
    PERFORM idem_internal.check_name(
        key, 'idempotency key', CASE place WHEN 0 THEN 'key' ELSE 'keys' END,
        'Pass an idempotency key of 1 to 255 bytes, such as a UUID.', place);
END
$$;

-- The tenant that the caller means: the argument, or the setting idem.tenant.
CREATE FUNCTION idem_internal.checked_tenant(tenant text)
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    meant CONSTANT text := coalesce(tenant, current_setting('idem.tenant', true), '');
BEGIN
    IF octet_length(meant) > 255 THEN
        PERFORM idem_internal.raise(
            'ID013', 'tenant is too long',
            format('The %s has %s bytes; at most 255 are allowed.',
                   CASE WHEN tenant IS NULL THEN 'setting "idem.tenant"'
                        ELSE 'argument "tenant"' END,
                   octet_length(meant)),
            CASE WHEN tenant IS NULL THEN 'Set "idem.tenant" to at most 255 bytes.'
                 ELSE 'Pass a tenant of at most 255 bytes.' END);
    END IF;
    PERFORM convert_to(meant, 'UTF8');
    RETURN meant;
END
$$;

CREATE FUNCTION idem_internal.require_tenant(s idem.scope, tenant text)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF s.tenant_required AND tenant = '' THEN
        PERFORM idem_internal.raise(
            'ID013', 'tenant is missing', format('Scope "%s" requires a tenant.', s.name),
            'Pass the argument "tenant", or set "idem.tenant".');
    END IF;
END
$$;

-- The role that has logged in or was taken on by SET ROLE, also inside a SECURITY DEFINER function.
-- SQL sees only the name that the role had then, which may be another role's by now. UNLISTEN does
-- nothing, but is refused where a table is maintained: there, functions of its owner run for the
-- role that has logged in.
CREATE FUNCTION idem_internal.outer_role()
RETURNS name
LANGUAGE plpgsql AS $$
DECLARE
    role CONSTANT text := current_setting('role');
BEGIN
    UNLISTEN idem_internal;
    IF role = 'none' THEN
        RETURN session_user;
    ELSIF NOT pg_has_role(session_user, role, 'MEMBER') THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('permission denied to act as role "%s"', role),
            DETAIL = 'The session has taken on the role that had this name, and may not take on '
                     'the role that has it now.',
            HINT = 'Run SET ROLE again, with the name that the role has now.';
    END IF;
    RETURN role;
END
$$;

-- What a superuser may do, only a superuser's own code does, and not a SECURITY DEFINER function of
-- another role, which is the actor then.
CREATE FUNCTION idem_internal.tenant_in(actor oid, s idem.scope, tenant text)
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    caller text;
BEGIN
    IF s.tenant_from = 'argument' THEN
        RETURN tenant;
    END IF;
    caller := idem_internal.outer_role();
    IF tenant IN ('', caller) THEN
        RETURN caller;
    ELSIF EXISTS (SELECT FROM pg_roles AS c
                      JOIN pg_roles AS r ON r.oid = CASE WHEN c.rolsuper THEN actor ELSE c.oid END
                  WHERE c.rolname = caller
                      AND (r.rolsuper
                           OR EXISTS (SELECT FROM pg_roles AS t
                                      WHERE t.rolname = tenant
                                          AND pg_has_role(r.oid, t.oid, 'USAGE'))))
    THEN
        RETURN tenant;
    END IF;
    RAISE insufficient_privilege USING
        MESSAGE = format('permission denied for tenant "%s"', tenant),
        DETAIL = format('In scope "%s", the tenant is the role that calls, here "%s".', s.name,
                        caller),
        HINT = 'Leave the tenant out. To act for another tenant, the calling role needs the '
               'privileges of the role of that name.';
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Scopes
-- ---------------------------------------------------------------------------------------------

-- How many characters must be changed to make one name of the other.
CREATE FUNCTION idem_internal.distance(a text, b text)
RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    before integer[] := ARRAY(SELECT generate_series(0, length(b)));
    here integer[];
BEGIN
    FOR i IN 1 .. length(a) LOOP
        here := ARRAY[i];
        FOR j IN 1 .. length(b) LOOP
            here := here || least(
                here[j] + 1, before[j + 1] + 1,
                before[j] + (substr(a, i, 1) <> substr(b, j, 1))::integer);
        END LOOP;
        before := here;
    END LOOP;
    RETURN before[length(b) + 1];
END
$$;

CREATE FUNCTION idem_internal.nearest_scope(caller oid, name text)
RETURNS text
LANGUAGE sql
BEGIN ATOMIC
    SELECT s.name
    FROM idem.scope AS s CROSS JOIN LATERAL idem_internal.distance(nearest_scope.name, s.name) AS d
    WHERE octet_length(nearest_scope.name) <= 63 AND pg_has_role(caller, s.owner, 'USAGE')
        AND d <= least(3, octet_length(nearest_scope.name) / 2)
    ORDER BY d, s.name
    LIMIT 1;
END;

CREATE FUNCTION idem_internal.refuse_scope(caller oid, scope text, function text)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    s idem.scope;
    nearest text;
    owner text;
    caller_name CONSTANT text := (SELECT rolname FROM pg_roles WHERE oid = caller);
    installer CONSTANT oid := (SELECT relowner FROM pg_class WHERE oid = 'idem.scope'::regclass);
    set_role CONSTANT text := CASE WHEN current_setting('server_version_num')::integer < 160000
                                   THEN 'MEMBER' ELSE 'SET' END;
BEGIN
    IF scope IS NULL THEN
        PERFORM idem_internal.raise(
            'ID008', 'scope must not be null', 'The name of the scope is null.',
            'Pass the name of a scope. idem.scopes lists the scopes that you may use.');
    END IF;
    SELECT * INTO s FROM idem.scope AS x WHERE x.name = scope;
    IF NOT FOUND THEN
        nearest := idem_internal.nearest_scope(caller, scope);
        PERFORM idem_internal.raise(
            'ID008', format('scope "%s" does not exist', scope),
            'No scope in this database has that name.',
            CASE
                WHEN nearest IS NOT NULL THEN format('Perhaps you meant the scope "%s".', nearest)
                WHEN function IN ('claim', 'try_claim', 'execute', 'once', 'once_each', 'advance')
                    THEN 'Create the scope first with idem.create_scope(), or use one of the '
                         'scopes that idem.scopes lists.'
                ELSE 'Check the name. idem.scopes lists the scopes that you may use.'
            END);
    END IF;
    SELECT r.rolname INTO owner FROM pg_roles AS r WHERE r.oid = s.owner;
    RAISE insufficient_privilege USING
        MESSAGE = format('permission denied for scope "%s"', scope),
        DETAIL = CASE WHEN owner IS NULL THEN 'The role that owned the scope was dropped.'
                      ELSE format('The scope belongs to role "%s", whose privileges idem.%s() '
                                  'needs.', owner, function) END,
        HINT = CASE
            -- Membership in a superuser, or in the owner of the tables of records and secrets, is
            -- more than the use of a scope: the scope is given away, and not to a role only because
            -- it asks.
            WHEN owner IS NULL OR pg_has_role(s.owner, installer, 'USAGE') THEN (
                SELECT format(
                    CASE WHEN r.rolsuper THEN 'Ask a superuser' ELSE 'Ask role "%s"' END
                    || ' to give the scope to a role of its users: SELECT '
                       'idem.alter_scope(%2$L, owner => ''ROLE'')'
                    || CASE WHEN r.rolsuper THEN '.' ELSE ', after GRANT ROLE TO %1$I.' END,
                    r.rolname, scope)
                FROM pg_roles AS r
                WHERE r.oid = CASE WHEN owner IS NULL THEN installer ELSE s.owner END)
            WHEN pg_has_role(caller, s.owner, set_role) THEN format('Run SET ROLE %I first.', owner)
            ELSE format('Ask an administrator of the role to run GRANT %I TO %I.', owner,
                        caller_name)
        END;
END
$$;

-- The scope, for a caller that has been checked.
CREATE FUNCTION idem_internal.usable_scope(caller oid, scope text, function text)
RETURNS idem.scope
LANGUAGE plpgsql AS $$
DECLARE
    s idem.scope;
BEGIN
    -- A scope whose owner was dropped is given away by the owner of idem, where no superuser can.
    SELECT * INTO s FROM idem.scope AS x
    WHERE x.name = scope
        AND (pg_has_role(caller, x.owner, 'USAGE')
             OR function = 'alter_scope'
                 AND caller = (SELECT relowner FROM pg_class WHERE oid = 'idem.scope'::regclass)
                 AND NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = x.owner));
    IF NOT FOUND THEN
        PERFORM idem_internal.refuse_scope(caller, scope, function);
    END IF;
    RETURN s;
END
$$;

-- The same for calls that write rows. The lock comes first, so that a change of tenant_from, after
-- which the key is another one, waits for these calls, or they read its result.
CREATE FUNCTION idem_internal.scope_to_write(caller oid, scope text, function text)
RETURNS idem.scope
LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE idem.record IN ROW EXCLUSIVE MODE;
    RETURN idem_internal.usable_scope(caller, scope, function);
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Rules for new keys
-- ---------------------------------------------------------------------------------------------

-- The forms are those of src/core/weakness.cpp, and their names. idem.overview asks about 100,000
-- keys, most of them UUIDs, or names with a number: with five digits or letters that differ, and up
-- to 40 in all, these are none of the forms.
CREATE FUNCTION idem_internal.key_weakness(key text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    essence pg_catalog.text;
    bytes pg_catalog.bytea;
BEGIN
    IF key ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
        AND length(translate('0123456789abcdef', key, '')) <= 11
        OR key ~ '^[A-Za-z][-_:/.#0-9A-Za-z]{7,39}$' AND key ~ '[0-9]'
            AND length(translate('0123456789abcdefghijklmnopqrstuvwxyz', key, '')) <= 31
            AND key !~ '(^|[-_:/.#])(undefined|null|None)([-_:/.#]|$)'
    THEN
        RETURN NULL;
    END IF;
    essence := CASE WHEN key ~ E'^[\\x01-\\x7f]*$'
        THEN lower(regexp_replace(key, '[^0-9A-Za-z]', '', 'g')) END;
    IF key IS NULL THEN
        PERFORM idem_internal.refuse('key', NULL, NULL, NULL);
    ELSIF key ~ E'^(\\{\\{.*\\}\\}|\\$\\{.*\\}|<.*>)$'
        OR regexp_split_to_array(key, '[-_:/.#]') && '{undefined,"null",None}'
        OR essence IN (repeat('0', 32), repeat('f', 32))
        OR essence = ANY (
            '{cart,changeme,charge,checkout,claim,confirm,create,createorder,createpayment,default,
              delete,deposit,dummy,empty,event,example,false,guid,id,idempotency,idempotencykey,
              idempotent,idempotentkey,infinity,insert,invoice,key,message,mykey,nan,nil,none,
              "null",objectobject,order,orders,password,pay,payment,payments,payout,placeholder,
              purchase,random,refund,request,requestid,reservation,reserve,retry,secret,string,
              submit,subscription,test,testkey,token,transaction,transfer,true,undefined,update,
              uuid,xidempotencykey}')
    THEN
        RETURN 'generic';
    ELSIF (CASE WHEN key ~ E'^[0-9]{10}([0-9]{3}){0,3}(\\.[0-9]+)?$'
                THEN left(key, 10)::bigint BETWEEN 1000000000 AND 4102444799 END)
        OR key ~ ('^(19|20|21)[0-9]{2}(-(0[1-9]|1[0-2])-|(0[1-9]|1[0-2]))(0[1-9]|[12][0-9]|3[01])'
                  '([Tt ]?([01][0-9]|2[0-4]):?[0-5][0-9](:?([0-5][0-9]|60)([.,][0-9]+)?)?'
                  '([Zz]|[-+](0[0-9]|1[0-5])(:?[0-5][0-9])?)?)?$')
    THEN
        RETURN 'timestamp';
    ELSIF key ~ '^0*[0-9]{0,19}$' AND key <> '' THEN
        RETURN 'number';
    ELSIF octet_length(key) < 8 THEN
        RETURN CASE
            WHEN key !~ E'^[^\\x01-\\x40\\x5b-\\x60\\x7b-\\x7f]+[-_:/.#]?[0-9]+$' THEN 'short'
        END;
    END IF;
    bytes := convert_to(key, getdatabaseencoding());
    RETURN (SELECT CASE WHEN n <= 2 OR n * 8 < length(bytes) THEN 'repetitive' END
            FROM (SELECT count(DISTINCT get_byte(bytes, i))
                  FROM generate_series(0, length(bytes) - 1) AS i) AS d (n));
END
$$;

-- The time in a UUIDv7 or a ULID.
CREATE FUNCTION idem_internal.key_time(key text)
RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    milliseconds bigint := 0;
BEGIN
    IF key ~* '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' THEN
        milliseconds := ('x' || left(key, 8) || substr(key, 10, 4))::bit(48)::bigint;
    ELSIF key ~* '^[0-7][0-9a-hjkmnp-tv-z]{25}$' THEN
        FOR i IN 1 .. 10 LOOP
            milliseconds := milliseconds * 32
                + strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(key, i, 1))) - 1;
        END LOOP;
    ELSE
        RETURN NULL;
    END IF;
    RETURN timestamptz '1970-01-01 00:00:00+00' + make_interval(secs => milliseconds / 1000)
        + milliseconds % 1000 * interval '1 millisecond';
END
$$;

-- How long every record is kept at least, if that is promised. Where stale keys are rejected, the
-- age of a key is compared with it, whatever TTL its claim passes, because another claim of the key
-- may have passed a shorter one.
CREATE FUNCTION idem_internal.least_ttl(s idem.scope)
RETURNS interval
LANGUAGE sql IMMUTABLE
RETURN idem_internal.fixed(
    coalesce((s).min_ttl, CASE WHEN (s).reject_stale_keys THEN (s).ttl END));

CREATE FUNCTION idem_internal.is_stale(s idem.scope, key text)
RETURNS boolean
LANGUAGE sql
RETURN (s).reject_stale_keys AND coalesce(
    idem_internal.key_time(key) < clock_timestamp() - idem_internal.least_ttl(s)
        OR idem_internal.key_time(key) > clock_timestamp() + interval '10 minutes', false);

CREATE FUNCTION idem_internal.refuse_stale_key(key text)
RETURNS void
LANGUAGE plpgsql
SET datestyle = 'ISO'
AS $$
DECLARE
    made CONSTANT timestamptz := idem_internal.key_time(key);
BEGIN
    IF made > clock_timestamp() THEN
        PERFORM idem_internal.raise(
            'ID010', format('idempotency key "%s" has a timestamp in the future', key),
            format('The timestamp, %s, is more than 10 minutes in the future.', made),
            'Check the client''s clock, and send a new key.');
    END IF;
    PERFORM idem_internal.raise(
        'ID010', format('idempotency key "%s" is stale', key),
        format('The key''s timestamp, %s, is longer ago than the scope remembers keys. The '
               'operation may have completed, and its record may have expired.', made),
        'Find out whether the operation was carried out. If it was not, send a new key.');
END
$$;

-- What a key without a record must pass.
CREATE FUNCTION idem_internal.check_new_key(s idem.scope, tenant text, key text)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    weakness text;
    detail text;
    hint CONSTANT text := 'Send a UUID or another long random string, or a string that names the '
                          'operation, such as "order-4711".';
BEGIN
    PERFORM idem_internal.require_tenant(s, tenant);
    IF idem_internal.is_stale(s, key) THEN
        PERFORM idem_internal.refuse_stale_key(key);
    END IF;
    IF s.weak_keys <> 'allow' THEN
        weakness := idem_internal.key_weakness(key);
        detail := format(
            'Its weakness is "%s": such a key is likely to be used for more than one operation. '
            'The "weak_keys" setting of scope "%s" is "%s".', weakness, s.name, s.weak_keys);
        IF weakness IS NOT NULL AND s.weak_keys = 'reject' THEN
            PERFORM idem_internal.raise(
                'ID007', format('idempotency key "%s" is too weak', key), detail, hint);
        ELSIF weakness IS NOT NULL THEN
            RAISE WARNING USING
                MESSAGE = format('idempotency key "%s" is weak', key), DETAIL = detail,
                HINT = hint;
        END IF;
    END IF;
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Requests, answers and failures
-- ---------------------------------------------------------------------------------------------

-- A request in which equal numbers are equal texts: zeros at the end of a fraction are left out.
-- Where a string contains something like a fraction, strings are read too, at twice the cost.
CREATE FUNCTION idem_internal.canonical(request text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF request OPERATOR(pg_catalog.~) E'\\.[0-9]*0([],}]|$)' THEN
        IF request OPERATOR(pg_catalog.~)
            E'^(?:[^"]|"(?:[^"\\\\.]|\\\\.|\\.+(?:[^0-9"\\\\.]|\\\\.))*\\.*")*$'
        THEN
            RETURN pg_catalog.regexp_replace(
                request, E'(\\.[0-9]*[1-9])0+(?=[],}]|$)|\\.0+(?=[],}]|$)', E'\\1', 'g');
        END IF;
        RETURN pg_catalog.regexp_replace(
            request,
            E'("(?:[^"\\\\]|\\\\.)*")|(\\.[0-9]*[1-9])0+(?=[],}]|$)|\\.0+(?=[],}]|$)',
            E'\\1\\2', 'g');
    END IF;
    RETURN request;
END
$$;

-- The names of a path that is written as in request_exclude, joined by dots, without quotes.
CREATE FUNCTION idem_internal.plain_path(path text)
RETURNS text
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT string_agg(
        CASE WHEN name[1] LIKE '"%'
             THEN regexp_replace(substr(name[1], 2, length(name[1]) - 2), E'\\\\(.)', E'\\1', 'g')
             ELSE name[1] END, '.' ORDER BY n)
    FROM regexp_matches(path, E'"(?:[^"\\\\]|\\\\.)*"|[^.]+', 'g') WITH ORDINALITY AS m (name, n);
END;

-- The document without the members that a plain path names. Items of an array have no names.
CREATE FUNCTION idem_internal.without(document jsonb, path text)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE jsonb_typeof(document)
        WHEN 'object' THEN (
            SELECT coalesce(jsonb_object_agg(m.name, CASE
                WHEN starts_with(path, m.name || '.')
                THEN idem_internal.without(m.value, substr(path, length(m.name) + 2))
                ELSE m.value END), '{}')
            FROM jsonb_each(document) AS m (name, value)
            WHERE m.name <> path)
        WHEN 'array' THEN (
            SELECT coalesce(jsonb_agg(idem_internal.without(i.value, path) ORDER BY i.n), '[]')
            FROM jsonb_array_elements(document) WITH ORDINALITY AS i (value, n))
        ELSE document
    END;
END
$$;

-- The document without the members that a list of paths names. A document without a member whose
-- name ends as the path does is not taken apart: it may be too deep for that.
CREATE FUNCTION idem_internal.redacted(document jsonb, list text[])
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    path text;
BEGIN
    IF document IS NULL THEN
        RETURN NULL;
    END IF;
    FOREACH path IN ARRAY list LOOP
        path := idem_internal.plain_path(path);
        IF strpos(document::text,
                  substr(to_json(substring(path FROM '[^.]*$'))::text, 2) || ': ') > 0
        THEN
            document := idem_internal.without(document, path);
        END IF;
    END LOOP;
    RETURN document;
END
$$;

CREATE FUNCTION idem_internal.fingerprint(request jsonb, list text[], secret bytea)
RETURNS bytea
LANGUAGE sql IMMUTABLE
RETURN substr(
    sha256(secret || convert_to(
        idem_internal.canonical(idem_internal.redacted(request, list)::text), 'UTF8')), 1, 16);

-- The list that a record's fingerprint was made with.
CREATE FUNCTION idem_internal.request_list(s idem.scope, r idem.record)
RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    IF r.request_list > cardinality(s.request_lists) THEN
        RAISE data_corrupted USING
            MESSAGE = format('scope "%s" has no list %s of excluded members', s.name,
                             r.request_list),
            DETAIL = 'The record was made with a list of "request_exclude" that is not among the '
                     '"request_lists" of the scope''s row in idem.scope.',
            HINT = 'Restore or replicate idem.scope together with the records.';
    END IF;
    RETURN coalesce(s.request_lists[r.request_list]::text[], '{}');
END
$$;

CREATE FUNCTION idem_internal.is_same_request(s idem.scope, r idem.record, request jsonb)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    its_secret bytea;
BEGIN
    IF r.secret = 0 THEN
        RETURN true;
    ELSIF r.fingerprint IS NULL OR request IS NULL THEN
        RETURN r.fingerprint IS NULL AND request IS NULL;
    END IF;
    SELECT k.secret INTO its_secret FROM idem.secret AS k WHERE k.id = r.secret;
    IF NOT FOUND THEN
        RAISE data_corrupted USING
            MESSAGE = format('fingerprint secret %s is missing', r.secret),
            DETAIL = 'A record''s fingerprint was computed with this secret.',
            HINT = 'Restore the rows of idem.secret from the dump that the records came from.';
    END IF;
    RETURN r.fingerprint = idem_internal.fingerprint(
        request, idem_internal.request_list(s, r), its_secret);
END
$$;

-- Names of headers are the same in upper and lower case.
CREATE FUNCTION idem_internal.redacted_headers(headers jsonb, names text[])
RETURNS jsonb
LANGUAGE sql IMMUTABLE STRICT
BEGIN ATOMIC
    SELECT headers - coalesce(array_agg(h), '{}')
    FROM jsonb_object_keys(headers) AS h
    WHERE lower(h COLLATE "C") = ANY (ARRAY(SELECT lower(n COLLATE "C") FROM unnest(names) AS n));
END;

-- Why a SQLSTATE or, with its form, a class of them cannot be that of a final failure: 'malformed',
-- 'no_failure', 'ours' or 'transient', as in src/core/errors.hpp; NULL if it can.
CREATE FUNCTION idem_internal.failure_fault(sqlstate text, form text DEFAULT '^[0-9A-Z]{5}$')
RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN sqlstate !~ form THEN 'malformed'
    WHEN sqlstate ~ '^0[0123]' THEN 'no_failure'
    WHEN sqlstate ~ '^ID' THEN 'ours'
    WHEN ARRAY[sqlstate, left(sqlstate, 2)] && '{
        08,25,40,53,55,57,58,72,XX,54001,26000,HV00N,HV001,3F000,42703,42704,42725,42804,42809,
        42883,42P01,42P02,42P10}' THEN 'transient'
END;

-- Checks a failure that is to be stored as the answer, or as the last error of an attempt.
CREATE FUNCTION idem_internal.check_failure(error jsonb, is_answer boolean)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known CONSTANT text[] := '{sqlstate,message,detail,hint}';
    own_code CONSTANT text := 'Choose a sqlstate of your own, such as "P0001", or leave it out; '
                              'the failure is then raised as ID003.';
    shape CONSTANT text := 'Pass at least a message, such as ''{"message": "card declined"}''.';
    sqlstate CONSTANT text := error ->> 'sqlstate';
    detail text;
    hint text;
    name text;
    value jsonb;
BEGIN
    IF jsonb_typeof(error) <> 'object' THEN
        detail := 'The value must be an object with the members sqlstate, message, detail and '
                  'hint.';
        hint := shape;
    ELSE
        SELECT m.key, m.value INTO name, value
        FROM jsonb_each(error) WITH ORDINALITY AS m (key, value, n)
        WHERE m.key <> ALL (known) OR jsonb_typeof(m.value) <> 'string' OR m.value = '""'
        ORDER BY m.n
        LIMIT 1;
        IF name <> ALL (known) AND is_answer THEN
            detail := format('The object has a member "%s", which would be lost when the failure '
                             'is raised.', name);
            hint := 'Use only the members sqlstate, message, detail and hint. Pass what else a '
                    'retry should receive as "status", "headers" and "body".';
        ELSIF name <> ALL (known) THEN
            detail := format('The object has a member "%s", which no error has.', name);
            hint := 'Use only the members sqlstate, message, detail and hint. Store what else the '
                    'next attempt needs as a recovery point, with idem.checkpoint().';
        ELSIF name IS NOT NULL THEN
            detail := format('Member "%s" is not a string, or is empty.', name);
            hint := format('Pass "%s" as a string, or leave it out.', name);
        ELSIF NOT error ?| '{sqlstate,message}' THEN
            detail := 'The object has neither a message nor a sqlstate.';
            hint := shape;
        ELSIF is_answer THEN
            hint := own_code;
            detail := CASE idem_internal.failure_fault(sqlstate)
                WHEN 'malformed' THEN format('The sqlstate "%s" does not consist of five '
                                             'characters, 0-9 and A-Z.', sqlstate)
                WHEN 'no_failure' THEN format('The sqlstate "%s" is not that of an error.',
                                              sqlstate)
                WHEN 'ours' THEN format('The sqlstate "%s" is of class ID, which only idem '
                                        'raises.', sqlstate)
                WHEN 'transient' THEN format('The sqlstate "%s" says that a retry may succeed, but '
                                             'every retry would receive this failure.', sqlstate)
            END;
            IF idem_internal.failure_fault(sqlstate) = 'transient' THEN
                hint := 'If a retry may succeed, call idem.release() or roll back instead of '
                        'storing the failure. Otherwise choose another sqlstate, such as "P0001".';
            END IF;
        ELSIF idem_internal.failure_fault(sqlstate) IN ('malformed', 'no_failure') THEN
            detail := format('The sqlstate "%s" is not that of an error.', sqlstate);
            hint := 'Pass the sqlstate of the error, such as "08006", or leave it out.';
        END IF;
    END IF;
    IF detail IS NOT NULL THEN
        PERFORM idem_internal.refuse('error', '', detail, hint);
    END IF;
END
$$;

-- Raises a stored failure again. Whatever the code, the fields distinguish it from a new error.
CREATE FUNCTION idem_internal.raise_failure(key text, r idem.record)
RETURNS void
LANGUAGE plpgsql
SET datestyle = 'ISO'
AS $$
DECLARE
    -- What a superuser has written into the record may be anything.
    error CONSTANT jsonb := (SELECT jsonb_object_agg(m.key, m.value) FROM jsonb_each(r.error) AS m
                             WHERE jsonb_typeof(m.value) = 'string');
    code CONSTANT text := CASE
        WHEN coalesce(idem_internal.failure_fault(error ->> 'sqlstate'), 'transient')
            = 'transient' THEN coalesce(nullif(error ->> 'sqlstate', ''), 'ID003')
        ELSE 'ID003' END;
    message CONSTANT text := coalesce(
        nullif(error ->> 'message', ''),
        format('operation "%s" has failed permanently', key));
    detail text := nullif(error ->> 'detail', '');
    hint text := nullif(error ->> 'hint', '');
BEGIN
    IF code = 'ID003' THEN
        detail := coalesce(detail, 'The failure is stored, and every retry receives it.');
        hint := coalesce(hint, CASE r.secret WHEN 0
            THEN 'Do not send the request again, not even with a new key: the caller that gave it '
                 'up may already have sent it with one.'
            ELSE 'To run the operation again, use a new key. idem.lookup() shows the stored '
                 'failure.' END);
    ELSE
        detail := concat_ws(E'\n', detail, format(
            'The failure was stored at %s, and every retry receives it.',
            coalesce(r.finished, r.created)));
    END IF;
    IF hint IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = code, SCHEMA = 'idem', CONSTRAINT = 'key_failed', MESSAGE = message,
            DETAIL = detail;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = code, SCHEMA = 'idem', CONSTRAINT = 'key_failed', MESSAGE = message,
        DETAIL = detail, HINT = hint;
END
$$;

-- size is that of the values, uncompressed and without their headers.
CREATE FUNCTION idem_internal.check_size(what text, s idem.scope, size bigint)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF size > s.max_answer_size THEN
        RAISE program_limit_exceeded USING
            MESSAGE = what || ' is too large',
            DETAIL = format('It has %s bytes; "max_answer_size" of scope "%s" allows %s bytes.',
                            size, s.name, s.max_answer_size),
            HINT = 'Store large values in a table of your own, and pass a reference to them; or '
                   'raise the limit with idem.alter_scope().';
    END IF;
END
$$;

-- unnest() gives small values a header of one byte.
CREATE FUNCTION idem_internal.size_of(VARIADIC "values" jsonb[])
RETURNS bigint
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT coalesce(sum(pg_column_size(v) - CASE WHEN pg_column_size(v) < 128 THEN 1 ELSE 4 END), 0)
    FROM unnest("values") AS v;
END;
-- ---------------------------------------------------------------------------------------------
-- The state of a key
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.lock_id(s idem.scope, tenant text, key text)
RETURNS bigint
LANGUAGE sql
RETURN hashtextextended(tenant || E'\x1f' || key, (s).lock_seed);

-- Whether the current transaction has written a row that it sees: its xmin has not ended.
CREATE FUNCTION idem_internal.is_own(xmin xid)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    mine CONSTANT pg_catalog.xid8 := pg_catalog.pg_current_xact_id_if_assigned();
    its pg_catalog.int8;
BEGIN
    IF mine IS NULL OR mine::pg_catalog.xid OPERATOR(pg_catalog.=) xmin THEN
        RETURN mine IS NOT NULL;
    END IF;
    BEGIN  -- a subtransaction's?
        its := mine::pg_catalog.text::pg_catalog.int8;
        its := pg_catalog.int8shl(pg_catalog.int8shr(its, 32), 32)
            OPERATOR(pg_catalog.+) xmin::pg_catalog.text::pg_catalog.int8;
        RETURN coalesce(
            its::pg_catalog.text::pg_catalog.xid8 OPERATOR(pg_catalog.>) mine
            AND pg_catalog.pg_xact_status(its::pg_catalog.text::pg_catalog.xid8)
                OPERATOR(pg_catalog.=) 'in progress', false);
    EXCEPTION WHEN invalid_parameter_value THEN  -- frozen, and the number would be in the future
        RETURN false;
    END;
END
$$;

-- Whether the row is of a claim that this transaction has made or gone on with, and not ended. An
-- open one of another transaction has been committed with triggers switched off.
CREATE FUNCTION idem_internal.is_open_here(r idem.record, written_by xid)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN r.open IS NOT NULL AND idem_internal.is_own(written_by)
        OR coalesce(r.state = 'p' AND idem_internal.is_noted(
            idem_internal.leased_entry(r.number, r.nonce)), false);
END
$$;

-- What a record says to a claim: src/core/decision.hpp. A row that this transaction has written
-- does not expire within it.
CREATE FUNCTION idem_internal.verdict(
    s idem.scope, r idem.record, written_by xid, request jsonb, now timestamptz
)
RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE
        WHEN idem_internal.is_open_here(r, written_by) THEN 'open_here'
        WHEN r.scope IS NULL
            OR r.expires <= now AND NOT idem_internal.is_own(written_by) THEN 'claim'
        WHEN NOT idem_internal.is_same_request(s, r, request) THEN 'conflict'
        WHEN r.state = 'c' THEN 'completed'
        WHEN r.state = 'f' THEN 'failed'
        WHEN r.lease_end > now THEN 'leased'
        WHEN r.attempt >= s.max_attempts::bigint + r.extra_attempts THEN 'exhausted'
        ELSE 'take_over'
    END;
END
$$;

-- What is left of a record when its answer is erased.
CREATE FUNCTION idem_internal.erased(r idem.record)
RETURNS idem.record
LANGUAGE plpgsql AS $$
DECLARE
    kept CONSTANT jsonb := CASE WHEN r.error ->> 'sqlstate' ~ '^[0-9A-Z]{5}$'
        THEN jsonb_build_object('sqlstate', r.error ->> 'sqlstate') END;
BEGIN
    r.redacted := r.redacted OR (r.state IN ('c', 'f') AND (
        r.response IS NOT NULL OR r.headers IS NOT NULL OR r.body IS NOT NULL
        OR r.error IS DISTINCT FROM kept));
    r.recovery_state := NULL;
    r.request := NULL;
    r.headers := NULL;
    r.response := NULL;
    r.body := NULL;
    r.error := kept;
    RETURN r;
END
$$;

-- The record as callers get it: without an answer that the scope does not keep for so long.
CREATE FUNCTION idem_internal.shown(s idem.scope, r idem.record, now timestamptz)
RETURNS idem.record
LANGUAGE sql
RETURN CASE
    WHEN (r).state IN ('c', 'f')
        AND coalesce((r).finished, (r).created) <= now - idem_internal.fixed((s).answer_ttl)
    THEN idem_internal.erased(r) ELSE r END;

-- ---------------------------------------------------------------------------------------------
-- Waiting
-- ---------------------------------------------------------------------------------------------

-- The least of the caller's wait, lock_timeout, and what is left of statement_timeout, of which a
-- tenth, and 50 ms at least, is kept for the answer. SQL does not see the server's timer. This is
-- too short in a message of several statements, each of which has the whole time; and wrong where
-- a function sets statement_timeout, because the timer goes on under the earlier one. A wait of
-- NULL is none.
CREATE FUNCTION idem_internal.new_bound(wait interval)
RETURNS idem_internal.bound
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    to_lock CONSTANT interval := nullif(current_setting('lock_timeout')::interval, '0');
    time_left CONSTANT interval := nullif(current_setting('statement_timeout')::interval, '0')
                                   - (now - statement_timestamp());
    to_wait CONSTANT interval := CASE WHEN time_left IS NOT NULL THEN
        greatest(time_left - greatest(time_left / 10, '50 milliseconds'), '0') END;
BEGIN
    wait := idem_internal.fixed(coalesce(wait, '0'));
    RETURN (now + least(wait, to_lock, to_wait),
            CASE WHEN to_wait < least(wait, to_lock) THEN 'statement_timeout'
                 WHEN to_lock <= wait THEN 'lock_timeout' END);
END
$$;

-- False when the bound has come. Raises 55P03 when it is that of the session. One reading of the
-- clock decides both: between two, the bound may come.
CREATE FUNCTION idem_internal.is_within(bound idem_internal.bound)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    has_come CONSTANT boolean := bound.deadline <= clock_timestamp();
BEGIN
    IF has_come AND bound.setting = 'lock_timeout' THEN
        RAISE lock_not_available USING MESSAGE = 'canceling statement due to lock timeout';
    END IF;
    RETURN NOT has_come;
END
$$;

-- Lets the waits for locks end with the bound. The setting has 31 bits.
CREATE FUNCTION idem_internal.limit_waits(bound idem_internal.bound)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    left_over CONSTANT numeric := 1000 * extract(epoch FROM bound.deadline - clock_timestamp());
BEGIN
    PERFORM set_config(
        'lock_timeout', least(greatest(ceil(left_over), 1), 2147483647)::bigint::text, true);
END
$$;

-- Waits for the transaction that holds the key lock or, with a row, for the one that has locked the
-- row, and keeps neither lock: the rollback of the subtransaction gives them back. False when the
-- bound has come.
CREATE FUNCTION idem_internal.wait_for(
    bound idem_internal.bound, lock_id bigint, r idem.record DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT idem_internal.is_within(bound) THEN
        RETURN false;
    END IF;
    PERFORM idem_internal.limit_waits(bound);
    IF lock_id IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock_shared(lock_id);
    ELSE
        PERFORM FROM idem.record AS x
        WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key)
        FOR SHARE;  -- for a stronger lock, calls queue, and then wait a second time
    END IF;
    RAISE SQLSTATE 'ID000';
EXCEPTION
    WHEN SQLSTATE 'ID000' THEN RETURN true;
    WHEN lock_not_available THEN RETURN idem_internal.is_within(bound);
END
$$;

-- Waits for the key lock in the order of arrival, and keeps it: after a wait that keeps nothing,
-- the waiting calls would find the lock taken by one another. If the key, given by name, has an
-- answer or a holder by then, the lock is given back: replays do not wait for one another.
CREATE FUNCTION idem_internal.wait_for_key(
    bound idem_internal.bound, lock_id bigint, scope integer DEFAULT NULL,
    tenant text DEFAULT NULL, key text DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
SET lock_timeout = 0
AS $$
#variable_conflict use_variable
BEGIN
    IF NOT idem_internal.is_within(bound) THEN
        RETURN false;
    END IF;
    PERFORM idem_internal.limit_waits(bound);
    PERFORM pg_advisory_xact_lock(lock_id);
    IF EXISTS (
        SELECT FROM idem.record AS x
        WHERE (x.scope, x.tenant, x.key) = (scope, tenant, key) AND x.expires > clock_timestamp()
            AND (x.state <> 'p' OR x.lease_end > clock_timestamp()))
    THEN
        RAISE SQLSTATE 'ID000';
    END IF;
    RETURN true;
EXCEPTION
    WHEN SQLSTATE 'ID000' THEN RETURN true;
    WHEN lock_not_available THEN RETURN idem_internal.is_within(bound);
END
$$;

-- Waits for the end of a lease, without a lock. Nothing signals an earlier end.
CREATE FUNCTION idem_internal.wait_until(bound idem_internal.bound, due timestamptz)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT idem_internal.is_within(bound) THEN
        RETURN false;
    END IF;
    PERFORM pg_sleep(greatest(extract(epoch FROM least(
        least(due, bound.deadline) - clock_timestamp(), interval '0.1 seconds')), 0));
    RETURN true;
END
$$;

-- The other transaction that holds a key lock, or that has locked a row; no row if there is none.
CREATE FUNCTION idem_internal.holder_of(lock_id bigint, xmax xid DEFAULT NULL)
RETURNS SETOF idem_internal.holder
LANGUAGE sql
BEGIN ATOMIC
    SELECT l.pid, a.xact_start, NULL::timestamptz, false,
           -- A prepared transaction has the same virtual number as its lock of its own number.
           CASE WHEN l.pid IS NULL THEN (
               SELECT p.transaction
               FROM pg_prepared_xacts AS p JOIN pg_locks AS x ON x.transactionid = p.transaction
               WHERE x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction) END
    FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.granted AND l.mode = 'ExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND (l.locktype = 'advisory' AND l.objsubid = 1
             AND l.database = (SELECT d.oid FROM pg_database AS d
                               WHERE d.datname = current_database())
             AND l.classid = ((lock_id >> 32) & 4294967295)::oid
             AND l.objid = (lock_id & 4294967295)::oid
             OR l.locktype = 'transactionid' AND l.transactionid = xmax)
    LIMIT 1;
END;

-- Whether another transaction has locked the row. It may do so without the key lock and want that
-- next, so the row is waited for before the key lock is taken.
CREATE FUNCTION idem_internal.is_held(xmax xid)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    -- NULL without a row. Looking through all locks is slow.
    IF xmax <> '0' THEN
        RETURN EXISTS (SELECT FROM idem_internal.holder_of(NULL, xmax));
    END IF;
    RETURN false;
END
$$;

CREATE FUNCTION idem_internal.lease_of(r idem.record)
RETURNS idem_internal.holder
LANGUAGE sql
RETURN ROW(NULL, (r).created, (r).lease_end, (r).nonce IS NULL, NULL)::idem_internal.holder;

-- ---------------------------------------------------------------------------------------------
-- What this transaction has claimed
-- ---------------------------------------------------------------------------------------------

-- The setting idem_sql.claims has the number of key locks, and an entry for each claim, the newest
-- first: ';', where the row is, and a digest of the secret part of the token. It follows savepoints
-- as the claims do. Every role can read and set it: nothing in it completes a claim, and the rows
-- say what is claimed. For the same reason, idem.max_open_claims can only lower the limit.
CREATE FUNCTION idem_internal.note(entry text, is_locked boolean DEFAULT true)
RETURNS text
LANGUAGE plpgsql STRICT AS $$
DECLARE
    list pg_catalog.text := pg_catalog.current_setting('idem_sql.claims', true);
    n pg_catalog.int4;
    setting pg_catalog.text;
BEGIN
    IF pg_catalog.length(list) OPERATOR(pg_catalog.>) 0 THEN
        n := pg_catalog.split_part(list, ';', 1);
        list := pg_catalog.substr(list, pg_catalog.strpos(list, ';'));
    END IF;
    setting := pg_catalog.current_setting('idem.max_open_claims', true);
    IF is_locked AND coalesce(n, 0) OPERATOR(pg_catalog.>=) least(
        2000, CASE WHEN setting OPERATOR(pg_catalog.<>) '' THEN coalesce(
            pg_catalog.substring(setting, '^[1-9][0-9]{0,9}$')::pg_catalog.int8, 0) END)
    THEN
        IF setting OPERATOR(pg_catalog.!~) '^([1-9][0-9]{0,9})?$' THEN
            RAISE invalid_parameter_value USING
                MESSAGE = pg_catalog.format(
                    'invalid value for parameter "idem.max_open_claims": "%s"', setting),
                HINT = 'Set it to a number of key locks, 1 or more.';
        END IF;
        RAISE program_limit_exceeded USING
            MESSAGE = 'too many claims in one transaction',
            DETAIL = pg_catalog.format(
                'This transaction holds %s key lock%s, the most that "idem.max_open_claims" '
                'allows.', n, CASE WHEN n OPERATOR(pg_catalog.>) 1 THEN 's' ELSE '' END),
            HINT = 'Commit in smaller batches. The limit protects the lock table, which the whole '
                   'server shares.';
    END IF;
    RETURN pg_catalog.set_config(
        'idem_sql.claims',
        pg_catalog.concat(
            coalesce(n, 0) OPERATOR(pg_catalog.+) is_locked::pg_catalog.int4, ';', entry, list),
        true);
END
$$;

CREATE FUNCTION idem_internal.is_noted(entry text)
RETURNS boolean
LANGUAGE sql
RETURN strpos(current_setting('idem_sql.claims', true), ';' || entry) > 0;

CREATE FUNCTION idem_internal.atomic_entry(token text)
RETURNS text
LANGUAGE sql
RETURN ltrim(right(token, 18), '-') || left(md5(left(token, 26)), 16);

-- A nonce is good for many transactions, its digest for this one. A role that has only seen the
-- token cannot make the entry, which shows the key and opens what idem.require_claim() guards.
CREATE FUNCTION idem_internal.leased_entry(number bigint, nonce text)
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    seed bytea;
BEGIN
    SELECT k.secret INTO seed FROM idem.secret AS k WHERE k.id = 0;
    RETURN 'L' || lpad(to_hex(number), 16, '0') || left(md5(seed || convert_to(
        left(nonce, 19) || pg_current_xact_id_if_assigned()::text, 'UTF8')), 16);
END
$$;

-- NULL for a place that the table does not have, as after a TRUNCATE in the same transaction, for
-- which currtid2() would raise an error.
CREATE FUNCTION idem_internal.newest(relation regclass, place tid)
RETURNS tid
LANGUAGE sql
RETURN CASE WHEN split_part(ltrim(place::text, '('), ',', 1)::bigint
            < pg_relation_size(relation) / current_setting('block_size')::bigint
       THEN currtid2(relation::text, place) END;

-- The newest version of the row that an entry is of, whether this transaction has written it, and
-- whether the claim is open. A source that this transaction has advanced is as a finished claim.
CREATE FUNCTION idem_internal.noted(
    entry text, OUT r idem.record, OUT is_own boolean, OUT is_open boolean
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    place pg_catalog.tid;
    seen pg_catalog.record;
BEGIN
    SELECT NULL::idem.record AS row, NULL::xid AS written_by INTO seen;
    -- Roles may have set anything.
    IF entry ~ '^L[0-9a-f]{16}' THEN
        SELECT x AS row, x.xmin AS written_by INTO seen FROM idem.record AS x
        WHERE x.number = idem_internal.number_in(entry) AND x.leased IS NOT NULL;
    ELSIF entry ~ E'^S\\([0-9]+,[0-9]+\\)$' THEN
        place := idem_internal.newest('idem.watermark', substr(entry, 2)::tid);
        SELECT w.scope, 'c', w.updated, idem_internal.is_own(w.xmin)
        INTO r.scope, r.state, r.created, is_own
        FROM idem.watermark AS w WHERE w.ctid = place;
        is_open := false;
        RETURN;
    ELSIF entry ~ E'^\\([0-9]+,[0-9]+\\).{16}$' THEN
        place := idem_internal.newest('idem.record', left(entry, -16)::tid);
        SELECT x AS row, x.xmin AS written_by INTO seen FROM idem.record AS x
        WHERE x.ctid = place;
    END IF;
    r := seen.row;
    is_own := idem_internal.is_own(seen.written_by);
    is_open := coalesce(
        r.open IS NOT NULL AND is_own
        OR r.state = 'p' AND entry = idem_internal.leased_entry(r.number, r.nonce), false);
END
$$;

-- The newest first, so that whoever looks for an open claim mostly reads one row.
CREATE FUNCTION idem_internal.entries()
RETURNS SETOF text
LANGUAGE sql
RETURN unnest((string_to_array(current_setting('idem_sql.claims', true), ';'))[2:]);

-- ---------------------------------------------------------------------------------------------
-- Claims
-- ---------------------------------------------------------------------------------------------

-- After an INSERT of a record that has added no row: another call's row is in the way, which the
-- next look sees. A trigger or a rule may keep all rows out.
CREATE FUNCTION idem_internal.check_tries(tries integer)
RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    IF tries = 100 THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'table "idem.record" does not store the key',
            DETAIL = 'A trigger or a rule of the table keeps the record out.',
            HINT = 'idem.health() names it. Drop it.';
    END IF;
    RETURN tries + 1;
END
$$;

-- Inserts the row of a claim. The token is NULL if the key has a row.
CREATE FUNCTION idem_internal.insert_claim(
    scope integer, tenant text, key text, now timestamptz, ttl interval, lease interval,
    fingerprint bytea, request_list integer, secret integer, request jsonb
)
RETURNS idem.claim_result
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    nonce CONSTANT pg_catalog.text := idem_internal.random_digits();
    number pg_catalog.int8;
    place pg_catalog.tid;
    c idem.claim_result;
BEGIN
    INSERT INTO idem.record AS r (
        scope, tenant, key, attempt, created, expires, lease_end, number, nonce, open, leased,
        state, fingerprint, request_list, secret, request)
    VALUES (
        scope, tenant, key, 1, now,
        now OPERATOR(pg_catalog.+) ttl OPERATOR(pg_catalog.+) coalesce(lease, '0'),
        now OPERATOR(pg_catalog.+) lease,
        CASE WHEN lease IS NOT NULL THEN idem_internal.random_number() END,
        CASE WHEN lease IS NOT NULL THEN pg_catalog.left(nonce, 19) END,
        CASE WHEN lease IS NULL THEN nonce END,
        CASE WHEN lease IS NOT NULL THEN true END, CASE WHEN lease IS NULL THEN 'a' ELSE 'p' END,
        fingerprint, request_list, secret, request)
    ON CONFLICT DO NOTHING
    RETURNING r.ctid, r.number INTO place, number;
    IF place IS NOT NULL THEN
        c.claimed := true;
        c.outcome := 'claimed';
        c.token := CASE WHEN lease IS NULL THEN idem_internal.atomic_token(nonce, place)
                        ELSE idem_internal.leased_token(nonce, number, 1) END;
        PERFORM idem_internal.note(
            CASE WHEN lease IS NULL THEN idem_internal.atomic_entry(c.token)
                 ELSE idem_internal.leased_entry(number, nonce) END);
        c.attempt := 1;
        c.created_at := now;
    END IF;
    RETURN c;
END
$$;

-- A token has 44 characters. That of an atomic claim is 26 random ones and the place of its row;
-- that of a leased claim a random number, which finds the row of the key, the attempt, and 19
-- random ones. A hash of the key would let clients choose keys that collide.
CREATE FUNCTION idem_internal.random_digits()
RETURNS text
LANGUAGE sql
RETURN left(replace(gen_random_uuid()::text, '-', ''), 26);

CREATE FUNCTION idem_internal.random_number()
RETURNS bigint
LANGUAGE sql
RETURN ('x' || right(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;

CREATE FUNCTION idem_internal.atomic_token(nonce text, place tid)
RETURNS text
LANGUAGE sql
RETURN nonce || lpad(place::text, 18, '-');

CREATE FUNCTION idem_internal.leased_token(nonce text, number bigint, attempt integer)
RETURNS text
LANGUAGE sql
RETURN 'L' || lpad(to_hex(number), 16, '0') || lpad(to_hex(attempt), 8, '0') || left(nonce, 19);

-- What a claim is refused with, and how conflicts are explained.
CREATE FUNCTION idem_internal.explain_conflict(
    s idem.scope, r idem.record, request jsonb, OUT detail text, OUT hint text, OUT paths text[]
)
LANGUAGE plpgsql AS $$
DECLARE
    list CONSTANT text[] := idem_internal.request_list(s, r);
    account text;
BEGIN
    IF request IS NULL THEN
        detail := 'The key was first used with a request, and this call has none.';
        hint := 'For a retry, pass the request of the first call. For a new operation, use a new '
                'key.';
    ELSIF r.fingerprint IS NULL THEN
        detail := 'The key was first used without a request, and this call has one.';
        hint := 'For a retry, pass no request, as the first call did. For a new operation, use a '
                'new key.';
    ELSE
        IF r.request IS NOT NULL THEN
            SELECT d.paths, d.account INTO paths, account
            FROM idem_internal.differences(
                idem_internal.redacted(request, list), idem_internal.redacted(r.request, list))
                AS d;
        END IF;
        detail := format('The request differs from the one that the key was first used with%s.',
                         ': ' || account);
        hint := 'Use a new key for a new operation, and send the same request again for a retry. '
                'List members of the request that may differ between retries in the scope''s '
                '"request_exclude".'
            || CASE s.store_request WHEN 'always' THEN ''
               ELSE ' To see which members differ, set the scope''s "store_request" to "always".'
               END;
    END IF;
END
$$;

-- A claim that the short way does not lead to. Reads the state of the key until it can claim it,
-- or resolve the claim by the record.
CREATE FUNCTION idem_internal.claim_slowly(
    caller oid, proof bytea, function text, scope text, key text, type regtype, request jsonb,
    tenant text, ttl interval, lease interval, wait interval
)
RETURNS idem.claim_result
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s idem.scope;
    r idem.record;
    c idem.claim_result;
    bound idem_internal.bound;
    holder idem_internal.holder;
    conflict pg_catalog.record;
    lock_id bigint;
    newest idem.secret;
    tries integer := 0;
    is_locked boolean := false;
    is_stale boolean;
    row_is_held boolean;
    seen pg_catalog.record;
    now pg_catalog.timestamptz;
    verdict pg_catalog.text;
    detail pg_catalog.text;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_writable(function),
            idem_internal.check_duration('ttl', ttl, false),
            idem_internal.check_duration('lease', lease, false),
            idem_internal.check_duration('wait', wait, true), idem_internal.check_key(key, type);
    tenant := idem_internal.checked_tenant(tenant);
    s := idem_internal.scope_to_write(caller, scope, function);
    tenant := idem_internal.tenant_in(caller, s, tenant);
    ttl := coalesce(idem_internal.fixed(ttl), s.fixed_ttl);
    lease := idem_internal.fixed(lease);
    wait := coalesce(wait, CASE WHEN function = 'try_claim' THEN '0' ELSE s.wait END);
    lock_id := idem_internal.lock_id(s, tenant, key);
    c.claimed := false;
    LOOP
        -- A key in flight is not new. Before the record is read, which its holder may be about to
        -- commit.
        is_stale := NOT is_locked AND idem_internal.is_stale(s, key);
        IF is_stale THEN
            is_stale := NOT EXISTS (SELECT FROM idem_internal.holder_of(lock_id));
        END IF;
        SELECT x AS row, x.xmin AS written_by, x.xmax AS locked_by INTO seen
        FROM idem.record AS x
        WHERE (x.scope, x.tenant, x.key) = (s.id, claim_slowly.tenant, claim_slowly.key);
        r := seen.row;
        now := clock_timestamp();
        verdict := idem_internal.verdict(s, r, seen.written_by, request, now);
        IF verdict = 'leased' THEN
            holder := idem_internal.lease_of(r);
            bound := coalesce(bound, idem_internal.new_bound(wait));
            CONTINUE WHEN idem_internal.wait_until(bound, r.lease_end);
            verdict := 'in_progress';
        ELSIF verdict = 'exhausted' AND seen.locked_by <> '0' THEN
            -- Its last holder may be completing it.
            SELECT * INTO holder FROM idem_internal.holder_of(lock_id, seen.locked_by);
            IF FOUND THEN
                row_is_held := idem_internal.is_held(seen.locked_by);
                bound := coalesce(bound, idem_internal.new_bound(wait));
                CONTINUE WHEN idem_internal.wait_for(
                    bound, CASE WHEN NOT row_is_held THEN lock_id END, r);
                verdict := 'in_progress';
            END IF;
        ELSIF verdict IN ('claim', 'take_over') THEN
            IF is_stale AND verdict = 'claim' THEN
                NULL;  -- refused below, after the scope's other rules
            ELSIF NOT is_locked THEN
                row_is_held := idem_internal.is_held(seen.locked_by);
                is_locked := NOT row_is_held AND pg_try_advisory_xact_lock(lock_id);
                CONTINUE WHEN is_locked;
                SELECT * INTO holder FROM idem_internal.holder_of(lock_id);
                bound := coalesce(bound, idem_internal.new_bound(wait));
                CONTINUE WHEN CASE WHEN row_is_held
                    THEN idem_internal.wait_for(bound, NULL, r)
                    ELSE idem_internal.wait_for_key(bound, lock_id, s.id, tenant, key) END;
                verdict := 'in_progress';
            ELSIF r.scope IS NOT NULL THEN
                -- A transaction without the key lock may be changing the row.
                PERFORM FROM idem.record AS x
                WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key) AND x = r
                FOR UPDATE SKIP LOCKED;
                IF NOT FOUND THEN
                    bound := coalesce(bound, idem_internal.new_bound(wait));
                    CONTINUE WHEN idem_internal.wait_for(bound, NULL, r);
                    verdict := 'in_progress';
                END IF;
            END IF;
        END IF;
        IF verdict = 'claim' THEN
            PERFORM idem_internal.require_tenant(s, tenant);
            IF s.request_required AND request IS NULL THEN
                RAISE null_value_not_allowed USING
                    MESSAGE = 'argument "request" must not be null',
                    DETAIL = format('Scope "%s" requires a request.', s.name),
                    HINT = 'Pass the client''s request as "request".';
            ELSIF ttl < idem_internal.least_ttl(s) THEN
                PERFORM idem_internal.refuse(
                    'ttl', '', format('Scope "%s" remembers every key for at least %s.', s.name,
                                      idem_internal.least_ttl(s)),
                    'Pass a longer "ttl", or leave it out to get the scope''s own.');
            ELSIF is_stale OR idem_internal.is_stale(s, key) THEN
                verdict := 'stale_key';
                EXIT;
            END IF;
            PERFORM idem_internal.check_new_key(s, tenant, key);
            IF r.scope IS NOT NULL THEN
                DELETE FROM idem.record AS x
                WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key);
                r := NULL;
            END IF;
        END IF;
        EXIT WHEN verdict NOT IN ('claim', 'take_over');

        IF r.request IS NULL
            AND (s.store_request = 'always' OR s.store_request = 'unfinished' AND lease IS NOT NULL)
        THEN
            PERFORM idem_internal.check_size('request', s, idem_internal.size_of(request));
            r.request := request;
        END IF;
        IF verdict = 'claim' THEN
            SELECT * INTO newest FROM idem.secret AS k WHERE k.id > 0 ORDER BY k.id DESC LIMIT 1;
            IF NOT FOUND THEN
                PERFORM idem_internal.refuse_without_secrets();
            END IF;
            c := idem_internal.insert_claim(
                s.id, tenant, key, clock_timestamp(), ttl, lease,
                CASE WHEN request IS NOT NULL THEN idem_internal.fingerprint(
                    request, s.request_exclude, newest.secret) END,
                coalesce(array_position(s.request_lists, nullif(s.request_exclude::text, '{}')), 0),
                newest.id, r.request);
            IF c.token IS NULL THEN
                tries := idem_internal.check_tries(tries);
                CONTINUE;
            END IF;
        ELSE
            c := idem_internal.take_over(
                s, r, greatest(ttl, idem_internal.least_ttl(s)), lease);
        END IF;
        IF lease IS NOT NULL THEN
            PERFORM idem_internal.commit_durably();
        END IF;
        RETURN c;
    END LOOP;

    c := NULL;
    c.claimed := false;
    c.outcome := CASE verdict WHEN 'open_here' THEN 'in_progress' ELSE verdict END;
    IF verdict IN ('completed', 'failed', 'exhausted') THEN
        r := idem_internal.shown(s, r, now);
        IF verdict = 'failed' AND function NOT IN ('try_claim', 'execute') THEN
            PERFORM idem_internal.raise_failure(key, r);
        ELSIF verdict = 'exhausted' THEN
            c.retry_after := '1 minute';
            IF function <> 'try_claim' THEN
                PERFORM idem_internal.raise(
                    'ID014', format('operation "%s" has no attempts left', key),
                    format('Attempt %s was the last that the scope''s "max_attempts" allows, and '
                           'it has ended without an answer. It may have had effects.', r.attempt),
                    'The outcome is undecided: keep the key, and retry after 60.0 seconds. An '
                    'administrator can allow one more attempt, which continues from the recovery '
                    'point, with idem.revoke().',
                    c.retry_after, r.created);
            END IF;
        END IF;
        c.attempt := r.attempt;
        c.response := r.response;
        c.status := r.status;
        c.headers := r.headers;
        c.body := r.body;
        c.error := r.error;
        c.created_at := r.created;
        c.expires_at := r.expires;
        c.redacted := r.redacted;
        c.completed_at := CASE verdict WHEN 'exhausted' THEN NULL
                          ELSE coalesce(r.finished, r.created) END;
    ELSIF verdict = 'conflict' THEN
        conflict := idem_internal.explain_conflict(s, idem_internal.shown(s, r, now), request);
        c.differs := conflict.paths;
        IF function <> 'try_claim' THEN
            detail := format('key "%s" was used for a different request', key);
            IF conflict.paths IS NULL THEN
                PERFORM idem_internal.raise('ID002', detail, conflict.detail, conflict.hint);
            END IF;
            RAISE EXCEPTION USING
                ERRCODE = 'ID002', SCHEMA = 'idem', CONSTRAINT = 'key_conflict',
                COLUMN = conflict.paths::text, MESSAGE = detail, DETAIL = conflict.detail,
                HINT = conflict.hint;
        END IF;
    ELSIF verdict = 'in_progress' THEN
        c.retry_after := idem_internal.retry_after(holder);
        c.created_at := holder.since;
        IF function <> 'try_claim' THEN
            PERFORM idem_internal.refuse_in_progress(
                key, holder, bound, function <> 'once');
        END IF;
    ELSIF verdict = 'open_here' AND function <> 'try_claim' THEN
        PERFORM idem_internal.refuse_open_here(key);
    ELSIF verdict = 'stale_key' AND function <> 'try_claim' THEN
        PERFORM idem_internal.refuse_stale_key(key);
    END IF;
    RETURN c;
END
$$;

-- The operation of a leased claim may have effects outside the database, so its row must be durable
-- before the caller goes on.
CREATE FUNCTION idem_internal.commit_durably()
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- An atomic claim leaves the old attempt in the row, so that it can be released.
CREATE FUNCTION idem_internal.take_over(
    s idem.scope, r idem.record, its_ttl interval, its_lease interval
)
RETURNS idem.claim_result
LANGUAGE plpgsql AS $$
DECLARE
    new_nonce CONSTANT text := idem_internal.random_digits();
    due CONSTANT timestamptz := clock_timestamp() + its_lease;
    place tid;
    c idem.claim_result;
BEGIN
    UPDATE idem.record AS x
    SET attempt = x.attempt + 1,
        request = coalesce(x.request, r.request),
        open = CASE WHEN its_lease IS NULL THEN new_nonce END,
        ttl = CASE WHEN its_lease IS NULL THEN its_ttl END,
        nonce = CASE WHEN its_lease IS NULL THEN x.nonce ELSE left(new_nonce, 19) END,
        lease_end = coalesce(due, x.lease_end),
        expires = coalesce(due + its_ttl, x.expires),
        -- A key that was left open becomes a leased one.
        state = CASE WHEN its_lease IS NULL THEN x.state ELSE 'p' END,
        leased = x.leased OR its_lease IS NOT NULL,
        number = coalesce(x.number, CASE WHEN its_lease IS NOT NULL
                                         THEN idem_internal.random_number() END)
    WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key)
    RETURNING x.ctid, x.attempt, x.created, x.recovery_point, x.recovery_state, x.number
    INTO place, c.attempt, c.created_at, c.recovery_point, c.recovery_state, r.number;
    c.claimed := true;
    c.outcome := 'claimed';
    c.token := CASE WHEN its_lease IS NULL THEN idem_internal.atomic_token(new_nonce, place)
                    ELSE idem_internal.leased_token(new_nonce, r.number, c.attempt) END;
    PERFORM idem_internal.note(
        CASE WHEN its_lease IS NULL THEN idem_internal.atomic_entry(c.token)
             ELSE idem_internal.leased_entry(r.number, new_nonce) END);
    RETURN c;
END
$$;

-- The answer of the key that the settings name, in a scope that the caller may use: what
-- idem.lookup() shows to the same role, so that a role which sets them by itself learns nothing
-- else. claimed is false for a replay; else the long way decides. OFFSET 0 keeps the server from
-- looking at records before it knows the scope, which EXPLAIN ANALYZE would show. The subqueries
-- keep it from looking for the tenant and the key in the table's statistics, as EXPLAIN would show.
CREATE VIEW idem_internal.answer WITH (security_barrier) AS
    SELECT (
               r.request_list = 0 AND s.request_exclude = '{}' AND r.secret = s.secret_id
               AND CASE WHEN current_setting('idem_sql.request', true) = ''
                   THEN r.fingerprint IS NULL
                   ELSE r.fingerprint = substr(sha256(s.secret || convert_to(
                       current_setting('idem_sql.request', true), 'UTF8')), 1, 16) END
           ) IS NOT TRUE AS claimed,
           'completed' AS outcome, NULL::text AS token, r.attempt, r.response, r.status, r.headers,
           r.body, NULL::jsonb AS error, NULL::interval AS retry_after,
           NULL::text AS recovery_point, NULL::jsonb AS recovery_state, r.created AS created_at,
           r.expires AS expires_at, r.redacted, NULL::text[] AS differs,
           coalesce(r.finished, r.created) AS completed_at
    FROM idem.scope AS s
        CROSS JOIN LATERAL (
            SELECT attempt, response, status, headers, body, created, expires, finished, redacted,
                   secret, request_list, fingerprint
            FROM idem.record AS x
            WHERE x.scope = s.id
                AND x.tenant = (SELECT current_setting('idem_sql.tenant', true)) COLLATE "C"
                AND x.key = (SELECT current_setting('idem_sql.key', true)) COLLATE "C"
                AND x.state = 'c' AND x.expires > clock_timestamp()
            OFFSET 0) AS r
    WHERE s.name = current_setting('idem_sql.scope', true)
        AND s.tenant_from = 'argument' AND s.answer_ttl IS NULL
        AND pg_has_role(current_user, s.owner::oid, 'USAGE');

-- An INSERT claims the key that the settings name, if it is new and its lock is free, in a scope
-- without rules that the caller may use. It looks for a record, but for SERIALIZABLE, where claims
-- of neighbouring new keys would get 40001: ON CONFLICT would wait without bound for a transaction
-- that is changing it without the key lock. That look is no EXISTS, for which the server may read
-- the whole table. A role that inserts by itself may set the settings at any time: they are read
-- once, in a subquery that OFFSET 0 keeps apart, so that it is the key whose lock was taken.
CREATE VIEW idem_internal.new_claim AS
    SELECT NULL::text AS nonce, NULL::text AS place, NULL::timestamptz AS created;

CREATE RULE claim AS ON INSERT TO idem_internal.new_claim DO INSTEAD
    INSERT INTO idem.record AS r (
        scope, tenant, key, attempt, created, expires, open, state, fingerprint, secret)
    SELECT s.id, k.tenant, k.key, 1, clock_timestamp(), clock_timestamp() + s.fixed_ttl,
           right(gen_random_uuid()::text, 26), 'a',
           CASE WHEN current_setting('idem_sql.request', true) <> '' THEN
               substr(sha256(s.secret || convert_to(
                   current_setting('idem_sql.request', true), 'UTF8')), 1, 16) END,
           s.secret_id
    FROM idem.scope AS s
        CROSS JOIN LATERAL (
            SELECT current_setting('idem_sql.tenant', true) COLLATE "C" AS tenant,
                   current_setting('idem_sql.key', true) COLLATE "C" AS key
            OFFSET 0) AS k
    WHERE s.name = current_setting('idem_sql.scope', true)
        AND CASE WHEN
            NEW.nonce IS NULL AND pg_has_role(current_user, s.owner::oid, 'USAGE')
            AND NOT s.has_rules AND k.key <> ''
            AND octet_length(k.key) <= 255 AND octet_length(k.tenant) <= 255
            AND (current_setting('transaction_isolation') = 'serializable'
                    AND s.answer_ttl IS NULL OR (
                SELECT x.scope FROM idem.record AS x
                WHERE x.scope = s.id AND x.tenant = k.tenant AND x.key = k.key) IS NULL)
            THEN pg_try_advisory_xact_lock(hashtextextended(
                k.tenant || E'\x1f' || k.key, s.lock_seed)) END
    ON CONFLICT DO NOTHING
    RETURNING r.open, r.ctid::text, r.created;

-- The short ways of a replay and of a new key; all else, and every refusal, goes the long way. In
-- SERIALIZABLE, no look at the answer comes before: after it, claims of neighbouring new keys would
-- get 40001.
CREATE FUNCTION idem_internal.claim_or_replay(
    function text, scope text, key text, type regtype, request jsonb, tenant text, ttl interval,
    lease interval, wait interval
)
RETURNS idem.claim_result
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    body pg_catalog.text;
    nonce pg_catalog.text;
    place pg_catalog.text;
    since pg_catalog.timestamptz;
    c idem.claim_result;
BEGIN
    -- A wait that may be invalid is judged the long way.
    IF coalesce(ttl, lease) IS NULL
        AND coalesce(wait OPERATOR(pg_catalog.>=) '0'
            AND wait OPERATOR(pg_catalog.<) '1 year', true)
        AND type OPERATOR(pg_catalog.=) ANY (
            '{pg_catalog.text,pg_catalog.uuid}'::pg_catalog.regtype[])
        AND pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'off'
    THEN
        IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.!~~) 'read%' THEN
            PERFORM idem_internal.check_snapshot();
        END IF;
        body := coalesce(request::pg_catalog.text, '');
        IF pg_catalog.strpos(body, '.') OPERATOR(pg_catalog.>) 0 THEN
            body := idem_internal.canonical(body);
        END IF;
        body := pg_catalog.concat(
            pg_catalog.set_config('idem_sql.scope', scope, true),
            pg_catalog.set_config('idem_sql.tenant', coalesce(
                tenant, pg_catalog.current_setting('idem.tenant', true), ''), true),
            pg_catalog.set_config('idem_sql.key', key, true),
            pg_catalog.set_config('idem_sql.request', body, true));
        IF pg_catalog.current_setting('transaction_isolation')
            OPERATOR(pg_catalog.<>) 'serializable'
        THEN
            SELECT a.* INTO c FROM idem_internal.answer AS a;
        END IF;
        -- The key has no record, unless c says otherwise. The rule does not apply to replicas.
        IF c.claimed IS NULL AND pg_catalog.current_setting('session_replication_role')
            OPERATOR(pg_catalog.<>) 'replica'
        THEN
            INSERT INTO idem_internal.new_claim AS n (nonce) VALUES (NULL)
            RETURNING n.nonce, n.place, n.created INTO nonce, place, since;
        END IF;
        body := pg_catalog.concat(
            pg_catalog.set_config('idem_sql.tenant', '', true),
            pg_catalog.set_config('idem_sql.key', '', true),
            pg_catalog.set_config('idem_sql.request', '', true));
        IF NOT c.claimed THEN
            RETURN c;
        ELSIF place IS NOT NULL THEN
            body := place OPERATOR(pg_catalog.||) pg_catalog.left(pg_catalog.md5(nonce), 16);
            -- As note() does it, which costs more.
            body := CASE
                WHEN pg_catalog.concat(
                    pg_catalog.current_setting('idem_sql.claims', true),
                    pg_catalog.current_setting('idem.max_open_claims', true))
                    OPERATOR(pg_catalog.<>) '' THEN idem_internal.note(body)
                ELSE pg_catalog.set_config(
                    'idem_sql.claims', '1;' OPERATOR(pg_catalog.||) body, true) END;
            RETURN ROW(true, 'claimed',
                       nonce OPERATOR(pg_catalog.||) pg_catalog.lpad(place, 18, '-'), 1, NULL,
                       NULL, NULL, NULL, NULL, NULL, NULL, NULL, since, NULL, NULL, NULL, NULL
                      )::idem.claim_result;
        END IF;
    END IF;
    RETURN (SELECT idem_internal.claim_slowly(
                i.role, i.proof, function, scope, key, type, request, tenant, ttl, lease, wait)
            FROM idem_internal.caller AS i);
END
$$;

CREATE FUNCTION idem.claim(
    scope text,
    key anycompatible,
    request jsonb DEFAULT NULL,
    tenant text DEFAULT NULL,
    ttl interval DEFAULT NULL,
    lease interval DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.claim_result
LANGUAGE plpgsql AS $$
BEGIN
    RETURN idem_internal.claim_or_replay(
        'claim', scope COLLATE pg_catalog."C", key::pg_catalog.text, pg_catalog.pg_typeof(key),
        request, tenant, ttl, lease, wait);
END
$$;

CREATE FUNCTION idem.try_claim(
    scope text,
    key anycompatible,
    request jsonb DEFAULT NULL,
    tenant text DEFAULT NULL,
    ttl interval DEFAULT NULL,
    lease interval DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.claim_result
LANGUAGE plpgsql AS $$
BEGIN
    RETURN idem_internal.claim_or_replay(
        'try_claim', scope COLLATE pg_catalog."C", key::pg_catalog.text, pg_catalog.pg_typeof(key),
        request, tenant, ttl, lease, wait);
END
$$;

-- An open claim neither commits nor is prepared. SET CONSTRAINTS ALL IMMEDIATE would make this
-- check refuse every claim: so the first check that finds a claim open notes it in all open claims
-- (redacted, which means nothing else in an open claim), and they are checked again at the end of
-- the transaction, or when the constraint is made immediate once more. A transaction that has
-- become read-only cannot note anything.
CREATE FUNCTION idem_internal.is_check_deferred(claim idem.record)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET debug_print_plan = off
SET client_min_messages = error
AS $$
DECLARE
    c idem.record;
BEGIN
    IF NOT claim.redacted THEN
        SET CONSTRAINTS idem.claim_incomplete DEFERRED;
    END IF;
    FOR c IN
        SELECT claim.*
        UNION ALL
        SELECT (n.r).*
        FROM idem_internal.entries() AS e (entry), idem_internal.noted(e.entry) AS n
        WHERE NOT claim.redacted AND n.is_open AND (n.r).open IS NOT NULL
    LOOP
        -- If the constraint is immediate, the check of this update notes the claims again.
        UPDATE idem.record AS x SET redacted = NOT claim.redacted
        WHERE (x.scope, x.tenant, x.key) = (c.scope, c.tenant, c.key);
    END LOOP;
    RETURN EXISTS (SELECT FROM idem.record AS x
                   WHERE (x.scope, x.tenant, x.key) = (claim.scope, claim.tenant, claim.key)
                       AND x.redacted);
END
$$;

CREATE FUNCTION idem_internal.refuse_open_claim()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    newest idem.record;
BEGIN
    -- A type of another table's owner may bring code, such as a cast to the type of idem.record.
    IF TG_RELID OPERATOR(pg_catalog.<>) 'idem.record'::pg_catalog.regclass THEN
        RAISE insufficient_privilege USING
            MESSAGE = 'permission denied for function refuse_open_claim';
    END IF;
    -- The row of a claim that was completed has a newer version.
    IF pg_catalog.currtid2('idem.record', NEW.ctid) OPERATOR(pg_catalog.<>) NEW.ctid THEN
        RETURN NULL;
    END IF;
    PERFORM FROM idem.record AS r WHERE r.ctid OPERATOR(pg_catalog.=) NEW.ctid;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF (CASE WHEN pg_catalog.current_setting('transaction_read_only')
               OPERATOR(pg_catalog.=) 'off' THEN idem_internal.is_check_deferred(NEW) END)
        IS NOT TRUE
    THEN
        SELECT (n.r).* INTO newest
        FROM idem_internal.entries() AS e (entry), idem_internal.noted(e.entry) AS n
        WHERE n.is_open AND (n.r).open IS NOT NULL
        LIMIT 1;
        IF NOT FOUND THEN  -- the setting was reset
            newest := NEW;
        END IF;
        PERFORM idem_internal.raise(
            'ID006', 'cannot commit a transaction with an open claim',
            pg_catalog.format(
                'Key "%s" in scope "%s" was claimed, but not completed, failed or released.',
                newest.key,
                (SELECT s.name FROM idem.scope AS s
                 WHERE s.id OPERATOR(pg_catalog.=) newest.scope)),
            'Call idem.complete(), idem.fail() or idem.release() with the claim''s token before '
            'the transaction ends.'
                OPERATOR(pg_catalog.||) CASE
                    WHEN pg_catalog.statement_timestamp()
                        OPERATOR(pg_catalog.=) pg_catalog.transaction_timestamp()
                        AND pg_catalog.current_query()
                            OPERATOR(pg_catalog.!~*) E'^\\s*(begin|start)\\M'
                    THEN ' Outside a transaction block, each statement is a transaction of its '
                         'own: start one with BEGIN.' ELSE '' END);
    END IF;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION idem_internal.refuse_open_claim FROM PUBLIC;

CREATE CONSTRAINT TRIGGER claim_incomplete
    AFTER INSERT OR UPDATE OF attempt, redacted ON idem.record
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.open IS NOT NULL) EXECUTE FUNCTION idem_internal.refuse_open_claim();
ALTER TABLE idem.record ENABLE ALWAYS TRIGGER claim_incomplete;

-- ---------------------------------------------------------------------------------------------
-- The ends of claims
-- ---------------------------------------------------------------------------------------------

-- The short way of complete(): the first attempt of an atomic claim, and nothing of the answer is
-- left out. The token proves the claim. False for everything else, and for headers of which the
-- expression does not show that they are strings without escapes under names of RFC 9110.
CREATE FUNCTION idem_internal.complete(
    token text, response jsonb, status integer, headers jsonb, body bytea
)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF pg_catalog.octet_length(token) OPERATOR(pg_catalog.=) 44
        AND pg_catalog.right(token, 18) OPERATOR(pg_catalog.~)
            E'^-*\\([0-9]{1,9},[0-9]{1,4}\\)$'
        AND pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'off'
        AND coalesce(pg_catalog.pg_column_compression(response),
                     pg_catalog.pg_column_compression(headers),
                     pg_catalog.pg_column_compression(body)) IS NULL
        AND (headers IS NULL OR headers::pg_catalog.text OPERATOR(pg_catalog.~)
            E'^\\{("[-0-9A-Za-z!#$%&''*+.^_`|~]+": "[^"\\\\\\x7f]*"(, (?=")|\\}$))+$')
    THEN
        UPDATE idem.record AS r
        SET open = NULL, state = 'c', response = complete.response, status = complete.status,
            headers = complete.headers, body = complete.body,
            expires = r.expires OPERATOR(pg_catalog.+)
                (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) r.created)
        WHERE r.ctid OPERATOR(pg_catalog.=) pg_catalog.right(token, 18)::pg_catalog.tid
            AND pg_catalog.starts_with(token, r.open)
            AND r.state OPERATOR(pg_catalog.=) 'a' AND r.attempt OPERATOR(pg_catalog.=) 1
            AND r.request IS NULL AND NOT r.redacted
            AND (SELECT s.whole_answer_size OPERATOR(pg_catalog.>=) (
                        coalesce(pg_catalog.pg_column_size(complete.response), 0)
                        OPERATOR(pg_catalog.+)
                        coalesce(pg_catalog.pg_column_size(complete.headers), 0)
                        OPERATOR(pg_catalog.+)
                        coalesce(pg_catalog.pg_column_size(complete.body), 0))
                    AND (complete.headers IS NULL OR NOT (
                        pg_catalog.lower(complete.headers::pg_catalog.text COLLATE pg_catalog."C")
                            ::pg_catalog.jsonb
                        OPERATOR(pg_catalog.?|) pg_catalog.lower(
                            s.header_exclude::pg_catalog.text COLLATE pg_catalog."C")
                            ::pg_catalog.text[]))
                 FROM idem.scope AS s WHERE s.id OPERATOR(pg_catalog.=) r.scope);
        RETURN FOUND;
    END IF;
    RETURN false;
END
$$;

CREATE FUNCTION idem_internal.check_token(token text)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF token IS NULL THEN
        PERFORM idem_internal.refuse_token(
            'The token is null.', 'A replay has no token. Test "claimed" first, and return the '
                                  'stored answer if it is false.');
    ELSIF length(token) <> 44
        OR token !~ E'^(L[0-9a-f]{43}|[0-9a-f-]{26}-*\\([0-9]{1,10},[0-9]{1,4}\\))$'
        OR substring(token, E'\\(([0-9]+),')::bigint > 4294967295
    THEN
        PERFORM idem_internal.refuse_token(
            'The text is not a token of idem.claim().',
            'Pass the column "token" of the claim''s result, unchanged.');
    END IF;
END
$$;

CREATE FUNCTION idem_internal.number_in(token text)
RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN ('x' || substr(token, 2, 16))::bit(64)::bigint;

-- The row of a claim that a token names, and whether this transaction has written it, and has made
-- or gone on with the claim. When the claim has ended, only the entry knows the token.
CREATE FUNCTION idem_internal.claim_of(
    token text, OUT r idem.record, OUT is_own boolean, OUT is_known boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    entry CONSTANT text := CASE WHEN token LIKE 'L%' THEN left(token, 17)
                                ELSE idem_internal.atomic_entry(token) END;
    seen record;
BEGIN
    IF token LIKE '%)' THEN
        SELECT x AS row, idem_internal.is_own(x.xmin) AS is_own INTO seen FROM idem.record AS x
        WHERE x.ctid = ltrim(right(token, 18), '-')::tid AND starts_with(token, x.open);
        IF seen.is_own THEN
            r := seen.row;
            is_own := true;
            is_known := true;
            RETURN;
        END IF;
    END IF;
    is_known := coalesce(idem_internal.is_noted(entry), false);
    IF is_known THEN
        seen := idem_internal.noted(entry);
        r := seen.r;
        is_own := seen.is_own;
    END IF;
END
$$;

-- The row of a claim that a token names, and its scope, locked until the transaction ends.
CREATE FUNCTION idem_internal.lock_claim(
    caller oid, token text, OUT s idem.scope, OUT r idem.record
)
LANGUAGE plpgsql AS $$
DECLARE
    is_leased CONSTANT boolean := token LIKE 'L%';
    its_attempt integer;
    bound idem_internal.bound;
    holder idem_internal.holder;
    known record;
    is_known boolean;
    seen record;
BEGIN
    PERFORM idem_internal.check_token(token);
    known := idem_internal.claim_of(token);
    is_known := known.is_known;
    r := known.r;
    IF NOT is_leased AND known.is_own AND starts_with(token, r.open) THEN
        SELECT * INTO s FROM idem.scope AS x WHERE x.id = r.scope;
        RETURN;
    ELSIF is_known AND known.is_own AND r.state <> 'p' AND r.open IS NULL THEN
        PERFORM idem_internal.refuse_token(
            'The claim is already completed or failed.',
            'Call idem.complete() or idem.fail() once per claim. idem.lookup() shows what is '
            'stored.');
    ELSIF is_known
        AND (NOT is_leased AND NOT known.is_own
             OR known.is_own AND r.nonce IS NULL AND r.open IS NULL)
    THEN
        PERFORM idem_internal.refuse_token(
            'The claim was released by this transaction.',
            'Claim the key again to work on the operation.');
    ELSIF NOT is_leased THEN
        PERFORM idem_internal.refuse_token(
            'The token belongs to another transaction, or to a claim that was released or rolled '
            'back.',
            'Use the token in the transaction that made the claim. For a claim that outlives its '
            'transaction, pass "lease" to idem.claim(). idem.lookup() shows the state of a key.');
    END IF;

    its_attempt := ('x' || substr(token, 18, 8))::bit(32)::integer;
    LOOP
        SELECT x AS row, x.xmin AS written_by, x.xmax AS locked_by INTO seen
        FROM idem.record AS x
        WHERE x.number = idem_internal.number_in(token) AND x.leased IS NOT NULL;
        r := seen.row;
        SELECT * INTO s FROM idem.scope AS x
        WHERE x.id = r.scope AND pg_has_role(caller, x.owner, 'USAGE');
        IF NOT FOUND THEN
            PERFORM idem_internal.refuse_lease();
        END IF;
        -- A token that is stale or expired stays so: it waits for nothing.
        IF (r.attempt, r.nonce) IS DISTINCT FROM (its_attempt, right(token, 19)) THEN
            PERFORM idem_internal.refuse_lease(CASE
                WHEN r.attempt > its_attempt
                    THEN format('Attempt %s has taken the operation over.', r.attempt)
                WHEN r.attempt = its_attempt AND r.nonce IS NULL
                    THEN 'The attempt was released by its holder, or revoked by an administrator.'
            END);
        END IF;
        IF r.expires <= clock_timestamp() AND NOT idem_internal.is_own(seen.written_by) THEN
            PERFORM idem_internal.refuse_lease();
        END IF;
        IF NOT idem_internal.is_held(seen.locked_by) THEN
            -- The row decides. The key lock lets others see that the key is in flight; who can
            -- connect can read its number in pg_locks, and hold it.
            PERFORM pg_try_advisory_xact_lock(idem_internal.lock_id(s, r.tenant, r.key));
            PERFORM FROM idem.record AS x
            WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key) AND x = r
            FOR NO KEY UPDATE SKIP LOCKED;
            EXIT WHEN FOUND;
        END IF;
        SELECT * INTO holder FROM idem_internal.holder_of(NULL, seen.locked_by);
        bound := coalesce(bound, idem_internal.new_bound(s.wait));
        IF NOT idem_internal.wait_for(bound, NULL, r) THEN
            PERFORM idem_internal.refuse_in_progress(r.key, holder, bound);
        END IF;
    END LOOP;
    IF r.state <> 'p' THEN
        PERFORM idem_internal.refuse_token(
            'The claim is already completed or failed.',
            'Call idem.complete() or idem.fail() once per claim. idem.lookup() shows what is '
            'stored.');
    END IF;
    IF NOT is_known THEN
        PERFORM idem_internal.note(idem_internal.leased_entry(r.number, r.nonce));
    END IF;
END
$$;

-- The long way of complete() and fail(). Returns when the operation has finished; NULL for an error
-- of execute() that the scope does not list as final.
CREATE FUNCTION idem_internal.finish_slowly(
    caller oid, proof bytea, function text, token text, its_state "char", response jsonb,
    status integer, headers jsonb, body bytea, error jsonb
)
RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    l pg_catalog.record;
    s idem.scope;
    r idem.record;
    keeps boolean;
    stored_headers pg_catalog.jsonb;
    stored_response pg_catalog.jsonb;
    stored_body pg_catalog.bytea;
    code pg_catalog.text;
    now pg_catalog.timestamptz;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_writable(function);
    PERFORM idem_internal.header_lines('headers', headers) WHERE headers IS NOT NULL;
    IF its_state <> 'f' THEN
        its_state := 'c';
        error := NULL;
    ELSE
        IF error IS NULL THEN
            PERFORM idem_internal.refuse('error', NULL, NULL, NULL);
        END IF;
        PERFORM idem_internal.check_failure(error, true)
        WHERE function IS DISTINCT FROM 'execute';
    END IF;
    l := idem_internal.lock_claim(caller, token);
    s := l.s;
    r := l.r;
    IF function = 'execute' AND error IS NOT NULL THEN
        code := error ->> 'sqlstate';
        IF (idem_internal.failure_fault(code) IS NULL
            AND s.final_sqlstates && ARRAY[code, left(code, 2)]) IS NOT TRUE
        THEN
            RETURN NULL;
        END IF;
        PERFORM idem_internal.check_failure(error, true);
    END IF;
    now := clock_timestamp();
    keeps := its_state = 'f' OR coalesce(s.store_response, false);
    stored_headers := CASE WHEN keeps THEN headers END;
    stored_response := CASE WHEN keeps THEN response END;
    stored_body := CASE WHEN keeps THEN body END;
    IF s.store_request IS DISTINCT FROM 'always' THEN
        r.request := NULL;
    END IF;
    IF s.id IS NOT NULL THEN
        stored_headers := idem_internal.redacted_headers(stored_headers, s.header_exclude);
        stored_response := idem_internal.redacted(stored_response, s.response_exclude);
        PERFORM idem_internal.check_size(
            'answer', s, coalesce(octet_length(stored_body), 0)
                + idem_internal.size_of(stored_headers, stored_response, error));
    END IF;
    UPDATE idem.record AS x
    SET state = its_state,
        expires = CASE WHEN x.ttl IS NOT NULL THEN now + x.ttl
                  ELSE x.expires + idem_internal.fixed(now - coalesce(x.lease_end, x.created)) END,
        finished = CASE WHEN x.leased OR x.attempt > 1 THEN now END,
        leased = CASE WHEN x.leased IS NOT NULL THEN false END,
        nonce = CASE WHEN x.open IS NULL THEN x.nonce END,
        lease_end = NULL, open = NULL, ttl = NULL, extra_attempts = 0,
        recovery_point = NULL, recovery_state = NULL,
        redacted = stored_headers IS DISTINCT FROM headers
            OR stored_response IS DISTINCT FROM response OR stored_body IS DISTINCT FROM body,
        status = status, headers = stored_headers, response = stored_response,
        body = stored_body, error = error,
        request = CASE WHEN r.request IS NOT NULL THEN x.request END
    WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key);
    RETURN CASE WHEN r.leased OR r.attempt > 1 THEN now ELSE r.created END;
END
$$;

CREATE FUNCTION idem.complete(
    token text,
    response jsonb DEFAULT NULL,
    status integer DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    body bytea DEFAULT NULL
)
RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT idem_internal.complete(
        token COLLATE pg_catalog."C", response, status, headers, body)
    THEN
        PERFORM idem_internal.finish_slowly(
            c.role, c.proof, 'complete', token COLLATE pg_catalog."C",
            'c', response, status, headers, body, NULL)
        FROM idem_internal.caller AS c;
    END IF;
    RETURN response;
END
$$;

CREATE FUNCTION idem.fail(
    token text,
    error jsonb,
    status integer DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    body bytea DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idem_internal.finish_slowly(
        c.role, c.proof, 'fail', token COLLATE pg_catalog."C",
        'f', NULL, status, headers, body, error)
    FROM idem_internal.caller AS c;
END
$$;

-- A released leased operation keeps its row, without a nonce. lease_end is when it is due: after
-- the last attempt, at once.
CREATE FUNCTION idem_internal.release(
    caller oid, proof bytea, token text, retry_after interval, error jsonb
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    l pg_catalog.record;
    s idem.scope;
    r idem.record;
    due pg_catalog.timestamptz;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_writable('release');
    PERFORM idem_internal.check_duration('retry_after', retry_after, true);
    IF error IS NOT NULL THEN
        PERFORM idem_internal.check_failure(error, false);
    END IF;
    l := idem_internal.lock_claim(caller, token);
    s := l.s;
    r := l.r;
    IF r.open IS NULL THEN
        due := clock_timestamp() + CASE
            WHEN r.attempt >= s.max_attempts::bigint + r.extra_attempts THEN interval '0'
            ELSE coalesce(idem_internal.fixed(retry_after), '0') END;
        PERFORM idem_internal.check_size('error', s, idem_internal.size_of(error));
        UPDATE idem.record AS x
        SET lease_end = due, expires = x.expires + idem_internal.fixed(due - x.lease_end),
            nonce = NULL,
            error = coalesce(error, x.error)
        WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key);
        RETURN;
    ELSIF retry_after IS NOT NULL OR error IS NOT NULL THEN
        PERFORM idem_internal.refuse(
            CASE WHEN retry_after IS NULL THEN 'error' ELSE 'retry_after' END, '',
            'The token is of an atomic claim, of which nothing is stored.',
            'Leave the argument out, or make a leased claim: pass "lease" to idem.claim().');
    END IF;
    DELETE FROM idem.record AS x
    WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key) AND x.state = 'a'
        AND x.attempt = 1;  -- else it was left open, and the first attempt may have had its effect
    UPDATE idem.record AS x
    SET open = NULL, attempt = x.attempt - 1, ttl = NULL, redacted = false
    WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key);
END
$$;

CREATE FUNCTION idem.release(
    token text,
    retry_after interval DEFAULT NULL,
    error jsonb DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idem_internal.release(c.role, c.proof, token COLLATE pg_catalog."C", retry_after, error)
    FROM idem_internal.caller AS c;
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Leases
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.require_lease(token text, function text)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF length(token) = 44 AND token LIKE '%)' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('idem.%s() needs a leased claim', function),
            DETAIL = 'The token is of an atomic claim, which lasts until its transaction ends.',
            HINT = 'Pass "lease" to idem.claim() to make a leased claim.';
    END IF;
END
$$;

CREATE FUNCTION idem_internal.renew(caller oid, proof bytea, token text, lease interval)
RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l pg_catalog.record;
    s idem.scope;
    r idem.record;
    due pg_catalog.timestamptz;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_writable('renew'),
            idem_internal.check_duration('lease', lease, false),
            idem_internal.require_lease(token, 'renew');
    l := idem_internal.lock_claim(caller, token);
    s := l.s;
    r := l.r;
    due := clock_timestamp() + idem_internal.fixed(coalesce(lease, s.lease));
    UPDATE idem.record AS x
    SET lease_end = due, expires = x.expires + idem_internal.fixed(due - x.lease_end)
    WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key);
    PERFORM idem_internal.commit_durably();
    RETURN due;
END
$$;

CREATE FUNCTION idem.renew(token text, lease interval DEFAULT NULL)
RETURNS timestamptz
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT idem_internal.renew(c.role, c.proof, token COLLATE pg_catalog."C", lease)
            FROM idem_internal.caller AS c);
END
$$;

CREATE FUNCTION idem_internal.checkpoint(
    caller oid, proof bytea, token text, name text, state jsonb
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l pg_catalog.record;
    s idem.scope;
    r idem.record;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_writable('checkpoint');
    IF (octet_length(name) BETWEEN 1 AND 255) IS NOT TRUE THEN
        PERFORM idem_internal.refuse(
            'name', name, 'The name must have 1 to 255 bytes.',
            'Pass a short name of the step that is done, such as ''charged''.');
    END IF;
    PERFORM idem_internal.require_lease(token, 'checkpoint');
    l := idem_internal.lock_claim(caller, token);
    s := l.s;
    r := l.r;
    PERFORM idem_internal.check_size('recovery state', s, idem_internal.size_of(state));
    UPDATE idem.record AS x
    SET recovery_point = checkpoint.name, recovery_state = checkpoint.state
    WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key);
    PERFORM idem_internal.commit_durably();
END
$$;

CREATE FUNCTION idem.checkpoint(token text, name text, state jsonb DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idem_internal.checkpoint(c.role, c.proof, token COLLATE pg_catalog."C", name, state)
    FROM idem_internal.caller AS c;
END
$$;

-- Takers pass over rows and keys that others hold, and wait for no transaction. In REPEATABLE READ,
-- an operation that was changed after the snapshot raises 40001.
CREATE FUNCTION idem_internal.take(
    caller oid, proof bytea, scope text, tenant text, lease interval, wait interval
)
RETURNS idem.take_result
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    l pg_catalog.record;
    s idem.scope;
    r idem.record;
    c idem.claim_result;
    bound idem_internal.bound;
    meant pg_catalog.text;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_writable(
        'take', ' To see unfinished operations, use the view idem.in_flight.');
    meant := idem_internal.checked_tenant(tenant);
    meant := CASE WHEN tenant IS NULL THEN nullif(meant, '') ELSE meant END;
    PERFORM idem_internal.check_duration('lease', lease, false);
    PERFORM idem_internal.check_duration('wait', wait, true);
    s := idem_internal.usable_scope(caller, scope, 'take');
    IF s.tenant_from = 'role' AND (meant IS NOT NULL OR NOT (
        SELECT bool_and(rolsuper) FROM pg_roles
        WHERE rolname = idem_internal.outer_role() OR oid = caller))
    THEN
        meant := idem_internal.tenant_in(caller, s, coalesce(meant, ''));
    END IF;
    LOOP
        SELECT * INTO r FROM idem.record AS x
        WHERE x.scope = s.id AND x.leased AND x.lease_end <= clock_timestamp()
            AND x.expires > clock_timestamp()
            AND NOT idem_internal.is_open_here(x, x.xmin)
            AND (meant IS NULL OR x.tenant = meant)
            AND (s.max_attempts IS NULL
                 OR x.attempt < s.max_attempts::bigint + x.extra_attempts)
        ORDER BY x.lease_end
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM pg_try_advisory_xact_lock(idem_internal.lock_id(s, r.tenant, r.key));
            c := idem_internal.take_over(
                s, r,
                greatest(idem_internal.fixed(r.expires - r.lease_end),
                         idem_internal.least_ttl(s)),
                idem_internal.fixed(coalesce(lease, s.lease)));
            PERFORM idem_internal.commit_durably();
            RETURN (SELECT ROW(c.token, r.key, r.tenant, x.request, c.attempt, c.recovery_point,
                               c.recovery_state, x.error, c.created_at, x.expires)::idem.take_result
                    FROM idem.record AS x
                    WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key));
        END IF;
        bound := coalesce(bound, idem_internal.new_bound(wait));
        EXIT WHEN NOT idem_internal.wait_until(bound, 'infinity');
    END LOOP;
    RETURN NULL;
END
$$;

CREATE FUNCTION idem.take(
    scope text,
    tenant text DEFAULT NULL,
    lease interval DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.take_result
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT idem_internal.take(
            c.role, c.proof, scope COLLATE pg_catalog."C", tenant, lease, wait)
            FROM idem_internal.caller AS c);
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Calls that claim and finish
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.check_operation(operation regprocedure)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p pg_catalog.record;
BEGIN
    IF operation IS NULL THEN
        PERFORM idem_internal.refuse('operation', NULL, NULL, NULL);
    END IF;
    SELECT proname, n.oid AS schema, nspname INTO p
    FROM pg_proc JOIN pg_namespace AS n ON n.oid = pronamespace
    WHERE pg_proc.oid = operation AND prorettype = 'jsonb'::regtype AND NOT proretset
        AND prokind = 'f' AND proargtypes::text = 'jsonb'::regtype::oid::text;
    IF NOT FOUND THEN
        PERFORM idem_internal.refuse(
            'operation', '', 'The operation must be a function of one jsonb that returns jsonb.',
            'Pass its name with the type of its argument, such as ''make_payment(jsonb)''.');
    ELSIF NOT has_function_privilege(operation::oid, 'EXECUTE') THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('permission denied for function %s', p.proname);
    ELSIF NOT has_schema_privilege(p.schema, 'USAGE') THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('permission denied for schema %s', p.nspname);
    END IF;
END
$$;

-- The operation runs with the caller's rights, in a subtransaction.
CREATE FUNCTION idem.execute(
    scope text,
    key anycompatible,
    operation regprocedure,
    request jsonb DEFAULT NULL,
    tenant text DEFAULT NULL,
    ttl interval DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.execute_result
LANGUAGE plpgsql AS $$
DECLARE
    c idem.claim_result;
    e idem.execute_result;
    call pg_catalog.text;
    code pg_catalog.text;
    detail pg_catalog.text;
    hint pg_catalog.text;
BEGIN
    PERFORM idem_internal.check_writable('execute');
    PERFORM idem_internal.check_operation(operation);
    c := idem_internal.claim_or_replay(
        'execute', scope COLLATE pg_catalog."C", key::pg_catalog.text, pg_catalog.pg_typeof(key),
        request, tenant, ttl, NULL, wait);
    e.replayed := NOT c.claimed;
    e.outcome := c.outcome;
    e.response := c.response;
    e.error := c.error;
    e.redacted := c.redacted;
    e.completed_at := c.completed_at;
    IF e.replayed THEN
        RETURN e;
    END IF;
    PERFORM idem_internal.check_operation(operation);
    SELECT pg_catalog.format('SELECT %I.%I($1)', n.nspname, p.proname) INTO call
    FROM pg_catalog.pg_proc AS p, pg_catalog.pg_namespace AS n
    WHERE p.oid OPERATOR(pg_catalog.=) operation::pg_catalog.oid
        AND n.oid OPERATOR(pg_catalog.=) p.pronamespace;
    e.redacted := false;
    BEGIN
        EXECUTE call INTO e.response USING request;
        e.outcome := 'completed';
    EXCEPTION WHEN OTHERS OR assert_failure THEN
        GET STACKED DIAGNOSTICS
            code = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
        e.outcome := 'failed';
        e.response := NULL;
        e.error := idem_internal.failure_of(code, SQLERRM, detail, hint);
        e.completed_at := (
            SELECT idem_internal.finish_slowly(
                i.role, i.proof, 'execute', c.token, 'f', NULL, NULL, NULL, NULL, e.error)
            FROM idem_internal.caller AS i);
        IF e.completed_at IS NULL THEN
            RAISE;
        END IF;
        RETURN e;
    END;
    e.completed_at := c.created_at;
    IF NOT idem_internal.complete(c.token, e.response, NULL, NULL, NULL) THEN
        e.completed_at := (
            SELECT idem_internal.finish_slowly(
                i.role, i.proof, 'execute', c.token, 'c', e.response, NULL, NULL, NULL, NULL)
            FROM idem_internal.caller AS i);
    END IF;
    RETURN e;
END
$$;

CREATE FUNCTION idem_internal.failure_of(code text, message text, detail text, hint text)
RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN jsonb_strip_nulls(jsonb_build_object(
    'sqlstate', code, 'message', nullif(message, ''), 'detail', nullif(detail, ''),
    'hint', nullif(hint, '')));

CREATE FUNCTION idem.once(
    scope text,
    key anycompatible,
    request jsonb DEFAULT NULL,
    tenant text DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    c idem.claim_result;
BEGIN
    c := idem_internal.claim_or_replay(
        'once', scope COLLATE pg_catalog."C", key::pg_catalog.text, pg_catalog.pg_typeof(key),
        request, tenant, NULL, NULL, NULL);
    IF c.claimed THEN
        PERFORM idem.complete(c.token);
    END IF;
    RETURN c.claimed;
END
$$;

-- Returns the positions of the keys that are new. Takes no key locks: only the unique index keeps
-- concurrent calls apart, in the order of the keys. Each wait for a key is one of its own, within
-- the session's timeouts alone.
CREATE FUNCTION idem_internal.once_each(
    caller oid, proof bytea, scope text, keys text[], type regtype, tenant text
)
RETURNS SETOF integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s idem.scope;
    r idem.record;
    k pg_catalog.record;
    bound idem_internal.bound;
    session_bound CONSTANT pg_catalog.text := current_setting('lock_timeout');
    holder idem_internal.holder;
    seen pg_catalog.record;
    place integer := 0;
    tries integer;
    given pg_catalog.text;
    verdict pg_catalog.text;
    is_first boolean := true;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_writable('once_each');
    IF keys IS NULL OR array_ndims(keys) > 1 THEN
        PERFORM idem_internal.refuse(
            'keys', keys::text, 'The array must have one dimension.',
            'Pass the keys as ARRAY[''order-1'', ''order-2''].');
    END IF;
    PERFORM idem_internal.check_key_type(type, 'keys')
    WHERE keys[array_lower(keys, 1)] IS NOT NULL;
    FOREACH given IN ARRAY keys LOOP
        place := place + 1;
        IF (octet_length(given) BETWEEN 1 AND 255) IS NOT TRUE THEN
            PERFORM idem_internal.check_key(given, place => place);
        END IF;
    END LOOP;
    tenant := idem_internal.checked_tenant(tenant);
    s := idem_internal.scope_to_write(caller, scope, 'once_each');
    tenant := idem_internal.tenant_in(caller, s, tenant);
    bound := idem_internal.new_bound('365000 days');
    BEGIN
        FOR k IN
            SELECT u.key COLLATE "C" AS key, min(u.n)::integer AS place
            FROM unnest(keys) WITH ORDINALITY AS u (key, n)
            GROUP BY 1
            ORDER BY 1
        LOOP
            tries := 0;
            verdict := CASE WHEN NOT s.has_rules THEN 'claim' END;
            IF bound.setting = 'statement_timeout' THEN
                PERFORM idem_internal.limit_waits(bound);
            END IF;
            LOOP
                IF verdict = 'claim' THEN
                    INSERT INTO idem.record AS x (
                        scope, tenant, key, attempt, created, expires, state)
                    VALUES (
                        s.id, tenant, k.key, 1, clock_timestamp(),
                        clock_timestamp() + s.fixed_ttl, 'c')
                    ON CONFLICT DO NOTHING;
                    verdict := CASE WHEN FOUND THEN 'new' END;
                    EXIT WHEN FOUND;
                    tries := idem_internal.check_tries(tries);
                END IF;
                SELECT x AS row, x.xmin AS written_by, x.xmax AS locked_by INTO seen
                FROM idem.record AS x
                WHERE (x.scope, x.tenant, x.key) = (s.id, tenant, k.key);
                r := seen.row;
                -- Only what is changed stays locked: another row may be under a lease.
                IF idem_internal.is_held(seen.locked_by) THEN
                    bound := idem_internal.new_bound('365000 days');
                    CONTINUE WHEN idem_internal.wait_for(bound, NULL, r);
                    RAISE lock_not_available;
                END IF;
                r.secret := 0;  -- requests are not compared
                verdict := idem_internal.verdict(s, r, seen.written_by, NULL, clock_timestamp());
                IF r.scope IS NOT NULL AND verdict IN ('claim', 'take_over') THEN
                    PERFORM FROM idem.record AS x
                    WHERE (x.scope, x.tenant, x.key) = (s.id, tenant, k.key) AND x = seen.row
                    FOR NO KEY UPDATE;
                    IF NOT FOUND THEN
                        verdict := NULL;
                        CONTINUE;
                    END IF;
                END IF;
                IF verdict = 'open_here' THEN
                    PERFORM idem_internal.refuse_open_here(
                        k.key, 'Complete the claim first, or leave the key out of "keys".');
                ELSIF verdict = 'claim' THEN
                    IF s.request_required THEN
                        PERFORM idem_internal.refuse(
                            'scope', '',
                            'The scope requires requests, and idem.once_each() takes none.',
                            'Call idem.once() with the key and the request of each message.');
                    END IF;
                    PERFORM idem_internal.check_new_key(s, tenant, k.key);
                    IF r.scope IS NOT NULL THEN  -- what was not seen, another call may have stored
                        DELETE FROM idem.record AS x
                        WHERE (x.scope, x.tenant, x.key) = (s.id, tenant, k.key);
                    END IF;
                    CONTINUE;
                ELSIF verdict = 'take_over' THEN
                    UPDATE idem.record AS x
                    SET attempt = x.attempt + 1, state = 'c', finished = clock_timestamp(),
                        expires = clock_timestamp() + s.fixed_ttl, nonce = NULL, open = NULL,
                        leased = CASE WHEN x.leased IS NOT NULL THEN false END, ttl = NULL,
                        lease_end = NULL, extra_attempts = 0, recovery_point = NULL,
                        recovery_state = NULL, error = NULL, request = NULL
                    WHERE (x.scope, x.tenant, x.key) = (s.id, tenant, k.key);
                    verdict := 'new';
                END IF;
                EXIT;
            END LOOP;
            CONTINUE WHEN (verdict = 'new') IS NOT TRUE;
            PERFORM idem_internal.note(x.ctid || repeat('-', 16), false) FROM idem.record AS x
            WHERE is_first AND (x.scope, x.tenant, x.key) = (s.id, tenant, k.key);
            is_first := false;
            RETURN NEXT k.place;
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        PERFORM idem_internal.is_within(bound);
        SELECT * INTO holder FROM idem_internal.holder_of(
            idem_internal.lock_id(s, tenant, k.key));
        PERFORM idem_internal.refuse_in_progress(k.key, holder, bound);
    END;
    PERFORM set_config('lock_timeout', session_bound, true);
END
$$;

CREATE FUNCTION idem.once_each(scope text, keys anycompatiblearray, tenant text DEFAULT NULL)
RETURNS SETOF anycompatible
LANGUAGE plpgsql AS $$
BEGIN
    -- A subscript would read the array from its beginning, for each key.
    RETURN QUERY
        WITH new_key AS MATERIALIZED (
            SELECT p AS place
            FROM idem_internal.caller AS c,
                idem_internal.once_each(
                    c.role, c.proof, scope COLLATE pg_catalog."C", keys::pg_catalog.text[],
                    pg_catalog.pg_typeof(keys[1]), tenant) AS p
        )
        SELECT u.key
        FROM new_key AS n
            JOIN pg_catalog.unnest(keys) WITH ORDINALITY AS u (key, place)
                ON u.place OPERATOR(pg_catalog.=) n.place
        ORDER BY n.place;
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Looking up and cancelling
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.look_up(s idem.scope, tenant text, key text, wait interval)
RETURNS idem.lookup_result
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    r idem.record;
    i idem.lookup_result;
    holder idem_internal.holder;
    bound idem_internal.bound;
    lock_id CONSTANT bigint := idem_internal.lock_id(s, tenant, key);
    seen record;
    locked_by xid;
    now timestamptz;
    verdict text;
    is_held boolean;
    is_here boolean;
BEGIN
    LOOP
        -- Before the record, so that a holder that ends meanwhile is not overlooked; but a finished
        -- record needs no look at all locks, which is slow.
        IF verdict IS NOT NULL THEN
            SELECT * INTO holder FROM idem_internal.holder_of(
                CASE WHEN NOT pg_is_in_recovery() THEN lock_id END, locked_by);
            is_held := FOUND;
        END IF;
        SELECT x AS row, x.xmin AS written_by, x.xmax AS locked_by INTO seen
        FROM idem.record AS x
        WHERE (x.scope, x.tenant, x.key) = (s.id, tenant, key);
        r := seen.row;
        locked_by := seen.locked_by;
        now := clock_timestamp();
        is_here := idem_internal.is_own(seen.written_by);
        r.secret := 0;  -- requests are not compared
        verdict := idem_internal.verdict(s, r, seen.written_by, NULL, now);
        EXIT WHEN verdict IN ('completed', 'failed', 'open_here') OR is_here;
        CONTINUE WHEN is_held IS NULL;
        EXIT WHEN (verdict = 'exhausted' AND NOT is_held)
            OR (verdict = 'claim' AND NOT is_held AND NOT pg_is_in_recovery());
        bound := coalesce(bound, idem_internal.new_bound(wait));
        EXIT WHEN NOT idem_internal.wait_until(bound, 'infinity');
    END LOOP;
    IF verdict IN ('completed', 'failed') THEN
        r := idem_internal.shown(s, r, now);
        i.state := verdict;
        i.response := r.response;
        i.status := r.status;
        i.headers := r.headers;
        i.body := r.body;
        i.error := r.error;
        i.redacted := r.redacted;
        i.completed_at := coalesce(r.finished, r.created);
    ELSIF verdict = 'claim' AND NOT is_held THEN
        PERFORM idem_internal.require_tenant(s, tenant);
        IF pg_is_in_recovery() THEN
            RAISE NOTICE USING
                MESSAGE = 'key is not known on this standby',
                DETAIL = 'A standby may lag behind its primary, and does not see claims in flight.',
                HINT = 'Call idem.lookup() on the primary before you execute the operation.';
        END IF;
        i.state := 'absent';
        RETURN i;
    ELSE
        i.state := CASE verdict WHEN 'exhausted' THEN verdict ELSE 'in_progress' END;
        i.error := CASE verdict WHEN 'exhausted' THEN r.error END;
        i.attempt := 1;
        i.since := holder.since;
        i.holder_pid := CASE WHEN is_here THEN pg_backend_pid() ELSE holder.pid END;
        IF verdict = 'claim' THEN
            RETURN i;
        ELSIF r.open IS NOT NULL THEN
            i.attempt := r.attempt;
            i.since := r.created;
            RETURN i;
        END IF;
        i.lease_end := r.lease_end;
    END IF;
    i.attempt := r.attempt;
    i.created_at := r.created;
    i.expires_at := r.expires;
    i.since := r.created;
    RETURN i;
END
$$;

CREATE FUNCTION idem_internal.lookup(
    caller oid, proof bytea, scope text, key text, type regtype, tenant text, wait interval
)
RETURNS idem.lookup_result
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s idem.scope;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_duration('wait', wait, true);
    PERFORM idem_internal.check_key(key, type);
    tenant := idem_internal.checked_tenant(tenant);
    s := idem_internal.usable_scope(caller, scope, 'lookup');
    RETURN idem_internal.look_up(s, idem_internal.tenant_in(caller, s, tenant), key, wait);
END
$$;

CREATE FUNCTION idem.lookup(
    scope text,
    key anycompatible,
    tenant text DEFAULT NULL,
    wait interval DEFAULT NULL
)
RETURNS idem.lookup_result
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    cleared pg_catalog.text;
    l idem.lookup_result;
BEGIN
    IF wait IS NULL AND pg_catalog.pg_typeof(key) OPERATOR(pg_catalog.=) ANY (
        '{pg_catalog.text,pg_catalog.uuid}'::pg_catalog.regtype[])
    THEN
        IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.!~~) 'read%' THEN
            PERFORM idem_internal.check_snapshot();
        END IF;
        cleared := pg_catalog.concat(
            pg_catalog.set_config('idem_sql.scope', scope, true),
            pg_catalog.set_config('idem_sql.tenant', coalesce(
                tenant, pg_catalog.current_setting('idem.tenant', true), ''), true),
            pg_catalog.set_config('idem_sql.key', key::pg_catalog.text, true));
        SELECT a.outcome, a.attempt, a.response, a.status, a.headers, a.body, a.error, a.created_at,
               a.expires_at, NULL::pg_catalog.timestamptz, NULL::pg_catalog.int4, a.created_at,
               a.redacted, a.completed_at
        INTO l
        FROM idem_internal.answer AS a;
        cleared := pg_catalog.concat(
            pg_catalog.set_config('idem_sql.tenant', '', true),
            pg_catalog.set_config('idem_sql.key', '', true));
        IF l.state OPERATOR(pg_catalog.<>) '' THEN
            RETURN l;
        END IF;
    END IF;
    RETURN (SELECT idem_internal.lookup(
                c.role, c.proof, scope COLLATE pg_catalog."C", key::pg_catalog.text,
                pg_catalog.pg_typeof(key), tenant, wait)
            FROM idem_internal.caller AS c);
END
$$;

-- Takes the lock of a key or a source, within the bound; raises ID001 when it has come.
CREATE FUNCTION idem_internal.lock_name(
    s idem.scope, lock_id bigint, name text, INOUT bound idem_internal.bound DEFAULT NULL
)
LANGUAGE plpgsql AS $$
DECLARE
    holder idem_internal.holder;
BEGIN
    WHILE NOT pg_try_advisory_xact_lock(lock_id) LOOP
        SELECT * INTO holder FROM idem_internal.holder_of(lock_id);
        bound := coalesce(bound, idem_internal.new_bound(s.wait));
        IF NOT idem_internal.wait_for_key(bound, lock_id) THEN
            PERFORM idem_internal.refuse_in_progress(name, holder, bound);
        END IF;
    END LOOP;
END
$$;

-- Whether no other transaction has locked the row. It stays locked only if it has expired, and is
-- to be replaced: an answer about another row must not hold up its holder.
CREATE FUNCTION idem_internal.is_at_rest(r idem.record, now timestamptz)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM idem.record AS x
    WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key) AND x = r
    FOR UPDATE SKIP LOCKED;
    IF FOUND AND r.expires > now THEN
        RAISE SQLSTATE 'ID000';  -- gives the lock back
    END IF;
    RETURN FOUND;
EXCEPTION
    WHEN SQLSTATE 'ID000' THEN RETURN true;
END
$$;

-- Stores a final failure under a key that has no record.
CREATE FUNCTION idem_internal.cancel(
    caller oid, proof bytea, scope text, key text, type regtype, tenant text, error jsonb
)
RETURNS idem.lookup_result
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s idem.scope;
    r idem.record;
    bound idem_internal.bound;
    holder idem_internal.holder;
    seen pg_catalog.record;
    answer idem.lookup_result;
    place pg_catalog.tid;
    tries integer := 0;
    now pg_catalog.timestamptz;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_writable('cancel');
    IF error IS NOT NULL THEN
        PERFORM idem_internal.check_failure(error, true);
    END IF;
    PERFORM idem_internal.check_key(key, type);
    tenant := idem_internal.checked_tenant(tenant);
    s := idem_internal.scope_to_write(caller, scope, 'cancel');
    tenant := idem_internal.tenant_in(caller, s, tenant);
    LOOP
        bound := idem_internal.lock_name(
            s, idem_internal.lock_id(s, tenant, key), key, bound);
        SELECT x AS row, x.xmin AS written_by, x.xmax AS locked_by INTO seen FROM idem.record AS x
        WHERE (x.scope, x.tenant, x.key) = (s.id, tenant, key);
        r := seen.row;
        IF idem_internal.is_open_here(r, seen.written_by) THEN
            PERFORM idem_internal.refuse_open_here(
                key, 'Release the claim with idem.release(), or call idem.cancel() in another '
                     'transaction after this one has ended.');
        END IF;
        now := clock_timestamp();
        IF r.scope IS NOT NULL AND NOT idem_internal.is_at_rest(r, now) THEN
            SELECT * INTO holder FROM idem_internal.holder_of(NULL, seen.locked_by);
            bound := coalesce(bound, idem_internal.new_bound(s.wait));
            CONTINUE WHEN idem_internal.wait_for(bound, NULL, r);
            PERFORM idem_internal.refuse_in_progress(key, holder, bound);
        END IF;
        IF r.expires > now THEN
            answer := idem_internal.look_up(s, tenant, key, '0');
            CONTINUE WHEN answer.state = 'absent';  -- it has just expired, or was forgotten
            RETURN answer;
        END IF;
        PERFORM idem_internal.check_new_key(s, tenant, key);
        error := coalesce(error, '{"message": "operation was cancelled before it ran"}');
        PERFORM idem_internal.check_size('answer', s, idem_internal.size_of(error));
        IF r.scope IS NOT NULL THEN  -- what was not seen, idem.once_each() may have stored
            DELETE FROM idem.record AS x WHERE (x.scope, x.tenant, x.key) = (s.id, tenant, key);
        END IF;
        INSERT INTO idem.record AS x (
            scope, tenant, key, attempt, created, expires, state, secret, fingerprint, error)
        VALUES (s.id, tenant, key, 1, now, now + s.fixed_ttl, 'f', 0, '', error)
        ON CONFLICT DO NOTHING
        RETURNING x.ctid INTO place;
        EXIT WHEN FOUND;
        tries := idem_internal.check_tries(tries);  -- idem.once_each() takes no key lock
    END LOOP;
    PERFORM idem_internal.note(place || repeat('-', 16));
    RETURN idem_internal.look_up(s, tenant, key, '0');
END
$$;

CREATE FUNCTION idem.cancel(
    scope text,
    key anycompatible,
    tenant text DEFAULT NULL,
    error jsonb DEFAULT NULL
)
RETURNS idem.lookup_result
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT idem_internal.cancel(
                c.role, c.proof, scope COLLATE pg_catalog."C", key::pg_catalog.text,
                pg_catalog.pg_typeof(key), tenant, error)
            FROM idem_internal.caller AS c);
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Streams
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem_internal.check_source(source text)
RETURNS void
LANGUAGE sql
RETURN idem_internal.check_name(
    source, 'source', 'source',
    'Pass a name of 1 to 255 bytes, such as a topic and its partition.');

-- A watermark that another transaction has changed after the snapshot of a REPEATABLE READ
-- transaction raises 40001. The lock is given back, so that a duplicate holds up no other call.
CREATE FUNCTION idem_internal.check_watermark(scope integer, tenant text, source text)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM FROM idem.watermark AS w
        WHERE (w.scope, w.tenant, w.source) = (scope, tenant, source)
        FOR SHARE SKIP LOCKED;
        RAISE SQLSTATE 'ID000';
    END IF;
EXCEPTION
    WHEN SQLSTATE 'ID000' THEN NULL;
END
$$;

CREATE FUNCTION idem_internal.advance(
    caller oid, proof bytea, scope text, source text, seq bigint, tenant text, contiguous boolean
)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s idem.scope;
    mark bigint;
    is_own boolean;
    place pg_catalog.tid;
    is_locked boolean := false;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_writable(
        'advance', ' To read how far a source has come, use the view idem.streams.');
    IF seq IS NULL THEN
        PERFORM idem_internal.refuse('seq', NULL, NULL, NULL);
    END IF;
    PERFORM idem_internal.check_default('contiguous', contiguous);
    PERFORM idem_internal.check_source(source);
    tenant := idem_internal.checked_tenant(tenant);
    s := idem_internal.scope_to_write(caller, scope, 'advance');
    tenant := idem_internal.tenant_in(caller, s, tenant);
    LOOP
        SELECT w.seq, idem_internal.is_own(w.xmin) INTO mark, is_own FROM idem.watermark AS w
        WHERE (w.scope, w.tenant, w.source) = (s.id, tenant, source);
        IF seq <= mark THEN
            PERFORM idem_internal.check_watermark(s.id, tenant, source);
            RETURN false;
        END IF;
        EXIT WHEN is_locked;
        PERFORM idem_internal.lock_name(
            s, idem_internal.lock_id(s, tenant, 'source' || E'\x1f' || source), source);
        is_locked := true;
    END LOOP;
    IF contiguous AND mark + 1 < seq THEN
        PERFORM idem_internal.check_watermark(s.id, tenant, source);
        PERFORM idem_internal.raise(
            'ID012', format('gap in the sequence of source "%s"', source),
            format('Expected number %s, got %s.', mark + 1, seq),
            'Handle the missing messages first, or skip them with "contiguous => false".');
    ELSIF mark IS NULL THEN
        PERFORM idem_internal.require_tenant(s, tenant);
    END IF;
    INSERT INTO idem.watermark AS w (scope, tenant, source, seq, updated)
    VALUES (s.id, tenant, source, seq, clock_timestamp())
    ON CONFLICT ON CONSTRAINT watermark_pkey
        DO UPDATE SET seq = excluded.seq, updated = excluded.updated WHERE w.seq < excluded.seq
    RETURNING w.ctid INTO place;
    IF NOT FOUND THEN
        RETURN false;  -- a subscription has moved the source on
    ELSIF is_own IS NOT TRUE THEN
        PERFORM idem_internal.note(concat('S', place));
    END IF;
    RETURN true;
END
$$;

CREATE FUNCTION idem_internal.check_default(argument text, value boolean)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NULL THEN
        RAISE null_value_not_allowed USING
            MESSAGE = format('argument "%s" must not be null', argument),
            DETAIL = 'NULL does not stand for the argument''s default.',
            HINT = format('Pass a value for "%s", or leave it out to get its default.', argument);
    END IF;
END
$$;

CREATE FUNCTION idem.advance(
    scope text,
    source text,
    seq bigint,
    tenant text DEFAULT NULL,
    contiguous boolean DEFAULT false
)
RETURNS boolean
LANGUAGE sql
BEGIN ATOMIC
    SELECT idem_internal.advance(
            c.role, c.proof, scope COLLATE pg_catalog."C", source, seq, tenant, contiguous)
    FROM idem_internal.caller AS c;
END;

CREATE FUNCTION idem_internal.reset_stream(
    caller oid, proof bytea, scope text, source text, seq bigint, tenant text
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s idem.scope;
    before bigint;
BEGIN
    proof := idem_internal.check_administrator(
        caller, proof, 'reset_stream',
        ' To read how far a source has come, use the view idem.streams.');
    PERFORM idem_internal.check_source(source);
    tenant := idem_internal.checked_tenant(tenant);
    s := idem_internal.usable_scope(caller, scope, 'reset_stream');
    tenant := idem_internal.tenant_in(caller, s, tenant);
    PERFORM idem_internal.lock_name(
        s, idem_internal.lock_id(s, tenant, 'source' || E'\x1f' || source), source);
    SELECT w.seq INTO before FROM idem.watermark AS w
    WHERE (w.scope, w.tenant, w.source) = (s.id, tenant, source)
    FOR UPDATE;
    IF before IS NULL THEN
        PERFORM idem_internal.require_tenant(s, tenant);
    END IF;
    -- A row that is not in the snapshot of a REPEATABLE READ transaction is in the way of the
    -- insert, also where none is to stay.
    IF seq IS NOT NULL OR before IS NULL THEN
        INSERT INTO idem.watermark AS w (scope, tenant, source, seq, updated)
        VALUES (s.id, tenant, source, coalesce(seq, 0), clock_timestamp())
        ON CONFLICT ON CONSTRAINT watermark_pkey
            DO UPDATE SET seq = excluded.seq, updated = excluded.updated;
    END IF;
    IF seq IS NULL THEN
        DELETE FROM idem.watermark AS w
        WHERE (w.scope, w.tenant, w.source) = (s.id, tenant, source);
    END IF;
    RETURN before;
END
$$;

CREATE FUNCTION idem.reset_stream(
    scope text,
    source text,
    seq bigint DEFAULT NULL,
    tenant text DEFAULT NULL
)
RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
    SELECT idem_internal.reset_stream(
            c.role, c.proof, scope COLLATE pg_catalog."C", source, seq, tenant)
    FROM idem_internal.caller AS c;
END;

-- ---------------------------------------------------------------------------------------------
-- Keys, and the guard
-- ---------------------------------------------------------------------------------------------

-- The keys of a session ascend: the setting idem_sql.last_tick is the time of the newest, in
-- 4096ths of a millisecond.
CREATE FUNCTION idem.new_key()
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    usecs CONSTANT bigint := 1000000 * extract(epoch FROM clock_timestamp());
    tick CONSTANT bigint := greatest(
        (usecs / 1000 << 12) + usecs % 1000 * 4096 / 1000,
        nullif(current_setting('idem_sql.last_tick', true), '')::bigint + 1);
    time CONSTANT pg_catalog.text := lpad(to_hex(tick >> 12), 12, '0');
BEGIN
    PERFORM set_config('idem_sql.last_tick', tick::text, false);
    RETURN left(time, 8) || '-' || right(time, 4) || '-7' || lpad(to_hex(tick & 4095), 3, '0')
        || '-' || substr(gen_random_uuid()::text, 20);
END
$$;

-- The digest and the HMAC are those of the extension, so that a database that moves to it keeps its
-- child keys.
CREATE FUNCTION idem_internal.child_key(caller oid, proof bytea, token text, step text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r idem.record;
    digest pg_catalog.bytea;
    inner_key pg_catalog.bytea := decode(repeat('36', 64), 'hex');
    outer_key pg_catalog.bytea := decode(repeat('5c', 64), 'hex');
    seed pg_catalog.bytea;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    PERFORM idem_internal.check_token(token);
    IF (octet_length(step) BETWEEN 1 AND 255) IS NOT TRUE THEN
        PERFORM idem_internal.refuse(
            'step', step, 'The name of a step must have 1 to 255 bytes.',
            'Pass a short name of the step, such as ''charge''.');
    END IF;
    IF token LIKE 'L%' THEN
        SELECT x.* INTO r FROM idem.record AS x JOIN idem.scope AS s ON s.id = x.scope
        WHERE x.number = idem_internal.number_in(token) AND x.leased IS NOT NULL
            AND pg_has_role(caller, s.owner, 'USAGE');
        IF NOT FOUND THEN
            PERFORM idem_internal.refuse_lease();
        END IF;
    ELSE
        -- When the claim has ended, the row no longer proves the token.
        SELECT (c.r).* INTO r FROM idem_internal.claim_of(token) AS c
        WHERE c.is_known AND c.is_own AND (starts_with(token, (c.r).open) OR EXISTS (
            SELECT FROM idem.scope AS s
            WHERE s.id = (c.r).scope AND pg_has_role(caller, s.owner, 'USAGE')));
        IF r.scope IS NULL THEN
            PERFORM idem_internal.lock_claim(caller, token);
        END IF;
    END IF;
    digest := sha256(
        int8send(r.scope) || int4send(octet_length(convert_to(r.tenant, 'UTF8')))
        || convert_to(r.tenant, 'UTF8') || int4send(octet_length(convert_to(r.key, 'UTF8')))
        || convert_to(r.key, 'UTF8'));
    digest := substr(
        coalesce(substr(int8send(floor(1000 * extract(epoch FROM idem_internal.key_time(r.key)))
                                 ::bigint), 3), '') || digest, 1, 16);
    SELECT k.secret INTO seed FROM idem.secret AS k WHERE k.id = 0;
    FOR i IN 0 .. 31 LOOP
        inner_key := set_byte(inner_key, i, get_byte(inner_key, i) # get_byte(seed, i));
        outer_key := set_byte(outer_key, i, get_byte(outer_key, i) # get_byte(seed, i));
    END LOOP;
    RETURN encode(sha256(outer_key || sha256(
        inner_key || int4send(14) || 'idem.child_key'::bytea || digest
        || int4send(octet_length(convert_to(step, 'UTF8'))) || convert_to(step, 'UTF8'))), 'hex');
END
$$;

CREATE FUNCTION idem.child_key(token text, step text)
RETURNS text
LANGUAGE sql
BEGIN ATOMIC
    SELECT idem_internal.child_key(c.role, c.proof, token COLLATE pg_catalog."C", step)
    FROM idem_internal.caller AS c;
END;

CREATE FUNCTION idem.current_key()
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT (n.r).key
            FROM idem_internal.entries() AS e (entry), idem_internal.noted(e.entry) AS n
            WHERE n.is_open
            LIMIT 1);
END
$$;

-- A claim that is open, or that this transaction has finished. The purge and administrators write
-- rows that were finished before. A transition table comes before a relation without its schema.
CREATE FUNCTION idem.require_claim()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown pg_catalog.text;
BEGIN
    IF TG_NARGS = 0 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('trigger "%s" names no scope', TG_NAME),
            DETAIL = 'idem.require_claim() takes the names of one or more scopes.',
            HINT = 'Create the trigger with the names of the scopes as its arguments, for example '
                   'with EXECUTE FUNCTION idem.require_claim(''payments'').';
    ELSIF NOT EXISTS (
        SELECT FROM idem_internal.entries() AS e (entry), idem_internal.noted(e.entry) AS n
        WHERE (n.is_open OR n.is_own AND (n.r).state <> 'p'
                   AND coalesce((n.r).finished, (n.r).created) >= transaction_timestamp())
            AND EXISTS (SELECT FROM idem.scope AS s
                        WHERE s.id = (n.r).scope AND s.name = ANY (TG_ARGV[:])))
    THEN
        SELECT a INTO unknown FROM unnest(TG_ARGV[:]) WITH ORDINALITY AS t (a, n)
        WHERE NOT EXISTS (SELECT FROM idem.scope AS s WHERE s.name = a)
        ORDER BY n
        LIMIT 1;
        IF FOUND THEN
            PERFORM idem_internal.raise(
                'ID008', format('scope "%s" does not exist', unknown),
                format('Trigger "%s" of table "%s" names this scope.', TG_NAME, TG_TABLE_NAME),
                coalesce(
                    'Perhaps you meant the scope "' || idem_internal.nearest_scope(
                        (SELECT r.oid FROM pg_catalog.pg_roles AS r
                         WHERE r.rolname = idem_internal.outer_role()), unknown) || '".',
                    'Create the scope first with idem.create_scope(), or use one of the scopes '
                    'that idem.scopes lists.'));
        END IF;
        RAISE EXCEPTION USING
            ERRCODE = 'ID011', CONSTRAINT = 'claim_required', SCHEMA = TG_TABLE_SCHEMA,
            TABLE = TG_TABLE_NAME,
            MESSAGE = format('cannot write to table "%s" without a claim', TG_TABLE_NAME),
            DETAIL = CASE WHEN TG_NARGS = 1 THEN 'This transaction has no claim in scope '
                          ELSE 'This transaction has no claim in any of the scopes ' END
                || (SELECT string_agg('"' || a || '"', ', ' ORDER BY n)
                    FROM unnest(TG_ARGV[:]) WITH ORDINALITY AS t (a, n)) || '.',
            HINT = 'Before the write, claim the operation''s key with idem.claim(), or renew its '
                   'lease with idem.renew(), in the same transaction. ROLLBACK TO a savepoint '
                   'undoes what was claimed after it.';
    END IF;
    RETURN coalesce(NEW, OLD);
END
$$;

\ir managed_administration.sql

COMMIT;
