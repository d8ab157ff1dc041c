-- Leased claims: across transactions, by token.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE SCHEMA leases;
SET search_path = leases;
SELECT idem.create_scope('jobs', lease => '1 hour', ttl => '1 day', wait => '0', max_attempts => 3);
-- The tests change the row instead of the clock: these end a lease, or a record, a second ago.
CREATE PROCEDURE lapse(k text) LANGUAGE sql AS
  $$ UPDATE idem.record SET lease_end = now() - interval '1 s', expires = expires WHERE key = k $$;
CREATE PROCEDURE expire(k text) LANGUAGE sql AS
  $$ UPDATE idem.record SET lease_end = now() - interval '1 day 1 s', expires = now() - interval '1 s' WHERE key = k $$;
CREATE VIEW seen AS SELECT key, state, coalesce(attempt, 1) AS attempt, state = 'p' AND lease_end IS NOT NULL AS leased, nonce IS NOT NULL AS token,
  recovery_point, recovery_state, response, error FROM idem.record ORDER BY key;

-- claim, then continue in other transactions
SELECT token AS t, claimed, outcome, attempt, recovery_point, expires_at, created_at AS born FROM idem.claim('jobs', 'a', '{"n": 1}', lease => '1 minute') \gset
\echo :claimed :outcome :attempt
SELECT state, attempt, holder_pid, lease_end > now() + interval '50 s' AS minute, expires_at - lease_end AS ttl FROM idem.lookup('jobs', 'a');
SELECT outcome, claimed, retry_after <= interval '10 s' AS soon, created_at = :'born' AS since FROM idem.try_claim('jobs', 'a', '{"n": 1}');
SELECT outcome FROM idem.try_claim('jobs', 'a', '{"n": 2}');  -- a conflict comes before the state
\set VERBOSITY sqlstate
SELECT idem.claim('jobs', 'a', '{"n": 1}');
\set VERBOSITY default
SELECT idem.renew(:'t') - now() > interval '59 min' AS scope_lease, idem.renew(:'t', '2 hours') - now() > interval '119 min' AS own_lease;
SELECT idem.checkpoint(:'t', 'charged', '{"charge": 7}');
SELECT * FROM seen;
SELECT idem.complete(:'t', '{"done": true}', 201, '{"H": "1"}', '\x00ff');
SELECT * FROM seen;
SELECT outcome, response, status, headers, body, attempt, expires_at - now() BETWEEN interval '23 h' AND interval '1 day' AS ttl
  FROM idem.claim('jobs', 'a', '{"n": 1}');

-- finished: this attempt's token raises ID005
\set VERBOSITY sqlstate
SELECT idem.complete(:'t');
SELECT idem.fail(:'t', '{"message": "no"}');
SELECT idem.release(:'t');
SELECT idem.renew(:'t');
SELECT idem.checkpoint(:'t', 'x');

-- an operation that takes longer than the TTL: its answer is kept for the TTL from the end on
SELECT token AS t FROM idem.claim('jobs', 'long', lease => '1 minute') \gset
UPDATE idem.record SET created = created - interval '2 days' WHERE key = 'long';
SELECT idem.complete(:'t', '"at last"');
SELECT outcome, response, expires_at - now() BETWEEN interval '23 h' AND interval '1 day' AS ttl FROM idem.claim('jobs', 'long');

-- takeover: attempt + 1, the recovery point is kept, the older token is fenced off
SELECT token AS t1, created_at AS born FROM idem.claim('jobs', 'b', lease => '1 minute') \gset
SELECT idem.checkpoint(:'t1', 'charged', '{"charge": 7}');
CALL lapse('b');
SELECT state, lease_end < now() AS over FROM idem.lookup('jobs', 'b');
SELECT idem.renew(:'t1') > now() AS late_but_not_overtaken;
CALL lapse('b');
SELECT token AS t2, attempt, recovery_point, recovery_state, created_at = :'born' AS same_birth FROM idem.claim('jobs', 'b', lease => '1 minute') \gset
\echo :attempt :recovery_point :recovery_state :same_birth
SELECT idem.renew(:'t1');
SELECT idem.checkpoint(:'t1', 'x');
SELECT idem.complete(:'t1');
SELECT idem.fail(:'t1', '{"message": "no"}');
SELECT idem.release(:'t1');
SELECT * FROM seen WHERE key = 'b';
CALL lapse('b');
SELECT idem.complete(:'t2', '"late, but not overtaken"');
SELECT idem.complete(:'t1');
SELECT attempt, response FROM idem.claim('jobs', 'b');

-- max_attempts: the last attempt's lease has lapsed; this is derived, not written, and nothing is
-- decided: no claim gets the key, but the attempt goes on as after any lapse
SELECT token AS t1 FROM idem.claim('jobs', 'c', lease => '1 minute') \gset
CALL lapse('c');
SELECT token AS t2 FROM idem.claim('jobs', 'c', lease => '1 minute') \gset
CALL lapse('c');
SELECT token AS t3, attempt FROM idem.claim('jobs', 'c', lease => '1 minute') \gset
\echo :attempt
SELECT outcome FROM idem.try_claim('jobs', 'c');
CALL lapse('c');
SELECT outcome, claimed, token, attempt, error, retry_after, created_at < expires_at AS dated, completed_at FROM idem.try_claim('jobs', 'c');
SELECT outcome FROM idem.try_claim('jobs', 'c', '{"another": "request"}');
\set VERBOSITY default
SELECT idem.claim('jobs', 'c');
\set VERBOSITY sqlstate
SELECT idem.once('jobs', 'c');
SELECT idem.once_each('jobs', '{c}');
SELECT state, attempt, error, lease_end <= clock_timestamp() AS over, completed_at, holder_pid FROM idem.lookup('jobs', 'c');
SELECT * FROM seen WHERE key = 'c';
SELECT idem.complete(:'t2');
SELECT idem.checkpoint(:'t3', 'half');
SELECT outcome FROM idem.try_claim('jobs', 'c');
SELECT idem.renew(:'t3') > now() AS renewed;
SELECT outcome FROM idem.try_claim('jobs', 'c');
CALL lapse('c');
BEGIN;
SELECT idem.complete(:'t3', '"late"');
SELECT outcome, response FROM idem.try_claim('jobs', 'c');
ROLLBACK;
SELECT idem.fail(:'t3', '{"message": "late"}');
SELECT idem.complete(:'t3');
SELECT outcome, error FROM idem.try_claim('jobs', 'c');
SELECT * FROM seen WHERE key = 'c';
-- released or revoked, its holder is fenced off; so it is when the record has expired
SELECT idem.alter_scope('jobs', max_attempts => 1);
SELECT token AS t1 FROM idem.claim('jobs', 'c2', lease => '1 minute') \gset
CALL lapse('c2');
SELECT idem.release(:'t1', error => '{"message": "no gateway"}');
SELECT outcome, error FROM idem.try_claim('jobs', 'c2');
SELECT state, error FROM idem.lookup('jobs', 'c2');
SELECT idem.complete(:'t1');
SELECT idem.revoke('jobs', 'c2');
SELECT token AS t2, attempt FROM idem.claim('jobs', 'c2', lease => '1 minute') \gset
\echo :attempt
CALL lapse('c2');
SELECT idem.revoke('jobs', 'c2');
SELECT idem.complete(:'t2');
SELECT token AS t3, attempt FROM idem.claim('jobs', 'c2', lease => '1 minute') \gset
CALL lapse('c2');
CALL expire('c2');
SELECT idem.complete(:'t3');
SELECT attempt FROM idem.claim('jobs', 'c2', lease => '1 minute');
SELECT idem.alter_scope('jobs', max_attempts => 3);

-- release: the next claim succeeds at once, with the recovery point; the old token stays fenced off
SELECT token AS t1 FROM idem.claim('jobs', 'd', lease => '1 minute') \gset
SELECT idem.checkpoint(:'t1', 'half');
SELECT idem.release(:'t1');
SELECT idem.renew(:'t1');
SELECT token AS t2, attempt, recovery_point FROM idem.claim('jobs', 'd', lease => '1 minute') \gset
\echo :attempt :recovery_point
SELECT idem.renew(:'t1');
SELECT idem.fail(:'t2', '{"message": "no", "sqlstate": "P0042"}', 402);
SELECT idem.claim('jobs', 'd');
SELECT outcome, status, error FROM idem.try_claim('jobs', 'd');
SELECT idem.complete(:'t2');

-- all in one transaction
BEGIN;
SELECT token AS t FROM idem.claim('jobs', 'e', lease => '1 minute') \gset
SAVEPOINT s;
SELECT idem.claim('jobs', 'e');  -- by this transaction
ROLLBACK TO s;
SELECT idem.checkpoint(:'t', 'one');
SAVEPOINT s;
SELECT idem.complete(:'t', '1');
ROLLBACK TO s;
SELECT state, holder_pid = pg_backend_pid() AS me FROM idem.lookup('jobs', 'e');
SELECT idem.release(:'t');
SAVEPOINT s;
SELECT idem.complete(:'t');
ROLLBACK TO s;
SELECT token AS t, attempt, recovery_point FROM idem.claim('jobs', 'e', lease => '1 minute') \gset
\echo :attempt :recovery_point
SELECT idem.complete(:'t', '2');
SELECT response FROM idem.claim('jobs', 'e');
COMMIT;
SELECT attempt, response FROM idem.claim('jobs', 'e');

-- one statement: claim and complete of one row
SELECT idem.complete((idem.claim('jobs', 'f', lease => '1 minute')).token, '1');
-- rolled back: no trace
BEGIN;
SELECT token AS t FROM idem.claim('jobs', 'g', lease => '1 minute') \gset
ROLLBACK;
SELECT state FROM idem.lookup('jobs', 'g');
SELECT idem.renew(:'t');
-- rolled back to a savepoint in which the claim was renewed
BEGIN;
SAVEPOINT s;
SELECT token AS t FROM idem.claim('jobs', 'g', lease => '1 minute') \gset
ROLLBACK TO s;
SELECT idem.complete((idem.claim('jobs', 'g')).token, '"atomic"');
COMMIT;
SELECT * FROM seen WHERE key = 'g';

-- an atomic claim takes over; when it aborts, the old attempt is unchanged
SELECT token AS t1 FROM idem.claim('jobs', 'h', lease => '1 minute') \gset
CALL lapse('h');
BEGIN;
SELECT token AS t2, attempt FROM idem.claim('jobs', 'h') \gset
\echo :attempt
SELECT state, attempt FROM idem.lookup('jobs', 'h');
ROLLBACK;
SELECT idem.renew(:'t1') > now() AS goes_on;
CALL lapse('h');
SELECT idem.complete(token, '"atomic"'), attempt FROM idem.claim('jobs', 'h');
SELECT idem.complete(:'t1');
SELECT * FROM seen WHERE key = 'h';

-- expired: the key is free at once and the token is worthless, purged or not
SELECT token AS t1 FROM idem.claim('jobs', 'i', '1', lease => '1 minute') \gset
CALL expire('i');
SELECT state FROM idem.lookup('jobs', 'i');
SELECT idem.complete(:'t1');
SELECT token AS t2, attempt, recovery_point FROM idem.claim('jobs', 'i', '2', lease => '1 minute') \gset
\echo :attempt
SELECT idem.complete(:'t1');
CALL expire('i');
SELECT idem.purge();
SELECT idem.complete(:'t2');

-- a tampered token finds nothing
SELECT token AS t FROM idem.claim('jobs', 'j', lease => '1 minute') \gset
SELECT idem.renew(left(:'t', 37) || CASE substr(:'t', 38, 1) WHEN 'A' THEN 'Q' ELSE 'A' END || right(:'t', 6));
SELECT idem.renew(left(:'t', 5) || CASE substr(:'t', 6, 1) WHEN 'A' THEN 'B' ELSE 'A' END || substr(:'t', 7));
SELECT idem.renew(overlay(:'t' PLACING 'C' FROM 28 FOR 1));  -- attempt 2
SELECT idem.renew(overlay(:'t' PLACING 'B' FROM 28 FOR 1)) > now() AS attempt_1;

-- revoked under a running lease: the holder is fenced off, and the next attempt goes on
\set VERBOSITY default
SELECT token AS t1 FROM idem.claim('jobs', 'r', '{"n": 1}', lease => '1 hour') \gset
SELECT idem.checkpoint(:'t1', 'charged', '{"charge": 7}');
SELECT idem.revoke('jobs', 'r'), idem.revoke('jobs', 'never seen'), idem.revoke('jobs', 'a');
SELECT * FROM seen WHERE key = 'r';
SELECT lease_end <= clock_timestamp() AS over, expires_at - lease_end AS ttl FROM idem.lookup('jobs', 'r');
SELECT idem.renew(:'t1');
SELECT idem.checkpoint(:'t1', 'x');
SELECT idem.complete(:'t1');
SELECT idem.fail(:'t1', '{"message": "no"}');
SELECT idem.release(:'t1');
SELECT outcome FROM idem.try_claim('jobs', 'r', '{"n": 2}', lease => '1 minute');
SELECT token AS t2, attempt, recovery_point, recovery_state FROM idem.claim('jobs', 'r', '{"n": 1}', lease => '1 minute') \gset
\echo :attempt :recovery_point :recovery_state
SELECT idem.complete(:'t1');
-- revoked in the transaction of the next claim; a savepoint gives the lease back
BEGIN;
SAVEPOINT s;
SELECT idem.revoke('jobs', 'r');
ROLLBACK TO s;
SELECT outcome FROM idem.try_claim('jobs', 'r', '{"n": 1}', lease => '1 minute');
SELECT idem.revoke('jobs', 'r');
SELECT token AS t3, attempt FROM idem.claim('jobs', 'r', '{"n": 1}', lease => '1 minute') \gset
\echo :attempt
SELECT idem.revoke('jobs', 'r');
ROLLBACK;
-- the last attempt: revoke grants one attempt, and no more when it is called again
SELECT idem.release(:'t2');
SELECT token AS t3, attempt FROM idem.claim('jobs', 'r', '{"n": 1}', lease => '1 minute') \gset
\echo :attempt
CALL lapse('r');
SELECT outcome, attempt FROM idem.try_claim('jobs', 'r', '{"n": 1}');
SELECT idem.revoke('jobs', 'r'), idem.revoke('jobs', 'r'), idem.revoke('jobs', 'r');
SELECT token AS t4, attempt, recovery_point FROM idem.claim('jobs', 'r', '{"n": 1}', lease => '1 hour') \gset
\echo :attempt :recovery_point
SELECT idem.revoke('jobs', 'r');  -- under the lease of the attempt that was granted
SELECT token AS t5, attempt FROM idem.claim('jobs', 'r', '{"n": 1}', lease => '1 hour') \gset
\echo :attempt
SELECT idem.release(:'t5');
SELECT outcome, attempt FROM idem.try_claim('jobs', 'r', '{"n": 1}');
SELECT extra_attempts FROM idem.record WHERE key = 'r';
-- an expired operation is not revoked
CALL expire('r');
SELECT idem.revoke('jobs', 'r');
-- many are revoked in one transaction, without a lock for each
SELECT count(idem.claim('jobs', 'v' || i, lease => '1 hour')) FROM generate_series(1, 50) i;
BEGIN;
SELECT count(*) FILTER (WHERE idem.revoke('jobs', 'v' || i)) FROM generate_series(1, 51) i;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
\set VERBOSITY sqlstate
SELECT idem.revoke('jobs', NULL);
SELECT idem.revoke('jobs', '');
SELECT idem.revoke('unknown', 'r');
SELECT idem.revoke(NULL, 'r');
BEGIN READ ONLY;
SELECT idem.revoke('jobs', 'r');
ROLLBACK;

-- updates of an unfinished row stay in the heap; where another session's snapshot keeps the old
-- versions, one of them may move the row to another page
SELECT pg_stat_force_next_flush();
SELECT n_tup_upd AS updates, n_tup_hot_upd AS hot FROM pg_stat_user_tables WHERE relid = 'idem.record'::regclass \gset
SELECT count(idem.renew(:'t')), count(idem.checkpoint(:'t', 'step ' || i)) FROM generate_series(1, 10) i;
SELECT idem.release(:'t');
SELECT idem.revoke('jobs', 'j');
SELECT token AS t FROM idem.claim('jobs', 'j', lease => '1 minute') \gset
SELECT pg_stat_force_next_flush();
SELECT n_tup_upd - :updates AS updates, n_tup_hot_upd - :hot >= 21 AS hot FROM pg_stat_user_tables WHERE relid = 'idem.record'::regclass;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- a claim locks only for its transaction: many leased claims in many transactions
SET idem.max_open_claims = 2;
BEGIN;
SELECT count(idem.renew(token)) FROM (SELECT (idem.claim('jobs', 'm' || i, lease => '1 minute')).token FROM generate_series(1, 2) i) x;
SAVEPOINT s;
SELECT idem.renew(:'t');
ROLLBACK TO s;
SELECT outcome FROM idem.try_claim('jobs', 'm3', lease => '1 minute');
ROLLBACK TO s;
COMMIT;
SELECT idem.renew(:'t') > now() AS renewed;
RESET idem.max_open_claims;

-- when an operation finished: not before it did, and later than it was claimed if that was in another transaction
SELECT token AS t, created_at AS born, completed_at FROM idem.claim('jobs', 'finishes', lease => '1 hour') \gset
SELECT completed_at FROM idem.lookup('jobs', 'finishes');
SELECT completed_at FROM idem.records WHERE key = 'finishes';
SELECT outcome, completed_at FROM idem.try_claim('jobs', 'finishes');
SELECT idem.release(:'t');
SELECT state, completed_at FROM idem.lookup('jobs', 'finishes');
SELECT token AS t FROM idem.claim('jobs', 'finishes', lease => '1 hour') \gset
SELECT clock_timestamp() AS before \gset
SELECT idem.complete(:'t', '1');
SELECT clock_timestamp() AS after \gset
SELECT created_at = :'born' AS born, completed_at BETWEEN :'before' AND :'after' AS finished, completed_at AS done FROM idem.claim('jobs', 'finishes') \gset
\echo :born :finished
SELECT completed_at = :'done' AS same, lease_end FROM idem.lookup('jobs', 'finishes');
SELECT completed_at = :'done' AS same, lease_end FROM idem.records WHERE key = 'finishes';
-- an atomic claim finishes, for all others, in the transaction that made it: a replay tells when it was claimed
CREATE FUNCTION operation(request jsonb) RETURNS jsonb LANGUAGE sql RETURN request;
SELECT outcome, replayed, completed_at AS done FROM idem.execute('jobs', 'executed', 'operation(jsonb)', '1') \gset
\echo :outcome :replayed
SELECT outcome, replayed, completed_at = :'done' AS same FROM idem.execute('jobs', 'executed', 'operation(jsonb)', '1');
SELECT completed_at = created_at AS at_once, completed_at = :'done' AS same FROM idem.try_claim('jobs', 'executed', '1');
-- one that takes an operation over finishes when it completes
SELECT idem.release(token) FROM idem.claim('jobs', 'executed later', lease => '1 hour');
SELECT completed_at AS done FROM idem.execute('jobs', 'executed later', 'operation(jsonb)') \gset
SELECT completed_at > created_at AS later, completed_at = :'done' AS same FROM idem.lookup('jobs', 'executed later');
-- a failure finishes the operation; used-up attempts do not, because one more may be granted
SELECT token AS t FROM idem.claim('jobs', 'fails', lease => '1 hour') \gset
SELECT idem.fail(:'t', '{"message": "no"}');
SELECT state, completed_at > created_at AS finished FROM idem.lookup('jobs', 'fails');
SELECT outcome, completed_at > created_at AS finished FROM idem.try_claim('jobs', 'fails');
SELECT idem.alter_scope('jobs', max_attempts => 1);
SELECT outcome FROM idem.claim('jobs', 'used up', lease => '1 hour');
CALL lapse('used up');
SELECT state, completed_at FROM idem.lookup('jobs', 'used up');
SELECT outcome, completed_at FROM idem.try_claim('jobs', 'used up');
SELECT state, completed_at FROM idem.records WHERE key = 'used up';
SELECT completed_at FROM idem.lookup('jobs', 'absent');

-- In the transaction that has taken an operation over, the older token is fenced off at once.
SELECT idem.alter_scope('jobs', max_attempts => 3);
SELECT token AS old FROM idem.claim('jobs', 'over', lease => '1 hour') \gset
CALL lapse('over');
BEGIN;
SELECT token AS t, attempt FROM idem.claim('jobs', 'over') \gset
SAVEPOINT s;
SELECT idem.complete(:'old', '"old"');
ROLLBACK TO s;
SELECT idem.renew(:'old');
ROLLBACK TO s;
SELECT idem.complete(:'t', '"new"');
COMMIT;
-- but it goes on if that claim was released
SELECT token AS old FROM idem.claim('jobs', 'back', lease => '1 hour') \gset
CALL lapse('back');
BEGIN;
SELECT idem.release(token) FROM idem.claim('jobs', 'back');
SELECT idem.complete(:'old', '"old"');
COMMIT;

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA leases CASCADE;
