-- Where the migration starts: idempotency keys by hand, as it is often written. The table is the one
-- that migrate.sql reads through a view; a table of another shape needs only another view.
CREATE TABLE idempotency_key (
  scope text, tenant text, key text,
  request_hash text,                  -- NULL: this operation binds no request to its key
  status integer, response jsonb,     -- response NULL: begun, and not finished
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (scope, tenant, key));

CREATE TABLE payment (id bigserial PRIMARY KEY, key text, amount numeric);
CREATE FUNCTION pay(k text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE stored idempotency_key; answer jsonb; payment_id bigint;
BEGIN
  DELETE FROM idempotency_key WHERE scope = 'payments' AND tenant = '' AND key = k AND expires_at <= now();
  INSERT INTO idempotency_key VALUES ('payments', '', k, md5(request::text), NULL, NULL, now() + interval '1 day')
    ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    SELECT * INTO stored FROM idempotency_key WHERE scope = 'payments' AND tenant = '' AND key = k;
    IF stored.request_hash <> md5(request::text) THEN RAISE 'key was used for another request'; END IF;
    RETURN stored.response;
  END IF;
  INSERT INTO payment(key, amount) VALUES (k, (request->>'amount')::numeric) RETURNING id INTO payment_id;
  answer := jsonb_build_object('payment', payment_id);
  UPDATE idempotency_key SET status = 201, response = answer WHERE scope = 'payments' AND tenant = '' AND key = k;
  RETURN answer;
END $$;
