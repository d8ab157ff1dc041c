-- Record tables beside idem.record: chosen by a transaction, found by a token.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SET client_min_messages = warning;
CREATE ROLE idem_test_owner;
RESET client_min_messages;

-- ---- The table ------------------------------------------------------------------------------

CREATE SCHEMA app;
SELECT idem.create_record_table('elsewhere');
SELECT idem.create_record_table('app.records', 'tenant_id', 'bigint');
SELECT idem.create_record_table('app."Odd name"', 'a "column"', 'uuid');
\d app.records
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull
FROM pg_attribute a
WHERE a.attrelid = 'app."Odd name"'::regclass AND a.attnum IN (1, 2)
ORDER BY a.attnum;
SELECT relacl FROM pg_class WHERE oid = 'app.records'::regclass;
SELECT obj_description('app.records'::regclass);

-- Refused: nothing is left behind.
\set SHOW_CONTEXT never
SELECT idem.create_record_table(NULL);
SELECT idem.create_record_table('');
SELECT idem.create_record_table('elsewhere');
SELECT idem.create_record_table('nowhere.records');
SELECT idem.create_record_table('a.b.c');
SELECT idem.create_record_table('pg_temp.half');
BEGIN;
SET LOCAL search_path = nowhere;
SELECT idem.create_record_table('half');
ROLLBACK;
SELECT idem.create_record_table('half', 'tenant_id');
SELECT idem.create_record_table('half', tenant_type => 'text');
SELECT idem.create_record_table('twice', 'digest', 'uuid');
\set SHOW_CONTEXT errors
SELECT count(*) FROM pg_class WHERE relname IN ('half', 'twice');

-- Default privileges give nothing away.
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO idem_test_owner;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC;
SELECT idem.create_record_table('private');
SELECT has_table_privilege('idem_test_owner', 'private', 'SELECT');
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM idem_test_owner;
ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM PUBLIC;

-- ---- A scope whose records are elsewhere ----------------------------------------------------

SELECT idem.create_scope('plain');
SELECT idem.create_scope('there', settings => '{records=yes}');
SELECT name, records FROM idem.scopes ORDER BY name;
SELECT regexp_replace(idem.scope_ddl('there'), 'owner => ''[^'']*''', 'owner => ...');

BEGIN;
SELECT idem.use_records('app.records');
SELECT c.outcome, idem.complete(c.token, '{"paid": 42}')
FROM idem.claim('there', 'order-1', '{"amount": 42}', tenant => '7') c;
SELECT outcome, response FROM idem.claim('there', 'order-1', '{"amount": 42}', tenant => '7');
SELECT outcome FROM idem.try_claim('there', 'order-1', '{"amount": 43}', tenant => '7');
SELECT state, response FROM idem.lookup('there', 'order-1', tenant => '7');
SELECT state FROM idem.lookup('there', 'order-1', tenant => '8');
SELECT tenant_id, tenant, key, response FROM app.records;
SELECT count(*) FROM idem.record;

-- Every other call finds the record.
SELECT idem.once('there', 'm-1', tenant => '7'), idem.once('there', 'm-1', tenant => '7');
SELECT * FROM idem.once_each('there', '{m-1,m-2,m-3}', tenant => '7');
CREATE FUNCTION pg_temp.same(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
SELECT outcome, response
FROM idem.execute('there', 'order-3', 'pg_temp.same(jsonb)', '{"n": 1}', tenant => '7');
SELECT (idem.cancel('there', 'order-4', tenant => '7')).state;
SELECT state FROM idem.lookup('there', 'order-4', tenant => '7');
SELECT idem.erase('there', 'order-1', tenant => '7');
SELECT response, redacted FROM idem.lookup('there', 'order-1', tenant => '7');
SELECT idem.forget('there', 'order-1', tenant => '7');
SELECT state FROM idem.lookup('there', 'order-1', tenant => '7');
COMMIT;

-- The tenant must be a value of the column, and this is known at the claim.
CREATE FUNCTION app.in_records(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE result text;
BEGIN
  PERFORM idem.use_records('app.records');
  EXECUTE call INTO result;
  RETURN result;
END $$;
SELECT app.in_records($$SELECT idem.claim('there', 'order-2', tenant => 'seven')$$);
SELECT app.in_records($$SELECT idem.claim('there', 'order-2')$$);
SELECT app.in_records($$SELECT idem.once('there', 'order-2', tenant => '99999999999999999999')$$);
SELECT app.in_records($$SELECT idem.once_each('there', '{order-2}', tenant => '')$$);

-- A leased claim, by its token alone.
SELECT app.in_records(
    $$SELECT token FROM idem.claim('there', 'job-1', tenant => '7', lease => '1 hour')$$) AS token \gset
SELECT length(:'token');
SELECT idem.renew(:'token') IS NOT NULL;
SELECT idem.checkpoint(:'token', 'charged', '{"id": 1}');
SELECT recovery_point, tenant_id FROM app.records WHERE key = 'job-1';
SELECT idem.child_key(:'token', 'step') = idem.child_key(:'token', 'step');
SELECT idem.release(:'token');
BEGIN;
SELECT idem.use_records('app.records');
SELECT key, recovery_point, attempt, token AS taken FROM idem.take('there') \gset
COMMIT;
SELECT :'key', :'recovery_point', :'attempt';
SELECT idem.complete(:'token');
SELECT idem.complete(:'taken', '{"done": true}');
SELECT app.in_records($$SELECT (state, response) FROM idem.lookup('there', 'job-1', tenant => '7')$$);

-- ---- No choice, and a choice for another scope ----------------------------------------------

-- Without a choice, such a scope has no keys: none is new.
SELECT outcome FROM idem.claim('there', 'm-1', tenant => '7');
SELECT outcome FROM idem.try_claim('there', 'm-1', tenant => '7');
SELECT idem.once('there', 'm-1', tenant => '7');
SELECT * FROM idem.once_each('there', '{m-1}', tenant => '7');
SELECT outcome FROM idem.execute('there', 'm-1', 'pg_temp.same(jsonb)', '{}', tenant => '7');
SELECT state FROM idem.lookup('there', 'm-1', tenant => '7');
SELECT key FROM idem.take('there');
SELECT state FROM idem.cancel('there', 'm-1', tenant => '7');
SELECT idem.forget('there', 'm-1', tenant => '7');
SELECT idem.erase('there', 'm-1', tenant => '7');
BEGIN;
SELECT idem.use_records('app.records');
SELECT idem.use_records('idem.record');
SELECT idem.once('there', 'm-1', tenant => '7');
ROLLBACK;
-- Watermarks would stay behind.
BEGIN;
SELECT idem.use_records('app.records');
SELECT idem.advance('there', 'source', 1, tenant => '7');
ROLLBACK;

-- A choice that one function has made cannot make a key of another scope new.
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT idem.once('plain', 'mail-1');
SELECT idem.advance('plain', 'source', 1) IS NOT NULL;
COMMIT;
SELECT idem.once('plain', 'mail-1');
SELECT count(*) FROM elsewhere;
SELECT outcome FROM idem.claim('plain', 'job-2', lease => '1 microsecond');
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT key FROM idem.take('plain');
COMMIT;

-- ---- The choice follows savepoints ----------------------------------------------------------

SELECT idem.create_scope('chosen', records => true);
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT c.outcome, idem.complete(c.token) FROM idem.claim('chosen', 'a') c;
SAVEPOINT s;
SELECT idem.use_records('private');
SELECT c.outcome, idem.complete(c.token) FROM idem.claim('chosen', 'b') c;
ROLLBACK TO s;
SELECT c.outcome, idem.complete(c.token) FROM idem.claim('chosen', 'c') c;
SAVEPOINT t;
SELECT idem.use_records('private');
RELEASE t;
SELECT c.outcome, idem.complete(c.token) FROM idem.claim('chosen', 'd') c;
SAVEPOINT u;
SAVEPOINT v;
SELECT idem.use_records('elsewhere');
RELEASE v;
ROLLBACK TO u;
SELECT state FROM idem.lookup('chosen', 'd');
COMMIT;
SELECT 'elsewhere' AS "table", key FROM elsewhere
UNION ALL SELECT 'private', key FROM private
ORDER BY 1, 2;

-- ---- Tokens ---------------------------------------------------------------------------------

-- A token names its table. A claim of this transaction stays where it is.
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT token FROM idem.claim('chosen', 'job-2', lease => '1 hour') \gset
SELECT idem.use_records('private');
SELECT idem.checkpoint(:'token', 'here');
COMMIT;
SELECT idem.renew(:'token') IS NOT NULL;
BEGIN;
SELECT idem.use_records('private');
SELECT idem.renew(:'token') IS NOT NULL;
COMMIT;
-- Moved: where the table has another OID, as on another server, the transaction chooses it.
BEGIN;
INSERT INTO private SELECT * FROM elsewhere WHERE key = 'job-2';
DELETE FROM elsewhere WHERE key = 'job-2';
COMMIT;
SELECT idem.complete(:'token', '{"moved": true}');
BEGIN;
SELECT idem.use_records('private');
SELECT idem.complete(:'token', '{"moved": true}');
COMMIT;
SELECT state, response FROM private WHERE key = 'job-2';
-- A copy that a move has left behind does not count.
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT token FROM idem.claim('chosen', 'job-3', lease => '1 hour') \gset
COMMIT;
INSERT INTO private SELECT * FROM elsewhere WHERE key = 'job-3';
BEGIN;
SELECT idem.use_records('private');
SELECT idem.complete(:'token', '{"copy": 2}');
COMMIT;
SELECT 'elsewhere', state, response FROM elsewhere WHERE key = 'job-3'
UNION ALL SELECT 'private', state, response FROM private WHERE key = 'job-3'
ORDER BY 1;
-- A fault of the table says what it is: the operation has not lost its lease.
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT token FROM idem.claim('chosen', 'job-4', lease => '1 hour') \gset
COMMIT;
GRANT UPDATE ON elsewhere TO idem_test_owner;
SELECT idem.complete(:'token');
REVOKE UPDATE ON elsewhere FROM idem_test_owner;
ALTER TABLE elsewhere OWNER TO idem_test_owner;
\set VERBOSITY terse
SELECT idem.complete(:'token');
\set VERBOSITY default
DO $$ BEGIN EXECUTE format('ALTER TABLE elsewhere OWNER TO %I', current_user); END $$;
ALTER TABLE elsewhere ENABLE ROW LEVEL SECURITY;
SELECT idem.complete(:'token');
ALTER TABLE elsewhere DISABLE ROW LEVEL SECURITY;
SELECT idem.complete(:'token');
-- The table of the token is gone, or never was one for records.
BEGIN;
SELECT idem.use_records('private');
SELECT token FROM idem.claim('chosen', 'job-5', lease => '1 hour') \gset
COMMIT;
DROP TABLE private;
SELECT idem.renew(:'token');
CREATE FUNCTION pg_temp.invented(relation regclass) RETURNS text LANGUAGE sql AS $$
    SELECT translate(encode(decode('02' || repeat('5a', 16) || '00000001' || repeat('a5', 8)
                                   || lpad(to_hex(relation::oid::bigint), 8, '0'), 'hex'), 'base64'),
                     '+/' || chr(10), '-_')
$$;
CREATE TABLE nothing ();
CREATE TABLE tokens AS
    SELECT relation, pg_temp.invented(relation) AS token
    FROM unnest('{nothing,idem.scope,pg_class,elsewhere}'::regclass[]) AS relation;
DO $$
DECLARE t tokens;
BEGIN
  FOR t IN SELECT * FROM tokens LOOP
    BEGIN
      PERFORM idem.renew(t.token);
    EXCEPTION WHEN OTHERS THEN
      RAISE INFO '%: % %', t.relation, SQLSTATE, SQLERRM;
    END;
  END LOOP;
END $$;
SELECT idem.use_records('nothing');
DROP TABLE tokens, nothing;

-- ---- A tenant's records, wherever they are --------------------------------------------------

BEGIN;
SELECT idem.use_records('elsewhere');
SELECT idem.once('there', 'here', tenant => '7');
COMMIT;
SELECT idem.erase_tenant('there', '7');
SELECT idem.forget_tenant('there', '7');
SELECT count(*) FROM app.records;
-- in all scopes, for superusers
CREATE TABLE unreachable (LIKE elsewhere INCLUDING ALL);
GRANT UPDATE ON unreachable TO PUBLIC;
SELECT idem.complete((idem.claim('plain', 'k', tenant => 'c')).token, '"private"');
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT idem.complete((idem.claim('chosen', 'k', tenant => 'c')).token, '"private"');
COMMIT;
SELECT idem.erase_tenant(NULL, 'c');
SELECT count(*), count(response) FROM (TABLE idem.record UNION ALL TABLE elsewhere) r WHERE tenant = 'c';
SELECT idem.erase_tenant(NULL, 'C');
SELECT idem.forget_tenant('plain', 'C');
DROP TABLE unreachable;
SELECT idem.forget_tenant('plain', 'c'), idem.forget_tenant('chosen', 'c');

-- ---- The views show idem.record, and no other table -----------------------------------------

BEGIN;
SELECT count(*) AS before FROM idem.records \gset
SELECT outcome FROM idem.claim('plain', 'twice', lease => '1 hour');
INSERT INTO elsewhere SELECT * FROM idem.record;
SELECT count(*) - :before AS more FROM idem.records;
SELECT count(*) FROM (SELECT scope, tenant, key FROM idem.in_flight GROUP BY 1, 2, 3 HAVING count(*) > 1) AS twice;
SELECT sum(live) - :before AS more FROM idem.overview;
ROLLBACK;

-- ---- The setting and live records -----------------------------------------------------------

BEGIN;
SELECT idem.use_records('elsewhere');
SELECT idem.once('there', 'x', tenant => '7');
COMMIT;
\set VERBOSITY terse
SELECT idem.alter_scope('there', records => true);
SELECT idem.alter_scope('there', records => false);
-- Records in a table that idem does not use at present count too.
GRANT UPDATE ON elsewhere TO idem_test_owner;
SELECT idem.alter_scope('there', records => false);
REVOKE UPDATE ON elsewhere FROM idem_test_owner;
SELECT idem.forget_tenant('there', '7');
SELECT idem.alter_scope('there', records => false);
SELECT idem.once('there', 'x');
SELECT idem.alter_scope('there', records => true);
SELECT idem.forget('there', 'x');
-- A claim in flight has no record yet.
BEGIN;
SELECT claimed FROM idem.claim('there', 'x');
SELECT idem.alter_scope('there', records => true);
ROLLBACK;
SELECT name, records FROM idem.scopes ORDER BY name;
\set VERBOSITY default
SELECT idem.create_scope('there', records => true, if_not_exists => true);
SELECT idem.create_scope('null', records => NULL);

-- The id of a new scope is above all that a table from elsewhere has.
SELECT max(id) + 1 AS next FROM idem.scope \gset
CREATE TABLE restored (LIKE elsewhere INCLUDING ALL);
INSERT INTO restored SELECT * FROM elsewhere LIMIT 1;
UPDATE restored SET scope = :next;
SELECT idem.create_scope('new', records => true);
GRANT INSERT ON restored TO idem_test_owner;
UPDATE restored SET scope = :next + 1;
SELECT idem.create_scope('newer', records => true);
SELECT name, id - :next AS above FROM idem.scope WHERE name IN ('new', 'newer') ORDER BY name;
DROP TABLE restored;

-- ---- What is not a record table -------------------------------------------------------------

SELECT idem.use_records(NULL);
SELECT idem.use_records(0);
SELECT idem.use_records(4294967295);
SELECT idem.use_records('idem.scope');
SELECT idem.use_records('elsewhere_pkey');
SELECT idem.use_records('idem.records');
CREATE TABLE copy (LIKE idem.record INCLUDING ALL);
SELECT idem.use_records('copy');
DROP TABLE copy;
CREATE TABLE copy (LIKE elsewhere INCLUDING ALL);
SELECT idem.use_records('copy');
ALTER TABLE copy OWNER TO idem_test_owner;
\set VERBOSITY terse
SELECT idem.use_records('copy');
\set VERBOSITY default
DO $$ BEGIN EXECUTE format('ALTER TABLE copy OWNER TO %I', current_user); END $$;
GRANT DELETE ON copy TO idem_test_owner;
SELECT idem.use_records('copy');
REVOKE ALL ON copy FROM idem_test_owner;
GRANT UPDATE (response) ON copy TO PUBLIC;
SELECT idem.use_records('copy');
REVOKE ALL ON copy FROM PUBLIC;
GRANT SELECT ON copy TO PUBLIC;
SELECT idem.use_records('copy');
-- What was fine is checked again when it has changed, even in the same transaction.
BEGIN;
SELECT idem.use_records('copy');
GRANT INSERT ON copy TO idem_test_owner;
SELECT idem.claim('chosen', 'z');
ROLLBACK;
BEGIN;
SELECT idem.use_records('copy');
ALTER TABLE copy DROP COLUMN extra_attempts;
SELECT idem.claim('chosen', 'z');
ROLLBACK;
-- A clone of idem.record, and nothing more: each statement spoils it, and the remedy mends it.
CREATE FUNCTION pg_temp.text_of(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE FUNCTION app.text_of(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE FUNCTION app.fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TABLE other (digest uuid PRIMARY KEY);
CREATE FUNCTION pg_temp.spoil(statement text) RETURNS TABLE (detail text, remedy text, cured boolean)
LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  SELECT fault, t.remedy INTO detail, remedy FROM idem_internal.record_tables() t WHERE records = 'copy'::regclass;
  IF remedy ~ '^[A-Z]+ [A-Z]' THEN
    EXECUTE remedy;
    PERFORM idem.use_records('copy');
    cured := true;
  END IF;
  RAISE INFO '%', format(E'%s\n  %s\n  %s', statement, detail, CASE WHEN cured THEN 'cured: ' ELSE '' END || remedy);
  RAISE EXCEPTION 'undo';
EXCEPTION WHEN raise_exception THEN
END $$;
SELECT pg_temp.spoil(statement) FROM unnest(ARRAY[
    'ALTER TABLE copy SET UNLOGGED',
    'ALTER TABLE copy ADD region text',
    'ALTER TABLE copy ALTER status SET DEFAULT 200',
    'ALTER TABLE copy ALTER key SET NOT NULL',
    'ALTER TABLE copy ALTER status TYPE bigint',
    'ALTER TABLE copy ADD CONSTRAINT only_acme CHECK (tenant = ''acme'')',
    'ALTER TABLE copy DROP CONSTRAINT record_key',
    'ALTER TABLE copy ADD CONSTRAINT one UNIQUE (scope) DEFERRABLE',
    'CREATE TRIGGER fire BEFORE INSERT ON copy FOR EACH ROW EXECUTE FUNCTION app.fire()',
    'CREATE RULE nothing AS ON INSERT TO copy DO INSTEAD NOTHING',
    'ALTER TABLE copy ENABLE ROW LEVEL SECURITY',
    'ALTER TABLE copy DROP CONSTRAINT copy_pkey',
    'ALTER TABLE copy DROP CONSTRAINT copy_pkey, ADD PRIMARY KEY (digest, scope)',
    'DROP INDEX copy_scope_idx',
    'CREATE INDEX calls ON copy (app.text_of(tenant))',
    'CREATE INDEX calls ON copy (scope) WHERE app.text_of(tenant) = ''''',
    'GRANT TRIGGER ON copy TO idem_test_owner'
]) AS statement;
SELECT idem.use_records('copy');
-- These are maintained.
CREATE INDEX ON copy (lower(tenant));
CREATE UNIQUE INDEX ON copy (key) WHERE scope = 0;
-- idem does not truncate, and fires what fires after a row is written.
CREATE TRIGGER fire AFTER INSERT ON copy FOR EACH ROW EXECUTE FUNCTION app.fire();
ALTER TABLE other ADD FOREIGN KEY (digest) REFERENCES copy;
CREATE TRIGGER emptied AFTER TRUNCATE ON copy EXECUTE FUNCTION app.fire();
ALTER TABLE copy ADD gone text;
ALTER TABLE copy DROP gone;
SELECT idem.use_records('copy');
DROP TABLE copy, other;
-- A tenant is of a type that checks nothing.
CREATE DOMAIN app.tenant_id AS text;
\set SHOW_CONTEXT never
SELECT idem.create_record_table('wrong', 'tenant_id', 'app.tenant_id');
SELECT idem.create_record_table('wrong', 'tenant_id', 'numeric');
\set SHOW_CONTEXT errors
SELECT idem.create_record_table('with_domain', 'tenant_id', 'text');
ALTER TABLE with_domain ALTER tenant_id TYPE app.tenant_id;
SELECT idem.use_records('with_domain');
DROP TABLE with_domain;

-- ---- Rows that can be written through another table ------------------------------------------

-- With privileges on a partitioned table, a role writes into its partitions.
CREATE TABLE parted (LIKE elsewhere) PARTITION BY RANGE (created);
SELECT idem.create_record_table('part');
ALTER TABLE parted ATTACH PARTITION part FOR VALUES FROM ('2020-01-01') TO ('2120-01-01');
SELECT idem.use_records('part');
GRANT INSERT ON parted TO idem_test_owner;
SELECT idem.use_records('part');
REVOKE INSERT ON parted FROM idem_test_owner;
GRANT UPDATE (response) ON parted TO idem_test_owner;
SELECT idem.use_records('part');
REVOKE UPDATE (response) ON parted FROM idem_test_owner;
SELECT idem.use_records('part');
-- Noticed in the same transaction, although the partition itself has not changed.
BEGIN;
SELECT idem.use_records('part');
GRANT TRUNCATE ON parted TO PUBLIC;
SELECT idem.claim('chosen', 'z');
ROLLBACK;
ALTER TABLE parted OWNER TO idem_test_owner;
\set VERBOSITY terse
SELECT idem.use_records('part');
\set VERBOSITY default
DROP TABLE parted;
-- Nor does a partition key run code of other roles.
CREATE TABLE parted (LIKE elsewhere) PARTITION BY LIST (app.text_of(tenant));
SELECT idem.create_record_table('part');
ALTER TABLE parted ATTACH PARTITION part FOR VALUES IN ('a');
SELECT idem.use_records('part');
DROP TABLE parted;
CREATE TABLE parted (LIKE elsewhere) PARTITION BY LIST (lower(tenant));
SELECT idem.create_record_table('part');
ALTER TABLE parted ATTACH PARTITION part FOR VALUES IN ('a');
BEGIN;
SELECT idem.use_records('part');
SELECT idem.once('chosen', 'k', tenant => 'A');
\set VERBOSITY terse
SELECT idem.once('chosen', 'k', tenant => 'B');
\set VERBOSITY default
ROLLBACK;
DROP TABLE parted;
CREATE TABLE parent (LIKE elsewhere);
SELECT idem.create_record_table('child');
ALTER TABLE child INHERIT parent;
SELECT idem.use_records('child');
DROP TABLE child, parent;

-- ---- Indexes of users -----------------------------------------------------------------------

-- A unique index on a tenant that is a UUID, as the digest is, stays one of the user.
SELECT idem.create_record_table('one_each', 'tenant_id', 'uuid');
CREATE UNIQUE INDEX ON one_each (tenant_id);
SET statement_timeout = '1min';
BEGIN;
SELECT idem.use_records('one_each');
SELECT idem.once('chosen', 'first', tenant => '00000000-0000-0000-0000-000000000001');
SELECT idem.once('chosen', 'second', tenant => '00000000-0000-0000-0000-000000000001');
ROLLBACK;
BEGIN;
SELECT idem.use_records('one_each');
SELECT * FROM idem.once_each('chosen', '{first,second}',
                             tenant => '00000000-0000-0000-0000-000000000001');
ROLLBACK;
RESET statement_timeout;
DROP TABLE one_each;

-- ---- A column of others in idem.record, also after it was dropped ---------------------------

ALTER TABLE idem.record ADD note text;
SELECT idem.use_records('app."Odd name"');
SELECT detail, hint FROM idem.health() WHERE check_name = 'record tables' AND detail ~ '^idem.record:';
SELECT idem.create_record_table('app.with_note');
SELECT idem.use_records('app.with_note');
ALTER TABLE idem.record DROP note;
SELECT idem.use_records('app."Odd name"');
\set VERBOSITY terse
SELECT idem.use_records('app.with_note');
\set VERBOSITY default
ALTER TABLE app.with_note DROP note;
SELECT idem.use_records('app.with_note');
DROP TABLE app.with_note;
SELECT count(*) FROM idem.health() WHERE check_name = 'record tables' AND detail ~ '^idem.record:';

-- ---- A table that is gone -------------------------------------------------------------------

BEGIN;
SELECT idem.use_records('app."Odd name"');
DROP TABLE app."Odd name";
\set VERBOSITY terse
SELECT idem.claim('chosen', 'k', tenant => '00000000-0000-0000-0000-000000000001');
\set VERBOSITY default
ROLLBACK;

-- ---- The extension and its tables -----------------------------------------------------------

DROP EXTENSION idem;
DROP TABLE elsewhere;
DROP SCHEMA app CASCADE;
DROP EXTENSION idem;
CREATE EXTENSION idem;
DROP ROLE idem_test_owner;
