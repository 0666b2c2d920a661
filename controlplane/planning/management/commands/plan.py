"""`manage.py plan`: how many replicas, how much memory, how many requests at once."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.utils import timezone

from controlplane.console import quantities
from controlplane.domain.amounts import counted
from controlplane.domain.errors import ProblemError
from controlplane.domain.planning_inputs import BY_NAME, FIELDS
from controlplane.planning import api, selectors, what_if
from controlplane.planning.selectors import Planned


class Command(BaseCommand):
    """Plans capacity from options, a pool's facts and defaults; changes nothing."""

    help = (
        "Plan capacity: replicas from peak and productivity, memory, concurrency and cost. What is"
        " left out comes from --pool, the named --model and --gpu, or a default."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Name the options: one for each input of the planner."""
        parser.add_argument("--pool", help="take what is left out from this pool")
        parser.add_argument("--json", action="store_true", help="answer as the REST API does")
        parser.add_argument(
            "--what-if",
            action="store_true",
            help="replay the pool's busiest ten minutes over simulated fleets",
        )
        for field in FIELDS:
            text = ". ".join(t for t in (field.help.rstrip("."), field.unit) if t)
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                dest=field.name,
                type=str if field.kind == "choice" else float,
                metavar="NAME" if field.kind == "choice" else "N",
                help=text.replace("%", "%%") or ", ".join(field.choices),
            )

    def handle(self, *args: Any, **options: Any) -> None:
        """Plan and print every input with its source and every step with its reason."""
        entered = {field.name: options[field.name] for field in FIELDS}
        now, pool = timezone.now(), options["pool"]
        try:
            found = selectors.planned(entered=entered, pool=pool, now=now)
        except ProblemError as error:
            raise CommandError(error.message) from error
        replay = what_if.what_if(found.plan, pool=pool, now=now) if options["what_if"] else None
        if options["json"]:
            body = api.plain(found, replay)
            self.stdout.write(json.dumps(body, cls=DjangoJSONEncoder, indent=1))
            return
        for line in [*report(found), *replay_report(replay)]:
            self.stdout.write(line)


def replay_report(replay: what_if.WhatIf | None) -> list[str]:
    """Give a replay as lines of text; none where it was not asked for."""
    if replay is None:
        return []
    if replay.missing:
        return ["What if", f"  Not replayed: {replay.missing}"]
    shown = quantities.seconds
    lines = [
        f"  {counted(p.replicas, 'replicas')}: TTFT P50 {shown(p.ttft_p50_s)},"
        f" P99 {shown(p.ttft_p99_s)},"
        f" TPOT P99 {shown(p.tpot_p99_s)}, not taken {p.shed}"
        for p in replay.points
    ]
    return ["What if", *lines, f"  Simulated: {replay.source}"]


def report(found: Planned) -> list[str]:
    """Give a plan as lines of text."""
    lines = ["Inputs"]
    for name, known in found.plan.inputs.items():
        field = BY_NAME[name]
        of = f", of {known.at:%Y-%m-%d %H:%M} UTC" if known.at else ""
        value = quantities.given(known.value, field.unit)
        lines.append(f"  {field.label}: {value} ({known.source}{of})")
    lines += [f"  {BY_NAME[n].label}: not known: {why}" for n, why in found.missing.items()]
    lines.append("Steps")
    for step in found.plan.steps:
        lines.append(f"  {step.title}: {quantities.result(step.value, step.unit)}")
        lines += [f"    {step.formula} = {step.working}"] if step.working else []
        lines.append(f"    {'! ' if step.status == 'warning' else ''}{step.reason}")
    return lines
