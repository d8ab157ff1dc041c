-- Schema-based sharding: a schema with all tables of one tenant, which Citus places on one node and
-- moves as a whole. Needs schema.sql, for the scope and the fence. Run it on the coordinator:
--
--   psql -v tenant=acme -f tenant_schema.sql
\set ON_ERROR_STOP on
SET citus.enable_schema_based_sharding = on;
CREATE SCHEMA :tenant;
RESET citus.enable_schema_based_sharding;

CREATE TABLE :tenant.payment (id bigserial PRIMARY KEY, key text, amount numeric);
-- Citus distributes the tables that a statement creates in this schema, but not those that a
-- function creates.
SELECT create_distributed_table(idem.create_record_table(format('%I.records', :'tenant')), NULL,
                                colocate_with => format('%I.payment', :'tenant'));

SET citus.enable_unsafe_triggers = on;
CREATE TRIGGER claim_required BEFORE INSERT OR UPDATE OR DELETE ON :tenant.payment
  FOR EACH ROW EXECUTE FUNCTION idem.require_claim('payments');
RESET citus.enable_unsafe_triggers;

-- The procedure belongs to the schema: it has no argument that tells the tenant.
SELECT format($create$
  CREATE FUNCTION %1$I.pay(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
  #variable_conflict use_variable
  DECLARE c idem.claim_result; payment_id bigint;
  BEGIN
    PERFORM app.use_shard('%1$I.records');
    c := idem.claim('payments', key, request, %1$L);
    IF NOT c.claimed THEN RETURN c.response; END IF;
    INSERT INTO %1$I.payment(key, amount) VALUES (key, (request->>'amount')::numeric)
      RETURNING id INTO payment_id;
    RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
  END $$;
  SELECT create_distributed_function('%1$I.pay(text, jsonb)', colocate_with => '%1$I.payment')
$create$, :'tenant') \gexec
