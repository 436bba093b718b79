"""`ftlaunch scale SPEC --simulate`: a spec, an accelerator and numbers of ranks become a simulation's text or JSON. Nothing is run or written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import SpecError
from launcher.launching import tell
from launcher.memory.capacity import capacity_of
from launcher.memory.config_file import find_config
from launcher.memory.shape import read_shape
from launcher.resolve import Options, read_and_resolve
from launcher.simulation.facts import simulation_facts
from launcher.simulation.sweep import Question, simulate_all
from launcher.simulation.text import render_simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What is to be simulated."""

    options: Options
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    """Empty: the spec's."""
    mode: str
    gpu: str
    network: str
    gpus_per_node: int | None
    measured: Path | None


def simulation_text(asked: Simulated, *, as_json: bool) -> str:
    """What `--simulate` prints. Raises SpecError for a wrong spec, accelerator or network, CheckpointError for a measured folder that can't be used."""
    resolution = read_and_resolve(asked.options)
    tell(resolution.warnings)
    accelerator = capacity_of(resolution.resolved, gpu=asked.gpu).accelerator
    if accelerator is None:
        raise SpecError("the accelerator is not known", where="--gpu", fix="name it: --gpu h100-80, or hardware.accelerator in the spec")
    question = Question(
        resolved=resolution.resolved,
        origin=resolution.origin,
        shape=read_shape(find_config(resolution.resolved.spec.model)),
        accelerator=accelerator,
        ranks=asked.ranks,
        stages=asked.stages,
        mode=asked.mode,
        network=asked.network,
        gpus_per_node=asked.gpus_per_node,
        measured=asked.measured,
    )
    simulation = simulate_all(question)
    if as_json:
        return json.dumps(simulation_facts(simulation), indent=2, ensure_ascii=False)
    return render_simulation(simulation).rstrip("\n")
