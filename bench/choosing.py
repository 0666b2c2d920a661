"""What a choice costs: microseconds of CPU by policy and size of the pool.

Each pool is busy: prompts wait at most replicas, and each holds a few hundred prompts in its
profile. A third of the requests have a prefix that some replicas hold, a third one that a single
replica holds, a third one that nobody knows. Compiled code is measured where it has been compiled.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from routing_agent import wire
from routing_agent.core.choose import POLICIES, choose
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefix import chain
from routing_agent.wire import PolicyName

BLOCK_BYTES: Final = 256
BLOCK_TOKENS: Final = 64.0
SHARED_BLOCKS: Final = 40
PROMPTS: Final = 96


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--replicas", default="8,100,1000", help="default 8,100,1000")
    parser.add_argument("--blocks", default="8,500", help="of a prompt (default 8,500)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of CPU a figure (default 0.5)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def main(args: argparse.Namespace) -> int:
    """Measure and print."""
    sizes = [int(word) for word in args.replicas.split(",")]
    found: dict[str, dict[str, float]] = {}
    for blocks in (int(word) for word in args.blocks.split(",")):
        body = random.Random(1).randbytes(blocks * BLOCK_BYTES)
        hashing = partial(chain, body, block_bytes=BLOCK_BYTES)
        found[f"hashing {blocks} blocks"] = {"": _us(hashing, args)}
        for policy in POLICIES:
            found[f"{policy}, {blocks} blocks"] = {
                str(size): _choice_us(policy, size, blocks, args) for size in sizes
            }
        found[f"insertion of {blocks} blocks"] = {
            str(size): _insertion_us(size, blocks, args) for size in sizes
        }
    print(json.dumps(found, indent=1) if args.json else as_text(found, sizes))
    return 0


def as_text(found: dict[str, dict[str, float]], sizes: list[int]) -> str:
    """Show the figures, one row for each policy and length."""
    lines = [f"{'microseconds of CPU, replicas:':36}" + "".join(f"{size:>9,}" for size in sizes)]
    for name, row in found.items():
        lines.append(f"{name:36}" + "".join(f"{value:9.1f}" for value in row.values()))
    return "\n".join(lines)


def _choice_us(policy: str, size: int, blocks: int, args: argparse.Namespace) -> float:
    pool, requests = busy_pool(policy, size, blocks)
    chance = random.Random(2)
    return _us(lambda n: choose(requests[n % len(requests)], pool, now=1000.0, chance=chance), args)


def _insertion_us(size: int, blocks: int, args: argparse.Namespace) -> float:
    pool, requests = busy_pool("expected_ttft", size, blocks)
    replicas = pool.replicas

    def place(n: int) -> None:
        replica = replicas[n % size]
        placement = pool.note_placed(requests[n * 7 % len(requests)], replica, now=1000.0)
        replica.prefill.give_up(placement, 1000.0)

    return _us(place, args)


def busy_pool(policy: str, size: int, blocks: int) -> tuple[PoolState, list[RouteRequest]]:
    """Give a pool at work, and requests for it."""
    chance = random.Random(size)
    pool = _pool(msgspec.convert(policy, PolicyName), size)
    known = [_request(chance, blocks) for _ in range(PROMPTS)]
    for number, replica in enumerate(pool.replicas):
        for request in (known[0], known[number % PROMPTS], known[number * 7 % PROMPTS]):
            placement = pool.note_placed(request, replica, now=999.0)
            if chance.random() < 0.3:
                replica.prefill.give_up(placement, 999.0)
            replica.begin(request.tokens, 999.0)
    unknown = [_request(chance, blocks) for _ in range(PROMPTS // 2)]
    return pool, known + unknown


def _request(chance: random.Random, blocks: int) -> RouteRequest:
    shared = min(SHARED_BLOCKS, blocks // 2)
    hashes = [*range(1, shared + 1), *(chance.getrandbits(64) for _ in range(blocks - shared))]
    tokens = int(blocks * BLOCK_TOKENS)
    session = chance.getrandbits(64)
    return RouteRequest(
        tokens + 256, session, prompt_tokens=tokens, blocks=hashes, block_tokens=BLOCK_TOKENS
    )


def _pool(policy: PolicyName, size: int) -> PoolState:
    fleet = Fleet()
    endpoints = tuple(
        wire.Endpoint(replica=f"r{number:04}", url=f"http://replica-{number}:8000")
        for number in range(size)
    )
    pool = wire.Pool(
        name="p",
        model="m",
        version="1",
        overload="queue",
        settings=wire.PoolSettings(policy=policy),
        endpoints=endpoints,
    )
    route = wire.ModelRoute(model="m", split=(wire.WeightedPool(pool="p", weight=100),))
    table = wire.RoutingTable(
        lineage="l", epoch=1, fleet_revision=1, models=(route,), pools=(pool,), open_access=True
    )
    fleet.apply(table, now=0.0, wall=0.0)
    return fleet.pools["p"]


def _us(call: Callable[[int], object], args: argparse.Namespace) -> float:
    """Give the CPU microseconds of a call, the best of five equal parts of the time."""
    best, number = float("inf"), 0
    for _ in range(5):
        began, calls = time.process_time(), 0
        while not calls or time.process_time() - began < args.seconds / 5:
            for _ in range(20):
                call(number)
                number += 1
            calls += 20
        best = min(best, (time.process_time() - began) / calls)
    return best * 1e6
