"""Where the turns of a conversation begin, so that a long one can be split between them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence

from ftcore.data.templates.rendering import Message
from ftcore.data.templates.standins import CONTENT, StandInText
from ftcore.spec.errors import DataError


def find_turns(
    messages: Sequence[Message], whole: StandInText, prefix: Callable[[int, bool], StandInText], added: re.Pattern[str], ends: Mapping[int, int]
) -> list[int]:
    """Characters of the stand-ins' text where a user's message begins that follows another role's, with its header.

    The first is the end of the head: beginning of text, system message, tools. Empty with fewer than two turns, or when the head
    can't be cut off (a system message inside the first question, say). `ends`: where the answers end that are known to.
    """
    users = [index for index, message in enumerate(messages) if message["role"] == "user" and (index == 0 or messages[index - 1]["role"] != "user")]
    if len(users) < 2:
        return []
    try:
        later = [_begin(index, whole, prefix(index, False), added, ends.get(index - 1, 0)) for index in users[1:]]
    except DataError:
        return []
    first = whole.of(users[0], CONTENT)
    if any(start is None for start in later) or not first:
        return []
    starts = [start for start in later if start is not None]
    header = whole.text[starts[0] : whole.of(users[1], CONTENT)[0][0]]
    if not header or not whole.text[: first[0][0]].endswith(header):
        return []
    return [first[0][0] - len(header), *starts]


def _begin(index: int, whole: StandInText, earlier: StandInText, added: re.Pattern[str], ended: int) -> int | None:
    """Where the message `index` begins: after what the template writes at the end of the messages before it, the answer's turn end among it."""
    own = whole.of(index, CONTENT)
    if not own or not earlier.slots:
        return None
    before = whole.last_before(own[0][0])
    if before < 0 or whole.slots[before].key != earlier.slots[-1].key:
        return None
    edge = whole.end_of(before)
    gap = whole.text[edge : own[0][0]]
    size = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(gap, earlier.glue[-1], strict=False)))
    begin = edge + next((match.start() for match in added.finditer(gap) if match.start() < size < match.end()), size)
    return max(begin, ended)
