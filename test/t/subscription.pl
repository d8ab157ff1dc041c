# Scopes and secrets that arrive through logical replication: sessions that were open before see
# them.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = idem_node('publisher', conf => '', init => { allows_streaming => 'logical' });
my $subscriber = idem_node('subscriber', conf => '', bare => 1);
$subscriber->safe_psql('postgres', 'CREATE EXTENSION idem');

# Open all the time, since before there was a scope.
my $session = $subscriber->background_psql('postgres', on_error_stop => 0);
is($session->query('SELECT count(*) FROM idem.scopes'), 0, 'there is no scope yet');

sub outcome
{
	my ($key, $arguments) = @_;
	return $session->query(<<"SQL");
DO \$\$
DECLARE c idem.claim_result;
BEGIN
  c := idem.try_claim('payments', '$key'$arguments);
  IF c.claimed THEN PERFORM idem.complete(c.token, '"here"'); END IF;
  PERFORM set_config('my.outcome', c.outcome, false);
EXCEPTION WHEN OTHERS THEN PERFORM set_config('my.outcome', SQLSTATE, false);
END \$\$;
SELECT current_setting('my.outcome')
SQL
}

# The secret that a record's request was hashed with.
sub secret_of
{
	my ($key) = @_;
	my $secret = managed_edition() ? 'secret' : 'get_byte(fingerprint, 1)';
	return $session->query("SELECT $secret FROM idem.record WHERE key = '$key'");
}

is(outcome('early', ''), 'ID008', 'a scope that has not arrived cannot be used');
my $connection = $publisher->connstr('postgres');
$publisher->safe_psql('postgres', 'CREATE PUBLICATION scopes FOR TABLE idem.scope, idem.secret');
# As docs/high-availability.md says: the SQL edition has secrets of its own from the beginning.
$subscriber->safe_psql('postgres', 'DELETE FROM idem.secret') if managed_edition();
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION scopes CONNECTION \$c\$$connection\$c\$ PUBLICATION scopes");
$subscriber->wait_for_subscription_sync($publisher, 'scopes');

is(outcome('copied', q{, '{"n": 1}'}), 'claimed', 'a scope of the first copy can be used');
is(secret_of('copied'), 1, 'the first copy brings the secret too');
$publisher->safe_psql('postgres', q{SELECT idem.rotate_secret()});
$publisher->wait_for_catchup('scopes');
is(outcome('rotated', q{, '{"n": 1}'}), 'claimed', 'a claim after a rotation on the publisher');
is(secret_of('rotated'), 2, 'the claim uses the new secret');
is(outcome('copied', q{, '{"n": 1}'}), 'completed', 'earlier requests are compared under the old secret');
is(outcome('lax', ''), 'claimed', 'a request is optional');
$publisher->safe_psql('postgres', q{SELECT idem.alter_scope('payments', request_required => true)});
$publisher->wait_for_catchup('scopes');
is(outcome('strict', ''), '22004', 'a scope\'s change on the publisher takes effect');
$publisher->safe_psql('postgres', q{SELECT idem.drop_scope('payments')});
$publisher->wait_for_catchup('scopes');
is(outcome('late', q{, '{"n": 1}'}), 'ID008', 'a scope that the publisher dropped is unknown');

is($subscriber->safe_psql('postgres', q{SELECT status FROM idem.health() WHERE check_name = 'secrets'}), 'ok',
	'the secrets are in place');
my ($theirs, $ours) = map { $_->safe_psql('postgres', 'SELECT id, secret FROM idem.secret ORDER BY id') } $publisher,
  $subscriber;
is($ours, $theirs, 'and are those of the publisher');

$session->quit;
$_->stop for $subscriber, $publisher;
log_is_clean($_) for $publisher, $subscriber;
done_testing();
