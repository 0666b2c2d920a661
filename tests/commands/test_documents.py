"""The documents say what the code does: settings, environment, commands, decisions."""

from __future__ import annotations

import re

import msgspec
import pytest
from stack.layout import ROOT

from controlplane.domain.pool_setting_texts import TEXTS
from routing_agent.config import serve_config
from routing_agent.other_routers import FLAGS
from routing_agent.wire import PoolSettings

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENVIRONMENT = re.compile(r"\"((?:SIGNALBOX|DATABASE|REDIS|PROMETHEUS)_[A-Z_]+)\"")


def settings_table() -> str:
    """Give the table of pool settings as docs/operations.md must show it."""
    lines = ["| setting | default | unit | what it does |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(PoolSettings):
        _, _, unit, text = TEXTS[field.name]
        lines.append(f"| `{field.name}` | {_shown(field.default)} | {unit} | {text} |")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def test_the_table_of_pool_settings_is_the_one_in_the_code():
    if settings_table() not in OPERATIONS:
        pytest.fail(f"docs/operations.md must contain:\n\n{settings_table()}")


def test_every_environment_variable_is_documented():
    sources = [ROOT / "controlplane" / "settings.py", *(ROOT / "bin" / "stack").glob("*.py")]
    sources.append(ROOT / "routing_agent" / "config.py")
    known = {name for source in sources for name in ENVIRONMENT.findall(source.read_text())}
    assert {name for name in known if f"`{name}`" not in OPERATIONS} == set()


def test_no_documented_environment_variable_has_gone():
    documented = set(re.findall(r"`((?:SIGNALBOX|DATABASE|REDIS|PROMETHEUS)_[A-Z_]+)`", OPERATIONS))
    folders = ("bin", "controlplane", "routing_agent")
    texts = [p.read_text() for f in folders for p in (ROOT / f).rglob("*.py")]
    assert {name for name in documented if not any(name in text for text in texts)} == set()


def test_the_architecture_names_every_app_and_every_loop():
    text = (ROOT / "docs" / "architecture.md").read_text()
    apps = {p.parent.name for p in (ROOT / "controlplane").glob("*/apps.py")}
    assert {app for app in apps if f"`{app}`" not in text} == set()
    source = (ROOT / "controlplane" / "settings.py").read_text()
    loops = re.findall(r'"task": "([\w.]+)"', source)
    assert loops
    assert {loop for loop in loops if f"`{loop}`" not in text} == set()


def test_the_glossary_has_each_word_once_in_order():
    text = (ROOT / "docs" / "glossary.md").read_text()
    words = re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)[1:]
    keys = [re.sub(r"[^a-z ·]", "", word.lower()) for word in words]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    ours = [link for link in links if "://" not in link]
    assert [link for link in ours if not (document.parent / link).exists()] == []


def test_decisions_are_numbered_without_a_gap_and_fit_a_page():
    records = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(r.name[:4]) for r in records] == list(range(1, len(records) + 1))
    for record in records:
        text = record.read_text()
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "What we gave up"))
        assert len(text.split()) < 450


def test_the_table_of_other_routers_options_is_the_one_in_the_code():
    lines = ["| there | here |", "|---|---|"]
    lines += [f"| `{flag}` | {_as_code(here)} |" for flag, here in FLAGS.items()]
    table = "\n".join(lines)
    if table not in (ROOT / "docs" / "drop-in.md").read_text():
        pytest.fail(f"docs/drop-in.md must contain:\n\n{table}")


def _as_code(text: str) -> str:
    return re.sub(r"--[a-z-]+( 0| [A-Z]+| reject)?|/metrics|X-Request-Id", r"`\g<0>`", text)


def test_every_option_named_for_another_routers_is_one_of_ours(capsys):
    with pytest.raises(SystemExit):
        serve_config(["--help"])
    ours = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    named = set(re.findall(r"--[a-z-]+", " ".join(FLAGS.values())))
    assert named <= ours
    assert not set(FLAGS) & ours


def test_the_line_that_replaces_another_router_is_understood():
    readme = (ROOT / "README.md").read_text()
    lines = re.findall(r"^\.venv/bin/python -m routing_agent serve (.*)$", readme, re.MULTILINE)
    assert lines
    for line in lines:
        config = serve_config(line.split())
        assert len(config.role.worker_urls) == 2
        assert config.port in (9000, 30000)
