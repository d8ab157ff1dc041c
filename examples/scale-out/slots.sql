-- What router and nodes must agree upon: in which of 256 slots a key lies. A slot is the unit that is
-- placed on a node and moved to another. Hash by tenant alone if the rows of a tenant must be together.
-- derive_key() gives the same everywhere and for ever; hashtext() promises neither.
CREATE SCHEMA shard;
CREATE FUNCTION shard.slot_of(tenant text, key text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT ('x' || left(idem.derive_key(tenant, key), 2))::bit(8)::integer $$;
