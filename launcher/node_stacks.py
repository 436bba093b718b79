"""The stacks of ranks that hang: each is ended by SIGABRT, at which Python writes the stacks of all threads, and they are kept apart. Standard library only."""

from __future__ import annotations

import contextlib
import re
import resource
import signal
from collections.abc import Mapping
from pathlib import Path

from launcher.processes import signal_group

_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+) in (\S+)')


class StackDump:
    """Taken from ranks by `begin`; `finish` writes the files once they have ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: dict[int, tuple[Path, int, str]] = {}
        """Rank -> its log, the log's size before, and what the kernel said of the process."""

    def begin(self, pids: Mapping[int, int], logs: Mapping[int, Path]) -> None:
        """Ends each rank (by its number) with SIGABRT. Raises nothing: a rank that is gone has no stack."""
        for rank, pid in pids.items():
            with contextlib.suppress(OSError, ValueError):
                self._begun[rank] = (logs[rank], logs[rank].stat().st_size, kernel_state(pid))
                # A core file of a model's size would keep the process busy for minutes.
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
            signal_group(pid, signal.SIGABRT)

    def finish(self) -> dict[int, str]:
        """Writes rank_R.txt for each and returns rank -> where it was: the innermost frame of its main thread, or what the kernel said."""
        places: dict[int, str] = {}
        for rank, (log, size, state) in self._begun.items():
            text = _written_since(log, size)
            places[rank] = main_thread_frame(text) or state
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                (self._folder / f"rank_{rank}.txt").write_text(f"{state}\n\n{text}", encoding="utf-8")
        return places


def kernel_state(pid: int) -> str:
    """The state of a process as the kernel tells it, and what its main thread waits in."""
    state = waits = ""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        state = next((line.partition(":")[2].strip() for line in status.splitlines() if line.startswith("State:")), "")
    with contextlib.suppress(OSError):
        waits = Path(f"/proc/{pid}/wchan").read_text().strip("\0\n0")
    return f"process {pid}: {state or 'gone'}" + (f", in the kernel's {waits}" if waits else "")


def main_thread_frame(dump: str) -> str:
    """`FUNCTION (FILE:LINE)` of the innermost frame of the thread that was dumped last, which is the main one when it got the signal; empty without frames.

    faulthandler marks the thread that got the signal as current.
    """
    _, marked, current = dump.rpartition("Current thread")
    matched = _FRAME.search(current if marked else dump)
    return f"{matched[3]} ({matched[1]}:{matched[2]})" if matched else ""


def _written_since(log: Path, size: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(size)
            return file.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""
