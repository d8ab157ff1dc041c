-- One of several nodes: a PostgreSQL of its own, with idem and the procedure. Nothing is shared between
-- nodes; effect, answer and key record are one transaction on the node that the key belongs to.
--
--   psql -v slots="0,1,2" -f node.sql        the slots that begin here; none: -v slots=""
\set ON_ERROR_STOP on
CREATE EXTENSION idem;
\ir slots.sql

-- The slots in which this node may begin new operations. What it has already done it answers always.
CREATE TABLE shard.slot (slot integer PRIMARY KEY CHECK (slot BETWEEN 0 AND 255));

-- To be called between a claim and its effect. The lock lasts until the transaction ends, so that
-- give_up() waits for everything that was begun. In READ COMMITTED the query sees what the lock waited for.
CREATE FUNCTION shard.require_slot(tenant text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a routed operation must run in READ COMMITTED' USING ERRCODE = '25000';
  END IF;
  LOCK TABLE shard.slot IN ACCESS SHARE MODE;
  IF NOT EXISTS (SELECT FROM shard.slot WHERE slot = shard.slot_of(tenant, key)) THEN
    RAISE EXCEPTION 'slot % is not on this node', shard.slot_of(tenant, key)
      USING ERRCODE = '57S01', HINT = 'Retry with the same key: the router will know its node.';
  END IF;
END $$;

-- From its commit on, this node begins nothing in these slots; nothing that it began is unfinished.
CREATE FUNCTION shard.give_up(slots integer[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  LOCK TABLE shard.slot IN ACCESS EXCLUSIVE MODE;
  DELETE FROM shard.slot WHERE slot = ANY (slots);
END $$;

-- Only after the node that had them gave them up.
CREATE FUNCTION shard.take(slots integer[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO shard.slot SELECT unnest(slots) $$;
SELECT shard.take(string_to_array(:'slots', ',')::integer[]);

-- How many operations of these slots this node must still answer for, in the scopes that the caller may
-- use. It reads all records.
CREATE FUNCTION shard.remembered(slots integer[]) RETURNS bigint LANGUAGE sql AS $$
  SELECT count(*) FROM idem.records WHERE shard.slot_of(tenant, key) = ANY (slots) $$;

-- How many leased claims of these slots are open. Those that it began, a node also finishes, or takes over.
CREATE FUNCTION shard.in_flight(slots integer[]) RETURNS bigint LANGUAGE sql AS $$
  SELECT count(*) FROM idem.in_flight WHERE shard.slot_of(tenant, key) = ANY (slots) $$;

SELECT idem.create_scope('payments', tenant_required => true, request_required => true);
CREATE TABLE payment (id bigserial PRIMARY KEY, tenant text, key text, amount numeric);
CREATE FUNCTION pay(tenant text, key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request, tenant);
  IF NOT c.claimed THEN RETURN c.response; END IF;        -- also in a slot that has moved away
  IF c.attempt = 1 THEN PERFORM shard.require_slot(tenant, key); END IF;    -- what began here ends here
  INSERT INTO payment(tenant, key, amount) VALUES (tenant, key, (request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;
