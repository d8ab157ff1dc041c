# Logical replication of the whole database, with the worker running on both sides, and a
# switchover: the subscription keeps up, no key is lost, no scope id is given twice. With the
# objects of this release and with those of the first, which the new library serves until ALTER
# EXTENSION UPDATE; and with an update of the subscriber first, the publisher later.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = <<'CONF';
shared_preload_libraries = 'idem'
idem.purge_naptime = '50ms'
idem.purge_rate = 500
max_worker_processes = 30
max_logical_replication_workers = 12
max_replication_slots = 20
max_wal_senders = 20
wal_retrieve_retry_interval = '100ms'
CONF
my $publisher = idem_node('publisher', conf => $conf, bare => 1, init => { allows_streaming => 'logical' });
my $subscriber = idem_node('subscriber', conf => $conf, bare => 1, init => { allows_streaming => 'logical' });

# A claim of every kind, everything that can happen to one, and purging.
sub work
{
	my ($database, $when) = @_;
	$publisher->safe_psql($database, <<"SQL");
SELECT idem.once('orders', '$when atomic', '{"n": 1}'), idem.once('orders', md5('$when')::uuid::text, '{"n": 1}');
SELECT idem.complete(token, '{"leased": 1}') FROM idem.claim('orders', '$when atomic leased', lease => '1 hour');
INSERT INTO job SELECT '$when running', token FROM idem.claim('orders', '$when running', '{"n": 1}', lease => '1 hour');
INSERT INTO job SELECT '$when leased', token FROM idem.claim('orders', '$when leased', '{"n": 1}', lease => '1 hour');
SELECT idem.renew(token, '2 hours') FROM job WHERE key = '$when leased';
SELECT idem.checkpoint(token, 'half', '{"step": 2}') FROM job WHERE key IN ('$when leased', '$when running');
SELECT idem.complete(token, '{"answer": 42}') FROM job WHERE key = '$when leased';
SELECT idem.fail(token, '{"sqlstate": "P0042", "message": "sold out"}')
  FROM idem.claim('orders', '$when failed', '{"n": 1}');
SELECT count(*) FROM idem.once_each('orders', ARRAY['$when each 1', '$when each 2']);
SELECT idem.advance('orders', '$when stream', 7), idem.advance('orders', 'stream', (SELECT count(*) FROM job));
SELECT idem.complete(token, '{"n": 1}') FROM idem.claim('orders', '$when reused', ttl => '1 us');
SELECT idem.complete(token, '{"n": 2}') FROM idem.claim('orders', '$when reused', ttl => '1 day');
SELECT idem.once('orders', '$when forgotten'), idem.forget('orders', '$when forgotten');
SELECT idem.rotate_secret();
SELECT idem.alter_scope('orders', request_exclude => ARRAY['$when x']);
SELECT idem.once('orders', '$when listed', '{"n": 1, "$when x": 1}');
SELECT idem.alter_scope('orders', request_exclude => '{}');
SELECT idem.create_scope('$when dropped');
SELECT idem.once('$when dropped', 'k');
SELECT idem.drop_scope('$when dropped');
SELECT count(idem.complete(token)) FROM generate_series(1, 1500) i, idem.claim('orders', '$when short ' || i,
  ttl => '1 us');
SQL
	return;
}

# From PostgreSQL 19 on, errors of copying tables and of sequences are counted apart.
sub error_count
{
	my ($kind, $database) = @_;
	return "(SELECT sum(value::bigint) FROM pg_stat_subscription_stats s, jsonb_each_text(to_jsonb(s))
	          WHERE subname = '$database' AND key ~ '^${kind}_(.*_)?error_count\$')";
}

# As much as the worker leaves, in small pieces: the purge moves on.
sub purge
{
	my ($node, $database) = @_;
	while ($node->safe_psql($database, 'SELECT idem.purge(70)') > 0) { }
	$node->poll_query_until($database, 'SELECT NOT EXISTS (SELECT FROM idem.record WHERE expires < now()
		OR scope NOT IN (SELECT id FROM idem.scope))')
	  or die "purging $database does not end";
	return;
}

sub errors_applied
{
	my ($database) = @_;
	return $subscriber->safe_psql('postgres', 'SELECT ' . error_count('(apply|sync)', $database));
}

# What the publisher has committed has arrived, unless the subscription stopped.
sub caught_up
{
	my ($database, $what) = @_;
	my $lsn = $publisher->safe_psql($database, 'SELECT pg_current_wal_lsn()');
	my $here = $publisher->poll_query_until('postgres',
		"SELECT (replay_lsn >= '$lsn' AND state = 'streaming') FROM pg_stat_replication
			WHERE application_name = '$database'")
	  if errors_applied($database) == 0;
	ok($here, "$database: $what");
	is(errors_applied($database), 0, "$database: without an error");
	return;
}

# The same keys, the same answers.
sub contents
{
	my ($node, $database) = @_;
	return $node->safe_psql($database, <<'SQL');
SELECT 'record', r::text FROM idem.record r WHERE expires > now() UNION ALL SELECT 'watermark', w::text
  FROM idem.watermark w
UNION ALL SELECT 'scope', s::text FROM idem.scope s UNION ALL SELECT 'secret', s::text FROM idem.secret s ORDER BY 1, 2
SQL
}

# The new primary answers every key, and an operation that was begun can be finished there.
sub answers
{
	my ($database, $when) = @_;
	my $outcome = sub {
		my ($key, $n) = @_;
		return $subscriber->safe_psql($database, "SELECT outcome, response, error->>'sqlstate'
			FROM idem.try_claim('orders', '$when $key', $n)");
	};
	my $one = q('{"n": 1}');
	is($outcome->('atomic', $one), 'completed||', "$database, $when: a replay is answered");
	is($outcome->('listed', qq('{"n": 1, "$when x": 2}')), 'completed||',
		"$database, $when: by the list of excluded members of its time");
	is($outcome->('listed', q('{"n": 1}')), 'completed||', "$database, $when: which leaves the member out");
	is($outcome->('listed', q('{"n": 2}')), 'conflict||', "$database, $when: and no other");
	is($outcome->('atomic', q('{"n": 2}')), 'conflict||', "$database, $when: a conflict is one");
	is($subscriber->safe_psql($database, "SELECT idem.once('orders', md5('$when')::uuid::text, $one)"), 'f',
		"$database, $when: so is that of a UUID");
	is($outcome->('leased', $one), 'completed|{"answer": 42}|', "$database, $when: so is what was leased");
	is($outcome->('atomic leased', 'NULL'), 'completed|{"leased": 1}|', "$database, $when: and completed at once");
	is($outcome->('failed', $one), 'failed||P0042', "$database, $when: a failure");
	is($outcome->($_, 'NULL'), 'completed||', "$database, $when: $_") for ('each 1', 'each 2');
	is($outcome->('reused', 'NULL'), 'completed|{"n": 2}|', "$database, $when: what took an expired record's place");
	is($subscriber->safe_psql($database, "SELECT idem.advance('orders', '$when stream', 7),
		idem.advance('orders', '$when stream', 8)"),
		'f|t', "$database, $when: a watermark is where it was");
	is($outcome->('running', $one), 'in_progress||', "$database, $when: a lease holds");
	my $token = $subscriber->safe_psql($database, "SELECT token FROM job WHERE key = '$when running'");
	is($subscriber->safe_psql($database, "SELECT idem.complete('$token', '{\"late\": true}')"), '{"late": true}',
		"$database, $when: and is completed");
	is($outcome->('running', $one), 'completed|{"late": true}|', "$database, $when: for good");
	is($subscriber->safe_psql($database, "SELECT idem.once('orders', '$when forgotten')"), 't',
		"$database, $when: what was forgotten is free");
	return;
}

# A new scope has a new id, and no stored record answers for it. Scopes of one name follow each
# other.
sub new_scope_is_new
{
	my ($database, $what) = @_;
	is($subscriber->safe_psql($database,
			<<'SQL'), "\nt|t\n\n\nt|t", "$database: $what, nothing answers for a new scope");
SELECT idem.create_scope('new');
SELECT idem.once('new', 'k'), idem.advance('new', 's', 1);
SELECT idem.drop_scope('new');
SELECT idem.create_scope('new');
SELECT idem.once('new', 'k'), idem.advance('new', 's', 1);
SQL
	is($subscriber->safe_psql($database, <<'SQL'), 't', "$database: $what, its id is above every other");
SELECT id >= ALL (SELECT scope FROM idem.record UNION ALL SELECT scope FROM idem.watermark UNION ALL SELECT id
  FROM idem.scope)
  FROM idem.scope WHERE name = 'new'
SQL
	$subscriber->safe_psql($database, q{SELECT idem.drop_scope('new')});
	return;
}

sub publish
{
	my ($database) = @_;
	$_->safe_psql('postgres', "CREATE DATABASE $database") for ($publisher, $subscriber);
	$_->safe_psql($database, 'CREATE EXTENSION idem; CREATE TABLE job (key text PRIMARY KEY, token text)')
	  for ($publisher, $subscriber);
	$publisher->safe_psql($database, q{SELECT idem.create_scope('orders')});
	work($database, 'copied');
	$publisher->safe_psql($database, 'CREATE PUBLICATION everything FOR ALL TABLES');
	my $connection = sprintf "host=%s port=%d dbname=%s", $publisher->host, $publisher->port, $database;
	$subscriber->safe_psql($database, "CREATE SUBSCRIPTION $database CONNECTION '$connection' PUBLICATION everything");
	my $copy_errors = error_count('sync', $database);
	ok($subscriber->poll_query_until($database, <<"SQL"), "$database: the tables are copied");
SELECT count(*) FILTER (WHERE srsubstate NOT IN ('r', 's')) = 0 OR $copy_errors > 0 FROM pg_subscription_rel
SQL
	caught_up($database, 'the first copy');
	return;
}

my $database = 'current';
publish($database);
work($database, 'streamed');
purge($publisher, $database);
caught_up($database, 'the subscriber follows the purger');
is(contents($subscriber, $database), contents($publisher, $database), "$database: both have the same");

# The subscriber's worker must not delete what the publisher may still change: it may lag behind
# by more than a TTL.
$publisher->safe_psql($database, q{INSERT INTO job SELECT 'lagging', token
	FROM idem.claim('orders', 'lagging', lease => '1 hour')});
caught_up($database, 'a claim that the publisher works on');
$subscriber->safe_psql($database, "ALTER SUBSCRIPTION $database DISABLE");
$subscriber->safe_psql($database, q{UPDATE idem.record SET expires = now() - interval '1 s' WHERE key = 'lagging'});
my (undef, $purged, $notice) = $subscriber->psql($database, 'SELECT idem.purge()');
is($purged, '0', "$database: where records arrive by subscription, the publisher purges");
like($notice, qr/NOTICE:.*arrive by subscription.*HINT:.*drop the subscription/s, "$database: and that is said");

# A record table that no subscription writes is purged all the same.
$subscriber->safe_psql($database, <<'SQL');
SELECT idem.create_record_table('here');
INSERT INTO here (digest, created, expires, scope, state, tenant, key)
  SELECT gen_random_uuid(), now(), now(), id, 'c', '', 'own' FROM idem.scope WHERE name = 'orders';
SQL
# The worker may come first.
(undef, undef, $notice) = $subscriber->psql($database, 'SELECT idem.purge()');
is($notice, '', "$database: with a table of this server, nothing is said");
ok($subscriber->poll_query_until($database, 'SELECT count(*) = 0 FROM here'), "$database: that table is purged");
is($subscriber->safe_psql($database, "SELECT count(*) FROM idem.record WHERE key = 'lagging'"), 1,
	"$database: the other is not");
# Nor one that a subscription writes through a partitioned table.
$subscriber->safe_psql($database, <<'SQL');
CREATE TABLE root (LIKE here) PARTITION BY LIST (scope);
ALTER TABLE root ATTACH PARTITION here DEFAULT;
SET allow_system_table_mods = on;
INSERT INTO pg_subscription_rel SELECT oid, 'root'::regclass, 'r' FROM pg_subscription
  WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database());
INSERT INTO here (digest, created, expires, scope, state, tenant, key)
  SELECT gen_random_uuid(), now(), now(), id, 'c', '', 'own' FROM idem.scope WHERE name = 'orders';
SQL
is($subscriber->safe_psql($database, 'SELECT idem.purge()'), '0',
	"$database: what arrives through a partitioned table is left");
$subscriber->safe_psql($database, q{SET allow_system_table_mods = on;
	DELETE FROM pg_subscription_rel WHERE srrelid = 'root'::regclass; DROP TABLE root});
$publisher->safe_psql($database, q{SELECT idem.complete(token, '"done"') FROM job WHERE key = 'lagging'});
$subscriber->safe_psql($database, "ALTER SUBSCRIPTION $database ENABLE");
caught_up($database, 'the subscription goes on');
is($subscriber->safe_psql($database, q{SELECT state, response FROM idem.lookup('orders', 'lagging')}),
	'completed|"done"',
	"$database: what was completed meanwhile is there");

# An operation that is begun here is finished there.
$publisher->safe_psql($database, <<'SQL');
SELECT idem.alter_scope('orders', store_request => 'unfinished');
INSERT INTO job SELECT 'begun', token FROM idem.claim('orders', 'begun', '{"n": 1}', lease => '1 hour');
SELECT idem.checkpoint(token, 'half way') FROM job WHERE key = 'begun';
SELECT idem.release(token, '0', '{"message": "later"}') FROM job WHERE key = 'begun';
SQL

# The records of a dropped scope still exist when the publisher is shut down.
$publisher->append_conf('postgresql.conf', 'idem.purge_naptime = 0');
$publisher->reload;
$publisher->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity
	WHERE backend_type = 'idem purger'});
$publisher->safe_psql($database, q{SELECT idem.create_scope('last'); SELECT idem.once('last', 'k');
	SELECT idem.advance('last', 's', 9);
	SELECT idem.drop_scope('last')});
caught_up($database, 'everything is there');
$publisher->append_conf('postgresql.conf', q{idem.purge_naptime = '50ms'});
$publisher->reload;
$subscriber->safe_psql($database, "ALTER SUBSCRIPTION $database DISABLE");

# A change that would stop a subscription is refused, as UPDATE and DELETE refuse it.
for my $trap (
	[ 'a table without a replica identity', 'ALTER TABLE idem.record REPLICA IDENTITY NOTHING', '55000' ],
	[ 'a row filter', 'CREATE PUBLICATION partial FOR TABLE idem.record WHERE (scope = 1)', '42P10' ],
	[ 'a column list', 'CREATE PUBLICATION partial FOR TABLE idem.record (key)', '42P10' ])
{
	my ($what, $set, $state) = @$trap;
	is(sqlstate($publisher, "BEGIN; $set; $_; ROLLBACK", 'current'), $state, "$what: $_")
	  for (q{SELECT idem.forget('orders', 'copied atomic')},
		q{SELECT idem.renew(token) FROM job WHERE key = 'copied running'});
}

# The switchover. The worker of the subscription ends before the publisher does.
$subscriber->poll_query_until($database, 'SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL')
  or die 'still subscribed';
$publisher->stop;
$subscriber->safe_psql($database, $_)
  for ("ALTER SUBSCRIPTION $database SET (slot_name = NONE)", "DROP SUBSCRIPTION $database");
new_scope_is_new($database, 'after the switchover');
answers($database, $_) for ('copied', 'streamed');
is($subscriber->safe_psql($database, q{SELECT request, attempt, recovery_point, last_error->>'message'
	FROM idem.take('orders') WHERE key = 'begun'}),
	'{"n": 1}|2|half way|later', "$database: what was begun there can be finished here");
is($subscriber->safe_psql($database, 'SELECT count(*) FROM idem.secret'), 4,
	"$database: the secrets of the old primary, and no others");
$subscriber->safe_psql($database, q{SELECT count(idem.complete(token)) FROM generate_series(1, 500) i,
	idem.claim('orders', 'short ' || i, ttl => '1 us')});
purge($subscriber, $database);
pass("$database: the worker purges what expires, and what the dropped scope left");
unlike(slurp_file($subscriber->logfile), qr/logical replication.*(exited|ERROR)|ERROR:.*replica/,
	'no replication worker failed');
unlike(slurp_file($_->logfile), qr/idem (purger|launcher) (ERROR|WARNING|FATAL)/, 'no idem worker either')
  for ($publisher, $subscriber);
log_is_clean($_) for ($publisher, $subscriber);
$subscriber->stop;
done_testing();
