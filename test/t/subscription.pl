# Scopes and secrets that arrive through logical replication: sessions that were there before notice.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = idem_node('publisher', conf => '', init => { allows_streaming => 'logical' });
my $subscriber = idem_node('subscriber', conf => '', bare => 1);
$subscriber->safe_psql('postgres', 'CREATE EXTENSION idem');

# Open all the time, from before there was anything to know.
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

# With which secret a record's request was hashed.
sub secret_of
{
	my ($key) = @_;
	return $session->query("SELECT get_byte(fingerprint, 4) FROM idem.record WHERE key = '$key'");
}

is(outcome('early', ''), 'ID008', 'nor can it be used');
my $connection = $publisher->connstr('postgres');
$publisher->safe_psql('postgres', 'CREATE PUBLICATION scopes FOR TABLE idem.scope, idem.secret');
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION scopes CONNECTION \$c\$$connection\$c\$ PUBLICATION scopes");
$subscriber->wait_for_subscription_sync($publisher, 'scopes');

is(outcome('copied', q{, '{"n": 1}'}), 'claimed', 'the first copy');
is(secret_of('copied'), 1, 'brings the secret too');
$publisher->safe_psql('postgres', q{SELECT idem.rotate_secret()});
$publisher->wait_for_catchup('scopes');
is(outcome('rotated', q{, '{"n": 1}'}), 'claimed', 'a rotation on the publisher');
is(secret_of('rotated'), 2, 'is noticed');
is(outcome('copied', q{, '{"n": 1}'}), 'completed', 'and earlier requests are compared under the old secret');
is(outcome('lax', ''), 'claimed', 'a request is optional');
$publisher->safe_psql('postgres', q{SELECT idem.alter_scope('payments', request_required => true)});
$publisher->wait_for_catchup('scopes');
is(outcome('strict', ''), '22004', 'until the publisher requires one');
$publisher->safe_psql('postgres', q{SELECT idem.drop_scope('payments')});
$publisher->wait_for_catchup('scopes');
is(outcome('late', q{, '{"n": 1}'}), 'ID008', 'and a scope that is dropped there is gone');

$session->quit;
$_->stop for $subscriber, $publisher;
log_is_clean($_) for $publisher, $subscriber;
done_testing();
