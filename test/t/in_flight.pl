# idem.in_flight shows every open claim, to the roles that may see it, and nothing else.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('in_flight', conf => "shared_preload_libraries = 'idem'\nmax_connections = 40");

sub sql { return $node->safe_psql('postgres', shift); }

# scope|tenant|key|attempt|pid as another session sees them, by key.
sub seen
{
	my ($database) = @_;
	return $node->safe_psql($database // 'postgres',
		'SELECT scope, tenant, key, attempt, pid FROM idem.in_flight ORDER BY key');
}

# key|state|gid|keys of the same.
sub how
{
	return sql('SELECT key, state, gid, keys FROM idem.in_flight ORDER BY key');
}

my $session = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $session->query('SELECT pg_backend_pid()');

# A query of the session that raises an error.
sub fails
{
	$session->query(shift);
	$session->{stderr} = '';
	return;
}

is(seen(), '', 'nothing is in flight');
$session->query_safe(claim_open('one'));
is(seen(), "payments||one|1|$pid", 'an open atomic claim');
is( sql(<<'SQL'), 't|f||', 'an atomic claim has an age and no lease');
SELECT age >= '0' AND since <= clock_timestamp() AND since >= pg_postmaster_start_time(), lapsed, lease_end,
       recovery_point FROM idem.in_flight
SQL
is(how(), 'one|open||1', 'the claim is still to be finished');
is($session->query('SELECT key FROM idem.in_flight'), 'one', 'its own session sees it too');

# The newest open claim of each transaction -------------------------------------------------------

$session->query_safe("SELECT token AS second FROM idem.claim('payments', 'two', tenant => 't') \\gset");
is(seen(), "payments|t|two|1|$pid", 'the newest claim of the transaction');
$session->query_safe("SELECT idem.complete(:'second')");
is(seen(), "payments||one|1|$pid", 'once it is finished, the previous claim is shown');
is(how(), 'one|open||2', 'the transaction still holds both keys');
$session->query_safe("SELECT token AS third FROM idem.claim('payments', 'three') \\gset");
$session->query_safe("SELECT idem.release(:'token')");
is(seen(), "payments||three|1|$pid", 'the newest is shown, even if an older one is finished first');
$session->query_safe("SELECT idem.release(:'third')");
is(seen(), "payments||three|1|$pid", 'when all are finished, the newest is shown until the transaction ends');
is(how(), 'three|uncommitted||3', 'all claims are finished: the transaction has only to commit');
is(sql("SELECT outcome FROM idem.try_claim('payments', 'three')"), 'in_progress',
	'an uncommitted transaction keeps the key');

$session->query_safe('ROLLBACK');
is(seen(), '', 'none is shown after the transaction');
$session->query_safe(claim_open('kept'));
$session->query_safe('SAVEPOINT s');
$session->query_safe("SELECT token AS inner FROM idem.claim('payments', 'undone') \\gset");
is(seen(), "payments||undone|1|$pid", 'a claim in a savepoint is shown');
$session->query_safe('ROLLBACK TO s');
is(seen(), "payments||kept|1|$pid", 'a rollback to the savepoint removes it');
$session->query_safe("SELECT idem.complete(:'token')");
is(how(), 'kept|uncommitted||1', 'completed in a savepoint: uncommitted');
$session->query_safe('ROLLBACK TO s');
is(how(), 'kept|open||1', 'rolled back to the savepoint: open again');
$session->query_safe("RELEASE s; SAVEPOINT s");
$session->query_safe("SELECT token AS inner FROM idem.claim('payments', 'moved') \\gset");
$session->query_safe('RELEASE s');
is(seen(), "payments||moved|1|$pid", 'a released savepoint passes its claim on');
fails('SELECT 1/0');
is(seen(), '', 'an aborted transaction has no claim, even before its ROLLBACK');
$session->query_safe('ROLLBACK');
is(seen(), '', 'none after the ROLLBACK');

$session->query_safe(claim_open('done'));
$session->query_safe("SELECT idem.complete(:'token', '{}')");
$session->query_safe('COMMIT');
is(seen(), '', 'a committed transaction has none');
$session->query_safe(claim_open('forgotten'));
fails('COMMIT');
is(seen(), '', 'a transaction that could not commit has none');
$session->query_safe(claim_open('prepared'));
$session->query_safe("SELECT idem.complete(:'token')");
$session->query_safe("PREPARE TRANSACTION 'p'");
is(seen(), 'payments||prepared|1|', 'a prepared transaction keeps its keys, without a process');
is(how(), 'prepared|prepared|p|', 'a prepared transaction has a name by which it can be ended');
is(sql("SELECT since BETWEEN pg_postmaster_start_time() AND now(), NOT lapsed FROM idem.in_flight"), 't|t',
	'a prepared claim has a start time');
sql("ROLLBACK PREPARED 'p'");
is(seen(), '', 'none after the prepared transaction ended');

# The keys that a prepared transaction has written, in savepoints too; one that it has only released
# is not shown.
$session->query_safe(claim_open('outer') . "SELECT idem.complete(:'token'); SAVEPOINT s;");
$session->query_safe("SELECT idem.complete(token) FROM idem.claim('payments', 'inner')");
$session->query_safe("RELEASE s; SELECT idem.release(token) FROM idem.claim('payments', 'given up')");
$session->query_safe("SELECT token AS lease FROM idem.claim('payments', 'lease', lease => '1 hour') \\gset");
$session->query_safe("PREPARE TRANSACTION 'q'");
sql("SELECT idem.once('payments', 'committed')");
$session->query_safe("BEGIN; SELECT idem.once('payments', 'running')");
my $held = "inner|prepared|q|\nlease|prepared|q|\nouter|prepared|q|";
is(how(), "$held\nrunning|uncommitted||1", 'all keys of the prepared transaction, and no others');
$session->query_safe('ROLLBACK');
is(sql("CREATE ROLE nobody_here; SET ROLE nobody_here; SELECT count(*) FROM idem.in_flight"), 0,
	'a role without scopes sees none');
$node->restart;
$session = $node->background_psql('postgres', on_error_stop => 0);
$pid = $session->query('SELECT pg_backend_pid()');
is(how(), $held, 'prepared keys are shown after a restart');
sql("COMMIT PREPARED 'q'");
is(how(), 'lease|leased||', 'committed: only the lease is left');
sql("BEGIN; SELECT idem.renew(token) FROM idem.claim('payments', 'renewed', lease => '1 hour'); COMMIT");
sql("BEGIN; SELECT idem.forget('payments', 'inner'); PREPARE TRANSACTION 'r'");
is(how(), "inner|prepared|r|\nlease|leased||\nrenewed|leased||", 'a key that is being forgotten is shown');
sql("ROLLBACK PREPARED 'r'");
sql("DELETE FROM idem.record WHERE key <> 'done'");

# Leased claims ------------------------------------------------------------------------------------

sql("SELECT idem.alter_scope('payments', max_attempts => 2)");
$session->query_safe(<<'SQL');
SELECT token FROM idem.claim('payments', 'leased', lease => '1 hour') \gset
SELECT idem.checkpoint(:'token', 'charged');
SELECT outcome FROM idem.claim('payments', 'short', lease => '1 millisecond');
SELECT pg_sleep(0.01);
SQL
is( sql(<<'SQL'), "leased|1|t|f|charged|\nshort|1|t|t||", 'leased claims, one of them lapsed');
SELECT key, attempt, lease_end = (SELECT lease_end FROM idem.lookup(f.scope, f.key)), lapsed, recovery_point, pid
  FROM idem.in_flight f ORDER BY key
SQL
$session->query_safe('BEGIN');
$session->query_safe(
	"SELECT token AS taken FROM idem.claim('payments', 'short', lease => '1 millisecond') \\gset");
is(seen(), "payments||leased|1|\npayments||short|2|$pid",
	'a leased claim has no process, except while a transaction takes it over');
is(how(), "leased|leased||\nshort|uncommitted||1", 'a takeover is uncommitted until its transaction ends');
is(sql("SELECT lapsed FROM idem.in_flight WHERE key = 'short'"), 'f',
	'a claim that is being taken over has not lapsed');
$session->query_safe('COMMIT');
sql('SELECT pg_sleep(0.01)');
is(how(), "leased|leased||\nshort|exhausted||", 'after the last attempt the operation is exhausted');
is( sql("SELECT key, state, attempt FROM idem.records ORDER BY key"),
	"done|completed|1\nleased|in_progress|1\nshort|exhausted|2", 'idem.records says so too');
sql("SELECT idem.alter_scope('payments', max_attempts => -1)");
is( sql("SELECT key, state FROM idem.records WHERE key = 'short'"), 'short|in_progress',
	'one more attempt may take it over');
$session->query_safe("SELECT idem.release(:'token')");
is(seen(), "payments||leased|1|\npayments||short|2|", 'a released claim is shown without a process');
is(how(), "leased|released||\nshort|leased||", 'as released');
sql("SELECT idem.forget('payments', 'short')");
sql("SELECT idem.complete(token) FROM idem.take('payments')");
is(seen(), '', 'nothing is in flight again');

# Records in another table -------------------------------------------------------------------------

sql("SELECT idem.create_record_table('elsewhere'), idem.create_scope('distant', records => true)");
$session->query_safe("BEGIN; SELECT idem.use_records('elsewhere')");
$session->query_safe("SELECT token AS there FROM idem.claim('distant', 'there', lease => '1 hour') \\gset");
is(sql("SELECT key, state FROM idem.in_flight"), 'there|uncommitted',
	'the key that a transaction holds is shown, wherever its record will be');
$session->query_safe('COMMIT');
is(sql("SELECT count(*) FROM idem.in_flight"), 0, 'the view shows the records of idem.record only');
$session->query_safe("BEGIN; SELECT token AS here FROM idem.claim('payments', 'here', lease => '1 hour') \\gset");
$session->query_safe("SELECT idem.once('payments', 'once here')");
$session->query_safe("PREPARE TRANSACTION 'e'");
$held = how();
like($held, qr/^here\|prepared\|e\|/, 'a prepared transaction');
$node->restart;
$session = $node->background_psql('postgres', on_error_stop => 0);
$pid = $session->query('SELECT pg_backend_pid()');
is(how(), $held, 'and after a restart');
sql("ROLLBACK PREPARED 'e'");
is(how(), '', 'until it ends');
sql('DROP TABLE elsewhere');

# Which role sees what ----------------------------------------------------------------------------

sql(<<'SQL');
CREATE ROLE shop LOGIN;
CREATE ROLE stranger LOGIN;
SELECT idem.create_scope('orders', owner => 'shop');
SQL
$session->query_safe(claim_open('secret'));
is( sql("SET ROLE stranger; SELECT count(*) FROM idem.in_flight"), 0, 'a stranger sees no claim');
is( sql("SET ROLE shop; SELECT count(*) FROM idem.in_flight"), 0, 'the owner of another scope sees no claim');
my $shop = $node->background_psql('postgres');
$shop->query_safe("SET ROLE shop; BEGIN; SELECT token FROM idem.claim('orders', 'o') \\gset");
is( sql("SET ROLE shop; SELECT scope, key FROM idem.in_flight"), 'orders|o', 'an owner sees the claims of its scope');
is( sql("SELECT scope, key FROM idem.in_flight ORDER BY 1"), "orders|o\npayments|secret",
	'a superuser sees every claim');
sql('CREATE DATABASE other');
install_payments($node, 'other');
is(seen('other'), '', 'claims of another database are not shown');
$shop->query_safe('ROLLBACK');
$shop->quit;

# Keys that have become longer than an entry --------------------------------------------------------

# A restore into another encoding makes keys and tenants longer than any call accepts.
$node->safe_psql('postgres', "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0;
	CREATE DATABASE utf8 ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0");
$node->safe_psql('latin', q{CREATE EXTENSION idem; SELECT idem.create_scope('long');
	SELECT idem.release(token) FROM idem.claim('long', 'k' || repeat(chr(233), 254), lease => '1 hour',
		tenant => repeat(chr(252), 255))});
mkdir $node->backup_dir;
my $dump = $node->backup_dir . '/latin.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, 'latin' ], 'pg_dump of a database in LATIN1');
$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump, 'utf8' ],
	'restore into UTF8');
my $taker = $node->background_psql('utf8');
is($taker->query_safe(q{BEGIN; SELECT octet_length(key), octet_length(tenant) FROM idem.take('long')}), '509|510',
	'take() returns the whole key');
is( $node->safe_psql('utf8', <<'SQL'), 't|t', 'in_flight shows the characters that fit, and spoils no other entry');
SET statement_timeout = '60s';
SELECT key = 'k' || repeat(chr(233), 127), tenant = repeat(chr(252), 127) FROM idem.in_flight
WHERE state = 'uncommitted';
SQL
$taker->query_safe('COMMIT');
$taker->quit;

# Sessions that die -------------------------------------------------------------------------------

sql("SELECT pg_terminate_backend($pid)");
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idem.in_flight'),
	'a terminated session has no claim');
eval { $session->quit };

$session = $node->background_psql('postgres', on_error_stop => 0);
$pid = $session->query('SELECT pg_backend_pid()');
$session->query_safe(claim_open('killed'));
is(seen(), "payments||killed|1|$pid", 'the claim is shown before the crash');
kill_process($node, $pid);
eval { $session->{run}->kill_kill };
is(seen(), '', 'a killed backend has no claim');

# A reader never sees a half-written entry: each key here is a single letter, repeated.
my $bench = load($node, <<'SQL', '-c', 4);
\set n random(0, 25)
\set length random(1, 255)
BEGIN;
SELECT outcome FROM idem.try_claim('payments', repeat(chr(97 + :n), :length), tenant => repeat(chr(65 + :n), :length));
ROLLBACK;
SQL
is( sql(<<'SQL'), 0, 'entries read while they change are never torn');
CREATE TABLE reading AS SELECT tenant, key FROM idem_internal.held_keys(false) LIMIT 0;
DO $$
DECLARE n bigint := 0; more bigint;
BEGIN
  WHILE n < 20000 LOOP
    INSERT INTO reading SELECT tenant, key FROM idem_internal.held_keys(false);
    GET DIAGNOSTICS more = ROW_COUNT;
    n := n + more;
  END LOOP;
END $$;
SELECT count(*) FROM reading WHERE key <> repeat(left(key, 1), length(key)) OR tenant <> upper(key)
SQL
ok(runs($bench), 'the writers ran all the time');
$bench->kill_kill;

log_is_clean($node, killed => 1);
$node->stop;

# Without preload ----------------------------------------------------------------------------------

my $plain = idem_node('plain');
$session = $plain->background_psql('postgres');
$session->query_safe(claim_open('unseen'));
$session->query_safe("SELECT outcome FROM idem.claim('payments', 'leased', lease => '1 hour')");
is($plain->safe_psql('postgres', 'SELECT key FROM idem.in_flight'), '', 'without preload, atomic claims are not shown');
$session->query_safe("SELECT idem.complete(:'token'); COMMIT");
is($plain->safe_psql('postgres', 'SELECT key, pid FROM idem.in_flight'), 'leased|',
	'without preload, leased claims are shown');
$session->quit;
log_is_clean($plain);
$plain->stop;
done_testing();
