"""Launches on this machine with real processes: what is reported, the exit status, and that nothing is left behind."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError, DataError, FtError
from ftcore.spec.run_dir import RunDir, write_atomic
from launcher.backends.base import Launch
from launcher.backends.hosts import summary
from launcher.failure import RunFailedError, memory_hints
from launcher.progress import Progress
from launcher.record import Record
from launcher.run_folder import locked
from tests.unit.live_processes import ROOT, SLEEP, SOON_S, alive, environment, noted, wait_until, write_script
from tests.unit.local_launch import launch, resolved_for

EMIT = """
from pathlib import Path
from ftcore.spec.events import emit
from ftcore.spec.run_dir import RunDir, write_atomic
"""


def run(folder: Path) -> tuple[str, str]:
    """Summary and progress of a launch."""
    shown = io.StringIO()
    return launch(folder, Progress(shown)), shown.getvalue()


def failure(folder: Path) -> FtError:
    with pytest.raises(FtError) as caught:
        run(folder)
    assert not alive(folder)
    return caught.value


def start(folder: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "tests.unit.local_launch", str(folder)]
    return subprocess.Popen(arguments, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def whole_checkpoint(update: int) -> dict[str, str]:
    """Name -> content of the files that make a folder look like a whole checkpoint."""
    return {"cursor.json": "{}", "manifest.json": json.dumps({"update": update, "files": [{"path": "cursor.json", "bytes": 2}]})}


def test_a_run_that_succeeds(tmp_path: Path) -> None:
    write_script(tmp_path, EMIT + "emit('progress', stage='prepare', done=0, total=3, text='reading'); print('noise')", "prepare.py")
    rates = "tokens_per_s=5678.5, supervised_tokens_per_s=1234.5"
    updates = f"[emit('update', update=k, total_updates=2, epoch=k / 2, loss=3.0 - k, learning_rate=1e-4, {rates}) for k in (1, 2)]"
    evaluations = "emit('evaluation', update=0, loss=4.0, tokens=9); emit('evaluation', update=2, loss=1.5, tokens=9)"
    checkpoint = tmp_path / "run/checkpoints/update_00000002"
    saved = f"[write_atomic(Path({str(checkpoint)!r}) / name, text) for name, text in {whole_checkpoint(2)!r}.items()]"
    write_script(tmp_path, EMIT + f"print('noise')\nif RANK == 0: {updates}; {evaluations}; {saved}")
    write_script(tmp_path, EMIT + "emit('exported', path='x', form='hf', update=2); emit('note', text='a note')", "export.py")
    summary, shown = run(tmp_path)
    assert summary.splitlines() == [
        "done",
        "  loss              2.0000 (update 1) -> 1.0000 (update 2)",
        "  evaluation loss   4.0000 (before training) -> 1.5000 (update 2), per supervised token",
        f"  run folder        {tmp_path}/run",
        f"  checkpoint        {tmp_path}/run/checkpoints/update_00000002",
        f"  model             {tmp_path}/run/model",
    ]
    assert shown.splitlines() == [
        "prepare 0/3: reading",
        f"starting 2 ranks; logs are in {tmp_path}/run/logs/attempt_1",
        "update 1/2  loss 2.0000  lr 1.00e-04  ETA -  1,234 supervised tokens/s  5,678 tokens/s  epoch 0.50",
        "update 2/2  loss 1.0000  lr 1.00e-04  ETA 0:00:00  1,234 supervised tokens/s  5,678 tokens/s  epoch 1.00",
        "evaluation after update 0: loss 4.0000 per supervised token",
        "evaluation after update 2: loss 1.5000 per supervised token",
        "a note",
    ]
    assert (tmp_path / "run/logs/attempt_1/rank_0.log").read_text() == "noise\n"
    assert len(noted(tmp_path)) == 4 and not alive(tmp_path)


def test_what_its_caller_deletes_is_not_named_at_the_end(tmp_path: Path) -> None:
    for name, text in whole_checkpoint(2).items():
        write_atomic(tmp_path / "run/checkpoints/update_00000002" / name, text)
    kept = Launch(run_dir=RunDir(tmp_path / "run"), resolved=resolved_for(), attempt=1, environment={}, lock_handle=0, prepare=(), export=None)
    assert "  checkpoint  " in summary(kept, Record()) and "  checkpoint  " not in summary(dataclasses.replace(kept, keeps=False), Record())


def test_a_users_mistake_found_by_the_preparation(tmp_path: Path) -> None:
    problems = "[dict(what=f'row {k} is broken ' + 'x' * 50, where='', fix='mend it', file='d.jsonl', line=k) for k in range(200)]"
    body = f"emit('error', kind='DataError', problems={problems}, exit_status=4, traceback='', rank=None); sys.exit(4)"
    write_script(tmp_path, EMIT + body, "prepare.py")
    error = failure(tmp_path)
    assert type(error) is DataError and len(error.problems) == 200 and error.exit_status == 4
    assert not (tmp_path / "run/logs/attempt_1/rank_0.log").exists()


def test_a_crash_of_the_preparation_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "prepare.py").write_text("import nowhere_to_be_found\n")
    error = failure(tmp_path)
    text = str(error)
    assert error.exit_status == 1 and text.startswith("the preparation failed: exit status 1")
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in text and "attempt_1/prepare.log" in text


def test_a_bug_in_the_preparation_shows_its_traceback(tmp_path: Path) -> None:
    problem = "dict(what='KeyError: 1', where='', fix='', file='', line=None)"
    body = f"emit('error', kind='FtError', problems=[{problem}], exit_status=1, traceback='line a\\nline b', rank=None); sys.exit(1)"
    write_script(tmp_path, EMIT + body, "prepare.py")
    text = str(failure(tmp_path))
    assert "KeyError: 1" in text and "line b" in text and "this is a bug of ftlaunch" in text


RANK_ERROR = """
def fail(kind, what, status, **more):
    problem = dict(what=what, where='', fix='', file='', line=None)
    emit('error', kind=kind, problems=[problem], exit_status=status, rank=RANK, host='localhost', **more)
    sys.exit(status)
wait_for(2)
"""


def test_the_first_rank_that_failed_is_reported(tmp_path: Path) -> None:
    # The other one fails when it is ended.
    body = """
    if RANK == 1:
        wait_for(3)
        fail('TrainingError', 'loss is nan at update 7', 6, traceback='')
    signal.signal(signal.SIGTERM, lambda *_: fail('FtError', 'another one', 1, traceback='x'))
    be_ready()
    note_pid(os.getpid(), 'ready')
    time.sleep(600)
    """
    write_script(tmp_path, EMIT + RANK_ERROR + textwrap.dedent(body))
    for name, text in whole_checkpoint(5).items():
        write_atomic(tmp_path / "run/checkpoints/update_00000005" / name, text)
    error = failure(tmp_path)
    assert error.exit_status == 6
    assert str(error).splitlines() == [
        "rank 1 on localhost failed: exit status 6",
        "    loss is nan at update 7",
        f"  its log: {tmp_path}/run/logs/attempt_1/rank_1.log",
        f"  to do: ftlaunch --resume {tmp_path}/run   (goes on after update 5)",
    ]
    *told, last = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    wanted = [("error", 1, 1), ("rank_exit", 1, 1), ("error", 0, 1), ("rank_exit", 0, 1)]
    assert [(event["event"], event["rank"], event["attempt"]) for event in told] == wanted
    assert (last["event"], last["who"], last["log"]) == ("failure", "rank 1 on localhost", "logs/attempt_1/rank_1.log")


def test_a_lost_connection_is_not_the_first_failure(tmp_path: Path) -> None:
    body = """
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(0.5)
    # As if it had noticed before the supervisor did.
    fail('FtError', 'RuntimeError: Connection closed by peer', 1, traceback='x', lost_peer=True, time=time.time() - 5)
    """
    write_script(tmp_path, EMIT + RANK_ERROR + textwrap.dedent(body))
    error = failure(tmp_path)
    assert error.exit_status == 139 and str(error).startswith("rank 1 on localhost failed: killed by SIGSEGV (exit status 139)")


def test_a_rank_killed_from_outside(tmp_path: Path) -> None:
    write_script(tmp_path, f"print('last words', flush=True)\nwait_for(2)\nif RANK == 1: os.kill(os.getpid(), signal.SIGKILL){SLEEP}")
    error = failure(tmp_path)
    text = str(error)
    assert error.exit_status == 137 and "rank 1 on localhost failed: killed by SIGKILL (exit status 137)" in text
    # What the numbers say of memory is the machine's affair.
    exited = next(json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines() if '"rank_exit"' in line)
    assert "    last words" in text and exited["available_bytes"] > 0 and memory_hints(exited)[0] in text
    assert "no checkpoint yet: begins at the first update" in text


def test_an_error_too_long_for_an_event_is_read_from_its_file(tmp_path: Path) -> None:
    body = """
    wait_for(2)
    problem = dict(what='y' * 6000, where='', fix='', file='', line=None)
    details = dict(kind='TrainingError', problems=[problem], exit_status=6, rank=RANK, host='localhost', time=time.time())
    if RANK == 1:
        write_atomic(RunDir(Path(RUN)).rank_error(1, 1), json.dumps(dict(details, traceback='the whole')))
        emit('error', **details, traceback='')
        sys.exit(6)
    time.sleep(600)
    """
    write_script(tmp_path, EMIT + f"RUN = {str(tmp_path / 'run')!r}" + textwrap.dedent(body))
    error = failure(tmp_path)
    assert error.exit_status == 6 and "y" * 6000 in str(error) and "the whole" in str(error)


def test_the_supervisor_itself_is_killed(tmp_path: Path) -> None:
    write_script(tmp_path, GRANDCHILD + "wait_for(3)\nif RANK == 1: os.kill(os.getppid(), signal.SIGKILL)" + SLEEP)
    error = failure(tmp_path)
    assert isinstance(error, RunFailedError) and error.exit_status == 137
    assert str(error).startswith("the supervisor of the ranks on localhost failed: killed by SIGKILL") and len(noted(tmp_path)) == 3


GRANDCHILD = """
if RANK == 0:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    note_pid(child.pid, "grandchild")
"""


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 129)])
def test_a_signal_to_the_launcher_ends_all(tmp_path: Path, signum: int, status: int) -> None:
    write_script(tmp_path, f"{GRANDCHILD}    note_pid(os.getppid(), 'supervisor')\n{SLEEP}")
    process = start(tmp_path)
    wait_until(lambda: len(noted(tmp_path)) == 4)
    (supervisor,) = (int(path.suffix[1:]) for path in (tmp_path / "pids").glob("supervisor.*"))
    # It ends nothing until the launcher has got both signals.
    os.kill(supervisor, signal.SIGSTOP)
    process.send_signal(signum)
    assert process.stdout is not None
    shown = [process.stdout.readline(), process.stdout.readline()]
    # A second one changes nothing.
    process.send_signal(signum)
    os.kill(supervisor, signal.SIGCONT)
    _, told = process.communicate(timeout=SOON_S)
    assert process.returncode == status and not alive(tmp_path)
    name = signal.Signals(signum).name
    assert f"{name}: ending all processes of the run" in shown[1]
    assert ("preempted" if status == 75 else "stopped") + f" by {name}" in told and "ftlaunch --resume" in told and "Traceback" not in told


@pytest.mark.parametrize("name", ["prepare.py", "export.py"])
def test_a_signal_during_another_step(tmp_path: Path, name: str) -> None:
    write_script(tmp_path, SLEEP, name)
    process = start(tmp_path)
    wait_until(lambda: len(noted(tmp_path)) == 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=SOON_S) == 75 and not alive(tmp_path)
    process.communicate()


def test_a_step_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    write_script(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote_pid(os.getpid(), 'ready')" + SLEEP, "prepare.py")
    process = start(tmp_path)
    wait_until(lambda: len(noted(tmp_path)) == 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SOON_S)
    assert process.returncode == 75 and not alive(tmp_path)


def test_no_rank_is_started_after_a_stop(tmp_path: Path) -> None:
    write_script(tmp_path, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nnote_pid(os.getpid(), 'ready')" + SLEEP, "prepare.py")
    process = start(tmp_path)
    wait_until(lambda: len(noted(tmp_path)) == 2)
    process.send_signal(signal.SIGTERM)
    shown, told = process.communicate(timeout=SOON_S)
    assert process.returncode == 75 and "starting" not in shown and "no checkpoint yet" in told


def test_a_launcher_in_the_background_of_a_script(tmp_path: Path) -> None:
    write_script(tmp_path, SLEEP)
    line = f"{sys.executable} -m tests.unit.local_launch {tmp_path} & echo $!; wait $!; echo status $?"
    shell = subprocess.Popen(["sh", "-c", line], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    wait_until(lambda: len(noted(tmp_path)) == 2)
    os.kill(pid, signal.SIGINT)
    assert "status 130" in shell.communicate(timeout=SOON_S)[0] and not alive(tmp_path)


def test_kill_9_of_the_launcher(tmp_path: Path) -> None:
    write_script(tmp_path, GRANDCHILD + SLEEP)
    process = start(tmp_path)
    wait_until(lambda: len(noted(tmp_path)) == 3)
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(tmp_path))

    def is_free() -> bool:
        try:
            with locked(RunDir(tmp_path / "run")):
                return True
        except FtError:
            return False

    wait_until(is_free)


def test_a_users_mistake_found_by_a_rank_is_not_for_resuming(tmp_path: Path) -> None:
    write_script(tmp_path, EMIT + RANK_ERROR + "if RANK == 1: fail('SpecError', 'no such layer', 2, traceback='')" + SLEEP)
    error = failure(tmp_path)
    assert error.exit_status == 2 and "no such layer" in str(error) and "start a new run" in str(error) and "--resume" not in str(error)


def test_a_log_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/logs").symlink_to(tmp_path / "nowhere" / "else")
    error = failure(tmp_path)
    assert isinstance(error, CheckpointError) and "can't write" in str(error)
