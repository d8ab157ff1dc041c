-- ---------------------------------------------------------------------------------------------
-- Privileges
-- ---------------------------------------------------------------------------------------------

-- The default privileges of the role that installs idem may have granted some on everything above.
-- What is left is what idem itself grants to PUBLIC.
DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format('REVOKE ALL ON %s FROM %s', o.name,
                      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
        FROM (SELECT format('SCHEMA %I', nspname), nspname, nspacl, nspowner, true
              FROM pg_namespace
              UNION ALL
              SELECT format('TABLE %s', oid::regclass), relnamespace::regnamespace::name, relacl,
                     relowner, relkind = 'v' AND relname <> 'stored'
              FROM pg_class
              WHERE relkind IN ('r', 'v', 'S')
              UNION ALL
              SELECT format('FUNCTION %s', oid::regprocedure), pronamespace::regnamespace::name,
                     proacl, proowner, true
              FROM pg_proc
              UNION ALL
              SELECT format('TYPE %s', oid::regtype), typnamespace::regnamespace::name, typacl,
                     typowner, typtype <> 'd'
              FROM pg_type
              WHERE typelem = 0) AS o (name, schema, acl, owner, is_public)
            CROSS JOIN LATERAL aclexplode(o.acl) AS a
        WHERE o.schema IN ('idem', 'idem_internal') AND a.grantee <> o.owner
            AND NOT (o.is_public AND a.grantee = 0
                     AND a.privilege_type IN ('USAGE', 'SELECT', 'EXECUTE'))
    LOOP
        EXECUTE statement;
    END LOOP;
    FOR statement IN
        SELECT format('GRANT SELECT ON %s TO PUBLIC', oid::regclass)
        FROM pg_class
        WHERE relnamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
            AND relkind = 'v' AND relname <> 'stored'
    LOOP
        EXECUTE statement;
    END LOOP;
    GRANT USAGE ON SCHEMA idem, idem_internal TO PUBLIC;
END
$$;

-- Ends what base.sql has begun: what the role creates here later gets its defaults again.
ALTER DEFAULT PRIVILEGES IN SCHEMA idem, idem_internal REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

ALTER DEFAULT PRIVILEGES IN SCHEMA idem, idem_internal REVOKE USAGE ON TYPES FROM PUBLIC;
