-- The contract of the errors: wrong use gets the documented SQLSTATE, with a message, a detail and
-- a hint, and stores nothing.

-- A test is one transaction and cannot show COMMIT or other sessions. So this scope is committed,
-- and those statements run in psql sessions of their own.
SELECT idem.create_scope('errors');
SELECT idem.edition() = 'extension' AS extension \gset
\set psql 'psql -X -q -A -t -v VERBOSITY=verbose -d '
\set open_at_commit `:psql :'DBNAME' -c "BEGIN" -c "SELECT (idem.claim('errors', 'uncommitted')).claimed" -c "COMMIT" 2>&1`
\set open_at_prepare `:psql :'DBNAME' -c "BEGIN" -c "SELECT (idem.claim('errors', 'unprepared')).claimed" -c "PREPARE TRANSACTION 'open'" 2>&1`
\set alone `:psql :'DBNAME' -c "SELECT claimed FROM idem.claim('errors', 'alone')" 2>&1`
\set alone_in_list `:psql :'DBNAME' -c "SELECT (idem.claim('errors', 'alone')).claimed" 2>&1`
\set forgotten `:psql :'DBNAME' -c "DO 'BEGIN PERFORM idem.claim(''errors'', ''forgotten''); END'" 2>&1`
\set rolled_back `:psql :'DBNAME' -c "BEGIN" -c "SELECT token FROM idem.claim('errors', 'rolled back', lease => '1 minute')" -c "ROLLBACK"`
\set taken_over `:psql :'DBNAME' -c "SELECT token FROM idem.claim('errors', 'taken over', lease => '1 microsecond')"`
\set taken_over_by `:psql :'DBNAME' -c "SELECT token FROM idem.claim('errors', 'taken over', lease => '1 hour')"`
\set given_up `:psql :'DBNAME' -c "SELECT token FROM idem.claim('errors', 'given up', lease => '1 hour')"`
\set ignored `:psql :'DBNAME' -c "SELECT idem.release('":'given_up'"')"`

BEGIN;
SELECT no_plan();

SELECT matches(:'open_at_commit'::text, '^t\n(psql:)?.*ERROR:  ID006: .+\nDETAIL:  .+\nHINT:  .+',
               'ID006: an open claim at COMMIT, with detail and hint');
SELECT matches(:'open_at_prepare'::text, '^t\n(psql:)?.*ERROR:  ID006: .+\nDETAIL:  .+\nHINT:  .+',
               'ID006: an open claim at PREPARE TRANSACTION, with detail and hint');
SELECT is((idem.lookup('errors', key)).state, 'absent', key || ' was not stored')
  FROM (VALUES ('uncommitted'), ('unprepared'), ('alone'), ('forgotten')) AS refused (key);
SELECT matches(said, 'ID006.*HINT: .*idem.complete\(\), idem.fail\(\) or idem.release\(\)', 'ID006: the hint is to finish the claim')
  FROM (VALUES (:'open_at_commit'), (:'open_at_prepare'), (:'alone'), (:'alone_in_list'), (:'forgotten')) AS open (said);
SELECT matches(said, 'HINT: [^\n]*BEGIN', 'ID006: and outside a transaction block, to begin one')
  FROM (VALUES (:'alone'), (:'alone_in_list'), (:'forgotten')) AS lone (said);
SELECT doesnt_match(said, 'HINT: [^\n]*BEGIN', 'ID006: within one, it does not mention BEGIN')
  FROM (VALUES (:'open_at_commit'), (:'open_at_prepare')) AS open (said);
SELECT is_empty('SELECT gid FROM pg_prepared_xacts WHERE database = current_database()', 'nothing was prepared');

SELECT ok((idem.claim('errors', 'held')).claimed, 'this session holds a claim');
\set held `:psql :'DBNAME' -c "SELECT idem.claim('errors', 'held', wait => '0')" 2>&1`
SELECT matches(:'held'::text, '^(psql:)?.*ERROR:  ID001: .+\nDETAIL:  .+\nHINT:  .+',
               'ID001: a claim in flight elsewhere, with detail and hint');
SELECT matches(:'held'::text, 'DETAIL:  Process ' || pg_backend_pid() || ' ', 'ID001: the detail names the process that holds the key');

SELECT matches(:'held'::text, 'SCHEMA NAME:  idem\n.*DATATYPE NAME:  [0-9]+\nCONSTRAINT NAME:  in_progress',
               'ID001: for programs, the milliseconds until a retry, and the name of the error');
SELECT is(substring(:'held'::text FROM 'COLUMN NAME:  (\S+)\n')::timestamptz, now(),
          'ID001: since when the key has been held');
SELECT matches(:'held'::text, 'COLUMN NAME:  [-0-9]{10}T[0-9:.]+\+00:00\n', 'ID001: in UTC, as ISO 8601 writes it');

SELECT idem.create_scope('explained', store_request => 'always');
SELECT idem.complete((idem.claim('explained', 'done', '{"amount": 1, "to": 42}')).token);
DO $$
DECLARE said text; names text; error text; state text;
BEGIN
    PERFORM idem.claim('explained', 'done', '{"amount": 43, "Note": 44}');
EXCEPTION WHEN SQLSTATE 'ID002' THEN
    GET STACKED DIAGNOSTICS said = PG_EXCEPTION_DETAIL, names = COLUMN_NAME, error = CONSTRAINT_NAME;
    CREATE TEMP TABLE conflict AS SELECT said, names::text[] AS names, error;
END $$;
SELECT matches(said, '"amount" has another value, "Note" is new, and "to" is missing', 'ID002: the detail names the members that differ')
  FROM conflict;
SELECT doesnt_match(said, '4[234]', 'ID002: without values') FROM conflict;
SELECT is(names, '{amount,Note,to}', 'ID002: for programs, the names') FROM conflict;
SELECT is(error, 'key_conflict', 'ID002: and the name of the error') FROM conflict;
SELECT is(differs, (SELECT names FROM conflict), 'try_claim returns the same names')
  FROM idem.try_claim('explained', 'done', '{"amount": 43, "Note": 44}');

-- The scopes and keys of the calls below ---------------------------------------------------------

CREATE ROLE test_nobody;
CREATE ROLE test_administrator;
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope,
    idem.revoke, idem.forget, idem.forget_tenant, idem.erase, idem.erase_tenant, idem.reset_stream TO test_administrator;
SELECT idem.create_scope('tenants', tenant_required => true), idem.create_scope('idle');
SELECT idem.create_scope('requests', request_required => true);
\if :extension
GRANT EXECUTE ON FUNCTION idem.export_identity, idem.import_identity TO test_administrator;
CREATE SCHEMA test_elsewhere;
SELECT idem.create_record_table('test_elsewhere.record'), idem.create_record_table('test_elsewhere.number', 'tenant_id', 'bigint'),
       idem.create_record_table('test_elsewhere.keyless'), idem.create_record_table('test_elsewhere.open'), idem.create_record_table('test_elsewhere.given');
ALTER TABLE test_elsewhere.keyless DROP CONSTRAINT keyless_pkey;
GRANT UPDATE (response) ON test_elsewhere.open TO test_nobody;
ALTER TABLE test_elsewhere.given OWNER TO test_nobody;
SELECT idem.create_scope('elsewhere', records => true), idem.use_records('test_elsewhere.record'), idem.once('elsewhere', 'done'), idem.use_records('idem.record');
\endif
SELECT idem.complete((idem.claim('errors', 'done', '{"amount": 1}')).token, '{"answer": 42}');
SELECT idem.fail((idem.claim('errors', key)).token, error)
  FROM (VALUES ('failed', '{"message": "card declined"}'::jsonb),
               ('own', '{"message": "card declined", "sqlstate": "P0042", "detail": "Stolen.", "hint": "Call 110."}')
       ) AS failure (key, error);
-- Failures that no function of idem stores.
SELECT idem.fail((idem.claim('errors', key)).token, '{"message": "to be replaced"}')
  FROM unnest('{bare,odd,"lower case",success,warning,ours,number}'::text[]) AS key;
UPDATE idem.record AS r SET error = old.error
  FROM (VALUES ('bare', '{}'::jsonb),
               ('odd', '{"message": "odd", "sqlstate": "banana"}'),
               ('lower case', '{"message": "odd", "sqlstate": "p0001"}'),
               ('success', '{"message": "odd", "sqlstate": "00000"}'),
               ('warning', '{"message": "odd", "sqlstate": "01000"}'),
               ('ours', '{"message": "odd", "sqlstate": "ID002"}'),
               ('number', '{"message": 7, "sqlstate": 12345, "detail": [], "hint": null}')
       ) AS old (key, error)
 WHERE r.key = old.key;
-- A record with the digest of another key: an accident with a probability of 2^-128.
SELECT idem.complete((idem.claim('errors', 'collided')).token);
UPDATE idem.record SET key = 'another key' WHERE key = 'collided';
-- Text that no input function accepts.
CREATE CAST (bytea AS text) WITHOUT FUNCTION;

-- Calls, with the role that makes them. "explained" means idem's own error, which has a detail and
-- a hint; the other errors are the server's own.
CREATE TEMP TABLE wrong (id int GENERATED ALWAYS AS IDENTITY, state text, what text, call text,
                         explained boolean DEFAULT true, role name DEFAULT current_user);
INSERT INTO wrong (state, what, call) VALUES
    ('ID001', 'claimed by this very transaction', $$SELECT idem.claim('errors', 'held')$$),
    ('ID001', 'one call per column', $$SELECT (idem.claim('errors', 'new')).*$$),
    ('ID002', 'another request', $$SELECT idem.claim('errors', 'done', '{"amount": 2}')$$),
    ('ID002', 'no request against a bound one', $$SELECT idem.claim('errors', 'done')$$),
    ('ID002', 'a request against none: conflict comes before the stored failure', $$SELECT idem.claim('errors', 'failed', '{}')$$),
    ('ID003', 'stored failure without an SQLSTATE', $$SELECT idem.claim('errors', 'failed')$$),
    ('ID003', 'stored failure without anything', $$SELECT idem.claim('errors', 'bare')$$),
    ('ID003', 'stored failure with a malformed SQLSTATE', $$SELECT idem.claim('errors', 'odd')$$),
    ('ID003', 'stored failure with a SQLSTATE in lower case', $$SELECT idem.claim('errors', 'lower case')$$),
    ('ID003', 'stored failure of class 00', $$SELECT idem.claim('errors', 'success')$$),
    ('ID003', 'stored failure of class 01', $$SELECT idem.claim('errors', 'warning')$$),
    ('ID003', 'stored failure of class ID', $$SELECT idem.claim('errors', 'ours')$$),
    ('ID003', 'stored failure of the wrong types', $$SELECT idem.claim('errors', 'number')$$),
    ('P0042', 'stored failure with a SQLSTATE of its own', $$SELECT idem.claim('errors', 'own')$$),
    ('ID005', 'no token', $$SELECT idem.complete(NULL)$$),
    ('ID005', 'empty token', $$SELECT idem.complete('')$$),
    ('ID005', 'garbage for a token', $$SELECT idem.complete('banana')$$),
    ('ID005', 'a token that was never issued', $$SELECT idem.complete('AfDx8vP09fb3-Pn6-_z9_v8BAgME_ty6mHZUMhAAAAAA')$$),
    ('ID005', 'release of no token', $$SELECT idem.release(NULL)$$),
    ('ID005', 'fail of no token', $$SELECT idem.fail(NULL, '{"message": "no"}')$$),
    ('ID005', 'complete twice', $$SELECT idem.complete(token), idem.complete(token) FROM idem.claim('errors', 'new')$$),
    ('ID005', 'complete, then fail', $$SELECT idem.complete(token), idem.fail(token, '{"message": "no"}') FROM idem.claim('errors', 'new')$$),
    ('ID005', 'release, then complete', $$SELECT idem.release(token), idem.complete(token) FROM idem.claim('errors', 'new')$$),
    ('ID005', 'a token from before a release and a new claim', $$DO $do$ DECLARE stale text := (idem.claim('errors', 'new')).token; BEGIN
                  PERFORM idem.release(stale);
                  PERFORM idem.claim('errors', 'new');
                  PERFORM idem.complete(stale);
              END $do$ $$),
    ('ID005', 'a token from a savepoint that was rolled back to', $$DO $do$ DECLARE stale text; BEGIN
                  BEGIN
                      stale := (idem.claim('errors', 'new')).token;
                      RAISE division_by_zero;
                  EXCEPTION WHEN division_by_zero THEN NULL;
                  END;
                  PERFORM idem.complete(stale);
              END $do$ $$),
    ('ID007', 'no key', $$SELECT idem.claim('errors', NULL)$$),
    ('ID007', 'empty key', $$SELECT idem.claim('errors', '')$$),
    ('ID007', 'a key of 256 bytes', $$SELECT idem.claim('errors', repeat('k', 256))$$),
    ('ID007', 'a key of 256 bytes in 128 characters', $$SELECT idem.claim('errors', repeat('é', 128))$$),
    ('ID013', 'a tenant of 256 bytes', $$SELECT idem.claim('errors', 'new', tenant => repeat('t', 256))$$),
    ('ID013', 'the setting idem.tenant of 256 bytes', $$SELECT set_config('idem.tenant', repeat('t', 256), true); SELECT idem.claim('errors', 'new')$$),
    ('ID013', 'no tenant where the scope wants one', $$SELECT idem.claim('tenants', 'new')$$),
    ('ID013', 'empty tenant where the scope wants one', $$SELECT set_config('idem.tenant', 'acme', true); SELECT idem.claim('tenants', 'new', tenant => '')$$),
    ('ID007', 'try_claim without a key', $$SELECT idem.try_claim('errors', NULL)$$),
    ('ID007', 'lookup without a key', $$SELECT idem.lookup('errors', NULL)$$),
    ('ID013', 'lookup without a tenant', $$SELECT idem.lookup('tenants', 'new')$$),
    ('ID007', 'the key''s shape comes before the scope', $$SELECT idem.claim('unknown', '')$$),
    ('ID008', 'unknown scope', $$SELECT idem.claim('unknown', 'new')$$),
    ('ID008', 'no scope', $$SELECT idem.claim(NULL, 'new')$$),
    ('ID008', 'empty scope', $$SELECT idem.claim('', 'new')$$),
    ('ID008', 'scope names are not folded', $$SELECT idem.claim('Errors', 'new')$$),
    ('ID008', 'nor cut at 63 bytes', $$SELECT idem.create_scope(repeat('s', 63)); SELECT idem.claim(repeat('s', 64), 'new')$$),
    ('ID008', 'try_claim of an unknown scope', $$SELECT idem.try_claim('unknown', 'new')$$),
    ('ID008', 'lookup in an unknown scope', $$SELECT idem.lookup('unknown', 'new')$$),
    ('54000', 'too many claims', $$SET LOCAL idem.max_open_claims = 1; SELECT idem.claim('errors', 'new')$$),
    ('22023', 'ttl 0', $$SELECT idem.claim('errors', 'new', ttl => '0')$$),
    ('22023', 'negative ttl', $$SELECT idem.claim('errors', 'new', ttl => '-1 s')$$),
    ('22023', 'ttl beyond 365,000 days', $$SELECT idem.claim('errors', 'new', ttl => '1014 years')$$),
    ('22023', 'negative wait', $$SELECT idem.claim('errors', 'new', wait => '-1 s')$$),
    ('22023', 'negative wait of lookup', $$SELECT idem.lookup('errors', 'new', wait => '-1 s')$$),
    ('22023', 'the arguments'' shape comes before the scope', $$SELECT idem.claim('unknown', 'new', ttl => '0')$$),
    ('22023', 'a lease of no time', $$SELECT idem.claim('errors', 'new', lease => '0')$$),
    ('22023', 'renewing an atomic claim', $$SELECT idem.renew(token) FROM idem.claim('errors', 'new')$$),
    ('22023', 'a checkpoint of an atomic claim', $$SELECT idem.checkpoint(token, 'charged') FROM idem.claim('errors', 'new')$$),
    ('22023', 'renewing for no time', $$SELECT idem.renew(token, '0') FROM idem.claim('errors', 'new', lease => '1 min')$$),
    ('22004', 'a checkpoint without a name', $$SELECT idem.checkpoint(token, NULL) FROM idem.claim('errors', 'new', lease => '1 min')$$),
    ('22023', 'a checkpoint with an empty name', $$SELECT idem.checkpoint(token, '') FROM idem.claim('errors', 'new', lease => '1 min')$$),
    ('22023', 'a pause after an atomic claim', $$SELECT idem.release(token, '1 s') FROM idem.claim('errors', 'new')$$),
    ('22023', 'an error of an atomic claim', $$SELECT idem.release(token, error => '{"message": "no"}') FROM idem.claim('errors', 'new')$$),
    ('22023', 'a negative pause', $$SELECT idem.release(token, '-1 s') FROM idem.claim('errors', 'new', lease => '1 min')$$),
    ('22023', 'a last error that is none', $$SELECT idem.release(token, error => '{"sqlstate": "00000"}') FROM idem.claim('errors', 'new', lease => '1 min')$$),
    ('ID008', 'taking from an unknown scope', $$SELECT idem.take('unknown')$$),
    ('ID008', 'taking from no scope', $$SELECT idem.take(NULL)$$),
    ('ID013', 'taking from a tenant of 256 bytes', $$SELECT idem.take('errors', tenant => repeat('t', 256))$$),
    ('22023', 'taking for no time', $$SELECT idem.take('errors', lease => '0')$$),
    ('22023', 'taking with a negative wait', $$SELECT idem.take('errors', wait => '-1 s')$$),
    ('ID005', 'renewing nothing', $$SELECT idem.renew(NULL)$$),
    ('ID005', 'a checkpoint of garbage', $$SELECT idem.checkpoint('garbage', 'charged')$$),
    ('ID004', 'a made-up leased token', $$SELECT idem.renew('Ag' || repeat('A', 42))$$),
    ('ID005', 'completing a leased claim twice', $$SELECT idem.complete(token), idem.complete(token) FROM idem.claim('errors', 'new', lease => '1 min')$$),
    ('22004', 'execute without an operation', $$SELECT idem.execute('errors', 'new', NULL)$$),
    ('22023', 'execute of a function of another shape', $$SELECT idem.execute('errors', 'new', 'pg_catalog.lower(text)')$$),
    ('22023', 'execute of a set', $$SELECT idem.execute('errors', 'new', 'pg_catalog.jsonb_array_elements(jsonb)')$$),
    ('22023', 'execute of nothing', $$SELECT idem.execute('errors', 'new', 0)$$),
    ('ID001', 'once of a claim in flight', $$SELECT idem.once('errors', 'held')$$),
    ('ID002', 'once with another request', $$SELECT idem.once('errors', 'done')$$),
    ('P0042', 'once of a stored failure', $$SELECT idem.once('errors', 'own')$$),
    ('ID007', 'once without a key', $$SELECT idem.once('errors', NULL)$$),
    ('ID013', 'once without a tenant where the scope wants one', $$SELECT idem.once('tenants', 'new')$$),
    ('ID008', 'once in an unknown scope', $$SELECT idem.once('unknown', 'new')$$),
    ('22004', 'once without the request that the scope wants', $$SELECT idem.once('requests', 'new')$$),
    ('ID001', 'once_each of a key that is claimed here', $$SELECT idem.claim('errors', 'new'); SELECT idem.once_each('errors', '{other,new}')$$),
    ('ID007', 'once_each with a NULL element', $$SELECT idem.once_each('errors', '{new,NULL}')$$),
    ('ID007', 'once_each with an empty key', $$SELECT idem.once_each('errors', '{new,""}')$$),
    ('ID007', 'once_each with a key of 256 bytes', $$SELECT idem.once_each('errors', ARRAY['new', repeat('k', 256)])$$),
    ('ID013', 'once_each without a tenant where the scope wants one', $$SELECT idem.once_each('tenants', '{new}')$$),
    ('ID008', 'once_each in an unknown scope', $$SELECT idem.once_each('unknown', '{}')$$),
    ('22004', 'once_each without keys', $$SELECT idem.once_each('errors', NULL)$$),
    ('22023', 'once_each with a matrix', $$SELECT idem.once_each('errors', '{{new}}')$$),
    ('22023', 'once_each where the scope wants requests', $$SELECT idem.once_each('requests', '{new}')$$),
    ('54000', 'once_each of a digest that is taken by another key', $$SELECT idem.once_each('errors', '{new,collided}')$$),
    ('ID007', 'advance without a source', $$SELECT idem.advance('errors', NULL, 1)$$),
    ('ID007', 'advance of an empty source', $$SELECT idem.advance('errors', '', 1)$$),
    ('ID007', 'advance of a source of 256 bytes', $$SELECT idem.advance('errors', repeat('s', 256), 1)$$),
    ('ID013', 'advance without a tenant where the scope wants one', $$SELECT idem.advance('tenants', 'new', 1)$$),
    ('ID008', 'advance in an unknown scope', $$SELECT idem.advance('unknown', 'new', 1)$$),
    ('54000', 'too many sources', $$SET LOCAL idem.max_open_claims = 1; SELECT idem.advance('errors', 'new', 1)$$),
    ('ID012', 'a gap', $$SELECT idem.advance('errors', 'new', 1); SELECT idem.advance('errors', 'new', 3, contiguous => true)$$),
    ('22004', 'advance to nowhere', $$SELECT idem.advance('errors', 'new', NULL)$$),
    ('22004', 'advance, contiguous or not', $$SELECT idem.advance('errors', 'new', 1, contiguous => NULL)$$),
    ('ID014', 'no attempts left', $$SELECT idem.alter_scope('idle', max_attempts => 1); SELECT idem.release(token) FROM idem.claim('idle', 'new', lease => '1 min');
                  SELECT idem.claim('idle', 'new')$$),
    ('ID014', 'a message without attempts left', $$SELECT idem.alter_scope('idle', max_attempts => 1); SELECT idem.release(token) FROM idem.claim('idle', 'new', lease => '1 min');
                  SELECT idem.once('idle', 'new')$$),
    ('22004', 'no request where the scope wants one', $$SELECT idem.claim('requests', 'new')$$),
    ('22004', 'fail without an error', $$SELECT idem.fail((idem.claim('errors', 'new')).token, NULL)$$),
    ('22023', 'fail with an array', $$SELECT idem.fail((idem.claim('errors', 'new')).token, '[]')$$),
    ('22023', 'fail with a string', $$SELECT idem.fail((idem.claim('errors', 'new')).token, '"no"')$$),
    ('22023', 'fail without a message or sqlstate', $$SELECT idem.fail((idem.claim('errors', 'new')).token, '{}')$$),
    ('22023', 'fail with another member', $$SELECT idem.fail((idem.claim('errors', 'new')).token, '{"message": "no", "code": 5}')$$),
    ('22023', 'fail with a number', $$SELECT idem.fail((idem.claim('errors', 'new')).token, '{"message": 17}')$$),
    ('22023', 'fail with a malformed sqlstate', $$SELECT idem.fail((idem.claim('errors', 'new')).token, '{"sqlstate": "abc"}')$$),
    ('22023', 'fail with a sqlstate of no error', $$SELECT idem.fail((idem.claim('errors', 'new')).token, '{"sqlstate": "02000"}')$$),
    ('22023', 'fail with a sqlstate of idem', $$SELECT idem.fail((idem.claim('errors', 'new')).token, '{"sqlstate": "ID001"}')$$),
    ('22023', 'fail with a transient sqlstate', $$SELECT idem.fail((idem.claim('errors', 'new')).token, '{"sqlstate": "40001"}')$$),
    ('54000', 'a response that is too large', $$SELECT idem.alter_scope('idle', max_answer_size => 1024); SELECT idem.complete((idem.claim('idle', 'new')).token, to_jsonb(repeat('x', 1025)))$$),
    ('54000', 'headers and body that are too large together', $$SELECT idem.alter_scope('idle', max_answer_size => 1024);
                  SELECT idem.complete((idem.claim('idle', 'new')).token, headers => jsonb_build_object('x', repeat('x', 600)), body => decode(repeat('00', 600), 'hex'))$$),
    ('54000', 'an error that is too large', $$SELECT idem.alter_scope('idle', max_answer_size => 1024); SELECT idem.fail((idem.claim('idle', 'new')).token, jsonb_build_object('message', repeat('x', 1025)))$$),
    ('54000', 'a response of a leased claim that is too large', $$SELECT idem.alter_scope('idle', max_answer_size => 1024);
                  SELECT idem.complete(token, to_jsonb(repeat('x', 1025))) FROM idem.claim('idle', 'new', lease => '1 min')$$),
    ('54000', 'a recovery state that is too large', $$SELECT idem.alter_scope('idle', max_answer_size => 1024);
                  SELECT idem.checkpoint(token, 'charged', to_jsonb(repeat('x', 1025))) FROM idem.claim('idle', 'new', lease => '1 min')$$),
    ('54000', 'a last error that is too large', $$SELECT idem.alter_scope('idle', max_answer_size => 1024);
                  SELECT idem.release(token, error => jsonb_build_object('message', repeat('x', 1025))) FROM idem.claim('idle', 'new', lease => '1 min')$$),
    ('54000', 'an answer of execute that is too large', $$CREATE FUNCTION pg_temp.much(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(repeat($x$x$x$, 1025))';
                  SELECT idem.alter_scope('idle', max_answer_size => 1024); SELECT idem.execute('idle', 'new', 'pg_temp.much(jsonb)')$$),
    ('54000', 'a digest that is taken by another key', $$SELECT idem.claim('errors', 'collided')$$),
    ('54000', 'lookup of such a digest', $$SELECT idem.lookup('errors', 'collided')$$),
    ('42710', 'a scope twice', $$SELECT idem.create_scope('errors')$$),
    ('42710', 'a scope that exists with other settings', $$SELECT idem.create_scope('errors', ttl => '1 day 1 s', if_not_exists => true)$$),
    ('22004', 'a scope with store_request NULL', $$SELECT idem.create_scope('new', store_request => NULL)$$),
    ('22004', 'a scope with if_not_exists NULL', $$SELECT idem.create_scope('new', if_not_exists => NULL)$$),
    ('22023', 'a scope with a negative answer_ttl', $$SELECT idem.create_scope('new', answer_ttl => '-1 s')$$),
    ('22023', 'a scope with min_ttl above ttl', $$SELECT idem.create_scope('new', min_ttl => '25 h')$$),
    ('22004', 'a scope with header_exclude NULL', $$SELECT idem.create_scope('new', header_exclude => NULL)$$),
    ('22023', 'a scope with a header that is none', $$SELECT idem.create_scope('new', header_exclude => '{"set cookie"}')$$),
    ('22023', 'a scope with a header without a name', $$SELECT idem.alter_scope('idle', header_exclude => '{""}')$$),
    ('22004', 'a scope with tenant_from NULL', $$SELECT idem.create_scope('new', tenant_from => NULL)$$),
    ('22023', 'a scope with an unknown tenant_from', $$SELECT idem.create_scope('new', tenant_from => 'session')$$),
    ('22004', 'a scope with max_answer_size NULL', $$SELECT idem.create_scope('new', max_answer_size => NULL)$$),
    ('22023', 'a scope with max_answer_size 1023', $$SELECT idem.create_scope('new', max_answer_size => 1023)$$),
    ('22023', 'a scope altered to max_answer_size of more than 512 MB', $$SELECT idem.alter_scope('idle', max_answer_size => 536870913)$$),
    ('22023', 'a scope altered to answer_ttl above ttl', $$SELECT idem.alter_scope('idle', answer_ttl => '25 h')$$),
    ('22023', 'a ttl below min_ttl', $$SELECT idem.alter_scope('idle', min_ttl => '1 h'); SELECT idem.claim('idle', 'new', ttl => '1 s')$$),
    ('54000', 'a stored request that is too large', $$SELECT idem.alter_scope('idle', store_request => 'unfinished', max_answer_size => 1024);
                  SELECT idem.claim('idle', 'new', to_jsonb(repeat('x', 1025)), lease => '1 min')$$),
    ('ID008', 'the statement of an unknown scope', $$SELECT idem.scope_ddl('unknown')$$),
    ('22004', 'a scope without a name', $$SELECT idem.create_scope(NULL)$$),
    ('22023', 'a scope with an empty name', $$SELECT idem.create_scope('')$$),
    ('22023', 'a scope with a name of 64 bytes', $$SELECT idem.create_scope(repeat('s', 64))$$),
    ('22004', 'a scope without a ttl', $$SELECT idem.create_scope('new', ttl => NULL)$$),
    ('22023', 'a scope with ttl 0', $$SELECT idem.create_scope('new', ttl => '0')$$),
    ('22004', 'a scope without a wait', $$SELECT idem.create_scope('new', wait => NULL)$$),
    ('22023', 'a scope with a negative wait', $$SELECT idem.create_scope('new', wait => '-1 s')$$),
    ('22004', 'a scope with request_required NULL', $$SELECT idem.create_scope('new', request_required => NULL)$$),
    ('22004', 'a scope with tenant_required NULL', $$SELECT idem.create_scope('new', tenant_required => NULL)$$),
    ('22004', 'a scope with request_exclude NULL', $$SELECT idem.create_scope('new', request_exclude => NULL)$$),
    ('22023', 'a scope with an empty path', $$SELECT idem.create_scope('new', request_exclude => '{a,""}')$$),
    ('22023', 'a scope with a NULL path', $$SELECT idem.create_scope('new', request_exclude => '{a,NULL}')$$),
    ('22023', 'a scope with a path of 256 bytes', $$SELECT idem.create_scope('new', request_exclude => ARRAY[repeat('p', 256)])$$),
    ('22023', 'a scope with a matrix of paths', $$SELECT idem.create_scope('new', request_exclude => '{{a},{b}}')$$),
    ('22023', 'a scope with a path of another notation', $$SELECT idem.create_scope('new', response_exclude => '{$.card.number}')$$),
    ('22004', 'a scope with final_sqlstates NULL', $$SELECT idem.create_scope('new', final_sqlstates => NULL)$$),
    ('22023', 'a scope with a malformed SQLSTATE', $$SELECT idem.create_scope('new', final_sqlstates => '{502}')$$),
    ('22023', 'a scope with a final SQLSTATE of class ID', $$SELECT idem.create_scope('new', final_sqlstates => '{ID003}')$$),
    ('22023', 'a scope with a final class that is transient', $$SELECT idem.create_scope('new', final_sqlstates => '{40}')$$),
    ('22023', 'a scope with a NULL SQLSTATE', $$SELECT idem.create_scope('new', final_sqlstates => '{NULL}')$$),
    ('22023', 'a scope with a matrix of SQLSTATEs', $$SELECT idem.create_scope('new', final_sqlstates => '{{P0},{P1}}')$$),
    ('22004', 'a key from nothing', $$SELECT idem.derive_key(VARIADIC NULL)$$),
    ('22004', 'a key from a null part', $$SELECT idem.derive_key('a', NULL)$$),
    ('22023', 'a key from no parts', $$SELECT idem.derive_key(VARIADIC '{}')$$),
    ('22023', 'a key from a matrix', $$SELECT idem.derive_key(VARIADIC '{{a},{b}}')$$),
    ('ID005', 'a child key of no token', $$SELECT idem.child_key(NULL, 'charge')$$),
    ('ID005', 'a child key of garbage', $$SELECT idem.child_key('banana', 'charge')$$),
    ('22004', 'a child key without a step', $$SELECT idem.child_key(token, NULL) FROM idem.claim('errors', 'new')$$),
    ('22023', 'a child key with an empty step', $$SELECT idem.child_key(token, '') FROM idem.claim('errors', 'new')$$),
    ('22023', 'a child key with a step of 256 bytes', $$SELECT idem.child_key(token, repeat('s', 256)) FROM idem.claim('errors', 'new')$$),
    ('ID011', 'a write to a guarded table', $$CREATE TABLE guarded (); CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION idem.require_claim('tenants');
                  INSERT INTO guarded DEFAULT VALUES$$),
    ('ID008', 'a guard that names an unknown scope', $$CREATE TABLE guarded (); CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION idem.require_claim('unknown');
                  INSERT INTO guarded DEFAULT VALUES$$),
    ('22023', 'a guard that names no scope', $$CREATE TABLE guarded (); CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION idem.require_claim();
                  INSERT INTO guarded DEFAULT VALUES$$),
    ('39P01', 'a guard called by hand', $$SELECT idem.require_claim()$$),
    ('22004', 'the HTTP status of nothing', $$SELECT idem.http_status(NULL)$$),
    ('22023', 'the HTTP status of no SQLSTATE', $$SELECT idem.http_status('id001')$$),
    ('22004', 'a problem of nothing', $$SELECT idem.problem(NULL)$$),
    ('22023', 'a problem of no SQLSTATE', $$SELECT idem.problem('409')$$),
    ('ID007', 'a header without a closing quote', $$SELECT idem.parse_key('"a')$$),
    ('ID007', 'a header with two keys', $$SELECT idem.parse_key('a, b')$$),
    ('ID007', 'a header with an empty key', $$SELECT idem.parse_key('""')$$),
    ('ID007', 'a header with a key of 256 bytes', $$SELECT idem.parse_key(repeat('k', 256))$$),
    ('22004', 'the HTTP status of no claim', $$SELECT idem.http_status(NULL::idem.claim_result)$$),
    ('22004', 'the headers of no claim', $$SELECT idem.http_headers(NULL)$$),
    ('22004', 'the problem of no claim', $$SELECT idem.problem(NULL::idem.claim_result)$$),
    ('22023', 'the headers of what no claim returns',
     $$SELECT idem.http_headers(r) FROM jsonb_populate_record(NULL::idem.claim_result, '{"outcome": "done"}') r$$),
    ('22023', 'an answer with headers that are no object', $$SELECT idem.complete(token, headers => '[]') FROM idem.claim('errors', 'new')$$),
    ('22023', 'an answer with a header of two lines', $$SELECT idem.complete(token, headers => '{"a": "b\r\nc: d"}') FROM idem.claim('errors', 'new')$$),
    ('22023', 'a failure with a header without a name', $$SELECT idem.fail(token, '{"message": "m"}', headers => '{"": "a"}') FROM idem.claim('errors', 'new')$$),
    ('22023', 'headers that are no object',
     $$SELECT idem.http_headers(r) FROM jsonb_populate_record(NULL::idem.claim_result, '{"outcome": "completed", "headers": 1}') r$$),
    ('22004', 'a record table without a name', $$SELECT idem.create_record_table(NULL)$$),
    ('22023', 'a record table with a column without a type', $$SELECT idem.create_record_table('new', 'tenant_id')$$),
    ('22023', 'a record table with a column without a name', $$SELECT idem.create_record_table('new', '', 'text')$$),
    ('22023', 'a record table with a tenant of another type', $$SELECT idem.create_record_table('new', 'tenant_id', 'numeric')$$),
    ('22004', 'the choice of no table', $$SELECT idem.use_records(NULL)$$),
    ('42P01', 'the choice of a table that does not exist', $$SELECT idem.use_records(4294967295::oid::regclass)$$),
    ('42809', 'the choice of a table with another layout', $$SELECT idem.use_records('idem.scope')$$),
    ('42501', 'the choice of a table of another owner', $$SELECT idem.use_records('test_elsewhere.given')$$),
    ('42501', 'the choice of a table that others may change', $$SELECT idem.use_records('test_elsewhere.open')$$),
    ('42809', 'the choice of a table without a primary key', $$SELECT idem.use_records('test_elsewhere.keyless')$$),
    ('55000', 'a claim without a choice', $$SELECT idem.claim('elsewhere', 'new')$$),
    ('55000', 'a try without a choice', $$SELECT idem.try_claim('elsewhere', 'new')$$),
    ('55000', 'a lookup without a choice', $$SELECT idem.lookup('elsewhere', 'done')$$),
    ('55000', 'a take without a choice', $$SELECT idem.take('elsewhere')$$),
    ('0A000', 'a stream of a scope whose records are elsewhere', $$SELECT idem.use_records('test_elsewhere.record'), idem.advance('elsewhere', 'new', 1)$$),
    ('55000', 'records elsewhere for a scope that has some', $$SELECT idem.alter_scope('elsewhere', records => false)$$),
    ('42P01', 'a claim whose table was dropped', $$SELECT idem.use_records('test_elsewhere.record'); DROP TABLE test_elsewhere.record; SELECT idem.claim('elsewhere', 'new')$$),
    ('42P01', 'a take whose table was dropped', $$SELECT idem.use_records('test_elsewhere.record'); DROP TABLE test_elsewhere.record; SELECT idem.take('elsewhere')$$),
    ('55000', 'another tenant_from for a scope with live keys', $$SELECT idem.once('idle', 'live'); SELECT idem.alter_scope('idle', tenant_from => 'role')$$),
    ('55000', 'a scope altered under an open claim', $$SELECT idem.claim('errors', 'open'); SELECT idem.alter_scope('errors', ttl => '2 days')$$),
    ('55000', 'a scope dropped with an operation that has a recovery point', $$SELECT idem.release(token) FROM (SELECT token, idem.checkpoint(token, 'charged') FROM idem.claim('idle', 'begun', lease => '1 hour') OFFSET 0) c; SELECT idem.drop_scope('idle')$$),
    ('22004', 'a scope dropped with force NULL', $$SELECT idem.drop_scope('errors', NULL)$$),
    ('55000', 'a scope dropped under an open claim', $$SELECT idem.claim('errors', 'open'); SELECT idem.drop_scope('errors')$$),
    ('22004', 'an altered scope with force NULL', $$SELECT idem.alter_scope('errors', force => NULL)$$),
    ('22023', 'a scope with max_attempts 0', $$SELECT idem.create_scope('new', max_attempts => 0)$$),
    ('22023', 'a scope with weak_keys unheard of', $$SELECT idem.create_scope('new', weak_keys => 'never')$$),
    ('22023', 'a scope altered to claims_per_minute -2', $$SELECT idem.alter_scope('errors', claims_per_minute => -2)$$),
    ('ID008', 'altering an unknown scope', $$SELECT idem.alter_scope('unknown')$$),
    ('ID008', 'dropping an unknown scope', $$SELECT idem.drop_scope('unknown')$$),
    ('ID008', 'forgetting in an unknown scope', $$SELECT idem.forget('unknown', 'new')$$),
    ('ID007', 'forgetting no key', $$SELECT idem.forget('errors', NULL)$$),
    ('22004', 'forgetting with a force that is null', $$SELECT idem.forget('errors', 'new', force => NULL)$$),
    ('55000', 'forgetting a recovery point', $$SELECT idem.checkpoint(token, 'p'), idem.release(token) FROM idem.claim('errors', 'new', lease => '1 min');
                                               SELECT idem.forget('errors', 'new')$$),
    ('22004', 'forgetting no tenant', $$SELECT idem.forget_tenant('errors', NULL)$$),
    ('ID013', 'forgetting a tenant of 256 bytes', $$SELECT idem.forget_tenant('errors', repeat('t', 256))$$),
    ('ID008', 'forgetting a tenant in an unknown scope', $$SELECT idem.forget_tenant('unknown', 'new')$$),
    ('ID008', 'erasing in an unknown scope', $$SELECT idem.erase('unknown', 'new')$$),
    ('ID007', 'erasing no key', $$SELECT idem.erase('errors', NULL)$$),
    ('55000', 'erasing what an attempt needs', $$SELECT idem.checkpoint(token, 'p', '1'), idem.release(token) FROM idem.claim('errors', 'new', lease => '1 min');
                                                 SELECT idem.erase('errors', 'new')$$),
    ('22004', 'erasing no tenant', $$SELECT idem.erase_tenant('errors', NULL)$$),
    ('ID013', 'erasing a tenant of 256 bytes', $$SELECT idem.erase_tenant('errors', repeat('t', 256))$$),
    ('ID008', 'revoking in an unknown scope', $$SELECT idem.revoke('unknown', 'new')$$),
    ('ID007', 'revoking no key', $$SELECT idem.revoke('errors', '')$$),
    ('ID007', 'resetting no source', $$SELECT idem.reset_stream('errors', NULL)$$),
    ('ID008', 'resetting a source in an unknown scope', $$SELECT idem.reset_stream('unknown', 'new')$$),
    ('ID008', 'cancelling in an unknown scope', $$SELECT idem.cancel('unknown', 'new')$$),
    ('ID007', 'cancelling no key', $$SELECT idem.cancel('errors', NULL)$$),
    ('22023', 'cancelling with an error that is none', $$SELECT idem.cancel('errors', 'new', error => '5')$$),
    ('ID001', 'cancelling a key of this transaction', $$SELECT idem.cancel('errors', 'held')$$),
    ('ID010', 'a stale key', $$SELECT idem.alter_scope('idle', reject_stale_keys => true);
                               SELECT idem.claim('idle', '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d')$$),
    ('ID010', 'a key from the future', $$SELECT idem.alter_scope('idle', reject_stale_keys => true);
                                         SELECT idem.claim('idle', '7ZZZZZZZZZZZZZZZZZZZZZZZZZ')$$),
    ('ID007', 'a weak key', $$SELECT idem.alter_scope('idle', weak_keys => 'reject');
                              SELECT idem.claim('idle', '4711')$$),
    ('22004', 'the weakness of no key', $$SELECT idem_internal.key_weakness(NULL)$$),
    ('22023', 'purge of nothing', $$SELECT idem.purge(0)$$),
    ('22004', 'importing no identity', $$SELECT idem.import_identity(NULL)$$),
    ('22004', 'importing no scope', $$SELECT idem_internal.import_scope(NULL, true)$$),
    ('22004', 'refusing keys for no reason', $$SELECT idem_internal.refuse_keys(NULL)$$),
    ('22023', 'an identity without members', $$SELECT idem.import_identity('{}')$$),
    ('22023', 'an identity of another version', $$SELECT idem.import_identity('{"version": 2}')$$),
    ('55000', 'an identity with another seed',
     $$SELECT idem.import_identity(jsonb_set(idem.export_identity(), '{secrets,0,secret}', to_jsonb('\x' || repeat('ab', 32))))$$),
    ('55000', 'an identity without the newest secret',
     $$SELECT set_config('test.identity', idem.export_identity()::text, true), idem.rotate_secret();
       SELECT idem.import_identity(current_setting('test.identity')::jsonb)$$),
    ('42710', 'an identity with another scope of the same id',
     $$SELECT idem.import_identity(jsonb_set(idem.export_identity(), '{scopes,0,name}', '"other"'))$$),
    ('42710', 'an identity with other settings of a scope',
     $$SELECT idem.import_identity(jsonb_set(idem.export_identity(), '{scopes,0,lease}', '"07:00:00"'))$$),
    ('22023', 'a setting that does not exist', $$SELECT idem.create_scope('new', settings => '{nonesuch=1}')$$),
    ('22023', 'a setting without a value', $$SELECT idem.create_scope('new', settings => '{ttl}')$$),
    ('22023', 'a setting passed twice', $$SELECT idem.alter_scope('idle', settings => '{ttl=1 day,ttl=1 day}')$$),
    ('22004', 'no settings', $$SELECT idem.create_scope('new', settings => NULL)$$);
INSERT INTO wrong (state, what, call, role) VALUES
    ('42501', 'claim by a role that is no member', $$SELECT idem.claim('errors', 'new')$$, 'test_nobody'),
    ('42501', 'a role that may not use the scope does not learn its rules', $$SELECT idem.claim('tenants', 'new')$$, 'test_nobody'),
    ('42501', 'once by a role that is no member', $$SELECT idem.once('errors', 'new')$$, 'test_nobody'),
    ('42501', 'once_each by a role that is no member', $$SELECT idem.once_each('errors', '{new}')$$, 'test_nobody'),
    ('42501', 'advance by a role that is no member', $$SELECT idem.advance('errors', 'new', 1)$$, 'test_nobody'),
    ('42501', 'lookup by a role that is no member', $$SELECT idem.lookup('errors', 'new')$$, 'test_nobody'),
    ('42501', 'forgetting by a role that is no member', $$SELECT idem.forget('errors', 'new')$$, 'test_administrator'),
    ('42501', 'revoking by a role that is no member', $$SELECT idem.revoke('errors', 'new')$$, 'test_administrator'),
    ('42501', 'erasing by a role that is no member', $$SELECT idem.erase('errors', 'new')$$, 'test_administrator'),
    ('42501', 'cancelling by a role that is no member', $$SELECT idem.cancel('errors', 'new')$$, 'test_nobody'),
    ('42501', 'altering by a role that is no member', $$SELECT idem.alter_scope('errors', ttl => '1 day')$$, 'test_administrator'),
    ('42501', 'dropping by a role that is no member', $$SELECT idem.drop_scope('errors')$$, 'test_administrator'),
    ('42501', 'a claim within a security-restricted operation',
     $$CREATE MATERIALIZED VIEW restricted AS SELECT idem.claim('errors', 'new')$$, current_user);
INSERT INTO wrong (state, what, call, explained) VALUES
    ('22021', 'a key with a NUL byte', $$SELECT idem.claim('errors', '\x6100'::bytea::text)$$, false),
    ('22021', 'a key that is not UTF-8', $$SELECT idem.claim('errors', '\xff'::bytea::text)$$, false),
    ('22021', 'a tenant that is not UTF-8', $$SELECT idem.claim('errors', 'new', tenant => '\xff'::bytea::text)$$, false),
    ('ID008', 'a scope that is not UTF-8', $$SELECT idem.claim('\xff'::bytea::text, 'new')$$, false),
    ('22021', 'lookup of a key that is not UTF-8', $$SELECT idem.lookup('errors', '\xff'::bytea::text)$$, false),
    ('22021', 'a key from a part that is not UTF-8', $$SELECT idem.derive_key('\xff'::bytea::text)$$, false),
    ('22021', 'a step that is not UTF-8', $$SELECT idem.child_key(token, '\xff'::bytea::text) FROM idem.claim('errors', 'new')$$, false),
    ('ID007', 'a header that is not UTF-8', $$SELECT idem.parse_key('\xff'::bytea::text)$$, false),
    ('42704', 'a scope for a role that does not exist', $$SELECT idem.create_scope('new', owner => 4294967295::oid::regrole)$$, false),
    ('22P02', 'a setting that is no value of its type', $$SELECT idem.create_scope('new', settings => '{max_attempts=many}')$$, false),
    ('42704', 'an identity with an owner that does not exist',
     $$SELECT idem.import_identity(jsonb_set(idem.export_identity(), '{scopes,0,owner}', '"test_missing"'))$$, false),
    ('25006', 'claim in a read-only transaction', $$SET LOCAL transaction_read_only = on; SELECT idem.claim('errors', 'new')$$, true),
    ('25006', 'a replay too: claim may write', $$SET LOCAL transaction_read_only = on; SELECT idem.claim('errors', 'done', '{"amount": 1}')$$, true),
    ('25006', 'once in a read-only transaction', $$SET LOCAL transaction_read_only = on; SELECT idem.once('errors', 'new')$$, true),
    ('25006', 'once_each in a read-only transaction', $$SET LOCAL transaction_read_only = on; SELECT idem.once_each('errors', '{new}')$$, true),
    ('22021', 'once_each of a key that is not UTF-8', $$SELECT idem.once_each('errors', ARRAY['\xff'::bytea::text])$$, false),
    ('22021', 'advance of a source that is not UTF-8', $$SELECT idem.advance('errors', '\xff'::bytea::text, 1)$$, false),
    ('25006', 'advance in a read-only transaction', $$SET LOCAL transaction_read_only = on; SELECT idem.advance('errors', 'new', 1)$$, true),
    ('25006', 'create_scope in a read-only transaction', $$SET LOCAL transaction_read_only = on; SELECT idem.create_scope('new')$$, true),
    ('25006', 'import_identity in a read-only transaction', $$SET LOCAL transaction_read_only = on; SELECT idem.import_identity('{}')$$, true),
    ('25006', 'purge in a read-only transaction', $$SET LOCAL transaction_read_only = on; SELECT idem.purge()$$, true);
INSERT INTO wrong (state, what, call, explained, role) VALUES
    ('42501', 'export_identity by a role that is no superuser', $$SELECT idem.export_identity()$$, false, 'test_administrator'),
    ('42501', 'import_identity by a role that is no superuser', $$SELECT idem.import_identity('{}')$$, false, 'test_administrator'),
    ('42501', 'create_scope without EXECUTE', $$SELECT idem.create_scope('new')$$, false, 'test_nobody'),
    ('42501', 'alter_scope without EXECUTE', $$SELECT idem.alter_scope('errors', ttl => '1 day')$$, false, 'test_nobody'),
    ('42501', 'drop_scope without EXECUTE', $$SELECT idem.drop_scope('errors')$$, false, 'test_nobody'),
    ('42501', 'revoke without EXECUTE', $$SELECT idem.revoke('errors', 'new')$$, false, 'test_nobody'),
    ('42501', 'forget without EXECUTE', $$SELECT idem.forget('errors', 'new')$$, false, 'test_nobody'),
    ('42501', 'forget_tenant without EXECUTE', $$SELECT idem.forget_tenant('errors', '')$$, false, 'test_nobody'),
    ('42501', 'erase without EXECUTE', $$SELECT idem.erase('errors', 'new')$$, false, 'test_nobody'),
    ('42501', 'erase_tenant without EXECUTE', $$SELECT idem.erase_tenant('errors', '')$$, false, 'test_nobody'),
    ('42501', 'reset_stream without EXECUTE', $$SELECT idem.reset_stream('errors', 'new')$$, false, 'test_nobody');
-- The SQL edition has no record tables, identities and statistics.
DELETE FROM wrong WHERE NOT :'extension'
  AND call ~ 'record_table|use_records|''elsewhere''|identity|import_scope|refuse_keys|stats|claims_per_minute|records =>';

CREATE FUNCTION pg_temp.attempt(call text, as_role name, OUT state text, OUT message text, OUT detail text, OUT hint text,
                                OUT schema_name text, OUT constraint_name text, OUT type_name text, OUT column_name text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', as_role);
    EXECUTE call;
    RAISE EXCEPTION USING ERRCODE = 'ZZ000', MESSAGE = 'nothing was raised';  -- and so undone
EXCEPTION WHEN OTHERS OR assert_failure THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT,
                            schema_name = SCHEMA_NAME, constraint_name = CONSTRAINT_NAME,
                            type_name = PG_DATATYPE_NAME, column_name = COLUMN_NAME;
END $$;

-- The number of records and scopes, and of key locks of this transaction.
CREATE FUNCTION pg_temp.kept(OUT records bigint, OUT scopes bigint, OUT locks bigint) LANGUAGE sql AS $$
    SELECT (SELECT count(*) FROM idem.record), (SELECT count(*) FROM idem.scope),
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
$$;
CREATE TEMP TABLE before AS SELECT * FROM pg_temp.kept();

CREATE TEMP TABLE got AS
    SELECT wrong.*, (error).* FROM (SELECT wrong, pg_temp.attempt(call, role) AS error FROM wrong ORDER BY id) AS each
           (asked, error), LATERAL (SELECT (asked).id, (asked).state AS expected, (asked).what, (asked).explained) AS wrong;

SELECT is(state, expected, expected || ': ' || what) FROM got ORDER BY id;
SELECT ok(message <> '' AND detail <> '' AND hint <> '', expected || ' has message, detail and hint: ' || what)
  FROM got WHERE explained ORDER BY id;
-- PostgreSQL's style: a message without a capital and a full stop, detail and hint as sentences.
SELECT ok(message !~ '^[A-Z]|[.]$' AND detail ~ '[.]$' AND hint ~ '[.]$', expected || ' follows the error style: ' || what)
  FROM got WHERE explained AND expected NOT IN ('ID003', 'P0042') ORDER BY id;
-- For programs: the name of an error of idem's own is in its fields, and nothing else is there
-- except the table that ID011 is about. P0042 is a stored failure, whose name is that of ID003.
SELECT is(constraint_name, CASE WHEN expected = 'P0042' THEN 'key_failed'
                                WHEN expected LIKE 'ID%' THEN substring(idem.problem(expected)->>'type' FROM '[a-z_]+$') ELSE '' END,
          expected || ' has its name as the constraint: ' || what)
  FROM got ORDER BY id;
SELECT is(schema_name, CASE WHEN expected = 'ID011' THEN 'public'
                            WHEN expected LIKE 'ID%' OR expected = 'P0042' THEN 'idem' ELSE '' END,
          expected || ' has a schema only if it is of idem: ' || what)
  FROM got ORDER BY id;
SELECT CASE expected
           WHEN 'ID014' THEN matches(type_name || ' since ' || column_name, '^60000 since \d{4}-[-0-9T:.]+\+00:00$', 'ID014 says when to retry, and since when: ' || what)
           ELSE is(type_name || column_name, '', expected || ' says nothing of a time: ' || what)
       END
  FROM got ORDER BY id;
SELECT results_eq('SELECT * FROM pg_temp.kept()', 'SELECT * FROM before',
                  'these errors leave no record, no scope and no key lock');

SELECT results_eq($$SELECT DISTINCT state, message, regexp_replace(detail, 'at .*, and', 'at TIME, and'), hint FROM got WHERE expected = 'P0042'$$,
                  $$VALUES ('P0042', 'card declined', E'Stolen.\nThe failure was stored at TIME, and every retry receives it.', 'Call 110.')$$,
                  'a stored failure is raised with its own SQLSTATE, message, detail and hint');
SELECT is(count(*), 0::bigint, 'no hint says only that a valid value is valid: ' || coalesce(string_agg(what, ', '), ''))
  FROM got WHERE hint LIKE 'Pass a valid value%';
-- What detail and hint say to the caller: a pattern that must match, and one that must not.
CREATE ROLE test_owner;
ALTER ROLE test_nobody NOINHERIT;
GRANT test_owner TO test_nobody;
CREATE ROLE "Test Stranger";
SELECT idem.create_scope('owned', owner => 'test_owner');
SELECT idem.create_scope('test_payments');
CREATE TEMP TABLE advice (call text, says text, never text, role name DEFAULT current_user);
INSERT INTO advice (call, says, never) VALUES
    ($$SELECT idem.complete(NULL)$$, 'replay.* "claimed" ', 'lookup'),
    ($$SELECT idem.release(NULL)$$, 'replay.* "claimed" ', 'lookup'),
    ($$SELECT idem.complete('banana')$$, 'column "token"', 'lookup'),
    ($$SELECT idem.complete(token), idem.complete(token) FROM idem.claim('errors', 'new')$$, 'already completed or failed.*once per claim', 'released'),
    ($$SELECT idem.release(token), idem.complete(token) FROM idem.claim('errors', 'new')$$, 'released.*[Cc]laim the key again', 'finished'),
    ($$SELECT idem.release(token), idem.renew(token) FROM idem.claim('errors', 'new', lease => '1 min')$$, 'released.*[Cc]laim the key again', 'finished'),
    ($$SELECT idem.complete('AfDx8vP09fb3-Pn6-_z9_v8BAgME_ty6mHZUMhAAAAAA')$$, 'another transaction.*"lease"', NULL),
    (format('SELECT idem.complete(%L)', :'rolled_back'), 'rolled back', 'Attempt'),
    (format('SELECT idem.renew(%L)', :'taken_over'), 'Attempt 2 has taken .* over', 'rolled back'),
    (format('SELECT idem.complete(%L)', :'given_up'), 'released', 'rolled back'),
    ($$SELECT idem.complete((idem.claim('requests', 'new')).token)$$, 'Scope "requests" requires.*"request"', 'default'),
    ($$SELECT idem.advance('errors', 'new', NULL)$$, 'no default', 'scope|leave'),
    ($$SELECT idem.advance('errors', 'new', 1, contiguous => NULL)$$, 'leave it out', 'no default|scope'),
    ($$SELECT idem.create_scope('new', ttl => NULL)$$, 'leave it out', 'no default|requires'),
    ($$SET LOCAL transaction_read_only = on; SELECT idem.claim('errors', 'done')$$, 'read-write.*idem\.lookup\(\)', NULL),
    ($$SET LOCAL transaction_read_only = on; SELECT idem.once_each('errors', '{done}')$$, 'read-write.*idem\.lookup\(\)', NULL),
    ($$SET LOCAL transaction_read_only = on; SELECT idem.advance('errors', 's', 1)$$, 'read-write.*idem\.streams', 'lookup'),
    ($$SET LOCAL transaction_read_only = on; SELECT idem.create_scope('new')$$, 'read-write', 'lookup'),
    ($$SELECT idem.alter_scope('idle', max_answer_size => 1024); SELECT idem.complete((idem.claim('idle', 'new')).token, to_jsonb(repeat('x', 1025)))$$,
     'bytes.*allows 1024 bytes', 'kB'),
    ($$SELECT idem.drop_scope('nowhere')$$, 'idem\.scopes', 'claim|create_scope'),
    ($$SELECT idem.alter_scope('nowhere')$$, 'idem\.scopes', 'claim|create_scope'),
    ($$SELECT idem.lookup('nowhere', 'k')$$, 'idem\.scopes', 'claim|create_scope'),
    ($$SELECT idem.stats_reset('nowhere')$$, 'idem\.scopes', 'claim|create_scope'),
    ($$SELECT idem.claim('nowhere', 'k')$$, 'idem\.create_scope\(\)', 'Perhaps'),
    ($$SELECT idem.claim(NULL, 'k')$$, 'is null', 'create_scope'),
    ($$SELECT idem.claim('test_payment', 'k')$$, 'Perhaps you meant the scope "test_payments"\.', 'create_scope'),
    ($$SELECT idem.claim('Test_Payments', 'k')$$, 'Perhaps you meant the scope "test_payments"\.', 'create_scope'),
    ($$SELECT idem.drop_scope('test_paymnets')$$, 'Perhaps you meant the scope "test_payments"\.', 'create_scope'),
    ($$SELECT idem.claim('test_pa', 'k')$$, 'create_scope', 'Perhaps'),
    ($$SELECT idem.claim(repeat('s', 10000), 'k')$$, 'create_scope', 'Perhaps'),
    ($$CREATE TABLE guarded (); CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION idem.require_claim('unknown');
       INSERT INTO guarded DEFAULT VALUES$$, 'Trigger "guard" of table "guarded" names', 'A claim names'),
    ($$CREATE TABLE guarded (); CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION idem.require_claim('test_payment');
       INSERT INTO guarded DEFAULT VALUES$$, 'Trigger "guard" .*Perhaps you meant the scope "test_payments"\.', 'A claim names'),
    ($$SELECT idem.create_scope('errors')$$, 'idem\.alter_scope\(\)', NULL),
    ($$SELECT idem.create_scope('errors', max_attempts => 7, if_not_exists => true)$$, '"max_attempts" is NULL, not 7\..*idem\.scope_ddl\(\)', '"ttl"'),
    ($$SELECT idem.alter_scope('idle', min_ttl => '1 h'); SELECT idem.claim('idle', 'new', ttl => '1 s')$$, '01:00:00.*longer "ttl"', NULL),
    ($$SELECT idem.claim('errors', 'held')$$, 'Complete', 'forget'),
    ($$SELECT idem.forget('errors', 'held')$$, '[Rr]elease.*idem\.forget\(\)', 'before claiming again|FROM'),
    ($$SELECT idem.revoke('errors', 'held')$$, '[Rr]elease.*idem\.revoke\(\)', 'before claiming again|FROM'),
    ($$SELECT idem.checkpoint(token, 'charged'), idem.release(token) FROM idem.claim('errors', 'new', lease => '1 min');
       SELECT idem.forget('errors', 'new')$$, '"charged".*idem\.revoke\(\).*"force" => true', NULL),
    ($$SELECT idem.once_each('errors', '{held}')$$, 'Complete', 'FROM'),
    ($$SELECT idem.create_scope('new', ttl => '0')$$, 'longer than zero', 'README'),
    ($$SELECT idem.once_each('requests', '{new}')$$, 'idem\.once\(\)', 'README');
INSERT INTO advice (call, says, never, role) VALUES
    ($$SELECT idem.claim('errors', 'k')$$, format('belongs to role "%s".*idem.alter_scope\(''errors'', owner => ''ROLE''\)', current_user), 'SET ROLE|GRANT|Test Stranger', 'Test Stranger'),
    ($$SELECT idem.claim('owned', 'k')$$, 'belongs to role "test_owner".*GRANT test_owner TO "Test Stranger"', 'SET ROLE', 'Test Stranger'),
    ($$SELECT idem.claim('owned', 'k')$$, 'belongs to role "test_owner".*SET ROLE test_owner', 'GRANT', 'test_nobody'),
    ($$SELECT idem.claim('owne', 'k')$$, 'create_scope', 'Perhaps', 'Test Stranger'),
    ($$SELECT idem.claim('owne', 'k')$$, 'Perhaps you meant the scope "owned"\.', 'create_scope', 'test_owner');
INSERT INTO advice (call, says, never, role)
    SELECT format('SELECT idem.complete(%L)', token), 'rolled back.*taken over', 'Attempt \d', 'Test Stranger'
      FROM (VALUES (:'rolled_back'), (:'taken_over'), (:'given_up'), ('Ag' || repeat('A', 42))) AS any_token (token);
DELETE FROM advice WHERE NOT :'extension' AND call ~ 'stats_reset';
DELETE FROM before;
INSERT INTO before SELECT * FROM pg_temp.kept();
CREATE TEMP TABLE advised AS
    SELECT call, says, never, role, (error).detail || ' ' || (error).hint AS said
      FROM (SELECT *, pg_temp.attempt(call, role) AS error FROM advice) AS asked;
SELECT matches(said, says, 'advice: ' || call || ' by ' || role) FROM advised;
SELECT doesnt_match(said, never, 'no misleading advice: ' || call || ' by ' || role)
  FROM advised WHERE never IS NOT NULL;
SELECT results_eq('SELECT * FROM pg_temp.kept()', 'SELECT * FROM before', 'these errors leave nothing either');
SELECT is(count(DISTINCT said), 1::bigint, 'a stranger gets the same error for every leased token')
  FROM advised WHERE role = 'Test Stranger' AND call LIKE '%complete%';

SELECT is_empty($$SELECT what, message, detail, hint FROM got
                   WHERE expected = 'ID002' AND concat(message, detail, hint) ~ 'answer|42|amount'$$,
                'a conflict does not show what is stored');

-- The same as results of try_claim ---------------------------------------------------------------

CREATE TEMP TABLE reported (outcome text, call text);
INSERT INTO reported VALUES
    ('in_progress', $$idem.try_claim('errors', 'held')$$),
    ('conflict', $$idem.try_claim('errors', 'done', '{"amount": 2}')$$),
    ('completed', $$idem.try_claim('errors', 'done', '{"amount": 1}')$$),
    ('failed', $$idem.try_claim('errors', 'failed')$$),
    ('failed', $$idem.try_claim('errors', 'own')$$);
CREATE FUNCTION pg_temp.result_of(call text) RETURNS idem.claim_result LANGUAGE plpgsql AS $$
DECLARE result idem.claim_result;
BEGIN
    EXECUTE 'SELECT * FROM ' || call INTO result;
    RETURN result;
END $$;
SELECT results_eq(format('SELECT outcome, claimed, token FROM pg_temp.result_of(%L)', call),
                  format('VALUES (%L::text, false, NULL::text)', outcome), outcome || ': ' || call)
  FROM reported;
SET LOCAL idem.max_open_claims = 1;
SELECT throws_ok($$SELECT idem.try_claim('errors', 'new')$$, '54000', NULL, 'no retry cures a second open claim');
RESET idem.max_open_claims;
SELECT results_eq('SELECT * FROM pg_temp.kept()', 'SELECT * FROM before', 'these calls leave nothing either');
SELECT is((idem.try_claim('errors', 'own')).error,
          '{"message": "card declined", "sqlstate": "P0042", "detail": "Stolen.", "hint": "Call 110."}'::jsonb,
          'try_claim returns the stored error as it was given to fail');

SELECT * FROM finish();
ROLLBACK;
