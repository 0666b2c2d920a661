"""What an engine's error means, whichever of the five shapes it has.

`{"error": {"message", "type", "code"}}` (vLLM, llama.cpp, OpenAI) · `{"error": "text"}` (vLLM's
401, TGI with `error_type`) · `{"object": "error", "message", ...}` (SGLang) · `{"detail": ...}`
(FastAPI routes, transformers) · `{"success": false, "error_message"}` (SGLang's adapter calls).
Status and code often disagree with what happened, so the words are read too; they were seen at
real engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

Kind = Literal[
    "invalid",  # the request is at fault: never tried again
    "not_found",  # no such model, adapter or route
    "unauthorized",  # the engine does not take this agent's key
    "overloaded",  # busy, not broken: another replica may have room
    "loading",  # the model is not in memory yet
    "stopping",  # shutting down in order: it takes nothing new
    "dead",  # its core is gone: every request fails until it is restarted
    "broken",  # any other fault of the engine
]

MESSAGE_LENGTH: Final = 300

# Words of the engines, lower case, with what they mean. The first match counts.
_WORDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("cannot schedule new futures", "stopping"),  # vLLM after SIGTERM, as a 500
    ("is shutting down", "stopping"),
    ("enginecore encountered an issue", "dead"),  # vLLM V1 after its core process died, as a 500
    ("enginedeaderror", "dead"),
    ("background loop has errored", "dead"),  # vLLM V0
    ("loading model", "loading"),  # llama.cpp, as a 503
    ("queue is full", "overloaded"),  # SGLang
    ("currently busy", "overloaded"),  # vLLM
    ("no slot available", "overloaded"),  # llama.cpp
    ("model is overloaded", "overloaded"),  # TGI
    # Faults of an adapter's files, which vLLM reports as a 500.
    ("is greater than max_lora_rank", "invalid"),
    ("doesn't contain tensors", "invalid"),
    ("call to add_lora method failed: worker failed", "invalid"),
    # Faults of a request, which llama.cpp reports as a 500.
    ("input is not supported", "invalid"),  # a picture or sound for a model of text
    ("does not support multimodal", "invalid"),
    ("failed to load image or audio file", "invalid"),
    ("failed to download image", "invalid"),
    ("invalid base64 value", "invalid"),
    ("requires --jinja flag", "invalid"),
    ("cannot use both json_schema and grammar", "invalid"),
    ("only no echo is supported", "invalid"),
    ("unsupported param: ", "invalid"),
    ("failed to tokenize prompt", "invalid"),
)
_KIND_OF_STATUS: Final[dict[int, Kind]] = {
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    405: "not_found",
    429: "overloaded",
    501: "not_found",
    503: "overloaded",
}
_FIRST_FAULT_OF_ENGINE: Final = 500
_FIRST_ERROR: Final = 400
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class EngineError:
    """One error of an engine, read."""

    kind: Kind
    message: str  # the engine's own words, shortened; "" if it had none
    code: int  # the HTTP status, or the code inside an event under a 200; 0 = none told
    type: str = ""

    @property
    def may_be_retried(self) -> bool:
        """Whether the same request may succeed at another replica."""
        return self.kind in ("overloaded", "loading", "stopping", "dead", "broken")


def read_error(status: int, body: bytes) -> EngineError:
    """Read an error answer, or an error event under a 200 (give its payload and status 0)."""
    error = _inner(_object(body))
    message = _message(error) or _plain_text(body)
    code = status if status >= _FIRST_ERROR else _number(error.get("code"))
    kind_word = error.get("type") or error.get("error_type")
    name = kind_word if isinstance(kind_word, str) else ""
    return EngineError(_kind(code, f"{message} {name}".lower()), message, code, name)


def lacks_adapter(error: EngineError, served_name: str) -> bool:
    """Say whether an engine refused a request because it does not have its adapter (any more)."""
    if served_name not in error.message:
        return False
    return error.code == _NOT_FOUND or "never been loaded" in error.message  # vLLM; SGLang, a 400


def message_of(body: bytes) -> str:
    """Give the engine's own words; "" if there are none."""
    return _message(_inner(_object(body)))


def _kind(code: int, words: str) -> Kind:
    found = next((kind for word, kind in _WORDS if word in words), None)
    if found is not None:
        return found
    told = _KIND_OF_STATUS.get(code)
    if told is not None:
        return told
    return "invalid" if _FIRST_ERROR <= code < _FIRST_FAULT_OF_ENGINE else "broken"


def _inner(error: dict[str, Any]) -> dict[str, Any]:
    """Give the object that holds the message, whatever is wrapped around it."""
    wrapped = error.get("error")
    if isinstance(wrapped, dict):
        return wrapped
    return error


def _message(error: dict[str, Any]) -> str:
    for key in ("message", "error_message", "error", "detail"):
        value = error.get(key)
        if isinstance(value, str) and value:
            return value[:MESSAGE_LENGTH]
        if isinstance(value, list) and value:  # FastAPI's list of validation faults
            return _first_fault(value[0])
    return ""


def _first_fault(fault: object) -> str:
    if isinstance(fault, dict) and isinstance(fault.get("msg"), str):
        return str(fault["msg"])[:MESSAGE_LENGTH]
    return ""


def _plain_text(body: bytes) -> str:
    """Give a body that is plain words, as "Internal Server Error" is; "" for anything else."""
    text = body[: MESSAGE_LENGTH * 4].decode("utf-8", "replace").strip()
    return "" if text[:1] in ("", "{", "[", "<") else text[:MESSAGE_LENGTH]


def _number(code: object) -> int:
    if isinstance(code, bool):
        return 0
    if isinstance(code, int):
        return code
    return int(code) if isinstance(code, str) and code.isdecimal() else 0


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
