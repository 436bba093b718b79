"""What a rank tells of its progress: often enough for a watchdog, seldom enough to cost nothing, from whichever thread. I03."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftcore.checkpoint import rank_files
from ftcore.checkpoint.digest import file_digest
from ftcore.spec import events
from ftcore.spec.events import EVENTS_FD, emit_at, emit_ready

Told = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What rank 5 has told since the last call."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    monkeypatch.setenv(EVENTS_FD, str(writer))
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setattr(events._Progress, "next_at", 0.0)
    monkeypatch.setattr(events._Progress, "update", 0)

    def since() -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in os.read(reader, 65536).splitlines()]
        except BlockingIOError:
            return []

    yield since
    os.close(reader)
    os.close(writer)


def test_one_a_second_with_what_was_told_last(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    assert events.SECONDS_BETWEEN_AT == 1.0
    # So long that a machine which stands still in between makes no second one due.
    monkeypatch.setattr(events, "SECONDS_BETWEEN_AT", 1000.0)
    for update in range(100):
        emit_at("train", update)
    [first] = told()
    assert (first["event"], first["rank"], first["update"], first["stage"]) == ("at", 5, 0, "train")
    monkeypatch.setattr(events, "SECONDS_BETWEEN_AT", 0.0)
    events._Progress.next_at = 0.0
    saver = threading.Thread(target=emit_at, args=("save",))
    saver.start()
    saver.join()
    emit_at("evaluate")
    assert [(each["update"], each["stage"]) for each in told()] == [(99, "save"), (99, "evaluate")]


def test_ready(told: Told) -> None:
    emit_ready()
    [event] = told()
    assert (event["event"], event["rank"]) == ("ready", 5)


def test_long_reads_and_writes_are_progress(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SECONDS_BETWEEN_AT", 0.0)
    handle = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    rank_files._drain(handle, memoryview(bytes(100)), lambda handle, data: os.write(handle, data[:50]))
    os.close(handle)
    file_digest(tmp_path / "file")
    assert [each["stage"] for each in told()] == ["save", "save", "load"]


def test_an_event_of_a_rank_never_mixes_with_others(told: Told) -> None:
    """A pipe takes no more at once."""
    events.emit("update", update=7, **{f"group_{number}": "é" * 200 for number in range(30)}, loss=1.5, samples=list(range(5000)))
    [told_of] = told()
    assert (told_of["event"], told_of["update"], told_of["loss"], told_of["truncated"]) == ("update", 7, 1.5, True)
    assert "samples" not in told_of and events.MAX_EVENT_BYTES - 1300 < len(json.dumps(told_of)) < events.MAX_EVENT_BYTES
