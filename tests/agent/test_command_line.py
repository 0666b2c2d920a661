"""`python -m routing_agent`: its commands and what it loads for them."""

from __future__ import annotations

import subprocess
import sys

from routing_agent.__main__ import main

SERVE_HELP = """
import sys
from routing_agent.__main__ import main
try:
    main(["serve", "--help"])
except SystemExit:
    pass
assert "routing_agent.simulation" not in sys.modules
assert "django" not in sys.modules
"""


def test_without_a_command_it_lists_them(capsys):
    assert main([]) == 2
    listed = capsys.readouterr().err
    for command in ("serve", "agent", "simulate-engine"):
        assert command in listed


def test_help_is_no_error(capsys):
    assert main(["--help"]) == 0
    assert "serve" in capsys.readouterr().out


def test_an_unknown_command_is_told(capsys):
    assert main(["server"]) == 2
    assert "there is no command 'server'" in capsys.readouterr().err


def test_serving_loads_neither_the_simulation_nor_the_control_plane():
    subprocess.run([sys.executable, "-c", SERVE_HELP], capture_output=True, check=True)
