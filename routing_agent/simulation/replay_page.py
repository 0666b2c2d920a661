"""The page of a replay: charts of every policy, in one file that needs no network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from routing_agent.simulation.flights import Flight
from routing_agent.simulation.results import Result, hit_rate_over_time, work_of

# Okabe and Ito's colours, told apart by nearly everybody; a policy has its own on every chart.
_COLOURS: Final = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#b8a800",
)  # fmt: skip
_CURVE_POINTS: Final = 300
_TIME_PARTS: Final = 60

Run = tuple[Result, Sequence[Flight]]
Figure = dict[str, Any]


class PlotlyMissing(Exception):
    """The charts cannot be drawn here."""


def need_plotly() -> None:
    """Raise `PlotlyMissing` if the charts' library is not installed."""
    if find_spec("plotly") is None:
        raise PlotlyMissing("--html needs the package plotly: pip install -r requirements.txt")


def page(heading: str, runs: Sequence[Run], replicas: int) -> str:
    """Give the whole page: what was replayed, a table, and three charts."""
    figures = (ttft_figure(runs), hit_figure(runs), work_figure(runs, replicas))
    to_html = import_module("plotly.io").to_html
    charts = [
        to_html(
            figure,
            full_html=False,
            include_plotlyjs=number == 0,
            default_height="420px",
            config={"displaylogo": False},
        )
        for number, figure in enumerate(figures)
    ]
    title, *notes = (html.escape(line) for line in heading.splitlines())
    paragraphs = "".join(f"<p>{line}</p>" for line in notes)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Replay</title>'
        "<style>body{font:16px system-ui,sans-serif;max-width:70rem;margin:2rem auto;"
        "padding:0 1rem}td,th{padding:.2rem .8rem;text-align:right}"
        "td:first-child,th:first-child{text-align:left}</style>"
        f"<h1>Replay</h1><p>{title}</p>{paragraphs}{_table(runs)}{''.join(charts)}</html>\n"
    )


def ttft_figure(runs: Sequence[Run]) -> Figure:
    """Draw what share of requests had their first token after how long."""
    traces = [
        _line(result.policy, number, *_curve(flights))
        for number, (result, flights) in enumerate(runs)
    ]
    layout = _layout("Time to first token", "seconds (logarithmic)", "share of requests")
    layout["xaxis"]["type"] = "log"
    return {"data": traces, "layout": layout}


def hit_figure(runs: Sequence[Run]) -> Figure:
    """Draw the token hit rate over the time of arrival; a gap where nothing came."""
    traces = []
    for number, (result, flights) in enumerate(runs):
        points = hit_rate_over_time(flights, _TIME_PARTS)
        traces.append(_line(result.policy, number, [p[0] for p in points], [p[1] for p in points]))
    return {
        "data": traces,
        "layout": _layout("Prefix hit rate over time", "seconds", "cached share of prompt tokens"),
    }


def work_figure(runs: Sequence[Run], replicas: int) -> Figure:
    """Draw the prompt tokens that each replica computed, over the policy's mean, largest first."""
    traces = []
    for number, (result, flights) in enumerate(runs):
        work = sorted(work_of(flights, replicas), reverse=True)
        mean = sum(work) / replicas or 1.0
        traces.append(
            {
                "type": "bar",
                "name": result.policy,
                "x": list(range(1, replicas + 1)),
                "y": [round(one / mean, 4) for one in work],
                "marker": {"color": _COLOURS[number % len(_COLOURS)]},
            }
        )
    title = "Work per replica"
    return {"data": traces, "layout": _layout(title, "replica, busiest first", "times the mean")}


def _curve(flights: Sequence[Flight]) -> tuple[list[float], list[float]]:
    ttfts = sorted(flight.ttft_s for flight in flights if flight.ttft_s is not None)
    if not ttfts:
        return [], []
    last = len(ttfts) - 1
    points = sorted({i * last // _CURVE_POINTS for i in range(_CURVE_POINTS + 1)})
    return [round(ttfts[i], 5) for i in points], [round((i + 1) / (last + 1), 5) for i in points]


def _line(name: str, number: int, x: Sequence[float], y: Sequence[float | None]) -> Figure:
    colour = _COLOURS[number % len(_COLOURS)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour},
    }


def _layout(title: str, x: str, y: str) -> Figure:
    return {
        "title": {"text": title},
        "template": "plotly_white",
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.25},
    }


def _table(runs: Sequence[Run]) -> str:
    head = ("policy", "hit rate", "busiest/mean", "TTFT mean s", "P50", "P90", "P99", "shed")
    rows = [
        (
            result.policy,
            f"{result.hit_rate:.1%}",
            *(
                "-" if value is None else f"{value:.2f}"
                for value in (
                    result.balance,
                    result.ttft_mean_s,
                    result.ttft_p50_s,
                    result.ttft_p90_s,
                    result.ttft_p99_s,
                )
            ),
            str(result.shed),
        )
        for result, _ in runs
    ]
    lines = [_cells("th", head), *(_cells("td", row) for row in rows)]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)
