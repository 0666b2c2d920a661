"""`bin/bench setup`: the peers that come as Python packages, each in an environment of its own.

Versions are pinned: figures of another release are other figures, and two releases of litellm were
malicious (1.82.7 and 1.82.8).
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.machine import progress
from bench.peers import VENVS, Absent, system_program

INSTALL_LIMIT_S = 1800.0
# Peers named here so that nobody takes their absence from the tables for an oversight.
NOT_TO_BE_HAD = {
    "production-stack": "is not published as a Python package; measure it from its repository",
}


@dataclass(frozen=True, slots=True)
class Package:
    """What a peer is installed from."""

    peer: str
    requirement: str


PACKAGES = (
    Package("vllm-router", "vllm-router==0.1.17"),
    Package("sglang-router", "sglang-router==0.3.2"),
    Package("litellm", "litellm[proxy]==1.106.12"),
)
FROM_THE_SYSTEM = ("nginx", "haproxy")


def run() -> int:
    """Install what is missing, say what cannot be had; gives the exit status."""
    VENVS.parent.mkdir(mode=0o700, exist_ok=True)
    VENVS.mkdir(mode=0o700, exist_ok=True)
    missing = 0
    for name in FROM_THE_SYSTEM:
        missing += _tell(name, lambda name=name: system_program(name))
    for package in PACKAGES:
        missing += _tell(package.peer, lambda package=package: install(package, VENVS))
    for name, why in NOT_TO_BE_HAD.items():
        print(f"  {name:16} {why}")
    if missing:
        print(f"{missing} cannot be had here; bin/bench measures the others and names these.")
    return 1 if missing else 0


def _tell(name: str, have: object) -> int:
    progress(f"setting up {name}")
    try:
        print(f"  {name:16} {have()}")  # type: ignore[operator]
    except Absent as reason:
        print(f"  {name:16} CANNOT BE HAD: {reason}")
        return 1
    return 0


def install(package: Package, venvs: Path) -> str:
    """Make sure that a package is there in its pinned version; gives where."""
    folder = venvs / package.peer
    if not (folder / "bin" / "python").exists():
        _run([sys.executable, "-m", "venv", str(folder)], "no virtual environment")
    python = str(folder / "bin" / "python")
    if not _has(python, package.requirement):
        words = ["install", "--quiet", "--no-input", package.requirement]
        _run([python, "-m", "pip", *words], f"pip cannot install {package.requirement}")
    return f"{package.requirement} in {folder}"


def _has(python: str, requirement: str) -> bool:
    name, _, version = requirement.partition("==")
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    command = [python, "-c", code, name.partition("[")[0]]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.stdout.strip() == version


def _run(command: list[str], problem: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise Absent(f"{problem}: not done within {INSTALL_LIMIT_S:.0f} s") from None
    if done.returncode:
        said = [line for line in done.stderr.strip().splitlines() if "WARNING" not in line]
        raise Absent(f"{problem}: {' '.join(said[-2:])[-400:] or 'it said nothing'}")
