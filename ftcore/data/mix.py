"""Several sets of samples as one, numbered one set after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ftcore.data.cache import Sample, SampleSet

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class SampleMix:
    """The interface of a SampleSet over several; a single set keeps its fingerprint."""

    def __init__(self, sets: Mapping[str, SampleSet]) -> None:
        """`sets` by name, at least one; their order numbers the samples."""
        self.names = tuple(sets)
        self.sets = tuple(sets.values())
        self.sizes = tuple(len(each) for each in self.sets)
        self.fingerprints = tuple(each.fingerprint for each in self.sets)
        self._starts = np.cumsum((0, *self.sizes))
        self.lengths: Int32s = _joined([each.lengths for each in self.sets])
        """[S] tokens of each sample."""
        self.supervised: Int32s = _joined([each.supervised for each in self.sets])
        """[S] labels that count, after the shift."""
        self.rows: Int32s = _joined([each.rows for each in self.sets])
        """[S] row of the sample's own source, from 1."""
        self.is_weighted = any(each.is_weighted for each in self.sets)

    @staticmethod
    def open(paths: Mapping[str, str | Path]) -> SampleMix:
        """Maps the sets' cache files, by name. Raises DataError as `SampleSet.open` does."""
        return SampleMix({name: SampleSet.open(path) for name, path in paths.items()})

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def fingerprint(self) -> str:
        """Of the samples of all sets, in the sets' order; their names are not in it."""
        if len(self.sets) == 1:
            return self.fingerprints[0]
        return hashlib.sha256("\n".join(self.fingerprints).encode()).hexdigest()

    @cached_property
    def set_of(self) -> Int64s:
        """[S] the set of each sample, as an index into `names`."""
        return np.repeat(np.arange(len(self.sets)), self.sizes)

    @cached_property
    def weight_sums(self) -> npt.NDArray[np.float64]:
        """[S] sum of the weights of each sample's labels that count."""
        return self.sets[0].weight_sums if len(self.sets) == 1 else np.concatenate([each.weight_sums for each in self.sets])

    def sample(self, index: int) -> Sample:
        """Sample `index` (from 0) without copying."""
        which = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.sets[which].sample(int(index - self._starts[which]))

    def highest_id(self) -> int:
        """The largest token id of all sets; reads all ids."""
        return max(each.highest_id() for each in self.sets)


def _joined(arrays: list[Int32s]) -> Int32s:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def counts_by_set(mix: SampleMix, sample_ids: Int64s) -> dict[str, tuple[int, int, int]]:
    """Samples, tokens and supervised tokens of these samples by the name of their set, in the sets' order; a sample counts as often as it is named."""
    which, sets = mix.set_of[sample_ids], len(mix.sets)
    samples = np.bincount(which, minlength=sets)
    # Sums of doubles are exact up to 2**53 tokens.
    tokens = np.bincount(which, weights=mix.lengths[sample_ids], minlength=sets)
    supervised = np.bincount(which, weights=mix.supervised[sample_ids], minlength=sets)
    return {name: (int(samples[index]), int(tokens[index]), int(supervised[index])) for index, name in enumerate(mix.names)}


def supervised_share_of(train: SampleMix) -> float:
    """Supervised tokens of the sets over their tokens."""
    return float(train.supervised.sum(dtype=np.int64)) / max(1, int(train.lengths.sum(dtype=np.int64)))
