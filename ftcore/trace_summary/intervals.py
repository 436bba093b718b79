"""Arithmetic of time intervals: arrays [n, 2] of starts and ends, in microseconds as traces have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.float64]
"""[n, 2]; sorted and disjoint where a function says so."""

NONE: Intervals = np.empty((0, 2))


def union(intervals: Intervals) -> Intervals:
    """The same moments as sorted, disjoint intervals."""
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    if not len(intervals):
        return NONE
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    latest = np.maximum.accumulate(intervals[:, 1])
    is_first = np.concatenate([[True], intervals[1:, 0] > latest[:-1]])
    lasts = np.concatenate([np.flatnonzero(is_first)[1:] - 1, [len(intervals) - 1]])
    return np.stack([intervals[is_first, 0], latest[lasts]], axis=1)


def complement(intervals: Intervals, within: Intervals) -> Intervals:
    """The moments of `within` that are in none of `intervals`; both sorted and disjoint."""
    cut = segments(within, [intervals])
    return union(cut.bounds[~cut.inside[0]])


def total(intervals: Intervals) -> float:
    """Microseconds in disjoint intervals."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def within(moments: npt.NDArray[np.float64], intervals: Intervals) -> npt.NDArray[np.bool_]:
    """Which moments are in sorted, disjoint intervals; an end is not in it."""
    if not len(intervals):
        return np.zeros(len(moments), dtype=bool)
    index = np.searchsorted(intervals[:, 0], moments, side="right") - 1
    inside: npt.NDArray[np.bool_] = (index >= 0) & (moments < intervals[np.maximum(index, 0), 1])
    return inside


@dataclass(frozen=True, slots=True)
class Segments:
    """A window cut wherever one of several layers begins or ends."""

    bounds: Intervals
    inside: npt.NDArray[np.bool_]
    """[layers, segments]"""

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """Length of each segment, in seconds."""
        lengths: npt.NDArray[np.float64] = (self.bounds[:, 1] - self.bounds[:, 0]) / 1e6
        return lengths


def segments(window: Intervals, layers: Sequence[Intervals]) -> Segments:
    """Cuts the window, sorted and disjoint as each layer is. The segments fill it: their lengths sum to its own."""
    moments = np.unique(np.concatenate([window.ravel(), *(layer.ravel() for layer in layers)]))
    bounds = np.stack([moments[:-1], moments[1:]], axis=1) if len(moments) > 1 else NONE
    middles = bounds.mean(axis=1)
    is_in = within(middles, window)
    bounds, middles = bounds[is_in], middles[is_in]
    return Segments(bounds, np.array([within(middles, layer) for layer in layers], dtype=bool).reshape(len(layers), len(bounds)))


def first_layer(inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """[layers, segments] -> for each segment the first layer that it is in; the number of layers where it is in none."""
    none = np.ones((1, inside.shape[1]), dtype=bool)
    found: npt.NDArray[np.int64] = np.argmax(np.concatenate([inside, none]), axis=0)
    return found
