"""The colours of pages and charts: each a CSS variable with a value for light and one for dark paper.

Series and phases are told apart also without red, green or blue sight (tests/unit/test_report_parts.py looks through each of the three).
"""

from __future__ import annotations

COLOURS: dict[str, tuple[str, str]] = {
    "ink": ("#17212b", "#e4e9ef"),
    "soft": ("#586472", "#9aa7b5"),
    "paper": ("#ffffff", "#12171d"),
    "panel": ("#f5f7f9", "#1a2129"),
    "line": ("#dde3e9", "#2d3743"),
    "good": ("#17703f", "#6fd39a"),
    "warn": ("#8a5a00", "#e9b949"),
    "wrong": ("#b3261e", "#ff8f85"),
    "learned": ("#d9f2df", "#16391f"),
    "learned-ink": ("#0c5a26", "#9be3ad"),
    "series-1": ("#1f77c0", "#a6c8fd"),
    "series-2": ("#c8590b", "#d7915d"),
    "series-3": ("#1a4f3a", "#44fbc1"),
    "series-4": ("#5d00a4", "#bb79f9"),
    "series-5": ("#524914", "#dfcb2e"),
    "series-6": ("#a2367d", "#fd56b3"),
    "phase-forward": ("#7fb2e5", "#8fc1f2"),
    "phase-backward": ("#2a6bb0", "#3f82cc"),
    "phase-optimizer": ("#12395f", "#1f4f86"),
    "phase-communication": ("#d9730d", "#e8842a"),
    "phase-idle": ("#f6d38b", "#f7dca3"),
    "phase-data_wait": ("#a3195b", "#e0559a"),
    "phase-checkpoint": ("#54a18a", "#508749"),
    "phase-evaluation": ("#8fbf5a", "#7fc45a"),
    "phase-other": ("#cad1d5", "#465159"),
}
"""Name of the variable, without its two dashes -> (light, dark)."""

SERIES = tuple(name for name in COLOURS if name.startswith("series-"))
PHASES = tuple(name for name in COLOURS if name.startswith("phase-"))


def series_colour(number: int) -> str:
    """The colour of the series numbered from 0; they come again after the last one."""
    return SERIES[number % len(SERIES)]


def css_variables() -> tuple[str, str]:
    """Declarations for light and for dark paper."""
    light, dark = (" ".join(f"--{name}: {pair[side]};" for name, pair in COLOURS.items()) for side in (0, 1))
    return light, dark
