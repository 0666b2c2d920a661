"""The routing agent: one per node, carries the OpenAI traffic, needs no control plane."""

__version__ = "0.1.0"
