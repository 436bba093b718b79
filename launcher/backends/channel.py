"""The launcher's end of the channel to one host: the process that reaches it, orders to its supervisor, events from it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.resolved import Host
from launcher.backends.calls import call, end_calls, signal_command
from launcher.children import Event, open_log, starting
from launcher.failure import tail
from launcher.json_lines import LineReader, LineWriter, Message
from launcher.processes import LAUNCH_ID, child_setup, exit_status, signal_group

SIGNALS = {"preempt": "USR2", "end": "HUP", "stacks": "HUP"}
"""Order -> the signal that stands for it, where the supervisor takes none."""
_LAST_WORDS = 3
"""Lines of what a lost connection said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How one host is reached."""

    host: Host
    node_rank: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Of the process here; what the ranks get travels in the header."""
    log: Path
    """Gets what the connection and the supervisor say beside events."""
    is_remote: bool
    """Whether silence means that the host, or the way to it, is lost."""
    takes_orders: bool
    """Whether what is written here is read there."""
    keep_open: tuple[int, ...] = ()
    """Descriptors that the process here inherits."""
    call: Callable[[str], tuple[str, ...]] | None = None
    """Shell text -> argv that runs it on the host beside the supervisor, where that takes no orders; None where it does."""


class HostChannel:
    """Open from the start of the process until it has ended and all it said was read."""

    def __init__(self, line: Line) -> None:
        """Starts the process. Raises CheckpointError when its log can't be written, ClusterError when it can't be started."""
        self.line = line
        self.said_hello = False
        self.pid_there = 0
        """The supervisor's, on its host."""
        self.status: int | None = None
        """What the supervisor ended with; None: it has not said so."""
        self.heard_at = time.monotonic()
        self.silence = ""
        """Why the channel was given up; empty: it was not."""
        self.was_dismissed = False
        """Whether its line was cut before the supervisor had said anything, since the launch is over."""
        self._was_ended = False
        """Whether a signal has asked for the end."""
        self._callers: list[subprocess.Popen[bytes]] = []
        with open_log(line.log) as log, starting(f"the ranks on {line.host.name}"):
            self._log_begins = os.fstat(log.fileno()).st_size
            (orders_there, orders), (events, events_there) = os.pipe(), os.pipe()
            try:
                self.process = subprocess.Popen(
                    line.argv,
                    env=dict(line.environment),
                    stdin=orders_there,
                    stdout=events_there,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=line.keep_open,
                    preexec_fn=child_setup(signal.SIGKILL if line.is_remote else 0),  # noqa: PLW1509  this process has one thread
                )
            except BaseException:
                os.close(orders)
                os.close(events)
                raise
            finally:
                os.close(orders_there)
                os.close(events_there)
        self._orders, self.reader = LineWriter(orders), LineReader(events)

    @property
    def name(self) -> str:
        """The host's, as the hostfile has it."""
        return self.line.host.name

    @property
    def is_open(self) -> bool:
        """Whether something may still be heard."""
        return self.reader.is_open

    @property
    def has_pending(self) -> bool:
        """Whether orders wait to be written."""
        return bool(self._orders.pending)

    def send(self, order: Message) -> None:
        """An order for the supervisor; one that can't be sent is lost, and its silence will tell."""
        if self.line.takes_orders:
            self._orders.send(order)
        elif order.get("do") in SIGNALS:
            self._signal(SIGNALS[order["do"]])
            self._was_ended = self._was_ended or order["do"] != "preempt"

    def _signal(self, name: str) -> None:
        """Has a second process signal the supervisor; one that has not said yet where it is finds its line cut."""
        if self.line.call is None or not self.pid_there:
            self.was_dismissed = True
            signal_group(self.process.pid, signal.SIGKILL)
            return
        command = signal_command((self.pid_there,), name, self.line.environment[LAUNCH_ID])
        with open_log(self.line.log) as log:
            self._callers.append(call(self.line.call(command), self.line.environment, f"a signal to {self.name}", log))

    def read(self) -> list[Event]:
        """What has arrived, but for what concerns the channel alone."""
        received = self.reader.read()
        if received:
            self.heard_at = time.monotonic()
        return [event for event in received if isinstance(event.get("event"), str) and self._is_heard(event) and not self._is_ours(event)]

    def tick(self) -> None:
        """A sign of life. To be called each second."""
        if self.said_hello:
            self.send({"do": "alive"})

    def flush(self) -> None:
        """Writes what could not be written before."""
        self._orders.flush()

    def give_up(self, why: str) -> None:
        """Ends the connection, at which the other side ends its ranks by itself."""
        self.silence = self.silence or why
        signal_group(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Waits for the process, which has closed its output, and gives the descriptors back."""
        end_calls(self._callers)
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            signal_group(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for handle in (self._orders.handle, self.reader.handle):
            os.close(handle)

    def last_words(self) -> list[str]:
        """The last lines that the connection wrote in this launch."""
        if self.line.log.exists() and self.line.log.stat().st_size > self._log_begins:
            return tail(self.line.log, _LAST_WORDS)
        return []

    def why_lost(self) -> str:
        """In words, for a channel that ended without a farewell."""
        if self.silence:
            return self.silence
        status = exit_status(self.process.wait())
        if not self.said_hello:
            return f"it could not be reached, or the supervisor could not be started there (exit status {status} of {self.line.argv[0]})"
        return f"the connection ended (exit status {status} of {os.path.basename(self.line.argv[0])})"

    def _is_heard(self, event: Event) -> bool:
        """Whether it can be the supervisor's: before its hello, a login script may print what looks like an event."""
        return self.said_hello or event["event"] in ("hello", "error", "bye")

    def _is_ours(self, event: Event) -> bool:
        name = event["event"]
        if name == "hello":
            self.said_hello, self.pid_there = True, int(event["pid"])
        elif name == "bye":
            status = int(event["status"])
            self.status = 0 if self._was_ended and status == exit_status(-signal.SIGHUP) else status
        return bool(name == "bye")
