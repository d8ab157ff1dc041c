-- Errors as HTTP statuses and as problems of RFC 9457.
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
