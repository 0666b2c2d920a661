"""The planner's steps: what each needs, how it is worked out, and what its result means.

Formulas are those of `capacity`. A step gets all inputs and earlier results by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from controlplane.domain import capacity
from controlplane.domain.amounts import grouped, size
from controlplane.domain.errors import Invalid
from routing_agent.hardware import ACTIVATION_BYTES, MAX_RUNNING_SEQUENCES

BUFFER_BAND: Final = (0.3, 0.5)  # peak of 90 days x 1.3 to 1.5
UTILISATION_BAND: Final = (0.70, 0.85)  # of a fleet at its peak: below is idle, above is risk
# A pool of its own needs two replicas, so that one may fail; with fewer than twice that, pools by
# request length take spare room away from each other instead of protecting it.
REPLICAS_WORTH_SPLITTING: Final = 4

Status = Literal["ok", "warning", "missing"]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step comes to: the formula with its numbers, the result, what that means."""

    value: float
    working: str
    reason: str
    status: Status = "ok"


@dataclass(frozen=True, slots=True)
class Rule:
    """One step: `needs` are inputs or names of steps before this one."""

    name: str
    title: str
    formula: str
    unit: str
    needs: tuple[str, ...]
    work: Callable[[Values], Outcome]


# -- memory ----------------------------------------------------------------------------------------


def _weights(v: Values) -> Outcome:
    each = capacity.BYTES_PER_VALUE[v["weight_dtype"]]
    taken = capacity.weight_bytes(parameters=int(v["parameters"]), dtype=v["weight_dtype"])
    reason = f"Weights in {v['weight_dtype']} take {size(taken)}, and have to fit first."
    return Outcome(taken, f"{grouped(v['parameters'])} × {each:.10g} B", reason)


def _kv_per_token(v: Values) -> Outcome:
    gpus, own = int(v["gpus_per_replica"]), int(v["kv_heads"])
    if not capacity.is_divisible(kv_heads=own, gpus=gpus):
        raise Invalid(
            f"{own} KV heads cannot be dealt out over {gpus} GPUs of a replica: one must be a"
            f" multiple of the other. Choose another number of GPUs.",
            code="contradiction",
            field="gpus_per_replica",
        )
    heads = capacity.held_kv_heads(kv_heads=own, gpus=gpus)
    taken = capacity.kv_bytes_per_token(
        layers=int(v["layers"]), kv_heads=heads, head_dim=int(v["head_size"]), dtype=v["kv_dtype"]
    )
    each = capacity.BYTES_PER_VALUE[v["kv_dtype"]]
    copies = f"; {gpus} GPUs hold {own} heads {gpus // own} times" if heads > own else ""
    working = f"2 × {v['layers']:.0f} × {heads} × {v['head_size']:.0f} × {each:.10g} B"
    reason = (
        f"Every token of a request keeps keys and values, {size(taken)}, until it ends{copies}."
    )
    return Outcome(taken, working, reason)


def _kv_per_request(v: Values) -> Outcome:
    tokens, longest = v["context_tokens"], v.get("longest_context_tokens")
    if longest is not None and tokens > longest:
        raise Invalid(
            f"A context of {grouped(tokens)} tokens is planned for, but the model's longest is"
            f" {grouped(longest)}. Plan for no more than that.",
            code="contradiction",
            field="context_tokens",
        )
    taken = tokens * v["kv_per_token"]
    reason = f"A request that fills {grouped(tokens)} tokens holds {size(taken)} of KV cache."
    return Outcome(taken, f"{grouped(tokens)} × {size(v['kv_per_token'])}", reason)


def _kv_cache(v: Values) -> Outcome:
    memory_gb, gpus = v["gpu_memory_gb"], int(v["gpus_per_replica"])
    given: dict[str, Any] = {
        "memory_bytes": memory_gb * 1e9,
        "memory_share": v["memory_share"],
        "activation_bytes": ACTIVATION_BYTES,
        "weights": v["weights"],
    }
    left = capacity.kv_cache_bytes(gpus=gpus, **given)
    if left <= 0:
        raise _does_not_fit(v, left)
    working = (
        f"{gpus} × ({memory_gb:g} GB × {v['memory_share']:g} − {ACTIVATION_BYTES / 1e9:g} GB)"
        f" − {v['weights'] / 1e9:,.1f} GB"
    )
    reason = f"{size(left)} of a replica's memory are left for its requests."
    return Outcome(left, working, reason)


def _does_not_fit(v: dict[str, Any], left: float) -> Invalid:
    each = v["gpu_memory_gb"] * 1e9 * v["memory_share"] - ACTIVATION_BYTES
    needed = math.floor(v["weights"] / each) + 1 if each > 0 else None
    remedy = f"at least {needed} such GPUs a replica, " if needed else ""
    return Invalid(
        f"The model does not fit: its weights take {size(v['weights'])}, {size(-left)} more than"
        f" {v['gpus_per_replica']:.0f} GPU(s) of {v['gpu_memory_gb']:g} GB have for it."
        f" Take {remedy}larger GPUs or weights in fewer bits.",
        code="does_not_fit",
        field="gpus_per_replica",
    )


def _concurrency(v: Values) -> Outcome:
    n = capacity.concurrency(kv_cache=v["kv_cache"], kv_per_request=v["kv_per_request"])
    working = f"⌊{size(v['kv_cache'])} / {size(v['kv_per_request'])}⌋"
    tokens = f"{grouped(v['context_tokens'])} tokens"
    if n == 0:
        reason = f"Not even one request of {tokens} fits. Take more GPUs or a shorter context."
        return Outcome(n, working, reason, "warning")
    reason = f"A replica holds {grouped(n)} requests of {tokens} at once; shorter ones, more."
    if n > MAX_RUNNING_SEQUENCES:
        reason += (
            f" Memory is not what limits it: vLLM runs {MAX_RUNNING_SEQUENCES} at once unless"
            " --max-num-seqs says otherwise."
        )
    return Outcome(n, working, reason)


# -- load ------------------------------------------------------------------------------------------


def _replicas(v: Values) -> Outcome:
    peak, each, buffer = v["peak_requests_per_s"], v["replica_requests_per_s"], v["buffer_ratio"]
    n = capacity.replicas_needed(peak=peak, per_replica=each, buffer_ratio=buffer)
    working = f"⌈{peak:.10g} / {each:.10g} × {1 + buffer:g}⌉ = ⌈{peak / each * (1 + buffer):.4g}⌉"
    if peak == 0:
        return Outcome(
            n, working, "No load needs no replica; keep one that is to answer at all.", "warning"
        )
    carry = "1 replica carries" if n == 1 else f"{grouped(n)} replicas carry"
    reason = f"{carry} {peak:.10g} requests/s with {buffer * 100:g} % to spare."
    low, high = BUFFER_BAND
    if low <= buffer <= high:
        return Outcome(n, working, reason)
    return Outcome(
        n, working, f"{reason} Usual are {low * 100:.0f} to {high * 100:.0f} %.", "warning"
    )


def _utilisation(v: Values) -> Outcome:
    peak, each, n = v["peak_requests_per_s"], v["replica_requests_per_s"], int(v["replicas"])
    used = capacity.utilisation_at_peak(peak=peak, per_replica=each, replicas=n) or 0.0
    working = f"{peak:.10g} / ({grouped(n)} × {each:.10g})"
    low, high = UTILISATION_BAND
    band = f"the band of {low * 100:.0f} to {high * 100:.0f} %"
    if used > high:
        return Outcome(
            used, working, f"Above {band}: a replica lost at the peak is felt.", "warning"
        )
    if used < low:
        return Outcome(used, working, f"Below {band}: replicas are whole, and buffer is room.")
    return Outcome(used, working, f"Within {band}.")


def _pools(v: Values) -> Outcome:
    n = int(v["replicas"])
    if n < REPLICAS_WORTH_SPLITTING:
        reason = (
            f"One pool is enough: pools by request length need two replicas each,"
            f" so that one may fail, and this load needs {n}."
        )
        return Outcome(1, f"{n} < {REPLICAS_WORTH_SPLITTING}", reason)
    reason = "Pools of their own for short and long requests are possible; one pool is simpler."
    return Outcome(2, f"{grouped(n)} ≥ {REPLICAS_WORTH_SPLITTING}", reason)


def _gpus(v: Values) -> Outcome:
    n, each = int(v["replicas"]), int(v["gpus_per_replica"])
    return Outcome(
        n * each, f"{grouped(n)} × {each}", f"All replicas together hold {grouped(n * each)}."
    )


def _cost(v: Values) -> Outcome:
    gpus, price = int(v["gpus"]), v["gpu_usd_per_hour"]
    cost = capacity.usd_per_month(gpus=gpus, usd_per_hour=price)
    working = f"{grouped(gpus)} × {price:g} USD/h × {capacity.HOURS_PER_MONTH:g} h"
    return Outcome(cost, working, f"{grouped(cost)} USD a month if all run all the time.")


RULES: Final = (
    Rule("weights", "Weights", "parameters × bytes per value", "bytes",
          ("parameters", "weight_dtype"), _weights),
    Rule("kv_per_token", "KV cache of a token",
          "2 × layers × KV heads × head size × bytes per value", "bytes",
          ("layers", "kv_heads", "head_size", "kv_dtype", "gpus_per_replica"), _kv_per_token),
    Rule("kv_per_request", "KV cache of a request", "context length × KV cache of a token",
          "bytes", ("context_tokens", "kv_per_token"), _kv_per_request),
    Rule("kv_cache", "KV cache of a replica",
          "GPUs × (memory × share the engine takes − activations) − weights", "bytes",
          ("gpu_memory_gb", "gpus_per_replica", "memory_share", "weights"), _kv_cache),
    Rule("concurrency", "Requests at once on a replica",
          "KV cache of a replica / KV cache of a request, rounded down", "requests",
          ("kv_cache", "kv_per_request"), _concurrency),
    Rule("replicas", "Replicas", "peak / productivity × (1 + buffer), rounded up", "replicas",
          ("peak_requests_per_s", "replica_requests_per_s", "buffer_ratio"), _replicas),
    Rule("utilisation_at_peak", "Utilisation at the peak", "peak / (replicas × productivity)",
          "ratio", ("peak_requests_per_s", "replica_requests_per_s", "replicas"), _utilisation),
    Rule("pools", "Pools by request length", "one below four replicas, else up to two", "pools",
          ("replicas",), _pools),
    Rule("gpus", "GPUs", "replicas × GPUs of a replica", "GPUs",
          ("replicas", "gpus_per_replica"), _gpus),
    Rule("usd_per_month", "Cost", "GPUs × price × hours of a month", "USD/month",
          ("gpus", "gpu_usd_per_hour"), _cost),
)  # fmt: skip
