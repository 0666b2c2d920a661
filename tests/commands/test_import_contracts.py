"""The contracts of .importlinter know every app, and every page and API module of each."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from stack.layout import ROOT

CONTROL_PLANE = ROOT / "controlplane"
# Shells and kits around the apps: they hold pages, but no services of their own nouns.
FRAMES = {"api", "console", "domain", "overview", "rest", "telemetry"}
APPS = sorted(
    folder.name
    for folder in CONTROL_PLANE.iterdir()
    if (folder / "__init__.py").exists() and folder.name not in FRAMES
)


def _contract(name: str) -> dict[str, list[str]]:
    parser = ConfigParser()
    parser.read(ROOT / ".importlinter")
    section = parser[f"importlinter:contract:{name}"]
    return {key: value.split() for key, value in section.items()}


def _is_shell(path: Path) -> bool:
    return path.stem.split("_")[0] in {"api", "views", "admin", "tasks"} and path.stem != "apps"


def test_every_app_is_layered_inside():
    assert sorted(_contract("inside-an-app")["containers"]) == [f"controlplane.{a}" for a in APPS]


def test_every_page_and_api_module_has_its_layer():
    named = {word.strip("()") for word in _contract("inside-an-app")["layers"]}
    shells = {p.stem for app in APPS for p in (CONTROL_PLANE / app).iterdir() if _is_shell(p)}
    assert {"api", "views"} <= shells
    assert shells - named == set()


def test_every_app_has_its_place_over_the_others_and_none_may_be_missing():
    layers = _contract("control-plane-layers")["layers"]
    assert {f"controlplane.{app}" for app in APPS} - set(layers) == set()
    assert [word for word in layers if "(" in word] == []
