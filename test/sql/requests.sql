-- Which requests are equal, and which are not.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('requests', request_exclude => '{sent_at, meta.trace_id, items.seen_at}');
CREATE FUNCTION same(a jsonb, b jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; k text := gen_random_uuid();
BEGIN
  c := idem.claim('requests', k, a);
  PERFORM idem.complete(c.token);
  c := idem.try_claim('requests', k, b);
  RETURN CASE c.outcome WHEN 'completed' THEN 'same' ELSE c.outcome END;
END $$;

SELECT left(a::text, 40) AS a, left(b::text, 40) AS b, same(a, b), same(b, a) FROM (VALUES
  ('{"a": 1, "b": 2}'::jsonb, '{"b":2,"a":1}'::jsonb),
  ('1', '1.0'), ('1', '1e0'), ('100', '1E+2'), ('0', '-0.00'), ('0.10', '1e-1'), ('-5', '-5.0'), ('1e300', '1000e297'),
  ('1', '-1'), ('1', '10'), ('10000', '1'), ('0.0001', '1'), ('0', '1'),
  ('12345678901234567890.123456789', '12345678901234567890.123456788'),
  ('9007199254740993', '9007199254740992'),
  ('1', '"1"'), ('1', '[1]'), ('1', '{"1": 1}'), ('null', 'false'), ('null', '{}'), ('[]', '{}'), ('""', 'null'),
  ('[1, 2]', '[2, 1]'), ('[[], []]', '[[[]]]'), ('[[1], 2]', '[1, [2]]'), ('["a", "b"]', '["ab"]'), ('["ab", "c"]', '["a", "bc"]'),
  ('{"a": {"b": 1}}', '{"a": {}, "b": 1}'), ('{"a": null}', '{}'), ('{"a": "b"}', '["a", "b"]'),
  ('{"ä": "ö"}', '{"a": "o"}'), ('"A"', '"a"'), ('"a"', '"a "')
) x(a, b);
SELECT same(NULL, NULL), same(NULL, 'null'), same('null', NULL), same(NULL, '{}'), same('{}', NULL);

-- excluded members
SELECT a, b, same(a, b) FROM (VALUES
  ('{"a": 1, "sent_at": 1}'::jsonb, '{"a": 1, "sent_at": [2, {"x": 3}]}'::jsonb),
  ('{"a": 1, "sent_at": 1}', '{"a": 1}'),
  ('{"meta": {"trace_id": 1, "x": 1}}', '{"meta": {"trace_id": 2, "x": 1}}'),
  ('{"meta": {"trace_id": 1, "x": 1}}', '{"meta": {"trace_id": 1, "x": 2}}'),
  ('{"trace_id": 1}', '{"trace_id": 2}'),
  ('{"meta": 1}', '{"meta": {"trace_id": 1}}'),
  ('{"meta": {"sent_at": 1}}', '{"meta": {"sent_at": 2}}'),
  ('{"items": [{"n": 1, "seen_at": 1}, {"n": 2, "seen_at": 2}]}', '{"items": [{"n": 1}, {"n": 2, "seen_at": 5}]}'),
  ('{"items": [{"n": 1, "seen_at": 1}]}', '{"items": [{"n": 2, "seen_at": 1}]}'),
  ('[{"sent_at": 1}, {"sent_at": 2}]', '[{}, {}]'),
  -- the object around an excluded member stays
  ('{"meta": {"trace_id": 6}}', '{"meta": {}}'),
  ('{"meta": {"trace_id": 6}}', '{}')
) x(a, b);

-- deep and large requests, and numbers that are short to write but long to print
SELECT same(d, d), same(d, jsonb_set(d, '{0}', '1')) FROM (SELECT (repeat('[', 1000) || '1' || repeat(']', 1000))::jsonb d) x;
SELECT same(d, d), same(d, d || '1') FROM (SELECT jsonb_agg(jsonb_build_object('i', i, 't', repeat('x', 1000))) d FROM generate_series(1, 5000) i) x;
SELECT same(d, d), same(d, d || '1e131000') FROM (SELECT jsonb_agg('1e131000'::jsonb) d FROM generate_series(1, 1000)) x;

-- One request in two scopes has one fingerprint, which does not reveal it without the secret.
SELECT idem.create_scope('others', request_exclude => request_exclude) FROM idem.scopes WHERE name = 'requests';
DO $$ BEGIN PERFORM idem.complete((idem.claim('requests', 'f', '{"pin": 1234}')).token);
            PERFORM idem.complete((idem.claim('others', 'f', '{"pin": 1234}')).token); END $$;
SELECT count(DISTINCT fingerprint), min(length(fingerprint)) > 16 AS stored FROM idem.record WHERE key = 'f';
DROP FUNCTION same;

-- Conflicts in the server log: however the caller learns of them, and without the requests.
SET idem.log_conflicts = 'notice';
SELECT outcome FROM idem.try_claim('requests', 'f', '{"pin": 4321}', tenant => '');
DO $$ BEGIN PERFORM idem.claim('others', 'f'); EXCEPTION WHEN SQLSTATE 'ID002' THEN NULL; END $$;
SELECT idem.once('others', 'f', '{}');
SELECT idem.complete(token) IS NULL FROM idem.claim('others', 'of a tenant', '1', tenant => 'acme');
SELECT outcome FROM idem.try_claim('others', 'of a tenant', '2', tenant => 'acme');
SELECT outcome FROM idem.try_claim('others', 'of a tenant', '1', tenant => 'acme');
SET idem.log_conflicts = 'error';
SET idem.log_conflicts = 'off';
SELECT outcome FROM idem.try_claim('others', 'of a tenant', '2', tenant => 'acme');
SET ROLE pg_monitor;
SET idem.log_conflicts = 'log';
RESET ROLE;

-- A fingerprint of a later release is not compared.
BEGIN;
UPDATE idem.record SET fingerprint = set_byte(fingerprint, 0, get_byte(fingerprint, 0) # 100) WHERE key = 'f';
SELECT outcome FROM idem.try_claim('requests', 'f', '{"pin": 1234}');
ROLLBACK;
SELECT outcome FROM idem.try_claim('requests', 'f', '{"pin": 1234}');
