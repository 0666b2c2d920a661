"""A full disk is told as such wherever it is met first: Django's own files, ours, the database."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client

from controlplane.asgi import application
from controlplane.audit import services as audit
from controlplane.catalog.models import Adapter
from controlplane.failures import is_full
from tests import adapters as made
from tests.controlplane.calling import caller
from tests.controlplane.staff import user
from tests.factories import make_pool, make_tenant

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full(monkeypatch, settings, tmp_path: Path) -> Path:
    """Let every temporary file be made, and take no byte."""
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)

    def takes_nothing(file):
        def write(_bytes):
            raise full_disk()

        file.write = write
        return file

    def named(**given):
        return takes_nothing(make_named(**given))

    make_nameless = tempfile.TemporaryFile
    make_named = tempfile.NamedTemporaryFile
    monkeypatch.setattr("django.core.files.temp.NamedTemporaryFile", named)
    # What a body is put aside in has no name, so nothing of it can be left.
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: takes_nothing(make_nameless()))
    return tmp_path


def client(role: str = "admin") -> Client:
    found = Client(raise_request_exception=False)
    found.force_login(user(role))
    return found


def sent() -> dict:
    make_pool("chat")
    make_tenant("acme")
    weights = SimpleUploadedFile("adapter_model.safetensors", made.weights())
    config = SimpleUploadedFile("adapter_config.json", made.config_bytes())
    return {"tenant": "acme", "name": "sql", "model": "m", "files": [config, weights]}


def test_an_upload_that_django_cannot_store_is_507_in_words_and_leaves_nothing(full):
    given, console = sent(), client()
    page = console.post("/adapters/upload/", given)
    assert page.status_code == 507
    assert "disk is full" in page.content.decode()
    for file in given["files"]:
        file.seek(0)
    part = console.post("/adapters/upload/", given, headers={"HX-Request": "true"})
    assert (part.status_code, part.json()["error"]["code"]) == (507, "storage_failed")
    for file in given["files"]:
        file.seek(0)
    api = caller().post("/api/v1/adapters/", given, format="multipart")
    assert (api.status_code, api.json()["error"]["code"]) == (507, "storage_failed")
    assert "Nothing was kept" in api.json()["error"]["message"]
    assert list(full.iterdir()) == []
    assert not Adapter.objects.exists()
    file = SimpleUploadedFile("all.yaml", b"x: 1")
    applied = console.post("/configuration/", {"upload": file, "step": "review"})
    assert applied.status_code == 507


# Django leaves what it could not fill to the garbage collector; it has no name and is gone with it.
@pytest.mark.filterwarnings("ignore:.*Unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_body_that_the_server_cannot_put_aside_is_507_too(full):
    answers: list[dict] = []
    parts = iter([{"type": "http.request", "body": bytes(2**20), "more_body": True}] * 4)

    async def send(message):
        answers.append(message)

    async def receive():
        return next(parts)

    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/pools/", "headers": headers,
             "query_string": b"", "scheme": "http", "server": ("localhost", 80)}  # fmt: skip
    await application(scope, receive, send)
    assert answers[0]["status"] == 507
    assert json.loads(answers[1]["body"])["error"]["code"] == "storage_failed"
    assert list(full.iterdir()) == []


def test_a_full_database_is_507_and_other_failures_stay_what_they_are(monkeypatch):
    def fails(error):
        def record(**_):
            raise error

        monkeypatch.setattr(audit, "record", record)
        return caller_client.post("/api/v1/tenants/", {"slug": "a", "name": "A"}, format="json")

    caller_client = caller()
    assert fails(OperationalError("database or disk is full")).status_code == 507
    assert fails(OperationalError("database is locked")).status_code == 503
    state = type("DiskFull", (Exception,), {"sqlstate": "53100"})()
    error = OperationalError("could not extend file")
    error.__cause__ = state
    assert is_full(error)
    assert not is_full(OSError(errno.EACCES, "no"))
    broken = client("viewer")
    monkeypatch.setattr("controlplane.overview.views.search", lambda text: 1 / 0)
    assert broken.get("/search/?q=x").status_code == 500


def test_an_export_is_written_whole_or_not_at_all(monkeypatch, tmp_path: Path):
    path = tmp_path / "all.yaml"
    path.write_text("before")

    def no_room(self, text):
        raise full_disk()

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", no_room)
        with pytest.raises(CommandError, match="was not written: No space left"):
            call_command("export", str(path))
    assert [p.name for p in tmp_path.iterdir()] == ["all.yaml"]
    assert path.read_text() == "before"
    call_command("export", str(path))
    assert path.read_text() != "before"
    assert path.stat().st_mode & 0o777 == 0o600
