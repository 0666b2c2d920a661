"""The stages of bin/test that look at the code without running the tests."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stack.layout import Places

from checks.outcome import Outcome, Run

AUDIT_LIMIT_S = 90.0
TYPED = ("controlplane", "routing_agent", "bin/stack", "bin/checks", "tests", "manage.py")


class Tools:
    """Runs the tools of the virtual environment in the checkout."""

    def __init__(self, here: Places) -> None:
        self.here = here
        self.folder = here.python.parent

    def run(
        self, words: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end and keep what it says."""
        return subprocess.run(
            [str(self.folder / words[0]), *words[1:]],
            cwd=self.here.root,
            env={**self.environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def environment(self) -> dict[str, str]:
        """Give the caller's environment without what would lead tests to real servers."""
        dropped = ("DATABASE_URL", "REDIS_URL", "PROMETHEUS_URL", "DJANGO_SETTINGS_MODULE")
        kept = {k: v for k, v in os.environ.items() if k not in dropped}
        kept.pop("SIGNALBOX_VAR", None)
        path = os.pathsep.join([str(self.folder), os.environ.get("PATH", os.defpath)])
        return {**kept, "PATH": path, "PYTHONPATH": str(self.here.root / "bin")}

    def check(self, *words: str, environment: Mapping[str, str] | None = None) -> Outcome:
        """Run a tool whose exit code is the verdict."""
        done = self.run(list(words), environment)
        return Outcome(
            verdict="ok" if done.returncode == 0 else "failed", text=done.stdout + done.stderr
        )


def quick(run: Run, tools: Tools) -> None:
    """The stages of seconds: format, lint, dependency rules."""
    run.stage("ruff format", lambda: tools.check("ruff", "format", "--check", "."))
    run.stage("ruff check", lambda: tools.check("ruff", "check", "."))
    run.stage("import contracts", lambda: tools.check("lint-imports", "--no-cache"))


def thorough(run: Run, tools: Tools) -> None:
    """Types, Django's own checks, the OpenAPI document, and known vulnerabilities."""
    run.stage("types", lambda: tools.check("mypy", *typed(tools.here.root)))
    with tempfile.TemporaryDirectory(prefix="signalbox-checks-") as scratch:
        manage = partial(tools.check, "python", "manage.py", environment=deployed(Path(scratch)))
        schema = f"{scratch}/openapi.yaml"
        stages = {
            "django check --deploy": ("check", "--deploy", "--fail-level", "WARNING"),
            "migrations complete": ("makemigrations", "--check", "--dry-run"),
            "OpenAPI": ("spectacular", "--validate", "--fail-on-warn", "--file", schema),
        }
        for title, words in stages.items():
            run.stage(title, partial(manage, *words))
    run.stage("dependency audit", lambda: audit(tools))


def typed(root: Path) -> list[str]:
    """List what mypy looks at, as far as it is there."""
    return [name for name in TYPED if (root / name).exists()]


def deployed(scratch: Path) -> dict[str, str]:
    """Give the settings of a production set-up: behind TLS, with a real secret."""
    return {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "SIGNALBOX_VAR": str(scratch),
        "SIGNALBOX_BEHIND_TLS": "1",
        "SIGNALBOX_SECRET_KEY": secrets.token_urlsafe(50),
    }


def audit(tools: Tools) -> Outcome:
    """Look up known vulnerabilities of what we pin; without an answer the stage is skipped."""
    words = ["pip-audit", "--requirement", "requirements.txt", "--no-deps", "--disable-pip",
             "--progress-spinner", "off", "--timeout", "10", "--format", "json"]  # fmt: skip
    try:
        done = subprocess.run(
            [str(tools.folder / words[0]), *words[1:]],
            cwd=tools.here.root,
            env=tools.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=AUDIT_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Outcome(verdict="skipped", why=f"no answer within {AUDIT_LIMIT_S:.0f} s")
    return judge_audit(done.stdout, done.stderr)


def judge_audit(answer: str, errors: str) -> Outcome:
    """Tell vulnerabilities from a service that cannot be reached."""
    try:
        packages = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        return Outcome(verdict="skipped", why=f"no answer about vulnerabilities: {last[:120]}")
    known = [_vulnerability(p, v) for p in packages for v in p.get("vulns", ())]
    return Outcome(verdict="failed" if known else "ok", text="\n".join(known))


def _vulnerability(package: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    fixed = ", ".join(found["fix_versions"]) or "no version yet"
    return f"{package['name']} {package.get('version')}: {found['id']} (fixed in {fixed})"
