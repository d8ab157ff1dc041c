"""The application in Django, with psycopg2."""

import functools
import os

import django
from django.conf import settings

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="none", LOGGING_CONFIG=None,
    MIDDLEWARE=[f"{__name__}.problems"], DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"], "USER": os.environ["PGUSER"],
        "HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"]}})
django.setup()

from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpResponse, JsonResponse
from django.urls import path
from pg_idem.django import Idempotency, idempotent

import handlers

idempotency = Idempotency(wait=1.0)
OPTIONS = {"tenant": lambda request: request.client, "final_statuses": [402]}


def response(status, headers, body):
    return HttpResponse(body, status=status, headers=headers)


def authenticated(view):
    @functools.wraps(view)
    def checked(request, **values):
        request.client = handlers.client(request.headers.get("Authorization"))
        return view(request, **values)
    return checked


def carry_out(request, operation):
    try:
        with connection.cursor() as cursor:
            for statement, parameters in handlers.statements(operation, request.client):
                cursor.execute(statement, parameters)
        return response(*handlers.answer(operation))
    except handlers.Problem as error:
        return response(*error.answer)


@authenticated
@idempotent(idempotency, "operations", **OPTIONS)
def operations(request):
    try:
        return carry_out(request, handlers.members(request.body))
    except handlers.Problem as error:
        return response(*error.answer)


@authenticated
@idempotent(idempotency, "limited", **OPTIONS)
def limited(request):
    return carry_out(request, handlers.members(request.body))


@authenticated
@idempotent(idempotency, "operations", **OPTIONS)
def documents(request):
    return carry_out(request, handlers.document(request.GET["id"], request.body))


@authenticated
@idempotent(idempotency, "operations", **OPTIONS)
def uploads(request):
    content = request.FILES["file"].read()
    return carry_out(request, handlers.document(request.POST["id"], content))


@authenticated
def effects(request, name):
    with connection.cursor() as cursor:
        cursor.execute(handlers.COUNT, [name, request.client])
        number, = cursor.fetchone()
    return JsonResponse({"effects": number})


class Problems:
    """A middleware: what the views raise is answered with a problem document."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        return self.get_response(request)

    def process_exception(self, request, error):
        if not isinstance(error, handlers.Problem):
            error = handlers.Problem(500)
        return response(*error.answer)


problems = Problems
urlpatterns = [path("operations", operations), path("refunds", operations),
               path("limited", limited), path("documents", documents), path("uploads", uploads),
               path("operations/<name>", effects)]
app = get_wsgi_application()
