# Secrecy. A role that may not use a scope (the stranger) asks for its contents in thousands of
# ways, through every function and every view: for keys and tokens that exist and, in the same
# words, for some that do not. The answers must be the same, and contain nothing that the owner
# keeps secret.
#
# The functions and views of the extension are read from the catalogs; an argument or a view that
# this test does not know fails it. IDEM_SEED repeats a run, IDEM_PROBES sets the number of pairs.
use strict;
use warnings;
use utf8;

use Encode;
use IdemTest;
use IPC::Run qw(run);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{IDEM_SEED} // int(rand(2**31));
my $probes = $ENV{IDEM_PROBES} // 3000;
srand($seed);
note "IDEM_SEED=$seed";

my $node = idem_node('strangers', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
idem.purge_naptime = 1h
fsync = off
log_statement = none
log_min_error_statement = panic
log_min_messages = debug1
log_line_prefix = '%u|'
CONF

# What the owner keeps. Every secret has the mark in it, so that the test finds it anywhere. A
# stranger that knows a key asks for it by name, and its own words are no leak.
my $mark = 'swordfish';
my $uuid = 'f47ac10b-58cc-4372-a567-0e02b2c3d479';
my @there = ("$mark-done", "$mark-failed", "$mark-leased", "$mark-lapsed", "$mark-expired", "$mark-open",
	"$mark-executed", "$mark-message", "$mark-ключ-𝄞", substr($mark . join('', 'a' .. 'z', 0 .. 9) x 7, 0, 255),
	'7' . $mark);
my $setup = <<"SQL";
CREATE EXTENSION idem;
CREATE ROLE owner LOGIN;
CREATE ROLE stranger LOGIN;
ALTER ROLE stranger SET lock_timeout = '5s';  -- alter_scope() waits for open claims, of which one never ends
GRANT EXECUTE ON FUNCTION idem.create_scope, idem.alter_scope, idem.drop_scope, idem.forget TO stranger;
SELECT idem.create_scope('vault', owner => 'owner', wait => '0', final_sqlstates => '{P0001}',
  request_exclude => '{$mark.sent_at}', response_exclude => '{$mark.secret}', store_request => 'always');
SELECT idem.create_record_table('strict_records', 'tenant_id', 'text');
SELECT idem.create_scope('strict', owner => 'owner', wait => '0', final_sqlstates => '{P0001}',
  request_required => true, tenant_required => true, weak_keys => 'reject',
  reject_stale_keys => true, min_ttl => '1 ms', max_attempts => 1, claims_per_minute => 1000, records => true);
SELECT idem.create_scope('theirs', owner => 'stranger', wait => '0');
CREATE FUNCTION work(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT \$1';
CREATE FUNCTION fails(jsonb) RETURNS jsonb LANGUAGE plpgsql AS \$\$ BEGIN RAISE '%', \$1; END \$\$;
GRANT CREATE ON SCHEMA public TO stranger;
SQL
$node->safe_psql('postgres', $setup);
my $answer =
	qq(response => '{"$mark": {"secret": "$mark", "told": "$mark response"}}', status => 201,
	headers => '{"$mark": "$mark"}', body => '$mark');
for my $place ([ 'vault', q{''} ], [ 'vault', "'$mark-tenant'" ], [ 'strict', "'$mark-tenant'" ])
{
	my ($scope, $tenant) = @$place;
	my $claim = sub {
		my ($key, $more) = @_;
		qq(idem.claim('$scope', '$key', '{"$mark": "request"}', tenant => $tenant$more))
	};
	my $keys = join ', ', map { "'$_'" } @there[ 8 .. 10 ];
	my ($status, undef, $stderr) = $node->psql('postgres', encode('UTF-8', <<"SQL"), on_error_stop => 1);
SET ROLE owner;
BEGIN;
SELECT idem.use_records('strict_records');
SELECT idem.complete(token, $answer) FROM @{[ $claim->($there[0], '') ]};
SELECT idem.fail(token, '{"message": "$mark", "detail": "$mark", "hint": "$mark"}') FROM @{[ $claim->($there[1], '') ]};
SELECT idem.checkpoint(token, '$mark point', '{"$mark": "state"}')
  FROM @{[ $claim->($there[2], q(, lease => '1 hour')) ]};
SELECT idem.checkpoint(token, '$mark point', '{"$mark": "state"}')
  FROM @{[ $claim->($there[3], q(, lease => '1 millisecond')) ]};
SELECT idem.complete(token, $answer) FROM @{[ $claim->($there[4], q(, ttl => '1 millisecond')) ]};
SELECT idem.execute('$scope', '$there[6]', 'fails(jsonb)', '{"$mark": 1}', tenant => $tenant);
SELECT idem.once('$scope', '$there[7]', '{"$mark": 1}', tenant => $tenant);
SELECT idem.complete(token, $answer) FROM @{[ $claim->($uuid, '') ]};
SELECT idem.complete(token, $answer) FROM unnest(ARRAY[$keys])
  AS key, idem.claim('$scope', key, '{}', tenant => $tenant);
COMMIT;
SQL
	is($status, 0, "the owner has filled $scope for tenant $tenant") or diag $stderr;
}

# Tokens: of leases that run, of leases that have lapsed, and of an atomic claim that a session
# holds open.
my @tokens =
	map { $node->safe_psql('postgres', "SELECT token
		FROM idem.claim('vault', '$mark-leased-$_', tenant => '$mark-tenant', lease => '$_')") }
  ('1 hour', '1 millisecond');
$node->safe_psql('postgres', "SELECT idem.complete('$tokens[1]', '\"$mark\"')");
push @tokens, $node->safe_psql('postgres', "BEGIN; SELECT idem.use_records('strict_records') \\g /dev/null\n"
	. "SELECT token FROM idem.claim('strict', '$mark-leased-by-tenant', '{}', tenant => '$mark-tenant',
		lease => '1 hour'); COMMIT");
my $holder = $node->background_psql('postgres', extra_params => [ '-U', 'owner' ]);
$holder->set_query_timer_restart;    # it lives longer than one query may take
$holder->query_safe('BEGIN');
push @tokens, $holder->query_safe("SELECT token FROM idem.claim('vault', '$mark-open')");
$holder->query_safe("SELECT token FROM idem.claim('vault', '$mark-open', tenant => '$mark-tenant')");

# The same records once more in another table.
$node->safe_psql('postgres', "SELECT idem.create_record_table('elsewhere');
	INSERT INTO elsewhere SELECT * FROM idem.record");

# A database in which the stranger owns everything: nothing in memory may cross over.
$node->safe_psql('postgres', 'CREATE DATABASE mine');
$node->safe_psql('mine', <<'SQL');
CREATE EXTENSION idem;
SELECT idem.create_scope('mine' || i, owner => 'stranger') FROM generate_series(1, 5) i;
SQL

# The probes ---------------------------------------------------------------------------------------

my @base64 = ('A' .. 'Z', 'a' .. 'z', 0 .. 9, '-', '_');

sub pick { return $_[ int(rand(@_)) ] }

# Of the same form, but not existing. The first two characters of a token give its kind.
sub unheard_of { my ($text) = @_; return $text =~ s/$mark/swordfisk/r }
sub made_up_token
{
	my ($token) = @_;
	return substr($token, 0, 2) . (join '', map { pick(@base64) } 4 .. length $token) . 'A'
}

# A token of the owner as the stranger may have it: whole, or damaged.
sub known_token
{
	my $token = pick(@tokens);
	my $how = int(rand(4));
	substr($token, 30, 4) = join '', map { pick(@base64) } 1 .. 4 if $how == 1;    # random bits
	substr($token, 24, 2) = join '', map { pick(@base64) } 1 .. 2 if $how == 2;    # attempt
	substr($token, 10, 2) = join '', map { pick(@base64) } 1 .. 2 if $how == 3;    # digest
	substr($token, 40, 2) = join '', map { pick(@base64) } 1 .. 2 if $how == 0 && rand() < 0.5;    # table
	return $token;
}

sub quoted { my ($text) = @_; $text =~ s/'/''/g; return "'$text'" }
sub maybe { my ($value) = @_; return rand() < 0.2 ? 'NULL' : $value }

my @texts = ('', 'x', 'a-b', '4711', '%', 'vault', 'ünïcödé', '2026-03-04', 'x' x 300);
my @requests = (q('{}'), q('{"amount": 1}'), q('{"swordfisk": "request"}'), q('[1, 2, null]'), q('"x"'), 'NULL');
my @intervals = (q('1 second'), q('1 millisecond'), q('1 hour'), q('1 year'), 'NULL', 'NULL', 'NULL', 'NULL',
	q('-1 second'), q('0'));
my %by_type = (
	jsonb => sub { pick(@requests) },
	interval => sub { pick(@intervals) },
	'wait interval' => sub { pick(q('0'), q('1 millisecond'), q('-1 second'),
			'NULL') },    # what is waited for may never come
	integer => sub { pick(-1, 0, 1, 200, 2147483647, 'NULL') },
	bigint => sub { pick(-1, 0, 1, 1_000_000, 'NULL') },
	boolean => sub { pick('true', 'false', 'NULL') },
	'idem.record' => sub { q(jsonb_populate_record(NULL::idem.record, '{"key": "a"}')) },
	'idem.claim_result' => sub { pick('NULL', (map {
			qq(jsonb_populate_record(NULL::idem.claim_result, '{"outcome": "$_", "headers": {"a": "b"}}')) }
			qw(completed failed conflict x))) },
	'idem.scope' => sub { pick('NULL', q(jsonb_populate_record(NULL::idem.scope, '{"id": 1}'))) },
	uuid => sub { pick("'$uuid'::uuid", 'gen_random_uuid()', 'NULL::uuid') },
	bytea => sub { pick(q('\x00ff'), q(''), 'NULL') },
	'double precision' => sub { pick(0, 1.5, q('NaN'), -1, 'NULL') },
	regclass => sub { pick(q('strict_records'), q('idem.record'), q('idem.scope'), q('pg_class'), '0::oid::regclass',
			'NULL') },
	regtype => sub { pick(q('text'), q('record'), '0::oid::regtype', 'NULL') },
	name => sub { pick(q('tenant_id'), q('digest'), q(''), 'NULL') },
	cstring => sub { pick(q('stranger'), q('no_role'), q('10'), q('"'), 'NULL') },
	'idem_internal.role' => sub { pick(q('stranger'), q('10'), '10::oid::regrole::idem_internal.role', 'NULL') },
	regrole => sub { pick(q('owner'), q('stranger'), 'NULL') },
	regprocedure => sub { pick(q('work(jsonb)'), q('fails(jsonb)'), '0', 'NULL') },
	'integer[]' => sub { pick(q('{1,2,3}'), q('{}'), 'NULL') },
	'bigint[]' => sub { pick(q('{1,2,3}'), q('{}'), 'NULL') },
	'interval[]' => sub { pick(q('{1 day,1 second,1 year}'), q('{}'), 'NULL') },
	'text[]' => sub { maybe("ARRAY[" . join(', ', map { quoted(pick(@texts)) } 0 .. int(rand(3))) . "]::text[]") },);

# Text arguments by name: [ one that exists, one that does not ]. What both have in common is the
# same.
my $same = sub { my $value = shift; return [ $value, $value ] };
my $pair_of = sub { my ($there) = @_; return [ $there, unheard_of($there) ] };
my %by_name = (
	scope => sub { $same->(pick('vault', 'vault', 'vault', 'strict', 'strict', 'theirs', 'nowhere')) },
	key => sub { $pair_of->(pick(@there)) },
	keys => sub { my @keys = map { pick(@there) } 0 .. int(rand(4)); [ \@keys, [ map { unheard_of($_) } @keys ] ] },
	tenant => sub { my $t = "$mark-tenant"; rand() < 0.3 ? undef : pick($pair_of->($t), $same->($t), $same->('')) },
	token => sub { my $token = known_token(); [ $token, made_up_token($token) ] },
	call => sub { $pair_of->(q{SELECT idem.once($q$vault$q$, $q$} . pick(@there) . q{$q$)}) },
	other_request => sub { $pair_of->(q{SELECT idem.lookup($q$vault$q$, $q$} . pick(@there) . q{$q$)}) },
	name => sub { $same->(pick('vault', 'strict', 'theirs', 'nowhere', 'step')) },
	step => sub { $same->(pick(@texts)) },
	source => sub { $pair_of->(pick(@there)) },
	sqlstate => sub { $same->(pick('ID001', '42501', 'x')) },
	detail => sub { $same->(pick(@texts)) },
	header => sub { $pair_of->(pick(@there)) },
	argument => sub { $same->('header') }, value => sub { $same->(pick(@texts)) },
	hint => sub { $same->(pick(@texts)) },
	outcome => sub { $same->(pick('claimed', 'conflict', 'x')) },
	parts => sub { $pair_of->(pick(@there)) },
	path => sub { $same->(pick('a.b', '"a', 'x[0]')) },
	weak_keys => sub { $same->(pick('allow', 'reject', 'x')) },
	store_request => sub { $same->(pick('never', 'unfinished', 'always', 'x')) },
	tenant_from => sub { $same->(pick('argument', 'role', 'x')) },);

my $words = qr/^(?:text|anycompatible)/;
my %function;
for my $line (split /\n/, $node->safe_psql('postgres', <<'SQL'))
SELECT p.oid, pronamespace::regnamespace || '.' || proname, i, coalesce(proargnames[i], ''),
  format_type(proargtypes[i - 1], NULL), i > pronargs - pronargdefaults, provariadic <> 0,
  prorettype = 'trigger'::regtype
  FROM pg_proc p LEFT JOIN LATERAL generate_series(1, pronargs) i ON true
 WHERE EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = p.oid AND deptype = 'e'
                  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem'))
 ORDER BY proname, p.oid, i
SQL
{
	my ($oid, $name, $i, $argument, $type, $optional, $variadic) = split /\|/, $line;
	$function{$oid}{name} = $name;
	next if $i eq '';
	push @{ $function{$oid}{arguments} }, { name => $argument, type => $type, optional => $optional eq 't',
		variadic => $variadic eq 't' };
}
for my $f (values %function)
{
	for my $argument (@{ $f->{arguments} })
	{
		my $make = $argument->{type} =~ $words && $by_name{ $argument->{name} };
		ok($make || $by_type{ $argument->{type} },
			"the test knows what to ask for as $argument->{name} $argument->{type} of $f->{name}");
	}
}

# One call in two versions, and what the stranger was told in each.
sub call
{
	my ($f) = @_;
	my (@values, @said);
	for my $argument (@{ $f->{arguments} // [] })
	{
		next if $argument->{optional} && rand() < 0.5;
		my $name = $argument->{name};
		my $make = $by_name{$name};
		my $pair = $make && $argument->{type} =~ $words ? $make->() : undef;
		for my $version (0, 1)
		{
			my $value;
			if (!$make || $argument->{type} !~ $words)
			{
				$value = $version ? $values[0][-1]
					: ($by_type{"$name $argument->{type}"} // $by_type{ $argument->{type} })->();
				$value =~ s/^.* => // if $version
			}
			elsif (!$pair) { $value = 'NULL' }
			else
			{
				my @texts = ref $pair->[$version] ? @{ $pair->[$version] } : ($pair->[$version]);
				push @{ $said[$version] }, @texts;
				my $list = join ', ', map { quoted($_) } @texts;
				$value = $argument->{type} =~ /array|\[\]/ ? "ARRAY[$list]::text[]" : $list;
			}
			push @{ $values[$version] }, ($argument->{variadic} ? 'VARIADIC ' : '') . "$name => $value";
		}
	}
	my @calls = map { "SELECT * FROM $f->{name}(" . join(', ', @{ $values[$_] // [] }) . ')' } 0, 1;
	return (\@calls, \@said);
}

# The forms in which a statement is sent.
my @wraps = (
	sub { "BEGIN;\nSELECT idem.use_records('strict_records');\n$_[0];\nROLLBACK;" },
	sub { "BEGIN;\n$_[0];\nROLLBACK;" },
	sub { "BEGIN ISOLATION LEVEL SERIALIZABLE;\n$_[0];\nROLLBACK;" },
	sub { "BEGIN READ ONLY;\n$_[0];\nROLLBACK;" },
	sub { "BEGIN;\nSAVEPOINT s;\n$_[0];\nROLLBACK TO s;\nSELECT 'on';\nROLLBACK;" },
	sub { "BEGIN;\nPREPARE p AS $_[0];\nEXECUTE p;\nEXECUTE p;\nROLLBACK;\nDEALLOCATE ALL;" },
	sub { "BEGIN;\nDECLARE c CURSOR FOR $_[0];\nFETCH ALL FROM c;\nROLLBACK;" },
	sub { "BEGIN;\nEXPLAIN (ANALYZE, VERBOSE, BUFFERS OFF, TIMING OFF, SUMMARY OFF) EXECUTE_ME;\nROLLBACK;"
		=~ s/EXECUTE_ME/$_[0]/r },
	sub { <<"SQL" });
BEGIN;
DO \$do\$
DECLARE a text; b text; c text; d text; r record;
BEGIN
  FOR r IN $_[0] LOOP RAISE NOTICE '%', r; END LOOP;
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS a = MESSAGE_TEXT, b = PG_EXCEPTION_DETAIL, c = PG_EXCEPTION_HINT, d = PG_EXCEPTION_CONTEXT;
  RAISE NOTICE '% % % % %', SQLSTATE, a, b, c, d;
END \$do\$;
ROLLBACK;
SQL

# Views: everything, by each column, with functions that report what they are passed, and the
# server's query plan.
my @queries;
for my $view (split /\n/, $node->safe_psql('postgres',
		q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind IN ('v', 'm')}))
{
	push @queries, [ "SELECT * FROM $view WHERE true", "SELECT * FROM $view WHERE true", [] ];
	push @queries, [ ("SELECT * FROM $view v WHERE peek(v::text)") x 2, [] ];
	push @queries, [ ("SELECT count(*) FROM $view v") x 2, [] ];
	for my $column (split /\n/, $node->safe_psql('postgres', "SELECT quote_ident(attname) FROM pg_attribute
		WHERE attrelid = '$view'::regclass AND attnum > 0 AND NOT attisdropped"))
	{
		push @queries, [ ("SELECT * FROM $view WHERE peek($column)") x 2, [] ];
		push @queries, [ ("SELECT $column FROM $view ORDER BY $column LIMIT 3") x 2, [] ];
		for my $what (@there[ 0 .. 5 ], "$mark-tenant", "$mark point")
		{
			my @texts = @{ $pair_of->($what) };
			push @queries, [ (map { "SELECT * FROM $view WHERE ${column}::text = " . quoted($_) } @texts),
				[ map { [$_] } @texts ] ];
			# The error about a text that is no jsonb repeats a part of it.
			push @queries, [ (map { "SELECT * FROM $view WHERE $column = " . quoted($_) } @texts),
				[ map { [$_] } @texts ] ]
			  unless $column eq 'last_error';
			push @queries, [ (map { "SELECT * FROM $view WHERE ${column}::text LIKE " . quoted("$_%") } @texts),
				[ map { [$_] } @texts ] ];
		}
	}
}
my $relations = $node->safe_psql('postgres', q{SELECT string_agg(oid::regclass::text, ' ') FROM pg_class
	WHERE relnamespace = 'idem'::regnamespace AND relkind IN ('r', 'S', 'i')});
push @queries, [ ("SELECT * FROM $_") x 2, [] ] for 'public.elsewhere', split ' ', $relations;

my @asked;    # [ [ script, script ], [ own words, own words ] ]
for my $query (@queries)
{
	my ($there, $not_there, $said) = @$query;
	for my $wrap (@wraps[ 0, 6, 7 ])
	{
		push @asked, [ [ map { $wrap->($_) } $there, $not_there ], $said ];
	}
}
my @functions = map { $function{$_} } sort { $a <=> $b } keys %function;
for my $n (1 .. $probes)
{
	my $f = $functions[ $n % @functions ];
	my ($calls, $said) = call($f);
	my $wrap = pick(@wraps);
	push @asked, [ [ map { $wrap->($_) } @$calls ], $said ];
}

# The planner's estimates come from the owner's rows: some tenants and keys are common.
$node->safe_psql('postgres', <<"SQL");
SET ROLE owner;
SELECT count(*) FROM idem.once_each('vault', ARRAY(SELECT '$mark ' || i FROM generate_series(1, 500) i),
  tenant => '$mark-tenant');
RESET ROLE;
ANALYZE;
SQL

# Asked in one session, interleaved. psql's marks separate the answers, on both streams.
sub ask
{
	my ($database, @scripts) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir . '/probes.sql';
	open my $out, '>:encoding(UTF-8)', $file or die $!;
	print $out <<'SQL';
\set VERBOSITY verbose
\set SHOW_CONTEXT always
\pset format unaligned
\pset tuples_only on
\pset null (null)
CREATE FUNCTION pg_temp.peek(anyelement) RETURNS boolean COST 0.00001 LANGUAGE plpgsql AS $$ BEGIN
  RAISE NOTICE 'peeked: %', $1; RETURN true; END $$;
CREATE FUNCTION public.peek(anyelement) RETURNS boolean COST 0.00001 LANGUAGE sql AS 'SELECT pg_temp.peek($1)';
SQL
	print $out "\\echo <<<$_>>>\n\\warn <<<$_>>>\n$scripts[$_]\n" for 0 .. $#scripts;
	print $out "\\echo <<<end>>>\n\\warn <<<end>>>\nDROP FUNCTION public.peek;\n";
	close $out;
	my ($stdout, $stderr);
	run [ 'psql', '-X', '-U', 'stranger', '-d', $node->connstr($database), '-f', $file ], '>', \$stdout, '2>', \$stderr;
	my @answers;
	for my $stream (decode('UTF-8', $stdout), decode('UTF-8', $stderr))
	{
		$stream =~ s/^psql:[^\n]*?:\d+: //mg;
		my %part = $stream =~ /<<<(\d+)>>>\n(.*?)(?=<<<(?:\d+|end)>>>)/gs;
		$answers[$_] .= join "\n", sort split /\n/, $part{$_} // die "no answer to $scripts[$_]" for 0 .. $#scripts;
	}
	return @answers;
}

# Without the stranger's own words and the parts that differ each time.
sub without
{
	my ($answer, $words) = @_;
	$answer =~ s/^(?:LINE \d+:|QUERY: |\s*\^\s*$).*$//mg;    # psql shows the statement again
	for my $word (sort { length $b <=> length $a } grep { length } @{ $words // [] })
	{
		$answer =~ s/\Q$word\E/«said»/g;
	}
	return $answer;
}

sub plain
{
	my ($answer) = @_;
	$answer =~ s/\bA[Q-Za-z0-9_-][\w-]{37}(?:[\w-]{5})?(?![\w-])/«token»/g;    # also of another table
	$answer =~ s/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\+\d\d/«time»/g;
	$answer =~ s/\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b/«uuid»/g;
	$answer =~ s/\b[0-9a-f]{64}\b/«hash»/g;
	return join "\n", sort split /\n/, $answer;
}

# The mark, as text or bytes; and the secrets without it: tokens, the digests of keys, the secrets.
my %unmarked = map { $_ => 1 } @tokens, split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT digest::text FROM idem.record UNION ALL SELECT replace(digest::text, '-', '') FROM idem.record
UNION ALL SELECT encode(secret, 'hex') FROM idem.secret
SQL
my $hex = unpack 'H*', $mark;

sub leak
{
	my ($answer) = @_;
	for my $place (map { index lc $answer, lc } $mark, $hex)
	{
		return substr $answer, ($place > 60 ? $place - 60 : 0), 120 if $place >= 0;
	}
	return (grep { $unmarked{$_} } $answer =~ /([\w-]{32,})/g)[0];
}

my @answers = ask('postgres', map { @{ $_->[0] } } @asked);
my (@leaks, @tells, %heard);
for my $i (0 .. $#asked)
{
	my ($scripts, $said) = @{ $asked[$i] };
	my @heard = map { without($answers[ 2 * $i + $_ ], $said->[$_]) } 0, 1;
	$heard{$1}++ while $heard[0] =~ /(?:ERROR|NOTICE):  (\w{5})\b/g;
	for my $version (0, 1)
	{
		push @leaks, "$scripts->[$version]\n$heard[$version]" if defined leak($heard[$version]);
	}
	# The same question asked twice may differ only in time.
	next if $scripts->[0] eq $scripts->[1];
	push @tells, "$scripts->[0]\n$heard[0]\n---\n$scripts->[1]\n$heard[1]" if plain($heard[0]) ne plain($heard[1]);
}
note 2 * @asked . ' probes: ' . join ', ', map { "$_ $heard{$_}" } sort keys %heard;
is(scalar(@leaks), 0, 'no secret of the owner in ' . 2 * @asked . ' answers')
  or diag encode('UTF-8', join "\n\n", @leaks[ 0 .. ($#leaks < 4 ? $#leaks : 4) ]);
is(scalar(@tells), 0, 'what is there and what is not sound the same')
  or diag encode('UTF-8', join "\n\n", @tells[ 0 .. ($#tells < 4 ? $#tells : 4) ]);
cmp_ok($heard{$_} // 0, '>', 5, "several were refused with $_") for qw(42501 ID004 ID005);

# The same in the stranger's own database, where it owns the scopes with those ids.
my @mine = ask('mine', map { $_->[0] } @queries);
is(scalar(grep { defined leak(without($mine[$_], $queries[$_][2][0])) } 0 .. $#mine), 0,
	'nothing leaks into another database');

# What the server shows to every role.
my @views = map { [ "SELECT * FROM $_", "SELECT * FROM $_" ] }
	qw(pg_locks pg_stat_activity pg_stats pg_stat_all_tables pg_stat_all_indexes pg_statio_all_tables
	pg_stat_user_functions pg_prepared_xacts pg_prepared_statements pg_cursors pg_stat_progress_analyze
	pg_stat_progress_vacuum pg_shmem_allocations pg_settings pg_stat_database pg_description pg_views
	pg_get_backend_memory_contexts() pg_largeobject_metadata);
my @public = ask('postgres', map { "$_->[0];" } @views);
for my $i (0 .. $#views)
{
	is(leak($public[$i]), undef, "nothing leaks through $views[$i][0]");
}

# Tokens that name a table ------------------------------------------------------------------------

# A token of a record in another table names it by number. An invented one may name any relation: of
# any kind, of any role, locked by another session, or none. Every function answers as for a token
# that was never given out, at once, and touches nothing.
$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA safe;
CREATE TABLE safe.none ();
CREATE TABLE safe.plain (secret text);
CREATE TABLE safe.parted (LIKE idem.record) PARTITION BY LIST (scope);
CREATE TABLE safe.part PARTITION OF safe.parted FOR VALUES IN (1);
CREATE TABLE safe.twin (LIKE idem.record INCLUDING ALL);
CREATE VIEW safe.view AS SELECT 1 AS one;
CREATE MATERIALIZED VIEW safe.kept AS SELECT 1 AS one;
CREATE SEQUENCE safe.numbers;
CREATE TYPE safe.pair AS (one text, two text);
CREATE FOREIGN DATA WRAPPER nothing;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
CREATE FOREIGN TABLE safe.far (digest uuid) SERVER nowhere;
CREATE UNLOGGED TABLE safe.unlogged (LIKE idem.record INCLUDING ALL);
ALTER TABLE safe.plain DROP COLUMN secret;
SET ROLE stranger;
CREATE TABLE public.strangers_own ();
CREATE TABLE public.strangers_twin AS SELECT * FROM idem.lookup('theirs', 'x');
SQL
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE safe.none, safe.plain, safe.parted, safe.view');
my ($status, $said, $stderr) = $node->psql('postgres', <<'SQL', extra_params => [ '-U', 'stranger' ]);
SET lock_timeout = '50 ms';
CREATE FUNCTION pg_temp.token(kind integer, relation oid) RETURNS text LANGUAGE sql AS $$
  SELECT rtrim(translate(replace(encode(set_byte('\x00', 0, kind) || decode(md5(random()::text),
    'hex') || int4send(1) || int8send((random() * 1e18)::bigint)
    || int4send(relation::bigint::bit(32)::integer), 'base64'), E'\n', ''), '+/', '-_'), '=')
$$;
CREATE TEMP TABLE strangers_temp (LIKE pg_catalog.pg_class);
DO $do$
DECLARE
  relation record;
  call text;
  asked integer := 0;
BEGIN
  FOR relation IN
    SELECT oid, oid::regclass::text AS name FROM pg_class
    UNION ALL SELECT 1, 'a number' UNION ALL SELECT 4294967295, 'the highest number'
    UNION ALL SELECT oid, proname FROM pg_proc WHERE proname IN ('pg_stat_file', 'now') UNION ALL SELECT oid, nspname
    FROM pg_namespace
  LOOP
    FOREACH call IN ARRAY '{complete(%L), "fail(%L, jsonb_build_object(''message'', ''no''))", release(%L), renew(%L),
      "checkpoint(%L, ''x'')", "child_key(%L, ''x'')"}'::text[] LOOP
      asked := asked + 1;
      BEGIN
        EXECUTE format('SELECT idem.' || call, pg_temp.token(2, relation.oid));
        IF call NOT LIKE 'child_key%' THEN RAISE NOTICE '% of % succeeded', call, relation.name; END IF;
      EXCEPTION WHEN OTHERS THEN
        IF SQLSTATE <> 'ID004' OR SQLERRM LIKE '%' || relation.name || '%' AND length(relation.name) > 3 THEN
          RAISE NOTICE '% of % raised % %', call, relation.name, SQLSTATE, SQLERRM;
        END IF;
      END;
      IF EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND pg_locks.relation = relation.oid
        AND mode <> 'AccessShareLock') THEN
        RAISE NOTICE '% locks %', call, relation.name;
      END IF;
    END LOOP;
  END LOOP;
  FOR relation IN SELECT oid, oid::regclass::text AS name, relname ~ 'record|twin|part$|unlogged|^elsewhere' AS may
    FROM pg_class UNION ALL SELECT 4294967295, 'the highest number', false LOOP
    BEGIN
      PERFORM idem.use_records(relation.oid::regclass);
      IF NOT relation.may THEN RAISE NOTICE '% was chosen', relation.name; END IF;
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE NOT IN ('42501', '42809', '42P01', '55000') THEN RAISE NOTICE 'use_records(%) raised % %',
        relation.name, SQLSTATE, SQLERRM; END IF;
    END;
  END LOOP;
  RAISE NOTICE 'asked %', CASE WHEN asked > 2000 THEN 'enough' ELSE asked::text END;
END $do$;
SQL
is($status, 0, 'the stranger invented tokens');
is(join("\n", $stderr =~ /NOTICE:  (.*)/g), 'asked enough',
	'a token that names a relation says nothing about it, and does not wait for its lock; '
	. 'nor does a choice of a table');
$locker->query_safe('ROLLBACK');
$locker->quit;

# The stranger's own right to use a scope with the same keys is not affected.
my (undef, $own) = $node->psql('postgres', "SELECT state FROM idem.lookup('theirs', '$mark-done')",
	extra_params => [ '-U', 'stranger' ]);
is($own, 'absent', "the owner's keys are free in the stranger's scope");

$holder->query_safe('ROLLBACK');
$holder->quit;
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), 0,
	'no key lock is left');
$node->stop;

# The log lines of the stranger's statements: its own words are in its errors, the owner's are not.
# (The message that refuses a key repeats the key, but never what is stored under it.)
my @lines = grep { /^stranger\|/ } split /\n/, decode('UTF-8', slurp_file($node->logfile));
cmp_ok(scalar(@lines), '>', 100, 'the log contains the stranger\'s statements');
my %word = map { $_ => 1 } grep { defined && length } map { @$_ } map { @{ $_->[1] } } @asked;
my $own_words = join '|', map { quotemeta } sort { length $b <=> length $a } keys %word;
my @bad = grep { defined leak(s/$own_words/«said»/gr) } @lines;
is(scalar(@bad), 0, 'and nothing of the owner')
  or diag encode('UTF-8', join "\n", @bad[ 0 .. ($#bad < 9 ? $#bad : 9) ]);
log_is_clean($node);
done_testing();
