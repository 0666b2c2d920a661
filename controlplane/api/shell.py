"""What the API lends to every app's writes: idempotency, and who observed a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import idempotency
from controlplane.routing import selectors


class ApiShell:
    """The shell of this process: see `controlplane.rest.views.Shell`."""

    def once(self, request: Request, run: Callable[[], Response]) -> Response:
        """Run a write at most once for its idempotency key."""
        return idempotency.once(request, run)

    def observed(self, revision: int) -> dict[str, Any]:
        """Say how many agents run a table that covers `revision`."""
        seen = selectors.observed(revision)
        return {
            "n": seen.n,
            "m": seen.m,
            "agents_behind": list(seen.agents_behind),
            "silent": list(seen.silent),
        }
