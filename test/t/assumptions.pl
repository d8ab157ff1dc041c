# What idem rests on beyond PostgreSQL's documented interfaces, each assumption alone: a server where
# one does not hold any more is named by the test that fails. test_extension/assumptions.cpp lists them.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the SQL edition rests on SQL alone' if managed_edition();
my $node = idem_node('assumptions', conf => "statement_timeout = '1h'\nlock_timeout = '1min'", bare => 1);
sub id { my ($byte) = @_; return "'" . sprintf('%02x', $byte) x 16 . "'"; }
sub row { my ($byte) = @_; return "INSERT INTO canary VALUES (@{[ id($byte) ]}, 0)"; }
$node->safe_psql('postgres', <<"SQL");
CREATE FUNCTION assumptions(OUT name text, OUT file text, OUT what text) RETURNS SETOF record
LANGUAGE c AS 'idem_test', 'idem_test_assumptions';
CREATE FUNCTION assumption(name text) RETURNS boolean LANGUAGE c AS 'idem_test', 'idem_test_assumption';
CREATE EXTENSION pageinspect;
CREATE TABLE canary (id uuid PRIMARY KEY, block integer) WITH (fillfactor = 50);
CREATE INDEX ON canary USING brin (block);
@{[ row(1) ]}; @{[ row(4) ]}; @{[ row(5) ]}; @{[ row(6) ]};
UPDATE canary SET block = block WHERE id = @{[ id(4) ]};
UPDATE canary SET block = block WHERE id = @{[ id(4) ]};
INSERT INTO canary SELECT md5(i::text)::uuid, 0 FROM generate_series(1, 3000) i;
CREATE TABLE emptied (id uuid PRIMARY KEY);
INSERT INTO emptied SELECT md5(i::text)::uuid FROM generate_series(1, 3000) i;
DELETE FROM emptied WHERE id < '80000000-0000-0000-0000-000000000000';
CREATE INDEX extra ON canary (block);
DO \$\$ BEGIN FOR i IN 1..150 LOOP UPDATE canary SET block = i WHERE id = @{[ id(6) ]}; END LOOP; END \$\$;
DROP INDEX extra;
DELETE FROM canary WHERE id = @{[ id(5) ]};
SQL
my $other = $node->background_psql('postgres', on_error_stop => 1);
$other->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM canary');
$node->safe_psql('postgres', <<"SQL");
VACUUM (INDEX_CLEANUP ON) emptied;
SET enable_seqscan = off; SET enable_bitmapscan = off;
SELECT count(*) FROM canary WHERE id = @{[ id(5) ]};
BEGIN; @{[ row(3) ]}; SELECT pg_advisory_xact_lock(1, 3); PREPARE TRANSACTION 'canary';
SQL
$other->query_safe(row(2) . '; SELECT pg_advisory_xact_lock(1, 2)');
my $entries = sub {
	my ($byte, $what) = @_;
	return $node->safe_psql('postgres', <<"SQL");
SELECT count(*) > 0 FROM generate_series(1, pg_relation_size('canary_pkey') / 8192 - 1) block,
       bt_page_items('canary_pkey', block) WHERE replace(data, ' ', '') = @{[ id($byte) ]} AND $what
SQL
};
is($entries->(5, 'dead'), 't', 'an entry is marked as dead');
is($entries->(6, 'tids IS NOT NULL'), 't', 'an entry is a list');

my @assumptions = map { [ split /\|/ ] } split /\n/, $node->safe_psql('postgres', 'SELECT * FROM assumptions()');
cmp_ok(scalar(@assumptions), '>=', 22, 'the list');
for (@assumptions)
{
	my ($name, $file, $what) = @$_;
	my ($status, $holds, $error) = $node->psql('postgres', "SELECT assumption('$name')");
	is($holds, 't', "$name ($file): $what") or diag $error;
	next if $status == 0;
	$node->poll_query_until('postgres', 'SELECT true') or BAIL_OUT("the server does not run after: $name");
}

$other->query_safe('ROLLBACK');
$other->quit;
my $holds = sub { return $node->safe_psql('postgres', "SELECT assumption('$_[0]')") };
$node->restart;
is($holds->($_), 't', "$_, after a restart") for 'prepared transactions', 'locks of prepared transactions';
$node->safe_psql('postgres', "ROLLBACK PREPARED 'canary'; VACUUM canary; SELECT txid_current()");
is($holds->($_), 'f', "the try of $_ can fail")
  for 'dirty snapshots', 'prepared transactions', 'locks of others', 'locks of prepared transactions',
  'partial uniqueness', 'dead entries', 'posting lists', 'deleted pages';
log_is_clean($node);
$node->stop;
done_testing();
