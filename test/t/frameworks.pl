# The payment endpoints of examples/frameworks, which docs/frameworks.md shows: the same retry storm
# on each of them before idem and after, behind a proxy that cuts connections; and what clients get.
# Then the page: the changes that it shows are those of the endpoints, or it links to them, and its
# figures are those of the storm.
#
# IDEM_FRAMEWORKS names the stacks, if not all are to be run.
use strict;
use warnings;

use CutProxy;
use HTTP::Tiny;
use IdemTest;
use IO::Socket::INET;
use IPC::Run;
use JSON::PP;
use List::Util qw(shuffle);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $folder = 'examples/frameworks';
my $page = slurp_file('docs/frameworks.md');
my $java = join ':', map { "/usr/share/java/$_.jar" } qw(spring3-core spring3-beans spring3-context spring3-aop
  spring3-expression spring3-jdbc spring3-transaction spring3-web commons-logging aopalliance HikariCP
  slf4j-api slf4j-nop postgresql);

# The stacks in the order of the page: the name in its table; a command that tells whether toolchain
# and libraries are installed; how to build and run the endpoint VERSION, which is before or after, on
# PORT; its files; which of them other endpoints of a project share; the request that it binds to
# the key, if that is not the body; and, if a transaction can be rolled back without an error, the file
# and the change with which the endpoint does so.
my $of_package = '{"method": "POST", "path": "/payments", "query": "", "body": BODY}';
my @stacks = (
	{
		name  => 'SQLAlchemy',
		dir   => 'sqlalchemy',
		probe => 'PYTHON -c "import flask, sqlalchemy, psycopg2"',
		bound => $of_package,
		run   => 'PYTHON ../serve.py ../sqlalchemy/VERSION.py PORT',
		diff  => [ [ 'before.py', 'after.py' ] ],
	},
	{
		name  => 'Django',
		dir   => 'django',
		probe => 'PYTHON -c "import django, psycopg2"',
		bound => $of_package,
		run   => 'PYTHON ../serve.py ../django/VERSION.py PORT',
		diff  => [ [ 'before.py', 'after.py' ] ],
	},
	{
		name  => 'Rails',
		dir   => 'rails',
		probe  => 'ruby -e "require %q(rails); require %q(active_record); require %q(pg); require %q(puma)"',
		bound  => '{"url": "/payments", "body": BODY}',
		run    => 'ruby app.rb VERSION.rb PORT',
		diff   => [ [ 'before.rb', 'after.rb' ] ],
		shared => ['idempotent.rb'],
		undone => [ 'after.rb', sub { s/(?=\[201)/raise ActiveRecord::Rollback; / } ],
	},
	{
		name  => 'Spring',
		dir   => 'spring',
		probe => 'javac -version && test -f /usr/share/java/spring3-jdbc.jar -a -f /usr/share/java/HikariCP.jar',
		build => 'mkdir -p BUILT && javac -nowarn -cp JAVA -d BUILT Application.java VERSION/*.java',
		run   => 'java -cp BUILT:JAVA Application PORT BEANS',
		beans => { before => 'PaymentService PaymentController',
			after => 'Idempotency PaymentService PaymentController' },
		diff  => [ map { [ "before/$_.java", "after/$_.java" ] } qw(PaymentController Payments PaymentService) ],
		shared => ['after/Idempotency.java'],
		undone => [
			'after/PaymentService.java',
			sub {
				my $undo = 'org.springframework.transaction.interceptor.TransactionAspectSupport'
				  . '.currentTransactionStatus().setRollbackOnly()';
				s/\(\) -> jdbc/() -> undone()/;
				s/\}\s*\z/JdbcTemplate undone() { $undo; return jdbc; } }/;
			}
		],
	},
	{
		name  => 'Prisma',
		dir   => 'prisma',
		probe => qq(cd $folder/prisma &&
			node -e "require('express'); require('\@prisma/adapter-pg'); require('.prisma/client')"),
		run    => 'node app.js VERSION.js PORT',
		diff   => [ [ 'before.js', 'after.js' ] ],
		shared => ['idempotent.js'],
	},
	{
		name  => 'Go',
		dir   => 'go',
		probe => 'go list github.com/lib/pq',
		build => 'go build -o BUILT main.go VERSION_FILES',
		run   => 'BUILT PORT',
		files => { before => 'before.go', after => 'after.go idempotent.go' },
		unreadable => { amount => 'ten' },
		diff  => [ [ 'before.go', 'after.go' ] ],
		shared => ['idempotent.go'],
	},
);

# Debian's packages of Go modules.
$ENV{GO111MODULE} = 'off';
$ENV{GOPATH}      = '/usr/share/gocode';
$ENV{GOCACHE}   //= PostgreSQL::Test::Utils::tempdir . '/gocache';
$ENV{PGSSLMODE}   = 'disable';
$ENV{PYTHONDONTWRITEBYTECODE} = 1;
$ENV{PYTHONPATH} = join ':', "$ENV{TESTDIR}/clients/python/src", $ENV{PYTHONPATH} // ();
my ($python) = grep { system("$_ -c 'import psycopg2' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);

my $node = idem_node('frameworks', bare => 1, conf => <<'CONF');
shared_preload_libraries = 'idem'
max_connections = 100
fsync = off
CONF
$node->safe_psql('postgres', slurp_file('examples/setup.sql'));
$node->safe_psql('postgres', q{SELECT idem.alter_scope('payments', max_attempts => 1)});
my $user = $node->safe_psql('postgres', 'SELECT current_user');

# A running endpoint ----------------------------------------------------------------------------------

my $built = PostgreSQL::Test::Utils::tempdir;
my ($test, %running) = ($$);
END { my $status = $?; if ($$ == ($test // 0)) { $_->kill_kill for values %running; } $? = $status; }

sub command
{
	my ($stack, $version, $template, %words) = @_;
	%words = (%words, PYTHON => $python // 'python3', JAVA => $java, VERSION => $version,
		VERSION_FILES => $stack->{files}{$version}, BEANS => $stack->{beans}{$version},
		BUILT => "$built/$stack->{dir}-$version");
	return $template =~ s/\b(PYTHON|JAVA|VERSION|VERSION_FILES|BEANS|BUILT|PORT)\b/$words{$1}/gr;
}

# Starts it, in front of the database's port. Returns its own port.
sub start
{
	my ($stack, $version, $database_port) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $log = PostgreSQL::Test::Utils::tempdir . '/endpoint.log';
	local %ENV = (%ENV, PGHOST => '127.0.0.1', PGPORT => $database_port, PGUSER => $user, PGDATABASE => 'postgres');
	my @command = split ' ', command($stack, $version, $stack->{run}, PORT => $port);
	my $run = IPC::Run::start(\@command, '>', $log, '2>&1',
		init => sub { chdir($stack->{copy} // "$folder/$stack->{dir}") or die "chdir: $!" });
	$running{$port} = $run;
	my $attempts = 20 * $PostgreSQL::Test::Utils::timeout_default;
	until (IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port))
	{
		die "$stack->{name}, $version: does not start:\n" . slurp_file($log) unless $run->pumpable && $attempts--;
		usleep(50_000);
	}
	return { port => $port, log => $log };
}

sub stop
{
	my ($endpoint) = @_;
	delete($running{ $endpoint->{port} })->kill_kill;
	return;
}

sub post
{
	my ($endpoint, $key, $request, $query) = (@_, '');
	my %headers = ('Content-Type' => 'application/json');
	$headers{'Idempotency-Key'} = qq("$key") if defined $key;
	return HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default)->post(
		"http://127.0.0.1:$endpoint->{port}/payments$query", { headers => \%headers, content => encode_json $request });
}

# The storm -------------------------------------------------------------------------------------------

my ($operations, $sends, $clients, $cuts) = (60, 3, 12, 8);
my @points = qw(effect terminated answer);
my $first = 0;

# What a client does: sends the same key until it has an answer.
sub answer_of
{
	my ($endpoint, $amount) = @_;
	while (1)
	{
		my $response = post($endpoint, "order-$amount", { amount => $amount });
		return $response->{content} =~ s/\s//gr if $response->{status} == 201;
		POSIX::_exit(1) unless $response->{status} =~ /^(?:409|5\d\d)$/;
		usleep(rand 100_000);
	}
}

# Deals the items out to clients, each a process. Returns a line for each item.
sub in_parallel
{
	my ($line_of, @items) = @_;
	my (@files, @pids);
	for my $client (0 .. $clients - 1)
	{
		push @files, PostgreSQL::Test::Utils::tempdir . "/answers";
		my $pid = fork // die "fork: $!";
		push @pids, $pid;
		next if $pid;
		append_to_file($files[-1], $line_of->($items[$_]) . "\n") for grep { $_ % $clients == $client } 0 .. $#items;
		POSIX::_exit(0);
	}
	waitpid $_, 0 for @pids;
	return map { split /\n/ } map { slurp_file($_) } grep { -e } @files;
}

# Returns the duplicates, and the operations with more than one answer.
sub storm
{
	my ($stack, $version) = @_;
	$first += 1000;
	my $not_null = $version eq 'before' ? 'DROP NOT NULL' : 'SET NOT NULL';    # before, payments have no key
	$node->safe_psql('postgres', "TRUNCATE payment; ALTER TABLE payment ALTER key $not_null");
	my $proxy = CutProxy->new($node, at => \@points, times => $cuts);
	my $endpoint = start($stack, $version, $proxy->port);
	my @answers = in_parallel(sub { "$_[0] " . answer_of($endpoint, $_[0]) },
		shuffle map { ($_) x $sends } $first + 1 .. $first + $operations);
	is($proxy->cuts, $cuts * @points, "$version: " . $cuts * @points . ' connections are cut');
	$proxy->stop;
	stop($endpoint);
	is(scalar @answers, $operations * $sends, "$version: every send is answered") or diag slurp_file($endpoint->{log});
	my ($payments, $paid) = split /\|/,
		$node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT amount) FROM payment');
	is($paid, $operations, "$version: every operation is paid");
	my %answers;
	$answers{ (split ' ', $_)[0] }{$_} = 1 for @answers;
	return ($payments - $paid, scalar grep { keys %$_ > 1 } values %answers);
}

# What clients get ------------------------------------------------------------------------------------

sub is_problem
{
	my ($response, $status, $type, $name) = @_;
	is($response->{status}, $status, "$name: $status");
	like($response->{headers}{'content-type'}, qr{^application/problem\+json}, "$name: a problem document");
	my $problem = eval { decode_json($response->{content}) } // {};
	is($problem->{type}, "urn:idem:problem:$type", "$name: $type") or diag $response->{content};
	return;
}

sub answers
{
	my ($stack) = @_;
	my $proxy = CutProxy->new($node, at => [qw(effect terminated)]);
	my $endpoint = start($stack, 'after', $proxy->port);
	my ($made, $again) = map { post($endpoint, "$stack->{dir}-1", { amount => 7 }) } 1, 2;
	is($proxy->cuts, 2, 'first request: its connection is cut twice');
	is($made->{status}, 201, 'first request: 201, at the third attempt')
	  or diag $made->{content}, slurp_file($endpoint->{log});
	is($made->{headers}{'idempotent-replayed'}, undef, 'first request: not replayed');
	is($again->{status}, 201, 'retry: 201');
	is($again->{headers}{'idempotent-replayed'}, 'true', 'retry: replayed');
	is_deeply([ map { eval { decode_json($_->{content}) } } $again ],
		[ map { eval { decode_json($_->{content}) } } $made ], 'retry: the same answer');
	is($node->safe_psql('postgres', "SELECT count(*) FROM payment WHERE key = '$stack->{dir}-1'"), 1,
		'one effect, which carries the key');

	is_problem(post($endpoint, "$stack->{dir}-1", { amount => 8 }), 422, 'key_conflict', 'another request');
	is_problem(post($endpoint, "$stack->{dir}-1", { amount => 7 }, '?a=8'), 422, 'key_conflict', 'another query')
	  if $stack->{bound};
	is_problem(post($endpoint, undef, { amount => 8 }), 400, 'invalid_key', 'no key');

	is(post($endpoint, "$stack->{dir}-4", $stack->{unreadable})->{status}, 400, 'a request that cannot be read: 400')
	  if $stack->{unreadable};

	# Undecided: its only attempt has ended without an answer.
	my $bound = ($stack->{bound} // 'BODY') =~ s/BODY/{"amount": 11}/r;
	$node->safe_psql('postgres', "SELECT idem.claim('payments', '$stack->{dir}-5', '$bound', lease => '1 us')");
	my $undecided = post($endpoint, "$stack->{dir}-5", { amount => 11 });
	is_problem($undecided, 409, 'attempts_exhausted', 'undecided');
	is($undecided->{headers}{'retry-after'}, 60, 'undecided: ask again after a minute');
	is($undecided->{headers}{'idempotent-replayed'}, undef, 'undecided: not replayed');

	# What SQL has completed may have no status.
	$node->safe_psql('postgres', "SELECT idem.complete(token, '{\"late\": true}') FROM idem.claim('payments',
		'$stack->{dir}-6', '" . ($bound =~ s/11/12/r) . "')");
	my $bare = post($endpoint, "$stack->{dir}-6", { amount => 12 });
	is("$bare->{status} $bare->{headers}{'idempotent-replayed'}", '200 true', 'an answer without a status: 200');

	# More retries of one key than the pool has connections.
	my $held = "$stack->{dir}-2";
	my $holder = $node->background_psql('postgres');
	$holder->query_safe("BEGIN; SELECT claimed FROM idem.claim('payments', '$held', '{}')");
	my @refused = in_parallel(sub {
		my $response = post($endpoint, $held, { amount => 9 });
		return "$response->{status}, Retry-After: " . ($response->{headers}{'retry-after'} // '') =~ s/^[1-9]\d*$/n/r;
	}, 1 .. $clients);
	is_deeply(\@refused, [ ('409, Retry-After: n') x $clients ], "$clients retries of a key in flight");
	is(post($endpoint, "$stack->{dir}-3", { amount => 10 })->{status}, 201, 'another payment meanwhile: 201');
	$holder->query_safe('ROLLBACK');
	$holder->quit;
	is(post($endpoint, $held, { amount => 9 })->{status}, 201, 'then the key is free: 201');
	stop($endpoint);
	$proxy->stop;
	return;
}

# An effect that the endpoint has rolled back, without an error, is not answered as if it were there.
sub undone
{
	my ($stack) = @_;
	my $copy = "$built/$stack->{dir}-copy";
	my ($file, $change) = @{ $stack->{undone} };
	system('cp', '-r', "$folder/$stack->{dir}", $copy);
	my $code = my $undone = slurp_file("$copy/$file");
	$change->() for $undone;
	isnt($undone, $code, "$file: is changed");
	unlink "$copy/$file";
	append_to_file("$copy/$file", $undone);
	my ($build, $run) = map { s/BUILT/BUILT-undone/gr } $stack->{build} // 'true', $stack->{run};
	is(system("cd $copy && " . command($stack, 'after', $build)), 0, "$file, changed: builds");
	my $proxy = CutProxy->new($node, at => []);
	my $endpoint = start({ %$stack, copy => $copy, run => $run }, 'after', $proxy->port);
	is(post($endpoint, "$stack->{dir}-1", { amount => 7 })->{status}, 201, 'the endpoint answers');
	is(post($endpoint, "$stack->{dir}-7", { amount => 7 })->{status}, 500, 'rolled back without an error: 500');
	is($node->safe_psql('postgres', "SELECT count(*) FROM payment WHERE key = '$stack->{dir}-7'"), 0, 'no effect');
	stop($endpoint);
	$proxy->stop;
	return;
}

# The page --------------------------------------------------------------------------------------------

# The code blocks of the stack's section: [language, text].
sub blocks
{
	my ($stack) = @_;
	my ($section) = $page =~ /^## \Q$stack->{name}\E\b[^\n]*\n(.*?)(?=^## |\z)/ms;
	my @blocks;
	push @blocks, [ $1, $2 ] while ($section // '') =~ /^```(\w+)\n(.*?)^```$/msg;
	return @blocks;
}

# What the page shows as the difference, and the lines that come and go.
sub difference
{
	my ($stack) = @_;
	my ($text, %lines) = ('', '+' => 0, '-' => 0);
	for my $pair (@{ $stack->{diff} })
	{
		my ($diff) = run_command([ qw(diff -U 1), map { "$folder/$stack->{dir}/$_" } @$pair ]);
		my @lines = split /\n/, $diff =~ s/^---.*\n\+\+\+.*\n\@\@.*\n//r;
		$lines{ substr $_, 0, 1 }++ for @lines;
		$text .= join('', map { s/\s+$//r . "\n" } @lines);
	}
	return ($text, $lines{'+'}, $lines{'-'});
}

sub squeeze { my ($code) = @_; return $code =~ s/\s+/ /gr =~ s/^ | $//gr; }

# Returns the columns of the table that count lines.
sub is_shown
{
	my ($stack) = @_;
	my ($difference, $added, $removed) = difference($stack);
	my ($shown) = join '', map { $_->[1] } grep { $_->[0] eq 'diff' } blocks($stack);
	if ($shown) { is($shown =~ s/ +$//mgr, $difference, 'the page shows what changes'); }
	else
	{
		my $at = "../examples/frameworks/$stack->{dir}";
		like($page, qr{\[before\]\(\Q$at\E/before[.)].*?\[after\]\(\Q$at\E/after[.)]}s,
			'the page links to what changes');
	}
	my $shared = 0;
	$shared += () = slurp_file("$folder/$stack->{dir}/$_") =~ /\n/g for @{ $stack->{shared} };
	return "$added / $removed | $shared";
}

# Running them ----------------------------------------------------------------------------------------

my %wanted = map { $_ => 1 } split ' ', $ENV{IDEM_FRAMEWORKS} // join ' ', map { $_->{dir} } @stacks;
for my $stack (@stacks)
{
	subtest "$stack->{name}: the page" => sub { $stack->{lines} = is_shown($stack); };
  SKIP:
	{
		skip "$stack->{name}: not asked for", 1 unless $wanted{ $stack->{dir} };
		my $probe = command($stack, '', $stack->{probe});
		skip "$stack->{name}: not installed; tools/setup examples installs it", 1 if system("($probe) >/dev/null 2>&1");
		subtest $stack->{name} => sub {
			for my $version ($stack->{build} ? qw(before after) : ())
			{
				my $build = command($stack, $version, $stack->{build});
				is(system("cd $folder/$stack->{dir} && $build"), 0, "$version: builds") or return;
			}
			answers($stack);
			undone($stack) if $stack->{undone};
			my ($before) = storm($stack, 'before');
			my ($after, $differing) = storm($stack, 'after');
			# Each send but the first, and each retry after a COMMIT whose answer was cut.
			is($before, $operations * ($sends - 1) + $cuts, 'before: duplicates');
			is($after, 0, 'after: no duplicates');
			is($differing, 0, 'after: one answer for each payment');
			my $row = "| $stack->{name} | $stack->{lines} | $before | $after |";
			ok($page =~ /^\Q$row\E$/m, "as in the page's table: $row");
		};
	}
}
$node->safe_psql('postgres', $_) for $page =~ /^```sql\n(.*?)^```$/msg;
my $figures = "each of $operations payments $sends times to each endpoint. Meanwhile, " . $cuts * @points
	. ' connections are cut';
ok(squeeze($page) =~ /\Q$figures\E/, "the page says: $figures");

is(locks($node), 0, 'no key lock is left');
log_is_clean($node);
$node->stop;
done_testing();
