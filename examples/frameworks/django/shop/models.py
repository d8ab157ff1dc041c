from django.db import models


class Payment(models.Model):
    # The column key has a DEFAULT in the database, and so it is not a field.
    amount = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        db_table = "payment"
        managed = False
