"""Accounts of people: made when somebody is invited, with a link that sets a password once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from controlplane import locking
from controlplane.tenants.models import Membership, StaffProfile

Given = TypeVar("Given", Membership, StaffProfile)


@dataclass(frozen=True, slots=True)
class Invitation(Generic[Given]):
    """What somebody was given, and for who has no password the path of the page that sets one.

    The path works once, for three days, and is stored nowhere: it can be shown this once.
    """

    given: Given
    path: str | None

    def __repr__(self) -> str:
        return f"Invitation({self.given.user.get_username()})"


def account_of(username: str) -> User:
    """Give somebody's account; who has none gets one without a password."""
    found = get_user_model().objects.filter(username=username).first()
    if found is not None:
        return found
    made = User(username=username)
    made.set_unusable_password()
    locking.check(made)
    made.save(force_insert=True)
    return made


def invitation(given: Given) -> Invitation[Given]:
    """Give the invitation to use what was given."""
    return Invitation(given, _password_path(given.user))


def _password_path(user: User) -> str | None:
    """Give where a user without a password sets one; Django's token ends with the first use."""
    if user.has_usable_password():
        return None
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    return reverse("welcome", args=[uid, default_token_generator.make_token(user)])
