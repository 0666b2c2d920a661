"""`bin/bench model`: how far the engine model is off a live engine.

Measures a vLLM engine directly (prefill over prompt lengths, decode steps over sequences side by
side, prefix hits, queueing under load), fits a profile to the first two, asks the model the same
under the virtual clock, and prints both. The engine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import uvloop

from bench.live.client import Clients
from bench.machine import BenchError, progress
from bench.model import scenarios
from bench.model.comparison import Row, as_text, rows
from bench.model.facts import EnginePage, Sizes
from bench.model.fitting import Fit
from bench.model.measuring import LiveEngine, passes
from bench.model.plan import DECODE_TOKENS, Plan
from routing_agent.simulation.one_request import Target
from routing_agent.simulation.profiles import A100_QWEN_7B, Profile

ANSWER_LIMIT_S = 300.0
BURST = 64  # sequences at once, to see how many the engine lets run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `model`."""
    parser.add_argument("--engine", required=True, metavar="URL", help="a vLLM, real or simulated")
    parser.add_argument("--key", default="", help="the engine's API key")
    parser.add_argument("--repeat", type=int, default=5, help="passes; medians are taken (5)")
    parser.add_argument("--requests", type=int, default=100, help="of each load (default 100)")
    parser.add_argument(
        "--step-tokens", type=int, default=2048, metavar="N",
        help="the engine's token budget of a step, which it does not tell: vLLM's "
        "--max-num-batched-tokens (default 2048, that of its API server)",
    )  # fmt: skip
    parser.add_argument(
        "--max-seqs", type=int, metavar="N", help="its --max-num-seqs (default: found by a burst)"
    )
    parser.add_argument("--json", action="store_true", help="print profile and figures as JSON")


def main(options: argparse.Namespace) -> int:
    """Measure, fit, simulate, print; 2 if the engine cannot be measured."""
    try:
        before = os.getloadavg()[0]
        fit, compared = uvloop.run(compare(options))
    except (BenchError, ValueError, OSError) as problem:
        print(f"bin/bench model: {problem}", file=sys.stderr)
        return 2
    if options.json:
        print(as_json(fit, compared))
    else:
        print(as_text(fit, compared))
        print(
            f"{options.repeat} passes; load average {before:.1f} before and "
            f"{os.getloadavg()[0]:.1f} after, on {os.cpu_count()} processors"
        )
    return 0


async def compare(options: argparse.Namespace) -> tuple[Fit, list[Row]]:
    """Measure an engine and compare its model with it; raises `BenchError` if that cannot be."""
    page, clients = EnginePage(options.engine, options.key), Clients(ANSWER_LIMIT_S)
    try:
        sizes = await page.sizes()
        engine = LiveEngine(
            target=Target.parse(options.engine), page=page, clients=clients, model=sizes.model,
            key=options.key,
        )  # fmt: skip
        return await _compared(options, engine, sizes)
    finally:
        clients.close()
        await page.close()


async def _compared(
    options: argparse.Namespace, engine: LiveEngine, sizes: Sizes
) -> tuple[Fit, list[Row]]:
    longest = sizes.context_tokens - scenarios.PREFIX_OUTPUT_TOKENS
    progress("warming up")
    await engine.run(scenarios.prefill(longest, "warm"))
    await engine.run(scenarios.saturation(options.requests, longest))
    burst = scenarios.decode(BURST, DECODE_TOKENS, "warm")
    most = options.max_seqs or await engine.most_running(burst) or BURST
    plan = Plan(longest, most, options.requests)
    profile = _profile(options, sizes, most)
    first = await passes(engine, plan.to_fit, 1, progress)
    rates = plan.rates(plan.fitted(profile, first).profile)
    measured = await passes(
        engine,
        lambda salt: [*plan.to_fit(salt), *plan.to_predict(salt, rates)],
        options.repeat,
        progress,
    )
    fit = plan.fitted(profile, measured)
    asked = [*plan.to_fit("model"), *plan.to_predict("model", rates)]
    return fit, list(rows(fit, asked, plan.figures, measured))


def _profile(options: argparse.Namespace, sizes: Sizes, most: int) -> Profile:
    """Give the profile of what the engine tells; speeds are still to be found."""
    return replace(
        A100_QWEN_7B,
        max_running_sequences=most,
        kv_blocks=sizes.kv_blocks,
        block_tokens=sizes.block_tokens,
        step_token_budget=options.step_tokens,
        context_tokens=sizes.context_tokens,
    )


def as_json(fit: Fit, compared: Sequence[Row]) -> str:
    """Write profile and figures for programs."""
    figures = [msgspec.structs.asdict(row) | {"error": row.error} for row in compared]
    told = {"profile": fit.told, "load_average": os.getloadavg(), "figures": figures}
    return msgspec.json.encode(told).decode()
