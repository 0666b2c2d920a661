"""Export and apply: the same bytes, all or nothing, through the services, and back again."""

from __future__ import annotations

import io

import pytest
import yaml
from django.contrib.auth.models import User
from django.db import OperationalError

from controlplane.audit.models import AuditEvent
from controlplane.catalog import services as catalog
from controlplane.catalog import uploads
from controlplane.catalog.models import Adapter, Model
from controlplane.catalog.uploads import Incoming
from controlplane.declarative import document, services
from controlplane.declarative.sections import SECTIONS
from controlplane.domain.adapters import CONFIG_FILE, WEIGHTS_FILE
from controlplane.domain.errors import Conflict, Invalid, ProblemError
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Node, Pool, Replica, Shadow, TrafficSplit
from controlplane.reliability.models import MaintenanceWindow, Silence, Slo, Webhook
from controlplane.scaling.models import ScalingPolicy
from controlplane.tenants import services as tenants
from controlplane.tenants.models import ApiKey, Membership, Tenant
from tests import adapters as packages
from tests.controlplane.declarative.conftest import sha256, table_digest
from tests.factories import WHY, make_pool, make_tenant

pytestmark = pytest.mark.django_db
OTHER = {"big": "small", "small": "big"}


def apply(text: str, **given):
    return services.apply(text, who=WHY, **given)


def wipe() -> None:
    for rows in (Replica, Shadow, ScalingPolicy, Slo, MaintenanceWindow, Silence, Webhook, ApiKey,
                 Tenant, TrafficSplit):  # fmt: skip
        rows.objects.all().delete()
    Pool.objects.update(fallback_pool=None, overload_policy="reject")
    Pool.objects.all().delete()
    Node.objects.all().delete()
    for model in Model.objects.all():
        model.versions.all().delete()
        model.delete()
    User.objects.filter(staff_profile=None, is_superuser=False).delete()


def edited(text: str, change) -> str:
    body = yaml.safe_load(text)
    change(body)
    return yaml.dump(body, Dumper=document._Dumper, sort_keys=False)


def test_an_empty_configuration_is_a_file_that_changes_nothing():
    text = services.export_text()
    assert yaml.safe_load(text) == {"signalbox": 1, **{s.name: [] for s in SECTIONS}}
    assert apply(text).is_empty
    assert apply("signalbox: 1\n").is_empty


def test_the_same_configuration_gives_the_same_bytes(everything):
    text = services.export_text()
    assert text == services.export_text()
    Pool.objects.filter(slug="big").update(version=77, updated_at="2030-01-01T00:00:00Z")
    assert services.export_text() == text
    for word in ("very-secret", "created_at", "updated_at", Webhook.objects.get().secret):
        assert word not in text
    assert sha256(everything) in text
    assert everything not in text


def test_every_section_is_used_in_this_test(everything):
    assert {n for n, found in services.exported().items() if not found} == {"adapters"}


def test_applying_what_is_exported_changes_nothing(everything):
    text = services.export_text()
    events = AuditEvent.objects.count()
    plan = apply(text, remove=True)
    assert plan.is_empty
    assert plan.unchanged > 10
    assert AuditEvent.objects.count() == events


def test_after_a_wipe_a_file_brings_all_of_it_back_and_the_same_table(everything):
    text, before = services.export_text(), table_digest()
    wipe()
    assert table_digest() != before
    plan = apply(text)
    assert plan.counts["create"] == plan.unchanged + len(plan.steps)
    brought = services.export_text()
    assert brought.replace("  enabled: false\n", "") == text  # the webhook, made switched off
    assert table_digest() == before
    assert ApiKey.objects.get().sha256 == sha256(everything)
    notes = {s.key: s.note for s in plan.steps if s.note}
    assert notes.keys() == {"node-1", "ops", "acme/anna@acme.example"}
    assert "make a new invitation" in notes["acme/anna@acme.example"]
    assert apply(brought).is_empty


def test_a_dry_run_says_what_would_be_and_changes_nothing(everything):
    text = edited(services.export_text(), lambda b: b["pools"][0].update(owner="someone"))
    before, events = services.export_text(), AuditEvent.objects.count()
    plan = apply(text, dry_run=True)
    (step,) = plan.steps
    assert (step.section, step.key, step.act) == ("pools", "big", "update")
    assert step.changes == {"owner": ("", "someone")}
    assert services.export_text() == before
    assert AuditEvent.objects.count() == events


def test_a_change_goes_through_the_service_and_is_audited_beside_the_file(everything):
    text = edited(services.export_text(), lambda b: b["tenants"][0].update(concurrency=7))
    apply(text)
    assert Tenant.objects.get().concurrency == 7
    verbs = list(AuditEvent.objects.order_by("-id").values_list("verb", flat=True)[:2])
    assert verbs == ["configuration.apply", "tenant.update"]


def test_a_member_is_given_another_role_taken_out_and_taken_in_again_with_their_account(everything):
    anna = User.objects.get(username="anna@acme.example")
    anna.set_password("only-for-tests-1")
    anna.save()
    text = services.export_text()
    apply(edited(text, lambda b: b["memberships"][0].update(role="tenant_member")))
    assert Membership.objects.get().role == "tenant_member"
    apply(edited(text, lambda b: b.update(memberships=[])), remove=True)
    assert not Membership.objects.exists()
    plan = apply(text)
    assert [s.note for s in plan.steps] == [""]  # they have a password
    assert Membership.objects.get().user == anna
    with pytest.raises(Invalid, match="role is one of"):
        apply(edited(text, lambda b: b["memberships"][0].update(role="king")))


def test_what_a_file_leaves_out_of_an_object_goes_back_to_its_default(everything):
    text = edited(services.export_text(), lambda b: b["slos"][0].pop("ttft_p99_s"))
    apply(text)
    assert Slo.objects.get().ttft_p99_s == 0.3


def test_an_error_anywhere_changes_nothing_and_names_its_path(everything):
    def spoil(body):
        body["tenants"][0]["concurrency"] = 7
        body["pools"][1]["fallback_pool"] = "big"
        body["pools"][1]["overload_policy"] = "fallback"

    before = services.export_text()
    with pytest.raises(Invalid) as told:
        apply(edited(before, spoil))
    assert told.value.field == "pools[1].fallback_pool"
    assert "in a circle" in told.value.message
    assert services.export_text() == before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda b: b["pools"][0].update(colour="red"), "pools[0]"),
        (lambda b: b["pools"][0].update(wanted_replicas="three"), "pools[0].wanted_replicas"),
        (lambda b: b["pools"][0].pop("model"), "pools[0]"),
        (lambda b: b["pools"][0].update(settings={"no_such": 1}), "pools[0].settings.no_such"),
        (lambda b: b["pools"].append(b["pools"][0]), "pools[2]"),
        (lambda b: b.update(bananas=[]), "file"),
        (lambda b: b.update(signalbox=2), "signalbox"),
        (lambda b: b.pop("signalbox"), "file"),
        (lambda b: b["scaling"][0]["policy"].update(speed=1), "scaling[0].policy.speed"),
        (lambda b: b["api_keys"][0].update(sha256="x" * 64), "api_keys[0].sha256"),
        (lambda b: b["slos"][0].update(availability_ratio=1), "slos[0].availability_ratio"),
        (lambda b: b["replicas"][0].update(url="ftp://x"), "replicas[0].url"),
    ],
)
def test_the_path_of_the_first_bad_field_is_told(everything, change, field):
    before = services.export_text()
    with pytest.raises((Invalid, Conflict)) as told:
        apply(edited(before, change))
    assert told.value.field == field, told.value.message
    assert services.export_text() == before


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda b: b["versions"][1].update(layers=5), "immutable"),
        (lambda b: b["versions"][0].pop("retired"), "immutable"),
        (lambda b: b["pools"][0].update(version="v1"), "keeps its version"),
        (
            lambda b: b["replicas"][0].update(pool=OTHER[b["replicas"][0]["pool"]]),
            "cannot change it",
        ),
        (lambda b: b["replicas"][0].update(has_credential=True), "set it by API"),
        (lambda b: b["webhooks"][0].update(host="https://other.example"), "only the host"),
        (lambda b: b["silences"][0].update(reason="another"), "cannot change"),
        (lambda b: b["maintenance"][0].update(reason="another"), "cannot change"),
        (lambda b: b["api_keys"][0].update(name="another"), "cannot change"),
    ],
)
def test_what_cannot_change_is_refused_with_its_remedy(everything, change, word):
    with pytest.raises((Invalid, Conflict), match=word):
        apply(edited(services.export_text(), change), dry_run=True)


def test_what_a_section_does_not_list_is_kept_unless_removal_is_asked_for(everything):
    def cut(body):
        body["slos"] = body["silences"] = body["maintenance"] = body["webhooks"] = []
        body["scaling"] = body["api_keys"] = []

    text = edited(services.export_text(), cut)
    kept = apply(text)
    assert kept.is_empty
    assert kept.unlisted["webhooks"] == ["ops"]
    plan = apply(text, remove=True)
    assert plan.counts == {"create": 0, "update": 0, "remove": 6}
    assert not Slo.objects.exists()
    assert ApiKey.objects.get().revoked_at is not None


def test_removal_obeys_the_rules_that_people_obey(everything):
    Replica.objects.update(state="ready")
    text = edited(services.export_text(), lambda b: b.update(replicas=[]))
    with pytest.raises(Conflict) as told:
        apply(text, remove=True)
    assert "drain it" in told.value.message
    assert Replica.objects.count() == 2


def test_a_drained_replica_that_a_file_still_has_is_taken_back(everything):
    text = services.export_text()
    was = Replica.objects.filter(executor="static").order_by("public_id").first()
    Replica.objects.filter(pk=was.pk).update(state="stopped", credential="secret")
    moved = edited(text, lambda b: b["replicas"][0].update(weight=3.0))
    plan = apply(moved, dry_run=True)
    assert [(s.key, s.act) for s in plan.steps] == [(was.public_id, "create")]
    assert "taken back" in plan.steps[0].note
    apply(moved)
    now = Replica.objects.get(pk=was.pk)
    assert (now.state, now.weight) == ("loading", 3.0)
    assert apply(moved).is_empty
    Replica.objects.filter(pk=was.pk).update(executor="agent", state="stopped")
    with pytest.raises(Conflict, match=f"a replica {was.public_id} already"):
        apply(moved, dry_run=True)


def test_everything_can_be_removed_in_the_right_order(everything):
    Replica.objects.update(state="stopped")
    empty = "signalbox: 1\n" + "".join(f"{s.name}: []\n" for s in SECTIONS)
    Replica.objects.update(state="loading")
    apply(empty, remove=True)
    exported = services.exported()
    assert {n for n, found in exported.items() if found} == set()


def test_a_revoked_key_does_not_come_back(everything):
    text = services.export_text()
    tenants.revoke_key(public_id=ApiKey.objects.get().public_id, **WHY)
    with pytest.raises(Conflict, match="does not come back"):
        apply(text)


def test_pools_that_refer_to_new_ones_are_made_whatever_their_order():
    make_pool("chat")
    text = """
signalbox: 1
pools:
- {slug: chat, model: m, version: v1, overload_policy: fallback, fallback_pool: a}
- {slug: a, model: m, version: v1, overload_policy: fallback, fallback_pool: b}
- {slug: b, model: m, version: v1, overload_policy: queue}
"""
    apply(text)
    assert Pool.objects.get(slug="chat").fallback_pool.slug == "a"
    assert Pool.objects.get(slug="a").fallback_pool.slug == "b"
    assert apply(text).is_empty


def test_a_configuration_that_moved_meanwhile_is_not_overwritten(everything):
    text = edited(services.export_text(), lambda b: b["tenants"][0].update(priority=1))
    seen = apply(text, dry_run=True).before
    fleet.update_pool(slug="big", owner="somebody", **WHY)
    with pytest.raises(Conflict) as told:
        apply(text, expected=seen)
    assert told.value.code == "stale_version"


@pytest.fixture
def adapter(settings, tmp_path):
    """An adapter of a tenant, with its files in the store."""
    settings.ADAPTER_DIR = tmp_path / "adapters"
    make_pool("chat")
    make_tenant("acme")
    make_tenant("other")
    files = {CONFIG_FILE: packages.config_bytes(), WEIGHTS_FILE: packages.weights(fill=0)}
    sent = [Incoming(name, io.BytesIO(content)) for name, content in files.items()]
    wanted = catalog.Wanted(tenant="acme", name="sql", model="m")
    with catalog.received(wanted=wanted, uploaded=sent, actor=WHY["actor"]) as upload:
        made = catalog.add_version(upload=upload, **WHY)
    return catalog.update_adapter(
        public_id=made.public_id, pinned=True, shared_with=["other"], **WHY
    )


def test_an_adapter_is_brought_back_from_the_files_in_the_store(adapter):
    text, before = services.export_text(), table_digest()
    Adapter.objects.all().delete()
    assert table_digest() != before
    apply(text)
    assert services.export_text() == text
    assert table_digest() == before
    assert Adapter.objects.get().pinned
    assert apply(text).is_empty
    unpinned = edited(text, lambda b: b["adapters"][0].pop("pinned"))
    apply(unpinned)
    assert not Adapter.objects.get().pinned
    changed = edited(text, lambda b: b["adapters"][0].update(digest="b" * 64))
    with pytest.raises(Conflict, match="upload the version"):
        apply(changed)
    apply(edited(text, lambda b: b.update(adapters=[])), remove=True)
    assert Adapter.objects.get().deleted_at is not None


def test_an_adapter_whose_files_are_gone_or_others_is_refused(adapter):
    text = services.export_text()
    digest = adapter.versions.get().digest
    Adapter.objects.all().delete()
    (uploads.folder_of(digest) / CONFIG_FILE).write_bytes(packages.config_bytes(r=4))
    with pytest.raises(ProblemError) as told:
        apply(text)
    assert told.value.field.startswith("adapters[0]")
    uploads.forget(digest)
    with pytest.raises(Invalid) as told:
        apply(text)
    assert (told.value.field, "not in the store" in told.value.message) == (
        "adapters[0].digest", True,
    )  # fmt: skip
    assert not Adapter.objects.exists()


@pytest.mark.parametrize(("state", "is_busy"), [("40P01", True), ("08006", False)])
def test_a_deadlock_is_somebody_else_and_a_lost_database_is_not(monkeypatch, state, is_busy):
    cause = Exception()
    cause.sqlstate = state

    def broken() -> None:
        raise OperationalError("it broke") from cause

    monkeypatch.setattr(services, "exported", broken)
    with pytest.raises(Conflict if is_busy else OperationalError):
        apply("signalbox: 1\n")


@pytest.mark.parametrize(
    "text",
    [
        "signalbox: 1\nx: &a [1]\ny: *a\n",
        "a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: [*c,*c,*c,*c]\n",
        "signalbox: 1\nmodels: []\nmodels: []\n",
        "signalbox: !!python/object/apply:os.system [id]\n",
        "[" * 5000,
        "{" * 2000,
        "just a text",
        "",
        "- 1\n",
        "signalbox: 1\n\tmodels: []\n",
        "signalbox: 1\nmodels: [{name: \x00}]\n",
        "signalbox: 1\nmodels: {}\n",
        "signalbox: 1\nmodels:\n- 5\n",
        "signalbox: 1\n? [a]\n: b\n",
        "x" * (document.LIMIT_BYTES + 1),
    ],
    ids=["alias", "bomb", "twice", "tag", "deep", "deep maps", "text", "empty", "list", "tab",
         "control", "mapping", "number", "list key", "large"],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_in_words(text):
    with pytest.raises(Invalid) as told:
        document.read(text)
    assert told.value.field


def test_dates_and_words_stay_what_they_are():
    text = "signalbox: 1\ntenants:\n- {slug: acme, name: 2027-01-31, priority: 5}\n"
    assert document.read(text)["tenants"][0].name == "2027-01-31"
