"""Our agent as it runs under a control plane, with the table given instead of delivered.

python -m bench.agent PORT FOLDER ENGINE_PORT… [--policy NAME] [--workers N]

Everything a request meets in production is on: a key, the tenant's limits on requests, tokens and
concurrency (too high to be reached), metrics, usage records on disk, probes and scrapes.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import signal
import time
from pathlib import Path

import uvloop

from routing_agent import compiled

compiled.use()  # before anything else of the package is imported

from bench.machine import KEY, MODEL
from routing_agent import log, wire
from routing_agent.app import Parts
from routing_agent.config import serve_config
from routing_agent.control.spool import UsageSpool

REPORT_PAUSE_S = 2.0


def table(engine_ports: list[int], settings: wire.PoolSettings) -> wire.RoutingTable:
    """Give a table of one pool, with keys and limits."""
    endpoints = tuple(
        wire.Endpoint(replica=f"replica-{i}", url=f"http://127.0.0.1:{port}")
        for i, port in enumerate(engine_ports, 1)
    )
    limits = wire.TenantLimits(
        requests_per_minute=10**8, tokens_per_minute=10**12, concurrency=10**5
    )
    pool = wire.Pool(
        name="pool",
        model=MODEL,
        version="1",
        overload="queue",
        endpoints=endpoints,
        settings=settings,
    )
    return wire.RoutingTable(
        lineage="bench",
        epoch=1,
        fleet_revision=0,
        models=(wire.ModelRoute(model=MODEL, split=(wire.WeightedPool(pool="pool"),)),),
        pools=(pool,),
        tenants=(wire.Tenant(name="tenant", limits=limits),),
        api_keys=(
            wire.ApiKey(id="key", sha256=hashlib.sha256(KEY.encode()).hexdigest(), tenant="tenant"),
        ),
    )


async def take_reports(parts: Parts, spool: UsageSpool) -> None:
    """Take what a report to the control plane would take, as often."""
    while True:
        await asyncio.sleep(REPORT_PAUSE_S)
        parts.metrics.take_deltas()
        usage = await spool.take()
        if usage:
            await spool.acknowledge(usage[-1].number)


async def live(port: int, folder: Path, routes: wire.RoutingTable, workers: str) -> None:
    """Serve until told to stop."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    parts = Parts.build(serve_config(["--worker-urls", "http://unused", "--workers", workers]))
    parts.apply_at(routes, time.time())
    spool = UsageSpool(folder / "usage.jsonl")
    proxy = parts.proxy(spool.add)
    await proxy.start("127.0.0.1", port)
    loops = [*parts.watchers().values(), take_reports(parts, spool)]
    running = asyncio.gather(*loops)
    await asyncio.wait(
        (running, asyncio.ensure_future(stopped.wait())), return_when="FIRST_COMPLETED"
    )
    running.cancel()
    await proxy.drain(1.0)
    await parts.client.close()
    spool.close()


if __name__ == "__main__":
    log.configure("warning")
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("engines", type=int, nargs="+")
    parser.add_argument("--policy", default=wire.PoolSettings().policy)
    parser.add_argument("--workers", default="1")
    given = parser.parse_args()
    routes = table(given.engines, wire.PoolSettings(policy=given.policy))
    uvloop.run(live(given.port, given.folder, routes, given.workers))
