"""What a rank holds of weights, gradients and optimizer, by stage: known sums, and DeepSpeed's rules for padding and sharding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftcore.spec.recomputation import recomputed_layers
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import MethodSection, OptimizerSection, ParameterGroup, ZeroSection
from launcher.memory.activation_row import largest_row
from launcher.memory.items import Item
from launcher.memory.layout import model_layout
from launcher.memory.ledger import build_ledger
from launcher.memory.shape import ModelShape, Tensor
from launcher.memory.states import state_items
from launcher.memory.step_groups import step_groups
from launcher.memory.zero_settings import zero_settings
from tests.unit.memory_specs import llama_8b, one_matrix, resolved_of

TRAINED = 20_000_000


def states(resolved: ResolvedSpec, shape: ModelShape) -> dict[str, int]:
    """Name -> bytes of a rank's states while it trains."""
    found = state_items(model_layout(resolved.spec, shape), zero_settings(resolved), resolved.spec)
    items = [item for item in found if item.phases != ("initialise",)]
    assert len({item.name for item in items}) == len(items)
    return {item.name: item.bytes for item in items}


def zero(stage: int, **more: object) -> ZeroSection:
    return replace(ZeroSection(stage=stage, coalesce_grad_reduction=False), **more)  # type: ignore[arg-type]


def seven_billion() -> ModelShape:
    """7 x 10^9 parameters, of which 2 x 10^7 are trained under `*up_proj*`; in matrices, as a model's are."""
    frozen = Tensor(name="model.layers.{}.mlp.down_proj.weight", shape=(1_745_000, 4000), kind="mlp", module="linear", layers=(0,))
    return one_matrix(5000, 4000, frozen)


def trained_of_seven_billion(stage: int) -> ResolvedSpec:
    frozen = OptimizerSection(parameter_groups=(ParameterGroup(pattern="*down_proj*", freeze=True),))
    return resolved_of(zero=zero(stage), optimizer=frozen)


def test_frozen_weights_are_not_counted_as_trained() -> None:  # J01
    found = states(trained_of_seven_billion(2), seven_billion())
    assert seven_billion().parameters == 7_000_000_000
    # 14 GB of weights and 18 bytes a trained parameter, of which two are 16-bit gradients: DeepSpeed 0.19.8 holds these in its reduce bucket.
    assert sum(found.values()) + 2 * TRAINED / 8 == pytest.approx(14.05e9, abs=0.01e9)
    assert found["frozen weights"] + found["trained weights"] == 14_000_000_000
    own = found["gradients, own part"] + found["fp32 master weights"] + found["optimizer state"]
    assert own == 16 * TRAINED / 8


def test_stage_3_shards_frozen_weights_too() -> None:  # J01
    found = states(trained_of_seven_billion(3), seven_billion())
    assert found["frozen weights"] + found["trained weights"] == 1_750_000_000
    assert sum(found.values()) + 2 * TRAINED / 8 == pytest.approx(1.80e9, abs=0.01e9)


def test_quantised_base_and_adapter() -> None:
    """10^9 frozen parameters at 0.6 bytes and 10^7 trained ones at 16 bytes: 7.6e8 bytes."""
    frozen, trained = 1_000_000_000, 10_000_000
    shape = one_matrix(31_250, 32_000)
    resolved = resolved_of(method=MethodSection(type="qlora", r=158, double_quant=False), zero=zero(1), precision="bf16", ranks=1)
    found = states(resolved, shape)
    assert shape.parameters == frozen
    layout = model_layout(resolved.spec, shape)
    assert layout.trained == 158 * 63_250
    a_frozen = (found["frozen weights"] + found["scales of quantised weights"]) / frozen
    assert a_frozen == pytest.approx(0.5625, abs=1e-3)  # half a byte, and 4 bytes a block of 64
    a_trained = (sum(found.values()) - found["frozen weights"] - found["scales of quantised weights"]) / layout.trained
    assert a_trained == pytest.approx(2 + 2 + 4 + 4 + 8, abs=1e-3)
    # The sum people quote takes 0.6 bytes, and no fp32 accumulation or 16-bit weights beside master and moments.
    assert 0.6 * frozen + 16 * trained == pytest.approx(7.6e8)


@pytest.mark.parametrize(
    ("stage", "precision", "coalesced", "wanted"),
    [
        (0, "fp32", False, {"trained weights": 4, "gradients": 4, "optimizer state": 8}),
        (
            1,
            "bf16",
            False,
            {"trained weights": 2, "gradients of a micro-step": 2, "gradients added up in fp32": 4, "fp32 master weights": 4 / 8, "optimizer state": 1},
        ),
        (1, "fp16", False, {"trained weights": 2, "gradients added up": 4, "gradients, own part": 4 / 8, "fp32 master weights": 4 / 8, "optimizer state": 1}),
        (1, "fp32", False, {"trained weights": 4, "gradients added up": 4, "fp32 master weights": 4 / 8, "optimizer state": 1}),
        (2, "bf16", False, {"trained weights": 2, "gradients, own part": 4 / 8, "fp32 master weights": 4 / 8, "optimizer state": 1}),
        (
            2,
            "bf16",
            True,
            {"trained weights": 2, "gradients until they are reduced": 2, "gradients, own part": 4 / 8, "fp32 master weights": 4 / 8, "optimizer state": 1},
        ),
        (3, "bf16", False, {"trained weights": 2 / 8, "gradients, own part": 4 / 8, "fp32 master weights": 4 / 8, "optimizer state": 1}),
        (
            3,
            "fp32",
            True,
            {"trained weights": 4 / 8, "gradients until they are reduced": 4, "gradients, own part": 4 / 8, "fp32 master weights": 4 / 8, "optimizer state": 1},
        ),
    ],
)
def test_bytes_a_trained_parameter(stage: int, precision: str, coalesced: bool, wanted: dict[str, float]) -> None:
    numel = 4096 * 4096
    resolved = resolved_of(zero=zero(stage, coalesce_grad_reduction=coalesced), precision=precision)
    assert {name: size / numel for name, size in states(resolved, one_matrix(4096, 4096)).items()} == wanted


def test_flat_tensors_are_padded_and_shards_rounded_up() -> None:
    shape = one_matrix(1000, 101)  # 101,000 numbers on 8 ranks: 12,625 each, 12,626 where pairs are kept together
    assert states(resolved_of(zero=zero(2)), shape)["fp32 master weights"] == 4 * 12_626
    assert states(resolved_of(zero=zero(3)), shape)["fp32 master weights"] == 4 * 12_625
    assert states(resolved_of(zero=zero(3), ranks=3), shape)["fp32 master weights"] == 4 * 33_667


def test_small_parameters_stay_whole_in_stage_3() -> None:
    shape = llama_8b()
    found = states(resolved_of(zero=zero(3)), shape)
    assert found["small weights kept whole"] == 2 * 65 * 4096
    assert "small weights kept whole" not in states(resolved_of(zero=zero(3), ranks=1), shape)


def test_a_second_copy_and_frozen_weights_in_8_bits() -> None:
    lora = MethodSection(type="lora")
    plain = states(resolved_of(method=lora, zero=zero(3)), llama_8b())
    hpz = states(resolved_of(method=lora, zero=zero(3, overrides={"zero_optimization": {"zero_hpz_partition_size": 4}})), llama_8b())
    assert hpz["second copy of the weights"] == pytest.approx(2 * 8.07e9 / 4, rel=1e-2)
    bits = states(resolved_of(method=lora, zero=zero(3, overrides={"zero_optimization": {"zero_quantized_nontrainable_weights": True}})), llama_8b())
    assert bits["frozen weights"] == pytest.approx(plain["frozen weights"] / 2, rel=3e-3)


@pytest.mark.parametrize(
    ("optimizer", "of_matrix", "of_norm"),
    [
        (OptimizerSection(), 8.0, 8.0),
        (OptimizerSection(type="sgd"), 0.0, 0.0),
        (OptimizerSection(type="sgd", momentum=0.9), 4.0, 4.0),
        (OptimizerSection(type="adamw_8bit"), 2.03125, 8.0),
        (OptimizerSection(type="muon"), 4.0, 8.0),
        (OptimizerSection(type="adafactor"), 4 * (1 / 64 + 1 / 128), 4.0),
    ],
    ids=lambda value: value.type if isinstance(value, OptimizerSection) else "",
)
def test_state_of_each_optimizer(optimizer: OptimizerSection, of_matrix: float, of_norm: float) -> None:
    norm = Tensor(name="model.norm.weight", shape=(64,), kind="norm", module="norm")
    resolved = resolved_of(zero=zero(0), optimizer=optimizer, precision="fp32", ranks=1)
    found = states(resolved, one_matrix(128, 64, norm))
    assert found.get("optimizer state", 0) == pytest.approx(of_matrix * 128 * 64 + of_norm * 64, abs=1)


def test_embeddings_and_heads_are_stepped_by_adam_beside_muon() -> None:
    table = Tensor(name="model.embed_tokens.weight", shape=(100, 64), kind="embedding", module="embedding")
    resolved = resolved_of(zero=zero(1), optimizer=OptimizerSection(type="muon"), ranks=1)
    groups = step_groups(model_layout(resolved.spec, one_matrix(128, 64, table)), resolved.spec)
    assert sorted((group.numel, group.state_bytes) for group in groups) == [(6400, 8.0), (8192, 4.0)]


def test_parameters_are_grouped_as_the_core_groups_them() -> None:
    norm = Tensor(name="model.norm.weight", shape=(64,), kind="norm", module="norm")
    shape = one_matrix(128, 64, norm)

    def count(optimizer: OptimizerSection) -> int:
        spec = resolved_of(optimizer=optimizer).spec
        return len(step_groups(model_layout(spec, shape), spec))

    assert count(OptimizerSection()) == 1
    assert count(OptimizerSection(weight_decay=0.1)) == 2
    assert count(OptimizerSection(parameter_groups=(ParameterGroup(pattern="*norm*", learning_rate=1e-3),))) == 2


def test_offload_takes_the_optimizer_from_the_device() -> None:  # J05
    shape, on = llama_8b(), {"offload_optimizer": "cpu"}
    for stage in (1, 2, 3):
        here = build_ledger(resolved_of(zero=zero(stage)), shape)
        there = build_ledger(resolved_of(zero=zero(stage, **on)), shape)
        assert there.group_bytes("optimizer") == 0 < here.group_bytes("optimizer")
        host = {item.name: item for item in there.items if item.place == "host"}
        own = shape.parameters // 8
        assert host["fp32 master weights"].bytes == pytest.approx(4 * own, rel=1e-6)
        assert host["optimizer state"].bytes == pytest.approx(8 * own, rel=1e-6)
        # Pinned: in a power of two.
        assert host["gradients of the optimizer"].bytes == 2**32
        assert there.host_bytes["w0"] > 8 * 12 * own > here.host_bytes["w0"] or stage < 3


def largest(items: tuple[Item, ...], place: str) -> Item:
    return max((item for item in items if item.place == place), key=lambda item: item.bytes)


def test_each_rank_reads_the_whole_model_below_stage_3() -> None:  # J03
    shape = llama_8b()
    for hosts in (1, 2):
        whole = build_ledger(resolved_of(zero=zero(2), hosts=hosts), shape)
        assert min(whole.host_bytes.values()) > 8 / hosts * 2 * shape.parameters
    sharded = build_ledger(resolved_of(zero=zero(3), hosts=2), shape)
    assert sharded.host_bytes["w0"] - sharded.host_bytes["w1"] == 2 * shape.parameters


def test_a_quantised_base_is_loaded_whole_by_each_rank_in_stage_3() -> None:  # G09
    ledger = build_ledger(resolved_of(method=MethodSection(type="qlora"), zero=zero(3)), llama_8b())
    alone = build_ledger(resolved_of(method=MethodSection(type="qlora"), zero=zero(2)), llama_8b())
    assert ledger.phase_bytes["load"] == pytest.approx(alone.phase_bytes["load"], rel=0.02)
    base = [item for item in ledger.items if item.group == "weights" and not item.phases]
    assert sum(item.bytes for item in base) < 0.2 * ledger.phase_bytes["load"]


def test_weights_on_the_host_and_on_nvme() -> None:
    shape = llama_8b()
    cpu = build_ledger(resolved_of(zero=zero(3, offload_param="cpu", offload_optimizer="cpu")), shape)
    nvme = build_ledger(resolved_of(zero=zero(3, offload_param="nvme", offload_optimizer="cpu", nvme_path="/nvme")), shape)
    assert not any(item.name in ("frozen weights", "trained weights") for item in (*cpu.items, *nvme.items) if item.place == "device")
    assert nvme.nvme_bytes == pytest.approx(2 * shape.parameters, rel=1e-3)
    assert largest(nvme.items, "nvme").bytes * 8 == nvme.nvme_bytes
    assert cpu.nvme_bytes == 0
    buffers = {item.name: item.bytes for item in nvme.items if item.place == "host"}
    assert buffers["swap buffers"] == 2**30  # 5 of 10^8 numbers, pinned: in a power of two


def test_logits_at_supervised_positions_only() -> None:
    """16,384 positions of 128,256 words in fp32 are 7.83 GiB; a quarter of them supervised takes a quarter."""
    resolved = resolved_of(precision="fp32", zero=zero(3), micro_batch_tokens=16_384)

    def logits(share: float) -> int:
        ledger = build_ledger(resolved, llama_8b(), largest_row(resolved, supervised_share=share))
        return ledger.group_bytes("logits")

    assert logits(1.0) == 16_384 * 128_256 * 4
    assert logits(1.0) / 2**30 == pytest.approx(7.83, abs=0.005)
    assert logits(0.25) == logits(1.0) / 4


def test_layers_kept_and_recomputed() -> None:
    """64 layers of 16 MiB, of which 2 MiB are the input: all kept 1,024 MiB; every 8th kept, and one at a time computed again, 256 MiB."""
    mib, layer, whole_input = 2**20, 16 * 2**20, 2 * 2**20

    def highest(rule: str) -> int:
        recomputed = recomputed_layers(rule, 64)
        return (64 - len(recomputed)) * layer + len(recomputed) * whole_input + bool(recomputed) * layer

    assert highest("none") == 1024 * mib
    assert highest("sqrt") == 256 * mib
