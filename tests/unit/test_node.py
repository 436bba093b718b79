"""The supervisor of one host's ranks, with real processes: statuses, teardown within 10 s, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftcore.spec.run_dir import RunDir
from launcher.node import parse_arguments
from launcher.node_environment import host_environment, rank_environment
from launcher.node_supervisor import GRACE_S
from launcher.run_folder import locked
from tests.unit.live_processes import ROOT, alive, environment, is_alive, node_arguments, noted, run_node, wait_until, write_script

SLEEP = "time.sleep(600)"
GRANDCHILD = """
if RANK == 0 and len(sys.argv) == 1:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note_pid(child.pid, "grandchild")
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            os._exit(0)
        note_pid(os.getpid(), "daemon")
        time.sleep(600)
    os.waitpid(pid, 0)
wait_for(4)
"""
BOTH_ARE_READY = "be_ready()\nnote_pid(os.getpid(), 'ready')\nwait_for(4)\n"
"""Each notes itself as it starts, and once more when it has told the supervisor."""


def test_all_ranks_succeed(tmp_path: Path) -> None:
    script = write_script(tmp_path, "print('hello from', RANK); print(repr(sys.stdin.read()), file=sys.stderr)")
    status, events, _ = run_node(tmp_path, 2, script)
    assert status == 0
    assert {(event["rank"], event["status"], event["ended_by_launcher"]) for event in events} == {(0, 0, False), (1, 0, False)}
    assert [(tmp_path / "logs/attempt_1" / f"rank_{rank}.log").read_text() for rank in (0, 1)] == ["hello from 0\n''\n", "hello from 1\n''\n"]


def test_ranks_get_torchs_and_deepspeeds_variables(tmp_path: Path) -> None:
    script = write_script(tmp_path, "print(json.dumps(dict(os.environ)))")
    run_node(tmp_path, 2, script, "--devices", "2,5", env={"FTLAUNCH_ATTEMPT": "3", "GIVEN": "a b"})
    seen = json.loads((tmp_path / "logs/attempt_3/rank_1.log").read_text())
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    names = "RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 LOCAL_SIZE=2 NODE_RANK=0 CROSS_RANK=0 CROSS_SIZE=1 CUDA_VISIBLE_DEVICES=2,5 FTLAUNCH_ATTEMPT=3"
    wanted = {**dict(pair.split("=") for pair in names.split()), "GIVEN": "a b", "OMP_NUM_THREADS": str(threads)}
    assert {name: seen.get(name) for name in wanted} == wanted


def test_rank_environment_of_a_later_node() -> None:
    line = "--run-dir r --host beta --node-rank 1 --nodes 2 --local-ranks 3 --first-rank 2 --world-size 5 --devices 0,2,3 -- x"
    base = {"OMP_NUM_THREADS": "7", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    node, control, _ = parse_arguments(line.split())
    assert control == "none"
    made = rank_environment(host_environment(base, node, 16), node, 1)
    assert made["RANK"] == "3" and made["WORLD_SIZE"] == "5" and made["CROSS_SIZE"] == "2" and made["OMP_NUM_THREADS"] == "7"
    assert made["CUDA_VISIBLE_DEVICES"] == "4,6,7"


@pytest.mark.parametrize(
    ("fails", "status"),
    [("raise ValueError('no')", 1), ("sys.exit(6)", 6), ("os.kill(os.getpid(), signal.SIGKILL)", 137), ("os.kill(os.getpid(), signal.SIGSEGV)", 139)],
)
def test_first_failure_ends_all(tmp_path: Path, fails: str, status: int) -> None:
    script = write_script(tmp_path, f"wait_for(2)\nif RANK == 1:\n    {fails}\n{SLEEP}")
    seen, events, _ = run_node(tmp_path, 2, script)
    assert seen == status
    assert [(event["rank"], event["status"], event["ended_by_launcher"]) for event in events] == [(1, status, False), (0, 137, True)]
    # The other one, which takes no signals yet, is not given the time that one which does would get.
    assert events[1]["time"] - events[0]["time"] < GRACE_S
    assert len(noted(tmp_path)) == 2 and not alive(tmp_path)


def test_a_rank_that_takes_signals_is_asked_first(tmp_path: Path) -> None:
    script = write_script(tmp_path, f"{BOTH_ARE_READY}if RANK == 1:\n    sys.exit(5)\n{SLEEP}")
    status, events, _ = run_node(tmp_path, 2, script)
    assert status == 5
    assert [(event["rank"], event["status"], event["ended_by_launcher"]) for event in events] == [(1, 5, False), (0, 143, True)]


def test_a_rank_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = write_script(tmp_path, f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{BOTH_ARE_READY}if RANK == 1:\n    sys.exit(5)\n{SLEEP}")
    status, events, _ = run_node(tmp_path, 2, script)
    assert status == 5 and GRACE_S - 0.5 < events[1]["time"] - events[0]["time"] < 9
    assert [(event["rank"], event["status"]) for event in events] == [(1, 5), (0, 137)]
    assert not alive(tmp_path)


@pytest.mark.parametrize(("ending", "status"), [("sys.exit(4 if RANK == 1 else 0)", 4), ("sys.exit(0)", 0)])
def test_grandchildren_and_daemons_are_ended_too(tmp_path: Path, ending: str, status: int) -> None:
    script = write_script(tmp_path, GRANDCHILD + ending)
    seen, events, _ = run_node(tmp_path, 2, script)
    assert seen == status and time.time() - events[0]["time"] < 9, "from the first rank's end: what it took to start them is not counted"
    assert len(noted(tmp_path)) == 4 and not alive(tmp_path)


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_all(tmp_path: Path, signum: int, status: int) -> None:
    script = write_script(tmp_path, SLEEP)
    process = subprocess.Popen(node_arguments(tmp_path, 2, [sys.executable, str(script)]), env=environment(), cwd=ROOT)
    wait_until(lambda: len(noted(tmp_path)) == 2)
    process.send_signal(signum)
    assert process.wait(timeout=60) == status
    assert not alive(tmp_path)


def test_ranks_die_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    script = write_script(tmp_path, f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEP}")
    process = subprocess.Popen(node_arguments(tmp_path, 2, [sys.executable, str(script)]), env=environment(), cwd=ROOT)
    wait_until(lambda: len(noted(tmp_path)) == 2)
    process.kill()
    process.wait()
    wait_until(lambda: not alive(tmp_path), 60)


def test_all_ends_when_the_supervisors_parent_is_killed(tmp_path: Path) -> None:
    script = write_script(tmp_path, GRANDCHILD + SLEEP)
    starter = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    arguments = [sys.executable, "-c", starter, *node_arguments(tmp_path, 2, [sys.executable, str(script)])]
    with subprocess.Popen(arguments, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        supervisor = int(parent.stdout.readline())
        wait_until(lambda: len(noted(tmp_path)) == 4)
        parent.kill()
    wait_until(lambda: not alive(tmp_path) and not is_alive(supervisor), 60)


def test_a_command_that_can_not_be_started(tmp_path: Path) -> None:
    read_handle, write_handle = os.pipe()
    arguments = node_arguments(tmp_path, 2, [str(tmp_path / "missing")])
    env = environment(FTLAUNCH_EVENTS_FD=str(write_handle))
    ended = subprocess.run(arguments, env=env, cwd=ROOT, pass_fds=(write_handle,), capture_output=True, text=True, check=False)
    os.close(write_handle)
    with open(read_handle, encoding="utf-8") as events:
        event = json.loads(events.readline())
    assert ended.returncode == 3 and "can't start the ranks on localhost" in ended.stderr
    assert event["event"] == "error" and event["kind"] == "ClusterError" and event["exit_status"] == 3


def test_a_stale_events_descriptor_is_no_harm(tmp_path: Path) -> None:
    script = write_script(tmp_path, "os.fstat(int(os.environ['FTLAUNCH_EVENTS_FD'])); print(RANK)")
    for handle in ("87", "none"):
        arguments = node_arguments(tmp_path, 1, [sys.executable, str(script)])
        assert subprocess.run(arguments, env=environment(FTLAUNCH_EVENTS_FD=handle), cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "logs/attempt_1/rank_0.log").read_text() == "0\n0\n"


def test_the_supervisor_uses_no_time_while_ranks_run(tmp_path: Path) -> None:
    """It wakes once a second, for its sign of life."""
    script = write_script(tmp_path, f"os.write(int(os.environ['FTLAUNCH_EVENTS_FD']), b'{{\"event\": \"running\"}}\\n')\n{SLEEP}")
    read_handle, write_handle = os.pipe()
    arguments = node_arguments(tmp_path, 1, [sys.executable, str(script)])
    process = subprocess.Popen(arguments, env=environment(FTLAUNCH_EVENTS_FD=str(write_handle)), pass_fds=(write_handle,), cwd=ROOT)
    os.close(write_handle)

    def slept() -> int:
        # How often it went to sleep by itself; that a busy machine takes the processor away is no work of its.
        status = Path(f"/proc/{process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))

    with open(read_handle, encoding="utf-8") as events:
        # It hands an event of a rank on when it has started and watches.
        assert json.loads(events.readline())["event"] == "running"
        before, began = slept(), time.monotonic()
        time.sleep(3)
        woken, seconds = slept() - before, time.monotonic() - began
        process.terminate()
        process.wait(timeout=60)
    assert woken <= 3 + 1.5 * seconds


def test_one_started_by_hand_owns_the_folder_as_a_launcher_does(tmp_path: Path) -> None:
    script = write_script(tmp_path, f"sys.exit(subprocess.run(['flock', '--nonblock', {str(tmp_path / '.lock')!r}, 'true']).returncode)")
    assert run_node(tmp_path, 1, script)[0] == 1, "while its ranks run nobody else gets the folder"
    with locked(RunDir(tmp_path)):
        assert run_node(tmp_path, 1, script)[0] == 5
