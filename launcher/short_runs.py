"""A few updates of a spec's run in a folder of their own, as pilot and profile train them: launched like any run, and what they save is deleted."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.approach import Approach, approach_hosts
from launcher.attempts import Manner
from launcher.ds_config import render_ds_config
from launcher.early_stops import early_stops
from launcher.environment import read_env_file
from launcher.launching import NewRun, require_room, start_new, tell_warnings
from launcher.resolve import Resolution
from launcher.run_folder import RUNS, make_named_folder, make_timed_folder, short_model_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """What is trained, and how it was asked for."""

    verb: str
    """The last part of the folder's name."""
    resolution: Resolution
    """The whole run."""
    short: ResolvedSpec
    """Its beginning."""
    output: Path | None
    """The folder; None: runs/TIME-MODEL-VERB."""
    env_file: Path | None
    force: bool


def train_short(wanted: ShortRun) -> tuple[RunDir, Approach]:
    """Trains it once there is room for the whole run; its folder, and the hosts as they were found. Raises the FtError of what went wrong."""
    resolved = wanted.resolution.resolved
    variables = read_env_file(wanted.env_file) if wanted.env_file is not None else {}
    manner = Manner(
        dry_run=False,
        exports=False,
        keeps=False,
        variables=variables,
        env_file=str(wanted.env_file.absolute()) if wanted.env_file is not None else "",
        force=wanted.force,
        advice=f"start the {wanted.verb} again: ftlaunch {wanted.verb}",
    )
    with early_stops():
        parent = (wanted.output or Path.cwd() / RUNS).absolute()
        approach = approach_hosts(resolved, parent, variables=variables)
        tell_warnings(approach)
        require_room(resolved, manner, approach, folder=parent)
        label = f"{short_model_name(resolved.spec.model.model_name_or_path)}-{wanted.verb}"
        run_dir = make_named_folder(wanted.output) if wanted.output is not None else make_timed_folder(Path.cwd() / RUNS, label, time.localtime())
        new = NewRun(spec_text=wanted.resolution.spec_text, ds_config=render_ds_config(wanted.short), resolved=wanted.short)
        try:
            start_new(run_dir, new, manner, approach)
        finally:
            shutil.rmtree(run_dir.checkpoints, ignore_errors=True)
    return run_dir, approach
