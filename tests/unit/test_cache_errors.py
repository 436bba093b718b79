"""A cache on a full or read-only disk is told as that."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ftcore.data.cache_errors import writing_cache
from ftcore.spec.errors import DataError, SpecError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EEXIST, errno.ENOTDIR, errno.EISDIR])
def test_a_cache_that_can_not_be_written(number: int, tmp_path: Path) -> None:
    file = str(tmp_path / "data" / "a.lock")
    with pytest.raises(DataError, match=r"a\.lock: can't write to the cache: .*\n.*or set FTLAUNCH_CACHE") as told, writing_cache(tmp_path):
        raise OSError(number, os.strerror(number), file)
    assert told.value.exit_status == 4


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RuntimeError("I/O error: No space left on device (os error 28)")])
def test_a_full_disk_without_a_name_is_the_caches(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No space left") as told, writing_cache(tmp_path):
        raise error
    assert told.value.problems[0].where == str(tmp_path)


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "no", "/elsewhere"), OSError(errno.EIO, "x"), ValueError("x"), SpecError("x")])
def test_other_errors_pass(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as told, writing_cache(tmp_path):
        raise error
    assert told.value is error
