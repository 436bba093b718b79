"""How the rows of a JSON file stand in it: one object a line, or one array. The content decides, not the file's name."""

from __future__ import annotations

import json
from typing import Any, Literal

from ftcore.data.reading.json_text import LENIENT
from ftcore.data.reading.rows import DataFile
from ftcore.data.reading.streams import BOM, ByteStream
from ftcore.spec.errors import DataError, Problem

PROBE_BYTES = 1 << 20
OBJECT_BYTES = 64 << 20
"""So much is read, at most, to find out whether a file is one object over many lines."""

Layout = Literal["lines", "array"]


def json_layout(file: DataFile) -> Layout:
    """`array` when the file is one JSON array, on one line or many, else `lines`.

    An array that more lines follow is `lines`: each of its lines must be an object. Raises DataError for a file that is one object over
    several lines.
    """
    with ByteStream(file) as stream:
        stream.skip(BOM)
        head = stream.peek(PROBE_BYTES).lstrip()
        if head.startswith(b"["):
            line, _, rest = head.partition(b"\n")
            return "lines" if rest.strip() and _value(line) is not None else "array"
        if head.startswith(b"{") and _value(head.partition(b"\n")[0]) is None:
            _refuse_object(file, stream.peek(OBJECT_BYTES).lstrip())
        return "lines"


def _value(raw: bytes) -> Any:
    """The JSON value that is all of `raw`; None when it is none."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _refuse_object(file: DataFile, head: bytes) -> None:
    """Raises DataError when the text begins with an object that takes several lines; what is no JSON at all is left to the rows."""
    text = head.decode("utf-8", "replace")
    try:
        value, end = LENIENT.raw_decode(text)
    except (ValueError, RecursionError):
        return
    if "\n" not in text[:end]:
        return
    keys = ", ".join(map(str, sorted(value)[:10]))
    if text[end:].strip():
        raise _refused(file, "holds JSON objects that take several lines each", f"write one object a line (jq -c . {file.path} > rows.jsonl), or one array")
    raise _refused(file, f"holds one JSON object with the keys {keys}", "make the file an array of rows, or one object a line")


def _refused(file: DataFile, what: str, fix: str) -> DataError:
    return DataError([Problem(what=what, file=file.name, fix=fix)])
