"""How long the samples of a data set are: as the last preparation counted them, else assumed from the file's size and the spec's limits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.lengths import StoredLengths, file_state, lengths_path, read_lengths
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import DataSet

PEEKED_BYTES = 2**18
"""Of an unprepared file, what is read to see how long its rows are."""
TEXT_SHARE = 0.9
"""Of a row's bytes, what is text and not JSON around it; an assumption."""
BYTES_A_TOKEN = 4.2
"""Of English text under the tokenizers of current models; an assumption. Other languages and code take fewer."""
SUPERVISED_SHARE = 0.4
"""Of the tokens of a chat, what assistants say, where the rows can't be read; an assumption."""
BUILTIN_ROWS = {"builtin:extraction/train": 2000, "builtin:extraction/eval": 100}
BUILTIN_TOKENS = 130
"""A row of builtin:extraction has about as many (SmolLM2's tokenizer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLengths:
    """The samples of a set, for estimates of time."""

    samples: int
    tokens: float
    supervised_tokens: float
    squares: float
    """Sum of length²."""
    longest: int
    histogram: dict[int, int]
    """Upper bound of a bin -> samples; empty: not known."""
    origin: str
    """How this is known, in words."""
    is_assumed: bool
    """Not counted but assumed."""

    @property
    def mean(self) -> float:
        """Tokens of a sample, on average."""
        return self.tokens / max(1, self.samples)

    @property
    def seen(self) -> float:
        """Σ length² / Σ length: twice what a token attends to on average under a causal mask."""
        return self.squares / max(1.0, self.tokens)

    @property
    def supervised_share(self) -> float:
        """Tokens that count in the loss over all tokens."""
        return self.supervised_tokens / max(1.0, self.tokens)

    def bins_over(self, budget: int) -> float:
        """The share of the samples that are longer than half of `budget`: each takes a micro-step of its own."""
        if not self.histogram or not self.samples:
            return 1.0 if 2 * self.mean > budget else 0.0
        return sum(count for bound, count in self.histogram.items() if bound * 0.84 > budget / 2) / self.samples


def data_lengths(resolved: ResolvedSpec, dataset: DataSet) -> DataLengths:
    """The lengths of one set of the spec. Reads the cache's small file of counts, or the first 256 KiB of the data; never fails."""
    data = resolved.spec.data
    stored = read_lengths(lengths_path(Path(resolved.cache_dir), dataset, data, resolved.spec.model))
    if stored is None:
        return _assumed(dataset, data.max_length)
    size, modified = file_state(dataset.path)
    counted = "counted when the data was last prepared"
    if (size, modified) == (stored.file_bytes, stored.modified_ns):
        return _scaled(stored, 1.0, counted)
    changed = f"{counted}, scaled to the file's new size: it has changed since"
    return _scaled(stored, size / stored.file_bytes if stored.file_bytes and size else 1.0, changed)


def _scaled(stored: StoredLengths, by: float, origin: str) -> DataLengths:
    return DataLengths(
        samples=max(1, round(stored.samples * by)),
        tokens=stored.tokens * by,
        supervised_tokens=stored.supervised_tokens * by,
        squares=stored.squares * by,
        longest=stored.longest,
        histogram={int(bound): round(count * by) for bound, count in stored.histogram.items()},
        origin=origin,
        is_assumed=by != 1.0,
    )


def _assumed(dataset: DataSet, max_length: int) -> DataLengths:
    path, head = dataset.path, _head(dataset.path)
    rows, row_bytes = _peek(path, head)
    tokens = BUILTIN_TOKENS if path in BUILTIN_ROWS else row_bytes * TEXT_SHARE / BYTES_A_TOKEN
    length, share = max(1.0, min(float(max_length), tokens)), _answer_share(dataset, head)
    origin = f"assumed, since the data was not prepared yet: {rows:,} samples of {length:,.0f} tokens, {share:.0%} of them supervised"
    return DataLengths(
        samples=rows,
        tokens=rows * length,
        supervised_tokens=rows * length * share,
        squares=rows * length * length,
        longest=max_length,
        histogram={},
        origin=origin,
        is_assumed=True,
    )


def _head(path: str) -> bytes:
    """The beginning of a data file; empty when it can't be read."""
    try:
        with open(path, "rb") as file:
            return file.read(PEEKED_BYTES)
    except OSError:
        return b""


def _answer_share(dataset: DataSet, head: bytes) -> float:
    """Bytes of answers over bytes of all text in the rows of `head`."""
    answered = said = 0
    for text, is_answer in _texts(dataset, head):
        said += len(text)
        answered += len(text) * is_answer
    return answered / said if answered else SUPERVISED_SHARE


def _texts(dataset: DataSet, head: bytes) -> Iterator[tuple[str, bool]]:
    """Each text of the whole rows of a JSONL file, and whether it is an answer; what is no row of the data set's format is left out."""
    names = {field: dataset.columns.get(field, field) for field in ("messages", "prompt", "completion")}
    for line in head.split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if not isinstance(row, dict):
            continue
        if dataset.format == "messages":
            yield from _said(row.get(names["messages"]))
        else:
            yield from ((row[names[field]], field == "completion") for field in ("prompt", "completion") if isinstance(row.get(names[field]), str))


def _said(messages: Any) -> Iterator[tuple[str, bool]]:
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict) and isinstance(message.get("content"), str):
            yield message["content"], message.get("role") == "assistant"


def _peek(path: str, head: bytes) -> tuple[int, float]:
    """(rows, bytes of a row) of a data file, from its size and its beginning."""
    if path in BUILTIN_ROWS:
        return BUILTIN_ROWS[path], 0.0
    try:
        size = os.stat(path).st_size
    except OSError:
        return 1, 0.0
    rows_seen = head.count(b"\n") if path.endswith(".jsonl") else head.count(b'"messages"') + head.count(b'"prompt"')
    if size <= len(head):
        rows_seen += 0 if head.endswith(b"\n") else int(path.endswith(".jsonl"))
        return max(1, rows_seen), size / max(1, rows_seen)
    row_bytes = len(head) / max(1, rows_seen)
    return max(1, round(size / row_bytes)), row_bytes
