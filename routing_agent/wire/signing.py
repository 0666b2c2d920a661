"""Signatures of calls to an agent's admin port: pushes, actions and every other."""

from __future__ import annotations

import hashlib
from typing import Final

# Signed requests (pushes, actions and every other call to an agent's admin port).
SIGNATURE_HEADER: Final = "x-signalbox-signature"  # base64 Ed25519
TIME_HEADER: Final = "x-signalbox-time"  # Unix seconds, decimal
NONCE_HEADER: Final = "x-signalbox-nonce"  # 128 random bits, hex
SIGNATURE_WINDOW_S: Final = 60.0


def signed_bytes(*, method: str, path: str, body: bytes, time: str, nonce: str) -> bytes:
    """Give the exact bytes a signature covers."""
    digest = hashlib.sha256(body).hexdigest()
    return f"signalbox-v1\n{method}\n{path}\n{digest}\n{time}\n{nonce}".encode()
