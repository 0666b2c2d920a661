"""What a client has got of a stream that may have to be continued, and the seam if it is.

Kept only in pools that continue broken streams. Until a stream breaks, its events are put aside as
they are and read in batches; after that, every event of the other engine is fitted to the first.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from routing_agent.core.continuation import CHAT
from routing_agent.proxy.stream import decoded, fields_of, whole_events
from routing_agent.proxy.usage import Usage

# Events are read once so many bytes have come: rarely, and with little put aside.
BATCH_BYTES: Final = 64 * 1024
# A longer text is not kept: about a million tokens' worth of no use to anybody.
TEXT_LIMIT_BYTES: Final = 4 * 1024 * 1024
_IDENTITY: Final = ("id", "created", "model", "system_fingerprint")
_PLAIN_DELTA: Final = frozenset({"role", "content"})


class Transcript:
    """One client's stream, over all the engines that wrote it."""

    __slots__ = ("_aside", "_aside_bytes", "_identity", "_owed", "_parts", "_size_bytes",
                 "earlier_tokens", "fault", "is_continuing", "is_exact", "path",
                 "tokens")  # fmt: skip

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_continuing = False
        self.fault = ""  # why this text cannot be continued
        self.tokens = 0  # by the engine writing now, counted by events
        self.earlier_tokens = 0  # by those before it
        self.is_exact = True  # whether engines told what those before them wrote
        self._aside: list[bytes] = []
        self._aside_bytes = 0
        self._identity: dict[str, Any] = {}
        self._owed = ""  # white space that the client has and the next engine was not given
        self._parts: list[str] = []
        self._size_bytes = 0

    def through(self, data: bytes) -> bytes:
        """Take whole events on their way to the client; give them as the client is to see them."""
        if self.is_continuing:
            return b"".join([self._fitted(event) for event in whole_events(data)])
        self._aside.append(data)
        self._aside_bytes += len(data)
        if self._aside_bytes > BATCH_BYTES:
            self._read_aside()
        return data

    def broke(self, usage: Usage | None) -> None:
        """Note that the engine writing now is gone; `usage` is what it told of itself."""
        self._read_aside()
        told = None if usage is None else usage.output()
        if told is None and self.tokens:
            self.is_exact = False
        self.earlier_tokens += self.tokens if told is None else told
        self.tokens = 0

    def text_to_continue(self) -> str:
        """Give the text so far as the next engine is to get it, and begin to fit what it writes.

        White space at the end stays behind: templates trim it, and models write it again.
        """
        self.is_continuing = True
        text = "".join(self._parts)
        kept = text.rstrip()
        self._owed = text[len(kept) :]
        return kept

    def usage(self, told: Usage | None, earlier: int) -> Usage | None:
        """Give an engine's figures as of the whole stream: it read `earlier` tokens as prompt."""
        if told is None or told.prompt() is None:
            return told
        prompt = max((told.prompt() or 0) - earlier, 0)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=(told.output() or 0) + earlier,
            cache_read_input_tokens=min(told.cached() or 0, prompt),
        )

    # -- reading -------------------------------------------------------------------------------

    def _read_aside(self) -> None:
        data = b"".join(self._aside)
        self._aside.clear()
        self._aside_bytes = 0
        for event in whole_events(data):
            chunk = _chunk_of(event)
            if chunk is not None:
                self._note(chunk)

    def _note(self, chunk: dict[str, Any]) -> None:
        if not self._identity:
            self._identity = {key: chunk[key] for key in _IDENTITY if key in chunk}
        for choice in chunk.get("choices") or ():
            text = self._text_of(choice)
            if text:
                self.tokens += 1
                self._parts.append(text)
                self._size_bytes += len(text)
        if self._size_bytes > TEXT_LIMIT_BYTES:
            self.fault = "its text is too long to be kept"
            self._parts.clear()

    def _text_of(self, choice: Any) -> str:
        """Give the text of a choice; anything beside text cannot be continued."""
        if not isinstance(choice, dict) or choice.get("index"):
            self.fault = "it has more than one choice"
            return ""
        if choice.get("logprobs"):
            self.fault = "it has log-probabilities"
        if self.path != CHAT:
            return _text(choice.get("text"))
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return ""
        more = next((k for k, v in delta.items() if v and k not in _PLAIN_DELTA), None)
        if more is not None:
            self.fault = f"it has '{more}'"
        return _text(delta.get("content"))

    # -- fitting -------------------------------------------------------------------------------

    def _fitted(self, event: bytes) -> bytes:
        """Give an event of the next engine as one of the first; b"" if nothing of it is news."""
        chunk = _chunk_of(event)
        if chunk is None:
            return event
        chunk.update(self._identity)
        usage = chunk.get("usage")
        is_news = isinstance(usage, dict)
        for choice in chunk.get("choices") or ():
            is_news = self._fit_choice(choice) or is_news
        if not is_news:
            return b""
        if isinstance(usage, dict):
            self._fit_usage(usage)
        self._note(chunk)
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def _fit_choice(self, choice: Any) -> bool:
        """Take out of a choice what the client has already; true if anything is left."""
        if not isinstance(choice, dict):
            return True
        holder, key = (choice.get("delta"), "content") if self.path == CHAT else (choice, "text")
        if isinstance(holder, dict):
            holder.pop("role", None)
            if isinstance(holder.get(key), str):
                holder[key] = self._without_owed(holder[key])
            if holder.get(key) or (holder is not choice and any(holder.values())):
                return True
        return choice.get("finish_reason") is not None

    def _without_owed(self, text: str) -> str:
        """Leave out what the client has already; what differs is news."""
        if not self._owed or not text:
            return text
        pairs = enumerate(zip(text, self._owed, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(text), len(self._owed)))
        self._owed = self._owed[same:] if same == len(text) else ""
        return text[same:]

    def _fit_usage(self, usage: dict[str, Any]) -> None:
        earlier = self.earlier_tokens
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(output, int):
            prompt = usage["prompt_tokens"] = max(prompt - earlier, 0)
            usage["completion_tokens"] = output + earlier
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
                details["cached_tokens"] = min(details["cached_tokens"], prompt)


def _chunk_of(event: bytes) -> dict[str, Any] | None:
    _, payload = fields_of(event)
    return None if payload is None else decoded(payload)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
