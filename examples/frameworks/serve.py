"""Serves one of the Python endpoints: serve.py sqlalchemy/after.py PORT"""
import importlib
import os
import pathlib
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class Quiet(WSGIRequestHandler):
    def log_message(self, *message):
        pass


def application(path):
    sys.path.insert(0, str(path.parent))
    if path.parent.name == "django":
        os.environ.update(DJANGO_SETTINGS_MODULE="shop.settings", SHOP_URLS=path.stem)
        from django.core.wsgi import get_wsgi_application
        return get_wsgi_application()
    return importlib.import_module(path.stem).app


app = application(pathlib.Path(sys.argv[1]).resolve())
make_server("127.0.0.1", int(sys.argv[2]), app, Server, Quiet).serve_forever()
