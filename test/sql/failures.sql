-- A final failure is stored and raised again with the same data.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('failures');
CREATE FUNCTION fail(key text, error jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM idem.fail((idem.claim('failures', key)).token, error, 402, '{"X": "1"}', '\x01'); END $$;
CREATE FUNCTION raised(key text) RETURNS TABLE (state text, message text, detail text, hint text) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.claim('failures', key);
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  detail := regexp_replace(detail, '\d{4}-\d\d-\d\d [^,]*', 'TIME');
  RETURN NEXT;
END $$;

SELECT fail('whole', '{"sqlstate": "P0001", "message": "card declined", "detail": "no funds, 100%d", "hint": "use %s"}');
SELECT fail('no state', '{"message": "just so"}');
SELECT fail('only state', '{"sqlstate": "P0042"}');
SELECT fail('standard', '{"sqlstate": "23505", "message": "duplicate"}');
\x on
SELECT k, r.* FROM unnest(ARRAY['whole', 'no state', 'only state']) k, raised(k) r;
\x off
SELECT k, r.state FROM unnest(ARRAY['standard']) k, raised(k) r;
SELECT c.claimed, c.outcome, c.error, c.status, c.headers, c.body FROM idem.try_claim('failures', 'whole') c;
SELECT state, error FROM idem.lookup('failures', 'whole');

-- an error that could not be raised again as given is refused at once, and the claim stays open
CREATE FUNCTION refused(error jsonb) RETURNS TABLE (state text, detail text, hint text) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fail('refused', error);
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  RETURN NEXT;
END $$;
\x on
SELECT error, r.* FROM unnest(ARRAY[NULL, '["x"]', '"x"', '{}', '{"detail": "Stolen."}', '{"code": "P0001", "error": "declined"}', '{"message": "declined", "cdoe": 5}',
  '{"message": 17}', '{"message": ""}', '{"message": ["x"]}', '{"message": {"message": "x"}}', '{"message": "x", "hint": null}',
  '{"sqlstate": 23505}', '{"sqlstate": "abc"}', '{"sqlstate": "00000"}', '{"sqlstate": "ID002"}', '{"sqlstate": "40001"}']::jsonb[]) error, refused(error) r;
\x off
SELECT state, string_agg(sqlstate, ' ') FROM unnest('{p0001,P00011,00000,01000,02000,03000,ID003,08006,25P02,40P01,42P01,53300,55P03,57014,72000,XX000,26000}'::text[]) sqlstate,
  refused(jsonb_build_object('sqlstate', sqlstate)) GROUP BY state;
SELECT state FROM idem.lookup('failures', 'refused');
BEGIN;
SELECT token AS t FROM idem.claim('failures', 'second try') \gset
SAVEPOINT mistake;
SELECT idem.fail(:'t', '{"sqlstate": "abc"}');
ROLLBACK TO mistake;
SELECT idem.fail(:'t', '{"sqlstate": "P0001"}');
COMMIT;
SELECT error FROM idem.lookup('failures', 'second try');

-- Failures that no function of idem stores: raised under their sqlstate, or as ID003 if that names
-- no failure.
CREATE FUNCTION stored(k text, stored jsonb) RETURNS void LANGUAGE sql AS $$
  SELECT fail(k, '{"message": "to be replaced"}');
  UPDATE idem.record SET error = stored WHERE key = k $$;
SELECT stored('nothing', '{}'), stored('empty', '{"sqlstate": "40001", "message": "", "detail": "", "hint": ""}'),
       stored('not text', '{"sqlstate": 23505, "message": ["x"]}');
\x on
SELECT k, r.* FROM unnest(ARRAY['nothing', 'empty', 'not text']) k, raised(k) r;
\x off
SELECT sqlstate, r.state FROM unnest('{p0001,P00011,00000,01000,02000,03000,ID002,42P01,XX000}'::text[]) sqlstate,
  LATERAL (SELECT stored(sqlstate, jsonb_build_object('sqlstate', sqlstate))) s, raised(sqlstate) r;

-- a different request conflicts, before the failure is raised
DO $$ BEGIN PERFORM idem.fail((idem.claim('failures', 'bound', '{"a": 1}')).token, '{"message": "no"}'); END $$;
SELECT idem.claim('failures', 'bound', '{"a": 2}');
\echo :LAST_ERROR_SQLSTATE

-- a transient failure is a rollback: nothing is stored
DO $$ BEGIN PERFORM idem.claim('failures', 'transient'); RAISE division_by_zero; END $$;
SELECT state FROM idem.lookup('failures', 'transient');
DROP FUNCTION fail, raised, refused, stored;
