# Hostile surroundings: objects planted before CREATE EXTENSION and around every call, and oversized
# arguments. idem either works normally or refuses cleanly. Nothing crashes or leaks, and no planted
# code runs.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Traps;

my $node = idem_node('hostile', bare => 1, conf => "shared_preload_libraries = 'idem'\nfsync = off\n"
	. "log_statement = none");

# A value, or the SQLSTATE of the first error.
sub run_sql
{
	my ($sql, $database) = @_;
	my (undef, $stdout, $stderr) =
	  $node->psql($database // 'postgres', "\\set VERBOSITY sqlstate\n$sql", on_error_stop => 1);
	return $stderr =~ /ERROR:\s+(\w{5})/ ? $1 : $stdout;
}

sub fresh_database
{
	my ($name) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $name");
	return $name;
}

# Before CREATE EXTENSION ------------------------------------------------------------------------

my %planted = (
	'the schema' => 'CREATE SCHEMA idem',
	'the other schema' => 'CREATE SCHEMA idem_internal',
	'the schema of a stranger' =>
	  'CREATE ROLE squatter; CREATE SCHEMA idem AUTHORIZATION squatter',
	'a table of records' => 'CREATE SCHEMA idem; CREATE TABLE idem.record (LIKE pg_class)',
	'a view' => 'CREATE SCHEMA idem; CREATE VIEW idem.scopes AS SELECT 1',
	'a type' => 'CREATE SCHEMA idem; CREATE TYPE idem.claim_result AS (claimed boolean)',
	'a function' => 'CREATE SCHEMA idem; CREATE FUNCTION idem.claim(text, anycompatible, jsonb, text, interval, '
	  . "interval, interval) RETURNS int LANGUAGE sql AS 'SELECT 1'",
	'a sequence' => 'CREATE SCHEMA idem; CREATE SEQUENCE idem.scope_id',);
my $n = 0;
for my $what (sort keys %planted)
{
	my $database = fresh_database('planted' . ++$n);
	$node->safe_psql($database, $planted{$what});
	my $objects = q{SELECT (SELECT count(*) FROM pg_class) + (SELECT count(*) FROM pg_proc) + (SELECT count(*)
		FROM pg_type)};
	my $before = $node->safe_psql($database, $objects);
	is(run_sql('CREATE EXTENSION idem', $database), '42P06', "planted before: $what");
	is($node->safe_psql($database, $objects), $before, 'CREATE EXTENSION left nothing behind');
}
my $elsewhere = fresh_database('elsewhere');
is(run_sql('CREATE EXTENSION idem SCHEMA public', $elsewhere), '0A000', 'CREATE EXTENSION refuses another schema');

# Event triggers see DDL and may refuse it; then nothing is left. Calls of idem are not DDL.
my $refuse = q{CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no %', tg_event;
	END $$};
for my $event ('ddl_command_start', 'ddl_command_end')
{
	my $database = fresh_database($event);
	$node->safe_psql($database, "$refuse; CREATE EVENT TRIGGER refuse ON $event EXECUTE FUNCTION refuse()");
	is(run_sql('CREATE EXTENSION idem', $database), 'P0001', "an event trigger on $event refuses CREATE EXTENSION");
	is($node->safe_psql($database, q{SELECT count(*) FROM pg_namespace WHERE nspname ~ '^idem'}), 0,
		'a refused CREATE EXTENSION leaves no schema');
}

my $evil = fresh_database('evil');
$node->safe_psql($evil, $Traps::traps);
for my $spring (q{SELECT 'a'::text}, 'SELECT 1 OPERATOR(evil.=) 1', 'SELECT now()', 'SELECT 1 = 1',
	q{SELECT 'a'::pg_catalog.text || 'b'::pg_catalog.text},
	q{SELECT pg_has_role(10::pg_catalog.oid, 'USAGE'::pg_catalog.text)},
	q{SELECT '{}'::pg_catalog.jsonb = '{}'::pg_catalog.jsonb})
{
	is(run_sql("$Traps::path $spring", $evil), 'TRAPS', "the traps are set: $spring");
}
is(run_sql("$Traps::path CREATE EXTENSION idem", $evil), '', 'CREATE EXTENSION under a hostile search_path');
is(run_sql("BEGIN; $Traps::compile", $evil) =~ s/\s//gr, '', 'no declaration is of a planted type');
is( $node->safe_psql($evil, <<'SQL'), '', 'nothing in the extension depends on planted objects');
WITH RECURSIVE owned AS (
  SELECT classid, objid FROM pg_depend
   WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension
   WHERE extname = 'idem')),
inner_parts AS (
  SELECT classid, objid FROM owned
  UNION SELECT d.classid, d.objid FROM pg_depend d JOIN inner_parts i ON d.refclassid = i.classid
  AND d.refobjid = i.objid AND d.deptype IN ('i', 'a')),
planted AS (
  SELECT 'pg_proc'::regclass AS classid, oid AS objid FROM pg_proc WHERE pronamespace = 'evil'::regnamespace
  UNION ALL SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprnamespace = 'evil'::regnamespace
  UNION ALL SELECT 'pg_type'::regclass, oid FROM pg_type WHERE typnamespace = 'evil'::regnamespace
  UNION ALL SELECT 'pg_class'::regclass, oid FROM pg_class WHERE relnamespace = 'evil'::regnamespace)
SELECT pg_describe_object(d.classid, d.objid, 0), pg_describe_object(d.refclassid, d.refobjid, 0)
  FROM pg_depend d JOIN inner_parts i USING (classid, objid)
  JOIN planted p ON p.classid = d.refclassid AND p.objid = d.refobjid
SQL

$node->safe_psql($evil, 'CREATE ROLE shop; CREATE ROLE clerk IN ROLE shop');
$node->safe_psql($evil, $Traps::objects);
my $expected = run_sql($Traps::tour, do
{
	my $plain = fresh_database('plain');
	$node->safe_psql($plain, "CREATE EXTENSION idem; $Traps::objects");
	$plain;
});
like($expected, qr/"answer": 42.*\n.*conflict\|\{amount,to\}\ncompleted\n.*completed\nfailed\n.*\n0\Z/s,
	'the tour makes every call');
my $callable = $node->safe_psql($evil, <<'SQL');
SELECT string_agg(DISTINCT pronamespace::regnamespace || '.' || proname || '(', ' ') FROM pg_proc
  WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace) AND prorettype <> 'trigger'::regtype
SQL
my $views = $node->safe_psql($evil, q{SELECT string_agg('idem.' || relname, ' ') FROM pg_class
	WHERE relnamespace = 'idem'::regnamespace AND relkind = 'v'});
ok(index($Traps::tour, $_) >= 0, "the tour visits $_") for split ' ', "$callable $views";
is(run_sql($Traps::path . $Traps::tour, $evil), $expected, 'the tour has the same results among the traps');
is($node->safe_psql($evil, 'SELECT count(*) FROM evil.record'), 0, "nothing was written to planted tables");

# The planner may evaluate the columns of a view before it has hidden the rows.
$node->safe_psql($evil, 'CREATE ROLE stranger; DROP TABLE evil.scope, evil.record; DROP VIEW evil.scopes');
for my $view (split ' ', $views)
{
	unlike(run_sql("$Traps::path SET ROLE stranger; SELECT * FROM $view", $evil), qr/TRAPS/,
		"no trap is sprung when a stranger reads $view");
}

# Row security on idem's own tables: idem writes and reads them without the executor, so that it does
# not apply; row_security does not affect the views. A BEFORE trigger is refused where it would fire.
$node->safe_psql($evil, <<'SQL');
SELECT idem.once('shop', '4711', tenant => '4711');
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
DO $$
DECLARE t regclass;
BEGIN
  FOREACH t IN ARRAY '{idem.record, idem.scope, idem.secret}'::regclass[] LOOP
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY nobody ON %s USING (false)', t);
  END LOOP;
END $$;
SQL
for my $row_security ('on', 'off')
{
	my $answer = '{"answer": 1}';
	is( run_sql(<<"SQL", $evil), "$answer\nelsewhere\nshop\n$answer\n4711", "row_security = $row_security");
SET row_security = $row_security;
SET ROLE clerk;
SELECT idem.complete(token, '{"answer": 1}') FROM idem.claim('shop', 'secured $row_security');
SELECT name FROM idem.scopes ORDER BY name;
SELECT response FROM idem.claim('shop', 'secured $row_security');
SELECT tenant FROM idem.records WHERE weakness IS NOT NULL;
SQL
}
for my $table ('record', 'scope', 'secret')
{
	$node->safe_psql($evil, "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON idem.$table FOR EACH ROW
		EXECUTE FUNCTION public.refuse(); ALTER TABLE idem.$table ENABLE ALWAYS TRIGGER refuse");
}
is(run_sql($_, $evil), '55000', "a BEFORE trigger is refused: $_")
  for "SELECT idem.once('shop', 'triggers')", q{SELECT idem.create_scope('triggers')}, 'SELECT idem.rotate_secret()';
is(run_sql(q{SELECT response FROM idem.claim('shop', 'secured on')}, $evil), '{"answer": 1}',
	'what is only read goes on');
$node->safe_psql($evil, "DROP TRIGGER refuse ON idem.$_") for 'record', 'scope', 'secret';
$node->safe_psql($evil, <<'SQL');
CREATE FUNCTION public.no_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no ddl'; END $$;
CREATE EVENT TRIGGER at_start ON ddl_command_start EXECUTE FUNCTION public.no_ddl();
SQL
is( run_sql(q{SELECT idem.create_scope('after the event'); SELECT idem.once('after the event', 'k');
	SELECT idem.drop_scope('after the event')}, $evil),
	"\nt\n", 'event triggers do not fire for idem');
is(run_sql(q{SELECT idem.create_record_table('refused')}, $evil), 'P0001',
	'but for the statements that make a record table');
is(run_sql('DROP EXTENSION idem', $evil), 'P0001', 'event triggers fire for DDL');
$node->safe_psql($evil, 'DROP EVENT TRIGGER at_start');

# What SQL can call at all.
is( $node->safe_psql($evil, <<'SQL'), '', 'no function takes or returns what SQL cannot make');
SELECT oid::regprocedure FROM pg_proc WHERE pronamespace IN ('idem'::regnamespace, 'idem_internal'::regnamespace)
   AND NOT EXISTS (SELECT FROM pg_type WHERE pg_proc.oid IN (typinput, typoutput))
   AND ('internal'::regtype = ANY (proargtypes::oid[]) OR 'cstring'::regtype = ANY (proargtypes::oid[])
   OR prorettype IN ('internal'::regtype, 'cstring'::regtype))
SQL
is(run_sql(q{SET ROLE clerk; CREATE FUNCTION pg_temp.claim(internal) RETURNS internal AS '$libdir/idem', 'idem_claim'
	LANGUAGE C}, $evil),
	'42501', 'only a superuser can give the C symbols another signature');

# Temporary schemas and operations that misbehave --------------------------------------------------

my $db = fresh_database('work');
install_payments($node, $db);
$node->safe_psql($db, <<'SQL');
CREATE EXTENSION amcheck;
CREATE ROLE worker;
SELECT idem.create_scope('work', owner => 'worker', wait => '0', max_answer_size => 67108864,
  final_sqlstates => '{P0001}', response_exclude => '{a.a.a.a, items.token}',
  request_exclude => '{a.a.a.a, items.seen_at}');
SELECT idem.create_scope('plain', owner => 'worker', wait => '0', max_answer_size => 67108864);
CREATE TABLE effect (key text);
GRANT ALL ON effect TO PUBLIC;
SQL
my %operation = (
	'drops itself' => [ 'completed', q{BEGIN EXECUTE 'DROP FUNCTION pg_temp.operation'; RETURN '1'; END} ],
	'claims its own key' => [ 'ID001', q{BEGIN PERFORM idem.claim('work', 'op'); RETURN '1'; END} ],
	'claims others and completes them' => [ 'completed', q{BEGIN PERFORM
		idem.complete((idem.claim('work', 'op ' || i)).token) FROM generate_series(1, 50) i; RETURN '1'; END} ],
	'leaves a claim open' => [ 'ID006', q{BEGIN PERFORM idem.claim('work', 'op open'); RETURN '1'; END} ],
	'changes the role' => [ 'completed', q{BEGIN SET LOCAL ROLE worker; RETURN '1'; END} ],
	'commits' => [ '2D000', q{BEGIN COMMIT; RETURN '1'; END} ],
	'calls itself until the stack is full' => [ '54001', q{BEGIN RETURN (idem.execute('work', 'op' || (request->>'n'),
		'pg_temp.operation(jsonb)', jsonb_build_object('n', (request->>'n')::int + 1))).response; END} ],
	'fails with a megabyte' => [ 'failed', q{BEGIN RAISE '%', repeat('x', 1000000); END} ],
	'fails with more than is allowed' => [ '54000', q{BEGIN RAISE '%', repeat('x', 65 * 1024 * 1024); END} ],
	'says that it is in our class' => [ 'ID001', q{BEGIN RAISE EXCEPTION USING ERRCODE = 'ID001'; END} ],
	'drops its scope' => [ '55000', q{BEGIN PERFORM idem.drop_scope('plain'); RETURN '1'; END}, 'plain' ],
	'changes its scope' => [ '55000', q{BEGIN PERFORM idem.alter_scope('plain', store_response => false,
		owner => current_user::regrole); RETURN '1'; END}, 'plain' ],
	'drops the extension' => [ '55000', q{BEGIN EXECUTE 'DROP EXTENSION idem CASCADE'; RETURN '1'; END} ],
	'returns nothing' => [ 'completed', q{BEGIN RETURN NULL; END} ],);
for my $what (sort keys %operation)
{
	my ($outcome, $body, $scope) = @{ $operation{$what} };
	$scope //= 'work';
	like( run_sql(<<"SQL", $db), qr/^$outcome/m, "an operation that $what");
CREATE FUNCTION pg_temp.operation(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS \$\$ $body \$\$;
BEGIN;
SELECT outcome FROM idem.execute('$scope', 'op', 'pg_temp.operation(jsonb)', '{"n": 0}');
SET CONSTRAINTS ALL IMMEDIATE;
COMMIT;
BEGIN;
SELECT idem.forget('$scope', 'op') FROM idem.scopes WHERE name = '$scope';
COMMIT;
SQL
	is(locks($node), 0, 'an operation that misbehaves leaves no lock');
	$node->safe_psql($db, q{DELETE FROM idem.record;
		SELECT idem.create_scope('plain', owner => 'worker', wait => '0', max_answer_size => 67108864)
		WHERE NOT EXISTS (SELECT FROM idem.scope WHERE name = 'plain')});
}

# Requests and responses ---------------------------------------------------------------------------

# As deep as the server's own parser allows, on a small stack and on a large one, whole and without
# a path; beyond that the server refuses.
for my $stack ('100kB', '2MB', '7MB')
{
	for my $scope ('plain', 'work')
	{
		for my $shape ('array', 'object')
		{
			my ($open, $close) = $shape eq 'array' ? ('[', ']') : ('{"a": ', '}');
			for my $depth (10, 100, 130, 1000, 3000, 6000, 20_000, 100_000)
			{
				my $json = "(repeat('$open', $depth) || '1' || repeat('$close', $depth))::jsonb";
				my $got = run_sql(<<"SQL", $db);
SET max_stack_depth = '$stack';
BEGIN;
SELECT idem.complete(token, $json) IS NOT NULL FROM idem.claim('$scope', '$shape $stack $depth', $json);
SELECT outcome FROM idem.claim('$scope', '$shape $stack $depth', $json);
COMMIT;
SQL
				like($got, qr/^(t\ncompleted|54001)$/, "a $shape, $depth deep, stack $stack, scope $scope");
			}
		}
	}
}
is(run_sql(q{SELECT idem.complete(token, r) = r FROM (SELECT (repeat('[', 1000) || repeat(']', 1000))::jsonb AS r) r,
	idem.claim('plain', 'deep', r)}, $db),
	't', 'a thousand levels are accepted');

for my $case ([ plain => 1_000_000 ], [ work => 100_000 ])
{
	my ($scope, $members) = @$case;
	for my $json ("(SELECT jsonb_agg(i) FROM generate_series(1, $members) i)",
		"(SELECT jsonb_object_agg('member ' || i, i) FROM generate_series(1, $members) i)",
		"(SELECT jsonb_build_object('items', jsonb_agg(jsonb_build_object('token', 1, 'seen_at', i, 'n', 2)))
			FROM generate_series(1, $members / 5) i)")
	{
		is( run_sql(<<"SQL", $db), "t\nt\nconflict\nt", "scope $scope: " . substr($json, 8, 40));
CREATE TEMP TABLE big AS SELECT $json AS j;
BEGIN;
SELECT idem.complete(token, j) = j FROM big, idem.claim('$scope', 'million', j);
COMMIT;
SELECT length(response::text) > 100000 FROM big, idem.claim('$scope', 'million', j);
SELECT outcome FROM big, idem.try_claim('$scope', 'million', jsonb_build_array(j));
SELECT idem.forget('$scope', 'million');
SQL
	}
}

# Keys with many bytes per character, unusual characters, or no valid characters.
my %keys = (
	'255 bytes of é' => [ q{repeat('é', 127) || 'x'}, 'claimed' ],
	'256 bytes of é' => [ q{repeat('é', 128)}, 'ID007' ],
	'255 bytes of €' => [ q{repeat('€', 85)}, 'claimed' ],
	'258 bytes of €' => [ q{repeat('€', 86)}, 'ID007' ],
	'252 bytes of a clef' => [ q{repeat('𝄞', 63)}, 'claimed' ],
	'256 bytes of a clef' => [ q{repeat('𝄞', 64)}, 'ID007' ],
	'composed' => [ q{U&'caf\00E9'}, 'claimed' ],
	'decomposed' => [ q{U&'cafe\0301'}, 'claimed' ],
	'a zero-width space' => [ q{U&'\200B'}, 'claimed' ],
	'a byte order mark' => [ q{U&'\FEFF'}, 'claimed' ],
	'right to left' => [ q{U&'\202Eabc'}, 'claimed' ],
	'control characters' => [ q{E'\x01\x02\r\n\t\x7f'}, 'claimed' ],
	'one blank' => [ q{' '}, 'claimed' ],
	'two blanks' => [ q{'  '}, 'claimed' ],
	'percent signs' => [ q{'%s%n%x%1$s'}, 'claimed' ],
	'a quote' => [ q{$$' OR 1=1; --$$}, 'claimed' ],
	'a backslash' => [ q{$$\\x00$$}, 'claimed' ],);
for my $what (sort keys %keys)
{
	my ($key, $outcome) = @{ $keys{$what} };
	is(run_sql("SELECT (idem.try_claim('plain', key)).outcome, idem.release(token) FROM (SELECT $key AS key) k,
		LATERAL idem.try_claim('plain', key || '')", $db) =~ /^(\w+)/ ? $1 : '',
		$outcome eq 'claimed' ? 'in_progress' : $outcome, "a key of $what");
	next if $outcome ne 'claimed';
	is( run_sql(<<"SQL", $db), "t\nt\nt", 'the key comes back unchanged, as key and as tenant');
BEGIN;
SELECT idem.complete(token, to_jsonb(key)) = to_jsonb(key) FROM (SELECT $key AS key) k,
  idem.claim('plain', key, tenant => key);
COMMIT;
SELECT response = to_jsonb(key) FROM (SELECT $key AS key) k, idem.claim('plain', key, tenant => key);
SELECT count(*) = 1 FROM idem.record WHERE coalesce(key, key_uuid::text) = $key AND tenant = $key;
SQL
}
is($node->safe_psql($db, q{SELECT count(*), count(DISTINCT digest), count(DISTINCT tenant) FROM idem.record
	WHERE tenant = coalesce(key, key_uuid::text)}) =~ /^(\d+)\|\1\|\1$/ ? 1 : 0,
	1, 'each of them is a different key');

# Answers ------------------------------------------------------------------------------------------

# The default limit, to the byte, in each way in which a statement can fail without its transaction.
my $body = sub { my ($bytes) = @_; "convert_to(repeat('x', $bytes), 'UTF8')" };
my $limit = 64 * 1024 * 1024;
is( run_sql("SELECT idem.complete(token, body => @{[ $body->($limit) ]}) IS NULL FROM idem.claim('plain', 'largest')",
		$db),
	't', 'an answer of 64 MB is stored');
is(run_sql("SELECT length(body) FROM idem.claim('plain', 'largest')", $db), $limit, 'an answer of 64 MB is replayed');
is( run_sql("SELECT idem.complete(token, body => @{[ $body->($limit + 1) ]}) FROM idem.claim('plain', 'too large')",
		$db),
	'54000', 'an answer of 64 MB and one byte is refused');
is( run_sql(<<"SQL", $db), '54000', 'the limit applies to the sum of the parts');
SELECT idem.complete(token, to_jsonb(repeat('x', 30000000)), headers => jsonb_build_object('x', repeat('x', 30000000)),
  body => @{[ $body->(30000000) ]})
  FROM idem.claim('plain', 'too large')
SQL
is( run_sql(<<"SQL", $db), '54000', 'the refusal fails the transaction with its effect');
BEGIN;
INSERT INTO effect VALUES ('too large');
SELECT token FROM idem.claim('plain', 'too large') \\gset
SELECT idem.complete(:'token', to_jsonb(repeat('x', 100000000)));
COMMIT;
SQL
is( $node->safe_psql($db, q{SELECT (SELECT count(*) FROM effect), (idem.lookup('plain', 'too large')).state}),
	'0|absent', 'nothing of it is left');

my (undef, $stdout, $stderr) = $node->psql($db, <<"SQL", on_error_stop => 0);
BEGIN;
SELECT token FROM idem.claim('plain', 'too large') \\gset
SAVEPOINT s;
INSERT INTO effect VALUES ('too large');
SELECT idem.complete(:'token', to_jsonb(repeat('x', 100000000)));
ROLLBACK TO s;
SELECT (idem.lookup('plain', 'too large')).state;
INSERT INTO effect VALUES ('small enough');
SELECT idem.complete(:'token', '"small"');
COMMIT;
SELECT string_agg(key, ',') FROM effect;
SELECT response FROM idem.claim('plain', 'too large');
SQL
is($stdout, qq(in_progress\n"small"\nsmall enough\n"small"),
	'within a savepoint: the claim is still open and completes with a smaller answer');
like($stderr,
	qr/answer is too large\n.*DETAIL:  It has 1000000\d\d bytes; "max_answer_size" of scope/,
	'the error names the limit');
like($stderr, qr/ of scope "plain" allows 67108864 bytes/, 'and says what it allows');
is( run_sql(<<"SQL", $db), qq(64\n"54000"), 'within an EXCEPTION block: the failure is stored, the effect is not');
TRUNCATE effect;
DO \$\$
DECLARE token text := (idem.claim('plain', 'caught')).token;
BEGIN
  BEGIN
    INSERT INTO effect SELECT 'caught';
    PERFORM idem.complete(token, to_jsonb(repeat('x', 100000000)));
  EXCEPTION WHEN program_limit_exceeded THEN
    PERFORM idem.complete(token, to_jsonb(SQLSTATE));
  END;
END \$\$;
SELECT count(*) + 64 FROM effect;
SELECT response FROM idem.claim('plain', 'caught');
SQL

# Hundreds of megabytes, where the scope allows them; and a gigabyte, which is always too much.
$node->safe_psql('postgres', q{ALTER ROLE worker LOGIN});
$node->safe_psql($db, q{SELECT idem.alter_scope('plain', max_answer_size => 536870912)});
sub run_as_worker
{
	my ($sql) = @_;
	my (undef, $out, $err) = $node->psql($db, "\\set VERBOSITY sqlstate\n$sql", extra_params => [ '-U', 'worker' ]);
	return $err =~ /(?:ERROR|FATAL):\s+(\w{5})/ ? $1 : $out;
}
is(run_as_worker("SELECT idem.complete(token, body => @{[ $body->(300 * 1024 * 1024) ]}) IS NULL
	FROM idem.claim('plain', 'huge')"), 't', 'an answer of 300 MB is stored if the scope allows it');
is(run_as_worker("SELECT length(body) FROM idem.claim('plain', 'huge')"), 300 * 1024 * 1024,
	'an answer of 300 MB is replayed');
is(run_as_worker("SELECT idem.complete(token, body => @{[ $body->(512 * 1024 * 1024 + 1) ]})
	FROM idem.claim('plain', 'huger')"), '54000', 'an answer of more than 512 MB is refused');
is(run_as_worker("SELECT idem.complete(token, body => @{[ $body->(1024 * 1024 * 1024) ]})
	FROM idem.claim('plain', 'huger')"), '54000', 'a value of a gigabyte is refused');
is(run_as_worker("SELECT idem.alter_scope('plain', max_answer_size => 1024)"), '42501',
	'a role that uses a scope cannot change its limit');

# Headers ------------------------------------------------------------------------------------------

# No form of headers gets past header_exclude, and none that could end a header and begin another is
# stored. The same holds for a record that a superuser or a subscription has written.
my %form = (
	'a string' => '"Set-Cookie: sid=evil"', 'a number' => '1', 'null' => 'null', 'an array' => '[]',
	'an array of names' => '["Set-Cookie"]',
	'pairs' => '[["Set-Cookie", "sid=evil"], ["X-A", "1"]]',
	'objects with name and value' => '[{"name": "Set-Cookie", "value": "sid=evil"}]',
	'objects as PostgREST takes them' => '[{"Set-Cookie": "sid=evil"}]',
	'an object in an object' => '{"X-A": {"Set-Cookie": "sid=evil"}}',
	'pairs in an object' => '{"headers": [["Set-Cookie", "sid=evil"]]}',
	'objects in an array' => '{"X-A": [{"Set-Cookie": "sid=evil"}]}', 'an array in an array' => '{"X-A": [["1"]]}',
	'a value that is a number' => '{"X-A": 1}', 'a value that is null' => '{"X-A": null}',
	'a value that is true' => '{"X-A": [true]}',
	'no name' => '{"": "1"}', 'a blank after a name' => '{"Set-Cookie ": "sid=evil"}',
	'a blank before a name' => '{" Set-Cookie": "sid=evil"}', 'a tab in a name' => '{"Set-Cookie\t": "sid=evil"}',
	'a colon in a name' => '{"Set-Cookie:": "sid=evil"}', 'a pair in a name' => '{"X-A: 1\r\nSet-Cookie": "sid=evil"}',
	'a line break in a name' => '{"X-A\nSet-Cookie": "1"}',
	'a name with a comma' => '{"X-A,Set-Cookie": "1"}', 'a quoted name' => '{"\"X-A\"": "1"}',
	'a name that is not ASCII' => '{"Sët-Cookie": "1"}', 'a name in full width' => '{"Ｓet-Cookie": "1"}',
	'a name with a zero-width space' => '{"Set-Cookie\u200b": "1"}', 'a name with DEL' => '{"Set-Cookie\u007f": "1"}',
	'a name with a soft hyphen' => '{"Set\u00adCookie": "1"}',
	'CR and LF in a value' => '{"X-A": "1\r\nSet-Cookie: sid=evil"}',
	'LF in a value' => '{"X-A": "1\nSet-Cookie: sid=evil"}', 'CR in a value' => '{"X-A": "1\rSet-Cookie: sid=evil"}',
	'a folded value' => '{"X-A": "1\r\n 2"}', 'a value that is folded with a tab' => '{"X-A": "1\n\t2"}',
	'CR at the end' => '{"X-A": "1\r"}',
	'a line break in the second value' => '{"X-A": ["1", "2\r\nSet-Cookie: sid=evil"]}',
	'a bell in a value' => '{"X-A": "\u0007"}', 'DEL in a value' => '{"X-A": "\u007f"}',
	'a vertical tab in a value' => '{"X-A": "\u000b"}',);
run_sql(q{SELECT idem.complete(token, '1', 200, '{"X-A": "1"}') FROM idem.claim('plain', 'written by others')}, $db);
for my $what (sort keys %form)
{
	for my $call (q{complete(:'token', '1', 200, }, q{fail(:'token', '{"message": "no"}', 400, })
	{
		is(run_sql("BEGIN; SELECT token FROM idem.claim('plain', 'headers') \\gset\nSELECT idem.$call'$form{$what}')",
				$db), '22023', "headers with $what are refused: " . $call =~ s/\(.*//r);
	}
	is(run_sql(qq(UPDATE idem.record SET headers = '$form{$what}'
		WHERE key = 'written by others';\nSELECT idem.http_headers(c) FROM idem.claim('plain', 'written by others') c),
		$db), '22023',
		"stored headers with $what are not sent");
}
my $kept = '{"X-A": "1", "Vary": ["Accept", "Origin"], "Empty": []}';
is( run_sql(<<'SQL', $db), "$kept\nt\n$kept", 'of the documented form, only those that the scope excludes go');
BEGIN;
SELECT token FROM idem.claim('plain', 'documented headers') \gset
SELECT idem.complete(:'token', '1', 200,
  '{"X-A": "1", "SET-Cookie": "sid=evil", "set-cookie": ["a", "b"], "Vary": ["Accept", "Origin"],
    "Authorization": "x", "Empty": []}') \gset
COMMIT;
SELECT headers FROM idem.lookup('plain', 'documented headers');
SELECT redacted FROM idem.lookup('plain', 'documented headers');
SELECT headers FROM idem.claim('plain', 'documented headers');
SQL

# Many claims --------------------------------------------------------------------------------------

is( run_sql(<<'SQL', $db), "claimed,claimed,claimed\nclaimed,claimed\n3", 'max_open_claims counts through savepoints');
SET idem.max_open_claims = 3;
BEGIN;
SAVEPOINT s;
SELECT string_agg((idem.try_claim('plain', 'many ' || i)).outcome, ',') FROM generate_series(1, 3) i;
ROLLBACK TO s;
SELECT (idem.claim('plain', 'one')).outcome \gset
SAVEPOINT s2;
SELECT string_agg((idem.try_claim('plain', 'more ' || i)).outcome, ',') FROM generate_series(1, 2) i;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory';
ROLLBACK;
SQL
is(run_sql(q{SET idem.max_open_claims = 3; SELECT count(idem.try_claim('plain', 'many ' || i))
	FROM generate_series(1, 4) i}, $db), '54000', 'and refuses one more');
is(run_sql(q{SELECT count(idem.release((idem.claim('plain', 'batch ' || i)).token)) FROM generate_series(1, 2001) i},
		$db), '54000', 'the default is 2,000');

# Cancelled calls ---------------------------------------------------------------------------------

# Cancelled at a random point: walking the request, writing the answer, reading it.
for my $timeout (1, 2, 5, 10, 20, 40, 80, 160, 320)
{
	$node->psql($db, <<"SQL", on_error_stop => 0);
CREATE TEMP TABLE big AS SELECT jsonb_object_agg('member ' || i, i) AS j FROM generate_series(1, 100000) i;
SET statement_timeout = $timeout;
BEGIN;
SAVEPOINT s;
SELECT idem.complete(token, j) = j FROM big, idem.claim('work', 'cancelled $timeout', j);
ROLLBACK TO s;
SELECT idem.complete(token, j) = j FROM big, idem.claim('work', 'cancelled $timeout', j);
COMMIT;
SELECT response = j FROM big, idem.claim('work', 'cancelled $timeout', j);
SQL
	is(locks($node), 0, "cancelled after $timeout ms: no lock is left");
}
for my $round (1 .. 3)
{
	my $session = $node->background_psql($db, on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');
	$session->query_until(qr/begun/, <<"SQL");
\\echo begun
DO \$\$ BEGIN FOR i IN 1..1000000 LOOP PERFORM idem.once('work', 'round $round ' || i); COMMIT; END LOOP; END \$\$;
SQL
	$node->poll_query_until($db, "SELECT count(*) > 0 FROM idem.record WHERE key LIKE 'round $round %'")
	  or die 'no progress';
	$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
	ok($node->poll_query_until($db, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"), 'terminated');
	eval { $session->quit };
	is(locks($node), 0, 'a terminated backend leaves no lock');
}

is($node->safe_psql($db, q{SELECT bt_index_check('idem.record_pkey', true)}), '', 'the index has every record');
is($node->safe_psql($db, 'SELECT count(*) - count(DISTINCT (scope, tenant, coalesce(key, key_uuid::text)))
	FROM idem.record'), 0, 'no key has two records');
log_is_clean($node);

# Another server ----------------------------------------------------------------------------------

# postgres_fdw commits there when the local transaction commits. An open claim is refused before that.
SKIP:
{
	skip 'postgres_fdw is not installed', 1
	  unless $node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'});
	my $far = fresh_database('far');
	my $near = fresh_database('near');
	$node->safe_psql($far, 'CREATE TABLE effect (i int)');
	$node->safe_psql($near, "CREATE EXTENSION idem; CREATE EXTENSION postgres_fdw; SELECT idem.create_scope('plain');
		CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (dbname 'far', host '" . $node->host . "', port '"
		  . $node->port . "'); CREATE USER MAPPING FOR CURRENT_USER SERVER far;
		CREATE FOREIGN TABLE effect (i int) SERVER far");
	$node->psql($near, <<'SQL', on_error_stop => 0);
TABLE effect;
BEGIN; SELECT FROM idem.claim('plain', 'forgotten'); INSERT INTO effect VALUES (1); COMMIT;
BEGIN; SELECT FROM idem.claim('plain', 'forgotten'); INSERT INTO effect VALUES (2); COMMIT;
SQL
	$node->psql($near, <<'SQL', on_error_stop => 0);
BEGIN; SELECT idem.once('plain', 'first'); TABLE effect; SELECT FROM idem.claim('plain', 'forgotten');
INSERT INTO effect VALUES (3); COMMIT;
SQL
	is($node->safe_psql($far, 'SELECT count(*) FROM effect'), 0,
		'a forgotten claim leaves no effect on another server');
}

# Whose code runs ---------------------------------------------------------------------------------

# On a managed server, the tables belong to a role that is no superuser (SECURITY.md). It plants its
# functions wherever PostgreSQL allows that, in record tables whose rows have expired, or whose answers
# have. The purge worker, and the calls with which a superuser cleans up, never run them with more
# rights than the role's own; and what they cannot clean up, health() names.
my $power = idem_node('power', bare => 1, conf => "shared_preload_libraries = 'idem'\nidem.purge_naptime = 1s\n"
	. "fsync = off\nlog_statement = none");

# As the role: a value, or the SQLSTATE of the first error.
sub as_app
{
	my ($database, $sql) = @_;
	my (undef, $out, $err) = $power->psql($database, "\\set VERBOSITY sqlstate\n$sql", extra_params => [ '-U', 'app' ],
		on_error_stop => 1);
	return $err =~ /ERROR:\s+(\w{5})/ ? $1 : $out;
}

$power->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE DATABASE tables OWNER app; CREATE DATABASE own OWNER app');
for my $database (qw(tables own))
{
	$power->safe_psql($database, <<"SQL");
CREATE EXTENSION idem;
ALTER TABLE idem.record OWNER TO app;
GRANT USAGE, CREATE ON SCHEMA idem TO app;
GRANT USAGE ON TYPE idem.key_digest TO app;
SELECT idem.create_scope('here', owner => 'app', answer_ttl => '1 ms');
SELECT idem.create_scope('there', owner => 'app', answer_ttl => '1 ms', records => true);
SQL
	as_app($database, <<'SQL');
CREATE SCHEMA app;
CREATE FUNCTION app.spring(trap text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
    RAISE LOG 'sprung with power: %', trap;
    EXECUTE 'ALTER ROLE app SUPERUSER';
  END IF;
END $$;
CREATE FUNCTION app.text(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM app.spring('text');
RETURN $1; END $$;
CREATE FUNCTION app.whole(jsonb) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM app.spring('whole');
RETURN 'x'; END $$;
CREATE FUNCTION app.condition(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
  PERFORM app.spring('condition'); RETURN true; END $$;
CREATE FUNCTION app.difference(text, text) RETURNS float8 IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
  PERFORM app.spring('difference'); RETURN 0; END $$;
CREATE FUNCTION app.equal(text, text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
  PERFORM app.spring('equal'); RETURN true; END $$;
CREATE FUNCTION app.trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM app.spring('trigger');
RETURN coalesce(NEW, OLD); END $$;
CREATE OPERATOR app.=== (FUNCTION = app.equal, LEFTARG = text, RIGHTARG = text);
CREATE DOMAIN app.tenant AS text;
CREATE DOMAIN app.number AS integer;
CREATE TYPE app.pair AS (first app.tenant, second text);
CREATE TYPE app.span AS RANGE (SUBTYPE = text, SUBTYPE_DIFF = app.difference);
SQL
}

# What is planted in the table %s.
my %planting = (
	'nothing' => 'SELECT',
	'an index expression' => 'CREATE INDEX ON %s (app.text(tenant))',
	'an index expression over the answer' => 'CREATE INDEX ON %s (app.whole(response))',
	'a unique index expression' => 'CREATE UNIQUE INDEX ON %s (digest, app.text(tenant))',
	'a constant in an index expression' => q{CREATE INDEX ON %s ((app.text('x') || tenant))},
	'a constant in an index predicate' => q{CREATE INDEX ON %s (scope) WHERE app.condition('x') AND attempt > 0},
	'a constant in a partition key' => q{CREATE TABLE %s_root (LIKE %s) PARTITION BY LIST ((app.text('x') || tid));
		ALTER TABLE %s_root ATTACH PARTITION %s DEFAULT},
	'an index predicate' => 'CREATE INDEX ON %s (scope) WHERE app.condition(tenant)',
	'an operator in an index expression' => 'CREATE INDEX ON %s ((tenant OPERATOR(app.===) key))',
	'a cast to a domain in an index' => 'CREATE INDEX ON %s ((tenant::app.tenant))',
	'an operator class' => 'CREATE OPERATOR CLASS app.trap FOR TYPE text USING btree
		AS FUNCTION 1 app.difference(text, text); CREATE INDEX ON %s (tenant app.trap)',
	'a collation' => q{CREATE COLLATION app.loose (PROVIDER = icu, LOCALE = 'und', DETERMINISTIC = false);
		CREATE INDEX ON %s (tenant COLLATE app.loose)},
	'an exclusion constraint' => 'ALTER TABLE %s ADD EXCLUDE USING btree (app.text(coalesce(key, key_uuid::text))
		WITH =)',
	'a CHECK' => 'ALTER TABLE %s ADD CHECK (app.condition(tenant)) NOT VALID',
	'a generated column' => 'ALTER TABLE %s ADD COLUMN made text GENERATED ALWAYS AS (app.text(tenant)) STORED',
	'a default' => q{ALTER TABLE %s ADD COLUMN made text DEFAULT app.text('x'), ALTER COLUMN tenant SET
		DEFAULT app.text('x')},
	'a column of a domain' => 'ALTER TABLE %s ADD COLUMN made app.tenant',
	'a domain over the tenant' => 'ALTER TABLE %s ALTER COLUMN tenant TYPE app.tenant',
	'a domain over the attempt' => 'ALTER TABLE %s ALTER COLUMN attempt TYPE app.number',
	'a domain over the column of tenants' => 'ALTER TABLE %s ALTER COLUMN tid TYPE app.tenant',
	'a composite type' => 'ALTER TABLE %s ADD COLUMN made app.pair',
	'a range type' => 'ALTER TABLE %s ADD COLUMN made app.span',
	'triggers' => 'CREATE TRIGGER a BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION app.trigger();
		CREATE TRIGGER b AFTER UPDATE OR DELETE ON %s EXECUTE FUNCTION app.trigger();
		ALTER TABLE %s ENABLE ALWAYS TRIGGER a; ALTER TABLE %s ENABLE ALWAYS TRIGGER b',
	'rules' => 'CREATE RULE a AS ON DELETE TO %s DO ALSO SELECT app.spring(OLD.tenant);
		CREATE RULE b AS ON UPDATE TO %s DO INSTEAD SELECT app.spring(OLD.tenant)',
	'row security' => 'CREATE POLICY p ON %s USING (app.condition(tenant)); ALTER TABLE %s ENABLE ROW LEVEL SECURITY;
		ALTER TABLE %s FORCE ROW LEVEL SECURITY',
	'statistics' => 'CREATE STATISTICS app.estimate ON (app.text(tenant)), (app.text(\'x\') || tenant), scope FROM %s',
	'a partition key' => 'CREATE TABLE %s_root (LIKE %s) PARTITION BY LIST (app.text(tenant));
		ALTER TABLE %s_root ATTACH PARTITION %s DEFAULT',
	'a partition key with a domain' => q{CREATE TABLE %s_root (LIKE %s) PARTITION BY LIST ((tenant::app.tenant));
		ALTER TABLE %s_root ATTACH PARTITION %s FOR VALUES IN ('acme')},
	'a child' => 'CREATE TABLE %s_child () INHERITS (%s); CREATE INDEX ON %s_child (app.text(tenant));
		INSERT INTO %s_child SELECT * FROM %s',
	'a parent' => 'CREATE TABLE %s_parent (LIKE %s); ALTER TABLE %s INHERIT %s_parent',
	'a foreign key to it' => 'CREATE TABLE %s_referring (LIKE %s, FOREIGN KEY (digest, tid) REFERENCES %s ON
		DELETE CASCADE); INSERT INTO %s_referring SELECT * FROM %s;
		CREATE TRIGGER a BEFORE DELETE ON %s_referring FOR EACH ROW EXECUTE FUNCTION app.trigger()',);
my @planted = sort keys %planting;

# The domains get their constraints afterwards.
my $arm = 'ALTER DOMAIN app.tenant ADD CHECK (app.condition(VALUE)) NOT VALID;
	ALTER DOMAIN app.number ADD CHECK (app.condition(VALUE::text)) NOT VALID';
my @refused;
for my $n (0 .. $#planted)
{
	$power->safe_psql('tables', "SELECT idem.create_record_table('app.t$n', 'tid', 'text');
		ALTER TABLE app.t$n OWNER TO app");
	is(as_app('tables', <<"SQL"), "t\nt", "a record table for $planted[$n]");
BEGIN;
SELECT idem.use_records('app.t$n') \\gset
SELECT idem.complete(token, '{"card": 4711}') IS NOT NULL FROM idem.claim('there', 'kept $n', tenant => 'acme');
SELECT idem.complete(token, '{"card": 4711}') IS NOT NULL FROM idem.claim('there', 'expired $n', tenant => 'acme',
  ttl => '1 ms');
COMMIT;
SQL
	my $answer = as_app('tables', $planting{ $planted[$n] } =~ s/%s/app.t$n/gr);
	push @refused, "$planted[$n] ($answer)" if $answer =~ /^\w{5}$/;
}
note 'PostgreSQL refused the role: ', join ', ', @refused;
as_app('tables', $arm);
# A domain of the role over which a superuser makes a table, and a table of a superuser partitioned by
# a function of the role: either is refused, or harmless.
$power->psql('tables', <<'SQL', on_error_stop => 0);
ALTER TABLE idem.record OWNER TO postgres;
SELECT idem.create_record_table('public.by_domain', 'tid', 'app.tenant');
CREATE TABLE public.root (LIKE idem.record INCLUDING CONSTRAINTS) PARTITION BY LIST (app.text(tenant));
SELECT idem.create_record_table('public.by_function');
ALTER TABLE public.root ATTACH PARTITION public.by_function DEFAULT;
SET SESSION AUTHORIZATION app;
BEGIN; SELECT idem.use_records('public.by_domain');
SELECT idem.once('there', 'domain', ttl => '1 ms', tenant => 'acme'); COMMIT;
BEGIN; SELECT idem.use_records('public.by_function');
SELECT idem.once('there', 'function', ttl => '1 ms', tenant => 'acme'); COMMIT;
RESET SESSION AUTHORIZATION;
ALTER TABLE idem.record OWNER TO app;
SELECT idem.create_scope('brief', ttl => '1 ms');
SELECT idem.once('brief', 'expired ' || i) FROM generate_series(1, 3) i;
SQL
$power->safe_psql('own', q{SELECT idem.create_scope('brief', ttl => '1 ms'); SELECT idem.once('brief', 'expired ' || i)
	FROM generate_series(1, 3) i;
	SELECT idem.complete(token, '{"card": 4711}') FROM idem.claim('here', 'kept', tenant => 'acme')});
as_app('own', $planting{$_} =~ s/%s/idem.record/gr) for grep { $_ ne 'a default' } @planted;
as_app('own', $arm);

ok($power->poll_query_until('tables', 'SELECT count(*) = 0 FROM idem.record'),
	'the worker purges idem.record beside tables that it cannot purge');
for my $database (qw(tables own))
{
	for my $call ('purge()', 'health()',
		(map { ("$_('there', 'acme')", "$_('here', 'acme')") } qw(erase_tenant forget_tenant)),
		"create_scope('another')", "alter_scope('here', ttl => '2 days')", "drop_scope('another')")
	{
		my (undef, undef, $err) = $power->psql($database,
			"SET statement_timeout = '60s'; SELECT count(x) FROM idem.$call x");
		unlike($err, qr/statement timeout|server closed|XX\d{3}/,
			"a superuser calls $call among what is planted in $database");
	}
}
await_visit($power, $_) for qw(tables own);
is(join("\n", slurp_file($power->logfile) =~ /sprung with power: .*/g), '',
	'nothing that was planted ran with the rights of a superuser');
is($power->safe_psql('postgres', q{SELECT rolsuper FROM pg_roles WHERE rolname = 'app'}), 'f',
	'the role is no superuser');
# health() names ten tables and counts the others: what it names is mended by a superuser, until it names none.
my %left = map { $_ => 1 }
	grep { $power->safe_psql('tables', "SELECT count(*) > 0 FROM ONLY app.t$_ WHERE response IS NOT NULL")
		eq 't' } 0 .. $#planted;
my @health;
while (%left)
{
	push @health, $power->safe_psql('tables', 'SELECT detail FROM idem.health()');
	my @named = $health[-1] =~ /\b(app\.t\w+) has a column /g or last;
	delete @left{ map { /^app\.t(\d+)$/ } @named };
	$power->safe_psql('tables', join ';', map { "DROP TABLE IF EXISTS $_ CASCADE" } @named);
}
is(join(', ', map { $planted[$_] } sort keys %left), '', 'every record table is purged, or named by health()')
	or diag join "\n", @refused, @health;
log_is_clean($power);
$power->stop;

$node->stop;

# Before the library is loaded, any role can set a placeholder: it does not count.
my $plain = idem_node('placeholder', conf => '');
(undef, $stdout, $stderr) = $plain->psql('postgres', <<'SQL');
CREATE ROLE any_role;
SET ROLE any_role;
SET idem.max_open_claims = 1000000;
SELECT idem.new_key() \gset
SHOW idem.max_open_claims;
SQL
is($stdout, '2000', 'a limit that was set before the library was loaded does not count');
like($stderr, qr/permission denied to set parameter "idem.max_open_claims"/,
	'a WARNING says that the placeholder does not count');
log_is_clean($plain);
$plain->stop;
done_testing();
