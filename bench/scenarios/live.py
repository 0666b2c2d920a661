"""A scenario lived through by the agent itself, before simulated engines of the replay's speed.

Requests leave at the trace's times whatever becomes of them, with text that is shared where the
trace says so; what happens to the fleet is done to the processes. Hits and work are the engines'
own counters, read where one stretch ends and the next begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.live.client import OK, Clients
from bench.live.prompts import PromptWriter, TextSize
from bench.live.records import Record
from bench.live.schedule import Planned
from bench.live.sending import Caller, Progress, Sender
from bench.machine import KEY, MODEL, BenchError, Process, simulated_engines
from bench.peers import Peer, ours, start_peer
from bench.scenarios.figures import Part, Told, told
from bench.scenarios.plans import KV_BLOCKS, RATE, Course, Scenario, Times
from bench.scenarios.workload import BLOCK_TOKENS
from bench.talks.beside import loads
from bench.talks.figures import computed
from bench.talks.people import BYTES_PER_TOKEN
from routing_agent.engine.base import EngineLoad
from routing_agent.http_client import HttpClient
from routing_agent.simulation.changes import Change, FreshAgents, Resize
from routing_agent.simulation.fleet_replay import FleetReplay
from routing_agent.simulation.flights import Flight
from routing_agent.simulation.one_request import Target
from routing_agent.wire import PolicyName

ANSWER_TOKENS: Final = 4  # the replay looks at prompts only
ANSWER_LIMIT_S: Final = 60.0
MOST_IN_FLIGHT: Final = 2000
SETTLE_S: Final = 3.0  # for the agent to probe and scrape every engine


@dataclass(slots=True)
class LiveFleet:
    """The processes of one run. The second agent waits for those who start anew."""

    engines: list[Process]
    agents: list[Process]
    folders: list[Path]
    targets: list[Target]  # where requests go from now on

    def resize(self, replicas: int) -> None:
        """Let the first so many engines serve."""
        for agent, folder in zip(self.agents, self.folders, strict=True):
            (folder / "serving").write_text(str(replicas))
            agent.tell(signal.SIGHUP)

    async def slow_down(self, client: HttpClient, engine: int, factor: float) -> None:
        """Let every step of an engine take so many times as long."""
        url = f"http://127.0.0.1:{self.engines[engine].port}/simulate/faults"
        answer = await client.call("POST", url, body=msgspec.json.encode({"slow": factor}))
        if not answer.ok:
            raise BenchError(f"{url} answered {answer.status}")

    async def undergo(self, client: HttpClient, change: Change) -> None:
        """Do to the processes what the course says."""
        if isinstance(change, Resize):
            self.resize(change.replicas)
        elif isinstance(change, FreshAgents):
            self.targets[0] = Target("127.0.0.1", self.agents[1].port)
        else:
            await self.slow_down(client, change.engine, change.factor)


def faster(course: Course, times: Times, speed: float) -> tuple[Course, Times]:
    """Give a course that takes so many times less time; its engines must be as much faster."""
    requests = tuple(
        replace(one, at_s=one.at_s / speed, output_tokens=ANSWER_TOKENS) for one in course.requests
    )
    changes = tuple(replace(change, at_s=change.at_s / speed) for change in course.changes)
    return replace(course, requests=requests, changes=changes), times.shortened(speed)


def lived(
    scenario: Scenario, times: Times, policy: PolicyName, replicas: int, speed: float
) -> Told:
    """Run a scenario live; raises `BenchError` if a process does not start."""
    course, shorter = faster(scenario.course(times, replicas), times, speed)
    with (
        tempfile.TemporaryDirectory(prefix="signalbox-bench-") as scratch,
        contextlib.ExitStack() as stack,
    ):
        fleet = _start(stack, Path(scratch), course, policy, speed)
        records, counted = uvloop.run(_live(fleet, course, shorter))
    return _told(policy, course, shorter, records, counted)


def replayed_beside(
    scenario: Scenario, times: Times, policy: PolicyName, replicas: int, speed: float
) -> Told:
    """Replay exactly what `lived` runs."""
    course, shorter = faster(scenario.course(times, replicas), times, speed)
    flights = FleetReplay(course.plan(policy, speed=speed)).run(course.requests)
    return told(f"{policy} replayed", course, shorter, flights)


def _start(
    stack: contextlib.ExitStack, scratch: Path, course: Course, policy: str, speed: float
) -> LiveFleet:
    engines = simulated_engines(
        stack, scratch, course.replicas,
        "--prefill-rate", str(RATE * speed), "--kv-blocks", str(KV_BLOCKS),
        "--block-tokens", str(BLOCK_TOKENS), "--decode-step-ms", "1",
    )  # fmt: skip
    serving = str(course.serving or course.replicas)
    names = ["agent", "fresh-agent"] if _is_seen_anew(course) else ["agent"]
    peers = [Peer(name, ours("--policy", policy, "--serving", serving)) for name in names]
    ports = [engine.port for engine in engines]
    agents = [start_peer(stack, peer, scratch, ports) for peer in peers]
    folders = [scratch / peer.name for peer in peers]
    return LiveFleet(engines, agents, folders, [Target("127.0.0.1", agents[0].port)])


def _is_seen_anew(course: Course) -> bool:
    return any(isinstance(change, FreshAgents) for change in course.changes)


async def _live(
    fleet: LiveFleet, course: Course, times: Times
) -> tuple[list[Record], list[list[EngineLoad]]]:
    client, clients, records = HttpClient(), Clients(ANSWER_LIMIT_S), list[Record]()
    counted: list[list[EngineLoad]] = []
    ports = [engine.port for engine in fleet.engines]

    async def count() -> None:
        counted.append(await loads(client, ports))

    sender = Sender(
        clients=clients, targets=fleet.targets, callers=[Caller("tenant", KEY)], model=MODEL,
        writer=PromptWriter(TextSize(BYTES_PER_TOKEN, 0), BLOCK_TOKENS, "live"), run="live",
        most_in_flight=MOST_IN_FLIGHT, with_sessions=True, note=records.append,
        progress=Progress(),
    )  # fmt: skip
    try:
        await asyncio.sleep(SETTLE_S)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sender.send_all([Planned(r.at_s, r) for r in course.requests]))
            for at_s in (times.before / 3, times.begins, times.ends):
                tasks.create_task(_later(at_s, count()))
            for change in course.changes:
                tasks.create_task(_later(change.at_s, fleet.undergo(client, change)))
        await count()
    finally:
        clients.close()
        await client.close()
    return records, counted


async def _later(at_s: float, what: Awaitable[None]) -> None:
    await asyncio.sleep(at_s)
    await what


def _told(
    policy: str, course: Course, times: Times, records: Sequence[Record],
    counted: Sequence[Sequence[EngineLoad]],
) -> Told:  # fmt: skip
    seen = told(policy, course, times, [flight_of(one, course) for one in records])
    parts = (seen.steady, seen.event, seen.after)
    steady, event, after = (
        counted_part(part, before, end)
        for part, before, end in zip(parts, counted, counted[1:], strict=False)
    )
    return msgspec.structs.replace(seen, steady=steady, event=event, after=after)


def counted_part(part: Part, before: Sequence[EngineLoad], end: Sequence[EngineLoad]) -> Part:
    """Give a stretch with hits and work as the engines counted them."""
    row = computed(before, end)
    return msgspec.structs.replace(
        part, hit_rate=row["hit_rate"], work_max_mean=row["work_max_mean"]
    )


def flight_of(record: Record, course: Course) -> Flight:
    """Give a request as a replay would; one without an answer has no engine."""
    request = course.requests[record.number]
    is_good = record.outcome == OK and record.ttft_s is not None
    number = record.replica.removeprefix("replica-")
    return Flight(
        number=record.number,
        request=request,
        agent=0,
        charged_tokens=0,
        reason=record.outcome,
        engine=int(number) - 1 if is_good and number.isdigit() else None,
        cached_tokens=record.cached_tokens or 0,
        first_token_at=request.at_s + (record.ttft_s or 0.0) if is_good else None,
    )
