"""How pools scale. Overrides, decisions and the replicas agents run are no configuration."""

from __future__ import annotations

from typing import Any, ClassVar

from controlplane.declarative.section import Entry, Section, Who
from controlplane.domain.errors import Invalid
from controlplane.scaling import services
from controlplane.scaling.models import ScalingPolicy
from controlplane.scaling.services.policies import FIELDS, facts


class ScalingEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool's scaling policy: the fields that the API knows, what is left out at its default."""

    pool: str
    policy: dict[str, Any] = {}

    KEY: ClassVar[tuple[str, ...]] = ("pool",)


def _defaults() -> dict[str, Any]:
    return facts(ScalingPolicy())


def _policies() -> list[ScalingEntry]:
    usual = _defaults()
    return [
        ScalingEntry(
            pool=row.pool.slug,
            policy={n: v for n, v in sorted(facts(row).items()) if v != usual[n]},
        )
        for row in ScalingPolicy.objects.select_related("pool")
    ]


def _set(entry: ScalingEntry, who: Who) -> None:
    known: dict[str, Any] = dict.fromkeys(FIELDS)
    unknown = sorted(set(entry.policy) - set(known))
    if unknown:
        raise Invalid(
            f"policy has an unknown field {unknown[0]!r}. Known: {', '.join(sorted(known))}.",
            field=f"policy.{unknown[0]}",
        )
    services.set_policy(pool=entry.pool, **{**_defaults(), **entry.policy}, **who)


SCALING = Section(
    name="scaling",
    entry=ScalingEntry,
    what="scaling policy",
    read=_policies,
    create=_set,
    update=lambda old, e, who: _set(e, who),
    remove=lambda e, who: services.delete_policy(pool=e.pool, **who),
)
