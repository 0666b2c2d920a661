"""How much of real conversations our policies find cached, by the engines' own counters.

    bin/bench conversations --policies least_tokens consistent_hash expected_ttft

Starts simulated engines and our agent anew for each policy and lets people talk: each conversation
begins with one of a few shared system texts and goes on for some turns, every turn with all that
was said before. `--no-session` sends no session key; `--restart` kills the first engine in the
middle and starts it again. `--workers 1 4` compares agents of one and of several processes.
`--urls` takes live engines instead, whose counters go on from where they are; between policies
their caches are left as they are, so name one policy at a time.
`--beside` measures our policies and other routers in rounds, each in turn before fresh engines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.live_client import Ending, ask, get_json
from bench.live_run import until
from bench.machine import BenchError, family_cpu_s
from bench.talks.beside import Setting
from bench.talks.beside import run as beside
from bench.talks.figures import table, troubles
from bench.talks.people import Crowd
from routing_agent.engine.base import EngineLoad
from routing_agent.engine.drivers import driver_for
from routing_agent.http_client import CallFailed, HttpClient

READY_S = 60.0
DECODE_STEP_MS = 8.0
WORDS = (
    "router", "sends", "each", "request", "to", "replica", "that", "holds", "its", "prefix",
)  # fmt: skip


@dataclass
class Ran:
    """One policy's run."""

    policy: str
    workers: int = 1
    endings: list[Ending] = field(default_factory=list)
    routes: dict[str, int] = field(default_factory=dict)
    computed: list[float] = field(default_factory=list)  # prompt tokens of each engine
    cached: list[float] = field(default_factory=list)  # of those, from its cache
    seconds: float = 0.0
    agent_cpu_s: float = 0.0
    forgotten: str = ""

    def row(self) -> dict[str, Any]:
        """Give the figures: hit rate and imbalance by tokens, times to first token in ms."""
        asked, hits = sum(self.computed), sum(self.cached)
        work = [all_ - hit for all_, hit in zip(self.computed, self.cached, strict=True)]
        ttft = sorted(e.first_token_at - e.began_at for e in self.endings if e.first_token_at)
        good = sum(e.outcome == "ok" for e in self.endings)
        return {
            "policy": self.policy,
            "workers": self.workers,
            "requests": len(self.endings),
            "failed": len(self.endings) - good,
            "hit_rate": round(hits / asked, 4) if asked else None,
            "work_max_mean": round(max(work) * len(work) / sum(work), 3) if sum(work) else None,
            "ttft_p50_ms": _ms(ttft, 0.5),
            "ttft_p99_ms": _ms(ttft, 0.99),
            "ttft_mean_ms": round(1000 * sum(ttft) / len(ttft), 1) if ttft else None,
            "seconds": round(self.seconds, 1),
            "cpu_ms_per_request": round(1000 * self.agent_cpu_s / max(len(self.endings), 1), 3),
            "forgotten": self.forgotten,
        }


def _ms(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)], 1)


def text(chance: random.Random, words: int) -> str:
    """Give so many words, none of which another text has by chance."""
    return " ".join(f"{chance.choice(WORDS)}{chance.randrange(10**5)}" for _ in range(words))


@contextlib.asynccontextmanager
async def program(*words: str, log: Path) -> AsyncIterator[Process]:
    """Run one of our own programs for as long as the context lasts."""
    with log.open("ab") as sink:
        command = [sys.executable, "-m", "routing_agent", *words]
        process = await asyncio.create_subprocess_exec(*command, stdout=sink, stderr=sink)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


def engine_words(options: argparse.Namespace, number: int) -> list[str]:
    """Give the command line of one simulated engine."""
    return [
        "simulate-engine", "--port", str(options.port + 10 + number), "--model", "m",
        "--prefill-rate", str(options.prefill_rate), "--kv-blocks", str(options.kv_blocks),
        "--answer-tokens", str(options.answer_tokens), "--decode-step-ms", str(DECODE_STEP_MS),
    ]  # fmt: skip


async def load_of(client: HttpClient, url: str, engine: str) -> EngineLoad:
    """Read an engine's counters."""
    driver = driver_for(engine)  # type: ignore[arg-type]
    if driver.metrics_path is None:
        raise BenchError(f"{engine} has no metrics page, so no counters of its own")
    response = await client.call("GET", url + driver.metrics_path, timeout_s=10)
    return driver.read_load(response.body.decode())


async def until_ready(client: HttpClient, url: str, path: str = "/health") -> None:
    """Wait until something answers there."""

    async def answers() -> bool:
        with contextlib.suppress(CallFailed):
            return (await client.call("GET", url + path, timeout_s=5)).ok
        return False

    await _soon(answers, f"{url} does not answer")


async def _soon(condition: Callable[[], Awaitable[object]], wrong: str) -> None:
    if await until(condition, READY_S) is None:
        raise BenchError(f"{wrong} within {READY_S:.0f} s")


async def converse(options: argparse.Namespace, ran: Ran, number: int, system: str) -> None:
    """Hold one conversation to its end."""
    chance = random.Random(f"{options.seed}-{number}")
    messages = [{"role": "system", "content": system}]
    await asyncio.sleep(chance.random() * options.think * 2)
    for _ in range(options.turns):
        messages.append({"role": "user", "content": text(chance, options.words)})
        body = {"model": options.model, "messages": messages, "stream": True,
                "max_tokens": options.answer_tokens}  # fmt: skip
        if options.session:
            body["session_id"] = f"s{number}"
        ending = await ask(f"http://127.0.0.1:{options.port}", body)
        ran.endings.append(ending)
        messages.append({"role": "assistant", "content": ending.text or "…"})
        await asyncio.sleep(chance.expovariate(1 / options.think))


async def run_policy(
    options: argparse.Namespace, policy: str, workers: int, client: HttpClient
) -> Ran:
    """Start everything, let all conversations go on, read the counters."""
    ran = Ran(policy, workers)
    log = Path(options.log)
    async with contextlib.AsyncExitStack() as stack:
        urls, engines = list(options.urls), []
        for number in range(0 if urls else options.engines):
            engine = program(*engine_words(options, number), log=log)
            engines.append(await stack.enter_async_context(engine))
        urls = urls or [f"http://127.0.0.1:{options.port + 10 + n}" for n in range(len(engines))]
        for url in urls:
            await until_ready(client, url)
        before = [await load_of(client, url, options.engine) for url in urls]
        agent = await stack.enter_async_context(
            program("serve", "--worker-urls", *urls, "--engine", options.engine,
                    "--port", str(options.port), "--admin-port", str(options.port + 1),
                    "--policy", policy, "--slow-start", "0", "--workers", str(workers),
                    *options.serve, log=log)
        )  # fmt: skip
        admin = f"http://127.0.0.1:{options.port + 1}"
        await until_ready(client, admin, "/readyz")
        await until_healthy(client, admin, len(urls))
        systems = [text(random.Random(f"{options.seed}{n}"), options.words * 3) for n in range(4)]
        began, cpu = time.monotonic(), family_cpu_s(agent.pid)
        async with asyncio.TaskGroup() as tasks:
            for n in range(options.conversations):
                tasks.create_task(converse(options, ran, n, systems[n % len(systems)]))
            if options.restart and engines:
                tasks.create_task(restart(options, ran, engines[0], client, stack))
        ran.seconds, ran.agent_cpu_s = time.monotonic() - began, family_cpu_s(agent.pid) - cpu
        after = [await load_of(client, url, options.engine) for url in urls]
        ran.computed = [_grown(b, a, "prompt") for b, a in zip(before, after, strict=True)]
        ran.cached = [_grown(b, a, "cached_prompt") for b, a in zip(before, after, strict=True)]
        await tell(client, admin)
    return ran


async def restart(
    options: argparse.Namespace, ran: Ran, engine: Process, client: HttpClient,
    stack: contextlib.AsyncExitStack,
) -> None:  # fmt: skip
    """Kill the first engine in the middle, start it again, and see when its profile is empty."""
    admin = f"http://127.0.0.1:{options.port + 1}"
    await asyncio.sleep(options.restart)
    held = (await prefix_of(client, admin)).get("blocks", 0)
    engine.kill()
    await engine.wait()
    again = program(*engine_words(options, 0), log=Path(options.log))
    await stack.enter_async_context(again)
    began = time.monotonic()
    await until_ready(client, f"http://127.0.0.1:{options.port + 10}")
    up_s = time.monotonic() - began

    async def is_forgotten() -> bool:
        return bool((await prefix_of(client, admin)).get("blocks", 0) <= held / 4)

    await _soon(is_forgotten, "the profile of the engine that was killed is not forgotten")
    after_s = time.monotonic() - began - up_s
    ran.forgotten = f"{held} blocks, gone {after_s:.2f} s after the new process answered"


async def until_healthy(client: HttpClient, admin: str, count: int) -> None:
    """Wait until the agent has found all engines healthy and scraped."""

    async def are_known() -> bool:
        replicas = await replicas_of(client, admin)
        good = [r for r in replicas if r.get("health") == "healthy" and "scrape_age_s" in r]
        return len(good) == count

    await _soon(are_known, "the agent does not find all engines healthy")


async def replicas_of(client: HttpClient, admin: str) -> list[dict[str, Any]]:
    """Read what the agent knows of each engine; none while it does not answer."""
    state = await get_json(client, f"{admin}/agent/v1/state")
    return list(state.get("replicas", []))


async def prefix_of(client: HttpClient, admin: str) -> dict[str, Any]:
    """Read what the agent believes of the first engine's cache."""
    replicas = await replicas_of(client, admin)
    return dict(replicas[0].get("prefix") or {}) if replicas else {}


async def tell(client: HttpClient, admin: str) -> None:
    """Print what the agent learned of each engine."""
    for replica in await replicas_of(client, admin):
        told = {k: replica.get(k) for k in ("replica", "requests_total", "prompt_tokens_total",
                                            "cached_prompt_tokens_total", "prefix")}  # fmt: skip
        print("   ", json.dumps(told), file=sys.stderr)


def _grown(before: EngineLoad, after: EngineLoad, what: str) -> float:
    name = f"{what}_tokens_total"
    first, last = getattr(before, name) or 0.0, getattr(after, name) or 0.0
    return float(last - first if last >= first else last)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `conversations`."""
    parser.add_argument("--policies", nargs="+", default=["expected_ttft"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1], metavar="N")
    parser.add_argument("--urls", nargs="*", default=[])
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--model", default="m")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--think", type=float, default=0.5)
    parser.add_argument("--answer-tokens", type=int, default=24)
    parser.add_argument("--prefill-rate", type=float, default=4000.0)
    parser.add_argument("--kv-blocks", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--no-session", dest="session", action="store_false")
    parser.add_argument("--restart", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--log", default="/dev/null")
    beside = parser.add_argument_group("--beside: interleaved with other routers")
    beside.add_argument("--beside", action="store_true", help="the same talks through each")
    beside.add_argument("--rounds", type=int, default=4, help="default 4")
    beside.add_argument("--per-second", type=float, default=5.0, help="new conversations, mean")
    beside.add_argument("--routers", nargs="*", default=[], metavar="NAME", help="default: all")
    beside.add_argument("--out", type=Path, help="each run is appended as a line of JSON")
    beside.add_argument("--show", type=Path, help="measure nothing: the table of such a file")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[])


def main(options: argparse.Namespace) -> int:
    """Run every policy and print a line of JSON for each; 1 if something does not start."""
    try:
        if options.beside or options.show:
            return _beside(options)
        asyncio.run(_run_all(options))
    except BenchError as problem:
        print(f"bin/bench conversations: {problem}", file=sys.stderr)
        return 1
    return 0


def _beside(options: argparse.Namespace) -> int:
    if options.show:
        rows = [json.loads(line) for line in options.show.read_text().splitlines()]
        rows = [row for row in rows if row["keys"] == options.session]
    else:
        crowd = Crowd(conversations=options.conversations, per_second=options.per_second,
                      turns=options.turns, pause_s=options.think,
                      answer_tokens=options.answer_tokens, seed=options.seed)  # fmt: skip
        setting = Setting(
            crowd=crowd,
            has_key=options.session,
            decode_step_ms=DECODE_STEP_MS,
            prefill_rate=options.prefill_rate,
            kv_blocks=options.kv_blocks,
        )
        rows = beside(setting, options.rounds, options.routers, options.out)
    print(table(rows))
    for trouble in troubles(rows):
        print(f"NOT CLEAN: {trouble}")
    return 0


async def _run_all(options: argparse.Namespace) -> None:
    client = HttpClient()
    try:
        for policy in options.policies:
            for workers in options.workers:
                ran = await run_policy(options, policy, workers, client)
                print(json.dumps(ran.row()), flush=True)
    finally:
        await client.close()
