"""Tenants made and changed in the console: a form, before → after, then the change."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEvent
from controlplane.tenants.models import Tenant
from tests.controlplane.staff import signed_in
from tests.factories import make_tenant

pytestmark = pytest.mark.django_db
EDIT = "/tenants/acme/edit/"


def form(**given):
    values = {"name": "Acme", "priority": 5, "limits_when_unreachable": "open"}
    return values | given


def test_a_tenant_is_made_with_its_limits():
    client = signed_in("admin")
    assert client.get("/tenants/new/").status_code == 200
    given = form(slug="acme", concurrency=5, allowed_models="chat, bge chat", reason="a customer")
    assert client.post("/tenants/new/", given)["Location"] == "/tenants/acme/"
    made = Tenant.objects.get()
    assert (made.concurrency, made.requests_per_minute) == (5, None)
    assert made.allowed_models == ["chat", "bge"]
    assert "slug" in client.post("/tenants/new/", given).context["form"].errors
    assert AuditEvent.objects.get(verb="tenant.create").reason == "a customer"


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_only_an_admin_makes_or_changes_tenants(role):
    make_tenant()
    client = signed_in(role)
    for url in ("/tenants/new/", EDIT):
        assert client.get(url).status_code == 403
        assert client.post(url, form(step="apply", reason="x")).status_code == 403
    page = client.get("/tenants/acme/").content.decode()
    assert "Edit limits" not in page
    assert "Invite member" not in page


def test_a_change_is_reviewed_before_it_is_made():
    tenant = make_tenant(concurrency=5)
    client = signed_in("admin")
    assert b'value="5"' in client.get(EDIT).content
    given = form(concurrency="", tokens_per_minute=1000, suspended="on")
    review = client.post(EDIT, given | {"step": "review", "expected_version": 1})
    told = {label: (before, after) for label, before, after in review.context["differences"]}
    assert told["Requests at the same time"] == ("5", "no limit")
    assert told["Tokens a minute, in and out"] == ("no limit", "1000")
    assert told["Suspended"] == ("no", "yes")
    assert len(told) == 3
    tenant.refresh_from_db()
    assert tenant.concurrency == 5
    back = client.post(EDIT, given | {"step": "edit", "expected_version": 1})
    assert b'name="step" value="review"' in back.content
    done = client.post(
        EDIT, given | {"step": "apply", "expected_version": 1, "reason": "new contract"}
    )
    assert done["Location"] == "/tenants/acme/"
    tenant.refresh_from_db()
    assert (tenant.concurrency, tenant.tokens_per_minute, tenant.suspended) == (None, 1000, True)
    assert AuditEvent.objects.get(verb="tenant.update").fleet_revision


def test_a_change_from_an_old_view_is_refused():
    make_tenant(version=3)
    answer = signed_in("admin").post(
        EDIT, form(priority=1, step="apply", expected_version=2, reason="x")
    )
    assert answer.status_code == 409
    assert Tenant.objects.get().priority == 5


def test_a_value_out_of_range_is_told_at_its_field_and_no_difference_as_none():
    make_tenant()
    client = signed_in("admin")
    assert "priority" in client.post(EDIT, form(priority=11)).context["form"].errors
    assert b"Nothing differs" in client.post(EDIT, form(step="review")).content
