"""The data files of a folder: which are taken, and of which split."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftcore.data.reading.rows import DataFile
from ftcore.data.reading.splits import Purpose, by_split, chosen, held_out_by_case
from ftcore.spec.data_paths import file_kind
from ftcore.spec.data_sections import DataSet
from ftcore.spec.errors import DataError
from ftcore.spec.events import emit

NO_ROWS = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""JSON files that stand beside data and hold none."""
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""What save_to_disk of the library datasets writes: for a set, and for several splits."""
SHOWN = 5


def folder_files(dataset: DataSet, folder: Path, where: str, purpose: Purpose) -> list[DataFile]:
    """The data files of a folder, sorted by path. Raises DataError when there are none, of several kinds, or none of the split."""
    if not os.access(folder, os.R_OK | os.X_OK):
        refuse_folder(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder)))
    if (folder / SAVED_SPLITS).is_file():
        splits = {name: [name] for name in _read(folder / SAVED_SPLITS).get("splits", [])}
        split = chosen(splits, dataset.split, purpose=purpose, of=dataset.path, where=where)
        return _saved(folder / split, os.path.join(dataset.path, split))
    if (folder / SAVED).is_file() and "_data_files" in _read(folder / SAVED):
        if dataset.split:
            raise DataError(f"{dataset.path} was saved as one set without splits", where=f"{where}.split", fix="leave the split out")
        return _saved(folder, dataset.path)
    names, ignored = data_names(folder)
    if not names:
        seen = ", ".join(sorted(os.listdir(folder))[:10]) or "nothing"
        raise DataError(f"the folder {dataset.path} has no data files; it holds {seen}", where=where, fix=KINDS)
    splits = by_split(names)
    split = chosen(splits, dataset.split, purpose=purpose, of=dataset.path, where=where) if _has_splits(splits, names, dataset) else "train"
    left = sum(len(each) for name, each in splits.items() if name != split)
    unnamed = len(names) - len({name for each in splits.values() for name in each})
    _tell(dataset.path, ignored, f"{unnamed} files of no split" if unnamed else "")
    if purpose == split == "train" and (odd := held_out_by_case(splits[split])):
        emit("note", text=f"{dataset.path}: {odd} is trained on: only names in small letters (test, validation) tell a split")
    if left:
        emit("note", text=f"{dataset.path}: the split {split} is taken, {len(splits[split])} of {len(names)} files")
    files = [data_file(folder / name, os.path.join(dataset.path, name)) for name in splits[split]]
    check_one_kind(files, dataset.path, where)
    return files


KINDS = "data files end in .jsonl, .ndjson, .json, .csv, .tsv, .parquet or .arrow; text ones also in .gz, .zst, .bz2 or .xz after that"


def data_names(folder: Path, most: int | None = None) -> tuple[list[str], list[str]]:
    """(paths of data files inside `folder`, sorted; paths of other files). What is hidden (a dot in front, or __) is neither.

    `most`: once so many files were seen, no more folders are looked into; None: all are.
    """
    names: list[str] = []
    ignored: list[str] = []
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True, onerror=refuse_folder if most is None else None):
        real = os.path.realpath(place)
        enough = most is not None and len(names) + len(ignored) + len(seen) >= most
        folders[:] = [] if real in seen or enough else sorted(name for name in folders if not _is_hidden(name))
        if real in seen:
            continue
        seen.add(real)
        for file in files:
            if not _is_hidden(file):
                name = os.path.relpath(os.path.join(place, file), folder).replace(os.sep, "/")
                (names if is_data(file) else ignored).append(name)
    return sorted(names), sorted(ignored)


def is_data(file: str) -> bool:
    """Whether a file of this name holds rows."""
    return file not in NO_ROWS and file_kind(file) is not None


def data_file(path: Path, name: str) -> DataFile:
    """A file on disk by its name. Raises DataError when it can't be looked at."""
    kind, compression = file_kind(path.name) or ("jsonl", "")
    if os.fsencode(path) != str(path).encode(errors="replace"):
        raise DataError(f"can't read {name.encode(errors='backslashreplace').decode()}: its name is not UTF-8", fix="rename the file, or its folder")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"can't read {name}: {error.strerror}", fix="name a file that this user may read") from error
    if not path.is_file():
        what = f"can't read {name}: it is no regular file but a pipe, a socket or a device"
        raise DataError(what, fix="write the rows to a file: they are read more than once")
    if not os.access(path, os.R_OK):
        raise DataError(f"can't read {name}: {os.strerror(errno.EACCES)}", fix="name a file that this user may read")
    return DataFile(path=path, name=name, kind=kind, compression=compression, size=size)


def check_one_kind(files: Sequence[DataFile], of: str, where: str) -> None:
    """Raises DataError when files of one set are of several kinds (JSON and JSONL are one): often the same rows twice."""
    kinds = Counter("JSON" if file.kind in ("json", "jsonl") else file.kind for file in files)
    if len(kinds) > 1:
        seen = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        raise DataError(f"{of} holds files of several kinds: {seen}", where=where, fix="name those to take with a pattern, such as FOLDER/**/*.jsonl")


def _has_splits(splits: dict[str, list[str]], names: list[str], dataset: DataSet) -> bool:
    # A folder without a split's word anywhere is all of the set, whatever it is for.
    return bool(dataset.split) or list(splits) != ["train"] or splits["train"] != names


def _saved(folder: Path, shown: str) -> list[DataFile]:
    state = _read(folder / SAVED)
    if state.get("_indices_data_files"):
        raise DataError(f"{shown} was saved with an index beside its rows", fix="save it again with a newer version of datasets, or after flatten_indices()")
    return [data_file(folder / entry["filename"], os.path.join(shown, entry["filename"])) for entry in state.get("_data_files", [])]


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"can't read {path}: {error}", fix="save the data set again") from error
    return value if isinstance(value, dict) else {}


def refuse_folder(error: OSError) -> None:
    """Rows in a folder that can't be looked into must not go missing without a word."""
    raise DataError(f"can't look into {error.filename}: {error.strerror}", fix="allow this user to read it, or name the files with a pattern") from error


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__"))


def _tell(of: str, ignored: Sequence[str], more: str) -> None:
    others = [name for name in ignored if not name.endswith((".md", ".txt")) and os.path.basename(name) not in NO_ROWS]
    seen = [f"{len(others)} files that are no data ({', '.join(others[:SHOWN])}{', ...' if len(others) > SHOWN else ''})"] if others else []
    if seen or more:
        emit("note", text=f"{of}: left out: {', '.join([*seen, *([more] if more else [])])}")
