# Two editions, one contract: the same random calls to a database with the extension and to one with
# the SQL edition have the same results, errors, details and hints.
#
# A script is a list of steps in two sessions of each database: calls of every function that the
# catalogs of the extension have, with usual and hostile arguments, transactions of every kind,
# savepoints, other roles, and rows that are aged, so that leases end and records expire. Only one
# step runs at a time, so that both editions see the same order. Tokens and times differ: a token stands
# for the step that returned it, times and durations may differ by half a minute.
#
# Differences on purpose are in one table, with their reasons. Any other is printed as the shortest
# script in which it occurs.
#
# CALLS sets the number of steps, and SEED which they are: without it always the same, so that only a
# change of the code makes the test fail.
use strict;
use warnings;

use IdemTest;
use Digest::MD5 'md5_hex';
use IPC::Open2;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::Local 'timegm';

my $seed = $ENV{SEED} // 1;
my $calls = $ENV{CALLS} // 5_000;
my $steps_of_script = 60;
srand($seed);

# What differs on purpose: the step, what the library says, what the SQL edition says, why and, if that
# matters, which step comes before it.
my @on_purpose = (
	[ qr/^PREPARE/, qr/ID006: cannot prepare a transaction/, qr/ID006: cannot commit a transaction/,
		'a trigger is not told which it is' ],
	[ qr/\btoken => /, qr/<child|ID004: .*\nDETAIL:  (?:The attempt was released|Attempt \d+ has taken)/,
		qr/ID004: .*\nDETAIL:  The token names no attempt/,
		'the library\'s token has the digest of the key; here, the row is found by a nonce that it no longer has' ],
	[ qr/idem\.once_each/, qr/^"/, qr/ERROR:  (?:55P03|57014)/,
		'an open claim is a row here, for which once_each() waits; in the library, that claim gets 40001 when it '
		. 'completes' ],
	[ qr/idem\.(?:claim|try_claim|execute|once|cancel|forget|erase)\(/, qr/ID001|"in_progress"/,
		qr/ERROR:  (?:55P03|57014)/,
		'the unique index makes the insertion of a key wait for another transaction\'s once_each(), which has no '
		. 'key lock', qr/idem\.once_each/ ],
	[ qr/idem\.lookup\(/, qr/"in_progress"/, qr/"absent"/,
		'the row that another transaction\'s once_each() has written is not visible, and has no key lock',
		qr/idem\.once_each/ ],
	[ qr/idem\.(?:claim|try_claim|execute|once)\(/, qr/ID001|"in_progress"/, qr/ID002|"conflict"/,
		'a conflict does not wait for another transaction that changes the record', qr/\btoken => / ],
	[ qr/\btoken => /, qr/ERROR:  40001/, qr/ERROR:  ID00[45]/,
		'a snapshot shows the lease as it was, or not at all; the library sees the one of now',
		qr/ISOLATION LEVEL (?:REPEATABLE|SERIAL)/ ],
	[ qr/idem\.(?:alter_scope|drop_scope|forget_tenant|erase_tenant)\(/, qr/^/, qr/ERROR:  25001: cannot execute/,
		'a lock does not make a new snapshot', qr/ISOLATION LEVEL (?:REPEATABLE|SERIAL)/ ],
	[ qr/idem\.alter_scope/, qr/ERROR:  (?:22023|22004|0A000|55000|22P02|22007)/,
		qr/ERROR:  55000: cannot change scope .* while this transaction has an open claim/,
		'of two refusals, another comes first' ],
	[ qr/idem\.alter_scope/, qr/ERROR:  55000: cannot change "tenant_from"/, qr/ERROR:  22023/,
		'of two refusals, another comes first' ],
	[ qr/idem\.(?:forget|erase)_tenant\(/, qr/ID001: .*\nDETAIL:  P/, qr/ID001: .*\nDETAIL:  The key was claimed at/,
		'the row shows the lease that another transaction is ending; of many keys, no locks are looked for' ],
	[ qr/idem\.reset_stream/, qr/^$/, qr/ERROR:  ID001/,
		'a call that has found no watermark keeps the lock of the source until its transaction ends' ],
	[ qr/settings => /, qr/ERROR:  22007/, qr/ERROR:  22007: .*\nLINE 1/, 'a query casts the value' ],
	[ qr/claims_per_minute => [^N]/, qr/ERROR:  55000: "claims_per_minute" needs idem to be preloaded/,
		qr/ERROR:  0A000: "claims_per_minute" is not available/, 'limits are counted in shared memory' ],
	[ qr/./, qr/ERROR:  40001: .*\nDETAIL:  The key's record was committed/,
		qr/ERROR:  40001: could not serialize access/, 'the server raises it, without a detail' ],
);

# Functions that are not compared, and why.
my %left_out = (
	create_record_table => 'record tables are the library\'s',
	use_records => 'record tables are the library\'s',
	export_identity => 'has the secret of its database',
	import_identity => 'needs the identity of another server',
	rotate_secret => 'changes the secret of all scripts',
	stats_reset => 'statistics are the library\'s',
	health => 'its checks are about the edition',
	edition => 'it is the name of the edition',
	require_claim => 'called by a trigger',
	purge => 'works through all scopes of a database',
	backoff => 'random');

my $node = idem_node('editions', bare => 1, conf => <<'CONF');
fsync = off
log_statement = none
max_prepared_transactions = 20
timezone = UTC
CONF

my @editions = qw(library managed);
$node->safe_psql('postgres', <<'SQL');
CREATE DATABASE library;
CREATE DATABASE managed;
CREATE ROLE owner;
CREATE ROLE member IN ROLE owner;
CREATE ROLE stranger;
SQL
$node->safe_psql('library', 'CREATE EXTENSION idem');
install_managed($node, 'managed');
$node->safe_psql($_, <<'SQL') for @editions;
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope, idem.forget, idem.revoke, idem.erase,
  idem.forget_tenant, idem.erase_tenant, idem.reset_stream TO owner;
GRANT CREATE ON SCHEMA public TO PUBLIC;
CREATE FUNCTION op_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION op_fail(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'P0042',
  MESSAGE = coalesce(left($1::text, 100), 'none'), DETAIL = 'detail', HINT = 'hint'; END $$;
CREATE FUNCTION op_retry(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001',
  MESSAGE = 'retry'; END $$;
CREATE FUNCTION op_claim(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
  PERFORM idem.claim(current_setting('test.scope') || '1', 'left open'); RETURN $1; END $$;
CREATE FUNCTION op_null(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE FUNCTION op_wrong(jsonb) RETURNS integer LANGUAGE sql AS 'SELECT 1';
-- The tests change the row instead of the clock.
CREATE FUNCTION age(past_end interval, past_expiry interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE idem.record SET lease_end = CASE WHEN state = 'p' THEN clock_timestamp() - past_end ELSE lease_end END,
    expires = CASE WHEN past_expiry IS NULL THEN expires ELSE clock_timestamp() - past_expiry END
  WHERE expires > clock_timestamp();
END $$;
SQL

# Sessions ----------------------------------------------------------------------------------------

# psql shows every field of an error at this verbosity, and the lines of a result as they are.
sub connect_to
{
	my ($database) = @_;
	my $pid = open2(my $out, my $in, 'sh', '-c', 'exec psql -XAtq -v VERBOSITY=verbose -v SHOW_CONTEXT=never "$0" 2>&1',
		$node->connstr($database));
	$in->autoflush(1);
	return { in => $in, out => $out, pid => $pid };
}

sub ask
{
	my ($session, $statement) = @_;
	print { $session->{in} } "$statement\n\\echo ~~~\n";
	my $said = '';
	while (defined(my $line = readline $session->{out}))
	{
		last if $line eq "~~~\n";
		$said .= $line;
	}
	return $said;
}

# Of each database, one session to administrate it and two for the steps.
my %session;
for my $edition (@editions)
{
	$session{$edition} = [ map { connect_to($edition) } 0 .. 2 ];
	ask($_, 'SET statement_timeout = 2000; SET lock_timeout = 500;') for @{ $session{$edition} };
}

# Random steps ------------------------------------------------------------------------------------

sub pick { return $_[ int(rand(@_)) ] }
sub quoted { my ($text) = @_; $text =~ s/'/''/g; return "'$text'" }

my @requests = ('NULL', q('{"amount": 1}'), q('{"amount": 1.0, "at": 7}'), q('{"amount": 1e0, "at": 8}'),
	q('{"amount": 100}'), q('{"amount": 1e2}'), q('{"amount": 100.00}'), q('{"amount": 0.1}'), q('{"amount": 0.10}'),
	q('{"amount": -0.0}'), q('{"amount": 0}'),
	q('{}'), q('[]'), q('null'), q('"x"'), q('"1.0"'), q('"1.00"'), q('1'), q('1.0'), q('[1.0, 2.50]'), q('[1, 2.5]'),
	q('{"a": {"b": 1, "d": 2}}'), q('{"a": {"b": 2, "d": 2}}'), q('{"a": [{"b": [1, {"b": 2}], "d": 1}, {"b": 5}]}'),
	q('{"a": [{"d": 1}, {}]}'),
	q('{"a": "1.0\\"}"}'), q('{"a": "x\\\\", "n": 1.50}'), q('{"a": "x\\\\", "n": 1.5}'), q('{"n": 1e-7}'),
	q('{"n": 0.00000010}'), q('{"n": 12345678901234567890.0}'), q('{"n": 12345678901234567890}'), q('{"1.0": 1}'),
	q('{"1": 1}'), q('{"c": 1, "a": 2}'), q('{"Ü": "ü"}'),
	q('{"a.b": 1}'), q('{"a": {"b.c": 1}}'), q(to_jsonb(repeat('x', 20000))), q('{"a": null}'), q('{"n": 1e1000}'),
	q(to_jsonb(1e300::numeric)));
my @errors = (q('{"sqlstate": "P0042", "message": "no"}'), q('{"message": "no", "detail": "d", "hint": "h"}'),
	q('{"sqlstate": "42501"}'), q('{"message": "Ünïcödé"}'), 'NULL', q('{}'), q('[]'), q('"x"'),
	q('{"sqlstate": "40001"}'), q('{"sqlstate": "ID001"}'), q('{"sqlstate": 42}'),
	q('{"sqlstate": "p0042"}'), q('{"sqlstate": "P0042", "message": null}'), q('{"message": "x", "more": 1}'),
	q('{"sqlstate": "00000"}'), q('{"message": ""}'), q('{"sqlstate": "ID003"}'),
	q(jsonb_build_object('message', repeat('m', 100000))));
my @headers = ('NULL', q('{"Location": "/1"}'), q('{"Set-Cookie": "secret", "A": "b"}'), q('{"A": ["b", "c"]}'),
	q('{"A": "b"}'), q('[]'), q('"x"'), q('{"a b": "c"}'), q('{"A": 1}'), q('{"A": ["b", 1]}'), q('{"": "c"}'),
	q('{"A": "b\\nc"}'), q('{"A": []}'), q('{}'), q('null'));
my @intervals = ('NULL', q('1 hour'), q('1 minute'), q('7 days'), q('0'), q('-1 s'), q('1 mon -30 days'),
	q('1000 years'), q('1001 years'), q('178000000 years'), q('-178000000 years'), q('0.000001 s'),
	q('2147483647 months 2147483647 days'));

# By the argument's name and type, or by type. The first four are usual: seven arguments of ten are.
my %values = (
	'scope text' => [ (map { quoted("{scope}$_") } 1, 1, 2, 3), quoted('{scope}nowhere'), 'NULL', q(''), q('{scope}1 '),
		q(repeat('s', 64)), q(repeat('x', 100000)) ],
	'name text' => [ (map { quoted("{scope}$_") } 1, 2, 3, 1), quoted('{scope}new'), 'NULL', q(''),
		q(repeat('{scope}', 40)) ],
	'key anycompatible' => [ q('k1'), q('k2'), q('k3'), q('k4'), q('f47ac10b-58cc-4372-a567-0e02b2c3d479'),
		q('f47ac10b-58cc-4372-a567-0e02b2c3d479'::uuid), q('F47AC10B-58CC-4372-A567-0E02B2C3D479'),
		q('00000000-0000-0000-0000-000000000000'), q(''), q(' '), 'NULL', 'NULL::uuid', '4711', q('4711'),
		q('Ünïcödé'), q('quo''te'), q('a\\b'), q('%s'), q(repeat('x', 255)), q(repeat('x', 256)), q(repeat('ü', 127)),
		q(repeat('ü', 128)), q(E'\n\x01'), q(repeat('x', 100000)), q('018f0000-0000-7000-8000-000000000000'),
		q('ffffffff-ffff-7fff-bfff-ffffffffffff'), q('01ARZ3NDEKTSV4RRFFQ69G5FAV'), q('2026-03-04T05:06:07Z'),
		q('{"a","b"}') ],
	'keys anycompatiblearray' => [ q('{k1,k2}'), q('{k5,k6,k5}'), q('{k1}'), q('{k3,k4,k1}'), q('{}'), 'NULL',
		q(ARRAY['f47ac10b-58cc-4372-a567-0e02b2c3d479'::uuid]), 'ARRAY[1]', q('{a,NULL}'), q('{{k7},{k8}}'),
		q('[5:6]={k1,k9}'), q('{""}'), q(ARRAY[repeat('x', 256)]), q('{k1,"",k2}') ],
	'tenant text' => [ 'NULL', q('t1'), 'NULL', q(''), q('t2'), q('owner'), q('stranger'), q(repeat('t', 255)),
		q(repeat('t', 256)), q('Ü') ],
	'token text' => [ ('{token}') x 12, 'NULL', q('banana'), q(''), q(left({token}, -1)), q({token} || 'A'),
		q(' ' || {token}), q(repeat('A', 100000)) ],
	'request jsonb' => \@requests,
	'response jsonb' => [ q('{"payment": 7}'), 'NULL', q('[1.50, "x"]'), q('null'), @requests ],
	'state jsonb' => \@requests,
	'error jsonb' => \@errors,
	'headers jsonb' => \@headers,
	'body bytea' => [ 'NULL', q('\x00ff'), 'NULL', q(''), q(convert_to(repeat('x', 300000), 'UTF8')) ],
	'status integer' => [ 'NULL', 200, 404, 503, 0, 99, 100, 599, 600, 1000, -2147483648 ],
	'wait interval' => [ 'NULL', q('0'), q('1 ms'), q('20 ms'), q('-1 s') ],
	'lease interval' => [ q('1 minute'), 'NULL', q('1 hour'), 'NULL', @intervals ],
	'ttl interval' => [ 'NULL', q('1 hour'), q('7 days'), 'NULL', @intervals ],
	'retry_after interval' => [ 'NULL', q('0'), q('1 hour'), 'NULL', @intervals ],
	'name text of checkpoint' => [ q('step'), q('charged'), q('x'), q('step'), q(''), 'NULL', q(repeat('x', 255)),
		q(repeat('x', 256)) ],
	'step text' => [ q('step'), q(''), 'NULL', q('Ü'), q(repeat('x', 100000)) ],
	'source text' => [ q('a'), q('b'), q('a'), q('a'), q(''), 'NULL', q(repeat('x', 255)), q(repeat('x', 256)) ],
	'seq bigint' => [ 1, 2, 3, 4, 'NULL', 0, -1, '9223372036854775807', q('-9223372036854775808') ],
	'operation regprocedure' => [ q('op_echo(jsonb)'), q('op_echo(jsonb)'), q('op_fail(jsonb)'), q('op_retry(jsonb)'),
		(map { "'op_$_(jsonb)'" } qw(claim null wrong)), '0', 'NULL', q('now()'), '4294967295::oid::regprocedure' ],
	'parts text[]' => [ q(VARIADIC ARRAY['a', 'b']), q(VARIADIC '{}'), q(VARIADIC ARRAY['a', NULL]), q(VARIADIC NULL),
		q(VARIADIC ARRAY['ab', '', 'ü']), q(VARIADIC '{{a},{b}}') ],
	'header text' => [ q('"k1"'), q('k2'), q('"k";v="x"'), q('"a\\"b"'), 'NULL', q(''), q('""'), q('"k'), q('"k" x'),
		q('a,b'), q('"ä"') ],
	'sqlstate text' => [ q('ID001'), q('42501'), q('40001'), q('x'), 'NULL' ],
	'detail text' => [ 'NULL', q('because') ],
	'owner regrole' => [ 'NULL', q('owner'), q('member'), q('stranger'), '0::oid::regrole',
		'4294967295::oid::regrole' ],
	'records boolean' => [ 'NULL', 'false' ],
	'claims_per_minute integer' => [ 'NULL', -1, 0, 100 ],
	'settings text[]' => [ q('{}'), 'NULL', q('{ttl=1 hour}'), q('{wait=0}'), q('{banana=1}'), q('{ttl}'),
		q('{ttl=banana}'), q('{NULL}') ],
	'tenant_from text' => [ q('argument'), 'NULL', q('role'), q('user') ],
	'store_request text' => [ q('never'), q('unfinished'), q('always'), 'NULL', q('banana') ],
	'weak_keys text' => [ q('allow'), q('reject'), q('warn'), 'NULL', q('banana') ],
	'request_exclude text[]' => [ q('{at}'), q('{a.b,c}'), q('{}'), 'NULL', q('{a.b.c}'), q('{a}'), q('{""}'),
		q('{a..b}'), q('{NULL}'), q('{{a},{b}}'), q('{a.,b}'), q(ARRAY[repeat('x', 1000)]) ],
	'response_exclude text[]' => [ q('{}'), q('{payment}'), q('{a.b}'), 'NULL', q('{""}') ],
	'final_sqlstates text[]' => [ q('{}'), q('{P0042}'), q('{P0}'), 'NULL', q('{40}'), q('{x}'), q('{NULL}') ],
	'header_exclude text[]' => [ q('{set-cookie}'), q('{}'), 'NULL', q('{{a},{b}}'), q('{NULL}'), q('{""}'),
		q('{a b}') ],
	'max_attempts integer' => [ 'NULL', 2, 1, 3, 0, -1, 2147483647 ],
	'max_answer_size integer' => [ 65536, 'NULL', 1024, 100000, 0, -1, 1023, 536870913 ],
	'min_ttl interval' => [ 'NULL', q('0'), q('1 minute'), q('2 hours'), q('-1 s') ],
	'answer_ttl interval' => [ 'NULL', q('0'), q('1 hour'), q('1 day'), q('-1 s') ],
	'result idem.claim_result' => [
		(map { "jsonb_populate_record(NULL::idem.claim_result, $_)" }
			q('{"outcome": "completed", "status": 201, "headers": {"a": "b"}}'),
			q('{"outcome": "failed", "error": {"message": "no"}}'),
			q('{"outcome": "in_progress", "retry_after": "1.5 s"}'), q('{"outcome": "conflict"}'),
			q('{"outcome": "claimed", "headers": {"a": [1, "b", 1e300]}}'),
			q('{"outcome": "completed", "headers": [{}]}'),
			q('{"outcome": "limited", "retry_after": "-1 s"}'), q('{"outcome": "stale_key"}'),
			q('{"outcome": "banana"}'), q('{}')), 'NULL' ],
	'interval' => \@intervals,
	'boolean' => [qw(false true false true NULL)],);

# The functions of the extension with their arguments, without those that need no value.
my @functions;
for my $line (split /\n/, $node->safe_psql('library', <<'SQL'))
SELECT proname, prorettype::regtype,
  coalesce(string_agg(proargnames[i] || '|' || format_type(proargtypes[i - 1],
  NULL) || '|' || (i > pronargs - pronargdefaults), ';' ORDER BY i), '')
  FROM pg_proc p LEFT JOIN LATERAL generate_series(1, pronargs) i ON true
 WHERE pronamespace = 'idem'::regnamespace GROUP BY p.oid ORDER BY proname, p.oid
SQL
{
	my ($name, $result, $arguments) = $line =~ /^(\w+)\|([^|]*)\|(.*)$/;
	next if $left_out{$name};
	my @arguments = map { my ($argument, $type, $optional) = split /\|/; { name => $argument, type => $type,
			optional => $optional eq 'true' } } split /;/, $arguments;
	for my $argument (@arguments)
	{
		my $what = "$argument->{name} $argument->{type}";
		$argument->{values} = $values{"$what of $name"} // $values{$what} // $values{ $argument->{type} };
		ok($argument->{values}, "the test has values for $what of $name");
	}
	push @functions, { name => $name, result => $result, arguments => \@arguments };
}
my %function = map { $_->{name} => $_ } @functions;
my @often = map { $function{$_} } (qw(claim try_claim)) x 5, (qw(complete)) x 4,
	qw(fail release renew checkpoint take take execute execute lookup lookup once once_each advance advance
	revoke cancel forget erase);
my @administration =
	map { $function{$_} } qw(create_scope alter_scope drop_scope forget_tenant erase_tenant reset_stream scope_ddl);
my @others = grep { my $f = $_; !grep { $_ == $f } @often, @administration } @functions;

# A call of a function. {token}, {scope} and {edition} are replaced when the step runs.
our $in_transaction = 0;  # alone, a claim without a lease is refused
sub call
{
	my ($f) = @_;
	my @arguments;
	for my $argument (@{ $f->{arguments} })
	{
		my $is_lease = $argument->{name} eq 'lease';
		next if $argument->{optional} && rand() < ($is_lease ? $in_transaction ? 0.8 : 0.2 : 0.65);
		my @choice = @{ $argument->{values} };
		@choice = @choice[ 0 .. 3 ] if @choice > 4 && rand() < 0.88;
		my $value = pick(@choice);
		my $variadic = $value =~ s/^VARIADIC // ? 'VARIADIC ' : '';
		push @arguments, "$variadic$argument->{name} => $value";
	}
	my $call = "idem.$f->{name}(" . join(', ', @arguments) . ')';
	return $f->{result} eq 'void' ? "SELECT $call;" : "SELECT to_jsonb(r) FROM $call r;";
}

my @scope_settings =
	grep { $_->{name} !~ /^(?:name|owner|if_not_exists|records|settings|claims_per_minute|wait)$/ }
	@{ $function{create_scope}{arguments} };
sub new_scope
{
	my ($n) = @_;
	my @settings =
		map { "$_->{name} => " . pick(@{ $_->{values} }[ 0 .. ($#{ $_->{values} } < 3 ? $#{ $_->{values} } : 3) ]) }
		grep { rand() < 0.2 } @scope_settings;
	@settings = grep { !/ => NULL/ || /max_attempts/ } @settings;
	return 'SELECT idem.create_scope(' . join(', ', "'{scope}$n'", "owner => '" . pick(qw(owner owner member stranger))
		. "'", "wait => '" . pick('0', '20 ms') . "'", @settings) . ');';
}

my @step = (
	[ 100, sub { call(pick(@often)) } ],
	[ 12, sub { call(pick(@others)) } ],
	[ 6, sub { call(pick(@administration)) } ],
	[ 12, sub { 'BEGIN' . pick('', '', '', '', ' ISOLATION LEVEL REPEATABLE READ', ' ISOLATION LEVEL SERIALIZABLE',
				' READ ONLY') . ';' } ],
	[ 10, sub { 'COMMIT;' } ],
	[ 4, sub { 'ROLLBACK;' } ],
	[ 6, sub { 'SAVEPOINT ' . pick('a', 'b') . ';' } ],
	[ 4, sub { 'ROLLBACK TO ' . pick('a', 'b') . ';' } ],
	[ 2, sub { 'RELEASE ' . pick('a', 'b') . ';' } ],
	[ 1, sub { 'SET CONSTRAINTS ALL ' . pick('IMMEDIATE', 'DEFERRED') . ';' } ],
	[ 1, sub { q(PREPARE TRANSACTION 'gid_{edition}';) } ],
	[ 1, sub { pick('COMMIT', 'ROLLBACK') . q( PREPARED 'gid_{edition}';) } ],
	[ 5, sub { pick('SET', 'SET', 'SET LOCAL') . ' ROLE ' . pick('NONE', 'NONE', 'owner', 'member', 'stranger')
			. ';' } ],
	[ 2, sub { pick('SET', 'SET LOCAL') . " idem.tenant = '" . pick('', 't1', 'owner') . "';" } ],
	[ 4, sub { q(-- age: SELECT age('1 s', NULL);) } ],
	[ 2, sub { q(-- age: SELECT age('2 days', '1 s');) } ],
	[ 3, sub { "INSERT INTO guarded_{scope} DEFAULT VALUES RETURNING to_jsonb(key);" } ],
	[ 4, sub { 'SELECT to_jsonb(r) FROM idem.' . pick('records r WHERE scope', 'streams r WHERE scope',
				'scopes r WHERE name', 'in_flight r WHERE scope') . " LIKE '{scope}%' ORDER BY 1;" } ],);
my @bag = map { ($_->[1]) x $_->[0] } @step;

# An atomic operation: a claim alone is refused at its COMMIT.
sub transaction
{
	my @between = map { pick(@bag)->() } 1 .. rand(3);
	local $in_transaction = 1;
	return ('BEGIN;', call($function{ pick(qw(claim try_claim)) }), @between,
		call($function{ pick(qw(complete complete complete fail release)) }), rand() < 0.9 ? 'COMMIT;' : 'ROLLBACK;');
}

sub script
{
	my @steps = map { { session => 0, sql => $_ } }
		map { (new_scope($_), "SELECT idem.create_scope('{scope}$_', owner => 'owner', wait => '0',
			if_not_exists => true);") } 1 .. 3;
	push @steps, { session => 0, sql => "CREATE TABLE guarded_{scope} (key text DEFAULT idem.current_key());
		GRANT ALL ON guarded_{scope} TO PUBLIC; CREATE TRIGGER guard BEFORE INSERT ON guarded_{scope} FOR EACH STATEMENT
		EXECUTE FUNCTION idem.require_claim('{scope}1', '{scope}2');" };
	while (@steps < $steps_of_script)
	{
		my $number = rand() < 0.8 ? 1 : 2;
		push @steps, map { { session => $number, sql => $_ } } rand() < 0.25 ? transaction() : pick(@bag)->();
	}
	$steps[$_]{id} = $_ for 0 .. $#steps;
	return @steps;
}

# Running a script --------------------------------------------------------------------------------

my $json = JSON::PP->new->canonical->allow_nonref;
my %is_time = map { $_ => 1 } qw(created_at expires_at completed_at lease_end since updated_at);
my %is_span = map { $_ => 1 } qw(retry_after age);

sub seconds
{
	my ($text) = @_;
	return $text unless defined $text;
	return timegm($6, $5, $4, $3, $2 - 1, $1) if $text =~ /^(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)/;
	return (($1 // 0) * 86400 + $2 * 3600 + $3 * 60 + $4) if $text =~ /^(?:(\d+) days? ?)?(\d+):(\d\d):(\d\d)/;
	return $text;
}

# What a step said, without what may differ: a list of texts, and the times in it.
sub normal
{
	my ($said, $edition, $tokens, $id, $sql) = @_;
	my @times;
	my $mask;
	$mask = sub {
		my ($value) = @_;
		return [ map { $mask->($_) } @$value ] if ref $value eq 'ARRAY';
		return $value unless ref $value eq 'HASH';
		my %masked = %$value;
		for my $name (sort keys %masked)
		{
			next unless defined $masked{$name};
			if ($name eq 'token') { $tokens->{$edition}{$id} = $masked{$name}; $masked{$name} = '<token>'; }
			elsif ($is_time{$name} || $is_span{$name})
			{
				push @times, seconds($masked{$name});
				$masked{$name} = '<time>';
			}
			elsif ($name =~ /^(?:holder_)?pid$/) { $masked{$name} = '<process>'; }
		}
		return \%masked;
	};
	my @lines;
	for my $line (split /\n/, $said)
	{
		next if $line =~ /^LOCATION: /;
		# A child key is the same in every attempt, and derived from a secret.
		if ($sql =~ /child_key/)
		{
			my $children = $tokens->{children}{$edition} //= {};
			$line =~ s/^"([0-9a-f]{64})"$/'<child ' . ($children->{$1} ||= 1 + keys %$children) . '>'/e;
		}
		if ($line =~ /^\{/ && defined(my $value = eval { $json->decode($line) }))
		{
			$line = $json->encode($mask->($value));
		}
		$line =~ s/^"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"$/<key>/ if $line;
		$line =~ s/\bgid_$edition\b/<gid>/g;
		$line =~ s/\b[Pp]rocess \K\d+/<process>/g;
		$line =~ s/\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00(?::00)?| UTC)?/<time>/g;
		$line =~ s/\d+(?:\.\d+)? (?:milli|micro)?seconds?/<span>/g;
		$line =~ s/^DATATYPE NAME:  \K\d+/<span>/;
		push @lines, $line;
	}
	return { text => join("\n", @lines), times => \@times };
}

sub same
{
	my ($one, $other) = @_;
	return 0 if $one->{text} ne $other->{text} || @{ $one->{times} } != @{ $other->{times} };
	for my $i (0 .. $#{ $one->{times} })
	{
		my ($a, $b) = ($one->{times}[$i], $other->{times}[$i]);
		return 0 if $a =~ /^\d+$/ && $b =~ /^\d+$/ ? abs($a - $b) > 30 : $a ne $b;
	}
	return 1;
}

my %met;
sub on_purpose
{
	my ($before, $sql, $library, $managed) = @_;
	for my $difference (@on_purpose)
	{
		my ($step, $one, $other, $reason, $earlier) = @$difference;
		next unless $sql =~ $step && $library =~ $one && $managed =~ $other;
		next if $earlier && !grep { $_->{sql} =~ $earlier } @$before;
		$met{$reason}++;
		return 1;
	}
	return 0;
}

my $runs = 0;
my $executed = 0;
my %outcomes;

# Runs the steps in both databases. Returns the first difference: the step and what each edition said.
sub run_script
{
	my (@steps) = @_;
	my $scope = substr(md5_hex(++$runs), 0, 10) . '_';    # no name is like another
	my %tokens = map { $_ => {} } @editions;
	my @sources;  # steps whose tokens have not ended their claims
	my %open = (1 => 0, 2 => 0);
	my $difference;
	ask($_, "SET test.scope = '$scope';") for map { @{ $session{$_} }[ 1, 2 ] } @editions;
	for my $step (@steps)
	{
		my ($aged) = $step->{sql} =~ /^-- age: (.*)/;
		next if $aged && ($open{1} || $open{2});
		my %said;
		# A step keeps its token when it is repeated. Without a claim, few steps call with a token.
		if ($step->{sql} =~ /\{token\}/)
		{
			$step->{token_of} //= @sources ? (rand() < 0.7 ? $sources[-1]
				: pick(rand() < 0.8 ? @sources : keys %{ $tokens{library} })) : rand() < 0.2 ? -1 : -2;
			next if $step->{token_of} == -2;
		}
		for my $edition (@editions)
		{
			my $token = quoted($tokens{$edition}{ $step->{token_of} // '' } // 'none');
			my $sql = ($aged // $step->{sql}) =~ s/\{scope\}/$scope/gr =~ s/\{token\}/$token/gr
				=~ s/\{edition\}/$edition/gr;
			$said{$edition} = normal(ask($session{$edition}[ $aged ? 0 : $step->{session} ], $sql), $edition, \%tokens,
				$step->{id}, $step->{sql});
		}
		$executed++;
		push @sources, $step->{id} if $tokens{library}{ $step->{id} };
		my $failed = grep { $said{$_}{text} =~ /^ERROR:/m } @editions;
		@sources = grep { $_ != $step->{token_of} } @sources
		  if defined $step->{token_of} && !$failed && $step->{sql} =~ /idem\.(?:complete|fail|release)\(/;
		my ($function) = $step->{sql} =~ /idem\.(\w+)/;
		$outcomes{$function}{ $said{library}{text} =~ /ERROR:  (\w{5}):/ ? $1 : '00000' }++ if $function;
		if (!same(@said{@editions}) && !on_purpose(\@steps, $step->{sql}, map { $said{$_}{text} } @editions))
		{
			$difference = { step => $step, map { $_ => $said{$_} } @editions };
			last;
		}
		# After an error the transaction goes on from a savepoint, or ends.
		$open{ $step->{session} } = 1 if $step->{sql} =~ /^BEGIN/;
		$open{ $step->{session} } = 0 if $step->{sql} =~ /^(?:COMMIT;|ROLLBACK;|PREPARE)/;
		if ($failed && $open{ $step->{session} })
		{
			my ($end) = map { my $edition = $_; my $to = ask($session{$edition}[ $step->{session} ], 'ROLLBACK TO a;')
				=~ /ERROR/; ask($session{$edition}[ $step->{session} ], 'ROLLBACK;') if $to; $to } @editions;
			$open{ $step->{session} } = 0 if $end;
		}
	}
	for my $edition (@editions)
	{
		ask($session{$edition}[$_], 'ROLLBACK; RESET ROLE; RESET idem.tenant;') for 1, 2;
		ask($session{$edition}[0], "ROLLBACK PREPARED 'gid_$edition';");
		ask($session{$edition}[0], "DROP TABLE IF EXISTS guarded_$scope; SELECT idem.drop_scope(name, force => true)
			FROM idem.scopes;");
	}
	return $difference;
}

# The steps without which the difference is gone: chunks, then single ones.
sub shortest
{
	my (@steps) = @_;
	for (my $size = int(@steps / 2); $size >= 1; $size = int($size / 2))
	{
		for (my $at = 0; $at < @steps;)
		{
			my @rest = @steps[ grep { $_ < $at || $_ >= $at + $size } 0 .. $#steps ];
			if (@rest && run_script(@rest)) { @steps = @rest; }
			else { $at += $size; }
		}
	}
	return @steps;
}

# The function and the first line that each edition said: one difference of each kind is reported.
sub kind
{
	my ($difference) = @_;
	my ($function) = $difference->{step}{sql} =~ /^(SELECT \S+ FROM idem\.\w+|SELECT idem\.\w+|\w+)/;
	return join ' | ', $function, map { $difference->{$_}{text} =~ /^(\w+:\s+\w+)/ ? $1 : 'a result' } @editions;
}

my (@found, %kinds);
my $limit = $ENV{DIFFERENCES} // 5;
while ($executed < $calls && @found < $limit)
{
	my @steps = script();
	my $difference = run_script(@steps) or next;
	next if $kinds{ kind($difference) };
	my $step = $difference->{step};
	@steps = grep { $_->{id} <= $step->{id} } @steps;
	if (!run_script(@steps)) { note "a difference was not repeated: $step->{sql}"; next; }
	my $before = $executed;
	@steps = shortest(@steps);
	$difference = run_script(@steps);
	$executed = $before;
	$kinds{ kind($difference) } = 1;
	push @found, join "\n",
		(map { "  $_->{session}" . ($_->{sql} =~ /\{token\}/ ? ' (token of step ' . ($_->{token_of} // 'none') . ')'
					: '') . " #$_->{id}: $_->{sql}" } @steps),
		map { "$_: $difference->{$_}{text} @{ $difference->{$_}{times} }" } @editions;
	diag "difference @{[ scalar @found ]}:\n$found[-1]\n";
}
is(scalar @found, 0, "both editions give the same answers, SEED=$seed CALLS=$calls");
note "$executed steps, seed $seed";
note "$_: ", join ', ', map { my $f = $_; map { "$_ $outcomes{$f}{$_}" } sort keys %{ $outcomes{$f} } } $_
  for sort keys %outcomes;
note "on purpose: $_->[3]: ", $met{ $_->[3] } // 'not met' for @on_purpose;

close $_->{in} for map { @$_ } values %session;
log_is_clean($node);
$node->stop;
done_testing();
