"""How many rows an unprepared data set has and how long they are, as far as the sizes of its files and the beginning of one tell."""

from __future__ import annotations

import bz2
import csv
import io
import json
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ftcore.spec.data_formats import SPEAKERS, WORDS, detect_format, listed
from ftcore.spec.data_paths import file_kind, path_kind
from ftcore.spec.names import COLUMNS
from ftcore.spec.sections import DataSet

PEEKED_BYTES = 2**18
"""Of an unprepared file, what is read to see how long its rows are."""
MOST_FILES = 10_000
"""Files of a folder or pattern that are looked at; a folder may hold the whole disk."""
TEXT_SHARE = 0.9
"""Of a row's bytes, what is text and not JSON around it; an assumption."""
BYTES_A_TOKEN = 4.2
"""Of English text under the tokenizers of current models; an assumption. Other languages and code take fewer."""
SUPERVISED_SHARE = 0.4
"""Of the tokens of a chat, what assistants say, where the rows can't be read; an assumption."""
PACKED_ROW_BYTES = 2000.0
"""Text of a row in a file that isn't read here (parquet, Arrow, a data set of the hub); an assumption."""
PACKED_TIMES = {"parquet": 2.5, "zstd": 4.0}
"""Bytes of text in a byte of such a file; assumptions."""
HUB_ROWS = 10_000
"""Rows of a data set of the hub, which is not fetched for a plan; an assumption."""
BUILTIN_ROWS = {"builtin:extraction/train": 2000, "builtin:extraction/eval": 100}
BUILTIN_TOKENS = 130
"""A row of builtin:extraction has about as many (SmolLM2's tokenizer)."""
PARTS_OF = {"train": ("train",), "eval": ("valid", "val", "dev", "test", "eval")}
"""Words in the names of files that are there for one purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """An unprepared set."""

    rows: int
    tokens: float
    """Of a row."""
    supervised: float
    """Share of them."""
    reason: str
    """Why it is a guess."""


class _Unpacks(Protocol):
    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


def guess(dataset: DataSet, *, purpose: str) -> Guess:
    """What `dataset` most likely holds; `purpose`: train or eval. Never fails."""
    reason = "since the data was not prepared yet"
    if dataset.path in BUILTIN_ROWS:
        return Guess(rows=BUILTIN_ROWS[dataset.path], tokens=BUILTIN_TOKENS, supervised=SUPERVISED_SHARE, reason=reason)
    if path_kind(dataset.path) == "hub":
        tokens = PACKED_ROW_BYTES * TEXT_SHARE / BYTES_A_TOKEN
        return Guess(rows=HUB_ROWS, tokens=tokens, supervised=SUPERVISED_SHARE, reason="since the data set of the hub was not fetched yet")
    files = data_files(dataset.path, purpose)
    if not files:
        return Guess(rows=1, tokens=0.0, supervised=SUPERVISED_SHARE, reason=reason)
    kind, compression = file_kind(files[0].name) or ("jsonl", "")
    size = sum(_size(file) for file in files)
    row_bytes, times = PACKED_ROW_BYTES, PACKED_TIMES.get(compression or kind, 1.0)
    seen: list[dict[str, Any]] = []
    if kind not in ("parquet", "arrow") and compression != "zstd":
        text, times = _head(files[0], compression)
        row_bytes, seen = _rows(text, kind, is_whole=len(files) == 1 and size * times <= len(text))
    counted, supervised = _texts_of(dataset, seen)
    rows = max(1, round(size * times / row_bytes)) if row_bytes else 1
    among = f", from the sizes of its {len(files):,} files" if len(files) > 1 else ""
    tokens = row_bytes * TEXT_SHARE / BYTES_A_TOKEN if counted is None else counted
    return Guess(rows=rows, tokens=tokens, supervised=supervised, reason=reason + among)


def data_files(path: str, purpose: str) -> list[Path]:
    """The files that a path names, as far as their names tell; those that are for the other purpose are left out of a folder."""
    place = Path(path).expanduser()
    if not place.is_dir():
        found = [Path(name) for name in sorted(islice(glob(str(place), recursive=True), MOST_FILES))] if path_kind(path) == "glob" else [place]
        return [file for file in found if file.is_file()]
    every = [file for file in islice(place.rglob("*"), MOST_FILES) if file_kind(file.name) is not None and file.is_file()]
    named = [file for file in every if any(word in str(file.relative_to(place)).lower() for word in PARTS_OF[purpose])]
    return sorted(named or every)


def _size(file: Path) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


def _head(file: Path, compression: str) -> tuple[bytes, float]:
    """(the beginning of a file's text, bytes of text in a byte of the file); nothing when it can't be read."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(PEEKED_BYTES)
    except OSError:
        return b"", 1.0
    makers: dict[str, _Unpacks] = {"gzip": zlib.decompressobj(zlib.MAX_WBITS | 16), "bz2": bz2.BZ2Decompressor(), "xz": lzma.LZMADecompressor()}
    if compression not in makers:
        return raw, 1.0
    try:
        text = makers[compression].decompress(raw)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
        return b"", 1.0
    return text[:PEEKED_BYTES], len(text) / max(1, len(raw))


def _rows(text: bytes, kind: str, *, is_whole: bool) -> tuple[float, list[dict[str, Any]]]:
    """(bytes of a row, the rows that can be read) of a file's beginning."""
    stripped = text.lstrip()
    if kind == "csv":
        return _csv_rows(text)
    if kind == "json" and stripped.startswith(b"["):
        seen, used = _array_rows(stripped.decode("utf-8", "replace"))
        return (used / len(seen) if seen else 0.0), seen
    lines = text.split(b"\n")
    # The last line of a file that goes on is cut.
    whole = [line for line in (lines if is_whole else lines[:-1] or lines) if line.strip()]
    return (len(text) / len(whole) if whole else 0.0), [row for row in map(_object, whole) if row is not None]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _array_rows(text: str) -> tuple[list[dict[str, Any]], int]:
    """The whole objects at the beginning of a JSON array, and their bytes."""
    found: list[dict[str, Any]] = []
    decoder, at, used = json.JSONDecoder(), 1, 0
    while (start := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        found.append(value)
        used += len(text[start:at].encode("utf-8", "replace")) + 2
    return found, used


def _csv_rows(text: bytes) -> tuple[float, list[dict[str, Any]]]:
    try:
        found = [dict(row) for row in csv.DictReader(io.StringIO(text.decode("utf-8-sig", "replace")))]
    except csv.Error:
        found = []
    return len(text) / max(1, len(found)), [{key: value for key, value in row.items() if isinstance(key, str)} for row in found]


def _texts_of(dataset: DataSet, rows: list[dict[str, Any]]) -> tuple[float | None, float]:
    """(tokens of a row where the rows hold them, the supervised share) of rows as they stand in the file."""
    form, columns = dataset.format, dict(dataset.columns)
    if form == "auto":
        found = detect_format(rows, columns)
        form, columns = found.format, found.columns
    if form == "tokenized":
        return _counted(rows, columns)
    said = [each for row in rows for each in _said(row, form, columns)]
    everything, answered = sum(len(text) for text, _ in said), sum(len(text) for text, is_answer in said if is_answer)
    return None, answered / everything if answered else SUPERVISED_SHARE


def _counted(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> tuple[float | None, float]:
    ids = [len(each) for row in rows if isinstance(each := row.get(columns.get("input_ids", "input_ids")), list)]
    labels = [each for row in rows if isinstance(each := row.get(columns.get("labels", "labels")), list)]
    learned = sum(label != -100 for each in labels for label in each)
    return (sum(ids) / len(ids) if ids else None), learned / max(1, sum(ids)) if learned else SUPERVISED_SHARE


def _said(row: Mapping[str, Any], form: str, columns: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Each text of a row, and whether it is learned."""
    if form in ("messages", "sharegpt"):
        field = "messages" if form == "messages" else "conversations"
        for turn in listed(row.get(columns.get(field, field))) or []:
            if isinstance(turn, dict):
                speaker = next((turn[key] for key in SPEAKERS if key in turn), None)
                text = next((turn[key] for key in WORDS if isinstance(turn.get(key), str)), None)
                if text is not None:
                    yield text, speaker in ("assistant", "gpt", "function_call")
        return
    answer = {"alpaca": "output", "prompt_completion": "completion", "text": "text"}.get(form, "")
    for name in COLUMNS.get(form, ()):
        text = row.get(columns.get(name, name))
        if isinstance(text, str):
            yield text, name == answer
