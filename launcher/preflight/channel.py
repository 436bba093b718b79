"""The launcher's end of the probes: one process a host, all asked at once, and no answer waited for longer than its limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Self, cast

from launcher.json_lines import json_object
from launcher.preflight.host_side import MARK
from launcher.preflight.program import SHELL_MARK

_STDERR_BYTES = 8192
_NOISE_LINES = 5
_END_LIMIT_S = 1.0

Answer = dict[str, Any]


class Probe:
    """A running probe on one host."""

    def __init__(self, argv: tuple[str, ...], program: bytes, changed: threading.Condition) -> None:
        self.shell_ran = False
        """Whether the host's shell has said something: ssh did its part."""
        self.noise: list[str] = []
        """First lines on stdout that are none of ours."""
        self.answers: dict[int, Answer] = {}
        self.answered_at: dict[int, float] = {}
        self.status: int | None = None
        """Return code, once it has ended and all it said was read."""
        self.asked = 0
        """Number of the last order."""
        self._changed = changed
        self._stderr = b""
        self._lock = threading.Lock()
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        # Popen makes all three, as it was asked to.
        self._streams = tuple(cast(IO[bytes], stream) for stream in (self._process.stdin, self._process.stdout, self._process.stderr))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._feeder = threading.Thread(target=self._write, args=(program,), daemon=True)
        # The reader waits for the one of stderr: it begins last.
        for thread in (self._errors, self._feeder, self._reader):
            thread.start()

    def ask(self, order: Mapping[str, Any]) -> int:
        """Sends an order; returns its number. A host that is gone takes none, silently."""
        self.asked += 1
        text = json.dumps({**order, "id": self.asked}).encode() + b"\n"
        # The pipe may be full of the program while ssh is still connecting.
        threading.Thread(target=self._write, args=(text, self._feeder), daemon=True).start()
        return self.asked

    @property
    def stderr(self) -> str:
        """The end of what ssh and the host said on stderr."""
        return self._stderr.decode(errors="replace")

    def end(self) -> None:
        """Closes its stdin, which ends it; kills ssh and what ssh started when that takes longer than a second."""
        # A writer that is stuck in a full pipe holds the lock: only the kill frees it.
        if self._lock.acquire(timeout=0.1):
            self._close(self._streams[0])
            self._lock.release()
            self._reader.join(_END_LIMIT_S)
        # Also a proxy command that outlives its ssh. The process is not waited for yet, so its number is still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for thread in (self._reader, self._errors, self._feeder):
            thread.join(_END_LIMIT_S)
        self._process.wait()
        for stream in self._streams:
            self._close(stream)

    @staticmethod
    def _close(stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            stream.close()

    def _write(self, data: bytes, after: threading.Thread | None = None) -> None:
        if after is not None:
            after.join()
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._streams[0].write(data)
            self._streams[0].flush()

    def _read(self) -> None:
        for raw in self._streams[1]:
            line = raw.decode(errors="replace").rstrip("\r\n")
            with self._changed:
                self._take(line)
                self._changed.notify_all()
        self._errors.join(_END_LIMIT_S)
        status = self._wait()
        with self._changed:
            self.status = status
            self._changed.notify_all()

    def _wait(self) -> int:
        """The return code, as subprocess has it: -N for a signal N. Leaves the process to be waited for, so that its number stays its own."""
        try:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            # `end` was quicker.
            ended = None
        if ended is None:
            return self._process.returncode or 0
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _take(self, line: str) -> None:
        answer = _parsed(line)
        if answer is not None:
            self.answers[answer["id"]] = answer
            self.answered_at[answer["id"]] = time.time()
        elif line == SHELL_MARK:
            self.shell_ran = True
        elif line.strip() and len(self.noise) < _NOISE_LINES:
            self.noise.append(line)

    def _read_errors(self) -> None:
        for raw in self._streams[2]:
            self._stderr = (self._stderr + raw)[-_STDERR_BYTES:]


class Probes:
    """All of them; use it as a context, which ends them."""

    def __init__(self, argvs: list[tuple[str, ...]], program: bytes) -> None:
        self._changed = threading.Condition()
        self.probes: list[Probe] = []
        try:
            for argv in argvs:
                self.probes.append(Probe(argv, program, self._changed))
        except OSError:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        threads = [threading.Thread(target=probe.end) for probe in self.probes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def ask(self, orders: Mapping[int, Mapping[str, Any]], limit_s: float, told: Callable[[int], None] = lambda count: None) -> dict[int, Answer]:
        """Sends each host its order; returns the answers that came within `limit_s`, by the host's number. `told` hears how many there are, again and again."""
        numbers = {place: self.probes[place].ask(order) for place, order in orders.items()}
        deadline = time.monotonic() + limit_s
        with self._changed:
            while True:
                here = {place: self.probes[place].answers[number] for place, number in numbers.items() if number in self.probes[place].answers}
                waits = [place for place in numbers if place not in here and self.probes[place].status is None]
                left = deadline - time.monotonic()
                told(len(here))
                if not waits or left <= 0:
                    return here
                self._changed.wait(min(left, 1.0))


def _parsed(line: str) -> Answer | None:
    """An answer, or None for anything else."""
    answer = json_object(line.removeprefix(MARK)) if line.startswith(MARK) else None
    return answer if answer is not None and isinstance(answer.get("id"), int) else None
