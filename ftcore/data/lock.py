"""One process at a time makes a cached thing, aside and then renamed; the others wait and find it made."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ftcore.spec.errors import DataError
from ftcore.spec.run_dir import fsync_path


@contextmanager
def exclusive(path: Path, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds the lock file `path` (made if needed); waits while another process holds it. The kernel frees it when a process dies.

    `on_wait` is told once, before the wait, who holds it ("process 7 on host a"; empty when that isn't known).
    Raises DataError where the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _held(path, on_wait)
    try:
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on host {socket.gethostname()}")
        file.flush()
        yield
    finally:
        file.close()


@contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Holds the lock of an existing file for the block, and tells whether that went.

    False while another process holds it, and when the file is gone or somebody else's.
    """
    try:
        file = path.open("r+b")
    except OSError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield _is_still(path, file)


def _held(path: Path, on_wait: Callable[[str], None] | None) -> IO[str]:
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                file.seek(0)
                on_wait(file.read(200))
                on_wait = None
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            file.close()
            fix = "set FTLAUNCH_CACHE to a folder on a disk that has locks"
            raise DataError(f"the cache's disk has no file locks ({error.strerror})", where=str(path), fix=fix) from error
        # Whoever clears a cache away takes its lock file too: what is locked then is no longer the file of that name.
        if _is_still(path, file):
            return file
        file.close()


def _is_still(path: Path, file: IO[Any]) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(file.fileno())
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives an empty folder beside `path`, which takes its name and its place once the block is done; after an error nothing is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield aside
        for file in aside.iterdir():
            file.chmod(0o644)
        aside.chmod(0o755)
        os.replace(aside, path)
    except BaseException:
        shutil.rmtree(aside)
        raise
    fsync_path(path.parent)
