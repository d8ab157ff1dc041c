# What idem rests on beyond PostgreSQL's documented interfaces, each assumption alone: a server where
# one does not hold any more is named by the test that fails. test_extension/assumptions.cpp lists them.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the SQL edition rests on SQL alone' if managed_edition();
my $node = idem_node('assumptions', conf => "statement_timeout = '1h'", bare => 1);
sub row { my ($byte) = @_; return "INSERT INTO canary VALUES ('" . sprintf('%02x', $byte) x 16 . "', 0)"; }
$node->safe_psql('postgres', <<"SQL");
CREATE FUNCTION assumptions(OUT name text, OUT file text, OUT what text) RETURNS SETOF record
LANGUAGE c AS 'idem_test', 'idem_test_assumptions';
CREATE FUNCTION assumption(name text) RETURNS boolean LANGUAGE c AS 'idem_test', 'idem_test_assumption';
CREATE TABLE canary (id uuid PRIMARY KEY, block integer) WITH (fillfactor = 50);
CREATE INDEX ON canary USING brin (block);
@{[ row(1) ]};
BEGIN; @{[ row(3) ]}; PREPARE TRANSACTION 'canary';
SQL
my $other = $node->background_psql('postgres', on_error_stop => 1);
$other->query_safe('BEGIN; ' . row(2));

my @assumptions = map { [ split /\|/ ] } split /\n/, $node->safe_psql('postgres', 'SELECT * FROM assumptions()');
cmp_ok(scalar(@assumptions), '>=', 13, 'the list');
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
$node->safe_psql('postgres', "ROLLBACK PREPARED 'canary'");
is($node->safe_psql('postgres', "SELECT assumption('$_')"), 'f', "the try of $_ can fail")
  for 'dirty snapshots', 'prepared transactions';
log_is_clean($node);
$node->stop;
done_testing();
