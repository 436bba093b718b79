"""What the backward pass needs of one decoder layer: the tensors that autograd saves in transformers' own modules with the core's attention.

Found by listing what each family's layers save (torch.autograd.graph.saved_tensors_hooks) and held to it by tests/unit/test_activations.py.
Letters: T tokens, h hidden size, q = heads · head_dim, kv = kv_heads · head_dim, f width of the MLP, b bytes of a number in the compute type.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.memory.activation_compute import FLOAT32, Compute, columns_in, is_down, is_output, last_name, of_heads, reads_layer_input, rows_out, saves
from launcher.memory.activation_dora import computes_base_again, dora_matrices, scale_bytes, unpacked_bytes
from launcher.memory.activation_row import Row
from launcher.memory.shape import ModelShape, Tensor

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


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Of one decoder layer."""

    terms: Terms
    """What -> bytes, saved for the backward pass."""
    shared_input: int
    """How much of it is the layer's input itself, which a layer that is recomputed holds anyway."""
    copies: int = 0
    """Of its fp32 weights in 16 bits, under bf16_autocast."""

    @property
    def total(self) -> int:
        return round(sum(self.terms.values()))


def layer_bytes(shape: ModelShape, row: Row, compute: Compute, layer: int) -> LayerBytes:
    """Everything that decoder layer number `layer` saves when it is not recomputed."""
    own = [tensor for tensor in shape.tensors if tensor.layers is not None and layer in tensor.layers]
    # The first layer's input needs no gradient then; Olmo2's norms stand behind attention and MLP instead.
    first_frozen = layer == 0 and not compute.full and not shape.family.startswith(("olmo2", "olmo3"))
    # Up to the first adapter of all nothing needs a gradient.
    begins_later = first_frozen and not shape.parallel and not any(compute.targets(last_name(tensor)) for tensor in own if tensor.kind == "attention")
    a_token: Terms = {
        "norms": 0.0 if begins_later else _norms(shape, own, compute, first_frozen=first_frozen),
        "attention": 0.0 if begins_later else _attention(shape, own, compute, row),
        "linear inputs": _inputs(shape, own, compute, row),
        "adapters": _adapters(shape, own, compute, row, is_first=layer == 0),
        "mlp": _mlp(shape, own, compute, begins_here=begins_later),
        "experts": _experts(shape, own, compute),
        "dropout": _gpt2_dropout(shape, compute, row),
        "magnitudes": sum(2 * compute.product * rows_out(tensor) for tensor in dora_matrices(own, compute)),
    }
    once = {
        "scores": _scores(shape, row),
        "masks": 0 if begins_later else compute.product * mask_numbers(shape, row, layer),
        "experts' weights": _expert_copies(shape, own, compute),
        "unpacked weights": unpacked_bytes(shape, own, compute, first_frozen=first_frozen),
        "scales": scale_bytes(shape, own, compute, first_frozen=first_frozen),
    }
    terms = {name: value * row.tokens for name, value in a_token.items() if value} | {name: value for name, value in once.items() if value}
    holds_input = (compute.b == FLOAT32 or shape.norm != "rms") and not first_frozen
    shared_input = round(compute.b * shape.hidden * row.tokens) if holds_input else 0
    return LayerBytes(terms, shared_input, _copies(shape, own, compute, first_frozen=first_frozen))


def mask_numbers(shape: ModelShape, row: Row, layer: int) -> int:
    """Numbers of the masks that attention is given: over padding, or over what lies beyond the layer's window. Without either it needs none."""
    if row.padded:
        return len(row.segments) * max(row.segments) ** 2
    return sum(length * length for length in row.segments if length > shape.window) if layer in shape.windowed else 0


def _copies(shape: ModelShape, own: list[Tensor], compute: Compute, *, first_frozen: bool) -> int:
    """16-bit copies of fp32 matrices, adapters among them. None of one that only a gradient of the first layer's input would need."""
    if not compute.autocast:
        return 0
    numbers = 0
    for tensor in own:
        if tensor.kind not in ("attention", "mlp", "router", "expert"):
            continue
        needed = not (first_frozen and reads_layer_input(shape, tensor))
        numbers += tensor.numel * (2 if computes_base_again(tensor, compute) else 1) if needed else 0
        if tensor.kind in ("attention", "mlp") and compute.targets(last_name(tensor)):
            numbers += compute.method.r * (rows_out(tensor) + (columns_in(tensor) if needed else 0))
    return 2 * numbers


def norm_bytes(shape: ModelShape, compute: Compute, width: int, *, given: int | None = None) -> float:
    """A token's bytes of one norm over `width` numbers: its input (of an RMS norm in fp32), what it was normed to where a weight is trained, statistics.

    `given`: bytes of a number in its input; None: those of the compute type.
    """
    if shape.norm != "rms":
        return compute.b * width + 2 * (min(FLOAT32, compute.b))
    normed = FLOAT32 if shape.family in WEIGHTED_IN_FP32 else given or compute.b
    return FLOAT32 * width + (normed * width if compute.full else 0) + FLOAT32


def _norms(shape: ModelShape, own: list[Tensor], compute: Compute, *, first_frozen: bool) -> float:
    across = [tensor for tensor in own if tensor.kind == "norm" and tensor.name.endswith(".weight") and not of_heads(tensor)]
    count = 2 if shape.norm == "bare" else len(across)
    if shape.parallel and shape.norm == "layer":
        # Both norms of such a layer read the same input.
        count = 1
    total = (count - first_frozen) * norm_bytes(shape, compute, shape.hidden)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for tensor in own:
        if of_heads(tensor) and tensor.name.endswith(".weight"):
            projection = "q_proj" if ".q_" in tensor.name else "k_proj"
            if first_frozen and not compute.targets(projection):
                continue
            width = queries if projection == "q_proj" else keys
            heads = 1 if tensor.numel == width else width // tensor.numel
            total += norm_bytes(shape, compute, tensor.numel, given=compute.product) * heads
    return total


def _attention(shape: ModelShape, own: list[Tensor], compute: Compute, row: Row) -> float:
    """Query, key, value and output of scaled_dot_product_attention, and the logarithm of each score's sum."""
    if _in_steps(shape, row):
        # Query, key and value in fp32, and scaled queries and keys beside the ones that were fp32 before; the output stands in `_inputs`.
        return FLOAT32 * shape.hidden * (5 if compute.product == FLOAT32 else 3)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    b = compute.product
    fused = any(last_name(tensor) in ("qkv_proj", "query_key_value", "c_attn") for tensor in own)
    if row.padded and 1 < shape.kv_heads < shape.heads:
        # With a mask transformers repeats keys and values for each query's head; a single one is repeated without a copy.
        return b * 4 * queries + FLOAT32 * shape.heads
    turned = 0 if shape.family == "gpt2" else queries + keys
    value = queries + 2 * keys if fused else keys
    return b * (turned + value + queries) + FLOAT32 * shape.heads


def _inputs(shape: ModelShape, own: list[Tensor], compute: Compute, row: Row) -> float:
    """Inputs of the linear layers: into attention, out of it where that is a copy, and into the MLP. Its second half stands in `_mlp`."""
    b = compute.product
    into = [last_name(tensor) for tensor in own if tensor.kind == "attention" and columns_in(tensor) == shape.hidden and not is_output(tensor)]
    out = [last_name(tensor) for tensor in own if tensor.kind == "attention" and is_output(tensor)]
    into_mlp = [last_name(tensor) for tensor in own if tensor.kind in ("mlp", "router") and not is_down(tensor)]
    total = b * shape.hidden * saves(compute, into)
    copied = (len(row.segments) > 1 and not row.padded) or shape.family in CUT_ROTATION or _in_steps(shape, row)
    # PEFT casts what an adapter takes to the adapter's fp32, and the product casts it back.
    copied = copied or (compute.autocast and not compute.full)
    if copied:
        total += b * shape.heads * shape.head_dim * min(saves(compute, out), 1)
    norms = [tensor for tensor in own if tensor.kind == "norm" and tensor.name.endswith(".weight") and not of_heads(tensor)]
    one_for_both = shape.parallel and len(norms) == 1
    if one_for_both:
        return total + (b * shape.hidden * saves(compute, into_mlp) if compute.autocast or not saves(compute, into) else 0)
    return total + b * shape.hidden * saves(compute, into_mlp)


def _mlp(shape: ModelShape, own: list[Tensor], compute: Compute, *, begins_here: bool) -> float:
    """Of a dense MLP, and of an expert that all tokens pass. `begins_here`: its input needs no gradient."""
    b = compute.product
    total = 0.0
    for tensor in own:
        if tensor.kind == "mlp" and is_down(tensor):
            width, last = columns_in(tensor), min(saves(compute, [last_name(tensor)]), 1)
            steps = 3 if shape.gated else 4 if shape.activation in PYTHON_GELUS else 1
            if begins_here:
                adapted = {last_name(other) for other in own if other.kind == "mlp" and not is_down(other) and compute.targets(last_name(other))}
                # An activated gate needs what goes into it and the half it is multiplied into; that half the activated gate.
                steps = {"gate_proj": 2, "up_proj": 1}[adapted.pop()] if shape.gated and adapted in ({"gate_proj"}, {"up_proj"}) else steps if adapted else 0
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
    b = compute.product
    sent, adapted = shape.experts_per_token, adapts_experts(shape, compute)
    whole = compute.full or adapted
    rows = sent * (b * ((2 if whole else 1) * shape.hidden + (4 if whole else 3) * shape.expert_intermediate) + 3 * INDEX + b)
    return rows + FLOAT32 * shape.experts + sent * INDEX


def adapts_experts(shape: ModelShape, compute: Compute) -> bool:
    """Whether PEFT adapts the experts themselves."""
    return not compute.full and shape.family in ADAPTED_EXPERTS


def _expert_copies(shape: ModelShape, own: list[Tensor], compute: Compute) -> int:
    """Adapted experts are held a second time, as base and adapter together."""
    return compute.b * sum(tensor.numel for tensor in own if tensor.kind == "expert") if adapts_experts(shape, compute) else 0


def _adapters(shape: ModelShape, own: list[Tensor], compute: Compute, row: Row, *, is_first: bool) -> float:
    """Each adapter's low-rank middle; with dropout its own input and mask too. No mask in front of the first layer, whose input needs no gradient."""
    if compute.full:
        return 0.0
    b, method = compute.product, compute.method
    total = 0.0
    for tensor in own:
        if tensor.kind in ("attention", "mlp") and compute.targets(last_name(tensor)):
            total += b * method.r
            if method.lora_dropout:
                reads_input = reads_layer_input(shape, tensor)
                total += (b + (0 if is_first and reads_input else _mask(compute, row))) * columns_in(tensor)
    return total


def _mask(compute: Compute, row: Row) -> int:
    """Bytes of a number in a mask of dropout."""
    return compute.b if row.on_cpu else 1


def _gpt2_dropout(shape: ModelShape, compute: Compute, row: Row) -> float:
    """Masks of the two dropouts behind attention and MLP."""
    return 2 * shape.hidden * (compute.product if row.on_cpu else 1) if shape.family == "gpt2" else 0.0


def _in_steps(shape: ModelShape, row: Row) -> bool:
    """Whether attention is computed in steps, by matrices of scores: on the host, where it has dropout."""
    return shape.family == "gpt2" and row.on_cpu


def _scores(shape: ModelShape, row: Row) -> int:
    """Bytes of whole score matrices in fp32: before and after dropout, and its mask."""
    return 3 * FLOAT32 * shape.heads * sum(length * length for length in row.segments) if _in_steps(shape, row) else 0
