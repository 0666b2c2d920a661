"""Reports: booked once however often they are sent, usage never lost, tables pulled when behind."""

from __future__ import annotations

import asyncio
import random
import time

import msgspec
import pytest

from routing_agent import wire
from routing_agent.control import reporter as reporter_module
from routing_agent.control.clock import ControlClock
from routing_agent.control.http_server import error_answer
from routing_agent.control.identity import Identity
from routing_agent.control.numbers import ReportNumbers
from routing_agent.control.receiver import Receiver
from routing_agent.control.reporter import Link, Reporter, Sources
from routing_agent.control.signatures import Verifier
from routing_agent.control.snapshot import TableStore
from routing_agent.control.spool import UsageSpool
from routing_agent.core.fleet import Fleet
from routing_agent.http_client import HttpClient
from routing_agent.metrics import FinishedRequest, Metrics
from tests.agent.control.tables import a_table
from tests.agent.control.test_admin import Traffic
from tests.agent.waiting import until
from tests.fakes.control_plane import TABLE, FakeControlPlane


class Rig:
    """One agent's control side with everything behind it, and its control plane."""

    def __init__(self, folder, control_plane):
        self.folder = folder
        self.control_plane = control_plane
        self.fleet, self.metrics, self.traffic = Fleet(), Metrics(), Traffic()
        self.client = HttpClient()
        self.clock = ControlClock()
        self.start()

    def start(self):
        self.control_plane.agents["agent-token"] = "agent-1"
        self.identity = Identity(
            agent="agent-1",
            agent_token="agent-token",
            public_key=self.control_plane.public_key,
            lineage=self.control_plane.lineage,
        )
        self.receiver = Receiver(
            TableStore(self.folder / "table.json"),
            lambda table: self.fleet.apply(table, now=time.monotonic(), wall=time.time()),
        )
        self.receiver.trust(self.identity.lineage)
        self.spool = UsageSpool(self.folder / "usage.jsonl")
        link = Link(
            control_plane=self.control_plane.url,
            identity=self.identity,
            client=self.client,
            clock=self.clock,
            verifier=Verifier(self.control_plane.public_key, self.clock),
            receiver=self.receiver,
        )
        sources = Sources(
            fleet=self.fleet,
            metrics=self.metrics,
            spool=self.spool,
            numbers=ReportNumbers(self.folder / "numbers.json"),
            node=lambda: wire.NodeFacts(hostname="h"),
            traffic=self.traffic,
        )
        self.reporter = Reporter(link, sources, random.Random(1))

    def finish(self, request_id="x", **fields):
        record = FinishedRequest(request_id, tenant="acme", status=200, at=time.time())
        made = {"model": "m", "version": "v1", "pool": "chat", "was_admitted": True,
                "output_tokens": 5}  # fmt: skip
        for name, value in (made | fields).items():
            setattr(record, name, value)
        self.metrics.request_finished(record)
        self.spool.add(record)

    async def stop(self):
        self.spool.close()
        await self.client.close()


@pytest.fixture
async def control_plane():
    control_plane = await FakeControlPlane().start()
    yield control_plane
    await control_plane.stop()


@pytest.fixture
async def rig(tmp_path, control_plane):
    rig = Rig(tmp_path, control_plane)
    yield rig
    await rig.stop()


def booked_requests(control_plane):
    return sum(n for r in control_plane.booked for p in r.pools for n in p.requests.values())


async def test_a_report_tells_who_what_and_how_much(rig, control_plane):
    await rig.receiver.receive(msgspec.json.encode(a_table(3)), "push")
    rig.finish()
    assert await rig.reporter.report()
    report = control_plane.reports[0]
    assert (report.agent, report.number, report.epoch) == ("agent-1", 1, 3)
    assert (report.table_source, report.digest) == ("push", a_table(3).digest)
    assert [r.replica for r in report.replicas] == ["r0"]
    assert report.pools[0].requests == {"200": 1}
    assert report.usage[0].output_tokens == 5
    assert (report.node.hostname, report.open_connections) == ("h", 3)
    assert rig.clock.source == "contact"


async def test_numbers_grow_by_one(rig, control_plane):
    for _ in range(4):
        await rig.reporter.report()
    assert [r.number for r in control_plane.reports] == [1, 2, 3, 4]


async def test_a_lost_answer_books_nothing_twice_and_loses_nothing(rig, control_plane):
    control_plane.lose_answers = 3
    rig.finish("a")
    for name in "bcd":
        assert not await rig.reporter.report()
        rig.finish(name)
    assert await rig.reporter.report()
    assert await rig.reporter.report()
    assert [r.number for r in control_plane.reports] == [1, 1, 1, 1, 2]
    assert booked_requests(control_plane) == 4
    assert [r.request_id for r in control_plane.usage.values()] == ["a", "b", "c", "d"]


async def test_a_report_sent_again_carries_fresh_state(rig, control_plane):
    control_plane.status = 503
    await rig.reporter.report()
    await rig.receiver.receive(msgspec.json.encode(a_table(3)), "push")
    rig.traffic.is_draining = True
    control_plane.status = None
    await rig.reporter.report()
    report = control_plane.reports[0]
    assert (report.number, report.epoch, report.draining) == (1, 3, True)


async def test_an_outage_loses_neither_counts_nor_usage(rig, control_plane):
    await control_plane.stop()
    for i in range(20):
        rig.finish(f"r{i}")
        await rig.reporter.report()
    await control_plane.start()
    while not await rig.reporter.report() or rig.spool.pending:
        pass
    assert booked_requests(control_plane) == 20
    assert len(control_plane.usage) == 20


async def test_usage_of_before_a_restart_arrives_after_it(rig, control_plane):
    control_plane.status = 503
    rig.finish("before")
    await rig.reporter.report()
    rig.spool.close()
    control_plane.status = None
    rig.start()
    rig.finish("after")
    await rig.reporter.report()
    assert {r.number: r.request_id for r in control_plane.usage.values()} == {
        1: "before",
        2: "after",
    }
    assert control_plane.reports[0].number > 1000


async def test_a_control_plane_that_stores_no_usage_is_not_flooded_with_it(rig, control_plane):
    control_plane.usage_acknowledged_by_hand = 0
    rig.finish()
    for _ in range(5):
        await rig.reporter.report()
    assert [len(r.usage) for r in control_plane.reports] == [1, 0, 0, 0, 0]
    control_plane.usage_acknowledged_by_hand = None
    await until(lambda: time.monotonic() >= rig.reporter._usage_again_at)
    await rig.reporter.report()
    assert rig.spool.pending == 0


async def test_what_was_never_admitted_is_not_usage(rig, control_plane):
    record = FinishedRequest("x", at=1.0, tenant="", status=401)
    rig.spool.add(record)
    assert rig.spool.pending == 0


async def test_an_agent_behind_pulls_and_the_next_report_hurries(rig, control_plane):
    control_plane.table = a_table(7)
    await rig.reporter.report()
    assert (rig.receiver.table, rig.receiver.source) == (a_table(7), "pull")
    assert rig.reporter._pause_s() == reporter_module.HURRY_S
    await rig.reporter.report()
    assert control_plane.calls[TABLE] == 1
    assert control_plane.reports[-1].epoch == 7


async def test_a_table_that_is_not_signed_by_our_control_plane_is_not_pulled(rig, control_plane):
    stranger = FakeControlPlane()
    control_plane.signature = stranger.signature
    control_plane.table = a_table(7)
    await rig.reporter.report()
    assert rig.receiver.table is None
    assert control_plane.calls[TABLE] == 1


@pytest.mark.parametrize("answer", [404, 503])
async def test_a_failed_pull_is_tried_again_with_the_next_report(rig, control_plane, answer):
    control_plane.table = a_table(7)
    normal, control_plane._table = (
        control_plane._table,
        lambda _request: error_answer(answer, "no", "not now"),
    )
    await rig.reporter.report()
    assert rig.receiver.table is None
    control_plane._table = normal
    await rig.reporter.report()
    assert rig.receiver.table == a_table(7)


async def test_a_restored_control_plane_with_a_lower_epoch_takes_nothing_back(rig, control_plane):
    await rig.receiver.receive(msgspec.json.encode(a_table(9)), "push")
    control_plane.table = a_table(4)
    await rig.reporter.report()
    assert control_plane.calls[TABLE] == 0
    assert control_plane.reports[0].epoch == 9


async def test_another_lineage_is_said_and_not_followed(rig, control_plane):
    control_plane.lineage = "lineage-2"
    control_plane.table = a_table(50, lineage="lineage-2")
    await rig.reporter.report()
    assert control_plane.calls[TABLE] == 0
    assert "--adopt" in rig.reporter.last_error


async def test_a_revoked_token_says_what_to_do_and_keeps_the_counts(rig, control_plane):
    control_plane.agents.clear()
    rig.finish()
    assert not await rig.reporter.report()
    assert "--adopt" in rig.reporter.last_error
    control_plane.agents["agent-token"] = "agent-1"
    await rig.reporter.report()
    assert booked_requests(control_plane) == 1


async def test_a_report_that_will_never_be_taken_does_not_block_the_next(rig, control_plane):
    control_plane.status = 400
    await rig.reporter.report()
    control_plane.status = None
    assert await rig.reporter.report()
    assert control_plane.reports[0].number == 2


async def test_an_answer_that_is_no_reply_is_a_failure_and_the_number_is_kept(rig, control_plane):
    control_plane.status = 200
    assert not await rig.reporter.report()
    assert "cannot be read" in rig.reporter.last_error
    control_plane.status = None
    await rig.reporter.report()
    assert control_plane.reports[0].number == 1


async def test_it_reports_at_the_pace_the_control_plane_asks_for(rig, control_plane):
    control_plane.report_interval_s = 0.01
    running = asyncio.ensure_future(rig.reporter.run())
    await until(lambda: len(control_plane.reports) >= 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert 0.009 <= rig.reporter._pause_s() <= 0.011


@pytest.mark.parametrize("skew_s", [600.0, -600.0])
async def test_clocks_that_differ_by_ten_minutes_do_not_matter(rig, control_plane, skew_s):
    control_plane.now = lambda: time.time() + skew_s
    rig.clock.wall = time.time
    control_plane.table = a_table(7)
    await rig.reporter.report()
    assert rig.receiver.table == a_table(7)
    assert rig.clock.now() == pytest.approx(time.time() + skew_s, abs=5)


async def test_a_report_tells_how_long_its_counts_cover(rig, control_plane):
    started = rig.reporter._started_mono
    await rig.reporter.report()
    first = control_plane.reports[0]
    assert 0 <= first.covers_s <= time.monotonic() - started
    assert first.taken_ago_s <= time.monotonic() - started


async def test_a_report_sent_again_covers_what_it_did_and_the_next_one_the_time_since(
    rig, control_plane
):
    control_plane.status = 503
    assert not await rig.reporter.report()
    taken_at = rig.reporter._taken_at
    await asyncio.sleep(0.05)
    control_plane.status = None
    assert await rig.reporter.report()
    again = control_plane.reports[-1]
    assert again.taken_ago_s >= 0.05
    await rig.reporter.report()
    assert control_plane.reports[-1].covers_s == pytest.approx(rig.reporter._taken_at - taken_at)
