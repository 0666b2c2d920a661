"""TLS: whom we trust as engines, and the certificate that clients see.

The certificate is read anew when its files change. Connections that are open keep theirs; a pair of
files that does not work is named in the log, and the certificate before it stays in use.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509

log = structlog.get_logger()

LOOK_AGAIN_S: Final = 2.0
HANDSHAKE_LIMIT_S: Final = 10.0
# How long a closing connection waits for the other side's goodbye.
SHUTDOWN_LIMIT_S: Final = 2.0
_PROTOCOL: Final = ["http/1.1"]

Signature = tuple[tuple[int, int, int], ...]


class CertificateUnusable(Exception):
    """Files that make no usable certificate; the message names them and says why."""


def trust(ca_file: Path | None = None, *, option: str = "--engine-ca-file") -> ssl.SSLContext:
    """Give the context of connections to others: the system's trust, or exactly that of a file."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise CertificateUnusable(f"{option} {ca_file} cannot be used: {_words(error)}") from None
    context.set_alpn_protocols(_PROTOCOL)
    return context


def show(context: ssl.SSLContext, cert_file: Path, key_file: Path | None) -> None:
    """Let a context show a client certificate."""
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise CertificateUnusable(
            f"--client-cert {cert_file} with --client-key {key_file} cannot be used: "
            f"{_words(error)}"
        ) from None


def connection_fault(error: OSError) -> str:
    """Say in words for an operator why there is no connection, or no trust in the other side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}); name the authority to trust "
            "with --engine-ca-file (a control plane's: --ca-file)"
        )
    if isinstance(error, ssl.SSLError):
        return f"no TLS ({_words(error)}); does it really speak https?"
    return error.strerror or str(error) or type(error).__name__


@dataclass
class ServerCertificate:
    """The certificate of the traffic port; `context` always hands out the newest good one."""

    cert_file: Path
    key_file: Path
    context: ssl.SSLContext = field(init=False)
    _current: ssl.SSLContext = field(init=False)
    _seen: Signature | None = field(init=False)
    _complaint: str = ""

    def __post_init__(self) -> None:
        self._seen = self._signature()
        self.context = self._current = self._load()
        self.context.sni_callback = self._hand_out

    async def watch(self) -> None:
        """Look for changed files until cancelled."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            self.refresh()

    def refresh(self) -> None:
        """Take changed files into use, if they work."""
        seen = self._signature()
        if seen == self._seen and not self._complaint:
            return
        try:
            self._current = self._load()
        except CertificateUnusable as error:
            if str(error) != self._complaint:
                log.warning("certificate_not_reloaded", why=str(error), in_use="the one before")
            self._complaint = str(error)
            return
        self._seen, self._complaint = seen, ""

    def _hand_out(self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        # Called in every handshake, with or without a server name in it.
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(_PROTOCOL)
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=_no_passphrase)
            leaf = x509.load_pem_x509_certificate(self.cert_file.read_bytes())
        except (OSError, ValueError) as error:
            raise CertificateUnusable(
                f"--tls-cert-file {self.cert_file} and --tls-key-file {self.key_file} cannot be "
                f"used: {_words(error)}"
            ) from None
        log.info("certificate_loaded", valid_until=leaf.not_valid_after_utc.isoformat())
        return context

    def _signature(self) -> Signature | None:
        """Give what changes when a file does, a switched symbolic link included."""
        try:
            stats = [path.stat() for path in (self.cert_file, self.key_file)]
        except OSError:
            return None  # loading says which one is missing
        return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)


def _no_passphrase() -> str:
    """Answer for a protected key, which would ask for its passphrase on the terminal."""
    return ""


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not understood").lower().replace("_", " ")
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
