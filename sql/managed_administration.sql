-- idem, the SQL edition: scopes, administration, views and maintenance. sql/managed.sql includes
-- this file.

-- ---------------------------------------------------------------------------------------------
-- What the views and idem.health() read
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION idem.edition()
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'sql';

-- What update scripts ask for.
CREATE FUNCTION idem_internal.version()
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '1.0.0';

CREATE FUNCTION idem_internal.preloaded()
RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN false;

CREATE FUNCTION idem_internal.key_text(r idem.record)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS 'SELECT r.key';

-- As the index record_due says it.
CREATE FUNCTION idem_internal.is_unfinished(r idem.record)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS 'SELECT r.leased';

CREATE VIEW idem_internal.stored AS
    SELECT scope, tenant, key, state, attempt, extra_attempts, status, created, expires,
           CASE WHEN state = 'p' THEN lease_end END AS lease_end,
           CASE WHEN state IN ('c', 'f') THEN coalesce(finished, created) END AS completed,
           nonce IS NULL AS released, recovery_point, redacted, headers, response, body, error,
           request
    FROM idem.record
    WHERE state <> 'a';

-- Open claims that have been committed, in the scopes that the caller may use.
CREATE VIEW idem_internal.left_open WITH (security_barrier) AS
    SELECT s.name AS scope, r.tenant, r.key
    FROM idem.record AS r JOIN idem.scope AS s ON s.id = r.scope
    WHERE (r.state = 'a' OR r.open IS NOT NULL) AND r.expires > statement_timestamp()
        AND NOT idem_internal.is_own(r.xmin)
        AND pg_has_role(s.owner::oid, 'USAGE')
    OFFSET 0;

-- The rows of open claims are visible to their own transactions only, and lock ids are no keys.
CREATE FUNCTION idem_internal.held_keys(
    with_prepared boolean, OUT scope text, OUT tenant text, OUT key text, OUT attempt integer,
    OUT since timestamptz, OUT pid integer, OUT transaction xid, OUT state text, OUT keys integer
)
RETURNS SETOF record
LANGUAGE sql
BEGIN ATOMIC
    SELECT NULL::text, NULL::text, NULL::text, NULL::integer, NULL::timestamptz, NULL::integer,
           NULL::xid, NULL::text, NULL::integer
    WHERE false;
END;

-- As in the extension when it is not preloaded, there are no statistics.
CREATE VIEW idem.stats WITH (security_barrier) AS
    SELECT s.name COLLATE "default" AS scope, c.*, NULL::timestamptz AS stats_reset,
           0::bigint AS advances, 0::bigint AS duplicates, 0::bigint AS exhausted,
           0::bigint AS late_replays, 0 AS limited_tenants, 0 AS limited_tenants_room
    FROM idem.scope AS s
        CROSS JOIN (SELECT 0::bigint AS claims, 0::bigint AS replays, 0::bigint AS in_flight,
                           0::bigint AS waits, interval '0' AS wait_time, 0::bigint AS conflicts,
                           0::bigint AS takeovers, 0::bigint AS completions, 0::bigint AS failures,
                           0::bigint AS releases, 0::bigint AS stale, 0::bigint AS weak,
                           0::bigint AS limited, 0::bigint AS expired_reused, 0::bigint AS purged
                   ) AS c
    WHERE false;

COMMENT ON VIEW idem.stats IS
    'Has no rows: the SQL edition counts nothing.';

CREATE FUNCTION idem_internal.observed_figures(
    caller oid, proof bytea, ids integer[], ttls interval[], max_attempts integer[]
)
RETURNS SETOF idem_internal.figures
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM idem.secret WHERE id = 0) THEN
        proof := idem_internal.check_caller(caller, proof);
    ELSE  -- which idem.health() is to say
        caller := quote_ident(idem_internal.outer_role())::regrole;
    END IF;
    RETURN QUERY
    SELECT f.*
    FROM idem_internal.totals(ids, ttls, max_attempts) AS f
    WHERE pg_has_role(caller, 'pg_monitor', 'USAGE')
        OR EXISTS (SELECT FROM idem.scope AS s
                   WHERE s.id = f.scope_id AND pg_has_role(caller, s.owner, 'USAGE'));
END
$$;

CREATE FUNCTION idem_internal.figures(ids integer[], ttls interval[], max_attempts integer[])
RETURNS SETOF idem_internal.figures
LANGUAGE sql
BEGIN ATOMIC
    SELECT f.*
    FROM idem_internal.caller AS c
        CROSS JOIN LATERAL idem_internal.observed_figures(
            c.role, c.proof, ids, ttls, max_attempts) AS f;
END;

CREATE FUNCTION idem_internal.record_tables(
    OUT records regclass, OUT fault text, OUT remedy text, OUT passed_over text
)
RETURNS SETOF record
LANGUAGE sql STABLE
RETURN ROW('idem.record'::regclass, NULL::text, NULL::text, NULL::text);

-- Transactions that have written records.
CREATE FUNCTION idem_internal.key_holders(
    OUT pid integer, OUT gid text, OUT since timestamptz, OUT keys text
)
RETURNS SETOF record
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT l.pid, p.gid, coalesce(a.xact_start, p.prepared), 'keys'
    FROM pg_locks l
        LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN pg_locks x ON l.pid IS NULL
            AND x.pid IS NULL
            AND x.locktype = 'transactionid'
            AND x.virtualtransaction = l.virtualtransaction
        LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
    WHERE l.relation = 'idem.record'::regclass
        AND l.mode = 'RowExclusiveLock'
        AND l.granted
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;

\ir views.sql

-- The statements after which PUBLIC has what the calls of every role need, and no more. Only the
-- owner executes PL/pgSQL that has no search_path: compiled with that of a caller, it would later
-- run with the owner's rights. The default privileges of a role that restores a dump may have given
-- it to single roles, too; administrators have what idem's functions for them need.
CREATE FUNCTION idem_internal.missing_privileges()
RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH object (privilege, name, has, wanted, schema, acl, owner) AS (
        SELECT 'USAGE', format('SCHEMA %I', n.nspname),
               has_schema_privilege('public', n.oid, 'USAGE'), true, n.oid, n.nspacl, n.nspowner
        FROM pg_namespace AS n
        WHERE n.nspname IN ('idem', 'idem_internal')
        UNION ALL
        SELECT w.privilege, format('TABLE %s', c.oid::regclass),
               has_table_privilege('public', c.oid, w.privilege), true, c.relnamespace, c.relacl,
               c.relowner
        FROM pg_class AS c CROSS JOIN (VALUES ('SELECT'), ('INSERT')) AS w (privilege)
        WHERE c.relnamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
            AND c.relkind = 'v' AND c.relname <> 'stored'
            AND (w.privilege = 'SELECT' OR c.relname = 'new_claim')
        UNION ALL
        SELECT 'EXECUTE', format('FUNCTION %s', p.oid::regprocedure),
               has_function_privilege('public', p.oid, 'EXECUTE'),
               CASE WHEN p.pronamespace = 'idem'::regnamespace
                   THEN p.proname NOT IN (
                       'reset_stream', 'create_scope', 'alter_scope', 'drop_scope',
                       'rotate_secret', 'revoke', 'forget', 'erase', 'forget_tenant',
                       'erase_tenant', 'purge')
                   ELSE l.lanname <> 'plpgsql'
                       OR p.prosecdef AND p.prorettype <> 'trigger'::regtype
                       OR coalesce(p.proconfig::text LIKE '%search_path%', false)
                       OR p.proname IN ('canonical', 'claim_or_replay', 'is_own', 'note') END,
               p.pronamespace, p.proacl, p.proowner
        FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
        WHERE p.pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
    )
    SELECT format(CASE WHEN o.wanted THEN 'GRANT %s ON %s TO PUBLIC'
                       ELSE 'REVOKE %s ON %s FROM PUBLIC' END, o.privilege, o.name)
    FROM object AS o
    WHERE o.has <> o.wanted
    UNION ALL
    SELECT format('REVOKE ALL ON %s FROM %s CASCADE', o.name, a.grantee::regrole)
    FROM object AS o CROSS JOIN LATERAL aclexplode(o.acl) AS a
    WHERE NOT o.wanted AND o.schema = 'idem_internal'::regnamespace
        AND a.grantee NOT IN (0, o.owner)
$$;

CREATE FUNCTION idem_internal.restore_privileges()
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement pg_catalog.text;
BEGIN
    FOR statement IN SELECT idem_internal.missing_privileges() LOOP
        EXECUTE statement;
    END LOOP;
END
$$;

CREATE FUNCTION idem_internal.own_checks(
    OUT n integer, OUT check_name text, OUT status text, OUT detail text, OUT hint text
)
RETURNS SETOF record
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    -- Not those of an extension: any role that may create one can put it into idem's schemas.
    WITH own_function AS (
        SELECT p.oid, p.proowner
        FROM pg_proc AS p
        WHERE p.pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
            AND NOT EXISTS (SELECT FROM pg_depend AS d
                            WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                                AND d.deptype = 'e')
    )
    -- As sql/managed.sql creates them. The name matters: idem.advance() has that of its table.
    SELECT NULL::integer, 'indexes', 'fail',
           format('idem.%s has no constraint %s that is PRIMARY KEY (%s), checked at once: %s.',
                  t.name, p.name, t.columns, t.risk),
           format('Of rows with the same values, keep only %s: SELECT %s, count(*) FROM idem.%s '
                  'GROUP BY %2$s HAVING count(*) > 1. Then: ALTER TABLE idem.%3$s '
                  '%sADD CONSTRAINT %s PRIMARY KEY (%2$s)', t.kept, t.columns, t.name,
                  (SELECT string_agg(format('DROP CONSTRAINT %I, ', k.conname), '')
                   FROM pg_constraint AS k
                   WHERE k.conrelid = p.relation AND (k.contype = 'p' OR k.conname = p.name)),
                  p.name)
    FROM (VALUES ('record', 'scope, tenant, key', 'an operation can run twice',
                  'the completed one that is oldest'),
                 ('watermark', 'scope, tenant, source', 'a message can be handled twice',
                  'the one with the highest seq')
         ) AS t (name, columns, risk, kept)
        CROSS JOIN LATERAL (VALUES (format('idem.%s', t.name)::regclass, t.name || '_pkey')
                           ) AS p (relation, name)
    WHERE NOT EXISTS (SELECT FROM pg_constraint AS k
                      WHERE k.conrelid = p.relation AND k.conname = p.name
                          AND replace(pg_get_constraintdef(k.oid), '"', '')
                              = format('PRIMARY KEY (%s)', t.columns))
    UNION ALL
    SELECT NULL, 'indexes', 'fail', format('Index %s is missing.', t.name), t.definition
    FROM (VALUES ('idem.record_token', 'CREATE INDEX CONCURRENTLY record_token '
                                       'ON idem.record (number) WHERE leased IS NOT NULL'),
                 ('idem.record_due', 'CREATE INDEX CONCURRENTLY record_due '
                                     'ON idem.record (scope, lease_end) WHERE leased')
         ) AS t (name, definition)
    WHERE to_regclass(t.name) IS NULL
    UNION ALL
    SELECT NULL, 'triggers', 'fail',
           'The trigger claim_incomplete on idem.record is missing or not ENABLE ALWAYS: a '
           'transaction can commit with an open claim.',
           CASE
               WHEN EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = 'idem.record'::regclass
                                AND g.tgname = 'claim_incomplete')
                   THEN 'ALTER TABLE idem.record ENABLE ALWAYS TRIGGER claim_incomplete'
               ELSE 'CREATE CONSTRAINT TRIGGER claim_incomplete '
                    'AFTER INSERT OR UPDATE OF attempt, redacted ON idem.record '
                    'DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.open IS NOT NULL) '
                    'EXECUTE FUNCTION idem_internal.refuse_open_claim(); '
                    'ALTER TABLE idem.record ENABLE ALWAYS TRIGGER claim_incomplete'
           END
    WHERE NOT EXISTS (SELECT FROM pg_trigger g
                      WHERE g.tgrelid = 'idem.record'::regclass AND g.tgname = 'claim_incomplete'
                          AND g.tgenabled = 'A')
    UNION ALL
    SELECT NULL, 'triggers', 'fail',
           format('Open claims of scope "%s" were committed while triggers were switched off: %s. '
                  'What these transactions did is committed, too; the next claim of such a key '
                  'runs its operation again.', r.scope, count(*)),
           format('For each key, find out whether its operation has run. If so, claim the key with '
                  'the same request and complete it with the answer, in one transaction; if it has '
                  'no attempts left (ID014), raise max_attempts meanwhile. If not, call '
                  'idem.forget(). To list the keys: SELECT tenant, key '
                  'FROM idem_internal.left_open WHERE scope = %L', r.scope)
    FROM idem_internal.left_open AS r
    GROUP BY r.scope
    UNION ALL
    SELECT NULL, 'record tables', 'fail', format('%s: %s', c.oid::regclass, f.fault), f.remedy
    FROM pg_class AS c
        CROSS JOIN LATERAL (
            SELECT 'It is unlogged: a crash would empty it, and operations would run again.',
                   format('ALTER TABLE %s SET LOGGED', c.oid::regclass)
            WHERE c.relpersistence <> 'p'
            UNION ALL
            SELECT format('Its rule "%s" could suppress what idem writes.', r.rulename),
                   format('DROP RULE %I ON %s', r.rulename, c.oid::regclass)
            FROM pg_rewrite AS r
            WHERE r.ev_class = c.oid
            UNION ALL
            SELECT format('Its trigger "%s" fires before a row is written, and could change or '
                          'suppress it.', g.tgname),
                   format('ALTER TABLE %s DISABLE TRIGGER %I', c.oid::regclass, g.tgname)
            FROM pg_trigger AS g
            WHERE g.tgrelid = c.oid AND g.tgtype & 3 = 3 AND g.tgenabled <> 'D'
        ) AS f (fault, remedy)
    WHERE c.oid IN ('idem.record'::regclass, 'idem.watermark'::regclass)
    UNION ALL
    SELECT NULL, 'record tables', 'fail',
           format('%s: Its row security is forced, and may hide rows from idem.', c.oid::regclass),
           format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY', c.oid::regclass)
    FROM pg_class AS c
    WHERE c.relnamespace = 'idem'::regnamespace AND c.relforcerowsecurity
    UNION ALL
    SELECT NULL, 'schema', 'fail',
           format('PUBLIC lacks %s privileges that callers need, and roles have %s with which they '
                  'can become an administrator, as after a restore without privileges or under '
                  'default privileges.',
                  count(*) FILTER (WHERE m LIKE 'GRANT%'),
                  count(*) FILTER (WHERE m LIKE 'REVOKE%')),
           'SELECT idem_internal.restore_privileges()'
    FROM idem_internal.missing_privileges() AS m
    HAVING count(*) FILTER (WHERE m LIKE 'REVOKE%') > 0  -- to have less may be meant
    UNION ALL
    SELECT NULL, 'schema', 'fail',
           format('%s %s belongs to role %s, and the rest of idem to role %s.',
                  initcap(o.kind), o.name, o.owner::regrole, i.owner::regrole),
           format(concat(CASE WHEN o.kind <> 'SCHEMA'
                                  THEN 'If it is not idem''s, drop it. Else its owner can have '
                                       'changed it, also by rules and indexes, and would then run '
                                       'as role %3$s: compare it with that of a new installation. '
                                       'Then: '
                         END, 'ALTER %1$s %2$s OWNER TO %3$s'),
                  o.kind, o.name, i.owner::regrole)
    FROM (SELECT mode() WITHIN GROUP (ORDER BY proowner) FROM own_function) AS i (owner)
        JOIN (SELECT 'SCHEMA', n.oid::regnamespace::text, n.nspowner
              FROM pg_namespace AS n
              WHERE n.nspname IN ('idem', 'idem_internal')
              UNION ALL
              SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass::text,
                     c.relowner
              FROM pg_class AS c
              WHERE c.relnamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
                  AND c.relkind IN ('r', 'v')
              UNION ALL
              SELECT 'FUNCTION', oid::regprocedure::text, proowner FROM own_function
             ) AS o (kind, name, owner) ON o.owner <> i.owner
    UNION ALL
    VALUES (1, 'worker', 'ok', 'This edition has no worker: idem.purge() runs from cron.', NULL),
           (12, 'indexes', 'ok', 'The indexes are in place and valid.', NULL),
           (18, 'triggers', 'ok', 'No transaction can commit with an open claim.', NULL),
           (23, 'record tables', 'ok', 'Nothing keeps idem from its records.', NULL)
$$;

\ir health.sql

-- ---------------------------------------------------------------------------------------------
-- Scopes
-- ---------------------------------------------------------------------------------------------

-- The settings, from the catalog: the columns of idem.scope after those that are none, their
-- defaults, and what the comments on the view idem.scopes say.
CREATE FUNCTION idem_internal.settings(
    OUT n integer, OUT name text, OUT type regtype, OUT preset text, OUT says text
)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET intervalstyle = 'postgres'
AS $$
    SELECT row_number() OVER (ORDER BY a.attnum), a.attname, a.atttypid::regtype,
           coalesce(substring(d.e FROM '^''(.*)''::'), d.e),
           lower(left(c.d, 1)) || rtrim(substr(c.d, 2), '.')
    FROM pg_attribute a
        LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
        CROSS JOIN LATERAL pg_get_expr(f.adbin, f.adrelid) AS d (e)
        JOIN pg_attribute v ON v.attrelid = 'idem.scopes'::regclass AND v.attname = a.attname
        CROSS JOIN LATERAL col_description(v.attrelid, v.attnum) AS c (d)
    WHERE a.attrelid = 'idem.scope'::regclass AND NOT a.attisdropped
        AND a.attnum > (SELECT l.attnum FROM pg_attribute l
                        WHERE l.attrelid = a.attrelid AND l.attname = 'request_lists')
        AND a.attgenerated = ''
$$;

CREATE FUNCTION idem_internal.refuse_feature(feature text, detail text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE feature_not_supported USING
        MESSAGE = format('%s is not available in the SQL edition of idem', feature),
        DETAIL = detail,
        HINT = 'Do without it, or move to the extension on a server that can load it.';
END
$$;

-- The value as it is stored: without what stands for none (-1, or an interval of zero).
CREATE FUNCTION idem_internal.checked_setting(
    setting text, type regtype, preset text, says text, value text
)
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    about CONSTANT text := format('The setting says %s.', says);
    -- Not from the comment in says, which a dump may lack.
    words CONSTANT text := CASE setting
        WHEN 'weak_keys' THEN 'allow, warn or reject'
        WHEN 'store_request' THEN 'never, unfinished or always'
        WHEN 'tenant_from' THEN 'argument or role'
    END;
    paths CONSTANT boolean := setting IN ('request_exclude', 'response_exclude');
    path_hint CONSTANT text := 'Write the paths as ''{sent_at,meta.trace_id}''.';
    element text;
    fault text;
    n integer := 0;
BEGIN
    IF value IS NULL AND preset IS NOT NULL THEN
        PERFORM idem_internal.check_default(setting, NULL);
    ELSIF value IS NULL
        OR preset IS NULL AND type = 'integer'::regtype AND value = '-1'
        OR preset IS NULL AND type = 'interval'::regtype
            AND idem_internal.fixed(value::interval) = '0' THEN
        RETURN NULL;
    ELSIF type = 'interval'::regtype THEN
        PERFORM idem_internal.check_duration(setting, value::interval, setting = 'wait');
    ELSIF setting = 'max_answer_size' AND value::integer NOT BETWEEN 1024 AND 536870912 THEN
        PERFORM idem_internal.refuse(
            setting, '', 'The size must be between 1024 and 536870912 bytes.',
            'Pass a number of bytes, such as 65536. Store larger values in a table of your own.');
    ELSIF type = 'integer'::regtype AND value::integer < 1 THEN
        PERFORM idem_internal.refuse(
            setting, '', 'The limit must be at least 1.', 'Pass a limit, or -1 for none.');
    ELSIF setting = 'claims_per_minute' THEN
        PERFORM idem_internal.refuse_feature(
            '"claims_per_minute"',
            'What it limits is counted in shared memory, which only a library gets.');
    ELSIF setting = 'records' AND value::boolean THEN
        PERFORM idem_internal.refuse_feature('"records"', 'All records are in idem.record.');
    ELSIF type = 'text'::regtype
        AND value <> ALL (string_to_array(replace(words, ' or ', ', '), ', '))
    THEN
        PERFORM idem_internal.refuse(setting, '', format('The value must be %s.', words), about);
    ELSIF type = 'text[]'::regtype THEN
        IF array_ndims(value::text[]) > 1 THEN
            PERFORM idem_internal.refuse(
                setting, '', 'The array must have one dimension.',
                CASE WHEN paths THEN path_hint ELSE about END);
        END IF;
        FOREACH element IN ARRAY value::text[] LOOP
            n := n + 1;
            element := coalesce(element, '');
            IF setting = 'final_sqlstates' THEN
                fault := CASE idem_internal.failure_fault(
                        element, '^[0-9A-Z]{2}([0-9A-Z]{3})?$')
                    WHEN 'malformed' THEN 'it is neither a SQLSTATE of five characters, 0-9 and '
                                          'A-Z, nor a class of two'
                    WHEN 'no_failure' THEN 'it is not that of an error'
                    WHEN 'ours' THEN 'it is of class ID, which only idem raises'
                    WHEN 'transient' THEN 'it says that a retry may succeed' END;
                CONTINUE WHEN fault IS NULL;
                PERFORM idem_internal.refuse(
                    setting, '',
                    format('"%s" cannot stand for a final failure: %s.', element, fault),
                    'List SQLSTATEs that your operations raise as a final failure, such as '
                    '"P0001", or classes of them, such as "23".');
            ELSIF NOT paths THEN
                CONTINUE WHEN element ~ '^[0-9A-Za-z!#$%&''*+.^_`|~-]+$'
                    AND octet_length(element) <= 255;
                PERFORM idem_internal.refuse(
                    setting, '', 'Each element must be the name of a header, of 1 to 255 bytes.',
                    'Write the names as ''{set-cookie,cookie}''.');
            ELSIF octet_length(element) NOT BETWEEN 1 AND 255 THEN
                PERFORM idem_internal.refuse(
                    setting, '', 'Each path must have 1 to 255 bytes.', path_hint);
            END IF;
            fault := idem_internal.path_fault(element);
            CONTINUE WHEN fault IS NULL;
            PERFORM idem_internal.refuse(
                setting, '', format('Element %s, "%s", %s.', n, element, fault),
                format('Write the names of members from the top, joined by dots, such as '
                       '"card.number". The items of an array have no step of their own. If a '
                       'single member has this name, write %L.',
                       '"' || regexp_replace(element, E'(["\\\\])', E'\\\\\\1', 'g') || '"'));
        END LOOP;
    END IF;
    RETURN value;
END
$$;

CREATE FUNCTION idem_internal.same_setting(type regtype, a text, b text)
RETURNS boolean
LANGUAGE sql STABLE
RETURN CASE
    WHEN type = 'interval'::regtype AND a IS NOT NULL AND b IS NOT NULL
        THEN idem_internal.fixed(a::interval) = idem_internal.fixed(b::interval)
    ELSE a IS NOT DISTINCT FROM b
END;

-- The settings with what a call gives: by arguments, in the order of the settings, and as texts
-- name=value. A call of create_scope() may pass the default, which looks like no argument.
CREATE FUNCTION idem_internal.changed_settings(
    settings jsonb, creates boolean, given text[], listed text[]
)
RETURNS jsonb
LANGUAGE plpgsql
SET intervalstyle = 'postgres'
AS $$
DECLARE
    s record;
    passed text[] := '{}';
    element text;
    value text;
BEGIN
    FOR s IN SELECT * FROM idem_internal.settings() x WHERE x.n <= cardinality(given) LOOP
        value := given[s.n];
        CONTINUE WHEN value IS NULL AND NOT creates;
        settings := settings || jsonb_build_object(
            s.name, idem_internal.checked_setting(s.name, s.type, s.preset, s.says, value));
        IF NOT creates OR NOT idem_internal.same_setting(s.type, value, s.preset) THEN
            passed := passed || s.name;
        END IF;
    END LOOP;
    IF listed IS NULL AND creates THEN
        PERFORM idem_internal.check_default('settings', NULL);
    END IF;
    FOREACH element IN ARRAY coalesce(listed, '{}') LOOP
        element := coalesce(element, '');
        SELECT x.* INTO s FROM idem_internal.settings() AS x
        WHERE x.name = split_part(element, '=', 1);
        value := CASE
            WHEN strpos(element, '=') = 0 THEN 'has no "="'
            WHEN s.name IS NULL THEN 'is not of a setting'
            WHEN s.name = ANY (passed) THEN 'is of a setting that the call has passed before'
        END;
        IF value IS NOT NULL THEN
            PERFORM idem_internal.refuse(
                'settings', '', format('Element "%s" %s.', element, value),
                format('Write each element as name=value, once. The names are %s.',
                       (SELECT string_agg(x.name, ', ' ORDER BY x.n)
                        FROM idem_internal.settings() AS x)));
        END IF;
        passed := passed || s.name;
        EXECUTE format('SELECT %L::%s::text', substr(element, strpos(element, '=') + 1), s.type)
            INTO value;
        settings := settings || jsonb_build_object(
            s.name, idem_internal.checked_setting(s.name, s.type, s.preset, s.says, value));
    END LOOP;
    RETURN settings;
END
$$;

CREATE FUNCTION idem_internal.settings_of(scope integer)
RETURNS jsonb
LANGUAGE plpgsql STABLE
SET intervalstyle = 'postgres'
AS $$
DECLARE
    result jsonb;
BEGIN
    EXECUTE (SELECT format('SELECT jsonb_object(ARRAY[%s], ARRAY[%s]::text[]) '
                           'FROM idem.scope WHERE id = $1',
                           string_agg(quote_literal(s.name), ', '),
                           string_agg(format('%I::text', s.name), ', '))
             FROM idem_internal.settings() s)
        INTO result USING scope;
    RETURN result;
END
$$;

-- Raises what the server raises if the role cannot give a scope to the owner.
CREATE FUNCTION idem_internal.check_owner(caller oid, owner oid)
RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    before_16 CONSTANT boolean := current_setting('server_version_num')::integer < 160000;
    name CONSTANT text := (SELECT r.rolname FROM pg_roles r WHERE r.oid = owner);
BEGIN
    IF name IS NULL THEN
        RAISE undefined_object USING MESSAGE = format('invalid role OID: %s', owner);
    ELSIF NOT pg_has_role(caller, owner, CASE WHEN before_16 THEN 'MEMBER' ELSE 'SET' END) THEN
        RAISE insufficient_privilege USING MESSAGE = format(
            CASE WHEN before_16 THEN 'must be member of role "%s"'
                 ELSE 'must be able to SET ROLE "%s"' END, name);
    END IF;
END
$$;

-- The row of a scope with these settings. A list of excluded members gets a number when it is
-- first used, and has it again when it returns: fingerprints keep the number.
CREATE FUNCTION idem_internal.scope_row(stored idem.scope, settings jsonb)
RETURNS idem.scope
LANGUAGE plpgsql STABLE
SET intervalstyle = 'postgres'
AS $$
DECLARE
    s idem.scope := jsonb_populate_record(stored, settings);
    limited text;
    was interval;
    value interval;
    fault text;
BEGIN
    IF s.request_exclude <> '{}' AND s.request_exclude::text <> ALL (s.request_lists) THEN
        s.request_lists := s.request_lists || s.request_exclude::text;
    END IF;
    -- The error names what the call has changed.
    FOR limited, was, value, fault IN VALUES
        ('min_ttl', stored.min_ttl, s.min_ttl, 'The minimum must not exceed the scope''s ttl.'),
        ('answer_ttl', stored.answer_ttl, s.answer_ttl,
         'An answer must not be kept for longer than the scope''s ttl.')
    LOOP
        CONTINUE WHEN (idem_internal.fixed(value) > idem_internal.fixed(s.ttl)) IS NOT TRUE;
        IF idem_internal.fixed(was) = idem_internal.fixed(value) THEN
            PERFORM idem_internal.refuse(
                'ttl', '', format('The ttl must not be shorter than the scope''s "%s".', limited),
                format('Pass a longer "ttl", or a shorter "%s" as well.', limited));
        END IF;
        PERFORM idem_internal.refuse(
            limited, '', fault,
            format('Pass a shorter "%s", or a longer "ttl" as well.', limited));
    END LOOP;
    RETURN s;
END
$$;

-- Columns that are no settings keep what they have. A renamed owner gets its new name.
CREATE FUNCTION idem_internal.store_scope(scope idem.scope)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    scope.owner_role := scope.owner;
    scope.owner_name := (SELECT r.rolname FROM pg_roles AS r WHERE r.oid = scope.owner);
    EXECUTE (SELECT format('INSERT INTO idem.scope (id, %1$s) SELECT ($1).id, %2$s '
                           'ON CONFLICT (id) DO UPDATE SET (%1$s) = ROW(%2$s)',
                           string_agg(quote_ident(c.name), ', '),
                           string_agg(format('($1).%I', c.name), ', '))
             FROM (SELECT s.name FROM idem_internal.settings() s
                   UNION ALL VALUES ('name'), ('owner_role'), ('owner_name'),
                                    ('request_lists')) AS c (name))
        USING scope;
END
$$;

-- Rows that this server has not written may have used an id that the sequence does not know.
CREATE FUNCTION idem_internal.next_scope_id()
RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    id CONSTANT bigint := 1 + greatest(
        (SELECT max(s.id) FROM idem.scope s), (SELECT max(d.id) FROM idem.dropped_scope d),
        (SELECT max(r.scope) FROM idem.record r), (SELECT max(w.scope) FROM idem.watermark w),
        (SELECT q.last_value - (NOT q.is_called)::integer FROM idem.scope_id q));
BEGIN
    -- After a restore that has lost them.
    IF EXISTS (SELECT FROM idem.record)
        AND NOT EXISTS (SELECT FROM idem.scope)
        AND NOT EXISTS (SELECT FROM idem.dropped_scope) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'the scopes of the records in this database are missing',
            DETAIL = 'Table idem.record has rows, and table idem.scope has none. Under a new '
                'scope, the operations would be executed again.',
            HINT = 'Restore the rows of idem.scope from the dump that the records came from. If '
                'no retry can come any more, delete the rows of idem.record.';
    END IF;
    IF id > 2147483647 THEN
        RAISE sequence_generator_limit_exceeded USING
            MESSAGE = 'scope ids are used up',
            DETAIL = 'The id of a new scope must be greater than every id in idem.scope, '
                'idem.dropped_scope, idem.record and idem.watermark, greater than the last value '
                'of sequence idem.scope_id, and at most 2147483647.',
            HINT = 'Look for rows with an id that no scope has had, and delete them. If the '
                'sequence was set too high, set it back with ALTER SEQUENCE.';
    END IF;
    RETURN setval('idem.scope_id', id);
END
$$;

-- For what another transaction has done after the snapshot.
CREATE FUNCTION idem_internal.refuse_unseen(what text)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE serialization_failure USING
        MESSAGE = 'could not serialize access due to concurrent update',
        DETAIL = what || ' after this transaction''s snapshot was taken.',
        HINT = 'Retry the transaction.';
END
$$;

-- In READ COMMITTED alone, a statement sees what the locks before it have waited for. A function
-- that must not overlook a row is refused at other levels.
CREATE FUNCTION idem_internal.check_isolation(function text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    level CONSTANT pg_catalog.text := current_setting('transaction_isolation');
BEGIN
    IF level NOT LIKE 'read %' THEN
        RAISE active_sql_transaction USING
            MESSAGE = format('cannot execute idem.%s() in %s', function, upper(level)),
            DETAIL = 'It would overlook what other transactions have committed after this '
                     'transaction''s snapshot was taken.',
            HINT = 'Call it in a transaction that begins with BEGIN ISOLATION LEVEL READ '
                   'COMMITTED.';
    END IF;
END
$$;

CREATE FUNCTION idem_internal.create_scope(
    caller oid, proof bytea, name text, given text[], listed text[], owner oid,
    if_not_exists boolean
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET intervalstyle = 'postgres'
AS $$
#variable_conflict use_variable
DECLARE
    settings pg_catalog.jsonb;
    s idem.scope;
    stored idem.scope;
    others pg_catalog.text;
BEGIN
    proof := idem_internal.check_administrator(caller, proof, 'create_scope');
    IF (octet_length(name) BETWEEN 1 AND 63) IS NOT TRUE THEN
        PERFORM idem_internal.refuse(
            'name', name, 'The name must have 1 to 63 bytes.',
            'Pass the name of a family of operations, such as ''payments''.');
    END IF;
    settings := idem_internal.changed_settings(
        (SELECT jsonb_object_agg(x.name, x.preset) FROM idem_internal.settings() AS x), true, given,
        listed);
    owner := coalesce(owner, caller);
    PERFORM idem_internal.check_owner(caller, owner);
    PERFORM idem_internal.check_default('if_not_exists', if_not_exists);
    LOCK TABLE idem.scope IN SHARE ROW EXCLUSIVE MODE;
    s.request_lists := '{}';
    s := idem_internal.scope_row(s, settings);
    SELECT x.* INTO stored FROM idem.scope AS x WHERE x.name = name;
    IF stored.id IS NULL THEN
        s.id := idem_internal.next_scope_id();
        s.name := name;
        s.owner := owner;
        BEGIN
            PERFORM idem_internal.store_scope(s);
        EXCEPTION WHEN unique_violation THEN
            PERFORM idem_internal.refuse_unseen('The scope was committed');
        END;
        RETURN;
    END IF;
    -- Its settings are shown to its users only.
    IF NOT if_not_exists OR NOT pg_has_role(caller, stored.owner, 'USAGE') THEN
        RAISE duplicate_object USING
            MESSAGE = format('scope "%s" already exists', name),
            DETAIL = 'Scope names are unique in a database.',
            HINT = 'Change the existing scope with idem.alter_scope(), or choose another name.';
    END IF;
    SELECT string_agg(
        format('"%s" is %s, not %s', d.name,
               CASE d.type WHEN 'boolean'::regtype THEN left(d.a, 1)
                   ELSE coalesce(d.a, 'NULL') END,
               CASE d.type WHEN 'boolean'::regtype THEN left(d.b, 1)
                   ELSE coalesce(d.b, 'NULL') END),
        '; ' ORDER BY d.n)
    INTO others
    FROM (SELECT 0 AS n, 'owner' AS name, 'oid'::regtype AS type, stored.owner::text AS a,
                 owner::regrole::text AS b
          UNION ALL
          SELECT x.n, x.name, x.type, o.stored ->> x.name, settings ->> x.name
          FROM idem_internal.settings() AS x, idem_internal.settings_of(stored.id) AS o (stored)
         ) AS d
    WHERE NOT idem_internal.same_setting(d.type, d.a, d.b);
    IF others IS NOT NULL THEN
        RAISE duplicate_object USING
            MESSAGE = format('scope "%s" already exists with other settings', name),
            DETAIL = format('In the existing scope, %s.', others),
            HINT = 'Pass the settings of the existing scope, which idem.scope_ddl() shows, or '
                   'change them first with idem.alter_scope().';
    END IF;
END
$$;

CREATE FUNCTION idem.create_scope(
    name text,
    ttl interval DEFAULT '24 hours',
    lease interval DEFAULT '1 minute',
    wait interval DEFAULT '10 seconds',
    request_required boolean DEFAULT false,
    request_exclude text[] DEFAULT '{}',
    tenant_required boolean DEFAULT false,
    reject_stale_keys boolean DEFAULT false,
    max_attempts integer DEFAULT NULL,
    claims_per_minute integer DEFAULT NULL,
    weak_keys text DEFAULT 'allow',
    store_response boolean DEFAULT true,
    response_exclude text[] DEFAULT '{}',
    final_sqlstates text[] DEFAULT '{}',
    store_request text DEFAULT 'never',
    answer_ttl interval DEFAULT NULL,
    min_ttl interval DEFAULT NULL,
    header_exclude text[]
        DEFAULT '{set-cookie,cookie,authorization,proxy-authorization,www-authenticate}',
    tenant_from text DEFAULT 'argument',
    max_answer_size integer DEFAULT 65536,
    records boolean DEFAULT false,
    settings text[] DEFAULT '{}',
    owner regrole DEFAULT NULL,
    if_not_exists boolean DEFAULT false
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET intervalstyle = 'postgres'
AS $$
BEGIN
    PERFORM idem_internal.create_secrets();
    PERFORM idem_internal.create_scope(
        c.role, c.proof, name COLLATE pg_catalog."C",
        ARRAY[ttl::text, lease::text, wait::text, request_required::text, request_exclude::text,
              tenant_required::text, reject_stale_keys::text, max_attempts::text,
              claims_per_minute::text, weak_keys, store_response::text, response_exclude::text,
              final_sqlstates::text, store_request, answer_ttl::text, min_ttl::text,
              header_exclude::text, tenant_from, max_answer_size::text, records::text],
        settings, owner, if_not_exists)
    FROM idem_internal.caller AS c;
END
$$;

-- The scope, locked against other changes. A claim that is open in this transaction was granted by
-- the rules as they are.
CREATE FUNCTION idem_internal.scope_to_change(caller oid, proof bytea, scope text, call text)
RETURNS idem.scope
LANGUAGE plpgsql AS $$
DECLARE
    s idem.scope;
    claimed text;
BEGIN
    proof := idem_internal.check_administrator(caller, proof, call);
    PERFORM idem_internal.usable_scope(caller, scope, call);
    LOCK TABLE idem.scope IN SHARE ROW EXCLUSIVE MODE;
    s := idem_internal.usable_scope(caller, scope, call);
    SELECT (n.r).key INTO claimed
    FROM idem_internal.entries() AS e (entry), idem_internal.noted(e.entry) AS n
    WHERE (n.r).scope = s.id AND n.is_open
    LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('cannot change scope "%s" while this transaction has an open claim in '
                             'it', scope),
            DETAIL = format('This transaction has claimed key "%s".', claimed),
            HINT = 'Complete or release the claim first, or change the scope in a transaction of '
                   'its own.';
    END IF;
    RETURN s;
END
$$;

-- The tenant is part of a key's identity. Counting waits for the transactions that have a claim,
-- and keeps others from claiming until this one ends.
CREATE FUNCTION idem_internal.check_no_keys(scope integer, name text)
RETURNS void
LANGUAGE plpgsql
SET datestyle = 'ISO'
AS $$
DECLARE
    keys bigint;
    until timestamptz;
    marks bigint;
BEGIN
    SELECT count(*), max(r.expires) INTO keys, until
    FROM idem.record r
    WHERE r.scope = check_no_keys.scope AND r.expires > clock_timestamp();
    SELECT count(*) INTO marks FROM idem.watermark w WHERE w.scope = check_no_keys.scope;
    IF keys > 0 OR marks > 0 THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('cannot change "tenant_from" of scope "%s" while it has live keys',
                             name),
            DETAIL = format('Retries would not find their records, and would run the operations '
                            'again. Unexpired records: %s; watermarks, which do not expire: %s.%s',
                            keys, marks, ' The last record expires at ' || until || '.'),
            HINT = 'Create another scope for new keys, or change this one when its records have '
                'expired. To give its keys up, pass "force" => true.';
    END IF;
END
$$;

-- The new min_ttl. What a key's age is compared with does not grow while keys are refused: their
-- records may have expired, so they would run again. A longer ttl leaves it as it was.
CREATE FUNCTION idem_internal.kept_least_ttl(old idem.scope, new idem.scope)
RETURNS interval
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (old.reject_stale_keys AND new.reject_stale_keys
            AND idem_internal.least_ttl(new) > idem_internal.least_ttl(old)) THEN
        RETURN new.min_ttl;
    ELSIF old.min_ttl IS NULL AND new.min_ttl IS NULL THEN
        RETURN old.ttl;
    END IF;
    RAISE object_not_in_prerequisite_state USING
        MESSAGE = format('cannot raise "min_ttl" of scope "%s" while it rejects stale keys',
                         old.name),
        DETAIL = 'Keys that it has refused would be accepted. Their records may have expired, so '
            'their operations would be executed again.',
        HINT = 'Raise "ttl" alone. When every record has been kept for the new "min_ttl", pass '
            '"force" => true.';
END
$$;

CREATE FUNCTION idem_internal.alter_scope(
    caller oid, proof bytea, name text, given text[], listed text[], owner oid, force boolean
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old idem.scope;
    new idem.scope;
BEGIN
    PERFORM idem_internal.check_default('force', force);
    old := idem_internal.scope_to_change(caller, proof, name, 'alter_scope');
    new := idem_internal.scope_row(
        old, idem_internal.changed_settings('{}', false, given, listed));
    IF NOT force THEN
        new.min_ttl := idem_internal.kept_least_ttl(old, new);
    END IF;
    IF owner IS NOT NULL THEN
        PERFORM idem_internal.check_owner(caller, owner);
        new.owner := owner;
    END IF;
    IF new.tenant_from <> old.tenant_from THEN
        IF NOT force THEN
            PERFORM idem_internal.check_isolation('alter_scope');
        END IF;
        LOCK TABLE idem.record IN SHARE ROW EXCLUSIVE MODE;
        IF NOT force THEN
            PERFORM idem_internal.check_no_keys(old.id, name);
        END IF;
    END IF;
    PERFORM idem_internal.store_scope(new);
END
$$;

CREATE FUNCTION idem.alter_scope(
    name text,
    ttl interval DEFAULT NULL,
    lease interval DEFAULT NULL,
    wait interval DEFAULT NULL,
    request_required boolean DEFAULT NULL,
    request_exclude text[] DEFAULT NULL,
    tenant_required boolean DEFAULT NULL,
    reject_stale_keys boolean DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    claims_per_minute integer DEFAULT NULL,
    weak_keys text DEFAULT NULL,
    store_response boolean DEFAULT NULL,
    response_exclude text[] DEFAULT NULL,
    final_sqlstates text[] DEFAULT NULL,
    store_request text DEFAULT NULL,
    answer_ttl interval DEFAULT NULL,
    min_ttl interval DEFAULT NULL,
    header_exclude text[] DEFAULT NULL,
    tenant_from text DEFAULT NULL,
    max_answer_size integer DEFAULT NULL,
    records boolean DEFAULT NULL,
    settings text[] DEFAULT NULL,
    owner regrole DEFAULT NULL,
    force boolean DEFAULT false
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET intervalstyle = 'postgres'
AS $$
BEGIN
    PERFORM idem_internal.alter_scope(
        c.role, c.proof, name COLLATE pg_catalog."C",
        ARRAY[ttl::text, lease::text, wait::text, request_required::text, request_exclude::text,
              tenant_required::text, reject_stale_keys::text, max_attempts::text,
              claims_per_minute::text, weak_keys, store_response::text, response_exclude::text,
              final_sqlstates::text, store_request, answer_ttl::text, min_ttl::text,
              header_exclude::text, tenant_from, max_answer_size::text, records::text],
        settings, owner, force)
    FROM idem_internal.caller AS c;
END
$$;

CREATE FUNCTION idem_internal.drop_scope(caller oid, proof bytea, name text, force boolean)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s idem.scope;
    r idem.record;
BEGIN
    PERFORM idem_internal.check_default('force', force);
    s := idem_internal.scope_to_change(caller, proof, name, 'drop_scope');
    IF NOT force THEN
        PERFORM idem_internal.check_isolation('drop_scope');
    END IF;
    SELECT * INTO r FROM idem.record AS x
    WHERE x.scope = s.id AND x.leased AND x.state = 'p' AND x.recovery_point IS NOT NULL
        AND x.expires > clock_timestamp()
    LIMIT 1;
    IF FOUND AND NOT force THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('scope "%s" has an unfinished operation with a recovery point', name),
            DETAIL = format('An attempt of operation "%s" has reached the recovery point "%s".',
                            r.key, r.recovery_point),
            HINT = 'Finish the operations that idem.take() returns, and those under a lease. If '
                   'none must be continued, pass "force" => true.';
    END IF;
    DELETE FROM idem.scope WHERE id = s.id;
    INSERT INTO idem.dropped_scope VALUES (s.id, transaction_timestamp()) ON CONFLICT DO NOTHING;
END
$$;

CREATE FUNCTION idem.drop_scope(name text, force boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM idem_internal.drop_scope(c.role, c.proof, name COLLATE pg_catalog."C", force)
    FROM idem_internal.caller AS c;
END
$$;

CREATE FUNCTION idem_internal.scope_ddl(caller oid, proof bytea, scope text)
RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s idem.scope;
    stored pg_catalog.jsonb;
BEGIN
    proof := idem_internal.check_caller(caller, proof);
    s := idem_internal.usable_scope(caller, scope, 'scope_ddl');
    stored := idem_internal.settings_of(s.id);
    RETURN format('SELECT idem.create_scope(%L%s%s);', scope, (
        SELECT string_agg(format(', %s => %s', x.name, CASE
                   WHEN x.type IN ('boolean'::regtype, 'integer') THEN stored ->> x.name
                   ELSE quote_literal(stored ->> x.name) END), '' ORDER BY x.n)
        FROM idem_internal.settings() AS x
        WHERE NOT idem_internal.same_setting(x.type, stored ->> x.name, x.preset)), (
        SELECT format(', owner => %L', s.owner) FROM pg_roles AS r WHERE r.oid = s.owner));
END
$$;

CREATE FUNCTION idem.scope_ddl(scope text)
RETURNS text
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT idem_internal.scope_ddl(c.role, c.proof, scope COLLATE pg_catalog."C")
    FROM idem_internal.caller AS c;
END;

CREATE FUNCTION idem.rotate_secret()
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    newest integer;
BEGIN
    PERFORM idem_internal.check_writable('rotate_secret', '');
    PERFORM idem_internal.check_isolation('rotate_secret');
    LOCK TABLE idem.secret IN SHARE ROW EXCLUSIVE MODE;
    IF (SELECT min(k.id) = 0 AND max(k.id) > 0 FROM idem.secret AS k) IS NOT TRUE THEN
        PERFORM idem_internal.refuse_without_secrets();
    END IF;
    INSERT INTO idem.secret
    SELECT max(k.id) + 1, 'fingerprint',
           sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
                  || uuid_send(gen_random_uuid())),
           clock_timestamp()
    FROM idem.secret AS k
    RETURNING id INTO newest;
    RETURN newest;
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Records
-- ---------------------------------------------------------------------------------------------

-- A record that is not in the snapshot of a REPEATABLE READ transaction is in the way of an insert.
CREATE FUNCTION idem_internal.check_unseen(s idem.scope, tenant text, key text)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM idem_internal.insert_claim(
            s.id, tenant, key, '-infinity', '0', NULL, '', 0, 0, NULL);
        RAISE SQLSTATE 'ID000';
    END IF;
EXCEPTION
    WHEN SQLSTATE 'ID000' THEN NULL;
    WHEN serialization_failure THEN
        PERFORM idem_internal.refuse_unseen('The key''s record was committed');
END
$$;

-- The record of a key that no transaction holds and, unless the lease is to be cut, no lease. Its
-- row stays locked; the key lock is not taken, so that a transaction can change any number of
-- records. A claim in flight without a row is waited for if waits is true.
CREATE FUNCTION idem_internal.record_at_rest(
    s idem.scope, tenant text, key text, function text, waits boolean, cuts_lease boolean
)
RETURNS idem.record
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    r idem.record;
    bound idem_internal.bound;
    holder idem_internal.holder;
    seen record;
    locked idem.record;
    is_in_flight boolean;
    hint text;
BEGIN
    LOOP
        -- Before the record is read, which the transaction may be about to commit.
        is_in_flight := waits AND EXISTS (
            SELECT FROM idem_internal.holder_of(idem_internal.lock_id(s, tenant, key)));
        SELECT x AS row, x.xmin AS written_by INTO seen FROM idem.record AS x
        WHERE (x.scope, x.tenant, x.key) = (s.id, tenant, key);
        r := seen.row;
        hint := NULL;
        IF idem_internal.is_open_here(r, seen.written_by) THEN
            PERFORM idem_internal.refuse_open_here(key, format(
                'Release the claim with idem.release(), or call idem.%s() in another transaction '
                'after this one has ended.', function));
        ELSIF NOT cuts_lease AND r.state = 'p' AND r.nonce IS NOT NULL
            AND r.lease_end > clock_timestamp()
        THEN
            holder := idem_internal.lease_of(r);
            hint := 'Wait for the end of the operation. If its worker is gone or must not go on, '
                    'call idem.revoke() first.';
            bound := coalesce(bound, idem_internal.new_bound(s.wait));
            CONTINUE WHEN idem_internal.wait_until(bound, r.lease_end);
        ELSIF is_in_flight THEN
            SELECT h.* INTO holder
            FROM idem_internal.holder_of(idem_internal.lock_id(s, tenant, key)) AS h;
            bound := coalesce(bound, idem_internal.new_bound(s.wait));
            CONTINUE WHEN idem_internal.wait_for(bound, idem_internal.lock_id(s, tenant, key));
        ELSIF r.scope IS NULL THEN
            PERFORM idem_internal.check_unseen(s, tenant, key);
            RETURN NULL;
        ELSE
            SELECT x.* INTO locked FROM idem.record AS x
            WHERE (x.scope, x.tenant, x.key) = (s.id, tenant, key)
            FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                CONTINUE WHEN locked IS DISTINCT FROM r;
                RETURN r;
            END IF;
            -- An expired record that another transaction has locked is being removed or replaced.
            IF r.expires <= clock_timestamp() THEN
                RETURN NULL;
            END IF;
            bound := coalesce(bound, idem_internal.new_bound(s.wait));
            CONTINUE WHEN idem_internal.wait_for(bound, NULL, r);
            holder := NULL;
        END IF;
        PERFORM idem_internal.refuse_in_progress(key, holder, bound, false, hint);
    END LOOP;
END
$$;

CREATE FUNCTION idem_internal.forget(r idem.record, key text, force boolean)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF r.expires > clock_timestamp() AND r.state = 'p' AND r.recovery_point IS NOT NULL
        AND NOT force
    THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('operation "%s" is unfinished and has a recovery point', key),
            DETAIL = format('An attempt has reached the recovery point "%s", which idem.forget() '
                            'would remove.', r.recovery_point),
            HINT = 'Call idem.revoke(), so that the next claim continues from the recovery point. '
                   'If the operation must not be continued, pass "force" => true.';
    END IF;
    DELETE FROM idem.record AS x WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key);
    RETURN coalesce(r.expires > clock_timestamp(), false);
END
$$;

-- An expired record is of no use, so nothing of it is kept.
CREATE FUNCTION idem_internal.erase(r idem.record, key text, force boolean)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    rest CONSTANT idem.record := idem_internal.erased(r);
BEGIN
    IF (r.expires > clock_timestamp()) IS NOT TRUE THEN
        RETURN idem_internal.forget(r, key, true);
    ELSIF NOT force AND r.state = 'p'
        AND (r.request IS NOT NULL OR r.recovery_state IS NOT NULL)
    THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('operation "%s" is unfinished', key),
            DETAIL = 'idem.erase() would remove its request or the state of its recovery point, '
                     'which another attempt needs.',
            HINT = 'Claim the key and finish the operation first. If it must not be continued, '
                   'pass "force" => true.';
    ELSIF rest IS DISTINCT FROM r THEN
        UPDATE idem.record AS x
        SET (redacted, recovery_state, request, headers, response, body, error)
            = ROW(rest.redacted, NULL, NULL, NULL, NULL, NULL, rest.error)
        WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key);
    END IF;
    RETURN true;
END
$$;

-- The caller passes the name of the function that it may execute: any other stands for "revoke".
CREATE FUNCTION idem_internal.change_key(
    caller oid, proof bytea, function text, scope text, key text, type regtype, tenant text,
    force boolean
)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s idem.scope;
    r idem.record;
    now pg_catalog.timestamptz;
    changed boolean := false;
BEGIN
    function := CASE WHEN function COLLATE "C" IN ('forget', 'erase') THEN function
                     ELSE 'revoke' END;
    proof := idem_internal.check_administrator(caller, proof, function);
    PERFORM idem_internal.check_default('force', force);
    PERFORM idem_internal.check_key(key, type);
    tenant := idem_internal.checked_tenant(tenant);
    s := idem_internal.usable_scope(caller, scope, function);
    tenant := idem_internal.tenant_in(caller, s, tenant);
    r := idem_internal.record_at_rest(s, tenant, key, function, true, function = 'revoke');
    now := clock_timestamp();
    IF function = 'forget' THEN
        changed := idem_internal.forget(r, key, force);
    ELSIF function = 'erase' THEN
        changed := idem_internal.erase(r, key, force);
    ELSIF r.expires > clock_timestamp() THEN
        IF r.state <> 'p' THEN
            RETURN false;
        END IF;
        UPDATE idem.record AS x
        SET lease_end = now,
            expires = now + idem_internal.fixed(x.expires - x.lease_end),
            nonce = NULL,
            extra_attempts = CASE WHEN x.attempt >= s.max_attempts::bigint + x.extra_attempts
                THEN x.attempt - s.max_attempts + 1 ELSE x.extra_attempts END
        WHERE (x.scope, x.tenant, x.key) = (r.scope, r.tenant, r.key);
        changed := true;
    END IF;
    IF NOT changed THEN
        PERFORM idem_internal.require_tenant(s, tenant);
    END IF;
    RETURN changed;
END
$$;

CREATE FUNCTION idem.revoke(scope text, key anycompatible, tenant text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT idem_internal.change_key(
                c.role, c.proof, 'revoke', scope COLLATE pg_catalog."C",
                key::pg_catalog.text, pg_catalog.pg_typeof(key), tenant, false)
            FROM idem_internal.caller AS c);
END
$$;

CREATE FUNCTION idem.forget(
    scope text,
    key anycompatible,
    tenant text DEFAULT NULL,
    force boolean DEFAULT false
)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT idem_internal.change_key(
                c.role, c.proof, 'forget', scope COLLATE pg_catalog."C",
                key::pg_catalog.text, pg_catalog.pg_typeof(key), tenant, force)
            FROM idem_internal.caller AS c);
END
$$;

CREATE FUNCTION idem.erase(
    scope text,
    key anycompatible,
    tenant text DEFAULT NULL,
    force boolean DEFAULT false
)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT idem_internal.change_key(
                c.role, c.proof, 'erase', scope COLLATE pg_catalog."C",
                key::pg_catalog.text, pg_catalog.pg_typeof(key), tenant, force)
            FROM idem_internal.caller AS c);
END
$$;

-- scope NULL: all scopes, for superusers and the owner of schema idem.
CREATE FUNCTION idem_internal.change_tenant(
    caller oid, proof bytea, function text, scope text, tenant text, force boolean
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s idem.scope;
    listed pg_catalog.record;
    r idem.record;
    bound idem_internal.bound;
    holder idem_internal.holder;
    session_bound CONSTANT pg_catalog.text := current_setting('lock_timeout');
    records bigint := 0;
    changed bigint := 0;
BEGIN
    function := CASE function COLLATE "C" WHEN 'forget_tenant' THEN function
                     ELSE 'erase_tenant' END;
    proof := idem_internal.check_administrator(caller, proof, function);
    IF tenant IS NULL THEN
        PERFORM idem_internal.refuse('tenant', NULL, NULL, NULL);
    END IF;
    PERFORM idem_internal.check_default('force', force);
    tenant := idem_internal.checked_tenant(tenant);
    IF scope IS NOT NULL OR function = 'forget_tenant' THEN
        s := idem_internal.usable_scope(caller, scope, function);
        tenant := idem_internal.tenant_in(caller, s, tenant);
    ELSIF NOT pg_has_role(caller, (SELECT n.nspowner FROM pg_namespace AS n
                                   WHERE n.nspname = 'idem'), 'USAGE') THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('must be superuser to execute idem.%s() for all scopes', function),
            DETAIL = 'It changes the records of every role.',
            HINT = 'Ask a superuser to execute it.';
    ELSIF tenant = '' THEN
        PERFORM idem_internal.refuse(
            'tenant', '', 'For all scopes, the tenant must not be empty.',
            'Erase the keys without a tenant in each scope.');
    END IF;
    PERFORM idem_internal.check_isolation(function);
    FOR listed IN
        SELECT x.scope AS id, x.key FROM idem.record AS x
        WHERE (x.scope = s.id OR scope IS NULL) AND x.tenant = tenant AND x.state <> 'a'
        ORDER BY x.scope, x.key
    LOOP
        IF scope IS NULL THEN
            SELECT x.* INTO s FROM idem.scope AS x WHERE x.id = listed.id;
            s.id := listed.id;
            s.wait := coalesce(s.wait, '10 seconds');
        END IF;
        r := idem_internal.record_at_rest(
            s, tenant, listed.key, split_part(function, '_', 1), false, false);
        records := records + 1;
        changed := changed + CASE
            WHEN function = 'forget_tenant' THEN idem_internal.forget(r, listed.key, force)
            ELSE idem_internal.erase(r, listed.key, force) END::integer;
    END LOOP;
    IF records = 0 AND tenant = '' THEN
        RAISE NOTICE 'there are no records without a tenant';
    ELSIF records = 0 THEN
        RAISE NOTICE USING
            MESSAGE = format('tenant "%s" has no records', tenant),
            DETAIL = 'Tenants are compared exactly, as the calls passed them.',
            HINT = 'To find keys that were claimed without the tenant, look for them in columns '
                   'that are filled by idem.current_key(), and pass each key to idem.erase() or '
                   'idem.forget().';
    END IF;
    IF function = 'forget_tenant' THEN
        LOCK TABLE idem.watermark IN ROW EXCLUSIVE MODE;  -- which the bound is not for
        BEGIN
            FOR listed IN
                SELECT w.source AS key FROM idem.watermark AS w
                WHERE (w.scope, w.tenant) = (s.id, tenant)
                ORDER BY w.source
            LOOP
                bound := idem_internal.new_bound(s.wait);
                PERFORM idem_internal.limit_waits(bound);
                DELETE FROM idem.watermark AS w
                WHERE (w.scope, w.tenant, w.source) = (s.id, tenant, listed.key);
                PERFORM set_config('lock_timeout', session_bound, true);
            END LOOP;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM idem_internal.is_within(bound);
            SELECT h.* INTO holder
            FROM idem_internal.holder_of(
                idem_internal.lock_id(s, tenant, 'source' || E'\x1f' || listed.key)) AS h;
            PERFORM idem_internal.refuse_in_progress(listed.key, holder, bound);
        END;
    END IF;
    RETURN changed;
END
$$;

CREATE FUNCTION idem.forget_tenant(scope text, tenant text, force boolean DEFAULT false)
RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
    SELECT idem_internal.change_tenant(
        c.role, c.proof, 'forget_tenant', scope COLLATE pg_catalog."C", tenant, force)
    FROM idem_internal.caller AS c;
END;

CREATE FUNCTION idem.erase_tenant(scope text, tenant text, force boolean DEFAULT false)
RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
    SELECT idem_internal.change_tenant(
        c.role, c.proof, 'erase_tenant', scope COLLATE pg_catalog."C", tenant, force)
    FROM idem_internal.caller AS c;
END;

-- ---------------------------------------------------------------------------------------------
-- Maintenance
-- ---------------------------------------------------------------------------------------------

-- Where the next purge begins. A crash empties the table, and it begins at the first block.
CREATE UNLOGGED TABLE idem.purge_progress (
    position            bigint      NOT NULL
);

INSERT INTO idem.purge_progress VALUES (0);

COMMENT ON TABLE idem.purge_progress IS
    'The block at which the next purge begins.';

-- A dump then has the name of a renamed owner, and none if the role was dropped. While a scope is
-- being changed, this is left to the next purge.
CREATE FUNCTION idem_internal.store_owners()
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    stale CONSTANT integer[] := ARRAY(
        SELECT s.id FROM idem.scope AS s LEFT JOIN pg_roles AS r ON r.oid = s.owner
        WHERE s.owner_role <> coalesce(r.oid, 0) OR s.owner_name IS DISTINCT FROM r.rolname);
BEGIN
    IF stale <> '{}' THEN
        LOCK TABLE idem.scope IN ROW EXCLUSIVE MODE NOWAIT;
        UPDATE idem.scope AS s SET owner_role = coalesce(x.oid, 0), owner_name = x.rolname
        FROM (SELECT y.id, r.oid, r.rolname
              FROM idem.scope AS y LEFT JOIN pg_roles AS r ON r.oid = y.owner
              WHERE y.id = ANY (stale)
              FOR UPDATE OF y SKIP LOCKED) AS x
        WHERE s.id = x.id;
    END IF;
EXCEPTION
    WHEN lock_not_available THEN NULL;
END
$$;

-- No index has expiry, so the table is read from where the last purge stopped, some blocks at a
-- time, for ten seconds or half of statement_timeout, which would undo the purge. Rows that another
-- transaction has locked are passed over, so that the purge waits for none; a concurrent purge
-- begins at the same block and does not move the position.
CREATE FUNCTION idem.purge(max_records integer DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stretch CONSTANT bigint := 128;
    blocks CONSTANT bigint := pg_relation_size('idem.record')
        / current_setting('block_size')::bigint;
    keeps CONSTANT boolean := NOT EXISTS (SELECT FROM idem.scope WHERE answer_ttl IS NOT NULL);
    most CONSTANT bigint := coalesce(max_records, 10000);
    until CONSTANT pg_catalog.timestamptz := clock_timestamp() + least(
        '10 seconds', nullif(current_setting('statement_timeout')::interval, '0') / 2);
    place pg_catalog.tid;
    block bigint;
    first pg_catalog.tid;
    behind pg_catalog.tid;
    done bigint := 0;
    gone bigint;
BEGIN
    PERFORM idem_internal.check_writable('purge', '');
    IF most < 1 THEN
        PERFORM idem_internal.refuse(
            'max_records', '', 'The number must be at least 1.',
            'Pass how many records to purge at most, such as 10000.');
    ELSIF EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = 'idem.record'::regclass) THEN
        RAISE NOTICE USING
            MESSAGE = 'nothing was purged: the records arrive by subscription',
            DETAIL = 'The publisher purges the records, and its deletes are replicated.',
            HINT = 'If this server has become the primary, drop the subscription.';
        RETURN 0;
    END IF;
    PERFORM idem_internal.store_owners();
    SELECT p.ctid, p.position INTO place, block
    FROM idem.purge_progress AS p
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    block := coalesce(block, (SELECT p.position FROM idem.purge_progress AS p LIMIT 1), 0);
    FOR n IN 0 .. (blocks - 1) / stretch LOOP
        block := CASE WHEN block < blocks THEN block ELSE 0 END;
        first := format('(%s,0)', block);
        behind := format('(%s,0)', block + stretch);
        DELETE FROM idem.record AS r
        WHERE r.ctid = ANY (ARRAY(
            SELECT x.ctid FROM idem.record AS x
            WHERE x.ctid >= first AND x.ctid < behind AND NOT idem_internal.is_own(x.xmin)
                AND (x.expires <= clock_timestamp()
                     OR x.scope IN (  -- which is hashed, unlike EXISTS
                         SELECT d.id FROM idem.dropped_scope AS d
                         WHERE NOT EXISTS (SELECT FROM idem.scope AS s WHERE s.id = d.id)))
            LIMIT most - done
            FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS gone = ROW_COUNT;
        done := done + gone;
        IF NOT keeps AND done < most THEN
            UPDATE idem.record AS r
            SET (redacted, recovery_state, request, headers, response, body, error)
                = (SELECT e.redacted, NULL::jsonb, NULL::jsonb, NULL::jsonb, NULL::jsonb,
                          NULL::bytea, e.error
                   FROM idem_internal.erased(r) AS e)
            WHERE r.ctid = ANY (ARRAY(
                SELECT x.ctid
                FROM idem.record AS x
                    JOIN idem.scope AS s ON s.id = x.scope
                    CROSS JOIN LATERAL idem_internal.erased(x) AS e
                WHERE x.ctid >= first AND x.ctid < behind AND x.state IN ('c', 'f')
                    AND num_nonnulls(x.recovery_state, x.request, x.headers, x.response, x.body,
                                     x.error) > 0
                    AND NOT idem_internal.is_own(x.xmin)
                    AND coalesce(x.finished, x.created)
                        <= clock_timestamp() - idem_internal.fixed(s.answer_ttl)
                    AND e IS DISTINCT FROM x
                LIMIT most - done
                FOR UPDATE OF x SKIP LOCKED));
            GET DIAGNOSTICS gone = ROW_COUNT;
            done := done + gone;
        END IF;
        EXIT WHEN done >= most;
        block := block + stretch;
        EXIT WHEN clock_timestamp() >= until;
    END LOOP;
    UPDATE idem.purge_progress AS p SET position = block WHERE p.ctid = place;
    IF place IS NULL AND NOT EXISTS (SELECT FROM idem.purge_progress) THEN
        INSERT INTO idem.purge_progress VALUES (block);
    END IF;
    RETURN done;
END
$$;

-- Applications may call this one, so it says what is missing. Functions for administration that
-- need the library do not exist.
CREATE FUNCTION idem.use_records(records regclass)
RETURNS void
LANGUAGE sql
RETURN idem_internal.refuse_feature('idem.use_records()', 'All records are in idem.record.');

\ir comments.sql

-- What of idem_internal has no comment of its own.
DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format('COMMENT ON %s IS ''Part of the SQL edition of idem, explained in its '
                      'script. Call the functions of schema idem.''', o.name)
        FROM (SELECT format('FUNCTION %s', oid::regprocedure), oid, 'pg_proc', pronamespace
              FROM pg_proc
              UNION ALL
              SELECT format('VIEW %s', oid::regclass), oid, 'pg_class', relnamespace
              FROM pg_class
              WHERE relkind = 'v'
              UNION ALL
              SELECT format('TYPE %s', c.oid::regclass), c.reltype, 'pg_type', c.relnamespace
              FROM pg_class AS c
              WHERE c.relkind = 'c') AS o (name, oid, catalog, schema)
        WHERE o.schema = 'idem_internal'::regnamespace
            AND obj_description(o.oid, o.catalog) IS NULL
    LOOP
        EXECUTE statement;
    END LOOP;
END
$$;

\ir privileges.sql

DO $$
BEGIN
    PERFORM idem_internal.restore_privileges(), idem_internal.create_secrets();
END
$$;
