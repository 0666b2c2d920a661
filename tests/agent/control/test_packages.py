"""Adapters on a node's disk: fetched once, right to the last bit, and never too many."""

from __future__ import annotations

import asyncio
import os

import pytest

from routing_agent.control.packages import FILES_PATH, PackageStore
from routing_agent.core.upkeep import PackageUnavailable
from routing_agent.http_client import HttpClient
from routing_agent.metrics import Metrics
from tests.agent.adapter_files import package, publish
from tests.fakes.control_plane import FakeControlPlane


@pytest.fixture
async def control_plane():
    made = await FakeControlPlane().start()
    made.agents["token"] = "agent-1"
    yield made
    await made.stop()


@pytest.fixture
async def store(control_plane, tmp_path):
    client = HttpClient()
    yield PackageStore(
        folder=tmp_path / "adapters", limit_bytes=100_000, url=control_plane.url, token="token",
        client=client, metrics=Metrics(),
    )  # fmt: skip
    await client.close()


def path_of(adapter, file="adapter_model.safetensors"):
    return f"{FILES_PATH}/{adapter.digest}/{file}"


def age(store, adapter, seconds):
    place = store.folder / adapter.digest
    at = place.stat().st_mtime - seconds
    os.utime(place, (at, at))


async def refused(store, adapter):
    with pytest.raises(PackageUnavailable) as caught:
        await store.folder_of(adapter)
    return str(caught.value)


async def test_files_are_fetched_once_and_are_what_the_table_says(store, control_plane):
    [adapter] = publish(control_plane, "sql", size=3_000_000)
    store.limit_bytes = 10_000_000
    places = await asyncio.gather(*(store.folder_of(adapter) for _ in range(3)))
    assert set(places) == {store.folder / adapter.digest}
    for file in adapter.files:
        assert (places[0] / file.name).read_bytes() == control_plane.files[
            adapter.digest, file.name
        ]
        assert control_plane.calls[path_of(adapter, file.name)] == 1
    assert store.metrics.adapter_steps == {("fetch", "done"): 1}
    assert store.metrics.adapter_bytes == sum(f.size_bytes for f in adapter.files)
    assert store.used_bytes() == store.metrics.adapter_bytes


async def test_what_is_on_the_disk_needs_no_control_plane(store, control_plane):
    """R36: after a restart of the agent too."""
    [adapter] = publish(control_plane, "sql")
    await store.folder_of(adapter)
    await control_plane.stop()
    later = PackageStore(
        folder=store.folder, limit_bytes=1, url=control_plane.url, token="",
        client=store.client, metrics=Metrics(),
    )  # fmt: skip
    assert await later.folder_of(adapter) == store.folder / adapter.digest
    other, _ = package("other")
    assert "could not be fetched: connection refused" in await refused(store, other)


@pytest.mark.parametrize("wrong", [b"short", b"x" * 2000, b"x" * 200_000])
async def test_wrong_bytes_are_never_put_in_place(store, control_plane, wrong):
    [adapter] = publish(control_plane, "sql")
    right = control_plane.files[adapter.digest, "adapter_model.safetensors"]
    control_plane.files[adapter.digest, "adapter_model.safetensors"] = wrong
    why = await refused(store, adapter)
    assert "not what the table says" in why or "larger than" in why
    assert not (store.folder / adapter.digest).exists()
    control_plane.files[adapter.digest, "adapter_model.safetensors"] = right
    assert (await store.folder_of(adapter)).is_dir()
    assert control_plane.calls[path_of(adapter, "adapter_config.json")] == 1  # had that already


async def test_a_file_that_was_damaged_on_the_disk_is_fetched_again(store, control_plane):
    [adapter] = publish(control_plane, "sql")
    file = await store.folder_of(adapter) / "adapter_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"?")
    store._checked.clear()  # as in the agent's next life
    assert (await store.folder_of(adapter) / file.name).read_bytes() == whole


async def test_a_refusal_is_told_in_the_control_planes_words(store, control_plane):
    adapter, _ = package()
    assert "answered 404 There is no such adapter" in await refused(store, adapter)
    control_plane.agents.clear()
    assert "answered 401" in await refused(store, adapter)


async def test_what_was_used_longest_ago_makes_room_but_nothing_in_use(store, control_plane):
    """The disk cache is bounded."""
    adapters = publish(control_plane, "a", "b", "c", size=40_000)
    a, b, c = adapters
    for i, adapter in enumerate((a, b)):
        await store.folder_of(adapter)
        age(store, adapter, 100 - i)
    store.in_use = lambda: {a.digest[:12]}
    await store.folder_of(c)
    assert {p.name for p in store.folder.iterdir()} == {a.digest, c.digest}
    store.in_use = lambda: {a.digest[:12], c.digest[:12]}
    assert "full of adapters in use" in await refused(store, b)
    assert "--adapter-cache" in await refused(store, b)
    assert store.used_bytes() <= store.limit_bytes


async def test_a_disk_that_cannot_be_written_is_named(store, control_plane):
    [adapter] = publish(control_plane, "sql")
    store.folder.parent.mkdir(exist_ok=True)
    store.folder.write_text("a file in the way")
    assert str(store.folder) in await refused(store, adapter)


async def test_a_fetch_that_stalls_is_given_up(store, control_plane, monkeypatch):
    monkeypatch.setattr("routing_agent.control.packages.STALL_LIMIT_S", 0.05)
    gate = asyncio.Event()

    async def stalling(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
        await gate.wait()
        writer.close()

    server = await asyncio.start_server(stalling, "127.0.0.1", 0)
    store.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert "no answer" in await refused(store, package()[0])
    assert store.metrics.adapter_steps == {("fetch", "failed"): 1}
    gate.set()
    server.close()
