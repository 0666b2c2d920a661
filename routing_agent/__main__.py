"""The command line: `python -m routing_agent COMMAND`.

Each command's module is imported only when it is asked for, so that a node needs nothing of the
simulation and the simulation nothing of the agent.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

from routing_agent import compiled

# Commands whose modules bring `add_arguments(parser)` and `main(arguments) -> int`.
SIMULATION = {
    "simulate-engine": ("routing_agent.simulation.server", "one simulated engine"),
    "sample-traffic": ("routing_agent.simulation.traffic", "sample clients for a demonstration"),
    "replay": ("routing_agent.simulation.replay", "replay of a trace over simulated replicas"),
}


def serve(words: Sequence[str]) -> int:
    """Route over some engines, without a control plane."""
    from routing_agent import app, config

    return app.main(config.serve_config(words))


def agent(words: Sequence[str]) -> int:
    """Route as a control plane says."""
    from routing_agent import app, config

    return app.main(config.agent_config(words))


def relay_worker(words: Sequence[str]) -> int:
    """Carry requests as one process of an agent's several; the agent starts it itself."""
    from routing_agent.workers import worker

    return worker.main(words)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"serve": serve, "agent": agent}
OWN_COMMANDS = {"relay-worker": relay_worker}  # for the agent itself, not for people


def simulation_command(name: str, words: Sequence[str]) -> int:
    """Run a command of the simulation."""
    from routing_agent import log

    log.configure()
    module = import_module(SIMULATION[name][0])
    parser = argparse.ArgumentParser(prog=f"python -m routing_agent {name}", allow_abbrev=False)
    module.add_arguments(parser)
    status: int = module.main(parser.parse_args(words))
    return status


def usage() -> str:
    """List the commands."""
    lines = ["usage: python -m routing_agent COMMAND [options]", ""]
    lines += [f"  {name:16} {command.__doc__}" for name, command in COMMANDS.items()]
    lines += [
        f"  {name:16} {text}" for name, (module, text) in SIMULATION.items() if exists(module)
    ]
    return "\n".join([*lines, "", "COMMAND --help tells the options of each."])


def exists(module: str) -> bool:
    """Say whether this installation has a module."""
    return find_spec(module) is not None


def main(words: Sequence[str]) -> int:
    """Run one command; gives the exit status."""
    name, rest = (words[0], words[1:]) if words else ("", ())
    if name in COMMANDS:
        return COMMANDS[name](rest)
    if name in OWN_COMMANDS:
        return OWN_COMMANDS[name](rest)
    if name in SIMULATION and exists(SIMULATION[name][0]):
        return simulation_command(name, rest)
    if name in ("-h", "--help", "help"):
        sys.stdout.write(usage() + "\n")
        return 0
    problem = f"there is no command {name!r}\n\n" if name else ""
    sys.stderr.write(problem + usage() + "\n")
    return 2


if __name__ == "__main__":
    compiled.use()  # before anything else of the package is imported
    sys.exit(main(sys.argv[1:]))
