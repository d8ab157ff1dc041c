"""Serves one of the Python applications, on a port that it prints: serve.py flask [PORT]"""

import importlib
import logging
import socket
import sys

name, port = sys.argv[1], int((sys.argv[2:] or [0])[0])
app = importlib.import_module(f"{name}_app").app
listener = socket.create_server(("127.0.0.1", port), backlog=128)
print(listener.getsockname()[1], flush=True)
logging.disable(logging.CRITICAL)
if name in ("flask", "django"):
    from werkzeug.serving import make_server
    make_server("127.0.0.1", 0, app, threaded=True, fd=listener.fileno()).serve_forever()
else:
    import uvicorn
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])
