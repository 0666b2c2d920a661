"""The agent's options that say which engines may be started on its node."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from routing_agent.engine.programs import EngineRules, default_executable
from routing_agent.wire import ProgramName

PROGRAMS = ", ".join(get_args(ProgramName))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    group = parser.add_argument_group("engines that the control plane may start on this node")
    group.add_argument("--engine-ports", metavar="FROM-TO", help="their ports; none: starts none")
    group.add_argument(
        "--engine-program",
        action="append",
        default=[],
        metavar="NAME[=FILE]",
        help=f"an engine it may start, one of {PROGRAMS}; may be given several times",
    )
    group.add_argument(
        "--engine-models",
        action="append",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="weights are taken from below these folders only",
    )
    group.add_argument("--engine-host", help="where they listen; default: --host")


def rules(options: argparse.Namespace, *, host: str, address: str) -> EngineRules | None:
    """Read what may be started; None: nothing. ValueError says which option is wrong."""
    if not options.engine_ports:
        if options.engine_program:
            raise ValueError("--engine-program needs --engine-ports, for example 8400-8419")
        return None
    first, _, last = options.engine_ports.partition("-")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last) < 65536):
        raise ValueError(f"--engine-ports {options.engine_ports!r}: expected FROM-TO")
    return EngineRules(
        programs=dict(_program(text) for text in options.engine_program),
        first_port=int(first),
        last_port=int(last),
        host=host,
        address=address,
        folders=tuple(options.engine_models),
    )


def _program(text: str) -> tuple[ProgramName, str]:
    given, _, executable = text.partition("=")
    for name in get_args(ProgramName):
        if name == given:
            return name, executable or default_executable(name)
    raise ValueError(f"--engine-program {text!r}: known are {PROGRAMS}")
