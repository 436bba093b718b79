"""The columns of prepared samples: packed a chunk at a time, gathered in files as long as the rows last, and written as one Arrow file.

Nothing here holds a data set in memory: the gathered columns are files without a name, which go away with the process, and are mapped to be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ftcore.data.tokens import Int32Array, Tokens, TokenSpan, count_supervised
from ftcore.spec.run_dir import replacing

METADATA = b"ftlaunch"
LAYOUT_VERSION = 3

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
_KINDS: dict[str, type[np.generic]] = {
    "ids": np.int32,
    "lengths": np.int32,
    "spans": np.int32,
    "span_counts": np.int32,
    "weights": np.float32,
    "rows": np.int32,
    "supervised": np.int32,
    "hashes": np.uint64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Samples as flat arrays, cheap to send from one process to another."""

    ids: Int32Array
    """[N] the samples' ids one after the other."""
    lengths: Int32Array
    """[S]"""
    spans: Int32Array
    """[2K] start, end, start, end, ..."""
    span_counts: Int32Array
    """[S]"""
    weights: Float32Array
    """[K]"""
    rows: Int32Array
    """[S]"""
    supervised: Int32Array
    """[S]"""
    hashes: npt.NDArray[np.uint64]
    """[S] 64 bits over each sample's ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """All samples of a set, as they stand in its file."""

    ids: Int32Array
    """[N]"""
    id_starts: Int64Array
    """[S + 1]"""
    spans: Int32Array
    """[2K]"""
    span_starts: Int64Array
    """[S + 1] in `spans`."""
    rows: Int32Array
    """[S]"""
    supervised: Int32Array
    """[S]"""
    weights: Float32Array | None = None
    """[K]; None: each is 1."""

    @property
    def fingerprint(self) -> str:
        """sha256 over ids, spans, rows and, where any isn't 1, weights."""
        return digest_of(self.ids, self.id_starts, self.spans, self.span_starts, self.rows, *([] if self.weights is None else [self.weights]))


def pack(samples: Sequence[tuple[int, Tokens]]) -> Packed:
    """(row number, tokens) of some samples as flat arrays."""
    tokens = [each for _, each in samples]
    return pack_arrays([each.ids for each in tokens], [each.spans for each in tokens], [each.weights for each in tokens], [row for row, _ in samples])


def pack_arrays(ids: Sequence[Int32Array], spans: Sequence[Sequence[TokenSpan]], weights: Sequence[Sequence[float]], rows: Sequence[int]) -> Packed:
    """Ids, supervised ranges with their weights, and row numbers of some samples as flat arrays."""
    return Packed(
        ids=np.concatenate(ids) if ids else np.zeros(0, dtype=np.int32),
        lengths=np.array([len(each) for each in ids], dtype=np.int32),
        spans=np.array([edge for pairs in spans for span in pairs for edge in span], dtype=np.int32),
        span_counts=np.array([len(pairs) for pairs in spans], dtype=np.int32),
        weights=np.array([weight for each in weights for weight in each], dtype=np.float32),
        rows=np.array(rows, dtype=np.int32),
        supervised=np.array([count_supervised(pairs) for pairs in spans], dtype=np.int32),
        hashes=np.array([int.from_bytes(hashlib.blake2b(np.ascontiguousarray(each).data, digest_size=8).digest()) for each in ids], dtype=np.uint64),
    )


class ColumnFiles:
    """Columns that grow on disk, in `folder`, while rows are prepared. Close it, or leave it as a context."""

    def __init__(self, folder: Path) -> None:
        self._open = contextlib.ExitStack()
        self._files: dict[str, IO[bytes]] = {name: self._temporary(folder) for name in _KINDS}
        self._is_weighted = False
        self.samples = 0

    def __enter__(self) -> ColumnFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def append(self, packed: Packed) -> None:
        """Adds samples at the end."""
        for name, file in self._files.items():
            file.write(np.ascontiguousarray(getattr(packed, name)).data)
        self._is_weighted = self._is_weighted or bool((packed.weights != 1).any())
        self.samples += len(packed.rows)

    def columns(self) -> Columns:
        """What was gathered, mapped; valid until the files are closed."""
        return Columns(
            ids=self._mapped("ids"),
            id_starts=_starts(self._mapped("lengths")),
            spans=self._mapped("spans"),
            span_starts=2 * _starts(self._mapped("span_counts")),
            rows=self._mapped("rows"),
            supervised=self._mapped("supervised"),
            weights=self._mapped("weights") if self._is_weighted else None,
        )

    def duplicates(self) -> int:
        """Samples with the same ids as an earlier one (by 64 bits of a hash)."""
        return self.samples - len(np.unique(self._mapped("hashes")))

    def _temporary(self, folder: Path) -> IO[bytes]:
        return self._open.enter_context(tempfile.TemporaryFile(dir=folder, prefix=".column."))

    def _mapped(self, name: str) -> Any:
        file = self._files[name]
        file.flush()
        if not file.tell():
            return np.zeros(0, dtype=_KINDS[name])
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=_KINDS[name])


def write_columns(path: Path, columns: Columns, counts: Mapping[str, Any], outcomes: str = "") -> None:
    """Writes one Arrow record batch to `path` aside, then renames: another process sees the old file or the new one.

    `outcomes`: sha256 of the file of outcomes beside it, where there is one.
    """
    arrays = {
        "ids": pa.LargeListArray.from_arrays(_arrow(columns.id_starts), _arrow(columns.ids)),
        "spans": pa.LargeListArray.from_arrays(_arrow(columns.span_starts), _arrow(columns.spans)),
        "row": _arrow(columns.rows),
        "length": _arrow(np.diff(columns.id_starts).astype(np.int32)),
        "supervised": _arrow(columns.supervised),
    }
    if columns.weights is not None:
        arrays["weights"] = pa.LargeListArray.from_arrays(_arrow(columns.span_starts // 2), _arrow(columns.weights))
    highest = int(columns.ids.max()) if len(columns.ids) else 0
    stored = {"layout": LAYOUT_VERSION, "fingerprint": columns.fingerprint, "highest_id": highest, "counts": counts, "outcomes": outcomes}
    batch = pa.record_batch(arrays).replace_schema_metadata({METADATA: json.dumps({**stored, "check": check_of(stored)})})
    with replacing(path) as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def check_of(stored: Mapping[str, Any]) -> str:
    """sha256 over what a file says about its columns, but for this digest itself."""
    return hashlib.sha256(json.dumps({key: value for key, value in stored.items() if key != "check"}, sort_keys=True).encode()).hexdigest()


def columns_of(packed: Packed) -> Columns:
    """The columns of a set that was packed in one go."""
    return Columns(
        ids=packed.ids,
        id_starts=_starts(packed.lengths),
        spans=packed.spans,
        span_starts=2 * _starts(packed.span_counts),
        rows=packed.rows,
        supervised=packed.supervised,
        weights=packed.weights if (packed.weights != 1).any() else None,
    )


def digest_of(*arrays: Any) -> str:
    """sha256 over the types, lengths and values of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        contiguous = np.ascontiguousarray(array)
        digest.update(f"{contiguous.dtype.str}{contiguous.size};".encode())
        digest.update(contiguous.data)
    return digest.hexdigest()


def _starts(lengths: Int32Array) -> Int64Array:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)))


def _arrow(values: Any) -> Any:
    """A numpy array as an Arrow array over the same memory."""
    contiguous = np.ascontiguousarray(values)
    kind = {np.dtype(np.int32): pa.int32(), np.dtype(np.int64): pa.int64(), np.dtype(np.float32): pa.float32()}[contiguous.dtype]
    return pa.Array.from_buffers(kind, len(contiguous), [None, pa.py_buffer(contiguous)])
