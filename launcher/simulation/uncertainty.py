"""How far off a simulated point may be."""

from __future__ import annotations

import math

UNTIED = 0.15
TIED = 0.03
A_DOUBLING = 0.01


def band(*, ranks: int, anchor_ranks: int | None, devices_per_node: int) -> float:
    """Half the width of the band, as a share of update_seconds."""
    start = UNTIED if anchor_ranks is None else TIED
    away = abs(math.log2(ranks / (anchor_ranks or min(ranks, devices_per_node))))
    return start + A_DOUBLING * away
