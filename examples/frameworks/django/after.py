import json

from django.http import JsonResponse
from django.urls import path
from shop.models import Payment
from pg_idem.django import Idempotency, idempotent


@idempotent(Idempotency(wait=1.0), "payments", tenant=None)
def pay(request):
    payment = Payment.objects.create(amount=json.loads(request.body)["amount"])
    return JsonResponse({"payment": payment.pk}, status=201)


urlpatterns = [path("payments", pay)]
