"""Notes the lengths of a prepared data set where the plan of a later run finds them without a tokenizer."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from ftcore.data.cache import SampleSet
from ftcore.data.prepared import PreparedSet
from ftcore.spec.lengths import StoredLengths, file_state, length_bin, lengths_path, read_lengths
from ftcore.spec.run_dir import write_atomic
from ftcore.spec.sections import DataSection, DataSet, ModelSection
from ftcore.spec.stored import stored_text


def note_lengths(prepared: PreparedSet, dataset: DataSet, data: DataSection, model: ModelSection, cache_dir: Path) -> None:
    """Writes the counts of a prepared set to the cache unless they stand there already; a cache that can't be written to goes without."""
    path = lengths_path(cache_dir, dataset, data, model)
    counts = count_lengths(prepared, dataset)
    if read_lengths(path) != counts:
        with contextlib.suppress(OSError):
            write_atomic(path, stored_text(counts))


def count_lengths(prepared: PreparedSet, dataset: DataSet) -> StoredLengths:
    """The lengths of a prepared set: sums, and a histogram."""
    lengths = SampleSet.open(prepared.arrow).lengths
    size, modified = file_state(dataset.path)
    counted = np.bincount(lengths)
    histogram: dict[str, int] = {}
    for value in np.flatnonzero(counted).tolist():
        bound = str(length_bin(value))
        histogram[bound] = histogram.get(bound, 0) + int(counted[value])
    wide = lengths.astype(np.int64)
    return StoredLengths(
        rows=prepared.rows,
        samples=prepared.samples,
        tokens=prepared.tokens,
        supervised_tokens=prepared.supervised_tokens,
        squares=int((wide * wide).sum()),
        longest=int(lengths.max()),
        histogram=histogram,
        file=dataset.path,
        file_bytes=size,
        modified_ns=modified,
        arrow=prepared.arrow,
    )
