"""How samples become micro-steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftcore.batch.cost import AttentionShare, sample_costs
from ftcore.batch.padded import padded_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How samples become micro-steps."""

    micro_batch_tokens: int
    attention_share: float | AttentionShare
    """What attention adds to the cost of a sample; a number is c in l + c·l²."""
    layout: str = "packed"
    """packed or padded."""

    def computed_tokens(self, lengths: npt.NDArray[np.integer]) -> int:
        """Positions of the micro-step of samples of these lengths; one without samples is a filler row of one."""
        return max(1, padded_tokens(lengths) if self.layout == "padded" else int(lengths.sum(dtype=np.int64)))

    def cost(self, lengths: npt.NDArray[np.integer]) -> float:
        """Planned time of the micro-step of samples of these lengths, in matrix products of a token, padding included."""
        rows = np.full(len(lengths), lengths.max()) if self.layout == "padded" else lengths
        return float(sample_costs(rows.astype(np.int64), self.attention_share).sum())
