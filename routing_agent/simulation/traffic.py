"""Sample traffic as a program: an open loop of clients that keeps going whatever fails."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from routing_agent.simulation import clients
from routing_agent.simulation.clients import Conversation, KeyFile
from routing_agent.simulation.one_request import Answer, Target, Unanswered, get, post

log = structlog.get_logger()

DEFAULT_RATE = 1.5  # requests a second: a small machine that runs everything else too stays idle
REQUEST_LIMIT_S = 120.0
ALIVE_EVERY_S = 5.0
LOOK_EVERY_S = 0.5
LOOK_LIMIT_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `sample-traffic`."""
    parser.add_argument("--targets", nargs="+", required=True, metavar="URL", help="where to send")
    parser.add_argument(
        "--wait-for", nargs="+", default=[], metavar="URL",
        help="admin addresses of agents: send nothing before the models asked for have a replica",
    )  # fmt: skip
    parser.add_argument("--key-file", required=True, type=Path, help="tenants, keys and models")
    parser.add_argument("--rate", type=float, default=DEFAULT_RATE, help="mean requests a second")
    parser.add_argument("--model", default="", help="chat model, instead of the key file's")
    parser.add_argument("--embedding-model", default="", help="instead of the key file's")
    parser.add_argument("--seed", type=int, default=None, help="repeat the same clients")
    parser.add_argument("--think-factor", type=float, default=1.0, help="on the time between turns")
    parser.add_argument("--alive-file", type=Path, help="touched every few seconds")
    parser.add_argument("--max-in-flight", type=int, default=64, help="requests open at once")
    parser.add_argument(
        "--report-every", type=float, default=60.0, help="seconds between log lines"
    )


def main(args: argparse.Namespace) -> int:
    """Send traffic until SIGTERM or SIGINT."""
    try:
        targets = [Target.parse(url) for url in args.targets]
        agents = [Target.parse(url) for url in args.wait_for]
        if min(args.rate, args.max_in_flight, args.report_every, args.think_factor) <= 0:
            raise ValueError("rates, limits and factors must be above 0")
        keys = read_keys(args)
    except (ValueError, OSError) as problem:
        print(f"sample-traffic: {problem}", file=sys.stderr)
        return 2
    uvloop.run(_until_stopped(Traffic(args, targets, keys, agents)))
    return 0


def read_keys(args: argparse.Namespace) -> KeyFile:
    """Read the key file; the command line's models come first. Raises `ValueError`."""
    try:
        keys = msgspec.json.decode(args.key_file.read_bytes(), type=KeyFile)
    except msgspec.MsgspecError as problem:
        raise ValueError(
            f"{args.key_file} is not a key file ({problem}). Expected "
            '{"tenants": [{"name", "key"}], "chat_model": …, "embedding_model": …}'
        ) from problem
    keys = KeyFile(
        keys.tenants,
        args.model or keys.chat_model,
        args.embedding_model or keys.embedding_model,
    )
    if not keys.tenants:
        raise ValueError(f"{args.key_file} names no tenant")
    if not keys.chat_model:
        raise ValueError(
            f"no chat model: name one with --model or as chat_model in {args.key_file}"
        )
    return keys


async def _until_stopped(traffic: Traffic) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running = asyncio.create_task(traffic.run())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


class Traffic:
    """Starts conversations at a gently varying rate and counts how their requests end."""

    def __init__(
        self,
        args: argparse.Namespace,
        targets: list[Target],
        keys: KeyFile,
        agents: Sequence[Target] = (),
    ) -> None:
        self._args = args
        self._agents = agents  # by their admin addresses
        self._targets = targets
        self._keys = keys
        self._dice = random.Random(args.seed)  # noqa: S311 - not a secret
        self._in_flight = 0
        self.outcomes: Counter[str] = Counter()  # by HTTP status or by how it went wrong
        self.kinds: Counter[str] = Counter()
        self._first_byte_s: list[float] = []

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report_regularly(), name="report")
            if self._args.alive_file is not None:
                tasks.create_task(self._show_life(self._args.alive_file), name="alive")
            await self._wait_for_replicas()
            started_at = asyncio.get_running_loop().time()
            while True:
                now = asyncio.get_running_loop().time() - started_at
                rate = self._args.rate * rhythm(now) * clients.conversations_per_request()
                await asyncio.sleep(self._dice.expovariate(rate))
                has_embeddings = bool(self._keys.embedding_model)
                conversation = clients.draw(
                    self._dice, self._keys.tenants, embeddings=has_embeddings
                )
                tasks.create_task(self._converse(conversation))

    async def _wait_for_replicas(self) -> None:
        """Hold back while replicas still start, else the first requests count as failures."""
        models = {self._keys.chat_model, self._keys.embedding_model}
        while reasons := {str(a): why for a in self._agents if (why := await _lacks(a, models))}:
            log.info("sample_traffic_waits", reasons=reasons)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _converse(self, conversation: Conversation) -> None:
        is_embedding = conversation.kind == "embedding"
        model = self._keys.embedding_model if is_embedding else self._keys.chat_model
        for turn, (path, body) in enumerate(conversation.requests(model)):
            if turn:
                await asyncio.sleep(clients.think_time_s(self._dice) * self._args.think_factor)
            words = await self._ask(conversation, path, body)
            if words is None:
                return  # a person whose question failed goes away
            conversation.heard(words)

    async def _ask(
        self, conversation: Conversation, path: str, body: dict[str, object]
    ) -> str | None:
        if self._in_flight >= self._args.max_in_flight:
            self.outcomes["not_sent"] += 1
            return None
        self._in_flight += 1
        self.kinds[conversation.kind] += 1
        try:
            answer = await self._send(conversation, path, msgspec.json.encode(body))
            return self._book(answer, path, streamed=bool(body.get("stream")))
        except Unanswered as problem:
            self.outcomes[problem.how] += 1
            return None
        finally:
            self._in_flight -= 1

    async def _send(self, conversation: Conversation, path: str, body: bytes) -> Answer:
        headers = {
            "authorization": f"Bearer {conversation.tenant.key}",
            "x-session-id": conversation.session,
        }
        targets = self._dice.sample(self._targets, len(self._targets))
        for target in targets[:-1]:
            try:
                return await post(target, path, headers, body, REQUEST_LIMIT_S)
            except Unanswered as problem:
                if problem.how != "away":  # only what certainly never arrived is sent again
                    raise
                self.outcomes["went_elsewhere"] += 1
        return await post(targets[-1], path, headers, body, REQUEST_LIMIT_S)

    def _book(self, answer: Answer, path: str, *, streamed: bool) -> str | None:
        if answer.status != 200:
            self.outcomes[str(answer.status)] += 1
            return None
        try:
            words = clients.words_of(path, answer.body, streamed=streamed)
        except (msgspec.MsgspecError, IndexError):
            words = None
        self.outcomes["broken" if words is None else "200"] += 1
        if words is not None and streamed:
            self._first_byte_s.append(answer.first_byte_s)
        return words

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._args.report_every)
            self._report()
            self._refresh_keys()

    async def _show_life(self, path: Path) -> None:
        while True:
            _touch(path)
            await asyncio.sleep(ALIVE_EVERY_S)

    def _report(self) -> None:
        waits = sorted(self._first_byte_s)
        log.info(
            "sample_traffic",
            outcomes=dict(sorted(self.outcomes.items())),
            kinds=dict(sorted(self.kinds.items())),
            in_flight=self._in_flight,
            ttft_p50_ms=_percentile_ms(waits, 0.5),
            ttft_p99_ms=_percentile_ms(waits, 0.99),
        )
        self.outcomes.clear()
        self.kinds.clear()
        self._first_byte_s.clear()

    def _refresh_keys(self) -> None:
        """Take up keys that were changed meanwhile; a file in the making is read next time."""
        try:
            self._keys = read_keys(self._args)
        except (ValueError, OSError) as problem:
            log.warning("key_file_unreadable", problem=str(problem))


async def _lacks(agent: Target, models: set[str]) -> str:
    """Say what an agent still lacks before it can answer for these models; "" if nothing."""
    try:
        answer = await get(agent, "/readyz", LOOK_LIMIT_S)
        state = msgspec.json.decode(answer.body, type=dict[str, Any])
    except (Unanswered, msgspec.MsgspecError) as problem:
        return str(problem)
    if not state.get("ready"):
        return str(state.get("reason") or f"/readyz answered {answer.status}")
    lacking = models.intersection(state.get("models_without_replica", ()))
    return ", ".join(f"no replica of {name}" for name in sorted(lacking))


def _touch(path: Path) -> None:
    path.touch(mode=0o600)


def rhythm(elapsed_s: float) -> float:
    """Give the factor on the rate: a slow wave of ten minutes and a faster, smaller one."""
    slow = 0.35 * math.sin(elapsed_s * math.tau / 600)
    return 1 + slow + 0.15 * math.sin(elapsed_s * math.tau / 97)


def _percentile_ms(ordered_s: list[float], share: float) -> float | None:
    if not ordered_s:
        return None
    return round(1000 * ordered_s[min(len(ordered_s) - 1, int(share * len(ordered_s)))], 1)
