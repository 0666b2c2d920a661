"""A stand-alone agent of our own before live engines, for the programs that try them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path


@contextlib.asynccontextmanager
async def serving(options: argparse.Namespace, *words: str) -> AsyncIterator[Process]:
    """Run `serve` before the engines of a command line, with these words and the caller's."""
    command = [
        sys.executable, "-m", "routing_agent", "serve", "--worker-urls", *options.urls,
        "--port", str(options.port), "--admin-port", str(options.port + 1),
        *words, *shlex.split(options.serve_options),
    ]  # fmt: skip
    with Path(options.log).open("wb") as log:  # noqa: ASYNC230 - the agent's, for its whole life
        agent = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            yield agent
        finally:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                agent.terminate()
            await agent.wait()


def addresses(options: argparse.Namespace) -> tuple[str, str]:
    """Give where that agent takes traffic, and where it tells its state."""
    return f"http://127.0.0.1:{options.port}", f"http://127.0.0.1:{options.port + 1}"
