"""`manage.py apply FILE [--dry-run]`: make the configuration what a file says, or say what it would
do."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.audit.services import Actor
from controlplane.declarative import services
from controlplane.declarative.services import Plan, Step
from controlplane.domain.errors import ProblemError

SIGNS = {"create": "+", "update": "~", "remove": "-"}


class Command(BaseCommand):
    """Applies a file, all of it or nothing."""

    help = (
        "Make the configuration what FILE says (`-`: standard input). Objects that a section does"
        " not list are kept unless --remove; sections that are not in the file are left alone."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Name the options."""
        parser.add_argument("file")
        parser.add_argument("--dry-run", action="store_true", help="only say what would change")
        parser.add_argument("--remove", action="store_true", help="remove what is not listed")
        parser.add_argument("--reason", default="", help="why; kept in the audit log")

    def handle(self, *args: Any, **options: Any) -> None:
        """Apply it and print the difference."""
        try:
            name = options["file"]
            text = sys.stdin.read() if name == "-" else Path(name).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{options['file']} cannot be read: {error}") from error
        actor = Actor(getpass.getuser(), "command")
        reason = options["reason"] or f"manage.py apply {Path(options['file']).name}"
        try:
            plan = services.apply(
                text,
                who={"actor": actor, "reason": reason},
                dry_run=options["dry_run"],
                remove=options["remove"],
            )
        except ProblemError as problem:
            raise CommandError(f"Nothing was changed. {problem.message}") from problem
        for line in report(plan, dry_run=options["dry_run"]):
            self.stdout.write(line)


def report(plan: Plan, *, dry_run: bool) -> list[str]:
    """Say what a plan does, a line a field."""
    lines = [line for step in plan.steps for line in _step(step)]
    for section, keys in plan.unlisted.items():
        lines.append(f"  {section}: not in the file, kept: {', '.join(keys)}")
    counts = ", ".join(f"{n} to {act}" if dry_run else f"{n} {act}d" for act, n in _some(plan))
    lines.append(f"{counts or 'Nothing to change'}, {plan.unchanged} unchanged.")
    return lines


def _some(plan: Plan) -> list[tuple[str, int]]:
    return [(act, n) for act, n in plan.counts.items() if n]


def _step(step: Step) -> list[str]:
    lines = [f"{SIGNS[step.act]} {step.what} {step.key}"]
    if step.act == "update":
        lines += [f"    {name}: {old!r} → {new!r}" for name, (old, new) in step.changes.items()]
    if step.note:
        lines.append(f"    ! {step.note}")
    return lines
