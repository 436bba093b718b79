"""Phases as bars: each cell is a letter on its phase's colour, so that they can be told apart without colours, too."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

STYLES = {
    "forward": ("F", "black on bright_blue"),
    "backward": ("B", "white on blue"),
    "optimizer": ("O", "black on bright_magenta"),
    "communication": ("C", "black on yellow"),
    "idle": ("i", "white on red"),
    "data_wait": ("D", "black on bright_green"),
    "checkpoint": ("K", "black on cyan"),
    "evaluation": ("E", "black on bright_cyan"),
    "other": (".", "black on white"),
}
"""Phase -> (letter, style), in the order of the bar."""


def cells(shares: Mapping[str, float], width: int) -> dict[str, int]:
    """Cells for each phase, `width` in all: as its share says, what is left over going to the largest remainders. Empty without a share."""
    whole = sum(shares.values())
    if whole <= 0 or width <= 0:
        return {}
    exact = {phase: shares.get(phase, 0.0) / whole * width for phase in STYLES}
    found = {phase: int(value) for phase, value in exact.items()}
    by_remainder = sorted(exact, key=lambda phase: found[phase] - exact[phase])
    for phase in by_remainder[: width - sum(found.values())]:
        found[phase] += 1
    return {phase: count for phase, count in found.items() if count}


def bar(shares: Mapping[str, float], width: int) -> Text:
    """The bar of one rank; blank without a share."""
    text = Text()
    found = cells(shares, width)
    for phase, count in found.items():
        letter, style = STYLES[phase]
        text.append(letter * count, style)
    text.append(" " * (width - sum(found.values())))
    return text


def legend(phases: Mapping[str, float]) -> Text:
    """What the letters mean, for the phases that have some share, with it."""
    text = Text()
    whole = sum(phases.values()) or 1.0
    for phase, (letter, style) in STYLES.items():
        if phases.get(phase, 0.0) / whole >= 0.005:
            text.append(letter, style)
            text.append(f" {phase.replace('_', ' ')} {phases[phase] / whole:.0%}  ", "dim")
    return text
