"""Data files in a folder, and which format their first rows have. Nothing is read beyond those."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcore.spec.data_formats import LOOKED_AT, detect_format
from ftcore.spec.data_paths import file_kind, path_kind

FOLDERS = ("", "data")
MOST_FILES = 40
_MOST_BYTES = 4 * 2**20
_HELD_OUT = ("eval", "valid", "validation", "val", "test", "dev", "heldout", "held_out")
_OPENERS: dict[str, Callable[[Path], Any]] = {"": lambda path: path.open("rb"), "gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}
"""How a file is compressed -> what opens it without a package of others."""
_UNSEEN = ("parquet", "arrow")
"""Kinds whose rows need such a package: their format is told when they are prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file, or another path of a data set, and what its first rows are."""

    path: str
    format: str = ""
    """A format of docs/data-formats.md; auto: told when the rows are prepared; empty: none."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Field of the format -> the file's own name for it, where they differ."""
    needs: str = ""
    """What must be done before it can be trained on; empty: nothing."""

    @property
    def is_held_out(self) -> bool:
        """Whether its name says that it is for evaluation."""
        words = Path(self.path).name.lower().partition(".")[0].replace("-", "_").split("_")
        return any(word in _HELD_OUT for word in words)

    def described(self) -> str:
        """For a list of choices."""
        if self.needs:
            return f"{self.path} (not yet usable: {self.needs})"
        if self.format == "auto":
            return f"{self.path} (format told when it is prepared)"
        renamed = "".join(f", {name} is `{own}`" for name, own in self.columns.items())
        return f"{self.path} ({self.format}{renamed})"


def find_data(root: Path) -> list[DataFile]:
    """The data files in `root` and `root/data`, by name; files that hold other things than rows (a config.json, a table of results) are left out."""
    found: list[DataFile] = []
    for folder in FOLDERS:
        paths = _files(root / folder)
        looked = [look_at(path, str(Path(folder, path.name))) for path in paths[:MOST_FILES]]
        found += [each for each in looked if not each.needs or (file_kind(each.path) or ("",))[0] == "jsonl"]
    return found


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if file_kind(path.name) and path.is_file())
    except OSError:
        return []


def look_at(path: Path, name: str) -> DataFile:
    """What the first rows of a file, or of a folder's first file, are; `name` is how it is called in the spec."""
    if path.is_dir():
        files = _files(path)
        first = look_at(files[0], name) if files else None
        return DataFile(path=name, format="auto") if first is None or first.needs else first
    if not path.exists() and path_kind(name) in ("hub", "glob"):
        return DataFile(path=name, format="auto")
    kind, compression = file_kind(path.name) or ("jsonl", "")
    if kind in _UNSEEN or compression not in _OPENERS:
        return DataFile(path=name, format="auto")
    try:
        with _OPENERS[compression](path) as file:
            rows = list(_rows(file.read(_MOST_BYTES), kind, is_tsv=".tsv" in path.suffixes))
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        return DataFile(path=name, needs=f"it can't be read: {getattr(error, 'strerror', None) or error}")
    except (ValueError, csv.Error, RecursionError):
        if file_kind(path.name) is None:
            return DataFile(path=name, needs='it holds no JSON; plain text goes into one JSON object a line: {"text": "..."}')
        form = "CSV" if kind == "csv" else "JSON objects"
        return DataFile(path=name, needs=f"its first rows are not {form} in UTF-8; `ftlaunch` names each wrong row when it prepares the data")
    if not rows:
        return DataFile(path=name, needs="it has no rows")
    found = detect_format(rows)
    if not found.format:
        return DataFile(path=name, needs=f"{found.reason}; {found.fix}")
    return DataFile(path=name, format=found.format, columns=found.columns)


def _rows(payload: bytes, kind: str, *, is_tsv: bool) -> Iterator[dict[str, Any]]:
    """The first rows. Raises ValueError when one is no object, no JSON or no UTF-8, and csv.Error."""
    cut = len(payload) == _MOST_BYTES
    # A character that the limit cut is no mistake of the file's.
    text = payload.decode("utf-8-sig", errors="ignore" if cut else "strict")
    if kind == "csv":
        yield from _table(text, cut, is_tsv=is_tsv)
    elif kind == "json" and text.lstrip()[:1] == "[":
        yield from _array(text, cut)
    else:
        lines = text.split("\n")
        for line in [line for line in (lines[:-1] if cut else lines) if line.strip()][:LOOKED_AT]:
            yield _object(json.loads(line))


def _table(text: str, cut: bool, *, is_tsv: bool) -> Iterator[dict[str, Any]]:
    header = text.partition("\n")[0]
    delimiter = "\t" if is_tsv else next((each for each in (",", ";", "\t") if each in header), ",")
    csv.field_size_limit(_MOST_BYTES)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    for count in range(LOOKED_AT):
        try:
            row = next(reader, None)
        except csv.Error:
            if cut and count:
                return
            raise
        if row is None or (cut and None in row.values()):
            return
        yield {key: value for key, value in row.items() if isinstance(key, str)}


def _array(text: str, cut: bool) -> Iterator[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    for count in range(LOOKED_AT):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if text[at : at + 1] == "]" or (cut and count and at >= len(text)):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            if cut and count:
                return
            raise
        yield _object(value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise json.JSONDecodeError("no object", "", 0)
    return value
