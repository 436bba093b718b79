"""What layers save for the backward pass, against what autograd really saved in small models of every family."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import BatchSection, DataSection, MethodSection, ModelSection, Spec, TrainingSet, TrainSection
from launcher.memory.activation_row import Row, largest_row
from launcher.memory.activations import activation_items, backward_extra, count_activations
from launcher.memory.shape import ModelShape, read_shape
from tests.unit.saved_tensors import FAMILIES, SUPERVISED, TOKENS, saved_bytes, small_model

TOLERANCE = 0.02
MIB, GIB = 2**20, 2**30
LLAMA3 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 64,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def resolved_of(
    *, method: MethodSection | None = None, precision: str = "bf16", checkpointing: str = "none", tokens: int = TOKENS, layout: str = "packed"
) -> ResolvedSpec:
    spec = Spec(
        model=ModelSection(model_name_or_path="made", dtype="bfloat16"),
        data=DataSection(train=TrainingSet(path="made"), max_length=1024),
        method=method or MethodSection(),
        batch=BatchSection(global_batch_size=8, micro_batch_tokens=tokens, layout=layout),
        train=TrainSection(max_steps=1, precision=precision, gradient_checkpointing=checkpointing),
    )
    return ResolvedSpec(spec=spec, hosts=(Host(name="localhost", slots=2),), sources={}, cache_dir="/nowhere")


def predicted(resolved: ResolvedSpec, shape: ModelShape, segments: tuple[int, ...]) -> int:
    return count_activations(resolved, shape, Row(segments=segments, supervised=SUPERVISED, on_cpu=True)).held


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_as_autograd_saves_it(family: str) -> None:
    """J07: with adapters hardly less is saved than without. Within 2 % in both precisions, with one sample a row and with two, with dropout and without."""
    dropped = MethodSection(type="lora", r=8, lora_dropout=0.1)
    # What PEFT says of Qwen's experts, which it leaves as they are.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="peft")
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        shape = read_shape(small_model(family, dtype).config.to_dict())
        wrong = {}
        cases = [(MethodSection(), (96, 160)), (MethodSection(type="lora", r=8), (TOKENS,))]
        # PEFT refuses dropout on parameters that are no layers: experts, and routers.
        cases += [] if family in ("mixtral", "qwen3_moe") else [(dropped, (96, 160))]
        # With dropout, and with magnitudes (DoRA), only where numbers have two bytes.
        cases += [] if shape.experts else [(MethodSection(type="lora", r=8, use_dora=True), (TOKENS,))]
        for method, segments in cases[:2] if precision == "fp32" else cases:
            found = saved_bytes(small_model(family, dtype), method, precision, segments)
            counted = predicted(resolved_of(method=method, precision=precision), shape, segments)
            if abs(counted - found) > TOLERANCE * found:
                wrong[method.type, method.lora_dropout, segments] = (counted, found)
        assert not wrong, f"{family}, {precision}: counted, found"


def test_adapters_do_not_shrink_activations() -> None:
    """J07: LoRA saves gradients and optimizer state; what is saved of the layers stays within a fifth of full fine-tuning's."""
    shape = read_shape(LLAMA3)
    full = count_activations(resolved_of(tokens=4096), shape).held
    adapted = count_activations(resolved_of(tokens=4096, method=MethodSection(type="lora")), shape).held
    assert 0.8 * full < adapted <= full


def test_known_sum_of_layer_inputs() -> None:
    """64 layers of 16 MiB: all kept 1024 MiB, every 8th kept 256 MiB with what is recomputed between two of them live."""
    shape = read_shape(LLAMA3)
    row = Row(segments=(2048,), supervised=1)
    found = count_activations(resolved_of(checkpointing="full"), shape, row)
    assert found.input_bytes == 16 * MIB and found.inputs == 64 * 16 * MIB == 1024 * MIB
    kept_every_8th = 64 // 8 * found.input_bytes + 8 * found.input_bytes
    assert kept_every_8th == 256 * MIB


def test_known_sum_of_logits() -> None:
    """16,384 positions of 128,256 words: 7.83 GiB in fp32, half in bf16, a quarter of that where a quarter is supervised."""
    shape = read_shape(LLAMA3)

    def logits(precision: str, supervised: int) -> int:
        row = Row(segments=(16384,), supervised=supervised)
        return next(item.bytes for item in activation_items(resolved_of(precision=precision), shape, row) if item.name == "logits")

    assert logits("fp32", 16384) / GIB == pytest.approx(7.83, abs=0.005)
    assert logits("bf16", 16384) / GIB == pytest.approx(3.91, abs=0.005)
    assert logits("bf16", 4096) / GIB == pytest.approx(0.98, abs=0.005)


def test_worst_moment_of_the_backward_pass() -> None:
    """Nothing recomputed: the head, its matrix trained. All recomputed: the last layer computed again, over logits that are gone by then."""
    shape = read_shape(LLAMA3)
    row = Row(segments=(8192,), supervised=64)
    assert backward_extra(count_activations(resolved_of(), shape, row)) == (2 * 4096 * (64 + 128256), "gradients of the head and of its input")
    # With adapters the head has no gradient.
    found = count_activations(resolved_of(checkpointing="full", method=MethodSection(type="lora")), shape, row)
    extra, moment = backward_extra(found)
    assert moment == "layer 63 computed again" and extra == found.live(63) + found.layer_gradients - found.logits - found.outside
    # The layers before are worth less: what they had kept is gone.
    every = count_activations(resolved_of(checkpointing="every:8"), shape, row)
    assert every.held_below(56) < every.held


def test_the_largest_row_fills_the_budget_with_the_longest_samples() -> None:
    resolved = resolved_of(tokens=4000)
    assert largest_row(resolved).segments == (1024, 1024, 1024, 928)
    assert largest_row(resolved, supervised_share=0.25).supervised == 1000
    padded = largest_row(resolved_of(tokens=4000, layout="padded"))
    assert padded.segments == (1024,) * 3 and padded.tokens == 3072
    short = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, data=dataclasses.replace(resolved.spec.data, max_length=8192)))
    assert largest_row(short).segments == (4000,)


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi", "gpt2"])
def test_under_autocast_each_matrix_saves_a_copy_of_its_input(family: str) -> None:
    """J07: a real forward pass on the host; fp32 weights are copied in 16 bits, and so is the input of each of query, key and value."""
    shape = read_shape(small_model(family, torch.float32).config.to_dict())
    for method, segments in ((MethodSection(), (TOKENS,)), (MethodSection(type="lora", r=8), (96, 160)), (MethodSection(type="lora", r=8), (TOKENS,))):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = saved_bytes(small_model(family, torch.float32), method, "bf16_autocast", segments)
        counted = predicted(resolved_of(method=method, precision="bf16_autocast"), shape, segments)
        assert counted == pytest.approx(found, rel=TOLERANCE), method.type


def test_layers_that_see_a_window() -> None:
    """By config.json, and where it is silent by what transformers' classes make of it."""
    assert read_shape(LLAMA3).windowed == ()
    mistral = {**LLAMA3, "model_type": "mistral"}
    assert (read_shape(mistral).window, len(read_shape(mistral).windowed)) == (4096, 64)
    assert read_shape({**mistral, "sliding_window": None}).windowed == ()
    qwen = {**LLAMA3, "model_type": "qwen2", "sliding_window": 512, "max_window_layers": 60}
    assert read_shape(qwen).windowed == ()
    assert read_shape({**qwen, "use_sliding_window": True}).windowed == (60, 61, 62, 63)
    gemma = {**LLAMA3, "model_type": "gemma3_text", "num_hidden_layers": 7, "head_dim": 128}
    assert read_shape(gemma).windowed == (0, 1, 2, 3, 4, 6)
    assert read_shape({**gemma, "layer_types": ["full_attention", "sliding_attention"]}).windowed == (1,)
    assert read_shape({**LLAMA3, "sliding_window": 512}).windowed == ()


def test_bf16_autocast_copies_the_weights() -> None:
    shape = read_shape(LLAMA3)
    names = {item.name for item in activation_items(resolved_of(precision="bf16_autocast"), shape)}
    assert "16-bit copies of weights" in names
    assert not [item for item in activation_items(resolved_of(), shape) if item.name == "16-bit copies of weights" or item.bytes <= 0]
