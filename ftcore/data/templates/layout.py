"""Where a template puts the answers of a row: found out on stand-ins, then proved on each row by putting its own texts in their place."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ftcore.data.templates.rendering import CharSpan
from ftcore.data.templates.standins import Slot, SlotKey, StandInText
from ftcore.spec.errors import DataError

Spot = tuple[int, int]
"""A place in a layout: number of a piece of glue, and characters into it."""
Spots = tuple[tuple[Spot, Spot], ...]
VARIANTS: tuple[Callable[[str, str], str], ...] = (
    lambda text, role: text,
    lambda text, role: text.strip(),
    lambda text, role: text.strip() if role == "assistant" else text,
)
"""What templates do to contents: nothing, trim them all, trim the answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The text of every row of one shape: the template's own texts (glue), and slots for the row's."""

    glue: tuple[str, ...]
    slots: tuple[Slot, ...]
    """Slot k stands between glue k and glue k + 1."""
    answers: dict[int, Spots | DataError]
    """Message of the assistant -> what is learned of it, or why that can't be told."""
    turns: tuple[Spot, ...]
    """Where each turn begins, the first one's after the head; empty when that can't be told."""
    compared: Spot = (0, 0)
    """From here on a row's text must be the layout's; before it stand tools, which differ from row to row."""
    left_out: tuple[int, ...] = ()
    """Messages of others than the assistant that have a text, and whose text the template does not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A row's text that is exactly its layout's, filled with the row's own texts."""

    layout: Layout
    glue_starts: tuple[int, ...]
    """Where each piece of glue begins in the row's text."""
    slot_spans: tuple[CharSpan, ...]
    """Where each slot's text stands."""

    def at(self, spot: Spot) -> int:
        """The character of the row's text at a spot."""
        return self.glue_starts[spot[0]] + spot[1]


def spot_of(read: StandInText, character: int) -> Spot:
    """The spot of a character of the template's own text."""
    starts = [0, *(end for _, end in read.spans)]
    piece = bisect_right(starts, character) - 1
    return piece, character - starts[piece]


def place(layout: Layout, texts: Mapping[SlotKey, str], roles: Sequence[str], text: str) -> Placed | None:
    """`text` laid over the layout with the row's own `texts`; None when it is not exactly those from `layout.compared` to the end.

    Every character of it is compared, so what the layout says of the answers holds for this row.
    """
    piece, cut = layout.compared
    for change in VARIANTS:
        values = [slot.encode(_changed(change, slot.key, texts, roles)) for slot in layout.slots]
        tail = [layout.glue[piece][cut:], *itertools.chain.from_iterable(zip(values[piece:], layout.glue[piece + 1 :], strict=True))]
        joined = "".join(tail)
        if joined == text or ((piece or cut) and text.endswith(joined)):
            return _placed(layout, values, len(text))
    return None


def _changed(change: Callable[[str, str], str], key: SlotKey, texts: Mapping[SlotKey, str], roles: Sequence[str]) -> str:
    return change(texts[key], roles[key[0]]) if key[0] >= 0 else texts[key]


def _placed(layout: Layout, values: Sequence[str], length: int) -> Placed:
    lengths = [len(part) for pair in zip(layout.glue, [*values, ""], strict=True) for part in pair]
    edges = list(itertools.accumulate(lengths, initial=length - sum(lengths)))
    spans = list(itertools.pairwise(edges))
    return Placed(layout=layout, glue_starts=tuple(start for start, _ in spans[::2]), slot_spans=tuple(spans[1::2][: len(values)]))
