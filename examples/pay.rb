#!/usr/bin/env ruby
# Makes a payment exactly once, however often it is requested (ruby-pg).
#
#   pay.rb KEY AMOUNT
#
# Prints the answer as JSON. Prints an error to standard error as a problem document (RFC 9457).
# Connects to the database that PGHOST, PGPORT, PGDATABASE and PGUSER name. The database needs
# the scope and the table of setup.sql.
require 'pg'

ATTEMPTS = 10
# Errors that a retry can cure: a lost connection (08), a lost race (40), a lack of resources
# (53), a restart of the server (57P), a key that another caller holds (ID001), a limit (ID009), an
# operation without attempts left (ID014).
TRANSIENT = /\A(08|40|53|57P|ID001|ID009|ID014)/

# Claims the key, makes the payment and completes the claim, in one transaction.
def pay_once(connection, key, amount)
  connection.transaction do
    claim = connection.exec_params(<<~SQL, [key, amount]).first
      SELECT claimed, token, response
        FROM idem.claim('payments', $1, jsonb_build_object('amount', $2::numeric))
    SQL
    next claim['response'] if claim['claimed'] == 'f' # a retry gets the first answer

    payment = connection.exec_params(
      'INSERT INTO payment (amount) VALUES ($1) RETURNING to_jsonb(payment)', [amount]
    ).getvalue(0, 0)
    connection.exec_params('SELECT idem.complete($1, $2)', [claim['token'], payment]).getvalue(0, 0)
  end
end

# Retries with the same key until there is an answer, or an error that a retry cannot cure.
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
  state.nil? || state.match?(TRANSIENT) # no state: not from the server, the connection is lost
end

# The time to wait, in seconds. ID001, ID009 and ID014 have it in a field, in milliseconds.
def retry_after(error)
  return 0 unless %w[ID001 ID009 ID014].include?(field(error, PG::PG_DIAG_SQLSTATE))

  field(error, PG::PG_DIAG_DATATYPE_NAME).to_i / 1000.0
end

def problem(error)
  parameters = [PG::PG_DIAG_SQLSTATE, PG::PG_DIAG_MESSAGE_PRIMARY].map { |name| field(error, name) }
  connected do |connection|
    connection.exec_params('SELECT idem.problem($1, $2)', parameters).getvalue(0, 0)
  end
end

begin
  key, amount = ARGV
  puts pay(key, amount)
rescue PG::Error => e
  raise unless field(e, PG::PG_DIAG_SQLSTATE)

  abort problem(e)
end
