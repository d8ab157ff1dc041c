-- The records of "lasting" are in a table that is moved under load. Each call learns where they are,
-- and keeps them there until its transaction ends. It chooses that table for every key: the other
-- scopes do not mind.
SELECT idem.alter_scope('lasting', records => true);
CREATE SCHEMA elsewhere;
SELECT idem.create_record_table('elsewhere.lasting', 'tenant_id', 'text');
SELECT idem.create_record_table('elsewhere.moved', 'tenant_id', 'text');
CREATE TABLE chaos.place (records regclass);
INSERT INTO chaos.place VALUES ('elsewhere.lasting');

-- The advisory lock lets a move have its turn. FOR SHARE refuses a snapshot from before the move.
CREATE OR REPLACE FUNCTION chaos.choose() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  here regclass;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(7);
  SELECT records INTO STRICT here FROM chaos.place FOR SHARE;
  PERFORM idem.use_records(here);
END $$;

CREATE PROCEDURE chaos.move() LANGUAGE plpgsql AS $$
DECLARE
  here regclass;
  there regclass;
BEGIN
  PERFORM pg_advisory_xact_lock(7);
  SELECT records INTO STRICT here FROM chaos.place FOR UPDATE;
  there := CASE here WHEN 'elsewhere.moved'::regclass THEN 'elsewhere.lasting'
           ELSE 'elsewhere.moved' END;
  EXECUTE format('INSERT INTO %s SELECT * FROM %s', there, here);
  EXECUTE format('DELETE FROM %s', here);
  UPDATE chaos.place SET records = there;
END $$;
