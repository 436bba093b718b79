"""Where micro-steps wait on the host."""

from __future__ import annotations

import torch

from ftcore.batch.collate import MicroBatch


def on_host(batch: MicroBatch, device: torch.device) -> MicroBatch:
    """The batch in page-locked memory where the rank computes on a GPU; as it is on a CPU. May be called in any thread."""
    if device.type != "cuda":
        return batch
    # A new thread begins with device 0, and would make a context on it.
    torch.cuda.set_device(device)
    return batch.pinned()
