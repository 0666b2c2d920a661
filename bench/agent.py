"""Our agent as it runs under a control plane, with the table given instead of delivered.

python -m bench.agent PORT FOLDER ENGINE_PORT… [--policy NAME] [--workers N] [--serving N]

With `--serving` only the first N engines take requests; on SIGHUP as many as FOLDER/serving says,
and those that no longer serve are drained. Everything a request meets in production is on: a key,
the tenant's limits on requests, tokens and concurrency (too high to be reached), metrics, usage
records on disk, probes and scrapes.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import count
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

MakeTable = Callable[..., wire.RoutingTable]


def table(
    engine_ports: list[int],
    settings: wire.PoolSettings,
    *,
    serving: int | None = None,
    epoch: int = 1,
) -> wire.RoutingTable:
    """Give a table of one pool, with keys and limits, of whose replicas the first so many serve."""
    away: wire.EndpointState = "warming" if epoch == 1 else "draining"
    serving = len(engine_ports) if serving is None else serving
    endpoints = tuple(
        wire.Endpoint(
            replica=f"replica-{i}",
            url=f"http://127.0.0.1:{port}",
            state="ready" if i <= serving else away,
        )
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
        epoch=epoch,
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


async def live(port: int, folder: Path, make: MakeTable, serving: int, workers: str) -> None:
    """Serve until told to stop."""
    stopped = asyncio.Event()
    parts = Parts.build(serve_config(["--worker-urls", "http://unused", "--workers", workers]))
    parts.apply_at(make(serving=serving), time.time())
    epochs = count(2)

    def resize() -> None:
        wanted = int((folder / "serving").read_text())
        parts.apply_at(make(serving=wanted, epoch=next(epochs)), time.time())

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, resize)
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
    parser.add_argument("--serving", type=int)
    given = parser.parse_args()
    make = partial(table, given.engines, wire.PoolSettings(policy=given.policy))
    at_first = given.serving or len(given.engines)
    uvloop.run(live(given.port, given.folder, make, at_first, given.workers))
