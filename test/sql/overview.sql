-- What is stored and counted per scope. What depends on the clock or on chance is masked.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('counted', ttl => '1 hour', max_attempts => 2, weak_keys => 'warn', request_required => true);
SELECT idem.create_scope('empty');

-- A record in each state, in two tenants.
SELECT idem.complete(token, '{"a": 1}', 201) FROM idem.claim('counted', 'completed', '{}');
SELECT idem.fail(token, '{"message": "no"}') FROM idem.claim('counted', 'failed-1', '{}', tenant => 't');
SELECT idem.checkpoint(token, 'charged') FROM idem.claim('counted', 'running-1', '{}', lease => '1 hour');
SELECT claimed FROM idem.claim('counted', 'lapsed-1', '{}', lease => '1 millisecond', tenant => 't');
SELECT claimed FROM idem.claim('counted', 'exhausted', '{}', lease => '1 millisecond');
SELECT idem.release(token) FROM idem.claim('counted', 'released-1', '{}', lease => '1 hour');
SELECT idem.complete(token) FROM idem.claim('counted', '4711', '{}');
SELECT idem.complete(token) FROM idem.claim('counted', 'expired-1', '{}', ttl => '1 millisecond');
SELECT idem.complete(token) FROM idem.claim('counted', 'expired-2', '{}', ttl => '1 millisecond');
SELECT pg_sleep(0.01);
SELECT attempt FROM idem.claim('counted', 'exhausted', '{}', lease => '1 millisecond');
SELECT pg_sleep(0.01);

SELECT tenant, key, state, attempt, status, expires_at > created_at AS expires, lease_end IS NOT NULL AS leased,
       recovery_point, redacted, answer_bytes
  FROM idem.records WHERE scope = 'counted' ORDER BY key;
SELECT tenant, key, attempt, age >= '0' AS aged, state, lapsed, recovery_point, last_error, pid FROM idem.in_flight WHERE scope = 'counted' ORDER BY key;

SELECT scope, live, in_progress, completed, failed, lapsed, exhausted, weak, answer_bytes, expired, coverage
  FROM idem.overview ORDER BY scope;
-- The times in the overview are those of the records.
SELECT (oldest, newest, next_expiry) = (SELECT min(created_at), max(created_at), min(expires_at) FROM idem.records WHERE scope = 'counted') AS live,
       lapsed_since = (SELECT min(lease_end) FROM idem.in_flight WHERE scope = 'counted' AND lapsed) AS lapsed,
       expired_since < now() AS expired
  FROM idem.overview WHERE scope = 'counted';
SELECT in_progress, oldest, newest, next_expiry, lapsed_since, expired_since FROM idem.overview WHERE scope = 'empty';
SELECT ttl, max_attempts, weak_keys FROM idem.overview WHERE scope = 'counted';

-- An attempt beyond the scope's limit, as an administrator grants it.
UPDATE idem.record SET extra_attempts = 1 WHERE key = 'exhausted';
SELECT in_progress, failed, lapsed, exhausted FROM idem.overview WHERE scope = 'counted';
SELECT r.state, l.state AS lookup, f.lapsed FROM idem.records r JOIN idem.in_flight f USING (key), idem.lookup('counted', 'exhausted') l
  WHERE key = 'exhausted';
SELECT attempt FROM idem.claim('counted', 'exhausted', '{}', lease => '1 millisecond');
SELECT pg_sleep(0.01);
SELECT outcome, attempt FROM idem.try_claim('counted', 'exhausted', '{}');
SELECT r.state, l.state AS lookup, f.state AS in_flight, f.lapsed FROM idem.records r LEFT JOIN idem.in_flight f USING (key), idem.lookup('counted', 'exhausted') l
  WHERE key = 'exhausted';
UPDATE idem.record SET extra_attempts = DEFAULT, attempt = 2 WHERE key = 'exhausted';

-- An expired record of a leased claim counts as expired, whatever its state was.
SELECT claimed FROM idem.claim('empty', 'gone-1', lease => '1 millisecond', ttl => '1 millisecond');
SELECT pg_sleep(0.01);
SELECT in_progress, lapsed, expired FROM idem.overview WHERE scope = 'empty';

-- Records in other tables are shown by the same rules. Here, each is in three tables; the states are
-- those of above and, with an answer_ttl, answers of every kind.
SELECT idem.create_scope('aged', answer_ttl => '1 day', max_attempts => 1, response_exclude => '{secret}');
SELECT idem.complete(token, '{"a": 1}') FROM idem.claim('aged', 'response');
SELECT idem.complete(token, headers => '{"a": "b"}') FROM idem.claim('aged', 'headers');
SELECT idem.complete(token, body => 'a') FROM idem.claim('aged', 'f47ac10b-58cc-4372-a567-0e02b2c3d479'::uuid);
SELECT idem.fail(token, '{"message": "no"}', 404) FROM idem.claim('aged', 'failure');
SELECT idem.fail(token, '{"sqlstate": "P0001"}') FROM idem.claim('aged', 'sqlstate');
SELECT idem.once('aged', 'once', tenant => 't');
SELECT token FROM idem.claim('aged', 'released-2', lease => '1 hour') \gset
SELECT idem.checkpoint(:'token', 'charged');
SELECT idem.release(:'token', '1 hour', '{"message": "later"}');
SELECT claimed FROM idem.claim('aged', 'leased-2', lease => '1 hour');
SELECT claimed FROM idem.claim('aged', 'granted-1', lease => '1 microsecond');
UPDATE idem.record SET extra_attempts = 1 WHERE key = 'granted-1';
UPDATE idem.record SET created = now() - interval '2 days', expires = now() + interval '1 day'
 WHERE scope = (SELECT id FROM idem.scope WHERE name = 'aged');
SELECT idem.complete(token, '{"a": 1, "secret": 2}') FROM idem.claim('aged', '4711');

SELECT key, state, lease_end IS NOT NULL AS leased, recovery_point, redacted, answer_bytes, completed_at IS NOT NULL AS finished
  FROM idem.records WHERE scope = 'aged' ORDER BY length(key), key;
SELECT scope, key, attempt, lapsed, recovery_point, state, last_error, count(*) FROM idem.in_flight
 GROUP BY scope, tenant, key, attempt, since, lease_end, lapsed, recovery_point, state, last_error ORDER BY scope, key;
SELECT scope, key, weakness FROM idem.records WHERE weakness IS NOT NULL ORDER BY scope, key;
CREATE FUNCTION pg_temp.is_parallel(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT json) ' || query INTO plan;
    RETURN plan::text ~ 'Gather';
END $$;
BEGIN;
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL min_parallel_table_scan_size = 0;
SELECT pg_temp.is_parallel('SELECT count(*) FROM idem.records'), pg_temp.is_parallel('SELECT weakness FROM idem.records');
SELECT count(*) FROM idem.records;
SELECT scope, key, weakness FROM idem.records WHERE weakness IS NOT NULL ORDER BY scope, key;
COMMIT;

DELETE FROM idem.record WHERE scope = (SELECT id FROM idem.scope WHERE name = 'aged');
SELECT idem.drop_scope('aged');

-- What health() finds in a scope, to a role that may use it; it sees no other scope, and nothing
-- about the server.
CREATE FUNCTION pg_temp.masked(line text) RETURNS text LANGUAGE sql AS $$
    SELECT regexp_replace(regexp_replace(line,
      '\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d(:\d\d)?', 'TIME', 'g'),
      -- A server that preloads idem counts.
      '^(Nothing is counted that could show one|No scope has far more replays or .*)\.$', 'COUNTS')
$$;
CREATE ROLE idem_regress_watched;
SELECT idem.alter_scope('counted', owner => 'idem_regress_watched');
SET ROLE idem_regress_watched;
SELECT scope, live FROM idem.overview;
\pset format unaligned
\pset tuples_only on
SELECT check_name, status, scope, pg_temp.masked(detail), hint FROM idem.health('0');
\pset format aligned
\pset tuples_only off
SELECT check_name, scope FROM idem.health('1 day') WHERE scope = 'counted' ORDER BY 1;
RESET ROLE;

-- A large table is sampled, and the figures are extrapolated. Here, some five records are in a block,
-- and every third has expired.
SELECT idem.create_scope('large');
ALTER TABLE idem.record SET (fillfactor = 10);
SELECT idem.complete(token) FROM idem.claim('large', 'first');
INSERT INTO idem.record
SELECT copy.*
  FROM generate_series(1, 30000) i, idem.record first,
       jsonb_populate_record(first, jsonb_build_object('digest', gen_random_uuid(), 'key', 'order-' || i,
         'expires', now() + CASE i % 3 WHEN 0 THEN '-1 hour' ELSE '1 hour' END::interval)) copy
 WHERE first.key = 'first';
DELETE FROM idem.record WHERE key = 'first';
SELECT completed BETWEEN 17000 AND 23000 AS live, expired BETWEEN 8500 AND 11500 AS expired,
       coverage BETWEEN 0.2 AND 0.8 AS part
  FROM idem.overview WHERE scope = 'large';
-- Unfinished operations count exactly, however few they are.
SELECT idem.alter_scope('large', max_attempts => 1);
SELECT claimed FROM idem.claim('large', 'last-1', lease => '1 millisecond');
SELECT claimed FROM idem.claim('large', 'running-1', lease => '1 hour');
SELECT pg_sleep(0.01);
SELECT in_progress, lapsed, exhausted FROM idem.overview WHERE scope = 'large';
\g
SELECT detail ~ 'has 1 operation with no attempts left' AS found FROM idem.health() WHERE scope = 'large' AND check_name = 'attempts';
-- Unless there are so many that a part must do.
INSERT INTO idem.record
SELECT copy.*
  FROM generate_series(1, 10000) i, idem.record first,
       jsonb_populate_record(first, jsonb_build_object('digest', gen_random_uuid(), 'key', 'order-' || i, 'tenant', 'many')) copy
 WHERE first.key = 'running-1';
SELECT count(DISTINCT in_progress) > 1 AS vary, bool_and(in_progress BETWEEN 7000 AND 13000) AS extrapolated
  FROM (SELECT * FROM idem.overview UNION ALL SELECT * FROM idem.overview UNION ALL SELECT * FROM idem.overview) o
 WHERE scope = 'large';
DELETE FROM idem.record WHERE key ~ '^order-' AND (tenant = 'many' OR key !~ '^order-..?$') OR key ~ '^(last|running)-1$';
ALTER TABLE idem.record RESET (fillfactor);
VACUUM FULL idem.record;
SELECT completed, expired, coverage FROM idem.overview WHERE scope = 'large';
DELETE FROM idem.record WHERE key ~ '^order-';

-- Lifetimes far from the TTL, and keys that occur with different tenants. An expired record does not
-- count, and neither does a key that two tenants may both have: an order number, a derived UUID.
SELECT idem.create_scope('keys', ttl => '10 days');
CREATE PROCEDURE pg_temp.store(key text, tenant text DEFAULT '', ttl interval DEFAULT '10 days') LANGUAGE sql AS $$
    SELECT idem.complete(token) FROM idem.claim('keys', key, tenant => tenant, ttl => ttl)
$$;
CALL pg_temp.store('minute', ttl => '1 minute');
CALL pg_temp.store('day', ttl => '25 hours');
CALL pg_temp.store('year', ttl => '700 days');
CALL pg_temp.store('years', ttl => '1000 days');
SELECT short_lived, long_lived, untenanted, shared, coverage FROM idem.overview WHERE scope = 'keys';
SELECT count(idem.once('keys', key, tenant => tenant)) FROM (VALUES
    ('6ba7b810-9dad-41d1-80b4-00c04fd430c8', 'a'), ('6ba7b810-9dad-41d1-80b4-00c04fd430c8', 'b'), ('6ba7b810-9dad-41d1-80b4-00c04fd430c8', 'c'),
    ('6ba7b811-9dad-71d1-80b4-00c04fd430c8', 'a'), ('6ba7b811-9dad-71d1-80b4-00c04fd430c8', ''),
    ('6ba7b812-9dad-41d1-80b4-00c04fd430c8', 'a'),
    ('6ba7b813-9dad-51d1-80b4-00c04fd430c8', 'a'), ('6ba7b813-9dad-51d1-80b4-00c04fd430c8', 'b'), ('6ba7b813-9dad-51d1-80b4-00c04fd430c8', ''),
    ('order-1', 'a'), ('order-1', 'b'), ('order-1', ''),
    ('6ba7b814-9dad-41d1-80b4-00c04fd430c8', 'a'), ('6ba7b814-9dad-41d1-80b4-00c04fd430c8', 'gone')) AS message (key, tenant);
UPDATE idem.record SET expires = now() - interval '1 second' WHERE tenant = 'gone';
SELECT short_lived, long_lived, untenanted, shared, coverage FROM idem.overview WHERE scope = 'keys';
SELECT idem.drop_scope('keys');

SELECT idem.drop_scope('large');
SELECT idem.drop_scope('empty');
SELECT idem.drop_scope('counted', force => true);
DROP ROLE idem_regress_watched;
