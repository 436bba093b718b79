"""Text for a terminal as it is: its width, what its locale can show. Pure functions but for `line_width`."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Mapping, Sequence

GAP = "  "


def rewrites_lines(is_tty: bool, environment: Mapping[str, str]) -> bool:
    """Whether a line can be written again in its place: on a terminal, but for one that says it can't."""
    return is_tty and environment.get("TERM", "") != "dumb"


def is_ascii_only(encoding: str | None, environment: Mapping[str, str]) -> bool:
    """Whether only ASCII is sure to be shown: the stream's encoding, or the locale of the terminal, is not UTF-8."""
    locale = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := environment.get(name))), "C")
    named = (encoding or "ascii").replace("-", "").lower()
    return not named.startswith("utf") or "utf" not in locale.lower()


def encodable(text: str, encoding: str | None) -> str:
    """`text` with a question mark for each character that the encoding does not have."""
    try:
        text.encode(encoding or "utf-8", errors="surrogateescape")
    except (UnicodeEncodeError, LookupError):
        return text.encode(encoding or "utf-8", errors="replace").decode(encoding or "utf-8", errors="replace")
    return text


def line_width() -> int:
    """Columns of the terminal but the last, where it would go on to the next line."""
    return max(1, shutil.get_terminal_size().columns - 1)


def cut(text: str, width: int) -> str:
    """The beginning of `text` that takes at most `width` columns, on one line."""
    shown, taken = [], 0
    for character in text.replace("\n", " ").replace("\r", " ").replace("\t", " "):
        taken += columns_of(character)
        if taken > width:
            break
        shown.append(character)
    return "".join(shown)


def columns_of(text: str) -> int:
    """Columns that text takes: two for a wide character, none for one that joins the one before."""
    return sum(0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def fit(choices: Sequence[Sequence[str]], width: int) -> str:
    """The first of several lists of parts that fits into `width` columns as one line; of the last one as many parts, from the first, as do."""
    for parts in choices:
        line = GAP.join(parts)
        if columns_of(line) <= width:
            return line
    parts = list(choices[-1])
    while len(parts) > 1 and columns_of(GAP.join(parts)) > width:
        parts.pop()
    return cut(GAP.join(parts), width)
