"""What a pool promises: set, changed, and back to the defaults."""

from __future__ import annotations

from datetime import date
from typing import Any, TypedDict, Unpack

from django.db import transaction

from controlplane import locking
from controlplane.audit.services import Actor, record
from controlplane.domain.errors import NotFound
from controlplane.fleet.models import Pool
from controlplane.reliability.models import Slo
from controlplane.reliability.selectors.slos import slo_of

FIELDS = ("availability_ratio", "ttft_p99_s", "tpot_p99_s", "error_ratio", "owner", "review_on")


class SloFields(TypedDict, total=False):
    """What may be said of a pool's promises."""

    availability_ratio: float
    ttft_p99_s: float
    tpot_p99_s: float
    error_ratio: float
    owner: str
    review_on: date | None


@transaction.atomic
def set_slo(
    *,
    pool: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[SloFields],
) -> Slo:
    """Change what a pool promises; version 0 is that of a pool which never was changed."""
    owner = _pool(pool)
    row = slo_of(owner)
    before = facts(row) if row else None
    if row is None:
        if expected_version not in (None, 0):
            raise locking.stale(f"The SLO of pool '{pool}'")
        row = Slo(pool=owner, **changes)
        locking.check(row)
        row.save(force_insert=True)
    else:
        locking.change(
            row, changes, expected_version=expected_version, called=f"The SLO of pool '{pool}'"
        )
    record(
        actor=actor,
        verb="slo.set",
        target=("slo", pool),
        reason=reason,
        change=(before, facts(row)),
    )
    return row


@transaction.atomic
def reset_slo(*, pool: str, actor: Actor, reason: str, expected_version: int | None = None) -> None:
    """Give a pool the default promises again."""
    row = slo_of(_pool(pool))
    if row is None:
        return
    before = facts(row)
    locking.delete(row, expected_version=expected_version, called=f"The SLO of pool '{pool}'")
    record(
        actor=actor, verb="slo.reset", target=("slo", pool), reason=reason, change=(before, None)
    )


def facts(row: Slo) -> dict[str, Any]:
    """Give what a pool promises as JSON values."""
    values: dict[str, Any] = {name: getattr(row, name) for name in FIELDS}
    values["review_on"] = row.review_on.isoformat() if row.review_on else None
    return values


def _pool(slug: str) -> Pool:
    row = Pool.objects.select_related("slo").filter(slug=slug).first()
    if row is None:
        raise NotFound(f"There is no pool {slug!r}.")
    return row
