# What the TAP tests share: a node with idem and the payments procedure, and a look at its log.
package IdemTest;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(idem_node install_payments claim_open effects locks log_is_clean);

# A running node whose settings do not depend on the machine's speed.
sub idem_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(%{ $options{init} // {} });
	$node->append_conf('postgresql.conf', <<"CONF");
max_prepared_transactions = 10
restart_after_crash = on
autovacuum = off
$options{conf}
CONF
	$node->start;
	install_payments($node) unless $options{bare};
	return $node;
}

# pay() is the README's procedure; the effect carries its key, so that a second one shows.
sub install_payments
{
	my ($node, $database) = @_;
	$node->safe_psql($database // 'postgres', <<'SQL');
CREATE EXTENSION idem;
SELECT idem.create_scope('payments');
CREATE TABLE payment (id bigserial PRIMARY KEY, key text, amount numeric);
CREATE FUNCTION pay(key text, request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c idem.claim_result; payment_id bigint;
BEGIN
  c := idem.claim('payments', key, request);
  IF NOT c.claimed THEN RETURN c.response; END IF;
  INSERT INTO payment(key, amount) VALUES (key, (request->>'amount')::numeric) RETURNING id INTO payment_id;
  RETURN idem.complete(c.token, jsonb_build_object('payment', payment_id));
END $$;
SQL
	return;
}

# SQL that claims a key, makes the effect and leaves the transaction open, the token in :token.
sub claim_open
{
	my ($key) = @_;
	return <<"SQL";
BEGIN;
SELECT token FROM idem.claim('payments', '$key', '{"amount": 1}') \\gset
INSERT INTO payment(key, amount) VALUES ('$key', 1);
SQL
}

sub effects
{
	my ($node, $key) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM payment WHERE key = '$key'");
}

sub locks
{
	my ($node) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'");
}

# Nothing crashed that the test did not kill, and nothing leaked.
sub log_is_clean
{
	my ($node, %options) = @_;
	my $log = slurp_file($node->logfile);
	my $crash = qr/PANIC|TRAP:|terminated by signal (?!9)/;
	$crash = qr/PANIC|TRAP:|terminated by signal/ unless $options{killed};
	unlike($log, $crash, $node->name . ': no crash in the log');
	unlike($log, qr/don't own a lock|leak: |snapshot .* still active|still holds/,
		$node->name . ': nothing leaked');
	return;
}

1;
