"""LoRA adapters: what is to be held where, and what became of it.

The control plane decides, agents obey, in levels and not in steps:

- `RoutingTable.adapters` lists every version of every adapter that may be called or is about to be.
  One that is not in it does not exist: requests for it get 404 at once, and an agent that finds it
  on an engine unloads it when its last request has ended.
- `Endpoint.adapters` names, by `served_name`, what a replica should hold. The agent on that
  replica's node (`Endpoint.node`) fetches, loads and verifies them once the engine answers, and
  again after the engine was restarted, and unloads what is not named. Other agents only read the
  engine's list. Names that do not end as `served_name` says were loaded by somebody else: they are
  left alone.
- Files come from `GET /api/v1/agent/adapters/{digest}/{file}` with the agent's own token; the
  answer is a stream with a content length. Only what is in the newest table is given out.
- An adapter gets requests only on replicas whose engine was seen to list it, never the base model
  in its place.

Which adapter a request means: `find_adapter` of the agent's core goes by these rules. A public
model's name or alias always means that model. Then a tenant's own adapter by `name`; then one
shared with it by `<owner>/<name>` (an owner may call its own like this as well), or by `name` alone
if exactly one of that name is shared with it. Names are compared as they are written.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from routing_agent.wire.base import Count, Message

AdapterFileName = Literal["adapter_config.json", "adapter_model.safetensors"]
AdapterStage = Literal["fetching", "loading", "loaded", "failed", "unloading"]

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]

# How many hex digits of its digest a served name ends with, after a dot.
SERVED_NAME_DIGITS: Final = 12
# Bytes; a file's name is one of two, so a path below a digest cannot lead anywhere else.
ADAPTER_FILES: Final[tuple[AdapterFileName, ...]] = (
    "adapter_config.json",
    "adapter_model.safetensors",
)


class AdapterFile(Message, frozen=True, kw_only=True):
    """One file of an adapter as it is stored."""

    name: AdapterFileName
    size_bytes: Count
    sha256: Sha256


class Adapter(Message, frozen=True, kw_only=True):
    """One immutable version of a tenant's LoRA adapter.

    A new upload under the same name is a second entry with another digest and `active` false; when
    it is loaded the control plane makes it the active one and drops the old. So at most one entry
    of a tenant's name is active, and requests by name mean that one.
    """

    name: str  # as its tenant calls it
    tenant: str  # slug of the owner
    shared_with: tuple[str, ...] = ()  # slugs of tenants that may call it too
    model: str  # the public base model
    digest: Sha256  # over names, sizes and hashes of the files: see `domain.adapters.digest_of`
    files: tuple[AdapterFile, ...] = ()
    # What engines know it by: `<tenant>.<name>.<12 hex of digest>`. A slug has no dot, so no two
    # tenants' adapters, and no two versions of one, have the same.
    served_name: Annotated[str, Meta(pattern="^[A-Za-z0-9._-]+\\.[0-9a-f]{12}\\Z")]
    size_bytes: Count = 0
    rank: Count = 0  # of its largest module
    pinned: bool = False  # never evicted; for display, placement is decided already
    active: bool = True


class AdapterState(Message, frozen=True, kw_only=True):
    """How far a replica's own agent is with one adapter.

    `loaded` is said only of one that the engine was seen to list.
    """

    served_name: str
    state: AdapterStage
    message: str = ""  # the engine's own words, or ours of a failed fetch; at most 500 characters
    for_s: Annotated[float, Meta(ge=0)] = 0.0  # seconds it has been in this state
    attempts: Count = 0  # loads that failed in a row
