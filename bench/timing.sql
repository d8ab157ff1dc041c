-- The refusals that bench/timing compares. Each is a function of one text, a key or a token, that
-- makes a refused call and catches the error.
\set VERBOSITY terse
CREATE ROLE timing_owner;
CREATE ROLE timing_member IN ROLE timing_owner;
CREATE ROLE timing_stranger;
CREATE SCHEMA timing;
GRANT USAGE ON SCHEMA timing TO PUBLIC;
SELECT idem.create_scope('vault', owner => 'timing_owner', wait => '0', max_answer_size => 1000000) \gset ignored_

-- Existing keys: finished operations, and leases with a small and a large recovery state.
SELECT count(*) FROM idem.once_each('vault', ARRAY(SELECT 'order-' || i FROM generate_series(1, 20000) i)) \g /dev/null
CREATE TABLE timing.leased AS
    SELECT size, token FROM (VALUES ('small', 10), ('large', 2000000)) AS state (size, bytes), generate_series(1, 20) i,
           LATERAL idem.claim('vault', size || i, lease => '1 day');
SELECT idem.checkpoint(token, 'step', to_jsonb((SELECT string_agg(md5(i::text), '') FROM generate_series(1, CASE size WHEN 'small' THEN 1 ELSE 20000 END) i)))
  FROM timing.leased \g /dev/null
VACUUM ANALYZE;

-- A token that was never issued; its first two characters give its kind.
CREATE FUNCTION timing.made_up(token text) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT left(token, 2) || left(translate(encode(decode(md5(random()::text) || md5(random()::text), 'hex'), 'base64'), '+/=', '-_'), 36) || 'A'
$$;
CREATE FUNCTION timing.wrong_bits(token text) RETURNS text LANGUAGE sql VOLATILE AS $$ SELECT left(token, 29) || right(timing.made_up(token), 10) $$;

DO $do$
DECLARE refusal text[];
BEGIN
    FOREACH refusal SLICE 1 IN ARRAY ARRAY[
        ['claim', $$idem.claim('vault', given)$$], ['try_claim', $$idem.try_claim('vault', given)$$],
        ['claim_with_request', $$idem.claim('vault', given, '{"amount": 1}')$$],
        ['lookup', $$idem.lookup('vault', given)$$], ['once', $$idem.once('vault', given)$$],
        ['once_each', $$idem.once_each('vault', ARRAY[given])$$], ['forget', $$idem.forget('vault', given)$$],
        ['complete', $$idem.complete(given)$$], ['renew', $$idem.renew(given)$$],
        ['child_key', $$idem.child_key(given, 'step')$$]] LOOP
        EXECUTE format('CREATE FUNCTION timing.%I(given text) RETURNS void LANGUAGE plpgsql AS $f$
                        BEGIN PERFORM %s; EXCEPTION WHEN OTHERS THEN NULL; END $f$', refusal[1], refusal[2]);
    END LOOP;
END $do$;
CREATE FUNCTION timing.records(given text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM FROM idem.records WHERE key = given; END $$;

-- Microseconds per call, sample by sample: the two sides take turns, in random order.
CREATE FUNCTION timing.measure(what regproc, there text[], absent text[], rounds int,
                               OUT median_there numeric, OUT median_absent numeric, OUT ratio numeric, OUT slower numeric)
LANGUAGE plpgsql AS $$
DECLARE
    given text;
    began timestamptz;
    sides float[] := '{}';
    samples float[][] := '{}';
    first boolean;
    statement text := format('SELECT count(%s(x)) FROM unnest($1) x', what);
BEGIN
    FOR i IN 1..rounds LOOP
        first := random() < 0.5;
        sides := ARRAY[0, 0];
        FOR turn IN 1..2 LOOP
            began := clock_timestamp();
            EXECUTE statement USING CASE WHEN first THEN there ELSE absent END;
            sides[CASE WHEN first THEN 1 ELSE 2 END] := extract(epoch FROM clock_timestamp() - began) * 1e6 / cardinality(there);
            first := NOT first;
        END LOOP;
        samples := samples || ARRAY[sides];
    END LOOP;
    SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY samples[i][1]), percentile_cont(0.5) WITHIN GROUP (ORDER BY samples[i][2]),
           avg(CASE WHEN samples[i][1] > samples[i][2] THEN 1 WHEN samples[i][1] = samples[i][2] THEN 0.5 ELSE 0 END)
      INTO median_there, median_absent, slower FROM generate_subscripts(samples, 1) i;
    ratio := round(median_there / median_absent, 3);
    median_there := round(median_there, 2);
    median_absent := round(median_absent, 2);
    slower := round(slower, 2);
END $$;

CREATE TABLE timing.result (id int GENERATED ALWAYS AS IDENTITY, role name, refusal text, of text, there numeric, absent numeric, ratio numeric, slower numeric);
GRANT ALL ON ALL TABLES IN SCHEMA timing TO PUBLIC;
CREATE FUNCTION timing.run(rounds int, calls int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    refusal text;
    kind text;
    tokens text[];
BEGIN
    FOREACH refusal IN ARRAY '{claim, try_claim, claim_with_request, lookup, once, once_each, forget}'::text[] LOOP
        CONTINUE WHEN current_user = 'timing_member' AND refusal NOT IN ('forget');
        INSERT INTO timing.result (role, refusal, of, there, absent, ratio, slower)
            SELECT current_user, refusal, 'key', m.* FROM timing.measure(('timing.' || refusal)::regproc,
                ARRAY(SELECT 'order-' || i FROM generate_series(1, calls) i), ARRAY(SELECT 'owner-' || i FROM generate_series(1, calls) i), rounds) m;
    END LOOP;
    FOREACH refusal IN ARRAY '{complete, renew, child_key}'::text[] LOOP
        FOR kind, tokens IN
            SELECT k, array_agg(CASE k WHEN 'right token, large' THEN token WHEN 'right token, small' THEN token ELSE timing.wrong_bits(token) END)
              FROM timing.leased, unnest('{wrong bits, "wrong bits, large", "right token, small", "right token, large"}'::text[]) k,
                   generate_series(1, calls / 20)
             WHERE (k LIKE '%large') = (size = 'large') AND (k LIKE 'wrong%' OR current_user <> 'timing_member') GROUP BY k
        LOOP
            CONTINUE WHEN current_user = 'timing_member' AND refusal = 'child_key';     -- which is not refused
            INSERT INTO timing.result (role, refusal, of, there, absent, ratio, slower)
                SELECT current_user, refusal, kind, m.* FROM timing.measure(('timing.' || refusal)::regproc,
                    tokens, ARRAY(SELECT timing.made_up(t) FROM unnest(tokens) t), rounds) m;
        END LOOP;
    END LOOP;
    INSERT INTO timing.result (role, refusal, of, there, absent, ratio, slower)
        SELECT current_user, 'records', 'key', m.* FROM timing.measure('timing.records', ARRAY['order-1'], ARRAY['owner-1'], rounds / 20) m;
END $$;

SET ROLE timing_stranger;
SELECT timing.run(:rounds, :calls) \g /dev/null
RESET ROLE;
SET ROLE timing_member;
SELECT timing.run(:rounds, :calls) \g /dev/null
RESET ROLE;
\echo 'Microseconds per refusal (medians); slower: share of samples where an existing key took longer'
SELECT role, refusal, of, there, absent, ratio, slower FROM timing.result ORDER BY id;
