"""What a page is made of: plain values that the frame knows how to show. All text in them is escaped when it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An entry of a chart's legend."""

    name: str
    colour: str
    """A name of `palette.COLOURS`."""
    shape: str = "line"
    """line, faint, dashed, band, box or dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing, made by `charts`."""

    kind: ClassVar[str] = "chart"
    title: str
    svg: str
    """The drawing; it is safe to put into a page as it is."""
    narrow: str = ""
    """The same for narrow screens; empty: `svg` is narrow enough."""
    legend: tuple[Key, ...] = ()
    note: str = ""
    """A line below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """Drawings, and small tables, side by side where there is room."""

    kind: ClassVar[str] = "charts"
    charts: tuple[Chart | Table, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """A paragraph."""

    kind: ClassVar[str] = "prose"
    text: str
    tone: str = ""
    """Empty, soft, good, warn or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number that is seen first."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Numbers side by side."""

    kind: ClassVar[str] = "tiles"
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names with what is said of each."""

    kind: ClassVar[str] = "facts"
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    is_number: bool = False
    """Numbers stand right."""
    is_long: bool = False
    """Its text may break anywhere."""
    mark: str = ""
    """A colour's name: a dot before its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A field of a table with more to it than its text."""

    text: str
    tone: str = ""
    mark: str = ""
    """A colour's name: a dot before the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under columns; a wide one scrolls in itself."""

    kind: ClassVar[str] = "table"
    columns: tuple[Column, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    name: str = ""
    """What it is of, also for readers that can't see it."""
    note: str = ""
    is_pinned: bool = False
    """The first column stays where the others scroll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Text as it stands, in a fixed-width face."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Blocks behind a line that opens them."""

    kind: ClassVar[str] = "folded"
    summary: str
    blocks: tuple[Block, ...]
    is_open: bool = False


Block = Chart | Charts | Prose | Tiles | Facts | Table | Text | Folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page with its heading."""

    title: str
    blocks: tuple[Block, ...] = field(default_factory=tuple)
    lead: str = ""
    """One line below the heading: what is to be seen."""
