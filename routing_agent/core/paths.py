"""Which paths of an engine traffic may reach. Everything else does not exist for clients."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

FORWARDED: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/rerank",
        "/v1/score",
        "/tokenize",
    }
)

# Words of the engines' management calls (vLLM, SGLang, llama.cpp): no pool may add a path with one.
_MANAGEMENT_WORDS: Final = (
    "lora",
    "sleep",
    "wake",
    "pause",
    "resume",
    "continue_generation",
    "abort",
    "reset",
    "flush",
    "server_info",
    "model_info",
    "load",
    "weights",
    "collective_rpc",
    "profile",
    "scale_elastic",
    "slots",
    "props",
    "metrics",
    "health",
    "configure",
    "internal",
    "shutdown",
    "kv_event",
)


def extra_path_fault(path: str) -> str:
    """Say why a pool may not add `path` to what is forwarded, or "" if it may."""
    if not path.startswith("/") or path != unquote(path) or "//" in path or "." in path:
        return "must be a plain absolute path"
    if not path.isascii() or any(c <= " " or c in "?#\\;%" for c in path):
        return "must be a plain absolute path"
    lowered = path.lower()
    for word in _MANAGEMENT_WORDS:
        if word in lowered:
            return f"looks like an engine management call ('{word}')"
    return ""
