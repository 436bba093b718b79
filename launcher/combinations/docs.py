"""docs/compatibility.md from the table: `python -m launcher.combinations.docs > docs/compatibility.md`; a test fails when the file is stale."""

from __future__ import annotations

import sys
from itertools import product

from launcher.combinations.combination import AXIS, Value
from launcher.combinations.table import PLANES, REFUSED, UNTESTED, WORKS, Cell, Entry, cells
from launcher.combinations.verdict import SHOWN_BY

HEAD = f"""# What goes with what

Written by `python -m launcher.combinations.docs > docs/compatibility.md`; change launcher/combinations/table.py instead.

Each table says what becomes of a pair or triple of choices; `docs/spec.md` says which key makes each choice.

- **works**: trained and resumed in {SHOWN_BY}, as part of some combination, on two ranks over gloo on CPUs: two updates with
  finite losses and gradient norms equal to those of the plain combination (stage 1, fp32, nothing offloaded) up to rounding, every trained
  parameter changed, and a second update after a resume that leaves the same checkpoint to the bit.
- **refused [n]**: `ftlaunch validate`, `plan` and `launch` say why, and name what works in its place; the reasons are below.
- **untested [n]**: it may work, and every verb that reads the spec warns.

A spec lies in one cell of each table, and its verdict is that of the worst one. An empty cell, or a row that is not there (`full` on a base in 4
bits), can't be said in a spec. fp16 ran where DeepSpeed was told that the CPU has it. Nothing here was run over NCCL.
"""


def render_compatibility_docs() -> str:
    """The page: the tables, then the reasons."""
    tables = "".join(_table(plane) for plane in PLANES if not _always_works(plane))
    always = "".join(f"- {_title(plane)}\n" for plane in PLANES if _always_works(plane))
    refused, untested = _reasons(REFUSED, 1), _reasons(UNTESTED, 1 + len(REFUSED))
    return f"{HEAD}{tables}\n## Every combination works\n\n{always}\n## Refused\n\n{refused}\n## Untested\n\n{untested}"


def _table(plane: tuple[str, ...]) -> str:
    *down, across = plane
    by_values = {tuple(cell.values.values()): cell for cell in cells(plane)}
    columns = AXIS[across].values
    head = [*(AXIS[axis].title for axis in down), *(_said(value) for value in columns)]
    lines = [f"\n## {_title(plane)}\n", _line(head), _line(["---"] * len(head))]
    for values in product(*(AXIS[axis].values for axis in down)):
        row = [by_values.get((*values, value)) for value in columns]
        if any(row):
            lines.append(_line([*(f"**{_said(value)}**" for value in values), *(_word(cell) for cell in row)]))
    return "\n".join(lines) + "\n"


def _title(plane: tuple[str, ...]) -> str:
    return " × ".join(AXIS[axis].title for axis in plane)


def _always_works(plane: tuple[str, ...]) -> bool:
    return all(cell.word == WORKS for cell in cells(plane))


def _line(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _said(value: Value) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _word(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.word == WORKS:
        return WORKS
    numbers = ", ".join(str((*REFUSED, *UNTESTED).index(entry) + 1) for entry in cell.entries)
    return f"{cell.word} [{numbers}]"


def _reasons(entries: tuple[Entry, ...], first: int) -> str:
    return "".join(f"{number}. {_met(entry)}: {_reason(entry)}.\n" for number, entry in enumerate(entries, start=first))


def _met(entry: Entry) -> str:
    return ", ".join(f"{AXIS[axis].title} {' or '.join(_said(value) for value in values)}" for axis, values in entry.when.items())


def _reason(entry: Entry) -> str:
    met = {axis: " or ".join(_said(value) for value in values) for axis, values in entry.when.items()}
    return entry.reason.format(**met)


if __name__ == "__main__":
    sys.stdout.write(render_compatibility_docs())
