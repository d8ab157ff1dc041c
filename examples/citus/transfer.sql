-- An operation of two tenants, on any node. Citus commits it in two phases: both workers have their
-- effect and their record, or neither has. Each tenant has a key of its own.
--
--   psql -f transfer.sql
\set ON_ERROR_STOP on
CREATE FUNCTION app.transfer(payer bigint, payee bigint, key text, request jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
  call CONSTANT text := 'SELECT * FROM app.pay(%L::bigint, %L, %L)';
  paid jsonb; received jsonb;
BEGIN
  -- In a function, Citus delegates a call only if it is in FROM and has constant arguments.
  EXECUTE format(call, payer, key, request) INTO paid;
  EXECUTE format(call, payee, key || ' received', request) INTO received;
  RETURN jsonb_build_array(paid, received);
END $$;
