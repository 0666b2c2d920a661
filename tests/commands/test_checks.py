"""bin/test lists what it skips, fails for what may not be skipped, and ends as pytest ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from checks import machine, servers, skips
from checks.outcome import Outcome, Run
from checks.stages import Tools, judge_audit
from checks.tests import END_TO_END, IN_BROWSERS, STORIES, SUMMARY, Suite
from stack import processes
from stack.layout import ROOT, places

HERE = machine.inspect(places())


def closed(run: Run, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = run.close()
    return code, capsys.readouterr().out.rstrip().splitlines()


def test_pytests_own_summary_is_the_last_line_even_when_another_stage_failed(capsys):
    run = Run(strict=False)
    run.last_words = "===== 3 passed in 0.10s ====="
    run.stage("types", lambda: Outcome(verdict="failed", text="wrong"))
    code, lines = closed(run, capsys)
    assert code == 1
    assert lines[-2:] == ["FAILED types", "===== 3 passed in 0.10s ====="]


def test_what_the_machine_lacks_is_listed_and_fails_only_under_ci(capsys):
    for strict, expected in ((False, 0), (True, 1)):
        run = Run(strict=strict)
        run.lacks = ["nginx (package nginx)"]
        code, lines = closed(run, capsys)
        assert code == expected
        assert "  this machine lacks nginx (package nginx)" in lines


def test_under_ci_only_tests_of_sample_data_may_be_skipped(capsys):
    run = Run(strict=True)
    run.skipped_tests = [{"test": "a", "reason": "no sample data", "shared": True}]
    assert closed(run, capsys)[0] == 0
    run.skipped_tests.append({"test": "b", "reason": "no browser", "shared": False})
    code, lines = closed(run, capsys)
    assert code == 1
    assert "FAILED with CI=true nothing may be skipped: b: no browser" in lines


def test_a_silent_vulnerability_service_is_a_skip_and_a_vulnerability_is_a_failure():
    assert judge_audit("", "ConnectionError: no route").verdict == "skipped"
    good = {"name": "a", "version": "1", "vulns": []}
    assert judge_audit(json.dumps({"dependencies": [good]}), "").verdict == "ok"
    bad = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
    outcome = judge_audit(json.dumps({"dependencies": [bad]}), "")
    assert (outcome.verdict, outcome.text) == ("failed", "a 1: CVE-1 (fixed in 2)")


@pytest.mark.parametrize(
    ("line", "is_summary"),
    [
        ("============ 812 passed, 1 skipped in 214.20s (0:03:34) ============", True),
        ("=================== 1 failed, 256 passed, 3 errors in 9.09s ==========", True),
        ("============================= test session starts ====================", False),
        ("=========================== short test summary info ==================", False),
        ("tests/agent/test_x.py ....                                      [100%]", False),
    ],
)
def test_pytests_summary_is_recognised(line, is_summary):
    assert bool(SUMMARY.search(line)) is is_summary


def test_words_that_name_paths_replace_the_folders_of_the_postgresql_pass():
    def paths(*words: str) -> list[str]:
        run, tools = Run(strict=False), Tools(places())
        return Suite(run=run, tools=tools, machine=HERE, words=words)._paths()

    assert paths("-k", "drain") == ["tests/controlplane", "tests/contract", "-k", "drain"]
    assert paths("tests/e2e::test_x") == ["tests/e2e::test_x"]


def test_the_plugin_notes_skips_with_their_reason_and_runs_the_tour_last(tmp_path):
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.e2e\ndef test_tour(): pass\n"
        "@pytest.mark.shared\n@pytest.mark.skip(reason='no data')\ndef test_data(): pass\n"
        "def test_browser(): pytest.skip('no browser')\n"
        "@pytest.mark.xfail\ndef test_known(): assert False\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  e2e\n  shared\n")
    file = tmp_path / "skips.json"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "checks.skips", "-p", "no:randomly",
         "-p", "no:django", "-p", "no:cacheprovider", "-v", "."],
        cwd=tmp_path,
        env={**os.environ, skips.VARIABLE: str(file), "PYTHONPATH": str(ROOT / "bin")},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    noted = sorted((s["reason"], s["shared"]) for s in json.loads(file.read_text()))
    assert noted == [("no browser", False), ("no data", True)]
    verbose = [line for line in done.stdout.splitlines() if line.startswith("test_it.py::")]
    assert verbose[-1].startswith("test_it.py::test_tour PASSED")


@pytest.mark.slow
def test_the_throw_away_postgresql_answers_and_leaves_nothing():
    if HERE.postgresql is None:
        pytest.skip("no PostgreSQL on this machine")
    with servers.postgresql(HERE.postgresql) as url, psycopg.connect(url) as connection:
        pid = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
        folder = connection.execute("SHOW data_directory").fetchone()[0]
    assert processes.wait_until(lambda: processes.start_mark(pid) is None, limit_s=10)
    assert not os.path.exists(folder)  # noqa: PTH110  (another user's, pathlib would raise)


def test_what_needs_a_browser_or_processes_is_where_its_passes_look():
    tests = Path(__file__).parents[1]
    marked = re.compile(r"mark\.(browser|e2e)\b")
    found = {f for f in tests.rglob("test_*.py") if marked.search(f.read_text())}
    looked_at = {
        file
        for folder in (*IN_BROWSERS[1:], *END_TO_END[1:], *STORIES[1:])
        for file in (tests.parent / folder).rglob("*.py")
    }
    assert found - looked_at - {Path(__file__)} == set()
