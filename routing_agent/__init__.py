"""The routing agent: one per node, carries the OpenAI traffic; deployable without the control plane."""

__version__ = "0.1.0"
