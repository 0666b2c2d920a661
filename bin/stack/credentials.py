"""Secrets of a stack: made at the first start, kept in files that only their owner can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from stack.layout import Places

GENERATED = {"django-secret-key": 50, "redis-password": 32, "admin-password": 15}  # bytes of chance


def ensure(places: Places) -> None:
    """Generate what is missing; never replace what is there."""
    ensure_folders(places)
    for name, size in GENERATED.items():
        path = places.secrets / name
        if not path.exists() or not path.read_text().strip():
            write_private(path, secrets.token_urlsafe(size) + "\n")
        path.chmod(0o600)


def ensure_folders(places: Places) -> None:
    """Make the folders of a stack, for their owner's eyes only."""
    for folder in (places.var, places.secrets, places.run, places.log):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # also one that was made before


def write_private(path: Path, text: str) -> None:
    """Write a file that is mode 0600 from its first byte, in one move."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
        sink.write(text)
    draft.replace(path)


def read(places: Places, name: str) -> str:
    """Read a generated secret."""
    return (places.secrets / name).read_text().strip()


def stack_id(places: Places) -> str:
    """Give the mark that this stack's processes carry; made once per `var` folder."""
    path = places.run / "stack-id"
    if not path.exists():
        write_private(path, secrets.token_hex(16))
    return path.read_text().strip()
