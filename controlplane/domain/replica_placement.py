"""On which node a new replica goes, and why the others were passed over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.domain.capacity import kv_cache_bytes

# Activations, CUDA context and graphs of a GPU beside weights and KV cache; what vLLM's profiling
# run finds for 7B to 70B models is 1 to 3 GB.
ACTIVATION_BYTES = 2e9
MEMORY_RATIO = 0.9  # of each GPU's memory: vLLM's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a replica needs of a node."""

    program: str
    gpus: int = 1
    weight_bytes: int | None = None  # None: the version is registered without its facts
    kv_bytes: int = 0  # for one request of full length
    memory_ratio: float = MEMORY_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """A node with what is free on it."""

    name: str
    zone: str = ""
    is_live: bool = True
    programs: tuple[str, ...] = ()  # none: its agent starts no engines
    gpus: Mapping[int, int] = field(default_factory=dict)  # index -> memory in bytes
    held: frozenset[int] = frozenset()
    free_ports: tuple[int, ...] = ()
    replicas: int = 0  # of this pool
    avoided: str = ""  # why it is taken only if there is no other


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A place, or none; `passed` says of every other node why not."""

    node: str | None
    gpus: tuple[int, ...] = ()
    port: int = 0
    reason: str = ""
    passed: Mapping[str, str] = field(default_factory=dict)


def place(need: Need, nodes: Sequence[NodeRoom]) -> Placed:
    """Pick the node for one more replica: other zones first, then the emptiest."""
    passed: dict[str, str] = {}
    fitting: list[NodeRoom] = []
    for node in nodes:
        why = why_not(need, node)
        if why:
            passed[node.name] = why
        else:
            fitting.append(node)
    if not fitting:
        said = "; ".join(f"{name}: {why}" for name, why in passed.items())
        return Placed(node=None, reason=said or "there are no nodes", passed=passed)
    in_zone = {n.zone: sum(m.replicas for m in nodes if m.zone == n.zone) for n in nodes}
    best = min(fitting, key=lambda n: (bool(n.avoided), in_zone[n.zone], n.replicas,
                                       -len(_free(n)), n.name))  # fmt: skip
    for other in fitting:
        if other is not best:
            passed[other.name] = other.avoided or _behind(other, best, in_zone)
    return Placed(
        node=best.name,
        gpus=_chosen(need, best),
        port=best.free_ports[0],
        reason=_praise(best, in_zone),
        passed=passed,
    )


def why_not(need: Need, node: NodeRoom) -> str:
    """Say why a node cannot take the replica; "" = it can."""
    if not node.programs:
        return "its agent starts no engines (--engine-ports)"
    if not node.is_live:
        return "its agent is not heard"
    if need.program not in node.programs:
        return f"its agent may not start {need.program}"
    free = _free(node)
    if len(free) < need.gpus:
        return f"{len(free)} of {len(node.gpus)} GPUs are free, {need.gpus} are needed"
    if not node.free_ports:
        return "all its engine ports are taken"
    return _too_small(need, node)


def _too_small(need: Need, node: NodeRoom) -> str:
    memory = min((node.gpus[i] for i in _chosen(need, node)), default=0)
    if need.weight_bytes is None or not memory:
        return ""  # nothing is known: the engine itself will say
    left = kv_cache_bytes(
        gpus=need.gpus,
        memory_bytes=memory,
        memory_share=need.memory_ratio,
        activation_bytes=ACTIVATION_BYTES,
        weights=need.weight_bytes,
    )
    if left <= 0:
        return (
            f"the weights ({need.weight_bytes / 1e9:.1f} GB) do not fit into {need.gpus} GPU of"
            f" {memory / 1e9:.0f} GB"
        )
    if left < need.kv_bytes:
        return (
            f"{left / 1e9:.1f} GB are left for the KV cache, one request of full length needs"
            f" {need.kv_bytes / 1e9:.1f} GB"
        )
    return ""


def _free(node: NodeRoom) -> list[int]:
    return sorted(set(node.gpus) - node.held)


def _chosen(need: Need, node: NodeRoom) -> tuple[int, ...]:
    """Give the GPUs it would get: the largest free ones, in order."""
    largest = sorted(_free(node), key=lambda i: (-node.gpus[i], i))
    return tuple(sorted(largest[: need.gpus]))


def _praise(node: NodeRoom, in_zone: Mapping[str, int]) -> str:
    zone = f"zone {node.zone}" if node.zone else "no zone"
    return (
        f"{node.name} ({zone} has {in_zone[node.zone]} of the pool, {len(_free(node))} GPUs free)"
    )


def _behind(other: NodeRoom, best: NodeRoom, in_zone: Mapping[str, int]) -> str:
    if in_zone[other.zone] > in_zone[best.zone]:
        return f"zone {other.zone} has {in_zone[other.zone]} of the pool already"
    if other.replicas > best.replicas:
        return f"it has {other.replicas} of the pool already"
    return "as good: the emptier, then the first by name, is taken"
