"""Peak memory of this process."""

from __future__ import annotations

import resource

import torch


def peak_memory_bytes() -> int:
    """Bytes: the accelerator's peak allocation since the process began, or on a CPU the peak resident set."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_fields() -> dict[str, int | None]:
    """What a line says of this rank's memory, bytes: the peak so far; and of an accelerator what tensors hold now and what torch's allocator keeps."""
    on_gpu = torch.cuda.is_available()
    return {
        "peak_memory_bytes": peak_memory_bytes(),
        "allocated_bytes": int(torch.cuda.memory_allocated()) if on_gpu else None,
        "reserved_bytes": int(torch.cuda.memory_reserved()) if on_gpu else None,
    }
