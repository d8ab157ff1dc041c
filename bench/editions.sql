-- What bench/editions measures, in a database of each edition: the same effect, once for each key,
-- made safe for retries in different ways. Everything is in schema bench.
\set ON_ERROR_STOP on
SET client_min_messages = warning;
CREATE SCHEMA bench;

-- The effect.
CREATE TABLE bench.payment (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount numeric);
CREATE FUNCTION bench.pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE payment_id bigint;
BEGIN
  INSERT INTO bench.payment (amount) VALUES ((request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  RETURN jsonb_build_object('payment', payment_id);
END $$;

-- The yardstick: one plain INSERT of a finished row. And the usual hand-written form.
CREATE TABLE bench.finished (
  tenant text, scope text, key text, status text, response jsonb,
  created timestamptz, expires timestamptz,
  PRIMARY KEY (tenant, scope, key));
CREATE TABLE bench.recipe (
  tenant text, scope text, key text, request_hash text, status text, response jsonb,
  created timestamptz, expires timestamptz,
  PRIMARY KEY (tenant, scope, key));
CREATE INDEX ON bench.recipe (expires);

-- once_X(k) is one operation; run_X(round, n) does n of them, with other keys in each round.
CREATE TABLE bench.operation (name text PRIMARY KEY, body text);
INSERT INTO bench.operation VALUES
('bare', $$
  RETURN bench.pay(request);$$),
('insert', $$
  answer := bench.pay(request);
  INSERT INTO bench.finished
    VALUES ('', 'payments', k, 'completed', answer, now(), now() + interval '1 day');
  RETURN answer;$$),
('recipe', $$
  INSERT INTO bench.recipe VALUES ('', 'payments', k, md5(request::text), 'in progress', NULL,
                                   now(), now() + interval '1 day')
    ON CONFLICT DO NOTHING;
  IF FOUND THEN
    answer := bench.pay(request);
    UPDATE bench.recipe SET status = 'completed', response = answer
     WHERE tenant = '' AND scope = 'payments' AND key = k;
  ELSE
    SELECT response INTO answer FROM bench.recipe
     WHERE tenant = '' AND scope = 'payments' AND key = k;
  END IF;
  RETURN answer;$$),
('claim', $$
  c := idem.claim('payments', k, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  RETURN idem.complete(c.token, bench.pay(request));$$),
('headers', $$
  c := idem.claim('payments', k, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  RETURN idem.complete(c.token, bench.pay(request), 201, '{"Location": "/payments/1"}');$$),
-- As a client whose statements are prepared: the calls are statements of their own.
('client_claim', $$
  SELECT token INTO answer_token FROM idem.claim('payments', k, request);
  answer := bench.pay(request);
  SELECT idem.complete(answer_token, answer) INTO answer;
  RETURN answer;$$),
('client_headers', $$
  SELECT token INTO answer_token FROM idem.claim('payments', k, request);
  answer := bench.pay(request);
  SELECT idem.complete(answer_token, answer, 201, '{"Location": "/payments/1"}') INTO answer;
  RETURN answer;$$),
('client_replay', $$
  SELECT response INTO answer FROM idem.claim('payments', k, request);
  RETURN answer;$$),
('recipe_replay', $$
  SELECT response INTO answer FROM bench.recipe
   WHERE tenant = '' AND scope = 'payments' AND key = k AND request_hash = md5(request::text);
  RETURN answer;$$),
('replay', $$
  c := idem.claim('payments', k, request);
  RETURN c.response;$$),
('lookup', $$
  SELECT response INTO answer FROM idem.lookup('payments', k);
  RETURN answer;$$),
('fraction', $$
  c := idem.claim('payments', k, '{"amount": 10.50, "currency": "EUR", "to": "account 77"}');
  IF NOT c.claimed THEN RETURN c.response; END IF;
  RETURN idem.complete(c.token, bench.pay(request));$$),
('leased', $$
  c := idem.claim('payments', k, request, lease => '1 day');
  RETURN idem.complete(c.token, bench.pay(request));$$),
('once', $$
  IF idem.once('payments', k, request) THEN RETURN bench.pay(request); END IF;
  RETURN NULL;$$);
SELECT format($sql$
  CREATE FUNCTION bench.once_%1$s(k text) RETURNS jsonb LANGUAGE plpgsql AS $$
  DECLARE
    request CONSTANT jsonb := '{"amount": 10, "currency": "EUR", "to": "account 77"}';
    answer jsonb; answer_token text; c idem.claim_result;
  BEGIN %2$s
  END $$;
  CREATE PROCEDURE bench.run_%1$s(round int, n int) LANGUAGE plpgsql AS $$
  BEGIN
    FOR i IN 1 .. n LOOP
      PERFORM bench.once_%1$s(%3$s);
      COMMIT;
    END LOOP;
  END $$ $sql$, name, body,
  CASE WHEN name ~ 'replay|lookup' THEN $key$'retried ' || 1 + i % 1000$key$
       ELSE format($key$md5(%L || round::text || i)::uuid::text$key$, name) END)
  FROM bench.operation
\gexec

-- A thousand operations whose retries are measured.
SELECT count(bench.once_claim('retried ' || i)), count(bench.once_recipe('retried ' || i))
  FROM generate_series(1, 1000) AS i;
