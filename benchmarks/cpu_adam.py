"""Milliseconds of one AdamW step in host memory a million parameters: torch's fused AdamW and DeepSpeedCPUAdam, which is compiled first.

    python -m benchmarks.cpu_adam [--parameters 20000000]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
RATE = 1e-3
STEPS = 5


def milliseconds_per_million(make: Make, count: int) -> float:
    """The fastest of STEPS steps after the first."""
    parameter = torch.nn.Parameter(torch.randn(count))
    optimizer = make([parameter])
    parameter.grad = torch.randn(count) * 1e-2
    optimizer.step()
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return min(seconds) * 1e9 / count


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=20_000_000)
    count = parser.parse_args().parameters
    fused: Make = lambda group: torch.optim.AdamW(group, lr=RATE, fused=True)  # noqa: E731  one of two makers that are passed on
    print(f"torch fused       {milliseconds_per_million(fused, count):6.2f} ms per million parameters")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    began = time.perf_counter()
    DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    print(f"DeepSpeedCPUAdam  {time.perf_counter() - began:6.1f} s to compile (once a machine), or to load")
    compiled: Make = lambda group: DeepSpeedCPUAdam(group, lr=RATE)  # noqa: E731
    print(f"DeepSpeedCPUAdam  {milliseconds_per_million(compiled, count):6.2f} ms per million parameters")


if __name__ == "__main__":
    main()
