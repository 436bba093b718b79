"""Every inner attribute of DeepSpeed that is touched, checked on a real engine of every stage, precision and place of the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import Spec
from tests.ranks.engine_facts import EngineFacts, look_at_engines, refuses_unknown_state
from tests.ranks.jobs import make_run
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]


def _still(spec: Spec, **zero: object) -> Spec:
    """Without weight decay, so that an update with moments of zero moves nothing."""
    return with_section(with_section(spec, "optimizer", weight_decay=0.0), "zero", **zero)


def _fp16(stage: int) -> Spec:
    return with_section(with_section(_still(make_spec(stage)), "train", precision="fp16"), "model", dtype="float16")


def _saved_norms() -> Spec:
    return with_section(_still(make_spec(3, method="lora")), "method", modules_to_save=("norm",), lora_dropout=0.0)


SPECS = {
    **{f"fp32_{stage}": _still(make_spec(stage)) for stage in range(4)},
    **{f"bf16_{stage}": _still(make_spec(stage, precision="bf16")) for stage in (1, 2, 3)},
    **{f"fp16_{stage}": _fp16(stage) for stage in (1, 2, 3)},
    **{f"offload_{stage}": _still(make_spec(stage, precision="bf16"), offload_optimizer="cpu") for stage in (1, 2, 3)},
    "lora_2": _still(make_spec(2, method="lora")),
    "lora_3": _saved_norms(),
}


@pytest.fixture(scope="module")
def facts(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, EngineFacts]:
    folder = tmp_path_factory.mktemp("engines")
    found: dict[str, EngineFacts] = pool.run(look_at_engines, 2, str(folder), SPECS, *small, logs=folder / "logs")[0]
    return found


@pytest.mark.parametrize("kind", SPECS)
def test_slices_cover_every_trained_parameter_once(kind: str, facts: dict[str, EngineFacts]) -> None:
    """_hp_mapping, bf16_groups and bit16_groups, the flat partitions; grad_position in stage 3."""
    assert facts[kind].trained and not facts[kind].covered_wrongly


@pytest.mark.parametrize("kind", SPECS)
def test_masters_and_moments_are_fp32(kind: str, facts: dict[str, EngineFacts]) -> None:
    """single_partition_of_fp32_groups, fp32_groups_flat_partition, fp32_partitioned_groups_flat, and the optimizer's state by them."""
    assert facts[kind].fields == {"master", "exp_avg", "exp_avg_sq"} and facts[kind].scalars == {"step"}
    assert facts[kind].dtypes == {"torch.float32"}


@pytest.mark.parametrize("kind", SPECS)
def test_masters_written_by_hand_reach_the_forward_weights(kind: str, facts: dict[str, EngineFacts]) -> None:
    """update_lp_params; _reassign_or_swap_out_partitioned_parameters and persistent_parameters in stage 3."""
    assert not facts[kind].unpublished


@pytest.mark.parametrize("kind", SPECS)
def test_moments_written_by_hand_are_the_ones_that_step(kind: str, facts: dict[str, EngineFacts]) -> None:
    assert not facts[kind].moments_unused


@pytest.mark.parametrize("kind", SPECS)
def test_only_fp16_has_a_loss_scale(kind: str, facts: dict[str, EngineFacts]) -> None:
    """loss_scaler and its fields."""
    if not kind.startswith("fp16"):
        assert facts[kind].loss_scale == {}
        return
    assert facts[kind].loss_scale.keys() == {"cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis"}
    assert facts[kind].loss_scale["cur_iter"] == 2
    assert facts[kind].loss_scale_set == {"cur_scale": 64.0, "cur_iter": 7.0, "last_overflow_iter": 3.0, "cur_hysteresis": 1.0}


@pytest.mark.parametrize("kind", SPECS)
def test_all_of_these_can_be_carried(kind: str, facts: dict[str, EngineFacts]) -> None:
    assert facts[kind].refusal == ""


def test_trained_parts_of_an_adapter(facts: dict[str, EngineFacts]) -> None:
    assert all("lora_" in name for name in facts["lora_2"].trained)
    assert any("modules_to_save" in name for name in facts["lora_3"].trained)


def test_state_of_an_unknown_kind_is_refused(pool: RankPool, small: Small, tmp_path: Path) -> None:
    make_run(tmp_path / "run", SPECS["fp32_2"], 1)
    for said in pool.run(refuses_unknown_state, 1, str(tmp_path / "run"), SPECS["fp32_2"], *small, logs=tmp_path / "logs"):
        assert said.startswith("5 ") and "the optimizer's codes of " in said and "elements of type torch.uint8" in said
