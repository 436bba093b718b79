"""From a spec and what the command line says to every plan, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import DoesNotFitError, Problem, SpecError
from ftcore.spec.resolved import ResolvedSpec
from launcher.costs.candidates import Candidate, Unfit, candidates, usual_ranks
from launcher.costs.measured import MeasuredSpeed, read_measured
from launcher.costs.overheads import WAIT_S, GivenTimes, Overheads, overhead_notes, overheads_of, sizes_of
from launcher.costs.planner import SPOT, Plan, Terms, ordered, plans_of
from launcher.costs.prices import Given, prices_of
from launcher.memory.accelerators import NAMES, Accelerator
from launcher.memory.capacity import Capacity, capacity_of
from launcher.memory.cost import run_data
from launcher.memory.network import network_of
from launcher.memory.shape import ModelShape
from launcher.simulation.anchor import require_like
from launcher.simulation.fabric import parse_network
from launcher.simulation.setting import GPUS_PER_NODE, Setting
from launcher.simulation.sized import sized
from launcher.topology import is_local


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked; None and empty: not said."""

    resolved: ResolvedSpec
    origin: str
    """Which spec, as the launcher prints it."""
    shape: ModelShape
    given: Given
    times: GivenTimes
    ranks: tuple[int, ...] = ()
    gpu: str = ""
    network: str = ""
    gpus_per_node: int | None = None
    measured: tuple[Path, ...] = ()
    deadline_s: float | None = None
    has_notice: bool = False
    elastic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """All plans, and what they rest on."""

    origin: str
    model: str
    accelerator: str
    gpus_per_node: int
    terms: Terms
    overheads: dict[int, Overheads]
    """Hosts -> seconds beside training, of the first plan on so many."""
    plans: tuple[Plan, ...]
    """Best first."""
    unfit: tuple[Unfit, ...]
    notes: tuple[str, ...]
    """What was assumed."""

    @property
    def best(self) -> Plan:
        """The cheapest that meets the deadline; where none does, the fastest."""
        return self.plans[0]


def make_planning(question: Question) -> Planning:
    """Raises SpecError for an accelerator, network or price that can't be counted with, CheckpointError for --measured, DoesNotFitError when nothing fits."""
    resolved = question.resolved
    prices = prices_of(resolved.spec.hardware, question.given)
    capacity, accelerator = _capacity(question)
    speeds = read_measured(question.measured)
    if speeds:
        require_like(tuple(speed.anchor for speed in speeds), resolved, on_cpu=accelerator.is_host, accelerator=accelerator.name)
    setting = _setting(question, accelerator, speeds)
    ranks = question.ranks or usual_ranks(resolved, setting.accelerator, speeds)
    found, unfit = candidates(setting, capacity, ranks, speeds)
    if not found:
        problems = [Problem(what=f"{each.ranks} ranks: {each.why}", where="memory", fix="ftlaunch plan --recommend lists what fits") for each in unfit]
        raise DoesNotFitError(problems)
    sizes = sizes_of(resolved, question.shape)
    terms = Terms(
        prices=prices,
        save_steps=resolved.spec.checkpoint.save_steps,
        wait_s=WAIT_S if question.times.wait_s is None else question.times.wait_s,
        deadline_s=question.deadline_s,
        has_notice=question.has_notice,
        elastic=question.elastic or resolved.spec.cluster.elastic,
    )
    overheads = {id(each): overheads_of(sizes, each, question.times, speeds) for each in found}
    plans = ordered(plan for each in found for plan in plans_of(each, overheads[id(each)], terms))
    by_hosts: dict[int, Overheads] = {}
    for plan in plans:
        by_hosts.setdefault(plan.candidate.hosts, overheads[id(plan.candidate)])
    has_spot = any(plan.market == SPOT for plan in plans)
    return Planning(
        origin=question.origin,
        model=resolved.spec.model.model_name_or_path,
        accelerator=setting.accelerator.name,
        gpus_per_node=setting.gpus_per_node,
        terms=terms,
        overheads=dict(sorted(by_hosts.items())),
        plans=tuple(plans),
        unfit=tuple(unfit),
        notes=(
            *_speed_notes(setting, found, speeds),
            *overhead_notes(sizes, question.times, speeds, spot=has_spot, wait_s=terms.wait_s),
        ),
    )


def _capacity(question: Question) -> tuple[Capacity, Accelerator]:
    capacity = capacity_of(question.resolved, gpu=question.gpu)
    if capacity.accelerator is None:
        fix = f"name it with --gpu or hardware.accelerator: {', '.join(NAMES)}, or NAME:GiB"
        raise SpecError(f"no time can be counted: the accelerator is {capacity.device_origin}", where="--gpu", fix=fix)
    return capacity, capacity.accelerator


def _setting(question: Question, accelerator: Accelerator, speeds: Sequence[MeasuredSpeed]) -> Setting:
    resolved = question.resolved
    most = max((*question.ranks, *(speed.ranks for speed in speeds), resolved.world_size))
    slots = max(host.slots for host in resolved.hosts)
    usual = slots if not all(is_local(host) for host in resolved.hosts) else most if accelerator.is_host else GPUS_PER_NODE
    return Setting(
        resolved=resolved,
        shape=question.shape,
        accelerator=accelerator,
        data=run_data(resolved),
        fabric=parse_network(question.network) if question.network else None,
        gpus_per_node=question.gpus_per_node or usual,
    )


def _speed_notes(setting: Setting, found: list[Candidate], speeds: list[MeasuredSpeed]) -> list[str]:
    lengths = setting.data.train
    notes = [f"measured: {speed.anchor.words} ({speed.anchor.origin})" for speed in speeds]
    simulated = [each for each in found if each.origin != "measured"]
    if simulated:
        widest = max(each.high_s / each.update_s - 1 for each in simulated)
        notes.append(f"speeds simulated for {setting.accelerator.name}, up to {widest:.0%} off either way: low and high in time and price come from that")
    if lengths.is_assumed:
        notes.append(f"lengths of the data: {lengths.origin}")
    widest_run = max(found, key=lambda each: each.hosts)
    return [*notes, *(network_of(sized(setting, widest_run.ranks), setting.accelerator).notes)]
