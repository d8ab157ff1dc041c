-- Several record tables are purged as one: in turn, within one limit, from where the last purge
-- stopped. Rows of idem.purge_progress are read and written to see and set that place.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE FUNCTION run(scope text, key text) RETURNS boolean LANGUAGE sql AS $$ SELECT idem.once(scope, key) $$;
CREATE FUNCTION run(scope text, key text, records regclass) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.use_records(records);
  RETURN idem.once(scope, key, tenant => '1');
END $$;
SELECT idem.create_scope('short', ttl => '1 microsecond'), idem.create_scope('long');
-- After idem.record in the order of their OIDs. One has a column for the tenant.
SELECT idem.create_record_table('first_records'), idem.create_record_table('second_records', 'tenant_id', 'bigint');
SELECT idem.create_scope('first', ttl => '1 microsecond', records => true);
SELECT idem.create_scope('second', ttl => '1 microsecond', records => true);
SELECT count(run('short', 'k' || i)) + count(run('long', 'k' || i)) AS here FROM generate_series(1, 300) i;
SELECT count(run('first', 'k' || i, 'first_records')) AS first FROM generate_series(1, 300) i;
SELECT count(run('second', 'k' || i, 'second_records')) AS second FROM generate_series(1, 300) i;
UPDATE idem.purge_progress SET position = 0;
SELECT idem.purge(350);
SELECT (SELECT count(*) FROM idem.record), (SELECT count(*) FROM first_records), (SELECT count(*) FROM second_records);
-- The position stays within the second table; what a table has gained before it waits for the next round.
SELECT position >> 32 = 'first_records'::regclass::oid::bigint AS first FROM idem.purge_progress;
SELECT count(run('short', 'again' || i)) AS again FROM generate_series(1, 100) i;
SELECT idem.purge(400);
SELECT (SELECT count(*) FROM idem.record), (SELECT count(*) FROM first_records), (SELECT count(*) FROM second_records);
SELECT position >> 32 = 'second_records'::regclass::oid::bigint AS second FROM idem.purge_progress;
SELECT idem.purge();
SELECT (SELECT count(*) FROM idem.record), (SELECT count(*) FROM first_records), (SELECT count(*) FROM second_records);
-- The table of the position has been dropped: the purge goes on with the next one.
SELECT count(run('first', 'k' || i, 'first_records')) + count(run('short', 'k' || i)) AS more FROM generate_series(1, 5) i;
SELECT count(run('second', 'k' || i, 'second_records')) AS more FROM generate_series(1, 5) i;
UPDATE idem.purge_progress SET position = (('first_records'::regclass::oid::bigint) << 32) + 7;
DROP TABLE first_records;
SELECT idem.purge(5), (SELECT count(*) FROM idem.record) AS here, (SELECT count(*) FROM second_records) AS second;
SELECT (SELECT count(*) FROM idem.record) AS here, (SELECT count(*) FROM second_records) AS second;
-- A position may be any number.
SELECT count(run('second', 'k' || i, 'second_records')) AS more FROM generate_series(1, 5) i;
UPDATE idem.purge_progress SET position = -1;
SELECT idem.purge(1);
SELECT position >= 0 AS positive FROM idem.purge_progress;
SELECT idem.purge();
-- A table that is not as it must be is left alone, and idem.health() says so.
SELECT run('second', 'kept', 'second_records');
GRANT DELETE ON second_records TO pg_monitor;
SELECT idem.purge(), (SELECT count(*) FROM idem.storage) AS used;
SELECT records, fault, remedy FROM idem_internal.record_tables();
SELECT check_name, status, detail, hint FROM idem.health() WHERE check_name = 'record tables';
REVOKE DELETE ON second_records FROM pg_monitor;
SELECT idem.purge();
SELECT records, fault, remedy FROM idem_internal.record_tables();
SELECT check_name, status, detail, hint FROM idem.health() WHERE check_name = 'record tables';
-- So is idem.record if it is no heap, whose blocks the purge reads.
CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler;
SELECT run('short', 'kept');
ALTER TABLE idem.record SET ACCESS METHOD other;
SELECT idem.purge();
ALTER TABLE idem.record SET ACCESS METHOD heap;
DROP ACCESS METHOD other;
SELECT idem.purge();
SELECT idem.drop_scope('second'), idem.drop_scope('first');
DROP TABLE second_records;
SELECT idem.drop_scope('short'), idem.drop_scope('long');
DROP FUNCTION run(text, text), run(text, text, regclass);
