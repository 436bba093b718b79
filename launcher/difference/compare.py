"""Two sides next to each other: every value that differs, as data and as text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from launcher.difference.sides import SECTIONS, Side

MISSING = "(none)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A value that differs; None on a side that has none."""

    key: str
    a: Any
    b: Any
    a_source: str = ""
    """Who set it, for keys of the spec."""
    b_source: str = ""


def compare(a: Side, b: Side) -> dict[str, list[Change]]:
    """Section -> what differs, in the order of side `a`; only sections that both sides have, and results only when there are any."""
    both = [name for name in SECTIONS if name in a.values and name in b.values]
    return {name: _changes(a, b, name) for name in both if name != "results" or a.values[name] or b.values[name]}


def _changes(a: Side, b: Side, section: str) -> list[Change]:
    one, other = a.values[section], b.values[section]
    changes = []
    for key in dict.fromkeys([*one, *other]):
        # A key that an older ftlaunch did not have, left at its default, is no difference.
        is_newer = (key not in one and b.sources.get(key) == "default") or (key not in other and a.sources.get(key) == "default")
        if one.get(key) != other.get(key) and not (section == "spec" and is_newer):
            told = (a.sources.get(key, ""), b.sources.get(key, "")) if section == "spec" else ("", "")
            changes.append(Change(key=key, a=one.get(key), b=other.get(key), a_source=told[0], b_source=told[1]))
    return changes


def as_data(a: Side, b: Side) -> dict[str, Any]:
    """The JSON form: names, whether all but the results agrees, and the changes by section."""
    found = compare(a, b)
    same = not any(changes for name, changes in found.items() if name != "results")
    notes = [f"{side.name}: {note}" for side in (a, b) for note in side.notes]
    return {
        "a": a.name,
        "b": b.name,
        "same": same,
        "sections": {name: [asdict(change) for change in changes] for name, changes in found.items()},
        "notes": notes,
    }


def render(a: Side, b: Side) -> str:
    """The text for a terminal."""
    lines = [f"a: {a.name}", f"b: {b.name}"]
    for name, changes in compare(a, b).items():
        lines += ["", f"{name}: {'the same' if not changes else f'{len(changes)} differ' if len(changes) > 1 else '1 differs'}"]
        for change in changes:
            lines += [f"  {change.key}", *_list_lines(change)] if _are_lists(change) else [f"  {change.key}", *_value_lines(change)]
    notes = [f"{side.name}: {note}" for side in (a, b) for note in side.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _value_lines(change: Change) -> list[str]:
    return [f"    {side}: {_shown(value)}{f'   ({source})' if source else ''}" for side, value, source in _both(change)]


def _list_lines(change: Change) -> list[str]:
    """Of two lists what only one of them has; their whole values when that is nothing."""
    own = [("a", [item for item in change.a if item not in change.b]), ("b", [item for item in change.b if item not in change.a])]
    lines = [f"    only {side}: {', '.join(map(str, items))}" for side, items in own if items]
    return lines or _value_lines(change)


def _both(change: Change) -> tuple[tuple[str, Any, str], ...]:
    return ("a", change.a, change.a_source), ("b", change.b, change.b_source)


def _are_lists(change: Change) -> bool:
    return all(isinstance(value, list) and all(isinstance(item, str) for item in value) for value in (change.a, change.b)) and not change.a_source


def _shown(value: Any) -> str:
    return MISSING if value is None else value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
