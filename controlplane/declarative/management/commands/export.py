"""`manage.py export`: the whole configuration as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

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
            path.touch(mode=0o600)  # it names who may do what, and hashes of keys
            path.write_text(text)
            self.stderr.write(f"{path}: {len(text.encode())} bytes, {document.digest(text)}")
        else:
            self.stdout.write(text, ending="")
