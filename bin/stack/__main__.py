"""Runs as `python bin/stack COMMAND …`; the bash files beside this folder are its callers."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from stack.cli import main  # noqa: E402  (the line above makes it importable)

sys.exit(main(sys.argv[1:]))
