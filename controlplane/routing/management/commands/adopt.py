"""`manage.py adopt`: go on publishing after the database was restored from an older copy."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.audit.services import Actor
from controlplane.domain.errors import ProblemError
from controlplane.routing import selectors, services


class Command(BaseCommand):
    """Adopts the agents' numbering, audited. The fleet is published as it is here now."""

    help = (
        "Continue after a restored backup: publish this database's fleet at the highest epoch that"
        " an agent reported, plus one. Publishing must be halted; see the Routing page for why."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Name the options."""
        parser.add_argument(
            "--reason", required=True, help="what happened; kept in the audit trail"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Adopt and say which epoch agents get."""
        halted = selectors.publication().halted_reason
        try:
            epoch = services.adopt(
                actor=Actor(getpass.getuser(), "command"), reason=options["reason"]
            )
        except ProblemError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"Was halted: {halted}")
        self.stdout.write(f"Published epoch {epoch}; agents get it within seconds.")
