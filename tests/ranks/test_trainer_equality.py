"""transformers.Trainer on one process beside our loop on one and two ranks: same samples, same order, same losses, so that old results carry over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import Spec
from tests.ranks.jobs import train_runs
from tests.ranks.matrix import windows_of
from tests.ranks.pool import RankPool
from tests.ranks.reference import relative_gap
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
UPDATES, MICRO_BATCH, ACCUMULATED = 20, 2, 4
IGNORED = -100
LAUNCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Rows(torch.utils.data.Dataset[dict[str, list[int]]]):
    """input_ids and labels; position 0 has no label, since nothing predicts it."""

    def __init__(self, samples: SampleSet) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        sample = self._samples.sample(index)
        ids = sample.ids.tolist()
        labels = [IGNORED] * len(ids)
        for start, end in sample.spans.tolist():
            labels[max(1, start) : end] = ids[max(1, start) : end]
        return {"input_ids": ids, "labels": labels}


class OurOrder(torch.utils.data.Sampler[int]):
    """Each pass gives the next epoch of our order, short last window included."""

    def __init__(self, epochs: list[list[int]]) -> None:
        self._epochs, self._passes = epochs, 0

    def __len__(self) -> int:
        return len(self._epochs[0])

    def __iter__(self) -> Iterator[int]:
        self._passes += 1
        return iter(self._epochs[self._passes - 1])


def pad(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Batches padded on the right to their longest row."""
    longest = max(len(row["input_ids"]) for row in rows)

    def filled(key: str, value: int) -> torch.Tensor:
        return torch.tensor([row[key] + [value] * (longest - len(row[key])) for row in rows])

    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {"input_ids": filled("input_ids", 0), "labels": filled("labels", IGNORED), "attention_mask": mask}


def epochs_of(samples: SampleSet, spec: Spec) -> list[list[int]]:
    """Our order by epoch, from the windows of more updates than are trained."""
    longer = with_section(spec, "train", max_steps=2 * UPDATES)
    flat = [sample for window in windows_of(samples, longer) for sample in window]
    return [flat[start : start + len(samples)] for start in range(0, len(flat) - len(samples) + 1, len(samples))]


def train_with_transformers(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, path: str) -> tuple[list[float], list[float], Any]:
    """Losses and gradient norms by update, and each parameter's change, of a plain Trainer as a user would write it."""
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

    for name in LAUNCH:
        os.environ.pop(name, None)  # one process without a launcher
    samples, optimizer = SampleSet.open(path), spec.optimizer
    losses: list[float] = []
    norms: list[float] = []

    class Recorder(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            losses.append(0.0)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
            if "grad_norm" in logs:
                norms.append(float(logs["grad_norm"]))

    class Ordered(Trainer):
        def _get_train_sampler(self, *_: Any) -> OurOrder:
            return OurOrder(epochs_of(samples, spec))

        def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
            loss = super().training_step(*arguments, **named)
            losses[-1] += float(loss)  # each micro-step's share of the update's loss
            return loss

    model = AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32)
    before = {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        max_steps=UPDATES,
        optim="adamw_torch",
        learning_rate=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        lr_scheduler_type="linear",
        warmup_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    losses.append(0.0)
    Ordered(model=model, args=arguments, train_dataset=Rows(samples), data_collator=pad, callbacks=[Recorder()]).train()
    change = {name: parameter.detach().double() - before[name] for name, parameter in model.named_parameters()}
    return losses[:UPDATES], norms, change


def equal_spec(stage: int) -> Spec:
    """AdamW without decay of norms, a linear schedule, clipping: what the Trainer is told above."""
    spec = make_spec(stage, updates=UPDATES, budget=80)
    spec = with_section(spec, "batch", global_batch_size=MICRO_BATCH * ACCUMULATED)
    return with_section(spec, "schedule", lr_scheduler_type="linear", warmup_steps=3)


def test_losses_are_those_of_transformers(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """20 updates over several epochs whose last windows are short."""
    [(losses, norms, change)] = pool.run(train_with_transformers, 1, str(tmp_path / "hf"), equal_spec(0), *small, logs=tmp_path / "logs")
    assert len(losses) == len(norms) == UPDATES
    for world_size, stage in ((1, 0), (2, 2), (2, 3)):
        run = [(str(tmp_path / f"run_{world_size}_{stage}"), equal_spec(stage))]
        [ours] = pool.run(train_runs, world_size, run, *small, logs=tmp_path / "logs")[0]
        assert ours.losses == pytest.approx(losses, rel=1e-5), (world_size, stage)
        assert ours.norms == pytest.approx(norms, rel=1e-4), (world_size, stage)
        assert relative_gap(ours.change, change) < 1e-3, (world_size, stage)
