"""`bin/bench load`: a real trace's arrivals and lengths as live traffic.

An open loop: requests leave at the trace's times, however slow the answers are. The table says how
late the client itself was; on a busy machine look there first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from bench.live import table
from bench.live.calibration import text_size
from bench.live.client import Clients
from bench.live.prompts import PromptWriter, TextSize
from bench.live.records import Record, RecordFile
from bench.live.schedule import Schedule, Selection, schedule
from bench.live.sending import Caller, Endpoint, Progress, Sender
from bench.live.summary import Summary, Told, summarize
from bench.machine import BenchError
from routing_agent.http_client import CallFailed, HttpClient
from routing_agent.simulation.clients import KeyFile
from routing_agent.simulation.one_request import Target
from routing_agent.simulation.traces.model import Trace, TraceError
from routing_agent.simulation.traces.reading import FORMATS, read_trace

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PROGRESS_EVERY_S = 10.0
PROGRESS_EVERY_ON_A_TERMINAL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `load`."""
    parser.add_argument("trace", type=Path, metavar="TRACE", help="file or folder of a trace")
    parser.add_argument("--url", nargs="+", required=True, help="agents or engines, taken in turn")
    parser.add_argument("--key", action="append", default=[], help="a client key; may be repeated")
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="tenants and keys, as sample-traffic reads"
    )
    parser.add_argument("--model", default="", help="default: the key file's, else the first told")
    parser.add_argument("--speed", type=_positive, default=1.0, help="of arrivals (default 1)")
    parser.add_argument("--minutes", type=_positive, help="only the trace's first minutes")
    parser.add_argument(
        "--share", type=_share, default=1.0, help="of the trace's sessions, 0 to 1 (default 1)"
    )
    parser.add_argument(
        "--context", type=int, metavar="TOKENS", help="leave out requests longer than this"
    )
    parser.add_argument("--format", choices=FORMATS, help="if it cannot be told from the name")
    parser.add_argument("--limit", type=int, help="read only so many first requests")
    parser.add_argument("--seed", type=int, default=0, help="of the share and of drawn traces")
    parser.add_argument(
        "--text-seed", default="", help="same seed, same prompts (default: new ones each run)"
    )
    parser.add_argument(
        "--bytes-per-token", type=_positive, help="of prompts (default: learned from 2 questions)"
    )
    parser.add_argument("--no-sessions", action="store_true", help="send no x-session-id")
    parser.add_argument(
        "--most-in-flight", type=int, default=2000, help="above it none is sent (default 2000)"
    )
    parser.add_argument("--timeout", type=_positive, default=300.0, help="s for an answer (300)")
    parser.add_argument("--records", type=Path, metavar="FILE", help="one JSON line a request")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def main(options: argparse.Namespace) -> int:
    """Send a trace; 0 if all was answered well, 1 if not, 2 if it cannot be sent."""
    try:
        summary = uvloop.run(load(options))
    except (BenchError, TraceError, ValueError, OSError) as problem:
        print(f"bin/bench load: {problem}", file=sys.stderr)
        return 2
    print(msgspec.json.encode(summary).decode() if options.json else table.as_text(summary))
    return 1 if summary.errors else 0


async def load(options: argparse.Namespace) -> Summary:
    """Send a trace and sum up; raises what says why it cannot be sent."""
    targets = [Target.parse(url) for url in options.url]
    callers, model = _callers(options)
    trace = read_trace(options.trace, format=options.format, seed=options.seed, limit=options.limit)
    plan = schedule(trace, _selection(options))
    if not plan.requests:
        raise BenchError(f"nothing of {trace.name} is left to send: {dict(plan.left_out)}")
    run = f"load-{secrets.token_hex(3)}"
    records: list[Record] = []
    with contextlib.ExitStack() as closing:
        clients = closing.enter_context(contextlib.closing(Clients(options.timeout)))
        model = model or await _first_model(options.url[0], callers[0])
        size = await _text_size(options, clients, Endpoint(targets[0], callers[0]), model)
        sender = Sender(
            clients=clients,
            targets=targets,
            callers=callers,
            model=model,
            writer=PromptWriter(size, trace.block_tokens, options.text_seed or run),
            run=run,
            most_in_flight=options.most_in_flight,
            with_sessions=not options.no_sessions,
            note=_noting(records, options.records, closing),
            progress=Progress(),
        )
        took_s = await _send(sender, plan)
    return summarize(_told(trace, sender, plan, took_s), records)


def _selection(options: argparse.Namespace) -> Selection:
    return Selection(
        speed=options.speed,
        minutes=options.minutes,
        share=options.share,
        context_tokens=options.context,
        seed=options.seed,
    )


def _callers(options: argparse.Namespace) -> tuple[list[Caller], str]:
    """Give for whom to ask, and the model if it is named."""
    callers = [Caller(f"key {n}", key) for n, key in enumerate(options.key, start=1)]
    model = options.model
    if options.key_file is not None:
        try:
            keys = msgspec.json.decode(options.key_file.read_bytes(), type=KeyFile)
        except msgspec.MsgspecError as problem:
            raise BenchError(f"{options.key_file} is not a key file: {problem}") from problem
        callers += [Caller(tenant.name, tenant.key) for tenant in keys.tenants]
        model = model or keys.chat_model
    return callers or [Caller("", "")], model


async def _first_model(url: str, caller: Caller) -> str:
    client = HttpClient()
    headers = {"authorization": f"Bearer {caller.key}"} if caller.key else {}
    try:
        answer = await client.call("GET", f"{url}/v1/models", headers=headers, timeout_s=10.0)
    except CallFailed as problem:
        raise BenchError(f"{url} does not answer: {problem}") from problem
    finally:
        await client.close()
    if not answer.ok:
        raise BenchError(f"{url}/v1/models answers {answer.status}. Is --key right?")
    listed = msgspec.json.decode(answer.body)["data"]
    if not listed:
        raise BenchError(f"{url} serves no model that this key may call")
    return str(listed[0]["id"])


async def _text_size(
    options: argparse.Namespace, clients: Clients, endpoint: Endpoint, model: str
) -> TextSize:
    if options.bytes_per_token is not None:
        return TextSize(options.bytes_per_token, 0)
    return await text_size(clients, endpoint, model, secrets.token_hex(3))


def _noting(
    records: list[Record], path: Path | None, closing: contextlib.ExitStack
) -> Callable[[Record], None]:
    if path is None:
        return records.append
    file = closing.enter_context(contextlib.closing(RecordFile(path)))

    def note(record: Record) -> None:
        records.append(record)
        file.write(record)

    return note


async def _send(sender: Sender, plan: Schedule) -> float:
    """Send all, or what there is time for until SIGINT or SIGTERM; give the seconds it took."""
    began = time.monotonic()
    sending = asyncio.create_task(sender.send_all(plan.requests))
    showing = asyncio.create_task(_show_progress(sender.progress, plan, began))
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, sending.cancel)
    try:
        await asyncio.wait([sending])
        if not sending.cancelled():  # stopped by a signal, the outcome tells how far it got
            sending.result()
    finally:
        showing.cancel()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
    return time.monotonic() - began


async def _show_progress(progress: Progress, plan: Schedule, began: float) -> None:
    is_terminal = sys.stderr.isatty()
    while True:
        await asyncio.sleep(PROGRESS_EVERY_ON_A_TERMINAL_S if is_terminal else PROGRESS_EVERY_S)
        print(
            f"{time.monotonic() - began:6.0f} of {plan.duration_s:.0f} s: {progress.sent:,} of "
            f"{len(plan.requests):,} sent, {progress.in_flight} open, {progress.failed} failed  ",
            end="\r" if is_terminal else "\n",
            file=sys.stderr,
            flush=True,
        )


def _told(trace: Trace, sender: Sender, plan: Schedule, took_s: float) -> Told:
    return Told(
        trace=trace.name,
        run=sender.run,
        model=sender.model,
        planned=len(plan.requests),
        duration_s=plan.duration_s,
        took_s=took_s,
        left_out=dict(plan.left_out),
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share: above 0 and at most 1")
    return value
