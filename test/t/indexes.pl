# Indexes that a superuser adds to idem's tables: of every kind, on every table. Each row is found
# in each index, an added constraint is kept, and one that cannot be kept is an error. Built,
# rebuilt and dropped during writes by every function: no key is executed twice, and amcheck finds
# nothing.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('indexes', conf => "fsync = off\nsynchronous_commit = off\nlog_statement = none\n"
	. "deadlock_timeout = 30s");
my $sql = sub { return $node->safe_psql('postgres', $_[0]) };
$sql->(<<'SQL');
CREATE EXTENSION amcheck;
SELECT idem.create_scope('messages');
SELECT idem.create_scope('short', ttl => '1 millisecond');
SQL

# Updates that change only a summarizing index: the other index entries stay.
$sql->(<<'SQL');
CREATE INDEX brin_record ON idem.record USING brin (expires);
CREATE INDEX brin_watermark ON idem.watermark USING brin (updated);
CREATE INDEX brin_scope ON idem.scope USING brin (claims_per_minute, max_attempts);
CREATE INDEX brin_secret ON idem.secret USING brin (created);
CREATE INDEX brin_progress ON idem.purge_progress USING brin (position);
SELECT idem.rotate_secret();
SELECT count(*) FROM idem.once_each('short', ARRAY(SELECT n::text FROM generate_series(1, 3000) n));
SQL
my $token = $sql->(q{SELECT token FROM idem.claim('payments', 'leased', lease => '1 hour')});
for my $round (1 .. 5)
{
	is(sqlstate($node, $_), '', "round $round: $_")
	  for ("SELECT idem.renew('$token')", "SELECT idem.advance('messages', 'source', $round)",
		"SELECT idem.alter_scope('messages', max_attempts => $round)", 'SELECT idem.purge(100)');
}
$sql->('VACUUM idem.record, idem.watermark, idem.scope, idem.purge_progress');
$sql->("SELECT idem.once('messages', n::text) FROM generate_series(1, 5) n");
$sql->("SELECT count(*) FROM idem.once_each('messages', ARRAY(SELECT 'each' || n FROM generate_series(1, 5) n))");
$sql->("SELECT idem.advance('messages', 'other', 1)");
tables_are_sound($node, 'after updates of what a BRIN index covers');
restart_killed($node);
tables_are_sound($node, 'after recovery');
is(sqlstate($node, "SELECT idem.complete('$token', '1')"), '', 'the leased claim completes');
$sql->('DROP INDEX idem.brin_record, idem.brin_watermark, idem.brin_scope, idem.brin_secret, idem.brin_progress');

# A claim that meets a row of its key in one unique index on the digest, and waits until that is gone,
# has its entry in the following ones as well: an index after the primary key, and one before it.
for my $place ('after', 'before')
{
	$sql->('TRUNCATE idem.record');
	$sql->('CREATE UNIQUE INDEX second ON idem.record (digest)');
	$sql->('REINDEX INDEX CONCURRENTLY idem.record_pkey') if $place eq 'before';
	my ($claim, $each) = map { $node->background_psql('postgres', on_error_stop => 1) } 1 .. 2;
	$claim->query_safe(q{BEGIN; SELECT token AS t FROM idem.claim('messages', 'met') \gset});
	$each->query_safe(q{BEGIN; SELECT idem.once_each('messages', '{met}'::text[])});
	$claim->query_until(qr/completing/, qq{\\echo completing\nSELECT idem.complete(:'t', '1');\n});
	$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity
		WHERE query ~ '^SELECT idem.complete' AND wait_event_type = 'Lock'}) or die 'no wait';
	$each->query_safe('ROLLBACK');
	$claim->query_safe('COMMIT');
	$_->quit for $claim, $each;
	is($sql->(q{SELECT idem.once('messages', 'met'), idem.once('messages', 'met'), (SELECT count(*) FROM idem.record)}),
		'f|f|1', "with an index $place the primary key, the key has one record");
	tables_are_sound($node, "with an index $place the primary key");
	$sql->('DROP INDEX idem.second');
}

# The index of unfinished operations becomes valid while a row is written: the write waits for the
# TOAST table, and the index for a snapshot.
{
	$sql->('TRUNCATE idem.record');
	$sql->(q{DROP INDEX idem.record_unfinished;
		SELECT idem.create_scope('large', store_request => 'unfinished', max_answer_size => 1000000)});
	my $toast = $sql->(q{SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'idem.record'::regclass});
	my ($reader, $builder, $blocker, $writer) = map { $node->background_psql('postgres', on_error_stop => 1) } 1 .. 4;
	my $waits = sub {
		my ($query) = @_;
		$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^$query'
			AND wait_event_type = 'Lock'") or die "no wait: $query";
	};
	$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	$builder->query_until(qr/building/, "\\echo building\n"
		. "CREATE INDEX CONCURRENTLY record_unfinished ON idem.record (scope) WHERE state = 'p';\n");
	$waits->('CREATE INDEX');
	$blocker->query_safe("BEGIN; REINDEX TABLE $toast");
	$writer->query_until(qr/claiming/,
		qq{\\echo claiming\nSELECT claimed FROM idem.claim('large', 'k',
			(SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 2000) n), lease => '1 second');\n});
	$waits->('SELECT claimed');
	$reader->query_safe('COMMIT');
	$node->poll_query_until('postgres', q{SELECT indisvalid FROM pg_index
		WHERE indexrelid = 'idem.record_unfinished'::regclass}) or die 'not built';
	$blocker->query_safe('COMMIT');
	$_->quit for $reader, $builder, $blocker, $writer;
	is($sql->(q{SELECT key FROM idem.take('large', wait => '10 seconds')}), 'k',
		'an operation that is written while its index becomes valid is found there');
	tables_are_sound($node, 'written while an index became valid');
}

# Every function that writes keeps constraints that a superuser adds.
my %constraint = (
	'a unique index' => 'CREATE UNIQUE INDEX extra ON idem.record (key)',
	'a unique index of an expression' => 'CREATE UNIQUE INDEX extra ON idem.record (lower(key))',
	'a partial unique index' => "CREATE UNIQUE INDEX extra ON idem.record (key) WHERE tenant = ''",
	'a deferrable constraint' =>
	  'ALTER TABLE idem.record ADD CONSTRAINT extra UNIQUE (key) DEFERRABLE INITIALLY DEFERRED',
	'an exclusion constraint' => 'ALTER TABLE idem.record ADD CONSTRAINT extra EXCLUDE USING btree (key WITH =)',
	'a deferrable exclusion constraint' => 'ALTER TABLE idem.record ADD CONSTRAINT extra
	   EXCLUDE USING btree (lower(key) WITH =) DEFERRABLE INITIALLY DEFERRED');
for my $kind (sort keys %constraint)
{
	$sql->('TRUNCATE idem.record');
	$sql->($constraint{$kind});
	$sql->("SELECT idem.once('messages', 'k')");
	my $state = $kind =~ /exclusion/ ? '23P01' : '23505';
	is(sqlstate($node, $_), $state, "$kind is kept: $_")
	  for (q{SELECT pay('k', '{"amount": 1}')}, q{SELECT idem.once_each('payments', ARRAY['j', 'k'])},
		q{SELECT idem.claim('payments', 'k', lease => '1 minute')});
	$sql->("UPDATE idem.record SET expires = created");
	is($sql->($_), 1, "$kind lets an expired record be replaced: $_")
	  for ("SELECT idem.once('messages', 'k')::int",
		"SELECT count(*) FROM idem.once_each('messages', ARRAY['k', 'l'])");
	is($sql->('SELECT string_agg(key, \' \' ORDER BY key) FROM idem.record'), 'k l', 'nothing else was written');
	tables_are_sound($node, $kind);
	$sql->($constraint{$kind} =~ /ADD/ ? 'ALTER TABLE idem.record DROP CONSTRAINT extra' : 'DROP INDEX idem.extra');
}

# The index that a failed build leaves is still filled, and its uniqueness still applies.
$sql->("SELECT idem.once('payments', 'k')");
isnt(sqlstate($node, 'CREATE UNIQUE INDEX CONCURRENTLY extra ON idem.record (key)'), '', 'a build fails');
is($sql->("SELECT indisvalid FROM pg_index WHERE indexrelid = 'idem.extra'::regclass"), 'f',
	'a failed build leaves an invalid index');
is($sql->("SELECT idem.once('messages', 'after'), idem.once('messages', 'after')"), 't|f',
	'keys are written beside an invalid index');
tables_are_sound($node, 'beside an invalid index');
$sql->('DROP INDEX idem.extra');

# A function in an index may raise, or read other tables.
$sql->(<<'SQL');
CREATE FUNCTION judge(key text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  IF key = 'bad' THEN RAISE 'not this one'; END IF;
  RETURN key || (SELECT count(*) FROM public.payment WHERE false);
END $$;
CREATE INDEX extra ON idem.record (judge(key));
SQL
is(sqlstate($node, $_), 'P0001', "an index function that raises fails the call: $_")
  for (q{SELECT pay('bad', '{"amount": 1}')}, q{SELECT idem.once_each('messages', ARRAY['good', 'bad'])});
is($sql->("SELECT idem.once('messages', 'good'), idem.once('messages', 'good')"), 't|f', 'other keys are written');
is(effects($node, 'bad'), 0, 'there is no effect without its record');
tables_are_sound($node, 'beside a function that raises');
$sql->('DROP INDEX idem.extra');

# The index of unfinished operations: whatever a superuser does with it, every unfinished record is
# in each index with that condition, and no finished one is.
my $open = 0;
my $write = sub {
	my ($name) = @_;
	is(sqlstate($node, $_), '', "$name: $_")
	  for ("SELECT count(idem.claim('payments', 'open ' || n, lease => '1 hour')) FROM generate_series(1, 3) n
		WHERE $open = 0",
		"SELECT idem.claim('payments', 'more ' || $open, lease => '1 hour')",
		"SELECT pay('closed ' || $open, '{\"amount\": 1}')",
		"SELECT idem.once_each('messages', ARRAY['each ' || $open])",
		"SELECT idem.complete(token) FROM idem.claim('payments', 'finished ' || $open, lease => '1 hour')");
	++$open;
	is($sql->("SELECT count(*) FROM idem.record WHERE state = 'p'"), 3 + $open, "$name: the unfinished operations");
	tables_are_sound($node, $name);
};
$sql->('TRUNCATE idem.record, payment');
my $unfinished = "ON idem.record (scope) WHERE state = 'p'";
$write->('as created');
for my $change (
	'ALTER INDEX idem.record_unfinished RENAME TO renamed',
	'REINDEX INDEX idem.renamed',
	'REINDEX INDEX CONCURRENTLY idem.renamed',
	'DROP INDEX idem.renamed',
	"CREATE INDEX CONCURRENTLY record_unfinished $unfinished",
	'DROP INDEX CONCURRENTLY idem.record_unfinished',
	"CREATE INDEX record_unfinished ON idem.record (scope) WHERE state = 'c'",
	"CREATE INDEX other $unfinished",
	"CREATE INDEX many ON idem.record (tenant, scope) INCLUDE (attempt) WHERE 'p' = state",
	"CREATE INDEX swapped ON idem.record (lower(key)) WHERE state = 'p'",
	"CREATE UNIQUE INDEX strict ON idem.record (digest) WHERE state = 'p'",
	"CREATE INDEX hashed ON idem.record USING hash (scope) WHERE state = 'p'",
	"CREATE INDEX narrow ON idem.record (scope) WHERE state = 'p' AND tenant = ''",
	'REINDEX TABLE CONCURRENTLY idem.record',
	'VACUUM FULL idem.record',
	"DROP INDEX idem.record_unfinished, idem.other, idem.many, idem.swapped, idem.strict, idem.hashed, idem.narrow;
	 CREATE INDEX record_unfinished $unfinished")
{
	$sql->($_) for $change =~ /CONCURRENTLY|VACUUM/ ? $change : "BEGIN; $change; COMMIT";
	$write->($change);
}
# A session that has seen the index, in which it is dropped and made anew, also in one transaction.
$sql->("SELECT pay('same 1', '{\"amount\": 1}'); DROP INDEX idem.record_unfinished;
	SELECT idem.claim('payments', 'same 2', lease => '1 hour');
	CREATE INDEX record_unfinished $unfinished; SELECT pay('same 3', '{\"amount\": 1}');
	SELECT idem.claim('payments', 'same 4', lease => '1 hour')");
$sql->("BEGIN; DROP INDEX idem.record_unfinished; CREATE INDEX record_unfinished ON idem.record (scope)
	WHERE state = 'c'; SELECT idem.once('messages', 'same 5'); ROLLBACK;
	SELECT idem.claim('payments', 'same 6', lease => '1 hour')");
tables_are_sound($node, 'after changes within a session');

# Without the unique index of the digest, every claim is refused.
for my $other (undef, 'PRIMARY KEY (digest) DEFERRABLE', 'PRIMARY KEY (digest, scope)')
{
	$sql->('ALTER TABLE idem.record DROP CONSTRAINT record_pkey');
	$sql->("ALTER TABLE idem.record ADD CONSTRAINT other $other") if $other;
	is(sqlstate($node, $_), '55000', ($other // 'no primary key') . " is refused: $_")
	  for (q{SELECT pay('new', '{"amount": 1}')}, q{SELECT idem.once_each('messages', ARRAY['new'])},
		q{SELECT idem.lookup('messages', 'k')});
	$sql->('ALTER TABLE idem.record DROP CONSTRAINT other') if $other;
	$sql->('ALTER TABLE idem.record ADD PRIMARY KEY (digest)');
}

# Every kind of index on every table, under load.
my %index = (
	record => {
		btree => '(expires)', brin => 'USING brin (expires, lease_end)', hash => 'USING hash (key)',
		gin => 'USING gin (response)', gist => 'USING gist (tstzrange(created, expires))',
		spgist => 'USING spgist (key)', partial => "(created) WHERE state = 'c'",
		unfinished => "(scope, tenant) WHERE state = 'p'", expression => '(lower(key))',
		unique => 'UNIQUE (key)', digest => 'UNIQUE (digest)', include => 'UNIQUE (digest) INCLUDE (state)',
		multi => 'UNIQUE (scope, tenant, key)', partial_unique => "UNIQUE (digest) WHERE state = 'c'"
	},
	watermark => {
		btree => '(updated)', brin => 'USING brin (updated, seq)', hash => 'USING hash (source)',
		partial => '(seq) WHERE seq % 2 = 0', expression => '(lower(source))', unique => 'UNIQUE (source)',
		digest => 'UNIQUE (digest)', include => 'UNIQUE (digest) INCLUDE (seq)', multi => '(scope, source)'
	},
	scope => {
		btree => '(ttl)', brin => 'USING brin (max_attempts)', hash => 'USING hash (name)',
		partial => '(ttl) WHERE max_attempts > 3', expression => '(lower(name))', unique => 'UNIQUE (name, owner)',
		include => 'UNIQUE (name) INCLUDE (ttl)', multi => '(owner, max_attempts)'
	},
	secret => {
		btree => '(created)', brin => 'USING brin (created)', hash => 'USING hash (purpose)',
		partial => "(created) WHERE purpose = 'seed'", expression => '(length(secret))', unique => 'UNIQUE (secret)',
		include => 'UNIQUE (id) INCLUDE (purpose)', multi => '(purpose, id)'
	},
	purge_progress => {
		btree => '(position)', brin => 'USING brin (position)', hash => 'USING hash (position)',
		partial => '(position) WHERE position > 0',
		expression => '((position % 7))', unique => 'UNIQUE (position)', multi => '(position, (position % 7))'
	});
$sql->(<<'SQL');
TRUNCATE idem.record, payment;
CREATE TABLE message (key text);
CREATE SEQUENCE seq;
-- A change of a scope waits for the build of an index on the table, and the build for its snapshot: the
-- change gives way.
CREATE FUNCTION alter_short(n int) RETURNS void SET lock_timeout = '50ms' LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem.alter_scope('short', max_attempts => n);
EXCEPTION WHEN lock_not_available THEN NULL;
END $$;
CREATE FUNCTION operate(request jsonb) RETURNS jsonb LANGUAGE sql AS
  $$ INSERT INTO message VALUES ('execute' || (request->>0)); SELECT request $$;
SQL
# Each script in turn, each operation twice or by several clients.
my @load = (
	q{\set n random(1, 1000000000)
SELECT pay('pay' || :n, '{"amount": 1}');
SELECT pay('pay' || :n, '{"amount": 1}');},
	q{\set n random(1, 1000000000)
SELECT quote_literal(token) AS token FROM idem.claim('payments', 'leased' || :n, lease => '1 minute') \gset
SELECT idem.renew(:token);
SELECT idem.checkpoint(:token, 'half');
INSERT INTO message SELECT 'leased' || :n FROM idem.complete(:token, '1');},
	q{\set s random(1, 5)
SELECT idem.advance('messages', 'source' || :s, nextval('seq'));},
	q{\set n random(1, 20000)
INSERT INTO message SELECT 'once' || :n WHERE idem.once('messages', 'once' || :n);},
	q{\set n random(1, 20000)
INSERT INTO message SELECT * FROM idem.once_each('messages', ARRAY['each' || :n, 'each' || :n + 1, 'once' || :n]);
INSERT INTO message SELECT * FROM idem.once_each('messages', ARRAY['hot' || nextval('seq') / 100]);},
	q{\set n random(1, 20000)
SELECT outcome FROM idem.execute('messages', 'execute' || :n, 'operate(jsonb)', jsonb_build_array(:n));},
	q{\set n random(1, 200)
SELECT idem.once('short', 'short' || :n);
SELECT count(*) FROM idem.once_each('short', ARRAY['short' || :n, 'short' || :n + 1]);},
	q{SELECT idem.purge(100);},
	q{\set n random(1, 10)
SELECT alter_short(:n);
\sleep 20 ms});
my @scripts = map { ('-f', $_) } map {
	my $file = $node->basedir . "/load$_.sql";
	append_to_file($file, $load[$_]);
	$file . '@' . ($_ < 7 ? 10 : 1);
} 0 .. $#load;
my ($out, $err) = ('', '');
my $load = IPC::Run::start([ 'pgbench', '-n', '-c', 6, '-T', 600, '--max-tries=1000', @scripts,
	$node->connstr('postgres') ], '>', \$out, '2>', \$err);

for my $table (sort keys %index)
{
	my @kinds = sort keys %{ $index{$table} };
	for my $kind (@kinds)
	{
		my ($unique, $rest) = $index{$table}{$kind} =~ /^(UNIQUE )?(.*)$/;
		$sql->(sprintf 'CREATE %s INDEX CONCURRENTLY %s_%s ON idem.%s %s', $unique // '', $kind, $table, $table, $rest);
	}
	$sql->("REINDEX TABLE CONCURRENTLY idem.$table");
	$sql->("VACUUM idem.$table");
	ok(runs($load), "indexes on $table: " . join(', ', @kinds));
}
for my $table (sort keys %index)
{
	my @kinds = sort keys %{ $index{$table} };
	$sql->("DROP INDEX CONCURRENTLY idem.${_}_$table") for @kinds[ grep { $_ % 2 } 0 .. $#kinds ];
}
$load->signal('TERM');
$load->finish;
unlike($err, qr/ERROR|aborted/, 'the load had no error') or diag($err);
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'})
  or die 'the load goes on';

tables_are_sound($node, 'after the load');
for my $effects (qw(payment message))
{
	cmp_ok($sql->("SELECT count(*) FROM $effects"), '>', 100, "the load wrote into $effects");
	is($sql->("SELECT count(*) - count(DISTINCT key) FROM $effects"), 0, 'no key was executed twice');
}
is($sql->(<<'SQL'), '', 'every effect has its record');
SELECT key FROM (SELECT key FROM payment UNION ALL SELECT key FROM message) e
WHERE NOT EXISTS (SELECT FROM idem.record r WHERE r.key = e.key AND r.state = 'c')
SQL
log_is_clean($node, killed => 1);
$node->stop;
done_testing();
