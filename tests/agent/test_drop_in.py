"""`serve` as a drop-in: the openai client hears through it what the engines say, to the byte."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from bench.drop_in import Finding, run_questions
from bench.drop_in_questions import HELLO, questions
from routing_agent.simulation.profiles import A100_QWEN_7B
from routing_agent.simulation.requests import Limits
from routing_agent.simulation.server import EngineServer
from tests.agent.processes import AgentProcess
from tests.agent.waiting import until

# Where no usage is asked for, vLLM stamps its fingerprint on the final event of every choice. The
# agent asks for usage and moves the stamp to the last final event: no choice waits for another.
STAMPED_ONCE = ("chat: n=2, stream", "completion: n=2, logprobs, stream")
CHAT, EMBEDDING = "chat-model", "embedding-model"


@dataclasses.dataclass
class Setting:
    """Two engines, and `serve` before them as its users start it."""

    chat: str
    embedding: str
    agent: str

    def client(self, url: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    async def findings(self, kind: str) -> list[Finding]:
        asked = [q for q in questions(CHAT, EMBEDDING) if q.name.startswith(kind)]
        engine = self.embedding if kind == "embeddings" else self.chat
        return await run_questions(engine, self.agent, asked)


async def _engine(model: str, *, embedding: bool = False) -> EngineServer:
    profile = A100_QWEN_7B.faster(20.0)
    limits = Limits(
        model=model, longest_request_tokens=profile.longest_request_tokens, answer_tokens=20
    )
    server = EngineServer(profile, limits, embedding=embedding)
    await server.start()
    return server


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    engines = [await _engine(CHAT), await _engine(EMBEDDING, embedding=True)]
    chat, embedding = (f"http://127.0.0.1:{engine.port}" for engine in engines)
    agent = AgentProcess(tmp_path / "log", "serve", "--worker-urls", chat, embedding)
    await agent.start()
    await agent.listens()
    await until(lambda: agent.events("table_built"))
    yield Setting(chat, embedding, agent.traffic)
    await agent.kill()
    for engine in engines:
        await engine.stop(0.01)


@pytest.mark.parametrize("kind", ["chat", "tools", "completion", "embeddings"])
async def test_the_client_hears_the_same_bytes_as_from_the_engine(
    setting: Setting, kind: str
) -> None:
    findings = await setting.findings(kind)
    assert findings
    for finding in findings:
        expected = "same stream" if finding.name in STAMPED_ONCE else "same bytes"
        assert finding.verdict == expected, finding
        assert "Error" not in finding.detail, finding


async def test_errors_are_the_engines_own_or_of_the_same_class(setting: Setting) -> None:
    findings = await setting.findings("error")
    assert {finding.verdict for finding in findings} == {"same bytes", "same error"}
    assert all("Error" in finding.detail for finding in findings)


async def test_models_are_listed_with_their_sizes(setting: Setting) -> None:
    [finding] = await setting.findings("models")
    assert finding.verdict == "own answer", finding
    async with setting.client(setting.agent) as client:
        assert [model.id async for model in client.models.list()] == [CHAT, EMBEDDING]
        assert (await client.models.retrieve(CHAT)).id == CHAT


async def test_a_request_id_of_the_client_names_its_answer_on_both_ways(setting: Setting) -> None:
    ids = []
    for url in (setting.chat, setting.agent):
        async with setting.client(url) as client:
            answer = await client.chat.completions.create(
                model=CHAT, messages=HELLO, extra_headers={"X-Request-Id": "mine-1"}
            )
            ids.append(answer.id)
    assert ids == ["chatcmpl-mine-1"] * 2
