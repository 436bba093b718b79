"""Several hosts as one, with real supervisors whose connections are processes of this machine: silence, loss, hangs, the meeting, and what ends what."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import PREEMPTED
from ftcore.spec.resolved import Host
from launcher.backends import host_group
from launcher.backends.channel import Line
from launcher.backends.host_group import Ending, HostGroup, Rules
from launcher.backends.stall import Limits, StallWatch
from launcher.children import Event, StopSignals, stop_signals
from launcher.json_lines import Message
from tests.unit.live_processes import ROOT, SLEEP, SOON_S, alive, environment, noted, wait_until, write_script

NAMES = ("alpha", "beta")
PATIENT_S = 60.0
"""How long either side may be silent, where silence is not what is tested: a busy machine may let any process wait."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_group, "END_LIMIT_S", PATIENT_S)


def line(folder: Path, number: int, script: Path, argv: tuple[str, ...] = (), *, ranks_here: int = 1) -> Line:
    """A host, with one rank where nothing else is said, reached by a process here that is watched as if a network lay between."""
    node = [
        *("-m", "launcher.node", "--run-dir", str(folder), "--host", NAMES[number]),
        *("--node-rank", str(number), "--nodes", "2", "--local-ranks", str(ranks_here)),
    ]
    ranks = ["--first-rank", str(number), "--world-size", str(1 + ranks_here), "--control", "both", "--", sys.executable, str(script)]
    log = folder / f"logs/attempt_1/node_{number}.log"
    host = Host(name=NAMES[number], slots=1)
    command = argv or (sys.executable, *node, *ranks)
    return Line(host=host, node_rank=number, argv=command, environment=environment(), log=log, is_remote=True, takes_orders=True)


def header(heartbeat_timeout: float = PATIENT_S, **more: str) -> Message:
    variables = {"FTLAUNCH_LAUNCH_ID": "test", **more}
    return {"environment": variables, "attempt": 1, "master_addr": "127.0.0.1", "master_port": None, "heartbeat_timeout": heartbeat_timeout}


class Run:
    """A group of two hosts that runs in this thread, while `act` is called in another one."""

    def __init__(
        self, folder: Path, script: Path, *, instead: tuple[str, ...] = (), stall: float = 0, silence: float = PATIENT_S, grace: float = PATIENT_S
    ) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.seconds = 0.0
        lines = [line(folder, 0, script), line(folder, 1, script, instead)]
        rules = Rules(heartbeat_timeout=silence, hang=Limits(start_s=0.0, stall_s=stall), preempt_grace=grace)
        self._group = HostGroup(lines, [header(ONLY="alpha's"), header(ONLY='b $x \'q\' "d" \n é {"j": 1}')], rules, on_event=self.events.append)

    def to_its_end(self, act: Callable[[StopSignals], None] = lambda stop: None) -> Ending:
        with stop_signals() as stop:
            failed: list[BaseException] = []

            def acts() -> None:
                try:
                    act(stop)
                except BaseException as error:  # noqa: BLE001  shown below
                    failed.append(error)
                    stop.requested = signal.SIGINT

            thread = threading.Thread(target=acts)
            thread.start()
            began = time.monotonic()
            ending = self._group.run(stop, lambda: None)
            self.seconds = time.monotonic() - began
            thread.join()
        assert not failed, failed
        if ending.lost:
            # Its ranks die with the supervisor, which says nothing of it.
            wait_until(lambda: not alive(self.folder))
        assert not alive(self.folder)
        return ending

    def exits(self) -> dict[int, int]:
        return {event["rank"]: event["status"] for event in self.events if event["event"] == "rank_exit"}


def supervisor_of(folder: Path, name: str) -> int:
    """Pid of a host's supervisor."""
    listing = subprocess.run(["pgrep", "-f", "--", f"--run-dir {folder} --host {name} "], capture_output=True, text=True, check=True).stdout
    return int(listing.split()[0])


def seconds_heard(who: str, text: str) -> float:
    """For how long nothing was heard, by what is told of it."""
    told = re.search(rf"nothing was heard of {who} for ([0-9.]+) s", text)
    assert told is not None, text
    return float(told[1])


def test_ranks_of_all_hosts_meet_and_get_their_hosts_variables(tmp_path: Path) -> None:
    names = "'MASTER_ADDR', 'MASTER_PORT', 'WORLD_SIZE', 'NODE_RANK', 'GLOO_SOCKET_IFNAME', 'ONLY'"
    script = write_script(tmp_path, f"open({str(tmp_path)!r} + f'/told_{{RANK}}', 'w').write(json.dumps({{n: os.environ[n] for n in ({names})}}))")
    run = Run(tmp_path, script)
    ending = run.to_its_end()
    assert ending == Ending(statuses={"alpha": 0, "beta": 0}) and run.exits() == {0: 0, 1: 0}
    told = [json.loads((tmp_path / f"told_{rank}").read_text()) for rank in (0, 1)]
    assert told[0]["MASTER_PORT"] == told[1]["MASTER_PORT"] and told[0]["MASTER_ADDR"] == told[1]["MASTER_ADDR"] == "127.0.0.1"
    assert [each["NODE_RANK"] for each in told] == ["0", "1"] and {each["GLOO_SOCKET_IFNAME"] for each in told} == {"lo"}
    assert [each["ONLY"] for each in told] == ["alpha's", 'b $x \'q\' "d" \n é {"j": 1}']


def test_the_first_rank_that_fails_ends_all_hosts(tmp_path: Path) -> None:
    run = Run(tmp_path, write_script(tmp_path, f"wait_for(2)\nif RANK == 1: sys.exit(7){SLEEP}"))
    ending = run.to_its_end()
    assert ending.statuses == {"alpha": 0, "beta": 7} and run.exits() == {0: 137, 1: 7} and run.seconds < SOON_S
    assert not ending.lost and [event["host"] for event in run.events if event["event"] == "rank_exit" and event["rank"] == 1] == ["beta"]


def test_a_host_that_falls_silent_is_lost(tmp_path: Path) -> None:
    """Its supervisor is stopped, as a machine that hangs: the others end, and it is told."""
    run = Run(tmp_path, write_script(tmp_path, SLEEP), silence=10)

    def act(_: StopSignals) -> None:
        wait_until(lambda: len(noted(tmp_path)) == 2)
        os.kill(supervisor_of(tmp_path, "beta"), signal.SIGSTOP)

    ending = run.to_its_end(act)
    assert list(ending.lost) == ["beta"] and 10 <= seconds_heard("it", ending.lost["beta"]) < SOON_S and ending.statuses == {"alpha": 0}
    assert run.exits() == {0: 137}


def test_a_connection_that_ends_is_a_lost_host(tmp_path: Path) -> None:
    run = Run(tmp_path, write_script(tmp_path, SLEEP))

    def act(_: StopSignals) -> None:
        wait_until(lambda: len(noted(tmp_path)) == 2)
        os.kill(supervisor_of(tmp_path, "beta"), signal.SIGKILL)

    ending = run.to_its_end(act)
    assert "the connection ended (exit status 137" in ending.lost["beta"] and run.seconds < SOON_S


def test_a_host_that_can_not_be_reached_says_why(tmp_path: Path) -> None:
    run = Run(tmp_path, write_script(tmp_path, SLEEP), instead=("bash", "-c", "echo Permission denied >&2; exit 255"))
    ending = run.to_its_end()
    assert "could not be reached" in ending.lost["beta"] and "Permission denied" in ending.lost["beta"] and not noted(tmp_path)


def test_a_host_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_group, "REACH_LIMIT_S", 1.0)
    run = Run(tmp_path, write_script(tmp_path, SLEEP), instead=("sleep", "600"))
    assert "it did not answer in 1 s" in run.to_its_end().lost["beta"] and not noted(tmp_path)


def test_a_run_that_hangs_is_ended_with_its_stacks(tmp_path: Path) -> None:
    """I03: by the launcher's own clock, whatever the ranks wait for."""
    moves = "os.write(int(os.environ['FTLAUNCH_EVENTS_FD']), json.dumps(dict(event='at', rank=RANK, update=1, stage='train')).encode() + b'\\n')"
    stands = "def waits_here(): time.sleep(600)\ndef sends_here(): signal.sigtimedwait([], 600)\n(sends_here if RANK else waits_here)()"
    run = Run(tmp_path, write_script(tmp_path, f"{moves}\n{stands}"), stall=3)
    ending = run.to_its_end()
    assert ending.is_stalled and not ending.lost and 3 < run.seconds < SOON_S
    assert ending.stall_places == {0: "train after update 1", 1: "train after update 1"}
    assert ending.stacks[0].startswith("waits_here (") and ending.stacks[1].startswith("sends_here (")
    assert "waits_here" in (tmp_path / "logs/attempt_1/stacks/rank_0.txt").read_text()


def test_a_stop_ends_all_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path, write_script(tmp_path, SLEEP))

    def act(_: StopSignals) -> None:
        wait_until(lambda: len(noted(tmp_path)) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    ending = run.to_its_end(act)
    assert ending == Ending(statuses={"alpha": 0, "beta": 0}) and run.seconds < SOON_S


SAVES = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
os.write(int(os.environ["FTLAUNCH_EVENTS_FD"]), json.dumps(dict(event="ready", rank=RANK)).encode() + b"\\n")
note_pid(os.getpid(), f"ready{RANK}")
signal.sigwait([signal.SIGUSR2])
"""


@pytest.mark.parametrize("who", ["launcher", "supervisor"])
def test_a_preemption_lets_the_ranks_save(tmp_path: Path, who: str) -> None:
    """H04: whoever gets the signal, all ranks of all hosts are asked, by SIGUSR2."""
    run = Run(tmp_path, write_script(tmp_path, f"{SAVES}time.sleep(0.3)\nsys.exit({PREEMPTED})"))

    def act(_: StopSignals) -> None:
        wait_until(lambda: len(noted(tmp_path)) == 4)
        os.kill(os.getpid() if who == "launcher" else supervisor_of(tmp_path, "beta"), signal.SIGTERM)

    ending = run.to_its_end(act)
    assert ending.is_preempted and not ending.saved_late and ending.statuses == {"alpha": PREEMPTED, "beta": PREEMPTED}
    assert run.exits() == {0: PREEMPTED, 1: PREEMPTED}


def test_a_save_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """H03: the grace is the spec's, and no other one cuts it short."""
    run = Run(tmp_path, write_script(tmp_path, SAVES + SLEEP), grace=5)

    def act(_: StopSignals) -> None:
        wait_until(lambda: len(noted(tmp_path)) == 4)
        os.kill(os.getpid(), signal.SIGUSR2)

    ending = run.to_its_end(act)
    assert ending.saved_late and 5 < run.seconds < SOON_S


def supervisor_alone(folder: Path, script: Path, ranks: int = 1, silence: float = PATIENT_S) -> subprocess.Popen[bytes]:
    """A supervisor whose launcher is this test."""
    one = line(folder, 0, script, ranks_here=ranks)
    process = subprocess.Popen(one.argv, env=dict(one.environment), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    orders: list[dict[str, Any]] = [header(silence), {"do": "alive"}, {"do": "go", "master_addr": "127.0.0.1", "master_port": 29500}]
    process.stdin.write(b"".join(json.dumps(order).encode() + b"\n" for order in orders))
    process.stdin.flush()
    wait_until(lambda: len(noted(folder)) >= ranks)
    return process


@pytest.mark.parametrize("way", ["silence", "end of file", "nobody listens"])
def test_a_supervisor_without_its_launcher_ends_its_ranks(tmp_path: Path, way: str) -> None:
    process = supervisor_alone(tmp_path, write_script(tmp_path, SLEEP), silence=10 if way == "silence" else PATIENT_S)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    if way == "end of file":
        process.stdin.close()
    elif way == "nobody listens":
        process.stdout.close()
    assert process.wait(timeout=SOON_S) == 129
    said = process.stderr.read().decode()
    assert way == "nobody listens" or b'"event": "adrift"' in process.stdout.read()
    assert seconds_heard("the launcher", said) >= 10 if way == "silence" else "the connection to the launcher has ended" in said
    assert not alive(tmp_path)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def test_a_rank_that_does_not_leave_is_ended_with_the_connection(tmp_path: Path) -> None:
    """One rank has ended as a preempted run does, the other hangs at its exit: nobody waits for it once the launcher is gone."""
    script = write_script(tmp_path, f"{SAVES}if RANK == 0: sys.exit({PREEMPTED})\nnote_pid(os.getpid(), 'hangs'){SLEEP}")
    process = supervisor_alone(tmp_path, script, ranks=2)
    wait_until(lambda: len(noted(tmp_path)) == 4)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(noted(tmp_path)) == 5)
    # Closes the way to it, and waits: long before the time for ranks that leave by themselves is over it has ended.
    process.communicate(timeout=SOON_S)
    assert not alive(tmp_path)


def test_a_login_script_that_prints_is_no_supervisor(tmp_path: Path) -> None:
    """Also one that leaves a line open, or prints what looks like an event."""
    script = write_script(tmp_path, "")
    talks = ("bash", "-c", """printf '{"event": "note", "text": "hi"}\\n{"event": "rank_exit"}\\nhello'; exec "$@\"""", "bash")
    run = Run(tmp_path, script, instead=(*talks, *line(tmp_path, 1, script).argv))
    assert run.to_its_end() == Ending(statuses={"alpha": 0, "beta": 0}) and run.exits() == {0: 0, 1: 0}
    assert {event["event"] for event in run.events} == {"rank_exit"}


def test_garbage_on_the_events_descriptor_ends_nothing(tmp_path: Path) -> None:
    own = [{"event": name} for name in ("preempt", "rank_exit", "bye", "hello", "stacks", "alive", "at", "ready", "adrift")]
    lines = [*map(json.dumps, own), "[" * 100_000, "x" * 3_000_000, '{"event": 7}', "\0", '{"event": "note", "text": "the last"}']
    (tmp_path / "garbage").write_text("\n".join(lines) + "\n")
    body = f"data = open({str(tmp_path / 'garbage')!r}, 'rb').read()\nwhile data: data = data[os.write(int(os.environ['FTLAUNCH_EVENTS_FD']), data):]"
    run = Run(tmp_path, write_script(tmp_path, f"if RANK == 1:\n{textwrap.indent(body, '    ')}"))
    assert run.to_its_end() == Ending(statuses={"alpha": 0, "beta": 0})
    assert [event.get("text") for event in run.events if event["event"] == "note"] == ["the last"]


def test_what_counts_as_progress() -> None:
    now = [0.0]
    watch = StallWatch(Limits(start_s=25, stall_s=10), 2, lambda: now[0])
    for event in ({"event": "alive", "at": {}}, {"event": "preempt"}, {"event": "alive", "at": {"1": {"update": None, "stage": "start"}}}):
        now[0] += 8
        watch.hear(event)
    assert watch.is_starting and not watch.is_due()
    now[0] += 2
    assert watch.is_due()
    watch.hear({"event": "alive", "at": {"0": {"update": 7, "stage": "train"}}})
    assert not watch.is_starting and not watch.is_due() and watch.places() == {0: "train after update 7", 1: "start"}
    now[0] += 10.5
    assert watch.is_due()
    now[0] += 1e9
    assert not StallWatch(Limits(start_s=0, stall_s=0), 1, lambda: now[0]).is_due()
