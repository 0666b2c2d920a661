"""Requests the agent answers itself: the model list, liveness, preflights, and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from routing_agent.core.adapters import find_adapter, is_loaded, listed_names
from routing_agent.core.fleet import Fleet
from routing_agent.core.paths import FORWARDED
from routing_agent.core.table import Model, Table
from routing_agent.proxy.admission import NO_TABLE, may_call, not_loaded
from routing_agent.proxy.errors import ErrorAnswer
from routing_agent.proxy.incoming import Incoming
from routing_agent.wire import Adapter, Tenant

MODELS: Final = "/v1/models"
MODEL_PREFIX: Final = "/v1/models/"
HEALTH: Final = "/healthz"
JSON_LINE: Final = b"content-type: application/json\r\n"

Answer = tuple[int, bytes, bytes]  # status, header lines, body


def allowed_methods(path: str, extra: Iterable[str]) -> tuple[str, ...] | None:
    """Give the methods of a path, or `None` if there is no such path."""
    if path in FORWARDED or path in extra:
        return ("POST", "OPTIONS")
    if path in (MODELS, HEALTH) or path.startswith(MODEL_PREFIX):
        return ("GET", "HEAD", "OPTIONS")
    return None


def needs_key(path: str) -> bool:
    """Say whether a path asks who calls."""
    return path != HEALTH


def preflight(methods: tuple[str, ...]) -> Answer:
    """Answer OPTIONS. No CORS header is set: browsers of other origins are not let in."""
    return 204, b"allow: %b\r\n" % ", ".join(methods).encode(), b""


def method_error(method: str, path: str, methods: tuple[str, ...]) -> tuple[ErrorAnswer, bytes]:
    """Refuse a method, and say which ones there are."""
    allowed = ", ".join(methods)
    error = ErrorAnswer("method_not_allowed", f"{path} takes {allowed}, not {method[:20]}.")
    return error, b"allow: %b\r\n" % allowed.encode()


def answered(incoming: Incoming, fleet: Fleet, extra: Iterable[str]) -> Answer:
    """Answer a request whose path, method and key were found good and that no engine has to see."""
    path = incoming.path
    answer: Answer | ErrorAnswer
    if incoming.method == "OPTIONS":
        answer = preflight(allowed_methods(path, extra) or ())
    elif path == HEALTH:
        answer = health()
    elif fleet.table is None:
        answer = NO_TABLE
    else:
        answer = answer_models(fleet, fleet.table, incoming.caller.tenant, path)
    if isinstance(answer, ErrorAnswer):
        return answer.status, JSON_LINE + answer.headers(), answer.body()
    return answer


def health() -> Answer:
    """Say that this process is alive."""
    return 200, JSON_LINE, b'{"status":"ok"}'


def answer_models(fleet: Fleet, table: Table, tenant: Tenant, path: str) -> Answer | ErrorAnswer:
    """List what this key may call, or describe one model or adapter of it."""
    if path == MODELS:
        entries = [_entry(name, model) for name, model in _callable(table, tenant)]
        entries += _loaded_adapters(fleet, table, tenant)
        return 200, JSON_LINE, msgspec.json.encode({"object": "list", "data": entries})
    wanted = path[len(MODEL_PREFIX) :]
    for name in (wanted, _decoded(wanted)):
        model = table.names.get(name)
        if model is not None and may_call(tenant, model):
            return 200, JSON_LINE, msgspec.json.encode(_entry(name, model))
    return _answer_adapter(fleet, table, tenant, wanted)


def _answer_adapter(
    fleet: Fleet, table: Table, tenant: Tenant, wanted: str
) -> Answer | ErrorAnswer:
    for name in (wanted, _decoded(wanted)):
        meant = find_adapter(table, tenant.name, name, None)
        model, adapter = meant.model, meant.adapter
        if model is None or adapter is None or not may_call(tenant, model):
            continue
        if not is_loaded(fleet.pools, model, adapter.served_name):
            return not_loaded(fleet, model, adapter)
        return 200, JSON_LINE, msgspec.json.encode(_adapter_entry(name, adapter))
    return ErrorAnswer("model_not_found", f"There is no model '{wanted[:200]}'.", "model")


def _loaded_adapters(fleet: Fleet, table: Table, tenant: Tenant) -> list[dict[str, Any]]:
    """Give an entry for each adapter of this tenant that some replica holds, each once."""
    names = table.adapters.get(tenant.name)
    if names is None:
        return []
    found = sorted(listed_names(names).items())
    return [
        _adapter_entry(name, adapter)
        for name, adapter in found
        if may_call(tenant, model := table.models[adapter.model])
        and is_loaded(fleet.pools, model, adapter.served_name)
    ]


def _adapter_entry(name: str, adapter: Adapter) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "signalbox",
        "root": name,
        "parent": adapter.model,
    }


def _callable(table: Table, tenant: Tenant) -> Iterable[tuple[str, Model]]:
    return sorted((name, model) for name, model in table.names.items() if may_call(tenant, model))


def _entry(name: str, model: Model) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "signalbox",
        "root": model.name,
    }
    if model.context_tokens is not None:
        entry["max_model_len"] = model.context_tokens
    return entry


def _decoded(text: str) -> str:
    return unquote(text, errors="replace")
