"""`manage.py bootstrap`: everything a first start needs, and nothing twice."""

from __future__ import annotations

import json
import os
import shutil
import stat
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.finders import get_finder
from django.core.management import CommandError, call_command

from controlplane.audit.models import AuditEvent
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Agent, Node, Pool, Replica
from controlplane.reliability.models import Slo
from controlplane.routing import selectors, services
from controlplane.tenants.keys import digest
from controlplane.tenants.models import ApiKey, Tenant
from routing_agent import wire
from tests.factories import WHY

pytestmark = pytest.mark.django_db

DEMO = (
    "--demo",
    "--json",
    "--agent=agent-1:8101:8201",
    "--agent=agent-2:8102:8202",
    "--engine=8301:qwen2.5-7b-instruct",
    "--engine=8302:qwen2.5-7b-instruct",
    "--engine=8303:bge-m3",
    "--engine=8304:org/unknown-1b",
)


@pytest.fixture(autouse=True)
def _own_folder(settings, tmp_path):
    settings.VAR_DIR = tmp_path / "var"
    settings.SIGNING_KEY_FILE = settings.VAR_DIR / "secrets" / "signing-key.pem"


def run(*words: str) -> dict:
    out = StringIO()
    call_command("bootstrap", *words, stdout=out)
    return json.loads(out.getvalue())


def test_an_empty_fleet_has_a_table_so_that_its_agents_are_ready():
    assert run("--json", "--empty")["epoch"] == 0  # nobody is there to obey one
    for _ in range(2):
        assert run("--json", "--empty", "--agent=agent-1:8101:8201")["epoch"] == 1


def test_a_first_start_makes_admin_key_and_tokens_readable_by_their_owner_only(settings):
    summary = run("--json", "--agent=agent-1:8101:8201")
    password = Path(summary["admin"]["password_file"])
    user = get_user_model().objects.get(username="admin")
    assert user.check_password(password.read_text().strip())
    assert user.staff_profile.role == "admin"
    token = Path(summary["agents"][0]["token_file"])
    for path in (password, token, settings.SIGNING_KEY_FILE):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not Pool.objects.exists()
    request = wire.RegisterRequest(
        token=token.read_text().strip(),
        name="agent-1",
        traffic_url="http://127.0.0.1:8101",
        admin_url="http://127.0.0.1:8201",
    )
    assert services.register_agent(request=request).lineage == summary["lineage"]


def test_the_demo_fleet_is_complete_and_published():
    summary = run(*DEMO)
    assert summary["epoch"] == 1
    assert (summary["model"], summary["embedding_model"]) == ("qwen2.5-7b-instruct", "bge-m3")
    assert set(Pool.objects.values_list("slug", flat=True)) == {
        "chat",
        "embeddings",
        "growing",
        "orgunknown-1b",
    }
    assert Replica.objects.filter(pool__slug="chat", state="loading").count() == 2
    assert Node.objects.filter(replicas__isnull=False).distinct().count() == 2
    assert ApiKey.objects.filter(sha256=digest(summary["api_key"])).exists()
    keys = json.loads(Path(summary["key_file"]).read_text())
    assert keys["chat_model"] == "qwen2.5-7b-instruct"
    assert [entry["name"] for entry in keys["tenants"]] == summary["tenants"]
    assert "acme" in summary["tenants"]
    assert Slo.objects.get(pool__slug="chat").ttft_p99_s > 1  # its traffic reads documents
    assert selectors.newest_table(selectors.publication()).left_out == []


def test_a_second_run_changes_nothing():
    first = run(*DEMO)
    rows = AuditEvent.objects.count()
    assert run(*DEMO) == first
    assert AuditEvent.objects.count() == rows


def test_what_an_operator_did_meanwhile_stays():
    run(*DEMO)
    replica = Replica.objects.filter(pool__slug="chat").first()
    fleet.delete_replica(replica_id=replica.public_id, **WHY)
    other = Replica.objects.filter(pool__slug="chat").get()
    Replica.objects.filter(pk=other.pk).update(state="stopped")
    fleet.update_pool(slug="chat", settings={"max_retries": 0}, **WHY)
    run(*DEMO)
    assert Pool.objects.get(slug="chat").settings == {"max_retries": 0}
    other.refresh_from_db()
    assert other.state == "stopped"


def test_on_other_ports_the_demo_moves_there_and_an_operators_replica_stays():
    run(*DEMO)
    fleet.register_replica(pool="chat", url="http://127.0.0.1:8000", **WHY)
    Replica.objects.update(state="ready")
    run(*[word.replace("=83", "=93") for word in DEMO])
    urls = sorted(url.removeprefix("http://127.0.0.1:") for url in _urls())
    assert urls == ["8000", "9301", "9302", "9303", "9304"]


def _urls() -> list[str]:
    return list(Replica.objects.values_list("url", flat=True))


def test_a_lost_key_file_gets_new_keys_and_ends_the_old_ones():
    first = run(*DEMO)
    Path(first["key_file"]).write_text("not json")
    second = run(*DEMO)
    assert second["api_key"] != first["api_key"]
    assert ApiKey.objects.filter(revoked_at=None).count() == Tenant.objects.count()


def test_a_registered_agent_needs_no_token_and_follows_other_ports(settings):
    summary = run("--json", "--agent=agent-1:8101:8201")
    request = wire.RegisterRequest(
        token=Path(summary["agents"][0]["token_file"]).read_text().strip(),
        name="agent-1",
        traffic_url="http://127.0.0.1:8101",
        admin_url="http://127.0.0.1:8201",
    )
    services.register_agent(request=request)
    home = settings.VAR_DIR / "agents" / "agent-1"
    (home / "identity.json").write_text("{}")
    again = run("--json", "--agent=agent-1:9101:9201")["agents"][0]
    assert again == {"name": "agent-1", "registered": True, "token_file": None}
    assert Agent.objects.get().admin_url == "http://127.0.0.1:9201"
    (home / "identity.json").unlink()  # its state was lost: it must register again
    assert run("--json", "--agent=agent-1:9101:9201")["agents"][0]["token_file"]


def test_a_wrong_word_is_told_with_an_example():
    for word in ("--agent=agent-1:x", "--engine=m:1"):
        with pytest.raises(CommandError, match="for example"):
            run(word)


def test_the_summary_also_comes_for_people():
    out = StringIO()
    call_command("bootstrap", stdout=out)
    assert "lineage: " in out.getvalue()


def test_preparing_bootstraps_and_collects_static_files_only_when_they_changed(settings, tmp_path):
    settings.STATIC_ROOT = tmp_path / "static"
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "one.css").write_text("a{}")
    settings.STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
    settings.STATICFILES_DIRS = [sources]
    get_finder.cache_clear()
    collected = settings.STATIC_ROOT / "one.css"

    def prepared() -> str:
        out = StringIO()
        call_command("prepare", "--json", stdout=out)
        assert json.loads(out.getvalue())["admin"]["user"] == "admin"
        return collected.read_text()

    try:
        assert prepared() == "a{}"
        collected.write_text("as it was left")
        assert prepared() == "as it was left"
        (sources / "one.css").write_text("b{ }")
        os.utime(sources / "one.css", (2e9, 2e9))  # Django copies what is newer, by whole seconds
        assert prepared() == "b{ }"
        shutil.rmtree(settings.STATIC_ROOT)
        assert prepared() == "b{ }"
    finally:
        get_finder.cache_clear()
