-- What bench/instructions counts: procedures that make the same effect, or none, once for each key,
-- and make it safe for retries in different ways. Everything is in schema bench.
\set ON_ERROR_STOP on
SET client_min_messages = warning;
CREATE EXTENSION idem;
CREATE SCHEMA bench;
SELECT idem.create_scope(name) FROM unnest('{payments,jobs,elsewhere}'::text[]) name \g /dev/null

-- Microseconds on a CPU, of this backend. The kernel adds to it when the backend waits, so it is a
-- statement of its own.
CREATE FUNCTION bench.cpu() RETURNS float8 LANGUAGE sql AS $$
  SELECT split_part(pg_read_file('/proc/self/schedstat'), ' ', 1)::float8 / 1000 $$;

-- The effect: the same for all.
CREATE TABLE bench.payment (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  amount numeric);
CREATE FUNCTION bench.pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE payment_id bigint;
BEGIN
  INSERT INTO bench.payment (amount) VALUES ((request->>'amount')::numeric)
    RETURNING id INTO payment_id;
  RETURN jsonb_build_object('payment', payment_id);
END $$;

-- The yardstick: one plain INSERT of a finished row. It is not safe, but the least to store.
CREATE TABLE bench.finished (
  tenant text, scope text, key text, status text, response jsonb,
  created timestamptz, expires timestamptz,
  PRIMARY KEY (tenant, scope, key));

-- The usual hand-written form: INSERT ... ON CONFLICT, effect, UPDATE.
CREATE TABLE bench.recipe (
  tenant text, scope text, key text, request_hash text, status text, response jsonb,
  created timestamptz, expires timestamptz,
  PRIMARY KEY (tenant, scope, key));
CREATE INDEX ON bench.recipe (expires);

-- The same keys in every run: UUIDv7s, one per millisecond, and UUIDv4s.
CREATE TABLE bench.key (kind text, i int, key text, PRIMARY KEY (kind, i));
INSERT INTO bench.key
  SELECT kind, i,
         CASE WHEN kind LIKE '%v7'
              THEN overlay('0' || to_hex(x'192d5f00000'::bigint + i) PLACING '-' FROM 9 FOR 0) || '-7'
              ELSE left(r, 14) || '4'
         END ||
         substr(r, 16, 4) || '8' || substr(r, 21)
    FROM unnest(string_to_array(:'kinds', ' ')) kind, generate_series(1, :keys) i,
         LATERAL CAST(md5(kind || i)::uuid AS text) r;
CREATE FUNCTION bench.keys(wanted text, first int, n int) RETURNS text[] LANGUAGE sql AS $$
  SELECT array_agg(key ORDER BY i) FROM bench.key
   WHERE kind = wanted AND i BETWEEN first AND first + n - 1 $$;

-- The leases that renew, checkpoint and release work on. All leases are long, because valgrind is
-- slow, except those that have ended when they are taken.
CREATE TABLE bench.lease (id int PRIMARY KEY, token text);

-- The operations: each is the body of a loop that commits after it. k is the key, request the
-- request, and answer what becomes of it. The body of an operation on many keys finds them in
-- hundred.
CREATE TABLE bench.operation (name text PRIMARY KEY, body text, many boolean DEFAULT false);
INSERT INTO bench.operation (name, body) VALUES
('bare', $$
    answer := bench.pay(request);$$),
('insert', $$
    answer := bench.pay(request);
    INSERT INTO bench.finished
      VALUES ('', 'payments', k, 'completed', answer, now(), now() + interval '1 day');$$),
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
    END IF;$$),
('claim', $$
    c := idem.claim('payments', k, request);
    IF c.claimed THEN
      answer := idem.complete(c.token, bench.pay(request));
    ELSE
      answer := c.response;
    END IF;$$),
('leased', $$
    c := idem.claim('payments', k, request, lease => '1 day');
    COMMIT;
    PERFORM idem.renew(c.token, '1 day');
    COMMIT;
    answer := idem.complete(c.token, bench.pay(request));$$),
('elsewhere', $$
    PERFORM idem.use_records('bench.records');
    c := idem.claim('elsewhere', k, request, tenant => '7');
    IF c.claimed THEN
      answer := idem.complete(c.token, bench.pay(request));
    ELSE
      answer := c.response;
    END IF;$$),
('due', $$
    c := idem.claim('jobs', k, request, lease => '1 microsecond');
    answer := bench.pay(request);$$),
('take', $$
    c := idem.claim('jobs', k, request, lease => '1 microsecond');
    COMMIT;
    t := (idem.take('jobs', lease => '1 day')).token;
    COMMIT;
    answer := idem.complete(t, bench.pay(request));$$),
('once', $$
    IF idem.once('payments', k, request) THEN answer := bench.pay(request); END IF;$$),
('execute', $$
    answer := (idem.execute('payments', k, 'bench.pay(jsonb)', request)).response;$$),
('nothing', $$
    answer := request;$$),
('select', $$
    SELECT response INTO answer FROM bench.finished
     WHERE tenant = '' AND scope = 'payments' AND key = k;$$),
('update', $$
    UPDATE bench.finished SET expires = now() + interval '1 day'
     WHERE tenant = '' AND scope = 'payments' AND key = k;$$),
('conflict', $$
    BEGIN
      c := idem.claim('payments', k, '{"amount": 0}');
    EXCEPTION WHEN SQLSTATE 'ID002' THEN answer := NULL;
    END;$$),
('try_conflict', $$
    c := idem.try_claim('payments', k, '{"amount": 0}');
    IF c.outcome = 'conflict' THEN answer := NULL; END IF;$$),
('lookup', $$
    answer := (idem.lookup('payments', k)).response;$$),
('lookup_wait', $$
    answer := (idem.lookup('payments', k, wait => '1 minute')).response;$$),
('token', $$
    SELECT token INTO t FROM bench.lease WHERE id = first + i;$$),
('renew', $$
    SELECT token INTO t FROM bench.lease WHERE id = first + i;
    PERFORM idem.renew(t, '1 day');$$),
('checkpoint', $$
    SELECT token INTO t FROM bench.lease WHERE id = first + i;
    PERFORM idem.checkpoint(t, 'charged', request);$$),
('release', $$
    SELECT token INTO t FROM bench.lease WHERE id = first + i;
    PERFORM idem.release(t, '1 day', '{"message": "no connection"}');$$);
INSERT INTO bench.operation (name, body, many) VALUES
('bare_each', $$
    INSERT INTO bench.payment (amount)
      SELECT (request->>'amount')::numeric FROM unnest(hundred) key;$$, true),
('once_each', $$
    INSERT INTO bench.payment (amount)
      SELECT (request->>'amount')::numeric FROM idem.once_each('payments', hundred) key;$$, true);

-- run_X(kind, first, n) does an operation for n keys; wal_X notes the median of the WAL bytes per
-- key, which the headers of WAL pages and splits of index pages do not change.
CREATE TABLE bench.wal (operation text, kind text, bytes numeric);
SELECT format($sql$
  CREATE PROCEDURE bench.%1$s_%2$s(kind text, first int, n int) LANGUAGE plpgsql AS $$
  DECLARE
    per CONSTANT int := %3$s;
    ks CONSTANT text[] := bench.keys(kind, first, n);
    request jsonb; answer jsonb; c idem.claim_result; t text; k text; hundred text[];
    before pg_lsn; bytes numeric[];
  BEGIN
    FOR i IN 0 .. n / per - 1 LOOP
      request := jsonb_build_object('amount', 10.50, 'currency', 'EUR', 'to', 'account 77');
      %4$s
      %5$s
      %6$s
      COMMIT;
      %7$s
    END LOOP;
    %8$s
  END $$ $sql$, w.prefix, o.name, CASE WHEN o.many THEN 100 ELSE 1 END,
  CASE WHEN o.many THEN 'hundred := ks[i * per + 1 : i * per + per];' ELSE 'k := ks[i + 1];' END,
  w.before, o.body, w.after, w.summary)
  FROM bench.operation o,
       LATERAL (VALUES ('run', '', '', ''),
                       ('wal', 'before := pg_current_wal_insert_lsn();',
                        'bytes[i] := (pg_current_wal_insert_lsn() - before) / per;',
                        format($$INSERT INTO bench.wal SELECT %L, kind, percentile_disc(0.5)
                                 WITHIN GROUP (ORDER BY b) FROM unnest(bytes) b;$$, o.name))
               ) AS w(prefix, before, after, summary)
\gexec
