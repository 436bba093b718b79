"""`python -m launcher.node`: starts the ranks of one host, watches them, and ends them all when the first one fails.

Standard library only. Ranks are started one by one, or forked from a process that has imported everything (launcher/forked_start.py).
A rank runs in a session of its own with its own log; it is killed when this process dies, and this process ends its ranks when its
own parent dies. Exit status: the first failing rank's, 128 + N for a signal N.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ftcore.spec import events
from ftcore.spec.errors import ClusterError
from ftcore.spec.parentage import die_with_parent
from ftcore.spec.run_dir import RunDir
from launcher.forked_start import ForkedStart, is_forkable
from launcher.processes import LAUNCH_ID, AdoptedProcess, child_setup, exit_status, signal_group, sweep
from launcher.topology import local_accelerators

GRACE_S = 4.0
"""Time between SIGTERM and SIGKILL for the ranks that are still there."""

KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28)}
"""For glibc: each micro-step frees its activations and takes as much again; given back to the kernel in between, they fault in page by page."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCHED = (signal.SIGCHLD, *_STOP_SIGNALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one host runs."""

    run_dir: RunDir
    host: str
    """Name in reports."""
    node_rank: int
    nodes: int
    local_ranks: int
    first_rank: int
    """Global rank of local rank 0."""
    world_size: int
    devices: tuple[int, ...]
    """Accelerators to use, one a local rank; empty: all that are visible."""
    command: tuple[str, ...]
    """argv of a rank."""
    import_once: bool
    """The command is `PYTHON -m MODULE RUN` with a `main(RunDir)`: a process that has imported MODULE may be forked for each rank."""

    @property
    def forks(self) -> bool:
        """Whether ranks are forked. Not next to accelerators: libraries ask them for their abilities when imported, and no fork can use CUDA after that."""
        return self.import_once and self.local_ranks > 1 and local_accelerators() == 0


def parse_arguments(arguments: Sequence[str]) -> Node:
    """The node that the command line describes; a wrong command line ends the process with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="python -m launcher.node", description="Start and watch the ranks of one host.")
    parser.add_argument("--run-dir", required=True, type=Path)
    parser.add_argument("--host", default="localhost")
    for name in ("--node-rank", "--nodes", "--local-ranks", "--first-rank", "--world-size"):
        parser.add_argument(name, required=True, type=int)
    parser.add_argument("--devices", default="", help="accelerators to use, with commas between")
    parser.add_argument("--import-once", action="store_true", help="the command is PYTHON -m MODULE RUN: import MODULE once and fork the ranks")
    parser.add_argument("command", nargs="+", help="argv of a rank, after --")
    given = parser.parse_args(arguments)
    if given.import_once and not is_forkable(given.command):
        parser.error("--import-once needs a command of the form PYTHON -m MODULE RUN")
    return Node(
        run_dir=RunDir(given.run_dir),
        host=given.host,
        node_rank=given.node_rank,
        nodes=given.nodes,
        local_ranks=given.local_ranks,
        first_rank=given.first_rank,
        world_size=given.world_size,
        devices=tuple(int(device) for device in given.devices.split(",") if device),
        command=tuple(given.command),
        import_once=given.import_once,
    )


def host_environment(base: Mapping[str, str], node: Node, cores: int) -> dict[str, str]:
    """What the ranks of a host share: `base` with torch's and DeepSpeed's variables, and threads that share `cores`."""
    environment = dict(base)
    own = {
        "WORLD_SIZE": node.world_size,
        "LOCAL_WORLD_SIZE": node.local_ranks,
        "LOCAL_SIZE": node.local_ranks,
        "NODE_RANK": node.node_rank,
        "CROSS_RANK": node.node_rank,
        "CROSS_SIZE": node.nodes,
    }
    environment.update({name: str(value) for name, value in own.items()})
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // node.local_ranks)))
    for name, value in KEEP_FREED_MEMORY.items():
        environment.setdefault(name, value)
    if node.devices:
        visible = [entry for entry in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
        chosen = [visible[device] if device < len(visible) else str(device) for device in node.devices]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
    return environment


def rank_environment(shared: Mapping[str, str], node: Node, local_rank: int) -> dict[str, str]:
    """The environment of one rank: what it shares with the host's others, and its number."""
    return {**shared, "RANK": str(node.first_rank + local_rank), "LOCAL_RANK": str(local_rank)}


class Supervisor:
    """The ranks of one host from start to end. Signals are taken with sigtimedwait: nothing runs while the ranks do."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.running: dict[int, subprocess.Popen[bytes] | AdoptedProcess] = {}
        """Local rank -> process."""
        self.starting: ForkedStart | None = None
        """What is about to fork the ranks."""
        self.status = 0
        """Of the first rank that failed, or of what stopped this host."""
        self.kill_at: float | None = None
        """When the ranks that are left get SIGKILL, on the monotonic clock; None until the ranks are being ended."""
        self.launch_id = f"{os.environ.get(LAUNCH_ID) or uuid.uuid4().hex}.{node.node_rank}"

    def run(self) -> int:
        """Starts all ranks and returns when all have ended and nothing of theirs is left."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        try:
            self._start()
            while self.running or self.starting is not None:
                self._wait()
        finally:
            self._signal_all(signal.SIGKILL)
            sweep(self.launch_id)
        return self.status

    def _start(self) -> None:
        node, handles = self.node, _events_handle()
        shared = host_environment({**os.environ, LAUNCH_ID: self.launch_id}, node, len(os.sched_getaffinity(0)))
        node.run_dir.attempt_logs(events.attempt()).mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            ranks = range(node.first_rank, node.first_rank + node.local_ranks)
            logs = [stack.enter_context(node.run_dir.rank_log(events.attempt(), rank).open("ab")) for rank in ranks]
            if node.forks:
                self.starting = ForkedStart.begin(node.command, shared, node.first_rank, logs, handles)
                return
            for local_rank, log in enumerate(logs):
                self.running[local_rank] = self._start_one(rank_environment(shared, node, local_rank), log, handles)

    def _start_one(self, environment: Mapping[str, str], log: BinaryIO, handles: tuple[int, ...]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.node.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=handles,
            preexec_fn=child_setup(signal.SIGKILL),  # noqa: PLW1509  this process has one thread
        )

    def _wait(self) -> None:
        """Sleeps until a signal or the end of the grace, then acts on it."""
        timeout = 3600.0 if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
        received = signal.sigtimedwait(_WATCHED, timeout)
        if received is not None and received.si_signo in _STOP_SIGNALS:
            self._end_all(exit_status(-received.si_signo))
        if self.starting is not None and self.starting.process.poll() is not None:
            self._started(self.starting)
        for local_rank, process in list(self.running.items()):
            returncode = process.poll()
            if returncode is not None:
                del self.running[local_rank]
                self._ended(local_rank, returncode)
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self._signal_all(signal.SIGKILL)
            self.kill_at = time.monotonic() + GRACE_S

    def _started(self, starting: ForkedStart) -> None:
        """Takes the ranks over from the process that forked them and has ended."""
        self.starting = None
        ranks = starting.finish()
        if len(ranks) == self.node.local_ranks:
            self.running.update(enumerate(ranks))
            if self.kill_at is not None:
                self._signal_all(signal.SIGTERM)
            return
        status = exit_status(starting.process.returncode)
        if self.kill_at is None:
            sys.stderr.write(f"the process that imports for the ranks of {self.node.host} ended before it had started them: exit status {status}\n")
        self._end_all(status or 1)

    def _ended(self, local_rank: int, returncode: int) -> None:
        status = exit_status(returncode)
        ended_here = self.kill_at is not None and -returncode in (signal.SIGTERM, signal.SIGKILL)
        events.emit("rank_exit", rank=self.node.first_rank + local_rank, host=self.node.host, status=status, ended_by_launcher=ended_here)
        if status != 0:
            self._end_all(status)

    def _end_all(self, status: int) -> None:
        """Asks the ranks that are left to end. Only the first call counts."""
        if self.kill_at is not None:
            return
        self.status = status
        self.kill_at = time.monotonic() + GRACE_S
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, signum: int) -> None:
        for process in (*self.running.values(), *((self.starting.process,) if self.starting is not None else ())):
            signal_group(process.pid, signum)


def _events_handle() -> tuple[int, ...]:
    """The inherited descriptor for events, if there is one that is open."""
    text = os.environ.get(events.EVENTS_FD)
    if text is None:
        return ()
    try:
        os.fstat(int(text))
    except (ValueError, OSError):
        del os.environ[events.EVENTS_FD]
        return ()
    return (int(text),)


def main(arguments: Sequence[str]) -> int:
    """Runs one host's ranks; returns the exit status."""
    parent = os.getppid()
    node = parse_arguments(arguments)
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return exit_status(-signal.SIGTERM)
    try:
        return Supervisor(node).run()
    except OSError as error:
        fix = "see the limits on processes, memory and files (ulimit -a)"
        failure = ClusterError(f"can't start the ranks on {node.host}: {error}", where=node.host, fix=fix)
        events.emit("error", **failure.to_dict(), traceback="", host=node.host, exit_status=failure.exit_status)
        sys.stderr.write(f"{failure}\n")
        return failure.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
