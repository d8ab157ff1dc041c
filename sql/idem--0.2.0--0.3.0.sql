-- idem 0.2.0 -> 0.3.0
--
-- OR REPLACE keeps what depends on a function. Only what belongs to the extension already is
-- replaced: PostgreSQL refuses the rest.
\echo Use "ALTER EXTENSION idem UPDATE" to load this file. \quit

-- The ids of dropped scopes: they are never given again, and what the scopes held is purged. In a
-- table, because a sequence is not replicated, and a missing row of idem.scope may be yet to come.
CREATE TABLE idem.dropped_scope (
    id              integer     NOT NULL PRIMARY KEY,
    dropped         timestamptz NOT NULL
);
COMMENT ON TABLE idem.dropped_scope IS 'the ids of dropped scopes, which are never given again; written by idem.drop_scope()';
SELECT pg_catalog.pg_extension_config_dump('idem.dropped_scope', '');
REVOKE ALL ON idem.dropped_scope FROM PUBLIC;

-- The ids that the sequence has given, and no scope has, are those of dropped scopes, or of scopes
-- whose creation was rolled back; with the table locked, none is still to be committed. Where there is
-- no scope at all, a dump may be on its way in. Of a sequence that was set very high, the newest
-- million will do: what is not noted lives until it expires.
LOCK TABLE idem.scope IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO idem.dropped_scope
SELECT i, pg_catalog.transaction_timestamp()
  FROM idem.scope_id s, pg_catalog.generate_series(greatest(1, s.last_value - 999999), s.last_value) i
 WHERE s.is_called AND EXISTS (SELECT FROM idem.scope)
   AND NOT EXISTS (SELECT FROM idem.scope e WHERE e.id OPERATOR(pg_catalog.=) i);

-- A sequence that was replicated to here may be behind the ids in use. Marked as not called, it is
-- not trusted, and the next idem.create_scope() looks at every record.
SELECT pg_catalog.setval('idem.scope_id', last_value + 1, false) FROM idem.scope_id
 WHERE is_called AND last_value < 2147483647;

-- The table cannot be read on a standby, where the view is read all the same.
CREATE FUNCTION idem.purge_block()
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_purge_block' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.purge_block() IS
'The block of idem.record at which the next purge begins; on a standby 0, where a promotion lets it begin.';

CREATE OR REPLACE VIEW idem.storage WITH (security_barrier) AS
    SELECT pg_catalog.pg_table_size(r.oid) AS table_bytes, pg_catalog.pg_indexes_size(r.oid) AS index_bytes,
           pg_catalog.pg_relation_size(r.oid) / pg_catalog.current_setting('block_size')::bigint AS table_blocks,
           idem.purge_block() AS purge_block,
           pg_catalog.pg_stat_get_live_tuples(r.oid) AS live_rows, pg_catalog.pg_stat_get_dead_tuples(r.oid) AS dead_rows,
           greatest(pg_catalog.age(r.relfrozenxid), pg_catalog.age(t.relfrozenxid)) AS frozen_age,
           (SELECT pg_catalog.count(*) FROM idem.scope) AS scopes,
           (SELECT pg_catalog.count(DISTINCT purpose) = 2 FROM idem.secret) AS has_secrets
      FROM pg_catalog.pg_class r LEFT JOIN pg_catalog.pg_class t ON t.oid = r.reltoastrelid
     WHERE r.oid = 'idem.record'::pg_catalog.regclass;
COMMENT ON VIEW idem.storage IS 'one row about the record table as a whole: its size, how far the purge has come, and its vacuum; for members of pg_monitor';

DROP TABLE idem.sweep;
-- Where the next purge goes on: one row. Unlogged, so that it is never published: a table without a
-- key stops a subscription at the first update, and one with a key would collide with the
-- subscriber's own row. A crash empties it, and the next purge begins at the first block.
CREATE UNLOGGED TABLE idem.sweep (
    hand            bigint      NOT NULL
);
INSERT INTO idem.sweep VALUES (0);
COMMENT ON TABLE idem.sweep IS 'the block of idem.record at which the next purge begins';
REVOKE ALL ON idem.sweep FROM PUBLIC;

COMMENT ON FUNCTION idem.purge(integer) IS
'Deletes expired records and those of dropped scopes, at most max_records (default 10000), going on where the last purge stopped, and returns how many. Where the records arrive by subscription it deletes none: the publisher purges. One transaction: call it from cron. For superusers and whoever is granted EXECUTE. Raises 22023.';
