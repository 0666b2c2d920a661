"""Which tables an agent takes, in which order, and what it keeps on disk."""

from __future__ import annotations

import asyncio
import json
import random
import stat

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routing_agent.control.receiver import Receiver
from routing_agent.control.snapshot import TableStore
from routing_agent.control.tables import BadTable, judge_order, read_table
from routing_agent.wire import RoutingTable, table_digest
from tests.agent.control.tables import a_table


def encoded(table: RoutingTable) -> bytes:
    return msgspec.json.encode(table)


@pytest.fixture
def applied():
    return []


@pytest.fixture
def receiver(tmp_path, applied):
    receiver = Receiver(TableStore(tmp_path / "table.json"), applied.append)
    receiver.trust("lineage-1")
    return receiver


async def test_a_first_table_is_applied_whatever_its_epoch(receiver, applied):
    receipt = await receiver.receive(encoded(a_table(41)), "push")
    assert (receipt.outcome, receipt.epoch) == ("applied", 41)
    assert applied == [a_table(41)]
    assert receiver.source == "push"


async def test_a_late_older_table_never_wins_and_the_repeat_is_harmless(receiver, applied):
    outcomes = [
        (await receiver.receive(encoded(a_table(epoch)), "push")).outcome for epoch in (7, 6, 7)
    ]
    assert outcomes == ["applied", "refused_older", "already_there"]
    assert [table.epoch for table in applied] == [7]


async def test_a_refusal_tells_what_runs(receiver):
    await receiver.receive(encoded(a_table(7)), "push")
    receipt = await receiver.receive(encoded(a_table(6)), "push")
    assert (receipt.epoch, receipt.digest, receipt.lineage) == (7, a_table(7).digest, "lineage-1")
    assert receipt.detail == "$.epoch: 6 is older than 7"


async def test_the_same_epoch_with_other_content_is_refused_and_hints_at_a_restored_backup(
    receiver,
):
    await receiver.receive(encoded(a_table(7)), "push")
    other = a_table(7, hash_seed=99)
    receipt = await receiver.receive(encoded(other), "push")
    assert receipt.outcome == "refused_older"
    assert "restored" in receipt.detail


async def test_another_lineage_is_refused_with_the_remedy(receiver, applied):
    receipt = await receiver.receive(encoded(a_table(9, lineage="other")), "push")
    assert receipt.outcome == "refused_lineage"
    assert "--adopt" in receipt.detail
    assert applied == []


async def test_after_registering_with_another_control_plane_its_tables_win_at_any_epoch(receiver):
    await receiver.receive(encoded(a_table(40)), "push")
    receiver.trust("lineage-2")
    receipt = await receiver.receive(encoded(a_table(1, lineage="lineage-2")), "push")
    assert (receipt.outcome, receipt.epoch, receipt.lineage) == ("applied", 1, "lineage-2")
    old = await receiver.receive(encoded(a_table(41)), "push")
    assert old.outcome == "refused_lineage"


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        (lambda t: t["pools"][0]["endpoints"][1].update(weight="heavy"), "$.pools[0].endpoints[1]"),
        (lambda t: t["pools"][0].pop("overload"), "$.pools[0]"),
        (lambda t: t.update(epoch=0), "$.epoch"),
        (lambda t: t.update(schema=99), "$.schema"),
        (lambda t: t.update(hash_seed=123), "$.digest"),
        (lambda t: t.pop("digest"), "$.digest"),
        (lambda t: t.update(kind="something-else"), "$.kind"),
    ],
    ids=["type", "missing", "bound", "newer-schema", "altered", "no-digest", "other-message"],
)
async def test_an_invalid_table_changes_nothing_and_names_the_first_bad_field(
    receiver, applied, damage, path
):
    await receiver.receive(encoded(a_table(1)), "push")
    content = json.loads(encoded(a_table(2, urls=("http://a:1", "http://b:1"))))
    damage(content)
    receipt = await receiver.receive(json.dumps(content).encode(), "push")
    assert receipt.outcome == "invalid"
    assert receipt.detail.startswith(path)
    assert (receipt.epoch, len(applied)) == (1, 1)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"null"])
async def test_what_is_no_table_at_all_is_invalid(receiver, content):
    receipt = await receiver.receive(content, "push")
    assert receipt.outcome == "invalid"
    assert receipt.detail.startswith("$")


async def test_fields_of_a_newer_control_plane_are_ignored_but_belong_to_the_digest(receiver):
    # As a newer sender makes it: the field is there when the digest is computed.
    class NewerTable(
        RoutingTable, frozen=True, kw_only=True, tag_field="kind", tag="routing-table"
    ):
        shadows: tuple[str, ...] = ()

    fields = {name: getattr(a_table(3), name) for name in RoutingTable.__struct_fields__}
    newer = NewerTable(**fields | {"shadows": ("x",)})
    newer = replace(newer, digest=table_digest(newer))
    receipt = await receiver.receive(msgspec.json.encode(newer), "push")
    assert receipt.outcome == "applied", receipt.detail
    assert receipt.digest == newer.digest


async def test_a_table_is_on_disk_before_it_is_applied(tmp_path):
    path = tmp_path / "table.json"
    on_disk_when_applied = []
    receiver = Receiver(
        TableStore(path), lambda _table: on_disk_when_applied.append(path.read_bytes())
    )
    receiver.trust("lineage-1")
    await receiver.receive(encoded(a_table(5)), "push")
    assert on_disk_when_applied == [encoded(a_table(5))]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_disk_that_does_not_take_the_table_means_it_is_not_applied(tmp_path, applied):
    receiver = Receiver(TableStore(tmp_path / "missing" / "table.json"), applied.append)
    receiver.trust("lineage-1")
    with pytest.raises(OSError, match="missing"):
        await receiver.receive(encoded(a_table(5)), "push")
    assert applied == []


async def test_a_restarted_agent_starts_from_its_disk(receiver, tmp_path):
    await receiver.receive(encoded(a_table(5)), "push")
    applied = []
    restarted = Receiver(TableStore(tmp_path / "table.json"), applied.append)
    restarted.start_from_disk()
    assert applied == [a_table(5)]
    assert restarted.source == "disk"


@pytest.mark.parametrize("content", [b"", b"{\x00", b'{"kind":"routing-table"}'])
async def test_a_corrupt_disk_table_is_set_aside_and_the_agent_starts_without(
    receiver, tmp_path, content
):
    path = tmp_path / "table.json"
    path.write_bytes(content)
    receiver.start_from_disk()
    assert (receiver.table, receiver.source) == (None, "none")
    assert path.with_name("table.json.corrupt").read_bytes() == content
    assert not path.exists()


def test_no_disk_table_is_an_ordinary_first_start(receiver):
    receiver.start_from_disk()
    assert receiver.table is None


async def test_tables_arriving_at_once_end_with_the_newest(receiver, applied):
    epochs = list(range(1, 30))
    random.Random(4).shuffle(epochs)
    await asyncio.gather(*(receiver.receive(encoded(a_table(e)), "push") for e in epochs))
    assert receiver.table == a_table(29)
    assert [t.epoch for t in applied] == sorted(t.epoch for t in applied)


@given(st.lists(st.integers(1, 9), max_size=20))
def test_whatever_the_order_of_arrival_the_highest_epoch_runs(epochs):
    current = None
    for epoch in epochs:
        incoming = a_table(epoch)
        if judge_order(incoming, current, trusted_lineage="lineage-1").refusal is None:
            current = incoming
    assert (current.epoch if current else None) == max(epochs, default=None)


def test_a_table_as_it_was_made_is_readable():
    assert read_table(encoded(a_table(3))) == a_table(3)


def test_an_undecodable_table_raises_with_the_place():
    with pytest.raises(BadTable, match=r"^\$\.epoch: "):
        read_table(b'{"kind":"routing-table","lineage":"x","epoch":"seven"}')
