"""A tenant's own area: its members see it and nothing else; staff may look in."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.telemetry.models import RollUp, RollUpState, Step
from controlplane.tenants.models import ApiKey
from controlplane.usage.models import UsageHour
from tests.controlplane.staff import poll, signed_in
from tests.controlplane.tenants.members import ADMIN, member
from tests.factories import make_key, make_pool, make_replica, make_tenant

pytestmark = pytest.mark.django_db
PAGES = ("", "keys/", "models/", "limits/", "members/")
LIVE = ("hours/requests.json", "hours/tokens.json", "live/requests.json")


@pytest.fixture
def acme():
    return make_tenant()


@pytest.fixture
def other():
    return make_tenant("globex", allowed_models=["secret-model"])


def usage(tenant, **given):
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    row = {"hour": now, "agent": "agt-1", "model": "chat", "requests": 3, "prompt_tokens": 1200}
    return UsageHour.objects.create(tenant=tenant.slug, **(row | given))


def test_a_member_sees_every_page_of_their_tenant_and_none_of_anothers(acme, other):
    client = member(acme)
    for path in PAGES + LIVE:
        assert client.get(f"/t/acme/{path}").status_code == 200, path
        assert client.get(f"/t/globex/{path}").status_code == 404, path
        assert client.get(f"/t/nobody/{path}").status_code == 404, path


def test_another_tenants_things_are_nowhere_on_the_pages(acme, other):
    key = make_key(other, name="their-key")
    usage(other, model="their-model", api_key=key.public_id)
    usage(acme)
    make_pool(model="chat")
    client = member(acme)
    member(other, name="their-person")
    for path in PAGES:
        page = client.get(f"/t/acme/{path}").content.decode()
        for theirs in ("globex", "Globex", "their-key", "their-model", "their-person"):
            assert theirs not in page, (path, theirs)


def test_a_member_is_no_staff(acme):
    client = member(acme, ADMIN)
    for path in ("/pools/", "/tenants/", "/tenants/acme/", "/nodes/", "/audit/", "/system/",
                 "/requests/", "/search/?q=a", "/live/tenants/acme/requests.json"):  # fmt: skip
        assert client.get(path).status_code == 403, path
    for path in ("/tenants/new/", "/tenants/acme/edit/", "/tenants/acme/members/new/"):
        assert client.post(path, {}).status_code == 403, path
    assert client.get("/profile/").status_code == 200


def test_who_is_not_signed_in_is_asked_to(acme):
    answer = Client().get("/t/acme/keys/")
    assert answer["Location"] == "/login/?next=/t/acme/keys/"
    assert Client().get("/t/")["Location"] == "/login/?next=/t/"


def test_staff_may_look_in_and_operators_act(acme):
    key = make_key(acme)
    viewer = signed_in("viewer")
    for path in PAGES:
        assert viewer.get(f"/t/acme/{path}").status_code == 200
    assert viewer.get(f"/t/acme/keys/{key.public_id}/revoke/").status_code == 403
    assert signed_in("operator").get(f"/t/acme/keys/{key.public_id}/revoke/").status_code == 200
    assert viewer.get("/t/nobody/").status_code == 404


def test_signing_in_leads_members_to_their_area(acme, other):
    client = member(acme, name="anna")
    assert client.get("/")["Location"] == "/t/acme/"
    assert client.get("/t/")["Location"] == "/t/acme/"
    assert client.get("/login/")["Location"] == "/t/acme/"
    member(other, name="anna")
    assert client.get("/")["Location"] == "/t/"
    page = client.get("/t/").content.decode()
    assert "/t/acme/" in page
    assert "/t/globex/" in page


def test_somebody_without_anything_is_told_so():
    client = signed_in("")
    assert client.get("/").status_code == 403
    assert "no tenant" in client.get("/t/").content.decode()


def test_only_a_tenant_admin_issues_rotates_and_revokes(acme):
    key = make_key(acme)
    plain = member(acme)
    assert "Issue key" not in plain.get("/t/acme/keys/").content.decode()
    for path in ("new/", f"{key.public_id}/rotate/", f"{key.public_id}/revoke/"):
        assert plain.post(f"/t/acme/keys/{path}", {"reason": "x"}).status_code == 403
    boss = member(acme, ADMIN)
    assert "Issue key" in boss.get("/t/acme/keys/").content.decode()
    answer = boss.post("/t/acme/keys/new/", {"name": "batch", "reason": "nightly"})
    text = re.search(r'id="new-key">([^<]+)<', answer.content.decode()).group(1)
    assert answer["Cache-Control"] == "no-store"
    assert text not in boss.get("/t/acme/keys/").content.decode()
    answer = boss.post(
        f"/t/acme/keys/{key.public_id}/revoke/", {"typed": key.name, "reason": "leaked"}
    )
    assert answer["Location"] == "/t/acme/keys/"
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_a_tenant_admin_cannot_touch_another_tenants_key(acme, other):
    theirs = make_key(other)
    boss = member(acme, ADMIN)
    for verb in ("rotate", "revoke"):
        url = f"/t/acme/keys/{theirs.public_id}/{verb}/"
        assert boss.get(url).status_code == 404
        form = {"typed": theirs.name, "overlap_hours": 0, "reason": "x"}
        assert boss.post(url, form).status_code == 404
    theirs.refresh_from_db()
    assert theirs.revoked_at is None
    assert theirs.expires_at is None


def test_rotating_shows_the_new_key_and_says_when_the_old_one_ends(acme):
    key = make_key(acme, name="batch")
    boss = member(acme, ADMIN)
    url = f"/t/acme/keys/{key.public_id}/rotate/"
    answer = boss.post(url, {"overlap_hours": 12, "reason": "yearly"})
    assert 'id="new-key">sbx-' in answer.content.decode()
    key.refresh_from_db()
    assert timedelta(hours=11) < key.expires_at - timezone.now() <= timedelta(hours=12)
    assert ApiKey.objects.filter(tenant=acme, name="batch-2").exists()
    assert "ends soon" in boss.get("/t/acme/keys/").content.decode()


def test_usage_is_added_up_over_agents_keys_and_versions(acme):
    key = make_key(acme, name="batch")
    usage(acme, api_key=key.public_id, failed=1)
    usage(acme, agent="agt-2", output_tokens=7)
    page = member(acme).get("/t/acme/")
    assert page.context["totals"]["requests"] == 6
    assert page.context["totals"]["failed"] == 1
    (line,) = page.context["models"]
    assert (line["model"], line["prompt_tokens"]) == ("chat", 2400)
    assert {k["name"] for k in page.context["keys"]} == {"batch", ""}
    csv = member(acme, ADMIN).get("/t/acme/?csv=1").content.decode()
    assert "chat" in csv


def test_what_was_refused_is_counted_from_whole_hours_and_the_minutes_since(acme):
    now = timezone.now()
    hour = now.replace(minute=0, second=0, microsecond=0)
    RollUpState.objects.update_or_create(defaults={"hours_until": hour})
    for at, step, refused in (
        (hour - timedelta(hours=2), Step.HOUR, 5),
        (hour - timedelta(minutes=90), Step.MINUTE, 5),  # the same, added up already
        (hour, Step.MINUTE, 2),
        (hour - timedelta(hours=30), Step.HOUR, 100),
    ):
        told = Figures(covered_s=60, requests=refused + 1, statuses={"200": 1, "429": refused})
        RollUp.objects.create(
            level="tenant",
            subject="acme",
            step_s=step,
            at=at,
            covered_s=60,
            figures=rollups.packed(told),
        )
    page = member(acme).get("/t/acme/")
    assert page.context["refused"] == 7
    assert "Refused" in page.content.decode()


def test_the_hours_chart_shows_zero_where_nothing_was_used_and_a_gap_before_the_tenant(acme):
    type(acme).objects.update(created_at=timezone.now() - timedelta(hours=5))
    usage(acme)
    figure = member(acme).get("/t/acme/hours/requests.json").json()
    (values,) = [d["y"] for d in figure["figure"]["data"] if d["name"] == "requests"]
    assert len(values) == 24
    assert values[-1] == 3
    assert values[-2] == 0
    assert values[0] is None
    assert member(acme, ADMIN).get("/t/acme/hours/nonsense.json").status_code == 404


@pytest.mark.parametrize("days", ["1d", "7d", "30d", "nonsense"])
def test_every_stretch_is_drawn(acme, days):
    usage(acme)
    assert member(acme).get("/t/acme/", {"days": days}).status_code == 200


def test_models_are_those_it_may_call_with_whether_they_are_served(acme):
    make_replica(make_pool(model="chat"))
    make_pool("embed", model="bge")
    client = member(acme)
    page = client.get("/t/acme/models/").content.decode()
    assert "chat" in page
    assert "none ready" in page
    assert "rpl-" not in page
    acme.allowed_models = ["bge"]
    acme.save()
    (line,) = client.get("/t/acme/models/").context["models"]
    assert line.names == ("bge",)


def test_limits_name_no_agent(acme):
    acme.concurrency, acme.requests_per_minute, acme.tokens_per_minute = 5, 60, 1000
    acme.save()
    page = member(acme).get("/t/acme/limits/").content.decode()
    assert "limit-concurrency" in page
    assert "limit-requests" in page
    assert "limit-tokens" in page
    assert "agt-" not in page
    shown = signed_in("viewer").get("/tenants/").content.decode()
    assert "0 of 5" in shown
    assert "Requests at the same time" in shown
    assert "limit-tokens" in signed_in("operator").get("/tenants/acme/").content.decode()


def test_a_poll_answers_204_until_something_changed(acme):
    client = member(acme)
    first = poll(client, "/t/acme/keys/")
    assert poll(client, "/t/acme/keys/", first["X-Digest"]).status_code == 204
    make_key(acme)
    assert poll(client, "/t/acme/keys/", first["X-Digest"]).status_code == 200


def test_the_menu_holds_pages_that_exist(acme):
    page = member(acme).get("/t/acme/").content.decode()
    for path in PAGES:
        assert f'href="/t/acme/{path}"' in page


def test_names_are_text(acme):
    acme.name = "<img src=x>"
    acme.save()
    client = member(acme)
    for path in PAGES:
        assert b"<img src=x" not in client.get(f"/t/acme/{path}").content
