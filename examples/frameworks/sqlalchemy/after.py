from flask import Flask, request
from pg_idem.sqlalchemy import Idempotency
from pg_idem.wsgi import IdempotencyMiddleware
from sqlalchemy import Column, Integer, Numeric, Text, create_engine, text
from sqlalchemy.orm import declarative_base, sessionmaker

app = Flask(__name__)
engine = create_engine("postgresql://", future=True)
Session = sessionmaker(engine, future=True)
app.wsgi_app = IdempotencyMiddleware(
    app.wsgi_app, Idempotency(Session.begin, wait=1.0), "payments")
app.config["PROPAGATE_EXCEPTIONS"] = True


class Payment(declarative_base()):
    __tablename__ = "payment"
    id = Column(Integer, primary_key=True)
    key = Column(Text, nullable=False, server_default=text("idem.current_key()"))
    amount = Column(Numeric, nullable=False)


@app.post("/payments")
def pay():
    session = request.environ["idem.connection"]
    payment = Payment(amount=request.json["amount"])
    session.add(payment)
    session.flush()
    return {"payment": payment.id}, 201
