-- What a scope keeps out of storage: the whole answer, or members of the response.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE FUNCTION answer(scope text, key text, given jsonb, with_status int DEFAULT NULL, with_headers jsonb DEFAULT NULL, with_body bytea DEFAULT NULL)
RETURNS TABLE (outcome text, response jsonb, status int, headers jsonb, body bytea, redacted boolean) LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim(scope, key);
  IF c.claimed THEN c.response := idem.complete(c.token, given, with_status, with_headers, with_body); END IF;
  RETURN QUERY SELECT c.outcome, c.response, c.status, c.headers, c.body, c.redacted;
END $$;

-- only the status is stored; the first caller gets the whole answer
SELECT idem.create_scope('silent', store_response => false);
SELECT * FROM answer('silent', 'k', '{"card": "4111"}', 201, '{"Location": "/1"}', '\x01');
SELECT * FROM answer('silent', 'k', '{"card": "4111"}', 201, '{"Location": "/1"}', '\x01');
SELECT state, response, status, headers, body, redacted FROM idem.lookup('silent', 'k');
SELECT status, redacted, response, headers, body FROM idem.record;
-- a part that was not given does not count as redacted
SELECT * FROM answer('silent', 'status only', NULL, 204);
SELECT * FROM answer('silent', 'status only', NULL, 204);
SELECT * FROM answer('silent', 'headers', NULL, NULL, '{"A": "b"}');
SELECT redacted FROM answer('silent', 'headers', NULL);
SELECT * FROM answer('silent', 'body', NULL, NULL, NULL, '');
SELECT redacted FROM answer('silent', 'body', NULL);
SELECT * FROM answer('silent', 'null', 'null');
SELECT redacted FROM answer('silent', 'null', NULL);

-- members by path, through arrays, at any depth; the rest is unchanged
SELECT idem.create_scope('discreet', response_exclude => '{secret, card.number, items.token, a.b.c, x.y}');
CREATE FUNCTION stored(key text, given jsonb) RETURNS TABLE (returned boolean, stored jsonb, redacted boolean) LANGUAGE plpgsql AS $$
DECLARE first jsonb; a record;
BEGIN
  SELECT * INTO a FROM answer('discreet', key, given);
  first := a.response;
  SELECT * INTO a FROM answer('discreet', key, NULL);
  RETURN QUERY SELECT first = given, a.response, a.redacted;
END $$;
SELECT given, s.* FROM (VALUES
  ('{"secret": "x", "kept": {"secret": "this one is elsewhere"}}'::jsonb),
  ('{"secret": {"deep": [1, {"er": 2}]}, "z": 1}'),
  ('{"secret": null}'),
  ('{"card": {"number": "4111", "brand": "visa"}, "number": 5}'),
  ('{"card": [{"number": 1}, {"number": 2, "brand": "visa"}, [{"number": 3}], "number"]}'),
  ('{"items": [{"id": 1, "token": "t"}, {"id": 2}], "token": "kept"}'),
  ('[{"secret": 1, "a": 1}, {"secret": 2}, [], {}]'),
  ('{"a": {"b": {"c": 1, "d": 2}}, "a.b": {"c": 1}, "b": {"c": 1}}'),
  ('{"x": {"y": {}}, "x.y": []}'),
  ('{"nothing": "to hide", "n": 1.50, "t": true, "u": null, "e": {}, "l": []}'),
  ('"secret"'), ('42'), ('null'), ('[]'), ('{}')) v(given), stored(given::text, given) s;
SELECT * FROM answer('discreet', 'no response', NULL, 204);
SELECT * FROM answer('discreet', 'no response', NULL);
-- headers and body are stored as given
SELECT * FROM answer('discreet', 'http', '{"secret": 1, "id": 7}', 200, '{"secret": "kept"}', '\x02');
SELECT * FROM answer('discreet', 'http', NULL);

-- headers that carry credentials are left out, whatever their case, of answers and of failures
SELECT * FROM answer('discreet', 'cookie', NULL, 200, '{"Set-Cookie": "a=b", "etag": "7", "AUTHORIZATION": ["x"], "cookies": "kept"}');
SELECT * FROM answer('discreet', 'cookie', NULL);
SELECT * FROM answer('discreet', 'list', NULL, 200, '{"WWW-Authenticate": ["Basic", "Digest"], "Vary": ["Accept", "Origin"], "Link": []}');
SELECT headers, redacted FROM answer('discreet', 'list', NULL);
SELECT idem.fail(token, '{"message": "no"}', 401, '{"Www-Authenticate": "Basic", "Location": "/login"}') FROM idem.claim('discreet', 'refused');
SELECT headers, redacted FROM idem.lookup('discreet', 'refused');
SELECT idem.alter_scope('discreet', header_exclude => '{X-Secret}');
SELECT headers, redacted FROM answer('discreet', 'own', NULL, 200, '{"Set-Cookie": "kept", "x-secret": "s"}');
SELECT headers, redacted FROM idem.lookup('discreet', 'own');
SELECT idem.alter_scope('discreet', header_exclude => '{}');
SELECT headers, redacted FROM answer('discreet', 'all', NULL, 200, '{"x-secret": "s"}');
SELECT headers, redacted FROM idem.lookup('discreet', 'all');
-- so headers have one form, in which no name can hide from the list and no value can end its header
\set SHOW_CONTEXT never
DO $$
DECLARE
  c idem.claim_result;
  form text;
  said text;
  hint text;
BEGIN
  c := idem.claim('discreet', 'forms');
  FOREACH form IN ARRAY '{
    "[[\"Set-Cookie\", \"sid=SECRET\"]]", "[{\"name\": \"Set-Cookie\", \"value\": \"sid=SECRET\"}]", "[]", "\"x\"", "null", "7",
    "{\"Set-Cookie \": \"a\"}", "{\" Set-Cookie\": \"a\"}", "{\"X\\r\\nY\": \"a\"}", "{\"\": \"a\"}", "{\"A:\": \"a\"}", "{\"Ü\": \"a\"}",
    "{\"X-A\": \"1\\r\\nSet-Cookie: sid=evil\"}", "{\"X-A\": \"1\\n2\"}", "{\"X-A\": \"\\t\"}", "{\"X-A\": \"\\u007f\"}", "{\"X-A\": [\"1\", \"\\r\"]}",
    "{\"X-A\": 7}", "{\"X-A\": null}", "{\"X-A\": true}", "{\"X-A\": {\"b\": \"c\"}}", "{\"X-A\": [[\"b\"]]}", "{\"X-A\": [7]}", "{\"X-A\": [{}]}"}'::text[] LOOP
    BEGIN
      PERFORM idem.complete(c.token, headers => form::jsonb);
      RAISE EXCEPTION 'accepted: %', form;
    EXCEPTION WHEN invalid_parameter_value THEN
      GET STACKED DIAGNOSTICS said = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
      RAISE NOTICE '%', translate(said, E'\r\n', '^|');
    END;
  END LOOP;
  RAISE NOTICE '%', hint;
  BEGIN
    PERFORM idem.fail(c.token, '{"message": "no"}', headers => '[["Set-Cookie", "sid=SECRET"]]');
  EXCEPTION WHEN invalid_parameter_value THEN
    RAISE NOTICE '%', SQLERRM;
  END;
  PERFORM idem.complete(c.token, headers => '{"X-A": "ü", "!#$%&''*+-.^_`|~": ""}');
END $$;
SELECT headers FROM idem.lookup('discreet', 'forms');

-- Names in double quotes are members, whatever they look like. A dot inside the quotes means the same
-- as one between names.
SELECT idem.create_scope('quoted', request_exclude => ARRAY['"/sent"'],
  response_exclude => ARRAY['"/card/number"', 'items."2024"', '"x[1]"."\"\\"', '"a.b"', '"$"', 'c.""']);
CREATE FUNCTION remains(scope text, given jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE key text := idem.new_key();
BEGIN
  PERFORM idem.complete(token, given) FROM idem.claim(scope, key);
  RETURN response FROM idem.lookup(scope, key);
END $$;
SELECT given, remains('quoted', given) FROM (VALUES
  ('{"/card/number": 1, "card": {"number": 2}, "items": [{"2024": 3, "2025": 4}], "$": 5}'::jsonb),
  ('{"x[1]": {"\"\\": 1, "y": 2}, "x": [1, {"\"\\": 3}]}'),
  ('{"a.b": 1, "a": {"b": 2, "c": 3}, "c": {"": 4, "d": 5}}')) v(given);
SELECT idem.complete(token) FROM idem.claim('quoted', 'request', '{"/sent": 1, "sent": 1}');
SELECT outcome FROM idem.try_claim('quoted', 'request', '{"/sent": 2, "sent": 1}');
SELECT outcome FROM idem.try_claim('quoted', 'request', '{"/sent": 2, "sent": 2}');
SELECT response_exclude FROM idem.scopes WHERE name = 'quoted';

-- the rules at the moment of completion count; stored answers stay
SELECT idem.create_scope('changing');
SELECT response FROM answer('changing', 'before', '{"a": 1, "b": 2}');
BEGIN;
SELECT token AS t FROM idem.claim('changing', 'during') \gset
UPDATE idem.scope SET response_exclude = '{a}' WHERE name = 'changing';
SELECT idem.complete(:'t', '{"a": 1, "b": 2}');
COMMIT;
SELECT key, response, redacted FROM unnest('{before,during}'::text[]) key, answer('changing', key, NULL);
SELECT idem.alter_scope('changing', store_response => false, response_exclude => '{}');
SELECT response, redacted FROM answer('changing', 'after', '{"a": 1}');
SELECT response, redacted FROM answer('changing', 'after', NULL);

-- under a lease, and by execute
SELECT idem.complete(token, '{"secret": 1, "id": 7}') FROM idem.claim('discreet', 'leased', lease => '1 hour');
SELECT response, redacted FROM answer('discreet', 'leased', NULL);
CREATE FUNCTION operation(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT request || '{"secret": 1}' $$;
SELECT replayed, redacted, response FROM idem.execute('discreet', 'executed', 'operation(jsonb)', '{"id": 7}');
SELECT replayed, redacted, response FROM idem.execute('discreet', 'executed', 'operation(jsonb)', '{"id": 7}');


-- failures are stored whole
SELECT idem.fail(token, '{"message": "no", "detail": "said the bank"}', 402, '{"A": "b"}', '\x03') FROM idem.claim('silent', 'failed');
SELECT outcome, error, status, headers, body, redacted FROM idem.try_claim('silent', 'failed');
SELECT idem.fail(token, '{"message": "no", "detail": "secret"}') FROM idem.claim('discreet', 'failed');
SELECT outcome, error, redacted FROM idem.try_claim('discreet', 'failed');

-- "redacted" is false where there is no stored answer
SELECT redacted FROM idem.lookup('silent', 'absent');
BEGIN;
SELECT outcome, redacted FROM idem.claim('silent', 'open');
SELECT state, redacted FROM idem.lookup('silent', 'open');
ROLLBACK;

-- names beyond ASCII, whatever the database's encoding, in requests too
SELECT current_database() AS here \gset
CREATE DATABASE idem_regress_latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0;
\c idem_regress_latin1
CREATE EXTENSION idem;
SET client_encoding = 'UTF8';
SELECT idem.create_scope('s', request_exclude => '{größe}', response_exclude => '{schlüssel.größe}');
SELECT idem.complete(token, '{"schlüssel": {"größe": 1, "art": "ß"}}') FROM idem.claim('s', 'k', '{"größe": 1}');
SELECT outcome, response FROM idem.try_claim('s', 'k', '{"größe": 2}');
\c :here
DROP DATABASE idem_regress_latin1;
DROP FUNCTION answer, stored, operation;
