"""SCALE/request.json: what a scaling test was asked for, so that it can go on without its command line."""

from __future__ import annotations

from dataclasses import dataclass, field

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.scale_result import ScaleDir
from ftcore.spec.stored import read_stored, stored_text
from launcher.run_folder import write_files

REQUEST_VERSION = 1
STRONG, WEAK = "strong", "weak"
TOLERANCES = {"fp32": 1e-5, "bf16": 2e-2, "bf16_autocast": 2e-2, "fp16": 5e-3}
"""Precision -> largest relative distance of losses that are called equal: in fp32 what reordered sums come to, else a few steps of the type (2^-7, 2^-10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequest:
    """What is measured, and how."""

    mode: str
    """strong or weak."""
    ranks: tuple[int, ...]
    """Ascending."""
    stages: tuple[int, ...]
    """ZeRO stages, ascending."""
    warm_up: int
    """Updates at the beginning of a point that are not counted."""
    windows: int
    window_updates: int
    """Updates of each window."""
    tolerance: float
    """Of losses, relative (strong mode)."""
    resolved: ResolvedSpec
    """The run whose scaling is measured, on all hosts that there are."""
    spec_name: str
    spec_text: str
    zero_config: str = ""
    """What zero.config named; empty: nothing."""
    refused: dict[str, str] = field(default_factory=dict)
    """Name of a point -> why the rules for specs refuse it."""
    threads: int | None = None
    """OMP_NUM_THREADS of each rank, as --threads says; None: so that the largest point fills the cores."""
    env_file: str = ""
    """Absolute; empty: none."""
    force: bool = False
    """Measure what does not fit by the ledger."""
    scheduler: SchedulerSection | None = None
    """With each point a job of Slurm: what is asked for, with slots_per_node; None: points are measured from here."""
    on_cpu: bool = False
    """Whether a job's slots are CPU ranks."""
    version: int = REQUEST_VERSION

    @property
    def updates(self) -> int:
        """Of each point, warm-up included."""
        return self.warm_up + self.windows * self.window_updates


def write_request(folder: ScaleDir, request: ScaleRequest) -> None:
    """Raises CheckpointError when the folder can't be written to."""
    write_files({folder.request: stored_text(request)})


def read_request(folder: ScaleDir) -> ScaleRequest:
    """Raises CheckpointError when the folder holds none, or a damaged one."""
    fix = "name a folder that ftlaunch scale made, or start a new test from its spec"
    if not folder.request.is_file():
        raise CheckpointError(f"{folder.path} holds no scaling test", where="scale", fix=fix)
    return read_stored(ScaleRequest, folder.request, version=REQUEST_VERSION, name="a scaling test of ftlaunch", fix=fix)


def default_tolerance(precision: str, optimizer: str) -> float:
    """How far losses of a precision may lie apart where nobody says it; 8-bit moments share scales by split, so that they are as coarse as bf16."""
    return TOLERANCES["bf16"] if optimizer == "adamw_8bit" else TOLERANCES[precision]
