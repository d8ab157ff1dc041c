# Records in other tables than idem.record, which move with the data that they belong to: to another
# server by logical replication, by dump and restore, to another schema, partition and tablespace;
# and what crashes, standbys and dropped tables make of them.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

sub psql_ok
{
	my ($node, $database, $file, $title) = @_;
	return $node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $file, $database ],
		$title);
}

# The statements in a transaction that has chosen the record table.
sub within
{
	my ($records, @statements) = @_;
	return join '', map { "BEGIN; SELECT idem.use_records('$records') \\g /dev/null\n$_\n;COMMIT;\n" } @statements;
}
sub shard { return within('shard.record', @_); }

# ---- A shard that logical replication moves to another server ------------------------------------

my $first = idem_node('first', conf => '', bare => 1, init => { allows_streaming => 'logical' });
my $second = idem_node('second', conf => '', bare => 1);
my $prepare = <<'SQL';
CREATE ROLE shop;
CREATE EXTENSION idem;
CREATE SCHEMA shard;
SELECT idem.create_record_table('shard.record', 'store', 'bigint');
CREATE TABLE shard.sale (store bigint, key text PRIMARY KEY);
CREATE PROCEDURE lapse(k text) LANGUAGE sql AS $$ UPDATE shard.record SET lease_end = clock_timestamp() - interval '1 s'
  WHERE key = k $$;
CREATE FUNCTION sell(k text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.use_records('shard.record');
  IF NOT idem.once('orders', k, '{"n": 1}', tenant => '42') THEN RETURN false; END IF;
  INSERT INTO shard.sale VALUES (42, k);
  RETURN true;
END $$;
SQL
# So that no table of the two servers has the same OID.
$second->safe_psql('postgres', 'CREATE TABLE before (); CREATE TABLE as_well ()');
$_->safe_psql('postgres', $prepare) for $first, $second;
my $oid = q{SELECT 'shard.record'::regclass::oid};
isnt($second->safe_psql('postgres', $oid), $first->safe_psql('postgres', $oid),
	'the record tables have different OIDs');
my $create = q{SELECT idem.create_scope('orders', owner => 'shop', records => true, max_attempts => 2,
	store_request => 'always') \g /dev/null
SET idem.tenant = '42';
SELECT sell('sold') \g /dev/null
};
my $token = $first->safe_psql('postgres', $create . shard(
	q{SELECT idem.complete(token, '{"answer": 42}', status => 201)
		FROM idem.claim('orders', 'completed', '{"n": 1}') \g /dev/null},
	q{SELECT idem.fail(token, '{"sqlstate": "P0042", "message": "sold out"}')
		FROM idem.claim('orders', 'failed', '{"n": 1}') \g /dev/null},
	q{SELECT idem.release(token, '1 hour', '{"message": "later"}')
		FROM idem.claim('orders', 'paused', '{"n": 1}', lease => '1 hour') \g /dev/null},
	q{SELECT token FROM idem.claim('orders', 'due', '{"n": 7}', lease => '1 hour') \gset due_
SELECT idem.checkpoint(:'due_token', 'charged', '{"charge": 7}') \g /dev/null
SELECT idem.release(:'due_token', '0', '{"message": "now"}') \g /dev/null},
	q{SELECT idem.claim('orders', 'exhausted', '{"n": 1}', lease => '1 hour') \g /dev/null},
	q{CALL lapse('exhausted');},
	q{SELECT idem.claim('orders', 'exhausted', '{"n": 1}', lease => '1 hour') \g /dev/null},
	q{CALL lapse('exhausted');},
	q{SELECT token FROM idem.claim('orders', 'leased', '{"n": 1}', lease => '1 hour') \gset
SELECT idem.checkpoint(:'token', 'half', '{"step": 1}') \g /dev/null},
	q{SELECT idem.complete(token, '{"n": 1}')
		FROM idem.claim('orders', 'short', '{"n": 1}', ttl => '1 us') \g /dev/null})
	. q{SELECT :'token'});
isnt(substr($token, -5), 'AAAAA', 'the token of a lease names its table');

my $identity = $first->safe_psql('postgres', 'SELECT idem.export_identity()');
$second->safe_psql('postgres', "SELECT idem.import_identity('$identity')");
is($second->safe_psql('postgres', q{SELECT records, max_attempts FROM idem.scopes}), 't|2', 'the scope arrives');
is($second->safe_psql('postgres', 'SELECT idem.export_identity()'), $identity, 'both servers have one identity');

my $connection = $first->connstr('postgres');
$first->safe_psql('postgres', 'CREATE PUBLICATION shard FOR TABLES IN SCHEMA shard');
$second->safe_psql('postgres', "CREATE SUBSCRIPTION shard CONNECTION \$c\$$connection\$c\$ PUBLICATION shard");
$second->wait_for_subscription_sync($first, 'shard');
# What happens after the first copy.
$first->safe_psql('postgres', qq{SELECT sell('late'); SELECT idem.checkpoint('$token', 'most', '{"step": 2}')});
$first->wait_for_catchup('shard');
# The server that gets the shard is asked from now on.
$second->safe_psql('postgres', 'DROP SUBSCRIPTION shard');
$first->safe_psql('postgres', 'DROP TABLE shard.record, shard.sale');

my $outcome = sub {
	my ($key, $n) = @_;
	return $second->safe_psql('postgres', shard("SELECT outcome, attempt, response, status, error->>'message', differs
		FROM idem.try_claim('orders', '$key', '{\"n\": $n}', tenant => '42', wait => '0')"));
};
is($outcome->('completed', 1), 'completed|1|{"answer": 42}|201||', 'a completed operation is replayed');
is($outcome->('completed', 2), 'conflict|||||{n}', 'another request is a conflict');
is($outcome->('failed', 1), 'failed|1|||sold out|', 'so is a failed one');
is($outcome->('exhausted', 1) =~ s/\|.*//r, 'exhausted', 'an operation without attempts left still has none');
is($outcome->('paused', 1) =~ s/\|.*//r, 'in_progress', 'a pause is kept');
is($outcome->('leased', 1) =~ s/\|.*//r, 'in_progress', 'so is a lease');
is($second->safe_psql('postgres', q{SELECT sell('sold'), sell('late'), count(*) FROM shard.sale}), 'f|f|2',
	'no effect is made again');
is($second->safe_psql('postgres', shard(q{SELECT key, attempt, recovery_point, recovery_state, request
	FROM idem.take('orders') AS t WHERE idem.complete(t.token) IS NULL})),
	'due|2|charged|{"charge": 7}|{"n": 7}', 'take() goes on with what was released');
is(sqlstate($second, qq{SELECT idem.renew('$token', '2 hours')}), 'ID004', 'a token names a table of its own server');
is($second->safe_psql('postgres', shard(qq{SELECT idem.renew('$token', '2 hours') IS NOT NULL})), 't',
	'the holder of the lease renews it with the token of the first server');
$second->safe_psql('postgres', shard(qq{SELECT idem.checkpoint('$token', 'all', '{"step": 3}')}));
is($second->safe_psql('postgres', q{SELECT recovery_point, recovery_state FROM shard.record WHERE key = 'leased'}),
	'all|{"step": 3}', 'records its progress');
is($second->safe_psql('postgres', shard(qq{SELECT idem.complete('$token', '{"answer": 43}')})), '{"answer": 43}',
	'and completes it');
is($outcome->('leased', 1), 'completed|1|{"answer": 43}|||', 'which is replayed');
is(sqlstate($second, shard(qq{SELECT idem.complete('$token', '{"answer": 44}')})), 'ID005', 'once only');
is($second->safe_psql('postgres', q{SELECT count(*) FROM idem.record}), '0', 'nothing of this is in idem.record');
is($second->safe_psql('postgres', q{SELECT idem.purge(); SELECT count(*) FROM shard.record WHERE key = 'short'}),
	"1\n0", 'purge deletes there what has expired');
is(sqlstate($first, q{SELECT sell('sold')}), '42P01', 'the first server, without the table, grants nothing');
is(sqlstate($first, q{SELECT idem.once('orders', 'sold', '{"n": 1}', tenant => '42')}), '55000',
	'nor without choosing one');

# ---- Dump and restore ----------------------------------------------------------------------------

mkdir $second->backup_dir;
my $dump = sub {
	my ($name, $database, @options) = @_;
	my $file = $second->backup_dir . "/$name.sql";
	$second->command_ok([ 'pg_dump', @options, '-f', $file, $database ], "pg_dump of $name");
	return $file;
};
$second->safe_psql('postgres', q{DROP TABLE before, as_well; CREATE DATABASE restored});
my $open = $second->safe_psql('postgres',
	shard(q{SELECT token FROM idem.claim('orders', 'open', tenant => '42', lease => '1 hour')}));
psql_ok($second, 'restored', $dump->('a database', 'postgres'), 'it is restored');
my $restored = sub { return $second->safe_psql('restored', $_[0]) };
isnt($restored->($oid), $second->safe_psql('postgres', $oid), 'restored: the table has another OID');
is($restored->(shard(q{SELECT sell('sold'), sell('late'), outcome, response
	FROM idem.try_claim('orders', 'leased', '{"n": 1}', tenant => '42')})),
	'f|f|completed|{"answer": 43}', 'restored: operations are replayed');
is($restored->(shard(qq{SELECT idem.complete('$open', '1')})), '1',
	'a token finds its record in the table that is chosen');
is($restored->(q{SELECT sell('new')}), 't', 'new operations are executed');
is(sqlstate($second, 'DROP EXTENSION idem', 'restored'), '2BP01',
	'the extension is not dropped as long as there are record tables');
is($restored->(q{DROP TABLE shard.record; DROP FUNCTION sell; DROP EXTENSION idem;
	SELECT count(*) FROM pg_type WHERE typname = 'key_digest'}), '0', 'and can be dropped after them');

# A tenant's schema, which moves between two databases of one identity.
$second->safe_psql('postgres', 'CREATE DATABASE one');
$second->safe_psql('one', q{CREATE EXTENSION idem; SELECT idem.create_scope('chosen', records => true)});
$second->safe_psql('postgres', 'CREATE DATABASE two TEMPLATE one');
my $choose = q{BEGIN; SELECT set_config('search_path', 'tenant_42', true),
	idem.use_records('tenant_42.record') \g /dev/null};
my $tenant_token = $second->safe_psql('one', <<"SQL");
CREATE SCHEMA tenant_42;
SELECT idem.create_record_table('tenant_42.record') \\g /dev/null
$choose
SELECT idem.complete(token, '"done"') FROM idem.claim('chosen', 'done', '{"n": 1}') \\g /dev/null
SELECT token FROM idem.claim('chosen', 'leased', lease => '1 hour');
COMMIT;
SQL
psql_ok($second, 'two', $dump->('a tenant', 'one', '-n', 'tenant_42'), 'its schema is restored');
is($second->safe_psql('two', "$choose\nSELECT outcome, response FROM idem.try_claim('chosen', 'done', '{\"n\": 1}')"),
	'completed|"done"', 'the tenant moves with its records');
is($second->safe_psql('two', "$choose\nSELECT outcome FROM idem.try_claim('chosen', 'done', '{\"n\": 2}')"), 'conflict',
	'whose requests are compared');
is($second->safe_psql('two', "$choose\nSELECT idem.complete('$tenant_token', '1'); COMMIT"), '1',
	'a lease is completed');
is($second->safe_psql('two', "$choose\nSELECT state FROM idem.lookup('chosen', 'leased')"), 'completed',
	'in that table');
like(sqlstate($second, "$choose\nSELECT 1", 'postgres'), qr/^(?:3F000|42P01)$/, 'no other database has the schema');

# ---- A partition per month -----------------------------------------------------------------------

# The application chooses the partition of the month in which a key was made.
$second->safe_psql('postgres', <<'SQL');
SELECT idem.create_scope('monthly', wait => '0', records => true);
CREATE SCHEMA month;
SELECT idem.create_record_table('month.m' || m) FROM generate_series(1, 3) m;
CREATE TABLE month.record (LIKE month.m1) PARTITION BY RANGE (created);
ALTER TABLE month.record ATTACH PARTITION month.m1 FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
ALTER TABLE month.record ATTACH PARTITION month.m2 FOR VALUES FROM ('2020-02-01') TO ('9999-01-01');
SQL
my $in = sub { return "SELECT idem.use_records('month.$_[0]') \\g /dev/null\n" };
my $count = sub { return $second->safe_psql('postgres', "SELECT count(*) FROM $_[0]") };
for my $call (
	q{SELECT idem.once('monthly', 'k')},
	q{SELECT idem.once_each('monthly', '{k,l}')},
	q{SELECT idem.complete(token) FROM idem.claim('monthly', 'k')},
	q{SELECT token FROM idem.claim('monthly', 'k', lease => '1 hour')},
	q{SELECT idem.cancel('monthly', 'k')})
{
	is(sqlstate($second, 'BEGIN; ' . $in->('m1') . $call), '23514',
		"no row outside of the bounds of its partition: $call");
}
is($count->('month.record'), '0', 'and nothing is stored');
my $sum = q{SELECT string_agg(tableoid::regclass || ' ' || key, ', ' ORDER BY key) FROM month.record};
my $month_token = $second->safe_psql('postgres',
	'BEGIN; ' . $in->('m2') . q{SELECT idem.once('monthly', 'k') \g /dev/null
	SELECT token FROM idem.claim('monthly', 'leased', lease => '1 hour'); COMMIT});
is($second->safe_psql('postgres', $sum), 'month.m2 k, month.m2 leased', 'in another it is');
is($second->safe_psql('postgres', 'BEGIN; ' . $in->('m2') . q{SELECT idem.once('monthly', 'k')}), 'f',
	'and it is found');
is(sqlstate($second, q{SELECT idem.use_records('month.record')}), '42809', 'the parent is no record table');
$second->safe_psql('postgres', 'ALTER TABLE month.record DETACH PARTITION month.m1; DROP TABLE month.m1');
is(sqlstate($second, $in->('m1')), '42P01', 'a partition that is dropped cannot be chosen');
$second->safe_psql('postgres', 'ALTER TABLE month.record DETACH PARTITION month.m2');
is($second->safe_psql('postgres', qq{SELECT idem.complete('$month_token', '1')}), '1',
	'one that is detached still has its records');
$second->safe_psql('postgres', 'DROP TABLE month.m2, month.record');
is(sqlstate($second, qq{SELECT idem.complete('$month_token', '1')}), 'ID004', 'whose tokens are lost with them');

# ---- Another tablespace --------------------------------------------------------------------------

my $directory = $second->basedir . '/fast';
mkdir $directory;
$second->safe_psql('postgres', "CREATE TABLESPACE fast LOCATION '$directory'");
$second->safe_psql('postgres', q{SET default_tablespace = fast; SELECT idem.create_record_table('fast_record');
	RESET default_tablespace; SELECT idem.create_record_table('slow_record');
	SELECT idem.create_scope('slow', records => true);
	CREATE FUNCTION slow(key text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM idem.use_records('slow_record');
	RETURN idem.once('slow', key); END $$});
is($second->safe_psql('postgres', q{SELECT c.relname, spcname FROM pg_class c LEFT JOIN pg_tablespace t
	ON t.oid = reltablespace
	WHERE c.relname LIKE '%record' AND c.relnamespace = 'public'::regnamespace ORDER BY 1}), "fast_record|fast\n"
		. "slow_record|", 'a table is made where default_tablespace says');
my $claimer = $second->background_psql('postgres', on_error_stop => 1);
$claimer->query_safe(q{SELECT slow('before')});
$claimer->query_safe(q{BEGIN; SELECT idem.use_records('slow_record')});
my $claimed = $claimer->query_safe(q{SELECT token FROM idem.claim('slow', 'during')});
my ($out, $err) = ('', '');
my $mover = IPC::Run::start([ 'psql', '-XqAt', '-d', $second->connstr('postgres') . " application_name='mover'", '-c',
		'ALTER TABLE slow_record SET TABLESPACE fast' ], '>', \$out, '2>', \$err);
ok($second->poll_query_until('postgres', q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity
	WHERE application_name = 'mover'}), 'another tablespace waits for claims in flight');
$claimer->query_safe("SELECT idem.complete('$claimed'); COMMIT");
$mover->finish;
is($claimer->query_safe(q{SELECT slow(key) FROM unnest('{before,during,after}'::text[]) key}), "f\nf\nt",
	'and the session goes on there');

# ---- A crash, a standby, a dropped table ---------------------------------------------------------

my $crash_token = $claimer->query_safe(
	within('slow_record', q{SELECT token FROM idem.claim('slow', 'leased', lease => '1 hour')}));
$claimer->query_safe(q{BEGIN; SELECT slow('lost')});
restart_killed($second);
eval { $claimer->{run}->kill_kill };
is($second->safe_psql('postgres', q{SELECT slow(key) FROM unnest('{before,during,after,lost}'::text[]) key}),
	"f\nf\nf\nt", 'after a crash, what was committed is known, and nothing else');
is($second->safe_psql('postgres', qq{SELECT idem.complete('$crash_token', '1')}), '1', 'a lease survives a crash');

$second->append_conf('postgresql.conf', "wal_level = replica\nmax_wal_senders = 5");
$second->append_conf('pg_hba.conf', "local replication all trust");
$second->restart;
# Two servers on one machine cannot share a tablespace.
$second->safe_psql('postgres', q{ALTER TABLE slow_record SET TABLESPACE pg_default; DROP TABLE fast_record});
$second->safe_psql('postgres', q{ALTER INDEX slow_record_pkey SET TABLESPACE pg_default});
$second->safe_psql('postgres', 'DROP TABLESPACE fast');
$second->backup('standby');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($second, 'standby', has_streaming => 1);
$standby->start;
$second->safe_psql('postgres', q{SELECT slow('k')});
$second->wait_for_catchup($standby);
is($standby->safe_psql('postgres', within('slow_record', q{SELECT state FROM idem.lookup('slow', 'k')})), 'completed',
	'a standby finds records in other tables');
is(sqlstate($standby, q{SELECT idem.lookup('slow', 'k')}), '55000', 'where it is told to look');
$second->safe_psql('postgres', 'DROP TABLE slow_record');
is(sqlstate($second, q{SELECT slow('k')}), '42P01', 'without its table, nothing is granted');

$_->stop for $standby, $second, $first;
log_is_clean($_, killed => $_ == $second) for $first, $second, $standby;
done_testing();
