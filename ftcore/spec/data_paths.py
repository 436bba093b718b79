"""What the path of a data set names: rows that are built in, files by a pattern, a file or folder, or a data set of the Hugging Face hub."""

from __future__ import annotations

import os
import re
from typing import Literal

BUILTIN_PREFIX = "builtin:"
SUFFIXES = {
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""Last part of a file's name -> what is in it."""
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
"""Part of a file's name after that -> how it is compressed."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_GLOB = re.compile(r"[*?\[]")

PathKind = Literal["builtin", "glob", "local", "hub"]


def path_kind(path: str) -> PathKind:
    """What `path` names. A file or folder that is there wins over a pattern and over a hub id of the same name."""
    if path.startswith(BUILTIN_PREFIX):
        return "builtin"
    if os.path.lexists(os.path.expanduser(path)):
        return "local"
    if _GLOB.search(path):
        return "glob"
    return "hub" if _HUB_ID.fullmatch(path) and not _has_suffix(path) else "local"


def file_kind(name: str) -> tuple[str, str] | None:
    """(what is in a file of this name, its compression or ""); None for a name that no reader knows."""
    stem, suffix = os.path.splitext(name.lower())
    compression = COMPRESSIONS.get(suffix, "")
    kind = SUFFIXES.get(os.path.splitext(stem)[1] if compression else suffix)
    return None if kind is None else (kind, compression)


def _has_suffix(path: str) -> bool:
    # `data/train.jsonl` has a hub id's shape; it is a file that is missing.
    return file_kind(path) is not None or path.lower().endswith((".txt", *COMPRESSIONS))
