"""A few updates of a spec's run in a folder of their own, as pilot, profile and scale train them: launched like any run, and what they save is deleted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.approach import Approach
from launcher.attempts import Manner
from launcher.ds_config import render_ds_config
from launcher.early_stops import early_stops
from launcher.environment import read_env_file
from launcher.launching import NewRun, reach_with_room, start_new
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
    short = wanted.short
    manner = short_manner(
        read_env_file(wanted.env_file) if wanted.env_file is not None else {},
        env_file=str(wanted.env_file.absolute()) if wanted.env_file is not None else "",
        force=wanted.force,
        advice=f"start the {wanted.verb} again: ftlaunch {wanted.verb}",
    )
    new = NewRun(spec_text=wanted.resolution.spec_text, ds_config=render_ds_config(short), resolved=short)
    with early_stops():
        parent = (wanted.output or Path.cwd() / RUNS).absolute()
        label = f"{short_model_name(short.spec.model.model_name_or_path)}-{wanted.verb}"
        found = reach_with_room(wanted.resolution.resolved, manner, parent)
        run_dir = make_named_folder(wanted.output) if wanted.output is not None else make_timed_folder(Path.cwd() / RUNS, label, time.localtime())
        start_short(run_dir, new, manner, found)
    return run_dir, found


def short_manner(variables: Mapping[str, str], *, env_file: str, force: bool, advice: str) -> Manner:
    """How a short run is launched: it keeps nothing and exports nothing."""
    return Manner(dry_run=False, exports=False, keeps=False, variables=variables, env_file=env_file, force=force, advice=advice)


def start_short(run_dir: RunDir, new: NewRun, manner: Manner, approach: Approach) -> None:
    """Runs it in its new folder, and deletes what it saved."""
    try:
        start_new(run_dir, new, manner, approach)
    finally:
        drop_saved(run_dir)


def drop_saved(run_dir: RunDir) -> None:
    """Deletes what a short run saved, which nobody has a use for."""
    shutil.rmtree(run_dir.checkpoints, ignore_errors=True)
