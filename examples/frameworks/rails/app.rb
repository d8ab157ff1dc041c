# Serves one of the Rails endpoints: app.rb after.rb PORT
ENV['RAILS_ENV'] = 'production'
ENV['DATABASE_URL'] ||= "postgresql:///#{ENV['PGDATABASE']}?pool=10"
require 'rails'
require 'active_record/railtie'
require 'action_controller/railtie'
require 'puma'

class Shop < Rails::Application
  config.eager_load = false
  config.secret_key_base = 'of the example'
  config.logger = Logger.new($stderr, level: Logger::FATAL)
end

Shop.initialize!
Shop.routes.draw { post '/payments', to: 'payments#create' }

class Payment < ActiveRecord::Base
  self.table_name = 'payment'
end

require_relative ARGV[0]
server = Puma::Server.new(Shop, Puma::Events.null, max_threads: 10)
server.add_tcp_listener('127.0.0.1', ARGV[1])
server.run.join
