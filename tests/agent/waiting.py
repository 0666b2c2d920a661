"""Waits for conditions instead of for time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within_s: float = 20.0) -> None:
    """Return as soon as `condition` gives something true; fail if it does not in time."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - conditions of other processes raise no event
            await asyncio.sleep(0.005)
