"""What `ftlaunch data` prints: histograms, marks and colours, reports, rows, caches; and which options go together."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from launcher.data_verbs.cache_text import render_collected
from launcher.data_verbs.histogram import histogram_lines
from launcher.data_verbs.paint import Paint, takes_colours
from launcher.data_verbs.prepared_text import render_prepared
from launcher.data_verbs.report_text import counted, marked_text, refusal_lines, render_report
from launcher.data_verbs.row_text import render_row
from launcher.progress import Progress, stage_line
from tests.unit.test_data_report import EVIL, report_of
from tests.unit.test_progress import Terminal

PLAIN, COLOURED = Paint(coloured=False), Paint(coloured=True)


def bins(*rows: tuple[int, int | None, int, int]) -> list[dict[str, Any]]:
    return [dict(zip(("start", "end", "kept", "dropped"), row, strict=True)) for row in rows]


def test_a_histogram() -> None:
    lines = histogram_lines(bins((0, 10, 40, 0), (10, 20, 1, 0), (20, 21, 0, 0), (21, 30, 0, 20), (30, None, 1, 1)), 20, 16)
    assert lines == [
        "  0-9 ████████████████ 40",
        "10-19 ▍ 1",
        "   20",
        "------ data.max_length 20 ---",
        "21-29 ░░░░░░░░ 20 dropped",
        "  30+ ▍░ 1, 1 dropped",
    ]
    assert histogram_lines([], 20, 16) == []
    assert histogram_lines(bins((0, 10, 1, 0)), 1000, 16)[-1].strip("- ") == "data.max_length 1,000"


def test_marks_without_colours_and_colours_without_marks() -> None:
    segments = [{"text": "q\n", "weight": 0.0}, {"text": "a\nb", "weight": 1.0}, {"text": "c", "weight": 0.5}]
    assert marked_text(segments, PLAIN) == "q\n[[a\nb]][[c]]×0.5"
    # A colour ends with its line.
    assert marked_text(segments, COLOURED) == "q\n\x1b[32ma\x1b[0m\n\x1b[32mb\x1b[0m\x1b[32mc\x1b[0m×0.5"
    assert marked_text(segments, PLAIN, 3).startswith("q\n[[a]]\n... cut here")
    assert "\x1b" not in PLAIN.plain(EVIL) + PLAIN.title(EVIL) + PLAIN.learned(EVIL) and "\\x1b[31m" in COLOURED.learned(EVIL)


@pytest.mark.parametrize(
    ("stream", "environment", "colours"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(stream: io.StringIO, environment: dict[str, str], colours: bool) -> None:
    assert takes_colours(stream, environment) is colours


def test_the_report_as_text(tmp_path: Path) -> None:
    facts = json.loads(json.dumps(asdict(report_of(tmp_path))))
    facts["mix"] = {"train": {"samples": 0.25, "tokens": 0.5, "draws": 10, "asked": "weight 0.25"}}
    text = render_report(facts, PLAIN, width=100)
    assert "\x1b" not in text
    for words in (
        "8 rows -> 3 samples; 3 dropped: longer than data.max_length; 1 dropped: bad; 1 dropped: without a supervised token; 1 cut to data.max_length",
        "11,035 read = 35 kept + 11,000 dropped",
        "row 10 (f.jsonl, 3,000 tokens) dropped: longer than data.max_length",
        "row 30 (f.jsonl, line 30, 7 tokens) dropped: without a supervised token (roles: system user)",
        "row 2 (f.jsonl, line 2) bad: <script>",
        "1 row without a supervised token: row 30",
        "2 samples with weights other than 1, 0.5 to 1; sum over all tokens 28",
        "1 row repeats an earlier one: row 3 = row 4",
        "row 12: 3,002 (dropped)",
        "refused     f.jsonl:2: row 2: <script>",
        " 3 dropped",
        "train: 25.0 % of the samples, 50.0 % of the tokens (weight 0.25); an epoch draws 10 of its 3 samples",
        "eval and train: 3 held-out rows are trained on, 0 more with their prompt alone: row 1 = row 1",
        "--- eval, row 4: 4 tokens, 2 supervised ---",
        "note: a note",
        "note        touching <b>",
        "files       2: f.jsonl, <script>",
    ):
        assert words in text, words
    facts["refusals"] = [{"what": "no weight", "where": "b", "fix": "give one", "file": "", "line": None}]
    facts["overlaps"][0] |= {"rows": 0, "prompts": 0, "pairs": []}
    facts["sets"]["eval"] |= {"rows": 0, "rendered": []}
    text = render_report(facts, COLOURED, width=60)
    alike = [{"what": "no tools", "where": f"row {row}", "fix": "none", "file": "f", "line": row} for row in range(1, 9)]
    also = ", ".join(f"row {row} (line {row})" for row in range(2, 7))
    assert list(refusal_lines(alike[:7])) == [f"f:1: row 1: no tools (none); also {also} and 1 more"]
    assert list(refusal_lines(alike[:1])) == ["f:1: row 1: no tools (none)"]
    assert "b: no weight (give one)" in text and "no row of the one is in the other" in text and "\x1b[1m" in text and "\x1b[31mred" not in text
    assert (counted(1, "row"), counted(1000, "row")) == ("1 row", "1,000 rows")


SAMPLE = {
    "segments": [{"text": "hi", "weight": 0.0}, {"text": "yo", "weight": 0.5}],
    "ids": [3, 40], "positions": [0, 1], "texts": ["hi", 'y"o'], "supervised": [False, True], "weights": [0.0, 0.5],
}  # fmt: skip
ROW: dict[str, Any] = {
    "row": 7, "set": "train", "key": "data.train", "file": "a.jsonl", "line": 9, "format": "messages", "format_reason": "seen", "raw": "",
    "template": {"described": "own"}, "outcome": "kept", "reason": "", "tokens": 2, "value": {"a": "é"}, "samples": [SAMPLE], "problems": [],
}  # fmt: skip


def test_a_row_as_text() -> None:
    lines = render_row(ROW, PLAIN).splitlines()
    assert lines[0] == "row 7 of train (data.train): a.jsonl:9" and "  kept (2 tokens)" in lines and ' "a": "é"' in lines
    assert "the sample: 2 tokens, 1 supervised" in lines and "hi[[yo]]×0.5" in lines
    assert lines[-3:] == ["position  id  weight  token", '       0   3       -  "hi"', '       1  40     0.5  [["y\\"o"]]']
    split = render_row({**ROW, "outcome": "split", "reason": "2 samples", "samples": [SAMPLE, SAMPLE]}, PLAIN)
    assert "split: 2 samples (2 tokens)" in split and "sample 2 of 2" in split
    dropped = render_row({**ROW, "outcome": "dropped", "reason": "too long"}, PLAIN)
    assert "dropped: too long" in dropped and "the whole row: 2 tokens" in dropped
    problem = {"what": "no content", "where": "", "fix": "write one", "file": "", "line": None}
    bad = {**ROW, "outcome": "bad", "samples": [], "value": None, "raw": '{"a', "template": None, "problems": [problem], "line": None}
    assert render_row(bad, PLAIN).splitlines()[2:] == ["  can't be used:", "  no content", "    fix: write one", "", "the line in the file", '{"a']
    assert "can't be used: overlong is error" in render_row({**ROW, "outcome": "bad", "reason": "overlong is error"}, PLAIN)


def test_what_was_prepared_as_text(tmp_path: Path) -> None:
    (tmp_path / "o.jsonl").write_text("{}\n")
    facts = {"key": "data.train", "rows": 3, "samples": 2, "dropped": {"overlong": 1}, "truncated": 0, "lost_ends": 0, "split": 0, "bytes": 1500}
    facts |= {"tokens_read": 30, "tokens": 22, "repeated_tokens": 2, "dropped_tokens": 10, "supervised_tokens": 9}
    facts |= {"arrow": str(tmp_path / "a.arrow"), "outcomes": str(tmp_path / "o.jsonl")}
    text = render_prepared({"sets": {"train": facts}, "streamed": ["more"], "seconds": 1.26})
    assert text.splitlines() == [
        "train (data.train): 3 rows -> 2 samples; 1 dropped: longer than data.max_length",
        "  30 read = 22 kept - 2 repeated by splits + 10 dropped; 9 supervised",
        f"  {tmp_path}/a.arrow (1.5 kB)",
        f"  rows not kept as they are: {tmp_path}/o.jsonl",
        "more: streamed, so there is nothing to prepare",
        "prepared in 1.3 s",
    ]


def test_caches_as_text() -> None:
    entry = {"key": "a" * 64, "bytes": 2000, "used": 0.0, "made_of": "t.jsonl", "samples": 1200, "damaged": "", "state": "deleted"}
    found = {"entries": [entry, {**entry, "state": "in use", "damaged": "cut", "made_of": ""}], "dry_run": True, "freed_bytes": 2000}
    lines = render_collected(found, "/c", lists_only=False).splitlines()
    assert lines[1].split()[2:] == ["2.0", "kB", "1,200", "a" * 12, "t.jsonl", "would", "go"] and lines[2].endswith("?        in use, damaged: cut")
    assert lines[3] == "1 of 2 would be cleared away, 2.0 kB of 4.0 kB in /c"
    assert render_collected({**found, "dry_run": False}, "/c", lists_only=True).endswith("4.0 kB in /c; --older-than or --all clears away")
    assert "cleared away, 2.0 kB" in render_collected({**found, "dry_run": False}, "/c", lists_only=False)
    assert render_collected({**found, "entries": []}, "/c", lists_only=True) == "no prepared data in /c"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gc", "--older-than", "30"], "write 30d or 30h"),
        (["gc", "--older-than", "soon"], "is no duration"),
        (["gc", "--older-than", "3d", "--all"], "both given"),
        (["gc", "--dry-run"], "no effect"),
        (["show", "--row", "0"], "0 is not in the range"),
        (["show"], "Missing option '--row'"),
        (["show", "--row", "1", "--set", "a", "--set", "b"], "one set is looked at at a time"),
        (["report", "a.yaml", "b.yaml"], "one SPEC is reported on at a time, 2 were given"),
        (["nothing"], "No such command"),
    ],
)
def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["data", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_report_needs_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["data", "report", "-o", "file/inside"]) == 5
    assert "can't write into file/inside" in capsys.readouterr().err


def test_a_terminal_gets_a_bar() -> None:
    # E10: a long preparation shows how far it is.
    event = {"event": "progress", "stage": "prepare", "done": 1500, "total": 6000, "text": "data.train"}
    assert stage_line(event, bar=True) == f"prepare {'█' * 6}{'░' * 18}  25 % 1,500/6,000: data.train"
    assert stage_line(event) == "prepare 1,500/6,000: data.train"
    out = Terminal()
    Progress(out).show(event)
    assert "25 %" in out.getvalue()
