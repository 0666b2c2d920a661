"""Addresses of engines, taken apart once and strictly."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens."""

    host: str
    port: int
    is_tls: bool
    authority: str  # as the Host header wants it


def parse_url(url: str) -> Address:
    """Take `http(s)://host:port` apart; an IPv6 host stands in brackets. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not http(s)://host:port (an IPv6 host needs brackets)")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("has more than scheme, host and port")
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    return Address(parts.hostname, port, is_tls, parts.netloc)


def url_fault(url: str) -> str:
    """Say what is wrong with an engine's address, or "" if it is fine."""
    if not url.isascii() or not is_safe_header(url):
        return f"address '{url}': has characters that no address may have"
    try:
        parse_url(url)
    except ValueError as fault:
        return f"address '{url}': {fault}"
    return ""


def is_safe_header(text: str) -> bool:
    """Say whether `text` can stand in an HTTP header as it is."""
    return text.isascii() and (text.isprintable() or not text)
