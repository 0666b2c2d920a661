"""Our agent before live engines: streams, usage, cancels, adapters, overload, kill and restart.

    python -m bench.live_engines vllm http://127.0.0.1:8301 http://127.0.0.1:8302 \\
        --adapters FOLDER --pid-file FILE --restart "COMMAND WORDS"

The engines must serve one model without a key. `--adapters` is a folder with adapters `lora-a`,
`lora-b` and, with a rank above the engine's limit, `lora-r64`. `--pid-file` holds the process group
leader of the first engine, which is killed under load and started again by `--restart`. Nothing
else is stopped or started, but a `python -m routing_agent serve` for the length of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import statistics
import sys
import time
from collections import Counter
from functools import partial

from bench.live_agent import addresses, serving
from bench.live_client import Ending, ask, chat, get_json
from bench.live_run import GOOD, LONG, RETURN_LIMIT_S, Run, pid_of, seconds, until
from routing_agent.engine.drivers import driver_for
from routing_agent.http_client import HttpClient

CLIENTS = 8
BUSY = (429, 503)  # an engine with a bounded queue says so while the other one is away
BUSY_PAUSE_S = 1.0
FREED_LIMIT_S = 30.0
GRACE_S = 20.0  # that a supervisor gives an engine to end


# -- the checks ------------------------------------------------------------------------------------


async def streaming(run: Run) -> None:
    """Hold streams and plain answers against the engine's own."""
    plain = chat(run.model, tokens=24, stream=False)
    direct = await ask(run.urls[0], plain)
    ours = [await ask(run.agent, plain) for _ in range(4)]
    streams = [await ask(run.agent, chat(run.model, tokens=24, stream=True)) for _ in range(4)]
    same = all(e.outcome == GOOD and e.text == direct.text for e in (*ours, *streams))
    run.note("plain and stream: the engine's own text", repr(direct.text[:24]), same)
    first_s = [e.first_token_at - e.began_at for e in streams if e.first_token_at]
    run.note(
        "stream: first token, p50 of 4",
        f"{statistics.median(first_s) * 1000:.1f} ms",
        all(e.has_done for e in streams),
    )


async def usage(run: Run) -> None:
    """Compare what an engine says it used with what the agent counts and passes on."""
    before = sum(r.get("output_tokens_total", 0) for r in (await run.replicas()).values())
    silent = await ask(run.agent, chat(run.model, tokens=20, stream=True))
    asked = await ask(
        run.agent, chat(run.model, tokens=20, stream=True, stream_options={"include_usage": True})
    )
    plain = await ask(run.agent, chat(run.model, tokens=20, stream=False))
    after = sum(r.get("output_tokens_total", 0) for r in (await run.replicas()).values())
    told = [(e.usage or {}).get("completion_tokens") for e in (silent, asked, plain)]
    run.note(
        "usage: not asked, asked, plain; agent counted",
        f"{told[0]}, {told[1]}, {told[2]}; {after - before}",
        told == [None, 20, 20] and after - before == 60,
    )


async def cancel(run: Run) -> None:
    """Leave in the middle of an answer and see when the engines are free again."""

    async def busy() -> bool:
        return any([await run.running(url) for url in run.urls])

    async def free() -> bool:
        return not await busy()

    for name, stream, leave_after in (("stream", True, 40), ("plain", False, 0)):
        body = chat(run.model, tokens=LONG, stream=stream)
        began = time.monotonic()
        await ask(run.agent, body, leave_after=leave_after)
        freed_s = await until(free, FREED_LIMIT_S)
        charged = sum(r.get("inflight_requests", 0) for r in (await run.replicas()).values())

        async def released() -> bool:
            return not sum(r.get("inflight_requests", 0) for r in (await run.replicas()).values())

        zero_s = await until(released, FREED_LIMIT_S)
        run.note(
            f"cancel of a {name}: engine free after",
            f"{seconds(freed_s)} (charge then {charged}, zero {seconds(zero_s)} later; "
            f"{time.monotonic() - began:.1f} s in all)",
            freed_s is not None and zero_s is not None,
        )


async def adapters(run: Run) -> None:
    """Load, use, refuse and unload adapters by the driver's calls."""
    driver = driver_for(run.engine)  # type: ignore[arg-type]
    calls, folder = driver.adapters, run.options.adapters
    if calls is None or folder is None:
        why = "no folder given" if calls else f"{run.engine} takes none while it runs"
        run.note("adapters: load and unload", f"left out: {why}", True)
        return
    url = run.urls[-1]
    loaded = await run.call(url, calls.load("lora-a", f"{folder}/lora-a"))
    twice = await run.call(url, calls.load("lora-a", f"{folder}/lora-a"))
    name = driver.request_model(run.model, "lora-a") or ""
    base = await ask(url, chat(run.model, tokens=12, stream=False))
    tuned = await ask(url, chat(name, tokens=12, stream=False))
    run.note(
        "adapter: load, load again, used by its name",
        f"{loaded.outcome}, {twice.outcome}, {tuned.text[:12]!r} not {base.text[:12]!r}",
        loaded.ok and twice.outcome == "already" and tuned.outcome == GOOD
        and tuned.text != base.text,
    )  # fmt: skip
    wide = await run.call(url, calls.load("wide", f"{folder}/lora-r64"))
    gone = await run.call(url, calls.load("gone", f"{folder}/missing"))
    run.note(
        "adapter: rank too large, no such folder",
        f"{wide.outcome} ({wide.message[:60]}…), {gone.outcome}",
        wide.outcome == gone.outcome == "rejected",
    )
    first = await run.call(url, calls.unload("lora-a"))
    second = await run.call(url, calls.unload("lora-a"))
    run.note("adapter: unload, unload again", f"{first.outcome}, {second.outcome}",
             first.ok and second.ok)  # fmt: skip


async def unknown_models(run: Run) -> None:
    """Ask for what does not exist: no engine may see it."""
    names = ("nope", f"{run.model}:nope", "lora-never")
    told = [await ask(run.agent, chat(name, tokens=4, stream=False)) for name in names]
    body = chat(run.model, tokens=4, stream=False, lora_path="lora-a")
    told.append(await ask(run.agent, body))
    outcomes = Counter(e.outcome for e in told)
    run.note(
        "unknown model or adapter: refused by us",
        ", ".join(f"{n} x {o}" for o, n in outcomes.items()),
        set(outcomes) == {"404 model_not_found"} and not any(e.replica for e in told),
    )


async def overload(run: Run) -> None:
    """Ask for much more than the engines take at once."""
    bodies = [chat(run.model, tokens=60, stream=i % 2 == 0) for i in range(run.options.burst)]
    began = time.monotonic()
    burst = asyncio.gather(*(ask(run.agent, body) for body in bodies))
    await asyncio.sleep(1.5)  # a scrape has seen it by then
    reasons = [str(r.get("health_reason")) for r in (await run.replicas()).values()]
    endings = await burst
    outcomes = Counter(e.outcome for e in endings)
    allowed = {GOOD, "429 queue_full", "429 overloaded", "503 503", "503 engine_busy", "503 None"}
    run.note(
        f"overload: {run.options.burst} at once",
        f"{_counts(outcomes)} in {seconds(time.monotonic() - began)}; meanwhile '{max(reasons)}'",
        set(outcomes) <= allowed,
    )


async def pauses(run: Run) -> None:
    """Pause and put to sleep one engine, where its make can tell us, and see it left alone."""
    driver = driver_for(run.engine)  # type: ignore[arg-type]
    if driver.sleep is None:
        run.note("pause and sleep", f"left out: {run.engine} has no such calls", True)
        return
    for word, begin, end in (
        ("pause", driver.sleep.pause, driver.sleep.resume),
        ("sleep", driver.sleep.sleep, driver.sleep.wake),
    ):
        verdict = await run.call(run.urls[0], begin)
        if not verdict.ok:
            run.note(f"{word}: left out", verdict.message[:90], verdict.outcome != "failed")
            continue

        if await run.answers_soon(run.urls[0]):
            run.note(f"{word}: left out", "it says done and answers on: nothing to notice", True)
            await run.call(run.urls[0], end)
            continue
        told = {"pause": "paused", "sleep": "asleep"}[word]
        noticed_s = await until(partial(run.says, "replica-1", told), 30.0)
        reason = await run.reason("replica-1")
        endings = [await ask(run.agent, chat(run.model, tokens=8, stream=True)) for _ in range(4)]
        await run.call(run.urls[0], end)
        back_s = await until(lambda: run.serves("replica-1"), 30.0)
        run.note(
            f"{word}: noticed, others serve, used again",
            f"{seconds(noticed_s)} ({reason[:40]}…), {_counts(Counter(e.outcome for e in endings))}"
            f", {seconds(back_s)}",
            noticed_s is not None and back_s is not None
            and all(e.outcome == GOOD and e.replica != "replica-1" for e in endings),
        )  # fmt: skip


async def kill(run: Run) -> None:
    """Kill the first engine under load, start it again, and account for every request."""
    if run.options.pid_file is None:
        run.note("kill and restart under load", "left out: no --pid-file", True)
        return
    victim = pid_of(run.options.pid_file)
    golden = {n: (await ask(run.urls[-1], chat(run.model, tokens=n, stream=False))).text
              for n in (60, 200)}  # fmt: skip
    endings: list[Ending] = []
    wrong: list[Ending] = []
    over = asyncio.Event()

    async def one_client(number: int) -> None:
        tokens = 200 if number % 2 else 60
        while not over.is_set():
            ending = await ask(run.agent, chat(run.model, tokens=tokens, stream=number % 4 != 0))
            endings.append(ending)
            if ending.status in BUSY:
                await asyncio.sleep(BUSY_PAUSE_S)  # what Retry-After asks for
            if ending.outcome == GOOD and ending.text != golden[tokens]:
                wrong.append(ending)

    clients = [asyncio.create_task(one_client(i)) for i in range(run.options.clients)]
    await asyncio.sleep(4.0)
    killed_at = time.monotonic()
    if run.options.signal == "KILL":
        os.killpg(victim, signal.SIGKILL)
    else:
        os.kill(victim, signal.SIGTERM)  # as a supervisor does: its children are its own business
    kept_out_s = await until(lambda: run.is_out("replica-1"), 30.0)
    noticed_s = await until(lambda: run.says("replica-1", ("dead", "draining")), 30.0)
    dead_s = None if noticed_s is None else time.monotonic() - killed_at
    reason = await run.reason("replica-1")
    await _see_it_gone(victim)
    restart = await asyncio.create_subprocess_exec(
        *shlex.split(run.options.restart), stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    await until(lambda: run.answers(run.urls[0]), RETURN_LIMIT_S)
    up_at = time.monotonic()
    back_s = await until(lambda: _has_served(endings, up_at), RETURN_LIMIT_S)
    reason_after = await run.reason("replica-1")
    await asyncio.sleep(4.0)
    over.set()
    await asyncio.gather(*clients)
    await restart.wait()
    _account(run, endings, wrong, killed_at)
    run.note("kill: kept out after, called dead after",
             f"{seconds(kept_out_s)}, {seconds(dead_s)}: {reason[:60]}",
             reason.startswith(("dead", "draining")))  # fmt: skip
    run.note("restart: first answer after it was up", f"{seconds(back_s)}: {reason_after[:60]}",
             back_s is not None and back_s < 15)  # fmt: skip


async def _see_it_gone(victim: int) -> None:
    """Wait for a process to end, as a supervisor does, and kill it if it does not."""

    async def is_gone() -> bool:
        try:
            os.kill(victim, 0)
        except ProcessLookupError:
            return True
        return False

    if await until(is_gone, GRACE_S) is None:
        os.killpg(victim, signal.SIGKILL)
        await until(is_gone, GRACE_S)


def _account(run: Run, endings: list[Ending], wrong: list[Ending], killed_at: float) -> None:
    """Hold every ending against the promise: a typed error only on what the dead engine carried."""
    carried = [e for e in endings if e.began_at <= killed_at <= e.ended_at]
    carried_ids = {id(e) for e in carried}
    outcomes = Counter(e.outcome for e in endings)
    typed = ("event engine_failed", "502 engine_failed", "event engine_too_slow",
             "504 engine_too_slow")  # fmt: skip
    bad = [
        e for e in endings
        if e.outcome != GOOD
        and (e.status not in BUSY or "no_replica" in e.outcome)
        and not (e.outcome in typed and id(e) in carried_ids)
    ]  # fmt: skip
    run.note(
        f"SIG{run.options.signal} under {run.options.clients} clients: {len(endings)} requests",
        f"{_counts(outcomes)}; in flight at the kill {len(carried)}, of them broken "
        f"{sum(e.outcome != GOOD for e in carried)}; wrong texts {len(wrong)}; worse {len(bad)}"
        + (f": {Counter(e.outcome for e in bad)}" if bad else ""),
        not bad and not wrong,
    )


async def at_rest(run: Run) -> None:
    """Look for what was not given back."""

    async def zero() -> bool:
        replicas = (await run.replicas()).values()
        return not any(r.get("inflight_requests") or r.get("inflight_tokens") for r in replicas)

    waited = await until(zero, 20.0)
    run.note("at rest: charges on all replicas", "zero" if waited is not None else "left over",
             waited is not None)  # fmt: skip


async def _has_served(endings: list[Ending], since: float) -> bool:
    return any(
        e.replica == "replica-1" and e.outcome == GOOD and e.began_at > since for e in endings
    )


def _counts(outcomes: Counter[str]) -> str:
    return ", ".join(f"{n} x {outcome}" for outcome, n in outcomes.most_common())


CHECKS = (streaming, usage, cancel, adapters, unknown_models, overload, pauses, kill, at_rest)


# -- the program -----------------------------------------------------------------------------------


async def main(options: argparse.Namespace) -> int:
    """Start the agent, run the checks, give the exit status."""
    client = HttpClient()
    run = Run(options.engine, options.urls, *addresses(options), client, options)
    try:
        async with serving(options, "--slow-start", "5", "--log-level", "info"):
            await _check_all(run, options)
    finally:
        await client.close()
    if options.json:
        print(json.dumps([row.__dict__ for row in run.rows], indent=1))
    return 0 if all(row.ok for row in run.rows) else 1


async def _check_all(run: Run, options: argparse.Namespace) -> None:
    models = await get_json(run.client, f"{options.urls[0]}/v1/models")
    run.model = options.model or models["data"][0]["id"]

    async def all_known() -> bool:
        replicas = (await run.replicas()).values()
        return len(replicas) == len(run.urls) and all(
            r.get("health") == "healthy" for r in replicas
        )

    ready_s = await until(all_known, 20.0)
    await until(run.are_versions_known, 5.0)
    versions = {r.get("engine_version") for r in (await run.replicas()).values()}
    capacities = {r.get("kv_capacity_tokens") for r in (await run.replicas()).values()}
    run.note("engines known: version, KV tokens", f"{versions}, {capacities}",
             ready_s is not None)  # fmt: skip
    for check in CHECKS:
        if not options.only or check.__name__ in options.only:
            await check(run)


def parser() -> argparse.ArgumentParser:
    """Give the command line."""
    made = argparse.ArgumentParser(prog="python -m bench.live_engines", description=__doc__)
    made.add_argument("engine", choices=["vllm", "sglang", "llamacpp", "tgi", "openai"])
    made.add_argument("urls", nargs="+", metavar="URL")
    made.add_argument("--model", default="", help="default: the first one listed")
    made.add_argument("--adapters", metavar="FOLDER")
    made.add_argument("--pid-file", metavar="FILE", help="of the first engine")
    made.add_argument("--restart", default="", metavar="COMMAND")
    made.add_argument("--port", type=int, default=21200, help="of our agent; the next is its admin")
    made.add_argument("--clients", type=int, default=CLIENTS)
    made.add_argument("--burst", type=int, default=40)
    made.add_argument("--serve-options", default="", metavar="WORDS")
    made.add_argument("--log", default=os.devnull, metavar="FILE", help="for the agent's log")
    made.add_argument("--only", nargs="+", metavar="CHECK",
                      choices=[check.__name__ for check in CHECKS])  # fmt: skip
    made.add_argument("--signal", choices=["KILL", "TERM"], default="KILL", help="to end it with")
    made.add_argument("--json", action="store_true")
    return made


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
