"""How a report becomes fields of Redis hashes, and back. Pure.

Fields of a pool's step: `t12` TTFT bucket 12 (`p` TPOT, `e` end to end, `q` queue wait, `w` wait in
the engines' own queues), `s200` answers with that status, `pt` `ct` `ot` prompt, cached and output
tokens, `rt` retries, `sh` shed, and `r/<replica>` = "running waiting kv requests errors prompt
cached output preempted", `-` for unknown. A minute also has `n15`, requests in the step that began
15 s into it, which is there if anybody reported then, and `g/<replica>`, what was told of its
gauges: how often and the sum, of running, waiting and KV usage, and the highest KV usage.
What was counted over more than a step (after an outage) is a stretch: the same fields, a replica's
without its gauges; `spreading` says how it is read.

Subjects: a pool is called by its slug; minutes are also kept of `<pool>@<version>` and of
`tenant/<slug>`, which roll-ups read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from controlplane.telemetry import spreading
from controlplane.telemetry.snapshots import GpuStep, PoolStep, ReplicaStep
from routing_agent.wire import PoolDelta, ReplicaReport, Report

STEP_S = spreading.STEP_S
SUMMARY_S = 60
MINUTES = {"minute": SUMMARY_S}
KINDS = {"pool": STEP_S} | MINUTES
GROUP = 500  # four words a replica in one call, and Lua unpacks some 8,000
HISTOGRAMS = {
    "t": "ttft", "p": "tpot", "e": "e2e", "q": "queue_wait", "w": "engine_queue_wait",
}  # fmt: skip
_REPORT = msgspec.json.Decoder(Report)


def operations(report: Report, now: float, *, keep_s: int) -> str:
    """Give what booking this report does, as the JSON that the script in `recent.py` reads."""
    step = int(now) // STEP_S * STEP_S
    minute = int(now) // SUMMARY_S * SUMMARY_S
    add = additions(report, now)
    gpus = {f"{step - minute}/{gpu.index}": gpu_text(gpu) for gpu in report.node.gpus}
    return json.dumps(
        {
            "agent": report.agent,
            "started": repr(report.started_at),
            "number": report.number,
            "now": round(now, 3),
            "keep": keep_s,
            "step": STEP_S,
            "minute": SUMMARY_S,
            "add": add,
            "told": told(report),
            "stretched": [subject_and_stretch(k) for k in add if k.startswith("sb:stretch:")],
            "put": {f"sb:gpu:{report.agent}:{minute}": gpus} if gpus else {},
            "replicas": replica_groups(report.replicas),
        },
        allow_nan=False,
    )


def additions(report: Report, now: float) -> dict[str, dict[str, int]]:
    """Give what is added to which field of which hash: of this step, or of the time covered."""
    stretch = spreading.covered(now=now, covers_s=report.covers_s, taken_ago_s=report.taken_ago_s)
    add: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    second = int(now) // STEP_S * STEP_S - int(now) // SUMMARY_S * SUMMARY_S
    for subject, kinds, fields in counted(report):
        for key in keys(subject, kinds, now, stretch):
            for name, n in fields.items():
                add[key][name] += n
        if stretch is None:
            (minute,) = keys(subject, MINUTES, now, None)
            add[minute][f"n{second}"] += sum(n for f, n in fields.items() if is_status(f))
    for pool in {r.pool for r in report.replicas if r.pool}:
        (minute,) = keys(pool, MINUTES, now, None)
        add[minute][f"n{second}"] += 0  # heard of, busy or not
    return add


def is_status(field: str) -> bool:
    """Say whether a field counts answers with one HTTP status."""
    return field[0] == "s" and field[1:].isdigit()


def counted(report: Report) -> Iterator[tuple[str, Mapping[str, int], dict[str, int]]]:
    """Give each subject that a report counts something of: its name, hashes, and fields."""
    for delta in report.pools:
        fields = pool_fields(delta)
        yield delta.pool, KINDS, fields
        yield f"{delta.pool}@{delta.version}", MINUTES, fields
    for tenant in report.tenants:
        fields = {f"s{status}": n for status, n in tenant.requests.items()}
        fields |= {"pt": tenant.prompt_tokens, "ot": tenant.output_tokens}
        yield f"tenant/{tenant.tenant}", MINUTES, fields


def told(report: Report) -> list[str]:
    """Name what a report tells of: subjects, and its agent where it has GPUs."""
    subjects = {subject for subject, _, _ in counted(report)}
    subjects |= {r.pool for r in report.replicas if r.pool}
    return sorted(subjects | ({f"gpu/{report.agent}"} if report.node.gpus else set()))


def subject_and_stretch(key: str) -> tuple[str, str]:
    """Give the subject of a stretch's key, and `begin:end`."""
    subject, begin, end = key.removeprefix("sb:stretch:").rsplit(":", 2)
    return subject, f"{begin}:{end}"


def keys(
    subject: str, kinds: Mapping[str, int], now: float, stretch: tuple[int, int] | None
) -> list[str]:
    """Give the hashes that a subject's counts belong to."""
    if stretch is not None:
        return [f"sb:stretch:{subject}:{stretch[0]}:{stretch[1]}"]
    return [f"sb:{kind}:{subject}:{int(now) // s * s}" for kind, s in kinds.items()]


def pool_fields(delta: PoolDelta) -> dict[str, int]:
    """Give the counters that one pool's delta adds to; zero adds nothing."""
    fields: dict[str, int] = {}
    for letter, name in HISTOGRAMS.items():
        for bucket, n in getattr(delta, name).items():
            fields[f"{letter}{bucket}"] = n
    for status, n in delta.requests.items():
        fields[f"s{status}"] = n
    fields |= {
        "pt": delta.prompt_tokens,
        "ct": delta.cached_prompt_tokens,
        "ot": delta.output_tokens,
        "rt": delta.retries,
        "sh": delta.shed,
    }
    return {name: n for name, n in fields.items() if n}


def replica_groups(replicas: Iterable[ReplicaReport]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Give what replicas' figures do by pool, at most as many together as one call can carry."""
    pools: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for replica in replicas:
        if replica.pool:
            pools[replica.pool].append(replica_operation(replica))
    return [
        (pool, members[first : first + GROUP])
        for pool, members in pools.items()
        for first in range(0, len(members), GROUP)
    ]


def replica_operation(replica: ReplicaReport) -> dict[str, Any]:
    """Give what one replica's figures do: gauges replace, counters become differences."""
    gauges = (replica.engine_running, replica.engine_waiting, replica.kv_usage)
    return {
        "field": f"r/{replica.replica}",
        "gauges": " ".join("-" if g is None else f"{g:g}" for g in gauges),
        "totals": [
            replica.requests_total,
            replica.errors_total,
            replica.prompt_tokens_total,
            replica.cached_prompt_tokens_total,
            replica.output_tokens_total,
        ],
        "running": replica.engine_running,
        "waiting": replica.engine_waiting,
        "kv": replica.kv_usage,
        "preempted": replica.preemptions_total,
        "process": replica.process_started_at,
    }


def gpu_text(gpu: Any) -> str:
    """Pack one GPU's readings."""
    readings = (gpu.utilization_ratio, gpu.memory_used_bytes, gpu.temperature_celsius)
    return " ".join("-" if r is None else f"{r:.12g}" for r in readings)


def newest(report: Report, now: float) -> bytes:
    """Keep of a report what pages show: no histograms, no records of requests."""
    slim = msgspec.structs.replace(report, pools=(), tenants=(), usage=(), records=())
    return f"{now:.3f}\n".encode() + msgspec.json.encode(slim)


def read_newest(blob: bytes) -> tuple[Report, float] | None:
    """Give a stored report and when it came; None for one of an unknown form."""
    at, _, body = blob.partition(b"\n")
    try:
        return _REPORT.decode(body), float(at)
    except (msgspec.DecodeError, ValueError):
        return None


def read_stretch(member: bytes, fields: Mapping[bytes, bytes]) -> spreading.Stretch:
    """Give a stored stretch; `member` is its `begin:end`."""
    begin, _, end = member.partition(b":")
    return spreading.Stretch(begin_s=int(begin), end_s=int(end), fields=fields)


def read_pool(row: Mapping[bytes, bytes]) -> PoolStep:
    """Turn the fields of a pool's step back into figures."""
    histograms: dict[str, dict[int, int]] = {name: {} for name in HISTOGRAMS.values()}
    requests: dict[str, int] = {}
    replicas: dict[str, ReplicaStep] = {}
    gauges: dict[str, str] = {}
    reported: dict[int, int] = {}
    counts: dict[str, int] = {}
    for raw, value in row.items():
        name = raw.decode()
        if name.startswith("r/"):
            replicas[name[2:]] = read_replica(value.decode())
        elif name.startswith("g/"):
            gauges[name[2:]] = value.decode()
        elif name[0] == "n" and name[1:].isdigit():
            reported[int(name[1:])] = int(value)
        elif is_status(name):
            requests[name[1:]] = int(value)
        elif name[0] in HISTOGRAMS and name[1:].isdigit():
            histograms[HISTOGRAMS[name[0]]][int(name[1:])] = int(value)
        else:
            counts[name] = int(value)
    return PoolStep(
        histograms=histograms,
        requests=requests,
        prompt_tokens=counts.get("pt", 0),
        cached_tokens=counts.get("ct", 0),
        output_tokens=counts.get("ot", 0),
        retries=counts.get("rt", 0),
        shed=counts.get("sh", 0),
        replicas={n: with_means(r, gauges[n]) if n in gauges else r for n, r in replicas.items()},
        reported=reported,
    )


def read_replica(text: str) -> ReplicaStep:
    """Unpack one replica's figures."""
    running, waiting, kv, *counts = text.split(" ")
    requests, errors, prompt, cached, output = (int(c) for c in counts[:5])
    preempted = counts[5] if len(counts) > 5 else "-"
    return ReplicaStep(
        running=None if running == "-" else int(float(running)),
        waiting=None if waiting == "-" else int(float(waiting)),
        kv_usage=None if kv == "-" else float(kv),
        requests=requests,
        errors=errors,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        preemptions=None if preempted == "-" else int(preempted),
    )


def with_means(replica: ReplicaStep, text: str) -> ReplicaStep:
    """Give a replica's minute with the means of its gauges in place of the last ones."""
    times_running, running, times_waiting, waiting, times_kv, kv, kv_max = map(
        float, text.split(" ")
    )
    return replace(
        replica,
        running=running / times_running if times_running else None,
        waiting=waiting / times_waiting if times_waiting else None,
        kv_usage=kv / times_kv if times_kv else None,
        kv_max=kv_max if times_kv else None,
    )


def read_gpus(
    row: Mapping[bytes, bytes], minute: int, *, into: dict[int, dict[int, GpuStep]]
) -> None:
    """Unpack a minute of GPU readings into `into[step][gpu index]`."""
    for raw, value in row.items():
        offset, _, index = raw.decode().partition("/")
        readings = [None if r == "-" else float(r) for r in value.decode().split(" ")]
        into.setdefault(minute + int(offset), {})[int(index)] = GpuStep(
            utilization=readings[0],
            memory_used_bytes=readings[1],
            temperature_celsius=readings[2],
        )
