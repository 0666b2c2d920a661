"""What bin/up says at its end: where everything is and how to try it, tried out first."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from stack import control_plane, processes, status
from stack.layout import Places
from stack.report import ProblemError, step, tell

FIRST_ANSWER_LIMIT_S = 60.0
ATTEMPT_LIMIT_S = 10.0


def first_answer(here: Places) -> bool:
    """Wait until each agent answers the demo tenant, so that the command printed next works."""
    facts = control_plane.facts(here)
    if not facts.get("api_key"):
        return True
    said: dict[str, str] = {}

    def all_answer() -> bool:
        said.update({a["url"]: _refusal(a, facts) for a in _agents(here)})
        return not any(said.values())

    with step("first answer") as under_way:
        is_there = processes.wait_until(all_answer, limit_s=FIRST_ANSWER_LIMIT_S, every_s=0.5)
        under_way.outcome = "from both agents" if is_there else "none"
    if not is_there:
        shown = "; ".join(f"{url}: {why}" for url, why in said.items() if why)
        tell(
            ProblemError(
                f"no answer within {FIRST_ANSWER_LIMIT_S:.0f} s ({shown}).",
                "the console's Routing and Pools pages say what is missing.",
            )
        )
    return is_there


def _refusal(agent: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Ask one agent for one token once it can give it; empty text means that it did."""
    body = json.dumps({**_request(facts), "stream": False, "max_tokens": 1})
    headers = {
        "Authorization": f"Bearer {facts['api_key']}",
        "Content-Type": "application/json",
    }
    try:
        # Asked before that, it would count a failure of the service.
        _, state = _call("GET", agent["probe"]["target"])
        if facts["model"] in json.loads(state).get("models_without_replica", ()):
            return f"no replica of {facts['model']} is ready yet"
        status_code, text = _call("POST", f"{agent['url']}/v1/chat/completions", body, headers)
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        return str(error) or type(error).__name__
    return "" if status_code == 200 else f"{status_code} {' '.join(text[:300].split())}"


def _call(
    method: str, url: str, body: str | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=ATTEMPT_LIMIT_S
    )
    with closing(connection):
        connection.request(method, parts.path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")


def _agents(here: Places) -> list[dict[str, Any]]:
    services = status.known(here)["services"]
    return [s for name, s in services.items() if name.startswith("agent-")]


def agents(here: Places) -> list[str]:
    """Give the addresses that take OpenAI traffic."""
    return [service["url"] for service in _agents(here)]


def text(here: Places) -> str:
    """Say where everything is and how to try it."""
    facts, console = control_plane.facts(here), status.known(here)["console"]
    password = here.shown(here.secrets / "admin-password")
    lines = [
        "",
        "Signalbox is up.",
        f"  console   {console}   user {facts['admin']['user']}, password in {password}",
        f"  API       {console}/api/docs/",
        f"  OpenAI    {'  '.join(f'{url}/v1' for url in agents(here))}",
    ]
    if facts.get("api_key"):
        lines += ["", "Try it:", curl(agents(here)[0], facts)]
    logs = here.shown(here.log)
    lines += ["", f"bin/status says what runs, bin/down stops it, logs are in {logs}/."]
    return "\n".join(lines)


def curl(url: str, facts: Mapping[str, Any]) -> str:
    """Give a command that streams an answer from an agent."""
    return (
        f"  curl -N {url}/v1/chat/completions \\\n"
        f"    -H 'Authorization: Bearer {facts['api_key']}' \\\n"
        f"    -H 'Content-Type: application/json' \\\n"
        f"    -d '{json.dumps(_request(facts))}'"
    )


def _request(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": facts["model"],
        "stream": True,
        "messages": [{"role": "user", "content": "Say hello to the fleet."}],
    }
