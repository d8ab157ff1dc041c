# max_bytes: what counts, what a tenant at its limit may still do, by how much the limit is exceeded
# under concurrent load and after a restart, and what gives bytes back.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A round of the purge corrects the accounts. Here it runs when the test says so.
my $node = idem_node('storage', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
idem.limited_tenants = 64
idem.purge_naptime = 0
max_connections = 40
CONF

my $setup = <<'SQL';
CREATE EXTENSION idem;
CREATE SEQUENCE fresh;
-- Bytes that cannot be compressed.
CREATE FUNCTION noise(size int) RETURNS bytea LANGUAGE sql AS $$
  SELECT substr(string_agg(uuid_send(gen_random_uuid()), ''), 1, size) FROM generate_series(1, size / 16 + 1) $$;
CREATE FUNCTION nothing(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request';
-- Stores an answer of so many bytes under a new key.
CREATE FUNCTION store(scope text, tenant text, size int, lease interval DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.try_claim(scope, nextval('fresh')::text, tenant => tenant, lease => lease);
  IF c.claimed THEN
    IF lease IS NOT NULL THEN PERFORM idem.checkpoint(c.token, 'begun', to_jsonb(repeat('x', 500))); END IF;
    PERFORM idem.complete(c.token, body => noise(size));
  END IF;
  RETURN c.outcome;
END $$;
SQL
$node->safe_psql('postgres', $setup);

sub sql { return $node->safe_psql('postgres', shift); }
sub store { my ($scope, $tenant, $size) = @_; return sql("SELECT store('$scope', '$tenant', $size)"); }
sub scope { my ($name, $bytes, $more) = @_; return sql("SELECT idem.create_scope('$name', max_bytes => $bytes" . ($more // '') . ')'); }

# What a claim of a new key says that the tenant's records take. A byte is always there.
sub figure
{
	my ($scope, $tenant) = @_;
	my $limit = sql("SELECT max_bytes FROM idem.scopes WHERE name = '$scope'");
	sql("SELECT idem.alter_scope('$scope', max_bytes => 1)");
	my (undef, undef, $stderr) = $node->psql('postgres', "SELECT idem.claim('$scope', 'figure', tenant => '$tenant')");
	sql("SELECT idem.alter_scope('$scope', max_bytes => $limit)");
	return $stderr =~ /DETAIL:  They take (\d+) bytes/ ? $1 : 0;
}

# What counts --------------------------------------------------------------------------------------

scope('figures', 1_000_000_000);
my $table = sub { return sql("SELECT sum(pg_relation_size(v)) FROM pg_class c, unnest(ARRAY[oid, reltoastrelid]) v
  WHERE oid = 'idem.record'::regclass") };
my $empty = $table->();
sql("SELECT store('figures', 'a', 40) FROM generate_series(1, 1500)");
my ($small, $grown) = (figure('figures', 'a'), $table->() - $empty);
# A row as a value has the size of its tuple, if nothing of it is out of line.
my $tuples = sub { return sql(<<'SQL') };
WITH r AS MATERIALIZED (SELECT pg_column_size(r) AS size FROM idem.record r WHERE tenant = 'a')
SELECT sum((size + 7) / 8 * 8 + 4) FROM r
SQL
cmp_ok(abs($small - $tuples->()), '<=', 8, 'a record takes its tuple and its line pointer');
cmp_ok($small, '>', 0.85 * $grown, "1500 small records take $small bytes, and the table grew by $grown");
cmp_ok($small, '<', $grown, 'page headers and free space do not count');
my $before = $table->();
sql("SELECT store('figures', 'b', 50000) FROM generate_series(1, 60)");
my $large = figure('figures', 'b');
$grown = $table->() - $before;
cmp_ok($large, '>', 0.9 * $grown, "60 large records take $large bytes, and the table grew by $grown");
cmp_ok($large, '<', $grown, 'values out of line count as they are stored');
cmp_ok($large, '>', 60 * 50_000, 'each with its whole answer');
my $packed = sql(<<'SQL');
SELECT idem.complete((idem.claim('figures', 'packed', tenant => 'c')).token, to_jsonb(repeat('x', 50000)));
SELECT pg_column_size(response) FROM idem.record WHERE tenant = 'c'
SQL
$packed = (split /\n/, $packed)[-1];
cmp_ok(figure('figures', 'c'), '<', $packed + 200, "50000 bytes count compressed, as $packed");

sql('SELECT idem.purge()');
is(figure('figures', 'a'), $small, 'a round finds the same for small records');
is(figure('figures', 'b'), $large, 'a round finds the same for large records');
sql('SELECT idem.purge()');
is(figure('figures', 'a'), $small, 'so does another');
is(figure('figures', ''), 0, 'calls without a tenant have an account of their own');

# A round may need many steps, each of which may end within a block.
sql('SELECT idem.purge(1)') for 1 .. 3;
is(figure('figures', 'a'), $small, 'steps that find nothing to purge count the whole table');
sql("UPDATE idem.record SET expires = now() WHERE tenant = 'a' AND key::int % 30 = 0");
is(sql('SELECT idem.purge(7)'), 7, 'a step ends within a block') for 1 .. 7;
is(sql('SELECT idem.purge(7)'), 1, 'the eighth reaches the end of the table');
cmp_ok(abs(figure('figures', 'a') - $tuples->()), '<=', 8, 'what is purged goes, and no other record counts twice');

# A tenant at its limit -----------------------------------------------------------------------------

scope('limited', 20_000, ', store_request => true');
sql(<<'SQL');
SELECT idem.complete((idem.claim('limited', 'done', '{"a": 1}', tenant => 't')).token, '{"done": true}');
SELECT idem.claim('limited', 'leased', '{"a": 2}', tenant => 't', lease => '1 hour');
SELECT idem.claim('limited', 'lapsed', '{"a": 3}', tenant => 't', lease => '1 ms');
SQL
my $token = sql("SELECT token FROM idem.try_claim('limited', 'begun', tenant => 't', lease => '1 hour')");
is(store('limited', 't', 25_000), 'claimed', 'below the limit a claim is granted, whatever it stores');

my (undef, undef, $stderr) =
  $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT idem.claim('limited', 'new', tenant => 't')");
like($stderr, qr/54000: the tenant's records in scope "limited" take too much space/, 'claim raises 54000');
like($stderr, qr/DETAIL:  They take 2\d{4} bytes; "max_bytes" allows 20000 bytes\./, 'with the figures');
like($stderr, qr/HINT:  Retry with the same key when records of the tenant have expired/, 'and says what to do');
is( sql("SELECT claimed, outcome, retry_after FROM idem.try_claim('limited', 'new', tenant => 't')"),
	'f|limited|', 'try_claim returns the outcome limited');
for my $call (
	"idem.once('limited', 'new', tenant => 't')",
	"idem.once_each('limited', '{new}', 't')",
	"idem.forbid('limited', 'new', 't')",
	"idem.execute('limited', 'new', 'nothing(jsonb)', tenant => 't')")
{
	is(sqlstate($node, "SELECT $call"), '54000', "$call raises 54000");
}
is(sql("SELECT state FROM idem.lookup('limited', 'new', 't')"), 'absent', 'a refused key stays free');
is(locks($node), 0, 'a refused claim leaves no lock');
is(sql("SELECT limited >= 6 FROM idem.stats WHERE scope = 'limited'"), 't', 'refusals are counted');

is( sql("SELECT outcome, response FROM idem.claim('limited', 'done', '{\"a\": 1}', tenant => 't')"),
	'completed|{"done": true}', 'a replay is answered at the limit');
is(sql("SELECT idem.once_each('limited', '{done}', 't')"), '', 'so is a message that is not new');
is(sql("SELECT state FROM idem.lookup('limited', 'done', 't')"), 'completed', 'so is a lookup');
is(sql("SELECT idem.complete('$token', '{\"late\": true}')"), '{"late": true}', 'what was begun can be completed');
is(sql("SELECT key FROM idem.take('limited', '1 hour')"), 'lapsed', 'what was begun can be taken over');
is(store('limited', 'u', 100), 'claimed', 'another tenant has bytes of its own');
is(store('figures', 't', 100), 'claimed', 'another scope has bytes of its own');

sql("SELECT idem.revoke('limited', k, 't') FROM unnest('{leased,lapsed}'::text[]) k");

# Giving back --------------------------------------------------------------------------------------

is(sql("SELECT idem.erase_tenant('limited', 't', force => true) > 0"), 't', 'a tenant at its limit is erased');
sql('SELECT idem.purge()') for 1 .. 2;
cmp_ok(figure('limited', 't'), '<', 2000, 'erased answers give their bytes back with the next round');
is(store('limited', 't', 25_000), 'claimed', 'so that the tenant can store again');
is(store('limited', 't', 1), 'limited', 'until it is at its limit');
is(sql("SELECT idem.forget_tenant('limited', 't', force => true) > 0"), 't', 'a tenant at its limit is forgotten');
sql('SELECT idem.purge()') for 1 .. 2;
is(figure('limited', 't'), 0, 'forgotten records give their bytes back');

sql("BEGIN; SELECT store('limited', 't', 30000); ROLLBACK");
is(figure('limited', 't'), 0, 'a rollback gives its bytes back at once');
is( sql(<<'SQL'), "claimed\nlimited", 'what is not committed counts');
BEGIN;
SELECT store('limited', 't', 30000) UNION ALL SELECT store('limited', 't', 1);
ROLLBACK;
SQL
is(sqlstate($node, "SELECT idem.once_each('limited', ARRAY(SELECT 'm' || i FROM generate_series(1, 1000) i), 't')"),
	'54000', 'a call with many keys is refused at the limit');
is(figure('limited', 't'), 0, 'and stores nothing');
sql("BEGIN; SAVEPOINT s; SELECT store('limited', 't', 30000); ROLLBACK TO s; COMMIT");
cmp_ok(figure('limited', 't'), '>', 30_000, 'what a savepoint undoes counts after the commit');
sql('SELECT idem.purge()') for 1 .. 2;
is(figure('limited', 't'), 0, 'until the next full round');

# An update within its page adds what it adds, not the whole record.
sql("SELECT idem.claim('limited', 'long', tenant => 'v', lease => '1 hour', request => to_jsonb(encode(noise(1500), 'hex')))");
my $long = sql("SELECT token FROM idem.try_claim('limited', 'renewed', tenant => 'w', lease => '1 hour')");
sql("SELECT idem.checkpoint('$long', 'p', to_jsonb(repeat('x', 100)))") for 1 .. 50;
cmp_ok(figure('limited', 'w'), '<', 1500, 'fifty recovery points of one operation do not add up');

sql("BEGIN; SELECT store('limited', 'prepared', 30000); PREPARE TRANSACTION 'p'");
is(store('limited', 'prepared', 1), 'limited', 'what is prepared counts');
sql("COMMIT PREPARED 'p'; SELECT idem.purge(); SELECT idem.purge()");
is(store('limited', 'prepared', 1), 'limited', 'and after it is committed');

# Concurrent load ------------------------------------------------------------------------------------

# Sixteen clients, four tenants, and the worker's rounds beside them. A claim that is granted below the
# limit may store one answer: the limit is exceeded by at most one answer of each client.
my ($limit, $answer, $clients) = (200_000, 5_000, 16);
scope('crowd', $limit);
my $stored = "SELECT tenant, sum(pg_column_size(body)) AS bytes FROM idem.record r JOIN idem.scope s ON s.id = r.scope
  WHERE s.name = 'crowd' GROUP BY 1";
my $script = PostgreSQL::Test::Utils::tempdir . '/crowd.sql';
append_to_file($script, "\\set n random(1, 4)\nSELECT store('crowd', 't' || :n, $answer, NULLIF(:n % 2, 0) * interval '1 hour');\n");
sub crowd
{
	my ($what) = @_;
	$node->safe_psql('postgres', $_) for "ALTER SYSTEM SET idem.purge_naptime = '10ms'", 'SELECT pg_reload_conf()';
	$node->command_ok([ 'pgbench', '-n', '-c', $clients, '-j', 2, '-t', 60, '-f', $script, 'postgres' ], $what);
	$node->safe_psql('postgres', $_) for "ALTER SYSTEM SET idem.purge_naptime = 0", 'SELECT pg_reload_conf()';
	$node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idem purger'");
	return;
}
crowd('16 clients, 4 tenants, and the purge worker');
is(sql("SELECT count(*) FROM ($stored) t"), 4, 'every tenant has records');
is(sql("SELECT tenant, bytes FROM ($stored) t WHERE bytes > $limit + $clients * ($answer + 1000)"),
	'', 'no tenant has more than its limit and an answer of each client');
is(sql("SELECT tenant, bytes FROM ($stored) t WHERE bytes < 0.9 * $limit"), '', 'no tenant was refused far below its limit');
sql('SELECT idem.purge()') for 1 .. 2;
for my $tenant ('t1' .. 't4')
{
	my $bytes = sql("SELECT bytes FROM ($stored) t WHERE tenant = '$tenant'");
	my $figure = figure('crowd', $tenant);
	ok($figure > $bytes && $figure < 1.1 * $bytes, "after two rounds the account of $tenant is right: $figure for $bytes");
}

# A restart ------------------------------------------------------------------------------------------

$node->restart;
is(store('crowd', 't1', 1), 'claimed', 'after a restart nothing is known');
crowd('the same load after a restart');
is(sql("SELECT tenant, bytes FROM ($stored) t WHERE bytes > 2 * ($limit + $clients * ($answer + 1000))"),
	'', 'no tenant has more than twice its limit');
sql('SELECT idem.purge()') for 1 .. 2;
is(sql("SELECT DISTINCT store('crowd', 't' || i, 1) FROM generate_series(1, 4) i"), 'limited', 'after two rounds all is known');
$node->stop('immediate');
$node->start;
sql('SELECT idem.purge()') for 1 .. 2;
is(sql("SELECT DISTINCT store('crowd', 't' || i, 1) FROM generate_series(1, 4) i"), 'limited', 'so it is after a crash');

# A table that is rewritten or emptied is counted anew.
sql('VACUUM FULL idem.record');
sql('SELECT idem.purge()') for 1 .. 2;
is(store('crowd', 't1', 1), 'limited', 'VACUUM FULL loses nothing');
sql('TRUNCATE idem.record');
sql('SELECT idem.purge()') for 1 .. 2;
is(store('crowd', 't1', 1), 'claimed', 'TRUNCATE gives all bytes back');

# Other record tables ---------------------------------------------------------------------------------

# A tenant has one account for all record tables. Each round goes over all of them.
sql("SELECT idem.create_record_table('first_records'), idem.create_record_table('second_records', 'tenant_id', 'text')");
sql("SELECT idem.create_scope('spread', max_bytes => 1000000000, records => true), idem.create_scope('here', max_bytes => 1000000000)");
sub sizes
{
	return sql(join ' UNION ALL ', map { <<"SQL" } 'idem.record', 'first_records', 'second_records');
SELECT coalesce(sum((pg_column_size(r) + 7) / 8 * 8 + 4), 0) FROM $_ r WHERE tenant = 'a' AND scope = (SELECT id FROM idem.scope WHERE name = 'spread')
SQL
}
sub total { my $sum = 0; $sum += $_ for split /\n/, sizes(); return $sum; }
sub is_right
{
	my ($what) = @_;
	my ($figure, $total) = (figure('spread', 'a'), total());
	cmp_ok(abs($figure - $total), '<=', 64, "$what: $figure for $total");
	return;
}
sub is_enough
{
	my ($what) = @_;
	my ($figure, $total) = (figure('spread', 'a'), total());
	cmp_ok($figure, '>=', $total, "$what: $figure for $total");
	return;
}
# One call per transaction: use_records() is for a transaction.
sub fill_table
{
	my ($records, $n) = @_;
	return sql("BEGIN; SELECT idem.use_records('$records'); SELECT count(store('spread', 'a', 1500)) FROM generate_series(1, $n); COMMIT");
}
my @tables = ('idem.record', 'first_records', 'second_records');
fill_table($_, 40) for @tables;
is_right('what is written into several tables counts');
sql('SELECT idem.purge()') for 1 .. 2;
is_right('a round finds the same');
sql('SELECT idem.purge()');
is_right('so does another');

# The sweep stops within each of the tables, in the middle of a block: at the first of three records
# that have expired, between others.
sub add_expired
{
	my ($records) = @_;
	fill_table($records, 8);
	sql(<<"SQL");
BEGIN;
SELECT idem.use_records('$records');
SELECT idem.complete(token) FROM generate_series(1, 3) i, idem.claim('spread', 'expired ' || i, tenant => 'b', ttl => '1 us');
COMMIT;
SQL
	fill_table($records, 8);
	return;
}
for my $stop (@tables)
{
	add_expired($stop);
	sql('SELECT idem.purge(100)') for 1 .. 2;
	add_expired($stop);
	is(sql('SELECT idem.purge(1)'), 1, "a step ends within $stop") for 1 .. 2;
	is(sql('SELECT idem.purge(2)'), 1, 'the last one reaches the end');
	is_right('no record counts twice');
	add_expired($stop);
	is(sql('SELECT idem.purge(1)'), 1, "a step ends within $stop");
	fill_table($_, 5) for @tables;
	is_enough('what is written meanwhile counts, before and behind the hand');
	is(sql('SELECT idem.purge(1)'), 1, 'the next step goes on there');
	sql('SELECT idem.purge()');
	is_enough('and after the round');
	sql('SELECT idem.purge()') for 1 .. 2;
	is_right('two rounds later nothing counts twice');
}

# A table that appears while a round runs, one that is locked, and one that is rewritten or dropped.
add_expired('first_records');
sql('SELECT idem.purge(1)');
sql("SELECT idem.create_record_table('third_records')");
fill_table('third_records', 10);
my $third = sql("SELECT sum((pg_column_size(r) + 7) / 8 * 8 + 4) FROM third_records r");
sql('SELECT idem.purge(1)');
is_enough('a table that appears');
cmp_ok(figure('spread', 'a'), '>=', total() + $third, 'its rows count');
sql('SELECT idem.purge()') for 1 .. 3;
cmp_ok(abs(figure('spread', 'a') - total() - $third), '<=', 0.01 * total(), 'and once, after two rounds');

# It may even appear while a step runs: the step knows the tables, and waits for a lock on the scopes.
sql('DROP TABLE third_records');
sql('SELECT idem.purge()') for 1 .. 3;
my $lock = $node->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE idem.scope IN ACCESS EXCLUSIVE MODE');
my $purger = $node->background_psql('postgres');
$purger->query_until(qr/begun/, "\\echo begun\nSELECT idem.purge();\n");
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted") or die 'the step does not wait';
$lock->query_safe("SELECT idem.create_record_table('third_records'); SELECT idem.use_records('third_records')");
$lock->query_safe("SELECT count(store('spread', 'a', 1500)) FROM generate_series(1, 10); COMMIT");
$purger->quit;
$third = sql("SELECT sum((pg_column_size(r) + 7) / 8 * 8 + 4) FROM third_records r");
cmp_ok(figure('spread', 'a'), '>=', total() + $third, 'the rows of a table that appears during a step count');
$lock->query_safe('BEGIN; LOCK TABLE first_records IN ACCESS EXCLUSIVE MODE');
sql('SELECT idem.purge()') for 1 .. 3;
$lock->query_safe('COMMIT');
$lock->quit;
is_enough('a table that was locked for rounds is not forgotten');
add_expired('second_records');
sql('SELECT idem.purge(1)');
sql('VACUUM FULL second_records');
sql('SELECT idem.purge()');
is_enough('a table that was rewritten behind the hand');
add_expired('second_records');
sql('SELECT idem.purge(1)');
sql('DROP TABLE third_records');
sql('SELECT idem.purge()') for 1 .. 3;
is_right('the bytes of a dropped table are given back');
sql('TRUNCATE first_records, second_records, idem.record');
sql('SELECT idem.purge()') for 1 .. 2;
is(figure('spread', 'a'), 0, 'all bytes are given back');
sql("SELECT idem.drop_scope('spread')");
sql('DROP TABLE first_records, second_records');

# A limit that a scope gets later.
sql("SELECT idem.create_scope('later'); SELECT store('later', 'a', 30000); SELECT idem.alter_scope('later', max_bytes => 20000)");
sql('SELECT idem.purge()') for 1 .. 2;
is(store('later', 'a', 1), 'limited', 'records from before the limit count after two rounds');
sql("SELECT idem.alter_scope('later', max_bytes => -1)");
is(store('later', 'a', 1), 'claimed', 'without the limit nothing is refused');

# More tenants than accounts -------------------------------------------------------------------------

sql('TRUNCATE idem.record');
$node->restart;
is( sql("SELECT DISTINCT store('crowd', 'many ' || i, 10) FROM generate_series(1, 63) i"),
	'claimed', 'as many tenants as accounts, but one, can store');
is(store('crowd', 'one more', 10), 'limited', 'a tenant without an account is refused');
(undef, undef, $stderr) =
  $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT idem.claim('crowd', 'new', tenant => 'one more')");
like($stderr, qr/54000: too many tenants have records in scopes with "max_bytes"/, 'with a message of its own');
like($stderr, qr/DETAIL:  .* the server counts that of 64 tenants/, 'that names the setting');
is(store('crowd', 'many 7', 10), 'claimed', 'a tenant with an account is served');
is(store('later', 'one more', 10), 'claimed', 'a scope without the limit is not affected');
sql('SELECT idem.purge()') for 1 .. 2;
is(store('crowd', 'one more', 10), 'limited', 'accounts of tenants that have records stay');
sql("SELECT idem.forget_tenant('crowd', 'many 7')");
sql('SELECT idem.purge()') for 1 .. 2;
is(store('crowd', 'one more', 10), 'claimed', 'the account of a tenant without records becomes free');

# The accounts of a dropped extension and of a dropped database become free.
sql('DROP EXTENSION idem');
$node->safe_psql('postgres', $_) for "ALTER SYSTEM SET idem.purge_naptime = '10ms'", 'SELECT pg_reload_conf()', 'CREATE DATABASE other';
$node->safe_psql('other', "DROP EXTENSION IF EXISTS idem; $setup");
$node->safe_psql('other', "SELECT idem.create_scope('crowd', max_bytes => 20000)");
$node->poll_query_until('other', "SELECT store('crowd', 'many ' || nextval('fresh'), 10) = 'claimed'")
  or die 'no account became free';
is( $node->safe_psql('other', "SELECT DISTINCT store('crowd', 'many ' || i, 10) FROM generate_series(1, 60) i"),
	'claimed', 'another database uses the accounts of a dropped extension');
$node->safe_psql('postgres', 'DROP DATABASE other WITH (FORCE)');
$node->safe_psql('postgres', "DROP FUNCTION store, noise, nothing; DROP SEQUENCE fresh; $setup");
$node->safe_psql('postgres', "SELECT idem.create_scope('crowd', max_bytes => 20000)");
ok( $node->poll_query_until('postgres',
		"SELECT bool_and(store('crowd', 'many ' || i, 10) = 'claimed') FROM generate_series(1, 60) i"),
	'those of a dropped database become free');
$node->stop;
log_is_clean($node);

# Without preload ------------------------------------------------------------------------------------

my $plain = idem_node('plain', bare => 1, conf => '');
$plain->safe_psql('postgres', $setup);
(undef, undef, $stderr) = $plain->psql('postgres', "\\set VERBOSITY verbose\nSELECT idem.create_scope('s', max_bytes => 5)");
like($stderr, qr/55000: "max_bytes" needs idem to be preloaded/, 'no limit without preload');

# As after restoring a dump of a server that preloads idem.
$plain->safe_psql('postgres', "SELECT idem.create_scope('s'); UPDATE idem.scope SET max_bytes = 1");
(undef, undef, $stderr) = $plain->psql('postgres', "SELECT store('s', 'a', 10) FROM generate_series(1, 3)");
is($plain->safe_psql('postgres', 'SELECT count(*) FROM idem.record'), 3, 'a restored limit is not enforced without preload');
is(() = $stderr =~ /WARNING:  claims in scope "s" are not limited/g, 1, 'a warning says so once per session');
$plain->stop;
log_is_clean($plain);

done_testing();
