"""A whole simulation: what `ftlaunch scale SPEC --simulate` prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.accelerators import Accelerator
from launcher.memory.cost import run_data
from launcher.memory.network import network_of
from launcher.memory.shape import ModelShape
from launcher.simulation.anchor import read_anchor
from launcher.simulation.fabric import parse_network
from launcher.simulation.point import Simulation
from launcher.simulation.points import point_of, set_against
from launcher.simulation.setting import GPUS_PER_NODE, Setting
from launcher.simulation.sized import sized
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

    Raises SpecError for a wrong network or number of ranks, CheckpointError for a measured file that can't be used.
    """
    resolved = question.resolved
    _check(question)
    ranks = tuple(sorted(set(question.ranks)))
    stages = tuple(sorted(set(question.stages))) or (resolved.spec.zero.stage,)
    setting = Setting(
        resolved=resolved,
        shape=question.shape,
        accelerator=question.accelerator,
        data=run_data(resolved),
        fabric=parse_network(question.network) if question.network else None,
        gpus_per_node=_gpus_per_node(question, max(ranks)),
        mode=question.mode,
        base_ranks=ranks[0],
        anchor=read_anchor(question.measured) if question.measured is not None else None,
    )
    points = []
    for stage in stages:
        found = [point_of(setting, each, stage) for each in ranks]
        points += [set_against(point, found[0]) for point in found]
    network = network_of(sized(setting, max(ranks)), setting.accelerator)
    return Simulation(
        origin=question.origin,
        model=resolved.spec.model.model_name_or_path,
        method=resolved.spec.method.type,
        mode=question.mode,
        accelerator=question.accelerator.name,
        network=setting.fabric.words if setting.fabric else f"{network.node_bandwidth / 1e9:g} GB/s a host",
        gpus_per_node=setting.gpus_per_node,
        anchor=setting.anchor.words if setting.anchor else "nothing measured: the accelerator's data sheet and what training reaches of it",
        deal=setting.data.train.origin,
        band="",
        currency=resolved.spec.hardware.currency,
        points=tuple(points),
        notes=network.notes,
    )


def _check(question: Question) -> None:
    wrong = [each for each in question.ranks if not 0 < each <= MOST_RANKS]
    if wrong or not question.ranks:
        raise SpecError(f"{wrong[0] if wrong else 'nothing'} is no number of ranks", where="--simulate", fix=f"give numbers from 1 to {MOST_RANKS:,}: 8,64,512")
    if question.gpus_per_node is not None and not 0 < question.gpus_per_node <= MOST_RANKS:
        raise SpecError(f"{question.gpus_per_node} is no number of accelerators", where="--gpus-per-node", fix="give a number from 1")


def _gpus_per_node(question: Question, most: int) -> int:
    if question.gpus_per_node is not None:
        return question.gpus_per_node
    hosts = question.resolved.hosts
    if not all(is_local(host) for host in hosts):
        return max(host.slots for host in hosts)
    return most if question.accelerator.is_host else GPUS_PER_NODE
