"""The simulated engine as a program: options, sockets, a clean end."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import signal
import sys
from collections.abc import Callable

import structlog
import uvloop

from routing_agent.simulation import faults
from routing_agent.simulation.connection import Connection, HttpRequest
from routing_agent.simulation.engine import Engine, Job
from routing_agent.simulation.loading import LOAD_PATHS, LoadPath, cold_start_s
from routing_agent.simulation.profiles import (
    DEFAULT_PROFILE,
    EMBEDDING_PROFILE,
    PROFILES,
    Profile,
)
from routing_agent.simulation.requests import Limits
from routing_agent.simulation.routes import Routes

log = structlog.get_logger()

# Options that replace one figure of the profile, with the factor from the option's unit to ours.
_FIGURES: tuple[tuple[str, str, Callable[[str], float], float, str], ...] = (
    ("--prefill-rate", "prefill_tokens_per_s", float, 1.0, "prefill tokens a second"),
    ("--decode-step-ms", "decode_step_s", float, 0.001, "milliseconds a decode step"),
    (
        "--decode-step-per-seq-ms",
        "decode_step_per_sequence_s",
        float,
        0.001,
        "milliseconds a running sequence adds to a step",
    ),
    (
        "--step-overhead-ms",
        "step_overhead_s",
        float,
        0.001,
        "milliseconds every step costs besides",
    ),
    ("--max-num-seqs", "max_running_sequences", int, 1, "sequences running at once"),
    ("--kv-blocks", "kv_blocks", int, 1, "KV cache size in blocks"),
    ("--block-tokens", "block_tokens", int, 1, "tokens in a KV block"),
    ("--max-num-batched-tokens", "step_token_budget", int, 1, "tokens one step may work on"),
    ("--max-loras", "adapter_slots", int, 1, "LoRA adapters in one batch"),
    ("--max-cpu-loras", "adapter_host_slots", int, 1, "LoRA adapters in host memory"),
    ("--max-model-len", "context_tokens", int, 1, "longest prompt and output together"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `simulate-engine`."""
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--model", required=True, help="model name to serve")
    parser.add_argument("--profile", choices=sorted(PROFILES), help=f"default {DEFAULT_PROFILE}")
    parser.add_argument("--embedding", action="store_true", help="serve embeddings, not chats")
    parser.add_argument("--speed", type=float, default=1.0, help="this many times as fast")
    for option, _, kind, _, meaning in _FIGURES:
        parser.add_argument(option, type=kind, help=meaning)
    parser.add_argument("--max-lora-rank", type=int, default=64, help="default 64")
    parser.add_argument(
        "--load-path",
        choices=sorted(LOAD_PATHS),
        help="listen only when the weights would have come this way and the engine be ready",
    )
    parser.add_argument("--no-prefix-cache", action="store_true", help="compute every prompt anew")
    parser.add_argument("--api-key", default="", help="key that /v1 then demands")
    parser.add_argument("--answer-tokens", type=int, default=180, help="mean length of an answer")
    parser.add_argument("--faults", default="", help="fault switches as JSON: " + faults.USAGE)
    parser.add_argument("--keep-alive-timeout", type=float, default=5.0, help="seconds, as uvicorn")
    parser.add_argument(
        "--shutdown-timeout", type=float, default=3.0, help="seconds for running work at SIGTERM"
    )


def profile_of(args: argparse.Namespace) -> Profile:
    """Give the profile that the options describe; raises `ValueError` on impossible figures."""
    name = args.profile or (EMBEDDING_PROFILE if args.embedding else DEFAULT_PROFILE)
    if args.speed <= 0:
        raise ValueError(f"--speed is {args.speed}; it must be above 0")
    figures = {
        field: getattr(args, option[2:].replace("-", "_")) * factor
        for option, field, _, factor, _ in _FIGURES
        if getattr(args, option[2:].replace("-", "_")) is not None
    }
    if args.no_prefix_cache:
        figures["prefix_cache"] = False
    return dataclasses.replace(PROFILES[name].faster(args.speed), **figures)


def main(args: argparse.Namespace) -> int:
    """Run one simulated engine until SIGTERM or SIGINT."""
    try:
        profile = profile_of(args)
        switches = faults.merged(faults.Faults(), args.faults.encode()) if args.faults else None
    except ValueError as problem:
        print(f"simulate-engine: {problem}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_serve(args, profile, switches))
    except OSError as problem:
        print(
            f"simulate-engine: cannot listen on {args.host}:{args.port}: {problem}", file=sys.stderr
        )
        return 1
    return 0


async def _serve(
    args: argparse.Namespace, profile: Profile, switches: faults.Faults | None
) -> None:
    limits = Limits(
        model=args.model,
        longest_request_tokens=profile.longest_request_tokens,
        answer_tokens=args.answer_tokens,
        max_adapter_rank=args.max_lora_rank,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if args.load_path is not None and await _stopped_while_loading(args.load_path, profile, stop):
        return
    server = EngineServer(
        profile,
        limits,
        api_key=args.api_key,
        embedding=args.embedding,
        idle_s=args.keep_alive_timeout,
    )
    if switches is not None:
        server.engine.switch(switches)
    await server.start(args.host, args.port)
    log.info("engine_started", url=f"http://{args.host}:{server.port}", model=args.model)
    await stop.wait()
    log.info("engine_stopping", jobs=server.engine.jobs, limit_s=args.shutdown_timeout)
    await server.stop(args.shutdown_timeout)


async def _stopped_while_loading(path: LoadPath, profile: Profile, stop: asyncio.Event) -> bool:
    takes_s = cold_start_s(profile.weights_bytes, path) / profile.speed
    log.info("engine_loading", path=path, takes_s=round(takes_s, 1))
    try:
        async with asyncio.timeout(takes_s):
            await stop.wait()
    except TimeoutError:
        return False
    return True


class EngineServer:
    """An engine and its listening socket, inside the running event loop."""

    def __init__(
        self,
        profile: Profile,
        limits: Limits,
        *,
        api_key: str = "",
        embedding: bool = False,
        idle_s: float = 5.0,
    ) -> None:
        self.engine = Engine(profile, limits, asyncio.get_running_loop())
        self.idle_s = idle_s
        self.is_draining = False
        self.port = 0
        self._routes = Routes(self.engine, api_key=api_key, embedding=embedding)
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes any free one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, host, port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self, limit_s: float) -> None:
        """Refuse new work, let running work end for at most `limit_s`, then close."""
        self.is_draining = self._routes.is_draining = True
        for connection in [c for c in self._connections if not c.is_busy]:
            connection.close()
        try:
            async with asyncio.timeout(limit_s):
                while self._connections:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            log.warning("engine_stopped_with_work_left", jobs=self.engine.jobs)
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()

    def respond(self, request: HttpRequest, connection: Connection) -> None:
        """Answer a request on its connection."""
        self._routes.respond(request, connection)

    def abandon(self, job: Job) -> None:
        """Free the work of a client that left."""
        self.engine.abandon(job)

    def left(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _connect(self) -> Connection:
        connection = Connection(self)
        self._connections.add(connection)
        return connection
