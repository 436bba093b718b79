"""What gloo reaches between two ranks of this machine, by the size of a message: `python -m benchmarks.gloo_bus`. About a minute.

Prints GB/s of the bus, bytes·(n-1)/n over seconds (twice that for an all-reduce), the best of several rounds, for others may be at work: what
launcher.memory.network counts with for ranks on CPUs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as torch_dist

from benchmarks.two_ranks import RESULT, run_on_ranks
from ftcore import dist
from ftcore.dist import Ranks

SIZES_MIB = (0.0625, 0.25, 1.0, 4.0, 16.0, 64.0, 256.0)
ROUNDS = 15


def collectives(mib: float, ranks: Ranks) -> dict[str, Callable[[], object]]:
    """Name -> what sends a whole tensor of so many MiB once."""
    size = int(mib * 2**20 / 4) // ranks.world_size * ranks.world_size
    whole, part = torch.ones(size), torch.ones(size // ranks.world_size)
    return {
        "all-reduce": lambda: torch_dist.all_reduce(whole),
        "gather": lambda: torch_dist.all_gather_into_tensor(whole, part),
        "reduce": lambda: torch_dist.reduce_scatter_tensor(part, whole),
    }


def work(ranks: Ranks, folder: Path, rounds: int) -> None:
    """Times each collective at each size; rank 0 writes its best seconds."""
    found: dict[str, dict[str, float]] = {}
    for mib in SIZES_MIB:
        for name, call in collectives(mib, ranks).items():
            times = max(1, int(8 / mib)) if mib < 8 else 1
            call()
            seconds = []
            for _ in range(rounds):
                dist.barrier()
                began = time.perf_counter()
                for _ in range(times):
                    call()
                seconds.append((time.perf_counter() - began) / times)
            found.setdefault(name, {})[str(mib)] = min(seconds)
    if ranks.is_first:
        (folder / RESULT).write_text(json.dumps(found))
    dist.stop()


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        found = run_on_ranks(work, Path(folder), ROUNDS)
    for name, by_size in found.items():
        for mib, seconds in by_size.items():
            sent = float(mib) * 2**20 / 2 * (2 if name == "all-reduce" else 1)
            print(f"{name:<12}{float(mib):>9.4g} MiB{seconds * 1e6:>12,.0f} µs{sent / seconds / 1e9:>8.2f} GB/s")


if __name__ == "__main__":
    sys.exit(main())
