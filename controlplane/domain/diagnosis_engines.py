"""Why GPU use is low, and why memory is short: each in its fixed order."""

from __future__ import annotations

from typing import Final

from controlplane.domain import latency, rollups
from controlplane.domain.diagnosis_steps import MORE_REQUESTS, Evidence, Step, unknown

FEW_RUNNING: Final = 1.0  # requests at once a replica: below, cards wait for work


def gpu_low_steps(seen: Evidence) -> tuple[Step, ...]:
    """Say whether there is too little work, or work that is bound by decoding."""
    return _few_requests(seen), _decode_bound(seen)


def _few_requests(seen: Evidence) -> Step:
    running = rollups.running(seen.now) if seen.now else None
    was = rollups.running(seen.before) if seen.before else None
    title = "Too few requests"
    if running is None or not seen.ready:
        return unknown("few-requests", title, running, was, "running", "no engine tells its load")
    each = running / seen.ready
    use = "" if seen.utilization is None else f", GPUs at {seen.utilization * 100:.0f} %"
    return Step(
        name="few-requests",
        title=title,
        now=f"{running:.1f} running on {seen.ready} replicas{use}",
        before="—" if was is None else f"{was:.1f} running",
        verdict="yes" if each < FEW_RUNNING else "no",
        reason=f"{each:.1f} requests at once a replica; below {FEW_RUNNING:g} cards wait for work.",
        cause=f"Too few requests: {each:.1f} at once on each of {seen.ready} replicas.",
        remedy="Fewer replicas carry this load; the planner says how many.",
    )


def _decode_bound(seen: Evidence) -> Step:
    title = "Bound by decoding"
    tpot = latency.percentile(seen.now.tpot, 0.99) if seen.now else None
    if seen.now is None or tpot is None:
        return unknown("decode-bound", title, tpot, None, "s", "no stream tells a TPOT")
    fresh = seen.now.prompt_tokens - seen.now.cached_tokens
    is_bound = seen.now.output_tokens > fresh and tpot <= seen.tpot_promised_s
    return Step(
        name="decode-bound",
        title=title,
        now=f"TPOT P99 {tpot * 1000:.1f} ms",
        before=f"objective {seen.tpot_promised_s * 1000:.1f} ms",
        verdict="yes" if is_bound else "no",
        reason=f"{seen.now.output_tokens:,} tokens generated, {fresh:,} read: decoding waits for"
        " memory, which utilisation does not show.",
        cause="The work is bound by decoding: utilisation is low and TPOT within its objective."
        " That is no fault.",
        remedy="Look at TPOT instead; more requests at once would use the cards better.",
    )


def oom_steps(seen: Evidence) -> tuple[Step, ...]:
    """Look at concurrency, then lengths, then how KV values are kept."""
    return _concurrency(seen), _lengths(seen), _kv_dtype(seen)


def _concurrency(seen: Evidence) -> Step:
    running = rollups.running(seen.now) if seen.now else None
    was = rollups.running(seen.before) if seen.before else None
    title = "Requests at once"
    if running is None or was is None:
        return unknown("concurrency", title, running, was, "running", "no engine tells its load")
    is_more = running >= MORE_REQUESTS * was and running >= FEW_RUNNING
    limit = "no limit is told" if seen.max_running is None else f"limit {seen.max_running} each"
    return Step(
        name="concurrency",
        title=title,
        now=f"{running:.1f} running ({limit})",
        before=f"{was:.1f} running",
        verdict="yes" if is_more else "no",
        reason="Each request at once holds KV memory for all its tokens.",
        cause=f"More requests run at once: {running:.1f}, {was:.1f} before.",
        remedy="Lower the pool's concurrency a replica, or add replicas.",
    )


def _lengths(seen: Evidence) -> Step:
    running = rollups.running(seen.now) if seen.now else None
    title = "Length of contexts"
    if running is None or seen.kv_capacity_tokens is None or not seen.ready:
        return unknown("lengths", title, None, None, "", "no engine tells its KV capacity")
    room = seen.kv_capacity_tokens * seen.ready / max(running, 1.0)
    longest = seen.context_tokens
    is_short = longest is not None and longest > room
    told = "not declared" if longest is None else f"{longest:,} tokens"
    return Step(
        name="lengths",
        title=title,
        now=f"room for {room:,.0f} tokens each",
        before=f"longest context {told}",
        verdict="yes" if is_short else "no" if longest is not None else "no data",
        reason="KV memory of the replicas over the requests that run now.",
        cause=f"Contexts may be longer ({told}) than the memory each running request has"
        f" ({room:,.0f} tokens).",
        remedy="Lower the engine's maximum length, or send long requests to a pool of their own.",
    )


def _kv_dtype(seen: Evidence) -> Step:
    is_wide = seen.kv_dtype in {"bf16", "fp16", "fp32"}
    usage = "—" if seen.kv_usage_max is None else f"{seen.kv_usage_max * 100:.0f} %"
    return Step(
        name="kv-dtype",
        title="KV quantisation",
        now=f"{seen.kv_dtype or 'not declared'}, fullest replica {usage}",
        verdict="yes" if is_wide else "no" if seen.kv_dtype else "no data",
        reason="8 bits a value instead of 16 hold twice the tokens.",
        cause=f"KV values are kept as {seen.kv_dtype}; quantised they would take half.",
        remedy="Start the engines with an FP8 KV cache, once quality was checked.",
    )
