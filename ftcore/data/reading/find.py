"""From the path of a data set to its files."""

from __future__ import annotations

import difflib
import glob
import os
import re
from pathlib import Path

from ftcore.data.extraction import builtin_bytes
from ftcore.data.reading.folders import KINDS, check_one_kind, data_file, data_names, folder_files, is_data
from ftcore.data.reading.hub_files import hub_source
from ftcore.data.reading.patterns import ANY_DEPTH, deep_matches
from ftcore.data.reading.readme import has_configurations, resolved_splits
from ftcore.data.reading.rows import DataFile, Source
from ftcore.data.reading.sniff import COLUMNAR_MAGICS
from ftcore.data.reading.splits import Purpose, chosen
from ftcore.data.reading.streams import BOM, MAGICS
from ftcore.spec.data_paths import file_kind, path_kind
from ftcore.spec.data_sections import DataSet
from ftcore.spec.errors import DataError
from ftcore.spec.events import emit

HUB_PAGE = re.compile(r"(?:huggingface\.co|hf:/)/datasets/([^/?#@]+/[^/?#@]+)")
WALKED = 5_000
"""Files looked at, at most, for names like one that is missing."""


def find_files(dataset: DataSet, where: str, *, purpose: Purpose, cache_dir: Path) -> Source:
    """The files of a data set; those of the hub are downloaded if they aren't there yet. `where` is the set's place in the spec (data.train).

    Raises DataError when there are none, naming what is there instead.
    """
    kind = path_kind(dataset.path)
    if kind == "hub":
        return hub_source(dataset, where, purpose=purpose, cache_dir=cache_dir)
    if dataset.revision:
        raise DataError(f"{dataset.path} is not of the hub, so it has no revision", where=f"{where}.revision", fix="leave it out, or name a hub id: OWNER/NAME")
    path = Path(dataset.path).expanduser()
    if kind == "local" and path.is_dir():
        return Source(files=tuple(_folder(dataset, path, where, purpose)))
    for option, value in (("name", dataset.name), ("split", dataset.split)):
        if value:
            raise DataError(f"{dataset.path} is no folder and not of the hub, so it has no {option}", where=f"{where}.{option}", fix="leave it out")
    if kind == "builtin":
        size = len(builtin_bytes(dataset.path))
        return Source(files=(DataFile(path=Path(dataset.path), name=dataset.path, kind="jsonl", size=size),))
    return Source(files=tuple(_matches(dataset.path, where)) if kind == "glob" else (_single(dataset.path, path, where),))


def _folder(dataset: DataSet, folder: Path, where: str, purpose: Purpose) -> list[DataFile]:
    if not has_configurations(folder / "README.md"):
        if dataset.name:
            raise DataError(f"{dataset.path} names no configurations", where=f"{where}.name", fix="leave it out; a README.md can name them, as on the hub")
        return folder_files(dataset, folder, where, purpose)
    splits = resolved_splits(folder, dataset.path, dataset.name, where)
    split = chosen(splits, dataset.split, purpose=purpose, of=dataset.path, where=where)
    files = [data_file(folder / name, os.path.join(dataset.path, name)) for name in splits[split]]
    check_one_kind(files, dataset.path, where)
    return files


def _single(given: str, path: Path, where: str) -> DataFile:
    if "://" in given:
        page = HUB_PAGE.search(given)
        fix = f"write {page[1]} for this data set of the hub" if page else "download it and name the file; a hub id reads OWNER/NAME"
        raise DataError(f"addresses are not read: {given}", where=where, fix=fix)
    if not path.exists():
        reason = "is a link to nothing" if path.is_symlink() else "no such file"
        raise DataError(f"{reason}: {given}{_like(path)}", where=where, fix="check the path; a hub id reads OWNER/NAME")
    if not path.is_file():
        raise DataError(f"can't read {given}: it is no file and no folder", where=where, fix=KINDS)
    file = data_file(path, given)
    if file_kind(path.name) is not None:
        return file
    try:
        with path.open("rb") as opened:
            head = opened.read(64)
    except OSError as error:
        raise DataError(f"can't read {given}: {error.strerror}", where=where, fix="name a file that this user may read") from error
    kind = next((kind for magic, kind in COLUMNAR_MAGICS.items() if head.startswith(magic)), "jsonl")
    text = head.removeprefix(BOM).lstrip()
    if kind == "jsonl" and text and text[:1] not in b"{[" and not any(head.startswith(magic) for magic in MAGICS):
        what = f"{given} holds no JSON, and its name does not say what it holds"
        raise DataError(what, where=where, fix=f'{KINDS}; plain text: one JSON object a line, {{"text": "..."}}')
    return DataFile(path=path, name=given, kind=kind, size=file.size)


def _matches(pattern: str, where: str) -> list[DataFile]:
    full = os.path.expanduser(pattern)
    paths = deep_matches(full) if ANY_DEPTH in full.split("/") else [path for path in sorted(glob.glob(full)) if os.path.isfile(path)]
    taken = [path for path in paths if is_data(os.path.basename(path))]
    if not taken:
        seen = f"; it matches {len(paths)} files that are no data, such as {paths[0]}" if paths else _like(Path(pattern).expanduser())
        raise DataError(f"the pattern {pattern} matches no data file{seen}", where=where, fix=f"** goes into folders; {KINDS}")
    if len(taken) < len(paths):
        emit("note", text=f"{pattern}: left out: {len(paths) - len(taken)} files that are no data")
    files = [data_file(Path(path), path) for path in taken]
    check_one_kind(files, pattern, where)
    return files


def _like(path: Path) -> str:
    """The data files nearest to a path or pattern, in words; "" where there are none."""
    folder = next(folder for folder in path.parents if folder.is_dir() and not glob.has_magic(str(folder)))
    if folder == Path("/"):
        return ""
    names = data_names(folder, most=WALKED)[0]
    wanted = re.sub(r"[*?\[\]]+", "", str(path.relative_to(folder)))
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5) or names[:3]
    return f"; nearest: {', '.join(str(folder / name) for name in near)}" if near else f"; {folder} has no data files"
