"""Runs `ftlaunch verify-loss`: the data prepared once, the splits trained leg by leg, then compared and shown."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import CheckpointError, TrainingError
from ftcore.spec.events import ATTEMPT
from ftcore.spec.run_dir import RunDir
from ftcore.spec.verification import Leg, Part, VerificationDir, VerificationRequest
from launcher.approach import Approach
from launcher.backends.base import Launch
from launcher.backends.steps import Steps
from launcher.children import StopSignals, stop_signals
from launcher.ds_config import render_ds_config
from launcher.environment import launch_environment
from launcher.folder_files import host_files
from launcher.progress import Progress
from launcher.run_folder import locked, make_named_folder, make_timed_folder, require_unused, short_model_name, shown, write_files
from launcher.verify_loss_request import Check, resolve_split

VERIFICATIONS = "verifications"
"""Folder for checks that nobody named."""
AGAIN = "start the check again: ftlaunch verify-loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A check under way."""

    folder: RunDir
    check: Check
    request: VerificationRequest
    variables: Mapping[str, str]
    approach: Approach
    progress: Progress
    stop: StopSignals
    lock_handle: int

    @property
    def paths(self) -> VerificationDir:
        """What lies in the folder."""
        return VerificationDir(self.folder.path)

    def steps(self, attempt: int) -> Steps:
        """What runs the processes of one leg."""
        environment = {**launch_environment(self.variables), ATTEMPT: str(attempt)}
        return Steps(self.folder.attempt_logs(attempt), environment, self.progress, self.stop, advice=lambda: AGAIN)


def check_folder(model: str, output: Path | None) -> RunDir:
    """The folder that was named, else a new one called by time and model. Raises CheckpointError when it can't be made, or holds anything."""
    if output is not None:
        if VerificationDir(output).request.exists():
            raise CheckpointError(f"{shown(output)} already holds a check", where="--output", fix="choose an empty or a new folder")
        return make_named_folder(output)
    return make_timed_folder(Path.cwd() / VERIFICATIONS, short_model_name(model), time.localtime())


def run_check(
    folder: RunDir, check: Check, request: VerificationRequest, *, variables: Mapping[str, str], approach: Approach, json_file: Path | None = None
) -> None:
    """Trains and compares into `folder`, and shows the table; `json_file` gets a copy of the result.

    Raises TrainingError when a split differs, the FtError of what failed, or RunStoppedError after a signal.
    """
    progress = Progress(sys.stdout)
    with locked(folder) as lock_handle, stop_signals() as stop:
        require_unused(folder)
        running = _Running(
            folder=folder, check=check, request=request, variables=variables, approach=approach, progress=progress, stop=stop, lock_handle=lock_handle
        )
        _prepare(running)
        for attempt, leg in enumerate(request.legs, start=1):
            _run_leg(running, attempt, leg)
        comparison = (sys.executable, "-m", "ftcore.verify_loss", str(folder.path))
        running.steps(len(request.legs)).run("the comparison", "compare.log", comparison)
        progress.flush()
    show_result(running.paths, progress, json_file)


def _prepare(running: _Running) -> None:
    paths, request, folder = running.paths, running.request, running.folder
    reference = resolve_split(running.check.resolved, request.reference, request.updates)
    write_files({paths.request: request.to_json(), paths.preparation.resolved: reference.to_json()})
    sizes = " and ".join(str(leg.world_size) for leg in request.legs)
    running.progress.line(f"check: {shown(folder.path)}\n{len(request.splits)} runs of the same {request.updates} updates, on {sizes} ranks")
    running.steps(1).run("the preparation", "prepare.log", (sys.executable, "-m", "ftcore.prepare", str(paths.preparation.path)))


def _run_leg(running: _Running, attempt: int, leg: Leg) -> None:
    """Trains the parts of one leg on one set of ranks."""
    resolved = running.check.resolved
    for part in leg.parts:
        _write_run(running, part)
    split = running.request.split(leg.parts[0].split)
    mine, approach = resolve_split(resolved, split, running.request.updates, goes_on=_goes_on(running, leg.parts[0])), running.approach
    write_files(host_files(running.folder, mine, approach, module="ftcore.verify_ranks"))
    launch = Launch(
        run_dir=running.folder,
        resolved=mine,
        attempt=attempt,
        environment=launch_environment(running.variables),
        variables=running.variables,
        reach=approach.reach,
        master_addr=approach.master_addr,
        master_port=approach.master_port,
        lock_handle=running.lock_handle,
        prepare=(),
        export=None,
        advice=AGAIN,
    )
    running.steps(attempt).run_ranks(launch)


def _write_run(running: _Running, part: Part) -> None:
    """The run folder of a part, as a launch or a resume would leave it."""
    split, run_dir = running.request.split(part.split), running.paths.run(part.split)
    mine = resolve_split(running.check.resolved, split, running.request.updates, goes_on=_goes_on(running, part))
    write_files({run_dir.ds_config: render_ds_config(mine), run_dir.resolved: mine.to_json()})


def _goes_on(running: _Running, part: Part) -> bool:
    """Whether the part is the second half of a split."""
    split = running.request.split(part.split)
    return bool(split.then_world_size) and part.until == running.request.updates


def show_result(paths: VerificationDir, progress: Progress, json_file: Path | None) -> None:
    """Shows the result and keeps the copy. Raises TrainingError when a split differs, CheckpointError when the copy can't be written."""
    try:
        text, result = paths.table.read_text(encoding="utf-8"), paths.result.read_text(encoding="utf-8")
        if json_file is not None:
            json_file.write_text(result, encoding="utf-8")
    except OSError as error:
        fix = f"name a file that can be written to; the result is in {shown(paths.path)}"
        raise CheckpointError(f"can't keep the result: {error.strerror}", where=str(error.filename), fix=fix) from error
    progress.line(text.rstrip())
    progress.line(f"result: {shown(paths.result)}")
    failed = json.loads(result)["failed"]
    if failed:
        what = f"training depends on how the work is split: {', '.join(failed)} differ from the reference"
        raise TrainingError(what, where="verify-loss", fix=f"don't train in that split, and report it with {shown(paths.result)}")
