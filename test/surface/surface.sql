-- The surface of the edition of idem that is installed in this database, one fact per row, with
-- what it is sorted by: section, object and place.
SET search_path = pg_catalog;
SET DateStyle = ISO;
SET IntervalStyle = postgres;

CREATE TEMP TABLE surface (section text, object text, place integer, fact text);

-- What has columns. What an unlogged table holds is not kept.
CREATE TEMP VIEW relation AS
    SELECT oid, oid::regclass::text AS name, relkind, relacl FROM pg_class
     WHERE relnamespace = to_regnamespace('idem') AND relpersistence = 'p';

CREATE TEMP VIEW column_of AS
    SELECT r.name, r.relkind, a.attnum, format('%s.%s %s%s%s', r.name, attname, format_type(atttypid, atttypmod),
               CASE WHEN attnotnull THEN ' not null' END, ' = ' || pg_get_expr(d.adbin, d.adrelid)) AS fact
      FROM relation r
      JOIN pg_attribute a ON a.attrelid = r.oid
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attnum > 0 AND NOT attisdropped;

CREATE TEMP VIEW function AS
    SELECT *, format('%s.%s', pronamespace::regnamespace, proname) AS name,
           format('%s.%s(%s)', pronamespace::regnamespace, proname, array_to_string(proargnames, ', ')) AS call
      FROM pg_proc WHERE pronamespace IN (to_regnamespace('idem'), to_regnamespace('idem_test'));

INSERT INTO surface
SELECT 'functions', call, 0, format('%s returns %s%s, %s, parallel %s%s', call, CASE WHEN proretset THEN 'setof ' END,
           format_type(prorettype, NULL),
           CASE provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END,
           CASE proparallel WHEN 's' THEN 'safe' WHEN 'r' THEN 'restricted' ELSE 'unsafe' END || CASE WHEN proisstrict THEN ', strict' ELSE '' END,
           CASE WHEN NOT EXISTS (SELECT FROM aclexplode(coalesce(proacl, acldefault('f', proowner))) WHERE grantee = 0)
                THEN ', not for PUBLIC' END)
  FROM function
UNION ALL
SELECT 'functions', call, n, format('%s: %s%s %s%s', name,
           CASE proargmodes[n] WHEN 'o' THEN 'OUT ' WHEN 'v' THEN 'VARIADIC ' END, proargnames[n],
           format_type(coalesce(proallargtypes[n], proargtypes[n - 1]), NULL),
           ' = ' || pg_get_function_arg_default(oid, n))
  FROM function, generate_series(1, coalesce(cardinality(proallargtypes), pronargs)) AS n;

INSERT INTO surface
SELECT CASE relkind WHEN 'c' THEN 'types' WHEN 'v' THEN 'views' ELSE 'rows on disk' END, name, attnum, fact FROM column_of
 WHERE relkind IN ('c', 'v', 'r')
UNION ALL
SELECT 'views', name, 0, format('%s for PUBLIC', name) FROM relation
 WHERE relkind = 'v' AND EXISTS (SELECT FROM aclexplode(relacl) WHERE grantee = 0 AND privilege_type = 'SELECT')
UNION ALL
SELECT 'types', t.oid::regtype::text, 0, format('%s is %s', t.oid::regtype, format_type(typbasetype, typtypmod))
  FROM pg_type t WHERE typnamespace = to_regnamespace('idem') AND typtype = 'd'
UNION ALL
SELECT 'rows on disk', name, 1000, format('%s: %s', name, pg_get_constraintdef(c.oid))
  FROM pg_constraint c JOIN relation r ON r.oid = conrelid WHERE relkind = 'r' AND contype IN ('p', 'u', 'c')
UNION ALL
SELECT 'rows on disk', name, 1001, format('%s: %s', name, pg_get_indexdef(indexrelid))
  FROM pg_index JOIN relation r ON r.oid = indrelid WHERE relkind = 'r' AND indpred IS NOT NULL;

-- COMMENTs name them; those of the SQL edition have none, and t/editions.pl compares the editions.
INSERT INTO surface
SELECT 'errors of functions', name, 0, format('%s raises %s', name, string_agg(DISTINCT code[1], ' '))
  FROM function,
       regexp_matches(substring(obj_description(oid, 'pg_proc') FROM '\mRaises .*'), '\m(?=[A-Z]*\d)([0-9A-Z]{5})\M', 'g') AS code
 GROUP BY name;

INSERT INTO surface
SELECT 'errors', code, 0, format('%s: %s', code, of)
  FROM jsonb_each(idem_internal.errors()) AS error(code, of);

-- The words that callers compare with, as the comments of the columns list them.
INSERT INTO surface
SELECT 'words', name, attnum, format('%s.%s: %s', name, attname, col_description(oid, attnum))
  FROM relation JOIN pg_attribute ON attrelid = oid
 WHERE col_description(oid, attnum) IS NOT NULL
   AND (attname IN ('outcome', 'state', 'kind', 'weakness', 'weak_keys', 'store_request', 'tenant_from')
        OR attname = 'status' AND name = 'idem.health_result');

INSERT INTO surface
SELECT DISTINCT 'checks', check_name, 0, check_name FROM idem.health();

DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_extension WHERE extname = 'idem_test') THEN
    LOAD 'idem_test';
  END IF;
END $$;
INSERT INTO surface
SELECT 'settings', name, 0, format('%s %s = %L, %s%s%s', name, vartype, boot_val || coalesce(' ' || unit, ''), context,
           ', ' || min_val || ' to ' || max_val, ', ' || array_to_string(enumvals, ' '))
  FROM pg_settings WHERE name ~ '^idem(_test)?\.' AND EXISTS (SELECT FROM pg_extension WHERE extname = 'idem');

-- How a key is found again: what is on disk, and what callers keep, depends on it.
CREATE TEMP TABLE key_of (place serial, key text, tenant text);
INSERT INTO key_of (key, tenant) VALUES
    ('order-1', ''), ('order-1', 'acme'), ('8e03978e-40d5-43dd-bc93-6894a57f9324', ''),
    ('8E03978E-40D5-43DD-BC93-6894A57F9324', ''), ('019ab3c1-7d00-7abc-8def-0123456789ab', ''),
    ('01KAWW2Z80ABCDEFGHJKMNPQRS', ''), ('01kaww2z80abcdefghjkmnpqrs', '');
INSERT INTO surface
SELECT 'keys', 'derive_key', 0, format('idem.derive_key(''a'', ''b''): %s', idem.derive_key('a', 'b'));
SELECT idem.create_scope('surface') IS NULL AS created, idem.edition() = 'extension' AS has_digests \gset
\if :has_digests
SELECT idem.once('surface', key, tenant => tenant), idem.advance('surface', key, 1, tenant) FROM key_of \g /dev/null
INSERT INTO surface
SELECT 'keys', 'digests', place, format('digest of key %s of tenant %s in scope %s: %s', key_of.key, quote_literal(tenant), r.scope, digest)
  FROM key_of JOIN idem.record r USING (tenant) WHERE coalesce(r.key, r.key_uuid::text) = key_of.key
UNION ALL
SELECT 'keys', 'digests', 100 + place, format('digest of source %s of tenant %s in scope %s: %s', key_of.key, quote_literal(tenant), w.scope, digest)
  FROM key_of JOIN idem.watermark w USING (tenant) WHERE w.source = key_of.key;
\endif

SELECT section, object, place, regexp_replace(fact, '\s+', ' ', 'g') FROM surface;
