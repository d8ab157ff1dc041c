# idem.in_flight shows every open claim to those who may see it, and no ghost.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('in_flight', conf => "shared_preload_libraries = 'idem'\nmax_connections = 40");

sub sql { return $node->safe_psql('postgres', shift); }

# scope|tenant|key|attempt|pid of what another session sees, by key.
sub seen
{
	my ($database) = @_;
	return $node->safe_psql($database // 'postgres',
		'SELECT scope, tenant, key, attempt, pid FROM idem.in_flight ORDER BY key');
}

# state|gid|keys of the same.
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
is( sql(<<'SQL'), 't|f||', 'with its age, and without a lease');
SELECT age >= '0' AND since <= clock_timestamp() AND since >= pg_postmaster_start_time(), lapsed, lease_end,
       recovery_point FROM idem.in_flight
SQL
is(how(), 'one|open||1', 'which it has still to finish');
is($session->query('SELECT key FROM idem.in_flight'), 'one', 'its own session sees it too');

# The newest open claim of each transaction -------------------------------------------------------

$session->query_safe("SELECT token AS second FROM idem.claim('payments', 'two', tenant => 't') \\gset");
is(seen(), "payments|t|two|1|$pid", 'the newest claim of the transaction');
$session->query_safe("SELECT idem.complete(:'second')");
is(seen(), "payments||one|1|$pid", 'once it is finished, the one before');
is(how(), 'one|open||2', 'though the transaction holds both keys');
$session->query_safe("SELECT token AS third FROM idem.claim('payments', 'three') \\gset");
$session->query_safe("SELECT idem.release(:'token')");
is(seen(), "payments||three|1|$pid", 'whatever older one is finished first');
$session->query_safe("SELECT idem.release(:'third')");
is(seen(), "payments||three|1|$pid", 'the newest when all are finished, for as long as the transaction is open');
is(how(), 'three|uncommitted||3', 'it has only to commit');
is(sql("SELECT outcome FROM idem.try_claim('payments', 'three')"), 'in_progress', 'and until then keeps the key');
like(sql("SELECT line FROM idem.report('payments') line WHERE line ~ 'three'"), qr/process $pid, not committed/,
	'as a report says too');

$session->query_safe('ROLLBACK');
is(seen(), '', 'none when it has ended');
$session->query_safe(claim_open('kept'));
$session->query_safe('SAVEPOINT s');
$session->query_safe("SELECT token AS inner FROM idem.claim('payments', 'undone') \\gset");
is(seen(), "payments||undone|1|$pid", 'a claim in a savepoint');
$session->query_safe('ROLLBACK TO s');
is(seen(), "payments||kept|1|$pid", 'is gone with it');
$session->query_safe("SELECT idem.complete(:'token')");
is(how(), 'kept|uncommitted||1', 'completed in a savepoint');
$session->query_safe('ROLLBACK TO s');
is(how(), 'kept|open||1', 'and open again without it');
$session->query_safe("RELEASE s; SAVEPOINT s");
$session->query_safe("SELECT token AS inner FROM idem.claim('payments', 'moved') \\gset");
$session->query_safe('RELEASE s');
is(seen(), "payments||moved|1|$pid", 'a released savepoint hands its claim on');
fails('SELECT 1/0');
is(seen(), '', 'an aborted transaction has none, before its ROLLBACK');
$session->query_safe('ROLLBACK');
is(seen(), '', 'nor after it');

$session->query_safe(claim_open('done'));
$session->query_safe("SELECT idem.complete(:'token', '{}')");
$session->query_safe('COMMIT');
is(seen(), '', 'nor does a committed one');
$session->query_safe(claim_open('forgotten'));
fails('COMMIT');
is(seen(), '', 'nor one that could not commit');
$session->query_safe(claim_open('prepared'));
$session->query_safe("SELECT idem.complete(:'token')");
$session->query_safe("PREPARE TRANSACTION 'p'");
is(seen(), 'payments||prepared|1|', 'a prepared one keeps its keys, without a process');
is(how(), 'prepared|prepared|p|', 'and has a name by which it can be ended');
like(sql("SELECT line FROM idem.report('payments') line WHERE line ~ 'key'"), qr/prepared transaction "p"/,
	'which a report gives too');
is(sql("SELECT since BETWEEN pg_postmaster_start_time() AND now(), NOT lapsed FROM idem.in_flight"), 't|t', 'and since when');
sql("ROLLBACK PREPARED 'p'");
is(seen(), '', 'until it is ended');

# What a prepared transaction has written, in savepoints too; what it has only released shows no more.
$session->query_safe(claim_open('outer') . "SELECT idem.complete(:'token'); SAVEPOINT s;");
$session->query_safe("SELECT idem.complete(token) FROM idem.claim('payments', 'inner')");
$session->query_safe("RELEASE s; SELECT idem.release(token) FROM idem.claim('payments', 'given up')");
$session->query_safe("SELECT token AS lease FROM idem.claim('payments', 'lease', lease => '1 hour') \\gset");
$session->query_safe("PREPARE TRANSACTION 'q'");
sql("SELECT idem.once('payments', 'committed')");
$session->query_safe("BEGIN; SELECT idem.once('payments', 'running')");
my $held = "inner|prepared|q|\nlease|prepared|q|\nouter|prepared|q|";
is(how(), "$held\nrunning|uncommitted||1", 'all its keys, and those of nobody else');
$session->query_safe('ROLLBACK');
is(sql("CREATE ROLE nobody_here; SET ROLE nobody_here; SELECT count(*) FROM idem.in_flight"), 0, 'not for everybody');
$node->restart;
$session = $node->background_psql('postgres', on_error_stop => 0);
$pid = $session->query('SELECT pg_backend_pid()');
is(how(), $held, 'also after a restart');
sql("COMMIT PREPARED 'q'");
is(how(), 'lease|leased||', 'committed: what is left is the lease');
sql("BEGIN; SELECT idem.renew(token) FROM idem.claim('payments', 'renewed', lease => '1 hour'); COMMIT");
sql("BEGIN; SELECT idem.forget('payments', 'inner'); PREPARE TRANSACTION 'r'");
is(how(), "inner|prepared|r|\nlease|leased||\nrenewed|leased||", 'a key that is being forgotten');
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
	'a leased claim has no process, but for the transaction that takes it over');
is(how(), "leased|leased||\nshort|uncommitted||1", 'until that commits');
is(sql("SELECT lapsed FROM idem.in_flight WHERE key = 'short'"), 'f', 'it is being taken over');
$session->query_safe('COMMIT');
sql('SELECT pg_sleep(0.01)');
is(seen(), 'payments||leased|1|', 'the last attempt is over: it is not in flight, but failed');
is( sql("SELECT key, state, attempt FROM idem.records ORDER BY key"),
	"done|completed|1\nleased|in_progress|1\nshort|failed|2", 'as idem.records says too');
sql("SELECT idem.alter_scope('payments', max_attempts => -1)");
is( sql("SELECT key, state FROM idem.records WHERE key = 'short'"), 'short|in_progress',
	'until another is allowed');
$session->query_safe("SELECT idem.release(:'token')");
is(seen(), 'payments||short|2|', 'a released claim is nobody\'s');
sql("SELECT idem.forget('payments', 'short')");
is(seen(), '', 'nothing is in flight again');

# Who sees what ------------------------------------------------------------------------------------

sql(<<'SQL');
CREATE ROLE shop LOGIN;
CREATE ROLE stranger LOGIN;
SELECT idem.create_scope('orders', owner => 'shop');
SQL
$session->query_safe(claim_open('secret'));
is( sql("SET ROLE stranger; SELECT count(*) FROM idem.in_flight"), 0, 'a stranger sees no claim');
is( sql("SET ROLE shop; SELECT count(*) FROM idem.in_flight"), 0, 'nor does who owns another scope');
my $shop = $node->background_psql('postgres');
$shop->query_safe("SET ROLE shop; BEGIN; SELECT token FROM idem.claim('orders', 'o') \\gset");
is( sql("SET ROLE shop; SELECT scope, key FROM idem.in_flight"), 'orders|o', 'he sees his own');
is( sql("SELECT scope, key FROM idem.in_flight ORDER BY 1"), "orders|o\npayments|secret",
	'the superuser sees all');
sql('CREATE DATABASE other');
install_payments($node, 'other');
is(seen('other'), '', 'what is in flight in another database is not shown');
$shop->query_safe('ROLLBACK');
$shop->quit;

# No ghosts ----------------------------------------------------------------------------------------

sql("SELECT pg_terminate_backend($pid)");
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idem.in_flight'),
	'a terminated session has no claim');
eval { $session->quit };

$session = $node->background_psql('postgres', on_error_stop => 0);
$pid = $session->query('SELECT pg_backend_pid()');
$session->query_safe(claim_open('killed'));
is(seen(), "payments||killed|1|$pid", 'before the crash');
kill 'KILL', $pid;
$node->poll_query_until('postgres', 'SELECT true') or die 'no recovery';
eval { $session->{run}->kill_kill };
is(seen(), '', 'a killed backend has no claim');

# A reader never sees a half-written note: each key here is a single letter, repeated.
my $bench = load($node, <<'SQL', '-c', 4);
\set n random(0, 25)
\set length random(1, 255)
BEGIN;
SELECT outcome FROM idem.try_claim('payments', repeat(chr(97 + :n), :length), tenant => repeat(chr(65 + :n), :length));
ROLLBACK;
SQL
is( sql(<<'SQL'), 0, 'notes were read while they changed, none of them torn');
CREATE TABLE reading AS SELECT tenant, key FROM idem.open_claims() LIMIT 0;
DO $$
DECLARE n bigint := 0; more bigint;
BEGIN
  WHILE n < 20000 LOOP
    INSERT INTO reading SELECT tenant, key FROM idem.open_claims();
    GET DIAGNOSTICS more = ROW_COUNT;
    n := n + more;
  END LOOP;
END $$;
SELECT count(*) FROM reading WHERE key <> repeat(left(key, 1), length(key)) OR tenant <> upper(key)
SQL
ok($bench->pumpable, 'the writers were at it all the time');
$bench->kill_kill;

log_is_clean($node, killed => 1);
$node->stop;

# Without preload ----------------------------------------------------------------------------------

my $plain = idem_node('plain');
$session = $plain->background_psql('postgres');
$session->query_safe(claim_open('unseen'));
$session->query_safe("SELECT outcome FROM idem.claim('payments', 'leased', lease => '1 hour')");
is($plain->safe_psql('postgres', 'SELECT key FROM idem.in_flight'), '', 'atomic claims are not seen');
$session->query_safe("SELECT idem.complete(:'token'); COMMIT");
is($plain->safe_psql('postgres', 'SELECT key, pid FROM idem.in_flight'), 'leased|', 'leased ones are');
$session->quit;
log_is_clean($plain);
$plain->stop;
done_testing();
