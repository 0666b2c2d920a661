"""What a request may send is limited before anything of it is read."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from controlplane import body_limit
from controlplane.body_limit import OTHERS_BYTES, BodyLimit
from controlplane.tenants import services
from tests.controlplane.staff import signed_in
from tests.factories import WHY, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)
UPLOAD = "/api/v1/adapters/"


@pytest.fixture(autouse=True)
async def _no_connection_stays():
    yield
    await sync_to_async(connections.close_all)()


class DiskUsage(NamedTuple):
    """What `shutil.disk_usage` gives."""

    total: int
    used: int
    free: int


class Rig:
    """An application that reads all, in front of it the limit, behind it a sender of chunks."""

    def __init__(self) -> None:
        self.read = 0
        self.left = False
        self.answers: list[dict] = []

    async def app(self, scope, receive, send) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left = True
                return
            self.read += len(message["body"])
            if not message["more_body"]:
                return

    async def call(self, path: str = UPLOAD, *, chunks=(b"x",), declared=None, **headers) -> int:
        given = {"content-length": declared} if declared is not None else {}
        raw = [(k.encode(), str(v).encode()) for k, v in (given | headers).items()]
        scope = {"type": "http", "method": "POST", "path": path, "headers": raw,
                 "query_string": b""}  # fmt: skip
        messages = iter([{"type": "http.request", "body": c, "more_body": True} for c in chunks]
                        + [{"type": "http.request", "body": b"", "more_body": False}])  # fmt: skip

        async def receive():
            return next(messages)

        async def send(message):
            self.answers.append(message)

        await BodyLimit(self.app)(scope, receive, send)
        return self.answers[0]["status"] if self.answers else 0


async def test_a_body_that_says_it_is_too_long_is_not_read():
    rig = Rig()
    assert await rig.call("/api/v1/pools/", declared=OTHERS_BYTES + 1) == 413
    assert rig.read == 0
    assert json.loads(rig.answers[1]["body"])["error"]["code"] == "too_large"


async def test_a_body_that_does_not_say_is_cut_off_at_the_limit():
    rig = Rig()
    await rig.call("/api/v1/pools/", chunks=[bytes(1024 * 1024)] * 30)
    assert rig.left
    assert rig.read <= OTHERS_BYTES


async def test_a_body_in_chunks_is_asked_for_with_its_length():
    """It counted as empty: 400 for lacking fields that were sent."""
    for path in (UPLOAD, "/api/v1/pools/", "/configuration/"):
        rig = Rig()
        assert await rig.call(path, **{"transfer-encoding": "chunked"}) == 411
        assert rig.read == 0
        assert "Content-Length" in json.loads(rig.answers[1]["body"])["error"]["message"]


async def test_an_upload_of_nobody_is_not_read():
    for headers in ({}, {"authorization": "Bearer sbt-wrong"}, {"authorization": "Bearer stt-x"},
                    {"cookie": "sessionid=nothing"}, {"authorization": "Basic x"}):  # fmt: skip
        rig = Rig()
        assert await rig.call(declared=10, **headers) == 401
        assert rig.read == 0


async def test_an_upload_of_somebody_known_is_read():
    @sync_to_async
    def known() -> list[dict]:
        _, staff = services.issue_staff_token(name="ci", role="operator", **WHY)
        tenant = make_tenant("acme").slug
        _, own = services.issue_tenant_token(tenant=tenant, name="ci", role="tenant_member", **WHY)
        cookie = signed_in().cookies["sessionid"].value
        return [{"authorization": f"Bearer {staff}"}, {"authorization": f"bearer {own}"},
                {"cookie": f"sessionid={cookie}"}]  # fmt: skip

    for headers in await known():
        for path in (UPLOAD, "/api/v1/adapters", "/adapters/upload/", "/t/acme/adapters/upload/"):
            rig = Rig()
            assert await rig.call(path, declared=OTHERS_BYTES + 1, **headers) == 0
            assert rig.read == 1


async def test_an_upload_has_a_limit_too(settings):
    settings.ADAPTER_LIMIT_BYTES = 1000
    assert await Rig().call(declared=10_000_000) == 413


async def test_an_upload_for_which_the_temporary_folder_has_no_room_is_refused_in_words(
    monkeypatch,
):
    @sync_to_async
    def known() -> dict:
        return {"cookie": f"sessionid={signed_in().cookies['sessionid'].value}"}

    headers = await known()
    monkeypatch.setattr(body_limit.shutil, "disk_usage", lambda folder: DiskUsage(10, 9, 3 * 2**20))
    small, large = Rig(), Rig()
    assert await small.call(declared=1000, **headers) == 0
    assert await large.call(declared=2**20, **headers) == 507
    error = json.loads(large.answers[1]["body"])["error"]
    assert error["code"] == "storage_failed"
    assert "3 MiB are free in its temporary folder, 4 MiB are needed" in error["message"]
