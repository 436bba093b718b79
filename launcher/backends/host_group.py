"""All hosts of a launch as one: their supervisors are started, steered and heard together, and the first that fails, or falls silent, ends all."""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ftcore.spec.errors import PREEMPTED
from launcher.backends.channel import HostChannel, Line
from launcher.backends.stall import Limits, StallWatch
from launcher.children import Event, StopSignals
from launcher.json_lines import Message
from launcher.node_channel import BEAT_S
from launcher.processes import PREEMPTING, exit_status

REACH_LIMIT_S = 60.0
"""From the start to the supervisor's hello: a connection, Python's start on a slow shared file system."""
FLUSH_S = 0.01
"""Between two tries to hand over orders that did not fit at once."""
END_LIMIT_S = 7.0
"""From the order to end to the farewell: the ranks' grace and the sweep after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When what is done."""

    heartbeat_timeout: float
    """Seconds without a word of a remote host until it counts as lost."""
    hang: Limits
    """When the run counts as hung."""
    preempt_grace: float
    """Seconds that the last save may take."""


@dataclass(slots=True)
class Ending:
    """How it ended, as far as the group knows."""

    lost: dict[str, str] = field(default_factory=dict)
    """Host -> why it counts as lost, in the order in which it was noticed."""
    lost_at: float = 0.0
    """When the first of them was last heard, on the monotonic clock."""
    is_stalled: bool = False
    is_starting: bool = False
    """It hung before every rank had begun."""
    stall_places: dict[int, str] = field(default_factory=dict)
    """Rank -> where it last made progress."""
    stacks: dict[int, str] = field(default_factory=dict)
    """Rank -> the innermost frame of its main thread."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Host -> its supervisor's status."""
    is_preempted: bool = False
    """The ranks were asked to save and end."""
    needs_sweep: bool = False
    """Something may be left on hosts that were not asked how they ended."""
    saved_late: bool = False
    """A preempted run was ended before its save was done."""


class HostGroup:
    """Runs once."""

    def __init__(self, lines: list[Line], headers: list[Message], rules: Rules, *, on_event: Callable[[Event], None]) -> None:
        self._lines, self._headers, self._rules, self._on_event = lines, headers, rules, on_event
        self._channels: list[HostChannel] = []
        self._stall = StallWatch(rules.hang, sum(line.host.slots for line in lines), time.monotonic)
        self._began = time.monotonic()
        self._port = 0
        """Where the ranks meet, once the host of rank 0 has said it."""
        self._has_gone = False
        """Whether the ranks were told where to meet."""
        self._end_at: float | None = None
        """When hosts that have not said farewell are given up; None until the end was ordered."""
        self._save_until: float | None = None
        """When a preempted run is ended all the same; None: it is not preempted."""
        self._ending = Ending()

    def run(self, stop: StopSignals, on_stop: Callable[[], None]) -> Ending:
        """Starts everything and returns when all channels have closed; calls `on_stop` when a signal asks for something.

        Raises ClusterError when a process can't be started here.
        """
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(stop.handle, selectors.EVENT_READ)
            stack.enter_context(_deaf_to_suspension(any(line.is_remote for line in self._lines)))
            stack.callback(self._close)
            for line, header in zip(self._lines, self._headers, strict=True):
                channel = HostChannel(line)
                self._channels.append(channel)
                selector.register(channel.reader.handle, selectors.EVENT_READ)
                channel.send(header)
            next_beat, heeded = 0.0, 0
            while any(channel.is_open for channel in self._channels):
                selector.select(max(0.0, min(FLUSH_S if self._has_pending() else BEAT_S, next_beat - time.monotonic())))
                stop.drain()
                self._hear(selector)
                for channel in self._open():
                    channel.flush()
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + BEAT_S
                    for channel in self._open():
                        channel.tick()
                if stop.requested != heeded:
                    heeded = stop.requested
                    on_stop()
                    self._stop(stop)
                self._decide()
        return self._ending

    def _has_pending(self) -> bool:
        return any(channel.has_pending for channel in self._open())

    def _open(self) -> Iterator[HostChannel]:
        return (channel for channel in self._channels if channel.is_open)

    def _hear(self, selector: selectors.BaseSelector) -> None:
        for channel in list(self._open()):
            for event in channel.read():
                self._take(event)
            if not channel.is_open:
                selector.unregister(channel.reader.handle)
                self._closed(channel)

    def _take(self, event: Event) -> None:
        self._stall.hear(event)
        name = event["event"]
        if name == "hello":
            self._go_when_all_are_there(event)
        elif name == "stacks":
            self._ending.stacks.update({int(rank): place for rank, place in event["places"].items()})
        elif name == "preempt" and self._save_until is None:
            self._begin_saving(int(event["signal"]))
            self._on_event(event)
        elif name == "adrift":
            host = str(event["host"])
            self._ending.lost.setdefault(host, f"it lost this launcher: {event['reason']} (it was suspended, or the network was down)")
        elif name not in ("alive", "preempt"):
            self._on_event(event)
        # Not at an error: the rank is still writing down what happened.
        if name == "rank_exit" and event["status"] not in (0, PREEMPTED):
            self._end()

    def _go_when_all_are_there(self, hello: Event) -> None:
        if "port" in hello:
            self._port = int(hello["port"])
        if all(channel.said_hello for channel in self._channels) and not self._has_gone and self._end_at is None:
            self._has_gone = True
            for channel in self._channels:
                channel.send({"do": "go", "master_addr": self._headers[0]["master_addr"], "master_port": self._port})

    def _closed(self, channel: HostChannel) -> None:
        """Whoever leaves without a farewell is lost; who leaves with a bad status ends all."""
        if channel.status is None and not channel.line.is_remote and not channel.silence:
            self._ending.statuses[channel.name] = exit_status(channel.process.wait())
            self._end()
        elif channel.was_dismissed:
            self._ending.needs_sweep = True
            self._ending.statuses[channel.name] = 0
        elif channel.status is None:
            if not self._ending.lost:
                self._ending.lost_at = channel.heard_at
            self._ending.lost[channel.name] = "; ".join([channel.why_lost(), *channel.last_words()])
            self._end()
        else:
            self._ending.statuses[channel.name] = channel.status
            if channel.status not in (0, PREEMPTED):
                self._end()

    def _decide(self) -> None:
        now = time.monotonic()
        if self._save_until is not None and now > self._save_until and self._end_at is None:
            self._ending.saved_late = True
            self._end()
        if self._stall.is_due() and self._end_at is None:
            self._ending.is_stalled, self._ending.stall_places = True, self._stall.places()
            self._ending.is_starting = self._stall.is_starting
            self._order({"do": "stacks"})
            self._end_at = now + END_LIMIT_S
        for channel in self._open():
            self._give_up_if_silent(channel, now)

    def _stop(self, stop: StopSignals) -> None:
        """What a signal to the launcher asks for; `requested` is the first one, unless a later one asks for the end."""
        if stop.requested not in PREEMPTING or not self._has_gone:
            # Before a rank runs there is nothing to save.
            self._end()
        elif self._save_until is None:
            self._begin_saving(stop.requested)

    def _begin_saving(self, signum: int) -> None:
        """Asks the ranks of every host to save and end; it is harmless where they were asked already."""
        self._save_until = time.monotonic() + self._rules.preempt_grace
        self._ending.is_preempted = True
        self._order({"do": "preempt", "signal": signum})

    def _give_up_if_silent(self, channel: HostChannel, now: float) -> None:
        silence = now - channel.heard_at
        if self._end_at is not None and now > self._end_at:
            channel.give_up(f"it did not say that its ranks have ended; nothing was heard of it for {silence:.1f} s")
        elif not channel.said_hello and now - self._began > REACH_LIMIT_S:
            channel.give_up(f"it did not answer in {REACH_LIMIT_S:.0f} s")
        elif channel.line.is_remote and channel.said_hello and silence > self._rules.heartbeat_timeout:
            channel.give_up(f"nothing was heard of it for {silence:.1f} s: the network, the host or its ssh server is down")

    def _end(self) -> None:
        """Orders all hosts to end their ranks. Only the first call counts."""
        if self._end_at is None:
            self._end_at = time.monotonic() + END_LIMIT_S
            self._order({"do": "end"})

    def _order(self, order: Message) -> None:
        for channel in self._open():
            channel.send(order)

    def _close(self) -> None:
        for channel in self._channels:
            if channel.is_open:
                channel.give_up("")
            channel.close()


@contextlib.contextmanager
def _deaf_to_suspension(is_wanted: bool) -> Iterator[None]:
    """Ignores Ctrl-Z: a launcher that sleeps is, for the other hosts, one that was lost."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_IGN) if is_wanted else None
    try:
        yield
    finally:
        if is_wanted:
            signal.signal(signal.SIGTSTP, before)
