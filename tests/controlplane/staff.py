"""Console users with a role, signed in."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.test import Client

from controlplane.tenants.models import StaffProfile

PASSWORD = "only-for-tests-1"


def user(role: str = "operator", name: str = "") -> User:
    """Give a user with a role; an empty role makes one without any."""
    made = User.objects.create_user(name or f"a-{role or 'nobody'}", password=PASSWORD)
    if role:
        StaffProfile.objects.create(user=made, role=role)
    return made


def signed_in(role: str = "operator") -> Client:
    """Give a client signed in as somebody with this role."""
    client = Client()
    client.force_login(user(role))
    return client


def poll(client: Client, url: str, seen: str = ""):
    """Ask for a page's live part, as the tick does."""
    return client.get(url, headers={"HX-Request": "true", "X-Seen": seen})
