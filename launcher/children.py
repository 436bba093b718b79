"""Runs one child process at a time: its output to a log, its events to a function, its end awaited without polling."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from ftcore.spec.errors import CheckpointError, ClusterError
from ftcore.spec.events import EVENTS_FD
from launcher.json_lines import LineReader
from launcher.processes import LAUNCH_ID, PREEMPTING, child_setup, signal_group, sweep

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """What to run."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """All of it; holds LAUNCH_ID. The descriptor for events is added."""
    log: Path
    """Gets stdout and stderr, appended."""
    grace_s: float
    """Between SIGTERM and SIGKILL, when the launch is being stopped."""
    death_signal: int
    """What the child gets when the launcher dies."""


class StopSignals:
    """Signals that ask for the end of the launch; see `stop_signals`."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        """Becomes readable when a signal arrives, also for a child's end."""
        self.requested = 0
        """The first signal that asked; 0: none did. Later ones change nothing, but that one which asks for the end goes before one that lets a run save."""

    def note(self, signum: int, _frame: FrameType | None) -> None:
        """The handler of all signals."""
        if signum != signal.SIGCHLD and (not self.requested or (self.requested in PREEMPTING and signum not in PREEMPTING)):
            self.requested = signum

    def drain(self) -> None:
        """Makes the handle unreadable until the next signal."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.handle, 512):
                pass


@contextlib.contextmanager
def starting(what: str) -> Iterator[None]:
    """Raises ClusterError when this machine refuses to start `what`: it lacks descriptors, processes, memory or the program."""
    try:
        yield
    except OSError as error:
        raise ClusterError(f"can't start {what}: {error}", where="this machine", fix="see the limits on processes, memory and files (ulimit -a)") from error


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """While active, SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP (unless ignored, as under nohup) ask for a stop instead of ending this process.

    SIGINT counts even where a shell started this process in the background with SIGINT ignored.
    """
    with starting("the launch"):
        handle, write_handle = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    stop = StopSignals(handle)
    wakeup_before = signal.set_wakeup_fd(write_handle, warn_on_full_buffer=False)
    handlers_before = {}
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, *PREEMPTING):
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            handlers_before[signum] = signal.signal(signum, stop.note)
    try:
        yield stop
    finally:
        for signum, handler in handlers_before.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(wakeup_before)
        os.close(handle)
        os.close(write_handle)


def run_child(child: Child, stop: StopSignals, on_event: Callable[[Event], None], on_stop: Callable[[], None]) -> int:
    """Runs the child to its end and returns its return code (-N for a signal N). Nothing that it started is left afterwards.

    When `stop` is asked for, calls `on_stop` once, sends SIGTERM to the child and SIGKILL after its grace.
    Raises CheckpointError when its log can't be written, ClusterError when it can't be started.
    """
    with starting(child.argv[0]):
        read_handle, write_handle = os.pipe()
    try:
        with open_log(child.log) as output, starting(child.argv[0]):
            process = subprocess.Popen(
                child.argv,
                env={**child.environment, EVENTS_FD: str(write_handle)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(write_handle,),
                preexec_fn=child_setup(child.death_signal),  # noqa: PLW1509  this process has one thread
            )
    except BaseException:
        os.close(read_handle)
        raise
    finally:
        os.close(write_handle)
    # However long: an event of one process alone may hold thousands of problems.
    reader = LineReader(read_handle, most_bytes=math.inf)
    try:
        _watch(process, child.grace_s, reader, on_event, stop, on_stop)
    finally:
        if process.poll() is None:
            signal_group(process.pid, signal.SIGKILL)
            process.wait()
        sweep(child.environment[LAUNCH_ID])
        os.close(read_handle)
    return process.returncode


def open_log(log: Path) -> BinaryIO:
    """The file, for appending; its folder is made. Raises CheckpointError when it can't be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        fix = "free some space, or make the run's folder one that this user can write to"
        raise CheckpointError(f"can't write {log}: {error.strerror}", where="logs", fix=fix) from error


def _watch(
    process: subprocess.Popen[bytes], grace_s: float, reader: LineReader, on_event: Callable[[Event], None], stop: StopSignals, on_stop: Callable[[], None]
) -> None:
    """Returns when the process has ended and its events were handled."""
    kill_at: float | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(stop.handle, selectors.EVENT_READ)
        selector.register(reader.handle, selectors.EVENT_READ)
        while process.poll() is None:
            if stop.requested and kill_at is None:
                on_stop()
                signal_group(process.pid, signal.SIGTERM)
                kill_at = time.monotonic() + grace_s
            timeout = None if kill_at is None else kill_at - time.monotonic()
            if timeout is not None and timeout <= 0:
                signal_group(process.pid, signal.SIGKILL)
                process.wait()
                break
            for key, _ in selector.select(timeout):
                if key.fileobj == stop.handle:
                    stop.drain()
                else:
                    _hear(reader, on_event)
                    if not reader.is_open:
                        selector.unregister(reader.handle)
    _hear(reader, on_event)


def _hear(reader: LineReader, on_event: Callable[[Event], None]) -> None:
    """Handles the events that have arrived; a process that wrote something else to the descriptor must not end the run."""
    for event in reader.read():
        if isinstance(event.get("event"), str):
            on_event(event)
