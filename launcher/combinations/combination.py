"""The parts of a spec that have to get on with each other, as one point in a product of axes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ftcore.spec.sections import MethodSection, Spec, ZeroSection
from launcher.rules.precision import DTYPES

Value = str | int | bool
QUANTISING = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
"""Keys of ZeRO++; zero_hpz_partition_size is one too."""

OWN = "precision's"
"""The type of a 4-bit base's products where none is given, or that of train.precision is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One of the choices that a spec makes."""

    name: str
    """Its field in Combination."""
    title: str
    """In tables."""
    keys: tuple[str, ...]
    """Keys of the spec that decide it; the first one is where its mistakes are."""
    words: dict[Value, str]
    """Value -> what a spec says for it. Values whose words are empty are never proposed to a user."""

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(self.words)

    @property
    def key(self) -> str:
        """Where its mistakes are."""
        return self.keys[0]


AXES = (
    Axis(
        name="method",
        title="method",
        keys=("method.type", "method.use_rslora", "method.use_dora"),
        words={"full": "", "lora": "LoRA without use_dora", "rslora": "", "dora": ""},
    ),
    Axis(name="adapters", title="adapters", keys=("method.adapters",), words={"one": "one adapter", "several": ""}),
    Axis(
        name="base",
        title="base held in",
        keys=("method.bits", "method.type", "method.quant_type"),
        words={"whole": "method.type: lora", "nf4": "method.bits: 4", "fp4": "", "int8": "method.bits: 8"},
    ),
    Axis(
        name="storage",
        title="4-bit storage",
        keys=("method.storage_dtype", "method.type"),
        words={name: f"method.storage_dtype: {name}" for name in ("uint8", "bfloat16", "float16", "float32")},
    ),
    Axis(
        name="compute",
        title="4-bit compute",
        keys=("method.compute_dtype", "method.type"),
        words={
            OWN: "method.compute_dtype: null",
            **{name: f"method.compute_dtype: {name}" for name in ("bfloat16", "float16", "float32")},
        },
    ),
    Axis(
        name="stage",
        title="ZeRO stage",
        keys=("zero.stage",),
        words={0: "zero.stage: 0", 1: "zero.stage: 1", 2: "zero.stage: 2", 3: "zero.stage: 3"},
    ),
    Axis(
        name="offload_optimizer",
        title="offload_optimizer",
        keys=("zero.offload_optimizer",),
        words={"none": "zero.offload_optimizer: none", "cpu": "zero.offload_optimizer: cpu", "nvme": ""},
    ),
    Axis(
        name="offload_param",
        title="offload_param",
        keys=("zero.offload_param",),
        words={"none": "zero.offload_param: none", "cpu": "zero.offload_param: cpu", "nvme": ""},
    ),
    Axis(
        name="precision",
        title="precision",
        keys=("train.precision",),
        words={
            "fp32": "train.precision: fp32",
            "bf16": "train.precision: bf16",
            "fp16": "train.precision: fp16",
            "bf16_autocast": "train.precision: bf16_autocast",
        },
    ),
    Axis(
        name="optimizer",
        title="optimizer",
        keys=("optimizer.type",),
        words={
            "adamw": "optimizer.type: adamw",
            "sgd": "optimizer.type: sgd",
            "adamw_8bit": "optimizer.type: adamw_8bit",
            "adafactor": "optimizer.type: adafactor",
            "muon": "optimizer.type: muon",
        },
    ),
    Axis(name="layout", title="layout", keys=("batch.layout",), words={"packed": "batch.layout: packed", "padded": "batch.layout: padded"}),
    Axis(
        name="recomputes",
        title="gradient checkpointing",
        keys=("train.gradient_checkpointing",),
        words={False: "train.gradient_checkpointing: none", True: "train.gradient_checkpointing: full"},
    ),
    Axis(
        name="coalesces",
        title="coalesce_grad_reduction",
        keys=("zero.coalesce_grad_reduction",),
        words={False: "zero.coalesce_grad_reduction: false", True: "zero.coalesce_grad_reduction: true"},
    ),
    Axis(
        name="attention",
        title="attn_implementation",
        keys=("model.attn_implementation",),
        words={"sdpa": "model.attn_implementation: sdpa", "flash_attention_2": ""},
    ),
    Axis(
        name="collectives",
        title="ZeRO++",
        keys=tuple(f"zero.{name}" for name in (*QUANTISING, "zero_hpz_partition_size")),
        words={"plain": "none of zero_quantized_* and zero_hpz_partition_size", "zero++": ""},
    ),
)
"""In the order of Combination's fields; the values of each in the order of tables."""
AXIS = {axis.name: axis for axis in AXES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A value of every axis; the defaults are the plainest ones."""

    method: str = "full"
    """full, or what adapters are: lora, rslora, dora (with rsLoRA's scale or without)."""
    adapters: str = "one"
    """one (or none, with full), or several."""
    base: str = "whole"
    """How the base's linear layers are held: whole (train.precision's type), nf4, fp4 or int8."""
    storage: str = "uint8"
    """Type that 4-bit weights are packed into; uint8 for other bases."""
    compute: str = OWN
    """Type that 4-bit weights are multiplied in."""
    stage: int = 1
    offload_optimizer: str = "none"
    offload_param: str = "none"
    precision: str = "fp32"
    optimizer: str = "adamw"
    layout: str = "packed"
    recomputes: bool = False
    coalesces: bool = False
    attention: str = "sdpa"
    collectives: str = "plain"
    """plain, or zero++ where a key of ZeRO++ is set."""

    def values(self) -> dict[str, Value]:
        """Axis -> value."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def combination_of(spec: Spec) -> Combination:
    """Where `spec` lies; a value that is still open counts as what it resolves to."""
    zero, compute = spec.zero, spec.method.compute_dtype
    four_bits = spec.method.type == "qlora" and spec.method.bits == 4
    return Combination(
        method=_method(spec.method),
        adapters="several" if spec.method.type != "full" and len(spec.method.adapters) > 1 else "one",
        base=_base(spec.method),
        storage=spec.method.storage_dtype if four_bits else "uint8",
        compute=compute if four_bits and compute not in (None, DTYPES[spec.train.precision]) else OWN,
        stage=zero.stage,
        offload_optimizer=zero.offload_optimizer,
        offload_param=zero.offload_param,
        precision=spec.train.precision,
        optimizer=spec.optimizer.type,
        layout=spec.batch.layout,
        recomputes=spec.train.gradient_checkpointing != "none",
        coalesces=bool(zero.coalesce_grad_reduction),
        attention=spec.model.attn_implementation,
        collectives="zero++" if _quantises_or_groups(zero) else "plain",
    )


def _quantises_or_groups(zero: ZeroSection) -> bool:
    return any(getattr(zero, name) is True for name in QUANTISING) or (zero.zero_hpz_partition_size or 1) > 1


def _method(method: MethodSection) -> str:
    if method.type == "full":
        return "full"
    return "dora" if method.use_dora else "rslora" if method.use_rslora else "lora"


def _base(method: MethodSection) -> str:
    if method.type != "qlora":
        return "whole"
    return "int8" if method.bits == 8 else method.quant_type
