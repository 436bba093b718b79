"""`python -m launcher.node`: starts the ranks of one host, watches them, and ends them all when the first one fails.

Standard library only. A rank runs in a session of its own with its own log; it is killed when this process dies, and this
process ends its ranks when its own parent dies. Exit status: the first failing rank's, 128 + N for a signal N.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec import events
from ftcore.spec.errors import ClusterError
from ftcore.spec.run_dir import RunDir
from launcher.processes import LAUNCH_ID, child_setup, die_with_parent, exit_status, signal_group, sweep

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


def parse_arguments(arguments: Sequence[str]) -> Node:
    """The node that the command line describes; a wrong command line ends the process with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="python -m launcher.node", description="Start and watch the ranks of one host.")
    parser.add_argument("--run-dir", required=True, type=Path)
    parser.add_argument("--host", default="localhost")
    for name in ("--node-rank", "--nodes", "--local-ranks", "--first-rank", "--world-size"):
        parser.add_argument(name, required=True, type=int)
    parser.add_argument("--devices", default="", help="accelerators to use, with commas between")
    parser.add_argument("command", nargs="+", help="argv of a rank, after --")
    given = parser.parse_args(arguments)
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
    )


def rank_environment(base: Mapping[str, str], node: Node, local_rank: int, cores: int) -> dict[str, str]:
    """The environment of one rank: `base` with torch's and DeepSpeed's variables, and threads that share `cores`."""
    environment = dict(base)
    own = {
        "RANK": node.first_rank + local_rank,
        "LOCAL_RANK": local_rank,
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


class Supervisor:
    """The ranks of one host from start to end. Signals are taken with sigtimedwait: nothing runs while the ranks do."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        """Local rank -> process."""
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
            while self.running:
                self._wait()
        finally:
            for process in self.running.values():
                signal_group(process.pid, signal.SIGKILL)
            sweep(self.launch_id)
        return self.status

    def _start(self) -> None:
        handle = _events_handle()
        base = {**os.environ, LAUNCH_ID: self.launch_id}
        cores = len(os.sched_getaffinity(0))
        self.node.run_dir.attempt_logs(events.attempt()).mkdir(parents=True, exist_ok=True)
        for local_rank in range(self.node.local_ranks):
            log = self.node.run_dir.rank_log(events.attempt(), self.node.first_rank + local_rank)
            with log.open("ab") as output:
                self.running[local_rank] = subprocess.Popen(
                    self.node.command,
                    env=rank_environment(base, self.node, local_rank, cores),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=handle,
                    preexec_fn=child_setup(signal.SIGKILL),  # noqa: PLW1509  this process has one thread
                )

    def _wait(self) -> None:
        """Sleeps until a signal or the end of the grace, then acts on it."""
        timeout = 3600.0 if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
        received = signal.sigtimedwait(_WATCHED, timeout)
        if received is not None and received.si_signo in _STOP_SIGNALS:
            self._end_all(exit_status(-received.si_signo))
        for local_rank, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[local_rank]
                self._ended(local_rank, process)
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            for process in self.running.values():
                signal_group(process.pid, signal.SIGKILL)
            self.kill_at = time.monotonic() + GRACE_S

    def _ended(self, local_rank: int, process: subprocess.Popen[bytes]) -> None:
        status = exit_status(process.returncode)
        ended_here = self.kill_at is not None and -process.returncode in (signal.SIGTERM, signal.SIGKILL)
        events.emit("rank_exit", rank=self.node.first_rank + local_rank, host=self.node.host, status=status, ended_by_launcher=ended_here)
        if status != 0:
            self._end_all(status)

    def _end_all(self, status: int) -> None:
        """Asks the ranks that are left to end. Only the first call counts."""
        if self.kill_at is not None:
            return
        self.status = status
        self.kill_at = time.monotonic() + GRACE_S
        for process in self.running.values():
            signal_group(process.pid, signal.SIGTERM)


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
