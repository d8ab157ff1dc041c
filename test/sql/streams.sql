-- The view of the watermarks: how far advance() has come with each source.
DROP EXTENSION idem;
CREATE EXTENSION idem;
--
SELECT idem.create_scope('messages');
SELECT idem.advance('messages', 'orders-0', 12);
SELECT idem.advance('messages', 'orders-0', 13);
SELECT idem.advance('messages', 'orders-0', 12);
SELECT idem.advance('messages', 'orders-1', -3, 'acme');
SELECT scope, tenant, source, seq, updated_at <= now() AS past FROM idem.streams ORDER BY scope, tenant, source;
-- a change is visible when its transaction commits
BEGIN;
SELECT idem.advance('messages', 'orders-0', 14);
SELECT seq FROM idem.streams WHERE source = 'orders-0';
ROLLBACK;
SELECT seq FROM idem.streams WHERE source = 'orders-0';
-- the watermarks of a dropped scope are not shown; a new scope of the same name starts at none
SELECT idem.drop_scope('messages');
SELECT * FROM idem.streams;
SELECT idem.create_scope('messages');
SELECT * FROM idem.streams;
SELECT idem.advance('messages', 'orders-0', 1);
-- a watermark of another source that has the same digest, forged here, does not count
BEGIN;
UPDATE idem.watermark SET tenant = 'b' WHERE source = 'orders-0';
SAVEPOINT s;
SELECT idem.advance('messages', 'orders-0', 2);
ROLLBACK TO s;
UPDATE idem.watermark SET tenant = '', source = 'another' WHERE source = 'orders-0';
SAVEPOINT s;
SELECT idem.advance('messages', 'orders-0', 2);
ROLLBACK;
SELECT idem.advance('messages', 'orders-0', 2);
