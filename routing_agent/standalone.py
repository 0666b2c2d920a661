"""The table of an agent without a control plane: asks the engines what they serve, again and again.

Each engine's first answer decides; one that is not up yet is asked every second and joins the table
when it answers. Models of one name form one pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from routing_agent.config import Standalone
from routing_agent.core.table import LOCAL_TENANT
from routing_agent.engine.base import ServedModel, adapters_of, read_models
from routing_agent.engine.drivers import engine_of
from routing_agent.http_client import CallFailed, HttpClient
from routing_agent.wire import (
    Adapter,
    ApiKey,
    Endpoint,
    EngineName,
    ModelRoute,
    Pool,
    RoutingTable,
    Tenant,
    WeightedPool,
    table_digest,
)

log = structlog.get_logger()

LINEAGE = "standalone"
VERSION = "local"
ASK_LIMIT_S = 3.0
ASK_AGAIN_S = 1.0
REFRESH_S = 30.0  # an engine restarted with another model, or with new adapters, is noticed by then


@dataclass(frozen=True, slots=True)
class Found:
    """What one engine said about itself."""

    engine: EngineName
    models: tuple[ServedModel, ...]


@dataclass
class Discovery:
    """Finds out what the engines serve and applies a table whenever that changes."""

    config: Standalone
    client: HttpClient
    apply: Callable[[RoutingTable], None]
    _found: dict[str, Found] = field(default_factory=dict)
    _complaints: dict[str, str] = field(default_factory=dict)
    _epoch: int = 0
    _digest: str = ""

    async def run(self) -> None:
        """Ask until cancelled: unknown engines each second, known ones now and then."""
        refreshed_at = time.monotonic()
        while True:
            unknown = [url for url in self.config.worker_urls if url not in self._found]
            if not unknown and time.monotonic() - refreshed_at > REFRESH_S:
                unknown, refreshed_at = list(self.config.worker_urls), time.monotonic()
            await asyncio.gather(*(self._ask(url) for url in unknown))
            self._apply_if_new()
            await asyncio.sleep(ASK_AGAIN_S)

    async def _ask(self, url: str) -> None:
        key = self.config.engine_key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            answer = await self.client.call(
                "GET", f"{url}/v1/models", headers=headers, timeout_s=ASK_LIMIT_S
            )
            if not answer.ok:
                raise CallFailed(f"/v1/models answered {answer.status}")
            models = read_models(answer.body)
        except (CallFailed, ValueError) as error:
            self._complain(url, str(error))
            return
        self._complaints.pop(url, None)
        self._found[url] = Found(self.config.engine or engine_of(models), tuple(models))

    def _complain(self, url: str, why: str) -> None:
        if self._complaints.get(url) != why:
            log.warning("engine_not_known_yet", url=url, why=why)
        self._complaints[url] = why

    def _apply_if_new(self) -> None:
        if not self._found:
            return
        table = build_table(self.config, self._found, epoch=self._epoch + 1, at=time.time())
        if table.digest == self._digest:
            return
        self._epoch, self._digest = table.epoch, table.digest
        self.apply(table)
        models = [route.model for route in table.models]
        log.info("table_built", epoch=table.epoch, models=models, engines=len(self._found))


def build_table(
    config: Standalone, found: Mapping[str, Found], *, epoch: int, at: float
) -> RoutingTable:
    """Make the routing table for what the engines serve."""
    endpoints: dict[str, list[Endpoint]] = {}
    aliases: dict[str, list[str]] = {}
    sizes: dict[str, list[int]] = {}
    for number, url in enumerate(config.worker_urls, 1):
        if url not in found:
            continue
        for k, names in enumerate(model_names(found[url].models)):
            endpoint = _endpoint(config, url, f"replica-{number}" + f".{k}" * (k > 0), found[url])
            endpoints.setdefault(names[0], []).append(endpoint)
            aliases.setdefault(names[0], []).extend(names[1:])
            sizes.setdefault(names[0], []).extend(_context_sizes(found[url].models, names))
    for alias, model in config.aliases.items():
        aliases.setdefault(model, []).append(alias)
    tenants = {key.tenant for key in config.client_keys}
    table = RoutingTable(
        lineage=LINEAGE,
        epoch=epoch,
        fleet_revision=0,
        created_at=at,
        open_access=not config.client_keys,
        models=tuple(_route(model, aliases[model], sizes[model]) for model in endpoints),
        pools=tuple(_pool(config, model, members) for model, members in endpoints.items()),
        tenants=tuple(Tenant(name=name) for name in sorted(tenants)),
        adapters=tuple(_adapters(found.values(), tenants, endpoints, aliases)),
        api_keys=tuple(
            ApiKey(id=f"key-{i}", sha256=key.sha256, tenant=key.tenant)
            for i, key in enumerate(config.client_keys, 1)
        ),
    )
    return _with_digest(table)


def model_names(models: tuple[ServedModel, ...]) -> list[tuple[str, ...]]:
    """Group an engine's names by the weights behind them; adapters are no models of their own."""
    groups: dict[str, list[str]] = {}
    for model in models:
        if model.parent is None:
            groups.setdefault(model.root or model.id, []).extend((model.id, *model.aliases))
    return [tuple(dict.fromkeys(names)) for names in groups.values()]


def _adapters(
    found: Iterable[Found],
    tenants: set[str],
    models: Collection[str],
    aliases: Mapping[str, list[str]],
) -> Iterator[Adapter]:
    """Give the adapters that engines list, by their listed names, for every tenant."""
    names = {name: model for model in models for name in (model, *aliases[model])}
    owner, *others = sorted(tenants) or [LOCAL_TENANT.name]
    parents = {m.id: m.parent for one in found for m in one.models if m.parent in names}
    for adapter, parent in sorted(parents.items()):
        yield Adapter(
            name=adapter,
            tenant=owner,
            shared_with=tuple(others),
            model=names[parent or ""],
            digest="",
            served_name=adapter,
        )


def _endpoint(config: Standalone, url: str, replica: str, found: Found) -> Endpoint:
    return Endpoint(
        replica=replica,
        url=url,
        engine=found.engine,
        credential=config.engine_key,
        adapters=adapters_of(found.models),
    )


def _pool(config: Standalone, model: str, members: list[Endpoint]) -> Pool:
    return Pool(
        name=model,
        model=model,
        version=VERSION,
        overload=config.overload,
        settings=config.settings,
        endpoints=tuple(members),
    )


def _context_sizes(models: tuple[ServedModel, ...], names: tuple[str, ...]) -> list[int]:
    return [model.max_model_len for model in models if model.id in names and model.max_model_len]


def _route(model: str, aliases: list[str], context_tokens: list[int]) -> ModelRoute:
    """Give a model's route; what its smallest engine takes is what any of them takes."""
    return ModelRoute(
        model=model,
        aliases=tuple(dict.fromkeys(alias for alias in aliases if alias != model)),
        split=(WeightedPool(pool=model),),
        context_tokens=min(context_tokens, default=None),
    )


def _with_digest(table: RoutingTable) -> RoutingTable:
    return replace(table, digest=table_digest(table))
