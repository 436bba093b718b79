"""What progress looks like on a terminal and in a file, and that an output that went away stops nothing."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest

from ftcore.spec.run_record import read_run, totals
from launcher.progress import Progress, clock_time, number, stage_line, update_line
from launcher.record import Record
from launcher.summary import render_summary
from tests.unit.made_runs import add_lines, line, made_run


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def update(k: int, total: int = 100) -> dict[str, object]:
    rest = {"loss": 1.0, "learning_rate": 1e-5, "supervised_tokens_per_s": 1000.0, "peak_memory_bytes": 3 * 2**29, "seconds": 0.11}
    return {"event": "update", "update": k, "total_updates": total, "epoch": k / 10, **rest}


def test_a_file_gets_a_line_now_and_then() -> None:
    now, out = [0.0], io.StringIO()
    progress = Progress(out, clock=lambda: now[0])
    for k in range(1, 101):
        progress.show(update(k))
        now[0] += 0.11
    numbers = [int(line.split()[1].split("/")[0]) for line in out.getvalue().splitlines()]
    assert numbers == [1, 47, 93, 100]
    assert "ETA 0:00:06" in out.getvalue().splitlines()[1]


def test_a_held_back_line_is_shown_before_another_kind() -> None:
    out = io.StringIO()
    progress = Progress(out, clock=lambda: 0.0)
    progress.show(update(1))
    progress.show(update(2))
    progress.show(update(3))
    progress.show({"event": "note", "text": "a note"})
    progress.show({"event": "unknown to this version"})
    assert [line[:11].rstrip() for line in out.getvalue().splitlines()] == ["update 1/10", "update 3/10", "a note"]


def test_a_terminal_gets_one_line_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    now = [0.0]
    progress = Progress(out, clock=lambda: now[0])
    for k in (1, 2, 3):
        progress.show(update(k))
        now[0] += 1
    progress.show({"event": "progress", "stage": "save", "done": 3, "total": 3, "text": "saving"})
    progress.flush()
    lines = out.getvalue().split("\n")
    assert [part.count("\r\x1b[K") for part in lines] == [3, 1, 0]
    assert all(len(text) <= 39 for part in lines for text in part.split("\r\x1b[K"))


def test_an_output_that_went_away_is_no_error() -> None:
    read_handle, write_handle = os.pipe()
    os.close(read_handle)
    with open(write_handle, "w", buffering=1) as out:
        progress = Progress(out)
        progress.line("x")
        progress.show(update(1))
        with pytest.raises(BrokenPipeError):
            out.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), write_handle)


def test_odd_values_are_shown_as_they_are() -> None:
    shown = update_line({"update": 1, "total_updates": 2, "loss": float("nan"), "learning_rate": None}, None)
    assert shown == "update 1/2  loss nan  lr -  ETA -  - supervised tokens/s  - tokens/s  epoch -"
    assert number("x", ".2f") == "-" and clock_time(3661.4) == "1:01:01"
    assert stage_line({"stage": "prepare", "done": 1200, "total": 4000, "text": "tokenising"}) == "prepare 1,200/4,000: tokenising"
    assert stage_line({"stage": "load", "done": 0, "total": 1}) == "load"


def test_the_summary_of_a_run_that_had_nothing_left_to_do() -> None:
    assert render_summary(Record(), run_folder="r", model_folder=None, checkpoint=None) == "done\n  run folder        r"


def test_the_summary_of_one_update() -> None:
    record = Record()
    record.add({"event": "update", "update": 1, "loss": 2.0})
    assert "  loss              2.0000 (update 1)" in render_summary(record, run_folder="r", model_folder=None, checkpoint=None).splitlines()


def test_the_summary_says_what_the_run_took(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run", price=9.0)
    add_lines(run_dir.events, {"event": "launch_started", "attempt": 1, "time": 1000.0, "world_size": 2})
    rendered = [render_summary(Record(), run_folder="r", model_folder=None, checkpoint=None, sums=totals(read_run(run_dir.path)))]
    add_lines(run_dir.metrics, line(1, attempt=1, time=1200.0), line(2, attempt=1, time=1202.5))
    rendered += [render_summary(Record(), run_folder="r", model_folder=None, checkpoint=None, sums=totals(read_run(run_dir.path)))]
    assert rendered[0].splitlines()[1:] == ["  run folder        r"], "nothing was trained"
    spent = ["  speed             20 supervised tokens/s, 50 tokens/s, while it trained", "  device time       0.113 device-hours, 1.01 EUR"]
    assert rendered[1].splitlines()[1:3] == spent


def test_the_summary_of_a_stream_counts_the_rows_that_were_dropped() -> None:
    record = Record()
    for dropped in ({"overlong": 3}, None, {"overlong": 4, "bad_row": 1}):
        record.add({"event": "update", "update": 1, "loss": 2.0, **({"dropped_rows": dropped} if dropped else {})})
    text = render_summary(record, run_folder="r", model_folder=None, checkpoint=None)
    assert "  rows dropped      7 overlong, 1 bad_row; of each update in metrics.jsonl" in text.splitlines()


def test_summary_of_several_sets_and_of_skipped_updates() -> None:
    record = Record()
    for update, target, hard in ((0, 3.0, 4.0), (8, 1.0, 3.5)):
        record.add({"event": "evaluation", "update": update, "set": "target", "loss": target})
        record.add({"event": "evaluation", "update": update, "set": "hard", "loss": hard})
    record.add({"event": "failed_update", "update": 3, "reason": "the loss is nan"})
    lines = render_summary(record, run_folder="r", model_folder=None, checkpoint=None).splitlines()
    assert lines[1:4] == [
        "  evaluation loss   target: 3.0000 (before training) -> 1.0000 (update 8), per supervised token",
        "  evaluation loss   hard: 4.0000 (before training) -> 3.5000 (update 8), per supervised token",
        "  updates skipped   1, not finite: see events.jsonl in the run folder",
    ]


def test_what_is_not_finite_is_shown_as_it_is() -> None:
    """C11: a NaN is never replaced by a number or hidden."""
    assert [number(value, ".4f") for value in ("nan", "inf", 1.0, None, "x")] == ["nan", "inf", "1.0000", "-", "-"]


def test_an_output_that_takes_nothing_holds_nobody_up() -> None:
    """As a terminal after Ctrl-S, or a pager: what stays is written once it takes text again."""
    read_handle, write_handle = os.pipe()
    with open(write_handle, "w", encoding="utf-8") as stream, open(read_handle, "rb", buffering=0) as reader:
        os.set_blocking(write_handle, False)
        filler = b"x" * 4096
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write_handle, filler)
        os.set_blocking(write_handle, True)
        progress = Progress(stream)
        with progress.never_waiting():
            for number in range(2000):
                progress.line(f"line {number}")
            os.set_blocking(read_handle, False)
            while reader.read(65536):
                pass
            progress.line("the last")
        assert (reader.read(65536) or b"").decode().splitlines()[-2:] == ["line 1999", "the last"]
