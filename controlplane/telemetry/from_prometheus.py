"""Charts of pools as Prometheus has them: which named queries make which chart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from controlplane.telemetry import queries, series
from controlplane.telemetry.prometheus import Answered, Prometheus
from controlplane.telemetry.snapshots import PROMETHEUS, NoData, SeriesSet, Window

SCRAPES_S = 30  # two scrapes at least: a rate needs two samples
Ask = Callable[[queries.Query], Answered | NoData]


def pool_chart(
    client: Prometheus | None, pool: str, chart: str, window: Window
) -> SeriesSet | NoData | None:
    """Ask Prometheus; None when it is not configured or does not hold this chart."""
    if client is None or chart not in CHARTS:
        return None
    span = f"{max(window.span_s, SCRAPES_S)}s"

    def ask(query: queries.Query) -> Answered | NoData:
        return client.over(query.text(pool=pool, range=span), query.label, window)

    unit, read = CHARTS[chart]
    answered = read(ask, window)
    if isinstance(answered, NoData):
        return answered
    found = SeriesSet(
        window=window,
        unit=unit,
        series=answered.rows,
        source=PROMETHEUS,
        note=" ".join([*answered.warnings, client.skew_note()]).strip(),
    )
    return NoData("Prometheus has no samples in this window.") if found.is_empty else found


def _lines(named: Mapping[str, queries.Query]) -> Callable[[Ask, Window], Answered | NoData]:
    """Make each line of its own query."""

    def read(ask: Ask, window: Window) -> Answered | NoData:
        whole = Answered(rows={})
        for name, query in named.items():
            answer = ask(query)
            if isinstance(answer, NoData):
                return answer
            whole.rows[name] = answer.rows.get("", [None] * window.steps)
            whole = replace(whole, warnings=_joined(whole.warnings, answer.warnings))
        return whole

    return read


def _outcomes(ask: Ask, window: Window) -> Answered | NoData:
    answer = ask(queries.REQUESTS)
    if isinstance(answer, NoData):
        return answer
    summed: dict[str, list[float | None]] = {}
    for status, values in answer.rows.items():
        row = summed.setdefault(series.outcome(status), [None] * window.steps)
        for i, value in enumerate(values):
            if value is not None:
                row[i] = (row[i] or 0.0) + value
    ordered = {name: summed[name] for name in series.OUTCOMES if name in summed}
    return replace(answer, rows=ordered)


def _joined(old: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return (*old, *(text for text in more if text not in old))


CHARTS: Mapping[str, tuple[str, Callable[[Ask, Window], Answered | NoData]]] = {
    "ttft": ("s", _lines(queries.LATENCIES["ttft"])),
    "tpot": ("s", _lines(queries.LATENCIES["tpot"])),
    "e2e": ("s", _lines(queries.LATENCIES["e2e"])),
    "queue-wait": ("s", _lines(queries.LATENCIES["queue_wait"])),
    "requests": ("requests/s", _outcomes),
    "tokens": ("tokens/s", _lines(queries.TOKENS)),
    "hit-rate": ("ratio", _lines({"hit rate": queries.HIT_RATE})),
}
