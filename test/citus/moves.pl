# A shard is moved or split while an operation of its tenant is open, and an operation is called while
# its shard is being moved or split: the one that comes second waits, and afterwards each key has
# one effect, one answer and one record, on the node that has the shard. And what examples/citus refuses.
use strict;
use warnings;

use CitusTest;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @node = citus_cluster();
my ($coordinator, @worker) = @node;

sub shard_of
{
	my ($tenant) = @_;
	return ask($coordinator, "SELECT get_shard_id_for_distribution_column('app.payment', $tenant)");
}

sub home_of
{
	my ($tenant) = @_;
	my $port = ask($coordinator, 'SELECT nodeport FROM citus_shards WHERE shardid = ' . shard_of($tenant));
	my ($home) = grep { $_->port == $port } @node;
	return $home;
}

# Two workers that do not have the tenant's shard.
sub others { my ($tenant) = @_; my $home = home_of($tenant); return grep { $_ != $home } @worker; }

sub id_of
{
	my ($node) = @_;
	return ask($coordinator, 'SELECT nodeid FROM pg_dist_node WHERE nodeport = ' . $node->port);
}

# SQL that takes the shard of the tenant to other workers.
sub move
{
	my ($tenant, $mode) = @_;
	my ($target) = others($tenant);
	return sprintf "SELECT citus_move_shard_placement(%d, %s, %s, '%s');", shard_of($tenant), place(home_of($tenant)),
		place($target), $mode;
}

sub split_in_two
{
	my ($tenant, $mode, @to) = @_;
	@to = others($tenant) unless @to;
	my $shard = shard_of($tenant);
	my $middle = ask($coordinator, "SELECT (shardminvalue::bigint + shardmaxvalue::bigint) / 2 FROM pg_dist_shard
		WHERE shardid = $shard");
	return sprintf "SELECT citus_split_shard_by_split_points(%d, '{%d}', '{%s}', '%s');", $shard, $middle,
	  join(',', map { id_of($_) } @to), $mode;
}

sub waiting { return grep { ask($_, 'SELECT count(*) FROM pg_locks WHERE NOT granted') > 0 } @node; }

sub wait_until_one_waits
{
	for (1 .. 600) { return 1 if waiting(); select undef, undef, undef, 0.1; }
	die 'nothing waits';
}

# Starts SQL in a session that does not wait for it.
sub start
{
	my ($sql) = @_;
	my $session = $coordinator->background_psql('postgres', on_error_stop => 0);
	$session->query_until(qr/started/, "\\set VERBOSITY verbose\n\\echo started\n$sql\n");
	return $session;
}

# Waits for its end. Returns what it printed, results and errors.
sub finish
{
	my ($session) = @_;
	my $out = $session->query('\echo');
	my $err = $session->{stderr};
	$session->{stderr} = '';
	$session->quit;
	return "$out$err";
}

# Each operation: what comes before it (its result is the token, if it has one), and its call.
my $request = q{'{"amount": 1}'};
my %operation = (
	claim => [ sub { '' }, sub { my ($t) = @_; "SELECT app.pay($t, 'key', $request);" } ],
	renew => [
		sub { my ($t) = @_; "SELECT token FROM app.begin_payment($t, 'key', $request)" },
		sub { my ($t, $token) = @_; "SELECT app.renew_payment($t, '$token');" } ],
	complete => [
		sub { my ($t) = @_; "SELECT token FROM app.begin_payment($t, 'key', $request)" },
		sub { my ($t, $token) = @_; "SELECT app.finish_payment($t, '$token', 'key', 1);" } ]);

# Ends the operation as a client would, and sends it again.
sub once
{
	my ($name, $tenant, $token) = @_;
	ask($coordinator, $operation{complete}[1]->($tenant, $token)) if $token && ask($coordinator,
		"SELECT count(*) FROM app.payment WHERE tenant_id = $tenant") == 0;
	my @answers = map { ask($_, $operation{claim}[1]->($tenant)) } @node;
	is(scalar(grep { $_ eq $answers[0] && /payment/ } @answers), 4, "$name: the same answer from every node");
	is(ask($coordinator, "SELECT count(*) FROM app.payment WHERE tenant_id = $tenant"), 1, "$name: one effect");
	is(ask($coordinator, "SELECT count(*) FROM app.records WHERE tenant_id = $tenant"), 1,
		"$name: one record, with the effect");
	return;
}

my $tenant = 0;
my %change = (move => \&move, split => \&split_in_two);
for my $what (sort keys %operation)
{
	for my $change (sort keys %change)
	{
		for my $mode (qw(block_writes force_logical))
		{
			my ($before, $call) = @{ $operation{$what} };

			$tenant++;
			my $name = "$what before a $change, $mode";
			my $token = $before->($tenant) ? ask($coordinator, $before->($tenant)) : undef;
			my $home = home_of($tenant);
			my $open = $coordinator->background_psql('postgres');
			$open->query('BEGIN; ' . $call->($tenant, $token));
			my $mover = start($change{$change}->($tenant, $mode));
			wait_until_one_waits();
			is(home_of($tenant), $home, "$name: the $change waits");
			$open->query('COMMIT');
			$open->quit;
			unlike(finish($mover), qr/ERROR/, "$name: the $change succeeds");
			isnt(home_of($tenant), $home, "$name: the shard is elsewhere");
			once($name, $tenant, $token);

			$tenant++;
			$name = "$what during a $change, $mode";
			$token = $before->($tenant) ? ask($coordinator, $before->($tenant)) : undef;
			$home = home_of($tenant);
			my $moving = $coordinator->background_psql('postgres');
			$moving->query('BEGIN; ' . $change{$change}->($tenant, $mode));
			my $caller = start($call->($tenant, $token));
			wait_until_one_waits();
			$moving->query('COMMIT');
			$moving->quit;
			like(finish($caller), qr/57S01/, "$name: the call is refused after the $change");
			is(ask($coordinator, "SELECT count(*) FROM app.payment WHERE tenant_id = $tenant"), 0,
				"$name: without effect");
			isnt(home_of($tenant), $home, "$name: the shard is elsewhere");
			ask($coordinator, $call->($tenant, $token));
			once($name, $tenant, $token);
		}
	}
}

# The copy that Citus has not dropped yet, beside the shard on the same node, is not used: the token names it.
$tenant++;
configure($coordinator, 'citus.defer_shard_delete_interval', '-1');
my $token = ask($coordinator, $operation{complete}[0]->($tenant));
my ($here, $old) = (home_of($tenant),
	ask($coordinator,
		"SELECT shard_name('app.records', get_shard_id_for_distribution_column('app.records', $tenant))"));
ask($coordinator, split_in_two($tenant, 'block_writes', $here, $here));
is(ask($here, "SELECT state FROM $old WHERE tenant_id = $tenant"), 'p', 'a copy left behind: is there, unfinished');
once('a copy left behind', $tenant, $token);
is(ask($here, "SELECT state FROM $old WHERE tenant_id = $tenant"), 'p', 'a copy left behind: stays as it is');
configure($coordinator, 'citus.defer_shard_delete_interval', '1s');

# The split of another shard changes the number by which Citus locks a shard. A transaction that is open
# across it does not hold up a move of its own shard, which then loses what the transaction wrote. So the
# fence lets the split wait.
sub tenant_at
{
	my ($end) = @_;
	return ask($coordinator, <<"SQL");
SELECT min(i) FROM generate_series(100, 10000) i WHERE get_shard_id_for_distribution_column('app.payment', i) =
  (SELECT shardid FROM pg_dist_shard WHERE logicalrelid = 'app.payment'::regclass ORDER BY shardminvalue::integer $end
  LIMIT 1)
SQL
}

sub across_a_split
{
	my ($fenced) = @_;
	my ($lowest, $highest) = map { tenant_at($_) } qw(ASC DESC);
	my $key = $fenced ? 'key' : 'lost';
	my $open = $coordinator->background_psql('postgres');
	$open->query("BEGIN; SELECT app.pay($highest, '$key', $request)");
	my $splitter = start(split_in_two($lowest, 'block_writes'));
	if ($fenced)
	{
		wait_until_one_waits();
		$open->query('COMMIT');
	}
	unlike(finish($splitter), qr/ERROR/, 'a split of another shard succeeds');
	ask($coordinator, move($highest, 'block_writes'));
	$open->query('COMMIT') unless $fenced;
	$open->quit;
	return $highest;
}

once('a split of another shard', across_a_split(1));
my $fence = ask($coordinator, q{SELECT pg_get_functiondef('app.use_shard'::regproc)});
ask($coordinator, $fence =~ s/lock_relation_if_exists\(records::text, 'SHARE'\)/pg_typeof(records)/r);
across_a_split(0);
is(ask($coordinator, q{SELECT count(*) FROM app.payment WHERE key = 'lost'}), 0,
	'control: without the lock for it, the committed effect is lost');
ask($coordinator, $fence);

# What is refused, without effect.
sub refused
{
	my ($code, $name, $sql, $on) = @_;
	is(sqlstate($on // $coordinator, $sql), $code, "$name: refused with $code");
	is(ask($coordinator, q{SELECT count(*) FROM app.payment WHERE key = 'refused'}), 0, "$name: no effect");
	is(ask($coordinator, q{SELECT count(*) FROM app.records WHERE key = 'refused'}), 0, "$name: no record");
	return;
}

my $call = "app.pay(50, 'refused', $request)";
my $home = home_of(50);
my ($elsewhere) = others(50);
refused('57S01', 'a call as a simple expression of a block', "DO \$\$ BEGIN PERFORM $call; END \$\$");
refused('57S01', 'a call with another column', "SELECT $call, 1");
refused('57S01', 'a call with a volatile argument',
	"SELECT app.pay(50, 'refused', jsonb_build_object('amount', random()))");
refused('57S01', 'a call in a subquery', "SELECT (SELECT $call)");
refused('57S01', 'a call for each row', "SELECT $call FROM generate_series(1, 2)");
refused('57S01', 'a call on another worker', "DO \$\$ BEGIN PERFORM $call; END \$\$", $elsewhere);
refused('25000', 'another isolation level', "BEGIN ISOLATION LEVEL $_; SELECT $call", $home)
  for ('REPEATABLE READ', 'SERIALIZABLE');
refused('ID011', 'an effect without a claim', q{INSERT INTO app.payment(tenant_id, key) VALUES (50, 'refused')});
my ($foreign) = grep { home_of($_) != $home } 51 .. 99;
refused('ID011', 'an effect for a tenant on another node', <<"SQL", $home);
DO \$\$ BEGIN
  PERFORM app.use_shard('app.records', '50'), idem.claim('payments', 'refused', '{}', '50');
  INSERT INTO app.payment(tenant_id, key) VALUES ($foreign, 'refused');
END \$\$
SQL

# At commit, idem is asked before Citus commits on another node.
ask($coordinator, q{CREATE TABLE app.note (tenant_id bigint, note text);
	SELECT create_distributed_table('app.note', 'tenant_id')});
refused('ID006', 'an open claim, and a row on another node', <<"SQL", $home);
BEGIN;
SELECT app.use_shard('app.records', '50'), idem.claim('payments', 'refused', '{}', '50');
INSERT INTO app.note VALUES ($foreign, 'refused');
COMMIT;
SQL
is(ask($coordinator, 'SELECT count(*) FROM app.note'), 0, 'an open claim: the other node has no row');

# Callers need no privileges on the records.
ask($coordinator, 'CREATE ROLE clerk LOGIN; GRANT USAGE ON SCHEMA app TO clerk;
	GRANT SELECT, INSERT ON app.payment TO clerk');
ask($coordinator, q{SELECT * FROM run_command_on_all_nodes($$SELECT idem.alter_scope('payments', owner => 'clerk')$$)});
sub as_clerk { my ($sql) = @_; return $coordinator->psql('postgres', $sql, extra_params => [ '-U', 'clerk' ]); }
my ($status, $out, $error) = as_clerk("SELECT app.pay(60, 'key', $request)");
like("$out$error", qr/"payment"/, 'a role without privileges on the records: its call runs');
($status, $out, $error) = as_clerk('SELECT * FROM app.records');
like($error, qr/permission denied for table records/, 'a role without privileges on the records: cannot read them');
once('a role without privileges on the records', 60);

# A tenant's schema is one shard.
run_example($coordinator, 'tenant_schema', tenant => 'acme');
my $paid = ask($coordinator, "SELECT acme.pay('key', $request)");
for my $mode (qw(block_writes force_logical))
{
	my ($target) =
		grep { $_->port != ask($coordinator, q{SELECT nodeport FROM citus_shards
			WHERE table_name = 'acme.payment'::regclass}) } @worker;
	ask($coordinator, "SELECT citus_schema_move('acme', " . place($target) . ", '$mode')");
	is(ask($_, "SELECT acme.pay('key', $request)"), $paid,
		"a tenant's schema moved, $mode: the same answer from every node") for @node;
}
is(ask($coordinator, 'SELECT count(*) FROM acme.payment'), 1, "a tenant's schema moved: one effect");

# A new node knows no scope until it has the identity.
push @node, citus_node('worker4');
ask($coordinator, 'SELECT citus_add_node(' . place($node[4]) . ')');
my $answer = ask($coordinator, "SELECT $call");
ask($coordinator, sprintf "SELECT citus_move_shard_placement(%d, %s, %s, 'block_writes')", shard_of(50),
	place(home_of(50)), place($node[4]));
is(sqlstate($coordinator, "SELECT $call"), 'ID008', 'a node without identity: every call is refused');
run_example($coordinator, 'identity');
is(ask($_, "SELECT $call"), $answer, 'a node with identity: the same answer from ' . $_->name) for @node;

log_is_clean($_) for @node;
$_->stop for @node;
done_testing();
