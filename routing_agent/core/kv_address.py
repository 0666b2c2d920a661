"""Where an engine publishes what its KV cache holds: a pattern of its pool, filled in for each."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from routing_agent.core.address import parse_url
from routing_agent.wire import PoolSettings

_PORT: Final = re.compile(r"\{port(?:\+(\d{1,5}))?\}")


class KvAddress(msgspec.Struct, frozen=True):
    """Addresses of one engine's events, and of what it keeps of them ("": nothing)."""

    events: str
    replay: str = ""


def kv_address(settings: PoolSettings, url: str) -> KvAddress:
    """Fill a pool's patterns in for the engine at `url`."""
    return KvAddress(_filled(settings.kv_events, url), _filled(settings.kv_replay, url))


def _filled(pattern: str, url: str) -> str:
    """Put host and port in the place of {host}, {port} and {port+N}."""
    address = parse_url(url)
    host = f"[{address.host}]" if ":" in address.host else address.host
    text = pattern.replace("{host}", host)
    return _PORT.sub(lambda found: str(address.port + int(found.group(1) or 0)), text)
