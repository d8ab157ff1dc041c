-- idem 0.2.0 -> 0.3.0
--
-- OR REPLACE keeps what depends on a function. Only what belongs to the extension already is
-- replaced: PostgreSQL refuses the rest.
\echo Use "ALTER EXTENSION idem UPDATE" to load this file. \quit

