# The examples of the documentation, as a reader would run them: page by page, each page in a fresh
# database and one session, with the results that the page shows.
#
#   ```sql        Statements. Lines "--> ..." after a statement are its result, a line per row, columns
#                 separated by " | "; or "--> ERROR ID002: message". "..." stands for anything that varies.
#                 A statement without such lines must succeed, whatever its result.
#   ```plpgsql    A fragment of a procedure that has the arguments key and request and the variable c. It
#                 is run once, and rolled back.
#   ```python     A script. Lines "#> ..." are what it prints; of ```js, ```go and ```java lines "//> ...".
#
# What an example needs stands on the page, so that it works for a reader, too. HTML comments have only what
# surrounds a fragment:
#
#   <!-- fragment: ... -->   what comes between DECLARE and the fragment, "BEGIN" included
#   <!-- not run: ... -->    why the next block is not run; %not_run counts them
#
# Of ```sh, what loads a file with psql is run, such as docs/examples.sql. Each part (##) of the quickstart is a
# path for another reader, and so has a database of its own.
#
# IDEM_DOCS names the pages, if not all are to be run.
#
# Then the reference: it describes the functions, types, views and settings that there are, no more and no
# less, with their arguments, defaults and columns.
use strict;
use warnings;

use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Blocks that are not run, per page; each says why. Those of recipes.md are run by recipes.pl.
my %not_run = (
	'README.md' => 1, 'docs/high-availability.md' => 1, 'docs/managed.md' => 3, 'docs/migration.md' => 1,
	'docs/releasing.md' => 1, 'docs/scale-out.md' => 2);
# An extension that the examples of a page use.
my %uses = ('docs/testing.md' => 'pgtap');
my %parts_are_paths = ('docs/quickstart.md' => 1);
my %tested_elsewhere = ('docs/recipes.md' => 'recipes.pl',
	'docs/frameworks.md' => 'frameworks.pl and client_python.pl');
my %other_language = map { $_ => 1 } qw(sh text json ini console yaml);

my $node = idem_node('docs', bare => 1, conf => <<'CONF');
fsync = off
shared_preload_libraries = 'idem'
autovacuum = on
listen_addresses = '127.0.0.1'
log_min_duration_sample = 0
CONF
my ($python) = grep { system("$_ -c 'import psycopg' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);

# ---------------------------------------------------------------------------------------------
# Reading a page
# ---------------------------------------------------------------------------------------------

# The blocks and comments of a page that are of concern here: { kind, line, text, why or around }.
sub blocks_of
{
	my ($page) = @_;
	my (@blocks, $block, %next);
	my ($line, $part) = (0, 0);
	for (split /\n/, slurp_file($page))
	{
		$line++;
		if ($block)
		{
			if (/^\s*```\s*$/) { push @blocks, $block; undef $block; }
			else { $block->{text} .= s/^ {0,$block->{indent}}//r . "\n"; }
		}
		elsif (/^## /) { $part++; }
		elsif (/<!-- setup/) { fail("$page, line $line: the setup is shown"); }
		elsif (/^\s*<!-- (fragment|not run): (.+) -->$/) { $next{$1} = $2; }
		elsif (/^(\s*)```(\S*)/)
		{
			$block = { kind => $2, line => $line, text => '', indent => length $1, part => $part, %next };
			%next = ();
		}
		elsif (/\S/ && %next)
		{
			fail("$page, line $line: the comment before is followed by its block");
			%next = ();
		}
	}
	ok(!$block, "$page: its last block is closed");
	return @blocks;
}

# The statements of a block, with the results that it shows: { line, sql, shows }.
sub statements
{
	my ($block) = @_;
	my (@statements, $sql, $quote);
	my $line = $block->{line};
	for (split /\n/, $block->{text})
	{
		$line++;
		my $shown = $_ =~ /^(.*?)\s*--> (.*)$/ && !defined $quote ? $2 : undef;
		my $code = defined $shown ? $1 : $_;
		if ($code =~ /\S/)
		{
			push @statements, { line => $line, sql => '' } unless defined $sql;
			# psql tells the outcome of the last statement only.
			$statements[-1]{crowded} = 1 if !defined $quote && $code =~ /;\s*[A-Z]/ && $code !~ /ATOMIC/;
			$sql .= "$code\n";
			for my $tag ($code =~ /(\$\w*\$)/g)
			{
				if (!defined $quote) { $quote = $tag; }
				elsif ($quote eq $tag) { undef $quote; }
			}
			$statements[-1]{sql} = $sql;
			undef $sql if !defined $quote && $code =~ /(?:;\s*(?:--.*)?|\\gset\s*|^\\.*)$/;
		}
		push @{ $statements[-1]{shows} }, $shown if defined $shown;
	}
	$statements[-1]{incomplete} = 1 if defined $sql && $sql =~ /^\s*[^-\s]/m;
	return grep { $_->{sql} =~ /^\s*(?!--)\S/m } @statements;
}

sub fragment
{
	my ($block) = @_;
	my $around = $block->{fragment} // 'BEGIN';
	my $name = "fragment_$block->{line}";
	return map { { line => $block->{line}, sql => $_ } } ('BEGIN;',
		<<"SQL", "SELECT pg_temp.$name('$name', '{\"amount\": 10}');", 'ROLLBACK;');
CREATE FUNCTION pg_temp.$name(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS \$fragment\$
DECLARE c idem.claim_result; $around
$block->{text}
RETURN NULL;
END \$fragment\$;
SQL
}

# ---------------------------------------------------------------------------------------------
# Running it
# ---------------------------------------------------------------------------------------------

# Runs statements in one session; gives each the result, as a page would show it.
sub run_session
{
	my ($database, @statements) = @_;
	my $script = '';
	for my $n (0 .. $#statements)
	{
		$script .= "$statements[$n]{sql}\n\\echo\n\\echo \001$n :SQLSTATE :LAST_ERROR_MESSAGE\n";
	}
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'psql', '-XqAt', '-F', ' | ', '-P', 'null=NULL', '-d', $node->connstr($database) ],
		'<', \$script, '>', \$out, '2>', \$err);
	my $n = 0;
	for my $piece (split /^(?=\001)/m, $out)
	{
		if ($piece =~ s/^\001(\d+) (\w{5}) ?(.*)\n//)
		{
			$statements[$1]{result} = "ERROR $2: $3" if $2 ne '00000';
			$n = $1 + 1;
		}
		$statements[$n]{result} //= $piece if $n <= $#statements;
	}
	return $err;
}

sub squeeze { my ($text) = @_; return $text =~ s/\s+/ /gr =~ s/^ | $//gr; }

sub check
{
	my ($page, $statement) = @_;
	my $name = "$page, line $statement->{line}";
	my $result = squeeze($statement->{result} // 'ERROR: the session has ended');
	return fail("$name: a complete statement") if $statement->{incomplete};
	return fail("$name: one statement per line") if $statement->{crowded};
	return ok($result !~ /^ERROR /, "$name runs") || diag("$statement->{sql}$result") unless $statement->{shows};
	my $shows = squeeze(join ' ', @{ $statement->{shows} });
	my $pattern = join '.+?', map { quotemeta } split /\Q...\E/, $shows, -1;
	return ok($shows ne '...' && $result =~ /^$pattern$/, "$name shows: $shows")
	  || diag("$statement->{sql}shows in the page:\n  $shows\nand here:\n  $result");
}

# How to run a program of a language, which is FILE, and a probe that it can be run here.
my %program = (
	python => { file => 'pay.py', run => 'PYTHON FILE', probe => 'PYTHON -c "import MODULES"' },
	js => { file => 'pay.js', run => 'node FILE', probe => q{node -e "require('pg')"} },
	go => { file => 'pay.go', run => 'go run FILE', probe => 'go list github.com/jackc/pgx/v4' },
	java => { file => 'Pay.java', run => 'java -cp JAR FILE URL', probe => 'java -version && test -f JAR' });

# The package for Python is that of the tree; Debian's packages of Go modules; JDBC needs a host, not a socket.
$ENV{PYTHONPATH} = "$ENV{TESTDIR}/clients/python/src";
$ENV{PYTHONDONTWRITEBYTECODE} = 1;
$ENV{GO111MODULE} = 'off';
$ENV{GOPATH} //= '/usr/share/gocode';
$ENV{GOCACHE} //= PostgreSQL::Test::Utils::tempdir . '/gocache';

sub run_program
{
	my ($page, $block, $database) = @_;
	my $language = $program{ $block->{kind} };
	my $name = "$page, line $block->{line}: $block->{kind}";
	my $folder = PostgreSQL::Test::Utils::tempdir;
	my %words = (PYTHON => $python // 'python3', FILE => "$folder/$language->{file}", JAR => $ENV{JDBC_JAR}
		// '/usr/share/java/postgresql.jar',
		MODULES => (join ', ', 'sys', $block->{text} =~ /^import (psycopg2?|asyncpg)$/mg),
		URL => 'jdbc:postgresql://127.0.0.1:' . $node->port . "/$database?user=" . (getpwuid $>)[0]);
	my ($run, $probe) = map { s/\b([A-Z]{3,})\b/$words{$1}/gr } @$language{qw(run probe)};
  SKIP:
	{
		skip "$name: no toolchain or driver here; tools/setup examples installs them", 1
		  if system("($probe) >/dev/null 2>&1");
		append_to_file($words{FILE}, $block->{text});
		my ($out, $err) = ('', '');
		local @ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, $database);
		IPC::Run::run([ split / /, $run ], '>', \$out, '2>', \$err);
		my $shows = join "\n", $block->{text} =~ m{(?:#|//)> (.*)$}mg;
		is(squeeze($out), squeeze($shows), $name) || diag($err);
	}
	return;
}

# A command of psql, as it is pasted into a shell in the directory of the tree.
sub run_psql
{
	my ($page, $block, $database) = @_;
	local @ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, $database);
	my ($out, $err) = ('', '');
	my $succeeds = IPC::Run::run([ 'bash', '-ec', $block->{text} ], '>', \$out, '2>', \$err);
	ok($succeeds, "$page, line $block->{line}: " . squeeze($block->{text})) || diag($err);
	return;
}

sub is_psql
{
	my ($block) = @_;
	return $block->{kind} eq 'sh' && $block->{text} =~ /^psql .*-f (?:(?:docs|examples)\/\w+|sql\/managed)\.sql$/;
}

sub run_page
{
	my ($page) = @_;
	my %part;
	push @{ $part{ $parts_are_paths{$page} ? $_->{part} // 0 : 0 } }, $_ for blocks_of($page);
	my $skipped = 0;
	$skipped += run_blocks($page, @{ $part{$_} }) for sort { $a <=> $b } keys %part;
	is($skipped, $not_run{$page} // 0, "$page: blocks that are not run");
	return;
}

sub roles { return split /\n/, $node->safe_psql('postgres', 'SELECT rolname FROM pg_roles'); }

# Drops a database, and the roles that were created since.
sub drop_database
{
	my ($database, @roles) = @_;
	local $ENV{PGUSER} = getpwuid $>;
	$node->safe_psql('postgres', "DROP DATABASE $database WITH (FORCE)");
	my %before = map { $_ => 1 } @roles;
	$node->safe_psql('postgres', "DROP ROLE \"$_\"") for grep { !$before{$_} } roles();
	return;
}

# Runs blocks of a page in a database of their own, and returns how many are not run.
sub run_blocks
{
	my ($page, @blocks) = @_;
	my ($skipped, @session) = (0);
	my $database = lc $page =~ s/\W/_/gr;
	my @roles = roles();
	# On a managed server, the reader is no superuser, but owns the database.
	my $reader = (grep { is_psql($_) && $_->{text} =~ m{sql/managed} && !$_->{'not run'} } @blocks) ? 'reader'
		: getpwuid $>;
	$node->safe_psql('postgres', "CREATE ROLE reader LOGIN") if $reader eq 'reader';
	$node->safe_psql('postgres', qq(CREATE DATABASE $database OWNER "$reader"));
	local $ENV{PGUSER} = $reader;
	my $flush = sub {
		my $err = run_session($database, @session);
		check($page, $_) for @session;
		diag($err) if grep { !defined $_->{result} } @session;
		@session = ();
	};
	for my $block (@blocks)
	{
		my $kind = $block->{kind};
		# Through a pooler, others get the connection next. (Tenants: docs/operations.md.) And a session may have
		# another isolation level, whose snapshot is older than what a lock waits for.
		unlike($block->{text}, qr/^SET (?!LOCAL|idem\.tenant)|^BEGIN;(?=.*^LOCK )/ms,
			"$page, line $block->{line}: no SET is left behind, no older snapshot used")
		  if $kind eq 'sql';
		if (defined $block->{'not run'})
		{
			note("$page, line $block->{line}: not run: $block->{'not run'}");
			$skipped++;
		}
		elsif ($kind eq 'sql') { push @session, statements($block); }
		elsif ($kind eq 'plpgsql') { push @session, fragment($block); }
		elsif (is_psql($block)) { $flush->(); run_psql($page, $block, $database); }
		elsif ($program{$kind}) { $flush->(); run_program($page, $block, $database); }
		else { ok($other_language{$kind}, "$page, line $block->{line}: a block says what it is: '$kind'"); }
	}
	$flush->();
	drop_database($database, @roles);
	return $skipped;
}

# A reader who pastes what drops something into a database that is in use, and reads no error, loses no key.
# (scale-out.md ends with the deletion of a tenant that has moved.)
sub check_in_use
{
	my ($page) = @_;
	for my $block (grep { $_->{kind} eq 'sql' && !$_->{'not run'} && $_->{text} =~ /drop/i } blocks_of($page))
	{
		my @roles = roles();
		$node->safe_psql('postgres', 'CREATE DATABASE in_use');
		$node->safe_psql('in_use', <<'SQL');
CREATE EXTENSION idem;
CREATE TABLE payment AS SELECT 1 AS id, 10 AS amount;
CREATE SCHEMA acme;
CREATE TABLE acme.record AS SELECT 1;
SELECT idem.once(s, 'kept') FROM unnest('{payments, refunds, orders, invoices}'::text[]) s, idem.create_scope(s);
SQL
		run_session('in_use', statements($block));
		my (undef, $kept) =
		  $node->psql('in_use', q{SELECT count(*) FROM idem.records, acme.record, payment WHERE key = 'kept'});
		is($kept, 4, "$page, line $block->{line}: no key in use is lost");
		drop_database('in_use', @roles);
	}
	return;
}

# A page whose SQL and Python another test runs, all of it.
sub check_kinds
{
	my ($page) = @_;
	for my $block (blocks_of($page))
	{
		ok($block->{kind} =~ /^(?:sql|python|text|sh|diff|ruby|java|js|go)$/ && !$block->{'not run'}
			&& !$block->{indent},
			"$page, line $block->{line}: run by $tested_elsewhere{$page}, or text");
	}
	return;
}

for my $page (glob($ENV{IDEM_DOCS} // 'README.md SECURITY.md docs/*.md examples/*.md'))
{
	if ($tested_elsewhere{$page}) { check_kinds($page); }
	elsif ($uses{$page}
		&& !$node->safe_psql('postgres', "SELECT count(*) FROM pg_available_extensions WHERE name = '$uses{$page}'"))
	{
	  SKIP: { skip "$page: no extension $uses{$page} here", 1; }
	}
	else
	{
		my $from = -s $node->logfile;
		run_page($page);
		check_in_use($page) unless $page eq 'docs/scale-out.md';
		unlike(slurp_file($node->logfile, $from), qr/"secrets": /, "$page: no secrets in the log")
		  if $page eq 'docs/high-availability.md';
	}
}

# ---------------------------------------------------------------------------------------------
# The reference is complete
# ---------------------------------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE EXTENSION idem');
my $reference = slurp_file('docs/reference.md');

# What the reference describes under its heading: "### idem.claim", with the text that follows.
my %section = $reference =~ /^### `?([\w.]+)`?[^\n]*\n(.*?)(?=^##|\z)/msg;

# A list with the columns or arguments that a section has, one or several per item: "- `name type`: ...",
# "- `name type = default`, `name type = default`: ...".
sub items
{
	my ($title, $of) = @_;
	my ($list) = ($section{$title} // '') =~ /^$of:\n\n((?:- .*\n|  .*\n)+)/m;
	return squeeze(join ', ', map { /`([^`]+)`/g } ($list // '') =~ /^- ((?:`[^`]+`,\s+)*`[^`]+`)/mg);
}

# "..." of a list stands for the settings of a scope: the arguments of create_scope from ttl to records.
sub with_settings
{
	my ($list, $as) = @_;
	my ($settings) = items('idem.create_scope', 'Arguments') =~ /^name text, (.*), settings text\[\] =/;
	my $all = join ', ', map { s/ = .*/$as/r } split /, (?=\w+ \w+(?:\[\])? =)/, $settings;
	return $list =~ s/(?<=, )\.\.\./$all/r;
}

# The arguments of a function: those of its signature, or of a list that explains each.
sub arguments
{
	my ($title) = @_;
	my ($signature) = ($section{$title} // '') =~ /^`\Q$title\E\(([^`]*)\)`\s*→/m;
	# The settings of create_scope have defaults of their own.
	undef $signature if $title eq 'idem.create_scope';
	return defined $signature ? with_settings(squeeze($signature), ' = NULL') : items($title, 'Arguments');
}

sub catalog
{
	my ($query) = @_;
	my %row;
	for (split /\n/, $node->safe_psql('postgres', $query))
	{
		my ($name, $value) = split /\|/, $_, 2;
		$row{$name} = $value;
	}
	return %row;
}

# Of a type or default, the spelling of the page.
sub as_written
{
	my ($list) = @_;
	my %unit = ('24:00:00' => '24 hours', '00:05:00' => '5 minutes', '00:01:00' => '1 minute', '00:00:01' => '1 second',
		'00:00:10' => '10 seconds');
	return $list =~ s/ DEFAULT / = /gr =~ s/::[a-z ]+(?:\[\])?//gr =~ s/timestamp with time zone/timestamptz/gr
	  =~ s/'(\d\d:\d\d:\d\d)'/'$unit{$1}'/gr;
}

sub is_described
{
	my ($what, $rows, $of) = @_;
	is_deeply([ grep { !$section{$_} } sort keys %$rows ], [], "every $what has its section");
	is($of eq 'Arguments' ? arguments($_) : with_settings(items($_, $of), ''), $rows->{$_}, "$what $_: $of")
	  for sort keys %$rows;
	return;
}

my %result = catalog(<<'SQL');
SELECT 'idem.' || proname, pg_get_function_result(oid) FROM pg_proc WHERE pronamespace = 'idem'::regnamespace
SQL
for my $name (sort keys %result)
{
	my ($returns) = ($section{$name} // '') =~ /→\s+(`[^`]+`|\[[^\]]+\])/;
	is(($returns // '') =~ tr/`[]//dr, as_written($result{$name}) =~ s/^TABLE.*/SETOF record/sr,
		"function $name: its result");
}

my %function = catalog(<<'SQL');
SELECT DISTINCT ON (proname) 'idem.' || proname, pg_get_function_arguments(oid) FROM pg_proc
 WHERE pronamespace = 'idem'::regnamespace AND 'uuid'::regtype <> ALL (proargtypes)
 ORDER BY proname, 'idem.claim_result'::regtype = ANY (proargtypes)
SQL
my %returned;
for my $name (keys %function)
{
	my @arguments = split /, /, $function{$name};
	my @out = map { s/^OUT //r } grep { /^OUT / } @arguments;
	$returned{$name} = as_written(join ', ', @out) if @out;
	$function{$name} = as_written(join ', ', grep { !/^OUT / } @arguments);
}
is_described('function', \%function, 'Arguments');
is_described('function', \%returned, 'Columns');
# Nor does it describe those twice that take a SQLSTATE or the result of a claim.
my %of_claim = catalog(q{SELECT 'idem.' || proname, true FROM pg_proc
	WHERE 'idem.claim_result'::regtype = ANY (proargtypes)});
is_deeply([ sort grep { $section{$_} =~ /^`\Q$_\E\(result idem\.claim_result\)`\s*→/m } keys %function ],
	[ sort keys %of_claim ],
	'which functions take the result of a claim');

# Who may call a function, and what the planner may make of it.
my %traits = catalog(q{SELECT 'idem.' || proname, concat_ws(' ', CASE provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's'
	THEN 'STABLE' END,
	CASE proparallel WHEN 's' THEN 'PARALLEL SAFE' END, CASE WHEN NOT has_function_privilege('public', oid, 'EXECUTE')
	THEN 'not PUBLIC' END)
	FROM pg_proc WHERE pronamespace = 'idem'::regnamespace});
for my $name (sort keys %traits)
{
	my ($about) = ($section{$name} // '') =~ /^(.*?)^- Errors:/ms;
	my ($privileges) = ($section{$name} // '') =~ /(?:^- | )Privileges:\s+(.*?)\n\n/ms;
	my @described = ($about // '') =~ /`(IMMUTABLE|STABLE|PARALLEL\sSAFE)`/g;
	push @described, 'not PUBLIC' if ($privileges // '') =~ /PUBLIC\s+does\s+not|^administration\b/;
	is(squeeze("@described"), $traits{$name}, "function $name: volatility and privileges");
}

my %relation = catalog(<<'SQL');
SELECT 'idem.' || c.relname, string_agg(a.attname || ' ' || format_type(a.atttypid, NULL), ', ' ORDER BY a.attnum)
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
 WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind IN ('v', 'c') AND a.attnum > 0
 GROUP BY c.relname
SQL
$_ = as_written($_) for values %relation;
is_described('view or type', \%relation, 'Columns');

my %setting;
my %context = (user => 'any user', superuser => 'superuser', sighup => 'reload', postmaster => 'server start');
for (split /\n/, $node->safe_psql('postgres',
	q{SELECT name || '|' || context || '|' || current_setting(name) FROM pg_settings WHERE name LIKE 'idem.%'}))
{
	my ($name, $context, $default) = split /\|/, $_, 3;
	$default = q{''} if $default eq '';
	$setting{$name} = 1;
	like($section{$name} // '', qr/^Default: `\Q$default\E`\. Set by: \Q$context{$context}\E\. /m,
		"setting $name: its default, and who may set it");
}
ok(%setting, 'there are settings');

# idem's own errors, by name and status.
for (split /\n/, $node->safe_psql('postgres',
		q{SELECT code || '|' || substr(idem.problem(code)->>'type', 18) || '|' || idem.http_status(code)
	FROM (SELECT 'ID' || lpad(i::text, 3, '0') FROM generate_series(1, 999) i) AS c (code)
	WHERE idem.problem(code)->>'type' LIKE 'urn:idem:problem:%'}))
{
	my ($code, $name, $status) = split /\|/;
	like($reference, qr/^### $code $name$/m, "$code has its section");
	like($reference, qr/^\| `$code` \| $status \| /m, "$code: HTTP status");
}
is_deeply([ grep { /^idem\./ && !exists $function{$_} && !exists $relation{$_} && !exists $setting{$_} }
		sort keys %section ],
	[], 'nothing is described that is not there');

log_is_clean($node);
$node->stop;
done_testing();
