-- What holds for all objects of the extension; test/surface/1.txt lists them, with their signatures.
BEGIN;
SELECT no_plan();

-- A fresh installation, independent of other tests.
DROP EXTENSION idem;
CREATE EXTENSION idem;

-- Everything that the extension owns, in any schema.
CREATE TEMP VIEW owned AS
    SELECT classid, objid FROM pg_depend
     WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
       AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem');

SELECT set_eq(
    $$SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class
       WHERE oid IN (SELECT objid FROM owned WHERE classid = 'pg_class'::regclass)
      UNION SELECT pronamespace::regnamespace::text FROM pg_proc
       WHERE oid IN (SELECT objid FROM owned WHERE classid = 'pg_proc'::regclass)$$,
    ARRAY['idem', 'idem_internal'], 'everything is in the schemas idem and idem_internal');

SELECT is_empty(
    $$SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
       WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'c' AND col_description(c.oid, a.attnum) IS NULL$$,
    'every column of a result has a comment');

SELECT is((SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'idem.record'::regclass),
          (SELECT pg_get_userbyid(extowner) FROM pg_extension WHERE extname = 'idem'),
          'the tables belong to the owner of the extension');

SELECT is_empty(
    $$SELECT i.indexrelid::regclass, c::regcollation FROM pg_index i, unnest(i.indcollation) AS c
       WHERE i.indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'idem'::regnamespace)
         AND c <> 0 AND c <> '"C"'::regcollation$$,
    'the order of no index changes with the operating system, where it would lose keys and scopes');

SELECT is_empty(
    $$SELECT a.attrelid::regclass FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
       WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'v' AND a.attname IN ('scope', 'name')
         AND a.attcollation <> '"default"'::regcollation$$,
    'the scopes in views compare with columns of any collation');

-- Documentation and the extension itself --------------------------------------------------------

SELECT is_empty(
    $$SELECT pg_describe_object(classid, objid, 0) FROM owned
       WHERE obj_description(objid, (SELECT relname FROM pg_class WHERE oid = classid)) IS NULL
         AND objid <> 'idem.scope_id'::regclass
         -- row and array types come by themselves; 17 and later list them as the extension's
         AND NOT EXISTS (SELECT FROM pg_depend AS d
                          WHERE d.classid = owned.classid AND d.objid = owned.objid AND d.deptype = 'i')$$,
    'every function, view, type, table and the schema has a comment');

SELECT results_eq(
    $$SELECT extrelocatable FROM pg_extension WHERE extname = 'idem'$$,
    $$VALUES (false)$$, 'not relocatable');

SELECT * FROM finish();
ROLLBACK;
