"""What a rank is busy with, as small numbers, and what each of them means for whoever waits for it."""

from __future__ import annotations

from ftcore.spec.run_lines import PHASES

BUSY = tuple(name for name in PHASES if name not in ("communication", "idle"))
"""What a rank does outside of collectives."""
DATA_WAIT, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, EVALUATION, OTHER = range(len(BUSY))
"""Places in BUSY."""

TRAINING, SAVING, EVALUATING = range(3)
REGIONS = 3
"""Collectives of a region are compared among themselves: who is slow at a checkpoint may be fast elsewhere."""


def region_of(phase: int) -> int:
    """TRAINING, SAVING or EVALUATING."""
    return SAVING if phase == CHECKPOINT else EVALUATING if phase == EVALUATION else TRAINING
