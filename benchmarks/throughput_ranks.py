"""One rank of benchmarks/throughput.py: `python -m benchmarks.throughput_ranks SYSTEM FOLDER`, with RANK, WORLD_SIZE and so on in the environment.

Trains the updates that FOLDER describes with one of three systems, and writes for each update the CPU seconds of this process, the loss and the gradient norm.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import load_prepared
from ftcore.engine import join_process_group
from ftcore.run import build_engine, make_job
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir
from ftcore.train.loop import Trainer

IGNORED = -100
SYSTEMS = ("ours", "padded", "packed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every system trains: FOLDER/plan.json, written by the driver."""

    updates: int
    samples: tuple[tuple[int, ...], ...]
    """Sample ids of each update, in our order."""
    packs: tuple[tuple[tuple[int, ...], ...], ...]
    """The same ids by update and packed row, as TRL's own packing puts them."""
    padded_batch: int
    """Samples a rank takes in one micro-step of the padded peer."""
    micro_batch_tokens: int
    tokens: tuple[int, ...]
    """Of each update's samples."""
    supervised_tokens: tuple[int, ...]

    @staticmethod
    def read(path: Path) -> Plan:
        """The inverse of json.dumps(asdict(plan))."""
        data = json.loads(path.read_text())
        samples = tuple(tuple(update) for update in data["samples"])
        packs = tuple(tuple(tuple(row) for row in update) for update in data["packs"])
        return Plan(**{**data, "samples": samples, "packs": packs, "tokens": tuple(data["tokens"]), "supervised_tokens": tuple(data["supervised_tokens"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One update on one rank."""

    cpu_s: float
    """CPU seconds of this process, all threads, user and system."""
    wall_s: float
    loss: float
    grad_norm: float
    """Before clipping."""


class Clock:
    """CPU and wall seconds since the last lap."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def lap(self) -> tuple[float, float]:
        """(CPU seconds, wall seconds) of the lap that ends now."""
        cpu, wall = time.process_time(), time.perf_counter()
        spent = (cpu - self._cpu, wall - self._wall)
        self._cpu, self._wall = cpu, wall
        return spent


def main() -> None:
    """Trains and writes FOLDER/SYSTEM_rank_R.json."""
    system, folder = sys.argv[1], Path(sys.argv[2])
    plan = Plan.read(folder / "plan.json")
    measured = train_ours(folder, plan) if system == "ours" else train_peer(system, folder, plan)
    (folder / f"{system}_rank_{os.environ['RANK']}.json").write_text(json.dumps([asdict(update) for update in measured]))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def train_ours(folder: Path, plan: Plan) -> list[Measured]:
    """The real core on the run folder that `ftlaunch --dry-run` prepared."""
    run_dir = RunDir(folder / "run")
    ranks = dist.start()
    job = make_job(load_resolved(run_dir.resolved), load_prepared(run_dir.prepared), run_dir)
    trainer = Trainer(build_engine(job, ranks), job, Cursor(order_seed=job.spec.train.seed, data_fingerprint=job.train.fingerprint))
    trainer.engine.train()
    clock, spent = Clock(), []
    for update in range(plan.updates):
        clock.lap()
        trainer.train_update(update)
        spent.append(clock.lap())
    dist.barrier()
    lines = [json.loads(line) for line in run_dir.metrics.read_text().splitlines()]
    return [Measured(cpu_s=cpu, wall_s=wall, loss=line["loss"], grad_norm=line["grad_norm"]) for (cpu, wall), line in zip(spent, lines, strict=True)]


def train_peer(system: str, folder: Path, plan: Plan) -> list[Measured]:
    """transformers.Trainer on padded batches, or TRL's SFTTrainer on packed rows, both through DeepSpeed ZeRO-2."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    # As the core does: the op that DeepSpeed would compile here spins while it waits, which would count against the peer.
    join_process_group(dist.start())
    run_dir = RunDir(folder / "run")
    source = load_prepared(run_dir.prepared)
    samples = SampleSet.open(source.train.arrow)
    clock = Clock()
    spent: list[tuple[float, float]] = []
    logged: list[dict[str, float]] = []

    class Recorder(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.lap()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            spent.append(clock.lap())

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "grad_norm" in logs:
                logged.append(logs)

    config = json.loads(run_dir.ds_config.read_text())
    learning_rate = load_resolved(run_dir.resolved).spec.optimizer.learning_rate
    arguments = peer_arguments(folder, config, plan, system, learning_rate)
    model = AutoModelForCausalLM.from_pretrained(source.model.path, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(source.model.path)
    trainer = (padded_trainer if system == "padded" else packed_trainer)(model, tokenizer, samples, plan, arguments)
    trainer.add_callback(Recorder())
    trainer.train()
    numbers = numbers_of_rank_0(logged)
    return [Measured(cpu_s=cpu, wall_s=wall, loss=loss, grad_norm=norm) for (cpu, wall), (loss, norm) in zip(spent, numbers, strict=True)]


def numbers_of_rank_0(logged: list[dict[str, float]]) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each update; the Trainer logs on rank 0 what it averaged over the ranks, and nothing on the others."""
    from torch.distributed import broadcast_object_list

    pairs: list[Any] = [[(float(logs["loss"]), float(logs["grad_norm"])) for logs in logged]]
    broadcast_object_list(pairs, src=0)
    return [tuple(pair) for pair in pairs[0]]


def peer_arguments(folder: Path, config: dict[str, Any], plan: Plan, system: str, learning_rate: float) -> dict[str, Any]:
    """Keyword arguments of TrainingArguments and SFTConfig: what a user would set, with our optimizer, clipping and learning rate."""
    rows = len(plan.samples[0]) // plan.padded_batch if system == "padded" else len(plan.packs[0])
    steps = rows // int(os.environ["WORLD_SIZE"])
    batch = plan.padded_batch if system == "padded" else 1
    config = {
        **{key: config[key] for key in ("optimizer", "zero_optimization", "gradient_clipping", "data_types") if key in config},
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": steps,
        "steps_per_print": 10**9,
    }
    return {
        "output_dir": str(folder / "peer"),
        "deepspeed": config,
        "use_cpu": True,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": steps,
        "max_steps": plan.updates,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": config["gradient_clipping"],
        "bf16": False,
        "gradient_checkpointing": False,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 0,
    }


def features(samples: SampleSet, sample_id: int) -> dict[str, list[int]]:
    """input_ids, and labels that are ignored outside the supervised spans."""
    sample = samples.sample(sample_id)
    ids = [int(token) for token in sample.ids]
    labels = [IGNORED] * len(ids)
    for start, end in sample.spans:
        labels[start:end] = ids[start:end]
    labels[0] = IGNORED  # in a packed row it would be predicted from another sample
    return {"input_ids": ids, "labels": labels}


def padded_trainer(model: Any, tokenizer: Any, samples: SampleSet, plan: Plan, arguments: dict[str, Any]) -> Any:
    """transformers.Trainer, batches padded to their longest sample."""
    from datasets import Dataset
    from transformers import DataCollatorForSeq2Seq, TrainingArguments
    from transformers import Trainer as HfTrainer

    rows = [features(samples, sample) for update in plan.samples for sample in update]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return HfTrainer(
        model=model, args=TrainingArguments(**arguments), train_dataset=Dataset.from_list(rows), data_collator=DataCollatorForSeq2Seq(tokenizer, padding=True)
    )


def packed_trainer(model: Any, tokenizer: Any, samples: SampleSet, plan: Plan, arguments: dict[str, Any]) -> Any:
    """TRL's SFTTrainer with packing (best fit decreasing), its default; rows are packed within each update so that all systems train the same updates."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = []
    for pack in (pack for update in plan.packs for pack in update):
        parts = [features(samples, sample) for sample in pack]
        rows.append(
            {
                "input_ids": [token for part in parts for token in part["input_ids"]],
                "labels": [label for part in parts for label in part["labels"]],
                "seq_lengths": [len(part["input_ids"]) for part in parts],
            }
        )
    config = SFTConfig(
        **arguments,
        packing=True,
        max_length=plan.micro_batch_tokens,
        dataset_kwargs={"skip_prepare_dataset": True},
        shuffle_dataset=False,
        pad_token=tokenizer.eos_token,
    )
    return SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)


if __name__ == "__main__":
    main()
