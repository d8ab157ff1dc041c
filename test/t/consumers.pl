# Batches of messages, delivered to several consumers at once, in any order and more than once: each
# message is new exactly once, even if a consumer dies, and a stream's position survives a dump.
use strict;
use warnings;

use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $keys = 50_000;
my $node = idem_node('consumers', bare => 1, conf => "fsync = off\nlog_statement = none");
$node->safe_psql('postgres', <<"SQL");
CREATE EXTENSION idem;
SELECT idem.create_scope('messages', wait => '10 minutes');
-- Every fifth message twice. A session with an odd number gets them in the opposite order.
CREATE TABLE delivery AS
  SELECT i AS place, 'message ' || 1 + i % $keys AS key FROM generate_series(1, $keys + $keys / 5) i;
CREATE TABLE seen (session int, key text);
CREATE PROCEDURE consume(session int, first int, last int) LANGUAGE sql AS \$\$
  INSERT INTO seen SELECT session, key FROM idem.once_each('messages', (
    SELECT array_agg(key ORDER BY place * (1 - 2 * (session % 2))) FROM delivery WHERE place BETWEEN first
    AND last)) key
\$\$;
CREATE FUNCTION key(n int) RETURNS text LANGUAGE sql AS
  \$\$ SELECT format('00000000-%s-7000-8000-000000000000', lpad(n::text, 4, '0')) \$\$;
SQL

# Runs each script in a session of its own, all released at the same moment. Fails on any error.
sub run_together
{
	my (@scripts) = @_;
	my $gate = $node->background_psql('postgres');
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my @running;
	for my $script (@scripts)
	{
		my %run = (stderr => '', file => $node->basedir . "/session$#running.sql");
		append_to_file($run{file}, "SELECT pg_advisory_xact_lock_shared(1);\n$script");
		$run{handle} = IPC::Run::start(
			[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $run{file}, '-d',
				$node->connstr('postgres') ],
			'2>', \$run{stderr});
		push @running, \%run;
	}
	my $count = @scripts;
	$node->poll_query_until('postgres',
		"SELECT count(*) = $count FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
	  or die 'sessions did not come';
	$gate->query_safe('SELECT pg_advisory_unlock(1)');
	for my $run (@running) { $run->{handle}->finish; unlink $run->{file}; }
	is(join('', map { $_->{stderr} } @running), '', "$count sessions ran through");
	$gate->quit;
	return;
}

sub each_is_new_once
{
	my ($what, $expected) = @_;
	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT key) FROM seen'),
		"$expected|$expected", "$what: each key was new exactly once");
	is($node->safe_psql('postgres', "SELECT count(*), count(*) FILTER (WHERE state = 'c') FROM idem.record"),
		"$expected|$expected", "$what: and has one record");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.record r FULL JOIN seen s
		ON s.key = coalesce(r.key, to_jsonb(r) ->> 'key_uuid') WHERE r.scope IS NULL OR s.key IS NULL}),
		0, "$what: the same ones");
	is($node->safe_psql('postgres', 'SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()'),
		0, "$what: no deadlock");
	$node->safe_psql('postgres', 'TRUNCATE seen, idem.record');
	return;
}

# One call for all keys, from four sessions.
run_together(map { "CALL consume($_, 1, 2 * $keys)" } 1 .. 4);
each_is_new_once('one call each', $keys);

# Many smaller calls with overlapping keys; every third is rolled back.
my @chunks = map { my $first = 1 + 1500 * $_; [ $first, $first + 4499 ] } 0 .. int($keys / 1500);
run_together(map {
	my $session = $_;
	my $n = $session;
	my @order = $session < 3 ? @chunks : reverse @chunks;
	join '', map { "BEGIN; CALL consume($session, $_->[0], $_->[1]); " . (++$n % 3 ? 'COMMIT' : 'ROLLBACK')
		. ";\n" } @order;
} 1 .. 4);
$node->safe_psql('postgres', "CALL consume(5, 1, 2 * $keys)");
each_is_new_once('many calls', $keys);

# No lock per key, and beside the array the memory of one key at a time.
my $session = $node->background_psql('postgres');
is($session->query_safe(<<"SQL"), 't', 'once_each holds no lock per key');
BEGIN;
CALL consume(1, 1, 2 * $keys);
SELECT count(*) < 30 FROM pg_locks WHERE pid = pg_backend_pid();
SQL
is($session->query_safe('SELECT count(*) FROM seen; ROLLBACK;'), $keys, 'once_each takes any number of keys');
$session->quit;

SKIP:
{
	skip 'the SQL edition has all keys of a call in memory', 1 if managed_edition();
	is($node->safe_psql('postgres', <<'SQL'), 't', 'nor memory per new key');
CREATE FUNCTION note_memory(digest uuid) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE n integer := coalesce(nullif(current_setting('test.keys', true), ''), '0')::integer + 1;
BEGIN
	PERFORM set_config('test.keys', n::text, false);
	IF n IN (1000, 21000) THEN
		PERFORM set_config('test.memory_' || n, sum(used_bytes)::text, false) FROM pg_backend_memory_contexts;
	END IF;
	RETURN digest;
END $$;
CREATE INDEX notes ON idem.record (note_memory(digest));
SELECT set_config('test.keys', '0', false) \gset
SELECT count(*) AS new
  FROM idem.once_each('messages', ARRAY(SELECT 'memory ' || n FROM generate_series(1, 22000) n)) \gset
SELECT :new = 22000 AND current_setting('test.memory_21000')::bigint - current_setting('test.memory_1000')::bigint <
  20000 * 50;
SQL
	$node->safe_psql('postgres', 'DROP INDEX idem.notes');
}

# A consumer dies in the middle of its batch: its keys are new again. The digests of these keys sort
# by number, so the victim has half of them when it meets the key in flight.
my $each = q{(SELECT count(*) FROM idem.once_each('messages', ARRAY(SELECT key(n) FROM generate_series(1, 1000) n)))};
for my $how ('terminated', 'killed')
{
	my $holder = $node->background_psql('postgres', on_error_stop => 0);
	$holder->query_safe(q{BEGIN; SELECT idem.once('messages', key(500))});
	my $victim = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $victim->query_safe('SELECT pg_backend_pid()');
	$victim->query_until(qr/going/, "\\echo going\nSELECT $each;\n");
	$node->poll_query_until('postgres', "SELECT wait_event = 'transactionid' FROM pg_stat_activity WHERE pid = $pid")
	  or die 'no wait';
	if ($how eq 'terminated')
	{
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 60000)");
		is($node->safe_psql('postgres', q{SELECT idem.once('messages', key(1)), idem.once('messages', key(499))}),
			't|t', "$how: what it had taken is free while the batch's middle is still held");
		$holder->query_safe('ROLLBACK');
	}
	else
	{
		kill_process($node, $pid);
	}
	my $expected = $how eq 'terminated' ? 998 : 1000;
	is($node->safe_psql('postgres', "SELECT $each"), $expected, "$how: all of its batch is new to the next");
	is($node->safe_psql('postgres', "SELECT $each"), 0, "$how: and to no other session");
	$node->safe_psql('postgres', 'TRUNCATE idem.record');
	eval { $_->quit } for ($holder, $victim);
}

# Streams: four consumers of the same three sources, each of which gets every message.
$node->safe_psql('postgres', 'CREATE TABLE applied (source text, seq bigint, session int)');
run_together(map {
	my $session = $_;
	join '', map {
		my $seq = $_;
		map {
			"INSERT INTO applied SELECT 's$_', $seq, $session
				WHERE idem.advance('messages', 's$_', $seq, contiguous => true);\n"
		} 1 .. 3;
	} 1 .. 200;
} 1 .. 4);
is($node->safe_psql('postgres', 'SELECT source, count(*), count(DISTINCT seq), max(seq) FROM applied GROUP BY source
	ORDER BY source'),
	"s1|200|200|200\ns2|200|200|200\ns3|200|200|200", 'streams: each message was applied once, without gaps');
is($node->safe_psql('postgres', 'SELECT source, seq FROM idem.watermark ORDER BY source'),
	"s1|200\ns2|200\ns3|200", 'streams: one watermark a source');

# Dump and restore.
SKIP:
{
	skip 'managed.pl dumps the SQL edition, whose tables do not belong to an extension', 5 if managed_edition();
	my $dump = $node->backup_dir . '/dump.sql';
	mkdir $node->backup_dir;
	$node->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'pg_dump');
	$node->safe_psql('postgres', q{CREATE DATABASE restored;
		CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0});
	for my $database ('restored', 'latin')
	{
		$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump, $database ],
			"restore into $database");
		is($node->safe_psql($database, q{SELECT idem.advance('messages', 's1', 200),
			idem.advance('messages', 's1', 201, contiguous => true)}),
			'f|t', "$database: watermarks stand where they stood");
	}
}

log_is_clean($node, killed => 1);
$node->stop;
done_testing();
