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

-- an administrator sets a watermark, forwards or backwards, or forgets the source
SELECT idem.reset_stream('messages', 'orders-0', 10);
SELECT idem.advance('messages', 'orders-0', 10), idem.advance('messages', 'orders-0', 11, contiguous => true);
SELECT idem.reset_stream('messages', 'orders-0', 3);
SELECT idem.advance('messages', 'orders-0', 4, contiguous => true);
SELECT idem.reset_stream('messages', 'orders-0'), idem.reset_stream('messages', 'orders-0');
SELECT * FROM idem.streams;
SELECT idem.advance('messages', 'orders-0', -5, contiguous => true);
-- a source that has sent nothing yet
SELECT idem.reset_stream('messages', 'new', 100, 'acme'), idem.reset_stream('messages', 'new', 200, tenant => 'acme');
SELECT idem.advance('messages', 'new', 200, 'acme'), idem.advance('messages', 'new', 201, 'acme');
-- in the transaction that has advanced the source; a savepoint restores the watermark
BEGIN;
SELECT idem.advance('messages', 'orders-0', 50);
SAVEPOINT s;
SELECT idem.reset_stream('messages', 'orders-0');
SELECT idem.advance('messages', 'orders-0', 1);
SELECT idem.reset_stream('messages', 'orders-0', 0);
ROLLBACK TO s;
SELECT idem.advance('messages', 'orders-0', 50), idem.advance('messages', 'orders-0', 51);
COMMIT;
-- many sources, without a lock for each
BEGIN;
SELECT count(*) FROM generate_series(1, 50) i WHERE idem.reset_stream('messages', 'source-' || i, i) IS NULL;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;
SELECT scope, tenant, source, seq FROM idem.streams ORDER BY tenant, source;
\set VERBOSITY sqlstate
SELECT idem.reset_stream('messages', NULL);
SELECT idem.reset_stream('messages', '');
SELECT idem.reset_stream('unknown', 'orders-0');
SELECT idem.reset_stream(NULL, 'orders-0');
BEGIN READ ONLY;
SELECT idem.reset_stream('messages', 'orders-0');
ROLLBACK;
\set VERBOSITY default
