"""Members: invited with a link that works once, given another role, removed; all of it audited."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.audit.models import AuditEvent
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.tenants import services
from controlplane.tenants.models import Membership
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.staff import signed_in, user
from tests.controlplane.tenants.members import ADMIN, MEMBER, member, tenants_robot
from tests.factories import WHY, make_tenant

pytestmark = pytest.mark.django_db
PASSWORD = "correct-horse-battery-9"
NEW = "/tenants/acme/members/new/"


@pytest.fixture
def acme():
    return make_tenant()


def invited(client: Client, name: str = "anna", role: str = ADMIN) -> str:
    """Invite somebody in the console and give the path of their link."""
    answer = client.post(NEW, {"username": name, "role": role, "reason": "their team"})
    assert answer["Cache-Control"] == "no-store"
    return re.search(r'id="new-link">https?://[^/]+([^<]+)<', answer.content.decode()).group(1)


def set_password(path: str, password: str = PASSWORD):
    """Follow a link and set a password; gives the client and the last answer."""
    client = Client()
    form = client.get(path, follow=True)
    answer = client.post(
        form.request["PATH_INFO"], {"new_password1": password, "new_password2": password}
    )
    return client, answer


def test_an_invited_person_sets_a_password_once_and_lands_in_their_area(acme):
    path = invited(signed_in("admin"))
    client, answer = set_password(path)
    assert answer["Location"] == "/t/acme/"
    assert client.get("/t/acme/").status_code == 200
    assert "used already" in Client().get(path, follow=True).content.decode()
    fresh = Client()
    login = fresh.post("/login/", {"username": "anna", "password": PASSWORD})
    assert login["Location"] == "/t/acme/"


def test_a_weak_password_is_refused(acme):
    client, answer = set_password(invited(signed_in("admin")), "password")
    assert answer.status_code == 200
    assert "_auth_user_id" not in client.session


def test_the_link_is_kept_nowhere(acme):
    client = signed_in("admin")
    token = invited(client).rstrip("/").rsplit("/", 1)[1]
    for page in ("/tenants/acme/", "/audit/"):
        assert token not in client.get(page).content.decode()


def test_who_has_a_password_gets_a_membership_and_no_link(acme):
    user("", name="anna")
    answer = signed_in("admin").post(NEW, {"username": "anna", "role": MEMBER, "reason": "x"})
    assert "new-link" not in answer.content.decode()
    assert Membership.objects.get().user.username == "anna"


def test_nobody_is_a_member_twice_and_bad_input_is_told_at_its_field(acme):
    client = signed_in("admin")
    invited(client)
    for form, field in (
        ({"username": "anna", "role": MEMBER, "reason": "x"}, "username"),
        ({"username": "a b c", "role": MEMBER, "reason": "x"}, "username"),
        ({"username": "bob", "role": "admin", "reason": "x"}, "role"),
        ({"username": "bob", "role": MEMBER, "reason": ""}, "reason"),
    ):
        assert field in client.post(NEW, form).context["form"].errors, form
    assert Membership.objects.count() == 1


def test_only_admins_invite_and_change(acme):
    member(acme)
    row = Membership.objects.get()
    for role in ("viewer", "operator"):
        client = signed_in(role)
        assert client.get(NEW).status_code == 403
        assert (
            client.post(f"/members/{row.pk}/", {"step": "remove", "reason": "x"}).status_code == 403
        )


def test_a_role_is_changed_and_a_removed_member_sees_nothing(acme):
    theirs = member(acme)
    row = Membership.objects.get()
    boss = signed_in("admin")
    assert boss.get(f"/members/{row.pk}/").status_code == 200
    boss.post(f"/members/{row.pk}/", {"step": "role", "role": ADMIN, "reason": "trusted"})
    assert "Issue key" in theirs.get("/t/acme/keys/").content.decode()
    boss.post(f"/members/{row.pk}/", {"step": "remove", "reason": "left"})
    assert theirs.get("/t/acme/keys/").status_code == 404
    verbs = list(AuditEvent.objects.order_by("pk").values_list("verb", flat=True))
    assert verbs[-2:] == ["membership.set-role", "membership.delete"]
    assert boss.get(f"/members/{row.pk}/").status_code == 404


def test_a_new_invitation_takes_the_password_away(acme):
    boss = signed_in("admin")
    set_password(invited(boss))
    row = Membership.objects.get()
    answer = boss.post(f"/members/{row.pk}/", {"step": "renew", "reason": "forgotten"})
    assert "new-link" in answer.content.decode()
    assert not User.objects.get(username="anna").has_usable_password()


def test_the_account_of_staff_or_of_another_tenant_is_not_reset(acme):
    user("viewer", name="vera")
    services.invite_member(tenant="acme", username="vera", role=MEMBER, **WHY)
    with pytest.raises(Conflict, match="staff"):
        services.renew_invitation(membership_id=Membership.objects.get().pk, **WHY)


def test_services_refuse_what_cannot_be(acme):
    with pytest.raises(NotFound):
        services.invite_member(tenant="none", username="a", role=MEMBER, **WHY)
    with pytest.raises(Invalid):
        services.invite_member(tenant="acme", username="a", role="viewer", **WHY)
    with pytest.raises(NotFound):
        services.set_member_role(membership_id=99, role=MEMBER, **WHY)


def test_members_by_api(acme):
    client = caller()
    body = {"tenant": "acme", "username": "anna", "role": MEMBER, "reason": "theirs"}
    tried = ok(client.post("/api/v1/memberships/?dry_run=true", body, format="json"))
    assert tried["invitation"] is None
    assert not User.objects.filter(username="anna").exists()
    made = ok(client.post("/api/v1/memberships/", body, format="json"), 201)
    assert made["invitation"].startswith("/welcome/")
    path = f"/api/v1/memberships/{made['id']}/"
    assert "invitation" not in ok(client.get(path))
    assert ok(client.patch(path, {"role": ADMIN}, format="json"))["role"] == ADMIN
    assert ok(client.post(f"{path}renew-invitation/", {}, format="json"))["invitation"]
    assert ok(client.get("/api/v1/memberships/?tenant=acme"))["count"] == 1
    problem(client.post("/api/v1/memberships/", body, format="json"), 409, "conflict")
    assert client.delete(path).status_code == 204
    problem(client.get(path), 404, "not_found")


def test_a_repeated_invitation_does_not_show_the_link_again(acme):
    client = caller()
    body = {"tenant": "acme", "username": "anna", "role": MEMBER}
    again = {"HTTP_IDEMPOTENCY_KEY": "once"}
    first = ok(client.post("/api/v1/memberships/", body, format="json", **again), 201)
    second = ok(client.post("/api/v1/memberships/", body, format="json", **again), 201)
    assert first["invitation"]
    assert second["invitation"] is None


def test_a_tenants_admin_invites_nobody_by_api(acme):
    robot = tenants_robot(acme)
    body = {"tenant": "acme", "username": "anna", "role": ADMIN}
    problem(robot.post("/api/v1/memberships/", body, format="json"), 403, "forbidden")
    member(acme)
    assert ok(robot.get("/api/v1/memberships/"))["count"] == 1
