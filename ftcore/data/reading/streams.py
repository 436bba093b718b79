"""The bytes of a data file, block by block, decompressed on the way."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import IO, Any

from ftcore.data.extraction import builtin_bytes
from ftcore.data.reading.remote import RemoteFile, is_remote
from ftcore.data.reading.rows import DataFile
from ftcore.spec.data_paths import BUILTIN_PREFIX
from ftcore.spec.errors import DataError, Problem

BLOCK_BYTES = 1 << 20
SMALL_BLOCK_BYTES = 1 << 16
BOM = b"\xef\xbb\xbf"
MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}
# Frames to skip, which pzstd and writers of seekable files put in front.
MAGICS |= {bytes([byte]) + b"\x2a\x4d\x18": "zstd" for byte in range(0x50, 0x60)}
"""First bytes of a file -> how it is compressed, whatever its name says."""
UNPACKERS: dict[str, Callable[[IO[bytes]], Any]] = {"gzip": lambda raw: gzip.GzipFile(fileobj=raw), "bz2": bz2.BZ2File, "xz": lzma.LZMAFile}


class ByteStream:
    """The text of a file as bytes, from the offset `start`. Raises DataError when the file can't be read, or is cut off or damaged inside its compression.

    Offsets count bytes of the text, that is after decompression.
    """

    def __init__(self, file: DataFile, start: int = 0) -> None:
        self.file = file
        self.offset = start
        """Of the next byte that `read` gives."""
        self._ahead: list[bytes] = []
        self._failure: DataError | None = None
        self._raw = _open(file)
        self._text = self._decompressed()
        try:
            self._skip(start)
        except DataError:
            self.__exit__()
            raise

    @property
    def measured_in(self) -> str:
        """What its offsets count the bytes of."""
        return "the decompressed text" if self.file.compression else "the file"

    def read(self) -> bytes:
        """The next block; b"" at the end."""
        block = self._ahead.pop(0) if self._ahead else self._next()
        self.offset += len(block)
        return block

    def peek(self, size: int) -> bytes:
        """At least the next `size` bytes, or all there are, without taking them."""
        held = sum(map(len, self._ahead))
        try:
            while held < size and (block := self._next()):
                self._ahead.append(block)
                held += len(block)
        except DataError as error:
            self._failure = error  # once what stands before it is taken
        self._ahead = [b"".join(self._ahead)] if held else []
        return self._ahead[0] if held else b""

    def skip(self, mark: bytes) -> int:
        """Takes `mark` off the front if it stands there; the number of bytes taken."""
        held = self.peek(len(mark))
        if not held.startswith(mark):
            return 0
        self._ahead = [held[len(mark) :]] if len(held) > len(mark) else []
        self.offset += len(mark)
        return len(mark)

    def consumed(self) -> int:
        """Bytes of the file on disk that were read so far."""
        return self._raw.tell()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._text.close()
        self._raw.close()

    def _next(self) -> bytes:
        if self._failure is not None:
            raise self._failure
        try:
            return bytes(self._read())
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DataError:
        file = self.file
        cut = isinstance(error, EOFError) or "runcated" in str(error)
        held = sum(map(len, self._ahead))
        kind = f"the {file.compression} file" if file.compression else "the file"
        what = f"{kind} is cut off" if cut else f"{kind} is damaged ({error})" if file.compression else f"can't be read: {error}"
        return _error(file, f"{what} after {self.offset + held} bytes of its text", "download or copy the file again")

    def _read(self) -> Any:
        # Small steps where there is compression: what comes before damage is given before the error is.
        if self.file.compression in UNPACKERS:
            return self._text.read1(BLOCK_BYTES)
        return self._text.read(SMALL_BLOCK_BYTES if self.file.compression else BLOCK_BYTES)

    def _decompressed(self) -> Any:
        name, raw = self.file.compression, self._raw
        if name in UNPACKERS:
            return UNPACKERS[name](raw)
        if name == "zstd":
            import pyarrow as pa  # type: ignore[import-untyped]

            return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd") if self.file.size else io.BytesIO()
        return raw

    def _skip(self, start: int) -> None:
        if not self.file.compression:
            if start:
                self._raw.seek(start)
            return
        self.offset = 0
        while self.offset < start:
            block = self.read()
            if not block and start - self.offset == 1:
                return  # behind a last line that has no line end
            if not block:
                raise _error(self.file, f"holds {self.offset} bytes of text, reading was to go on at {start}", "the file has changed: take the one read before")
            if self.offset > start:
                self._ahead.insert(0, block[len(block) - (self.offset - start) :])
                self.offset = start


@cache
def _builtin(name: str) -> bytes:
    return builtin_bytes(name)


def _open(file: DataFile) -> IO[bytes]:
    name = str(file.path)
    if name.startswith(BUILTIN_PREFIX):
        return io.BytesIO(_builtin(name))
    try:
        if is_remote(file):
            return io.BufferedReader(RemoteFile(file), BLOCK_BYTES)
        return file.path.open("rb", buffering=0 if not file.compression else -1)
    except OSError as error:
        raise _error(file, f"can't be read: {error.strerror or error}", "name a file that this user may read") from error


def _error(file: DataFile, what: str, fix: str) -> DataError:
    return DataError([Problem(what=what, file=file.name, fix=fix)])


def line_blocks(stream: ByteStream) -> Iterator[list[bytes]]:
    """Lists of whole lines without their \\n. Only \\n ends a line: text may hold U+2028, U+0085, \\v and \\f as they are."""
    rest: list[bytes] = []
    while block := stream.read():
        cut = block.rfind(b"\n")
        if cut < 0:
            rest.append(block)
            continue
        rest.append(block[:cut])
        yield b"".join(rest).split(b"\n")
        rest = [block[cut + 1 :]]
    last = b"".join(rest)
    if last:
        yield [last]
