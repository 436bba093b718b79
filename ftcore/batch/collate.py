"""One micro-step as tensors: a padding-free row of samples end to end, or one padded row a sample.

Shapes: B rows, T positions of a row, C columns at which logits are computed, K supervised positions. Packed rows have B = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ftcore.data.cache import Sample

Int64s = npt.NDArray[np.int64]
PAD_ID = 0
"""Any id of the vocabulary: padded positions are masked and never supervised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one rank computes in one micro-step."""

    input_ids_BT: torch.Tensor
    """int64 [B, T]."""
    position_ids_BT: torch.Tensor
    """int64 [B, T]; restarts at 0 with each sample."""
    attention_mask_BT: torch.Tensor | None
    """int64 [B, T], 0 at padding; None for a packed row, which has none."""
    segment_lengths: tuple[int, ...]
    """Tokens of each sample, in row order; a packed row's sum to T."""
    keep_C: torch.Tensor
    """int64: columns whose next token is supervised in some row; one arbitrary column when there is none, so that every rank runs the lm_head."""
    pick_K: torch.Tensor | None
    """int64: where the supervised positions lie in the flattened [B, C] logits; None when they are all of them."""
    targets_K: torch.Tensor
    """int64: the next tokens; empty when nothing is supervised."""
    weights_K: torch.Tensor | None
    """float32: what each token counts; None when each counts 1."""

    @property
    def supervised_tokens(self) -> int:
        return int(self.targets_K.numel())

    @property
    def tokens(self) -> int:
        """Positions computed, padding included."""
        return int(self.input_ids_BT.numel())

    def to(self, device: torch.device) -> MicroBatch:
        """The same batch on `device`."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=True)

        return MicroBatch(
            input_ids_BT=moved(self.input_ids_BT),
            position_ids_BT=moved(self.position_ids_BT),
            attention_mask_BT=None if self.attention_mask_BT is None else moved(self.attention_mask_BT),
            segment_lengths=self.segment_lengths,
            keep_C=moved(self.keep_C),
            pick_K=None if self.pick_K is None else moved(self.pick_K),
            targets_K=moved(self.targets_K),
            weights_K=None if self.weights_K is None else moved(self.weights_K),
        )


def collate(samples: Sequence[Sample], layout: str = "packed") -> MicroBatch:
    """The micro-step of these samples; no sample gives a filler of one token that supervises nothing.

    A label at position 0 of a sample never counts: no token before it predicts it, and in a packed row
    the token before it belongs to another sample.
    """
    if not samples:
        filler = np.zeros(1, dtype=np.int64)
        return _packed([filler], [np.zeros(0, dtype=np.int64)], None)
    ids = [np.asarray(sample.ids, dtype=np.int64) for sample in samples]
    supervised = [_supervised_positions(sample) for sample in samples]
    weights = _weights(samples)
    return _padded(ids, supervised, weights) if layout == "padded" else _packed(ids, supervised, weights)


def _supervised_positions(sample: Sample) -> Int64s:
    """Positions of the sample's supervised tokens, int64, ascending, without position 0."""
    if not len(sample.spans):
        return np.zeros(0, dtype=np.int64)
    positions = np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in sample.spans])
    return positions[positions > 0]


def _weights(samples: Sequence[Sample]) -> npt.NDArray[np.float32] | None:
    """What each supervised token of the samples counts, in their order; None when each counts 1."""
    if all(sample.weights is None for sample in samples):
        return None
    parts = [np.zeros(0, dtype=np.float32)]
    for sample in samples:
        weights = np.ones(len(sample.spans), dtype=np.float32) if sample.weights is None else sample.weights
        for (start, end), weight in zip(sample.spans, weights, strict=True):
            parts.append(np.full(max(0, end - max(start, 1)), weight, dtype=np.float32))
    return np.concatenate(parts)


def _packed(ids: list[Int64s], supervised: list[Int64s], weights: npt.NDArray[np.float32] | None) -> MicroBatch:
    lengths = [len(sample_ids) for sample_ids in ids]
    offsets = np.cumsum([0, *lengths[:-1]])
    row = np.concatenate(ids)
    label_positions = np.concatenate([positions + offset for positions, offset in zip(supervised, offsets, strict=True)])
    keep = label_positions - 1 if len(label_positions) else np.zeros(1, dtype=np.int64)
    return MicroBatch(
        input_ids_BT=torch.from_numpy(row).unsqueeze(0),
        position_ids_BT=torch.from_numpy(np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])).unsqueeze(0),
        attention_mask_BT=None,
        segment_lengths=tuple(lengths),
        keep_C=torch.from_numpy(keep),
        pick_K=None,
        targets_K=torch.from_numpy(row[label_positions]),
        weights_K=None if weights is None else torch.from_numpy(weights),
    )


def _padded(ids: list[Int64s], supervised: list[Int64s], weights: npt.NDArray[np.float32] | None) -> MicroBatch:
    rows, longest = len(ids), max(len(sample_ids) for sample_ids in ids)
    ids_BT = np.full((rows, longest), PAD_ID, dtype=np.int64)
    mask_BT = np.zeros((rows, longest), dtype=np.int64)
    for row, sample_ids in enumerate(ids):
        ids_BT[row, : len(sample_ids)] = sample_ids
        mask_BT[row, : len(sample_ids)] = 1
    columns = np.concatenate([positions - 1 for positions in supervised])
    row_of = np.repeat(np.arange(rows), [len(positions) for positions in supervised])
    keep = np.unique(columns) if len(columns) else np.zeros(1, dtype=np.int64)
    return MicroBatch(
        input_ids_BT=torch.from_numpy(ids_BT),
        position_ids_BT=torch.arange(longest).expand(rows, longest).contiguous(),
        attention_mask_BT=torch.from_numpy(mask_BT),
        segment_lengths=tuple(len(sample_ids) for sample_ids in ids),
        keep_C=torch.from_numpy(keep),
        pick_K=torch.from_numpy(row_of * len(keep) + np.searchsorted(keep, columns)),
        targets_K=torch.from_numpy(ids_BT[row_of, columns + 1]),
        weights_K=None if weights is None else torch.from_numpy(weights),
    )
