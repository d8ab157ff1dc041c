-- Defines the slot of a key, from 0 to 255. The router and the nodes must agree on it. A slot is
-- the unit that is placed on a node and moved to another node. If the rows of a tenant must stay
-- together, hash the tenant alone. derive_key() returns the same result on every server and in
-- every version; hashtext() guarantees neither.
CREATE SCHEMA shard;
CREATE FUNCTION shard.slot_of(tenant text, key text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT ('x' || left(idem.derive_key(tenant, key), 2))::bit(8)::integer $$;
