"""One micro-step of any model, run on tensors that hold no memory, for what it would hold: activations, logits, and the backward pass's highest point.

`python -m ftcore.exact_trace` reads a request as JSON from stdin and prints one line of JSON with the model's parameters and the trace. For
`ftlaunch plan --exact`. The trace runs on fake CPU tensors; `accelerator_operators` makes what operators save be what they save on an accelerator.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from peft.tuners.lora import dora
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from ftcore import attention, cross_entropy
from ftcore.batch.collate import MicroBatch, collate
from ftcore.data.cache import Sample
from ftcore.exact_memory_tracker import StorageTracker
from ftcore.exact_shape import read_config, shape_facts
from ftcore.model.adapters import COMPUTE_DTYPES
from ftcore.model.build import attach_method
from ftcore.model.full_precision import compute_in_fp32
from ftcore.model.groups import freeze_matching
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import Spec
from ftcore.train.loss import token_loss_sum

PRINTED = "exact trace: "
"""What the line with the JSON begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRow:
    """The micro-step to trace."""

    segments: tuple[int, ...]
    """Tokens of its samples."""
    supervised: int
    """Positions with logits, spread over the samples."""
    padded: bool
    on_cpu: bool
    """Whether the ranks compute on the host."""


@contextmanager
def accelerator_operators() -> Iterator[None]:
    """Inside, operators save what they do on an accelerator: dropout a mask of bytes, attention none for its own; and the loss takes larger blocks.

    Functions are replaced, not a mode entered: layers that are computed again in the backward pass are out of a mode's sight.
    """
    functions, blocks = torch.nn.functional, cross_entropy.BLOCK_BYTES
    attend, drop, block = functions.scaled_dot_product_attention, functions.dropout, blocks["cpu"]

    def attend_without_mask(
        *vectors: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False
    ) -> torch.Tensor:
        return attend(*vectors, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)

    def drop_by_bytes(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: A002  torch's own name
        return torch.native_dropout(input, p, True)[0] if training and p else input

    functions.scaled_dot_product_attention, functions.dropout, blocks["cpu"] = attend_without_mask, drop_by_bytes, blocks["cuda"]
    try:
        yield
    finally:
        functions.scaled_dot_product_attention, functions.dropout, blocks["cpu"] = attend, drop, block


class _FrozenProduct(torch.autograd.Function):
    """A product with a frozen matrix as others than torch compute it: bitsandbytes unpacks the matrix each time, DeepSpeed's stage 3 saves the input."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_packed: bool) -> torch.Tensor:
        ctx.is_packed = is_packed
        ctx.save_for_backward(weight, None if is_packed else value)
        return torch.nn.functional.linear(value, weight.clone() if is_packed else weight, bias)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        weight, _ = ctx.saved_tensors
        return outer[0] @ (weight.clone() if ctx.is_packed else weight), None, None, None


class PackedLinear(torch.nn.Linear):
    """Stands for a quantised layer."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """What the layer computes, a copy of its weight for the moment."""
        return _FrozenProduct.apply(value, self.weight, self.bias, True)  # type: ignore[no-untyped-call,no-any-return]


@contextmanager
def unpacked_weights() -> Iterator[None]:
    """Inside, DoRA finds the weight of a layer that stands for a quantised one in memory of its own, as unpacking gives it."""
    unpack = dora.dequantize_module_weight

    def copy_packed(module: torch.nn.Module) -> torch.Tensor:
        return module.weight.clone() if isinstance(module, PackedLinear) else unpack(module)

    dora.dequantize_module_weight = copy_packed
    try:
        yield
    finally:
        dora.dequantize_module_weight = unpack


class ShardedLinear(torch.nn.Linear):
    """Stands for a frozen layer of ZeRO stage 3."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """What the layer computes; its input is saved."""
        return _FrozenProduct.apply(value, self.weight, self.bias, False)  # type: ignore[no-untyped-call,no-any-return]


def trace(config: PretrainedConfig, spec: Spec, row: TracedRow, *, with_code: bool = False) -> dict[str, Any]:
    """Bytes of one micro-step: `saved` (after the forward pass, without logits), `logits`, `backward` (what its worst moment takes more), `operator` there.

    Gradients of parameters are dropped as soon as they are whole, so that they count only while they are made. Raises what the model raises when it can't
    run without values.
    """
    batch = _batch(row, str(config.model_type))
    with torch.device("meta"):
        model = _model(config, spec, row, with_code=with_code)
    with ExitStack() as entered:
        entered.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        entered.enter_context(unpacked_weights())
        if not row.on_cpu:
            entered.enter_context(accelerator_operators())
        model = _without_memory(model)
        tracker = entered.enter_context(StorageTracker())
        tracker.sweep(lambda tensor: "before")
        tracker.mark([value for value in (batch.input_ids_BT, batch.position_ids_BT, batch.keep_C, batch.targets_K) if value is not None], "before")
        before = tracker.total
        tracker.restart_peak()
        autocast = torch.autocast("cpu", dtype=torch.bfloat16) if spec.train.precision == "bf16_autocast" else nullcontext()
        with autocast:
            loss = token_loss_sum(model, batch)
        gc.collect()
        logits = _logits_bytes(loss)
        held = tracker.total - before
        torch.autograd.backward(loss)
        return {"saved": held - logits, "logits": logits, "backward": tracker.peak - before - held, "operator": tracker.peak_operator}


def _model(config: PretrainedConfig, spec: Spec, row: TracedRow, *, with_code: bool) -> torch.nn.Module:
    """The model to train, with the core's own method, checkpointing and attention, in the type that the engine computes in."""
    implementation = None if row.padded else attention.NAME
    config.use_cache = False
    # Some models look for it among the tokens to warn of a missing mask.
    config.pad_token_id = None
    base: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=COMPUTE_DTYPES[spec.train.precision], attn_implementation=implementation, trust_remote_code=with_code
    )
    if spec.method.type == "qlora":
        head = base.get_output_embeddings()
        for module in base.modules():
            if type(module) is torch.nn.Linear and module is not head:
                module.__class__ = PackedLinear
        base.requires_grad_(False)
    # Values of an adapter to start from are not needed.
    model = attach_method(base, replace(spec.method, adapter_name_or_path=""), spec.train)
    freeze_matching(model, spec.optimizer)
    compute_in_fp32(model, spec.optimizer)
    if spec.zero.stage == 3:
        for module in model.modules():
            if type(module) is torch.nn.Linear and not module.weight.requires_grad:
                module.__class__ = ShardedLinear
    return model.train()


def _without_memory(model: torch.nn.Module) -> torch.nn.Module:
    """The same model with fake tensors of the CPU in place of those on the meta device, which have no device that operators would choose by."""
    made: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            new = torch.empty_like(tensor, device="cpu")
            if isinstance(tensor, torch.nn.Parameter):
                new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
                if tensor.requires_grad:
                    new.register_post_accumulate_grad_hook(_drop_gradient)
            made[id(tensor)] = new
        return made[id(tensor)]

    for module in model.modules():
        for held in (module._parameters, module._buffers, vars(module)):
            held.update({name: fake(value) for name, value in held.items() if isinstance(value, torch.Tensor)})
    return model


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _batch(row: TracedRow, family: str) -> MicroBatch:
    """A row of zeros; the last tokens of each sample are supervised, so many in all as `row` says."""
    left, samples = row.supervised, []
    for number, length in enumerate(row.segments):
        share = min(length, -(-left // (len(row.segments) - number)))
        left -= share
        spans = np.array([(length - share, length)] if share else np.zeros((0, 2)), dtype=np.int32).reshape(-1, 2)
        samples.append(Sample(ids=np.zeros(length, dtype=np.int32), spans=spans, row=number + 1))
    return collate(samples, "padded" if row.padded else "packed")


def _logits_bytes(loss: torch.Tensor) -> int:
    """Of the logits, which lie in the node of the loss as their gradient."""
    gradient = getattr(loss.grad_fn, "gradient_KV", None)
    return int(gradient.untyped_storage().nbytes()) if gradient is not None else 0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the model that the request names (`shape`), and the trace of its micro-step (`trace`, or null with the reason in `untraced`)."""
    spec, row = ResolvedSpec.from_json(request["resolved"]).spec, request["row"]
    config = read_config(request["path"], request["revision"], with_code=request["with_code"], gguf_file=request["gguf_file"])
    found: dict[str, Any] = {"shape": shape_facts(config, with_code=request["with_code"]), "trace": None, "untraced": ""}
    try:
        found["trace"] = trace(config, spec, TracedRow(**{**row, "segments": tuple(row["segments"])}), with_code=request["with_code"])
    except Exception as error:  # noqa: BLE001  a model that looks at values can't run without them; its parameters are known all the same
        found["untraced"] = reason(error)
    return found


def reason(error: Exception) -> str:
    """The error in one line."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:300]


def main(read: Callable[[], str] = sys.stdin.read) -> int:
    """Prints the answer to the request on stdin; status 1, with the reason on stderr, when the model can't be built."""
    warnings.simplefilter("ignore")
    try:
        found = answer(json.loads(read()))
    except Exception as error:  # noqa: BLE001  whatever a configuration or a repository's code leads to
        sys.stderr.write(f"{reason(error)}\n")
        return 1
    sys.stdout.write(f"{PRINTED}{json.dumps(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
