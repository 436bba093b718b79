"""Deal the samples of each update to ranks and micro-steps: of one update, or of all updates of an epoch at once, by the same rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftcore.batch.cost import AttentionShare
from ftcore.batch.packed import pack
from ftcore.batch.padded import pad
from ftcore.batch.samples import Int32s, Int64s, sort_samples
from ftcore.spec.errors import DataError


@dataclass(frozen=True, slots=True)
class Deal:
    """Who computes what of one update: `parts[rank][micro_step]` are indices into its samples (empty: a filler row)."""

    parts: tuple[tuple[Int64s, ...], ...]

    @property
    def micro_steps(self) -> int:
        """The same number on every rank, because ZeRO-3 gathers weights in every forward."""
        return len(self.parts[0])


@dataclass(frozen=True, slots=True)
class Deals:
    """Who computes what of U updates with N samples together. A bin is what one rank computes in one micro-step."""

    world_size: int
    micro_steps: Int64s
    """[U], the same on every rank."""
    bin_of: Int64s
    """[N] bin of each sample; bins are numbered by update, micro-step and rank."""

    @property
    def first_bins(self) -> Int64s:
        """[U + 1] first bin of each update, and their number."""
        return np.append(0, np.cumsum(self.micro_steps * self.world_size))

    def bin_sums(self, values: npt.NDArray[np.integer] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """[bins] sums of the values [N] of the samples."""
        return np.bincount(self.bin_of, weights=values, minlength=int(self.first_bins[-1])).astype(np.float64, copy=False)

    def rank_sums(self, values_of_bins: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """[U, world_size] sums of the values [bins] of what each rank computes of each update."""
        by_step = values_of_bins.reshape(-1, self.world_size)
        upto = np.concatenate([np.zeros((1, self.world_size)), np.cumsum(by_step, axis=0)])
        ends = np.append(0, np.cumsum(self.micro_steps))
        sums: npt.NDArray[np.float64] = upto[ends[1:]] - upto[ends[:-1]]
        return sums


def deal(lengths: Int32s, *, world_size: int, micro_batch_tokens: int, attention_share: float | AttentionShare, layout: str = "packed") -> Deal:
    """Every sample to exactly one micro-step of one rank, none over `micro_batch_tokens`, with balanced costs: `deal_many` of one update.

    Raises DataError as `deal_many` does.
    """
    bounds = np.array([0, len(lengths)], dtype=np.int64)
    dealt = deal_many(lengths, bounds, world_size=world_size, micro_batch_tokens=micro_batch_tokens, attention_share=attention_share, layout=layout)
    bins = int(dealt.first_bins[-1])
    ends = np.cumsum(np.bincount(dealt.bin_of, minlength=bins))
    parts = np.split(np.argsort(dealt.bin_of, kind="stable"), ends[:-1])
    return Deal(tuple(tuple(parts[rank::world_size]) for rank in range(world_size)))


def deal_many(
    lengths: Int32s, bounds: Int64s, *, world_size: int, micro_batch_tokens: int, attention_share: float | AttentionShare, layout: str = "packed"
) -> Deals:
    """The deals of U updates, whose samples lie in `lengths` [N] between `bounds` [U + 1]; each depends on its own samples alone.

    Packed, an update takes the fewest micro-steps for which a deal is found: longest first on the emptiest bin, then exchanges of up to two samples for two
    (`ftcore.batch.exchange`) until no bin is over the budget, and until the ranks' costs are about equal. Padded, a micro-step holds samples of like
    length, and its padding counts (`ftcore.batch.padded`). Whole numbers throughout, so the result is the same on every machine.

    Raises DataError when a sample is longer than the budget or has no tokens.
    """
    if len(lengths) and int(lengths.max()) > micro_batch_tokens:
        raise DataError(
            f"a sample has {int(lengths.max())} tokens, more than micro_batch_tokens {micro_batch_tokens}",
            where="batch.micro_batch_tokens",
            fix=f"use at least {int(lengths.max())}, or a smaller data.max_length",
        )
    if len(lengths) and int(lengths.min()) < 1:
        raise DataError("a sample has no tokens", where="data", fix="prepare the data again: delete its file in the cache")
    samples, order = sort_samples(lengths, bounds, attention_share)
    steps, within = (pad if layout == "padded" else pack)(samples, world_size, micro_batch_tokens)
    first = np.cumsum(steps * world_size) - steps * world_size
    bin_of = np.empty(len(lengths), dtype=np.int64)
    bin_of[order] = np.repeat(first, samples.counts) + within
    return Deals(world_size, steps, bin_of)
