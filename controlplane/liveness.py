"""Signs of life of the two programs that answer no HTTP: the Celery worker and beat.

Each touches a file when it has really done its work, so a process that hangs, or runs but has lost
its broker, is told from a healthy one. `bin/status` and container probes look at the files' age:

- `worker.alive`: the worker sent its heartbeat, so its main loop turns and the broker answers;
- `worker.received`: the worker took a task off its queue;
- `beat.alive`: beat handed a due task to the broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import signals
from django.conf import settings


def folder() -> Path:
    """Give the folder of the files."""
    return Path(settings.VAR_DIR) / "run"


def touch(name: str) -> None:
    """Give a sign of life."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder() / name).touch()


def _worker_lives(**_: Any) -> None:
    touch("worker.alive")


def _worker_received(**_: Any) -> None:
    touch("worker.received")


def _beat_sent(**_: Any) -> None:
    touch("beat.alive")


def _beat_starts(**_: Any) -> None:
    # Only here: the web process publishes tasks too, and says nothing about beat.
    signals.after_task_publish.connect(_beat_sent)


def connect() -> None:
    """Have Celery call us; in any other process than worker and beat nothing happens."""
    signals.heartbeat_sent.connect(_worker_lives)
    signals.task_received.connect(_worker_received)
    signals.beat_init.connect(_beat_starts)
