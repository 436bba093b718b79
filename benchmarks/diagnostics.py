"""What the diagnostics cost at a logged update, in processor time of this thread: `OMP_NUM_THREADS=1 python -m benchmarks.diagnostics`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from ftcore.diagnostics.findings import Observation, RunFacts
from ftcore.diagnostics.loss_watch import LossWatch
from ftcore.diagnostics.memory_use import used_bytes
from ftcore.diagnostics.memory_watch import MemoryWatch
from ftcore.diagnostics.tensor_census import take_census

UPDATES = 500
TENSORS = 2_000
"""Alive while it is measured, every second one of twice as many: their free neighbours are what a read of the heap has to walk."""


def main() -> None:
    """Prints a line a part: median and largest of its calls."""
    alive = [torch.ones(size % 977 + 1) for size in range(2 * TENSORS)][::2]
    facts = RunFacts(max_grad_norm=1.0, learning_rate=1e-3, warmup_updates=0, total_updates=UPDATES, global_batch_size=8)
    losses, memory = LossWatch(facts), MemoryWatch()

    def feed(update: int) -> None:
        losses.feed(Observation(update=update, loss=2.0 + 0.1 * (update % 7), grad_norm=1.0, learning_rate=1e-3, clipped=False))

    parts: dict[str, tuple[Callable[[int], object], int]] = {
        "read of the memory in use": (lambda _: used_bytes(), UPDATES),
        "memory sample": (memory.sample, UPDATES),
        "loss watch": (feed, UPDATES),
        "census of tensors": (lambda _: take_census(), 10),
    }
    for name, (call, times) in parts.items():
        spent = [seconds_of(call, update) for update in range(1, times + 1)]
        print(f"{name:28} {1e3 * statistics.median(spent):9.3f} ms median {1e3 * max(spent):9.3f} ms largest, of {times}")
    print(f"with {len(alive):,} tensors alive")


def seconds_of(call: Callable[[int], object], update: int) -> float:
    """Processor seconds of one call."""
    started = time.thread_time()
    call(update)
    return time.thread_time() - started


if __name__ == "__main__":
    main()
