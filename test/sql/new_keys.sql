-- Rules for new keys: not older than the scope remembers, and unlikely to be used twice.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SET timezone = 'UTC';
SELECT idem.create_scope('remembering', ttl => '1 day', reject_stale_keys => true);
SELECT idem.create_scope('indifferent', ttl => '1 day');
-- a key whose time is that far from now, as UUIDv7 and as ULID
CREATE FUNCTION uuid_key(age interval) RETURNS text LANGUAGE sql AS $$
  SELECT left(h, 8) || '-' || right(h, 4) || '-7d2a-9b1c-4f5e6a7b8c9d'
    FROM lpad(to_hex((extract(epoch FROM clock_timestamp() - age) * 1000)::bigint), 12, '0') h
$$;
CREATE FUNCTION ulid_key(age interval) RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((t >> (5 * i)) & 31)::int, 1), '' ORDER BY i DESC) || 'Q8XYZABCDEFGHJKM'
    FROM generate_series(0, 9) i, (SELECT (extract(epoch FROM clock_timestamp() - age) * 1000)::bigint t) now
$$;
SELECT length(uuid_key('0')), uuid_key('0')::uuid IS NOT NULL, length(ulid_key('0'));
CREATE FUNCTION outcome(scope text, key text, ttl interval DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.try_claim(scope, key, ttl => ttl);
  IF c.claimed THEN PERFORM idem.complete(c.token, '"done"'); END IF;
  RETURN c.outcome;
END $$;
-- Claim raises what try_claim reports. Keys carry their own time, so only the SQLSTATE is shown.
CREATE FUNCTION sqlstate_of(scope text, key text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.release((idem.claim(scope, key)).token);
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE || ' ' || regexp_replace(SQLERRM, '".*"', '"..."');
END $$;

SELECT age, outcome('remembering', uuid_key(age)) AS uuid, outcome('remembering', ulid_key(age)) AS ulid, outcome('indifferent', uuid_key(age))
  FROM unnest('{0, 23 hours, 25 hours, 10 years, -9 minutes, -11 minutes, -1 year}'::interval[]) age;
SELECT sqlstate_of('remembering', uuid_key('25 hours')), sqlstate_of('remembering', ulid_key('-11 minutes')), sqlstate_of('remembering', uuid_key('1 hour'));
-- the TTL of a claim does not count: another claim of the key may pass another one, or none
SELECT outcome('remembering', uuid_key('25 hours'), '2 days');
SELECT outcome('remembering', uuid_key('2 hours'), '1 hour');
SELECT outcome('remembering', uuid_key('2 hours'), '2 days');
-- min_ttl does; a claim may pass as short a TTL
SELECT idem.create_scope('brief', ttl => '1 day', min_ttl => '1 hour', reject_stale_keys => true);
SELECT outcome('brief', uuid_key('2 hours')), outcome('brief', uuid_key('59 minutes'), '1 hour');
-- a longer TTL accepts no key whose record has expired
SELECT idem.create_scope('longer', ttl => '1 hour', reject_stale_keys => true);
SELECT uuid_key('59 minutes') AS run, uuid_key('61 minutes') AS ran \gset
SELECT outcome('longer', :'run');
SELECT idem.alter_scope('longer', ttl => '2 days');
SELECT idem.alter_scope('longer', ttl => '3 days', max_attempts => 3);
SELECT ttl, min_ttl FROM idem.scopes WHERE name = 'longer';
SELECT outcome('longer', :'run'), outcome('longer', :'ran'), outcome('longer', uuid_key('58 minutes'), '1 hour');
SELECT idem.alter_scope('longer', min_ttl => '61 minutes');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.alter_scope('longer', min_ttl => '0');
SELECT idem.alter_scope('remembering', ttl => '3 days', min_ttl => '2 days');
SELECT idem.alter_scope('longer', ttl => '30 minutes');
SELECT idem.alter_scope('longer', ttl => '30 minutes', min_ttl => '30 minutes');
SELECT outcome('longer', uuid_key('31 minutes'));
-- it is given up knowingly only
SELECT idem.alter_scope('longer', ttl => '2 days', min_ttl => '0', force => true);
SELECT ttl, min_ttl FROM idem.scopes WHERE name = 'longer';
SELECT outcome('longer', :'ran');
SELECT idem.alter_scope('longer', ttl => '3 days', reject_stale_keys => false), idem.alter_scope('longer', ttl => '4 days', reject_stale_keys => true);
SELECT ttl, min_ttl FROM idem.scopes WHERE name = 'longer';
-- other keys carry no time
SELECT outcome('remembering', 'order-4711'), outcome('remembering', 'f47ac10b-58cc-4372-a567-0e02b2c3d479');
-- a retry of a live record is always answered, an expired key is new again; a conflict comes first
SELECT uuid_key('2 days') AS old \gset
SELECT idem.alter_scope('remembering', reject_stale_keys => false);
SELECT outcome('remembering', :'old');
SELECT idem.alter_scope('remembering', reject_stale_keys => true);
SELECT outcome('remembering', :'old');
SELECT outcome FROM idem.try_claim('remembering', :'old', '1');
UPDATE idem.record r SET expires = now() - interval '1 second' WHERE strpos(r::text, :'old') > 0;
SELECT outcome('remembering', :'old');
-- a refusal leaves nothing behind, not even a lock
BEGIN;
SELECT outcome, token, attempt FROM idem.try_claim('remembering', :'old');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
-- message, detail and hint
SELECT idem.claim('remembering', '00000000-0000-7000-8000-000000000001');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.claim('remembering', '7ZZZZZZZZZZZZZZZZZZZZZZZZZ');
\echo :LAST_ERROR_SQLSTATE
-- a takeover is not a new record
SELECT idem.create_scope('leasing', ttl => '1 microsecond', reject_stale_keys => false, weak_keys => 'allow');
SELECT outcome, attempt FROM idem.claim('leasing', '4711', lease => '1 microsecond', ttl => '1 hour');
SELECT uuid_key('1 day') AS old \gset
SELECT outcome, attempt FROM idem.claim('leasing', :'old', lease => '1 microsecond', ttl => '1 hour');
SELECT idem.alter_scope('leasing', weak_keys => 'reject', reject_stale_keys => true);
SELECT outcome, attempt FROM idem.claim('leasing', '4711', lease => '1 microsecond', ttl => '1 hour');
SELECT outcome, attempt FROM idem.claim('leasing', :'old', lease => '1 microsecond', ttl => '1 hour');

-- weak keys, by their form
SELECT key, idem_internal.key_weakness(key) FROM unnest(ARRAY['4711', '1767225600', '2026-03-04T05:06:07Z', 'abc', 'aaaaaaaaaa',
  'order-4711', 'f47ac10b-58cc-4372-a567-0e02b2c3d479', '00000000-0000-0000-0000-000000000000', '01J2WF7330Q8XYZABCDEFGHJKM', '',
  'undefined', '[object Object]', 'order-null', '{{order_id}}', 'Payment', 'Idempotency-Key', 'o-1', 'ab1',
  '11111111-1111-4111-8111-111111111111', '11111111-1112-4111-8111-111111111111',
  'order-undefined-4711', 'message-4711', 'abcde-' || repeat('1', 58)]) key;
SELECT idem_internal.key_weakness(NULL);
\echo :LAST_ERROR_SQLSTATE

-- a scope accepts them, warns, or refuses; existing keys are not affected
SELECT idem.create_scope('open'), idem.create_scope('warning', weak_keys => 'warn'), idem.create_scope('strict', weak_keys => 'reject');
SELECT outcome('open', '4711'), outcome('open', '4711');
SELECT outcome('warning', '4711');
SELECT outcome('warning', '4711'), outcome('warning', 'order-4711');
SELECT outcome('strict', '4711');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.claim('strict', '2026-03-04');
\echo :LAST_ERROR_SQLSTATE
SELECT outcome('strict', 'order-4711'), outcome('strict', 'order-4711');
SELECT idem.alter_scope('strict', weak_keys => 'allow');
SELECT outcome('strict', '4711');
SELECT idem.alter_scope('strict', weak_keys => 'reject');
SELECT outcome('strict', '4711');
-- staleness is checked first
SELECT idem.create_scope('both', reject_stale_keys => true, weak_keys => 'reject');
SELECT outcome('both', '00000000-0000-7000-8000-000000000000'), idem_internal.key_weakness('00000000-0000-7000-8000-000000000000');

-- the view lists live records of the scopes that the reader may use
SELECT outcome('open', k) FROM unnest(ARRAY['1', '2', '2026-03-04', 'order-1']) k;
SELECT idem.complete(token) FROM idem.claim('open', '3', tenant => 'acme');
SELECT scope, tenant, weakness, count(*) FROM idem.records WHERE weakness IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;
UPDATE idem.record SET expires = now() - interval '1 second' WHERE key = '2026-03-04';
SELECT idem.drop_scope('strict');
SELECT scope, tenant, weakness, count(*) FROM idem.records WHERE weakness IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;
CREATE ROLE idem_regress_user;
SELECT idem.alter_scope('warning', owner => 'idem_regress_user');
SET ROLE idem_regress_user;
SELECT key, weakness FROM idem.records WHERE weakness IS NOT NULL;
RESET ROLE;
SELECT idem.drop_scope('warning');
DROP ROLE idem_regress_user;
DROP FUNCTION uuid_key, ulid_key, outcome, sqlstate_of;
