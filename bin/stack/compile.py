"""Makes the compiled copy of the routing agent that `routing_agent.compiled` looks for.

Runs under the interpreter that will run the agent. What is compiled is the path of a request; what
is decoded into (`wire`, `envelope`, `usage`) stays as it is, because a compiled module does not
keep the types of its fields.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

CANNOT = 3  # exit status: this machine lacks what it takes
ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements-compile.txt"
MODULES = (
    "core/adapters", "core/attention", "core/cache_aware", "core/cache_notes", "core/cascade",
    "core/choose", "core/complexity", "core/continuation", "core/deadlines", "core/ejection",
    "core/engine_errors", "core/engine_traits", "core/expected_ttft", "core/explain",
    "core/fairness", "core/fleet", "core/gossip", "core/hash_policy", "core/holding", "core/limits",
    "core/load", "core/load_policies", "core/loads", "core/policy", "core/prefill", "core/prefix",
    "core/prefix_index", "core/profile", "core/replica", "core/replica_report", "core/residence",
    "core/retries", "core/ring", "core/sampling", "core/sessions", "core/shapes", "core/shares",
    "core/speed", "core/table", "core/waiting", "core/zones", "counts", "metrics",
    "proxy/admission", "proxy/again", "proxy/answer", "proxy/attempt", "proxy/chunks",
    "proxy/continuation", "proxy/exchange", "proxy/headers", "proxy/held", "proxy/ids",
    "proxy/incoming", "proxy/ingress", "proxy/outcome", "proxy/prompt", "proxy/request",
    "proxy/server", "proxy/shadow_copy", "proxy/shadows", "proxy/splice", "proxy/stream",
    "proxy/tracing", "proxy/transcript", "proxy/upstream", "proxy/which_model",
    "workers/absorbing", "workers/counts", "workers/fleet", "workers/gate", "workers/line",
    "workers/memory", "workers/prefill", "workers/replica", "workers/ring",
)  # fmt: skip
# Its own, because the project's configuration loads Django.
CONFIGURATION = """[mypy]
check_untyped_defs = True
[mypy-httptools.*,xxhash.*,uvloop.*,structlog.*]
ignore_missing_imports = True
"""
SETUP = """
import sys
from setuptools import setup
from mypyc.build import mypycify
level, *modules = sys.argv[1:]
sys.argv[1:] = ["-q", "build_ext", "--inplace"]
words = ["--config-file", "mypy.ini", *modules]
extensions = mypycify(words, opt_level=level, debug_level="0", group_name="signalbox_relay")
for extension in extensions:  # to look for what -Wall warns of takes longer than to compile
    extension.extra_compile_args += ["-Wno-all", "-Wno-sign-compare", "-w"]
setup(name="signalbox-relay", packages=[], ext_modules=extensions)
"""


def main(words: Sequence[str]) -> int:
    """Compile, unless that has been done for these sources."""
    parser = argparse.ArgumentParser(
        prog="bin/compile",
        description="Compiles the path of a request through the routing agent; agents started "
        "afterwards use it. Not needed: the same code runs interpreted, at about 1.5 times the "
        "CPU for a short request. Takes about a minute, and again after each change of the code.",
    )
    parser.add_argument(
        "--level", choices=("0", "3"), default="3", help="of the C compiler (0: for a quick test)"
    )
    given = parser.parse_args(words)
    sys.path.insert(0, str(ROOT))
    from routing_agent import compiled

    copy = compiled.place()
    if is_done(copy / compiled.DONE, given.level):
        print(f"already compiled: {copy}")
        return 0
    problem = prepare()
    if problem:
        print(f"bin/compile: {problem}", file=sys.stderr)
        return CANNOT
    return build(compiled.PACKAGE, copy, compiled.DONE, given.level)


def is_done(told: Path, level: str) -> bool:
    """Say whether a copy is complete and as fast as is asked: one for a quick test is not."""
    return told.is_file() and told.read_text() >= level


def prepare() -> str:
    """Install the packages that compiling takes; give what this machine lacks, "" if nothing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}). Install one, as gcc, or go on interpreted."
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Python's headers are missing (python3-dev). Install them, or go on interpreted."
    words = ["-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS)]
    if subprocess.run([sys.executable, *words], check=False).returncode:
        return f"could not install {REQUIREMENTS.name}; see above."
    return ""


def build(package: Path, copy: Path, done: str, level: str) -> int:
    """Compile in a folder of its own and move the whole into place; gives the exit status."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    print(f"compiling {len(MODULES)} modules …", flush=True)
    with tempfile.TemporaryDirectory(dir=copy.parent, prefix="building-") as scratch:
        place = Path(scratch)
        shutil.copytree(package, place / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        place.joinpath("mypy.ini").write_text(CONFIGURATION)
        place.joinpath("setup.py").write_text(SETUP)
        sources = [f"{package.name}/{module}.py" for module in MODULES]
        words = [sys.executable, "setup.py", level, *sources]
        ended = subprocess.run(words, cwd=place, check=False, capture_output=True, text=True)
        if ended.returncode:
            print(ended.stdout + ended.stderr, file=sys.stderr)
            print("bin/compile: failed, see above. Agents go on interpreted.", file=sys.stderr)
            return 1
        for leftover in ("build", "setup.py", "mypy.ini", ".mypy_cache"):
            path = place / leftover
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        place.joinpath(done).write_text(level)
        shutil.rmtree(copy, ignore_errors=True)  # one that was compiled at another level
        place.rename(copy)
        place.mkdir()  # for the clearing up of what was moved
    remove_others(copy)
    print(f"compiled: {copy}. Agents started from now on use it.")
    return 0


def remove_others(copy: Path) -> None:
    """Remove what was compiled from other sources; an agent that runs has it in memory."""
    for other in copy.parent.iterdir():
        if other != copy and not other.name.startswith("building-"):
            shutil.rmtree(other)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
