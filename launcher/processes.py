"""Owning child processes: they die with their parent, report honest statuses, and none is left behind. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ftcore.spec.errors import INTERRUPT_STATUS_BASE
from ftcore.spec.parentage import die_with_parent

LAUNCH_ID = "FTLAUNCH_LAUNCH_ID"
"""Environment variable that marks every process of one launch, however deep; `LAUNCH.NODE_RANK` below a node's supervisor."""

PREEMPTING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that ask a run to save and end. A rank starts with them blocked: one that comes while it imports waits until it can be heeded."""

_SWEEP_LIMIT_S = 2.0
_SWEEP_LOOKS = 20
"""However late it is by then: a machine that stood still has given the processes no time to end either."""


def exit_status(returncode: int) -> int:
    """The status a shell would show: -N (killed by signal N) becomes 128 + N."""
    return returncode if returncode >= 0 else INTERRUPT_STATUS_BASE - returncode


def child_setup(death_signal: int, blocked: tuple[int, ...] = ()) -> Callable[[], None]:
    """What a new child runs between fork and exec: signals as at login, none but `blocked` blocked, and `death_signal` when its parent dies."""
    parent = os.getpid()

    def setup() -> None:
        die_with_parent(death_signal)
        if os.getppid() != parent:
            os._exit(exit_status(-death_signal))
        for signum in (signal.SIGINT, signal.SIGCHLD, *PREEMPTING):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    return setup


class AdoptedProcess:
    """A child that another process started for this one and left to it (`adopt_orphans`); has what is used here of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """-N for a signal N; None while it runs, as far as `poll` has seen."""

    def poll(self) -> int | None:
        """`returncode`, of now. Raises ChildProcessError when it is no child of this process."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def signal_group(pid: int, signum: int) -> None:
    """Signals the process group that a child leads; a group that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signum)


def sweep(launch_id: str) -> int:
    """Kills every process but this one that carries the mark, also one that left its group or its parent. Returns how many it found.

    `launch_id` marks a launch with all its nodes, `LAUNCH.NODE_RANK` one node. Waits until they are gone, at most 2 s or 20 looks.
    """
    found: set[int] = set()
    looks = 0
    deadline = time.monotonic() + _SWEEP_LIMIT_S
    while looks < _SWEEP_LOOKS or time.monotonic() < deadline:
        looks += 1
        marked = list(_kill_marked(launch_id))
        if not marked:
            break
        found.update(marked)
        time.sleep(0.01)
    return len(found)


def _kill_marked(launch_id: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        try:
            if not _is_marked(entry, launch_id):
                continue
            # The descriptor pins the process, so that a number given anew in between is never hit.
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if _is_marked(entry, launch_id):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                yield pid
        except OSError:
            continue
        finally:
            os.close(handle)


def _is_marked(process: Path, launch_id: str) -> bool:
    """Whether the process's environment holds the mark; a zombie's is empty."""
    mark = f"{LAUNCH_ID}={launch_id}".encode()
    return any(entry == mark or entry.startswith(mark + b".") for entry in (process / "environ").read_bytes().split(b"\0"))
