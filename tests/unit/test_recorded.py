"""Files of a run that are damaged: odd numbers, impossible times, and what is no file."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from ftcore.report.curves import as_number
from ftcore.report.make import make_page
from ftcore.spec.recorded import local_time, recorded_object
from ftcore.spec.report_request import ReportedRun, ReportRequest
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_lines import json_lines, number, read_run
from ftcore.spec.run_record import totals
from launcher.events_file import read_events
from launcher.inspect.events import last_line
from launcher.watching.tail import JsonTail


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", "nan"),
        ("-Infinity", "-inf"),
        ("1e400", "1e400"),
        ("1" + "0" * 400, "1" + "0" * 400),
        ("9223372036854775807", 9223372036854775807),
        ("9223372036854775808", "9223372036854775808"),
        ("0.1234567890123456789012", 0.1234567890123456789012),
        ("1e99", 1e99),
        ("-1e300", "-1e300"),
        ('"NaN 1e400"', "NaN 1e400"),
    ],
)
def test_numbers_that_no_reader_can_count_with_are_texts(text: str, value: object) -> None:
    assert recorded_object(f'{{"x": {text}}}') == {"x": value}


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "NaN", '{"x": ' + "1" * 5000 + "}", b"\xff\xfe{\x00"])
def test_what_is_no_object_is_none(text: str | bytes) -> None:
    assert recorded_object(text) is None


def test_a_number_beyond_a_float_is_none() -> None:
    assert [as_number(value) for value in (1e308, -1e308, 10**400, 1e99)] == pytest.approx([math.inf, -math.inf, math.nan, 1e99], nan_ok=True)
    assert number({"x": 10**400}, "x", 7.0) == 7.0


@pytest.mark.parametrize("seconds", [0.0, 1e300, float("nan"), float("inf"), -1e300])
def test_a_time_that_no_clock_shows_is_empty(seconds: float) -> None:
    assert local_time(seconds) == ""


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = RunDir(tmp_path).events
    {"pipe": os.mkfifo, "device": lambda it: it.symlink_to("/dev/zero"), "folder": os.mkdir, "loop": lambda it: it.symlink_to(it.name)}[kind](path)
    assert list(json_lines(path)) == []
    assert last_line(path) == {}
    assert read_events(RunDir(tmp_path), "error") == []
    assert JsonTail(path).poll().lines == []


@pytest.mark.parametrize("spec", ["[]", '"text"', "null", '{"hardware": [1], "train": {"x": 1}}'])
def test_what_is_no_section_is_left_out_of_a_spec(tmp_path: Path, spec: str) -> None:
    RunDir(tmp_path).resolved.write_text(f'{{"spec": {spec}}}', encoding="utf-8")
    record = read_run(tmp_path)
    assert record.resolved == {"spec": {"train": {"x": 1}} if "train" in spec else {}}
    assert totals(record).cost is None


@pytest.mark.parametrize("memory", ['{"capacity": {"device_bytes": 0}}', '{"capacity": [1]}', '{"capacity": "x"}', '{"capacity": {"device_bytes": "x"}}', "[]"])
def test_room_that_is_none_marks_no_page(tmp_path: Path, memory: str) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.resolved.write_text('{"spec": {"optimizer": {"max_grad_norm": [1]}}}', encoding="utf-8")
    run_dir.memory_json.write_text(memory, encoding="utf-8")
    run_dir.metrics.write_text('{"update": 1, "loss": 2.0, "grad_norm": 1.0, "peak_memory_bytes": 1000000}\n', encoding="utf-8")
    make_page(ReportRequest(runs=(ReportedRun(path=str(tmp_path), shown="run"),), output=str(run_dir.report)))
    assert "that a rank can have" not in run_dir.report.read_text(encoding="utf-8")


def test_a_part_of_a_report_that_cannot_be_made_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(view: object, **options: object) -> None:
        raise TypeError("unhashable")

    monkeypatch.setattr("ftcore.report.one_run.cost", fail)
    run_dir = RunDir(tmp_path)
    run_dir.resolved.write_text("{}", encoding="utf-8")
    ledger = {"memory": {"peak_phase": "forward", "items": [{"scope": "rank", "place": "device", "group": "logits", "bytes": 5, "phases": 3.5}]}}
    run_dir.memory_json.write_text(json.dumps(ledger), encoding="utf-8")
    make_page(ReportRequest(runs=(ReportedRun(path=str(tmp_path), shown="run"),), output=str(run_dir.report)))
    page = run_dir.report.read_text(encoding="utf-8")
    assert page.count("This part can") == 1 and "TypeError: unhashable" in page and "logits" in page
