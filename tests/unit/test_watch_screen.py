"""The view of a run on terminals of all sizes: nothing is wider or higher than they are, and what matters most is there."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from launcher.watching.bars import STYLES, bar, cells
from launcher.watching.curve import MOST_POINTS, Curve, plot, sparkline
from launcher.watching.live import lines_of, standard_console
from launcher.watching.screen import Size, render
from launcher.watching.view import Notice, RankView, View

PHASES = {"forward": 0.3, "backward": 0.5, "optimizer": 0.05, "communication": 0.1, "idle": 0.05}


def curve(count: int = 100) -> Curve:
    made = Curve()
    for update in range(1, count + 1):
        made.add(update, 5.0 / update + 1.0)
    return made


def rank(number: int, **other: Any) -> RankView:
    fields = {"host": f"n{number // 8}", "phases": PHASES, "caused_idle": 0.0, "late_phase": "", "memory_bytes": 3 * 2**30, "update": 100}
    return RankView(rank=number, **{**fields, **other})


def view(count: int = 2, **other: Any) -> View:
    line = {
        "update": 100,
        "total_updates": 400,
        "epoch": 0.25,
        "loss": 1.05,
        "grad_norm": 0.8704,
        "learning_rate": 9.05e-5,
        "tokens_per_s": 6630.0,
        "supervised_tokens_per_s": 2840.0,
        "seconds": 0.32,
        "padding_share": 0.125,
        "mfu": 0.41,
    }
    fields: dict[str, Any] = {
        "name": "runs/2026-11-30-smollm2",
        "state": "running",
        "attempt": 2,
        "world_size": count,
        "elapsed_s": 61.0,
        "left_s": 96.0,
        "line": line,
        "losses": curve(),
        "ranks": tuple(rank(number) for number in range(count)),
        "checkpoint": "runs/2026-11-30-smollm2/checkpoints/update_00000080",
        "evaluations": ("eval loss 1.2345, perplexity 3.437 (after update 80)",),
        "notices": tuple(Notice(time=1e9 + number, text=f"event {number}", tone="warn") for number in range(30)),
    }
    return View(**{**fields, **other})


def text_of(seen: View, width: int, height: int, **other: Any) -> list[str]:
    return [line.plain for line in render(seen, Size(width=width, height=height, **other))]


@pytest.mark.parametrize(("width", "height"), [(200, 60), (120, 40), (80, 24), (40, 12), (40, 6), (20, 3), (10, 2), (80, 1)])
@pytest.mark.parametrize("ranks", [1, 2, 8, 64, 512])
def test_nothing_is_larger_than_the_terminal(width: int, height: int, ranks: int) -> None:
    lines = text_of(view(ranks), width, height)
    assert len(lines) <= max(height, 1) and all(len(line) <= max(width, 20) for line in lines)
    assert lines[0].rstrip() if height == 1 else "running" in lines[0]


def test_a_common_terminal_shows_all_there_is() -> None:
    lines = text_of(view(), 80, 24)
    text = "\n".join(lines)
    wanted = ("attempt 2", "2 ranks", "update 100/400", "25 %", "ETA 0:01:36", "epoch 0.25", "ran 0:01:01", "loss 1.0500  from 6.0000", "lr 9.05e-05")
    assert [each for each in wanted if each not in text] == []
    wanted = ("grad norm 0.8704", "supervised tokens/s 2,840", "tokens/s 6,630", "memory 3.00 GiB", "MFU 41.0 %", "padding 12.5 %", "F forward 30%")
    assert [each for each in wanted if each not in text] == []
    assert "update_00000080" in text and "eval loss 1.2345" in text and "event 29" in text and "q or Ctrl-C" in lines[-1]
    bars = [line for line in lines if line.startswith("rank ")]
    assert [line[:6] for line in bars] == ["rank 0", "rank 1"] and all("FFFF" in line and "BBBB" in line and "ii" in line for line in bars)


def test_a_small_terminal_shows_what_matters_most() -> None:
    text = "\n".join(text_of(view(), 40, 12))
    wanted = ("running", "update 100/400", "ETA 0:01:36", "loss", "1.0500", "lr 9.05e-05", "grad norm", "supervised tokens/s 2,840", "FFF", "eval loss")
    assert [each for each in wanted if each not in text] == []


def test_64_ranks_are_one_bar_those_that_stand_out_and_a_strip() -> None:
    ranks = [rank(number) for number in range(64)]
    ranks[37] = rank(37, caused_idle=0.21, late_phase="data_wait", phases={"data_wait": 1.0})
    ranks[11] = rank(11, memory_bytes=70 * 2**30)
    seen = view(64, ranks=tuple(ranks), slow_ranks=frozenset({37}))
    lines = text_of(seen, 80, 24)
    assert any(line.startswith("64 ranks FFF") for line in lines) and any(line.startswith("busy ") and len(line) == 5 + 64 for line in lines)
    assert any(line.startswith("rank 37 DDD") and "made wait 21%" in line for line in lines)
    assert any(line.startswith("rank 11 ") and "70.00 GiB" in line for line in lines)
    assert "slow: rank 37 on n4, late in its data wait; the others wait 21% of the time" in lines


@pytest.mark.parametrize(("waits", "named"), [((0.0, 0.0), None), ((0.01, 0.0), None), ((0.05, 0.04), None), ((0.05, 0.01), 0), ((0.0, 0.3), 1)])
def test_a_rank_is_named_only_where_it_stands_out(waits: tuple[float, float], named: int | None) -> None:
    seen = view()
    seen = replace(seen, ranks=tuple(rank(number, caused_idle=share) for number, share in enumerate(waits)))
    assert (None if seen.slowest is None else seen.slowest.rank) == named
    assert ("waited for: rank" in "\n".join(text_of(seen, 80, 24))) == (named is not None)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"state": "queued", "why": "job 7 waits: Priority"}, ("queued", "job 7 waits: Priority")),
        ({"state": "preparing", "stage": "preparing data and model"}, ("preparing", "preparing data and model", "ran 0:01:01")),
        ({"state": "failed", "why": "exit status 6", "last_error": "rank 1: loss is nan"}, ("failed", "rank 1: loss is nan")),
        ({"state": "new", "why": "no launch has begun", "elapsed_s": None}, ("new", "no launch has begun")),
    ],
)
def test_a_run_without_updates(other: dict[str, Any], told: tuple[str, ...]) -> None:
    seen = View(**{"name": "r", "state": "", "world_size": 2, "elapsed_s": 61.0, **other})
    text = "\n".join(text_of(seen, 80, 24))
    assert [each for each in told if each not in text] == []


def test_numbers_that_are_none() -> None:
    seen = view(line={"update": 1, "total_updates": 2, "loss": "nan", "grad_norm": None, "learning_rate": 0.0}, losses=Curve(), left_s=None)
    text = "\n".join(text_of(seen, 80, 24))
    assert "update 1/2" in text and "lr 0.00e+00" in text and "grad norm" not in text and "ETA" not in text


def test_a_run_that_is_silent_says_so() -> None:
    assert "last update 0:10:00 ago" in "\n".join(text_of(view(silent_s=600.0), 80, 24))
    assert "ago" not in "\n".join(text_of(view(silent_s=3.0), 80, 24))


def test_without_colours_and_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system="truecolor")
    for line in render(view(), Size(width=80, height=24)):
        console.print(line)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "FFFF" in written and "\x1b[3" not in written and "\x1b[4" not in written and ";48" not in written
    plain = "\n".join(text_of(view(64), 80, 24, ascii_only=True))
    assert plain.isascii()


def test_several_runs_share_the_screen() -> None:
    lines = [line.plain for line in lines_of([view(), replace(view(), name="other")], Size(width=80, height=24), "q leaves")]
    assert len(lines) <= 24 and lines[-1] == "q leaves" and sum("running" in line for line in lines) == 2


def test_bars_fill_their_width() -> None:
    assert sum(cells(PHASES, 37).values()) == 37 and len(bar(PHASES, 37).plain) == 37
    assert cells({"forward": 1e-9, "idle": 1.0}, 10) == {"idle": 10} and cells({}, 10) == {} and bar({}, 5).plain == "     "
    assert bar({"forward": 1.0, "backward": 1.0}, 4).plain == "FFBB"
    assert len({letter for letter, _ in STYLES.values()}) == len(STYLES)


def test_curves_stay_small_and_forget_what_is_done_again() -> None:
    made = curve(3 * MOST_POINTS)
    assert len(made.points) <= MOST_POINTS + 1 and made.points[0][0] == 1 and made.points[-1][0] == 3 * MOST_POINTS
    made.add(50, 9.0)
    assert made.points[-1] == (50, 9.0) and made.points[-2][0] < 50
    made.add(51, float("nan"))
    made.add(52, "inf")
    assert made.points[-1] == (50, 9.0)


def test_pictures_of_curves() -> None:
    assert sparkline([0.0, 0.5, None, 1.0]) == "▁▅ █" and sparkline([]) == "" and sparkline([2.0, 2.0]) == "▁▁"
    falling = curve(2)
    assert plot(falling, 4, 2, ascii_only=True) == ["***", "  **"]
    rows = plot(curve(), 30, 5)
    assert len(rows) == 5 and max(map(len, rows)) == 30 and all(0x2800 <= ord(letter) < 0x2900 for row in rows for letter in row)
    assert plot(Curve(), 10, 3) == [] and len(plot(curve(1), 10, 3)) == 3


def test_a_dumb_terminal_has_the_width_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((47, 12)))
    assert standard_console().width == 47
