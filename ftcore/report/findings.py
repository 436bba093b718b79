"""`python -m ftcore.report.findings RUN`: RUN/findings.json as a page, RUN/findings.html."""

from __future__ import annotations

import json
import sys
from typing import Any

from ftcore.process import run_dir_argument, run_main
from ftcore.report.blocks import Block, Cell, Column, Facts, Prose, Section, Table
from ftcore.report.numbers import kind_name
from ftcore.report.page import render_page
from ftcore.spec.errors import CheckpointError
from ftcore.spec.recorded import local_time
from ftcore.spec.run_dir import RunDir, write_atomic

_TONES = {"ended": "wrong", "wrong": "wrong", "slow": "warn", "note": "soft"}
_WORDS = {"ended": "It ended the run.", "wrong": "It goes wrong.", "slow": "It costs time.", "note": "Worth knowing."}
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
    looked = Facts(rows=(*_listed("looked at", found["looked_at"]), *_listed("not looked at", found["missing"])))
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
        blocks.append(Facts(rows=_listed("why", finding["causes"])))
    if finding["evidence"]:
        rows = tuple((each["what"], each["file"]) for each in finding["evidence"])
        blocks.append(Table(columns=(Column(name="what", is_long=True), Column(name="file")), rows=rows, name="Evidence"))
    if finding["items"]:
        blocks.append(_items(finding["items"]))
    if finding["knobs"]:
        columns = (Column(name="change"), Column(name="it gives", is_long=True), Column(name="it costs", is_long=True), Column(name="taken by"))
        blocks.append(Table(columns=columns, rows=tuple(_knob(each) for each in finding["knobs"]), name="What helps, cheapest first"))
    if finding["go_on"]:
        blocks.append(Facts(rows=_listed("go on", finding["go_on"])))
    return Section(title=kind_name(finding["kind"]), blocks=tuple(blocks), lead=_WORDS[finding["severity"]])


def _listed(name: str, texts: list[str]) -> tuple[tuple[str, str], ...]:
    """Several texts of one name, which stands before the first."""
    return tuple((name if number == 0 else "", text) for number, text in enumerate(texts))


def _facts(finding: dict[str, Any]) -> list[tuple[str, str]]:
    when = local_time(finding["time"] or 0.0)
    rank = "" if finding["rank"] is None else str(finding["rank"])
    rows = [("rank", rank), ("host", finding["host"]), ("update", str(finding["update"] or "")), ("phase", finding["phase"]), ("when", when)]
    return [row for row in rows if row[1]]


def _items(items: list[dict[str, Any]]) -> Table:
    columns = (Column(name="item"), *(Column(name=name, is_number=True) for name in ("planned", "usual", "here")))
    rows = tuple((each["name"], *(_gib(each[key]) for key in ("predicted_bytes", "usual_bytes", "here_bytes"))) for each in items)
    return Table(columns=columns, rows=rows, name="Ledger of a rank, GiB")


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:.3f}"


def _knob(knob: dict[str, Any]) -> tuple[str | Cell, ...]:
    enough = {True: Cell(text="enough by itself", tone="good"), False: Cell(text="not enough by itself", tone="warn"), None: ""}[knob["is_enough"]]
    gives: str | Cell = Cell(text=f"{knob['gives']}; {enough.text}", tone=enough.tone) if isinstance(enough, Cell) else knob["gives"]
    return knob["options"], gives, knob["costs"], "a resume" if knob["may_resume"] else "a new run"


if __name__ == "__main__":
    run_main(main, run_dir_argument(sys.argv[1:]))
