-- Sets up a router: a database without data. You can have several. PL/Proxy runs the procedure on
-- the node that owns the key's slot. It commits there before the router's own transaction commits.
-- A retry through any router is safe because of the key record on the node.
--
--   psql -v node0="host=... dbname=..." -v node1=... -v node2=... -f router.sql
--
-- At first, slots 0 to 255 are on nodes 0, 1, 2, 0, 1, 2, and so on.
\set ON_ERROR_STOP on
CREATE EXTENSION plproxy;
CREATE EXTENSION idem;            -- for derive_key() only
\ir slots.sql

-- Nodes are numbered from 0. Add new ones with ALTER SERVER nodes OPTIONS (ADD p3 '...'); never
-- remove one.
CREATE SERVER nodes FOREIGN DATA WRAPPER plproxy
  OPTIONS (modular_mapping '1', p0 :'node0', p1 :'node1', p2 :'node2');
CREATE USER MAPPING FOR public SERVER nodes;

-- The node of each slot, and the node before that, as long as it still has answers for the slot.
CREATE TABLE shard.route (slot integer PRIMARY KEY, node integer NOT NULL, before integer);
INSERT INTO shard.route SELECT slot, slot % 3 FROM generate_series(0, 255) slot;

CREATE FUNCTION shard.pay_on(node integer, tenant text, key text, request jsonb) RETURNS jsonb
LANGUAGE plproxy AS $$
  CLUSTER 'nodes';
  RUN ON node;
  SELECT pay(tenant, key, request);
$$;

-- Asks the old node first. It returns the answers that it has, continues the operations that it
-- began, and refuses all others (57S01). Only then is the new node asked. If the old node cannot be
-- reached, the call fails. Errors of the nodes keep their SQLSTATE. PL/Proxy's own errors (no
-- connection, no answer) are XX000.
CREATE FUNCTION pay(tenant text, key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE route shard.route;
BEGIN
  SELECT * INTO STRICT route FROM shard.route WHERE slot = shard.slot_of(tenant, key);
  IF route.before IS NOT NULL THEN
    BEGIN
      RETURN shard.pay_on(route.before, tenant, key, request);
    EXCEPTION WHEN SQLSTATE '57S01' THEN NULL;
    END;
  END IF;
  RETURN shard.pay_on(route.node, tenant, key, request);
EXCEPTION WHEN internal_error THEN
  RAISE EXCEPTION 'the node gave no answer' USING ERRCODE = '08006', DETAIL = SQLERRM,
    HINT = 'The operation may or may not have run. Retry with the same key.';
END $$;

-- Moves slots to a node that does not have their records.
CREATE FUNCTION shard.move(slots integer[], to_node integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM shard.route WHERE slot = ANY (slots) AND before IS NOT NULL) THEN
    RAISE EXCEPTION 'slots are still being moved'
      USING HINT = 'Call shard.settle() for them when shard.remembered() is 0 on their old nodes.';
  END IF;
  UPDATE shard.route SET before = node, node = to_node WHERE slot = ANY (slots);
END $$;

-- Ends a move. The old node must have no more answers for these slots.
CREATE FUNCTION shard.settle(slots integer[]) RETURNS void LANGUAGE sql AS $$
  UPDATE shard.route SET before = NULL WHERE slot = ANY (slots) $$;

-- Moves slots to a node that was a standby of their node, and so has their records.
CREATE FUNCTION shard.split(slots integer[], to_node integer) RETURNS void LANGUAGE sql AS $$
  UPDATE shard.route SET node = to_node WHERE slot = ANY (slots) $$;
