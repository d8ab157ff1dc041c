# Ten thousand scopes, and long transactions: what is read and returned does not grow with what has
# nothing to do with the call.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('scale', bare => 1, conf => "max_locks_per_transaction = 256\nidem.max_open_claims = 3000");
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION idem;
SELECT idem.create_scope('s' || i) FROM generate_series(1, 1000) i;
SQL

# Scopes are found by an index, also those that a session has to read again

# How many rows of idem.scope a call reads: in scans of the whole table, and by an index.
sub rows_read
{
	my ($session, $call) = @_;
	my $read = "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'idem.scope'::regclass";
	my ($seq, $idx, $result, $seq_after, $idx_after) = split /[|\s]+/,
		$session->query_safe("BEGIN; $read; $call; $read; COMMIT");
	return ($seq_after - $seq) . ' ' . ($idx_after - $idx);
}

my $session = $node->background_psql('postgres');
$session->query_safe("SELECT idem.lookup('s1', 'k')");
my $use_all = "SELECT count(idem.lookup('s' || i, 'k')) FROM generate_series(1, 1000) i";
is(rows_read($session, $use_all), '0 999', 'each scope is one row read');
is(rows_read($session, $use_all), '0 0', 'once');
$node->safe_psql('postgres', "SELECT idem.alter_scope('s1', ttl => '2 days')");
is(rows_read($session, $use_all), '0 1000', 'and once more after a change');
$session->quit;
$node->safe_psql('postgres', 'ALTER TABLE idem.scope DROP CONSTRAINT scope_name_key');
is($node->safe_psql('postgres', "SELECT state FROM idem.lookup('s999', 'k')"), 'absent',
	'without the index, the table is read');
$node->safe_psql('postgres', 'ALTER TABLE idem.scope ADD CONSTRAINT scope_name_key UNIQUE (name)');

# A cause that a thousand scopes have

$node->safe_psql('postgres',
	'UPDATE idem.scope SET claims_per_minute = 100');  # as restored from a server that preloads idem
is($node->safe_psql('postgres', "SELECT count(*), max(detail) FILTER (WHERE scope IS NULL) FROM idem.health()
	WHERE check_name = 'limits'"),
	'11|990 more findings like these.', 'health() shows ten scopes with the same finding, and counts the others');
$node->safe_psql('postgres', 'UPDATE idem.scope SET claims_per_minute = NULL');

# A scope without keys is changed under a lock on all claims, but the records are read before

$node->safe_psql('postgres', "SELECT count(*)
	FROM idem.once_each('s3', ARRAY(SELECT 'key ' || i FROM generate_series(1, 3000) i), tenant => '')");
$node->safe_psql('postgres', 'VACUUM idem.record');
is($node->safe_psql('postgres', "BEGIN; SELECT idem.alter_scope('s4', tenant_from => 'role');
	SELECT seq_tup_read FROM pg_stat_xact_all_tables WHERE relid = 'idem.record'::regclass; ROLLBACK"), "\n3000",
	'and once');
my $claimer = $node->background_psql('postgres');
$claimer->query_safe("BEGIN; SELECT idem.once('s5', 'open')");
my (undef, undef, $stderr) = $node->psql('postgres',
	"SET lock_timeout = '1 ms'; SELECT idem.alter_scope('s3', tenant_from => 'role')");
like($stderr, qr/cannot change "tenant_from" of scope "s3" while it has live keys/,
	'a scope with keys is refused without waiting for a claim');
my $changer = waiter($node, 'Lock', q{SELECT idem.alter_scope('s5', tenant_from => 'role')});
$claimer->query_safe('COMMIT');
$changer->query('SELECT 1');
like($changer->{stderr}, qr/cannot change "tenant_from" of scope "s5".*\n.*Unexpired records: 1;/,
	'what was claimed meanwhile is seen');
eval { $_->quit } for $claimer, $changer;

# A new scope's id is above those in other record tables, which are read before others have to wait

$node->safe_psql('postgres', <<'SQL');
SELECT idem.create_scope('r', records => true);
SELECT idem.create_record_table('public.records');
BEGIN;
SELECT idem.use_records('records');
SELECT count(*) FROM idem.once_each('r', ARRAY(SELECT 'key ' || i FROM generate_series(1, 3000) i));
COMMIT;
VACUUM records;
SQL
is($node->safe_psql('postgres', "BEGIN; SELECT idem.create_scope('new');
	SELECT seq_tup_read FROM pg_stat_xact_all_tables WHERE relid = 'records'::regclass; ROLLBACK"), "\n3000",
	'and once');
$claimer = $node->background_psql('postgres');
$claimer->query_safe('BEGIN; LOCK records');
is($node->safe_psql('postgres', "SET lock_timeout = '1 s'; SELECT idem.create_scope('s6', if_not_exists => true)"), '',
	'not for a scope that exists');
$changer = waiter($node, 'Lock', q{SELECT idem.create_scope('new')});
is($node->safe_psql('postgres', "SET lock_timeout = '1 s'; SELECT idem.alter_scope('s6', ttl => '3 days');
	SELECT idem.create_scope('s6', ttl => '3 days', if_not_exists => true)"),
	"\n", 'and changes of other scopes do not wait for it');
$claimer->query_safe("SELECT idem.use_records('records'); SELECT idem.once('r', 'while it waits')");
$claimer->query_safe('COMMIT');
$changer->query_safe('SELECT 1');
is($node->safe_psql('postgres', "SELECT count(*) FROM idem.scope WHERE name = 'new'"), '1', 'and the scope is created');
eval { $_->quit } for $claimer, $changer;

# The end of a subtransaction that has changed no claim costs the same, whatever the transaction has claimed

$node->safe_psql('postgres', <<'SQL');
CREATE PROCEDURE rolled_back(n integer, INOUT took interval) LANGUAGE plpgsql AS $$
DECLARE
  began timestamptz := clock_timestamp();
BEGIN
  FOR i IN 1 .. n LOOP
    BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN END;
  END LOOP;
  took := clock_timestamp() - began;
END $$;
SQL
my $times = $node->safe_psql('postgres', <<'SQL');
DO $$
DECLARE
  took interval;
  free interval := '1 hour';
  held interval := '1 hour';
BEGIN
  FOR round IN 1 .. 5 LOOP
    CALL rolled_back(4000, took);
    free := least(free, took);
    PERFORM idem.once('s2', 'key ' || round || ' ' || i) FROM generate_series(1, 2500) i;
    CALL rolled_back(4000, took);
    held := least(held, took);
    COMMIT;
  END LOOP;
  CREATE TABLE took AS SELECT held, free;
END $$;
SELECT extract(epoch FROM held) / extract(epoch FROM free) FROM took;
SQL
note "with 2,500 claims: $times times as long";
cmp_ok($times, '<', 2, 'subtransactions cost the same beside many claims');

# In the SQL edition, a claim is found by its row, not in a list of all claims of the transaction

$node->safe_psql('postgres', 'CREATE DATABASE managed');
install_managed($node, 'managed');
$times = $node->safe_psql('managed', <<'SQL');
SELECT idem.create_scope('s') \g /dev/null
CREATE TABLE took (n integer, each interval);
DO $$
DECLARE
  c idem.claim_result;
  began timestamptz;
BEGIN
  FOR n IN 1 .. 1600 LOOP
    began := clock_timestamp();
    c := idem.claim('s', format('key %s', n));
    PERFORM idem.complete(c.token, headers => '{"Vary": ["Accept"]}');
    INSERT INTO took VALUES (n, clock_timestamp() - began);
  END LOOP;
END $$;
SELECT extract(epoch FROM min(each) FILTER (WHERE n > 1400)) / extract(epoch FROM min(each) FILTER (WHERE n <= 200))
  FROM took;
SQL
note "the last of 1,600 claims in a transaction: $times times as long as the first";
cmp_ok($times, '<', 3, 'a completion costs the same beside many claims');

log_is_clean($node);
$node->stop;
done_testing();
