# Runs the statements of standard input with ruby-pg, and prints the result of each.
require 'pg'

MODE = ARGV.shift
FIELDS = [PG::PG_DIAG_SQLSTATE, PG::PG_DIAG_SCHEMA_NAME, PG::PG_DIAG_CONSTRAINT_NAME,
          PG::PG_DIAG_DATATYPE_NAME, PG::PG_DIAG_COLUMN_NAME].freeze

def parameter(field, saved)
  kind, value = field.split(':', 2)
  return nil if kind == 'null'

  value.start_with?('$') ? saved[value[1..]] : value
end

def result(connection, statement, parameters)
  if MODE == 'prepared'
    connection.prepare('', statement)
    connection.exec_prepared('', parameters).getvalue(0, 0)
  else
    connection.exec_params(statement, parameters).getvalue(0, 0)
  end
rescue PG::Error => e
  ['ERROR', *FIELDS.map { |field| e.result.error_field(field) || '-' }].join(' ')
end

connection = PG.connect
saved = {}
$stdin.each_line(chomp: true) do |line|
  name, statement, *fields = line.split("\t", -1)
  saved[name] = result(connection, statement, fields.map { |field| parameter(field, saved) })
  puts saved[name]
end
