"""What a template's own {% generation %} markers say of an answer, and whether they can be right."""

from __future__ import annotations

from collections.abc import Sequence

from ftcore.data.templates.rendering import CharSpan, roles_of
from ftcore.data.templates.standins import Shape, StandInText, behind
from ftcore.spec.errors import DataError

MARKER_FIX = "put the markers around the assistant's content and end token"


def marked_parts(marked: Sequence[CharSpan], rendered: CharSpan | None, whole: StandInText, shape: Shape, index: int) -> list[CharSpan]:
    """The marked ranges of the answer `index` in the text of a shape's stand-ins.

    `rendered` is the answer with its turn end as rendering shows it, where that could be told: a marked header, which the prompt gives, and
    white space after the turn end, which generation never reaches, are left out then. Empty when the template marks no part of it. Raises
    DataError when the markers leave out the text, calls or turn end of an answer they mark, or mark what isn't the assistant's, or nothing at all.
    """
    messages = shape.messages
    roles = roles_of(messages)
    ranges = [span for span in marked if span[1] > span[0]]
    if not ranges:
        raise DataError(f"the template's {{% generation %}} markers mark nothing (roles: {roles})", fix=MARKER_FIX)
    for slot, (start, end) in zip(whole.slots, whole.spans, strict=True):
        if slot.key[0] >= 0 and messages[slot.key[0]]["role"] != "assistant" and any(first < end and start < last for first, last in ranges):
            everything = ranges[0] == (0, len(whole.text))
            covers = "the whole text, prompt included" if everything else f"the text of message {slot.key[0] + 1}, which isn't the assistant's"
            raise DataError(f"the template's {{% generation %}} markers mark {covers} (roles: {roles})", fix=MARKER_FIX)
    if rendered:
        parts = [(max(start, rendered[0]), min(end, rendered[1])) for start, end in ranges if start < rendered[1] and end > rendered[0]]
    else:
        low, high = _between(whole, shape, index)
        parts = [(start, end) for start, end in ranges if low <= start and end <= high]
    if not parts:
        return []
    inside = [key for key, (begin, end) in whole.of_keys(index) if any(start <= begin and end <= last for start, last in parts)]
    if any(key not in inside for key in shape.needed(index)):
        raise DataError(f"the template's {{% generation %}} markers leave out a part of message {index + 1} (roles: {roles})", fix=MARKER_FIX)
    own = whole.of(index)
    said = behind(shape.tags_behind(index), whole.text, max(parts[-1][0], own[-1][1] if own else 0))
    if not whole.text[said : parts[-1][1]].strip():
        raise DataError(
            f"the template's {{% generation %}} markers leave out the turn end of message {index + 1}, so the model would never learn to stop", fix=MARKER_FIX
        )
    return parts


def _between(whole: StandInText, shape: Shape, index: int) -> CharSpan:
    """From the last text of the messages before `index` to the first of those after it. Raises DataError when another answer may stand there."""
    known = [(slot.key[0], span) for slot, span in zip(whole.slots, whole.spans, strict=True) if slot.key[0] not in (-1, index)]
    low, before = max(((end, message) for message, (_, end) in known if message < index), default=(0, -1))
    high, after = min(((start, message) for message, (start, _) in known if message > index and start >= low), default=(len(whole.text), len(shape.messages)))
    if any(shape.messages[other]["role"] == "assistant" for other in range(before + 1, after) if other != index):
        raise DataError(
            f"the template's {{% generation %}} markers don't tell the answers apart (roles: {roles_of(shape.messages)})",
            fix="use a template that marks every answer, whatever follows",
        )
    return low, high
