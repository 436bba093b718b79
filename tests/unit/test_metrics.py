"""metrics.jsonl over restarts: no update twice, none missing, a line cut by a kill is dropped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ftcore.metrics import writer as writer_module
from ftcore.metrics.done_again import tell_done_again
from ftcore.metrics.memory import peak_memory_bytes
from ftcore.metrics.writer import MetricsWriter, cut_after, kept_lines, lines_to_cut, record_event
from ftcore.spec.errors import CheckpointError
from ftcore.spec.events import EVENTS_FD
from ftcore.spec.run_dir import RunDir
from tests.unit.made_runs import add_lines, line


def test_resume_rewrites_what_will_be_done_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "rank_0.jsonl"
    writer = MetricsWriter(path, next_update=0)
    for update in range(1, 6):
        writer.write({"update": update, "loss": float(update)})
    writer.close()
    with path.open("a") as file:
        file.write('{"update": 6, "lo')
    resumed = MetricsWriter(path, next_update=3)
    resumed.write({"update": 4, "loss": 40.0})
    resumed.close()
    assert [json.loads(line)["loss"] for line in path.read_text().splitlines()] == [1.0, 2.0, 3.0, 40.0]


def test_a_cut_line_is_dropped_wherever_it_stands() -> None:
    assert kept_lines('{"update": 1}\n{"upd\n{"update": 2}\n', 9) == ['{"update": 1}', '{"update": 2}']


def test_events_keep_every_attempt_and_reach_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setenv(EVENTS_FD, str(write))
    monkeypatch.setenv("FTLAUNCH_ATTEMPT", "2")
    record_event(RunDir(tmp_path), "evaluation", update=3, loss=0.5)
    os.close(write)
    line = json.loads((tmp_path / "events.jsonl").read_text())
    assert (line["event"], line["attempt"], line["update"], line["loss"]) == ("evaluation", 2, 3, 0.5)
    assert json.loads(os.read(read, 4096))["loss"] == 0.5
    os.close(read)


def test_peak_memory_is_at_least_what_was_touched() -> None:
    block = bytearray(64 << 20)
    assert peak_memory_bytes() > len(block)


def test_a_damaged_file_does_not_stop_a_resumed_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    damage = b'5\n{"up\xffdate": 2}\n[]\n{"update": "x"}\n' + b"[" * 100_000 + b"\n"
    path.write_bytes(b'{"update": 1}\n' + damage + b'{"update": 2}\n' + damage + b'{"update": 3}\n{"update": 2}')
    MetricsWriter(path, next_update=2).close()
    assert path.read_bytes() == b'{"update": 1}\n' + damage + b'{"update": 2}\n'
    assert kept_lines(path.read_text(errors="replace"), 9) == ['{"update": 1}', '{"update": 2}'], "whoever reads passes over the rest"
    path.write_bytes(damage)
    MetricsWriter(path, next_update=2).close()
    assert path.read_bytes() == b""


def test_a_resume_reads_only_the_end_of_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10: the start takes as long late in a run as early in it."""
    read: list[str] = []
    whole = writer_module.is_kept
    monkeypatch.setattr(writer_module, "is_kept", lambda line, update: read.append(line) or whole(line, update))
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"update": {update}, "loss": 1.5}}\n' for update in range(1, 10_001)))
    cut_after(path, 9_990)
    assert len(read) == 11 and path.read_text().endswith('{"update": 9990, "loss": 1.5}\n')
    assert len(path.read_text().splitlines()) == 9_990


def test_a_file_that_was_deleted_ends_the_run(tmp_path: Path) -> None:
    """A run whose folder is gone would train on and end with nothing that can be used."""
    writer = MetricsWriter(tmp_path / "metrics.jsonl", next_update=0)
    writer.write({"update": 1})
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"metrics.jsonl was deleted while the run was training"):
        writer.write({"update": 2})
    writer.close()


def test_updates_that_are_trained_again_are_told_by_who_trained_them(tmp_path: Path) -> None:
    """Two attempts died after the checkpoint that a third one goes on from; one line is half written."""
    run_dir = RunDir(tmp_path)
    tell_done_again(run_dir, 0)
    assert not run_dir.events.exists(), "a run that begins has lost nothing"
    add_lines(run_dir.metrics, line(4, attempt=1, time=1.0), line(6, attempt=1, time=3.0), line(8, attempt=2, time=5.0, world_size=1))
    run_dir.metrics.write_bytes(run_dir.metrics.read_bytes() + b'{"update": 9, "lo')
    assert [each["update"] for each in lines_to_cut(run_dir.metrics, 5)] == [6, 8]
    tell_done_again(run_dir, 5)
    told = [json.loads(each) for each in run_dir.events.read_text().splitlines()]
    names = ("event", "update", "trained_by", "updates", "seconds", "world_size")
    assert [tuple(each[name] for name in names) for each in told] == [("done_again", 5, 1, 1, 2.5, 2), ("done_again", 5, 2, 2, 2.5, 1)]
    run_dir.events.unlink()
    tell_done_again(run_dir, 8)
    assert not run_dir.events.exists()
