"""A scaling test under way: which points are still good, the short run of each other one, and the result after each."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ftcore.spec.errors import CheckpointError, DataError, DoesNotFitError, FtError, SpecError, TrainingError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.scale_result import BAD_STATES, DOES_NOT_FIT, FAILED, QUEUED, REFUSED, RUNNING, ScaleDir, ScalePoint, ScaleResult, read_scale
from launcher.ds_config import render_ds_config
from launcher.failure import RunFailedError, RunStoppedError, first_line
from launcher.launching import NewRun, reach_with_room
from launcher.memory.cost_text import rough_time
from launcher.progress import Progress
from launcher.run_folder import make_named_folder, shown, write_files
from launcher.scaling.assemble import assemble, blank_point, measured_point
from launcher.scaling.identity import IDENTITY_NAME, differences, identity_of, identity_text, key_of, library_versions, own_code, read_identity
from launcher.scaling.machines import busy_cores
from launcher.scaling.measure import Windows, read_measurement
from launcher.scaling.points import Wanted
from launcher.scaling.request import ScaleRequest
from launcher.scaling.result import write_result
from launcher.short_runs import short_manner, start_short
from launcher.topology import is_local


@dataclass(slots=True)
class Sweep:
    """The points of a test and what is known of them; every change is kept on disk."""

    folder: ScaleDir
    request: ScaleRequest
    wanted: tuple[Wanted, ...]
    variables: Mapping[str, str]
    """Of --env-file."""
    points: dict[str, ScalePoint] = field(default_factory=dict)
    """By name, in the order in which they are shown."""
    identities: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: Progress = field(default_factory=lambda: Progress(sys.stdout))

    def __post_init__(self) -> None:
        code, libraries = own_code(), library_versions()
        self.identities = {each.name: identity_of(each, self.request, code, libraries) for each in self.wanted}

    @property
    def windows(self) -> Windows:
        """How updates are counted."""
        return Windows(warm_up=self.request.warm_up, count=self.request.windows, updates=self.request.window_updates)

    @property
    def result(self) -> ScaleResult:
        """Of the points as they are."""
        return assemble(self.request, self.wanted, self.points.values())

    def keep(self, point: ScalePoint) -> None:
        """Takes a point's new state, and writes scale.json."""
        self.points[point.name] = point
        write_result(self.folder, self.result)

    def key(self, wanted: Wanted) -> str:
        """Of what the point is measured with now."""
        return key_of(self.identities[wanted.name])

    def open_points(self) -> list[Wanted]:
        """The points that are still to be measured."""
        return [each for each in self.wanted if not self.points[each.name].is_measured and self.points[each.name].state != REFUSED]

    def collect(self, wanted: Wanted) -> ScalePoint:
        """The numbers of a run that has ended well. Raises CheckpointError when it holds too few updates."""
        run_dir = RunDir(self.folder.point(wanted.name))
        measured = read_measurement(run_dir, wanted.ranks, self.windows)
        before = self.points[wanted.name]
        # A job's is from when it was queued.
        self.keep(measured_point(before, measured, before.key or self.key(wanted)))
        return self.points[wanted.name]


def recall(sweep: Sweep, *, anew: bool = True) -> None:
    """Takes over what an earlier call measured, as far as nothing has changed that it depends on, and says of the rest why it is measured again.

    Without `anew` nothing is measured again: points are as they were.
    """
    earlier = {point.name: point for point in read_scale(sweep.folder.path).points} if sweep.folder.result.is_file() else {}
    for wanted in sweep.wanted:
        refusal = sweep.request.refused.get(wanted.name)
        before = earlier.get(wanted.name)
        if refusal is not None:
            sweep.points[wanted.name] = blank_point(wanted, REFUSED, refusal, exit_status=SpecError.exit_status)
        elif before is None:
            sweep.points[wanted.name] = blank_point(wanted)
        elif anew and before.state not in (QUEUED, RUNNING):
            sweep.points[wanted.name] = _recalled(sweep, wanted, before)
        else:
            sweep.points[wanted.name] = before
            if anew and (told := _changed(sweep, wanted, before)):
                sweep.progress.line(f"{_where(wanted)}: job {before.job} goes on as it was queued{told}")
    gone = [point.name for name, point in earlier.items() if name not in sweep.points and point.is_measured]
    if gone:
        sweep.progress.line(f"left out, since this test does not ask for them: {', '.join(gone)}")
    write_result(sweep.folder, sweep.result)


def _where(wanted: Wanted) -> str:
    return f"{wanted.ranks} rank{'s' if wanted.ranks > 1 else ''} in stage {wanted.stage}"


def _changed(sweep: Sweep, wanted: Wanted, before: ScalePoint) -> str:
    """What has changed since that the point depends on, in words that go on a sentence; empty: nothing."""
    if not before.key or before.key == sweep.key(wanted):
        return ""
    old = read_identity(sweep.folder.point(wanted.name))
    why = differences(old, sweep.identities[wanted.name]) if old is not None else ""
    return f": changed since: {why}" if why else ", since what it was measured with is not known any more"


def _recalled(sweep: Sweep, wanted: Wanted, before: ScalePoint) -> ScalePoint:
    where = _where(wanted)
    if told := _changed(sweep, wanted, before):
        if before.is_measured:
            sweep.progress.line(f"{where}: measured again{told}")
        return blank_point(wanted)
    if before.is_measured:
        sweep.progress.line(f"{where}: measured already, {before.update_seconds:.4g} s an update")
        return before
    if before.state in BAD_STATES:
        sweep.progress.line(f"{where}: tried again, for it {'did not fit' if before.state == DOES_NOT_FIT else 'failed'} before")
    return blank_point(wanted)


def measure_here(sweep: Sweep) -> None:
    """Runs every open point, one after the other, on the hosts of the spec.

    A point that fails or does not fit is marked, and the others go on. Raises RunStoppedError after a signal, and at once what would end every
    point alike: data that can't be used, a folder that can't be written to.
    """
    todo, began = sweep.open_points(), time.monotonic()
    for done, wanted in enumerate(todo):
        left = rough_time((time.monotonic() - began) / done * (len(todo) - done)) if done else "not known yet"
        place = [each.name for each in sweep.wanted].index(wanted.name) + 1
        head = f"point {place} of {len(sweep.wanted)}: {wanted.ranks} rank{'s' if wanted.ranks > 1 else ''} in ZeRO stage {wanted.stage}"
        sweep.progress.line(f"\n{head}; {len(todo) - done} to measure, time left: {left}")
        if wanted.share.cores is not None and all(map(is_local, wanted.cut.hosts)):
            sweep.points[wanted.name] = replace(sweep.points[wanted.name], busy_cores=busy_cores())
        _measure(sweep, wanted)


def _measure(sweep: Sweep, wanted: Wanted) -> None:
    try:
        _run(sweep, wanted)
        point = sweep.collect(wanted)
        sweep.progress.line(f"measured: {point.update_seconds:.4g} s an update, {point.supervised_tokens_per_s:,.0f} supervised tokens/s")
    except RunStoppedError:
        raise
    except DoesNotFitError as error:
        _mark(sweep, wanted, DOES_NOT_FIT, error)
    except RunFailedError as error:
        is_memory = error.exit_status in (TrainingError.exit_status, 137) and "out of memory" in str(error)
        _mark(sweep, wanted, DOES_NOT_FIT if is_memory else FAILED, error)
    except (DataError, SpecError):
        raise
    except CheckpointError as error:
        if error.problems[0].where != "scale":
            raise
        _mark(sweep, wanted, FAILED, error)
    except FtError as error:
        _mark(sweep, wanted, FAILED, error)


def _mark(sweep: Sweep, wanted: Wanted, state: str, error: FtError) -> None:
    """Keeps why a point could not be measured, and says it."""
    status = DoesNotFitError.exit_status if state == DOES_NOT_FIT else error.exit_status
    point = replace(sweep.points[wanted.name], state=state, reason=brief(error), exit_status=status, key=sweep.key(wanted))
    sweep.keep(point)
    sweep.progress.line(f"not measured: {error}")


def brief(error: FtError) -> str:
    """An error in a line: of a report, who failed and what it said."""
    if not isinstance(error, RunFailedError):
        return error.problems[0].what
    lines = [line.strip() for line in error.brief.splitlines() if line.strip() and not line.strip().startswith(("its log:", "last lines"))]
    return ": ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else first_line(error)


def _run(sweep: Sweep, wanted: Wanted) -> None:
    """The short run of a point, in a new folder."""
    request = sweep.request
    path = sweep.folder.point(wanted.name)
    if path.exists():
        # Of a point that was stopped, failed or is measured again.
        shutil.rmtree(path)
    advice = f"ftlaunch scale {shown(sweep.folder.path)}   (measured points are kept)"
    manner = short_manner(sweep.variables, env_file=request.env_file, force=request.force, advice=advice)
    approach = reach_with_room(wanted.cut, manner, sweep.folder.path)
    start_short(make_named_folder(path), new_run(request, wanted), manner, approach)
    write_files({path / IDENTITY_NAME: identity_text(sweep.identities[wanted.name])})


def new_run(request: ScaleRequest, wanted: Wanted) -> NewRun:
    """The files that a point's run begins with."""
    return NewRun(spec_text=request.spec_text, ds_config=render_ds_config(wanted.cut), resolved=wanted.cut, zero_config=request.zero_config)
