"""The files that a pattern with `**` names. glob's own follows a link that leads back some forty times, and passes over folders that it can't look into."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import has_magic

from ftcore.data.reading.folders import refuse_folder

ANY_DEPTH = "**"


def deep_matches(pattern: str) -> list[str]:
    """Paths of files, sorted, each file once whatever links lead to it: by the name that comes first. `**`: any number of folders but hidden ones.

    Raises DataError for a folder that can't be looked into.
    """
    parts = pattern.split("/")
    literal = next(index for index, part in enumerate(parts) if has_magic(part))
    base = "/".join(parts[:literal]) or ("/" if pattern.startswith("/") else "")
    found: dict[str, str] = {}
    for path in sorted(_walk(base, parts[literal:], ())):
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _walk(folder: str, wanted: Sequence[str], above: tuple[str, ...]) -> Iterator[str]:
    """Files below `folder` that fit; no folder is looked into below itself."""
    real = os.path.realpath(folder or ".")
    if real in above:
        return
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in entries]
    except (NotADirectoryError, FileNotFoundError):
        return
    except OSError as error:
        refuse_folder(error)
        return
    for name in names:
        path = os.path.join(folder, name)
        for rest in {tuple(each) for each in _after(name, wanted)}:
            if not rest and os.path.isfile(path):
                yield path
            elif rest and os.path.isdir(path):
                yield from _walk(path, rest, (*above, real))


def _after(name: str, wanted: Sequence[str]) -> Iterator[Sequence[str]]:
    """What is left of a pattern behind a name, in each way in which the name fits its beginning."""
    first = wanted[0]
    if first == ANY_DEPTH:
        rest = wanted[1:]
        if not name.startswith("."):
            yield wanted
            if not rest:
                yield ()
        if rest:
            yield from _after(name, rest)
    elif fnmatchcase(name, first) and (first.startswith(".") or not name.startswith(".")):
        yield wanted[1:]
