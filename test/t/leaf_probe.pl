# A probe reads one leaf page of the primary key. It finds every key, whatever concurrent splits,
# deletions of pages, VACUUM and REINDEX make of the index: the states that last for an instant only
# are written into the index while the server is down.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('leaf_probe',
	conf => "fsync = off\nsynchronous_commit = off\nlog_statement = none\nignore_checksum_failure = on");
my $sql = sub { return $node->safe_psql('postgres', $_[0]) };
$sql->(<<'SQL');
CREATE EXTENSION amcheck;
CREATE EXTENSION pageinspect;
SELECT count(*) FROM idem.once_each('payments', ARRAY(SELECT 'key' || i FROM generate_series(1, 2000) i));
SQL
my $executed_again = sub { # of the keys of these records
	my ($which) = @_;
	return $sql->(<<"SQL");
SELECT count(*) FROM (SELECT s.name, coalesce(r.key, r.key_uuid::text) AS key FROM idem.record r, idem.scope s
                       WHERE s.id = r.scope AND $which OFFSET 0) r WHERE idem.once(name, key)
SQL
};
is($executed_again->('true'), 0, 'every key is found, also those that divide two pages');

# The root's entries, and so the bounds of the pages below it.
my $root = $sql->(q{SELECT root FROM bt_metap('idem.record_pkey')});
my $items = sub {
	my ($block) = @_;
	return map { [ split /\|/ ] } split /\n/, $sql->(<<"SQL");
SELECT itemoffset, (ctid::text::point)[0]::int, replace(data, ' ', '')
  FROM bt_page_items('idem.record_pkey', $block)
SQL
};
my @children = $items->($root);
shift @children if $sql->("SELECT btpo_next FROM bt_page_stats('idem.record_pkey', $root)") != 0;
cmp_ok(scalar @children, '>', 4, 'the index has several leaf pages');

# Writes into pages of the index while the server is down: a key at a place of a page, or flags.
my $edit = sub {
	my (@edits) = @_;
	my $file = $node->data_dir . '/' . $sql->(q{SELECT pg_relation_filepath('idem.record_pkey')});
	$node->stop;
	open(my $index, '+<:raw', $file) or die $!;
	for (@edits)
	{
		my ($block, $place, $value) = @$_;
		seek $index, $block * 8192, 0;
		read $index, my $page, 8192;
		if ($place eq 'flags')
		{
			substr($page, 8192 - 4, 2) = pack 'S', $value | unpack 'S', substr($page, 8192 - 4, 2);
		}
		else
		{
			my $entry = 0x7fff & unpack 'L', substr($page, 24 + 4 * ($place - 1), 4);
			substr($page, $entry + 8, 16) = pack 'H32', $value;
		}
		seek $index, $block * 8192, 0;
		print $index $page;
	}
	close $index or die $!;
	$node->start;
};
my ($left, $right, $next) = @children[ 1 .. 3 ];
my $moved = "digest >= '$right->[2]' AND digest < '$next->[2]'";
cmp_ok($sql->("SELECT count(*) FROM idem.record WHERE $moved"), '>', 10, 'a page has keys');

# A split that is not known above: the root leads to the left page.
$edit->([ $root, $right->[0], $next->[2] ]);
is($executed_again->($moved), 0, 'keys that a split has moved to the right are found');

# A page in deletion (BTP_HALF_DEAD) that the root still leads to: its keys belong to the next page.
$edit->([ $left->[1], 1, $next->[2] ], [ $left->[1], 'flags', 1 << 4 ]);
is($executed_again->($moved), 0, 'keys beside a page in deletion are found');
$sql->('REINDEX TABLE idem.record');

# One key has so many row versions that their entries fill several pages; then all but the last go.
$sql->(<<'SQL');
CREATE INDEX extra ON idem.record (expires);
DO $$ BEGIN
  FOR i IN 1..4000 LOOP UPDATE idem.record SET expires = expires + '1s' WHERE key = 'key1'; END LOOP;
END $$;
SQL
is($executed_again->("r.key = 'key1'"), 0, 'the last of many row versions is found');
$sql->('VACUUM (INDEX_CLEANUP ON) idem.record');
is($executed_again->('true'), 0, 'also once the others are gone');
$sql->('DROP INDEX idem.extra');
tables_are_sound($node, 'before the load');

# Keys in the order of time, which leave whole pages empty when they go, and others.
$sql->(<<'SQL');
SELECT idem.create_scope('messages');
CREATE TABLE effect (key text);
CREATE TABLE done (key text);
SQL
my $script = $node->basedir . '/load.sql';
append_to_file($script, <<'SQL');
SELECT idem.new_key() AS key, gen_random_uuid()::text AS other \gset
INSERT INTO effect SELECT :key WHERE idem.once('messages', :key);
INSERT INTO effect SELECT :other WHERE idem.once('messages', :other);
INSERT INTO effect SELECT key FROM idem.once_each('messages', ARRAY[:key, :other]) key;
INSERT INTO effect SELECT :key WHERE idem.once('messages', :key);
INSERT INTO effect SELECT :other WHERE idem.once('messages', :other);
INSERT INTO done VALUES (:key);
SQL
my ($out, $err) = ('', '');
my $load = IPC::Run::start(
	[ 'pgbench', '-n', '-c', 3, '-T', 600, '-M', 'prepared', '-f', $script, $node->connstr('postgres') ],
	'>', \$out, '2>', \$err);
my $deleted = 0;
for my $round (1 .. 4)
{
	$node->poll_query_until('postgres', 'SELECT count(*) > 600 FROM done') or die 'the load stands still';
	$sql->(<<'SQL');
WITH gone AS (DELETE FROM done RETURNING key)
DELETE FROM idem.record WHERE key_uuid IN (SELECT key::uuid FROM gone)
SQL
	$sql->("VACUUM (INDEX_CLEANUP ON) idem.record");
	$deleted += $sql->(<<'SQL');
SELECT count(*) FROM generate_series(1, pg_relation_size('idem.record_pkey') / 8192 - 1) block,
       bt_page_stats('idem.record_pkey', block) WHERE type = 'd'
SQL
	$sql->($round % 2 ? 'VACUUM idem.record' : 'REINDEX INDEX CONCURRENTLY idem.record_pkey');
}
$load->signal('TERM');
$load->finish;
unlike($err, qr/ERROR|aborted/, 'the load had no error') or diag($err);
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'})
  or die 'the load goes on';
cmp_ok($deleted, '>', 0, 'pages of the index were deleted meanwhile');
is($sql->('SELECT count(*) - count(DISTINCT key) FROM effect'), 0, 'no key was executed twice');
is($executed_again->("s.name = 'messages'"), 0, 'every key is found');
tables_are_sound($node, 'after the load');
$node->stop;
done_testing();
