"""One row as text for a terminal: what became of it, as it stands in the file, its text, and a table of its tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.data_verbs.paint import Paint
from launcher.data_verbs.report_text import marked_text
from launcher.run_folder import shown as short_path

HEADINGS = ("position", "id", "weight", "token")


def render_row(shown: Mapping[str, Any], paint: Paint) -> str:
    """The answer of `ftcore.data_report.show` as text."""
    place = short_path(Path(shown["file"])) + (f":{shown['line']}" if shown["line"] else "")
    lines = [paint.title(f"row {shown['row']} of {shown['set']} ({shown['key']}): {place}")]
    lines += [paint.plain(f"  format    {shown['format']}, {shown['format_reason']}")] if shown["format"] else []
    lines += [paint.plain(f"  template  {shown['template']['described']}")] if shown["template"] else []
    lines += [_outcome(shown, paint)]
    for problem in shown["problems"]:
        lines += [paint.wrong(f"  {problem['what']}")] + ([paint.plain(f"    fix: {problem['fix']}")] if problem["fix"] else [])
    if shown["raw"]:
        lines += ["", paint.title("the line in the file"), paint.plain(shown["raw"])]
    if shown["value"] is not None:
        lines += ["", paint.title("as it stands in the file"), paint.plain(json.dumps(shown["value"], indent=1, ensure_ascii=False))]
    count = len(shown["samples"])
    for number, sample in enumerate(shown["samples"], start=1):
        supervised = sum(sample["supervised"])
        which = f"sample {number} of {count}" if count > 1 else "the whole row" if shown["outcome"] == "dropped" else "the sample"
        lines += ["", paint.title(f"{which}: {len(sample['ids']):,} tokens, {supervised:,} supervised"), marked_text(sample["segments"], paint)]
        lines += ["", *token_table(sample, paint)]
    return "\n".join(lines)


def _outcome(shown: Mapping[str, Any], paint: Paint) -> str:
    if shown["outcome"] == "bad":
        return paint.wrong(f"  can't be used: {shown['reason']}" if not shown["problems"] else "  can't be used:")
    tokens = f"{shown['tokens']:,} tokens"
    text = f"  {shown['outcome']}: {shown['reason']}" if shown["reason"] else f"  {shown['outcome']}"
    return paint.plain(f"{text} ({tokens})") if shown["outcome"] == "kept" else paint.warning(f"{text} ({tokens})")


def token_table(sample: Mapping[str, Any], paint: Paint) -> Iterator[str]:
    """A line a token: its position in the sample (which is its position id), its id, what it counts in the loss, its text."""
    rows = [
        (str(position), str(token), f"{weight:g}" if weight else "-", json.dumps(text, ensure_ascii=False))
        for position, token, weight, text in zip(sample["positions"], sample["ids"], sample["weights"], sample["texts"], strict=True)
    ]
    widths = [max(len(row[column]) for row in [HEADINGS, *rows]) for column in range(3)]
    yield paint.faint(_cells(HEADINGS, widths) + HEADINGS[3])
    for row, weight in zip(rows, sample["weights"], strict=True):
        yield _cells(row, widths) + (paint.learned(row[3]) if weight else paint.plain(row[3]))


def _cells(row: tuple[str, ...], widths: list[int]) -> str:
    return "".join(f"{cell:>{width}}  " for cell, width in zip(row, widths, strict=False))
