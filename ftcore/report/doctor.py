"""What `ftlaunch doctor` found of a run, shortly: RUN/findings.json, which a launch that fails leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ftcore.report.blocks import Block, Facts, Folded, Prose, Section
from ftcore.report.numbers import kind_name
from ftcore.report.run_view import RunView

TITLE = "What the doctor found"
SHOWN = 3
"""Findings that are seen at once; the others behind a line."""
MOST_WAYS = 4
TONES = {"ended": "wrong", "wrong": "wrong", "slow": "warn", "note": "soft"}


def doctor(view: RunView) -> Section | None:
    """The part on what went wrong; None where nobody looked at the newest attempt, or nothing was found."""
    record = read_findings(view)
    found = [each for each in record.get("findings", ()) if isinstance(each, dict) and each.get("what")]
    if not found:
        return None
    shown = [block for each in found[:SHOWN] for block in _finding(each)]
    left = [block for each in found[SHOWN:] for block in _finding(each)]
    more = (Folded(summary=f"{len(found) - SHOWN} more", blocks=tuple(left)),) if left else ()
    total = f" of {record['total_updates']}" if record.get("total_updates") else ""
    return Section(title=TITLE, blocks=(*shown, *more), lead=f"In attempt {record.get('attempt')}, at update {record.get('update')}{total}.")


def read_findings(view: RunView) -> dict[str, Any]:
    """RUN/findings.json where it is of the newest attempt; empty where it is not, is not there or can't be read."""
    try:
        record = json.loads((view.record.run_dir.path / "findings.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    newest = view.attempts[-1].number if view.attempts else 0
    is_right = isinstance(record, dict) and isinstance(record.get("findings"), list) and record.get("attempt") == newest
    return record if is_right else {}


def _finding(finding: Mapping[str, Any]) -> Iterator[Block]:
    yield Prose(text=f"{kind_name(str(finding.get('kind') or 'finding'))}: {finding['what']}", tone=TONES.get(str(finding.get("severity")), ""))
    rows = [("why", cause) for cause in _texts(finding, "causes")[:1]]
    knobs = finding.get("knobs")
    ways = [_knob(each) for each in (knobs if isinstance(knobs, list) else []) if isinstance(each, dict) and each.get("options")]
    rows += [("what helps" if number == 0 else "or", way) for number, way in enumerate(ways[:MOST_WAYS])]
    rows += [("go on" if number == 0 else "", line) for number, line in enumerate(_texts(finding, "go_on"))]
    if rows:
        yield Facts(rows=tuple(rows))


def _knob(knob: Mapping[str, Any]) -> str:
    said = "; ".join(str(knob[key]) for key in ("gives", "costs") if knob.get(key))
    is_enough = knob.get("is_enough")
    enough = "; enough by itself" if is_enough is True else "; not enough by itself" if is_enough is False else ""
    return f"{knob['options']}: {said}{enough}" if said else str(knob["options"])


def _texts(finding: Mapping[str, Any], key: str) -> list[str]:
    found = finding.get(key)
    return [text for text in found if isinstance(text, str) and text] if isinstance(found, list) else []
