"""Models with their rules, their pools by length, and what agents tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.catalog import selectors as catalog
from controlplane.catalog.models import Model
from controlplane.domain import which_model
from controlplane.domain.errors import Invalid
from controlplane.domain.which_model import ModelPaths
from controlplane.fleet.models import Pool
from controlplane.telemetry.snapshots import NoData
from routing_agent import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """One model: its rules, its pools by length, and what agents tell of them."""

    model: Model
    complexity: wire.ComplexityRule | None
    cascade: wire.CascadeRule | None
    fault: str
    shapes: tuple[tuple[str, int | None], ...]  # pools and the longest prompt each takes
    paths: ModelPaths
    largest: str | None

    @property
    def has_rule(self) -> bool:
        """Say whether anything decides which model or pool answers."""
        return bool(self.complexity or self.cascade or self.fault or self.is_shaped)

    @property
    def is_shaped(self) -> bool:
        """Say whether pools differ in the length of prompts they take."""
        return any(limit is not None for _, limit in self.shapes)

    @property
    def saved(self) -> int | None:
        """Give the output tokens that the largest model did not have to write."""
        return self.paths.saved(self.largest)


def model_lines(reports: Any) -> list[ModelLine]:
    """Give every model with its rules; those that have any come first."""
    told: Mapping[str, ModelPaths] = {}
    if not isinstance(reports, NoData):
        told = which_model.add_up(p for report, _ in reports.values() for p in report.paths)
    shapes: dict[str, list[tuple[str, int | None]]] = {}
    pools = Pool.objects.select_related("model_version__model").order_by("slug")
    for pool in pools.filter(splits__weight__gt=0).distinct():
        limit = pool.settings.get("max_input_tokens")
        shapes.setdefault(pool.model_version.model.name, []).append((pool.slug, limit))
    lines = [_line(m, shapes.get(m.name, []), told) for m in catalog.models()]
    return sorted(lines, key=lambda line: not line.has_rule)


def _line(
    model: Model, shapes: list[tuple[str, int | None]], told: Mapping[str, ModelPaths]
) -> ModelLine:
    complexity, cascade, fault = None, None, ""
    try:
        complexity = which_model.complexity_of(model.complexity)
        cascade = which_model.cascade_of(model.cascade)
    except Invalid as problem:
        fault = problem.message
    return ModelLine(
        model=model,
        complexity=complexity,
        cascade=cascade,
        fault=fault,
        shapes=tuple(shapes),
        paths=told.get(model.name, ModelPaths(model=model.name)),
        largest=which_model.largest_of(complexity, cascade),
    )
