"""Samples in one memory-mapped Arrow file: written whole or not at all, opened in milliseconds, read without copying.

The file holds one record batch, one row a sample: ids (list of int32), spans (list of int32: start, end, start, end, ...),
row, length, supervised, and weights (list of float32, one a span) where any isn't 1. Its schema's metadata holds the counts,
so a damaged file is found out before it is trained on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ftcore.data.columns import LAYOUT_VERSION, METADATA, Float32Array, check_of, columns_of, digest_of, pack_arrays, write_columns
from ftcore.data.tokens import Int32Array, TokenSpan
from ftcore.spec.errors import DataError

SHARE_TRIES = 50
"""Times, a fiftieth of a second apart, that the shared lock on a file is asked for: a listing of the caches holds each for less."""


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
    format: str = ""
    """What the rows were read as."""
    bad_rows: int = 0
    """Rows that break a rule and were left out; among `dropped` too, as bad_row."""
    split: int = 0
    """Rows kept as several samples, or as a part."""
    lost_ends: int = 0
    """Rows kept whose last answer was cut before its end."""
    dropped_turns: int = 0
    """Turns longer than a sample may be, of rows that were split."""
    repeated_tokens: int = 0
    """Tokens that stand in several samples of one row, counted for each but the first."""
    duplicates: int = 0
    """Samples with the same ids as an earlier one."""


class SampleSet:
    """The samples of one cache file."""

    def __init__(self, batch: Any, stored: dict[str, Any]) -> None:
        """Use `open`. Raises DataError when the columns contradict the counts."""
        self.counts = counts = Counts(**stored["counts"])
        self.fingerprint = str(stored["fingerprint"])
        """sha256 over ids, spans, rows and, where any isn't 1, weights."""
        self.outcomes_digest = str(stored["outcomes"])
        """sha256 of the file of outcomes that was written with it; empty where none was."""
        self._highest_id: int | None = stored.get("highest_id")
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
        """Maps the file; nothing is read before it is used, and `data gc` leaves it alone for as long.

        Raises DataError when it is missing, cut short, or contradicts itself.
        """
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            stored = json.loads(reader.schema.metadata[METADATA])
            if stored["layout"] != LAYOUT_VERSION:
                raise ValueError(f"layout {stored['layout']}, this ftlaunch reads {LAYOUT_VERSION}")
            if stored["check"] != check_of(stored):
                raise ValueError("what it says about its samples has changed since it was written")
            samples = SampleSet(reader.get_batch(0), stored)
        except (OSError, ValueError, KeyError, TypeError, IndexError, pa.ArrowException, DataError) as error:
            raise DataError(
                f"can't use the prepared data: {error}", where=str(path), fix="delete the file and run again: it is made anew from the data file"
            ) from error
        _share(samples, path)
        return samples

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
        return self.fingerprint == digest_of(self._ids, self._id_starts, self._spans, self._span_starts, self.rows, *weights)

    def highest_id(self) -> int:
        """The largest token id in the set."""
        return int(self._ids.max()) if self._highest_id is None else self._highest_id


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
    if weights is not None and [len(each) for each in weights] != [len(pairs) for pairs in spans]:
        raise DataError("each supervised range needs one weight", where=str(path))
    packed = pack_arrays(ids, spans, weights or [[1.0] * len(pairs) for pairs in spans], rows)
    write_columns(path, columns_of(packed), asdict(counts))


def _share(samples: SampleSet, path: str | Path) -> None:
    """Holds a shared lock on the file for as long as `samples` lives, where its file system has locks: who clears caches away sees that it is used."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        weakref.finalize(samples, os.close, handle)
        for _ in range(SHARE_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                # Somebody looks just now whether the file is used.
                time.sleep(0.02)
            else:
                return


def _list_views(column: Any) -> tuple[Int32Array, Any]:
    """(values [N] int32, starts [S + 1] int64) of a list column, as views."""
    return _view(column.values, np.int32), _view(column.offsets, np.int64)


def _view(array: Any, kind: type[np.generic]) -> Any:
    """The values of an Arrow array without nulls as a read-only view. (`to_numpy` would import pandas where it is installed: 0.4 s.)"""
    values = array.buffers()[1]
    itemsize = np.dtype(kind).itemsize
    return np.frombuffer(values, dtype=kind, count=len(array), offset=array.offset * itemsize) if len(array) else np.zeros(0, dtype=kind)
