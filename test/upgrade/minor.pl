# Two minor releases of one PostgreSQL, both with the library that was built for the older: each runs
# it, and each can be the standby of the other and take over from it.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @servers = split ' ', $ENV{IDEM_SERVERS};
die 'two servers' if @servers != 2;

for my $pair ([ 0, 1 ], [ 1, 0 ])
{
	my ($from, $to) = map { $servers[$_] } @$pair;
	my $primary = idem_node(
		"primary_$pair->[0]",
		new => { install_path => $from },
		init => { allows_streaming => 1 },
		conf => "shared_preload_libraries = 'idem'\n");
	$primary->backup('backup');
	my $standby = PostgreSQL::Test::Cluster->new("standby_$pair->[1]", install_path => $to);
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->start;
	my ($old, $new) = map { $_->safe_psql('postgres', 'SHOW server_version') } $primary, $standby;
	isnt($old, $new, "the primary is $old, the standby $new");

	my $way = "from $old to $new";
	is($primary->safe_psql('postgres', q{SELECT pay('before', '{"amount": 1}')}), '{"payment": 1}',
		"$way: an operation");
	my $token = $primary->safe_psql('postgres',
		q{SELECT token FROM idem.claim('payments', 'leased', lease => '1 hour')});
	$primary->wait_for_catchup($standby);
	is($standby->safe_psql('postgres', q{SELECT state, response FROM idem.lookup('payments', 'before')}),
		'completed|{"payment": 1}', "$way: the standby looks it up");
	$primary->stop;
	$standby->promote;
	is($standby->safe_psql('postgres', q{SELECT pay('before', '{"amount": 1}')}), '{"payment": 1}',
		"$way: the new primary replays it");
	is($standby->safe_psql('postgres', "SELECT idem.complete('$token', '1')"), '1',
		"$way: and completes an open lease");
	like($standby->safe_psql('postgres', q{SELECT pay('after', '{"amount": 1}')}), qr/payment/,
		"$way: and runs new operations");
	is($standby->safe_psql('postgres', q{SELECT count(*), count(DISTINCT key) FROM payment}), '2|2', "$way: each once");
	ok($standby->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity
		WHERE backend_type = 'idem launcher'}), "$way: the worker runs");
	$standby->stop;
	log_is_clean($_) for $primary, $standby;
}
done_testing();
