"""Export and apply by API, command and console."""

from __future__ import annotations

import io
import stat

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command

from controlplane.audit.models import AuditEvent
from controlplane.declarative import services
from controlplane.tenants.models import Tenant
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.staff import signed_in

pytestmark = pytest.mark.django_db


def changed(text: str) -> str:
    return text.replace("concurrency: 5", "concurrency: 7")


def test_the_api_gives_the_file_and_applies_one(everything):
    client = caller()
    answer = client.get("/api/v1/export/")
    assert answer.status_code == 200
    assert answer["content-type"].startswith("application/yaml")
    text = answer.content.decode()
    body = {"yaml": changed(text), "reason": "more room"}
    dry = ok(client.post("/api/v1/apply/?dry_run=true", body, format="json"))
    assert dry["steps"][0]["changes"] == [{"field": "concurrency", "before": 5, "after": 7}]
    assert dry["change"]["dry_run"]
    assert Tenant.objects.get().concurrency == 5
    done = ok(client.post("/api/v1/apply/", body | {"expected": dry["before"]}, format="json"))
    assert done["change"]["fleet_revision"]
    assert Tenant.objects.get().concurrency == 7
    assert AuditEvent.objects.get(verb="configuration.apply").reason == "more room"
    again = ok(client.post("/api/v1/apply/", {"yaml": changed(text)}, format="json"))
    assert again["steps"] == []
    stale = body | {"yaml": text, "expected": dry["before"]}
    problem(client.post("/api/v1/apply/", stale, format="json"), 409, "stale_version")


def test_the_api_tells_the_path_of_what_is_wrong():
    body = {"yaml": "signalbox: 1\npools:\n- {slug: a, model: m, version: v, overload_policy: 5}\n"}
    error = problem(caller().post("/api/v1/apply/", body, format="json"), 400, "invalid")
    assert error["field"] == "pools[0].overload_policy"


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_only_admins_export_and_apply(role):
    client = caller(role)
    problem(client.get("/api/v1/export/"), 403, "forbidden")
    problem(client.post("/api/v1/apply/", {"yaml": ""}, format="json"), 403, "forbidden")
    console = signed_in(role)
    assert console.get("/configuration/").status_code == 403
    assert console.get("/configuration/signalbox.yaml").status_code == 403
    assert "/configuration/" not in console.get("/pools/").content.decode()


def command(*words: str) -> str:
    said = io.StringIO()
    call_command(*words, stdout=said, stderr=said)
    return said.getvalue()


def test_the_commands_write_and_apply_a_file(everything, tmp_path):
    path = tmp_path / "signalbox.yaml"
    command("export", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert text == command("export") == services.export_text()
    assert command("export", "--digest").strip() in command("export", str(path))
    path.write_text(changed(text))
    said = command("apply", str(path), "--dry-run")
    assert "~ tenant acme\n    concurrency: 5 → 7" in said
    assert "1 to update" in said
    assert Tenant.objects.get().concurrency == 5
    assert "1 updated" in command("apply", str(path), "--reason", "more room")
    assert "Nothing to change" in command("apply", str(path))
    path.write_text(text.replace("webhooks:", "webhook:"))
    with pytest.raises(CommandError, match="Nothing was changed"):
        command("apply", str(path))
    with pytest.raises(CommandError, match="cannot be read"):
        command("apply", str(tmp_path / "none"))
    path.write_text("signalbox: 1\nwebhooks: []\nslos: []\n")
    said = command("apply", str(path), "--dry-run", "--remove")
    assert "- webhook ops" in said
    assert "webhooks: not in the file, kept: ops" in command("apply", str(path))


def test_the_console_shows_the_difference_before_anything_changes(everything):
    client = signed_in("admin")
    assert "Download YAML" in client.get("/configuration/").content.decode()
    text = client.get("/configuration/signalbox.yaml").content.decode()
    upload = SimpleUploadedFile("f.yaml", changed(text).encode())
    shown = client.post("/configuration/", {"upload": upload}).content.decode()
    assert "1 to change" in shown
    assert "tenant <strong>acme</strong>" in shown
    assert Tenant.objects.get().concurrency == 5
    expected = shown.split('name="expected" value="')[1].split('"')[0]
    given = {"yaml": changed(text), "step": "apply", "expected": expected}
    refused = client.post("/configuration/", given)
    assert refused.status_code == 400
    assert "Say why" in refused.content.decode()
    answer = client.post("/configuration/", given | {"reason": "more room"})
    assert answer.status_code == 302
    assert Tenant.objects.get().concurrency == 7
    assert "more room" in client.get("/configuration/").content.decode()
    late = client.post("/configuration/", given | {"reason": "again", "yaml": text})
    assert late.status_code == 409
    assert "moved meanwhile" in late.content.decode()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"yaml": ""}, "Choose a file"),
        ({"yaml": "signalbox: 9"}, "signalbox"),
        ({"upload": SimpleUploadedFile("f", b"\xff\xfe\x00")}, "no text in UTF-8"),
    ],
)
def test_the_console_says_what_is_wrong_with_a_file(given, word):
    shown = signed_in("admin").post("/configuration/", given)
    assert word in shown.content.decode()


def test_a_file_that_changes_nothing_offers_nothing(everything):
    client = signed_in("admin")
    given = {"yaml": services.export_text().replace("\n", "\r\n"), "remove": "on"}
    shown = client.post("/configuration/", given).content.decode()
    assert "already what this file says" in shown
    assert 'value="apply"' not in shown
    back = client.post("/configuration/", given | {"step": "edit"}).content.decode()
    assert "Show the difference" in back


def test_names_in_a_file_are_text(everything):
    spoiled = services.export_text().replace("name: Acme", "name: <img src=x onerror=alert(1)>")
    shown = signed_in("admin").post("/configuration/", {"yaml": spoiled}).content.decode()
    assert "&lt;img src=x" in shown
    assert "<img src=x" not in shown
