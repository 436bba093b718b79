"""Activations and logits: what a forward pass leaves in memory for the backward pass, and the highest point of the backward pass itself."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.spec.recomputation import recomputed_layers
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.activation_compute import FLOAT32, Compute
from launcher.memory.activation_dora import dora_moment
from launcher.memory.activation_gradients import layer_gradients
from launcher.memory.activation_layers import LayerBytes, layer_bytes, mask_numbers, norm_bytes
from launcher.memory.activation_row import Row, largest_row
from launcher.memory.items import Item
from launcher.memory.shape import ModelShape

SOURCE = "launcher/memory/activation_layers.py, held to saved tensors by tests/unit/test_activations.py"
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "bf16_autocast": 4}
"""train.precision -> bytes of a number in the residual stream."""
ROTATED = {"phi": 0.5, "gpt_neox": 0.25}
"""Share of a head that is rotated by position, where it is not all of it."""
AT_WORST = "backward pass at its worst"
"""Name of the item."""
BLOCK_BYTES = {True: 4 * 2**20, False: 256 * 2**20}
"""On the host or not -> fp32 bytes of a block of rows of the loss (ftcore/cross_entropy.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """The bytes of one micro-step on one rank."""

    layers: tuple[LayerBytes, ...]
    """Of every decoder layer, if it were kept."""
    recomputed: tuple[int, ...]
    input_bytes: int
    """Of one layer's input, which a layer that is recomputed holds."""
    outside: int
    """Held outside of the layers: rotary tables, the last norm, the head's input."""
    head_copy: int
    """The head's matrix in 16 bits under bf16_autocast, held until the backward pass has used it."""
    cached_copies: int
    """Such copies of recomputed layers' trained matrices, which autocast keeps to the end of the forward pass."""
    logits: int
    loss_block: int
    """Beside the logits while the loss is computed."""
    picked_back: int
    """Beside the logits of a padded row, whose gradient passes back through the choice of its supervised positions; a packed row's logits are all chosen."""
    head_gradients: int
    """Gradients of the head's input and, where it is trained, of its matrix, beside the logits."""
    shared_gradient: int
    """Of a trained matrix that is head and embedding: autograd holds what the head gives until the embedding's share is there."""
    layer_gradients: int
    """Gradients of a layer's own activations, or of them and its largest matrix, while it is passed."""
    dora: int
    """While the norm of a matrix with an adapter is taken, in the forward pass of DoRA."""

    @property
    def kept(self) -> int:
        """Bytes of the layers that are not recomputed."""
        return sum(layer.total for number, layer in enumerate(self.layers) if number not in self.recomputed)

    @property
    def weight_copies(self) -> int:
        """Bytes of 16-bit copies of fp32 weights under bf16_autocast, held until the backward pass has used them."""
        return self.head_copy + sum(layer.copies for number, layer in enumerate(self.layers) if number not in self.recomputed)

    @property
    def inputs(self) -> int:
        """Bytes of the inputs of the layers that are."""
        return len(self.recomputed) * self.input_bytes

    @property
    def held(self) -> int:
        """Bytes after the forward pass, without the logits."""
        return self.kept + self.inputs + self.outside + self.weight_copies

    def held_below(self, layer: int) -> int:
        """Bytes still held when the backward pass reaches `layer`: everything of this layer and those before it."""
        kept = sum(self.layers[number].total + self.layers[number].copies for number in range(layer + 1) if number not in self.recomputed)
        return kept + sum(number <= layer for number in self.recomputed) * self.input_bytes

    def live(self, layer: int) -> int:
        """Bytes that recomputing `layer` brings back."""
        return self.layers[layer].total + self.layers[layer].copies - self.layers[layer].shared_input


def count_activations(resolved: ResolvedSpec, shape: ModelShape, row: Row | None = None) -> Activations:
    """What `row` takes; None: the largest row that the spec allows, all of it supervised."""
    spec, row = resolved.spec, row or largest_row(resolved)
    compute = Compute(b=BYTES[spec.train.precision], autocast=spec.train.precision == "bf16_autocast", method=spec.method, stage=spec.zero.stage)
    recomputed = tuple(recomputed_layers(spec.train.gradient_checkpointing, shape.layers))
    product = 2 if compute.autocast else compute.b
    logits = row.supervised * shape.vocab * product
    gradient = product * shape.hidden * row.supervised + (compute.b * shape.hidden * shape.vocab if compute.full else 0)
    block = min(BLOCK_BYTES[row.on_cpu], row.supervised * shape.vocab * FLOAT32)
    # An fp32 copy, its logarithms, and those of the block before.
    blocks = (1 if product == FLOAT32 else 2) + (row.supervised * shape.vocab * FLOAT32 > block)
    layers = tuple(layer_bytes(shape, row, compute, layer) for layer in range(shape.layers))
    return Activations(
        layers=layers,
        recomputed=recomputed,
        input_bytes=compute.b * shape.hidden * row.tokens,
        outside=_outside(shape, compute, row, holds_mask=bool(recomputed)),
        head_copy=2 * shape.vocab * shape.hidden if compute.autocast else 0,
        cached_copies=sum(layers[number].copies for number in recomputed) if compute.full else 0,
        logits=logits,
        loss_block=blocks * block,
        picked_back=logits if row.padded else 0,
        head_gradients=gradient,
        shared_gradient=compute.b * shape.hidden * shape.vocab if compute.full and shape.tied else 0,
        layer_gradients=layer_gradients(shape, compute, row.tokens),
        dora=dora_moment(shape, compute, row.tokens),
    )


def activation_items(resolved: ResolvedSpec, shape: ModelShape, row: Row | None = None) -> list[Item]:
    """The items of a forward pass and of the worst moment of the backward pass after it; those of no bytes are left out."""
    row = row or largest_row(resolved)
    found = count_activations(resolved, shape, row)
    rule, recomputed = resolved.spec.train.gradient_checkpointing, len(found.recomputed)
    extra, moment = backward_extra(found)
    kept = shape.layers - recomputed
    each = f"{row.tokens:,} tokens, {resolved.spec.train.precision}"
    lines = [
        ("activations of layers", "activations", found.kept, f"{kept} of {shape.layers} layers kept × {_largest(found):,} bytes ({each})"),
        ("inputs of recomputed layers", "activations", found.inputs, f"{recomputed} layers ({rule}) × {found.input_bytes:,} bytes"),
        ("activations outside of layers", "activations", found.outside, f"rotary tables, last norm, input of the head ({each})"),
        ("16-bit copies of weights", "activations", found.weight_copies, "2 bytes × weights of linear layers, cast for bf16_autocast"),
        ("logits", "logits", found.logits, f"{row.supervised:,} supervised positions × {shape.vocab:,} words; their gradient takes the same memory"),
        (AT_WORST, "activations", extra, moment),
    ]
    return [Item(name=name, group=group, bytes=size, formula=formula, source=SOURCE, phases=("backward",)) for name, group, size, formula in lines if size]


def backward_extra(found: Activations) -> tuple[int, str]:
    """Bytes by which the worst moment from the loss on to the last layer's gradient exceeds what the forward pass left, and which moment that is."""
    start = found.held + found.logits
    moments = [
        (found.loss_block + found.cached_copies, "the loss, a block of positions at a time"),
        (found.picked_back, "the logits' gradient, on its way back to the padded rows"),
        (found.head_gradients, "gradients of the head and of its input"),
    ]
    if found.shared_gradient:
        # Autograd adds the two up in a third tensor.
        moments.append((3 * found.shared_gradient - start, "gradients of the matrix that is head and embedding"))
    for layer in {*found.recomputed, len(found.layers) - 1}:
        is_again = layer in found.recomputed
        now = found.held_below(layer) + (found.live(layer) if is_again else 0)
        what = f"layer {layer} computed again" if is_again else f"layer {layer} passed backwards"
        moments.append((now + found.shared_gradient + found.layer_gradients - start, what))
        if found.dora:
            moments.append((now + found.dora - start, f"norms of layer {layer}'s matrices with their adapters"))
    return max(moments, key=lambda each: each[0])


def _largest(found: Activations) -> int:
    return max(layer.total for layer in found.layers)


def _outside(shape: ModelShape, compute: Compute, row: Row, *, holds_mask: bool) -> int:
    tables = 0.0 if shape.family == "gpt2" else 2 * shape.head_dim * ROTATED.get(shape.family, 1.0) * compute.b
    if shape.family.startswith("gemma3") and shape.layers >= 6:
        # One pair for layers that see all, each sixth, and one for layers that see a window.
        tables *= 2
    dropout = shape.hidden * (compute.b if row.on_cpu else 1) if shape.family == "gpt2" and compute.full else 0
    head = (2 if compute.autocast else compute.b) * shape.hidden * row.supervised if compute.full or compute.stage == 3 else 0
    # A layer that is computed again is given the mask of true and false as it was.
    mask = mask_numbers(shape, row, 0) if row.padded and holds_mask else 0
    return mask + round(row.tokens * (tables + norm_bytes(shape, compute, shape.hidden) + dropout) + head)
