"""The colours of pages and charts: each a CSS variable with a value for light and one for dark paper.

Series and phases are told apart also without red, green or blue sight (tests/unit/test_report_palette.py looks through each of the three).
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
    "series-1": ("#1f6fb4", "#63b0f4"),
    "series-2": ("#c8590b", "#f5a04f"),
    "series-3": ("#0f8a72", "#3fd0b2"),
    "series-4": ("#7d3fa8", "#c79bf2"),
    "series-5": ("#8a7a00", "#e3d36a"),
    "series-6": ("#b8336a", "#f58ab5"),
    "phase-forward": ("#7fb2e5", "#8fc1f2"),
    "phase-backward": ("#2a6bb0", "#3f82cc"),
    "phase-optimizer": ("#12395f", "#1f4f86"),
    "phase-communication": ("#d9730d", "#e8842a"),
    "phase-idle": ("#f6d38b", "#f7dca3"),
    "phase-data_wait": ("#a3195b", "#e0559a"),
    "phase-checkpoint": ("#5c8a3a", "#7fb556"),
    "phase-evaluation": ("#b9d98f", "#cbe8a6"),
    "phase-other": ("#aab2bc", "#77828e"),
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
