"""Samples in one memory-mapped Arrow file: written whole or not at all, opened in milliseconds, read without copying.

The file holds one record batch, one row a sample: ids (list of int32), spans (list of int32: start, end, start, end, ...),
row, length, supervised, and weights (list of float32, one a span) where any isn't 1. Its schema's metadata holds the counts,
so a damaged file is found out before it is trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ftcore.data.spans import Int32Array, TokenSpan, count_supervised
from ftcore.spec.errors import DataError
from ftcore.spec.run_dir import replacing

METADATA = b"ftlaunch"
LAYOUT_VERSION = 2

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample, as views into the file (read-only)."""

    ids: Int32Array
    """[T]"""
    spans: Int32Array
    """[k, 2]: half-open token ranges that are supervised."""
    row: int
    """Row of the source file, from 1."""
    weights: Float32Array | None = None
    """[k]: what each token of a span counts, over 0; None: 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of a file's rows; stored with the samples."""

    rows: int
    tokens: int
    """Tokens in the samples kept."""
    supervised_tokens: int
    dropped: dict[str, int] = field(default_factory=dict)
    """Rows not kept, by reason."""
    dropped_tokens: int = 0
    """Tokens read but not kept."""
    truncated: int = 0
    """Rows kept that were cut."""


class SampleSet:
    """The samples of one cache file."""

    def __init__(self, batch: Any, counts: Counts, fingerprint: str) -> None:
        """Use `open`. Raises DataError when the columns contradict the counts."""
        self.counts = counts
        self.fingerprint = fingerprint
        """sha256 over ids, spans, rows and, where any isn't 1, weights."""
        self._ids, self._id_starts = _list_views(batch.column("ids"))
        self._spans, self._span_starts = _list_views(batch.column("spans"))
        self.is_weighted = "weights" in batch.schema.names
        """Whether any span counts other than 1."""
        self._weights: Float32Array = _view(batch.column("weights").values, np.float32) if self.is_weighted else np.zeros(0, dtype=np.float32)
        if self.is_weighted and 2 * len(self._weights) != len(self._spans):
            raise DataError(f"the file's columns hold {len(self._spans) // 2} supervised ranges and {len(self._weights)} weights")
        self.rows: Int32Array = _view(batch.column("row"), np.int32)
        """[S] row of the source file, from 1."""
        self.lengths: Int32Array = _view(batch.column("length"), np.int32)
        """[S] tokens of each sample."""
        self.supervised: Int32Array = _view(batch.column("supervised"), np.int32)
        """[S] labels that count, after the shift."""
        sums = (int(self.lengths.sum(dtype=np.int64)), int(self.supervised.sum(dtype=np.int64)))
        if sums != (counts.tokens, counts.supervised_tokens) or len(self._ids) != counts.tokens:
            raise DataError(f"the file's columns hold {sums} tokens and supervised tokens, its metadata says {(counts.tokens, counts.supervised_tokens)}")

    @staticmethod
    def open(path: str | Path) -> SampleSet:
        """Maps the file; nothing is read before it is used. Raises DataError when it is missing, cut short, or contradicts itself."""
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            stored = json.loads(reader.schema.metadata[METADATA])
            if stored["layout"] != LAYOUT_VERSION:
                raise ValueError(f"layout {stored['layout']}, this ftlaunch reads {LAYOUT_VERSION}")
            return SampleSet(reader.get_batch(0), Counts(**stored["counts"]), stored["fingerprint"])
        except (OSError, ValueError, KeyError, TypeError, IndexError, pa.ArrowException, DataError) as error:
            raise DataError(
                f"can't use the prepared data: {error}", where=str(path), fix="delete the file and run again: it is made anew from the data file"
            ) from error

    def __len__(self) -> int:
        return len(self.lengths)

    def sample(self, index: int) -> Sample:
        """Sample `index` (from 0) without copying."""
        first, last = self._id_starts[index], self._id_starts[index + 1]
        begin, end = self._span_starts[index], self._span_starts[index + 1]
        weights = self._weights[begin // 2 : end // 2] if self.is_weighted else None
        return Sample(ids=self._ids[first:last], spans=self._spans[begin:end].reshape(-1, 2), row=int(self.rows[index]), weights=weights)

    @cached_property
    def weight_sums(self) -> npt.NDArray[np.float64]:
        """[S] sum of the weights of each sample's labels that count; equal to `supervised` where every weight is 1."""
        if not self.is_weighted:
            return self.supervised.astype(np.float64)
        pairs = self._spans.reshape(-1, 2)
        labels = np.maximum(pairs[:, 1] - np.maximum(pairs[:, 0], 1), 0)
        owners = np.repeat(np.arange(len(self)), np.diff(self._span_starts) // 2)
        return np.bincount(owners, weights=labels * self._weights.astype(np.float64), minlength=len(self)).astype(np.float64)

    def is_intact(self) -> bool:
        """Whether every byte that is trained on is as it was written; reads the whole file."""
        weights = [self._weights] if self.is_weighted else []
        return self.fingerprint == _fingerprint(self._ids, self._id_starts, self._spans, self._span_starts, self.rows, *weights)

    def highest_id(self) -> int:
        """The largest token id in the set; reads all ids."""
        return int(self._ids.max())


def write_samples(
    path: Path,
    ids: Sequence[Int32Array],
    spans: Sequence[Sequence[TokenSpan]],
    rows: Sequence[int],
    counts: Counts,
    weights: Sequence[Sequence[float]] | None = None,
) -> None:
    """Writes the samples to `path` aside, then renames: another process sees the old file or the new one.

    `weights`: for each sample one number over 0 a span; None: 1. Raises DataError when there are more or fewer than spans.
    """
    flat_spans = [np.array(pairs, dtype=np.int32).reshape(-1) for pairs in spans]
    id_starts, span_starts = _starts(ids), _starts(flat_spans)
    all_ids, all_spans = np.concatenate(ids), np.concatenate(flat_spans)
    row_array = np.array(rows, dtype=np.int32)
    columns = {
        "ids": pa.LargeListArray.from_arrays(_column(id_starts), _column(all_ids)),
        "spans": pa.LargeListArray.from_arrays(_column(span_starts), _column(all_spans)),
        "row": _column(row_array),
        "length": _column(np.diff(id_starts).astype(np.int32)),
        "supervised": _column(np.array([count_supervised(pairs) for pairs in spans], dtype=np.int32)),
    }
    hashed = [all_ids, id_starts, all_spans, span_starts, row_array]
    if weights is not None and any(weight != 1 for each in weights for weight in each):
        if [len(each) for each in weights] != [len(pairs) for pairs in spans]:
            raise DataError("each supervised range needs one weight", where=str(path))
        all_weights = np.concatenate([np.array(each, dtype=np.float32) for each in weights])
        columns["weights"] = pa.LargeListArray.from_arrays(_column(span_starts // 2), _column(all_weights))
        hashed.append(all_weights)
    fingerprint = _fingerprint(*hashed)
    stored = json.dumps({"layout": LAYOUT_VERSION, "fingerprint": fingerprint, "counts": asdict(counts)})
    batch = pa.record_batch(columns).replace_schema_metadata({METADATA: stored})
    with replacing(path) as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def _list_views(column: Any) -> tuple[Int32Array, Any]:
    """(values [N] int32, starts [S + 1] int64) of a list column, as views."""
    return _view(column.values, np.int32), _view(column.offsets, np.int64)


def _view(array: Any, kind: type[np.generic]) -> Any:
    """The values of an Arrow array without nulls as a read-only view. (`to_numpy` would import pandas where it is installed: 0.4 s.)"""
    values = array.buffers()[1]
    itemsize = np.dtype(kind).itemsize
    return np.frombuffer(values, dtype=kind, count=len(array), offset=array.offset * itemsize) if len(array) else np.zeros(0, dtype=kind)


def _column(values: Any) -> Any:
    """A numpy array as an Arrow array over the same memory."""
    contiguous = np.ascontiguousarray(values)
    kind = {np.dtype(np.int32): pa.int32(), np.dtype(np.int64): pa.int64(), np.dtype(np.float32): pa.float32()}[contiguous.dtype]
    return pa.Array.from_buffers(kind, len(contiguous), [None, pa.py_buffer(contiguous)])


def _starts(arrays: Sequence[Int32Array]) -> Any:
    return np.concatenate(([0], np.cumsum([len(array) for array in arrays], dtype=np.int64)))


def _fingerprint(*arrays: Any) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        contiguous = np.ascontiguousarray(array)
        digest.update(f"{contiguous.dtype.str}{contiguous.size};".encode())
        digest.update(contiguous.data)
    return digest.hexdigest()
