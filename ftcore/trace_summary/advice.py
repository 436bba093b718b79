"""What to do about the largest parts of an update's time, knob by knob, the cheapest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftcore.spec.sections import Spec

WORTH_A_WORD = 0.08
"""Share of the wall time from which on a part is spoken of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the advice depends on."""

    shares: Mapping[str, float]
    """By part, of the wall time, as a mean over the ranks."""
    spec: Spec | None
    """None: the traces lie in no run's folder."""
    ranks: int
    """Of the run, profiled or not; 0: not known."""
    waiting_share: float | None
    """Of the time in collectives; None: not known."""
    overlap_share: float | None
    cause: str
    """Of the imbalance: data, device or empty."""
    on_device: bool
    synchronisations_an_update: float


def advice(facts: Facts) -> list[dict[str, Any]]:
    """For each part that is worth a word, the largest first: what it means, and the knobs in the order to try them."""
    writers = {"compute": _compute, "communication": _communication, "copy": _copy, "data": _data, "host_bound": _host_bound, "gap": _gap}
    ordered = sorted(facts.shares, key=lambda part: -facts.shares[part])
    found = []
    for part in ordered:
        if facts.shares[part] >= WORTH_A_WORD or (part == ordered[0] and facts.shares[part] > 0):
            meaning, knobs = writers[part](facts)
            found.append({"part": part, "share": facts.shares[part], "meaning": meaning, "knobs": [each for each in knobs if each]})
    return found


def _compute(facts: Facts) -> tuple[str, list[str]]:
    spec = facts.spec
    meaning = "the arithmetic itself: the part that one wants to be the largest. What is left is to do less of it, or to spread it over more ranks."
    knobs = [
        "the table of operators: one that is no matrix product or attention and takes much is where to look first",
        "train.gradient_checkpointing: recomputing takes 20-40 % of the time; every:2, or none where memory allows it"
        if spec is None or spec.train.gradient_checkpointing != "none"
        else "",
        "train.precision: bf16 on accelerators that have it" if facts.on_device and (spec is None or spec.train.precision == "fp32") else "",
        "batch.layout: packed, since a padded batch computes its padding, too" if spec is None or spec.batch.layout == "padded" else "",
        "OMP_NUM_THREADS (--env-file): cores over ranks, no more, or the ranks take each other's time" if not facts.on_device else "",
        "more ranks: `ftlaunch scale` measures what they would bring",
    ]
    return meaning, knobs


def _communication(facts: Facts) -> tuple[str, list[str]]:
    spec, waits = facts.spec, facts.waiting_share or 0.0
    hidden = "" if facts.overlap_share is None else f"; {facts.overlap_share:.0%} of all communication is hidden behind computing"
    meaning = f"collectives that nothing was computed beside{hidden}."
    if facts.waiting_share is not None:
        meaning += f" {facts.waiting_share:.0%} of the time in them is waiting for the last rank to come, the rest is sending."
    stage = None if spec is None else spec.zero.stage
    each_step = spec is None or (spec.zero.stage in (2, 3) and not spec.zero.coalesce_grad_reduction)
    knobs = [
        _wait_knob(facts) if waits >= 0.5 else "",
        "batch.micro_batch_tokens: larger micro-steps, so that fewer collectives carry as much" if stage in (None, 3) or each_step else "",
        "zero.coalesce_grad_reduction: true reduces gradients once an update instead of once a micro-step, for the memory of whole gradients"
        if each_step
        else "",
        "zero.stage: 2 where memory allows it: 3 gathers the weights for each forward and backward, too" if stage in (None, 3) else "",
        "zero.stage: 1 where memory allows it: it reduces gradients once an update" if stage == 2 and each_step else "",
        "zero.overlap_comm: true communicates while gradients are computed" if facts.on_device and (spec is None or not spec.zero.overlap_comm) else "",
        "batch.global_batch_size: more samples an update for one exchange; it changes what is trained",
        "method.type: lora has few gradients to exchange" if spec is None or spec.method.type == "full" else "",
    ]
    return meaning, knobs


def _wait_knob(facts: Facts) -> str:
    if facts.cause == "device":
        return "the rank that computes longest has no more tokens than the others: look at its host (`ftlaunch doctor`), or leave it out (--exclude)"
    if facts.cause == "data":
        return "the rank that computes longest was dealt more tokens: larger updates, or a smaller batch.micro_batch_tokens, can be dealt more evenly"
    return "most of it is waiting: look for the rank that comes late (the table of ranks; `ftlaunch report` shows whom the others waited for)"


def _copy(facts: Facts) -> tuple[str, list[str]]:
    spec = facts.spec
    offloads = spec is None or spec.zero.offload_optimizer != "none" or spec.zero.offload_param != "none"
    meaning = "copies between the host and the device, or within it, that nothing was computed beside."
    return meaning, [
        "zero.offload_param and zero.offload_optimizer: each offloaded state travels every update; bring back the one that fits" if offloads else "",
        "zero.stage: 3 before offloading, where there are ranks enough" if offloads else "",
        "batch.micro_batch_tokens: larger, so that weights travel for more tokens" if offloads else "the table of kernels: which copy it is",
    ]


def _data(facts: Facts) -> tuple[str, list[str]]:
    spec = facts.spec
    streams = spec is None or spec.data.streaming
    meaning = "the training waits for the next update's samples."
    return meaning, [
        "`ftlaunch data`: what a row's reading and its template take",
        "data.streaming: false prepares the rows once, before the training" if streams else "",
        "the cache's disk (FTLAUNCH_CACHE): local to the host, not on a share that many read",
        "the host's cores: what prepares samples needs one of its own beside the ranks",
    ]


def _host_bound(facts: Facts) -> tuple[str, list[str]]:
    spec = facts.spec
    if facts.on_device:
        waits = f"the host waited for the device {facts.synchronisations_an_update:.0f} times an update"
        meaning = f"the device stands idle until the host launches its next kernel; {waits}."
    else:
        meaning = (
            "the training thread is in forward, backward or the optimizer, and no operator runs: Python, DeepSpeed's own work between operators, "
            "extensions that the profiler can't see into (the optimizers of DeepSpeed for a CPU), and time that other processes took the core."
        )
    small = spec is None or spec.batch.micro_batch_tokens < 16384
    return meaning, [
        "batch.micro_batch_tokens: more tokens for each launch; the number of operators stays" if small else "",
        "batch.layout: packed, a row of many samples instead of many short rows" if spec is None or spec.batch.layout == "padded" else "",
        "train.gradient_checkpointing: none launches a third less" if spec is None or spec.train.gradient_checkpointing != "none" else "",
        "zero.stage: a stage lower has fewer hooks and partitions" if spec is None or spec.zero.stage > 1 else "",
        "method.target_modules: fewer adapters, fewer small products" if spec is not None and spec.method.type != "full" else "",
        "" if facts.on_device else "fewer processes on these cores: what else runs here takes time that shows up as this",
        "the profiler itself slows the host more than the device: see how long an update takes without it",
    ]


def _gap(facts: Facts) -> tuple[str, list[str]]:
    spec = facts.spec
    if facts.on_device:
        meaning = "the device stands idle though its next kernel has been launched: it waits for another stream, or starts up."
    else:
        meaning = "time outside of the phases: writing the log, saving and evaluating between the profiled updates, taking samples over."
    return meaning, [
        "logging.logging_steps: each logged update asks the device for its loss" if spec is None or spec.logging.logging_steps == 1 else "",
        "logging.layer_grad_norm_steps: norms by layer only now and then" if spec is not None and spec.logging.layer_grad_norm_steps else "",
        "checkpoint.save_async: true writes beside the training" if spec is None or not spec.checkpoint.save_async else "",
        "checkpoint.save_steps and evaluation.eval_steps: not in the profiled updates (profiling.start_update), or less often",
    ]
