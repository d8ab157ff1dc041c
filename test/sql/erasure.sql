-- Erasure: what is removed, what remains, and that no replay runs an erased operation again.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE SCHEMA erasure;
SET search_path = erasure;
SELECT idem.create_scope('e', ttl => '1 day', wait => '0', store_request => 'unfinished', final_sqlstates => '{P0042}');
CREATE TABLE effect (key text);
CREATE FUNCTION operate(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO effect VALUES (request->>'key');
    IF request ? 'fails' THEN RAISE 'card of % was declined', request->>'fails' USING ERRCODE = 'P0042', HINT = 'ask'; END IF;
    RETURN '{"private": 1}';
END $$;
-- one record of each kind, as old as is asked for
CREATE PROCEDURE fill(tenant text DEFAULT '') LANGUAGE plpgsql AS $$
DECLARE t text;
BEGIN
    PERFORM idem.complete(token, '{"private": 1}', 201, '{"H": "1"}', '\x00ff') FROM idem.claim('e', 'answered', tenant => fill.tenant);
    PERFORM idem.execute('e', 'executed', 'erasure.operate(jsonb)', '{"key": "executed"}', fill.tenant);
    PERFORM idem.execute('e', 'declined', 'erasure.operate(jsonb)', '{"key": "declined", "fails": "Ann"}', fill.tenant);
    PERFORM idem.fail(token, '{"message": "Ann"}', 402) FROM idem.claim('e', 'failed', tenant => fill.tenant);
    PERFORM idem.once('e', 'once', tenant => fill.tenant);
    PERFORM idem.once_each('e', '{each}', fill.tenant);
    t := (idem.claim('e', 'leased', '1', fill.tenant, lease => '1 hour')).token;
    PERFORM idem.checkpoint(t, 'charged', '{"private": 1}');
    PERFORM idem.complete(t, '{"private": 1}');
END $$;
-- what every verb says about the keys of a tenant
CREATE FUNCTION told(tenant text) RETURNS TABLE (verb text, key text, says text) LANGUAGE plpgsql AS $$
DECLARE k text; call text; r jsonb;
BEGIN
    FOREACH k IN ARRAY '{answered,executed,declined,failed,once,each,leased}'::text[] LOOP
        FOR verb, call IN VALUES
            ('claim', 'idem.claim(''e'', $1, $2, $3)'),
            ('claim with lease', 'idem.claim(''e'', $1, $2, $3, lease => ''1 hour'')'),
            ('try_claim', 'idem.try_claim(''e'', $1, $2, $3)'),
            ('execute', 'idem.execute(''e'', $1, ''erasure.operate(jsonb)'', $2, $3)'),
            ('once', 'idem.once(''e'', $1, $2, $3)'),
            ('once_each', '(SELECT count(*) FROM idem.once_each(''e'', ARRAY[$1], $3))'),
            ('lookup', 'idem.lookup(''e'', $1, $3)'),
            ('cancel', 'idem.cancel(''e'', $1, $3)')
        LOOP
            key := k;
            BEGIN
                EXECUTE 'SELECT to_jsonb(' || call || ')' INTO r USING k,
                    CASE k WHEN 'executed' THEN '{"key": "executed"}' WHEN 'declined' THEN '{"key": "declined", "fails": "Ann"}' WHEN 'leased' THEN '1' END::jsonb, told.tenant;
                says := CASE WHEN jsonb_typeof(r) = 'object' THEN
                    (jsonb_strip_nulls(r) - '{created_at,expires_at,completed_at,since,claimed,attempt,replayed}'::text[])::text ELSE r::text END;
            EXCEPTION WHEN OTHERS THEN
                says := SQLSTATE || ': ' || SQLERRM;
            END;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END $$;
-- when a leased operation finished is in the column lease_end, or in one of its own
CREATE PROCEDURE age_ends(by interval) LANGUAGE plpgsql AS $$ BEGIN
    EXECUTE format('UPDATE idem.record SET %1$I = %1$I - $1 WHERE %1$I IS NOT NULL', (SELECT attname FROM pg_attribute
        WHERE attrelid = 'idem.record'::regclass AND attname IN ('finished', 'lease_end') ORDER BY attname LIMIT 1)) USING by;
END $$;
CREATE VIEW stored AS SELECT tenant, coalesce(key, to_jsonb(r) ->> 'key_uuid') AS key, state, status, nullif(redacted, false) AS redacted, headers, response, body, error, request, recovery_point, recovery_state
  FROM idem.record r ORDER BY tenant, 2;

-- erased one by one: no verb runs the operation again
CALL fill();
SELECT count(*) FROM effect;
SELECT key, idem.erase('e', key) FROM stored;
SELECT * FROM stored;
SELECT * FROM told('');
SELECT count(*) FROM effect;
SELECT key, state, status, redacted, answer_bytes > 0 AS bytes FROM idem.records ORDER BY key;
-- erasing twice is erasing once; nothing of the key is known that was not before
SELECT key, idem.erase('e', key) FROM stored;
SELECT idem.erase('e', 'never seen'), idem.erase('e', 'answered', 'other tenant');
-- another request is still another request
SELECT outcome FROM idem.try_claim('e', 'leased', '2');

-- a request that is kept beside the answer goes, and stays bound; replays lose nothing by it
SELECT idem.alter_scope('e', store_request => 'always');
SELECT idem.complete(token) FROM unnest('{explained,outlived}'::text[]) key, idem.claim('e', key, '{"name": "Ann", "amount": 1}');
SELECT outcome, differs FROM idem.try_claim('e', 'explained', '{"name": "Bob", "amount": 1}');
SELECT idem.erase('e', 'explained'), idem.erase('e', 'explained');
SELECT redacted, request FROM stored WHERE key = 'explained';
SELECT outcome, differs FROM idem.try_claim('e', 'explained', '{"name": "Bob", "amount": 1}');
SELECT outcome, redacted FROM idem.try_claim('e', 'explained', '{"name": "Ann", "amount": 1}');
-- nor is it read when the scope does not keep answers for so long; the purge removes it
SELECT idem.alter_scope('e', answer_ttl => '1 hour');
UPDATE idem.record SET created = created - interval '2 hours' WHERE key = 'outlived';
SELECT outcome, differs FROM idem.try_claim('e', 'outlived', '{"name": "Bob", "amount": 1}');
SELECT outcome, redacted FROM idem.try_claim('e', 'outlived', '{"name": "Ann", "amount": 1}');
SELECT key, redacted FROM idem.records WHERE key = 'outlived';
SELECT idem.purge();
SELECT redacted, request FROM stored WHERE key = 'outlived';
SELECT idem.alter_scope('e', store_request => 'unfinished', answer_ttl => '0');
SELECT idem.forget('e', 'explained'), idem.forget('e', 'outlived');

-- an operation that needs what would be erased; without its data it can still be finished
SELECT token AS t FROM idem.claim('e', 'half way', '{"private": 1}', lease => '1 hour') \gset
SELECT idem.checkpoint(:'t', 'charged', '{"private": 1}');
\set VERBOSITY sqlstate
SELECT idem.erase('e', 'half way');  -- under a running lease
\set VERBOSITY default
SELECT idem.revoke('e', 'half way');
SELECT idem.erase('e', 'half way');
SELECT idem.erase('e', 'half way', force => NULL);
SELECT idem.erase('e', 'half way', force => true);
SELECT * FROM stored WHERE key = 'half way';
SELECT token AS t, attempt, recovery_point, recovery_state FROM idem.claim('e', 'half way', '{"private": 1}', lease => '1 hour') \gset
\echo :attempt :recovery_point :recovery_state
SELECT idem.complete(:'t', '"done"');
SELECT outcome, response, redacted FROM idem.try_claim('e', 'half way', '{"private": 1}');
-- with an open claim of this transaction
BEGIN;
SELECT count(idem.claim('e', 'open'));
SELECT idem.erase('e', 'open');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- in the transaction of the operation, and given up with a savepoint
BEGIN;
SELECT idem.complete(token, '{"private": 1}') FROM idem.claim('e', 'here');
SAVEPOINT s;
SELECT idem.erase('e', 'here');
SELECT outcome, response, redacted FROM idem.claim('e', 'here');
ROLLBACK TO s;
SELECT outcome, response, redacted FROM idem.claim('e', 'here');
COMMIT;
-- nothing of an expired record is kept
SELECT idem.complete(token, '{"private": 1}') FROM idem.claim('e', 'expired', ttl => '1 microsecond');
SELECT idem.erase('e', 'expired');
SELECT count(*) FROM stored WHERE key = 'expired';
-- many keys in one transaction, without a lock for each
SELECT count(idem.complete(token, '1')) FROM generate_series(1, 50) i, idem.claim('e', 'k' || i);
BEGIN;
SELECT count(*) FILTER (WHERE idem.erase('e', 'k' || i)) FROM generate_series(1, 51) i;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
SELECT count(*) FILTER (WHERE idem.forget('e', 'k' || i)) FROM generate_series(1, 51) i;
-- a sqlstate that is none is not kept
SELECT idem.fail(token, '{"message": "no"}') FROM idem.claim('e', 'odd');
UPDATE idem.record SET error = '{"sqlstate": "Ann Smith"}' WHERE key = 'odd';
SELECT idem.erase('e', 'odd');
SELECT error FROM stored WHERE key = 'odd';

-- answer_ttl: readers get no answer at once, and the purge removes it
TRUNCATE idem.record, effect;
CALL fill();
SELECT idem.alter_scope('e', answer_ttl => '1 hour');
SELECT outcome, response, redacted FROM idem.try_claim('e', 'answered');
UPDATE idem.record SET created = created - interval '1 hour';
CALL age_ends('59 minutes');
SELECT * FROM told('') WHERE key IN ('answered', 'leased');
SELECT key, redacted FROM idem.records ORDER BY key;
SELECT idem.purge();  -- the leased operation finished a minute later than it began
SELECT * FROM stored;
CALL age_ends('1 minute');
SELECT * FROM told('');
SELECT key, redacted FROM idem.records ORDER BY key;
SELECT idem.purge(), idem.purge();
SELECT * FROM stored;
SELECT * FROM told('');
SELECT count(*) FROM effect;
SELECT idem.alter_scope('e', answer_ttl => '0');
SELECT outcome, response, redacted FROM idem.try_claim('e', 'answered');  -- gone for good
-- what is removed counts in the limit of the purge, and is only what there is to remove
TRUNCATE idem.record;
SELECT count(idem.complete(token, '{"private": 1}')) FROM generate_series(1, 30) i, idem.claim('e', 'k' || i);
SELECT count(idem.once('e', 'none' || i)) FROM generate_series(1, 30) i;
SELECT count(idem.claim('e', 'open' || i, lease => '1 microsecond')) FROM generate_series(1, 3) i;
SELECT idem.alter_scope('e', answer_ttl => '1 microsecond');
SELECT idem.purge(20);
SELECT count(*) FILTER (WHERE redacted), count(response) FROM idem.record;
SELECT idem.purge(20);
SELECT idem.purge(20);
SELECT count(*) FILTER (WHERE redacted), count(response), count(*) FROM idem.record;
-- in one transaction, its own answers stay
BEGIN;
SELECT idem.complete(token, '{"private": 1}') FROM idem.claim('e', 'own');
SELECT idem.purge();
SELECT response FROM stored WHERE key = 'own';
ROLLBACK;
SELECT idem.alter_scope('e', answer_ttl => '0');

-- a tenant is erased: all or nothing
TRUNCATE idem.record, effect;
CALL fill('a'); CALL fill('b');
SELECT idem.advance('e', 'stream', 7, tenant) FROM unnest('{a,b}'::text[]) tenant;
SELECT token AS t FROM idem.claim('e', 'half way', '{"private": 1}', 'a', lease => '1 hour') \gset
\set VERBOSITY sqlstate
SELECT idem.erase_tenant('e', 'a');
\set VERBOSITY default
SELECT count(*) FROM idem.record WHERE redacted;
SELECT idem.release(:'t');
SELECT idem.erase_tenant('e', 'a');
SELECT count(*) FROM idem.record WHERE redacted;
SELECT idem.erase_tenant('e', 'a', force => true);
SELECT * FROM stored WHERE tenant = 'a';
SELECT tenant, count(*) FILTER (WHERE redacted), count(*) FROM idem.record GROUP BY tenant ORDER BY tenant;
SELECT idem.erase_tenant('e', ''), idem.erase_tenant('e', 'never seen');
SELECT tenant, seq FROM idem.streams ORDER BY tenant;
SELECT idem.erase_tenant('e', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.erase_tenant('e', 'a', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.erase_tenant('unknown', 'a');
\echo :LAST_ERROR_SQLSTATE

-- the tenant in all scopes, for superusers
SELECT idem.create_scope('e2');
SELECT idem.complete((idem.claim('e2', 'k', tenant => 'c')).token, '"private"');
SELECT idem.complete((idem.claim('e', 'k', tenant => 'c')).token, '"private"');
SELECT idem.erase_tenant(NULL, 'c');
SELECT count(*), count(response) FROM idem.record WHERE tenant = 'c';
SELECT idem.erase_tenant(NULL, 'C');
SELECT idem.forget_tenant('e', 'C');
SELECT idem.erase_tenant(NULL, '');
SELECT idem.forget_tenant(NULL, 'c');

-- a tenant is forgotten, with its streams
SELECT token AS t FROM idem.claim('e', 'half way', '{"private": 1}', 'a', lease => '1 hour') \gset
\set VERBOSITY sqlstate
SELECT idem.forget_tenant('e', 'a');
\set VERBOSITY default
SELECT idem.checkpoint(:'t', 'charged');
SELECT idem.release(:'t');
SELECT idem.forget_tenant('e', 'a');
\echo :LAST_ERROR_SQLSTATE
SELECT tenant, count(*) FROM idem.record GROUP BY tenant ORDER BY tenant;
UPDATE idem.record SET expires = now() - interval '1 second' WHERE tenant = 'a' AND key = 'once';
BEGIN;
SELECT idem.forget_tenant('e', 'a', force => true);  -- the expired record is deleted, and does not count
SELECT tenant, count(*) FROM idem.record GROUP BY tenant ORDER BY tenant;
SELECT tenant, seq FROM idem.streams ORDER BY tenant;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;
SELECT idem.forget_tenant('e', 'a', force => true), idem.forget_tenant('e', 'a');
SELECT tenant, count(*) FROM idem.record GROUP BY tenant ORDER BY tenant;
SELECT tenant, seq FROM idem.streams ORDER BY tenant;
SELECT idem.forget_tenant('e', NULL);
\echo :LAST_ERROR_SQLSTATE

-- an answer out of line is removed, too, and its space is free after VACUUM
SELECT format('SELECT count(*) > 0 AS out_of_line FROM %s', reltoastrelid::regclass) AS toast
  FROM pg_class WHERE oid = 'idem.record'::regclass \gset
TRUNCATE idem.record;
SELECT idem.alter_scope('e', answer_ttl => '1 hour');
SELECT count(idem.complete(token, to_jsonb(long)))
  FROM (SELECT string_agg(md5(i::text), '') AS long FROM generate_series(1, 1000) i) s, idem.claim('e', 'long');
:toast;
SELECT idem.erase('e', 'long');
:toast;
SELECT count(idem.complete(token, to_jsonb(long)))
  FROM (SELECT string_agg(md5(i::text), '') AS long FROM generate_series(1, 1000) i) s, idem.claim('e', 'long 2');
UPDATE idem.record SET created = created - interval '1 hour';
:toast;
SELECT idem.purge();
:toast;
SELECT outcome, response, redacted FROM idem.try_claim('e', 'long 2');

SET client_min_messages = warning;
DROP SCHEMA erasure CASCADE;
