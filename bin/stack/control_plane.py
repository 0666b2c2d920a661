"""Preparing the control plane: migrations, static files, first admin and demo fleet."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from stack import credentials, services
from stack.layout import Places
from stack.report import ProblemError, step
from stack.services import AGENTS, Plan, node_name

FACTS = "bootstrap.json"


def prepare(plan: Plan, places: Places) -> None:
    """Bring database and static files up to date and make sure of admin and demo fleet."""
    with step("prepare control plane"):
        facts = manage(plan, places, *prepare_words(plan))
        credentials.write_private(places.run / FACTS, json.dumps(_parsed(facts)))


def prepare_words(plan: Plan) -> list[str]:
    """Give the words of `manage.py prepare` for a plan."""
    words = ["prepare", "--json"]
    if plan.demo:
        words.append("--demo")
    for number in range(1, AGENTS + 1):
        traffic, admin = plan.ports.traffic(number), plan.ports.admin(number)
        words += ["--agent", f"{node_name(number)}:{traffic}:{admin}"]
    for number, model in plan.engines.items():
        words += ["--engine", f"{plan.ports.engine(number)}:{model}"]
    return words


def _parsed(text: str) -> dict[str, Any]:
    """Read its answer: the last line that is JSON."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    return {}


def facts(places: Places) -> dict[str, Any]:
    """Give what bootstrap said: admin user, demo tenant's key, a model it may call."""
    path = places.run / FACTS
    return dict(json.loads(path.read_text())) if path.exists() else {}


def manage(plan: Plan, places: Places, *words: str) -> str:
    """Run `manage.py` in the control plane's environment and give what it printed."""
    done = subprocess.run(
        [places.python, "manage.py", *words],
        cwd=places.root,
        env=services.control_plane_environment(plan, places),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    log = places.log / "prepare.log"
    with log.open("a") as sink:
        sink.write(f"$ manage.py {words[0]}\n{done.stderr}")
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise ProblemError(
            f"`manage.py {words[0]}` failed: {said[-1]}",
            f"the whole message is in {places.shown(log)}.",
        )
    return done.stdout
