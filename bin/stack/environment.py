"""The virtual environment: made once, repaired when half made, renewed when requirements change."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from stack.layout import Places
from stack.report import ProblemError, step

RUNTIME = "requirements.txt"
EMBEDDED = "requirements-embedded.txt"
DEVELOPMENT = "requirements-dev.txt"
MARKER_PREFIX = ".signalbox-installed-"


def ensure(places: Places, wanted: Sequence[str] = (RUNTIME,)) -> None:
    """Make sure that the virtual environment exists and holds these requirements files."""
    if os.environ.get("SIGNALBOX_VENV"):
        _require_prepared(places)
        return
    if not runs(places.python):
        _create(places)
    for file in wanted:
        _install(places, file)


def runs(python: Path) -> bool:
    """Say whether an environment's interpreter is there, whole, and new enough."""
    question = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    try:
        return subprocess.run([python, "-Ic", question], capture_output=True).returncode == 0
    except OSError:
        return False


def _require_prepared(places: Places) -> None:
    if not runs(places.python):
        raise ProblemError(
            f"SIGNALBOX_VENV={places.venv} holds no working Python 3.11 or newer.",
            "unset SIGNALBOX_VENV to let bin/up make its own environment.",
        )


def _create(places: Places) -> None:
    _require_venv_module()
    with step("virtual environment"):
        if places.venv.exists():
            _clear(places.venv)
        made = subprocess.run(
            [sys.executable, "-m", "venv", places.venv], capture_output=True, text=True
        )
        if made.returncode != 0 or not runs(places.python):
            said = _last_words(made.stdout + made.stderr)
            raise ProblemError(
                f"could not make {places.shown(places.venv)}: {said}", _venv_remedy()
            )


def _require_venv_module() -> None:
    """Debian splits venv off: the module is there, what it needs (ensurepip) is not."""
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise ProblemError(f"{sys.executable} has no working venv module.", _venv_remedy())


def _venv_remedy() -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"install the package python3-venv (Debian and Ubuntu: apt install python3-venv, or\n"
        f"python{version}-venv for exactly this Python), then run the command again."
    )


def _clear(venv: Path) -> None:
    """Remove a half-made environment; anything else under its name is not ours to delete."""
    if venv.is_dir() and not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
        raise ProblemError(
            f"{venv} is in the way and is no virtual environment.", f"move it away: mv {venv} …"
        )
    shutil.rmtree(venv)


def _install(places: Places, file: str) -> None:
    marker = places.venv / f"{MARKER_PREFIX}{Path(file).stem}"
    made = (places.venv / "pyvenv.cfg").read_text()
    fingerprint = requirements_fingerprint(places.root / file, made)
    if marker.exists() and marker.read_text() == fingerprint:
        return
    marker.unlink(missing_ok=True)
    with step(f"install {Path(file).stem}"):
        _pip(places, file)
    marker.write_text(fingerprint)


def version(places: Places) -> tuple[int, ...]:
    """Give the Python version of the environment, which may differ from the one running this."""
    for line in (places.venv / "pyvenv.cfg").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.strip() in {"version", "version_info"}:
            return tuple(int(part) for part in value.strip().split(".")[:2])
    return sys.version_info[:2]


def requirements_fingerprint(file: Path, made: str) -> str:
    """Hash a requirements file with all those it includes, and how the environment was made."""
    digest = hashlib.sha256(made.encode())
    waiting, seen = [file.resolve()], set[Path]()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        text = current.read_text()
        digest.update(text.encode())
        included = (line.split()[1] for line in text.splitlines() if line.startswith("-r "))
        waiting.extend((current.parent / name).resolve() for name in included)
    return digest.hexdigest()


def _pip(places: Places, file: str) -> None:
    log = places.log / "install.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as sink:
        code = subprocess.run(
            # Imports compile what they need; compiling all would be a third of the work.
            [places.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
             "--no-compile", "-r", places.root / file],
            stdout=sink, stderr=sink, stdin=subprocess.DEVNULL,
        ).returncode  # fmt: skip
    if code != 0:
        raise ProblemError(
            f"installing {file} failed: {_last_words(log.read_text(errors='replace'))}",
            f"read {places.shown(log)}. Package installation is the one step that needs a\n"
            "network; for a proxy or a mirror set pip's variables (HTTPS_PROXY, PIP_INDEX_URL).",
        )


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it said nothing"])[-1]
