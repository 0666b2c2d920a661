"""The page of staff: admins invite, change and take away; nobody else sees it."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.audit.models import AuditEvent
from controlplane.domain.errors import Conflict, NotFound
from controlplane.tenants import services
from controlplane.tenants.models import StaffProfile, StaffToken
from tests.controlplane.calling import bearing
from tests.controlplane.staff import PASSWORD, signed_in, user
from tests.factories import WHY

pytestmark = pytest.mark.django_db
OLGA = {"username": "olga", "role": "operator", "reason": "she is on call"}


def test_an_admin_invites_somebody_who_sets_a_password_and_sees_what_their_role_may():
    admin = signed_in("admin")
    answer = admin.post("/staff/new/", OLGA)
    assert answer["Cache-Control"] == "no-store"
    link = re.search(r'id="new-link">([^<]+)<', answer.content.decode())
    assert link
    assert "invited" in admin.get("/staff/").content.decode()
    olga = Client()
    form = olga.get(link[1], follow=True)
    olga.post(form.request["PATH_INFO"], {"new_password1": PASSWORD, "new_password2": PASSWORD})
    assert User.objects.get(username="olga").has_usable_password()
    assert olga.login(username="olga", password=PASSWORD)
    assert olga.get("/").status_code == 200
    assert olga.get("/staff/").status_code == 403
    page = admin.get("/staff/").content.decode()
    assert "Operator" in page
    assert "no password set yet" not in page


def test_roles_are_changed_renewed_and_taken_away_with_a_reason():
    admin = signed_in("admin")
    admin.post("/staff/new/", OLGA)
    path = "/staff/olga/change/"
    assert "Take role away" in admin.get(path).content.decode()
    why = {"reason": "promoted"}
    assert admin.post(path, {"step": "role", "role": "admin"} | why)["Location"] == "/staff/"
    assert StaffProfile.objects.get(user__username="olga").role == "admin"
    User.objects.get(username="olga").set_password(PASSWORD)
    assert 'id="new-link"' in admin.post(path, {"step": "renew"} | why).content.decode()
    assert admin.post(path, {"step": "role", "role": "boss"} | why).status_code == 400
    assert admin.post(path, {"step": "remove"} | why).status_code == 302
    assert admin.get(path).status_code == 404
    assert "exists" not in admin.post("/staff/new/", OLGA | {"role": "x"}).content.decode()


def test_the_last_admin_keeps_their_role_and_a_superuser_their_password():
    admin = signed_in("admin")
    me = StaffProfile.objects.get(role="admin").user
    refused = admin.post("/staff/new/", OLGA | {"username": me.username, "role": "viewer"})
    assert "admin" in refused.content.decode()
    assert StaffProfile.objects.get(user=me).role == "admin"
    root = user("viewer", "root")
    User.objects.filter(pk=root.pk).update(is_superuser=True)
    root.refresh_from_db()
    with pytest.raises(Conflict, match="changepassword"):
        services.renew_staff_invitation(user=root, **WHY)
    with pytest.raises(NotFound):
        services.renew_staff_invitation(user=user("", "nobody"), **WHY)


def test_a_token_for_automation_is_issued_shown_once_and_revoked_by_its_name():
    admin = signed_in("admin")
    given = {"name": "ci", "role": "viewer", "reason": "nightly report"}
    answer = admin.post("/staff/tokens/new/", given)
    assert answer["Cache-Control"] == "no-store"
    text = re.search(r'id="new-token">([^<]+)<', answer.content.decode())[1]
    api = bearing(text)
    assert api.get("/api/v1/pools/").status_code == 200
    assert api.post("/api/v1/models/", {"name": "m"}, format="json").status_code == 403
    page = admin.get("/staff/").content.decode()
    assert 'id="token-ci"' in page
    assert text not in page
    assert "exists already" in admin.post("/staff/tokens/new/", given).content.decode()
    assert admin.post("/staff/tokens/new/", given | {"name": "A b"}).status_code == 200
    past = given | {"name": "old", "expires_at": "2020-01-01T00:00"}
    assert "over already" in admin.post("/staff/tokens/new/", past).content.decode()
    assert StaffToken.objects.count() == 1
    path = "/staff/tokens/ci/revoke/"
    wrong = admin.post(path, {"typed": "cd", "reason": "x"})
    assert "Nothing was changed" in wrong.content.decode()
    assert admin.post(path, {"typed": "ci", "reason": ""}).status_code == 400
    assert admin.post(path, {"typed": "ci", "reason": "left"})["Location"] == "/staff/"
    assert api.get("/api/v1/pools/").status_code == 401
    assert admin.get(path).status_code == 404
    verbs = AuditEvent.objects.filter(target="ci").order_by("id").values_list("verb", "reason")
    assert list(verbs) == [("staff-token.issue", "nightly report"), ("staff-token.revoke", "left")]
    operator = signed_in("operator")
    assert operator.get("/staff/tokens/new/").status_code == 403
    assert "There are no API tokens" in admin.get("/staff/").content.decode()
