"""What a run's files say, taken with care: numbers that no run writes become text there, and times that no clock shows an empty one. Standard library only."""

from __future__ import annotations

import json
import re
import time
from typing import Any

# No run writes them as numbers, and `int`, `float` and clocks of readers would fail at them.
_ODD = re.compile(r"NaN|Infinity|[0-9]{19}|[eE]\+?[0-9]{3}")
MOST = 1e100
"""No sum of a run comes near it, not of squares in fp32 either; a few steps on, axes and means overflow."""
_NAMES = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


def recorded_object(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object in `text`; None for anything else, however it is broken.

    NaN, infinities, and numbers beyond a 64-bit integer or MOST are texts in it, as the run's own writers write them.
    """
    try:
        known = text if isinstance(text, str) else text.decode("utf-8", "replace")
        found = _careful(known) if _ODD.search(known) else json.loads(known)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def local_time(seconds: float, layout: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A time since the epoch by the local clock; empty for 0 and for what is no such time."""
    try:
        return time.strftime(layout, time.localtime(seconds)) if seconds else ""
    except (OverflowError, ValueError, OSError):
        return ""


def _careful(text: str) -> Any:
    return json.loads(text, parse_int=_whole, parse_float=_real, parse_constant=_NAMES.__getitem__)


def _whole(text: str) -> int | str:
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else text


def _real(text: str) -> float | str:
    value = float(text)
    return value if abs(value) < MOST else text
