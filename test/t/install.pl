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

$node->safe_psql('postgres', 'DROP EXTENSION idem CASCADE');
$session->query(q{SELECT idem.lookup('payments', 'k')});
is($session->query('SELECT 1'), 1, 'extension dropped: the session lives');

$node->safe_psql('postgres', q{CREATE EXTENSION idem; SELECT idem.create_scope('payments')});
is($session->query(q{SELECT state FROM idem.lookup('payments', 'k')}), 'absent', 'created again: the session sees the new tables');
is($session->query(q{
BEGIN;
SELECT token FROM idem.claim('payments', 'k') \gset
SELECT idem.complete(:'token', '"new"');
COMMIT;}), '"new"', 'created again: the session writes to the new tables');
is($node->safe_psql('postgres', q{SELECT response FROM idem.lookup('payments', 'k')}), '"new"', 'another session sees what it wrote');

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
my (undef, undef, $typo) = $node->psql('postgres', q{SET idem.tenent = 'x'});
like($typo, qr/invalid configuration parameter name/, 'a misspelt setting is refused');

log_is_clean($node);
$node->stop;
done_testing();
