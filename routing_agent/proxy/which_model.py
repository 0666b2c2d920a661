"""Which model answers: by a request's class, or small first and large where that is not sure.

Only requests for models with such a rule come here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from routing_agent.core import complexity
from routing_agent.core.fleet import Fleet
from routing_agent.core.table import Model, Table
from routing_agent.proxy.request import ParsedRequest, last_text

if TYPE_CHECKING:
    from routing_agent.proxy.admission import Destination

CASCADE_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
CASCADES: Final = frozenset({"cascade", "escalated", "direct"})
ASK_LOGPROBS: Final = b'{"logprobs":true,'
_CHAT: Final = "/v1/chat/completions"


def by_class(table: Table, model: Model, request: ParsedRequest, body: bytes) -> tuple[Model, str]:
    """Give the model that a rule names for a request, and the name of its class."""
    rule = model.complexity
    if rule is None:
        return model, ""
    turns, has_tools, text = last_text(body)
    found = complexity.features(
        prompt_tokens=int(request.prompt_bytes / model.bytes_per_token),
        turns=turns,
        has_tools=has_tools,
        last=text,
    )
    chosen = complexity.class_of(rule, complexity.score(rule, found))
    if chosen is None:
        return model, ""
    return table.models.get(chosen.model, model), chosen.name


def cascade(fleet: Fleet, table: Table, to: Destination, request: ParsedRequest, path: str) -> None:
    """Send a request whose model has a cascade on its way: small first, or large at once.

    A stream goes to the large model: once a token is sent, no other model can answer.
    """
    rule = to.model.cascade
    if rule is None or path not in CASCADE_PATHS or request.adapter:
        return
    if request.is_stream:
        escalate(fleet, table, to)
        to.path = "direct"
        return
    to.path = "cascade"


def escalate(fleet: Fleet, table: Table, to: Destination) -> bool:
    """Turn a destination to the large model; false if nothing serves that now."""
    rule = to.model.cascade
    large = None if rule is None else table.models.get(rule.to)
    if large is None or not large.pools:
        return False
    pool = fleet.pools.get(large.pool_for(to.session))
    if pool is None:
        return False
    to.model, to.pool = large, pool
    return True


def asking_logprobs(body: bytes, path: str) -> bytes | None:
    """Give a chat request that asks for log-probabilities too; None if it does or cannot."""
    start = body.lstrip()
    if (
        path != _CHAT
        or b'"logprobs"' in body
        or start[:1] != b"{"
        or start[1:].lstrip()[:1] == b"}"
    ):
        return None
    return ASK_LOGPROBS + start[1:]


def without_logprobs(body: bytes) -> bytes:
    """Give an answer without the log-probabilities that only we had asked for."""
    answer: Any = msgspec.json.decode(body)
    for choice in answer.get("choices", ()):
        if "logprobs" in choice:
            choice["logprobs"] = None
    return msgspec.json.encode(answer)
