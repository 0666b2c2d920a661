"""Records of requests on disk: handed out until acknowledged, the oldest dropped when full."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.control import record_spool
from routing_agent.control.record_spool import RecordSpool
from routing_agent.wire import RequestRecord
from tests.agent.waiting import until


def record(uid: str = "x", **given) -> RequestRecord:
    return RequestRecord(uid=uid, request_id=f"id-{uid}", received_at=1.0, **given)


def uids(records):
    return [r.uid for r in records]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "requests.jsonl"


@pytest.fixture
def spool(path):
    spool = RecordSpool(path, RequestRecord)
    yield spool
    spool.close()


async def test_records_are_numbered_and_handed_out_until_acknowledged(spool):
    for name in "abc":
        spool.add(record(name))
    assert [r.number for r in spool.take()] == [1, 2, 3]
    assert spool.acknowledge(2)
    assert uids(spool.take()) == ["c"]
    assert not spool.acknowledge(2)
    assert spool.acknowledge(3)
    assert spool.take() == ()
    assert spool.pending == 0


async def test_what_was_not_acknowledged_comes_back_after_a_restart(spool, path):
    for name in "abc":
        spool.add(record(name))
    spool.close()
    restarted = RecordSpool(path, RequestRecord)
    restarted.add(record("d"))
    assert [(r.uid, r.number) for r in restarted.take()] == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
        ("d", 4),
    ]
    restarted.close()


async def test_records_reach_the_disk_by_themselves(spool, path):
    spool.add(record("a"))
    await until(lambda: b'"a"' in path.read_bytes())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_full_spool_drops_the_oldest_and_counts_them(path):
    spool = RecordSpool(path, RequestRecord, limit_bytes=4000)
    for i in range(200):
        spool.add(record(str(i)))
        spool._write()
    left = uids(spool.take(1000))
    assert left[-1] == "199"
    assert left == [str(i) for i in range(200 - len(left), 200)]
    assert spool.dropped == 200 - len(left) > 0
    assert sum(p.stat().st_size for p in path.parent.iterdir()) < 6000
    spool.close()


async def test_dropping_meets_a_batch_under_way(path):
    spool = RecordSpool(path, RequestRecord, limit_bytes=2000)
    for i in range(10):
        spool.add(record(str(i)))
        spool._write()
    handed = spool.take()
    for i in range(10, 60):
        spool.add(record(str(i)))
        spool._write()
    spool.acknowledge(handed[-1].number)
    left = uids(spool.take(1000))
    assert left == [str(i) for i in range(60 - len(left), 60)]
    assert spool.pending == len(left)
    spool.close()


async def test_half_a_line_and_unreadable_lines_are_passed_over(spool, path):
    spool.add(record("a"))
    spool.close()
    with path.open("ab") as file:
        file.write(b'{"number":"?"}\n{"number":9,"uid"')
    restarted = RecordSpool(path, RequestRecord)
    restarted.add(record("b"))
    assert uids(restarted.take()) == ["a", "b"]
    restarted.acknowledge(restarted.last_number)
    assert restarted.take() == ()
    assert restarted.pending == 0
    restarted.close()


async def test_a_disk_that_takes_nothing_costs_no_more_than_the_buffer(spool, monkeypatch):
    monkeypatch.setattr(record_spool, "BUFFER_BYTES", 500)

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_spool.os, "pwrite", full)
    for i in range(50):
        spool.add(record(str(i)))
    assert spool.take() == ()
    assert 0 < spool.pending < 50
    assert spool.dropped == 50 - spool.pending
    monkeypatch.undo()
    assert len(spool.take()) == 50 - spool.dropped


async def test_a_long_backlog_goes_out_in_batches(spool):
    for i in range(25):
        spool.add(record(str(i), detail="x" * 9000))
    seen = []
    while batch := spool.take(10):
        assert len(batch) <= 10
        seen += uids(batch)
        spool.acknowledge(batch[-1].number)
    assert seen == [str(i) for i in range(25)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["add", "take", "acknowledge", "restart"]), max_size=40))
async def test_no_record_is_lost_or_out_of_order_whatever_happens(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("spool") / "requests.jsonl"
    spool, added, stored, handed = RecordSpool(path, RequestRecord), 0, {}, ()
    for step in [*steps, "take", "acknowledge"]:
        match step:
            case "add":
                spool.add(record(str(added)))
                added += 1
            case "take":
                handed = spool.take(3)
            case "acknowledge" if handed:
                stored |= dict.fromkeys(uids(handed))
                spool.acknowledge(handed[-1].number)
                handed = ()
            case "restart":
                spool.close()
                spool, handed = RecordSpool(path, RequestRecord), ()
    while handed := spool.take(3):
        stored |= dict.fromkeys(uids(handed))
        spool.acknowledge(handed[-1].number)
    spool.close()
    assert sorted(stored, key=int) == [str(i) for i in range(added)]
