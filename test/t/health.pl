# Every check of idem.health() turns to warn or fail, and following its hint cures it. t/misuse.pl has
# the checks of what clients do.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The worker does not purge and autovacuum runs rarely, so that neither repairs what is broken here.
my $node = idem_node('health', conf => <<'CONF');
shared_preload_libraries = 'idem'
idem.purge_naptime = 0
autovacuum = on
autovacuum_naptime = '1d'
CONF

sub sql { return $node->safe_psql('postgres', shift); }

sql('CREATE ROLE watcher LOGIN IN ROLE pg_monitor');

# The rows of a check, or a column of them, as a role that may monitor idem but not use its scopes.
sub health
{
	my ($check, %options) = @_;
	my $column = $options{column} // 'status';
	my $held = $options{held} // '5 minutes';
	return $node->safe_psql('postgres',
		"SELECT $column FROM idem.health('$held') WHERE check_name = '$check'",
		connstr => $node->connstr('postgres') . ' user=watcher');
}

sub health_becomes
{
	my ($check, $status, $name, $held) = @_;
	$held //= '5 minutes';
	ok( $node->poll_query_until('postgres',
			"SELECT string_agg(DISTINCT status, '') FROM idem.health('$held') WHERE check_name = '$check'", $status),
		$name);
	return;
}

sub hint
{
	my ($check, %options) = @_;
	return health($check, %options, column => 'hint');
}

# For hints that are nothing but SQL.
sub follow_hint
{
	my ($check, %options) = @_;
	my $hint = hint($check, %options) =~ s/^If .* If not: //r;
	$node->safe_psql('postgres', $_) for split /; |\. Then: |\n/, $hint;
	return;
}

# To begin with ------------------------------------------------------------------------------------

my @checks = qw(worker purge retention sizing leases attempts transactions);
push @checks, 'weak keys',
	qw(autovacuum vacuum wraparound indexes secrets owners limits statistics schema triggers functions tests
	lifetimes tenants), 'record tables', 'constant keys', 'library';
health_becomes('worker', 'warn', 'the launcher runs, but purging is off');
is( sql("SELECT string_agg(check_name, ',') FROM idem.health()"), join(',', @checks), 'one row per check');
is( sql("SELECT string_agg(check_name, ',') FROM idem.health() WHERE status <> 'ok'"),
	'worker', 'and all but the worker is in order');
is( sql("SELECT count(*) FROM idem.health() WHERE (hint IS NULL) <> (status = 'ok') OR detail IS NULL"),
	0, 'a hint where one is needed, a detail always');
is(sql("CREATE ROLE stranger; SET ROLE stranger; SELECT string_agg(check_name, ',') FROM idem.health()"),
	'retention,sizing,leases,attempts,weak keys,owners,limits,statistics,lifetimes,tenants,constant keys',
	'another role sees the checks of scopes');

# worker: see below for the launcher ---------------------------------------------------------------

like(health('worker', column => 'detail'), qr/purge_naptime is 0/, 'worker: purging is off');

# purge --------------------------------------------------------------------------------------------

# A finished record as the table has it, to be spoilt.
sub insert_records
{
	my ($scope, $n, $expires) = @_;
	sql(<<"SQL");
INSERT INTO idem.record (digest, created, expires, scope, attempt, state, redacted, tenant, key)
SELECT gen_random_uuid(), now() - interval '3 days', $expires, (SELECT id FROM idem.scope WHERE name = '$scope'), 1,
'c',
       false, '', 'order-' || i FROM generate_series(1, $n) i
SQL
	return;
}

insert_records('payments', 3, "now() - interval '10 minutes'");
is(health('purge'), 'ok', 'purge: records that have just expired');
like(health('purge', column => 'detail'), qr/^3 expired records wait to be purged\.$/, 'are counted');
insert_records('payments', 2, "now() - interval '2 hours'");
is(health('purge'), 'warn', 'purge: they wait for hours');
insert_records('payments', 1, "now() - interval '2 days'");
is(health('purge'), 'fail', 'purge: they wait for days');
my $purge = 'SELECT idem.purge(1000000)';
is(sql($purge), 6, 'purge: what waits is purged');
is(health('purge'), 'ok', 'purge: cured');
sql("SELECT idem.create_scope('brief')");
insert_records('brief', 4, "now() + interval '1 day'");
sql("SELECT idem.drop_scope('brief')");
like(health('purge', column => 'detail'), qr/^4 expired records wait to be purged\./,
	'records of a dropped scope wait too');
sql($purge);

# What needs no figures is checked where nothing can be counted ----------------------------------------

sql(<<'SQL');
CREATE FUNCTION own(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE INDEX calls ON idem.record (own(key));
CREATE ROLE gone;
SELECT idem.create_scope('orphan', owner => 'gone');
DROP ROLE gone;
CREATE TABLE dump AS SELECT * FROM idem.secret;
DELETE FROM idem.secret;
SQL
is( sql("SELECT string_agg(concat_ws(' ', scope, in_progress, exhausted, expired, coverage), ',' ORDER BY scope)
		FROM idem.overview"), 'orphan,payments', 'an index that calls a function: the overview has settings only');
my @uncounted = ('attempts', 'leases', 'lifetimes', 'record tables', 'sizing', 'tenants', 'weak keys');
is( sql("SELECT string_agg(check_name, ',' ORDER BY check_name) FROM idem.health()
		WHERE status = 'warn' AND scope IS NULL AND detail LIKE 'Nothing could be counted: %'"),
	join(',', @uncounted), 'each check that needs figures says that it has none');
is(health('owners', column => 'scope, status'), 'orphan|fail', 'owners are checked');
is(health('secrets'), 'fail', 'secrets are checked');
is(hint('attempts'), 'DROP INDEX CONCURRENTLY idem.calls', 'the hint drops the index');
follow_hint('attempts');
is( sql("SELECT count(*) FROM idem.health() WHERE detail LIKE 'Nothing could be counted%'"), 0, 'cured');
sql("INSERT INTO idem.secret TABLE dump; DROP TABLE dump; SELECT idem.drop_scope('orphan'); DROP FUNCTION own");
is( sql("SELECT string_agg(check_name, ',') FROM idem.health() WHERE status <> 'ok'"), 'worker', 'and all is in order');

# retention ----------------------------------------------------------------------------------------

sql("SELECT idem.create_scope('short', ttl => '4 minutes', lease => '2 minutes', wait => '30 seconds')");
is(health('retention'), 'ok', 'retention: longer than wait, lease, network and skew');
sql("SELECT idem.alter_scope('short', max_attempts => 2)");
is(health('retention', column => 'scope, status'), 'short|warn', 'retention: not longer than two leases');
follow_hint('retention');
is(sql("SELECT ttl FROM idem.scopes WHERE name = 'short'"), '00:05:05', 'retention: the hint lengthens the TTL');
is(health('retention'), 'ok', 'retention: cured');
sql("SELECT idem.alter_scope('short', lease => '365000 days', max_attempts => 2147483647, wait => '365000 days')");
is(health('retention'), 'warn', 'retention: no setting breaks the check');
sql("SELECT idem.drop_scope('short')");

# retention: what has happened; lifetimes ----------------------------------------------------------

sub claim_each
{
	my ($n) = @_;
	sql("SELECT idem.once('tardy', 'order-' || i) FROM generate_series(1, $n) i");
	return;
}

sub expire_all
{
	sql("UPDATE idem.record SET expires = now() - interval '1 second'
		WHERE scope = (SELECT id FROM idem.scope WHERE name = 'tardy')");
	return;
}

sql("SELECT idem.create_scope('tardy', ttl => '31 days')");
claim_each(10);
expire_all();
claim_each(9);
is(health('retention'), 'ok', 'retention: few retries came too late');
claim_each(10);
like(health('retention', column => 'scope, status, detail'),
	qr/^tardy\|warn\|Since .* have come too late 10 times: 10 claims/,
	'retention: ten');
my @longer = hint('retention') =~ /: (SELECT idem\.alter_scope\(.*?\)); (SELECT idem\.stats_reset\(.*?\))/;
sql($_) for @longer;
is(sql("SELECT ttl FROM idem.scopes WHERE name = 'tardy'"), '62 days', 'retention: the hint lengthens the TTL');
is(health('retention'), 'ok', 'retention: cured');
sql("SELECT idem.alter_scope('tardy', ttl => '31 days')");
expire_all();
sql($purge);

# Their lifetime is three days and an hour, and less than a tenth of 31 days.
insert_records('tardy', 9, "now() + interval '1 hour'");
is(health('lifetimes'), 'ok', 'lifetimes: a few records with a short one');
insert_records('tardy', 1, "now() + interval '3 hours'");
is(health('lifetimes'), 'ok', 'lifetimes: a tenth of the TTL is not short');
insert_records('tardy', 1, "now() + interval '1 hour'");
like(health('lifetimes', column => 'scope, status, detail'), qr/^tardy\|warn\|.* has 10 records .* TTL of 31 days/,
	'lifetimes: ten short ones');
sql("UPDATE idem.record SET expires = now() + interval '30 days'
	WHERE scope = (SELECT id FROM idem.scope WHERE name = 'tardy')");
insert_records('tardy', 1, "now() + interval '725 days'");
is(health('lifetimes'), 'ok', 'lifetimes: almost two years');
insert_records('tardy', 1, "now() + interval '728 days'");
like(health('lifetimes', column => 'detail'), qr/has 1 new record that will be kept for more than two years: callers/,
	'lifetimes: more');
sql("SELECT idem.alter_scope('tardy', ttl => '2 days')");
is(health('lifetimes'), 'ok', 'lifetimes: a record of old is no news');
sql("SELECT idem.alter_scope('tardy', ttl => '10 years')");
insert_records('tardy', 2, "now() + interval '10 years'");
unlike(health('lifetimes', column => 'detail'), qr/more than two years/, 'lifetimes: as long as the scope says');
sql("SELECT idem.drop_scope('tardy')");
sql($purge);

# sizing -------------------------------------------------------------------------------------------

sql("SELECT idem.create_scope('sized', ttl => '1 second')");
insert_records('sized', 9999, "now() + interval '1 year'");
$node->poll_query_until('postgres',
	"SELECT now() - stats_reset > '1 second' FROM idem.stats WHERE scope = 'sized'");
is(health('sizing'), 'ok', 'sizing: a few records more are no matter');
insert_records('sized', 1, "now() + interval '1 year'");
is(health('sizing', column => 'scope, status'), 'sized|warn', 'sizing: many that no claim accounts for');
like(health('sizing', column => 'detail'),
	qr/10000 records, but its 0 claims within \S+ and its TTL of 00:00:01 account for only 0\./,
	'with the figures');
like(hint('sizing'), qr/longer than the scope's.*claims_per_minute/, 'sizing: the hint names the cause');
sql("SELECT idem.alter_scope('sized', ttl => '1 year')");
is(health('sizing'), 'ok', 'sizing: cured');

# vacuum, with their remains -----------------------------------------------------------------------

is(health('vacuum'), 'ok', 'vacuum: dead rows that are not many');
sql("SELECT idem.drop_scope('sized')");
sql($purge);
health_becomes('vacuum', 'warn', 'vacuum: too many dead rows');
follow_hint('vacuum');
health_becomes('vacuum', 'ok', 'vacuum: cured');

# leases, attempts ---------------------------------------------------------------------------------

sql("SELECT idem.alter_scope('payments', max_attempts => 1)");
sql("SELECT idem.claim('payments', 'lost', lease => '1 millisecond'); SELECT pg_sleep(0.01)");
is(health('leases', held => '0'), 'ok', 'leases: the last attempt is a matter of the check "attempts"');
is(health('attempts', column => 'scope, status'), 'payments|warn', 'attempts: used up');
like(hint('attempts'), qr/idem\.revoke\(\)/, 'attempts: the hint keeps the recovery point');
my ($which) = hint('attempts') =~ /: (SELECT tenant.*)/;
is(sql($which), '|lost|1|', 'and lists the keys');
is(sql("SELECT idem.revoke('payments', 'lost')"), 't', 'attempts: one more is granted');
is(health('attempts'), 'ok', 'attempts: cured');
is(health('leases'), 'ok', 'leases: one has ended, but not long ago');
is(health('leases', held => '0', column => 'scope, status'), 'payments|warn', 'leases: one ended long ago');
is(health('leases', held => '178000000 years'), 'ok', 'leases: not as long ago as an interval may be');
is(health('leases', held => '-178000000 years'), 'warn', 'leases: longer ago than a negative interval');
($which) = hint('leases', held => '0') =~ /: (SELECT tenant.*)/;
like(sql($which), qr/^\|lost\|released\|/, 'leases: the hint finds it');
my $take = q{SELECT * FROM idem.take('payments')};
sql("SELECT idem.release(token) FROM ($take) t");
is(health('attempts'), 'warn', 'attempts: used up again');
sql("SELECT idem.alter_scope('payments', max_attempts => 2)");
is(health('attempts'), 'ok', 'attempts: cured by a higher limit');
is(health('leases', held => '0'), 'warn', 'leases: a released one that is due');
sql("SELECT idem.complete(token) FROM ($take) t");
is(health('leases', held => '0'), 'ok', 'leases: cured when it is taken and finished');
sql("SELECT outcome FROM idem.claim('payments', 'running', lease => '1 hour')");
is(health('leases', held => '0'), 'ok', 'leases: a running one is well');
sql("DELETE FROM idem.record WHERE key = 'running'");

# triggers -----------------------------------------------------------------------------------------

sql('ALTER TABLE idem.scope DISABLE TRIGGER ALL');
is(health('triggers'), 'warn', 'triggers: one is disabled');
sql('ALTER TABLE idem.scope ENABLE TRIGGER ALL');
like(health('triggers', column => 'detail'), qr/idem\.scope/, 'triggers: enabled again, but not for a subscription');
follow_hint('triggers');
is(health('triggers'), 'ok', 'triggers: cured');
sql('DROP TRIGGER announce_change ON idem.secret');
is(health('triggers'), 'warn', 'triggers: one is gone');
follow_hint('triggers');
is(health('triggers'), 'ok', 'triggers: cured');

# tests --------------------------------------------------------------------------------------------

# Wherever the setting is made, and whatever this session has. The hint names the place.
for my $where ('SYSTEM', 'DATABASE postgres', 'ROLE stranger', 'ROLE stranger IN DATABASE postgres')
{
	my $setting = 'idem_test.crash_rate';
	sql("LOAD 'idem_test'; ALTER $where SET $setting = 0.25");
	$node->reload;
	health_becomes('tests', 'warn', "tests: by ALTER $where");
	like(health('tests', column => 'detail'), qr/^The setting \Q$setting\E is 0\.25:/, 'tests: the setting');
	like(hint('tests'), qr/ALTER $where RESET \Q$setting\E/, 'tests: the hint');
	sql("LOAD 'idem_test'; ALTER $where RESET $setting");
	$node->reload;
	health_becomes('tests', 'ok', 'tests: cured');
}
sql('ALTER ROLE stranger SET idem_test.duplicate_rate = 0.0');
is(health('tests'), 'ok', 'tests: none at the rate 0');
sql('ALTER ROLE stranger RESET idem_test.duplicate_rate; CREATE DATABASE another;
	ALTER DATABASE another SET idem_test.duplicate_rate = 1');
is(health('tests'), 'ok', 'tests: not in another database');

# functions ----------------------------------------------------------------------------------------

sql(<<'SQL');
CREATE SCHEMA "my app";
CREATE FUNCTION "my app".looks(key text) RETURNS text STABLE LANGUAGE sql AS $$ SELECT state
  FROM idem.lookup('payments', key) $$;
CREATE FUNCTION "my app".pays(key text) RETURNS text VOLATILE LANGUAGE sql AS $$ SELECT token
  FROM idem.claim('payments', key) $$;
SQL
is(health('functions'), 'ok', 'functions: one may look, and a VOLATILE one claim');
sql('ALTER FUNCTION "my app".pays(text) STABLE');
like(health('functions', column => 'status, detail'), qr/^warn\|Function "my app"\.pays\(text\) is declared STABLE,/,
	'functions: not a STABLE one');
follow_hint('functions');
is(health('functions'), 'ok', 'functions: cured');
sql(<<'SQL');
CREATE FUNCTION "my app".quoted(key text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN RETURN (SELECT token FROM "idem"."try_claim" ('payments', key)); END $$;
CREATE FUNCTION "my app".parsed(key text) RETURNS boolean STABLE LANGUAGE sql BEGIN ATOMIC
  SELECT idem.once('payments', key); END;
SQL
is(health('functions', column => 'count(*)'), 2, 'functions: however it is written');
my @writers = split /\n/, sql(q{SELECT DISTINCT proname FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace
  WHERE nspname = 'idem' AND provolatile = 'v'
  AND proname !~ ('scope|secret|purge|free|stats|health|findings|report|survey|claims$|open|current_key|new_key|' ||
    'child_key|lookup|backoff|require_claim|announce|preloaded|identity|record_table|use_records')});
for my $writer (@writers)
{
	sql("CREATE FUNCTION writing() RETURNS void STABLE LANGUAGE plpgsql AS 'BEGIN PERFORM idem.$writer(); END'");
	like(health('functions', column => q{string_agg(detail, ' ')}), qr/Function \S*writing\(\)/,
		"functions: one that calls idem.$writer()");
	sql('DROP FUNCTION writing');
}
is(scalar(@writers), 19, 'functions: each that writes');
# Any role may create a function of any length.
sql(q{SET check_function_bodies = off; DO $do$ BEGIN EXECUTE format('CREATE FUNCTION long() RETURNS void STABLE
  LANGUAGE plpgsql AS %L', 'idem.claim() ' || repeat('/*x', 1000000) || E'\n--'); END $do$});
like(sql(q{SET statement_timeout = '60 s'; SELECT string_agg(detail, ' ') FROM idem.health()}), qr/n \S*long\(\)/,
	'functions: one with a million comments that do not end');
follow_hint('functions');
is(health('functions'), 'ok', 'functions: cured');

# transactions -------------------------------------------------------------------------------------

my $session = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $session->query('SELECT pg_backend_pid()');
$session->query_safe(claim_open('held'));
is(health('transactions'), 'ok', 'transactions: a key is held, but not for long');
is(health('transactions', held => '0'), 'warn', 'transactions: for long');
is(health('transactions', held => '178000000 years'), 'ok', 'transactions: not for as long as an interval may be');
is(health('transactions', held => '-178000000 years'), 'warn', 'transactions: for longer than a negative interval');
like(health('transactions', held => '0', column => 'detail'), qr/^Process $pid has held a key/, 'by whom');
my ($end) = hint('transactions', held => '0') =~ /(SELECT pg_terminate_backend\(pid\) .*)$/;
sql($end);
health_becomes('transactions', 'ok', 'transactions: cured', '0');
eval { $session->quit };
$session = $node->background_psql('postgres');
$session->query_safe(claim_open('prepared'));
$session->query_safe("SELECT idem.complete(:'token')");
$session->query_safe("PREPARE TRANSACTION 'it''s mine'");
$session->quit;
is(health('transactions'), 'ok', 'transactions: one is prepared, but not for long');
$node->restart;
is(health('transactions', held => '0'), 'warn', 'transactions: for long, even over a restart');
my ($commit) = hint('transactions', held => '0') =~ /(COMMIT PREPARED .*) or ROLLBACK PREPARED/;
sql($commit);
is(health('transactions', held => '0'), 'ok', 'transactions: cured');
is(effects($node, 'prepared'), 1, 'and the hint was to commit');
sql("SELECT pg_advisory_lock(1, 2)");
sql("BEGIN; SELECT pg_advisory_xact_lock(1);
	DO \$\$ BEGIN ASSERT (SELECT status = 'ok' FROM idem.health('0') WHERE check_name = 'transactions'); END \$\$");
pass('transactions: other advisory locks do not count');

# A lock on a table of idem stops every call, but not health().
sql('CREATE TABLE ordinary (); SELECT idem.create_record_table($$other$$)');
for my $table ('idem.record', 'idem.scope', 'idem.watermark', 'other')
{
	$session = $node->background_psql('postgres');
	$pid = $session->query('SELECT pg_backend_pid()');
	$session->query_safe("BEGIN; LOCK TABLE $table, ordinary");
	my $name = $table =~ s/^other/public.other/r;
	is( sql("SELECT check_name, status, detail FROM idem.health()"),
		'transactions|fail|Nothing could be checked: a table of idem is locked, and calls wait as well '
		  . "($name by process $pid).",
		"transactions: $table is locked");
	my ($look) = sql('SELECT hint FROM idem.health()') =~ /: (SELECT .*)/;
	like(sql($look), qr/^$pid\|\{\}\|idle in transaction\|/, 'and the hint shows by what');
	$session->quit;
}
$session = $node->background_psql('postgres');
$session->query_safe(claim_open('in the way'));
my $vacuum = waiter($node, 'Lock', 'VACUUM FULL idem.record');
like(sql('SELECT detail FROM idem.health()'), qr/\(idem\.record, for which waits process $vacuum->{pid}\)\.$/,
	'transactions: a VACUUM FULL waits, and all wait for it');
my ($both) = sql('SELECT hint FROM idem.health()') =~ /: (SELECT .*)/;
like(sql($both), qr/\|idle in transaction\|/, 'and the hint shows for what');
$session->quit;
$vacuum->query('SELECT 1');
$vacuum->quit;
is(health('transactions'), 'ok', 'transactions: cured');
my $prepared = qr/^Finish the prepared transaction .*: (SELECT \* FROM pg_prepared_xacts .*)/;
sql(q{BEGIN; LOCK TABLE idem.record; PREPARE TRANSACTION 'locks'});
like(sql(sql('SELECT hint FROM idem.health()') =~ $prepared ? $1 : 'SELECT'), qr/\|locks\|/,
	'transactions: a prepared transaction has the lock');
sql(q{ROLLBACK PREPARED 'locks'; BEGIN; LOCK TABLE idem.record IN SHARE MODE; PREPARE TRANSACTION 'in the way'});
$vacuum = waiter($node, 'Lock', 'VACUUM FULL idem.record');
like(sql('SELECT hint FROM idem.health()'), $prepared, 'transactions: or what has it waits for one');
sql(q{ROLLBACK PREPARED 'in the way'});
$vacuum->query('SELECT 1');
$vacuum->quit;
is(health('transactions'), 'ok', 'transactions: cured');
sql('DROP TABLE ordinary, other');

for my $table ('record', managed_edition() ? () : 'purge_progress')
{
	sql("ALTER TABLE idem.$table RENAME TO renamed");
	my $missing = $table eq 'record' ? 'relation "idem.record" does not exist'
		: qq{extension "idem" lacks its table "$table"};
	is(sql('SELECT check_name, status, detail FROM idem.health()'),
		"record tables|fail|Nothing could be checked, and calls fail: $missing.", "record tables: $table was renamed");
	sql("ALTER TABLE idem.renamed RENAME TO $table");
	is(health('record tables'), 'ok', 'record tables: cured');
}

# Another role may then use the name, and would give the answers.
unless (managed_edition())
{
	sql('CREATE ROLE squatter; GRANT CREATE ON DATABASE postgres TO squatter; ALTER SCHEMA idem RENAME TO renamed;
		SET ROLE squatter; CREATE SCHEMA idem; CREATE TABLE idem.scope (id integer PRIMARY KEY, name text)');
	my $refusal = '';
	$node->psql('postgres', q{SELECT renamed.once('payments', 'renamed')}, stderr => \$refusal);
	like($refusal, qr/ERROR:  extension "idem" lacks its table "scope"$/m,
		'calls do not read the tables of another role');
	sql('DROP SCHEMA idem CASCADE; ALTER SCHEMA renamed RENAME TO idem; DROP OWNED BY squatter; DROP ROLE squatter');
	is(health('record tables'), 'ok', 'record tables: the schema has its name again');
	my $dumped = q{SELECT e::regclass, c FROM pg_extension, unnest(extconfig, extcondition) u (e, c)
		WHERE extname = 'idem' ORDER BY 1};
	my $before = sql($dumped);
	sql('ALTER EXTENSION idem DROP TABLE idem.record');
	like(health('record tables', column => 'detail'), qr/calls fail: extension "idem" lacks its table "record"/,
		'record tables: one that was dropped from the extension is not trusted');
	sql('ALTER EXTENSION idem ADD TABLE idem.record');
	is(health('record tables', column => 'status, detail'), 'fail|A dump does not contain the rows of idem.record.',
		'record tables: added again, it would be missing from dumps');
	follow_hint('record tables');
	is(health('record tables'), 'ok', 'record tables: cured');
	is(sql($dumped), $before, 'record tables: dumps are as before');
}

# weak keys ----------------------------------------------------------------------------------------

sql(q(SELECT pay('1767225600', '{"amount": 1}')));
is(health('weak keys', column => 'scope, status'), 'payments|warn', 'weak keys: one is stored');
sql("SELECT idem.alter_scope('payments', weak_keys => 'reject')");
is(health('weak keys'), 'ok', 'weak keys: cured, as new ones are rejected');

# autovacuum, wraparound ---------------------------------------------------------------------------

for my $setting ('autovacuum', 'track_counts')
{
	sql("ALTER SYSTEM SET $setting = off");
	$node->reload;
	health_becomes('autovacuum', 'fail', "autovacuum: $setting is off");
	follow_hint('autovacuum');
	health_becomes('autovacuum', 'ok', 'autovacuum: cured');
}
for my $option ('record SET (autovacuum_enabled', 'record SET (toast.autovacuum_enabled',
	'watermark SET (autovacuum_enabled')
{
	sql("ALTER TABLE idem.$option = off)");
	is(health('autovacuum'), 'fail', "autovacuum: $option = off)");
	follow_hint('autovacuum');
	is(health('autovacuum'), 'ok', 'autovacuum: cured');
}

# The age that the catalog says, not that of the rows: to use up so many transactions takes too long.
sub age_record_table
{
	my ($age) = @_;
	sql("UPDATE pg_class SET relfrozenxid = ((txid_current() + 4294967296 - $age) % 4294967296)::text::xid
		WHERE oid = 'idem.record'::regclass");
	return;
}
age_record_table(290_000_000);
is(health('wraparound'), 'ok', 'wraparound: autovacuum is about to come');
age_record_table(310_000_000);
is(health('wraparound'), 'warn', 'wraparound: autovacuum should have come');
age_record_table(1_700_000_000);
is(health('wraparound'), 'fail', 'wraparound: it never comes');
follow_hint('wraparound');
is(health('wraparound'), 'ok', 'wraparound: cured');
sql('ALTER SYSTEM SET autovacuum_freeze_max_age = 1500000000');
$node->restart;
age_record_table(1_500_000_000);
is(health('wraparound'), 'ok', 'wraparound: autovacuum comes late');
age_record_table(1_700_000_000);
is(health('wraparound'), 'fail', 'wraparound: too late');
follow_hint('wraparound');
sql('ALTER SYSTEM RESET autovacuum_freeze_max_age');
$node->restart;

# indexes ------------------------------------------------------------------------------------------

sql(q(SELECT pay('order-abc', '{"amount": 1}')));
$node->psql('postgres', 'CREATE UNIQUE INDEX CONCURRENTLY broken ON idem.record (scope)');
is(health('indexes'), 'warn', 'indexes: an invalid one is left behind');
my ($drop) = hint('indexes') =~ /(DROP INDEX .*)/;
sql($drop);
is(health('indexes'), 'ok', 'indexes: cured');
sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idem.record_pkey'::regclass");
is(health('indexes'), 'fail', 'indexes: the primary key is invalid');
follow_hint('indexes');
is(health('indexes'), 'ok', 'indexes: cured');
for my $table ('record', 'watermark')
{
	sql("ALTER TABLE idem.$table DROP CONSTRAINT ${table}_pkey");
	is(health('indexes'), 'fail', "indexes: idem.$table has no primary key");
	follow_hint('indexes');
	is(health('indexes'), 'ok', 'indexes: cured');
	sql("ALTER TABLE idem.$table DROP CONSTRAINT ${table}_pkey, ADD PRIMARY KEY (digest) INCLUDE (scope)");
	is(health('indexes'), 'ok', "indexes: the primary key of idem.$table has a further column");
	for my $key ('(digest) DEFERRABLE', '(scope, digest)')
	{
		sql("ALTER TABLE idem.$table DROP CONSTRAINT ${table}_pkey, ADD PRIMARY KEY $key");
		is(health('indexes'), 'fail', "indexes: the primary key of idem.$table is $key");
		follow_hint('indexes');
		is(health('indexes'), 'ok', 'indexes: cured');
	}
}
for ([ 'CREATE UNIQUE INDEX one ON idem.record (status)', 'a unique one' ],
	[ 'ALTER TABLE idem.watermark ADD CONSTRAINT one UNIQUE (tenant, seq)', 'a unique constraint' ],
	[ 'ALTER TABLE idem.record ADD EXCLUDE USING hash (created WITH =)', 'an exclusion' ])
{
	sql($_->[0]);
	is(health('indexes'), 'warn', "indexes: $_->[1] refuses rows");
	follow_hint('indexes');
	is(health('indexes'), 'ok', 'indexes: cured');
}
sql('DROP INDEX idem.record_unfinished');
sql("CREATE INDEX record_finished ON idem.record (scope) WHERE state = 'c'");
is(health('indexes'), 'warn', 'indexes: the index of unfinished operations is missing');
follow_hint('indexes');
is(health('indexes'), 'ok', 'indexes: cured');
sql('ALTER INDEX idem.record_unfinished RENAME TO renamed');
is(health('indexes'), 'ok', 'indexes: it may have another name');
sql('DROP INDEX idem.record_finished');
is(sql(q(SELECT pay('order-abc', '{"amount": 1}'))), sql(q(SELECT response FROM idem.lookup('payments', 'order-abc'))),
	'and claims work');

# secrets ------------------------------------------------------------------------------------------

sql('CREATE TABLE dump AS SELECT * FROM idem.secret; DELETE FROM idem.secret');
is(health('secrets'), 'fail', 'secrets: they are gone');
like(hint('secrets'), qr/Restore the rows of idem\.secret/, 'secrets: the hint says from where to restore them');
sql('INSERT INTO idem.secret SELECT * FROM dump');
is(health('secrets'), 'ok', 'secrets: cured');

# owners -------------------------------------------------------------------------------------------

sql("CREATE ROLE leaver; SELECT idem.create_scope('left', owner => 'leaver'); DROP ROLE leaver");
is(health('owners', column => 'scope, status'), 'left|fail', 'owners: one is gone');
sql("SELECT idem.alter_scope('left', owner => 'watcher')");
is(health('owners'), 'ok', 'owners: cured');
$session = $node->background_psql('postgres');
$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
sql("SELECT idem.create_scope('newer')");
is($session->query_safe("SELECT string_agg(check_name, ',') FROM idem.health() WHERE status <> 'ok'
	AND check_name <> 'worker'"), '',
	'owners: a scope that is newer than the snapshot is well');
$session->query_safe('COMMIT');
$session->quit;
sql("SELECT idem.drop_scope('newer')");

# statistics ---------------------------------------------------------------------------------------

sql('ALTER SYSTEM SET idem.counted_scopes = 1');
$node->restart;
is(health('statistics', column => 'count(*), string_agg(DISTINCT status, \'\')'), '1|warn',
	'statistics: a scope has no place');
my ($more) = hint('statistics') =~ /(ALTER SYSTEM SET idem.counted_scopes = )/;
sql($more . 100);
$node->restart;
is(health('statistics'), 'ok', 'statistics: cured');

# record tables ------------------------------------------------------------------------------------

# The other checks look at each record table and name it.
sql("CREATE SCHEMA eu; SELECT idem.create_record_table('eu.records', 'region', 'text')");
is(sql("SELECT count(*) FROM idem.health() WHERE status <> 'ok' AND check_name <> 'worker'"), 0,
	'record tables: a new one is in order');
is(sql("SELECT count(*) FROM idem.health()"), scalar(@checks), 'record tables: one row per check');
sql('ALTER TABLE eu.records SET (autovacuum_enabled = off)');
like(health('autovacuum', column => 'status, detail'), qr/^fail\|.* for eu\.records\.$/,
	'autovacuum: off for another record table');
follow_hint('autovacuum');
is(health('autovacuum'), 'ok', 'autovacuum: cured');
sql("INSERT INTO eu.records (region, digest, created, expires, scope, state, tenant, key)
  SELECT 'eu', gen_random_uuid(), now() - interval '3 days', now() - interval '2 days', id, 'c', '', 'order-' || i
  FROM idem.scope, generate_series(1, 11000) i WHERE name = 'payments'");
is(sql($purge), 11000, 'purge: the hint purges them');
health_becomes('vacuum', 'warn', 'vacuum: another record table has many dead rows');
like(health('vacuum', column => 'detail'), qr/^eu\.records has \d+ dead rows/, 'vacuum: its name');
follow_hint('vacuum');
health_becomes('vacuum', 'ok', 'vacuum: cured');
like(health('vacuum', column => 'detail'), qr/ dead rows; .* in tables, .* in indexes\.$/, 'vacuum: the sizes of all');

# One that is not used is found neither by claims nor by the purge, so it must be told.
for ([ 'ALTER TABLE eu.records OWNER TO stranger', qr/owned by role "stranger"/,
		'ALTER TABLE eu.records OWNER TO CURRENT_USER' ],
	[ 'GRANT UPDATE (response) ON eu.records TO stranger', qr/may be changed by role "stranger"/ ],
	[ 'GRANT TRUNCATE ON eu.records TO PUBLIC', qr/may be changed by PUBLIC/ ],
	[ 'ALTER TABLE eu.records SET UNLOGGED', qr/temporary or unlogged/ ],
	[ 'DROP INDEX eu.records_scope_idx', qr/no index of unfinished operations/ ],
	[ 'ALTER TABLE eu.records ADD note text', qr/column "note" is not idem's/,
		'ALTER TABLE eu.records DROP note' ],
	[ 'ALTER TABLE eu.records ADD CHECK (region <> key)', qr/constraint "records_check"/ ],
	[ 'CREATE TRIGGER t BEFORE INSERT ON eu.records FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()',
		qr/trigger "t"/ ],
	[ 'ALTER TABLE eu.records ENABLE ROW LEVEL SECURITY', qr/row security/,
		'ALTER TABLE eu.records DISABLE ROW LEVEL SECURITY' ],
	[ 'CREATE TABLE heir () INHERITS (eu.records)', qr/Another table inherits from it/, 'DROP TABLE heir' ],
	[ 'ALTER TABLE eu.records DROP CONSTRAINT records_pkey', qr/no primary key/ ],
	[ 'ALTER TABLE eu.records DROP CONSTRAINT records_pkey, ADD PRIMARY KEY (digest, scope)', qr/no primary key/ ])
{
	my ($spoil, $detail, $cure) = @$_;
	sql($spoil);
	like(health('record tables', column => 'status, detail'), qr/^warn\|eu\.records has a column .* $detail/,
		"record tables: $spoil");
	is(sql("SELECT count(*) FROM idem.storage"), 1, 'record tables: and it is not used');
	like(hint('record tables'), qr/^If its tenant is moving .* If not: Its owner can have added .* Then: ALTER/,
		'record tables: a tenant that moves, and what its owner has added') if $spoil =~ /OWNER/;
	$cure ? sql($cure) : follow_hint('record tables');
	is(health('record tables'), 'ok', 'record tables: cured');
}
sql('CREATE TABLE copied AS SELECT digest FROM eu.records');
like(health('record tables', column => 'detail'), qr/^public\.copied has .* fewer columns/,
	'record tables: a copy of a part');
my ($unmark) = hint('record tables') =~ /: (ALTER TABLE .*)\.$/;
sql($unmark);
is(health('record tables'), 'ok', 'record tables: cured');
sql('CREATE VIEW seen AS SELECT * FROM eu.records; CREATE TABLE months (LIKE eu.records) PARTITION BY LIST (region)');
sql('BEGIN; CREATE TEMP TABLE mine AS SELECT * FROM eu.records;
	DO $$ BEGIN ASSERT (SELECT bool_and(status = \'ok\') FROM idem.health() WHERE check_name = \'record tables\');
	END $$');
is(health('record tables'), 'ok', 'record tables: views, partitioned and temporary tables do not count');
sql('DROP TABLE months, copied; DROP SCHEMA eu CASCADE');

# Those of idem itself.
for my $table ('scope', 'dropped_scope', 'secret')
{
	sql("ALTER TABLE idem.$table SET UNLOGGED");
	like(health('record tables', column => 'status, detail'), qr/^fail\|idem\.$table is unlogged/,
		"record tables: idem.$table is unlogged");
	follow_hint('record tables');
	is(health('record tables'), 'ok', 'record tables: cured');
	sql("ALTER TABLE idem.$table ADD COLUMN note text");
	is( health('record tables', column => 'status, detail'),
		qq{fail|idem.$table: Its column "note" is not idem's. A dump could not be restored.},
		'record tables: where a dump is restored, the table has no such column');
	sql(hint('record tables') =~ s/.*Then: //r);
	is(health('record tables'), 'ok', 'record tables: cured');
}
sql('CREATE TABLE heir () INHERITS (idem.record)');
like(health('record tables', column => 'status, detail'), qr/^fail\|idem\.record: Another table inherits/,
	'record tables: rows may be elsewhere');
sql('DROP TABLE heir');
sql('CREATE TABLE parent (LIKE idem.record) PARTITION BY RANGE (created);
	ALTER TABLE parent ATTACH PARTITION idem.record FOR VALUES FROM (MINVALUE) TO (MAXVALUE)');
like(health('record tables', column => 'status, detail'), qr/^fail\|idem\.record: It is a partition/,
	'record tables: idem.record can be changed through another table');
follow_hint('record tables');
is(health('record tables'), 'ok', 'record tables: cured');
sql('DROP TABLE parent');

# Whose owner is another role, which can replace it, or change what is in it; and what such a role may have left.
my @tables = map { "TABLE idem.$_" } qw(dropped_scope purge_progress record scope secret watermark);
sql("ALTER $_ OWNER TO stranger") for @tables, 'SCHEMA idem_internal', 'SCHEMA idem', 'VIEW idem.scopes',
  'FUNCTION idem.health(interval)';
my $is = 'is owned by role "stranger", and idem by role "' . sql('SELECT current_user') . '".';
is(health('record tables', column => 'status, detail'),
	join("\n", map { s/TABLE (.*)/fail|$1: Table $1 $is/r } @tables),
	'record tables: their owner is another role');
unlike(hint('record tables'), qr/^ALTER/m, 'record tables: whose rules may be that of the role');
sql(s/.* Then: //r) for split /\n/, hint('record tables');
is(health('record tables'), 'ok', 'record tables: cured');
my @others = ('Schema idem', 'Schema idem_internal', 'View idem.scopes', 'Function idem.health(interval)');
like(health('schema', column => 'detail'), qr/: \Q$_ $is\E$/m, "schema: $_") for @others;
like(health('schema', column => 'hint'), qr/^Its owner can have changed it, .* Then: ALTER $_ idem\./m,
	'schema: whose code may be that of the role')
  for qw(VIEW FUNCTION);
sql(s/.* Then: //r) for split /\n/, hint('schema');
is(health('schema'), 'ok', 'schema: cured');
# A superuser that installed idem is one no longer, or a script gives all functions to a role.
sql(q{SELECT format('ALTER FUNCTION %s OWNER TO stranger', objid::regprocedure) FROM pg_depend
	WHERE classid = 'pg_proc'::regclass AND deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension
	WHERE extname = 'idem')\gexec});
like(health('schema', column => 'status, detail'),
	qr/^fail\|The functions of idem are owned by role "stranger", which is not a superuser/,
	'schema: the functions are owned by a role that is no superuser');
sql(hint('schema') =~ s/.*: //r);
is(health('schema'), 'ok', 'schema: cured');
sql('ALTER FUNCTION idem.once(text, anycompatible, jsonb, text) SECURITY DEFINER');
is(health('functions', column => 'status, detail'),
	'fail|idem.once(text,anycompatible,jsonb,text) is SECURITY DEFINER: it takes its owner for its caller.',
	'functions: one would let every role use every scope');
follow_hint('functions');
is(health('functions'), 'ok', 'functions: cured');
sql('ALTER FUNCTION idem.once(text, anycompatible, jsonb, text) STABLE');
like(health('functions', column => 'status, detail'), qr/^warn\|.*idem\.once\(.* is declared STABLE, but writes: /,
	'functions: the planner may call one of idem itself');
follow_hint('functions');
is(health('functions'), 'ok', 'functions: cured');

# Grants that let a role do what only idem may do. The hints take all of it back.
sql('CREATE ROLE granted; GRANT ALL ON ALL TABLES IN SCHEMA idem, idem_internal TO granted;
	GRANT ALL ON ALL SEQUENCES IN SCHEMA idem TO granted; GRANT UPDATE (owner) ON idem.scope TO PUBLIC');
my $may = 'Role granted may change it, and so';
is(health('record tables', column => 'status, detail'), <<"OUT" =~ s/\n\z//r, 'record tables: a role may change them');
fail|idem.dropped_scope: $may let operations run again.
fail|idem.purge_progress: $may let operations run again.
fail|idem.record: $may write answers that idem then returns.
fail|idem.scope: Every role may change it, and so make itself the owner of a scope.
fail|idem.scope: $may make itself the owner of a scope.
fail|idem.scope_id: Role granted may set it, and so give a new scope the records of an old one.
fail|idem.secret: $may let operations run again.
warn|idem.secret: Role granted may read the secrets, with which it can find out keys and requests.
fail|idem.watermark: $may let operations run again.
fail|idem_internal.stored: $may let operations run again.
OUT
sql($_ =~ s/^If .*?: //r) for split /\n/, hint('record tables');
is(health('record tables'), 'ok', 'record tables: cured');
is( sql("SELECT string_agg(relname || ' ' || p, ', ' ORDER BY relname, p)
		FROM pg_class c, unnest('{INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p
		WHERE (relnamespace = 'idem'::regnamespace AND relkind = 'r' OR relname = 'stored')
			AND has_table_privilege('granted', c.oid, p)"),
	'', 'and the role may change nothing');
sql('GRANT TRIGGER ON idem.scope TO granted');
like(health('record tables', column => 'status, detail'),
	qr/^fail\|idem\.scope: Role granted may add triggers or foreign keys to it, whose functions run with the rights of/,
	'record tables: a role may add triggers');
follow_hint('record tables');
sql('GRANT SELECT ON idem.secret TO granted WITH GRANT OPTION;
	SET ROLE granted; GRANT SELECT ON idem.secret TO watcher');
sql($_ =~ s/^If .*?: //r) for split /\n/, hint('record tables');
is(health('record tables'), 'ok', 'record tables: cured, with what the role has granted');
sql('DROP OWNED BY granted; DROP ROLE granted');

# As after a restore in which one role was missing, so that the COPY of idem.scope failed.
sql('CREATE TABLE scopes_of_the_dump AS SELECT * FROM idem.scope; CREATE TABLE ids AS TABLE idem.dropped_scope;
	DELETE FROM idem.scope; DELETE FROM idem.dropped_scope');
like(health('record tables', column => 'status, detail'), qr/^fail\|There are records whose scope is missing/,
	'record tables: no scope was restored');
my $refused = '';
$node->psql('postgres', "SELECT idem.create_scope('payments')", stderr => \$refused);
like($refused, qr/the scopes of the records in this database are missing/, 'and none is created instead');
sql("INSERT INTO idem.scope SELECT * FROM scopes_of_the_dump WHERE name <> 'payments'");
is(health('record tables'), 'fail', 'record tables: one scope was not restored');
sql("INSERT INTO idem.scope SELECT * FROM scopes_of_the_dump WHERE name = 'payments';
	INSERT INTO idem.dropped_scope TABLE ids; DROP TABLE scopes_of_the_dump, ids");
is(health('record tables'), 'ok', 'record tables: cured');
sql("SELECT idem.create_scope('short_lived'); SELECT idem.once('short_lived', 'a');
	SELECT idem.drop_scope('short_lived', force => true)");
is(health('record tables'), 'ok', 'record tables: a scope that was dropped is not missing');

# schema -------------------------------------------------------------------------------------------

sql('CREATE ROLE "odd one"; CREATE ROLE boss SUPERUSER; GRANT CREATE ON SCHEMA idem TO "odd one", PUBLIC, boss');
is(health('schema', column => 'status, detail'),
	"warn|Every role can create functions in schema idem, which other roles may then call with their own privileges.\n"
	  . 'warn|Role "odd one" can create functions in schema idem, which other roles may then call with their own '
	  . 'privileges.',
	'schema: roles can create functions in idem\'s schema; a superuser always can');
sql($_) for split /\n/, hint('schema');
is(health('schema'), 'ok', 'schema: cured');

# limits, worker -----------------------------------------------------------------------------------

sql("SELECT idem.alter_scope('payments', claims_per_minute => 1000)");
is(health('limits'), 'ok', 'limits: kept');
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
is(health('limits', column => 'scope, status'), "payments|warn", 'limits: not kept without preload');
is(health('worker'), 'warn', 'worker: not without preload');
is(health('statistics'), 'ok', 'statistics: none are expected');
my @unlimit = hint('limits') =~ /(SELECT idem\.alter_scope\(.*\))/g;
is(@unlimit, 1, 'limits: a hint');
sql($_) for @unlimit;
is(health('limits'), 'ok', 'limits: cured without one');
my ($setting) = hint('worker') =~ /Add idem to (shared_preload_libraries) and restart/;
$node->append_conf('postgresql.conf', "$setting = 'idem'");
$node->restart;
health_becomes('worker', 'warn', 'worker: it runs again, but purging is off');
follow_hint('worker');
health_becomes('worker', 'ok', 'worker: cured');

# As a tool for replication that is no subscription writes it.
sql(q{SELECT idem.create_scope('copied'), idem.once('payments', 'payment-4711'); SELECT count(*) FROM idem.stats});
my $copy = <<'SQL';
INSERT INTO idem.record
SELECT (jsonb_populate_record(r, jsonb_build_object('scope', s.id, 'digest', gen_random_uuid(), 'created', now()))).*
  FROM idem.record r, idem.scope s WHERE r.key = 'payment-4711' AND s.name = 'copied'
SQL
sql($copy);
is(health('worker', column => 'scope, status'), 'copied|warn', 'worker: a record that no call on this server has made');
sql(hint('worker') =~ /(SELECT idem\.stats_reset\('copied'\))/);
is(health('worker'), 'ok', 'worker: it came before the reset');
sql($copy);
is(health('worker'), 'warn', 'worker: a later one');
is(sql("SELECT idem.once('copied', 'payment-4712')"), 't', 'a switch-over');
is(health('worker'), 'ok', 'worker: the clients use this server');
sql(q{SELECT idem.stats_reset('copied')});
sql($copy =~ s/now\(\)/now() + interval '10 minutes'/r);
is(health('worker'), 'ok', 'worker: a record that was made before the clock stepped back');
sql(q{SELECT idem.drop_scope('copied', force => true)});

$node->append_conf('postgresql.conf', 'max_worker_processes = 0');
$node->restart;
is(health('worker'), 'fail', 'worker: no launcher');
like(hint('worker'), qr/raise max_worker_processes and restart/, 'worker: the hint names the setting');
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;
health_becomes('worker', 'ok', 'worker: cured');

# The query for other monitoring systems must not call a server healthy that its role cannot judge.
my ($query) = slurp_file('docs/monitoring.md') =~ /.*^```sql\n(.*?)^```$/ms;
sql('CREATE ROLE visitor LOGIN');
my @levels = map { $node->safe_psql('postgres', $query, connstr => $node->connstr('postgres') . " user=$_") }
  qw(watcher visitor);
is("@levels", '0| ', 'as a member of pg_monitor, the query of the page has a level, and as another role no row');

is( sql("SELECT string_agg(check_name, ',') FROM idem.health() WHERE status <> 'ok'"), '', 'in the end, no problems');
log_is_clean($node);
$node->stop;
done_testing();
