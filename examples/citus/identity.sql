-- Gives the scopes and secrets of the coordinator to all workers, so that they agree on digests and
-- fingerprints. Run it on the coordinator
--   - after idem.create_scope() and idem.rotate_secret(), which you call on the coordinator only,
--   - after adding a node, before any shard is moved to it.
--
--   psql -f identity.sql
--
-- The workers receive a statement that contains the secrets: for the role that runs this, set there
-- log_min_messages = 'panic' and track_activities = off (ALTER ROLE ... SET), and reset both after.
\set ON_ERROR_STOP on
DO $$
DECLARE
  -- With its schema: a function that others have made for just these types would be preferred.
  import CONSTANT text :=
    pg_catalog.format('SELECT idem.import_identity(%L)', idem.export_identity());
  failed record;
BEGIN
  FOR failed IN SELECT * FROM run_command_on_workers(import) WHERE NOT success LOOP
    RAISE EXCEPTION 'worker %:% has not imported the identity', failed.nodename, failed.nodeport
      USING DETAIL = failed.result;
  END LOOP;
END $$;
