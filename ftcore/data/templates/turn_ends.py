"""What ends an assistant's turn."""

from __future__ import annotations

import re


def turn_end(tail: str, followed: str, added: re.Pattern[str]) -> int | None:
    """How many characters after an answer's text belong to its turn: up to the last added token that closes the turn, else the last visible one.

    `tail` is what follows the text where nothing follows the turn, `followed` what follows it in the whole conversation, which must begin the same.
    None when no end is the same in both.
    """
    closing = len(tail)
    ends: list[int] = []
    for match in reversed(list(added.finditer(tail))):
        if tail[match.end() : closing].strip():
            break
        ends.append(match.end())
        closing = match.start()
    if not ends:
        ends = [len(tail.rstrip())]
    return next((end for end in ends if tail[:end] == followed[:end]), None)
