"""The compiled copy of the agent is used for the sources it was made from, and for no others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stack import compile as compiling

from routing_agent import compiled

ROOT = Path(__file__).resolve().parents[2]
WHERE = (
    "from routing_agent import compiled; used = compiled.use();"
    "import routing_agent.core.load as module; print(used, compiled.is_used(), module.__file__)"
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Give a checkout of the agent alone, with a copy that stands for a compiled one."""
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "routing_agent", tmp_path / "routing_agent", ignore=hidden)
    copy = compiled.place(tmp_path / "routing_agent", tmp_path / "var" / "compiled")
    shutil.copytree(tmp_path / "routing_agent", copy / "routing_agent")
    copy.joinpath(compiled.DONE).touch()
    return tmp_path


def imported(checkout: Path, **environment: str) -> str:
    """Say where an agent of this checkout takes its modules from."""
    done = subprocess.run(
        [sys.executable, "-c", WHERE],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_an_agent_uses_the_copy_made_from_its_sources(checkout: Path) -> None:
    """Made from exactly these sources, the copy is what is imported."""
    answer = imported(checkout)
    assert answer.startswith("True True")
    assert "var/compiled" in answer


def test_a_changed_source_turns_the_copy_away(checkout: Path) -> None:
    """Whoever edits a file runs what is in the file."""
    with (checkout / "routing_agent" / "core" / "load.py").open("a") as source:
        source.write("\nCHANGED = True\n")
    answer = imported(checkout)
    assert answer.startswith("False False")
    assert "var/compiled" not in answer


def test_a_broken_off_build_is_not_used(checkout: Path) -> None:
    """The mark of a whole build is written last."""
    next(checkout.glob("var/compiled/*/" + compiled.DONE)).unlink()
    assert imported(checkout).startswith("False False")


def test_the_plain_sources_can_be_asked_for(checkout: Path) -> None:
    """For debugging, one variable turns the copy off."""
    assert imported(checkout, **{compiled.OFF: "1"}).startswith("False False")


def test_without_a_compiler_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is no failure of the product: everything goes on interpreted."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C compiler" in compiling.prepare()
    assert "go on interpreted" in compiling.prepare()


def test_every_compiled_module_exists_and_none_is_decoded_into() -> None:
    """A compiled module loses the types of its fields: what JSON is decoded into stays outside."""
    sources = {m: (ROOT / "routing_agent" / f"{m}.py").read_text() for m in compiling.MODULES}
    decoding = [m for m, text in sources.items() if re.search(r"Decoder\(|[ (]type=", text)]
    assert decoding == []


def test_of_copies_made_before_only_the_newest_stays(tmp_path: Path) -> None:
    """Old copies do not pile up; a build that runs beside is left alone."""
    for name in ("old", "new", "building-x"):
        (tmp_path / name).mkdir()
    compiling.remove_others(tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["building-x", "new"]


def test_a_copy_for_a_quick_test_is_not_taken_for_the_fast_one(tmp_path: Path) -> None:
    """What tests compile in a hurry took a third more CPU, and was kept as "already compiled"."""
    told = tmp_path / compiled.DONE
    assert not compiling.is_done(told, "0")
    told.write_text("0")
    assert compiling.is_done(told, "0")
    assert not compiling.is_done(told, "3")
    told.write_text("3")
    assert compiling.is_done(told, "0")
    assert compiling.is_done(told, "3")
