"""Exporting the configuration, and applying a file: all of it or nothing, through the services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import OperationalError, transaction

from controlplane.audit.services import record
from controlplane.declarative import document
from controlplane.declarative.section import Section, Who
from controlplane.declarative.sections import SECTIONS
from controlplane.domain.errors import Conflict, Invalid, ProblemError

# PostgreSQL: deadlock_detected, serialization_failure, lock_not_available.
COLLISIONS = frozenset({"40P01", "40001", "55P03"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a file does to one object."""

    section: str
    what: str
    key: str
    act: str  # create, update, remove
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # field → before, after
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a file does, object by object; what it names and is the same is only counted."""

    steps: tuple[Step, ...]
    unchanged: int
    unlisted: Mapping[str, list[str]]  # there, and not in the file: kept unless removal is asked
    before: str  # digest of the configuration as it was

    @property
    def counts(self) -> dict[str, int]:
        """Count the steps by what they do."""
        acts = [s.act for s in self.steps]
        return {act: acts.count(act) for act in ("create", "update", "remove")}

    @property
    def is_empty(self) -> bool:
        """Say whether the file changes nothing."""
        return not self.steps


def exported() -> dict[str, list[Any]]:
    """Give the whole configuration."""
    return {section.name: list(section.current().values()) for section in SECTIONS}


def export_text() -> str:
    """Give the whole configuration as a file."""
    return document.written(exported())


def apply(
    text: str,
    *,
    who: Who,
    dry_run: bool = False,
    remove: bool = False,
    expected: str | None = None,
) -> Plan:
    """Make the configuration what a file says; with `dry_run` do the same and undo it.

    One transaction: on any error nothing is changed. A section that is not in the file is left
    alone; objects that a section does not list are kept, or removed with `remove`.

    Args:
        expected: digest of the configuration that the caller saw.

    Raises:
        Invalid: the file cannot be read; the field is its path.
        ProblemError: a service refuses something; the field is the path of it.
        Conflict: the configuration is no longer what the caller saw.
    """
    wanted = document.read(text)
    with _alone(), transaction.atomic():
        before = exported()
        seen = document.digest(document.written(before))
        if expected is not None and expected != seen:
            raise Conflict(
                "The configuration moved meanwhile: look at the difference again.",
                code="stale_version",
            )
        plan = _planned(wanted, before, remove=remove, seen=seen)
        _carry_out(plan, wanted, before, who)
        if not plan.is_empty:
            _record(plan, text, who)
        if dry_run:
            transaction.set_rollback(True)
    return plan


@contextmanager
def _alone() -> Iterator[None]:
    """Tell of a deadlock as what it is: somebody changes the same objects, the other way round."""
    try:
        yield
    except OperationalError as error:
        if not _is_collision(error):
            raise
        raise Conflict(
            "Somebody changes the same objects right now; nothing was changed here. Try again.",
            code="busy",
        ) from error


def _is_collision(error: OperationalError) -> bool:
    """Tell a deadlock or a lock that did not come from a database that is gone."""
    state = getattr(error.__cause__, "sqlstate", None)
    return state in COLLISIONS or "is locked" in str(error)


def _planned(
    wanted: Mapping[str, list[Any]], before: Mapping[str, list[Any]], *, remove: bool, seen: str
) -> Plan:
    steps: list[Step] = []
    removals: list[Step] = []
    unlisted: dict[str, list[str]] = {}
    unchanged = 0
    for section in SECTIONS:
        if section.name not in wanted:
            continue
        old = {e.key: e for e in before[section.name]}
        new = {e.key: e for e in wanted[section.name]}
        made = [_compared(section, old.get(key), e) for key, e in new.items()]
        steps += [s for s in made if s is not None]
        unchanged += sum(s is None for s in made)
        gone = sorted(set(old) - set(new))
        if remove and section.remove is not None:
            removals[:0] = [_step(section, key, "remove") for key in gone]
        elif gone:
            unlisted[section.name] = gone
    return Plan(steps=(*steps, *removals), unchanged=unchanged, unlisted=unlisted, before=seen)


def _compared(section: Section, old: Any, new: Any) -> Step | None:
    if old is None:
        made = {name: (None, value) for name, value in new.plain().items()}
        return _step(section, new.key, "create", made, section.missing(new))
    had, has = _plain(old), _plain(new)
    changes = {n: (had[n], has[n]) for n in has if had[n] != has[n]}
    return _step(section, new.key, "update", changes) if changes else None


def _plain(entry: Any) -> dict[str, Any]:
    return {name: _without_order(name, value) for name, value in entry.fields().items()}


def _without_order(name: str, value: Any) -> Any:
    is_set = name in {"aliases", "allowed_models", "shared_with"}
    return sorted(value) if is_set else value


def _step(
    section: Section,
    key: str,
    act: str,
    changes: Mapping[str, tuple[Any, Any]] | None = None,
    note: str = "",
) -> Step:
    return Step(
        section=section.name,
        what=section.what,
        key=key,
        act=act,
        changes=changes or {},
        note=note,
    )


def _carry_out(
    plan: Plan, wanted: Mapping[str, list[Any]], before: Mapping[str, list[Any]], who: Who
) -> None:
    for section in SECTIONS:
        acts = {s.key: s.act for s in plan.steps if s.section == section.name}
        if not acts:
            continue
        old = {e.key: e for e in section.read()}  # what an earlier section did along is seen
        made = [(i, e) for i, e in enumerate(wanted[section.name]) if e.key in acts]
        made.sort(key=lambda pair: pair[1].key in old)  # new ones first: others may refer to them
        for i, entry in made:
            with _Told(section, i):
                _do(section, old.get(entry.key), entry, who)
        for i, entry in made:
            if section.finish is not None and entry.key not in old:
                with _Told(section, i):
                    section.finish(entry, who)
    for step in (s for s in plan.steps if s.act == "remove"):
        _remove(step, before, who)


def _do(section: Section, old: Any, entry: Any, who: Who) -> None:
    if old is None:
        section.create(entry, who)
    elif _plain(old) != _plain(entry):
        section.update(old, entry, who)


def _remove(step: Step, before: Mapping[str, list[Any]], who: Who) -> None:
    section = next(s for s in SECTIONS if s.name == step.section)
    entry = next(e for e in before[step.section] if e.key == step.key)
    still_there = {e.key for e in section.read()}
    if section.remove is not None and step.key in still_there:
        with _Told(section, None, step.key):
            section.remove(entry, who)


class _Told:
    """Gives what a service refuses the path of the entry it came from."""

    def __init__(self, section: Section, index: int | None, key: str = "") -> None:
        self.path = f"{section.name}[{index}]" if index is not None else f"{section.name}: {key}"

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Add the path to a problem; anything else passes."""
        if not isinstance(error, ProblemError):
            return
        path = f"{self.path}.{error.field}" if error.field else self.path
        told = type(error) if isinstance(error, Conflict) else Invalid
        raise told(f"{path}: {error.message}", code=error.code, field=path) from error


def _record(plan: Plan, text: str, who: Who) -> None:
    record(
        actor=who["actor"],
        verb="configuration.apply",
        target=("configuration", document.digest(text)[:12]),
        reason=who["reason"],
        change=({"digest": plan.before}, {"file": document.digest(text), **plan.counts}),
    )
