"""Runs as `python bin/checks …`; bin/test is its caller."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from checks.cli import main  # noqa: E402  (the line above makes it importable)

sys.exit(main(sys.argv[1:]))
