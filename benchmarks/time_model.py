"""The model of time against published training speeds: `python -m benchmarks.time_model [--fit]`.

Prints each row, then mean and worst errors; with --fit, the shares that fit the rows of one host best (and nothing else: no row of several hosts is looked
at), and the errors on rows of one host that they were not fitted to. About 1 s, and 90 s.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.published import Row, lengths_of, on_one_host, on_several_hosts, published, run_of, shape_of, trained_of
from launcher.memory import roofline, work
from launcher.memory.accelerators import find_accelerator
from launcher.memory.network import Network, network_of
from launcher.memory.roofline import Reach, UpdateTime, update_time
from launcher.memory.traffic import Traffic, traffic_of
from launcher.memory.work import work_of

FORGIVEN = 0.25
"""An error of a row that counts no more in the fit: a row further off has been measured under other conditions."""


@functools.cache
def sent(row: Row) -> tuple[Traffic, Network]:
    """What a row's run sends, and over what."""
    resolved = run_of(row)
    return traffic_of(resolved, shape_of(row.model), trained_of(row), row.micro_steps), network_of(resolved, find_accelerator(row.gpu))


def predicted(row: Row) -> tuple[float, UpdateTime]:
    """(tokens a second of one accelerator, the update's times) by the planner's model."""
    resolved = run_of(row)
    done = work_of(resolved, shape_of(row.model), lengths_of(row), trained_of(row))
    traffic, network = sent(row)
    times = update_time(resolved.spec, done, traffic, find_accelerator(row.gpu), network)
    return row.samples * row.micro_steps * row.length / times.total_s, times


def anchors(row: Row) -> list[Row]:
    """The rows of one host that differ in the number of accelerators and the cut into micro-steps alone, the nearest micro-batch first."""
    found = [each for each in published() if each.family == row.family and each.nodes == 1]
    return sorted(found, key=lambda each: abs(math.log(each.samples / row.samples)))


def tied(row: Row, anchor: Row) -> float:
    """Tokens a second of one accelerator, with the computing as many times as long as the anchor's was published to be (launcher.simulation.timing)."""
    times, at = predicted(row)[1], predicted(anchor)[1]
    seconds = anchor.samples * anchor.micro_steps * anchor.length / anchor.tokens_per_s
    factor = (seconds - at.communication_s) / (at.total_s - at.communication_s)
    total = (times.total_s - times.communication_s) * factor + times.communication_s
    return row.samples * row.micro_steps * row.length / total


def errors(rows: Sequence[Row]) -> list[float]:
    """Predicted over published speed, less one, of each row."""
    return [predicted(row)[0] / row.tokens_per_s - 1 for row in rows]


def summary(name: str, found: Sequence[float]) -> str:
    """Mean and worst of some errors."""
    sizes = [abs(error) for error in found]
    return f"{name:<58}{len(sizes):>4} rows, mean error {statistics.mean(sizes):.1%}, worst {max(sizes):.1%}"


START = (0.7, 0.2, 0.8, 0.3, 6.0, 0.5, 100.0, 0.3)
"""Where a fit begins: share of matrix products and of attention on Hopper, the same on Ampere, MOVES, MOVES_AGAIN, HALF_WIDTH, HIDDEN."""


@contextmanager
def shares(values: tuple[float, ...]) -> Iterator[None]:
    """The planner's model with these in place of its own."""
    before = dict(roofline.REACH), work.MOVES, work.MOVES_AGAIN, roofline.HALF_WIDTH, roofline.HIDDEN
    roofline.REACH["hopper"] = Reach(matmul=values[0], attention=values[1], memory=0.75)
    roofline.REACH["ampere"] = Reach(matmul=values[2], attention=values[3], memory=0.75)
    work.MOVES, work.MOVES_AGAIN, roofline.HALF_WIDTH, roofline.HIDDEN = values[4:]
    try:
        yield
    finally:
        roofline.REACH.update(before[0])
        work.MOVES, work.MOVES_AGAIN, roofline.HALF_WIDTH, roofline.HIDDEN = before[1:]


def fit(rows: Sequence[Row], rounds: int = 6000) -> tuple[float, ...]:
    """The shares with the least mean distance of the logarithms of predicted and published speed, by a random search."""

    def loss(values: tuple[float, ...]) -> float:
        with shares(values):
            return statistics.mean(min(FORGIVEN, abs(math.log(1 + error))) for error in errors(rows))

    chance, best, least, width = random.Random(0), START, loss(START), 0.15
    for number in range(1, rounds + 1):
        tried = tuple(value * math.exp(chance.gauss(0, width) * (chance.random() < 0.4)) for value in best)
        found = loss(tried)
        if found < least:
            best, least = tried, found
        width *= 0.6 if number % 1500 == 0 else 1
    return best


def print_fit(rows: Sequence[Row]) -> None:
    """The best shares, and the errors on each half of the rows of shares fitted to the other half."""
    print("best:", ", ".join(f"{value:.3f}" for value in fit(rows)))
    for half in (0, 1):
        with shares(fit(rows[1 - half :: 2])):
            print(summary("fitted to the other half", errors(rows[half::2])))


def main() -> None:
    """Prints all rows, and what they come to."""
    if "--fit" in sys.argv[1:]:
        print_fit(on_one_host())
        return
    for row in published():
        speed, times = predicted(row)
        parts = [each / times.total_s for each in (times.compute_s, times.memory_s, times.communication_s)]
        where = f"{parts[0]:4.0%} compute {parts[1]:4.0%} memory {parts[2]:4.0%} network"
        print(f"{row.software:<20}{row.name:<36}{row.tokens_per_s:>9,.0f}{speed:>10,.0f} tokens/s {speed / row.tokens_per_s - 1:>+7.1%}   {where}")
    for gpu in ("h100-80", "a100-80", "a100-40"):
        print(summary(f"one host, fitted to: {gpu}", errors([row for row in on_one_host() if row.gpu == gpu])))
    print(summary("one host, all of them", errors(on_one_host())))
    print(summary("several hosts, llm-foundry, fitted to none of them", errors([row for row in on_several_hosts() if row.software == "llm-foundry"])))


if __name__ == "__main__":
    sys.exit(main())
