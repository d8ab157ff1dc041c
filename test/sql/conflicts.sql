-- Conflicts explained by the stored request: which members of a request differ.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('explained', store_request => 'always', request_exclude => '{sent_at, meta.trace_id, items.note}');

-- First those with another value, then new ones, then missing ones.
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
  ('{"a": 1.00, "b": 1}', '{"a": 1e0, "b": 2.0}'),
  -- members of members have paths, an array is one value
  ('{"a": {"b": 1, "c": {"d": 1, "e": 1}}}', '{"a": {"b": 1, "c": {"d": 2, "e": 1, "f": 1}}}'),
  ('{"a": {"b": 1}}', '{"a": {}, "b": 1}'),
  ('{"a": {"b": 1}}', '{"a": [{"b": 1}]}'),
  ('{"a": {"b": [1, {"c": 2}]}, "d": []}', '{"a": {"b": [1, {"c": 3}]}, "d": []}'),
  ('{"a": [1, 2]}', '{"a": [2, 1]}'),
  ('{"a.b": 1, "$": 1, "c": {"0": {"": 1}}}', '{"a": {"b": 1}, "c": {"0": {"": 2}}}'),
  ('{"a": 1}', '{"NULL": 1, "a,b": 2, "ä": 3, "": 4}'),
  -- excluded members do not count
  ('{"sent_at": 1, "a": 1}', '{"sent_at": 2, "a": 2}'),
  ('{"meta": {"trace_id": 1, "x": 1}}', '{"meta": {"trace_id": 2, "x": 1}}'),
  ('{"meta": {"trace_id": 1, "x": 1}}', '{"meta": {"x": 2}}'),
  ('{"items": [{"note": 1, "n": 1}], "a": 1}', '{"items": [{"note": 2, "n": 1}], "a": 2}'),
  ('{"items": [{"note": 1, "n": 1}]}', '{"items": [{"note": 2, "n": 2}]}'),
  -- nothing is said about what is no object
  ('[1]', '{"a": 1}'), ('[{"a": 1}]', '[{"a": 2}]'), ('1', '2'), ('null', '{}'), (NULL, '{}')
) x(a, b);
-- at most 10 are named; a path that is longer than 255 bytes is not
CREATE FUNCTION members(n int, v int) RETURNS jsonb LANGUAGE sql AS
  $$SELECT jsonb_object_agg('m' || i, v) FROM generate_series(1, n) i$$;
SELECT differs(members(10, 1), members(10, 2)), differs(members(11, 1), members(11, 2)),
  differs(members(1000, 1), '{}'), differs('{"a": 1}', members(12, 1));
SELECT n, left(d, 5), length(d) FROM unnest(ARRAY[255, 256]) n, differs('{}', jsonb_build_object(repeat('x', n), 1)) d;
SELECT left(d, 5), length(d) FROM differs(jsonb_build_object(repeat('x', 250), '{"abc": {"a": 1}}'::jsonb), jsonb_build_object(repeat('x', 250), '{"abc": {"a": 2}}'::jsonb)) d;
SELECT differs(jsonb_build_object('a', 1, repeat('x', 256), 1), jsonb_build_object('a', 2, repeat('x', 256), 2));
-- however deep
CREATE FUNCTION nested(depth int, v int) RETURNS jsonb LANGUAGE sql AS $$SELECT (repeat('{"a":', depth) || v || repeat('}', depth))::jsonb$$;
SELECT depth, length(d), rtrim(d, 'a.}') FROM unnest(ARRAY[3, 128, 129, 1500]) depth, differs(nested(depth, 1), nested(depth, 2)) d;
-- a path is written as request_exclude takes it, and most other notations are refused
SELECT path, idem_internal.path_fault(path) FROM unnest(ARRAY[
  'card', 'card.number', 'größe', '$schema', '$ref.x', 'a.$', '@id', 'a-b', 'a:b', 'a b', 'x1', '1x', 'a*', 'it''s', 'a\b', 'a>b', '#tag', '-', '~',
  '"/card/number"', '"$"."a/b".c', 'years."2024"', '"a\"b\\c"', 'a.""', '"a.b"',
  '$.card.number', '$', 'lax $.a', 'strict $.a', 'card[0].x', '[0]', '$["card"][''number'']', '{card,number}', 'card#>>''{number}''', 'card->number', 'card -> ''number''', 'card#>number',
  '/card/number', '#/card', 'card/number', '/', 'card.number, items.token', 'card."number', '"card"number', 'card"number"', '"a\', 'items.*.token', '**.token', 'items.0.token', 'items.-1', '', '.card', 'card..number', 'card.']) path;
CREATE FUNCTION within(object text, members jsonb) RETURNS jsonb LANGUAGE sql AS
  $$SELECT CASE object WHEN '' THEN members ELSE jsonb_build_object(object, members) END$$;
CREATE FUNCTION path_of(object text, name text) RETURNS text LANGUAGE sql AS
  $$SELECT paths[1] FROM idem_internal.differences(within(object, jsonb_build_object(name, 1)), within(object, '{}'))$$;
SELECT object, name, path_of(object, name) FROM (VALUES
  ('', 'card'), ('card', 'number'), ('card', '$'), ('', '$'), ('', 'lax $'), ('', 'strict $'), ('card', 'lax $'), ('', '$x'), ('', 'a.b'), ('a.b', '2024'), ('', ''), ('', 'a"b'), ('a"b', '"a\b"'),
  ('', '-'), ('', '-1'), ('', '1x'), ('', '*'), ('', '**'), ('', '***'), ('', 'a->b'), ('', 'a#>b'), ('', '->'), ('', 'a/b'), ('', 'a,b'), ('', 'a[0]'), ('', '{a}'), ('', 'a b'), ('', E'a\nb'), ('', 'ä')) v(object, name);
SELECT object, character, length, octet_length(path_of(object, repeat(character, length))) FROM (VALUES
  ('', 'k', 255), ('', 'k', 256), ('a', 'k', 253), ('a', 'k', 254), ('', '/', 253), ('', '/', 254), ('', '"', 126), ('', '"', 127), ('', 'ä', 127), ('', 'ä', 128)) v(object, character, length);
-- every short name of the characters that have a meaning in any notation has a path, and each path is of one name
CREATE TABLE short AS WITH c AS (SELECT regexp_split_to_table('ab.$/[]{},"\*0->#'' ', '') c)
  SELECT name, object, path_of(object, name) AS path FROM (SELECT '' UNION SELECT c FROM c UNION SELECT a.c || b.c FROM c a, c b) n(name), unnest('{"",o}'::text[]) object;
SELECT idem.create_scope('short', request_exclude => (SELECT array_agg(path ORDER BY path) FROM short));
CREATE FUNCTION of_short(v int) RETURNS jsonb LANGUAGE sql AS
  $$SELECT jsonb_object_agg(name, v) || jsonb_build_object('o', jsonb_object_agg(name, v)) FROM short WHERE object = ''$$;
SELECT count(*), count(DISTINCT path) FROM short;
SELECT idem.once('short', 'k', of_short(1));
SELECT idem.once('short', 'k', of_short(2));
SELECT idem.once('short', 'k', of_short(1) || '{"other": 1}');
-- the account of the differences
SELECT given, idem_internal.differences(given, '{"a": 1, "b": 1, "c": {"d": 1}}') FROM unnest('{"{}","[]","{\"a\": 1, \"b\": 1, \"c\": {\"d\": 1}}","{\"a\": 2, \"b\": 1, \"c\": 1, \"d\": 1}","{\"e\": 2, \"c\": {\"d\": 2, \"b\": 3}, \"b\": 1}"}'::jsonb[]) given;
SELECT n, (idem_internal.differences(members(n, 1), '{}')).account FROM generate_series(9, 12) n;
SELECT idem_internal.differences(jsonb_build_object(repeat('x', 256), 1), '{}');
DROP TABLE short;
DROP FUNCTION path_of, within, of_short;

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

-- The request is kept as long as the answer.
CREATE FUNCTION kept() RETURNS TABLE (key text, request jsonb) LANGUAGE sql AS
  'SELECT key, request FROM idem.record r WHERE key LIKE ''kept-%'' ORDER BY key';
SELECT idem.complete(token) FROM idem.claim('explained', 'kept-atomic', '{"n": 1, "sent_at": 1}');
SELECT idem.complete(token) FROM idem.claim('explained', 'kept-leased', '{"n": 2}', lease => '1 hour');
SELECT idem.fail(token, '{"message": "no"}') FROM idem.claim('explained', 'kept-failed', '{"n": 3}');
SELECT idem.once('explained', 'kept-once', '{"n": 4}');
SELECT response FROM idem.execute('explained', 'kept-executed', 'operate(jsonb)', '{"n": 5}');
SELECT idem.complete(token) FROM idem.claim('explained', 'kept-none');
SELECT * FROM kept();
SELECT key, outcome, differs FROM kept(), idem.try_claim('explained', key, '{"n": 0}');
SELECT key, answer_bytes > 0 AS bytes FROM idem.records WHERE key LIKE 'kept-%' ORDER BY key;
-- a takeover keeps the first request, also one that finishes in its transaction
SELECT token FROM idem.claim('explained', 'kept-over', '{"n": 6, "sent_at": 1}', lease => '1 hour') \gset
SELECT idem.release(:'token');
SELECT idem.complete(token) FROM idem.claim('explained', 'kept-over', '{"n": 6, "sent_at": 2}');
SELECT * FROM kept() WHERE key = 'kept-over';
SELECT outcome, differs FROM idem.try_claim('explained', 'kept-over', '{"n": 7, "sent_at": 2}');
-- it survives a savepoint as the claim does
BEGIN;
SELECT token FROM idem.claim('explained', 'kept-savepoint', jsonb_build_object('n', repeat('x', 9000))) \gset
SAVEPOINT s;
SELECT idem.complete(:'token');
ROLLBACK TO s;
SELECT FROM idem.claim('explained', 'kept-rolled-back', '{"n": 8}');
ROLLBACK TO s;
SELECT idem.complete(:'token', '2');
COMMIT;
SELECT key, length(request ->> 'n') FROM kept() WHERE key LIKE 'kept-savepoint';
SELECT outcome, differs FROM idem.try_claim('explained', 'kept-savepoint', '{"n": 8}');
-- of an expired record, nothing is kept
UPDATE idem.record SET expires = now() - interval '1 s' WHERE key = 'kept-atomic';
SELECT idem.complete(token) FROM idem.claim('explained', 'kept-atomic');
SELECT * FROM kept() WHERE key = 'kept-atomic';

-- Its size, which the caller chooses, takes nothing from that of the answer, the recovery state and the error.
SELECT idem.alter_scope('explained', max_answer_size => 1024);
CREATE FUNCTION sized(bytes int) RETURNS jsonb LANGUAGE sql AS $$SELECT to_jsonb(repeat('x', bytes))$$;
CREATE FUNCTION refused(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE m text;
BEGIN
  EXECUTE call;
  RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS m = MESSAGE_TEXT;
  RETURN format('%s %s', SQLSTATE, m);
END $$;
SELECT refused($$SELECT idem.complete(token) FROM idem.claim('explained', 'size', sized(900))$$),
  refused($$SELECT idem.complete(token, sized(900)) FROM idem.claim('explained', 'size-both', sized(900))$$),
  refused($$SELECT idem.complete(token, sized(900)) FROM idem.claim('explained', 'size-leased', sized(900), lease => '1 hour')$$),
  refused($$SELECT idem.fail(token, jsonb_build_object('message', repeat('x', 900))) FROM idem.claim('explained', 'size-failed', sized(900))$$),
  refused($$SELECT idem.release(token, error => jsonb_build_object('message', repeat('x', 900)))
              FROM idem.claim('explained', 'size-steps', sized(900), lease => '1 hour'), idem.checkpoint(token, 'charged', sized(900))$$),
  refused($$SELECT idem.claim('explained', 'size-alone', sized(1100))$$),
  refused($$SELECT idem.once('explained', 'size-alone', sized(1100))$$);
SELECT idem.alter_scope('explained', max_answer_size => 65536);

-- The setting of now decides what is kept; an explanation needs a kept request only.
SELECT token FROM idem.claim('explained', 'kept-no-more', '{"n": 1}', lease => '1 hour') \gset
BEGIN;
SELECT token AS atomic FROM idem.claim('explained', 'atomic', '{"n": 1}') \gset
UPDATE idem.scope SET store_request = 'unfinished' WHERE name = 'explained';
SELECT idem.complete(:'atomic');
COMMIT;
SELECT idem.complete(:'token');
SELECT key, request FROM idem.record WHERE key IN ('kept-no-more', 'atomic') ORDER BY key;
SELECT explained($$SELECT idem.claim('explained', 'atomic', '{"n": 2}')$$);
SELECT idem.claim('explained', 'atomic', '{"n": 2}');
SELECT outcome, differs FROM idem.try_claim('explained', 'k', '{"amount": 11}');
SELECT idem.complete(token) FROM idem.claim('explained', 'plain', '{"amount": 10}');
SELECT idem.alter_scope('explained', store_request => 'always');
SELECT idem.claim('explained', 'plain', '{"amount": 11}');
-- a change of the list does not change what is named, nor does one of the secret
SELECT idem.alter_scope('explained', request_exclude => '{n}'), idem.rotate_secret();
SELECT outcome, differs FROM idem.try_claim('explained', 'kept-leased', '{"n": 3, "sent_at": 1}');
SELECT outcome FROM idem.try_claim('explained', 'kept-leased', '{"n": 2.0, "sent_at": 1}');
-- a request that is not the one of the fingerprint explains nothing
UPDATE idem.record SET request = '{"n": 3}' WHERE key = 'kept-leased';
SELECT explained($$SELECT idem.claim('explained', 'kept-leased', '{"n": 3}')$$);

DROP FUNCTION differs, explained, operate, members, nested, kept, sized, refused;
