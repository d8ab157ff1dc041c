-- What the clients call: each function does what an application does with idem, and tells what came
-- of it in a word. No table has a unique constraint: only idem keeps an effect from happening twice.
CREATE SCHEMA chaos;

SELECT idem.create_scope('lasting', ttl => '30 days', wait => '100 ms', lease => '2 s',
                         request_exclude => '{sent_at}', final_sqlstates => '{CH}',
                         store_request => 'always');
SELECT idem.create_scope('brief', ttl => '5 minutes', wait => '100 ms', lease => '2 s',
                         request_exclude => '{sent_at}', final_sqlstates => '{CH}',
                         store_request => 'unfinished');
-- Its operations are soon without attempts left.
SELECT idem.create_scope('few', ttl => '30 days', wait => '100 ms', max_attempts => 2,
                         request_exclude => '{sent_at}', final_sqlstates => '{CH}',
                         store_request => 'unfinished');
SELECT idem.create_scope('events', ttl => '30 days', wait => '100 ms');
SELECT idem.create_scope('streams', wait => '100 ms');

-- Before each call; records.sql replaces it.
CREATE FUNCTION chaos.choose() RETURNS void LANGUAGE sql AS '';

-- result is 'c', 'f' or 'x': the operation completed, failed or was cancelled. seq is of streams
-- alone.
CREATE TABLE chaos.effect (key text, uid text, result "char" DEFAULT 'c', seq bigint);

CREATE FUNCTION chaos.scope(key text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE left(key, 1) WHEN 'a' THEN 'lasting' WHEN 'b' THEN 'brief' WHEN 'f' THEN 'few'
         WHEN 'e' THEN 'events' ELSE 'streams' END
$$;

-- Half of the operations have a request. A retry sends the same, except for its time, which every
-- list of members that may differ has.
CREATE FUNCTION chaos.request(key text) RETURNS jsonb LANGUAGE sql VOLATILE AS $$
  SELECT CASE WHEN right(key, 1) IN ('0', '2', '4', '6', '8')
         THEN jsonb_build_object('key', key, 'amount', 1, 'sent_at', clock_timestamp()) END
$$;

-- A change of a rule that gives live keys another identity must be refused. It is undone if it was
-- not, and leaves a line here.
CREATE TABLE chaos.accepted (change text);
CREATE PROCEDURE chaos.change_identity() LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM chaos.effect WHERE key LIKE 'a%') THEN
    RETURN;
  END IF;
  BEGIN
    PERFORM idem.alter_scope('lasting', tenant_from => 'role');
    RAISE EXCEPTION USING ERRCODE = 'CH002';
  EXCEPTION
    -- Under load it waits for claims that wait for each other, and is often the one to give way.
    WHEN object_not_in_prerequisite_state OR deadlock_detected OR lock_not_available THEN NULL;
    WHEN SQLSTATE 'CH002' THEN INSERT INTO chaos.accepted VALUES ('tenant_from');
  END;
END $$;

-- The rows of idem.record, and what a trigger has seen of their changes: now and then begun anew, and
-- later compared. What it lacks, or has besides, is in chaos.unseen. It is only added to: a
-- transaction that took its snapshot before does not see its rows.
CREATE TABLE chaos.mirror (n integer, record jsonb);
CREATE TABLE chaos.unseen (place text, record jsonb);
CREATE FUNCTION chaos.reflect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN
    INSERT INTO chaos.mirror VALUES (-1, to_jsonb(OLD));
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO chaos.mirror VALUES (1, to_jsonb(NEW));
  END IF;
  RETURN NULL;
END $$;
CREATE PROCEDURE chaos.audit() LANGUAGE plpgsql AS $$
BEGIN
  LOCK TABLE idem.record IN SHARE ROW EXCLUSIVE MODE;
  IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'idem.record'::regclass AND tgname = 'mirror') THEN
    DROP TRIGGER mirror ON idem.record;
    INSERT INTO chaos.unseen
      SELECT CASE WHEN sum(n) > 0 THEN 'mirror' ELSE 'table' END, record
      FROM (TABLE chaos.mirror UNION ALL SELECT -1, to_jsonb(r) FROM idem.record r) a
      GROUP BY record HAVING sum(n) <> 0;
  ELSE
    TRUNCATE chaos.mirror;  -- a dump has it, but no triggers of an extension's tables
    INSERT INTO chaos.mirror SELECT 1, to_jsonb(r) FROM idem.record r;
    CREATE TRIGGER mirror AFTER INSERT OR UPDATE OR DELETE ON idem.record
      FOR EACH ROW EXECUTE FUNCTION chaos.reflect();
  END IF;
END $$;

-- The operation of idem.execute(): one in sixteen fails for good.
CREATE FUNCTION chaos.operation(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  uid text := current_setting('chaos.uid');
BEGIN
  IF right(md5(uid), 1) = '0' THEN
    RAISE EXCEPTION USING ERRCODE = 'CH001', MESSAGE = uid;
  END IF;
  INSERT INTO chaos.effect (key, uid) VALUES (idem.current_key(), uid);
  RETURN jsonb_build_object('uid', uid);
END $$;

-- What a client learns of a finished operation: the uid of the call that finished it, and how. An
-- answer that was erased has no uid. A failure keeps its sqlstate, and is raised with a message of
-- idem's then.
CREATE FUNCTION chaos.failure(code text, message text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT format('had %s %s', CASE WHEN message ~ '^\w+\.\d+$' THEN message ELSE '-' END,
                CASE code WHEN 'CH001' THEN 'f' WHEN 'CH003' THEN 'x' ELSE '?' END)
$$;
CREATE FUNCTION chaos.answer(outcome text, redacted boolean, response jsonb, error jsonb)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE outcome
         WHEN 'completed' THEN
           format('had %s c', CASE WHEN redacted THEN '-' ELSE coalesce(response->>'uid', '?') END)
         WHEN 'failed' THEN chaos.failure(error->>'sqlstate', error->>'message')
         ELSE outcome END
$$;

-- One call. Returns one of:
--   did           the operation ran, under uid, and its effect is in this transaction
--   had UID c|f|x the operation had ended before, and this is its answer; "-" if it was erased
--   hold N POINT TOKEN  a leased claim, attempt N, and its recovery point or "-"
--   ok            renewed, or a checkpoint was set
--   free          given up, nothing happened
--   forgot, erased, revoked  what was done to the record
--   another word  nothing happened: in_progress, exhausted, conflict, absent, idle
-- A call that takes an operation is told its key: "took KEY", then one of these.
CREATE FUNCTION chaos.call(kind text, key text, uid text, token text) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  scope text := chaos.scope(key);
  request jsonb := chaos.request(key);
  c idem.claim_result;
  x idem.execute_result;
  r idem.lookup_result;
  taken idem.take_result;
BEGIN
  PERFORM chaos.choose();
  CASE kind
  WHEN 'claim', 'fail', 'release', 'undo' THEN
    c := idem.claim(scope, key, request);
  WHEN 'wait' THEN
    c := idem.claim(scope, key, request, wait => '20 ms');
  WHEN 'try' THEN
    c := idem.try_claim(scope, key, request);
  WHEN 'try_wait' THEN
    c := idem.try_claim(scope, key, request, wait => '10 ms');
  WHEN 'other' THEN
    c := idem.try_claim(scope, key, '{"another": "request"}');
  WHEN 'lease' THEN
    c := idem.try_claim(scope, key, request,
                        lease => CASE scope WHEN 'few' THEN interval '50 ms'
                                      ELSE '1 second' END);
  WHEN 'lease_wait' THEN
    c := idem.claim(scope, key, request, lease => '3 seconds', wait => '50 ms');
  WHEN 'execute' THEN
    PERFORM set_config('chaos.uid', uid, true);
    x := idem.execute(scope, key, 'chaos.operation(jsonb)', request);
    IF x.replayed THEN
      RETURN chaos.answer(x.outcome, x.redacted, x.response, x.error);
    END IF;
    IF x.outcome = 'failed' THEN
      INSERT INTO chaos.effect (key, uid, result) VALUES (key, uid, 'f');
    END IF;
    RETURN 'did';
  WHEN 'once' THEN
    IF NOT idem.once(scope, key) THEN
      RETURN 'had ? c';
    END IF;
    INSERT INTO chaos.effect (key, uid) VALUES (key, uid);
    RETURN 'did';
  WHEN 'lookup' THEN
    r := idem.lookup(scope, key);
    RETURN chaos.answer(r.state, r.redacted, r.response, r.error);
  WHEN 'await' THEN
    r := idem.lookup(scope, key, wait => '50 ms');
    RETURN chaos.answer(r.state, r.redacted, r.response, r.error);
  WHEN 'forget' THEN
    RETURN CASE WHEN idem.forget(scope, key) THEN 'forgot' ELSE 'absent' END;
  WHEN 'forget_all' THEN
    RETURN CASE WHEN idem.forget(scope, key, force => true) THEN 'forgot' ELSE 'absent' END;
  WHEN 'revoke' THEN
    RETURN CASE WHEN idem.revoke(scope, key) THEN 'revoked' ELSE 'absent' END;
  WHEN 'erase', 'erase_all' THEN
    IF NOT idem.erase(scope, key, force => kind = 'erase_all') THEN
      RETURN 'absent';
    END IF;
    r := idem.lookup(scope, key);
    RETURN CASE WHEN r.redacted THEN 'erased' ELSE 'free' END;
  WHEN 'cancel' THEN
    r := idem.cancel(scope, key,
                     error => jsonb_build_object('sqlstate', 'CH003', 'message', uid));
    IF r.error->>'message' IS DISTINCT FROM uid THEN
      RETURN chaos.answer(r.state, r.redacted, r.response, r.error);
    END IF;
    INSERT INTO chaos.effect (key, uid, result) VALUES (key, uid, 'x');
    RETURN 'did';
  WHEN 'take', 'take_end' THEN
    taken := idem.take(scope, lease => '2 seconds', wait => '20 ms');
    IF taken.token IS NULL THEN
      RETURN 'idle';
    ELSIF kind = 'take' THEN
      RETURN format('took %s hold %s %s %s', taken.key, taken.attempt,
                    coalesce(taken.recovery_point, '-'), taken.token);
    END IF;
    INSERT INTO chaos.effect (key, uid) VALUES (taken.key, uid);
    PERFORM idem.complete(taken.token, jsonb_build_object('uid', uid));
    RETURN format('took %s did', taken.key);
  WHEN 'rehearse' THEN
    IF NOT EXISTS (SELECT FROM idem_test.rehearse(format('SELECT chaos.call(%L, %L, %L, NULL)',
                                                    'claim', key, uid)) line
                   WHERE line = 'ok 3 - a replay writes nothing') THEN
      RETURN 'absent';  -- the key was in use, or a fault came in between
    END IF;
    RETURN 'free';
  WHEN 'purge' THEN
    PERFORM idem.purge(100);
    RETURN 'free';
  WHEN 'advance' THEN
    IF NOT idem.advance(scope, key, token::bigint, contiguous => true) THEN
      RETURN 'had ? c';
    END IF;
    INSERT INTO chaos.effect (key, uid, seq) VALUES (key, uid, token::bigint);
    RETURN 'did';
  WHEN 'complete' THEN
    INSERT INTO chaos.effect (key, uid) VALUES (key, uid);
    PERFORM idem.complete(token, jsonb_build_object('uid', uid));
    RETURN 'did';
  WHEN 'give_up' THEN
    INSERT INTO chaos.effect (key, uid, result) VALUES (key, uid, 'f');
    PERFORM idem.fail(token, jsonb_build_object('sqlstate', 'CH001', 'message', uid));
    RETURN 'did';
  WHEN 'renew' THEN
    PERFORM idem.renew(token, '2 seconds');
    RETURN 'ok';
  WHEN 'checkpoint' THEN
    PERFORM idem.checkpoint(token, uid, jsonb_build_object('uid', uid));
    RETURN 'ok';
  WHEN 'drop' THEN
    PERFORM idem.release(token);
    RETURN 'free';
  WHEN 'pause' THEN
    PERFORM idem.release(token, retry_after => '300 ms', error => jsonb_build_object('message', uid));
    RETURN 'free';
  END CASE;

  IF NOT c.claimed THEN
    RETURN chaos.answer(c.outcome, c.redacted, c.response, c.error);
  ELSIF kind LIKE 'lease%' THEN
    RETURN format('hold %s %s %s', c.attempt, coalesce(c.recovery_point, '-'), c.token);
  ELSIF kind IN ('release', 'other') THEN
    PERFORM idem.release(c.token);
    RETURN 'free';
  END IF;
  INSERT INTO chaos.effect (key, uid, result)
    VALUES (key, uid, CASE kind WHEN 'fail' THEN 'f' ELSE 'c' END::"char");
  IF kind = 'fail' THEN
    PERFORM idem.fail(c.token, jsonb_build_object('sqlstate', 'CH001', 'message', uid));
  ELSE
    PERFORM idem.complete(c.token, jsonb_build_object('uid', uid));
  END IF;
  IF kind = 'undo' THEN
    RAISE EXCEPTION USING ERRCODE = 'CH002';
  END IF;
  RETURN 'did';
END $$;

-- Many calls, each in a savepoint: an error ends that call alone. A stored failure is an answer.
CREATE FUNCTION chaos.calls(kinds text[], keys text[], uids text[], tokens text[]) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
  answers text[] := '{}';
  answer text;
BEGIN
  FOR i IN 1 .. cardinality(kinds) LOOP
    BEGIN
      answer := chaos.call(kinds[i], keys[i], uids[i], tokens[i]);
    EXCEPTION WHEN OTHERS THEN
      answer := CASE WHEN SQLSTATE IN ('CH001', 'CH003') THEN chaos.failure(SQLSTATE, SQLERRM)
                WHEN SQLSTATE = 'CH002' THEN 'free' ELSE SQLSTATE END;
    END;
    answers := answers || answer;
  END LOOP;
  RETURN answers;
END $$;

-- The same without savepoints: an error ends the transaction.
CREATE FUNCTION chaos.calls_bare(kinds text[], keys text[], uids text[], tokens text[])
RETURNS text[] LANGUAGE sql AS $$
  SELECT array_agg(chaos.call(kind, key, uid, token) ORDER BY n)
  FROM unnest(kinds, keys, uids, tokens) WITH ORDINALITY u (kind, key, uid, token, n)
$$;

-- idem.once_each() for an array of keys. Returns the new ones.
CREATE FUNCTION chaos.each(keys text[], uid text) RETURNS text[] LANGUAGE sql AS $$
  WITH new AS (
    INSERT INTO chaos.effect (key, uid)
      SELECT key, uid FROM idem.once_each('events', keys) key RETURNING key
  )
  SELECT coalesce(array_agg(key), '{}') FROM new
$$;
