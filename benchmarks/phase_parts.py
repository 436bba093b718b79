"""What measuring phases takes of a rank's thread, by part, in processor time: `OMP_NUM_THREADS=1 python -m benchmarks.phase_parts [--ranks 2]`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from ftcore.attribution.clocks import HostClock
from ftcore.attribution.exchange import LEAST_SLOTS, from_rows, to_row
from ftcore.attribution.timeline import Timeline
from ftcore.diagnostics.slow_rank import SlowRankWatch

MARKS, TIMES, COLLECTIVES = 50_000, 200, 20


def main() -> None:
    """Prints a line a part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.phase_parts", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    line = Timeline(HostClock(), given.ranks, LEAST_SLOTS)

    def marks() -> None:
        for index in range(MARKS):
            line.switch(1 + index % 2)
        line.cut()

    print(f"a mark, added up         {1e6 * seconds_of(marks, 1) / MARKS:9.2f} us")
    for _ in range(COLLECTIVES):
        line.blocked(line.mark(), of_all_ranks=True, synchronises=True)
    stretch, names = line.cut(), [str(rank) for rank in range(given.ranks)]
    row = to_row(stretch, (1.0,), cost=1.0, updates=1)
    rows = np.stack([row] * given.ranks)
    watch = SlowRankWatch()
    told, _ = from_rows(rows, 1, stretch, hosts=names, clocks=["one"] * given.ranks)
    print(f"a rank's row             {1e6 * seconds_of(lambda: to_row(stretch, (1.0,), cost=1.0, updates=1)):9.2f} us")
    print(f"what {given.ranks} ranks' rows tell {1e6 * seconds_of(lambda: from_rows(rows, 1, stretch, hosts=names, clocks=['one'] * given.ranks)):10.2f} us")
    print(f"the watch, on rank 0     {1e6 * seconds_of(lambda: watch.feed(1, told.phases)):9.2f} us" if told.phases else "")


def seconds_of(call: Callable[[], object], times: int = TIMES) -> float:
    """Mean processor seconds of a call, over so many."""
    started = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - started) / times


if __name__ == "__main__":
    main()
