-- The one-statement form: a claim, its effect and its answer in one command, as a client sends it.
SELECT idem.create_scope('shop');
CREATE TABLE payment (id integer GENERATED ALWAYS AS IDENTITY, amount numeric);
CREATE TABLE ledger (payment integer, amount numeric);
CREATE TABLE stock (item text PRIMARY KEY, left_over integer);
INSERT INTO stock VALUES ('book', 1);

-- one effect
PREPARE pay(text, jsonb) AS
WITH c AS MATERIALIZED (
  SELECT * FROM idem.claim('shop', $1, $2)
), effect AS (
  INSERT INTO payment (amount) SELECT ($2->>'amount')::numeric FROM c WHERE c.claimed
  RETURNING jsonb_build_object('payment', id) AS answer
)
SELECT CASE WHEN c.claimed THEN idem.complete(c.token, (SELECT answer FROM effect))
            ELSE c.response END AS answer, c.claimed
  FROM c;
EXECUTE pay('one', '{"amount": 10}');
EXECUTE pay('one', '{"amount": 10.0}');
EXECUTE pay('one', '{"amount": 11}');
EXECUTE pay('two', '{"amount": "ten"}');
EXECUTE pay('two', '{"amount": 11}');
-- a generic plan, and a transaction of several
SET plan_cache_mode = force_generic_plan;
BEGIN;
EXECUTE pay('three', '{"amount": 12}');
EXECUTE pay('three', '{"amount": 12}');
EXECUTE pay('one', '{"amount": 10}');
ROLLBACK;
EXECUTE pay('three', '{"amount": 13}');
RESET plan_cache_mode;
SELECT * FROM payment ORDER BY id;

-- two effects, of which the second uses the first
PREPARE book(text, jsonb) AS
WITH c AS MATERIALIZED (
  SELECT * FROM idem.claim('shop', $1, $2)
), paid AS (
  INSERT INTO payment (amount) SELECT ($2->>'amount')::numeric FROM c WHERE c.claimed
  RETURNING id, amount
), booked AS (
  INSERT INTO ledger SELECT id, amount FROM paid RETURNING payment
)
SELECT CASE WHEN c.claimed
            THEN idem.complete(c.token, jsonb_build_object('booked', (SELECT payment FROM booked)))
            ELSE c.response END AS answer
  FROM c;
EXECUTE book('four', '{"amount": 20}');
EXECUTE book('four', '{"amount": 20}');
SELECT count(*) FROM ledger;

-- an effect that finds no row: the answer says so, and is stored
PREPARE reserve(text, text) AS
WITH c AS MATERIALIZED (
  SELECT * FROM idem.claim('shop', $1, to_jsonb($2))
), effect AS (
  UPDATE stock SET left_over = left_over - 1 FROM c
   WHERE c.claimed AND item = $2 AND left_over > 0
  RETURNING jsonb_build_object('reserved', item) AS answer
)
SELECT CASE WHEN c.claimed
            THEN idem.complete(c.token, coalesce((SELECT answer FROM effect), '{"reserved": null}'))
            ELSE c.response END AS answer
  FROM c;
EXECUTE reserve('first', 'book');
EXECUTE reserve('second', 'book');
UPDATE stock SET left_over = 5;
EXECUTE reserve('second', 'book');
EXECUTE reserve('first', 'book');
SELECT * FROM stock;

-- an effect that finds no row, and is to be tried again: the claim is released
PREPARE reserve_later(text, text) AS
WITH c AS MATERIALIZED (
  SELECT * FROM idem.claim('shop', $1, to_jsonb($2))
), effect AS (
  UPDATE stock SET left_over = left_over - 1 FROM c
   WHERE c.claimed AND item = $2 AND left_over > 0
  RETURNING jsonb_build_object('reserved', item) AS answer
)
SELECT CASE WHEN NOT c.claimed THEN c.response
            WHEN e.answer IS NULL THEN to_jsonb(idem.release(c.token)::text)
            ELSE idem.complete(c.token, e.answer) END AS answer
  FROM c LEFT JOIN effect e ON true;
EXECUTE reserve_later('third', 'pen');
INSERT INTO stock VALUES ('pen', 1);
EXECUTE reserve_later('third', 'pen');
EXECUTE reserve_later('third', 'pen');
SELECT * FROM stock ORDER BY item;

-- without MATERIALIZED it is the same: a volatile function in FROM is evaluated once
WITH c AS (
  SELECT * FROM idem.claim('shop', 'plain')
), effect AS (
  INSERT INTO payment (amount) SELECT 30 FROM c WHERE c.claimed RETURNING id
)
SELECT CASE WHEN c.claimed THEN idem.complete(c.token, to_jsonb((SELECT count(*) FROM effect)))
            ELSE c.response END AS answer
  FROM c;
-- a statement that forgets to complete stores nothing, and has no effect
WITH c AS MATERIALIZED (
  SELECT * FROM idem.claim('shop', 'forgotten')
)
INSERT INTO payment (amount) SELECT 40 FROM c WHERE c.claimed;
SELECT count(*) FILTER (WHERE amount = 40) FROM payment;
DEALLOCATE ALL;
DROP TABLE payment, ledger, stock;
