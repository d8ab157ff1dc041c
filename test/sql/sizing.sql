-- Sizing, with the worked example of docs/guide.md.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.retention_window('10 s', '90 s', '30 s', '5 s');
SELECT idem.records_needed(80, idem.retention_window('10 s', '90 s', '30 s', '5 s'));
-- the margin is a fifth of the live records, so a sixth of the result
SELECT idem.records_needed(80, '135 s', margin => 0) AS alive, idem.records_needed(80, '135 s') - idem.records_needed(80, '135 s', margin => 0) AS margin;
SELECT round((idem.collision_probability(12960, 128) * 1e31)::numeric, 2) AS e_31;

-- a day is 24 hours, a month 30 days, as everywhere in idem
SELECT idem.retention_window('1 day', '1 month', '0', '0') = interval '31 days' AS fixed;
SELECT idem.retention_window(clock_skew => '1 s', network_delay => '2 s', retry_horizon => '3 s', caller_deadline => '4 s');
SELECT idem.records_needed(100, '1 s', 0.1), idem.records_needed(100.01, '1 s', 0), idem.records_needed(0.5, '1 day', margin => 0),
       idem.records_needed(0, '1 day'), idem.records_needed(80, '0');
SELECT n, b, idem.collision_probability(n, b)
  FROM (VALUES (0, 0), (1, 0), (2, 0), (2, 1), (3, 1), (2, 128), (9223372036854775807, 62), (2, 2147483647)) x(n, b);
-- a scope's TTL
SELECT idem.create_scope('sized', ttl => idem.retention_window('10 s', '90 s', '30 s', '5 s'));
SELECT ttl FROM idem.scopes;

-- what is missing makes the result NULL; what is out of range is PostgreSQL's error
CREATE FUNCTION attempt(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE result text;
BEGIN
  EXECUTE 'SELECT idem.' || call INTO result;
  RETURN result;
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
SELECT call, attempt(call) FROM unnest(ARRAY[
  $$retention_window(NULL, '0', '0', '0')$$, $$retention_window('0', NULL, '0', '0')$$, $$retention_window('0', '0', NULL, '0')$$,
  $$retention_window('0', '0', '0', NULL)$$, $$retention_window('170000000 years', '170000000 years', '0', '0')$$,
  $$records_needed(NULL, '1 s')$$, $$records_needed(1, NULL)$$, $$records_needed(1, '1 s', NULL)$$,
  $$records_needed('NaN', '1 s')$$, $$records_needed('inf', '1 s')$$, $$records_needed(1, '1 s', 'inf')$$,
  $$records_needed(1e18, '10 s')$$, $$records_needed(1e300, '1 day', 1e300)$$,
  $$collision_probability(NULL, 128)$$, $$collision_probability(1, NULL)$$,
  $$collision_probability(9223372036854775807, 0)$$, $$collision_probability(-1, -1)$$]) call;
-- the functions mean the same under any search_path
BEGIN;
CREATE SCHEMA shadow;
CREATE FUNCTION shadow.wrong(double precision, double precision) RETURNS double precision LANGUAGE sql AS 'SELECT 7.0::double precision';
CREATE OPERATOR shadow.* (LEFTARG = double precision, RIGHTARG = double precision, FUNCTION = shadow.wrong);
SET LOCAL search_path = shadow, pg_catalog;
SELECT idem.records_needed(80, '135 s'), 2::double precision * 2 AS shadowed;
ROLLBACK;
DROP FUNCTION attempt;
