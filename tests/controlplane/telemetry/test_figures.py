"""Figures: valid for Plotly, strict JSON, names as text, zoom kept, targets and marks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs_version

from controlplane.console import charts
from controlplane.telemetry.figures import Mark, Target, encode, figure
from controlplane.telemetry.payloads import payload
from controlplane.telemetry.snapshots import NoData, SeriesSet, Window, window

WINDOW = Window(end_s=1_800_000_000, step_s=5, steps=3, span_s=15)
VENDOR = Path(charts.__file__).parent / "static/console/vendor"


def data(unit: str = "s", **series) -> SeriesSet:
    return SeriesSet(window=WINDOW, unit=unit, series=series, source="recent store")


def strict(body: bytes):
    """Read JSON the way a browser does: NaN and Infinity are errors."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(body, parse_constant=refuse)


@pytest.mark.parametrize("unit", ["s", "ratio", "bytes", "requests/s", "tokens/s", "°C"])
def test_every_figure_is_one_that_plotly_accepts(unit):
    mark = Mark(at=datetime.fromtimestamp(WINDOW.end_s - 6, UTC), text="replica.drain rpl-1")
    built = figure(
        data(unit, p50=[0.1, None, 0.2], p95=[0.2, 0.3, 0.4]),
        revision="chat/ttft",
        targets=[Target(value=0.3, label="P99 300 ms")],
        marks=[mark],
    )
    go.Figure(built)
    assert len(built["layout"]["shapes"]) == 2
    assert built["layout"]["uirevision"] == "chat/ttft"


def test_a_long_name_is_cut_in_the_legend_and_whole_in_the_numbers():
    long = "a-very-long-pool-slug-that-someone-typed"
    whole, cut = figure(data(**{"chat": [1.0], long: [1.0]}), revision="r")["data"]
    assert (whole["name"], cut["name"]) == ("chat", "a-very-long…ne-typed")
    assert cut["meta"]["name"] == long
    assert long in str(cut["hovertemplate"])


@given(st.lists(st.floats() | st.none(), min_size=3, max_size=3))
def test_nan_and_infinity_become_gaps_in_strict_json(values):
    body = encode(payload("TTFT", data(p95=values), revision="r"))
    drawn = strict(body)["figure"]["data"][0]["y"]
    expected = [v if v is not None and math.isfinite(v) else None for v in values]
    assert drawn == pytest.approx(expected)


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", '<a href="javascript:alert(1)">x</a>', "<b>x</b>"]
)
def test_names_are_text_in_legend_hover_and_marks(name):
    built = figure(
        data(**{name: [1.0, 2.0, 3.0]}), revision="r", marks=[Mark(at=datetime.now(UTC), text=name)]
    )
    assert "<img" not in json.dumps(built["data"][0]["name"])
    for trace in built["data"]:
        texts = [trace["name"], trace.get("hovertemplate", ""), *trace.get("text", [])]
        assert all(
            t.replace("<extra></extra>", "").count("<") <= t.count("<extra>") + 1 for t in texts
        )
        assert not any(tag in t for t in texts for tag in ("<img", "<a ", "<b>"))


def test_gaps_are_not_bridged_and_at_most_six_traces_are_drawn():
    many = {f"GPU {i}": [1.0, None, 2.0] for i in range(9)}
    told = payload("GPUs", data("ratio", **many), revision="r")
    built = told["figure"]
    assert len(built["data"]) == 6
    assert built["data"][-1]["name"] == "mean of 4 others"
    assert "5 highest of 9" in told["note"]
    assert all(t["connectgaps"] is False for t in built["data"])


def test_a_chart_says_in_words_what_it_shows():
    built = payload(
        "TTFT", data(p95=[0.1, 0.2, 0.287]), revision="r", targets=[Target(value=0.3, label="aim")]
    )
    assert built["now"] == "p95 287 ms"
    assert built["summary"] == "TTFT: p95 287 ms, aim"
    assert "recent store" in built["source"]


def test_no_data_is_a_state_with_its_reason():
    assert payload("TTFT", NoData("Redis is gone."), revision="r") == {
        "state": "none",
        "reason": "Redis is gone.",
    }


def test_the_vendored_plotly_is_the_one_the_figures_are_checked_against():
    noted = (VENDOR / "VERSIONS.txt").read_text()
    assert f"plotly.js-basic-dist-min {get_plotlyjs_version()} " in noted


def test_a_point_between_gaps_is_drawn_as_a_dot():
    built = figure(data(p95=[None, 0.2, None], p50=[0.1, 0.2, None]), revision="r")
    lonely, line = built["data"]
    assert (lonely["mode"], lonely["marker"]["size"]) == ("lines+markers", [0, 5, 0])
    assert line["mode"] == "lines"
    go.Figure(built)


def test_many_changes_at_once_are_one_mark_that_tells_of_all():
    whole = window("30d", 1_800_000_000)
    first = datetime.fromtimestamp(whole.start_s + 100, UTC)
    marks = [Mark(at=first + timedelta(seconds=i), text=f"epoch {i}") for i in range(5)]
    marks += [Mark(at=first + timedelta(days=3 * i), text="drain") for i in range(1, 9)]
    built = figure(replace(data(), window=whole, series={}), revision="r", marks=marks)
    assert len(built["layout"]["shapes"]) == 9
    assert built["data"][-1]["text"][0] == "epoch 0; epoch 1; epoch 2; and 2 more"


def test_an_axis_says_no_milli_tokens_and_bytes_in_binary_units():
    def axis(unit: str, *values: float):
        return figure(data(unit, used=list(values)), revision="r")["layout"]["yaxis"]

    assert axis("tokens/s", 0, 0.5, 0)["tickformat"] == "~g"
    assert axis("tokens/s", 0, 2000, 0)["tickformat"] == "~s"
    assert axis("bytes", 0, 15e9, 0)["ticktext"] == ["0 B", *(f"{n} GiB" for n in (4, 8, 12, 16))]
    assert axis("bytes", 0, 0, 0)["tickvals"] == [0.0]


@pytest.mark.parametrize("name", ["5m", "1h", "30d"])
def test_times_read_as_the_window_needs(name):
    axis = figure(replace(data(), window=window(name, 1_800_000_000)), revision="r")["layout"]
    assert ("%S" in axis["xaxis"]["hoverformat"]) == (name == "5m")
    assert ("%b" in axis["xaxis"]["tickformat"]) == (name == "30d")


def test_a_chart_whose_end_is_missing_says_when_its_newest_figure_is_from():
    ten = Window(end_s=1_800_000_000, step_s=60, steps=10, span_s=60, base_s=60)
    told = replace(data(), window=ten, series={"p95": [0.1] * 5 + [None] * 5})
    built = payload("TTFT", told, revision="r")
    assert built["source"].endswith("each point covers 1 min; nothing newer than 07:55:00 UTC")
    assert built["as_of"] == ten.end_s - 300
