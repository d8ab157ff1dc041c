-- Cancelled operations: a key that never ran never will, whatever the request of a late claim.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('f', ttl => '1 day', wait => '0');
CREATE TABLE effect (key text);
CREATE FUNCTION operate(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ INSERT INTO effect VALUES (request->>'key'); SELECT '1'::jsonb $$;

-- the verdict for every verb, with any request or none
SELECT state, attempt, response, status, error, redacted, expires_at - created_at BETWEEN '1 day' AND '1 day 1 minute' AS ttl FROM idem.cancel('f', 'k');
SELECT idem.claim('f', 'k');
SELECT idem.claim('f', 'k', '{"n": 1}');
SELECT idem.claim('f', 'k', '{"n": 2}', lease => '1 hour');
SELECT idem.once('f', 'k', '{"n": 3}');
SELECT outcome, error FROM idem.try_claim('f', 'k', '{"n": 4}');
SELECT outcome, replayed, error FROM idem.execute('f', 'k', 'operate(jsonb)', '{"key": "k"}');
SELECT idem.once_each('f', '{k}');
SELECT state, error FROM idem.lookup('f', 'k');
SELECT count(*) FROM effect;
SELECT encode(fingerprint, 'hex') AS fingerprint, created + interval '1 day' <= expires AS ttl FROM idem.record;
-- cancelled twice is cancelled once: the first error stays
SELECT state, error FROM idem.cancel('f', 'k', error => '{"message": "another"}');
-- an error of the caller's
SELECT state, error FROM idem.cancel('f', 'own', error => '{"sqlstate": "P0042", "message": "withdrawn", "hint": "Order again."}');
\set VERBOSITY terse
SELECT idem.claim('f', 'own', '1');
\set VERBOSITY default
\echo :LAST_ERROR_SQLSTATE
SELECT state FROM idem.cancel('f', 'bad', error => '{"sqlstate": "40001"}');
SELECT state FROM idem.cancel('f', 'bad', error => '"text"');
SELECT state FROM idem.lookup('f', 'bad');

-- what has run, or is at work, is told and left as it is
SELECT idem.complete(token, '"done"', 200) FROM idem.claim('f', 'done', '{"n": 1}');
SELECT state, response, status FROM idem.cancel('f', 'done');
SELECT token AS t FROM idem.claim('f', 'leased', lease => '1 hour') \gset
SELECT state, attempt, lease_end > now() AS running FROM idem.cancel('f', 'leased');
SELECT idem.release(:'t');
SELECT state, lease_end <= clock_timestamp() AS over FROM idem.cancel('f', 'leased');
SELECT outcome, attempt FROM idem.try_claim('f', 'leased', lease => '1 hour');

-- an operation without attempts left is undecided, not failed: it runs when one more is allowed
SELECT idem.alter_scope('f', max_attempts => 1);
SELECT idem.checkpoint(token, 'charged') FROM idem.claim('f', 'begun', lease => '1 hour');
UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE key = 'begun';
SELECT state, attempt, error, completed_at FROM idem.cancel('f', 'begun');
SELECT state, fingerprint IS NULL AS as_it_was FROM idem.record WHERE key = 'begun';
SELECT idem.revoke('f', 'begun');
SELECT state FROM idem.cancel('f', 'begun');
SELECT outcome, attempt, recovery_point FROM idem.try_claim('f', 'begun', lease => '1 hour');
-- what was answered as failed never runs
SELECT state FROM idem.cancel('f', 'final');
SELECT idem.revoke('f', 'final'), idem.alter_scope('f', max_attempts => 5);
SELECT key FROM idem.take('f');
SELECT outcome FROM idem.try_claim('f', 'final', '1', lease => '1 hour');
SELECT idem.erase('f', 'final');
SELECT outcome FROM idem.try_claim('f', 'final');
SELECT idem.alter_scope('f', max_attempts => -1);

-- in one transaction
BEGIN;
SELECT state FROM idem.cancel('f', 'here');
SELECT outcome FROM idem.try_claim('f', 'here', '1');
SELECT state FROM idem.cancel('f', 'here');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
BEGIN;
SAVEPOINT s;
SELECT state FROM idem.cancel('f', 'savepoint');
ROLLBACK TO s;
SELECT state FROM idem.lookup('f', 'savepoint');
SELECT idem.complete(token, '1') FROM idem.claim('f', 'savepoint');
SELECT state FROM idem.cancel('f', 'savepoint');
COMMIT;
BEGIN;
SELECT token AS t FROM idem.claim('f', 'open') \gset
SELECT state FROM idem.cancel('f', 'open');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- released in the same transaction, it never ran
BEGIN;
SELECT token AS t FROM idem.claim('f', 'open') \gset
SELECT idem.release(:'t');
SELECT state FROM idem.cancel('f', 'open');
COMMIT;

-- it expires like any record, and is erased and forgotten like any failure
SELECT idem.alter_scope('f', ttl => '1 microsecond');
SELECT state FROM idem.cancel('f', 'short');
BEGIN;
SELECT outcome FROM idem.try_claim('f', 'short');
ROLLBACK;
SELECT idem.alter_scope('f', ttl => '1 day');
SELECT state FROM idem.cancel('f', 'short');
SELECT outcome FROM idem.try_claim('f', 'short');
SELECT idem.erase('f', 'short'), idem.erase('f', 'own');
SELECT outcome, error, redacted FROM idem.try_claim('f', 'short', '1');
SELECT outcome, error, redacted FROM idem.try_claim('f', 'own', '1');
SELECT idem.forget('f', 'own');
BEGIN;
SELECT outcome FROM idem.try_claim('f', 'own', '1');
ROLLBACK;

-- the rules for new keys
SELECT idem.alter_scope('f', weak_keys => 'reject', reject_stale_keys => true, request_required => true);
SELECT state FROM idem.cancel('f', '4711');
\echo :LAST_ERROR_SQLSTATE
SELECT state FROM idem.cancel('f', '01890000-0000-7000-8000-000000000000');
\echo :LAST_ERROR_SQLSTATE
SELECT state FROM idem.cancel('f', '0190b8f3-8c5e-4d2a-9b1c-4f5e6a7b8c01');
SELECT idem.alter_scope('f', tenant_required => true);
SELECT state FROM idem.cancel('f', '0190b8f3-8c5e-4d2a-9b1c-4f5e6a7b8c02');
\echo :LAST_ERROR_SQLSTATE
SELECT state FROM idem.cancel('f', '0190b8f3-8c5e-4d2a-9b1c-4f5e6a7b8c02', 'acme');
SET idem.max_open_claims = 1;
BEGIN;
SELECT count(*) FROM (VALUES ('2'), ('3')) v (n), idem.cancel('f', '0190b8f3-8c5e-4d2a-9b1c-4f5e6a7b8c1' || n, 'acme');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
RESET idem.max_open_claims;
SELECT state FROM idem.cancel('f', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT state FROM idem.cancel('unknown', 'k');
\echo :LAST_ERROR_SQLSTATE
BEGIN READ ONLY;
SELECT state FROM idem.cancel('f', 'k');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

DROP TABLE effect;
DROP FUNCTION operate;
