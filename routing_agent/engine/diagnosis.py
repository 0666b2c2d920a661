"""What is wrong with an engine, in words: dead, hung, loading, asleep, draining, busy, another one.

Pure: calls are made elsewhere. Each condition has its own first word, so that people and tests can
tell them apart.
"""

from __future__ import annotations

from typing import Final

from routing_agent.core.engine_errors import Kind, read_error
from routing_agent.core.replica import HUNG, Replica
from routing_agent.engine.base import Driver
from routing_agent.http_client import CallFailed, ConnectionRefused, Response, TimedOut

# How long a reason still says that the engine was restarted.
RESTART_NEWS_S: Final = 60.0
_UNAVAILABLE: Final = 503

_WORDS: Final[dict[Kind, str]] = {
    "unauthorized": "misconfigured: it does not take this agent's key",
    "stopping": "draining: it takes no new requests",
    "dead": "dead: its core has failed; restart it",
    "loading": "loading: its model is not in memory yet",
}


def failed_call(error: CallFailed) -> str:
    """Say what it means that a health page gave no answer."""
    if isinstance(error, ConnectionRefused):
        return f"dead: {error}; its process is gone or not up yet"
    if isinstance(error, TimedOut):
        return f"{HUNG}: {error}"
    return f"broken: {error}"


def bad_page(path: str, response: Response, *, was_ready: bool) -> str:
    """Say what it means that a health page is not good; `was_ready` = this process was, before."""
    error = read_error(response.status, response.body)
    words = _WORDS.get(error.kind)
    detail = f"{path} answered {response.status}" + (f" ({error.message})" if error.message else "")
    if words is not None:
        return f"{words}: {detail}"
    if response.status == _UNAVAILABLE:
        # SGLang and TGI say no more than 503: while they load, are paused, or shut down.
        return f"paused or draining: {detail}" if was_ready else f"loading: {detail}"
    return f"broken: {detail}"


def stuck(running: int, since_s: float) -> str:
    """Say that requests run in an engine and nothing is computed."""
    return f"{HUNG}: {running} requests run in it, and no step was done for {since_s:.0f} s"


def other_models(driver: Driver, wanted: str, listed: tuple[str, ...]) -> str:
    """Say that an engine serves something else; "" = what it should, or it cannot be told."""
    if not driver.lists_all_models or not listed or not wanted or wanted in listed:
        return ""
    names = ", ".join(f"'{name}'" for name in listed[:5])
    return (
        f"another model: it serves {names}, not '{wanted}'; correct the replica's served model"
        " or start the engine with the right one"
    )


def well(replica: Replica, now: float) -> str:
    """Say how a live engine does: plainly, overloaded, or newly started."""
    figures = replica.figures
    words = "answers"
    if figures.waiting:
        words = f"overloaded: {figures.running or 0} requests run in it and {figures.waiting} wait"
    restarted_at = replica.restarted_at
    if restarted_at is not None and now - restarted_at < RESTART_NEWS_S:
        words += f"; restarted {now - restarted_at:.0f} s ago"
    return words


def busy(problem: str) -> str:
    """Say that a bad probe is outweighed by tokens that flow."""
    return f"busy: it generates, though {problem}"
