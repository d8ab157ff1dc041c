-- The starting point of the migration: a typical hand-written table of idempotency keys.
-- migrate.sql reads this table through a view. For a different table, change only the view.
CREATE TABLE idempotency_key (
  scope text, tenant text, key text,
  request_hash text,                  -- NULL if this operation binds no request to its key
  status integer, response jsonb,     -- response is NULL until the operation is finished
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (scope, tenant, key));

CREATE TABLE payment (id bigserial PRIMARY KEY, key text, amount numeric);
CREATE FUNCTION pay(k text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE stored idempotency_key; answer jsonb; payment_id bigint;
BEGIN
  DELETE FROM idempotency_key
   WHERE scope = 'payments' AND tenant = '' AND key = k AND expires_at <= now();
  INSERT INTO idempotency_key
  VALUES ('payments', '', k, md5(request::text), NULL, NULL, now() + interval '1 day')
    ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    SELECT * INTO stored FROM idempotency_key
     WHERE scope = 'payments' AND tenant = '' AND key = k;
    IF stored.request_hash <> md5(request::text) THEN
      RAISE 'key was used for a different request';
    END IF;
    RETURN stored.response;
  END IF;
  INSERT INTO payment(key, amount) VALUES (k, (request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  answer := jsonb_build_object('payment', payment_id);
  UPDATE idempotency_key SET status = 201, response = answer
   WHERE scope = 'payments' AND tenant = '' AND key = k;
  RETURN answer;
END $$;
