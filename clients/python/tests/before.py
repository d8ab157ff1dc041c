from flask import Flask, request
from psycopg_pool import ConnectionPool

app = Flask(__name__)
pool = ConnectionPool(max_size=10)


@app.post("/payments")
def pay():
    with pool.connection() as connection:
        payment = connection.execute(
            "INSERT INTO payment (amount) VALUES (%s) RETURNING id",
            [request.json["amount"]]).fetchone()[0]
    return {"payment": payment}, 201
