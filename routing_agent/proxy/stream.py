"""Server-sent events, parsed only as far as needed: first token, usage, finish, error.

Bytes go on event by event: a half event is kept until the rest has come, so that an error event can
always follow cleanly. An event that is plainly just a token is forwarded without being decoded.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from routing_agent.proxy.usage import Usage, merged, usage_of

# A blank line: two line ends in a row, each LF, CRLF or CR (WHATWG HTML, section 9.2.5).
# After CRLF a lone CR at the end of what has come is half a line end: its LF is on its way.
_EVENT_END: Final = re.compile(rb"\r\n(?:\r\n|\n|\r(?=[^\n]))|(?:(?<!\r)\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
# What a client is told of a request that an engine gave up on: vLLM and SGLang end such a stream as
# if it were finished, with a reason that OpenAI's API does not know.
ABORTED: Final = (
    b'{"error":{"message":"The engine gave up on this request (finish reason abort).",'
    b'"type":"server_error","param":null,"code":"engine_failed"}}'
)
# What stands before the text of a token event.
_TEXT_NAMES: Final = (b'"content":"', b'"reasoning_content":"', b'"reasoning":"', b'"text":"')
# As numbers: `in` takes whatever it looks for in bytes for a number first, and fails dearly.
_QUOTE: Final = 0x22
_CR: Final = 0x0D
_LF: Final = 0x0A
# No engine sends larger events; one that does is broken, and we keep no more than this in memory.
MAX_EVENT_BYTES: Final = 4 * 1024 * 1024


class StreamError(Exception):
    """A stream that cannot be relayed any further."""


class EventReader:
    """Follows one stream; `feed` gives the bytes to pass on."""

    __slots__ = ("_after", "_before", "_extra", "_final", "_kept", "error", "events",
                 "finished_choices", "has_token", "is_done", "is_finished", "strip_usage",
                 "usage")  # fmt: skip

    def __init__(self, *, strip_usage: bool) -> None:
        self.strip_usage = strip_usage  # we asked for the usage chunk, the client did not
        self.has_token = False
        self.is_finished = False  # a finish reason, or what stands for it, was seen
        self.finished_choices = 0  # with n=2 a stream has two ends
        self.is_done = False  # data: [DONE]
        self.usage: Usage | None = None
        self.error: bytes | None = None  # the engine's own error event
        self.events = 0  # data events with content: the estimate where no usage is told
        self._kept = b""
        # A final event waits for the usage event that is stripped: vLLM stamps its fingerprint on
        # that one, and on the final event where no usage was asked for.
        self._final = b""
        self._extra: dict[str, Any] = {}
        self._before = b""  # what stands before and after the text in the last token event
        self._after = b""

    def is_token(self, data: bytes) -> bool:
        """Say whether `data` is one more event that differs from one seen in its text only.

        The quick way for most of a stream. Such data is counted here and needs no `feed`.
        """
        if self._kept or self._final or self.error is not None or not self._is_alike(data):
            return False
        self.events += 1
        return True

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; give the whole events to pass on (perhaps none yet)."""
        if self._is_broken:
            return b""
        if self._kept:
            data = self._kept + data
        out: list[bytes] = []
        start = 0
        for end in event_ends(data):
            event = data[start:end]
            start = end
            if not self._final and self._is_alike(event) and not self._is_broken:
                self.events += 1
                out.append(event)
            else:
                out.append(self._passed(event))
        self._kept = data[start:] if start else data
        if len(self._kept) > MAX_EVENT_BYTES:
            raise StreamError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return out[0] if len(out) == 1 else b"".join(out)

    @property
    def _is_broken(self) -> bool:
        # Asked anew each time: compiled code takes an attribute that was None once for None still.
        return self.error is not None

    def _is_alike(self, event: bytes) -> bool:
        """Say whether an event has another text than the last token event, and else is the same."""
        before, after = self._before, self._after
        return (
            before != b""
            and event.startswith(before)
            and event.endswith(after)
            and _QUOTE not in event[len(before) : len(event) - len(after)]
        )

    def _take_frame(self, event: bytes) -> None:
        """Remember what stands around the text of a token event, if it has just one.

        A text with an escape tells nothing: its end would have to be looked for.
        """
        for name in _TEXT_NAMES:
            start = event.find(name) + len(name)
            if start >= len(name):
                break
        else:
            return
        end = event.find(b'"', start)
        if event.find(b"\\", start, end) < 0 and event.endswith(b"}\n\n"):
            self._before, self._after = event[:start], event[end:]

    def end(self) -> bytes:
        """Take the end of the stream; give what is left to pass on."""
        rest, self._kept = self._kept, b""
        if self.error is not None:
            return b""
        if not rest.strip():
            return self.release() + rest  # perhaps the second half of a line end
        rest = rest if _EVENT_END.search(rest[-4:]) else rest + b"\n\n"
        return self._passed(rest) + self.release()

    def release(self) -> bytes:
        """Give the final event if it still waits: no usage event comes any more."""
        final, self._final = self._final, b""
        return final

    @property
    def is_complete(self) -> bool:
        """Whether the stream may end here: [DONE] alone is enough only if no error came before."""
        return self.error is None and (self.is_finished or self.is_done)

    def _passed(self, event: bytes) -> bytes:
        """Give what may go on to the client now that this event has come."""
        ends, self._extra = self.finished_choices, {}
        is_kept = self._keep(event)
        final = self.release()
        if self._extra:
            return with_fields(final, self._extra)
        if is_kept and self.strip_usage and self.finished_choices > ends:
            self._final = event
            return final
        return final + event if is_kept else final

    def _keep(self, event: bytes) -> bool:
        """Note what an event tells; false if it must not be passed on."""
        if self.error is not None:
            return False
        kind, payload = fields_of(event)
        if payload is None:
            return True
        if payload.strip() == b"[DONE]":
            self.is_done = True
            return True
        self.events += 1
        chunk = decoded(payload)
        if chunk is None:
            self.has_token = True
            return True
        if kind == b"error" or _is_error(chunk):
            self.error = payload
            return False
        is_kept = self._note(chunk)
        if self.has_token and not self.is_finished and chunk.get("choices") and self.usage is None:
            self._take_frame(event)
        return is_kept

    def _note(self, chunk: dict[str, Any]) -> bool:
        choices = chunk.get("choices")
        usage = usage_of(chunk) if _may_tell_usage(chunk) else None
        if usage is not None:
            self.usage = merged(self.usage, usage)
        if isinstance(choices, list) and choices:
            self._note_choices(choices)
            return self.error is None
        if usage is not None and "choices" in chunk:
            self.events -= 1
            self.is_finished = True  # engines send the usage chunk only after the last token
            if self.strip_usage:
                self._extra = {k: v for k, v in chunk.items() if k != "usage"}
            return not self.strip_usage
        self._note_typed(chunk)
        return True

    def _note_choices(self, choices: list[Any]) -> None:
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            reason = choice.get("finish_reason")
            if reason == "abort":
                self.error = ABORTED
                return
            if reason is not None:
                self.is_finished = True
                self.finished_choices += 1
            if not self.has_token:
                delta = choice.get("delta")
                self.has_token = bool(choice.get("text")) or _has_content(delta)

    def _note_typed(self, chunk: dict[str, Any]) -> None:
        """Follow the Responses and Messages streams, whose events carry a type."""
        kind = chunk.get("type")
        if not isinstance(kind, str):
            self.has_token = True  # a stream of a make we do not know: any event counts
            return
        if kind.endswith((".delta", "_delta")):
            self.has_token = True
        if kind in ("response.completed", "response.incomplete", "message_stop"):
            self.is_finished = True


def event_ends(data: bytes) -> list[int]:
    """Give where each whole event in `data` ends."""
    if _CR in data:
        return [match.end() for match in _EVENT_END.finditer(data)]
    ends: list[int] = []
    last = len(data) - 1
    at = data.find(b"\n")  # one byte is found far sooner than two
    while 0 <= at < last:
        if data[at + 1] == _LF:
            at += 1
            ends.append(at + 1)
        at = data.find(b"\n", at + 1)
    return ends


def fields_of(event: bytes) -> tuple[bytes, bytes | None]:
    """Give an event's name and its data (`None` if it has none)."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and _CR not in event:
        payload = event[6:-2]
        if _LF not in payload:  # one line: what engines send
            return b"", payload
    kind = b""
    data: list[bytes] = []
    for line in _LINE_END.split(event):
        if line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(b"event:"):
            kind = line[6:].strip()
    return kind, b"\n".join(data) if data else None


def decoded(payload: bytes) -> dict[str, Any] | None:
    """Give the JSON object in an event's data, or `None`."""
    try:
        chunk = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # not JSON: passed on as it is
    return chunk if isinstance(chunk, dict) else None


def with_fields(event: bytes, fields: dict[str, Any]) -> bytes:
    """Give an event with those of the fields that its JSON object lacks; not a byte else changes.

    An event that is not one line of JSON stays as it is.
    """
    body = event.rstrip(b"\r\n")
    chunk = decoded(body[5:]) if body.startswith(b"data:") else None
    missing = {k: v for k, v in fields.items() if k not in chunk} if chunk else {}
    if not missing:
        return event
    end = body.rindex(b"}")
    added = b"," + msgspec.json.encode(missing)[1:-1]
    return body[:end] + added + event[end:]


def whole_events(data: bytes) -> list[bytes]:
    """Take whole events apart."""
    ends = event_ends(data)
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _may_tell_usage(chunk: dict[str, Any]) -> bool:
    """Say whether it is worth to look closer: most events end here."""
    return chunk.get("usage") is not None or "response" in chunk or "message" in chunk


def _is_error(chunk: dict[str, Any]) -> bool:
    if chunk.get("error"):
        return True
    return chunk.get("object") == "error" or chunk.get("type") in ("error", "response.failed")


def _has_content(delta: Any) -> bool:
    if not isinstance(delta, dict):
        return False
    return any(value for key, value in delta.items() if key != "role")
