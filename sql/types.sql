-- ---------------------------------------------------------------------------------------------
-- Result types
-- ---------------------------------------------------------------------------------------------

CREATE TYPE idem.claim_result AS (
    claimed             boolean,
    outcome             text,
    token               text,
    attempt             integer,
    response            jsonb,
    status              integer,
    headers             jsonb,
    body                bytea,
    error               jsonb,
    retry_after         interval,
    recovery_point      text,
    recovery_state      jsonb,
    created_at          timestamptz,
    expires_at          timestamptz,
    redacted            boolean,
    differs             text[],
    completed_at        timestamptz
);

COMMENT ON TYPE idem.claim_result IS
    'The result of idem.claim() and idem.try_claim(): the token of a new claim, or the stored '
    'answer.';

COMMENT ON COLUMN idem.claim_result.claimed IS
    'Whether the caller owns the operation.';
COMMENT ON COLUMN idem.claim_result.outcome IS
    'claimed, completed, failed, exhausted, in_progress, conflict, stale_key or limited.';
COMMENT ON COLUMN idem.claim_result.token IS
    'The handle of the claim; NULL unless claimed.';
COMMENT ON COLUMN idem.claim_result.attempt IS
    'The attempt that this claim is, or that stored the answer. The first is 1.';
COMMENT ON COLUMN idem.claim_result.response IS
    'The stored response.';
COMMENT ON COLUMN idem.claim_result.status IS
    'The stored status.';
COMMENT ON COLUMN idem.claim_result.headers IS
    'The stored headers.';
COMMENT ON COLUMN idem.claim_result.body IS
    'The stored body.';
COMMENT ON COLUMN idem.claim_result.error IS
    'The stored failure. For exhausted, the last error that idem.release() was given; NULL if it '
    'was given none.';
COMMENT ON COLUMN idem.claim_result.retry_after IS
    'When to come back, for in_progress, exhausted and limited. NULL where waiting does not help, '
    'because this transaction itself holds the key.';
COMMENT ON COLUMN idem.claim_result.recovery_point IS
    'When claimed, the recovery point of the attempt that was taken over.';
COMMENT ON COLUMN idem.claim_result.recovery_state IS
    'The state of the recovery point.';
COMMENT ON COLUMN idem.claim_result.created_at IS
    'When the operation was first claimed. For in_progress, since when the key has been held; NULL '
    'if that is not known.';
COMMENT ON COLUMN idem.claim_result.expires_at IS
    'When the record of a completed, failed or exhausted operation expires.';
COMMENT ON COLUMN idem.claim_result.redacted IS
    'Of a stored answer, whether the scope kept a part of it out.';
COMMENT ON COLUMN idem.claim_result.differs IS
    'For conflict with a stored request, the paths of the members that differ: those with another '
    'value, then the new ones, then the missing ones; 10 at most. NULL if that is not known.';
COMMENT ON COLUMN idem.claim_result.completed_at IS
    'When the operation completed or failed. If its claim was atomic and took over no other '
    'attempt, that is when it was claimed: both happened in one transaction.';

CREATE TYPE idem.take_result AS (
    token               text,
    key                 text,
    tenant              text,
    request             jsonb,
    attempt             integer,
    recovery_point      text,
    recovery_state      jsonb,
    last_error          jsonb,
    created_at          timestamptz,
    expires_at          timestamptz
);

COMMENT ON TYPE idem.take_result IS
    'The result of idem.take(): an unfinished operation with what is needed to finish it. All '
    'columns are NULL if none was due.';

COMMENT ON COLUMN idem.take_result.token IS
    'The handle of the new attempt.';
COMMENT ON COLUMN idem.take_result.key IS
    'The key of the operation.';
COMMENT ON COLUMN idem.take_result.tenant IS
    'The tenant; empty if there is none.';
COMMENT ON COLUMN idem.take_result.request IS
    'The request, unless the scope''s store_request was never when the operation began.';
COMMENT ON COLUMN idem.take_result.attempt IS
    'The new attempt.';
COMMENT ON COLUMN idem.take_result.recovery_point IS
    'The last recovery point of the operation.';
COMMENT ON COLUMN idem.take_result.recovery_state IS
    'The state of the recovery point.';
COMMENT ON COLUMN idem.take_result.last_error IS
    'The last error that idem.release() was given.';
COMMENT ON COLUMN idem.take_result.created_at IS
    'When the operation was first claimed.';
COMMENT ON COLUMN idem.take_result.expires_at IS
    'When the record expires, unless the lease is renewed.';

CREATE TYPE idem.lookup_result AS (
    state               text,
    attempt             integer,
    response            jsonb,
    status              integer,
    headers             jsonb,
    body                bytea,
    error               jsonb,
    created_at          timestamptz,
    expires_at          timestamptz,
    lease_end           timestamptz,
    holder_pid          integer,
    since               timestamptz,
    redacted            boolean,
    completed_at        timestamptz
);

COMMENT ON TYPE idem.lookup_result IS
    'The result of idem.lookup().';

COMMENT ON COLUMN idem.lookup_result.state IS
    'absent, in_progress, exhausted (undecided, with no attempts left), completed or failed.';
COMMENT ON COLUMN idem.lookup_result.attempt IS
    'The current attempt.';
COMMENT ON COLUMN idem.lookup_result.response IS
    'The stored response.';
COMMENT ON COLUMN idem.lookup_result.status IS
    'The stored status.';
COMMENT ON COLUMN idem.lookup_result.headers IS
    'The stored headers.';
COMMENT ON COLUMN idem.lookup_result.body IS
    'The stored body.';
COMMENT ON COLUMN idem.lookup_result.error IS
    'The stored failure or, for exhausted, the last error that idem.release() was given.';
COMMENT ON COLUMN idem.lookup_result.created_at IS
    'When the operation was first claimed.';
COMMENT ON COLUMN idem.lookup_result.expires_at IS
    'When the record expires.';
COMMENT ON COLUMN idem.lookup_result.lease_end IS
    'Of a leased claim that is not finished, when its lease ends, or when it is due after its '
    'release.';
COMMENT ON COLUMN idem.lookup_result.holder_pid IS
    'The process whose transaction works on the operation. NULL for a prepared transaction, '
    'and between the transactions of a leased claim.';
COMMENT ON COLUMN idem.lookup_result.since IS
    'When the record was created, or the holder''s transaction began.';
COMMENT ON COLUMN idem.lookup_result.redacted IS
    'Whether the scope kept a part of the answer out.';
COMMENT ON COLUMN idem.lookup_result.completed_at IS
    'When the operation completed or failed, as in idem.claim_result; NULL if it has not.';

CREATE TYPE idem.execute_result AS (
    outcome             text,
    replayed            boolean,
    response            jsonb,
    error               jsonb,
    redacted            boolean,
    completed_at        timestamptz
);

COMMENT ON TYPE idem.execute_result IS
    'The result of idem.execute(): outcome is completed, with the response, or failed, with the '
    'error. replayed is true if it comes from the record; redacted is true if the scope kept a '
    'part of it out of the record.';

COMMENT ON COLUMN idem.execute_result.outcome IS
    'completed or failed.';
COMMENT ON COLUMN idem.execute_result.replayed IS
    'Whether this is the stored answer and the operation did not run.';
COMMENT ON COLUMN idem.execute_result.response IS
    'The response.';
COMMENT ON COLUMN idem.execute_result.error IS
    'The failure: sqlstate, message, detail and hint.';
COMMENT ON COLUMN idem.execute_result.redacted IS
    'Whether the scope kept a part of the stored answer out.';
COMMENT ON COLUMN idem.execute_result.completed_at IS
    'When the operation completed or failed, as in idem.claim_result.';

CREATE TYPE idem.health_result AS (
    check_name          text,
    status              text,
    scope               text,
    detail              text,
    hint                text
);

COMMENT ON TYPE idem.health_result IS
    'A row of idem.health(): a check, and what it has found.';

COMMENT ON COLUMN idem.health_result.check_name IS
    'The check.';
COMMENT ON COLUMN idem.health_result.status IS
    'ok, warn or fail.';
COMMENT ON COLUMN idem.health_result.scope IS
    'The scope that the row is about; NULL if it is about none.';
COMMENT ON COLUMN idem.health_result.detail IS
    'What was found.';
COMMENT ON COLUMN idem.health_result.hint IS
    'What to do; NULL if the status is ok.';

-- ---------------------------------------------------------------------------------------------
-- Figures of what is stored
-- ---------------------------------------------------------------------------------------------

CREATE TYPE idem_internal.figures AS (
    scope_id            integer,
    in_progress         bigint,
    completed           bigint,
    failed              bigint,
    lapsed              bigint,
    lapsed_since        timestamptz,
    exhausted           bigint,
    exhausted_until     timestamptz,
    weak                bigint,
    answer_bytes        numeric,
    oldest              timestamptz,
    newest              timestamptz,
    next_expiry         timestamptz,
    expired             bigint,
    expired_since       timestamptz,
    short_lived         bigint,
    long_lived          bigint,
    untenanted          bigint,
    shared              bigint,
    coverage            double precision
);

COMMENT ON TYPE idem_internal.figures IS
    'What idem.overview shows of the records of a scope.';
