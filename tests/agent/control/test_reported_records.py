"""Lives of requests reach the control plane, also after it was away; stored ones come no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routing_agent.control.record_spool import RecordSpool
from routing_agent.control.reporter import Reporter
from routing_agent.wire import RequestRecord, ShadowAnswer, ShadowPair
from tests.agent.control.test_reporter import Rig
from tests.agent.waiting import until
from tests.fakes.control_plane import FakeControlPlane


class RecordRig(Rig):
    """A rig whose reports carry records."""

    def start(self):
        super().start()
        self.records = RecordSpool(self.folder / "requests.jsonl", RequestRecord)
        self.pairs = RecordSpool(self.folder / "pairs.jsonl", ShadowPair)
        before = self.reporter
        sources = replace(before.sources, records=self.records, pairs=self.pairs)
        self.reporter = Reporter(before.link, sources, before.chance)

    def keep(self, *uids: str) -> None:
        for uid in uids:
            self.records.add(RequestRecord(uid=uid, request_id=f"id-{uid}", received_at=1.0))

    def compare(self, uid: str) -> None:
        answer = ShadowAnswer(status=200, text="hi")
        self.pairs.add(
            ShadowPair(uid=uid, request_id=f"id-{uid}", at=1.0, primary=answer, shadow=answer)
        )

    async def stop(self):
        self.records.close()
        self.pairs.close()
        await super().stop()


@pytest.fixture
async def control_plane():
    control_plane = await FakeControlPlane().start()
    yield control_plane
    await control_plane.stop()


@pytest.fixture
async def rig(tmp_path, control_plane):
    rig = RecordRig(tmp_path, control_plane)
    yield rig
    await rig.stop()


async def test_records_are_reported_until_they_are_stored(rig, control_plane):
    rig.keep("a", "b")
    assert await rig.reporter.report()
    assert set(control_plane.records) == {"a", "b"}
    assert rig.records.pending == 0
    await rig.reporter.report()
    assert control_plane.reports[-1].records == ()


async def test_a_lost_answer_makes_them_come_again(rig, control_plane):
    control_plane.lose_answers = 1
    rig.keep("a")
    assert not await rig.reporter.report()
    assert await rig.reporter.report()
    assert [len(r.records) for r in control_plane.reports] == [1, 1]
    assert rig.records.pending == 0


async def test_records_of_an_outage_and_a_restart_arrive_afterwards(rig, control_plane):
    control_plane.status = 503
    rig.keep("a", "b")
    assert not await rig.reporter.report()
    rig.records.close()
    rig.pairs.close()
    rig.spool.close()
    rig.start()  # a new process over the same folder
    rig.keep("c")
    control_plane.status = None
    assert await rig.reporter.report()
    assert set(control_plane.records) == {"a", "b", "c"}


async def test_a_control_plane_that_takes_none_is_asked_ever_less_often(rig, control_plane):
    control_plane.takes_records = False
    rig.keep("a")
    for _ in range(3):
        await rig.reporter.report()
    assert [len(r.records) for r in control_plane.reports] == [1, 0, 0]
    assert rig.records.pending == 1
    control_plane.takes_records = True

    async def reported():
        await rig.reporter.report()
        return control_plane.records

    for _ in range(1000):
        if await reported():
            break
    assert set(control_plane.records) == {"a"}


async def test_compared_answers_are_reported_until_they_are_stored(rig, control_plane):
    control_plane.lose_answers = 1
    rig.compare("a")
    assert not await rig.reporter.report()
    assert await rig.reporter.report()
    assert [p.uid for p in control_plane.pairs.values()] == ["a"]
    assert rig.pairs.pending == 0


async def test_a_long_backlog_is_sent_in_quick_batches(rig, control_plane):
    rig.keep(*map(str, range(250)))
    await rig.reporter.report()
    assert rig.reporter._hurry
    await rig.reporter.report()
    await rig.reporter.report()
    await until(lambda: len(control_plane.records) == 250)
    assert not rig.reporter._hurry
