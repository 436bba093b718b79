"""`ftlaunch logs`: whole lines, of which log, also while they are written."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ftcore.spec.errors import SpecError
from ftcore.spec.run_dir import RunDir
from launcher.inspect.logs import LONGEST_LINE, LogFile, Wanted, follow_logs, show_logs
from launcher.run_folder import locked
from tests.unit.live_processes import environment, wait_until
from tests.unit.local_launch import resolved_for
from tests.unit.test_cli import ftlaunch

NEWEST = Wanted(attempt=None, rank=None, everything=False)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Two ranks, of which the last has logged twelve lines; two attempts."""
    folder = RunDir(tmp_path / "run")
    for attempt in (1, 2):
        folder.attempt_logs(attempt).mkdir(parents=True)
        folder.rank_log(attempt, 0).write_text(f"hello of attempt {attempt}\n")
    folder.rank_log(2, 10).write_text("ten\n")
    folder.rank_log(2, 2).write_bytes(b"bar 1%\rbar 50%\rbar 100%\nbytes \xff\r\nno end")
    (folder.attempt_logs(2) / "node_0.log").write_text("imports\n")
    (folder.attempt_logs(2) / "prepare.log").write_text("rows\n")
    (folder.path / "logs" / "slurm-7.out").write_text("job 7\n")
    folder.resolved.write_text(resolved_for().to_json())
    return folder


def shown(run_dir: RunDir, wanted: Wanted = NEWEST, *, prefixes: bool | None = None) -> list[str]:
    parts: list[str] = []
    show_logs(run_dir, wanted, parts.append, prefixes=prefixes)
    return "".join(parts).splitlines()


def test_all_ranks_in_order(run_dir: RunDir) -> None:
    assert shown(run_dir) == ["rank 0 | hello of attempt 2", "rank 2 | bar 100%", "rank 2 | bytes \ufffd", "rank 2 | no end", "rank 10 | ten"]


def test_one_rank_one_attempt_and_prefixes(run_dir: RunDir) -> None:
    assert shown(run_dir, Wanted(attempt=1, rank=None, everything=False)) == ["hello of attempt 1"]
    assert shown(run_dir, Wanted(attempt=None, rank=10, everything=False), prefixes=True) == ["rank 10 | ten"]
    assert shown(run_dir, prefixes=False)[0] == "hello of attempt 2"


def test_the_others(run_dir: RunDir) -> None:
    lines = shown(run_dir, Wanted(attempt=None, rank=10, everything=True))
    assert lines == ["rank 10 | ten", "node 0 | imports", "prepare | rows", "slurm 7 | job 7"]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (Wanted(attempt=3, rank=None, everything=False), "there is no attempt 3"),
        (Wanted(attempt=None, rank=9, everything=False), "the run has no rank 9: it has 2 ranks"),
        (Wanted(attempt=None, rank=1, everything=False), "attempt 2 has no log of rank 1"),
    ],
)
def test_what_is_not_there(run_dir: RunDir, wanted: Wanted, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        shown(run_dir, wanted)


def test_before_the_first_launch(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no launch of it has begun"):
        shown(RunDir(tmp_path))


def test_lines_stay_whole_while_they_grow(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile("rank 0", path)
    assert list(file.lines(to_the_end=True)) == []
    path.write_bytes(b"one\ntw")
    assert list(file.lines(to_the_end=False)) == ["one"]
    with path.open("ab") as log:
        log.write("o\nthré".encode()[:-1])
    assert list(file.lines(to_the_end=False)) == ["two"]
    with path.open("ab") as log:
        log.write("é".encode()[-1:] + b"\nend")
    assert list(file.lines(to_the_end=False)) == ["thré"]
    assert list(file.lines(to_the_end=True)) == ["end"]
    with path.open("ab") as log:
        log.write(b"x" * (LONGEST_LINE + 1))
    assert [len(line) for line in file.lines(to_the_end=False)] == [LONGEST_LINE + 1]


def test_following_goes_on_with_the_next_attempt_and_ends_with_the_run(run_dir: RunDir) -> None:
    lines: list[str] = []
    with locked(run_dir):
        thread = threading.Thread(target=follow_logs, args=(run_dir, NEWEST, lines.append), kwargs={"prefixes": None})
        thread.start()
        wait_until(lambda: "rank 10 | ten\n" in lines)
        run_dir.attempt_logs(3).mkdir()
        with run_dir.rank_log(3, 0).open("w") as log:
            log.write("half a ")
            log.flush()
            threading.Event().wait(0.5)
            log.write("line\nlast")
        wait_until(lambda: "rank 0 | half a line\n" in lines)
        assert thread.is_alive() and not any("last" in line for line in lines)
    thread.join(60)
    assert not thread.is_alive() and lines[-1] == "rank 0 | last\n"
    # The attempt before has ended: its last line comes before the new one's first.
    assert lines[-4:-1] == ["rank 2 | no end\n", "--- attempt 3 ---\n", "rank 0 | half a line\n"]


def test_a_rank_that_the_run_has_not_is_not_waited_for(run_dir: RunDir) -> None:
    with locked(run_dir), pytest.raises(SpecError, match="the run has no rank 7: it has 2 ranks"):
        follow_logs(run_dir, Wanted(attempt=None, rank=7, everything=False), print, prefixes=None)
    run_dir.resolved.write_text(resolved_for(1).to_json())
    with pytest.raises(SpecError, match="the run has no rank 7: it has 1 rank"):
        follow_logs(run_dir, Wanted(attempt=None, rank=7, everything=False), print, prefixes=None)


# Whether a line says whose it is can't depend on how many logs are there when it comes.
@pytest.mark.parametrize(
    ("rank", "slots", "expected"),
    [
        (0, 2, ["hello\n", "--- attempt 2 ---\n", "again\n"]),
        (None, 1, ["hello\n", "--- attempt 2 ---\n", "again\n"]),
        (None, 2, ["rank 0 | hello\n", "--- attempt 2 ---\n", "rank 0 | again\n"]),
    ],
)
def test_followed_lines_look_alike(tmp_path: Path, rank: int | None, slots: int, expected: list[str]) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.resolved.write_text(resolved_for(slots).to_json())
    run_dir.attempt_logs(1).mkdir(parents=True)
    run_dir.rank_log(1, 0).write_text("hello\n")
    lines: list[str] = []
    wanted = Wanted(attempt=None, rank=rank, everything=False)
    with locked(run_dir):
        thread = threading.Thread(target=follow_logs, args=(run_dir, wanted, lines.append), kwargs={"prefixes": None})
        thread.start()
        wait_until(lambda: lines == expected[:1])
        run_dir.attempt_logs(2).mkdir()
        run_dir.rank_log(2, 0).write_text("again\n")
        wait_until(lambda: len(lines) == 3)
    thread.join(60)
    assert not thread.is_alive() and lines == expected


def test_the_command(run_dir: RunDir) -> None:
    folder = run_dir.path.parent
    assert ftlaunch(folder, "logs", "run", "--rank", "10").stdout == "ten\n"
    assert ftlaunch(folder, "logs", "-f", "run", "--attempt", "1").stdout == "rank 0 | hello of attempt 1\n"
    ended = ftlaunch(folder, "logs", "-f", "run", "--rank", "7")
    assert ended.returncode == 2 and ended.stdout == "" and "no rank 7" in ended.stderr
    assert ftlaunch(folder, "logs", "none").returncode == 5


def test_a_reader_that_went_away(run_dir: RunDir) -> None:
    run_dir.rank_log(2, 0).write_text("line\n" * 200_000)
    argv = [sys.executable, "-m", "launcher.cli", "logs", str(run_dir.path)]
    with subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
