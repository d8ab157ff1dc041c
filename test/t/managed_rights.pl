# The functions of the SQL edition that have the rights of its owner, called by roles that forge what
# they are given: proofs, the list of claims, names in the search_path. And SET CONSTRAINTS.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Traps;

my $node = idem_node('managed_rights', bare => 1);
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', 'sql/managed.sql' ],
	'installed');
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE alice; CREATE ROLE bob; GRANT CREATE ON DATABASE postgres TO bob;
SELECT idem.create_scope(r || '_scope', owner => r::regrole) FROM unnest('{alice,bob}'::text[]) r;
SELECT idem.complete(token, '1') FROM idem.claim('alice_scope', 'known');
SELECT FROM idem.claim('alice_scope', 'leased', lease => '1 hour');
CREATE TABLE guarded (i int); GRANT ALL ON guarded TO bob;
CREATE TABLE numbers AS SELECT number FROM idem.record WHERE key = 'leased'; GRANT ALL ON numbers TO bob;
CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH STATEMENT EXECUTE FUNCTION idem.require_claim('alice_scope');
SQL

# What bob's statements print, errors and warnings included.
sub bob
{
	my ($statements) = @_;
	my ($out, $err);
	$node->psql('postgres', "SET ROLE bob;\n$statements", stdout => \$out, stderr => \$err, on_error_stop => 0);
	return join "\n", grep { length } $out, $err;
}

# Proofs

my $call = "idem_internal.claim_slowly(%s::regrole, %s, 'try_claim', '%s', 'k', 'text', NULL, NULL, NULL, NULL, NULL)";
like(bob("SELECT proof AS p FROM idem_internal.caller \\gset\nSELECT outcome FROM " . sprintf($call, "'bob'", ":'p'",
			'bob_scope')),
	qr/permission denied for a function of schema idem_internal/, 'the proof of another transaction is refused');
like(bob("SELECT outcome FROM idem_internal.caller c, " . sprintf($call, "'alice'", 'c.proof', 'alice_scope')),
	qr/permission denied for a function of schema idem_internal/, 'so is that of another role');
like(bob("SELECT outcome FROM idem_internal.caller c, " . sprintf($call, "'bob'", 'c.proof', 'alice_scope')),
	qr/permission denied for scope "alice_scope"/, 'one\'s own proof opens one\'s own scopes');
like(bob("RESET ROLE; BEGIN; SET LOCAL ROLE alice;
	SELECT proof AS p FROM idem_internal.caller \\gset\nSET LOCAL ROLE bob;
	SELECT outcome FROM " . sprintf($call, "'bob'", ":'p'", 'alice_scope')),
	qr/permission denied for a function of schema idem_internal/,
	'after SET ROLE, the proof of the former role is not of this one');

is($node->safe_psql('postgres', "SELECT string_agg(p.proname, ' ' ORDER BY p.proname)
	FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
	WHERE p.pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace) AND l.lanname = 'plpgsql'
		AND has_function_privilege('bob', p.oid, 'EXECUTE')
		AND (p.proconfig::text LIKE '%search_path=pg_catalog, pg_temp%') IS NOT TRUE
		AND p.prosrc !~ 'pg_catalog\\.|idem_internal\\.caller|idem_internal\\.claim_or_replay'"), '',
	'what a role may compile has a search_path, or names the schemas');
$node->psql('postgres', "BEGIN; $Traps::compile", stderr => \my $compiled);
is($compiled, '', 'and the schemas of its types, because a validator does not set the search_path');
like(bob("SELECT idem_internal.distance('a', 'b')"), qr/permission denied for function distance/,
	'other parts are the owner\'s to execute');

# A secret that has leaked, as with a dump, is of no use once it was renewed; the seed never is.
my $mac = q{sha256((SELECT secret FROM leaked WHERE id = %s) || int4send(pg_backend_pid())
	|| timestamptz_send(transaction_timestamp()) || 'alice')};
$node->safe_psql('postgres', 'CREATE TABLE leaked AS TABLE idem.secret; GRANT SELECT ON leaked TO PUBLIC');
like(bob('SELECT outcome FROM ' . sprintf($call, "'alice'", sprintf($mac, 0), 'alice_scope')),
	qr/permission denied for a function of schema idem_internal/, 'the seed proves nothing');
$node->safe_psql('postgres', 'SELECT idem.rotate_secret()');
like(bob('SELECT outcome FROM ' . sprintf($call, "'alice'", sprintf($mac, 1), 'alice_scope')),
	qr/could not prove who calls/, 'nor does a secret that was renewed');

# The functions of triggers have the rights of their owner, and a table that has the trigger may bring casts.
like(bob('CREATE TEMP TABLE mine (); CREATE TRIGGER x AFTER INSERT ON mine FOR EACH ROW
	EXECUTE FUNCTION idem_internal.refuse_open_claim()'),
	qr/permission denied for function idem_internal\.refuse_open_claim/,
	'the function of the trigger of idem.record is for no other table');
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION idem_internal.refuse_open_claim TO bob');
like(bob(q{CREATE TEMP TABLE mine (); CREATE FUNCTION pg_temp.steal(mine) RETURNS idem.record LANGUAGE plpgsql AS $$
	DECLARE r idem.record; BEGIN RAISE WARNING 'as %', current_user; RETURN r; END $$;
	CREATE CAST (mine AS idem.record) WITH FUNCTION pg_temp.steal(mine) AS IMPLICIT;
	CREATE TRIGGER x AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION idem_internal.refuse_open_claim();
	INSERT INTO mine SELECT FROM generate_series(1, 9)}),
	qr/permission denied for function refuse_open_claim/,
	'and does not run there, even for a role that was granted it');
$node->safe_psql('postgres', 'REVOKE EXECUTE ON FUNCTION idem_internal.refuse_open_claim FROM bob');

# Nor relations: in a function of a trigger, a transition table comes before those of the catalog.
unlike(bob(q{CREATE TYPE pg_temp.kind AS (x integer); CREATE TEMP TABLE mine (oid oid, rolname pg_temp.kind);
	CREATE FUNCTION pg_temp.steal(pg_temp.kind) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN RAISE WARNING 'as %', current_user; RETURN 'x'; END $$;
	CREATE CAST (pg_temp.kind AS text) WITH FUNCTION pg_temp.steal(pg_temp.kind) AS IMPLICIT;
	CREATE TRIGGER x AFTER INSERT ON mine REFERENCING NEW TABLE AS pg_roles FOR EACH STATEMENT
	EXECUTE FUNCTION idem.require_claim('none');
	INSERT INTO mine VALUES (1, ROW(1))}), qr/WARNING/, 'a transition table brings no code');
is($node->safe_psql('postgres', q{SELECT string_agg(DISTINCT p.proname || ' ' || m[1], ', ')
	FROM pg_proc p, regexp_matches(prosrc, '\y(?:FROM|JOIN|UPDATE|INTO|TABLE)\s+(\w+)\y(?![.(])', 'g') m
	WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace) AND prorettype = 'trigger'::regtype
	AND m[1] IN (SELECT relname FROM pg_class)}), '', 'every relation in a function of a trigger has its schema');

# The name of a function is compared as it is: where a collation ignores the point, f.orget equals forget.
SKIP: {
	my $loose = q{CREATE SCHEMA f; CREATE COLLATION f.loose (PROVIDER = icu, LOCALE = 'und-u-ka-shifted',
		DETERMINISTIC = false);};
	skip 'this server has no ICU', 2 if bob($loose) =~ /ERROR/;
	for my $call ("change_key(c.role, c.proof, 'f.orget' COLLATE f.loose, 'bob_scope', 'k', 'text', NULL, true)",
		"change_tenant(c.role, c.proof, 'forget_ten.ant' COLLATE f.loose, 'bob_scope', 't', true)")
	{
		like(bob("SELECT idem_internal.$call FROM idem_internal.caller c"),
			qr/permission denied for function (revoke|erase_tenant)/, "no collation opens $call");
	}
	bob('DROP SCHEMA f CASCADE');
}

# The list of claims, which is a setting

sub forged
{
	my ($entry) = @_;
	return "BEGIN; SELECT set_config('idem_sql.claims', '1;' || $entry, true) \\g /dev/null\n";
}
sub placed { my ($place) = @_; return forged("'$place' || left(md5('" . 'a' x 26 . "'), 16)"); }
my $known = $node->safe_psql('postgres', "SELECT ctid FROM idem.record WHERE key = 'known'");
my $token = 'a' x 26 . ('-' x (18 - length $known)) . $known;
is(bob(placed($known) . "SELECT idem.complete('$token')"),
	bob(placed('(0,9)') . "SELECT idem.complete('" . ($token =~ s/\Q$known/(0,9)/r) . "')"),
	'a forged claim does not reveal whether a place has a record');
like(bob(placed($known) . "SELECT idem.child_key('$token', 's')"), qr/token names no open claim/,
	'and has no child keys');
for my $forged (placed($known), forged("'(0,1)'"), forged("'junk;;L;S(x'"), forged("'S(0,1)'"),
	forged("(SELECT 'L' || lpad(to_hex(number), 16, '0') || repeat('0', 16) FROM numbers)"))
{
	is(bob($forged . 'SELECT idem.current_key()'), '', 'and no key');
	like(bob($forged . 'INSERT INTO guarded VALUES (1)'), qr/cannot write to table "guarded" without a claim/,
		'and does not open a guarded table');
}

# Nor what is made of the token of a lease, which others may have seen.
my $leaked = $node->safe_psql('postgres', "SELECT token FROM idem.claim('alice_scope', 'leaked', lease => '1 hour')");
my $seen_by_bob = "right('$leaked', 19) || pg_current_xact_id()::text";
for my $digest ("md5($seen_by_bob)", "encode(sha256(convert_to($seen_by_bob, 'UTF8')), 'hex')")
{
	my $forged = forged("left('$leaked', 17) || left($digest, 16)");
	is(bob($forged . 'SELECT idem.current_key()'), '', 'a leaked token reveals no key');
	like(bob($forged . 'INSERT INTO guarded VALUES (1)'), qr/cannot write to table "guarded" without a claim/,
		'and opens no guarded table');
}

# Nor a record of which this transaction has removed the answer.
$node->safe_psql('postgres', q{CREATE ROLE purger; GRANT EXECUTE ON FUNCTION idem.purge TO purger; GRANT purger TO bob;
	SELECT idem.alter_scope('alice_scope', answer_ttl => '1 us');
	SELECT idem.complete(token, '1') FROM idem.claim('alice_scope', 'purged')});
my @places = split /\n/, $node->safe_psql('postgres',
	"SELECT ctid FROM idem.record WHERE scope = (SELECT id FROM idem.scope WHERE name = 'alice_scope')");
for my $place (@places)
{
	like(bob("BEGIN; SELECT idem.purge() \\g /dev/null\n" . (placed($place) =~ s/^BEGIN; //r)
			. 'INSERT INTO guarded VALUES (1)'), qr/cannot write to table "guarded" without a claim/,
		"a purge does not open a guarded table: $place");
}
$node->safe_psql('postgres', q{SELECT idem.alter_scope('alice_scope', answer_ttl => '0')});

# What a role reads there, while another's claim is open, completes nothing and is of no use later.
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION begins(secret_key text, lease interval) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('alice_scope', secret_key, tenant => 'secret-tenant', lease => lease);
END $$;
ALTER FUNCTION begins OWNER TO alice;
SQL
my $list = bob("BEGIN; SELECT begins('secret-1', NULL); SELECT current_setting('idem_sql.claims')");
like($list, qr/^\s*1;\(\d+,\d+\)[0-9a-f]{16}$/, 'the list has places, and digests of tokens');
like(bob("BEGIN; SELECT begins('secret-2', NULL);
	SELECT substr(list, length(list) - 15) || repeat('a', 10) || lpad(substr(list, 3, length(list) - 18), 18, '-') AS t
	FROM current_setting('idem_sql.claims') AS list \\gset
	SELECT idem.complete(:'t')"), qr/token names no open claim/, 'a token made of it completes nothing');
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION pays(secret_key text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog,
  pg_temp AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('alice_scope', secret_key);
  PERFORM idem.complete(c.token, '1');
END $$;
ALTER FUNCTION pays OWNER TO alice;
SQL
like(bob("BEGIN; SELECT pays('paid'); SELECT split_part(substr(current_setting('idem_sql.claims'), 3), ')', 1) || ')'
	AS place \\gset
	SELECT set_config('idem_sql.claims', '1;' || :'place' || left(md5(repeat('0', 26)), 16), true) \\g /dev/null
	SELECT idem.child_key(repeat('0', 26) || lpad(:'place', 18, '-'), 'charge')"), qr/token names no open claim/,
	'nor makes a child key of another role\'s operation');
my $later = bob("BEGIN; SELECT begins('secret-3', '1 hour') \\g /dev/null\n"
	. "SELECT current_setting('idem_sql.claims'); COMMIT");
like(bob("BEGIN; SELECT set_config('idem_sql.claims', '$later', true) \\g /dev/null\nINSERT INTO guarded VALUES (1)"),
	qr/without a claim/, 'the entry of a lease is good for one transaction');
like(bob("BEGIN; SELECT token AS t FROM idem.claim('bob_scope', 'z') \\gset\n
	SELECT idem_internal.finish_slowly(c.role, c.proof, 'x', :'t', 'z', '1', NULL, NULL, NULL, NULL) IS NULL
	FROM idem_internal.caller c; COMMIT;
	SELECT state FROM idem.lookup('bob_scope', 'z')"), qr/completed$/, 'no state but those of the contract is stored');
like(bob("BEGIN; SELECT token AS t FROM idem.claim('bob_scope', 'y') \\gset\n
	SELECT idem_internal.finish_slowly(c.role, c.proof, NULL, :'t', 'f', NULL, NULL, NULL, NULL,
		'{\"sqlstate\": \"40001\"}') FROM idem_internal.caller c"), qr/every retry would receive/,
	'nor a failure that would be retried');

# The views of the short ways, read and written by a role that sets the settings by itself: they show what
# idem.lookup() shows to this role, and EXPLAIN ANALYZE tells no record of another scope from none.

my $ask = "SET idem_sql.scope = '%s'; SET idem_sql.tenant = ''; SET idem_sql.key = '%s'; SET idem_sql.request = '';";
is(bob(sprintf($ask, 'alice_scope', 'known') . 'SELECT count(*) FROM idem_internal.answer'), '0',
	'the view shows no answer of another role\'s scope');
$node->safe_psql('postgres', "SELECT idem.create_scope('bobs', owner => 'bob', tenant_from => 'role',
	answer_ttl => '1 ms')");
bob("SELECT idem.complete(token, '1') FROM idem.claim('bobs', 'hidden')");
is(bob(sprintf($ask =~ s/tenant = ''/tenant = 'bob'/r, 'bobs', 'hidden') . 'SELECT count(*) FROM idem_internal.answer'),
	'0', 'nor one that the functions would not show');
for my $plan ('', 'SET enable_indexscan = off; SET enable_bitmapscan = off;', 'SET enable_nestloop = off;',
	'SET enable_nestloop = off; SET enable_hashjoin = off;')
{
	my ($there, $not_there) =
		map { bob("$plan SET jit = off; " . sprintf($ask, 'alice_scope', $_)
				. 'EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF)
					SELECT * FROM idem_internal.answer') } 'known', 'unknown';
	is($there, $not_there, 'and a plan does not tell whether there is one');
	like($there, qr/on record x \(never executed\)/, 'because it reads no record');
}
$node->safe_psql('postgres', q{SELECT idem.complete(token, '"old"') FROM idem.claim('bob_scope', 'expired');
	UPDATE idem.record SET expires = now() - interval '1 s' WHERE key = 'expired'});
is(bob(sprintf($ask, 'bob_scope', 'expired')
		. 'SELECT concat(attempt, outcome, response, created_at, expires_at) FROM idem_internal.answer'), '',
	'nor what has expired');
is(bob("SELECT count(*) FROM idem_internal.figures(ARRAY(SELECT generate_series(1, 9)),
	array_fill('170000000 years'::interval, '{9}'), NULL)"), '2',
	'nor do figures fail where a scope of another role has records');
$node->safe_psql('postgres', q{SELECT count(*) FROM (
	SELECT idem.once('alice_scope', 'popular', tenant => 't' || i), idem.once('alice_scope', 'n' || i, tenant => 'rich')
	FROM generate_series(1, 300) i) AS o; ANALYZE idem.record});
my ($popular, $rare) = map { bob("SET idem_sql.tenant = '$_->[0]'; SET idem_sql.key = '$_->[1]';
	EXPLAIN SELECT * FROM idem_internal.answer") } [ 'rich', 'popular' ], [ 'poor', 'rare' ];
is($popular, $rare, 'nor does what a plan expects show which tenants and keys there are');
$node->safe_psql('postgres', q{DELETE FROM idem.record WHERE tenant = 'rich' OR key = 'popular'; ANALYZE idem.record});
my $insert = 'INSERT INTO idem_internal.new_claim (nonce)';
is(bob(sprintf($ask, 'alice_scope', 'by hand') . "$insert VALUES (NULL) RETURNING place IS NOT NULL"), '',
	'the other view claims no key in another role\'s scope');
like(bob(sprintf($ask, 'bob_scope', 'by hand')
		. "BEGIN; $insert VALUES (NULL) RETURNING place IS NOT NULL; COMMIT"),
	qr/^t\n.*cannot commit a transaction with an open claim/s, 'and in one\'s own a claim like any other');
my $locked = q{SELECT count(*), count(l)
		FROM idem.record AS r JOIN idem.scope AS s ON s.id = r.scope
			LEFT JOIN pg_locks AS l ON l.locktype = 'advisory' AND l.pid = pg_backend_pid()
			AND (l.classid::bigint << 32) + l.objid::bigint
				= hashtextextended(r.tenant || E'\\x1f' || r.key, s.lock_seed)
		WHERE r.state = 'a'};
for my $volatility ('VOLATILE', 'IMMUTABLE')
{
	is(bob(sprintf($ask, 'bob_scope', 'key 0') . "BEGIN; CREATE SEQUENCE pg_temp.n;
		CREATE FUNCTION pg_temp.next_key(i int) RETURNS text $volatility LANGUAGE plpgsql AS \$\$
		BEGIN
			PERFORM set_config('idem_sql.key', 'key ' || nextval('pg_temp.n'), true);
			RETURN NULL;
		END \$\$;
		$insert SELECT pg_temp.next_key(i) FROM generate_series(1, 3) AS i; RESET ROLE;
		$locked; ROLLBACK"), '1|1',
		"it is the key whose lock was taken, also where a $volatility function sets it");
}
# Of a constant, the condition is checked when the scope is read, and a function in FROM runs after it.
my $late = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off;
	CREATE FUNCTION pg_temp.late(key text, tenant text) RETURNS SETOF text ROWS 1000000 COST 100000000
	LANGUAGE plpgsql AS \$\$ BEGIN
		PERFORM set_config('idem_sql.key', key, true), set_config('idem_sql.tenant', tenant, true); RETURN NEXT NULL;
	END \$\$;";
for my $late_key ([ 'late', '' ], [ '', '' ], [ 'k' x 256, '' ], [ 'late', 't' x 256 ])
{
	is(bob("BEGIN; $late " . sprintf($ask, 'bob_scope', 'in time')
			. "$insert SELECT NULL FROM pg_temp.late('$late_key->[0]', '$late_key->[1]'); RESET ROLE;
			$locked; ROLLBACK"),
		'1|1', sprintf('also where one in FROM does, after the check: %d and %d bytes', map { length } @$late_key));
}
bob("BEGIN; SELECT token AS t FROM idem.claim('bob_scope', 'r', '{\"secret\": 1}', 't') \\gset\n"
	. "SELECT idem.complete(:'t', '1'); COMMIT");
for my $call ("outcome FROM idem.claim('bob_scope', 's-1', '{\"secret\": 1}', 't')",
	"outcome FROM idem.claim('bob_scope', 'r', '{\"secret\": 1}', 't')",
	"outcome FROM idem.try_claim('bob_scope', 'r', '{\"secret\": 2}', 't')",
	"state FROM idem.lookup('bob_scope', 'r', 't')", "state FROM idem.lookup('bob_scope', 'none', 't')")
{
	is(bob("BEGIN; SELECT $call \\g /dev/null\n"
		. "SELECT string_agg(current_setting('idem_sql.' || name, true), '') FROM unnest('{tenant,key,request}'::text[])
			AS name; ROLLBACK"),
		'', "after the call, no setting has the tenant, the key or the request: $call");
}

# An open claim never commits: not with the triggers of ordinary sessions switched off, as restores and
# replication do. Where a superuser has switched this one off, too, the claim counts as abandoned.

my $opens = q{BEGIN; SELECT attempt FROM idem.claim('alice_scope', 'left open', tenant => 't''t'); COMMIT};
is(sqlstate($node, "SET session_replication_role = replica; $opens"), 'ID006',
	'with session_replication_role = replica, an open claim does not commit');
$node->safe_psql('postgres', "ALTER TABLE idem.record DISABLE TRIGGER claim_incomplete; $opens");
my $unguarded = "SELECT detail, hint FROM idem.health() WHERE check_name = 'triggers' AND status <> 'ok'";
is($node->safe_psql('postgres', "$unguarded ORDER BY 1"),
	<<'OUT' =~ s/\n  / /gr =~ s/\n\z//r, 'health() names the trigger, and the claim that has committed');
Open claims of scope "alice_scope" were committed while triggers were switched off: 1.
  What these transactions did is committed, too; the next claim of such a key runs its operation again.|For each key,
  find out whether its operation has run. If so, claim the key with the same request and complete it with the answer,
  in one transaction; if it has no attempts left (ID014), raise max_attempts meanwhile. If not, call idem.forget(). To
  list the keys: SELECT tenant, key FROM idem_internal.left_open WHERE scope = 'alice_scope'
The trigger claim_incomplete on idem.record is missing or not ENABLE ALWAYS: a transaction can commit with an open
  claim.|ALTER TABLE idem.record ENABLE ALWAYS TRIGGER claim_incomplete
OUT
$node->safe_psql('postgres', $node->safe_psql('postgres', "SELECT hint FROM ($unguarded) AS f WHERE hint ~ 'TRIGGER'"));
my $open = "SELECT token AS t, attempt FROM idem.claim('alice_scope', 'left open', tenant => 't''t') \\gset\n"
	. "\\echo :attempt";
is($node->safe_psql('postgres', "SELECT state, attempt, holder_pid
	FROM idem.lookup('alice_scope', 'left open', 't''t')"), 'in_progress|1|',
	'lookup() shows an attempt without a holder');
is($node->safe_psql('postgres', "SELECT attempt FROM idem.take('alice_scope')"), '', 'take() leaves it alone');
is($node->safe_psql('postgres', "SELECT state FROM idem.cancel('alice_scope', 'left open', 't''t')"), 'in_progress',
	'and so does cancel(): the operation may have run');
is($node->safe_psql('postgres', "BEGIN; SELECT idem.once_each('alice_scope', '{left open,next}'::text[], 't''t');
	SELECT state, attempt FROM idem.lookup('alice_scope', 'left open', 't''t');
	SELECT open, leased, ttl FROM idem.record WHERE key = 'left open'; ROLLBACK"),
	"left open\nnext\ncompleted|2\n||", 'once_each() takes it over, and leaves nothing open');
is($node->safe_psql('postgres', "BEGIN; $open\nSELECT idem.release(:'t');\n$open\nROLLBACK"), "2\n\n2",
	'the next claim takes it over, also after a release');
is($node->safe_psql('postgres', "BEGIN;\n" . $open =~ s/'t''t'\)/'t''t', lease => '1 hour')/r . "\n"
	. "SELECT idem.release(:'t'); SELECT attempt FROM idem.take('alice_scope'); ROLLBACK"), "2\n\n3",
	'or one with a lease');
is($node->safe_psql('postgres', "SELECT idem.alter_scope('alice_scope', max_attempts => 1) \\g /dev/null\n"
	. "SELECT outcome FROM idem.try_claim('alice_scope', 'left open', tenant => 't''t');"
	. "SELECT idem.alter_scope('alice_scope', max_attempts => 2) \\g /dev/null\nBEGIN; $open\nROLLBACK;"
	. "SELECT idem.alter_scope('alice_scope', max_attempts => -1) \\g /dev/null"), "exhausted\n2",
	'but not beyond max_attempts, which can be raised meanwhile');
is($node->safe_psql('postgres', "BEGIN; $open\n"
	. "SELECT idem.complete(:'t', '1'); COMMIT; SELECT response FROM idem.lookup('alice_scope', 'left open', 't''t')"),
	"2\n1\n1", 'and completes it');
$node->safe_psql('postgres', "SELECT idem.forget('alice_scope', 'left open', tenant => 't''t');
	SELECT idem.claim('alice_scope', 'due', lease => '1 microsecond');
	ALTER TABLE idem.record DISABLE TRIGGER claim_incomplete; $opens; SELECT idem.claim('alice_scope', 'due');
	ALTER TABLE idem.record ENABLE ALWAYS TRIGGER claim_incomplete");
is($node->safe_psql('postgres', $node->safe_psql('postgres',
			"SELECT substring(hint FROM 'SELECT .*') FROM ($unguarded) AS f") . ' ORDER BY key'), "|due\nt't|left open",
	'health() lists the keys');
$node->safe_psql('postgres', "SELECT idem.forget('alice_scope', 'due'),
	idem.forget('alice_scope', 'left open', tenant => 't''t')");
is($node->safe_psql('postgres', "SELECT state FROM idem.lookup('alice_scope', 'left open', 't''t')"), 'absent',
	'forget() frees one whose operation has not run');
is($node->safe_psql('postgres', "SELECT count(*) FROM idem.record WHERE open IS NOT NULL"), '0', 'and nothing is left');

# Who can connect reads the numbers of key locks in pg_locks, and can hold them. The calls with a token
# need none, and neither does idem.take().

my $worker = $node->background_psql('postgres');
$worker->query_safe("SELECT token AS t FROM idem.claim('alice_scope', 'work', lease => '1 hour') \\gset");
$worker->query_safe("BEGIN; SELECT idem.renew(:'t')");
my $mallory = $node->background_psql('postgres');
$mallory->query_safe("SET ROLE bob;
	SELECT ((classid::bigint << 32) | objid::bigint) AS lock FROM pg_locks
	WHERE locktype = 'advisory' AND objsubid = 1 \\gset");
$mallory->query_until(qr/holding/, "\\echo holding\nSELECT pg_advisory_lock(:lock);\n");
waits_for($node, $node->safe_psql('postgres', "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"),
	'Lock');
$worker->query_safe('COMMIT');
$mallory->query_safe('SELECT 1');
is($worker->query("SET lock_timeout = '2 s'; SELECT idem.checkpoint(:'t', 'half');
	SELECT idem.renew(:'t', '1 ms') IS NULL; SELECT pg_sleep(0.01)"), "\nf\n",
	'a lease goes on although another role holds the lock of its key');
is($worker->query("SELECT token AS t, key FROM idem.take('alice_scope') \\gset\n\\echo :key"), 'work',
	'and is taken over');
is($worker->query("SELECT idem.complete(:'t', '1')"), '1', 'and completed');
$_->quit for $worker, $mallory;

# A session that has taken on a role sees only the name that the role had then.

$node->safe_psql('postgres', q{CREATE ROLE pool; CREATE ROLE t1 IN ROLE alice; GRANT t1 TO pool;
	SELECT idem.create_scope('roles', owner => 'alice', tenant_from => 'role')});
my $stale = $node->background_psql('postgres', on_error_stop => 0);
is($stale->query(q{SET SESSION AUTHORIZATION pool; SET ROLE t1; SELECT idem.once('roles', 'k')}), 't',
	'the tenant is the role that was taken on');
$node->safe_psql('postgres', q{ALTER ROLE t1 RENAME TO t1_before; CREATE ROLE t1 IN ROLE alice; SET ROLE t1;
	SELECT idem.complete(token, '"of another tenant"') FROM idem.claim('roles', 'new')});
$stale->query(q{SELECT response FROM idem.lookup('roles', 'new'); SELECT idem.once('roles', 'mine')});
like($stale->{stderr}, qr/(permission denied to act as role "t1".*){2}/s, 'and not another role that has its name now');
$stale->{stderr} = '';
is($stale->query(q{SET ROLE t1_before; SELECT state FROM idem.lookup('roles', 'new')}), 'absent',
	'SET ROLE names the tenant again');
$stale->quit;

# Where the tenant is the role, a function in an index of a tenant's own table runs when a superuser,
# autovacuum or the owner of the database analyzes that table. It gets the answers of no tenant.
$node->safe_psql('postgres', q{CREATE ROLE t2 IN ROLE alice; CREATE SCHEMA t2 AUTHORIZATION t2; SET ROLE t2;
	CREATE TABLE t2.bait (i integer); CREATE TABLE t2.answer (response jsonb);
	CREATE FUNCTION t2.spy(text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t2.answer
		SELECT response FROM idem.lookup('roles', 'new', tenant => $1);
		EXCEPTION WHEN insufficient_privilege THEN INSERT INTO t2.answer VALUES (to_jsonb(SQLSTATE)); END $$;
	CREATE FUNCTION t2.spies(integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
		PERFORM t2.spy(t) FROM unnest('{NULL,t1}'::text[]) t; RETURN $1; END $$;
	CREATE INDEX ON t2.bait (t2.spies(i)); INSERT INTO t2.bait VALUES (1);
	RESET ROLE; GRANT t2 TO pool});
for my $maintains ('postgres', 'pool')
{
	is( $node->safe_psql('postgres', "TRUNCATE t2.answer; SET SESSION AUTHORIZATION $maintains;
		ANALYZE t2.bait; SELECT * FROM t2.answer"),
		qq{"42501"\n"42501"}, "a table that $maintains analyzes shows no answer of another tenant");
}

# A trigger of the owner that keeps records out does not make calls run for ever.

$node->safe_psql('postgres', q{CREATE FUNCTION keeps_out() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN RETURN NULL; END $$; CREATE TRIGGER keeps_out BEFORE INSERT ON idem.record FOR EACH ROW
	EXECUTE FUNCTION keeps_out()});
for my $call (q{idem.once('bob_scope', 'k')}, q{idem.once_each('bob_scope', '{a,b}')},
	q{idem.cancel('bob_scope', 'k')}, q{idem.claim('bob_scope', 'k', lease => '1 s')})
{
	like(bob("SET statement_timeout = '60s'; SELECT $call"), qr/table "idem.record" does not store the key/,
		"it is named: $call");
}
$node->safe_psql('postgres', 'DROP FUNCTION keeps_out CASCADE');

# Names in the search_path: none of these functions may run, neither as the owner nor as a caller.

my $calls = <<'SQL';
BEGIN; SELECT token AS t FROM idem.claim('bob_scope', 'h1', '{"a": 1.50}') \gset
SELECT idem.complete(:'t', '{"a": 1}');
SELECT outcome FROM idem.try_claim('bob_scope', 'h1', '{"a": 1.5}');
SELECT token AS t FROM idem.claim('bob_scope', 'h2') \gset
SELECT idem.release(:'t');
SELECT token AS t FROM idem.claim('bob_scope', 'h3', lease => '1 hour') \gset
SELECT idem.renew(:'t') IS NOT NULL; SELECT idem.checkpoint(:'t', 'x'); SELECT idem.fail(:'t', '{"message": "m"}');
SELECT idem.once('bob_scope', 'h4'); SELECT count(*) FROM idem.once_each('bob_scope', '{h5}'::pg_catalog.text[]);
SELECT idem.advance('bob_scope', 's', 1); SELECT state FROM idem.lookup('bob_scope', 'h1'); SELECT idem.current_key();
SELECT state FROM idem.cancel('bob_scope', 'h7'); SELECT (idem.take('bob_scope')).key;
SELECT outcome FROM idem.execute('bob_scope', 'h8', 'evil.op(jsonb)', '{}');
COMMIT; BEGIN; SELECT outcome FROM idem.claim('bob_scope', 'h9'); COMMIT;
SQL
my $shadows = bob(<<'SQL' . $calls);
CREATE SCHEMA evil;
CREATE FUNCTION evil.text(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'evil'; RETURN true;
END $$;
CREATE FUNCTION evil.int(int, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'evil'; RETURN true;
END $$;
CREATE FUNCTION evil.append(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'evil'; RETURN '';
END $$;
CREATE FUNCTION evil.length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'evil'; RETURN 1; END $$;
CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'evil';
RETURN ''; END $$;
CREATE FUNCTION evil.check(anyelement) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'evil'; RETURN true;
END $$;
CREATE FUNCTION evil.op(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.text);
CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.text);
CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.int);
CREATE OPERATOR evil.<= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.int);
CREATE OPERATOR evil.>= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.int);
CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.append);
CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (evil.check(VALUE));
CREATE DOMAIN pg_temp.uuid AS pg_catalog.uuid CHECK (evil.check(VALUE));
CREATE DOMAIN pg_temp.tid AS pg_catalog.tid;
SET search_path = evil, pg_catalog, pg_temp;
SQL
unlike($shadows, qr/evil/, 'nothing in the search_path or in pg_temp is called');
like($shadows, qr/cannot commit a transaction with an open claim/, 'and an open claim does not commit');

# Constraints that are checked at once

my $at_once = "BEGIN; SET CONSTRAINTS ALL IMMEDIATE; SELECT token AS t FROM idem.claim('bob_scope', 'c%d') \\gset\n"
	. "%s COMMIT";
is(bob(sprintf($at_once, 1, "SELECT idem.complete(:'t', '7');")), '7',
	'a claim can be completed under SET CONSTRAINTS ALL IMMEDIATE');
like(bob(sprintf($at_once, 2, '')), qr/cannot commit a transaction with an open claim/,
	'and does not commit if it is open');
like(bob("BEGIN; SELECT token AS t FROM idem.claim('bob_scope', 'c3') \\gset\nSET CONSTRAINTS ALL IMMEDIATE; COMMIT"),
	qr/cannot commit a transaction with an open claim/, 'not even if the constraints are checked after it');
my $again = 'SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED; SET CONSTRAINTS ALL IMMEDIATE;';
my $two = "BEGIN; SELECT token AS t FROM idem.claim('bob_scope', 'c4') \\gset\n"
	. "SELECT token AS u FROM idem.claim('bob_scope', 'c5') \\gset\n$again SELECT idem.complete(:'t', '7');";
like(bob("$two COMMIT"), qr/^7\n.*cannot commit a transaction with an open claim/s,
	'nor if they are checked again and again, which refuses no claim before');
is(bob("$two SAVEPOINT s; $again ROLLBACK TO s; $again SELECT idem.complete(:'u', '8'); $again COMMIT"), "7\n8",
	'and finished claims commit');
is(bob("CREATE FUNCTION pg_temp.checks(jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN $again RETURN \$1; END';
	BEGIN; $again SELECT response FROM idem.execute('bob_scope', 'c6', 'pg_temp.checks(jsonb)', '9'); COMMIT"), '9',
	'nor does an operation that checks them fail');
like(bob("BEGIN; SELECT FROM idem.claim('bob_scope', 'c7') \\g /dev/null\nRESET ALL; $again COMMIT"),
	qr/cannot commit a transaction with an open claim/, 'and not without the list of claims');
is(bob("SELECT token AS t FROM idem.claim('bob_scope', 'c8', lease => '1 ms') \\gset\n
	SELECT pg_sleep(0.01) \\g /dev/null\nBEGIN; SELECT token AS t FROM idem.claim('bob_scope', 'c8') \\gset\n$again
	SELECT idem.release(:'t') \\g /dev/null\nCOMMIT; SELECT redacted FROM idem.records WHERE key = 'c8'"), 'f',
	'and what the check notes is gone with the claim');

# A limit that is no number, which the extension would have refused

like(bob("SET idem.max_open_claims = '$_'; BEGIN; SELECT idem.try_claim('bob_scope', 'limited')"),
	qr/invalid value for parameter "idem.max_open_claims": "\Q$_\E"/, "a limit of '$_' is refused")
  for 'many', '0', '-1', '99999999999';

# once_each() takes no key locks, so other calls meet its rows, and it meets theirs.

my $holder = $node->background_psql('postgres');
$holder->query_safe("SET ROLE bob; BEGIN; SELECT idem.once('bob_scope', 'waited')");
$node->safe_psql('postgres', "SELECT idem.alter_scope('bob_scope', wait => '200 ms')");
my $wait = "SET statement_timeout = '10 s'; %s SELECT idem.once_each('bob_scope', '{waited}'::text[])";
like(bob(sprintf $wait, ''), qr/operation "waited" is in progress/,
	'once_each waits for an open claim as long as the scope says');
like(bob(sprintf $wait, "SET lock_timeout = '100 ms';"), qr/due to lock timeout/, 'or as long as the session says');
is($node->safe_psql('postgres', <<'SQL'), '0', 'whenever that time comes');
CREATE FUNCTION pg_temp.overlooked() RETURNS integer LANGUAGE plpgsql AS $$
DECLARE n integer := 0;
BEGIN
  FOR i IN 1 .. 20000 LOOP
    BEGIN
      n := n + (NOT idem_internal.is_within((clock_timestamp() + i % 20 * interval '1 us', 'lock_timeout')))::integer;
    EXCEPTION WHEN lock_not_available THEN
    END;
  END LOOP;
  RETURN n;
END $$;
SELECT pg_temp.overlooked();
SQL
like(bob("SET lock_timeout = '7 s'; BEGIN; SELECT count(*) FROM idem.once_each('bob_scope', '{free}'::text[]);
	SHOW lock_timeout"), qr/7s$/,
	'and leaves the setting as it was');
$node->safe_psql('postgres', "SELECT idem.alter_scope('bob_scope', wait => '100 days')");
$holder->query_safe("SELECT FROM idem.once_each('bob_scope', '{cancelled}'::text[])");
my $canceller = waiter($node, 'Lock', "SET ROLE bob;\nSELECT state FROM idem.cancel('bob_scope', 'cancelled')");
$holder->query_safe('COMMIT');
is($canceller->query("SELECT 'next'") =~ s/\n.*//sr, 'completed',
	'cancel waits for once_each, and returns what it has stored');
$holder->query_safe('RESET ROLE');

# A batch with a key under a lease leaves the row alone.
my $lease = $node->safe_psql('postgres', "SELECT idem.alter_scope('bob_scope', wait => '0');
	SET ROLE bob; SELECT token FROM idem.claim('bob_scope', 'batched', lease => '1 hour')") =~ s/^\n//r;
$holder->query_safe("SET ROLE bob; BEGIN; SELECT FROM idem.once_each('bob_scope', '{batched}'::text[])");
is(bob("SELECT idem.renew('$lease') > now(); SELECT idem.complete('$lease', '1')"), "t\n1",
	'a batch that meets a lease does not hold up its holder');
$holder->query_safe('ROLLBACK; RESET ROLE');

# Nor do functions for administrators and the purge: a claim that meets their rows waits no longer than it may.

for my $key (qw(forgotten erased purged))
{
	bob("SELECT idem.complete(token, '1') FROM idem.claim('bob_scope', '$key')");
}
$node->safe_psql('postgres', "UPDATE idem.record SET expires = now() WHERE key = 'purged'");
$holder->query_safe("BEGIN; SELECT idem.forget('bob_scope', 'forgotten'), idem.erase('bob_scope', 'erased'),
	idem.purge()");
my $met = "SET statement_timeout = '10 s'; BEGIN; SELECT outcome FROM idem.try_claim('bob_scope', '%s', wait => %s);
	SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
is(bob(sprintf $met, 'forgotten', 'NULL'), "completed\n0",
	'a record that is being forgotten still answers, without a key lock');
is(bob(sprintf $met, 'erased', 'NULL'), "completed\n0", 'so does one that is being erased');
like(bob(sprintf $met, 'purged', 'NULL'), qr/^in_progress/,
	'an expired one that is being purged is not waited for by try_claim');
like(bob(sprintf $met, 'purged', "'50 ms'"), qr/^in_progress/, 'nor for longer than it says');
$holder->query_safe('COMMIT');
like(bob(sprintf $met, 'forgotten', 'NULL'), qr/^claimed/, 'afterwards, the key is free');
$holder->query_safe("BEGIN; UPDATE idem.watermark SET seq = 20 WHERE source = 's'");
$canceller->query_until(qr/advancing/, "\\echo advancing\nSELECT idem.advance('bob_scope', 's', 11);\n");
waits_for($node, $canceller->{pid}, 'Lock');
$holder->query_safe('COMMIT');
is($canceller->query("SELECT 'next'") =~ s/\n.*//sr, 'f',
	'a source that is moved on without its lock does not go back');
$holder->quit;
$canceller->quit;

# Without secrets, nobody can be proved to call, and a call must not return NULL. The short ways need no
# proof, and a scope has a copy of the newest secret.

my $operation = $node->safe_psql('postgres', "SELECT token FROM idem.claim('alice_scope', 'left', lease => '1 hour')");
$node->safe_psql('postgres', "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA idem TO bob;
	CREATE FUNCTION op(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT \$1'");
my $older = "SELECT outcome FROM idem.try_claim('bob_scope', 'with_request', '{\"a\": 1}')";
bob("BEGIN; SELECT token AS t FROM idem.claim('bob_scope', 'with_request', '{\"a\": 1}') \\gset\n"
	. "SELECT idem.complete(:'t'); COMMIT");
$node->safe_psql('postgres', 'CREATE TABLE kept AS TABLE idem.secret; DELETE FROM idem.secret WHERE id > 0');
is(bob($older), 'completed', 'a request is compared with the help of the copy');
like(bob($older =~ s/\)$/, ttl => '1 hour')/r), qr/idem has no secrets in this database/,
	'but not on the long way');
like(bob("SELECT idem.claim('bob_scope', 'k', '1', ttl => '1 hour')"), qr/idem has no secrets in this database/,
	'and no new fingerprint is made');
$node->safe_psql('postgres', 'DELETE FROM idem.secret');
my @without = (
	"claim('bob_scope', 'k', ttl => '1 hour')", "try_claim('bob_scope', 'k', ttl => '1 hour')",
	"once_each('bob_scope', '{k}'::text[])", "execute('bob_scope', 'k', 'op(jsonb)', ttl => '1 hour')",
	"lookup('bob_scope', 'k')",
	"cancel('bob_scope', 'k')", "advance('bob_scope', 's', 1)", "reset_stream('bob_scope', 's', 1)",
	"take('bob_scope')",
	"complete('$operation')", qq(fail('$operation', '{"message": "m"}')), "release('$operation')",
	"renew('$operation')",
	"checkpoint('$operation', 'c')", "child_key('$operation', 's')", "scope_ddl('bob_scope')", "create_scope('new')",
	"alter_scope('bob_scope', ttl => '1 hour')", "drop_scope('bob_scope')", "revoke('bob_scope', 'k')",
	"forget('bob_scope', 'k')",
	"erase('bob_scope', 'k')", "forget_tenant('bob_scope', 't')", "erase_tenant('bob_scope', 't')",
);
like(bob("SELECT idem.$_"), qr/idem has no secrets in this database/, "without secrets: $_") for @without;
is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT p.proname, ' ') FROM pg_proc p
	WHERE p.pronamespace = 'idem'::regnamespace
	AND coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) ~ 'idem_internal.caller'
	AND p.proname <> ALL ('{" . join(',', map { /^(\w+)/ } @without) . "}')"),
	'', 'no other function asks who calls');
$node->safe_psql('postgres', 'INSERT INTO idem.secret SELECT * FROM kept');
like(bob($older), qr/completed$/, 'with the secrets restored, the keys are known again');
$node->safe_psql('postgres', 'SELECT idem.rotate_secret(); DELETE FROM idem.secret WHERE id = 2');
like(bob($older), qr/fingerprint secret 2 is missing/, 'but for the one whose secret is gone');

# Every role may have the server print plans. A plan has the values that it was made for.
$node->safe_psql('postgres', "SELECT idem.create_scope('printed', owner => 'bob', tenant_from => 'role')");
my $printing = 'SET client_min_messages = log; SET debug_pretty_print = off; SET debug_print_plan = on;';
$lease = $node->safe_psql('postgres',
	"SELECT token FROM idem.claim('printed', 'l', tenant => 'bob', lease => '1 hour')");
$printing = "BEGIN; SELECT 'proof ' || encode(proof, 'hex') FROM idem_internal.caller; $printing";
my @asked = map { "$printing SELECT idem.$_" }
  map { s/bob_scope|'(left|new)'/$1 ? "'printed'" : 'printed'/er =~ s/\Q$operation/$lease/r }
  @without, "claim('printed', 'p', lease => '1 hour')", "claim('alice_scope', 'k')", 'rotate_secret()', 'current_key()',
  'edition() FROM idem.overview';
my $offset = -s $node->logfile;
my @printed = map { bob($_) } @asked;
my $printed = join '', @printed, slurp_file($node->logfile, $offset);
like($printed, qr/PLANNEDSTMT/, 'plans are printed');
sub printed_as { my ($value) = @_; return join ' ', map { $_ > 127 ? $_ - 256 : $_ } unpack 'C*', $value; }
is(scalar(grep { my $proof = printed_as(pack 'H*', /^proof (\w{64})$/m); s/\s+/ /gr =~ /$proof/ } @printed), 0,
	'but no proof, which could be that of a function\'s owner');
for my $secret (map { pack 'H*', $_ } split /\n/,
	$node->safe_psql('postgres', q{SELECT encode(secret, 'hex') FROM idem.secret}))
{
	unlike($printed =~ s/\s+/ /gr, qr/@{[ printed_as($secret) ]}/, 'and no secret, nor does the log');
}
# As auto_explain does, where an administrator has it explain nested statements.
SKIP:
{
	my $explaining = "RESET ROLE; LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;
		SET auto_explain.log_nested_statements = on; SET auto_explain.log_verbose = on; SET ROLE bob;";
	skip 'this server has no auto_explain', 4 if bob($explaining) =~ /ERROR/;
	my @explained = map { bob($explaining . s/^.*?\KSET debug_print_plan = on;//r) } @asked;
	like(join('', @explained), qr/duration: /, 'auto_explain explains what a role calls');
	is(scalar(grep { my ($proof) = /^proof (\w{64})$/m; /\\x$proof/ } @explained), 0, 'but shows it no proof');
	my $secrets = $node->safe_psql('postgres', q{SELECT string_agg(encode(secret, 'hex'), '|') FROM idem.secret});
	is(scalar(grep { /$secrets/ } @explained), 0, 'and no secret');
	my $checked = bob("BEGIN; SELECT begins('explained', NULL); $explaining SET client_min_messages = log;
		SET CONSTRAINTS ALL IMMEDIATE; RESET ROLE; SELECT 'open: ' || open FROM idem.record WHERE open IS NOT NULL");
	is(() = $checked =~ /@{[ $checked =~ m{open: ([-\w]{26})} ]}/g, 1, 'nor the token of a claim');
}
my $opened = bob("$printing SELECT begins('printed', NULL); SET CONSTRAINTS ALL IMMEDIATE; RESET ROLE;
	SELECT 'open: ' || open FROM idem.record WHERE open IS NOT NULL");
like($opened, qr/open: [-\w]{26}/, 'a claim of another role is open');
unlike($opened =~ s/\s+/ /gr, qr/@{[ printed_as($opened =~ m{open: ([-\w]{26})}) ]}/, 'and no token of it');

# Names in the search_path -----------------------------------------------------------------------

my %said;
$node->safe_psql('postgres', 'CREATE ROLE shop; CREATE ROLE clerk IN ROLE shop; CREATE ROLE stranger');
for my $database ('plain', 'evil')
{
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	install_managed($node, $database);
	$node->safe_psql($database, $Traps::objects);
	$node->safe_psql($database, $Traps::traps) if $database eq 'evil';
	my $path = $database eq 'evil' ? $Traps::path : '';
	my (undef, $out, $err) = $node->psql($database, "\\set VERBOSITY sqlstate\n$path$Traps::managed_tour",
		on_error_stop => 0);
	$said{$database} = "$out\n" . join "\n", $err =~ /ERROR:\s+(\w{5})/g;
}
like($said{plain}, qr/"answer": 42.*\ncompleted\n.*completed\nfailed\n/s, 'the tour calls the functions');
is($said{evil}, $said{plain}, 'it has the same results among the traps');
$node->safe_psql('evil', 'DROP TABLE evil.scope, evil.record; DROP VIEW evil.scopes');
for my $view (split ' ', $node->safe_psql('evil', q{SELECT string_agg('idem.' || relname, ' ') FROM pg_class
	WHERE relnamespace = 'idem'::regnamespace AND relkind = 'v'}))
{
	my (undef, undef, $err) = $node->psql('evil', "$Traps::path SET ROLE stranger; SELECT * FROM $view",
		on_error_stop => 0);
	unlike($err, qr/trap/, "no trap is sprung when a stranger reads $view");
}

# What cancel() has not seen is not replaced: here, a message that is stored after it has looked.
my ($asker, $consumer) = map { $node->background_psql('postgres') } 1 .. 2;
$asker->query_safe(q{SELECT idem.create_scope('raced');
	ALTER FUNCTION idem_internal.check_new_key RENAME TO check_key_at_last;
	CREATE FUNCTION idem_internal.check_new_key(s idem.scope, tenant text, key text) RETURNS void
	LANGUAGE plpgsql SET search_path = pg_catalog AS $$
	BEGIN
	  IF current_query() LIKE '%cancel%' THEN
	    PERFORM pg_advisory_xact_lock(4711);
	  END IF;
	  PERFORM idem_internal.check_key_at_last($1, $2, $3);
	END $$});
$consumer->query_safe('SELECT pg_advisory_lock(4711)');
$asker->query_until(qr/asked/, "\\echo asked\nSELECT state FROM idem.cancel('raced', 'k');\n");
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_locks WHERE objid = 4711 AND NOT granted}) or die;
$consumer->query_safe(q{SELECT idem.once_each('raced', '{k}'::text[]); SELECT pg_advisory_unlock(4711)});
is($asker->query(''), 'completed', 'cancel() leaves a record that it has not seen');
$_->quit for $asker, $consumer;

done_testing();
