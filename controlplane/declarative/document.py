"""The file: YAML with one section a kind of object, sorted, without times of its own.

Reading is strict: aliases and tags are refused (a few bytes could unfold to gigabytes or make
objects), a key twice, an unknown field or section too, and the path of the first bad field is told.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Final, Literal

import msgspec
import yaml

from controlplane.declarative.section import Entry
from controlplane.declarative.sections import SECTIONS
from controlplane.domain.errors import Invalid

LIMIT_BYTES: Final = 2 * 1024 * 1024  # Django reads no more than 2.5 MB of a form or body
FORM: Final = 1  # of the file
DEPTH_LIMIT: Final = 20  # engine arguments and GPUs are the deepest, at six
_PATH: Final = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
Document = Mapping[str, list[Any]]


class _Loader(yaml.SafeLoader):
    """A safe loader without aliases, repeated keys, and dates where texts are meant."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse aliases before they are followed, and nesting that no section has."""
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or self.depth > DEPTH_LIMIT:
            what = "nested too deep" if self.depth > DEPTH_LIMIT else "aliases are not allowed"
            raise yaml.constructor.ConstructorError(None, None, what, event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a key that is there twice: one of the two would be lost."""
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a plain word", key_node.start_mark
                )
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is there twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """A safe dumper that writes what is there twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never write an alias: we read none."""
        return True


# Times stay text: entries say where a time is meant, and text is what JSON has, too.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

_Form: Any = msgspec.defstruct(
    "Configuration",
    [
        ("signalbox", Literal[1]),
        *[(s.name, list[s.entry] | msgspec.UnsetType, msgspec.UNSET) for s in SECTIONS],  # type: ignore[name-defined]
    ],
    forbid_unknown_fields=True,
)


def written(document: Document) -> str:
    """Give the text of a file: the same objects always give the same bytes."""
    plain: dict[str, Any] = {"signalbox": FORM}
    for section in SECTIONS:
        if section.name in document:
            entries = sorted(document[section.name], key=lambda e: e.key)
            plain[section.name] = [_ordered(e) for e in entries]
    return str(yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def _ordered(entry: Entry) -> dict[str, Any]:
    """Give an entry with its name first and mappings inside it sorted."""
    return {name: _sorted(value) for name, value in entry.plain().items()}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def digest(text: str) -> str:
    """Name a file by its content."""
    return hashlib.sha256(text.encode()).hexdigest()


def read(text: str) -> dict[str, list[Any]]:
    """Give the sections of a file; one that is not in it is not in the result.

    Raises:
        Invalid: with the place (line) or the path (`pools[0].slug`) of what is wrong.
    """
    if len(text.encode()) > LIMIT_BYTES:
        raise Invalid(f"The file is larger than {LIMIT_BYTES // 1024 // 1024} MiB.", field="file")
    loaded = _loaded(text)
    if not isinstance(loaded, dict):
        raise Invalid("A file begins with `signalbox: 1`, then sections.", field="file")
    try:
        found = msgspec.convert(loaded, _Form, strict=True)
    except msgspec.ValidationError as error:
        raise _told(str(error)) from error
    sections = {s.name: getattr(found, s.name) for s in SECTIONS}
    given = {name: list(v) for name, v in sections.items() if v is not msgspec.UNSET}
    for name, entries in given.items():
        _check_keys(name, entries)
    return given


def _loaded(text: str) -> Any:
    try:
        # A subclass of SafeLoader: it makes plain values only.
        return yaml.load(text, Loader=_Loader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Invalid(f"This is no YAML we read: {error.problem}{where}.", field="file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Invalid(f"This is no YAML we read: {error}.", field="file") from error


def _told(message: str) -> Invalid:
    """Turn msgspec's words into ours, with the path as the field at fault."""
    match = _PATH.search(message)
    path = match[1] if match else ""
    said = _PATH.sub("", message)
    return Invalid(f"{path or 'file'}: {said}.", field=path or "file")


def _check_keys(section: str, entries: list[Any]) -> None:
    twice = [key for key, n in Counter(e.key for e in entries).items() if n > 1]
    if twice:
        index = max(i for i, e in enumerate(entries) if e.key == twice[0])
        raise Invalid(
            f"{section}[{index}]: '{twice[0]}' is there twice.", field=f"{section}[{index}]"
        )
