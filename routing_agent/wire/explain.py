"""Asking an agent where a request would go."""

from __future__ import annotations

from routing_agent.wire.base import Count, Message
from routing_agent.wire.lives import Candidate


class ExplainMessage(Message, frozen=True, kw_only=True):
    """One turn of a conversation, of text alone."""

    role: str
    content: str = ""


class ExplainRequest(Message, frozen=True, kw_only=True, tag_field="kind", tag="explain"):
    """Ask where a request would go, without sending it."""

    model: str
    adapter: str = ""  # the same as the body field `lora`
    tenant: str = ""
    session: str = ""
    prompt: str = ""  # a conversation of one user's turn
    messages: tuple[ExplainMessage, ...] = ()  # the whole conversation, in its place
    max_tokens: Count | None = None


class Explanation(Message, frozen=True, kw_only=True, tag_field="kind", tag="explanation"):
    """Where a request would go, and why."""

    pool: str = ""
    adapter: str = ""  # its served name
    version: str = ""
    policy: str = ""
    replica: str = ""
    route: str = ""  # the value of x-signalbox-route
    reason: str = ""
    awaited: str = ""  # a replica that it would wait for, in the queue
    candidates: tuple[Candidate, ...] = ()
    error: str = ""
