-- Message consumers: once, once_each, advance.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE SCHEMA consumers;
SET search_path = consumers;
SELECT idem.create_scope('messages', wait => '0', ttl => '1 day');
CREATE VIEW seen AS SELECT key, tenant, state, coalesce(attempt, 1) AS attempt, response, fingerprint IS NOT NULL AS bound,
  expires - created BETWEEN interval '1 day' AND interval '1 day 1 min' AS ttl FROM idem.record ORDER BY tenant, key;

-- once: true the first time; the record commits with the effect
SELECT idem.once('messages', 'm1'), idem.once('messages', 'm1'), idem.once('messages', 'm1', tenant => 'acme');
SELECT idem.once('messages', 'm1');
SELECT * FROM seen;
BEGIN;
SELECT idem.once('messages', 'm2');
ROLLBACK;
SELECT idem.once('messages', 'm2');
-- a rollback to a savepoint removes the record
BEGIN;
SAVEPOINT s;
SELECT idem.once('messages', 'm3');
ROLLBACK TO s;
SELECT idem.once('messages', 'm3');
COMMIT;
SELECT idem.once('messages', 'm3');
-- once writes the same record as claim and complete
SELECT outcome, response FROM idem.claim('messages', 'm1');
SELECT idem.complete((idem.claim('messages', 'm4', '{"n": 1}')).token, '"answer"');
SELECT idem.once('messages', 'm4', '{"n": 1.0}');
SELECT idem.once('messages', 'm4', '{"n": 2}');  -- ID002
SELECT idem.once('messages', 'm4');
SELECT idem.once('messages', 'm5', '{"n": 1}'), idem.once('messages', 'm5', '{"n": 1}');
SELECT bound FROM seen WHERE key = 'm5';
-- once raises what claim raises
SELECT idem.fail((idem.claim('messages', 'm6')).token, '{"sqlstate": "P0042", "message": "poisoned"}');
\set VERBOSITY terse
SELECT idem.once('messages', 'm6');
\set VERBOSITY default
BEGIN;
SELECT claimed FROM idem.claim('messages', 'm7');
SELECT idem.once('messages', 'm7');
ROLLBACK;
SELECT claimed FROM idem.claim('messages', 'm8', lease => '1 minute');
\set VERBOSITY sqlstate
SELECT idem.once('messages', 'm8');
\set VERBOSITY default
UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE key = 'm8';
SELECT idem.once('messages', 'm8'), idem.once('messages', 'm8');  -- taken over
SELECT * FROM seen WHERE key = 'm8';
-- an expired key is new again
UPDATE idem.record SET expires = now() - interval '1 s' WHERE key = 'm1' AND tenant = '';
SELECT idem.once('messages', 'm1'), idem.once('messages', 'm1');
-- the scope's rules apply
SELECT idem.create_scope('strict', request_required => true, tenant_required => true);
SELECT idem.once('strict', 'm1', '{}');
SELECT idem.once('strict', 'm1', tenant => 'acme');
SELECT idem.once('strict', 'm1', '{}', 'acme');

-- once_each: the new keys, each once, in the order of the array
SELECT * FROM idem.once_each('messages', '{e3,e1,e2,e1,m1,e3,e0}');
SELECT count(*) FROM idem.once_each('messages', '{e3,e1,e2,e1,m1,e3,e0}');
SELECT * FROM idem.once_each('messages', '{e1,e4}', 'acme');
SELECT * FROM seen WHERE key LIKE 'e%';
SELECT count(*) FROM idem.once_each('messages', '{}');
SELECT idem.once_each('messages', '{e5}'), idem.once_each('messages', '[7:8]={e5,e6}');  -- in a SELECT list too
-- once_each treats each key as once and claim do
SELECT idem.once('messages', 'e5'), idem.once('messages', 'e7');
SELECT * FROM idem.once_each('messages', '{e7,e8}');
SELECT outcome, attempt, response FROM idem.claim('messages', 'e8');
SELECT idem.once('messages', 'e8', '{"n": 1}');  -- ID002: it was bound to no request
-- a key is not new if its record has another request (m4), a failure (m6) or a running lease
SELECT token FROM idem.claim('messages', 'e9', '{"n": 1}', lease => '1 hour') \gset
SELECT * FROM idem.once_each('messages', '{m4,m6,e9,e10}');
-- a lapsed lease is taken over: the old token is fenced off, the request stays bound
UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE key = 'e9';
SELECT * FROM idem.once_each('messages', '{e9}');
SELECT * FROM seen WHERE key = 'e9';
\set VERBOSITY sqlstate
SELECT idem.complete(:'token');
\set VERBOSITY default
-- the lease of the last attempt has lapsed: failed, not new
SELECT idem.create_scope('attempts', max_attempts => 1);
SELECT claimed FROM idem.claim('attempts', 'x1', lease => '1 hour');
UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE lease_end IS NOT NULL;
SELECT * FROM idem.once_each('attempts', '{x1,x2}');
-- an expired key is new again, and so is a purged one
UPDATE idem.record SET expires = now() - interval '1 s' WHERE key IN ('e1', 'e2', 'e3') AND tenant = '';
SELECT * FROM idem.once_each('messages', '{e0,e1,e2,e3}');
SELECT key FROM idem.record WHERE expires <= now();
-- rollback and savepoints
BEGIN;
SELECT * FROM idem.once_each('messages', '{r1,r2}');
SAVEPOINT s;
SELECT * FROM idem.once_each('messages', '{r1,r3}');
ROLLBACK TO s;
SELECT * FROM idem.once_each('messages', '{r2,r3,r4}');
COMMIT;
SELECT key FROM seen WHERE key LIKE 'r%';
-- a key that this transaction has claimed: open it raises, released it is new, finished it is not
BEGIN;
SELECT token FROM idem.claim('messages', 'o1') \gset
SAVEPOINT s;
SELECT * FROM idem.once_each('messages', '{o2,o1}');
ROLLBACK TO s;
SELECT idem.release(:'token');
SELECT * FROM idem.once_each('messages', '{o2,o1}');
SELECT idem.once('messages', 'o3');
SELECT * FROM idem.once_each('messages', '{o3,o4}');
COMMIT;
SELECT key FROM seen WHERE key LIKE 'o%';
-- no key locks, so no limit on open claims
BEGIN;
SET LOCAL idem.max_open_claims = 1;
SELECT count(*) FROM idem.once_each('messages', ARRAY(SELECT 'b' || i FROM generate_series(1, 5000) i));
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT claimed FROM idem.claim('messages', 'o5');
ROLLBACK;
-- an invalid element: nothing is stored
SELECT idem.once_each('messages', '{n1,NULL,n2}');
SELECT idem.once_each('messages', '{n1,""}');
SELECT idem.once_each('messages', ARRAY['n1', repeat('k', 256)]);
SELECT idem.once_each('messages', NULL);
SELECT idem.once_each('messages', '{{n1},{n2}}');
SELECT idem.once_each('messages', '[0:0]={5}'::int[]);
SELECT idem.once_each('strict', '{n1}', 'acme');
SELECT count(*) FROM seen WHERE key LIKE 'n%';
-- the scope's rules for new keys apply
SELECT idem.create_scope('picky', reject_stale_keys => true, weak_keys => 'reject');
SELECT idem.once_each('picky', ARRAY[idem.new_key(), '00000000-0001-7000-8000-00000000f00d']);
SELECT idem.once_each('picky', ARRAY[idem.new_key(), '12345']);
SELECT count(*) FROM idem.once_each('picky', ARRAY[idem.new_key()]);
-- a new key counts for require_claim until its savepoint is rolled back
CREATE TABLE shipment (id text);
CREATE TRIGGER guarded BEFORE INSERT ON shipment FOR EACH ROW EXECUTE FUNCTION idem.require_claim('messages');
\set VERBOSITY sqlstate
INSERT INTO shipment VALUES ('none');
INSERT INTO shipment SELECT * FROM idem.once_each('messages', '{g1,g2}');
INSERT INTO shipment SELECT * FROM idem.once_each('messages', '{g1,g2}');
BEGIN;
SAVEPOINT s;
SELECT * FROM idem.once_each('messages', '{g3}');
SELECT * FROM idem.once_each('messages', '{g4}');
INSERT INTO shipment VALUES ('g3');
SAVEPOINT t;
SELECT * FROM idem.once_each('messages', '{g5}');
ROLLBACK TO t;
INSERT INTO shipment VALUES ('g4');
ROLLBACK TO s;
INSERT INTO shipment VALUES ('g3');
ROLLBACK;
BEGIN;
SELECT * FROM idem.once_each('messages', '{g1}');  -- nothing new
INSERT INTO shipment VALUES ('g1');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT * FROM idem.once_each('messages', '{g3}');
RELEASE s;
INSERT INTO shipment VALUES ('g3');
COMMIT;
BEGIN;
SELECT idem.once('messages', 'g4');
INSERT INTO shipment VALUES ('g4');
COMMIT;
BEGIN;
SELECT * FROM idem.once_each('messages', '{g6}', 'acme');
CREATE TRIGGER other BEFORE INSERT ON shipment FOR EACH ROW EXECUTE FUNCTION idem.require_claim('picky');
INSERT INTO shipment VALUES ('g6');  -- in another scope
ROLLBACK;
\set VERBOSITY default
SELECT * FROM shipment;
DROP TABLE shipment;
-- Every index is maintained, not only the primary key. The digest decides, also after a REINDEX.
CREATE INDEX by_key ON idem.record (upper(key)) WHERE key LIKE 'i%';
SELECT * FROM idem.once_each('messages', '{i1,i2,e0}');
REINDEX INDEX CONCURRENTLY idem.record_pkey;
SELECT * FROM idem.once_each('messages', '{i3,i2,i1}');
SET enable_seqscan = off;
SELECT key FROM idem.record WHERE key LIKE 'i%' ORDER BY upper(key);
RESET enable_seqscan;
DROP INDEX idem.by_key;
-- a digest that belongs to another key
UPDATE idem.record SET key = 'other' WHERE key = 'i1';
\set VERBOSITY sqlstate
SELECT idem.once_each('messages', '{i4,i1}');
\set VERBOSITY default

-- advance: one watermark per source
SELECT idem.advance('messages', 'orders-0', 7), idem.advance('messages', 'orders-0', 7),
       idem.advance('messages', 'orders-0', 6), idem.advance('messages', 'orders-0', 9);
SELECT idem.advance('messages', 'orders-1', -3), idem.advance('messages', 'orders-0', 1, 'acme');
SELECT idem.advance('messages', 'orders-0', seq) AS new, seq FROM generate_series(8, 11) seq;
SELECT source, tenant, seq, updated > now() - interval '1 min' AS just_now FROM idem.watermark ORDER BY tenant, source;
-- a source and a key of the same name are independent
SELECT idem.once('messages', 'orders-0'), idem.advance('messages', 'e1', 1), idem.once('messages', 'e1');
-- without gaps: the first number may be any
SELECT idem.advance('messages', 'ledger', 100, contiguous => true), idem.advance('messages', 'ledger', 101, contiguous => true),
       idem.advance('messages', 'ledger', 101, contiguous => true);
SELECT idem.advance('messages', 'ledger', 103, contiguous => true);
SELECT idem.advance('messages', 'ledger', 102, contiguous => true), idem.advance('messages', 'ledger', 200);
SELECT idem.advance('messages', 'ends', -9223372036854775808, contiguous => true),
       idem.advance('messages', 'ends', -9223372036854775807, contiguous => true),
       idem.advance('messages', 'ends', 9223372036854775807), idem.advance('messages', 'ends', 9223372036854775807, contiguous => true);
-- rollback and savepoints
BEGIN;
SELECT idem.advance('messages', 'orders-0', 12);
SAVEPOINT s;
SELECT idem.advance('messages', 'orders-0', 13), idem.advance('messages', 'orders-9', 1);
ROLLBACK TO s;
SELECT idem.advance('messages', 'orders-0', 13), idem.advance('messages', 'orders-0', 13);
ROLLBACK;
SELECT idem.advance('messages', 'orders-0', 12);
-- a source is locked once, for a duplicate not at all
BEGIN;
SET LOCAL idem.max_open_claims = 2;
SELECT idem.advance('messages', 'l1', seq) FROM generate_series(1, 4) seq;
SELECT idem.advance('messages', 'l2', 1), idem.advance('messages', 'orders-0', 12), idem.advance('messages', 'orders-1', -3);
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SAVEPOINT s;
SELECT idem.advance('messages', 'l3', 1);
ROLLBACK TO s;
SELECT idem.advance('messages', 'l2', 2);
COMMIT;
-- advance counts for require_claim as a claim does; a duplicate does not
CREATE TABLE shipment (id text);
CREATE TRIGGER guarded BEFORE INSERT ON shipment FOR EACH ROW EXECUTE FUNCTION idem.require_claim('messages');
\set VERBOSITY sqlstate
BEGIN;
SELECT idem.advance('messages', 'orders-0', 12);
INSERT INTO shipment VALUES ('dup');
ROLLBACK;
BEGIN;
SELECT idem.advance('messages', 'orders-0', 13), idem.current_key();
INSERT INTO shipment VALUES ('new');
SAVEPOINT s;
ROLLBACK TO s;
COMMIT;
BEGIN;
SAVEPOINT s;
SELECT idem.advance('messages', 'orders-0', 14);
ROLLBACK TO s;
INSERT INTO shipment VALUES ('undone');
ROLLBACK;
\set VERBOSITY default
SELECT * FROM shipment;
DROP TABLE shipment;
-- wrong use
SELECT idem.advance('messages', NULL, 1);
SELECT idem.advance('messages', '', 1);
SELECT idem.advance('messages', repeat('s', 256), 1);
SELECT idem.advance('messages', 'orders-0', NULL);
SELECT idem.advance('messages', 'orders-0', 1, contiguous => NULL);
SELECT idem.advance('strict', 'orders-0', 1);
SELECT idem.advance('strict', 'orders-0', 1, 'acme');  -- advance ignores request_required
-- a watermark moves within its page: the index gets one entry per source
BEGIN;
SELECT idem.advance('messages', 'hot', 1), idem.advance('messages', 'hot', 2), idem.advance('messages', 'hot', 3);
SELECT u >= 2 AND u = hot AS in_place FROM pg_stat_get_xact_tuples_updated('idem.watermark'::regclass) u,
       pg_stat_get_xact_tuples_hot_updated('idem.watermark'::regclass) hot;
COMMIT;
-- what is cancelled ends, and not only when it has gone over all its keys or sources
SELECT idem.once_each('messages', ARRAY['a', NULL], tenant => CASE WHEN pg_cancel_backend(pg_backend_pid()) THEN 'acme' END);
SELECT idem.advance('messages', s, 1, tenant => 'left') FROM unnest('{a,b}'::text[]) s;
CREATE SEQUENCE fired;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER cancels AFTER DELETE ON idem.watermark FOR EACH ROW
  WHEN (NOT pg_cancel_backend(CASE nextval('fired') WHEN 1 THEN pg_backend_pid() ELSE (1 / (OLD.seq - OLD.seq))::int END))
  EXECUTE FUNCTION nothing();
SELECT idem.forget_tenant('messages', 'left');
DROP FUNCTION nothing() CASCADE;
DROP SEQUENCE fired;

DROP VIEW seen;
DROP SCHEMA consumers;
