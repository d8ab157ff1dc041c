-- Errors as HTTP statuses and as problems of RFC 9457.
\set SHOW_CONTEXT never
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT s AS sqlstate, idem.http_status(s), idem.problem(s)->>'type' AS type, idem.problem(s)->>'title' AS title
  FROM (SELECT 'ID' || lpad(i::text, 3, '0') FROM generate_series(0, 13) i
        UNION ALL SELECT unnest(ARRAY['00000', '01000', '08006', '22023', '22P02', '23505', '25006', '40001', '40P01', '42501',
                                      '42P01', '53100', '55P03', '57014', '58030', 'P0001', 'XX000'])) x(s) ORDER BY s COLLATE "C";

SELECT jsonb_pretty(idem.problem('ID001', 'Process 42 holds this key.'));
SELECT idem.problem('22023');
SELECT idem.problem('22023', '') ->> 'detail' = '' AS an_empty_detail_is_one;
SELECT idem.problem('ID002', E'"quoted" \\ and\nbroken, übergroß') ->> 'detail';
SELECT bool_and((idem.problem(s)->>'status')::int = idem.http_status(s) AND idem.problem(s)->>'sqlstate' = s)
  FROM unnest(ARRAY['ID001', '40001', '42501', 'P0001']) s;

-- from an exception block
DO $$
DECLARE problem jsonb; message text;
BEGIN
  PERFORM idem.claim('no such scope', 'k');
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
  problem := idem.problem(SQLSTATE, message);
  RAISE NOTICE '% %', problem->>'status', problem->>'detail';
END $$;

SELECT idem.http_status(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.problem(NULL, 'detail');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.http_status('id001');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.problem('4000');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.http_status('');
\echo :LAST_ERROR_SQLSTATE
SELECT idem.http_status('400011');
\echo :LAST_ERROR_SQLSTATE

-- The key in a request's header. The cases are also those of the clients.
\set cases `cat "$PG_ABS_SRCDIR/data/idempotency_key.json"`
CREATE FUNCTION key_in(header text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE reason text;
BEGIN
  RETURN idem.parse_key(header);
EXCEPTION WHEN SQLSTATE 'ID007' THEN
  GET STACKED DIAGNOSTICS reason = PG_EXCEPTION_DETAIL;
  RETURN format('%s %s', SQLERRM, reason);
END $$;
CREATE FUNCTION key_error(header text, OUT schema_name text, OUT constraint_name text) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.parse_key(header);
EXCEPTION WHEN SQLSTATE 'ID007' THEN
  GET STACKED DIAGNOSTICS schema_name = SCHEMA_NAME, constraint_name = CONSTRAINT_NAME;
END $$;
SELECT header, expected, got
  FROM jsonb_array_elements((:'cases'::jsonb)->'keys') c, LATERAL (SELECT c->>0, c->>1, key_in(c->>0)) x (header, expected, got)
 WHERE got IS DISTINCT FROM expected;
SELECT count(*), count(idem.parse_key(header)) AS keys FROM jsonb_array_elements_text((:'cases'::jsonb)->'none') header;
SELECT left(header, 30) AS header, key_in(header) FROM jsonb_array_elements_text((:'cases'::jsonb)->'invalid') header;
SELECT idem.parse_key('a b');
\echo :LAST_ERROR_SQLSTATE
SELECT schema_name, constraint_name FROM key_error('a b');
-- Every character, between others, after a backslash, and without quotes.
SELECT bool_and((key_in('"a' || c || 'b"') = 'a' || c || 'b') = (is_printable AND NOT is_special)) AS in_quotes,
       bool_and((key_in('"\' || c || '"') = c) = is_special) AS escaped,
       bool_and((key_in('a' || c || 'b') = 'a' || c || 'b') = (is_printable AND c !~ '[ ",;]')) AS without_quotes
  FROM generate_series(1, 255) i, LATERAL (SELECT chr(i), i BETWEEN 32 AND 126, chr(i) IN ('"', '\')) x (c, is_printable, is_special);
SELECT key_in(' ' || '"' || repeat('k', 100000) || '"'), key_in(repeat('k', 100000)), idem.parse_key('"' || repeat('\"', 255) || '"') = repeat('"', 255) AS escapes;
-- Where the fault is, blanks in front included.
SELECT key_in(E' \t"a'), key_in(' a,b'), key_in(' "a" "b"'), key_in('"k";v=1;v=1,2');
-- Settings do not change what the patterns mean, also when a session compiles the function.
\c -
SELECT current_setting('server_version_num')::integer < 190000 AS settable \gset
\if :settable
SET standard_conforming_strings = off;
SET escape_string_warning = off;
\endif
SELECT idem.parse_key(E'"a\\"b\\\\"; v="\\""'), idem.parse_key(E'a\\b');
\if :settable
RESET escape_string_warning;
RESET standard_conforming_strings;
\endif

-- What a claim returned, as a response.
SELECT idem.create_scope('http', ttl => '1 hour');
CREATE TEMP TABLE answer (n integer, c idem.claim_result);
BEGIN;
INSERT INTO answer SELECT 1, c FROM idem.claim('http', 'k', '{"a": 1}') c;
INSERT INTO answer SELECT 2, c FROM idem.try_claim('http', 'k', '{"a": 1}') c;
SELECT idem.complete((c).token, '{"b": 1}', 201, '{"Location": "/b/1", "Link": ["</a>", "</b>"], "Content-Length": "12", "None": []}') FROM answer WHERE n = 1;
COMMIT;
INSERT INTO answer SELECT 3, c FROM idem.try_claim('http', 'k', '{"a": 1}') c;
INSERT INTO answer SELECT 4, c FROM idem.try_claim('http', 'k', '{"a": 2}') c;
INSERT INTO answer SELECT 5, c FROM idem.try_claim('http', 'leased', lease => '1 hour') c;
INSERT INTO answer SELECT 6, c FROM idem.try_claim('http', 'leased') c;
BEGIN;
SELECT idem.fail(token, '{"sqlstate": "P0001", "message": "card declined"}') FROM idem.claim('http', 'failed');
SELECT idem.fail(token, '{"sqlstate": "P0001"}', 402, '{"X": "y"}') FROM idem.claim('http', 'failed 402');
SELECT idem.complete(token) FROM idem.claim('http', 'nothing');
COMMIT;
INSERT INTO answer SELECT 7, c FROM idem.try_claim('http', 'failed') c;
INSERT INTO answer SELECT 8, c FROM idem.try_claim('http', 'failed 402') c;
INSERT INTO answer SELECT 9, c FROM idem.try_claim('http', 'nothing') c;
SELECT idem.alter_scope('http', reject_stale_keys => true);
INSERT INTO answer SELECT 10, c FROM idem.try_claim('http', '018f0000-0000-7000-8000-000000000000') c;
SELECT n, (c).outcome, idem.http_status(c), regexp_replace(idem.http_headers(c)::text, '(?<=Retry-After": ")\d+', 'N') AS headers, idem.problem(c) - 'type' - 'title' AS problem FROM answer ORDER BY n;
SELECT count(*), bool_and(idem.problem(c) - 'detail' - 'status' = idem.problem(idem.problem(c)->>'sqlstate') - 'status') AS same_problem
  FROM answer WHERE idem.problem(c) IS NOT NULL;

-- One code, one meaning: what claim() raises has the status and the problem that the row of
-- try_claim() has.
CREATE FUNCTION raised(key text, request jsonb DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.claim('http', key, request, wait => '0');
  RETURN '00000';
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE;
END $$;
SELECT idem.alter_scope('http', max_attempts => 1);
SELECT claimed FROM idem.claim('http', 'running', lease => '1 hour');
SELECT claimed FROM idem.claim('http', 'exhausted', lease => '1 microsecond');
SELECT key, raised(key, request), c.outcome, idem.http_status(c) = idem.http_status(raised(key, request)) AS same_status,
       idem.problem(c)->>'type' = idem.problem(raised(key, request))->>'type' AS same_problem
  FROM (VALUES ('running', NULL::jsonb), ('exhausted', NULL), ('failed', '1'), ('nothing', NULL), ('018f0000-0000-7000-8000-000000000000', NULL)) call (key, request),
       idem.try_claim('http', key, request) c;
-- Undecided: no replay, and nothing of what its last attempt reported.
SELECT idem.release(token, error => '{"message": "gateway down"}') FROM idem.claim('http', 'released', lease => '1 hour');
SELECT c.outcome, c.error, idem.http_status(c), idem.http_headers(c), idem.problem(c) FROM idem.try_claim('http', 'released') c;
-- No retry cures a transaction with too many claims, and no client a tenant that the service forgot.
BEGIN;
SET LOCAL idem.max_open_claims = 1;
SELECT idem.once('http', 'one');
SAVEPOINT one;
SELECT idem.try_claim('http', 'two');
ROLLBACK TO one;
SELECT raised('two'), idem.http_status(raised('two'));
SELECT raised('one');
ROLLBACK;
SELECT idem.alter_scope('http', tenant_required => true);
SELECT raised('three'), idem.http_status(raised('three'));
SELECT idem.try_claim('http', 'three');
SELECT idem.alter_scope('http', tenant_required => false, max_attempts => -1);
DROP FUNCTION raised;

-- The time to wait, in seconds.
SELECT i AS retry_after, idem.http_headers(jsonb_populate_record(NULL::idem.claim_result, jsonb_build_object('claimed', false, 'outcome', 'in_progress', 'retry_after', i)))
  FROM unnest('{0, 0.1 s, 1 s, 1.000001 s, 2 min, 1 day}'::interval[]) i;

-- The status and headers of the first answer may be set in the row that its claim returned.
DO $$
DECLARE c idem.claim_result := idem.claim('http', 'first');
BEGIN
  c.status := 202;
  c.headers := '{"Location": "/b/2"}';
  c.response := idem.complete(c.token, '{"b": 2}', c.status, c.headers);
  RAISE NOTICE '% %', idem.http_status(c), idem.http_headers(c);
END $$;

-- Literals and parameters without a type are SQLSTATEs.
SELECT idem.http_status('ID002'), idem.problem('ID002')->>'status' AS problem;
PREPARE untyped AS SELECT idem.http_status($1), idem.problem($1)->>'status', idem.problem($1, $2)->>'detail';
EXECUTE untyped('ID002', 'x');

-- Headers that are none, and what no claim returned.
CREATE FUNCTION headers_of(headers jsonb) RETURNS jsonb LANGUAGE sql AS $$
  SELECT idem.http_headers(jsonb_populate_record(NULL::idem.claim_result, jsonb_build_object('claimed', false, 'outcome', 'completed', 'headers', headers)));
$$;
SELECT headers_of('{}'), headers_of(NULL), headers_of('{"X": "\u00fc\"\\", "Link": ["a", "b"], "Via": []}');
SELECT headers_of('[]');
\echo :LAST_ERROR_SQLSTATE
SELECT headers_of('"x"');
SELECT headers_of('{"a": null}');
SELECT headers_of('{"a": {"b": "c"}}');
SELECT headers_of('{"a": [["b"]]}');
SELECT headers_of('{"a": 7}');
SELECT headers_of('{"X-A": "1\r\nSet-Cookie: sid=evil"}');
SELECT headers_of('{"Set-Cookie ": "a"}');
SELECT idem.http_headers(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem.http_status(NULL::idem.claim_result);
SELECT idem.problem(NULL::idem.claim_result);
SELECT idem.http_status(jsonb_populate_record(NULL::idem.claim_result, jsonb_build_object()));
SELECT idem.http_status(jsonb_populate_record(NULL::idem.claim_result, jsonb_build_object('outcome', 'done')));
\echo :LAST_ERROR_SQLSTATE
