"""Pages of adapters, in the console and in a tenant's own area."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.catalog.models import Adapter, ModelVersion
from controlplane.fleet.models import AdapterPlacement
from controlplane.fleet.services import reconcile_adapters
from controlplane.tenants.models import Tenant
from controlplane.usage.services import book_usage
from routing_agent import wire
from tests import adapters as made
from tests.controlplane.staff import poll, signed_in
from tests.controlplane.tenants.members import ADMIN, MEMBER, member
from tests.factories import make_agent, make_pool, make_replica, make_tenant

pytestmark = pytest.mark.django_db
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(autouse=True)
def _world(settings, tmp_path: Path):
    settings.ADAPTER_DIR = tmp_path / "adapters"
    make_replica(make_pool("chat"), node=make_agent("n1").node, public_id="rpl-a")
    make_tenant("acme")
    make_tenant("globex")


def tenant(slug: str = "acme") -> Tenant:
    return Tenant.objects.get(slug=slug)


def form(name: str = "sql", config: bytes | None = None, fill: int = 0, **given):
    files = [
        SimpleUploadedFile(CONFIG, config or made.config_bytes()),
        SimpleUploadedFile(WEIGHTS, made.weights(fill=fill)),
    ]
    return {"tenant": "acme", "name": name, "model": "m", "files": files} | given


def uploaded(client=None, **given) -> Adapter:
    answer = (client or signed_in()).post("/adapters/upload/", form(**given))
    adapter = Adapter.objects.get(name=given.get("name", "sql"))
    assert answer["Location"] == f"/adapters/{adapter.public_id}/"
    return adapter


def text(answer, status: int = 200) -> str:
    assert answer.status_code == status, answer.content
    return answer.content.decode()


def test_an_operator_uploads_for_a_tenant_and_sees_how_far_it_is():
    client = signed_in()
    assert "rank 64 at most" in text(client.get("/adapters/upload/"))
    adapter = uploaded(client)
    assert "their agents are about to be told" in text(client.get("/adapters/"))
    reconcile_adapters()
    page = text(client.get(f"/adapters/{adapter.public_id}/"))
    assert "0 of 1 replica" in page
    assert "not told yet" in page
    AdapterPlacement.objects.update(stage="failed", message="engine: <b>rank</b>", attempts=3,
                                    heard_at=timezone.now())  # fmt: skip
    page = text(client.get(f"/adapters/{adapter.public_id}/"))
    assert "0 of 1 replica; rpl-a: engine: &lt;b&gt;rank&lt;/b&gt;" in page
    assert "(3 tries)" in page
    assert AuditEvent.objects.filter(verb="adapter.upload", actor="a-operator").exists()


def test_the_live_part_is_204_until_something_changes():
    client = signed_in()
    adapter = uploaded(client)
    for url in ("/adapters/", f"/adapters/{adapter.public_id}/"):
        seen = poll(client, url)["X-Digest"]
        assert poll(client, url, seen).status_code == 204
    Adapter.objects.update(pinned=True)
    assert poll(client, url, seen).status_code == 200


def test_a_refusal_shows_every_check_with_and_without_a_script():
    client = signed_in()
    bad = {"config": made.config_bytes(r=65)}
    page = text(client.post("/adapters/upload/", form(**bad)), 400)
    assert "The rank 65 exceeds 64" in page
    assert "✕" in page
    assert "Upload an adapter" in page
    part = client.post("/adapters/upload/", form(**bad), headers={"HX-Request": "true"})
    assert "✓" in text(part, 400)
    assert "<html" not in part.content.decode()
    named = client.post("/adapters/upload/", form(name="a/b"), headers={"HX-Request": "true"})
    assert "A name has 1 to 100" in text(named, 400)
    nobody = client.post("/adapters/upload/", form(tenant="x"), headers={"HX-Request": "true"})
    assert "Select a valid choice" in text(nobody, 400)
    assert Adapter.objects.count() == 0


def test_the_script_is_sent_on_to_the_adapter():
    answer = signed_in().post("/adapters/upload/", form(), headers={"HX-Request": "true"})
    adapter = Adapter.objects.get()
    assert (answer.status_code, answer["HX-Redirect"]) == (204, f"/adapters/{adapter.public_id}/")


def test_viewers_look_and_do_not_act():
    adapter = uploaded()
    viewer = signed_in("viewer")
    page = text(viewer.get(f"/adapters/{adapter.public_id}/"))
    assert "Delete…" not in page
    assert "Upload adapter" not in text(viewer.get("/adapters/"))
    for url in ("upload/", f"{adapter.public_id}/edit/", f"{adapter.public_id}/delete/"):
        assert viewer.get(f"/adapters/{url}").status_code == 403


def test_pinning_and_sharing_notice_a_change_meanwhile():
    client = signed_in()
    adapter = uploaded(client)
    path = f"/adapters/{adapter.public_id}/edit/"
    body = {"pinned": "on", "shared_with": "globex", "reason": "asked", "expected_version": "1"}
    assert client.post(path, body)["Location"] == f"/adapters/{adapter.public_id}/"
    adapter.refresh_from_db()
    assert (adapter.pinned, adapter.shared_with.get().slug) == (True, "globex")
    assert "moved meanwhile" in text(client.post(path, body))
    assert "no tenant &#x27;x&#x27;" in text(
        client.post(path, body | {"shared_with": "x", "expected_version": "2"})
    )


def test_deleting_asks_for_the_name_and_a_reason():
    client = signed_in()
    adapter = uploaded(client)
    path = f"/adapters/{adapter.public_id}/delete/"
    assert "Type sql to delete it" in text(client.post(path, {"typed": "sq", "reason": "x"}))
    assert client.post(path, {"typed": "sql"}).status_code == 400
    assert client.post(path, {"typed": "sql", "reason": "old"})["Location"] == "/adapters/"
    assert client.post(path, {"typed": "sql", "reason": "old"}).status_code == 404
    assert "being removed" in text(client.get("/adapters/"))
    assert "requests for it get 404" in text(client.get(f"/adapters/{adapter.public_id}/"))


def test_the_list_is_filtered_and_comes_as_csv():
    client = signed_in()
    uploaded(client)
    uploaded(client, name="chatty", fill=1)
    client.get("/adapters/")  # shows the notices of the uploads
    assert "chatty" not in text(client.get("/adapters/?q=sql"))
    assert "No adapter matches" in text(client.get("/adapters/?q=none"))
    assert text(client.get("/adapters/?csv=1")).splitlines()[1].startswith("acme,")


# --- a tenant's own area


def test_a_member_uploads_in_the_area_and_only_an_admin_shares_and_deletes():
    mine = member(tenant(), MEMBER)
    assert "There are no adapters" in text(mine.get("/t/acme/adapters/"))
    page = text(mine.get("/t/acme/adapters/upload/"))
    assert "data-upload" in page
    answer = mine.post("/t/acme/adapters/upload/", form())
    adapter = Adapter.objects.get()
    home = f"/t/acme/adapters/{adapter.public_id}/"
    assert answer["Location"] == home
    page = text(mine.get(home))
    assert "Delete…" not in page
    assert "&quot;model&quot;: &quot;sql&quot;" in page or '"model": "sql"' in page
    for url in ("edit/", "delete/"):
        assert mine.get(home + url).status_code == 403
    boss = member(tenant(), ADMIN)
    page = text(boss.get(home + "edit/"))
    assert "Pinned" not in page
    body = {"shared_with": "globex", "reason": "partners", "pinned": "on"}
    assert boss.post(home + "edit/", body)["Location"] == home
    adapter.refresh_from_db()
    assert (adapter.pinned, adapter.shared_with.get().slug) == (False, "globex")
    answer = boss.post(home + "delete/", {"typed": "sql", "reason": "old"})
    assert answer["Location"] == "/t/acme/adapters/"


def test_a_tenant_cannot_upload_for_another():
    mine = member(tenant("globex"), ADMIN)
    assert mine.get("/t/acme/adapters/").status_code == 404
    assert mine.post("/t/acme/adapters/upload/", form()).status_code == 404
    answer = mine.post("/t/globex/adapters/upload/", form())
    assert answer.status_code == 400
    assert Adapter.objects.count() == 0
    assert mine.get("/adapters/").status_code == 403


def test_a_guest_sees_what_is_shared_and_nothing_else():
    adapter = uploaded()
    hidden = uploaded(signed_in("admin"), name="other-one", fill=1)
    adapter.shared_with.add(tenant("globex"), make_tenant("third"))
    guest = member(tenant("globex"), ADMIN)
    page = text(guest.get("/t/globex/adapters/"))
    assert "shared by acme" in page
    assert "other-one" not in page
    home = f"/t/globex/adapters/{adapter.public_id}/"
    page = text(guest.get(home))
    assert "acme/sql" in page
    assert "third" not in page
    assert "n1" not in page
    assert "Delete…" not in page
    assert guest.post(home + "delete/", {"typed": "sql", "reason": "x"}).status_code == 403
    assert guest.get(f"/t/globex/adapters/{hidden.public_id}/").status_code == 404


def test_usage_is_told_by_adapter_and_a_tenant_sees_its_own():
    adapter = uploaded()
    adapter.shared_with.add(tenant("globex"))
    name = adapter.versions.get().served_name
    records = [
        wire.UsageRecord(number=n, at=timezone.now().timestamp(), request_id="r", tenant=who,
                         adapter=name, output_tokens=tokens)
        for n, (who, tokens) in enumerate([("acme", 700), ("globex", 50)], start=1)
    ]  # fmt: skip
    book_usage(agent=make_agent("n2"), records=records)
    assert ">750<" in text(signed_in("viewer").get(f"/adapters/{adapter.public_id}/usage/"))
    guest = member(tenant("globex"), MEMBER)
    page = text(guest.get(f"/t/globex/adapters/{adapter.public_id}/usage/"))
    assert ">50<" in page
    assert ">750<" not in page
    adapter.refresh_from_db()
    assert adapter.last_used_at is not None


def test_a_replicas_page_lists_what_it_holds_and_the_search_finds_an_adapter():
    client = signed_in()
    adapter = uploaded(client)
    reconcile_adapters()
    assert "acme/sql" in text(client.get("/replicas/rpl-a/"))
    digest = adapter.versions.get().digest
    for words in ("sql", digest[:12]):
        assert client.get("/search/", {"q": words})["Location"] == f"/adapters/{adapter.public_id}/"


def test_the_list_tells_what_sharing_a_base_model_saves():
    client = signed_in()
    for n in range(3):
        uploaded(client, name=f"a{n}", fill=n)
    reconcile_adapters()
    assert "What sharing saves" not in text(client.get("/adapters/"))
    AdapterPlacement.objects.update(stage="loaded", heard_at=timezone.now())
    assert "no version says its parameters" in text(client.get("/adapters/"))
    ModelVersion.objects.update(parameters=100_000)
    page = text(client.get("/adapters/"))
    assert "if each adapter had one" in page
    assert "no version says" not in page
