"""The files of a run's folder that depend on its hosts: hostfile, node scripts, and the plan of memory and time."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.approach import Approach
from launcher.environment import import_root
from launcher.hostfile import render_hostfile
from launcher.memory.run_files import memory_files
from launcher.node_script import ScriptContext, render_node_script
from launcher.run_change import settled_record
from launcher.run_folder import write_files

RANKS = "ftcore.run"
"""The module that the ranks of a run execute."""


def host_files(run_dir: RunDir, resolved: ResolvedSpec, approach: Approach, module: str = RANKS) -> dict[Path, str]:
    """Path and text of the hostfile, of each host's script and, for a run, of its plan of memory; each rank runs `module` with the folder as its argument."""
    context = ScriptContext(
        run_dir=run_dir.path,
        launch_dir=Path.cwd(),
        python=sys.executable,
        import_root=import_root(),
        master_addr=approach.master_addr,
        rank_command=(sys.executable, "-m", module, str(run_dir.path)),
        import_once=True,
        interface=resolved.spec.cluster.interface,
        environment=resolved.spec.cluster.environment,
    )
    planned = memory_files(run_dir, resolved, approach.facts) if module == RANKS else {}
    scripts = {run_dir.node_script(rank): render_node_script(context, resolved.hosts, rank) for rank in range(len(resolved.hosts))}
    return {run_dir.hostfile: render_hostfile(resolved.hosts), **scripts, **planned}


def write_host_files(run_dir: RunDir, resolved: ResolvedSpec, approach: Approach) -> None:
    """Writes them for a run that is there. Raises CheckpointError when the folder can't be written to."""
    write_files({**host_files(run_dir, resolved, approach), **settled_record(run_dir)})
    remove_other_scripts(run_dir, len(resolved.hosts))


def remove_other_scripts(run_dir: RunDir, nodes: int) -> None:
    """Removes the scripts of nodes that the run no longer has. One that can't be removed is harmless: nothing starts it."""
    mine = {run_dir.node_script(rank) for rank in range(nodes)}
    for path in set(run_dir.path.glob("node_*.sh")) - mine:
        with contextlib.suppress(OSError):
            path.unlink()
