"""Ranks forked from a process that imports once: they are like ranks started one by one, and no end of that process leaves anything behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import FtError
from launcher import node, node_environment
from launcher.processes import AdoptedProcess
from launcher.progress import Progress
from tests.unit.live_processes import ROOT, SOON_S, alive, environment, node_arguments, noted, wait_until
from tests.unit.local_launch import launch

MODULE = """
import json, os, random, signal, subprocess, sys, threading, time, uuid
PIDS = {pids!r}

def note(name, pid=None):
    open(os.path.join(PIDS, f"{{name}}.{{pid or os.getpid()}}"), "w").close()

def wait_for_ranks():
    while sum(name.startswith("rank") for name in os.listdir(PIDS)) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)

note("import")
{at_import}

def main(run_dir):
    RANK = int(os.environ["RANK"])
    note(f"rank{{RANK}}")
{body}
"""
SLEEP = "time.sleep(600)"
TELL = """
import numpy as np
fresh = [random.random(), float(np.random.rand()), str(uuid.uuid4())]
handlers = [signal.getsignal(each) is signal.SIG_DFL for each in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)]
told = dict(parent=os.getppid(), leads=os.getsid(0) == os.getpid(), fresh=fresh, handlers=handlers, blocked=len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
handles = [os.readlink(f"/proc/self/fd/{handle}") for handle in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{handle}")]
told.update(handles=handles, stdin=sys.stdin.read(), argv=sys.argv, environment=dict(os.environ))
with open(f"{PIDS}/../told_{RANK}.json", "w") as file:
    json.dump(told, file)
print("error output", file=sys.stderr)
"""


def write_module(folder: Path, body: str, at_import: str = "") -> None:
    """`trained.py` in `folder`: its import and its ranks note their pids in `folder/pids`."""
    (folder / "pids").mkdir(exist_ok=True)
    indented = textwrap.indent(textwrap.dedent(body), "    ")
    (folder / "trained.py").write_text(MODULE.format(pids=str(folder / "pids"), at_import=textwrap.dedent(at_import), body=indented))


def arguments(folder: Path, ranks: int = 2) -> list[str]:
    return node_arguments(folder, ranks, [sys.executable, "-m", "trained", str(folder)], "--import-once")


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    return environment(PYTHONPATH=f"{ROOT}:{folder}", DS_ACCELERATOR="cpu", **more)


def run_forked(folder: Path, ranks: int = 2) -> tuple[int, list[dict[str, Any]], float, str]:
    """Runs a supervisor to its end: exit status, events, seconds, its own output."""
    read_handle, write_handle = os.pipe()
    began = time.monotonic()
    env = environment_of(folder, FTLAUNCH_EVENTS_FD=str(write_handle))
    ended = subprocess.run(arguments(folder, ranks), env=env, pass_fds=(write_handle,), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    os.close(write_handle)
    with open(read_handle, encoding="utf-8") as events:
        return ended.returncode, [json.loads(line) for line in events], time.monotonic() - began, ended.stderr


def noted_names(folder: Path) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in (folder / "pids").iterdir())


def begun(folder: Path, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """A supervisor that runs on while the test acts on it."""
    return subprocess.Popen(arguments(folder), env=environment_of(folder), cwd=ROOT, stdout=stdout, stderr=subprocess.DEVNULL)


def test_forked_ranks_are_like_ranks_started_one_by_one(tmp_path: Path) -> None:
    write_module(tmp_path, TELL, "print('imported', end='')")
    supervisor = begun(tmp_path, subprocess.PIPE)
    assert supervisor.communicate(timeout=120)[0] == b"imported" and supervisor.returncode == 0
    assert noted_names(tmp_path) == ["import", "rank0", "rank1"]
    told = [json.loads((tmp_path / f"told_{rank}.json").read_text()) for rank in (0, 1)]
    for rank, each in enumerate(told):
        assert each["parent"] == supervisor.pid and each["leads"] and each["handlers"] == [True] * 3 and each["blocked"] == 3
        assert each["stdin"] == "" and each["argv"] == ["trained", str(tmp_path)]
        log = tmp_path / "logs/attempt_1" / f"rank_{rank}.log"
        assert log.read_text() == "error output\n"
        # Its log twice, no input, the pipe for events, and nothing of the start: neither another rank's log nor another pipe.
        assert sorted(each["handles"])[:3] == ["/dev/null", str(log), str(log)] and sum("pipe" in handle for handle in each["handles"]) == 1
        wanted = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
        assert {name: each["environment"].get(name) for name in wanted} == wanted
        assert each["environment"]["MALLOC_TOP_PAD_"] and each["environment"]["OMP_NUM_THREADS"]
    assert all(mine != other for mine, other in zip(told[0]["fresh"], told[1]["fresh"], strict=True))


@pytest.mark.parametrize(("fails", "status"), [("raise ValueError('no')", 1), ("sys.exit(6)", 1), ("os.kill(os.getpid(), signal.SIGKILL)", 137)])
def test_first_failure_ends_all(tmp_path: Path, fails: str, status: int) -> None:
    write_module(tmp_path, f"wait_for_ranks()\nif RANK == 1:\n    {fails}\n{SLEEP}")
    seen, events, seconds, _ = run_forked(tmp_path)
    assert seen == status and seconds < SOON_S
    exits = [(event["rank"], event["status"], event["ended_by_launcher"]) for event in events if event["event"] == "rank_exit"]
    assert exits == [(1, status, False), (0, 137, True)]
    assert len(noted(tmp_path)) == 3 and not alive(tmp_path)


def test_daemons_of_a_rank_are_ended_too(tmp_path: Path) -> None:
    daemon = (
        "pid = os.fork()\nif pid == 0:\n    os.setsid()\n    if os.fork():\n        os._exit(0)\n    note('daemon')\n    time.sleep(600)\nos.waitpid(pid, 0)\n"
    )
    write_module(tmp_path, f"if RANK == 0:\n{textwrap.indent(daemon, '    ')}    while 'daemon' not in str(os.listdir(PIDS)): time.sleep(0.01)")
    assert run_forked(tmp_path)[0] == 0
    assert noted_names(tmp_path) == ["daemon", "import", "rank0", "rank1"] and not alive(tmp_path)


@pytest.mark.parametrize(
    ("at_import", "status", "said"),
    [
        ("raise ValueError('bad library')", 1, "ValueError: bad library"),
        ("import a_library_that_is_missing", 1, "a_library_that_is_missing"),
        ("os._exit(0)", 1, "ended before it had started them: exit status 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "ended before it had started them: exit status 137"),
    ],
)
def test_an_import_that_fails(tmp_path: Path, at_import: str, status: int, said: str) -> None:
    """No rank is started, the reason is in the supervisor's own output, and no rank is blamed."""
    write_module(tmp_path, SLEEP, at_import)
    seen, events, seconds, output = run_forked(tmp_path)
    assert (seen, noted_names(tmp_path)) == (status, ["import"]) and seconds < SOON_S
    assert said in output and "on localhost" not in output
    errors = [event for event in events if event["event"] == "error"]
    assert len(errors) == ("library" in at_import) and all(error["rank"] is None and said in str(error["problems"]) for error in errors)
    assert not [event for event in events if event["event"] == "rank_exit"]


@pytest.mark.parametrize(
    ("at_import", "status", "report"),
    [
        ("raise ValueError('bad library')", 1, "ValueError: bad library"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            137,
            "failed: killed by SIGKILL (exit status 137)\n  last lines of its log:\n    the process that imports for the ranks",
        ),
    ],
)
def test_the_report_of_an_import_that_fails(tmp_path: Path, at_import: str, status: int, report: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    write_module(tmp_path, SLEEP, at_import)
    with pytest.raises(FtError) as caught:
        launch(tmp_path, Progress(io.StringIO()))
    text = str(caught.value)
    assert caught.value.exit_status == status and text.startswith("the supervisor") and report in text
    assert f"its log: {tmp_path}/run/logs/attempt_1/node_0.log" in text


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
@pytest.mark.parametrize("when", ["import", "rank1"])
def test_a_signal_ends_all(tmp_path: Path, when: str, signum: int, status: int) -> None:
    write_module(tmp_path, SLEEP, SLEEP if when == "import" else "")
    supervisor = begun(tmp_path)
    wait_until(lambda: when in noted_names(tmp_path))
    supervisor.send_signal(signum)
    assert supervisor.wait(timeout=SOON_S) == status
    assert not alive(tmp_path)


@pytest.mark.parametrize("when", ["import", "rank1"])
def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path, when: str) -> None:
    write_module(tmp_path, f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEP}", SLEEP if when == "import" else "")
    supervisor = begun(tmp_path)
    wait_until(lambda: when in noted_names(tmp_path))
    supervisor.kill()
    supervisor.wait()
    wait_until(lambda: not alive(tmp_path))


def test_no_rank_begins_when_the_fork_is_cut_short(tmp_path: Path) -> None:
    """The second fork fails, as where processes run out: the first rank ends without having begun."""
    fails = "real, forks = os.fork, []\ndef fork():\n    forks.append(1)\n    if len(forks) > 1: raise BlockingIOError(11, 'no more processes')\n"
    write_module(tmp_path, SLEEP, f"{fails}    pid = real()\n    note('fork', pid) if pid else None\n    return pid\nos.fork = fork")
    status, events, seconds, output = run_forked(tmp_path)
    assert status == 1 and seconds < SOON_S and "no more processes" in output
    assert [event["event"] for event in events] == ["error"]
    assert noted_names(tmp_path) == ["fork", "import"] and not alive(tmp_path)


def test_what_can_not_be_forked_is_started_anew(tmp_path: Path) -> None:
    """A thread would be missing in a fork: each rank imports for itself then."""
    write_module(tmp_path, "print('rank', RANK, sys.argv[0])", "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()")
    with (tmp_path / "trained.py").open("a") as module:
        module.write("if __name__ == '__main__':\n    main(sys.argv[1])\n    os._exit(0)\n")
    assert run_forked(tmp_path)[0] == 0
    assert noted_names(tmp_path) == ["import", "import", "import", "rank0", "rank1"]
    assert (tmp_path / "logs/attempt_1/rank_1.log").read_text() == f"rank 1 {tmp_path / 'trained.py'}\n"


@pytest.mark.parametrize(("ranks", "accelerators", "forks"), [(1, 0, False), (2, 0, True), (2, 2, False)])
def test_where_ranks_are_forked(ranks: int, accelerators: int, forks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one alone, nor beside accelerators, which a library may have asked for their abilities when it was imported."""
    monkeypatch.setattr(node_environment, "local_accelerators", lambda: accelerators)
    line = f"--run-dir r --node-rank 0 --nodes 1 --local-ranks {ranks} --first-rank 0 --world-size {ranks} --import-once -- python -m m r"
    assert node.parse_arguments(line.split())[0].forks is forks


def test_a_command_that_can_not_be_imported(tmp_path: Path) -> None:
    line = node_arguments(tmp_path, 2, ["true"], "--import-once")
    ended = subprocess.run(line, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "--import-once needs a command of the form PYTHON -m MODULE RUN" in ended.stderr


def test_a_process_that_is_no_child_is_not_waited_for() -> None:
    with pytest.raises(ChildProcessError):
        AdoptedProcess(os.getppid()).poll()


def test_the_core_can_be_forked_after_its_import() -> None:
    """It starts no thread that a rank would miss, and a fork computes: OpenBLAS, OpenMP and Arrow, each with threads of their own."""
    program = """
import os, sys
import ftcore.run, ftcore.evaluate_model
from ftcore.forked_ranks import can_be_forked
import numpy, pyarrow, torch
assert can_be_forked() and not torch.cuda.is_initialized()
pid = os.fork()
if pid == 0:
    square = numpy.ones((600, 600), dtype=numpy.float32)
    weights = torch.from_numpy(square).requires_grad_()
    torch.nn.functional.linear(weights, weights).sum().backward()
    sums = [float((square @ square).sum()), float(weights.grad.sum()) / 2, pyarrow.array(range(1000)).cast("float64").sum().as_py()]
    print(sums, flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    line, env = [sys.executable, "-c", program], environment(OMP_NUM_THREADS="3")
    ended = subprocess.run(line, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == [600.0**3, 600.0**3, 499500.0]
