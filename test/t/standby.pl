# A streaming standby: it can look up, but not claim; promoted, it continues where the primary
# stopped.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = idem_node('primary', conf => '', init => { allows_streaming => 1 });
$primary->safe_psql('postgres', q{SELECT pay('before', '{"amount": 1}')});
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "shared_preload_libraries = 'idem'") unless managed_edition();
$standby->start;

# A leased record that is being replaced by a new version in front of it: the index moves the row.
$primary->safe_psql('postgres', <<'SQL');
CREATE INDEX moving ON idem.record (lease_end);
SELECT count(*) FROM idem.once_each('payments', ARRAY(SELECT 'room' || i FROM generate_series(1, 10) i));
CREATE TABLE job AS SELECT token FROM idem.claim('payments', 'moving', lease => '1 hour');
DELETE FROM idem.record WHERE key ~ '^room';
SQL
$primary->safe_psql('postgres', 'VACUUM idem.record');
my $worker = $primary->background_psql('postgres');
$worker->query_safe('BEGIN; SELECT idem.renew(token) FROM job');
$primary->safe_psql('postgres', q{SELECT idem.once('payments', 'flushed')});
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', q{SELECT state, attempt, lease_end > now() FROM idem.lookup('payments', 'moving')}),
	'in_progress|1|t', 'a record that is being replaced is found');
$worker->query_safe('COMMIT');
$worker->quit;
$primary->safe_psql('postgres', 'DROP INDEX idem.moving');

$primary->safe_psql('postgres', q{SELECT pay('streamed', '{"amount": 2}')});
$primary->safe_psql('postgres', q{BEGIN; SELECT pay('prepared', '{"amount": 3}'); PREPARE TRANSACTION 'p'});
$primary->wait_for_catchup($standby);

for my $call ("claim('payments', 'k')", "claim('payments', 'before')", "try_claim('payments', 'k')", "complete('t')",
	"fail('t', '{}')", "release('t')", "take('payments')", "once('payments', 'k')", "once_each('payments', '{k}')",
	"advance('payments', 'source', 1)", "create_scope('s')", 'purge()')
{
	my (undef, undef, $stderr) = $standby->psql('postgres', "\\set VERBOSITY verbose\nSELECT idem.$call");
	like($stderr, qr/25006/, "idem.$call is refused on a standby");
	my $reading = $call =~ /^(?:create_scope|purge)/ ? '$' : $call =~ /^take/ ? 'To see .* idem\.in_flight\.$'
		: $call =~ /^advance/ ? 'To read .* idem\.streams\.$' : 'To read .* idem\.lookup\(\)\.$';
	like($stderr, qr/^HINT:  Call it on the primary\. ?$reading/m,
		'the hint says to call it on the primary, and how to read');
}

is($standby->safe_psql('postgres', 'SELECT records FROM idem.storage'), 'idem.record', 'the storage can be read');
SKIP:
{
	skip 'the SQL edition has no other record tables', 1 if managed_edition();
	$primary->safe_psql('postgres', "SELECT idem.create_record_table('elsewhere')");
	$primary->wait_for_catchup($standby);
	is($standby->safe_psql('postgres', 'SELECT records FROM idem.storage ORDER BY records::text'),
		"elsewhere\nidem.record", 'so can that of other record tables');
	$primary->safe_psql('postgres', 'DROP TABLE elsewhere');
}
# What comes after this looks as if a tool had copied it.
$primary->safe_psql('postgres', q{SELECT idem.create_scope('quiet')});
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', q{SELECT status FROM idem.health() WHERE check_name = 'purge'}), 'ok',
	'health can be read');
$primary->safe_psql('postgres', q{SELECT idem.once('quiet', 'payment-4711')});
is($standby->safe_psql('postgres', q{SELECT state, response FROM idem.lookup('payments', 'streamed')}),
	'completed|{"payment": 2}', 'lookup answers on a standby');
my (undef, $stdout, $stderr) = $standby->psql('postgres', q{SELECT state FROM idem.lookup('payments', 'unknown')});
is($stdout, 'absent', 'a key without a record is absent');
like($stderr, qr/NOTICE.*standby/, 'a notice says that a standby may lag');
# A standby gets no wake-ups. lookup polls, for an absent key too.
$primary->safe_psql('postgres', q{CREATE TABLE waited AS SELECT token
	FROM idem.claim('payments', 'waited', lease => '1 hour')});
$primary->wait_for_catchup($standby);
my %waiting = (arriving => 'absent', waited => 'in_progress');
for my $key (sort keys %waiting)
{
	my ($at_bound) = ($standby->psql('postgres', "SELECT state FROM idem.lookup('payments', '$key', wait => '10 ms')"))[
		1];
	is($at_bound, $waiting{$key}, "at the bound, lookup returns what the standby knows: $waiting{$key}");
	$waiting{$key} = waiter($standby, 'Extension',
		"SELECT state, attempt FROM idem.lookup('payments', '$key', wait => '10 minutes')");
}
$primary->safe_psql('postgres', q{SELECT pay('arriving', '{"amount": 1}')});
$primary->safe_psql('postgres', q{SELECT idem.complete(token) FROM waited});
for my $key (sort keys %waiting)
{
	is($waiting{$key}->query_safe(''), 'completed|1', "lookup on a standby waits for the outcome: $key");
	$waiting{$key}->quit;
}
is($standby->safe_psql('postgres', q{BEGIN ISOLATION LEVEL REPEATABLE READ;
	SELECT state FROM idem.lookup('payments', 'before'); COMMIT}),
	'completed', 'lookup answers in REPEATABLE READ');

$primary->stop('immediate');
$standby->promote;
is($standby->safe_psql('postgres', q{SELECT pay('streamed', '{"amount": 2}')}),
	'{"payment": 2}', 'promoted: the answer is replayed');
is(effects($standby, 'streamed'), 1, 'promoted: one effect');
is( $standby->safe_psql('postgres', q{SELECT status, scope, detail FROM idem.health() WHERE check_name = 'worker'
	AND scope IS NOT NULL}), '', 'promoted: no scope looks as if a tool copied its records');
is($standby->safe_psql('postgres', q{SELECT outcome FROM idem.try_claim('payments', 'prepared', '{"amount": 3}')}),
	'in_progress', 'promoted: a prepared claim is in flight');
$standby->safe_psql('postgres', q{COMMIT PREPARED 'p'});
is($standby->safe_psql('postgres', q{SELECT outcome FROM idem.try_claim('payments', 'prepared', '{"amount": 3}')}),
	'completed', 'promoted: COMMIT PREPARED completes the prepared claim');
$standby->safe_psql('postgres', q{SELECT pay('after', '{"amount": 4}')});
is(effects($standby, 'after'), 1, 'promoted: new operations run');

log_is_clean($_) for ($primary, $standby);
$standby->stop;
done_testing();
