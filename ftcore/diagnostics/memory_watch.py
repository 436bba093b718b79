"""Watches memory for growth that doesn't end, and names the tensors that grew.

A sample is one short read of /proc and of malloc, or of the allocator of an accelerator. Only once two windows in a row have grown are the
live tensors counted, and again a window later: the difference is what the finding names.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ftcore.diagnostics.curve import median
from ftcore.diagnostics.findings import Cause, Finding
from ftcore.diagnostics.memory_use import anonymous_bytes, used_bytes
from ftcore.diagnostics.tensor_census import Census, grown, take_census

WARMUP = 10
"""Samples left out at the start: optimizer state, caches and the allocator's pools are made in the first updates."""
SLOW_S = 0.5e-3
"""Seconds of processor time from which a read of a fragmented heap gives way to the coarser one, by the fastest of the warm-up."""
WINDOW = 21
"""Samples a slope is fitted to; thirds of seven."""
WINDOWS = 3
"""Windows in a row that must grow: a plateau that the allocator reaches grows in one, and seldom in two."""
SIGNIFICANCE = 4.0
"""Standard errors by which a window's slope must be above zero."""
LEAST_BYTES_AN_UPDATE = 8 * 1024
"""Growth worth telling: below it 100,000 updates take less than a GiB, and lists of numbers grow like that."""
STEADY = 0.2
"""Share of a window's growth that each third must bring, so that one step up is no trend."""
FADING = 0.5
"""Growth of the last window over that of the first below which memory is filling up to a plateau."""
TENSORS_NAMED = 5
EXPLAINED = 0.5
"""Share of a window's growth that tensors must bring to be what is suspected."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A least-squares line through one window."""

    slope: float
    """Bytes an update."""
    error: float
    """Standard error of the slope."""
    growth: float
    """Bytes from the window's first sample to its last, along the line."""
    is_steady: bool
    """Whether each third of the window lies above the one before."""

    @property
    def grows(self) -> bool:
        return self.is_steady and self.slope >= LEAST_BYTES_AN_UPDATE and self.slope > SIGNIFICANCE * self.error


class MemoryWatch:
    """Sampled at each logged update; answers once when memory grows and goes on growing."""

    def __init__(self, read: Callable[[], int] = used_bytes, census: Callable[[], Census] = take_census) -> None:
        self._read, self._take_census = read, census
        self._seen, self._fastest_s = 0, math.inf
        self._window: list[tuple[int, int]] = []
        self._grown: list[Fit] = []
        self._census: Census | None = None
        self._told = False

    def sample(self, update: int) -> Finding | None:
        """Reads the memory in use after `update`. A finding, once an episode of growth, when the last WINDOWS windows all grew."""
        self._seen += 1
        if self._seen <= WARMUP:
            self._warm_up()
            return None
        self._window.append((update, self._read()))
        if len(self._window) < WINDOW:
            return None
        fit, used = fit_window(self._window), self._window[-1][1]
        self._window.clear()
        if not fit.grows:
            self._grown.clear()
            self._census, self._told = None, False
            return None
        self._grown = [*self._grown, fit][-WINDOWS:]
        return self._judge(update, used)

    def _warm_up(self) -> None:
        started = time.thread_time()
        self._read()
        self._fastest_s = min(self._fastest_s, time.thread_time() - started)
        if self._seen == WARMUP and self._fastest_s > SLOW_S:
            self._read = anonymous_bytes

    def _judge(self, update: int, used: int) -> Finding | None:
        if self._told or len(self._grown) < WINDOWS - 1:
            return None
        before, self._census = self._census, self._take_census()
        if before is None or len(self._grown) < WINDOWS or self._grown[-1].slope < FADING * self._grown[0].slope:
            return None
        self._told = True
        found = _leak(update, used, self._grown, before, self._census)
        self._census = None
        return found


def fit_window(samples: Sequence[tuple[int, int]]) -> Fit:
    """The line through (update, bytes) samples of one window."""
    count = len(samples)
    mean_x, mean_y = sum(x for x, _ in samples) / count, sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread
    left = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in samples)
    third = count // 3
    first, middle, last = (median([float(y) for _, y in samples[place : place + third]]) for place in (0, third, 2 * third))
    least = STEADY * (last - first)
    is_steady = last > first and middle - first >= least and last - middle >= least
    growth = slope * (samples[-1][0] - samples[0][0])
    return Fit(slope, math.sqrt(left / (count - 2) / spread), growth, is_steady)


def _leak(update: int, used: int, windows: Sequence[Fit], before: Census, after: Census) -> Finding:
    rate = sum(fit.slope for fit in windows) / len(windows)
    place = "accelerator memory" if torch.cuda.is_available() else "host memory"
    what = f"{place} grows by {rate / 2**20:.3g} MiB an update, steadily over the last {WINDOWS * WINDOW} logged updates, to {used / 2**30:.2f} GiB"
    causes = _causes(grown(before, after), windows[-1].growth)
    return Finding(kind="memory_leak", update=update, what=f"{what} (update {update})", causes=causes)


def _causes(growth: Counter[str], window_bytes: float) -> tuple[Cause, ...]:
    """The tensors that grew; before them, where they explain less than EXPLAINED of the growth, what else to look for."""
    is_theirs = growth.total() >= EXPLAINED * window_bytes
    tensors = [
        Cause(name="tensors", suspected=is_theirs, what=f"{text}, {size / 2**20:.3g} MiB more since the census a window before")
        for text, size in growth.most_common(TENSORS_NAMED)
    ]
    if is_theirs:
        return tuple(tensors)
    told = f"live tensors that Python knows explain {growth.total() / 2**20:.3g} of {window_bytes / 2**20:.3g} MiB"
    what = f"{told}: look for lists and caches, loader buffers, or tensors held by a graph (a loss kept without detach)"
    return (Cause(name="not_tensors", suspected=True, what=what), *tensors)
