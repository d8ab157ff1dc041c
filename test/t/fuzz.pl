# Fuzzing: concurrent sessions send random statements. Every SQL function with arguments of every
# kind (NULLs, extremes, oversized), in transactions, savepoints, cursors and prepared statements,
# under roles with and without privileges, while others cancel, reindex and purge. Any outcome is
# fine, as long as the server lives, nothing leaks, no internal error shows, and the table is sound.
#
# IDEM_SEED repeats the statements of a run, IDEM_FUZZ sets how many each session sends.
use strict;
use warnings;

use IdemTest;
use IPC::Run qw(start finish);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{IDEM_SEED} // int(rand(2**31));
my $statements = $ENV{IDEM_FUZZ} // 2000;
my $sessions = 4;
srand($seed);
note "IDEM_SEED=$seed";

my $node = idem_node('fuzz', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
idem.purge_naptime = 1s
fsync = off
log_statement = none
log_line_prefix = '%e|%p|%b|'
deadlock_timeout = 50ms
max_prepared_transactions = 20
log_min_error_statement = error
CONF
$node->safe_psql('postgres', <<'SQL');
ALTER DATABASE postgres SET statement_timeout = '2s';
CREATE EXTENSION amcheck;
CREATE EXTENSION idem;
CREATE ROLE owner;
CREATE ROLE member IN ROLE owner;
CREATE ROLE stranger;
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope, idem.forget TO owner;
GRANT CREATE ON SCHEMA public TO PUBLIC;
SELECT idem.create_scope('s1', owner => 'owner', wait => '20 ms', ttl => '1 hour');
SELECT idem.create_scope('s2', owner => 'owner', wait => '0', ttl => '50 ms', lease => '10 ms', max_attempts => 3);
SELECT idem.create_scope('s3', owner => 'member', wait => '5 ms', request_exclude => '{a.b, c}', response_exclude => '{a.b, c}', weak_keys => 'warn', reject_stale_keys => true, claims_per_minute => 1000);
SELECT idem.create_scope('s4', owner => 'stranger', wait => '1 ms', request_required => true, tenant_required => true, store_response => false, weak_keys => 'reject');
CREATE FUNCTION op_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION op_fail(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'P0042', MESSAGE = left($1::text, 1000), HINT = 'hint'; END $$;
CREATE FUNCTION op_retry(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$;
CREATE FUNCTION op_nest(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RETURN to_jsonb(idem.execute('s1', 'k' || trunc(random() * 9), 'op_nest(jsonb)', $1)); END $$;
CREATE FUNCTION op_claim(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN PERFORM idem.claim('s1', 'left open'); RETURN $1; END $$;
CREATE TABLE effect (id bigserial, key text DEFAULT idem.current_key());
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON effect FOR EACH ROW EXECUTE FUNCTION idem.require_claim('s1', 's2', 's3');
GRANT ALL ON effect, effect_id_seq TO PUBLIC;
SQL

sub pick { return $_[ int(rand(@_)) ] }
sub quoted { my ($text) = @_; $text =~ s/'/''/g; return "'$text'" }

my @keys = map { quoted($_) } (map { "k$_" } 0 .. 9), '', ' ', '4711', 'Ünïcödé', 'a\\b', "quo'te", '%s', '018f0000-0000-7000-8000-000000000000', 'ffffffff-ffff-7fff-bfff-ffffffffffff', '01ARZ3NDEKTSV4RRFFQ69G5FAV';
push @keys, q(repeat('x', 255)), q(repeat('x', 256)), q(repeat('ü', 127)), 'idem.new_key()', 'NULL', q(E'\n\x01');
my @names = map { quoted($_) } qw(s1 s1 s1 s2 s2 s3 s4 nowhere), '';
my @tenants = ("''", "'t1'", "'t2'", 'NULL', 'NULL', q(repeat('t', 256)));
my @tokens = ((map { ":'t$_'" } 1 .. 5) x 3, "'banana'", 'NULL', q('Ag' || repeat('A', 37)), q('AQ' || repeat('A', 37)), q(left(:'t1', 28) || 'AAAAAAAAAAA'), q(repeat('A', 100000)));
my @requests = ('NULL', 'NULL', q('{}'), q('{"amount": 1}'), q('{"amount": 1.0, "c": 7}'), q('{"a": {"b": 1}}'), q('[]'), q('null'), q('"x"'), q('1e100000'), q('{"a": [{"b": [1, {"b": 2}]}]}'),
	q((SELECT jsonb_agg(i) FROM generate_series(1, 5000) i)), q((SELECT jsonb_object_agg(i, repeat('x', i)) FROM generate_series(1, 100) i)), q((repeat('[', 2000) || repeat(']', 2000))::jsonb), q(to_jsonb(repeat('x', 200000))));
my %values = (
	'scope text' => \@names,
	'name text' => \@names,
	'key text' => \@keys,
	'parts text[]' => [ q(VARIADIC ARRAY['a', 'b']), q(VARIADIC '{}'), q(VARIADIC ARRAY['a', NULL]), q(VARIADIC NULL), q(VARIADIC '{{a},{b}}') ],
	'tenant text' => \@tenants,
	'token text' => \@tokens,
	'wait interval' => [ 'NULL', q('0'), q('1 ms'), q('20 ms'), q('-1 s') ],
	'lease interval' => [ q('1 min'), q('1 min'), q('1 ms'), q('10 ms'), 'NULL', 'NULL', q('0') ],
	'ttl interval' => [ 'NULL', 'NULL', q('1 hour'), q('1 ms'), q('0'), q('100000 years') ],
	'weak_keys text' => [ 'NULL', q('allow'), q('reject'), q('banana') ],
	'sqlstate text' => [ q('ID001'), q('42501'), q('x'), 'NULL' ],
	'owner regrole' => [ 'NULL', q('owner'), q('member'), q('stranger'), '4294967295::oid::regrole', '0::oid::regrole' ],
	'operation regprocedure' => [ (map { "'op_$_(jsonb)'" } qw(echo fail retry nest claim)), '0', 'NULL', q('now()'), '4294967295::oid::regprocedure' ],
	'max_records integer' => [ 'NULL', 1, 10, 0, 2147483647 ],
	'text' => [ q('x'), q(''), 'NULL', q(repeat('x', 300)), q(repeat('x', 1000000)), q('Ünïcödé') ],
	'text[]' => [ 'NULL', q('{}'), q('{a,b}'), q('{a,NULL}'), q('{{a},{b}}'), q('[5:6]={k1,k2}'), q('{k1,k2,k3,k1}'), q(ARRAY(SELECT 'many ' || trunc(random() * 3000) FROM generate_series(1, 200))) ],
	'jsonb' => \@requests,
	'interval' => [ 'NULL', q('0'), q('1 ms'), q('1 s'), q('-1 s'), q('1 mon -30 days'), q('178000000 years') ],
	'integer' => [ 'NULL', -2147483648, -1, 0, 1, 200, 2147483647 ],
	'bigint' => [ 'NULL', -1, 0, 1, '9223372036854775807' ],
	'double precision' => [ 'NULL', 0, -1, 1.5, q('NaN'), q('Infinity'), '1e308' ],
	'boolean' => [qw(true false NULL)],
	'bytea' => [ 'NULL', q(''), q('\x00ff'), q(convert_to(repeat('x', 300000), 'UTF8')) ],);

my @functions;
for my $line (split /\n/, $node->safe_psql('postgres', <<'SQL'))
SELECT p.oid, proname, coalesce(proargnames[i], ''), coalesce(format_type(proargtypes[i - 1], NULL), ''), i > pronargs - pronargdefaults
  FROM pg_proc p LEFT JOIN LATERAL generate_series(1, pronargs) i ON true
 WHERE pronamespace = 'idem'::regnamespace
 ORDER BY proname, p.oid, i
SQL
{
	my ($oid, $name, $argument, $type, $optional) = split /\|/, $line;
	push @functions, { oid => $oid, name => $name, arguments => [] } if !@functions || $functions[-1]{oid} ne $oid;
	next if $argument eq '';
	ok($values{"$argument $type"} || $values{$type}, "the test has values for $argument $type of $name");
	push @{ $functions[-1]{arguments} }, { name => $argument, type => $type, optional => $optional eq 't' };
}
my %function = map { $_->{name} => $_ } @functions;
my @often = map { $function{$_} } qw(claim claim claim try_claim complete complete fail release renew checkpoint execute lookup once once_each);
my @views = split /\n/, $node->safe_psql('postgres', q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind = 'v'});

sub call
{
	my ($f) = @_;
	$f //= rand() < 0.6 ? pick(@often) : pick(@functions);
	return call() if $f->{name} =~ /^(drop_scope|alter_scope|rotate_secret)$/ && rand() < 0.95;
	my @arguments;
	for my $argument (@{ $f->{arguments} })
	{
		next if $argument->{optional} && rand() < 0.6;
		my $value = pick(@{ $values{"$argument->{name} $argument->{type}"} // $values{ $argument->{type} } });
		my $variadic = $value =~ s/^VARIADIC // ? 'VARIADIC ' : '';
		push @arguments, "$variadic$argument->{name} => $value";
	}
	return "idem.$f->{name}(" . join(', ', @arguments) . ')';
}

my $made = 0;
my @statement = (
	[ 20, sub { 'SELECT * FROM ' . call() . ';' } ],
	[ 25, sub { "SELECT token AS t@{[ 1 + int rand 5 ]} FROM " . call($function{ pick(qw(claim try_claim)) }) . " WHERE token IS NOT NULL \\gset" } ],
	[ 8, sub { 'SELECT ' . call() . ', ' . call() . ';' } ],
	[ 4, sub { 'SELECT ' . call() . ' FROM generate_series(1, 5);' } ],
	[ 4, sub { "DO \$\$ BEGIN PERFORM * FROM @{[ call() ]}; PERFORM * FROM @{[ call() ]}; EXCEPTION WHEN OTHERS THEN PERFORM * FROM @{[ call() ]}; END \$\$;" =~ s/:'(t\d)'/quoted('x')/ger } ],
	[ 3, sub { "DO \$\$ BEGIN FOR i IN 1..5 LOOP PERFORM * FROM @{[ call() ]}; @{[ pick('COMMIT', 'ROLLBACK') ]}; END LOOP; END \$\$;" =~ s/:'(t\d)'/quoted('x')/ger } ],
	[ 10, sub { 'BEGIN' . pick('', '', '', ' ISOLATION LEVEL REPEATABLE READ', ' ISOLATION LEVEL SERIALIZABLE', ' READ ONLY', ' ISOLATION LEVEL SERIALIZABLE READ ONLY') . ';' } ],
	[ 10, sub { pick('COMMIT;', 'COMMIT;', 'ROLLBACK;', 'COMMIT AND CHAIN;', 'ROLLBACK AND CHAIN;') } ],
	[ 8, sub { 'SAVEPOINT ' . pick('a', 'b', 'c') . ';' } ],
	[ 6, sub { 'ROLLBACK TO ' . pick('a', 'b', 'c') . ';' } ],
	[ 4, sub { 'RELEASE ' . pick('a', 'b', 'c') . ';' } ],
	[ 3, sub { my $gid = 'p' . ++$made; "PREPARE TRANSACTION '$gid';\nSELECT * FROM @{[ call() ]};\n@{[ pick('COMMIT', 'ROLLBACK') ]} PREPARED '$gid';" } ],
	[ 1, sub { pick('COMMIT', 'ROLLBACK') . " PREPARED 'p@{[ 1 + int rand($made + 1) ]}';" } ],
	[ 5, sub { 'SET ' . pick('', 'LOCAL ') . 'ROLE ' . pick('NONE', 'NONE', 'owner', 'member', 'stranger') . ';' } ],
	[ 2, sub { 'SET ' . pick('', 'LOCAL ') . pick("idem.tenant = 't1'", "idem.tenant = ''", 'idem.max_open_claims = 3', 'RESET idem.max_open_claims', "idem.max_answer_size = '1kB'", "idem.max_answer_size = '64MB'",
				'statement_timeout = 2', 'statement_timeout = 2000', 'lock_timeout = 3', 'lock_timeout = 0', 'transaction_read_only = on', 'synchronous_commit = off', 'work_mem = 64', 'search_path = pg_temp, public') . ';' } ],
	[ 3, sub { "PREPARE s@{[ ++$made ]} AS SELECT * FROM @{[ call() ]};\nEXECUTE s$made;\nEXECUTE s$made;" } ],
	[ 3, sub { "DECLARE c@{[ ++$made ]} @{[ pick('', 'SCROLL ', 'INSENSITIVE ') ]}CURSOR @{[ pick('', 'WITH HOLD ') ]}FOR SELECT * FROM generate_series(1, 3) i, @{[ call() ]};\nFETCH c$made;\nSAVEPOINT a;\nFETCH c$made;\n@{[ pick('', 'ROLLBACK TO a;') ]}\nFETCH ALL FROM c$made;\nCLOSE c$made;" } ],
	[ 3, sub { "INSERT INTO effect " . pick('DEFAULT VALUES', 'SELECT FROM generate_series(1, 10)') . pick('', ' RETURNING key') . ';' } ],
	[ 4, sub { 'SELECT * FROM ' . pick(@views) . pick('', ' LIMIT 1', ' ORDER BY 1', " WHERE scope = 's1'") . ';' } ],
	[ 2, sub { 'SELECT count(*) FROM ' . pick(@views) . ' a, ' . pick(@views) . ' b;' } ],
	[ 1, sub { pick('DISCARD ALL;', 'DISCARD PLANS;', 'SELECT pg_advisory_unlock_all();', 'UNLISTEN *;', 'CHECKPOINT;') } ],
	[ 1, sub { pick("SET force_parallel_mode = on;\nSET parallel_setup_cost = 0;", 'SET force_parallel_mode = off;', 'SET jit = off;', 'SET plan_cache_mode = force_generic_plan;') } ],
	[ 1, sub { "COPY (SELECT * FROM @{[ call() ]}) TO STDOUT;" } ],
	[ 1, sub { "CREATE TEMP TABLE x@{[ ++$made ]} ON COMMIT DROP AS SELECT * FROM @{[ call() ]};" } ],
	[ 1, sub { "CREATE MATERIALIZED VIEW public.m@{[ ++$made ]} AS SELECT * FROM @{[ call() ]};" } ],
	[ 1, sub { "EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM @{[ call() ]};" } ],);
my @bag = map { ($_->[1]) x $_->[0] } @statement;

my $dir = $node->basedir;
sub script
{
	my ($name, @lines) = @_;
	my $file = "$dir/$name.sql";
	open my $out, '>', $file or die $!;
	print $out "\\set VERBOSITY terse\n", (map { "\\set t$_ none\n" } 1 .. 5), @lines, "ROLLBACK;\n";
	close $out;
	return $file;
}

# After an error the transaction continues from a savepoint, if there is one, or ends.
my $recover = "\\if :ERROR\nROLLBACK TO @{[ 'a' ]};\n\\if :ERROR\nROLLBACK;\n\\endif\n\\endif\n";
my @scripts = map
{
	script("fuzz$_", map { pick(@bag)->() . "\n" . (rand() < 0.8 ? $recover : '') } 1 .. $statements)
} 1 .. $sessions;

# Two more sessions: one cancels statements, the other maintains the table.
push @scripts, script('chaos', map { <<'SQL' } 1 .. $statements / 40);
SELECT count(pg_cancel_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) x;
SELECT pg_sleep(0.05);
SQL
my @care = ('REINDEX INDEX CONCURRENTLY idem.record_pkey;', 'VACUUM idem.record;', 'SELECT idem.purge();', 'ANALYZE;', 'SELECT idem.rotate_secret();', 'SELECT idem.stats_reset();',
	'SET lock_timeout = 100; VACUUM FULL idem.record;',
	q{SELECT idem.create_scope('s2', owner => 'owner', wait => '0', ttl => '50 ms') WHERE NOT EXISTS (SELECT FROM idem.scopes WHERE name = 's2');},
	q{SELECT idem.create_scope('s1', owner => 'owner', wait => '20 ms') WHERE NOT EXISTS (SELECT FROM idem.scopes WHERE name = 's1');});
push @scripts, script('care', "SET statement_timeout = 0;\n", map { pick(@care) . "\nSELECT pg_sleep(0.05);\n" } 1 .. $statements / 40);

my @runs;
for my $file (@scripts)
{
	my ($out, $err) = ("$file.out", "$file.err");
	push @runs, { file => $file, err => $err, run => start([ 'psql', '-X', '-q', '-d', $node->connstr('postgres'), '-f', $file ], '>', $out, '2>', $err) };
}
my %state;
for my $r (@runs)
{
	finish $r->{run};
	my $errors = slurp_file($r->{err});
	unlike($errors, qr/server closed the connection|connection to server was lost/, "a session lived: $r->{file}");
}

# Afterwards.
for my $gid (split /\n/, $node->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts'))
{
	$node->safe_psql('postgres', "ROLLBACK PREPARED '$gid'");
}
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), 0, 'no key lock is left');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.open_claims()}), 0, 'no claim is left open');
is($node->safe_psql('postgres', q{SELECT bt_index_check('idem.record_pkey', true)}), '', 'amcheck finds every record in the index');
is($node->safe_psql('postgres', q{SELECT scope, tenant, coalesce(key, key_uuid::text), count(*) FROM idem.record GROUP BY 1, 2, 3 HAVING count(*) > 1}), '', 'no key has two records');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.record WHERE state NOT IN ('c', 'f', 'p') OR attempt < 1 OR (state = 'p') <> (lease_end IS NOT NULL) AND state = 'p'}), 0, 'every record is well-formed');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM idem.record'), '>', 0, 'some records were stored');
$node->stop;

my $log = slurp_file($node->logfile);
$state{$1}++ while $log =~ /^(\w{5})\|\d+\|client backend\|ERROR:/mg;
note join ', ', map { "$_ $state{$_}" } sort keys %state;
cmp_ok($state{$_} // 0, '>', 0, "$_ was among the errors") for qw(ID001 ID004 ID005 ID006 ID007 ID008 42501 22023);
my @internal = $log =~ /^(XX\d{3}\|.*\n(?:.*\n){0,3})/mg;
is(scalar(@internal), 0, 'no internal error') or diag join "\n", @internal[ 0 .. ($#internal < 5 ? $#internal : 5) ];
my @warnings = grep { !/already a transaction|no transaction in progress|only be used in transaction blocks|^idempotency key "|are not limited|SET LOCAL|permission denied to set|worker took too long|still waiting/ } $log =~ /WARNING:  (.*)/g;
is(join("\n", @warnings), '', 'the server logged only warnings of the statements themselves');
log_is_clean($node);
done_testing();
