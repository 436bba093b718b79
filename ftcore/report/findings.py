"""`python -m ftcore.report.findings RUN`: RUN/findings.json as a page, RUN/findings.html."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ftcore.process import run_dir_argument, run_main
from ftcore.report.blocks import Block, Cell, Column, Facts, Prose, Section, Table
from ftcore.report.page import render_page
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir, write_atomic

_TONES = {"ended": "wrong", "wrong": "wrong", "slow": "warn", "note": "soft"}
_WORDS = {"ended": "it ended the run", "wrong": "it goes wrong", "slow": "it costs time", "note": "worth knowing"}
GIB = 2**30


def main(run_dir: RunDir) -> None:
    """Writes the page. Raises CheckpointError when RUN/findings.json can't be read."""
    path = run_dir.path / "findings.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        page = findings_page(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} can't be read: {error}", where="findings.json", fix="ftlaunch doctor RUN writes it anew") from error
    write_atomic(run_dir.path / "findings.html", page)


def findings_page(found: dict[str, Any]) -> str:
    """The page of what `ftlaunch doctor RUN` found. Raises KeyError or TypeError for what is no such record."""
    worst = next(iter(found["findings"]), {"severity": "note"})["severity"]
    is_healthy = all(each["severity"] == "note" for each in found["findings"])
    sections = [_section(each) for each in found["findings"]]
    lead = "Nothing stands out: the run is healthy, by what it recorded." if not sections else ""
    looked = Facts(rows=tuple(("looked at", text) for text in found["looked_at"]) + tuple(("not looked at", text) for text in found["missing"]))
    total = f" of {found['total_updates']}" if found["total_updates"] else ""
    subtitle = f"attempt {found['attempt']}, update {found['update']}{total}"
    tone = "good" if is_healthy else _TONES[worst]
    return render_page(
        f"What happened to {found['run']}",
        [*sections, Section(title="Looked at", blocks=(looked,), lead=lead)],
        subtitle=subtitle,
        state=found["state"],
        tone=tone,
    )


def _section(finding: dict[str, Any]) -> Section:
    blocks: list[Block] = [Prose(text=finding["what"], tone=_TONES[finding["severity"]]), Facts(rows=tuple(_facts(finding)))]
    blocks += [Prose(text=text, tone="soft") for text in finding["details"]]
    if finding["causes"]:
        blocks.append(_list("Why", "", finding["causes"]))
    if finding["evidence"]:
        rows = tuple((each["what"], each["file"]) for each in finding["evidence"])
        blocks.append(Table(columns=(Column(name="Evidence", is_long=True), Column(name="File", is_long=True)), rows=rows, name="evidence"))
    if finding["items"]:
        blocks.append(_items(finding["items"]))
    if finding["knobs"]:
        columns = (
            Column(name="What helps, cheapest first"),
            Column(name="It gives", is_long=True),
            Column(name="It costs", is_long=True),
            Column(name="Taken by"),
        )
        blocks.append(Table(columns=columns, rows=tuple(_knob(each) for each in finding["knobs"]), name="what helps"))
    if finding["go_on"]:
        blocks.append(_list("Go on", "command lines", finding["go_on"]))
    return Section(title=finding["kind"].replace("_", " ").capitalize(), blocks=tuple(blocks), lead=_WORDS[finding["severity"]])


def _facts(finding: dict[str, Any]) -> list[tuple[str, str]]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(finding["time"])) if finding["time"] else ""
    rank = "" if finding["rank"] is None else str(finding["rank"])
    rows = [("rank", rank), ("host", finding["host"]), ("update", str(finding["update"] or "")), ("phase", finding["phase"]), ("when", when)]
    return [row for row in rows if row[1]]


def _list(head: str, name: str, texts: list[str]) -> Table:
    return Table(columns=(Column(name=head, is_long=True),), rows=tuple((text,) for text in texts), name=name or head)


def _items(items: list[dict[str, Any]]) -> Table:
    columns = (Column(name="Ledger of a rank, GiB"), *(Column(name=name, is_number=True) for name in ("planned", "usual", "here")))
    rows = tuple((each["name"], *(_gib(each[key]) for key in ("predicted_bytes", "usual_bytes", "here_bytes"))) for each in items)
    return Table(columns=columns, rows=rows, name="memory ledger")


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:.3f}"


def _knob(knob: dict[str, Any]) -> tuple[str | Cell, ...]:
    enough = {True: Cell(text="enough by itself", tone="good"), False: Cell(text="not enough by itself", tone="warn"), None: ""}[knob["is_enough"]]
    gives: str | Cell = Cell(text=f"{knob['gives']}; {enough.text}", tone=enough.tone) if isinstance(enough, Cell) else knob["gives"]
    return knob["options"], gives, knob["costs"], "a resume" if knob["may_resume"] else "a new run"


if __name__ == "__main__":
    run_main(main, run_dir_argument(sys.argv[1:]))
