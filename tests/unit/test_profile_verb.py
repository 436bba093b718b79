"""`ftlaunch profile`: the run that it trains, the ranks that record, sums of traces that are there, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import SpecError
from launcher.profiling.short_run import MOST_RANKS, chosen_ranks, profile_spec
from launcher.profiling.text import render_profile, seconds
from tests.unit.local_launch import resolved_for
from tests.unit.made_traces import write_trace
from tests.unit.test_cli import ftlaunch
from tests.unit.test_trace_summary import cpu_update, gpu_update, summary_of


@pytest.mark.parametrize(
    ("text", "world_size", "ranks"),
    [
        ("", 4, (0, 1, 2, 3)),
        ("", 1, (0,)),
        ("", 16, tuple(range(16))),
        ("", 64, tuple(range(0, 64, 4))),
        ("all", 64, tuple(range(64))),
        ("3,0", 4, (0, 3)),
        ("0, 2-3", 4, (0, 2, 3)),
        ("1-1", 2, (1,)),
    ],
)
def test_ranks_that_record(text: str, world_size: int, ranks: tuple[int, ...]) -> None:
    assert chosen_ranks(text, world_size) == ranks


def test_of_many_ranks_as_many_record_as_can_be_looked_at() -> None:
    for world_size in (17, 100, 1000):
        found = chosen_ranks("", world_size)
        assert len(found) == MOST_RANKS and found[0] == 0 and found[-1] < world_size


@pytest.mark.parametrize(("text", "told"), [("x", "names no rank"), ("1,", "names no rank"), ("0-", "names no rank"), ("4", "not among"), ("3-1", "not among")])
def test_ranks_that_are_none(text: str, told: str) -> None:
    with pytest.raises(SpecError, match=told) as caught:
        chosen_ranks(text, 4)
    assert caught.value.problems[0].where == "--ranks" and caught.value.problems[0].fix


def test_the_short_run() -> None:
    made = profile_spec(resolved_for(), warmup=5, updates=3, ranks=(0, 1), memory=True).spec
    assert made.train.max_steps == 8 and made.train.num_train_epochs is None
    assert (made.profiling.start_update, made.profiling.updates, made.profiling.ranks, made.profiling.memory) == (6, 3, (0, 1), True)
    assert made.checkpoint.save_steps == 0 and made.data.eval is None and made.logging.phases and made.logging.report_to == ()


def test_traces_that_are_there_are_summed_up(tmp_path: Path) -> None:
    traces = tmp_path / "run" / "profile"
    for rank in (0, 1):
        write_trace(traces / f"rank_{rank}.json.gz", gpu_update(), rank=rank)
    ended = ftlaunch(tmp_path, "profile", "run")
    assert ended.returncode == 0, ended.stderr
    assert "profiled: update 1, 2 ranks, an accelerator each" in ended.stdout and "host-bound" in ended.stdout
    assert json.loads((traces / "summary.json").read_text())["parts"]["compute"] == pytest.approx(5e-4)
    # Its own files are no traces; and others may lie elsewhere.
    ended = ftlaunch(tmp_path, "profile", "run/profile", "-o", "told", "--json")
    assert ended.returncode == 0 and json.loads(ended.stdout) == json.loads((tmp_path / "told" / "summary.json").read_text())
    assert (tmp_path / "told" / "summary.html").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["empty"], 5, "nothing was profiled"),
        (["empty", "--updates", "4"], 2, "options of a run go with a SPEC"),
        (["empty", "train.max_steps=3"], 2, "options of a run go with a SPEC"),
        (["empty", "-o", "a_file/x"], 5, "can't be made"),
        (["a_file", "another"], 2, "one SPEC is profiled at a time"),
        (["nothing.yaml"], 2, "nothing.yaml"),
        (["--updates", "0"], 2, "--updates"),
        (["--ranks", "7"], 2, "is not among the ranks 0 to"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: list[str], status: int, told: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a_file").write_text("")
    ended = ftlaunch(tmp_path, "profile", *arguments)
    assert ended.returncode == status and told in ended.stderr and "Traceback" not in ended.stderr, ended.stderr
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_not_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ftcore.spec.errors import CheckpointError
    from launcher.profiling import summarising

    monkeypatch.setattr(summarising.os, "access", lambda path, mode: False)
    with pytest.raises(CheckpointError, match="can't be written to"):
        summarising.summarise(tmp_path, tmp_path, command_line="")


def test_the_tables(tmp_path: Path) -> None:
    for rank, compute in enumerate((200.0, 380.0)):
        write_trace(tmp_path / f"rank_{rank}.json.gz", cpu_update(compute=compute), rank=rank)
    text = render_profile(summary_of(tmp_path))
    wanted = ("compute ", "host-bound", "together", "100.0 %", "phase ", "forward", "rank ", "aten::mm", "[4,8]×[8,2]", "what to do", "no device waits")
    assert [each for each in wanted if each not in text] == []
    assert "rank 1 computes longest, 20.0% over the mean" in text
    assert max(len(line) for line in text.split("what to do")[0].splitlines() if not line.startswith(("host-bound:", "communication:"))) <= 120


def test_the_tables_of_many_ranks_hold_those_at_the_ends(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update())
    summary = summary_of(tmp_path)
    [first] = summary["ranks"]
    summary["ranks"] = [{**first, "rank": rank, "parts": {**first["parts"], "compute": rank}} for rank in range(64)]
    lines = render_profile(summary).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("rank "))
    assert [int(line.split()[0]) for line in lines[start + 1 : start + 17]] == [*range(8), *range(56, 64)]
    assert lines[start + 17] == "48 ranks between these are in summary.json"


@pytest.mark.parametrize(("value", "text"), [(12.345, "12.3 s"), (0.34, "340 ms"), (5.1e-5, "51.0 µs"), (0.0, "0"), (1e-9, "<1 µs"), (None, "-")])
def test_seconds_in_words(value: Any, text: str) -> None:
    assert seconds(value) == text
