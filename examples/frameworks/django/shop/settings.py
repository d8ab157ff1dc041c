import os

SECRET_KEY = "of the example"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = os.environ["SHOP_URLS"]  # before or after
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "ATOMIC_REQUESTS": True}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
