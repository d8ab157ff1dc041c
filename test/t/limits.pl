# claims_per_minute: exact counts under concurrency, true waits, and separate limits for each
# tenant.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idem_node('limits', bare => 1,
	conf => "shared_preload_libraries = 'idem'\nidem.limited_tenants = 64\nmax_connections = 40");

# One attempt on a key of its own, noted with its outcome; a granted claim is released.
my $setup = <<'SQL';
CREATE EXTENSION idem;
CREATE SEQUENCE fresh;
CREATE TABLE attempt (scope text, tenant text, outcome text, at timestamptz, retry_after interval);
CREATE FUNCTION attempt(scope text, tenant text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result;
BEGIN
  c := idem.try_claim(scope, nextval('fresh')::text, tenant => tenant);
  INSERT INTO attempt VALUES (scope, tenant, c.outcome, c.created_at, c.retry_after);
  IF c.claimed THEN PERFORM idem.release(c.token); END IF;
  RETURN c.outcome;
END $$;
SQL
$node->safe_psql('postgres', $setup);
$node->safe_psql('postgres', <<'SQL');
SELECT idem.create_scope('slow', claims_per_minute => 5);
SELECT idem.create_scope('fast', claims_per_minute => 6000);
SELECT idem.create_scope('single', claims_per_minute => 1);
SELECT idem.create_scope('waits', claims_per_minute => 60);
SELECT idem.create_scope('unlimited');
SQL

sub outcome
{
	my ($scope, $tenant, $database) = @_;
	return $node->safe_psql($database // 'postgres', "SELECT attempt('$scope', '$tenant')");
}

# Sixteen clients at once, all on the same few buckets --------------------------------------------

my $slow = PostgreSQL::Test::Utils::tempdir . '/slow.sql';
append_to_file($slow, "\\set n random(1, 10)\nSELECT attempt('slow', 'tenant ' || :n);\n");
my $fast = PostgreSQL::Test::Utils::tempdir . '/fast.sql';
append_to_file($fast, "SELECT attempt('fast', 'everybody');\n");
for my $script ($slow, $fast)
{
	$node->command_ok([ 'pgbench', '-n', '-c', 16, '-j', 2, '-t', 700, '-f', $script, 'postgres' ],
		"16 clients: $script");
}

# Between the first and the last granted claim so many microseconds pass. Beside the allowance, one
# claim may be granted for each full step in them. A refused claim came when that was used up.
is( $node->safe_psql('postgres', <<'SQL'), '', 'no tenant got more than its allowance');
WITH admitted AS (
  SELECT scope, tenant, count(*) AS n, max(at) - min(at) AS span FROM attempt
   WHERE outcome = 'claimed' GROUP BY 1, 2)
SELECT scope, tenant, n, span FROM admitted JOIN idem.scopes ON name = scope
 WHERE n > claims_per_minute + floor(extract(epoch FROM span) * claims_per_minute / 60)
SQL
is( $node->safe_psql('postgres', <<'SQL'), '', 'no tenant got less than its allowance');
WITH attempts AS (
  SELECT scope, tenant, count(*) AS tries, count(*) FILTER (WHERE outcome = 'claimed') AS n
    FROM attempt GROUP BY 1, 2)
SELECT scope, tenant, tries, n FROM attempts JOIN idem.scopes ON name = scope
 WHERE n < least(tries, claims_per_minute)
SQL
is( $node->safe_psql('postgres', <<'SQL'),
SELECT count(*) FROM attempt
 WHERE outcome = 'limited' AND (retry_after IS NULL OR retry_after <= '0' OR retry_after > '1 minute')
    OR outcome NOT IN ('claimed', 'limited')
SQL
	0, 'each refusal says when to retry');
cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM attempt WHERE outcome = 'limited'"),
	'>', 10_000, 'most were refused');

# What counts, and for which tenant ---------------------------------------------------------------

$node->restart;
is(outcome('single', 'a'), 'claimed', 'tenant a has one claim a minute');
is(outcome('single', 'a'), 'limited', 'tenant a is refused a second claim');
is(outcome('single', 'b'), 'claimed', 'tenant b has a claim of its own');
is(outcome('single', ''), 'claimed', 'calls without a tenant have an allowance of their own');
is(outcome('slow', 'a'), 'claimed', 'each scope has its own allowance');
is(outcome('unlimited', 'a'), 'claimed', 'a scope without a limit has none');

$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', $setup);
$node->safe_psql('other', "SELECT idem.create_scope('single', claims_per_minute => 1)");
$node->safe_psql('other', "UPDATE idem.scope SET id = "
	  . $node->safe_psql('postgres', "SELECT id FROM idem.scope WHERE name = 'single'"));
is(outcome('single', 'a', 'other'), 'claimed', 'each database has its own allowance');

$node->safe_psql('postgres', <<'SQL');
BEGIN;
SELECT idem.complete(token, '{"done": true}') FROM idem.claim('single', 'done', tenant => 'c');
COMMIT;
SQL
is(outcome('single', 'c'), 'limited', 'tenant c has had its claim');
is( $node->safe_psql('postgres',
		"SELECT outcome, response FROM idem.claim('single', 'done', tenant => 'c')"),
	'completed|{"done": true}', 'a retry of a finished operation is answered at the limit');

$node->safe_psql('postgres', <<'SQL');
BEGIN;
SELECT outcome FROM idem.claim('single', 'rolled back', tenant => 'd');
ROLLBACK;
SQL
is(outcome('single', 'd'), 'limited', 'a rollback gives nothing back');

$node->safe_psql('postgres', <<'SQL');
SELECT outcome FROM idem.claim('single', 'leased', tenant => 'e', lease => '1 millisecond');
SELECT pg_sleep(0.01);
SQL
is( $node->safe_psql('postgres', <<'SQL'), 'claimed|2', 'a takeover is not a new claim');
SELECT outcome, attempt FROM idem.claim('single', 'leased', tenant => 'e', lease => '1 minute')
SQL

my $each = sub { return "SELECT idem.once_each('single', '{$_[0]}', 'f')"; };
is($node->safe_psql('postgres', $each->('message')), 'message', 'a message of once_each is a new claim');
is(outcome('single', 'f'), 'limited', 'tenant f has had its claim');
is(sqlstate($node, $each->('message,another')), 'ID009', 'once_each is refused at the limit');
is($node->safe_psql('postgres', $each->('message')), '', 'a message that is not new needs no allowance');

my (undef, undef, $stderr) = $node->psql('postgres',
	"\\set VERBOSITY verbose\nSELECT outcome FROM idem.claim('single', 'refused', tenant => 'd')");
like($stderr, qr/ID009: too many new claims in scope "single"/, 'claim raises ID009');
like($stderr, qr/DETAIL:  The scope allows 1 new claims per minute per tenant\./, 'the error has a detail');
like($stderr, qr/HINT:  Retry with the same key after \d+\.\d seconds/, 'the hint says when to retry');
is( $node->safe_psql('postgres', "SELECT state FROM idem.lookup('single', 'refused', 'd')"),
	'absent', 'a refused key stays free');
is(locks($node), 0, 'a refused claim leaves no lock');

# A true wait -------------------------------------------------------------------------------------

# A claim that comes back after retry_after is granted, and not a millisecond is wasted.
$node->safe_psql('postgres', <<'SQL');
DO $$
DECLARE c idem.claim_result; waited interval; began timestamptz;
BEGIN
  FOR i IN 1..60 LOOP PERFORM attempt('waits', 'w'); END LOOP;
  FOR i IN 1..3 LOOP
    LOOP
      began := clock_timestamp();
      c := idem.try_claim('waits', 'wait ' || i, tenant => 'w');
      EXIT WHEN c.outcome = 'limited';
      PERFORM idem.release(c.token);
    END LOOP;
    IF c.retry_after > '1 second' THEN RAISE 'a step is a second, not %', c.retry_after; END IF;
    PERFORM pg_sleep(extract(epoch FROM c.retry_after));
    c := idem.try_claim('waits', 'wait ' || i, tenant => 'w');
    IF NOT c.claimed THEN RAISE 'came back in time, and got %', c.outcome; END IF;
    PERFORM idem.release(c.token);
  END LOOP;
END $$;
SQL
pass('after retry_after the claim is admitted');

# More tenants than buckets -----------------------------------------------------------------------

$node->restart;
# Nobody can take the places of others: a scope stops at a third, the database at a half.
my $many = "SELECT string_agg(DISTINCT n || ' ' || outcome, ', ')
  FROM (SELECT outcome, count(*) AS n FROM (SELECT attempt('%s', 'many ' || i) AS outcome
        FROM generate_series(1, 200) i) a GROUP BY 1) b";
my $room = "SELECT string_agg(limited_tenants || '/' || limited_tenants_room, ' ' ORDER BY scope COLLATE \"C\")
  FROM idem.stats WHERE scope IN ('fast', 'single')";
is($node->safe_psql('postgres', $room), '0/22 0/22', 'a scope may count a third of the tenants');
is($node->safe_psql('postgres', sprintf $many, 'single'), '178 limited, 22 claimed', 'which are granted claims');
is($node->safe_psql('postgres', $room), '0/7 22/0', 'others then have less room, but room');
is(outcome('single', 'one more'), 'limited', 'a tenant without a bucket is refused');
is(outcome('fast', 'one more'), 'claimed', 'but not in another scope');
is(outcome('single', 'many 7'), 'limited', 'a tenant with a bucket is counted as before');
is(outcome('unlimited', 'one more'), 'claimed', 'a scope without a limit is not affected');
$node->safe_psql('postgres', "SELECT idem.create_scope('taker ' || i, claims_per_minute => 1)
	FROM generate_series(1, 20) i");
$node->safe_psql('postgres', "SELECT attempt('taker ' || s, 'many ' || i) FROM generate_series(1, 20) s,
	generate_series(1, 100) i");
is($node->safe_psql('other', sprintf $many, 'single'), '11 claimed, 189 limited',
	'nor in another database, when twenty scopes of this one want all');
(undef, undef, $stderr) = $node->psql('postgres', "\\set VERBOSITY verbose\n"
	. "SELECT idem.claim('single', 'crowded out', tenant => 'one more')");
like($stderr,
	qr/ID009: too many tenants in scope "single"\n.*share of the places.*
HINT:  Retry with the same key after \d+\.\d seconds\..* "idem\.limited_tenants"/,
	'the error says what happened');
is($node->safe_psql('postgres', "SELECT detail FROM idem.health() WHERE check_name = 'limits' AND scope = 'single'"),
	'Scope "single" counts the claims of 22 tenants for claims_per_minute, and has room for 0 more. When there is '
	. 'none, it refuses tenants that are not counted (ID009).',
	'health() sees that the places are taken');
is( $node->safe_psql('postgres', <<'SQL'), 0, 'the refusal says when a bucket becomes free');
SELECT count(*) FROM attempt WHERE tenant ~ 'one more|many' AND outcome = 'limited'
   AND NOT retry_after BETWEEN '0.000001' AND '1 minute'
SQL

# Full buckets are reused: a thousand tenants pass through twenty-two. While there is none, retry_after says
# when to look again.
$node->restart;
$node->safe_psql('postgres', <<'SQL');
DO $$
DECLARE c idem.claim_result;
BEGIN
  FOR i IN 1..1000 LOOP
    LOOP
      c := idem.try_claim('fast', 'passing ' || i, tenant => 'passing ' || i);
      EXIT WHEN c.outcome <> 'limited';
      PERFORM pg_sleep(extract(epoch FROM c.retry_after));
    END LOOP;
    IF NOT c.claimed THEN RAISE 'tenant % got %', i, c.outcome; END IF;
    PERFORM idem.release(c.token);
  END LOOP;
END $$;
SQL
pass('idle buckets are reused');

# Concurrently, with far more tenants than buckets: no tenant gets too much, and no bucket is lost.
$node->safe_psql('postgres', 'TRUNCATE attempt');
my $crowd = PostgreSQL::Test::Utils::tempdir . '/crowd.sql';
append_to_file($crowd, "\\set n random(1, 200)\nSELECT attempt('single', 'crowd ' || :n);\n");
$node->command_ok([ 'pgbench', '-n', '-c', 16, '-j', 2, '-t', 200, '-f', $crowd, 'postgres' ],
	'16 clients, 200 tenants, 64 buckets');
is( $node->safe_psql('postgres', <<'SQL'), '', 'no tenant got more than its allowance');
SELECT tenant, count(*) FROM attempt WHERE outcome = 'claimed' GROUP BY 1
HAVING count(*) > 1 + floor(extract(epoch FROM max(at) - min(at)) / 60)
SQL
cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM attempt WHERE outcome = 'claimed'"),
	'>=', 21, 'every bucket of the scope was used');

$node->stop;
log_is_clean($node);

# Without preload ---------------------------------------------------------------------------------

my $plain = idem_node('plain', bare => 1, conf => 'idem.limited_tenants = 100');
$plain->safe_psql('postgres', $setup);
(undef, undef, $stderr) = $plain->psql('postgres',
	"\\set VERBOSITY verbose\nSELECT idem.create_scope('s', claims_per_minute => 5)");
like($stderr, qr/55000: "claims_per_minute" needs idem to be preloaded/, 'no limit without preload');

# As after restoring a dump of a server that preloads idem.
$plain->safe_psql('postgres', "SELECT idem.create_scope('s')");
$plain->safe_psql('postgres', "UPDATE idem.scope SET claims_per_minute = 1");
(undef, undef, $stderr) = $plain->psql('postgres', "SELECT attempt('s', 'a') FROM generate_series(1, 3)");
is($plain->safe_psql('postgres', "SELECT count(*) FROM attempt WHERE outcome = 'claimed'"),
	3, 'a restored limit is not enforced without preload');
is(() = $stderr =~ /WARNING:  claims in scope "s" are not limited/g, 1, 'a warning says so once per session');
$plain->stop;
log_is_clean($plain);

done_testing();
