"""Whole updates of a model that is a table of losses, through the real loop: what becomes of parameters, moments, cursor, schedule and logs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.data.cache import Counts, SampleSet, write_samples
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.engine import Engine, join_process_group
from ftcore.engine_fields import MASTER
from ftcore.model.groups import parameter_groups
from ftcore.optimizers import optimizer_maker
from ftcore.spec.errors import TrainingError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.loop import Trainer
from tests.ranks.engine_facts import allow_fp16
from tests.ranks.jobs import make_job, make_run, read_lines, whole_state
from tests.ranks.matrix import windows_of

SOURCE = ModelSource(path="table", revision="main", digest="table", name="table", trust_remote_code=False)


class TokenTable(torch.nn.Module):
    """Two classes; the loss of predicting class 0 after token t is log(1 + exp(-x[t])), so that any sum of losses can be set up.

    With `root` the logit is sqrt(|x|): finite at 0, where its slope is not.
    """

    def __init__(self, losses: list[float], *, root: bool = False) -> None:
        super().__init__()
        self.root = root
        self.x = torch.nn.Parameter(torch.tensor([[-math.log(math.exp(loss) - 1)] for loss in losses]))
        self.config = SimpleNamespace(_attn_implementation="none")

    def forward(self, input_ids: torch.Tensor, logits_to_keep: torch.Tensor | slice = slice(None), **_: object) -> SimpleNamespace:
        table = self.x.abs().sqrt() if self.root else self.x
        chosen = torch.nn.functional.embedding(input_ids, table)[:, logits_to_keep]
        return SimpleNamespace(logits=torch.cat([chosen, torch.zeros_like(chosen)], dim=-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCase:
    """One run."""

    spec: Spec
    tokens: tuple[int, ...]
    """Sample i is the token tokens[i], then the token 0, which is what is learned."""
    x: tuple[float, ...]
    """The table's first values by token."""
    root: bool = False
    scale_power: int | None = None
    """Power of two of fp16's first loss scale; None: as the launcher writes it."""
    weights: tuple[float, ...] | None = None
    """What each sample's label counts; None: 1."""
    unsupervised: tuple[int, ...] = ()
    """Samples without a label."""


@dataclass
class TableOutcome:
    """What one rank saw; index 0 of states is before the first update."""

    states: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """`field/parameter` -> whole fp32 master and moments, flattened."""
    steps_taken: list[int] = field(default_factory=list)
    samples_seen: list[int] = field(default_factory=list)
    next_update: list[int] = field(default_factory=list)
    scales: list[float | None] = field(default_factory=list)
    error: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    """metrics.jsonl."""
    events: list[dict[str, Any]] = field(default_factory=list)

    def named(self, event: str) -> list[dict[str, Any]]:
        """The events of that name."""
        return [each for each in self.events if each["event"] == event]

    def masters(self) -> list[float]:
        """The table after the last update."""
        return self.states[-1][f"{MASTER}/x"].tolist()


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two states are equal, NaN included; a moment that is not there yet is a moment of zeros."""
    for name in one.keys() | other.keys():
        zeros = torch.zeros_like(one[name] if name in one else other[name])
        if not torch.equal(one.get(name, zeros).view(torch.int32), other.get(name, zeros).view(torch.int32)):
            return False
    return True


def write_table_samples(path: Path, case: TableCase) -> SampleSet:
    """The case's samples, two tokens each."""
    ids = [np.array([token, 0], dtype=np.int32) for token in case.tokens]
    spans = [[] if index in case.unsupervised else [(1, 2)] for index in range(len(ids))]
    weights = None if case.weights is None else [[case.weights[index]][: len(pairs)] for index, pairs in enumerate(spans)]
    counts = Counts(rows=len(ids), tokens=2 * len(ids), supervised_tokens=sum(map(len, spans)))
    write_samples(path, ids, spans, list(range(1, len(ids) + 1)), counts, weights)
    return SampleSet.open(path)


def table_windows(case: TableCase, folder: Path) -> list[list[int]]:
    """Sample ids of each update of the case."""
    folder.mkdir(parents=True, exist_ok=True)
    return windows_of(write_table_samples(folder / "windows.arrow", case), case.spec)


def train_tables(rank: int, world_size: int, folder: str, cases: dict[str, TableCase]) -> dict[str, TableOutcome]:
    """Every update of each case, until the run is stopped by an error of training."""
    ranks = dist.start()
    join_process_group(ranks)
    allow_fp16()
    outcomes = {name: _train_table(Path(folder) / name.replace(" ", "_"), case, ranks) for name, case in cases.items()}
    dist.barrier()
    dist.stop()
    return outcomes


def table_engine(run: Path, case: TableCase, ranks: Ranks) -> Engine:
    """The case's model in DeepSpeed's hands; its samples are in RUN/samples.arrow then."""
    if ranks.is_first:
        run_dir = make_run(run, case.spec, ranks.world_size)
        config = json.loads(run_dir.ds_config.read_text())
        if case.scale_power is not None:
            config["fp16"]["initial_scale_power"] = case.scale_power
        run_dir.ds_config.write_text(json.dumps(config))
        write_table_samples(run / "samples.arrow", case)
    dist.barrier()
    model = TokenTable([1.0] * len(case.x), root=case.root)
    model.x.data = torch.tensor(case.x).unsqueeze(1)
    return Engine(model, parameter_groups(model, case.spec), RunDir(run).ds_config, ranks, optimizer=optimizer_maker(case.spec.optimizer))


def _train_table(run: Path, case: TableCase, ranks: Ranks) -> TableOutcome:
    engine, run_dir = table_engine(run, case, ranks), RunDir(run)
    job = make_job(run_dir, case.spec, SOURCE, str(run / "samples.arrow"))
    trainer = Trainer(engine, job, Cursor(order_seed=case.spec.train.seed, data_fingerprint=job.train.fingerprint))
    engine.train()
    outcome = TableOutcome(states=[whole_state(engine)])
    for update in range(job.sequence.total_updates):
        try:
            trainer.train_update(update)
        except TrainingError as error:
            outcome.error = str(error)
        outcome.states.append(whole_state(engine))
        if outcome.error:
            break
        cursor = trainer.cursor
        outcome.steps_taken.append(cursor.steps_taken)
        outcome.samples_seen.append(cursor.samples_seen)
        outcome.next_update.append(cursor.next_update)
        outcome.scales.append(engine.loss_scale())
    if run_dir.metrics.exists() and ranks.is_first:
        outcome.lines = read_lines(run_dir.metrics)
        outcome.events = read_lines(run_dir.events) if run_dir.events.exists() else []
    engine.deepspeed.destroy()
    return outcome
