# Recovery points: a worker that charges a card outside its transaction is killed after each of its
# steps, its backend or the whole server, and the next claim continues from the last step.
#
# The card processor is another database, reached through a connection of its own. Like a real
# processor, it remembers its clients' keys and charges once per key.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('recovery', bare => 1, conf => '');
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION idem;
SELECT idem.create_scope('payments', request_required => true);
CREATE TABLE payment (id bigserial PRIMARY KEY, key text, amount numeric, charge bigint);
CREATE DATABASE processor;
SQL
$node->safe_psql('processor', <<'SQL');
CREATE TABLE charge (id bigserial PRIMARY KEY, key text UNIQUE, amount numeric);
CREATE TABLE call (key text);
CREATE FUNCTION charge(key text, amount numeric) RETURNS bigint LANGUAGE sql AS $$
  INSERT INTO call VALUES (key);
  INSERT INTO charge(key, amount) VALUES (key, amount) ON CONFLICT (key) DO NOTHING;
  SELECT id FROM charge WHERE charge.key = $1;
$$;
SQL

# The worker takes one payment to its end, or up to the step after which it is killed. Returns
# what its claim found, and the answer if it got that far.
sub work
{
	my ($key, %options) = @_;
	my $child_key = $options{child_key} // q{idem.child_key(:'token', 'charge')};
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my ($found, $answer);
	my $do = sub { my $out = $session->query_safe($_[0]); chomp $out; return $out; };
	my $done = sub {
		return unless ($options{killed_after} // '') eq $_[0];
		crash($node, $options{victim}, $session);
		die "killed\n";
	};
	my $work = sub {
		# The lease ends by the clock: it is short, so that the next claim does not wait for long.
		$do->(<<"SQL");
SELECT concat_ws(' ', outcome, attempt, recovery_point) AS found, token, coalesce(recovery_point, '') AS point,
       recovery_state->'charge' AS charge, response
  FROM idem.claim('payments', '$key', '{"amount": 10}', lease => '500 ms', wait => '10 minutes') \\gset
SQL
		$found = $do->(q{\echo :found});
		$answer = $do->(q{\echo :response});
		return if $found =~ /^completed/;
		my $point = $do->(q{\echo :point});
		$done->('claim');

		$do->(q{SELECT idem.checkpoint(:'token', 'charging')}) if $point eq '';
		$done->('charging');
		if ($point ne 'charged')
		{
			my $charge = $node->safe_psql('processor', "SELECT charge('" . $do->("SELECT $child_key") . "', 10)");
			$done->('call');
			$do->("\\set charge $charge");
			$do->(q{SELECT idem.checkpoint(:'token', 'charged', jsonb_build_object('charge', :charge))});
		}
		$done->('charged');

		$do->(qq{BEGIN; INSERT INTO payment(key, amount, charge) VALUES ('$key', 10, :charge)});
		$done->('effect');
		$answer = $do->(q{SELECT idem.complete(:'token', jsonb_build_object('charge', :charge))});
		$do->(q{COMMIT});
		$done->('complete');
	};
	return ($found) if !eval { $work->(); 1 } && $@ eq "killed\n";
	die $@ if $@;
	$session->quit;
	return ($found, $answer);
}

# The step after which the worker is killed, what the next claim finds, and the number of calls of
# the processor in all.
my @deaths = (
	[ 'claim', 'claimed 2', 1 ],
	[ 'charging', 'claimed 2 charging', 1 ],
	[ 'call', 'claimed 2 charging', 2 ],
	[ 'charged', 'claimed 2 charged', 1 ],
	[ 'effect', 'claimed 2 charged', 1 ],
	[ 'complete', 'completed 1', 1 ]);

for my $victim (qw(backend server))
{
	for my $death (@deaths)
	{
		my ($step, $resumed_at, $calls) = @$death;
		my $key = "$victim $step";
		my $name = "$victim killed after $step";
		$node->safe_psql('processor', 'TRUNCATE charge, call');
		my ($found) = work($key, killed_after => $step, victim => $victim);
		is($found, 'claimed 1', "$name: the first attempt");
		($found, my $answer) = work($key);
		is($found, $resumed_at, "$name: the next claim goes on where it stood");
		is($node->safe_psql('processor', 'SELECT (SELECT count(*) FROM charge), count(*), count(DISTINCT key)
			FROM call'),
			"1|$calls|1", "$name: one charge, the processor saw one key");
		is($node->safe_psql('postgres', "SELECT count(*) FROM payment WHERE key = '$key'"), 1, "$name: one payment");
		my $charge = $node->safe_psql('processor', 'SELECT id FROM charge');
		is($answer, qq({"charge": $charge}), "$name: the answer is the charge");
		is((work($key))[1], $answer, "$name: and stays so");
	}
}

# A worker that dies before its first step loses nothing that the previous one has reached.
$node->safe_psql('processor', 'TRUNCATE charge, call');
work('thrice', killed_after => 'charged', victim => 'server');
is((work('thrice', killed_after => 'claim', victim => 'backend'))[0], 'claimed 2 charged',
	'the second of three attempts is claimed');
is((work('thrice'))[0], 'claimed 3 charged', 'the third attempt continues from where the first one stopped');
is($node->safe_psql('processor', 'SELECT (SELECT count(*) FROM charge), count(*) FROM call'), '1|1',
	'the third attempt does not call the processor');
is($node->safe_psql('postgres', "SELECT count(*) FROM payment WHERE key = 'thrice'"), 1, 'there is one payment');

# The same with a different key for each attempt, to show that the test can fail.
$node->safe_psql('processor', 'TRUNCATE charge, call');
work('control', killed_after => 'call', victim => 'backend', child_key => 'idem.new_key()');
work('control', child_key => 'idem.new_key()');
is($node->safe_psql('processor', 'SELECT count(*) FROM charge'), 2, 'without child_key: charged twice');

is(locks($node), 0, 'no key lock is left');
log_is_clean($node, killed => 1);
$node->stop;
done_testing();
