"""Rules about the keys of the section zero that go to DeepSpeed as they are: where each has an effect, and what of the hosts it needs."""

from __future__ import annotations

from collections.abc import Sequence

from ftcore.spec.document import KeyPath
from ftcore.spec.errors import Problem
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import Spec
from launcher.ds_json.keys import stages_of_zero_keys
from launcher.rules.rule import Findings, Rule
from launcher.schema_check import Found
from launcher.spec_source import Draft
from launcher.topology import local_accelerators

GROUP: KeyPath = ("zero", "zero_hpz_partition_size")
QUANTISED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")
INEXACT = {
    "zero_quantized_weights": "weights are gathered in 8 bits, so that losses differ from those of other stages and splits",
    "zero_quantized_gradients": "gradients are reduced in 4 bits, so that losses differ from those of other stages and splits",
    "zero_quantized_nontrainable_weights": "frozen weights are held in 8 bits, so that losses differ from those of other stages",
}


def _stage(spec: Spec, draft: Draft) -> Findings:
    if draft.other_stage:
        return
    for name, stages in stages_of_zero_keys().items():
        if getattr(spec.zero, name) is not None and spec.zero.stage not in stages:
            needs = " or ".join(str(stage) for stage in stages)
            what = f"{name} has no effect at ZeRO stage {spec.zero.stage}; it is for stage {needs}"
            yield Problem(what=what, where=f"zero.{name}", fix="remove it")


def _kernels(spec: Spec, draft: Draft) -> Findings:
    # What a hostfile's machines have is not known here.
    if spec.cluster.hosts or local_accelerators():
        return
    for name in QUANTISED:
        if getattr(spec.zero, name):
            yield Problem(what=f"{name} needs DeepSpeed's CUDA kernels, and this machine has no accelerator", where=f"zero.{name}", fix="remove it")


def _frozen(spec: Spec, draft: Draft) -> Findings:
    if spec.zero.zero_quantized_nontrainable_weights and spec.method.type != "lora":
        reason = "none are frozen with method.type full" if spec.method.type == "full" else "those of qlora are quantised already"
        what = f"zero_quantized_nontrainable_weights is about frozen weights: {reason}"
        yield Problem(what=what, where="zero.zero_quantized_nontrainable_weights", fix="remove it")


def _quantised_twice(spec: Spec, draft: Draft) -> Findings:
    if spec.zero.zero_quantized_weights and spec.method.type == "qlora":
        what = "the weights of qlora are quantised already, and can't be quantised again on their way"
        yield Problem(what=what, where="zero.zero_quantized_weights", fix="remove it")


ZERO_KEY_RULES = (
    Rule(("zero.stage", *(f"zero.{name}" for name in stages_of_zero_keys())), _stage),
    Rule((*(f"zero.{name}" for name in QUANTISED), "cluster.hosts"), _kernels),
    Rule(("method.type", "zero.zero_quantized_nontrainable_weights"), _frozen),
    Rule(("method.type", "zero.zero_quantized_weights"), _quantised_twice),
)


def check_group(spec: Spec, world_size: int | None) -> list[Found]:
    """Why so many ranks can't share second copies of the weights as zero.zero_hpz_partition_size asks."""
    group = spec.zero.zero_hpz_partition_size
    if group is None or world_size is None or world_size % group == 0:
        return []
    fitting = ", ".join(str(size) for size in range(1, world_size + 1) if world_size % size == 0)
    return [Found(GROUP, Problem(what=f"{world_size} ranks don't divide into groups of {group}", fix=f"use a divisor of {world_size}: {fitting}"))]


def check_groups(draft: Draft, hosts: Sequence[Host]) -> list[Problem]:
    """Why the groups don't lie within hosts, though they divide the ranks: the copies are for reading within a host."""
    zero = draft.data.get("zero")
    group = zero.get(GROUP[1]) if isinstance(zero, dict) else None
    if type(group) is not int or group < 1 or not hosts:
        return []
    slots = sorted({host.slots for host in hosts})
    if sum(host.slots for host in hosts) % group or all(count % group == 0 for count in slots):
        return []
    fitting = ", ".join(str(size) for size in range(1, slots[0] + 1) if all(count % size == 0 for count in slots))
    what = f"a group of {group} ranks would lie on two hosts: they have {' and '.join(map(str, slots))} ranks"
    return [draft.located(Problem(what=what, fix=f"use a size that divides the ranks of every host: {fitting}"), GROUP)]


def inexact_warnings(resolved: ResolvedSpec) -> tuple[str, ...]:
    """A line for each key that makes the result depend on how the work is split."""
    zero = resolved.spec.zero
    return tuple(f"zero.{name}: {reason} ({resolved.sources.get(f'zero.{name}', 'default')})" for name, reason in INEXACT.items() if getattr(zero, name))
