# make site: every link of the pages leads somewhere. A browser shows the first page, and no page is wider
# than a telephone or a laptop; examples can be copied without their results, one language is shown at a
# time, and the search puts the page with the cure first. Needs no server: prove test/site.pl
use strict;
use warnings;

use FindBin;
use JSON::PP;
use MIME::Base64;
use Test::More;

chdir "$FindBin::Bin/.." or die;
plan skip_all => 'Sphinx is not installed; tools/setup site installs it'
  if system(q{/usr/bin/python3 -c 'import sphinx, myst_parser, furo' 2>/dev/null});

is(system('tools/site'), 0, 'the site is made, and its links lead somewhere');

sub slurp
{
	my ($file) = @_;
	open my $in, '<', $file or die "$file: $!";
	local $/;
	return <$in>;
}

# What the browser makes of a page, after its scripts have run.
sub shown
{
	my ($page, $budget) = @_;
	my $options =
		'--headless --no-sandbox --disable-gpu --allow-file-access-from-files --window-size=1400,900 --dump-dom';
	$options .= ' --virtual-time-budget=' . ($budget // 5000);
	open my $browser, '-|', "chromium $options 'file://$FindBin::Bin/../build/site/$page' 2>/dev/null" or die $!;
	local $/;
	return <$browser> // '';
}

# Runs a function of each page, in a frame that is as wide as a screen, and returns what it returns by page.
sub asked
{
	my ($width, $function) = @_;
	my @pages = map { s{^build/site/}{}r } grep { !m{/(?:genindex|check)\.html$} }
		map { glob "build/site/$_.html" } qw(* */* */*/*);
	my $pages = encode_json(\@pages);
	open my $out, '>', 'build/site/check.html' or die $!;
	print $out <<"HTML";
<!doctype html><body><pre id="said"></pre><script>
const ask = (page) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.cssText = "width:${width}px;height:800px;border:0";
  frame.onload = () => setTimeout(() => {
    done(($function)(frame.contentWindow, frame.contentDocument));
    frame.remove();
  }, 50);
  frame.src = page;
  document.body.append(frame);
});
(async () => {
  const said = {};
  for (const page of $pages) said[page] = await ask(page);
  document.getElementById("said").textContent = btoa(JSON.stringify(said));
})();
</script></body>
HTML
	close $out;
	my ($said) = shown('check.html', 60_000) =~ m{<pre id="said">([\w+/=]+)</pre>};
	unlink 'build/site/check.html';
	return $said ? decode_json(decode_base64($said)) : {};
}

SKIP:
{
	skip 'chromium is not installed; tools/setup site installs it', 1 if system('chromium --version >/dev/null 2>&1');
	my $first = shown('index.html');
	like($first, qr{<h1>idem<}, 'a browser shows the first page');
	like($first, qr{<img[^>]+src="_images/retry\.svg"}, 'with its picture');
	like($first, qr{href="docs/reference\.html"}, 'the table of contents has the reference');
	like($first, qr{>Package for Python<.*>Package for Node<}s, 'and names of their own for pages of one title');
	my $introduction = shown('README.html');
	like($introduction, qr{<span class="k">FUNCTION</span>}, 'a procedure is highlighted');
	my ($quickstart) = slurp('build/site/docs/quickstart.html');
	for my $path ($first =~ m{href="docs/quickstart\.html#([\w-]+)"}g)
	{
		like($quickstart, qr{<section id="$path">}, "the first page leads to $path");
	}

	for my $width (390, 1280)
	{
		my $wide = asked($width, '(window, page) => page.documentElement.scrollWidth');
		cmp_ok(scalar(keys %$wide), '>=', 30, 'every page is measured');
		is_deeply([ grep { $wide->{$_} > $width } sort keys %$wide ], [], "no page is wider than $width pixels");
	}

	my $parts = asked(1280, <<'JS');
(window, page) => ({
  blocks: page.querySelectorAll("div[class*=highlight-]:not(.highlight-text):not(.highlight-default)").length,
  buttons: page.querySelectorAll(".copy").length,
  tabs: [...page.querySelectorAll("[role=tab]")].map((tab) => tab.textContent),
  shown: [...page.querySelectorAll("[role=tabpanel]")].filter((panel) => !panel.hidden).length,
  copied: window.eval("pasted")("SELECT 1;    --> 1\n--> more\nSELECT 2;  -- a comment\n") })
JS
	my %page = %$parts;
	is_deeply([ grep { $page{$_}{buttons} < $page{$_}{blocks} } sort keys %page ], [], 'every example can be copied');
	is($page{'index.html'}{copied}, "SELECT 1;\nSELECT 2;  -- a comment\n", 'without the results that it shows');
	is_deeply($page{'examples/README.html'}{tabs}, [qw(psycopg2 asyncpg node-postgres pgx JDBC)],
		'a tab for each driver');
	is($page{'examples/README.html'}{shown}, 1, 'of which one is shown');

	# What a reader types, and where the cure is.
	for ([ 'checkpoint', 'docs/reference\.html#idem-checkpoint' ], [ 'ID006', 'docs/(?:operations|reference)\.html#' ],
		[ 'cannot commit a transaction with an open claim', 'docs/operations\.html#item-\d+' ],
		[ 'ERROR:  cannot write to table "payment" without a claim', 'docs/operations\.html#item-\d+' ],
		[ 'invalid input syntax for type boolean', 'docs/operations\.html#item-\d+' ],
		[ 'PgBouncer', 'docs/operations\.html#pgbouncer' ],
		[ 'how long to keep answers', 'docs/guide\.html#how-long-to-keep-answers' ],
		[ 'ID002', 'docs/(?:operations|reference)\.html#' ], [ 'upgrading', 'docs/operations\.html#upgrading' ],
		[ 'scope does not exist', 'docs/reference\.html#id008-unknown-scope' ])
	{
		my ($typed, $leads) = @$_;
		my $query = $typed =~ s/([^\w])/sprintf '%%%02x', ord $1/ger;
		my ($found) = shown("search.html?q=$query") =~ m{<ul class="found"><li><a href="([^"]*)"};
		like($found // 'nothing', qr{^$leads}, "a search for: $typed");
		my ($page, $anchor) = split /#/, $found // '';
		ok($anchor && slurp("build/site/$page") =~ /\bid="\Q$anchor\E"/, 'and its anchor exists');
	}
}
done_testing();
