"""`manage.py export`: the whole configuration as YAML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.declarative import document, services


class Command(BaseCommand):
    """Writes the whole configuration; the same configuration always gives the same bytes."""

    help = "Write the whole configuration as YAML, to a file or to the terminal."

    def add_arguments(self, parser: CommandParser) -> None:
        """Name the options."""
        parser.add_argument("file", nargs="?", help="where to write; without it: the terminal")
        parser.add_argument("--digest", action="store_true", help="only say its SHA-256")

    def handle(self, *args: Any, **options: Any) -> None:
        """Write it."""
        text = services.export_text()
        if options["digest"]:
            self.stdout.write(document.digest(text))
        elif options["file"]:
            path = Path(options["file"])
            _write(path, text)
            self.stderr.write(f"{path}: {len(text.encode())} bytes, {document.digest(text)}")
        else:
            self.stdout.write(text, ending="")


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all; it names who may do what, and hashes of keys."""
    if path.exists() and not path.is_file():  # a terminal or a pipe
        path.write_text(text)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.touch(mode=0o600)
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise CommandError(f"{path} was not written: {error.strerror or error}.") from error
