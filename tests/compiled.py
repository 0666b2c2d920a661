"""A pytest plugin: tests run against the compiled copy. `pytest -p tests.compiled tests/agent`."""

from routing_agent import compiled

if not compiled.use():
    raise RuntimeError("nothing was compiled from these sources: run bin/compile first")
