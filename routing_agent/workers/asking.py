"""Questions to a worker, for what only who chooses can tell."""

from __future__ import annotations

import asyncio
from typing import Final

from routing_agent.workers.messages import Answer, Question
from routing_agent.workers.process import WorkerProcess

ANSWER_LIMIT_S: Final = 2.0


class Questions:
    """Those that wait for their answer."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._asked = 0

    async def ask(self, worker: WorkerProcess, body: bytes) -> bytes | None:
        """Ask a worker; None: it has not answered in time."""
        self._asked += 1
        number, answer = self._asked, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        worker.send(Question(number, body))
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return bytes(await answer)
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(number, None)

    def answered(self, answer: Answer) -> None:
        """Take an answer; one that comes too late is for nobody."""
        waiting = self._waiting.pop(answer.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.body)
