# What is published is well-formed and agrees with itself: META.json follows PGXN's specification 1.0.0, the
# version is the same everywhere, docs/reference.md has the errors of the COMMENTs, Troubleshooting has
# messages as they are raised, links lead somewhere, and test/README.md lists every test. Needs no server:
# prove test/release.pl
use strict;
use warnings;

use Encode ();
use FindBin;
use JSON::PP;
use Test::More;

use lib "$FindBin::Bin/mutants";
use Mutant;

chdir "$FindBin::Bin/.." or die;

sub slurp
{
	my ($file) = @_;
	open my $in, '<:raw', $file or die "$file: $!";
	local $/;
	return <$in>;
}

my $semver = qr/^(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[A-Za-z][A-Za-z0-9-]*)?$/;
my $term = qr{^[^\s/\\\p{Cc}]{2,}$};
my $meta = decode_json(slurp('META.json'));

sub is_text { my ($value) = @_; return defined $value && !ref $value && length $value; }

# Required: https://pgxn.org/spec/#Required.Fields
like($meta->{name}, $term, 'name');
like($meta->{version}, $semver, 'version');
ok(is_text($meta->{abstract}), 'abstract');
my @maintainers = ref $meta->{maintainer} ? @{ $meta->{maintainer} } : $meta->{maintainer};
ok(@maintainers && !(grep { !is_text($_) } @maintainers), 'maintainer');
my %licenses = map { $_ => 1 } qw(agpl_3 apache_1_1 apache_2_0 artistic_1 artistic_2 bsd freebsd gfdl_1_2
  gfdl_1_3 gpl_1 gpl_2 gpl_3 lgpl_2_1 lgpl_3_0 mit mozilla_1_0 mozilla_1_1 openssl perl_5 postgresql qpl_1_0
  ssleay sun zlib open_source restricted unrestricted unknown);
ok($licenses{ $meta->{license} }, 'license');
is($meta->{'meta-spec'}{version}, '1.0.0', 'meta-spec');
ok(%{ $meta->{provides} }, 'provides');
for my $name (sort keys %{ $meta->{provides} })
{
	my $extension = $meta->{provides}{$name};
	like($name, $term, "provides $name");
	like($extension->{version}, $semver, "$name: version");
	ok(-f $extension->{$_}, "$name: $_ exists") for grep { exists $extension->{$_} || $_ eq 'file' } qw(file docfile);
}

# Optional ones
ok(!defined $meta->{release_status} || $meta->{release_status} =~ /^(?:stable|testing|unstable)$/, 'release_status');
my @tags = @{ $meta->{tags} // [] };
ok(!(grep { !is_text($_) || length > 255 || m{[/\\\p{Cc}]} } @tags), 'tags');
my %known = map { $_ => 1 } qw(name version abstract maintainer license provides meta-spec description
  generated_by no_index prereqs release_status resources tags);
is_deeply([ grep { !$known{$_} && !/^x_/i } sort keys %$meta ], [], 'nothing unknown');
for my $phase (sort keys %{ $meta->{prereqs} // {} })
{
	like($phase, qr/^(?:configure|build|test|runtime|develop)$/, "prereqs: $phase");
	for my $relation (sort keys %{ $meta->{prereqs}{$phase} })
	{
		like($relation, qr/^(?:requires|recommends|suggests|conflicts)$/, "prereqs: $phase $relation");
		my $needed = $meta->{prereqs}{$phase}{$relation};
		ok($needed->{$_} =~ /^0$/ || $needed->{$_} =~ $semver, "prereqs: $_ $needed->{$_}") for sort keys %$needed;
	}
}

# One version everywhere.
my ($control) = slurp('idem.control') =~ /^default_version = '(.*)'$/m;
my ($of_managed) = slurp('sql/managed_administration.sql')
	=~ /^CREATE FUNCTION idem_internal\.version\(\).*?^RETURN '(.*?)';/ms;
is($of_managed, $control, 'the SQL edition has the version of idem.control');
my ($for_tests) = slurp('test_extension/idem_test.control') =~ /^default_version = '(.*)'$/m;
my %install = slurp('idem.control') =~ /^(superuser|trusted) = (\w+)$/mg;
is_deeply(\%install, { superuser => 'true', trusted => 'false' }, 'superusers install the extension');
is($for_tests, $control, 'test_extension/idem_test.control: the same version');
is($meta->{version}, $control, 'META.json has the version of idem.control');
is($meta->{provides}{idem}{version}, $control, 'so has what it provides');
like(slurp('clients/python/pyproject.toml'), qr/^version = "\Q$control\E"$/m, 'so has the Python package');
like(slurp('clients/python/CHANGELOG.md'), qr/^## \Q$control\E /m, 'and its changelog');
my ($changelog) = slurp('CHANGELOG.md') =~ /^## (\S+)/m;
is($changelog, $control, 'and the first entry of CHANGELOG.md');

# Every release before has its script, and a way to the next one. Nothing of 0.x was published.
my @releases = grep { !/^0\./ } slurp('CHANGELOG.md') =~ /^## (\S+)/mg;
for my $n (1 .. $#releases)
{
	ok(-f "sql/idem--$releases[$n].sql", "$releases[$n] has its script");
	ok(-f "sql/idem--$releases[$n]--$releases[$n - 1].sql", "and a way to $releases[$n - 1]");
}
like(slurp('Makefile'), qr{^DATA = \$\(wildcard sql/idem--\*\.sql\)$}m, 'make install installs both');
my ($debian) = slurp('debian/changelog') =~ /^\S+ \(([^)]*)-[^-)]+\)/;
is($debian =~ tr/~/-/r, $control, 'and debian/changelog');
like(slurp('rpm/idem.spec'), qr/^%global upstream \Q$control\E$/m, 'and the RPM package');
is(decode_json(slurp('clients/node/package.json'))->{version}, $control, 'and the Node package');
like(slurp('clients/node/CHANGELOG.md'), qr/^## \Q$control\E /m, 'and its changelog');
# Nothing is published yet, so the packages have placeholders for where they are at home.
my %url;
$url{$_}{node} = 1 for slurp('clients/node/package.json') =~ m{"(?:git\+)?https://([\w.]+)[/\w]*"}g;
$url{$_}{python} = 1 for slurp('clients/python/pyproject.toml') =~ m{^\w+ = "https://([\w.]+)[/\w.]*"}mg;
is_deeply(\%url, { map { $_ => { node => 1, python => 1 } } keys %url }, 'the packages have the same home');
my $placeholder = join '', grep { /\.example$/ } keys %url;
like(slurp('docs/releasing.md'), qr/\Q$placeholder\E/, 'a placeholder is documented') if $placeholder;
my ($oldest) = slurp('debian/pgversions') =~ /^(\d+)\+$/m;
like($meta->{prereqs}{runtime}{requires}{PostgreSQL}, qr/^\Q$oldest\E\./,
	'the same oldest PostgreSQL in META.json and debian/pgversions');

# The errors, as the documentation and the code have them: codes and names, and what a retry may cure,
# in C++; codes and classes with HTTP status, name and title in SQL.
my $table = slurp('src/core/errors.hpp');
my %name = $table =~ /\{"(ID\d+)", "(\w+)"\}/g;
is(scalar(keys %name), scalar(() = $table =~ /\{"ID\d/g), 'each of our errors is read');
my ($of_server) = $table =~ /transient_errors = .*?\(\{\n(.*?)\n\}\);/s;
my @transient = $of_server =~ /^    "(\w+)",/mg;
cmp_ok(scalar(@transient), '>', 20, 'so are those that a retry may cure');
my ($json) = slurp('sql/functions_http.sql') =~ /^CREATE FUNCTION idem_internal\.errors\(\).*?^RETURN jsonb '(.*?)';/ms;
my $over_http = decode_json($json);
my %own = map { $_ => { status => $over_http->{$_}[0], name => $over_http->{$_}[1], title => $over_http->{$_}[2] } }
	grep { /^ID/ } keys %$over_http;
is_deeply({ map { $_ => $own{$_}{name} } keys %own }, \%name, 'the SQL has the errors of the C++');

sub listed { my ($cell) = @_; return $cell =~ /\b(?:[0-9A-Z]{5}|[0-9A-Z]{2})\b/g; }
my ($of_managed_edition) = slurp('sql/managed.sql') =~ /left\(sqlstate, 2\)\] && '\{([\s\w,]+)\}' THEN 'transient'/;
is_deeply([ sort split /[\s,]+/, $of_managed_edition =~ s/^\s+//r ], [ sort @transient ],
	'the SQL edition has the same list');
sub is_transient { my ($code) = @_; return scalar grep { $code eq $_ || substr($code, 0, 2) eq $_ } @transient; }

ok(is_transient($_), "$_ is 503 and transient") for grep { $over_http->{$_}[0] == 503 } sort keys %$over_http;
my ($curable) = slurp('docs/guide.md') =~ /^These errors are transient\. (.*?)^Errors of class ID/ms;
is_deeply([ sort map { listed($_) } $curable =~ /^\| ([^|]+) \|/mg ], [ sort @transient ],
	'the guide lists the transient SQLSTATEs of the code');

# One table has all errors. What it does not list by code is "others".
my @error_rows = map { [ split / *\| */, s/^\| //r, -1 ] }
  slurp('docs/reference.md') =~ /^(\| [^|]+ \| \d{3} \| .*)$/mg;
my %in_reference = map { my $status = $_->[1]; map { $_ => $status } listed($_->[0]) } @error_rows;
is_deeply(\%in_reference,
	{ map { $_ => $over_http->{$_}[0] } grep { $own{$_} || $over_http->{$_}[0] !~ /^[25]00$/ } keys %$over_http },
	'the table of errors has the HTTP statuses of the code');

# The packages' copies, for when the database is not reachable.
my $for_packages = `tools/errors --print`;
is(slurp($_), $for_packages, "$_ is as tools/errors writes it")
  for qw(clients/node/sqlstates.json clients/python/src/pg_idem/sqlstates.json);
my $known = decode_json($for_packages);
is_deeply({ map { $_ => [ @{ $known->{$_} }{qw(status name title)} ] } grep { /^ID/ } keys %$known },
	{ map { $_ => [ @{ $own{$_} }{qw(status name title)} ] } keys %own }, 'it has our errors');
ok(is_transient($_), "the packages retry $_, which is transient")
  for grep { !/^ID/ && $known->{$_}{retry} } sort keys %$known;

my %described = map { $_ => 1 } slurp('docs/reference.md') =~ /^### (ID\d{3} \w+)\n\nMessage: /mg;
is_deeply(\%described, { map { ("$_ $own{$_}{name}" => 1) } keys %own },
	'the reference has a section for each of our errors');

# The errors of each function, as its section of the reference and its COMMENT give them.
my %section = slurp('docs/reference.md') =~ /^### idem\.(\w+)\n(.*?)(?=^##|\z)/msg;
my $script = join '', map { slurp("sql/$_.sql") } qw(base schema types functions functions_sql functions_http library
  comments views health);
my (%comment, %of_claim);
while ($script =~ /^COMMENT ON FUNCTION idem\.(\w+)(\([^)]*\))? IS\n    '(.*?)';$/msg)
{
	my ($function, $arguments, $text) = ($1, $2 // '', $3);
	my $of = $arguments =~ /claim_result/ ? \%of_claim : \%comment;
	$of->{$function} = $text =~ s/'\n    '//gr;
}

my %raised_by;
sub codes { my ($words) = @_; return $words =~ /\b((?:ID|\d\d)[0-9A-Z]{3})\b/g; }
sub sorted { my %code = map { $_ => 1 } @_; return [ sort keys %code ]; }

is_deeply([ sort map { keys %$_ } \%comment, \%of_claim ], [ sort $script =~ /^CREATE FUNCTION idem\.(\w+)/mg ],
	'every function has a COMMENT');
for my $function (sort keys %of_claim)
{
	my %raised = map { $_ => 1 } codes($comment{$function});
	is_deeply([ grep { !$raised{$_} } codes($of_claim{$function}) ], [],
		"idem.$function() raises no more for the result of a claim");
}
for my $function (sort keys %comment)
{
	ok(exists $section{$function}, "idem.$function() is in the reference");
	my ($errors) = ($section{$function} // '') =~ /^- Errors: (.*?)(?:^- | )Privileges:\s/ms;
	ok(defined $errors, "idem.$function(): the reference lists its errors") or next;
	chomp $errors;
	my @documented = codes($errors);
	is($errors, 'none.', "idem.$function(): no errors") unless @documented;
	my ($raises) = $comment{$function} =~ /\bRaises (.*)/s;
	my @needs_a_grant = $comment{$function} =~ /granted EXECUTE|For members of/ ? '42501' : ();
	is_deeply(sorted(@documented), sorted(codes($raises // ''), @needs_a_grant), "the errors of idem.$function()");
	$raised_by{$_}{$function} = 1 for @documented;
}

# The last column of the table of errors names them by groups.
my @groups = slurp('docs/reference.md') =~ /^- (claims|tokens|admin) are (.*);$/mg;
my %group;
while (my ($name, $functions) = splice @groups, 0, 2)
{
	$group{$name} = [ $functions =~ /`(\w+)`/g ];
}
my %signature = map { $_ => $section{$_} =~ /^`idem\.$_\((.*?)\)`/ms }
	grep { $section{$_} =~ /^`idem\.$_\(/m } keys %section;
my %argument = (
	key => qr/\b(?:keys?\s+any|source\s+text)/, tenant => qr/\btenant\s+text/,
	scope => qr/\bscope\s+text/);
for my $name (sort keys %argument)
{
	$group{"those with a $name"} = [ grep { $comment{$_} && $signature{$_} =~ $argument{$name} } keys %signature ];
}
push @{ $group{'those with a scope'} }, qw(alter_scope drop_scope require_claim);
for my $row (grep { $_->[0] =~ /ID/ } @error_rows)
{
	my ($code) = listed($row->[0]);
	my @functions = map { /^`(\w+)`$/ ? $1 : @{ $group{$_} // [] } } split /, /, $row->[4];
	is_deeply(sorted(@functions), sorted(keys %{ $raised_by{$code} }),
		"the table of errors: which functions raise $code");
}

# The settings of a scope: the one table of the code, and everything that lists them.
my %sql_type = (INTERVAL => 'interval', BOOL => 'boolean', INT4 => 'integer', TEXT => 'text', TEXTARRAY => 'text[]');
my $settings = slurp('src/pg/store/scope_settings.hpp');
my @settings = map {
	my ($name, $type, $preset, $says) = @$_;
	my $default = $preset eq 'nullptr' ? 'NULL' : $type =~ /BOOL|INT4/ ? $preset =~ tr/"//dr : $preset =~ tr/"/'/r;
	{ name => $name, type => $sql_type{$type}, default => $default, says => join '', $says =~ /"((?:[^"\\]|\\.)*)"/g }
} map { [ /"(\w+)",\ (\w+)OID,\s+("[^"]*"|nullptr),\s+check_\w+(?:<[\w:]+>)?,
		\s+read\w*(?:<[^>]*>)?,\s+((?:"(?:[^"\\]|\\.)*"\s*)+)\}/sx ] }
  $settings =~ /^    (\{"\w+",.*?\}),$/msg;
is(scalar(@settings), scalar(() = $settings =~ /^    \{"\w+", \w+OID/mg), 'each setting of a scope is read');
cmp_ok(scalar(@settings), '<=', 20, 'a scope has few settings');
my ($named) = $settings =~ /\bnamed_settings = (\d+);/;
my @named = @settings[ 0 .. $named - 1 ];

sub words { my ($text) = @_; return $text =~ s/\s+/ /gr =~ s/^ | $//gr; }
for ([ 'create_scope', 'if_not_exists boolean DEFAULT false', sub { $_[0] } ],
	[ 'alter_scope', 'force boolean DEFAULT false', sub { 'NULL' } ])
{
	my ($function, $last, $default) = @$_;
	my ($signature) = $script =~ /^CREATE FUNCTION idem\.$function\((.*?)^\)/ms;
	is(words($signature),
		join(', ', 'name text', (map { "$_->{name} $_->{type} DEFAULT " . $default->($_->{default}) } @named),
			'settings text[] DEFAULT ' . $default->("'{}'"), 'owner regrole DEFAULT NULL', $last),
		"the arguments of idem.$function() are the settings that it names");
	my %item;
	for my $item (split /^(?=- )/m, $section{$function})
	{
		my ($name, $type, $text) = $item =~ /^- `(\w+) (.*?)`\s*(.*)/s or next;
		$item{$name} = [ $type, words($text) =~ s/\[(.*?)\]\(.*?\)/$1/gr =~ tr/`()//dr ];
	}
	$_->[0] = words($_->[0]) for values %item;
	next if $function eq 'alter_scope' && like($section{$function},
		qr/^`idem\.$function\(name text, \.\.\., settings /m, 'the reference has them in one place');
	is($item{ $_->{name} }[0], "$_->{type} = " . $default->($_->{default}),
		"the reference has $_->{name} of idem.$function()") for @named;
	like($item{ $_->{name} }[1], qr/^: \Q@{[ $_->{says} =~ tr{()}{}dr ]}\E/, "and what $_->{name} says") for @named;
}
my ($columns) = $script =~ /^CREATE TABLE idem\.scope \(.*?-- The settings.*?\n(.*?)^    CONSTRAINT/ms;
is(words($columns),
	join(' ', map { "$_->{name} $_->{type}" . ($_->{default} eq 'NULL' ? '' : " NOT NULL DEFAULT $_->{default}")
			. ',' } @settings),
	'the columns of idem.scope are the settings');
my ($columns_shown) = $script =~ /^CREATE VIEW idem\.scopes .*?\bSELECT(.*?)\bFROM/ms;
is(words($columns_shown) =~ s/ COLLATE "default"|::pg_catalog.regrole AS owner//gr,
	join(', ', qw(name owner), map { $_->{name} } @settings), 'the view idem.scopes shows them');
is_deeply(
	[ map { s/'\n    '//gr =~ s/''/'/gr } $script =~ /^COMMENT ON COLUMN idem\.scopes\.\w+ IS\n    '(.*?)';$/msg ],
	[ map { ucfirst "$_->{says}." } @settings ],
	'the comments on its columns are what they say');

# The shape of the reference: every function has the same parts, in the same order.
for my $function (sort keys %section)
{
	next unless exists $comment{$function};
	my $head = qr/^(?:`idem\.$function\([^`]*\)`\s*→|.* → `\w+`\n\nArguments:)/m;
	like($section{$function}, qr/$head.*^- Errors: .*(?:^- | )Privileges:\s.*^```sql$/ms,
		"idem.$function(): arguments, result, errors, privileges, an example");
}

# Links.
my @pages = glob('*.md docs/*.md examples/*.md examples/*/*.md clients/*/*.md src/*.md test/*.md');

sub prose { my ($page) = @_; return slurp($page) =~ s/^\s*```.*?^\s*```\s*$//msgr; }

# As GitHub makes them of headings.
sub anchors
{
	my ($page) = @_;
	my (%anchor, %seen);
	for my $heading (prose($page) =~ /^#+ +(.*?)\s*$/mg)
	{
		my $slug = lc($heading =~ s/\[([^\]]*)\]\([^)]*\)/$1/gr) =~ s/[^\w\- ]//gr =~ s/ /-/gr;
		$anchor{ $seen{$slug}++ ? "$slug-" . ($seen{$slug} - 1) : $slug } = 1;
	}
	return \%anchor;
}

my %anchors = map { $_ => anchors($_) } @pages;

# Where a link of the page leads, from the root of the tree.
sub resolved
{
	my ($page, $path) = @_;
	return $page if $path eq '';
	my @parts = ((split m{/}, $page)[ 0 .. ($page =~ tr{/}{}) - 1 ]);
	for my $part (split m{/}, $path)
	{
		if ($part eq '..') { pop @parts if @parts; }
		else { push @parts, $part; }
	}
	return join '/', @parts;
}

for my $page (@pages)
{
	my @broken;
	for my $link (prose($page) =~ /\]\(([^)\s]+)\)/g)
	{
		next if $link =~ /^https?:/;
		my ($path, $anchor) = split /#/, $link, 2;
		my $target = resolved($page, $path);
		push @broken, $link unless -e $target && (!defined $anchor || $anchors{$target}{$anchor});
	}
	is_deeply(\@broken, [], "$page: its links lead somewhere");
}

# Layers, and the floors of pg, include only what is below them, and modules (a header with its source)
# do not include each other in circles.
my @floors = qw(core pg/server pg/store pg/shared pg);
my %below = map { my $n = $_; ($floors[$n] => { map { $_ => 1 } @floors[0 .. $n] }) } 0 .. $#floors;
$below{$_} = { $_ => 1, map { $_ => 1 } @floors } for qw(api worker);
my (%includes, @up);
for my $source (glob 'src/*/*.?pp src/*/*/*.?pp')
{
	my ($module, $floor) = $source =~ m{^src/((.*)/[^/]+)\.\w+$};
	$includes{$module} //= {};
	for my $header (grep { -f "src/$_" } slurp($source) =~ /^\s*#\s*include\s+"([^"]+)"/mg)
	{
		my ($used, $of) = $header =~ m{^((.*)/[^/]+)\.\w+$};
		push @up, "$module uses $used" unless $below{$floor}{$of};
		$includes{$module}{$used} = 1 unless $used eq $module;
	}
}
cmp_ok(scalar(keys %includes), '>=', 50, 'src has modules');
is_deeply(\@up, [], 'no layer and no floor includes one above it');
my $left;
do
{
	$left = keys %includes;
	my %used = map { map { $_ => 1 } keys %$_ } values %includes;
	for my $module (keys %includes)
	{
		delete $includes{$module} unless $used{$module} && grep { $includes{$_} } keys %{ $includes{$module} };
	}
} while (keys %includes < $left);
is_deeply([ sort keys %includes ], [], 'no modules include each other in circles');

# The page of the model names functions that exist.
my @sources = glob 'src/*/*.?pp src/*/*/*.?pp';
my $sources = join '', map { slurp($_) } @sources;
my ($steps) = slurp('test/model/README.md') =~ /^## What each step stands for\n(.*?)^## /ms;
my %function = map { $_ => 1 } $steps =~ /`(?:\w+::)?(\w+)\(\)`/g;
cmp_ok(scalar(keys %function), '>=', 20, 'the page of the model names functions');
ok($sources =~ /\b$_\(/, "the function $_() of the model's page exists") for sort keys %function;

# Mutants do not rot: each still has one place in the sources, a sentence and a test.
my @mutants = Mutant::all('test/mutants');
ok(scalar(@mutants), 'there are mutants');
for my $mutant (@mutants)
{
	is($mutant->fault('.'), '', "mutant $mutant->{name}: applies, and says why and which test notices");
}

# The class of the key lock, which other programs see in pg_locks.
my ($lock_class) = $sources =~ /\block_class = (\d+);/;
is_deeply([ slurp($_) =~ /\bobjsubid = (\d+)/g ], [ $lock_class ], "$_: the lock class of the library")
  for qw(sql/library.sql monitoring/postgres_exporter_queries.yaml);

# What Troubleshooting quotes is what users see, and search for: messages of idem's own, as the sources
# have them, or others that a test shows.
my ($troubleshooting) = slurp('docs/operations.md') =~ /^## Troubleshooting\n(.*?)(?=^## |\z)/ms;
my @formats = map { s/\\"/"/gr } $sources =~ /errmsg\(\s*"((?:[^"\\]|\\.)*)"/g;
my $shown = join '', map { slurp($_) } glob 'expected/*.out';

sub is_said
{
	my ($message) = @_;
	my $seen = join '.*', map { quotemeta } split /\Q...\E/, $message;
	return 1 if $shown =~ /$seen/;
	return grep { my $format = join '.*', map { quotemeta } split /%[a-z]+/, $_, -1; $message =~ /^$format/ } @formats;
}

my @quoted = map { s/\s+/ /gr } $troubleshooting =~ /^- \*\*(.+?)\*\*/msg;
cmp_ok(scalar(@quoted), '>=', 20, 'Troubleshooting quotes messages');
ok(is_said($_), "a message: $_") for @quoted;

# So are the messages that the reference gives for each error.
for my $messages (slurp('docs/reference.md') =~ /^Message: ((?:`[^`]+`|,|\s|or)+)/mg)
{
	ok(is_said($_), "a message of the reference: $_") for map { s/\s+/ /gr } $messages =~ /`([^`]+)`/g;
}

# An error says what happened and what to do; core raises none. The exception has the server's words.
my @errors = map { my $file = $_; map { "$file: $_" }
	slurp($file) =~ /\bereport(\((?:"(?:\\.|[^"\\])*"|[^()"]|(?1))*\));/g } @sources;
cmp_ok(scalar(@errors), '>=', 50, 'the sources raise errors');
my @incomplete = grep { /: \(\s*(?:ERROR|WARNING),/ && !(/errdetail|errin_progress/ && /errhint/) } @errors;
is_deeply([ grep { !/canceling statement due to (?:lock|statement) timeout/ } @incomplete ], [],
	'every error has a detail and a hint');
is_deeply([ grep { slurp($_) =~ /\b(?:ereport|elog)\(/ } glob 'src/core/*.?pp' ], [], 'core raises no errors');

# CONTRIBUTING leads from common changes to files that exist.
my ($changes) = slurp('CONTRIBUTING.md') =~ /^## Where to change what\n(.*?)^Every change/ms;
my @led = $changes =~ m{`([\w.-]+/[\w./-]*)`}g;
cmp_ok(scalar(() = $changes =~ /^\| /mg), '>=', 11, 'CONTRIBUTING leads from ten changes and more');
is_deeply([ grep { !-e } @led ], [], 'to what exists');

# The pages in docs/ are in their index.
my $index = slurp('docs/README.md');
ok($index =~ /\Q($_)\E/, "docs/README.md lists $_") for map { s{^docs/}{}r } grep { !/README/ } glob('docs/*.md');

# A literal with a backslash means something else to a session whose standard_conforming_strings is off.
is(join('', grep { !/^\\|^\s*--/ && /(?<![EU&\w'])'(?:[^'\\]|'')*\\/ } map { split /^/ } slurp($_)), '',
	"$_: literals with a backslash are E''") for glob('sql/*.sql');

# A page that is read in a terminal or beside code has short lines.
sub longest
{
	my ($page) = @_;
	my @lines = map { my $tabs = tr/\t//; length() + 3 * $tabs } split /\n/, Encode::decode('UTF-8', slurp($page));
	return (sort { $b <=> $a } @lines)[0];
}
cmp_ok(longest($_), '<=', 100, "$_: lines of at most 100 columns")
  for glob('*.md docs/*.md examples/*.md examples/*/*.md clients/*/*.md test/*.md test/chaos/*.md'),
  grep { !/--/ } glob('sql/*.sql examples/citus/*.sql');
# Perl is indented with tabs of four columns, and as wide as .editorconfig says.
my @perl = grep { /\.p[lm]$/ || slurp($_) =~ /\A#!.*perl$/m } glob('*/*.pl test/*/*.p[lm] test/*/run tools/*');
cmp_ok(scalar(@perl), '>=', 80, 'there is Perl');
cmp_ok(longest($_), '<=', 120, "$_: lines of at most 120 columns") for @perl;
cmp_ok(scalar(() = slurp('README.md') =~ /\n/g), '<=', 250, 'README.md: at most 250 lines');

# Every file of test/ is in the tables of test/README.md, tests exactly once; what it names exists.
my $guide = slurp('test/README.md');
my ($tests) = $guide =~ /^## Where is the test of \.\.\.\n(.*?)^## /ms;
my ($subjects, $shared) = $tests =~ /^(.*\|\n)(.*)/s;
my %times;
$times{$_}++ for $subjects =~ /`([^` ]+\.\w+)`/g;
my @files = map { s{^test/}{}r } grep { -f && !/\.(?:patch|diff)$/ } map { glob } qw(test/* test/*/*);
my $of_test = join '|', '^(?:sql|specs|pgtap|unit|upgrade)/.*(?<!support\.hpp)$', '^fuzz/.*_fuzz\.cpp$',
  '^(?:t|chaos|citus)/.*\.pl$', '^(?:release|site)\.pl$';
my @is_test = grep { /$of_test/ } @files;
is($times{$_} // 0, 1, "test/README.md lists $_ once") for @is_test;
my %exists = map { $_ => 1 } @files;
is_deeply([ grep { !$exists{$_} } sort keys %times ], [], 'test/README.md lists no test that does not exist');
my %is_test = map { $_ => 1 } @is_test;
ok($shared =~ /`\Q$_\E`/, "test/README.md says what $_ is for") for grep { !$is_test{$_} && $_ ne 'README.md' } @files;

# What test_extension/assumptions.cpp says of a file is of one that exists.
ok(-f "src/$_", "assumptions.cpp: $_ exists")
  for slurp('test_extension/assumptions.cpp') =~ m{"((?:api|pg)/[\w/]+\.[ch]pp)",}g;

done_testing();
