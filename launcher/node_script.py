"""The text of RUN/node_NN.sh: what one host runs. A pure function of what is known before the start; it holds no secrets."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftcore.spec.resolved import Host

DEFAULT_MASTER_PORT = 29500
"""torch's and DeepSpeed's default; a launch by `ftlaunch` probes a free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptContext:
    """What all node scripts of a run share."""

    run_dir: Path
    """Absolute."""
    launch_dir: Path
    """The folder that ftlaunch was called in, absolute."""
    python: str
    """The interpreter that runs ftlaunch, absolute."""
    import_root: str
    """Added to PYTHONPATH; empty when ftlaunch is installed as a package."""
    master_addr: str
    """Where rank 0 listens, unless MASTER_ADDR says otherwise."""
    rank_command: tuple[str, ...]
    """argv of a rank."""
    interface: str = ""
    """cluster.interface, for hosts whose line in the hostfile names none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """cluster.environment; a host's own variables win."""
    import_once: bool = False
    """Whether a host may fork its ranks from one process that has imported the command's module (see `launcher.node.Node`)."""


def render_node_script(context: ScriptContext, hosts: Sequence[Host], node_rank: int) -> str:
    """A bash script that starts the ranks of `hosts[node_rank]` and ends with their exit status."""
    host = hosts[node_rank]
    run_dir = str(context.run_dir)
    arguments = [
        *("--run-dir", run_dir, "--host", host.name, "--node-rank", str(node_rank), "--nodes", str(len(hosts))),
        *("--local-ranks", str(host.slots), "--first-rank", str(sum(earlier.slots for earlier in hosts[:node_rank]))),
        *("--world-size", str(sum(each.slots for each in hosts))),
        *(("--devices", ",".join(map(str, host.slot_ids))) if host.slot_ids else ()),
        *(("--interface", interface) if (interface := host.interface or context.interface) else ()),
        *(("--import-once",) if context.import_once else ()),
    ]
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in {**context.environment, **host.environment}.items())
    pythonpath = f'export PYTHONPATH={shlex.quote(context.import_root)}"${{PYTHONPATH:+:$PYTHONPATH}}"\n' if context.import_root else ""
    return (
        "#!/usr/bin/env bash\n"
        f"# Ranks of node {node_rank} of {len(hosts)} ({host.name}). Written by ftlaunch; it can also be started by hand.\n"
        "set -euo pipefail\n"
        f"cd {shlex.quote(str(context.launch_dir))}\n"
        f'export MASTER_ADDR="${{MASTER_ADDR:-{context.master_addr}}}"\n'
        f'export MASTER_PORT="${{MASTER_PORT:-{DEFAULT_MASTER_PORT}}}"\n'
        f"{variables}{pythonpath}"
        # Modules in the folder that ftlaunch was called in must not stand in for the real ones.
        "export PYTHONSAFEPATH=1\n"
        f"exec {shlex.quote(context.python)} -m launcher.node \\\n"
        f'    {shlex.join(arguments)} "$@" \\\n'
        f"    -- {shlex.join(context.rank_command)}\n"
    )
