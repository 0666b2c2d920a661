"""Takes tables in: validates, refuses what is older or foreign, writes to disk, then applies.

The order matters: a table is on disk before it is applied, and applied before it is acknowledged.
Whatever goes wrong, the table that runs goes on running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import structlog

from routing_agent.control.snapshot import TableStore
from routing_agent.control.tables import BadTable, judge_order, read_table
from routing_agent.wire import RoutingTable, TableReceipt

log = structlog.get_logger()

Source = Literal["none", "push", "pull", "disk"]


class Receiver:
    """Owns the question which table runs. `apply` puts one in place atomically."""

    def __init__(self, store: TableStore, apply: Callable[[RoutingTable], None]) -> None:
        self.table: RoutingTable | None = None
        self.source: Source = "none"
        self._store = store
        self._lineage = ""
        self._apply = apply
        self._one_at_a_time = asyncio.Lock()
        # Set where more than this process must put a table in place before it is acknowledged.
        self.settled: Callable[[], Awaitable[None]] | None = None

    def start_from_disk(self) -> None:
        """Apply the kept table, if there is a good one."""
        table = self._store.load()
        if table is not None:
            self._apply(table)
            self._note(table, "disk")

    def trust(self, lineage: str) -> None:
        """Accept tables of this lineage, and of no other, from now on."""
        self._lineage = lineage

    async def receive(self, content: bytes, source: Literal["push", "pull"]) -> TableReceipt:
        """Judge a table and, if it is newer, store and apply it; the receipt says which."""
        try:
            table = read_table(content)
        except BadTable as error:
            log.error("table_invalid", source=source, problem=str(error))
            return self._receipt("invalid", str(error))
        async with self._one_at_a_time:
            return await self._receive_in_order(table, content, source)

    async def _receive_in_order(
        self, table: RoutingTable, content: bytes, source: Literal["push", "pull"]
    ) -> TableReceipt:
        order = judge_order(table, self.table, trusted_lineage=self._lineage)
        if order.refusal is not None:
            log.info(
                "table_not_applied", outcome=order.refusal, epoch=table.epoch, why=order.reason
            )
            return self._receipt(order.refusal, order.reason)
        await asyncio.to_thread(self._store.save, content)
        self._apply(table)
        if self.settled is not None:
            await self.settled()
        self._note(table, source)
        return self._receipt("applied")

    def _note(self, table: RoutingTable, source: Source) -> None:
        self.table, self.source = table, source
        log.info("table_applied", epoch=table.epoch, source=source, digest=table.digest[:12])

    def _receipt(
        self,
        outcome: Literal["applied", "already_there", "refused_older", "refused_lineage", "invalid"],
        detail: str = "",
    ) -> TableReceipt:
        running = self.table
        return TableReceipt(
            outcome=outcome,
            lineage=running.lineage if running else "",
            epoch=running.epoch if running else 0,
            digest=running.digest if running else "",
            detail=detail,
        )
