-- What bench/cpu adds to the operations of instructions.sql: functions that a client calls, the
-- blocks that it measures, and the report.
\set ON_ERROR_STOP on

-- The operation, what it is compared with, what is subtracted from both, and what the ratio may be.
CREATE TABLE bench.scene (
  what text, keys text, operation text, yardstick text, base text, goal numeric);
INSERT INTO bench.scene VALUES
  ('claim and complete of UUIDv4 / INSERT', 'v4', 'claim', 'insert', 'bare', 1.08),
  ('claim and complete of UUIDv7 / INSERT', 'v7', 'claim', 'insert', 'bare', 1.12),
  ('once / INSERT', 'once', 'once', 'insert', 'bare', 0.92),
  ('replay / SELECT by key', 'known', 'claim', 'select', 'nothing', 1.00);

SELECT format($sql$
  CREATE FUNCTION bench.call_%s(k text) RETURNS jsonb LANGUAGE plpgsql AS $$
  DECLARE request jsonb; answer jsonb; c idem.claim_result;
  BEGIN
    request := jsonb_build_object('amount', 10.50, 'currency', 'EUR', 'to', 'account 77');
    %s
    RETURN answer;
  END $$ $sql$, name, body)
  FROM bench.operation
 WHERE name IN (SELECT unnest(ARRAY[operation, yardstick, base]) FROM bench.scene)
\gexec

CREATE TABLE bench.block (place text, keys text, round int, operation text, usec float8);

-- The lines that the client reads: in each round, each contender at each place, and again in
-- reverse order. New keys are used once.
CREATE FUNCTION bench.blocks(rounds int, n int) RETURNS SETOF text LANGUAGE sql AS $$
  SELECT format(E'%s %s %s %s\t%s', place, keys, round, contender, CASE place
           WHEN 'procedure' THEN format('CALL bench.run_%s(%L, %s, %s)', contender, keys, first, n)
           ELSE format(E'SELECT bench.call_%s($1)\tSELECT unnest(bench.keys(%L, %s, %s))',
                       contender, keys, first, n)
         END)
    FROM generate_series(0, rounds) round, bench.scene,
         (VALUES (0, 'procedure'), (1, 'client')) places (side, place),
         LATERAL (VALUES (0, base), (1, yardstick), (2, operation),
                         (3, operation), (4, yardstick), (5, base)) turns (turn, contender),
         LATERAL (SELECT CASE keys WHEN 'known' THEN 1
                                   ELSE ((round * 2 + turn / 3) * 2 + side) * n + 1 END) f (first)
   ORDER BY round, side, keys, turn
$$;

-- Each ratio with the interval that has its median, as the notches of a box plot show it, and what
-- is known of the goal, a tenth above which is too much.
CREATE FUNCTION bench.report(n int)
RETURNS TABLE (place text, what text, base numeric, yardstick numeric, operation numeric,
               ratio numeric, low numeric, high numeric, goal numeric, verdict text)
LANGUAGE sql AS $$
  WITH contender AS (
    SELECT b.place, b.keys, b.round, b.operation, avg(usec) / n AS usec
      FROM bench.block b WHERE round > 0 GROUP BY 1, 2, 3, 4),
  pair AS (
    SELECT b.place, s.*, b.usec AS bare, y.usec - b.usec AS least, o.usec - b.usec AS adds
      FROM bench.scene s
      JOIN contender b ON b.keys = s.keys AND b.operation = s.base
      JOIN contender y ON (y.place, y.keys, y.round) = (b.place, b.keys, b.round)
                      AND y.operation = s.yardstick
      JOIN contender o ON (o.place, o.keys, o.round) = (b.place, b.keys, b.round)
                      AND o.operation = s.operation),
  median AS (
    SELECT place, what, goal, percentile_cont(0.5) WITHIN GROUP (ORDER BY bare) AS bare,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY least) AS least,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY adds) AS adds,
           (percentile_cont(0.75) WITHIN GROUP (ORDER BY adds / least)
            - percentile_cont(0.25) WITHIN GROUP (ORDER BY adds / least))
           * 1.57 / sqrt(count(*)) AS notch
      FROM pair GROUP BY 1, 2, 3)
  SELECT place, what, round(bare::numeric, 1), round(least::numeric, 1), round(adds::numeric, 1),
         round((adds / least)::numeric, 2), round((adds / least - notch)::numeric, 2),
         round((adds / least + notch)::numeric, 2), goal,
         CASE WHEN notch > goal / 10 THEN 'not measurable'
              WHEN adds / least - notch > goal * 1.1 THEN 'exceeded'
              WHEN adds / least <= goal THEN 'met' ELSE 'nearly met' END
    FROM median ORDER BY place DESC, what
$$;
