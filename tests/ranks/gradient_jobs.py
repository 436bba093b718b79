"""One update by hand up to the step, on real ranks and in plain torch: gradients read, measured and scaled in between."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from deepspeed.accelerator import get_accelerator
from torch.nn.functional import cross_entropy

from ftcore import dist
from ftcore.diagnostics.layer_norms import layer_gradient_norms
from ftcore.dist import Ranks
from ftcore.engine import Engine, join_process_group
from ftcore.engine_fields import MASTER
from ftcore.engine_grads import gradient_slices, group_norms, loss_scale, scale_gradients_
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import OptimizerSection, Spec
from tests.ranks.jobs import make_run, whole_state
from tests.ranks.small_model import VOCABULARY
from tests.ranks.specs import make_spec, with_section

LENGTHS = (11, 5, 17, 8)
"""Of the four rows of the update, which the ranks share."""
LIMITS = (0.3, 1e6)
"""Largest norm of the attention's gradient, which the update exceeds, and of all others, which it does not."""
RATE = 0.5
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "bf16_autocast": torch.float32}


@dataclass
class Outcome:
    """What one update brought, equal on every rank."""

    layers: dict[str, float | None] = field(default_factory=dict)
    groups: list[float] = field(default_factory=list)
    gradient_names: set[str] = field(default_factory=set)
    loss_scale: float = 0.0
    norm_at_step: float = 0.0
    """DeepSpeed's own, after scaling; 0 in stage 0."""
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    """Parameter -> its gradient as the step finds it: clipped, unscaled, flattened, whole."""
    change: dict[str, torch.Tensor] = field(default_factory=dict)
    """Parameter -> change of its master over the step."""
    masters: dict[str, torch.Tensor] = field(default_factory=dict)
    """Parameter -> its master after the step."""


def rows() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(3, VOCABULARY, (1, length), generator=generator) for length in LENGTHS]


def is_attention(name: str) -> int:
    """Group 0 for the attention's parameters, 1 for all others."""
    return 0 if "self_attn" in name else 1


def clip_factor(norm: float, limit: float) -> float:
    return min(1.0, limit / (norm + 1e-6))


def loss_sum(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    return cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), ids[0, 1:], reduction="sum")


def load(folder: str, dtype: torch.dtype) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


def make_specs() -> dict[str, Spec]:
    """Every way in which DeepSpeed holds gradients that runs on a CPU."""
    sgd = OptimizerSection(type="sgd", learning_rate=RATE, max_grad_norm=0.0)
    specs = {f"fp32 stage {stage}": make_spec(stage, optimizer=sgd) for stage in range(4)}
    specs |= {f"coalesced stage {stage}": make_spec(stage, optimizer=sgd, coalesce=True) for stage in (2, 3)}
    specs |= {f"bf16 stage {stage}": make_spec(stage, optimizer=sgd, precision="bf16") for stage in (1, 2, 3)}
    specs |= {f"fp16 stage {stage}": with_section(specs[f"fp32 stage {stage}"], "train", precision="fp16") for stage in (1, 2, 3)}
    specs |= {f"autocast stage {stage}": with_section(specs[f"fp32 stage {stage}"], "train", precision="bf16_autocast") for stage in range(4)}
    specs |= {f"kept stage {stage}": with_section(specs[f"bf16 stage {stage}"], "train", keep_in_fp32=("norm",)) for stage in (2, 3)}
    specs |= {f"offload stage {stage}": with_section(specs[f"fp32 stage {stage}"], "zero", offload_optimizer="cpu") for stage in (1, 2, 3)}
    return specs


def run_updates(rank: int, world_size: int, folder: str, model: str, specs: dict[str, Spec]) -> dict[str, Outcome]:
    ranks = dist.start()
    join_process_group(ranks)
    # Correct on this CPU, if slow; DeepSpeed refuses it for the speed.
    get_accelerator().is_fp16_supported = lambda: True
    outcomes = {name: _one_update(Path(folder) / name.replace(" ", "_"), model, spec, ranks) for name, spec in specs.items()}
    dist.barrier()
    dist.stop()
    return outcomes


def _one_update(run: Path, folder: str, spec: Spec, ranks: Ranks) -> Outcome:
    run_dir = make_run(run, spec, ranks.world_size) if ranks.is_first else RunDir(run)
    dist.barrier()
    model = load(folder, DTYPES[spec.train.precision])
    names = [name for name, _ in model.named_parameters()]
    halves = [[p for n, p in model.named_parameters() if is_attention(n) == half] for half in (0, 1)]
    engine = Engine(model, [{"params": half} for half in halves], run_dir.ds_config, ranks, coalesce=bool(spec.zero.coalesce_grad_reduction))
    engine.train()
    before = whole_state(engine)
    mine = rows()[ranks.rank :: ranks.world_size]
    weight = ranks.world_size / sum(length - 1 for length in LENGTHS)
    engine.begin_update(len(mine))
    for index, ids in enumerate(mine):
        engine.backward(loss_sum(engine.deepspeed, ids), weight=weight, last=index == len(mine) - 1)
    engine.end_backwards()
    outcome = Outcome(layers=layer_gradient_norms(engine), groups=group_norms(engine, {name: is_attention(name) for name in names}))
    outcome.gradient_names = {owned.name for owned, gradient in gradient_slices(engine) if gradient.numel() == owned.numel}
    outcome.loss_scale = loss_scale(engine)
    factors = [clip_factor(norm, limit) for norm, limit in zip(outcome.groups, LIMITS, strict=True)]
    scale_gradients_(engine, lambda name: factors[is_attention(name)])
    outcome.gradients = _whole_gradients(engine)
    outcome.norm_at_step = float(engine.step(RATE).grad_norm or 0.0)
    after = whole_state(engine)
    outcome.masters = {name.partition("/")[2]: after[name] for name in before if name.startswith(MASTER)}
    outcome.change = {name: master - before[f"{MASTER}/{name}"] for name, master in outcome.masters.items()}
    engine.deepspeed.destroy()
    return outcome


def _whole_gradients(engine: Engine) -> dict[str, torch.Tensor]:
    mine = [(owned.name, owned.start, gradient.float().flatten() / loss_scale(engine)) for owned, gradient in gradient_slices(engine)]
    whole: dict[str, dict[int, torch.Tensor]] = {}
    for name, start, gradient in (piece for pieces in dist.gather_objects(mine, engine.ranks) for piece in pieces):
        whole.setdefault(name, {})[start] = gradient
    return {name: torch.cat([pieces[start] for start in sorted(pieces)]) for name, pieces in whole.items()}


@dataclass
class Reference:
    """One update in plain torch."""

    norms: dict[str, float]
    """Of each parameter's gradient, before clipping."""
    totals: list[float]
    """Of the two groups, before clipping."""
    gradients: dict[str, torch.Tensor]
    """Clipped by group, flattened."""


def reference(folder: str, dtype: torch.dtype, *, computed_in: torch.dtype | None = None) -> Reference:
    """The update with weights rounded to `dtype`; computed in float64, or under autocast to bf16 for bfloat16 and weights of another type."""
    model = load(folder, dtype)
    if computed_in is torch.float64:
        model.double()
    with torch.autocast("cpu", torch.bfloat16, enabled=computed_in is torch.bfloat16):
        total = sum(loss_sum(model, ids) for ids in rows())
    (total / sum(length - 1 for length in LENGTHS)).backward()
    norms = {name: float(parameter.grad.double().norm()) for name, parameter in model.named_parameters()}
    groups = [[parameter for name, parameter in model.named_parameters() if is_attention(name) == half] for half in (0, 1)]
    totals = [math.hypot(*(float(parameter.grad.double().norm()) for parameter in group)) for group in groups]
    factors = [clip_factor(total, limit) for total, limit in zip(totals, LIMITS, strict=True)]
    gradients = {name: factors[is_attention(name)] * parameter.grad.double().flatten() for name, parameter in model.named_parameters()}
    return Reference(norms, totals, gradients)
