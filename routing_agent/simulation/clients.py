"""Sample clients: who asks, what they ask, and what the next turn looks like."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from routing_agent.simulation import corpus

Kind = Literal["chat", "document", "classification", "embedding"]

# Shares of requests; a chat has four turns on average and a document two questions.
MIX: dict[Kind, float] = {
    "chat": 0.62,
    "document": 0.08,
    "classification": 0.20,
    "embedding": 0.10,
}
MEAN_TURNS: dict[Kind, float] = {
    "chat": 4.0,
    "document": 2.0,
    "classification": 1.0,
    "embedding": 1.0,
}
DOCUMENTS = 40
DOCUMENT_TOKENS = (1500, 6000)


class TenantKey(msgspec.Struct, frozen=True):
    """A tenant of the key file."""

    name: str
    key: str


class KeyFile(msgspec.Struct, frozen=True):
    """The file that says for whom to ask, and which models."""

    tenants: list[TenantKey]
    chat_model: str = ""
    embedding_model: str = ""


@dataclass(slots=True)
class Conversation:
    """One client's dealings: one or several requests, each built on the answers before."""

    kind: Kind
    tenant: TenantKey
    session: str
    turns: int
    seed: int
    messages: list[dict[str, str]] = field(default_factory=list)

    def requests(self, model: str) -> Iterator[tuple[str, dict[str, object]]]:
        """Give path and body of each turn; `heard` is called between them."""
        dice = random.Random(self.seed)  # noqa: S311 - not a secret
        for turn in range(self.turns):
            yield _BUILDERS[self.kind](self, turn, dice, model)

    def heard(self, words: str) -> None:
        """Keep the assistant's answer for the next turn."""
        self.messages.append({"role": "assistant", "content": words})

    def _chat(self, turn: int, dice: random.Random, model: str) -> tuple[str, dict[str, object]]:
        if turn == 0:
            prompts = corpus.SYSTEM_PROMPTS
            # A tenant has two assistants at most, so that its chats share their first blocks.
            mine = (len(self.tenant.name) + dice.randrange(2)) % len(prompts)
            self.messages = [{"role": "system", "content": prompts[mine]}]
        self.messages.append({"role": "user", "content": dice.choice(corpus.QUESTIONS)})
        return _chat_body(model, self.messages, max_tokens=320, stream=dice.random() < 0.9)

    def _document(
        self, turn: int, dice: random.Random, model: str
    ) -> tuple[str, dict[str, object]]:
        if turn == 0:
            number = dice.randrange(DOCUMENTS)
            size = random.Random(number).randint(*DOCUMENT_TOKENS)  # noqa: S311 - not a secret
            self.messages = [{"role": "user", "content": corpus.document(number, size)}]
        else:
            self.messages.append({"role": "user", "content": ""})
        task = dice.choice(corpus.DOCUMENT_TASKS)
        last = self.messages[-1]
        last["content"] = f"{last['content']}\n\n{task}".strip()
        return _chat_body(model, self.messages, max_tokens=220, stream=True)

    def _classification(
        self, turn: int, dice: random.Random, model: str
    ) -> tuple[str, dict[str, object]]:
        messages = [
            {"role": "system", "content": corpus.CLASSIFICATION_PROMPT},
            {"role": "user", "content": dice.choice(corpus.MESSAGES)},
        ]
        return _chat_body(model, messages, max_tokens=3, stream=False)

    def _embedding(
        self, turn: int, dice: random.Random, model: str
    ) -> tuple[str, dict[str, object]]:
        texts = dice.sample(corpus.MESSAGES + corpus.QUESTIONS, dice.randint(1, 6))
        return "/v1/embeddings", {"model": model, "input": texts}


_BUILDERS = {
    "chat": Conversation._chat,
    "document": Conversation._document,
    "classification": Conversation._classification,
    "embedding": Conversation._embedding,
}


def _chat_body(
    model: str, messages: list[dict[str, str]], *, max_tokens: int, stream: bool
) -> tuple[str, dict[str, object]]:
    body: dict[str, object] = {"model": model, "messages": messages, "max_tokens": max_tokens}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return "/v1/chat/completions", body


def conversations_per_request() -> float:
    """Tell how many conversations start for each request made."""
    return sum(share / MEAN_TURNS[kind] for kind, share in MIX.items())


def draw(dice: random.Random, tenants: list[TenantKey], *, embeddings: bool) -> Conversation:
    """Draw the next conversation; the first tenants are the busiest."""
    kinds = [kind for kind in MIX if embeddings or kind != "embedding"]
    kind = dice.choices(kinds, [MIX[k] / MEAN_TURNS[k] for k in kinds])[0]
    tenant = dice.choices(tenants, [1 / (rank + 1) for rank in range(len(tenants))])[0]
    most = round(2 * MEAN_TURNS[kind]) - 1
    return Conversation(
        kind=kind,
        tenant=tenant,
        session=f"{tenant.name}-{dice.getrandbits(48):012x}",
        turns=dice.randint(1, most),
        seed=dice.getrandbits(32),
    )


def think_time_s(dice: random.Random) -> float:
    """Draw how long a person reads and types: 6 s in the middle, rarely over half a minute."""
    return min(dice.lognormvariate(1.8, 0.7), 60.0)


def words_of(path: str, body: bytes, *, streamed: bool) -> str | None:
    """Read the assistant's words from an answer; `None` if the answer is not complete."""
    if path != "/v1/chat/completions":
        return ""
    if not streamed:
        answer = msgspec.json.decode(body, type=_Whole)
        return answer.choices[0].message.content or ""
    events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    if not events or events[-1].strip() != b"[DONE]":
        return None
    chunks = [_CHUNK.decode(event) for event in events[:-1]]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    if not any(choice.finish_reason for choice in choices):
        return None  # an error event and [DONE]: what vLLM sends when it breaks
    return "".join(choice.delta.content or "" for choice in choices)


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message = msgspec.field(default_factory=_Message)
    delta: _Message = msgspec.field(default_factory=_Message)
    finish_reason: str | None = None


class _Whole(msgspec.Struct):
    choices: list[_Choice]


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_CHUNK = msgspec.json.Decoder(_Chunk)
