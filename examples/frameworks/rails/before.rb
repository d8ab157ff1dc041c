class PaymentsController < ActionController::API
  def create
    payment = Payment.create!(amount: params.require(:amount))
    render json: { payment: payment.id }, status: :created
  end
end
