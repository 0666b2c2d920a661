"""Secrets that callers present: making, hashing and comparing them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

API_KEY = "sbx-"
STAFF_TOKEN = "sbt-"  # noqa: S105 - a visible prefix, by which scanners recognise a leaked token
TENANT_TOKEN = "stt-"  # noqa: S105 - the same, of a token that acts within one tenant
_RANDOM_BYTES = 32  # 256 bits: beyond guessing, so a plain SHA-256 protects it
_SHOWN_CHARACTERS = 10


@dataclass(frozen=True, slots=True)
class Secret:
    """A fresh secret: its text, shown once, and what may be stored of it."""

    text: str
    prefix: str  # enough to recognise it by
    sha256: str

    def __repr__(self) -> str:
        return f"Secret({self.prefix}…)"


def make(kind: str = API_KEY) -> Secret:
    """Make a secret of 256 random bits that begins with `kind`."""
    text = kind + secrets.token_urlsafe(_RANDOM_BYTES)
    return Secret(text=text, prefix=text[:_SHOWN_CHARACTERS], sha256=digest(text))


def digest(text: str) -> str:
    """Give the SHA-256 of a secret's text, in hex: the only form that is stored."""
    return hashlib.sha256(text.encode()).hexdigest()


def matches(text: str, sha256: str) -> bool:
    """Say whether `text` is the secret of which `sha256` is stored, in constant time."""
    return hmac.compare_digest(digest(text), sha256)
