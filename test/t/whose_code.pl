# Whose code runs: the purge worker and a superuser's calls meet functions of other roles in the
# tables that they read and write. And what fails in one row or table, which does not stop the rest.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('whose_code', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
idem.purge_naptime = 0
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

# What a role could put into a function: it notes with whose rights it runs, and tries to get more.
sql(<<'SQL');
CREATE EXTENSION idem;
CREATE ROLE app LOGIN;
CREATE SCHEMA app AUTHORIZATION app;
SET ROLE app;
CREATE TABLE app.ran (as_user text, path text);
CREATE FUNCTION app.evil() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  BEGIN RESET ROLE; EXCEPTION WHEN OTHERS THEN NULL; END;
  BEGIN SET SESSION AUTHORIZATION DEFAULT; EXCEPTION WHEN OTHERS THEN NULL; END;
  INSERT INTO app.ran VALUES (current_user, current_setting('search_path'));
END $$;
CREATE FUNCTION app.text_of(jsonb) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM app.evil(); RETURN 'x';
END $$;
CREATE FUNCTION app.is_good(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM app.evil();
RETURN true; END $$;
CREATE DOMAIN app.checked AS text CHECK (app.is_good(VALUE));
RESET ROLE;
SELECT idem.create_scope('answers', answer_ttl => '1 millisecond'), idem.create_scope('short', ttl => '1 millisecond');
SQL

# Two answers that are kept no longer, and three records that have expired.
sub fill
{
	sql(<<'SQL');
DELETE FROM idem.record;
SELECT idem.complete((idem.claim('answers', k)).token, '"old"') FROM unnest('{bad,good}'::text[]) k;
SELECT count(*) FROM idem.once_each('short', '{a,b,c}');
SELECT pg_sleep(0.01);
TRUNCATE app.ran;
SQL
	return;
}
# Answers that are left, and expired records that are.
sub left { return sql(q{SELECT count(response), count(*) FILTER (WHERE expires < now()) FROM idem.record}); }
sub purge_health
{
	return sql(q{SELECT detail || ' ' || hint FROM idem.health() WHERE check_name = 'purge' AND detail ~ 'reach'});
}

sub by_worker
{
	$node->append_conf('postgresql.conf', q{idem.purge_naptime = '50ms'});
	$node->reload;
	ok($node->poll_query_until('postgres', q{SELECT count(*) FILTER (WHERE expires < now()) = 0 FROM idem.record}),
		'the worker purges what has expired');
	ok($node->poll_query_until('postgres', 'SELECT count(*) = ' . shift
			. ' FROM idem.record WHERE response IS NOT NULL'),
		'and goes on');
	await_runs($node, 'postgres');    # and once more
	configure_purge($node, 'idem.purge_naptime', '0');
	return;
}
sub by_superuser { return sql(q{SET statement_timeout = '20s'; SET search_path = app, public; SELECT idem.purge()}); }

# A superuser owns the table, and has indexed it with functions of a role that has no such rights.
sql(q{CREATE INDEX of_app ON idem.record (app.text_of(response))});
fill();
by_superuser();
is(left(), '2|0', 'the purge does not write to a table of a superuser that calls functions of others');
is(purge_health(), 'The purge does not reach everything in idem.record. It removes no answers. idem.of_app calls a '
	  . 'function that is not built in, and the owner of the table is a superuser. DROP INDEX CONCURRENTLY idem.of_app',
	'health() names the index');
fill();
by_worker(2);
is(left(), '2|0', 'nor does the worker');
is(sql('SELECT count(*) FROM app.ran'), 0, 'no function of another role has run');

is(sqlstate($node, q{SELECT idem.erase('answers', 'good')}), '55000', 'erase() does not write there either');

# The role owns the table, as on servers where the installing role is no superuser.
sql('ALTER TABLE idem.record OWNER TO app; GRANT USAGE ON SCHEMA idem TO app');
my $ran = q{SELECT string_agg(DISTINCT as_user || ': ' || path, ', ') FROM app.ran};
for my $run (\&by_superuser, sub { by_worker(0) })
{
	fill();
	$run->();
	is(left(), '0|0', 'the purge writes to a table of another role');
	is(sql($ran), 'app: pg_catalog, pg_temp', 'as that role, which cannot become another');
}

fill();
is(sql(q{SELECT idem.erase('answers', 'good'), idem.erase_tenant('answers', '')}), 't|2', 'what a superuser erases');
is(sql($ran), 'app: pg_catalog, pg_temp', 'is written as that role, too');

# It takes its time, and what another role owns goes on.
fill();
sql(q{CREATE OR REPLACE FUNCTION app.text_of(jsonb) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
	PERFORM pg_sleep(CASE WHEN $1 IS NULL THEN 3600 END); RETURN 'x'; END $$;
SELECT idem.create_record_table('other_table');
INSERT INTO other_table (digest, created, expires, scope, state, tenant, key) SELECT gen_random_uuid(), now(), now(), 1,
'c', '', 'k' || i FROM generate_series(1, 100) i});
$node->append_conf('postgresql.conf', q{idem.purge_naptime = '50ms'});
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM other_table}),
	'a function that takes long does not stop the purge of others');
like(purge_health(), qr/57014/, 'and health() says so');
configure_purge($node, 'idem.purge_naptime', '0');
sql(q{DROP TABLE other_table; CREATE OR REPLACE FUNCTION app.text_of(jsonb) RETURNS text IMMUTABLE LANGUAGE plpgsql
	AS $$ BEGIN PERFORM app.evil(); RETURN 'x'; END $$;
SELECT idem.purge()});

# PostgreSQL calls a function with constant arguments when it plans a query. take() needs none to find
# the index of unfinished operations, and health() plans as the owner of the table.
fill();
sql(q{CREATE INDEX part_of_app ON idem.record (scope) WHERE app.is_good('x'); DROP INDEX idem.record_unfinished;
	TRUNCATE app.ran});
sql(q{SET search_path = app, public; SELECT * FROM idem.health(); SELECT * FROM idem.take('answers')});
is(sql($ran), 'app: pg_catalog, pg_temp', 'health() runs no function of another role but as this role');
sql('DROP INDEX idem.of_app, idem.part_of_app; ALTER TABLE idem.record OWNER TO postgres');

# A trigger of a table fires for what the purge writes, unless its code would gain rights by that.
sql(<<'SQL');
GRANT TRIGGER, REFERENCES, SELECT ON idem.record TO app;
CREATE FUNCTION app.trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM app.evil(); RETURN NULL; END $$;
ALTER FUNCTION app.trigger() OWNER TO app;
CREATE FUNCTION public.notes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO app.ran
  VALUES (current_user, current_setting('search_path')); RETURN NULL; END $$;
SQL
for my $case (
	[ 'a function of another role', 'CREATE TRIGGER x AFTER UPDATE OR DELETE ON idem.record FOR EACH ROW
		EXECUTE FUNCTION app.trigger()',
		qr/deletes nothing\. Trigger "x" calls function "trigger" of another role than the table's owner, .* Review /
	],
	[ 'the same, for statements', 'CREATE TRIGGER x AFTER DELETE ON idem.record EXECUTE FUNCTION app.trigger()',
		qr/Trigger "x" calls function "trigger"/ ],
	[ 'a function that would run when the transaction ends', 'CREATE CONSTRAINT TRIGGER x AFTER DELETE
		ON idem.record DEFERRABLE FOR EACH ROW EXECUTE FUNCTION public.notes()', qr/Trigger "x" may be deferred/ ],
	[ 'a condition that calls a function of another role', 'CREATE TRIGGER x AFTER DELETE ON idem.record FOR EACH ROW
		WHEN (app.is_good(OLD.key)) EXECUTE FUNCTION public.notes()', qr/WHEN condition of trigger "x" .* Test / ],
	[ 'a condition that checks a domain of another role', 'CREATE TRIGGER x AFTER DELETE ON idem.record FOR EACH ROW
		WHEN (OLD.key::app.checked IS NOT NULL) EXECUTE FUNCTION public.notes()', qr/WHEN condition of trigger "x"/ ],
	[ 'a condition that runs a query', q{CREATE TRIGGER x AFTER DELETE ON idem.record FOR EACH ROW
		WHEN (ts_rewrite('a', 'SELECT ''a''::tsquery, ''b''::tsquery WHERE app.evil() IS NOT NULL') IS NOT NULL)
		EXECUTE FUNCTION public.notes()},
		qr/WHEN condition of trigger "x"/ ],
	[ 'a function that can stop to have the rights of its owner', 'ALTER FUNCTION app.trigger() SECURITY DEFINER;
		CREATE TRIGGER x AFTER DELETE ON idem.record FOR EACH ROW EXECUTE FUNCTION app.trigger()',
		qr/Trigger "x" calls function "trigger"/ ],
	[ 'a foreign key that reads a table of another role',
		'SET ROLE app; CREATE TABLE app.referring (digest uuid REFERENCES idem.record); RESET ROLE',
		qr/Trigger "RI_\w+" of a foreign key reads table "referring" of another role/ ],
	[ 'a foreign key that reads a partition of another role',
		q{CREATE TABLE app.referring (digest uuid REFERENCES idem.record) PARTITION BY HASH (digest);
		CREATE TABLE app.part PARTITION OF app.referring FOR VALUES WITH (MODULUS 1, REMAINDER 0);
		ALTER TABLE app.part OWNER TO app; SET ROLE app; CREATE INDEX ON app.part (digest) WHERE app.is_good('x')},
		qr/Trigger "RI_\w+" of a foreign key reads table "part" of another role/ ],
	[ 'a foreign key that reads a table with an index of another role',
		q{CREATE TABLE app.referring (digest uuid REFERENCES idem.record);
		CREATE INDEX ON app.referring (digest) WHERE app.is_good('x')},
		qr/Trigger "RI_\w+" of a foreign key reads table "referring" .* or with an index/ ],
	[ 'a foreign key to a table with an index of another role',
		q{CREATE TABLE app.referring (digest uuid REFERENCES idem.record);
		CREATE INDEX x ON idem.record (scope) WHERE app.is_good('x')},
		qr/Trigger "RI_\w+" of a foreign key reads table "record" .* or with an index/ ],
	[ 'a foreign key that changes a table of another role',
		'SET ROLE app; CREATE TABLE app.referring (digest uuid REFERENCES idem.record ON DELETE CASCADE);
		CREATE TRIGGER x AFTER DELETE ON app.referring FOR EACH ROW EXECUTE FUNCTION app.trigger(); RESET ROLE',
		qr/Trigger "RI_\w+" of a foreign key changes the rows/,
		'INSERT INTO app.referring SELECT digest FROM idem.record' ],)
{
	my ($what, $plant, $found, $use) = @$case;
	sql($plant);
	fill();
	sql($use) if defined $use;
	by_superuser();
	is(left(), '2|3', "$what: a superuser's purge writes nothing");
	like(purge_health(), $found, "$what: health() says why");
	is(sqlstate($node, "SELECT idem.erase($_)"), '55000', "$what: erase($_) does not write either")
	  for q('answers', 'good'), q('short', 'a');
	$node->append_conf('postgresql.conf', q{idem.purge_naptime = '50ms'});
	$node->reload;
	await_runs($node, 'postgres');
	configure_purge($node, 'idem.purge_naptime', '0');
	is(left(), '2|3', "$what: nor does the worker");
	# But by the queries of this test.
	is(sql(q{SELECT count(*) FROM app.ran WHERE path <> '"$user", public'}), 0,
		"$what: no function of another role has run");
	sql('DROP TRIGGER IF EXISTS x ON idem.record; DROP TABLE IF EXISTS app.referring; DROP INDEX IF EXISTS idem.x');
}
for my $case (
	[ 'a function of a superuser', 'CREATE TRIGGER x AFTER UPDATE OR DELETE ON idem.record FOR EACH ROW
		EXECUTE FUNCTION public.notes()', 'postgres: pg_catalog, pg_temp' ],
	[ 'a condition of built-in functions', q{CREATE TRIGGER x AFTER UPDATE OR DELETE ON idem.record FOR EACH ROW
		WHEN (OLD.key <> upper(OLD.key)) EXECUTE FUNCTION public.notes()}, 'postgres: pg_catalog, pg_temp' ],
	[ 'beside a foreign key of a superuser', 'CREATE TABLE app.referring (digest uuid REFERENCES idem.record);
		CREATE TRIGGER x AFTER UPDATE OR DELETE ON idem.record FOR EACH ROW EXECUTE FUNCTION public.notes()',
		'postgres: pg_catalog, pg_temp' ],
	[ 'a function of the role that owns the table', 'ALTER FUNCTION app.trigger() SECURITY INVOKER;
		ALTER TABLE idem.record OWNER TO app; CREATE TRIGGER x AFTER UPDATE OR DELETE ON idem.record FOR EACH ROW
		EXECUTE FUNCTION app.trigger()', 'app: pg_catalog, pg_temp' ],)
{
	my ($what, $plant, $as) = @$case;
	sql($plant);
	for my $run (\&by_superuser, sub { by_worker(0) })
	{
		fill();
		sql('TRUNCATE app.ran');
		$run->();
		is(left(), '0|0', "$what: the purge writes");
		is(sql($ran), $as, "$what: and the trigger fires");
	}
	sql('DROP TRIGGER x ON idem.record; DROP TABLE IF EXISTS app.referring');
}
sql('ALTER TABLE idem.record OWNER TO postgres; REVOKE ALL ON idem.record FROM app');

# Where the tenant is the role, a function in an index of a tenant's own table runs when a superuser, or
# autovacuum, analyzes that table. It gets no answer of another tenant, and its own.
sql(<<'SQL');
CREATE ROLE tenants;
CREATE ROLE alice IN ROLE tenants;
GRANT tenants TO app;
SELECT idem.create_scope('accounts', tenant_from => 'role', owner => 'tenants');
SET ROLE alice;
SELECT idem.complete(token, '"of alice"') FROM idem.claim('accounts', 'k');
SET ROLE app;
SELECT idem.complete(token, '"of app"') FROM idem.claim('accounts', 'k');
CREATE TABLE app.answer (tenant text, response jsonb);
CREATE FUNCTION app.spy(tenant text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO app.answer SELECT tenant, response FROM idem.lookup('accounts', 'k', tenant => tenant);
  EXCEPTION WHEN insufficient_privilege THEN INSERT INTO app.answer VALUES (tenant, to_jsonb(SQLSTATE)); END $$;
CREATE FUNCTION app.spies(integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
  PERFORM app.spy(t) FROM unnest('{NULL,app,alice,postgres}'::text[]) t; RETURN $1; END $$;
CREATE TABLE app.bait (i integer);
CREATE INDEX ON app.bait (app.spies(i));
INSERT INTO app.bait VALUES (1);
TRUNCATE app.answer;
RESET ROLE;
ANALYZE app.bait;
SQL
is(sql('SELECT tenant, response FROM app.answer ORDER BY tenant'),
	qq{alice|"42501"\napp|"of app"\npostgres|"42501"\n|"of app"}, 'a table that is analyzed shows no answer of others');
sql(q{DROP TABLE app.bait; SELECT idem.drop_scope('accounts')});

# One row whose new version an index refuses.
for my $run (\&by_superuser, sub { by_worker(1) })
{
	fill();
	sql(q{CREATE INDEX divides
		ON idem.record ((1 / (length(coalesce(response::text, '')) + CASE key WHEN 'bad' THEN 0 ELSE 1 END)))});
	# Expired records before it are deleted in an attempt that is rolled back, and then again.
	sql(q{INSERT INTO idem.record (digest, created, expires, scope, state, tenant, key)
		SELECT gen_random_uuid(), now(), now(), s.id, 'c', '', 'expired ' || i FROM idem.scope s,
		generate_series(1, 50) i WHERE s.name = 'answers';
		UPDATE idem.record SET tenant = tenant WHERE key = 'bad'});
	my $purged = q{SELECT coalesce(sum(purged), 0) FROM idem.stats WHERE scope = 'answers'};
	my $before = sql($purged);
	my $offset = -s $node->logfile;
	$run->();
	is(sql($purged) - $before, 50, 'what was rolled back is not counted');
	is(left(), '1|0', 'a row that cannot be written is passed over');
	is(sql(q{SELECT string_agg(i.key, ',') FROM idem.record i WHERE response IS NOT NULL}), 'bad', 'and only that row');
	like(purge_health(),
		qr/idem.record. It has passed over rows from block 0 on, because of an error with the SQLSTATE 22012. The /,
		'health() says so');
	my $times = () = slurp_file($node->logfile, $offset) =~ /SQLSTATE 22012 was raised: division by zero/g;
	is($times, 1, 'and so does the log, once');
	sql('DROP INDEX idem.divides; SELECT idem.purge()');
	is(left(), '0|0', 'when the cause is gone, the next purge corrects the row');
	is(purge_health(), '', 'and health() forgets it');
}

# One row whose new version has to wait for another transaction, in a unique index of the
# administrator's.
{
	sql(q{CREATE UNIQUE INDEX one_without_answer ON idem.record ((response IS NULL)) WHERE key IN ('bad', 'held')});
	fill();
	my $other = $node->background_psql('postgres');
	$other->query_safe(q{BEGIN; SELECT FROM idem.once('answers', 'held')});
	by_superuser();
	is(left(), '1|0', 'a row that another transaction holds up is passed over');
	like(purge_health(), qr/SQLSTATE 55P03/, 'and health() says why');
	$other->query_safe('ROLLBACK');
	$other->quit;
	sql('SELECT idem.purge(); DROP INDEX idem.one_without_answer');
	is(left(), '0|0', 'and corrected later');
}

# One table that cannot be read.
sql(<<'SQL');
SELECT idem.create_record_table('broken');
INSERT INTO broken (digest, created, expires, scope, state, tenant, key) SELECT gen_random_uuid(), now(), now(), 1, 'c',
  '', 'k' || i FROM generate_series(1, 100) i;
SQL
my $file = $node->data_dir . '/' . sql(q{SELECT pg_relation_filepath('broken')});
fill();
$node->stop;
open(my $block, '+<', $file) or die $!;
binmode $block;
print $block 'x' x 64;
close $block;
$node->start;
for my $run (\&by_superuser, sub { by_worker(0) })
{
	fill();
	$run->();
	is(left(), '0|0', 'a table that cannot be read does not stop the purge of others');
	like(sql(q{SELECT passed_over FROM idem_internal.record_tables() WHERE records = 'broken'::regclass}),
		qr/from block 0 on.*XX001/, 'it is named');
}

# One table whose file is missing. The position is in it.
sql(q{UPDATE idem.purge_progress SET position = 'broken'::regclass::oid::bigint << 32 WHERE sqlstate IS NULL});
$node->stop;
unlink $file or die $!;
$node->start;
my $offset = -s $node->logfile;
for my $run (\&by_superuser, sub { by_worker(0) })
{
	fill();
	$run->();
	is(left(), '0|0', 'a table whose file is missing does not stop the purge of others');
	like(sql(q{SELECT passed_over FROM idem_internal.record_tables() WHERE records = 'broken'::regclass}),
		qr/from block 0 on.*58P01/, 'it is named');
	like(purge_health(), qr/broken.*58P01/, 'by health(), too');
}
my $times = () = slurp_file($node->logfile, $offset) =~ /WARNING:.*passed over the table/g;
is($times, 1, 'and the log says so once to each caller of purge(), and not in each run of the worker');
sql('DROP TABLE broken; SELECT idem.purge()');
is(sql('SELECT count(*) FROM idem.purge_progress'), 1, 'when it is gone, nothing is kept of it');

$node->stop;
log_is_clean($node);
done_testing();
