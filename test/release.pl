# What is published is well-formed and agrees with itself: META.json follows PGXN's specification 1.0.0, the
# version is the same everywhere, the documents list the errors of the COMMENTs and quote messages as they
# are raised, test/README.md lists every test. Needs no server: prove test/release.pl
use strict;
use warnings;

use FindBin;
use JSON::PP;
use Test::More;

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
is($meta->{version}, $control, 'META.json has the version of idem.control');
is($meta->{provides}{idem}{version}, $control, 'so has what it provides');
my ($changelog) = slurp('CHANGELOG.md') =~ /^## (\S+)/m;
is($changelog, $control, 'and the first entry of CHANGELOG.md');

# Every release before has its script, and the next one the way from it.
my ($next, @before) = slurp('CHANGELOG.md') =~ /^## (\S+)/mg;
for my $version (@before)
{
	ok(-f "sql/idem--$version.sql", "$version has its script");
	ok(-f "sql/idem--$version--$next.sql", "and a way to $next");
	$next = $version;
}
my ($debian) = slurp('debian/changelog') =~ /^\S+ \(([^)]*)-[^-)]+\)/;
is($debian, $control, 'and debian/changelog');
my ($oldest) = slurp('debian/pgversions') =~ /^(\d+)\+$/m;
like($meta->{prereqs}{runtime}{requires}{PostgreSQL}, qr/^\Q$oldest\E\./, 'the same oldest PostgreSQL in META.json and debian/pgversions');

# The transient SQLSTATEs, as README's table and the code have them.
my ($transient) = slurp('src/core/classify.hpp') =~ /transient_sqlstates = (.*?)\}\)/s;
my ($curable) = slurp('README.md') =~ /^### Failures that a retry may cure\n(.*?)^\*\*/ms;
my @listed = map { /\b(?:[0-9A-Z]{5}|[0-9A-Z]{2})\b/g } $curable =~ /^\| ([^|]+) \|/mg;
is_deeply([ sort @listed ], [ sort $transient =~ /"(\w+)"/g ], 'README lists the transient SQLSTATEs of the code');

# The errors of each function, as README's reference and its COMMENT give them.
my %row = slurp('README.md') =~ /^\| `(\w+)` \|.*\|([^|]*)\|$/mg;
my %comment = slurp('sql/idem.sql') =~ /^COMMENT ON FUNCTION idem\.(\w+)\([^)]*\) IS\n'(.*?)';$/msg;

sub codes
{
	my ($words) = @_;
	return ($words =~ /\b((?:ID|\d\d)[0-9A-Z]{3})\b/g, $words =~ /granted EXECUTE|For members of/ ? '42501' : ());
}

sub documented
{
	my ($function) = @_;
	my ($words, $except) = split /,? except for /, $row{$function} // '', 2;
	my %code = map { $_ => 1 } codes($words), $words =~ /^ as `(\w+)`/ ? documented($1) : ();
	if (defined $except)
	{
		my ($without, $and) = split /, which are|;/, $except, 2;
		delete $code{$_} for codes($without);
		$code{$_} = 1 for codes($and // '');
	}
	return sort keys %code;
}

for my $function (sort keys %comment)
{
	ok(exists $row{$function}, "idem.$function() is in README's reference");
	my ($raises) = $comment{$function} =~ /\bRaises (.*)/s;
	my %code = map { $_ => 1 } codes($raises // ''), $comment{$function} =~ /granted EXECUTE|For members of/ ? '42501' : ();
	is_deeply([ sort keys %code ], [ documented($function) ], "the errors of idem.$function()");
}

# What Troubleshooting quotes is what users see, and search for: messages of idem's own, as the sources
# have them, or others that a test shows.
my ($troubleshooting) = slurp('README.md') =~ /^## Troubleshooting\n(.*?)^## /ms;
my @formats = map { s/\\"/"/gr } map { slurp($_) =~ /errmsg\(\s*"((?:[^"\\]|\\.)*)"/g } glob 'src/*/*.cpp';
my $shown = join '', map { slurp($_) } glob 'expected/*.out';

sub is_said
{
	my ($message) = @_;
	my $seen = join '.*', map { quotemeta } split /\Q...\E/, $message;
	return 1 if $shown =~ /$seen/;
	return grep { my $format = join '.*', map { quotemeta } split /%[a-z]+/, $_, -1; $message =~ /^$format/ } @formats;
}

my @quoted = $troubleshooting =~ /^\| `((?:ID|\d\d)\w{3} [^`]+)`/mg;
cmp_ok(scalar(@quoted), '>=', 20, 'Troubleshooting quotes messages');
ok(is_said(s/^\w+ //r), "someone says: $_") for @quoted;

# Every file of test/ is in the tables of test/README.md, tests exactly once; what it names exists.
my $guide = slurp('test/README.md');
my ($tests) = $guide =~ /^## Where is the test of \.\.\.\n(.*?)^## /ms;
my ($subjects, $shared) = $tests =~ /^(.*\|\n)(.*)/s;
my %times;
$times{$_}++ for $subjects =~ /`([^` ]+\.\w+)`/g;
my @files = map { s{^test/}{}r } grep { -f } map { glob } qw(test/* test/*/*);
my @is_test = grep { m{^(?:sql|specs|pgtap|unit|upgrade)/.*(?<!support\.hpp)$|^fuzz/|^t/.*\.pl$|^release\.pl$} } @files;
is($times{$_} // 0, 1, "test/README.md lists $_ once") for @is_test;
my %exists = map { $_ => 1 } @files;
is_deeply([ grep { !$exists{$_} } sort keys %times ], [], 'test/README.md lists no test that does not exist');
my %is_test = map { $_ => 1 } @is_test;
ok($shared =~ /`\Q$_\E`/, "test/README.md says what $_ is for") for grep { !$is_test{$_} && $_ ne 'README.md' } @files;

done_testing();
