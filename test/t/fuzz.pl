# Fuzzing: concurrent sessions call every SQL function with hostile arguments, as roles with and
# without privileges, in transactions of every kind, while other sessions cancel, reindex and purge.
# The functions, their arguments and the errors that they may raise come from the catalogs, so that
# a new function takes part from its first day.
#
# Most calls run in batches inside the server, in nested EXCEPTION blocks that end in a release or a
# rollback; the others are statements of every kind, sent one by one. What must hold:
# - the server lives, leaks nothing, and raises no internal error;
# - a call raises only errors that the function's comment names, or that any statement may raise;
# - no key lock outlives its transaction, and the memory of a session does not grow without end;
# - what has completed keeps its answer: in the scope "steady" the calls run honest operations beside
#   the hostile ones, each of which must have one effect, and the same answer for every retry, while
#   the test changes what the scope compares and requires.
#
# CALLS sets the number of calls. SEED repeats a run: the sessions send the same statements,
# though they may meet each other differently.
use strict;
use warnings;

use IdemTest;
use IPC::Run qw(start finish);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{SEED} // int(rand(2**31));
my $calls = $ENV{CALLS} // 20_000;
my $round_calls = $calls < 100_000 ? $calls : 100_000;
my $sessions = 5;

my $node = idem_node('fuzz', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
idem.purge_naptime = 1s
fsync = off
log_statement = none
log_line_prefix = '%e|%p|%b|%a|'
log_checkpoints = off
log_error_verbosity = terse
deadlock_timeout = 50ms
max_prepared_transactions = 20
log_min_error_statement = panic
CONF

# Text in a SQL_ASCII database may have any bytes.
my @databases = qw(utf8 ascii);
$node->safe_psql('postgres', <<'SQL');
CREATE DATABASE utf8;
CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
CREATE ROLE everyone;
CREATE ROLE owner IN ROLE everyone;
CREATE ROLE member IN ROLE owner;
CREATE ROLE stranger IN ROLE everyone;
SQL
$node->safe_psql($_, <<'SQL') for @databases;
CREATE EXTENSION amcheck;
CREATE EXTENSION idem;
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope, idem.forget, idem.revoke, idem.erase,
  idem.forget_tenant, idem.erase_tenant, idem.reset_stream TO owner;
GRANT CREATE ON SCHEMA public TO PUBLIC;
SELECT idem.create_scope('s1', owner => 'owner', wait => '20 ms', ttl => '1 hour', final_sqlstates => '{P0}',
  store_request => 'always');
SELECT idem.create_scope('s2', owner => 'owner', wait => '0', ttl => '50 ms', lease => '10 ms', max_attempts => 3,
  store_request => 'unfinished', answer_ttl => '20 ms');
SELECT idem.create_scope('s3', owner => 'member', wait => '5 ms', request_exclude => '{a.b, c}',
  response_exclude => '{a.b, c}', weak_keys => 'warn', reject_stale_keys => true, claims_per_minute => 100,
  store_request => 'always', max_answer_size => 5000);
SELECT idem.create_scope('s4', owner => 'stranger', wait => '1 ms', request_required => true, tenant_required => true,
  store_response => false, weak_keys => 'reject');
CREATE SCHEMA elsewhere;
GRANT ALL ON SCHEMA elsewhere TO PUBLIC;
SELECT idem.create_record_table('elsewhere.steady', 'tenant_id', 'text'), idem.create_record_table('elsewhere.plain'),
  idem.create_record_table('elsewhere.number', 'tenant_id', 'bigint'), idem.create_record_table('elsewhere.past'),
  idem.create_record_table('elsewhere.open');
CREATE TABLE elsewhere.months (LIKE elsewhere.past) PARTITION BY RANGE (created);
ALTER TABLE elsewhere.months ATTACH PARTITION elsewhere.past FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
GRANT INSERT ON elsewhere.open TO stranger;
CREATE TABLE elsewhere.forged AS SELECT * FROM idem.record;
ALTER TABLE elsewhere.forged OWNER TO stranger;
SELECT idem.create_scope('own', owner => 'owner', wait => '1 ms', ttl => '1 hour');
SELECT idem.create_scope('steady', owner => 'everyone', wait => '20 ms', lease => '10 days', ttl => '100 days',
  request_exclude => '{at}', records => true);
CREATE FUNCTION op_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION op_fail(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'P0042',
  MESSAGE = left($1::text, 1000), HINT = 'hint'; END $$;
CREATE FUNCTION op_retry(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001';
END $$;
CREATE FUNCTION op_nest(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
  RETURN to_jsonb(idem.execute('s1', 'k' || trunc(random() * 9), 'op_nest(jsonb)', $1)); END $$;
CREATE FUNCTION op_claim(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN PERFORM idem.claim('s1', 'left open');
RETURN $1; END $$;
CREATE TABLE effect (id bigserial, key text DEFAULT idem.current_key());
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON effect FOR EACH ROW
  EXECUTE FUNCTION idem.require_claim('s1', 's2', 's3');
GRANT ALL ON effect, effect_id_seq TO PUBLIC;

CREATE SCHEMA fuzz;
GRANT USAGE ON SCHEMA fuzz TO PUBLIC;

-- Tokens of all sessions and scopes, also of claims that were rolled back.
CREATE TABLE fuzz.token (slot integer PRIMARY KEY, token text) WITH (fillfactor = 10);
INSERT INTO fuzz.token SELECT i, 'none' FROM generate_series(0, 31) i;

-- The SQLSTATEs in the function's comment.
CREATE TABLE fuzz.documented AS
SELECT DISTINCT proname::text AS name, code[1] AS sqlstate
  FROM pg_proc, substring(obj_description(oid, 'pg_proc') FROM 'Raises .*') raises,
       regexp_matches(raises, '\m(ID\d{3}|[0-9][0-9A-Z]{4})\M', 'g') code
 WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace);
-- A stored failure has any SQLSTATE that is not transient; the operations and the arguments here
-- store these.
INSERT INTO fuzz.documented
SELECT DISTINCT proname::text, sqlstate FROM pg_proc, unnest(ARRAY['P0001', 'P0042', '42501', 'ID003']) sqlstate
 WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
 AND (proname = 'execute' OR obj_description(oid, 'pg_proc') LIKE '%stored SQLSTATE%');
INSERT INTO fuzz.documented
SELECT proname, '42804' FROM pg_proc WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
AND prorettype = 'trigger'::regtype;

-- Where a scope's records are elsewhere: no table is chosen, or the table does not take a tenant that
-- is no value of its column's type, or a row outside of the bounds of a partition.
INSERT INTO fuzz.documented
SELECT DISTINCT proname::text, sqlstate FROM pg_proc, unnest(ARRAY['22P02', '22003', '23514', '55000']) sqlstate
WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace);

-- As CREATE TABLE, when another session creates a table of this name.
INSERT INTO fuzz.documented VALUES ('create_record_table', '23505'), ('make_record_table', '23505'),
  ('role_in', '42602'), ('role_in', '42704');

-- The honest operations, with one row per effect.
CREATE TABLE fuzz.effect (tenant text, key text, answer jsonb);
CREATE INDEX ON fuzz.effect (key);
CREATE TABLE fuzz.lease (tenant text, key text, token text, PRIMARY KEY (tenant, key));
CREATE SEQUENCE fuzz.number;
GRANT ALL ON ALL TABLES IN SCHEMA fuzz TO PUBLIC;
GRANT ALL ON ALL SEQUENCES IN SCHEMA fuzz TO PUBLIC;

CREATE FUNCTION fuzz.tenant() RETURNS text LANGUAGE sql AS $$
  SELECT coalesce(current_setting('idem.tenant', true), '') $$;
CREATE FUNCTION fuzz.make_effect(key text) RETURNS jsonb LANGUAGE sql AS $$
  INSERT INTO fuzz.effect VALUES (fuzz.tenant(), key, jsonb_build_object('n', nextval('fuzz.number'))) RETURNING answer;
$$;
CREATE FUNCTION fuzz.operation(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
  SELECT fuzz.make_effect(request->>'key') $$;

-- A retry got this answer; NULL if the function that answered has none.
CREATE FUNCTION fuzz.check_answer(k text, got jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE answers jsonb[];
BEGIN
  SELECT array_agg(answer) INTO answers FROM fuzz.effect e WHERE e.key = k AND e.tenant = fuzz.tenant();
  IF cardinality(answers) = 1 AND (got IS NULL OR got = answers[1]) THEN RETURN; END IF;
  RAISE LOG 'fuzz violation: a retry of % got %, the effects are %', k, got, answers;
END $$;

CREATE FUNCTION fuzz.honest(kind text, number integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  k text := kind || number;
  request jsonb := jsonb_build_object('key', k, 'n', 1, 'at', clock_timestamp());
  c idem.claim_result;
  x idem.execute_result;
  fresh text[];
  held text;
BEGIN
  PERFORM idem.use_records('elsewhere.steady');
  CASE kind
    WHEN 'claim' THEN
      c := idem.claim('steady', k, request);
      IF c.claimed THEN
        PERFORM idem.complete(c.token, fuzz.make_effect(k));
      ELSE
        PERFORM fuzz.check_answer(k, c.response);
      END IF;
    WHEN 'execute' THEN
      x := idem.execute('steady', k, 'fuzz.operation(jsonb)', request);
      PERFORM fuzz.check_answer(k, x.response);
    WHEN 'once' THEN
      IF idem.once('steady', k, request) THEN
        PERFORM fuzz.make_effect(k);
      ELSE
        PERFORM fuzz.check_answer(k, NULL);
      END IF;
    WHEN 'each' THEN
      fresh := ARRAY(SELECT idem.once_each('steady', ARRAY[k, k || 'a', k || 'b']));
      PERFORM fuzz.make_effect(f) FROM unnest(fresh) f;
      PERFORM fuzz.check_answer(f, NULL) FROM unnest(ARRAY[k, k || 'a', k || 'b']) f;
    WHEN 'lease' THEN
      DELETE FROM fuzz.lease l WHERE l.key = k AND l.tenant = fuzz.tenant() RETURNING l.token INTO held;
      IF found THEN
        PERFORM idem.complete(held, fuzz.make_effect(k));
      ELSE
        c := idem.claim('steady', k, request, lease => '1 day');
        IF c.claimed THEN
          INSERT INTO fuzz.lease VALUES (fuzz.tenant(), k, c.token);
        ELSE
          PERFORM fuzz.check_answer(k, c.response);
        END IF;
      END IF;
  END CASE;
  RETURN NULL;
END $$;
INSERT INTO fuzz.documented SELECT 'honest', unnest('{ID001,ID009,40001,22004,22023,ID007,ID013,54000}'::text[]);
SELECT fuzz.honest('claim', 0);

-- Whether the operation of such a call has had its effect: rules for new keys do not apply then.
CREATE FUNCTION fuzz.has_effect(call text) RETURNS boolean LANGUAGE sql AS $$
  SELECT EXISTS (SELECT FROM fuzz.effect e WHERE e.tenant = fuzz.tenant()
    AND e.key = array_to_string(regexp_match(call, 'honest\(''(\w+)'', (\d+)'), ''));
$$;

-- Whether the function may raise this. Any statement may be cancelled, and may meet a lock, a
-- deadlock, a missing privilege, a read-only transaction or too deep a recursion; a warning may
-- have a character that the client's encoding lacks.
CREATE FUNCTION fuzz.judge(name text, state text, message text, statement text, had_effect boolean) RETURNS void
  LANGUAGE plpgsql AS $$
BEGIN
  IF had_effect AND state = ANY ('{22004,22023,ID007,ID009,ID013}') THEN
    RAISE LOG 'fuzz violation: a rule for new keys refused a retry with % "%": %', state, message, statement;
  ELSIF state = ANY ('{57014,55P03,40P01,42501,25006,54001,22P05}')
     OR EXISTS (SELECT FROM fuzz.documented d WHERE d.name = judge.name AND d.sqlstate = state) THEN
    RETURN;
  END IF;
  RAISE LOG 'fuzz violation: % raised % "%": %', name, state, left(message, 300), left(statement, 1500);
END $$;

-- Runs items up to the end of the block: "(" begins a block, ")" releases it, "!" rolls it back. Any
-- other item is a function's name and a call of it. The call has a savepoint of its own unless a
-- "-" precedes the name: then an error ends the block. Variables survive a rollback, and so do the
-- tokens of claims that were rolled back.
CREATE FUNCTION fuzz.block(items text[], INOUT at integer, INOUT tokens text[], INOUT outcomes text[])
LANGUAGE plpgsql AS $$
DECLARE
  item text;
  statement text;
  token text;
  depth integer := 1;
  state text;
  message text;
  had_effect boolean;
BEGIN
  WHILE at < cardinality(items) LOOP
    item := items[at];
    statement := items[at + 1];
    at := at + 2;
    had_effect := item LIKE '%honest' AND fuzz.has_effect(statement);
    IF item = ')' THEN
      RETURN;
    ELSIF item = '!' THEN
      RAISE EXCEPTION USING ERRCODE = 'FZ000';
    ELSIF item = '(' THEN
      SELECT * INTO at, tokens, outcomes FROM fuzz.block(items, at, tokens, outcomes);
    ELSIF starts_with(item, '-') THEN
      item := substr(item, 2);
      EXECUTE statement INTO token USING tokens;
      IF token IS NOT NULL THEN tokens := (token || tokens)[1:6]; END IF;
      outcomes := outcomes || (item || ' 00000');
    ELSE
      BEGIN
        EXECUTE statement INTO token USING tokens;
        IF token IS NOT NULL THEN tokens := (token || tokens)[1:6]; END IF;
        outcomes := outcomes || (item || ' 00000');
      EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
        PERFORM fuzz.judge(item, state, message, statement, had_effect);
        outcomes := outcomes || (item || ' ' || state);
      END;
    END IF;
  END LOOP;
EXCEPTION
  WHEN SQLSTATE 'FZ000' THEN
    NULL;
  WHEN OTHERS OR query_canceled OR assert_failure THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
    PERFORM fuzz.judge(item, state, message, statement, had_effect);
    outcomes := outcomes || (item || ' ' || state);
    WHILE depth > 0 AND at < cardinality(items) LOOP
      depth := depth + CASE items[at] WHEN '(' THEN 1 WHEN ')' THEN -1 WHEN '!' THEN -1 ELSE 0 END;
      at := at + 2;
    END LOOP;
END $$;

-- Returns the tokens, the newest first.
CREATE FUNCTION fuzz.batch(items text[], tokens text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE at integer := 1; outcomes text[] := '{}';
BEGIN
  WHILE at < cardinality(items) LOOP
    SELECT * INTO at, tokens, outcomes FROM fuzz.block(items, at, tokens, outcomes);
  END LOOP;
  RAISE NOTICE 'fuzz outcomes: %', (SELECT string_agg(o || ' ' || n, ', ')
    FROM (SELECT o, count(*) n FROM unnest(outcomes) o GROUP BY o) x);
  RETURN tokens;
END $$;

-- After a transaction: it has left no key lock behind. Shares its tokens with the other sessions.
CREATE FUNCTION fuzz.after(tokens text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory') THEN
    RAISE LOG 'fuzz violation: a key lock is left after a transaction';
  END IF;
  UPDATE fuzz.token SET token = tokens[1] WHERE slot = trunc(random() * 32) AND tokens[1] IS NOT NULL;
END $$;

-- Before this, DISCARD ALL has dropped what the session keeps by itself. The plans that the server
-- caches for functions do not count: PostgreSQL 18 makes generic ones after some calls. Nor does
-- free space: a context doubles its blocks, so that one entry more in the server's catalog cache
-- can take two megabytes.
CREATE FUNCTION fuzz.memory(quarter integer) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  RAISE NOTICE 'fuzz memory: % %', quarter, (SELECT sum(used_bytes) FROM pg_backend_memory_contexts
    WHERE name NOT LIKE 'CachedPlan%');
  RAISE NOTICE 'fuzz contexts: % %', quarter, (SELECT string_agg(name || ' ' || bytes, ', ')
    FROM (SELECT name, sum(used_bytes) AS bytes FROM pg_backend_memory_contexts GROUP BY name ORDER BY 2 DESC
    LIMIT 12) x);
END $$;
SQL

sub pick { return $_[ int(rand(@_)) ] }
sub quoted { my ($text) = @_; $text =~ s/'/''/g; return "'$text'" }

my @keys = map { quoted($_) } (map { "k$_" } 0 .. 9), '', ' ', '4711', 'Ünïcödé', 'a\\b', "quo'te", '%s',
	'018f0000-0000-7000-8000-000000000000', 'ffffffff-ffff-7fff-bfff-ffffffffffff', '01ARZ3NDEKTSV4RRFFQ69G5FAV';
push @keys, q(repeat('x', 255)), q(repeat('x', 256)), q(repeat('ü', 127)), 'idem.new_key()', 'NULL', q(E'\n\x01'),
	q('\u0000'), q(repeat('x', 1000000)), q(repeat(E'\xf0\x9f\x98\x80', 63)), q('2026-03-04T05:06:07Z'),
	q('''; DROP SCHEMA idem; --');
# Not UTF-8: only for a SQL_ASCII database.
my @any_bytes = (q(E'\xff'), q(E'key\xc3'), q(E'\xed\xa0\x80'), q(E'\xf8\x88\x80\x80\x80'), q(repeat(E'\xff', 255)));
my @names = map { quoted($_) } qw(s1 s1 s2 s3 s1 s1 s1 s1 s2 s2 s3 s4 s4 own nowhere), '', 'S1', 's1 ';
push @names, 'NULL', q(repeat('s', 63)), q(repeat('s', 64)), q(repeat('s', 1000000));
my @tenants = ("''", "'t1'", "'t2'", 'NULL', 'NULL', q(repeat('t', 256)));
my @tokens = ((":'t1'") x 3, (map { ":'t$_'" } 1 .. 5) x 8,
	(map { "(SELECT token FROM fuzz.token WHERE slot = $_)" } 0 .. 31),
	q{left(:'t1', -1)}, q{:'t1' || 'A'}, q{'B' || substr(:'t1', 2)}, q{left(:'t1', 5) || reverse(substr(:'t1', 6))},
	q{overlay(:'t1' placing 'AAAB' from 24)}, q{lower(:'t1')}, q{' ' || :'t1'},
	"'banana'", 'NULL', q('Ag' || repeat('A', 42)), q('AQ' || repeat('A', 42)), q(left(:'t1', 28) || repeat('A', 16)),
	q(repeat('A', 100000)));
my @requests = ('NULL', 'NULL', q('{}'), q('{"amount": 1}'), q('{"amount": 1.0, "c": 7}'), q('{"a": {"b": 1}}'),
	q('[]'), q('null'), q('"x"'), q('1e100000'), q('{"a": [{"b": [1, {"b": 2}]}]}'),
	q((SELECT jsonb_agg(v) FROM generate_series(1, 5000) v)),
	q((SELECT jsonb_object_agg(v, repeat('x', v)) FROM generate_series(1, 100) v)),
	q((repeat('[', 2000) || repeat(']', 2000))::jsonb), q(to_jsonb(repeat('x', 200000))));
# Intervals can be infinite from PostgreSQL 17 on.
my @infinite = $node->pg_version >= 17 ? (q('infinity'), q('-infinity')) : ();
# By the argument's name and type, or by type. The first four are usual: six calls of ten have no
# others, so that enough of them succeed.
my %values = (
	'scope text' => \@names,
	'name text' => \@names,
	'key text' => \@keys,
	'key anycompatible' => [ @keys, q('f47ac10b-58cc-4372-a567-0e02b2c3d479'::uuid),
		q('00000000-0000-0000-0000-000000000000'::uuid), 'gen_random_uuid()', 'NULL::uuid', '4711' ],
	'parts text[]' => [ q(VARIADIC ARRAY['a', 'b']), q(VARIADIC '{}'), q(VARIADIC ARRAY['a', NULL]), q(VARIADIC NULL),
		q(VARIADIC '{{a},{b}}') ],
	'tenant text' => \@tenants,
	'token text' => \@tokens,
	'wait interval' => [ 'NULL', q('0'), q('1 ms'), q('20 ms'), q('-1 s'), @infinite ],
	'retry_after interval' => [ 'NULL', q('0'), q('1 ms'), q('10 ms'), q('1 hour'), q('-1 s'), q('1001 years'),
		@infinite ],
	'answer_ttl interval' => [ 'NULL', q('1 ms'), q('20 ms'), q('10 ms'), q('0'), q('1 hour'), q('-1 s'), @infinite ],
	'header_exclude text[]' => [ 'NULL', q('{}'), q('{set-cookie}'), q('{{a},{b}}'), q('{NULL}'), q('{""}'), q('{a b}'),
		q('{ä}') ],
	# not 'role': the fuzzer would no longer know which tenants are the same
	'tenant_from text' => [ 'NULL', q('argument'), q('user'), q('') ],
	'store_request text' => [ 'NULL', q('never'), q('unfinished'), q('always'), q('banana') ],
	'max_answer_size integer' => [ 'NULL', -1, 0, 1023, 1024, 100000, 536870912, 536870913, 2147483647 ],
	'min_ttl interval' => [ 'NULL', q('1 ms'), q('0'), q('10 ms'), q('1 hour'), q('-1 s'), @infinite ],
	'base interval' => [ q('1 ms'), q('1 s'), 'NULL', q('1 hour'), q('0'), q('-1 s'), q('1000 years'), @infinite ],
	'cap interval' => [ q('1 ms'), q('1 s'), 'NULL', q('1 hour'), q('0'), q('-1 s'), q('1000 years'), @infinite ],
	'attempt integer' => [ 1, 2, 3, 100, 'NULL', 0, -1, 2147483647 ],
	'lease interval' => [ q('1 min'), q('1 min'), q('1 ms'), q('10 ms'), 'NULL', 'NULL', q('0') ],
	'ttl interval' => [ 'NULL', 'NULL', q('1 hour'), q('1 ms'), q('0'), q('100000 years'), q('100 years'), @infinite ],
	'weak_keys text' => [ 'NULL', q('allow'), q('reject'), q('banana') ],
	'header text' => [ q('"k1"'), q('k2'), q('NULL'), q('"k";v="x"'), 'NULL', q(''), q(E' \t'), q('""'), q('"k'),
		q('"k" x'), q('"\k"'), q('"k";'), q('a,b'), q('"ä"'), q(repeat('k', 255)), q('"' || repeat('k', 256) || '"'),
		q(repeat('"', 1000000)), q('"k"' || repeat(';v=1.5', 100000)), q('"k"' || repeat(';v=', 100000)) ],
	'idem.scope' => [ 'NULL',
		(map { "jsonb_populate_record(NULL::idem.scope, $_)" } (q(idem.export_identity() #> '{scopes,0}')) x 3,
			q((idem.export_identity() #> '{scopes,0}') || '{"id": 1, "name": "imported"}'),
			q((idem.export_identity() #> '{scopes,0}') - 'owner'), q('{}')) ],
	'idem.record' => [ 'NULL', q(jsonb_populate_record(NULL::idem.record, '{"key": "a"}')) ],
	'idem.claim_result' => [
		(map { "jsonb_populate_record(NULL::idem.claim_result, $_)" }
			q('{"outcome": "completed", "status": 201, "headers": {"a": "b"}}'),
			q('{"outcome": "failed", "error": {"message": "no"}}'),
			q('{"outcome": "in_progress", "retry_after": "1 ms"}'), q('{"outcome": "conflict"}'),
			q('{"outcome": "claimed", "headers": {"a": [1, "b", 1e300]}}'),
			q('{"outcome": "completed", "headers": {"a": [["b"]]}}'),
			q('{"outcome": "completed", "headers": [{}]}'), q('{"outcome": "failed", "error": [], "status": -1}'),
			q('{"outcome": "limited", "retry_after": "-1 s"}'),
			q('{"outcome": "limited", "retry_after": "1001 years"}'), q('{"outcome": "banana"}'), q('{}'),
			q(jsonb_build_object('outcome', 'completed', 'headers', (SELECT jsonb_object_agg(v, repeat('x', v))
				FROM generate_series(1, 100) v)))),
		'NULL' ],
	'sqlstate text' => [ q('ID001'), q('42501'), q('x'), 'NULL' ],
	'records regclass' => [ q('elsewhere.plain'), q('idem.record'), 'NULL', q('elsewhere.plain'), q('elsewhere.number'),
		q('elsewhere.past'), q('elsewhere.months'), q('elsewhere.open'), q('elsewhere.forged'),
		q('elsewhere.plain_pkey'),
		q('idem.records'), q('idem.scope'), q('pg_class'), '0::oid::regclass', '4294967295::oid::regclass' ],
	'tenant_column name' => [ 'NULL', q('tenant_id'), q('Odd "name"'), q('digest'), q('') ],
	'default_schema name' => [ q('elsewhere'), q('public'), 'NULL', q('nowhere') ],
	'tenant_type regtype' => [ 'NULL', q('bigint'), q('text'), q('uuid'), q('elsewhere.plain'), q('record'),
		q('anyelement'), '0::oid::regtype', '4294967295::oid::regtype' ],
	'owner regrole' => [ 'NULL', q('owner'), q('member'), q('stranger'), '4294967295::oid::regrole',
		'0::oid::regrole' ],
	'cstring' => [ q('owner'), q('"owner"'), q('10'), q('-'), q(''), q('"'), q('a.b'), 'NULL' ],
	'idem_internal.role' => [ q('owner'), q('10'), '4294967295::oid::regrole::idem_internal.role', 'NULL' ],
	'operation regprocedure' => [ (map { "'op_$_(jsonb)'" } qw(echo fail retry nest claim)), '0', 'NULL', q('now()'),
		'4294967295::oid::regprocedure' ],
	'max_records integer' => [ 'NULL', 1, 10, 0, 2147483647 ],
	'text' => [ q('x'), q('y z'), q('Ünïcödé'), q('step'), q(''), 'NULL', q(repeat('x', 300)),
		q(repeat('x', 1000000)) ],
	'uuid' => [ q('f47ac10b-58cc-4372-a567-0e02b2c3d479'::uuid), q('00000000-0000-0000-0000-000000000000'::uuid),
		'gen_random_uuid()', 'NULL::uuid' ],
	'text[]' => [ q('{a,b}'), q('{k1,k2,k3,k1}'), q('{}'),
		q(ARRAY(SELECT 'many ' || trunc(random() * 3000) FROM generate_series(1, 200))), 'NULL', q('{a,NULL}'),
		q('{{a},{b}}'), q('[5:6]={k1,k2}') ],
	'integer[]' => [ q('{1,2,3}'), q('{}'), 'NULL', q('{NULL,-1}') ],
	'interval[]' => [ q('{1 day,2 days,3 days}'), q('{}'), 'NULL', q('{NULL,-1 day}') ],
	'anycompatiblearray' => [ q('{a,b}'), q('{k1,k2,k3,k1}'), q('{}'),
		q(ARRAY(SELECT 'many ' || trunc(random() * 3000) FROM generate_series(1, 200))), 'NULL',
		'ARRAY[gen_random_uuid()]', 'ARRAY[1]', q('{a,NULL}'), q('{{a},{b}}'), q('[5:6]={k1,k2}') ],
	'jsonb' => \@requests,
	'identity jsonb' => [ ('idem.export_identity()') x 3,
		q(jsonb_set(idem.export_identity(), '{secrets,0,secret}', '"ab"')),
		q(jsonb_set(idem.export_identity(), '{scopes,0,id}', '1')), q(idem.export_identity() - 'secrets'),
		q('{"version": 1}'), @requests ],
	'error jsonb' => [ q('{"sqlstate": "P0042", "message": "no"}'), q('{"message": "no", "detail": "d", "hint": "h"}'),
		q('{"sqlstate": "42501"}'), q('{"message": "Ünïcödé"}'), @requests, q('{"sqlstate": "40001"}'),
		q('{"sqlstate": "ID001"}'), q('{"sqlstate": 42}'), q('{"sqlstate": "p0042"}'),
		q('{"sqlstate": "P0042", "message": null}'), q(jsonb_build_object('message', repeat('m', 100000))) ],
	'final_sqlstates text[]' => [ 'NULL', q('{}'), q('{P0042}'), q('{40}'), q('{P0,22}'), q('{x}'), q('{NULL}'),
		q('{{P0}}') ],
	'interval' => [ 'NULL', q('0'), q('1 ms'), q('1 s'), q('-1 s'), q('1 mon -30 days'), q('178000000 years'),
		q('-178000000 years'), q('2147483647 months 2147483647 days'), q('1000 years'), q('0.000001 s'), @infinite ],
	'status integer' => [ 'NULL', 200, 404, 503, 0, 99, 1000, -2147483648 ],
	'integer' => [ 'NULL', 1, 200, 10, 0, -1, -2147483648, 2147483647 ],
	'bigint' => [ 1, 2, 3, 'NULL', 0, -1, '9223372036854775807', q('-9223372036854775808') ],
	'bigint[]' => [ q('{0,3,1}'), q('{}'), 'NULL', q('{NULL,-1,9223372036854775807}') ],
	'double precision' => [ 1, 0, 1.5, 0.2, 'NULL', -1, q('NaN'), q('Infinity'), '1e308' ],
	'boolean' => [qw(true false true false NULL)],
	'bytea' => [ 'NULL', q(''), q('\x00ff'), q(convert_to(repeat('x', 300000), 'UTF8')) ],);

my @functions;
for my $line (split /\n/, $node->safe_psql('utf8', <<'SQL'))
SELECT p.oid, pronamespace::regnamespace, proname, coalesce(proargnames[i], ''),
  coalesce(format_type(proargtypes[i - 1], NULL), ''), i > pronargs - pronargdefaults,
       EXISTS (SELECT FROM pg_type t JOIN pg_attribute a ON attrelid = typrelid WHERE t.oid = prorettype
       AND attname = 'token')
  FROM pg_proc p LEFT JOIN LATERAL generate_series(1, pronargs) i ON true
 WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
 ORDER BY proname, p.oid, i
SQL
{
	my ($oid, $schema, $name, $argument, $type, $optional, $token) = split /\|/, $line;
	push @functions, { oid => $oid, schema => $schema, name => $name, token => $token eq 't', arguments => [] }
	  if !@functions || $functions[-1]{oid} ne $oid;
	next if $argument eq '';
	ok($values{"$argument $type"} || $values{$type}, "the test has values for $argument $type of $name");
	push @{ $functions[-1]{arguments} }, { name => $argument, type => $type, optional => $optional eq 't' };
}
my %function = map { $_->{name} => $_ } @functions;
my %trigger = map { $_ => 1 } split /\n/, $node->safe_psql('utf8', q{SELECT proname FROM pg_proc
	WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace) AND prorettype = 'trigger'::regtype});
my @often =
	map { $function{$_} } qw(claim claim claim try_claim complete complete fail release renew checkpoint execute
	lookup once once_each take take release revoke cancel);
my @by_token = grep { grep { $_->{name} eq 'token' } @{ $_->{arguments} } } @functions;
my @views = split /\n/, $node->safe_psql('utf8',
	q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind = 'v'});
my $rare = qr/^(drop_scope|alter_scope|rotate_secret)$/;
my $destructive = qr/^(create_scope|alter_scope|drop_scope|forget|forget_tenant|erase|erase_tenant)$/;

my $made = 0;  # statements, for unique names
my ($called, $single) = (0, 0);  # calls, and those outside of batches
our $own_token = 0;  # whether to call with the newest token
my $ascii = 0;  # whether the script is for the SQL_ASCII database

# A call with random arguments. The variables hold tokens: those of psql at the top level, and $1 in
# a batch.
sub call
{
	my ($f, $in_batch) = @_;
	$f //= rand() < 0.6 ? pick(@often) : pick(@functions);
	return call(undef, $in_batch) if $f->{name} =~ $rare && rand() < 0.95;
	$called++;
	$single++ if !$in_batch;
	my $usual = $own_token || rand() < 0.6;
	my @arguments;
	for my $argument (@{ $f->{arguments} })
	{
		next if $argument->{optional} && rand() < 0.6;
		my @choice = @{ $values{"$argument->{name} $argument->{type}"} // $values{ $argument->{type} } };
		my $value = pick($usual ? @choice[ 0 .. 3 ] : @choice) // 'NULL';
		$value = ":'t1'" if $own_token && $argument->{name} eq 'token';
		$value = pick(@any_bytes) if $ascii && $argument->{type} eq 'text' && rand() < 0.05;
		# The honest operations rely on this scope.
		$value = quoted('s1') if $value eq quoted('steady') && $f->{name} =~ $destructive;
		my $variadic = $value =~ s/^VARIADIC // ? 'VARIADIC ' : '';
		$value =~ s/:'t(\d)'/\$1[$1]/g if $in_batch;
		push @arguments, "$variadic$argument->{name} => $value";
	}
	my $call = "$f->{schema}.$f->{name}(" . join(', ', @arguments) . ')';
	return $in_batch ? ($f, $call) : $call;
}

sub honest
{
	$called++;
	return sprintf q{fuzz.honest('%s', %d)}, pick(qw(claim claim execute once each lease)), rand(1000)
}

sub item
{
	my ($bare, $function) = @_;
	my ($f, $call) = call($function, 1);
	return ("$bare$f->{name}", $f->{token} ? "SELECT r.token FROM $call r"
		: "SELECT NULL FROM (SELECT count(r::text) FROM $call r) x");
}

# The items of a batch: see fuzz.block().
sub items
{
	my ($depth) = @_;
	my @items;
	for (1 .. 1 + int rand(12))
	{
		my $bare = rand() < 0.04 ? '-' : '';
		if (rand() < 0.12 && $depth < 6)
		{
			push @items, '(', '', items($depth + 1), pick(')', '!'), '';
		}
		elsif (rand() < 0.1)
		{
			push @items, "${bare}honest", 'SELECT ' . honest();
		}
		elsif (rand() < 0.02)
		{
			push @items, "${bare}view", "SELECT NULL FROM (SELECT count(x::text) FROM @{[ pick(@views) ]} x) y";
		}
		elsif (rand() < 0.1)
		{
			local $own_token = 1;
			push @items, item($bare, pick(map { $function{$_} } qw(claim try_claim take)));
			push @items, map { item('', $_) } (pick(@by_token)) x rand(2),
				pick(map { $function{$_} } qw(complete complete fail release));
		}
		else
		{
			push @items, item($bare);
		}
	}
	return @items;
}

sub batch
{
	my @items = map { items(0) } 1 .. $_[0];
	return 'SELECT fuzz.batch(ARRAY[' . join(', ', map { "\$q\$$_\$q\$" } @items) . "], :'tokens') AS tokens \\gset";
}

my @statement = (
	[ 30, sub { batch(4) } ],
	[ 10, sub { 'SELECT ' . honest() . ';' } ],
	[ 20, sub { 'SELECT * FROM ' . call() . ';' } ],
	[ 25, sub { "SELECT token AS t@{[ 1 + int rand 5 ]} FROM "
			. call($function{ pick(qw(claim claim try_claim try_claim take)) }) . " WHERE token IS NOT NULL \\gset" } ],
	[ 8, sub { 'SELECT ' . call() . ', ' . call() . ';' } ],
	[ 4, sub { 'SELECT ' . call() . ' FROM generate_series(1, 5);' } ],
	[ 4, sub { "DO \$\$ BEGIN PERFORM * FROM @{[ call() ]}; PERFORM * FROM @{[ call() ]};
		EXCEPTION WHEN OTHERS THEN PERFORM * FROM @{[ call() ]}; END \$\$;" =~ s/:'(t\d)'/quoted('x')/ger } ],
	[ 3, sub { "DO \$\$ BEGIN FOR i IN 1..5 LOOP PERFORM * FROM @{[ call() ]}; @{[ pick('COMMIT', 'ROLLBACK') ]};
		END LOOP; END \$\$;" =~ s/:'(t\d)'/quoted('x')/ger } ],
	[ 12, sub { 'BEGIN' . pick('', '', '', ' ISOLATION LEVEL REPEATABLE READ', ' ISOLATION LEVEL SERIALIZABLE',
				' READ ONLY', ' ISOLATION LEVEL SERIALIZABLE READ ONLY') . ';' } ],
	[ 12, sub { pick('COMMIT;', 'COMMIT;', 'ROLLBACK;', 'COMMIT AND CHAIN;', 'ROLLBACK AND CHAIN;') } ],
	[ 6, sub { pick('COMMIT;', 'ROLLBACK;') . "\nROLLBACK;\nSELECT fuzz.after(:'tokens');" } ],
	[ 8, sub { 'SAVEPOINT ' . pick('a', 'b', 'c') . ';' } ],
	[ 6, sub { 'ROLLBACK TO ' . pick('a', 'b', 'c') . ';' } ],
	[ 4, sub { 'RELEASE ' . pick('a', 'b', 'c') . ';' } ],
	[ 3, sub { my $gid = 'p' . ++$made; "PREPARE TRANSACTION '$gid';\nSELECT * FROM @{[ call() ]};\n"
		. "@{[ pick('COMMIT', 'ROLLBACK') ]} PREPARED '$gid';" } ],
	[ 1, sub { pick('COMMIT', 'ROLLBACK') . " PREPARED 'p@{[ 1 + int rand($made + 1) ]}';" } ],
	[ 5, sub { 'SET ' . pick('', 'LOCAL ') . 'ROLE ' . pick('NONE', 'NONE', 'owner', 'member', 'stranger') . ';' } ],
	[ 2, sub { pick('SET ', 'SET LOCAL ') . pick("idem.tenant = 't1'", "idem.tenant = ''", 'idem.max_open_claims = 3',
				"idem.log_transitions = 'debug1'",
				'statement_timeout = 20', 'statement_timeout = 2000', 'lock_timeout = 3', 'lock_timeout = 0',
				'transaction_read_only = on', 'synchronous_commit = off', 'work_mem = 64',
				'search_path = pg_temp, public',
				'client_encoding = latin1', 'client_encoding = utf8', 'jit_above_cost = 0', 'temp_buffers = 100',
				'row_security = off', 'session_replication_role = replica', 'bytea_output = escape',
				'DateStyle = german', 'IntervalStyle = sql_standard', 'TimeZone = "Asia/Kathmandu"',
				'extra_float_digits = -15', 'standard_conforming_strings = on', 'check_function_bodies = off',
				'max_stack_depth = 100') . ';' } ],
	[ 1, sub { 'RESET ' . pick('ALL', 'idem.max_open_claims', 'idem.tenant') . ';' } ],
	[ 3, sub { "PREPARE s@{[ ++$made ]} AS SELECT * FROM @{[ call() ]};\nEXECUTE s$made;\nEXECUTE s$made;\n"
		. "DEALLOCATE s$made;" } ],
	[ 3, sub {
			"DECLARE c@{[ ++$made ]} @{[ pick('', 'SCROLL ', 'INSENSITIVE ') ]}CURSOR @{[ pick('', 'WITH HOLD ') ]}"
			. "FOR SELECT * FROM generate_series(1, 3) n, @{[ call() ]};\nFETCH c$made;\nSAVEPOINT a;\n"
			. "FETCH c$made;\n@{[ pick('', 'ROLLBACK TO a;') ]}\nFETCH ALL FROM c$made;\nCLOSE c$made;" } ],
	[ 3, sub { "INSERT INTO effect " . pick('DEFAULT VALUES', 'SELECT FROM generate_series(1, 10)')
			. pick('', ' RETURNING key') . ';' } ],
	[ 4, sub { 'SELECT * FROM ' . pick(@views) . ' x' . pick(' LIMIT 3', ' ORDER BY 1 LIMIT 3',
				" WHERE x::text LIKE '%s1%' LIMIT 3") . ';' } ],
	[ 1, sub { 'SELECT count(*) FROM ' . pick(@views) . ' a, (SELECT FROM ' . pick(@views) . ' LIMIT 5) b;' } ],
	[ 1, sub { pick('DISCARD ALL;', 'DISCARD PLANS;', 'SELECT pg_advisory_unlock_all();', 'UNLISTEN *;',
				'CHECKPOINT;') } ],
	[ 1, sub { pick("SET force_parallel_mode = on;\nSET debug_parallel_query = on;\nSET parallel_setup_cost = 0;",
				"SET force_parallel_mode = off;\nSET debug_parallel_query = off;", 'SET jit = off;',
				'SET plan_cache_mode = force_generic_plan;') } ],
	[ 1, sub { "COPY (SELECT * FROM @{[ call() ]}) TO STDOUT;" } ],
	[ 1, sub { "CREATE TEMP TABLE x@{[ ++$made ]} ON COMMIT DROP AS SELECT * FROM @{[ call() ]};" } ],
	[ 1, sub { "BEGIN;\nCREATE MATERIALIZED VIEW public.m@{[ ++$made ]} AS SELECT * FROM @{[ call() ]};\nROLLBACK;" } ],
	[ 1, sub { "EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM @{[ call() ]};" } ],
	# As if other sessions changed the catalogs all the time; only a server with assertions can.
	[ 0.3, sub { "SET debug_discard_caches = 1;\nSET statement_timeout = '20s';\nSELECT * FROM @{[ call() ]};\n"
		. "@{[ batch(1) ]}\nRESET debug_discard_caches;\nRESET statement_timeout;" } ],);
my @bag = map { ($_->[1]) x ($_->[0] * 10) } @statement;

# After an error the transaction continues from a savepoint, if there is one, or ends.
my $recover = "\\if :ERROR\nROLLBACK TO a;\n\\if :ERROR\nROLLBACK;\n\\endif\n\\endif\n";

# The memory of the session, three times, because any of these statements may be cancelled or end at a
# timeout. The last one counts.
sub memory { return "ROLLBACK;\nRESET ALL;\nDISCARD ALL;\nSELECT fuzz.memory($_[0]);\n" x 3; }

my $dir = $node->basedir;
sub script
{
	my ($name, $share) = @_;
	my $file = "$dir/$name.sql";
	open my $out, '>', $file or die $!;
	print $out "\\set VERBOSITY terse\n\\set tokens '{none}'\n", map { "\\set t$_ none\n" } 1 .. 5;
	my $end = $called + $share;
	for my $quarter (1 .. 4)
	{
		while ($called < $end - $share * (4 - $quarter) / 4)
		{
			print $out pick(@bag)->() . "\n" . (rand() < 0.8 ? $recover : '');
		}
		print $out memory($quarter);
	}
	close $out;
	return $file;
}

# Meanwhile the test cancels statements and maintains the table, each time in a new connection.
my @care = (
	(q{SELECT count(pg_cancel_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
		AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) x}) x 5,
	'REINDEX INDEX CONCURRENTLY idem.record_pkey', 'VACUUM idem.record', 'SELECT idem.purge()', 'ANALYZE',
	'SELECT idem.rotate_secret()', 'SELECT idem.stats_reset()',
	'SET lock_timeout = 100; VACUUM FULL idem.record', 'SET lock_timeout = 100; VACUUM FULL elsewhere.steady',
	'REINDEX INDEX CONCURRENTLY elsewhere.steady_pkey',
	(map { "SELECT idem.alter_scope('steady', request_exclude => '$_')" } '{at}', '{at, n}', '{key, at}', '{at, a.b}'),
	(map { my ($rule, $on, $off) = @$_; "SELECT idem.alter_scope('steady', $rule => $on); SELECT pg_sleep(0.05);
		SELECT idem.alter_scope('steady', $rule => $off)" }
		[qw(request_required true false)], [qw(tenant_required true false)], [qw(claims_per_minute 100 -1)],
		[qw(reject_stale_keys true false)], [ 'min_ttl', q('1 hour'), q('0') ]),
	q{DO $$ BEGIN PERFORM idem.alter_scope('steady', tenant_from => 'role');
		RAISE LOG 'fuzz violation: live keys got another identity'; END $$},
	(map { "SELECT idem.alter_scope('own', tenant_from => '$_', force => true)" } qw(role argument)),
	q{SELECT idem.create_scope('s2', owner => 'owner', wait => '0', ttl => '50 ms', lease => '10 ms',
		store_request => 'unfinished') WHERE NOT EXISTS (SELECT FROM idem.scopes WHERE name = 's2')},
	q{SELECT idem.create_scope('s1', owner => 'owner', wait => '20 ms') WHERE NOT EXISTS (SELECT FROM idem.scopes
		WHERE name = 's1')});

sub care
{
	my ($runs) = @_;
	while (grep { $_->{run}->pumpable } @$runs)
	{
		$node->psql(pick(@databases), pick(@care), timeout => 180, on_error_stop => 0);
		select undef, undef, undef, 0.1;
	}
	return;
}

my (%outcomes, %statements);
my @growth;

# What the sessions' scripts printed: the outcomes of the calls, and how much memory they used.
sub read_output
{
	my ($r) = @_;
	my ($errors, %memory, %contexts) = (slurp_file($r->{err}));
	unlike($errors, qr/server closed the connection|connection to server was lost/, "a session lived: $r->{file}");
	for my $line (split /\n/, $errors)
	{
		$memory{$1} = $2 if $line =~ /fuzz memory: (\d) (\d+)/;
		$contexts{$1} = $2 if $line =~ /fuzz contexts: (\d) (.*)/;
		next unless $line =~ /fuzz outcomes: (.*)/;
		for my $outcome (split /, /, $1)
		{
			my ($name, $state, $count) = split / /, $outcome;
			$outcomes{$name}{$state} += $count;
		}
	}
	is(join(' ', sort keys %memory), '1 2 3 4', "a session reached its end: $r->{file}");
	my $growth = $memory{4} - $memory{2};
	push @growth, $growth;
	cmp_ok($growth, '<', 1_000_000, "the memory of a session does not grow in the second half of its calls: $r->{file}")
	  or diag "second quarter: $contexts{2}\nlast quarter: $contexts{4}";
	return;
}

sub run_round
{
	my ($round) = @_;
	srand($seed + $round);
	my @runs = map
	{
		my $database = $_ == $sessions ? 'ascii' : 'utf8';
		$ascii = $database eq 'ascii';
		{ database => $database, file => script("round${round}_session$_", $round_calls / $sessions) }
	} 1 .. $sessions;
	local $ENV{PGOPTIONS} = '-c statement_timeout=2s';
	for my $r (@runs)
	{
		($r->{out}, $r->{err}) = ("$r->{file}.out", "$r->{file}.err");
		$r->{run} = start([ 'psql', '-X', '-q', '-d', $node->connstr($r->{database}) . ' application_name=session',
				'-f', $r->{file} ], '>', $r->{out}, '2>', $r->{err});
	}
	care(\@runs);
	delete $ENV{PGOPTIONS};
	for my $r (@runs)
	{
		finish $r->{run};
		read_output($r);
	}
	for my $line (split /\n/, $node->safe_psql('postgres', 'SELECT database, gid FROM pg_prepared_xacts'))
	{
		my ($database, $gid) = split /\|/, $line;
		$node->safe_psql($database, "ROLLBACK PREPARED '$gid'");
	}
	check($round);
	return @runs;
}

sub check
{
	my ($round) = @_;
	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), 0,
		"no key lock is left: round $round");
	for my $database (@databases)
	{
		my $title = "$database, round $round";
		is($node->safe_psql($database, q{SELECT count(*) FROM idem_internal.held_keys(false)}), 0,
			"no claim is left open: $title");
		is($node->safe_psql($database, q{SELECT bt_index_check(i, true)
			FROM unnest('{idem.record_pkey,elsewhere.steady_pkey,elsewhere.plain_pkey,
				elsewhere.number_pkey}'::regclass[]) i}), "\n\n\n",
			"amcheck finds every record in the index: $title");
		is($node->safe_psql($database, q{SELECT count(*) FROM elsewhere.past}), 0,
			"a partition has no row outside of its bounds: $title");
		is($node->safe_psql($database, q{SELECT count(*) FROM elsewhere.steady WHERE tenant_id <> tenant}), 0,
			"every record has its tenant in the column of its table: $title");
		is($node->safe_psql($database, q{SELECT scope, tenant, coalesce(key, key_uuid::text), count(*) FROM idem.record
			GROUP BY 1, 2, 3 HAVING count(*) > 1}), '', "no key has two records: $title");
		is($node->safe_psql($database, q{SELECT count(*) FROM idem.record WHERE state NOT IN ('c', 'f', 'p')
			OR attempt < 1 OR state = 'p' AND lease_end IS NULL}), 0, "every record is well-formed: $title");
		is($node->safe_psql($database, q{SELECT tenant, key, count(*) FROM fuzz.effect GROUP BY 1, 2
			HAVING count(*) > 1}), '', "no honest operation has two effects: $title");
		is($node->safe_psql($database, <<'SQL'), '', "every honest operation still has its answer: $title");
BEGIN;
SELECT idem.use_records('elsewhere.steady') \g /dev/null
SELECT e.*, l.state, l.response FROM fuzz.effect e, idem.lookup('steady', e.key, e.tenant) l
 WHERE l.state <> 'completed' OR (e.key ~ '^(claim|execute|lease)' AND l.response IS DISTINCT FROM e.answer)
SQL
		# Hostile calls may use this table, too: for another scope, whose "records" they have set.
		is($node->safe_psql($database, q{SELECT r.* FROM elsewhere.steady r JOIN idem.scope s ON s.id = r.scope
			WHERE s.name = 'steady' AND expires > now() AND state = 'c' AND NOT EXISTS (SELECT FROM fuzz.effect e
			WHERE (e.tenant, e.key) = (r.tenant, coalesce(r.key, r.key_uuid::text)))}), '',
		"every answer has its effect: $title");
	}
	return;
}

# Every SQLSTATE that may reach a client: those of the comments, and what the statements of this test
# provoke by themselves.
sub read_log
{
	my ($log) = @_;
	my %known = map { $_ => 1 } split(/\n/, $node->safe_psql('utf8', 'SELECT DISTINCT sqlstate FROM fuzz.documented')),
	  qw(57014 55P03 40P01 42501 25006 54001 25P01 25P02 3B001 34000 42P03 26000 42P11 55000 0A000 42704
	  22023 22P05 25001 2D000 55006 57P01 42804 2BP01 42P07 42P16 ID006);
	$statements{$1}++ while $log =~ /^(\w{5})\|\d+\|client backend\|session\|ERROR:/mg;
	is(join(' ', grep { !$known{$_} } sort keys %statements), '', 'statements raise only documented errors');
	my @violations = $log =~ /fuzz violation: (.*)/g;
	is(scalar @violations, 0, 'every call behaves as documented')
	  or diag join "\n", @violations[ 0 .. ($#violations < 20 ? $#violations : 20) ];
	my @internal = $log =~ /^(XX\d{3}\|.*\n(?:.*\n){0,3})/mg;
	is(scalar(@internal), 0, 'no internal error')
	  or diag join "\n", @internal[ 0 .. ($#internal < 5 ? $#internal : 5) ];
	my $of_statements = join '|', 'already a transaction', 'no transaction in progress',
	  'only be used in transaction blocks', '^idempotency key "', 'are not limited', 'SET LOCAL',
	  'permission denied to set', 'is not a PostgreSQL (?:server|backend) process', 'worker took too long',
	  'still waiting', '^the records in table .* were not reached';
	my @warnings = grep { !/$of_statements/ } $log =~ /WARNING:  (.*)/g;
	is(join("\n", @warnings), '', 'the server logged only warnings of the statements themselves');
	log_is_clean($node);
	return;
}

# A call in a batch is counted when it has ended; errors that end a block skip the rest of it.
sub executed
{
	my $sum = $single;
	$sum += $_ for map { values %$_ } values %outcomes;
	return $sum;
}

my $round = 0;
my @last;
my $offset = 0;
for (; executed() < $calls; $round++)
{
	my $title = "SEED=@{[ $seed + $round ]} CALLS=$round_calls";
	note "round $round, which $title repeats";
	subtest "round $round" => sub { @last = run_round($round); read_log(slurp_file($node->logfile, $offset)) };
	if (!Test::More->builder->is_passing)
	{
		my $kept = $ENV{FUZZ_KEEP} // '/tmp/idem-fuzz';
		mkdir $kept;
		system 'cp', map({ $_->{file}, $_->{err} } @last), $node->logfile, $kept;
		BAIL_OUT("round $round failed; $title repeats it; the sessions' scripts and the server's log are in $kept");
	}
	unlink map { ($_->{file}, $_->{out}, $_->{err}) } @last;
	note executed(), ' calls so far';
	$offset = -s $node->logfile;
}

note executed(), " calls in $round rounds, $single of them outside of batches, seed $seed";
for my $name (sort keys %outcomes)
{
	note "$name: ", join ', ', map { "$_ $outcomes{$name}{$_}" } sort keys %{ $outcomes{$name} };
}
note 'errors of single statements: ', join ', ', map { "$_ $statements{$_}" } sort keys %statements;
note 'growth of memory in the second half, in bytes: ', join ' ', sort { $a <=> $b } @growth;
# A run that reaches nothing shows nothing. In a short one, some functions have few calls.
my @succeed =
	qw(claim try_claim take revoke cancel erase complete fail release execute once once_each lookup honest view);
@succeed = ('honest', 'view', grep { $_ !~ $rare && !$trigger{$_} } keys %function) if $calls >= 200_000;
cmp_ok($outcomes{$_}{'00000'} // 0, '>', 0, "$_ succeeded at times") for sort @succeed;
my %raised = %statements;
$raised{$_}++ for map { keys %$_ } values %outcomes;
ok($raised{$_}, "$_ was among the errors")
  for qw(ID001 ID002 ID004 ID005 ID006 ID007 ID008 ID009 ID011 42501 22023 25006);
$node->stop;
done_testing();
