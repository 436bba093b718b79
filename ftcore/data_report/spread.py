"""How lengths are spread: percentiles, and a histogram with what was kept and what was not. From arrays alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.integer]

PERCENTILES = (5, 25, 50, 75, 90, 95, 99)
BINS = 28
"""Bins of a histogram, about; what is far longer than the rest shares one more, which is open."""
FAR = 1.6
"""A length this many times the 99th percentile is far from the rest."""
LONGEST_DESERT = 3
"""Empty bins beside each other that are still drawn one by one."""
STEPS = (1, 2, 5)
"""First digits of a bin's width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Lengths from `start` up to but not including `end`."""

    start: int
    end: int | None
    """None: without an end."""
    kept: int
    """Samples."""
    dropped: int
    """Rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Lengths of a set, in tokens."""

    smallest: int
    largest: int
    mean: float
    percentiles: dict[str, int]
    """p5, p25, p50, ...: the nearest length that is there (so a whole number)."""


def spread_of(lengths: Lengths) -> Spread | None:
    """Percentiles of lengths; None without any."""
    if not len(lengths):
        return None
    found = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
    return Spread(
        smallest=int(lengths.min()),
        largest=int(lengths.max()),
        mean=float(lengths.mean(dtype=np.float64)),
        percentiles={f"p{percent}": int(value) for percent, value in zip(PERCENTILES, found, strict=True)},
    )


def histogram_of(kept: Lengths, dropped: Lengths, max_length: int) -> list[Bin]:
    """Bins of a round width over both, ascending, without gaps; one ends at `max_length`, and the last one is open where some lengths are far from the rest."""
    everything = np.concatenate([kept, dropped])
    if not len(everything):
        return []
    smallest, largest = int(everything.min()), int(everything.max())
    usual = int(float(np.percentile(everything, 99)) * FAR)
    covered = min(largest, max(usual, BINS))
    width = round_width((covered - smallest) / BINS)
    edges = list(range(smallest // width * width, covered + width + 1, width))
    if largest > max_length:
        edges = sorted({*edges, max_length + 1})
    has_far = largest >= edges[-1]
    bounds = np.array([*edges, largest + 1] if has_far else edges)
    in_kept, _ = np.histogram(kept, bounds)
    in_dropped, _ = np.histogram(dropped, bounds)
    ends: list[int | None] = [*edges[1:], *([None] if has_far else [])]
    bins = [Bin(start=start, end=end, kept=int(here), dropped=int(gone)) for start, end, here, gone in zip(edges, ends, in_kept, in_dropped, strict=False)]
    return _without_deserts(bins, max_length)


def _without_deserts(bins: list[Bin], max_length: int) -> list[Bin]:
    """The bins with long stretches of empty ones as one bin each; the edge at `max_length` stays, and the empty ends go."""
    while bins and not (bins[-1].kept or bins[-1].dropped):
        bins = bins[:-1]
    merged: list[Bin] = []
    for is_desert, group in itertools.groupby(bins, key=lambda each: (not (each.kept or each.dropped), each.start > max_length)):
        members = list(group)
        is_long = is_desert[0] and len(members) > LONGEST_DESERT
        merged += [replace(members[0], end=members[-1].end)] if is_long else members
    return merged


def round_width(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is no less than `least`."""
    power = 10 ** max(0, math.floor(math.log10(max(1.0, least))))
    return int(next(step * power for step in (*STEPS, 10) if step * power >= least))
