"""From options to a resolved spec: nothing is open after it, and every value says who set it."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ftcore.spec.document import dotted, leaves
from ftcore.spec.errors import ClusterError, Problem, SpecError
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import BatchSection, DataSection, DataSet, MethodSection, Spec, TrainingSet, TrainSection, ZeroSection
from launcher.ds_config import render_ds_config
from launcher.ds_json.alone import ds_json_problem, run_file_problem
from launcher.ds_json.importing import Imported, import_ds_json, in_json_words
from launcher.ds_json.rules import check_groups, inexact_warnings
from launcher.filters import select
from launcher.hostfile import read_hostfile
from launcher.references import absolute, absolute_data, absolute_model, absolute_template
from launcher.rules.precision import DTYPES
from launcher.spec_source import Draft, Options, read_draft
from launcher.spec_warnings import spec_warnings
from launcher.topology import local_slots
from launcher.validate import build_spec, find_problems

__all__ = ["Options", "Resolution", "check_spec", "read_and_resolve"]

SomeSet = TypeVar("SomeSet", DataSet, TrainingSet)
GLOBAL_BATCH_SIZE = 16
"""Samples in an update when the spec gives neither size."""
NUM_TRAIN_EPOCHS = 1.0
"""Passes over the training set when the spec gives neither length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A spec that is ready to run, with what else goes into the run folder."""

    resolved: ResolvedSpec
    spec_text: str
    """The spec file as given."""
    origin: str
    """Which spec was taken, as the launcher prints it."""
    ds_config: str
    """The text of ds_config.json."""
    warnings: tuple[str, ...] = ()
    """What a user should know of a spec that is right: of zero.config what is ignored or read otherwise, with file and line."""
    zero_config: str = ""
    """The text of zero_config.json; empty where the spec names no DeepSpeed JSON."""


@dataclass(frozen=True, slots=True)
class _Checked:
    imported: Imported
    hosts: tuple[Host, ...]
    spec_problems: list[Problem]
    host_problems: list[Problem]


def read_and_resolve(options: Options, *, with_hosts: bool = True) -> Resolution:
    """Reads, checks and completes the spec; `with_hosts` False for what starts no ranks: the hostfile is not read, and one rank here stands in for them.

    Raises SpecError with every problem of the spec, its options and its hostfile; ClusterError when only the hostfile is wrong.
    """
    checked = _check(options, with_hosts=with_hosts)
    if checked.spec_problems:
        raise SpecError([*checked.spec_problems, *checked.host_problems])
    if checked.host_problems:
        raise ClusterError(checked.host_problems)
    draft = checked.imported.draft
    resolved = _resolve(draft, checked.hosts if with_hosts else (Host(name="localhost", slots=1),))
    return Resolution(
        resolved=resolved,
        spec_text=draft.text,
        origin=draft.origin,
        ds_config=render_ds_config(resolved),
        warnings=(*checked.imported.warnings, *inexact_warnings(resolved), *spec_warnings(resolved.spec)),
        zero_config=checked.imported.text,
    )


def check_spec(options: Options) -> list[Problem]:
    """Every problem that `read_and_resolve` would raise, the spec's before the hostfile's; empty for a spec that can be launched."""
    checked = _check(options)
    return [*checked.spec_problems, *checked.host_problems]


def _check(options: Options, *, with_hosts: bool = True) -> _Checked:
    draft = read_draft(options)
    mistaken = ds_json_problem(draft) or run_file_problem(draft)
    if mistaken is not None:
        return _Checked(Imported(draft), (), [mistaken], [])
    if not draft.readable:
        return _Checked(Imported(draft), (), list(draft.problems), [])
    hosts, filter_problems, host_problems = _hosts(draft, options) if with_hosts else ((), [], [])
    world_size = sum(host.slots for host in hosts) or None
    imported = import_ds_json(draft, world_size)
    draft = imported.draft
    problems = [*in_json_words(find_problems(draft, world_size), draft), *check_groups(draft, hosts), *filter_problems]
    return _Checked(imported, hosts, problems, host_problems)


def _hosts(draft: Draft, options: Options) -> tuple[tuple[Host, ...], list[Problem], list[Problem]]:
    """(hosts in rank order, problems of --include and --exclude, problems of the hostfile); no hosts where they can't be known."""
    cluster = draft.data.get("cluster")
    section: dict[str, Any] = cluster if isinstance(cluster, dict) else {}
    named, slots = section.get("hosts", ""), section.get("slots")
    if not isinstance(named, str) or "\0" in named:
        return (), [], []
    try:
        if named:
            hosts = read_hostfile(Path(absolute(named)))
        else:
            count = slots if isinstance(slots, int) and slots > 0 else local_slots()
            hosts = (Host(name="localhost", slots=count),)
        return select(hosts, options.include, options.exclude), [], []
    except ClusterError as error:
        return (), [], list(error.problems)
    except SpecError as error:
        return (), list(error.problems), []


def _resolve(draft: Draft, hosts: tuple[Host, ...]) -> ResolvedSpec:
    given = build_spec(draft.data)
    slots = given.cluster.slots if given.cluster.hosts else sum(host.slots for host in hosts)
    spec = replace(
        given,
        model=replace(given.model, model_name_or_path=absolute_model(given.model.model_name_or_path), dtype=given.model.dtype or DTYPES[given.train.precision]),
        data=absolute_files(given.data),
        method=replace(given.method, adapter_name_or_path=absolute(given.method.adapter_name_or_path) if given.method.adapter_name_or_path else ""),
        batch=_update_size(given.batch),
        train=_run_length(given.train),
        zero=_zero(given),
        cluster=replace(given.cluster, hosts=absolute(given.cluster.hosts) if given.cluster.hosts else "", slots=slots),
    )
    derived = {"model.dtype", "zero.coalesce_grad_reduction"} | (set() if given.cluster.hosts else {"cluster.slots"})
    return ResolvedSpec(spec=spec, hosts=hosts, sources=_sources(spec, draft, derived), cache_dir=cache_folder())


def cache_folder() -> str:
    """The absolute folder for prepared data and converted models."""
    return absolute(os.environ.get("FTLAUNCH_CACHE") or "~/.cache/ftlaunch")


def absolute_files(data: DataSection) -> DataSection:
    """The section with absolute names of its files and folders; hub ids stay as they are."""
    return replace(
        data,
        train=data.train and _absolute_set(data.train),
        train_sets={name: _absolute_set(each) for name, each in data.train_sets.items()},
        eval=data.eval and _absolute_set(data.eval),
        eval_sets={name: _absolute_set(each) for name, each in data.eval_sets.items()},
        chat_template=absolute_template(data.chat_template),
    )


def _absolute_set(data_set: SomeSet) -> SomeSet:
    return replace(data_set, path=absolute_data(data_set.path))


def _zero(given: Spec) -> ZeroSection:
    zero = given.zero
    coalesce = zero.coalesce_grad_reduction if zero.coalesce_grad_reduction is not None else derived_coalescing(zero, given.method)
    nvme_path, config = (absolute(path) if path else "" for path in (zero.nvme_path, zero.config))
    return replace(zero, nvme_path=nvme_path, config=config, coalesce_grad_reduction=coalesce)


def derived_coalescing(zero: ZeroSection, method: MethodSection) -> bool:
    """zero.coalesce_grad_reduction where nobody has set it."""
    # LoRA's gradients are small; in stage 2 it costs what stage 1 holds anyway; in stage 3 whole gradients may not fit.
    return zero.offload_optimizer == "none" and (zero.stage == 2 or (zero.stage == 3 and method.type != "full"))


def in_other_stage(spec: Spec, stage: int) -> ZeroSection:
    """The section with another stage; coalescing, which was given for the spec's own stage if at all, follows from the new one."""
    zero = replace(spec.zero, stage=stage)
    return spec.zero if stage == spec.zero.stage else replace(zero, coalesce_grad_reduction=derived_coalescing(zero, spec.method))


def _update_size(batch: BatchSection) -> BatchSection:
    neither = batch.global_batch_size is None and batch.tokens_per_update is None
    return replace(batch, global_batch_size=GLOBAL_BATCH_SIZE) if neither else batch


def _run_length(train: TrainSection) -> TrainSection:
    neither = train.num_train_epochs is None and train.max_steps is None
    return replace(train, num_train_epochs=NUM_TRAIN_EPOCHS) if neither else train


def _sources(spec: Spec, draft: Draft, derived: set[str]) -> dict[str, str]:
    """Key path of every value that is set -> who set it. A value inside zero.overrides or columns has a line of its own."""
    sources: dict[str, str] = {}
    for path, value in leaves(dataclasses.asdict(spec)):
        if value is None:
            continue
        key = dotted(path)
        sources[key] = str(draft.places[path]) if path in draft.places else "derived" if key in derived else "default"
    return sources
