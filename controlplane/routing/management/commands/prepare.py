"""`manage.py prepare`: all that comes before the first service, in one start of Django."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command

from controlplane.console import static_files
from controlplane.routing.management.commands import bootstrap


class Command(bootstrap.Command):
    """Migrates, collects static files if they have changed, and does what `bootstrap` does."""

    help = f"Migrate, collect static files if any has changed, then: {bootstrap.Command.help}"

    def handle(self, *args: Any, **options: Any) -> None:
        """Do one after the other; a failure ends it."""
        call_command("migrate", interactive=False, verbosity=0)
        static_files.collect()
        super().handle(*args, **options)
