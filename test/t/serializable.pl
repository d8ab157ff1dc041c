# Unrelated keys never cause a serialization failure, at any isolation level. In the SQL edition, a
# SERIALIZABLE transaction that also looks a key up may get one, and succeeds when it is retried.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('serializable', conf => "fsync = off\nmax_pred_locks_per_transaction = 64");
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE effect (key text);
CREATE FUNCTION run(key text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.claim('payments', key);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO effect VALUES (key);
  RETURN idem.complete(c.token, '{}');
END $$;
-- a UUIDv7 of now: time in front, so that all clients meet at the index's right edge
CREATE FUNCTION uuid7() RETURNS text LANGUAGE sql AS $$
  SELECT regexp_replace(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
         || '7' || substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15),
         '(.{8})(.{4})(.{4})(.{4})(.{12})', '\1-\2-\3-\4-\5') $$;
SQL

for my $level ('serializable', 'repeatable read')
{
	my @retries = managed_edition() && $level eq 'serializable' ? '--max-tries=100' : ();
	for my $key ('gen_random_uuid()::text', 'uuid7()')
	{
		my $script = $node->basedir . '/' . ($level =~ tr/ /_/r) . '_' . ($key =~ /7/ ? 7 : 4) . '.sql';
		append_to_file($script, "BEGIN;\nSELECT run($key);\nSELECT run($key);\n"
			. "SELECT state FROM idem.lookup('payments', $key);\nCOMMIT;\n");
		local $ENV{PGOPTIONS} = '-c default_transaction_isolation=' . ($level =~ s/ /\\ /r);
		my $before = $node->safe_psql('postgres', 'SELECT count(*) FROM effect');
		my $log = -s $node->logfile;
		$node->command_ok([ 'pgbench', '-n', @retries, '-c', '8', '-t', '200', '-f', $script, 'postgres' ],
			"$level, $key: every transaction commits");
		is($node->safe_psql('postgres', 'SELECT count(*) FROM effect') - $before, 3200,
			"$level, $key: every effect is there");
		unlike(slurp_file($node->logfile, $log), qr/could not serialize/,
			"$level, $key: there is no serialization failure") unless @retries;
	}
}
is($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT key) FROM effect'), 0,
	'each operation has one effect');

log_is_clean($node);
$node->stop;
done_testing();
