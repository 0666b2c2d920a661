"""Reads the few families a driver wants out of a Prometheus text.

One compiled pattern per driver finds its sample lines in C; everything else of a scrape (hundreds
of histogram buckets) is never looked at in Python.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

# A quoted label value may hold anything, braces and escaped quotes included.
_LABELS = r'\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\}'
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}


@dataclass(frozen=True)
class Sample:
    """One line of a scrape."""

    labels_text: str
    value: float

    @cached_property
    def labels(self) -> dict[str, str]:
        """Give the labels, unescaped."""
        return {
            name: _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), value)
            for name, value in _LABEL.findall(self.labels_text)
        }


class Families:
    """The samples of one scrape, by metric name. Values that are no number are left out."""

    def __init__(self, samples: dict[str, list[Sample]]) -> None:
        self._samples = samples

    def __bool__(self) -> bool:
        return bool(self._samples)

    def samples(self, name: str) -> list[Sample]:
        """Give all samples of one name; an absent name gives an empty list."""
        return self._samples.get(name, [])

    def first_of(self, names: Iterable[str]) -> list[Sample]:
        """Give the samples of the first name that has any."""
        for name in names:
            found = self._samples.get(name)
            if found:
                return found
        return []

    def total(self, *names: str) -> float | None:
        """Add up the samples of the first name present; None if there is none or one is negative.

        Negative counts and levels are how engines say "switched off": absent, not a number.
        """
        found = self.first_of(names)
        if len(found) == 1:  # what most engines have of most names
            value = found[0].value
            return value if value >= 0 else None
        values = [s.value for s in found]
        return sum(values) if values and min(values) >= 0 else None

    def mean(self, *names: str) -> float | None:
        """Average the samples of the first name present, as `total` does."""
        values = [s.value for s in self.first_of(names)]
        return sum(values) / len(values) if values and min(values) >= 0 else None


class Reader:
    """Finds the samples of a fixed set of names."""

    def __init__(self, names: Iterable[str]) -> None:
        # One pattern for the names of one family prefix, begun by the line's end before it: both
        # give the regex engine a literal to search for. 75 KB of vLLM: 0.2 ms instead of 1 ms.
        prefixes: dict[str, list[str]] = defaultdict(list)
        for name in sorted(set(names), key=len, reverse=True):
            prefixes[name.partition(":")[0]].append(re.escape(name))
        self._patterns = [
            re.compile(rf"\n({'|'.join(group)})[ \t]*(?:{_LABELS})?[ \t]+([^\s#]+)")
            for group in prefixes.values()
        ]

    def read(self, text: str) -> Families:
        """Give the wanted families of `text`; lines that cannot be read are passed over."""
        samples: dict[str, list[Sample]] = defaultdict(list)
        lines = "\n" + text
        for pattern in self._patterns:
            for name, labels, number in pattern.findall(lines):
                value = _number(number)
                if value is not None:
                    samples[name].append(Sample(labels, value))
        return Families(dict(samples))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
