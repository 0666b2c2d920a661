"""How figures read on screen: three significant digits, unit after a space, `—` for none. Pure."""

from __future__ import annotations

from controlplane.domain import amounts
from controlplane.domain.amounts import three
from routing_agent.wire import LATENCY_BOUNDS_S

NONE = "—"


def seconds(value: float | None) -> str:
    """Show a duration without empty parts: `287 ms`, `1.24 s`, `3 m`, `3 m 20 s`, `2 h 5 m`."""
    if value is None:
        return NONE
    if value < 1:
        return f"{three(value * 1000)} ms"
    if value < 60:
        return f"{three(value)} s"
    if value < 3600:
        return _parts(value, (60, "m"), (1, "s"))
    if value < 86400:
        return _parts(value, (3600, "h"), (60, "m"))
    return _parts(value, (86400, "d"), (3600, "h"))


def _parts(value: float, large: tuple[int, str], small: tuple[int, str]) -> str:
    """Show a duration in two units; the smaller one only where it is not zero."""
    rest = int(value % large[0] // small[0])
    said = f"{int(value // large[0])} {large[1]}"
    return f"{said} {rest} {small[1]}" if rest else said


def span(value: float) -> str:
    """Show a round stretch of time without empty parts: `30 s`, `2 min`, `3 h`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= size and value % size == 0:
            return f"{value // size:g} {unit}"
    return f"{value:g} s"


def age(value: float | None) -> str:
    """Show how old something is; tenths of a second of an age tell nobody anything."""
    return "under 1 s" if value is not None and value < 1 else seconds(value)


def latency(value: float | None) -> str:
    """Show a percentile; one in the histogram's first bucket may be anything down to zero."""
    if value is not None and value <= LATENCY_BOUNDS_S[0]:
        return f"≤ {seconds(LATENCY_BOUNDS_S[0])}"
    return seconds(value)


def percent(value: float | None) -> str:
    """Show a ratio: `63 %`, `0.4 %`."""
    if value is None:
        return NONE
    scaled = value * 100
    if scaled >= 10 or scaled == 0:
        return f"{scaled:.0f} %"
    return f"{scaled:.1f} %" if scaled >= 0.05 else "< 0.05 %"


def size(value: float | None) -> str:
    """Show bytes: `41.2 GiB`."""
    if value is None:
        return NONE
    return amounts.size(value)


def count(value: float | None) -> str:
    """Show a number with three significant digits, or grouped digits when whole."""
    if value is None:
        return NONE
    if float(value).is_integer():
        return amounts.grouped(value)
    return three(float(value))


def counted(value: float | None, plural: str) -> str:
    """Show a number of things: `1 replica`, `2 replicas`, `— replicas`."""
    return f"{count(value)} {amounts.noun_of(value, plural)}"


def figure(value: float | None, unit: str) -> str:
    """Show a figure of a chart in its unit."""
    if unit == "s":
        return latency(value)
    if unit == "ratio":
        return percent(value)
    if unit == "bytes":
        return size(value)
    if value is None:
        return NONE
    return f"{count(value)} {amounts.noun_of(value, unit)}"


def given(value: float | str, unit: str) -> str:
    """Show an input as it was given, in full: `7 615 616 512`, `30 %`, `2.5 USD/h`, `bf16`."""
    if isinstance(value, str):
        return value
    if unit == "ratio":
        return f"{value * 100:.6g} %"
    number = count(value) if float(value).is_integer() else f"{value:.6g}"
    return f"{number} {amounts.noun_of(value, unit)}".rstrip()


def result(value: float | None, unit: str) -> str:
    """Show a result of a calculation in its unit: `448 MiB`, `67 %`, `10 950 USD/month`."""
    if unit == "USD/month" and value is not None:
        return f"{count(round(value))} {unit}"
    return figure(value, unit)
