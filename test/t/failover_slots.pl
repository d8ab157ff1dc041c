# PostgreSQL 17 and later keep the slot of a subscription on the standby. After a failover under load,
# the subscriber follows the new primary: it has the same records, none that the new primary lacks, and
# no payment is made twice, there or, after a switchover, on the subscriber.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = <<'CONF';
shared_preload_libraries = 'idem'
idem.purge_naptime = '50ms'
max_worker_processes = 30
wal_retrieve_retry_interval = '100ms'
CONF
my $primary = idem_node('primary', conf => $conf, init => { allows_streaming => 'logical' });
plan skip_all => 'slots fail over from PostgreSQL 17 on' if $primary->pg_version < 17;

$primary->safe_psql('postgres', q{SELECT pg_create_physical_replication_slot('standby')});
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
my $upstream = $primary->connstr . ' dbname=postgres application_name=standby';
$standby->append_conf('postgresql.conf', <<"CONF");
primary_conninfo = '$upstream'
primary_slot_name = 'standby'
hot_standby_feedback = on
sync_replication_slots = on
CONF
$standby->start;
configure($primary, 'synchronized_standby_slots', 'standby');
replicate($primary, $standby, 'synchronous');

my $subscriber = idem_node('subscriber', conf => $conf, bare => 1);
$subscriber->safe_psql('postgres', <<'SQL');
CREATE EXTENSION idem;
CREATE TABLE payment (id bigint PRIMARY KEY, key text, amount numeric);
SQL
$primary->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
$subscriber->safe_psql('postgres', sprintf q{CREATE SUBSCRIPTION follower CONNECTION '%s dbname=postgres' PUBLICATION
	everything WITH (failover = true)},
	$primary->connstr =~ s/'/''/gr);

sub pay_again
{
	my ($node, $keys) = @_;
	return $node->safe_psql('postgres', qq{SELECT count(pay('key ' || i, '{"amount": 1}'))
		FROM generate_series(1, $keys) i});
}

sub caught_up
{
	my ($publisher, $what) = @_;
	my $lsn = $publisher->safe_psql('postgres', 'SELECT pg_current_wal_lsn()');
	ok($publisher->poll_query_until('postgres',
			"SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'follower'"),
		"the subscriber has caught up $what");
	return;
}

my $contents = q{SELECT 'record', r::text FROM idem.record r WHERE coalesce(key, '') !~ '^short ' UNION ALL
	SELECT 'payment', p::text FROM payment p
	UNION ALL SELECT 'scope', s::text FROM idem.scope s ORDER BY 1, 2};

is(pay_again($primary, 200), 200, 'payments');
my $token = $primary->safe_psql('postgres', q{SELECT token FROM idem.claim('payments', 'leased', '{"amount": 1}',
	lease => '1 hour')});
caught_up($primary, 'once');
ok($standby->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'follower' AND synced AND NOT temporary}),
	'the slot is on the standby');

# Each client pays with a key of its own time after time; no answer is awaited.
my $load = load($primary, <<'SQL', '-c', 4);
\set key random(1, 100000)
SELECT pay('load ' || :key, '{"amount": 1}');
SELECT idem.complete(token) FROM idem.claim('payments', 'short ' || :key || clock_timestamp(), ttl => '1 s');
SQL
$standby->poll_query_until('postgres', q{SELECT count(*) > 100 FROM payment WHERE key LIKE 'load %'}) or die 'no load';
ok(runs($load), 'the load goes on until the primary dies');
kill_postmaster($primary);
eval { $load->kill_kill };
$standby->promote;
configure($standby, 'synchronous_standby_names', '');
is(pay_again($standby, 200), 200, 'retries after the failover');

$subscriber->safe_psql('postgres', sprintf q{ALTER SUBSCRIPTION follower CONNECTION '%s dbname=postgres'},
	$standby->connstr =~ s/'/''/gr);
caught_up($standby, 'with the new primary');
cmp_ok($standby->safe_psql('postgres', q{SELECT count(*) FROM payment WHERE key LIKE 'load %'}), '>', 0,
	'payments under load');
ok($standby->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idem.record WHERE expires < now()'),
	'the new primary purges');
caught_up($standby, 'with the purge');
is($subscriber->safe_psql('postgres', $contents), $standby->safe_psql('postgres', $contents),
	'both have the same records and payments');

# The switchover.
$standby->stop;
$subscriber->safe_psql('postgres', $_)
  for ('ALTER SUBSCRIPTION follower DISABLE', 'ALTER SUBSCRIPTION follower SET (slot_name = NONE)',
	'DROP SUBSCRIPTION follower');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FILTER (WHERE NOT claimed
	AND response ->> 'payment' IS NOT NULL)
	FROM payment, idem.try_claim('payments', key, '{"amount": 1}')}), $subscriber->safe_psql('postgres',
	'SELECT count(*) FROM payment'),
	'every payment is answered on the subscriber');
is($subscriber->safe_psql('postgres', qq{SELECT idem.complete('$token', '{"payment": 0}')}), '{"payment": 0}',
	'and what was leased is finished there');
is($subscriber->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT key) FROM payment'), 0,
	'nothing was paid twice');
log_is_clean($_) for ($standby, $subscriber);
$subscriber->stop;
done_testing();
