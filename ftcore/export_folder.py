"""The folder of an export: written aside, put in place at once, and never over what is the user's."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ftcore.spec.adapter_file import EXPORT_RECORD
from ftcore.spec.errors import CheckpointError, SpecError


@contextmanager
def folder_aside(to: Path) -> Iterator[Path]:
    """A fresh folder beside `to`, gone at the end whatever happens: no name that a user's folder could have is taken."""
    # Named before it is made, so that a signal right after the making finds it named. 64 random bits: no one else's.
    aside = to.parent / f".{to.name}.{secrets.token_hex(8)}"
    try:
        with disk_errors(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            aside.mkdir()
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def disk_errors(to: Path) -> Iterator[None]:
    """Raises CheckpointError for whatever the operating system refuses inside: a full disk, a limit, a missing permission."""
    try:
        yield
    except Exception as error:
        # tokenizers raises a bare Exception that only its text tells from others.
        if not isinstance(error, (OSError, SafetensorError)) and "(os error" not in str(error):
            raise
        raise CheckpointError(f"can't write the export: {error}", where=str(to), fix="make room there, or name another place with --to") from error


def write_record(folder: Path, record: dict[str, object]) -> None:
    """Writes the record of an export, with the names of all files in `folder`."""
    (folder / EXPORT_RECORD).write_text(json.dumps({**record, "files": files_in(folder)}, indent=1) + "\n")


def files_in(folder: Path) -> list[str]:
    """Every file and link below `folder` but its own record, by its path relative to it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return [name for path in paths if (name := path.relative_to(folder).as_posix()) != EXPORT_RECORD]


def replace(new: Path, to: Path, old: Path) -> None:
    """Puts `new` in the place of `to`, whose earlier export moves to `old`; puts that back when anything goes wrong.

    Raises SpecError when a file of the user's has come to `to` meanwhile. It looks after the move, when no one
    can still add a file by its path.
    """
    try:
        if os.path.lexists(to):
            os.rename(to, old)
            require_replaceable(old, named=to)
        os.rename(new, to)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(to):
            os.rename(old, to)
        raise


def require_replaceable(folder: Path, *, named: Path) -> None:
    """Raises SpecError when `folder` holds anything but the files of an earlier export: nothing of the user's is overwritten.

    `named` is what the user calls it.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir() or folder.is_symlink():
        raise SpecError(f"{named} exists and is not an export of ftlaunch", where="--to", fix="name a new or empty folder")
    found = files_in(folder)
    written = _written_files(folder)
    if written is None and (found or (folder / EXPORT_RECORD).exists()):
        raise SpecError(f"{named} exists and is not an export of ftlaunch", where="--to", fix="name a new or empty folder")
    others = [name for name in found if name not in (written or ())]
    if others:
        raise SpecError(
            f"{named} is an export, and holds files that ftlaunch did not write: {', '.join(others[:5])}{', ...' if len(others) > 5 else ''}",
            where="--to",
            fix="move them away, or name a new or empty folder",
        )


def _written_files(folder: Path) -> list[str] | None:
    """The files that the record in `folder` lists; None without a record that can be read."""
    try:
        return [str(name) for name in json.loads((folder / EXPORT_RECORD).read_text(encoding="utf-8"))["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
