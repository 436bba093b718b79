"""DeepSpeed's JSON files as people write them: JSON with comments and commas before a closing bracket. DeepSpeed itself reads them as Hjson."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ftcore.spec.document import Document, read_document, unreadable
from ftcore.spec.errors import Problem

MOST_BYTES = 2**20
"""A larger file is no configuration."""

_COMMENT = r"//[^\n]*+|#[^\n]*+|(?>/\*.*?\*/)"
# Texts are matched first, so that what looks like a comment inside one stays.
_PART = re.compile(rf'"(?:[^"\\\n]|\\.)*+"|{_COMMENT}|,(?=(?>\s|{_COMMENT})*+[}}\]])', re.DOTALL)
_FIX = 'write keys and texts in double quotes, with commas between; comments (//, #, /* */) are read; Hjson without quotes is not: write `"key": value`'


def read_ds_json(path: str, label: str) -> Document:
    """The file at `path`, called `label` in problems, with the line of every key. Raises nothing: why it can't be read stands in the document."""
    try:
        if not Path(path).is_file():
            what = "it is a folder" if Path(path).is_dir() else "there is no such file" if not Path(path).exists() else "it is no regular file"
            return unreadable(Problem(what=what, fix="name a DeepSpeed JSON; relative paths start at the current folder", file=label))
        with open(path, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return unreadable(Problem(what=f"can't read it: {reason}", fix="make the file readable", file=label))
    if len(raw) > MOST_BYTES:
        return unreadable(Problem(what="more than 1 MiB: that is no DeepSpeed configuration", fix="name a DeepSpeed JSON", file=label))
    document = read_document(without_comments(raw), "ds.json")
    return replace(document, problems=tuple(_told(problem, label) for problem in document.problems))


def without_comments(raw: bytes) -> bytes:
    """The text with blanks in the place of comments and of commas before a closing bracket; every line stays where it is."""
    text = raw.decode("utf-8", errors="surrogateescape")
    return _PART.sub(_blank, text).encode("utf-8", errors="surrogateescape")


def _blank(match: re.Match[str]) -> str:
    found = match[0]
    return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)


def _told(problem: Problem, label: str) -> Problem:
    """The problem as one of a DeepSpeed JSON: the advice on JSON and on specs does not fit it."""
    fix = problem.fix
    if problem.what.startswith("not valid JSON"):
        fix = _FIX
    elif problem.what.startswith(("the file is empty", "sections (a mapping)", "nested too deeply")):
        fix = 'write a DeepSpeed configuration: {"zero_optimization": {"stage": 2}}'
    return replace(problem, fix=fix, file=label)
