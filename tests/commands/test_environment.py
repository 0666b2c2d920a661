"""The virtual environment: made, kept, renewed, repaired, and never somebody else's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from stack import environment, redis_server
from stack.layout import ROOT, Places
from stack.report import ProblemError


def test_a_change_in_an_included_requirements_file_is_noticed(tmp_path):
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "requirements.txt").write_text("one==1\n")
    main = tmp_path / "requirements.txt"
    main.write_text("-r node/requirements.txt\ntwo==2\n")
    before = environment.requirements_fingerprint(main, "3.11")
    assert environment.requirements_fingerprint(main, "3.11") == before
    assert environment.requirements_fingerprint(main, "3.12") != before
    (tmp_path / "node" / "requirements.txt").write_text("one==1.1\n")
    assert environment.requirements_fingerprint(main, "3.11") != before


def test_an_environment_without_a_working_interpreter_does_not_run(tmp_path):
    python = tmp_path / "python"
    assert not environment.runs(python)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert not environment.runs(python)


def test_a_half_made_environment_is_removed_but_nothing_else_is(tmp_path):
    half = tmp_path / "half"
    half.mkdir()
    (half / "pyvenv.cfg").write_text("home = /nowhere\n")
    environment._clear(half)
    assert not half.exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(ProblemError, match="no virtual environment"):
        environment._clear(other)
    assert (other / "thesis.txt").exists()


def test_a_missing_venv_module_is_answered_with_the_name_of_its_package(monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProblemError) as caught:
        environment._require_venv_module()
    assert "apt install python3-venv" in caught.value.remedy


def test_a_prepared_environment_that_does_not_work_is_refused(here: Places, monkeypatch):
    monkeypatch.setenv("SIGNALBOX_VENV", "/nowhere")
    with pytest.raises(ProblemError, match="holds no working Python"):
        environment.ensure(here)


def test_without_redis_and_without_one_that_fits_the_message_names_redis_url(
    here: Places, monkeypatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(redis_server, "embedded_fits", lambda version: False)
    with pytest.raises(ProblemError) as caught:
        redis_server.find(here)
    assert "REDIS_URL=" in caught.value.remedy


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("#!/bin/sh\necho 'Python 3.9.2'; exit 1\n", ["Python 3.9.2", "3.11 or newer"]),
        ("#!/bin/sh\nexit 127\n", ["it does not run", "3.11 or newer"]),
    ],
)
def test_a_python_that_does_not_fit_is_named_with_a_remedy(tmp_path: Path, python, words):
    (tmp_path / "python3").write_text(python)
    (tmp_path / "python3").chmod(0o755)
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(Path("/usr/bin") / tool)
    answer = _up({"PATH": str(tmp_path)})
    assert answer.returncode == 1
    assert all(word in answer.stderr for word in [*words, "remedy: install one"])


def test_a_python_named_by_the_caller_must_work():
    answer = _up({"PATH": "/usr/bin:/bin", "PYTHON": "/nowhere/python"})
    assert answer.returncode == 1
    assert "PYTHON=/nowhere/python is not a working Python" in answer.stderr


def _up(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "bin" / "up", "--help"], env=variables, capture_output=True, text=True
    )
