# Two servers with one identity: what one has begun or answered, the other continues and replays;
# a session of the importing server notices the import; an import waits for a claim in flight.
use strict;
use warnings;

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $first = idem_node('first', bare => 1);
my $second = idem_node('second', bare => 1);
for my $node ($first, $second)
{
	$node->safe_psql('postgres', 'CREATE ROLE shop; CREATE EXTENSION idem');
}
$first->safe_psql('postgres', <<'SQL');
SELECT idem.create_scope('dropped'), idem.create_scope('orders', owner => 'shop', store_request => 'always');
SELECT idem.drop_scope('dropped'), idem.rotate_secret();
SELECT idem.create_scope('listed', owner => 'shop', request_exclude => '{x}');
SELECT idem.once('listed', 'k', '{"x": 1, "y": 1}');
SELECT idem.alter_scope('listed', request_exclude => '{y}');
SQL

# The second server has been tried out: it has scopes, secrets and an old session that cached both.
$second->safe_psql('postgres', q{SELECT idem.create_scope('orders', owner => 'shop', store_request => 'always')});
my $session = $second->background_psql('postgres', on_error_stop => 1);
my $derive = q{SELECT idem.child_key(token, 'charge') FROM idem.claim('orders', 'tried')};
my $derived = sub {
	$session->query_safe('BEGIN');
	my $key = $session->query_safe($derive);
	$session->query_safe('ROLLBACK');
	return $key
};
my $old_key = $derived->();
$session->query_safe(q{BEGIN; SELECT idem.once('orders', 'tried', '{"n": 1}'); ROLLBACK});
sub identity { return $_[0]->safe_psql('postgres', 'SELECT idem.export_identity()') }
sub import_identity { return $second->safe_psql('postgres', "SELECT idem.import_identity('@{[ identity($first) ]}')") }
isnt(identity($second), identity($first), 'two servers have identities of their own');

# An import waits for a claim in flight, and finds its record.
$session->query_safe('BEGIN');
my $open = $session->query_safe(q{SELECT token FROM idem.claim('orders', 'in flight')});
my ($out, $err) = ('', '');
my $importer = IPC::Run::start(
	[ 'psql', '-XqAt', '-v', 'VERBOSITY=verbose', '-d', $second->connstr('postgres') . " application_name='importer'",
	'-c', "SELECT idem.import_identity('@{[ identity($first) ]}')" ], '>', \$out, '2>', \$err);
ok($second->poll_query_until('postgres', q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity
	WHERE application_name = 'importer'}), 'an import waits for a claim in flight');
$session->query_safe("SELECT idem.complete('$open'); COMMIT");
$importer->finish;
like($err,
	qr/ERROR:  55000: the identity does not fit.*\nDETAIL:.*would get id 2 instead of 1\. Keys of this database/,
	'and refuses to orphan its record');
like($err, qr/would not be found again\. It has 1 unexpired records and 0 watermarks\.\nHINT:/, 'which it counts');
$second->safe_psql('postgres', q{SELECT idem.forget('orders', 'in flight')});

import_identity();
is(identity($second), identity($first), 'after an import, the identities are the same');
my $new_key = $derived->();
is($new_key, $first->safe_psql('postgres', "BEGIN; $derive; ROLLBACK"), 'an old session makes the same child keys');
isnt($new_key, $old_key, 'and no longer its own');

# With a snapshot that still sees what was dropped meanwhile, an import would leave it out.
for my $change ([ scopes => q{SELECT idem.drop_scope('orders')} ],
	[ secrets => 'UPDATE idem.secret SET created = created WHERE id = 1' ])
{
	my ($what, $sql) = @$change;
	my $late = $second->background_psql('postgres', on_error_stop => 0);
	$late->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM idem.scope');
	$second->safe_psql('postgres', $sql);
	my ($said, $failed) = $late->query("SELECT idem.import_identity('@{[ identity($first) ]}')");
	like($late->{stderr}, qr/could not serialize access/, "an import does not rely on an old snapshot: $what");
	$late->quit;
	import_identity();
	is(identity($second), identity($first), "and can be repeated: $what");
}

# What the first server has begun and answered is copied, row by row.
my $token = $first->safe_psql('postgres', <<'SQL');
SELECT idem.complete(token, '{"answer": 42}') FROM idem.claim('orders', 'done', '{"n": 1}') \g /dev/null
SELECT idem.advance('orders', 'stream', 7) \g /dev/null
SELECT token FROM idem.claim('orders', 'leased', '{"n": 1}', lease => '1 hour') \gset
SELECT idem.checkpoint(:'token', 'charged', '{"charge": 1}') \g /dev/null
SELECT :'token'
SQL
for my $table ('idem.record', 'idem.watermark')
{
	my $file = $first->basedir . "/$table";
	$first->safe_psql('postgres', "COPY $table TO '$file'");
	$second->safe_psql('postgres', "COPY $table FROM '$file'");
}
my $outcome = sub { $session->query_safe("SELECT outcome, response, differs
	FROM idem.try_claim('orders', '$_[0]', '{\"n\": $_[1]}')") };
is($outcome->('done', 1), 'completed|{"answer": 42}|', 'the second server replays an answer of the first');
is($outcome->('done', 2), 'conflict||{n}', 'it tells another request, and where it differs');
is($session->query_safe(q{SELECT string_agg(c.outcome, ',' ORDER BY n)
	FROM (VALUES (1, '{"x": 2, "y": 1}'::jsonb), (2, '{"x": 1, "y": 2}')) v (n, request),
	idem.try_claim('listed', 'k', request) c}),
	'completed,conflict', 'it compares a request by the list that the first server used, not by the present one');
is($session->query_safe(q{SELECT idem.advance('orders', 'stream', 7)}), 'f', 'it knows how far a stream has come');
is($outcome->('leased', 1), 'in_progress||', 'it knows a running lease');
my $child = "SELECT idem.child_key('$token', 'charge')";
is($session->query_safe($child), $first->safe_psql('postgres', $child), 'child keys of the lease are the same');
$session->query_safe("SELECT idem.complete('$token', '{\"answer\": 43}')");
is($outcome->('leased', 1), 'completed|{"answer": 43}|', 'the holder completes it there');

# Rotated on the first server only. Its records need the new secret.
$first->safe_psql('postgres', 'SELECT idem.rotate_secret()');
import_identity();
$first->safe_psql('postgres', q{SELECT idem.once('orders', 'rotated', '{"n": 1}')});
my $file = $first->basedir . '/rotated';
$first->safe_psql('postgres', "COPY (SELECT * FROM idem.record WHERE key = 'rotated') TO '$file'");
$second->safe_psql('postgres', "COPY idem.record FROM '$file'");
is($outcome->('rotated', 1), 'completed||', 'an old session compares under a secret that was imported');
is($outcome->('rotated', 2), 'conflict||{n}', 'in both directions');

# The ids of new scopes continue after those of the first server.
$session->query_safe(q{SELECT idem.create_scope('new here')});
is($second->safe_psql('postgres', q{SELECT id FROM idem.scope WHERE name = 'new here'}), '4',
	'no id of the first server is given twice');
$session->quit;
done_testing();
