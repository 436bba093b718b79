"""How each host of a launch is reached, and the header that its supervisor gets: the variables of its ranks travel in it, never on disk or in an argv."""

from __future__ import annotations

import shlex

from ftcore.spec.events import ATTEMPT
from ftcore.spec.resolved import Host
from launcher.backends.base import Launch
from launcher.backends.channel import Line
from launcher.environment import import_root
from launcher.forwarding import Forwarded, forwarded, host_environment
from launcher.node_channel import Message
from launcher.processes import LAUNCH_ID
from launcher.transport import bash, pdsh_environment

PASSED_BY_US = ("PYTHONSAFEPATH", "PYTHONPATH", LAUNCH_ID)
"""Variables that the launcher sets for all processes of a run, and that other hosts need too."""


def host_lines(launch: Launch) -> list[Line]:
    """One a host, in rank order."""
    return [_line(launch, host, rank) for rank, host in enumerate(launch.hosts)]


def headers(launch: Launch) -> list[Message]:
    """The first order for each host, in rank order."""
    return [_header(launch, host) for host in launch.hosts]


def forwarded_variables(launch: Launch) -> Forwarded:
    """What other hosts get of the launching shell's environment and of --env-file."""
    return forwarded(launch.environment, launch.variables, launch.resolved.spec.cluster.forward_env)


def _line(launch: Launch, host: Host, rank: int) -> Line:
    reach, script = launch.reach, str(launch.run_dir.node_script(rank))
    takes_orders, is_remote = reach.has_stdin(host), reach.is_remote(host)
    environment = {**launch.environment, ATTEMPT: str(launch.attempt)}
    if is_remote:
        command = f"exec bash {shlex.quote(script)} --control {'both' if takes_orders else 'out'}"
        if not takes_orders:
            command = f"export {_told_by_argv(launch)}; {command}"
            environment |= pdsh_environment(host)
        argv = reach.argv(host, command)
    else:
        argv = (bash(), script, "--control", "both")
    return Line(
        host=host,
        node_rank=rank,
        argv=argv,
        environment=environment,
        log=launch.run_dir.attempt_logs(launch.attempt) / f"node_{rank}.log",
        is_remote=is_remote,
        takes_orders=takes_orders,
        # The folder stays locked as long as ranks of this machine may write to it.
        keep_open=() if is_remote else (launch.lock_handle,),
    )


def _told_by_argv(launch: Launch) -> str:
    """What a supervisor without orders has to know; no variable of the user's, since everybody may read an argv."""
    port = launch.master_port or 0
    told = {"MASTER_ADDR": launch.master_addr, "MASTER_PORT": port, ATTEMPT: launch.attempt, LAUNCH_ID: launch.environment[LAUNCH_ID]}
    return " ".join(f"{name}={shlex.quote(str(value))}" for name, value in told.items())


def _header(launch: Launch, host: Host) -> Message:
    cluster = launch.resolved.spec.cluster
    is_remote = launch.reach.is_remote(host)
    inherited = forwarded_variables(launch).values if is_remote else {}
    variables = host_environment(inherited, cluster.environment, launch.variables, host)
    # Processes of this machine inherit them, and the script adds to them.
    passed = {name: launch.environment[name] for name in PASSED_BY_US if is_remote and name in launch.environment}
    given, root = variables.get("PYTHONPATH", ""), import_root()
    if root and given and given != launch.environment.get("PYTHONPATH"):
        # The user's is kept, behind the folder of this code.
        passed["PYTHONPATH"] = f"{root}:{given}"
    return {
        "environment": {**variables, **passed},
        "attempt": launch.attempt,
        "master_addr": launch.master_addr,
        "master_port": launch.master_port,
        "heartbeat_timeout": cluster.heartbeat_timeout if is_remote else 0,
    }
