# An update to a next version, which the test makes up: one more column of the records, one more
# setting of scopes and one more function; and a version before, without the last setting. docs/releasing.md has its
# rules. Its library is this one under another number. Then what happens without it. The server is a copy of the
# installed one, because libraries and scripts must be where the server looks for them.
use strict;
use warnings;

use File::Basename qw(basename dirname);
use File::Path qw(make_path);
use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A server finds its files relative to its own program, and so does what starts it. Only these and the
# directory of the extensions are copies; the rest are links.
sub links
{
	my ($from, $to, %without) = @_;
	make_path($to);
	symlink $_, "$to/" . basename($_) or die "$to: $!" for grep { !$without{ basename($_) } } glob "$from/*";
	return;
}

my %at = map { my ($path) = run_command([ 'pg_config', "--$_" ]); $_ => $path } qw(bindir sharedir libdir pkglibdir);
my $copy = PostgreSQL::Test::Utils::tempdir;
my @programs = qw(postgres initdb pg_ctl);
links($at{bindir}, "$copy$at{bindir}", map { $_ => 1 } @programs);
links($at{sharedir}, "$copy$at{sharedir}", extension => 1);
# idem may be installed in a directory of its own: see tools/stage.
my $config = slurp_file($ENV{TEMP_CONFIG} // '/dev/null');
my $idem = $config =~ /^extension_destdir = '(.*)'/m ? "$1$at{sharedir}"
	: $config =~ /^extension_control_path = '(.*?):/m ? $1 : $at{sharedir};
links("$at{sharedir}/extension", "$copy$at{sharedir}/extension",
	map { basename($_) => 1 } glob "$at{sharedir}/extension/idem[.-]*");
my $library = $config =~ /^dynamic_library_path = '(.*?):/m ? $1 : $at{pkglibdir};
links($at{pkglibdir}, "$copy$at{pkglibdir}", 'idem.so' => 1);
system_or_bail('cp', (map { "$at{bindir}/$_" } @programs), "$copy$at{bindir}");

# The next version: what its CREATE EXTENSION runs, and the update to it.
my $extensions = "$copy$at{sharedir}/extension";
my $control = slurp_file("$idem/extension/idem.control");
my ($current) = $control =~ /^default_version = '(.*)'$/m;
my $next = '9.0.0';    # as short as a version can be
my $patch = '9.0.1';
sub put { my ($name, $text) = @_; append_to_file("$extensions/$name", $text); return; }

# As a package does it: new sessions load this library, unless the server has preloaded another.
my $machine_code = slurp_file("$library/idem.so");
sub install_library
{
	my ($version) = @_;
	my $zeros = "\0" x (1 + length($current) - length $version);
	my $places = (my $code = $machine_code) =~ s/\x{0}\Q$current\E\x{0}/\0$version$zeros/g;
	is($places, 1, "the library becomes version $version");
	append_to_file("$copy$at{pkglibdir}/idem.so.new", $code);
	rename "$copy$at{pkglibdir}/idem.so.new", "$copy$at{pkglibdir}/idem.so" or die $!;
	unlink "$extensions/idem.control";
	put('idem.control', $control =~ s/^default_version = .*$/default_version = '$version'/mr);
	return;
}
install_library($next);

my $function = <<'SQL';
CREATE FUNCTION idem.note_of(text, text) RETURNS text
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT r.note
    FROM idem.record r JOIN idem.scope s ON s.id = r.scope
    WHERE s.name = $1 AND coalesce(r.key, r.key_uuid::text) = $2;
END;
REVOKE ALL ON FUNCTION idem.note_of FROM PUBLIC;
COMMENT ON FUNCTION idem.note_of IS 'What a superuser has noted about a record.';
SQL
my $script = slurp_file("$idem/extension/idem--$current.sql");
put("idem--$current.sql", $script);
my $before = '0.99.0';
my $shorter = $script;
ok($shorter =~ s/^    records             boolean     NOT NULL DEFAULT false,\n//m
	&& $shorter =~ s/,\n        records(?=\n    FROM idem\.scope)//
	  && $shorter =~ s/^COMMENT ON COLUMN idem\.scopes\.records IS.*?;\n//ms,
	  'the version before has one setting less');
put("idem--$before.sql", $shorter);
ok($script =~ s/^    extra_attempts      integer,$/$&\n    note                text,/m,
	'the next version has one more column');
my $colour = q{colour              text        NOT NULL DEFAULT 'grey'};
ok($script =~ s/^    records             boolean     NOT NULL DEFAULT false,$/$&\n    $colour,/m
	&& $script =~ s/^        records(?=\n    FROM idem\.scope)/        records,\n        colour/m,
	'and one more setting of scopes');
my ($view) = $script =~ /^CREATE (VIEW idem\.scopes .*?;\n)/ms;
put("idem--$next.sql", "$script$function");
my ($rule) = slurp_file("$ENV{TESTDIR}/docs/releasing.md") =~ /^  ```sql\n(  DO .*?)^  ```/ms;
my $begin = "SELECT idem_internal.begin_update();\n";
put("idem--$current--$next.sql", "${begin}ALTER TABLE idem.record ADD COLUMN note text;\n"
	. "ALTER TABLE idem.scope ADD COLUMN $colour;\nCREATE OR REPLACE $view"
	. ($rule =~ s/new_column integer/note text/r) . $function);

my $own = join "\n", map { "$_ = ''" } $config =~ /^(extension_destdir)/m;
$own .= "\ndynamic_library_path = '\$libdir'";
$own .= "\nextension_control_path = '\$system'" if $config =~ /^extension_control_path/m;
my $node = idem_node('update', conf => $own, bare => 1, new => { install_path => "$copy" . dirname($at{bindir}) });
my $sql = sub { my ($database, $statements) = @_; return $node->safe_psql($database, $statements) };

# Everything that the extension consists of: definitions, privileges, comments, and what a dump
# contains.
my $inventory = <<'SQL';
WITH member AS (SELECT classid, objid FROM pg_depend WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass
                   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem')),
     rights (classid, objid, acl) AS (
        SELECT 'pg_proc'::regclass, oid, proacl FROM pg_proc UNION ALL SELECT 'pg_class'::regclass, oid, relacl
        FROM pg_class
        UNION ALL SELECT 'pg_namespace'::regclass, oid, nspacl FROM pg_namespace UNION ALL SELECT 'pg_type'::regclass,
        oid, typacl FROM pg_type),
     line AS (
        SELECT pg_describe_object(classid, objid, 0) AS object, obj_description(objid, classid::regclass::name) AS words
        FROM member
        UNION ALL
        SELECT pg_describe_object(classid, objid, 0), 'may ' || a FROM member JOIN rights USING (classid, objid),
        unnest(acl) a
        UNION ALL
        SELECT pg_describe_object(classid, objid, 0), 'at first ' || a FROM member JOIN pg_init_privs ON objoid = objid
        AND classoid = classid, unnest(initprivs) a
        UNION ALL
        SELECT objid::regprocedure::text, pg_get_functiondef(objid) FROM member WHERE classid = 'pg_proc'::regclass
        UNION ALL
        SELECT objid::regclass::text, concat_ws(' ', relkind, reloptions, CASE relkind WHEN 'v'
        THEN pg_get_viewdef(objid) END)
          FROM member JOIN pg_class ON oid = objid WHERE classid = 'pg_class'::regclass
        UNION ALL
        SELECT objid::regclass || '.' || attname, concat_ws(' ', attnum, format_type(atttypid, atttypmod), attnotnull,
        attstorage, pg_get_expr(adbin, adrelid))
          FROM member JOIN pg_attribute a ON attrelid = objid LEFT JOIN pg_attrdef ON adrelid = attrelid
          AND adnum = attnum
         WHERE classid = 'pg_class'::regclass AND NOT attisdropped
        UNION ALL
        SELECT c.relname || '.' || attname, col_description(c.oid, attnum) FROM pg_class c JOIN pg_attribute a
        ON attrelid = c.oid
         WHERE relnamespace = 'idem'::regnamespace AND relkind = 'c'
        UNION ALL
        SELECT conrelid::regclass::text, pg_get_constraintdef(c.oid) FROM member JOIN pg_constraint c
        ON conrelid = objid
         WHERE classid = 'pg_class'::regclass
        UNION ALL
        SELECT indrelid::regclass::text, pg_get_indexdef(indexrelid) FROM member JOIN pg_index ON indrelid = objid
         WHERE classid = 'pg_class'::regclass
        UNION ALL
        SELECT tgrelid::regclass::text, concat_ws(' ', pg_get_triggerdef(t.oid), tgenabled) FROM member
        JOIN pg_trigger t ON tgrelid = objid
         WHERE classid = 'pg_class'::regclass
        UNION ALL
        SELECT config::regclass::text, 'is dumped ' || condition
          FROM pg_extension, unnest(extconfig, extcondition) AS u (config, condition) WHERE extname = 'idem')
SELECT * FROM line ORDER BY 1, 2
SQL
$sql->('postgres', "CREATE DATABASE $_") for qw(fresh updated before);
$sql->('fresh', "CREATE EXTENSION idem VERSION '$next'");
my $fresh = $sql->('fresh', $inventory);
cmp_ok(scalar(split /\n/, $fresh), '>', 500, 'a fresh extension has much to compare');

# What the current version remembers, in idem.record and in another table.
$sql->('updated', "CREATE EXTENSION idem VERSION '$current'");
$sql->('updated', <<'SQL');
SELECT idem.create_scope('orders');
SELECT idem.complete(token, '{"order": 1}') FROM idem.claim('orders', 'done', '{"n": 1}');
SELECT idem.create_record_table('elsewhere', 'tenant_id', 'bigint');
SELECT idem.create_record_table('of_42', 'tenant_id', 'bigint');
CREATE TABLE of_all (LIKE of_42 INCLUDING ALL) PARTITION BY LIST (tenant_id);
ALTER TABLE of_all ATTACH PARTITION of_42 FOR VALUES IN (42);
BEGIN;
SELECT idem.use_records('elsewhere');
SELECT idem.complete(token, '{"order": 2}') FROM idem.claim('orders', 'there', '{"n": 2}', '42');
COMMIT;
SQL
my $token = $sql->('updated', q{SELECT token FROM idem.claim('orders', 'leased', '{"n": 3}', lease => '1 hour')});

# The update waits for the transactions that hold claims.
my $session = $node->background_psql('updated', on_error_stop => 1);
$session->query_safe(q{BEGIN; SELECT set_config('my.token', token, false)
	FROM idem.claim('orders', 'open', '{"n": 4}')});
my $said = '';
my $update = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('updated') . " application_name='update'",
		'-c', 'ALTER EXTENSION idem UPDATE' ], '2>', \$said);
$node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'update'
	AND wait_event_type = 'Lock'})
  or do { $update->finish; die "the update does not wait: $said" };
$session->query_safe(q{SELECT idem.complete(current_setting('my.token')); COMMIT});
$session->quit;
$update->finish;
is($said, '', 'the update says nothing');
is($sql->('updated', q{SELECT extversion FROM pg_extension WHERE extname = 'idem'}), $next, "it leads to $next");
is($sql->('updated', $inventory), $fresh, 'an update makes what CREATE EXTENSION makes');

is($sql->('updated', q{SELECT count(*) FROM pg_attribute WHERE attrelid IN ('elsewhere'::regclass, 'of_42'::regclass,
	'of_all'::regclass) AND attname = 'note'}),
	3, 'the rule of docs/releasing.md adds the column to record tables and partitions');

# The library knows one column less, and goes on.
my $outcome = sub {
	my ($key, $n) = @_;
	return $sql->('updated', qq{SELECT outcome, response FROM idem.try_claim('orders', '$key', '{"n": $n}')})
};
is($outcome->('done', 1), 'completed|{"order": 1}', 'a replay is answered');
is($outcome->('done', 2), 'conflict|', 'a conflict is one');
is($outcome->('open', 4), 'completed|', 'the claim that was open is answered');
is($outcome->('leased', 3), 'in_progress|', 'a lease holds');
is($sql->('updated', qq{SELECT idem.complete('$token', '{"order": 3}')}), '{"order": 3}', 'and its token completes it');
is($sql->('updated', q{BEGIN; SELECT idem.use_records('elsewhere');
	SELECT response FROM idem.claim('orders', 'there', '{"n": 2}', '42'); COMMIT}),
	"\n" . '{"order": 2}', 'a record in another table is found');
$sql->('updated', q{UPDATE idem.record SET note = 'seen' WHERE key = 'done'});
is($sql->('updated', q{SELECT idem.note_of('orders', 'done')}), 'seen', 'the new function reads the new column');

is($sql->('updated', q{SELECT ttl, colour FROM idem.scopes WHERE name = 'orders'}), '24:00:00|grey',
	'a scope has the default of the new setting');
$sql->('updated', q{SELECT idem.create_scope('later', settings => '{ttl=1 hour}'),
	idem.alter_scope('orders', ttl => '2 hours')});
is($sql->('updated', q{SELECT idem.scope_ddl(name) ~ 'owner' FROM idem.scopes}), "t\nt",
	'the library goes on with scopes too');

# The new library, until the update of the extension.
$sql->('before', "CREATE EXTENSION idem VERSION '$before'");
$sql->('before', q{SELECT idem.create_scope('orders', ttl => '1 hour'),
	idem.alter_scope('orders', settings => '{max_attempts=3}')});
is($sql->('before', q{SELECT idem.once('orders', 'k'), idem.once('orders', 'k')}), 't|f',
	'a setting without a column has its default');
like($sql->('before', q{SELECT idem.scope_ddl('orders')}), qr/ttl => '01:00:00', max_attempts => 3, owner/,
	'also in the statement that creates the scope');
my ($status, undef, $refusal) = $node->psql('before', q{\set VERBOSITY verbose
SELECT idem.create_scope('away', settings => '{records=true}')});
like($refusal, qr/ERROR:  55000: /, 'another value is refused');

# ---- Another library than the objects are for ----------------------------------------------------

my $library_check = q{SELECT status, hint FROM idem.health() WHERE check_name = 'library'};
sub health { my ($database) = @_; return $sql->($database, $library_check); }
is(health('updated'), 'ok|', 'library and objects are of one version');
my $hint = q{BEGIN; SET LOCAL lock_timeout = '2s'; ALTER EXTENSION idem UPDATE; COMMIT};
is(health('before'), "warn|$hint", 'the library is newer');

# The next release changes only functions. A session has loaded the library before it was installed.
$session = $node->background_psql('updated', on_error_stop => 0);
$session->query_safe(q{SELECT idem.once('orders', 'before the update')});
put("idem--$next--$patch.sql", $begin);
install_library($patch);
is(health('updated'), "warn|$hint", 'the library of a new session is newer');
is($sql->('updated', q{SELECT idem.once('orders', 'another')}), 't', 'and writes');
$sql->('updated', $hint);
is(health('updated'), 'ok|', 'its hint cures it');
$session->query(q{SELECT idem.once('orders', 'after the update')});
$refusal = $session->{stderr};
like($refusal, qr/ERROR:  the library of idem is older than its objects in this database$/m,
	'the old session refuses to write');
like($refusal, qr/^DETAIL:  The library that this session has loaded is version \Q$next\E, .* version \Q$patch\E\. /m,
	'it says which versions');
like($refusal, qr/^HINT:  Make sure that idem \Q$patch\E is installed, and reconnect\.$/m, 'and what to do');
is($session->query($library_check), "fail|Make sure that idem $patch is installed, and reconnect.",
	'so does the check');
is($session->query(q{SELECT state FROM idem.lookup('orders', 'done')}), 'completed', 'and it still reads');
$session->{stderr} = '';
$session->quit;

# The administrator has forgotten to restart the server.
install_library($current);
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idem'");
$node->restart;
$sql->('postgres', 'CREATE DATABASE careless');
$sql->('careless', q{CREATE EXTENSION idem; SELECT idem.create_scope('orders')});
install_library($next);
(undef, undef, $refusal) = $node->psql('careless', "\\set VERBOSITY verbose\nALTER EXTENSION idem UPDATE");
like($refusal, qr/ERROR:  55000: /, 'the update is refused');
like($refusal, qr/^HINT:  Make sure that idem \Q$next\E is installed, and restart the server\.$/m, 'with the cure');
is($sql->('careless', q{SELECT extversion FROM pg_extension WHERE extname = 'idem'}), $current, 'and has not begun');

# A script that does not ask.
put("idem--$current--$patch.sql", q{ALTER TABLE idem.record ADD COLUMN note text NOT NULL DEFAULT 'x'});
(undef, undef, $refusal) = $node->psql('careless', <<"SQL");
SELECT idem.once('orders', 'k');
ALTER EXTENSION idem UPDATE TO '$patch';
SELECT idem.once('orders', 'l');
SQL
like($refusal, qr/older than its objects/, 'the next call refuses to write');
is(sqlstate($node, $_, 'careless'), '55000', "also $_")
  for q{SELECT idem.claim('orders', 'm')}, q{SELECT idem.create_scope('more')}, 'SELECT idem.purge()';
is(health('careless'), "fail|Make sure that idem $patch is installed, and restart the server.", 'and the check fails');
is($sql->('careless', q{SELECT key, note FROM idem.record}), 'k|x', 'nothing is written');

log_is_clean($node);
$node->stop;
done_testing();
