"""What a reader chose for this browser: theme, window, shortcuts. In cookies, no secret."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse

THEMES = ("system", "light", "dark")
WINDOWS = ("5m", "15m", "1h", "6h", "24h", "7d", "30d")
DENSITIES = ("compact", "comfortable")
YEAR_S = 365 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """A reader's choices, each with its default."""

    theme: str = "system"
    density: str = "compact"
    window: str = "15m"
    shortcuts: bool = True


def read(request: HttpRequest) -> Preferences:
    """Read the choices; the window may also come with the address, so that each view is a link."""
    cookies = request.COOKIES
    asked = request.GET.get("window") or cookies.get("sbx_window", "")
    return Preferences(
        theme=_one_of(THEMES, cookies.get("sbx_theme", "")),
        density=_one_of(DENSITIES, cookies.get("sbx_density", "")),
        window=asked if asked in WINDOWS else "15m",
        shortcuts=cookies.get("sbx_shortcuts") != "off",
    )


def remember(response: HttpResponse, name: str, value: str) -> None:
    """Keep one choice for a year."""
    response.set_cookie(f"sbx_{name}", value, max_age=YEAR_S, samesite="Lax", httponly=True)


def _one_of(values: tuple[str, ...], value: str) -> str:
    return value if value in values else values[0]
