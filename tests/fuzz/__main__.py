"""Fuzzes the parsers by coverage: `python -m tests.fuzz --minutes 10 [--target NAME]`.

Each target gets its share of the time in a process of its own. An input that breaks a promise is
kept in tests/fuzz/corpus/TARGET/, where the ordinary tests replay it: fix it there, then commit it.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"


def main() -> int:
    """Run all targets, or one; gives the number of those that failed."""
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="in all")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    options = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is missing: pip install -r requirements-dev.txt")
    names = options.target or sorted(TARGETS)
    seconds = max(int(options.minutes * 60 / len(names)), 1)
    failed = [name for name in names if _run(name, seconds)]
    print(f"{len(names)} targets, {seconds} s each; found something: {', '.join(failed) or 'no'}")
    return len(failed)


def _run(name: str, seconds: int) -> int:
    """Fuzz one target; inputs that only add coverage are not kept."""
    kept = CORPUS / name
    with tempfile.TemporaryDirectory() as grown:
        return subprocess.run(
            [
                *(sys.executable, "-m", "tests.fuzz.one", name, grown, str(kept)),
                *(f"-max_total_time={seconds}", f"-artifact_prefix={kept}/", "-timeout=20"),
                *("-max_len=8192", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"),
            ],
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
