"""Spreads chunks of work over processes of their own, or does it here. Results come in order, and no process outlives the one that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from ftcore.spec.errors import DataError
from ftcore.spec.events import EVENTS_FD

BYTES_A_PROCESS = 16_000_000
"""A process takes seconds to import its tokenizer, whose own threads use all cores in one process: with less to read for each, it would not pay."""
MOST_PROCESSES = 16
AHEAD = 2
"""Chunks that a process has at once: one that it works on and one that waits for it."""
STOP_S = 5.0
"""A process whose pipe was closed ends at once; after this long it is killed."""

T = TypeVar("T")
R = TypeVar("R")
Make = Callable[[], Callable[[T], R]]
"""Makes the function that does the work, in the process that does it; it is pickled."""


def processes_for(size: int, cores: int) -> int:
    """How many processes `size` bytes of rows are worth on `cores` cores: 1 means this one."""
    return max(1, min(size // BYTES_A_PROCESS, cores, MOST_PROCESSES))


def usable_cores() -> int:
    """Cores that this process may use: those it is bound to, and no more than its control group's share of the machine."""
    bound = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(bound, round(int(quota) / int(period))))
    return bound


def results(make: Make[T, R], chunks: Iterator[T], processes: int, hidden: Sequence[str] = ()) -> Generator[R, None, None]:
    """The result of each chunk, in order. With `processes` > 1 in at most as many others, which end with this generator: close it.

    `hidden`: modules that those others do without, even where they are installed.
    Raises what `make` or its function raises, and DataError when a process ends by itself.
    """
    if processes < 2:
        do = make()
        for chunk in chunks:
            yield do(chunk)
        return
    team: list[_Worker] = []
    try:
        yield from _dealt(team, chunks, processes, lambda: _Worker(make, hidden))
    finally:
        for worker in team:
            worker.close()
        for worker in team:
            worker.end()


def _dealt(team: list[_Worker], chunks: Iterator[T], most: int, start: Callable[[], _Worker]) -> Iterator[Any]:
    numbered = enumerate(chunks)
    done: dict[int, Any] = {}
    following = 0
    while True:
        # Results that wait for a slow chunk take memory: no more chunks are handed out then.
        while len(done) < AHEAD * most and _has_room(team, most) and (chunk := next(numbered, None)) is not None:
            # A process is started when there is work for it: few chunks need few.
            if len(team) < most and all(worker.unfinished for worker in team):
                team.append(start())
            min(team, key=lambda worker: worker.unfinished).send(chunk)
        busy = [worker for worker in team if worker.unfinished]
        if not busy:
            return
        ready = wait([worker.connection for worker in busy])
        for worker in busy:
            if worker.connection in ready:
                number, result = worker.receive()
                done[number] = result
        while following in done:
            yield done.pop(following)
            following += 1


def _has_room(team: list[_Worker], most: int) -> bool:
    return len(team) < most or any(worker.unfinished < AHEAD for worker in team)


class _Worker:
    """One process, started with an argument list; what it prints goes where this process prints."""

    def __init__(self, make: Any, hidden: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        self.unfinished = 0
        path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        # A tokenizer's own threads would only compete with the other processes; the descriptor of events isn't inherited.
        # That a hidden module is missing is no news.
        environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
        environment.pop(EVENTS_FD, None)
        with theirs:
            arguments = [sys.executable, "-m", "ftcore.data.worker", str(theirs.fileno()), *hidden]
            self._process = subprocess.Popen(arguments, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=environment, process_group=0)
        self.connection.send(make)

    def send(self, chunk: Any) -> None:
        """Hands a numbered chunk over. Raises DataError when the process is gone."""
        try:
            self.connection.send(chunk)
        except OSError as error:
            raise self._gone() from error
        self.unfinished += 1

    def receive(self) -> Any:
        """(number, result) of the chunk that it finished. Raises what the work raised, and DataError when the process is gone."""
        try:
            number, result = self.connection.recv()
        except (OSError, EOFError) as error:
            raise self._gone() from error
        self.unfinished -= 1
        if isinstance(result, BaseException):
            raise result
        return number, result

    def close(self) -> None:
        """Ends the process: it leaves at once when its pipe closes."""
        self.connection.close()

    def end(self) -> int:
        """Waits for the process, and returns its status."""
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _gone(self) -> DataError:
        self.close()
        status = self.end()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended by itself with status {status}"
        why = ": the kernel does that when memory runs out" if status == -signal.SIGKILL else ""
        fix = "set data.num_proc to fewer processes (1: the main one alone), and run again"
        return DataError(f"a process that prepares rows {how}{why}", where="data.num_proc", fix=fix)
