# The purge worker: it deletes expired records and nothing else, and nothing stops it for good.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'usleep';

my $conf = <<'CONF';
shared_preload_libraries = 'idem'
idem.purge_naptime = '50ms'
idem.log_transitions = log
log_min_duration_statement = -1
log_statement = 'none'
log_line_prefix = '%m [%p] %b '
CONF
my $node = idem_node('worker', conf => $conf, init => { allows_streaming => 1 });

sub sql { return $node->safe_psql('postgres', shift); }

# Inserts records into a database, bypassing idem, that expire in so many seconds.
sub fill
{
	my ($database, $n, $ttl) = @_;
	$node->safe_psql($database, <<"SQL");
INSERT INTO idem.record (digest, created, expires, scope, attempt, state, redacted, tenant, key)
SELECT gen_random_uuid(), now(), now() + '$ttl', (SELECT min(id) FROM idem.scope), 1, 'c', false, '', 'filled ' || i
  FROM generate_series(1, $n) i
SQL
	return;
}

sub records
{
	my ($database) = @_;
	return $node->safe_psql($database, 'SELECT count(*) FROM idem.record');
}

# Waits until so many records are left.
sub left
{
	my ($database, $n, $what) = @_;
	ok($node->poll_query_until($database, "SELECT count(*) = $n FROM idem.record"), $what);
	return;
}

# The processes of idem, of one kind.
sub pids
{
	my ($type) = @_;
	return split /\n/, sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'idem $type'");
}

sub wait_for_launcher
{
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idem launcher'")
	  or die 'no launcher';
	return (pids('launcher'))[0];
}

# Waits until a worker purges the database, and returns its process id.
sub catch_worker
{
	my ($database) = @_;
	my $worker = "FROM pg_stat_activity WHERE backend_type = 'idem purger' AND datname = '$database'";
	for (1 .. 10)
	{
		$node->poll_query_until('postgres', "SELECT count(*) > 0 $worker") or die 'no worker';
		my $pid = sql("SELECT pid $worker");
		return $pid if $pid ne '';
	}
	die 'the worker was always gone';
}

sub set_conf
{
	my (%settings) = @_;
	$node->append_conf('postgresql.conf', "$_ = '$settings{$_}'") for sort keys %settings;
	$node->reload;
	return;
}

# Purging -----------------------------------------------------------------------------------------

fill('postgres', 2500, '-1 second');
fill('postgres', 10, '1 hour');
left('postgres', 10, 'expired records are deleted, the others stay');
is(sql("SELECT purged FROM idem.stats"), 2500, 'purged records are counted');
ok($node->poll_query_until('postgres',
		"SELECT n_tup_del >= 2500 FROM pg_stat_user_tables WHERE relid = 'idem.record'::regclass"),
	'autovacuum learns of the dead rows');

$node->wait_for_log(qr/LOG:  purge worker has purged \d+ records? in database "postgres"/);
my $purged = 0;
$purged += $_ for slurp_file($node->logfile) =~ /purged (\d+) records? in database "postgres"/g;
is($purged, 2500, 'the log says how many records each run has purged, and nothing of runs without any');
set_conf('idem.log_transitions' => 'off');

sql(<<'SQL');
SELECT idem.complete(token, to_jsonb((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i)))
  FROM idem.claim('payments', 'large', ttl => '1 millisecond')
SQL
left('postgres', 10, 'records stored out of line are deleted too');

sql("SELECT idem.complete(token) FROM idem.claim('payments', 'soon', ttl => '1 second')");
left('postgres', 10, 'a record that expires later is deleted later');

# No timeout of the database ends a run: from PostgreSQL 17 on, that of a transaction would. Sessions
# that are connected when it is set do not have it.
if (sql('SHOW server_version_num') >= 170000)
{
	my $filler = $node->background_psql('postgres');
	sql('ALTER DATABASE postgres SET transaction_timeout = 1');
	$filler->query_safe(q{SELECT count(*)
		FROM idem.once_each('payments', ARRAY(SELECT 'timed ' || i FROM generate_series(1, 5000) i));
		UPDATE idem.record SET expires = created WHERE key LIKE 'timed %'});
	my $timed = 5000;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last unless $timed = $filler->query_safe(q{SELECT count(*) FROM idem.record WHERE key LIKE 'timed %'});
		usleep(100_000);
	}
	is($timed, 0, 'a transaction_timeout of the database ends no run');
	$filler->query_safe('ALTER DATABASE postgres RESET transaction_timeout');
	$filler->quit;
}

# A running lease keeps its record, whatever its TTL.
sql("SELECT outcome FROM idem.claim('payments', 'leased', ttl => '1 millisecond', lease => '1 hour')");
fill('postgres', 1, '-1 second');
left('postgres', 11, 'a running lease keeps its record');

# An answer is erased before its record expires.
sql("SELECT idem.alter_scope('payments', answer_ttl => '1 ms')");
sql(q{SELECT idem.complete(token, '{"iban": "DE89"}', 201, '{"a": "b"}', 'DE89')
	FROM idem.claim('payments', 'private')});
ok($node->poll_query_until('postgres',
		q{SELECT redacted AND num_nulls(response, headers, body) = 3 AND status = 201 FROM idem.record
			WHERE key = 'private'}),
	'the worker erases an answer that is older than answer_ttl');
left('postgres', 12, 'and keeps the record');
sql("SELECT idem.alter_scope('payments', answer_ttl => '0'); DELETE FROM idem.record WHERE key = 'private'");

# An expired row that a claim is replacing belongs to that claim.
configure_purge($node, 'idem.purge_naptime', '0');
sql("SELECT idem.complete(token) FROM idem.claim('payments', 'again', ttl => '1 millisecond')");
my $claimer = $node->background_psql('postgres');
$claimer->query_safe(<<'SQL');
BEGIN;
SELECT idem.complete(token, '"second"') FROM idem.claim('payments', 'again');
SQL
set_conf('idem.purge_naptime' => '50ms');
fill('postgres', 1, '-1 second');
left('postgres', 12, 'the worker skips a row that is being replaced');
$claimer->query_safe('COMMIT');
$claimer->quit;
is(sql("SELECT response FROM idem.claim('payments', 'again')"), '"second"', 'the new record lives');
sql('DELETE FROM idem.record');

# Other record tables -----------------------------------------------------------------------------

# The position is in the third table when the server is restarted.
configure_purge($node, 'idem.purge_naptime', '0');
sql("SELECT idem.create_record_table('second'), idem.create_record_table('third')");
fill('postgres', 20, '-1 second');
sql("INSERT INTO $_ SELECT * FROM idem.record") for 'second', 'third';
sql("UPDATE idem.purge_progress SET position = 'third'::regclass::oid::bigint << 32");
$node->restart;
wait_for_launcher();
is(sql("SELECT position = 'third'::regclass::oid::bigint << 32 FROM idem.purge_progress"), 't',
	'the position survives a restart');
my $admin = $node->background_psql('postgres');
$admin->query_safe('BEGIN; LOCK TABLE second IN ACCESS EXCLUSIVE MODE');
set_conf('idem.purge_naptime' => '50ms');
ok( $node->poll_query_until('postgres', 'SELECT (SELECT count(*) FROM third) + (SELECT count(*) FROM idem.record) = 0'),
	'the worker purges all record tables, except one that is locked');
is(sql('SELECT count(*) FROM pg_locks WHERE NOT granted'), 0, 'for which it does not wait');
$admin->query_safe('COMMIT');
$admin->quit;
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM second'), 'and that one afterwards');
sql('DROP TABLE second, third');

# Tables locked by other sessions -----------------------------------------------------------------

# DROP EXTENSION locks the second table first: waiting for it with a lock on the others would
# deadlock.
my $logged = -s $node->logfile;
my $locker = $node->background_psql('postgres');
for my $lock ('LOCK TABLE idem.record IN SHARE MODE', 'ALTER SEQUENCE idem.scope_id SET LOGGED')
{
	fill('postgres', 1, '1 hour');
	$locker->query_safe("BEGIN; $lock");
	$locker->query_safe("SELECT pg_sleep(0.5)");
	is(sql("SELECT count(*) FROM pg_locks WHERE NOT granted"), 0, "the worker does not wait: $lock");
	$locker->query_safe('COMMIT');
	sql('DELETE FROM idem.record');
	fill('postgres', 5, '-1 second');
	left('postgres', 0, 'the worker continues afterwards');
}
$locker->quit;

my $creator = $node->background_psql('postgres');
$creator->query_safe("BEGIN; SELECT idem.create_scope('uncommitted')");
fill('postgres', 5, '-1 second');
left('postgres', 0, 'a transaction that creates a scope does not stop the worker');
$creator->query_safe('ROLLBACK');
$creator->quit;

# Far more scopes than can be looked up one by one, and a living record of each. (With buffers as
# small as this server's, each scan would start where the previous one found the previous scope.)
set_conf('synchronize_seqscans' => 'off');
sql(<<'SQL');
INSERT INTO idem.scope (name, owner, ttl, lease, wait, request_required, request_exclude, tenant_required,
       reject_stale_keys, max_attempts, claims_per_minute, weak_keys, store_response, response_exclude)
SELECT 'scope ' || i, owner, ttl, lease, wait, request_required, request_exclude, tenant_required,
       reject_stale_keys, max_attempts, claims_per_minute, weak_keys, store_response, response_exclude
  FROM idem.scope, generate_series(1, 80000) i WHERE name = 'payments';
INSERT INTO idem.record (digest, created, expires, scope, attempt, state, redacted, tenant, key)
SELECT gen_random_uuid(), now(), now() + '1 hour', id, 1, 'c', false, '', name FROM idem.scope WHERE name <> 'payments';
SQL
fill('postgres', 5, '-1 second');
left('postgres', 80_000, 'expired records are deleted among those of 80,000 scopes');
sql("TRUNCATE idem.record; DELETE FROM idem.scope WHERE name <> 'payments'");

# Extensions that are created and dropped ---------------------------------------------------------

configure_purge($node, 'idem.purge_rate', 500);
fill('postgres', 3000, '-1 second');
for my $round (1 .. 3)
{
	catch_worker('postgres');
	sql('DROP EXTENSION idem CASCADE; DROP TABLE payment; DROP FUNCTION pay');
	install_payments($node, 'postgres');
	fill('postgres', 3000, '-1 second');
}
sql('DROP EXTENSION idem CASCADE; DROP TABLE payment; DROP FUNCTION pay');
pass('the extension is dropped and created while the worker runs');
set_conf('idem.purge_rate' => 0);

# Objects with idem's names that belong to someone else are not touched.
sql('CREATE SCHEMA idem; CREATE TABLE idem.record (expires timestamptz, scope int);'
	  . "CREATE TABLE idem.scope (); CREATE TABLE idem.purge_progress ();
		INSERT INTO idem.record VALUES ('-infinity', 1)");
sql('CREATE DATABASE bystander');
install_payments($node, 'bystander');
fill('bystander', 10, '-1 second');
left('bystander', 0, 'a database beside one without the extension is purged');
is(records('postgres'), 1, 'a table that is not the extension\'s is left alone');
sql('DROP SCHEMA idem CASCADE');
install_payments($node, 'postgres');

# Before ALTER EXTENSION UPDATE the tables may have another layout; after it, before the restart, the
# library may be too old.
sql('CREATE DATABASE ahead');
install_payments($node, 'ahead');
fill('ahead', 10, '1 hour');
my $version = $node->safe_psql('ahead', "SELECT extversion FROM pg_extension WHERE extname = 'idem'");
$node->safe_psql('ahead', "BEGIN; LOCK idem.record; UPDATE pg_extension SET extversion = '999' WHERE extname = 'idem';
	UPDATE idem.record SET expires = '-infinity'; COMMIT");    # a worker that has seen the old version has ended
fill('bystander', 10, '1 hour');
my $counted = q{SELECT claims > 0, stats_reset FROM idem.stats WHERE scope = 'payments'};
my $counters = $node->safe_psql('bystander', "SELECT idem.once('payments', 'counted'); $counted");
$node->safe_psql('bystander', "ALTER TABLE idem.record RENAME extra_attempts TO something_else;
	UPDATE idem.record SET expires = '-infinity'");
fill('postgres', 10, '-1 second');
left('postgres', 0, 'a database beside one that awaits an update is purged');
await_runs($node, qw(bystander ahead));
is(records('bystander'), 11, 'tables of another layout are left alone');
is(records('ahead'), 10, 'so are those of a newer version');
is($node->safe_psql('bystander', "SELECT true; $counted"), $counters, 'and their statistics go on');
$node->safe_psql('bystander', 'ALTER TABLE idem.record RENAME something_else TO extra_attempts');
$node->safe_psql('ahead', "UPDATE pg_extension SET extversion = '$version' WHERE extname = 'idem'");
left($_, 0, "$_: they are purged afterwards") for qw(bystander ahead);
unlike(substr(slurp_file($node->logfile), $logged), qr/idem (purger|launcher) (ERROR|WARNING|FATAL)/,
	'the log does not mention them');

# Databases ----------------------------------------------------------------------------------------

# The progress of a slow run is visible, and a database can be dropped in the middle of one.
sql('CREATE DATABASE template_for_all');
install_payments($node, 'template_for_all');
configure_purge($node, 'idem.purge_naptime', '0');
fill('template_for_all', 3000, '-1 second');
sql("ALTER DATABASE template_for_all IS_TEMPLATE true ALLOW_CONNECTIONS false");
sql("CREATE DATABASE $_ TEMPLATE template_for_all") for qw(dropped forced renamed refusing invalid);
sql('ALTER DATABASE refusing ALLOW_CONNECTIONS false');
sql("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'invalid'");
set_conf('idem.purge_naptime' => '50ms', 'idem.purge_rate' => 50);

catch_worker('dropped');
ok( $node->poll_query_until('postgres', <<'SQL'), 'progress is visible');
SELECT count(*) > 0 FROM pg_stat_activity
 WHERE backend_type = 'idem purger' AND query ~ '^idem: purging, block \d+ of \d+, [1-9]\d* records purged$'
SQL
catch_worker('dropped');
is(sql('DROP DATABASE dropped'), '', 'DROP DATABASE waits for the worker to leave');
catch_worker('forced');
is(sql('DROP DATABASE forced WITH (FORCE)'), '', 'DROP DATABASE (FORCE) terminates the worker');
catch_worker('renamed');
is(sql('ALTER DATABASE renamed RENAME TO other_name'), '', 'a database with a worker can be renamed');

# SIGTERM and kill -9 ------------------------------------------------------------------------------

kill 'TERM', catch_worker('other_name');
catch_worker('other_name');
pass('a terminated worker is followed by another');
my $launcher = wait_for_launcher();
kill 'TERM', $launcher;
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $launcher")
  or die 'the launcher stays';
isnt(wait_for_launcher(), $launcher, 'a terminated launcher is started again');
catch_worker('other_name');

for my $victim ('worker', 'launcher')
{
	# A worker that is caught may end by itself just then.
	1 until kill_process($node, $victim eq 'worker' ? catch_worker('other_name') : wait_for_launcher());
	catch_worker('other_name');
	pass("a killed $victim is followed by another");
}

set_conf('idem.purge_rate' => 0);
left('other_name', 0, 'the work gets done afterwards');
$node->restart;
fill('other_name', 100, '-1 second');
left('other_name', 0, 'the work gets done after a restart');

# Databases that must not be purged have kept their records.
configure_purge($node, 'idem.purge_naptime', '0');
sql("ALTER DATABASE template_for_all IS_TEMPLATE false");
sql("UPDATE pg_database SET datallowconn = true, datconnlimit = -1
      WHERE datname IN ('template_for_all', 'refusing', 'invalid')");
is(records('template_for_all'), 3000, 'a template is not purged');
is(records('refusing'), 3000, 'a database that refuses connections is not purged');
is(records('invalid'), 3000, 'a database whose DROP was interrupted is not purged');

# Reload -------------------------------------------------------------------------------------------

is(scalar pids('purger'), 0, 'a naptime of 0 stops the worker');
fill('other_name', 50, '-1 second');
is(records('other_name'), 50, 'no worker comes');

# An open transaction that has purged keeps the position. The worker goes on from its own.
my $purging = $node->background_psql('other_name');
fill('other_name', 150000, '-1 second');
$purging->query_safe('BEGIN; SELECT idem.purge(10)');
set_conf('idem.purge_naptime' => '50ms', 'idem.purge_rate' => 0);
left('other_name', 10, 'all is purged beside a transaction that has purged');
$purging->quit;
left('other_name', 0, 'and the rest when it has ended');
configure_purge($node, 'idem.purge_naptime', '0');

# A batch over many tables, each of which takes a while: the launcher ends what lasts for 20 seconds.
$node->safe_psql('other_name', <<'SQL');
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.45); RETURN NULL; END';
SELECT idem.create_record_table('slow_' || i) FROM generate_series(1, 5) i;
DO $$ BEGIN FOR i IN 1 .. 5 LOOP EXECUTE format('CREATE TRIGGER slow AFTER DELETE ON slow_%1$s
    FOR EACH ROW EXECUTE FUNCTION slow();
  INSERT INTO slow_%1$s (digest, created, expires, scope, state, tenant, key)
    SELECT gen_random_uuid(), now(), now(), 1, ''c'', '''', n FROM generate_series(1, 10) n', i);
END LOOP; END $$;
SQL
set_conf('idem.purge_naptime' => '50ms');
ok($node->poll_query_until('other_name', 'SELECT count(*) = 0 FROM slow_1'), 'a batch that takes long is committed');
configure_purge($node, 'idem.purge_naptime', '0');
$node->safe_psql('other_name', 'DROP FUNCTION slow() CASCADE; DROP TABLE slow_1, slow_2, slow_3, slow_4, slow_5');

# A table that is left out does not keep a run going, which would commit one empty batch after the other.
$node->safe_psql('other_name', <<'SQL');
CREATE ROLE stranger;
CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
ALTER FUNCTION theirs() OWNER TO stranger;
CREATE TRIGGER theirs AFTER DELETE ON idem.record FOR EACH ROW EXECUTE FUNCTION theirs();
SQL
fill('other_name', 1, '-1 second');
set_conf('idem.purge_naptime' => '50ms');
await_runs($node, 'other_name');
my $commits = q{SELECT xact_commit FROM pg_stat_database WHERE datname = 'other_name'};
my $before = sql($commits);
my %run;
for (1 .. 60)
{
	$run{$_} = 1 for split /\n/, sql(q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'idem purger' AND datname = 'other_name'});
	usleep(50_000);
}
cmp_ok((sql($commits) - $before) / (keys(%run) || 1), '<', 2000, 'no run goes on for a table that it leaves out');
is(records('other_name'), 1, 'which keeps its records');
$node->safe_psql('other_name', 'DROP FUNCTION theirs() CASCADE');
left('other_name', 0, 'until the trigger is gone');
configure_purge($node, 'idem.purge_naptime', '0');

# A session that watches for old transactions must not see the launcher, whose transactions are
# short.
my $watcher = $node->background_psql('postgres');
my $launched = "FROM pg_stat_activity WHERE backend_type = 'idem launcher'";
$watcher->query_safe('BEGIN; LOCK TABLE pg_database IN ACCESS EXCLUSIVE MODE');
set_conf('idem.purge_naptime' => '50ms');
$watcher->query_safe("DO \$\$ BEGIN WHILE (SELECT wait_event_type IS DISTINCT FROM 'Lock' $launched) LOOP
	PERFORM pg_stat_clear_snapshot(); END LOOP; END \$\$");
$watcher->query_safe('SELECT pg_stat_clear_snapshot()');    # that of the loop may be older than the wait
is($watcher->query_safe("SELECT xact_start > now() $launched"), 't',
	'a transaction of the launcher starts when its work starts');
$watcher->query_safe('COMMIT');
$watcher->quit;
left($_, 0, "after a reload $_ is purged") for qw(other_name template_for_all refusing invalid);

# Many databases -----------------------------------------------------------------------------------

configure_purge($node, 'idem.purge_naptime', '0');
fill('template_for_all', 5, '-1 second');
sql("ALTER DATABASE template_for_all IS_TEMPLATE true ALLOW_CONNECTIONS false");
my $many = 200;
$node->safe_psql('postgres', join '', map { "CREATE DATABASE many_$_ TEMPLATE template_for_all;\n" } 1 .. $many);
set_conf('idem.purge_naptime' => '50ms');
left("many_$_", 0, "database $_ of $many is purged") for (1, 2, $many / 2, $many);
sql("ALTER SYSTEM SET idem.purge_naptime = '10s'");
$node->reload;
$node->safe_psql('postgres', join '', map { "DROP DATABASE many_$_;\n" } 1 .. $many);
pass('all of them can be dropped');
sql('ALTER SYSTEM RESET ALL');
$node->reload;
fill('other_name', 50, '-1 second');
left('other_name', 0, 'the other databases are purged as before');

# Statistics of dropped databases -----------------------------------------------------------------

set_conf('idem.counted_scopes' => 3);
$node->restart;
wait_for_launcher();
sql('CREATE DATABASE counted');
install_payments($node, 'counted');
$node->safe_psql('counted', "SELECT idem.create_scope(name) FROM unnest('{a,b}'::text[]) name");
$node->safe_psql('counted', "SELECT count(*) FROM idem.stats");
is(sql('SELECT count(*) FROM idem.stats'), 0, 'another database has all the slots');
sql('DROP DATABASE counted');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM idem.stats'),
	'the slots of a dropped database are free again');
sql("SELECT idem.create_scope(name) FROM unnest('{a,b}'::text[]) name");
is(sql('SELECT count(*) FROM idem.stats'), 3, 'three scopes have three slots');
sql("SELECT idem.drop_scope('a')");
sql("SELECT idem.create_scope('c')");
ok($node->poll_query_until('postgres',
		"SELECT string_agg(scope, ',' ORDER BY scope) = 'b,c,payments' FROM idem.stats"),
	'the slot of a dropped scope is free again');

# Standby and promotion ----------------------------------------------------------------------------

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idem%'"),
	0, 'a standby has no launcher');
configure_purge($node, 'idem.purge_naptime', '0');
fill('postgres', 20, '-1 second');
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', 'SELECT count(*) FROM idem.record'), 20, 'a standby deletes nothing');
$node->stop;
$standby->append_conf('postgresql.conf', "idem.purge_naptime = '50ms'");
$standby->reload;
$standby->promote;
ok($standby->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idem.record'),
	'the promoted standby purges');
$standby->stop;
log_is_clean($standby);
$node->start;

# No free worker ----------------------------------------------------------------------------------

# Only after the restart may a worker purge.
set_conf('max_worker_processes' => 2);
$node->restart;
my $launchers = wait_for_launcher();
$logged = -s $node->logfile;
set_conf('idem.purge_naptime' => '50ms');
my $complaint = qr/no background worker is free to purge expired idempotency keys/;
$node->wait_for_log($complaint, $logged);
sql('SELECT pg_sleep(4)');
my $complaints = () = substr(slurp_file($node->logfile), $logged) =~ /$complaint/g;
is($complaints, 1, 'the log says once that there is no free worker');
is(records('postgres'), 20, 'without a worker nothing is deleted');
set_conf('max_worker_processes' => 8);
$node->restart;
left('postgres', 0, 'the records are deleted once a worker is free');

# Binary upgrade -----------------------------------------------------------------------------------

$node->stop;
$logged = -s $node->logfile;
command_ok([ 'pg_ctl', '-w', '-D', $node->data_dir, '-l', $node->logfile, '-o', '-b', 'start' ],
	'start as pg_upgrade does');
is(scalar pids('launcher'), 0, 'no launcher in a binary upgrade');
command_ok([ 'pg_ctl', '-w', '-D', $node->data_dir, '-m', 'fast', 'stop' ], 'stop again');
log_is_clean($node, killed => 1);
my $everything = slurp_file($node->logfile);
unlike($everything, qr/idem (purger|launcher) (ERROR|WARNING)/, 'the log has no error of idem');

# A clock that jumps -------------------------------------------------------------------------------

SKIP:
{
	my $jumpy = PostgreSQL::Test::Cluster->new('jumpy');
	$jumpy->init;
	$jumpy->append_conf('postgresql.conf', $conf . "idem.purge_naptime = '5min'\nautovacuum = off\n");
	my $set_clock = start_with_clock($jumpy) or skip 'there is no C compiler', 6;
	$node = $jumpy;
	install_payments($node);
	fill('postgres', 100, '1 hour');
	wait_for_launcher();

	# Forward and back, before the skipped round ends.
	my $since = -s $node->logfile;
	$set_clock->(7200);
	$node->reload;
	$node->wait_for_log(qr/the clock was set forward by 7200 seconds/, $since);
	pass('a clock that is set forward is noticed');
	$set_clock->(0);
	$node->reload;
	$node->wait_for_log(qr/the clock was set back by 7200 seconds/, $since);
	pass('a clock that is set back is noticed');
	set_conf('idem.purge_naptime' => '50ms');
	fill('postgres', 10, '-1 second');
	left('postgres', 100, 'no living record was deleted meanwhile');

	# In the middle of a run.
	set_conf('idem.purge_naptime' => '10s', 'idem.purge_rate' => 20);
	$node->poll_query_until('postgres', q{SELECT current_setting('idem.purge_rate') = '20'
		AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idem purger')})
	or die 'the worker keeps its rate';
	fill('postgres', 1000, '-1 second');
	set_conf('idem.purge_naptime' => '11s');
	catch_worker('postgres');
	$since = -s $node->logfile;
	$set_clock->(7200);
	$node->wait_for_log(qr/the clock was set forward by 7200 seconds/, $since);
	$set_clock->(0);
	$node->reload;
	$node->wait_for_log(qr/the clock was set back by 7200 seconds/, $since);
	is(sql("SELECT count(*) FROM idem.record WHERE expires > now()"), 100,
		'a run in progress deletes no living record either');

	# A clock that stays ahead is believed in the end.
	set_conf('idem.purge_naptime' => '50ms', 'idem.purge_rate' => 0);
	$set_clock->(7200);
	left('postgres', 0, 'a clock that stays where it was set is believed');
	$node->stop;
	log_is_clean($node);
}

done_testing();
