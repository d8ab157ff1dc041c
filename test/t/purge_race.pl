# The purger against claims, under load: keys with a very short TTL are claimed again and again
# while the worker, or a client of the SQL edition, deletes them. No claim gets a key before its record expires, and
# no record that
# was claimed again is deleted with the old one.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('purge_race', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
idem.purge_naptime = 20ms
idem.purge_rate = 0
synchronous_commit = off
CONF
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION idem;
SELECT idem.create_scope('short', ttl => '100 milliseconds', wait => '1 minute');
CREATE TABLE effect (key text, begun timestamptz, done timestamptz);
CREATE TABLE replay (key text, answer timestamptz, at timestamptz);
CREATE FUNCTION operate(k text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; begun timestamptz; done timestamptz;
BEGIN
  c := idem.claim('short', k);
  IF NOT c.claimed THEN
    INSERT INTO replay VALUES (k, (c.response->>0)::timestamptz, clock_timestamp());
    RETURN;
  END IF;
  begun := clock_timestamp();
  done := clock_timestamp();
  INSERT INTO effect VALUES (k, begun, done);
  PERFORM idem.complete(c.token, jsonb_build_array(done));
END $$;
SQL

my $purged = 'SELECT sum(purged) FROM idem.stats';
my $purger;
if (managed_edition())
{
	$node->safe_psql('postgres', 'CREATE TABLE purge (records integer)');
	$purged = 'SELECT sum(records) FROM purge';
	$purger = load($node, "INSERT INTO purge SELECT idem.purge();\n\\sleep 20 ms\n");
}
# A slow machine needs more rounds.
my $enough = q{SELECT (SELECT count(*) > 100 FROM effect) AND (SELECT count(*) > 100 FROM replay) AND (} . $purged
	. q{) > 30};
for my $round (1 .. 20)
{
	$node->pgbench('--client=8 --jobs=2 --time=6 --no-vacuum', 0, [qr/processed/], [qr/^$/], 'claims beside the purger',
		{ "999_operate$round" => "\\set k random(1, 2000)\nSELECT operate(:k::text);\n" });
	last if $node->safe_psql('postgres', $enough) eq 't';
}
ok(!$purger || runs($purger), 'the purger ran all the time');
$purger->kill_kill if $purger;

cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM effect'), '>', 100, 'keys were claimed again and again');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM replay'), '>', 100, 'keys were replayed in between');
cmp_ok($node->safe_psql('postgres', $purged), '>', 30, 'keys were purged in between');
is($node->safe_psql('postgres', <<'SQL'), '', 'no key was free before its time');
SELECT key, done, next FROM (SELECT key, done, lead(begun) OVER (PARTITION BY key ORDER BY begun) AS next FROM effect) e
 WHERE next < done + interval '100 milliseconds'
SQL
is($node->safe_psql('postgres', <<'SQL'), 0, 'every replay is the answer of an effect');
SELECT count(*) FROM replay r WHERE NOT EXISTS (SELECT FROM effect e WHERE e.key = r.key AND e.done = r.answer)
SQL
is(locks($node), 0, 'no key lock is left');
log_is_clean($node);
$node->stop;
done_testing();
