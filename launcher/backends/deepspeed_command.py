"""What DeepSpeed's own launcher is told: its command, its files in the attempt's folder, its environment. Nothing of the user's goes through a shell there."""

from __future__ import annotations

import base64
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from ftcore.spec.errors import CheckpointError, ClusterError, Problem
from ftcore.spec.resolved import Host
from launcher.backends.base import Launch
from launcher.backends.lines import header_for, write_header
from launcher.environment import import_root
from launcher.json_lines import Message
from launcher.node_script import DEFAULT_MASTER_PORT
from launcher.processes import LAUNCH_ID
from launcher.run_folder import write_files
from launcher.transport import bash, destination, pdsh_environment

ENV_FILE = "DS_ENV_FILE"
"""DeepSpeed's name for the file of variables that it exports on every host."""
_EXPORTED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
"""Beginnings of names that DeepSpeed writes, with their values, into a command line."""
_BARE = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
"""What comes through a shell and pdsh as it is."""
_UNTIL_TERM = "trap 'kill -KILL 0' TERM; \"$@\" & wait $!"
"""pdsh neither dies with DeepSpeed's runner nor minds that nobody reads it: the group ends with this shell, which gets SIGTERM when the launcher dies."""


def deepspeed_argv(launch: Launch) -> tuple[str, ...]:
    """argv of DeepSpeed's launcher, in a shell that takes it along when it is ended."""
    folder = str(launch.run_dir.attempt_logs(launch.attempt).absolute())
    encoded = base64.urlsafe_b64encode(folder.encode()).decode()
    runner = (sys.executable, "-u", "-m", "deepspeed.launcher.runner", "--hostfile", str(hosts_path(launch)), *_include(launch.hosts))
    place = ("--master_addr", launch.master_addr, "--master_port", str(launch.master_port or DEFAULT_MASTER_PORT))
    manner = ("--launcher", "pdsh", "--no_ssh_check", "--force_multi", "--no_local_rank", "--no_python")
    return (bash(), "-c", _UNTIL_TERM, "deepspeed", *runner, *place, *manner, sys.executable, "-m", "launcher.rank_start", encoded)


def deepspeed_environment(launch: Launch) -> dict[str, str]:
    """For DeepSpeed's launcher alone; its ranks find theirs in files. Raises ClusterError like `pdsh_environment`."""
    environment = {name: value for name, value in launch.environment.items() if not name.startswith(_EXPORTED)}
    root = import_root()
    ours = {"PYTHONSAFEPATH": "1", **({"PYTHONPATH": root} if root else {}), ENV_FILE: str(env_path(launch))}
    return {**environment, **ours, **pdsh_environment([host.port for host in launch.hosts], launch.reach.ssh)}


def write_deepspeed_files(launch: Launch) -> None:
    """Writes hostfile, variables and each host's header. Raises ClusterError for what DeepSpeed can't start, CheckpointError when they can't be written."""
    if problems := list(_problems(launch.hosts)):
        raise ClusterError(problems)
    mark = f"{LAUNCH_ID}={launch.environment[LAUNCH_ID]}\n"
    write_files({hosts_path(launch): render_plain_hosts(launch.hosts), env_path(launch): mark})
    for rank, host in enumerate(launch.hosts):
        write_header(launch, rank, {**header_for(launch, host, is_remote=True), "node": _node(launch, rank)})


def hosts_path(launch: Launch) -> Path:
    """The hostfile that DeepSpeed reads."""
    return launch.run_dir.attempt_logs(launch.attempt).absolute() / "deepspeed_hosts"


def env_path(launch: Launch) -> Path:
    """The file of variables that DeepSpeed exports."""
    return launch.run_dir.attempt_logs(launch.attempt).absolute() / "deepspeed_env"


def render_plain_hosts(hosts: tuple[Host, ...]) -> str:
    """A hostfile of names and slots alone; a host of which some slots are chosen has all up to the last of these."""
    return "".join(f"{destination(host)} slots={max(host.slot_ids, default=host.slots - 1) + 1}\n" for host in hosts)


def _include(hosts: tuple[Host, ...]) -> tuple[str, ...]:
    """DeepSpeed selects nothing of a host that is included without its slots."""
    if not any(host.slot_ids for host in hosts):
        return ()
    return ("--include", "@".join(f"{host.name}:{','.join(map(str, host.slot_ids or range(host.slots)))}" for host in hosts))


def _node(launch: Launch, rank: int) -> Message:
    hosts, run = launch.hosts, str(launch.run_dir.path.absolute())
    return {
        "run_dir": run,
        "host": hosts[rank].name,
        "node_rank": rank,
        "nodes": len(hosts),
        "local_ranks": hosts[rank].slots,
        "first_rank": sum(host.slots for host in hosts[:rank]),
        "world_size": sum(host.slots for host in hosts),
        "interface": hosts[rank].interface or launch.resolved.spec.cluster.interface,
        "launch_dir": os.getcwd(),
        "command": _rank_command(launch.run_dir.node_script(rank)),
    }


def _rank_command(script: Path) -> list[str]:
    """argv of a rank, as a host's script has it. Raises CheckpointError when that can't be read."""
    try:
        words = shlex.split(script.read_bytes().decode(), comments=True)
        return words[words.index("--") + 1 :]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"can't read {script}: {error}", where="run folder", fix="start the run again with `ftlaunch --resume`") from error


def _problems(hosts: tuple[Host, ...]) -> Iterator[Problem]:
    other = "or use --launcher ssh"
    for what, path in (("the Python", sys.executable), ("the folder of this code,", import_root())):
        if path and not _BARE.fullmatch(path):
            fix = f"move it to a path without such characters, {other}"
            yield Problem(what=f"DeepSpeed gives {what} {path!r} to a shell as it is", where="cluster.launcher", fix=fix)
    for host in hosts:
        if ":" in host.name:
            what = f"DeepSpeed's launcher can't reach {host.name}: pdsh takes what stands before a colon for the way to a host"
            yield Problem(what=what, where="cluster.hosts", fix=f"give the host a name in ~/.ssh/config, {other}")
    if any(host.slot_ids for host in hosts) and any(host.user for host in hosts):
        what = "DeepSpeed can't choose slots where a host is written as USER@HOST"
        yield Problem(what=what, where="cluster.hosts", fix=f"put the user into ~/.ssh/config, {other}")
