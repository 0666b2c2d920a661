"""`bin/bench telemetry`: a month of a large fleet's roll-ups; its size, and what pages take."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.machine import BenchError

ROOT = Path(__file__).resolve().parent.parent


def run(options: argparse.Namespace) -> int:
    """Fill a database of its own, or the empty one of DATABASE_URL, and tell the figures."""
    try:
        found = _measured(options)
    except BenchError as problem:
        print(f"bin/bench: {problem}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1) if options.json else as_text(found))
    return 0


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="signalbox-telemetry-") as folder:
        url = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/roll-ups.sqlite3"
        sizes = [f"--{name}={getattr(options, name)}" for name in ("days", "replicas", "pools")]
        done = subprocess.run(
            [sys.executable, "-m", "bench.telemetry_run", *sizes],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "DATABASE_URL": url,
                "SIGNALBOX_VAR": folder,
                "SIGNALBOX_SECRET_KEY": "of-a-measurement-only",
                "SIGNALBOX_LOG_LEVEL": "ERROR",
                "REDIS_URL": "redis://127.0.0.1:1/0",  # long windows need none
            },
        )
    if done.returncode:
        raise BenchError("the measurement failed; what it said stands above")
    engine = url.partition(":")[0]
    return {"database": engine} | dict(json.loads(done.stdout.splitlines()[-1]))


def as_text(found: Mapping[str, Any]) -> str:
    """Show the figures as tables."""
    parts = [f"Roll-ups in {found['database']}"]
    for part, figures in found.items():
        if isinstance(figures, Mapping):
            parts.append(f"\n{part.replace('_', ' ')}")
            parts += [f"  {name:<66} {value:>10}" for name, value in figures.items()]
    return "\n".join(parts)
