"""A pool's shadow: set, told to agents, refused, removed."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEvent
from controlplane.catalog.models import ModelVersion
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.domain.tables import compile_table
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Pool, Shadow
from controlplane.routing.selectors import fleet_snapshot
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.staff import signed_in
from tests.factories import WHY, make_node, make_pool, make_replica

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def pools():
    first = make_pool("chat-a")
    version = ModelVersion.objects.create(model=first.model_version.model, name="v2")
    Pool.objects.create(slug="chat-b", model_version=version, overload_policy="queue")


def table():
    return compile_table(fleet_snapshot(), lineage="l", epoch=1, created_at=0.0)


def test_a_shadow_reaches_the_table_and_leaves_a_trail():
    row = fleet.set_shadow(pool="chat-a", shadow_pool="chat-b", ratio=0.25, **WHY)
    shadow = table().table.pools[0].shadow
    assert shadow is not None
    assert (shadow.pool, shadow.ratio, shadow.at_once, shadow.keep) == (
        "chat-b",
        0.25,
        4,
        "figures",
    )
    changes = {"keep": "answers"}
    fleet.set_shadow(
        pool="chat-a", shadow_pool="chat-b", expected_version=row.version, **changes, **WHY
    )
    with pytest.raises(Conflict, match="moved meanwhile"):
        fleet.set_shadow(pool="chat-a", shadow_pool="chat-b", expected_version=1, **WHY)
    fleet.remove_shadow(pool="chat-a", **WHY)
    assert table().table.pools[0].shadow is None
    verbs = list(AuditEvent.objects.order_by("id").values_list("verb", flat=True))
    assert verbs == ["pool.set_shadow", "pool.set_shadow", "pool.remove_shadow"]
    with pytest.raises(NotFound):
        fleet.remove_shadow(pool="chat-a", **WHY)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"shadow_pool": "chat-a"}, "shadow_pool"),
        ({"shadow_pool": "nowhere"}, "shadow_pool"),
        ({"shadow_pool": "other"}, "shadow_pool"),
        ({"ratio": 1.5}, "ratio"),
        ({"at_once": 0}, "at_once"),
        ({"keep": "all"}, "keep"),
    ],
)
def test_what_makes_no_sense_is_named(given, field):
    make_pool("other", model="n")
    with pytest.raises(Invalid) as caught:
        fleet.set_shadow(**({"pool": "chat-a", "shadow_pool": "chat-b"} | given), **WHY)
    assert caught.value.field == field


def test_a_shadow_on_the_same_card_is_refused():
    node = make_node("n1")
    for slug in ("chat-a", "chat-b"):
        make_replica(Pool.objects.get(slug=slug), node=node, gpu_indices=[3])
    with pytest.raises(Invalid, match="GPU 3 of n1"):
        fleet.set_shadow(pool="chat-a", shadow_pool="chat-b", **WHY)


def test_a_pool_that_is_a_shadow_stays():
    fleet.set_shadow(pool="chat-a", shadow_pool="chat-b", **WHY)
    with pytest.raises(Conflict, match="shadow of chat-a"):
        fleet.delete_pool(slug="chat-b", **WHY)


def test_a_bad_row_is_left_out_and_the_pool_stays():
    fleet.set_shadow(pool="chat-a", shadow_pool="chat-b", **WHY)
    Shadow.objects.update(ratio=7.0)
    compiled = table()
    assert [left.object for left in compiled.left_out] == ["shadow of pool chat-a"]
    assert len(compiled.table.pools) == 2


def test_a_shadow_whose_pool_is_left_out_is_left_out_too():
    fleet.set_shadow(pool="chat-a", shadow_pool="chat-b", **WHY)
    Pool.objects.filter(slug="chat-b").update(overload_policy="nonsense")
    assert "shadow of pool chat-a" in [left.object for left in table().left_out]


def test_the_api_sets_shows_and_removes_it():
    client = caller("operator")
    body = {"shadow_pool": "chat-b", "ratio": 1.0, "keep": "answers", "reason": "compare v2"}
    made = ok(client.put("/api/v1/shadows/chat-a/", body, format="json"))
    assert (made["shadow_pool"], made["ratio"], made["change"]["fleet_revision"]) == (
        "chat-b", 1.0, made["change"]["fleet_revision"],
    )  # fmt: skip
    assert ok(client.get("/api/v1/shadows/chat-a/"))["keep"] == "answers"
    assert len(ok(client.get("/api/v1/shadows/"))["results"]) == 1
    body = {"shadow_pool": "chat-b", "ratio": 2.0}
    problem(client.put("/api/v1/shadows/chat-a/", body, format="json"), 400, "invalid")
    assert client.delete("/api/v1/shadows/chat-a/?reason=done").status_code == 204
    assert not Shadow.objects.exists()


def test_the_page_of_the_pool_says_it_and_the_form_changes_it():
    client = signed_in("operator")
    form = {
        "shadow_pool": "chat-b",
        "ratio_percent": "20",
        "at_once": "2",
        "keep": "figures",
        "reason": "compare",
    }
    assert "Set shadow" in client.get("/pools/chat-a/shadow/").content.decode()
    assert client.post("/pools/chat-a/shadow/", form | {"ratio_percent": "x"}).status_code == 400
    assert client.post("/pools/chat-a/shadow/", form).status_code == 302
    shown = client.get("/pools/chat-a/").content.decode()
    assert "20 %" in shown
    assert "copied to" in shown
    told = client.get("/pools/chat-b/").content.decode()
    assert "Copies of" in told
    assert "20 % of them" in told
    assert "Change shadow" in client.get("/pools/chat-a/shadow/").content.decode()
    stale = client.post("/pools/chat-a/shadow/", form | {"expected_version": "9"})
    assert stale.status_code == 409
    answer = client.post("/pools/chat-a/shadow/", {"step": "remove", "reason": "done"})
    assert answer.status_code == 302
    assert not Shadow.objects.exists()
