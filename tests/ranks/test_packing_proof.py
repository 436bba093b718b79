"""E01, E02: in a packed row every sample has the loss and the gradient that it has alone, in fp32, whatever the model, and on GPUs by every kernel."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ftcore import dist
from ftcore.batch.collate import collate
from ftcore.data.cache import Sample
from ftcore.data.prepared import ModelSource
from ftcore.engine import Engine
from ftcore.run import build_engine
from ftcore.spec.errors import SpecError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.tiny_llama import tiny_tokenizer
from ftcore.train.isolation import require_isolated_samples
from ftcore.train.loss import supervised_logits, token_loss_sum
from tests.ranks.jobs import make_job, make_run
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

VOCABULARY = 300
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 16
"""Far shorter than the samples."""
ISOLATING: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 16},
    "phi3": {"sliding_window": None},
    "olmo2": {},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0},
    "gpt_neox": {},
    "mixtral": {"num_local_experts": 4},
}
EXPERTS = {"mixtral"}
"""Rows that chose an expert are multiplied together, so that another number of them gives other rounding."""
LEAKING = "stablelm"
"""Its attention takes no boundaries: the probe refuses it."""
TOLERANCE = {"float32": 1e-6, "bfloat16": 2e-2}
TEXTS = (
    "How do I tell a hostfile from a spec?\x00A hostfile has a line a host, a spec has sections.",
    "2 + 2?\x00Four.",
    "Write down the capital of Iceland, and one thing that it is known for.\x00Reykjavík: hot springs, and houses in many colours.",
    "Translate 'the wind is rising' into German.\x00Der Wind nimmt zu.",
    "Why does a packed row need boundaries?\x00Without them a sample would see what came before it, and learn from it.",
    "Name a prime over 100.\x00101",
)


@dataclass
class Gaps:
    """Of one model: the largest relative differences between a sample in a packed row and alone."""

    loss: float = 0.0
    gradient: float = 0.0
    losses: list[float] = field(default_factory=list)
    refused: str = ""
    other_logits: float = 0.0
    """How far another first sample changes the logits after it, of the largest one."""
    joined: float = 0.0
    """|packed sum - sum of both alone| of the rows [1, 2, 3] and [4, 5, 6, 7, 8], relative."""


def real_samples() -> list[Sample]:
    """Questions and answers as the tiny Llama's tokenizer has them, the answers supervised."""
    tokenizer = tiny_tokenizer()
    samples = []
    for row, text in enumerate(TEXTS, start=1):
        question, answer = text.split("\x00")
        head, tail = (tokenizer(part)["input_ids"] for part in (f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", f"{answer}<|im_end|>\n"))
        spans = np.array([[len(head), len(head) + len(tail) - 1]], dtype=np.int32)
        samples.append(Sample(ids=np.array([*head, *tail], dtype=np.int32), spans=spans, row=row))
    return samples


UNPACKED = {"falcon": "takes no attention but its own", "mpt": "can't compute samples packed in one row"}
"""Families that can't pack -> what they are told."""


def muted(sample: Sample) -> Sample:
    return Sample(ids=sample.ids, spans=np.zeros((0, 2), dtype=np.int32), row=sample.row)


def prove(rank: int, world_size: int, folder: str, specs: dict[str, tuple[Spec, ModelSource]], samples_file: str) -> dict[str, Gaps]:
    ranks = dist.start()
    found = {}
    for name, (spec, source) in specs.items():
        run_dir = make_run(Path(folder) / name, spec, world_size)
        try:
            engine = build_engine(make_job(RunDir(run_dir.path), spec, source, samples_file), ranks)
        except SpecError as error:
            found[name] = Gaps(refused=str(error))
            continue
        found[name] = measured(engine)
        engine.deepspeed.destroy()
    dist.stop()
    return found


def measured(engine: Engine) -> Gaps:
    gaps = Gaps()
    try:
        require_isolated_samples(engine)
    except SpecError as error:
        gaps.refused = str(error)
        if error.__cause__ is not None:
            return gaps
    engine.eval()
    samples = real_samples()
    for start in range(0, len(samples), 3):
        row = samples[start : start + 3]
        for place, sample in enumerate(row):
            loss, gradient = backwards(engine, [sample])
            in_row = [each if other == place else muted(each) for other, each in enumerate(row)]
            packed_loss, packed_gradient = backwards(engine, in_row)
            gaps.losses.append(loss)
            gaps.loss = max(gaps.loss, abs(packed_loss - loss) / abs(loss))
            gaps.gradient = max(gaps.gradient, float((packed_gradient - gradient).norm() / gradient.norm()))
    one, two = (Sample(ids=np.arange(*ids, dtype=np.int32), spans=np.array([[0, len(range(*ids))]], dtype=np.int32), row=1) for ids in ((1, 4), (4, 9)))
    apart = backwards(engine, [one])[0] + backwards(engine, [two])[0]
    gaps.joined = abs(backwards(engine, [one, two])[0] - apart) / apart
    other = Sample(ids=np.array([30, 20, 10], dtype=np.int32), spans=one.spans, row=1)
    with torch.no_grad():
        after = [supervised_logits(engine.module, collate([muted(first), two]).to(engine.ranks.device)) for first in (one, other)]
    gaps.other_logits = float((after[0] - after[1]).abs().max() / after[0].abs().max())
    return gaps


def backwards(engine: Engine, samples: list[Sample]) -> tuple[float, torch.Tensor]:
    """Loss sum of a row, and its gradient as one vector."""
    parameters = [parameter for parameter in engine.module.parameters() if parameter.requires_grad]
    loss = token_loss_sum(engine.module, collate(samples).to(engine.ranks.device))
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    flat = [torch.zeros_like(parameter) if gradient is None else gradient for parameter, gradient in zip(parameters, gradients, strict=True)]
    return float(loss.detach()), torch.cat([each.flatten().double() for each in flat])


def save_model(kind: str, extra: dict[str, Any], folder: Path) -> ModelSource:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(4)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **extra})).save_pretrained(folder)
    return ModelSource(path=str(folder), revision="", digest=kind, name=kind, trust_remote_code=False)


@pytest.fixture(scope="module")
def proved(pool: RankPool, small: tuple[ModelSource, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gaps]:
    folder = tmp_path_factory.mktemp("packing")
    sources = {kind: save_model(kind, extra, folder / "models" / kind) for kind, extra in (ISOLATING | {key: {} for key in (LEAKING, *UNPACKED)}).items()}
    specs = {kind: (make_spec(0), source) for kind, source in sources.items()}
    return pool.run(prove, 1, str(folder / "runs"), specs, small[1], logs=folder / "logs")[0]


@pytest.mark.parametrize("kind", ISOLATING)
def test_a_sample_in_a_row_is_the_sample_alone(kind: str, proved: dict[str, Gaps]) -> None:
    gaps = proved[kind]
    assert gaps.refused == "" and gaps.other_logits <= (TOLERANCE["float32"] if kind in EXPERTS else 0.0)
    assert gaps.loss <= TOLERANCE["float32"] and gaps.gradient <= TOLERANCE["float32"] and gaps.joined <= TOLERANCE["float32"]
    assert len(gaps.losses) == len(TEXTS) and min(gaps.losses) > 1.0


def test_what_the_probe_refuses_would_have_leaked(proved: dict[str, Gaps]) -> None:
    gaps = proved[LEAKING]
    assert "lets samples of one micro-step see each other" in gaps.refused and gaps.other_logits > 0.01 and gaps.gradient > 0.01


@pytest.mark.parametrize("kind", UNPACKED)
def test_a_model_that_can_not_pack_is_told_to_pad(kind: str, proved: dict[str, Gaps]) -> None:
    assert UNPACKED[kind] in proved[kind].refused and "batch.layout: padded" in proved[kind].refused


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("implementation", "dtype"), [("sdpa", "float32"), ("sdpa", "bfloat16"), ("flash_attention_2", "bfloat16")])
def test_kernels_of_a_gpu_keep_samples_apart(
    implementation: str, dtype: str, pool: RankPool, small: tuple[ModelSource, str], tmp_path: Path
) -> None:  # pragma: no cover
    if implementation == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash_attn is not installed")
    spec = with_section(make_spec(0, precision="fp32" if dtype == "float32" else "bf16"), "model", attn_implementation=implementation, dtype=dtype)
    spec = with_section(spec, "zero", stage=0 if dtype == "float32" else 1)
    specs = {kind: (spec, save_model(kind, ISOLATING[kind], tmp_path / "models" / kind)) for kind in ("llama", "mistral", "qwen3")}
    for gaps in pool.run(prove, 1, str(tmp_path / "runs"), specs, small[1], logs=tmp_path / "logs")[0].values():
        assert gaps.refused == "" and gaps.other_logits == 0.0
        assert gaps.loss <= TOLERANCE[dtype] and gaps.gradient <= TOLERANCE[dtype] and gaps.joined <= TOLERANCE[dtype]
