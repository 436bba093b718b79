"""What benchmarks/core.py trains: a Llama of some million parameters made on the spot, and samples of random tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import Counts, write_samples
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import (
    BatchSection,
    DataSection,
    LoggingSection,
    ModelSection,
    OptimizerSection,
    ScheduleSection,
    Spec,
    TrainingSet,
    TrainSection,
    ZeroSection,
)
from ftcore.train.loop import Job
from launcher.ds_config import render_ds_config

VOCABULARY, WIDTH, LAYERS = 4096, 320, 6
SAMPLES = 512
LOG_EVERY = 10


def save_model(folder: Path) -> int:
    """Writes the model's files; returns its number of parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=WIDTH // 64,
        num_key_value_heads=WIDTH // 64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def write_random_samples(path: Path, *, shortest: int, longest: int) -> None:
    """SAMPLES samples; the second half of each is supervised."""
    random = np.random.default_rng(2)
    ids = [random.integers(3, VOCABULARY, size=int(random.integers(shortest, longest + 1))).astype(np.int32) for _ in range(SAMPLES)]
    spans = [[(len(each) // 2, len(each))] for each in ids]
    counts = Counts(rows=SAMPLES, tokens=sum(map(len, ids)), supervised_tokens=sum(end - start for [(start, end)] in spans))
    write_samples(path, ids, spans, list(range(1, SAMPLES + 1)), counts)


def make_spec(*, stage: int, coalesce: bool, samples: int, budget: int, updates: int) -> Spec:
    """fp32 AdamW with clipping; a log every LOG_EVERY updates."""
    return Spec(
        model=ModelSection(model_name_or_path="made", dtype="float32"),
        data=DataSection(train=TrainingSet(path="made")),
        batch=BatchSection(global_batch_size=samples, micro_batch_tokens=budget),
        optimizer=OptimizerSection(learning_rate=1e-4),
        schedule=ScheduleSection(lr_scheduler_type="constant"),
        train=TrainSection(max_steps=updates, precision="fp32"),
        zero=ZeroSection(stage=stage, coalesce_grad_reduction=coalesce),
        logging=LoggingSection(logging_steps=LOG_EVERY),
    )


def write_run(run: Path, spec: Spec, world_size: int) -> None:
    """The folder of a run with its ds_config.json."""
    run.mkdir(parents=True)
    resolved = ResolvedSpec(spec=spec, hosts=(Host(name="localhost", slots=world_size),), sources={}, cache_dir=str(run / "cache"))
    RunDir(run).ds_config.write_text(render_ds_config(resolved))


def open_job(run: Path, spec: Spec, model: Path, samples: Path) -> Job:
    """What the loop needs."""
    train = SampleMix.open({"train": samples})
    return Job(
        spec=spec,
        run_dir=RunDir(run),
        train=train,
        held_out={},
        sequence=UpdateSequence(train, batch=spec.batch, train=spec.train),
        attention_share=1 / (12 * WIDTH),
        base=ModelSource(path=str(model), revision="main", digest="made", name="made", trust_remote_code=False),
    )
