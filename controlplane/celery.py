"""Celery: the broker, the queues and the beat schedule of the control loops."""

from __future__ import annotations

import os

from celery import Celery

from controlplane import liveness

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("controlplane")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
liveness.connect()
