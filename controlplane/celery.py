"""Celery: the broker, the queues and the beat schedule of the control loops."""

from __future__ import annotations

import os

from celery import Celery, signals

from controlplane import backlog, liveness, log

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("controlplane")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
liveness.connect()
backlog.connect()
signals.setup_logging.connect(log.keep_ours)
