"""The events of a Chrome trace, one after another: a trace of a real model holds millions, and is never in memory as a whole."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK = 1 << 16
"""Bytes of the file that are read at once."""
MOST_AT_ONCE = 1 << 20
"""Bytes that are unpacked of them before they are looked at."""
MOST_OF_AN_EVENT = 1 << 24
"""Characters; what is longer and still no JSON object is broken."""
MOST_OF_A_HEAD = 1 << 22
"""Characters before the events; other JSON beside traces may be of any size."""
_EVENTS_KEY = '"traceEvents"'
_RANK = re.compile(r'"rank":\s*(\d+)')
_HOST = re.compile(r'"host_name":\s*"([^"\\]*)"')
_RANK_IN_NAME = re.compile(r"rank_?(\d+)")
_NEXT_EVENT = re.compile(r"\n\s*\{\s*\n?\s*\"ph\"")
_BETWEEN = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder()


class TraceFile:
    """One trace, plain or gzipped. After `events` has ended, `rank`, `host` and `problems` say what was found beside them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rank = _rank_in(path.name)
        """By the file's name until its head was read."""
        self.host = ""
        self.problems: list[str] = []
        """What is wrong with the file; its readable events are yielded all the same."""

    def events(self) -> Iterator[dict[str, Any]]:
        """Every event that can be read, in the file's order. A file that breaks off, or is no trace, leaves a line in `problems`."""
        try:
            yield from self._events(_texts(self.path))
        except (OSError, EOFError, zlib.error) as error:
            self.problems.append(f"{self.path.name} can't be read to its end: {error}")

    def _events(self, pieces: Iterator[str]) -> Iterator[dict[str, Any]]:
        text = self._head(pieces)
        if text is None:
            self.problems.append(f"{self.path.name} is no Chrome trace: it has no {_EVENTS_KEY}")
            return
        place = 0
        while True:
            place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]  # it matches the empty text, too
            if text.startswith("]", place):
                return
            try:
                event, place = _DECODER.raw_decode(text, place)
            except ValueError:
                piece = next(pieces, "")
                text, place = text[place:] + piece, 0
                if not piece or len(text) > MOST_OF_AN_EVENT:
                    found = _NEXT_EVENT.search(text, 1)
                    self.problems.append(f"{self.path.name} is broken in the middle or breaks off")
                    if found is None:
                        return
                    place = found.start()
                continue
            if isinstance(event, dict):
                yield event

    def _head(self, pieces: Iterator[str]) -> str | None:
        """What follows the bracket of the events; None without one. Notes the rank and the host on the way."""
        text = ""
        while len(text) < MOST_OF_A_HEAD and (piece := next(pieces, "")):
            text += piece
            start = text.find(_EVENTS_KEY)
            bracket = text.find("[", start) if start >= 0 else -1
            if bracket >= 0:
                rank, host = _RANK.search(text, 0, start), _HOST.search(text, 0, start)
                self.rank = int(rank[1]) if rank else self.rank
                self.host = host[1] if host else ""
                return text[bracket + 1 :]
        return None


def _texts(path: Path) -> Iterator[str]:
    """The text of a file in pieces, none empty. Raises OSError, zlib.error or EOFError, after all that could be unpacked before."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with path.open("rb") as file:
        inflate = zlib.decompressobj(wbits=31) if file.read(2) == b"\x1f\x8b" else None
        file.seek(0)
        while chunk := (inflate.unconsumed_tail if inflate is not None else b"") or file.read(CHUNK):
            if text := decoder.decode(chunk if inflate is None else inflate.decompress(chunk, MOST_AT_ONCE)):
                yield text
        if inflate is not None and not inflate.eof:
            raise EOFError("it breaks off")


def _rank_in(name: str) -> int:
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found else 0
