-- What the examples work with: the scope of their keys, and the table they write. Run it once:
--
--   psql -f setup.sql
\set ON_ERROR_STOP on
CREATE EXTENSION IF NOT EXISTS idem;
SELECT idem.create_scope('payments', ttl => '7 days', wait => '2 seconds', request_required => true);

-- Each payment notes the key of its operation; written outside of an operation, it has none and is refused.
CREATE TABLE payment (
    id     bigserial PRIMARY KEY,
    key    text      NOT NULL DEFAULT idem.current_key(),
    amount numeric   NOT NULL
);
