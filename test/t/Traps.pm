# Planted objects that stand in the way of whatever idem calls, and a tour through its functions, which
# must have the same results among them.
package Traps;

use strict;
use warnings;

# A copy of every operator and function of pg_catalog that takes only plain types, each of them a
# trap, in a schema that comes before pg_catalog; and relations and types with idem's names.
our $traps = <<'SQL';
SET check_function_bodies = off;
CREATE SCHEMA evil;
GRANT ALL ON SCHEMA evil TO PUBLIC;
CREATE FUNCTION evil.spring() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'TRAPS',
  MESSAGE = 'a trap was sprung'; END $$;
CREATE TABLE evil.plain AS
  SELECT unnest('{bool,bytea,char,name,int2,int4,int8,text,oid,regclass,regrole,regprocedure,float8,numeric,
    timestamptz,interval,jsonb,uuid,_text,_int4}'::regtype[]) AS type;
DO $do$
DECLARE twin record;
BEGIN
  FOR twin IN
    SELECT oid, proname, pg_get_function_identity_arguments(oid) AS arguments, prorettype::regtype AS result,
           CASE WHEN proretset THEN 'SETOF ' ELSE '' END AS set
      FROM pg_proc
     WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f'
       AND prorettype NOT IN ('internal'::regtype, 'cstring'::regtype)
       AND NOT EXISTS (SELECT FROM unnest(proargtypes) AS type WHERE type NOT IN (SELECT p.type FROM evil.plain p))
       AND proargmodes IS NULL AND provariadic = 0
  LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s%s LANGUAGE plpgsql
                      AS $f$ BEGIN PERFORM evil.spring(); END $f$',
                     twin.proname, twin.arguments, twin.set, twin.result);
    EXCEPTION WHEN OTHERS THEN NULL;      -- pseudo-types and the like
    END;
  END LOOP;
  FOR twin IN
    SELECT oid, oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result FROM pg_operator
     WHERE oprkind = 'b' AND oprleft IN (SELECT type FROM evil.plain) AND oprright IN (SELECT type FROM evil.plain)
  LOOP
    EXECUTE format('CREATE FUNCTION evil.trap_%s(%s, %s) RETURNS %s LANGUAGE plpgsql
                    AS $f$ BEGIN PERFORM evil.spring(); END $f$',
                   twin.oid, twin.l, twin.r, twin.result);
    EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.trap_%s, LEFTARG = %s, RIGHTARG = %s)',
                   twin.oprname, twin.oid, twin.l, twin.r);
  END LOOP;
END $do$;
CREATE FUNCTION evil.sprung() RETURNS pg_catalog.bool LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); RETURN true;
END $$;
DO $do$
DECLARE type pg_catalog.name;
BEGIN
  FOREACH type IN ARRAY '{text,uuid,name,oid,xid,regclass,regrole,regprocedure,timestamptz,jsonb,bytea,interval,
    int4,int8}'::pg_catalog.name[] LOOP
    EXECUTE format('CREATE DOMAIN evil.%1$I AS pg_catalog.%1$I CHECK (evil.sprung())', type);
  END LOOP;
END $do$;
CREATE TYPE evil.claim_result AS (claimed pg_catalog.text);
CREATE TABLE evil.record (digest pg_catalog.text); CREATE TABLE evil.scope (name pg_catalog.text);
CREATE VIEW evil.scopes AS SELECT 'forged'::pg_catalog.text AS name;
CREATE FUNCTION evil.claim(pg_catalog.text, pg_catalog.text) RETURNS void LANGUAGE sql AS 'SELECT evil.spring()';
SQL
# The session's path leads into the traps.
our $path = <<'SQL';
CREATE TEMP TABLE record (digest pg_catalog.text);
CREATE TEMP TABLE scope (name pg_catalog.text);
CREATE TEMP TABLE secret (id pg_catalog.int4);
CREATE TEMP TABLE scopes (name pg_catalog.text);
SET search_path = pg_temp, evil, public, pg_catalog;
SQL

# A role that may execute a function may have PL/pgSQL's validator compile it, with the role's own
# search_path and for all calls of the session. The shells are found before the types of pg_catalog.
our $compile = <<'SQL';
CREATE SCHEMA shell; SET search_path = shell, pg_catalog;
DO $$ DECLARE name pg_catalog.name; BEGIN
  FOR name IN SELECT typname FROM pg_type WHERE typnamespace = to_regnamespace('pg_catalog') LOOP
    EXECUTE format('CREATE TYPE shell.%I', name);
  END LOOP; END $$;
SELECT plpgsql_validator(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
  JOIN pg_language l ON l.oid = p.prolang WHERE n.nspname IN ('idem', 'idem_internal') AND l.lanname = 'plpgsql'
    AND (prosecdef OR proconfig::pg_catalog.text LIKE '%search_path%'
         OR has_function_privilege('public', p.oid, 'EXECUTE'));
SQL

# What the tour needs.
our $objects = <<'SQL';
CREATE TABLE public.effect (key text DEFAULT idem.current_key());
CREATE TRIGGER guard BEFORE INSERT ON public.effect EXECUTE FUNCTION idem.require_claim('shop');
GRANT ALL ON public.effect TO PUBLIC;
CREATE FUNCTION public.work(pg_catalog.jsonb) RETURNS pg_catalog.jsonb LANGUAGE plpgsql AS $$ BEGIN RETURN $1; END $$;
CREATE FUNCTION public.break(pg_catalog.jsonb) RETURNS pg_catalog.jsonb LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'broken'; END $$;
SQL

# Makes every call among the traps. The statements qualify every name and use no operator, so
# whatever springs a trap is idem.
our $tour = <<'SQL';
SELECT idem.create_scope('tour', response_exclude => '{secret}', request_exclude => '{sent_at}', weak_keys => 'warn',
  reject_stale_keys => true);
SELECT idem.create_scope('shop', owner => 'shop', final_sqlstates => '{P0001}', store_request => 'always');
SELECT idem.alter_scope('tour', ttl => '2 days');
SET ROLE clerk;
BEGIN;
SELECT token FROM idem.claim('shop', 'order-1', '{"amount": 1, "to": ["a", {"b": 1e2}]}') \gset
INSERT INTO public.effect DEFAULT VALUES;
SELECT idem.current_key();
SELECT idem.child_key(:'token', 'charge') \gset
SELECT idem.complete(:'token', '{"answer": 42, "secret": "x"}', 201, '{"a": "1"}', E'\\x00');
COMMIT;
SELECT response FROM idem.claim('shop', 'order-1', '{"amount": 1.0, "to": ["a", {"b": 100}]}');
SELECT outcome, differs FROM idem.try_claim('shop', 'order-1', '{"amount": 2}');
SELECT state FROM idem.lookup('shop', 'order-1');
SELECT idem.once('shop', 'message-1');
SELECT idem.once_each('shop', '{message-1, message-2}');
SELECT idem.advance('shop', 'stream', 1);
SELECT outcome FROM idem.execute('shop', 'order-2', 'public.work(pg_catalog.jsonb)', '{}');
SELECT outcome FROM idem.execute('shop', 'order-3', 'public.break(pg_catalog.jsonb)', '{}');
SELECT token FROM idem.claim('shop', 'order-4', lease => '1 hour') \gset
SELECT idem.checkpoint(:'token', 'charged', '{"a": 1}');
SELECT 'renewed' FROM idem.renew(:'token', '1 millisecond');
SELECT pg_catalog.pg_sleep(0.01);
SELECT token, attempt, recovery_point FROM idem.claim('shop', 'order-4', lease => '1 hour') \gset
SELECT idem.fail(:'token', '{"message": "no"}');
BEGIN;
SELECT idem.release(token) FROM idem.claim('shop', 'order-5');
COMMIT;
SELECT token FROM idem.claim('shop', 'order-6', lease => '1 hour') \gset
SELECT idem.release(:'token', '1 microsecond', '{"message": "later"}');
SELECT pg_catalog.pg_sleep(0.01);
SELECT token, key, last_error FROM idem.take('shop') \gset
SELECT idem.complete(:'token');
SELECT state FROM idem.lookup('shop', 'order-6', wait => '1 s');
SELECT attempt FROM idem.claim('shop', '8e03978e-40d5-43dd-bc93-6894a57f9324', lease => '1 hour');
SELECT pg_catalog.pg_typeof(idem.backoff(1));
SELECT name FROM idem.scopes;
SELECT idem.scope_ddl('shop');
SELECT scope, tenant, weakness FROM idem.records ORDER BY 1, 2, 3;
SELECT source, seq FROM idem.streams;
SELECT pg_catalog.length(idem.new_key());
SELECT idem.derive_key('a', 'b');
SELECT idem_internal.key_weakness('4711'), idem_internal.key_text(NULL), idem_internal.is_unfinished(NULL),
  idem.edition();
SELECT idem_internal.error_of('ID001'), idem_internal.errors(), idem_internal.sqlstate_of('failed');
SELECT idem_internal.path_fault('"a".b[0]');
SELECT idem_internal.role_out(idem_internal.role_in('shop'));
SELECT idem_internal.differences('{"a": {"b": 1}}', '{"c": 1}');
SELECT idem_internal.header_lines('headers', '{"Vary": ["Accept", "Origin"]}');
SELECT idem_internal.refuse(name, '', '', '') FROM idem.scopes WHERE false;
SELECT idem.http_status('ID001');
SELECT idem.problem('ID001', 'x');
SELECT idem.parse_key(E'"a\\"b";v=1');
SELECT idem.http_status(c), idem.http_headers(c), idem.problem(c)
  FROM idem.try_claim('shop', 'order-1', '{"amount": 1}') c;
SELECT idem.http_status(c), idem.http_headers(c), idem.problem(c)
  FROM idem.try_claim('shop', 'order-1', '{"amount": 2}') c;
RESET ROLE;
SELECT idem.rotate_secret();
SELECT idem.import_identity(idem.export_identity());
SELECT idem_internal.begin_import();
SELECT idem_internal.begin_update();
SELECT idem_internal.import_scope(s, true) FROM pg_catalog.jsonb_populate_recordset(NULL::idem.scope,
  idem.export_identity() OPERATOR(pg_catalog.->) 'scopes') s;
SELECT idem_internal.refuse_keys(name) FROM idem.scope WHERE false;
SELECT numbers[1] FROM idem.scope, idem_internal.scope_counters(id) ORDER BY 1;
SELECT pg_catalog.date_part('microseconds', idem_internal.quantile('{1,2}', 50));
SELECT scope, replays FROM idem.stats;
SELECT scope, kind, count, p99 IS NULL FROM idem.durations;
SELECT key FROM idem_internal.held_keys(true);
SELECT pg_catalog.count(*) FROM idem_internal.figures('{1}', '{1 day}', '{1}');
SELECT pg_catalog.count(*) FROM idem_internal.totals('{1}', '{1 day}', '{1}');
SELECT key FROM idem.in_flight;
SELECT scope, key, state FROM idem.records ORDER BY 1, 2;
SELECT idem_internal.preloaded();
SELECT idem_internal.library();
SELECT scope, live, shared FROM idem.overview ORDER BY 1;
SELECT has_secrets FROM idem.storage;
SELECT records, fault FROM idem_internal.record_tables();
SELECT name, fault FROM idem_internal.own_tables();
SELECT check_name, status FROM idem.health();
SELECT check_name, status FROM idem_internal.findings('1 day');
SELECT check_name, status FROM idem_internal.own_checks();
SELECT pid FROM idem_internal.key_holders();
SELECT idem.create_record_table('public.elsewhere', 'count', 'pg_catalog.int8') IS NULL;
SELECT idem.create_record_table('public."record"') IS NULL;
SELECT idem_internal.make_record_table('of_superusers', NULL, NULL, 'public') IS NULL;
SELECT idem.create_scope('elsewhere', owner => 'shop', records => true);
SET ROLE clerk;
BEGIN;
SELECT idem.use_records('public.elsewhere');
SELECT idem.once('elsewhere', 'order-7', tenant => '42'), idem.once('elsewhere', 'order-7', tenant => '42');
SELECT idem.use_records('public."record"');
SELECT idem.once('elsewhere', 'order-8');
SELECT token FROM idem.claim('elsewhere', 'order-9', lease => '1 hour') \gset
COMMIT;
SELECT idem.complete(:'token', '{"there": 1}');
RESET ROLE;
SELECT count, tenant, key FROM public.elsewhere;
SELECT key, state FROM public."record";
SELECT idem.stats_reset('shop');
SELECT response FROM idem.claim('shop', 'order-1', '{"amount": 1.0, "to": ["a", {"b": 100}]}');
SELECT idem.erase('shop', 'order-1');
SELECT idem.erase_tenant('shop', 'tenant');
SELECT idem.revoke('shop', 'order-1');
SELECT idem.forget('shop', 'order-1');
SELECT idem.forget_tenant('shop', 'tenant');
SELECT state FROM idem.cancel('shop', 'never');
SELECT idem.forget('shop', 'never');
SELECT idem.reset_stream('shop', 'stream', 1);
SELECT idem.drop_scope('tour');
SELECT idem.purge();
SQL

# The tour of the SQL edition leaves out what only the extension has. In a scope without rules, its
# claims take a path of their own.
my $left_out =
  qr/idem_internal|identity|elsewhere|record_table|use_records|public\."record"|durations|stats/;
our $managed_tour = <<'SQL' . join '', grep { !/$left_out/ } split /^/, $tour;
SELECT idem.create_scope('without rules', owner => 'shop');
SET ROLE clerk;
BEGIN;
SELECT token FROM idem.claim('without rules', 'order-1', '{"amount": 1}') \gset
SELECT token AS second FROM idem.claim('without rules', 'order-2') \gset
SELECT idem.complete(:'token', '{"answer": 1}'), idem.release(:'second');
COMMIT;
SELECT response FROM idem.claim('without rules', 'order-1', '{"amount": 1}');
RESET ROLE;
SQL

1;
