"""`python -m launcher.node`: starts the ranks of one host, watches them, and ends them all when the first one fails.

Standard library only. Ranks are started one by one, or forked from a process that has imported everything (launcher/forked_start.py).
A rank runs in a session of its own with its own log, and is killed when this process dies. The launcher steers over stdin and stdout
(launcher/node_channel.py); started by hand, the ranks begin at once and end with this process's parent.
Exit status: the first failing rank's, 128 + N for a signal N, 75 when the run was preempted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ftcore.spec import events
from ftcore.spec.errors import ClusterError, FtError
from ftcore.spec.parentage import die_with_parent
from ftcore.spec.run_dir import RunDir
from launcher.forked_start import is_forkable
from launcher.json_lines import Message
from launcher.node_channel import Channel
from launcher.node_environment import Node
from launcher.node_supervisor import Supervisor
from launcher.processes import exit_status
from launcher.run_folder import locked

LAST_WORDS_S = 2.0
"""For what is still to be told to the launcher at the end."""


def parse_arguments(arguments: Sequence[str]) -> tuple[Node, str, Path | None]:
    """The node that the command line describes, who steers it, and the file with its header; a wrong one ends the process with status 2."""
    parser = argparse.ArgumentParser(prog="python -m launcher.node", description="Start and watch the ranks of one host.")
    parser.add_argument("--run-dir", required=True, type=Path)
    parser.add_argument("--host", default="localhost")
    for name in ("--node-rank", "--nodes", "--local-ranks", "--first-rank", "--world-size"):
        parser.add_argument(name, required=True, type=int)
    parser.add_argument("--devices", default="", help="accelerators to use, with commas between")
    parser.add_argument("--interface", default="", help="network interface of the ranks")
    parser.add_argument("--import-once", action="store_true", help="the command is PYTHON -m MODULE RUN: import MODULE once and fork the ranks")
    parser.add_argument("--control", choices=("none", "out", "both"), default="none", help="events to stdout (out), and orders from stdin too (both)")
    parser.add_argument("--header", type=Path, help="JSON file with what a launcher without orders has to say (see launcher/node_channel.py)")
    parser.add_argument("command", nargs="+", help="argv of a rank, after --")
    given = parser.parse_args(arguments)
    if given.import_once and not is_forkable(given.command):
        parser.error("--import-once needs a command of the form PYTHON -m MODULE RUN")
    node = Node(
        run_dir=RunDir(given.run_dir),
        host=given.host,
        node_rank=given.node_rank,
        nodes=given.nodes,
        local_ranks=given.local_ranks,
        first_rank=given.first_rank,
        world_size=given.world_size,
        devices=tuple(int(device) for device in given.devices.split(",") if device),
        interface=given.interface,
        command=tuple(given.command),
        import_once=given.import_once,
    )
    return node, given.control, given.header


def main(arguments: Sequence[str]) -> int:
    """Runs one host's ranks; returns the exit status."""
    parent = os.getppid()
    node, control, header = parse_arguments(arguments)
    if control == "none":
        die_with_parent(signal.SIGHUP)
        if os.getppid() != parent:
            return exit_status(-signal.SIGHUP)
        _forget_closed_handle()
    channel = Channel.over_stdio(reads=control == "both") if control != "none" else None
    return supervised(node, channel, lambda: _supervise(node, channel, header))


def supervised(node: Node, channel: Channel | None, supervise: Callable[[], int]) -> int:
    """The exit status of `supervise`, or of what kept it from starting a rank; the launcher is told either."""
    try:
        status = supervise()
    except (OSError, FtError) as error:
        status = _report(node, channel, error)
    if channel is not None:
        channel.events.send({"event": "bye", "host": node.host, "status": status})
        channel.events.drain(LAST_WORDS_S)
    return status


def read_header(path: Path) -> Message:
    """The header, from a file. Raises ClusterError when it can't be read."""
    try:
        header: Message = json.loads(path.read_text(encoding="utf-8"))
        return header
    except (OSError, ValueError) as error:
        fix = "keep the run's folder on a file system that all hosts share"
        raise ClusterError(f"can't read {path}: {error}", where=socket.gethostname(), fix=fix) from error


def _supervise(node: Node, channel: Channel | None, told: Path | None) -> int:
    if told is not None:
        os.environ.update(read_header(told)["environment"])
    if channel is None or channel.orders is None:
        # Started by hand nobody else owns the run's folder: one host does, as a launcher would.
        with locked(node.run_dir) if channel is None and node.node_rank == 0 else contextlib.nullcontext():
            supervisor = Supervisor(node, channel)
            if channel is not None:
                supervisor.tell({"event": "hello", "pid": os.getpid()})
            supervisor.start(os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500")))
            return supervisor.run()
    header = channel.header()
    if not header:
        return exit_status(-signal.SIGHUP)
    os.environ.update(header["environment"])
    os.environ[events.ATTEMPT] = str(header["attempt"])
    supervisor = Supervisor(node, channel)
    channel.silence_limit_s = float(header["heartbeat_timeout"])
    with contextlib.ExitStack() as kept:
        supervisor.tell({"event": "hello", "pid": os.getpid(), **_meeting_port(node, header, kept)})
        return supervisor.run()


def _meeting_port(node: Node, header: Message, kept: contextlib.ExitStack) -> Message:
    """On the host of rank 0 the port where the ranks are to meet. Raises ClusterError when it, or the address, can't be had.

    Until `kept` is closed a socket that is bound and does not listen keeps it: the kernel gives it to nobody who asks for any port in the seconds until
    rank 0 listens there, which lets its port be shared.
    """
    if node.node_rank != 0:
        return {}
    address, port = str(header["master_addr"]), int(header["master_port"] or 0)
    try:
        family, *_, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        probe = kept.enter_context(socket.socket(family, socket.SOCK_STREAM))
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(target)
        return {"port": probe.getsockname()[1]}
    except OSError as error:
        fix = "name an address of this host (--master-addr), and a free port or none (--master-port)"
        raise ClusterError(f"the ranks can't meet at {address}{f':{port}' if port else ''} on {node.host}: {error}", where=node.host, fix=fix) from error


def _report(node: Node, channel: Channel | None, error: OSError | FtError) -> int:
    """Tells why no rank runs; the exit status."""
    fix = "see the limits on processes, memory and files (ulimit -a)"
    failure = error if isinstance(error, FtError) else ClusterError(f"can't start the ranks on {node.host}: {error}", where=node.host, fix=fix)
    told = {**failure.to_dict(), "traceback": "", "host": node.host, "exit_status": failure.exit_status}
    if channel is not None:
        channel.events.send({"event": "error", **told})
    else:
        events.emit("error", **told)
    sys.stderr.write(f"{failure}\n")
    return failure.exit_status


def _forget_closed_handle() -> None:
    """Forgets the descriptor for events where an earlier launcher's, closed by now, is named."""
    text = os.environ.get(events.EVENTS_FD)
    try:
        os.fstat(int(text or 0))
    except (ValueError, OSError):
        del os.environ[events.EVENTS_FD]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
