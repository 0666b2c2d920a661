"""A compiled copy of this package: the same sources, the request's path turned into machine code.

`bin/compile` makes it; the command line uses it when it was made from exactly these sources for
this interpreter, and the plain sources otherwise. See docs/adr/0009.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import routing_agent

PACKAGE: Final = Path(__file__).resolve().parent
FOLDER: Final = PACKAGE.parent / "var" / "compiled"
DONE: Final = "complete"  # written last: a build that was broken off is not used
OFF: Final = "SIGNALBOX_INTERPRETED"  # set to 1: the plain sources, whatever was compiled


def fingerprint(package: Path = PACKAGE) -> str:
    """Give what a copy must have been made from: these sources, this interpreter."""
    digest = hashlib.sha256(sys.implementation.cache_tag.encode())
    for source in sorted(package.rglob("*.py")):
        digest.update(source.relative_to(package).as_posix().encode() + b"\0")
        digest.update(source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def place(package: Path = PACKAGE, folder: Path = FOLDER) -> Path:
    """Give where the copy of these sources lies, or would lie."""
    return folder / fingerprint(package)


def use() -> bool:
    """Import the rest of the package from its compiled copy, if there is one; say whether."""
    if os.environ.get(OFF) == "1":
        return False
    if not FOLDER.is_dir():
        return False
    copy = place()
    if not (copy / DONE).is_file():
        return False
    sys.path.append(str(copy))  # for the library that the compiled modules share
    routing_agent.__path__.insert(0, str(copy / PACKAGE.name))
    return True


def is_used() -> bool:
    """Say whether this process runs the compiled copy."""
    return len(routing_agent.__path__) > 1
