"""Ranks started as a supervisor does it: the signals that ask for a stop are blocked, each rank leads a session and has its own log and events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcore.spec.events import EVENTS_FD
from tests.ranks.pool import kept_port

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0


@dataclass(slots=True)
class StartedRank:
    """One rank, and what it has told so far."""

    process: subprocess.Popen[bytes]
    log: Path
    _events: int
    _text: bytes = b""
    told: list[dict[str, Any]] = field(default_factory=list)

    def listen(self) -> None:
        """Takes what has come."""
        try:
            while chunk := os.read(self._events, 65536):
                self._text += chunk
        except BlockingIOError:
            pass
        *lines, self._text = self._text.split(b"\n")
        self.told += [json.loads(line) for line in lines]

    def until(self, event: str, **fields: Any) -> dict[str, Any]:
        """The first event of that name with these fields; raises AssertionError when it does not come."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            self.listen()
            for each in self.told:
                if each["event"] == event and fields.items() <= each.items():
                    return each
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.01)
        raise AssertionError(f"no {event} in {LIMIT_S} s: {self.told[-3:]}\n{self.log.read_text()[-3000:]}")

    def ended(self) -> int:
        """The exit status, once it has ended; every event is there then."""
        status = self.process.wait(LIMIT_S)
        self.listen()
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._events)

    def names(self) -> list[str]:
        return [each["event"] for each in self.told]


def start_process(argv: list[str], log: Path, environment: dict[str, str], *, by_supervisor: bool = True) -> StartedRank:
    """A process of a run with its events; not `by_supervisor`: nothing is blocked, and nobody listens to events."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    base = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) if by_supervisor else ())
    try:
        with log.open("wb") as file:
            process = subprocess.Popen(
                argv,
                env={**base, **environment, **({EVENTS_FD: str(writer)} if by_supervisor else {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=(writer,),
                start_new_session=True,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writer)
    return StartedRank(process, log, reader)


@contextmanager
def ranks_of(module: str, folder: Path, world_size: int = 2) -> Iterator[list[StartedRank]]:
    """That many ranks of `python -m module folder`; what is left of them at the end is killed."""
    started = []
    with kept_port() as port:
        try:
            for rank in range(world_size):
                names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "MASTER_PORT": port}
                environment = {**{name: str(value) for name, value in names.items()}, "MASTER_ADDR": "127.0.0.1"}
                started.append(start_process([sys.executable, "-m", module, str(folder)], folder / f"rank_{rank}.log", environment))
            yield started
        finally:
            for each in started:
                each.close()
