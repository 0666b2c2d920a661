"""Files that must be whole or absent: written beside, synced, renamed, for the owner only."""

from __future__ import annotations

import os
from pathlib import Path

OWNER_ONLY = 0o600


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; a crash at any moment leaves the old or the new content."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY)
    try:
        os.fchmod(descriptor, OWNER_ONLY)  # a leftover of an earlier crash keeps its old mode
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in `folder` survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be read so that a person can look at it; gives the new name."""
    aside = path.with_name(f"{path.name}.corrupt")
    path.replace(aside)
    return aside


def private_folder(path: Path) -> Path:
    """Make sure that a folder for the agent's state exists, closed to other users."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
