# The alerts that ship with idem, each on made-up metrics, with promtool: it fires for the server, the
# database and the scope that it is about, with a text that says so, and for nothing else.
use strict;
use warnings;

use CPAN::Meta::YAML;
use IdemTest;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $promtool = installed('promtool') or plan skip_all => 'promtool is not installed';
my $file = "$ENV{TESTDIR}/monitoring/alerts.yaml";
my $rules = CPAN::Meta::YAML->read($file)->[0]{groups}[0]{rules};
my %rule = map { $_->{alert} => $_ } @$rules;
my $queries = CPAN::Meta::YAML->read("$ENV{TESTDIR}/monitoring/postgres_exporter_queries.yaml")->[0];

command_like([ $promtool, 'check', 'rules', $file ], qr/SUCCESS/, 'promtool accepts the alerts');
is_deeply([ grep { !/\S/ || /\{\{/ } map { $_->{annotations}{description} // '' } @$rules ], [],
	'each alert has a description, the same for all servers');
my $page = slurp_file("$ENV{TESTDIR}/docs/monitoring.md");
is_deeply([ grep { $page !~ /`$_`/ } sort keys %rule ], [], 'the documentation explains each');

# Running them -----------------------------------------------------------------------------------

my %target = (job => 'postgres', server => '/run/postgresql:5432');

# A metric as Prometheus has it: with the labels of its query, and of its target.
sub series
{
	my ($metric, $labels) = @_;
	my %all = (%target, %$labels);
	my ($query) = grep { index($metric, "${_}_") == 0 } keys %$queries;
	my %column = map { %$_ } @{ $queries->{ $query // '' }{metrics} };
	my $name = $metric =~ s/^\Q$query\E_//r;
	my @wanted = sort grep { $column{$_}{usage} eq 'LABEL' } keys %column;
	my @labels = sort grep { !/^(?:job|instance|server|le)$/ } keys %all;
	die "$metric is not exported" unless $column{$name} || ($all{le} && $column{ $name =~ s/_bucket$//r });
	die "$metric has the labels @wanted, not @labels" unless "@wanted" eq "@labels";
	return "$metric\{" . (join ',', map { qq($_="$all{$_}") } sort keys %all) . '}';
}

# An alert that fires, with these labels and this summary. A label without a value is none.
sub firing
{
	my ($alert, $labels, $summary) = @_;
	my %all = (($labels->{instance} ? %target : ()), %{ $rule{$alert}{labels} }, %$labels);
	return {
		exp_labels => { map { $_ => $all{$_} } grep { $all{$_} ne '' } keys %all },
		exp_annotations => { summary => $summary, description => $rule{$alert}{annotations}{description} } };
}

# What promtool is to check: with the metrics [ name, labels, values ], at each of the times, the alert
# fires like this.
my (%tests, %fires, %silent);
my $interval = '1m';    # of the values, and of the evaluations

sub check
{
	my ($alert, $why, $metrics, @at) = @_;
	my @expected;
	while (my ($time, $firing) = splice @at, 0, 2)
	{
		push @expected, { eval_time => "${time}m", alertname => $alert, exp_alerts => $firing };
		(@$firing ? $fires{$alert} : $silent{$alert})++;
	}
	push @{ $tests{$alert}{$interval} }, { name => $why, interval => $interval, alert_rule_test => \@expected,
		input_series => [ map { { series => series(@$_[0, 1]), values => $_->[2] } } @$metrics ] };
	return;
}

# Each alert, with the values of its metrics for a scope in trouble, and for one that is not; the last
# time at which it is still silent and the first at which it fires, in minutes; and its text.
my $where = 'idem on a:9187, database shop';
my %check = (check_name => 'purge');
my @troubles = (
	[ 'IdemFails', { idem_health_status => [ '2x70', '1x70' ] }, 4, 5, "$where: check purge fails for scope orders",
		%check ],
	[ 'IdemWarns', { idem_health_status => [ '1x70', '0x70' ] }, 29, 30, "$where: check purge warns about scope orders",
		%check ],
	[ 'IdemConflicts', { idem_stats_conflicts_total => [ '0x9 1x60', '7x70' ] }, 9, 10,
		"$where: clients of scope orders use one key for different requests" ],
	[ 'IdemConflictRatio', {
			idem_stats_conflicts_total => [ '0x9 6+6x60', '0x9 5+5x60' ],
			idem_stats_claims_total => [ '0+50x70', '0+50x70' ],
			idem_stats_replays_total => [ '0+50x70', '0+50x70' ] }, 35, 45,
		"$where: more than 5 % of the claims in scope orders are conflicts" ],
	[ 'IdemReplayRatio', {
			idem_stats_replays_total => [ '0+91x140', '0+89x140' ],
			idem_stats_claims_total => [ '0+10x140', '0+10x140' ] }, 60, 70,
		"$where: more than 90 % of the claims in scope orders are replays" ],
	[ 'IdemInFlight', {
			idem_stats_in_flight_total => [ '0+11x60', '0+9x60' ],
			idem_stats_claims_total => [ '0+100x60', '0+100x60' ] }, 10, 20,
		"$where: retries in scope orders arrive before the first try has finished" ],
	[ 'IdemLimited', { idem_stats_limited_total => [ '0x9 1x60', '7x70' ] }, 9, 10,
		"$where: a limit refuses claims in scope orders" ],
	[ 'IdemStaleKeys', { idem_stats_stale_total => [ '0x9 1x60', '7x70' ] }, 9, 10,
		"$where: scope orders refuses stale keys" ],
	[ 'IdemLeasesLapse', { idem_scope_lapsed_age_seconds => [ '0+60x60', '900x60' ] }, 20, 21,
		"$where: an operation in scope orders has been due for 21m 0s, and no claim has taken it over" ],
	[ 'IdemAttemptsExhausted', { idem_scope_exhausted => [ '0x9 3x60', '0x60' ] }, 14, 15,
		"$where: operations in scope orders are undecided and have no attempts left (3)" ]);

my @elsewhere = ([ 'b:9187', 'shop', 'orders' ], [ 'a:9187', 'crm', 'orders' ], [ 'a:9187', 'shop', 'carts' ]);

for (@troubles)
{
	my ($alert, $metrics, $before, $after, $summary, %labels) = @$_;
	my $labels = sub { return { %labels, instance => $_[0], datname => $_[1], scope => $_[2] } };
	my @trouble = map { [ $_, $labels->('a:9187', 'shop', 'orders'), $metrics->{$_}[0] ] } keys %$metrics;
	my @quiet =
		map { my $name = $_; map { [ $name, $labels->(@$_), $metrics->{$name}[1] ] } @elsewhere } keys %$metrics;
	check($alert, 'fires for the server, database and scope in trouble', [ @trouble, @quiet ],
		$before => [], $after => [ firing($alert, $labels->('a:9187', 'shop', 'orders'), $summary) ]);
	my @all = map { my $name = $_; map { [ $name, $labels->(@$_), $metrics->{$name}[0] ] } @elsewhere } keys %$metrics;
	check($alert, 'fires for each', [ @trouble, @all ], $before => [], $after => [
		map { my $at = $_; firing($alert, $labels->(@$at),
				$summary =~ s/a:9187, database shop/$at->[0], database $at->[1]/r =~ s/orders/$at->[2]/r) }
		  [ 'a:9187', 'shop', 'orders' ], @elsewhere ]);
	check($alert, 'is silent where there is no idem', [], 60 => []);
}

# A scrape that fails ends all series, and must not begin the wait for an alert anew.
for (grep { $_->[0] =~ /Fails|Warns|Lapse|Exhausted/ } @troubles)
{
	my ($alert, $metrics, undef, undef, $summary, %labels) = @$_;
	my ($metric) = keys %$metrics;
	my %trouble = (IdemFails => 2, IdemLeasesLapse => 1260);
	my $value = $trouble{$alert} // ($alert eq 'IdemWarns' ? 1 : 3);
	my %at = (%labels, instance => 'a:9187', datname => 'shop', scope => 'orders');
	check($alert, 'fires where every other scrape fails', [ [ $metric, \%at, join ' ', ("$value stale") x 30 ] ],
		40 => [ firing($alert, \%at, $summary) ], 41 => [ firing($alert, \%at, $summary) ]);
	check($alert, 'forgives what one scrape shows', [ [ $metric, \%at, "_x9 $value stale _x60" ] ],
		map { $_ => [] } 10 .. 30);
}

# What is special ----------------------------------------------------------------------------------

my %shop = (instance => 'a:9187', datname => 'shop');
my %orders = (%shop, scope => 'orders');
my %server = (%shop, scope => '');

check('IdemFails', 'names no scope if the check is about none',
	[ [ 'idem_health_status', { %server, check_name => 'secrets' }, '2x10' ] ],
	5 => [ firing('IdemFails', { %server, check_name => 'secrets' }, "$where: check secrets fails") ]);
check('IdemFails', 'forgives one bad scrape',
	[ [ 'idem_health_status', { %server, check_name => 'secrets' }, '0x3 2x3 0x10' ] ], map { $_ => [] } 4 .. 15);
check('IdemWarns', 'names no scope if the check is about none',
	[ [ 'idem_health_status', { %server, check_name => 'vacuum' }, '1x40' ] ],
	30 => [ firing('IdemWarns', { %server, check_name => 'vacuum' }, "$where: check vacuum warns") ]);

# The worker passes over all scopes alike.
check('IdemPurgeLag', 'fires once for the database, with the oldest', [
		[ 'idem_scope_expired_age_seconds', \%orders, '0+60x90' ],
		[ 'idem_scope_expired_age_seconds', { %shop, scope => 'carts' }, '600+60x90' ],
		[ 'idem_scope_expired_age_seconds', { %orders, instance => 'b:9187' }, '3600x90' ],
		[ 'idem_scope_expired_age_seconds', { %orders, datname => 'crm' }, '0x90' ] ],
	65 => [],
	66 => [ firing('IdemPurgeLag', \%shop, "$where: records expired 1h 16m 0s ago and have not been purged") ]);
check('IdemPurgeLag', 'fires for each server and database', [
		map { [ 'idem_scope_expired_age_seconds', $_, '7200x20' ] } \%orders, { %orders, instance => 'b:9187' },
		{ %orders, datname => 'crm' } ],
	15 => [ map { firing('IdemPurgeLag', { instance => $_->[0], datname => $_->[1] },
				"idem on $_->[0], database $_->[1]: records expired 2h 0m 0s ago and have not been purged") }
		[ 'a:9187', 'shop' ], [ 'b:9187', 'shop' ], [ 'a:9187', 'crm' ] ]);

check('IdemPurgeLag', 'fires where every other scrape fails',
	[ [ 'idem_scope_expired_age_seconds', \%orders, join ' ', ('7200 stale') x 20 ] ],
	30 => [ firing('IdemPurgeLag', \%shop, "$where: records expired 2h 0m 0s ago and have not been purged") ],
	31 => [ firing('IdemPurgeLag', \%shop, "$where: records expired 2h 0m 0s ago and have not been purged") ]);

# A server that is new, or of which Prometheus has forgotten that it was there, is not missed.
sub health
{
	my ($instance, $datname, $check, $values, $scope) = @_;
	return [ 'idem_health_status',
		{ instance => $instance, datname => $datname, scope => $scope // '', check_name => $check }, $values ];
}
sub missing
{
	my ($instance, $datname) = @_;
	return firing('IdemNotMonitored', { instance => $instance, datname => $datname },
		"Prometheus receives no metrics of idem from $instance, database $datname");
}
my $nothing = firing('IdemNotMonitored', {}, 'Prometheus receives no metrics of idem');

check('IdemNotMonitored', 'fires for one silent server of two', [ health('a:9187', 'shop', 'worker', '0x10 _x70'),
		health('b:9187', 'shop', 'worker', '0x80') ],
	24 => [], 27 => [ missing('a:9187', 'shop') ], 80 => [ missing('a:9187', 'shop') ]);
check('IdemNotMonitored', 'fires for one silent database of two', [ health('a:9187', 'shop', 'worker', '1x10 _x70'),
		health('a:9187', 'crm', 'worker', '2x80') ],
	24 => [], 27 => [ missing('a:9187', 'shop') ]);
check('IdemNotMonitored', 'fires for each silent server', [ health('a:9187', 'shop', 'worker', '0x10 _x70'),
		health('b:9187', 'shop', 'worker', '0x12 _x70') ],
	24 => [], 60 => [ missing('a:9187', 'shop'), missing('b:9187', 'shop') ]);
check('IdemNotMonitored', 'fires if nothing was ever there', [], 9 => [], 10 => [$nothing]);
check('IdemNotMonitored', 'is silent for a server that is new, and that comes back',
	[ health('a:9187', 'shop', 'worker', '0x60 _x8 0x100'), health('b:9187', 'shop', 'worker', '_x60 0x100') ],
	map { $_ => [] } 30, 59, 62, 75, 80, 160);
check('IdemNotMonitored', 'is silent if another check comes and goes',
	[ health('a:9187', 'shop', 'worker', '0x100'), health('a:9187', 'shop', 'purge', '0x10 _x100') ],
	map { $_ => [] } 10, 30, 100);
check('IdemNotMonitored', 'is silent while the check is about a scope, and afterwards',
	[ health('a:9187', 'shop', 'worker', '0x10 _x50 0x60'),
		health('a:9187', 'shop', 'worker', '_x11 1x49 _x60', 'orders') ],
	map { $_ => [] } 10, 30, 60, 80, 119);
$interval = '4m';
my $days = 24 * 15;
check('IdemNotMonitored', 'fires over a weekend, and not for good',
	[ health('a:9187', 'shop', 'worker', "0x10 _x" . 4 * $days), health('b:9187', 'shop', 'worker', '0x' . 4 * $days) ],
	4 * 3 * $days => [ missing('a:9187', 'shop') ], 4 * (3 * $days + 12) => []);
check('IdemNotMonitored', 'fires for good if that was all',
	[ health('a:9187', 'shop', 'worker', "0x10 _x" . 4 * $days) ],
	4 * 3 * $days => [ missing('a:9187', 'shop') ], 4 * (3 * $days + 16) => [$nothing], 4 * 4 * $days => [$nothing]);
$interval = '1m';

# Counters start at zero with the server, and with stats_reset().
for my $alert (qw(IdemConflicts IdemLimited IdemStaleKeys))
{
	my %counter = (IdemConflicts => 'conflicts', IdemLimited => 'limited', IdemStaleKeys => 'stale');
	check($alert, 'is silent after a restart, and a quarter of an hour after the last time',
		[ [ "idem_stats_$counter{$alert}_total", \%orders, '0x5 5x20 0x30' ] ], 4 => [], map { $_ => [] } 22, 26, 30,
		50);
}

# Where there is little to do, a few of anything are a large share.
check('IdemConflictRatio', 'is silent for a few conflicts among few claims',
	[ [ 'idem_stats_claims_total', \%orders, '0+1x120' ],
		[ 'idem_stats_replays_total', \%orders, '0x120' ],
		[ 'idem_stats_conflicts_total', \%orders, '0x9 1x9 2x9 3x9 4x9 5x9 6x60' ] ],
	map { $_ => [] } 20, 30, 40, 50, 60, 100);
check('IdemConflictRatio', 'fires if a client does nothing else', [ [ 'idem_stats_claims_total', \%orders, '0x120' ],
		[ 'idem_stats_replays_total', \%orders, '0x120' ], [ 'idem_stats_conflicts_total', \%orders, '0+1x120' ] ],
	40 => [ firing('IdemConflictRatio', \%orders,
			"$where: more than 5 % of the claims in scope orders are conflicts") ]);
check('IdemReplayRatio', 'is silent for a few replays without a claim',
	[ [ 'idem_stats_replays_total', \%orders, '0+5x180' ], [ 'idem_stats_claims_total', \%orders, '0x180' ] ],
	180 => []);
check('IdemReplayRatio', 'fires if one key serves for everything',
	[ [ 'idem_stats_replays_total', \%orders, '0+7x180' ], [ 'idem_stats_claims_total', \%orders, '1x180' ] ],
	120 => [ firing('IdemReplayRatio', \%orders, "$where: more than 90 % of the claims in scope orders are replays") ]);
check('IdemReplayRatio', 'is silent in a storm that is soon over',
	[ [ 'idem_stats_replays_total', \%orders, '0+200x30 6000x150' ],
		[ 'idem_stats_claims_total', \%orders, '0+10x180' ] ],
	map { $_ => [] } 30, 60, 90, 180);
check('IdemInFlight', 'is silent for a few retries', [ [ 'idem_stats_in_flight_total', \%orders, '0+5x60' ],
		[ 'idem_stats_claims_total', \%orders, '0+5x60' ] ], 60 => []);

# The buckets of a scope whose operations take less than 128 microseconds, up to 8.4 s, and up to 16.8.
sub durations
{
	my ($labels, $fast, $slower, $slowest, $kind) = @_;
	my @bounds = ([ '0.000128', $fast ], [ '8.388608', $slower ], [ '16.777216', $slowest ], [ '+Inf', $slowest ]);
	return map { [ 'idem_durations_seconds_bucket', { %$labels, kind => $kind // 'atomic', le => $_->[0] },
			$_->[1] ] } @bounds;
}
my @steady = ('0+100x60', '0+100x60', '0+100x60');
my @slow = ('0+900x60', '0+980x60', '0+1000x60');    # 2 %
sub slow
{
	my ($at) = @_;
	return firing('IdemSlowOperations', $at,
		"idem on $at->{instance}, database $at->{datname}: one in 100 atomic operations in scope $at->{scope} takes "
		. "about 12.58s");
}
my %slow_elsewhere = (%orders, instance => 'b:9187');
check('IdemSlowOperations', 'fires for the server, database and scope in trouble', [ durations(\%orders, @slow),
		map { durations({ %shop, instance => $_->[0], datname => $_->[1], scope => $_->[2] }, @steady) } @elsewhere ],
	10 => [], 12 => [ slow(\%orders) ]);
check('IdemSlowOperations', 'fires for each', [ durations(\%orders, @slow), durations(\%slow_elsewhere, @slow) ],
	12 => [ slow(\%orders), slow(\%slow_elsewhere) ]);
check('IdemSlowOperations', 'is silent if one in 200 is slow, or all take 8 seconds',
	[ durations(\%orders, '0+995x60', '0+995x60', '0+1000x60'),
		durations(\%slow_elsewhere, '0x60', '0+10x60', '0+10x60') ], 60 => []);
check('IdemSlowOperations', 'is silent for one slow operation', [ durations(\%orders, '0x60', '0x60', '0x20 1x40') ],
	map { $_ => [] } 20 .. 45);
check('IdemSlowOperations', 'is silent for leases, which hold no transaction', [ durations(\%orders, @slow, 'leased') ],
	60 => []);

check('IdemLeasesLapse', 'is silent if workers take over',
	[ [ 'idem_scope_lapsed_age_seconds', \%orders, '0+60x14 0+60x14 0+60x14' ] ], map { $_ => [] } 14, 28, 42);
check('IdemAttemptsExhausted', 'ends with the last of them', [ [ 'idem_scope_exhausted', \%orders, '2x20 1x20 0x20' ] ],
	30 => [ firing('IdemAttemptsExhausted', \%orders,
			"$where: operations in scope orders are undecided and have no attempts left (1)") ], 45 => []);

# All of them -------------------------------------------------------------------------------------

for my $alert (sort keys %rule)
{
	ok($fires{$alert} && $silent{$alert}, "$alert is tested to fire and to be silent") or next;
	for my $step (sort keys %{ $tests{$alert} })
	{
		my @tests = @{ $tests{$alert}{$step} };
		my $test = PostgreSQL::Test::Utils::tempdir . "/$alert-$step.yaml";
		append_to_file($test, encode_json({ rule_files => [$file], evaluation_interval => $step, tests => \@tests }));
		my ($output, $errors);
		my $passed = IPC::Run::run([ $promtool, 'test', 'rules', $test ], '>', \$output, '2>', \$errors);
		ok($passed, "$alert " . join '; ', map { $_->{name} } @tests) or diag("$output\n$errors");
	}
}

done_testing();
