# The extension is created and dropped while sessions have it loaded. It works without preloading
# and with.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('install', conf => '');
my $session = $node->background_psql('postgres', on_error_stop => 0);
is($session->query(q{SELECT pay('k', '{"amount": 1}')}), '{"payment": 1}', 'a session has the extension loaded');

$node->safe_psql('postgres', 'CREATE TABLE noted (operation text NOT NULL DEFAULT idem.current_key());
	DROP EXTENSION idem CASCADE');
for my $left ([ 'INSERT INTO noted DEFAULT VALUES', '23502', 'a column keeps its NOT NULL without the default' ],
	[ q{SELECT pay('k', '{}')}, '3F000', 'a procedure stays, and fails' ])
{
	my ($statement, $sqlstate, $title) = @$left;
	my (undef, undef, $stderr) = $node->psql('postgres', "\\set VERBOSITY sqlstate\n$statement");
	like($stderr, qr/ERROR:  $sqlstate$/m, "extension dropped: $title");
}
$session->query(q{SELECT idem.lookup('payments', 'k')});
is($session->query('SELECT 1'), 1, 'extension dropped: the session lives');

$node->safe_psql('postgres', q{CREATE EXTENSION idem; SELECT idem.create_scope('payments')});
is($session->query(q{SELECT state FROM idem.lookup('payments', 'k')}), 'absent',
	'created again: the session sees the new tables');
is($session->query(q{
BEGIN;
SELECT token FROM idem.claim('payments', 'k') \gset
SELECT idem.complete(:'token', '"new"');
COMMIT;}), '"new"', 'created again: the session writes to the new tables');
is($node->safe_psql('postgres', q{SELECT response FROM idem.lookup('payments', 'k')}), '"new"',
	'another session sees what it wrote');

# One session drops the extension while another is in the middle of an operation: it waits for the
# end.
$session->query(q{
BEGIN;
SELECT token FROM idem.claim('payments', 'open') \gset
});
my (undef, undef, $stderr) = $node->psql('postgres', q{SET lock_timeout = '100ms'; DROP EXTENSION idem});
like($stderr, qr/lock timeout/, 'DROP EXTENSION waits for an open claim');
is($session->query(q{
SELECT idem.complete(:'token', '1');
COMMIT;}), '1', 'the open claim completes');
$session->quit;

my (undef, undef, $pre) = $node->psql('postgres', q{DROP EXTENSION idem; CREATE SCHEMA idem; CREATE EXTENSION idem});
like($pre, qr/schema "idem" already exists/, "a schema of that name that is not idem's is not taken over");

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idem'\nidem.tenant = 'preset'");
$node->restart;
$node->safe_psql('postgres', 'DROP SCHEMA idem; CREATE EXTENSION idem');
$node->safe_psql('postgres', q{SELECT idem.create_scope('s')});
is($node->safe_psql('postgres', q{SELECT state FROM idem.lookup('s', 'k')}), 'absent', 'it works preloaded');
is($node->safe_psql('postgres', 'SHOW idem.tenant'), 'preset', 'preloaded, the settings come from the file');
# Default privileges of the role that creates the extension.
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE reader;
CREATE DATABASE generous;
\c generous
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO reader;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO reader;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO reader;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO reader;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO reader;
CREATE EXTENSION idem;
CREATE DATABASE strict;
\c strict
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE USAGE ON TYPES FROM PUBLIC;
CREATE EXTENSION idem;
SQL
my $privileges = <<'SQL';
SELECT o.name, a.grantee::regrole, a.privilege_type
  FROM (SELECT 'n'::"char", 'schema ' || nspname, nspname, nspacl, nspowner FROM pg_namespace
        UNION ALL SELECT CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relname, relnamespace::regnamespace::text,
        relacl, relowner FROM pg_class WHERE relkind IN ('r', 'v', 'S')
        UNION ALL SELECT 'f'::"char", oid::regprocedure::text, pronamespace::regnamespace::text, proacl, proowner
        FROM pg_proc
        UNION ALL SELECT 'T'::"char", typname, typnamespace::regnamespace::text, typacl, typowner FROM pg_type) o (kind,
        name, schema, acl, owner),
       aclexplode(coalesce(o.acl, acldefault(o.kind, o.owner))) a
 WHERE schema IN ('idem', 'idem_internal') AND a.grantee <> o.owner
 ORDER BY 1, 2, 3
SQL
is($node->safe_psql('generous', $privileges), $node->safe_psql('postgres', $privileges),
	'no role gets privileges on it by default');
is($node->safe_psql('strict', $privileges), $node->safe_psql('postgres', $privileges), 'and PUBLIC loses none');
is($node->safe_psql('strict', 'SELECT count(*) FROM pg_default_acl WHERE defaclnamespace <> 0'), 0,
	'no default privileges are left');

is($node->safe_psql('postgres', q{SELECT DISTINCT probin FROM pg_proc WHERE probin IS NOT NULL AND oid >= 16384}),
	'idem', 'functions name the library without a directory, so that dynamic_library_path finds it');
SKIP:
{
	skip 'a library has no version', 1 if $node->pg_version < 18;
	is($node->safe_psql('postgres', q{
LOAD 'idem';
SELECT m.version = e.default_version FROM pg_get_loaded_modules() m JOIN pg_available_extensions e
ON e.name = m.module_name WHERE e.name = 'idem'}),
		't', 'the library says its version');
}

my (undef, undef, $typo) = $node->psql('postgres', q{SET idem.tenent = 'x'});
like($typo, qr/invalid configuration parameter name/, 'a misspelt setting is refused');

log_is_clean($node);
$node->stop;
done_testing();
