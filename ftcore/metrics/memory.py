"""Peak memory of this process."""

from __future__ import annotations

import resource

import torch


def peak_memory_bytes() -> int:
    """Bytes: the accelerator's peak allocation since the process began, or on a CPU the peak resident set."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
