"""Tenants' pages: a key is shown once, revoked only after its name was typed."""

from __future__ import annotations

import re

import pytest

from controlplane.tenants.models import ApiKey
from tests.controlplane.staff import signed_in
from tests.factories import make_key, make_tenant

pytestmark = pytest.mark.django_db
ISSUE = "/tenants/acme/keys/new/"


@pytest.fixture
def tenant():
    return make_tenant(name="<img src=x onerror=alert(1)>")


def revoke_url(key: ApiKey) -> str:
    return f"/keys/{key.public_id}/revoke/"


def test_a_viewer_sees_keys_but_no_button_and_may_press_none(tenant):
    key = make_key(tenant)
    client = signed_in("viewer")
    page = client.get("/tenants/acme/").content.decode()
    assert key.name in page
    assert "Issue key" not in page
    assert "Revoke" not in page
    assert client.post(ISSUE, {"name": "x", "reason": "y"}).status_code == 403
    assert client.post(revoke_url(key), {"typed": key.name, "reason": "y"}).status_code == 403
    assert ApiKey.objects.get().revoked_at is None


def test_a_new_key_is_shown_once_and_never_cached(tenant):
    client = signed_in()
    answer = client.post(ISSUE, {"name": "batch", "reason": "nightly jobs"})
    text = re.search(r'id="new-key">([^<]+)<', answer.content.decode()).group(1)
    assert text.startswith("sbx-")
    assert answer["Cache-Control"] == "no-store"
    assert text not in client.get("/tenants/acme/").content.decode()
    assert text not in client.get("/audit/").content.decode()


def test_a_key_needs_a_name_and_a_reason(tenant):
    answer = signed_in().post(ISSUE, {"name": "", "reason": ""})
    assert set(answer.context["form"].errors) == {"name", "reason"}
    assert not ApiKey.objects.exists()


def test_a_name_in_use_is_refused_at_its_field(tenant):
    client = signed_in()
    client.post(ISSUE, {"name": "batch", "reason": "x"})
    answer = client.post(ISSUE, {"name": "batch", "reason": "x"})
    assert "name" in answer.context["form"].errors


def test_revoking_states_what_breaks_and_wants_the_name(tenant):
    key = make_key(tenant)
    client = signed_in()
    assert b"refused with 401" in client.get(revoke_url(key)).content
    answer = client.post(revoke_url(key), {"typed": "something", "reason": "leaked"})
    assert b"Nothing was changed" in answer.content
    assert ApiKey.objects.get().revoked_at is None


def test_a_key_whose_name_was_typed_is_revoked_for_good(tenant):
    key = make_key(tenant)
    client = signed_in()
    answer = client.post(revoke_url(key), {"typed": key.name, "reason": "leaked"})
    assert answer["Location"] == "/tenants/acme/"
    assert ApiKey.objects.get().revoked_at is not None
    assert b"revoked" in client.get("/tenants/acme/").content


def test_names_are_text(tenant):
    make_key(tenant, name="<b>x</b>")
    for url in ("/tenants/", "/tenants/acme/", "/search/?q=acme"):
        page = signed_in_once().get(url, follow=True).content
        assert b"<img src=x" not in page
        assert b"<b>x</b>" not in page


def signed_in_once():
    from django.contrib.auth.models import User

    User.objects.all().delete()
    return signed_in()


@pytest.mark.parametrize("url", ["/tenants/none/", "/tenants/none/keys/new/", "/keys/none/revoke/"])
def test_what_does_not_exist_is_a_404(url):
    assert signed_in().get(url).status_code == 404
