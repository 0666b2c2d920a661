"""Which request of a simulated engine gets which answer."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable
from urllib.parse import parse_qs

from routing_agent.simulation import faults, lora_calls
from routing_agent.simulation.choices import Choice
from routing_agent.simulation.connection import Connection, HttpRequest
from routing_agent.simulation.engine import Engine, Job
from routing_agent.simulation.refusals import EngineRefusal
from routing_agent.simulation.replies import VERSION, EmbeddingReply, StreamReply, WholeReply
from routing_agent.simulation.requests import (
    Generation,
    read_chat,
    read_completion,
    read_embedding,
    read_tokenize,
)
from routing_agent.simulation.scheduler import Request
from routing_agent.simulation.tokens import block_hashes, token_ids, token_strings

Handler = Callable[[HttpRequest, Connection], None]
InferenceHandler = Callable[[HttpRequest, Connection, faults.Fate], None]
FAULTS_PATH = "/simulate/faults"


class Routes:
    """The HTTP surface of one engine."""

    def __init__(self, engine: Engine, *, api_key: str = "", embedding: bool = False) -> None:
        self._engine = engine
        self._api_key = api_key.encode()
        self._started_at = int(time.time())
        self.is_draining = False
        self._handlers: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/v1/load_lora_adapter": {"POST": self._load_adapter},
            "/v1/unload_lora_adapter": {"POST": self._unload_adapter},
            "/sleep": {"POST": self._sleep},
            "/wake_up": {"POST": self._wake},
            "/is_sleeping": {"GET": self._is_sleeping},
            FAULTS_PATH: {
                "GET": self._show_faults,
                "POST": self._switch_faults,
                "DELETE": self._clear_faults,
            },
        }
        self._inference: dict[str, InferenceHandler] = (
            {"/v1/embeddings": self._embed}
            if embedding
            else {"/v1/chat/completions": self._generate, "/v1/completions": self._generate}
        )
        for path in self._inference:
            self._handlers[path] = {"POST": self._infer}

    def respond(self, request: HttpRequest, connection: Connection) -> None:
        """Answer a request, now or when its tokens are computed."""
        methods = self._handlers.get(request.path)
        if methods is None:
            connection.send_json(404, {"detail": "Not Found"})
        elif request.method not in methods:
            connection.send_json(405, {"detail": "Method Not Allowed"})
        elif request.path.startswith("/v1/") and not self._may_enter(request):
            connection.send_json(401, {"error": "Unauthorized"})
        else:
            self._try(methods[request.method], request, connection)

    def _try(self, handler: Handler, request: HttpRequest, connection: Connection) -> None:
        try:
            handler(request, connection)
        except EngineRefusal as refusal:
            _send_error(connection, refusal)

    def _may_enter(self, request: HttpRequest) -> bool:
        given = request.headers.get(b"authorization", b"")
        return not self._api_key or hmac.compare_digest(given, b"Bearer " + self._api_key)

    # Inference

    def _infer(self, request: HttpRequest, connection: Connection) -> None:
        _check_content_type(request)
        if self.is_draining:
            raise EngineRefusal(
                500, "cannot schedule new futures after shutdown", "InternalServerError"
            )
        fate = faults.fate(self._engine.faults, self._engine.shares)
        if fate.fail_status is not None:
            raise EngineRefusal(fate.fail_status, "simulated failure", "InternalServerError")
        if fate.after_tokens is None and fate.crash == "exit":
            os._exit(1)
        if fate.after_tokens is None and fate.crash == "reset":
            connection.reset()
        elif fate.after_tokens is not None or not fate.hang:
            self._inference[request.path](request, connection, fate)
        # What is left hangs: accepted, and never answered until its client gives up.

    def _generate(self, request: HttpRequest, connection: Connection, fate: faults.Fate) -> None:
        limits = self._engine.limits
        is_chat = request.path == "/v1/chat/completions"
        order = (read_chat if is_chat else read_completion)(request.body, limits)
        answer_id = _answer_id("chatcmpl" if is_chat else "cmpl", request)
        reply_kind = StreamReply if order.stream else WholeReply
        reply = reply_kind(connection, fate, order, answer_id, order.model)
        connection.jobs = [
            Job(
                request=self._work(order, choice),
                listener=reply,
                finish_reason=choice.finish,
                max_tokens=order.max_tokens,
                arrived_at=self._engine.now(),
                choice=number,
            )
            for number, choice in enumerate(order.choices)
        ]
        for job in list(connection.jobs):
            self._engine.start(job)

    def _work(self, order: Generation, choice: Choice) -> Request:
        spoken = "".join(choice.pieces).encode()
        block_tokens = self._engine.scheduler.profile.block_tokens
        return Request(
            id=self._engine.next_id(),
            prompt_tokens=order.prompt_tokens,
            output_tokens=len(choice.pieces),
            block_hashes=block_hashes(
                order.prompt + spoken, block_tokens, f"{order.adapter}{order.salt}"
            ),
            adapter=order.adapter,
        )

    def _embed(self, request: HttpRequest, connection: Connection, fate: faults.Fate) -> None:
        limits = self._engine.limits
        inputs = read_embedding(request.body, limits)
        answer_id = _answer_id("embd", request)
        job = Job(
            request=Request(
                id=self._engine.next_id(), prompt_tokens=inputs.prompt_tokens, output_tokens=0
            ),
            listener=EmbeddingReply(connection, fate, inputs, answer_id, limits.model),
            finish_reason="stop",
            max_tokens=0,
            arrived_at=self._engine.now(),
        )
        connection.jobs = [job]
        self._engine.start(job)

    # Everything else

    def _health(self, request: HttpRequest, connection: Connection) -> None:
        connection.send(503 if self._engine.faults.unhealthy else 200, b"")

    def _version(self, request: HttpRequest, connection: Connection) -> None:
        connection.send_json(200, {"version": VERSION})

    def _metrics(self, request: HttpRequest, connection: Connection) -> None:
        engine = self._engine
        page = engine.telemetry.page(asleep=engine.faults.asleep, now=engine.now())
        connection.send(200, page.encode(), "text/plain; version=1.0.0; charset=utf-8")

    def _models(self, request: HttpRequest, connection: Connection) -> None:
        limits = self._engine.limits
        paths = {limits.model: limits.model, **limits.adapters}
        models: list[dict[str, object]] = [
            {
                "id": name,
                "object": "model",
                "created": self._started_at,
                "owned_by": "vllm",
                "root": path,
                "parent": None if name == limits.model else limits.model,
                "max_model_len": limits.longest_request_tokens if name == limits.model else None,
                "permission": [],
            }
            for name, path in paths.items()
        ]
        connection.send_json(200, {"object": "list", "data": models})

    def _tokenize(self, request: HttpRequest, connection: Connection) -> None:
        text, wants_strings = read_tokenize(request.body, self._engine.limits)
        ids = token_ids(text)
        answer = {
            "count": len(ids),
            "max_model_len": self._engine.limits.longest_request_tokens,
            "tokens": ids,
            "token_strs": token_strings(text) if wants_strings else None,
        }
        connection.send_json(200, answer)

    # Adapters and sleep

    def _load_adapter(self, request: HttpRequest, connection: Connection) -> None:
        _check_content_type(request)
        name = lora_calls.load(request.body, self._engine.limits)
        self._engine.scheduler.adapters.keep(name)
        done = f"Success: LoRA adapter '{name}' added successfully."
        connection.send(200, done.encode(), "text/html; charset=utf-8")

    def _unload_adapter(self, request: HttpRequest, connection: Connection) -> None:
        _check_content_type(request)
        name = lora_calls.unload(request.body, self._engine.limits)
        done = f"Success: LoRA adapter '{name}' removed successfully."
        connection.send(200, done.encode(), "text/html; charset=utf-8")

    def _sleep(self, request: HttpRequest, connection: Connection) -> None:
        level = parse_qs(request.query).get("level", ["1"])[0]
        if level not in ("1", "2"):
            raise EngineRefusal(400, "the level of sleep is 1 or 2", "BadRequestError", "level")
        self._engine.sleep(1 if level == "1" else 2)
        connection.send_json(200, {"status": "sleeping", "level": int(level)})

    def _wake(self, request: HttpRequest, connection: Connection) -> None:
        self._engine.wake()
        connection.send_json(200, {"status": "awake", "tags": None})

    def _is_sleeping(self, request: HttpRequest, connection: Connection) -> None:
        connection.send_json(200, {"is_sleeping": self._engine.faults.asleep})

    # Fault switches

    def _show_faults(self, request: HttpRequest, connection: Connection) -> None:
        connection.send_json(200, self._engine.faults)

    def _switch_faults(self, request: HttpRequest, connection: Connection) -> None:
        try:
            wanted = faults.merged(self._engine.faults, request.body)
        except faults.InvalidFaults as problem:
            raise EngineRefusal(400, str(problem), "BadRequestError") from problem
        self._engine.switch(wanted)
        connection.send_json(200, wanted)
        if wanted.crash and wanted.crash.exits_now:
            os._exit(1)

    def _clear_faults(self, request: HttpRequest, connection: Connection) -> None:
        self._engine.switch(faults.Faults())
        connection.send_json(200, self._engine.faults)


def _check_content_type(request: HttpRequest) -> None:
    kind = request.headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
    if kind != b"application/json":
        raise EngineRefusal(
            400,
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            "Bad Request",
        )


def _answer_id(prefix: str, request: HttpRequest) -> str:
    given = request.headers.get(b"x-request-id", b"").decode("latin-1")
    return f"{prefix}-{given or secrets.token_hex(8)}"


def _send_error(connection: Connection, refusal: EngineRefusal) -> None:
    error = {
        "message": refusal.message,
        "type": refusal.kind,
        "param": refusal.param,
        "code": refusal.status,
    }
    connection.send_json(refusal.status, {"error": error})
