"""Usage on disk: numbered, handed out until acknowledged, over restarts too."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.control import spool as spool_module
from routing_agent.control.numbers import ReportNumbers
from routing_agent.control.spool import UsageSpool
from routing_agent.metrics import FinishedRequest


def record(request_id: str = "x") -> FinishedRequest:
    made = FinishedRequest(request_id, tenant="acme", status=200, at=1.0)
    made.output_tokens, made.was_admitted = 3, True
    return made


def ids(records):
    return [r.request_id for r in records]


def numbers(records):
    return [r.number for r in records]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "usage.jsonl"


@pytest.fixture
def spool(path):
    spool = UsageSpool(path)
    yield spool
    spool.close()


async def test_records_are_numbered_and_handed_out_until_acknowledged(spool):
    for name in "abc":
        spool.add(record(name))
    assert numbers(await spool.take()) == [1, 2, 3]
    assert numbers(await spool.take()) == [1, 2, 3]
    await spool.acknowledge(2)
    assert ids(await spool.take()) == ["c"]
    await spool.acknowledge(3)
    assert await spool.take() == ()
    assert spool.pending == 0


async def test_an_acknowledgement_covers_only_what_was_handed_out(spool):
    spool.add(record("a"))
    await spool.take()
    spool.add(record("b"))
    await spool.acknowledge(2)
    assert ids(await spool.take()) == ["b"]


async def test_what_was_not_acknowledged_comes_back_after_a_restart(spool, path):
    for name in "abc":
        spool.add(record(name))
    await spool.take()
    await spool.acknowledge(1)
    spool.close()
    restarted = UsageSpool(path)
    restarted.add(record("d"))
    records = await restarted.take()
    assert ids(records)[-3:] == ["b", "c", "d"]
    assert numbers(records)[-1] == 4
    restarted.close()


async def test_numbers_go_on_after_everything_was_acknowledged_and_the_agent_restarted(spool, path):
    for name in "abc":
        spool.add(record(name))
    await spool.take()
    await spool.acknowledge(3)
    spool.close()
    restarted = UsageSpool(path)
    restarted.add(record("d"))
    assert numbers(await restarted.take()) == [4]
    restarted.close()


async def test_half_a_line_at_the_end_is_what_a_crash_leaves_and_is_cut_off(spool, path):
    spool.add(record("a"))
    await spool.take()
    spool.close()
    with path.open("ab") as file:
        file.write(b'{"number":2,"at":1.0,"requ')
    restarted = UsageSpool(path)
    restarted.add(record("b"))
    assert ids(await restarted.take()) == ["a", "b"]
    restarted.close()


async def test_only_the_end_of_a_long_file_is_read_at_a_start(spool, path, monkeypatch):
    monkeypatch.setattr(spool_module, "TAIL_BYTES", 300)
    for i in range(100):
        spool.add(record(str(i)))
    await spool.take()
    spool.close()
    with path.open("ab") as file:
        file.write(b'{"number":101,"at"')
    restarted = UsageSpool(path)
    assert restarted.last_number == 100
    restarted.add(record("next"))
    assert numbers(await restarted.take()) == list(range(1, 102))
    restarted.close()


async def test_a_corrupt_file_is_set_aside(path):
    path.write_bytes(b"\x00\x01\n\x02\n")
    spool = UsageSpool(path)
    assert path.with_name("usage.jsonl.corrupt").exists()
    spool.add(record())
    assert numbers(await spool.take()) == [1]
    spool.close()


async def test_when_the_file_was_lost_records_are_numbered_after_what_the_control_plane_has(spool):
    spool.add(record("a"))
    await spool.take()
    spool.add(record("b"))
    await spool.acknowledge(700)
    assert numbers(await spool.take()) == [701, 702]
    await spool.acknowledge(702)
    spool.add(record("c"))
    assert numbers(await spool.take()) == [703]


async def test_a_full_file_drops_new_records_and_counts_them(path):
    spool = UsageSpool(path, limit_bytes=400)
    for i in range(20):
        spool.add(record(str(i)))
    assert 0 < len(await spool.take()) < 20
    assert spool.dropped == 20 - spool.pending
    spool.close()


async def test_room_is_made_by_acknowledgements(path):
    spool = UsageSpool(path, limit_bytes=400)
    for i in range(100):
        spool.add(record(str(i)))
        await spool.take()
        await spool.acknowledge(spool.last_number)
    assert spool.dropped == 0
    assert path.stat().st_size < 1000
    spool.close()


async def test_a_long_backlog_is_handed_out_in_batches_in_order(spool):
    for i in range(25):
        spool.add(record(str(i)))
    seen = []
    while batch := await spool.take(10):
        seen += numbers(batch)
        await spool.acknowledge(batch[-1].number)
    assert seen == list(range(1, 26))


async def test_the_file_shrinks_while_a_backlog_remains(spool, path, monkeypatch):
    monkeypatch.setattr(spool_module, "COMPACT_BYTES", 200)
    for i in range(50):
        spool.add(record(str(i)))
    batch = await spool.take(40)
    full = path.stat().st_size
    await spool.acknowledge(batch[-1].number)
    assert path.stat().st_size < full / 2
    assert numbers(await spool.take()) == list(range(41, 51))


async def test_the_file_is_for_the_owner_only(spool, path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["add", "take", "acknowledge", "restart"]), max_size=40))
async def test_no_record_is_lost_or_renumbered_whatever_happens(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("spool") / "usage.jsonl"
    spool, added, stored, handed = UsageSpool(path), 0, {}, ()
    for step in [*steps, "take", "acknowledge"]:
        match step:
            case "add":
                spool.add(record(f"request-{added}"))
                added += 1
            case "take":
                handed = await spool.take(3)
            case "acknowledge":
                for r in handed:
                    assert stored.setdefault(r.number, r.request_id) == r.request_id
                await spool.acknowledge(max(stored, default=0))
            case "restart":
                spool.close()
                spool, handed = UsageSpool(path), ()
    while handed := await spool.take(3):
        for r in handed:
            assert stored.setdefault(r.number, r.request_id) == r.request_id
        await spool.acknowledge(max(stored))
    spool.close()
    assert list(stored.values()) == [f"request-{i}" for i in range(added)]


def test_report_numbers_only_grow_over_restarts(tmp_path):
    path = tmp_path / "numbers.json"
    seen = []
    for _ in range(3):
        reports = ReportNumbers(path)
        seen += [reports.next() for _ in range(1200)]
    assert seen == sorted(set(seen))
    assert seen[:1200] == list(range(1, 1201))


def test_a_corrupt_number_file_is_set_aside(tmp_path):
    path = tmp_path / "numbers.json"
    path.write_text("?")
    assert ReportNumbers(path).next() == 1
    assert path.with_name("numbers.json.corrupt").exists()
