# The monitoring that ships with idem: postgres_exporter reads the figures as a member of
# pg_monitor, and dashboard and alerts name only metrics that it exports.
use strict;
use warnings;

use CPAN::Meta::YAML;
use HTTP::Tiny;
use IdemTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $exporter = installed('prometheus-postgres-exporter', 'postgres_exporter')
  or plan skip_all => 'postgres_exporter is not installed';
my $monitoring = "$ENV{TESTDIR}/monitoring";
my $queries = "$monitoring/postgres_exporter_queries.yaml";

my $node = idem_node('exporter', conf => "shared_preload_libraries = 'idem'\nautovacuum = on\nidem.purge_naptime = 0");
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE exporter LOGIN IN ROLE pg_monitor;
SELECT idem.create_scope('second "scope"', ttl => '5 s');
SELECT pay('order-4711', '{"amount": 1}');
SELECT pay('order-4711', '{"amount": 1}');
SELECT pay('order-4712', '{"amount": 2}');
SELECT outcome FROM idem.try_claim('payments', 'order-4712', '{"amount": 3}');
SELECT outcome FROM idem.claim('payments', 'leased-1', tenant => 'somebody', lease => '1 hour');
SELECT idem.complete(token) FROM idem.claim('payments', 'expired-1', ttl => '1 millisecond');
SELECT pg_sleep(0.01);
SELECT idem.advance('payments', 'stream', n) FROM unnest('{1,2,2}'::int[]) n;
SELECT token AS t FROM idem.claim('payments', 'long', ttl => '1 second', lease => '1 hour') \gset
UPDATE idem.record SET created = created - interval '1 hour' WHERE key = 'long';
SELECT idem.complete(:'t');
SELECT idem.forget('payments', 'long');
SQL
my $session = $node->background_psql('postgres');
$session->query_safe("BEGIN; SELECT idem.once('payments', 'order-4713'), idem.once('payments', 'order-4714')");
$node->safe_psql('postgres', "BEGIN; SELECT idem.once('payments', 'order-4715'); PREPARE TRANSACTION 'held'");

# The exporter, on a port of its own -----------------------------------------------------------------

my $port = PostgreSQL::Test::Cluster::get_free_port();
my $log = PostgreSQL::Test::Utils::tempdir . '/exporter.log';
my $socket = $node->host;
$ENV{DATA_SOURCE_NAME} = "host=$socket port=" . $node->port . ' user=exporter dbname=postgres sslmode=disable';
my $run = IPC::Run::start([ $exporter, "--web.listen-address=127.0.0.1:$port", "--extend.query-path=$queries",
		'--disable-default-metrics', '--disable-settings-metrics' ], '>', \my $out, '2>', $log);

# The text of the metrics, once it has those of idem.
sub scrape
{
	my $text = '';
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $answer = HTTP::Tiny->new->get("http://127.0.0.1:$port/metrics");
		$text = $answer->{content};
		return $text if $answer->{success} && $text =~ /^idem_health_status/m;
		select undef, undef, undef, 0.1;
	}
	diag("$text\n" . slurp_file($log));
	die 'the exporter does not deliver';
}

# The samples: name{labels} => value, the labels without the server's.
my %samples;
my $text = scrape();
for my $line (grep { /^idem_/ } split /\n/, $text)
{
	my ($name, $labels, $value) = $line =~ /^(\w+)\{(.*)\} (\S+)$/ or die "no sample: $line";
	$labels =~ s/,?server="[^"]*"//;
	$samples{"$name\{$labels\}"} = $value;
}
my %exported = map { (/^(\w+)/)[0] => 1 } keys %samples;
my %histograms = map { $_ => 1 } $text =~ /^# TYPE (idem_\w+) histogram$/mg;

unlike($text, qr/order-471|leased-1|expired-1|somebody/, 'no key and no tenant is exported');
unlike($text, qr/^pg_exporter_last_scrape_error 1/m, 'no query failed');

my $wanted = CPAN::Meta::YAML->read($queries)->[0];
my @metrics;
for my $space (sort keys %$wanted)
{
	for my $column (@{ $wanted->{$space}{metrics} })
	{
		my ($name, $definition) = %$column;
		push @metrics, "${space}_$name" unless $definition->{usage} eq 'LABEL';
	}
}
cmp_ok(scalar @metrics, '>', 30, 'the queries define metrics');
@metrics = map { my $name = $_; $histograms{$name} ? map { "${name}_$_" } qw(bucket sum count) : $name } @metrics;
is_deeply([ grep { !$exported{$_} } @metrics ], [], 'every metric of the queries is exported');
is_deeply([ grep { my $name = $_; !grep { $_ eq $name } @metrics } sort keys %exported ], [],
	'and nothing else');

# A standby reports what is to be done there, and nothing that the primary reports, too.
my ($own) = $wanted->{idem_health}{query} =~ /OR check_name IN (\(.*?\))/;
my ($not_of_primary) = slurp_file("$ENV{TESTDIR}/sql/health.sql") =~ /v\.standby AND c\.check_name NOT IN (\(.*?\))/;
is($own, $not_of_primary, 'a standby exports the checks whose hints are for the standby');
is_deeply([ grep { $wanted->{$_}{query} !~ /NOT pg_is_in_recovery\(\)/ } sort keys %$wanted ],
	[qw(idem_durations idem_held idem_stats)], 'and of figures those that are counted there');

# Values ---------------------------------------------------------------------------------------------

sub value
{
	my ($name, %labels) = @_;
	my $labels = join ',', map { qq($_="$labels{$_}") } sort keys %labels;
	return $samples{"$name\{$labels\}"};
}

my %payments = (datname => 'postgres', scope => 'payments');
is(value('idem_scope_live', %payments), 3, 'live records');
is(value('idem_scope_completed', %payments), 2, 'completed ones');
is(value('idem_scope_in_progress', %payments), 1, 'a leased claim');
is(value('idem_scope_expired', %payments), 1, 'an expired record');
cmp_ok(value('idem_scope_expired_age_seconds', %payments), '>', 0, 'the age of an expired record');
is(value('idem_scope_lapsed_age_seconds', %payments), 0, 'no lease has lapsed');
is(value('idem_scope_ttl_seconds', %payments), 86400, 'the TTL');
is(value('idem_scope_live', datname => 'postgres', scope => 'second \"scope\"'), 0, 'a scope without records');
is(value('idem_stats_claims_total', %payments), 8, 'claims');
is(value('idem_stats_replays_total', %payments), 1, 'replays');
is(value('idem_stats_conflicts_total', %payments), 1, 'conflicts');
is(value('idem_stats_advances_total', %payments), 2, 'messages of a stream');
is(value('idem_stats_duplicates_total', %payments), 1, 'and one that comes again');
my $counters = $node->safe_psql('postgres', "SELECT attname FROM pg_attribute WHERE attrelid = 'idem.stats'::regclass
	AND atttypid = 'bigint'::regtype");
my @missing = grep { !defined value("idem_stats_${_}_total", %payments) } split /\n/, $counters;
is_deeply(\@missing, [], 'no counter is missing');
is_deeply([ sort keys %histograms ], ['idem_durations_seconds'], 'the histograms are histograms');
for my $kind (qw(atomic leased wait))
{
	my $within = sub {
		my ($le) = @_;
		return $samples{qq(idem_durations_seconds_bucket{datname="postgres",kind="$kind",scope="payments",le="$le"})};
	};
	my %count = (atomic => 3, leased => 1, wait => 0);
	is($within->('+Inf'), $count{$kind}, "every duration of kind $kind is in a bucket");
	is(value('idem_durations_seconds_count', %payments, kind => $kind), $count{$kind}, 'and counted');
	my $buckets = grep { /^idem_durations_seconds_bucket\{.*kind="$kind",scope="payments"/ } keys %samples;
	is($buckets, 28, 'in buckets up to 27 bounds and above');
	my $largest = $within->('8589.934592');
	is($largest, $count{$kind}, 'the counts are cumulative');
}
cmp_ok(value('idem_durations_seconds_sum', %payments, kind => 'leased'), '>=', 3600, 'seconds are seconds');
like($text, qr/^# TYPE idem_stats_claims_total counter$/m, 'counters are counters');
is(value('idem_held_keys', datname => 'postgres', holder => 'running'), 2, 'keys that a running transaction holds');
cmp_ok(value('idem_held_age_seconds', datname => 'postgres', holder => 'running'), '>', 0,
	'the age of a running transaction that holds keys');
is(value('idem_held_keys', datname => 'postgres', holder => 'prepared'), 1, 'keys that a prepared transaction holds');
cmp_ok(value('idem_held_age_seconds', datname => 'postgres', holder => 'prepared'), '>', 0,
	'the age of a prepared transaction');
is( value('idem_storage_table_bytes', datname => 'postgres', records => 'idem.record'),
	$node->safe_psql('postgres', "SELECT pg_table_size('idem.record')"), 'the size of the table');
is(value('idem_health_status', check_name => 'indexes', datname => 'postgres', scope => ''), 0,
	'a check with status ok');
is(value('idem_health_status', check_name => 'retention', datname => 'postgres', scope => 'second \"scope\"'),
	1, 'a check with status warn');
is( (grep { /^idem_health_status/ } keys %samples),
	$node->safe_psql('postgres', 'SELECT count(DISTINCT (check_name, scope)) FROM idem.health()'),
	'every check has a value');

$run->kill_kill;
$session->quit;
my @counters = split /\n/, $node->safe_psql('postgres',
	"SELECT attname FROM pg_attribute WHERE attrelid = 'idem.stats'::regclass AND atttypid = 'bigint'::regtype
		AND attnum > 0");
$node->safe_psql('postgres', "ROLLBACK PREPARED 'held'");

# Dashboard and alerts ----------------------------------------------------------------------------

sub named_metrics
{
	my %names = map { $_ => 1 } map { /\b(idem_\w+)/g } @_;
	return sort keys %names;
}

my $dashboard = decode_json(slurp_file("$monitoring/grafana-dashboard.json"));
my @panels = @{ $dashboard->{panels} };
my @expressions = map { $_->{expr} } map { @{ $_->{targets} } } @panels;
cmp_ok(scalar @panels, '>', 10, 'the dashboard has panels');
is(scalar(keys %{ { map { $_->{id} => 1 } @panels } }), scalar @panels,
	'each panel of the dashboard has an id of its own');
is_deeply([ grep { /by \(scope/ } @expressions ], [], 'scopes of different databases are different');
is_deeply([ grep { !@{ $_->{targets} } || !$_->{title} } @panels ], [], 'each panel has a title and a query');
is_deeply(
	[ grep { !$exported{$_} } named_metrics(@expressions,
			map { $_->{definition} // '' } @{ $dashboard->{templating}{list} }) ],
	[], 'the dashboard uses only exported metrics');

my $alerts = CPAN::Meta::YAML->read("$monitoring/alerts.yaml")->[0];
my @rules = map { @{ $_->{rules} } } @{ $alerts->{groups} };
cmp_ok(scalar @rules, '>=', 10, 'there are alert rules');
is_deeply([ grep { !$_->{alert} || !$_->{annotations}{summary} || !$_->{annotations}{description} } @rules ],
	[], 'each alert has a summary and a description');
is_deeply([ grep { !$exported{$_} } named_metrics(map { $_->{expr} } @rules) ], [],
	'the alerts use only exported metrics');
SKIP:
{
	my $promtool = installed('promtool') or skip 'promtool is not installed', 6;
	command_like([ $promtool, 'check', 'rules', "$monitoring/alerts.yaml" ], qr/SUCCESS/,
		'promtool accepts the alerts');
	my $n = 0;
	my $file = PostgreSQL::Test::Utils::tempdir . '/expressions.yaml';
	append_to_file($file, encode_json({ groups => [ { name => 'dashboard', rules => [
		map { { record => "x:" . ++$n, expr => s/\$__rate_interval/5m/gr } } @expressions ] } ] }));
	command_like([ $promtool, 'check', 'rules', $file ], qr/SUCCESS/,
		'promtool accepts the expressions of the dashboard');
}

# COLUMN of a metric in the documentation stands for each counter of its view.
my $docs = slurp_file("$ENV{TESTDIR}/docs/monitoring.md");
my %explained = map { $_ => 1 } $docs =~ /`(idem_\w+)`/g;
for my $pattern (grep { /COLUMN/ } keys %explained)
{
	$explained{ $pattern =~ s/COLUMN/$_/r } = 1 for @counters;
}
is_deeply([ grep { !$explained{$_} } @metrics ], [], 'the documentation explains every metric');
is_deeply([ grep { $docs !~ /`$_`/ } map { $_->{alert} } @rules ], [], 'the documentation explains every alert');

log_is_clean($node);
$node->stop;
done_testing();
