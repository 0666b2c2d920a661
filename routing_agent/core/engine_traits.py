"""How engines of one make behave that the relay must reckon with; seen at real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from routing_agent.wire import EngineName

# How long an engine may work on for a plain answer whose client has left: closing the connection
# stops streams within 0.4 s everywhere, but SGLang 0.5.23 was still generating 2.3 s after a plain
# request was dropped and llama.cpp up to 1.4 s. For so long its charge stays: a replica must not
# look free while it is not. Longer work shows in its own figures, scraped every second.
LINGER_S: Final[Mapping[EngineName, float]] = {"sglang": 5.0, "llamacpp": 1.5}


def linger_s(engine: EngineName, *, is_stream: bool) -> float:
    """Give how long a request that was broken off keeps its charge."""
    return 0.0 if is_stream else LINGER_S.get(engine, 0.0)


def adapter_model(engine: EngineName, base: str, served_name: str) -> str | None:
    """Give the `model` that asks an engine for an adapter; `None`: it cannot be asked for one.

    To SGLang it is base:adapter. The adapter's name alone would be served by the base model, as a
    200 that repeats the name.
    """
    if engine == "sglang":
        return f"{base}:{served_name}"
    return served_name if engine in ("vllm", "tgi") else None
