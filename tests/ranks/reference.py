"""A plain torch reference: one process, a sample at a time, no packing, no DeepSpeed; weighted sum of the update's token losses / sum of weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from transformers.optimization import Adafactor

from ftcore.data.cache import Sample, SampleSet
from ftcore.spec.sections import OptimizerSection


@dataclass
class Curve:
    losses: list[float]
    norms: list[float]
    change: dict[str, torch.Tensor]
    """Parameter -> its total change, float64."""


def train_reference(folder: str, samples: SampleSet, windows: list[list[int]], rates: list[float], optimizer: OptimizerSection, dtype: torch.dtype) -> Curve:
    """Trains the whole model in `folder`, held and computed in `dtype`."""
    from transformers import AutoModelForCausalLM

    return train_model(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), samples, windows, rates, optimizer)


def train_model(model: torch.nn.Module, samples: SampleSet, windows: list[list[int]], rates: list[float], optimizer: OptimizerSection) -> Curve:
    """Trains what of `model` is trainable, in the types that it has; 16-bit parameters have fp32 masters and fp32 sums of gradients."""
    model.train()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    masters = {name: _master(parameter) for name, parameter in trained.items()}
    before = {name: master.clone().double() for name, master in masters.items()}
    stepper = _optimizer(masters, optimizer)
    curve = Curve([], [], {})
    for window, rate in zip(windows, rates, strict=True):
        rows = [samples.sample(index) for index in window]
        weight_sum = sum(float(_weights(row).sum()) for row in rows)
        if weight_sum == 0:
            continue
        stepper.zero_grad(set_to_none=False)
        total = 0.0
        for row in rows:
            loss = weighted_loss_sum(model, row)
            (loss / weight_sum).backward()
            total += float(loss.detach())
            for name, parameter in trained.items():
                masters[name].grad += parameter.grad.to(masters[name].dtype)
                parameter.grad = None
        norm = torch.nn.utils.clip_grad_norm_(masters.values(), optimizer.max_grad_norm or float("inf"))
        for group in stepper.param_groups:
            group["lr"] = rate
        stepper.step()
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(masters[name])
        curve.losses.append(total / weight_sum)
        curve.norms.append(float(norm))
    curve.change = {name: master.double() - before[name] for name, master in masters.items()}
    return curve


def weighted_loss_sum(model: torch.nn.Module, row: Sample) -> torch.Tensor:
    """Sum over the sample's supervised tokens of weight · loss, from all of its logits; in fp32, or in double for a double model."""
    ids = torch.tensor(row.ids.tolist()).unsqueeze(0)
    logits = model(input_ids=ids).logits[0, :-1]
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return (cross_entropy(wide, ids[0, 1:], reduction="none") * _weights(row)).sum()


def _weights(row: Sample) -> torch.Tensor:
    """[T - 1]: what predicting each token but the first counts; 0 where it is not supervised."""
    weights = torch.zeros(len(row.ids))
    for index, (start, end) in enumerate(row.spans.tolist()):
        weights[start:end] = 1.0 if row.weights is None else float(row.weights[index])
    return weights[1:]


def _master(parameter: torch.Tensor) -> torch.Tensor:
    wide = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    master = parameter.detach().to(wide, copy=True)
    master.grad = torch.zeros_like(master)
    return master


def _optimizer(masters: dict[str, torch.Tensor], section: OptimizerSection) -> torch.optim.Optimizer:
    decayed = [master for master in masters.values() if master.dim() > 1]
    plain = [master for master in masters.values() if master.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": section.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if section.type == "adafactor":
        return Adafactor(groups, lr=section.learning_rate, scale_parameter=False, relative_step=False)
    if section.type == "muon":
        matrices = {id(master) for name, master in masters.items() if "_proj." in name}
        hidden = [master for master in decayed if id(master) in matrices]
        groups[0]["params"] = [master for master in decayed if id(master) not in matrices]
        groups.append({"params": hidden, "weight_decay": section.weight_decay})
        return PlainMuon(groups, lr=section.learning_rate, betas=(section.adam_beta1, section.adam_beta2), eps=section.adam_epsilon)
    if section.type == "sgd":
        return torch.optim.SGD(groups, lr=section.learning_rate, momentum=section.momentum)
    return torch.optim.AdamW(groups, lr=section.learning_rate, betas=(section.adam_beta1, section.adam_beta2), eps=section.adam_epsilon)


class PlainMuon(torch.optim.AdamW):
    """Muon for the matrices of the last group, whole and one by one; momentum 0.95, Nesterov, steps as large as AdamW's."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        group = self.param_groups.pop()
        super().step()
        self.param_groups.append(group)
        for matrix in group["params"]:
            state = self.state[matrix]
            average = state["average"] = 0.95 * state.get("average", 0) + 0.05 * matrix.grad
            x = 0.05 * matrix.grad + 0.95 * average
            x = x / (x.square().sum().sqrt() + 1e-7)
            for _ in range(5):
                x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.sub_(group["lr"] * 0.2 * max(matrix.shape) ** 0.5 * x)


def relative_gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """||one - other|| / ||other|| over all parameters."""
    difference = sum(float(((one[name].view(value.shape) - value) ** 2).sum()) for name, value in other.items())
    size = sum(float((value**2).sum()) for value in other.values())
    return (difference / size) ** 0.5
