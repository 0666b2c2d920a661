"""Every answer of the REST API that a test here gets is held against the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from tests.contract.answers import check


@pytest.fixture(scope="session", autouse=True)
def answers_are_as_promised() -> Iterator[None]:
    """Check answers on their way to the test."""
    ask = Client.request

    def checked(self: Client, **request: Any) -> Any:
        answer = ask(self, **request)
        if not answer.streaming:
            kind = answer.headers.get("Content-Type", "").partition(";")[0]
            method = request["REQUEST_METHOD"].lower()
            check(method, request["PATH_INFO"], answer.status_code, kind, answer.content)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "request", checked)
        yield
