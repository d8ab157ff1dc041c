# From every released version of the SQL objects to this one. The new library serves the old objects
# until ALTER EXTENSION idem UPDATE runs. The update makes what CREATE EXTENSION makes, waits for open
# claims without stopping them, and keeps every answer.
use strict;
use warnings;

use IPC::Run ();
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Tests of what has changed since a release, which cannot pass on its objects.
# What has changed since a release has also changed since the ones before.
my %changed_since = (
	'0.1.0' => [qw(administration scopes streams wrong_use)],
	'0.2.0' => [qw(administration conflicts erasure failures forbid http identity keys leases purge record_tables redaction rehearse scopes streams survey take)]);

my $administration = 'idem.create_scope, idem.alter_scope, idem.drop_scope, idem.forget';

my $node = idem_node('update', conf => '', bare => 1);
my $sql = sub { my ($database, $statements) = @_; return $node->safe_psql($database, $statements) };
my $current = $sql->('postgres', q{SELECT default_version FROM pg_available_extensions WHERE name = 'idem'});
my @released = split /\n/, $sql->('postgres',
	qq{SELECT version FROM pg_available_extension_versions WHERE name = 'idem' AND version <> '$current'
	    ORDER BY string_to_array(version, '.')::int[]});
is($released[0], '0.1.0', 'the first release is available');
is($sql->('postgres', qq{SELECT string_agg(source, ' ') FROM pg_extension_update_paths('idem')
		WHERE target = '$current' AND path IS NULL}), '', "there is an update path from each release to $current");

# Everything that the extension consists of: definitions, privileges, comments, and what a dump
# contains.
my $inventory = <<'SQL';
WITH member AS (SELECT classid, objid FROM pg_depend WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass
                   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem')),
     rights (classid, objid, acl) AS (
        SELECT 'pg_proc'::regclass, oid, proacl FROM pg_proc UNION ALL SELECT 'pg_class'::regclass, oid, relacl FROM pg_class
        UNION ALL SELECT 'pg_namespace'::regclass, oid, nspacl FROM pg_namespace UNION ALL SELECT 'pg_type'::regclass, oid, typacl FROM pg_type),
     line AS (
        SELECT pg_describe_object(classid, objid, 0) AS object, obj_description(objid, classid::regclass::name) AS words FROM member
        UNION ALL
        SELECT pg_describe_object(classid, objid, 0), 'may ' || a FROM member JOIN rights USING (classid, objid), unnest(acl) a
        UNION ALL
        SELECT pg_describe_object(classid, objid, 0), 'at first ' || a FROM member JOIN pg_init_privs ON objoid = objid AND classoid = classid, unnest(initprivs) a
        UNION ALL
        SELECT objid::regprocedure::text, pg_get_functiondef(objid) FROM member WHERE classid = 'pg_proc'::regclass
        UNION ALL
        SELECT objid::regclass::text, concat_ws(' ', relkind, reloptions, CASE relkind WHEN 'v' THEN pg_get_viewdef(objid) END)
          FROM member JOIN pg_class ON oid = objid WHERE classid = 'pg_class'::regclass
        UNION ALL
        SELECT objid::regclass || '.' || attname, concat_ws(' ', attnum, format_type(atttypid, atttypmod), attnotnull, attstorage, pg_get_expr(adbin, adrelid))
          FROM member JOIN pg_attribute a ON attrelid = objid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
         WHERE classid = 'pg_class'::regclass AND NOT attisdropped
        UNION ALL
        SELECT c.relname || '.' || attname, col_description(c.oid, attnum) FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid
         WHERE relnamespace = 'idem'::regnamespace AND relkind = 'c'
        UNION ALL
        SELECT conrelid::regclass::text, pg_get_constraintdef(c.oid) FROM member JOIN pg_constraint c ON conrelid = objid
         WHERE classid = 'pg_class'::regclass
        UNION ALL
        SELECT indrelid::regclass::text, pg_get_indexdef(indexrelid) FROM member JOIN pg_index ON indrelid = objid
         WHERE classid = 'pg_class'::regclass
        UNION ALL
        SELECT tgrelid::regclass::text, concat_ws(' ', pg_get_triggerdef(t.oid), tgenabled) FROM member JOIN pg_trigger t ON tgrelid = objid
         WHERE classid = 'pg_class'::regclass
        UNION ALL
        SELECT config::regclass::text, 'is dumped ' || condition
          FROM pg_extension, unnest(extconfig, extcondition) AS u (config, condition) WHERE extname = 'idem')
SELECT * FROM line ORDER BY 1, 2
SQL
$sql->('postgres', 'CREATE DATABASE fresh');
$sql->('fresh', 'CREATE EXTENSION idem');
my $fresh = $sql->('fresh', $inventory);
cmp_ok(scalar(split /\n/, $fresh), '>', 500, 'a fresh extension has much to compare');

# The SQL tests. Each begins by creating the extension: here in this way.
sub regress
{
	my ($title, $create, @without) = @_;
	my $input = "$ENV{TESTDATADIR}/" . ($title =~ s/\W+/_/gr);
	system_or_bail('mkdir', '-p', "$input/sql", "$input/expected");
	my %without = map { $_ => 1 } @without;
	my @tests = grep { !$without{$_} } map { m{([^/]+)\.sql$} } sort glob "$ENV{TESTDIR}/test/sql/*.sql";
	for my $file (map { ([ "test/sql/$_.sql", "sql/$_.sql" ], [ "expected/$_.out", "expected/$_.out" ]) } @tests)
	{
		my $text = slurp_file("$ENV{TESTDIR}/$file->[0]");
		$text =~ s/^CREATE EXTENSION idem;$/$create/m or die $file->[0];
		append_to_file("$input/$file->[1]", $text);
	}
	system_or_bail('cp', '-r', "$ENV{TESTDIR}/test/data", $input);
	# pg_regress looks for the expected output in the current directory or, up to 15, beside its
	# input.
	chdir $input or die;
	$node->command_ok([ $ENV{PG_REGRESS}, '--inputdir=.', '--outputdir=.', '--host=' . $node->host, '--port=' . $node->port,
			'--dbname=regress', '--load-extension=idem', @tests ], $title)
	  or diag(-e "$input/regression.diffs" ? slurp_file("$input/regression.diffs") : '');
	return;
}

for my $version (@released)
{
	(my $name = "from_$version") =~ s/\W/_/g;
	my $create = "CREATE EXTENSION idem VERSION '$version';";

	# What a database of that release contains, with a role that administers it.
	my $may = $version eq '0.1.0' ? 'CREATE ON SCHEMA idem' : "EXECUTE ON FUNCTION $administration";
	my ($admin, $user) = ("${name}_admin", "${name}_user");
	$sql->('postgres', "CREATE DATABASE $name");
	$sql->($name, $create);
	$sql->($name, <<"SQL");
CREATE ROLE $user;
CREATE ROLE $admin IN ROLE $user;
GRANT $may TO $admin;
SET ROLE $admin;
SELECT idem.create_scope('orders', ttl => '1 day', owner => '$user');
SELECT idem.complete(token, '{"order": 1}') FROM idem.claim('orders', 'done', '{"n": 1}');
SELECT idem.fail(token, '{"sqlstate": "P0042", "message": "sold out"}') FROM idem.claim('orders', 'failed', '{"n": 2}');
SELECT idem.advance('orders', 'stream', 7);
RESET ROLE;
CREATE TABLE effect (key text DEFAULT idem.current_key());
CREATE TRIGGER effect BEFORE INSERT ON effect FOR EACH STATEMENT EXECUTE FUNCTION idem.require_claim('orders');
CREATE FUNCTION again(key text) RETURNS boolean LANGUAGE sql BEGIN ATOMIC SELECT idem.once('orders', key); END;
CREATE VIEW watched AS SELECT scope, claims FROM idem.stats;
SQL
	my $token = $sql->($name, q{SELECT token FROM idem.claim('orders', 'leased', '{"n": 3}', lease => '1 hour')});
	$sql->($name, qq{SELECT idem.checkpoint('$token', 'half way', '{"step": 2}')});

	# Operations that were begun and abandoned: one is due, one was released, one lapses later.
	$sql->($name, <<'SQL');
SELECT idem.checkpoint(token, 'charged', '{"charge": 9}') FROM idem.claim('orders', 'abandoned', '{"n": 9}', lease => '100 ms');
SELECT idem.release(token) FROM idem.claim('orders', 'released', '{"n": 10}', lease => '1 hour');
SELECT claimed FROM idem.claim('orders', 'running', '{"n": 11}', lease => '1 hour');
SQL

	# Keys that are UUIDs: finished, leased and expired.
	my @uuid = map { "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c0$_" } (1 .. 3);
	$sql->($name, qq{SELECT idem.complete(token, '{"order": 5}') FROM idem.claim('orders', '$uuid[0]', '{"n": 5}')});
	my $uuid_token = $sql->($name, qq{SELECT token FROM idem.claim('orders', '$uuid[1]', '{"n": 6}', lease => '1 hour')});
	$sql->($name, qq{SELECT idem.complete(token) FROM idem.claim('orders', '$uuid[2]', '{"n": 7}', ttl => '1 us')});
	is($sql->($name, q{SELECT key, attempt, redacted, octet_length(fingerprint) FROM idem.record WHERE key ~ '^0190b8f3' ORDER BY key}),
		join("\n", map { "$_|1|f|37" } @uuid), "$version: records are stored as the library of that release stores them");

	# The library is new, the objects are not: the old rules apply.
	regress("tests on the objects of $version", $create, map { @{ $changed_since{$_} // [] } } grep { $_ ge $version } @released);
	if ($version eq '0.1.0')
	{
		is(sqlstate($node, "SET ROLE $user; $_", $name), '42501', "$version: without CREATE: $_")
		  for (q{SELECT idem.create_scope('mine')}, q{SELECT idem.alter_scope('orders', ttl => '2 days')},
			q{SELECT idem.drop_scope('orders')}, q{SELECT idem.forget('orders', 'done')});
		is(sqlstate($node, "BEGIN; SET ROLE $admin; $_; ROLLBACK", $name), '', "$version: with it: $_")
		  for (q{SELECT idem.create_scope('mine')}, q{SELECT idem.alter_scope('orders', ttl => '2 days')},
			q{SELECT idem.drop_scope('orders')}, q{SELECT idem.forget('orders', 'done')});
	}

	# Paths in any notation, and quotes as part of a name; failures of any shape.
	$sql->($name, q{SELECT idem.create_scope('odd', response_exclude => ARRAY['$.card.number', '"quoted"', 'a"\b'])});
	$sql->($name, q{SELECT idem.alter_scope('odd', request_exclude => '{/sent_at,"\"quoted\""}')});
	my $quoted = q{'{"quoted": 1, "\"quoted\"": 2, "a\"\\\\b": 3}'};
	$sql->($name, qq{SELECT idem.complete(token, $quoted) FROM idem.claim('odd', 'before', $quoted)});
	$sql->($name, q{SELECT idem.fail(token, '{"code": 5}') FROM idem.claim('odd', 'coded')});
	is($sql->($name, q{SELECT response FROM idem.lookup('odd', 'before')}), '{"quoted": 1}', "$version: a double quote is part of a name");

	$sql->('postgres', "CREATE DATABASE ${name}_bare");
	$sql->("${name}_bare", "$create ALTER EXTENSION idem UPDATE");
	is($sql->("${name}_bare", $inventory), $fresh, "$version: an update makes what CREATE EXTENSION makes");

	# A user's object that depends on a function with new arguments stops the update.
	for my $call ('create_scope($$new$$)', 'release($$token$$)')
	{
		my ($function) = $call =~ /^(\w+)/;
		$sql->($name, "CREATE FUNCTION onboard() RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT idem.$call; END");
		my $refused = ($node->psql($name, 'ALTER EXTENSION idem UPDATE'))[2];
		like($refused, qr/ERROR:  cannot replace idem\.$function\(\): other objects depend on it\nDETAIL:  function \S*onboard\(\).*\nHINT:  Drop these objects/,
			"$version: an object that depends on $function() is named");
		$sql->($name, 'DROP FUNCTION onboard');
	}
	$sql->($name, q{CREATE VIEW answered AS SELECT l.state FROM idem.lookup('orders', 'done') l});
	my $refused = ($node->psql($name, 'ALTER EXTENSION idem UPDATE'))[2];
	like($refused, qr/ERROR:  cannot replace idem\.lookup\(\): other objects depend on it\nDETAIL:  view \S*answered /, "$version: so is a view on lookup");
	$sql->($name, 'DROP VIEW answered');
	# The type that gets one more attribute may be used.
	$sql->($name, 'CREATE TABLE attempt_log (claim idem.claim_result)');
	$sql->($name, q{INSERT INTO attempt_log SELECT c FROM idem.try_claim('orders', 'done', '{"n": 2}') c});
	$sql->($name, q{CREATE VIEW replay AS SELECT * FROM idem.claim('orders', 'done', '{"n": 1}')});
	my $replay = $sql->($name, 'SELECT * FROM replay');
	my ($revoked) = ($node->psql($name, 'BEGIN; REVOKE EXECUTE ON FUNCTION idem.lookup FROM PUBLIC; ALTER EXTENSION idem UPDATE; ROLLBACK'))[2];
	like($revoked, qr/WARNING:  every role can call idem\.lookup again\nDETAIL:.*\nHINT:  REVOKE EXECUTE ON FUNCTION idem\.lookup FROM PUBLIC/, "$version: the update says that lookup is everyone's again");

	# The update, beside an open claim, with planted functions that it must not call.
	my $session = $node->background_psql($name, on_error_stop => 1);
	$session->query_safe("BEGIN; SELECT set_config('my.token', token, false) FROM idem.claim('orders', 'open', '{\"n\": 4}'); INSERT INTO effect DEFAULT VALUES");
	$sql->($name, <<'SQL');
CREATE FUNCTION trap(oid, integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION trap(name, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE OPERATOR = (LEFTARG = oid, RIGHTARG = integer, FUNCTION = trap);
CREATE OPERATOR = (LEFTARG = name, RIGHTARG = text, FUNCTION = trap);
CREATE FUNCTION format(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
SQL
	my $said = '';
	my $update = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr($name) . " application_name='update'",
			'-c', 'ALTER EXTENSION idem UPDATE' ], '2>', \$said);
	$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'update' AND wait_event_type = 'Lock'")
	  or die 'the update does not wait';
	is($sql->($name, q{SELECT extversion FROM pg_extension WHERE extname = 'idem'}), $version, "$version: the update waits for the open claim");
	$session->query_safe("SELECT idem.once('odd', 'while the update waits'); INSERT INTO effect DEFAULT VALUES; SELECT idem.complete(current_setting('my.token')); COMMIT");
	$session->quit;
	$update->finish;
	unlike($said, qr/ERROR/, "$version: updated");
	is($sql->($name, q{SELECT extversion FROM pg_extension WHERE extname = 'idem'}), $current, "$version: to $current");
	like($said, qr/WARNING:.*paths of scope "odd" are in another notation and exclude nothing\nDETAIL:.*"\/sent_at"/, "$version: the update says which paths leave nothing out");

	# What was stored before is answered.
	my $outcome = sub { my ($key, $n) = @_; return $sql->($name, qq{SET ROLE $user; SELECT outcome, response, error->>'sqlstate'
		FROM idem.try_claim('orders', '$key', '{"n": $n}')}) };
	is($outcome->('done', '1.0'), 'completed|{"order": 1}|', "$version: a replay is answered");
	is($outcome->('failed', 2), 'failed||P0042', "$version: so is a failure");
	is($outcome->('open', 4), 'completed||', "$version: so is the claim that was open meanwhile");
	is($outcome->('done', 2), 'conflict||', "$version: a conflict is one");
	is($sql->($name, 'SELECT * FROM replay'), $replay, "$version: a view on claim shows what it did");
	is($sql->($name, 'SELECT (claim).outcome, (claim).differs IS NULL FROM attempt_log'), 'conflict|t', "$version: a stored result can be read");
	$sql->($name, q{SELECT idem.alter_scope('orders', explain_conflicts => true)});
	$sql->($name, q{SELECT idem.complete(token) FROM idem.claim('orders', 'explained', '{"n": 1, "m": 1}')});
	$sql->($name, q{INSERT INTO attempt_log SELECT c FROM unnest('{explained,done}'::text[]) k, idem.try_claim('orders', k, '{"n": 2, "m": 1}') c});
	is($sql->($name, 'SELECT (claim).differs FROM attempt_log'), "\n{n}\n", "$version: conflicts of new records are explained");
	$sql->($name, q{SELECT idem.forget('orders', 'explained')});
	$sql->($name, q{SELECT idem.alter_scope('orders', explain_conflicts => false)});
	is($outcome->('leased', 3), 'in_progress||', "$version: a lease holds");
	is($sql->($name, qq{SET ROLE $user; SELECT idem.complete('$token', '{"order": 3}')}), '{"order": 3}', "$version: its token too");
	is($outcome->('leased', 3), 'completed|{"order": 3}|', "$version: and completes it");
	is($outcome->($uuid[0], '5e0'), 'completed|{"order": 5}|', "$version: a key that is a UUID is found");
	is($outcome->($uuid[0], 6), 'conflict||', "$version: its conflict is one");
	is($outcome->($uuid[1], 6), 'in_progress||', "$version: its lease holds");
	my $form = q{SELECT key, key_uuid, attempt, redacted, octet_length(fingerprint) FROM idem.record WHERE coalesce(key, key_uuid::text) ~ '^0190b8f3' ORDER BY coalesce(key, key_uuid::text)};
	is($sql->($name, $form), join("\n", map { "$_||1|f|37" } @uuid), "$version: the update rewrites no record");
	$sql->($name, qq{SELECT idem.complete('$uuid_token', '{"order": 6}')});
	is($outcome->($uuid[1], '6'), 'completed|{"order": 6}|', "$version: its token completes it");
	is($outcome->($uuid[1], '5'), 'conflict||', "$version: for its request");
	$sql->($name, qq{SELECT idem.complete(token) FROM idem.claim('orders', '$uuid[2]', '{"n": 8}')});
	is($outcome->($uuid[2], '8'), 'completed||', "$version: an expired record is replaced");
	is($sql->($name, $form), join("\n", "$uuid[0]||1|f|37", map { "|$_|||18" } @uuid[1, 2]), "$version: what is written now is compact");
	is($sql->($name, q{SELECT key, attempt, redacted FROM idem.records WHERE key ~ '^0190b8f3' ORDER BY key}),
		join("\n", map { "$_|1|f" } @uuid), "$version: the view shows all in one form");
	my $take = qq{SET ROLE $user; SELECT idem.complete(token), key, attempt, recovery_point, recovery_state FROM idem.take('orders')};
	is(join("\n", sort map { $sql->($name, $take) } 1 .. 2), "|abandoned|2|charged|{\"charge\": 9}\n|released|2||", "$version: what was begun before is finished");
	is($sql->($name, qq{SELECT idem.revoke('orders', 'running'); $take}), "t\n|running|2||", "$version: a lease of then can be revoked");
	is($sql->($name, q{SELECT idem.advance('orders', 'stream', 7), idem.advance('orders', 'stream', 8)}), 'f|t',
		"$version: the watermark is where it was");
	is($sql->($name, 'SELECT key FROM effect'), "open\nopen", "$version: defaults and triggers work");
	is($sql->($name, q{SELECT again('seen for the first time')}), 't', "$version: a user's function that depends on one of ours works");

	is($sql->($name, qq{SELECT idem.redacted('odd', $quoted)}), '{"quoted": 1}', "$version: a double quote in a stored path is part of a name");
	is($sql->($name, qq{SELECT outcome FROM idem.try_claim('odd', 'before', replace($quoted, '2', '7')::jsonb)}), 'completed',
		"$version: in those of requests, too");
	is(sqlstate($node, q{SELECT idem.claim('odd', 'coded')}, $name), 'ID003', "$version: a stored failure of any shape is raised");

	if ($version ne '0.1.0')
	{
		my ($repair) = $said =~ /HINT:  (GRANT EXECUTE ON FUNCTION idem\.alter_scope, idem\.create_scope, idem\.forget TO $admin)$/m;
		ok($repair, "$version: the update names the roles that lose a privilege");
		is(sqlstate($node, "SET ROLE $admin; SELECT idem.create_scope('mine')", $name), '42501', "$version: and it is lost");
		$sql->($name, $repair);
		is(sqlstate($node, "SET ROLE $admin; SELECT idem.create_scope('mine'); SELECT idem.alter_scope('mine', ttl => '1 hour')", $name), '',
			"$version: what the hint says restores it");
		my ($dump) = run_command([ 'pg_dump', '--schema-only', '-d', $node->connstr($name) ]);
		like($dump, qr/^GRANT ALL ON FUNCTION idem\.$_\(.*$admin;$/m, "$version: a dump has the grant on $_")
		  for qw(create_scope alter_scope drop_scope forget);
	}
	if ($version eq '0.1.0')
	{
		like($said, qr/WARNING:.*$admin can administer scopes no longer/, "$version: the update names the roles that lose a privilege");
		my ($repair) = $said =~ /If it shall: (GRANT .*?); in any case/;
		my ($revoke) = $said =~ /in any case: (REVOKE .*)/;
		my $schema = q{SELECT status, detail ~ 'from_0_1_0_admin', hint FROM idem.health() WHERE check_name = 'schema'};
		is($sql->($name, $schema), "warn|t|$revoke", "$version: health() says so too");
		is(sqlstate($node, "SET ROLE $admin; SELECT idem.create_scope('mine')", $name), '42501', "$version: CREATE is not enough any more");
		$sql->($name, "$repair; $revoke");
		is(sqlstate($node, "SET ROLE $admin; SELECT idem.create_scope('mine'); SELECT idem.forget('orders', 'done')", $name), '',
			"$version: what the hint says restores it");
		is($sql->($name, $schema), 'ok|f|', "$version: and health() finds no problem");
		my ($dump) = run_command([ 'pg_dump', '--schema-only', '-d', $node->connstr($name) ]);
		like($dump, qr/^GRANT ALL ON FUNCTION idem\.$_\(.*$admin;$/m, "$version: a dump has the grant on $_")
		  for qw(create_scope alter_scope drop_scope forget);
	}

	# Finally: every test passes on what the update makes.
	regress("tests after the update from $version", "$create ALTER EXTENSION idem UPDATE;");
  SKIP:
	{
		skip 'pgTAP is not installed', 1
		  if $sql->('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'pgtap'}) eq '0';
		$sql->('postgres', "CREATE DATABASE ${name}_pgtap");
		$sql->("${name}_pgtap", "CREATE EXTENSION pgtap; $create ALTER EXTENSION idem UPDATE");
		$node->command_ok([ 'pg_prove', '-q', '--ext', '.sql', '-d', "${name}_pgtap", glob "$ENV{TESTDIR}/test/pgtap/*.sql" ],
			"contract and privileges after the update from $version");
	}
}

# A large table is not read while claims wait: its index is left to the administrator, and nothing
# else depends on it.
for my $version (@released)
{
	(my $name = "large_$version") =~ s/\W/_/g;
	$sql->('postgres', "CREATE DATABASE $name");
	$sql->($name, <<"SQL");
CREATE EXTENSION idem VERSION '$version';
SELECT idem.create_scope('orders');
ALTER TABLE idem.record SET (fillfactor = 10);
INSERT INTO idem.record (digest, created, expires, scope, attempt, state, redacted, tenant, key)
  SELECT gen_random_uuid(), now(), now() + interval '1 day', 1, 1, 'c', false, '', repeat('k', 900) FROM generate_series(1, 16385);
SQL
	my (undef, undef, $warned) = $node->psql($name, 'ALTER EXTENSION idem UPDATE');
	like($warned, qr/WARNING:  index idem.record_unfinished is not created/, "$version: the index of a large table is left out");
	my ($create) = $warned =~ /^HINT:  (CREATE INDEX CONCURRENTLY .*)$/m;
	is($sql->($name, q{SELECT status, hint FROM idem.health() WHERE check_name = 'indexes'}), "warn|$create",
		"$version: health() has the same advice");
	is($sql->($name, q{SELECT outcome FROM idem.claim('orders', 'leased', lease => '1 hour')}), 'claimed', "$version: claims work without it");
	$sql->($name, $create);
	is($sql->($name, q{SELECT status FROM idem.health() WHERE check_name = 'indexes'}), 'ok', "$version: what the hint says cures it");
	is($sql->($name, q{SELECT pg_get_indexdef('idem.record_unfinished'::regclass)}), $sql->('fresh', q{SELECT pg_get_indexdef('idem.record_unfinished'::regclass)}),
		"$version: the index is the one of a fresh extension");
	$sql->('postgres', "DROP DATABASE $name");
}

log_is_clean($node);
$node->stop;
done_testing();
