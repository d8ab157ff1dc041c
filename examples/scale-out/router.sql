-- The router: a database without data, and as many of it as you like. PL/Proxy runs the procedure on the
-- node of the key's slot. It commits there before the router's own transaction does: what makes a retry
-- through any router safe is the node's key record.
--
--   psql -v node0="host=... dbname=..." -v node1=... -v node2=... -f router.sql
--
-- Slots 0..255 begin on nodes 0, 1, 2, 0, 1, 2, ...
\set ON_ERROR_STOP on
CREATE EXTENSION plproxy;
CREATE EXTENSION idem;            -- for derive_key() only
\ir slots.sql

-- Nodes are numbered from 0 and only ever added: ALTER SERVER nodes OPTIONS (ADD p3 '...').
CREATE SERVER nodes FOREIGN DATA WRAPPER plproxy
  OPTIONS (modular_mapping '1', p0 :'node0', p1 :'node1', p2 :'node2');
CREATE USER MAPPING FOR public SERVER nodes;

-- Where a slot is, and on which node it was before, while that still has answers for it.
CREATE TABLE shard.route (slot integer PRIMARY KEY, node integer NOT NULL, before integer);
INSERT INTO shard.route SELECT slot, slot % 3 FROM generate_series(0, 255) slot;

CREATE FUNCTION shard.pay_on(node integer, tenant text, key text, request jsonb) RETURNS jsonb LANGUAGE plproxy AS $$
  CLUSTER 'nodes';
  RUN ON node;
  SELECT pay(tenant, key, request);
$$;

-- The old node is asked first: it answers what it has done, goes on with what it still owns, and
-- refuses (57S01) what it has neither done nor will do. If it can't be reached, nobody is asked.
-- The nodes' own errors come through as they are; PL/Proxy's (no connection, no answer) are XX000.
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
    HINT = 'The operation may or may not have run: retry with the same key.';
END $$;

-- Slots go to a node that has not got their records.
CREATE FUNCTION shard.move(slots integer[], to_node integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM shard.route WHERE slot = ANY (slots) AND before IS NOT NULL) THEN
    RAISE EXCEPTION 'slots are still on their last move' USING HINT = 'settle() them when nothing is remembered before.';
  END IF;
  UPDATE shard.route SET before = node, node = to_node WHERE slot = ANY (slots);
END $$;

-- The end of a move: the old node remembers nothing of these slots.
CREATE FUNCTION shard.settle(slots integer[]) RETURNS void LANGUAGE sql AS $$
  UPDATE shard.route SET before = NULL WHERE slot = ANY (slots) $$;

-- Slots go to a node that was a standby of theirs, and so has their records.
CREATE FUNCTION shard.split(slots integer[], to_node integer) RETURNS void LANGUAGE sql AS $$
  UPDATE shard.route SET node = to_node WHERE slot = ANY (slots) $$;
