"""How each host of a launch is reached, and the header that its supervisor gets, with the variables of its ranks: over its stdin, never on disk or in an argv.

A host without stdin finds its header, with plain variables only, in a file of the run's folder.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

from ftcore.spec.events import ATTEMPT
from ftcore.spec.resolved import Host
from launcher.backends.base import Launch
from launcher.backends.channel import Line
from launcher.environment import import_root
from launcher.forwarding import Forwarded, forwarded, host_environment, render_note
from launcher.json_lines import Message
from launcher.processes import LAUNCH_ID
from launcher.run_folder import write_files
from launcher.transport import bash, pdsh_environment

PASSED_BY_US = ("PYTHONSAFEPATH", "PYTHONPATH", LAUNCH_ID)
"""Variables that the launcher sets for all processes of a run, and that other hosts need too."""


def host_lines(launch: Launch) -> list[Line]:
    """One a host, in rank order."""
    return [_line(launch, host, rank) for rank, host in enumerate(launch.hosts)]


def headers(launch: Launch) -> list[Message]:
    """The first order for each host, in rank order."""
    return [header_for(launch, host, is_remote=launch.reach.is_remote(host)) for host in launch.hosts]


def write_header(launch: Launch, rank: int, header: Message) -> Path:
    """Writes the header of a host without stdin, less its secrets; returns where. Raises CheckpointError when the folder can't be written to."""
    path = launch.run_dir.attempt_logs(launch.attempt) / f"host_{rank}.json"
    secret = withheld(launch)
    environment = {name: value for name, value in header["environment"].items() if name not in secret}
    write_files({path: json.dumps({**header, "environment": environment}, indent=1) + "\n"})
    # What looks plain need not be anybody's to read.
    path.chmod(0o600)
    return path


def withheld(launch: Launch) -> tuple[str, ...]:
    """Secret variables that hosts without stdin do not get."""
    return forwarded_variables(launch).secret_names


def environment_notes(launch: Launch) -> list[str]:
    """Which variables reach other hosts, and which don't."""
    reach, those = launch.reach, forwarded_variables(launch)
    if not any(map(reach.is_remote, launch.hosts)):
        return []
    if all(map(reach.has_stdin, launch.hosts)) or not those.secret_names:
        return [render_note(those)]
    names = ", ".join(those.secret_names)
    fix = "log in on each host (hf auth login, wandb login, ~/.netrc), or use --launcher ssh, which hands them over a pipe"
    return [render_note(replace(those, secret_names=())), f"not sent to other hosts, since --launcher {reach.launcher} has no private way: {names}; {fix}"]


def forwarded_variables(launch: Launch) -> Forwarded:
    """What other hosts get of the launching shell's environment and of --env-file."""
    return forwarded(launch.environment, launch.variables, launch.resolved.spec.cluster.forward_env)


def _line(launch: Launch, host: Host, rank: int) -> Line:
    reach, script = launch.reach, str(launch.run_dir.node_script(rank))
    takes_orders, is_remote = reach.has_stdin(host), reach.is_remote(host)
    # What reaches a host needs this shell's variables, and none of those that are for the ranks.
    own = {**os.environ, LAUNCH_ID: launch.environment[LAUNCH_ID]} if is_remote else launch.environment
    environment = {**own, ATTEMPT: str(launch.attempt)}
    if is_remote:
        command = f"exec bash {shlex.quote(script)} --control {'both' if takes_orders else 'out'}"
        if not takes_orders:
            header = write_header(launch, rank, header_for(launch, host, is_remote=True))
            command = f"export {_told_by_argv(launch)}; {command} --header {shlex.quote(str(header))}"
            environment |= pdsh_environment((host.port,), reach.ssh)
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
        call=None if takes_orders else partial(reach.argv, host),
        # The folder stays locked as long as ranks of this machine may write to it.
        keep_open=() if is_remote else (launch.lock_handle,),
    )


def _told_by_argv(launch: Launch) -> str:
    """What a supervisor without orders has to know; no variable of the user's, since everybody may read an argv."""
    port = launch.master_port or 0
    told = {"MASTER_ADDR": launch.master_addr, "MASTER_PORT": port, ATTEMPT: launch.attempt, LAUNCH_ID: launch.environment[LAUNCH_ID]}
    return " ".join(f"{name}={shlex.quote(str(value))}" for name, value in told.items())


def header_for(launch: Launch, host: Host, *, is_remote: bool) -> Message:
    """The first order for a host; one that is this machine inherits its variables, unless others (`is_remote`) start its ranks."""
    cluster = launch.resolved.spec.cluster
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
