-- Moves a database from the SQL edition to the extension, with every live key (docs/managed.md).
-- Run it as a superuser:
--
--     psql -f sql/managed_move.sql
--
-- It is one transaction, which waits for the transactions that have an open claim and keeps others
-- from claiming until it commits. Calls that arrive meanwhile fail with an error of class 42 or XX,
-- and their retries find the extension. Reconnect pools afterwards, which have prepared statements.
\set ON_ERROR_STOP on
-- Each statement must see what the locks waited for, whatever the session's default is.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;
-- A long transaction must not make all others wait behind this one. Run the script again then.
SET LOCAL lock_timeout = '5s';

-- This script has a superuser's rights, and whatever is in the schemas of the SQL edition may have
-- been changed by the role that installed it. So it first takes the schemas and what it reads from
-- that role, which can rename and replace nothing from then on; calls no function there; and reads
-- tables only: no views, no types and no indexes that would run a function of that role.
DO $$
BEGIN
    IF to_regclass('idem.record') IS NULL OR to_regclass('idem.dropped_scope') IS NULL
        OR EXISTS (SELECT FROM pg_extension WHERE extname = 'idem')
    THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'the SQL edition of idem is not installed in this database',
            HINT = 'Connect to the database that has it.';
    END IF;
END
$$;

ALTER SCHEMA idem OWNER TO CURRENT_USER;
ALTER SCHEMA idem_internal OWNER TO CURRENT_USER;
-- In the order in which claims lock them; the sequence may be a part of idem.scope.
ALTER TABLE idem.secret OWNER TO CURRENT_USER;
ALTER TABLE idem.scope OWNER TO CURRENT_USER;
ALTER TABLE idem.record OWNER TO CURRENT_USER;
ALTER TABLE idem.watermark OWNER TO CURRENT_USER;
ALTER TABLE idem.dropped_scope OWNER TO CURRENT_USER;
ALTER TABLE idem.scope_id OWNER TO CURRENT_USER;
LOCK TABLE idem.secret, idem.scope, idem.record, idem.watermark, idem.dropped_scope
    IN ACCESS EXCLUSIVE MODE;

DO $$
DECLARE
    part text;
BEGIN
    WITH moved AS (
        SELECT c.oid, c.relkind FROM pg_class AS c
        WHERE c.oid IN (
            'idem.secret'::regclass, 'idem.scope'::regclass, 'idem.record'::regclass,
            'idem.watermark'::regclass, 'idem.dropped_scope'::regclass)
    )
    SELECT pg_describe_object(f.classid, f.oid, f.subid) INTO part
    FROM (
        SELECT 'pg_class'::regclass, oid, 0 FROM moved WHERE relkind <> 'r'
        UNION ALL
        SELECT 'pg_class'::regclass, oid, 0 FROM pg_class
        WHERE oid = 'idem.scope_id'::regclass AND relkind <> 'S'
        UNION ALL
        SELECT 'pg_class'::regclass, i.inhrelid, 0 FROM pg_inherits AS i JOIN moved AS m
            ON m.oid IN (i.inhparent, i.inhrelid)
        UNION ALL
        SELECT 'pg_class'::regclass, a.attrelid, a.attnum
        FROM pg_attribute AS a JOIN moved AS m ON m.oid = a.attrelid
        WHERE a.attnum > 0 AND NOT a.attisdropped
            AND (a.atttypid >= 16384 OR a.attgenerated NOT IN ('', 's'))
        UNION ALL
        SELECT d.classid, d.objid, 0
        FROM pg_depend AS d
        WHERE d.refobjid >= 16384
            AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass,
                                 'pg_type'::regclass, 'pg_opclass'::regclass)
            AND (d.classid = 'pg_class'::regclass
                 AND d.objid IN (SELECT i.indexrelid FROM pg_index AS i
                                 JOIN moved AS m ON m.oid = i.indrelid)
                 OR d.classid = 'pg_constraint'::regclass
                 AND d.objid IN (SELECT k.oid FROM pg_constraint AS k
                                 JOIN moved AS m ON m.oid = k.conrelid)
                 OR d.classid = 'pg_statistic_ext'::regclass
                 AND d.objid IN (SELECT x.oid FROM pg_statistic_ext AS x
                                 JOIN moved AS m ON m.oid = x.stxrelid))
    ) AS f (classid, oid, subid)
    LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'the tables of the SQL edition have been changed',
            DETAIL = format('This may run code of another role with your rights: %s.', part),
            HINT = 'Drop it, or give the column back its type, and run the script again.';
    END IF;
END
$$;

-- idem writes no such key, but its owner and a subscription could.
DO $$
DECLARE
    r record;
BEGIN
    SELECT x.scope, x.tenant, x.key, s.name INTO r
    FROM idem.record AS x LEFT JOIN idem.scope AS s ON s.id = x.scope
    WHERE octet_length(x.key) NOT BETWEEN 1 AND 255 OR octet_length(x.tenant) > 255
    LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'a record has a key or tenant that the extension refuses',
            DETAIL = format('Scope "%s", tenant "%s", key "%s": a key has 1 to 255 bytes, and a '
                            'tenant at most 255.', r.name, r.tenant, r.key),
            HINT = format('As the role that installed idem, delete it, and run the script again: '
                          'DELETE FROM idem.record WHERE (scope, tenant, key) = (%s, %L, %L)',
                          r.scope, r.tenant, r.key);
    END IF;
    -- A transaction without triggers has committed it; no health check of the extension lists it.
    SELECT x.tenant, x.key, s.name INTO r
    FROM idem.record AS x JOIN idem.scope AS s ON s.id = x.scope
    WHERE (x.state = 'a' OR x.open IS NOT NULL) AND x.expires > clock_timestamp()
    LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'an open claim was committed',
            DETAIL = format('Scope "%s", tenant "%s", key "%s": its operation may have run.',
                            r.name, r.tenant, r.key),
            HINT = 'As a role that may use the scope, call idem.health(), and do what it says '
                   'about open claims. Then run the script again.';
    END IF;
END
$$;

-- The 128 bits that find a record or, with another suffix, a watermark: src/core/digest.hpp.
CREATE FUNCTION pg_temp.digest(
    scope integer, tenant text, name text, suffix bytea, "time" bytea
)
RETURNS uuid
LANGUAGE sql
AS $$
    SELECT encode(substr(
        coalesce("time", '')
        || sha256(int8send(scope) || int4send(length(t)) || t || int4send(length(n)) || n
                  || suffix), 1, 16), 'hex')::uuid
    FROM (SELECT convert_to(tenant, 'UTF8'), convert_to(name, 'UTF8')) AS utf8 (t, n)
$$;

-- The six bytes of the time at which a key was made, of a UUIDv7 or a ULID: src/core/key.hpp.
CREATE FUNCTION pg_temp.time_of(key text)
RETURNS bytea
LANGUAGE sql
AS $$
    SELECT CASE
        WHEN key ~* '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
            THEN decode(left(key, 8) || substr(key, 10, 4), 'hex')
        WHEN key ~* '^[0-7][0-9a-hjkmnp-tv-z]{25}$' THEN (
            SELECT substr(int8send(bit_or(
                (strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(key, i, 1))) - 1)::bigint
                << 5 * (10 - i))), 3)
            FROM generate_series(1, 10) AS i)
    END
$$;

-- Groups of seven bits, the lowest first, each but the last with the high bit set.
CREATE FUNCTION pg_temp.groups(number integer)
RETURNS bytea
LANGUAGE sql
AS $$
    SELECT string_agg(set_byte(E'\\x00', 0, (number >> 7 * i) & 127
               | CASE WHEN i < 4 AND number >> 7 * (i + 1) > 0 THEN 128 ELSE 0 END), '' ORDER BY i)
    FROM generate_series(0, 4) AS i
    WHERE i = 0 OR number >> 7 * i > 0
$$;

-- A fingerprint keeps the form of the SQL edition, and says so: src/core/fingerprint.hpp.
CREATE FUNCTION pg_temp.fingerprint(made bytea, list integer, secret integer)
RETURNS bytea
LANGUAGE sql
AS $$
    SELECT CASE
        WHEN secret = 0 THEN E'\\x00'
        WHEN made IS NOT NULL THEN
            CASE list WHEN 0 THEN E'\\x02' ELSE E'\\x82' || pg_temp.groups(list) END
            || pg_temp.groups(secret) || made
    END
$$;

CREATE TEMP TABLE moved_scope ON COMMIT DROP AS
    SELECT id, name, owner, request_lists, ttl, lease, wait, request_required, request_exclude,
           tenant_required, reject_stale_keys, max_attempts, claims_per_minute, weak_keys,
           store_response, response_exclude, final_sqlstates, store_request, answer_ttl, min_ttl,
           header_exclude, tenant_from, max_answer_size, records
    FROM idem.scope;
CREATE TEMP TABLE moved_dropped_scope ON COMMIT DROP AS TABLE idem.dropped_scope;
CREATE TEMP TABLE moved_secret ON COMMIT DROP AS TABLE idem.secret;
CREATE TEMP TABLE moved_scope_id ON COMMIT DROP AS SELECT last_value, is_called FROM idem.scope_id;
CREATE TEMP TABLE moved_watermark ON COMMIT DROP AS
    SELECT pg_temp.digest(scope, tenant, source, int4send(6) || 'source', NULL) AS digest, seq,
           updated, scope, tenant, source
    FROM idem.watermark;
-- A token of a lease is refused from now on: another claim continues the operation at the lease's
-- end. So the nonce may be any.
CREATE TEMP TABLE moved_record ON COMMIT DROP AS
    SELECT pg_temp.digest(r.scope, r.tenant, r.key, '', pg_temp.time_of(r.key)) AS digest,
           r.created, r.expires, CASE r.state WHEN 'p' THEN r.lease_end ELSE r.finished END
               AS lease_end,
           CASE WHEN r.state = 'p' AND r.nonce IS NOT NULL
               THEN hashtextextended(gen_random_uuid()::text, 0) END AS nonce,
           r.scope, nullif(r.attempt, 1) AS attempt, r.status, r.state,
           nullif(r.redacted, false) AS redacted, r.tenant::text AS tenant,
           CASE WHEN NOT u.is_uuid THEN r.key::text END AS key,
           pg_temp.fingerprint(r.fingerprint, r.request_list, r.secret) AS fingerprint,
           r.recovery_point, r.recovery_state, r.headers, r.response, r.body, r.error,
           CASE WHEN u.is_uuid THEN r.key::uuid END AS key_uuid, r.request,
           CASE r.state WHEN 'p' THEN nullif(r.extra_attempts, 0) END AS extra_attempts
    FROM idem.record AS r
        CROSS JOIN LATERAL (
            SELECT r.key ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$') AS u (is_uuid);

-- What the SQL edition consists of: the objects of its schemas, and on its tables. A name that is
-- listed twice is overloaded. test/t/managed.pl fails if one is missing here.
CREATE TEMP TABLE listed ON COMMIT DROP AS
    SELECT catalog::regclass AS catalog, schema, name,
           row_number() OVER (PARTITION BY catalog, schema, name) AS number
    FROM (VALUES
        ('pg_proc', 'idem', '
         advance alter_scope backoff cancel checkpoint child_key claim complete create_scope
         current_key derive_key drop_scope edition erase erase_tenant execute fail forget
         forget_tenant health http_headers http_status http_status lookup new_key once once_each
         parse_key problem problem purge release renew require_claim reset_stream revoke
         rotate_secret scope_ddl take try_claim use_records'),
        ('pg_class', 'idem', '
         claim_result dropped_scope dropped_scope_pkey execute_result health_result in_flight
         lookup_result overview purge_progress record record_due record_pkey record_token records
         scope scope_id scope_name_key scope_pkey scopes secret secret_pkey stats storage streams
         take_result watermark watermark_pkey'),
        ('pg_proc', 'idem_internal', '
         advance alter_scope atomic_entry atomic_token cancel canonical change_key
         change_tenant changed_settings check_administrator check_caller check_default
         check_duration check_failure check_isolation check_key check_key_type check_name
         check_new_key check_no_keys check_operation check_owner check_size check_snapshot
         check_source check_token check_tries check_unseen check_watermark check_writable
         checked_setting checked_tenant checkpoint child_key claim_of claim_or_replay
         claim_slowly commit_durably complete copy_secret create_scope create_secrets differences
         distance drop_scope entries erase erased error_of errors explain_conflict failure_fault
         failure_of figures findings fingerprint finish_slowly fixed forget header_lines
         held_keys holder_of insert_claim is_at_rest is_check_deferred is_held is_noted
         is_open_here is_own is_same_request is_stale is_unfinished is_within kept_least_ttl
         key_holders key_text key_time key_weakness lease_of leased_entry leased_token
         least_ttl limit_waits lock_claim lock_id lock_name look_up lookup
         missing_privileges nearest_scope new_bound newest next_scope_id note noted
         number_in observed_figures once_each outer_role own_checks owner path_fault
         plain_path preloaded raise raise_failure random_digits random_number record_at_rest
         record_tables redacted redacted_headers refuse refuse_feature refuse_in_progress
         refuse_lease refuse_open_claim refuse_open_here refuse_scope refuse_stale_key
         refuse_token refuse_unseen refuse_without_secrets release renew request_list
         require_lease require_tenant reset_stream restore_privileges retry_after
         same_setting scope_ddl scope_row scope_to_change scope_to_write seed settings
         settings_of shown size_of sqlstate_of store_owners store_scope take take_over
         tenant_in totals usable_scope verdict version wait_for wait_for_key wait_until
         without'),
        ('pg_class', 'idem_internal', '
         answer bound caller figures holder left_open new_claim records_without_scope stored'),
        ('pg_constraint', 'idem', '
         claim_incomplete dropped_scope_pkey record_check record_pkey scope_name_key scope_pkey
         scope_request_exclude secret_pkey secret_purpose_check secret_secret_check
         watermark_pkey'),
        ('pg_trigger', 'idem', 'record.claim_incomplete scope.copy_secret secret.copy_secret'),
        ('pg_attrdef', 'idem', 'record.extra_attempts record.redacted record.request_list'),
        ('pg_rewrite', 'idem_internal', 'new_claim.claim')
    ) AS v (catalog, schema, names),
        regexp_split_to_table(trim(E' \n' FROM names), E'\\s+') AS name;

CREATE TEMP TABLE part ON COMMIT DROP AS
    WITH named AS (
        SELECT o.classid, o.oid
        FROM (SELECT classid, oid, schema, name,
                     row_number() OVER (PARTITION BY classid, schema, name ORDER BY oid) AS number
              FROM (SELECT 'pg_proc'::regclass, oid, pronamespace, proname::text FROM pg_proc
                    UNION ALL
                    SELECT 'pg_class'::regclass, oid, relnamespace, relname FROM pg_class
                    UNION ALL
                    SELECT 'pg_constraint'::regclass, oid, connamespace, conname
                    FROM pg_constraint
                    UNION ALL
                    SELECT 'pg_trigger'::regclass, t.oid, c.relnamespace,
                           concat(c.relname, '.', t.tgname)
                    FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
                    UNION ALL
                    SELECT 'pg_rewrite'::regclass, r.oid, c.relnamespace,
                           concat(c.relname, '.', r.rulename)
                    FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = r.ev_class
                    UNION ALL
                    SELECT 'pg_attrdef'::regclass, f.oid, c.relnamespace,
                           concat(c.relname, '.', a.attname)
                    FROM pg_attrdef AS f
                        JOIN pg_class AS c ON c.oid = f.adrelid
                        JOIN pg_attribute AS a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
                   ) AS x (classid, oid, schema, name)) AS o
            JOIN pg_namespace AS n ON n.oid = o.schema
            JOIN listed AS l
                ON (l.catalog, l.schema, l.name, l.number)
                   = (o.classid::oid, n.nspname, o.name, o.number)
    ), of_table AS (
        SELECT c.* FROM pg_class AS c JOIN named AS n
            ON n.classid = 'pg_class'::regclass AND n.oid = c.oid
    )
    TABLE named
    UNION ALL
    SELECT 'pg_namespace'::regclass, oid FROM pg_namespace
    WHERE nspname IN ('idem', 'idem_internal')
    UNION ALL
    SELECT 'pg_type'::regclass, t.oid FROM pg_type AS t
        JOIN of_table AS c ON c.reltype <> 0 AND c.reltype IN (t.oid, t.typelem)
    UNION ALL
    SELECT 'pg_rewrite'::regclass, r.oid FROM pg_rewrite AS r
        JOIN of_table AS c ON c.oid = r.ev_class
    WHERE r.rulename = '_RETURN'
    UNION ALL
    SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef WHERE adrelid = 'idem.scope'::regclass
    UNION ALL  -- from PostgreSQL 18 on
    SELECT 'pg_constraint'::regclass, k.oid FROM pg_constraint AS k
        JOIN of_table AS c ON c.oid = k.conrelid
    WHERE k.contype = 'n'
    UNION ALL  -- these are made again below
    SELECT 'pg_publication_rel'::regclass, p.oid FROM pg_publication_rel AS p
        JOIN of_table AS c ON c.oid = p.prrelid
    WHERE p.prqual IS NULL AND p.prattrs IS NULL
    UNION ALL
    SELECT 'pg_publication_namespace'::regclass, oid FROM pg_publication_namespace;

-- Triggers and defaults that call functions of idem, privileges, and the membership of tables in
-- publications are dropped and made again. What else depends on idem, is in its schemas or on its
-- tables is for its owner to drop and to create again; so are expressions with a type that is not
-- built in, because a literal of a composite type, an array or a range runs the checks of the
-- domains in it when it is parsed.
CREATE TEMP TABLE foreign_type ON COMMIT DROP AS
    SELECT d.classid, d.objid
    FROM pg_depend AS d
    WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid >= 16384
        AND d.classid IN ('pg_trigger'::regclass, 'pg_attrdef'::regclass);

CREATE TEMP TABLE remade ON COMMIT DROP AS
    WITH guard AS (
        SELECT t.* FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
        WHERE t.tgfoid = 'idem.require_claim'::regproc
            AND ('pg_trigger'::regclass, t.oid) NOT IN (TABLE foreign_type)
            AND c.relnamespace NOT IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
    ), object AS (
        -- The extension has other arguments; what is overloaded has the same.
        SELECT concat('FUNCTION idem.', quote_ident(proname),
                      CASE WHEN count(*) OVER (PARTITION BY proname) > 1
                          THEN format('(%s)', pg_get_function_identity_arguments(oid)) END) AS name,
               coalesce(proacl, acldefault('f', proowner)) AS acl, proowner AS owner,
               'EXECUTE' AS privilege
        FROM pg_proc WHERE pronamespace = 'idem'::regnamespace AND proname <> 'use_records'
        UNION ALL
        SELECT format('SCHEMA %I', nspname), coalesce(nspacl, acldefault('n', nspowner)), nspowner,
               'USAGE'
        FROM pg_namespace WHERE nspname IN ('idem', 'idem_internal')
        UNION ALL
        SELECT format('TABLE idem.%I', relname), coalesce(relacl, acldefault('r', relowner)),
               relowner, 'SELECT'
        FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind IN ('r', 'v', 'S')
    )
    SELECT 1 AS step, format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass) AS before,
           pg_get_triggerdef(oid) AS after
    FROM guard WHERE tgparentid = 0
    UNION ALL
    -- With those that the partitions of a table get from its trigger.
    SELECT 2, NULL, format(
               'ALTER TABLE ONLY %s %s TRIGGER %I', tgrelid::regclass,
               CASE tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'A' THEN 'ENABLE ALWAYS'
                   ELSE 'ENABLE REPLICA' END, tgname)
    FROM guard WHERE tgenabled <> 'O'
    UNION ALL
    SELECT DISTINCT 1,
           format('ALTER TABLE ONLY %s ALTER %I DROP DEFAULT', a.attrelid::regclass, a.attname),
           format('ALTER TABLE ONLY %s ALTER %I SET DEFAULT %s', a.attrelid::regclass, a.attname,
                  pg_get_expr(f.adbin, f.adrelid))
    FROM pg_depend AS d
        JOIN pg_attrdef AS f ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
        JOIN pg_attribute AS a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
        JOIN pg_class AS c ON c.oid = f.adrelid
        JOIN pg_proc AS p ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid
    WHERE p.pronamespace = 'idem'::regnamespace AND a.attgenerated = ''
        AND ('pg_attrdef'::regclass, f.oid) NOT IN (TABLE foreign_type)
        AND c.relnamespace NOT IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
    UNION ALL
    -- Sessions have compiled these with the result types that are dropped, and compile them again.
    SELECT 1, NULL, format('ALTER ROUTINE %s SECURITY %s', p.oid::regprocedure,
                           CASE WHEN p.prosecdef THEN 'DEFINER' ELSE 'INVOKER' END)
    FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
    WHERE l.lanname = 'plpgsql'
        AND concat(p.prosrc, p.proconfig::text)
            ~* E'\\m(idem|(claim|take|lookup|execute|health)_result)\\M'
        AND p.pronamespace NOT IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
    UNION ALL
    SELECT 1, NULL, format('GRANT %s ON %s TO %s%s', o.privilege, o.name, a.grantee::regrole,
                           CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END)
    FROM object AS o, aclexplode(o.acl) AS a
    WHERE a.privilege_type = o.privilege AND a.grantee NOT IN (0, o.owner)
    UNION ALL
    SELECT 1, NULL, format('REVOKE %s ON %s FROM PUBLIC', o.privilege, o.name)
    FROM object AS o
    WHERE NOT EXISTS (SELECT FROM aclexplode(o.acl) AS a
                      WHERE a.privilege_type = o.privilege AND a.grantee = 0)
    UNION ALL
    SELECT 1, NULL, format('ALTER PUBLICATION %I ADD TABLE ONLY %s', p.pubname,
                           r.prrelid::regclass)
    FROM pg_publication_rel AS r
        JOIN pg_publication AS p ON p.oid = r.prpubid
        JOIN part AS o ON o.classid = 'pg_publication_rel'::regclass AND o.oid = r.oid
    UNION ALL
    SELECT 1, NULL, format('ALTER PUBLICATION %I ADD TABLES IN SCHEMA %I', p.pubname, n.nspname)
    FROM pg_publication_namespace AS s
        JOIN pg_publication AS p ON p.oid = s.pnpubid
        JOIN pg_namespace AS n ON n.oid = s.pnnspid
    WHERE n.nspname IN ('idem', 'idem_internal');

DO $$
DECLARE
    statement text;
    others text;
BEGIN
    FOR statement IN SELECT before FROM remade WHERE before IS NOT NULL LOOP
        EXECUTE statement;
    END LOOP;
    SELECT string_agg(DISTINCT pg_describe_object(f.classid, f.objid, f.objsubid), ', ')
    INTO others
    FROM (
        SELECT d.classid, d.objid, d.objsubid
        FROM pg_depend AS d
            JOIN part AS p ON d.refclassid = p.classid AND d.refobjid = p.oid
        WHERE NOT EXISTS (SELECT FROM part AS o WHERE o.classid = d.classid AND o.oid = d.objid)
            AND NOT EXISTS (SELECT FROM pg_class AS c WHERE d.classid = 'pg_class'::regclass
                                AND c.oid = d.objid AND c.relkind = 't')
        UNION ALL
        SELECT 'pg_class'::regclass, a.attrelid, a.attnum
        FROM pg_attribute AS a
            JOIN (VALUES ('scope', 33), ('dropped_scope', 2), ('secret', 4), ('record', 27),
                         ('watermark', 5)) AS t (name, columns)
                ON a.attrelid = concat('idem.', t.name)::regclass
        WHERE a.attnum > t.columns AND NOT a.attisdropped
        UNION ALL
        SELECT 'pg_subscription'::regclass, s.srsubid, 0
        FROM pg_subscription_rel AS s
            JOIN part AS p ON p.classid = 'pg_class'::regclass AND p.oid = s.srrelid
    ) AS f;
    IF others IS NOT NULL THEN
        RAISE dependent_objects_still_exist USING
            MESSAGE = 'other objects depend on the SQL edition of idem',
            DETAIL = format('They are: %s.', others),
            HINT = 'Move tables to another schema, drop the others, run the script again, and '
                   'create them again.';
    END IF;
END
$$;

DROP SCHEMA idem, idem_internal CASCADE;
CREATE EXTENSION idem;

INSERT INTO idem.secret TABLE moved_secret;
INSERT INTO idem.scope (
    id, name, owner, request_lists, ttl, lease, wait, request_required, request_exclude,
    tenant_required, reject_stale_keys, max_attempts, claims_per_minute, weak_keys, store_response,
    response_exclude, final_sqlstates, store_request, answer_ttl, min_ttl, header_exclude,
    tenant_from, max_answer_size, records)
TABLE moved_scope;
INSERT INTO idem.dropped_scope TABLE moved_dropped_scope;
SELECT setval('idem.scope_id', last_value, is_called) AS scope_id FROM moved_scope_id \gset
INSERT INTO idem.watermark TABLE moved_watermark;
INSERT INTO idem.record (
    digest, created, expires, lease_end, nonce, scope, attempt, status, state, redacted, tenant,
    key, fingerprint, recovery_point, recovery_state, headers, response, body, error, key_uuid,
    request, extra_attempts)
TABLE moved_record;

DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN SELECT after FROM remade ORDER BY step LOOP
        EXECUTE statement;
    END LOOP;
    IF EXISTS (
        SELECT FROM moved_record AS r JOIN moved_scope AS s ON s.id = r.scope
        WHERE r.expires > clock_timestamp() + interval '1 minute'
            AND NOT (s.tenant_from = 'role' AND r.tenant = '')  -- given up by alter_scope()
            AND (idem.lookup(s.name, coalesce(r.key, r.key_uuid::text), r.tenant)).state = 'absent')
    THEN
        RAISE data_corrupted USING
            MESSAGE = 'the extension does not find a record that was moved',
            HINT = 'Nothing was changed. Report this as a bug of idem.';
    END IF;
END
$$;

COMMIT;
