"""Which requests may be continued elsewhere, by what they ask for."""

from __future__ import annotations

import pytest

from routing_agent.core.continuation import request_fault

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("messages", [None, "hello", [], ["hello"], [None]])
def test_messages_of_no_known_shape_are_not_continued(messages):
    assert request_fault({"messages": messages}, CHAT, tokens=3) == (
        "its messages are of no known shape"
    )


def test_a_plain_chat_with_a_limit_can_be_continued():
    asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}
    assert request_fault(asked, CHAT, tokens=3) == ""
