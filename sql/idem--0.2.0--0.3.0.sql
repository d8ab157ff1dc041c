-- idem 0.2.0 -> 0.3.0
--
-- OR REPLACE keeps what depends on a function. Only what belongs to the extension already is
-- replaced: PostgreSQL refuses the rest.
\echo Use "ALTER EXTENSION idem UPDATE" to load this file. \quit

-- Every session caches scopes and secrets. Our functions announce what they change in them; these triggers
-- do it for everybody else, apply workers of a subscription included (session_replication_role = replica).
CREATE FUNCTION idem.announce_change()
RETURNS trigger
AS 'MODULE_PATHNAME', 'idem_announce_change' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem.announce_change() FROM PUBLIC;
COMMENT ON FUNCTION idem.announce_change() IS
'The trigger of idem.scope and idem.secret that has every session read them again. Raises 39P01.';

CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE ON idem.scope
    FOR EACH ROW EXECUTE FUNCTION idem.announce_change();
ALTER TABLE idem.scope ENABLE ALWAYS TRIGGER announce_change;
CREATE TRIGGER announce_change AFTER INSERT OR UPDATE OR DELETE ON idem.secret
    FOR EACH ROW EXECUTE FUNCTION idem.announce_change();
ALTER TABLE idem.secret ENABLE ALWAYS TRIGGER announce_change;
