from flask import Flask, g, request
from pg_idem import Idempotency
from pg_idem.flask import idempotent
from psycopg_pool import ConnectionPool

app = Flask(__name__)
pool = ConnectionPool(max_size=10)
payments = Idempotency(pool.connection)


@app.post("/payments")
@idempotent(payments, "payments", tenant=None)
def pay():
    payment = g.idem_connection.execute(
        "INSERT INTO payment (amount) VALUES (%s) RETURNING id",
        [request.json["amount"]]).fetchone()[0]
    return {"payment": payment}, 201
