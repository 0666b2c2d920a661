"""What clients ask of a simulated engine: OpenAI bodies, read and checked the way vLLM does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import msgspec
import xxhash

from routing_agent.simulation.choices import Choice, Finish, Sampling, Tool, after, choices, chosen
from routing_agent.simulation.refusals import EngineRefusal, bad, decoded, invalid
from routing_agent.simulation.tokens import BYTES_PER_TOKEN, VOCABULARY, token_count

# Qwen2.5-VL makes 256 to 1,280 tokens of a picture; 1 KiB of our text is 256 tokens.
_PICTURE_BYTES = 1024
# OpenAI's own limit; vLLM's is 16,384 choices and 20 alternatives.
_MOST_CHOICES = 128
_MOST_LOGPROBS = 20


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options` of a request."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Body(Sampling, frozen=True, kw_only=True):
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    cache_salt: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None


class _ChatBody(_Body, frozen=True, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool = True


class _CompletionBody(_Body, frozen=True, kw_only=True):
    prompt: str | list[str | int]
    logprobs: int | None = None


class _EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    input: str | list[str | int]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = None


class _TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[_Message] | None = None
    return_token_strs: bool | None = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What this engine serves and how much of it."""

    model: str
    longest_request_tokens: int
    answer_tokens: int  # mean length of an answer that may end by itself
    max_adapter_rank: int = 64
    adapters: dict[str, str] = field(default_factory=dict)  # the path of each that is loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A chat or completion, ready to be computed: the words are known, only their time is not."""

    kind: Literal["chat", "completion"]
    model: str  # the base model or an adapter, as it was asked for
    adapter: str
    prompt: bytes
    prompt_tokens: int
    choices: tuple[Choice, ...]
    top_logprobs: int | None = None  # alternatives to each token; `None`: no log-probabilities
    max_tokens: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInputs:
    """Texts to embed."""

    texts: list[bytes]
    prompt_tokens: int
    base64: bool
    dimensions: int | None


def read_chat(body: bytes, limits: Limits) -> Generation:
    """Read a chat request, or raise the refusal vLLM would answer."""
    asked = _decode(body, _ChatBody, limits)
    if not asked.messages:
        raise EngineRefusal(
            400,
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
            "BadRequestError",
        )
    longest = (
        asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    )
    if asked.continue_final_message:
        return _continued(asked, longest, limits)
    prompt = _chat_prompt(asked.messages, asked.tools)
    return _generation("chat", asked, prompt, longest, limits)


def _tool_to_call(asked: _ChatBody, prompt: bytes) -> Tool | None:
    """Call a tool whenever that is allowed, and say something once its result is there."""
    wanted = asked.tool_choice or "auto"
    if not asked.tools or wanted == "none":
        return None
    if wanted == "auto" and asked.messages[-1].role == "tool":
        return None
    try:
        tools = msgspec.convert(asked.tools, list[Tool])
    except msgspec.ValidationError as problem:
        raise invalid("value_error", "tools", str(problem)) from problem
    tool = chosen(tools, wanted, prompt)
    if tool is None:
        raise EngineRefusal(
            400,
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
            "BadRequestError",
        )
    return tool


def _top_logprobs(asked: _ChatBody | _CompletionBody) -> int | None:
    if isinstance(asked, _CompletionBody):
        top = asked.logprobs
    else:
        top = (asked.top_logprobs or 0) if asked.logprobs else None
        if asked.top_logprobs and not asked.logprobs:
            raise bad("when using `top_logprobs`, `logprobs` must be set to true", "top_logprobs",
                       asked.top_logprobs)  # fmt: skip
    if top is not None and not 0 <= top <= _MOST_LOGPROBS:
        raise bad(f"at most {_MOST_LOGPROBS} logprobs are given", "logprobs", top)
    return top


def _continued(asked: _ChatBody, longest: int | None, limits: Limits) -> Generation:
    """Write on in the last message: as a greedy model does, with what it would have said anyway."""
    *before, last = asked.messages
    if asked.add_generation_prompt:
        raise bad("Cannot set both `continue_final_message` and `add_generation_prompt`", "1", 1)
    if last.role != "assistant" or not isinstance(last.content, str):
        raise bad("the last message must be a text of the assistant", "messages", last.role)
    said, prompt = last.content, _chat_prompt(before, asked.tools)
    ahead = None if longest is None else longest + token_count(said.encode())
    whole = _generation("chat", asked, prompt, ahead, limits)
    first = whole.choices[0]
    rest = after(first.pieces, said)
    if rest is None:  # not its own words: it goes on from them all the same
        return _generation("chat", asked, prompt + said.encode(), longest, limits)
    prompt += said.encode()
    is_cut = longest is not None and len(rest) >= longest
    finish: Finish = "length" if is_cut else first.finish
    kept = replace(first, pieces=rest[:longest] or [""], finish=finish)
    return replace(
        whole, prompt=prompt, prompt_tokens=token_count(prompt), choices=(kept, *whole.choices[1:])
    )


def read_completion(body: bytes, limits: Limits) -> Generation:
    """Read a completion request, or raise the refusal vLLM would answer."""
    asked = _decode(body, _CompletionBody, limits)
    prompt = _completion_prompt(asked.prompt)
    longest = 16 if asked.max_tokens is None else asked.max_tokens  # vLLM's default for this path
    return _generation("completion", asked, prompt, longest, limits)


def read_embedding(body: bytes, limits: Limits) -> EmbeddingInputs:
    """Read an embedding request, or raise the refusal vLLM would answer."""
    asked = _decode(body, _EmbeddingBody, limits)
    if asked.dimensions is not None and not 1 <= asked.dimensions <= 4096:
        raise bad("dimensions must be between 1 and 4096", "dimensions", asked.dimensions)
    many = isinstance(asked.input, list) and all(isinstance(one, str) for one in asked.input)
    texts = [_completion_prompt(one) for one in (asked.input if many else [asked.input])]
    counts = [token_count(text) for text in texts]
    for count in counts:
        _check_length(count, None, limits)
    return EmbeddingInputs(
        texts=texts,
        prompt_tokens=sum(counts),
        base64=asked.encoding_format == "base64",
        dimensions=asked.dimensions,
    )


def read_tokenize(body: bytes, limits: Limits) -> tuple[bytes, bool]:
    """Read a tokenize request: the text, and whether the tokens' strings are wanted."""
    asked = _decode(body, _TokenizeBody, limits)
    if asked.messages is not None:
        return _chat_prompt(asked.messages, None), bool(asked.return_token_strs)
    if asked.prompt is None:
        raise invalid("missing", "prompt", "Field required")
    return asked.prompt.encode(), bool(asked.return_token_strs)


_Shape = TypeVar("_Shape", _ChatBody, _CompletionBody, _EmbeddingBody, _TokenizeBody)


def _decode(body: bytes, shape: type[_Shape], limits: Limits) -> _Shape:
    asked = decoded(body, shape)
    if asked.model and asked.model != limits.model and asked.model not in limits.adapters:
        raise EngineRefusal(
            404,
            f"The model `{asked.model}` does not exist. Valid aliases: {limits.model}.",
            "NotFoundError",
            "model",
        )
    return asked


def _generation(
    kind: Literal["chat", "completion"],
    asked: _ChatBody | _CompletionBody,
    prompt: bytes,
    longest: int | None,
    limits: Limits,
) -> Generation:
    _check_sampling(asked)
    prompt_tokens = token_count(prompt)
    _check_length(prompt_tokens, longest, limits)
    max_tokens = limits.longest_request_tokens - prompt_tokens if longest is None else longest
    tool = _tool_to_call(asked, prompt) if isinstance(asked, _ChatBody) else None
    options = asked.stream_options or StreamOptions()
    adapter = asked.model if asked.model in limits.adapters else ""
    source = prompt + adapter.encode()  # an adapter has words of its own
    return Generation(
        kind=kind,
        model=adapter or limits.model,
        adapter=adapter,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        choices=choices(asked, source, max_tokens, limits.answer_tokens, tool),
        top_logprobs=_top_logprobs(asked),
        max_tokens=max_tokens,
        stream=bool(asked.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        salt=asked.cache_salt or "",
    )


def _check_sampling(asked: _Body) -> None:
    if asked.temperature is not None and asked.temperature < 0:
        raise bad("temperature must be non-negative", "temperature", asked.temperature)
    count = 1 if asked.n is None else asked.n
    if not 1 <= count <= _MOST_CHOICES:
        raise bad(f"n must be between 1 and {_MOST_CHOICES}", "n", count)
    if count > 1 and asked.temperature == 0:
        message = f"n must be 1 when using greedy sampling, got {count}."
        raise EngineRefusal(400, message, "BadRequestError")


def _check_length(prompt_tokens: int, output_tokens: int | None, limits: Limits) -> None:
    longest = limits.longest_request_tokens
    if output_tokens is not None and output_tokens > longest:
        raise EngineRefusal(
            400,
            f"max_tokens={output_tokens} cannot be greater than max_model_len={longest}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={output_tokens})",
            "BadRequestError",
            "max_tokens",
        )
    if output_tokens is not None and output_tokens < 1:
        raise bad("max_tokens must be at least 1", "max_tokens", output_tokens)
    if prompt_tokens + (output_tokens or 1) > longest:
        raise EngineRefusal(
            400,
            f"This model's maximum context length is {longest} tokens. However, you requested "
            f"{output_tokens or 1} output tokens and your prompt contains {prompt_tokens} input "
            "tokens. Please reduce the length of the input prompt or the number of requested "
            f"output tokens. (parameter=input_tokens, value={prompt_tokens})",
            "BadRequestError",
            "input_tokens",
        )


def _chat_prompt(messages: list[_Message], tools: list[Any] | None) -> bytes:
    """Write a conversation the way the model reads it (ChatML), tools first."""
    parts = [b"<tools>", msgspec.json.encode(tools), b"</tools>\n"] if tools else []
    for message in messages:
        parts += (b"<|im_start|>", message.role.encode(), b"\n", _content(message.content))
        if message.tool_calls:
            parts.append(msgspec.json.encode(message.tool_calls))
        parts.append(b"<|im_end|>\n")
    parts.append(b"<|im_start|>assistant\n")
    return b"".join(parts)


def _content(content: str | list[dict[str, Any]] | None) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    return b"".join(_part(part) for part in content)


def _part(part: dict[str, Any]) -> bytes:
    text = part.get("text")
    if isinstance(text, str):
        return text.encode()
    # Anything else is a picture or a sound: as many tokens as a picture, apart by its content.
    digest = xxhash.xxh3_128_hexdigest(msgspec.json.encode(part, order="deterministic"))
    return digest.encode() * (_PICTURE_BYTES // len(digest))


def _completion_prompt(prompt: str | int | list[str | int]) -> bytes:
    """Give a prompt's bytes; a list is either one text or token ids."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not prompt:
        raise EngineRefusal(
            400,
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            "BadRequestError",
            "prompt",
        )
    if isinstance(prompt, str):
        return prompt.encode()
    ids = prompt if isinstance(prompt, list) else [prompt]
    if not all(isinstance(one, int) and 0 <= one < VOCABULARY for one in ids):
        raise bad("the simulated engine takes one text or one list of token ids", "prompt", "more")
    return b"".join(int(one).to_bytes(BYTES_PER_TOKEN, "big") for one in ids)
