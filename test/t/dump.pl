# Dump and restore: retries are still answered, by another server and in another encoding.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $from = idem_node('from', conf => '');
my $to = idem_node('to', conf => '', bare => 1);

$from->safe_psql('postgres', q{SELECT pay('plain', '{"amount": 10.50}')});
$from->safe_psql('postgres', q{SELECT pay('schlüssel',
	'{"amount": 2, "note": "übergroß", "öl": {"abc": 1, "öl": [true]}}')});
$from->safe_psql('postgres', q{SELECT pay('0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d', '{"amount": 3}')});
$from->safe_psql('postgres', q{SELECT idem.create_scope('second', ttl => '3 days', lease => '2 minutes',
	max_attempts => 3,
	weak_keys => 'warn', response_exclude => '{größe,b.c}', header_exclude => '{x-key}', tenant_from => 'role',
	store_request => 'always')});
# An operation that was begun, failed for a moment and is to be tried again.
$from->safe_psql('postgres',
	q{SELECT idem.alter_scope('second', store_request => 'unfinished', answer_ttl => '1 day')});
my $begun = $from->safe_psql('postgres', q{SELECT token
	FROM idem.claim('second', 'begun', '{"amount": 7}', lease => '1 hour')});
$from->safe_psql('postgres', qq{SELECT idem.checkpoint('$begun', 'charged', '{"charge": 7}')});
$from->safe_psql('postgres', qq{SELECT idem.release('$begun', '1 ms', '{"message": "later"}')});
# Records of two secrets, and of a scope that was dropped.
is($from->safe_psql('postgres', q{SELECT idem.rotate_secret()}), '2', 'the secret is rotated');
$from->safe_psql('postgres', q{SELECT pay('rotated', '{"amount": 5}')});
$from->safe_psql('postgres', q{SELECT idem.create_scope('dropped')});
$from->safe_psql('postgres', q{SELECT idem.complete(token) FROM idem.claim('dropped', 'k')});
$from->safe_psql('postgres', q{SELECT idem.drop_scope('dropped')});
my $scopes = q{SELECT * FROM idem.scopes WHERE name IN ('payments', 'second') ORDER BY name};
my $rules = $from->safe_psql('postgres', $scopes);
my $child_key = q{SELECT idem.child_key(token, 'überweisen') FROM idem.claim('payments', 'schlüssel 2')};
my $child = $from->safe_psql('postgres', "BEGIN; $child_key; ROLLBACK");
# A record that tells which members of a request differ.
$from->safe_psql('postgres', q{SELECT idem.create_scope('explained', store_request => 'always')});
$from->safe_psql('postgres', q{SELECT idem.complete(token)
	FROM idem.claim('explained', 'k', '{"öl": "ü", "amount": 1, "to": 2}')});
# A record of an earlier list of excluded members.
$from->safe_psql('postgres', q{SELECT idem.create_scope('listed', request_exclude => '{"\\"größe\\"", x}')});
$from->safe_psql('postgres', q{SELECT idem.once('listed', 'k', '{"x": 1, "y": 1, "größe": 1}')});
$from->safe_psql('postgres', q{SELECT idem.alter_scope('listed', request_exclude => '{y}')});
my $dump = $from->backup_dir . '/dump.sql';
mkdir $from->backup_dir;
$from->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'pg_dump');

sub check
{
	my ($database, $kind) = @_;
	my $ask = sub { return $to->safe_psql($database, "SET client_encoding = 'UTF8'; $_[0]") };
	is($ask->(q{SELECT outcome, response FROM idem.try_claim('payments', 'plain', '{"amount": 10.5}')}),
		'completed|{"payment": 1}', "$kind: a replay is answered");
	is($ask->(q{SELECT outcome, response
		FROM idem.try_claim('payments', 'schlüssel',
		'{"amount": 2, "note": "übergroß", "öl": {"abc": 1, "öl": [true]}}')}),
		'completed|{"payment": 2}', "$kind: beyond ASCII too");
	is($ask->(q{SELECT outcome FROM idem.try_claim('payments', '0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d',
		'{"amount": 3}')}),
		'completed', "$kind: so is a time-ordered key");
	is($ask->(q{SELECT outcome FROM idem.try_claim('payments', 'plain', '{"amount": 11}')}),
		'conflict', "$kind: another request is still a conflict");
	is($ask->(q{SELECT outcome, response FROM idem.try_claim('payments', 'rotated', '{"amount": 5}')}),
		'completed|{"payment": 4}', "$kind: so is what was made with the newer secret");
	is($ask->(q{SELECT outcome FROM idem.try_claim('payments', 'rotated', '{"amount": 6}')}),
		'conflict', "$kind: and its conflict is one");
	is($ask->(q{SELECT outcome, differs FROM (VALUES (1, '{"öl": "ü", "amount": 1, "to": 2}'::jsonb),
		(2, '{"öl": "ö", "amount": 1, "ähm": 2}')) x (n, request),
			idem.try_claim('explained', 'k', request) ORDER BY n}), "completed|\nconflict|{öl,ähm,to}",
		"$kind: what differs is told");
	is($ask->(q{SELECT outcome FROM (VALUES (1, '{"x": 2, "y": 1, "größe": 2}'::jsonb),
		(2, '{"x": 1, "y": 2, "größe": 1}')) v (n, request), idem.try_claim('listed', 'k', request) ORDER BY n}),
		"completed\nconflict", "$kind: an earlier request is compared by the list of its time");
	is($ask->($scopes), $rules, "$kind: the scopes' rules are there");
	is($ask->(q{SELECT count(*), count(DISTINCT id) FROM idem.secret}), '3|3', "$kind: the secrets are there, once");
	my $left = $kind =~ /while purging/ ? 0 : 1;
	is($ask->(q{SELECT count(*) FROM idem.record}), 7 + $left, "$kind: so are the records");
	is($ask->(q{SELECT idem.purge()}), $left, "$kind: the purger deletes that of a dropped scope, and no other");
	is($ask->(q{SELECT count(*) FROM idem.record}), '7', "$kind: it has deleted one");
	is($ask->(q{SELECT key, request, attempt, recovery_point, recovery_state, last_error FROM idem.take('second')}),
		'begun|{"amount": 7}|2|charged|{"charge": 7}|{"message": "later"}', "$kind: what was begun can be finished");
	is($ask->("BEGIN; $child_key; ROLLBACK"), $child, "$kind: child keys are the same");
	$ask->(q{SELECT idem.create_scope('third')});
	is($ask->(q{SELECT id > (SELECT max(id) FROM idem.scope WHERE name <> 'third') FROM idem.scope
		WHERE name = 'third'}),
		't', "$kind: a scope's id is not used again");
	is($ask->(q{SELECT count(*) FROM idem.secret}), '3', "$kind: and brings no new secrets");
	$ask->(q{SELECT pay('new', '{"amount": 4}')});
	is($ask->(q{SELECT count(*) FROM payment WHERE key = 'new'}), 1, "$kind: new operations run");
	is($ask->(q{SELECT idem.rotate_secret()}), '3', "$kind: the secret can be rotated again");
	is($ask->(q{SELECT key, outcome FROM (VALUES ('plain', 10.5), ('rotated', 5), ('new', 4)) x(key, amount),
			idem.try_claim('payments', key, jsonb_build_object('amount', amount)) ORDER BY key}),
		"new|completed\nplain|completed\nrotated|completed", "$kind: and all replays are answered");
	return;
}

$to->safe_psql('postgres', 'CREATE DATABASE same');
$to->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump, 'same' ], 'restore');
check('same', 'restored');

# A copy for staging.
$to->safe_psql('postgres', 'CREATE DATABASE staging');
$to->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump, 'staging' ], 'copy');
my ($forget_open) = slurp_file('docs/operations.md') =~ /A copy for staging.*?`(DELETE [^`]*)`/s;
$to->safe_psql('staging', $forget_open);
is($to->safe_psql('staging', q{SELECT (SELECT key FROM idem.take('second')), c.outcome
	FROM idem.try_claim('payments', 'plain', '{"amount": 10.5}') c}), '|completed',
	'a copy for staging finishes nothing that production has begun, and answers what it has finished');

# The records come before their scopes: a purge in between must not take them for those of dropped
# scopes.
$to->safe_psql('postgres', 'CREATE DATABASE purged');
my $purging = $from->backup_dir . '/purging.sql';
my $script = slurp_file($dump);
like($script, qr/^COPY idem\.record .*^COPY idem\.scope /ms, 'a dump has the records before the scopes');
cmp_ok($script =~ s/^\\\.$/\\.\nSELECT idem.purge();/mg, '>=', 4, 'the restore purges after each table');
append_to_file($purging, $script);
$to->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $purging, 'purged' ],
	'restore with a purge after each table');
check('purged', 'restored while purging');

# Roles are not in the dump. Without the owner's role the scopes are not restored at first;
# meanwhile the records must not be taken for those of dropped scopes.
$from->safe_psql('postgres', 'CREATE ROLE shop; CREATE DATABASE owned');
install_payments($from, 'owned');
$from->safe_psql('owned', q{SELECT idem.alter_scope('payments', owner => 'shop'); SELECT pay('kept', '{"amount": 1}')});
# A scope whose owner was dropped: the dump must not name the role that has its number there.
$from->safe_psql('owned', q{CREATE ROLE leaver;
	SELECT idem.create_scope('left', owner => 'leaver'), idem.once('left', 'kept', '{"n": 1}')});
my $leaver = $from->safe_psql('owned', q{SELECT 'leaver'::regrole::oid});
$from->safe_psql('owned', 'DROP ROLE leaver');
my $owned = $from->backup_dir . '/owned.sql';
$from->command_ok([ 'pg_dump', '-f', $owned, 'owned' ], 'pg_dump of a scope that another role owns');
$to->safe_psql('postgres', 'CREATE DATABASE owned');
$to->command_checks_all([ 'psql', '-Xq', '-f', $owned, 'owned' ], 0, [], [qr/role "shop" does not exist/],
	'restore without the role');
is($to->safe_psql('owned', 'SELECT idem.purge(), (SELECT count(*) FROM idem.scope)'), '0|0',
	'no scope was restored, and no record is purged');
my ($scopes_data) = slurp_file($owned) =~ /^(COPY idem\.scope .*?^\\\.\n)/ms;
$to->safe_psql('owned', "CREATE ROLE shop;\n$scopes_data");
is($to->safe_psql('owned', q{SELECT outcome FROM idem.try_claim('payments', 'kept', '{"amount": 1}')}),
	'completed', 'once the scopes are restored, retries are answered');
is($to->safe_psql('owned', q{SELECT owner, outcome FROM idem.scope, idem.try_claim('left', 'kept', '{"n": 1}')
	WHERE name = 'left'}),
	'-|completed', 'so are those of a scope whose owner was dropped, to a superuser');
like($scopes_data, qr/\tleft\t-\t/, 'whom the dump does not name');
$to->safe_psql('owned', q{CREATE ROLE stranger;
	INSERT INTO idem.scope (name, owner) SELECT 'number', 'stranger'::regrole::oid::text::idem_internal.role});
is($to->safe_psql('owned', q{SELECT owner FROM idem.scope WHERE name = 'number';
	DELETE FROM idem.scope WHERE name = 'number'}), '-', 'and a number is no owner');
is($from->safe_psql('owned', q{SELECT idem.scope_ddl('left')}), q{SELECT idem.create_scope('left');},
	'nor does scope_ddl');
is($from->safe_psql('owned', q{SELECT s ->> 'owner' FROM jsonb_array_elements(idem.export_identity() -> 'scopes') s
	WHERE s ->> 'name' = 'left'}), '-', 'nor the identity');
is($to->safe_psql('owned', q{SELECT scope FROM idem.health() WHERE check_name = 'owners' AND status <> 'ok'}), 'left',
	'health says so');
$to->safe_psql('owned', q{SELECT idem.alter_scope('left', owner => 'shop')});
is($to->safe_psql('owned', q{SET ROLE shop; SELECT outcome FROM idem.try_claim('left', 'kept', '{"n": 1}')}),
	'completed', 'and another role can get it');

# A restore into a database that has scopes already ends in errors. With --clean, it replaces them.
$to->safe_psql('postgres', 'CREATE DATABASE beside');
$to->safe_psql('beside', q{CREATE EXTENSION idem; SELECT idem.create_scope('another')});
my $custom = $from->backup_dir . '/custom';
$from->command_ok([ 'pg_dump', '-Fc', '-f', $custom, 'postgres' ], 'pg_dump in the custom format');
$to->command_checks_all([ 'pg_restore', '-d', 'beside', $custom ], 1, [], [qr/COPY failed for table "secret"/],
	'restore beside its scopes');
$to->command_ok([ 'pg_restore', '--clean', '--if-exists', '-d', 'beside', $custom ], 'restore of the whole dump anew');
check('beside', 'restored anew');

$to->safe_psql('postgres', "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
$to->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump, 'latin' ],
	'restore into another encoding');
check('latin', 'restored into LATIN1');

$to->safe_psql('postgres', 'CREATE DATABASE parts');
my %part = (schema => $from->backup_dir . '/schema.sql', data => $from->backup_dir . '/data.sql');
$from->command_ok([ 'pg_dump', "--$_-only", '-f', $part{$_}, 'postgres' ], "pg_dump --$_-only") for sort keys %part;
$to->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $part{$_}, 'parts' ],
	"restore of the $_")
  for ('schema', 'data');
check('parts', 'restored in two parts');

$to->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE same');
is($to->safe_psql('copy', q{SELECT outcome FROM idem.try_claim('payments', 'plain', '{"amount": 10.5}')}),
	'completed', 'a copied database answers retries');

# The owner of a database who is not a superuser. Only superusers may read idem's tables, so a dump
# with the keys takes one of the grants that docs/operations.md names.
$from->safe_psql('postgres', 'CREATE ROLE shopkeeper LOGIN; CREATE ROLE backup LOGIN IN ROLE pg_read_all_data;
	CREATE DATABASE kept OWNER shopkeeper');
$from->safe_psql('kept', 'CREATE EXTENSION idem; GRANT EXECUTE ON FUNCTION idem.create_scope, idem.drop_scope
	TO shopkeeper');
my $as = sub { my ($role, $node, $sql) = @_; return $node->safe_psql('kept', $sql, extra_params => [ '-U', $role ]) };
$as->('shopkeeper', $from, q{SELECT idem.create_scope('sales', owner => 'shopkeeper'),
	idem.create_scope('dropped', owner => 'shopkeeper')});
$as->('shopkeeper', $from, q{CREATE TABLE sale AS SELECT idem.once('sales', 'k', '{"n": 1}');
	SELECT idem.once('dropped', 'k'), idem.drop_scope('dropped')});
my $pg_dump = sub {
	my ($role, $name, @options) = @_;
	my $file = $from->backup_dir . "/$name.dump";
	return ($file, [ 'pg_dump', '-U', $role, '-Fc', @options, '-f', $file, 'kept' ]);
};
my ($file, $command) = $pg_dump->('shopkeeper', 'refused');
$from->command_checks_all($command, 1, [],
	[qr/permission denied for (?:sequence|table)|lack SELECT privilege on the sequence/],
	'without a grant, pg_dump as the owner of the database is refused');
($file, $command) = $pg_dump->('shopkeeper', 'keyless', '--exclude-table-data=idem.*');
$from->command_ok($command, 'pg_dump works if it leaves out what idem stores');
my %dumped = ('without keys' => $file);
SKIP:
{
	skip 'pg_dump cannot exclude an extension', 1 if $from->pg_version < 17;
	$from->command_ok(($pg_dump->('shopkeeper', 'excluded', '--exclude-extension=idem'))[1],
		'pg_dump works if it leaves out the extension');
}
($file, $command) = $pg_dump->('backup', 'reader');
$from->command_ok($command, 'pg_dump as a member of pg_read_all_data');
$dumped{'by a member of pg_read_all_data'} = $file;
my ($grant) = slurp_file("$ENV{TESTDIR}/docs/operations.md")
	=~ /^(GRANT SELECT ON ALL TABLES IN SCHEMA idem TO .*?;\s*GRANT SELECT ON ALL SEQUENCES .*?;)/ms;
$from->safe_psql('kept', $grant =~ s/\bbackup\b/shopkeeper/gr);
($file, $command) = $pg_dump->('shopkeeper', 'granted');
$from->command_ok($command, "pg_dump as the owner of the database with the grants of docs/operations.md");
$dumped{'with grants'} = $file;
is(sqlstate($from, qq{SET ROLE shopkeeper; $_}, 'kept'), '42501', "a role that may dump may not write: $_")
  for ('DELETE FROM idem.record', 'INSERT INTO idem.secret SELECT * FROM idem.secret',
	q{SELECT setval('idem.scope_id', 1)});

# Restored by a superuser; or, if the extension already exists, by a role that may write all data.
$to->safe_psql('postgres', 'CREATE ROLE shopkeeper LOGIN; GRANT pg_write_all_data TO shopkeeper');
for my $kind (sort keys %dumped)
{
	for my $role (undef, 'shopkeeper')
	{
		my $by = $role ? 'restored by a role that is no superuser' : 'restored by a superuser';
		$to->safe_psql('postgres', 'DROP DATABASE IF EXISTS kept');
		$to->safe_psql('postgres', 'CREATE DATABASE kept OWNER shopkeeper');
		$to->safe_psql('kept', 'CREATE EXTENSION idem; GRANT EXECUTE ON FUNCTION idem.create_scope TO shopkeeper')
		  if $role;
		$to->command_ok([ 'pg_restore', '--exit-on-error', ($role ? ('-U', $role, '--no-comments') : ()),
				'--no-privileges', '-d', 'kept', $dumped{$kind} ],
			"$kind: $by");
		is($as->('shopkeeper', $to, 'SELECT count(*) FROM sale'), '1', "$kind, $by: the other data is there");
		if ($kind eq 'without keys')
		{
			is($to->safe_psql('kept', 'SELECT count(*) FROM idem.scopes'), '0', "$kind, $by: but no scope");
			next;
		}
		is($as->('shopkeeper', $to, q{SELECT idem.once('sales', 'k', '{"n": 1}')}), 'f',
			"$kind, $by: a replay is answered");
		is(sqlstate($to, q{SELECT idem.once('sales', 'k', '{"n": 2}')}, 'kept'), 'ID002',
			"$kind, $by: a conflict is one");
		is($to->safe_psql('kept', q{SELECT idem.create_scope('new'); SELECT idem.once('new', 'k')}), "\nt",
			"$kind, $by: a scope id is not used again");
		is($to->safe_psql('kept', 'SELECT idem.purge()'), '1', "$kind, $by: what a dropped scope left is purged");
	}
}

log_is_clean($_) for ($from, $to);
$_->stop for ($from, $to);
done_testing();
