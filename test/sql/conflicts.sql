-- Conflicts explained: which members of a request differ.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('explained', explain_conflicts => true, request_exclude => '{sent_at, meta.trace_id}');
-- With a secret by chance, one member in 65536 would go unnoticed.
UPDATE idem.secret SET secret = sha256('conflicts') WHERE purpose = 'fingerprint';

-- First those with another value, then new ones, then a NULL for each that is missing.
CREATE FUNCTION differs(a jsonb, b jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; k text := gen_random_uuid();
BEGIN
  c := idem.claim('explained', k, a);
  PERFORM idem.complete(c.token);
  c := idem.try_claim('explained', k, b);
  RETURN CASE c.outcome WHEN 'conflict' THEN c.differs::text ELSE c.outcome || coalesce(c.differs::text, '') END;
END $$;
SELECT a, b, differs(a, b), differs(b, a) FROM (VALUES
  ('{"amount": 10, "to": 1}'::jsonb, '{"to": 1, "amount": 10.0}'::jsonb),
  ('{"amount": 10, "to": 1}', '{"amount": 11, "to": 1}'),
  ('{"amount": 10, "to": 1}', '{"amount": "10", "to": null}'),
  ('{"amount": 10}', '{"amount": 10, "note": "x"}'),
  ('{"amount": 10, "to": 1, "gone": 1, "left": 1}', '{"amount": 11, "to": 1, "note": "x"}'),
  ('{"a": 1, "b": 2}', '{"a": 2, "b": 1}'),
  ('{}', '{"a": null}'),
  ('{"a": {"b": [1, {"c": 2}]}, "d": []}', '{"a": {"b": [1, {"c": 3}]}, "d": []}'),
  ('{"a": {"b": 1}}', '{"a": {}, "b": 1}'),
  ('{"a": 1}', '{"NULL": 1, "a,b": 2, "ä": 3, "": 4}'),
  -- excluded members do not count
  ('{"sent_at": 1, "a": 1}', '{"sent_at": 2, "a": 2}'),
  ('{"meta": {"trace_id": 1, "x": 1}}', '{"meta": {"trace_id": 2, "x": 1}}'),
  ('{"meta": {"trace_id": 1, "x": 1}}', '{"meta": {"x": 2}}'),
  -- nothing is told of what is no object
  ('[1]', '{"a": 1}'), ('1', '2'), ('null', '{}'), (NULL, '{}')
) x(a, b);
-- nor of more than 32 members; excluded ones do not count
CREATE FUNCTION members(n int, v int) RETURNS jsonb LANGUAGE sql AS
  $$SELECT jsonb_object_agg('m' || i, v) FROM generate_series(1, n) i$$;
SELECT differs(members(32, 1), members(31, 1) || '{"sent_at": 1, "m7": 2}'), differs(members(33, 1), members(1, 1)),
  differs(members(1, 1), members(33, 1)), array_length(differs(members(32, 1), members(32, 2))::text[], 1) AS all_of_32;
-- a name is shown no longer than an identifier can be
SELECT length(d), d ~ '^\{(xy){31}x\}$' AS cut FROM differs('{}', jsonb_build_object(repeat('xy', 1000), 1)) d;
SELECT length(d), octet_length(d), d ~ '^\{ä{31}\}$' AS cut FROM differs('{}', jsonb_build_object(repeat('ä', 1000), 1)) d;

-- however the caller learns of it
CREATE FUNCTION explained(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE d text; c text;
BEGIN
  EXECUTE call;
EXCEPTION WHEN SQLSTATE 'ID002' THEN
  GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, c = COLUMN_NAME;
  RETURN format('%s [%s]', d, c);
END $$;
CREATE FUNCTION operate(request jsonb) RETURNS jsonb LANGUAGE sql RETURN request;
SELECT idem.complete(token) FROM idem.claim('explained', 'k', '{"amount": 10, "currency": "EUR", "to": 1, "by": 2}');
SELECT explained(format(call, request)) FROM
  unnest('{"{\"amount\": 10, \"to\": 1}","{\"amount\": 11, \"currency\": \"CHF\", \"to\": 2, \"by\": 2}",
           "{\"amount\": 11, \"currency\": \"EUR\", \"note\": 1, \"to\": 1}"}'::text[]) request,
  unnest(ARRAY[$$SELECT idem.claim('explained', 'k', %L)$$, $$SELECT idem.claim('explained', 'k', %L, lease => '1 hour')$$,
               $$SELECT idem.once('explained', 'k', %L)$$, $$SELECT idem.execute('explained', 'k', 'operate(jsonb)', %L)$$]) call;
SELECT explained($$SELECT idem.claim('explained', 'k')$$), explained($$SELECT idem.claim('explained', 'k', '[]')$$);
SET idem.log_conflicts = 'notice';
SELECT outcome, differs FROM idem.try_claim('explained', 'k', '{"amount": 10, "currency": "CHF", "note": 1}');
RESET idem.log_conflicts;
-- of an operation under a lease, and after a takeover
SELECT token AS t FROM idem.claim('explained', 'leased', '{"a": 1, "b": 1}', lease => '1 hour') \gset
SELECT outcome, differs FROM idem.try_claim('explained', 'leased', '{"a": 2, "b": 1}');
SELECT idem.release(:'t');
SELECT outcome, differs FROM idem.try_claim('explained', 'leased', '{"a": 2, "b": 1}');
SELECT token AS t FROM idem.take('explained') \gset
SELECT outcome, differs FROM idem.try_claim('explained', 'leased', '{"a": 2, "b": 1}');
SELECT idem.complete(:'t');
SELECT outcome, differs FROM idem.try_claim('explained', 'leased', '{"a": 2, "b": 1}');
-- a cancelled key conflicts with no request
SELECT outcome, differs FROM idem.cancel('explained', 'never'), idem.try_claim('explained', 'never', '{"a": 1}');

-- The setting says what a claim stores, and what a conflict tells.
SELECT idem.alter_scope('explained', explain_conflicts => false);
SELECT outcome, differs FROM idem.try_claim('explained', 'k', '{"amount": 11}');
SELECT explained($$SELECT idem.claim('explained', 'k', '{"amount": 11}')$$);
SELECT idem.complete(token) FROM idem.claim('explained', 'plain', '{"amount": 10}');
SELECT idem.alter_scope('explained', explain_conflicts => true);
SELECT key, outcome, differs FROM unnest('{k,plain}'::text[]) key, idem.try_claim('explained', key, '{"amount": 11}');
SELECT outcome FROM idem.try_claim('explained', 'plain', '{"amount": 10}');
-- four bytes for each member; equal members of different requests share nothing that can be seen
SELECT idem.complete(token) FROM unnest('{1,2}'::int[]) i, idem.claim('explained', 'i' || i, jsonb_build_object('currency', 'EUR', 'n', i));
SELECT key, length(fingerprint) - 19 AS more, substr(fingerprint, 3, 1) AS members FROM idem.record WHERE key IN ('plain', 'k', 'i1') ORDER BY key;
SELECT count(DISTINCT part) FROM idem.record, unnest(ARRAY[4, 6, 8, 10]) at, substr(fingerprint, at, 2) part WHERE key IN ('i1', 'i2');
-- A rotation of the secret: what differs is told under the secret of the record.
SELECT idem.rotate_secret();
SELECT key, outcome, differs FROM unnest('{k,i1}'::text[]) key, idem.try_claim('explained', key, '{"currency": "EUR", "n": 2}');
SELECT outcome FROM idem.try_claim('explained', 'i1', '{"currency": "EUR", "n": 1}');

DROP FUNCTION differs, explained, operate, members;
