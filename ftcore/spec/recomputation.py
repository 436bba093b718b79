"""Which decoder layers are computed again in the backward pass under train.gradient_checkpointing."""

from __future__ import annotations

import math


def recomputed_layers(rule: str, layers: int) -> list[int]:
    """Indices, of `layers` decoder layers, that are recomputed under `rule`: none, full, every:K or sqrt.

    every:K recomputes layers 0, K, 2K, ...; sqrt keeps round(sqrt(layers)) of them, evenly spread and the last one
    among them, and recomputes the rest. The last is the cheapest to keep: its backward comes first.
    """
    if rule == "none":
        return []
    if rule == "full":
        return list(range(layers))
    if rule == "sqrt":
        kept = round(math.sqrt(layers))
        keep = {(index + 1) * layers // kept - 1 for index in range(kept)}
        return [layer for layer in range(layers) if layer not in keep]
    return list(range(0, layers, int(rule.removeprefix("every:"))))
