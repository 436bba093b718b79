"""One micro-step is one padding-free row: samples end to end, each with positions from 0.

Shapes: T tokens of the row, K supervised positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ftcore.data.cache import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one rank computes in one micro-step."""

    input_ids_1T: torch.Tensor
    """int64 [1, T]."""
    position_ids_1T: torch.Tensor
    """int64 [1, T]; restarts at 0 with each sample."""
    segment_lengths: tuple[int, ...]
    """Tokens of each sample, in row order; sums to T."""
    keep_K: torch.Tensor
    """int64: row positions whose next token is supervised; one arbitrary position when there is none, so that every rank runs the lm_head."""
    targets_K: torch.Tensor
    """int64: the next tokens at `keep_K`; empty when nothing is supervised."""

    @property
    def supervised_tokens(self) -> int:
        return int(self.targets_K.numel())

    @property
    def tokens(self) -> int:
        return int(self.input_ids_1T.numel())

    def to(self, device: torch.device) -> MicroBatch:
        """The same batch on `device`."""
        return MicroBatch(
            input_ids_1T=self.input_ids_1T.to(device, non_blocking=True),
            position_ids_1T=self.position_ids_1T.to(device, non_blocking=True),
            segment_lengths=self.segment_lengths,
            keep_K=self.keep_K.to(device, non_blocking=True),
            targets_K=self.targets_K.to(device, non_blocking=True),
        )


def collate(samples: Sequence[Sample]) -> MicroBatch:
    """The row of these samples; no sample gives a filler of one token that supervises nothing.

    A label at position 0 of a sample never counts: no token before it predicts it, and the token
    before it in the row belongs to another sample.
    """
    if not samples:
        return _row([np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.int64)])
    ids = [np.asarray(sample.ids, dtype=np.int64) for sample in samples]
    return _row(ids, [_supervised_positions(sample) for sample in samples])


def _supervised_positions(sample: Sample) -> np.ndarray:
    """Positions of the sample's supervised tokens, int64, ascending, without position 0."""
    if not len(sample.spans):
        return np.zeros(0, dtype=np.int64)
    positions = np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in sample.spans])
    return positions[positions > 0]


def _row(ids: list[np.ndarray], supervised: list[np.ndarray]) -> MicroBatch:
    lengths = [len(sample_ids) for sample_ids in ids]
    offsets = np.cumsum([0, *lengths[:-1]])
    row = np.concatenate(ids)
    label_positions = np.concatenate([positions + offset for positions, offset in zip(supervised, offsets, strict=True)])
    keep = label_positions - 1 if len(label_positions) else np.zeros(1, dtype=np.int64)
    return MicroBatch(
        input_ids_1T=torch.from_numpy(row).unsqueeze(0),
        position_ids_1T=torch.from_numpy(np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])).unsqueeze(0),
        segment_lengths=tuple(lengths),
        keep_K=torch.from_numpy(keep),
        targets_K=torch.from_numpy(row[label_positions]),
    )
