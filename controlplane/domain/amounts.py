"""Amounts in words: three significant digits, binary units. Pure."""

from __future__ import annotations

import math

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def three(value: float) -> str:
    """Keep three significant digits, without an exponent; of what is below a millionth none."""
    if 1e-6 <= abs(value) < 0.1:
        return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}".rstrip("0")
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def percent(ratio: float) -> str:
    """Show a ratio with three significant digits: `63 %`, `0.42 %`, `99.9 %`, `123 %`."""
    scaled = ratio * 100
    if 0 < scaled < 0.01:
        return "< 0.01 %"
    return f"{scaled:.3g} %" if scaled < 100 else f"{scaled:.0f} %"


def size(value: float) -> str:
    """Show bytes: `41.2 GiB`."""
    number, unit = float(value), 0
    while number >= 1024 and unit < len(_BINARY) - 1:
        number, unit = number / 1024, unit + 1
    return f"{three(number)} {_BINARY[unit]}"


def grouped(value: float) -> str:
    """Show a whole number in groups of three digits: `7 615 616 512`."""
    return f"{value:,.0f}".replace(",", "\u202f")


def counted(number: float, noun: str) -> str:
    """Show a number of things whose word is given in the plural: `1 replica`, `2 replicas`."""
    whole = float(number).is_integer()
    return f"{number:.0f} {noun_of(number, noun)}" if whole else f"{number:g} {noun}"


def noun_of(number: float | None, plural: str) -> str:
    """Give a word or unit as it stands after a number: `replica`, `replicas`, `request/s`, `ms`."""
    word, slash, per = plural.partition("/")
    is_unit = len(word) < 4  # s, ms
    return plural if number != 1 or is_unit else f"{word.removesuffix('s')}{slash}{per}"
