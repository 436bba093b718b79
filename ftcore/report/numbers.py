"""Numbers as a page shows them."""

from __future__ import annotations

import math

_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
NONE = "–"
_GAP = "\u00a0"
"""A space at which no line breaks."""
BYTE_UNITS = tuple(float(size) for size, _ in _BYTES)
TIME_UNITS = (86400.0, 3600.0, 60.0, 1.0, 1e-3)
"""Seconds of a day, an hour, a minute, a second and a thousandth of it."""


def short_number(value: float | None) -> str:
    """At most four characters of digits: 0.0012, 1.25, 340, 12.5k; a dash for None."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    for step, name in _STEPS:
        if abs(value) >= step * 0.9995:
            return f"{value / step:.3g}{name}" if abs(value) < 999.5 * step else f"{value / step:,.0f}{name}"
    if abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.3g}"


def count(value: float | None) -> str:
    """A whole number with commas."""
    return NONE if value is None else f"{value:,.0f}" if math.isfinite(value) else short_number(value)


def fixed(value: float | None, digits: int = 4) -> str:
    """A number with so many digits after its point."""
    return NONE if value is None else f"{value:,.{digits}f}" if math.isfinite(value) else short_number(value)


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.1f}{_GAP}%"


def kind_name(kind: str) -> str:
    """A finding's kind as a heading: Slow rank, NaN."""
    words = kind.replace("_", " ")
    return "NaN" if words == "nan" else words[:1].upper() + words[1:]


def share_tick(share: float) -> str:
    """A share as a percentage, as short as an axis wants it."""
    return f"{100 * share:.3g}{_GAP}%"


def in_bytes(value: float | None) -> str:
    """Bytes in the unit that leaves one to four digits before the point."""
    if value is None or not math.isfinite(value):
        return NONE
    for step, name in _BYTES:
        if abs(value) >= step:
            return f"{value / step:,.2f}{_GAP}{name}" if abs(value) < 100 * step else f"{value / step:,.0f}{_GAP}{name}"
    return f"{value:,.0f}{_GAP}B"


def duration(seconds: float | None) -> str:
    """340 ms, 12.3 s, 4 min 05 s, 3 h 12 min, 2 d 5 h."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds * 1000:.3g}{_GAP}ms" if 0 < seconds < 0.9995 else f"{seconds:.3g}{_GAP}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}{_GAP}min{_GAP}{whole % 60:02d}{_GAP}s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60}{_GAP}h{_GAP}{minutes % 60:02d}{_GAP}min"
    return f"{minutes // 1440}{_GAP}d{_GAP}{minutes % 1440 // 60}{_GAP}h"


def time_tick(seconds: float) -> str:
    """A duration in one unit, as an axis wants it; axes that are ticked in TIME_UNITS give round numbers."""
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if abs(seconds) >= (2 * unit if unit > 1 else unit):
            return f"{seconds / unit:.3g}{_GAP}{name}"
    return f"{seconds * 1000:.3g}{_GAP}ms" if seconds else "0"


def money(amount: float | None, currency: str) -> str:
    """An amount with its currency, to the cent where it is more than one."""
    if amount is None or not math.isfinite(amount):
        return NONE
    shown = f"{amount:,.2f}" if abs(amount) >= 0.1 or amount == 0 else f"{amount:.2g}" if abs(amount) >= 1e-4 else short_number(amount)
    return f"{shown}{_GAP}{currency}" if currency else shown
