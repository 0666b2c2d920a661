"""Reads a table and judges whether it may replace the one that runs. Pure.

The first bad field of a table is told with its path, as `$.pools[2].endpoints[0].weight: ...`. Rows
that are well-formed but make no sense (a split that names no pool) do not spoil a table: compiling
leaves them out and names them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from routing_agent.wire import SCHEMA, RoutingTable, table_digest

Refusal = Literal["already_there", "refused_older", "refused_lineage"]


class BadTable(ValueError):
    """A table that must not be applied; the message starts with the path of the first bad field."""


def read_table(content: bytes) -> RoutingTable:
    """Decode and validate a table, its digest included; BadTable says what is wrong where."""
    try:
        table = msgspec.json.decode(content, type=RoutingTable)
        digests = (table_digest(table), digest_as_sent(content))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadTable(_located(str(error))) from None
    if table.schema > SCHEMA:
        raise BadTable(f"$.schema: {table.schema} is newer than {SCHEMA}, the newest known here")
    if table.digest not in digests:
        raise BadTable("$.digest: does not fit the content")
    return table


def digest_as_sent(content: bytes) -> str:
    """Give the digest over the fields as they came, those that this version does not know included.

    A newer control plane may send fields that decoding drops; they are part of its digest.
    """
    fields: dict[str, Any] = msgspec.json.decode(content)
    fields.pop("created_at", None)
    fields.pop("digest", None)
    fields |= {"lineage": "", "epoch": 1, "fleet_revision": 0}
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


def _located(message: str) -> str:
    """Turn msgspec's "reason - at `path`" into "path: reason"."""
    reason, separator, path = message.rpartition(" - at ")
    return f"{path.strip('`')}: {reason}" if separator else f"$: {message}"


@dataclass(frozen=True, slots=True)
class Order:
    """May a table be applied? `refusal` None means yes."""

    refusal: Refusal | None
    reason: str = ""


def judge_order(
    incoming: RoutingTable, current: RoutingTable | None, *, trusted_lineage: str
) -> Order:
    """Decide by lineage and epoch whether `incoming` may replace `current`.

    A current table of another lineage is what an agent still serves after it registered with a new
    control plane: any table of the trusted lineage replaces it.
    """
    if incoming.lineage != trusted_lineage:
        return Order(
            "refused_lineage",
            f"$.lineage: {incoming.lineage!r} is not {trusted_lineage!r}, with which this agent is "
            "registered. To move it, register it again: a new token and --adopt.",
        )
    if current is None or current.lineage != trusted_lineage or incoming.epoch > current.epoch:
        return Order(None)
    if incoming.epoch < current.epoch:
        return Order("refused_older", f"$.epoch: {incoming.epoch} is older than {current.epoch}")
    if incoming.digest == current.digest:
        return Order("already_there")
    return Order(
        "refused_older",
        f"$.digest: epoch {current.epoch} is already here with other content ({current.digest}); "
        "was the control plane's database restored?",
    )
