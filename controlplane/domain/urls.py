"""Which URLs may name a replica or an agent, and the one spelling they are kept in."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from controlplane.domain.errors import Invalid

DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})?(\.[a-z0-9_]([a-z0-9_-]{0,62})?)*\.?\Z"
)
_EXAMPLE = "for example http://10.0.0.7:8000 or http://[fd00::7]:8000"


def checked_origin(text: str, *, field: str = "url") -> str:
    """Give `scheme://host:port` in its one spelling, so that one address is one string.

    Raises:
        Invalid: with what is wrong and how it should look.
    """
    if text != text.strip() or not text.isprintable() or " " in text:
        raise Invalid(
            f"The URL contains spaces or control characters; write it {_EXAMPLE}.", field=field
        )
    parts = _split(text, field)
    try:
        port = parts.port
    except ValueError as error:
        raise Invalid(
            f"{text!r} is not a URL ({error}); write it {_EXAMPLE}.", field=field
        ) from error
    _refuse_extras(text, parts, field)
    host = _checked_host(text, parts, field)
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    if port == 0:
        raise Invalid(f"{text!r} has port 0; name the port the server listens on.", field=field)
    return f"{parts.scheme}://{host}:{port}"


def _split(text: str, field: str) -> SplitResult:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise Invalid(
            f"{text!r} is not a URL ({error}); write it {_EXAMPLE}.", field=field
        ) from error
    place = parts.netloc.rpartition("@")[2]
    if place.count(":") > 1 and not place.startswith("["):
        raise Invalid(
            f"{text!r} has an IPv6 address without brackets; write {parts.scheme}://[address]:port.",
            field=field,
        )
    return parts


def _refuse_extras(text: str, parts: SplitResult, field: str) -> None:
    if parts.scheme not in DEFAULT_PORTS:
        raise Invalid(f"{text!r} does not start with http:// or https://.", field=field)
    if parts.username is not None or parts.password is not None:
        raise Invalid(
            "Leave user and password out of the URL; set `credential` instead.", field=field
        )
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise Invalid(
            f"{text!r} names more than a host and port; leave out what follows, {_EXAMPLE}.",
            field=field,
        )


def _checked_host(text: str, parts: SplitResult, field: str) -> str:
    if parts.netloc.startswith("["):
        return f"[{_checked_ipv6(parts.hostname or '', text, field)}]"
    host = parts.hostname or ""
    if not _HOST_NAME.match(host):
        raise Invalid(f"{text!r} has no usable host name; write it {_EXAMPLE}.", field=field)
    return host


def _checked_ipv6(host: str, text: str, field: str) -> str:
    try:
        return ipaddress.IPv6Address(host).compressed
    except ValueError as error:
        raise Invalid(
            f"{text!r} has no valid IPv6 address in its brackets.", field=field
        ) from error
