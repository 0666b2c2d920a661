"""What an engine tells of itself when it is looked at."""

from __future__ import annotations

import msgspec


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one scrape of an engine's metrics said; `None` = the engine does not tell."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    preemptions_total: int | None = None
    running_adapters: tuple[str, ...] | None = None
    is_asleep: bool = False  # asleep or paused: answers /health, would hang requests
