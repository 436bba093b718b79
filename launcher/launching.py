"""From a resolved spec to a run: its folder is made, filled and locked, then it is launched."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.approach import Approach, approach_hosts
from launcher.attempts import Manner, Owned, launch
from launcher.backends.steps import Steps
from launcher.children import open_log, stop_signals
from launcher.environment import launch_environment
from launcher.folder_files import host_files, write_host_files
from launcher.progress import Progress
from launcher.resuming import resolve_again
from launcher.run_change import change_run, tell_change
from launcher.run_folder import locked, next_attempt, require_unused, write_files
from launcher.spec_source import Options
from launcher.spec_warnings import spec_warnings
from launcher.unchanged import load_unchanged, record_path, record_text, require_ds_config


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """The files that a new run begins with."""

    spec_text: str
    ds_config: str
    resolved: ResolvedSpec
    zero_config: str = ""
    """What zero.config named; empty: nothing."""


def reach_with_room(resolved: ResolvedSpec, manner: Manner, folder: Path) -> Approach:
    """The hosts of a new run in or below `folder`, looked at, once there is room for it. Raises the FtError of what is against it."""
    approach = approach_hosts(resolved, folder, variables=manner.variables, starts=not manner.dry_run)
    tell(approach.warnings)
    require_room(resolved, manner, approach, folder=folder)
    return approach


def start_new(run_dir: RunDir, new: NewRun, manner: Manner, approach: Approach) -> None:
    """Fills the folder, launches on hosts that were looked at, and shows the summary. Raises CheckpointError when another launch took the folder first."""
    with locked(run_dir) as lock_handle:
        require_unused(run_dir)
        fixed = {run_dir.ds_config: new.ds_config, run_dir.resolved: new.resolved.to_json()}
        files = {
            run_dir.spec: new.spec_text,
            **({run_dir.zero_config: new.zero_config} if new.zero_config else {}),
            record_path(run_dir): record_text(fixed),
            **host_files(run_dir, new.resolved, approach),
            # resolved.json, which makes the folder a run's, comes last.
            **fixed,
        }
        write_files(files)
        launch(Owned(run_dir=run_dir, lock_handle=lock_handle, manner=manner), new.resolved, approach)


def start_again(run_dir: RunDir, options: Options, manner: Manner) -> None:
    """Launches the run of an existing folder once more, with what `options` change for it (see `launcher.resuming.resolve_again`).

    Raises CheckpointError when its files were edited since the start; nothing is written before all is checked.
    """
    with locked(run_dir) as lock_handle:
        before = load_unchanged(run_dir)
        # Checking a spec takes time that a plain resume needs not pay.
        resolved = before if options == Options() else resolve_again(before, options, next_attempt(run_dir), other_data=manner.data_change_allowed > 0)
        approach = approach_hosts(resolved, run_dir.path, variables=manner.variables, launcher=manner.launcher, starts=not manner.dry_run)
        tell((*spec_warnings(resolved.spec), *approach.warnings))
        require_ds_config(run_dir, before)
        require_room(resolved, manner, approach)
        if resolved != before:
            change_run(run_dir, before, resolved)
        write_host_files(run_dir, resolved, approach)
        launch(Owned(run_dir=run_dir, lock_handle=lock_handle, manner=manner), resolved, approach, told=tell_change(run_dir, resolved))


def require_room(resolved: ResolvedSpec, manner: Manner, approach: Approach, folder: Path | None = None) -> None:
    """Tells how much memory and disk are short of, if any. Raises DoesNotFitError when the run can't fit and nobody said --force; a dry run is only told."""
    from launcher.memory.launch_fit import check_launch

    tell(check_launch(resolved, folder=folder, facts=approach.facts, refuses=not (manner.force or manner.dry_run), goes_on=folder is None))


def tell(warnings: Iterable[str]) -> None:
    """A line on stderr for each."""
    for warning in warnings:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"warning: {warning}\n")


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
