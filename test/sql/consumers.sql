-- Message consumers: once, once_each, advance.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE SCHEMA consumers;
SET search_path = consumers;
SELECT idem.create_scope('messages', wait => '0', ttl => '1 day');
CREATE VIEW seen AS SELECT key, tenant, state, attempt, response, fingerprint IS NOT NULL AS bound,
  expires - created BETWEEN interval '1 day' AND interval '1 day 1 min' AS ttl FROM idem.record ORDER BY tenant, key;

-- once: true the first time, and that commits with the effect
SELECT idem.once('messages', 'm1'), idem.once('messages', 'm1'), idem.once('messages', 'm1', tenant => 'acme');
SELECT idem.once('messages', 'm1');
SELECT * FROM seen;
BEGIN;
SELECT idem.once('messages', 'm2');
ROLLBACK;
SELECT idem.once('messages', 'm2');
-- a savepoint takes it along
BEGIN;
SAVEPOINT s;
SELECT idem.once('messages', 'm3');
ROLLBACK TO s;
SELECT idem.once('messages', 'm3');
COMMIT;
SELECT idem.once('messages', 'm3');
-- the same record as claim's and complete's
SELECT outcome, response FROM idem.claim('messages', 'm1');
SELECT idem.complete((idem.claim('messages', 'm4', '{"n": 1}')).token, '"answer"');
SELECT idem.once('messages', 'm4', '{"n": 1.0}');
SELECT idem.once('messages', 'm4', '{"n": 2}');  -- ID002
SELECT idem.once('messages', 'm4');
SELECT idem.once('messages', 'm5', '{"n": 1}'), idem.once('messages', 'm5', '{"n": 1}');
SELECT bound FROM seen WHERE key = 'm5';
-- what claim raises, once raises
SELECT idem.fail((idem.claim('messages', 'm6')).token, '{"sqlstate": "P0042", "message": "poisoned"}');
SELECT idem.once('messages', 'm6');
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
-- an expired one is new again
UPDATE idem.record SET expires = now() - interval '1 s' WHERE key = 'm1' AND tenant = '';
SELECT idem.once('messages', 'm1'), idem.once('messages', 'm1');
-- the scope's rules
SELECT idem.create_scope('strict', request_required => true, tenant_required => true);
SELECT idem.once('strict', 'm1', '{}');
SELECT idem.once('strict', 'm1', tenant => 'acme');
SELECT idem.once('strict', 'm1', '{}', 'acme');

DROP SCHEMA consumers CASCADE;
