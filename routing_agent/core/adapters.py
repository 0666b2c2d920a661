"""Which LoRA adapter a request means, and which pool can serve it: never the base model instead.

A public model's name or alias always means that model. Then a tenant's own adapter by its name;
then one shared with it by `<owner>/<name>`, or by the name alone if only one of that name is shared
with it and it has none of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from routing_agent.core import address
from routing_agent.wire import Adapter

if TYPE_CHECKING:
    from routing_agent.core.fleet import PoolState
    from routing_agent.core.replica import Replica
    from routing_agent.core.table import Model, Table

Names = Mapping[str, Mapping[str, Adapter]]  # by tenant, by the name it may use

# A request waits for an adapter that is expected within so long; a small one is there by then.
LONGEST_LOAD_WAIT_S: Final = 5.0
# States in which an adapter is on its way to be loaded.
_COMING: Final = ("fetching", "loading")


class Meant(msgspec.Struct):
    """The model, and the adapter of it, that a request means; or why it means none."""

    model: Model | None = None
    adapter: Adapter | None = None
    problem: str = ""
    param: str = "model"


def sound_adapters(
    adapters: Iterable[Adapter], names: Collection[str], models: Collection[str], faults: list[str]
) -> list[Adapter]:
    """Give the adapters that can be served; what is wrong with the others goes to `faults`.

    `names` are the names and aliases of models, `models` those names alone.
    """
    sound = []
    seen: set[str] = set()
    for adapter in adapters:
        fault = _fault(adapter, names, models, seen)
        if fault:
            faults.append(f"adapter '{adapter.name}' of '{adapter.tenant}': {fault}")
            continue
        seen.add(adapter.served_name)
        sound.append(adapter)
    return sound


def _fault(
    adapter: Adapter, names: Collection[str], models: Collection[str], seen: set[str]
) -> str:
    if not adapter.name or not adapter.served_name:
        return "it has no name"
    if not address.is_safe_header(adapter.served_name):
        return "its served name has characters that no header may carry"
    if adapter.served_name in seen:
        return f"the served name '{adapter.served_name}' is used twice"
    if adapter.name in names or adapter.served_name in names:
        return "a model has this name"
    return "" if adapter.model in models else f"no model '{adapter.model}'"


def names_by_tenant(
    adapters: Iterable[Adapter], taken: Collection[str] = ()
) -> dict[str, dict[str, Adapter]]:
    """Give every name a tenant may call an active adapter by; ambiguous ones are left out.

    `taken` are the names of models, which mean those.
    """
    active = [adapter for adapter in adapters if adapter.active]
    names: dict[str, dict[str, Adapter]] = {}
    for adapter in active:
        for tenant in {adapter.tenant, *adapter.shared_with}:
            names.setdefault(tenant, {})[f"{adapter.tenant}/{adapter.name}"] = adapter
    for tenant, found in names.items():
        bare: dict[str, list[Adapter]] = {}
        for adapter in list(found.values()):
            bare.setdefault(adapter.name, []).append(adapter)
        for name, meant in bare.items():
            own = [adapter for adapter in meant if adapter.tenant == tenant]
            if own or len(meant) == 1:
                found[name] = (own or meant)[0]
        for name in set(found).intersection(taken):
            del found[name]
    return names


def listed_names(names: Mapping[str, Adapter]) -> dict[str, Adapter]:
    """Give each adapter of one tenant's names once: by its plain name, where that means it."""
    listed = {}
    for name, adapter in names.items():
        plain = names.get(adapter.name)
        if name == (adapter.name if plain is adapter else f"{adapter.tenant}/{adapter.name}"):
            listed[name] = adapter
    return listed


def find_adapter(table: Table, tenant: str, model: str, lora: str | None) -> Meant:
    """Find what a tenant means by `model`, and by a `lora` field if there is one."""
    names = table.adapters.get(tenant, {})
    base = table.names.get(model)
    if lora is None:
        if base is not None:
            return Meant(base)
        adapter = names.get(model)
        if adapter is None:
            return Meant(problem=f"There is no model '{model}'.")
        return Meant(table.models[adapter.model], adapter)
    adapter = names.get(lora)
    if adapter is None:
        problem = f"There is no adapter '{lora}'. Name one that you may call."
        return Meant(problem=problem, param="lora")
    if base is None and names.get(model) is not adapter:
        return Meant(problem=f"There is no model '{model}'.")
    if base is not None and base.name != adapter.model:
        problem = f"Adapter '{lora}' belongs to model '{adapter.model}', not to '{base.name}'."
        return Meant(problem=problem, param="lora")
    return Meant(table.models[adapter.model], adapter)


def pool_holding(
    pools: Mapping[str, PoolState], model: Model, first: PoolState, served_name: str
) -> PoolState | None:
    """Give the pool of `model` to serve an adapter: `first` if it can, else the first that can.

    One with a replica that takes requests goes before one whose holders are all out.
    """
    others = [pools[name] for name in model.pools if pools[name] is not first]
    holding = [p for p in (first, *others) if _holders(p, served_name)]
    ready = (p for p in holding if any(not r.blocked for r in _holders(p, served_name)))
    return next(ready, holding[0] if holding else None)


def pool_awaiting(
    pools: Mapping[str, PoolState], model: Model, first: PoolState, served_name: str, now: float
) -> PoolState | None:
    """Give the pool of `model` in which an adapter is expected soonest, if it is on its way."""
    best, least = None, LONGEST_LOAD_WAIT_S
    for pool in (first, *(pools[name] for name in model.pools if pools[name] is not first)):
        for replica in pool.replicas:
            wait_s = replica.adapters.load_wait_s(served_name, now)
            if wait_s is not None and wait_s < least and not replica.exclusion(now):
                best, least = pool, wait_s
    return best


def is_loaded(pools: Mapping[str, PoolState], model: Model, served_name: str) -> bool:
    """Say whether any replica of a model holds an adapter."""
    return any(_holders(pools[name], served_name) for name in model.pools)


def has_failed(pools: Mapping[str, PoolState], model: Model, served_name: str) -> bool:
    """Say whether every replica that tells of an adapter could not load it."""
    told = [
        state.stage
        for name in model.pools
        for replica in pools[name].replicas
        if (state := replica.adapters.states.get(served_name)) is not None
    ]
    return "failed" in told and not any(state in _COMING for state in told)


def _holders(pool: PoolState, served_name: str) -> list[Replica]:
    return [r for r in pool.replicas if served_name in r.adapters.resident]
