"""The control plane's Ed25519 key, and the headers that prove a message is ours."""

from __future__ import annotations

import base64
import os
import secrets
import time
from functools import lru_cache
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings

from controlplane.domain.errors import Unavailable
from routing_agent import wire


def make_key_file(path: Path) -> bool:
    """Write a new private key readable by us only; say False when there is one already."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
    return True


def private_key() -> Ed25519PrivateKey:
    """Give our private key.

    Raises:
        Unavailable: when the key file is missing or is none.
    """
    path = Path(settings.SIGNING_KEY_FILE)
    try:
        return _loaded(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, TypeError) as error:
        raise Unavailable(
            f"The signing key file {path.name} cannot be read ({type(error).__name__});"
            " run `manage.py bootstrap`, or restore the file from your backup.",
            code="no_signing_key",
        ) from error


@lru_cache(maxsize=1)
def _loaded(path: Path, _changed_at: int) -> Ed25519PrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise TypeError("not an Ed25519 key")
    return key


def public_key_text() -> str:
    """Give the public key as agents pin it: base64 of its 32 bytes."""
    raw = (
        private_key()
        .public_key()
        .public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    )
    return base64.b64encode(raw).decode()


def signed_headers(*, method: str, path: str, body: bytes) -> dict[str, str]:
    """Give the headers that sign one message, for now and for once."""
    sent, nonce = f"{time.time():.3f}", secrets.token_hex(16)
    signed = wire.signed_bytes(method=method, path=path, body=body, time=sent, nonce=nonce)
    return {
        wire.SIGNATURE_HEADER: base64.b64encode(private_key().sign(signed)).decode(),
        wire.TIME_HEADER: sent,
        wire.NONCE_HEADER: nonce,
    }
