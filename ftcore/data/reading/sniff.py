"""What a file is by its first bytes, where its name says something else."""

from __future__ import annotations

from dataclasses import replace

from ftcore.data.reading.rows import DataFile
from ftcore.data.reading.streams import MAGICS, ByteStream
from ftcore.spec.errors import DataError, Problem

GIT_LFS = b"version https://git-lfs.github.com/spec/"
COLUMNAR_MAGICS = {b"PAR1": "parquet", b"ARROW1": "arrow"}
HEAD_BYTES = 64


def sniffed(file: DataFile) -> DataFile:
    """A file of text with its compression as its first bytes tell it.

    Raises DataError for a parquet or Arrow file under another name, and for what git-lfs leaves in place of a file.
    """
    head = first_bytes(file)
    refuse_pointer(file, head)
    kind = next((kind for magic, kind in COLUMNAR_MAGICS.items() if head.startswith(magic)), "")
    if kind:
        raise DataError([Problem(what=f"is a file of the kind {kind} under another name", file=file.name, fix=f"let its name end in .{kind}")])
    return replace(file, compression=next((name for magic, name in MAGICS.items() if head.startswith(magic)), ""))


def first_bytes(file: DataFile) -> bytes:
    """The first bytes of a file as they are on disk. Raises DataError when it can't be read."""
    with ByteStream(replace(file, compression="")) as stream:
        return stream.peek(HEAD_BYTES)[:HEAD_BYTES]


def refuse_pointer(file: DataFile, head: bytes) -> None:
    """Raises DataError when a file's first bytes are a pointer of git-lfs."""
    if head.startswith(GIT_LFS):
        raise DataError([Problem(what="holds a pointer of git-lfs, not the data", file=file.name, fix="fetch the data: git lfs pull")])
