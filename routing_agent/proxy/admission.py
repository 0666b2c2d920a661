"""Whether a request may be served at all: its key, its model, its pool and its tenant's limits."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from time import monotonic
from typing import Final

from routing_agent.core import load
from routing_agent.core.adapters import find_adapter, has_failed, pool_awaiting, pool_holding
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.limits import Admission
from routing_agent.core.paths import FORWARDED
from routing_agent.core.table import LOCAL_TENANT, KeyOwner, Model, Table, session_hash
from routing_agent.proxy import which_model
from routing_agent.proxy.errors import ErrorAnswer
from routing_agent.proxy.request import ParsedRequest, RequestRefused
from routing_agent.wire import Adapter, Tenant


class Destination:
    """Where a request is to go: everything but the replica."""

    __slots__ = (
        "asked",
        "charge_tokens",
        "model",
        "of_class",
        "path",
        "pool",
        "prompt_tokens",
        "session",
    )

    def __init__(
        self, model: Model, pool: PoolState, session: int, prompt_tokens: int, charge_tokens: int
    ) -> None:
        self.model = model
        self.pool = pool
        self.session = session
        self.prompt_tokens = prompt_tokens
        self.charge_tokens = charge_tokens
        self.asked = ""  # the model that was asked for, where a rule decided which one answers
        self.path = ""  # how: see `wire.ModelPath`
        self.of_class = ""  # the class it was put in, also where its model has a cascade


BEARER: Final = b"Bearer "
LOWEST_PRIORITY: Final = 9
LONGEST_PRIORITY: Final = 9  # digits; Python refuses to read numbers of thousands of them
LOADING_RETRY_S: Final = 5.0  # a small adapter on a near disk is there by then
FAILED_RETRY_S: Final = 60.0
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
    body: bytes = b"",
) -> Destination:
    """Find model, pool and session of a request; raises `RequestRefused`."""
    adapter = None
    model = table.names.get(request.model)
    if model is None or request.lora is not None:
        model, adapter = _find_adapter(table, caller.tenant, request)
        request.adapter = adapter.served_name
    if not may_call(caller.tenant, model):
        raise RequestRefused(
            ErrorAnswer("model_not_allowed", f"This key may not call '{request.model}'.", "model")
        )
    asked, path = model, ""
    if model.complexity is not None and adapter is None:
        model, path = which_model.by_class(table, model, request, body)
    if not model.pools:
        raise RequestRefused(
            ErrorAnswer(
                "no_replica", f"No pool serves '{model.name}' at present.", retry_after_s=5.0
            )
        )
    session = session_of(table, caller.tenant, request, session_header)
    prompt = load.prompt_tokens(request.prompt_bytes, fleet.bytes_per_token(model))
    pool = fleet.pools[_pool_name(fleet, model, session, prompt)]
    if adapter is not None:
        pool = _pool_holding(fleet, model, pool, adapter)
    if pool.settings.affinity_key == "user" and request.user:
        session = session_hash(
            table.hash_seed,
            caller.tenant.name,
            "user",
            request.user.encode(),
            adapter=request.adapter,
        )
    charge = prompt + load.output_tokens(request.max_tokens)
    found = Destination(model, pool, session, prompt, charge)
    found.asked, found.path, found.of_class = asked.name, path, path
    return found


def _pool_name(fleet: Fleet, model: Model, session: int, prompt_tokens: int) -> str:
    """Give the pool of a session: of those for prompts of this length, where pools differ in it."""
    if not model.has_shapes:
        return model.pool_for(session)
    limit = fleet.shapes.keep((model.name, session), model.limits, prompt_tokens)
    return model.pool_of_shape(session, limit)


def _find_adapter(table: Table, tenant: Tenant, request: ParsedRequest) -> tuple[Model, Adapter]:
    """Find the adapter of a request whose model is none, or that names one beside it."""
    meant = find_adapter(table, tenant.name, request.model, request.lora)
    if meant.model is None or meant.adapter is None:
        raise RequestRefused(ErrorAnswer("model_not_found", meant.problem, meant.param))
    return meant.model, meant.adapter


def _pool_holding(fleet: Fleet, model: Model, first: PoolState, adapter: Adapter) -> PoolState:
    name = adapter.served_name
    pool = pool_holding(fleet.pools, model, first, name)
    pool = pool or pool_awaiting(fleet.pools, model, first, name, monotonic())
    if pool is None:
        raise RequestRefused(not_loaded(fleet, model, adapter))
    return pool


def not_loaded(fleet: Fleet, model: Model, adapter: Adapter) -> ErrorAnswer:
    """Say why a known adapter cannot be called now: it comes, or it could not be loaded."""
    if has_failed(fleet.pools, model, adapter.served_name):
        message = (
            f"Adapter '{adapter.name}' could not be loaded on any replica. Its page says why; "
            "it is tried again now and then."
        )
        return ErrorAnswer("adapter_failed", message, "model", retry_after_s=FAILED_RETRY_S)
    message = f"Adapter '{adapter.name}' is not loaded on any replica yet. Try again shortly."
    return ErrorAnswer("adapter_loading", message, "model", retry_after_s=LOADING_RETRY_S)


def session_of(
    table: Table, tenant: Tenant, request: ParsedRequest, session_header: bytes | None
) -> int:
    """Give a request's session: by header, else by body, else by how its conversation begins."""
    seed, name, adapter = table.hash_seed, tenant.name, request.adapter
    if session_header:
        return session_hash(seed, name, "named", session_header, adapter=adapter)
    if request.session is not None:
        return session_hash(seed, name, "named", request.session.encode(), adapter=adapter)
    return session_hash(seed, name, "found", request.fingerprint, adapter=adapter)


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
    lowered = int(asked) if len(asked) <= LONGEST_PRIORITY else LOWEST_PRIORITY
    return max(tenant.priority, min(lowered, LOWEST_PRIORITY))
