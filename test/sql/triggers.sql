-- Triggers on idem's own tables, whose rows idem writes without the executor.
DROP EXTENSION idem;
CREATE EXTENSION idem;
CREATE SCHEMA fired;
SET search_path = fired;
SELECT idem.create_scope('jobs', lease => '1 hour', ttl => '1 day', wait => '0', max_attempts => 9, answer_ttl => '1 hour');
SELECT idem.create_scope('noted', ttl => '1 day'), idem.create_scope('altered');
CREATE TABLE change (n serial, relation name, command text, before text, after text);
-- The purge and erase() run it as the owner of idem.record, with a search_path of their own.
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SET search_path = fired AS $$
DECLARE
  before jsonb := to_jsonb(OLD);
  after jsonb := to_jsonb(NEW);
BEGIN
  INSERT INTO change (relation, command, before, after)
  VALUES (TG_TABLE_NAME, TG_OP,
          concat_ws(' ', coalesce(before->>'key', before->>'source', before->>'name'), coalesce(before->>'state', before->>'seq'), before->>'recovery_point', before->>'response'),
          concat_ws(' ', coalesce(after->>'key', after->>'source', after->>'name'), coalesce(after->>'state', after->>'seq'), after->>'recovery_point', after->>'response'));
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON idem.record FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON idem.watermark FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON idem.scope FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON idem.secret FOR EACH ROW EXECUTE FUNCTION note();
-- What has changed since the last look.
CREATE FUNCTION seen() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY WITH gone AS (DELETE FROM change RETURNING *)
    SELECT format('%s %s: %s -> %s', relation, command, before, after) FROM gone ORDER BY n;
END $$;
CREATE PROCEDURE lapse(k text) LANGUAGE sql AS
  $$ UPDATE idem.record SET lease_end = now() - interval '1 s' WHERE key = k; DELETE FROM change $$;

-- Every call that writes, each once.
SELECT idem.complete(token, '"paid"') FROM idem.claim('jobs', 'atomic');
SELECT seen();
SELECT idem.fail(token, '{"message": "no"}') FROM idem.claim('jobs', 'failed');
SELECT idem.once('jobs', 'once');
SELECT count(*) FROM idem.once_each('jobs', '{each 1, each 2, once}'::text[]);
CREATE FUNCTION op(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '1'::jsonb $$;
SELECT response FROM idem.execute('jobs', 'executed', 'op(jsonb)');
SELECT seen();
SELECT token AS t FROM idem.claim('jobs', 'leased', lease => '1 minute') \gset
SELECT idem.renew(:'t') > now() AS renewed;
SELECT idem.checkpoint(:'t', 'charged');
SELECT idem.release(:'t');
SELECT token AS t FROM idem.take('jobs') \gset
SELECT idem.complete(:'t', '"done"');
SELECT seen();
SELECT token IS NOT NULL AS claimed FROM idem.claim('jobs', 'revoked', lease => '1 minute');
SELECT idem.revoke('jobs', 'revoked');
SELECT state FROM idem.cancel('jobs', 'cancelled');
SELECT idem.erase('jobs', 'atomic'), idem.forget('jobs', 'once');
SELECT seen();
SELECT idem.advance('jobs', 'stream', 1), idem.advance('jobs', 'stream', 2), idem.advance('jobs', 'stream', 2);
SELECT idem.reset_stream('jobs', 'stream');
SELECT idem.create_scope('short', ttl => '1 millisecond');
SELECT idem.alter_scope('short', max_attempts => 2);
SELECT idem.drop_scope('short');
SELECT idem.rotate_secret() IS NOT NULL AS rotated;
SELECT seen();
-- The purge deletes, and removes answers, as the owner of the table.
UPDATE idem.record SET expires = now() - interval '1 s' WHERE key LIKE 'each%';
UPDATE idem.record SET created = now() - interval '2 hours', lease_end = NULL WHERE key = 'executed';
SELECT count(*) FROM seen();
SELECT idem.purge();
SELECT seen();

-- What a claim does in a transaction that rolls back has not happened, also not by its triggers.
BEGIN;
SELECT idem.once('jobs', 'undone');
SAVEPOINT s;
SELECT idem.once('jobs', 'undone too');
ROLLBACK TO s;
SELECT seen();
ROLLBACK;

-- A trigger that refuses: the call has not written. A claim keeps the key until the caller gives up.
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no % of %', TG_OP, coalesce(NEW.key, OLD.key); END $$;
CREATE TRIGGER refuse AFTER INSERT OR UPDATE OR DELETE ON idem.record FOR EACH ROW WHEN (pg_trigger_depth() < 1) EXECUTE FUNCTION refuse();
SELECT idem.once('jobs', 'refused');
SELECT count(*) FROM idem.once_each('jobs', '{refused}'::text[]);
BEGIN;
SELECT token AS t FROM idem.claim('jobs', 'refused') \gset
SAVEPOINT s;
SELECT idem.complete(:'t', '1');
ROLLBACK TO s;
ALTER TABLE idem.record DISABLE TRIGGER refuse;
SELECT idem.complete(:'t', '2');
COMMIT;
SELECT idem.forget('jobs', 'refused');
ALTER TABLE idem.record ENABLE REPLICA TRIGGER refuse;
SELECT idem.once('jobs', 'applied');
SET session_replication_role = replica;
SELECT idem.once('jobs', 'applied too');
SELECT seen();
RESET session_replication_role;
DROP TRIGGER refuse ON idem.record;
SELECT count(*) FROM seen();

-- Statement triggers, with transition tables: a statement for each row.
CREATE FUNCTION sum_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO change (relation, command) VALUES (TG_NAME, TG_OP);
  IF TG_OP <> 'INSERT' THEN
    INSERT INTO change (before) SELECT key FROM old_rows;
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO change (after) SELECT key FROM new_rows;
  END IF;
  RETURN NULL;
END $$;
ALTER TABLE idem.record DISABLE TRIGGER note;
CREATE TRIGGER sum_inserts AFTER INSERT ON idem.record REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sum_up();
CREATE TRIGGER sum_updates AFTER UPDATE ON idem.record REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sum_up();
CREATE TRIGGER sum_deletes AFTER DELETE ON idem.record REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION sum_up();
SELECT count(*) FROM idem.once_each('jobs', '{s1, s2}'::text[]);
SELECT idem.complete(token, '1') FROM idem.claim('jobs', 's3', lease => '1 hour');
SELECT idem.forget('jobs', 's1');
SELECT seen();
DROP TRIGGER sum_inserts ON idem.record;
DROP TRIGGER sum_updates ON idem.record;
DROP TRIGGER sum_deletes ON idem.record;

-- A deferred one fires when the transaction ends. A column's trigger fires for whatever is written.
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON idem.record DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER of_column AFTER UPDATE OF state ON idem.record FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION note();
BEGIN;
SELECT idem.once('jobs', 'late');
SELECT seen();
COMMIT;
SELECT idem.complete(token, '1') FROM idem.claim('jobs', 'column', lease => '1 hour');
SELECT seen();
DROP TRIGGER late ON idem.record;
DROP TRIGGER of_column ON idem.record;

-- A trigger may call idem: the caller goes on with its own scope, also after that has changed.
CREATE FUNCTION call() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.key LIKE 'calls %' THEN
    PERFORM idem.once('noted', 'noted ' || NEW.key);
    PERFORM idem.alter_scope('altered', max_attempts => 1000 + coalesce(NEW.attempt, 0));
    PERFORM idem.lookup('jobs', NEW.key);
    INSERT INTO change (after) SELECT state::text FROM idem.lookup('jobs', NEW.key);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER call AFTER INSERT OR UPDATE ON idem.record FOR EACH ROW EXECUTE FUNCTION call();
BEGIN;
SELECT idem.once('jobs', 'calls 1');
SELECT idem.complete(token, '1') FROM idem.claim('jobs', 'calls 2');
SELECT count(*) FROM idem.once_each('jobs', '{calls 3, calls 4}'::text[]);
SELECT token AS t FROM idem.claim('jobs', 'calls 5', lease => '1 hour') \gset
COMMIT;
SELECT idem.checkpoint(:'t', 'p');
SELECT idem.complete(:'t', '5');
SELECT scope, key, state FROM idem.records WHERE key LIKE '%calls %' ORDER BY scope, key;
DROP TRIGGER call ON idem.record;

-- A BEFORE trigger is refused when it would fire.
CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER suppress BEFORE UPDATE ON idem.record FOR EACH ROW EXECUTE FUNCTION suppress();
SELECT idem.once('jobs', 'inserted');
SELECT idem.complete(token, '1') FROM idem.claim('jobs', 'updated', lease => '1 hour');
SELECT state FROM idem.lookup('jobs', 'updated');
ALTER TABLE idem.record DISABLE TRIGGER suppress;
SELECT idem.complete(token, '1') FROM idem.claim('jobs', 'updated', lease => '1 hour');

-- What else idem.record and idem.watermark must not have: each statement spoils one; the remedy mends it.
CREATE ROLE other_role;
CREATE TABLE referring (digest uuid);
CREATE TABLE parent (digest uuid NOT NULL);
CREATE FUNCTION spoil(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  t text;
  o record;
  h record;
BEGIN
  FOREACH t IN ARRAY '{idem.record,idem.watermark}'::text[] LOOP
    BEGIN
      EXECUTE format(statement, t);
      SELECT status, detail, hint INTO STRICT h FROM idem.health() WHERE check_name = 'record tables' AND status <> 'ok';
      RETURN NEXT h.status || ': ' || replace(h.detail, current_user, 'installer');
      RETURN NEXT '  ' || replace(h.hint, current_user, 'installer');
      IF h.hint ~ '^(.* Then: )?[A-Z]+ [A-Z]' THEN
        EXECUTE regexp_replace(h.hint, '.* Then: ', '');
        SELECT status INTO STRICT h FROM idem.health() WHERE check_name = 'record tables';
        RETURN NEXT '  now ' || h.status;
      END IF;
      RAISE 'undo' USING ERRCODE = 'P0099';
    EXCEPTION WHEN SQLSTATE 'P0099' THEN NULL;
    END;
  END LOOP;
END $$;
SELECT spoil('CREATE TRIGGER x BEFORE DELETE ON %s FOR EACH ROW EXECUTE FUNCTION fired.suppress()');
SELECT spoil('ALTER TABLE %s ENABLE ROW LEVEL SECURITY');
SELECT spoil('CREATE RULE x AS ON INSERT TO %s DO ALSO SELECT 1');
SELECT spoil('ALTER TABLE %s ADD x text');
SELECT spoil('ALTER TABLE %s ALTER scope SET DEFAULT 1');
SELECT spoil('ALTER TABLE %s ADD CONSTRAINT x CHECK (scope < 0) NOT VALID');
SELECT spoil('ALTER TABLE %s SET UNLOGGED');
SELECT spoil('GRANT INSERT, UPDATE ON %s TO other_role');
SELECT spoil('GRANT UPDATE (scope) ON %s TO PUBLIC');
SELECT spoil('ALTER TABLE %s OWNER TO other_role');
SELECT spoil('ALTER TABLE %s INHERIT fired.parent');
-- A NULL where others allow none is refused, as the executor does it; the remedy mends it.
CREATE FUNCTION spoil_and_call(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  h record;
BEGIN
  EXECUTE statement;
  SELECT status, detail, hint INTO STRICT h FROM idem.health() WHERE check_name = 'record tables';
  RETURN NEXT h.status || ': ' || h.detail;
  RETURN NEXT '  ' || h.hint;
  BEGIN
    RETURN NEXT idem.once('jobs', 'not null');
  EXCEPTION WHEN object_not_in_prerequisite_state THEN
    GET STACKED DIAGNOSTICS statement = PG_EXCEPTION_HINT;
    RETURN NEXT '  ' || SQLERRM;
    RETURN NEXT '  ' || statement;
    EXECUTE rtrim(replace(statement, 'Execute ', ''), '.');
  END;
  RETURN NEXT '  now ' || idem.once('jobs', 'not null');
END $$;
BEGIN;
DELETE FROM idem.record;
SELECT spoil_and_call('ALTER TABLE idem.record ALTER fingerprint SET NOT NULL');
SELECT status FROM idem.health() WHERE check_name = 'record tables';
ROLLBACK;
BEGIN;
SELECT spoil_and_call($$ALTER TABLE idem.record ADD x text NOT NULL DEFAULT ''$$);
ALTER TABLE idem.watermark ADD x text NOT NULL DEFAULT '';
SELECT idem.advance('jobs', 'not null', 1);
ROLLBACK;
-- An unlogged one is not written at all.
ALTER TABLE idem.record SET UNLOGGED;
SELECT idem.once('jobs', 'unlogged');
SELECT outcome FROM idem.claim('jobs', 'column');
ALTER TABLE idem.record SET LOGGED;
-- A foreign key is checked, in both directions.
ALTER TABLE referring ADD FOREIGN KEY (digest) REFERENCES idem.record;
INSERT INTO referring SELECT digest FROM idem.record WHERE key = 'column';
\set VERBOSITY terse
SELECT idem.forget('jobs', 'column');
DELETE FROM referring;
SELECT idem.forget('jobs', 'column');
-- A row that is purged leaves no memory behind, although its triggers were copied.
CREATE TABLE fired.used (bytes bigint);
CREATE FUNCTION note_memory() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO fired.used SELECT sum(used_bytes) FROM pg_backend_memory_contexts; RETURN NULL; END $$;
CREATE TRIGGER note_memory AFTER DELETE ON idem.record FOR EACH ROW EXECUTE FUNCTION note_memory();
DO $$ BEGIN PERFORM count(*) FROM idem.once_each('jobs', ARRAY(SELECT 'used ' || i FROM generate_series(1, 100) i)); END $$;
UPDATE idem.record SET expires = '-infinity';
DO $$ BEGIN PERFORM idem.purge(); END $$;
SELECT max(bytes) - min(bytes) < 10000 AS steady FROM (SELECT bytes FROM fired.used ORDER BY ctid OFFSET 50) u;

SET client_min_messages = warning;
DROP SCHEMA fired CASCADE;
DROP EXTENSION idem;
DROP ROLE other_role;
CREATE EXTENSION idem;
