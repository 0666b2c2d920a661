"""Answers "where would this request go, and why?" with the code that routes real requests."""

from __future__ import annotations

from typing import Final

from routing_agent.core import load
from routing_agent.core.adapters import find_adapter, pool_holding
from routing_agent.core.chance import EvenOdds
from routing_agent.core.choose import POLICIES, RouteRequest, choose, exclusion
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.replica import Replica
from routing_agent.core.table import SessionKind, session_hash
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
    if not model.pools:
        return Explanation(error=f"Model '{model.name}' has no pool with a weight above zero.")
    kind: SessionKind = "named" if request.session else "found"
    key = (request.session or request.prompt).encode()
    session = session_hash(fleet.table.hash_seed, request.tenant, kind, key, adapter=adapter)
    pool = fleet.pools[model.pool_for(session)]
    if adapter:
        pool = pool_holding(fleet.pools, model, pool, adapter) or pool
    prompt = load.prompt_tokens(len(request.prompt.encode()), model.bytes_per_token)
    tokens = prompt + load.output_tokens(request.max_tokens)
    cursor = pool.cursor  # asking must not take anybody's turn
    asked = RouteRequest(tokens=tokens, session=session, adapter=adapter)
    choice = choose(asked, pool, now=now, chance=EvenOdds(), explain=True)
    pool.cursor = cursor
    return Explanation(
        pool=pool.pool.name,
        adapter=adapter,
        version=pool.pool.version,
        policy=pool.settings.policy,
        replica=choice.replica.id if choice.replica is not None else "",
        route=choice.route if choice.replica is not None else "",
        reason=choice.reason,
        candidates=choice.candidates,
        error="" if choice.replica is not None else f"No replica can take it: {choice.reason}.",
    )
