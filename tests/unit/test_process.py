"""What a process of a run says when it fails, and its exit status."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.process import as_ft_error, is_lost_peer, report
from ftcore.spec.errors import CheckpointError, DataError, FtError, TrainingError
from ftcore.spec.events import EVENTS_FD
from ftcore.spec.run_dir import RunDir

PROGRAM = """
import sys
from ftcore.process import run_dir_argument, run_main
from ftcore.spec.errors import DataError
def main(run_dir):
    {body}
run_main(main, run_dir_argument(sys.argv[1:]))
"""


def run(body: str, tmp_path: Path, *, rank: str | None = "3") -> tuple[int, dict[str, object] | None, str]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2]), **({"RANK": rank} if rank else {})}
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(body=body), str(tmp_path)], env=environment, capture_output=True, text=True, check=False)
    path = tmp_path / "logs" / "attempt_1" / "rank_3.error.json"
    return done.returncode, json.loads(path.read_text()) if path.exists() else None, done.stderr


def test_success_is_silent(tmp_path: Path) -> None:
    assert run("pass", tmp_path) == (0, None, "")


def test_a_users_mistake_has_its_status_and_no_traceback_to_show(tmp_path: Path) -> None:
    status, error, log = run("raise DataError('no rows', where='data.train', fix='name a file with rows')", tmp_path)
    assert status == 4 and error is not None
    assert (error["kind"], error["rank"], error["traceback"], error["exit_status"]) == ("DataError", 3, "", 4)
    assert error["problems"][0]["fix"] == "name a file with rows"  # type: ignore[index]
    assert "DataError" in log


def test_anything_else_is_our_bug_with_its_traceback(tmp_path: Path) -> None:
    status, error, _ = run("{}['missing']", tmp_path)
    assert status == 1 and error is not None
    assert "KeyError: 'missing'" in str(error["traceback"])


def test_a_process_that_is_no_rank_writes_no_rank_file(tmp_path: Path) -> None:
    assert run("raise DataError('x')", tmp_path, rank=None)[:2] == (4, None)


def test_out_of_memory_is_training_with_advice() -> None:
    known = as_ft_error(MemoryError("1 TiB"))
    assert isinstance(known, TrainingError) and "micro_batch_tokens" in known.problems[0].fix
    assert as_ft_error(ValueError("x")) is None
    assert isinstance(as_ft_error(ModuleNotFoundError("No module named 'gguf'")), FtError)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (DataError("Connection closed by peer"), False),
    ],
)
def test_a_lost_peer_is_told_from_a_fault(error: BaseException, lost: bool) -> None:
    assert is_lost_peer(error) is lost


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EEXIST, errno.ENOTDIR, errno.EISDIR])
def test_a_file_that_can_not_be_written_is_a_users_affair(number: int) -> None:
    known = as_ft_error(OSError(number, os.strerror(number), "/runs/a/metrics.jsonl"))
    assert isinstance(known, CheckpointError) and known.problems[0].where == "/runs/a/metrics.jsonl" and "--resume" in known.problems[0].fix


def test_a_full_disk_that_a_library_tells_of_in_words() -> None:
    from safetensors import SafetensorError

    text = "Error while serializing: I/O error: No space left on device (os error 28)"
    known = as_ft_error(SafetensorError(text))
    assert isinstance(known, CheckpointError) and known.problems[0].what == text and "free some space" in known.problems[0].fix
    assert as_ft_error(OSError(errno.EIO, "x")) is None and as_ft_error(SafetensorError("header too large")) is None


def test_the_launcher_hears_of_an_error_that_no_file_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setenv(EVENTS_FD, str(write))
    monkeypatch.setenv("RANK", "1")
    (tmp_path / "logs").touch()
    assert report(OSError(errno.ENOSPC, "No space left on device", "/x"), RunDir(tmp_path)) == 5
    os.close(write)
    with open(read, encoding="utf-8") as events:
        event = json.loads(events.read())
    assert (event["event"], event["kind"], event["rank"], event["problems"][0]["where"]) == ("error", "CheckpointError", 1, "/x")


def test_a_log_on_a_full_disk_does_not_change_the_status(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        argv = [sys.executable, "-c", PROGRAM.format(body="raise DataError('x')"), str(tmp_path)]
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])}
        assert subprocess.run(argv, env=environment, stdout=full, stderr=full, check=False).returncode == 4
