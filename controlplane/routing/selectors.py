"""Reads of routing: the publication, deliveries, and who runs what."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.fleet.models import Agent
from controlplane.routing.models import Publication


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """How many of the agents we hear run a table that covers a revision: "2 of 2"."""

    n: int
    m: int
    agents_behind: tuple[str, ...]  # node names

    @property
    def complete(self) -> bool:
        """Say whether every live agent obeys it."""
        return self.n == self.m


def publication() -> Publication:
    """Give the one row that says which lineage and epoch this database is at."""
    raise NotImplementedError


def current_epoch() -> int:
    """Give the newest published epoch; 0 before the first."""
    return publication().epoch


def observed(revision: int) -> Observed:
    """Say which live agents run a table that covers `revision`."""
    raise NotImplementedError


def agents_behind() -> list[Agent]:
    """Give the live agents that do not run the newest epoch."""
    raise NotImplementedError


def delivery_lag() -> dict[str, float | None]:
    """Give for each agent, by public id, the seconds it has been behind; None when it is not."""
    raise NotImplementedError
