"""What an agent believes of an engine that is killed and comes back: forgotten at once, or not.

    python -m bench.live_restart vllm http://127.0.0.1:8301 http://127.0.0.1:8302 \\
        --pid-file FILE --restart "COMMAND WORDS" [--adapter FOLDER] [--overlap]

Conversations go through our agent to two live engines; one of them is found, by `explain`, to be
held by the first engine, which then is killed (SIGKILL, its process group) under streams and
started again on its port. Told is when the agent saw what, and that nothing of the process that is
gone was believed afterwards. With `--overlap` the new process is started first and the old one is
killed as soon as the new one listens too, so that nobody finds the port closed; for that both must
bind with SO_REUSEPORT.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shlex
import signal
import sys
import time
from asyncio.subprocess import Process
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.conversations import text
from bench.live_agent import addresses, serving
from bench.live_client import Ending, ask, get_json
from bench.live_run import GOOD, LONG, RETURN_LIMIT_S, Run, pid_of, seconds, until
from routing_agent.engine.drivers import driver_for
from routing_agent.http_client import CallFailed, HttpClient

FIRST: Final = "replica-1"
ADAPTER: Final = "bench.live.0123456789ab"  # by its form one that an agent loaded
TALKS: Final = 24
WORDS: Final = 60
READY_S: Final = 90.0
EVERY_S: Final = 0.2  # a request that goes on meanwhile
LISTENING: Final = "0A"  # in /proc/net/tcp


@dataclass
class Seen:
    """When what was seen first, in monotonic seconds."""

    at: dict[str, float] = field(default_factory=dict)
    killed_at: float = 0.0

    def note(self, what: str) -> None:
        """Note the first sight of something."""
        self.at.setdefault(what, time.monotonic())

    def since_kill(self, what: str) -> str:
        """Tell how long after the kill it was seen."""
        return seconds(self.at[what] - self.killed_at) if what in self.at else "never"

    def between(self, first: str, then: str) -> str:
        """Tell how long after one sight another came."""
        if first not in self.at or then not in self.at:
            return "never"
        return f"{self.at[then] - self.at[first]:+.2f} s"


@dataclass(frozen=True)
class Talk:
    """One conversation of one turn, and where it went."""

    session: str
    messages: list[dict[str, str]]
    replica: str = ""


# -- asking ----------------------------------------------------------------------------------------


async def uncached(run: Run, talk: Talk) -> dict[str, float]:
    """Ask the agent how many tokens of a prompt each replica would have to compute."""
    question = {"model": run.model, "session": talk.session, "messages": talk.messages}
    with contextlib.suppress(CallFailed):
        answer = await run.client.call(
            "POST", f"{run.admin}/agent/v1/explain", body=json.dumps(question).encode()
        )
        candidates = json.loads(answer.body).get("candidates", [])
        return {c["replica"]: c["terms"]["uncached_tokens"] for c in candidates}
    return {}


async def holds(run: Run, talk: Talk, replica: str) -> bool:
    """Whether a replica is believed to hold more of a prompt than the others do."""
    found = await uncached(run, talk)
    return replica in found and found[replica] < max(found.values()) / 2


def body_of(run: Run, talk: Talk, **more: Any) -> dict[str, Any]:
    """Give a conversation's request."""
    return {"model": run.model, "messages": talk.messages, "session_id": talk.session,
            "max_tokens": 8, "stream": True, **more}  # fmt: skip


async def talked(run: Run, first: int = 0) -> list[Talk]:
    """Hold conversations from a number on, one after the other; give where each went."""
    chance, held = random.Random(f"{run.options.seed}/{first}"), list[Talk]()
    for number in range(first, first + TALKS):
        messages = [{"role": "user", "content": text(chance, WORDS)}]
        talk = Talk(f"{run.options.seed}-{number}", messages)
        ending = await ask(run.agent, body_of(run, talk))
        held.append(Talk(talk.session, messages, ending.replica))
    return held


async def state_of(run: Run, replica: str) -> dict[str, Any]:
    """Give what the agent tells of one replica; nothing while it does not answer."""
    return (await run.replicas()).get(replica, {})


# -- breaking --------------------------------------------------------------------------------------


async def watch(run: Run, talk: Talk, seen: Seen, old: dict[str, Any], over: asyncio.Event) -> None:
    """Note when the agent saw what of the engine that is killed."""
    while not over.is_set():
        await asyncio.sleep(0.01)
        if not seen.killed_at:
            continue
        now = await state_of(run, FIRST)
        if now.get("scrape_error"):
            seen.note("a scrape fails")
        if now.get("health") == "unhealthy":
            seen.note("called dead")
        if now.get("process_started_at", 0.0) != old.get("process_started_at"):
            seen.note("another start time")
        if not (now.get("prefix") or {}).get("blocks", 0):
            seen.note("profile empty")
        if not now.get("adapters"):
            seen.note("adapters gone")
        if not now.get("inflight_requests"):
            seen.note("load gone")
        if not await holds(run, talk, FIRST):
            seen.note("prompt not believed there")


async def watch_process(run: Run, seen: Seen, over: asyncio.Event) -> None:
    """Note when the new process answers, asked directly."""
    while not over.is_set():
        page = ""
        with contextlib.suppress(CallFailed):
            page = (
                await run.client.call("GET", run.urls[0] + "/metrics", timeout_s=5)
            ).body.decode()
        if page:
            load = driver_for(run.engine).read_load(page)  # type: ignore[arg-type]
            if (load.process_started_at or 0.0) > run.options.old_start + 1.0:
                seen.note("the new process answers")
                return
        await asyncio.sleep(0.01)


async def keep_busy(run: Run, talk: Talk, seen: Seen) -> list[str]:
    """Stream one conversation again and again until the kill; give how the streams ended."""
    outcomes = []
    while not seen.killed_at:
        outcomes.append((await ask(run.agent, body_of(run, talk, max_tokens=LONG))).outcome)
    return outcomes


async def go_on(run: Run, endings: list[Ending], over: asyncio.Event) -> None:
    """Send short requests of fresh sessions meanwhile."""
    chance, number = random.Random(f"{run.options.seed}-more"), 0
    while not over.is_set():
        number += 1
        talk = Talk(f"more-{run.options.seed}-{number}",
                    [{"role": "user", "content": text(chance, 6)}])  # fmt: skip
        endings.append(await ask(run.agent, body_of(run, talk)))
        await asyncio.sleep(EVERY_S)


async def start_again(run: Run, seen: Seen) -> Process:
    """Kill the first engine and start it on its port, or the other way round."""
    words = shlex.split(run.options.restart)
    old = pid_of(run.options.pid_file)
    starting = None
    if run.options.overlap:
        starting = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        await until(partial(_both_listen, urlsplit(run.urls[0]).port or 0), RETURN_LIMIT_S,
                    pause_s=0.01)  # fmt: skip
    seen.killed_at = time.monotonic()
    os.killpg(old, signal.SIGKILL)
    return starting or await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )


async def _both_listen(port: int) -> bool:
    lines = Path("/proc/net/tcp").read_text().splitlines()  # noqa: ASYNC240 - of the kernel's memory
    found = [line.split() for line in lines[1:]]
    return sum(f[1].endswith(f":{port:04X}") and f[3] == LISTENING for f in found) > 1


async def restarted(run: Run) -> None:
    """Find what the first engine holds, kill it, start it again, and see what is believed."""
    held = await talked(run)
    run.note("conversations", str(dict(Counter(t.replica for t in held))), True)
    there = [t for t in held if t.replica == FIRST and await holds(run, t, FIRST)]
    run.note("explain: prefix held by the first engine", f"{len(there)} of those that went there",
             bool(there))  # fmt: skip
    talk = there[-1]
    before = await state_of(run, FIRST)
    run.note("uncached tokens of one, by replica", str(await uncached(run, talk)), True)
    run.options.old_start = before.get("process_started_at") or 0.0
    seen, over, endings = Seen(), asyncio.Event(), list[Ending]()
    streams = [asyncio.ensure_future(keep_busy(run, talk, seen)) for _ in range(2)]
    await until(partial(_runs_there, run), 20.0)
    before = await state_of(run, FIRST)
    run.note("before", _told(before), True)
    watchers = [
        asyncio.ensure_future(watch(run, talk, seen, before, over)),
        asyncio.ensure_future(watch_process(run, seen, over)),
        asyncio.ensure_future(go_on(run, endings, over)),
    ]
    starting = await start_again(run, seen)
    good = await until(partial(_both, seen), RETURN_LIMIT_S)
    after = await state_of(run, FIRST)
    share = await uncached(run, talk)
    again = await ask(run.agent, body_of(run, talk))
    await until(partial(_is_used_again, run, endings, seen), 60.0)
    over.set()
    await asyncio.gather(*watchers)
    await starting.wait()
    _tell(run, seen, good)
    run.note("uncached tokens of it then", str(share), len(set(share.values())) == 1)
    run.note("after", _told(after), not after.get("adapters"))
    run.note("the same prompt again", f"{again.outcome} from {again.replica}",
             again.outcome == GOOD)  # fmt: skip
    _account(run, endings, [await s for s in streams])
    held = await talked(run, first=TALKS)
    there = [t for t in held if t.replica == FIRST and await holds(run, t, FIRST)]
    run.note("new conversations, held by the new process",
             f"{len(there)} of {sum(t.replica == FIRST for t in held)}", bool(there))  # fmt: skip
    await asyncio.sleep(2.0)
    run.note("later", _told(await state_of(run, FIRST)), True)


def _tell(run: Run, seen: Seen, good: float | None) -> None:
    for what in ("a scrape fails", "called dead", "load gone", "the new process answers",
                 "another start time", "profile empty", "adapters gone",
                 "prompt not believed there"):  # fmt: skip
        run.note(f"after the kill: {what}", seen.since_kill(what), True)
    took = seen.between("the new process answers", "profile empty")
    run.note("new process answers, then forgotten", took, good is not None)


def _account(run: Run, endings: list[Ending], streams: list[list[str]]) -> None:
    outcomes = Counter(f"{e.outcome} {e.replica}" for e in endings)
    run.note("requests meanwhile", ", ".join(f"{n} x {o}" for o, n in outcomes.items()),
             all(e.outcome == GOOD for e in endings))  # fmt: skip
    run.note("streams under way at the kill", str([outcomes[-1] for outcomes in streams]), True)


def _told(state: dict[str, Any]) -> str:
    prefix = state.get("prefix") or {}
    return (
        f"{state.get('health')}, {prefix.get('blocks', 0)} blocks, "
        f"adapters {state.get('adapters', [])}, {state.get('inflight_requests', 0)} in flight, "
        f"events: {prefix.get('kv_events') or 'not followed'}"
    )


async def _runs_there(run: Run) -> bool:
    return (await state_of(run, FIRST)).get("inflight_requests", 0) > 0


async def _both(seen: Seen) -> bool:
    return {"the new process answers", "profile empty", "prompt not believed there"} <= set(seen.at)


async def _is_used_again(run: Run, endings: list[Ending], seen: Seen) -> bool:
    since = seen.at.get("the new process answers")
    return since is not None and any(e.replica == FIRST and e.began_at > since for e in endings)


# -- the program -----------------------------------------------------------------------------------


async def main(options: argparse.Namespace) -> int:
    """Run it; the exit status is 1 if something was believed that should not be."""
    client = HttpClient()
    run = Run(options.engine, options.urls, *addresses(options), client, options)
    models = await get_json(client, f"{options.urls[0]}/v1/models")
    run.model = next(m["id"] for m in models["data"] if not m.get("parent"))
    calls = driver_for(options.engine).adapters
    try:
        if options.adapter and calls is not None:
            verdict = await run.call(options.urls[0], calls.load(ADAPTER, options.adapter))
            run.note("adapter loaded on the first engine", verdict.outcome, True)
        async with serving(options):
            ready_s = await until(partial(_are_known, run), READY_S)
            run.note("agent knows both engines", seconds(ready_s), ready_s is not None)
            await restarted(run)
    finally:
        await client.close()
    return 0 if all(row.ok for row in run.rows) else 1


async def _are_known(run: Run) -> bool:
    found = (await run.replicas()).values()
    good = [r for r in found if r.get("health") == "healthy" and r.get("scrape_age_s") is not None]
    has_adapter = not run.options.adapter or any(r.get("adapters") for r in found)
    return len(good) == len(run.urls) and has_adapter


def options_of(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    made = argparse.ArgumentParser(prog="python -m bench.live_restart", description=__doc__)
    made.add_argument("engine", choices=["vllm", "sglang", "llamacpp"])
    made.add_argument("urls", nargs=2, metavar="URL")
    made.add_argument("--pid-file", required=True, metavar="FILE", help="of the first engine")
    made.add_argument("--restart", required=True, metavar="COMMAND")
    made.add_argument("--overlap", action="store_true", help="start the new one before the kill")
    made.add_argument("--adapter", default="", metavar="FOLDER", help="to be loaded before")
    made.add_argument("--port", type=int, default=21260, help="of our agent; the next is its admin")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--serve-options", default="", metavar="WORDS")
    made.add_argument("--log", default=os.devnull, metavar="FILE", help="for the agent's log")
    return made.parse_args(words)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(options_of())))
