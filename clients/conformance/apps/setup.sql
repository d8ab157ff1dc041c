-- What the applications of this folder need, in a database that has idem.
SELECT idem.create_scope(
    'operations', ttl => '7 days', request_required => true, tenant_required => true,
    reject_stale_keys => true, max_answer_size => 4 << 20,
    request_exclude => '{body.sent_at, body.meta.trace_id}');
-- The SQL edition has no limits.
SELECT idem.create_scope(
    'limited', request_required => true, tenant_required => true,
    claims_per_minute => CASE idem.edition() WHEN 'extension' THEN 1 END);
CREATE TABLE effect (
    name text NOT NULL,
    client text NOT NULL,
    key text NOT NULL DEFAULT idem.current_key());
CREATE INDEX ON effect (name);
