-- Record tables beside idem.record: named by a scope, chosen by a transaction, found by a token.
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
SELECT idem.create_record_table(NULL);
SELECT idem.create_record_table('');
SELECT idem.create_record_table('elsewhere');
SELECT idem.create_record_table('nowhere.records');
SELECT idem.create_record_table('half', 'tenant_id');
SELECT idem.create_record_table('half', tenant_type => 'text');
SELECT idem.create_record_table('twice', 'digest', 'uuid');
SELECT count(*) FROM pg_class WHERE relname IN ('half', 'twice');

-- Default privileges give nothing away.
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO idem_test_owner;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC;
SELECT idem.create_record_table('private');
SELECT has_table_privilege('idem_test_owner', 'private', 'SELECT');
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM idem_test_owner;
ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM PUBLIC;

-- ---- Named by a scope -----------------------------------------------------------------------

SELECT idem.create_scope('plain');
SELECT idem.create_scope('there', records => 'app.records');
SELECT name, records FROM idem.scopes ORDER BY name;
SELECT regexp_replace(idem.scope_ddl('there'), 'owner => ''[^'']*''', 'owner => ...');

SELECT c.outcome, idem.complete(c.token, '{"paid": 42}')
FROM idem.claim('there', 'order-1', '{"amount": 42}', tenant => '7') c;
SELECT outcome, response FROM idem.claim('there', 'order-1', '{"amount": 42}', tenant => '7');
SELECT outcome FROM idem.try_claim('there', 'order-1', '{"amount": 43}', tenant => '7');
SELECT state, response FROM idem.lookup('there', 'order-1', tenant => '7');
SELECT state FROM idem.lookup('there', 'order-1', tenant => '8');
SELECT tenant_id, tenant, key, response FROM app.records;
SELECT count(*) FROM idem.record;

-- The tenant must be a value of the column, and this is known at the claim.
SELECT idem.claim('there', 'order-2', tenant => 'seven');
SELECT idem.claim('there', 'order-2');
SELECT idem.once('there', 'order-2', tenant => '99999999999999999999');
SELECT * FROM idem.once_each('there', '{order-2}', tenant => '');

-- Every other call finds the record.
SELECT idem.once('there', 'm-1', tenant => '7'), idem.once('there', 'm-1', tenant => '7');
SELECT * FROM idem.once_each('there', '{m-1,m-2,m-3}', tenant => '7');
CREATE FUNCTION pg_temp.same(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
SELECT outcome, response
FROM idem.execute('there', 'order-3', 'pg_temp.same(jsonb)', '{"n": 1}', tenant => '7');
SELECT (idem.forbid('there', 'order-4', tenant => '7')).state;
SELECT state FROM idem.lookup('there', 'order-4', tenant => '7');
SELECT idem.erase('there', 'order-1', tenant => '7');
SELECT response, redacted FROM idem.lookup('there', 'order-1', tenant => '7');
SELECT idem.forget('there', 'order-1', tenant => '7');
SELECT state FROM idem.lookup('there', 'order-1', tenant => '7');

-- A leased claim, by its token alone.
SELECT token FROM idem.claim('there', 'job-1', tenant => '7', lease => '1 hour') \gset
SELECT length(:'token');
SELECT idem.renew(:'token') IS NOT NULL;
SELECT idem.checkpoint(:'token', 'charged', '{"id": 1}');
SELECT recovery_point, tenant_id FROM app.records WHERE key = 'job-1';
SELECT idem.child_key(:'token', 'step') = idem.child_key(:'token', 'step');
SELECT idem.release(:'token');
SELECT key, recovery_point, attempt, token AS taken FROM idem.take('there') \gset
SELECT :'key', :'recovery_point', :'attempt';
SELECT idem.complete(:'token');
SELECT idem.complete(:'taken', '{"done": true}');
SELECT state, response FROM idem.lookup('there', 'job-1', tenant => '7');

-- ---- Chosen by the transaction --------------------------------------------------------------

BEGIN;
SELECT idem.use_records('elsewhere');
SELECT c.outcome, idem.complete(c.token) FROM idem.claim('plain', 'a') c;
SAVEPOINT s;
SELECT idem.use_records('private');
SELECT c.outcome, idem.complete(c.token) FROM idem.claim('plain', 'b') c;
ROLLBACK TO s;
SELECT c.outcome, idem.complete(c.token) FROM idem.claim('plain', 'c') c;
SAVEPOINT t;
SELECT idem.use_records('private');
RELEASE t;
SELECT c.outcome, idem.complete(c.token) FROM idem.claim('plain', 'd') c;
SELECT idem.use_records('idem.record');
SELECT c.outcome, idem.complete(c.token) FROM idem.claim('plain', 'e') c;
-- A scope that names its table is not affected.
SELECT idem.once('there', 'm-4', tenant => '7');
COMMIT;
SELECT 'elsewhere' AS "table", key FROM elsewhere
UNION ALL SELECT 'private', key FROM private
UNION ALL SELECT 'idem.record', key FROM idem.record
UNION ALL SELECT 'app.records', key FROM app.records WHERE key = 'm-4'
ORDER BY 1, 2;

-- The choice ends with the transaction.
SELECT state FROM idem.lookup('plain', 'a');
SELECT state FROM idem.lookup('plain', 'e');
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT state FROM idem.lookup('plain', 'a');
SELECT state FROM idem.lookup('plain', 'e');
SELECT idem.advance('plain', 'source', 1);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idem.use_records('elsewhere');
SAVEPOINT t;
SELECT idem.use_records('private');
RELEASE t;
ROLLBACK TO s;
SELECT state FROM idem.lookup('plain', 'e');
COMMIT;

-- A token finds its record without a choice; with one, only there. A claim of this transaction
-- stays where it is.
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT token FROM idem.claim('plain', 'job-2', lease => '1 hour') \gset
SELECT idem.use_records('private');
SELECT idem.checkpoint(:'token', 'here');
COMMIT;
SELECT idem.renew(:'token') IS NOT NULL;
BEGIN;
SELECT idem.use_records('private');
SELECT idem.renew(:'token');
ROLLBACK;
-- Moved: the table that the token names is not where the record is.
BEGIN;
INSERT INTO private SELECT * FROM elsewhere WHERE key = 'job-2';
DELETE FROM elsewhere WHERE key = 'job-2';
COMMIT;
SELECT idem.complete(:'token', '{"moved": true}');
SELECT state, response FROM private WHERE key = 'job-2';
-- A copy that a move has left behind does not count.
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT token FROM idem.claim('plain', 'job-3', lease => '1 hour') \gset
COMMIT;
INSERT INTO private SELECT * FROM elsewhere WHERE key = 'job-3';
BEGIN;
SELECT idem.use_records('private');
SELECT idem.complete(:'token', '{"copy": 2}');
COMMIT;
SELECT 'elsewhere', state, response FROM elsewhere WHERE key = 'job-3'
UNION ALL SELECT 'private', state, response FROM private WHERE key = 'job-3'
ORDER BY 1;
-- The table of the token is gone.
BEGIN;
SELECT idem.use_records('private');
SELECT token FROM idem.claim('plain', 'job-4', lease => '1 hour') \gset
COMMIT;
CREATE TABLE kept AS SELECT * FROM private WHERE key = 'job-4';
DROP TABLE private;
SELECT idem.renew(:'token');
INSERT INTO idem.record SELECT * FROM kept;
SELECT idem.complete(:'token');
DROP TABLE kept;

-- take() without a choice looks everywhere.
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT outcome FROM idem.claim('plain', 'job-5', lease => '1 microsecond');
COMMIT;
SELECT key, attempt FROM idem.take('plain');
SELECT state, attempt FROM elsewhere WHERE key = 'job-5';

-- ---- A tenant's records, wherever they are --------------------------------------------------

SELECT idem.once('plain', 'here', tenant => '7');
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT idem.once('plain', 'there', tenant => '7');
COMMIT;
SELECT idem.erase_tenant('plain', '7');
SELECT idem.forget_tenant('plain', '7');
SELECT idem.forget_tenant('there', '7');
SELECT count(*) FROM app.records;

-- ---- Another table for a scope --------------------------------------------------------------

SELECT idem.once('there', 'x', tenant => '7');
SELECT idem.alter_scope('there', records => 'elsewhere');
SELECT idem.alter_scope('there', records => 'idem.record');
SELECT idem.alter_scope('there', records => 'app.records');
BEGIN;
INSERT INTO elsewhere
    SELECT digest, created, expires, lease_end, nonce, scope, attempt, status, state, redacted,
        tenant, key, fingerprint, recovery_point, recovery_state, headers, response, body, error,
        key_uuid, request, extra_attempts
    FROM app.records;
DELETE FROM app.records;
SELECT idem.alter_scope('there', records => 'elsewhere');
COMMIT;
SELECT idem.once('there', 'x', tenant => '7');
SELECT name, records FROM idem.scopes ORDER BY name;
SELECT idem.forget('there', 'x', tenant => '7');
SELECT idem.alter_scope('there', records => 'idem.record');
SELECT name, records FROM idem.scopes ORDER BY name;
SELECT idem.create_scope('there', records => 'elsewhere', if_not_exists => true);

-- ---- What is not a record table -------------------------------------------------------------

SELECT idem.use_records(NULL);
SELECT idem.use_records(0);
SELECT idem.use_records(4294967295);
SELECT idem.use_records('idem.scope');
SELECT idem.use_records('elsewhere_pkey');
SELECT idem.use_records('idem.records');
SELECT idem.create_scope('wrong', records => 'idem.secret');
SELECT idem.alter_scope('plain', records => 'idem.secret');
CREATE TABLE copy (LIKE idem.record INCLUDING ALL);
SELECT idem.use_records('copy');
DROP TABLE copy;
CREATE TABLE copy (LIKE elsewhere INCLUDING ALL);
ALTER TABLE copy DROP CONSTRAINT copy_pkey;
BEGIN;
SELECT idem.use_records('copy');
SELECT idem.claim('plain', 'z');
ROLLBACK;
ALTER TABLE copy ADD PRIMARY KEY (digest);
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
SELECT idem.claim('plain', 'z');
ROLLBACK;
BEGIN;
SELECT idem.use_records('copy');
ALTER TABLE copy DROP COLUMN extra_attempts;
SELECT idem.claim('plain', 'z');
ROLLBACK;
ALTER TABLE copy SET UNLOGGED;
SELECT idem.use_records('copy');
DROP TABLE copy;

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
SELECT idem.claim('plain', 'z');
ROLLBACK;
ALTER TABLE parted OWNER TO idem_test_owner;
\set VERBOSITY terse
SELECT idem.use_records('part');
\set VERBOSITY default
DROP TABLE parted;
CREATE TABLE parent (LIKE elsewhere);
SELECT idem.create_record_table('child');
ALTER TABLE child INHERIT parent;
SELECT idem.use_records('child');
DROP TABLE child, parent;

-- ---- A table that is gone -------------------------------------------------------------------

SELECT idem.create_scope('gone', records => 'app."Odd name"');
DROP TABLE app."Odd name";
\set VERBOSITY terse
SELECT idem.claim('gone', 'k', tenant => '00000000-0000-0000-0000-000000000001');
\set VERBOSITY default
SELECT idem.alter_scope('gone', records => 'idem.record');
SELECT outcome FROM idem.try_claim('gone', 'k', lease => '1 hour');

-- ---- The extension and its tables -----------------------------------------------------------

DROP EXTENSION idem;
DROP TABLE elsewhere;
DROP SCHEMA app CASCADE;
DROP EXTENSION idem;
CREATE EXTENSION idem;
DROP ROLE idem_test_owner;
