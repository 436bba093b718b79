"""One rank of benchmarks/memory.py: trains two updates with the core's own engine and step, and writes down what memory held what."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.memory_cases import Case
from ftcore import dist
from ftcore.batch.collate import MicroBatch, collate
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import Counts, Sample, write_samples
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.engine import Engine
from ftcore.exact_memory_tracker import StorageTracker
from ftcore.run import build_engine
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.train.loop import Job
from ftcore.train.step import Update, run_update
from launcher.ds_config import render_ds_config

UPDATES = 2
"""The first allocates what the optimizer makes late; the second starts with all of it there."""
STATES = ("weights", "gradients", "master", "moments", "buffers")


@dataclass(slots=True)
class Measured:
    """What one rank held, in bytes."""

    before: int = 0
    """Before the model: not counted in what follows."""
    states: dict[str, int] = field(default_factory=dict)
    """By item of STATES and `other`, after the last update."""
    activations: int = 0
    """What a forward pass leaves behind, without logits; the largest of all micro-steps."""
    logits: int = 0
    gathered: int = 0
    """Weights that ZeRO-3 holds whole at the end of a forward pass."""
    peaks: dict[str, int] = field(default_factory=dict)
    """initialise, forward, backward, reduction, step -> highest total."""
    operators: dict[str, str] = field(default_factory=dict)
    """The operator at each peak."""
    at_peak: dict[str, dict[str, int]] = field(default_factory=dict)
    """Phase -> bytes by label at its peak."""
    allocator: bool = False
    """Whether the peaks are the CUDA allocator's."""

    @property
    def peak(self) -> int:
        """Over all phases of training."""
        return max(self.peaks[phase] for phase in ("forward", "backward", "reduction", "step"))


def measure_cases(rank: int, world_size: int, folder: str, cases: list[Case]) -> list[Measured]:
    """The cases one after the other in one process group."""
    ranks = dist.start()
    measured = [measure(Path(folder), case, ranks) for case in cases]
    dist.barrier()
    dist.stop()
    return measured


def measure(folder: Path, case: Case, ranks: Ranks) -> Measured:
    """Builds the case's engine, trains UPDATES updates, frees it."""
    resolved = case.resolved(folder)
    run = RunDir(folder / f"run_{case.name}")
    if ranks.is_first:
        run.path.mkdir(parents=True, exist_ok=True)
        run.ds_config.write_text(render_ds_config(resolved))
        write_rows(run.path / "rows.arrow", case)
    dist.barrier()
    job = _job(run, case, resolved)
    gc.collect()
    tracker, result = StorageTracker(), Measured()
    with tracker:
        tracker.sweep(lambda tensor: "before")
        result.allocator = torch.cuda.is_available()
        result.before = torch.cuda.memory_allocated() if result.allocator else tracker.total
        tracker.restart_peak()
        engine = build_engine(job, ranks)
        gc.collect()
        _note_peak(tracker, result, "initialise")
        engine.train()
        classify(engine, tracker)
        batches = micro_steps(job, case, ranks)
        _watch(engine, tracker, result)
        tracker.label = "forward"
        for update in range(UPDATES):
            run_update(engine, batches, Update(weight_sum=_weight(job), learning_rate=1e-4, check_count=update == 0))
        _note_peak(tracker, result, "step")
        gc.collect()
        result.states = classify(engine, tracker)
    engine.deepspeed.destroy()
    del engine, job, batches
    gc.collect()
    return result


def write_rows(path: Path, case: Case) -> None:
    """One update of random tokens; the end of each sample is supervised."""
    random = np.random.default_rng(2)
    lengths = case.segments * (case.micro_steps * case.ranks)
    ids = [random.integers(3, 1000, size=length).astype(np.int32) for length in lengths]
    spans = [[(length - int(length * case.supervised), length)] for length in lengths]
    supervised = sum(end - start for [(start, end)] in spans)
    write_samples(path, ids, spans, list(range(1, len(ids) + 1)), Counts(rows=len(ids), tokens=sum(lengths), supervised_tokens=supervised))


def micro_steps(job: Job, case: Case, ranks: Ranks) -> list[MicroBatch]:
    """This rank's rows of the update."""
    each = len(case.segments)

    def row(step: int) -> list[Sample]:
        start = (ranks.rank * case.micro_steps + step) * each
        return [job.train.sample(index) for index in range(start, start + each)]

    return [collate(row(step)) for step in range(case.micro_steps)]


def classify(engine: Engine, tracker: StorageTracker) -> dict[str, int]:
    """Bytes of what is held between updates, by item; each storage once, under the first item that has it."""
    optimizer, taken = engine.optimizer, Counter[str]()
    for name, tensors in (
        ("weights", _weights(engine.module)),
        ("moments", _tensors(getattr(optimizer, "optimizer", optimizer).state, 3)),
        ("master", _named(optimizer, "single_partition_of_fp32_groups", "fp32_groups_flat_partition", "fp32_partitioned_groups_flat")),
        ("gradients", _gradients(engine)),
        ("buffers", _tensors({key: value for key, value in vars(optimizer).items() if key != "optimizer"}, 4)),
    ):
        taken[name] = tracker.mark([tensor for tensor in tensors if tracker.bytes_of(tensor, "before") == 0], name, keep=tuple(taken))
    taken["other"] = sum(tracker.bytes.values()) - tracker.bytes["before"] - sum(taken.values())
    return dict(taken)


def _watch(engine: Engine, tracker: StorageTracker, result: Measured) -> None:
    """Notes what is held at the end of each forward and the peak of each phase, by standing before the engine's own methods."""
    backward, end_backwards, step = engine.backward, engine.end_backwards, engine.step
    held = [tracker.total, tracker.bytes["weights"]]

    def watched_backward(loss_sum: torch.Tensor, **options: Any) -> None:
        gc.collect()
        logits = _logits_bytes(loss_sum)
        tracker.mark(engine.module.parameters(), "weights", keep=("before", *STATES))
        gathered = tracker.bytes["weights"] - held[1]
        result.gathered = max(result.gathered, gathered)
        result.activations = max(result.activations, tracker.total - held[0] - logits - gathered)
        result.logits = max(result.logits, logits)
        _note_peak(tracker, result, "forward")
        tracker.relabel("forward", "activations")
        tracker.label = "backward"
        backward(loss_sum, **options)
        _note_peak(tracker, result, "backward")
        gc.collect()
        classify(engine, tracker)
        held[:], tracker.label = [tracker.total, tracker.bytes["weights"]], "forward"

    def watched_end() -> None:
        tracker.label = "reduction"
        end_backwards()
        _note_peak(tracker, result, "reduction")
        classify(engine, tracker)

    def watched_step(learning_rate: float) -> Any:
        tracker.label = "step"
        outcome = step(learning_rate)
        _note_peak(tracker, result, "step")
        gc.collect()
        classify(engine, tracker)
        held[:], tracker.label = [tracker.total, tracker.bytes["weights"]], "forward"
        return outcome

    engine.backward, engine.end_backwards, engine.step = watched_backward, watched_end, watched_step  # type: ignore[method-assign]


def _note_peak(tracker: StorageTracker, result: Measured, phase: str) -> None:
    if result.allocator:
        # The backward pass runs in threads that the tracker does not see; what libraries take in their kernels counts too.
        peak = torch.cuda.max_memory_allocated() - result.before
        torch.cuda.reset_peak_memory_stats()
    else:
        peak = tracker.peak - result.before
    if peak > result.peaks.get(phase, 0):
        result.peaks[phase], result.operators[phase] = peak, tracker.peak_operator
        result.at_peak[phase] = {label: size for label, size in tracker.at_peak.items() if size and label != "before"}
    tracker.restart_peak()


def _logits_bytes(loss_sum: torch.Tensor) -> int:
    """Of the logits, which lie in the node of the loss as their gradient."""
    gradient = getattr(loss_sum.grad_fn, "gradient_KV", None)
    return gradient.untyped_storage().nbytes() if gradient is not None else 0


def _weights(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    for parameter in module.parameters():
        yield parameter
        if hasattr(parameter, "ds_tensor"):
            yield parameter.ds_tensor
        yield from _tensors(getattr(parameter, "quant_state", None), 3)
    yield from module.buffers()


def _gradients(engine: Engine) -> Iterator[torch.Tensor]:
    for parameter in engine.module.parameters():
        for name in ("grad", "grad_accum"):
            if getattr(parameter, name, None) is not None:
                yield getattr(parameter, name)
    yield from _named(engine.optimizer, "averaged_gradients", "all_grad_tensors", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat")
    for flat in _named(engine.optimizer, "single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        if flat.grad is not None:
            yield flat.grad


def _named(holder: Any, *names: str) -> Iterator[torch.Tensor]:
    for name in names:
        yield from _tensors(getattr(holder, name, None), 4)


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    """The tensors in nested containers and plain objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(value, (list, tuple, set)):
        for each in value:
            yield from _tensors(each, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        yield from _tensors(vars(value), depth - 1)


def _job(run: RunDir, case: Case, resolved: ResolvedSpec) -> Job:
    train = SampleMix.open({"train": run.path / "rows.arrow"})
    sequence = UpdateSequence(train, batch=resolved.spec.batch, train=resolved.spec.train)
    path = resolved.spec.model.model_name_or_path
    base = ModelSource(path=path, revision="main", digest="made", name=case.model, trust_remote_code=False)
    return Job(spec=resolved.spec, run_dir=run, train=train, held_out={}, sequence=sequence, attention_share=1e-4, base=base)


def _weight(job: Job) -> float:
    return float(job.train.weight_sums[:].sum())
