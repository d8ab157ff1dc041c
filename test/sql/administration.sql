-- Administration: changing and dropping scopes, forgetting keys, and what it does to the records.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE FUNCTION answer(scope text, key text, request jsonb DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim(scope, key, request);
  IF c.claimed THEN PERFORM idem.complete(c.token, '"done"'); END IF;
  RETURN c.outcome;
END $$;

-- NULL keeps a setting, a value replaces it, -1 removes the limit
SELECT idem.create_scope('s', ttl => '7 days', lease => '30 seconds', wait => '0', request_required => true, request_exclude => '{a,b.c}',
  tenant_required => true, reject_stale_keys => true, max_attempts => 3, weak_keys => 'warn',
  store_response => false, response_exclude => '{card.number}', final_sqlstates => '{P0042,22}',
  owner => 'pg_monitor');
\x on
SELECT idem.alter_scope('s');
SELECT * FROM idem.scopes;
SELECT idem.alter_scope('s', ttl => '1 day', lease => '1 minute', wait => '1 second', request_required => false, request_exclude => '{}',
  tenant_required => false, reject_stale_keys => false, max_attempts => -1, claims_per_minute => -1, weak_keys => 'allow',
  store_response => true, response_exclude => '{}', final_sqlstates => '{}');
SELECT * FROM idem.scopes;
SELECT idem.alter_scope('s', max_attempts => 1, weak_keys => 'reject');
SELECT max_attempts, claims_per_minute, weak_keys FROM idem.scopes;
SELECT idem.alter_scope('s', ttl => '1 hour', max_attempts => -1, claims_per_minute => -1, weak_keys => 'allow');
\x off

-- invalid values are refused
SELECT idem.alter_scope('unknown');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('s', ttl => '0');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('s', lease => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('s', wait => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('s', max_attempts => 0);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('s', claims_per_minute => -2);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('s', weak_keys => 'never');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('s', response_exclude => ARRAY['']);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('s', final_sqlstates => '{502}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('s', owner => 4294967295);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.drop_scope('unknown');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.drop_scope(NULL);
\echo :LAST_ERROR_SQLSTATE
BEGIN READ ONLY;
SELECT idem.alter_scope('s');
ROLLBACK;
BEGIN READ ONLY;
SELECT idem.drop_scope('s');
ROLLBACK;
BEGIN READ ONLY;
SELECT idem.forget('s', 'k');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

-- a changed rule counts from the next call on; stored records stay; a rollback restores the rule
SELECT answer('s', 'k'), answer('s', 'k');
BEGIN;
SELECT idem.alter_scope('s', request_required => true);
SELECT answer('s', 'k'), answer('s', 'with request', '1');
SELECT answer('s', 'without request');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT answer('s', 'k'), (SELECT request_required FROM idem.scopes);
BEGIN;
SAVEPOINT before_change;
SELECT idem.alter_scope('s', tenant_required => true);
SELECT tenant_required FROM idem.scopes;
ROLLBACK TO before_change;
SELECT answer('s', 'k');
COMMIT;
-- two changes in one transaction: the paths are read again
BEGIN;
SELECT idem.alter_scope('s', request_exclude => '{x}'), idem.alter_scope('s', request_exclude => '{sent_at}');
SELECT answer('s', 'paths', '{"a": 1, "sent_at": 1}'), answer('s', 'paths', '{"a": 1, "sent_at": 2}');
COMMIT;

-- The scope's final SQLSTATEs: execute stores them, by the rules at the moment of failure, and raises
-- all others. What is stored stays final.
CREATE FUNCTION upstream(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  IF request ? 'then' THEN PERFORM idem.alter_scope('s', final_sqlstates => ARRAY[request->>'then']); END IF;
  RAISE EXCEPTION 'upstream said 502' USING ERRCODE = request->>'sqlstate';
END $$;
CREATE FUNCTION attempt(key text, request jsonb) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RETURN (idem.execute('s', key, 'upstream(jsonb)', request)).outcome;
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE || ' raised, ' || (idem.lookup('s', key)).state;
END $$;
SELECT idem.alter_scope('s', final_sqlstates => '{P0001,22}');
SELECT sqlstate, attempt('t' || sqlstate, jsonb_build_object('sqlstate', sqlstate)) FROM unnest('{P0001,P0002,22012,22023,40001,23505}'::text[]) sqlstate;
SELECT idem.alter_scope('s', final_sqlstates => '{}');
SELECT attempt('tP0001', '{"sqlstate": "P0001"}'), attempt('new', '{"sqlstate": "P0001"}');
-- the operation cannot change the scope in which its claim is open
SELECT attempt('changing', '{"sqlstate": "P0001", "then": "P0001"}');
SELECT idem.alter_scope('s', final_sqlstates => '{P0001}');
SELECT attempt('changing', '{"sqlstate": "P0001"}'), attempt('new', '{"sqlstate": "P0001"}');
SELECT idem.fail((idem.claim('s', 'final')).token, '{"sqlstate": "P0001", "message": "declined"}');
SELECT outcome FROM idem.try_claim('s', 'final');
SELECT idem.alter_scope('s', final_sqlstates => '{}');
SELECT bool_and(idem.forget('s', key)) FROM unnest('{tP0001,t22012,t22023,changing,new,final}'::text[]) key;
DROP FUNCTION upstream, attempt;

-- dropped: unknown at once, even to an open claim; a new scope of the same name starts empty
BEGIN;
SELECT token AS t FROM idem.claim('s', 'open') \gset
DELETE FROM idem.scope WHERE name = 's';
SELECT idem.complete(:'t', '"in a dropped scope"');
SAVEPOINT gone;
SELECT answer('s', 'k');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO gone;
SELECT count(*) FROM idem.scopes;
ROLLBACK;
SELECT answer('s', 'k');
SELECT idem.drop_scope('s');
SELECT idem.lookup('s', 'k');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.create_scope('s');
SELECT answer('s', 'k'), answer('s', 'k');

-- what another attempt should continue is not dropped by mistake
SELECT idem.create_scope('begun');
SELECT token FROM idem.claim('begun', 'k', lease => '1 hour') \gset
BEGIN;
SELECT idem.drop_scope('begun');
ROLLBACK;
SELECT idem.checkpoint(:'token', 'charged');
SELECT idem.drop_scope('begun');
SELECT idem.release(:'token');
SELECT idem.drop_scope('begun');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.drop_scope('begun', force => NULL);
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT idem.drop_scope('begun', force => true);
ROLLBACK;
BEGIN;
UPDATE idem.record SET expires = now() WHERE scope = (SELECT id FROM idem.scope WHERE name = 'begun');
SELECT idem.drop_scope('begun');
ROLLBACK;
SELECT idem.forget('begun', 'k', force => true), idem.drop_scope('begun');

-- the purger deletes the records of dropped scopes, and no others
SELECT idem.create_scope('other');
SELECT answer('other', 'k');
SELECT count(*) FROM idem.record;
SELECT idem.purge(1), idem.purge(), idem.purge();
SELECT answer('s', 'k'), answer('other', 'k');
BEGIN;
SELECT idem.drop_scope('s');
SELECT idem.purge();
SELECT answer('other', 'k');
ROLLBACK;
SELECT answer('s', 'k');
SELECT idem.drop_scope('s'), idem.drop_scope('other');
SELECT idem.purge();
SELECT idem.create_scope('restored');
SELECT idem.purge();
SELECT count(*) FROM idem.record;
-- While a dump is restored, records may come before their scopes. A missing scope is not a dropped
-- one.
SELECT answer('restored', 'k');
BEGIN;
UPDATE idem.record SET scope = scope + 1;
SELECT idem.purge();
ROLLBACK;
SELECT string_agg(quote_ident(attname), ', ') AS columns FROM pg_attribute
  WHERE attrelid = 'idem.scope'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' \gset
BEGIN;
CREATE TEMP TABLE scope_rows ON COMMIT DROP AS SELECT :columns FROM idem.scope;
DELETE FROM idem.scope;
ALTER SEQUENCE idem.scope_id RESTART;
SELECT idem.purge();
INSERT INTO idem.scope (:columns) TABLE scope_rows;
SELECT answer('restored', 'k');
ROLLBACK;
-- A scope that a superuser has inserted again is not a dropped one.
BEGIN;
CREATE TEMP TABLE scope_rows ON COMMIT DROP AS SELECT :columns FROM idem.scope;
SELECT idem.drop_scope('restored');
INSERT INTO idem.scope (:columns) TABLE scope_rows;
SELECT idem.purge();
SELECT answer('restored', 'k');
ROLLBACK;

-- An id is never reused, whatever the sequence says: no record of another scope answers.
CREATE FUNCTION next_is_new(name text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.create_scope(name);
  RETURN format('%s %s %s', idem.once(name, 'k'), idem.advance(name, 's', 1),
                (SELECT id > ALL (SELECT id FROM idem.scope o WHERE o.name <> s.name UNION ALL SELECT r.scope FROM idem.record r WHERE r.scope <> s.id
                                  UNION ALL SELECT w.scope FROM idem.watermark w WHERE w.scope <> s.id)
                   FROM idem.scope s WHERE s.name = next_is_new.name));
END $$;
SELECT next_is_new('gone'), idem.drop_scope('gone');
ALTER SEQUENCE idem.scope_id RESTART;
SELECT next_is_new('after a restart'), idem.drop_scope('after a restart');
SELECT setval('idem.scope_id', 1) \gset
SELECT next_is_new('set back'), idem.drop_scope('set back');
-- Nor is it when the scopes and the sequence are lost, and only records or watermarks remain.
BEGIN;
DELETE FROM idem.scope WHERE id > (SELECT min(id) FROM idem.scope);
DELETE FROM idem.dropped_scope;
ALTER SEQUENCE idem.scope_id RESTART;
SELECT next_is_new('beside records');
DELETE FROM idem.scope;
SAVEPOINT lost;
-- all scopes are lost: none is made instead
SELECT idem.create_scope('again');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO lost;
DELETE FROM idem.record;
ALTER SEQUENCE idem.scope_id RESTART;
SELECT next_is_new('beside watermarks');
ROLLBACK;
-- Nor is an id reused that the sequence has given out.
SELECT nextval('idem.scope_id') AS given \gset
SELECT next_is_new('next');
SELECT id > :given AS beyond FROM idem.scope WHERE name = 'next';
SELECT idem.drop_scope('next');
-- when no ids are left, the error says so
SELECT last_value AS last FROM idem.scope_id \gset
SELECT setval('idem.scope_id', 2147483647) \gset
SELECT idem.create_scope('one too many');
\echo :LAST_ERROR_SQLSTATE
SELECT setval('idem.scope_id', :last) \gset
SELECT idem.purge();
SELECT count(*) FROM idem.record WHERE scope IN (SELECT id FROM idem.dropped_scope);
DELETE FROM idem.watermark;
DROP FUNCTION next_is_new;

-- forgotten: the next claim runs the operation again
SELECT idem.forget('restored', 'k'), idem.forget('restored', 'k'), idem.forget('restored', 'never seen');
SELECT state FROM idem.lookup('restored', 'k');
SELECT answer('restored', 'k');
SELECT idem.forget('restored', 'k', tenant => 'a');
BEGIN;
SELECT idem.forget('restored', 'k');
SELECT state FROM idem.lookup('restored', 'k');
SELECT answer('restored', 'k', '"another request"');
ROLLBACK;
SELECT answer('restored', 'k');
-- completed and forgotten in one transaction; a savepoint brings the record back
BEGIN;
SELECT answer('restored', 'here');
SAVEPOINT before_forget;
SELECT idem.forget('restored', 'here');
SELECT answer('restored', 'here');
ROLLBACK TO before_forget;
SELECT answer('restored', 'here');
SELECT idem.forget('restored', 'here');
COMMIT;
SELECT state FROM idem.lookup('restored', 'here');
-- a claim that this transaction holds open cannot be forgotten, one that it has released can
BEGIN;
SELECT token AS t FROM idem.claim('restored', 'open') \gset
SAVEPOINT open;
SELECT idem.forget('restored', 'open');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO open;
SELECT idem.release(:'t');
SELECT idem.forget('restored', 'open');
COMMIT;
-- a running lease cannot be forgotten, a lapsed one can; the old token stays fenced off. A month has
-- 30 days, so that this wait is none
SET lock_timeout = '5 s';
SELECT idem.alter_scope('restored', wait => '12 months -360 days');
SELECT token AS t FROM idem.claim('restored', 'leased', lease => '1 hour') \gset
\set VERBOSITY sqlstate
SELECT idem.forget('restored', 'leased');
SELECT idem.renew(:'t', '1 microsecond') IS NOT NULL AS renewed;
SELECT idem.forget('restored', 'leased');
SELECT idem.complete(:'t');
SELECT outcome, attempt, token AS next FROM idem.claim('restored', 'leased', lease => '1 microsecond') \gset
SELECT :'outcome' AS outcome, :attempt AS attempt;
SELECT idem.complete(:'t');
SELECT idem.complete(:'next', '"second"');
\set VERBOSITY default
-- an unfinished operation with a recovery point is kept, unless the caller insists
SELECT token AS t FROM idem.claim('restored', 'half way', lease => '1 hour') \gset
SELECT idem.checkpoint(:'t', 'charged');
SELECT idem.release(:'t');
SELECT idem.forget('restored', 'half way');
SELECT recovery_point FROM idem.records WHERE key = 'half way';
SELECT idem.forget('restored', 'half way', force => NULL);
SELECT idem.forget('restored', 'half way', force => true);
SELECT state FROM idem.lookup('restored', 'half way');
-- once it is finished or has expired, there is nothing to lose
SELECT token AS t FROM idem.claim('restored', 'half way', lease => '1 hour') \gset
SELECT idem.checkpoint(:'t', 'charged');
SELECT idem.complete(:'t');
SELECT idem.forget('restored', 'half way');
SELECT token AS t FROM idem.claim('restored', 'half way', lease => '1 hour', ttl => '1 microsecond') \gset
SELECT idem.checkpoint(:'t', 'charged');
SELECT idem.release(:'t');
SELECT idem.forget('restored', 'half way');
SELECT count(*) FROM idem.record WHERE key = 'half way';
-- dropped under a lease: the token is worthless
SELECT idem.create_scope('leased');
SELECT token AS t FROM idem.claim('leased', 'k', lease => '1 hour') \gset
SELECT idem.drop_scope('leased');
SELECT idem.complete(:'t');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.purge();
-- an expired record is deleted, but forget() reports that there was none
SELECT idem.alter_scope('restored', ttl => '1 microsecond');
SELECT answer('restored', 'short');
SELECT idem.forget('restored', 'short');
SELECT count(*) FROM idem.record WHERE key = 'short';
SELECT idem.alter_scope('restored', ttl => '1 day');
-- forgetting many keys does not fill the lock table
SELECT count(*) FILTER (WHERE answer('restored', i::text) = 'claimed') FROM generate_series(1, 50) i;
BEGIN;
SELECT count(*) FILTER (WHERE idem.forget('restored', i::text)) FROM generate_series(1, 100) i;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
SELECT idem.forget('restored', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.forget('restored', '');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.forget('unknown', 'k');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.forget(NULL, 'k');
\echo :LAST_ERROR_SQLSTATE

-- a role that may use a scope cannot administer it
CREATE ROLE idem_regress_owner;
CREATE ROLE idem_regress_admin IN ROLE idem_regress_owner;
CREATE ROLE idem_regress_creator;
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope, idem.forget TO idem_regress_admin, idem_regress_creator;
SELECT idem.create_scope('owned', owner => 'idem_regress_owner');
SET ROLE idem_regress_owner;
SELECT idem.alter_scope('owned', ttl => '1 day');
SELECT idem.drop_scope('owned');
SELECT idem.forget('owned', 'k');
\echo :LAST_ERROR_SQLSTATE
SET ROLE idem_regress_creator;
SELECT idem.alter_scope('owned', ttl => '1 day');
SELECT idem.drop_scope('owned');
SELECT idem.forget('owned', 'k');
\echo :LAST_ERROR_SQLSTATE
SET ROLE idem_regress_admin;
SELECT idem.forget('owned', 'k');
SELECT idem.alter_scope('owned', ttl => '1 day');
\set VERBOSITY sqlstate
SELECT idem.alter_scope('owned', owner => 'idem_regress_creator');
\set VERBOSITY default
SELECT idem.alter_scope('owned', owner => 'idem_regress_admin');
SELECT name, owner, ttl FROM idem.scopes;
RESET ROLE;
SELECT idem.alter_scope('owned', owner => 'idem_regress_creator');
SET ROLE idem_regress_admin;
SELECT idem.drop_scope('owned');
\echo :LAST_ERROR_SQLSTATE
SET ROLE idem_regress_creator;
SELECT idem.drop_scope('owned');
RESET ROLE;
DROP OWNED BY idem_regress_admin, idem_regress_creator;
DROP ROLE idem_regress_admin, idem_regress_creator, idem_regress_owner;
DROP FUNCTION answer;
