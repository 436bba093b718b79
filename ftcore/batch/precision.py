"""The numeric types of a run in words."""

from __future__ import annotations

from ftcore.spec.sections import MethodSection, Spec


def describe_precision(spec: Spec) -> str:
    """The types that weights, gradients and optimizer state are held in, in words."""
    sixteen = {"bf16": "bfloat16", "fp16": "float16 with a dynamic loss scale"}.get(spec.train.precision)
    if sixteen is not None:
        text = f"{sixteen}; master weights, moments and the sum of gradients in float32"
    elif spec.train.precision == "bf16_autocast":
        text = "float32, with matrix products in bfloat16"
    else:
        text = "float32"
    if spec.optimizer.type == "adamw_8bit":
        text += "; moments of hidden matrices in 8 bits"
    kept = [group.pattern for group in spec.optimizer.parameter_groups if group.keep_in_fp32]
    if kept:
        text += f"; {', '.join(kept)} computed in float32"
    if spec.method.type == "qlora":
        text += f"; linear layers of the base in {_quantised(spec.method)}"
    return text


def _quantised(method: MethodSection) -> str:
    if method.bits == 8:
        return "8 bits"
    stored = "" if method.storage_dtype == "uint8" else f", stored as {method.storage_dtype}"
    computed = f", computed in {method.compute_dtype}" if method.compute_dtype else ""
    return f"{method.quant_type}, 4 bits{stored}{computed}"
