"""Routing tables as chance has them: pools, splits, shapes, shadows, cascades, limits, states."""

from __future__ import annotations

import random
import time
from hashlib import sha256
from typing import Any, Final

import msgspec

from routing_agent import wire
from tests.chaos.engine import ChaosEngine

POOLS: Final = ("chat", "canary", "small", "long", "copies")
KEYS: Final = {"sk-1": "acme", "sk-2": "beta"}
IMPATIENT: Final = {
    "ttft_limit_s": 1.0,
    "stall_limit_s": 1.0,
    "probe_interval_s": 0.5,
    "breaker_open_s": 0.5,
    "queue_deadline_s": 2.0,
    "retry_budget_ratio": 0.5,
}
POLICIES: Final = ("expected_ttft", "least_tokens", "consistent_hash", "cache_aware", "round_robin")


class Tables:
    """Makes one table after another."""

    def __init__(self, chance: random.Random, engines: list[ChaosEngine]) -> None:
        self.chance = chance
        self.engines = engines
        self.epoch = 0
        self.leased = chance.random() < 0.5

    def next(self) -> wire.RoutingTable:
        choice, self.epoch = self.chance.choice, self.epoch + 1
        has_shapes = self.chance.random() < 0.4
        places: dict[str, list[tuple[str, str]]] = {name: [] for name in POOLS}
        for number, engine in enumerate(self.engines):
            name = POOLS[number] if number < 3 else choice(POOLS)
            places[name].append((f"r{number}", engine.url))
        settings = self._settings()
        table = wire.RoutingTable(
            lineage="lineage-1",
            epoch=self.epoch,
            fleet_revision=self.epoch,
            hash_seed=7,
            models=self._models(has_shapes),
            pools=tuple(self._pool(name, places[name], settings, has_shapes) for name in POOLS),
            tenants=(
                self._tenant("acme", 5, concurrency=choice([None, 60, 3])),
                self._tenant("beta", 0, concurrency=choice([None, 5]), requests_per_minute=600),
            ),
            api_keys=tuple(
                wire.ApiKey(id=key, sha256=sha256(key.encode()).hexdigest(), tenant=tenant)
                for key, tenant in KEYS.items()
            ),
        )
        return msgspec.structs.replace(table, digest=wire.table_digest(table))

    def _settings(self) -> dict[str, Any]:
        choice = self.chance.choice
        return IMPATIENT | {
            "policy": choice(POLICIES),
            "broken_stream": choice(["continue", "end"]),
            "slow_start_s": choice([0, 2]),
            "max_concurrency_per_replica": choice([None, None, 4, 2]),
            "queue_limit_per_replica": choice([2, 8]),
            "max_retries": choice([0, 1, 2, 2]),
            "bind_ahead_s": choice([0, 0.05]),
        }

    def _pool(
        self, name: str, places: list[tuple[str, str]], settings: dict[str, Any], has_shapes: bool
    ) -> wire.Pool:
        choice = self.chance.choice
        overload = "queue" if name == "small" else choice(["queue", "reject", "fallback"])
        limit = 2000 if has_shapes and name == "chat" else None
        shadow = wire.Shadow(pool="copies", ratio=choice([0.1, 1.0]), at_once=2)
        return wire.Pool(
            name=name,
            model="small" if name == "small" else "m",
            version=f"v-{name}",
            overload=overload,
            fallback_pool="small" if overload == "fallback" else "",
            settings=wire.PoolSettings(**settings, max_input_tokens=limit),
            endpoints=tuple(self._endpoint(*place) for place in places),
            start_wait_s=choice([0, 0.3]),
            may_grow_to=choice([0, 4]),
            shadow=shadow if name == "chat" and self.chance.random() < 0.6 else None,
        )

    def _endpoint(self, replica: str, url: str) -> wire.Endpoint:
        choice = self.chance.choice
        states = ["ready"] * 8 + ["warming", "draining", "ejected"]
        return wire.Endpoint(
            replica=replica,
            url=url,
            zone=choice(["", "a", "b"]),
            weight=choice([0.1, 1, 1, 5]),
            state=choice(states),
            ready_at=choice([0.0, time.time()]),
            kv_capacity_tokens=choice([None, 0, 100, 100_000]),
        )

    def _models(self, has_shapes: bool) -> tuple[wire.ModelRoute, ...]:
        choice = self.chance.choice
        other = wire.WeightedPool(pool="long" if has_shapes else "canary", weight=choice([0, 30]))
        cascade = wire.CascadeRule(to="m", min_mean_logprob=choice([None, -0.5]))
        classes = (
            wire.ComplexityClass(name="easy", model="small", below=0.0),
            wire.ComplexityClass(name="hard", model="m"),
        )
        return (
            wire.ModelRoute(
                model="m", aliases=("alias",), split=(wire.WeightedPool(pool="chat"), other)
            ),
            wire.ModelRoute(
                model="small",
                split=(wire.WeightedPool(pool="small"),),
                cascade=choice([cascade, None]),
            ),
            wire.ModelRoute(
                model="auto",
                complexity=wire.ComplexityRule(
                    weights={"prompt_tokens": 0.001}, bias=-1, classes=classes
                ),
            ),
        )

    def _tenant(self, name: str, priority: int, **limits: int | None) -> wire.Tenant:
        return wire.Tenant(
            name=name, priority=priority, limits=wire.TenantLimits(leased=self.leased, **limits)
        )
