-- Rotating the fingerprint secret: no false conflict, whatever secret a record was made with.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE FUNCTION outcome(key text, request jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.try_claim('s', key, request);
  IF c.claimed THEN PERFORM idem.complete(c.token, '"done"'); END IF;
  RETURN c.outcome;
END $$;
-- the id of the secret is part of the stored fingerprint, or in a column of its own
CREATE FUNCTION made_with() RETURNS TABLE (key text, secret int) LANGUAGE sql AS $$
  SELECT key, coalesce((to_jsonb(r) ->> 'secret')::int, get_byte(fingerprint, 1)) FROM idem.record r ORDER BY key
$$;
SELECT idem.create_scope('s');
SELECT outcome('first', '{"a": 1}');
SELECT idem.rotate_secret();
SELECT outcome('first', '{"a": 1.0}'), outcome('first', '{"a": 2}'), outcome('second', '{"a": 1}'), outcome('second', '{"a": 1}'), outcome('second', '{"a": 2}');
SELECT idem.rotate_secret();
SELECT outcome('third', '{"a": 1}');
SELECT key, outcome(key, '{"a": 1}'), outcome(key, '{"a": 2}') FROM unnest('{first,second,third,first,third,second}'::text[]) key;
SELECT * FROM made_with();
SELECT id, purpose, length(secret) FROM idem.secret ORDER BY id;
SELECT count(DISTINCT secret) FROM idem.secret;
-- an open claim keeps the secret that it was made with
BEGIN;
SELECT token AS t FROM idem.claim('s', 'open', '{"a": 1}') \gset
SELECT idem.rotate_secret();
SELECT idem.complete(:'t', '"done"');
COMMIT;
SELECT outcome('open', '{"a": 1}'), outcome('open', '{"a": 2}');
-- rolled back, whole or to a savepoint: the id is given again, to another secret
BEGIN;
SELECT idem.rotate_secret();
SELECT outcome('undone', '{"a": 1}'), outcome('undone', '{"a": 1}'), outcome('first', '{"a": 1}');
ROLLBACK;
SELECT outcome('fourth', '{"a": 1}'), outcome('fourth', '{"a": 1}'), outcome('first', '{"a": 1}');
BEGIN;
SELECT outcome('fifth', '{"a": 1}');
SAVEPOINT before_rotation;
SELECT idem.rotate_secret();
SELECT outcome('undone', '{"a": 1}');
SELECT idem.rotate_secret();
SELECT outcome('undone too', '{"a": 1}'), outcome('undone', '{"a": 1}');
ROLLBACK TO before_rotation;
SELECT outcome('sixth', '{"a": 1}'), outcome('fifth', '{"a": 1}');
SELECT idem.rotate_secret();
SELECT outcome('seventh', '{"a": 1}');
SELECT idem.rotate_secret();
SELECT outcome('seventh', '{"a": 1}');
COMMIT;
SELECT key, outcome(key, '{"a": 1}'), outcome(key, '{"a": 2}') FROM unnest('{fifth,sixth,seventh,first,seventh}'::text[]) key;
SELECT * FROM made_with();
-- key locks and child keys stay the same: they come from the seed
BEGIN;
SELECT token AS t FROM idem.claim('s', 'child') \gset
SELECT idem.child_key(:'t', 'step') AS before \gset
SELECT objid AS lock FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() \gset
ROLLBACK;
SELECT idem.rotate_secret();
BEGIN;
SELECT token AS t FROM idem.claim('s', 'child') \gset
SELECT idem.child_key(:'t', 'step') = :'before' AS same_child, objid = :'lock' AS same_lock FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;
-- before the first scope, too
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.rotate_secret();
SELECT idem.create_scope('s');
SELECT idem.complete(token, '"done"') FROM idem.claim('s', 'k', '{"a": 1}');
SELECT a, outcome FROM generate_series(1, 2) a, idem.try_claim('s', 'k', jsonb_build_object('a', a));
SELECT * FROM made_with();
SELECT id, purpose FROM idem.secret ORDER BY id;
-- only with EXECUTE
CREATE ROLE idem_regress_rotator;
SET ROLE idem_regress_rotator;
SELECT idem.rotate_secret();
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION idem.rotate_secret() TO idem_regress_rotator;
SET ROLE idem_regress_rotator;
SELECT idem.rotate_secret();
RESET ROLE;
DROP OWNED BY idem_regress_rotator;
DROP ROLE idem_regress_rotator;
BEGIN READ ONLY;
SELECT idem.rotate_secret();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- in a session of a replica, too, a scope gets the newest secret, and a new secret is used
SET session_replication_role = replica;
SELECT idem.create_scope('replica');
RESET session_replication_role;
SELECT n, idem.once('replica', 'before', '{"a": 1}') FROM generate_series(1, 2) n;
SET session_replication_role = replica;
SELECT idem.rotate_secret();
RESET session_replication_role;
SELECT n, idem.once('replica', 'after', '{"a": 1}') FROM generate_series(1, 2) n;
SELECT * FROM made_with() WHERE key IN ('before', 'after');
DROP FUNCTION outcome, made_with;
