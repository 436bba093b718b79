"""Files of the hub that are read where they are, at one commit, a block at a time."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ftcore.data.reading.rows import DataFile

PREFIX = "hf:/"
"""Paths of such files begin so: hf:/datasets/OWNER/NAME@COMMIT/FILE."""
PAUSES_S = (1.0, 5.0, 20.0)
"""Waits before a request that failed is made again: a run of days meets a network that is away for a moment."""

Got = TypeVar("Got")


def remote_path(repository: str, commit: str, name: str) -> Path:
    """The path of a file of a data set of the hub at a commit."""
    return Path(f"{PREFIX}datasets/{repository}@{commit}/{name}")


def is_remote(file: DataFile) -> bool:
    """Whether the file is read from the hub."""
    return str(file.path).startswith(PREFIX)


class RemoteFile(io.RawIOBase):
    """A file of the hub, for reading. Raises OSError when the hub can't be reached, or refuses, for longer than the pauses."""

    def __init__(self, file: DataFile, pauses_s: tuple[float, ...] = PAUSES_S) -> None:
        super().__init__()
        self._pauses_s, self._name = pauses_s, str(file.path).removeprefix(PREFIX)
        self._file: Any = self._tried(self._open)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        place = self.tell()

        def read() -> bytes:
            self._file.seek(place)
            return bytes(self._file.read(len(buffer)))

        found = self._tried(read)
        buffer[: len(found)] = found
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def _open(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem().open(self._name, "rb")

    def _tried(self, work: Callable[[], Got]) -> Got:
        pauses = iter(self._pauses_s)
        while True:
            try:
                return work()
            except FileNotFoundError:
                raise
            except Exception as error:  # the library's HTTP client, which is another one in each of its versions, has errors of its own
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise OSError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
                time.sleep(pause_s)
