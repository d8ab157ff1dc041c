-- What the tests need: npm test runs them on the database that PGHOST and so on name.
CREATE EXTENSION idem;
SELECT idem.create_scope('payments', ttl => '7 days', request_required => true,
                         store_request => 'unfinished', max_attempts => 2);
CREATE TABLE payment (id bigserial PRIMARY KEY, amount numeric NOT NULL);
CREATE TABLE ledger (payment bigint NOT NULL, amount numeric NOT NULL);

-- Other rules, one scope for each.
SELECT idem.create_scope('limited', claims_per_minute => CASE idem.edition() WHEN 'extension' THEN 1 END);
SELECT idem.create_scope('fresh', reject_stale_keys => true);
SELECT idem.create_scope('strong', weak_keys => 'reject');
SELECT idem.create_scope('explaining', store_request => 'always');
SELECT idem.create_scope('secretive', response_exclude => '{card.number}');

-- The first transaction with a payment of 40001 since the sequence was restarted fails to commit.
CREATE SEQUENCE commits;
CREATE FUNCTION lose_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('commits') = 1 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER lose_commit AFTER INSERT ON payment DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.amount = 40001) EXECUTE FUNCTION lose_commit();

-- Loses the first two races since the sequence was restarted.
CREATE SEQUENCE tries;
CREATE FUNCTION lose_race() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  CASE nextval('tries')
    WHEN 1 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001';
    WHEN 2 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40P01';
    ELSE NULL;
  END CASE;
END $$;

-- Operations under leases, which a worker can finish.
SELECT idem.create_scope('charges', request_required => true, store_request => 'unfinished');
SELECT idem.create_scope('killed', request_required => true, store_request => 'unfinished');
SELECT idem.create_scope('left', request_required => true, store_request => 'unfinished');
SELECT idem.create_scope('twice', request_required => true, store_request => 'unfinished',
                         max_attempts => 2);
