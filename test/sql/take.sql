-- Finishing what was begun: take, release with a pause and an error, backoff.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE SCHEMA taking;
SET search_path = taking;
SELECT idem.create_scope('jobs', lease => '1 hour', ttl => '1 day', wait => '0', max_attempts => 3, store_request => 'unfinished');
SELECT idem.create_scope('other', lease => '1 hour');
-- The tests change the row instead of the clock: the lease ended some seconds ago.
CREATE PROCEDURE lapse(k text, ago interval DEFAULT '1 s') LANGUAGE sql AS
  $$ UPDATE idem.record SET lease_end = now() - ago, expires = now() - ago + interval '1 day' WHERE key = k $$;
CREATE FUNCTION began(k text, t text DEFAULT '', s text DEFAULT 'jobs') RETURNS text LANGUAGE sql AS
  $$ SELECT (idem.claim(s, k, jsonb_build_object('job', k), tenant => t, lease => '1 minute')).token $$;

-- nothing is due: one row of NULLs, at once
SELECT token IS NULL AS nothing, num_nulls(VARIADIC ARRAY[token, key, tenant, recovery_point]) AS nulls, count(*) OVER () AS rows FROM idem.take('jobs');
SELECT idem.take('jobs') IS NULL AS nothing;

-- a running lease is not due; a lapsed one is, with all that is needed to go on
SELECT began('a', 'acme') AS t1 \gset
SELECT idem.checkpoint(:'t1', 'charged', '{"charge": 7}');
SELECT key FROM idem.take('jobs');
CALL lapse('a');
SELECT token AS t2, key, tenant, request, attempt, recovery_point, recovery_state, last_error, created_at AS born, expires_at AS expires
  FROM idem.take('jobs', lease => '2 hours') \gset
\echo :key :tenant :request :attempt :recovery_point :recovery_state [:last_error]
SELECT lease_end - now() BETWEEN interval '119 min' AND interval '2 h' AS two_hours, created_at = :'born' AS same_birth,
  expires_at = :'expires' AS same_expiry, expires_at - lease_end AS ttl FROM idem.lookup('jobs', 'a', 'acme');
SELECT idem.current_key() IS NULL AS closed_with_its_transaction;
\set VERBOSITY sqlstate
SELECT idem.renew(:'t1');
\set VERBOSITY default
SELECT key FROM idem.take('jobs');
SELECT idem.complete(:'t2', '"done by the taker"');
SELECT outcome, attempt, response FROM idem.try_claim('jobs', 'a', '{"job": "a"}', 'acme');
CALL lapse('a');
SELECT key FROM idem.take('jobs');  -- a finished one is never due

-- the one that has been due longest comes first, of the tenant that is asked for
SELECT count(began(k, t)) FROM (VALUES ('b1', 'acme'), ('b2', 'acme'), ('b3', ''), ('b4', 'zeta')) v (k, t);
CALL lapse('b1', '2 s');
CALL lapse('b2', '4 s');
CALL lapse('b3', '3 s');
CALL lapse('b4', '1 s');
BEGIN;
SELECT key, tenant FROM idem.take('jobs', tenant => '');
SELECT key, tenant FROM idem.take('jobs', tenant => '');
SELECT key, tenant FROM idem.take('jobs');
ROLLBACK;
SET idem.tenant = 'zeta';
BEGIN;
SELECT key, tenant FROM idem.take('jobs');
SELECT key, tenant FROM idem.take('jobs');
SELECT key, tenant FROM idem.take('jobs', tenant => 'acme');
ROLLBACK;
RESET idem.tenant;
-- a rollback returns what was taken, and its turn
BEGIN;
SELECT key FROM idem.take('jobs');
ROLLBACK;
-- in one transaction: each once; a savepoint returns what was taken after it
BEGIN;
SELECT key FROM idem.take('jobs');
SAVEPOINT s;
SELECT key FROM idem.take('jobs');
SELECT idem.current_key();
ROLLBACK TO s;
SELECT key, attempt FROM idem.take('jobs');
SELECT key FROM idem.take('jobs');
SELECT key FROM idem.take('jobs');
SELECT key FROM idem.take('jobs');
ROLLBACK;
SELECT array_agg((idem.take('jobs')).key) FROM generate_series(1, 6);
TRUNCATE idem.record;

-- a tenant is not required to take; an atomic claim of this transaction is not taken from it
SELECT idem.create_scope('tenants', lease => '1 hour', wait => '0', tenant_required => true);
SELECT began('t', 'acme', 'tenants') IS NOT NULL AS begun;
CALL lapse('t');
BEGIN;
SELECT attempt FROM idem.claim('tenants', 't', '{"job": "t"}', 'acme');
SELECT key FROM idem.take('tenants');
ROLLBACK;
SELECT key, tenant, request, attempt FROM idem.take('tenants');

-- what another call finishes after a search is not taken; the taker keeps the TTL of the claim
SELECT idem.create_scope('turns', ttl => '1 day', lease => '1 hour');
SELECT token AS t1 FROM idem.claim('turns', 't1', ttl => '5 days', lease => '1 minute') \gset
SELECT token AS t2 FROM idem.claim('turns', 't2', lease => '1 minute') \gset
UPDATE idem.record SET lease_end = created - interval '1 minute', expires = expires - interval '2 minutes' WHERE key IN ('t1', 't2');
SELECT key, expires_at - now() BETWEEN interval '5 days' AND interval '5 days 2 hours' AS five_days FROM idem.take('turns');
SELECT idem.complete(:'t2', '"late"');
SELECT key FROM idem.take('turns');
SELECT state, attempt, response FROM idem.lookup('turns', 't2');

-- exhausted and expired operations are not due
SELECT began('c') IS NOT NULL AS begun;
CALL lapse('c');
SELECT attempt FROM idem.take('jobs');
CALL lapse('c');
SELECT attempt FROM idem.take('jobs');
CALL lapse('c');
SELECT attempt FROM idem.take('jobs');
SELECT idem.alter_scope('jobs', max_attempts => 4);
SELECT attempt FROM idem.take('jobs');
SELECT idem.alter_scope('jobs', max_attempts => 3);
SELECT began('d') IS NOT NULL AS begun;
UPDATE idem.record SET lease_end = now() - interval '2 days', expires = now() - interval '1 s' WHERE key = 'd';
SELECT key FROM idem.take('jobs');
SELECT idem.purge();
TRUNCATE idem.record;

-- released: due at once, or after retry_after, with the last error
SELECT began('e') AS t1 \gset
SELECT idem.checkpoint(:'t1', 'half');
SELECT idem.release(:'t1', '1 hour', '{"sqlstate": "08006", "message": "gateway down"}');
SELECT key FROM idem.take('jobs');
SELECT outcome, retry_after > interval '59 minutes' AND retry_after <= interval '1 hour' AS when_due FROM idem.try_claim('jobs', 'e', '{"job": "e"}');
CREATE FUNCTION told(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE message text; detail text; hint text; milliseconds bigint;
BEGIN
  EXECUTE call;
  RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, milliseconds = PG_DATATYPE_NAME;
  RETURN format('%s %s | %s | %s | %s', SQLSTATE, message, regexp_replace(detail, '\d{4}-.*', 'TIME'), regexp_replace(hint, '\d+\.\d', 'N.N'), milliseconds BETWEEN 3540000 AND 3600000);
END $$;
SELECT told($$SELECT idem.claim('jobs', 'e', '{"job": "e"}')$$);
SELECT told($$SELECT idem.once('jobs', 'e', '{"job": "e"}')$$);
-- under a lease, no longer wait helps who removes or erases the record
SELECT began('e2') IS NOT NULL AS begun;
SELECT told($$SELECT idem.forget('jobs', 'e2')$$);
SELECT told($$SELECT idem.erase('jobs', 'e2')$$);
DELETE FROM idem.record WHERE key = 'e2';
DROP FUNCTION told;
SELECT state, attempt, lapsed, recovery_point, last_error, lease_end - now() BETWEEN interval '59 min' AND interval '1 hour' AS hour
  FROM idem.in_flight;
SELECT state, error, lease_end - now() BETWEEN interval '59 min' AND interval '1 hour' AS hour, expires_at - lease_end AS ttl FROM idem.lookup('jobs', 'e');
\set VERBOSITY sqlstate
SELECT idem.renew(:'t1');
SELECT idem.release(:'t1');
\set VERBOSITY default
CALL lapse('e');
SELECT state, lapsed FROM idem.in_flight;
SELECT token AS t2, attempt, recovery_point, last_error FROM idem.take('jobs') \gset
\echo :attempt :recovery_point :last_error
SELECT state, last_error FROM idem.in_flight;
-- without an error the last one stays; a claim takes over as well
SELECT idem.release(:'t2', '0');
SELECT token AS t3, attempt FROM idem.claim('jobs', 'e', '{"job": "e"}', lease => '1 minute') \gset
SELECT state, attempt, last_error FROM idem.in_flight;
-- after the last attempt there is nothing to wait for
SELECT idem.release(:'t3', '1 hour', '{"message": "no gateway"}');
SELECT state, attempt, lapsed, recovery_point, last_error, lease_end <= now() AS ended FROM idem.in_flight;
SELECT outcome, attempt, error FROM idem.try_claim('jobs', 'e', '{"job": "e"}');
SELECT state, error FROM idem.lookup('jobs', 'e');
SELECT key FROM idem.take('jobs');
SELECT regexp_replace(detail, 'at \d\S+ \S+:', 'at TIME:') AS detail, hint FROM idem.health('0') WHERE check_name = 'attempts';
-- the error of an attempt is not the answer
SELECT idem.alter_scope('jobs', max_attempts => 4);
SELECT idem.complete(token, '1') FROM idem.take('jobs');
SELECT state, error, response FROM idem.lookup('jobs', 'e');

-- released in this transaction, and taken again in it
BEGIN;
SELECT began('f') AS t \gset
SELECT idem.release(:'t');
SELECT key, attempt FROM idem.take('jobs');
COMMIT;
-- what this transaction holds is passed over when its lease has ended
CALL lapse('f');
BEGIN;
SELECT token AS t FROM idem.take('jobs', lease => '1 ms') \gset
SELECT token AS t2 FROM idem.claim('jobs', 'f2', lease => '1 ms') \gset
SELECT idem.renew(:'t', '1 ms') IS NOT NULL AS renewed, pg_sleep(0.01);
SELECT key FROM idem.take('jobs');
SELECT idem.complete(:'t', '"f"'), idem.complete(:'t2', '"f2"');
COMMIT;
-- a key that is a UUID; no stored request
SELECT began('6f2b7a1e-6f3c-4f6e-9b1a-0c9d3a5e7f10', s => 'other') IS NOT NULL AS begun;
UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE to_jsonb(record)::text ~ '6f2b7a1e';
SELECT key, tenant = '' AS no_tenant, request IS NULL AS none FROM idem.take('other');

-- without the index of unfinished operations, the table is read
SELECT began('g') IS NOT NULL AS begun;
CALL lapse('g');
SELECT coalesce(to_regclass('idem.record_unfinished')::text, 'idem.record_due') AS unfinished \gset
BEGIN;
DROP INDEX :unfinished;
SELECT key FROM idem.take('jobs');
ROLLBACK;
SELECT key FROM idem.take('jobs');

-- wait: until something is due, or the bound is reached
SELECT began('h') IS NOT NULL AS begun;
UPDATE idem.record SET lease_end = clock_timestamp() + interval '300 ms' WHERE key = 'h';
SELECT key FROM idem.take('jobs', wait => '10 minutes');
SELECT key FROM idem.take('jobs', wait => '150 ms');
SET lock_timeout = '50 ms';
SELECT key FROM idem.take('jobs', wait => '10 minutes');
RESET lock_timeout;

-- arguments
\set VERBOSITY sqlstate
SELECT idem.take(NULL);
SELECT idem.take('nowhere');
SELECT idem.take('jobs', lease => '0');
SELECT idem.take('jobs', lease => '-1 s');
SELECT idem.take('jobs', wait => '-1 s');
SELECT idem.take('jobs', tenant => repeat('x', 256));
SELECT idem.take('jobs', lease => NULL, tenant => NULL, wait => NULL) IS NULL AS nothing;
BEGIN READ ONLY;
SELECT idem.take('jobs');
ROLLBACK;
SET idem.max_open_claims = 1;
BEGIN;
SELECT began('i') IS NOT NULL AS begun;
SELECT idem.take('jobs');
ROLLBACK;
RESET idem.max_open_claims;
CREATE ROLE regress_taker;
GRANT USAGE ON SCHEMA taking TO regress_taker;
SET ROLE regress_taker;
SELECT idem.take('jobs');
RESET ROLE;
\set VERBOSITY default
SET ROLE regress_taker;
SELECT count(*) FROM idem.in_flight;
RESET ROLE;
BEGIN;
SELECT token AS t FROM idem.claim('jobs', 'atomic') \gset
SAVEPOINT s;
SELECT idem.release(:'t', '1 s');
ROLLBACK TO s;
SELECT idem.release(:'t', error => '{"message": "no"}');
ROLLBACK TO s;
SELECT idem.release(:'t', NULL, NULL);
ROLLBACK;
SELECT began('j') AS t \gset
SELECT idem.release(:'t', '-1 s');
SELECT idem.release(:'t', error => '[]');
SELECT idem.release(:'t', error => '{}');
SELECT idem.release(:'t', error => '{"message": ""}');
SELECT idem.release(:'t', error => '{"message": "x", "code": 7}');
SELECT idem.release(:'t', error => '{"sqlstate": "00000"}');
SELECT idem.release(:'t', error => '{"sqlstate": "tooLong"}');
SELECT idem.alter_scope('jobs', max_answer_size => 1024);
SELECT idem.release(:'t', error => jsonb_build_object('message', repeat('x', 2000)));
SELECT idem.alter_scope('jobs', max_answer_size => 65536);
SELECT idem.release(:'t', error => '{"sqlstate": "ID001"}');
SELECT idem.release(NULL);

-- backoff: between half and all of base * 2 ^ (attempt - 1), at most cap
SELECT attempt, min(b) >= half * interval '1 s' AND max(b) <= 2 * half * interval '1 s' AS within, max(b) > min(b) AS differ
  FROM (VALUES (1, 0.5), (2, 1), (5, 8), (9, 128), (10, 150), (11, 150), (2147483647, 150)) v (attempt, half),
    LATERAL (SELECT idem.backoff(attempt) b FROM generate_series(1, 100)) x
  GROUP BY attempt, half ORDER BY attempt;
SELECT idem.backoff(3, '1 minute', '1 minute') BETWEEN interval '30 s' AND interval '1 minute' AS capped,
  idem.backoff(1, '1 microsecond') <= interval '1 microsecond' AS least,
  idem.backoff(2147483647, '1 s', '365000 days') BETWEEN interval '182500 days' AND interval '365000 days' AS most,
  coalesce(idem.backoff(NULL), idem.backoff(1, NULL), idem.backoff(1, cap => NULL)) IS NULL AS of_nothing;

-- what becomes of operations, in the log: from the lapse of a lease to the end
SELECT idem.create_scope('logged', lease => '1 hour', max_attempts => 2, final_sqlstates => '{P0001}');
SET idem.log_transitions = 'notice';
SELECT began('lapses', 'acme', 'logged') IS NOT NULL AS claimed;
CALL lapse('lapses');
SELECT token AS t, attempt FROM idem.take('logged') \gset
SELECT idem.release(:'t');  -- the last attempt
SELECT outcome FROM idem.try_claim('logged', 'lapses', '{"job": "lapses"}', tenant => 'acme');
SELECT idem.revoke('logged', 'lapses', 'acme');
SELECT idem.revoke('logged', 'absent');
SELECT token AS t, attempt FROM idem.claim('logged', 'lapses', '{"job": "lapses"}', tenant => 'acme', lease => '1 hour') \gset
SELECT idem.fail(:'t', '{"message": "secret"}');
SELECT outcome FROM idem.try_claim('logged', 'lapses', '{"job": "lapses"}', tenant => 'acme');
SELECT idem.erase('logged', 'lapses', 'acme');
SELECT idem.erase('logged', 'lapses', 'acme');  -- nothing is left to erase
SELECT idem.forget('logged', 'lapses', 'acme');
SELECT idem.forget('logged', 'lapses', 'acme');
-- a release is not a lapse, and an answer is the normal end
SELECT idem.release(began('ends', '', 'logged'));
SELECT idem.complete(token, '"secret"') FROM idem.claim('logged', 'ends', '{"job": "ends"}');
SELECT outcome FROM idem.claim('logged', 'ends', '{"job": "ends"}');
-- whatever the function
SELECT state FROM idem.cancel('logged', 'cancelled');
CREATE FUNCTION refuse(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE 'secret'; END $$;
SELECT outcome FROM idem.execute('logged', 'refused', 'refuse(jsonb)');
SELECT began('in a set', '', 'logged') IS NOT NULL AS claimed;
CALL lapse('in a set');
SELECT idem.once_each('logged', '{in a set}');
SELECT idem.erase_tenant('logged', '');
SELECT idem.forget_tenant('logged', '', true);
SET idem.log_transitions = 'off';
SELECT state FROM idem.cancel('logged', 'cancelled');
SET idem.log_transitions = 'error';
SET ROLE pg_monitor;
SET idem.log_transitions = 'log';
RESET ROLE;

REVOKE ALL ON SCHEMA taking FROM regress_taker;
DROP ROLE regress_taker;
SET client_min_messages = warning;
DROP SCHEMA taking CASCADE;
