"""The shapes of request bodies, as far as routing reads them.

Apart from the code that uses them, because shapes that are decoded into must not be compiled: a
compiled module does not keep the types of their fields. What a decoder makes has no cycles, so the
cycle collector need not look at it.
"""

from __future__ import annotations

from typing import Final

import msgspec

NO_RAW: Final = msgspec.Raw()


class Part(msgspec.Struct, gc=False):
    """One part of a message's content."""

    type: str = ""
    text: str | None = None
    image_url: msgspec.Raw = NO_RAW
    source: msgspec.Raw = NO_RAW  # an image in the Anthropic shape
    input_audio: msgspec.Raw = NO_RAW
    audio_url: msgspec.Raw = NO_RAW
    video_url: msgspec.Raw = NO_RAW
    file: msgspec.Raw = NO_RAW
    content: msgspec.Raw = NO_RAW  # of a tool's result, in the Anthropic shape
    input: msgspec.Raw = NO_RAW  # of a tool's call, there


class ChatMessage(msgspec.Struct, gc=False):
    """One message of a conversation."""

    role: str = ""
    content: str | list[Part] | None = None
    tool_calls: msgspec.Raw = NO_RAW


class OddMessage(msgspec.Struct):
    """A message in a shape we do not know; the engine will judge it."""

    role: msgspec.Raw = NO_RAW
    content: msgspec.Raw = NO_RAW


class StreamOptions(msgspec.Struct, gc=False):
    """What a client wants of a stream."""

    include_usage: bool | None = None


class Envelope(msgspec.Struct, gc=False):
    """The fields routing needs, of every inference call."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | msgspec.UnsetType | None = msgspec.UNSET
    session_id: str | int | None = None
    user: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    messages: list[ChatMessage] | None = None
    system: msgspec.Raw = NO_RAW
    instructions: msgspec.Raw = NO_RAW
    prompt: msgspec.Raw = NO_RAW
    input: msgspec.Raw = NO_RAW
    tools: msgspec.Raw = NO_RAW
    n: int | None = None
    lora: msgspec.Raw = NO_RAW
    lora_path: msgspec.Raw = NO_RAW
    cache_salt: msgspec.Raw = NO_RAW


class OddEnvelope(msgspec.Struct):
    """The same with everything loose that the engine may judge instead of us."""

    model: str | None = None
    stream: bool | None = None
    messages: list[OddMessage] | None = None
    lora: msgspec.Raw = NO_RAW
    lora_path: msgspec.Raw = NO_RAW


ENVELOPE: Final = msgspec.json.Decoder(Envelope)
ODD_ENVELOPE: Final = msgspec.json.Decoder(OddEnvelope)
