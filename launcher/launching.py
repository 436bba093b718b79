"""From a resolved spec to a run: its folder is made, filled and locked, then a backend runs it."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.approach import Approach, approach_hosts
from launcher.backends.base import Launch
from launcher.backends.hosts import run_launch
from launcher.backends.steps import Steps
from launcher.children import open_log, stop_signals
from launcher.environment import import_root, launch_environment
from launcher.hostfile import render_hostfile
from launcher.node_script import ScriptContext, render_node_script
from launcher.progress import Progress
from launcher.resuming import resolve_again
from launcher.run_change import change_run, settled_record, tell_change
from launcher.run_folder import locked, next_attempt, require_unused, shown, write_files
from launcher.spec_source import Options
from launcher.unchanged import load_unchanged, record_path, record_text, require_ds_config


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """The files that a new run begins with."""

    spec_text: str
    ds_config: str
    resolved: ResolvedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a run is launched, apart from what it computes."""

    dry_run: bool
    """Write the folder and the plan, start no rank."""
    exports: bool
    """Write RUN/model at the end."""
    variables: Mapping[str, str]
    """For the run's processes, from --env-file."""
    launcher: str = ""
    """How the hosts are reached, in place of what the spec says; empty: as the spec says."""


def start_new(run_dir: RunDir, new: NewRun, manner: Manner, approach: Approach) -> None:
    """Fills the folder, launches on hosts that were looked at, and shows the summary. Raises CheckpointError when another launch took the folder first."""
    with locked(run_dir) as lock_handle:
        require_unused(run_dir)
        fixed = {run_dir.ds_config: new.ds_config, run_dir.resolved: new.resolved.to_json()}
        files = {
            run_dir.spec: new.spec_text,
            record_path(run_dir): record_text(fixed),
            run_dir.hostfile: render_hostfile(new.resolved.hosts),
            **node_scripts(run_dir, new.resolved, approach),
            # resolved.json, which makes the folder a run's, comes last.
            **fixed,
        }
        write_files(files)
        _launch(run_dir, new.resolved, manner, approach, lock_handle)


def start_again(run_dir: RunDir, options: Options, manner: Manner) -> None:
    """Launches the run of an existing folder once more, with what `options` change for it (see `launcher.resuming.resolve_again`).

    Raises CheckpointError when its files were edited since the start; nothing is written before all is checked.
    """
    with locked(run_dir) as lock_handle:
        before = load_unchanged(run_dir)
        # Checking a spec takes time that a plain resume needs not pay.
        resolved = before if options == Options() else resolve_again(before, options, next_attempt(run_dir))
        approach = approach_hosts(resolved, run_dir.path, launcher=manner.launcher, starts=not manner.dry_run)
        tell_warnings(approach)
        require_ds_config(run_dir, before)
        if resolved != before:
            change_run(run_dir, before, resolved)
        write_files({run_dir.hostfile: render_hostfile(resolved.hosts), **node_scripts(run_dir, resolved, approach), **settled_record(run_dir)})
        remove_other_scripts(run_dir, len(resolved.hosts))
        _launch(run_dir, resolved, manner, approach, lock_handle, told=tell_change(run_dir, resolved))


def tell_warnings(approach: Approach) -> None:
    """A line on stderr for each."""
    for warning in approach.warnings:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"warning: {warning}\n")


def remove_other_scripts(run_dir: RunDir, nodes: int) -> None:
    """Removes the scripts of nodes that the run no longer has. One that can't be removed is harmless: nothing starts it."""
    mine = {run_dir.node_script(rank) for rank in range(nodes)}
    for path in set(run_dir.path.glob("node_*.sh")) - mine:
        with contextlib.suppress(OSError):
            path.unlink()


def node_scripts(run_dir: RunDir, resolved: ResolvedSpec, approach: Approach, module: str = "ftcore.run") -> dict[Path, str]:
    """Path and text of each host's script; each rank runs `module` with the folder as its argument."""
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
    return {run_dir.node_script(rank): render_node_script(context, resolved.hosts, rank) for rank in range(len(resolved.hosts))}


def describe(folder: RunDir, resolved: ResolvedSpec, kind: str = "run folder") -> str:
    """What is about to run, in a few lines; `kind` is what the folder is called."""
    hosts = ", ".join(f"{host.name}: {host.slots}" for host in resolved.hosts)
    return f"{kind}: {shown(folder.path)}\nworld size: {resolved.world_size} ({hosts}), ZeRO stage {resolved.spec.zero.stage}"


def export_run(run_dir: RunDir, argv: tuple[str, ...]) -> None:
    """Runs an export of the run as a process of its own. Raises its FtError, or RunStoppedError after a signal."""
    progress = Progress(sys.stdout)
    logs = run_dir.attempt_logs(max(1, next_attempt(run_dir) - 1))
    try:
        open_log(logs / "export.log").close()
    except CheckpointError:
        # A run on a disk that can't be written to can still be exported to another one.
        logs = Path(tempfile.mkdtemp(prefix="ftlaunch-export-"))
        progress.line(f"the run's folder can't be written to; the export's log is in {logs}")
    with stop_signals() as stop:
        Steps(logs, launch_environment(), progress, stop, advice=lambda: "export again").run("the export", "export.log", argv)
    progress.flush()


def _launch(run_dir: RunDir, resolved: ResolvedSpec, manner: Manner, approach: Approach, lock_handle: int, *, told: str = "") -> None:
    progress = Progress(sys.stdout)
    progress.line(describe(run_dir, resolved) + told)
    python, run = sys.executable, str(run_dir.path)
    launch = Launch(
        run_dir=run_dir,
        resolved=resolved,
        attempt=next_attempt(run_dir),
        environment=launch_environment(manner.variables),
        lock_handle=lock_handle,
        prepare=(python, "-m", "ftcore.prepare", run),
        export=(python, "-m", "ftcore.export", run, "--to", str(run_dir.model)) if manner.exports else None,
        trains=not manner.dry_run,
        variables=manner.variables,
        reach=approach.reach,
        master_addr=approach.master_addr,
        master_port=approach.master_port,
    )
    text = run_launch(launch, progress)
    progress.line(text if launch.trains else _dry_run_text(run_dir))


def _dry_run_text(run_dir: RunDir) -> str:
    plan = run_dir.plan_txt.read_text(encoding="utf-8") if run_dir.plan_txt.is_file() else ""
    return f"{plan}dry run: no rank was started; `ftlaunch --resume {shown(run_dir.path)}` starts the run as it stands"
