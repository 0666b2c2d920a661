"""Accounts of people: made when somebody is invited, with a link that sets a password once."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from controlplane import locking


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


def invitation_path(user: User) -> str | None:
    """Give where a user without a password sets one; Django's token ends with the first use."""
    if user.has_usable_password():
        return None
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    return reverse("welcome", args=[uid, default_token_generator.make_token(user)])
