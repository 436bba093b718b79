"""What the backward pass needs of one decoder layer: the tensors that autograd saves in transformers' own modules with the core's attention.

Found by listing what each family's layers save (torch.autograd.graph.saved_tensors_hooks) and held to it by tests/unit/test_activations.py.
Letters: T tokens, h hidden size, q = heads · head_dim, kv = kv_heads · head_dim, f width of the MLP, b bytes of a number in the compute type.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.spec.sections import MethodSection
from launcher.memory.activation_row import Row
from launcher.memory.shape import ModelShape, Tensor

FLOAT32 = 4
INDEX = 8
"""Bytes of an int64."""
CUT_ROTATION = ("phi", "phi3", "gpt_neox")
"""Families that turn a part of each head and join it again: their queries lie head by head, so that attention's output is copied once more."""
PYTHON_GELUS = ("gelu_new", "gelu_fast", "gelu_accurate")
"""Activations that transformers computes by a formula in Python, with a tensor for each of its steps."""
WEIGHTED_IN_FP32 = ("gemma", "gemma2", "gemma3_text", "olmo2", "olmo3")
"""Families whose norms multiply by their weight in fp32."""
ADAPTED_EXPERTS = ("mixtral", "qwen3_moe")
"""Families whose experts PEFT adapts under all-linear."""
Terms = dict[str, float]
"""What -> bytes a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How a layer is computed: the types, and what is trained."""

    b: int
    """Bytes of a number in the compute type."""
    autocast: bool
    """fp32 weights with bf16 matrix products."""
    method: MethodSection
    stage: int = 0
    """Of ZeRO. In stage 3 DeepSpeed's own linear function saves its input also where the weight is frozen (runtime/zero/linear.py)."""

    @property
    def full(self) -> bool:
        """Whether the base itself is trained."""
        return self.method.type == "full"

    def targets(self, name: str) -> bool:
        """Whether a linear layer of that name has an adapter."""
        return not self.full and (self.method.target_modules == ("all-linear",) or name in self.method.target_modules)


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Of one decoder layer."""

    terms: Terms
    """What -> bytes, saved for the backward pass."""
    shared_input: int
    """How much of it is the layer's input itself, which a layer that is recomputed holds anyway."""

    @property
    def total(self) -> int:
        return round(sum(self.terms.values()))


def layer_bytes(shape: ModelShape, row: Row, compute: Compute, layer: int) -> LayerBytes:
    """Everything that decoder layer number `layer` saves when it is not recomputed."""
    own = [tensor for tensor in shape.tensors if tensor.layers is not None and layer in tensor.layers]
    # The first layer's input needs no gradient then; Olmo2's norms stand behind attention and MLP instead.
    first_frozen = layer == 0 and not compute.full and not shape.family.startswith(("olmo2", "olmo3"))
    a_token: Terms = {
        "norms": _norms(shape, own, compute, without_first=first_frozen),
        "attention": _attention(shape, own, compute, row),
        "linear inputs": _inputs(shape, own, compute, row),
        "adapters": _adapters(shape, own, compute, row, is_first=layer == 0),
        "mlp": _mlp(shape, own, compute),
        "experts": _experts(shape, own, compute),
        "dropout": _gpt2_dropout(shape, compute, row),
    }
    terms = {name: value * row.tokens for name, value in a_token.items() if value}
    terms |= {name: value for name, value in (("scores", _scores(shape, row)), ("experts' weights", _expert_copies(shape, own, compute))) if value}
    holds_input = (compute.b == FLOAT32 or shape.norm != "rms") and not first_frozen
    return LayerBytes(terms, round(compute.b * shape.hidden * row.tokens) if holds_input else 0)


def norm_bytes(shape: ModelShape, compute: Compute, width: int) -> float:
    """A token's bytes of one norm over `width` numbers: its input (of an RMS norm in fp32), what it was normed to where a weight is trained, statistics."""
    if shape.norm != "rms":
        return compute.b * width + 2 * (min(FLOAT32, compute.b))
    normed = FLOAT32 if shape.family in WEIGHTED_IN_FP32 else compute.b
    return FLOAT32 * width + (normed * width if compute.full else 0) + FLOAT32


def _norms(shape: ModelShape, own: list[Tensor], compute: Compute, *, without_first: bool) -> float:
    across = [tensor for tensor in own if tensor.kind == "norm" and tensor.name.endswith(".weight") and not _of_heads(tensor)]
    count = 2 if shape.norm == "bare" else len(across)
    if shape.parallel and shape.norm == "layer":
        # Both norms of such a layer read the same input.
        count = 1
    total = (count - without_first) * norm_bytes(shape, compute, shape.hidden)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for tensor in own:
        if _of_heads(tensor) and tensor.name.endswith(".weight"):
            width = queries if ".q_" in tensor.name else keys
            heads = 1 if tensor.numel == width else width // tensor.numel
            total += norm_bytes(shape, compute, tensor.numel) * heads
    return total


def _attention(shape: ModelShape, own: list[Tensor], compute: Compute, row: Row) -> float:
    """Query, key, value and output of scaled_dot_product_attention, and the logarithm of each score's sum."""
    if _in_steps(shape, row):
        # Query, key and value in fp32, and scaled queries and keys beside the ones that were fp32 before; the output stands in `_inputs`.
        return FLOAT32 * shape.hidden * (5 if compute.b == FLOAT32 else 3)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    b = 2 if compute.autocast else compute.b
    fused = any(_last(tensor) in ("qkv_proj", "query_key_value", "c_attn") for tensor in own)
    turned = 0 if shape.family == "gpt2" else queries + keys
    value = queries + 2 * keys if fused else keys
    return b * (turned + value + queries) + FLOAT32 * shape.heads


def _inputs(shape: ModelShape, own: list[Tensor], compute: Compute, row: Row) -> float:
    """Inputs of the linear layers: into attention, out of it where that is a copy, and into the MLP. Its second half stands in `_mlp`."""
    b = 2 if compute.autocast else compute.b
    into = [_last(tensor) for tensor in own if tensor.kind == "attention" and _columns(tensor) == shape.hidden and not _is_output(tensor)]
    out = [_last(tensor) for tensor in own if tensor.kind == "attention" and _is_output(tensor)]
    into_mlp = [_last(tensor) for tensor in own if tensor.kind in ("mlp", "router") and not _is_down(tensor)]
    total = b * shape.hidden * _saves(compute, into)
    copied = (len(row.segments) > 1 and not row.padded) or shape.family in CUT_ROTATION or _in_steps(shape, row)
    if copied:
        total += b * shape.heads * shape.head_dim * _saves(compute, out)
    norms = [tensor for tensor in own if tensor.kind == "norm" and tensor.name.endswith(".weight") and not _of_heads(tensor)]
    one_for_both = shape.parallel and len(norms) == 1
    if one_for_both:
        return total + (b * shape.hidden * _saves(compute, into_mlp) if not _saves(compute, into) else 0)
    return total + b * shape.hidden * _saves(compute, into_mlp)


def _mlp(shape: ModelShape, own: list[Tensor], compute: Compute) -> float:
    """Of a dense MLP, and of an expert that all tokens pass."""
    b = 2 if compute.autocast else compute.b
    total = 0.0
    for tensor in own:
        if tensor.kind == "mlp" and _is_down(tensor):
            width, last = _columns(tensor), _saves(compute, [_last(tensor)])
            steps = 3 if shape.gated else 4 if shape.activation in PYTHON_GELUS else 1
            total += b * width * (steps + last)
            if "shared_expert" in tensor.name:
                total += b * shape.hidden + b
    return total


def _experts(shape: ModelShape, own: list[Tensor], compute: Compute) -> float:
    """Of the experts a token is sent to, computed together, sorted by expert: input, both halves, their product, output; and the router's.

    Experts that are frozen need neither input nor product.
    """
    if not any(tensor.kind == "expert" for tensor in own):
        return 0.0
    b = 2 if compute.autocast else compute.b
    sent, adapted = shape.experts_per_token, _adapts_experts(shape, compute)
    whole = compute.full or adapted
    rows = sent * (b * ((2 if whole else 1) * shape.hidden + (4 if whole else 3) * shape.expert_intermediate) + 3 * INDEX + b)
    return rows + FLOAT32 * shape.experts + sent * INDEX


def _adapts_experts(shape: ModelShape, compute: Compute) -> bool:
    """Whether PEFT adapts the experts themselves."""
    return not compute.full and shape.family in ADAPTED_EXPERTS


def _expert_copies(shape: ModelShape, own: list[Tensor], compute: Compute) -> int:
    """Adapted experts are held a second time, as base and adapter together."""
    return compute.b * sum(tensor.numel for tensor in own if tensor.kind == "expert") if _adapts_experts(shape, compute) else 0


def _adapters(shape: ModelShape, own: list[Tensor], compute: Compute, row: Row, *, is_first: bool) -> float:
    """Each adapter's low-rank middle; with dropout its own input and mask too. No mask in front of the first layer, whose input needs no gradient."""
    if compute.full:
        return 0.0
    b, method = (2 if compute.autocast else compute.b), compute.method
    total = 0.0
    for tensor in own:
        if tensor.kind in ("attention", "mlp") and compute.targets(_last(tensor)):
            total += b * method.r
            if method.lora_dropout:
                reads_input = _reads_layer_input(shape, tensor)
                total += (b + (0 if is_first and reads_input else _mask(compute, row))) * _columns(tensor)
    return total


def _reads_layer_input(shape: ModelShape, tensor: Tensor) -> bool:
    """Whether a matrix reads the layer's own input, normed, and nothing that the layer has made of it."""
    if tensor.kind == "attention":
        return not _is_output(tensor)
    return shape.parallel and not _is_down(tensor)


def _mask(compute: Compute, row: Row) -> int:
    """Bytes of a number in a mask of dropout."""
    return compute.b if row.on_cpu else 1


def _gpt2_dropout(shape: ModelShape, compute: Compute, row: Row) -> float:
    """Masks of the two dropouts behind attention and MLP."""
    return 2 * shape.hidden * _mask(compute, row) if shape.family == "gpt2" else 0.0


def _in_steps(shape: ModelShape, row: Row) -> bool:
    """Whether attention is computed in steps, by matrices of scores: on the host, where it has dropout."""
    return shape.family == "gpt2" and row.on_cpu


def _scores(shape: ModelShape, row: Row) -> int:
    """Bytes of whole score matrices in fp32: before and after dropout, and its mask."""
    return 3 * FLOAT32 * shape.heads * sum(length * length for length in row.segments) if _in_steps(shape, row) else 0


def _saves(compute: Compute, names: list[str]) -> bool:
    """Whether the common input of these linear layers is saved: one is trained, or has an adapter that takes it as it is."""
    if not names:
        return False
    kept = compute.full or (compute.stage == 3 and compute.method.type == "lora")
    return kept or (not compute.method.lora_dropout and any(compute.targets(name) for name in names))


def _last(tensor: Tensor) -> str:
    return tensor.name.removesuffix(".weight").rpartition(".")[2]


def _columns(tensor: Tensor) -> int:
    return tensor.shape[0] if tensor.module == "conv1d" else tensor.shape[-1]


def _is_output(tensor: Tensor) -> bool:
    return _last(tensor) in ("o_proj", "dense", "c_proj", "out_proj")


def _is_down(tensor: Tensor) -> bool:
    return _last(tensor) in ("down_proj", "fc2", "c_proj", "dense_4h_to_h")


def _of_heads(tensor: Tensor) -> bool:
    return tensor.kind == "norm" and any(part in tensor.name for part in (".q_norm", ".k_norm", ".q_layernorm", ".k_layernorm"))
