"""The last look at hosts whose supervisor took no orders: what a launch that ended badly may have left there is killed."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time

from ftcore.spec.resolved import Host
from launcher.backends.base import Launch
from launcher.backends.calls import call, end_calls
from launcher.backends.host_group import Ending
from launcher.environment import import_root
from launcher.processes import LAUNCH_ID
from launcher.transport import pdsh_environment

LIMIT_S = 3.0
"""For all hosts together."""
LOST_LIMIT_S = 1.5
"""For one that was lost, which most likely can't be reached."""


def sweep_hosts(launch: Launch, ending: Ending) -> list[str]:
    """Sweeps the hosts that have not said that nothing is left there. A line if some were not reached. Raises like `starting`."""
    silent = [host for host in launch.hosts if ending.needs_sweep and not launch.reach.has_stdin(host)]
    hosts = [host for host in launch.hosts if launch.reach.is_remote(host) and (host.name in ending.lost or host in silent)]
    begun = time.monotonic()
    running = {host.name: _begin(launch, host) for host in hosts}
    limits = {name: begun + (LOST_LIMIT_S if name in ending.lost else LIMIT_S) for name in running}
    missed = [name for name, process in running.items() if not _ended(process, limits[name])]
    if not missed:
        return []
    return [f"could not look at {', '.join(missed)}: processes of this run end there by themselves once they notice that the connection is gone"]


def sweep_command(launch_id: str) -> str:
    """Shell text that sweeps the host it runs on."""
    root = import_root()
    path = f"PYTHONPATH={shlex.quote(root)} " if root else ""
    return f"cd / && {path}PYTHONSAFEPATH=1 {shlex.quote(sys.executable)} -m launcher.sweep_host {launch_id}"


def _begin(launch: Launch, host: Host) -> subprocess.Popen[bytes]:
    # Without the mark, by which it would be swept itself.
    environment = {name: value for name, value in launch.environment.items() if name != LAUNCH_ID}
    if launch.reach.launcher == "pdsh":
        environment |= pdsh_environment((host.port,), launch.reach.ssh)
    return call(launch.reach.argv(host, sweep_command(launch.environment[LAUNCH_ID])), environment, f"the last look at {host.name}")


def _ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Whether it did its work before the deadline; it is gone afterwards."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        end_calls((process,))
        return False
