-- Sets up the example on a Citus cluster, which README.md describes. Run it on the coordinator:
--
--   psql -f schema.sql
--
-- The effect, the answer and the key record are one transaction on the worker that has the tenant's
-- shard, and the record moves with the shard.
\set ON_ERROR_STOP on
CREATE EXTENSION idem;                      -- Citus creates it on the workers too
SELECT idem.create_scope('payments', tenant_required => true, request_required => true,
                         records => true);  -- in the shards
\ir identity.sql

CREATE SCHEMA app;
CREATE TABLE app.payment (
  tenant_id bigint,
  id uuid DEFAULT gen_random_uuid(),        -- sequences are not unique across workers
  key text,
  amount numeric,
  PRIMARY KEY (tenant_id, id)
);
SELECT create_distributed_table('app.payment', 'tenant_id');

-- The records, distributed and colocated with the effects. Citus moves their shards together.
SELECT idem.create_record_table('app.records', 'tenant_id', 'bigint');
SELECT create_distributed_table('app.records', 'tenant_id', colocate_with => 'app.payment');

-- An effect without a claim in the same transaction on the same worker is refused with ID011: the
-- effect of a call that was not delegated, or one for another tenant than that of the claim. Citus
-- calls all triggers on shards unsafe, because they could access other shards; this one does not.
SET citus.enable_unsafe_triggers = on;
CREATE TRIGGER claim_required BEFORE INSERT OR UPDATE OR DELETE ON app.payment
  FOR EACH ROW EXECUTE FUNCTION idem.require_claim('payments');
RESET citus.enable_unsafe_triggers;

\ir fence.sql

CREATE FUNCTION app.pay(tenant_id bigint, key text, request jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE c idem.claim_result; payment_id uuid;
BEGIN
  PERFORM app.use_shard('app.records', tenant_id::text);
  c := idem.claim('payments', key, request, tenant_id::text);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO app.payment(tenant_id, key, amount)
    VALUES (tenant_id, key, (request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;

-- A call runs on the worker that has the tenant's shard, from any node. With force_delegation also
-- within a transaction; then COMMIT is two-phase if several workers were written to.
SELECT create_distributed_function('app.pay(bigint, text, jsonb)', 'tenant_id',
                                   colocate_with => 'app.payment', force_delegation => true);

-- A leased operation: each step is a call of its own, delegated and fenced as the first one. The
-- fence tells idem where the shard is now, so its token stays valid when the shard moves.
CREATE FUNCTION app.begin_payment(tenant_id bigint, key text, request jsonb,
                                  OUT token text, OUT response jsonb)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.use_shard('app.records', tenant_id::text);
  SELECT c.token, c.response INTO token, response
    FROM idem.claim('payments', key, request, tenant_id::text, lease => '1 minute') c;
END $$;

CREATE FUNCTION app.renew_payment(tenant_id bigint, token text) RETURNS timestamptz
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.use_shard('app.records', tenant_id::text);
  RETURN idem.renew(token);
END $$;

CREATE FUNCTION app.finish_payment(tenant_id bigint, token text, key text, amount numeric)
RETURNS jsonb LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE payment_id uuid;
BEGIN
  PERFORM app.use_shard('app.records', tenant_id::text);
  PERFORM idem.renew(token);                -- the claim of this transaction
  INSERT INTO app.payment(tenant_id, key, amount) VALUES (tenant_id, key, amount)
    RETURNING id INTO payment_id;
  RETURN idem.complete(token, jsonb_build_object('payment', payment_id));
END $$;

SELECT create_distributed_function(oid::regprocedure, 'tenant_id', colocate_with => 'app.payment',
                                   force_delegation => true)
  FROM pg_proc WHERE oid IN ('app.begin_payment'::regproc, 'app.renew_payment'::regproc,
                             'app.finish_payment'::regproc);
