"""The open loop: requests leave at their times, however slow the answers are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from bench.live.client import OK, Answer, Clients
from bench.live.prompts import PromptWriter
from bench.live.records import Record
from bench.live.schedule import Planned
from routing_agent.simulation.one_request import Target
from routing_agent.simulation.traces.model import TraceRequest

PATH = "/v1/chat/completions"
HELD_BACK = "held back"
INTERRUPTED = "interrupted"  # the load was ended before the answer


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom requests are sent."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and for whom it is asked."""

    target: Target
    caller: Caller

    def headers(self, request_id: str, session: int | None) -> dict[str, str]:
        """Give the header lines of a request."""
        made = {"x-request-id": request_id}
        if self.caller.key:
            made["authorization"] = f"Bearer {self.caller.key}"
        if session is not None:
            made["x-session-id"] = f"{session:016x}"
        return made


@dataclass(slots=True)
class Progress:
    """How far a load has come."""

    sent: int = 0
    in_flight: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Sends planned requests and tells of each what came of it."""

    clients: Clients
    targets: Sequence[Target]
    callers: Sequence[Caller]
    model: str
    writer: PromptWriter
    run: str  # marks the request ids of this run
    most_in_flight: int
    with_sessions: bool
    note: Callable[[Record], None]
    progress: Progress

    async def send_all(self, requests: Sequence[Planned]) -> None:
        """Send each at its time and wait for the last answer; cancelled, drop what is open."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number, planned in enumerate(requests):
                body = self._body(planned.request, number)  # before its time has come
                await asyncio.sleep(began + planned.at_s - time.monotonic())
                late_s = max(0.0, time.monotonic() - began - planned.at_s)
                if self.progress.in_flight >= self.most_in_flight:
                    self._hold_back(number, planned, late_s)
                    continue
                self.progress.sent += 1
                self.progress.in_flight += 1
                tasks.create_task(self._send(number, planned, body, late_s))

    def _body(self, request: TraceRequest, number: int) -> bytes:
        text = self.writer.text(request, number)
        return chat_body(self.model, text, max(1, request.output_tokens))

    async def _send(self, number: int, planned: Planned, body: bytes, late_s: float) -> None:
        endpoint = self._endpoint(number, planned)
        session = planned.request.session if self.with_sessions else None
        at = time.time()
        try:
            answer = await self.clients.ask(
                endpoint.target, PATH, endpoint.headers(f"{self.run}-{number}", session), body
            )
        except asyncio.CancelledError:
            answer = Answer(0.0, outcome=INTERRUPTED)
            self.note(self._record(number, planned, at, late_s, answer))
            raise
        finally:
            self.progress.in_flight -= 1
        self.progress.failed += answer.outcome != OK
        self.note(self._record(number, planned, at, late_s, answer))

    def _hold_back(self, number: int, planned: Planned, late_s: float) -> None:
        self.progress.failed += 1
        detail = f"{self.most_in_flight} requests were open already (--most-in-flight)"
        answer = Answer(0.0, outcome=HELD_BACK, detail=detail)
        self.note(self._record(number, planned, time.time(), late_s, answer))

    def _endpoint(self, number: int, planned: Planned) -> Endpoint:
        caller = self.callers[planned.request.session % len(self.callers)]
        return Endpoint(self.targets[number % len(self.targets)], caller)

    def _record(
        self, number: int, planned: Planned, at: float, late_s: float, answer: Answer
    ) -> Record:
        endpoint = self._endpoint(number, planned)
        usage, has_ended = answer.usage, answer.outcome not in (HELD_BACK, INTERRUPTED)
        details = usage.prompt_tokens_details if usage else None
        return Record(
            number=number,
            request_id=f"{self.run}-{number}",
            url=str(endpoint.target),
            tenant=endpoint.caller.name,
            at=at,
            planned_s=planned.at_s,
            late_s=late_s,
            wanted_prompt_tokens=planned.request.prompt_tokens,
            wanted_output_tokens=planned.request.output_tokens,
            status=answer.status,
            outcome=answer.outcome,
            detail=answer.detail,
            replica=answer.headers.get("x-signalbox-replica", ""),
            pool=answer.headers.get("x-signalbox-pool", ""),
            route=answer.headers.get("x-signalbox-route", ""),
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=details.cached_tokens if details else None,
            output_tokens=usage.completion_tokens if usage else None,
            ttft_s=answer.ttft_s,
            tpot_s=answer.tpot_s,
            e2e_s=answer.e2e_s if has_ended else None,
        )


def chat_body(model: str, text: str, tokens: int) -> bytes:
    """Give a streamed chat request whose answer has exactly so many tokens."""
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
