"""Why would this request go there? Answered by an agent's own core, from what it knows now."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from django.utils import timezone

from controlplane.domain.errors import Unavailable
from controlplane.fleet.models import Agent
from controlplane.routing import selectors
from controlplane.routing.push import EXPLAIN_PATH, AgentUnreachable, call_agent
from routing_agent import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An agent's explanation, or what is missing for one."""

    explanation: wire.Explanation | None
    agent: str = ""  # the node that answered
    missing: str = ""


def explain(question: wire.ExplainRequest, *, agent: str | None = None) -> Explained:
    """Ask a live agent (`agent` = public id to ask one in particular) where a request would go."""
    candidates = selectors.live_agents(now=timezone.now())
    if agent is not None:
        candidates = candidates.filter(public_id=agent)
    failures = []
    for candidate in candidates[:3]:
        try:
            return Explained(explanation=_ask(candidate, question), agent=candidate.node.name)
        except (AgentUnreachable, Unavailable) as error:
            failures.append(f"{candidate.node.name}: {error}")
    if failures:
        return Explained(explanation=None, missing=f"No agent answered ({'; '.join(failures)}).")
    which = f"Agent {agent!r} is" if agent is not None else "All agents are"
    return Explained(
        explanation=None,
        missing=f"{which} silent: explanations come from a running agent. Start one, or see Nodes.",
    )


def _ask(agent: Agent, question: wire.ExplainRequest) -> wire.Explanation:
    answer = call_agent(
        agent.admin_url, method="POST", path=EXPLAIN_PATH, body=msgspec.json.encode(question)
    )
    if answer.status != 200:
        told = answer.body[:200].decode(errors="replace")
        raise AgentUnreachable(f"answered {answer.status}: {told}")
    try:
        return msgspec.json.decode(answer.body, type=wire.Explanation)
    except msgspec.MsgspecError as error:
        raise AgentUnreachable(f"its answer cannot be read: {error}") from error
