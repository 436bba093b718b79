"""Which decoder layers are recomputed in the backward pass: the rule of ftcore.model.recompute, which the launcher can't import."""

from __future__ import annotations

import math


def recomputed_layers(rule: str, layers: int) -> list[int]:
    """Indices, of `layers` decoder layers, that are recomputed under `rule`: none, full, every:K or sqrt."""
    if rule == "none":
        return []
    if rule == "full":
        return list(range(layers))
    if rule == "sqrt":
        kept = round(math.sqrt(layers))
        keep = {(index + 1) * layers // kept - 1 for index in range(kept)}
        return [layer for layer in range(layers) if layer not in keep]
    return list(range(0, layers, int(rule.removeprefix("every:"))))
