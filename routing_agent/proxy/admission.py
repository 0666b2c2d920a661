"""Whether a request may be served at all: its key, its model, its pool and its tenant's limits."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec

from routing_agent.core import load
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.limits import Admission
from routing_agent.core.paths import FORWARDED
from routing_agent.core.table import LOCAL_TENANT, KeyOwner, Model, Table, session_hash
from routing_agent.proxy.errors import ErrorAnswer
from routing_agent.proxy.request import ParsedRequest, RequestRefused
from routing_agent.wire import Tenant


class Destination(msgspec.Struct):
    """Where a request is to go: everything but the replica."""

    model: Model
    pool: PoolState
    session: int
    prompt_tokens: int
    charge_tokens: int


BEARER: Final = b"Bearer "
LOWEST_PRIORITY: Final = 9
NO_TABLE: Final = ErrorAnswer(
    "no_table", "This agent has no routing table yet. Try again shortly.", retry_after_s=2.0
)


def identify(table: Table, authorization: bytes | None, *, wall: float) -> KeyOwner | ErrorAnswer:
    """Find out who calls, from the `Authorization` header."""
    if table.open_access:
        return KeyOwner("", table.tenants.get(LOCAL_TENANT.name, LOCAL_TENANT))
    if not authorization:
        return ErrorAnswer(
            "missing_api_key", "No API key: send it as 'Authorization: Bearer YOUR_KEY'."
        )
    if authorization[:7] != BEARER:
        scheme, _, secret = authorization.partition(b" ")
        authorization = BEARER + secret.strip() if scheme.lower() == b"bearer" else b""
    owner = table.keys.get(sha256(authorization[7:]).digest())
    if owner is None:
        return ErrorAnswer("invalid_api_key", "This API key is not known. Check it or ask for one.")
    if owner.expires_at is not None and owner.expires_at <= wall:
        return ErrorAnswer("expired_api_key", "This API key has expired. Ask for a new one.")
    if owner.tenant.suspended:
        return ErrorAnswer("tenant_suspended", f"Tenant '{owner.tenant.name}' is suspended.")
    return owner


def may_call(tenant: Tenant, model: Model) -> bool:
    """Say whether a tenant may call a model."""
    return not tenant.models or model.name in tenant.models


def find_destination(
    fleet: Fleet,
    table: Table,
    caller: KeyOwner,
    request: ParsedRequest,
    session_header: bytes | None,
) -> Destination:
    """Find model, pool and session of a request; raises `RequestRefused`."""
    model = table.names.get(request.model)
    if model is None:
        raise RequestRefused(
            ErrorAnswer("model_not_found", f"There is no model '{request.model}'.", "model")
        )
    if not may_call(caller.tenant, model):
        raise RequestRefused(
            ErrorAnswer("model_not_allowed", f"This key may not call '{request.model}'.", "model")
        )
    if not model.pools:
        raise RequestRefused(
            ErrorAnswer(
                "no_replica", f"No pool serves '{model.name}' at present.", retry_after_s=5.0
            )
        )
    session = session_of(table, caller.tenant, request, session_header)
    pool = fleet.pools[model.pool_for(session)]
    if pool.settings.affinity_key == "user" and request.user:
        session = session_hash(table.hash_seed, caller.tenant.name, "user", request.user.encode())
    prompt = load.prompt_tokens(request.prompt_bytes, model.bytes_per_token)
    charge = prompt + load.output_tokens(request.max_tokens)
    return Destination(model, pool, session, prompt, charge)


def session_of(
    table: Table, tenant: Tenant, request: ParsedRequest, session_header: bytes | None
) -> int:
    """Give a request's session: by header, else by body, else by how its conversation begins."""
    seed, name = table.hash_seed, tenant.name
    if session_header:
        return session_hash(seed, name, "named", session_header)
    if request.session is not None:
        return session_hash(seed, name, "named", request.session.encode())
    return session_hash(seed, name, "found", request.fingerprint)


def quota_refusal(caller: KeyOwner, admission: Admission) -> RequestRefused:
    """Give the refusal of a request that its tenant's limits do not let in."""
    message = f"Tenant '{caller.tenant.name}': {admission.reason}. Try again later."
    return RequestRefused(
        ErrorAnswer(
            "rate_limit_exceeded",
            message,
            retry_after_s=admission.retry_after_s,
            limit=admission.limit,
        )
    )


def check_pool(pool: PoolState, path: str, body_bytes: int) -> None:
    """Hold a request against what its pool takes; raises `RequestRefused`."""
    limit = pool.settings.body_limit_bytes
    if body_bytes > limit:
        raise RequestRefused(body_too_large(limit))
    if path not in FORWARDED and path not in pool.settings.extra_paths:
        raise RequestRefused(ErrorAnswer("unknown_path", f"This model does not serve {path}."))


def body_too_large(limit_bytes: int) -> ErrorAnswer:
    """Give the answer to a body above the limit."""
    return ErrorAnswer("body_too_large", f"The body is larger than {limit_bytes} bytes.")


def priority(tenant: Tenant, given: Mapping[bytes, bytes]) -> int:
    """Give a request's class: its tenant's, or a lower one (a higher number) if it asks for it."""
    asked = given.get(b"x-signalbox-priority", b"")
    if not asked.isdigit():
        return tenant.priority
    return max(tenant.priority, min(int(asked), LOWEST_PRIORITY))
