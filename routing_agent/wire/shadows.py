"""What agents tell of copied traffic: the primary's answer beside the shadow's."""

from __future__ import annotations

from routing_agent.wire.base import Count, Message


class ShadowAnswer(Message, frozen=True, kw_only=True):
    """One side of a pair. Texts are there only where the pool says that they are kept."""

    version: str = ""
    replica: str = ""
    status: int = 0  # 0: no answer
    error: str = ""  # why there is no whole answer, in our words
    text: str = ""  # its beginning
    text_length: Count = 0  # of the whole text as far as it was read, in characters
    is_cut: bool = False  # there was more text than was read
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    ttft_s: float | None = None  # of a stream
    duration_s: float | None = None


class ShadowPair(Message, frozen=True, kw_only=True):
    """One request that went to two versions. Numbered by the agent, resent until acknowledged."""

    number: Count = 0
    uid: str
    request_id: str
    at: float  # Unix seconds of the request
    tenant: str = ""
    model: str = ""
    pool: str = ""
    shadow_pool: str = ""
    path: str = ""
    stream: bool = False
    primary: ShadowAnswer
    shadow: ShadowAnswer
    is_same: bool = False  # both answered 200 with the same text, as far as it was read
    first_difference: Count | None = None  # characters that both texts begin with
    prompt: str = ""  # the request's body, its beginning; only where that is kept
