"""Signals of a rank: which end it and which ask it to stop, while its main thread is busy, and when they come before anything is ready. H04."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcore.spec.errors import PREEMPTED
from ftcore.spec.events import EVENTS_FD
from tests.unit.live_processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import os, sys, threading, time
from ftcore import stop_request
{before}
request = stop_request.take_signals()
while not request.wait(0):
    time.sleep(0.01)
time.sleep(0.3)
print("asked", flush=True)
{after}
"""
NEVER = "threading.Lock().acquire() and None; lock = threading.Lock(); lock.acquire(); lock.acquire()"
"""A main thread that no Python code can wake, as in a collective."""


class Rank:
    """A process with the signals blocked or not, and its events."""

    def __init__(self, program: str, *, blocked: bool) -> None:
        reader, writer = os.pipe()
        self.events = os.fdopen(reader, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), EVENTS_FD: str(writer), "RANK": "3"}
        signals = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
        before = signal.pthread_sigmask(signal.SIG_BLOCK if blocked else signal.SIG_UNBLOCK, signals)
        self.process = subprocess.Popen([sys.executable, "-c", program], env=environment, pass_fds=(writer,), stdout=subprocess.PIPE, text=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writer)

    def until_ready(self) -> None:
        event = json.loads(self.events.readline())
        assert (event["event"], event["rank"]) == ("ready", 3)

    def end(self) -> tuple[int, str]:
        """Its status, and what was not read yet of its output: also what has come with a line that was read."""
        assert self.process.stdout is not None
        killed = threading.Timer(60, self.process.kill)
        killed.start()
        out = self.process.stdout.read()
        status = self.process.wait()
        killed.cancel()
        return status, out


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    started: list[Rank] = []
    yield started
    for rank in started:
        rank.process.kill()
        rank.process.wait()
        rank.events.close()
        assert rank.process.stdout is not None
        rank.process.stdout.close()


def start(ranks: list[Rank], before: str = "", after: str = "", *, blocked: bool = True) -> Rank:
    ranks.append(Rank(RANK.format(before=before, after=after), blocked=blocked))
    return ranks[-1]


def by_another(pid: int, signum: int) -> None:
    """Sends the signal from a process that is not the parent of `pid`."""
    subprocess.run(["bash", "-c", f"kill -{signum} {pid}"], check=True)


def sleeps(pid: int) -> bool:
    """Whether the main thread waits for something."""
    return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_asks_for_a_stop_and_more_of_them_are_harmless(signum: int, blocked: bool, ranks: list[Rank]) -> None:
    rank = start(ranks, blocked=blocked)
    rank.until_ready()
    for each in (signum, signal.SIGUSR2, signal.SIGTERM, signum):
        by_another(rank.process.pid, each)
    assert rank.end() == (0, "asked\n")


def test_warnings_of_the_parent_ask_too(ranks: list[Rank]) -> None:
    rank = start(ranks)
    rank.until_ready()
    rank.process.send_signal(signal.SIGUSR2)
    assert rank.end() == (0, "asked\n")


def test_the_parents_sigterm_ends_a_rank_whose_main_thread_is_stuck(ranks: list[Rank]) -> None:
    rank = start(ranks, after=NEVER)
    rank.until_ready()
    by_another(rank.process.pid, signal.SIGUSR2)
    assert rank.process.stdout is not None and rank.process.stdout.readline() == "asked\n"
    wait_until(lambda: sleeps(rank.process.pid), 60)
    rank.process.terminate()
    assert rank.end() == (-signal.SIGTERM, "")


def test_a_signal_during_imports_is_not_lost(ranks: list[Rank]) -> None:
    rank = start(ranks, before="sys.stdout.write('importing\\n'); sys.stdout.flush(); time.sleep(0.5)")
    assert rank.process.stdout is not None and rank.process.stdout.readline() == "importing\n"
    by_another(rank.process.pid, signal.SIGUSR2)
    assert rank.end() == (0, "asked\n")


PREPARING = """
import os, sys, time
from pathlib import Path
from ftcore import stop_request
from ftcore.data.lock import new_folder
from ftcore.process import run_main
from ftcore.spec.run_dir import RunDir

def main(run_dir):
    {before}
    stop_request.stop_anywhere()
    with new_folder(run_dir.path / "made") as folder:
        (folder / "file").touch()
        print("making", flush=True)
        time.sleep(600)

run_main(main, RunDir(Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["FOLDER"])))
"""


@pytest.mark.parametrize("waits", [True, False])
def test_work_that_may_stop_anywhere_tidies_up(waits: bool, ranks: list[Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that came while they were blocked counts; more of them do not break off the tidying."""
    monkeypatch.setenv("FOLDER", str(tmp_path))
    rank = Rank(PREPARING.format(before=f"os.kill(os.getpid(), {int(signal.SIGUSR1)})" if waits else "pass"), blocked=waits)
    ranks.append(rank)
    assert rank.process.stdout is not None
    if not waits:
        assert rank.process.stdout.readline() == "making\n"
        for signum in (signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM):
            rank.process.send_signal(signum)
    status, out = rank.end()
    assert status == PREEMPTED and ("SIGUSR1" if waits else "stopped by SIG") in out
    # Nothing but what a rank without a failure leaves: no half-made folder, no error.
    assert not list(tmp_path.iterdir()) and rank.events.read() == ""
