"""Scenarios on a live engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from bench.live.client import OK, Answer, Clients
from bench.machine import BenchError
from bench.model.facts import EnginePage
from bench.model.passed import Outcome, Passed
from bench.model.scenarios import Ask, Scenario
from routing_agent.simulation.one_request import Target

_PATH = "/v1/completions"  # takes token ids: lengths are exact whatever the tokenizer
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEngine:
    """The engine that is measured."""

    target: Target
    page: EnginePage
    clients: Clients
    model: str
    key: str

    async def run(self, scenario: Scenario) -> Passed:
        """Go through a scenario; raises `BenchError` if a request is not answered well."""
        for batch in scenario.batches[: scenario.judged]:
            await self._batch(batch)
        before = await self.page.counts()
        outcomes = [
            outcome
            for batch in scenario.batches[scenario.judged :]
            for outcome in await self._batch(batch)
        ]
        after = await self.page.counts()
        return Passed(tuple(outcomes), after.queue_wait_s(before))

    async def most_running(self, scenario: Scenario) -> int | None:
        """Give how many sequences ran while others waited; `None` if none had to wait."""
        found: list[int] = []
        run = asyncio.create_task(self.run(scenario))
        while not run.done():
            counts = await self.page.counts()
            if counts.waiting and counts.running:
                found.append(int(counts.running))
            await asyncio.wait([run], timeout=_LOOK_EVERY_S)
        run.result()
        return max(found, default=None)

    async def _batch(self, asks: Sequence[Ask]) -> list[Outcome]:
        bodies = [self._body(ask) for ask in asks]
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            asked = []
            for ask, body in zip(asks, bodies, strict=True):
                await asyncio.sleep(began + ask.at_s - time.monotonic())
                asked.append(tasks.create_task(self._ask(body)))
        return [_outcome(task.result()) for task in asked]

    async def _ask(self, body: bytes) -> Answer:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return await self.clients.ask(self.target, _PATH, headers, body)

    def _body(self, ask: Ask) -> bytes:
        return msgspec.json.encode(
            {
                "model": self.model,
                "prompt": ask.token_ids(),
                "max_tokens": ask.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )


def _outcome(answer: Answer) -> Outcome:
    if answer.outcome != OK or answer.ttft_s is None or answer.usage is None:
        raise BenchError(f"the engine answers {answer.outcome}. {answer.detail}".strip())
    details = answer.usage.prompt_tokens_details
    cached = details.cached_tokens if details else None
    return Outcome(answer.ttft_s, answer.tpot_s, cached or 0)


async def passes(
    engine: LiveEngine,
    scenarios: Callable[[str], Sequence[Scenario]],
    repeat: int,
    note: Callable[[str], None],
) -> dict[str, list[Passed]]:
    """Go through all scenarios `repeat` times, each time with prompts that are new."""
    found: dict[str, list[Passed]] = {}
    for number in range(repeat):
        for scenario in scenarios(f"{time.time_ns()}"):
            note(f"pass {number + 1} of {repeat}: {scenario.name}")
            found.setdefault(scenario.name, []).append(await engine.run(scenario))
    return found
