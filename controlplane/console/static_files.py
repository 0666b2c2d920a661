"""Collecting static files only when there is something new: compressing takes seconds."""

from __future__ import annotations

import hashlib
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command


def mark_file() -> Path:
    """Give the file that remembers what was collected; beside the folder, so never served."""
    root = Path(settings.STATIC_ROOT)
    return root.with_name(f"{root.name}.collected")


def fingerprint() -> str:
    """Give a mark of all sources: where each lies, its bytes and its time, and how it is stored."""
    told = hashlib.sha256(repr(settings.STORAGES["staticfiles"]).encode())
    for finder in get_finders():
        for name, storage in finder.list([]):
            path = storage.path(name)
            facts = Path(path).stat()
            told.update(f"{name}\0{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return told.hexdigest()


def collect() -> bool:
    """Bring the collected files up to date; False if they were."""
    mark, now = mark_file(), fingerprint()
    if Path(settings.STATIC_ROOT).is_dir() and mark.is_file() and mark.read_text() == now:
        return False
    mark.unlink(missing_ok=True)  # what is cut short is done again
    call_command("collectstatic", interactive=False, verbosity=0)
    mark.write_text(now)
    return True
