"""Agents fetch the files of adapters that are in the table, and nothing else."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient

from controlplane.catalog import services
from controlplane.catalog.uploads import Incoming
from tests import adapters as made
from tests.factories import ACTOR, WHY, make_agent, make_pool, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)
WEIGHTS = "adapter_model.safetensors"
TOKEN = {"authorization": "Bearer sba-1"}


@pytest.fixture(autouse=True)
async def _no_connection_stays():
    yield
    await sync_to_async(connections.close_all)()


@sync_to_async
def uploaded() -> tuple[str, str]:
    make_agent(token_sha256=hashlib.sha256(b"sba-1").hexdigest())
    make_pool("chat")
    make_tenant("acme")
    sent = [
        Incoming("adapter_config.json", io.BytesIO(made.config_bytes())),
        Incoming(WEIGHTS, io.BytesIO(made.weights())),
    ]
    wanted = services.Wanted(tenant="acme", name="sql", model="m")
    with services.received(wanted=wanted, uploaded=sent, actor=ACTOR) as received:
        adapter = services.add_version(upload=received, **WHY)
    return adapter.public_id, adapter.versions.get().digest


async def test_a_file_comes_whole_with_its_length_and_only_to_agents(settings, tmp_path: Path):
    settings.ADAPTER_DIR = tmp_path
    _, digest = await uploaded()
    path = f"/api/v1/agent/adapters/{digest}/{WEIGHTS}"
    answer = await AsyncClient().get(path, headers=TOKEN)
    content = b"".join([piece async for piece in answer])
    assert (answer.status_code, content) == (200, made.weights())
    assert answer["Content-Length"] == str(len(content))
    for headers in ({}, {"authorization": "Bearer nobody"}):
        assert (await AsyncClient().get(path, headers=headers)).status_code == 401
    assert (await AsyncClient().post(path, headers=TOKEN)).status_code == 405


async def test_what_is_not_in_the_table_is_not_given_out(settings, tmp_path: Path):
    settings.ADAPTER_DIR = tmp_path
    adapter, digest = await uploaded()
    (tmp_path / digest / "other").write_bytes(b"x")
    for path in (
        f"{digest}/other",
        f"{digest}/..%2F..%2Fsecret",
        f"{'0' * 64}/{WEIGHTS}",
        f"..%2F{digest}/{WEIGHTS}",
    ):
        answer = await AsyncClient().get(f"/api/v1/agent/adapters/{path}", headers=TOKEN)
        assert answer.status_code == 404, path
    await sync_to_async(services.delete_adapter)(public_id=adapter, **WHY)
    path = f"/api/v1/agent/adapters/{digest}/{WEIGHTS}"
    assert (await AsyncClient().get(path, headers=TOKEN)).status_code == 404
