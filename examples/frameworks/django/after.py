import json

from django.http import JsonResponse
from django.urls import path
from pg_idem.django import Idempotency, idempotent
from shop.models import Payment


@idempotent(Idempotency(wait=1.0), "payments", tenant=None)
def pay(request):
    payment = Payment.objects.create(amount=json.loads(request.body)["amount"])
    return JsonResponse({"payment": payment.pk}, status=201)


urlpatterns = [path("payments", pay)]
