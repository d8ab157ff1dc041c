# Every finding of idem.health() is provoked, and its hint followed: statements as they are printed,
# words as they say. The finding is then gone, no live key is lost, and no call is refused that was
# not refused before. t/health.pl has the thresholds of the checks.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Neither the worker nor autovacuum repairs what is broken here, and a standby reports its queries.
my $node = idem_node('hints', init => { allows_streaming => 1 }, conf => <<'CONF');
shared_preload_libraries = 'idem'
idem.purge_naptime = 0
autovacuum = on
autovacuum_naptime = '1d'
wal_level = replica
CONF

sub sql { return $node->safe_psql('postgres', shift); }

install_lapse($node);
sql(<<'SQL');
CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
CREATE ROLE app;

-- What callers send to a scope: the texts of those calls that are not refused. Each is undone.
CREATE FUNCTION calls(scope text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE arguments text; outcome text; n integer := 0;
BEGIN
  FOREACH arguments IN ARRAY ARRAY['%L', '%L, tenant => ''north''', '%L, ''{"amount": 1}''',
      '%L, ttl => ''1 second''', '%L, ttl => ''10 years''', '''4711''', '''order-1'', tenant => ''''',
      '%L, lease => ''1 minute'''] LOOP
    n := n + 1;
    BEGIN
      EXECUTE format('SELECT outcome FROM idem.try_claim($1, ' || arguments || ')', 'probe-' || n)
        INTO outcome USING scope;
      RAISE SQLSTATE 'ZZ000';
    EXCEPTION
      WHEN SQLSTATE 'ZZ000' THEN
        IF outcome IN ('claimed', 'completed') THEN
          RETURN NEXT concat_ws(': ', scope, arguments, outcome);
        END IF;
      WHEN OTHERS THEN NULL;
    END;
  END LOOP;
END $$;

-- What fits better than PostgreSQL's own, in a schema where every role may create.
CREATE FUNCTION planted(timestamptz, text) RETURNS timestamptz LANGUAGE sql AS 'SELECT to_timestamp(1 / 0)';
CREATE OPERATOR + (leftarg = timestamptz, rightarg = text, function = planted);
CREATE FUNCTION planted(text[], text) RETURNS text[] LANGUAGE sql AS 'SELECT $1 || (1 / 0)::text';
CREATE AGGREGATE array_agg(text) (sfunc = planted, stype = text[]);
SQL

# The rows of a check, or a column of them, as a role that may monitor idem but not use its scopes.
sub health
{
	my ($finding, $column) = @_;
	my $held = $finding->{held} // '5 minutes';
	return $node->safe_psql('postgres',
		"SELECT $column FROM idem.health('$held') WHERE check_name = '$finding->{check}'",
		connstr => $node->connstr('postgres') . ' user=watcher');
}

# The statements in a hint. They stand at its beginning or after a colon or semicolon.
sub statements
{
	my ($hint) = @_;
	my $verb = qr/SELECT|ALTER|CREATE|DROP|REVOKE|VACUUM|REINDEX|COMMIT|DO/;
	my @statements;
	push @statements, $1
	  while $hint =~ /(?:^|: |; )(DO '.*?'|$verb\b(?:(?!\. [A-Z]|; $verb| or ROLLBACK).)+)/g;
	s/\.$// for @statements;
	return @statements;
}

# The live keys, with what a retry gets of those that are finished.
sub keys_of
{
	return { map { $_ => 1 } split /\n/, sql(<<'SQL') };
SELECT scope, tenant, key FROM idem.records
UNION ALL
SELECT scope, tenant, key || ' is answered at ' || completed_at FROM idem.records
 WHERE state = 'completed'
SQL
}

sub accepted_calls
{
	my ($finding) = @_;
	my $calls = sql('SELECT c FROM idem.scope s, calls(s.name) c');
	my @own = grep { sqlstate($node, "BEGIN; $_; ROLLBACK") eq '' } @{ $finding->{callers} // [] };
	return { map { $_ => 1 } (split /\n/, $calls), @own };
}

sub lost
{
	my ($before, $after) = @_;
	return join "\n", sort grep { !$after->{$_} } keys %$before;
}

sub becomes_ok
{
	my ($finding) = @_;
	my $held = $finding->{held} // '5 minutes';
	return $node->poll_query_until('postgres',
		"SELECT bool_and(status = 'ok') FROM idem.health('$held') WHERE check_name = '$finding->{check}'");
}

my %provoked;

# first: makes order. provoke: makes the finding. detail, hint: what it says. before, after: what the words of the hint
# say to do before and after its statements, in SQL or Perl. later: what they say to wait for, which
# keys need not survive. callers: calls beside those of calls(). undo: in the end.
sub follow
{
	my ($name, %finding) = @_;
	my $act = sub { my ($what) = @_; ref $what ? $what->() : defined $what ? sql($what) : undef };
	my $check = $finding{check};
	$act->($finding{first});
	is(health(\%finding, "string_agg(detail, '') FILTER (WHERE status <> 'ok')"), '', "$name: nothing before");
	$act->($finding{provoke});
	my $held = $finding{held} // '5 minutes';
	$node->poll_query_until('postgres',
		"SELECT bool_or(status <> 'ok') FROM idem.health('$held') WHERE check_name = '$check'")
	  or return fail("$name: found");
	like(health(\%finding, 'detail'), $finding{detail}, "$name: found");
	my $hint = health(\%finding, 'hint');
	like($hint, $finding{hint}, "$name: the hint") if $finding{hint};
	my @statements = map { statements($_) } split /\n/, $hint;
	my ($keys, $calls) = (keys_of(), accepted_calls(\%finding));
	$act->($finding{before});
	for my $statement (@statements)
	{
		my (undef, $out, $err) = $node->psql('postgres', $statement, on_error_stop => 0);
		unlike($err, qr/ERROR|FATAL/, "$name: $statement");
	}
	$act->($finding{after});
	is(lost($calls, accepted_calls(\%finding)), '', "$name: no call is refused that was accepted");
	is(lost($keys, keys_of()), '', "$name: no live key is lost");
	$act->($finding{later});
	ok(becomes_ok(\%finding), "$name: cured") or diag health(\%finding, 'detail || hint');
	$act->($finding{undo});
	$provoked{$check} = 1;
	return;
}

# Finished records of n keys, as old as that, which expire then.
sub records
{
	my ($scope, $n, $created, $expires) = @_;
	return <<"SQL";
SELECT count(*) FROM idem.once_each(
  '$scope', ARRAY(SELECT 'order-' || i FROM generate_series(1, $n) i));
UPDATE idem.record SET created = now() - interval '$created', expires = now() + interval '$expires'
 WHERE scope = (SELECT id FROM idem.scope WHERE name = '$scope');
SQL
}

sub expire
{
	my ($scope) = @_;
	return <<"SQL";
UPDATE idem.record SET expires = now() - interval '1 second'
 WHERE scope = (SELECT id FROM idem.scope WHERE name = '$scope');
SQL
}

my $has_library = !managed_edition();

# Scopes -------------------------------------------------------------------------------------------

sql("SELECT idem.once('payments', 'order-1')");

follow('owners',
	check => 'owners',
	provoke => "CREATE ROLE leaver; SELECT idem.create_scope('left', owner => 'leaver'); "
	  . "SELECT idem.once('left', 'first'); DROP ROLE leaver",
	detail => qr/^The role that owned scope "left" was dropped/,
	before => "SELECT idem.alter_scope('left', owner => 'app')",
	undo => "SELECT idem.drop_scope('left')");

follow('retention: a TTL shorter than retries take',
	check => 'retention',
	provoke => "SELECT idem.create_scope('short', ttl => '4 minutes', lease => '2 minutes', "
	  . "wait => '30 seconds', max_attempts => 2); SELECT idem.once('short', 'first')",
	detail => qr/^Scope "short" remembers keys for 00:04:00, but/,
	undo => "SELECT idem.drop_scope('short')");

follow('retention: calls that come too late',
	check => 'retention',
	provoke => "SELECT idem.create_scope('late', ttl => '300000 days'); "
	  . records('late', 20, '1 day', '-1 day') . records('late', 20, '1 day', '1 day'),
	detail => qr/^Since .* callers of scope "late" have come too late 20 times: 20 claims/,
	undo => "SELECT idem.drop_scope('late')") if $has_library;

# Made in April 2024, and older than the TTL.
my $stale_keys = <<'SQL';
SELECT DISTINCT outcome FROM generate_series(10, 19) i,
  idem.try_claim('aged', '018f0000-0000-7000-8000-0000000000' || i, lease => '1 hour');
SQL
if ($has_library)
{
	follow('retention: stale keys',
		check => 'retention',
		provoke => "SELECT idem.create_scope('aged', ttl => 0.75 * (now() - '2024-04-21'), "
		  . "reject_stale_keys => true); SELECT idem.once('aged', 'first'); $stale_keys",
		detail => qr/ and 10 were refused with a stale key/);
	is(sql($stale_keys), 'stale_key', 'retention: stale keys are still refused');
	sql("SELECT idem.stats_reset('aged')");
	follow('retention: a TTL too short for the retries, with stale keys',
		check => 'retention',
		provoke => "SELECT idem.alter_scope('aged', ttl => '1 second')",
		detail => qr/"aged" remembers keys for 00:00:01,/);
	is(sql($stale_keys), 'stale_key', 'retention: a longer TTL accepts no stale key');
	sql("SELECT idem.drop_scope('aged')");
}

# Their callers pass an hour, which then is the least.
my $hourly = "SELECT idem.claim('hourly', 'first', ttl => '1 hour')";
my %hourly = (
	check => 'lifetimes',
	provoke => "SELECT idem.create_scope('hourly', ttl => '7 days'); "
	  . records('hourly', 10, '0', '1 hour'),
	detail => qr/^Scope "hourly" has 10 records .* a far shorter ttl\.$/,
	callers => [$hourly],
	undo => "SELECT idem.drop_scope('hourly')");
follow('lifetimes: a short ttl by mistake', %hourly, later => expire('hourly'));
follow('lifetimes: a short ttl on purpose', %hourly,
	later => "SELECT idem.alter_scope('hourly', min_ttl => '1 hour')");
sql("SELECT idem.create_scope('archive', ttl => '10 years')");
sql(records('archive', 3, '0', '10 years'));
is(health({ check => 'lifetimes' }, 'status'), 'ok', 'lifetimes: a TTL of ten years is in order');

follow('lifetimes: a ttl of years',
	check => 'lifetimes',
	provoke => "SELECT idem.create_scope('brief'); " . records('brief', 1, '0', '731 days'),
	detail => qr/^Scope "brief" has 1 new record .*: callers pass a ttl far longer .* 24:00:00\.$/,
	later => "UPDATE idem.record SET created = created - interval '1 day'",
	undo => "SELECT idem.drop_scope('brief')");

sub two_tenants
{
	my ($scope, $one, $other) = @_;
	return "SELECT idem.create_scope('$scope'); SELECT count(*) FROM (SELECT gen_random_uuid() AS key "
	  . "FROM generate_series(1, 10)) k, LATERAL (SELECT idem.once('$scope', key, tenant => '$one'), "
	  . "idem.once('$scope', key, tenant => '$other') OFFSET 0) x";
}
my %mixed = (
	check => 'tenants',
	provoke => two_tenants('mixed', '', 'north'),
	detail => qr/^Scope "mixed" has at least 10 keys both with and without a tenant/,
	hint => qr/ID013/,
	undo => "SELECT idem.drop_scope('mixed')");
follow('tenants: some calls forget them', %mixed, later => expire('mixed'));
follow('tenants: no call may forget it', %mixed,
	later => "SELECT idem.alter_scope('mixed', tenant_required => true)");
follow('tenants: several',
	check => 'tenants',
	provoke => two_tenants('shared', 'south', 'north'),
	detail => qr/^Scope "shared" has at least 10 keys with several tenants/,
	later => expire('shared'),
	undo => "SELECT idem.drop_scope('shared')");

if ($has_library)
{
	my %sized = (
		check => 'sizing',
		provoke => "SELECT idem.create_scope('sized', ttl => '1 second'); "
		  . records('sized', 10000, '0', '1 year') . "SELECT idem.stats_reset('sized')",
		detail => qr/^Scope "sized" holds 10000 records/,
		undo => "SELECT idem.drop_scope('sized')");
	follow('sizing: a longer ttl', %sized, later => "SELECT idem.alter_scope('sized', ttl => '1 year')");
	follow('sizing: a burst', %sized, later => expire('sized'));
}

follow('weak keys',
	check => 'weak keys',
	provoke => "SELECT idem.create_scope('weak'); SELECT idem.once('weak', '1767225600')",
	detail => qr/^Scope "weak" has 1 weak key:/,
	hint => qr/ID007/,
	later => expire('weak'),
	undo => "SELECT idem.drop_scope('weak')");

# A client that has lost its worker still gets its operation finished.
follow('leases',
	check => 'leases', held => '0',
	provoke => "SELECT idem.create_scope('lapsed', max_attempts => 2); "
	  . "SELECT idem.claim('lapsed', 'lost', lease => '1 minute'); CALL lapse('lost')",
	detail => qr/^Scope "lapsed" has 1 unfinished operation whose lease/,
	after => sub {
		is(sql("SELECT attempt FROM idem.in_flight WHERE key = 'lost'"), 1, 'leases: the hint takes nothing over');
		is(sql("SELECT idem.complete(token) FROM idem.take('lapsed')"), '', 'leases: a worker does');
	},
	undo => "SELECT idem.drop_scope('lapsed')");

my %used_up = (
	check => 'attempts',
	provoke => "SELECT idem.create_scope('used up', max_attempts => 1); "
	  . "SELECT idem.claim('used up', 'lost', lease => '1 minute'); CALL lapse('lost')",
	detail => qr/^Scope "used up" has 1 operation with .* undecided, .* raises ID014 .* the first at 2\d{3}-/,
	undo => "SELECT idem.drop_scope('used up')");
follow('attempts: one more', %used_up, after => "SELECT idem.revoke('used up', 'lost')");
follow('attempts: more for all', %used_up, after => "SELECT idem.alter_scope('used up', max_attempts => 2)");
follow('attempts: forgotten in the end', %used_up, later => expire('used up'));

# Keys that operations share. t/misuse.pl has such clients.
my %constant = (check => 'constant keys', undo => "SELECT idem.drop_scope('one key')");
if ($has_library)
{
	follow('constant keys: other requests', %constant,
		provoke => "SELECT idem.create_scope('one key'); "
		  . "SELECT count(idem.try_claim('one key', 'order-1', to_jsonb(i))) "
		  . "FROM generate_series(2, 20) i, idem.once('one key', 'order-1', '1')",
		detail => qr/^Since .* "one key" have claimed 1 new keys, and sent 19 requests/);
	follow('constant keys: no request', %constant,
		provoke => "SELECT idem.create_scope('one key'); "
		  . records('one key', 1, '1 hour', '1 hour')
		  . "SELECT count(idem.once('one key', 'order-1')) FROM generate_series(1, 100)",
		detail => qr/^Since .* "one key" have claimed 1 new keys, and got 100 answers/);
}

# What is stored -----------------------------------------------------------------------------------

my %purge = (check => 'purge', undo => "SELECT idem.drop_scope('old')");
my $old = "SELECT idem.create_scope('old'); " . records('old', 5, '3 days', '-2 hours');
follow('purge: records that expired hours ago', %purge,
	provoke => $old,
	detail => qr/^\d+ expired records wait/,
	hint => qr/^If a tool copies the records from another server, purge them there\. If not, /);
follow('purge: or days ago', %purge,
	provoke => "$old UPDATE idem.record SET expires = expires - interval '2 days' "
	  . "WHERE key = 'order-1' AND expires < now()",
	detail => qr/^\d+ expired records wait/);

my $die = "SELECT idem.create_scope('dead'); " . records('dead', 11000, '1 day', '-1 hour')
  . 'SELECT idem.purge(20000);';
my %dead = (check => 'vacuum', first => 'VACUUM idem.record', undo => "SELECT idem.drop_scope('dead')");
my $order = qr/^VACUUM \(VERBOSE\) idem\.record\. If it reports dead rows that are not yet removable: .*/;
follow('vacuum', %dead,
	provoke => $die,
	detail => qr/^idem\.record has \d+ dead rows and \d+ live rows: autovacuum does not keep up\.$/);

# VACUUM cannot help while something may still see the dead rows.
my $session;

sub begin_snapshot
{
	my ($of) = @_;
	$session = $of->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');
	$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
	$session->query_safe('SELECT count(*) FROM idem.records');
	$of->poll_query_until('postgres', "SELECT xact_start < clock_timestamp() - interval '1 second' "
		  . "FROM pg_stat_activity WHERE pid = $pid") or die;
	return;
}

sub end_snapshot
{
	$session->query_safe('COMMIT');
	$session->quit;
	return;
}

follow('vacuum: a session has an old snapshot', %dead,
	held => '1 second',
	provoke => sub { begin_snapshot($node); sql($die); },
	detail => qr/ or VACUUM keeps those that process \d+, whose transaction began .*, may still see\.$/,
	hint => qr/${order}pid = \d+\. Then: VACUUM idem\.record$/,
	before => \&end_snapshot);
begin_snapshot($node);
follow('vacuum: a transaction is not to blame that has not lasted long', %dead,
	provoke => $die,
	detail => qr/ live rows: autovacuum does not keep up\.$/,
	hint => qr/^VACUUM idem\.record$/,
	before => \&end_snapshot);
follow('vacuum: a prepared transaction', %dead,
	held => '0',
	provoke => "BEGIN; INSERT INTO payment(key) VALUES ('p'); "
	  . "PREPARE TRANSACTION 'it''s old'; $die",
	detail => qr/ that prepared transaction "it's old" may still see\.$/,
	before => "ROLLBACK PREPARED 'it''s old'");

# The age that the catalog says: to use up so many transactions takes too long.
follow('wraparound',
	check => 'wraparound',
	provoke => 'UPDATE pg_class SET relfrozenxid = '
	  . '((txid_current() + 4294967296 - 1700000000) % 4294967296)::text::xid '
	  . "WHERE oid = 'idem.record'::regclass",
	detail => qr/^The oldest row of idem\.record that is not frozen is \d+ transactions old\.$/);

# As many transactions as it takes with the lowest setting, beside an old snapshot.
sql(<<'SQL');
CREATE PROCEDURE use_up(n integer) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..n LOOP PERFORM txid_current(); COMMIT; END LOOP;
END $$
SQL
sql('ALTER SYSTEM SET autovacuum_freeze_max_age = 100000');
$node->restart;
follow('wraparound: beside an old snapshot',
	check => 'wraparound',
	provoke => sub {
		sql('VACUUM (FREEZE) idem.record');
		begin_snapshot($node);
		sql('SET synchronous_commit = off; CALL use_up(150001)');
	},
	detail => qr/ transactions old\. VACUUM freezes nothing that process \d+, whose .*, may not see\.$/,
	hint => qr/pid = \d+\. Then: VACUUM \(FREEZE\) idem\.record$/,
	before => \&end_snapshot);
sql('ALTER SYSTEM RESET autovacuum_freeze_max_age');
$node->restart;

for my $setting ('autovacuum', 'track_counts')
{
	follow("autovacuum: $setting is off",
		check => 'autovacuum',
		provoke => sub { sql("ALTER SYSTEM SET $setting = off"); $node->reload; },
		detail => qr/^The setting $setting is off/);
}
follow('autovacuum: off for a database',
	check => 'autovacuum',
	provoke => 'ALTER DATABASE postgres SET track_counts = off',
	detail => qr/^The setting track_counts is off/,
	hint => qr/^Remove the setting from where it is made, which is: database\.$/,
	before => 'ALTER DATABASE postgres RESET track_counts');
for my $option ('record SET (autovacuum_enabled', 'record SET (toast.autovacuum_enabled',
	'watermark SET (autovacuum_enabled')
{
	follow("autovacuum: $option = off)",
		check => 'autovacuum',
		provoke => "ALTER TABLE idem.$option = off)",
		detail => qr/^Autovacuum is disabled for /);
}

follow('secrets',
	check => 'secrets',
	provoke => 'CREATE TABLE dump AS SELECT * FROM idem.secret; DELETE FROM idem.secret',
	detail => qr/^There are scopes, but the secrets/,
	before => 'INSERT INTO idem.secret SELECT * FROM dump; DROP TABLE dump');

# Indexes and triggers are afterwards what they were before.
my $definitions = <<'SQL';
SELECT string_agg(d, E'\n' ORDER BY d) FROM (
  SELECT indexdef FROM pg_indexes WHERE schemaname = 'idem'
  UNION ALL
  SELECT pg_get_triggerdef(t.oid) || t.tgenabled::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
   WHERE c.relnamespace = 'idem'::regnamespace) x (d)
SQL
my $defined = sql($definitions);

sub follow_and_compare
{
	my ($name, @finding) = @_;
	follow($name, @finding);
	is(sql($definitions), $defined, "$name: everything is defined as before");
	return;
}

sql("SELECT idem.once('payments', 'order-' || i) FROM generate_series(1, 2) i");
my $fail = 'CREATE UNIQUE INDEX CONCURRENTLY broken ON idem.record (scope)';
follow_and_compare('indexes: an invalid one',
	check => 'indexes',
	provoke => sub { $node->psql('postgres', $fail); },
	detail => qr/^Index idem\.broken is invalid\.$/);
follow_and_compare('indexes: the primary key is invalid',
	check => 'indexes',
	provoke => 'UPDATE pg_index SET indisvalid = false '
	  . "WHERE indexrelid = 'idem.record_pkey'::regclass",
	detail => qr/^Index idem\.record_pkey is invalid\.$/);
for my $table ('record', 'watermark')
{
	follow_and_compare("indexes: idem.$table has no primary key",
		check => 'indexes',
		provoke => "ALTER TABLE idem.$table DROP CONSTRAINT ${table}_pkey",
		detail => $has_library
		? qr/^idem\.$table has no primary key/
		: qr/^Index idem\.${table}_pkey is missing/);
}
for my $key ($has_library ? ('(digest) DEFERRABLE', '(scope, digest)') : ())
{
	follow_and_compare("indexes: the primary key is $key",
		check => 'indexes',
		provoke => "ALTER TABLE idem.record DROP CONSTRAINT record_pkey, ADD PRIMARY KEY $key",
		detail => qr/^idem\.record has no primary key on digest alone/);
}
for my $index ($has_library ? 'record_unfinished' : ('record_token', 'record_due'))
{
	follow_and_compare("indexes: $index is missing",
		check => 'indexes',
		provoke => "DROP INDEX idem.$index",
		detail => $has_library
		? qr/^idem\.record has no index of unfinished/
		: qr/^Index idem\.$index is missing/);
}
my @triggers =
  $has_library
  ? (announce_change => 'scope', announce_change => 'secret')
  : (claim_incomplete => 'record');
while (my ($trigger, $table) = splice @triggers, 0, 2)
{
	for my $spoil ("ALTER TABLE idem.$table DISABLE TRIGGER $trigger",
		"DROP TRIGGER $trigger ON idem.$table")
	{
		follow_and_compare("triggers: $spoil",
			check => 'triggers',
			provoke => $spoil,
			detail => qr/rigger $trigger on idem\.$table is missing or/);
	}
}

# Transactions -------------------------------------------------------------------------------------

follow('transactions: a session holds a key',
	check => 'transactions',
	held => '0',
	provoke => sub {
		$session = $node->background_psql('postgres', on_error_stop => 0);
		$session->query_safe(claim_open('held'));
	},
	detail => qr/^Process \d+ has held (a key|keys) since/,
	undo => sub { eval { $session->quit }; });

# It has committed, and no hint may end its wait: a retry would get an answer that can be lost.
{
	my %waits = (check => 'transactions', held => '0');
	sql("ALTER SYSTEM SET synchronous_standby_names = 'lost'");
	$node->reload;
	$session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query_until(qr/sent/, "\\echo sent\nSELECT idem.once('payments', 'waits');\n");
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
	like(health(\%waits, 'detail'), qr/ has held .*, has committed it, and waits for a synchronous standby\.$/,
		'transactions: a session waits for a standby');
	sql($_) for statements(health(\%waits, 'hint'));
	is(sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"), 1,
		'transactions: what the hint says leaves it waiting');
	sql('ALTER SYSTEM RESET synchronous_standby_names');
	$node->reload;
	ok(becomes_ok(\%waits), 'transactions: cured by the standby');
	$session->quit;
}
follow('transactions: a prepared one',
	check => 'transactions',
	held => '0',
	provoke => claim_open('prepared')
	  . "SELECT idem.complete(:'token'); PREPARE TRANSACTION 'it''s mine'",
	detail => qr/^Prepared transaction "it's mine" has held/);
is(effects($node, 'prepared'), 1, 'transactions: the first of the two statements commits');

# Roles and functions ------------------------------------------------------------------------------

sql('CREATE ROLE "odd one"; CREATE ROLE boss SUPERUSER; GRANT CREATE ON SCHEMA idem TO boss');
for my $to ('"odd one"', 'PUBLIC',
	'app WITH GRANT OPTION; SET ROLE app; GRANT CREATE ON SCHEMA idem TO "odd one"')
{
	follow("schema: CREATE for $to",
		check => 'schema',
		provoke => "GRANT CREATE ON SCHEMA idem TO $to",
		detail => qr/can create functions in schema idem, which other roles may then call/);
}

follow('functions',
	check => 'functions',
	provoke => <<'SQL',
CREATE SCHEMA "my app";
CREATE FUNCTION "my app".pays(key text) RETURNS text STABLE LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT outcome FROM idem.try_claim('payments', key));
END $$
SQL
	detail => qr/^Function "my app"\.pays\(text\) is declared STABLE,/,
	callers => [q{DO $$ BEGIN PERFORM "my app".pays('key'); END $$}]);

# The server ---------------------------------------------------------------------------------------

sub with_conf
{
	my ($line) = @_;
	return sub { $node->append_conf('postgresql.conf', $line); $node->restart; };
}

sub worker_findings
{
	my $preload = with_conf("shared_preload_libraries = 'idem'");
	my $no_preload = with_conf("shared_preload_libraries = ''");
	is(health({ check => 'worker' }, 'status'), 'warn', 'worker: purging has been off so far');
	sql($_) for statements(health({ check => 'worker' }, 'hint'));
	ok(becomes_ok({ check => 'worker' }), 'worker: cured by the statement');
	follow('worker: purging is off',
		check => 'worker',
		provoke => sub { sql("ALTER SYSTEM SET idem.purge_naptime = 0"); $node->reload; },
		detail => qr/^idem\.purge_naptime is 0/,
		hint => qr/^If a tool copies the records from another server, wait until clients use this one\. If not: /);
	follow('worker: no launcher',
		check => 'worker',
		provoke => with_conf('max_worker_processes = 0'),
		detail => qr/but its launcher does not run/,
		before => with_conf('max_worker_processes = 8'));
	follow('worker: not preloaded',
		check => 'worker',
		provoke => $no_preload,
		detail => qr/^idem is not preloaded/,
		before => $preload);
	sql("SELECT idem.create_scope('bounded', claims_per_minute => 1000)");
	follow('limits',
		check => 'limits',
		provoke => $no_preload,
		detail => qr/^Scope "bounded" allows 1000 new claims .* idem is not preloaded\.$/,
		undo => $preload);
	sql("SELECT idem.create_scope('crowded', claims_per_minute => 1)");
	follow('limits: no room',
		check => 'limits',
		first => with_conf('idem.limited_tenants = 64'),
		provoke => "SELECT count(*) FROM generate_series(1, 30) i, idem.try_claim('crowded', 'k', tenant => 't' || i,
			lease => '1 us')",
		detail => qr/^Scope "crowded" counts the claims of 22 tenants for claims_per_minute, and has room for 0 more\./,
		after => sub { $node->restart; });
	follow('statistics',
		check => 'statistics',
		provoke => with_conf('idem.counted_scopes = 1'),
		detail => qr/^Scope ".*" has no statistics: other scopes take all 1 places/,
		after => sub { $node->restart; });
	return;
}

sub test_findings
{
	my $setting = 'idem_test.crash_rate';
	for my $where ('SYSTEM', 'DATABASE postgres', 'ROLE app', 'ROLE app IN DATABASE postgres',
		'ROLE ALL')
	{
		follow("tests: by ALTER $where",
			check => 'tests',
			provoke => sub { sql("LOAD 'idem_test'; ALTER $where SET $setting = 0.25"); $node->reload; },
			detail => qr/^The setting \Q$setting\E is 0\.25:/);
	}
	return;
}

# The library of another version, which t/update.pl installs, seems to come with the restart.
sub library_findings
{
	my $version = sql("SELECT extversion FROM pg_extension WHERE extname = 'idem'");
	my $of = sub { sql("UPDATE pg_extension SET extversion = '$_[0]' WHERE extname = 'idem'") };
	follow('library',
		check => 'library',
		provoke => sub { $of->('999') },
		detail => qr/^The library is version \S+, but the objects of the extension are version 999: no call writes/,
		hint => qr/^Make sure that idem 999 is installed, and restart the server\.$/,
		after => sub { $of->($version); $node->restart });
	return;
}

sub record_table_findings
{
	sql(<<'SQL');
CREATE SCHEMA eu;
GRANT USAGE ON SCHEMA eu TO app;
SELECT idem.create_record_table('eu.records', 'region', 'text');
SELECT idem.create_scope('elsewhere', records => true);
CREATE FUNCTION own(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1';
SQL
	my $claim = "SELECT idem.use_records('eu.records'); SELECT idem.once('elsewhere', 'k', tenant => 'eu')";
	my @spoilt = (
		['ALTER TABLE eu.records OWNER TO app'],
		['GRANT UPDATE (response) ON eu.records TO app'],
		['GRANT TRUNCATE ON eu.records TO PUBLIC'],
		['GRANT INSERT ON eu.records TO app WITH GRANT OPTION; SET ROLE app; '
			  . 'GRANT INSERT ON eu.records TO "odd one"'],
		['ALTER TABLE eu.records SET UNLOGGED'],
		['DROP INDEX eu.records_scope_idx'],
		[ 'ALTER TABLE eu.records ADD note text', 'ALTER TABLE eu.records DROP note' ],
		['ALTER TABLE eu.records ADD CHECK (region <> key)'],
		['ALTER TABLE eu.records DROP CONSTRAINT record_key'],
		['CREATE TRIGGER t BEFORE INSERT ON eu.records FOR EACH ROW '
			  . 'EXECUTE FUNCTION suppress_redundant_updates_trigger()'],
		[ 'CREATE RULE r AS ON DELETE TO eu.records DO ALSO NOTHING', 'DROP RULE r ON eu.records' ],
		[ 'ALTER TABLE eu.records ENABLE ROW LEVEL SECURITY',
			'ALTER TABLE eu.records DISABLE ROW LEVEL SECURITY' ],
		['ALTER TABLE eu.records DROP CONSTRAINT records_pkey'],
		['ALTER TABLE eu.records DROP CONSTRAINT records_pkey, ADD PRIMARY KEY (digest, scope)'],
		['CREATE INDEX calls ON eu.records (own(key))'],
		['ALTER TABLE eu.records ADD EXCLUDE (own(key) WITH =)'],
		['CREATE TABLE copied AS SELECT digest FROM eu.records']);
	for my $each (@spoilt)
	{
		my ($spoil, $cure) = @$each;
		follow("record tables: $spoil",
			check => 'record tables',
			provoke => $spoil,
			detail => qr/ has a column of the type idem\.key_digest, but idem does not use it/,
			before => $cure,
			callers => [$claim]);
	}
	sql('DROP TABLE copied; DROP SCHEMA eu CASCADE');
	follow('purge: an index calls a function that is not built in',
		check => 'purge',
		provoke => 'CREATE INDEX calls ON idem.record (own(key))',
		detail => qr/^The purge does not reach everything in idem\.record\. It removes no answers/);
	return;
}

# A standby would refuse every statement.
sub standby_findings
{
	sql("SELECT pg_create_physical_replication_slot('standby')");
	$node->backup('backup');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'backup', has_streaming => 1);
	$standby->append_conf('postgresql.conf', <<'CONF');
primary_slot_name = 'standby'
hot_standby_feedback = on
wal_receiver_status_interval = '1s'
CONF
	$standby->start;
	follow('vacuum: a standby that uses a slot', %dead,
		provoke => sub {
			begin_snapshot($standby);
			$node->poll_query_until('postgres', 'SELECT xmin IS NOT NULL FROM pg_replication_slots') or die;
			sql($die);
		},
		detail => qr/ that replication slot "standby" may still see\.$/,
	hint => $order,
		before => sub {
			end_snapshot();
			my $xid = sql('SELECT txid_current() % 4294967296');
			$node->poll_query_until('postgres', "SELECT age(xmin) <= age('$xid'::xid) FROM pg_replication_slots")
			  or die;
		});
	sql($old);
	$node->wait_for_catchup($standby);
	my $purge = sub { $standby->safe_psql('postgres', "SELECT $_[0] FROM idem.health() WHERE check_name = 'purge'") };
	is($purge->('hint'), 'On the primary: let the worker or idem.purge() purge them.', 'purge: on a standby');
	sql('SELECT idem.purge()');
	$node->wait_for_catchup($standby);
	is($purge->('status'), 'ok', 'purge: cured');

	# As REINDEX CONCURRENTLY leaves one while it runs, whose progress a standby does not see.
	sql("SELECT idem.once('payments', 'twice-' || i) FROM generate_series(1, 2) i");
	$node->psql('postgres', 'CREATE UNIQUE INDEX CONCURRENTLY broken ON idem.record (scope)');
	$node->wait_for_catchup($standby);
	is(health({ check => 'indexes' }, 'status'), 'warn', 'indexes: an invalid one');
	is( $standby->safe_psql('postgres', "SELECT status FROM idem.health() WHERE check_name = 'indexes'"), 'ok',
		'indexes: a standby does not know whether it is being built');
	sql('DROP INDEX idem.broken');
	$standby->stop;
	return;
}

standby_findings();
if ($has_library)
{
	record_table_findings();
	test_findings();
	library_findings();
	worker_findings();
}

is(join(',', sort keys %provoked),
	join(',', sort split /\n/, sql('SELECT DISTINCT check_name FROM idem.health()')),
	'every check has been provoked');
log_is_clean($node);
$node->stop;
done_testing();
