#!/usr/bin/env ruby
# A payment that is made once, however often it is asked for (ruby-pg).
#
#   pay.rb KEY AMOUNT
#
# Prints the answer as JSON; an error goes to standard error as a problem document (RFC 9457). Connects
# as PGHOST, PGPORT, PGDATABASE and PGUSER say, to a database with the scope and table of setup.sql.
require 'pg'

ATTEMPTS = 10
# Nothing is wrong with the request: the connection is lost, a race is lost, the server is short of
# something or restarting, another try is at it, too many came at once.
TRANSIENT = /\A(08|40|53|57P|ID001|ID009)/

# Claim, effect and complete, in one transaction.
def pay_once(connection, key, amount)
  connection.transaction do
    claim = connection.exec_params(<<~SQL, [key, amount]).first
      SELECT claimed, token, response FROM idem.claim('payments', $1, jsonb_build_object('amount', $2::numeric))
    SQL
    next claim['response'] if claim['claimed'] == 'f' # a retry: the first answer

    payment = connection.exec_params(
      'INSERT INTO payment (amount) VALUES ($1) RETURNING to_jsonb(payment)', [amount]
    ).getvalue(0, 0)
    connection.exec_params('SELECT idem.complete($1, $2)', [claim['token'], payment]).getvalue(0, 0)
  end
end

# Tries with the same key until there is an answer, or an error that will not pass.
def pay(key, amount)
  attempt = 1
  begin
    connected { |connection| pay_once(connection, key, amount) }
  rescue PG::Error => e
    raise if attempt == ATTEMPTS || !transient?(e)

    sleep [retry_after(e), rand * [5, 0.05 * 2**attempt].min].max
    attempt += 1
    retry
  end
end

def connected
  connection = PG.connect
  yield connection
ensure
  connection&.finish
end

def field(error, name)
  error.result&.error_field(name)
end

def transient?(error)
  state = field(error, PG::PG_DIAG_SQLSTATE)
  state.nil? || state.match?(TRANSIENT) # no state: it is not from the server, the connection is lost
end

# Seconds: the hints of ID001 and ID009 say "after 1.5 seconds".
def retry_after(error)
  field(error, PG::PG_DIAG_MESSAGE_HINT).to_s[/after ([\d.]+) seconds/, 1].to_f
end

def problem(error)
  parameters = [PG::PG_DIAG_SQLSTATE, PG::PG_DIAG_MESSAGE_PRIMARY].map { |name| field(error, name) }
  connected { |connection| connection.exec_params('SELECT idem.problem($1, $2)', parameters).getvalue(0, 0) }
end

begin
  key, amount = ARGV
  puts pay(key, amount)
rescue PG::Error => e
  raise unless field(e, PG::PG_DIAG_SQLSTATE)

  abort problem(e)
end
