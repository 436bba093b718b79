"""Window and deal of a whole run, counted from lengths alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ftcore.batch.cost import AttentionShare, sample_costs
from ftcore.batch.deal import Deals, deal_many
from ftcore.batch.samples import Int64s
from ftcore.batch.window import EpochWindows, UpdateSequence
from ftcore.data.mix import SampleMix, counts_by_set
from ftcore.spec.sections import BatchSection

COUNTED_SAMPLES = 8_000_000
"""Samples after which counting stops: two to four seconds on one core. Of a longer run the figures are those of its first updates."""

Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaviestStep:
    """The micro-step of one rank with the most tokens, of like ones that with the longest sample: what memory has to hold."""

    update: int
    """From 1, as in metrics.jsonl."""
    rank: int
    micro_step: int
    """From 0 within the update."""
    samples: int
    tokens: int
    """Positions computed, padding included."""
    longest: int
    """Tokens of its longest sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCounts:
    """Of each of U updates in a row."""

    first_update: int
    """0-based."""
    epoch: Int64s
    samples: Int64s
    tokens: Int64s
    micro_steps: Int64s
    packs: Int64s
    """Micro-steps of a rank that hold samples; the other ones are filler rows."""
    padding: Int64s
    """Tokens computed that belong to no sample: one a filler row, and what fills up padded rows."""
    fill: Float64s
    """Sample tokens over micro_batch_tokens, in micro-steps that hold samples."""
    imbalance: Float64s
    """Cost of the dearest rank over that of the mean rank."""
    waiting: Float64s
    """Share of the ranks' time spent waiting for the dearest one when they wait after each micro-step, as ZeRO stage 3 has them do."""

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """What the counted updates of a run hold."""

    updates: UpdateCounts
    heaviest: HeaviestStep
    by_set: dict[str, tuple[int, int, int]]
    """Set -> samples, tokens and supervised tokens of the counted updates."""


def count_run(
    sequence: UpdateSequence, train: SampleMix, *, batch: BatchSection, world_size: int, share: AttentionShare, most_samples: int | None = None
) -> RunCounts:
    """Deals every update of the run, an epoch at a time, until `most_samples` have been dealt, or COUNTED_SAMPLES."""
    parts: list[UpdateCounts] = []
    heaviest: list[HeaviestStep] = []
    sums = {name: np.zeros(3, dtype=np.int64) for name in train.names}
    left = most_samples if most_samples is not None else COUNTED_SAMPLES
    for windows in sequence.by_epoch():
        bounds = windows.bounds[: max(2, int(np.searchsorted(windows.bounds, left, side="right")))]
        ids = windows.order[: bounds[-1]]
        dealt = deal_many(
            train.lengths[ids],
            bounds,
            world_size=world_size,
            micro_batch_tokens=batch.micro_batch_tokens,
            attention_share=share,
            layout=batch.layout,
        )
        counts, heavy = _count(windows, bounds, train.lengths[ids], dealt, batch, share)
        parts.append(counts)
        heaviest.append(heavy)
        for name, each in counts_by_set(train, ids).items():
            sums[name] += each
        left -= len(ids)
        if left <= 0 or len(bounds) < len(windows.bounds):
            break
    return RunCounts(
        updates=_joined(parts),
        heaviest=max(heaviest, key=lambda step: (step.tokens, step.longest, -step.update)),
        by_set={name: (int(each[0]), int(each[1]), int(each[2])) for name, each in sums.items()},
    )


def _count(
    windows: EpochWindows, bounds: Int64s, lengths: npt.NDArray[np.int32], dealt: Deals, batch: BatchSection, share: AttentionShare
) -> tuple[UpdateCounts, HeaviestStep]:
    """The counts of one epoch's updates, and its heaviest micro-step."""
    bins = int(dealt.first_bins[-1])
    held = np.bincount(dealt.bin_of, minlength=bins)
    tokens = dealt.bin_sums(lengths).astype(np.int64)
    longest = np.zeros(bins, dtype=np.int64)
    np.maximum.at(longest, dealt.bin_of, lengths.astype(np.int64))
    is_padded = batch.layout == "padded"
    computed = np.maximum(1, held * longest if is_padded else tokens)
    costs = held * sample_costs(longest, share) if is_padded else dealt.bin_sums(sample_costs(lengths, share))
    first = dealt.first_bins[:-1]
    packs = np.add.reduceat((held > 0).astype(np.int64), first)
    own = np.add.reduceat(tokens, first)
    by_rank = dealt.rank_sums(costs)
    mean = by_rank.mean(axis=1)
    slowest = np.add.reduceat(costs.reshape(-1, dealt.world_size).max(axis=1), first // dealt.world_size)
    counts = UpdateCounts(
        first_update=windows.first_update,
        epoch=np.full(len(first), windows.epoch, dtype=np.int64),
        samples=np.diff(bounds),
        tokens=own,
        micro_steps=dealt.micro_steps,
        packs=packs,
        padding=np.add.reduceat(computed, first) - own,
        fill=own / (packs * batch.micro_batch_tokens),
        imbalance=by_rank.max(axis=1) / mean,
        waiting=1 - mean / slowest,
    )
    return counts, _heaviest(windows.first_update, dealt, held, computed, longest)


def _heaviest(first_update: int, dealt: Deals, held: Int64s, computed: Int64s, longest: Int64s) -> HeaviestStep:
    most = np.flatnonzero(computed == computed.max())
    chosen = int(most[np.argmax(longest[most])])
    update = int(np.searchsorted(dealt.first_bins, chosen, side="right")) - 1
    step, rank = divmod(chosen - int(dealt.first_bins[update]), dealt.world_size)
    return HeaviestStep(
        update=first_update + update + 1,
        rank=rank,
        micro_step=step,
        samples=int(held[chosen]),
        tokens=int(computed[chosen]),
        longest=int(longest[chosen]),
    )


def _joined(parts: list[UpdateCounts]) -> UpdateCounts:
    names = ("epoch", "samples", "tokens", "micro_steps", "packs", "padding", "fill", "imbalance", "waiting")
    whole: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return UpdateCounts(first_update=parts[0].first_update, **whole)


def table_of_updates(counts: UpdateCounts) -> str:
    """plan_updates.csv: a line for each counted update, numbered from 1 as in metrics.jsonl."""
    lines = ["update,epoch,samples,tokens,micro_steps,packs,padding_tokens,fill,cost_imbalance,waiting"]
    whole = zip(counts.epoch, counts.samples, counts.tokens, counts.micro_steps, counts.packs, counts.padding, strict=True)
    shares = zip(counts.fill, counts.imbalance, counts.waiting, strict=True)
    for number, (numbers, (fill, imbalance, waiting)) in enumerate(zip(whole, shares, strict=True), start=counts.first_update + 1):
        lines.append(f"{number},{','.join(map(str, numbers))},{fill:.4f},{imbalance:.4f},{waiting:.4f}")
    return "\n".join(lines) + "\n"
