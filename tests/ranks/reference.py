"""A plain torch reference: one process, no packing, no DeepSpeed; sum of token losses over the pooled update / N."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from ftcore.data.cache import SampleSet
from ftcore.spec.sections import OptimizerSection


@dataclass
class Curve:
    losses: list[float]
    norms: list[float]
    change: dict[str, torch.Tensor]
    """Parameter -> its total change, float64."""


def train_reference(folder: str, samples: SampleSet, windows: list[list[int]], rates: list[float], optimizer: OptimizerSection, dtype: torch.dtype) -> Curve:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.train()
    before = {name: parameter.detach().clone().double() for name, parameter in model.named_parameters()}
    stepper = _optimizer(model, optimizer)
    curve = Curve([], [], {})
    for window, rate in zip(windows, rates, strict=True):
        total, count = torch.zeros((), dtype=dtype), 0
        for index in window:
            sample = samples.sample(index)
            ids = torch.tensor(sample.ids.tolist()).unsqueeze(0)
            labels = torch.full_like(ids, -100)
            for start, end in sample.spans.tolist():
                labels[0, start:end] = ids[0, start:end]
            logits = model(input_ids=ids).logits[0, :-1]
            wanted = labels[0, 1:]
            total = total + cross_entropy(logits, wanted, ignore_index=-100, reduction="sum")
            count += int((wanted != -100).sum())
        stepper.zero_grad()
        if count == 0:
            continue
        (total / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer.max_grad_norm or float("inf"))
        for group in stepper.param_groups:
            group["lr"] = rate
        stepper.step()
        curve.losses.append(float(total.detach()) / count)
        curve.norms.append(float(norm))
    curve.change = {name: parameter.detach().double() - before[name] for name, parameter in model.named_parameters()}
    return curve


def _optimizer(model: torch.nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    plain = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": section.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if section.type == "sgd":
        return torch.optim.SGD(groups, lr=section.learning_rate, momentum=section.momentum)
    return torch.optim.AdamW(groups, lr=section.learning_rate, betas=(section.adam_beta1, section.adam_beta2), eps=section.adam_epsilon)


def relative_gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """||one - other|| / ||other|| over all parameters."""
    difference = sum(float(((one[name] - other[name]) ** 2).sum()) for name in other)
    size = sum(float((other[name] ** 2).sum()) for name in other)
    return (difference / size) ** 0.5
