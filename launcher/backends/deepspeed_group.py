"""All hosts of a launch whose ranks DeepSpeed's launcher starts: its one output is taken apart, and whatever fails, it ends with everything it started."""

from __future__ import annotations

import math
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ftcore.spec.errors import PREEMPTED
from ftcore.spec.resolved import Host
from launcher.backends.base import Launch
from launcher.backends.calls import call, end_calls, signal_command
from launcher.backends.deepspeed_command import deepspeed_argv, deepspeed_environment, write_deepspeed_files
from launcher.backends.host_group import Ending, Rules
from launcher.backends.stall import StallWatch
from launcher.children import Event, StopSignals, open_log, starting
from launcher.failure import tail
from launcher.json_lines import LineReader, json_object
from launcher.processes import LAUNCH_ID, PREEMPTING, child_setup, exit_status, signal_group

START_LIMIT_S = 180.0
"""From the start until every rank's watcher has said hello: DeepSpeed is imported here and on each host before."""
LINGER_S = 1.0
"""After a rank's bad end: what others say of their own may be what it followed from."""
_TURN_S = 0.5
_LAST_WORDS = 3


def uses_deepspeed(launch: Launch) -> bool:
    """Whether DeepSpeed's launcher starts the ranks: on this machine alone nothing would be left for it to do."""
    return launch.reach.launcher == "deepspeed" and any(map(launch.reach.is_remote, launch.hosts))


@dataclass(slots=True)
class _HostState:
    host: Host
    log: Path
    """Gets what is said there, by whatever is no rank."""
    pids: list[int] = field(default_factory=list)
    """Of the watchers of its ranks."""
    statuses: list[int] = field(default_factory=list)
    """Of those that have said farewell."""
    heard_at: float = 0.0

    @property
    def has_started(self) -> bool:
        return len(self.pids) == self.host.slots

    @property
    def has_ended(self) -> bool:
        return len(self.statuses) == self.host.slots


class DeepSpeedGroup:
    """Runs once."""

    def __init__(self, launch: Launch, rules: Rules, *, on_event: Callable[[Event], None]) -> None:
        self._launch, self._rules, self._on_event = launch, rules, on_event
        self._began = time.monotonic()
        logs = launch.run_dir.attempt_logs(launch.attempt)
        self._hosts = {host.name: _HostState(host, logs / f"node_{rank}.log", heard_at=self._began) for rank, host in enumerate(launch.hosts)}
        self._stall = StallWatch(rules.hang, launch.resolved.world_size, time.monotonic)
        self._kill_at: float | None = None
        """When DeepSpeed's launcher is ended; None until something failed."""
        self._save_until: float | None = None
        self._callers: list[subprocess.Popen[bytes]] = []
        self._ending = Ending()

    def run(self, stop: StopSignals, on_stop: Callable[[], None]) -> Ending:
        """Starts everything and returns when DeepSpeed's launcher has ended here; what it may have left on hosts is for the caller to sweep.

        Calls `on_stop` when a signal asks for something. Raises ClusterError or CheckpointError when it can't be started.
        """
        write_deepspeed_files(self._launch)
        with starting("DeepSpeed's launcher"):
            process = subprocess.Popen(
                deepspeed_argv(self._launch),
                env=deepspeed_environment(self._launch),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=child_setup(signal.SIGTERM),  # noqa: PLW1509  this process has one thread
            )
        try:
            self._attend(process, stop, on_stop)
        finally:
            signal_group(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            end_calls(self._callers)
        self._conclude(process)
        return self._ending

    def _attend(self, process: subprocess.Popen[bytes], stop: StopSignals, on_stop: Callable[[], None]) -> None:
        """Returns when it has ended and all it said was read, or when it is to be ended now."""
        # All that it says must be heard before it counts as ended.
        reader, heeded = LineReader(process.stdout.fileno() if process.stdout is not None else -1, most_bytes=math.inf), 0
        with selectors.DefaultSelector() as selector:
            selector.register(stop.handle, selectors.EVENT_READ)
            selector.register(reader.handle, selectors.EVENT_READ)
            while self._kill_at is None or time.monotonic() < self._kill_at:
                selector.select(_TURN_S)
                stop.drain()
                has_ended = process.poll() is not None
                for line in reader.lines():
                    self._take_line(line.decode(errors="replace"))
                if has_ended or not reader.is_open:
                    return
                if stop.requested != heeded:
                    heeded = stop.requested
                    on_stop()
                    self._stop(stop)
                self._decide()

    def _take_line(self, line: str) -> None:
        name, _, text = line.partition(": ")
        event = json_object(text)
        if event is not None and isinstance(event.get("event"), str) and event.get("host") in self._hosts:
            self._take(event, self._hosts[str(event["host"])])
            return
        short = {state.host.name.partition(".")[0]: state for state in self._hosts.values()}
        # DeepSpeed's own words, before it has reached a host, stand in the first one's log.
        state = self._hosts.get(name) or short.get(name) or next(iter(self._hosts.values()))
        with open_log(state.log) as log:
            log.write(f"{line}\n".encode())

    def _take(self, event: Event, state: _HostState) -> None:
        state.heard_at = time.monotonic()
        self._stall.hear(event)
        name = event["event"]
        if name == "hello":
            state.pids.append(int(event["pid"]))
        elif name == "bye":
            state.statuses.append(int(event["status"]))
        elif name == "preempt":
            self._ending.is_preempted = True
            if self._save_until is None:
                self._begin_saving()
                self._on_event(event)
        elif name != "alive":
            self._on_event(event)
        if name in ("rank_exit", "bye") and event["status"] not in (0, PREEMPTED):
            self._end(LINGER_S)

    def _decide(self) -> None:
        now = time.monotonic()
        if self._save_until is not None and now > self._save_until and self._kill_at is None:
            self._ending.saved_late = True
            self._end()
        if self._stall.is_due() and self._kill_at is None:
            self._ending.is_stalled, self._ending.stall_places = True, self._stall.places()
            self._ending.is_starting = self._stall.is_starting
            self._end()
        for state in self._hosts.values():
            silence = now - state.heard_at
            if not state.has_started and now - self._began > START_LIMIT_S:
                self._lose(state, f"its ranks were not started in {START_LIMIT_S:.0f} s")
            elif state.has_started and not state.has_ended and silence > self._rules.heartbeat_timeout:
                self._lose(state, f"nothing was heard of it for {silence:.1f} s: the network, the host or its ssh server is down")

    def _lose(self, state: _HostState, why: str) -> None:
        if state.host.name not in self._ending.lost and self._kill_at is None:
            self._note_lost(state, why)
            self._end()

    def _note_lost(self, state: _HostState, why: str) -> None:
        if not self._ending.lost:
            self._ending.lost_at = state.heard_at
        self._ending.lost[state.host.name] = "; ".join([why, *tail(state.log, _LAST_WORDS)])

    def _stop(self, stop: StopSignals) -> None:
        has_gone = all(state.has_started for state in self._hosts.values())
        if stop.requested not in PREEMPTING or not has_gone:
            self._end()
        elif self._save_until is None:
            self._begin_saving()

    def _begin_saving(self) -> None:
        """Signals the watchers of every host; it is harmless where they were asked already."""
        self._save_until = time.monotonic() + self._rules.preempt_grace
        self._ending.is_preempted = True
        environment = self._launch.environment
        for state in self._hosts.values():
            command = signal_command(state.pids, "USR2", environment[LAUNCH_ID])
            with open_log(state.log) as log:
                self._callers.append(call(self._launch.reach.argv(state.host, command), environment, f"a signal to {state.host.name}", log))

    def _end(self, linger_s: float = 0.0) -> None:
        """DeepSpeed's launcher is ended, at the latest after so many seconds. Only the first call counts."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + linger_s
            self._ending.needs_sweep = True

    def _conclude(self, process: subprocess.Popen[bytes]) -> None:
        status = exit_status(process.returncode)
        for state in self._hosts.values():
            bad = [each for each in state.statuses if each not in (0, PREEMPTED)]
            if state.has_ended or bad:
                self._ending.statuses[state.host.name] = next(iter(bad), max(state.statuses))
            elif self._kill_at is None and not self._ending.lost.get(state.host.name):
                self._ending.needs_sweep = True
                self._note_lost(state, f"DeepSpeed's launcher ended without it (exit status {status})")
