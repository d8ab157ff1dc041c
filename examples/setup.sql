-- Creates the scope and the table of the examples. Run it once:
--
--   psql -f examples/setup.sql
\set ON_ERROR_STOP on
CREATE EXTENSION IF NOT EXISTS idem;
SELECT idem.create_scope('payments', ttl => '7 days', wait => '2 seconds',
                         request_required => true);

-- Each payment records the key of its operation. An INSERT outside an operation has none and fails.
CREATE TABLE payment (
    id     bigserial PRIMARY KEY,
    key    text      NOT NULL DEFAULT idem.current_key(),
    amount numeric   NOT NULL
);
