"""The ranks of one host from start to end: started on an order, watched, and ended together when the first one fails or nobody steers this host any more."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any, BinaryIO

from ftcore.spec import events
from ftcore.spec.errors import PREEMPTED
from launcher.forked_start import ForkedStart
from launcher.json_lines import LineReader, Message
from launcher.node_channel import BEAT_S, Channel
from launcher.node_environment import Node, cores, host_environment, meeting_environment, rank_environment
from launcher.node_memory import MemoryWatch
from launcher.node_stacks import StackDump
from launcher.processes import LAUNCH_ID, PREEMPTING, AdoptedProcess, child_setup, exit_status, signal_group, sweep

GRACE_S = 4.0
"""Time between SIGTERM and SIGKILL for the ranks that are still there."""
LOST_GRACE_S = 2.0
"""The same when the launcher is gone, which has taken some seconds to be sure of."""
FAREWELL_S = 60.0
"""For the ranks that are left when the first one has ended as a preempted run does."""
OWN_EVENTS = frozenset(("hello", "alive", "bye", "stacks", "preempt", "rank_exit", "adrift"))
"""What only a supervisor tells: a rank that writes such a line has written to the wrong descriptor."""
_ENDING = (signal.SIGINT, signal.SIGHUP)
_WATCHED = (signal.SIGCHLD, *_ENDING, *PREEMPTING)


class Supervisor:
    """One thread; sleeps until a signal, an order, an event of a rank, or the next sign of life is due."""

    def __init__(self, node: Node, channel: Channel | None) -> None:
        self.node = node
        self._channel = channel
        """None: started by hand or by another launcher; events go to FTLAUNCH_EVENTS_FD if that is there."""
        self._ranks: dict[int, subprocess.Popen[bytes] | AdoptedProcess] = {}
        """Local rank -> the rank, as long as it runs."""
        self._starting: ForkedStart | None = None
        self._ready: set[int] = set()
        """Local ranks that take signals; before, a rank has done nothing worth waiting for. One may say so before it is this process's own child."""
        self._status = 0
        """Of the first rank that failed, or of what stopped this host."""
        self._is_over = False
        """No rank will be started any more."""
        self._is_ending = False
        """The ranks that are left were told to end; before, they may be given time to leave by themselves."""
        self._kill_at: float | None = None
        """When the ranks that are left get SIGKILL, on the monotonic clock; None until they are being ended."""
        self._launch_id = f"{os.environ.get(LAUNCH_ID) or uuid.uuid4().hex}.{node.node_rank}"
        read_handle, self._rank_events = os.pipe()
        self._reader = LineReader(read_handle)
        self._places: dict[int, Message] = {}
        """Rank -> its last `at`, of those that moved since the last sign of life."""
        self._memory = MemoryWatch()
        self._stacks: StackDump | None = None
        self._next_beat = 0.0
        self._signals, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def start(self, address: str, port: int) -> None:
        """Starts all ranks, which meet at `address`:`port`. Raises OSError when they can't be started, ClusterError for devices that are not this run's."""
        self._take_over_signals()
        node = self.node
        shared = host_environment({**os.environ, LAUNCH_ID: self._launch_id}, node, cores())
        shared = meeting_environment(shared, node, address, port)
        shared[events.EVENTS_FD] = str(self._rank_events)
        node.run_dir.attempt_logs(events.attempt()).mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            logs = [stack.enter_context(node.run_dir.rank_log(events.attempt(), rank).open("ab")) for rank in self._numbers()]
            if node.forks:
                self._starting = ForkedStart.begin(node.command, shared, node.first_rank, logs, (self._rank_events,))
                return
            for local_rank, log in enumerate(logs):
                self._ranks[local_rank] = self._start_one(rank_environment(shared, node, local_rank), log)

    def run(self) -> int:
        """Returns this host's status when all ranks have ended and nothing of theirs is left."""
        self._take_over_signals()
        try:
            with selectors.DefaultSelector() as selector:
                for handle in (self._signals, self._reader.handle, *self._order_handles()):
                    selector.register(handle, selectors.EVENT_READ)
                while not self._is_done():
                    self._turn(selector)
        finally:
            self._kill_all()
            sweep(self._launch_id)
        self._tell_stacks()
        return self._status

    def end(self, status: int, grace_s: float = GRACE_S) -> None:
        """Ends the ranks that are left. Only the first call counts."""
        if self._is_ending:
            return
        self._is_ending = True
        self._status, self._is_over = status, True
        self._kill_at = time.monotonic() + grace_s
        self._signal_all(signal.SIGTERM)

    def preempt(self, signum: int) -> None:
        """Asks the ranks to save and end; one that is not ready yet finds the signal when it is."""
        self.tell({"event": "preempt", "signal": signum})
        # What a rank said before this was asked for may lie in the pipe still.
        self._take_events()
        if not self._ready:
            # Nothing was trained yet that could be lost.
            self.end(PREEMPTED)
        for rank in self._ranks.values():
            signal_group(rank.pid, signal.SIGUSR2)

    def tell(self, event: Message) -> None:
        """Sends an event to the launcher, if there is one, with this host's name."""
        told = {"time": time.time(), "host": self.node.host, **event}
        if self._channel is not None:
            self._channel.events.send(told)
        else:
            events.emit(str(told.pop("event")), **told)

    @staticmethod
    def _take_over_signals() -> None:
        """From before the first rank is there: one that ended this process while it starts them would leave what the ranks have started."""
        for signum in _WATCHED:
            signal.signal(signum, _note)

    def _numbers(self) -> range:
        return range(self.node.first_rank, self.node.first_rank + self.node.local_ranks)

    def _start_one(self, environment: Mapping[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.node.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(self._rank_events,),
            preexec_fn=child_setup(signal.SIGKILL, blocked=PREEMPTING),  # noqa: PLW1509  this process has one thread
        )

    def _order_handles(self) -> tuple[int, ...]:
        orders = self._channel.orders if self._channel is not None else None
        return (orders.handle,) if orders is not None else ()

    def _is_done(self) -> bool:
        waits_for_order = self._channel is not None and self._channel.orders is not None and not self._is_over
        return not self._ranks and self._starting is None and (self._is_over or not waits_for_order)

    def _turn(self, selector: selectors.BaseSelector) -> None:
        """Waits for the next thing to happen and acts on it."""
        until_kill = self._kill_at - time.monotonic() if self._kill_at is not None else BEAT_S
        for key, _ in selector.select(max(0.0, min(BEAT_S, until_kill))):
            if key.fd == self._signals:
                self._take_signals()
        self._take_events()
        if self._channel is not None:
            self._steer(self._channel, selector)
        self._reap()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_all()
            self._kill_at = time.monotonic() + GRACE_S
        self._show_life()

    def _take_signals(self) -> None:
        received: set[int] = set()
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._signals, 512):
                received.update(chunk)
        for signum in received.intersection(_ENDING):
            self.end(exit_status(-signum))
        for signum in received.intersection(PREEMPTING):
            self.preempt(signum)

    def _steer(self, channel: Channel, selector: selectors.BaseSelector) -> None:
        for order in channel.read():
            self._obey(order)
        lost = channel.why_lost()
        if lost and channel.orders is not None and not channel.orders.is_open and channel.orders.handle in selector.get_map():
            selector.unregister(channel.orders.handle)
        if lost and not self._is_ending:
            sys.stderr.write(f"{self.node.host}: {lost}; its ranks are ended\n")
            self.tell({"event": "adrift", "reason": lost})
            self.end(exit_status(-signal.SIGHUP), LOST_GRACE_S)

    def _obey(self, order: Message) -> None:
        what = order.get("do")
        if what == "go" and not self._is_over and not self._ranks:
            self.start(str(order["master_addr"]), int(order["master_port"]))
            self._is_over = True
        elif what == "preempt":
            self.preempt(int(order.get("signal", signal.SIGTERM)))
        elif what == "end":
            self.end(0)
        elif what == "stacks" and self._stacks is None and self._kill_at is None:
            self._dump_stacks()

    def _dump_stacks(self) -> None:
        self._status, self._is_over = exit_status(-signal.SIGABRT), True
        self._kill_at = time.monotonic() + GRACE_S
        run_dir, attempt = self.node.run_dir, events.attempt()
        self._stacks = StackDump(run_dir.attempt_logs(attempt) / "stacks")
        first = self.node.first_rank
        pids = {first + local_rank: rank.pid for local_rank, rank in self._ranks.items()}
        if self._starting is not None:
            # It imports for all ranks, and writes to this process's log.
            signal_group(self._starting.process.pid, signal.SIGABRT)
        self._stacks.begin(pids, {rank: run_dir.rank_log(attempt, rank) for rank in pids})

    def _tell_stacks(self) -> None:
        if self._stacks is not None:
            self.tell({"event": "stacks", "places": {str(rank): place for rank, place in self._stacks.finish().items()}})

    def _take_events(self) -> None:
        for event in self._reader.read():
            name = event.get("event")
            rank = event.get("rank")
            local_rank = rank - self.node.first_rank if isinstance(rank, int) else -1
            if name == "ready":
                self._ready.add(local_rank)
            elif name == "at" and isinstance(rank, int):
                self._places[rank] = event
            elif isinstance(name, str) and name not in OWN_EVENTS:
                # A rank says what its machine is called; reports use the hostfile's name.
                self.tell({**event, "host": self.node.host})

    def _reap(self) -> None:
        if self._starting is not None and self._starting.process.poll() is not None:
            self._take_over(self._starting)
        for local_rank, rank in list(self._ranks.items()):
            returncode = rank.poll()
            if returncode is not None:
                # What it said last must not come after its end.
                self._take_events()
                del self._ranks[local_rank]
                self._ended(local_rank, rank, returncode)

    def _take_over(self, starting: ForkedStart) -> None:
        """Owns the ranks of the process that forked them and has ended."""
        self._starting = None
        processes = starting.finish()
        if len(processes) == self.node.local_ranks:
            self._ranks.update(enumerate(processes))
            if self._kill_at is not None:
                self._signal_all(signal.SIGTERM)
            return
        status = exit_status(starting.process.returncode)
        if self._kill_at is None:
            sys.stderr.write(f"the process that imports for the ranks of {self.node.host} ended before it had started them: exit status {status}\n")
        self.end(status or 1)

    def _ended(self, local_rank: int, rank: subprocess.Popen[bytes] | AdoptedProcess, returncode: int) -> None:
        status = exit_status(returncode)
        if local_rank not in self._ready and -returncode in PREEMPTING and self._kill_at is None:
            status = PREEMPTED
        ended_here = self._kill_at is not None and -returncode in (signal.SIGTERM, signal.SIGKILL, signal.SIGABRT)
        memory = self._memory.of(rank.pid) if returncode == -signal.SIGKILL and not ended_here else {}
        self.tell({"event": "rank_exit", "rank": self.node.first_rank + local_rank, "status": status, "ended_by_launcher": ended_here, **memory})
        if status == PREEMPTED and self._kill_at is None:
            # The others end by themselves now; the run's status is set by the first.
            self._status = PREEMPTED
            self._kill_at = time.monotonic() + FAREWELL_S
        elif status not in (0, PREEMPTED):
            self.end(status)

    def _show_life(self) -> None:
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        self._memory.look(rank.pid for rank in self._ranks.values())
        if self._channel is not None:
            places, self._places = self._places, {}
            at: dict[str, Any] = {str(rank): {"update": place.get("update"), "stage": place.get("stage")} for rank, place in places.items()}
            self.tell({"event": "alive", "at": at})
            self._channel.events.flush()

    def _signal_all(self, signum: int) -> None:
        self._take_events()
        for local_rank, rank in self._ranks.items():
            signal_group(rank.pid, signum if local_rank in self._ready else signal.SIGKILL)
        if self._starting is not None:
            signal_group(self._starting.process.pid, signal.SIGKILL)

    def _kill_all(self) -> None:
        for process in (*self._ranks.values(), *((self._starting.process,) if self._starting is not None else ())):
            signal_group(process.pid, signal.SIGKILL)


def _note(_signum: int, _frame: object) -> None:
    """The number arrives through the wakeup descriptor."""
