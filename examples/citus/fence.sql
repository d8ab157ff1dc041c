-- The fence: a procedure calls it first. From here to the end of the transaction, the shard stays
-- on this node, and the claims of the transaction are records in the shard. Moves and splits wait.
-- Citus takes such locks for its own statements, but idem writes into the shard directly.
--
--   records  a distributed record table
--   tenant   the value of its distribution column; none if the table belongs to a tenant's schema
--
-- A call whose shard is on another node gets 57S01. It has no effect, and can be sent again.
CREATE FUNCTION app.use_shard(records regclass, tenant text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  share CONSTANT integer := 5;      -- the lock mode of Citus' own statements
  shard CONSTANT bigint := get_shard_id_for_distribution_column(records, tenant);
BEGIN
  -- Only READ COMMITTED sees what was committed while this function waited.
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'an operation on a shard must run in READ COMMITTED' USING ERRCODE = '25000';
  END IF;

  -- Wait for a move or a split of the shard, and keep later ones waiting. Citus numbers these locks
  -- by the order of the shards, and the split of one shard changes the numbers of those behind it.
  -- So also wait for such a split, and keep later ones waiting; then lock the number of now.
  PERFORM lock_shard_metadata(share, ARRAY[shard]);
  PERFORM lock_relation_if_exists(records::text, 'SHARE');
  IF get_shard_id_for_distribution_column(records, tenant) = shard THEN
    PERFORM lock_shard_metadata(share, ARRAY[shard]);

    IF EXISTS (SELECT FROM pg_dist_placement
                WHERE shardid = shard AND groupid = (SELECT groupid FROM pg_dist_local_group)) THEN
      PERFORM idem.use_records(shard_name(records, shard)::regclass);
      RETURN;
    END IF;
  END IF;

  RAISE EXCEPTION 'shard % of % is not on this node', shard, records
    USING ERRCODE = '57S01',
          DETAIL = 'The shard has moved, or Citus did not delegate the call.',
          HINT = 'Retry with the same key. Call the procedure in a statement of its own.';
END $$;
