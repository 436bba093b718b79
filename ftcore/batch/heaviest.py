"""The micro-steps of a run that take the most memory, found before it begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftcore.batch.cost import AttentionShare
from ftcore.batch.deal import Deals, deal_many
from ftcore.batch.samples import Int32s, Int64s
from ftcore.batch.window import EpochWindows, UpdateSequence

LOOKED_AT = 4_000_000
"""Samples whose micro-steps are looked at; of a longer run those of its first epochs, but always one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyStep:
    """One micro-step of one rank."""

    update: int
    """0-based number within the run."""
    sample_ids: Int64s
    tokens: int
    """Positions computed, padding included: what activations grow with."""
    supervised_tokens: int
    """What logits grow with."""
    longest: int
    """Tokens of its longest sample."""
    is_alone: bool
    """Whether each rank computes a single micro-step in that update."""


def heaviest_steps(
    sequence: UpdateSequence,
    lengths: Int32s,
    supervised: Int32s,
    *,
    world_size: int,
    micro_batch_tokens: int,
    attention_share: float | AttentionShare,
    layout: str,
) -> list[HeavyStep]:
    """The micro-step with the most tokens, and the one with the most supervised tokens where that is another; of like ones that with the longest sample."""
    best: list[tuple[tuple[int, int], HeavyStep]] = []
    looked_at = 0
    for windows in sequence.by_epoch():
        if best and looked_at >= LOOKED_AT:
            break
        ids = windows.order[windows.bounds[0] : windows.bounds[-1]]
        dealt = deal_many(
            lengths[ids], windows.bounds, world_size=world_size, micro_batch_tokens=micro_batch_tokens, attention_share=attention_share, layout=layout
        )
        found = _of_epoch(windows, dealt, ids, lengths, supervised, layout)
        best = [max(pair, key=lambda item: item[0]) for pair in zip(best, found, strict=True)] if best else found
        looked_at += len(ids)
    steps = [step for _, step in best]
    return steps[:1] if len(steps) == 2 and _same(steps[0], steps[1]) else steps


def _of_epoch(windows: EpochWindows, dealt: Deals, ids: Int64s, lengths: Int32s, supervised: Int32s, layout: str) -> list[tuple[tuple[int, int], HeavyStep]]:
    """For either measure its value and the longest sample, and the step that has the most of them."""
    bins = int(dealt.first_bins[-1])
    longest = np.zeros(bins, dtype=np.int64)
    np.maximum.at(longest, dealt.bin_of, lengths[ids].astype(np.int64))
    counts = np.bincount(dealt.bin_of, minlength=bins)
    tokens = counts * longest if layout == "padded" else dealt.bin_sums(lengths[ids]).astype(np.int64)
    labels = dealt.bin_sums(supervised[ids]).astype(np.int64)
    steps = []
    for measure in (tokens, labels):
        chosen = _first_most(measure, longest)
        update = int(np.searchsorted(dealt.first_bins, chosen, side="right")) - 1
        step = HeavyStep(
            update=windows.first_update + update,
            sample_ids=ids[dealt.bin_of == chosen],
            tokens=int(tokens[chosen]),
            supervised_tokens=int(labels[chosen]),
            longest=int(longest[chosen]),
            is_alone=int(dealt.micro_steps[update]) == 1,
        )
        steps.append(((int(measure[chosen]), int(longest[chosen])), step))
    return steps


def _first_most(measure: npt.NDArray[np.int64], longest: npt.NDArray[np.int64]) -> int:
    most = np.flatnonzero(measure == measure.max())
    return int(most[np.argmax(longest[most])])


def _same(one: HeavyStep, other: HeavyStep) -> bool:
    return one.update == other.update and np.array_equal(one.sample_ids, other.sample_ids)
