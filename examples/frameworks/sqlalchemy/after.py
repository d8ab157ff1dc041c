from flask import Flask, g, request
from pg_idem.flask import idempotent
from pg_idem.sqlalchemy import Idempotency
from sqlalchemy import Column, Integer, Numeric, Text, create_engine, text
from sqlalchemy.orm import declarative_base, sessionmaker

app = Flask(__name__)
engine = create_engine("postgresql://", future=True)
Session = sessionmaker(engine, future=True)


class Payment(declarative_base()):
    __tablename__ = "payment"
    id = Column(Integer, primary_key=True)
    key = Column(Text, nullable=False, server_default=text("idem.current_key()"))
    amount = Column(Numeric, nullable=False)


@app.post("/payments")
@idempotent(Idempotency(Session.begin, wait=1.0), "payments", tenant=None)
def pay():
    payment = Payment(amount=request.json["amount"])
    g.idem_connection.add(payment)
    g.idem_connection.flush()
    return {"payment": payment.id}, 201
