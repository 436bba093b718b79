"""What the probe of the memory says, and where micro-steps wait; both need no ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ftcore.batch.collate import collate
from ftcore.batch.heaviest import heaviest_steps
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource
from ftcore.engine import StepOutcome
from ftcore.feed.host_memory import on_host
from ftcore.spec.errors import TrainingError
from ftcore.spec.run_dir import RunDir
from ftcore.train import memory_probe
from ftcore.train.loop import Job
from ftcore.train.step import UpdateResult
from tests.ranks.jobs import make_job
from tests.ranks.specs import make_spec

Small = tuple[ModelSource, str]


def fake_job(tmp_path: Path, small: Small) -> Job:
    return make_job(RunDir(tmp_path), make_spec(0), *small)


def test_memory_that_runs_out_names_the_samples(tmp_path: Path, small: Small) -> None:
    """E10."""
    job = fake_job(tmp_path, small)
    assert isinstance(job.train, SampleMix)
    with pytest.raises(TrainingError) as caught, memory_probe.samples_named(job, [np.array([3, 5]), np.array([7])], "it was in update 9"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    told = caught.value.problems[-1]
    by_length = sorted((3, 5, 7), key=lambda sample: -int(job.train.lengths[sample]))
    assert told.what == "it was in update 9: samples by tokens: " + ", ".join(f"train row {sample + 1} ({job.train.lengths[sample]})" for sample in by_length)
    assert told.fix.startswith("lower batch.micro_batch_tokens (80 now)") and "data.max_length (40 now)" in told.fix
    assert "3 samples" in memory_probe._names(dataclasses.replace(job, train=None), [np.arange(3)])
    with pytest.raises(ValueError, match="something else"), memory_probe.samples_named(job, [], ""):
        raise ValueError("something else")


def test_a_probe_that_is_not_refused_is_told(tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have changed the parameters."""
    job = fake_job(tmp_path, small)
    [step, *_] = heaviest_steps(
        job.sequence, job.train.lengths, job.train.supervised, world_size=1, micro_batch_tokens=80, attention_share=0.001, layout="packed"
    )
    engine = SimpleNamespace(module=torch.nn.Linear(1, 1), named_groups=lambda: iter(()))
    applied = UpdateResult(StepOutcome(True, 1.0), torch.zeros(1, 1))
    monkeypatch.setattr(memory_probe, "run_update", lambda *arguments: applied)
    with pytest.raises(TrainingError, match="not finite was taken"):
        memory_probe._try(engine, job, step, times=1)  # type: ignore[arg-type]


def test_micro_steps_wait_in_pinned_memory_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the thread that works ahead too, which begins with device 0."""
    batch = collate([])
    assert on_host(batch, torch.device("cpu")) is batch
    told: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: told.append("pinned") or tensor)
    on_host(batch, torch.device("cuda", 1))
    assert told == [torch.device("cuda", 1), *["pinned"] * 4]
