"""What a save costs: the stall of ours against DeepSpeed's own, and its durable write against the disk's, in one run on two ranks.

OMP_NUM_THREADS=1 python -m benchmarks.save --rounds 5
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.saver import Saver
from ftcore.data.prepared import ModelSource
from ftcore.engine import Engine, join_process_group
from ftcore.spec.sections import CheckpointSection, DataSection, ModelSection, Spec, TrainingSet, ZeroSection

WIDTH, LAYERS = 2048, 18
"""Some 75 million parameters."""
BATCH = 256
CHUNK_BYTES = 2**20
PEER = "DeepSpeed's save"


class Layers(nn.Module):
    """Linear layers with a loss: compute enough that a save has something to hide behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().sum()


def main() -> None:
    """Starts two ranks and waits for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        ranks = [context.Process(target=run_rank, args=(rank, Path(folder), given.rounds)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


def run_rank(rank: int, folder: Path, rounds: int) -> None:
    """Trains and saves in turn; rank 0 prints medians over the rounds, of the slower rank each."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    ranks = dist.start()
    join_process_group(ranks)
    engine = _engine(folder, ranks)
    spec = Spec(
        model=ModelSection(model_name_or_path="layers"),
        data=DataSection(train=TrainingSet(path="none")),
        zero=ZeroSection(stage=2),
        checkpoint=CheckpointSection(save_total_limit=1),
    )
    base = ModelSource(path="layers", revision="main", digest="layers", name="layers", trust_remote_code=False)
    saver = Saver(engine, folder / "checkpoints", spec=spec, base=base)
    seconds: dict[str, list[float]] = {}
    for number in range(1, rounds + 1):
        cursor = Cursor(order_seed=0, data_fingerprint="none", next_update=2 * number)
        timed = {
            "raw write": _raw_write(engine, folder),
            "durable, alone": _durable(saver, cursor),
            PEER: _deepspeed_save(engine, folder),
            **_stall(engine, saver, cursor),
        }
        for name, value in timed.items():
            seconds.setdefault(name, []).append(max(dist.gather_objects(value, ranks)))
    if ranks.is_first:
        _print(seconds, sum(parameter.numel() for parameter in engine.module.parameters()))
    dist.barrier()
    dist.stop()
    os._exit(0)


def _engine(folder: Path, ranks: dist.Ranks) -> Engine:
    torch.manual_seed(0)
    config = {
        "train_batch_size": 2,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True, "fused": True}},
        "zero_optimization": {"stage": 2},
    }
    path = folder / f"ds_config_{ranks.rank}.json"
    path.write_text(json.dumps(config))
    model = Layers()
    engine = Engine(model, [{"params": list(model.parameters())}], path, ranks)
    _update(engine)
    return engine


def _update(engine: Engine, saver: Saver | None = None) -> float:
    """One update; returns the seconds spent in the saver."""
    engine.begin_update(1)
    loss = engine.deepspeed(torch.randn(BATCH, WIDTH))
    engine.backward(loss, weight=1e-3, last=True)
    engine.end_backwards()
    started = time.perf_counter()
    if saver is not None:
        saver.before_step()
    waited = time.perf_counter() - started
    engine.deepspeed.step()
    return waited


def _stall(engine: Engine, saver: Saver, cursor: Cursor) -> dict[str, float]:
    """Seconds that training waits for one of our saves, until it counts, and how many updates that took."""
    dist.barrier()
    begun = time.perf_counter()
    saver.begin(Cursor(order_seed=0, data_fingerprint="none", next_update=cursor.next_update + 1))
    in_begin = stall = time.perf_counter() - begun
    in_step = 0.0
    outcome, updates = None, 0
    while outcome is None:
        waited = _update(engine, saver)
        started = time.perf_counter()
        outcome = saver.poll()
        in_step, stall, updates = in_step + waited, stall + waited + time.perf_counter() - started, updates + 1
    if outcome.path is None:
        raise SystemExit(f"the save failed: {outcome.reason}")
    return {"stall": stall, "stall in begin": in_begin, "stall before the step": in_step, "updates until it counts": float(updates)}


def _durable(saver: Saver, cursor: Cursor) -> float:
    """Seconds until a save counts, with nothing beside it; the deletion of the one before follows."""
    saver.poll(wait=True)
    dist.barrier()
    started = time.perf_counter()
    saver.begin(cursor)
    while saver.poll() is None:
        time.sleep(0.002)
    taken = time.perf_counter() - started
    time.sleep(1.0)
    return taken


def _deepspeed_save(engine: Engine, folder: Path) -> float:
    dist.barrier()
    started = time.perf_counter()
    engine.deepspeed.save_checkpoint(str(folder / "deepspeed"), tag="same")
    dist.barrier()
    taken = time.perf_counter() - started
    if engine.ranks.is_first:
        shutil.rmtree(folder / "deepspeed")
    dist.barrier()
    return taken


def _raw_write(engine: Engine, folder: Path) -> float:
    """Seconds to write and fsync as many bytes as a rank's slices have, from memory, on both ranks at once."""
    count = sum(parameter.numel() for parameter in engine.module.parameters()) * 12 // engine.ranks.world_size
    data = memoryview(torch.randint(0, 256, (count,), dtype=torch.uint8).numpy())
    path = folder / f"raw_{engine.ranks.rank}"
    dist.barrier()
    started = time.perf_counter()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    for start in range(0, count, CHUNK_BYTES):
        os.write(handle, data[start : start + CHUNK_BYTES])
    os.fsync(handle)
    os.close(handle)
    dist.barrier()
    taken = time.perf_counter() - started
    path.unlink()
    return taken


def _print(seconds: dict[str, list[float]], parameters: int) -> None:
    medians: dict[str, Any] = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{parameters / 1e6:.1f} M parameters, {12 * parameters / 2**20:.0f} MiB a checkpoint, 2 ranks, ZeRO-2, {len(seconds['stall'])} rounds")
    for name, value in medians.items():
        print(f"{name:26} {value:8.3f}   of {' '.join(f'{each:.3f}' for each in seconds[name])}")
    print(f"stall / DeepSpeed's save   {medians['stall'] / medians[PEER]:8.1%}   aim 10 % at most")
    print(f"durable / raw write        {medians['durable, alone'] / medians['raw write']:8.2f}   aim 1.15 at most")


if __name__ == "__main__":
    main()
