"""Rules between keys of a spec: numeric types."""

from __future__ import annotations

import importlib.util

from ftcore.spec.errors import Problem
from ftcore.spec.sections import Spec
from launcher.rules.rule import Findings, Rule
from launcher.spec_source import Draft
from launcher.topology import local_accelerators

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "bf16_autocast": "float32"}
"""train.precision -> the type the base weights are held in."""


def half_is_possible(spec: Spec) -> bool:
    """Whether the run's machines may have what fp16 needs."""
    # What a hostfile's machines have is not known here.
    return bool(spec.cluster.hosts) or bool(local_accelerators())


def _half_on_cpu(spec: Spec, draft: Draft) -> Findings:
    if spec.train.precision == "fp16" and not half_is_possible(spec):
        what = "fp16 needs an accelerator, and this machine has none that may be used"
        yield Problem(what=what, where="train.precision", fix="use train.precision: bf16, which needs no loss scale, or fp32")


def _flash_attention(spec: Spec, draft: Draft) -> Findings:
    # What a hostfile's machines have is not known here.
    if spec.model.attn_implementation != "flash_attention_2" or spec.cluster.hosts:
        return
    if not local_accelerators():
        what, fix = "an accelerator, and this machine has none that may be used", "use sdpa"
    elif importlib.util.find_spec("flash_attn") is None:
        what, fix = "the package flash-attn, and it is not installed", "pip install flash-attn, or use sdpa"
    else:
        return
    yield Problem(what=f"flash_attention_2 needs {what}", where="model.attn_implementation", fix=fix)


def _base_type(spec: Spec, draft: Draft) -> Findings:
    precision, dtype = spec.train.precision, spec.model.dtype
    wanted = DTYPES[precision]
    if dtype is not None and dtype != wanted:
        what = f"dtype {dtype} does not go with train.precision {precision}: DeepSpeed computes with {wanted} weights there"
        other = next(name for name, each in DTYPES.items() if each == dtype)
        yield Problem(what=what, where="model.dtype", fix=f"remove it, or use train.precision: {other}")


def _kept_buffers(spec: Spec, draft: Draft) -> Findings:
    if spec.train.keep_in_fp32 and spec.train.precision not in ("bf16", "fp16"):
        what = f"everything is fp32 with train.precision {spec.train.precision}"
        yield Problem(what=what, where="train.keep_in_fp32", fix="remove it, or use train.precision: bf16")


def _nonfinite(spec: Spec, draft: Draft) -> Findings:
    if spec.train.on_nonfinite == "stop" and draft.given("train.max_nonfinite_updates"):
        what = "max_nonfinite_updates has no effect with on_nonfinite: stop"
        yield Problem(what=what, where="train.max_nonfinite_updates", fix="remove it, or use on_nonfinite: skip")


PRECISION_RULES = (
    Rule(("train.precision", "cluster.hosts"), _half_on_cpu),
    Rule(("model.attn_implementation", "cluster.hosts"), _flash_attention),
    Rule(("train.precision", "model.dtype"), _base_type),
    Rule(("train.precision", "train.keep_in_fp32"), _kept_buffers),
    Rule(("train.on_nonfinite",), _nonfinite),
)
