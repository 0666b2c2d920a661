"""`bin/bench drop-in`: the openai client's answers through an agent, beside the engine's own.

Every question is put to the engine directly and then to the agent. What arrives is compared twice:
byte by byte as it came over the wire, and as the client's own objects. Ids and times of creation
differ from request to request and are left out. The engine should be otherwise idle.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import re
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import httpx2
import openai

# same stream: the chunks joined are the same, but the engine put its tokens otherwise into chunks,
# as it does between any two answers when it is quicker than its reader
Verdict = Literal[
    "same bytes",
    "same answer",
    "same stream",
    "same error",
    "refused here",
    "own answer",
    "not repeatable",
    "DIFFERENT",
]
# Differ between any two answers of one engine.
_FRESH_FIELDS = frozenset({"id", "created", "created_at", "_request_id"})
_TIMING = re.compile(r".*(_ms|_per_second)$")  # llama.cpp tells how long it took
_FRESH_BYTES = re.compile(
    rb'"(id|created|created_at|\w+_ms|\w+_per_second)":\s*("[^"]*"|[-+.\de]+)'
)
_TEXTS = frozenset({"content", "text", "arguments", "reasoning", "reasoning_content", "refusal"})
# Of one connection, not of the answer; an agent has its own.
_CONNECTION_HEADERS = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}
)
_FAILURES = 500
_OWN_HEADERS = re.compile("x-signalbox-|x-request-id$")


@dataclass(slots=True)
class Exchange:
    """What came over the wire last."""

    status: int = 0
    headers: httpx2.Headers = field(default_factory=httpx2.Headers)
    body: bytes = b""


@cache
def _trust() -> ssl.SSLContext:
    """Whom the system trusts; read once, for it takes longer than a question."""
    return ssl.create_default_context()


class Recorder(httpx2.AsyncHTTPTransport):
    """Keeps the bytes of the last answer while the client reads them."""

    def __init__(self) -> None:
        super().__init__(verify=_trust())
        self.last = Exchange()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request on and listen to its answer."""
        response = await super().handle_async_request(request)
        self.last = Exchange(response.status_code, response.headers)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Heard(response.stream, self.last)
        return response


class _Heard(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, exchange: Exchange) -> None:
        self._stream = stream
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._exchange.body += piece
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One call of the client: a name, a method of it (dotted), and its arguments."""

    name: str
    call: str
    fields: dict[str, Any]
    refused_here: bool = False  # the agent refuses it itself, in its own words
    is_own: bool = False  # the agent answers it itself; the names in it must agree


@dataclass(frozen=True, slots=True)
class Heard:
    """What the client made of one answer, and the bytes behind it."""

    value: Any  # plain data; an error is its class and what its fields say
    exchange: Exchange
    is_error: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One question's outcome; `detail` names the first difference or what was compared."""

    name: str
    verdict: Verdict
    detail: str


async def ask(url: str, key: str, question: Question) -> Heard:
    """Put one question with the openai client, and take the answer apart."""
    recorder = Recorder()
    client = openai.AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key=key or "none",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=recorder, verify=_trust(), timeout=60.0),
    )
    method: Any = client
    for name in question.call.split("."):
        method = getattr(method, name)
    is_error = False
    async with client:
        try:
            value = await _plain(await method(**question.fields))
        except openai.APIConnectionError:
            raise
        except openai.APIError as error:  # without a status: an event of a stream
            is_error = True
            status = getattr(error, "status_code", None)
            value = {"class": type(error).__name__, "status": status, "body": error.body}
    return Heard(value, recorder.last, is_error)


async def _plain(answer: Any) -> Any:
    """Give an answer as plain data; a stream as the list of its chunks."""
    if hasattr(answer, "model_dump"):
        return answer.model_dump(warnings=False)
    return [chunk.model_dump(warnings=False) async for chunk in answer]


def compare(question: Question, direct: Heard, ours: Heard) -> Finding:
    """Hold what came through the agent against what the engine said itself."""
    if question.is_own:
        return _compare_own(question, direct, ours)
    if question.refused_here and ours.is_error:
        return _compare_refusals(question, direct, ours)
    if direct.is_error and ours.is_error and direct.value["status"] is None:
        return _compare_events(question, direct, ours)
    headers = header_difference(direct.exchange, ours.exchange)
    if headers:
        return Finding(question.name, "DIFFERENT", headers)
    if masked(direct.exchange.body) == masked(ours.exchange.body):
        return Finding(question.name, "same bytes", shown(ours))
    if not difference(direct.value, ours.value):
        return Finding(question.name, "same answer", shown(ours))
    different = difference(joined(direct.value), joined(ours.value))
    if different:
        return Finding(question.name, "DIFFERENT", different)
    told = f"{len(direct.value)} chunks direct, {shown(ours)}"
    return Finding(question.name, "same stream", told)


def _compare_own(question: Question, direct: Heard, ours: Heard) -> Finding:
    """Compare lists of models by their names and sizes; the rest is the agent's own."""
    told = [[(m["id"], m.get("max_model_len")) for m in h.value["data"]] for h in (direct, ours)]
    missing = [entry for entry in told[0] if entry not in told[1]]
    verdict: Verdict = "DIFFERENT" if missing else "own answer"
    return Finding(question.name, verdict, f"missing: {missing}" if missing else shown(ours))


def _compare_refusals(question: Question, direct: Heard, ours: Heard) -> Finding:
    if not direct.is_error:  # SGLang and llama.cpp answer to any name of a model
        return Finding(question.name, "refused here", f"{shown(ours)}; the engine answers")
    keys = ("class", "status")
    told = [{key: heard.value[key] for key in keys} for heard in (direct, ours)]
    different = difference(told[0], told[1])
    if not different and not (ours.value["body"] or {}).get("code"):
        different = "the error has no code"
    return Finding(question.name, "DIFFERENT" if different else "same error",
                   different or shown(ours))  # fmt: skip


def _compare_events(question: Question, direct: Heard, ours: Heard) -> Finding:
    """Compare an error inside a 200 with what the agent makes of it: it may give it a status."""
    told = [(heard.value["body"] or {}).get("message") for heard in (direct, ours)]
    if told[0] != told[1]:
        return Finding(question.name, "DIFFERENT", f"message: {told[0]!r}, here {told[1]!r}")
    return Finding(question.name, "same error", f"{shown(ours)}; inside a 200 from the engine")


def header_difference(direct: Exchange, ours: Exchange) -> str:
    """Name a header that was lost, changed, or added without being one of the agent's own.

    Of an engine's failures (5xx) the agent keeps the words and their type.
    """
    if (
        direct.status >= _FAILURES
        and direct.headers["content-type"] == ours.headers["content-type"]
    ):
        return ""
    for name, value in direct.headers.items():
        if name not in _CONNECTION_HEADERS and not _OWN_HEADERS.match(name):
            got = ours.headers.get(name)
            if got != value:
                return f"header {name}: {value!r}, here {got!r}"
    for name in ours.headers:
        known = name in direct.headers or name in _CONNECTION_HEADERS or _OWN_HEADERS.match(name)
        if not known:
            return f"header {name} is new"
    return ""


def difference(one: Any, other: Any, place: str = "") -> str:
    """Name the first place where two answers differ; "" if nowhere."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if key in _FRESH_FIELDS or _TIMING.match(key):
                continue
            if (key in one) != (key in other):
                return f"{place}.{key} is only {'direct' if key in one else 'here'}"
            found = difference(one[key], other[key], f"{place}.{key}")
            if found:
                return found
        return ""
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return f"{place or 'the stream'}: {len(one)} direct, {len(other)} here"
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (difference(a, b, f"{place}[{i}]") for i, (a, b) in pairs)), "")
    return "" if one == other else f"{place}: {one!r} direct, {other!r} here"


def joined(chunks: Any) -> Any:
    """Give a stream's chunks as one: texts and lists joined, all else as told last."""
    if not isinstance(chunks, list):
        return chunks
    whole: dict[str, Any] = {}
    for chunk in chunks:
        _join(whole, chunk)
    return whole


def _join(whole: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        known = whole.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            _join(known, value)
        elif isinstance(value, list) and isinstance(known, list):
            _join_lists(known, value)
        elif isinstance(value, str) and isinstance(known, str) and key in _TEXTS:
            whole[key] = known + value
        elif value is not None or key not in whole:
            whole[key] = copy.deepcopy(value)


def _join_lists(known: list[Any], more: list[Any]) -> None:
    for item in more:
        number = item.get("index") if isinstance(item, dict) else None
        same = next((k for k in known if number is not None and k["index"] == number), None)
        if same is None:
            known.append(copy.deepcopy(item))
        else:
            _join(same, item)
    if more and isinstance(more[0], dict) and "index" in more[0]:
        known.sort(key=lambda item: item["index"])


def masked(body: bytes) -> bytes:
    """Give the bytes of an answer without what differs from request to request."""
    return _FRESH_BYTES.sub(rb'"\1":_', body)


def shown(heard: Heard) -> str:
    """Say in a few words what was compared."""
    size = f"{len(heard.exchange.body)} bytes"
    if heard.is_error:
        return f"{heard.value['status']} {heard.value['class']}, {size}"
    return f"{len(heard.value)} chunks, {size}" if isinstance(heard.value, list) else size


async def run_questions(
    engine: str, agent: str, questions: list[Question], *, engine_key: str = "", key: str = ""
) -> list[Finding]:
    """Put every question to both. The first time is for the prefix cache: usage tells of it."""
    findings = []
    for question in questions:
        await ask(engine, engine_key, question)
        direct = await ask(engine, engine_key, question)
        ours = await ask(agent, key, question)
        finding = compare(question, direct, ours)
        if finding.verdict == "DIFFERENT":
            again = compare(question, direct, await ask(engine, engine_key, question))
            if again.verdict == "DIFFERENT":
                finding = Finding(question.name, "not repeatable", "the engine's answers differ")
        findings.append(finding)
    return findings


def table(findings: list[Finding]) -> str:
    """Give the findings as a Markdown table."""
    lines = ["| asked with the openai client | compared with the engine asked directly | |",
             "|---|---|---|"]  # fmt: skip
    lines += [f"| {f.name} | {f.verdict} | {f.detail} |" for f in findings]
    return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    """Compare, show the table; status 1 if anything differs."""
    if not (options.engine and options.agent):
        print("bin/bench drop-in: name both --engine URL and --agent URL.", file=sys.stderr)
        return 2
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    from bench.drop_in_questions import questions

    engine, agent = options.engine.rstrip("/"), options.agent.rstrip("/")
    try:
        listed = await ask(engine, options.engine_key, Question(name="", call="models.list",
                                                                fields={}))  # fmt: skip
        asked = questions(listed.value["data"][0]["id"])
        asked = [question for question in asked if question.name.startswith(options.only)]
        findings = await run_questions(
            engine, agent, asked, engine_key=options.engine_key, key=options.key
        )
    except openai.APIConnectionError as problem:
        print(f"bin/bench drop-in: {problem} ({engine} or {agent})", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([{"name": f.name, "verdict": f.verdict, "detail": f.detail}
                          for f in findings], indent=1))  # fmt: skip
    else:
        print(table(findings))
    return 0 if all(finding.verdict != "DIFFERENT" for finding in findings) else 1
