\echo Use "CREATE EXTENSION idem_test" to load this file. \quit

CREATE SCHEMA idem_test;
GRANT USAGE ON SCHEMA idem_test TO PUBLIC;

CREATE FUNCTION idem_test.rehearse(call text, other_request text DEFAULT NULL)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'idem_test_rehearse'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION idem_test.rehearse IS
    'Tests an operation of yours, and returns TAP: whether it claims its key and ends the claim, '
    'whether a replay gives the same answer and writes nothing, whether another request is '
    'refused, and whether a rollback, or an error in any call of idem, leaves nothing half done. '
    'call is one SQL statement that runs the operation with a key that is not in use; '
    'other_request is the same with the same key and another request. Runs both with the '
    'caller''s privileges, and rolls back what they do. Not undone: sequences, effects outside the '
    'database, and what idem''s statistics and claims_per_minute have counted. '
    'Raises 22004 for a null call, 22023 unless each is one statement, 55000 without track_counts, '
    '25006, 25000, 22021, and what the parser raises for a statement, such as 42601.';
