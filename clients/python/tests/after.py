from flask import Flask, request
from pg_idem import Idempotency
from pg_idem.wsgi import IdempotencyMiddleware
from psycopg_pool import ConnectionPool

app = Flask(__name__)
pool = ConnectionPool(max_size=10)
app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, Idempotency(pool.connection), "payments")
app.config["PROPAGATE_EXCEPTIONS"] = True


@app.post("/payments")
def pay():
    connection = request.environ["idem.connection"]
    payment = connection.execute(
        "INSERT INTO payment (amount) VALUES (%s) RETURNING id",
        [request.json["amount"]]).fetchone()[0]
    return {"payment": payment}, 201
