"""A Prometheus on a real socket: answers as told, late, wrongly, or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Series = list[dict[str, Any]]


class FakePrometheus:
    """Answers queries through `answer(path, parameters)`; `held` keeps answers back."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answer: Callable[[str, dict[str, str]], Series] = lambda path, asked: []
        self.clock: Callable[[], float] = time.time  # what it takes the time to be
        self.warnings: list[str] = []
        self.raw: tuple[int, bytes] | None = None  # a status and body to answer with instead
        self.held = threading.Event()
        self.held.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Close the socket; answers still held are let go."""
        self.held.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                asked = {k: v[0] for k, v in parse_qs(parts.query).items()}
                fake.asked.append((parts.path, asked))
                fake.held.wait(30)
                status, body = fake.raw or (200, fake.body(parts.path, asked))
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    return  # the client gave up meanwhile, as it should

            def log_message(self, *args: Any) -> None:
                """Stay silent."""

        return Handler

    def body(self, path: str, asked: dict[str, str]) -> bytes:
        """Give an answer in Prometheus's form."""
        if asked.get("query") == "time()":
            now = self.clock()
            return self._success({"resultType": "scalar", "result": [now, str(now)]})
        kind = "matrix" if path.endswith("query_range") else "vector"
        return self._success({"resultType": kind, "result": self.answer(path, asked)})

    def _success(self, data: dict[str, Any]) -> bytes:
        told = {"status": "success", "data": data}
        return json.dumps(told | ({"warnings": self.warnings} if self.warnings else {})).encode()

    def queries(self) -> list[str]:
        """Give what was asked, without the questions for the time."""
        return [asked["query"] for _, asked in self.asked if asked.get("query") != "time()"]
