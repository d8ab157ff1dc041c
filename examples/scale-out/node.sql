-- Sets up a node: a PostgreSQL server with idem and the procedure. The nodes share nothing. The
-- effect, the answer and the key record are one transaction on the node that owns the key.
--
--   psql -v slots="0,1,2" -f node.sql
--
-- The variable slots has the slots that the node owns at first; it may be empty (-v slots="").
\set ON_ERROR_STOP on
CREATE EXTENSION idem;
\ir slots.sql

-- The slots in which this node may begin new operations. It always returns the answers that it has.
CREATE TABLE shard.slot (slot integer PRIMARY KEY CHECK (slot BETWEEN 0 AND 255));

-- Call this function between the claim and the effect. The lock lasts until the transaction ends,
-- so give_up() waits for all operations that have begun. In READ COMMITTED, the query sees the
-- changes that the lock waited for.
CREATE FUNCTION shard.require_slot(tenant text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a routed operation must run in READ COMMITTED' USING ERRCODE = '25000';
  END IF;
  LOCK TABLE shard.slot IN ACCESS SHARE MODE;
  IF NOT EXISTS (SELECT FROM shard.slot WHERE slot = shard.slot_of(tenant, key)) THEN
    RAISE EXCEPTION 'slot % is not on this node', shard.slot_of(tenant, key)
      USING ERRCODE = '57S01',
            HINT = 'Retry with the same key; the router will send it to the owner of the slot.';
  END IF;
END $$;

-- After this commits, the node begins no operation in these slots, and the transactions that began
-- one have ended.
CREATE FUNCTION shard.give_up(slots integer[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  LOCK TABLE shard.slot IN ACCESS EXCLUSIVE MODE;
  DELETE FROM shard.slot WHERE slot = ANY (slots);
END $$;

-- Call this only after give_up() has committed on the previous owner.
CREATE FUNCTION shard.take(slots integer[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO shard.slot SELECT unnest(slots) $$;
SELECT shard.take(string_to_array(:'slots', ',')::integer[]);

-- The number of operations in these slots whose answers this node still has, in the scopes that the
-- caller may use. Reads all records.
CREATE FUNCTION shard.remembered(slots integer[]) RETURNS bigint LANGUAGE sql AS $$
  SELECT count(*) FROM idem.records WHERE shard.slot_of(tenant, key) = ANY (slots) $$;

-- The number of unfinished operations in these slots, in the scopes that the caller may use. A node
-- also finishes, or takes over, what it began, and so would a copy of it.
CREATE FUNCTION shard.in_flight(slots integer[]) RETURNS bigint LANGUAGE sql AS $$
  SELECT count(*) FROM idem.in_flight WHERE shard.slot_of(tenant, key) = ANY (slots) $$;

SELECT idem.create_scope('payments', tenant_required => true, request_required => true);
CREATE TABLE payment (id bigserial PRIMARY KEY, tenant text, key text, amount numeric);
CREATE FUNCTION pay(tenant text, key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request, tenant);
  IF NOT c.claimed THEN RETURN c.response; END IF;        -- even if the slot has moved
  -- An operation that began on this node also ends on it.
  IF c.attempt = 1 THEN PERFORM shard.require_slot(tenant, key); END IF;
  INSERT INTO payment(tenant, key, amount) VALUES (tenant, key, (request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;
