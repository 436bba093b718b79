"""`python -m launcher.rank_start FOLDER`: starts and watches one rank on a host whose ranks DeepSpeed's launch.py owns. Standard library only.

FOLDER is in url-safe base64, since DeepSpeed hands arguments to a shell as they are; there host_N.json lies, with variables for node N and what it runs.
The rank ends with this process, this process ends with launch.py, and both when nobody reads the events on its stdout any more.
"""

from __future__ import annotations

import base64
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ftcore.spec import events
from ftcore.spec.errors import FtError
from ftcore.spec.parentage import die_with_parent
from ftcore.spec.run_dir import RunDir
from launcher.json_lines import Message
from launcher.node import read_header, supervised
from launcher.node_channel import Channel
from launcher.node_environment import Node, cores, host_environment, meeting_environment, rank_environment
from launcher.node_supervisor import Supervisor
from launcher.processes import LAUNCH_ID, exit_status


class OneRank(Supervisor):
    """Supervises one of the host's ranks; the others have processes like this one of their own."""

    def __init__(self, node: Node, channel: Channel, local_rank: int) -> None:
        super().__init__(node, channel)
        self._local_rank = local_rank
        # What is swept at its end must be its own rank's alone.
        self._launch_id = f"{self._launch_id}.{node.first_rank + local_rank}"

    def start(self, address: str, port: int) -> None:
        """Starts the rank. Raises OSError when that can't be done."""
        node = self.node
        shared = host_environment({**os.environ, LAUNCH_ID: self._launch_id}, node, cores())
        environment = rank_environment(meeting_environment(shared, node, address, port), node, self._local_rank)
        environment[events.EVENTS_FD] = str(self._rank_events)
        with node.run_dir.rank_log(events.attempt(), node.first_rank + self._local_rank).open("ab") as log:
            self._ranks[self._local_rank] = self._start_one(environment, log)


def main(arguments: Sequence[str]) -> int:
    """Runs the rank that RANK, LOCAL_RANK and CROSS_RANK number, as launch.py sets them; returns its exit status."""
    parent = os.getppid()
    die_with_parent(signal.SIGHUP)
    if os.getppid() != parent:
        return exit_status(-signal.SIGHUP)
    try:
        header = read_header(Path(base64.urlsafe_b64decode(arguments[0]).decode()) / f"host_{os.environ['CROSS_RANK']}.json")
    except FtError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    node, channel = node_of(header), Channel.over_stdio(reads=False)
    return supervised(node, channel, lambda: _run(node, channel, header))


def node_of(header: Message) -> Node:
    """The node that a header describes."""
    described = header["node"]
    return Node(
        run_dir=RunDir(Path(described["run_dir"])),
        host=described["host"],
        node_rank=described["node_rank"],
        nodes=described["nodes"],
        local_ranks=described["local_ranks"],
        first_rank=described["first_rank"],
        world_size=described["world_size"],
        # launch.py has set the mask.
        devices=(),
        interface=described["interface"],
        command=tuple(described["command"]),
        import_once=False,
    )


def _run(node: Node, channel: Channel, header: Message) -> int:
    # The folder of DeepSpeed's process, which its launcher puts there.
    os.environ.pop("PYTHONPATH", None)
    os.environ.update(header["environment"])
    os.environ[events.ATTEMPT] = str(header["attempt"])
    os.chdir(header["node"]["launch_dir"])
    supervisor = OneRank(node, channel, int(os.environ["LOCAL_RANK"]))
    supervisor.tell({"event": "hello", "pid": os.getpid()})
    supervisor.start(str(header["master_addr"]), int(header["master_port"]))
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
