-- idem 0.2.0 -> 0.3.0
--
-- OR REPLACE keeps what depends on a function. Only what belongs to the extension already is
-- replaced: PostgreSQL refuses the rest.
\echo Use "ALTER EXTENSION idem UPDATE" to load this file. \quit

CREATE OR REPLACE FUNCTION idem.fail(token text, error jsonb, status integer DEFAULT NULL,
                          headers jsonb DEFAULT NULL, body bytea DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_fail_0_3' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.fail(text, jsonb, integer, jsonb, bytea) IS
'Stores a final failure, to be raised again by every retry until the TTL is over. error is an object with sqlstate, message, detail and hint, at least one of the first two; a sqlstate that tells clients to retry is refused. Raises ID005 not_claimed, 40001, 22004, 22023, 54000; for a leased claim also ID004 lease_lost, ID001 in_progress, ID009 limit_exceeded.';
