"""The identity of a data set by its bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from ftcore.data.extraction import builtin_bytes
from ftcore.data.reading.csv_rows import is_tsv
from ftcore.data.reading.rows import DataFile, Source
from ftcore.spec.data_paths import BUILTIN_PREFIX

BLOB_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def source_digest(source: Source, remember: Callable[[Path], str]) -> str:
    """sha256 over the files' bytes, their order and what is in them by their names (csv, tsv, jsonl, ...); their names and folders don't count.

    `remember` gives the sha256 of a file, such as `digests.file_digest` with its cache. A file of the hub is known by its blob's id, with no need to read it.
    """
    digest = hashlib.sha256()
    for file in source.files:
        kind = "tsv" if is_tsv(file.name) else file.kind
        digest.update(f"{kind} {_bytes_digest(file, source.revision, remember)}\n".encode())
    return digest.hexdigest()


def _bytes_digest(file: DataFile, revision: str, remember: Callable[[Path], str]) -> str:
    name = str(file.path)
    if name.startswith(BUILTIN_PREFIX):
        return hashlib.sha256(builtin_bytes(name)).hexdigest()
    if revision:
        blob = file.path.resolve()
        if blob.parent.name == "blobs" and BLOB_ID.fullmatch(blob.name):
            return f"blob {blob.name}"
    return remember(file.path)
