"""`bin/status`: what runs, where, and how it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stack import control_plane, health
from stack.layout import Places, Ports, places
from stack.report import say
from stack.services import Plan, services
from stack.supervise import Supervisor

MARKS = {"ok": "✓", "starting": "↻", "unhealthy": "✕", "down": "○"}


def run(*, as_json: bool) -> int:
    """Print the state of the stack; 0 if all of it is well, else 1."""
    here = places()
    stack = known(here)
    seen = health.look(here, stack["services"])
    print(json.dumps(summary(here, stack, seen), indent=2) if as_json else table(here, stack, seen))
    return 0 if seen and all(s.health == "ok" for s in seen) else 1


def known(here: Places) -> dict[str, Any]:
    """Give the services of the running or latest start; before the first, those of a plain one."""
    if here.services_file.exists():
        return dict(json.loads(here.services_file.read_text()))
    plan = Plan(ports=Ports(), redis_server=here.root)
    return {
        "console": plan.console,
        "services": {s.name: s.as_json() for s in services(plan, here)},
    }


def summary(here: Places, stack: Mapping[str, Any], seen: list[health.Seen]) -> dict[str, Any]:
    """Build what `--json` prints; drills and scripts rely on its names."""
    facts = control_plane.facts(here)
    return {
        "console": stack["console"],
        "admin": {
            "user": facts.get("admin", {}).get("user", "admin"),
            "password_file": here.shown(here.secrets / "admin-password"),
        },
        "api_key": facts.get("api_key"),
        "model": facts.get("model"),
        "services": [
            {"name": s.name, "pid": s.pid, "url": s.url, "health": s.health} for s in seen
        ],
    }


def table(here: Places, stack: Mapping[str, Any], seen: list[health.Seen]) -> str:
    """Lay the services out for people."""
    lines = [f"Signalbox   console {stack['console']}   state in {here.shown(here.var)}/", ""]
    for s in seen:
        lines.append(
            f"  {MARKS[s.health]} {s.name:<11} {s.health:<10} {s.pid or '–':>8}  "
            f"{_without_password(s.url) or '':<26} {s.detail}".rstrip()
        )
    well = sum(s.health == "ok" for s in seen)
    if any(s.pid for s in seen) and not Supervisor(here).answers():
        lines += ["", "The supervisor is gone, so nothing is restarted: bin/up repairs it."]
    lines += ["", f"{well} of {len(seen)} services are well."]
    if well == 0:
        lines.append("Nothing runs: bin/up starts it.")
    return "\n".join(lines)


def _without_password(url: str | None) -> str | None:
    if url is None or "@" not in url:
        return url
    return f"{url.partition('//')[0]}//…@{url.rpartition('@')[2]}"


def show(here: Places) -> None:
    """Print the table as it is now."""
    stack = known(here)
    say(table(here, stack, health.look(here, stack["services"])))
