"""What is not the same in several runs: values of the spec, code, data and environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ftcore.spec.errors import FtError
from ftcore.spec.report_request import Difference
from launcher.difference.sides import SECTIONS, Side, read_side

COMPARED = tuple(name for name in SECTIONS if name != "results")


def differences_of(folders: Sequence[Path]) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """(every value that differs, what the runs can't tell)."""
    sides: list[Side] = []
    notes: list[str] = []
    for folder in folders:
        try:
            side = read_side(folder)
        except FtError as error:
            side = Side(name=str(folder), is_run=True, values={}, notes=(error.problems[0].what,))
        sides.append(side)
        notes += [f"{folder.name}: {note}." for note in side.notes]
    return tuple(each for section in COMPARED for each in _of_section(sides, section)), tuple(notes)


def _of_section(sides: Sequence[Side], section: str) -> Iterator[Difference]:
    known = [side for side in sides if section in side.values]
    for key in dict.fromkeys(key for side in known for key in side.values[section]):
        values = [side.values[section].get(key) for side in known]
        if all(value == values[0] for value in values) or (section == "spec" and _is_newer(known, key)):
            continue
        yield Difference(section=section, key=key, values=tuple(_shown(side.values.get(section, {}).get(key)) for side in sides))


def _is_newer(sides: Sequence[Side], key: str) -> bool:
    """Whether it is a key that only some of the runs' versions had, and these left at its default."""
    having = [side for side in sides if key in side.values["spec"]]
    values = [side.values["spec"][key] for side in having]
    return len(having) < len(sides) and all(value == values[0] for value in values) and all(side.sources.get(key) == "default" for side in having)


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
