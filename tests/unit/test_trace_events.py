"""Traces are read event by event, however they are laid out, and as far as they can be read."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError
from ftcore.trace_summary import events
from ftcore.trace_summary.events import TraceFile
from ftcore.trace_summary.summary import read_ranks
from tests.unit.made_traces import operator, write_trace


def names(path: Path) -> tuple[list[str], list[str]]:
    file = TraceFile(path)
    return [each["name"] for each in file.events() if each.get("cat") == "cpu_op"], file.problems


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
def test_every_event_is_read_whatever_the_pieces(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CHUNK", chunk)
    wanted = [f'aten::"{number}" }}, {{ "ph' for number in range(50)]
    path = write_trace(tmp_path / "rank_4.json.gz", [operator(name, 0, 1) for name in wanted], rank=4)
    assert names(path) == (wanted, [])


def test_the_head_names_rank_and_host(tmp_path: Path) -> None:
    file = TraceFile(write_trace(tmp_path / "x.json", [operator("a", 0, 1)], rank=12, host="node-7", packed=False))
    assert len(list(file.events())) == 4 and (file.rank, file.host) == (12, "node-7")
    assert TraceFile(tmp_path / "rank_31_from_8.json.gz").rank == 31


def test_a_file_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank_0.json.gz", [operator(str(number), 0, 1) for number in range(2000)])
    path.write_bytes(path.read_bytes()[:-2000])
    found, problems = names(path)
    assert 0 < len(found) < 2000 and len(problems) == 1 and "rank_0.json.gz" in problems[0]


def test_a_broken_event_is_passed_over(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank_0.json", [operator("first", 0, 1), operator("broken", 0, 1), operator("last", 0, 1)], packed=False)
    path.write_text(path.read_text().replace('"broken",', '"bro\\ken", oops'))
    found, problems = names(path)
    assert found == ["first", "last"] and problems == ["rank_0.json is broken in the middle or breaks off"]


@pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8bnot gzip", b'{"schema": 1}', b"\x00" * 100])
def test_what_is_no_trace_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank_0.json.gz"
    path.write_bytes(content)
    assert names(path)[0] == [] and len(names(path)[1]) == 1
    with pytest.raises(CheckpointError, match="nothing was profiled: rank_0"):
        read_ranks([path], lambda done, total: None)


def test_events_that_lack_what_torch_writes_tell_nothing(tmp_path: Path) -> None:
    odd = [{"ph": "X", "cat": "cpu_op"}, {"ph": "X", "cat": "cpu_op", "name": 3, "ts": "x"}, {"cat": "kernel", "ph": "X", "name": "k", "ts": None}, 7, None]
    path = write_trace(tmp_path / "rank_0.json", [operator("good", 0, 10), *odd], packed=False)  # type: ignore[list-item]
    ranks, problems = read_ranks([path], lambda done, total: None)
    assert ranks[0].wall_s == pytest.approx(1e-5) and not problems


def test_memory_does_not_grow_with_what_is_passed_over(tmp_path: Path) -> None:
    padding = [{"ph": "X", "cat": "python_function", "name": "x" * 2000, "pid": 1, "tid": 1, "ts": 0.0, "dur": 1.0}] * 20_000
    path = tmp_path / "rank_0.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*padding, operator("a", 0, 1)]}).encode(), compresslevel=1))
    tracemalloc.start()
    try:
        ranks, _ = read_ranks([path], lambda done, total: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 40 MB of events.
    assert ranks[0].wall_s > 0 and peak < 16e6
