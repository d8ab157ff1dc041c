# make site: every link of the pages leads somewhere, and a browser shows the first page with its table of
# contents, and what a search finds. Needs no server: prove test/site.pl
use strict;
use warnings;

use FindBin;
use Test::More;

chdir "$FindBin::Bin/.." or die;
plan skip_all => 'Sphinx is not installed; tools/setup site installs it' if system(q{/usr/bin/python3 -c 'import sphinx, myst_parser, furo' 2>/dev/null});

is(system('tools/site'), 0, 'the site is made, and its links lead somewhere');

# What the browser makes of a page, after its scripts have run.
sub shown
{
	my ($page) = @_;
	my $options = '--headless --no-sandbox --disable-gpu --allow-file-access-from-files --virtual-time-budget=5000 --dump-dom';
	open my $browser, '-|', "chromium $options 'file://$FindBin::Bin/../build/site/$page' 2>/dev/null" or die $!;
	local $/;
	return <$browser> // '';
}

SKIP:
{
	skip 'chromium is not installed; tools/setup site installs it', 5 if system('chromium --version >/dev/null 2>&1');
	my $first = shown('index.html');
	like($first, qr{<h1>idem<}, 'a browser shows the first page');
	like($first, qr{href="docs/reference\.html"}, 'the table of contents has the reference');
	like($first, qr{>Package for Python<.*>Package for Node<}s, 'and names of their own for pages of one title');
	like($first, qr{<span class="k">FUNCTION</span>}, 'a procedure is highlighted');
	like(shown('search.html?q=checkpoint'), qr{<li[^>]*><a href="docs/reference\.html[^"]*"}, 'a search finds the reference');
}
done_testing();
