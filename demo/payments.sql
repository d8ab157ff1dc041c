-- The same procedure twice: as it is often written, and with idem. The sleep between effect and
-- COMMIT stands for the rest of a real procedure's work, and makes it likely that a kill hits this
-- moment.
\set ON_ERROR_STOP on
CREATE EXTENSION idem;
SELECT idem.create_scope('payments') \g /dev/null

CREATE TABLE unprotected_payment (id bigserial PRIMARY KEY, key text, amount numeric);
CREATE FUNCTION pay_unprotected(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE payment_id bigint;
BEGIN
  INSERT INTO unprotected_payment(key, amount) VALUES (key, (request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  PERFORM pg_sleep(0.001);
  RETURN jsonb_build_object('payment', payment_id);
END $$;

CREATE TABLE payment (id bigserial PRIMARY KEY, key text, amount numeric);
CREATE FUNCTION pay(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;      -- a retry: return the first answer
  INSERT INTO payment(key, amount) VALUES (key, (request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  PERFORM pg_sleep(0.001);
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;
