"""What a section of the configuration is: objects of one kind, read, made, changed and removed.

Each section acts through the services of its app, so a file obeys the rules that console and API
obey, and leaves the same audit trail. What a field does not say is its default, not "as it was".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import msgspec

from controlplane.audit.services import Actor


class Who(TypedDict):
    """Who applies a file, and why."""

    actor: Actor
    reason: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One object as a file has it; what is left out is its default."""

    KEY: ClassVar[tuple[str, ...]] = ("name",)

    @property
    def key(self) -> str:
        """Give the name by which it is told from others of its kind."""
        return "/".join(str(getattr(self, name)) for name in self.KEY)

    def fields(self, *without: str) -> dict[str, Any]:
        """Give the fields as plain values, as services take them."""
        return {
            name: msgspec.to_builtins(getattr(self, name))
            for name in self.__struct_fields__
            if name not in without
        }

    def plain(self) -> dict[str, Any]:
        """Give it as a file has it: what is at its default is left out."""
        defaults = {
            f.name: f.default if f.default is not msgspec.NODEFAULT else f.default_factory()
            for f in msgspec.structs.fields(type(self))
            if not f.required
        }
        return {
            name: value
            for name, value in self.fields().items()
            if name not in defaults or value != msgspec.to_builtins(defaults[name])
        }


Make = Callable[[Any, Who], Any]
Change = Callable[[Any, Any, Who], Any]  # before, after


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One kind of object. `remove` None: a file never removes it."""

    name: str
    entry: type[Entry]
    what: str  # in words, for people
    read: Callable[[], Iterable[Any]]
    create: Make
    update: Change
    remove: Make | None = None
    # Said in the plan of objects that a file makes: what it cannot bring back.
    missing: Callable[[Any], str] = lambda entry: ""
    finish: Make | None = None  # after all of the section are made: references among them

    def current(self) -> dict[str, Any]:
        """Give the objects as they are, by key, in the order of a file."""
        return {e.key: e for e in sorted(self.read(), key=lambda e: e.key)}
