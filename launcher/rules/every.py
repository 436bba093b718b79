"""Rules between keys of a spec: what each key's own schema can't say."""

from __future__ import annotations

import dataclasses

from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.schedule_lengths import STABLE, schedule_problems
from ftcore.spec.sections import ScheduleSection, Spec
from launcher.combinations.rules import COMBINATION_RULES
from launcher.ds_json.rules import ZERO_KEY_RULES
from launcher.rules.cluster import CLUSTER_RULES
from launcher.rules.data import DATA_RULES
from launcher.rules.evaluation import EVALUATION_RULES
from launcher.rules.logging import LOGGING_RULES
from launcher.rules.method import METHOD_RULES
from launcher.rules.precision import PRECISION_RULES
from launcher.rules.profiling import PROFILING_RULES
from launcher.rules.rule import Findings, Rule
from launcher.spec_source import Draft

OPTIMIZERS_OF = {
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_epsilon"), ("adamw", "adamw_8bit", "muon")),
    "momentum": ("sgd",),
    "muon_momentum": ("muon",),
}
"""Key of the section optimizer -> the types that read it."""
SCHEDULES_OF = {
    **dict.fromkeys(("decay_ratio", "decay_steps", "decay_type"), (STABLE,)),
    "min_lr_ratio": ("linear", "cosine", STABLE),
}
"""Key of the section schedule -> the types that read it; the others read all but constant."""


def _update_size(spec: Spec, draft: Draft) -> Findings:
    if spec.batch.global_batch_size is not None and spec.batch.tokens_per_update is not None:
        what = "global_batch_size and tokens_per_update are both given; each alone decides the size of an update"
        yield Problem(what=what, where="batch.global_batch_size", fix="keep one of them")


def _run_length(spec: Spec, draft: Draft) -> Findings:
    if spec.train.num_train_epochs is not None and spec.train.max_steps is not None:
        what = "num_train_epochs and max_steps are both given; each alone decides the length of the run"
        yield Problem(what=what, where="train.max_steps", fix="keep one of them")


def _sample_fits(spec: Spec, draft: Draft) -> Findings:
    length, batch = spec.data.max_length, spec.batch
    limits = {"micro_batch_tokens": batch.micro_batch_tokens, "tokens_per_update": batch.tokens_per_update}
    for name, limit in limits.items():
        if limit is not None and length > limit:
            key = "data.max_length" if draft.given("data.max_length") else f"batch.{name}"
            yield Problem(
                what=f"a sample may have {length} tokens (data.max_length), but batch.{name} is {limit}",
                where=key,
                fix=f"raise batch.{name} to at least {length}, or lower data.max_length to {limit} or less",
            )


def _nvme(spec: Spec, draft: Draft) -> Findings:
    zero = spec.zero
    if zero.offload_param == "nvme" and not zero.nvme_path:
        what = "offload_param: nvme needs a folder to write to"
        yield Problem(what=what, where="zero.nvme_path", fix="add zero.nvme_path: a folder on local NVMe")
    if zero.nvme_path and "nvme" not in (zero.offload_param, zero.offload_optimizer):
        yield Problem(what="nvme_path is given, but nothing is offloaded to nvme", where="zero.nvme_path", fix="remove it, or use offload_param: nvme")


def _optimizer_keys(spec: Spec, draft: Draft) -> Findings:
    optimizer = spec.optimizer
    for name, readers in OPTIMIZERS_OF.items():
        if optimizer.type not in readers and draft.given(f"optimizer.{name}"):
            what = f"{name} has no effect with optimizer.type {optimizer.type}"
            yield Problem(what=what, where=f"optimizer.{name}", fix=f"remove it, or use optimizer.type: {' or '.join(readers)}")


def _course(spec: Spec, draft: Draft) -> Findings:
    schedule, steps = spec.schedule, spec.train.max_steps
    if schedule.warmup_steps is not None and draft.given("schedule.warmup_ratio"):
        yield Problem(what="warmup_ratio and warmup_steps are both given", where="schedule.warmup_steps", fix="keep one of them")
    wanted = bool(schedule.warmup_steps or schedule.warmup_ratio)
    if schedule.lr_scheduler_type == "constant" and wanted:
        what = "lr_scheduler_type constant has no warm-up"
        yield Problem(what=what, where="schedule.lr_scheduler_type", fix="use constant_with_warmup, or remove the warm-up")
    if schedule.decay_steps is not None and draft.given("schedule.decay_ratio"):
        yield Problem(what="decay_ratio and decay_steps are both given", where="schedule.decay_steps", fix="keep one of them")
    for name, readers in SCHEDULES_OF.items():
        if draft.given(f"schedule.{name}") and schedule.lr_scheduler_type not in readers:
            what = f"{name} has no effect with lr_scheduler_type {schedule.lr_scheduler_type}"
            yield Problem(what=what, where=f"schedule.{name}", fix=f"remove it, or use lr_scheduler_type: {' or '.join(readers)}")
    if steps is not None:
        yield from schedule_problems(schedule, steps)
    elif _is_in_shares(schedule) and schedule.warmup_ratio + schedule.decay_ratio > 1:
        what = f"a warm-up of {schedule.warmup_ratio:g} of the run and a decay of {schedule.decay_ratio:g} of it are more than the run"
        yield Problem(what=what, where="schedule.decay_ratio", fix=f"give {1 - schedule.warmup_ratio:g} or less")


def _is_in_shares(schedule: ScheduleSection) -> bool:
    """Whether all parts of the schedule are shares of a run, so that they can be added up without its length."""
    return schedule.lr_scheduler_type == STABLE and schedule.decay_steps is None and schedule.warmup_steps is None


def _one_cluster(spec: Spec, draft: Draft) -> Findings:
    if spec.cluster.hosts and spec.cluster.slots is not None:
        what = "slots is for this machine alone, but a hostfile is given"
        yield Problem(what=what, where="cluster.slots", fix="write the slots into the hostfile, or remove cluster.hosts")


def _accelerator(spec: Spec, draft: Draft) -> Findings:
    if spec.hardware.accelerator:
        from launcher.memory.accelerators import find_accelerator

        try:
            find_accelerator(spec.hardware.accelerator)
        except SpecError as error:
            yield from error.problems


RULES = (
    Rule(("batch.global_batch_size", "batch.tokens_per_update"), _update_size),
    Rule(("train.num_train_epochs", "train.max_steps"), _run_length),
    Rule(("data.max_length", "batch.micro_batch_tokens", "batch.tokens_per_update"), _sample_fits),
    Rule(("zero.offload_optimizer", "zero.offload_param", "zero.nvme_path"), _nvme),
    Rule(("optimizer.type",), _optimizer_keys),
    Rule((*(f"schedule.{field.name}" for field in dataclasses.fields(ScheduleSection)), "train.max_steps"), _course),
    Rule(("cluster.hosts", "cluster.slots"), _one_cluster),
    Rule(("hardware.accelerator",), _accelerator),
    *DATA_RULES,
    *COMBINATION_RULES,
    *ZERO_KEY_RULES,
    *METHOD_RULES,
    *PRECISION_RULES,
    *EVALUATION_RULES,
    *LOGGING_RULES,
    *PROFILING_RULES,
    *CLUSTER_RULES,
)
