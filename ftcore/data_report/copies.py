"""Samples that are the same to the last token: within a set, and between what is trained on and what is evaluated on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftcore.data.cache import SampleSet
from ftcore.spec.events import emit

Keys = npt.NDArray[np.uint64]
"""[S] A digest a sample, 0 for none. Two of a million samples that differ share one with a probability of 3e-8 (n² / 2^65)."""
TOLD_SAMPLES = 1 << 15
"""Progress is told after so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Samples that repeat an earlier one of their set."""

    rows: int
    """Rows with such a sample."""
    groups: list[list[int]]
    """Row numbers of those that are alike; the first ones."""
    group_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What a held-out set shares with a training set."""

    training: str
    held_out: str
    rows: int
    """Rows of the held-out set whose tokens and supervised parts stand in the training set."""
    prompts: int
    """Rows whose tokens before the first answer do; those are among them."""
    pairs: list[tuple[int, int]]
    """(held-out row, training row) of the first ones, whole rows before mere prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetKeys:
    """Digests of a set's samples."""

    rows: npt.NDArray[np.int32]
    """[S] row of each sample."""
    whole: Keys
    """[S] over ids and supervised ranges."""
    prompts: Keys
    """[S] over the ids before the first supervised token; 0 where fewer than two stand there (a text, a beginning-of-text token)."""


def keys_of(samples: SampleSet, name: str) -> SetKeys:
    """The digests (BLAKE2b, 64 bits) of a set; reads all of it, and tells how far it is."""
    whole, prompts = np.zeros(len(samples), dtype=np.uint64), np.zeros(len(samples), dtype=np.uint64)
    for index in range(len(samples)):
        if index % TOLD_SAMPLES == 0:
            emit("progress", stage="report", done=index, total=len(samples), text=f"{name}: looking for duplicates")
        sample = samples.sample(index)
        before = int(sample.spans[0, 0]) if len(sample.spans) else 0
        whole[index] = _digest(sample.ids.tobytes(), sample.spans.tobytes())
        if before > 1:
            prompts[index] = _digest(sample.ids[:before].tobytes())
    return SetKeys(rows=samples.rows, whole=whole, prompts=prompts)


def _digest(*parts: bytes) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def copies_within(keys: SetKeys, listed: int) -> Copies:
    """The samples that are there more than once; `listed` groups by row number."""
    _, inverse, counts = np.unique(keys.whole, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(counts[inverse] > 1)
    order = repeated[np.argsort(inverse[repeated], kind="stable")]
    edges = np.flatnonzero(np.diff(inverse[order])) + 1
    groups = [sorted({int(row) for row in keys.rows[group]}) for group in np.split(order, edges) if len(group)]
    # Parts of one row may be alike: that is no copy of another row.
    groups = sorted((group for group in groups if len(group) > 1), key=lambda group: group[0])
    copied = {row for group in groups for row in group[1:]}
    return Copies(rows=len(copied), groups=groups[:listed], group_count=len(groups))


def overlap_of(training: tuple[str, SetKeys], held_out: tuple[str, SetKeys], listed: int) -> Overlap:
    """Rows of the held-out set that are trained on, whole or by their prompt."""
    (train_name, train), (name, held) = training, held_out
    whole, prompts = _matches(held.whole, train.whole), _matches(held.prompts, train.prompts)
    of_rows = {int(held.rows[mine]): int(train.rows[theirs]) for mine, theirs in reversed(whole)}
    of_prompts = {int(held.rows[mine]): int(train.rows[theirs]) for mine, theirs in reversed(prompts)}
    either = of_prompts | of_rows
    pairs = [*sorted(of_rows.items()), *sorted((row, other) for row, other in of_prompts.items() if row not in of_rows)]
    return Overlap(training=train_name, held_out=name, rows=len(of_rows), prompts=len(either), pairs=pairs[:listed])


def _matches(mine: Keys, theirs: Keys) -> list[tuple[int, int]]:
    """(index in `mine`, index of the first equal key in `theirs`), ascending; a key of 0 is none."""
    distinct, first = np.unique(theirs, return_index=True)
    if not len(distinct):
        return []
    at = np.minimum(np.searchsorted(distinct, mine), len(distinct) - 1)
    return [(int(index), int(first[at[index]])) for index in np.flatnonzero((distinct[at] == mine) & (mine != 0))]
