"""The stages of bin/test that run pytest, and the coverage floors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stack.compile import CANNOT

from checks import servers, skips
from checks.machine import Machine
from checks.outcome import Outcome, Run
from checks.stages import Tools

FAST = "not slow and not browser and not e2e and not postgres"
TOUR = "e2e"
# Beside one another, since most of many tests is waiting. Coverage costs a third: not in all.
MOST = "not postgres and not browser and not e2e"
IN_BROWSERS = ("browser and not e2e", "tests/console", "tests/controlplane/api")
STORIES = ("e2e and story", "tests/e2e")  # on a product of their own: most of it is waiting
END_TO_END = ("e2e and not story", "tests/e2e", "tests/bench")
ON_POSTGRESQL = "django_db and not one_database and not browser and not e2e"
# Pages read what the API's tests read; the planner computes.
PAGES = ("*/test_views*.py", "*/test_area.py", "*_pages.py", "*/planning/*")
ON_BOTH_DATABASES = ("tests/controlplane", "tests/contract")
# Folders whose tests wait more than they compute: a pass of their own.
WAITING = ("tests/agent", "tests/domain")
SIMULATION = "tests/agent/simulation"
# What these test is outside of what coverage measures, or tested elsewhere too.
UNMEASURED = ("tests/bench", "tests/commands", "tests/fuzz", SIMULATION)
# Passes of folders that the main pass leaves out.
ONCE = ("tests that mostly wait", "tests of the relay", "tests without coverage")
COMPILED = "not interpreted and not slow"
RELAY_TESTS = "tests/agent/proxy"
WORKER_TESTS = "tests/agent/workers"  # their processes run what was compiled
BESIDE = 3  # passes at a time beside the main one; four only make each of them slower
NOTHING_COLLECTED = 5  # pytest's exit code

# Decisions are pure, so nothing excuses an untested branch; the floor of the whole is STYLE's.
PURE = ("controlplane/domain/*", "routing_agent/core/*", "routing_agent/wire/*")
FLOORS = {"coverage of decisions": (100, PURE), "coverage of the whole": (90, ())}
SUMMARY = re.compile(r"=+ .*\d+ (passed|failed|error|errors|skipped|deselected|warning).* =+$")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Runs pytest with the servers that are there."""

    run: Run
    tools: Tools
    machine: Machine
    words: Sequence[str] = ()

    def fast(self) -> None:
        """The inner loop: what needs no server and no patience."""
        self._stage("tests (fast)", ["-m", FAST, *self.words], {})

    def tour(self) -> None:
        """The end-to-end story alone."""
        self._stage("tests (tour)", ["-m", TOUR, "-v", *self.words], {})

    def all(self, checks: Callable[[], None]) -> None:
        """Most on SQLite; beside it `checks`, what mostly waits, browsers, and PostgreSQL."""
        with (
            tempfile.TemporaryDirectory(prefix="signalbox-coverage-") as scratch,
            ThreadPoolExecutor(BESIDE) as beside,
        ):
            checked = beside.submit(checks)
            passes = {title: beside.submit(work) for title, work in self._passes(scratch).items()}
            rest = self.words or [f"--ignore={folder}" for folder in (*WAITING, *UNMEASURED)]
            self.run.stage("tests", partial(self._measured, rest, f"{scratch}/rest"))
            checked.result()
            for title, made in passes.items():
                self.run.stage(title, made.result)
            if not self.words:
                self.floors(Path(scratch))

    def _passes(self, scratch: str) -> dict[str, Callable[[], Outcome]]:
        """Give what runs beside the main pass, the longest first."""
        others = [*WAITING, *(f"--ignore={p}" for p in (RELAY_TESTS, SIMULATION))]
        waiting = partial(self._measured, others, f"{scratch}/waiting", aside=True)
        relay = partial(self._measured, [RELAY_TESTS], f"{scratch}/relay", aside=True)
        passes: dict[str, Callable[[], Outcome]] = {
            "tests that mostly wait": waiting,
            "tests end to end": partial(self._aside, *END_TO_END),
            "stories": partial(self._aside, *STORIES),
            "tests in browsers": partial(self._aside, *IN_BROWSERS),
            "tests on PostgreSQL": self.on_postgresql,
            "relay compiled": self._compiled,
            "tests of the relay": relay,
            "tests without coverage": partial(self._aside, MOST, *UNMEASURED),
        }
        if self.words:  # then the main pass looks at all folders
            for title in (*ONCE, "relay compiled"):
                del passes[title]
        return passes

    def _measured(self, words: Sequence[str], file: str, *, aside: bool = False) -> Outcome:
        wanted = ["-m", MOST, "--cov", "--cov-report=", *words]
        return self._pytest(wanted, {"COVERAGE_FILE": file}, aside=aside)

    def _aside(self, which: str, *folders: str) -> Outcome:
        return self._pytest(["-m", which, *(self.words or folders)], {}, aside=True)

    def _compiled(self) -> Outcome:
        """Compile the relay, as fast as may be: it is tested, not measured; run its tests so."""
        compiling = self.tools.run(["python", "bin/stack/compile.py", "--level", "0"])
        said = compiling.stdout + compiling.stderr
        if compiling.returncode == CANNOT:
            return Outcome(verdict="skipped", why=said.strip())
        if compiling.returncode:
            return Outcome(verdict="failed", text=said)
        words = ["-p", "tests.compiled", "-m", COMPILED, RELAY_TESTS, WORKER_TESTS]
        return self._pytest(words, {}, aside=True)

    def on_postgresql(self) -> Outcome:
        """Run what touches the database once more, on the database of production."""
        if self.machine.postgresql is None and not os.environ.get("DATABASE_URL"):
            return Outcome(verdict="skipped", why="there is none here")
        words = ["-m", ON_POSTGRESQL, *(f"--ignore-glob={p}" for p in PAGES), *self._paths()]
        with self._postgresql() as url:
            return self._pytest(words, {"DATABASE_URL": url}, aside=True)

    def _paths(self) -> list[str]:
        """Add the folders that matter, unless the caller's words name paths already."""
        root = self.tools.here.root
        if any((root / word.partition("::")[0]).exists() for word in self.words):
            return list(self.words)
        return [*(p for p in ON_BOTH_DATABASES if (root / p).exists()), *self.words]

    @contextmanager
    def _postgresql(self) -> Iterator[str]:
        given = os.environ.get("DATABASE_URL")
        if given or self.machine.postgresql is None:
            yield given or ""
            return
        with servers.postgresql(self.machine.postgresql) as url:
            yield url

    def floors(self, scratch: Path) -> None:
        """Fail where the coverage of the passes that measure it has dropped below its floor."""
        environment = {"COVERAGE_FILE": str(scratch / "both")}
        self.tools.run(["coverage", "combine", *map(str, scratch.iterdir())], environment)
        for title, (floor, only) in FLOORS.items():
            words = ["coverage", "report", f"--fail-under={floor}", "--skip-covered"]
            words += [f"--include={','.join(only)}"] if only else []
            self.run.stage(title, partial(self.tools.check, *words, environment=environment))

    def _stage(self, title: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.run.stage(title, lambda: self._pytest(words, environment))

    def _pytest(
        self, words: Sequence[str], environment: Mapping[str, str], *, aside: bool = False
    ) -> Outcome:
        """Run pytest and remember what it skipped; `aside`: its output only if it failed.

        Otherwise its output is shown as it comes, and its summary ends the whole run.
        """
        with tempfile.TemporaryDirectory(prefix="signalbox-skips-") as scratch:
            file = Path(scratch) / "skips.json"
            command = [str(self.tools.folder / "python"), "-m", "pytest", "-p", "checks.skips"]
            command += ["--color", "yes"] if sys.stdout.isatty() else []
            environment = {**environment, skips.VARIABLE: str(file)}
            said: list[str] = []
            code, cpu_s = self._stream(
                [*command, *words], environment, said.append if aside else self._show
            )
            if file.exists():
                self.run.skipped_tests.extend(json.loads(file.read_text()))
        is_well = code in (0, NOTHING_COLLECTED)
        summary = next(
            (_plain(s).strip("= ") for s in reversed(said) if SUMMARY.search(_plain(s))), ""
        )
        why = f"{summary}, {cpu_s:.0f} s of CPU"
        return Outcome(verdict="ok" if is_well else "failed", text="".join(said), why=why)

    def _show(self, line: str) -> None:
        print(line, end="", flush=True)
        if SUMMARY.search(_plain(line)):
            self.run.last_words = line.rstrip()

    def _stream(
        self, command: list[str], environment: Mapping[str, str], take: Callable[[str], None]
    ) -> tuple[int, float]:
        """Run a command to its end; give its exit code and the CPU seconds it and its own took."""
        with subprocess.Popen(
            command,
            cwd=self.tools.here.root,
            env={**self.tools.environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                take(line)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, used.ru_utime + used.ru_stime


def _plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
