"""The samples of updates as a deal sees them: longest first, with their costs as integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftcore.batch.cost import AttentionShare, sample_costs

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

LOAD_BITS = 37
"""Of the cost of a whole update; the sum, times a number of bins, still is an int64."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of U updates, N in all, of each update the longest first; one more of no tokens stands at the end for an empty place."""

    tokens: Int64s
    """[N + 1]"""
    costs: Int64s
    """[N + 1], in a unit of the update's own."""
    starts: Int64s
    """[U] where each update begins."""
    counts: Int64s
    """[U] samples of each update."""
    tokens_upto: Int64s
    """[N + 1] tokens of all samples before."""
    costs_upto: Int64s
    """[N + 1] costs of all samples before."""

    @property
    def none(self) -> int:
        """Number of the sample that stands for an empty place."""
        return len(self.tokens) - 1

    def sums(self, values: Int64s) -> Int64s:
        """[U] of the values [N] of the samples."""
        return self.between(_upto(values))

    def between(self, upto: Int64s) -> Int64s:
        """[U] of running sums [N + 1]."""
        sums: Int64s = upto[self.starts + self.counts] - upto[self.starts]
        return sums


def sort_samples(lengths: Int32s, bounds: Int64s, attention_share: float | AttentionShare) -> tuple[Samples, Int64s]:
    """The samples of the updates that lie in `lengths` between `bounds` [U + 1], and the index in `lengths` of each, [N]. Equal lengths keep their order."""
    starts, counts = bounds[:-1], np.diff(bounds)
    order = _by_size(lengths, counts)
    sizes = lengths[order]
    costs = sample_costs(sizes, attention_share)
    # A power of two for each update, from nothing but its own samples: the longest stands first.
    most = counts * costs[np.minimum(starts, max(0, len(costs) - 1))] if len(costs) else np.ones(len(counts))
    bits = LOAD_BITS - np.frexp(np.maximum(most, 1.0))[1]
    units = np.rint(np.ldexp(costs, np.repeat(bits, counts))).astype(np.int64)
    tokens = sizes.astype(np.int64)
    return Samples(np.append(tokens, 0), np.append(units, 0), starts, counts, _upto(tokens), _upto(units)), order


def _upto(values: Int64s) -> Int64s:
    upto = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=upto[1:])
    return upto


def _by_size(lengths: Int32s, counts: Int64s) -> Int64s:
    """Order by update, and inside each by falling length. numpy sorts 16 bits by counting: the last key first, as a radix sort."""
    falling = int(lengths.max(initial=0)) - lengths
    order = np.argsort(_narrow(falling), kind="stable")
    if len(counts) > 1:
        update = np.repeat(_narrow(np.arange(len(counts))), counts)
        order = order[np.argsort(update[order], kind="stable")]
    return order.astype(np.int64, copy=False)


def _narrow(values: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.integer]:
    return values.astype(np.uint16) if int(values.max(initial=0)) < 1 << 16 else values
