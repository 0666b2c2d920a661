"""Broken streams carried on by live engines: texts, errors and memory while engines are killed.

python -m bench.live_continuation sglang URL URL --pid-file FILE --restart COMMAND --rounds 3

Each round streams from both engines, kills the first one (SIGKILL, its whole process group) while
all streams are under way, and holds every text against the one of an unbroken run at temperature 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from bench.live_agent import addresses, serving
from bench.live_client import Ending, ask, chat
from bench.machine import resident_mib
from routing_agent.http_client import HttpClient

GOOD = "ok"
LIMIT_S = 240.0
PROMPTS = ("hello world", "list three colors", "tell me a short story about a quiet river")


def bodies(model: str, streams: int, tokens: int) -> list[dict[str, object]]:
    """Give requests of different prompts and lengths, whose greedy text is always the same."""
    made = []
    for i in range(streams):
        body = chat(model, tokens=tokens - 7 * (i % 5), stream=True)
        body["messages"] = [{"role": "user", "content": PROMPTS[i % len(PROMPTS)]}]
        made.append(body)
    return made


async def until_healthy(url: str) -> None:
    """Wait until an engine answers a request."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            if (await ask(url, chat("tiny", tokens=1, stream=False))).outcome == GOOD:
                return
            await asyncio.sleep(1.0)


async def until_used(admin: str, client: HttpClient) -> None:
    """Wait until the agent calls every replica healthy."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            state = await client.call("GET", f"{admin}/agent/v1/state")
            if state.ok and b'"health":"unhealthy"' not in state.body:
                return
            await asyncio.sleep(1.0)


async def golden(url: str, asked: list[dict[str, object]]) -> list[str]:
    """Give the unbroken texts, one after the other from one engine."""
    texts: dict[str, str] = {}
    out = []
    for body in asked:
        key = f"{body['messages']}{body['max_tokens']}"
        if key not in texts:
            texts[key] = (await ask(url, body)).text
        out.append(texts[key])
    return out


async def one_round(options: argparse.Namespace, agent: str, wanted: list[str]) -> list[Ending]:
    """Stream, kill, start again; give how each stream ended."""
    asked = bodies(options.model, options.streams, options.tokens)
    streams = [asyncio.create_task(ask(agent, body)) for body in asked]
    await asyncio.sleep(options.kill_after)
    under_way = sum(not stream.done() for stream in streams)
    victim = _pid(options.pid_file)
    os.killpg(victim, signal.SIGKILL)
    endings = await asyncio.gather(*streams)
    restart = await asyncio.create_subprocess_exec(
        *shlex.split(options.restart), stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    await restart.wait()
    wrong = [(e, w) for e, w in zip(endings, wanted, strict=True)
             if e.outcome == GOOD and e.text != w]  # fmt: skip
    outcomes = ", ".join(f"{n} x {o}" for o, n in Counter(e.outcome for e in endings).items())
    print(f"  {under_way} under way at the kill: {outcomes}; other texts {len(wrong)}", flush=True)
    for ending, want in wrong[:3]:
        at = next((i for i, (a, b) in enumerate(zip(ending.text, want, strict=False)) if a != b),
                  min(len(ending.text), len(want)))  # fmt: skip
        print(f"    differs at character {at} of {len(want)}: "
              f"{ending.text[at - 12:at + 20]!r} not {want[at - 12:at + 20]!r}")  # fmt: skip
    return endings


def _pid(path: str) -> int:
    return int(Path(path).read_text())


async def steady(agent: str, pid: int, options: argparse.Namespace) -> None:
    """Keep streaming for some minutes and tell the agent's memory."""
    ends_at = time.monotonic() + 60 * options.minutes
    asked = bodies(options.model, options.streams, options.tokens // 4)
    count = Counter[str]()

    async def client(body: dict[str, object]) -> None:
        while time.monotonic() < ends_at:
            count[(await ask(agent, body)).outcome] += 1

    clients = [asyncio.create_task(client(body)) for body in asked]
    while time.monotonic() < ends_at:
        print(f"  {resident_mib(pid):.1f} MiB after {dict(count)}", flush=True)
        await asyncio.sleep(20)
    await asyncio.gather(*clients)
    print(f"  {resident_mib(pid):.1f} MiB after {dict(count)}", flush=True)


async def main(options: argparse.Namespace) -> int:
    """Run the rounds; the exit status is 1 if a stream got an error."""
    url, admin = addresses(options)
    client = HttpClient()
    endings: list[Ending] = []
    try:
        async with serving(options, "--broken-stream", "continue", "--slow-start", "1") as agent:
            await until_healthy(url)
            asked = bodies(options.model, options.streams, options.tokens)
            wanted = await golden(options.urls[-1], asked)
            for number in range(1, options.rounds + 1):
                await until_used(admin, client)
                memory = f"memory {resident_mib(agent.pid):.1f} MiB"
                print(f"round {number}: {options.streams} streams, {memory}", flush=True)
                endings += await one_round(options, url, wanted)
            if options.minutes:
                await until_used(admin, client)
                await steady(url, agent.pid, options)
    finally:
        await client.close()
    return int(any(ending.outcome != GOOD for ending in endings))


def parser() -> argparse.ArgumentParser:
    """Give the command line."""
    made = argparse.ArgumentParser(prog="python -m bench.live_continuation", description=__doc__)
    made.add_argument("engine", choices=["vllm", "sglang", "llamacpp"])
    made.add_argument("urls", nargs=2, metavar="URL")
    made.add_argument("--model", default="tiny")
    made.add_argument("--pid-file", required=True, metavar="FILE", help="of the first engine")
    made.add_argument("--restart", required=True, metavar="COMMAND")
    made.add_argument("--port", type=int, default=21210, help="of our agent; the next is its admin")
    made.add_argument("--streams", type=int, default=24)
    made.add_argument("--tokens", type=int, default=200)
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--minutes", type=float, default=0.0, help="of steady load after the rounds")
    made.add_argument("--kill-after", type=float, default=3.0, metavar="SECONDS")
    made.add_argument("--serve-options", default="", metavar="WORDS")
    made.add_argument("--log", default=os.devnull, metavar="FILE", help="for the agent's log")
    return made


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
