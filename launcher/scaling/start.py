"""From a command line, or a folder, to a scaling test that can run: its request, its machines, its points."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ftcore.spec.errors import CheckpointError, SpecError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.scale_result import ScaleDir
from launcher.approach import approach_hosts
from launcher.launching import tell
from launcher.run_folder import make_named_folder, make_timed_folder, short_model_name, shown
from launcher.scaling.machines import Machines, check_ranks, default_ranks, find_machines, threads_of
from launcher.scaling.points import plan_points, point_name
from launcher.scaling.request import ScaleRequest, default_tolerance, read_request
from launcher.scaling.sweep import Sweep
from launcher.spec_source import Options
from launcher.submission.request import Run
from launcher.verify_loss_request import refused_splits

SCALINGS = "scalings"
"""Folder for tests that nobody named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says of the test itself; empty and None: as the defaults have it."""

    mode: str
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    warm_up: int
    windows: int
    window_updates: int
    tolerance: float | None
    threads: int | None
    env_file: str
    force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The run whose scaling is measured."""

    options: Options
    resolved: ResolvedSpec
    name: str
    text: str
    zero_config: str
    job: Run | None = None
    """As it would be submitted; None: points are measured from here."""
    on_cpu: bool = False


def make_request(asked: Asked, subject: Subject, machines: Machines | None) -> ScaleRequest:
    """The request of a new test; `machines` are None where jobs will find theirs.

    Raises SpecError for ranks that the machines can't be asked for, for updates that can't grow with them, and where the rules refuse every point.
    """
    resolved, job = subject.resolved, subject.job
    if machines is not None:
        check_ranks(machines, asked.ranks)
    slots = job.scheduler.slots_per_node or 1 if job is not None else 0
    ranks = asked.ranks or (default_ranks(machines) if machines is not None else tuple(dict.fromkeys((1, slots))))
    stages = asked.stages or (resolved.spec.zero.stage,)
    refused = {point_name(*split): why for split, why in refused_splits(subject.options, resolved.spec.zero.stage, ranks).items() if split[1] in stages}
    if len(refused) == len(ranks) * len(stages):
        raise SpecError(f"no point is allowed: {'; '.join(dict.fromkeys(refused.values()))}", where="--stages", fix="give other --stages or --ranks")
    request = ScaleRequest(
        mode=asked.mode,
        ranks=ranks,
        stages=stages,
        warm_up=asked.warm_up,
        windows=asked.windows,
        window_updates=asked.window_updates,
        tolerance=asked.tolerance if asked.tolerance is not None else default_tolerance(resolved.spec.train.precision, resolved.spec.optimizer.type),
        resolved=resolved,
        spec_name=subject.name,
        spec_text=subject.text,
        zero_config=subject.zero_config,
        refused=refused,
        threads=asked.threads,
        env_file=asked.env_file,
        force=asked.force,
        scheduler=job.scheduler if job is not None else None,
        on_cpu=subject.on_cpu,
    )
    # What can't be planned is told before a folder is made.
    plan_points(request, machines or _unknown_machines(request), asked.threads)
    return request


def look_around(resolved: ResolvedSpec, folder: Path, variables: Mapping[str, str]) -> Machines:
    """The machines of the spec's hosts, each looked at. Raises ClusterError when ranks can't be started on them."""
    approach = approach_hosts(resolved, folder, variables=variables)
    tell(approach.warnings)
    return find_machines(resolved, approach.facts)


def open_sweep(folder: ScaleDir, request: ScaleRequest, machines: Machines | None, variables: Mapping[str, str]) -> Sweep:
    """The test with its points planned. Raises SpecError for ranks that are no whole hosts of a job."""
    told = {**os.environ, **variables, **request.resolved.spec.cluster.environment}
    placed = machines or _unknown_machines(request)
    threads = threads_of(placed, max(request.ranks), request.threads, told) if machines is not None else _job_threads(request, told)
    return Sweep(folder=folder, request=request, wanted=plan_points(request, placed, threads), variables=variables)


def _unknown_machines(request: ScaleRequest) -> Machines:
    """What jobs will find."""
    return Machines(hosts=request.resolved.hosts, cores={}, on_accelerators=not request.on_cpu, is_here=False)


def _job_threads(request: ScaleRequest, told: Mapping[str, str]) -> int | None:
    """A job's CPU ranks have a core each."""
    if request.threads is not None or not request.on_cpu:
        return request.threads
    given = told.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else 1


def new_folder(request: ScaleRequest, output: Path | None) -> ScaleDir:
    """The folder that was named, also one of an earlier call, else a new one by time and model.

    Raises CheckpointError when it can't be made, holds something else, or a test of the other mode or of jobs where this one has none:
    points that are measured here would take the folders of jobs that still run.
    """
    if output is None:
        model = short_model_name(request.resolved.spec.model.model_name_or_path)
        return ScaleDir(make_timed_folder(Path.cwd() / SCALINGS, model, time.localtime()).path)
    folder = ScaleDir(output.absolute())
    if not folder.request.is_file():
        return ScaleDir(make_named_folder(output).path)
    before = read_request(folder)
    if before.mode != request.mode:
        fix = f"choose a new folder for {request.mode} scaling"
        raise CheckpointError(f"{shown(folder.path)} holds a test of {before.mode} scaling", where="--output", fix=fix)
    if (before.scheduler is None) != (request.scheduler is None):
        what = "is measured from here, not by jobs" if before.scheduler is None else "is measured by jobs, not from here"
        fix = "choose a new folder" + ("" if before.scheduler is None else ", or give --submit as well")
        raise CheckpointError(f"{shown(folder.path)} holds a test that {what}", where="--output", fix=fix)
    return folder


def lock_of(folder: ScaleDir) -> RunDir:
    """What `locked` takes."""
    return RunDir(folder.path)


def with_earlier_points(request: ScaleRequest, folder: ScaleDir) -> ScaleRequest:
    """The request with the ranks and stages of an earlier call into the same folder as well, where those make one grid with its own."""
    if not folder.request.is_file():
        return request
    before = read_request(folder)
    same = before.scheduler == request.scheduler and before.resolved.hosts == request.resolved.hosts
    if not same or (before.warm_up, before.windows, before.window_updates) != (request.warm_up, request.windows, request.window_updates):
        return request
    if before.resolved.spec != request.resolved.spec:
        return request
    both = replace(request, refused={**before.refused, **request.refused})
    if before.stages == request.stages:
        return replace(both, ranks=tuple(sorted({*before.ranks, *request.ranks})))
    if before.ranks == request.ranks:
        return replace(both, stages=tuple(sorted({*before.stages, *request.stages})))
    return request
