# For controllers: runs a block once per Idempotency-Key, in one transaction with its effect.
module Idempotent
  # Lost connections and races, a lack of resources, a restart of the server.
  TRANSIENT = /\A(08|40|53|57P)/

  private

  # The block returns a status and a document. It may run more than once.
  def once(scope, attempts: 3, &work)
    status, document, replayed = retried(attempts) { answer(scope, &work) || raise('rolled back') }
    headers['Idempotent-Replayed'] = 'true' if replayed
    render status: status, json: document
  rescue ActiveRecord::StatementInvalid => e
    sqlstate(e)&.match?(/\A(ID|22)/) ? refuse(e) : raise
  end

  def answer(scope)
    key = request.headers['Idempotency-Key'].to_s.delete_prefix('"').delete_suffix('"')
    ActiveRecord::Base.transaction do
      claim = row(<<~SQL, scope, key, request.fullpath, request.raw_post)
        SELECT claimed, token, status, response FROM idem.claim(
          ?, ?, jsonb_build_object('url', ?, 'body', ?::jsonb), wait => '1 second')
      SQL
      next [claim['status'], claim['response'], true] unless claim['claimed']

      status, document = yield
      stored = row('SELECT idem.complete(?, ?::jsonb, ?) AS response',
                   claim['token'], document.to_json, status)
      [status, stored['response'], false]
    end
  end

  def retried(attempts)
    yield
  rescue ActiveRecord::StatementInvalid, ActiveRecord::ConnectionNotEstablished => e
    raise if (attempts -= 1).zero? || !(sqlstate(e) || '08').match?(TRANSIENT)

    ActiveRecord::Base.connection_pool.release_connection # the next one is verified
    sleep rand * 0.1
    retry
  end

  def refuse(error)
    problem = row('SELECT idem.problem(?, ?) AS document, idem.http_status(?) AS status',
                  sqlstate(error), field(error, PG::PG_DIAG_MESSAGE_PRIMARY), sqlstate(error))
    milliseconds = field(error, PG::PG_DIAG_DATATYPE_NAME) # of ID001, ID009 and ID014
    headers['Retry-After'] = (milliseconds.to_f / 1000).ceil.to_s if milliseconds
    render status: problem['status'], json: problem['document'],
           content_type: 'application/problem+json'
  end

  # exec_query does not use the query cache, which would return a claim a second time.
  def row(sql, *values)
    sql = ActiveRecord::Base.sanitize_sql([sql, *values])
    ActiveRecord::Base.connection.exec_query(sql).first
  end

  def sqlstate(error)
    field(error, PG::PG_DIAG_SQLSTATE)
  end

  # A lost connection is an error without a result.
  def field(error, name)
    error.cause.result&.error_field(name) if error.cause.is_a?(PG::Error)
  end
end
