# Index builds under load, of idem.record and of a record table elsewhere: every index that exists at
# the moment is maintained, so no key is executed twice, and amcheck finds every row in every index.
use strict;
use warnings;

use IdemTest;
use IPC::Run qw(start);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('reindex', conf => "fsync = off\nsynchronous_commit = off\nlog_statement = none");
$node->safe_psql('postgres', 'CREATE EXTENSION amcheck');

# Each operation is sent twice, so that a lost index entry becomes a second effect.
my $script = $node->basedir . '/load.sql';
append_to_file($script, <<'SQL');
\set n random(1, 1000000000)
SELECT pay('key' || :n, '{"amount": 1}');
SELECT pay('key' || :n, '{"amount": 1}');
SQL
# New keys that several clients claim at the same moment, so that insertions are taken back: half of
# the calls through idem.execute(), which would store a failure.
my $each = $node->basedir . '/each.sql';
append_to_file($each, <<'SQL');
SELECT each(hot_keys());
SELECT outcome FROM idem.execute('payments', 'execute' || nextval('operation'), 'each(jsonb)', hot_keys());
SQL
$node->safe_psql('postgres', <<'SQL');
CREATE SEQUENCE operation;
CREATE SEQUENCE hot;
CREATE FUNCTION hot_keys() RETURNS jsonb LANGUAGE sql AS
  $$ SELECT jsonb_agg('hot' || n / 20 + i) FROM (SELECT nextval('hot') AS n OFFSET 0) s, generate_series(0, 4) i $$;
CREATE FUNCTION each(keys jsonb) RETURNS jsonb LANGUAGE sql AS $$
  INSERT INTO payment (key, amount)
    SELECT key, 1 FROM idem.once_each('payments', ARRAY(SELECT jsonb_array_elements_text(keys))) key;
  SELECT keys;
$$;
SQL
# The same in the other table, under a tenant.
my $elsewhere = $node->basedir . '/elsewhere.sql';
append_to_file($elsewhere, <<'SQL');
\set n random(1, 1000000000)
SELECT sell('sale' || :n);
SELECT sell('sale' || :n);
BEGIN;
SELECT idem.use_records('tenant_7.record');
INSERT INTO payment (key, amount) SELECT key, 1
  FROM idem.once_each('sales', ARRAY(SELECT 'each ' || jsonb_array_elements_text(hot_keys())), '7') key;
COMMIT;
SQL
$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA tenant_7;
SELECT idem.create_record_table('tenant_7.record', 'tenant_id', 'integer');
SELECT idem.create_scope('sales', records => true);
CREATE FUNCTION sell(key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.use_records('tenant_7.record');
  IF idem.once('sales', key, tenant => '7') THEN INSERT INTO payment (key, amount) VALUES (key, 1); END IF;
END $$;
SQL
my ($out, $err) = ('', '');
my $load = start([ 'pgbench', '-n', '-c', '4', '-T', '600', '-M', 'prepared', '-f', $script, '-f', $each, '-f',
		$elsewhere,
	$node->connstr('postgres') ], '>', \$out, '2>', \$err);

my $progress = sub {
	my $before = $node->safe_psql('postgres', 'SELECT count(*) FROM payment');
	$node->poll_query_until('postgres', "SELECT count(*) > $before FROM payment") or die 'the load stands still';
};
for my $ddl (
	'REINDEX INDEX CONCURRENTLY idem.record_pkey',
	'CREATE INDEX CONCURRENTLY extra_plain ON idem.record (expires)',
	'REINDEX TABLE CONCURRENTLY idem.record',
	"CREATE INDEX CONCURRENTLY extra_partial ON idem.record (created) WHERE state = 'c'",
	"CREATE INDEX CONCURRENTLY extra_expression ON idem.record (lower(key))",
	'REINDEX INDEX idem.record_pkey',
	'REINDEX TABLE CONCURRENTLY idem.record',
	'VACUUM FULL idem.record',
	'REINDEX INDEX CONCURRENTLY idem.record_pkey',
	'REINDEX TABLE CONCURRENTLY tenant_7.record',
	'CREATE INDEX CONCURRENTLY elsewhere_plain ON tenant_7.record (tenant_id, expires)',
	"CREATE INDEX CONCURRENTLY elsewhere_partial ON tenant_7.record (tenant_id) WHERE state = 'c'",
	'CREATE UNIQUE INDEX CONCURRENTLY elsewhere_unique ON tenant_7.record (lower(key))',
	'REINDEX INDEX CONCURRENTLY tenant_7.record_pkey',
	'CLUSTER tenant_7.record USING record_pkey',
	'VACUUM FULL tenant_7.record',
	'REINDEX TABLE tenant_7.record')
{
	$node->safe_psql('postgres', $ddl);
	$progress->();
	pass($ddl);
}
ok($node->poll_query_until('postgres', "SELECT n_tup_del > 0 FROM pg_stat_all_tables
	WHERE relid = 'idem.record'::regclass"),
	'insertions were taken back: another transaction had the same key');
$load->signal('TERM');
$load->finish;
unlike($err, qr/ERROR|aborted/, 'the load had no error');
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'})
  or die 'the load goes on';

tables_are_sound($node, 'after the load');
is($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT key) FROM payment'), 0, 'no key was executed twice');
is($node->safe_psql('postgres', q{SELECT (SELECT count(*) FROM payment) - count(*) - (SELECT count(*)
	FROM tenant_7.record) FROM idem.record WHERE key NOT LIKE 'execute%'}),
	0, 'there are as many records as effects');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM tenant_7.record'), '>', 100, 'in both tables');
is($node->safe_psql('postgres', q{SELECT key, error FROM idem.record WHERE state <> 'c'}), '', 'no failure is stored');
$node->safe_psql('postgres', q{SELECT count(pay(key, '{"amount": 1}'))
	FROM (SELECT key FROM payment WHERE key LIKE 'key%' LIMIT 1000) k});
is($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT key) FROM payment'), 0, 'every key is replayed');

$node->safe_psql('postgres', q{SELECT count(sell(key)) FROM (SELECT key FROM payment WHERE key LIKE 'sale%'
	LIMIT 1000) k});
is($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT key) FROM payment'), 0, 'in the other table, too');

log_is_clean($node);
$node->stop;
done_testing();
