# The SQL edition: installed by a role without privileges, against hostile schemas and roles, dumped
# and restored, on a standby, purged, updated to a made-up next version, and moved to the extension in
# the middle of a storm.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Storm;
use Test::More;

my $node = idem_node('managed', bare => 1, conf => "max_connections = 60\nlog_statement = none\n"
	. "max_locks_per_transaction = 256", init => { allows_streaming => 1 });
my $file = 'sql/managed.sql';

# The one file for clients that are not psql.
my $flat = PostgreSQL::Test::Utils::tempdir . '/flat.sql';
system("tools/managed >$flat") == 0 or die 'tools/managed';
unlike(slurp_file($flat), qr/^\\/m, 'the flat file has none of the commands of psql');

sub ask { my ($query, $database, %options) = @_; return $node->safe_psql($database // 'postgres', $query, %options); }

# psql with a file, as a role: its exit status, output and errors.
sub run_file
{
	my ($path, $database, $role, $then) = @_;
	local $ENV{PGOPTIONS} = defined $role ? "-c role=$role" : '';
	my ($out, $err);
	my $done = IPC::Run::run([ qw(psql -XqAt -v ON_ERROR_STOP=1 -f), $path, (defined $then ? ('-c', $then) : ()), '-d',
			$node->connstr($database) ], '>', \$out, '2>', \$err);
	return ($done, $err, $out);
}

sub install
{
	my ($database, $role, $script) = @_;
	my ($done, $err) = run_file($script // $file, $database, $role);
	ok($done, "the SQL edition is installed in $database") or diag $err;
	return;
}

# Installation ------------------------------------------------------------------------------------

# A role that may create schemas and nothing else, in two databases; default privileges that would
# open the tables to every role; and schemas that shadow what the script names.
ask('CREATE ROLE installer NOSUPERUSER NOCREATEROLE LOGIN; CREATE ROLE app LOGIN; CREATE ROLE stranger LOGIN;
	CREATE ROLE admin LOGIN IN ROLE app');
my %given = (first => 'ALL', second => 'SELECT');
for my $database (sort keys %given)
{
	ask("CREATE DATABASE $database");
	ask("GRANT CREATE ON DATABASE $database TO installer; CREATE SCHEMA hostile;
		ALTER DATABASE $database SET plpgsql.extra_errors = 'all';
		GRANT USAGE ON SCHEMA hostile TO PUBLIC;
		ALTER DEFAULT PRIVILEGES FOR ROLE installer GRANT $given{$database} ON TABLES TO PUBLIC;
		ALTER DEFAULT PRIVILEGES FOR ROLE installer GRANT $given{$database} ON SEQUENCES TO PUBLIC;
		CREATE TABLE hostile.theft (what text); GRANT ALL ON hostile.theft TO PUBLIC;
		CREATE FUNCTION hostile.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS \$\$ BEGIN INSERT INTO hostile.theft
		VALUES (\$1::text); RETURN '\\x00'; END \$\$;
		CREATE FUNCTION hostile.concat_bytes(bytea, bytea) RETURNS bytea LANGUAGE plpgsql AS \$\$ BEGIN
		INSERT INTO hostile.theft VALUES (\$1::text); RETURN \$1; END \$\$;
		CREATE OPERATOR hostile.|| (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = hostile.concat_bytes);
		CREATE FUNCTION hostile.same(text, text) RETURNS boolean LANGUAGE plpgsql AS \$\$ BEGIN
		INSERT INTO hostile.theft VALUES (\$1 || \$2); RETURN true; END \$\$;
		CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.same);
		CREATE FUNCTION hostile.format(text, text) RETURNS text LANGUAGE plpgsql AS \$\$ BEGIN INSERT INTO hostile.theft
		VALUES (\$1); RETURN ''; END \$\$;
		CREATE FUNCTION hostile.pg_has_role(oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		CREATE FUNCTION hostile.pg_has_role(oid, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		ALTER DATABASE $database SET search_path = hostile, pg_catalog", $database);
	install($database, 'installer', $database eq 'second' ? $flat : $file);
}
is(ask(q{SELECT idem.edition(), (SELECT count(*) FROM pg_proc
	WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace) AND proowner <> 'installer'::regrole)},
	'first'),
	'sql|0', 'all of it belongs to the role that installed it');
is(ask(q{SELECT string_agg(DISTINCT c.relname || ' ' || a.grantee::regrole, ', ') FROM pg_class c, aclexplode(relacl) a
	WHERE relnamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace) AND relkind IN ('r', 'S')
	AND a.grantee <> relowner}, $_), '',
	"$_: no role has privileges on its tables, whatever the default privileges are") for sort keys %given;
is(ask(q{SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
	WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
	AND prosecdef AND NOT EXISTS (SELECT FROM unnest(proconfig) c WHERE c LIKE 'search_path=pg_catalog, pg_temp')
	AND prosrc !~ 'OPERATOR\(pg_catalog\.'}, 'first'), '',
	'a function with the rights of its owner has a search_path of its own, or names the schema of every operator');
my ($done, $err) = run_file($file, 'first', 'installer');
ok(!$done, 'it is not installed twice');
like($err, qr/schema "idem" or "idem_internal" exists already.*drop both schemas/s, 'and says why');
unlike($err, qr/idem\.edition/, 'without a function that may be gone');
ask('CREATE DATABASE extended');
ask('CREATE EXTENSION idem', 'extended');
($done, $err) = run_file($file, 'extended');
like($err, qr/the extension idem is installed in this database/, 'nor beside the extension');

# Scopes belong to roles: the installer grants what administrators need.
ask(q{SELECT idem.create_scope('payments', owner => 'app'), idem.create_scope('second', owner => 'installer')},
	'first');
ask(q{SET ROLE installer; GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.forget, idem.erase,
	idem.revoke, idem.forget_tenant, idem.erase_tenant, idem.purge TO admin}, 'first');
sub as
{
	my ($role, $query, $database) = @_;
	my (undef, $out, $err) = $node->psql($database // 'first', "\\set VERBOSITY sqlstate\nSET ROLE $role;\n$query");
	return $err =~ /ERROR:\s+(\w{5})/ ? $1 : $out;
}
is(as('app', q{SELECT outcome FROM idem.try_claim('payments', 'k') c, idem.complete(c.token, '"done"')}), 'claimed',
	'a member of the owner uses a scope');
is(as('app', q{SELECT idem.forget('payments', 'k')}), '42501', 'but may not administer it');
is(as('stranger', q{SELECT state FROM idem.lookup('payments', 'k')}), '42501', 'a stranger may not use it');
is(as('admin', q{SELECT idem.alter_scope('payments', ttl => '2 days')}), '', 'a role with EXECUTE administers it');
is(as('admin', q{SELECT idem.alter_scope('second', ttl => '2 days')}), '42501', 'and no scope of another owner');
is(as('admin', q{SELECT idem.create_scope('of others', owner => 'stranger')}), '42501', 'nor gives a role a scope');
is(as('admin', q{SELECT idem.erase('payments', 'k'), (SELECT redacted FROM idem.lookup('payments', 'k'))}), 't|t',
	'it erases an answer');
is(as('admin', q{SELECT idem.forget('payments', 'k'), idem.forget('payments', 'k')}), 't|f', 'and forgets a key');
is(as('admin', q{SELECT idem.claims_per_minute()}), '42883', 'there is no other function');
is(as('admin', q{SELECT idem.create_scope('limited', claims_per_minute => 1)}), '0A000',
	'what this edition lacks is refused');
is(as('stranger', q{SELECT idem.use_records('hostile.theft')}), '0A000', 'so is the choice of a table');
ask(q{CREATE ROLE leaver; SELECT idem.create_scope('left', owner => 'leaver'); DROP ROLE leaver}, 'first');
like(($node->psql('first', q{SET ROLE stranger; SELECT idem.lookup('left', 'k')}))[2],
	qr/owner => 'ROLE'\), after GRANT ROLE TO installer\.$/m, 'no hint gives a scope to a role because it asked');
ask(q{SELECT idem.drop_scope('left')}, 'first');

# Attacks on the functions that have the rights of their owner: with no proof, with that of another
# role, of another transaction and of another backend, and with functions that look like idem's.
my $own = q{(SELECT proof FROM idem_internal.caller)};
my %forged = (
	'no proof' => q{NULL}, 'an empty proof' => q{''}, 'a made-up proof' => q{sha256('x')}, 'its own proof' => $own);
my $victim = ask(q{SELECT 'app'::regrole::oid}, 'first');
for my $kind (sort keys %forged)
{
	is(as('stranger', "SELECT idem_internal.drop_scope($victim, $forged{$kind}, 'payments', false)"), '42501',
		"with $kind, no role acts as another: drop_scope");
	is(as('stranger', "SELECT idem_internal.change_key($victim, $forged{$kind}, 'forget', 'payments', 'k', 'text', NULL,
		true)"), '42501', "... change_key");
	is(as('stranger', "SELECT idem_internal.create_scope($victim, $forged{$kind}, 'x', '{}', '{}', NULL, false)"),
		'42501', "... create_scope");
	is(as('stranger', "SELECT * FROM idem_internal.observed_figures($victim, $forged{$kind}, '{1}', '{1 day}', '{1}')"),
		'42501', "... observed_figures");
}
is(as('app', "SELECT idem_internal.change_key(role, proof, 'forget', 'payments', 'k', 'text', NULL, true)
	FROM idem_internal.caller"), '42501',
	'with its own proof, a role may call no function that it has no EXECUTE on');
for my $function (qw(claim lookup forget_tenant), '')
{
	is(as('app', "SELECT idem_internal.change_key(role, proof, '$function', 'payments', 'k', 'text', NULL, true)
		FROM idem_internal.caller"), '42501', "nor by the name of another: change_key for '$function'");
	is(as('app', "SELECT idem_internal.change_tenant(role, proof, nullif('$function', ''), 'payments', '', true)
		FROM idem_internal.caller"), '42501', '... change_tenant');
}
# The name of a role without a name is that of its OID.
ask(q{CREATE ROLE gone; CREATE ROLE follower; SELECT idem.create_scope('orphan', owner => 'gone')}, 'first');
ask(q{SELECT idem.once('orphan', 'k')}, 'first');
my $gone = ask(q{SELECT 'gone'::regrole::oid});
ask(qq{DROP ROLE gone; ALTER ROLE follower RENAME TO "unknown (OID=$gone)"});
is(as(qq{"unknown (OID=$gone)"}, "SELECT idem_internal.lookup($gone, c.proof, 'orphan', 'k', 'text', NULL, NULL)
	FROM idem_internal.caller c"), '42501', 'no role follows one that was dropped');
is(ask(q{SET search_path = pg_catalog; SELECT 1 FROM idem.purge(); SELECT owner FROM idem.scope WHERE name = 'orphan'},
		'first'), "1\n-",
	'nor does a purge leave the number of such a role, which a dump would carry to another server');
ask(q{SELECT idem.forget('orphan', 'k'), idem.drop_scope('orphan')}, 'first');
my $proof = ask("SET ROLE app; SELECT proof FROM idem_internal.caller", 'first');
is(as('stranger', "SELECT idem_internal.scope_ddl($victim, '$proof', 'payments')"), '42501',
	'a proof ends with its transaction');
is(ask(q{SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc p
	WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
	AND prosecdef AND prorettype <> 'trigger'::regtype AND has_function_privilege('stranger', oid, 'EXECUTE')
	AND proargnames[1:2] IS DISTINCT FROM '{caller,proof}'
	AND p.oid::regprocedure::text !~
		'^idem_internal.(complete|check_snapshot|create_secrets)\\(|^idem.current_key\\('}, 'first'), '',
	'every function that acts with the rights of its owner for any role asks for a proof, but for those that see '
	. 'the own transaction only, and two without arguments');
is(as('stranger', q{SELECT has_table_privilege('idem.secret', 'SELECT')
	OR has_table_privilege('idem.record', 'SELECT')}), 'f', 'the secrets are out of reach');
is(as('stranger', q{CREATE FUNCTION idem.claim(text) RETURNS text LANGUAGE sql AS 'SELECT 1'}), '42501',
	'no role plants functions in the schema');
is(as('app', q{SET search_path = hostile, pg_catalog;
	SELECT outcome FROM idem.try_claim('payments', 'hostile', '{"a": 1.50}') c, idem.complete(c.token, '1');
	SELECT idem.once('payments', 'hostile 2'), idem.advance('payments', 's', 1)}), "claimed\nt|t",
	'calls under a hostile search_path do their work');
is(as('admin', q{SET search_path = hostile, pg_catalog;
	SELECT idem.forget('payments', 'hostile'), idem.create_scope('admins'), idem.scope_ddl('admins') <> '',
	idem.purge()}), 't||t|0',
	'so does administration');
is(ask(q{SET search_path = hostile, pg_catalog; DO $$ BEGIN PERFORM idem.use_records('hostile.theft');
	EXCEPTION WHEN feature_not_supported THEN NULL; END $$; SELECT 'refused'}, 'first'), 'refused',
	'what is refused is refused in an EXCEPTION block, where a trap would leave its mark');
is(ask('SELECT count(*) FROM hostile.theft', 'first'), 0,
	'and no code of another role ran, at installation or in a call');
ask("ALTER DATABASE $_ RESET search_path", $_) for qw(first second);
is(as('stranger', q{SELECT count(*) FROM idem.scopes, idem.records}), '0', 'the views show no scope of others');
is(as('app', q{SELECT count(*) FROM idem.scopes}), '1', 'and those of the caller');

is(as('app', q{SELECT bool_and(k > before) AND count(*) = 1000
	AND bool_and(k ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'),
	abs(extract(epoch FROM now()) * 1000 - max(('x' || left(k, 8) || substr(k, 10, 4))::bit(48)::bigint)) < 60000
	FROM (SELECT k, lag(k, 1, '') OVER (ORDER BY i) AS before
	FROM (SELECT i, idem.new_key() AS k FROM generate_series(1, 1000) i) n) o}), 't|t',
	'new keys are UUIDv7 of the time, in ascending order');
is(as('app', q{SELECT count(idem.once('payments', k, tenant => 'leaver')) FROM unnest('{a,b,c}'::text[]) k;
	SELECT idem.advance('payments', 's', 5, 'leaver')}), "3\nt", 'a tenant has records');
is(as('admin', q{SELECT idem.erase_tenant('payments', 'leaver'), idem.forget_tenant('payments', 'leaver');
	SELECT count(*) FROM idem.streams WHERE tenant = 'leaver'}), "3|3\n0",
	'they are erased and forgotten, with the watermarks');
is(as('app', q{SELECT idem.checkpoint(token, 'charged', '{"a": 1}')
	FROM idem.claim('payments', 'half', tenant => 'leaver', lease => '1 hour')}), '', 'the tenant begins an operation');
is(as('admin', q{SELECT idem.alter_scope('payments', wait => '0'); SELECT idem.forget_tenant('payments', 'leaver')}),
	'ID001', 'its lease is not ended by a deletion');
is(as('admin', q{SELECT idem.revoke('payments', 'half', 'leaver'), idem.erase_tenant('payments', 'leaver')}), '55000',
	'nor are its recovery points lost');
is(as('admin', q{SELECT idem.revoke('payments', 'half', 'leaver'), idem.forget_tenant('payments', 'leaver', true)}),
	't|1', 'unless that is forced');
is(as('admin', q{SELECT idem.erase_tenant(NULL, 'leaver')}), '42501', 'a tenant is erased in all scopes');
is(as('installer', q{SELECT idem.erase_tenant(NULL, 'leaver')}), '0', 'by the owner of the schema alone');

# Above READ COMMITTED, a lock on a table does not show what it has waited for.
ask(q{SELECT idem.create_scope('levels')}, 'first');
for my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	for my $call (q{alter_scope('levels', tenant_from => 'role')}, q{drop_scope('levels')}, q{erase_tenant(NULL, 't')},
		q{forget_tenant('levels', 't')}, q{erase_tenant('levels', 't')}, 'rotate_secret()')
	{
		my $function = $call =~ s/\(.*//r;
		like(($node->psql('first', "BEGIN ISOLATION LEVEL $level; SELECT idem.$call"))[2],
			qr/ERROR:  cannot execute idem\.$function\(\) in $level\n.*BEGIN ISOLATION LEVEL READ COMMITTED\.$/ms,
			"$level: idem.$call is refused");
	}
	is(ask(qq{BEGIN ISOLATION LEVEL $level; SELECT idem.create_scope('new'), idem.alter_scope('new', ttl => '1 day'),
		idem.alter_scope('levels', tenant_from => 'role', force => true), idem.drop_scope('new', true); ROLLBACK},
		'first'), '|||', "$level: scopes are created, altered and, by force, dropped");
}
ask(q{SELECT idem.drop_scope('levels')}, 'first');

# As at providers: the role that installs idem cannot log in, and roles of requests have a timeout.
ask(q{CREATE DATABASE provider; CREATE ROLE idem_owner NOLOGIN; GRANT idem_owner TO installer;
	GRANT CREATE ON DATABASE provider TO idem_owner;
	CREATE ROLE authenticator LOGIN NOINHERIT; CREATE ROLE anon; GRANT anon TO authenticator;
	ALTER ROLE authenticator SET statement_timeout = '3s'});
($done, $err) = run_file($flat, 'provider', 'idem_owner');
ok($done, 'a role without LOGIN owns what another installs for it') or diag $err;
ask(q{GRANT anon TO idem_owner; SET ROLE idem_owner;
	SELECT idem.create_scope('requests', owner => 'anon', wait => '1 minute')}, 'provider');
{
	my $request = sub { my ($sql) = @_; my (undef, $out, $error) = $node->psql('provider', "\\set VERBOSITY sqlstate\n"
		. "SET ROLE anon; $sql", extra_params => [ '-U', 'authenticator' ]); return $error =~ /ERROR:\s+(\w{5})/ ? $1
	: $out; };
	is($request->("SELECT idem.once('requests', 'message-1'), idem.once('requests', 'message-1')"), 't|f',
		'and requests use it');
	my $busy = $node->background_psql('provider');
	$busy->query_safe("BEGIN; SELECT FROM idem.claim('requests', 'order-1')");
	is($request->("SELECT outcome FROM idem.claim('requests', 'order-1')"), 'ID001',
		'a wait ends before their timeout');
	is($request->("SET statement_timeout = '8s'; SELECT outcome FROM idem.claim('requests', 'order-1')"), 'ID001',
		'also where it is 8 seconds');
	# This role sees of other roles' sessions no times.
	my (undef, undef, $fields) = $node->psql('provider', "\\set VERBOSITY verbose\nSET ROLE anon;
		SELECT idem.claim('requests', 'order-1', wait => '0')");
	like($fields, qr/ID001: (?!.*COLUMN NAME).*DATATYPE NAME:  \d/s, 'a field that is not known is missing');
	$busy->quit;
}

# Leased tokens -----------------------------------------------------------------------------------

# A token finds the record by a number of its own: keys cannot be chosen so that two records share one.
is(as('app', q{SELECT count(DISTINCT left(token, 17)) FROM generate_series(1, 3) i,
	LATERAL (SELECT token FROM idem.claim('payments', 'numbered', lease => '1 hour', tenant => 't' || i)) c}), '3',
	'leased tokens have numbers');
is(ask(q{BEGIN; SET ROLE app; SELECT token AS a FROM idem.claim('payments', 'again', lease => '1 hour') \gset
	ROLLBACK; BEGIN; SET ROLE app; SELECT token AS b FROM idem.claim('payments', 'again', lease => '1 hour') \gset
	ROLLBACK; SELECT left(:'a', 17) <> left(:'b', 17)}, 'first'), 't',
	'another claim of the same key has another number');

# Across the change to or from daylight saving time, at one of these distances, an hour is an hour.
ask(q{SELECT idem.create_scope('far', ttl => '30 minutes', owner => 'app')}, 'first');
is(as('app', qq{SET timezone = 'Europe/Berlin';
	SELECT token AS t FROM idem.claim('far', 'k$_', lease => '$_ days') \\gset
	SELECT idem.complete(:'t', '1'); SELECT expires_at - clock_timestamp() BETWEEN '29 minutes' AND '30 minutes'
	FROM idem.lookup('far', 'k$_')}) =~ s/.*\n//sr, 't', "a lease of $_ days moves no expiry")
  for 150, 300;

# Answers from a table ------------------------------------------------------------------------------

ask(q{CREATE TABLE public.document AS SELECT to_jsonb(repeat('x', 1000000)) AS answer;
	GRANT SELECT ON public.document TO app}, 'first');
is(as('app', q{SELECT idem.complete(token, answer) FROM public.document, idem.claim('payments', 'compressed')}),
	'54000', 'the size of an answer is that before compression');

# The purge ---------------------------------------------------------------------------------------

ask(q{SELECT idem.create_scope('short', ttl => '1 ms', owner => 'app'), idem.create_scope('kept', answer_ttl => '1 ms',
	owner => 'app'), idem.create_scope('gone', owner => 'app');
	SELECT count(*) FROM idem.once_each('short', ARRAY(SELECT 'k' || i FROM generate_series(1, 3000) i));
	SELECT count(idem.complete(token, '1')) FROM generate_series(1, 30) i, idem.claim('kept', 'k' || i);
	SELECT count(idem.once('gone', 'k' || i)) FROM generate_series(1, 30) i;
	SELECT idem.drop_scope('gone')}, 'first');
my $holder = $node->background_psql('first', on_error_stop => 1);
$holder->query_safe(q{BEGIN; SET ROLE app; SELECT outcome FROM idem.try_claim('short', 'k1')});
is(as('admin', 'SELECT idem.purge(1000)'), '1000', 'a purge deletes at most so many records');
is(as('admin', 'SELECT idem.purge()'), '2059',
	'the next one continues, removes old answers and what is left of a scope, and passes over a row that is claimed');
is(as('admin', 'SELECT idem.purge()'), '0', 'then nothing is left to purge');
$holder->query_safe(q{ROLLBACK});
$holder->quit;
is(as('admin', 'SELECT idem.purge()'), '1', 'but the row that was claimed');
ask('VACUUM idem.record', 'first');
cmp_ok(ask(q{SELECT pg_relation_size('idem.record')}, 'first'), '>', 100000,
	'VACUUM keeps the pages, so that plans go on to use the index');
ask(q{SELECT idem.create_scope('short', ttl => '1 ms');
	SELECT count(*) FROM idem.once_each('short', ARRAY(SELECT 'k' || i FROM generate_series(1, 3000) i))}, 'second');
is(ask(q{SELECT idem.purge(), count(*) FROM idem.record}, 'second'), '3000|3000', 'a purge empties the table');
ask('VACUUM ANALYZE idem.record', 'second');
my $scans = q{SELECT seq_scan FROM pg_stat_user_tables WHERE relid = 'idem.record'::regclass};
my $scanned = ask($scans, 'second');
ask(q{SELECT idem.create_scope('after');
	SELECT count(idem.complete(token, '1')) FROM generate_series(1, 20) i, idem.claim('after', 'k' || i);
	SELECT count(idem.complete(token, '1'))
	FROM generate_series(1, 3) i, idem.claim('after', 'leased ' || i, lease => '1 hour') c, idem.renew(c.token);
	SELECT count(idem.claim('after', 'k' || i)), count(idem.lookup('after', 'k' || i)),
		count(idem.lookup('after', 'new')) FROM generate_series(1, 5) i;
	SELECT idem.once('after', 'k'), idem.cancel('after', 'c'); SELECT * FROM idem.once_each('after', '{a,b}'::text[]);
	SELECT pg_stat_force_next_flush()}, 'second');
is(ask($scans, 'second'), $scanned, 'afterwards, no call reads the whole table');
# The packages pass the time that they wait.
my $slow = q{(SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions WHERE funcname = 'claim_slowly')};
is(ask(qq{BEGIN; SET LOCAL track_functions = 'all';
	SELECT outcome, $slow, idem.complete(token, '1') FROM idem.try_claim('after', 'waits', wait => '2 s');
	SELECT outcome, response, $slow FROM idem.try_claim('after', 'waits', wait => '0'); ROLLBACK}, 'second'),
	"claimed|0|1\ncompleted|1|0", 'a claim that waits takes the short way, and its replay');
for my $wrong ("ttl => '0'", "lease => '0'", "wait => '-1 s'", "wait => '365001 days'")
{
	is(as('admin', "SELECT idem.try_claim('after', 'k1', $wrong)", 'second'), '22023',
		"a replay with $wrong is refused");
}
is(ask(q{SELECT string_agg(DISTINCT scope || ' ' || redacted, ', ') FROM idem.records
	WHERE scope IN ('short', 'kept', 'gone')}, 'first'), 'kept true', 'records whose answers were removed stay');
# To look at 240 expired records takes 7.2 seconds here: what a purge has done so far outlives a shorter timeout.
ask(q{INSERT INTO idem.record (scope, attempt, created, expires, state, tenant, key, body)
	SELECT 1, 1, now(), now() + CASE i % 20 WHEN 0 THEN interval '-1 s' ELSE '1 hour' END, 'c', 'slow', i,
		decode(repeat('00', 1900), 'hex')
	FROM generate_series(1, 4800) i;
	ALTER FUNCTION idem_internal.is_own RENAME TO is_own_at_last;
	CREATE FUNCTION idem_internal.is_own(xmin xid) RETURNS boolean LANGUAGE plpgsql
	AS 'BEGIN PERFORM pg_sleep(0.03); RETURN false; END'}, 'second');
my @purged = map { as('installer', q{SET statement_timeout = '6 s'; SELECT idem.purge()}, 'second') } 1 .. 5;
is("@purged" =~ /57014/ ? "@purged" : eval(join '+', @purged), 240,
	'a purge ends before statement_timeout would undo it');
ask(q{DROP FUNCTION idem_internal.is_own; ALTER FUNCTION idem_internal.is_own_at_last RENAME TO is_own;
	DELETE FROM idem.record WHERE tenant = 'slow'}, 'second');
is(as('app', 'SELECT idem.purge()'), '42501', 'other roles do not purge');
is(ask(q{SELECT string_agg(check_name || ': ' || detail, E'\n') FROM idem.health() WHERE status = 'fail'
	AND check_name <> 'autovacuum'}, 'first'), '', 'health() finds nothing wrong');
ask('ALTER TABLE idem.record DISABLE TRIGGER claim_incomplete', 'first');
is(ask(q{SELECT status FROM idem.health() WHERE check_name = 'triggers'}, 'first'), 'fail',
	'but a trigger that is missing');
is(ask(q{CREATE TEMP TABLE kept AS TABLE idem.secret; DELETE FROM idem.secret;
	SELECT status FROM idem.health() WHERE check_name = 'secrets'; SET ROLE app;
	SELECT DISTINCT status FROM idem.health() WHERE check_name = 'owners';
	SELECT count(*) FROM idem.overview WHERE scope <> ALL (SELECT name FROM idem.scopes); RESET ROLE;
	DO $$ BEGIN PERFORM idem.rotate_secret(); EXCEPTION WHEN object_not_in_prerequisite_state THEN END $$;
	INSERT INTO idem.secret SELECT * FROM kept ORDER BY id DESC; SELECT DISTINCT secret_id FROM idem.scope}, 'first'),
	"fail\nok\n0\n1", 'and secrets that are missing, without showing a role the scopes of others');
ask('ALTER TABLE idem.record ENABLE ALWAYS TRIGGER claim_incomplete', 'first');

# In a session of a replica, too, a new scope gets the newest secret, and a new secret goes to all scopes.
# Where the copy is missing, the long way finds the secret.
ask(q{SET session_replication_role = replica; SELECT idem.create_scope('of a replica'), idem.rotate_secret()}, 'first');
is(ask('SELECT DISTINCT secret_id = (SELECT max(id) FROM idem.secret) FROM idem.scope', 'first'), 't',
	'in a session of a replica, a new secret goes to all scopes');
is(ask(q{UPDATE idem.scope SET secret_id = NULL, secret = NULL WHERE name = 'of a replica';
	SELECT n, idem.once('of a replica', 'k', '{"a": 1}') FROM generate_series(1, 2) n}, 'first'), "1|t\n2|f",
	'without its copy of the secret, a scope still recognizes a retry');
ask(q{SELECT idem.drop_scope('of a replica')}, 'first');
ask(q{CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'}, 'first');
my $key = 'ALTER TABLE idem.record DROP CONSTRAINT record_pkey';
my %breaks = (
	$key => 'record has no constraint record_pkey',
	"$key, ADD CONSTRAINT record_pkey PRIMARY KEY (scope, tenant, key, created)" => 'checked at once',
	"$key, ADD CONSTRAINT record_pkey PRIMARY KEY (scope, tenant, key) DEFERRABLE" => 'checked at once',
	"$key, ADD CONSTRAINT record_pkey UNIQUE (scope, tenant, key), ADD CONSTRAINT p PRIMARY KEY (scope, key, tenant)"
	  => 'run twice',
	'ALTER TABLE idem.watermark RENAME CONSTRAINT watermark_pkey TO renamed' => 'watermark_pkey',
	'ALTER TABLE idem.record SET UNLOGGED' => 'unlogged',
	'ALTER TABLE idem.watermark FORCE ROW LEVEL SECURITY' => 'security',
	'GRANT UPDATE (key), SELECT ON idem.record TO app' => 'Role app may change',
	'GRANT INSERT ON idem.watermark TO PUBLIC' => 'Every role may change',
	'CREATE RULE "50% off" AS ON INSERT TO idem.record DO INSTEAD NOTHING' => '50% off',
	'CREATE TRIGGER "keep%s" BEFORE INSERT ON idem.record FOR EACH ROW EXECUTE FUNCTION public.keep()' => 'keep%s');
for my $statement (sort keys %breaks)
{
	ask($statement, 'first');
	my $found = ask(q{SELECT detail || E'\n' || hint FROM idem.health() WHERE check_name IN ('record tables', 'indexes')
		AND status = 'fail'}, 'first');
	like($found, qr/\Q$breaks{$statement}\E.*\n[^\n]*\z/, "health() finds: $statement");
	ask($_, 'first') for split / Then: /, $found =~ s/.*\n(Of.*?: )?//r;
	is(ask(q{SELECT DISTINCT status FROM idem.health() WHERE check_name IN ('record tables', 'indexes')}, 'first'),
		'ok', 'and its hint cures it');
}

# A setting that a transaction has set is '' after it.
is(ask(q{BEGIN; SET LOCAL idem.purge_naptime = '5 s'; SET LOCAL idem.limited_tenants = 5;
	SET LOCAL idem.counted_scopes = 5; COMMIT; SELECT count(*) > 0 FROM idem.health()}, 'first'),
	't', 'health() ignores the settings of the extension');

# As pg_repack (t/repack.pl) and TRUNCATE do, a transaction writes a table anew: no snapshot that is
# older sees its rows.
for my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	ask(q{SELECT idem.once('payments', 'rewritten'), idem.advance('payments', 'rewritten', 1)}, 'first');
	my $session = $node->background_psql('first', on_error_stop => 0);
	$session->query(qq{\\set VERBOSITY sqlstate\nBEGIN ISOLATION LEVEL $level; SELECT 1});
	ask("BEGIN; CREATE TEMP TABLE kept AS TABLE idem.$_; TRUNCATE idem.$_; INSERT INTO idem.$_ TABLE kept; COMMIT",
		'first') for qw(record watermark);
	for my $call (q{state FROM idem.lookup('payments', 'rewritten')}, q{idem.once('payments', 'rewritten')},
		q{idem.once('payments', 'new')}, q{idem.advance('payments', 'rewritten', 1)})
	{
		$session->{stderr} = '';
		$session->query("SAVEPOINT s; SELECT $call; ROLLBACK TO s");
		like($session->{stderr}, qr/ERROR:\s+40001/,
			"$level, with a snapshot that is older than the file of a table: $call");
	}
	$session->{stderr} = '';
	$session->query('COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ');
	is($session->query(q{SELECT state FROM idem.lookup('payments', 'rewritten'); COMMIT}), 'completed',
		'and a retry is answered');
	$session->quit;
}

# Dump and restore, and a standby -----------------------------------------------------------------

ask(q{SET ROLE app; SELECT idem.complete(token, '{"n": 1}', 201)
	FROM idem.claim('payments', 'dumped', '{"amount": 1.50, "öl": ["ü"]}', 'a')}, 'first');
my $child = q{BEGIN; SET ROLE app; SELECT idem.child_key(token, 'step') FROM idem.claim('payments', 'parent');
	ROLLBACK};
my $child_key = ask($child, 'first');
my $replay = q{SET ROLE app;
	SELECT outcome, response, status FROM (VALUES (1, '{"amount": 1.5, "öl": ["ü"]}'::jsonb),
	(2, '{"amount": 2}')) v (n, r), idem.try_claim('payments', 'dumped', r, 'a') ORDER BY n};
my $answers = qq(completed|{"n": 1}|201\nconflict||);
is(ask($replay, 'first'), $answers, 'a retry is answered, and another request is a conflict');
# A dump has a dropped owner as a number, which on another server may be another role's; and a renamed one.
ask(q{CREATE ROLE carol; CREATE ROLE dave; CREATE ROLE erin; SELECT idem.create_scope('orphan', owner => 'carol'),
	idem.create_scope('renamed', owner => 'dave'), idem.once('orphan', 'k')}, 'first');
ask(q{ALTER ROLE dave RENAME TO frank}, 'first');
my $changing = $node->background_psql('first', on_error_stop => 1);
$changing->query_safe(q{BEGIN; SELECT idem.alter_scope('renamed', ttl => '1 day')});
is(ask(q{SET lock_timeout = '1 s'; SELECT count(*) FROM idem.purge()}, 'first'), '1',
	'a purge does not wait for a change of a scope to store the new name of an owner');
$changing->query_safe('ROLLBACK');
$changing->quit;
ask(q{SELECT 1 FROM idem.purge()}, 'first');
my ($carol, $erin) = map { ask("SELECT '$_'::regrole::oid") } qw(carol erin);
ask('DROP ROLE carol');
my $dump = $node->backup_dir . '/managed.sql';
mkdir $node->backup_dir;
$node->command_ok([ 'pg_dump', '-f', $dump, 'first' ], 'pg_dump');
my $dumped = slurp_file($dump);
is($dumped =~ s/^\d+\torphan\t\K$carol\t/$erin\t/gm, 1, 'a dump has the number of a dropped owner');
unlink $dump;
append_to_file($dump, $dumped);
ask('CREATE DATABASE restored');
($done, $err) = run_file($dump, 'restored');
ok($done, 'the dump is restored') or diag $err;
is(as('erin', q{SELECT state FROM idem.lookup('orphan', 'k')}, 'restored'), '42501',
	'the role that has the number on another server does not get the scope');
my $owners = q{SET search_path = pg_catalog; SELECT name || ' ' || owner FROM idem.scopes WHERE owner::text <> 'app'
	AND name IN ('orphan', 'renamed') ORDER BY 1};
my $health = q{SELECT string_agg(scope || ' ' || status, ', ') FROM idem.health() WHERE check_name = 'owners'};
is(ask("$owners; $health", 'restored'), "orphan -\nrenamed frank\norphan fail",
	'which has no owner then, as health() says, and that of a renamed role has this one');
is(ask("SELECT 1 FROM idem.purge(); $owners", 'restored'), "1\norphan -\nrenamed frank", 'nor is it given by a purge');
is(ask("SELECT idem.alter_scope('orphan', owner => 'erin'), idem.alter_scope('renamed', ttl => '1 day'); $owners;
	$health", 'restored'), "|\norphan erin\nrenamed frank\n", 'it can be given to a role');
is(as('frank', q{SELECT idem.once('renamed', 'k')}), 't', 'where its owner was renamed, the role has the scope');
ask(q{ALTER ROLE frank RENAME TO dave});
is(as('dave', q{SELECT idem.once('renamed', 'k')}), 'f', 'and keeps it before a purge');
ask(q{SELECT idem.alter_scope('renamed', ttl => '1 day')}, 'first');
is(as('dave', q{SELECT idem.once('renamed', 'k')}), 'f', 'and through a change of its rules');
ask(q{SELECT idem.drop_scope('orphan'), idem.drop_scope('renamed')}, 'first');
is(ask($replay, 'restored'), $answers, 'restored records answer retries');
is(ask($child, 'restored'), $child_key, 'child keys are the same');
is(ask(q{SELECT idem.create_scope('new'); SELECT id > (SELECT max(id) FROM idem.dropped_scope) FROM idem.scope
	WHERE name = 'new'}, 'restored'), "\nt", 'no id of a scope is used again');
is(as('stranger', "SELECT idem_internal.scope_ddl($victim, '$proof', 'payments')", 'restored'), '42501',
	'a restored database checks proofs, too');
ask('CREATE DATABASE uncommented');
$node->command_ok([ 'pg_dump', '--no-comments', '-f', $dump, 'first' ], 'pg_dump without comments');
run_file($dump, 'uncommented');
is(sqlstate($node, "SELECT idem.create_scope('s', $_)", 'uncommented'), '22023',
	"without comments, settings are checked: $_")
  for q{weak_keys => 'Reject'}, q{store_request => 'banana'}, q{tenant_from => 'Role'};

# The schema alone, as for a server of tests: the first scope makes secrets of this database.
ask('CREATE DATABASE schema');
$node->command_ok([ 'pg_dump', '--schema-only', '-f', $dump, 'first' ], 'pg_dump of the schema alone');
run_file($dump, 'schema');
like(($node->psql('schema', q{SELECT idem.once('new', 'k')}))[2],
	qr/no secrets in this database.*nor records, create a scope/s, 'without data, there are no secrets');
is(ask(q{SET ROLE installer; SELECT idem.create_scope('new'); SELECT idem.once('new', 'k'), idem.once('new', 'k');
	SELECT idem_internal.create_secrets(); SELECT count(*) FROM idem.health() WHERE status = 'fail'}, 'schema'),
	"\nt|f\n\n0", 'until a scope is created');
isnt(ask('SELECT secret FROM idem.secret WHERE id = 0', 'schema'), ask('SELECT secret FROM idem.secret WHERE id = 0',
		'first'), 'which makes other ones');
is(as('stranger', "SELECT idem_internal.create_secrets(); RESET ROLE; SELECT count(*) FROM idem.secret",
		ask(q{CREATE TABLE kept AS TABLE idem.secret; DELETE FROM idem.secret; SELECT 'schema'}, 'schema')), "\n0",
	'but no call makes any beside scopes');
ask('INSERT INTO idem.secret TABLE kept', 'schema');

# Data alone, into an installation, which has secrets of its own: with these, child keys would be others.
ask('CREATE DATABASE data');
install('data');
$node->command_ok([ 'pg_dump', '--data-only', '-t', 'idem.*', '-f', "$dump.data", 'first' ], 'pg_dump of data alone');
($done, $err) = run_file("$dump.data", 'data');
like($err, qr/scope "[^"]+" comes from a database with other secrets.*DELETE FROM idem\.secret WHERE NOT EXISTS/s,
	'no scope comes to secrets of another database');
ask('DELETE FROM idem.secret WHERE NOT EXISTS (SELECT FROM idem.scope);
	TRUNCATE idem.record, idem.watermark, idem.dropped_scope', 'data');
($done, $err) = run_file("$dump.data", 'data');
ok($done, 'but to none, as the hint says') or diag $err;
is(ask($replay, 'data'), $answers, 'where records answer retries');
is(ask($child, 'data'), $child_key, 'and child keys are the same');
like(ask(q{SET plpgsql.extra_errors = 'all'; SELECT idem.purge()}, 'data'), qr/^\d$/,
	'and a purge begins at one of two places');

# Without privileges, every role may execute what only administrators may, once it gets USAGE.
my $privileges = q{SELECT string_agg(concat_ws(' ', o.name, a.privilege_type), E'\n' ORDER BY o.name, a.privilege_type)
	FROM (SELECT oid::regprocedure::text, coalesce(proacl, acldefault('f', proowner)), pronamespace FROM pg_proc
	UNION ALL SELECT oid::regclass::text, relacl, relnamespace FROM pg_class
	UNION ALL SELECT nspname, nspacl, oid FROM pg_namespace) AS o (name, acl, schema), aclexplode(o.acl) AS a
	WHERE o.schema IN ('idem'::regnamespace, 'idem_internal'::regnamespace) AND a.grantee = 0};
ask('CREATE DATABASE bare');
$node->command_ok([ 'pg_dump', '--no-privileges', '-f', $dump, 'first' ], 'pg_dump without privileges');
run_file($dump, 'bare');
my $schema = q{SELECT string_agg(status || ': ' || detail || coalesce(' ' || hint, ''), E'\n') FROM idem.health()
	WHERE check_name = 'schema'};
like(ask($schema, 'bare'),
	qr/^fail: PUBLIC lacks \d\d privileges .* roles have \d\d with .* SELECT idem_internal\.restore_privileges\(\)$/,
	'health() finds a restore without privileges');
ask('GRANT USAGE ON SCHEMA idem, idem_internal TO PUBLIC', 'bare');
like(as('stranger', 'SELECT idem.purge()', 'bare'), qr/^\d$/, 'after which every role is an administrator');
ask(q{SET ROLE installer; SELECT idem_internal.restore_privileges()}, 'bare');
is(as('stranger', 'SELECT idem.purge()', 'bare'), '42501', 'until its hint is followed');
is(ask($privileges, 'bare'), ask($privileges, 'first'), 'which gives PUBLIC what an installation gives it');
is(ask(q{REVOKE USAGE ON SCHEMA idem FROM PUBLIC;
	SELECT count(*) FROM idem.health() WHERE check_name = 'schema' AND status = 'fail';
	GRANT USAGE ON SCHEMA idem TO PUBLIC}, 'bare'), '0', 'health() does not mind what is taken from PUBLIC');
is(ask($replay, 'bare'), $answers, 'and calls work');

# A role that executes the owner's parts can have them compiled with types of its own, whose checks run as the owner.
ask('CREATE DATABASE generous');
ask(q{ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO erin; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO erin},
	'generous');
$node->command_ok([ 'pg_dump', '-f', "$dump.full", 'first' ], 'pg_dump with privileges');
run_file("$dump.full", 'generous');
like(ask($schema, 'generous'), qr/^fail: PUBLIC lacks 0 .* roles have \d\d with which/,
	'health() finds what the default privileges of a restore have given to one role');
ask(q{CREATE SCHEMA erin AUTHORIZATION erin; GRANT app TO erin}, 'generous');
my $compile = q{SET ROLE erin; SET search_path = erin, pg_catalog;
	SELECT idem_internal.checked_tenant('a' COLLATE pg_catalog."C")};
my $intrusion = q{RESET search_path; SELECT claimed FROM idem.claim('payments', 'compiled', lease => '1 minute');
	SELECT DISTINCT ran_as FROM erin.run};
ask(q{SET ROLE erin; CREATE TABLE erin.run (ran_as name); GRANT ALL ON erin.run TO PUBLIC;
	GRANT USAGE ON SCHEMA erin TO PUBLIC; CREATE FUNCTION erin.note(pg_catalog.text) RETURNS boolean LANGUAGE plpgsql
	AS $$ BEGIN IF current_user <> 'erin' THEN INSERT INTO erin.run VALUES (current_user); END IF; RETURN true; END $$;
	CREATE DOMAIN erin.text AS pg_catalog.text CHECK (erin.note(VALUE))}, 'generous');
is(ask("BEGIN; $compile; $intrusion; ROLLBACK", 'generous'), "a\nt\ninstaller", 'with which it is the owner');
ask(q{SET ROLE installer; SELECT idem_internal.restore_privileges()}, 'generous');
is(sqlstate($node, $compile, 'generous'), '42501', 'the hint takes it back');
like(ask($schema, 'generous'), qr/^ok/, 'and cures it');
ask('REVOKE app FROM erin');
ask('GRANT CREATE ON DATABASE bare TO erin');
ask("SET ROLE erin; CREATE EXTENSION citext SCHEMA idem; CREATE EXTENSION btree_gist SCHEMA idem_internal", 'bare');
like(ask($schema, 'bare'), qr/^ok/, 'extensions that a role has put into its schemas do not look like idem');
for my $part ('SCHEMA idem', 'SCHEMA idem_internal', 'FUNCTION idem.current_key()', 'FUNCTION idem.edition()',
	'VIEW idem.scopes', 'TABLE idem.purge_progress')
{
	ask("ALTER $part OWNER TO erin", 'bare');
	my $found = ask($schema, 'bare');
	like($found, qr/^fail: \u\L\Q$part\E belongs to role erin, and the rest of idem to role installer\. .*/,
		"health() finds that another role owns $part");
	is($found =~ /If it is not idem's, drop it/, scalar $part !~ /SCHEMA/, 'whose code may be that of the role');
	ask($found =~ s/.*(?=\bALTER )//r, 'bare');
	like(ask($schema, 'bare'), qr/^ok/, 'and its hint cures it');
}

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('managed_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
is($standby->safe_psql('first', q{SET ROLE app; SELECT state, response FROM idem.lookup('payments', 'dumped', 'a')}),
	'completed|{"n": 1}', 'a standby looks keys up');
is(sqlstate($standby, q{SET ROLE app; SELECT idem.claim('payments', 'dumped', '{"amount": 1.5, "öl": ["ü"]}', 'a')},
		'first'), '25006', 'and refuses claims');
$standby->promote;
is($standby->safe_psql('first', $replay), $answers, 'promoted, it answers retries');
$standby->stop;

# Uninstalling
ask('DROP SCHEMA idem, idem_internal CASCADE', 'second');
install('second', 'installer');

# Update to a next version ------------------------------------------------------------------------

# A made-up next version has one more column of the records and one more function. Its update script
# begins as docs/managed.md says.
my ($rule) = slurp_file('docs/managed.md') =~ /^```sql\n(BEGIN .*?)^```/ms;
my $updates = PostgreSQL::Test::Utils::tempdir;
my $version = ask('SELECT idem_internal.version()', 'first');
my $added = "ALTER TABLE idem.record ADD COLUMN note text;\nUPDATE idem.record SET note = 'updated';\n"
	. "CREATE FUNCTION idem.note() RETURNS text LANGUAGE sql RETURN 'noted';\n";
append_to_file("$updates/update.sql", "\\set ON_ERROR_STOP on\n" . ($rule =~ s/A\.B\.C/$version/gr) . $added
	  . "CREATE OR REPLACE FUNCTION idem_internal.version() RETURNS text
		LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN '99.0.0';\nCOMMIT;\n");
my $claiming = $node->background_psql('first', on_error_stop => 1);
$claiming->query_safe(q{SET ROLE app; BEGIN; SELECT token AS t FROM idem.claim('payments', 'meanwhile') \gset});
ask(q{ALTER DATABASE first SET default_transaction_isolation = 'repeatable read';
	CREATE FUNCTION public.set_config(text, name, boolean) RETURNS text LANGUAGE sql AS 'SELECT (1 / 0)::text'},
	'first');
append_to_file("$updates/impatient.sql",
	"SET statement_timeout = '10s';\n" . slurp_file("$updates/update.sql") =~ s/5s/100ms/r);
(undef, $err) = run_file("$updates/impatient.sql", 'first');
like($err, qr/canceling statement due to lock timeout/, 'an update does not make others wait for a long transaction');
my @said = ('', '');
my @updates = map { IPC::Run::start([ qw(psql -Xq -f), "$updates/update.sql", '-d',
			$node->connstr('first') . " application_name='update'" ], '2>', \$_) } @said;
$node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name = 'update'
	AND wait_event_type = 'Lock'}) or die "the updates do not wait: @said";
$claiming->query_safe(q{SELECT idem.complete(:'t', '"meanwhile"'); COMMIT});
$_->finish for @updates;
like(join('', sort @said), qr/\A[^\n]*ERROR:  version 99\.0\.0 of idem is installed\n(?!.*ERROR)/s,
	'an update waits for the transactions that hold claims, and a second one does nothing');
ask('ALTER DATABASE first RESET default_transaction_isolation; DROP FUNCTION public.set_config', 'first');
is(ask(q{SELECT note FROM idem.record WHERE key = 'meanwhile'}, 'first'), 'updated',
	'and sees what they have committed, whatever the isolation level of the database');
is($claiming->query_safe(q{SELECT response FROM idem.claim('payments', 'meanwhile')}), '"meanwhile"',
	'a session that was open goes on');
$claiming->quit;
is(ask($replay, 'first'), $answers, 'after the update, retries are answered');
is(ask('SELECT idem.note(), idem_internal.version()', 'first'), 'noted|99.0.0', 'and the next version is there');
is(ask(q{SELECT proowner::regrole FROM pg_proc WHERE oid = 'idem.note'::regproc}, 'first'), 'installer',
	'which belongs to the owner of idem, whatever role has run the script');
(undef, $err) = run_file("$updates/update.sql", 'first');
like($err, qr/version 99\.0\.0 of idem/, 'an update from another version is refused');

# Moving to the extension -------------------------------------------------------------------------

my ($clients, $operations) = (8, 4000);
install('postgres');
ask(<<'SQL');
SELECT idem.create_scope('payments'), idem.create_scope('listed', request_exclude => '{sent_at}'),
  idem.create_scope('dropped'), idem.create_scope('of roles', tenant_from => 'role'),
  idem.create_scope('given up'), idem.once('given up', 'k');
SELECT idem.alter_scope('given up', tenant_from => 'role', force => true);
SELECT idem.drop_scope('dropped');
SELECT idem.rotate_secret();
CREATE TABLE payment (id bigserial PRIMARY KEY, key text DEFAULT idem.current_key(), amount numeric);
CREATE TRIGGER claimed BEFORE INSERT ON payment FOR EACH STATEMENT EXECUTE FUNCTION idem.require_claim('payments');
CREATE FUNCTION pay(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  -- However fast the storm and however slow the move: most of the storm comes after it.
  PERFORM pg_sleep(0.1) FROM payment_id_seq
  WHERE last_value > 1000 AND NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'idem');
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(amount) VALUES ((request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA idem TO admin;
GRANT EXECUTE ON FUNCTION idem.forget, idem.problem(text, text) TO admin WITH GRANT OPTION;
SELECT idem.complete(token, '"uuid"') FROM idem.claim('payments', '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d', '{"n": 1.0}');
SELECT idem.complete(token, '"ulid"') FROM idem.claim('payments', '01J2WF73JYFMN9P71QB8T6R9WD',
  '{"n": [1.50, "1.50", {"ö": -2.0}]}', 'ü');
SELECT idem.fail(token, '{"sqlstate": "P0001", "message": "declined"}', 402)
  FROM idem.claim('payments', 'failed', '{"n": 1}');
SELECT idem.complete(token, '"listed"') FROM idem.claim('listed', 'k', '{"n": 1, "sent_at": 1}');
SELECT idem.alter_scope('listed', request_exclude => '{other}');
SELECT idem.complete(token, '"later"') FROM idem.claim('listed', 'l', '{"n": 1, "other": 1}');
SELECT (idem.cancel('payments', 'cancelled')).state, idem.once('payments', 'unbound'), idem.once('of roles', 'k'),
  idem.advance('payments', 'source', 7);
SELECT token AS t FROM idem.claim('payments', 'leased', '{"n": 1}', lease => '1 hour') \gset
SELECT idem.checkpoint(:'t', 'charged', '{"charge": 1}');
SELECT token AS t FROM idem.claim('payments', 'released', '{"n": 1}', lease => '1 hour') \gset
SELECT idem.release(:'t', '1 ms', '{"message": "later"}');
SQL
my $parent = q{BEGIN; SELECT idem.child_key(token, 'step') FROM idem.claim('payments', 'parent'); ROLLBACK};
my $before = ask($parent);
ask(q{CREATE VIEW dependent AS SELECT name FROM idem.scopes});
($done, $err) = run_file('sql/managed_move.sql', 'postgres');
like($err, qr/They are: .*view public\.dependent\.$/m, 'the move names what depends on the SQL edition');
is(ask('SELECT idem.edition(), count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgrelid = $$payment$$::regclass'),
	'sql|1', 'and changes nothing');
ask('DROP VIEW dependent');

# So does what is in its schemas or on its tables, and would be dropped with them.
ask(<<'SQL');
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE INDEX extra ON idem.record (created);
CREATE TRIGGER extra AFTER INSERT ON idem.record FOR EACH ROW EXECUTE FUNCTION audit();
CREATE RULE extra AS ON DELETE TO idem.watermark DO ALSO NOTIFY gone;
CREATE POLICY extra ON idem.scope USING (true);
CREATE STATISTICS extra ON scope, tenant FROM idem.record;
ALTER TABLE idem.record ADD CONSTRAINT extra CHECK (attempt > 0), ADD note text;
ALTER TABLE idem.watermark ALTER seq SET DEFAULT 0;
CREATE TABLE idem.notes (n text);
CREATE TYPE idem_internal.kind AS ENUM ('a');
CREATE FUNCTION idem.edition(integer) RETURNS integer LANGUAGE sql RETURN $1;
CREATE FUNCTION idem_internal.extra() RETURNS integer LANGUAGE sql RETURN 1;
CREATE PUBLICATION narrow FOR TABLE idem.record (scope, tenant, key);
CREATE SUBSCRIPTION receiver CONNECTION 'dbname=none' PUBLICATION none WITH (connect = false, slot_name = NONE);
SET allow_system_table_mods = on;
INSERT INTO pg_subscription_rel SELECT oid, 'idem.record'::regclass, 'r' FROM pg_subscription;
SQL
($done, $err) = run_file('sql/managed_move.sql', 'postgres');
like($err, qr/They are: \Q$_\E\.$/m, 'the move names what is not of the SQL edition') for join ', ',
  'column note of table idem.record', 'constraint extra on table idem.record',
  'default value for column seq of table idem.watermark', 'function idem.edition(integer)',
  'function idem_internal.extra()', 'index idem.extra', 'policy extra on table idem.scope',
  'publication of table idem.record in publication narrow', 'rule extra on table idem.watermark',
  'statistics object public.extra', 'subscription receiver', 'table idem.notes', 'trigger extra on table idem.record',
  'type idem_internal.kind';
ask(<<'SQL');
DROP SUBSCRIPTION receiver;
DROP PUBLICATION narrow;
DROP FUNCTION idem.edition(integer), idem_internal.extra;
DROP TYPE idem_internal.kind;
DROP TABLE idem.notes;
ALTER TABLE idem.watermark ALTER seq DROP DEFAULT;
ALTER TABLE idem.record DROP CONSTRAINT extra, DROP note;
DROP STATISTICS extra;
DROP POLICY extra ON idem.scope;
DROP RULE extra ON idem.watermark;
DROP FUNCTION audit CASCADE;
DROP INDEX idem.extra;
SQL

# What it carries over: publications, privileges, and the defaults and guards of each partition.
ask(<<'SQL');
CREATE PUBLICATION records FOR TABLE idem.scope, idem.dropped_scope, idem.secret, idem.record, idem.watermark, payment;
CREATE PUBLICATION schemas FOR TABLES IN SCHEMA idem;
REVOKE EXECUTE ON FUNCTION idem.once FROM PUBLIC;
REVOKE USAGE ON SCHEMA idem FROM PUBLIC;
REVOKE SELECT ON idem.storage FROM PUBLIC;
GRANT USAGE ON SCHEMA idem TO app;
GRANT SELECT ON idem.record, idem.scope_id TO admin;
CREATE TABLE parted (a integer, k text DEFAULT idem.current_key()) PARTITION BY RANGE (a);
CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE part_2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
CREATE TABLE part_3 PARTITION OF parted FOR VALUES FROM (20) TO (30);
ALTER TABLE part_1 ALTER k SET DEFAULT 'import';
ALTER TABLE part_2 ALTER k DROP DEFAULT;
CREATE TRIGGER guard BEFORE INSERT ON parted FOR EACH ROW EXECUTE FUNCTION idem.require_claim('payments');
ALTER TABLE part_1 DISABLE TRIGGER guard;
ALTER TABLE ONLY part_2 ENABLE ALWAYS TRIGGER guard;
CREATE FUNCTION pay_by_path(key text) RETURNS jsonb LANGUAGE plpgsql SET search_path = idem, public AS $$
DECLARE c claim_result;
BEGIN
  c := claim('listed', key);
  RETURN CASE WHEN c.claimed THEN complete(c.token, '"paid"') ELSE c.response END;
END $$;
SQL
my $carried = <<'SQL';
SELECT pubname, tablename FROM pg_publication_tables WHERE schemaname = 'idem' ORDER BY 1, 2;
SELECT has_function_privilege('stranger', 'idem.once'::regproc, 'EXECUTE'),
  has_schema_privilege('stranger', 'idem', 'USAGE'), has_table_privilege('stranger', 'idem.storage', 'SELECT'),
  has_schema_privilege('app', 'idem', 'USAGE'), has_table_privilege('admin', 'idem.record', 'SELECT'),
  has_table_privilege('admin', 'idem.record', 'INSERT'), has_sequence_privilege('admin', 'idem.scope_id', 'SELECT'),
  has_table_privilege('stranger', 'idem.scopes', 'SELECT');
SELECT adrelid::regclass, pg_get_expr(adbin, adrelid) FROM pg_attrdef
  WHERE adrelid IN (SELECT relid FROM pg_partition_tree('parted')) ORDER BY 1;
SELECT tgrelid::regclass, tgenabled FROM pg_trigger WHERE tgname = 'guard' ORDER BY 1;
SQL
my $before_move = ask($carried);
like($before_move, qr/^f\|f\|f\|t\|t\|f\|t\|t$/m, 'privileges before the move');
my $session = $node->background_psql('postgres', on_error_stop => 0);
is($session->query(q{SELECT pay_by_path('early')}), '"paid"', 'a session reaches idem by its search_path');

# It has a superuser's rights, and runs nothing that the role that installed the SQL edition may have changed.
sub spring
{
	my ($body) = @_;
	return "CREATE OR REPLACE FUNCTION public.spring(anyelement) RETURNS anyelement LANGUAGE plpgsql IMMUTABLE
		AS 'BEGIN $body; END'";
}
ask(q{CREATE TYPE public.odd AS ENUM ('c', 'f', 'p', 'a')});
for my $trap (
	[ 'CREATE INDEX sprung ON idem.scope ((public.spring(1)))', 'DROP INDEX idem.sprung', 'index idem.sprung' ],
	[ 'CREATE STATISTICS idem.sprung ON (public.spring(id)), name FROM idem.scope', 'DROP STATISTICS idem.sprung',
		'statistics object idem.sprung' ],
	[ 'ALTER TABLE idem.dropped_scope ADD odd public.odd', 'ALTER TABLE idem.dropped_scope DROP odd',
		'column odd of table idem.dropped_scope' ],
	[ 'ALTER SEQUENCE idem.scope_id OWNED BY NONE; ALTER SEQUENCE idem.scope_id RENAME TO other_id;
		CREATE VIEW idem.scope_id AS SELECT public.spring(1::bigint) AS last_value, true AS is_called',
		'DROP VIEW idem.scope_id; ALTER SEQUENCE idem.other_id RENAME TO scope_id', 'view idem.scope_id' ],
	[ 'CREATE TABLE public.heir () INHERITS (idem.watermark)', 'DROP TABLE public.heir', 'table public.heir' ],
	[ 'ALTER TABLE idem.dropped_scope RENAME TO hidden; CREATE VIEW idem.dropped_scope AS SELECT * FROM idem.hidden',
		'DROP VIEW idem.dropped_scope; ALTER TABLE idem.hidden RENAME TO dropped_scope', 'view idem.dropped_scope' ])
{
	ask($_) for spring('RETURN $1'), $trap->[0], spring("RAISE ''sprung''");
	($done, $err) = run_file('sql/managed_move.sql', 'postgres');
	like($err, qr/the tables of the SQL edition have been changed\n.*: \Q$trap->[2]\E\.$/m,
		"the move refuses: $trap->[0]");
	unlike($err, qr/sprung\n/, 'and nothing was sprung');
	ask($trap->[1]);
}
ask(q{INSERT INTO idem.record (scope, attempt, created, expires, state, tenant, key)
	SELECT id, 1, now(), now() + '1 hour', 'c', 't''t', repeat('k', 256) FROM idem.scope WHERE name = 'listed'});
($done, $err) = run_file('sql/managed_move.sql', 'postgres');
like($err, qr/a key or tenant that the extension refuses\nDETAIL:  Scope "listed", tenant "t't", key "k{256}"/,
	'the move names a record that idem did not write');
ask($err =~ /^HINT: .*: (DELETE FROM .*)$/m);
# The extension would neither list nor complete it.
ask(q{ALTER TABLE idem.record DISABLE TRIGGER claim_incomplete; SELECT attempt FROM idem.claim('payments', 'left open');
	ALTER TABLE idem.record ENABLE ALWAYS TRIGGER claim_incomplete});
($done, $err) = run_file('sql/managed_move.sql', 'postgres');
like($err, qr/an open claim was committed\nDETAIL:  Scope "payments", tenant "", key "left open"/,
	'the move names an open claim that was committed');
ask(q{SELECT idem.forget('payments', 'left open')});
# A literal runs the checks of the domains in it when it is parsed: any owner of a table could have the
# script parse one.
ask(q{CREATE DOMAIN public.sprung_text AS text CHECK (public.spring(VALUE) IS NOT NULL);
	CREATE DOMAIN public.sprung_number AS integer CHECK (public.spring(VALUE) IS NOT NULL);
	CREATE TYPE public.pair AS (d public.sprung_text);
	CREATE TYPE public.span AS RANGE (SUBTYPE = public.sprung_number);
	CREATE TABLE public.trap (k text)});
for my $trap (
	[ q{ALTER TABLE trap ALTER k SET DEFAULT concat(idem.current_key(), ('(x)'::public.pair).d)},
		'ALTER TABLE trap ALTER k DROP DEFAULT', 'default value for column k of table public.trap' ],
	[ q{ALTER TABLE trap ALTER k SET DEFAULT concat(idem.current_key(), lower('[1,2]'::public.span))},
		'ALTER TABLE trap ALTER k DROP DEFAULT', 'default value for column k of table public.trap' ],
	[ q{CREATE TRIGGER claimed BEFORE INSERT ON trap FOR EACH ROW
		WHEN (NEW.k = ANY ('{x}'::public.sprung_text[]::text[])) EXECUTE FUNCTION idem.require_claim('payments')},
		'DROP TRIGGER claimed ON trap', 'trigger claimed on table public.trap' ],
	[ q{CREATE TRIGGER claimed BEFORE INSERT ON trap FOR EACH ROW WHEN (NEW.k <> ('{"(x)"}'::public.pair[])[1].d)
		EXECUTE FUNCTION idem.require_claim('payments')}, 'DROP TRIGGER claimed ON trap',
		'trigger claimed on table public.trap' ])
{
	ask($_) for spring('RETURN $1'), $trap->[0], spring("RAISE ''sprung''");
	($done, $err) = run_file('sql/managed_move.sql', 'postgres');
	like($err, qr/They are: \Q$trap->[2]\E\.$/m, "the move refuses: $trap->[0]");
	unlike($err, qr/sprung\n/, 'and nothing was sprung');
	ask($trap->[1]);
}
ask("CREATE OR REPLACE FUNCTION idem.edition() RETURNS text LANGUAGE sql IMMUTABLE
	AS 'SELECT public.spring(''sql''::text)'");
ask("CREATE OR REPLACE FUNCTION idem_internal.key_time(key text) RETURNS timestamptz LANGUAGE sql
	AS 'SELECT public.spring(now())'");

my $storm = Storm->new([ 'pay', $clients, $operations, 3, 0 ], [$node], retries => '42 XX');
$node->poll_query_until('postgres', 'SELECT count(*) >= 300 FROM payment') or die 'no storm';
my ($out, $attempts) = ('', 0);
do { ($done, $err, $out) = run_file('sql/managed_move.sql', 'postgres', undef,
		'SELECT count(*) FROM payment') } until $done || $err !~ /lock timeout|deadlock/ || ++$attempts == 10;
ok($done, 'in the middle of a storm, the database moves to the extension') or diag $err;
cmp_ok(($out =~ /(\d+)\s*$/)[0], '<', $operations, 'before the storm ends');
my %saw = $storm->counts;
$storm->load_answers($node);
is($saw{differing}, 0, 'no key had two answers');
is(ask('SELECT count(*), count(DISTINCT key) FROM payment'), "$operations|$operations", 'one effect per key');
is(ask('SELECT idem.edition()'), 'extension', 'the extension is installed');
is(ask(q{SELECT count(*) FROM answer WHERE pay(key, '{"amount": 10}') IS DISTINCT FROM answer}), 0,
	'a late retry of any key gets the answer that was acknowledged');
is(ask('SELECT count(*) FROM payment'), $operations, 'and has no effect');
is(ask(q{SELECT count(*) FROM answer, idem.try_claim('payments', key, '{"amount": 11}') c
	WHERE c.outcome <> 'conflict'}), 0, 'another request is a conflict');
is(ask(q{SELECT string_agg(concat_ws(' ', n, outcome, response), E'\n' ORDER BY n) FROM (VALUES
	(1, 'payments', '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d', '{"n": 1.00}'::jsonb, NULL),
	(2, 'payments', '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d', '{"n": 2}', NULL),
	(3, 'payments', '01J2WF73JYFMN9P71QB8T6R9WD', '{"n": [1.500, "1.50", {"ö": -2}]}', 'ü'),
	(4, 'payments', '01J2WF73JYFMN9P71QB8T6R9WD', '{"n": [1.5, "1.5", {"ö": -2}]}', 'ü'),
	(5, 'listed', 'k', '{"n": 1, "sent_at": 2}', NULL), (6, 'listed', 'k', '{"n": 2}', NULL),
	(7, 'listed', 'l', '{"n": 1, "other": 2}', NULL), (8, 'listed', 'l', '{"n": 1, "sent_at": 2}', NULL),
	(9, 'payments', 'cancelled', '{"x": 1}', NULL), (10, 'payments', 'unbound', NULL, NULL),
	(11, 'of roles', 'k', NULL, NULL), (12, 'payments', 'failed', '{"n": 1}', NULL),
	(13, 'payments', 'leased', '{"n": 1}', NULL), (14, 'payments', 'leased', '{"n": 2}', NULL)
	) v (n, scope, key, request, tenant), idem.try_claim(scope, key, request, tenant)}), join("\n",
	'1 completed "uuid"', '2 conflict', '3 completed "ulid"', '4 conflict',
	'5 completed "listed"', '6 conflict', '7 completed "later"', '8 conflict', '9 failed', '10 completed',
	'11 completed', '12 failed', '13 in_progress', '14 conflict'),
	'every kind of record says the same as before');
is(ask(q{SELECT key, attempt, recovery_point, last_error FROM idem.take('payments')}),
	'released|2||{"message": "later"}', 'a released operation is taken over');
is(ask(q{SELECT idem.revoke('payments', 'leased'); SELECT attempt, recovery_point, recovery_state
	FROM idem.claim('payments', 'leased', '{"n": 1}', lease => '1 minute')}),
	qq(t\n2|charged|{"charge": 1}), 'a lease is continued from its recovery point');
is(ask(q{SELECT idem.advance('payments', 'source', 7), idem.advance('payments', 'source', 8)}), 'f|t',
	'a stream goes on');
is(ask($parent), $before, 'child keys are the same');
is(ask($carried), $before_move, 'publications, privileges, and defaults and guards of partitions are the same');
$session->query(q{SELECT pay_by_path('early')});
is($session->query(q{SELECT pay_by_path('early')}), '"paid"', 'a session that was open fails at most once');
$session->quit;
is(sqlstate($node, 'INSERT INTO payment(amount) VALUES (1)'), 'ID011', 'the guard is in place');
is(ask(q{SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'payment'::regclass AND adnum = 2}),
	'idem.current_key()', 'so is the default');
is(ask(q{SELECT string_agg(has_function_privilege(r, f, p)::text, ' ')
	FROM (VALUES (1, 'admin', 'idem.forget(text,anycompatible,text,boolean)', 'EXECUTE WITH GRANT OPTION'),
	(2, 'admin', 'idem.problem(text,text)', 'EXECUTE WITH GRANT OPTION'),
	(3, 'admin', 'idem.purge(integer)', 'EXECUTE'), (4, 'admin', 'idem.purge(integer)', 'EXECUTE WITH GRANT OPTION'),
	(5, 'stranger', 'idem.purge(integer)', 'EXECUTE')) v (n, r, f, p)}), 'true true true false false',
	'and the privileges');
is(ask(q{SELECT idem.create_scope('next'); SELECT id > (SELECT max(id) FROM idem.dropped_scope) FROM idem.scope
	WHERE name = 'next'}), "\nt", 'the ids of scopes go on');
is(ask(q{SELECT string_agg(check_name || ': ' || detail, E'\n') FROM idem.health() WHERE status = 'fail'
	AND check_name <> 'autovacuum'}), '', 'health() finds nothing wrong');
is(ask(q{SELECT count(*) FROM pg_class c WHERE relnamespace = 'idem'::regnamespace AND relkind = 'r' AND NOT EXISTS (
	SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')}), 0,
	'nothing of the SQL edition is left');

# The move sees what the transactions that it waits for commit, whatever the database's isolation level.
ask('CREATE DATABASE repeatable');
install('repeatable');
ask(q{SELECT idem.create_scope('payments');
	ALTER DATABASE repeatable SET default_transaction_isolation = 'repeatable read'}, 'repeatable');
$claiming = $node->background_psql('repeatable', on_error_stop => 1);
$claiming->query_safe(q{BEGIN; SELECT token AS t FROM idem.claim('payments', 'meanwhile') \gset});
my $said = '';
my $move = IPC::Run::start([ qw(psql -Xq -f sql/managed_move.sql -d), $node->connstr('repeatable')
		. " application_name='move'" ], '2>', \$said);
$node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'move'
	AND wait_event_type = 'Lock'}) or die "the move does not wait: $said";
$claiming->query_safe(q{SELECT idem.complete(:'t', '"paid"'); COMMIT});
$claiming->quit;
$move->finish;
is(ask(q{SELECT idem.edition(), outcome, response FROM idem.try_claim('payments', 'meanwhile')}, 'repeatable'),
	'extension|completed|"paid"', 'a move in REPEATABLE READ by default loses no key');

# In Turkish, the lower case of I is not i.
SKIP:
{
	skip 'this server has no ICU', 1 if sqlstate($node, q{CREATE DATABASE turkish LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR'
		LOCALE 'C.UTF-8' ENCODING 'UTF8' TEMPLATE template0});
	install('turkish');
	is(ask(q{SELECT idem.create_scope('s');
		SELECT idem.complete(token, NULL, 200, '{"AUTHORIZATION": "Bearer", "Set-Cookie": "s", "X": "1"}')
		FROM idem.claim('s', 'k'); SELECT headers FROM idem.lookup('s', 'k')}, 'turkish') =~ s/^\n+//r,
		'{"X": "1"}', 'credentials in headers are not stored, whatever the locale');
}

# Text in a SQL_ASCII database may have any bytes. Keys, tenants and sources must be UTF-8 there, too.
ask(q{CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
install('ascii');
ask(q{SELECT idem.create_scope('s')}, 'ascii');
is(sqlstate($node, "SELECT idem.$_", 'ascii'), '22021', "in a SQL_ASCII database: $_")
  for q{claim('s', E'k\xff')}, q{claim('s', 'k', tenant => E't\xff')}, q{lookup('s', E'k\xff')},
  q{once_each('s', ARRAY[E'k\xff'])}, q{advance('s', E'k\xff', 1)};

$node->stop;
done_testing();
