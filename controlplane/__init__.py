"""The control plane: stores what should run, publishes it to the agents, shows what does run."""

from controlplane.celery import app as celery_app

__all__ = ["celery_app"]
