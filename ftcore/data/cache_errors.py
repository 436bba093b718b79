"""A cache that can't be written, told as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ftcore.spec.disk_errors import REMEDIES, disk_errno
from ftcore.spec.errors import DataError, FtError


@contextmanager
def writing_cache(cache_dir: Path) -> Iterator[None]:
    """Raises DataError, naming the cache, where something inside could not be written to it: a full or read-only disk, a missing permission."""
    try:
        yield
    except FtError:
        raise
    except Exception as error:
        number = disk_errno(error)
        file = getattr(error, "filename", None)
        # A file that was only written has no name in its error.
        if number is None or (file is not None and not Path(str(file)).is_relative_to(cache_dir)):
            raise
        what = f"can't write to the cache: {getattr(error, 'strerror', None) or error}"
        fix = f"{REMEDIES[number]}, or set FTLAUNCH_CACHE to another folder"
        raise DataError(what, where=str(file or cache_dir), fix=fix) from error
