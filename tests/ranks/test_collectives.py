"""Collectives and host syncs of an update, counted where they reach torch: our loop against a bare DeepSpeed loop over the same micro-steps."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ftcore import dist
from ftcore.agreement import Agreement
from ftcore.batch.collate import MicroBatch, collate
from ftcore.batch.cursor import Cursor
from ftcore.batch.deal import deal
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.engine import Engine
from ftcore.run import build_engine
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.stop_request import StopRequest
from ftcore.train.loop import Job, Trainer
from ftcore.train.loss import token_loss_sum
from tests.ranks.engine_facts import allow_fp16
from tests.ranks.jobs import make_job, make_run
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
UPDATES = 12
COUNTED = range(1, 5)
"""Updates (from 0) after the first, which checks the counts, and before the tenth, which is logged."""
SYNCS = {"_local_scalar_dense", "tolist"}
"""Reading a tensor's value on the host, which on an accelerator waits for it."""


class Counting(TorchDispatchMode):
    """Counts, by name, every operator of c10d and every read of a value by the host, while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._tolist = torch.Tensor.tolist

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, name = function.namespace, function._schema.name.partition("::")[2]
        if namespace in ("c10d", "_c10d_functional") or name in SYNCS:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        counts, original = self.counts, self._tolist

        def tolist(tensor: torch.Tensor) -> Any:
            counts["tolist"] += 1
            return original(tensor)

        torch.Tensor.tolist = tolist  # type: ignore[method-assign]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.Tensor.tolist = self._tolist  # type: ignore[method-assign]


def micro_steps(job: Job, update: int, ranks: Ranks) -> list[MicroBatch]:
    """This rank's part of an update, as the loop deals it."""
    ids, layout = job.sequence.window(update).sample_ids, job.layout
    dealt = deal(
        job.train.lengths[ids], world_size=ranks.world_size, micro_batch_tokens=layout.micro_batch_tokens, attention_share=layout.attention_share
    ).parts[ranks.rank]
    return [collate([job.train.sample(int(ids[index])) for index in part]) for part in dealt]


def bare_update(engine: Engine, batches: list[MicroBatch], weight: float, coalesce: bool) -> None:
    """What DeepSpeed's own documentation asks of a loop, with the same loss."""
    inner = engine.deepspeed
    if coalesce and len(batches) > 1:
        with inner.coalesce_grad_reduction():
            _backwards(inner, batches, weight)
    else:
        _backwards(inner, batches, weight)
    inner.step()


def _backwards(inner: Any, batches: list[MicroBatch], weight: float) -> None:
    for index, batch in enumerate(batches):
        inner.set_gradient_accumulation_boundary(index == len(batches) - 1)
        inner.backward(token_loss_sum(inner, batch) * weight, scale_wrt_gas=False)


def count_both(rank: int, world_size: int, folder: str, specs: dict[str, Spec], source: ModelSource, samples: str) -> dict[str, list[dict[str, int]]]:
    """By spec: [ours, bare], operators by name over the updates of COUNTED."""
    ranks = dist.start()
    allow_fp16()
    counted = {name: _count_one(Path(folder) / name.replace(" ", "_"), spec, source, samples, ranks) for name, spec in specs.items()}
    dist.barrier()
    dist.stop()
    return counted


def _count_one(run: Path, spec: Spec, source: ModelSource, samples: str, ranks: Ranks) -> list[dict[str, int]]:
    run_dir = make_run(run, spec, ranks.world_size) if ranks.is_first else RunDir(run)
    dist.barrier()
    job = make_job(run_dir, spec, source, samples)
    engine = build_engine(job, ranks)
    engine.train()
    agreed = Agreement(dist.shared_store(run.name), rank=ranks.rank, world_size=ranks.world_size, request=StopRequest())
    trainer = Trainer(engine, job, Cursor(order_seed=spec.train.seed, data_fingerprint=job.train.fingerprint), agreed)
    trainer.train_update(0)
    again = [(micro_steps(job, update, ranks), float(job.train.weight_sums[job.sequence.window(update).sample_ids].sum())) for update in COUNTED]
    ours, bare = Counting(), Counting()
    # What is counted depends on shapes alone, so the same updates can be trained again. The first turn is not counted:
    # ZeRO-3 compares over the ranks in which order it gathers until it knows.
    for counting in (nullcontext(), bare):
        for batches, count in again:
            with counting:
                bare_update(engine, batches, ranks.world_size / count, bool(spec.zero.coalesce_grad_reduction))
    for update in COUNTED:
        with ours:
            trainer.train_update(update)
            trainer._stop_point()
    agreed.close()
    engine.deepspeed.destroy()
    return [dict(ours.counts), dict(bare.counts)]


def counted_specs() -> dict[str, Spec]:
    """Stages, methods, precisions and ways to reduce, with a log every ten updates."""
    specs = {f"full fp32 stage {stage}": make_spec(stage, updates=UPDATES, budget=80) for stage in range(4)}
    specs |= {f"lora fp32 stage {stage}": make_spec(stage, updates=UPDATES, budget=80, method="lora") for stage in range(4)}
    specs |= {f"full bf16 stage {stage}": make_spec(stage, updates=UPDATES, budget=80, precision="bf16") for stage in (1, 2, 3)}
    specs |= {f"coalesced stage {stage}": make_spec(stage, updates=UPDATES, budget=80, coalesce=True) for stage in (2, 3)}
    specs["full fp16 stage 2"] = with_section(specs["full fp32 stage 2"], "train", precision="fp16")
    specs["full fp16 stage 2"] = with_section(specs["full fp16 stage 2"], "model", dtype="float16")
    # Low enough that nothing overflows: the ranks talk about an update that was refused.
    specs["full fp16 stage 2"] = with_section(specs["full fp16 stage 2"], "zero", overrides={"fp16": {"initial_scale_power": 8}})
    return {name: with_section(spec, "logging", logging_steps=10) for name, spec in specs.items()}


@pytest.fixture(scope="module")
def counted(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[dict[str, int]]]]:
    """By rank and spec: [ours, bare]."""
    folder = tmp_path_factory.mktemp("counted")
    return pool.run(count_both, 2, str(folder), counted_specs(), *small, logs=folder / "logs")


def collectives(counts: dict[str, int]) -> dict[str, int]:
    return {key: value for key, value in counts.items() if key not in SYNCS}


@pytest.mark.parametrize("name", counted_specs())
def test_no_collective_and_no_sync_beyond_deepspeeds_own(name: str, counted: list[dict[str, list[dict[str, int]]]]) -> None:
    """Stage 0 has one sync an update: DeepSpeed takes a step with whatever gradient there is, so whether it is finite is looked at before."""
    for rank in counted:
        ours, bare = rank[name]
        assert collectives(ours) == collectives(bare)
        assert sum(collectives(bare).values()) >= len(COUNTED), "the count must see something"
        syncs = [sum(counts.get(key, 0) for key in SYNCS) for counts in (ours, bare)]
        assert syncs[0] <= syncs[1] + (len(COUNTED) if name.endswith("stage 0") else 0)


@pytest.mark.parametrize("stage", [2, 3])
def test_coalescing_reduces_less_often(stage: int, counted: list[dict[str, list[dict[str, int]]]]) -> None:
    once, each = (sum(collectives(counted[0][f"{name} stage {stage}"][0]).values()) for name in ("coalesced", "full fp32"))
    assert once < each
