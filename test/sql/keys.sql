-- Keys that idem makes.
DROP EXTENSION idem;
CREATE EXTENSION idem;

-- new_key: UUIDv7, in ascending order, as far as the clock
SELECT bool_and(key ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$') AS uuid_v7,
       bool_and(key COLLATE "C" > previous COLLATE "C") AS ascending, count(DISTINCT right(key, 12)) AS random
  FROM (SELECT key, lag(key) OVER (ORDER BY i) AS previous FROM (SELECT i, idem.new_key() AS key FROM generate_series(1, 10000) i) made) pairs;
SELECT ('x0000' || translate(left(idem.new_key(), 13), '-', ''))::bit(64)::bigint
       - floor(extract(epoch FROM clock_timestamp()) * 1000) BETWEEN -3600000 AND 3600000 AS of_now;
BEGIN READ ONLY;
SELECT length(idem.new_key());
COMMIT;
