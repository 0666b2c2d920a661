"""Tenants, keys and staff: what changes, what is refused, what is recorded."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.audit.selectors import fleet_revision
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.tenants import keys, selectors, services
from controlplane.tenants.models import ApiKey, Role, StaffToken, Tenant
from tests.controlplane.calling import WHY

pytestmark = pytest.mark.django_db


def user(name: str = "anna", role: str | None = None, **columns):
    made = get_user_model().objects.create_user(name, password="x", **columns)
    if role:
        services.set_role(user=made, role=role, **WHY)
    return made


def test_creating_a_tenant_raises_the_fleet_revision_and_says_who_and_why():
    before = fleet_revision()
    services.create_tenant(slug="acme", name="Acme", priority=2, **WHY)
    event = AuditEvent.objects.get(verb="tenant.create")
    assert (event.actor, event.reason, event.target) == ("tests", "a test", "acme")
    assert event.after["priority"] == 2
    assert fleet_revision() == event.fleet_revision == before + 1


@pytest.mark.parametrize("slug", ["", "Acme", "-a", "a-", "a b", "a\n", "x" * 64, "a/b"])
def test_a_slug_that_is_none_is_refused_by_name(slug):
    with pytest.raises(Invalid) as caught:
        services.create_tenant(slug=slug, **WHY)
    assert caught.value.field == "slug"


def test_a_second_tenant_of_a_name_conflicts():
    services.create_tenant(slug="acme", **WHY)
    with pytest.raises(Conflict):
        services.create_tenant(slug="acme", **WHY)
    assert Tenant.objects.count() == 1


def test_a_slug_whose_page_would_be_hidden_by_another_is_refused():
    with pytest.raises(Invalid, match="choose another slug") as caught:
        services.create_tenant(slug="new", **WHY)
    assert caught.value.field == "slug"


def test_an_edit_from_an_older_version_is_refused_and_changes_nothing():
    tenant = services.create_tenant(slug="acme", **WHY)
    services.update_tenant(slug="acme", priority=1, expected_version=tenant.version, **WHY)
    with pytest.raises(Conflict) as caught:
        services.update_tenant(slug="acme", priority=9, expected_version=tenant.version, **WHY)
    assert caught.value.code == "stale_version"
    assert Tenant.objects.get().priority == 1


def test_an_edit_without_a_version_raises_it_all_the_same():
    services.create_tenant(slug="acme", **WHY)
    assert services.update_tenant(slug="acme", suspended=True, **WHY).version == 2


@pytest.mark.parametrize(
    ("field", "value"), [("priority", 10), ("allowed_models", "chat"), ("allowed_models", [1])]
)
def test_a_value_that_is_not_allowed_is_refused_by_name(field, value):
    services.create_tenant(slug="acme", **WHY)
    with pytest.raises(Invalid) as caught:
        services.update_tenant(slug="acme", **{field: value}, **WHY)
    assert caught.value.field == field
    assert Tenant.objects.get().version == 1


def test_deleting_a_tenant_takes_its_keys_along():
    services.create_tenant(slug="acme", **WHY)
    services.issue_key(tenant="acme", name="a", **WHY)
    services.delete_tenant(slug="acme", **WHY)
    assert not ApiKey.objects.exists()
    with pytest.raises(NotFound):
        services.delete_tenant(slug="acme", **WHY)


def test_a_key_is_stored_as_a_hash_and_its_text_appears_nowhere():
    services.create_tenant(slug="acme", **WHY)
    issued = services.issue_key(tenant="acme", name="prod", **WHY)
    row = ApiKey.objects.get()
    assert row.sha256 == keys.digest(issued.plaintext)
    assert issued.plaintext not in repr(issued)
    stored = str([*ApiKey.objects.values(), *AuditEvent.objects.values()])
    assert issued.plaintext not in stored


def test_a_live_key_keeps_its_name_and_a_revoked_one_frees_it():
    services.create_tenant(slug="acme", **WHY)
    first = services.issue_key(tenant="acme", name="prod", **WHY).key
    with pytest.raises(Conflict):
        services.issue_key(tenant="acme", name="prod", **WHY)
    services.revoke_key(public_id=first.public_id, **WHY)
    services.issue_key(tenant="acme", name="prod", **WHY)
    assert selectors.api_keys(tenant="acme", live_only=True).count() == 1


def test_revoking_twice_is_one_change():
    services.create_tenant(slug="acme", **WHY)
    key = services.issue_key(tenant="acme", name="prod", **WHY).key
    once = services.revoke_key(public_id=key.public_id, **WHY)
    twice = services.revoke_key(public_id=key.public_id, **WHY)
    assert once.revoked_at == twice.revoked_at
    assert AuditEvent.objects.filter(verb="api-key.revoke").count() == 1


def test_a_key_that_would_be_over_at_once_is_refused():
    services.create_tenant(slug="acme", **WHY)
    with pytest.raises(Invalid) as caught:
        services.issue_key(tenant="acme", name="a", expires_at=timezone.now(), **WHY)
    assert caught.value.field == "expires_at"


def test_live_keys_are_those_neither_revoked_nor_over():
    services.create_tenant(slug="acme", **WHY)
    assert selectors.tenant("acme").live_keys == 0
    key = services.issue_key(tenant="acme", name="a", **WHY).key
    services.issue_key(tenant="acme", name="b", **WHY)
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert selectors.tenant("acme").live_keys == 1


def test_a_user_without_a_profile_has_no_role_and_a_superuser_is_admin():
    assert selectors.role_of(user("plain")) is None
    assert selectors.role_of(user("root", is_superuser=True)) is Role.ADMIN
    assert selectors.role_of(user("op", role="operator")) is Role.OPERATOR


def test_a_deactivated_user_has_no_role():
    user("root", is_superuser=True)
    gone = user("op", role="operator")
    gone.is_active = False
    assert selectors.role_of(gone) is None


def test_the_last_admin_keeps_the_role():
    only = user("anna", role="admin")
    with pytest.raises(Conflict) as caught:
        services.set_role(user=only, role="viewer", **WHY)
    assert caught.value.code == "last_admin"
    with pytest.raises(Conflict):
        services.remove_role(user=only, **WHY)
    user("ben", role="admin")
    services.set_role(user=only, role="viewer", **WHY)
    assert selectors.role_of(only) is Role.VIEWER


def test_a_staff_token_acts_until_it_is_over_or_revoked():
    token, text = services.issue_staff_token(name="ci", role="operator", **WHY)
    assert selectors.role_of(selectors.staff_token(text)) is Role.OPERATOR
    StaffToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert selectors.staff_token(text) is None
    token.refresh_from_db()
    assert selectors.role_of(token) is None
    services.revoke_staff_token(name="ci", **WHY)
    assert not StaffToken.objects.exists()


def test_the_use_of_a_token_is_written_once_a_minute():
    token, _ = services.issue_staff_token(name="ci", role="viewer", **WHY)
    now = timezone.now()
    for seconds in (0, 1, 59):
        services.book_token_use(token=token, now=now + timedelta(seconds=seconds))
    token.refresh_from_db()
    assert token.last_used_at == now
    services.book_token_use(token=token, now=now + timedelta(seconds=61))
    token.refresh_from_db()
    assert token.last_used_at == now + timedelta(seconds=61)


@pytest.mark.parametrize("wanted", Role.values)
def test_roles_include_those_below_them(wanted):
    order = ["viewer", "operator", "admin"]
    for role in order:
        assert selectors.is_at_least(role, wanted) == (order.index(role) >= order.index(wanted))
    assert not selectors.is_at_least(None, wanted)


def test_a_role_is_taken_away_and_only_once():
    user("anna", role="admin")
    ben = user("ben", role="operator")
    services.remove_role(user=ben, **WHY)
    assert selectors.role_of(ben) is None
    with pytest.raises(NotFound):
        services.remove_role(user=ben, **WHY)
    assert AuditEvent.objects.get(verb="staff.remove-role").before == {"role": "operator"}


def test_a_role_that_is_none_is_refused():
    with pytest.raises(Invalid) as caught:
        services.set_role(user=user("anna"), role="boss", **WHY)
    assert caught.value.field == "role"


def test_a_name_of_a_staff_token_is_used_once():
    services.issue_staff_token(name="ci", role="viewer", **WHY)
    with pytest.raises(Conflict):
        services.issue_staff_token(name="ci", role="viewer", **WHY)
    with pytest.raises(NotFound):
        services.revoke_staff_token(name="none", **WHY)
