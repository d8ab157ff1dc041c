-- What the examples of the pages use: two scopes, two tables, the functions of the README, and roles.
-- As a superuser, in an empty database of a server for tests:
--
--   psql -f docs/examples.sql
\set ON_ERROR_STOP on
CREATE EXTENSION idem;

-- Roles are those of the whole server, so they may exist already.
SELECT format('CREATE ROLE %I', role) FROM unnest('{shop, shop_admin}'::text[]) AS role
 WHERE to_regrole(role) IS NULL \gexec

SELECT idem.create_scope('payments'), idem.create_scope('messages');
CREATE TABLE payment (id bigserial PRIMARY KEY, amount numeric);
CREATE TABLE shipment (order_id bigint);

CREATE FUNCTION pay(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(amount) VALUES ((request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;

CREATE FUNCTION make_payment(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
  INSERT INTO payment(amount) VALUES ((request->>'amount')::numeric)
  RETURNING jsonb_build_object('payment', id)
$$;

-- So many records, without payments.
CREATE PROCEDURE make_records(n integer) LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  FOR i IN 1..n LOOP
    c := idem.claim('payments', idem.new_key(), '{"amount": 10}');
    PERFORM idem.complete(c.token, jsonb_build_object('payment', i));
    IF i % 500 = 0 THEN COMMIT; END IF;
  END LOOP;
END $$;
