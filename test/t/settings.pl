# No setting of a session changes an answer. In both editions, every call has the same results under
# each value of each setting that a session may change: its body is parsed, and its casts and its
# regular expressions read, as they were written.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Traps;

# What these change is not an answer.
my %left_out = (
	default_transaction_read_only => 'refuses what writes',
	transaction_read_only => 'refuses what writes',
	exit_on_error => 'an expected error would end the session',
	session_replication_role => 'disables triggers: see t/managed_rights.pl and t/repack.pl',
	debug_discard_caches => 'slow: see test/run',
	log_statement_stats => 'excludes the other statistics of a statement',
	track_counts => 'health() says so');
# Settings that are neither boolean nor a list of values, and some values of them.
my @others = (
	"SET DateStyle = 'German, DMY'; SET TimeZone = 'Pacific/Chatham'; SET extra_float_digits = -15;
		SET plpgsql.extra_errors = 'all'; SET search_path = pg_temp",
	"SET DateStyle = 'Postgres, MDY'; SET client_encoding = LATIN1; SET plpgsql.variable_conflict = use_column;
		SET default_text_search_config = 'simple'; SET search_path = ''",
	'SET plpgsql.variable_conflict = use_variable; SET work_mem = 64; SET gin_fuzzy_search_limit = 1;
		SET from_collapse_limit = 1; SET join_collapse_limit = 1; SET geqo_threshold = 2');

# Requests, keys and answers that are read with a regular expression, cast or compared.
my @awkward = (
	q({"amount": 100, "note": "a.b0"}), q({"amount": 1.50, "text": "1.50"}), q({"a": "\\\\", "b": 2.0}),
	q({"a": "\"1.0\"", "b": [1.0, 1e2]}),
	q({"when": "2026-01-02 03:04:05+00", "x": null}), q({"sent_at": 1, "a": 1.0}));
my $older = join '', map { my $n = $_; <<"SQL" } 0 .. $#awkward;
SELECT outcome, response, status, headers, encode(body, 'hex'), differs
  FROM idem.try_claim('before', 'order-$n', \$j\$$awkward[$n]\$j\$);
SELECT outcome, differs FROM idem.try_claim('before', 'order-$n', '{"amount": 1000000}');
SQL
my $before = <<'SQL' . join '', map { my $n = $_; <<"SQL" } 0 .. $#awkward;
SELECT idem.create_scope('before', request_exclude => '{sent_at}', store_request => 'always');
SQL
BEGIN;
SELECT token FROM idem.claim('before', 'order-$n', \$j\$$awkward[$n]\$j\$) \\gset
SELECT idem.complete(:'token', \$j\$$awkward[$n]\$j\$, 201, '{"Vary": ["Accept", "Origin"]}', E'\\\\x005c'),
  :'token' <> '';
COMMIT;
SQL
# What the tour does not ask.
my $asked = <<'SQL';
SELECT k, idem.parse_key(k) FROM unnest(ARRAY[$k$"a\"b\\c"$k$, 'plain', '"a"; x=1']) AS k;
SELECT idem.derive_key('shop', 'order', '1.50'), idem.derive_key($k$a\b$k$, E'c\\d');
SELECT outcome, attempt FROM idem.try_claim('before', 'ab1'), idem.release(token) AS r;
SELECT status, detail FROM idem.health() WHERE check_name = 'record tables';
SQL

my $node = idem_node('settings', bare => 1, conf => "shared_preload_libraries = 'idem'\nfsync = off\n"
	. "log_statement = none\nwal_level = minimal\nmax_wal_senders = 0");
$node->safe_psql('postgres', 'CREATE ROLE shop; CREATE ROLE clerk IN ROLE shop; CREATE DATABASE extension;
	CREATE DATABASE managed');
$node->safe_psql('extension', 'CREATE EXTENSION idem');
install_managed($node, 'managed');
$node->safe_psql($_, $Traps::objects . $before) for 'extension', 'managed';
my %tour = (extension => $Traps::tour, managed => $Traps::managed_tour);
# Above READ COMMITTED, the SQL edition refuses what an old snapshot would make wrong (docs/managed.md).
my %reset = (extension => '', managed => 'RESET default_transaction_isolation;');

# What a session sees that makes every call in a copy of this database.
sub tour_of
{
	my ($edition, $set) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE tour TEMPLATE $edition STRATEGY FILE_COPY");
	my (undef, $seen, $error) = $node->psql('tour', "\\set VERBOSITY sqlstate\nSET client_encoding = UTF8;\n$set\n"
		. "$reset{$edition}\n$asked$older$tour{$edition}", on_error_stop => 0);
	$node->safe_psql('postgres', 'DROP DATABASE tour');
	$seen =~ s/"(\w+)"/$1/g;    # quote_all_identifiers
	return $seen . join "\n", '', $error =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5})/g;
}

# The n-th other value of each setting. PostgreSQL 19 refuses strings that do not conform.
my @groups = split /\n/, $node->safe_psql('postgres', <<"SQL");
SELECT string_agg(format('SET %s = %L', name, value), '; ' ORDER BY name)
  FROM pg_settings,
       unnest(coalesce(enumvals, '{on,off}')) WITH ORDINALITY AS v (value, n)
 WHERE vartype IN ('bool', 'enum') AND context IN ('user', 'superuser') AND value <> setting
   AND name <> ALL ('{@{[ join ',', keys %left_out ]}}')
   AND NOT (name = 'standard_conforming_strings' AND current_setting('server_version_num')::int >= 190000)
 GROUP BY n ORDER BY n
SQL
cmp_ok(scalar @groups, '>', 3, 'the server names settings');

for my $edition ('extension', 'managed')
{
	my $expected = tour_of($edition, '');
	like($expected, qr/answer: 42/, "$edition: the tour makes every call");
	for my $set (@groups, @others)
	{
		my $seen = tour_of($edition, "$set;");
		next if is($seen, $expected, "$edition: $set");
		note "$edition: of these, $_" for grep { tour_of($edition, "$_;") ne $expected } split /; /, $set;
	}
}

$node->stop;
done_testing();
