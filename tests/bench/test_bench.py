"""bin/bench: figures, ratios and what it says where it cannot measure."""

from __future__ import annotations

import json

import pytest

from bench import __main__ as command
from bench.report import Section, as_json, as_text, cost_row


def test_a_ratio_is_of_the_medians_and_its_range_of_the_rounds() -> None:
    row = cost_row("cpu", "CPU", "µs", {"nginx": [10, 20, 30], "signalbox": [12, 22, 90]})
    assert row.ratio == pytest.approx(1.1)
    assert (row.ratio_low, row.ratio_high) == (pytest.approx(1.1), pytest.approx(3.0))


def test_without_nginx_there_are_figures_and_the_reason_for_no_ratio() -> None:
    section = Section([cost_row("cpu", "CPU", "µs", {"signalbox": [12]})], [])
    assert "12 µs" in as_text({"relay": section})
    assert "nginx is not on PATH" in as_text({"relay": section})
    assert as_json({"relay": section})["relay"]["cpu"]["ratio"] is None  # type: ignore[index]


def test_wrong_answers_are_shown_beside_the_figures_they_spoil() -> None:
    section = Section(
        [cost_row("cpu", "CPU", "µs", {"signalbox": [12]})], ["nginx: 3 x status 502"]
    )
    assert "NOT CLEAN: nginx: 3 x status 502" in as_text({"relay": section})


@pytest.mark.parametrize("name", command.NOT_YET)
def test_what_does_not_exist_yet_is_said_plainly(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([name]) == 2
    assert f"bin/bench {name} does not exist yet" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.e2e
def test_every_benchmark_measures_the_agent_without_a_wrong_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["all", "--json", "--rounds", "1", "--seconds", "0.3"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["relay"]["problems"] == figures["streams"]["problems"] == []
    assert figures["relay"]["short_request_cpu"]["peers"]["signalbox"] > 0
    assert figures["streams"]["million_tokens_cpu"]["peers"]["signalbox"] > 0
