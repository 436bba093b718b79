"""A whole simulation: what `ftlaunch scale SPEC --simulate` prints."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.deals import Case
from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import BatchSection
from launcher.combinations.verdict import verdict
from launcher.memory.accelerators import Accelerator
from launcher.memory.cost import run_data
from launcher.memory.network import network_of
from launcher.memory.roofline import REACH
from launcher.memory.shape import ModelShape
from launcher.simulation.anchor import Anchor, read_anchors, require_like
from launcher.simulation.asking import prepared_files, real_deals
from launcher.simulation.dealt import attention_share
from launcher.simulation.fabric import parse_network
from launcher.simulation.point import SimulatedPoint, Simulation
from launcher.simulation.points import point_of, set_against
from launcher.simulation.setting import GPUS_PER_NODE, Setting
from launcher.simulation.sized import sized
from launcher.simulation.uncertainty import in_words
from launcher.topology import is_local

MOST_RANKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked."""

    resolved: ResolvedSpec
    origin: str
    """Which spec, as the launcher prints it."""
    shape: ModelShape
    accelerator: Accelerator
    ranks: tuple[int, ...]
    stages: tuple[int, ...] = ()
    """ZeRO stages; empty: the spec's."""
    mode: str = "strong"
    """strong or weak."""
    network: str = ""
    """--network; empty: what spec.hardware says, else what such accelerators come with."""
    gpus_per_node: int | None = None
    """--gpus-per-node; None: what a hostfile says, else 8; ranks on CPUs all on one host."""
    measured: Path | None = None
    """--measured: scale.json or its folder, pilot.json or its folder, or a run folder."""


def simulate_all(question: Question) -> Simulation:
    """Every point that is asked for, by stage and ranks; speedups are against the fewest ranks of each stage.

    Raises SpecError for a wrong network, number of ranks, stage or measurement, CheckpointError for a measured file that can't be read.
    """
    _check(question)
    setting = _setting(question)
    _require_stages(setting, _numbers(question.stages))
    setting, deal = _with_deals(setting, _numbers(question.ranks))
    points: list[SimulatedPoint] = []
    for stage in _numbers(question.stages) or (question.resolved.spec.zero.stage,):
        found = [point_of(setting, each, stage) for each in _numbers(question.ranks)]
        points += [set_against(point, found[0]) for point in found]
    return _simulation(question, setting, deal, tuple(points))


def _numbers(given: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(given)))


def _setting(question: Question) -> Setting:
    resolved, accelerator = question.resolved, question.accelerator
    anchors = read_anchors(question.measured) if question.measured is not None else ()
    if anchors:
        require_like(anchors, resolved, on_cpu=accelerator.is_host, accelerator=accelerator.name)
    most = max(question.ranks)
    return Setting(
        resolved=resolved,
        shape=question.shape,
        accelerator=accelerator,
        data=run_data(resolved),
        fabric=parse_network(question.network) if question.network else None,
        gpus_per_node=_gpus_per_node(question, max([most, *(each.ranks for each in anchors)])),
        mode=question.mode,
        base_ranks=min(question.ranks),
        cores_per_rank=_cores_per_rank(anchors, most) if accelerator.is_host else None,
        anchors=anchors,
    )


def _cores_per_rank(anchors: tuple[Anchor, ...], most: int) -> float:
    """What a measurement gave each rank, else so many that the largest point fills the cores, as `ftlaunch scale` measures."""
    threads = next((each.threads for each in anchors if each.threads), None)
    return float(threads or max(1, len(os.sched_getaffinity(0)) // most))


def _with_deals(setting: Setting, ranks: tuple[int, ...]) -> tuple[Setting, str]:
    """The setting with the real deal of prepared data, and what was dealt, in words."""
    lengths, arrows = setting.data.train, prepared_files(setting.resolved)
    if not arrows:
        return setting, f"made-up updates; lengths {lengths.origin}"
    wanted = sorted({*ranks, *(each.ranks for each in setting.anchors)})
    batches = [sized(setting, each).spec.batch for each in wanted]
    cases = tuple(
        Case(ranks=each, global_batch_size=batch.global_batch_size, tokens_per_update=batch.tokens_per_update)
        for each, batch in zip(wanted, batches, strict=True)
    )
    dealt = real_deals(setting.resolved, arrows, attention_share(setting.shape, lengths.supervised_share), cases)
    updates = min(each.updates for each in dealt.values())
    return dataclasses.replace(setting, dealt=dealt), f"the prepared samples, the first {updates:,} update{'s' if updates != 1 else ''} of the run"


def _simulation(question: Question, setting: Setting, deal: str, points: tuple[SimulatedPoint, ...]) -> Simulation:
    resolved, on_cpu = question.resolved, question.accelerator.is_host
    network = network_of(sized(setting, max(question.ranks)), setting.accelerator)
    is_tied = bool(setting.anchors)
    return Simulation(
        origin=question.origin,
        model=resolved.spec.model.model_name_or_path,
        method=resolved.spec.method.type,
        mode=question.mode,
        accelerator=question.accelerator.name,
        network=setting.fabric.words if setting.fabric else f"{network.node_bandwidth / 1e9:g} GB/s a host",
        gpus_per_node=setting.gpus_per_node,
        anchor=_anchor_words(setting) if is_tied else "nothing measured: the data sheet, and what published training reaches of it",
        deal=deal,
        band=in_words(is_tied=is_tied, on_cpu=on_cpu),
        currency=resolved.spec.hardware.currency,
        points=points,
        notes=(*_notes(setting, network.notes), *_all_the_data(setting, points)),
    )


def _anchor_words(setting: Setting) -> str:
    return f"{'; '.join(each.words for each in setting.anchors[:4])}{' ...' if len(setting.anchors) > 4 else ''} ({setting.anchors[0].origin})"


def _notes(setting: Setting, of_network: tuple[str, ...]) -> tuple[str, ...]:
    accelerator = setting.accelerator
    notes = list(of_network)
    if accelerator.is_host and not setting.anchors:
        notes.append(f"speed of the CPU: {accelerator.source}")
    elif accelerator.family not in REACH and not setting.anchors:
        notes.append(f"no published training speeds were at hand for {accelerator.name}: it is taken to reach what Hopper reaches of its data sheet")
    if setting.data.train.is_assumed:
        notes.append(f"lengths of the data: {setting.data.train.origin}")
    return tuple(notes)


def _all_the_data(setting: Setting, points: tuple[SimulatedPoint, ...]) -> tuple[str, ...]:
    """Which points' updates are smaller than asked for, since they hold every sample of the data already."""
    less = list(dict.fromkeys(f"{point.ranks:,}" for point in points if _is_short(sized(setting, point.ranks).spec.batch, point)))
    if not less:
        return ()
    ranks = f"{', '.join(less)} rank{'s' if less != ['1'] else ''}"
    return (f"on {ranks} an update is smaller than asked for: it holds all {setting.data.train.samples:,} samples of the data",)


def _is_short(batch: BatchSection, point: SimulatedPoint) -> bool:
    if batch.global_batch_size is not None:
        return point.samples < batch.global_batch_size
    return point.tokens < 0.99 * (batch.tokens_per_update or 0)


def _check(question: Question) -> None:
    wrong = [each for each in question.ranks if not 0 < each <= MOST_RANKS]
    if wrong or not question.ranks:
        raise SpecError(f"{wrong[0] if wrong else 'nothing'} is no number of ranks", where="--simulate", fix=f"give numbers from 1 to {MOST_RANKS:,}: 8,64,512")
    if question.gpus_per_node is not None and not 0 < question.gpus_per_node <= MOST_RANKS:
        raise SpecError(f"{question.gpus_per_node} is no number of accelerators", where="--gpus-per-node", fix="give a number from 1")


def _require_stages(setting: Setting, stages: tuple[int, ...]) -> None:
    """Raises SpecError with all that the table of combinations has against the stages that were asked for."""
    refused = [(stage, problem) for stage in stages for problem in verdict(sized(setting, setting.base_ranks, stage).spec).problems]
    if refused:
        raise SpecError([dataclasses.replace(problem, where=f"--stages {stage}") for stage, problem in refused])


def _gpus_per_node(question: Question, most: int) -> int:
    if question.gpus_per_node is not None:
        return question.gpus_per_node
    hosts = question.resolved.hosts
    if not all(is_local(host) for host in hosts):
        return max(host.slots for host in hosts)
    return most if question.accelerator.is_host else GPUS_PER_NODE
