"""A proxy in front of the server that PGHOST and PGPORT name. It counts how often a client waits
for the server, and can be some way from it: each direction takes `delay` seconds.

    proxy.py DELAY      prints its port, and serves until its input ends
"""

import os
import queue
import socket
import sys
import threading
import time

# A client waits after these messages: Query, Sync, Flush.
AWAITED = b"QSH"
STARTUP = 196608  # the version in the first message that is not about encryption


class Proxy:
    def __init__(self, delay=0.0):
        self.delay, self.waits = delay, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.dsn = f"host=127.0.0.1 port={self.port}"
        start(self.serve)

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:  # closed
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = upstream()
            start(self.forward, client, server, self.counter())
            start(self.forward, server, client, lambda data: None)

    def forward(self, source, target, notice):
        sent = queue.SimpleQueue()
        start(self.deliver, sent, target)
        data = b"first"
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            notice(data)
            sent.put((time.monotonic() + self.delay, data))

    def deliver(self, sent, target):
        while True:
            due, data = sent.get()
            time.sleep(max(0, due - time.monotonic()))
            try:
                if not data:
                    return target.shutdown(socket.SHUT_WR)
                target.sendall(data)
            except OSError:
                return

    def counter(self):
        """A function of what a client sends, which finds the messages in it."""
        received, started = bytearray(), False

        def notice(data):
            nonlocal started
            received.extend(data)
            while len(received) >= 4 + started:
                length = int.from_bytes(received[started:4 + started], "big") + started
                if len(received) < length:
                    return
                if started:
                    self.waits += received[0] in AWAITED
                else:
                    started = int.from_bytes(received[4:8], "big") == STARTUP
                del received[:length]
        return notice

    def close(self):
        self.listener.close()


def start(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


def upstream():
    host, port = os.environ["PGHOST"], int(os.environ["PGPORT"])
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}")
    return server


if __name__ == "__main__":
    print(Proxy(float(sys.argv[1])).port, flush=True)
    sys.stdin.read()
