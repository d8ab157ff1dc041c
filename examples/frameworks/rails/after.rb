require_relative 'idempotent'

class PaymentsController < ActionController::API
  include Idempotent

  def create
    once('payments') do
      payment = Payment.create!(amount: params.require(:amount))
      [201, { payment: payment.id }]
    end
  end
end
