-- The contenders: the same procedure around the same effect, made safe for retries in different
-- ways. Everything is in schema bench.
\set ON_ERROR_STOP on
SET client_min_messages = warning;
CREATE EXTENSION idem;
SELECT idem.create_scope('payments') \g /dev/null
CREATE EXTENSION pg_walinspect;
CREATE SCHEMA bench;
SET search_path = bench;

CREATE TABLE measure (scene text, contender text, usec float8, wal float8, dead float8);

-- bare: the effect alone
CREATE TABLE payment (id bigserial PRIMARY KEY, amount numeric);
CREATE FUNCTION pay_bare(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE payment_id bigint;
BEGIN
  INSERT INTO bench.payment(amount) VALUES ((request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN jsonb_build_object('payment', payment_id);
END $$;

-- insert: the effect and one plain INSERT of a finished row, without any digest of the request; not
-- safe, but the least to store
CREATE TABLE finished (
  tenant text, scope text, key text, status text, response jsonb, created timestamptz, expires_at timestamptz,
  PRIMARY KEY (tenant, scope, key));
CREATE FUNCTION pay_insert(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE payment_id bigint; answer jsonb;
BEGIN
  INSERT INTO bench.payment(amount) VALUES ((request->>'amount')::numeric) RETURNING id INTO payment_id;
  answer := jsonb_build_object('payment', payment_id);
  INSERT INTO bench.finished VALUES ('', 'payments', key, 'completed', answer, now(), now() + interval '1 day');
  RETURN answer;
END $$;

-- recipe: the usual hand-written form: INSERT ... ON CONFLICT, effect, UPDATE
CREATE TABLE recipe (
  tenant text, scope text, key text, request_hash text, state text, response jsonb, created timestamptz, expires_at timestamptz,
  PRIMARY KEY (tenant, scope, key));
CREATE INDEX ON recipe (expires_at);
CREATE FUNCTION pay_recipe(k text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE payment_id bigint; answer jsonb;
BEGIN
  INSERT INTO bench.recipe VALUES ('', 'payments', k, md5(request::text), 'in progress', NULL, now(), now() + interval '1 day')
    ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    SELECT response INTO answer FROM bench.recipe WHERE tenant = '' AND scope = 'payments' AND key = k;
    RETURN answer;
  END IF;
  INSERT INTO bench.payment(amount) VALUES ((request->>'amount')::numeric) RETURNING id INTO payment_id;
  answer := jsonb_build_object('payment', payment_id);
  UPDATE bench.recipe SET state = 'finished', response = answer WHERE tenant = '' AND scope = 'payments' AND key = k;
  RETURN answer;
END $$;

-- idem
CREATE FUNCTION pay_idem(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO bench.payment(amount) VALUES ((request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;

-- limited: idem in a scope with claims_per_minute
SELECT idem.create_scope('limited', claims_per_minute => 1000000000) \g /dev/null
CREATE FUNCTION pay_limited(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('limited', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO bench.payment(amount) VALUES ((request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;

-- once and once_each: message consumers
SELECT idem.create_scope('events') \g /dev/null

-- select: the least that a replay can cost
CREATE FUNCTION pay_select(k text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE answer jsonb;
BEGIN
  SELECT response INTO answer FROM bench.finished WHERE tenant = '' AND scope = 'payments' AND key = k;
  RETURN answer;
END $$;

-- claim: idem without an effect, to measure the WAL of its index
CREATE FUNCTION pay_claim(key text, request jsonb) RETURNS jsonb LANGUAGE sql AS $$
  SELECT idem.complete((idem.claim('payments', key, request)).token, '{"payment": 1}') $$;

-- A UUIDv7 from the transaction's start; one expression, so that it is inlined and costs little.
CREATE FUNCTION uuid7(at timestamptz DEFAULT now()) RETURNS text LANGUAGE sql AS $$
  SELECT '0' || substr(to_hex((extract(epoch FROM at) * 1000)::bigint), 1, 7) || '-' ||
         substr(to_hex((extract(epoch FROM at) * 1000)::bigint), 8, 4) || '-7' || substr(gen_random_uuid()::text, 16) $$;
-- Known keys have no common prefix, which would be an advantage to the indexes by text.
CREATE FUNCTION keys(kind text, n int) RETURNS text[] LANGUAGE sql AS $$
  SELECT array_agg(CASE kind WHEN 'v7' THEN bench.uuid7(clock_timestamp()) WHEN 'known' THEN md5(i::text)::uuid::text ELSE gen_random_uuid()::text END)
    FROM generate_series(1, n) i $$;

-- Row versions that became dead, including those that pruning has removed.
CREATE FUNCTION dead() RETURNS bigint LANGUAGE sql AS $$
  SELECT sum(pg_stat_get_tuples_updated(t) + pg_stat_get_tuples_deleted(t))
    FROM unnest(ARRAY['idem.record', 'bench.finished', 'bench.recipe', 'bench.payment']::regclass[]) t $$;

-- run_X(scene, keys): one transaction per operation, no client round trip, keys made beforehand
DO $do$
DECLARE contender text;
BEGIN
  FOREACH contender IN ARRAY ARRAY['bare', 'insert', 'recipe', 'idem', 'limited', 'select', 'claim'] LOOP
    EXECUTE format($sql$
      CREATE PROCEDURE bench.run_%1$s(scene text, keys text[]) LANGUAGE plpgsql AS $$
      DECLARE
        request CONSTANT jsonb := '{"amount": 10.50, "currency": "EUR", "to": "account 77"}';
        n CONSTANT int := cardinality(keys);
        k text; answer jsonb; began timestamptz; took interval; lsn pg_lsn; wal numeric;
      BEGIN
        lsn := pg_current_wal_insert_lsn();
        began := clock_timestamp();
        FOREACH k IN ARRAY keys LOOP
          answer := bench.pay_%1$s(k, request);
          COMMIT;
        END LOOP;
        took := clock_timestamp() - began;
        wal := pg_current_wal_insert_lsn() - lsn;
        INSERT INTO bench.measure VALUES (scene, '%1$s', extract(epoch FROM took) * 1e6 / n, wal / n);
        COMMIT;
      END $$ $sql$, contender);
  END LOOP;
END $do$;
