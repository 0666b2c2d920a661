"""`manage.py bootstrap`: everything a new control plane needs, made where it is missing."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.domain.errors import ProblemError
from controlplane.routing import first_start, selectors, services
from controlplane.routing.demo import Engine, ensure_demo
from controlplane.routing.first_start import AgentPlace


def _agent(text: str) -> AgentPlace:
    try:
        name, traffic, admin = text.split(":")
        return AgentPlace(name=name, traffic_port=int(traffic), admin_port=int(admin))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME:TRAFFIC_PORT:ADMIN_PORT, for example agent-1:8101:8201"
        ) from error


def _engine(text: str) -> Engine:
    port, _, model = text.partition(":")
    if not port.isdigit() or not model:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not PORT:MODEL, for example 8301:qwen2.5-7b-instruct"
        )
    return Engine(int(port), model)


class Command(BaseCommand):
    """Makes admin, signing key, agents' tokens and, if asked, the demo fleet; twice is harmless."""

    help = (
        "Make what is missing: the admin (password in var/secrets/admin-password), the signing"
        " key, nodes and one-time tokens for agents on this machine"
        " (var/agents/NAME/registration-token), and with --demo a demo fleet with tenants and keys"
        " (var/secrets/traffic-keys.json)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Name the options."""
        fleet = parser.add_mutually_exclusive_group()
        fleet.add_argument("--demo", action="store_true", help="also make the demo fleet")
        fleet.add_argument("--empty", action="store_true", help="no demo fleet (the default)")
        parser.add_argument(
            "--agent",
            action="append",
            default=[],
            type=_agent,
            metavar="NAME:TRAFFIC_PORT:ADMIN_PORT",
            help="an agent on this machine; may be given several times",
        )
        parser.add_argument(
            "--engine",
            action="append",
            default=[],
            type=_engine,
            metavar="PORT:MODEL",
            help="with --demo: a simulated engine on this machine; may be given several times",
        )
        parser.add_argument(
            "--json", action="store_true", help="print the summary as one JSON line"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Make everything and print the summary."""
        try:
            summary = self._make(options)
        except ProblemError as error:
            raise CommandError(error.message) from error
        if options["json"]:
            self.stdout.write(json.dumps(summary))
            return
        for name, value in summary.items():
            self.stdout.write(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")

    def _make(self, options: dict[str, Any]) -> dict[str, Any]:
        first_start.ensure_signing_key()
        password_file = first_start.ensure_admin()
        places: list[AgentPlace] = options["agent"]
        for number, place in enumerate(places):
            zone = f"zone-{'ab'[number % 2]}" if options["demo"] else ""
            first_start.ensure_node(
                place.name, zone=zone, simulated_gpus=4 if options["demo"] else 0
            )
        summary: dict[str, Any] = {
            "admin": {"user": first_start.ADMIN, "password_file": str(password_file)},
            "agents": [first_start.ensure_agent(place) for place in places],
        }
        if options["demo"]:
            summary |= ensure_demo(options["engine"], [place.name for place in places])
        services.publish_if_behind()
        if places and selectors.publication().epoch == 0:  # without a table no agent is ready
            services.republish(actor=first_start.ACTOR, reason="first start: nothing in it yet")
        current = selectors.publication()
        return summary | {"lineage": current.lineage, "epoch": current.epoch}
