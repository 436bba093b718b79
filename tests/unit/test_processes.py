"""The parts that processes are owned with."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from ftcore.spec.errors import ClusterError
from ftcore.spec.parentage import die_with_parent
from launcher.children import Child, run_child, stop_signals
from launcher.failure import describe_status, tail
from launcher.processes import LAUNCH_ID, exit_status, sweep


def test_exit_statuses() -> None:
    assert [exit_status(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]
    assert describe_status(6) == "exit status 6" and describe_status(137) == "killed by SIGKILL (exit status 137)"
    assert describe_status(255) == "killed by signal 127 (exit status 255)"


def test_a_death_signal_that_does_not_exist() -> None:
    with pytest.raises(OSError, match="PDEATHSIG"):
        die_with_parent(1000)


def test_a_sweep_hits_what_carries_the_mark_and_nothing_else() -> None:
    mark = uuid.uuid4().hex
    marks = [mark, f"{mark}.0", f"{mark}.1", f"{mark}5", f"x{mark}"]
    children = [subprocess.Popen(["sleep", "600"], env={**os.environ, LAUNCH_ID: each}) for each in marks]
    try:
        assert sweep(f"{mark}.0") == 1
        assert sweep(mark) == 2
        assert [child.poll() for child in children[3:]] == [None, None]
        assert [child.wait(timeout=60) for child in children[:3]] == [-9, -9, -9]
    finally:
        for child in children:
            child.kill()
            child.wait()


def child_of(folder: Path, program: str) -> Child:
    environment = {**os.environ, LAUNCH_ID: uuid.uuid4().hex}
    return Child(argv=(sys.executable, "-c", program), environment=environment, log=folder / "logs" / "log", grace_s=1, death_signal=9)


def test_events_are_told_whole_and_junk_is_passed_over(tmp_path: Path) -> None:
    program = """
import os
handle = int(os.environ["FTLAUNCH_EVENTS_FD"])
os.write(handle, b'junk\\n[1]\\n{"event": 3}\\n{"event": "a", ')
os.write(handle, b'"x": 1}\\n{"event": "b"}\\n{"event": "cut')
"""
    heard: list[dict[str, object]] = []
    with stop_signals() as stop:
        assert run_child(child_of(tmp_path, program), stop, heard.append, lambda: None) == 0
    assert heard == [{"event": "a", "x": 1}, {"event": "b"}]


def test_a_listener_that_fails_leaves_no_process(tmp_path: Path) -> None:
    program = "import os, time; os.write(int(os.environ['FTLAUNCH_EVENTS_FD']), b'{\"event\": \"%d\"}\\n' % os.getpid()); time.sleep(600)"
    heard: list[int] = []

    def fail(event: dict[str, object]) -> None:
        heard.append(int(str(event["event"])))
        raise ValueError("a bug in the display")

    with stop_signals() as stop, pytest.raises(ValueError, match="a bug"):
        run_child(child_of(tmp_path, program), stop, fail, lambda: None)
    assert not Path(f"/proc/{heard[0]}").exists()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    child = Child(argv=(str(tmp_path / "missing"),), environment={LAUNCH_ID: "x"}, log=tmp_path / "log", grace_s=1, death_signal=9)
    with stop_signals() as stop:
        before = open_pipes()
        with pytest.raises(ClusterError, match=r"can't start .*missing"):
            run_child(child, stop, lambda event: None, lambda: None)
        assert open_pipes() <= before and not is_open(child.log)


def open_files() -> list[str]:
    """What this process has open, pipes by a number that no other has while they are there."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(entry))
    return found


def open_pipes() -> set[str]:
    return {name for name in open_files() if name.startswith("pipe:")}


def is_open(path: Path) -> bool:
    return str(path) in open_files()


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == []
    with log.open("wb") as file:
        file.write(b"x" * 100_000 + b"\n" + b"\xff bad\n\n" + b"bar 10%\rbar 90%\nlast")
    assert tail(log, 4) == ["\ufffd bad", "bar 10%", "bar 90%", "last"]
