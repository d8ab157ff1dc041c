-- An identity that travels: what is exported, what an import changes, and what it refuses. Two
-- servers are in t/identity.pl.
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.export_identity();
CREATE ROLE idem_regress_owner;
CREATE FUNCTION shown() RETURNS TABLE (scope text) LANGUAGE sql AS $$
  SELECT id || ' ' || name FROM idem.scope UNION ALL SELECT id || ' dropped' FROM idem.dropped_scope ORDER BY 1
$$;
-- every row version, to see that nothing is written
CREATE FUNCTION versions() RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(v, ' ' ORDER BY v) FROM (
    SELECT 'scope ' || xmin || ctid FROM idem.scope UNION ALL SELECT 'secret ' || xmin || ctid FROM idem.secret
    UNION ALL SELECT 'dropped ' || xmin || ctid FROM idem.dropped_scope UNION ALL SELECT 'id ' || last_value FROM idem.scope_id) v (v)
$$;
-- made from the seed and the digest of a key
CREATE FUNCTION child() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  token text := (idem.claim('a', 'child')).token;
  child text := idem.child_key(token, 'step');
BEGIN
  PERFORM idem.release(token);
  RETURN child;
END $$;
SELECT idem.create_scope('a', owner => 'idem_regress_owner', ttl => '1 month 1 second', request_exclude => '{sent_at,"\"a.b\""}', max_attempts => 3);
SELECT idem.create_scope('gone'), idem.create_scope('b "quoted"', answer_ttl => '1 hour', store_request => 'always', weak_keys => 'warn');
SELECT idem.create_scope('also gone');
SELECT idem.drop_scope('gone'), idem.drop_scope('also gone'), idem.rotate_secret();
CREATE TABLE traveller AS SELECT idem.export_identity() AS identity;
SELECT identity #- '{secrets}' #- '{scopes,1,owner}' FROM traveller;
SET bytea_output = 'escape';
SET timezone = 'Asia/Tokyo';
SELECT e->'id' AS id, e->>'purpose' AS purpose, (e->>'secret')::bytea = secret AND (e->>'created')::timestamptz = created AS same
  FROM traveller, jsonb_array_elements(identity->'secrets') WITH ORDINALITY v (e, n) LEFT JOIN idem.secret ON id = (e->'id')::int ORDER BY n;
BEGIN;
SET LOCAL intervalstyle = 'sql_standard';
SET TRANSACTION READ ONLY;
SELECT idem.export_identity() = identity AS same FROM traveller;
COMMIT;
-- the same identity changes nothing, with records too
SELECT idem.once('a', 'k', '{"n": 1}'), idem.advance('b "quoted"', 'stream', 1);
SELECT versions() AS before \gset
SELECT idem.import_identity(identity) FROM traveller;
SELECT versions() = :'before' AS unchanged;
-- into a new database
SELECT child() AS child \gset
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.import_identity(identity) FROM traveller;
SELECT * FROM shown();
SELECT idem.export_identity() = identity AS same FROM traveller;
SELECT child() = :'child' AS same;
SELECT idem.create_scope('new');
SELECT * FROM shown();
-- a session has used other secrets, and its own scopes have other ids: they give way
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT idem.create_scope('mine');
SELECT idem.drop_scope('mine');
SELECT idem.create_scope('b "quoted"', answer_ttl => '1 hour', store_request => 'always', weak_keys => 'warn');
SELECT idem.create_scope('dropped there, here moved');
SELECT idem.drop_scope('dropped there, here moved');
BEGIN;
SELECT idem.once('b "quoted"', 'before');
ROLLBACK;
SELECT idem.import_identity(identity) FROM traveller;
SELECT * FROM shown();
SELECT idem.export_identity()->'secrets' = identity->'secrets' AS same FROM traveller;
SELECT versions() AS before \gset
SELECT idem.import_identity(identity) FROM traveller;
SELECT versions() = :'before' AS unchanged;
-- undone with its transaction, in this session's caches too
SELECT jsonb_set(jsonb_set(identity, '{secrets,0,secret}', to_jsonb('\x' || repeat('ab', 32))), '{scopes,0,name}', '"renamed"') AS other FROM traveller \gset
SELECT idem.drop_scope('a');
BEGIN;
SELECT idem.import_identity(:'other');
SELECT name FROM idem.scopes ORDER BY 1;
SELECT idem.once('renamed', 'k');
ROLLBACK;
SELECT idem.export_identity()->'secrets' = identity->'secrets' AS same FROM traveller;
SELECT idem.once('renamed', 'k');
SELECT idem.import_identity(identity) FROM traveller;
SELECT * FROM shown();
-- refused: it would orphan what is here
SELECT idem.once('a', 'k', '{"n": 1}'), idem.once('a', 'short', '{"n": 1}'), idem.advance('a', 'stream', 1);
SELECT idem.import_identity(jsonb_set(identity, '{secrets,0,secret}', to_jsonb('\x' || repeat('ab', 32)))) FROM traveller;
SELECT idem.import_identity(jsonb_set(identity, '{secrets,2,secret}', to_jsonb('\x' || repeat('ab', 32)))) FROM traveller;
SELECT idem.import_identity(jsonb_set(identity, '{secrets,1,secret}', to_jsonb('\x' || repeat('ab', 32)))) FROM traveller;
SELECT idem.import_identity(identity) FROM traveller;
SELECT idem.import_identity(identity #- '{secrets,2}') FROM traveller;
SELECT idem.import_identity(jsonb_set(jsonb_set(identity, '{scopes,0,id}', '90'), '{last_scope_id}', '90')) FROM traveller;
SELECT idem.import_identity(jsonb_set(identity, '{scopes,0,name}', '"renamed"')) FROM traveller;
SELECT idem.import_identity(jsonb_set(identity #- '{scopes,0}', '{dropped_scopes}', '[1]')) FROM traveller;
SELECT idem.drop_scope('a');
SELECT idem.import_identity(identity) FROM traveller;
SELECT idem.forget('a', 'k');
-- a claim of the same transaction has no record yet
BEGIN;
SELECT FROM idem.claim('b "quoted"', '0197f6b1-9b6e-7cc4-8f3a-0c5d2d2a7f11');
SELECT idem.import_identity(jsonb_set(identity, '{secrets,0,secret}', to_jsonb('\x' || repeat('ab', 32)))) FROM traveller;
ROLLBACK;
-- an expired record is nothing to lose
UPDATE idem.record SET expires = now() - interval '1 second';
DELETE FROM idem.watermark;
SELECT idem.import_identity(identity) FROM traveller;
SELECT * FROM shown();
-- not even if the secret of its fingerprint is gone
SELECT idem.rotate_secret() > 1 AS rotated;
SELECT idem.once('a', 'of a lost secret', '{"n": 1}');
UPDATE idem.record SET expires = now() - interval '1 second' WHERE key = 'of a lost secret';
DELETE FROM idem.secret WHERE id = (SELECT max(id) FROM idem.secret);
BEGIN;
SELECT outcome FROM idem.try_claim('a', 'of a lost secret', '{"n": 1}');
ROLLBACK;
DELETE FROM idem.record WHERE key = 'of a lost secret';
-- a record that a subscription or a copy has brought before the scope is found with it
SELECT idem.once('a', 'k', '{"n": 1}');
CREATE TABLE copied AS SELECT * FROM idem.record WHERE key = 'k';
DROP EXTENSION idem;
CREATE EXTENSION idem;
INSERT INTO idem.record SELECT * FROM copied;
SELECT idem.import_identity(identity) FROM traveller;
SELECT outcome FROM idem.try_claim('a', 'k', '{"n": 1}');
SELECT outcome FROM idem.try_claim('a', 'k', '{"n": 2}');
-- a rotation on the other server, and only there
SELECT jsonb_insert(identity, '{secrets,-1}', identity->'secrets'->-1 || jsonb_build_object('id', 3, 'secret', '\x' || repeat('cd', 32)), true) AS rotated FROM traveller \gset
SELECT idem.import_identity(:'rotated');
SELECT id, purpose FROM idem.secret ORDER BY id;
SELECT outcome FROM idem.try_claim('a', 'k', '{"n": 2}');
SELECT idem.import_identity(identity) FROM traveller;
-- other settings
SELECT idem.import_identity(jsonb_set(jsonb_set(:'rotated', '{scopes,0,ttl}', '"1 day"'), '{scopes,0,max_attempts}', 'null'));
-- the same length is the same
SELECT idem.import_identity(jsonb_set(:'rotated', '{scopes,0,ttl}', '"30 days 00:00:01"'));
-- owners
SELECT idem.import_identity(jsonb_set(:'rotated', '{scopes,0,owner}', '"idem_regress_missing"'));
-- malformed
CREATE FUNCTION refused(identity jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE d text;
BEGIN
  PERFORM idem.import_identity(identity);
  RETURN 'imported';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL;
  RETURN SQLSTATE || coalesce(' ' || nullif(d, ''), '');
END $$;
SELECT refused(v) FROM unnest(ARRAY[NULL, '1', '[]', '{}', '"x"', '{"version": "1"}', '{"version": 2}', '{"version": 1.5}', '{"version": 1e400}']::jsonb[]) v;
SELECT member, refused(:'rotated'::jsonb - member) FROM jsonb_object_keys(:'rotated') member ORDER BY 1;
SELECT member, refused(:'rotated'::jsonb #- ARRAY['scopes', '0', member]) FROM jsonb_object_keys(:'rotated'::jsonb->'scopes'->0) member ORDER BY 1;
SELECT member, refused(jsonb_set(:'rotated'::jsonb, ARRAY['scopes', '0', member], '{}')) FROM jsonb_object_keys(:'rotated'::jsonb->'scopes'->0) member ORDER BY 1;
SELECT path, value, refused(jsonb_set(:'rotated'::jsonb, path::text[], value))
  FROM (VALUES (1, '{more}', '1'::jsonb), (2, '{scopes}', '{}'), (3, '{scopes,0}', '1'), (4, '{scopes,0,more}', '1'), (5, '{scopes,0,id}', '0'), (6, '{scopes,0,id}', '3'), (7, '{scopes,0,id}', '2'),
               (8, '{scopes,0,id}', '7'), (9, '{scopes,0,name}', '""'), (10, '{scopes,0,name}', '"b \"quoted\""'), (11, '{scopes,0,ttl}', 'null'), (12, '{scopes,0,ttl}', '"-1 day"'),
               (13, '{scopes,0,weak_keys}', '"x"'), (14, '{scopes,0,request_exclude}', '[1]'), (15, '{scopes,0,request_exclude}', '["a..b"]'), (16, '{scopes,0,max_attempts}', '0'),
               (17, '{dropped_scopes}', '1'), (18, '{dropped_scopes,0}', '"2"'), (19, '{dropped_scopes,0}', '4'), (20, '{last_scope_id}', '-1'), (21, '{last_scope_id}', '2147483648'), (22, '{last_scope_id}', '3'),
               (23, '{secrets}', '[]'), (24, '{secrets,0}', '1'), (25, '{secrets,0}', 'null'), (26, '{secrets,0,id}', 'null'), (27, '{secrets,0,id}', '7'), (28, '{secrets,0,secret}', '""'), (29, '{secrets,0,secret}', to_jsonb(repeat('ab', 32))),
               (30, '{secrets,0,secret}', to_jsonb('\x' || repeat('AB', 32))), (31, '{secrets,1,secret}', to_jsonb('\x' || repeat('ab', 31))), (32, '{scopes}', 'null'), (33, '{scopes,0}', 'null'), (34, '{scopes,0,id}', 'null')) AS v (n, path, value) ORDER BY n;
-- what export_identity() never shows, but was accepted, has changed nothing
SELECT idem.export_identity() = :'rotated'::jsonb AS same;
-- for superusers, whatever is granted
GRANT USAGE ON SCHEMA idem TO idem_regress_owner;
SET ROLE idem_regress_owner;
SELECT idem.export_identity();
SELECT idem.import_identity('{}');
RESET ROLE;
GRANT EXECUTE ON FUNCTION idem.export_identity, idem.import_identity TO idem_regress_owner;
SET ROLE idem_regress_owner;
SELECT idem.export_identity();
SELECT idem.import_identity('{}');
RESET ROLE;
BEGIN READ ONLY;
SELECT idem.import_identity('{}');
ROLLBACK;
SELECT idem_internal.import_scope(NULL, true);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_internal.refuse_keys(NULL);
\echo :LAST_ERROR_SQLSTATE
DROP TABLE traveller, copied;
DROP FUNCTION shown, versions, refused, child;
DROP EXTENSION idem;
CREATE EXTENSION idem;
DROP ROLE idem_regress_owner;
