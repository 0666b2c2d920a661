"""Sending to webhooks: signed, to the address that was checked, within one deadline.

Only http and https, no user info, no redirects. The name is resolved once and the connection made
to that address, so that it cannot change between check and use. Addresses of this machine's own
network links (169.254.0.0/16, fe80::/10: cloud metadata lives there), what clouds have elsewhere
for metadata, multicast and the like are refused, also within IPv6; private ones are not, since that
is where receivers usually are.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from controlplane.domain.errors import Invalid

LIMIT_S: Final = 5.0
SIGNATURE_HEADER: Final = "x-signalbox-signature"
# Metadata services outside link-local: Amazon and Google over IPv6, Alibaba, Oracle, Azure.
METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in (
        *("fd00:ec2::254", "fd20:ce::254"),
        *("100.100.100.200", "192.0.0.192", "168.63.129.16"),
    )
)
NAT64: Final = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last 32 bits are IPv4


class NotDelivered(Exception):
    """A message did not arrive; the words hold no part of the address but its host."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent, and how it is signed."""

    message_id: str
    body: bytes
    secret: str
    at_s: int

    @property
    def headers(self) -> dict[str, str]:
        """Give the headers: the receiver checks the signature over time and body."""
        return {
            "content-type": "application/json",
            "user-agent": "signalbox-webhook",
            "x-signalbox-message": self.message_id,
            SIGNATURE_HEADER: signature(self.secret, self.at_s, self.body),
        }


def signature(secret: str, at_s: int, body: bytes) -> str:
    """Sign a body: `t=<Unix seconds>,v1=<hex HMAC-SHA256 over "t.body">`."""
    told = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={told}"


def checked_url(url: str) -> SplitResult:
    """Take an address apart if messages may go there.

    Raises:
        Invalid: another scheme, user info, no host, or a port that is none.
    """
    try:
        parts = urlsplit(url)
        port_is_sound = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_sound = urlsplit(""), False
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_sound:
        raise Invalid("url must be http://host/… or https://host/….", field="url")
    if parts.username is not None or parts.password is not None:
        raise Invalid("url must not carry a user or password.", field="url")
    if any(c.isspace() or not c.isprintable() for c in url) or not url.isascii():
        raise Invalid("url must be plain ASCII without spaces.", field="url")
    literal = _literal(parts.hostname)
    if literal is not None and not is_allowed(literal):
        raise Invalid(f"Messages do not go to {parts.hostname}.", field="url")
    return parts


def origin(url: str) -> str:
    """Give what may be shown of an address: the rest may be a credential."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def is_allowed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Say whether messages may go to an address."""
    inner = _ipv4_within(address)
    if inner is not None:
        return is_allowed(inner)
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    return address not in METADATA and str(address) != "255.255.255.255"


def _ipv4_within(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | None:
    """Give the IPv4 address that an IPv6 one leads to: mapped, 6to4 or NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def send(url: str, message: Message) -> int:
    """Send one message and give the status of the answer.

    Raises:
        NotDelivered: nobody answered in time, or the address may not be used.
    """
    try:
        parts = checked_url(url)
        connection = _connection(parts)
    except Invalid as problem:
        raise NotDelivered(problem.message) from problem
    except (OSError, UnicodeError) as error:
        raise NotDelivered(_words(error)) from error
    # A timeout is of one read: who answers byte by byte is cut off by the clock.
    deadline = time.monotonic() + LIMIT_S
    cut = threading.Timer(LIMIT_S, _cut, [connection.sock])
    cut.start()
    try:
        status = _exchange(connection, parts, message)
    except (OSError, http.client.HTTPException) as error:
        late = time.monotonic() >= deadline
        raise NotDelivered(_words(TimeoutError() if late else error)) from error
    finally:
        cut.cancel()
        connection.close()
    if time.monotonic() >= deadline:
        raise NotDelivered(_words(TimeoutError()))
    return status


def _exchange(connection: http.client.HTTPConnection, parts: SplitResult, message: Message) -> int:
    if isinstance(connection.sock, ssl.SSLSocket):
        connection.sock.do_handshake()
    path = parts.path or "/"
    target = f"{path}?{parts.query}" if parts.query else path
    connection.request("POST", target, message.body, message.headers)
    return connection.getresponse().status


def _cut(connected: socket.socket) -> None:
    """End both directions below TLS: whoever reads sees the end at once."""
    with suppress(OSError):  # it is closed already
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {LIMIT_S:g} s"
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'no answer'}"


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _connection(parts: SplitResult) -> http.client.HTTPConnection:
    """Connect to an address of the host that may be used."""
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = found[0][4][0]
    if not is_allowed(ipaddress.ip_address(str(address).partition("%")[0])):
        raise NotDelivered(f"{host} is an address that messages do not go to")
    plain = socket.create_connection((str(address), port), timeout=LIMIT_S)
    connection = http.client.HTTPConnection(host, port, timeout=LIMIT_S)
    connection.sock = plain
    if parts.scheme == "https":
        try:
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(
                plain, server_hostname=host, do_handshake_on_connect=False
            )
        except OSError:
            plain.close()
            raise
        connection.default_port = 443
    return connection
