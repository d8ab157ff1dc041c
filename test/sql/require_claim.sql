-- A guarded table can be written only within an operation.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('payments');
SELECT idem.create_scope('refunds');
SELECT idem.create_scope('mail');
CREATE TABLE ledger (id int PRIMARY KEY, amount int);
CREATE TRIGGER operation BEFORE INSERT OR UPDATE OR DELETE ON ledger
  FOR EACH STATEMENT EXECUTE FUNCTION idem.require_claim('payments', 'refunds');

-- no claim, no write, not even one of no rows
INSERT INTO ledger VALUES (1, 10);
\echo :LAST_ERROR_SQLSTATE
UPDATE ledger SET amount = 0 WHERE false;
\echo :LAST_ERROR_SQLSTATE
DELETE FROM ledger;
\echo :LAST_ERROR_SQLSTATE
INSERT INTO ledger VALUES (1, 10) ON CONFLICT (id) DO UPDATE SET amount = 20;
\echo :LAST_ERROR_SQLSTATE
COPY ledger FROM stdin;
\.
\echo :LAST_ERROR_SQLSTATE

-- an open claim in either scope; a completed one; a failed one
BEGIN;
SELECT token AS t FROM idem.claim('payments', 'open') \gset
INSERT INTO ledger VALUES (1, 10);
SELECT idem.complete(:'t');
UPDATE ledger SET amount = 11;
COMMIT;
UPDATE ledger SET amount = 12;
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT token AS t FROM idem.claim('refunds', 'failed') \gset
SELECT idem.fail(:'t', '{"message": "no"}');
DELETE FROM ledger;
COMMIT;
BEGIN;
SELECT token AS t FROM idem.claim('payments', 'many') \gset
SELECT count(idem.claim('mail', i::text)) FROM generate_series(1, 100) i;
INSERT INTO ledger VALUES (1, 10);
ROLLBACK;

-- a claim in another scope, a replay, a released claim and one that was rolled back do not count
BEGIN;
SELECT outcome FROM idem.claim('mail', 'elsewhere');
INSERT INTO ledger VALUES (1, 10);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
SELECT outcome FROM idem.claim('payments', 'open');
INSERT INTO ledger VALUES (1, 10);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
SELECT token AS t FROM idem.claim('payments', 'released') \gset
SELECT idem.release(:'t');
INSERT INTO ledger VALUES (1, 10);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT outcome FROM idem.claim('payments', 'rolled back');
ROLLBACK TO s;
INSERT INTO ledger VALUES (1, 10);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- a claim whose release was rolled back is open again and counts
BEGIN;
SELECT token AS t FROM idem.claim('payments', 'kept') \gset
SAVEPOINT s;
SELECT idem.release(:'t');
ROLLBACK TO s;
INSERT INTO ledger VALUES (2, 10);
SELECT idem.complete(:'t');
COMMIT;

-- a leased claim counts in the transaction that claims it or resumes it
SELECT token AS t FROM idem.claim('payments', 'leased', lease => '1 hour') \gset
INSERT INTO ledger VALUES (9, 90);
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT idem.renew(:'t') > now() AS renewed;
INSERT INTO ledger VALUES (9, 90);
DELETE FROM ledger WHERE id = 9;
COMMIT;
BEGIN;
SELECT idem.complete(:'t');
INSERT INTO ledger VALUES (9, 90);
DELETE FROM ledger WHERE id = 9;
COMMIT;
-- execute claims and completes
CREATE FUNCTION book(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ INSERT INTO ledger VALUES (8, 80) RETURNING to_jsonb(id) $$;
SELECT outcome, response FROM idem.execute('refunds', 'executed', 'book(jsonb)');
DROP FUNCTION book;

-- as a row trigger it passes rows on and refuses only if there is a row; constraint triggers too
DROP TRIGGER operation ON ledger;
CREATE TRIGGER operation BEFORE INSERT OR UPDATE OR DELETE ON ledger
  FOR EACH ROW EXECUTE FUNCTION idem.require_claim('payments');
UPDATE ledger SET amount = 0 WHERE false;
UPDATE ledger SET amount = 0;
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT token AS t FROM idem.claim('payments', 'rows') \gset
INSERT INTO ledger VALUES (3, 30), (4, 40);
UPDATE ledger SET amount = amount + 1 WHERE id > 2;
DELETE FROM ledger WHERE id = 4 RETURNING amount;
SELECT idem.complete(:'t');
COMMIT;
SELECT * FROM ledger ORDER BY id;
DROP TRIGGER operation ON ledger;
CREATE CONSTRAINT TRIGGER operation AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION idem.require_claim('payments');
INSERT INTO ledger VALUES (5, 50);
\echo :LAST_ERROR_SQLSTATE
BEGIN;
INSERT INTO ledger VALUES (5, 50);
SELECT token AS t FROM idem.claim('payments', 'deferred') \gset
SELECT idem.complete(:'t');
COMMIT;
DROP TRIGGER operation ON ledger;

-- what it sees: TRUNCATE if the trigger names it; writes to a partition as a row trigger
CREATE TRIGGER operation BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger
  FOR EACH STATEMENT EXECUTE FUNCTION idem.require_claim('payments');
TRUNCATE ledger;
\echo :LAST_ERROR_SQLSTATE
CREATE TABLE parted (id int) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted DEFAULT;
CREATE TRIGGER operation BEFORE INSERT ON parted FOR EACH STATEMENT EXECUTE FUNCTION idem.require_claim('payments');
INSERT INTO parted VALUES (1);
\echo :LAST_ERROR_SQLSTATE
INSERT INTO part VALUES (1);
DROP TRIGGER operation ON parted;
CREATE TRIGGER operation BEFORE INSERT ON parted FOR EACH ROW EXECUTE FUNCTION idem.require_claim('payments');
INSERT INTO part VALUES (1);
\echo :LAST_ERROR_SQLSTATE
DROP TABLE parted;

-- the guard also applies to a role that may not use the scope
CREATE ROLE idem_regress_stranger;
GRANT INSERT ON ledger TO idem_regress_stranger;
SET ROLE idem_regress_stranger;
INSERT INTO ledger VALUES (6, 60);
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
BEGIN;
SELECT token AS t FROM idem.claim('payments', 'lent') \gset
SET LOCAL ROLE idem_regress_stranger;
INSERT INTO ledger VALUES (6, 60);
SELECT idem.complete(:'t');
COMMIT;
DROP OWNED BY idem_regress_stranger;
DROP ROLE idem_regress_stranger;

-- wrong use
SELECT idem.require_claim();
\echo :LAST_ERROR_SQLSTATE
DROP TRIGGER operation ON ledger;
CREATE TRIGGER operation BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION idem.require_claim();
INSERT INTO ledger VALUES (7, 70);
\echo :LAST_ERROR_SQLSTATE
DROP TRIGGER operation ON ledger;
CREATE TRIGGER operation BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION idem.require_claim('payments', 'paiments');
INSERT INTO ledger VALUES (7, 70);
\echo :LAST_ERROR_SQLSTATE
DROP TABLE ledger;
