"""Answers "where would this request go, and why?" with the code that routes real requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routing_agent.core import load
from routing_agent.core.adapters import find_adapter, pool_awaiting, pool_holding
from routing_agent.core.chance import EvenOdds
from routing_agent.core.choose import POLICIES, choose, exclusion
from routing_agent.core.complexity import class_of, features, score
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefix import beginning, chain, chain_root, conversation
from routing_agent.core.replica import Replica
from routing_agent.core.shapes import shape_of
from routing_agent.core.table import Model, SessionKind, Table, session_hash
from routing_agent.wire import Candidate, ExplainRequest, Explanation

# A record tells of so many candidates: a pool of a thousand must not make a request dear.
RECORDED_CANDIDATES: Final = 16


def candidates_of(
    request: RouteRequest, pool: PoolState, chosen: Replica | None, *, now: float
) -> tuple[Candidate, ...]:
    """Give what a choice compared, before the request is charged: the chosen one first."""
    policy = POLICIES[pool.settings.policy]
    step = -(-len(pool.replicas) // RECORDED_CANDIDATES) or 1
    shown = [replica for replica in pool.replicas[::step] if replica is not chosen]
    if chosen is not None:
        shown = [chosen, *shown[: RECORDED_CANDIDATES - 1]]
    found = []
    for replica in shown:
        terms = policy.terms(request, replica, now=now)
        score = terms.pop("score", None)
        excluded = exclusion(request, replica, now)
        found.append(Candidate(replica=replica.id, score=score, terms=terms, excluded=excluded))
    return tuple(found)


def explain(fleet: Fleet, request: ExplainRequest, *, now: float) -> Explanation:
    """Say where a request would go at this moment, without sending or charging it."""
    if fleet.table is None:
        return Explanation(error="This agent has no routing table yet.")
    meant = find_adapter(fleet.table, request.tenant, request.model, request.adapter or None)
    model, adapter = meant.model, "" if meant.adapter is None else meant.adapter.served_name
    if model is None:
        return Explanation(error=meant.problem)
    why, turns = "", _turns(request)
    if not adapter:
        model, why = _ruled(fleet.table, model, turns)
    if not model.pools:
        return Explanation(error=f"Model '{model.name}' has no pool with a weight above zero.")
    kind: SessionKind = "named" if request.session else "found"
    key = request.session.encode() or beginning(turns)
    session = session_hash(fleet.table.hash_seed, request.tenant, kind, key, adapter=adapter)
    ratio = fleet.ratios.ratio(model.name, model.bytes_per_token)
    prompt = load.prompt_tokens(_size(turns), ratio)
    if model.has_shapes:
        limit = shape_of(model.limits, prompt)
        pool = fleet.pools[model.pool_of_shape(session, limit)]
        why += f"about {prompt} prompt tokens: a pool for {limit or 'any length'}; "
    else:
        pool = fleet.pools[model.pool_for(session)]
    if adapter:
        found = pool_holding(fleet.pools, model, pool, adapter)
        pool = found or pool_awaiting(fleet.pools, model, pool, adapter, now) or pool
    tokens = prompt + load.output_tokens(request.max_tokens)
    cursor = pool.cursor  # asking must not take anybody's turn
    asked = RouteRequest(tokens=tokens, session=session, adapter=adapter, prompt_tokens=prompt)
    if pool.uses_prefixes:
        root = chain_root(fleet.table.hash_seed, pool.pool.version, adapter)
        asked.blocks = chain(conversation(turns), root, fleet.table.block_bytes)
        asked.block_tokens = fleet.table.block_bytes / ratio
    asked.may_wait = True
    choice = choose(asked, pool, now=now, chance=EvenOdds(), explain=True)
    pool.cursor = cursor
    has_way = choice.replica is not None or choice.awaited is not None or choice.is_held
    return Explanation(
        pool=pool.pool.name,
        adapter=adapter,
        version=pool.pool.version,
        policy=pool.settings.policy,
        replica=choice.replica.id if choice.replica is not None else "",
        route=choice.route if choice.replica is not None else "",
        reason=why + choice.reason,
        candidates=choice.candidates,
        awaited=choice.awaited.id if choice.awaited is not None else "",
        error="" if has_way else f"No replica can take it: {choice.reason}.",
    )


def _turns(request: ExplainRequest) -> list[tuple[str, str]]:
    """Give the conversation that is asked about, as roles and texts."""
    turns = [(message.role, message.content) for message in request.messages]
    return turns or [("user", request.prompt)]


def _size(turns: Sequence[tuple[str, str]]) -> int:
    return sum(len(text.encode()) for _, text in turns)


def _ruled(table: Table, model: Model, turns: Sequence[tuple[str, str]]) -> tuple[Model, str]:
    """Give the model that a rule names for a prompt, and why; the words end with a semicolon."""
    why = ""
    if model.complexity is not None:
        tokens = load.prompt_tokens(_size(turns), model.bytes_per_token)
        last = next((text for role, text in reversed(turns) if role == "user"), "")
        found = features(prompt_tokens=tokens, turns=len(turns), has_tools=False, last=last)
        value = score(model.complexity, found)
        chosen = class_of(model.complexity, value)
        if chosen is not None:
            model = table.models.get(chosen.model, model)
            why = f"class '{chosen.name}' (score {value:.2f}): '{model.name}' answers; "
    if model.cascade is not None:
        why += f"'{model.name}' first, '{model.cascade.to}' if its answer is not trusted; "
    return model, why
