"""One process at a time makes a cached thing, aside and then renamed; the others wait and find it made."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ftcore.spec.run_dir import fsync_path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the lock file `path` (made if needed); waits while another process holds it. The kernel frees it when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
