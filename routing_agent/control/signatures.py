"""Decides whether a call really comes from our control plane, now, and for the first time."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from routing_agent import wire
from routing_agent.control.clock import ControlClock

START_SLACK_S = 1.0  # a signer may write whole seconds


class SignatureRefused(Exception):
    """A call that must not be obeyed. The code is stable; the message is for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Verifier:
    """Checks signed calls against the one key this agent trusts.

    Nonces live in memory only. A call recorded before a restart and played back after it is refused
    by its time, which lies before this verifier's start; what slipped through at the very second of
    the start could only repeat a table, and the epoch order makes that harmless.
    """

    def __init__(self, public_key: str, clock: ControlClock) -> None:
        self._key = load_public_key(public_key)
        self._clock = clock
        self._not_before = clock.monotonic()
        self._seen: dict[str, float] = {}  # nonce -> the time its call was signed at

    def check(self, *, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Accept the call by returning, or raise SignatureRefused.

        Args:
            path: the request target exactly as sent, query included.
            headers: by lower-case name.
        """
        signature, sent, nonce = _credentials(headers)
        signed = wire.signed_bytes(method=method, path=path, body=body, time=sent, nonce=nonce)
        try:
            self._key.verify(signature, signed)
        except InvalidSignature:
            raise SignatureRefused(
                "wrong_signature",
                "The signature does not fit this method, path, body, time and nonce, "
                "or was made with another key than the one pinned at registration.",
            ) from None
        self._check_time(float(sent))
        self._check_nonce(nonce, float(sent))

    def _check_time(self, sent: float) -> None:
        now = self._clock.now()
        if not abs(now - sent) <= wire.SIGNATURE_WINDOW_S:  # so written that NaN is refused too
            raise SignatureRefused(
                "out_of_time",
                f"The call was signed {now - sent:+.0f} s ago by the control plane's clock as this "
                f"agent knows it; {wire.SIGNATURE_WINDOW_S:.0f} s are allowed. Sign it again.",
            )
        started_at = now - (self._clock.monotonic() - self._not_before)
        if sent < started_at - START_SLACK_S:
            raise SignatureRefused(
                "before_start",
                "The call was signed before this agent started. Sign and send again.",
            )

    def _check_nonce(self, nonce: str, sent: float) -> None:
        oldest = self._clock.now() - wire.SIGNATURE_WINDOW_S
        self._seen = {n: t for n, t in self._seen.items() if t >= oldest}
        if nonce in self._seen:
            raise SignatureRefused(
                "replayed", "A call with this nonce was already accepted. Sign and send again."
            )
        self._seen[nonce] = sent


def load_public_key(text: str) -> Ed25519PublicKey:
    """Read a base64 Ed25519 public key; ValueError says that it is none."""
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error):
        raise ValueError("the control plane's public key is not a base64 Ed25519 key") from None


def _credentials(headers: Mapping[str, str]) -> tuple[bytes, str, str]:
    names = (wire.SIGNATURE_HEADER, wire.TIME_HEADER, wire.NONCE_HEADER)
    missing = [name for name in names if not headers.get(name)]
    if missing:
        raise SignatureRefused(
            "unsigned",
            f"Calls here must be signed by the control plane; missing: {', '.join(missing)}.",
        )
    signature, sent, nonce = (headers[name] for name in names)
    try:
        float(sent)
        return base64.b64decode(signature, validate=True), sent, nonce
    except (ValueError, binascii.Error):
        raise SignatureRefused(
            "malformed", f"{wire.SIGNATURE_HEADER} must be base64 and {wire.TIME_HEADER} a number."
        ) from None
