-- A final failure is stored, and raised again with what it was stored with.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('failures');
CREATE FUNCTION fail(key text, error jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM idem.fail((idem.claim('failures', key)).token, error, 402, '{"X": 1}', '\x01'); END $$;
CREATE FUNCTION raised(key text) RETURNS TABLE (state text, message text, detail text, hint text) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.claim('failures', key);
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  RETURN NEXT;
END $$;

SELECT fail('whole', '{"sqlstate": "P0001", "message": "card declined", "detail": "no funds, 100%d", "hint": "use %s"}');
SELECT fail('no state', '{"message": "just so"}');
SELECT fail('nothing', '{}');
SELECT fail('empty', '{"sqlstate": "40001", "message": "", "detail": "", "hint": ""}');
SELECT fail('not text', '{"sqlstate": 23505, "message": ["x"]}');
SELECT fail('lower', '{"sqlstate": "p0001"}');
SELECT fail('long', '{"sqlstate": "P00011"}');
SELECT fail('success', '{"sqlstate": "00000"}');
SELECT fail('warning', '{"sqlstate": "01000"}');
SELECT fail('no data', '{"sqlstate": "02000"}');
SELECT fail('incomplete', '{"sqlstate": "03000"}');
SELECT fail('ours', '{"sqlstate": "ID002"}');
SELECT fail('standard', '{"sqlstate": "23505", "message": "duplicate"}');
\x on
SELECT k, r.* FROM unnest(ARRAY['whole', 'no state', 'nothing', 'empty', 'not text']) k, raised(k) r;
\x off
SELECT k, r.state FROM unnest(ARRAY['lower', 'long', 'success', 'warning', 'no data', 'incomplete', 'ours', 'standard']) k, raised(k) r;
SELECT c.claimed, c.outcome, c.error, c.status, c.headers, c.body FROM idem.try_claim('failures', 'whole') c;
SELECT state, error FROM idem.lookup('failures', 'whole');

-- an error is an object
SELECT fail('null', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT fail('array', '["x"]');
\echo :LAST_ERROR_SQLSTATE
SELECT fail('string', '"x"');
\echo :LAST_ERROR_SQLSTATE
SELECT k, state FROM unnest(ARRAY['null', 'array', 'string']) k, idem.lookup('failures', k);

-- another request comes before the failure
DO $$ BEGIN PERFORM idem.fail((idem.claim('failures', 'bound', '{"a": 1}')).token, '{"message": "no"}'); END $$;
SELECT idem.claim('failures', 'bound', '{"a": 2}');
\echo :LAST_ERROR_SQLSTATE

-- a transient failure is a rollback: nothing is stored
DO $$ BEGIN PERFORM idem.claim('failures', 'transient'); RAISE division_by_zero; END $$;
SELECT state FROM idem.lookup('failures', 'transient');
DROP FUNCTION fail, raised;
