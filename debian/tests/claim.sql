CREATE EXTENSION idem;
SELECT count(*) FROM idem.create_scope('payments') \gset
CREATE TABLE effect (happened int);
DO $$
DECLARE first idem.claim_result; again idem.claim_result;
BEGIN
    first := idem.claim('payments', 'key', '{"amount": 1}');
    ASSERT first.claimed, 'the first call claims';
    INSERT INTO effect VALUES (1);
    PERFORM idem.complete(first.token, '{"payment": 1}');
    again := idem.claim('payments', 'key', '{"amount": 1.0}');
    ASSERT NOT again.claimed AND again.response = '{"payment": 1}', 'a retry gets the first answer';
END $$;
DO $$
DECLARE again idem.claim_result := idem.claim('payments', 'key', '{"amount": 1}');
BEGIN
    ASSERT NOT again.claimed AND again.response = '{"payment": 1}',
        'a retry in another transaction gets it too';
    ASSERT (SELECT count(*) = 1 FROM effect), 'there is one effect';
END $$;

-- The package has the extension for tests, too.
CREATE EXTENSION idem_test;
DO $$
BEGIN
    ASSERT (SELECT count(*) = 0 FROM idem_test.rehearse($c$SELECT idem.once('payments', 'message')$c$) line
            WHERE line ~ '^not ok [^2]'), 'a rehearsal runs';
END $$;
