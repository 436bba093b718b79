"""The operators and kernels that took longest: by the time in themselves, without the operators inside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ftcore.trace_summary.recorded import Recorded

MOST_SHOWN = 25
_MOST_OF_A_NAME = 240
"""Names of kernels can be pages of template arguments; more says nothing."""


@dataclass(slots=True)
class Taken:
    """What one operator took in all its calls."""

    calls: int = 0
    self_s: float = 0.0
    """Host time in it and in none of those inside it."""
    device_s: float = 0.0
    """Of the kernels that it launched itself."""
    shapes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds, of the device where there is one, by the shapes it was given."""


def taken_by_operator(recorded: Recorded, window: tuple[float, float]) -> dict[str, Taken]:
    """By name, of the operators that began in the window."""
    found: dict[str, Taken] = defaultdict(Taken)
    names, device = recorded.names.things, _device_seconds(recorded)
    for place, self_us in _self_times(recorded):
        if not window[0] <= recorded.operators.starts[place] < window[1]:
            continue
        name, shapes = names[recorded.operators.names[place]]
        launched = device.get(recorded.operators.links[place], 0.0)
        taken = found[name]
        taken.calls += 1
        taken.self_s += self_us / 1e6
        taken.device_s += launched
        if shapes:
            taken.shapes[shapes] += launched if recorded.on_device else self_us / 1e6
    return found


def _device_seconds(recorded: Recorded) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for start, end, link in zip(recorded.kernels.starts, recorded.kernels.ends, recorded.kernels.links, strict=True):
        if link >= 0:
            found[link] += (end - start) / 1e6
    return found


def _self_times(recorded: Recorded) -> Iterator[tuple[int, float]]:
    """(place, microseconds in itself) of every operator, by what is nested on its thread."""
    spans = recorded.operators
    starts, ends, threads = np.array(spans.starts), np.array(spans.ends), np.array(spans.threads)
    stack: list[tuple[int, float]] = []
    inner: dict[int, float] = defaultdict(float)
    # Of two that begin together the longer one is outside.
    for place in np.lexsort((-ends, starts, threads)).tolist():
        while stack and (spans.threads[stack[-1][0]] != spans.threads[place] or stack[-1][1] <= spans.starts[place]):
            done = stack.pop()[0]
            yield done, max(0.0, spans.ends[done] - spans.starts[done] - inner.pop(done, 0.0))
        if stack:
            inner[stack[-1][0]] += min(spans.ends[place], stack[-1][1]) - spans.starts[place]
        stack.append((place, spans.ends[place]))
    while stack:
        done = stack.pop()[0]
        yield done, max(0.0, spans.ends[done] - spans.starts[done] - inner.pop(done, 0.0))


def taken_by_kernel(recorded: Recorded, window: tuple[float, float]) -> dict[str, Taken]:
    """By name, of what ran on the device in the window."""
    found: dict[str, Taken] = defaultdict(Taken)
    names = recorded.names.things
    for start, end, name in zip(recorded.kernels.starts, recorded.kernels.ends, recorded.kernels.names, strict=True):
        if window[0] <= start < window[1]:
            taken = found[names[name][:_MOST_OF_A_NAME]]
            taken.calls += 1
            taken.device_s += (end - start) / 1e6
    return found


def added(ranks: Sequence[Mapping[str, Taken]]) -> dict[str, Taken]:
    """The same over several ranks."""
    found: dict[str, Taken] = defaultdict(Taken)
    for each in ranks:
        for name, taken in each.items():
            into = found[name]
            into.calls += taken.calls
            into.self_s += taken.self_s
            into.device_s += taken.device_s
            for shapes, seconds in taken.shapes.items():
                into.shapes[shapes] += seconds
    return found


def top(taken: Mapping[str, Taken], *, on_device: bool) -> list[dict[str, Any]]:
    """The MOST_SHOWN that took longest, as summary.json has them."""
    whole = sum(_weight(each, on_device=on_device) for each in taken.values()) or 1.0
    ordered = sorted(taken.items(), key=lambda item: (-_weight(item[1], on_device=on_device), -item[1].self_s, item[0]))[:MOST_SHOWN]
    return [
        {
            "name": name,
            "calls": each.calls,
            "self_s": each.self_s,
            "device_s": each.device_s,
            "share": _weight(each, on_device=on_device) / whole,
            "shapes": [{"shapes": shapes, "seconds": seconds} for shapes, seconds in sorted(each.shapes.items(), key=lambda item: -item[1])[:3]],
        }
        for name, each in ordered
    ]


def _weight(taken: Taken, *, on_device: bool) -> float:
    return taken.device_s if on_device else taken.self_s
