"""One micro-step as tensors: a padding-free row of samples end to end, or one padded row a sample.

Shapes: B rows, T positions of a row, C columns at which logits are computed, K supervised positions. Packed rows have B = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ftcore.data.cache import Sample

Int64s = npt.NDArray[np.int64]
PAD_ID = 0
"""Any id of the vocabulary: padded positions are masked and never supervised."""
_FILLER = Sample(ids=np.zeros(1, dtype=np.int32), spans=np.zeros((0, 2), dtype=np.int32), row=0)


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
        """The same batch on `device`; from pinned memory the copy goes on beside the computing."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> MicroBatch:
        """The same batch in page-locked memory, from which an accelerator reads by itself."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> MicroBatch:
        return MicroBatch(
            input_ids_BT=change(self.input_ids_BT),
            position_ids_BT=change(self.position_ids_BT),
            attention_mask_BT=None if self.attention_mask_BT is None else change(self.attention_mask_BT),
            segment_lengths=self.segment_lengths,
            keep_C=change(self.keep_C),
            pick_K=None if self.pick_K is None else change(self.pick_K),
            targets_K=change(self.targets_K),
            weights_K=None if self.weights_K is None else change(self.weights_K),
        )


def collate(samples: Sequence[Sample], layout: str = "packed") -> MicroBatch:
    """The micro-step of these samples; no sample gives a filler of one token that supervises nothing.

    A label at position 0 of a sample never counts: no token before it predicts it, and in a packed row
    the token before it belongs to another sample.
    """
    if not samples:
        return _packed([_FILLER])
    return _padded(samples) if layout == "padded" else _packed(samples)


@dataclass(frozen=True, slots=True)
class _Labels:
    """The supervised tokens of samples that lie end to end."""

    at_K: Int64s
    """Their places in the row, ascending."""
    row_K: Int64s
    """The sample of each."""
    weights_K: npt.NDArray[np.float32] | None
    """None when each counts 1."""


def _labels(samples: Sequence[Sample], starts: Int64s) -> _Labels:
    """Of samples that begin at `starts`."""
    spans = np.concatenate([sample.spans for sample in samples]).astype(np.int64)
    row_of_span = np.repeat(np.arange(len(samples)), [len(sample.spans) for sample in samples])
    first = np.maximum(spans[:, 0], 1)
    counts = np.maximum(spans[:, 1] - first, 0)
    before = np.cumsum(counts) - counts
    at = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(starts[row_of_span] + first - before, counts)
    weights = None
    if any(sample.weights is not None for sample in samples):
        one = [np.ones(len(sample.spans), dtype=np.float32) if sample.weights is None else sample.weights for sample in samples]
        weights = np.repeat(np.concatenate(one), counts)
    return _Labels(at, np.repeat(row_of_span, counts), weights)


def _packed(samples: Sequence[Sample]) -> MicroBatch:
    lengths = np.array([len(sample.ids) for sample in samples], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    row = np.concatenate([sample.ids for sample in samples]).astype(np.int64)
    labels = _labels(samples, starts)
    keep = labels.at_K - 1 if len(labels.at_K) else np.zeros(1, dtype=np.int64)
    return MicroBatch(
        input_ids_BT=torch.from_numpy(row).unsqueeze(0),
        position_ids_BT=torch.from_numpy(np.arange(len(row), dtype=np.int64) - np.repeat(starts, lengths)).unsqueeze(0),
        attention_mask_BT=None,
        segment_lengths=tuple(lengths.tolist()),
        keep_C=torch.from_numpy(keep),
        pick_K=None,
        targets_K=torch.from_numpy(row[labels.at_K]),
        weights_K=None if labels.weights_K is None else torch.from_numpy(labels.weights_K),
    )


def _padded(samples: Sequence[Sample]) -> MicroBatch:
    lengths = np.array([len(sample.ids) for sample in samples], dtype=np.int64)
    rows, longest = len(samples), int(lengths.max())
    starts = np.cumsum(lengths) - lengths
    # A row's tokens come first in it, so that they follow each other in the order of the mask's ones.
    mask_BT = np.arange(longest) < lengths[:, None]
    ids_BT = np.full((rows, longest), PAD_ID, dtype=np.int64)
    ids_BT[mask_BT] = np.concatenate([sample.ids for sample in samples])
    labels = _labels(samples, starts)
    columns = labels.at_K - starts[labels.row_K] - 1
    keep = np.unique(columns) if len(columns) else np.zeros(1, dtype=np.int64)
    return MicroBatch(
        input_ids_BT=torch.from_numpy(ids_BT),
        position_ids_BT=torch.arange(longest).expand(rows, longest).contiguous(),
        attention_mask_BT=torch.from_numpy(mask_BT.astype(np.int64)),
        segment_lengths=tuple(lengths.tolist()),
        keep_C=torch.from_numpy(keep),
        pick_K=torch.from_numpy(labels.row_K * len(keep) + np.searchsorted(keep, columns)),
        targets_K=torch.from_numpy(ids_BT[labels.row_K, columns + 1]),
        weights_K=None if labels.weights_K is None else torch.from_numpy(labels.weights_K),
    )
