from flask import Flask, request
from sqlalchemy import Column, Integer, Numeric, create_engine
from sqlalchemy.orm import declarative_base, sessionmaker

app = Flask(__name__)
engine = create_engine("postgresql://", future=True)
Session = sessionmaker(engine, future=True)


class Payment(declarative_base()):
    __tablename__ = "payment"
    id = Column(Integer, primary_key=True)
    amount = Column(Numeric, nullable=False)


@app.post("/payments")
def pay():
    with Session.begin() as session:
        payment = Payment(amount=request.json["amount"])
        session.add(payment)
        session.flush()
        return {"payment": payment.id}, 201
