-- The same without idem, as applications often do it: look whether it was done, and if not, do it.
-- With BREAK=1, the checker must find what comes of that.
CREATE INDEX ON chaos.effect (key);

CREATE OR REPLACE FUNCTION chaos.call(kind text, key text, uid text, token text) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  done chaos.effect;
BEGIN
  IF kind = 'advance' THEN
    SELECT * INTO done FROM chaos.effect e WHERE e.key = key AND e.seq >= token::bigint LIMIT 1;
  ELSIF kind IN ('claim', 'wait', 'try', 'try_wait', 'execute', 'once') THEN
    SELECT * INTO done FROM chaos.effect e WHERE e.key = key LIMIT 1;
  ELSE
    RETURN 'skipped';
  END IF;
  IF FOUND THEN
    RETURN CASE WHEN kind IN ('advance', 'once') THEN 'had ? c' ELSE 'had ' || done.uid || ' c' END;
  END IF;
  INSERT INTO chaos.effect (key, uid, seq)
    VALUES (key, uid, CASE kind WHEN 'advance' THEN token::bigint END);
  RETURN 'did';
END $$;

CREATE OR REPLACE FUNCTION chaos.each(keys text[], uid text) RETURNS text[] LANGUAGE sql AS $$
  WITH new AS (
    INSERT INTO chaos.effect (key, uid)
      SELECT asked.key, uid FROM unnest(keys) asked (key)
      WHERE NOT EXISTS (SELECT FROM chaos.effect e WHERE e.key = asked.key) RETURNING effect.key
  )
  SELECT coalesce(array_agg(key), '{}') FROM new
$$;
