"""bin/bench: figures, ratios and what it says where it cannot measure."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import setup
from bench.peers import Absent, system_program
from bench.report import Quantity, Section, Table, as_json, as_text


def quantity(**rounds: Sequence[float | None]) -> Quantity:
    return Quantity("cpu", "32 connections", "µs", rounds)


def section(figure: Quantity, *problems: str, **absent: str) -> Section:
    return Section([Table("CPU", [figure])], problems, absent)


def test_a_ratio_is_of_the_same_round_and_its_range_of_all_rounds() -> None:
    ratio = quantity(nginx=[10, 20, 30], signalbox=[12, 22, 90]).ratio("signalbox")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((1.2, 1.1, 3.0))


def test_a_round_without_a_figure_counts_for_no_ratio() -> None:
    figure = quantity(nginx=[10, 20], litellm=[4000, None])
    ratio = figure.ratio("litellm")
    assert ratio is not None
    assert ratio.high == 400
    assert quantity(nginx=[10], litellm=[None]).ratio("litellm") is None


def test_without_nginx_there_are_figures_and_the_reason_for_no_ratio() -> None:
    told = section(quantity(signalbox=[12]), nginx="not on PATH")
    assert "12" in as_text({"relay": told})
    assert "NOT MEASURED: nginx: not on PATH" in as_text({"relay": told})
    assert "No ratios" in as_text({"relay": told})
    assert as_json({"relay": told})["relay"]["cpu"]["ratios"] == {}  # type: ignore[index]


def test_wrong_answers_are_shown_beside_the_figures_they_spoil() -> None:
    text = as_text({"relay": section(quantity(signalbox=[12]), "nginx: status 502: 3 x")})
    assert "NOT CLEAN: nginx: status 502: 3 x" in text


def test_a_program_that_is_not_here_is_named_with_what_helps() -> None:
    with pytest.raises(Absent, match="install the package no-such-router"):
        system_program("no-such-router")


def test_a_package_that_cannot_be_had_is_named_with_what_pip_said(tmp_path: Path) -> None:
    venv = tmp_path / "peer" / "bin"
    venv.mkdir(parents=True)
    python = venv / "python"
    python.write_text("#!/bin/sh\necho 'No matching distribution' >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(Absent, match=r"pip cannot install peer==1\.0: No matching distribution"):
        setup.install(setup.Package("peer", "peer==1.0"), tmp_path)


def test_an_installed_package_is_left_alone(tmp_path: Path) -> None:
    venv = tmp_path / "peer" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    requirement = f"pytest=={pytest.__version__}"
    assert requirement in setup.install(setup.Package("peer", requirement), tmp_path)


def test_an_unknown_peer_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["relay", "--peers", "envoy"]) == 1
    assert "no peer envoy. There are: nginx, signalbox" in capsys.readouterr().err


@pytest.mark.parametrize("name", command.NOT_YET)
def test_what_does_not_exist_yet_is_said_plainly(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([name]) == 2
    assert f"bin/bench {name} does not exist yet" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.e2e
def test_a_quick_run_measures_every_peer_or_says_why_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    peers = "nginx,haproxy,vllm-router"
    assert command.main(["all", "--json", "--quick", "--peers", peers]) == 0
    figures = json.loads(capsys.readouterr().out)
    for name, key in (("relay", "short_request_cpu_32"), ("streams", "million_tokens_cpu_32")):
        found = figures[name]
        assert found[key]["peers"]["signalbox"] > 0
        assert {*found[key]["rounds"], *found["absent"]} == {"signalbox", *peers.split(",")}
        assert [p for p in found["problems"] if p.startswith(("signalbox", "nginx"))] == []
