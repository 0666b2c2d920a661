"""What pages and the API show of adapters: the catalogue's rows beside what replicas hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from controlplane.catalog.models import Adapter, AdapterVersion, ModelVersion
from controlplane.domain.adapter_status import OnReplica, Progress, Sharing, progress, sharing
from controlplane.domain.capacity import weight_bytes
from controlplane.domain.placement import LeftOut
from controlplane.fleet import selectors
from controlplane.fleet.models import AdapterPlacement

State = AdapterVersion.State


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRow:
    """One adapter: its versions, where it is, and what its name is to a caller."""

    adapter: Adapter
    active: AdapterVersion | None
    incoming: AdapterVersion | None
    progress: Progress  # of what is called: the active version
    incoming_progress: Progress | None
    placements: tuple[AdapterPlacement, ...]  # of all versions
    left_out: tuple[LeftOut, ...]  # replicas of its model that do not get it

    @property
    def newest(self) -> AdapterVersion | None:
        """Give the version whose figures stand for the adapter."""
        return self.active or self.incoming or next(iter(self.adapter.versions.all()), None)

    @property
    def heard_at(self) -> datetime | None:
        """Give when any replica's agent last spoke of it."""
        return max((p.heard_at for p in self.placements if p.heard_at), default=None)


def adapter_rows(found: Iterable[Adapter]) -> list[AdapterRow]:
    """Give adapters with where they are, in two queries and one placement for all of them."""
    adapters = list(found)
    held: dict[int, list[AdapterPlacement]] = defaultdict(list)
    rows = selectors.placements().filter(version__adapter__in=adapters)
    for placement in rows.order_by("replica__public_id"):
        held[placement.version_id].append(placement)
    names = {version.served_name for adapter in adapters for version in adapter.versions.all()}
    planned = _planned(names)
    return [_row(adapter, held, planned) for adapter in adapters]


@dataclass(frozen=True, slots=True)
class _Planned:
    """The plan of what replicas are to hold, by served name."""

    holders: Mapping[str, int]
    missing: Mapping[str, list[LeftOut]]


def _planned(names: set[str]) -> _Planned:
    holders: Counter[str] = Counter()
    missing: dict[str, list[LeftOut]] = defaultdict(list)
    if names:
        plan = selectors.adapter_plan(names)
        holders.update(name for held in plan.held.values() for name in held)
        for gap in plan.left_out:
            missing[gap.served_name].append(gap)
    return _Planned(holders, missing)


def adapter_row(adapter: Adapter) -> AdapterRow:
    """Give one adapter with where it is."""
    return adapter_rows([adapter])[0]


def _row(
    adapter: Adapter,
    held: Mapping[int, list[AdapterPlacement]],
    planned: _Planned,
) -> AdapterRow:
    versions = list(adapter.versions.all())
    active = next((v for v in versions if v.state == State.ACTIVE), None)
    incoming = next((v for v in versions if v.state == State.INCOMING), None)
    placements = tuple(p for v in versions for p in held.get(v.pk, ()))
    return AdapterRow(
        adapter=adapter,
        active=active,
        incoming=incoming,
        progress=_progress(adapter, active, placements, planned),
        incoming_progress=_progress(adapter, incoming, placements, planned) if incoming else None,
        placements=placements,
        left_out=tuple(planned.missing.get(active.served_name, ())) if active else (),
    )


def _progress(
    adapter: Adapter,
    version: AdapterVersion | None,
    placements: Sequence[AdapterPlacement],
    planned: _Planned,
) -> Progress:
    is_deleted = adapter.deleted_at is not None
    mine = [
        p
        for p in placements
        if is_deleted or (version is not None and p.version_id == version.pk and p.wanted)
    ]
    return progress(
        [on_replica(p) for p in mine],
        is_deleted=is_deleted,
        left_out=planned.missing.get(version.served_name, ()) if version else (),
        planned=planned.holders.get(version.served_name, 0) if version else 0,
    )


def on_replica(placement: AdapterPlacement) -> OnReplica:
    """Give what is known of an adapter on one replica, with its age as of now."""
    heard = placement.heard_at
    return OnReplica(
        replica=placement.replica.public_id,
        stage=placement.stage or None,  # type: ignore[arg-type]  # written from wire.AdapterState
        message=placement.message,
        heard_s_ago=(timezone.now() - heard).total_seconds() if heard else None,
    )


def sharing_by_model() -> list[Sharing]:
    """Give for each base model what its loaded adapters take and save, by agents' last words."""
    loaded: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    rows = AdapterPlacement.objects.filter(stage="loaded").values_list(
        "version__adapter__model__name",
        "replica__public_id",
        "version__adapter__public_id",
        "version__size_bytes",
    )
    for model, replica, adapter, size_bytes in rows:
        loaded[model].append((replica, adapter, size_bytes))
    weights = _weights(loaded)
    return [
        sharing(model, told, weight_bytes=weights.get(model))
        for model, told in sorted(loaded.items())
    ]


def _weights(models: Iterable[str]) -> dict[str, int]:
    """Give the largest weights of each model's versions that say how large they are."""
    found: dict[str, int] = {}
    versions = ModelVersion.objects.filter(model__name__in=models, parameters__isnull=False)
    for model, parameters, dtype in versions.values_list("model__name", "parameters", "dtype"):
        size = weight_bytes(parameters=parameters or 0, dtype=dtype)
        found[model] = max(size, found.get(model, 0))
    return found
